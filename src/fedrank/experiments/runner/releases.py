"""Sums over the people of a site that are released once in a run: clipped per person, with noise, and priced.

    propensity    clicks in pairs of results that were swapped at random (`fedrank.ranking.swaps`)
    quality       of the model against the logged order, on held-out lists
    gate          estimated clicks of the model against the order of the engine, on held-out lists

Each site adds all of its noise, also in a run with secure aggregation: a site needs its own noised sum to compare it
with those of the others, and what is computed from noised sums costs no more privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data.held_out import extend_use, purpose_of, read_window, use_window
from fedrank.data.logs import SearchLog
from fedrank.data.ranking import RankingData
from fedrank.experiments.runner.position_bias import positions_of_log, shown_results, with_propensities
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.federated.federation import Federation
from fedrank.federated.simulation import simulate
from fedrank.privacy.guarantees import Guarantee, Setting
from fedrank.privacy.mechanisms import Gaussian
from fedrank.ranking import swaps
from fedrank.ranking.baseline_ranking import baseline_order
from fedrank.ranking.estimate import engine_order
from fedrank.ranking.gate import (
    SENSITIVITY,
    FederatedDecision,
    GateDecision,
    GateRules,
    PersonSums,
    decide,
    decide_all,
    person_rows,
    person_values,
    width,
)
from fedrank.ranking.learners import LoggedClicks
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.model import COMBINED, Model
from fedrank.ranking.propensity import Propensities
from fedrank.ranking.rankers import Linear
from fedrank.seeds import key_for
from fedrank.types import Messages, SimulatedClients, Source, Weights, has_trait

PROPENSITY, QUALITY, GATE = "propensity", "quality", "gate"  # wire kinds, keys of charges, and file names
NOISE = 4.0  # standard deviation, in multiples of what one person can add: ε is about 1 at δ = 1e-5
BOUND = 0.5  # of each number that a person adds to the quality
# The model that a site trains alone: models in the mean, rounds and steps of each, learning rate for logged clicks.
OWN_MODELS, OWN_ROUNDS, OWN_STEPS, OWN_RATE = 4, 200, 1000, 0.03
SHARE = 0.25  # of the received model in the one that a site uses; chosen on generated hospitals

Reals = NDArray[np.float64]
Biases = tuple[Propensities, Propensities | None]  # under position bias, and under trust bias if it is known


@dataclass(frozen=True)
class PersonRelease:
    """A sum of one vector per person, with Gaussian noise."""

    kind: str
    numbers: int
    clip: float  # L2 norm of the vector of a person
    noise: float  # in multiples of clip
    people: int  # at a site, at most
    sites: int = 1  # with the same person, at most

    @property
    def mechanism(self) -> Gaussian:
        return Gaussian(self.clip, self.noise, unit="person", people=self.people, sites=self.sites)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of each number of one site."""
        return self.clip * self.noise

    def sums(self, values: Reals, source: Source | None = None) -> list[float]:
        """The sum of these vectors [people, numbers], each clipped, with noise from the secure source."""
        if values.ndim != 2 or values.shape[1] != self.numbers:  # the price is that of this many numbers
            raise ValueError(f"people must add {self.numbers} numbers each to {self.kind!r} (got {values.shape})")
        rows = values if len(values) else np.zeros((1, self.numbers))  # a site without people adds noise, too
        one = np.ones(len(rows), np.int64)
        messages = Messages(rows.astype(np.float32), one, np.zeros_like(one), np.zeros(self.numbers), 1)
        sent = self.mechanism.protect(messages, 1, source or self.mechanism.source())
        return [float(one) * self.people for one in sent.updates[0]]

    def is_plausible(self, sums: object) -> bool:
        """Whether a received value can be such a sum."""
        most = self.people * self.clip + 40 * self.deviation
        return (
            isinstance(sums, list)
            and len(sums) == self.numbers
            and all(type(one) in (int, float) and abs(one) <= most for one in sums)
        )


@dataclass(frozen=True)
class SiteQuality:
    """One measure of the model and of the logged order at a site, from noised sums."""

    model: float
    given: float
    people: float  # noised
    error: float  # standard error of the difference that noise alone causes


class HeldOut(NamedTuple):
    """Held-out lists of a site, and the person of each."""

    log: SearchLog
    lists: RankingData
    who: NDArray[np.int64]


