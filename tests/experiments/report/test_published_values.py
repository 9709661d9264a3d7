"""Published values: by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedrank.experiments.report.published_values import compare_published
from fedrank.experiments.report.run_values import RunValues, VariantRuns
from fedrank.experiments.spec.grid import Published


def runs(values: dict[tuple[int, int], float]) -> VariantRuns:
    def reading(value: float) -> RunValues:
        return RunValues({"ndcg@10": value}, {}, 1, {}, np.array([], dtype=np.str_), {}, {}, None, ())

    return VariantRuns("only", "only", {}, {repeat: reading(value) for repeat, value in values.items()})


def published(value: float, **more: object) -> Published:
    return Published("ndcg@10", value, "a table", **more)  # type: ignore[arg-type]


FOLDS = {1: 0.70, 2: 0.66, 3: 0.74}
TWO_SEEDS = {(fold, seed): value + 0.002 * (seed - 1.5) for fold, value in FOLDS.items() for seed in (1, 2)}


def test_only_luck_tells_two_means_on_the_same_queries_apart() -> None:
    found = compare_published(published(0.703), "ndcg@10", runs(TWO_SEEDS))
    luck = math.sqrt(2 * 0.001**2)  # two seeds that lie 0.002 apart, in every fold
    error = luck * math.sqrt(1 / 6 + 1 / 3)  # six of our runs, and one a fold of theirs
    assert found.error == pytest.approx(error)
    assert found.degrees_of_freedom == 3
    assert found.z == pytest.approx(-0.003 / error)
    half = float(stats.t.isf(0.025, 3)) * error
    assert found.interval == pytest.approx((-0.003 - half, -0.003 + half))
    assert found.verdict == "within"
    # It lies within the range of our repeats, and far outside of what luck does to a mean.
    assert compare_published(published(0.72), "ndcg@10", runs(TWO_SEEDS)).verdict == "outside"


def test_more_runs_behind_a_published_mean_make_it_surer() -> None:
    few, many = (compare_published(published(0.703, repeats=n), "ndcg@10", runs(TWO_SEEDS)) for n in (3, 300))
    assert many.error < few.error
    assert many.error == pytest.approx(few.error * math.sqrt((1 / 6 + 1 / 300) / (1 / 6 + 1 / 3)))


def test_folds_are_paired_where_they_are_published() -> None:
    theirs = (0.695, 0.657, 0.731)
    found = compare_published(published(0.6943, folds=theirs), "ndcg@10", runs(TWO_SEEDS))
    expected = stats.ttest_1samp([0.70 - 0.695, 0.66 - 0.657, 0.74 - 0.731], 0)
    assert found.how == "paired by folds"
    assert found.error == pytest.approx(np.std([0.005, 0.003, 0.009], ddof=1) / math.sqrt(3))
    assert found.verdict == ("within" if expected.pvalue > 0.05 else "outside")


def test_one_seed_a_fold_can_refute_and_not_confirm() -> None:
    alone = runs({(fold, 1): value for fold, value in FOLDS.items()})
    assert compare_published(published(0.705), "ndcg@10", alone).verdict.startswith("undecided: with one seed per fold")
    assert compare_published(published(0.95), "ndcg@10", alone).verdict == "outside"
    one = compare_published(published(0.7), "ndcg@10", runs({(1, 1): 0.7}))
    assert one.verdict == "undecided: one repeat has no spread"


def test_a_value_that_never_varies_is_met_up_to_rounding() -> None:
    same = runs({(fold, seed): 1589.2347 for fold in (1, 2) for seed in (1, 2)})
    assert compare_published(published(1589.23), "ndcg@10", same).verdict == "within"
    assert compare_published(published(1589.3), "ndcg@10", same).verdict == "outside"
