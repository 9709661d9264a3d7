"""Synthetic logs of shown lists with known relevance, position bias and trust bias.

Clicks follow the affine model of Agarwal et al. (WWW 2019): position k is examined with probability 1 / k^eta, and an
examined document is clicked if it is perceived as relevant, which is more likely at high positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.log_folder import ShownLists, write_shown
from fedrank.data.logs import SearchLog
from fedrank.data.ranking import RankingData
from fedrank.seeds import rng_for
from fedrank.types import Features

_BEGINNING = 1_767_225_600  # 1 January 2026
_SECONDS_BETWEEN = 37  # searches
_CLEAR = 3.0  # slope of relevance as a function of quality
_RARE = 1.5  # quality at which relevance is 1/2
_TOP_GRADE = 4  # highest relevance label of judged queries


@dataclass(frozen=True)
class Browsing:
    """How users examine lists and click."""

    eta: float = 1.0  # position k is examined with probability 1 / k^eta; 0: all positions are
    trust: float = 0.0  # probability that an irrelevant document seems relevant at position 1; 1 / k of it at k

    def __post_init__(self) -> None:
        if not self.eta >= 0 or not 0 <= self.trust < 1:
            raise ValueError(
                f"eta must be at least 0 (got {self.eta}), trust at least 0 and below 1 (got {self.trust})"
            )

    def examined(self, positions: NDArray[np.integer] | int) -> NDArray[np.float64]:
        """[positions]: examination probability of positions, counted from 0."""
        return kernels.elementary.power_each(np.asarray(positions) + 1.0, -self.eta)

    def slope(self, positions: NDArray[np.integer] | int) -> NDArray[np.float64]:
        """[positions]: click probability of a relevant document minus that of an irrelevant one."""
        seems = np.where(self.trust > 0, 1 - (np.minimum(np.asarray(positions), 19) + 2) / 100, 1.0)
        steep: NDArray[np.float64] = self.examined(positions) * (seems - self.trust / (np.asarray(positions) + 1))
        return steep

    def intercept(self, positions: NDArray[np.integer] | int) -> NDArray[np.float64]:
        """[positions]: click probability of an irrelevant document."""
        unread: NDArray[np.float64] = self.examined(positions) * self.trust / (np.asarray(positions) + 1)
        return unread


@dataclass(frozen=True)
class Showing:
    """How lists are ranked; with one ranker and no noise, documents never change positions."""

    rankers: int = 3  # a random one answers each search; each is a perturbation of the first
    bent: float = 0.5  # size of the perturbation relative to the length of the weights
    noise: float = 0.0  # standard deviation of noise on scores
    temperature: float = 0.0  # above 0: lists are sampled (Plackett-Luce), and scores are recorded
    skill: float = 0.6  # cosine between the logging ranker's weights and the true ones
    positions: int = 10

    def __post_init__(self) -> None:
        if self.rankers < 1 or self.positions < 2 or min(self.bent, self.noise, self.temperature) < 0:
            raise ValueError(f"{self}: rankers must be at least 1, positions at least 2, and no value negative")
        if not -1 <= self.skill <= 1:
            raise ValueError(f"skill must be from -1 to 1 (got {self.skill})")


STATIC = Showing(rankers=1)  # documents never change positions


@dataclass(frozen=True, eq=False)
class Relevant:
    """Queries, their documents, and the probability that each document is relevant."""

    features: Features  # [pairs, features]
    relevance: NDArray[np.float64]  # [pairs], 0 .. 1
    candidates: NDArray[np.int64]  # [queries, documents]: rows of `features`
    best: NDArray[np.float64]  # [features]: weights of the best linear ranker
    name: str = "made up"  # prose: ok

    @property
    def queries(self) -> int:
        return len(self.candidates)

    def some(self, queries: slice) -> Relevant:
        """Return some of the queries; documents keep their rows."""
        return replace(self, candidates=self.candidates[queries])

    def judged(self) -> RankingData:
        """Return the queries with relevance labels from 0 to 4, for evaluation."""
        count = self.candidates.shape[1]
        rows = self.candidates.ravel()
        return RankingData(
            self.features[rows],
            np.rint(self.relevance[rows] * _TOP_GRADE).astype(np.int8),
            np.arange(self.queries + 1) * count,
            np.arange(self.queries).astype(str),
            self.name,
            _TOP_GRADE,
        )


def made_up_queries(queries: int = 500, documents: int = 10, features: int = 10, seed: int = 1) -> Relevant:
    """Generate queries with relevance from a linear function of the features, plus noise."""
    if min(queries, features) < 1 or documents < 2:
        raise ValueError(
            f"queries, documents and features are too few to rank (got {queries}, {documents}, {features})"
        )
    rng = rng_for(seed, "shown", "queries")
    values = rounded_normals(rng, queries * documents, features)
    best = rounded_normals(rng, features)
    best /= kernels.sums.length(best)
    quality = kernels.sums.products(values, best[None])[:, 0] + 0.3 * rounded_normals(rng, len(values))
    relevance = 1 / (1 + kernels.elementary.exp_each(-_CLEAR * (quality - _RARE)))
    pairs = np.arange(len(values)).reshape(queries, documents)
    return Relevant(values.astype(np.float32), relevance, pairs, best)


@dataclass(frozen=True, eq=False)
class SimulatedShown:
    """Shown lists, their clicks, and the true relevance and click behaviour."""

    truth: Relevant
    browsing: Browsing
    showing: Showing
    lists: NDArray[np.int64]  # [searches, positions]: rows of the truth's features
    clicks: NDArray[np.uint8]  # [searches, positions]
    query: NDArray[np.int32]  # [searches]
    user: NDArray[np.int32]  # [searches]
    time: NDArray[np.int64]  # [searches]: seconds since 1970, ascending
    rankers: NDArray[np.float64]  # [rankers, features]: weights of the logging rankers
    scores: NDArray[np.float32] | None = None  # [searches, positions]: sampling scores; None: not sampled

    @cached_property
    def first(self) -> NDArray[np.int32]:
        """[searches]: positions before the list."""
        return np.zeros(len(self.lists), np.int32)

    def clicks_a_list(
        self, scores: NDArray[np.floating], share: NDArray[np.float64] | None = None, positions: int | None = None
    ) -> float:
        """Return the true expected number of clicks per list if documents were ranked by `scores` [pairs].

        `share` [queries] is the distribution of queries; the default is that of this log. Clicks are counted in
        the first `positions` positions, or in all.
        """
        order = np.argsort(-np.asarray(scores)[self.truth.candidates], axis=1, kind="stable")
        most = self.showing.positions if positions is None else min(positions, self.showing.positions)
        shown = np.take_along_axis(self.truth.candidates, order, axis=1)[:, :most]
        at = np.arange(shown.shape[1])
        relevant = kernels.sums.products(self.truth.relevance[shown], self.browsing.slope(at)[None])
        expected = relevant[:, 0] + self.browsing.intercept(at).sum()  # a new array: `inner` needs contiguous ones
        asked = np.bincount(self.query, minlength=self.truth.queries) if share is None else share
        return float(kernels.sums.inner(expected, asked.astype(np.float64)) / asked.sum())

    def write(self, folder: str | Path) -> SearchLog:
        """Write a data set of shown lists with the true features."""
        pairs = len(self.truth.features)
        return write_shown(
            folder,
            ShownLists(
                features=self.truth.features,
                lists=self.lists,
                clicks=self.clicks,
                user=self.user,
                time=self.time,
                query=self.query,
                document=np.arange(pairs),
                users=[f"u{user}" for user in range(int(self.user.max()) + 1)],
                queries=[f"query {query}" for query in range(self.truth.queries)],
                documents=[f"d{number}" for number in range(pairs)],
                feature_names=[f"feature {number + 1}" for number in range(self.truth.features.shape[1])],
                scores=self.scores,
                temperature=self.showing.temperature or None,
                keep=0.0 if self.scores is not None else None,
            ),
            {"features": "made up", "browsing": vars(self.browsing), "showing": vars(self.showing)},  # prose: ok
        )


def simulate_shown(
    truth: Relevant,
    searches: int = 10_000,
    seed: int = 1,
    *,
    browsing: Browsing | None = None,
    showing: Showing | None = None,
    people: int = 100,
    popularity: float = 0.7,  # query q is asked in proportion to 1 / q^popularity
    activity: float = 1.0,  # exponent of the activity of users, likewise
) -> SimulatedShown:
    """Simulate searches, shown lists and clicks. Randomness is keyed: the same arguments give the same log."""
    browsing, showing = browsing or Browsing(), showing or Showing()
    if searches < 1 or people < 1:
        raise ValueError(f"searches and people must be at least 1 (got {searches} and {people})")
    rng = rng_for(seed, "shown", "who and what")
    query = rng.choice(truth.queries, size=searches, p=_falling(truth.queries, popularity)).astype(np.int32)
    user = rng.choice(people, size=searches, p=_falling(people, activity)).astype(np.int32)
    time = _BEGINNING + np.arange(searches, dtype=np.int64) * _SECONDS_BETWEEN
    rng = rng_for(seed, "shown", "lists")
    weights = _rankers(truth, showing, rng_for(seed, "shown", "rankers"))
    who = rng.integers(showing.rankers, size=searches)
    candidates = truth.candidates[query]
    table = kernels.sums.products(truth.features.astype(np.float64), weights)  # [pairs, rankers]
    scores = table[candidates, who[:, None]]
    if showing.noise:
        scores = scores + showing.noise * rounded_normals(rng, *scores.shape)
    keys = scores
    if showing.temperature:
        keys = scores / showing.temperature + _gumbels(rng, *scores.shape)
    order = np.argsort(-keys, axis=1, kind="stable")[:, : showing.positions]
    lists = np.take_along_axis(candidates, order, axis=1)
    positions = np.arange(lists.shape[1])
    chance = browsing.slope(positions) * truth.relevance[lists] + browsing.intercept(positions)
    clicks = (rng_for(seed, "shown", "clicks").random(lists.shape) < chance).astype(np.uint8)
    drawn = np.take_along_axis(scores, order, axis=1).astype(np.float32) if showing.temperature else None
    return SimulatedShown(truth, browsing, showing, lists, clicks, query, user, time, weights, drawn)


def _falling(count: int, exponent: float) -> NDArray[np.float64]:
    shares = kernels.elementary.power_each(np.arange(1.0, count + 1), -exponent)
    part: NDArray[np.float64] = shares / shares.sum()
    return part


def rounded_normals(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """N(0, 1) draws of NumPy with rounded last bits, since values beyond 3.65 depend on the system's logarithm.

    `kernels.chance.normals` needs no rounding, but would give different data for the seeds in use.
    """
    drawn = rng.normal(size=shape)
    return np.where(np.abs(drawn) > 3.65, np.round(drawn, 9), drawn)


def _gumbels(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    log = kernels.elementary.log_each
    return -log(-log(1.0 - rng.random(shape)))


def _rankers(truth: Relevant, showing: Showing, rng: np.random.Generator) -> NDArray[np.float64]:
    """[rankers, features]: weights of length 1; `skill` is the cosine of the first to the true weights."""
    aside = rounded_normals(rng, len(truth.best))
    aside -= kernels.sums.inner(aside, truth.best) * truth.best
    length = kernels.sums.length(aside)
    aside = aside / length if length else aside
    first = showing.skill * truth.best + np.sqrt(1 - showing.skill**2) * aside
    bends = showing.bent * rounded_normals(rng, showing.rankers - 1, len(first)) / np.sqrt(len(first))
    return np.vstack([first, first + bends])
