"""What would people have clicked, had another model ordered the lists of a log? With an interval, or why not.

A document that the model moves from position 5 to position 1 is seen more often. By how much is what propensities say,
so that its clicks can be counted as if it had stood there all the time (the estimator for position-based clicks of Li
et al., KDD 2018). Three estimates:

- *self-normalised IPS*: the clicks of a document, divided by how much its positions were looked at in all, times how
  much they would be. Weights are cut at MAX_RATIO; what is lost by that, and by documents that were never seen, is
  taken to be like the rest.
- *doubly robust*: what a regression on features expects, plus the weighted difference between that and the clicks. The
  two differ where weights were cut, or where a document was never seen.
- *plain replay*: the logged clicks, moved to their new positions. Clicks follow the order that was shown, so that it
  favours whatever resembles it. It is here because everybody computes it first.

Intervals are over queries: whole queries are drawn again, and everything, also the propensities, is computed anew.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.ranking.propensity import (
    CERTAIN,
    GIVEN,
    MAX_POSITIONS,
    REPEATS,
    Bias,
    NotIdentifiable,
    Propensities,
    Repeated,
    ShownResults,
    drawn_queries,
    numbered,
    repeated_propensities,
    spread_of,
)
from fedrank.types import Features

MAX_RATIO = 10.0  # by which more a document can be counted as seen than it was
FEWEST = 30.0  # queries that must be worth as much as those of the log, since they weigh differently
UNSEEN = (
    0.1  # share of what the model would show in positions of which nothing was ever seen, beyond which nothing is said
)

MAX_SPREAD = 0.7  # standard error of the logarithm of a propensity, beyond which its position does not count
_AT_A_TIME = 20  # repeats
_RIDGE = 1.0

IPS, DOUBLY_ROBUST, REPLAY = "self-normalised IPS", "doubly robust", "plain replay"
BIASED = "biased: clicks follow the order that was shown, and so favour whatever resembles it"


class CannotTell(ValueError):
    """The log does not say what people would have clicked."""

    def __init__(self, because: str) -> None:
        super().__init__(f"cannot be told from this log, because {because}")
        self.because = because


class Interval(NamedTuple):
    """A value with its 95 % interval over queries."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


@dataclass(frozen=True)
class EstimateRow:
    """One way to estimate: for the model, and by how much it differs from the lists that were shown."""

    name: str
    unit: str
    logged: float  # of the lists that were shown
    model: Interval
    difference: Interval
    note: str = ""


