"""Reconstruction of clicks from one message: what a server learns from a single client's PDGD update.

With a linear ranker an update is a weighted sum of the features of shown documents. Clicked documents have a positive
coefficient, skipped ones a negative one, and the coefficients of every list sum to 0; clipped weights add a multiple of
the initial model. An attacker who knows the features can solve for the coefficients.

Training does not need this module: the attacks test what mechanisms guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.ranking import RankingData
from fedrank.ranking.impressions import SimulatedImpressions
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.loops import as_sent
from fedrank.seeds import Chance
from fedrank.types import (
    NO_CORRECTION,
    Impression,
    Judged,
    LocalCorrection,
    Logged,
    OwnChance,
    SimulatedClients,
    Weights,
)

Vector = NDArray[np.float64]
Clicks = NDArray[np.bool_]

LITTLE = 1e-5  # the same where the shown documents are known: breaks ties between equally good solutions
SWEEPS = 6  # over all lists of a message, at most


class Search(NamedTuple):
    """One interaction, as only the client knows it."""

    query: int
    click_model: int  # row of the click tables
    shown: NDArray[np.int64]  # [10 or fewer]: documents, counted within the query, from the top
    clicked: Clicks  # [10 or fewer]


class LocalSteps(NamedTuple):
    """The result of a client's local steps."""

    update: Vector  # [parameters]
    before: list[NDArray[np.float32]]  # the model before every step
    kept: list[float]  # fraction of each step that remains in the end after clipping the weights


def replay(
    learner: Pdgd,
    start: Weights,
    clients: SimulatedClients,
    c: int,
    chance: Chance,
    correction: LocalCorrection = NO_CORRECTION,
) -> list[Search]:
    """What client c searched for, was shown and clicked in a round: the compiled loop, repeated in Python."""
    if clients.own_click_models:
        raise ValueError("the click audit needs the probabilities of a click model; use a built-in one or a ClickModel")
    one = clients.rows(slice(c, c + 1))
    source = _Noted(SimulatedImpressions(one, OwnChance(chance, int(one.ids[0])), learner))
    learner.from_impressions(
        as_sent(start if start.ndim == 1 else start[c])[0], source, source.simulated.own, correction
    )
    return source.searches


class _Noted:
    """Impressions of a simulated client, recorded as they are shown."""

    def __init__(self, simulated: SimulatedImpressions) -> None:
        self.simulated, self.searches = simulated, list[Search]()

    def __len__(self) -> int:
        return len(self.simulated)

    def drawn(self, weights: NDArray[np.float32], number: int) -> Impression:
        one = self.simulated.drawn(weights, number)
        self.searches.append(Search(*self.simulated.search(number), one.shown, one.clicked))
        return one

    def best(self, weights: NDArray[np.float32], number: int) -> Impression:
        return self.simulated.best(weights, number)

    def judged(self, number: int) -> Judged:
        return self.simulated.judged(number)

    def logged(self, number: int) -> Logged:
        return self.simulated.logged(number)


