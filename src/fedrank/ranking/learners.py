"""Learners: what clients do in a round with what they are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.impressions import draw_list, learn_one_by_one
from fedrank.ranking.loops import as_sent, by_threads, corrections_of, loops_of
from fedrank.ranking.own_clicks import loop_for
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
    two clips bound what noise must hide.

    A list is drawn around the model's order, since nobody learns without trying something new. A lower `temperature`
    stays nearer to that order, and `keep` spares people surprises in the first place; the weights of pairs are exact
    for both.

    With lists = "logged" it learns from what somebody was shown and clicked in a search log: all of a query's documents
    in their order. Where the log says how lists were drawn, pairs have the weights of that draw, exact for lists of all
    candidates. Otherwise pairs are weighed as if the model had shown that list. Another ranker did, so that what makes
    PDGD unbiased by positions does not hold; "logged-clicks" corrects for it.
    """

    ranker: Ranker = field(default_factory=Linear)
    rate: float = 0.1  # η; constant, gradients are not normalised
    batch: bool = False  # one step with the summed gradients of all interactions, instead of one step after each
    lists: Literal["drawn", "logged"] = "drawn"  # what is shown: ten that the model draws, or the list of a search log
    temperature: float = 1.0  # of the draw: scores are divided by it
    keep: float = 0.0  # probability that the best document stays in the first place
    clip_weights: float = 0.0  # largest L2 norm of the local model, kept after every step; 0: any (for fpdgd-paper)
    clip_gradients: float = 0.0  # largest L2 norm of what one interaction adds to the gradient; 0: any; needs batch

    traits: ClassVar[frozenset[Trait]] = frozenset({"steps"})

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_start(self.ranker)
        if self.lists not in ("drawn", "logged"):
            raise ValueError(f'no lists {self.lists!r}; use "drawn" or "logged"')
        if not 0 < self.temperature < np.inf:
            raise ValueError(f"temperature = {self.temperature} draws nothing; use a positive number, 1 as published")
        if not 0 <= self.keep <= 1:
            raise ValueError(f"keep = {self.keep} is no probability; use 0 to 1")
        if self.lists == "logged" and (self.keep or self.temperature != 1):
            raise ValueError('lists = "logged" are not drawn; leave keep and temperature as they are')
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
        """What compiled loops take besides a model and its chance: steps, display, bends, and so on up to draws."""
        data, loops = clients.data, loops_of(clients)
        if self.lists == "logged" and not len(data.who):
            raise ValueError(
                f"{data.name or 'this data set'} is no search log, so that nobody was shown its lists; use data.log, "
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
        """The learner and its clients on a graphics card."""
        from fedrank.ranking.cuda.neural import NeuralOnDevice
        from fedrank.ranking.cuda.pdgd import PdgdOnDevice

        if self.ranker.hidden:
            return NeuralOnDevice(device, self, clients)
        return PdgdOnDevice(device, self, clients, features)

    @property
    def not_on_device(self) -> str:
        """Why it cannot run on a graphics card; empty if it can."""
        return 'lists = "logged" is not available on a graphics card; lists = "drawn" is' * (self.lists == "logged")

    @property
    def steps(self) -> tuple[float, bool, float, float]:
        """How it steps, as `kernels.records.Steps`."""
        return float(self.rate), bool(self.batch), float(self.clip_weights), float(self.clip_gradients)

    @property
    def display(self) -> tuple[bool, float, float]:
        """How it shows a list, as `kernels.records.Display`."""
        return self.lists == "logged", float(self.temperature), float(self.keep)


@dataclass(frozen=True)
class LambdaRank:
    """Learns from the true grades, which no server ever sees: the skyline for rankers that learn from clicks.

    LambdaRank (Burges, 2010) on nDCG@10; every interaction is a query with all its grades: no list is shown,
    no click is drawn, and there is no online quality.
    """

    ranker: Ranker = field(default_factory=Linear)
    rate: float = 0.01  # smaller than PDGD's: every query pulls on all its documents

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
            online[first:last] = np.nan  # nobody is shown a list

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
    """Learns from lists that a search log shows, and clicks that are weighed by what their places hid (IPS).

    The softmax loss of a list, in which a click counts as often as others like it were not seen (Joachims et al., WSDM
    2017). data.propensities says where the weights come from; without it every click counts 1, and what stood high is
    learned to be good. The two clips bound what noise must hide.
    """

    ranker: Ranker = field(default_factory=Linear)
    rate: float = 0.01  # η; smaller than PDGD's, since a click far down counts many times
    batch: bool = False  # one step with the summed gradients of all lists, instead of one step after each
    clip_weights: float = 0.0  # largest L2 norm of the local model, kept after every step; 0: any
    clip_gradients: float = 0.0  # largest L2 norm of what one list adds to the gradient; 0: any; needs batch

    traits: ClassVar[frozenset[Trait]] = frozenset({"steps", "logged"})

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_start(self.ranker)
        _check_clips(self.clip_weights, self.clip_gradients, self.batch)

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
                starts, key, self.steps, corrections, self.ranker.hidden, loops.table, relevance, data.longest,
                loops.held, first, last, updates,
            )  # fmt: skip
            online[first:last] = np.nan  # nobody is shown another list

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
            return bool(
                kernels.logged.learn_list(master, weights, self.ranker.hidden, features, relevance, self.steps, own)
            )

        return _one_by_one(self, start, len(impressions), learn, correction)

    @property
    def steps(self) -> tuple[float, bool, float, float]:
        """How it steps, as `kernels.records.Steps`."""
        return float(self.rate), bool(self.batch), float(self.clip_weights), float(self.clip_gradients)


