"""Plan a run with differential privacy: rounds, server rate, clip and noise, from simulation on generated data.

A plan uses only the sizes of a spec and never its data, so it costs no privacy.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.data.synthetic import synthetic
from fedrank.experiments.runner.privacy import TARGETS, planned, setting_of
from fedrank.experiments.runner.privacy_rule import changed, noise_norm, people_of, with_noise
from fedrank.experiments.spec.experiment import to_tables, to_toml
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.federated.clients import make_clients
from fedrank.federated.partition import Own
from fedrank.federated.simulation import simulate
from fedrank.privacy.mechanisms import Gaussian, OnClient, SecureAggregation
from fedrank.privacy.noise import SecureSource
from fedrank.progress import Progress, quiet
from fedrank.ranking.baseline_ranking import GIVEN
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.rankers import Linear
from fedrank.seeds import Chance, rng_for
from fedrank.types import SimulatedClients, Weights

MEASURE = "ndcg@10"
ROUNDS, FREE_ROUNDS = (1, 2, 4, 8), (2, 8, 25)  # that are tried with each person in one of them; without noise
EVERY = (4, 16)  # that are tried with all people in every round, where the spec has them there
STEPS = tuple(float(each) for each in np.geomspace(0.25, 16, 7))  # expected length of the server's step in a round
SETS, FIRST, MORE, TESTS = 3, 2, 4, 10  # generated sets; seeds for each in the first and second selection and the test
FINALISTS = 3  # settings of the second selection
MAX_SEARCHES = 4_000  # of all people in a round; noise is scaled, so fewer people give the same noise in the mean
MAX_INTERACTIONS = 4_000_000  # of a run of the spec as it is; a longer one is not simulated
MAX_ALONE = 40_000  # interactions of one client or organisation that learns alone
MAX_FACTOR = 4_096  # of people, in the search for how many would do
CERTAIN = 0.9  # share of simulated runs in which training must be better than the alternatives
SHIFT = 0.01  # quality that a public start loses on other data; .004 and .010 between the MQ collections
STRICT = 0.1  # below this ε, a plan warns that noise needs very many people
BM25 = "BM25 of whole document"
START = "the start alone"  # name of an arm

Qualities = NDArray[np.float64]  # [sets, seeds]


class Expected(NamedTuple):
    """A mean over simulated runs, and the range of nine of ten of them."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Qualities) -> Expected:
        return cls(float(values.mean()), *(float(each) for each in np.quantile(values, (0.05, 0.95))))


@dataclass(frozen=True)
class Arm:
    """One way to use the data, with its simulated quality."""

    name: str
    quality: Expected | None  # None: too long to simulate
    difference: Expected | None = None  # from no noise
    epsilon: float | None = None
    rounds: int | None = None
    cohort: int | None = None  # people per round
    rate: float | None = None
    clip: float | None = None
    noise: float | None = None


def caution(epsilon: float) -> str:
    """A warning about an ε that protects almost not at all, or far more than people need; "" for a usual one."""
    right = 100 / (1 + math.exp(-min(epsilon, 500.0)))
    about = f"an observer decides between two possible contributions of one person correctly in at most {right:.3g} %"
    if epsilon > max(TARGETS):
        return (
            f"ε = {epsilon:g} gives almost no protection: {about} of cases (50 % by guessing). Use at most "
            f"{max(TARGETS):g}."
        )
    if epsilon < STRICT:
        return (
            f"ε = {epsilon:g} is stricter than usual: {about} of cases (50 % by guessing), and ε = {STRICT:g} allows "
            f"{100 / (1 + math.exp(-STRICT)):.3g} %. It needs about {STRICT / epsilon:,.3g} times as much noise as "
            f"ε = {STRICT:g}, and as many times the people."
        )
    return ""


