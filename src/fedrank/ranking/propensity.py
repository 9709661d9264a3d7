"""Estimate examination propensities by position from the clicks of a log, separately from relevance.

Users examine the first position more often than the tenth, so clicks depend on the position as well as on relevance.
If documents changed positions, both can be separated: the same document for the same query that is clicked less at a
lower position is examined less (intervention harvesting; Agarwal et al., WSDM 2019). Positions that shared documents
are compared as in a Bradley-Terry model, in which a click is a win; the likelihood of all pairs of positions has the
same solution. If documents moved too little, features identify similar documents (regression EM; Wang et al., WSDM
2018). If they never moved, propensities are not identifiable.

Users may also trust high positions and click without reading. The click rate of a position is then an affine function
of relevance (Agarwal et al., WWW 2019), whose slope and intercept are estimated from documents that moved, relative to
the first position.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.seeds import rng_for
from fedrank.types import Features

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]
Bias = Literal["position", "trust"]
BIASES: tuple[Bias, ...] = ("position", "trust")
# Source of clicks: all clients together, each client alone, or noised counts of logged random swaps.
SHARED, OWN, SWAPS = "shared", "own", "swaps"
IN_THE_CLEAR = "shared propensities are estimated from the raw clicks of all clients; no mechanism and no ε covers them"
INTERVENTIONS, REGRESSION, GIVEN = "documents that changed positions", "regression EM", "given"

REPEATS = 200  # of the bootstrap over queries
MAX_GROUPS = 20_000  # maximum number of resampled groups of queries, to bound memory
CERTAIN = 1.96  # standard errors on either side of a confidence interval
WIDEST = 4.0  # maximum ratio of the ends of a usable confidence interval
MAX_POSITIONS = 50  # positions from the top that are estimated
ENOUGH = 0.5  # minimum share of clicks below position 1 in positions with known propensities
MAX_WEIGHT = 20.0  # maximum weight of a corrected click; smaller propensities are clipped
PRECISION = 0.2  # target of swaps: relative standard error of a propensity
NEARLY_ALL = 0.95  # share of clicks in the positions that swaps cover
DIGITS = 6  # of propensities and intervals: solvers differ between CPUs by 1e-11, results must not

TRUST_NOTE = (
    "the intercept of the first position cannot be separated from relevance; it is part of the relevance of all "
    "documents, which does not change their order"
)
_EM_STEPS, _EM_REPEATS, _EM_CELLS = 500, 30, 20_000
_EM_APART = 0.1  # maximum difference of two solutions from different starts in any position
_EXPLAINED = 0.5  # minimum share of the variance between documents of one position that features explain
_CONTRADICTS = 3.0  # maximum standard errors between both methods for a position
_LOOKED_AT_FOR_TRUST = 5  # positions from the top that are tested for trust bias
_FARTHEST = 12.0  # maximum absolute logarithm of a strength
_RIDGE = 1e-6
_SEED = 1
_STEP = 1.0  # standard deviation of the change in trust from position 1 to 2, in logarithms; 1 / k of it from k on
_VALID = 0.9  # minimum share of repeats in which two positions are comparable


@dataclass(frozen=True, eq=False)
class ShownResults:
    """Shown results, one per row; a pair is a query with one of its documents."""

    pair: Integers
    query: Integers
    position: Integers  # from 0
    clicked: NDArray[np.bool_]
    search: Integers  # the list it belongs to

    def __len__(self) -> int:
        return len(self.pair)

    @staticmethod
    def of_lists(
        lists: NDArray[np.integer], clicks: NDArray[np.integer], first: NDArray[np.integer], query: NDArray[np.integer]
    ) -> ShownResults:
        """Build from lists [searches, longest] of pairs, padded with -1; `first` is the offset of a list."""
        if lists.shape != clicks.shape or len(first) != len(lists) or len(query) != len(lists):
            raise ValueError(
                f"lists {lists.shape}, clicks {clicks.shape}, {len(first)} first positions and {len(query)} queries "
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

    def select(self, kept: NDArray[np.bool_]) -> ShownResults:
        """Return some of the results."""
        return ShownResults(*(column[kept] for column in vars(self).values()))


@dataclass(frozen=True, eq=False)
class SwapOffer:
    """The cost and the benefit of swapping random adjacent results.

    In every search one pair of adjacent positions is drawn, and swapped with probability 1/2.
    """

    searches: int  # number of searches needed
    clicks_lost: float  # maximum number of clicks lost in all of them
    share_lost: float  # maximum share of their clicks lost
    precision: float  # relative standard error of the last position's propensity
    positions: int  # number of positions with known propensities

    def __str__(self) -> str:
        return (
            f"random swaps of two adjacent results in {self.searches:,} searches of repeated queries would determine "
            f"the propensities of {self.positions} positions, the last to {self.precision:.0%}, at a cost of at most "
            f"{self.clicks_lost:,.0f} clicks ({self.share_lost:.2%} of the clicks of those searches)"
        )


class NotIdentifiable(ValueError):
    """The clicks of this log do not identify propensities."""

    def __init__(self, because: str, offer: SwapOffer | None = None) -> None:
        super().__init__(
            f"propensities are not identifiable: {because}; no clicks are corrected"
            + (f". {str(offer)[0].upper()}{str(offer)[1:]}" if offer is not None else "")
        )
        self.because, self.offer = because, offer


@dataclass(frozen=True, eq=False)
class Propensities:
    """Click rates by position relative to the first: slope x (rate in the first position) + extra."""

    slope: Reals  # [positions], 1 in the first; NaN: unknown
    extra: Reals  # [positions], 0 in the first; clicks due to trust, 0 in a position-only model
    low: Reals  # [positions]: confidence interval of the slope
    high: Reals
    how: str  # method of estimation
    moved: int = 0  # number of pairs of query and document that changed positions
    queries: int = 0
    notes: tuple[str, ...] = ()
    # [directions, 2, positions]: joint changes of slopes and extras by one standard error; None: `low` and `high` only
    directions: Reals | None = None

    def __post_init__(self) -> None:
        if not len(self.slope) or {len(self.extra), len(self.low), len(self.high)} != {len(self.slope)}:
            raise ValueError("propensities must have a slope, an extra and an interval for every position")
        known = self.slope[self.known]
        if not len(known) or not np.all(known > 0) or not np.all(np.isfinite(self.extra[self.known])):
            raise ValueError(f"slopes must be positive, and 1 in the first position (got {self.slope.tolist()})")

    @property
    def known(self) -> NDArray[np.bool_]:
        return np.isfinite(self.slope)

    def at(self, position: NDArray[np.integer]) -> tuple[Reals, Reals]:
        """Return (slope, extra) of positions; NaN if unknown."""
        inside = np.minimum(position, len(self.slope) - 1)
        beyond = position >= len(self.slope)
        return np.where(beyond, np.nan, self.slope[inside]), np.where(beyond, np.nan, self.extra[inside])

    def as_json(self) -> dict[str, Any]:
        """Return JSON content; None for unknown values."""
        found = asdict(self)
        found.pop("directions")
        for name in ("slope", "extra", "low", "high"):
            found[name] = [None if not math.isfinite(value) else value for value in getattr(self, name).tolist()]
        return found | {"notes": list(self.notes)}


def given_propensities(slope: Any, extra: Any = None) -> Propensities:
    """Return known propensities, for example from an experiment, relative to the first position."""
    values = np.array(slope, dtype=np.float64)
    more = np.zeros_like(values) if extra is None else np.array(extra, dtype=np.float64)
    return Propensities(values, more, values, values, GIVEN)


@dataclass(frozen=True)
class CorrectedClicks:
    """Clicks corrected for position bias: expected clicks in the first position."""

    relevance: NDArray[np.float32]  # [results]; NaN if the propensity is unknown
    clipped: float  # share of clicks with a clipped weight
    unknown: float  # share of clicks in positions with unknown propensity


def correct(clicked: NDArray[np.bool_], position: NDArray[np.integer], by: Propensities) -> CorrectedClicks:
    """Correct clicks as if all results had been in the first position; weights are at most MAX_WEIGHT."""
    slope, extra = by.at(position)
    values = (clicked - extra) / np.maximum(slope, 1 / MAX_WEIGHT)
    clicks = max(int(clicked.sum()), 1)
    return CorrectedClicks(
        values.astype(np.float32),
        float(np.sum(clicked & (slope < 1 / MAX_WEIGHT)) / clicks),
        float(np.sum(clicked & np.isnan(slope)) / clicks),
    )


class Repeated(NamedTuple):
    """Propensities with their bootstrap repeats over queries."""

    found: Propensities
    multiples: Integers  # [repeats, queries]: multiplicity of each query
    slope: Reals  # [1 + repeats, positions]: the estimate, even if uncertain, then all repeats
    extra: Reals


def propensities_of(shown: ShownResults, features: Features | None = None, bias: Bias = "position") -> Propensities:
    """Estimate propensities by position from a log with the first method that works, or raise `NotIdentifiable`.

    `features` [pairs, features] are for regression EM. Confidence intervals are over queries.
    """
    return repeated_propensities(shown, features, bias).found


def repeated_propensities(shown: ShownResults, features: Features | None = None, bias: Bias = "position") -> Repeated:
    """Like `propensities_of`, with all repeats of the bootstrap over queries."""
    if bias not in BIASES:
        raise ValueError(f"bias must be one of {', '.join(BIASES)} (got {bias!r})")
    meetings = meetings_of(shown)
    clicks = int(shown.clicked.sum())
    if not clicks:
        raise NotIdentifiable("the log has no clicks")
    if not meetings.moved:
        raise NotIdentifiable("no document changed its position for the same query", offer_swaps(shown))
    multiples = drawn_queries(meetings.queries, REPEATS)
    if bias == "trust":
        return _trusting(shown, meetings, multiples)
    logs = np.vstack([strengths(meetings.clicks(None)), strengths(meetings.clicks(multiples))])
    found = _with_intervals(logs, meetings, INTERVENTIONS)
    if _enough(found, shown):
        found = replace(found, notes=_signs_of_trust(meetings, multiples))
        return Repeated(found, multiples, np.exp(logs), np.zeros_like(logs))
    if features is not None:
        return _by_regression(shown, features, meetings, logs)
    raise NotIdentifiable(
        f"only {meetings.moved:,} documents changed positions, too few for an interval within a factor of {WIDEST:g}",
        offer_swaps(shown),
    )


# Documents that moved


@dataclass(frozen=True, eq=False)
class Meetings:
    """Pairs of positions that shared a document: one row per query and pair of positions, a < b."""

    a: Integers
    b: Integers
    query: Integers  # [rows], from 0 to queries - 1
    sums: Reals  # [rows, 8]: weight, and x, y of click rates in a and b; for the others see `affine`
    positions: int
    queries: int
    moved: int  # number of documents that moved

    def clicks(self, multiples: Integers | None) -> Reals:
        """[repeats, positions, positions]: entry (a, b) are the weighted clicks in a of documents also in b."""
        summed = self.summed(multiples)
        clicks = np.zeros((len(summed), self.positions, self.positions))
        a, b = np.divmod(np.arange(self.positions**2), self.positions)
        clicks[:, a, b] += summed[..., 1]
        clicks[:, b, a] += summed[..., 2]
        return clicks

    def summed(self, multiples: Integers | None) -> Reals:
        """[repeats, positions x positions, 7]: sums over queries, weighted by `multiples` [repeats, queries]."""
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
    """Compute the click rates of every document that was in two positions, weighted by their joint information.

    The weight n m / (n + m) of n impressions in one and m in the other position does not depend on clicks, so any two
    positions are compared by the same documents (the paper uses equal weights, which is less efficient).
    """
    pair, position, times, clicks, query, positions, queries = _cells(shown)
    left, right = _within(pair)
    n, m = times[left], times[right]
    weight = n * m / (n + m)
    x, y = clicks[left] / n, clicks[right] / m
    squares = np.where(n > 1, clicks[left] * (clicks[left] - 1) / np.maximum(n * (n - 1), 1), 0.0)
    twice = np.where(n > 1, weight, 0.0)
    values = (weight, weight * x, weight * y, twice, twice * x, twice * x * y, twice * squares, twice * y)
    rows = (query[left] * positions + position[left]) * positions + position[right]
    met, of_row = np.unique(rows, return_inverse=True)
    sums: NDArray[Any] = np.stack(
        [np.bincount(of_row.ravel(), weights=column, minlength=len(met)) for column in values], axis=1
    )
    rest, b = np.divmod(met, positions)
    q, a = np.divmod(rest, positions)
    return Meetings(a, b, q, sums, positions, queries, len(np.unique(pair[left])))


def _cells(shown: ShownResults) -> tuple[Integers, Integers, Reals, Reals, Integers, int, int]:
    """Documents in a position, sorted by document: (pair, position, impressions, clicks, query, positions, queries)."""
    inside = shown.position < MAX_POSITIONS
    positions = int(shown.position[inside].max(initial=0)) + 1
    keys, of_result, times = np.unique(
        shown.pair[inside] * positions + shown.position[inside], return_inverse=True, return_counts=True
    )
    clicks: Reals = np.zeros(len(keys))
    clicks += np.bincount(of_result.ravel(), weights=shown.clicked[inside], minlength=len(keys))
    pair, position = np.divmod(keys, positions)
    asked = np.zeros(len(keys), np.int64)
    asked[of_result.ravel()] = shown.query[inside]
    query, queries = numbered(asked)
    return pair, position, times.astype(np.float64), clicks, query, positions, queries


def numbered(query: Integers) -> tuple[Integers, int]:
    """Number queries from 0, and return their count; very many queries are combined into groups."""
    names, number = np.unique(query, return_inverse=True)
    return number.ravel() % MAX_GROUPS, min(len(names), MAX_GROUPS)


def _within(pair: Integers) -> tuple[Integers, Integers]:
    """All combinations of two positions of one pair; `pair` is sorted."""
    left, right, step = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 1
    while True:
        first = np.flatnonzero(pair[:-step] == pair[step:])
        if not len(first):
            return np.concatenate(left), np.concatenate(right)
        left.append(first)
        right.append(first + step)
        step += 1


def drawn_queries(queries: int, repeats: int) -> Integers:
    """[repeats, queries]: multiplicities of queries in bootstrap samples."""
    return rng_for(_SEED, "bootstrap over queries").multinomial(queries, np.full(queries, 1 / queries), size=repeats)


def strengths(clicks: Reals) -> Reals:
    """[repeats, positions]: logarithms of propensities, 0 in the first position; NaN if clicks do not identify them.

    Newton's method on the Bradley-Terry likelihood: of the clicks in a and b on documents that were in both positions,
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


