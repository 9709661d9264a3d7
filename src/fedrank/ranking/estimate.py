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

Users may also trust high positions. Clicks alone rarely show whether they do, so everything is estimated under position
bias and under trust bias, and the interval of the verdict covers both intervals.

A model replaces the engine's order and not the randomised lists of the log, which are worse. The verdict therefore
compares the model with the engine's order of the same documents, where the log reveals it (`engine_order`).

Confidence intervals are over queries: a bootstrap resamples queries and recomputes everything, including propensities.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

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
    repeated_trust,
    spread_of,
    standardised,
)
from fedrank.types import Features

MAX_RATIO = 10.0  # maximum importance weight
FEWEST = 30.0  # minimum effective number of queries
UNSEEN = 0.1  # maximum share of new impressions without any logged exposure; above it, no estimate is made

MAX_SPREAD = 0.7  # maximum standard error of the logarithm of a usable propensity
MIN_SHOWN = 3  # minimum number of times that the most common order of a query was shown
KNOWN_SHARE = 0.5  # minimum share of searches with a known order of the engine
TRUST_ERROR = 1.15  # factor on intervals under trust bias: its instrument is the same in all repeats; measured
TYPICAL_RATE = 0.3  # click rate of a relevant document in the first position
_AT_A_TIME = 20  # repeats
_RIDGE = 1.0

IPS, DOUBLY_ROBUST, REPLAY = "self-normalised IPS", "doubly robust", "plain replay"
BIASED = "biased: clicks follow the order shown and favour models that resemble it"
ONLY_SHOWN = (
    "the estimate reorders the results that were shown; a model that chooses among more candidates shows other "
    "documents, whose clicks are not known from shown lists"
)
Finding = Literal["better", "worse", "inconclusive"]


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
    """The result of one estimator: for the model, and its difference from the order that it is compared with."""

    name: str
    bias: str  # of clicks that is corrected; empty: none
    unit: str
    logged: float  # value of the lists shown
    compared: float  # value of the order that the model is compared with
    model: Interval
    difference: Interval
    note: str = ""


class EngineOrder(NamedTuple):
    """The engine's order before randomisation, as far as a log reveals it."""

    position: Integers  # [results]: position in the engine's order of the same documents; -1: not known
    how: str  # source of the order


@dataclass(frozen=True, eq=False)
class ClickEstimate:
    """An estimate of the clicks that users would have made."""

    rows: tuple[EstimateRow, ...]
    engine: str  # how the log reveals the engine's order, with which the model is compared; empty: it does not
    known: float  # share of the searches whose engine order is known; only these count if `engine` is not empty
    searches: int
    queries: int
    clicks: int  # in the positions that count
    positions: int  # positions from the top with known propensities; clicks below are not counted
    moved: float  # share of results whose position differs from the order that the model is compared with
    clipped: float  # share of clicks with a clipped weight
    unseen: float  # share of new impressions without any logged exposure
    effective: float  # effective number of queries
    propensities: Propensities  # under position bias, or given
    trust: Propensities | None  # under trust bias; None: not identifiable, or given
    no_trust: str = ""  # why trust bias is not identifiable
    notes: tuple[str, ...] = ()

    @property
    def difference(self) -> Interval:
        """Clicks per list compared with the engine's order, or with the lists shown: the lower value, both intervals.

        It is based on the doubly robust estimates.
        """
        found = [row.difference for row in self.rows if row.name == DOUBLY_ROBUST]
        return Interval(*(pick(values) for pick, values in zip((min, min, max), zip(*found, strict=True), strict=True)))

    @property
    def finding(self) -> Finding:
        """Better or worse than the engine, if that is significant under both biases."""
        if self.difference.high < 0:
            return "worse"
        sure = self.engine and not self.no_trust and self.difference.low > 0
        return "better" if sure else "inconclusive"

    @property
    def verdict(self) -> str:
        """One sentence that compares the model with what it would replace, as far as the log reveals that."""
        value, low, high = self.difference
        numbers = f"{value:+.4f} clicks per list ({low:+.4f} to {high:+.4f})"
        other = "the engine's order" if self.engine else "what was shown"
        if low <= 0 <= high:
            return f"the model's order of the shown results is not significantly different from {other}: {numbers}"
        if high < 0:
            return f"the model's order of the shown results is worse than {other}: {numbers}"
        if self.no_trust:
            return (
                f"better than {other} only if users do not trust high positions: {numbers}. Trust bias cannot be "
                "estimated from this log, so the model is not shown to be better"
            )
        if not self.engine:
            return f"better than what was shown, not shown to be better than the engine: {numbers}"
        return f"the model's order of the shown results would get more clicks than the engine's order: {numbers}"

    def as_json(self) -> dict[str, Any]:
        skipped = ("rows", "propensities", "trust")
        found = {name: value for name, value in vars(self).items() if name not in skipped}
        rows = [
            asdict(row) | {name: getattr(row, name)._asdict() for name in ("model", "difference")} for row in self.rows
        ]
        return {
            "finding": self.finding,
            "verdict": self.verdict,
            "difference": self.difference._asdict(),
            "rows": rows,
            **found,
            "propensities": self.propensities.as_json(),
            "trust": None if self.trust is None else self.trust.as_json(),
        }


