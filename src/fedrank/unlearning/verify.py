"""Cost and verification of unlearning: the distance of an unlearned model to retrained ones, and a receipt.

Two models trained with different seeds also differ, although nothing was unlearned between them. A distance is
therefore meaningful only in comparison with the spread of retrained models over seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.ranking import RankingData
from fedrank.federated.federation import Federation
from fedrank.federated.quality import quality_by_client
from fedrank.progress import Progress, by_rounds, quiet
from fedrank.ranking.measures import Evaluator, ranking
from fedrank.seeds import Chance
from fedrank.types import (
    NO_CORRECTION,
    Impressions,
    Learned,
    LocalCorrection,
    Offsets,
    OwnChance,
    Ranker,
    Scores,
    SimulatedClients,
    Weights,
    has_trait,
)
from fedrank.unlearning.methods import (
    SERVER,
    UNLEARNERS,
    Case,
    Retrain,
    Unlearned,
    Unlearner,
    Went,
    retraining_interactions,
)

MORE_SEEDS = 3  # training seeds besides that of the run, for the spread of retrained models
SHOWN = 10  # documents shown to users
COMPARED_AT_ONCE = 1 << 20  # pairs of documents x models, which fit into a processor's cache


class Point(NamedTuple):
    """An intermediate model, and what clients did and sent since the previous one."""

    round: int
    weights: Weights
    interactions: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Forgetting:
    """The result of unlearning, and its cost."""

    unlearned: Unlearned
    points: tuple[Point, ...]  # of the curve
    bytes_up: int
    seconds: float  # wall-clock time
    cpu_seconds: float


@dataclass
class Watch:
    """Wall-clock and processor time since it was created."""

    clock: float = field(default_factory=time.monotonic)
    cpu: float = field(default_factory=time.process_time)

    @property
    def passed(self) -> tuple[float, float]:
        return time.monotonic() - self.clock, time.process_time() - self.cpu


def forget(case: Case, unlearner: Unlearner, went: Went = lambda done, rounds: None) -> Forgetting:
    """Unlearn, and measure the cost."""
    counted, watch = _Counted(case.federation), Watch()
    tallies: dict[int, tuple[int, int, int]] = {}

    def note(done: int, rounds: int) -> None:
        tallies[done] = counted.tally
        went(done, rounds)

    unlearned = unlearner(replace(case, federation=replace(case.federation, learner=counted)), note)
    seconds, cpu = watch.passed
    last = unlearned.curve[-1][0]
    tallies[last] = unlearned.interactions, *tallies[last][1:]  # a method may read lists without the learner
    points, before = [], (0, 0, 0)
    for done, weights in unlearned.curve:
        now = tallies[done]
        points.append(Point(done, weights, now[0] - before[0], now[1] - before[1], now[2] - before[2]))
        before = now
    return Forgetting(unlearned, tuple(points), counted.up, seconds, cpu)


@dataclass
class _Counted:
    """A learner that counts the work of clients; otherwise it behaves like the learner of the federation."""

    federation: Federation
    searches: int = 0
    up: int = 0  # bytes
    down: int = 0  # bytes

    @property
    def ranker(self) -> Ranker:
        return self.federation.learner.ranker

    def __getattr__(self, name: str) -> Any:
        if name == "federation":  # during construction
            raise AttributeError(name)
        return getattr(self.federation.learner, name)

    def __call__(
        self,
        start: Weights,
        clients: SimulatedClients,
        chance: Chance,
        correction: LocalCorrection = NO_CORRECTION,
        threads: int = 1,
    ) -> Learned:
        learned = self.federation.learner(start, clients, chance, correction, threads)
        if len(clients) and clients.ids[0] != SERVER:  # a server that learns from its own queries sends nothing
            model = 4 * self.federation.sent(start.shape[-1])
            self.searches += int(clients.interactions.sum())
            self.up += len(clients) * (model if learned.sent is None else learned.sent.dtype.itemsize)
            self.down += len(clients) * model * (2 if has_trait(self.federation.local, "common") else 1)
        return learned

    def from_impressions(
        self, start: Any, impressions: Impressions, own: OwnChance, correction: LocalCorrection = NO_CORRECTION
    ) -> Learned:
        return self.federation.learner.from_impressions(start, impressions, own, correction)

    @property
    def tally(self) -> tuple[int, int, int]:
        return self.searches, self.up, self.down


class Distance(NamedTuple):
    """The distance of two models, or its mean over several pairs."""

    weights: float  # L2 norm of the difference, relative to that of the second model; 0: equal
    cosine: float  # of the weights, -1 to 1; invariant to scaling, which does not change the rankings of a linear model
    tau: float  # Kendall's tau-b of the rankings, mean over queries, -1 to 1; NaN where all scores are equal
    overlap: float  # fraction of common documents in the top ten, mean over queries with more than ten


@dataclass(frozen=True)
class Verification:
    """The comparison of an unlearned model with models retrained with several seeds."""

    unlearned: Distance  # of the unlearned model to each retrained one, mean
    spread: Distance  # between retrained models, mean over pairs; NaN if there is only one
    before: Distance | None  # of the model before unlearning
    retrained: int  # number of retrained models
    as_far: dict[str, float]  # by distance, fraction of retrained models at least as far from the others, see below

    @property
    def within_spread(self) -> bool | None:
        """Whether some retrained model is as far out by every distance; None with fewer than three of them."""
        return None if self.retrained < 3 else all(share > 0 for share in self.as_far.values())


def distance_to_retrained(
    unlearned: Weights, retrained: Weights, ranker: Ranker, data: RankingData, before: Weights | None = None
) -> Verification:
    """Compare an unlearned model with retrained ones ([seeds, parameters]) by weights and by rankings of test queries.

    `as_far` treats the unlearned model as one more seed: the fraction of retrained models whose mean distance to all
    others (including the unlearned one) is at least as large as its own. 0 means that it is the outlier among them,
    which happens by chance in one of six cases with five seeds.
    """
    models = np.atleast_2d(np.asarray(retrained, dtype=np.float64))
    if models.shape[1:] != unlearned.shape or not len(models):
        raise ValueError(
            f"retrained models have shape {models.shape}, the unlearned one {unlearned.shape}, so they cannot be "
            "compared; give one row per seed, of the same ranker and features"
        )
    with_all = [np.asarray(unlearned, dtype=np.float64), *models]
    if before is not None:
        with_all.append(np.asarray(before, dtype=np.float64))
    scores = ranker.score(np.stack(with_all), data.features)
    taus = rank_correlations(scores, data.offsets)
    tops = [_shown(one, data.offsets) for one in scores]

    def between(one: int, other: int) -> Distance:
        return Distance(
            *weight_distance(with_all[one], with_all[other]), taus[one, other], _overlap(tops[one], tops[other])
        )

    count = len(with_all)
    table = np.full((count, count, len(Distance._fields)), np.nan)
    for one, other in combinations(range(count), 2):
        table[one, other] = between(one, other)
        table[other, one] = table[one, other]
        table[other, one, 0] = weight_distance(with_all[other], with_all[one])[0]
    last = len(models) + 1
    return Verification(
        unlearned=_mean(table[0, 1:last]),
        spread=_mean(table[1:last, 1:last].reshape(-1, table.shape[-1])),
        before=None if before is None else _mean(table[last, 1:last]),
        retrained=len(models),
        as_far=_as_far(table[:last, :last]),
    )


def weight_distance(one: Weights, other: Weights) -> tuple[float, float]:
    """(L2 norm of the difference relative to that of the other, cosine); NaN for a zero model."""
    lengths = kernels.sums.length(one), kernels.sums.length(other)
    relative = kernels.sums.length(one - other) / lengths[1] if lengths[1] else np.nan
    return relative, kernels.sums.inner(one, other) / (lengths[0] * lengths[1]) if all(lengths) else np.nan


def rank_correlations(scores: Scores, offsets: Offsets) -> NDArray[np.float64]:
    """[models, models]: Kendall's tau-b between any two models (scores [models, documents]).

    Each is the mean over the queries that both put into some order; NaN if none exists.
    """
    models = len(scores)
    total, counted = np.zeros((models, models)), np.zeros((models, models))
    for begin, end in pairwise(offsets.tolist()):
        query = scores[:, begin:end]
        agreed = np.zeros((models, models))
        rows = max(1, COMPARED_AT_ONCE // (models * max(1, end - begin)))
        for first in range(0, end - begin, rows):
            above = np.sign(query[:, first : first + rows, None] - query[:, None, :]).reshape(models, -1)
            agreed += above @ above.T  # integers, so the order of summation does not matter
        ordered = np.diag(agreed)
        pairs = np.sqrt(np.outer(ordered, ordered))
        total += np.divide(agreed, pairs, out=np.zeros_like(agreed), where=pairs > 0)
        counted += pairs > 0
    return np.divide(total, counted, out=np.full_like(total, np.nan), where=counted > 0)


class Retrained(NamedTuple):
    """Models trained without the leaving clients; clients and their queries are the same, random numbers differ."""

    seeds: tuple[int, ...]
    models: Weights  # [seeds, parameters]
    cpu_seconds: float  # mean per model


def retrain(
    case: Case, unlearner: Unlearner, first: Callable[[int], Weights], label: str = "", progress: Progress = quiet
) -> Retrained:
    """Train again without the leaving clients, with several seeds; `first` gives the initial model for a seed.

    The result of an exact method counts as the first of the retrained models.
    """
    seeds = tuple(case.seed + i for i in range(int(has_trait(unlearner, "exact")), MORE_SEEDS + 1))
    models, watch = [], Watch()
    for i, seed in enumerate(seeds, 1):
        again = replace(case, seed=seed, first=first(seed), points=1)
        notify = by_rounds(progress, f"{label}, retraining {i} of {len(seeds)}")
        models.append(Retrain()(again, notify).weights)
    return Retrained(seeds, np.stack(models), watch.passed[1] / len(seeds))


def quality_of(
    evaluator: Evaluator, ranker: Ranker, parent: Weights, unlearned: Weights, retrained: Weights | None = None
) -> dict[str, dict[str, Any]]:
    """By measure, of the last models: the end of a curve, not the mean of its last points; parents may be several."""

    def values(models: Weights) -> list[list[float | None]]:
        return [list(map(_plain, row)) for row in evaluator(np.atleast_2d(models), ranker)]

    names = [str(measure) for measure in evaluator.measures]
    found: dict[str, dict[str, Any]] = {
        name: {"parent": mean_of(before), "unlearned": after}
        for name, before, [after] in zip(names, values(parent), values(unlearned), strict=True)
    }
    if retrained is not None:
        for name, row in zip(names, values(retrained), strict=True):
            found[name]["retrained"] = row
    return found


def quality_for_the_leaving(
    case: Case, measure: str, ranker: Ranker, parent: Weights, unlearned: Weights, retrained: Weights
) -> dict[str, Any]:
    """Quality on the queries of the leaving clients: a higher value suggests that a model was trained on them."""
    leaving = case.clients.rows(np.isin(case.clients.ids, case.leaving))

    def served(model: Weights) -> float | None:
        values = quality_by_client([measure], model, ranker, leaving)[0]
        return None if np.isnan(values).all() else float(np.nanmean(values))

    return {"parent": served(parent), "unlearned": served(unlearned), "retrained": list(map(served, retrained))}


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the defined values; None where all are undefined."""
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None


