"""Learners: how clients learn from result lists in a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.impressions import draw_list, learn_one_by_one
from fedrank.ranking.loops import as_sent, by_threads, corrections_of, loop_for, loops_of
from fedrank.ranking.rankers import Linear
from fedrank.seeds import Chance, key_for
from fedrank.types import (
    NO_CORRECTION,
    Features,
    Impression,
    Impressions,
    Learned,
    Learner,
    LocalCorrection,
    Observed,
    OwnChance,
    Ranker,
    Scores,
    SimulatedClients,
    Trait,
    Updates,
    Weights,
    has_trait,
)

if TYPE_CHECKING:
    from fedrank.kernels.devices import Device
    from fedrank.ranking.cuda.pdgd import PdgdOnDevice

_NO_DRAWS = (np.empty(0, np.float32), 1.0, 0.0)


@dataclass(frozen=True)
class Pdgd:
    """Learns from clicks by comparing clicked with unclicked results (PDGD; Oosterhuis and de Rijke, CIKM 2018).

    With several clients and the mean this is FPDGD (Wang et al., ICTIR 2021); with one client it is PDGD itself. The
    two clips bound the sensitivity for differential privacy.

    Lists are sampled around the model's order for exploration. A lower `temperature` stays closer to that order, and
    `keep` keeps the best document first; the weights of pairs are exact for both.

    With lists = "logged" it learns from the lists and clicks of a search log: all of a query's documents in their
    order. If the log records how lists were sampled, pairs have the weights of that sampling, exact for lists of all
    candidates. Otherwise pairs are weighted as if the model had shown the list. Since another ranker did, PDGD is not
    unbiased by positions then; "logged-clicks" corrects for position bias.
    """

    ranker: Ranker = field(default_factory=Linear)
    rate: float = 0.1  # learning rate η, constant; gradients are not normalised
    batch: bool = False  # one step with the summed gradients of all interactions instead of one per interaction
    lists: Literal["drawn", "logged"] = "drawn"  # ten documents sampled by the model, or the list of a search log
    temperature: float = 1.0  # of the sampling: scores are divided by it
    keep: float = 0.0  # probability that the best document stays first
    clip_weights: float = 0.0  # maximum L2 norm of the local model after every step; 0: no limit (for fpdgd-paper)
    clip_gradients: float = 0.0  # maximum L2 norm of one interaction's gradient; 0: no limit; needs batch

    traits: ClassVar[frozenset[Trait]] = frozenset({"steps"})

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_start(self.ranker)
        if self.lists not in ("drawn", "logged"):
            raise ValueError(f'lists must be "drawn" or "logged" (got {self.lists!r})')
        if not 0 < self.temperature < np.inf:
            raise ValueError(f"temperature must be positive, 1 as published (got {self.temperature})")
        if not 0 <= self.keep <= 1:
            raise ValueError(f"keep must be between 0 and 1 (got {self.keep})")
        if self.lists == "logged" and (self.keep or self.temperature != 1):
            raise ValueError('lists = "logged" cannot be combined with keep or temperature; remove these settings')
        _check_clips(self.clip_weights, self.clip_gradients, self.batch)

    def __call__(
        self,
        start: Weights,
        clients: SimulatedClients,
        chance: Chance,
        correction: LocalCorrection = NO_CORRECTION,
        threads: int = 1,
    ) -> Learned:
        starts, key, settings = as_sent(start), chance.key("learn"), self.compiled_settings(clients, correction)
        run: Any = kernels.pdgd.pdgd_clients
        if clients.own_click_models and self.lists == "drawn":
            run = loop_for(run, clients)
            if run is None:
                return learn_one_by_one(self, start, clients, chance, correction)

        def some(first: int, last: int, updates: Updates, online: NDArray[np.float64]) -> None:
            run(starts, key, *settings, first, last, updates, online)

        updates, online = by_threads(some, start.shape[-1], clients, threads)
        return Learned(updates, Observed(online), None if correction.personal is None else settings[2][2])

    def compiled_settings(
        self, clients: SimulatedClients, correction: LocalCorrection = NO_CORRECTION
    ) -> tuple[Any, ...]:
        """The arguments of compiled loops besides the model and the random key: steps, display, corrections, ...."""
        data, loops = clients.data, loops_of(clients)
        if self.lists == "logged" and not len(data.who):
            raise ValueError(
                f'lists = "logged" needs a search log, and {data.name or "this data set"} is not one; use data.log, '
                'or lists = "drawn"'
            )
        draws = (data.drawn, *data.draw) if self.lists == "logged" and data.draw is not None else _NO_DRAWS
        return (
            self.steps, self.display, corrections_of(correction, self.rate), self.ranker.hidden, loops.table,
            data.longest, loops.held, loops.seen, loops.clicking, draws,
        )  # fmt: skip

    def from_impressions(
        self,
        start: NDArray[np.float32],
        impressions: Impressions,
        own: OwnChance,
        correction: LocalCorrection = NO_CORRECTION,
    ) -> Learned:
        def learn(master: NDArray[np.float64], weights: NDArray[np.float32], number: int, own: Any) -> bool:
            one = impressions.drawn(weights, number)
            hidden, display = self.ranker.hidden, self.display
            if self.lists == "logged" and (drawn := impressions.logged(number).drawn) is not None:
                learn_drawn: Any = kernels.pdgd.learn_drawn_impression
                return bool(learn_drawn(master, weights, hidden, *one, drawn, display, self.steps, own))
            return bool(kernels.pdgd.learn_impression(master, weights, hidden, *one, display, self.steps, own))

        return _one_by_one(self, start, len(impressions), learn, correction)

    # One list at a time, for applications that show lists themselves.

    def scores(self, weights: NDArray[np.float32], features: Features) -> Scores:
        scores = np.empty(len(features), np.float32)
        kernels.rankers.score(weights, self.ranker.hidden, features, 0, len(features), scores)
        return scores

    def draw(
        self, weights: NDArray[np.float32], features: Features, stream: np.uint64
    ) -> tuple[Scores, NDArray[np.int64]]:
        """Scores of all candidates, and the positions of the list that is shown."""
        return draw_list(weights, self.ranker, features, np.array([0, len(features)]), 0, self.display, stream)

    def learn(self, master: NDArray[np.float64], one: Impression) -> bool:
        """Add the step of an impression to the weights `master`; return whether there was one."""
        weights, hidden = master.astype(np.float32), self.ranker.hidden
        learn: Any = kernels.pdgd.learn_impression
        return bool(learn(master, weights, hidden, *one, self.display, self.steps, np.empty(0)))

    def on_device(self, device: Device, clients: SimulatedClients, features: str = "float32") -> PdgdOnDevice:
        """Return the learner with its clients on a GPU."""
        from fedrank.ranking.cuda.neural import NeuralOnDevice
        from fedrank.ranking.cuda.pdgd import PdgdOnDevice

        if self.ranker.hidden:
            return NeuralOnDevice(device, self, clients)
        return PdgdOnDevice(device, self, clients, features)

    @property
    def not_on_device(self) -> str:
        """Why it cannot run on a GPU; empty if it can."""
        return 'lists = "logged" is not available on a GPU; use lists = "drawn"' * (self.lists == "logged")

    @property
    def steps(self) -> tuple[float, bool, float, float]:
        """The settings of its steps, as `kernels.records.Steps`."""
        return float(self.rate), bool(self.batch), float(self.clip_weights), float(self.clip_gradients)

    @property
    def display(self) -> tuple[bool, float, float]:
        """The settings of shown lists, as `kernels.records.Display`."""
        return self.lists == "logged", float(self.temperature), float(self.keep)


@dataclass(frozen=True)
class LambdaRank:
    """Learns from true relevance labels, as an upper bound for learners from clicks (LambdaRank; Burges, 2010).

    It optimises nDCG@10. Every interaction is a query with all its labels: no list is shown, no click is drawn, and
    online quality is undefined.
    """

    ranker: Ranker = field(default_factory=Linear)
    rate: float = 0.01  # learning rate; smaller than PDGD's because every query uses all its documents

    traits: ClassVar[frozenset[Trait]] = frozenset({"grades"})

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_start(self.ranker)

    def __call__(
        self,
        start: Weights,
        clients: SimulatedClients,
        chance: Chance,
        correction: LocalCorrection = NO_CORRECTION,
        threads: int = 1,
    ) -> Learned:
        starts, key, loops = as_sent(start), chance.key("learn"), loops_of(clients)

        def some(first: int, last: int, updates: Updates, online: NDArray[np.float64]) -> None:
            kernels.lambdarank.lambdarank_clients(
                starts, key, self.rate, self.ranker.hidden, loops.table, clients.data.longest, loops.held, loops.seen,
                first, last, updates,
            )  # fmt: skip
            online[first:last] = np.nan  # no list is shown

        updates, online = by_threads(some, start.shape[-1], clients, threads)
        return Learned(updates, Observed(online))

    def from_impressions(
        self,
        start: NDArray[np.float32],
        impressions: Impressions,
        own: OwnChance,
        correction: LocalCorrection = NO_CORRECTION,
    ) -> Learned:
        weights, master = start.copy(), start.astype(np.float64)
        discount = kernels.elementary.discounts(kernels.show.SHOWN)
        for number in range(len(impressions)):
            features, grades = impressions.judged(number)
            ideal = kernels.measures.ideal_dcg(grades[None], np.array([0, len(grades)]), 10)[0, 0]
            if ideal > 0:
                scores = np.empty(len(grades), dtype=np.float32)
                kernels.lambdarank.learn_grades(
                    master, weights, self.ranker.hidden, features, 0, len(grades), grades, ideal, self.rate, discount,
                    scores,
                )  # fmt: skip
                weights = master.astype(np.float32)
        return Learned((master - start).astype(np.float32)[None], Observed(np.full(1, np.nan)))


@dataclass(frozen=True)
class LoggedClicks:
    """Learns from lists and clicks of a search log, weighted by inverse propensity (IPS; Joachims et al., WSDM 2017).

    A click has the inverse of its propensity as weight. data.propensities sets the source of the weights; without it
    every click has weight 1, and position bias is learned. The two clips bound the sensitivity for differential
    privacy.

    loss = "softmax" is that of a list. "hinge" bounds the rank of each click, as in Propensity SVM-Rank. With it and
    the mean this is in the style of FedIPS (Li and Ouyang, arXiv 2105.04761, 2021), of which only the abstract was
    available: federated local steps on clicks weighted by inverse propensity. The loss, constant rate and step per list
    are choices of fedrank.
    """

    ranker: Ranker = field(default_factory=Linear)
    loss: Literal["softmax", "hinge"] = "softmax"  # what the clicks of a list minimise
    rate: float = 0.01  # learning rate η; smaller than PDGD's because clicks at low positions have large weights
    batch: bool = False  # one step with the summed gradients of all lists instead of one per list
    clip_weights: float = 0.0  # maximum L2 norm of the local model, applied after every step; 0: no limit
    clip_gradients: float = 0.0  # maximum L2 norm of one list's gradient; 0: no limit; needs batch

    traits: ClassVar[frozenset[Trait]] = frozenset({"steps", "logged"})

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_start(self.ranker)
        _check_clips(self.clip_weights, self.clip_gradients, self.batch)
        if self.loss not in ("softmax", "hinge"):
            raise ValueError(f'loss must be "softmax" or "hinge" (got {self.loss!r})')

    def __call__(
        self,
        start: Weights,
        clients: SimulatedClients,
        chance: Chance,
        correction: LocalCorrection = NO_CORRECTION,
        threads: int = 1,
    ) -> Learned:
        data = clients.data
        starts, key, loops = as_sent(start), chance.key("learn"), loops_of(clients)
        relevance, corrections = data.labels, corrections_of(correction, self.rate)

        def some(first: int, last: int, updates: Updates, online: NDArray[np.float64]) -> None:
            kernels.logged.logged_clients(
                starts, key, self.loss == "hinge", self.steps, corrections, self.ranker.hidden, loops.table, relevance,
                data.longest, loops.held, first, last, updates,
            )  # fmt: skip
            online[first:last] = np.nan  # no new list is shown

        updates, online = by_threads(some, start.shape[-1], clients, threads)
        return Learned(updates, Observed(online), None if correction.personal is None else corrections[2])

    def from_impressions(
        self,
        start: NDArray[np.float32],
        impressions: Impressions,
        own: OwnChance,
        correction: LocalCorrection = NO_CORRECTION,
    ) -> Learned:
        def learn(master: NDArray[np.float64], weights: NDArray[np.float32], number: int, own: Any) -> bool:
            features, relevance, _ = impressions.logged(number)
            learn_list: Any = kernels.logged.learn_list
            hidden, hinge = self.ranker.hidden, self.loss == "hinge"
            return bool(learn_list(master, weights, hidden, features, relevance, hinge, self.steps, own))

        return _one_by_one(self, start, len(impressions), learn, correction)

    @property
    def steps(self) -> tuple[float, bool, float, float]:
        """The settings of its steps, as `kernels.records.Steps`."""
        return float(self.rate), bool(self.batch), float(self.clip_weights), float(self.clip_gradients)


def _one_by_one(
    learner: Pdgd | LoggedClicks,
    start: NDArray[np.float32],
    count: int,
    learn: Callable[[NDArray[np.float64], NDArray[np.float32], int, NDArray[np.float64]], bool],
    correction: LocalCorrection,
) -> Learned:
    """One client's steps from `count` lists; `learn` adds the gradient of a list and returns whether it has one."""
    pdgd, corrections = kernels.pdgd, kernels.records.Corrections(*corrections_of(correction, learner.rate))
    shared = len(start) - (corrections.personal.shape[1] if len(corrections.personal) else 0)
    weights, master = start.copy(), start.astype(np.float64)
    if len(corrections.personal):
        weights[shared:] = master[shared:] = corrections.personal[0]
    gradient = np.empty(len(start) if learner.clip_gradients else 0)
    bent = corrections.pull != 0 or len(corrections.drifts) > 0 or learner.clip_weights > 0
    for number in range(count):
        if corrections.pull:
            pdgd.pull_back(master, start, shared, corrections.pull)
        if len(corrections.drifts):
            kernels.rankers.add_scaled(master, learner.rate, corrections.drifts[0])
        moved = learn(master, weights, number, gradient)
        if (moved or bent) and not learner.batch:
            if learner.clip_weights > 0:
                pdgd.shorten(master, float(learner.clip_weights))
            weights = master.astype(np.float32)
    if learner.clip_weights > 0 and learner.batch and count:
        pdgd.shorten(master, float(learner.clip_weights))
    update = np.zeros((1, len(start)), dtype=np.float32)
    update[0, :shared] = master[:shared] - start[:shared]
    personal = master[None, shared:] if len(corrections.personal) else None
    return Learned(update, Observed(np.full(1, np.nan)), personal)