@dataclass(frozen=True)
class PersonReleases:
    """What the sites of an experiment release besides updates, if they report these measures."""

    experiment: FederatedExperiment
    sites: int
    measures: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[PersonRelease]:
        experiment = self.experiment
        if not has_trait(experiment.mechanism, "people"):
            return
        sites = getattr(experiment.mechanism, "sites", 1)
        common = experiment.privacy.release_noise or NOISE, experiment.clients.people, sites
        if experiment.data.from_swaps:
            yield PersonRelease(PROPENSITY, 2 * swaps.PAIRS, swaps.CLIP, *common)
        if self.names:
            numbers = 2 * len(self.names) + 1
            yield PersonRelease(QUALITY, numbers, BOUND * math.sqrt(numbers), *common)
        if experiment.gate is not None:
            biases = 1 if experiment.data.from_swaps else 2  # noised counts do not determine trust bias
            yield PersonRelease(GATE, width(1, biases), SENSITIVITY, *common)

    @property
    def names(self) -> list[str]:
        """The measures that are reported."""
        return [name for name in self.experiment.measures if name in self.measures]

    def find(self, kind: str) -> PersonRelease | None:
        return next((one for one in self if one.kind == kind), None)

    def known(self, kind: str) -> PersonRelease:
        found = self.find(kind)
        assert found is not None, kind
        return found

    def promises(self, release: PersonRelease) -> tuple[Guarantee, ...]:
        """The cost of a release against each observer."""
        experiment = self.experiment
        setting = Setting(self.sites, release.numbers, 1.0, (1,), experiment.learner, experiment.aggregator)
        return tuple(release.mechanism.guarantees(setting))

    @property
    def charges(self) -> dict[str, tuple[Guarantee, ...]]:
        """The cost of each release, by kind."""
        return {one.kind: self.promises(one) for one in self}

    # Propensities

    @staticmethod
    def what_to_log(problem: str) -> str:
        return swaps.what_to_log(problem)

    @staticmethod
    def swap_values(log: SearchLog, data: RankingData, who: NDArray[np.int64]) -> Reals:
        """What each person adds to the counts of swaps; a ValueError says what to log if there are none."""
        return swaps.swap_counts(log, data.query_ids.astype(np.int64), who)

    def estimate(self, sums: Mapping[str, Sequence[float]], site: str) -> swaps.SiteEstimate:
        """The propensities that a site uses; computed from noised sums alone, so every party can compute it."""
        deviation = self.known(PROPENSITY).deviation
        others = [np.array(one) for name, one in sums.items() if name != site]
        own = swaps.Ratios.of(np.array(sums[site]), deviation) if site in sums else None
        rest = swaps.Ratios.of(np.sum(others, axis=0), deviation * len(others) ** 0.5) if others else None
        return swaps.site_propensities(own, rest)

    @staticmethod
    def corrected(clients: SimulatedClients, estimate: swaps.SiteEstimate) -> SimulatedClients:
        return with_propensities(clients, estimate.propensities)

    @staticmethod
    def held_out(log: SearchLog, lists: RankingData, who: NDArray[np.int64]) -> HeldOut:
        return HeldOut(log, lists, who)

    # Quality

    def quality_values(self, held: HeldOut, weights: Weights, given: str | None) -> Reals:
        """What each person adds to the quality of a model."""
        evaluator = Evaluator(held.lists, self.names)
        model = evaluator.per_query(weights, self.experiment.learner.ranker)
        return person_quality(model, baseline_order(evaluator, given).values, held.who)

    def quality(self, sums: Sequence[float]) -> dict[str, SiteQuality]:
        """The measures that a site released."""
        return dict(zip(self.names, quality_of(sums, self.known(QUALITY).deviation), strict=True))

    # The gate

    def biases(self, log: SearchLog, train: RankingData, estimate: swaps.SiteEstimate | None) -> Biases:
        """Propensities of a site; from swaps only under position bias. A ValueError if clicks do not determine them."""
        if self.experiment.data.from_swaps:
            assert estimate is not None
            return estimate.propensities, None
        rows = train.query_ids.astype(np.int64)
        return positions_of_log(log, "position", rows), positions_of_log(log, "trust", rows)

    def gate_values(self, held: HeldOut, weights: Weights, by: Biases, against: Weights | None = None) -> Reals:
        """What each person adds to the gate: the model against another one, or against the order of the engine."""
        rows, ranker = held.lists.query_ids.astype(np.int64), self.experiment.learner.ranker
        shown, features = shown_results(held.log, rows), np.asarray(held.lists.features, np.float32)
        if against is None:  # without logged swaps, lists were shown as the engine ordered them
            swap = np.zeros(len(rows), np.int64) if held.log.swap is None else np.asarray(held.log.swap)[rows]
            other = -engine_order(shown, None, swap).position.astype(np.float64)
        else:
            other = ranker.score(against, features).astype(np.float64)
        return person_rows(person_values(shown, held.who, ranker.score(weights, features), other, *by))

    def alone(self, clients: SimulatedClients, seed: int) -> Weights:
        """The model that a site trains alone, without noise: with a linear ranker, the mean of OWN_MODELS models.

        They differ in chance. The settings are not those of the plan, which are for few steps of each person.
        """
        learner = self.experiment.learner
        if isinstance(learner, LoggedClicks):
            learner = LoggedClicks(learner.ranker, OWN_RATE)
        one = replace(clients, people=None, interactions=np.full(len(clients), OWN_STEPS))
        found = []
        for number in range(OWN_MODELS if isinstance(learner.ranker, Linear) else 1):
            *_, last = simulate(Federation(learner=learner), one, OWN_ROUNDS, int(key_for(seed, "alone", number)))
            found.append(np.asarray(last.weights))
        return found[0] if len(found) == 1 else np.mean([_direction(weights) for weights in found], axis=0)

    def combined(self, own: Weights, received: Model, site: str) -> Model | None:
        """The model that a site uses, from its own and the received one; None: the ranker does not allow it.

        Nothing leaves the site for it. It depends on all people of the site, without noise.
        """
        if not isinstance(self.experiment.learner.ranker, Linear):
            return None
        weights = (1 - SHARE) * _direction(own) + SHARE * _direction(received.weights)
        return replace(received, weights=weights, notes=received.notes | {COMBINED: site})

    @property
    def _rules(self) -> GateRules:
        gate = self.experiment.gate
        assert gate is not None
        return GateRules(gate.margin, gate.alpha, gate.plans)

    def decision(self, sums: Mapping[str, Sequence[float]]) -> FederatedDecision:
        """The decision of all sites together, from noised sums alone."""
        deviation = self.known(GATE).deviation
        read = [PersonSums.read(np.array(one), deviation, comparisons=1) for one in sums.values()]
        return decide_all(read, self._rules, names=list(sums), shared=self.experiment.data.from_swaps)

    def site_decision(self, sums: Reals, gains: bool) -> GateDecision:
        """The decision of one site on one comparison, from sums of `gate_values` without noise.

        A model must gain, or lose at most the margin.
        """
        rules, read = self._rules, PersonSums.read(sums, 0.0, comparisons=1)
        return decide(read.sums[0], read.squares, read.count, 0.0, 0.0 if gains else rules.margin, rules.spend(0))

    @staticmethod
    def use_window(log: SearchLog, digest: str) -> None:
        """Record that held-out entries are used for a model; a ValueError if they were used for another one."""
        if log.held_out.any():
            use_window(log.folder, purpose_of(digest))

    @staticmethod
    def use_window_also(log: SearchLog, digest: str, derived: str) -> None:
        """Record that the use for a model includes the one that a site derived from it."""
        if log.held_out.any():
            extend_use(log.folder, purpose_of(digest), purpose_of(derived))

    @staticmethod
    def window_used(folder: str) -> str:
        """The day on which the held-out entries of a data set were used; empty if they were not, or there are none."""
        try:
            uses = read_window(folder).uses
        except ValueError:
            return ""
        return str(uses[-1]["at"])[:10] if uses else ""