def receipt(
    case: Case, unlearner: Unlearner, unlearned: Unlearned, verification: Verification | None = None
) -> dict[str, Any]:
    """What was removed, by which method, at what cost, and how the result was verified."""
    needed = retraining_interactions(case)
    settings = {one.name: getattr(unlearner, one.name) for one in fields(unlearner)}  # type: ignore[arg-type]
    return {
        "removed": {"clients": list(case.leaving), "remaining": len(case.remaining)},
        "method": {"name": _name(unlearner), "settings": settings, "exact": has_trait(unlearner, "exact")},
        "cost": {
            "rounds": unlearned.rounds,
            "interactions": unlearned.interactions,
            "retraining_interactions": needed,
            "share_of_retraining": unlearned.interactions / needed if needed else None,
        },
        "verified": _verified(verification),
        "certificate": unlearned.certificate,
    }


def _name(unlearner: Unlearner) -> str:
    names = [name for name, kind in UNLEARNERS.items() if type(unlearner) is kind]
    return names[0] if names else f"{type(unlearner).__module__}:{type(unlearner).__name__}"


def _verified(verification: Verification | None) -> dict[str, Any]:
    if verification is None:
        return {"how": "not verified; --verify compares with retrained models"}
    found = asdict(verification) | {"within_spread": verification.within_spread}
    for key in ("unlearned", "spread", "before"):
        if found[key] is not None:
            found[key] = {name: _plain(value) for name, value in getattr(verification, key)._asdict().items()}
    how = (
        f"compared with {verification.retrained} retrained models by weights and by rankings of test queries, relative "
        "to their spread over training seeds; a small distance does not prove that no influence is left"
    )
    return {"how": how, **found}


