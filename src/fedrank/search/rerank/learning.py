"""What the caller's own signals are worth, fitted to pairs of a used and an unused passage that were shown together.

First one scale is fitted for the score of the start, with what memory added as an offset; then the weights of the
signals. Both are logistic regressions. Of each signal only the part counts that rank, BM25 and centroid do not explain
over whole lists: passages are shown because these are high, so within what was shown a signal that repeats one of them
looks harmful. The weights of rank, BM25 and centroid relative to each other are not fitted: fitted to feedback, they
were worse on new queries (`benchmarks/rerank.py`). There are no online steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrank.search.rerank.passages import OWN, START, Table

SCALES = (0.2, 2.0)
LARGEST = 1.0  # weight of a signal relative to that of the caller's rank
REMEMBERED = 2.0  # pairs that memory separates by more teach nothing about signals
PENALTY = 3.0  # on the squares of the weights of signals
FOLDS = 5
SIGNIFICANT = 2.0  # standard errors of the evidence from other queries that fitted weights need
OUTDATED = -1.0  # standard errors; weights in use that predict feedback that much worse are withdrawn
FIRST_REFIT = 50  # requests with feedback; then at 100, 200, 400, ...
MAX_FITTED = 5_000  # of the latest requests
_STEPS = 30


@dataclass(frozen=True, eq=False)
class Example:
    """One request with feedback."""

    features: Table  # [passages, features], columns as in `names` of the fit
    memory: Table  # [passages]
    used: NDArray[np.int64]
    unused: NDArray[np.int64]  # shown and not used
    weight: float  # 1/k for the k-th request with the same query
    query: int  # number of the query; the same for queries with the same rarest word


def is_due(feedbacks: int, fitted: int) -> bool:
    """Whether a refit is due with this number of requests with feedback; the last one had `fitted`."""
    step = FIRST_REFIT
    while step <= fitted:
        step *= 2
    return feedbacks >= step


def refit(names: Sequence[str], examples: Sequence[Example]) -> dict[str, float] | None:
    """Fitted weights by name; None if they do not predict the feedback of other queries significantly better.

    Weights are compared with the scaled start in cross-validation over queries: the likelihood of pairs must be larger,
    and its slope from the start towards the weights must be positive by two standard errors.
    """
    found = _pairs_of(examples)
    if found is None or len(names) == len(OWN):
        return None
    pairs, explained = found
    gains, slopes = np.zeros((2, len(pairs.weight)))
    for fold in range(FOLDS):
        out = pairs.query % FOLDS == fold
        if out.all() or not out.any():
            continue
        scale, fitted = pairs.select(~out).fit()
        here = pairs.select(out)
        before, change = here.offset + scale * here.start, here.signals @ fitted
        gains[out] = np.logaddexp(0.0, -before) - np.logaddexp(0.0, -(before + change))
        slopes[out] = _logistic(-before) * change
    if not (pairs.in_errors(slopes) > SIGNIFICANT and pairs.weight @ gains > 0):
        return None
    scale, fitted = pairs.fit()
    return dict(zip(names, (*(scale * START - explained @ fitted).tolist(), *fitted.tolist()), strict=True))


def _pairs_of(examples: Sequence[Example]) -> tuple[_Pairs, Table] | None:
    """Pairs, with the part of each signal that rank, BM25 and centroid do not explain; and [own, signals]: the rest."""
    pairs = _Pairs.of(examples)
    if pairs is None:
        return None
    every = np.concatenate([one.features for one in examples])
    own, signals = every[:, : len(OWN)], every[:, len(OWN) :]
    explained: Table = np.linalg.solve(own.T @ own + 1e-3 * len(own) * np.eye(len(OWN)), own.T @ signals)
    return replace(pairs, signals=pairs.signals - pairs.own @ explained), explained


def with_start(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights with the start's relative weights of rank, BM25 and centroid, at the scale closest to the given ones.

    No signal gets a larger weight than a fit may give it.
    """
    given = np.array([weights[name] for name in OWN])
    scale = float(np.clip(given @ START / (START @ START), *SCALES))
    most = LARGEST * scale
    limited = {name: float(np.clip(weight, -most, most)) for name, weight in weights.items()}
    return {**limited, **dict(zip(OWN, (scale * START).tolist(), strict=True))}


