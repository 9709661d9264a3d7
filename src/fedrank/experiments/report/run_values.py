"""What a report reads of finished runs: values, curves, costs and weights; little enough for thousands of them."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.experiments.report.statistics import Summary, half_width, summarise
from fedrank.experiments.runner.folder import Card, Receipt
from fedrank.experiments.runner.runs import Run
from fedrank.experiments.spec.experiment import Experiment
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.federated.aggregators import Mean
from fedrank.files import read_text
from fedrank.ranking.measures import average
from fedrank.toml import TomlTable

POINTS = 240  # of a drawn curve; more cannot be seen
REPEATED = re.compile(r"^(?:folds|seeds) = \[\d+\]$", re.MULTILINE)  # which repeat of a variant a spec is

Repeat = tuple[int, int]  # fold, seed
Line = tuple[NDArray[np.int64], NDArray[np.float64]]  # rounds, values


@dataclass(frozen=True)
class Curve:
    """A column over rounds, averaged over repeats."""

    rounds: NDArray[np.int64]
    mean: NDArray[np.float64]
    half: NDArray[np.float64]  # half the 95% confidence interval; NaN for one repeat
    repeats: int
    window: int = 1  # rounds of the running mean; 1 where nothing was smoothed
    interactions: NDArray[np.float64] | None = None  # up to each round; None where they were not counted


@dataclass(frozen=True)
class Threat:
    """Who attacked a run, what defended it, and what else it was."""

    attack: TomlTable  # as a table; empty where none is set
    malicious: int
    clients: int
    rule: TomlTable  # likewise
    rest: str  # the spec without all that; runs with the same rest can be compared


@dataclass(frozen=True)
class RunValues:
    """What a report keeps of one run: little enough that a thousand runs fit into memory."""

    values: dict[str, float]
    curves: dict[str, Line] = field(default_factory=dict)
    window: int = 1  # rounds of the running mean of online quality
    costs: dict[str, float] = field(default_factory=dict)
    query_ids: NDArray[np.str_] = field(default_factory=lambda: np.array([], dtype=np.str_))
    queries: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    clients: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # measure -> [clients]; empty: all are alike
    weights: NDArray[np.float64] | None = None  # of a linear model
    feature_names: tuple[str, ...] = ()
    card: Card | None = None  # what may be claimed for its model
    threat: Threat | None = None  # who attacked, and what defended
    receipt: Receipt | None = None  # of unlearning
    promotion: float | None = None  # share of the documents to be promoted that reach the top ten
    problem: str = ""  # why its specification cannot be read; the attackers are then unknown
    given: str = ""  # the order that users have without the model; empty where it was not measured
    nothing: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # measure -> [queries] in that order
    interactions: Line | None = None  # up to the rounds of the curves
    test_share: float = math.nan  # test queries for each that was trained on

    @property
    def by_sites(self) -> bool:
        """Whether sites released the quality of the model and of the given order; they take the place of queries."""
        return any(name.endswith(" given") for name in self.clients)

    @property
    def without_model(self) -> RunValues:
        """The same run without learning."""
        values = {name: average(per_query).item() for name, per_query in self.nothing.items()}
        queries = self.nothing
        return RunValues(values, query_ids=self.query_ids, queries=queries, given=self.given, nothing=queries)


@dataclass(frozen=True)
class VariantRuns:
    """All finished repeats of one variant."""

    name: str
    label: str  # short and unique within the experiment
    settings: dict[str, Any]
    repeats: dict[Repeat, RunValues]
    experiment: str = ""  # where several are compared, the one that it is of; its name and label begin with that

    @property
    def own_label(self) -> str:
        """The label within its experiment."""
        return self.label.removeprefix(f"{self.experiment}: ")

    def values(self, column: str) -> dict[Hashable, float]:
        return {repeat: reading.values.get(column, math.nan) for repeat, reading in self.repeats.items()}

    def summary(self, column: str) -> Summary:
        return summarise(list(self.values(column).values()))

    def cost(self, name: str) -> float:
        return summarise([reading.costs.get(name, math.nan) for reading in self.repeats.values()]).mean

    def curve(self, column: str) -> Curve | None:
        """Mean over repeats at the rounds that all of them have."""
        lines = [reading.curves[column] for reading in self.repeats.values() if column in reading.curves]
        if not lines:
            return None
        rounds = lines[0][0]
        if all(np.array_equal(rounds, line[0]) for line in lines):
            values = np.array([line[1] for line in lines])
        else:
            rounds = reduce(np.intersect1d, [line[0] for line in lines])
            if not len(rounds):  # forests that stopped at different sizes may share none
                return None
            values = np.array([line[1][np.isin(line[0], rounds)] for line in lines])
        window = next(iter(self.repeats.values())).window if column == "online" else 1
        counted = [reading.interactions for reading in self.repeats.values() if column in reading.curves]
        known = [line for line in counted if line is not None]
        interactions = None
        if known and len(known) == len(counted):
            interactions = np.mean([np.interp(rounds, *line) for line in known], axis=0)
        return Curve(rounds, values.mean(axis=0), half_width(values), len(lines), window, interactions)

    def weights(self) -> NDArray[np.float64] | None:
        """[repeats, features] of linear models; None where there are none, or of different lengths."""
        rows = [reading.weights for reading in self.repeats.values() if reading.weights is not None]
        return np.array(rows) if rows and len({len(weights) for weights in rows}) == 1 else None

    @property
    def threat(self) -> Threat | None:
        return next(iter(self.repeats.values())).threat

    @property
    def card(self) -> Card | None:
        """The card of the repeat that spent most; None where no run of this variant has one."""
        cards = [reading.card for reading in self.repeats.values() if reading.card]
        return max(cards, key=lambda card: card.spent) if cards else None

    @property
    def is_protected(self) -> bool:
        return self.card is not None and self.card.mechanism is not None


def read_run(run: Run, threats: dict[str, Threat | None]) -> RunValues:
    """What a report keeps of a run; `threats` remembers those of specs that were read before."""
    rounds = run.rounds
    if not np.isfinite(rounds["round"]).all() or (np.diff(rounds["round"]) <= 0).any():
        raise ValueError("rounds.csv has rounds that do not increase")
    number = rounds["round"].astype(np.int64)
    curves = {name: (number[rows], values) for name, (rows, values) in drawn_rows(rounds, run.measures).items()}
    drawn = np.unique(np.concatenate([np.empty(0, np.int64), *(line[0] for line in curves.values())]))
    interactions = rounds.get("interactions")
    counted = None
    if interactions is not None and len(drawn) and np.isfinite(interactions).all():
        counted = drawn, interactions[np.searchsorted(number, drawn)]
    by_query = run.queries if (run.path / "queries.csv").exists() else (np.array([], dtype=np.str_), {})
    weights, names = _linear(run.model)
    trained, tested = run.data.get("train_queries"), run.data.get("test_queries")
    threat, problem = None, ""
    try:
        threat = _threat(run, threats)
    except (OSError, ValueError) as unreadable:
        problem = "; ".join(str(unreadable).splitlines())
    return RunValues(
        run.final_values,
        curves,
        _window(rounds),
        run.costs,
        *by_query,
        run.clients[1],
        weights,
        names,
        run.card,
        threat,
        run.receipt,
        run.promotion,
        problem,
        run.given or "",
        run.nothing,
        counted,
        tested / trained if trained and tested else math.nan,
    )


def _threat(run: Run, known: dict[str, Threat | None]) -> Threat | None:
    """None where there can be no attack: other kinds of experiments, or a run that unlearned the attackers.

    Repeats of a variant differ in fold and seed alone, which do not matter here: one of them is read for all.
    """
    if run.unlearned is not None:
        return None
    text = REPEATED.sub("", read_text(run.path / "spec.toml"))
    if text not in known:
        known[text] = _threat_in(run.spec)
    return known[text]


def _threat_in(spec: Experiment) -> Threat | None:
    if not isinstance(spec, FederatedExperiment):
        return None
    clients, rule = spec.clients, describe(spec.aggregator)
    attack = {} if spec.attack is None else describe(spec.attack)
    # The rule and ranker that an attack targets are not settings of the attack.
    attack = {key: value for key, value in attack.items() if key not in ("aggregator", "ranker")}
    rest = replace(
        spec,
        aggregator=Mean(),
        attack=None,
        seeds=(),
        clients=replace(clients, malicious=0),
        data=replace(spec.data, folds=()),
    )
    return Threat(attack, clients.malicious, clients.count, rule, repr(rest))


def _window(rounds: dict[str, NDArray[np.float64]]) -> int:
    """How many rounds online quality is averaged over in a curve."""
    return max(1, len(rounds["round"]) // 50)


def drawn_rows(
    rounds: dict[str, NDArray[np.float64]], measures: Sequence[str], usable: NDArray[np.bool_] | bool = True
) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """By column, the rows of rounds.csv that a curve is drawn with, and its values; online quality is smoothed."""
    found = {}
    for column in (*measures, "online"):
        values = rounds.get(column)
        if values is None:  # a centrally trained model shows no lists during training
            continue
        rows = np.flatnonzero(np.isfinite(values) & usable)
        shown = running_mean(values[rows], _window(rounds)) if column == "online" else values[rows]
        if len(chosen := thinned(len(rows))):
            found[column] = rows[chosen], shown[chosen]
    return found


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Mean of the last `window` values up to each, or of as many as there are yet.

    >>> running_mean(np.array([1.0, 3.0, 5.0]), 2).tolist()
    [1.0, 2.0, 4.0]
    """
    sums = np.concatenate(([0.0], np.cumsum(values)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def thinned(n: int) -> NDArray[np.int64]:
    """Which of this many points a curve is drawn with."""
    if n <= POINTS:
        return np.arange(n)
    return np.unique(np.linspace(0, n - 1, min(n, POINTS)).round().astype(np.int64))


def _linear(model: dict[str, Any] | None) -> tuple[NDArray[np.float64] | None, tuple[str, ...]]:
    if model is None or not isinstance(model.get("ranker"), dict) or model["ranker"].get("name") != "linear":
        return None, ()
    try:
        weights = np.asarray(model.get("weights", []), dtype=np.float64)
    except (TypeError, ValueError):
        return None, ()
    names = tuple(str(name) for name in model.get("feature_names") or ())
    if weights.ndim != 1 or not len(weights) or not np.isfinite(weights).all():
        return None, ()
    if len(names) != len(weights):
        names = tuple(f"feature {i + 1}" for i in range(len(weights)))
    return weights, names
