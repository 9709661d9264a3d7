"""Reading clicks out of one message: what a server learns from a single client's update of PDGD.

With a linear ranker an update is a sum of the features of shown documents. Clicked ones come with a positive factor,
passed-over ones with a negative one, and their sum is 0 in every list; clipped weights add a multiple of the model that
everybody started from. Whoever knows the features can solve for the factors.

Nothing here is needed to train: the attacks exist to check what mechanisms promise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.ranking import RankingData
from fedrank.ranking.impressions import SimulatedImpressions
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.loops import as_sent
from fedrank.seeds import Chance, key_for, rng_for
from fedrank.types import (
    NO_CORRECTION,
    Impression,
    Judged,
    LocalCorrection,
    Logged,
    Messages,
    OwnChance,
    SimulatedClients,
    Weights,
)

Vector = NDArray[np.float64]
Clicks = NDArray[np.bool_]

SHOWN = 10
POWERS = (0.5, 1.0, 0.0, 2.0)  # of a residual's size; 0 stands for its logarithm
# A document whose factor is larger than such a threshold was clicked.
THRESHOLDS = (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.06, 0.1, 0.15)
PRICES = (0.03, 0.3, 1.0)  # of a factor's size next to that of a residual, where only candidates are known
LITTLE = 1e-5  # the same where the shown are known: chooses among factors that explain a message equally well
PASSES = 3  # of reweighted L1: what came out small is made dearer
SWEEPS = 6  # over all lists of a message, at most
PREPARED = 0.25  # share of the time of an attack that its preparation takes, about


class Search(NamedTuple):
    """One interaction, as only the client knows it."""

    query: int
    click_model: int  # row of the click tables
    shown: NDArray[np.int64]  # [10 or fewer]: documents, counted within the query, from the top
    clicked: Clicks  # [10 or fewer]


class LocalSteps(NamedTuple):
    """What a client's local steps did."""

    update: Vector  # [parameters]
    before: list[NDArray[np.float32]]  # the model before every step
    kept: list[float]  # what clipping the weights left of each step in the end


def replay(
    learner: Pdgd,
    start: Weights,
    clients: SimulatedClients,
    c: int,
    chance: Chance,
    correction: LocalCorrection = NO_CORRECTION,
) -> list[Search]:
    """What client c searched for, was shown and clicked in a round: the compiled loop once more, slowly."""
    if clients.own_click_models:
        raise ValueError("the click audit needs the probabilities of a click model; use a built-in one or a ClickModel")
    one = clients.rows(slice(c, c + 1))
    source = _Noted(SimulatedImpressions(one, OwnChance(chance, int(one.ids[0])), learner))
    learner.from_impressions(
        as_sent(start if start.ndim == 1 else start[c])[0], source, source.simulated.own, correction
    )
    return source.searches


class _Noted:
    """Impressions of a simulated client that are noted as they are shown."""

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


def forward(
    learner: Pdgd,
    start: Weights,
    data: RankingData,
    searches: Sequence[Search],
    correction: LocalCorrection = NO_CORRECTION,
) -> LocalSteps:
    """The local steps that given lists and clicks lead to. Nothing in them is random."""
    if learner.ranker.hidden:
        raise ValueError("clicks are read from updates of a linear ranker only; use ranker = linear")
    if correction.drifts is not None or correction.personal is not None:
        raise ValueError("clicks are read from updates that nothing of a client's own bends; use no such local method")
    pdgd, steps, display = kernels.pdgd, learner.steps, learner.display
    weights = start.astype(np.float32)
    first, master = weights.copy(), weights.astype(np.float64)
    gradient, pull = np.empty(len(master) if learner.clip_gradients else 0), learner.rate * correction.pull
    before: list[NDArray[np.float32]] = []
    factors: list[float] = []  # what clipping of the weights left of the model, step by step

    def clip() -> None:
        factors[-1] = min(1.0, learner.clip_weights / max(float(np.linalg.norm(master)), 1e-300))
        pdgd.shorten(master, float(learner.clip_weights))

    for search in searches:
        before.append(weights.copy())
        one = Impression(_documents(data, search.query), _scores(weights, data, search.query), *search[2:])
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


