"""Estimate offline how often users would have clicked if another model had ranked the lists of a log.

A document that the model moves from position 5 to position 1 is examined more often. Propensities determine by how
much, so its clicks can be reweighted accordingly (the estimator for position-based clicks of Li et al., KDD 2018).
Three estimates:

- *self-normalised IPS*: the clicks of a document, divided by the total propensity of its logged positions, times that
  of its new positions. Weights are clipped at MAX_RATIO; clipped weight and documents that were never examined are
  assumed to be like the rest.
- *doubly robust*: the prediction of a regression on features, plus the weighted residuals of the clicks. The two
  estimates differ where weights were clipped, or where a document was never examined.
- *plain replay*: the logged clicks, moved to their new positions. Clicks follow the order shown, so it favours models
  that resemble it. It is included as a common reference.

Confidence intervals are over queries: a bootstrap resamples queries and recomputes everything, including propensities.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.ranking.propensity import (
    CERTAIN,
    GIVEN,
    MAX_POSITIONS,
    REPEATS,
    Bias,
    Integers,
    NotIdentifiable,
    Propensities,
    Reals,
    Repeated,
    ShownResults,
    drawn_queries,
    numbered,
    repeated_propensities,
    spread_of,
    standardised,
)
from fedrank.types import Features

MAX_RATIO = 10.0  # maximum importance weight
FEWEST = 30.0  # minimum effective number of queries
UNSEEN = 0.1  # maximum share of new impressions without any logged exposure; above it, no estimate is made

MAX_SPREAD = 0.7  # maximum standard error of the logarithm of a usable propensity
_AT_A_TIME = 20  # repeats
_RIDGE = 1.0

IPS, DOUBLY_ROBUST, REPLAY = "self-normalised IPS", "doubly robust", "plain replay"
BIASED = "biased: clicks follow the order shown and favour models that resemble it"


class CannotTell(ValueError):
    """The log does not determine what users would have clicked."""

    def __init__(self, because: str) -> None:
        super().__init__(f"cannot be estimated from this log: {because}")
        self.because = because


class Interval(NamedTuple):
    """A value with its 95 % confidence interval over queries."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


@dataclass(frozen=True)
class EstimateRow:
    """The result of one estimator: for the model, and its difference from the lists shown."""

    name: str
    unit: str
    logged: float  # value of the lists shown
    model: Interval
    difference: Interval
    note: str = ""


@dataclass(frozen=True, eq=False)
class ClickEstimate:
    """An estimate of the clicks that users would have made."""

    rows: tuple[EstimateRow, ...]
    searches: int
    queries: int
    clicks: int  # in the positions that count
    positions: int  # positions from the top with known propensities; clicks below are not counted
    moved: float  # share of results whose position changes
    clipped: float  # share of clicks with a clipped weight
    unseen: float  # share of new impressions without any logged exposure
    effective: float  # effective number of queries
    propensities: Propensities
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """One sentence, based on the doubly robust estimate."""
        row = next(row for row in self.rows if row.name == DOUBLY_ROBUST)
        low, high = row.difference.low, row.difference.high
        what = "the difference is not significant"
        if low > 0 or high < 0:
            what = f"users would click {'more' if low > 0 else 'less'}"
        return f"{what}: {row.difference.value:+.4f} per list ({low:+.4f} to {high:+.4f})"

    def as_json(self) -> dict[str, Any]:
        found = {name: value for name, value in vars(self).items() if name not in ("rows", "propensities")}
        rows = [
            asdict(row) | {name: getattr(row, name)._asdict() for name in ("model", "difference")} for row in self.rows
        ]
        return {"verdict": self.verdict, "rows": rows, **found, "propensities": self.propensities.as_json()}


