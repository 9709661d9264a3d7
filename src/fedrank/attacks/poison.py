"""Model poisoning: what malicious clients send instead of their honest update.

Malicious clients collude, and know the honest updates of each other. With `knowledge = "partial"` that is all they
know; with `"full"` they know every client's update. The rows of honest clients are never changed. Where only malicious
clients participate, full knowledge falls back to their own updates.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.federated.aggregators import Mean
from fedrank.federated.robust import (
    Krum,
    Median,
    MultiKrum,
    RememberingAggregator,
    TrimmedMean,
    assumed_attackers,
)
from fedrank.ranking.click_models import CLICK_MODELS
from fedrank.ranking.rankers import Linear
from fedrank.types import Aggregator, Attack, Change, Messages, Ranker, Trait, Weights, has_trait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedrank.data.ranking import RankingData

Knowledge = Literal["full", "partial"]
Perturbation = Literal["unit", "sign", "std"]
Malicious = NDArray[np.bool_]  # [clients]
Rows = NDArray[np.float64]  # [clients, parameters]
Vector = NDArray[np.float64]  # [parameters]

HALVINGS = 20  # of Fang's step, after which the crafted update has practically no effect
FACTORS = 16  # that the adaptive attack tries, each smaller than the last by the square root of 2


@dataclass(frozen=True)
class PoisonedClicks:
    """Click on non-relevant documents and send what is learned from these clicks (data poisoning)."""

    click_model: str = "poison"  # click model of malicious clients; see `fedrank methods click-model`

    def __post_init__(self) -> None:
        if self.click_model not in CLICK_MODELS:
            raise ValueError(f"unknown click model {self.click_model!r}; `fedrank methods click-model` lists them")

    def __call__(self, messages: Messages, malicious: Malicious, rng: np.random.Generator) -> Messages:
        return messages


class _ReplacedUpdates(ABC):
    """Malicious clients send crafted updates; without any, messages stay unchanged."""

    def __call__(self, messages: Messages, malicious: Malicious, rng: np.random.Generator) -> Messages:
        if not malicious.any():
            return messages
        updates = messages.updates.copy()
        updates[malicious] = self._rows(messages, malicious, rng)
        return replace(messages, updates=updates)

    @abstractmethod
    def _rows(self, messages: Messages, malicious: Malicious, rng: np.random.Generator) -> Rows:
        """What malicious clients send: a row each, or one row for all."""


@dataclass(frozen=True)
class Lie(_ReplacedUpdates):
    """Shift the mean update by less than honest clients differ ("a little is enough", LIE; Baruch et al., 2019).

    One attacker alone sees no standard deviation, and with two of ten clients z is 0: with partial knowledge, an attack
    on ten clients needs at least three attackers.
    """

    knowledge: Knowledge = "partial"  # mean and deviation of the attackers' own updates (thesis), or of all clients
    z: float | None = None  # standard deviations to shift by; default: the most that the numbers of clients allow

    def __post_init__(self) -> None:
        _check_choice("knowledge", self.knowledge, Knowledge)

    def _rows(self, messages: Messages, malicious: Malicious, rng: np.random.Generator) -> Rows:
        known = _known(messages, malicious, self.knowledge)
        z = lie_z(len(malicious), int(malicious.sum())) if self.z is None else self.z
        return np.asarray(known.mean(axis=0) - z * known.std(axis=0))


def lie_z(clients: int, attackers: int) -> float:
    """How many standard deviations an update may deviate before it stands out; 0 or less where it always does.

    Where attackers have the majority, or are the only clients, the formula has no finite value; the fraction is then
    limited to half a client above 0 and below 1.

    >>> [round(lie_z(10, m), 2) for m in (2, 3, 4)]
    [0.0, 0.18, 0.43]
    """
    honest = clients - attackers
    supporters = clients // 2 + 1 - attackers  # honest clients that must be farther from the mean than the attackers
    share = (honest - supporters) / max(honest, 1)
    margin = 1 / (2 * clients)
    return NormalDist().inv_cdf(min(max(share, margin), 1 - margin))


@dataclass(frozen=True)
class Fang(_ReplacedUpdates):
    """Push the global model against its direction, as far as the aggregator allows (Fang et al., USENIX 2020).

    Against Krum and Multi-Krum: the longest step against the sign of the mean update that Krum still selects. Against
    the trimmed mean, the median and the mean: beyond the most extreme honest value of every parameter. With partial
    knowledge that value must be estimated: partial = "original" uses 3 to 4 standard deviations of the attackers' own
    updates beyond their mean, as in the paper; "thesis" uses their own most extreme value.
    """

    aggregator: Aggregator = field(default_factory=Mean)  # the aggregator under attack
    knowledge: Knowledge = "partial"  # known updates: the attackers' own, or those of all clients
    stretch: Literal["model", "update"] = "model"  # what is at most doubled: the most extreme weight, or update
    spread: float = 0.01  # against Krum: distance of the copies from the crafted update, relative to its norm
    partial: Literal["thesis", "original"] = "thesis"  # how partial knowledge estimates the most extreme honest value

    def __post_init__(self) -> None:
        _check_choice("knowledge", self.knowledge, Knowledge)
        if self.stretch not in ("model", "update"):
            raise ValueError(f'stretch must be "model" or "update" (got {self.stretch!r})')
        if self.partial not in ("thesis", "original"):
            raise ValueError(f'partial must be "thesis" or "original" (got {self.partial!r})')
        if not 0 <= self.spread < 1:
            raise ValueError(f"spread must be at least 0 and below 1 (got {self.spread})")
        self._is_against_krum()

    def _rows(self, messages: Messages, malicious: Malicious, rng: np.random.Generator) -> Rows:
        mean = _known(messages, malicious, self.knowledge).mean(axis=0)
        guessed = self.partial == "original" and (self.knowledge == "partial" or malicious.all())
        craft = self._short_of_krum if self._is_against_krum() else self._far_out if guessed else self._beyond
        return craft(messages, malicious, mean, rng)

    def _is_against_krum(self) -> bool:
        if isinstance(self.aggregator, (Krum, MultiKrum)):
            return True
        if isinstance(self.aggregator, (Mean, TrimmedMean, Median)):
            return False
        raise ValueError(
            f"Fang's attack has no formula against {type(self.aggregator).__name__}; use krum, multi-krum, "
            'trimmed-mean, median or mean, or the attack "min-max", which needs no aggregator'
        )

    def _beyond(self, messages: Messages, malicious: Malicious, mean: Vector, rng: np.random.Generator) -> Rows:
        """Between the most extreme honest value opposite to the model's direction, and twice or half of it."""
        start = messages.weights if self.stretch == "model" else np.zeros_like(messages.weights)
        models = messages.updates + start
        seen = models[_seen(malicious, self.knowledge)]
        up = mean < 0
        edge = np.where(up, seen.max(axis=0), seen.min(axis=0))
        end = np.where(up == (edge > 0), 2 * edge, edge / 2)  # doubled away from zero, halved towards zero
        drawn = edge + rng.random((int(malicious.sum()), len(edge))) * (end - edge)
        rows: Rows = drawn - (start if start.ndim == 1 else start[malicious])
        return rows

    def _far_out(self, messages: Messages, malicious: Malicious, mean: Vector, rng: np.random.Generator) -> Rows:
        """3 to 4 standard deviations beyond the mean, opposite to the model's direction (section 4.3).

        Normally distributed honest values are rarely that far out. One attacker alone sees no standard deviation.
        """
        own = _own(messages, malicious)
        side = np.where(mean < 0, own.std(axis=0), -own.std(axis=0))
        rows: Rows = mean + side * (3.0 + rng.random(own.shape))
        return rows

    def _short_of_krum(self, messages: Messages, malicious: Malicious, mean: Vector, rng: np.random.Generator) -> Rows:
        """The crafted update and its near copies.

        Partial knowledge runs Krum with the attackers' own honest updates in place of all others, and with the fewest
        copies that win.
        """
        rule = cast(Krum | MultiKrum, self.aggregator)
        power = 2 if rule.distance == "squared" else 1
        clients, attackers = len(malicious), int(malicious.sum())
        others = messages.updates[_seen(malicious, self.knowledge)].astype(np.float64)
        full = self.knowledge == "full" and attackers < clients
        if full:
            neighbours = max(clients - assumed_attackers(rule.attackers, clients) - 2, 1)
            copies = range(attackers, attackers + 1)
        else:
            neighbours = max(attackers - 2, 1)
            copies = range(1, attackers + 1, max(1, attackers // 10))  # skips some for hundreds of attackers

        direction = -np.sign(mean)
        away = kernels.chance.normals(rng, attackers, len(mean))
        away *= self.spread * kernels.sums.length(direction) / kernels.sums.lengths(away)[:, None]
        away[0] = 0.0
        crafted = direction + away
        rows = np.zeros_like(crafted)
        for count in copies:
            step = _longest_step(others, direction, neighbours, count, power)
            for _ in range(HALVINGS):
                rows = (step * crafted).astype(np.float32).astype(np.float64)  # as they are sent
                scores = _krum_scores(np.concatenate([rows[:count], others]), neighbours, power)
                best, rival = scores[:count].min(), scores[count:].min()
                # With partial knowledge a tie counts as a win: one attacker can achieve no more.
                if best < rival or (best == rival and not full):
                    return rows
                step /= 2
        return rows


def _longest_step(others: Rows, direction: Vector, neighbours: int, copies: int, power: int) -> float:
    """Upper bound on a step that wins against Krum (theorem 1), unless copies alone are enough neighbours."""
    long = kernels.sums.length(direction)
    if long == 0:
        return 0.0
    rival = _krum_scores(others, neighbours, power).min()
    farthest = kernels.sums.lengths(others).max()
    room = rival / max(neighbours - copies + 1, 1)
    return float((math.sqrt(room) if power == 2 else room) + farthest) / long


def _krum_scores(updates: Rows, neighbours: int, power: int) -> Vector:
    """Sum of the distances to the nearest others; Krum selects the smallest."""
    count = min(neighbours, len(updates) - 1)
    nearest = np.partition(_distances(updates), count, axis=1)[:, : count + 1]  # includes itself, at distance 0
    scores: Vector = (nearest**power).sum(axis=1)
    return scores


def _distances(updates: Rows) -> Rows:
    """[rows, rows]: Euclidean distances."""
    together = kernels.sums.products(updates, updates)
    squares = np.diagonal(together)
    distances: Rows = np.sqrt(np.maximum(squares[:, None] + squares - 2 * together, 0.0))
    np.fill_diagonal(distances, 0.0)
    return distances


@dataclass(frozen=True)
class SignFlip(_ReplacedUpdates):
    """Send the negative of the honest update."""

    scale: float = 1.0  # factor on the honest update

    def __post_init__(self) -> None:
        _check_scale(self.scale)

    def _rows(self, messages: Messages, malicious: Malicious, rng: np.random.Generator) -> Rows:
        return -self.scale * _own(messages, malicious)


@dataclass(frozen=True)
class Noise(_ReplacedUpdates):
    """Send Gaussian noise instead of the honest update."""

    scale: float = 1.0  # expected norm, relative to the median norm of the attackers' own updates

    def __post_init__(self) -> None:
        _check_scale(self.scale)

    def _rows(self, messages: Messages, malicious: Malicious, rng: np.random.Generator) -> Rows:
        own = _own(messages, malicious)
        return kernels.chance.normals(rng, *own.shape) * (self.scale * _length(own) / math.sqrt(own.shape[1]))


@dataclass(frozen=True)
class InnerProduct(_ReplacedUpdates):
    """Send the mean honest update, scaled and reversed (inner-product manipulation; Xie et al., UAI 2020).

    A small scale hides among updates near zero and targets Krum and the median. The mean is reversed only if
    the scale exceeds the number of honest clients per attacker.
    """

    scale: float = 0.1  # factor on the mean honest update
    knowledge: Knowledge = "partial"  # mean of the attackers' own updates, or of those of the honest clients

    def __post_init__(self) -> None:
        _check_scale(self.scale)
        _check_choice("knowledge", self.knowledge, Knowledge)

    def _rows(self, messages: Messages, malicious: Malicious, rng: np.random.Generator) -> Rows:
        honest = messages.updates[_seen(malicious, self.knowledge)].astype(np.float64)
        return np.asarray(-self.scale * honest.mean(axis=0))


@dataclass(frozen=True)
class _PushedMean(_ReplacedUpdates):
    """Send the mean of honest updates, perturbed in one direction as far as a bound allows."""

    perturbation: Perturbation = "unit"  # against the mean, against its signs, or by the standard deviations
    knowledge: Knowledge = "partial"  # known updates: the attackers' own, or those of the honest clients

    def __post_init__(self) -> None:
        _check_choice("perturbation", self.perturbation, Perturbation)
        _check_choice("knowledge", self.knowledge, Knowledge)

    def _rows(self, messages: Messages, malicious: Malicious, rng: np.random.Generator) -> Rows:
        honest = messages.updates[_seen(malicious, self.knowledge)].astype(np.float64)
        mean = honest.mean(axis=0)
        push = _push(honest, mean, self.perturbation)
        reach = self._reach(honest, mean, push)
        return np.asarray(mean if reach is None else mean + reach * push)

    @abstractmethod
    def _reach(self, honest: Rows, mean: Vector, push: Vector) -> float | None:
        """The factor of the perturbation; None: the perturbation is zero."""


@dataclass(frozen=True)
class MinMax(_PushedMean):
    """Perturb the mean within the largest distance between honest updates (Shejwalkar and Houmansadr, NDSS 2021).

    No distance to an honest update exceeds the largest one between two of them. The paper searches for the factor by
    bisection; here it is computed in closed form, so it does not depend on the norm of updates. One attacker with
    partial knowledge has no room.
    """

    def _reach(self, honest: Rows, mean: Vector, push: Vector) -> float | None:
        # The distance to update i is at most the largest while gamma² |push|² + 2 gamma push·(mean - i) <= room.
        room = _distances(honest).max() ** 2 - ((mean - honest) ** 2).sum(axis=1)
        slope = kernels.sums.products(mean - honest, push[None])[:, 0]
        steep = kernels.sums.inner(push, push)
        if steep == 0:
            return None
        gamma = ((np.sqrt(slope**2 + steep * np.maximum(room, 0.0)) - slope) / steep).min()
        reach: float = max(gamma, 0.0)
        return reach


@dataclass(frozen=True)
class MinSum(_PushedMean):
    """Perturb the mean within the squared distances of an honest update (Shejwalkar and Houmansadr, NDSS 2021).

    The sum of its squared distances to honest updates is at most that of an honest update. Harder to detect than
    min-max. The factor is computed in closed form, and one attacker with partial knowledge has no room.
    """

    def _reach(self, honest: Rows, mean: Vector, push: Vector) -> float | None:
        # Sums of squared distances are smallest at the mean, and grow by the number of updates times the squared
        # distance to it: the honest update nearest to the mean has the smallest, so the perturbation may be as long.
        nearest, long = kernels.sums.lengths(honest - mean).min(), kernels.sums.length(push)
        return nearest / long if long else 0.0


@dataclass(frozen=True)
class Adaptive(_ReplacedUpdates):
    """Send the perturbed mean that does most harm under a known rule (Shejwalkar and Houmansadr, NDSS 2021).

    This is their AGR-tailored attack. The paper searches for the longest perturbation that a rule still accepts. Rules
    that weight or trim updates have no such threshold, so here the attackers run the rule with several factors, and
    keep the one that moves the models of honest clients farthest against their mean update. They know the updates of
    all clients. Two things are guessed: the server's own update of `trust` is the mean of honest updates, and
    `reputation` has not excluded any client.
    """

    aggregator: Aggregator = field(default_factory=Mean)  # the aggregator under attack
    perturbation: Perturbation = "unit"  # against the mean, against its signs, or by the standard deviations
    largest: float = 10.0  # norm of the longest perturbation, relative to that of the mean honest update

    def __post_init__(self) -> None:
        _check_choice("perturbation", self.perturbation, Perturbation)
        if not 0 < self.largest < math.inf:
            raise ValueError(f"largest must be finite and above 0 (got {self.largest})")

    def _rows(self, messages: Messages, malicious: Malicious, rng: np.random.Generator) -> Rows:
        honest = _seen(malicious, "full")
        known = messages.updates[honest].astype(np.float64)
        mean = known.mean(axis=0)
        push = _push(known, mean, self.perturbation)
        long = kernels.sums.length(push)
        if long == 0:
            return np.asarray(mean)
        push *= kernels.sums.length(mean) / long

        def harm(row: Vector) -> float:
            updates = messages.updates.copy()
            updates[malicious] = row
            change = self._change(replace(messages, updates=updates, root=mean.astype(np.float32)))
            return -float(kernels.sums.inner(change if change.ndim == 1 else change[honest].mean(axis=0), mean))

        roots = 1.0, math.sqrt(0.5)
        rows: list[Rows] = [
            mean + self.largest * 0.5 ** (step // 2) * roots[step % 2] * push for step in range(FACTORS)
        ]
        return max(rows, key=harm)

    def _change(self, messages: Messages) -> Change:
        """The result of the rule for these messages."""
        if not has_trait(self.aggregator, "remembers"):
            return self.aggregator(messages)
        rule = cast(RememberingAggregator, self.aggregator)
        clients, parameters = messages.updates.shape
        weights = messages.weights if messages.weights.ndim == 1 else messages.weights.mean(axis=0)
        return rule(replace(messages, ids=np.arange(clients), weights=weights), rule.first(clients, parameters))[0]


@dataclass(frozen=True)
class Promote(_ReplacedUpdates):
    """Promote documents with high values of given features, such as features that a spammer controls.

    `promotion` measures its success. For a neural ranker the update follows its current output weights; if these are
    all zero, the update is zero.
    """

    features: tuple[int, ...] = (1,)  # feature numbers from 1, as in LETOR files
    scale: float = 1.0  # norm, relative to the median norm of the attackers' own updates
    ranker: Ranker = field(default_factory=Linear)  # the trained ranker, which defines the parameters of a feature

    traits: ClassVar[frozenset[Trait]] = frozenset({"whole model"})

    def __post_init__(self) -> None:
        _check_scale(self.scale)
        _check_features(self.features)

    def _rows(self, messages: Messages, malicious: Malicious, rng: np.random.Generator) -> Rows:
        own = _own(messages, malicious)
        rows = self._direction(
            np.atleast_2d(messages.weights if messages.weights.ndim == 1 else messages.weights[malicious])
        )
        long = kernels.sums.lengths(rows)[:, None]
        rows *= self.scale * _length(own) / np.where(long > 0, long, 1.0)
        return rows

    def _direction(self, weights: Weights) -> Rows:
        """[models, parameters]: the direction, of any norm."""
        parameters, units = weights.shape[1], max(abs(self.ranker.hidden), 1)
        features = parameters if self.ranker.hidden == 0 else parameters // units - 2
        if features < 1 or self.ranker.size(features) != parameters:
            raise ValueError(
                f"the model has {parameters} parameters, which does not fit {type(self.ranker).__name__} with {units} "
                "units; give the attack the ranker of the learner"
            )
        _check_features(self.features, features)
        rows = np.zeros_like(weights)
        outputs = 1.0 if self.ranker.hidden == 0 else weights[:, -units:]
        for number in self.features:
            rows[:, (number - 1) * units : number * units] = outputs
        return rows


def promotion(
    weights: Weights, ranker: Ranker, data: RankingData, features: Sequence[int], top: int = 10, share: float = 0.05
) -> float:
    """The mean fraction of target documents that reach the top; compare it with that of a model without attack.

    Targets are the `share` of a query's documents, at least one, with the highest mean of these features (numbers from
    1). Queries with at most `top` documents, or with the same value for all documents, are left out. NaN if no query
    remains.
    """
    from fedrank.ranking.measures import ranking

    _check_features(features, data.features.shape[1])
    if top < 1 or not 0 < share <= 1:
        raise ValueError(
            f"top must be at least 1 and share above 0 and at most 1 (got top = {top} and share = {share})"
        )
    marks = data.features[:, np.array(features) - 1].astype(np.float64).mean(axis=1).astype(np.float32)
    targets = ranking(marks, data.offsets)
    shown = ranking(ranker.score(weights, data.features), data.offsets)
    reached = []
    for begin, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        if end - begin > top and marks[begin:end].min() < marks[begin:end].max():
            count = max(1, int(np.floor(share * (end - begin) + 0.5)))
            reached.append(np.isin(targets[begin : begin + count], shown[begin : begin + top]).mean())
    return float(np.mean(reached)) if reached else math.nan


@dataclass(frozen=True)
class Opposite(_ReplacedUpdates):
    """Send a model in the opposite direction, so unlearning of its sender is measurable (thesis, chapter 6)."""

    scale: float = 2.0  # the model sent is -scale x the local model

    def __post_init__(self) -> None:
        _check_scale(self.scale)

    def _rows(self, messages: Messages, malicious: Malicious, rng: np.random.Generator) -> Rows:
        start = messages.weights if messages.weights.ndim == 1 else messages.weights[malicious]
        return -self.scale * (start + _own(messages, malicious)) - start


ATTACKS: dict[str, type[Attack]] = {
    "poisoned-clicks": PoisonedClicks,
    "lie": Lie,
    "fang": Fang,
    "sign-flip": SignFlip,
    "noise": Noise,
    "inner-product": InnerProduct,
    "min-max": MinMax,
    "min-sum": MinSum,
    "adaptive": Adaptive,
    "promote": Promote,
    "opposite": Opposite,
}


def _own(messages: Messages, malicious: Malicious) -> Rows:
    """The honest updates of the attackers."""
    return messages.updates[malicious].astype(np.float64)


def _known(messages: Messages, malicious: Malicious, knowledge: Knowledge) -> Rows:
    """Honest updates that the attackers know, including their own."""
    return messages.updates.astype(np.float64) if knowledge == "full" else _own(messages, malicious)


def _seen(malicious: Malicious, knowledge: Knowledge) -> Malicious:
    """Clients that the attackers treat as honest: the honest ones with full knowledge, themselves otherwise."""
    return ~malicious if knowledge == "full" and not malicious.all() else malicious


def _push(honest: Rows, mean: Vector, perturbation: Perturbation) -> Vector:
    """The direction of the perturbation, opposite to the honest updates; its norm does not matter."""
    if perturbation == "std":
        return -np.asarray(honest.std(axis=0))
    return -np.sign(mean) if perturbation == "sign" else -mean


def _length(own: Rows) -> float:
    return float(np.median(kernels.sums.lengths(own)))


def _check_choice(name: str, value: str, choices: Any) -> None:
    if value not in choices.__args__:
        listed = " or ".join(f'"{choice}"' for choice in choices.__args__)
        raise ValueError(f"{name} must be {listed} (got {value!r})")


def _check_scale(scale: float) -> None:
    if not 0 < scale < math.inf:
        raise ValueError(f"scale must be finite and above 0 (got {scale})")


def _check_features(features: Sequence[int], count: int | None = None) -> None:
    if not features:
        raise ValueError("features must not be empty; list feature numbers, from 1")
    wrong = [number for number in features if number < 1 or (count is not None and number > count)]
    if wrong:
        last = "" if count is None else f" to {count}"
        raise ValueError(f"features must be numbers from 1{last} (got {wrong[0]})")