def _documents(data: RankingData, query: int) -> NDArray[np.float32]:
    return data.features[data.offsets[query] : data.offsets[query + 1]]


def _scores(weights: NDArray[np.float32], data: RankingData, query: int) -> NDArray[np.float32]:
    """Scores of a query's candidates."""
    features = _documents(data, query)
    scores = np.empty(len(features), np.float32)
    kernels.rankers.score(weights, 0, features, 0, len(features), scores)
    return scores


def _grades(clients: SimulatedClients, c: int, query: int) -> NDArray[np.int8]:
    data = clients.data
    own: NDArray[np.int8] = clients.grades[clients.view[c]][data.offsets[query] : data.offsets[query + 1]]
    return own


def _features(data: RankingData, search: Search) -> Vector:
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
    """For every list of [documents, features] a factor per document: positive where it was clicked.

    Robust regression: the smallest sum of absolute residuals, so that coordinates with much noise do not count more
    than others, and factors of a list add up to 0. `documents` are those shown; or all candidates, and then a higher
    `price` on the size of factors and more `passes` look for few that suffice. `clipped`: weights were clipped, so a
    multiple of `weights` is in the message too.
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
    """Factors with the smallest sum of |target - columns x factors| + costs x |factors|, 0 in sum over every list.

    `free` is one more column, whose factor costs nothing.
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


def decode(
    message: NDArray[np.floating],
    learner: Pdgd,
    start: Weights,
    data: RankingData,
    lists: Sequence[Search],
    first: Sequence[Clicks],
    leaves: Callable[[Vector], Vector],
    power: float,
    correction: LocalCorrection = NO_CORRECTION,
) -> list[Clicks]:
    """The clicks that explain a message best, looked for from a `first` guess.

    The step that follows from given clicks is known exactly, so all 1,024 click patterns of a list can be tried: that
    uses more than the signs of a regression. One list after the other is tried until nothing fits better; if much is
    left unexplained, once more from where regression settles the lists one by one. `leaves` is what a mechanism makes
    of an update, apart from noise.
    """
    guess = [search._replace(clicked=np.array(clicked)) for search, clicked in zip(lists, first, strict=True)]
    target = np.asarray(message, dtype=np.float64)

    def cost(searches: Sequence[Search]) -> float:
        expected = leaves(forward(learner, start, data, searches, correction).update)
        return float(misfit(target - expected, power, np.abs(expected).max()))

    def improve(guess: list[Search]) -> tuple[float, list[Search]]:
        best = cost(guess)
        for _ in range(SWEEPS):
            before = best
            for b, search in enumerate(guess):
                path = forward(learner, start, data, guess, correction)
                expected = leaves(path.update)
                patterns, _, gradients = _patterns(learner, path.before[b], data, search, learner.clip_gradients)
                now = gradients[_number_of(search.clicked)]
                moved = _scale(path.update, expected) * learner.rate * path.kept[b] * (gradients - now)
                costs = misfit(target - expected - moved, power, np.abs(expected).max())
                for pattern in np.argsort(costs)[:3]:  # later lists feel a step a little: the exact cost decides
                    trial = [*guess[:b], search._replace(clicked=patterns[pattern]), *guess[b + 1 :]]
                    exact = cost(trial)
                    if exact < best:
                        best, guess = exact, trial
            if best == before:
                break
        return best, guess

    best, guess = improve(guess)
    expected = leaves(forward(learner, start, data, guess, correction).update)
    explained = np.median(np.abs(target - expected)) <= 1e-5 * np.abs(expected).max()
    if len(guess) > 1 and not explained:
        again, settled = improve(_settle(target, learner, start, data, guess, leaves, correction))
        guess = settled if again < best else guess
    return [search.clicked for search in guess]