def _direction(weights: Weights) -> Weights:
    """Weights of a linear ranker with norm 1, which rank alike."""
    norm = float(np.linalg.norm(weights))
    return weights / norm if norm > 0 else weights


def person_quality(model: Reals, given: Reals, who: NDArray[np.int64]) -> Reals:
    """[people, 2 x measures + 1]: difference from and value of the logged order, means over lists, and BOUND as count.

    `model` and `given` are [measures, lists], NaN where a list has no click; `who` is the person of a list.
    """
    people = int(who.max(initial=-1)) + 1
    known = np.isfinite(model).all(axis=0) & np.isfinite(given).all(axis=0)
    lists = np.bincount(who[known], minlength=people)
    has = lists > 0
    found = np.zeros((people, 2 * len(model) + 1))
    for number, (new, old) in enumerate(zip(model, given, strict=True)):
        for place, values, low in ((0, new - old, 0.0), (1, old, BOUND)):
            mean = np.bincount(who[known], values[known], minlength=people)[has] / lists[has] - low
            found[has, 2 * number + place] = np.clip(mean, -BOUND, BOUND)
    found[has, -1] = BOUND
    return found


def quality_of(sums: Sequence[float], deviation: float) -> list[SiteQuality]:
    """The measures that a site released; NaN where noise hides the number of people."""
    people = sums[-1] / BOUND
    if people * BOUND <= 2 * deviation:
        return [SiteQuality(math.nan, math.nan, people, math.nan)] * (len(sums) // 2)
    pairs = zip(sums[:-1:2], sums[1::2], strict=False)
    found = [(difference / people, given / people + BOUND) for difference, given in pairs]
    return [SiteQuality(given + difference, given, people, deviation / people) for difference, given in found]
