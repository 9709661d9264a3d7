"""Hyperparameter tuning of a booster: Optuna searches for the settings with the best validation quality.

The study is an SQLite file that Optuna's tools can read. It can be interrupted at any time and continues there: the
next trial depends on the completed trials and on the seed, not on interruptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedrank.data.ranking import RankingData
from fedrank.extras import missing_extra
from fedrank.seeds import key_for
from fedrank.trees.boosters import Booster, Lambdamart, NothingToSplit, best_size

NAME = "booster"  # of the study, in its file
RATES = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.3)


@dataclass(frozen=True)
class BoosterTrial:
    """One setting that was tried."""

    settings: dict[str, float | int]  # empty where no tree could be grown
    quality: float  # nDCG@10 of the validation queries, with the best number of trees
    trees: int  # that number


@dataclass
class Studies:
    """Tunes one forest after the other: `study-1.db` belongs to the first one, and so on."""

    trials: int  # for each forest
    folder: Path  # of the studies
    tell: Callable[[int, BoosterTrial], None] = lambda done, best: None
    turn: Callable[[], None] = lambda: None
    best: list[BoosterTrial] = field(default_factory=list)  # [forests]

    def __call__(
        self, booster: Booster, train: RankingData, validation: RankingData | None, seed: int, threads: int = 1
    ) -> Lambdamart:
        if validation is None:
            raise ValueError(
                f"a client with {train.queries} queries has no validation queries with a relevant document to tune on; "
                "use fewer clients, or tune = 0"
            )
        study = self.folder / f"study-{len(self.best) + 1}.db"
        try:
            found, trials = tune(booster, train, validation, self.trials, study, seed, threads, self.tell, self.turn)
        except NothingToSplit:
            self.best.append(BoosterTrial({}, 0.0, 0))  # the next forest has a separate study
            raise
        self.best.append(best_of(trials))
        return found


def tune(
    booster: Booster,  # one of fedrank's boosters
    train: RankingData,
    validation: RankingData,
    trials: int,
    study: str | Path,  # SQLite file; completed trials in it are not repeated
    seed: int,
    threads: int = 1,
    tell: Callable[[int, BoosterTrial], None] = lambda done, best: None,  # after every trial: number, best so far
    turn: Callable[[], None] = lambda: None,  # after every tree; may raise to interrupt the study
) -> tuple[Lambdamart, list[BoosterTrial]]:
    """The booster with the best of the settings that were tried, and all trials."""
    if not isinstance(booster, Lambdamart):
        raise ValueError("tuning supports only fedrank's own boosters; set tune = 0")
    if trials < 1:
        raise ValueError(f"trials must be at least 1 (got {trials})")
    with _quiet(optuna()) as engine:
        kept = engine.create_study(
            storage=f"sqlite:///{Path(study).resolve()}", study_name=NAME, direction="maximize", load_if_exists=True
        )
        for left in kept.get_trials(states=[engine.trial.TrialState.RUNNING]):  # of an interrupted process
            kept.tell(left.number, state=engine.trial.TrialState.FAIL)
        while len(done := _done(engine, kept)) < trials:
            kept.sampler = engine.samplers.TPESampler(seed=int(key_for(seed, "tune", len(done))) % 2**32)
            trial = kept.ask()
            curve: list[float] = []
            try:
                for step in replace(booster, **_suggested(trial)).grow(train, validation, seed, threads):
                    curve.append(step.validation)
                    turn()
            except NothingToSplit:  # a setting like any other, with quality 0
                curve = []
            trial.set_user_attr("trees", best_size(curve))
            kept.tell(trial, max(curve, default=0.0))
            done = _done(engine, kept)
            tell(len(done), best_of(done))
    best = best_of(done)
    if best.trees == 0:
        raise NothingToSplit(
            f"none of {trials} settings could split the {train.documents:,} documents of {train.queries:,} "
            "queries; try more settings, use more data, or tune = 0"
        )
    return replace(booster, **best.settings), done  # type: ignore[arg-type]


def best_of(trials: Iterable[BoosterTrial]) -> BoosterTrial:
    """The first trial with the highest quality."""
    return max(trials, key=lambda tried: tried.quality)


def _suggested(trial: Any) -> dict[str, Any]:
    """The search space of the paper on merging (see its methods of LambdaMART), as fields of a booster."""
    return {
        "rate": trial.suggest_categorical("rate", RATES),
        "leaves": trial.suggest_int("leaves", 15, 255),
        "min_data_in_leaf": trial.suggest_int("min_data_in_leaf", 10, 500, step=5),
        "min_sum_hessian": trial.suggest_float("min_sum_hessian", 1.0, 100.0),
    }


@contextmanager
def _quiet(engine: Any) -> Iterator[Any]:
    """Optuna, with warnings only."""
    before = engine.logging.get_verbosity()
    engine.logging.set_verbosity(engine.logging.WARNING)
    try:
        yield engine
    finally:
        engine.logging.set_verbosity(before)


def _done(engine: Any, study: Any) -> list[BoosterTrial]:
    complete = study.get_trials(states=[engine.trial.TrialState.COMPLETE])
    return [BoosterTrial(dict(one.params), float(one.value), int(one.user_attrs["trees"])) for one in complete]


def optuna() -> Any:
    """The package, or an error that says how to install it."""
    try:
        import optuna as engine
    except ImportError:
        raise missing_extra("tuning needs Optuna", "trees") from None
    return engine
