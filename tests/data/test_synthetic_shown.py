"""Made-up logs of shown lists: their truth, their chance, and what they look like as a data set."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.data.logs import load_log
from fedrank.data.synthetic_shown import STATIC, Browsing, Showing, made_up_queries, rounded_normals, simulate_shown

TRUTH = made_up_queries(40, documents=6, features=4)


def places_of(log):
    """Which places each pair was shown in."""
    found = {}
    for row in log.lists:
        for place, pair in enumerate(row):
            found.setdefault(int(pair), set()).add(place)
    return found


def test_the_same_arguments_give_the_same_log():
    one, two, other = (simulate_shown(TRUTH, 500, seed) for seed in (1, 1, 2))
    for name in ("lists", "clicks", "query", "user", "time"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
    assert not np.array_equal(one.clicks, other.clicks)
    assert np.all(np.diff(one.time) > 0)


@pytest.mark.parametrize(
    ("showing", "moves"),
    [(STATIC, False), (Showing(), True), (Showing(rankers=1, noise=0.1), True), (Showing(1, temperature=0.5), True)],
)
def test_documents_move_or_not(showing, moves):
    log = simulate_shown(TRUTH, 2000, showing=showing)
    assert any(len(places) > 1 for places in places_of(log).values()) == moves
    assert all(len(set(row)) == 6 for row in log.lists.tolist())


def test_clicks_are_as_often_as_the_model_says():
    browsing = Browsing(1.0, trust=0.3)
    log = simulate_shown(TRUTH, 60_000, browsing=browsing)
    expected = browsing.slope(np.arange(6)) * TRUTH.relevance[log.lists] + browsing.intercept(np.arange(6))
    assert log.clicks.mean(axis=0) == pytest.approx(expected.mean(axis=0), abs=0.01)
    # By hand: looked at 1/2; irrelevant documents seem relevant in .3 / 2, relevant ones in .97 of the cases.
    assert browsing.intercept(1) == pytest.approx(0.5 * 0.15)
    assert browsing.slope(1) + browsing.intercept(1) == pytest.approx(0.5 * 0.97)
    assert Browsing(2.0).slope(np.arange(3)) == pytest.approx([1, 1 / 4, 1 / 9])


def test_the_truth_is_what_people_click_on_average():
    log = simulate_shown(TRUTH, 60_000, showing=STATIC)
    shown = TRUTH.features @ log.rankers[0]
    assert log.clicks_a_list(shown) == pytest.approx(log.clicks.sum(axis=1).mean(), rel=0.02)
    assert log.clicks_a_list(shown, positions=2) == pytest.approx(log.clicks[:, :2].sum(axis=1).mean(), rel=0.02)
    assert log.clicks_a_list(TRUTH.relevance) > log.clicks_a_list(shown)


def test_known_draws_are_plackett_luce():
    truth = made_up_queries(1, documents=2)
    log = simulate_shown(truth, 20_000, showing=Showing(rankers=1, temperature=0.5), people=1)
    scores = truth.features.astype(float) @ log.rankers[0]
    first = 1 / (1 + np.exp((scores[1] - scores[0]) / 0.5))
    assert np.mean(log.lists[:, 0] == 0) == pytest.approx(first, abs=0.015)
    assert log.scores == pytest.approx(scores[log.lists], abs=1e-6)


def test_as_a_data_set(tmp_path):
    made = simulate_shown(TRUTH, 300, showing=Showing(rankers=1, temperature=0.5), people=7)
    log = made.write(tmp_path / "log")
    assert np.array_equal(log.lists, made.lists)
    assert np.array_equal(log.clicks, made.clicks)
    assert log.drawn == (0.5, 0.0)
    assert log.is_shown
    assert log.facts["settings"]["browsing"] == {"eta": 1.0, "trust": 0.0}
    assert load_log(tmp_path / "log").users[0] in {f"u{user}" for user in range(7)}
    assert simulate_shown(TRUTH, 300).write(tmp_path / "other").drawn is None


def test_judged_queries_have_grades_by_relevance():
    data = TRUTH.some(slice(10)).judged()
    assert (data.queries, data.documents, data.top_grade) == (10, 60, 4)
    assert np.corrcoef(data.grades, TRUTH.relevance[:60])[0, 1] > 0.95


@pytest.mark.parametrize(
    "make",
    [
        lambda: Browsing(-1.0),
        lambda: Browsing(1.0, 1.0),
        lambda: Showing(rankers=0),
        lambda: Showing(skill=2.0),
        lambda: made_up_queries(0),
        lambda: simulate_shown(TRUTH, 0),
    ],
)
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises(ValueError, match=r"must be|too few"):
        make()


def test_values_that_the_system_library_computes_are_rounded():
    drawn, rounded = np.random.default_rng(1).normal(size=100_000), rounded_normals(np.random.default_rng(1), 100_000)
    far = np.abs(drawn) > 3.65
    assert 10 < far.sum() < 60
    assert np.array_equal(rounded[~far], drawn[~far])
    assert np.array_equal(rounded[far], np.round(drawn[far], 9))
