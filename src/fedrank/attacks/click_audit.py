"""Click audit: how many clicks the reconstruction attacks recover from single messages, compared with guessing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.attacks.clicks import (
    LITTLE,
    Clicks,
    KnownTraining,
    Search,
    Vector,
    features_of,
    reconstruct,
    replay,
    scores_of,
)
from fedrank.data.ranking import RankingData
from fedrank.seeds import Chance, key_for, rng_for
from fedrank.types import Messages, SimulatedClients

SHOWN = 10
POWERS = (0.5, 1.0, 0.0, 2.0)  # exponents of a residual; 0 stands for its logarithm
# A document with a coefficient above the threshold counts as clicked.
THRESHOLDS = (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.06, 0.1, 0.15)
PRICES = (0.03, 0.3, 1.0)  # penalties on coefficients relative to residuals, where only candidates are known
PASSES = 3  # of reweighted L1: small coefficients get a larger penalty
PREPARED = 0.25  # approximate fraction of the run time that the preparation takes


@dataclass(frozen=True)
class Share:
    """A proportion: successes of a number of trials."""

    right: int
    of: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The Clopper-Pearson confidence interval."""
        from scipy.stats import beta

        tail = (1 - level) / 2
        low = float(beta.ppf(tail, self.right, self.of - self.right + 1)) if self.right else 0.0
        high = float(beta.ppf(1 - tail, self.right + 1, self.of - self.right)) if self.right < self.of else 1.0
        return low, high

    @property
    def confidence(self) -> str:
        """The confidence interval in parentheses."""
        low, high = self.interval()
        return f"({low:.0%} to {high:.0%}, 95% confidence)"


@dataclass(frozen=True)
class ClickAudit:
    """What single messages reveal about clicks, compared with guessing without them.

    A message counts as read if exactly its clicked documents were identified. `..._guess` is the same without the
    message: from ranks, features and scores, learned from other messages.
    """

    messages: int  # with at least one click each
    queries: int  # number of different queries
    interactions: float  # mean number per message
    read: Share  # by regression, from the ten shown
    read_guess: Share
    decoded: Share  # by trying all click patterns, from the ten shown
    candidates: Share  # by sparse regression, from all candidates of a query
    candidates_guess: Share
    matched: Share  # the matching game, on messages whose clicks differ when drawn again; 1/2 is chance
    matched_guess: Share
    accuracy: float  # fraction of shown documents that regression classifies correctly
    accuracy_guess: float
    auc: float  # of regression: clicked documents against others, 0.5 to 1
    auc_guess: float


class _Message(NamedTuple):
    """A message and its ground truth."""

    sent: NDArray[np.float32]
    searches: list[Search]
    other: list[Search] | None  # the same lists with clicks drawn again; None where the update is the same
    arrived: Messages  # its row before the mechanism


