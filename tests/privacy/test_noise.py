"""Noise has the law that its name says, the sampler's own probabilities keep the promise, no word is used twice."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import pickle
import subprocess
import sys
import threading
from bisect import bisect_right
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrank.kernels.noise import draw_noise, find_cell
from fedrank.privacy import noise as module
from fedrank.privacy.noise import (
    GridNoise,
    SecureSource,
    discrete_gaussian,
    polya_difference,
    rounded_gaussian,
    rounded_laplace,
)
from tests import needs
from tests.oracles import noise as oracle

KEY = bytes(range(32))
DRAWS = 1_000_000
SYMMETRIC = {
    "rounded Gaussian": (rounded_gaussian, oracle.rounded_gaussian, stats.norm),
    "rounded Laplace": (rounded_laplace, oracle.rounded_laplace, stats.laplace),
    "discrete Gaussian": (discrete_gaussian, oracle.discrete_gaussian, stats.norm),
}


def support(noise: GridNoise) -> int:
    """Where the tables end and the tail begins; one draw in 2^60 lies beyond."""
    return int(noise.start[-1])


def tail_soon(make, *settings: float, least: float = 2.0**-6) -> GridNoise:
    """The same law with tables that end early, so that many draws come from the tail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LEAST", least)
        return make.__wrapped__(*settings)


def log_apart(ours: float, theirs) -> float:
    """|log ours / theirs| with all digits of the oracle."""
    return abs(math.log1p(float((Fraction(ours) - Fraction(theirs)) / Fraction(theirs))))


class Listed:
    """A source that gives the words of a list."""

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def words(self, count: int) -> np.ndarray:
        found, self.left = self.left[:count], self.left[count:]
        assert len(found) == count
        return np.array(found, dtype=np.uint64)


def rare(observed: np.ndarray, expected: np.ndarray) -> float:
    """P-value of Pearson's chi-square."""
    return float(stats.chi2.sf(np.sum((observed - expected) ** 2 / expected), len(expected) - 1))


def rare_values(values: np.ndarray, law: list[float]) -> float:
    """P-value of values against the probabilities of -m .. m, the rare ends put together."""
    m = len(law) // 2
    expected = np.array(law) * len(values)
    inner = np.flatnonzero(expected >= 50)
    first, last = inner[0], inner[-1]
    expected[first] += expected[:first].sum()
    expected[last] += expected[last + 1 :].sum()
    observed = np.bincount(np.clip(values + m, first, last) - first, minlength=last - first + 1)
    return rare(observed.astype(float), expected[first : last + 1])


def rare_bins(values: np.ndarray, law: stats.rv_continuous, scale: float, bins: int = 24) -> float:
    """P-value of values against a continuous law, in bins of about equal probability that end between whole numbers."""
    edges = np.floor(law.ppf(np.arange(1, bins) / bins) * scale) + 0.5
    observed = np.bincount(np.searchsorted(edges, values), minlength=bins)
    expected = np.diff(np.concatenate([[0.0], law.cdf(edges / scale), [1.0]])) * len(values)
    return rare(observed.astype(float), expected)


@pytest.mark.parametrize("name", SYMMETRIC)
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_small_noise_has_its_law_and_one_percent_off_is_seen(name, scale):
    make, probability, _ = SYMMETRIC[name]
    m = support(make(scale))
    law = [float(probability(scale, k)) for k in range(-m, m + 1)]
    assert rare_values(make(scale).draw(DRAWS, SecureSource(KEY)), law) > 1e-6
    assert rare_values(make(1.01 * scale).draw(DRAWS, SecureSource(KEY)), law) < 1e-6


@pytest.mark.parametrize("name", SYMMETRIC)
@pytest.mark.parametrize("scale", [1000.0, 2.0**20 + 0.3, 2.0**45])
def test_large_noise_has_its_law_and_one_percent_off_is_seen(name, scale):
    make, _, law = SYMMETRIC[name]
    assert rare_bins(make(scale).draw(DRAWS, SecureSource(KEY)), law, scale) > 1e-6
    assert rare_bins(make(0.99 * scale).draw(DRAWS, SecureSource(KEY)), law, scale) < 1e-6


def test_low_digits_of_huge_noise_are_uniform():
    values = rounded_gaussian(2.0**40).draw(DRAWS, SecureSource(KEY))
    assert rare(np.bincount(values & 255).astype(float), np.full(256, DRAWS / 256)) > 1e-6