def estimate_clicks(
    shown: ShownResults,
    scores: NDArray[np.floating],
    features: Features,
    bias: Bias = "position",
    by: Propensities | None = None,
    counted: NDArray[np.bool_] | None = None,
) -> ClickEstimate:
    """Estimate the clicks if `scores` [results] had ranked every list; raises `CannotTell` if that is unknown.

    `features` are [pairs, features]; `by` are known propensities. If only some searches are `counted` [results], such
    as those that the model was not trained on, the others still contribute to propensities.
    """
    if len(scores) != len(shown):
        raise ValueError(f"{len(scores)} scores for {len(shown)} results; give one per result")
    if not np.isfinite(scores).all():
        raise ValueError("the model's scores must be finite; check its weights and features")
    position = new_places(shown, scores)
    inside = shown.position < MAX_POSITIONS
    asked = shown.query[inside]
    shown, position = replace(shown.select(inside), query=numbered(asked)[0]), position[inside]
    try:
        repeated = _given(shown, by) if by is not None else repeated_propensities(shown, features, bias)
    except NotIdentifiable as problem:
        raise CannotTell(str(problem)) from None
    positions = _usable(repeated)
    if counted is not None:
        kept = counted[inside]
        if not kept.any():
            raise ValueError("no search is counted; count at least one")
        shown, position, asked = shown.select(kept), position[kept], asked[kept]
    counts = _count(shown, position, positions, repeated.multiples.shape[1])
    if not counts.clicks.sum():
        raise CannotTell(f"nothing was clicked in the first {positions} positions")
    slope, extra = repeated.slope[:, :positions], repeated.extra[:, :positions]
    expected = _regression(counts, slope[0], extra[0], features)
    ratio, seen = _ratios(counts, slope[:1])
    would = counts.there @ slope[0]
    unseen = float(would[~seen[:, 0]].sum() / would.sum())
    if unseen > UNSEEN:
        raise CannotTell(
            f"{unseen:.0%} of what the model would show was never shown in a position with a known propensity, more "
            f"than {UNSEEN:.0%}"
        )
    worth = np.bincount(counts.query, weights=ratio[:, 0] * counts.clicks, minlength=counts.queries)
    effective = float(worth.sum() ** 2 / np.maximum(worth @ worth, 1e-12))
    if effective < FEWEST:
        raise CannotTell(
            f"its {int(counts.clicks.sum()):,} clicks have the weight of {effective:.0f} queries, but at least "
            f"{FEWEST:.0f} are needed"
        )
    logged = _logged(counts, repeated.multiples)
    both = _estimates(counts, expected, slope, extra, repeated.multiples)
    rows = [
        _row(name, "clicks per list", logged, values) for name, values in zip((IPS, DOUBLY_ROBUST), both, strict=True)
    ]
    rows.append(_replayed(shown, position, positions, counts.searches, repeated.multiples))
    cut = counts.clicks @ (_ratios(counts, slope[:1], cut=False)[0][:, 0] > MAX_RATIO) / counts.clicks.sum()
    return ClickEstimate(
        tuple(rows),
        searches=int(counts.searches.sum()),
        queries=len(np.unique(asked)),
        clicks=int(counts.clicks.sum()),
        positions=positions,
        moved=float(np.mean(position != shown.position)),
        clipped=float(cut),
        unseen=unseen,
        effective=effective,
        propensities=repeated.found,
        notes=repeated.found.notes,
    )


def new_places(shown: ShownResults, scores: NDArray[np.floating]) -> Integers:
    """[results]: the model's position of each among the documents of its list; ties keep the order shown."""
    order = np.lexsort((shown.position, -np.asarray(scores, np.float64), shown.search))
    before = np.lexsort((shown.position, shown.search))
    position = np.empty(len(shown), np.int64)
    position[order] = shown.position[before]
    return position


class _Counts(NamedTuple):
    """Documents with their logged and new numbers of impressions per position."""

    pair: Integers  # [documents]
    query: Integers  # [documents], from 0 to queries - 1
    here: Reals  # [documents, positions]: times shown
    there: Reals  # [documents, positions]: times shown by the model
    clicks: Reals  # [documents], in these positions
    searches: Reals  # [queries]

    @property
    def queries(self) -> int:
        return len(self.searches)


def _count(shown: ShownResults, position: Integers, positions: int, queries: int) -> _Counts:
    pair, row = np.unique(shown.pair, return_inverse=True)
    row = row.ravel()

    def table(where: Integers) -> Reals:
        inside = where < positions
        cells = np.bincount(row[inside] * positions + where[inside], minlength=len(pair) * positions)
        return cells.reshape(len(pair), positions).astype(np.float64)

    query = np.zeros(len(pair), np.int64)
    query[row] = shown.query
    counted = shown.clicked & (shown.position < positions)
    clicks: NDArray[Any] = np.bincount(row, weights=counted, minlength=len(pair))
    _, first = np.unique(shown.search, return_index=True)
    searches = np.bincount(shown.query[first], minlength=queries).astype(np.float64)
    return _Counts(pair, query, table(shown.position), table(position), clicks, searches)


def _ratios(counts: _Counts, slope: Reals, cut: bool = True) -> tuple[Reals, NDArray[np.bool_]]:
    """Importance weights [documents, repeats], and whether each document was examined."""
    seen, would = counts.here @ slope.T, counts.there @ slope.T
    there = seen > 0
    return np.minimum(np.divide(would, seen, out=np.zeros_like(seen), where=there), MAX_RATIO if cut else np.inf), there