def _settle(
    target: Vector,
    learner: Pdgd,
    start: Weights,
    data: RankingData,
    guess: Sequence[Search],
    leaves: Callable[[Vector], Vector],
    correction: LocalCorrection,
) -> list[Search]:
    """Regression again and again, each time without the list whose factors came out most like those of a pattern."""
    guess = list(guess)
    open_lists = list(range(len(guess)))
    while open_lists:
        path = forward(learner, start, data, guess, correction)
        scale = _scale(path.update, leaves(path.update)) * learner.rate
        rest, tables = target, {}
        for b, search in enumerate(guess):
            patterns, factors, gradients = _patterns(learner, path.before[b], data, search, learner.clip_gradients)
            if b in open_lists:
                tables[b] = patterns, factors * path.kept[b]
            else:
                rest = rest - scale * path.kept[b] * gradients[_number_of(search.clicked)]
        documents = [_features(data, guess[b]) for b in open_lists]
        found = reconstruct(rest, start, documents, scale, bool(learner.clip_weights))
        likeness = []
        for b, own in zip(open_lists, found, strict=True):
            away = np.abs(tables[b][1] - own).sum(axis=1)
            nearest = int(np.argmin(away))
            guess[b] = guess[b]._replace(clicked=tables[b][0][nearest])
            likeness.append(away[nearest] / (np.abs(own).sum() + 1e-3))
        open_lists.pop(int(np.argmin(likeness)))
    return guess


def _scale(update: Vector, expected: Vector) -> float:
    """How much of an update leaves the client: mechanisms shorten it."""
    length = float(update @ update)
    return max(float(expected @ update) / length, 1e-12) if length else 1.0


def match(
    message: NDArray[np.floating],
    one: Sequence[Search],
    other: Sequence[Search],
    learner: Pdgd,
    start: Weights,
    data: RankingData,
    leaves: Callable[[Vector], Vector],
    power: float,
    correction: LocalCorrection = NO_CORRECTION,
) -> float:
    """The matching game: how much better the first of two click patterns explains a message than the second.

    Positive: the first is the likelier. `leaves` is what a mechanism makes of an update, apart from noise.
    """
    first, second = (leaves(forward(learner, start, data, searches, correction).update) for searches in (one, other))
    size = max(float(np.abs(first).max()), float(np.abs(second).max()))
    target = np.asarray(message, dtype=np.float64)
    return float(misfit(target - second, power, size) - misfit(target - first, power, size))


def misfit(residuals: Vector, power: float, size: float) -> Vector:
    """Sum of |residual|^power over the last axis. Power 2 suits Gaussian noise, 0 noise that is mostly almost 0.

    0 stands for the logarithm, and `size`, that of the update, says where rounding makes an end of it.
    """
    sizes = np.abs(residuals) + 1e-7 * size + 1e-300
    total: Vector = (np.log(sizes) if power == 0 else sizes**power).sum(axis=-1)
    return total


def _patterns(
    learner: Pdgd, weights: NDArray[np.float32], data: RankingData, search: Search, clip: float
) -> tuple[Clicks, Vector, Vector]:
    """All click patterns of a list [2^shown, shown], with factors of documents and gradients [2^shown, features]."""
    scores, size = _scores(weights, data, search.query), len(search.shown)
    count, rates, display = len(scores), np.empty(len(scores)), kernels.records.Display(*learner.display)
    spread = kernels.show.rates(scores, count, display.temperature, np.empty(count), rates)
    pairs = np.empty((size, size))  # how much a pair of positions weighs, whichever of the two was clicked
    for i in range(size):
        page, scales = kernels.records.Page(scores, rates, search.shown, np.arange(size) == i), np.empty(size)
        kernels.pdgd.pair_weights(page, spread, count, size, size, display, scales)
        pairs[i] = -scales / display.temperature
        pairs[i, i] = 0.0
    patterns, clicked, considered = _patterns_of(size)
    factors = clicked * (considered @ pairs) - considered * (clicked @ pairs)
    gradients = factors @ _features(data, search)
    if clip:
        left = np.minimum(1.0, clip / np.maximum(np.linalg.norm(gradients, axis=1), 1e-300))[:, None]
        factors, gradients = factors * left, gradients * left
    return patterns, factors, gradients


