"""How much a position hides: what clicks of a log say about looking, apart from what they say about documents.

People look at the first position more often than at the tenth, so that clicks tell where a document stood as much as
how good it is. Where documents changed positions, both can be told apart: the same document for the same query, clicked
less further down, is looked at less (intervention harvesting; Agarwal et al., WSDM 2019). Two positions that shared
documents are like two players, a click is a win, and the strengths of all positions are those of Bradley and Terry; the
likelihood of all pairs of positions has the same solution. Where documents moved too little for that, the features say
which documents are alike (regression EM; Wang et al., WSDM 2018). Where they never moved, nobody can tell.

People may also trust what stands high and click it unread. Clicks of a position are then an affine function of
relevance (Agarwal et al., WWW 2019), whose slope and intercept come from documents that moved, up to those of the first
position.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.seeds import rng_for
from fedrank.types import Features

Bias = Literal["position", "trust"]
BIASES: tuple[Bias, ...] = ("position", "trust")
SHARED, OWN = "shared", "own"  # whose clicks tell: those of all clients together, or each client's
IN_THE_CLEAR = "shared propensities come from the clicks of all clients, as they are: no mechanism and no ε covers them"
INTERVENTIONS, REGRESSION, GIVEN = "documents that changed positions", "regression EM", "given"

REPEATS = 200  # of the bootstrap over queries
MAX_GROUPS = 20_000  # of queries that it draws, so that millions of queries fit into memory
CERTAIN = 1.96  # standard errors on either side of an interval
WIDEST = 4.0  # an interval over a larger factor tells nothing of its position
MAX_POSITIONS = 50  # from the top of which something is said
ENOUGH = 0.5  # share of the clicks below the first position that must be in positions of which something is known
MAX_WEIGHT = (
    20.0  # of a corrected click: positions that are looked at less often count as if they were looked at so often
)
PRECISION = 0.2  # that swaps are priced for: standard error of a propensity, as a part of it
NEARLY_ALL = 0.95  # of the clicks are in the positions that swaps are priced for
DIGITS = 6  # of propensities and their intervals: solvers differ between processors by 1e-11, results may not

TRUST_NOTE = (
    "what the first position adds by itself cannot be told from relevance; it is in the relevance of all documents "
    "alike, which changes no order"
)
_EM_STEPS, _EM_REPEATS, _EM_CELLS = 500, 30, 20_000
_EM_APART = 0.1  # by which two solutions from different beginnings may differ in any position
_EXPLAINED = 0.5  # share of the differences between documents of one position that features must explain
_CONTRADICTS = 3.0  # standard errors between what features and what documents that moved say of a position
_LOOKED_AT_FOR_TRUST = 5  # positions from the top
_FARTHEST = 12.0  # logarithm of a strength, beyond which it is no number
_RIDGE = 1e-6


@dataclass(frozen=True, eq=False)
class ShownResults:
    """Results that were shown, one row for each; a pair is a query with one of its documents."""

    pair: NDArray[np.int64]
    query: NDArray[np.int64]
    position: NDArray[np.int64]  # from 0
    clicked: NDArray[np.bool_]
    search: NDArray[np.int64]  # which list it is of

    def __len__(self) -> int:
        return len(self.pair)

    @staticmethod
    def of_lists(
        lists: NDArray[np.integer],
        clicks: NDArray[np.integer],
        first: NDArray[np.integer],
        query: NDArray[np.integer],
    ) -> ShownResults:
        """From lists [searches, longest] of pairs, -1 behind the end of a shorter one; `first`: positions before it."""
        if lists.shape != clicks.shape or len(first) != len(lists) or len(query) != len(lists):
            raise ValueError(
                f"lists {lists.shape}, clicks {clicks.shape}, {len(first)} first positions, {len(query)} queries: all "
                "must describe the same searches"
            )
        search, column = np.nonzero(lists >= 0)
        return ShownResults(
            pair=lists[search, column].astype(np.int64),
            query=np.asarray(query, np.int64)[search],
            position=column + np.asarray(first, np.int64)[search],
            clicked=np.asarray(clicks)[search, column] > 0,
            search=search,
        )

    def of_searches(self, which: NDArray[np.bool_]) -> ShownResults:
        """Some of the searches: [searches] says which."""
        kept = which[self.search]
        return ShownResults(*(getattr(self, name)[kept] for name in ("pair", "query", "position", "clicked", "search")))


@dataclass(frozen=True, eq=False)
class SwapOffer:
    """What random swaps of neighbours would cost people, and what they would tell.

    In every search one pair of neighbours is drawn, and swapped in half of the cases.
    """

    searches: int  # that are needed
    clicks_lost: float  # of all of them together, at most
    share_lost: float  # of their clicks, at most
    precision: float  # standard error of the last position's propensity, as a part of it
    positions: int  # that would be known

    def __str__(self) -> str:
        return (
            f"random swaps of two neighbours in {self.searches:,} searches of repeated queries would tell how often "
            f"each of {self.positions} positions is looked at, the last to {self.precision:.0%}, and cost people at "
            f"most {self.clicks_lost:,.0f} clicks ({self.share_lost:.2%} of those searches' clicks)"
        )


class NotIdentifiable(ValueError):
    """Clicks of this log do not tell documents from positions."""

    def __init__(self, because: str, offer: SwapOffer | None = None) -> None:
        super().__init__(
            f"positions cannot be told from documents: {because}; nothing is corrected"
            + (f". {str(offer)[0].upper()}{str(offer)[1:]}" if offer is not None else "")
        )
        self.because, self.offer = because, offer


@dataclass(frozen=True, eq=False)
class Propensities:
    """Click rates of a position compared with the first: slope x (rate in the first position) + extra."""

    slope: NDArray[np.float64]  # [positions], 1 in the first; NaN: not known
    extra: NDArray[np.float64]  # [positions], 0 in the first; clicks that come from trust, 0 where only positions count
    low: NDArray[np.float64]  # [positions]: interval of the slope
    high: NDArray[np.float64]
    how: str  # where they come from
    moved: int = 0  # pairs of a query and a document that changed positions
    queries: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.slope) or {len(self.extra), len(self.low), len(self.high)} != {len(self.slope)}:
            raise ValueError("propensities need a slope, an extra and an interval for every position")
        known = self.slope[self.known]
        if not len(known) or not np.all(known > 0) or not np.all(np.isfinite(self.extra[self.known])):
            raise ValueError(
                f"slopes {self.slope.tolist()} divide nothing; use positive numbers, 1 in the first position"
            )

    @property
    def known(self) -> NDArray[np.bool_]:
        return np.isfinite(self.slope)

    def at(self, position: NDArray[np.integer]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(slope, extra) of positions; NaN where nothing is known."""
        inside = np.minimum(position, len(self.slope) - 1)
        beyond = position >= len(self.slope)
        return np.where(beyond, np.nan, self.slope[inside]), np.where(beyond, np.nan, self.extra[inside])

    def as_json(self) -> dict[str, Any]:
        """As a file holds it; None where nothing is known."""
        found = asdict(self)
        for name in ("slope", "extra", "low", "high"):
            found[name] = [None if not math.isfinite(value) else value for value in getattr(self, name).tolist()]
        return found | {"notes": list(self.notes)}