def _plain(value: float) -> float | None:
    """The value, or None for NaN, which JSON cannot represent."""
    return None if np.isnan(value) else float(value)


def _mean(values: NDArray[np.float64]) -> Distance:
    """Column means of the defined values."""
    defined = ~np.isnan(values)
    counts = np.sum(defined, axis=0)
    total = np.where(defined, values, 0).sum(axis=0)
    return Distance(*np.where(counts > 0, total / np.maximum(counts, 1), np.nan).tolist())


def _as_far(table: NDArray[np.float64]) -> dict[str, float]:
    """`table` [models, models, distances], the unlearned one first; a single retrained model is always as far."""
    shares = {}
    for name, values in zip(Distance._fields, np.moveaxis(table, -1, 0), strict=True):
        far = (values if name == "weights" else -values)[~np.eye(len(values), dtype=np.bool_)]  # cosine 1 is close
        if not np.isnan(far).any():
            from_others = far.reshape(len(values), -1).mean(axis=1)
            # Tolerance for sums of the same numbers in another order.
            shares[name] = float((from_others[1:] >= from_others[0] - 1e-12 * abs(from_others[0])).mean())
    return shares


def _shown(scores: Scores, offsets: Offsets) -> NDArray[np.int64]:
    """Rows of the documents in the top ten, of the queries with more than ten."""
    ranks = np.arange(len(scores)) - np.repeat(offsets[:-1], np.diff(offsets))
    long = np.repeat(np.diff(offsets) > SHOWN, np.diff(offsets))
    return ranking(scores, offsets)[(ranks < SHOWN) & long]


def _overlap(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    # Every query has the same number of shown documents, so their mean is the mean over queries.
    return len(np.intersect1d(one, other, assume_unique=True)) / len(one) if len(one) else np.nan