def _reached(weight: Reals) -> NDArray[np.bool_]:
    """[repeats, positions]: which positions are connected to the first one by shared documents."""
    reached = np.zeros(weight.shape[:2], bool)
    reached[:, 0] = True
    for _ in range(weight.shape[1]):
        reached |= np.einsum("rab,ra->rb", weight > 0, reached) > 0
    return reached


def _with_intervals(logs: Reals, meetings: Meetings | Propensities, how: str) -> Propensities:
    """The first row is the estimate, the others are repeats of it."""
    with np.errstate(invalid="ignore"):
        error = CERTAIN * spread_of(logs[1:])
    sure = np.isfinite(logs[0]) & (2 * error < math.log(WIDEST))
    value: Reals = np.where(sure, np.exp(logs[0]), np.nan)
    return Propensities(
        value.round(DIGITS),
        np.zeros(len(value)),
        np.where(sure, np.exp(logs[0] - error), np.nan).round(DIGITS),
        np.where(sure, np.exp(logs[0] + error), np.nan).round(DIGITS),
        how,
        meetings.moved,
        meetings.queries,
    )


def spread_of(repeats: Reals) -> Reals:
    """Standard deviation; infinite if a repeat has no value."""
    lost = np.isnan(repeats).any(axis=0)
    return np.where(lost, np.inf, np.std(np.where(np.isnan(repeats), 0, repeats), axis=0, ddof=1))