@dataclass(frozen=True)
class KnownTraining:
    """The training of a client as an attacker knows it: everything but the lists and the clicks."""

    learner: Pdgd
    start: Weights
    data: RankingData
    correction: LocalCorrection = NO_CORRECTION
    leaves: Callable[[Vector], Vector] = lambda update: update  # what a mechanism makes of an update, apart from noise

    def forward(self, searches: Sequence[Search]) -> LocalSteps:
        """The local steps that follow from given lists and clicks; deterministic."""
        learner, correction = self.learner, self.correction
        if learner.ranker.hidden:
            raise ValueError("clicks can only be reconstructed from updates of a linear ranker; use ranker = linear")
        if correction.drifts is not None or correction.personal is not None:
            raise ValueError(
                "clicks can only be reconstructed from updates without a per-client correction; use another local "
                "method"
            )
        pdgd, steps, display = kernels.pdgd, learner.steps, learner.display
        weights = self.start.astype(np.float32)
        first, master = weights.copy(), weights.astype(np.float64)
        gradient, pull = np.empty(len(master) if learner.clip_gradients else 0), learner.rate * correction.pull
        before: list[NDArray[np.float32]] = []
        factors: list[float] = []  # fraction of the model that remains after clipping the weights, step by step

        def clip() -> None:
            factors[-1] = min(1.0, learner.clip_weights / max(float(np.linalg.norm(master)), 1e-300))
            pdgd.shorten(master, float(learner.clip_weights))

        for search in searches:
            before.append(weights.copy())
            scores = scores_of(weights, self.data, search.query)
            one = Impression(_documents(self.data, search.query), scores, *search[2:])
            if pull:
                pdgd.pull_back(master, first, len(master), pull)
            pdgd.learn_impression(master, weights, 0, *one, display, steps, gradient)
            factors.append(1.0)
            if not learner.batch:
                if learner.clip_weights:
                    clip()
                weights = master.astype(np.float32)
        if learner.batch and learner.clip_weights and searches:
            clip()
        return LocalSteps(master - first, before, np.cumprod(factors[::-1])[::-1].tolist())

    def expected(self, searches: Sequence[Search]) -> Vector:
        """The message that follows from given lists and clicks, without noise."""
        return self.leaves(self.forward(searches).update)

    def match(
        self, message: NDArray[np.floating], one: Sequence[Search], other: Sequence[Search], power: float
    ) -> float:
        """The matching game: how much better the first of two click patterns explains a message than the second.

        Positive: the first is more likely.
        """
        first, second = self.expected(one), self.expected(other)
        size = max(float(np.abs(first).max()), float(np.abs(second).max()))
        target = np.asarray(message, dtype=np.float64)
        return float(misfit(target - second, power, size) - misfit(target - first, power, size))

    def decode(
        self, message: NDArray[np.floating], lists: Sequence[Search], first: Sequence[Clicks], power: float
    ) -> list[Clicks]:
        """The clicks that explain a message best, by local search from a `first` guess.

        The step that follows from given clicks is known exactly, so all 1,024 click patterns of a list can be tried,
        which uses more information than the signs of a regression. Lists are tried in turn until the fit no longer
        improves; if a large residual remains, the search is repeated from a start where regression fixes the lists
        one by one.
        """
        guess = [search._replace(clicked=np.array(clicked)) for search, clicked in zip(lists, first, strict=True)]
        target = np.asarray(message, dtype=np.float64)
        best, guess = self._improved(target, guess, power)
        expected = self.expected(guess)
        explained = np.median(np.abs(target - expected)) <= 1e-5 * np.abs(expected).max()
        if len(guess) > 1 and not explained:
            again, settled = self._improved(target, self._settled(target, guess), power)
            guess = settled if again < best else guess
        return [search.clicked for search in guess]

    def _improved(self, target: Vector, guess: list[Search], power: float) -> tuple[float, list[Search]]:
        """The clicks that explain a message best, list by list, and their misfit."""

        def cost(searches: Sequence[Search]) -> float:
            expected = self.expected(searches)
            return float(misfit(target - expected, power, np.abs(expected).max()))

        best = cost(guess)
        for _ in range(SWEEPS):
            before = best
            for b, search in enumerate(guess):
                path = self.forward(guess)
                expected = self.leaves(path.update)
                patterns, _, gradients = self._patterns(path.before[b], search)
                now = gradients[_number_of(search.clicked)]
                moved = _scale(path.update, expected) * self.learner.rate * path.kept[b] * (gradients - now)
                costs = misfit(target - expected - moved, power, np.abs(expected).max())
                for pattern in np.argsort(costs)[:3]:  # later lists depend slightly on a step: use the exact cost
                    trial = [*guess[:b], search._replace(clicked=patterns[pattern]), *guess[b + 1 :]]
                    exact = cost(trial)
                    if exact < best:
                        best, guess = exact, trial
            if best == before:
                break
        return best, guess

    def _settled(self, target: Vector, guess: Sequence[Search]) -> list[Search]:
        """Repeated regression; each time the list with coefficients closest to a click pattern is fixed and removed."""
        guess, learner = list(guess), self.learner
        open_lists = list(range(len(guess)))
        while open_lists:
            path = self.forward(guess)
            scale = _scale(path.update, self.leaves(path.update)) * learner.rate
            rest, tables = target, {}
            for b, search in enumerate(guess):
                patterns, factors, gradients = self._patterns(path.before[b], search)
                if b in open_lists:
                    tables[b] = patterns, factors * path.kept[b]
                else:
                    rest = rest - scale * path.kept[b] * gradients[_number_of(search.clicked)]
            documents = [features_of(self.data, guess[b]) for b in open_lists]
            found = reconstruct(rest, self.start, documents, scale, bool(learner.clip_weights))
            likeness = []
            for b, own in zip(open_lists, found, strict=True):
                away = np.abs(tables[b][1] - own).sum(axis=1)
                nearest = int(np.argmin(away))
                guess[b] = guess[b]._replace(clicked=tables[b][0][nearest])
                likeness.append(away[nearest] / (np.abs(own).sum() + 1e-3))
            open_lists.pop(int(np.argmin(likeness)))
        return guess

    def _patterns(self, weights: NDArray[np.float32], search: Search) -> tuple[Clicks, Vector, Vector]:
        """All click patterns of a list [2^shown, shown], their coefficients and gradients [2^shown, features]."""
        scores, size = scores_of(weights, self.data, search.query), len(search.shown)
        count, rates, display = len(scores), np.empty(len(scores)), kernels.records.Display(*self.learner.display)
        spread = kernels.show.rates(scores, count, display.temperature, np.empty(count), rates)
        pairs = np.empty((size, size))  # weight of a pair of positions, whichever of the two was clicked
        for i in range(size):
            page, scales = kernels.records.Page(scores, rates, search.shown, np.arange(size) == i), np.empty(size)
            kernels.pdgd.pair_weights(page, spread, count, size, size, display, scales)
            pairs[i] = -scales / display.temperature
            pairs[i, i] = 0.0
        patterns, clicked, considered = _patterns_of(size)
        factors = clicked * (considered @ pairs) - considered * (clicked @ pairs)
        gradients = factors @ features_of(self.data, search)
        if clip := self.learner.clip_gradients:
            left = np.minimum(1.0, clip / np.maximum(np.linalg.norm(gradients, axis=1), 1e-300))[:, None]
            factors, gradients = factors * left, gradients * left
        return patterns, factors, gradients