def gain_of(weights: Mapping[str, float], names: Sequence[str], examples: Sequence[Example]) -> float:
    """By how many standard errors weights predict feedback better than the scaled start does; NaN if unknown."""
    pairs = _Pairs.of(examples)
    if pairs is None:
        return math.nan
    before = pairs.offset + _scale(pairs.start, pairs.offset, pairs.weight) * pairs.start
    own, signals = (np.array([weights.get(name, 0.0) for name in some]) for some in (OWN, names[len(OWN) :]))
    after = pairs.offset + pairs.own @ own + pairs.signals @ signals
    return pairs.in_errors(np.logaddexp(0.0, -before) - np.logaddexp(0.0, -after))


@dataclass(frozen=True, eq=False)
class _Pairs:
    """One row per pair of a used and an unused passage of a request."""

    own: Table  # [pairs, own features]: differences
    signals: Table  # [pairs, signals]: differences
    offset: Table  # difference of what memory added
    weight: Table
    query: NDArray[np.int64]

    @classmethod
    def of(cls, examples: Sequence[Example]) -> _Pairs | None:
        """The pairs that memory leaves open; None without any."""
        rows = []
        for one in examples:
            if not (len(one.used) and len(one.unused)):
                continue
            better, worse = np.repeat(one.used, len(one.unused)), np.tile(one.unused, len(one.used))
            x = one.features[better] - one.features[worse]
            weight = np.full(len(better), one.weight / len(better))  # a request counts once, however long it is
            query = np.full(len(better), one.query)
            rows.append((x[:, : len(OWN)], x[:, len(OWN) :], one.memory[better] - one.memory[worse], weight, query))
        if not rows:
            return None
        pairs = cls(*(np.concatenate(column) for column in zip(*rows, strict=True)))
        pairs = pairs.select(np.abs(pairs.offset) <= REMEMBERED)
        return pairs if len(pairs.weight) else None

    @property
    def start(self) -> Table:
        difference: Table = self.own @ START
        return difference

    def select(self, which: NDArray[np.bool_]) -> _Pairs:
        return _Pairs(*(column[which] for column in vars(self).values()))

    def in_errors(self, gains: Table) -> float:
        """The sum of gains over queries, in standard errors; NaN with a single query."""
        by_query = np.bincount(self.query, self.weight * gains)[np.unique(self.query)]
        error = float(by_query.std(ddof=1)) * math.sqrt(len(by_query)) if len(by_query) > 1 else math.nan
        return float(by_query.sum()) / error if error else math.nan

    def fit(self) -> tuple[float, Table]:
        """The scale of the start, and the weights of the signals."""
        scale = _scale(self.start, self.offset, self.weight)
        fitted = _newton(self.signals, self.offset + scale * self.start, self.weight)
        return scale, np.clip(fitted, -LARGEST * scale, LARGEST * scale)


def _scale(score: Table, offset: Table, weight: Table) -> float:
    """The scale of the start's score with the largest likelihood, by bisection: the likelihood is concave."""
    low, high = SCALES

    def slope(scale: float) -> float:
        return float(weight @ (score * _logistic(-(scale * score + offset))))

    if slope(low) <= 0:
        return low
    if slope(high) >= 0:
        return high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return (low + high) / 2


def _newton(x: Table, offset: Table, weight: Table) -> Table:
    """The weights with the largest penalised likelihood, by damped Newton steps."""
    found = np.zeros(x.shape[1])

    def loss(weights: Table) -> float:
        margin = x @ weights + offset
        return float(weight @ np.logaddexp(0.0, -margin)) + 0.5 * PENALTY * float(weights @ weights)

    for _ in range(_STEPS):
        wrong = _logistic(-(x @ found + offset))
        gradient = -(weight * wrong) @ x + PENALTY * found
        curvature = (x * (weight * wrong * (1 - wrong))[:, None]).T @ x + PENALTY * np.eye(x.shape[1])
        step = np.linalg.solve(curvature, gradient)
        size, now = 1.0, loss(found)
        while size > 1e-6 and loss(found - size * step) > now:
            size /= 2
        found = found - size * step
        if np.abs(step).max() < 1e-9:
            break
    return found


def _logistic(value: Table) -> Table:
    logistic: Table = 0.5 * (1 + np.tanh(0.5 * value))
    return logistic