@pytest.mark.parametrize("scale", [0.5, 3.0, 700.0])
@pytest.mark.parametrize("name", SYMMETRIC)
def test_every_probability_is_within_the_factor_that_is_said(name, scale):
    make, probability, _ = SYMMETRIC[name]
    noise = make(scale)
    m = support(noise)
    ours = noise.probabilities(-m, m)
    assert math.fsum(ours) == pytest.approx(1, abs=1e-15)
    assert np.array_equal(ours, ours[::-1])
    assert noise.log_error <= 2.0**-43
    most = int(13 * scale if "Gaussian" in name else 60 * scale) + 2
    assert most > m  # past the tables
    numbers = range(most) if scale < 100 else [0, 1, 4095, 4096, m - 1, m, m + 1, *range(5, most, most // 300)]
    ours = noise.probabilities(0, most)
    assert max(log_apart(ours[k], probability(scale, k)) for k in numbers) <= noise.log_error


@pytest.mark.parametrize("scale", [1000.0, 5000.0, 2.0**20 + 0.3, 2.0**33, 2.0**45])
@pytest.mark.parametrize("name", SYMMETRIC)
def test_wide_cells_and_the_tail_agree_with_the_law_number_by_number(name, scale):
    make, probability, _ = SYMMETRIC[name]
    noise = make(scale)
    rng = np.random.default_rng(5)
    reach = 12 if "Gaussian" in name else 60
    assert reach * scale > 1.2 * support(noise)
    some = rng.uniform(0, reach * scale, 40).astype(np.int64)
    edges = [support(noise) + d for d in (-1, 0, 1)]
    for k in [0, 1, 2, 3, 4095, 4096, *edges, *map(int, some)]:
        assert log_apart(noise.probabilities(k, k)[0], probability(scale, k)) <= noise.log_error, k


@pytest.mark.parametrize(("scale", "least"), [(3.0, 2.0**-6), (700.0, 2.0**-15), (2.0**30, 2.0**-10)])
@pytest.mark.parametrize("name", SYMMETRIC)
def test_where_the_tables_end_does_not_change_the_law(name, scale, least):
    make, probability, _ = SYMMETRIC[name]
    noise = tail_soon(make, scale, least=least)
    assert support(noise) < 0.8 * support(make(scale))
    reach = 12 if "Gaussian" in name else 60
    for k in map(int, np.linspace(0, reach * scale, 37)):
        assert log_apart(noise.probabilities(k, k)[0], probability(scale, k)) <= noise.log_error, k


@pytest.mark.parametrize(
    ("scale", "shares"), [(0.5, 1.0), (0.5, 2.0**30), (3.0, 2.5), (40.0, 2.0**30), (400.0, 1000.0), (3000.0, 2.5)]
)
def test_polya_variable_agrees_with_its_recurrence(scale, shares):
    noise = polya_difference(scale, shares)
    most = int(1.2 * support(noise)) + 3
    theirs = oracle.polya(scale, shares, most)
    ours = noise._of_sizes(np.arange(most + 1))
    numbers = [*range(0, most, 1 + most // 500), 255, 256, 4095, 4096, support(noise)]
    assert max(log_apart(ours[k], theirs[k]) for k in numbers if k <= most) <= noise.log_error / 2
    assert noise.log_error <= 2.0**-41


@pytest.mark.parametrize("shares", [1.0, 3.0, 1e6])
def test_polya_variable_of_a_huge_scale_agrees_with_gamma_functions(shares):
    scale = 2.0**40
    noise = polya_difference(scale, shares)
    for k in [0, 1, 255, 256, 4095, 4096, 70_001, 10**6 + 3]:
        theirs = stats.nbinom.pmf(k, 1 / shares, -math.expm1(-1 / scale))
        assert noise._of_sizes(np.array([k]))[0] == pytest.approx(theirs, rel=1e-6, abs=0)
    # Median and upper quarter of a gamma variable, to which a Polya variable of a large scale converges.
    if shares <= 3:
        for quarter in (0.5, 0.75):
            cell = int(np.searchsorted(noise.top, np.uint64(quarter * 2**63)))
            assert noise.start[cell] == pytest.approx(stats.gamma.ppf(quarter, 1 / shares) * scale, rel=0.005)


def test_shares_add_up_to_the_discrete_laplace_law():
    law = [float(oracle.discrete_laplace(3.0, k)) for k in range(-150, 151)]
    values = polya_difference(3.0, 5).draw((5, DRAWS // 5), SecureSource(KEY)).sum(axis=0)
    assert rare_values(values, law) > 1e-6
    assert rare_values(values[:-1] + values[1:], law) < 1e-6
    wrong = polya_difference(3.0, 4.8).draw((5, DRAWS // 5), SecureSource(KEY)).sum(axis=0)
    assert rare_values(wrong, law) < 1e-6


def test_probabilities_of_shares_add_up_exactly():
    one = polya_difference(2.0, 4).probabilities(-100, 100)
    assert one.sum() == pytest.approx(1, abs=1e-13)
    two = np.convolve(one, one)
    four = np.convolve(two, two)
    middle = len(four) // 2
    law = [float(oracle.discrete_laplace(2.0, k)) for k in range(-30, 31)]
    np.testing.assert_allclose(four[middle - 30 : middle + 31], law, rtol=1e-9)


def test_shares_of_a_large_scale_are_not_added_up():
    with pytest.raises(ValueError, match="too many to add up"):
        polya_difference(1e6, 10).probabilities(0, 1)


@pytest.mark.parametrize(("deviation", "shift"), [(0.5, 1), (2.0, 3), (20.0, 20), (600.0, 400)])
def test_rounding_keeps_the_promise_of_the_gaussian_mechanism(deviation, shift):
    noise = rounded_gaussian(deviation)
    m = support(noise) + shift
    p = noise.probabilities(-m, m).tolist()
    q = noise.probabilities(-m - shift, m - shift).tolist()
    for epsilon in (0.1, 1.0, 4.0):
        ours = oracle.hockey_stick(p, q, epsilon)
        promised = oracle.gaussian_delta(deviation / shift, epsilon)
        assert ours <= promised * (1 + 1e-9)  # nothing is added; 1e-9 for the two formulas in double precision
        if deviation >= 20:  # on a fine grid rounding hides next to nothing: a sampler with more noise would show
            assert ours > 0.99 * promised


@pytest.mark.parametrize(("scale", "shift"), [(0.5, 1), (3.0, 2), (50.0, 50), (5000.3, 1)])
@pytest.mark.parametrize("early", [False, True])
def test_rounded_laplace_keeps_its_pure_promise_to_the_last_number(scale, shift, early):
    noise = tail_soon(rounded_laplace, scale) if early else rounded_laplace(scale)
    m = int(min(690 * scale, 400_000))
    assert m > 1.5 * support(noise)
    p, q = noise.probabilities(-m, m), noise.probabilities(-m - shift, m - shift)
    assert p.min() > 0
    loss = np.log(p) - np.log(q)
    epsilon = shift / scale
    rounding = 2.0**-43  # of an exponent of 690 in what we compute here
    assert np.abs(loss).max() <= epsilon + 2 * noise.log_error + rounding
    assert loss.max() >= 0.999 * epsilon


def test_discrete_gaussian_is_concentrated_as_promised():
    """Its Renyi divergence of order 2 for a shift s is s^2 / deviation^2 (Canonne, Kamath and Steinke 2020)."""
    p, q = discrete_gaussian(4.0).probabilities(-30, 30), discrete_gaussian(4.0).probabilities(-32, 28)
    assert math.log(np.sum(p**2 / q)) == pytest.approx(2**2 / 4.0**2, rel=1e-6)


@pytest.mark.parametrize("make", [rounded_gaussian, rounded_laplace, lambda x: polya_difference(x, 7)])
@pytest.mark.parametrize("scale", [2.0**11, 2.0**14, 2.0**18])  # up to 32, 256 and 4096 numbers in a cell
def test_sums_over_cells(make, scale):
    noise = make(scale)
    for cell in (len(noise.start) // 2, len(noise.start) - 2):
        n = 1 << int(noise.bits[cell])
        t = np.arange(n) / n
        everything = math.fsum(np.exp(noise.slope[cell] @ np.array([t, t**2, t**3])))
        assert noise.inside[cell] == pytest.approx(everything, rel=1e-14)
    assert n > 16


def one_wide_cell(noise: GridNoise) -> tuple[int, int]:
    """A cell in the middle of the noise, and a word that leads to it (with a plus sign)."""
    cell = len(noise.top) // 8
    assert noise.bits[cell] > 0
    return cell, (int(noise.top[cell - 1]) + 1) << 1


@pytest.mark.parametrize("make", [rounded_gaussian, rounded_laplace, discrete_gaussian])
def test_a_proposal_is_accepted_with_the_ratio_of_probabilities(make):
    noise = make(2.0**45)  # so wide that the second word leaves 25 bits for the decision: the third must count
    cell, word = one_wide_cell(noise)
    wide = int(noise.bits[cell])
    start = int(noise.start[cell])
    for inside in (0, 1, 1 << (wide - 1), (1 << wide) - 1):
        ratio = noise.probabilities(start + inside, start + inside)[0] / noise.probabilities(start, start)[0]
        for chance, taken in ((ratio - 1e-12, True), (ratio + 1e-12, False), (0.0, True), (1 - 2.0**-53, inside == 0)):
            if chance >= 1:
                continue
            decides = int(chance * 2**64)
            second = (inside << (64 - wide)) | (decides >> wide)
            third = (decides << (64 - wide)) % 2**64
            # Words for another, certain proposal follow, so that a refusal shows in the value.
            words = np.array([word, second, third, 7 << (64 - wide)], dtype=np.uint64)
            out = np.full(1, -1)
            finished, used = fill(noise, words, out)
            if taken:
                assert (finished, out[0]) == (1, start + inside)
                assert used in (2, 3)
            else:
                assert (finished, used, out[0]) == (1, 4, start + 7)


def fill(noise: GridNoise, words: np.ndarray, out: np.ndarray, kernel=draw_noise) -> tuple[int, int]:
    finished, used, sign = reach(noise, words, out, kernel)
    assert sign == 0  # no tail
    return finished, used


def reach(noise: GridNoise, words: np.ndarray, out: np.ndarray, kernel=draw_noise) -> tuple[int, int, int]:
    places = (noise.guide, np.uint64(noise.shift), noise.top, noise.rest)
    return kernel(words, out, *places, noise.start, noise.bits, noise.floor, noise.slope, not noise.difference)


def test_a_value_that_is_cut_short_uses_no_words():
    noise = rounded_laplace(2.0**20)
    _, word = one_wide_cell(noise)
    out = np.full(2, -1)
    assert fill(noise, np.array([word], dtype=np.uint64), out) == (0, 0)
    assert fill(noise, np.array([word, 2**64 - 1], dtype=np.uint64), out) == (0, 0)
    assert fill(noise, np.array([word, 0, word], dtype=np.uint64), out) == (1, 2)


@pytest.mark.parametrize("scale", [100.0, 3000.0, 2.0**30])
def test_values_depend_on_the_stream_alone_not_on_how_it_is_cut(scale):
    noise = rounded_laplace(scale)
    n = 40_000
    out = np.empty(n, dtype=np.int64)
    assert fill(noise, SecureSource(KEY).words(3 * n), out)[0] == n
    assert np.array_equal(noise.draw((4, 10_000), SecureSource(KEY)).ravel(), out)


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.integers(0, 2**64 - 1), max_size=40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(-30, -2), st.booleans()), max_size=4),
    st.sampled_from([0.5, 30.0, 3000.0, 2.0**45]),
    st.booleans(),
)
def test_the_kernel_is_the_same_uncompiled(words, on_thresholds, scale, share):
    noise = polya_difference(scale, 3.0) if share else rounded_gaussian(scale)
    for at, cell, sign in on_thresholds:
        words.insert(at, 2 * int(noise.top[max(cell, -len(noise.top))]) % 2**64 + sign)
    some = np.array(words, dtype=np.uint64)
    ours, theirs = np.zeros(30, dtype=np.int64), np.zeros(30, dtype=np.int64)
    assert reach(noise, some, ours) == reach(noise, some, theirs, draw_noise.py_func)
    assert np.array_equal(ours, theirs)
    for word in some >> np.uint64(1):
        cell = find_cell.py_func(word, noise.guide, np.uint64(noise.shift), noise.top)
        assert cell == np.searchsorted(noise.top, word, side="right")


@pytest.mark.parametrize("make", [rounded_gaussian, rounded_laplace, discrete_gaussian])
def test_thresholds_have_127_bits(make):
    noise = make(60.0)  # every cell is one number
    ends = [int(t) << 64 | int(r) for t, r in zip(noise.top, noise.rest, strict=True)]
    assert ends[-1] == 1 << 127
    assert noise.mass.tolist() == [(b - a) / 2**127 for a, b in zip([0, *ends], ends, strict=False)]
    assert len(np.unique(noise.top)) < len(ends) - 3  # some cells are smaller than a word can tell
    last = len(ends) - 1
    for cell in [0, 1, 2, 100, *range(last - 60, last)]:
        for end in (ends[cell] - 1, ends[cell], ends[cell] + 1):
            place, more = end >> 64, end & (2**64 - 1)
            expected = bisect_right(ends, end)
            for sign in (0, 1):
                words = np.array([2 * place + sign, more], dtype=np.uint64)
                out = np.full(1, -1)
                finished, used, tail = reach(noise, words, out)
                assert used == 1 + (place in noise.top)
                if expected == last:
                    assert (finished, tail) == (0, -1 if sign else 1)
                else:
                    assert (finished, tail, out[0]) == (1, 0, -expected if sign else expected)
                if used == 2:
                    assert reach(noise, words[:1], out) == (0, 0, 0)


def test_extreme_words_reach_zero_and_both_tails():
    noise = rounded_gaussian(3.0)
    out = np.zeros(2, dtype=np.int64)
    assert fill(noise, np.array([0, 1], dtype=np.uint64), out) == (2, 2)
    assert out.tolist() == [0, 0]
    most = 2**64 - 1
    assert reach(noise, np.array([most, most, 5], dtype=np.uint64), out) == (0, 2, -1)
    assert reach(noise, np.array([0, most - 1, most], dtype=np.uint64), out) == (1, 3, 1)
    assert reach(polya_difference(3.0, 2), np.array([most, most], dtype=np.uint64), out) == (0, 2, 1)
    assert int(noise.top[-1]) == 2**63


@pytest.mark.parametrize("name", SYMMETRIC)
@pytest.mark.parametrize(("scale", "least"), [(0.5, 2.0**-3), (3.0, 2.0**-6), (200.0, 2.0**-10)])
def test_draws_that_pass_through_the_tail_have_the_law(name, scale, least):
    make, probability, law = SYMMETRIC[name]
    noise = tail_soon(make, scale, least=least)
    assert noise.mass[-1] > 0.01
    values = noise.draw(4_000, SecureSource(KEY))
    assert np.sum(np.abs(values) >= support(noise)) > 50
    if scale > 100:
        assert rare_bins(values, law, scale) > 1e-6
    else:
        m = int(np.abs(values).max())
        assert rare_values(values, [float(probability(scale, k)) for k in range(-m, m + 1)]) > 1e-6


TAILS = {
    "rounded Gaussian": (rounded_gaussian, lambda k: oracle.rounded_gaussian(3.0, k)),
    "rounded Laplace": (rounded_laplace, lambda k: oracle.rounded_laplace(3.0, k)),
    "discrete Gaussian": (discrete_gaussian, lambda k: oracle.discrete_gaussian(3.0, k)),
    "Polya": (lambda scale: polya_difference(scale, 4.0), lambda k: POLYA[k]),
}
POLYA = oracle.polya(3.0, 4.0, 300)


@pytest.mark.parametrize("first", [2, 20])
@pytest.mark.parametrize("name", TAILS)
def test_the_tail_beyond_a_number_has_the_law(name, first):
    make, probability = TAILS[name]
    source = SecureSource(KEY)
    values = np.array([make(3.0).tail(first, source) for _ in range(1500)])
    assert values.min() == first
    law = np.array([float(probability(k)) for k in range(first, 42 if "Gaussian" in name else 140)])
    expected = law / law.sum() * len(values)
    many = int(np.sum(expected >= 10))
    expected[many] = expected[many:].sum()
    observed = np.bincount(np.minimum(values - first, many), minlength=many + 1)
    assert rare(observed.astype(float), expected[: many + 1]) > 1e-5
    if first < 20:  # a tail that only falls as an exponential would show
        rate = {"rounded Laplace": 0.5 / 3, "Polya": 1 / 3}.get(name, first / 9)
        wrong = np.exp(-rate * np.arange(many + 1))
        wrong[many] /= -math.expm1(-rate)
        assert rare(observed.astype(float), wrong / wrong.sum() * len(values)) < 1e-5


@pytest.mark.parametrize("rounded", [True, False])
def test_a_gaussian_tail_multiplies_up_to_the_density(monkeypatch, rounded):
    """Proposed with exp(-rate away), accepted with exp(-x): together the density in the point, by that in the first."""
    rates, decays, parts = [], [], []
    monkeypatch.setattr(module, "_geometric", lambda rate, source: rates.append(rate) or 7)
    monkeypatch.setattr(module, "_below", lambda n, source: parts.append(n) or n // 4)
    monkeypatch.setattr(module, "_decays", lambda x, source: decays.append(x) or len(decays) == 2)
    make = rounded_gaussian if rounded else discrete_gaussian
    assert make(3.0).tail(20, SecureSource(KEY)) == 27
    assert len(rates) == len(decays) == 2  # a refused proposal is not used again
    first, point = (Fraction(39, 2), Fraction(53, 2) + Fraction(1, 4) + Fraction(1, 2**129)) if rounded else (20, 27)
    assert parts == ([2**128] * 2 if rounded else [])
    for rate, x in zip(rates, decays, strict=True):
        assert 7 * rate + x == Fraction(point**2 - first**2) / 18


@pytest.mark.parametrize("make", [rounded_gaussian, discrete_gaussian])
def test_the_tail_of_huge_noise_is_a_normal_tail(make):
    source = SecureSource(KEY)
    values = np.array([make(2.0**45).tail(2**45, source) for _ in range(800)]) / 2.0**45
    assert stats.kstest(stats.norm.sf(values) / stats.norm.sf(1.0), "uniform").pvalue > 1e-5
    assert stats.kstest(np.exp(1 - values), "uniform").pvalue < 1e-5


@pytest.mark.parametrize("shares", [1.0, 2.0])
def test_the_tail_of_a_huge_share_is_a_gamma_tail(shares):
    source = SecureSource(KEY)
    noise = polya_difference(2.0**45, shares)
    values = np.array([noise.tail(2**41, source) for _ in range(800)]) / 2.0**45
    law = stats.gamma(1 / shares)
    assert stats.kstest(law.sf(values) / law.sf(2.0**-4), "uniform").pvalue > 1e-5
    if shares > 1:
        assert stats.kstest(np.exp(2.0**-4 - values), "uniform").pvalue < 1e-5


def test_values_of_the_tail_that_do_not_fit_are_drawn_again():
    drawn = iter([2**62, 2**70, 2**62 - 1])
    noise = dataclasses.replace(rounded_laplace(3.0), tail=lambda first, source: next(drawn))
    assert noise._beyond(SecureSource()) == 2**62 - 1


def test_a_tail_value_takes_its_place_among_the_others():
    noise = dataclasses.replace(rounded_laplace(3.0), tail=lambda first, source: first + 5)
    most = 2**64 - 1
    found = noise.draw(3, Listed(0, most, most, 0, 2**64 - 2, most, *[7] * 40))
    assert found.tolist() == [0, -(support(noise) + 5), 0]


def test_one_of_n_is_uniform_and_takes_leading_bits():
    top3 = [j << 61 for j in range(8)]
    assert [module._below(5, Listed(word)) for word in top3[:5]] == [0, 1, 2, 3, 4]
    assert module._below(5, Listed(top3[7], top3[5], top3[3])) == 3
    assert module._below(1, Listed()) == 0
    assert module._below(2**64, Listed(2**64 - 1)) == 2**64 - 1
    assert module._below(2**65, Listed(2**63, 1)) == 3  # 65 bits of two words, the second one leading
    assert module._happens(Fraction(3, 5), Listed(top3[2]))
    assert not module._happens(Fraction(3, 5), Listed(top3[3]))


@pytest.mark.parametrize("x", [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(5, 2)])
def test_decay_has_its_probability(x):
    source = SecureSource(KEY)
    often = sum(module._decays(x, source) for _ in range(4000))
    p = math.exp(-x)
    assert abs(often - 4000 * p) <= 4.5 * math.sqrt(4000 * p * (1 - p))


@pytest.mark.parametrize("rate", [Fraction(1, 4), Fraction(5, 7), Fraction(13, 4)])
def test_geometric_has_its_law(rate):
    source = SecureSource(KEY)
    values = np.array([module._geometric(rate, source) for _ in range(4000)])
    many = max(int(4 / rate), 1)
    edges = np.exp(-float(rate) * np.arange(many + 1))
    expected = 4000 * np.append(-np.diff(edges), edges[-1])
    assert rare(np.bincount(np.minimum(values, many), minlength=many + 1).astype(float), expected) > 1e-5


def test_shapes():
    noise = rounded_gaussian(2.0)
    assert noise.draw((3, 0), SecureSource()).shape == (3, 0)
    assert noise.draw((2, 3), SecureSource()).shape == (2, 3)
    assert noise.draw(5, SecureSource()).dtype == np.int64
    assert rounded_gaussian(2.0) is noise
    with pytest.raises(ValueError, match="read-only"):
        noise.top[0] = 0


@pytest.mark.parametrize(
    "make", [rounded_gaussian, rounded_laplace, discrete_gaussian, lambda x: polya_difference(x, 3)]
)
@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0, 0.49, math.inf, 2.0**45 * 1.01])
def test_impossible_scales_are_refused(make, bad):
    with pytest.raises(ValueError, match="grid steps"):
        make(bad)


@pytest.mark.parametrize("bad", [math.nan, 0.0, 0.99, -3.0, math.inf])
def test_impossible_shares_are_refused(bad):
    with pytest.raises(ValueError, match="shares"):
        polya_difference(3.0, bad)


def test_the_stream_is_shake_with_a_new_key_for_every_block():
    source = SecureSource(KEY)
    first = hashlib.shake_128(KEY + b"fedrank noise").digest(32 + 65536)
    second = hashlib.shake_128(first[:32] + b"fedrank noise").digest(32 + 65536)
    words = np.concatenate([source.words(5), source.words(9000)])
    expected = np.frombuffer(first[32:] + second[32:], dtype="<u8")[:9005]
    assert np.array_equal(words, expected)


def test_two_sources_differ_and_a_key_repeats():
    assert not np.array_equal(SecureSource().words(4), SecureSource().words(4))
    assert np.array_equal(SecureSource(KEY).words(4), SecureSource(KEY).words(4))
    assert SecureSource(KEY).seed() == int.from_bytes(SecureSource(KEY).words(4).tobytes(), "little")
    assert SecureSource().seed() != SecureSource().seed()
    with pytest.raises(ValueError, match=r"32 bytes \(got 5"):
        SecureSource(b"short")


def test_no_word_comes_twice_and_bits_are_even():
    source = SecureSource(KEY)
    words = np.concatenate([source.words(n) for n in (1, 0, 8191, 8192, 8193, 175_423)])
    assert len(words) == 200_000 == len(np.unique(words))
    ones = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=0)
    # 64 bits, each binomial with deviation 224: five deviations are missed once in 27,000 runs, and the key is fixed.
    assert np.all(np.abs(ones - 100_000.0) < 5 * math.sqrt(200_000 / 4))


def test_threads_share_a_source_without_sharing_words():
    source = SecureSource()
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.extend(source.words(1) for _ in range(4000))) for _ in range(4)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads interrupt each other as often as they can
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    assert len(np.unique(np.concatenate(found))) == 4 * 4000


def test_a_source_cannot_be_copied():
    for copies in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="same noise"):
            copies(SecureSource())


@pytest.mark.process
@needs.fork
def test_a_forked_process_has_a_stream_of_its_own():
    script = """
import os, sys
from fedrank.privacy.noise import SecureSource
source = SecureSource(bytes(32))
source.words(3)
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.write(writing, source.words(8).tobytes())
    os._exit(0)
os.waitpid(child, 0)
theirs, ours = os.read(reading, 64), source.words(8).tobytes()
again = SecureSource(bytes(32)).words(11)[3:].tobytes()
print(len(theirs), theirs != ours, ours == again)
"""
    told = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["64", "True", "True"]


def test_bernoulli():
    source = SecureSource(KEY)
    assert not source.bernoulli(0.0, 1000).any()
    assert source.bernoulli(1.0, 1000).all()
    assert source.bernoulli(1.0, 3).dtype == np.bool_
    assert abs(source.bernoulli(0.3, 200_000).sum() - 60_000) < 5 * math.sqrt(200_000 * 0.3 * 0.7)
    assert np.array_equal(SecureSource(KEY).bernoulli(0.75, 500), SecureSource(KEY).words(500) < np.uint64(3 << 62))
    assert not source.bernoulli(2.0**-70, 1000).any()
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            source.bernoulli(bad, 1)