def _documents(data: RankingData, query: int) -> NDArray[np.float32]:
    return data.features[data.offsets[query] : data.offsets[query + 1]]


def scores_of(weights: NDArray[np.float32], data: RankingData, query: int) -> NDArray[np.float32]:
    """Scores of a query's candidates."""
    features = _documents(data, query)
    scores = np.empty(len(features), np.float32)
    kernels.rankers.score(weights, 0, features, 0, len(features), scores)
    return scores


def features_of(data: RankingData, search: Search) -> Vector:
    """[shown, features]"""
    features: Vector = data.features[data.offsets[search.query] + search.shown].astype(np.float64)
    return features


def reconstruct(
    update: NDArray[np.floating],
    weights: Weights,
    documents: Sequence[Vector],
    rate: float = 0.1,
    clipped: bool = False,
    price: float = LITTLE,
    passes: int = 1,
) -> list[Vector]:
    """A coefficient per document for every list of [documents, features]: positive where it was clicked.

    L1 regression: it minimises the sum of absolute residuals, which is robust against coordinates with much noise, and
    the coefficients of a list sum to 0. `documents` are the shown documents, or all candidates; with candidates, a
    higher `price` on coefficients and more `passes` find a sparse solution. `clipped`: weights were clipped, so the
    message also contains a multiple of `weights`.
    """
    sizes = [len(each) for each in documents]
    lists = np.repeat(np.arange(len(sizes)), sizes)
    columns = np.concatenate(documents).T
    costs = np.full(len(lists), price)
    target = np.asarray(update, dtype=np.float64) / rate
    found = np.zeros(len(lists))
    for _ in range(passes):
        found = _fit(columns, target, lists, costs, weights if clipped else None)
        costs = price * 0.01 / (np.abs(found) + 0.01)
    return np.split(found, np.cumsum(sizes)[:-1])


def _fit(columns: Vector, target: Vector, lists: NDArray[np.int64], costs: Vector, free: Vector | None) -> Vector:
    """Coefficients that minimise |target - columns x coefficients| + costs x |coefficients|, with sum 0 in every list.

    `free` is one more column, whose coefficient has no cost.
    """
    from scipy import sparse
    from scipy.optimize import linprog

    rows, count = columns.shape
    groups = int(lists.max()) + 1
    loose = np.zeros((rows, 0)) if free is None else free[:, None]
    eye, sums = sparse.identity(rows), sparse.csr_matrix((np.ones(count), (lists, np.arange(count))), (groups, count))
    blocks: Any = [
        [columns, -columns, loose, -loose, eye, -eye],
        [sums, -sums, *[np.zeros((groups, loose.shape[1]))] * 2, None, None],
    ]
    matrix: Any = sparse.bmat(blocks, format="csc")
    price = np.concatenate([costs, costs, np.zeros(2 * loose.shape[1]), np.ones(2 * rows)])
    solved = linprog(price, A_eq=matrix, b_eq=np.concatenate([target, np.zeros(groups)]), method="highs")
    if solved.x is None:
        return np.zeros(count)
    return np.asarray(solved.x[:count] - solved.x[count : 2 * count])


def _scale(update: Vector, expected: Vector) -> float:
    """The fraction of an update that leaves the client after clipping."""
    length = float(update @ update)
    return max(float(expected @ update) / length, 1e-12) if length else 1.0


def misfit(residuals: Vector, power: float, size: float) -> Vector:
    """Sum of |residual|^power over the last axis. Power 2 fits Gaussian noise, 0 fits noise that is mostly near 0.

    0 stands for the logarithm; `size`, that of the update, sets the rounding error at which it is cut off.
    """
    sizes = np.abs(residuals) + 1e-7 * size + 1e-300
    total: Vector = (np.log(sizes) if power == 0 else sizes**power).sum(axis=-1)
    return total


@cache
def _patterns_of(size: int) -> tuple[Clicks, Vector, Vector]:
    """All click patterns of this many positions, as booleans and as numbers, and which positions each considers."""
    patterns = (np.arange(2**size)[:, None] >> np.arange(size)) & 1 == 1
    last = np.where(patterns.any(axis=1), size - 1 - np.argmax(patterns[:, ::-1], axis=1), -2)
    considered = (np.arange(size) <= last[:, None] + 1).astype(np.float64)
    return patterns, patterns.astype(np.float64), considered


def _number_of(clicked: Clicks) -> int:
    """The index of this pattern among all patterns."""
    return int(clicked @ (1 << np.arange(len(clicked))))
