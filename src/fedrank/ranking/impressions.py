"""Impressions of simulated clients, one client at a time: for tests, attacks and user-defined methods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.ranking.click_models import checked_clicks
from fedrank.ranking.rankers import Linear
from fedrank.seeds import Chance
from fedrank.types import (
    NO_CORRECTION,
    Impression,
    Impressions,
    Judged,
    Learned,
    Learner,
    LocalCorrection,
    Logged,
    Observed,
    OwnChance,
    Ranker,
    Scores,
    SimulatedClients,
    Weights,
)


def search_stream(key: Any, *numbers: int) -> np.uint64:
    """The random stream of a client's search, by the numbers of both; a further number gives a stream within it."""
    for number in numbers:
        key = np.uint64(kernels.chance.stream(key, number))
    return np.uint64(key)


def draw_list(
    weights: NDArray[np.float32],
    ranker: Ranker,
    features: NDArray[np.float32],
    offsets: NDArray[np.int64],
    query: int,
    display: tuple[bool, float, float],
    stream: np.uint64,
) -> tuple[Scores, NDArray[np.int64]]:
    """Scores of the candidates of a query, and the positions of those that are shown, as a simulation draws them."""
    records, show, count = kernels.records, kernels.show, int(offsets[query + 1] - offsets[query])
    page = records.Page(
        np.empty(count, np.float32), np.empty(count), np.empty(max(count, show.SHOWN), np.int64), np.empty(0, bool)
    )
    race = records.Race(*(np.empty(count) for _ in range(3)), *(np.empty(count, np.int64) for _ in range(2)))
    table = records.Candidates(features, offsets)
    size, _ = show.show(weights, ranker.hidden, table, query, records.Display(*display), stream, page, race)
    return page.scores, page.shown[:size].copy()


@dataclass(frozen=True)
class SimulatedImpressions:
    """The impressions of one simulated client, with the same random draws as in the compiled simulation."""

    clients: SimulatedClients  # of one client
    own: OwnChance
    learner: Learner
    qualities: list[float] = field(default_factory=list)  # nDCG@10 of every list shown

    def __len__(self) -> int:
        return int(self.clients.interactions[0])

    def drawn(self, weights: NDArray[np.float32], number: int) -> Impression:
        clients, (query, chance) = self.clients, self._stream(number)
        features, grades = self._documents(query)
        display = getattr(self.learner, "display", (False, 1.0, 0.0))
        scores, shown = draw_list(
            weights, self.learner.ranker, clients.data.features, clients.data.offsets, query, display, chance
        )
        clicked = np.empty(len(shown), dtype=np.bool_)
        if display[0]:  # logged
            kernels.show.click_what_has_a_grade(grades, len(shown), clicked)
        else:
            self._click(grades, shown, chance, clicked)
        self._note_quality(query, grades, shown)
        return Impression(features, scores, shown, clicked)

    def best(self, weights: NDArray[np.float32], number: int) -> Impression:
        query, chance = self._stream(number)
        features, grades = self._documents(query)
        show, count = kernels.show, len(grades)
        scores = np.empty(count, dtype=np.float32)
        kernels.rankers.score(weights, self.learner.ranker.hidden, features, 0, count, scores)
        shown = np.empty(show.SHOWN, dtype=np.int64)
        bits = scores.view(np.int32).reshape(count, 1)
        best, bounds = np.empty(show.SHOWN, np.int32), np.empty(show.SHOWN, np.int32)
        keys, ordered = np.empty(count + 1, np.int64), np.empty(count, np.int64)
        size = show.best_first(bits, count, np.empty_like(bits), best, bounds, keys, ordered, shown)
        shown, clicked = shown[: max(size, 0)], np.empty(max(size, 0), dtype=np.bool_)
        self._click(grades, shown, chance, clicked)
        self._note_quality(query, grades, shown)
        return Impression(features, scores, shown, clicked)

    def judged(self, number: int) -> Judged:
        return Judged(*self._documents(self._stream(number)[0]))

    def logged(self, number: int) -> Logged:
        query, _ = self._stream(number)
        data = self.clients.data
        rows = slice(data.offsets[query], data.offsets[query + 1])
        drawn = None if data.draw is None else (data.drawn[rows], *data.draw)
        return Logged(data.features[rows], data.labels[rows], drawn)

    def search(self, number: int) -> tuple[int, int]:
        """The query of search number `number` and its user (a row of the click tables)."""
        query, stream = self._stream(number)
        return query, self._user(stream)

    def _stream(self, number: int) -> tuple[int, np.uint64]:
        """The query of search number `number`, and its stream."""
        clients = self.clients
        place = int(clients.at[0]) + number if len(clients.at) else number
        stream = search_stream(self.own.chance.key("learn"), self.own.id, place)
        first, last = clients.pools[clients.pool[0]], clients.pools[clients.pool[0] + 1]
        at = place if len(clients.at) else int(kernels.chance.uniform(stream, 0) * (last - first))
        return int(clients.queries[first + at]), stream

    def _documents(self, query: int) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
        begin, end = self.clients.data.offsets[query], self.clients.data.offsets[query + 1]
        return self.clients.data.features[begin:end], self.clients.grades[self.clients.view[0]][begin:end]

    def _click(
        self, grades: NDArray[np.int8], shown: NDArray[np.int64], stream: np.uint64, clicked: NDArray[np.bool_]
    ) -> None:
        clients, row, show = self.clients, self._user(stream), kernels.show
        if clients.own_click_models and (model := clients.own_click_models[row]) is not None:
            first = show.FIRST_CLICK_DRAW
            draws = np.array([kernels.chance.uniform(stream, first + i) for i in range(2 * len(shown))])
            clicked[:] = checked_clicks(model, model(grades[shown], draws), len(shown))
            return
        show.read_and_click(
            grades, shown, len(shown), clients.click[row], clients.stop[row], clients.attention[row], stream, clicked
        )

    def _note_quality(self, query: int, grades: NDArray[np.int8], shown: NDArray[np.int64]) -> None:
        ideal = float(self.clients.ideal[self.clients.view[0], query])
        discount = kernels.elementary.discounts(kernels.show.SHOWN)
        self.qualities.append(float(kernels.show.shown_ndcg(grades, shown, len(shown), ideal, discount)))

    def _user(self, stream: np.uint64) -> int:
        click_model = int(self.clients.click_model[0])
        return click_model if click_model >= 0 else int(kernels.chance.uniform(stream, 1) * len(self.clients.click))