def _enough(found: Propensities, shown: ShownResults) -> bool:
    """Whether most clicks below the first position are in positions with known propensities."""
    slope, _ = found.at(shown.position)
    below = slope[shown.clicked & (shown.position > 0)]
    return bool(found.known[0] and len(below) and np.isfinite(below).mean() >= ENOUGH)


# Trust


def _trusting(shown: ShownResults, meetings: Meetings, multiples: Integers) -> Repeated:
    """Estimate slopes and extras of all positions from the joint click rates of documents in two positions."""
    slopes, extras = affine(meetings.summed(None), meetings.positions)
    more, extra = affine(meetings.summed(multiples), meetings.positions)
    logs = np.vstack([np.log(slopes), np.log(more)])
    found = _with_intervals(logs, meetings, INTERVENTIONS)
    unsure = spread_of(extra)
    sure = found.known & np.isfinite(extras[0]) & np.isfinite(unsure)
    made = replace(
        found,
        slope=np.where(sure, found.slope, np.nan),
        extra=np.where(sure, np.round(extras[0], DIGITS), np.nan),
        notes=(TRUST_NOTE,),
    )
    if not _enough(made, shown):
        raise NotIdentifiable(
            "trust bias needs documents that were shown at least twice in each of two positions with clearly different "
            f"click rates; {meetings.moved:,} documents that moved do not identify slopes within a factor of "
            f'{WIDEST:g}; use bias = "position", which is wrong if users trust top positions',
            offer_swaps(shown),
        )
    return Repeated(made, multiples, np.exp(logs), np.vstack([extras, extra]))