@dataclass(frozen=True)
class PrivacyPlan:
    """The proposed settings, what they are expected to cost, and whether training is worthwhile."""

    epsilon: float
    delta: float
    people: int
    parameters: int
    interactions: int
    arms: tuple[Arm, ...]  # proposal, the spec as it is, no noise, alternatives
    worthwhile: bool
    better: float  # share of simulated runs in which the proposal is better than the best alternative
    alternative: str  # the best one
    gain: Expected  # over the best alternative
    people_needed: int | None  # None: not searched for, or none found
    noise_norm: float  # expected norm of the noise in the model: rate · σ · clip · T^1.5 · √d / people
    proposal: FederatedExperiment

    @property
    def verdict(self) -> str:
        """The recommendation, in words."""
        people, away = f"{self.people:,} people at ε = {self.epsilon:g}", self.arms[0].difference
        assert away is not None
        if self.worthwhile:
            return (
                f"Train: with {people}, expect {away.mean:+.3f} nDCG@10 against no noise (nine of ten simulated runs: "
                f"{away.low:+.3f} to {away.high:+.3f}), and {self.gain.mean:+.3f} against the best alternative "
                f"({self.alternative})."
            )
        instead = "Use the start without training." if self.alternative == START else "Learn alone, or do nothing."
        enough = f"{MAX_FACTOR:,} times as many people would be too few, too."
        if self.people_needed is not None:
            enough = f"About {self.people_needed:,} people would be enough."
        return (
            f"Do not train with {people}: they are too few. {self.better:.0%} of the simulated runs are better than "
            f"the best alternative ({self.alternative}), and {CERTAIN:.0%} are required. {instead} {enough}"
        )