@cache
def _patterns_of(size: int) -> tuple[Clicks, Vector, Vector]:
    """All click patterns of so many positions, as yes or no and as numbers, and which positions each considers."""
    patterns = (np.arange(2**size)[:, None] >> np.arange(size)) & 1 == 1
    last = np.where(patterns.any(axis=1), size - 1 - np.argmax(patterns[:, ::-1], axis=1), -2)
    considered = (np.arange(size) <= last[:, None] + 1).astype(np.float64)
    return patterns, patterns.astype(np.float64), considered


def _number_of(clicked: Clicks) -> int:
    """Which of all patterns this one is."""
    return int(clicked @ (1 << np.arange(len(clicked))))


@dataclass(frozen=True)
class Share:
    """How often something was right."""

    right: int
    of: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Clopper-Pearson: shares that are not ruled out by this count."""
        from scipy.stats import beta

        tail = (1 - level) / 2
        low = float(beta.ppf(tail, self.right, self.of - self.right + 1)) if self.right else 0.0
        high = float(beta.ppf(1 - tail, self.right + 1, self.of - self.right)) if self.right < self.of else 1.0
        return low, high

    def __str__(self) -> str:
        low, high = self.interval()
        return f"{self.right} of {self.of} ({low:.2f} to {high:.2f})"


@dataclass(frozen=True)
class ClickAudit:
    """What single messages gave away about clicks, next to what anybody could have guessed without them.

    A message counts as read when every click in it, and nothing else, was named. `guess` is the same without the
    message: from ranks, features and scores, learned from other messages.
    """

    messages: int  # with at least one click each
    queries: int  # different ones among them
    interactions: float  # mean, behind a message
    read: Share  # by regression, from the ten shown
    read_guess: Share
    decoded: Share  # by trying all click patterns, from the ten shown
    candidates: Share  # by sparse regression, from all candidates of a query
    candidates_guess: Share
    matched: Share  # the matching game, of messages whose clicks, drawn again, came out otherwise; 1/2 is chance
    matched_guess: Share
    accuracy: float  # share of shown documents for which regression says rightly whether they were clicked
    accuracy_guess: float
    auc: float  # how well regression orders clicked documents before others, 0.5 to 1
    auc_guess: float


class _Message(NamedTuple):
    """A message, and the truth behind it."""

    sent: NDArray[np.float32]
    searches: list[Search]
    other: list[Search] | None  # the same lists with clicks drawn once more; None where they came out alike
    arrived: Messages  # its row before it was sent


def click_audit(
    learner: Pdgd,
    weights: Weights,
    clients: SimulatedClients,
    send: Callable[[Messages], Messages],
    seed: int,
    messages: int = 200,
    progress: Callable[[float], None] = lambda share: None,
    expect: Callable[[Messages], Messages] | None = None,
    correction: LocalCorrection = NO_CORRECTION,
) -> ClickAudit:
    """Attack messages that clients would send from the model `weights`; `send` is what a mechanism does to them.

    The attacker knows the model, the queries, features, settings and the law of the noise; not the clicks. `expect` is
    `send` without its noise (shortening, weighing), for the attacks that compare whole updates; without it, nothing.
    `correction` is how a local method changes everybody's steps. All thresholds come from as many other messages.
    `progress` is told which share of the work is done.
    """
    if messages < 1:
        raise ValueError(f"messages = {messages}: nothing to read; use 200 or more")
    known = _collect(learner, weights, clients, send, seed, "calibrate", messages, correction)
    fresh = _collect(learner, weights, clients, send, seed, "attack", messages, correction)
    attack = _Attack(
        learner, weights, clients.data, expect, known, correction, lambda share: progress(PREPARED * share)
    )
    results = []
    for done, message in enumerate(fresh, start=1):
        results.append(attack(message))
        progress(PREPARED + (1 - PREPARED) * done / messages)
    return _summary(fresh, results)


def _collect(
    learner: Pdgd,
    weights: Weights,
    clients: SimulatedClients,
    send: Callable[[Messages], Messages],
    seed: int,
    purpose: str,
    count: int,
    correction: LocalCorrection = NO_CORRECTION,
) -> list[_Message]:
    """Messages with at least one click, from rounds that no run uses."""
    found: list[_Message] = []
    order = rng_for(seed, purpose, "who")
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
            row = arrived.rows(slice(c, c + 1))
            other = _clicks_again(learner, weights, some, c, searches, chance, correction)
            found.append(_Message(sent.updates[c].copy(), searches, other, row))
            if len(found) == count:
                return found
    raise ValueError(
        f"only {len(found)} of {count} messages had a click in them after 1000 rounds; ask for fewer messages, "
        "or use a user who clicks more"
    )


def _clicks_again(
    learner: Pdgd,
    weights: Weights,
    clients: SimulatedClients,
    c: int,
    searches: Sequence[Search],
    chance: Chance,
    correction: LocalCorrection,
) -> list[Search] | None:
    """The same lists, clicked by the same user another time; None without a click, or with the same update.

    Drawn once, not until it differs: the two are then equally likely to be the true one, whatever they look like.
    """
    from fedrank.kernels.chance import earlier, stream
    from fedrank.kernels.show import FIRST_CLICK_DRAW, read_and_click

    key = np.uint64(stream(chance.key("clicks again"), clients.ids[c]))
    other = []
    for b, search in enumerate(searches):
        clicked = np.zeros_like(search.clicked)
        read_and_click(
            _grades(clients, c, search.query), search.shown, len(clicked),
            clients.click[search.click_model], clients.stop[search.click_model], clients.attention[search.click_model],
            earlier(stream(key, b), FIRST_CLICK_DRAW), clicked,
        )  # fmt: skip
        other.append(search._replace(clicked=clicked))
    if not any(search.clicked.any() for search in other):
        return None
    true, drawn = (forward(learner, weights, clients.data, each, correction).update for each in (searches, other))
    return other if np.abs(drawn - true).max() > 1e-4 * np.abs(true).max() else None


class _Result(NamedTuple):
    """What was said about one message, and whether it was right."""

    factors: Vector  # of all shown documents, one list after the other
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
    """Everything an attacker prepares on messages whose clicks it knows."""

    def __init__(
        self,
        learner: Pdgd,
        weights: Weights,
        data: RankingData,
        expect: Callable[[Messages], Messages] | None,
        known: Sequence[_Message],
        correction: LocalCorrection,
        progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        self.learner, self.data, self.expect, self.correction = learner, data, expect, correction
        self.weights = weights.astype(np.float32).astype(np.float64)
        self.guess = _Guess(self.weights, data, known)
        self.power = max(POWERS, key=lambda power: sum(self._match(one, power) is True for one in known))
        factors = [self._factors(one, LITTLE) for one in known]
        truths = [_clicked(one) for one in known]
        self.threshold = _best_threshold(factors, truths, THRESHOLDS)
        # Sparse fits take long, and three prices need no great precision.
        few = known[: max(5, len(known) // 5)]
        wide: dict[float, list[Vector]] = {price: [] for price in PRICES}
        for done, one in enumerate(few, start=1):
            for price in PRICES:
                wide[price].append(self._from_candidates(one, price))
            progress(done / len(few))
        answers = [_among_candidates(one, data) for one in few]
        self.price = max(PRICES, key=lambda price: _right(wide[price], answers, THRESHOLDS))
        self.wide_threshold = _best_threshold(wide[self.price], answers, THRESHOLDS)

    def __call__(self, message: _Message) -> _Result:
        clicked = _clicked(message)
        factors = self._factors(message, LITTLE)
        said = factors > self.threshold
        cuts = np.cumsum([len(search.shown) for search in message.searches])[:-1]
        first = np.split(said, cuts)
        leaves = self._leaves(message)
        mine = (self.learner, self.weights, self.data)
        decoded = decode(message.sent, *mine, message.searches, first, leaves, self.power, self.correction)
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
        documents = [_features(self.data, search) for search in message.searches]
        return np.concatenate(self._regress(message, documents, price, 1))

    def _from_candidates(self, message: _Message, price: float) -> Vector:
        offsets = self.data.offsets
        documents = [
            self.data.features[offsets[search.query] : offsets[search.query + 1]].astype(np.float64)
            for search in message.searches
        ]
        return np.concatenate(self._regress(message, documents, price, PASSES))

    def _regress(self, message: _Message, documents: list[Vector], price: float, passes: int) -> list[Vector]:
        clipped = bool(self.learner.clip_weights)
        return reconstruct(message.sent, self.weights, documents, self.learner.rate, clipped, price, passes)

    def _leaves(self, message: _Message) -> Callable[[Vector], Vector]:
        expect = self.expect
        if expect is None:
            return lambda update: update
        return lambda update: (
            expect(replace(message.arrived, updates=update[None].astype(np.float32))).updates[0].astype(np.float64)
        )

    def _match(self, message: _Message, power: float) -> bool | None:
        if message.other is None:
            return None
        leaves = self._leaves(message)
        mine = (self.learner, self.weights, self.data, leaves, power, self.correction)
        return match(message.sent, message.searches, message.other, *mine) > 0

    def _match_guess(self, message: _Message) -> bool | None:
        if message.other is None:
            return None
        chances, _ = self.guess(message.searches)
        chances = np.clip(chances, 1e-6, 1 - 1e-6)
        odds = np.log(chances / (1 - chances))
        other = np.concatenate([search.clicked for search in message.other])
        return float(odds @ (_clicked(message).astype(float) - other)) > 0

    def _guess_candidates(self, message: _Message) -> Clicks:
        """Guess that the best ten were shown in order, and guess their clicks."""
        ranked, parts = [], []
        for search in message.searches:
            scores = _scores(self.weights.astype(np.float32), self.data, search.query)
            shown = np.argsort(-scores, kind="stable")[:SHOWN]
            ranked.append(search._replace(shown=shown, clicked=np.zeros(len(shown), np.bool_)))
        guessed = np.split(self.guess(ranked)[1], np.cumsum([len(search.shown) for search in ranked])[:-1])
        for search, own in zip(ranked, guessed, strict=True):
            parts.append(np.zeros(self.data.offsets[search.query + 1] - self.data.offsets[search.query], np.bool_))
            parts[-1][search.shown[own]] = True
        return np.concatenate(parts)


class _Guess:
    """What clicks look like to somebody who knows ranks, features and the model, but sees no message.

    Logistic regression on known messages; or the most frequent pattern by rank, if that was right more often.
    """

    def __init__(self, weights: Vector, data: RankingData, known: Sequence[_Message]) -> None:
        self.weights, self.data = weights, data
        documents = np.concatenate([_features(data, search) for one in known for search in one.searches])
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
        """Chance of a click for every shown document, and the guess."""
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
        features = _features(self.data, search)
        scores = features @ self.weights
        ranks = np.eye(SHOWN)[: len(features)]
        level = (scores - scores.mean()) / (scores.std() + 1e-9)
        return np.column_stack([ranks, level, (features - self.mean) / self.spread])


def _logistic(inputs: Vector, truth: Vector, ridge: float) -> Vector:
    """Coefficients of a logistic regression, by Newton's method."""
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
    """Messages of which everything is right, at the best threshold."""
    return max(
        sum(np.array_equal(value > threshold, true) for value, true in zip(values, truths, strict=True))
        for threshold in thresholds
    )


def _best_threshold(values: Sequence[Vector], truths: Sequence[Clicks], thresholds: Sequence[float] | Vector) -> float:
    """The threshold with most messages right; among equals the one with most documents right."""

    def worth(threshold: float) -> tuple[int, int]:
        documents = sum(int(((v > threshold) == t).sum()) for v, t in zip(values, truths, strict=True))
        return _right(values, truths, [threshold]), documents

    return float(max(thresholds, key=worth))


def _auc(values: Vector, truth: Clicks) -> float:
    """Chance that a clicked document has a higher value than another."""
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