def click_audit(
    training: KnownTraining,
    clients: SimulatedClients,
    send: Callable[[Messages], Messages],
    seed: int,
    messages: int,
    expect: Callable[[Messages], Messages] | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> ClickAudit:
    """Attack messages that clients would send; `send` applies a mechanism, `expect` all of it but its noise.

    The attacker knows the model, queries, features, settings and the noise distribution, but not the clicks.
    Thresholds are calibrated on the same number of other messages. `progress` receives the fraction of the work that
    is done.
    """
    if messages < 1:
        raise ValueError(f"messages must be at least 1 (got {messages}); use 200 or more")
    known = _collect(training, clients, send, seed, "calibrate", messages)
    fresh = _collect(training, clients, send, seed, "attack", messages)
    attack = _Attack(training, expect, known, lambda share: progress(PREPARED * share))
    results = []
    for done, message in enumerate(fresh, start=1):
        results.append(attack(message))
        progress(PREPARED + (1 - PREPARED) * done / messages)
    return _summary(fresh, results)


def _collect(
    training: KnownTraining,
    clients: SimulatedClients,
    send: Callable[[Messages], Messages],
    seed: int,
    purpose: str,
    count: int,
) -> list[_Message]:
    """Messages with at least one click, from rounds that no run uses."""
    found: list[_Message] = []
    order = rng_for(seed, purpose, "who")
    learner, weights, correction = training.learner, training.start, training.correction
    for round in range(1000):
        chance = Chance(int(key_for(seed, purpose)), round)
        some = clients.rows(order.permutation(len(clients))[: 2 * count])
        updates = learner(weights, some, chance, correction).updates
        arrived = Messages(updates, some.interactions, some.ids, weights, round)
        sent = send(arrived)
        for c in range(len(some)):
            searches = replay(learner, weights, some, c, chance, correction)
            if not any(search.clicked.any() for search in searches):
                continue
            other = _clicks_again(training, some, c, searches, chance)
            found.append(_Message(sent.updates[c].copy(), searches, other, arrived.rows(slice(c, c + 1))))
            if len(found) == count:
                return found
    raise ValueError(
        f"only {len(found)} of {count} messages had a click after 1000 rounds; request fewer messages, "
        "or use a click model that clicks more"
    )


def _clicks_again(
    training: KnownTraining, clients: SimulatedClients, c: int, searches: Sequence[Search], chance: Chance
) -> list[Search] | None:
    """The same lists with clicks drawn again by the same click model; None without a click, or with the same update.

    Drawn once, not until they differ: both patterns are then equally likely to be the true one.
    """
    from fedrank.kernels.chance import earlier, stream
    from fedrank.kernels.show import FIRST_CLICK_DRAW, read_and_click

    key = np.uint64(stream(chance.key("clicks again"), clients.ids[c]))
    labels, offsets, other = clients.grades[clients.view[c]], clients.data.offsets, []
    for b, search in enumerate(searches):
        clicked = np.zeros_like(search.clicked)
        read_and_click(
            labels[offsets[search.query] : offsets[search.query + 1]], search.shown, len(clicked),
            clients.click[search.click_model], clients.stop[search.click_model], clients.attention[search.click_model],
            earlier(stream(key, b), FIRST_CLICK_DRAW), clicked,
        )  # fmt: skip
        other.append(search._replace(clicked=clicked))
    if not any(search.clicked.any() for search in other):
        return None
    true, drawn = (training.forward(each).update for each in (searches, other))
    return other if np.abs(drawn - true).max() > 1e-4 * np.abs(true).max() else None


class _Result(NamedTuple):
    """The answers for one message, and whether they were right."""

    factors: Vector  # coefficients of all shown documents, list by list
    said: Clicks
    chances: Vector  # the same from guessing
    guessed: Clicks
    clicked: Clicks  # the truth
    decoded: bool
    candidates: bool
    candidates_guess: bool
    matched: bool | None
    matched_guess: bool | None


class _Attack:
    """An attacker, calibrated on messages with known clicks."""

    def __init__(
        self,
        training: KnownTraining,
        expect: Callable[[Messages], Messages] | None,
        known: Sequence[_Message],
        progress: Callable[[float], None],
    ) -> None:
        self.weights, self.data = training.start.astype(np.float32).astype(np.float64), training.data
        self.training, self.expect = replace(training, start=self.weights), expect
        self.guess = _Guess(self.weights, self.data, known)
        self.power = max(POWERS, key=lambda power: sum(self._match(one, power) is True for one in known))
        factors = [self._factors(one, LITTLE) for one in known]
        truths = [_clicked(one) for one in known]
        self.threshold = _best_threshold(factors, truths, THRESHOLDS)
        # Sparse fits are slow, and choosing among three penalties needs little precision.
        few = known[: max(5, len(known) // 5)]
        wide: dict[float, list[Vector]] = {price: [] for price in PRICES}
        for done, one in enumerate(few, start=1):
            for price in PRICES:
                wide[price].append(self._from_candidates(one, price))
            progress(done / len(few))
        answers = [_among_candidates(one, self.data) for one in few]
        self.price = max(PRICES, key=lambda price: _right(wide[price], answers, THRESHOLDS))
        self.wide_threshold = _best_threshold(wide[self.price], answers, THRESHOLDS)

    def __call__(self, message: _Message) -> _Result:
        clicked = _clicked(message)
        factors = self._factors(message, LITTLE)
        said = factors > self.threshold
        cuts = np.cumsum([len(search.shown) for search in message.searches])[:-1]
        first = np.split(said, cuts)
        decoded = self._known(message).decode(message.sent, message.searches, first, self.power)
        truth = _among_candidates(message, self.data)
        wide = self._from_candidates(message, self.price) > self.wide_threshold
        chances, guessed = self.guess(message.searches)
        return _Result(
            factors / max(float(np.abs(factors).max()), 1e-12), said, chances, guessed, clicked,
            decoded=np.array_equal(np.concatenate(decoded), clicked),
            candidates=np.array_equal(wide, truth),
            candidates_guess=np.array_equal(self._guess_candidates(message), truth),
            matched=self._match(message, self.power),
            matched_guess=self._match_guess(message),
        )  # fmt: skip

    def _factors(self, message: _Message, price: float) -> Vector:
        documents = [features_of(self.data, search) for search in message.searches]
        return np.concatenate(self._regress(message, documents, price, 1))

    def _from_candidates(self, message: _Message, price: float) -> Vector:
        offsets = self.data.offsets
        documents = [
            self.data.features[offsets[search.query] : offsets[search.query + 1]].astype(np.float64)
            for search in message.searches
        ]
        return np.concatenate(self._regress(message, documents, price, PASSES))

    def _regress(self, message: _Message, documents: list[Vector], price: float, passes: int) -> list[Vector]:
        learner = self.training.learner
        clipped = bool(learner.clip_weights)
        return reconstruct(message.sent, self.weights, documents, learner.rate, clipped, price, passes)

    def _known(self, message: _Message) -> KnownTraining:
        """The training of the client that sent a message, with what the mechanism does apart from noise."""
        expect = self.expect
        if expect is None:
            return self.training

        def leaves(update: Vector) -> Vector:
            arrived = replace(message.arrived, updates=update[None].astype(np.float32))
            return np.asarray(expect(arrived).updates[0], dtype=np.float64)

        return replace(self.training, leaves=leaves)

    def _match(self, message: _Message, power: float) -> bool | None:
        if message.other is None:
            return None
        return self._known(message).match(message.sent, message.searches, message.other, power) > 0

    def _match_guess(self, message: _Message) -> bool | None:
        if message.other is None:
            return None
        chances, _ = self.guess(message.searches)
        chances = np.clip(chances, 1e-6, 1 - 1e-6)
        odds = np.log(chances / (1 - chances))
        other = np.concatenate([search.clicked for search in message.other])
        return float(odds @ (_clicked(message).astype(float) - other)) > 0

    def _guess_candidates(self, message: _Message) -> Clicks:
        """Guess that the ten best documents were shown in order, and guess their clicks."""
        ranked, parts = [], []
        for search in message.searches:
            scores = scores_of(self.weights.astype(np.float32), self.data, search.query)
            shown = np.argsort(-scores, kind="stable")[:SHOWN]
            ranked.append(search._replace(shown=shown, clicked=np.zeros(len(shown), np.bool_)))
        guessed = np.split(self.guess(ranked)[1], np.cumsum([len(search.shown) for search in ranked])[:-1])
        for search, own in zip(ranked, guessed, strict=True):
            parts.append(np.zeros(self.data.offsets[search.query + 1] - self.data.offsets[search.query], np.bool_))
            parts[-1][search.shown[own]] = True
        return np.concatenate(parts)


class _Guess:
    """A prediction of clicks from ranks, features and the model, without any message.

    Logistic regression on known messages; or the most frequent pattern by rank, if that was right more often.
    """

    def __init__(self, weights: Vector, data: RankingData, known: Sequence[_Message]) -> None:
        self.weights, self.data = weights, data
        documents = np.concatenate([features_of(data, search) for one in known for search in one.searches])
        self.mean, self.spread = documents.mean(axis=0), documents.std(axis=0) + 1e-9
        inputs = np.concatenate([self._inputs(search) for one in known for search in one.searches])
        truths = [_clicked(one) for one in known]
        self.fitted = _logistic(inputs, np.concatenate(truths).astype(np.float64), ridge=10.0)
        patterns: dict[bytes, int] = {}
        for one in known:
            for search in one.searches:
                whole = np.zeros(SHOWN, np.bool_)
                whole[: len(search.clicked)] = search.clicked
                patterns[whole.tobytes()] = patterns.get(whole.tobytes(), 0) + 1
        self.pattern = np.frombuffer(max(patterns, key=lambda each: patterns[each]), np.bool_)
        chances = [self._chances(one.searches) for one in known]
        self.threshold = _best_threshold(chances, truths, np.linspace(0.1, 0.9, 17))
        usual = sum(np.array_equal(self._usual(one.searches), true) for one, true in zip(known, truths, strict=True))
        self.by_pattern = usual > _right(chances, truths, [self.threshold])

    def __call__(self, searches: Sequence[Search]) -> tuple[Vector, Clicks]:
        """Probability of a click for every shown document, and the guess."""
        chances = self._chances(searches)
        return chances, self._usual(searches) if self.by_pattern else chances > self.threshold

    def _usual(self, searches: Sequence[Search]) -> Clicks:
        return np.concatenate([self.pattern[: len(search.shown)] for search in searches])

    def _chances(self, searches: Sequence[Search]) -> Vector:
        inputs = np.concatenate([self._inputs(search) for search in searches])
        chances: Vector = 1 / (1 + np.exp(-np.clip(inputs @ self.fitted, -30, 30)))
        return chances

    def _inputs(self, search: Search) -> Vector:
        """[shown, ...]: rank, score and features."""
        features = features_of(self.data, search)
        scores = features @ self.weights
        ranks = np.eye(SHOWN)[: len(features)]
        level = (scores - scores.mean()) / (scores.std() + 1e-9)
        return np.column_stack([ranks, level, (features - self.mean) / self.spread])


def _logistic(inputs: Vector, truth: Vector, ridge: float) -> Vector:
    """Coefficients of a ridge logistic regression, by Newton's method."""
    fitted = np.zeros(inputs.shape[1])
    for _ in range(12):
        chances = 1 / (1 + np.exp(-np.clip(inputs @ fitted, -30, 30)))
        slope = inputs.T @ (truth - chances) - ridge * fitted
        correction = (inputs * (chances * (1 - chances))[:, None]).T @ inputs + ridge * np.eye(len(fitted))
        fitted = fitted + np.linalg.solve(correction, slope)
    return fitted


def _clicked(message: _Message) -> Clicks:
    return np.concatenate([search.clicked for search in message.searches])


def _among_candidates(message: _Message, data: RankingData) -> Clicks:
    """Clicked or not, for all candidates of all queries of a message."""
    parts = []
    for search in message.searches:
        parts.append(np.zeros(data.offsets[search.query + 1] - data.offsets[search.query], np.bool_))
        parts[-1][search.shown[search.clicked]] = True
    return np.concatenate(parts)


def _right(values: Sequence[Vector], truths: Sequence[Clicks], thresholds: Sequence[float] | Vector) -> int:
    """Number of messages that are entirely right, at the best threshold."""
    return max(
        sum(np.array_equal(value > threshold, true) for value, true in zip(values, truths, strict=True))
        for threshold in thresholds
    )


def _best_threshold(values: Sequence[Vector], truths: Sequence[Clicks], thresholds: Sequence[float] | Vector) -> float:
    """The threshold with the most messages right; among equals, with the most documents right."""

    def worth(threshold: float) -> tuple[int, int]:
        documents = sum(int(((v > threshold) == t).sum()) for v, t in zip(values, truths, strict=True))
        return _right(values, truths, [threshold]), documents

    return float(max(thresholds, key=worth))


def _auc(values: Vector, truth: Clicks) -> float:
    """Area under the ROC curve: probability that a clicked document has a higher value than another."""
    from scipy.stats import rankdata

    ranks, hits = rankdata(values), int(truth.sum())
    misses = len(truth) - hits
    if not hits or not misses:
        return 0.5
    return float((ranks[truth].sum() - hits * (hits + 1) / 2) / (hits * misses))


def _summary(messages: Sequence[_Message], results: Sequence[_Result]) -> ClickAudit:
    truth, said, guessed = (
        np.concatenate([getattr(one, name) for one in results]) for name in ("clicked", "said", "guessed")
    )
    played = [one for one in results if one.matched is not None]
    n = len(results)
    return ClickAudit(
        messages=n,
        queries=len({search.query for one in messages for search in one.searches}),
        interactions=float(np.mean([len(one.searches) for one in messages])),
        read=Share(sum(np.array_equal(one.said, one.clicked) for one in results), n),
        read_guess=Share(sum(np.array_equal(one.guessed, one.clicked) for one in results), n),
        decoded=Share(sum(one.decoded for one in results), n),
        candidates=Share(sum(one.candidates for one in results), n),
        candidates_guess=Share(sum(one.candidates_guess for one in results), n),
        matched=Share(sum(bool(one.matched) for one in played), len(played)),
        matched_guess=Share(sum(bool(one.matched_guess) for one in played), len(played)),
        accuracy=float((truth == said).mean()),
        accuracy_guess=float((truth == guessed).mean()),
        auc=_auc(np.concatenate([one.factors for one in results]), truth),
        auc_guess=_auc(np.concatenate([one.chances for one in results]), truth),
    )