def repeated_trust(shown: ShownResults, position: Repeated, predicted: Reals) -> Repeated:
    """Slopes and extras of all positions, with `predicted` relevance [pairs] as an instrument.

    Predictions must not depend on the clicks of the same query. For documents that were in positions a and b, the
    covariances of their click rates with the prediction then have the ratio of the slopes, so once in each position is
    enough. Trust changes less and less from position to position: where clicks do not determine slopes, they follow the
    position-only propensities, give or take _STEP / k, and all repeats include this uncertainty.
    """
    moments, where = _moments(shown, position.multiples, predicted)
    weight, x, y = moments[..., 0], moments[..., 1], moments[..., 2]
    positions = len(position.found.slope)
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y, z, xz, yz = (moments[..., column] / weight for column in range(1, 6))
        steep = np.log((yz - y * z) / (xz - x * z))
        level = np.log(position.slope)
    valid = np.isfinite(steep) & (weight > 0)
    often = valid[0] & (valid[1:].mean(axis=0) >= _VALID)
    spread = np.nanstd(np.where(valid[1:], steep[1:], np.nan)[:, often], axis=0)
    sure = np.zeros(steep.shape)
    sure[:, often] = np.where(valid[:, often], 1 / np.maximum(spread, 1e-3) ** 2, 0.0)
    steep = np.where(sure > 0, steep, 0.0)
    # Steps of the position-only propensities, as if they had been observed with the variance (_STEP / k)^2.
    step = _STEP / np.arange(1, positions)
    drawn = rng_for(_SEED, "trust").normal(size=(len(level), positions - 1)) * step
    drawn[0] = 0.0
    a = np.arange(positions - 1)
    gap = np.zeros((len(level), positions, positions))
    gap[:, a, a + 1] = np.nan_to_num(np.diff(level, axis=1)) + drawn
    prior = np.zeros((positions, positions))
    prior[a, a + 1] = 1 / step**2
    weights = np.zeros_like(gap)
    pull = np.zeros_like(gap)
    weights[:, where // positions, where % positions] = sure
    pull[:, where // positions, where % positions] = steep * sure
    logs = _levels(weights + prior, np.divide(pull + gap * prior, weights + prior, where=weights + prior > 0, out=gap))
    logs = np.where(np.isnan(level), np.nan, logs)
    slopes = np.exp(logs)
    # extra_b / slope_b - extra_a / slope_a = y / slope_b - x / slope_a
    of_a, of_b = (np.nan_to_num(slopes[:, each], nan=1.0) for each in (where // positions, where % positions))
    met = weight > 0
    for table, values in ((weights, weight * of_a * of_b), (pull, y / of_b - x / of_a)):
        table[:] = 0.0
        table[:, where // positions, where % positions] = np.where(met, values, 0.0)
    extras = _levels(weights, pull) * slopes
    found = _with_intervals(logs, position.found, INTERVENTIONS)
    sure_extra = found.known & np.isfinite(spread_of(extras[1:]))
    made = replace(
        found,
        slope=np.where(sure_extra, found.slope, np.nan),
        extra=np.where(sure_extra, np.round(extras[0], DIGITS), np.nan),
        notes=(TRUST_NOTE,),
    )
    if not _enough(made, shown):
        raise NotIdentifiable(
            f"{position.found.moved:,} documents that moved do not separate trust bias from position bias within a "
            f"factor of {WIDEST:g}",
            offer_swaps(shown),
        )
    return Repeated(made, position.multiples, slopes, extras)


def _moments(shown: ShownResults, multiples: Integers, predicted: Reals) -> tuple[Reals, Integers]:
    """Sums over documents in two positions [1 + repeats, pairs of positions, 6], and the pairs as a x positions + b."""
    pair, position, times, clicks, query, positions, queries = _cells(shown)
    left, right = _within(pair)
    n, m = times[left], times[right]
    weight = n * m / (n + m)
    x, y, z = clicks[left] / n, clicks[right] / m, predicted[pair[left]]
    values = np.stack([weight, weight * x, weight * y, weight * z, weight * x * z, weight * y * z], axis=1)
    where, cell = np.unique(position[left] * positions + position[right], return_inverse=True)
    of_query = query[left] * len(where) + cell.ravel()
    met, row = np.unique(of_query, return_inverse=True)
    sums = np.stack([np.bincount(row.ravel(), weights=column, minlength=len(met)) for column in values.T], axis=1)
    from scipy import sparse

    often = np.vstack([np.ones((1, queries)), multiples])
    found = np.empty((len(often), len(where), sums.shape[1]))
    for column in range(sums.shape[1]):
        table = sparse.csr_matrix((sums[:, column], (met % len(where), met // len(where))), (len(where), queries))
        found[:, :, column] = (table @ often.T).T
    return found, where


def _signs_of_trust(meetings: Meetings, multiples: Integers) -> tuple[str, ...]:
    """Warn if click rates of the same documents in two positions are not proportional."""
    with np.errstate(all="ignore"):
        _, extras = affine(meetings.summed(None), meetings.positions)
        _, repeats = affine(meetings.summed(multiples), meetings.positions)
        errors = extras[0] / spread_of(repeats)
    for position in range(1, min(meetings.positions, _LOOKED_AT_FOR_TRUST)):
        if errors[position] < -_CONTRADICTS:
            return (
                f"documents get fewer clicks in position {position + 1} than proportional to the first "
                f"({extras[0][position]:+.3f}, {-errors[position]:.0f} standard errors), which indicates trust bias; "
                'position-only propensities are then wrong: use bias = "trust"',
            )
    return ()


def affine(summed: Reals, positions: int) -> tuple[Reals, Reals]:
    """(slopes, extras) [repeats, positions] from sums over documents that were in two positions, the upper one twice.

    Rates x above and y below are noisy, so the slopes of least squares would be too small. The noise affects only the
    square of x, and c (c - 1) / (n (n - 1)) is an unbiased estimate of it.
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


def _levels(weight: Reals, difference: Reals) -> Reals:
    """[repeats, positions]: levels, 0 for the first, whose differences (b minus a) fit the given ones best."""
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


def _by_regression(shown: ShownResults, features: Features, meetings: Meetings, harvested: Reals) -> Repeated:
    """Regression EM from two starts, which must agree with each other and with the documents that moved."""
    pair, position, times, clicks, query, positions, queries = _cells(shown)
    if len(pair) > _EM_CELLS:  # a sample of queries is enough
        order = rng_for(_SEED, "regression EM").permutation(queries)
        kept = np.isin(query, order[: queries * _EM_CELLS // len(pair)])
        pair, position, query, times, clicks = pair[kept], position[kept], query[kept], times[kept], clicks[kept]
    table = standardised(features, pair)
    flat, steep = np.ones(positions), 1 / np.arange(1, positions + 1)
    (one, rates), (other, _) = (regression_em(position, times, clicks, table, begin) for begin in (flat, steep))
    seen = np.bincount(position, weights=clicks, minlength=positions) > 0
    if np.abs(np.log(one / other))[seen].max(initial=0) > _EM_APART:
        raise NotIdentifiable(
            f"only {meetings.moved:,} documents changed positions, and features explain clicks equally well with and "
            "without position bias",
            offer_swaps(shown),
        )
    if (share := explained(position, times, clicks, rates)) < _EXPLAINED:
        raise NotIdentifiable(
            f"only {meetings.moved:,} documents changed positions, and features explain {max(share, 0):.0%} of the "
            f"variance between documents of one position, less than {_EXPLAINED:.0%}",
            offer_swaps(shown),
        )
    multiples = drawn_queries(queries, _EM_REPEATS)
    repeats = [regression_em(position, times * more, clicks * more, table, one)[0] for more in multiples[:, query]]
    logs = np.log(np.vstack([one, *repeats]))
    logs[:, ~seen] = np.nan  # all repeats agree on a position without clicks, but without evidence
    error = np.hypot(spread_of(logs[1:]), spread_of(harvested[1:]))
    with np.errstate(invalid="ignore"):
        apart = np.abs(logs[0] - harvested[0]) > _CONTRADICTS * error
    if np.any(apart & seen):
        raise NotIdentifiable(
            f"{meetings.moved:,} documents that changed positions contradict the features in position "
            f"{np.flatnonzero(apart & seen)[0] + 1}, so relevance is not a function of these features",
            offer_swaps(shown),
        )
    found = _with_intervals(logs, meetings, REGRESSION)
    if not _enough(found, shown):
        raise NotIdentifiable(
            f"only {meetings.moved:,} documents changed positions, and features do not identify propensities within a "
            f"factor of {WIDEST:g}",
            offer_swaps(shown),
        )
    note = "these propensities assume that relevance is a function of the features; otherwise they are wrong"
    return Repeated(replace(found, notes=(note,)), multiples, np.exp(logs), np.zeros_like(logs))


def standardised(features: Features, pair: Integers) -> Reals:
    """[pairs, 1 + features]: a constant, and features with mean 0 and standard deviation 1."""
    table = np.asarray(features[pair], np.float64)
    spread = table.std(axis=0)
    return np.column_stack([np.ones(len(table)), (table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0)])


def regression_em(position: Integers, times: Reals, clicks: Reals, table: Reals, begin: Reals) -> tuple[Reals, Reals]:
    """Return propensities [positions], 1 in the first position, and the resulting click rates of the rows.

    Rows are documents in a position, with their numbers of impressions and clicks.

    A click means that a document was examined and found relevant, with a probability that is logistic in the features.
    Regression EM maximises this likelihood iteratively; gradient ascent has the same solution and is far faster.
    """
    from scipy.optimize import minimize

    positions, width = len(begin), table.shape[1]

    def scores(weights: Reals) -> Reals:
        # Not `@`: its threads wait for each other ten times as long as such small products take.
        found: Reals = np.einsum("rf,f->r", table, weights)
        return np.clip(found, -30, 30)

    def cost(free: Reals) -> tuple[float, Reals]:
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


def explained(position: Integers, times: Reals, clicks: Reals, rates: Reals) -> float:
    """Share of the variance in click rates between documents of one position that `rates` explain.

    It uses documents with at least two impressions: c (c - 1) / (n (n - 1)) is an unbiased squared rate. 0 without
    such documents.
    """
    twice = times > 1
    where, n, c, own = position[twice], times[twice], clicks[twice], rates[twice]
    count = np.maximum(np.bincount(where), 1)
    mean, mean_own = (np.bincount(where, weights=values) / count for values in (c / n, own))
    all_of_it = float(np.sum(c * (c - 1) / (n * (n - 1)) - mean[where] ** 2))
    together = float(np.sum((c / n - mean[where]) * (own - mean_own[where])))
    return together / all_of_it if all_of_it > 0 else 0.0


# The cost of an experiment


def offer_swaps(shown: ShownResults, precision: float = PRECISION) -> SwapOffer | None:
    """Return how many searches with random swaps determine the last position's propensity; None without clicks.

    The last position is that down to which nearly all clicks are. Swapping positions with click rates c > d costs at
    most (√c - √d)^2 clicks, for any part of the difference that is due to positions. Counts are assumed to be
    independent, so the estimate is conservative.
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
    # Of n searches, n / (pairs of adjacent positions) draw these two, and half of them are swapped.
    variance = neighbours * np.sum(2 / (above + below) + 1 / least)
    needed = math.ceil(variance / precision**2)
    lost = needed / 2 * np.mean((np.sqrt(above) - np.sqrt(below)) ** 2)
    return SwapOffer(needed, float(lost), float(lost / (needed * rates.sum())), precision, known)