LEARNERS: dict[str, type[Learner]] = {
    "pdgd": Pdgd,
    "evolution": Evolution,
    "lambdarank": LambdaRank,
    "logged-clicks": LoggedClicks,
}


def fine_tune(
    learner: Learner, weights: Weights, clients: SimulatedClients, seed: int, interactions: int, threads: int = 1
) -> Weights:
    """Continue training for each client separately, and return the models as [clients, parameters].

    `weights` is the global model, or a model for each client. Each client takes `interactions` plain steps on its own
    queries. This is the baseline for personalisation methods. Its random numbers differ from those of all rounds.

    >>> import fedrank as fr
    >>> clients = fr.make_clients(fr.synthetic("mq2007", queries=40), count=4, partition=fr.partitions.Own())
    >>> *_, last = fr.simulate(fr.Federation(), clients, rounds=20)
    >>> tuned = fr.fine_tune(fr.learners.Pdgd(), last.weights, clients, seed=1, interactions=20)
    >>> for weights in (last.weights, tuned):
    ...     print(fr.quality_by_client(["ndcg@10"], weights, fr.rankers.Linear(), clients).round(2))
    [[0.41 0.66 0.44 0.68]]
    [[0.44 0.69 0.44 0.7 ]]
    """
    if interactions < 1:
        raise ValueError(f"interactions must be at least 1 (got {interactions})")
    longer = replace(clients, interactions=np.full_like(clients.interactions, interactions))
    return weights + _plainly(learner, weights, longer, seed, "fine-tune", threads)