def estimate_clicks(
    shown: ShownResults,
    scores: NDArray[np.floating],
    features: Features,
    by: Propensities | None = None,
    counted: NDArray[np.bool_] | None = None,
    engine: EngineOrder | None = None,
) -> ClickEstimate:
    """Estimate the clicks if `scores` [results] had ranked every list; raises `CannotTell` if that is unknown.

    `features` are [pairs, features]; `by` are known propensities. If only some searches are `counted` [results], such
    as those that the model was not trained on, the others still contribute to propensities. `engine` is the order that
    the model is compared with; without it, it is the order shown.
    """
    if len(scores) != len(shown):
        raise ValueError(f"{len(scores)} scores for {len(shown)} results; give one per result")
    if not np.isfinite(scores).all():
        raise ValueError("the model's scores must be finite; check its weights and features")
    position, before = new_places(shown, scores), shown.position
    inside = shown.position < MAX_POSITIONS
    kept = inside if counted is None else inside & counted
    if not kept.any():
        raise ValueError("no search is counted; count at least one")
    known = 0.0
    if engine is not None:
        known = float(np.mean(engine.position[kept] >= 0))
        if known >= KNOWN_SHARE:
            kept, before = kept & (engine.position >= 0), engine.position
        else:
            engine = None
    asked = shown.query[kept]
    every = shown.select(inside)
    every = replace(every, query=numbered(every.query)[0])
    position, before, kept = position[kept], before[kept], kept[inside]
    repeated, no_trust = both_propensities(every, features, by)
    positions = min(map(_usable, repeated.values()))
    shown = every.select(kept)
    queries = next(iter(repeated.values())).multiples.shape[1]
    counts, replaced = (_count(shown, where, positions, queries) for where in (position, before))
    if not counts.clicks.sum():
        raise CannotTell(f"nothing was clicked in the first {positions} positions")
    rows, shares = [], []
    for bias, one in repeated.items():
        rows += _rows(bias, one, counts, replaced, positions, features)
        shares.append(_shares(counts, one.slope[:1, :positions]))
    first = next(iter(repeated.values()))
    rows.append(_replayed(shown, position, before, positions, counts.searches, first.multiples))
    unseen, effective, clipped = shares[0]
    return ClickEstimate(
        tuple(rows),
        engine="" if engine is None else engine.how,
        known=known,
        searches=int(counts.searches.sum()),
        queries=len(np.unique(asked)),
        clicks=int(counts.clicks.sum()),
        positions=positions,
        moved=float(np.mean(position != before)),
        clipped=clipped,
        unseen=unseen,
        effective=effective,
        propensities=first.found,
        trust=repeated["trust"].found if "trust" in repeated and len(repeated) > 1 else None,
        no_trust=no_trust,
        notes=(ONLY_SHOWN, *dict.fromkeys(note for one in repeated.values() for note in one.found.notes)),
    )


