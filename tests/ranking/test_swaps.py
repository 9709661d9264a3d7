"""Propensities from logged random swaps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrank.data.logs import load_log
from fedrank.ranking.swaps import CLIP, MOST, PAIRS, NoSwaps, Ratios, site_propensities, swap_counts
from tests.deploy.log_trial import EXAMINED, write_log


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return load_log(write_log(tmp_path_factory.mktemp("swaps") / "log", searches=40_000, people=1000))


def test_counts_are_those_by_hand(log):
    rows, who = np.arange(3000), np.asarray(log.user[:3000], np.int64)
    found = swap_counts(log, rows, who)
    expected = np.zeros((who.max() + 1, 2 * PAIRS))
    seen = np.zeros(who.max() + 1, int)
    for row in rows:
        upper = abs(int(log.swap[row])) - 1
        if seen[who[row]] < MOST:
            seen[who[row]] += 1
            expected[who[row], 2 * upper] += log.clicks[row, upper]
            expected[who[row], 2 * upper + 1] += log.clicks[row, upper + 1]
    assert np.array_equal(found, expected)


def test_without_noise_the_ratio_is_that_of_the_counts():
    counts = np.arange(100.0, 100 + 2 * PAIRS)
    ratios = Ratios.of(counts, 0.0)
    found = site_propensities(ratios, None).propensities
    expected = np.cumprod([1.0, *(counts[1::2] / counts[::2])])
    known = found.known
    assert known[:3].all()
    assert found.slope[known] == pytest.approx(expected[known], abs=1e-6)


def test_true_propensities_lie_in_the_intervals(log):
    """Of the clipped counts of three sites with noise; nine ratios, of which at most one interval may miss."""
    rng, sums = np.random.default_rng(1), []
    for part in range(3):
        rows = np.flatnonzero(np.asarray(log.user) % 3 == part)
        counts = swap_counts(log, rows, np.unique(log.user[rows], return_inverse=True)[1].astype(np.int64))
        counts *= np.minimum(1, CLIP / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-9))
        sums.append(counts.sum(axis=0) + rng.normal(0, 4 * CLIP, 2 * PAIRS))
    own, others = Ratios.of(sums[0], 4 * CLIP), Ratios.of(sums[1] + sums[2], 4 * CLIP * 2**0.5)
    found = site_propensities(own, others)
    by = found.propensities
    assert found.p > 0.01
    assert by.known[:6].all()
    inside = (by.low <= EXAMINED) & (by.high >= EXAMINED)
    assert np.count_nonzero(~inside[by.known]) <= 1
    assert 0.2 < found.own_share < 0.45  # of three sites


def test_a_site_that_differs_uses_its_own(log):
    rows, who = np.arange(len(log)), np.asarray(log.user, np.int64)
    counts = swap_counts(log, rows, who).sum(axis=0)
    other = counts.copy()
    other[1::2] = other[::2]  # no position bias at all
    found = site_propensities(Ratios.of(counts, 10.0), Ratios.of(other, 10.0))
    alone = site_propensities(Ratios.of(counts, 10.0), None)
    assert found.p < 0.01
    assert found.own_share == 1
    assert np.array_equal(found.propensities.slope, alone.propensities.slope, equal_nan=True)
    assert "differ from those of the other sites" in found.propensities.notes[0]


def test_counts_that_noise_hides_are_unknown():
    found = Ratios.of(np.full(2 * PAIRS, 10.0), 6.0)
    assert np.isnan(found.log).all()
    assert site_propensities(found, None).propensities.known.tolist() == [True] + [False] * PAIRS


def test_a_log_without_swaps_is_refused_with_what_to_log(log):
    with pytest.raises(NoSwaps, match=r'log query_attributes.swap = \{"position": 3, "swapped": true\}'):
        swap_counts(replace(log, swap=None), np.arange(5), np.zeros(5, np.int64))
    always = replace(log, swap=-np.abs(np.asarray(log.swap)))
    with pytest.raises(NoSwaps, match="100% of 3,000 drawn pairs were swapped, and not half of them"):
        swap_counts(always, np.arange(3000), np.zeros(3000, np.int64))