def given_propensities(slope: Any, extra: Any = None) -> Propensities:
    """Propensities that are known from elsewhere, such as an experiment; relative to the first position."""
    values = np.array(slope, dtype=np.float64)
    more = np.zeros_like(values) if extra is None else np.array(extra, dtype=np.float64)
    return Propensities(values, more, values, values, GIVEN)


@dataclass(frozen=True)
class CorrectedClicks:
    """What would have been clicked in the first position, on average."""

    relevance: NDArray[np.float32]  # [results]; NaN where the position is not known
    clipped: float  # share of clicks whose weight was cut
    unknown: float  # share of clicks in positions of which nothing is known


def correct(clicked: NDArray[np.bool_], position: NDArray[np.integer], by: Propensities) -> CorrectedClicks:
    """Clicks as if everything had stood in the first position; weights are MAX_WEIGHT at most."""
    slope, extra = by.at(position)
    values = (clicked - extra) / np.maximum(slope, 1 / MAX_WEIGHT)
    clicks = max(int(clicked.sum()), 1)
    return CorrectedClicks(
        values.astype(np.float32),
        float(np.sum(clicked & (slope < 1 / MAX_WEIGHT)) / clicks),
        float(np.sum(clicked & np.isnan(slope)) / clicks),
    )


class Repeated(NamedTuple):
    """Propensities, and what they would be with other queries of the same kind."""

    found: Propensities
    multiples: NDArray[np.int64]  # [repeats, queries]: how often each query counts, in the order of their numbers
    slope: NDArray[np.float64]  # [1 + repeats, positions]: as found, however unsure, then in all repeats
    extra: NDArray[np.float64]