@dataclass(frozen=True, eq=False)
class ClickEstimate:
    """What people would have clicked."""

    rows: tuple[EstimateRow, ...]
    searches: int
    queries: int
    clicks: int  # in the positions that count
    positions: int  # from the top, of which propensities are known; clicks below are not counted
    moved: float  # share of results that the model puts elsewhere
    clipped: float  # share of clicks whose weight was cut
    unseen: float  # share of what the model would show in positions of which nothing was ever seen
    effective: float  # queries that would be worth as much, if all weighed alike
    propensities: Propensities
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """In a sentence, by the doubly robust estimate."""
        row = next(row for row in self.rows if row.name == DOUBLY_ROBUST)
        low, high = row.difference.low, row.difference.high
        if low > 0:
            return f"people would click more: {row.difference.value:+.4f} a list ({low:+.4f} to {high:+.4f})"
        if high < 0:
            return f"people would click less: {row.difference.value:+.4f} a list ({low:+.4f} to {high:+.4f})"
        return f"no difference that this log could show: {row.difference.value:+.4f} a list ({low:+.4f} to {high:+.4f})"

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
    seed: int = 1,
) -> ClickEstimate:
    """What people would have clicked if `scores` [results] had ordered every list; `CannotTell` where that is unknown.

    `features` are [pairs, features]; `by` are propensities that are known from elsewhere. Where only some searches are
    `counted` [results], such as those from which the model did not learn, the others still tell propensities.
    """
    if len(scores) != len(shown):
        raise ValueError(f"{len(scores)} scores for {len(shown)} results; give one for each")
    if not np.isfinite(scores).all():
        raise ValueError("the model gives scores that are not finite, by which nothing can be ordered")
    position = new_places(shown, scores)
    inside = shown.position < MAX_POSITIONS
    asked = shown.query[inside]
    shown, position = _where(shown, inside), position[inside]
    try:
        repeated = _given(shown, by, seed) if by is not None else repeated_propensities(shown, features, bias, seed)
    except NotIdentifiable as problem:
        raise CannotTell(str(problem)) from None
    positions = _usable(repeated)
    if counted is not None:
        kept = counted[inside]
        if not kept.any():
            raise ValueError("no search is counted, so that nothing can be estimated; count some")
        shown, position = ShownResults(*(column[kept] for column in vars(shown).values())), position[kept]
        asked = asked[kept]
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
            f"{unseen:.0%} of what the model would show was never shown in a position of which anything is known, more "
            f"than {UNSEEN:.0%}"
        )
    worth = np.bincount(counts.query, weights=ratio[:, 0] * counts.clicks, minlength=counts.queries)
    effective = float(worth.sum() ** 2 / np.maximum(worth @ worth, 1e-12))
    if effective < FEWEST:
        raise CannotTell(
            f"its {int(counts.clicks.sum()):,} clicks are worth those of {effective:.0f} queries that weigh alike, and "
            f"fewer than {FEWEST:.0f} tell nothing"
        )
    logged = _logged(counts, repeated.multiples)
    both = _estimates(counts, expected, slope, extra, repeated.multiples)
    rows = [
        _row(name, "clicks a list", logged, values) for name, values in zip((IPS, DOUBLY_ROBUST), both, strict=True)
    ]
    rows.append(_replayed(shown, position, positions, repeated.multiples))
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