def warm_up(learner: Learner, weights: Weights, clients: SimulatedClients, seed: int, interactions: int) -> Weights:
    """Train `weights` on the shared queries as one client, before the federation begins.

    Its click model is that of the first client.
    """
    if not len(clients.shared):
        raise ValueError('a warm-up needs shared queries; use partition = { name = "shared", ... }')
    one = replace(
        clients.rows(slice(0, 1)),
        pool=np.zeros(1, dtype=np.int32),
        interactions=np.array([interactions], dtype=np.int64),
        queries=clients.shared,
        pools=np.array([0, len(clients.shared)], dtype=np.int64),
    )
    moved: Weights = weights + _plainly(learner, weights, one, seed, "warm-up", 1)[0]
    return moved


def _plainly(
    learner: Learner, weights: Weights, clients: SimulatedClients, seed: int, purpose: str, threads: int
) -> Updates:
    """Return updates of plain steps outside any round, with random keys that no round uses."""
    if has_trait(learner, "rewards"):
        raise ValueError(
            "evolution needs many clients to estimate a gradient, so one client cannot continue with it; use pdgd"
        )
    if isinstance(learner, Pdgd | LoggedClicks):
        learner = replace(learner, clip_weights=0.0, clip_gradients=0.0)
    return learner(weights, clients, Chance(int(key_for(seed, purpose)), 0), threads=threads).updates


def _check_clips(clip_weights: float, clip_gradients: float, batch: bool) -> None:
    for name, value in (("clip_weights", clip_weights), ("clip_gradients", clip_gradients)):
        if not 0 <= value < np.inf:
            raise ValueError(f"{name} must be positive, or 0 for no clipping (got {value})")
    if clip_gradients and not batch:
        raise ValueError(
            f"clip_gradients = {clip_gradients} needs batch = true, because otherwise each interaction also changes "
            "all later steps of its client; use batch = true, or clip_gradients = 0"
        )


def _check_start(ranker: Ranker) -> None:
    if getattr(ranker, "start", "") == "zero":
        raise ValueError('a ranker with start = "zero" has no gradient for this learner; use start = "normal"')


def _check_rate(rate: float) -> None:
    if not 0 < rate < np.inf:
        raise ValueError(f"rate must be positive, such as 0.1 (got {rate})")