def _one_by_one(
    learner: Pdgd | LoggedClicks,
    start: NDArray[np.float32],
    count: int,
    learn: Callable[[NDArray[np.float64], NDArray[np.float32], int, NDArray[np.float64]], bool],
    correction: LocalCorrection,
) -> Learned:
    """One client's steps from `count` lists; `learn` adds the gradient of one, and says whether there was one."""
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
    queries. This is the baseline for methods that personalise models; no round of a simulation uses its random numbers.

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
        raise ValueError(f"interactions = {interactions} tunes nothing; use 1 or more")
    longer = replace(clients, interactions=np.full_like(clients.interactions, interactions))
    return weights + _plainly(learner, weights, longer, seed, "fine-tune", threads)


def warm_up(learner: Learner, weights: Weights, clients: SimulatedClients, seed: int, interactions: int) -> Weights:
    """The model that one client, with the shared queries alone, makes of `weights` before the federation begins.

    It clicks as the first client does.
    """
    if not len(clients.shared):
        raise ValueError('there are no shared queries to warm up on; use partition = { name = "shared", ... }')
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
    """Updates of plain steps outside any round; their chance is none that a round ever used."""
    if has_trait(learner, "rewards"):
        raise ValueError("evolution estimates a gradient from many clients; one alone cannot go on with it; use pdgd")
    if isinstance(learner, Pdgd | LoggedClicks):
        learner = replace(learner, clip_weights=0.0, clip_gradients=0.0)
    return learner(weights, clients, Chance(int(key_for(seed, purpose)), 0), threads=threads).updates


def _check_clips(clip_weights: float, clip_gradients: float, batch: bool) -> None:
    for name, value in (("clip_weights", clip_weights), ("clip_gradients", clip_gradients)):
        if not 0 <= value < np.inf:
            raise ValueError(f"{name} = {value} is no length; use a positive number, or 0 to clip nothing")
    if clip_gradients and not batch:
        raise ValueError(
            f"clip_gradients = {clip_gradients} bounds no interaction with batch = false, where each also "
            "moves all later steps of its client; use batch = true, or clip_gradients = 0"
        )


def _check_start(ranker: Ranker) -> None:
    if getattr(ranker, "start", "") == "zero":
        raise ValueError('a ranker with start = "zero" has no gradient and never learns here; use start = "normal"')


def _check_rate(rate: float) -> None:
    if not 0 < rate < np.inf:
        raise ValueError(f"rate = {rate} learns nothing; use a positive number such as 0.1")