def learn_one_by_one(
    learner: Learner,
    start: Weights,
    clients: SimulatedClients,
    chance: Chance,
    correction: LocalCorrection = NO_CORRECTION,
) -> Learned:
    """Return what simulated clients learn with `from_impressions`, one client at a time.

    Slow, but it needs no compiled code, and it is the function that a deployed client uses.
    """
    starts = np.broadcast_to(start, (len(clients), start.shape[-1])).astype(np.float32)
    found: list[Learned] = []
    online = np.full(len(clients), np.nan)
    for row in range(len(clients)):
        own, this = OwnChance(chance, int(clients.ids[row])), slice(row, row + 1)
        bent = correction._replace(
            drifts=None if correction.drifts is None else correction.drifts[this],
            personal=None if correction.personal is None else correction.personal[this],
        )
        impressions = SimulatedImpressions(clients.rows(this), own, learner)
        found.append(learner.from_impressions(starts[row], impressions, own, bent))
        if qualities := impressions.qualities:
            online[row] = sum(qualities) / len(qualities)

    def column(name: str) -> Any:
        values = [getattr(one, name) for one in found]
        return None if values[0] is None else np.concatenate(values)

    rewards = [one.observed.reward for one in found if one.observed.reward is not None]
    observed = Observed(online, np.concatenate(rewards) if rewards else None)
    return Learned(column("updates"), observed, column("personal"), column("sent"), column("sizes"))


@dataclass(frozen=True)
class ImpressionLearner:
    """Base class for user-defined learners that learn from one result list at a time; define `step`.

    A simulation calls it for one client at a time, so it is slower than the compiled learners.

    >>> from dataclasses import dataclass
    >>> import fedrank as fr
    >>> @dataclass(frozen=True)
    ... class Perceptron(fr.ImpressionLearner):
    ...     rate: float = 0.1
    ...
    ...     def step(self, weights, impression):
    ...         shown, clicked = impression.features[impression.shown], impression.clicked
    ...         if clicked.all() or not clicked.any():
    ...             return weights
    ...         return weights + self.rate * (shown[clicked].mean(axis=0) - shown[~clicked].mean(axis=0))
    >>> clients = fr.make_clients(fr.synthetic("mq2007", queries=20), count=4, click_model="navigational")
    >>> *_, last = fr.simulate(fr.Federation(Perceptron()), clients, rounds=5)
    >>> f"{last.online:.3f}"
    '0.223'
    """

    ranker: Ranker = field(default_factory=Linear)

    def step(self, weights: Weights, impression: Impression) -> Weights:
        """Return the model after one more result list with its clicks; `weights` are in double precision."""
        raise NotImplementedError(f"{type(self).__name__} must define step(self, weights, impression)")

    def from_impressions(
        self,
        start: NDArray[np.float32],
        impressions: Impressions,
        own: OwnChance,
        correction: LocalCorrection = NO_CORRECTION,
    ) -> Learned:
        weights = start.astype(np.float64)
        for number in range(len(impressions)):
            weights = self.step(weights, impressions.drawn(weights.astype(np.float32), number))
            if np.shape(weights) != start.shape:
                raise ValueError(
                    f"{type(self).__name__}.step returned weights of shape {np.shape(weights)}, but the model has "
                    f"{start.shape}"
                )
        return Learned((weights - start).astype(np.float32)[None], Observed(np.full(1, np.nan)))

    def __call__(
        self,
        start: Weights,
        clients: SimulatedClients,
        chance: Chance,
        correction: LocalCorrection = NO_CORRECTION,
        threads: int = 1,
    ) -> Learned:
        return learn_one_by_one(self, start, clients, chance, correction)