def _estimates(
    counts: _Counts, expected: Reals, slope: Reals, extra: Reals, multiples: Integers
) -> tuple[Reals, Reals]:
    """Clicks per list by (self-normalised IPS, doubly robust) [1 + repeats], the estimate first."""
    from scipy import sparse

    documents = np.arange(len(counts.query))
    by_query: Any = sparse.csr_matrix(
        (np.ones(len(documents)), (counts.query, documents)), (counts.queries, len(documents))
    )
    often = np.vstack([np.ones((1, counts.queries)), multiples])
    ips, robust = np.empty(len(often)), np.empty(len(often))
    for first in range(0, len(often), _AT_A_TIME):
        some = slice(first, first + _AT_A_TIME)
        alpha, beta, counted = slope[some].T, extra[some].T, often[some]

        def total(each: Reals, counted: Reals = counted) -> Reals:
            """Sums over documents [documents, repeats], weighted by the multiplicity of their queries."""
            summed: Reals = np.einsum("qr,rq->r", by_query @ each, counted)
            return summed

        ratio, _ = _ratios(counts, slope[some])
        seen, would, unread = counts.here @ alpha, counts.there @ alpha, total(counts.there @ beta)
        clicks = counts.clicks[:, None] - counts.here @ beta
        lists = counted @ counts.searches
        # Weighted clicks, divided by the share of new impressions that they represent.
        ips[some] = (total(ratio * clicks) / total(ratio * seen) * total(would) + unread) / lists
        # The prediction plus the weighted residuals.
        beyond = ratio * (clicks - seen * expected[:, None])
        robust[some] = (total(would * expected[:, None] + beyond) + unread) / lists
    return ips, robust


def _usable(repeated: Repeated) -> int:
    """Positions from the top whose propensities are identified; their uncertainty is in the intervals."""
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = spread_of(np.log(repeated.slope[1:]))
    told = np.isfinite(repeated.slope[0]) & np.isfinite(repeated.extra[0]) & (spread < MAX_SPREAD)
    return int(np.argmin(told)) if not told.all() else len(told)


def _logged(counts: _Counts, multiples: Integers) -> Reals:
    """Logged clicks per list, in the log and in all repeats."""
    clicks = np.bincount(counts.query, weights=counts.clicks, minlength=counts.queries)
    return np.concatenate([[clicks.sum() / counts.searches.sum()], multiples @ clicks / (multiples @ counts.searches)])


def _row(name: str, unit: str, logged: Reals, values: Reals, note: str = "") -> EstimateRow:
    return EstimateRow(name, unit, float(logged[0]), _interval(values), _interval(values - logged), note)


def _interval(values: Reals) -> Interval:
    error = CERTAIN * float(np.std(values[1:], ddof=1))
    return Interval(float(values[0]), float(values[0]) - error, float(values[0]) + error)


def _regression(counts: _Counts, slope: Reals, extra: Reals, features: Features) -> Reals:
    """[documents]: relevance predicted from features, by regressions on the other half of the queries."""
    seen = counts.here @ slope
    rate = np.divide(counts.clicks - counts.here @ extra, seen, out=np.zeros_like(seen), where=seen > 0)
    table = standardised(features, counts.pair)
    expected = np.zeros(len(rate))
    for half in (0, 1):
        fit, use = counts.query % 2 != half, counts.query % 2 == half
        weighed = table[fit] * seen[fit, None]
        weights = np.linalg.solve(weighed.T @ table[fit] + _RIDGE * np.eye(table.shape[1]), weighed.T @ rate[fit])
        expected[use] = np.clip(table[use] @ weights, 0.0, 1.0)
    return expected


def _replayed(
    shown: ShownResults, position: Integers, positions: int, searches: Reals, multiples: Integers
) -> EstimateRow:
    """The clicks, discounted by their new and by their logged positions."""
    found = []
    for where in (shown.position, position):
        gains = np.where(where < positions, shown.clicked / np.log2(where + 2.0), 0.0)
        total = np.bincount(shown.query, weights=gains, minlength=len(searches))
        found.append(np.concatenate([[total.sum() / searches.sum()], multiples @ total / (multiples @ searches)]))
    return _row(REPLAY, "discounted clicks per list", found[0], found[1], BIASED)


def _given(shown: ShownResults, by: Propensities) -> Repeated:
    """Known propensities are the same in all repeats."""
    assert by.how == GIVEN
    multiples = drawn_queries(int(shown.query.max()) + 1, REPEATS)
    slope, extra = (np.tile(values, (REPEATS + 1, 1)) for values in (by.slope, by.extra))
    return Repeated(by, multiples, slope, extra)
