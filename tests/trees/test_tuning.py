"""Tuning finds the better settings, goes on where it was stopped, and does not depend on interruptions."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable

import pytest

pytest.importorskip("lightgbm")
optuna = pytest.importorskip("optuna")

from fedrank.trees.boosters import Lambdamart, NothingToSplit, Selgb  # noqa: E402
from fedrank.trees.tuning import RATES, Studies, tune  # noqa: E402
from tests.made_up import made_up_data  # noqa: E402

TRAIN = made_up_data(queries=60, longest=60)
VALIDATION = made_up_data(queries=12, longest=60, seed=1)
BOOSTER = Lambdamart(trees=4)


class Stopped(Exception):
    """Somebody asked for it."""


@pytest.mark.long
def test_the_best_setting_is_chosen_from_the_space(tmp_path):
    told = []
    note = lambda number, best: told.append((number, best))  # noqa: E731
    booster, trials = tune(BOOSTER, TRAIN, VALIDATION, 3, tmp_path / "study.db", 1, tell=note)
    assert len(trials) == 3
    best = max(trials, key=lambda trial: trial.quality)
    assert told[-1] == (3, best)
    assert [number for number, _ in told] == [1, 2, 3]
    chosen = (booster.rate, booster.leaves, booster.min_data_in_leaf, booster.min_sum_hessian)
    assert chosen == tuple(best.settings[key] for key in ("rate", "leaves", "min_data_in_leaf", "min_sum_hessian"))
    assert booster.trees == 4
    for trial in trials:
        assert trial.settings["rate"] in RATES
        assert 15 <= trial.settings["leaves"] <= 255
        assert (trial.settings["min_data_in_leaf"] - 10) % 5 == 0
        assert 1 <= trial.settings["min_sum_hessian"] <= 100
        assert trial.trees <= 4
    # Every quality is what training with that setting gives; 0 where no tree can be grown.
    assert best.quality == max(step.validation for step in booster.grow(TRAIN, VALIDATION, 1))


@pytest.mark.long
def test_a_stopped_study_ends_as_an_undisturbed_one(tmp_path):
    def stopped_after(trees: int) -> Callable[[], None]:
        left = iter(range(trees))

        def turn() -> None:
            if next(left, None) is None:
                raise Stopped

        return turn

    whole = tune(BOOSTER, TRAIN, VALIDATION, 4, tmp_path / "whole.db", 2)
    for _ in range(2):
        with pytest.raises(Stopped):
            tune(BOOSTER, TRAIN, VALIDATION, 4, tmp_path / "parts.db", 2, turn=stopped_after(3))
    # As if the process had been killed in the middle of a trial.
    study = optuna.load_study(study_name="booster", storage=f"sqlite:///{tmp_path / 'parts.db'}")
    study.ask()
    assert tune(BOOSTER, TRAIN, VALIDATION, 4, tmp_path / "parts.db", 2) == whole
    assert tune(BOOSTER, TRAIN, VALIDATION, 4, tmp_path / "parts.db", 2, turn=stopped_after(0)) == whole  # nothing left
    with sqlite3.connect(tmp_path / "parts.db") as file:
        states = [state for (state,) in file.execute("select state from trials")]
    file.close()
    assert states.count("COMPLETE") == 4
    assert "RUNNING" not in states


def test_other_boosters_keep_their_own_settings(tmp_path):
    selgb = Selgb(trees=3, keep=0.2)
    booster, _ = tune(selgb, made_up_data(400, longest=60), VALIDATION, 1, tmp_path / "study.db", 1)
    assert isinstance(booster, Selgb)
    assert booster.keep == 0.2


def test_no_trial_is_no_choice(tmp_path):
    with pytest.raises(ValueError, match="trials must be at least 1"):
        tune(BOOSTER, TRAIN, VALIDATION, 0, tmp_path / "study.db", 1)


def test_without_optuna_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"pip install 'fedrank\[trees\]'"):
        tune(BOOSTER, TRAIN, VALIDATION, 1, tmp_path / "study.db", 1)


@pytest.mark.long
def test_a_forest_that_cannot_be_grown_takes_a_study_like_any_other(tmp_path):
    studies = Studies(1, tmp_path)
    with pytest.raises(NothingToSplit):
        studies(BOOSTER, made_up_data(queries=2, longest=4), VALIDATION, 1)
    studies(BOOSTER, made_up_data(400, longest=60), VALIDATION, 1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["study-1.db", "study-2.db"]
    assert [best.trees > 0 for best in studies.best] == [False, True]
    assert studies.best[0].settings == {}