def plan_privacy(experiment: FederatedExperiment, epsilon: float, progress: Progress = quiet) -> PrivacyPlan:
    """Propose settings for a target ε, and compare them with the spec as it is, no noise and not training."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"--epsilon must be positive (got {epsilon:g})")
    _check(experiment)
    bench = _Bench(experiment, progress)
    proposal = bench.best(epsilon)
    free = bench.best(None)
    free_quality, quality = bench.quality(free, "test"), bench.quality(proposal, "test")
    alternatives = bench.alternatives
    best = max(alternatives, key=lambda name: float(alternatives[name].mean()))
    gain = quality - alternatives[best]
    better = float((gain > 0).mean())
    arms = [bench.arm("proposal", proposal, quality, quality - free_quality, epsilon)]
    for name, spec, price in _as_it_is(experiment, epsilon):
        values = bench.quality(spec, "test") if _interactions(spec) <= MAX_INTERACTIONS else None
        arms.append(bench.arm(name, spec, values, None if values is None else values - free_quality, price))
    arms.append(bench.arm("no noise", free, free_quality, None, None))
    arms += [
        Arm(name, Expected.of(values), Expected.of(values - free_quality)) for name, values in alternatives.items()
    ]
    needed = None if better >= CERTAIN else bench.people_needed(proposal, epsilon, best)
    return PrivacyPlan(
        epsilon=epsilon,
        delta=experiment.privacy.delta,
        people=people_of(experiment),
        parameters=setting_of(experiment).parameters,
        interactions=max(experiment.clients.searches),
        arms=tuple(arms),
        worthwhile=better >= CERTAIN,
        better=better,
        alternative=best,
        gain=Expected.of(gain),
        people_needed=needed,
        noise_norm=noise_norm(proposal),
        proposal=proposal,
    )


def planned_toml(plan: PrivacyPlan) -> str:
    """The spec of the proposal, with its expected quality as a comment."""
    about = textwrap.fill(f"fedrank privacy plan, ε = {plan.epsilon:g}: {plan.verdict}", 118)
    return textwrap.indent(about, "# ") + "\n" + to_toml(plan.proposal)


def as_facts(plan: PrivacyPlan) -> dict[str, Any]:
    """The plan as JSON values."""
    arms = []
    for arm in plan.arms:
        spans = {"quality": arm.quality, "difference": arm.difference}
        arms.append(asdict(arm) | {name: span and span._asdict() for name, span in spans.items()})
    facts = {each.name: getattr(plan, each.name) for each in fields(plan)}
    texts = {"verdict": plan.verdict, "caution": caution(plan.epsilon), "proposal": to_tables(plan.proposal)}
    return facts | texts | {"arms": arms, "gain": plan.gain._asdict()}


def _check(experiment: FederatedExperiment) -> None:
    """Refuse a spec that the simulation does not represent."""
    mechanism = experiment.mechanism
    if mechanism is None:
        raise ValueError(
            "mechanism: the spec has none, so it is not known where noise is added; add one, such as "
            'mechanism = { name = "gaussian", clip = 0.1, noise = 1.0, placement = "server" }'
        )
    if not isinstance(mechanism, Gaussian) or mechanism.unit == "interaction":
        raise ValueError(
            "mechanism: a plan is for gaussian noise that protects clients or persons; use "
            'name = "gaussian" with unit = "client" or "person"'
        )
    if experiment.clients.people > 1 and mechanism.unit == "client":
        raise ValueError(
            'mechanism.unit: "client" protects whole organisations, which are too few to learn from; use "person"'
        )
    if not isinstance(experiment.learner, Pdgd) or experiment.learner.lists != "drawn":
        raise ValueError(
            "learner: a plan simulates pdgd with drawn lists only; use this learner for the plan, and compare the "
            "proposal with your own learner on generated data"
        )
    if experiment.kind == "async" or experiment.local is not None or experiment.attack is not None:
        raise ValueError("a plan is for synchronous rounds without `local` and `attack`; remove these settings")


def _interactions(experiment: FederatedExperiment) -> float:
    """The number of interactions of a simulated run."""
    clients = experiment.clients
    share = 1 / experiment.rounds if clients.schedule == "dealt" else clients.participation
    return experiment.rounds * share * min(people_of(experiment), _max_people(experiment)) * max(clients.searches)


def _max_people(experiment: FederatedExperiment) -> int:
    """The number of people that are simulated, at most."""
    return max(100, MAX_SEARCHES // max(experiment.clients.searches))


def _as_it_is(experiment: FederatedExperiment, epsilon: float) -> list[tuple[str, FederatedExperiment, float]]:
    """The spec itself, and with the noise for the target ε if it has another ε."""
    price = max((each.total for each in planned(experiment) if math.isfinite(each.total)), default=math.inf)
    rows = [("the spec as it is", experiment, price)]
    if abs(price - epsilon) > 0.02 * epsilon:
        with suppress(ValueError):  # too many rounds for any noise
            rows.append((f"the spec with noise for ε = {epsilon:g}", with_noise(experiment, epsilon), epsilon))
    return rows


class _Set(NamedTuple):
    """Generated data: queries for training, selection and test."""

    train: RankingData
    validation: Evaluator
    test: Evaluator


def _generated(features: int, seed: int) -> _Set:
    """Data like MQ2007 with this many features: BM25, others of them, and noisy copies where there are not enough."""
    whole, rng = synthetic("mq2007", 1000, seed), rng_for(seed, "privacy plan")
    bm25, width = whole.feature_names.index(BM25), whole.features.shape[1]
    others = rng_for(0, "privacy plan").permutation(width)  # the same in every set
    columns = whole.features[:, [bm25, *others[others != bm25]]]
    while columns.shape[1] < features:
        noisy = (columns + rng.random(columns.shape, dtype=np.float32)) / 2
        columns = np.concatenate([columns, noisy.astype(np.float32)], axis=1)
    data = replace(whole, features=np.ascontiguousarray(columns[:, :features]), feature_names=())
    train, validation, test = (data.select(range(*ends)) for ends in ((0, 600), (600, 700), (700, 1000)))
    return _Set(train, Evaluator(validation, [MEASURE]), Evaluator(test, [MEASURE]))


def _bm25(features: int) -> Weights:
    """The linear model that reproduces the BM25 order of generated data."""
    weights = np.zeros(features)
    weights[0] = 1.0
    return weights


class _Bench:
    """Simulations of one experiment on generated data of its shape."""

    def __init__(self, experiment: FederatedExperiment, progress: Progress) -> None:
        self.experiment, self.learner = experiment, experiment.learner
        self._progress = progress
        self.features = setting_of(replace(experiment, learner=Pdgd())).parameters  # those of a linear ranker
        self.sets = [_generated(self.features, seed) for seed in range(1, SETS + 1)]
        updates = np.concatenate([self._first_updates(each) for each in self.sets])
        norms = np.sqrt((updates**2).sum(axis=1))
        self.clip = float(f"{np.median(norms[norms > 0]) / 2:.2g}")
        clipped = updates * np.minimum(1.0, self.clip / np.maximum(norms, 1e-30))[:, None]
        self.lengths = {False: _length(updates.mean(axis=0)), True: _length(clipped.mean(axis=0))}

    def _first_updates(self, data: _Set) -> NDArray[np.float64]:
        clients = self._clients(replace(self.experiment, clients=replace(self.experiment.clients, people=1)), data, 500)
        start = self.learner.ranker.first(data.train.features.shape[1], rng_for(1, "first"))
        return self.learner(start, clients, Chance(1, 1)).updates.astype(np.float64)

    def _clients(self, experiment: FederatedExperiment, data: _Set, count: int) -> SimulatedClients:
        clients, partition = experiment.clients, Own() if self.experiment.clients.people > 1 else None
        return make_clients(
            data.train, count, partition=partition, click_model=clients.click_models,
            interactions=clients.interactions, click_model_per=clients.click_model_per, people=clients.people,
        )  # fmt: skip

    @cached_property
    def start(self) -> list[Weights] | None:
        """A public model for each set: that of another one, changed until it loses `SHIFT`; None: the spec has none."""
        if self.experiment.start is None:
            return None
        if self.experiment.start == GIVEN:
            return [_bm25(self.features)] * SETS
        models = []
        for each in self.sets:  # public data may be many, so the model is as good as it gets
            single = replace(self.experiment.clients, people=1)
            one = self._clients(replace(self.experiment, clients=single), each, 1)
            first = self.learner.ranker.first(self.features, rng_for(1, "first"))
            many = replace(one, interactions=np.array([MAX_ALONE]))
            models.append(first + self.learner(first, many, Chance(1, 1)).updates[0])
        found = []
        for number, data in enumerate(self.sets):
            model = models[number - 1]
            away = rng_for(number, "public start").normal(size=model.shape) * _length(model) / math.sqrt(model.size)
            ranker = self.learner.ranker
            aim = float(data.validation(model, ranker)[0]) - SHIFT
            low, high = 0.0, 2.0
            for _ in range(20):
                middle = (low + high) / 2
                enough_loss = float(data.validation(model + middle * away, ranker)[0]) < aim
                low, high = (low, middle) if enough_loss else (middle, high)
            found.append(model + high * away)
        return found

    def _run(self, experiment: FederatedExperiment, data: _Set, seed: int, start: Weights | None) -> Weights:
        """The final model of a simulated run; with fewer people than the spec if these are many, and their noise."""
        people, share = people_of(experiment), min(1.0, _max_people(experiment) / people_of(experiment))
        federation, each = experiment.federation(attacked=False), experiment.clients
        if share < 1:
            each = replace(each, people=max(experiment.rounds, round(each.people * share))) if each.people > 1 else (
                replace(each, count=max(experiment.rounds, round(each.count * share)))
            )  # fmt: skip
            experiment = replace(experiment, clients=each)
            share = people_of(experiment) / people
        mechanism: Any = federation.mechanism
        if mechanism is not None:
            local = isinstance(mechanism.placement, OnClient) and mechanism.unit == "client"
            mechanism = replace(mechanism, noise=mechanism.noise * (math.sqrt(share) if local else share))
            if mechanism.unit == "person":
                dealt = math.ceil(each.people / experiment.rounds) if each.schedule == "dealt" else each.people
                mechanism = replace(mechanism, people=dealt)
            if isinstance(mechanism.placement, SecureAggregation):
                mechanism = replace(mechanism, placement=replace(mechanism.placement, sum="ideal"))
            federation = replace(federation, mechanism=mechanism)
        source = None
        if mechanism is not None:  # the same plan every time; nothing that is generated needs protection
            source = SecureSource(hashlib.sha256(f"plan {seed}".encode()).digest())
        weights = None
        for outcome in simulate(
            federation, self._clients(experiment, data, each.count), experiment.rounds, seed, start=start, noise=source
        ):
            weights = outcome.weights
        assert weights is not None
        return weights

    def quality(self, experiment: FederatedExperiment, part: str, seeds: Sequence[int] | None = None) -> Qualities:
        """[sets, seeds]: quality on the queries for selection or test; a test has its own seeds."""
        seeds = range(101, 101 + TESTS) if seeds is None else seeds
        start = [None] * SETS if self.start is None else self.start
        rows = []
        for data, first in zip(self.sets, start, strict=True):
            models = [self._run(experiment, data, seed, first) for seed in seeds]
            rows.append([float(getattr(data, part)(model, self.learner.ranker)[0]) for model in models])
        return np.array(rows)

    def best(
        self, epsilon: float | None, people: int = 1, like: FederatedExperiment | None = None
    ) -> FederatedExperiment:
        """The best settings on the queries for selection, with `people` times as many people; ε None: no noise.

        With `like`, only the server rate is chosen, and rounds and schedule are those of that experiment.
        """
        clients, steps = self.experiment.clients, STEPS
        pairs = list(itertools.product(("dealt",), FREE_ROUNDS if epsilon is None else ROUNDS, steps))
        if clients.schedule == "drawn" and clients.participation == 1:
            pairs += itertools.product(("drawn",), EVERY, steps[: len(steps) // 2 + 1])
        if like is not None:
            pairs = [(like.clients.schedule, like.rounds, step) for step in STEPS[::2]]
        most = {
            "dealt": (clients.people if clients.people > 1 else clients.count) * people,
            "drawn": self.experiment.rounds,
        }
        tried: list[tuple[float, FederatedExperiment]] = []
        problem = ValueError("too few people for any number of rounds; use more clients")
        for number, (schedule, count, step) in enumerate(pairs, start=1):
            if count > most[schedule] or (count == 1 and step != steps[0] and self.experiment.start is None):
                continue  # too few people or rounds; or the scale of a model, which changes no order
            try:
                spec = self._candidate(schedule, count, step, epsilon, people)
            except ValueError as found:  # for example, too few clients in a round for secure aggregation
                problem = found
                continue
            tried.append((float(self.quality(spec, "validation", range(1, FIRST + 1)).mean()), spec))
            name = "no noise" if epsilon is None else f"{people_of(spec):,} people at ε = {epsilon:g}"
            self._progress(name, number, len(pairs), f"{count} rounds")
        if not tried:
            raise problem
        tried = sorted(tried, key=lambda each: -each[0])[:FINALISTS]
        again = range(11, 11 + MORE)
        return max((spec for _, spec in tried), key=lambda spec: float(self.quality(spec, "validation", again).mean()))

    def _candidate(
        self, schedule: str, rounds: int, step: float, epsilon: float | None, people: int
    ) -> FederatedExperiment:
        rate = float(f"{step / self.lengths[epsilon is not None]:.3g}")
        changes: dict[str, Any] = {"rounds": rounds, "server.rate": rate, "clients.schedule": schedule}
        many = "people" if self.experiment.clients.people > 1 else "count"
        changes[f"clients.{many}"] = getattr(self.experiment.clients, many) * people
        if epsilon is None:
            return changed(self.experiment, changes | {"mechanism": None})
        spec = changed(self.experiment, changes | {"mechanism.clip": self.clip, "evaluate_every": 1})
        return with_noise(spec, epsilon)

    @cached_property
    def alternatives(self) -> dict[str, Qualities]:
        """[sets, seeds]: quality without federated training."""
        ranker, shape = self.learner.ranker, (SETS, TESTS)
        order = [[float(each.test(_bm25(self.features), Linear())[0])] for each in self.sets]
        found = {"do nothing (BM25)": np.broadcast_to(np.array(order), shape)}
        if self.start is not None and self.experiment.start != GIVEN:
            values = [float(data.test(model, ranker)[0]) for data, model in zip(self.sets, self.start, strict=True)]
            found[START] = np.broadcast_to(np.array(values)[:, None], shape)
        clients = self.experiment.clients
        rounds = self.experiment.rounds if clients.schedule == "drawn" else 1
        searches = min(clients.people * max(clients.searches) * rounds, MAX_ALONE)
        rows = []
        for data in self.sets:
            first = ranker.first(self.features, rng_for(1, "first"))
            every = self._clients(replace(self.experiment, clients=replace(clients, people=1)), data, clients.count)
            # An organisation learns as one client with all searches of its people.
            some = every.rows(np.arange(TESTS) % clients.count)
            own = replace(some, ids=np.arange(TESTS), interactions=np.full(TESTS, searches))
            models = first + self.learner(first, own, Chance(101, 1)).updates
            rows.append([float(data.test(model, ranker)[0]) for model in models.astype(np.float64)])
        name = "one organisation alone" if clients.people > 1 else "one client alone"
        return found | {name: np.array(rows)}

    def people_needed(self, proposal: FederatedExperiment, epsilon: float, alternative: str) -> int | None:
        """The number of people, in powers of 2 of those of the spec, with whom training is worthwhile."""
        others, factor = self.alternatives[alternative], 2
        while factor <= MAX_FACTOR:
            spec = self.best(epsilon, factor, like=proposal)
            if float((self.quality(spec, "test") > others).mean()) >= CERTAIN:
                return people_of(spec)
            factor *= 2
        return None

    def arm(
        self,
        name: str,
        spec: FederatedExperiment,
        values: Qualities | None,
        loss: Qualities | None,
        epsilon: float | None,
    ) -> Arm:
        mechanism: Any = spec.mechanism
        dealt = spec.clients.schedule == "dealt"
        share = 1 / spec.rounds if dealt else spec.clients.participation
        return Arm(
            name,
            None if values is None else Expected.of(values),
            None if loss is None else Expected.of(loss),
            epsilon,
            spec.rounds,
            math.ceil(people_of(spec) * share),
            getattr(spec.server, "rate", None),
            None if mechanism is None else mechanism.clip,
            None if mechanism is None else mechanism.noise,
        )


def _length(vector: NDArray[Any]) -> float:
    return float(np.sqrt((np.asarray(vector, dtype=np.float64) ** 2).sum()))