def propensities_of(
    shown: ShownResults, features: Features | None = None, bias: Bias = "position", seed: int = 1
) -> Propensities:
    """Propensities by position from a log, by the first way that works; `NotIdentifiable` says why none does.

    `features` [pairs, features] are for regression EM. Intervals are over queries.
    """
    return repeated_propensities(shown, features, bias, seed).found


def repeated_propensities(
    shown: ShownResults, features: Features | None = None, bias: Bias = "position", seed: int = 1
) -> Repeated:
    """The same with all repeats of the bootstrap over queries."""
    if bias not in BIASES:
        raise ValueError(f"no bias {bias!r} is known; use one of {', '.join(BIASES)}")
    meetings = meetings_of(shown)
    clicks = int(shown.clicked.sum())
    if not clicks:
        raise NotIdentifiable("nothing was clicked")
    if not meetings.moved:
        raise NotIdentifiable("no document changed its position for the same query", offer_swaps(shown))
    multiples = drawn_queries(meetings.queries, REPEATS, seed)
    if bias == "trust":
        return _trusting(shown, meetings, multiples)
    logs = np.vstack([strengths(meetings.clicks(None)), strengths(meetings.clicks(multiples))])
    found = _with_intervals(logs, meetings, INTERVENTIONS)
    if _enough(found, shown):
        found = replace(found, notes=_signs_of_trust(meetings, multiples))
        return Repeated(found, multiples, np.exp(logs), np.zeros_like(logs))
    if features is not None:
        return _by_regression(shown, features, meetings, logs, seed)
    raise NotIdentifiable(
        f"only {meetings.moved:,} documents changed positions, too few for an interval within a factor of {WIDEST:g}",
        offer_swaps(shown),
    )


# Documents that moved


@dataclass(frozen=True, eq=False)
class Meetings:
    """Pairs of positions that shared a document: one row for each query and pair of positions, a < b."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    query: NDArray[np.int64]  # [rows], from 0 to queries - 1
    sums: NDArray[np.float64]  # [rows, 7]: weight; x, y, xy of click rates in a and b; the last three see `_trusting`
    positions: int
    queries: int
    moved: int  # documents

    def clicks(self, multiples: NDArray[np.int64] | None) -> NDArray[np.float64]:
        """[repeats, positions, positions]: entry (a, b) are the weighted clicks in a of documents also in b."""
        summed = self.summed(multiples)
        clicks = np.zeros((len(summed), self.positions, self.positions))
        a, b = np.divmod(np.arange(self.positions**2), self.positions)
        clicks[:, a, b] += summed[..., 1]
        clicks[:, b, a] += summed[..., 2]
        return clicks

    def summed(self, multiples: NDArray[np.int64] | None) -> NDArray[np.float64]:
        """[repeats, positions x positions, 7]: sums over queries, each counted `multiples` [repeats, queries] times."""
        from scipy import sparse

        cell = self.a * self.positions + self.b
        cells, width = self.positions**2, self.sums.shape[1]
        if multiples is None:
            multiples = np.ones((1, self.queries), np.int64)
        out = np.empty((len(multiples), cells, width))
        for column in range(width):
            table = sparse.csr_matrix((self.sums[:, column], (cell, self.query)), shape=(cells, self.queries))
            out[:, :, column] = (table @ multiples.T).T
        return out


def meetings_of(shown: ShownResults) -> Meetings:
    """For every document that was in two positions: click rates in both, weighed by how much the two tell together.

    The weight n m / (n + m) of n times in one and m times in the other position does not depend on clicks, so that any
    two positions are compared by the same documents (the paper weighs all alike, which tells less).
    """
    cells = _cells(shown)
    pair, position, times, clicks, query, positions = (*cells.columns, cells.positions)
    left, right = _within(pair)
    n, m = times[left], times[right]
    weight = n * m / (n + m)
    x, y = clicks[left] / n, clicks[right] / m
    squares = np.where(n > 1, clicks[left] * (clicks[left] - 1) / np.maximum(n * (n - 1), 1), 0.0)
    twice = np.where(n > 1, weight, 0.0)
    values = np.stack([weight, weight * x, weight * y, twice, twice * x, twice * x * y, twice * squares], axis=1)
    values = np.column_stack([values, twice * y])
    rows = (query[left] * positions + position[left]) * positions + position[right]
    met, of_row = np.unique(rows, return_inverse=True)
    sums: NDArray[Any] = np.stack(
        [np.bincount(of_row.ravel(), weights=column, minlength=len(met)) for column in values.T], axis=1
    )
    rest, b = np.divmod(met, positions)
    q, a = np.divmod(rest, positions)
    return Meetings(a, b, q, sums, positions, cells.queries, len(np.unique(pair[left])))


class _Cells(NamedTuple):
    """Documents in a position, one row for each, sorted by document."""

    pair: NDArray[np.int64]
    position: NDArray[np.int64]
    times: NDArray[np.float64]  # shown
    clicks: NDArray[np.float64]
    query: NDArray[np.int64]  # from 0 to queries - 1
    positions: int
    queries: int

    @property
    def columns(self) -> tuple[Any, ...]:
        return self[:5]

    def of_queries(self, which: NDArray[np.int64]) -> _Cells:
        kept = np.isin(self.query, which)
        pair, position, times, clicks, query = (column[kept] for column in self.columns)
        return _Cells(pair, position, times, clicks, query, self.positions, self.queries)


def _cells(shown: ShownResults) -> _Cells:
    inside = shown.position < MAX_POSITIONS
    positions = int(shown.position[inside].max(initial=0)) + 1
    keys, of_result, times = np.unique(
        shown.pair[inside] * positions + shown.position[inside], return_inverse=True, return_counts=True
    )
    clicks: NDArray[np.float64] = np.zeros(len(keys))
    clicks += np.bincount(of_result.ravel(), weights=shown.clicked[inside], minlength=len(keys))
    pair, position = np.divmod(keys, positions)
    asked = np.zeros(len(keys), np.int64)
    asked[of_result.ravel()] = shown.query[inside]
    query, queries = numbered(asked)
    return _Cells(pair, position, times.astype(np.float64), clicks, query, positions, queries)


def numbered(query: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Queries by number from 0, and how many; of very many, groups, which vary together as much as they do apart."""
    names, number = np.unique(query, return_inverse=True)
    return number.ravel() % MAX_GROUPS, min(len(names), MAX_GROUPS)


