"""Noise has the law that its name says, the sampler's own probabilities keep the promise, no word is used twice."""

from __future__ import annotations

import copy
import hashlib
import math
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrank.kernels.noise import draw_noise, find_cell
from fedrank.protect.noise import (
    GridNoise,
    SecureSource,
    discrete_gaussian,
    polya_difference,
    rounded_gaussian,
    rounded_laplace,
)
from tests.oracles import noise as oracle

KEY = bytes(range(32))
DRAWS = 1_000_000
SYMMETRIC = {
    "rounded Gaussian": (rounded_gaussian, oracle.rounded_gaussian, stats.norm),
    "rounded Laplace": (rounded_laplace, oracle.rounded_laplace, stats.laplace),
    "discrete Gaussian": (discrete_gaussian, oracle.discrete_gaussian, stats.norm),
}


def support(noise: GridNoise) -> int:
    return int(noise.start[-1]) + (1 << int(noise.bits[-1]))


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


@pytest.mark.parametrize("make", [rounded_gaussian, rounded_laplace, discrete_gaussian])
def test_far_beyond_the_tables_nothing_is_drawn(make):
    assert make(700.0).probabilities(10**15, 10**15 + 2).tolist() == [0, 0, 0]


def test_low_digits_of_huge_noise_are_uniform():
    values = rounded_gaussian(2.0**40).draw(DRAWS, SecureSource(KEY))
    assert rare(np.bincount(values & 255).astype(float), np.full(256, DRAWS / 256)) > 1e-6


@pytest.mark.parametrize("scale", [0.5, 3.0, 700.0])
@pytest.mark.parametrize("name", SYMMETRIC)
def test_distance_from_the_law_is_at_most_what_is_said(name, scale):
    make, probability, _ = SYMMETRIC[name]
    noise = make(scale)
    m = support(noise)
    ours = noise.probabilities(-m, m)
    assert math.fsum(ours) == pytest.approx(1, abs=1e-15)
    assert np.array_equal(ours, ours[::-1])
    assert ours[0] == ours[-1] == 0  # beyond the tables
    step = 1 if scale < 100 else 7  # every seventh probability will do where they are many
    theirs = [float(probability(scale, k)) for k in range(0, m, step)]
    apart = step * math.fsum(np.abs(ours[m : 2 * m : step] - theirs))
    assert apart <= noise.total_variation
    assert noise.total_variation < 2.0**-40


@pytest.mark.parametrize("scale", [1000.0, 5000.0, 2.0**20 + 0.3, 2.0**33, 2.0**45])
@pytest.mark.parametrize("name", SYMMETRIC)
def test_wide_cells_agree_with_the_law_number_by_number(name, scale):
    make, probability, _ = SYMMETRIC[name]
    noise = make(scale)
    counts = np.diff(noise.top, prepend=np.uint64(0))
    rng = np.random.default_rng(5)
    reach = 5 if name != "rounded Laplace" else 15  # beyond, the rounding to 2^-63 shows in a single number
    near = rng.integers(0, int(reach * scale), 60)
    for k in [0, 1, 2, 3, 4095, 4096, *map(int, near)]:
        ours, theirs = float(noise.probabilities(k, k)[0]), float(probability(scale, k))
        cell = np.searchsorted(noise.start, k, side="right") - 1
        remainder = 2.0**-52 if cell == np.argmax(counts) else 0.0  # what rounding left over went to this cell
        share = float(counts[cell]) * 2.0**-63
        assert ours == pytest.approx(theirs, rel=2.0**-44 + (remainder + 2.0**-63) / share, abs=0), k


@pytest.mark.parametrize(("scale", "shares"), [(0.5, 1.0), (3.0, 2.5), (400.0, 1000.0), (3000.0, 2.5)])
def test_polya_variable_agrees_with_its_recurrence(scale, shares):
    noise = polya_difference(scale, shares)
    theirs = np.array([float(p) for p in oracle.polya(scale, shares, support(noise) - 1)])
    ours = noise._of_sizes(np.arange(len(theirs)))
    assert np.abs(ours - theirs).sum() / 2 <= noise.total_variation / 2
    assert noise.total_variation < 2.0**-40
    likely = theirs > 2.0**-20  # rounding to 2^-63 does not show
    np.testing.assert_allclose(ours[likely], theirs[likely], rtol=2.0**-42)


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
        assert ours <= promised + (1 + math.exp(epsilon)) * noise.total_variation
        if deviation >= 20:  # on a fine grid rounding hides next to nothing: a sampler with more noise would show
            assert ours > 0.99 * promised


