"""What messages between silos give away, and what noise keeps: measured on little, compared with what theory says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from fedrank.attacks.sketches import identify_by_cells
from fedrank.privacy.noise import SecureSource
from fedrank_papers.silo_figures import draw_noise
from fedrank_papers.silo_noise import certain, distinguish, make_neighbours

PAIRS = 400
SPREAD = 4 * np.sqrt(0.25 / PAIRS)  # four deviations of a share


@pytest.fixture(scope="module")
def neighbours():
    return make_neighbours(PAIRS, length=100)


def test_words_that_fit_best_share_the_guess():
    dictionary = np.array([[1, 2, 3], [1, 2, 4], [1, 2, 4], [7, 8, 9]])
    assert identify_by_cells(np.array([1, 2, 3]), dictionary).tolist() == [1, 0, 0, 0]
    assert identify_by_cells(np.array([1, 2, 4]), dictionary).tolist() == [0, 1 / 2, 1 / 2, 0]
    assert identify_by_cells(np.array([0, 0, 0]), dictionary).tolist() == [1 / 4] * 4


@pytest.mark.long
def test_neighbours_differ_in_one_word(neighbours):
    away = neighbours.second - neighbours.first
    # One word leaves and another comes: one unit each in every row, and nothing (or two) where they meet.
    assert np.all(np.abs(away).sum(axis=2) <= 2)
    assert np.all((away**2).sum(axis=(1, 2)) <= neighbours.sketcher.sensitivity**2)
    values = neighbours.queried(neighbours.first)
    row = 3
    assert values[5, row] == neighbours.first[5, row, neighbours.cells[5, row]]


def test_published_noise_tells_every_pair_apart(neighbours):
    assert certain(neighbours) == PAIRS
    assert [each.right for each in distinguish(neighbours, "paper", (1, 5))] == [1, 1]


def test_noised_sketches_tell_what_theory_says_however_often_they_are_asked(neighbours):
    once, often = distinguish(neighbours, "sketch", (1, 100), source=SecureSource(bytes(32)))
    assert once.right == often.right
    assert once.bound == pytest.approx(norm.cdf(1 / 2))  # σ1 = 1
    # Most pairs differ by 1 in 2 z cells, half of the sensitivity's square: Φ(sqrt(2 z) / (2 · 2 sqrt(z))).
    assert once.right == pytest.approx(norm.cdf(np.sqrt(2) / 4), abs=SPREAD)
    assert once.right < once.bound + SPREAD


def test_less_noise_tells_more(neighbours):
    (loud,), (quiet,) = (
        distinguish(neighbours, "sketch", (1,), sigma=sigma, source=SecureSource(bytes(32))) for sigma in (1.0, 0.1)
    )
    assert quiet.right > loud.right + 0.2


def test_lookups_stay_below_their_promise_and_tell_more_with_every_question(neighbours):
    once, often = distinguish(neighbours, "lookup", (1, 100), source=SecureSource(bytes(32)))
    assert once.bound == pytest.approx(np.exp(0.5) / (1 + np.exp(0.5)))  # randomised response at ε = 0.5
    assert once.right < once.bound + SPREAD
    assert often.right > once.right + 0.1
    assert often.right <= often.bound


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_figure_is_drawn(neighbours, tmp_path, suffix):
    told = {noise: distinguish(neighbours, noise, (1, 2)) for noise in ("paper", "lookup", "sketch")}
    out = draw_noise(told, tmp_path / f"deeper/noise{suffix}")
    start = out.read_bytes()[:200]
    assert (b"<svg" in out.read_bytes()) if suffix == ".svg" else start.startswith(b"\x89PNG")