def both_propensities(
    shown: ShownResults, features: Features, by: Propensities | None = None
) -> tuple[dict[Bias, Repeated], str]:
    """Propensities under both biases, and why there are none under trust bias."""
    try:
        position = _given(shown, by) if by is not None else repeated_propensities(shown, features)
    except NotIdentifiable as problem:
        raise CannotTell(str(problem)) from None
    if by is not None and by.extra[by.known].any():
        return {"trust": position}, ""
    slope = np.nan_to_num(position.slope[0], nan=0.0)
    counts = _count(shown, shown.position, len(slope), position.multiples.shape[1])
    expected = np.zeros(len(features))
    expected[counts.pair] = _regression(counts, slope, np.zeros(len(slope)), features)
    try:
        return {"position": position, "trust": repeated_trust(shown, position, expected)}, ""
    except NotIdentifiable as problem:
        return {"position": position}, problem.because


def with_errors(repeated: Repeated, rate: float = TYPICAL_RATE) -> Propensities:
    """Propensities of all usable positions with their joint errors, also of those with a wide interval, for the gate.

    Principal components are those of the click probability of a document with a typical `rate` in the first position.
    """
    positions = _usable(repeated)
    slope, extra = repeated.slope[:, :positions], repeated.extra[:, :positions]
    error = CERTAIN * spread_of(np.log(slope[1:]))
    low, high = (slope[0] * np.exp(sign * error) for sign in (-1, 1))
    changes = np.hstack([(slope[1:] - slope[0]) * rate, extra[1:] - extra[0]]) / math.sqrt(len(slope) - 1)
    _, sizes, found = np.linalg.svd(changes, full_matrices=False)
    directions = (sizes[:, None] * found).reshape(-1, 2, positions) / np.array([rate, 1.0])[:, None]
    return replace(repeated.found, slope=slope[0], extra=extra[0], low=low, high=high, directions=directions)


def _shares(counts: _Counts, slope: Reals) -> tuple[float, float, float]:
    """Shares of impressions without exposure, effective number of queries, and share of clipped clicks."""
    ratio, seen = _ratios(counts, slope)
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
    cut = counts.clicks @ (_ratios(counts, slope, cut=False)[0][:, 0] > MAX_RATIO) / counts.clicks.sum()
    return unseen, effective, float(cut)


def _rows(
    bias: Bias, repeated: Repeated, counts: _Counts, replaced: _Counts, positions: int, features: Features
) -> list[EstimateRow]:
    """Both estimates under one bias: of the model, and of the order that it is compared with."""
    slope, extra, multiples = repeated.slope[:, :positions], repeated.extra[:, :positions], repeated.multiples
    expected = _regression(counts, slope[0], extra[0], features)
    logged = _logged(counts, multiples)
    model = _estimates(counts, expected, slope, extra, multiples)
    if np.array_equal(replaced.here, replaced.there):
        other: tuple[Reals, ...] = (logged, logged)
    else:
        other = _estimates(replaced, expected, slope, extra, multiples)
    wider = TRUST_ERROR if bias == "trust" and repeated.found.how != GIVEN else 1.0
    return [
        EstimateRow(
            name,
            bias,
            "clicks per list",
            float(logged[0]),
            float(b[0]),
            _interval(values, wider),
            _interval(values - b, wider),
        )
        for name, values, b in zip((IPS, DOUBLY_ROBUST), model, other, strict=True)
    ]


def engine_order(
    shown: ShownResults, scores: NDArray[np.floating] | None = None, swap: NDArray[np.integer] | None = None
) -> EngineOrder:
    """The engine's order of the documents of every list, before it was randomised.

    It follows from the scores that lists were sampled with [results], or from the logged swaps [searches]: the upper
    position from 1 among all results, also on later pages, negative if it was swapped, 0 if no pair was drawn.
    Without either, it is the most common order of the same documents for a query: shown MIN_SHOWN times, and at least
    twice as often as any other.
    """
    if scores is not None:
        return EngineOrder(new_places(shown, scores), "sampling scores in the log")
    if swap is not None:
        upper = np.asarray(swap, np.int64)[shown.search]
        moves = np.where(shown.position == -upper - 1, 1, np.where(shown.position == -upper, -1, 0))
        # Of a pair on two pages, one result is missing: ranks among the documents of the list.
        before = shown.position + np.where(upper < 0, moves, 0)
        return EngineOrder(new_places(shown, -before.astype(np.float64)), "swaps in the log")
    return EngineOrder(_most_common(shown), "most common order of each query")


