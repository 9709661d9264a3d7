"""Noise for differential privacy: integers of known distributions, drawn from a cryptographically secure stream.

Floating-point noise has gaps that reveal what it was added to (Mironov, CCS 2012). Here updates are on a grid, noise
is an integer number of grid steps, and the exact probabilities of the sampler can be read from its tables.

Every probability is exact up to a factor close to 1, those of the rarest values included (`GridNoise.log_error`). If
only the total error were bounded, a value could occur under one data set and never under its neighbour, and that
would have to be added to the delta of every draw.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fedrank.types import Source

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Words = NDArray[np.uint64]

SMALLEST, LARGEST = 0.5, 2.0**45  # standard deviation or scale, in grid steps
MAX_SHARES = 2.0**30
_BLOCK = 1 << 16  # bytes of the stream generated at a time
_CHUNK = 1 << 14  # values drawn at a time, so their words fit in the processor's cache
_MAX_SUM = 1 << 20  # numbers in the tables up to which the distribution of a difference is computed
_LEAST = 2.0**-72  # probability of a cell below which the tables end and the tail begins
_LAST = 1 << 62  # bound on values: a difference fits into 64 bits


class SecureSource:
    """Unpredictable random words: SHAKE-128 keyed by the operating system, with a new key for every block.

    The old key is erased once a block is generated, so a compromised process does not reveal earlier noise. A forked
    process gets a new key. Safe to share between threads.
    """

    _at: int  # used bytes of the block

    def __init__(self, key: bytes | None = None) -> None:
        """`key` (32 bytes) repeats a stream and is for tests only: noise with a known key gives no privacy."""
        if key is not None and len(key) != 32:
            raise ValueError(f"key must have 32 bytes (got {len(key)}); leave it out for a random one")
        self._start(os.urandom(32) if key is None else key)

    def words(self, n: int) -> Words:
        """The next n words of 64 bits."""
        if os.getpid() != self._process:  # a copy of the parent's stream would repeat its noise
            self._start(os.urandom(32))
        parts = []
        missing = 8 * n
        with self._lock:
            while missing > 0:
                if self._at == len(self._block):
                    self._refill()
                end = min(self._at + missing, len(self._block))
                parts.append(bytes(self._block[self._at : end]))
                self._block[self._at : end] = bytes(end - self._at)
                missing -= end - self._at
                self._at = end
        return np.frombuffer(b"".join(parts), dtype="<u8").astype(np.uint64, copy=False)

    def bernoulli(self, q: float, n: int) -> NDArray[np.bool_]:
        """n independent answers, each true with probability q (exact to 2^-64; exact for 0 and 1)."""
        if not 0 <= q <= 1:
            raise ValueError(f"q must be between 0 and 1 (got {q})")
        if q == 1:
            return np.ones(n, dtype=np.bool_)
        return self.words(n) < np.uint64(int(math.ldexp(q, 64)))

    def seed(self) -> int:
        """256 bits, to seed a NumPy generator for randomness that is secret but not needed for privacy."""
        return int.from_bytes(self.words(4).astype("<u8").tobytes(), "little")

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a SecureSource cannot be copied or pickled: both copies would give the same noise; create a new one"
        )

    def _start(self, key: bytes) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()  # new: a lock held by another thread during a fork would never be released
        self._key = key
        self._block = bytearray()
        self._at = 0

    def _refill(self) -> None:
        made = hashlib.shake_128(self._key + b"fedrank noise").digest(32 + _BLOCK)
        self._key = made[:32]
        self._block = bytearray(made[32:])
        self._at = 0


@dataclass(frozen=True, eq=False)
class GridNoise:
    """A sampler of one symmetric distribution on integers, as tables over |k| and a rule for the tail beyond them.

    One word decides the cell (63 bits) and the sign (1 bit); where it equals a threshold, another word adds 64 bits.
    In a cell of several numbers one is proposed uniformly and accepted with exp of a cubic. The last cell is the
    tail, with a probability below 2^-60. Where n draws of the distribution cost (epsilon, delta), n draws of this
    sampler cost at most (epsilon + 2 n log_error, exp(n log_error) delta). The duration of a draw depends weakly on
    its value: do not expose it to timing.
    """

    law: str  # name of the distribution
    top: Words  # [cells]: a cell ends where the leading 63 bits of a word reach this; the last is 2^63
    rest: Words  # [cells]: the next 64 bits of the same threshold
    mass: Floats  # [cells]: probability of the cell, the distance between its two thresholds
    start: Whole  # [cells]: smallest |k| in the cell; the last cell, the tail, is unbounded
    bits: NDArray[np.uint8]  # [cells]: the cell contains 2^bits numbers
    slope: Floats  # [cells, 3]: log P(start + t 2^bits) / P(start) = ((slope[2] t + slope[1]) t + slope[0]) t
    floor: Words  # [cells]: acceptance below this, as a fraction of 2^64, needs no exponential
    inside: Floats  # [cells]: sum of P(k) / P(start) over the cell
    guide: NDArray[np.int32]  # first cell for every value of the leading bits, and one more
    shift: int  # 63 - number of leading bits
    words_each: float  # expected words per value
    difference: bool  # a draw is the difference of two draws without sign
    tail: Callable[[int, Source], int]  # draws |k| >= its first argument from the distribution
    fall: Callable[[float, Floats], Floats]  # (a, d): log P(a + d) / P(a) as the tail is drawn
    log_error: float  # every probability is within a factor exp(+-log_error) of the named distribution

    def draw(self, shape: int | tuple[int, ...], source: Source) -> Whole:
        """Independent values, in grid steps."""
        out = np.empty(shape, dtype=np.int64)
        self._fill(out.reshape(-1), source)
        if self.difference:
            other = np.empty_like(out)
            self._fill(other.reshape(-1), source)
            out -= other
        return out

    def probabilities(self, first: int, last: int) -> Floats:
        """The probability with which this sampler returns first, first + 1 .. last."""
        sizes = np.abs(np.arange(first, last + 1, dtype=np.int64))
        if not self.difference:
            return self._of_sizes(sizes) * np.where(sizes > 0, 0.5, 1.0)
        # P(n) P(n + k) falls at least as exp(-2 n / scale): past the tables it is below 2^-80 of the sum.
        many = int(self.start[-1])
        if many > _MAX_SUM:
            raise ValueError(
                f"{self.law} has {many} numbers in its tables, too many to add up; "
                f"use a scale below {_MAX_SUM / 51:.0f}"
            )
        if not sizes.size:
            return np.empty(0)
        one = self._of_sizes(np.arange(many))
        nearest = int(sizes.min())
        other = self._of_sizes(np.arange(nearest, int(sizes.max()) + many))
        found = {int(k): float(one @ other[k - nearest :][:many]) for k in np.unique(sizes)}
        return np.array([found[int(k)] for k in sizes])

    def _of_sizes(self, sizes: Whole) -> Floats:
        """Probability of each |k|, both signs together."""
        cell = np.searchsorted(self.start, sizes, side="right") - 1
        away = (sizes - self.start[cell]).astype(np.float64)
        beyond = cell == len(self.start) - 1
        height = _cubic(self.slope[cell], np.where(beyond, 0.0, away / np.ldexp(1.0, self.bits[cell].astype(np.int32))))
        height[beyond] = self.fall(float(self.start[-1]), away[beyond])
        return self.mass[cell] / self.inside[cell] * np.exp(height)

    def _fill(self, out: Whole, source: Source) -> None:
        from fedrank.kernels.noise import draw_noise

        done = 0
        kept = np.empty(0, dtype=np.uint64)
        while done < out.size:
            part = out[done : done + _CHUNK]
            fresh = source.words(max(int(part.size * self.words_each) - kept.size, 0) + 8)
            words = np.concatenate([kept, fresh])
            finished, used, sign = draw_noise(
                words, part, self.guide, np.uint64(self.shift), self.top, self.rest, self.start, self.bits, self.floor,
                self.slope, not self.difference,
            )  # fmt: skip
            done += finished
            kept = words[used:]
            if sign:
                out[done] = sign * self._beyond(source)
                done += 1

    def _beyond(self, source: Source) -> int:
        """A value of the tail. Values from 2^62 on, of probability below exp(-2^16), are rejected."""
        while True:
            value = self.tail(int(self.start[-1]), source)
            if value < _LAST:
                return value


@lru_cache(maxsize=64)
def rounded_gaussian(deviation: float) -> GridNoise:
    """A normal variable of this standard deviation (in grid steps), rounded to the nearest integer.

    Rounding is post-processing, so every guarantee of the continuous Gaussian mechanism holds.
    """
    _check("deviation", deviation)
    variance = deviation**2
    exact = Fraction(deviation) ** 2
    nodes, weights = np.polynomial.legendre.leggauss(64)

    def at(k: Floats) -> Floats:
        x = k[:, None] + nodes / 2
        return np.exp(-(x**2) / (2 * variance)) @ weights

    def correction(k: Floats) -> Floats:
        # The integral over one step by the density in its middle: 1 + f''/(24 f) + f''''/(1920 f). Cells are wide only
        # for deviations above 400 (4096 / 10), where the next term is below 2^-50.
        z2 = k**2 / variance
        return (z2 - 1) / (24 * variance) + (z2**2 - 6 * z2 + 3) / (1920 * variance**2)

    def change(a: Floats, d: Floats) -> Floats:
        return -d * (2 * a + d) / (2 * variance) + np.log1p(correction(a + d)) - np.log1p(correction(a))

    def step(k: Floats) -> Floats:
        """Mean density between k - 1/2 and k + 1/2, relative to the density in k; constant past 40 deviations."""
        y = np.minimum(k, 40 * deviation)[:, None]
        mean: Floats = np.log(np.exp(-(nodes / 2) * (2 * y + nodes / 2) / (2 * variance)) @ weights)
        return mean

    def fall(a: float, d: Floats) -> Floats:
        return -d * (2 * a + d) / (2 * variance) + step(a + d) - step(np.array([a]))

    def tail(first: int, source: Source) -> int:
        # The normal variable itself, as first - 1/2 + away: exp(-x^2) is a falling exponential times exp(-away^2). The
        # fractional part of `away` is uniform, in steps of 2^-128.
        low = first - Fraction(1, 2)
        while True:
            whole = _geometric(low / exact, source)
            part = Fraction(2 * _below(1 << 128, source) + 1, 1 << 129)
            if _decays(part * low / exact + (whole + part) ** 2 / (2 * exact), source):
                return first + whole

    return _tables(f"rounded Gaussian of deviation {deviation:g}", deviation, 14, at, change, fall, tail)


@lru_cache(maxsize=64)
def rounded_laplace(scale: float) -> GridNoise:
    """A Laplace variable of this scale (in grid steps), rounded to the nearest integer."""
    _check("scale", scale)
    rate = 1 / Fraction(scale)

    def at(k: Floats) -> Floats:
        step = -math.expm1(-1 / scale)
        return np.where(k > 0, 0.5 * np.exp(-(k - 0.5) / scale) * step, -math.expm1(-0.5 / scale))

    def fall(_: Floats | float, d: Floats) -> Floats:
        return -d / scale

    def tail(first: int, source: Source) -> int:
        return first + _geometric(rate, source)

    return _tables(f"rounded Laplace of scale {scale:g}", scale, 90, at, fall, fall, tail)


@lru_cache(maxsize=64)
def discrete_gaussian(deviation: float) -> GridNoise:
    """P(k) proportional to exp(-k^2 / (2 deviation^2)) on integers (Canonne, Kamath and Steinke, NeurIPS 2020)."""
    _check("deviation", deviation)
    twice = 2 * deviation**2
    exact = Fraction(deviation) ** 2

    def fall(a: Floats | float, d: Floats) -> Floats:
        return -d * (2 * a + d) / twice

    def tail(first: int, source: Source) -> int:
        while True:
            away = _geometric(first / exact, source)
            if _decays(away**2 / (2 * exact), source):
                return first + away

    law = f"discrete Gaussian of deviation {deviation:g}"
    return _tables(law, deviation, 14, lambda k: np.exp(-(k**2) / twice), fall, fall, tail)


@lru_cache(maxsize=64)
def polya_difference(scale: float, shares: float) -> GridNoise:
    """One part of distributed discrete Laplace noise: the sum of `shares` draws has P(k) ~ exp(-|k| / scale).

    A draw is the difference of two Polya (negative binomial) variables with r = 1 / shares and p = exp(-1 / scale). One
    draw alone gives no privacy: with many shares, most draws are 0.
    """
    _check("scale", scale)
    if not 1 <= shares <= MAX_SHARES:
        raise ValueError(f"shares must be between 1 and {MAX_SHARES:.0f}, the number of noisy clients (got {shares})")
    r = 1 / shares
    rate = 1 / Fraction(scale)
    # Gamma(k + r) / Gamma(k + 1) = x^(r - 1) (1 + second / x^2 + fourth / x^4 + ..) with x = k + r / 2 (Tricomi and
    # Erdelyi 1951); from k = 256 on the next term is below 2^-53.
    second = -(r - 1) * (r - 2) * r / 24
    fourth = (r - 1) * (r - 2) * (r - 3) * (r - 4) / 24 * r * (5 * r + 2) / 240
    factor = r / math.gamma(1 + r)
    small = np.ones(256)
    above, below = 1, 1  # as exact integers: 255 factors in double precision would lose ten bits
    n, d = Fraction(shares).as_integer_ratio()
    for k in range(255):
        above *= k * n + d
        below *= (k + 1) * n
        small[k + 1] = above / below

    def correction(x: Floats) -> Floats:
        return (second + fourth / x**2) / x**2

    def power(k: Floats) -> Floats:
        x = np.maximum(k, 256) + r / 2
        large = factor * x ** (r - 1) * (1 + correction(x))
        return np.where(k < 256, small[np.minimum(k, 255).astype(np.int64)], large)

    def at(k: Floats) -> Floats:
        return power(k) * np.exp(-k / scale)

    def change(a: Floats, d: Floats) -> Floats:
        x = a + r / 2
        return (r - 1) * np.log1p(d / x) + np.log1p(correction(x + d)) - np.log1p(correction(x)) - d / scale

    def ratio(a: float, d: Floats) -> Floats:
        return power(a + d) / power(np.array([a]))

    def fall(a: float, d: Floats) -> Floats:
        return np.log(ratio(a, d)) - d / scale

    def tail(first: int, source: Source) -> int:
        # The power decreases, so the exponential alone is an upper bound. It decreases slowly: to 2^-20 only a million
        # times as far out as the tables end. The decision is exact for the given double, however small.
        while True:
            away = _geometric(rate, source)
            if _happens(Fraction(min(float(ratio(first, np.array([float(away)]))[0]), 1.0)), source):
                return first + away

    law = f"Polya difference of scale {scale:g}, one of {shares:g} shares"
    return _tables(law, scale, 90, at, change, fall, tail, peaked=True)


def _check(name: str, value: float) -> None:
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(
            f"{name} must be between {SMALLEST} and 2^45 grid steps (got {value}); use a "
            + ("coarser grid or less noise" if value > LARGEST else "finer grid or more noise")
        )


def _below(n: int, source: Source) -> int:
    """A uniform integer from 0 to n - 1, by rejection."""
    bits = (n - 1).bit_length()
    while True:
        words = source.words(-(-bits // 64))
        found = int.from_bytes(words.astype("<u8").tobytes(), "little") >> (64 * len(words) - bits)
        if found < n:
            return found


def _happens(probability: Fraction, source: Source) -> bool:
    """True with exactly this probability."""
    return _below(probability.denominator, source) < probability.numerator


def _decays(x: Fraction, source: Source) -> bool:
    """True with probability exp(-x), exactly, for x >= 0 (Canonne, Kamath and Steinke 2020, algorithm 1)."""
    above, below = x.numerator, x.denominator
    while above > below:
        if not _decays(Fraction(1), source):
            return False
        above -= below
    # The n-th coin shows heads with probability x / n: all n do with x^n / n!, and an even number has exp(-x).
    n = 1
    while _below(n * below, source) < above:
        n += 1
    return n % 2 == 1


def _geometric(rate: Fraction, source: Source) -> int:
    """P(k) proportional to exp(-rate k) for k >= 0, exactly (Canonne, Kamath and Steinke 2020, algorithm 2)."""
    n, d = rate.numerator, rate.denominator
    while True:
        fine = _below(d, source)
        if _decays(Fraction(fine, d), source):
            break
    coarse = 0
    while _decays(Fraction(1), source):
        coarse += 1
    return (fine + d * coarse) // n


def _tables(
    law: str,
    scale: float,
    far: float,
    at: Callable[[Floats], Floats],
    change: Callable[[Floats, Floats], Floats],
    fall: Callable[[float, Floats], Floats],
    tail: Callable[[int, Source], int],
    peaked: bool = False,
) -> GridNoise:
    """Tables of a distribution that decreases from 0 on.

    `at(k)` is its probability up to a factor, `change(a, d)` = log P(a + d) / P(a) where cells are wide; `fall` and
    `tail` as in `GridNoise`. Less than 2^-50 of the tail is beyond `far` scales. A `peaked` distribution is one-sided,
    is drawn in pairs, and behaves as k^(r - 1) near 0.
    """
    start, bits = _cells(scale, far, peaked)
    begin = start.astype(np.float64)
    wide = np.ldexp(1.0, bits.astype(np.int32))
    slope = np.zeros((len(start), 3))
    some = bits > 0
    thirds = np.array([1.0, 2.0, 3.0]) / 3
    heights = np.stack([change(begin[some], wide[some] * t) / t for t in thirds], axis=1)
    slope[some] = heights @ np.linalg.inv(np.vander(thirds, increasing=True)).T
    inside = _sums(slope, bits)
    single = at(begin)
    weight = single * inside
    if not peaked:
        weight[1:] *= 2
    weight /= math.fsum(weight)

    # The last cell takes all that follows. It begins with a cell that is not too small itself, so every cell is large
    # relative to the resolution of the thresholds.
    last = max(int(np.argmax(weight < _LEAST)), 2) - 1
    inside[last] = math.fsum(single[last:] * inside[last:]) / single[last]
    weight[last] = math.fsum(weight[last:])
    slope[last], bits[last], wide[last], some[last] = 0, 0, 1, False
    keep = slice(last + 1)
    start, bits, wide, slope, some = start[keep], bits[keep], wide[keep], slope[keep], some[keep]
    inside, weight = inside[keep], weight[keep]

    # Thresholds in integer multiples of 2^-127: doubles from 2^-72 up are such multiples, so only the division rounds.
    whole = [int(math.ldexp(x, 127)) for x in weight.tolist()]
    everything = sum(whole)
    counts = [(x << 127) // everything for x in whole]
    counts[int(np.argmax(weight))] += (1 << 127) - sum(counts)
    ends = list(accumulate(counts))
    top = np.array([x >> 64 for x in ends], dtype=np.uint64)
    rest = np.array([x & ((1 << 64) - 1) for x in ends], dtype=np.uint64)
    mass = np.array([math.ldexp(x, -127) for x in counts])

    leading = min(max(len(start).bit_length() + 1, 8), 16)
    edges = np.arange((1 << leading) + 1, dtype=np.uint64) << np.uint64(63 - leading)
    guide = np.minimum(np.searchsorted(top, edges, side="right"), len(top) - 1).astype(np.int32)

    # Multiples of 2^bits, because that many low bits of the deciding number are unknown when it is compared; slightly
    # below the true value, so rounding cannot accept what the exponential would reject.
    lowest = np.exp(slope.sum(axis=1)) * (1 - 2.0**-40)
    unit = bits.astype(np.uint64)
    floor = np.where(some, np.ldexp(np.where(some, lowest, 0.0), 64).astype(np.uint64) >> unit << unit, np.uint64(0))
    tries = wide / inside
    words_each = 1 + float(np.sum(mass[some] * (tries * (2 - lowest))[some]))

    # Bound on the error of the logarithm of a probability: the sum of
    #   2^-44.6          height of a cell: an exponent of at most 52 (the tables end at 2^-72, the tail counts where it
    #                    begins) after six rounding errors of 2^-53;
    #   2^-46            64 terms of a quadrature, exponentials and other functions to some units in the last place;
    #   2^-47            inside a cell: the cubic (nearly exact for Gaussian and Laplace), its sum, acceptance in 53
    #                    bits;
    #   2^-50            the tail past `far`, and the mass of the tail, which is a sum of such cells;
    #   2^-54            thresholds: one of 2^-127 against 2^-72, the remainder (cells x 2^-127) against the largest;
    #   2^-45            the factor that makes the sum 1: the mean of the first three, most of it near 0;
    # which is 2^-43.3; and for a peaked distribution also
    #   2^-44            the cubic against (r - 1) log(1 + t / 512), whose fourth derivative 6 / 512^4 counts by 4! and,
    #                    for nodes at thirds, by 81 (2^-44.3); as much for the factor;
    #   2^-46            gamma function, powers, and the acceptance in the tail.
    # The difference of two such draws has a sum of products of two probabilities: twice the error.
    # Decisions in the tail are exact, and it is unbounded below 2^62.
    one = 2.0**-42 if peaked else 2.0**-43
    width = bits.astype(np.uint8)
    for array in (top, rest, mass, start, width, slope, floor, inside, guide):
        array.setflags(write=False)
    return GridNoise(
        law=law,
        top=top,
        rest=rest,
        mass=mass,
        start=start,
        bits=width,
        slope=slope,
        floor=floor,
        inside=inside,
        guide=guide,
        shift=63 - leading,
        words_each=words_each,
        difference=peaked,
        tail=tail,
        fall=fall,
        log_error=2 * one if peaked else one,
    )


def _cells(scale: float, far: float, peaked: bool) -> tuple[Whole, Whole]:
    """First number and width (as a power of two) of the cells that cover 0 .. far x scale.

    No cell is wider than scale / 64. Zero has its own cell, because it has no sign. A peaked distribution has cells of
    at most 1/512 of their position; for the others, cells of one number are worthwhile only where they cover most of
    the noise (one word per draw, not two).
    """
    end = math.ceil(far * scale) + 1
    widest = max(math.frexp(scale / 64)[1] - 1, 0)
    narrow = 9 if peaked else 0
    octave = 12 if peaked or scale <= 4096 else 0
    starts = [np.arange(min(1 << octave, end + 1), dtype=np.int64)]
    widths = [np.zeros(len(starts[0]), dtype=np.int64)]
    while 1 << octave <= end:
        wide = min(octave - narrow, widest)
        starts.append(np.arange(1 << octave, min(2 << octave, end + 1), 1 << wide, dtype=np.int64))
        widths.append(np.full(len(starts[-1]), wide, dtype=np.int64))
        octave += 1
    return np.concatenate(starts), np.concatenate(widths)


def _sums(slope: Floats, bits: Whole) -> Floats:
    """Sum of exp(cubic(d / 2^bits)) over d = 0 .. 2^bits - 1, for every cell."""
    nodes, weights = np.polynomial.legendre.leggauss(16)
    total = np.ones(len(bits))
    for wide in np.unique(bits[bits > 0]):
        n = 1 << int(wide)
        those = bits == wide
        cells = slope[those][:, None, :]
        if n <= 128:
            total[those] = np.exp(_cubic(cells, np.arange(n) / n)).sum(axis=1)
            continue
        # Euler-Maclaurin around the midpoints of the steps: the integral from -1/2 to n - 1/2, less the growth of the
        # derivative divided by 24; the next term is below 2^-50.
        middle = 0.5 - 0.5 / n
        integral = n * (np.exp(_cubic(cells, middle + nodes / 2)) @ (weights / 2))
        ends = np.array([-0.5, n - 0.5]) / n
        tilt = cells[..., 0] + ends * (2 * cells[..., 1] + ends * 3 * cells[..., 2])
        total[those] = integral - np.diff(np.exp(_cubic(cells, ends)) * tilt, axis=1)[:, 0] / (24 * n)
    return total


def _cubic(slope: Floats, part: Floats) -> Floats:
    value: Floats = part * (slope[..., 0] + part * (slope[..., 1] + part * slope[..., 2]))
    return value