def new_places(shown: ShownResults, scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """[results]: where the model puts each, among the documents of its list; ties stay in the order shown."""
    order = np.lexsort((shown.position, -np.asarray(scores, np.float64), shown.search))
    before = np.lexsort((shown.position, shown.search))
    position = np.empty(len(shown), np.int64)
    position[order] = shown.position[before]
    return position


class _Counts(NamedTuple):
    """Documents: how often they were, and would be, in each position."""

    pair: NDArray[np.int64]  # [documents]
    query: NDArray[np.int64]  # [documents], from 0 to queries - 1
    here: NDArray[np.float64]  # [documents, positions]: times shown
    there: NDArray[np.float64]  # [documents, positions]: times the model would show it
    clicks: NDArray[np.float64]  # [documents], in these positions
    searches: NDArray[np.float64]  # [queries]

    @property
    def queries(self) -> int:
        return len(self.searches)


def _where(shown: ShownResults, kept: NDArray[np.bool_]) -> ShownResults:
    query, _ = numbered(shown.query[kept])
    return ShownResults(shown.pair[kept], query, shown.position[kept], shown.clicked[kept], shown.search[kept])


def _count(shown: ShownResults, position: NDArray[np.int64], positions: int, queries: int) -> _Counts:
    pair, row = np.unique(shown.pair, return_inverse=True)
    row = row.ravel()

    def table(where: NDArray[np.int64]) -> NDArray[np.float64]:
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


def _ratios(
    counts: _Counts, slope: NDArray[np.float64], cut: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """How much more each document would be seen [documents, repeats], and whether it was seen at all."""
    seen, would = counts.here @ slope.T, counts.there @ slope.T
    there = seen > 0
    return np.minimum(np.divide(would, seen, out=np.zeros_like(seen), where=there), MAX_RATIO if cut else np.inf), there


def _estimates(
    counts: _Counts,
    expected: NDArray[np.float64],
    slope: NDArray[np.float64],
    extra: NDArray[np.float64],
    multiples: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Clicks a list by (self-normalised IPS, doubly robust) [1 + repeats], the estimate first."""
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

        def total(each: NDArray[np.float64], counted: NDArray[np.float64] = counted) -> NDArray[np.float64]:
            """Sums over documents [documents, repeats], each as often as its query counts."""
            summed: NDArray[np.float64] = np.einsum("qr,rq->r", by_query @ each, counted)
            return summed

        ratio, _ = _ratios(counts, slope[some])
        seen, would, unread = counts.here @ alpha, counts.there @ alpha, total(counts.there @ beta)
        clicks = counts.clicks[:, None] - counts.here @ beta
        lists = counted @ counts.searches
        # Weighted clicks, divided by how much of what the model would show they stand for.
        ips[some] = (total(ratio * clicks) / total(ratio * seen) * total(would) + unread) / lists
        # What is expected, and the weighted clicks beyond it.
        beyond = ratio * (clicks - seen * expected[:, None])
        robust[some] = (total(would * expected[:, None] + beyond) + unread) / lists
    return ips, robust


def _usable(repeated: Repeated) -> int:
    """Positions from the top whose propensities are told at all; how unsure they are is in the intervals."""
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = spread_of(np.log(repeated.slope[1:]))
    told = np.isfinite(repeated.slope[0]) & np.isfinite(repeated.extra[0]) & (spread < MAX_SPREAD)
    return int(np.argmin(told)) if not told.all() else len(told)


def _logged(counts: _Counts, multiples: NDArray[np.int64]) -> NDArray[np.float64]:
    """Clicks a list that were logged, and in all repeats."""
    clicks = np.bincount(counts.query, weights=counts.clicks, minlength=counts.queries)
    return np.concatenate([[clicks.sum() / counts.searches.sum()], multiples @ clicks / (multiples @ counts.searches)])


def _row(name: str, unit: str, logged: NDArray[np.float64], values: NDArray[np.float64], note: str = "") -> EstimateRow:
    return EstimateRow(name, unit, float(logged[0]), _interval(values), _interval(values - logged), note)


def _interval(values: NDArray[np.float64]) -> Interval:
    error = CERTAIN * float(np.std(values[1:], ddof=1))
    return Interval(float(values[0]), float(values[0]) - error, float(values[0]) + error)


def _regression(
    counts: _Counts, slope: NDArray[np.float64], extra: NDArray[np.float64], features: Features
) -> NDArray[np.float64]:
    """[documents]: relevance as features tell it, each half of the queries by a regression on the other half."""
    seen = counts.here @ slope
    rate = np.divide(counts.clicks - counts.here @ extra, seen, out=np.zeros_like(seen), where=seen > 0)
    table = np.asarray(features[counts.pair], np.float64)
    spread = table.std(axis=0)
    table = (table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    table = np.column_stack([np.ones(len(table)), table])
    expected = np.zeros(len(rate))
    for half in (0, 1):
        fit, use = counts.query % 2 != half, counts.query % 2 == half
        weighed = table[fit] * seen[fit, None]
        weights = np.linalg.solve(weighed.T @ table[fit] + _RIDGE * np.eye(table.shape[1]), weighed.T @ rate[fit])
        expected[use] = np.clip(table[use] @ weights, 0.0, 1.0)
    return expected


def _replayed(
    shown: ShownResults, position: NDArray[np.int64], positions: int, multiples: NDArray[np.int64]
) -> EstimateRow:
    """The clicks, discounted by where they would be and by where they were."""
    _, first = np.unique(shown.search, return_index=True)
    queries = multiples.shape[1]
    searches = np.bincount(shown.query[first], minlength=queries).astype(np.float64)
    found = []
    for where in (shown.position, position):
        gains = np.where(where < positions, shown.clicked / np.log2(where + 2.0), 0.0)
        total = np.bincount(shown.query, weights=gains, minlength=queries)
        found.append(np.concatenate([[total.sum() / searches.sum()], multiples @ total / (multiples @ searches)]))
    return _row(REPLAY, "discounted clicks a list", found[0], found[1], BIASED)


def _given(shown: ShownResults, by: Propensities, seed: int) -> Repeated:
    """Propensities from elsewhere are the same in all repeats."""
    assert by.how == GIVEN
    multiples = drawn_queries(int(shown.query.max()) + 1, REPEATS, seed)
    slope, extra = (np.tile(values, (REPEATS + 1, 1)) for values in (by.slope, by.extra))
    return Repeated(by, multiples, slope, extra)
