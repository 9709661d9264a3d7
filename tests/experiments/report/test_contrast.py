"""The rule by which variants are compared: against a slow bootstrap, and on invented effects whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedrank.experiments.report.claims import OPEN, Stated, judge
from fedrank.experiments.report.contrast import (
    Contrast,
    across,
    by_folds,
    by_queries,
    by_splits,
    contrast,
)
from fedrank.experiments.report.run_values import RunValues, VariantRuns
from tests.oracles.bootstrap import bootstrap_error

# The audit's case: a difference that is zero in truth moves by .02 with the queries of a data set, by .005 with seeds.
QUERIES, OF_QUERIES, LUCK = 100, 0.2, 0.005


def made_up(
    rng: np.random.Generator, folds: int, seeds: int, effect: float = 0.0, luck: float = LUCK, queries: int = QUERIES
) -> Contrast:
    """A comparison on invented queries: each has its own difference, and each training moves all of them a little."""
    where = np.repeat(np.arange(1, folds + 1), seeds)
    ids = [np.array([f"{fold} {query}" for query in range(queries)]) for fold in where]
    own = rng.normal(effect, OF_QUERIES, (folds + 1, queries))
    values = [own[fold] + rng.normal(0, luck) + rng.normal(0, 0.1, queries) for fold in where]
    return by_queries(np.array([each.mean() for each in values]), where, ids, values)


def share(tests: list[Contrast]) -> float:
    """How many of them are called significant."""
    return float(np.mean([test.p < 0.05 for test in tests]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("folds", "seeds", "luck"), [(1, 5, LUCK), (2, 5, LUCK), (5, 1, LUCK), (1, 5, 0.04), (5, 1, 0.04), (1, 3, 0.02)]
)
def test_no_effect_is_called_significant_in_a_twentieth_of_cases(folds: int, seeds: int, luck: float) -> None:
    rng = np.random.default_rng(folds * 10 + seeds)
    found = share([made_up(rng, folds, seeds, luck=luck) for _ in range(300)])
    assert found < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


def test_counting_seeds_as_data_would_call_most_of_them_significant() -> None:
    rng = np.random.default_rng(7)
    naive = [stats.ttest_1samp(rng.normal(0, 0.02) + rng.normal(0, 0.005, 5), 0).pvalue < 0.05 for _ in range(300)]
    assert np.mean(naive) > 0.6


def test_the_power_to_show_two_variants_alike() -> None:
    found = Contrast(0.0, 0.01, 12)
    limit = stats.t.ppf(0.975, 12)  # an interval ends so many errors from the difference
    inside = stats.t.cdf(3 - limit, 12) - stats.t.cdf(limit - 3, 12)  # how often it ends before 3 errors, both ways
    assert 0.3 < inside < 0.7
    assert found.power_alike(0.03) == pytest.approx(inside, rel=1e-9)
    assert found.power_alike(0.03, level=0.1) > inside
    assert found.power_alike(0.02) == 0.0  # the interval is wider than the margin wherever it lies
    assert Contrast(0.0, 0.0, 12).power_alike(0.001) == 1.0
    assert Contrast().power_alike(0.03) == 0.0  # nothing could be tested


@pytest.mark.long
def test_the_power_that_is_stated_is_the_power_there_is() -> None:
    rng = np.random.default_rng(3)
    tests = [made_up(rng, 2, 3, effect=0.04) for _ in range(300)]
    stated = float(np.mean([test.power(0.04) for test in tests]))
    assert 0.5 < stated < 0.95
    assert share(tests) == pytest.approx(stated, abs=0.08)


def test_the_bootstrap_agrees_with_one_draw_at_a_time() -> None:
    rng = np.random.default_rng(5)
    values = {
        (fold, seed): {f"{fold} {query}": float(rng.normal(0.05 * seed, 0.2)) for query in range(8 + fold)}
        for fold in (1, 2)
        for seed in range(3)
    }
    del values[2, 1]["2 4"]  # a query that a run does not have
    runs = list(values)
    ids = [np.array(list(values[run])) for run in runs]
    numbers = [np.array(list(values[run].values())) for run in runs]
    finals = np.array([each.mean() for each in numbers])
    found = by_queries(finals, np.array([fold for fold, _ in runs]), ids, numbers)
    both, by_query = bootstrap_error(values, 3_000, 1)
    assert found.error == pytest.approx(both, rel=0.07)
    assert found.floor == pytest.approx(by_query, rel=0.07)
    assert (found.counted, found.repeats, found.unit) == (19, 6, "queries")
    assert found.difference == pytest.approx(float(finals.mean()))


def test_one_training_of_many_queries_is_the_t_test_over_queries() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(0.03, 0.2, 400)
    ids = np.array([str(i) for i in range(400)])
    found = by_queries(np.array([values.mean()]), np.array([1]), [ids], [values], single=True)
    assert found.error == pytest.approx(float(stats.sem(values)), rel=0.04)
    assert found.p == pytest.approx(float(stats.ttest_1samp(values, 0).pvalue), abs=0.01)
    assert found.effect == pytest.approx(values.mean() / values.std(ddof=1))
    alone = by_queries(np.array([values.mean()]), np.array([1]), [ids], [values])
    assert not alone.tested
    assert "several seeds" in alone.reason


def test_a_handful_of_seeds_stays_a_handful_however_many_queries_there_are() -> None:
    rng = np.random.default_rng(4)
    ids = [np.array([str(i) for i in range(2_000)])] * 4
    moved = np.array([-0.06, -0.02, 0.02, 0.06])  # far more than 2,000 queries move a mean
    values = [rng.normal(move, 0.01, 2_000) for move in moved]
    found = by_queries(np.array([each.mean() for each in values]), np.ones(4, np.int64), ids, values)
    assert found.degrees_of_freedom == pytest.approx(3, rel=0.05)
    assert found.error == pytest.approx(moved.std(ddof=1) / 2, rel=0.05)


def test_the_same_runs_give_the_same_numbers() -> None:
    first, second = (made_up(np.random.default_rng(1), 2, 2) for _ in range(2))
    assert first == second


def test_random_splits_are_corrected_as_nadeau_and_bengio_have_it() -> None:
    finals = np.array([0.01, 0.03, 0.02, 0.06])
    found = by_splits(finals, 0.25)
    assert found.error == pytest.approx(finals.std(ddof=1) * math.sqrt(1 / 4 + 0.25))
    assert (found.degrees_of_freedom, found.unit, found.counted) == (3, "splits", 4)
    assert found.p == pytest.approx(2 * stats.t.sf(0.03 / found.error, 3))
    assert "at least 3 seeds" in by_splits(finals[:2], 0.25).reason
    assert not by_splits(finals, math.nan).tested


def splits_of(rng: np.random.Generator, splits: int) -> NDArray[np.float64]:
    """Differences of random splits of 300 queries: 200 train, 100 test, and both sets matter."""
    tested, trained = rng.normal(0, 0.2, (2, 300))
    orders = [rng.permutation(300) for _ in range(splits)]
    return np.array([tested[order[:100]].mean() + 0.5 * trained[order[100:]].mean() for order in orders])


@pytest.mark.long
def test_no_effect_over_random_splits() -> None:
    rng = np.random.default_rng(6)
    drawn = [splits_of(rng, 10) for _ in range(400)]
    assert share([by_splits(finals, 0.5) for finals in drawn]) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    assert np.mean([stats.ttest_1samp(finals, 0).pvalue < 0.05 for finals in drawn]) > 0.3


def rotated(rng: np.random.Generator, seeds: int, luck: float) -> Contrast:
    """Online differences on folds that train on three of five parts each."""
    parts = rng.normal(0, 0.02 * math.sqrt(3), 5)
    means = np.array([parts[np.arange(fold, fold + 3) % 5].mean() for fold in range(5)])
    where = np.repeat(np.arange(5), seeds)
    return by_folds(means[where] + rng.normal(0, luck, len(where)), where + 1)


@pytest.mark.parametrize(("seeds", "luck"), [(1, 0.001), (2, 0.005), (2, 0.05)])
def test_no_effect_over_folds_that_share_their_queries(seeds: int, luck: float) -> None:
    rng = np.random.default_rng(8)
    assert share([rotated(rng, seeds, luck) for _ in range(600)]) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)


@pytest.mark.long
def test_no_effect_over_training_queries_of_folds_that_share_them() -> None:
    rng, where = np.random.default_rng(11), np.repeat(np.arange(5), 2)

    def rewarded() -> Contrast:
        parts = rng.normal(0, OF_QUERIES, (5, 20))  # of queries: each has its own difference, in three of five folds
        ids = [np.array([f"{(fold + i) % 5} {q}" for i in range(3) for q in range(20)]) for fold in where]
        values = [parts[(fold + np.arange(3)) % 5].ravel() + rng.normal(0, LUCK) for fold in where]
        return by_queries(np.array([each.mean() for each in values]), where + 1, ids, values)

    found = [rewarded() for _ in range(300)]
    assert share(found) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
    assert {one.counted for one in found} == {100}


def test_folds_by_hand() -> None:
    # Fold means of the differences: 0.01, 0.02, 0.06; seeds of a fold differ by 0.02: a variance of 0.0002, halved.
    gains = {(1, 1): 0.00, (1, 2): 0.02, (2, 1): 0.01, (2, 2): 0.03, (3, 1): 0.05, (3, 2): 0.07}
    found = by_folds(np.array(list(gains.values())), np.array([fold for fold, _ in gains]))
    variance = float(np.var([0.01, 0.02, 0.06], ddof=1))
    assert found.difference == pytest.approx(0.03)
    assert found.error == pytest.approx(math.sqrt(variance / 3 + (variance - 0.0001)))
    assert (found.counted, found.repeats, found.unit) == (3, 6, "folds")
    few = by_folds(np.array([0.1, 0.1, 0.1]), np.array([1, 1, 2]))
    assert not few.tested
    assert "2 folds cannot represent others" in few.reason
    assert few.seed_error == pytest.approx(0.0, abs=1e-12)


def test_in_general_means_over_data_sets() -> None:
    differences = [0.02, 0.05, 0.03, 0.04]
    found = across(differences)
    assert found.p == pytest.approx(float(stats.ttest_1samp(differences, 0).pvalue))
    assert found.unit == "data sets"
    for few in ([0.1], [0.1, 0.2]):
        verdict = judge(Stated("a beats b", "ndcg@10", across(few)))
        assert verdict.verdict == OPEN
        assert verdict.reason.startswith("this design cannot decide: ")
        assert verdict.power == 0.0


def test_no_effect_over_data_sets() -> None:
    rng = np.random.default_rng(9)
    found = [across((rng.normal(0, 0.02, 5) + rng.normal(0, 0.005, (5, 5)).mean(axis=0)).tolist()) for _ in range(600)]
    assert share(found) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)


def variant(name: str, values: dict[tuple[int, int], dict[str, float]], share: float = 0.5) -> VariantRuns:
    repeats = {}
    for repeat, by_query in values.items():
        measured = {"ndcg@10": np.array(list(by_query.values()))}
        finals = {"ndcg@10": float(np.mean(measured["ndcg@10"])), "online": 0.1 * repeat[0]}
        repeats[repeat] = RunValues(
            finals, {}, 1, {}, np.array(list(by_query)), measured, {}, None, (), test_share=share
        )
    return VariantRuns(name, name, {}, repeats)


def test_what_is_counted_follows_from_the_runs() -> None:
    same = {(1, seed): {"a": 0.5, "b": 0.1 * seed, "c": 0.3} for seed in (1, 2, 3)}
    lower = {repeat: {query: value - 0.1 for query, value in each.items()} for repeat, each in same.items()}
    assert contrast(variant("x", same), variant("y", lower), "ndcg@10").unit == "queries"
    assert "values are known per run" in contrast(variant("x", same), variant("y", lower), "online").reason
    moved = {(1, seed): {f"{seed}": 0.5, "b": 0.1 * seed, "c": 0.3} for seed in (1, 2, 3)}
    less = {repeat: {query: value / 2 for query, value in each.items()} for repeat, each in moved.items()}
    found = contrast(variant("x", moved), variant("y", less), "ndcg@10")
    assert (found.unit, found.counted) == ("splits", 3)
    others = contrast(variant("x", same), variant("y", moved), "ndcg@10")
    assert others.reason == "they were tested on different queries"
    assert contrast(variant("x", same), variant("y", {(2, 1): {"a": 0.1}}), "ndcg@10").repeats == 0


def test_rewards_are_tested_over_training_queries() -> None:
    def rewarded(name: str, shift: float) -> VariantRuns:
        repeats = {}
        for fold, seed in ((1, 1), (1, 2), (2, 1), (2, 2)):
            ids = np.array(["a", "b", "c"] if fold == 1 else ["b", "c", "d"])
            rewards = np.array([0.1, 0.4, 0.9]) + shift * np.array([1.0, 2.0, 3.0]) + 0.01 * seed
            repeats[fold, seed] = RunValues(
                {"reward": float(rewards.mean()), "online": 0.5}, rewards=(ids, {"reward": rewards})
            )
        return VariantRuns(name, name, {}, repeats)

    found = contrast(rewarded("x", 0.1), rewarded("y", 0.0), "reward")
    assert (found.unit, found.counted, found.repeats) == ("queries", 4, 4)
    assert found.difference == pytest.approx(0.2)
    assert contrast(rewarded("x", 0.1), rewarded("y", 0.0), "online").unit == "folds"


def test_no_difference_at_all_has_no_error() -> None:
    same = variant("x", {(1, seed): {"a": 0.5, "b": 0.2} for seed in (1, 2)})
    found = contrast(same, same, "ndcg@10")
    assert (found.difference, found.error, found.p) == (0.0, 0.0, 1.0)