@pytest.mark.parametrize(("scale", "shift"), [(0.5, 1), (3.0, 2), (50.0, 50)])
def test_rounded_laplace_keeps_its_pure_promise(scale, shift):
    noise = rounded_laplace(scale)
    m = support(noise) + shift
    p = noise.probabilities(-m, m).tolist()
    q = noise.probabilities(-m - shift, m - shift).tolist()
    epsilon = shift / scale
    assert oracle.hockey_stick(p, q, epsilon) <= (1 + math.exp(epsilon)) * noise.total_variation
    assert oracle.hockey_stick(p, q, 0.99 * epsilon) > 1e-3


def test_discrete_gaussian_is_concentrated_as_promised():
    """Its Renyi divergence of order 2 for a shift s is s^2 / deviation^2 (Canonne, Kamath and Steinke 2020)."""
    p, q = discrete_gaussian(4.0).probabilities(-30, 30), discrete_gaussian(4.0).probabilities(-32, 28)
    assert math.log(np.sum(p**2 / q)) == pytest.approx(2**2 / 4.0**2, rel=1e-6)


@pytest.mark.parametrize("make", [rounded_gaussian, rounded_laplace, lambda x: polya_difference(x, 7)])
@pytest.mark.parametrize("scale", [2.0**11, 2.0**14, 2.0**18])  # up to 32, 256 and 4096 numbers in a cell
def test_sums_over_cells(make, scale):
    noise = make(scale)
    for cell in (len(noise.start) // 2, len(noise.start) - 1):
        n = 1 << int(noise.bits[cell])
        t = np.arange(n) / n
        everything = math.fsum(np.exp(noise.slope[cell] @ np.array([t, t**2, t**3])))
        assert noise.inside[cell] == pytest.approx(everything, rel=1e-14)
    assert n > 16


def one_wide_cell(noise: GridNoise) -> tuple[int, int]:
    """A cell in the middle of the noise, and a word that leads to it (with a plus sign)."""
    cell = len(noise.top) // 8
    assert noise.bits[cell] > 0
    return cell, int(noise.top[cell - 1]) << 1


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
    tables = (noise.guide, np.uint64(noise.shift), noise.top, noise.start, noise.bits, noise.floor, noise.slope)
    return kernel(words, out, *tables, not noise.difference)


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
@given(st.lists(st.integers(0, 2**64 - 1), max_size=40), st.sampled_from([0.5, 30.0, 3000.0, 2.0**45]), st.booleans())
def test_the_kernel_is_the_same_uncompiled(words, scale, share):
    noise = polya_difference(scale, 3.0) if share else rounded_gaussian(scale)
    some = np.array(words, dtype=np.uint64)
    ours, theirs = np.zeros(30, dtype=np.int64), np.zeros(30, dtype=np.int64)
    assert fill(noise, some, ours) == fill(noise, some, theirs, draw_noise.py_func)
    assert np.array_equal(ours, theirs)
    for word in some >> np.uint64(1):
        cell = find_cell.py_func(word, noise.guide, np.uint64(noise.shift), noise.top)
        assert cell == np.searchsorted(noise.top, word, side="right")


def test_extreme_words_reach_the_first_and_the_last_cell():
    noise = rounded_gaussian(3.0)
    out = np.zeros(4, dtype=np.int64)
    fill(noise, np.array([0, 1, 2**64 - 2, 2**64 - 1], dtype=np.uint64), out)
    last = int(noise.start[np.flatnonzero(np.diff(noise.top, prepend=np.uint64(0)))[-1]])
    assert out.tolist() == [0, 0, last, -last]
    assert int(noise.top[-1]) == 2**63


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
    with pytest.raises(ValueError, match="5 bytes"):
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_a_stream_of_its_own():
    script = """
import os, sys
from fedrank.protect.noise import SecureSource
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
        with pytest.raises(ValueError, match="probability"):
            source.bernoulli(bad, 1)
