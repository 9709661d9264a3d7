"""Noise that protects people: whole numbers of known laws, drawn from a secure stream.

Floating-point noise has gaps that give away what it was added to (Mironov, CCS 2012). Here updates lie on a grid, noise
is a whole number of grid steps, and the probabilities of the sampler that really runs can be read from its tables.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Words = NDArray[np.uint64]

SMALLEST, LARGEST = 0.5, 2.0**45  # deviation or scale, in grid steps
MOST_SHARES = 2.0**30
_BLOCK = 1 << 16  # bytes of stream that are made at a time
_CHUNK = 1 << 14  # values that are drawn at a time, so that their words stay in the processor's cache
_LONGEST_SUM = 1 << 20  # support up to which the law of a difference is added up


class SecureSource:
    """Random words that nobody can foretell: SHAKE-128 keyed by the operating system, with a new key for every block.

    The old key is gone once a block is made, so a stolen process does not give away earlier noise. A forked process
    gets a key of its own. Safe to share between threads.
    """

    _at: int  # bytes of the block that are used up

    def __init__(self, key: bytes | None = None) -> None:
        """`key` (32 bytes) repeats a stream and is for tests only: noise with a known key protects nobody."""
        if key is not None and len(key) != 32:
            raise ValueError(f"a key of {len(key)} bytes; give 32, or none for a fresh one")
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
            raise ValueError(f"q = {q} is no probability; choose it between 0 and 1")
        if q == 1:
            return np.ones(n, dtype=np.bool_)
        return self.words(n) < np.uint64(int(math.ldexp(q, 64)))

    def seed(self) -> int:
        """256 bits, the seed of a NumPy generator for chance that is secret but protects nobody."""
        return int.from_bytes(self.words(4).astype("<u8").tobytes(), "little")

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a SecureSource cannot be copied or pickled: both copies would give the same noise; make a new one"
        )

    def _start(self, key: bytes) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()  # anew: a lock that another thread held during a fork would stay held
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
    """A sampler of one symmetric law on whole numbers, as tables over |k|.

    One word decides the cell (63 bits) and the sign (1 bit). Inside a cell of several numbers one is proposed uniformly
    and accepted with exp of a cubic. How long a draw takes depends weakly on its value: do not let others time it.
    """

    law: str
    top: Words  # [cells]: a cell ends where the leading 63 bits of a word reach this; the last is 2^63
    start: Whole  # [cells]: smallest |k| in the cell
    bits: NDArray[np.uint8]  # [cells]: the cell holds 2^bits numbers
    slope: Floats  # [cells, 3]: log P(start + t 2^bits) / P(start) = ((slope[2] t + slope[1]) t + slope[0]) t
    floor: Words  # [cells]: acceptance below this, as a share of 2^64, needs no exponential
    inside: Floats  # [cells]: sum of P(k) / P(start) over the cell
    guide: NDArray[np.int32]  # first cell for every value of the leading bits, and one more
    shift: int  # 63 - number of leading bits
    words_each: float  # expected words for a value
    difference: bool  # a draw is the difference of two draws without sign
    total_variation: float  # upper bound on the distance of one draw from the law that it is named after

    def draw(self, shape: int | tuple[int, ...], source: SecureSource) -> Whole:
        """Independent values, in grid steps."""
        out = np.empty(shape, dtype=np.int64)
        self._fill(out.reshape(-1), source)
        if self.difference:
            other = np.empty_like(out)
            self._fill(other.reshape(-1), source)
            out -= other
        return out

    def probabilities(self, first: int, last: int) -> Floats:
        """With which probability this very sampler gives first, first + 1 .. last."""
        sizes = np.abs(np.arange(first, last + 1, dtype=np.int64))
        if not self.difference:
            return self._of_sizes(sizes) * np.where(sizes > 0, 0.5, 1.0)
        support = int(self.start[-1]) + (1 << int(self.bits[-1]))
        if support > _LONGEST_SUM:
            raise ValueError(
                f"{self.law} has {support} possible values, too many to add up; "
                f"ask for a scale below {_LONGEST_SUM / 46:.0f}"
            )
        one = self._of_sizes(np.arange(support))
        found = {int(k): float(one[: max(support - k, 0)] @ one[k:]) for k in np.unique(sizes)}
        return np.array([found[int(k)] for k in sizes])

    def _of_sizes(self, sizes: Whole) -> Floats:
        """Probability of each |k|, both signs together."""
        cell = np.searchsorted(self.start, sizes, side="right") - 1
        wide = np.ldexp(1.0, self.bits[cell].astype(np.int32))
        part = (sizes - self.start[cell]) / wide
        counts = np.diff(self.top, prepend=np.uint64(0)).astype(np.float64)
        mass = counts[cell] * 2.0**-63 / self.inside[cell]
        return np.where(part < 1, mass * np.exp(_cubic(self.slope[cell], np.minimum(part, 1))), 0.0)

    def _fill(self, out: Whole, source: SecureSource) -> None:
        from fedrank.kernels.noise import draw_noise

        done = 0
        kept = np.empty(0, dtype=np.uint64)
        while done < out.size:
            part = out[done : done + _CHUNK]
            fresh = source.words(max(int(part.size * self.words_each) - kept.size, 0) + 8)
            words = np.concatenate([kept, fresh])
            finished, used = draw_noise(
                words, part, self.guide, np.uint64(self.shift), self.top, self.start, self.bits, self.floor, self.slope,
                not self.difference,
            )  # fmt: skip
            done += finished
            kept = words[used:]


@lru_cache(maxsize=64)
def rounded_gaussian(deviation: float) -> GridNoise:
    """A normal variable of this deviation (in grid steps), rounded to the nearest whole number.

    Rounding comes after the noise, so every promise of the continuous Gaussian mechanism holds.
    """
    _check("deviation", deviation)
    variance = deviation**2
    nodes, weights = np.polynomial.legendre.leggauss(32)

    def at(k: Floats) -> Floats:
        x = k[:, None] + nodes / 2
        return np.exp(-(x**2) / (2 * variance)) @ weights

    def correction(k: Floats) -> Floats:
        # The integral over one step by the density in its middle: 1 + f''/(24 f) + f''''/(1920 f). Cells are wide only
        # for deviations above 435 (4096 / 9.4), where the next term is below 2^-50.
        z2 = k**2 / variance
        return (z2 - 1) / (24 * variance) + (z2**2 - 6 * z2 + 3) / (1920 * variance**2)

    def change(a: Floats, d: Floats) -> Floats:
        return -d * (2 * a + d) / (2 * variance) + np.log1p(correction(a + d)) - np.log1p(correction(a))

    return _tables(f"rounded Gaussian of deviation {deviation:g}", deviation, 9.4, at, change)


@lru_cache(maxsize=64)
def rounded_laplace(scale: float) -> GridNoise:
    """A Laplace variable of this scale (in grid steps), rounded to the nearest whole number."""
    _check("scale", scale)

    def at(k: Floats) -> Floats:
        step = -math.expm1(-1 / scale)
        return np.where(k > 0, 0.5 * np.exp(-(k - 0.5) / scale) * step, -math.expm1(-0.5 / scale))

    return _tables(f"rounded Laplace of scale {scale:g}", scale, 45.0, at, lambda a, d: -d / scale)


@lru_cache(maxsize=64)
def discrete_gaussian(deviation: float) -> GridNoise:
    """P(k) proportional to exp(-k^2 / (2 deviation^2)) on whole numbers (Canonne, Kamath and Steinke, NeurIPS 2020)."""
    _check("deviation", deviation)
    twice = 2 * deviation**2
    return _tables(
        f"discrete Gaussian of deviation {deviation:g}",
        deviation,
        9.4,
        lambda k: np.exp(-(k**2) / twice),
        lambda a, d: -d * (2 * a + d) / twice,
    )


@lru_cache(maxsize=64)
def polya_difference(scale: float, shares: float) -> GridNoise:
    """One share of discrete Laplace noise: the sum of `shares` independent draws has P(k) ~ exp(-|k| / scale).

    A draw is the difference of two Polya (negative binomial) variables with r = 1 / shares and p = exp(-1 / scale). One
    share alone protects nobody: most shares of many are 0.
    """
    _check("scale", scale)
    if not 1 <= shares <= MOST_SHARES:
        raise ValueError(f"shares = {shares}: the noise is split among 1 to {MOST_SHARES:.0f}; count the noisy clients")
    r = 1 / shares
    # Gamma(k + r) / Gamma(k + 1) = x^(r - 1) (1 + second / x^2 + fourth / x^4 + ..) with x = k + r / 2 (Tricomi and
    # Erdelyi 1951); from k = 256 on the next term is below 2^-53.
    second = -(r - 1) * (r - 2) * r / 24
    fourth = (r - 1) * (r - 2) * (r - 3) * (r - 4) / 24 * r * (5 * r + 2) / 240
    few = np.arange(255.0)
    small = np.cumprod(np.concatenate([[1.0], (few + r) / (few + 1)]))
    factor = r / math.gamma(1 + r)

    def correction(x: Floats) -> Floats:
        return (second + fourth / x**2) / x**2

    def at(k: Floats) -> Floats:
        x = np.maximum(k, 256) + r / 2
        large = factor * x ** (r - 1) * (1 + correction(x))
        return np.where(k < 256, small[np.minimum(k, 255).astype(np.int64)], large) * np.exp(-k / scale)

    def change(a: Floats, d: Floats) -> Floats:
        x = a + r / 2
        return (r - 1) * np.log1p(d / x) + np.log1p(correction(x + d)) - np.log1p(correction(x)) - d / scale

    law = f"Polya difference of scale {scale:g}, one of {shares:g} shares"
    return _tables(law, scale, 45.0, at, change, peaked=True)


def _check(name: str, value: float) -> None:
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(
            f"{name} = {value} grid steps: the tables are good from {SMALLEST} to 2^45; choose a "
            + ("coarser grid or less noise" if value > LARGEST else "finer grid or more noise")
        )


def _tables(
    law: str,
    scale: float,
    reach: float,
    at: Callable[[Floats], Floats],
    change: Callable[[Floats, Floats], Floats],
    peaked: bool = False,
) -> GridNoise:
    """Tables of a law that falls from 0 on.

    `at(k)` is its probability up to a factor, `change(a, d)` = log P(a + d) / P(a) where cells are wide. Beyond `reach`
    scales lies less than 2^-64. A `peaked` law has one side, is drawn in pairs, and bends as k^(r - 1) near 0.
    """
    start, bits = _cells(scale, reach, peaked)
    begin = start.astype(np.float64)
    wide = np.ldexp(1.0, bits.astype(np.int32))
    slope = np.zeros((len(start), 3))
    some = bits > 0
    thirds = np.array([1.0, 2.0, 3.0]) / 3
    heights = np.stack([change(begin[some], wide[some] * t) / t for t in thirds], axis=1)
    slope[some] = heights @ np.linalg.inv(np.vander(thirds, increasing=True)).T
    inside = _sums(slope, bits)

    mass = at(begin) * inside
    if not peaked:
        mass[1:] *= 2
    mass /= math.fsum(mass)
    counts = np.rint(np.ldexp(mass, 63)).astype(np.uint64)
    top_cell = int(np.argmax(counts))
    others = int(counts.sum(dtype=np.uint64)) - int(counts[top_cell])
    counts[top_cell] = np.uint64((1 << 63) - others)
    top = np.cumsum(counts, dtype=np.uint64)

    leading = min(max(len(start).bit_length() + 1, 8), 16)
    edges = np.arange((1 << leading) + 1, dtype=np.uint64) << np.uint64(63 - leading)
    guide = np.minimum(np.searchsorted(top, edges, side="right"), len(top) - 1).astype(np.int32)

    # Multiples of 2^bits, because so many low bits of the deciding number are not yet known when it is compared; a
    # little below the true value, so that its rounding cannot accept what the exponential would refuse.
    lowest = np.exp(slope.sum(axis=1)) * (1 - 2.0**-40)
    unit = bits.astype(np.uint64)
    floor = np.where(some, np.ldexp(np.where(some, lowest, 0.0), 64).astype(np.uint64) >> unit << unit, np.uint64(0))
    tries = wide / inside
    words_each = 1 + float(np.sum(mass[some] * (tries * (2 - lowest))[some]))

    # Distance from the law, at most the sum of
    #   2^-64            the tail that is cut off;
    #   cells x 2^-64    every cell rounded to a multiple of 2^-63, the remainder given to the largest;
    #   2^-45            relative error of a cell in double precision: an exponent of at most 45 after four roundings
    #                    (2^-45.5), 32 terms of a quadrature (2^-48);
    #   2^-46            inside a cell: the cubic (all but exact for Gaussian and Laplace), acceptance in 53 bits;
    # and for a peaked law also
    #   2^-43            255 factors of three roundings each (2^-43.4);
    #   2^-44            the cubic against (r - 1) log(1 + t / 512), whose fourth derivative 6 / 512^4 counts by 4! and,
    #                    for nodes at thirds, by 81 (2^-44.3).
    # A difference of two such draws is at most twice as far.
    distance = (1 + len(start)) * 2.0**-64 + 2.0**-45 + 2.0**-46 + (2.0**-43 + 2.0**-44 if peaked else 0.0)
    width = bits.astype(np.uint8)
    for array in (top, start, width, slope, floor, inside, guide):
        array.setflags(write=False)
    return GridNoise(
        law=law,
        top=top,
        start=start,
        bits=width,
        slope=slope,
        floor=floor,
        inside=inside,
        guide=guide,
        shift=63 - leading,
        words_each=words_each,
        difference=peaked,
        total_variation=2 * distance if peaked else distance,
    )


def _cells(scale: float, reach: float, peaked: bool) -> tuple[Whole, Whole]:
    """First number and width (as a power of two) of the cells that cover 0 .. reach x scale.

    No cell is wider than scale / 64. Zero is alone, because it has no sign. A peaked law gets cells of at most 1/512 of
    their place; for the others single numbers pay only where they hold most of the noise (one word a draw, not two).
    """
    end = math.ceil(reach * scale) + 1
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
        # Euler and Maclaurin around the middles of the steps: the integral from -1/2 to n - 1/2, less the growth of the
        # derivative by 24; the next term is below 2^-50.
        middle = 0.5 - 0.5 / n
        integral = n * (np.exp(_cubic(cells, middle + nodes / 2)) @ (weights / 2))
        ends = np.array([-0.5, n - 0.5]) / n
        tilt = cells[..., 0] + ends * (2 * cells[..., 1] + ends * 3 * cells[..., 2])
        total[those] = integral - np.diff(np.exp(_cubic(cells, ends)) * tilt, axis=1)[:, 0] / (24 * n)
    return total


def _cubic(slope: Floats, part: Floats) -> Floats:
    value: Floats = part * (slope[..., 0] + part * (slope[..., 1] + part * slope[..., 2]))
    return value