def _most_common(shown: ShownResults) -> Integers:
    """[results]: positions in the most common order of the same documents; -1 if it is not common enough."""
    rows = np.lexsort((shown.pair, shown.search))
    pair, position, search = shown.pair[rows], shown.position[rows], shown.search[rows]
    starts = np.flatnonzero(np.diff(search, prepend=-1))
    # Sums of hashes identify the documents of a list, and their order.
    documents = np.add.reduceat(_hashed(pair), starts)
    order = np.add.reduceat(_hashed(_hashed(pair) + position.astype(np.uint64)), starts)
    _, group = np.unique(documents, return_inverse=True)
    _, example, times = np.unique(order, return_index=True, return_counts=True)
    of_order = group[example]
    ranked = np.lexsort((-times, of_order))
    first = ranked[np.unique(of_order[ranked], return_index=True)[1]]
    others, second = times.copy(), np.zeros(len(first), np.int64)
    others[first] = 0
    np.maximum.at(second, of_order, others)
    sure = (times[first] >= MIN_SHOWN) & (times[first] >= 2 * second)
    lengths = np.diff(starts, append=len(rows))
    there = np.arange(len(rows)) + np.repeat(starts[example[first][group]] - starts, lengths)
    found = np.empty(len(shown), np.int64)
    found[rows] = np.where(np.repeat(sure[group], lengths), position[there], -1)
    return found


def _hashed(values: NDArray[np.integer]) -> NDArray[np.uint64]:
    """64-bit hashes of integers (the finaliser of SplitMix64)."""
    mixed = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def new_places(shown: ShownResults, scores: NDArray[np.floating]) -> Integers:
    """[results]: the model's position of each among the documents of its list; ties keep the order shown."""
    search, where, worth = shown.search, shown.position, -np.asarray(scores, np.float64)
    position = np.empty(len(shown), np.int64)
    steps = np.diff(search)
    if np.all((steps > 0) | (steps == 0) & (np.diff(where) > 0)):  # as a log has them; ties keep this order
        position[np.lexsort((worth, search))] = where
    else:
        position[np.lexsort((where, worth, search))] = where[np.lexsort((where, search))]
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
    seen, would = _products(counts.here, slope), _products(counts.there, slope)
    there = seen > 0
    return np.minimum(np.divide(would, seen, out=np.zeros_like(seen), where=there), MAX_RATIO if cut else np.inf), there


def _products(table: Reals, values: Reals) -> Reals:
    """[documents, repeats]; not `@`, whose threads wait for each other longer than such small products take."""
    found: Reals = np.einsum("dp,rp->dr", table, values)
    return found


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
        counted = often[some]

        def total(each: Reals, counted: Reals = counted) -> Reals:
            """Sums over documents [documents, repeats], weighted by the multiplicity of their queries."""
            summed: Reals = np.einsum("qr,rq->r", by_query @ each, counted)
            return summed

        ratio, _ = _ratios(counts, slope[some])
        seen, would = (_products(table, slope[some]) for table in (counts.here, counts.there))
        unread = total(_products(counts.there, extra[some]))
        clicks = counts.clicks[:, None] - _products(counts.here, extra[some])
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


def _interval(values: Reals, wider: float = 1.0) -> Interval:
    error = wider * CERTAIN * float(np.std(values[1:], ddof=1))
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
    shown: ShownResults, position: Integers, before: Integers, positions: int, searches: Reals, multiples: Integers
) -> EstimateRow:
    """The clicks, discounted by their new positions, and by those in the order that the model is compared with."""
    found = []
    for where in (shown.position, before, position):
        gains = np.where(where < positions, shown.clicked / np.log2(where + 2.0), 0.0)
        total = np.bincount(shown.query, weights=gains, minlength=len(searches))
        found.append(np.concatenate([[total.sum() / searches.sum()], multiples @ total / (multiples @ searches)]))
    logged, compared, model = found
    values = float(logged[0]), float(compared[0]), _interval(model), _interval(model - compared)
    return EstimateRow(REPLAY, "", "discounted clicks per list", *values, BIASED)


def _given(shown: ShownResults, by: Propensities) -> Repeated:
    """Known propensities are the same in all repeats."""
    assert by.how == GIVEN
    multiples = drawn_queries(int(shown.query.max()) + 1, REPEATS)
    slope, extra = (np.tile(values, (REPEATS + 1, 1)) for values in (by.slope, by.extra))
    return Repeated(by, multiples, slope, extra)
