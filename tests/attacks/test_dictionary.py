"""What messages between silos give away, and what noise keeps: measured on little, compared with what theory says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from fedrank.attacks.dictionary import (
    certain,
    choose_decoys,
    distinguish,
    hidden_hashes,
    hidden_terms,
    identify_by_cells,
    made_up_words,
    make_neighbours,
)
from fedrank.privacy.noise import SecureSource
from fedrank_papers.silo_figures import draw_noise

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
def test_a_few_real_rows_give_the_word_away():
    one, three, all_rows = hidden_hashes((1, 3, 30), words=2000, cases=60)
    # With one real row of 30, about 30 / 200 of the other words fit some row as well.
    assert one.right < 0.1
    # Of 2,000 words about 2000 C(30, 3) / 200^3 = 1 fits three rows by chance.
    assert 0.3 < three.right < 0.9
    assert all_rows.right == 1


def test_signs_say_more():
    plain, signed = (hidden_hashes((3,), signed, words=2000, cases=60)[0].right for signed in (False, True))
    assert signed > plain + 0.1  # 2000 C(30, 3) / 400^3 = 0.13 others fit


def test_decoys_that_look_alike_hide_and_others_do_not():
    alike, rare, fresh = hidden_terms((4,), questions=3, words=3000, cases=300)
    assert alike.right == pytest.approx(1 / 5, abs=4 * np.sqrt(0.16 / 300))
    assert rare.right > 0.5
    assert fresh.right > 0.8
    assert [each.right for each in hidden_terms((0,), words=100, cases=10)] == [1, 1, 1]


def test_the_first_word_is_the_most_frequent_and_all_differ():
    assert len(set(made_up_words(50))) == 50


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


def test_decoys_of_a_term_are_the_same_every_time_and_secret():
    words = [f"decoy{i}" for i in range(100)]
    once = choose_decoys(["flu", "cold"], 4, words, b"secret")
    assert once == choose_decoys(["flu", "cold"], 4, words, b"secret")
    assert once[:4] == choose_decoys(["flu"], 4, words, b"secret")
    assert once != choose_decoys(["flu", "cold"], 4, words, b"another")
    assert len(set(once[:4])) == 4
    assert "flu" not in choose_decoys(["flu"], 3, ["flu", "a", "b", "c"], b"secret")
    assert choose_decoys(["flu"], 0, words, b"secret") == []
    with pytest.raises(ValueError, match="3 of 4 decoys"):
        choose_decoys(["flu"], 4, ["flu", "a", "b", "c"], b"secret")