def _within(pair: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All two positions of one pair; `pair` is sorted."""
    left, right, step = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 1
    while True:
        first = np.flatnonzero(pair[:-step] == pair[step:])
        if not len(first):
            return np.concatenate(left), np.concatenate(right)
        left.append(first)
        right.append(first + step)
        step += 1


def drawn_queries(queries: int, repeats: int, seed: int) -> NDArray[np.int64]:
    """[repeats, queries]: how often each query is in a sample of as many, drawn with replacement."""
    return rng_for(seed, "bootstrap over queries").multinomial(queries, np.full(queries, 1 / queries), size=repeats)


def strengths(clicks: NDArray[np.float64]) -> NDArray[np.float64]:
    """[repeats, positions]: logarithms of propensities, 0 in the first position; NaN where no clicks tell.

    Newton's method on the likelihood of Bradley and Terry: of the clicks in a and b of documents that were in both,
    the share in a is p_a / (p_a + p_b).
    """
    repeats, positions = clicks.shape[:2]
    both = clicks + clicks.transpose(0, 2, 1)
    logs = np.zeros((repeats, positions))
    for _ in range(50):
        share = 1 / (1 + np.exp(logs[:, None, :] - logs[:, :, None]))  # p_a / (p_a + p_b)
        slope = (clicks - both * share).sum(axis=2)
        curve = both * share * (1 - share)
        matrix = -curve
        matrix[:, np.arange(positions), np.arange(positions)] += curve.sum(axis=2) + _RIDGE
        step = np.zeros_like(logs)
        if positions > 1:
            step[:, 1:] = np.linalg.solve(matrix[:, 1:, 1:], slope[:, 1:, None])[..., 0]
        logs = np.clip(logs + np.clip(step, -2, 2), -_FARTHEST, _FARTHEST)
        if np.abs(step).max() < 1e-10:
            break
    reached = _reached(both)
    return np.where(reached & (np.abs(logs) < _FARTHEST), logs, np.nan)


def _reached(weight: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[repeats, positions]: which positions met the first one, directly or through others."""
    reached = np.zeros(weight.shape[:2], bool)
    reached[:, 0] = True
    for _ in range(weight.shape[1]):
        reached |= np.einsum("rab,ra->rb", weight > 0, reached) > 0
    return reached


def _with_intervals(logs: NDArray[np.float64], meetings: Meetings, how: str) -> Propensities:
    """The first row is the estimate, the others are repeats of it."""
    with np.errstate(invalid="ignore"):
        error = CERTAIN * spread_of(logs[1:])
    sure = np.isfinite(logs[0]) & (2 * error < math.log(WIDEST))
    value: NDArray[np.float64] = np.where(sure, np.exp(logs[0]), np.nan)
    return Propensities(
        value.round(DIGITS),
        np.zeros(len(value)),
        np.where(sure, np.exp(logs[0] - error), np.nan).round(DIGITS),
        np.where(sure, np.exp(logs[0] + error), np.nan).round(DIGITS),
        how,
        meetings.moved,
        meetings.queries,
    )


def spread_of(repeats: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviation; infinite where a repeat has no value."""
    lost = np.isnan(repeats).any(axis=0)
    return np.where(lost, np.inf, np.std(np.where(np.isnan(repeats), 0, repeats), axis=0, ddof=1))


def _enough(found: Propensities, shown: ShownResults) -> bool:
    """Whether most clicks below the first position are in positions that are known."""
    slope, _ = found.at(shown.position)
    below = slope[shown.clicked & (shown.position > 0)]
    return bool(found.known[0] and len(below) and np.isfinite(below).mean() >= ENOUGH)


# Trust


def _trusting(shown: ShownResults, meetings: Meetings, multiples: NDArray[np.int64]) -> Repeated:
    """Slopes and extras of all positions from how click rates of the same documents in two positions go together."""
    slopes, extras = affine(meetings.summed(None), meetings.positions)
    more, extra = affine(meetings.summed(multiples), meetings.positions)
    logs = np.vstack([np.log(slopes), np.log(more)])
    found = _with_intervals(logs, meetings, INTERVENTIONS)
    unsure = spread_of(extra)
    sure = found.known & np.isfinite(extras[0]) & np.isfinite(unsure)
    made = Propensities(
        np.where(sure, found.slope, np.nan),
        np.where(sure, np.round(extras[0], DIGITS), np.nan),
        found.low,
        found.high,
        INTERVENTIONS,
        meetings.moved,
        meetings.queries,
        (TRUST_NOTE,),
    )
    if not _enough(made, shown):
        raise NotIdentifiable(
            "trust needs documents that were shown at least twice in each of two positions, and whose click rates "
            f"there differ clearly; {meetings.moved:,} documents that moved do not tell slopes within a factor of "
            f'{WIDEST:g}; use bias = "position", which is wrong where people trust the top',
            offer_swaps(shown),
        )
    return Repeated(made, multiples, np.exp(logs), np.vstack([extras, extra]))


def _signs_of_trust(meetings: Meetings, multiples: NDArray[np.int64]) -> tuple[str, ...]:
    """A warning where clicks of the same documents in two positions are not in proportion."""
    with np.errstate(all="ignore"):
        _, extras = affine(meetings.summed(None), meetings.positions)
        _, repeats = affine(meetings.summed(multiples), meetings.positions)
        errors = extras[0] / spread_of(repeats)
    for position in range(1, min(meetings.positions, _LOOKED_AT_FOR_TRUST)):
        if errors[position] < -_CONTRADICTS:
            return (
                f"documents get fewer clicks in position {position + 1} than in proportion to the first "
                f"({extras[0][position]:+.3f}, {-errors[position]:.0f} standard errors), as where people trust the "
                "top; "
                'position-only propensities are wrong then: use bias = "trust"',
            )
    return ()


def affine(summed: NDArray[np.float64], positions: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(slopes, extras) [repeats, positions] from sums over documents that were in two positions, the upper one twice.

    Rates x above and y below are noisy, so that least squares would be too flat; the noise is in the square of x
    alone, and c (c - 1) / (n (n - 1)) is a square without it.
    """
    repeats = len(summed)
    table = summed.reshape(repeats, positions, positions, -1)
    weight = table[..., 3]
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y, xy, xx = (table[..., column] / weight for column in (4, 7, 5, 6))
        steep = (xy - x * y) / (xx - x * x)
    good = (weight > 0) & np.isfinite(steep) & (steep > 0)
    weight, steep, x, y = (np.where(good, values, 0.0) for values in (weight, steep, x, y))
    # log slope_b - log slope_a = log steep, by weighted least squares over all pairs of positions
    logs = _levels(weight, np.where(good, np.log(np.where(good, steep, 1.0)), 0.0))
    slopes = np.where(_reached(weight + weight.transpose(0, 2, 1)), np.exp(logs), np.nan)
    # extra_b / slope_b - extra_a / slope_a = y / slope_b - x / slope_a
    level = np.nan_to_num(slopes, nan=1.0)
    offset = _levels(weight, np.where(good, y / level[:, None, :] - x / level[:, :, None], 0.0))
    return slopes, offset * slopes


def _levels(weight: NDArray[np.float64], difference: NDArray[np.float64]) -> NDArray[np.float64]:
    """[repeats, positions]: levels, 0 for the first, whose differences (b above a) come nearest to the given ones."""
    repeats, positions = weight.shape[:2]
    both = weight + weight.transpose(0, 2, 1)
    matrix = -both
    matrix[:, np.arange(positions), np.arange(positions)] += both.sum(axis=2) + _RIDGE
    pulls = (weight * difference).sum(axis=1) - (weight * difference).sum(axis=2)
    levels = np.zeros((repeats, positions))
    if positions > 1:
        levels[:, 1:] = np.linalg.solve(matrix[:, 1:, 1:], pulls[:, 1:, None])[..., 0]
    return levels


# Documents that are alike


def _by_regression(
    shown: ShownResults, features: Features, meetings: Meetings, harvested: NDArray[np.float64], seed: int
) -> Repeated:
    """Regression EM from two beginnings, which must end in one place, and agree with the documents that did move."""
    cells = _cells(shown)
    if len(cells.pair) > _EM_CELLS:  # some of the queries are enough
        order = rng_for(seed, "regression EM").permutation(cells.queries)
        cells = cells.of_queries(order[: cells.queries * _EM_CELLS // len(cells.pair)])
    pair, position, times, clicks, query, positions = (*cells.columns, cells.positions)
    table = np.asarray(features[pair], np.float64)
    spread = table.std(axis=0)
    table = (table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    table = np.column_stack([np.ones(len(table)), table])
    flat, steep = np.ones(positions), 1 / np.arange(1, positions + 1)
    (one, rates), (other, _) = (regression_em(position, times, clicks, table, begin) for begin in (flat, steep))
    seen = np.bincount(position, weights=clicks, minlength=positions) > 0
    if np.abs(np.log(one / other))[seen].max(initial=0) > _EM_APART:
        raise NotIdentifiable(
            f"only {meetings.moved:,} documents changed positions, and their features explain clicks as well with "
            "positions that are all looked at as with positions that are not",
            offer_swaps(shown),
        )
    if (share := explained(position, times, clicks, rates)) < _EXPLAINED:
        raise NotIdentifiable(
            f"only {meetings.moved:,} documents changed positions, and features explain {max(share, 0):.0%} of how "
            f"documents of one position differ, less than {_EXPLAINED:.0%}; relevance is no function of them",
            offer_swaps(shown),
        )
    multiples = drawn_queries(cells.queries, _EM_REPEATS, seed)
    repeats = [regression_em(position, times * more, clicks * more, table, one)[0] for more in multiples[:, query]]
    logs = np.log(np.vstack([one, *repeats]))
    logs[:, ~seen] = np.nan  # of a position that was never clicked every repeat says the same, and knows nothing
    error = np.hypot(spread_of(logs[1:]), spread_of(harvested[1:]))
    with np.errstate(invalid="ignore"):
        apart = np.abs(logs[0] - harvested[0]) > _CONTRADICTS * error
    if np.any(apart & seen):
        raise NotIdentifiable(
            f"{meetings.moved:,} documents that changed positions contradict what features say of position "
            f"{np.flatnonzero(apart & seen)[0] + 1}, so that relevance is no function of these features",
            offer_swaps(shown),
        )
    found = _with_intervals(logs, meetings, REGRESSION)
    if not _enough(found, shown):
        raise NotIdentifiable(
            f"only {meetings.moved:,} documents changed positions, and features do not tell propensities within a "
            f"factor of {WIDEST:g}",
            offer_swaps(shown),
        )
    note = "relevance is taken to be a function of the features; where it is not, these propensities are wrong"
    return Repeated(replace(found, notes=(note,)), multiples, np.exp(logs), np.zeros_like(logs))


def regression_em(
    position: NDArray[np.int64],
    times: NDArray[np.float64],
    clicks: NDArray[np.float64],
    table: NDArray[np.float64],
    begin: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Propensities [positions], 1 in the first position, and click rates of the rows that follow from them.

    Rows are documents in a position, with how often they were shown and clicked.

    A click was looked at and found relevant, with a probability that is logistic in the features. Regression EM climbs
    this likelihood step by step; here it is climbed along its slope, which ends in the same place, and far sooner.
    """
    from scipy.optimize import minimize

    positions, width = len(begin), table.shape[1]

    def scores(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        # Not `@`: its threads wait for each other ten times as long as such small products take.
        found: NDArray[np.float64] = np.einsum("rf,f->r", table, weights)
        return np.clip(found, -30, 30)

    def cost(free: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        looked = np.exp(np.concatenate([[0.0], free[: positions - 1]]))[position]
        weights = free[positions - 1 :]
        relevant = 1 / (1 + np.exp(-scores(weights)))
        rate = np.minimum(looked * relevant, 1 - 1e-9)
        value = np.sum(clicks * np.log(rate) + (times - clicks) * np.log1p(-rate)) - np.sum(weights**2) / 2
        by_log = clicks - (times - clicks) * rate / (1 - rate)  # slope by the logarithm of the rate
        by_position = np.bincount(position, weights=by_log, minlength=positions)[1:]
        by_weight = np.einsum("rf,r->f", table, by_log * (1 - relevant)) - weights
        return -float(value), -np.concatenate([by_position, by_weight])

    free = np.concatenate([np.log(begin[1:]), np.zeros(width)])
    bounds = [(-_FARTHEST, 0.0)] * (positions - 1) + [(None, None)] * width
    found = minimize(cost, free, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _EM_STEPS})
    looked = np.exp(np.concatenate([[0.0], found.x[: positions - 1]]))
    return looked, looked[position] / (1 + np.exp(-scores(found.x[positions - 1 :])))


def explained(
    position: NDArray[np.int64], times: NDArray[np.float64], clicks: NDArray[np.float64], rates: NDArray[np.float64]
) -> float:
    """Share of the differences between documents of one position, in how often they are clicked, that `rates` have,
    too.

    From documents that were there at least twice: c (c - 1) / (n (n - 1)) is a squared rate without noise. 0 where no
    document was.
    """
    twice = times > 1
    where, n, c, own = position[twice], times[twice], clicks[twice], rates[twice]
    count = np.maximum(np.bincount(where), 1)
    mean, mean_own = (np.bincount(where, weights=values) / count for values in (c / n, own))
    all_of_it = float(np.sum(c * (c - 1) / (n * (n - 1)) - mean[where] ** 2))
    together = float(np.sum((c / n - mean[where]) * (own - mean_own[where])))
    return together / all_of_it if all_of_it > 0 else 0.0


# What it would cost to find out


def offer_swaps(shown: ShownResults, precision: float = PRECISION) -> SwapOffer | None:
    """How many searches with random swaps of neighbours tell the last position's propensity so precisely; None: no
    clicks.

    The last position is the one down to which nearly all clicks are.
    Swapping positions with click rates c > d costs at most (√c - √d)^2 clicks, whatever part of the difference is due
    to positions. Counts are independent, and no larger than they would be: the offer promises too little.
    """
    lists = np.bincount(shown.position)
    clicked = np.bincount(shown.position, weights=shown.clicked)
    rates = clicked / np.maximum(lists, 1)
    known = int(np.argmin(rates > 0)) if np.any(rates <= 0) else len(rates)
    known = min(known, int(np.searchsorted(np.cumsum(clicked), NEARLY_ALL * clicked.sum())) + 1)
    if known < 2:
        return None
    rates = rates[:known]
    above, below = rates[:-1], rates[1:]
    neighbours = known - 1
    least = np.minimum(above, below)
    # Of n searches, n / neighbours have these two positions, and half of them are swapped.
    variance = neighbours * np.sum(2 / (above + below) + 1 / least)
    needed = math.ceil(variance / precision**2)
    lost = needed / 2 * np.mean((np.sqrt(above) - np.sqrt(below)) ** 2)
    return SwapOffer(needed, float(lost), float(lost / (needed * rates.sum())), precision, known)
