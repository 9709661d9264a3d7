"""Describe a search log in numbers: how skewed and bursty its use is, and how different its users are."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.held_out import about_held_out
from fedrank.data.logs import FACTS, SearchLog, lengths_of
from fedrank.seeds import rng_for

COMPARED = 10  # most active users whose clicks are compared
PLOTTED_USERS = 5  # users whose activity per day is plotted, as in AOL4FOLTR (CIKM 2025)
MIN_ENTRIES = 10  # minimum number of entries to estimate a user's burstiness
MIN_TAIL_USERS = 10  # minimum number of users in the fitted part of a power law
SAMPLE = 2000  # maximum number of clicks compared per user
POSITIONS = 1000  # positions whose clicks are counted; users rarely see later ones
_DAY = 86_400
_BLOCK_ROWS = 100_000  # lists in memory at a time


@dataclass(frozen=True)
class PowerLaw:
    """P(x) ~ x^-exponent for x >= least, fitted to counts (Clauset, Shalizi and Newman, SIAM Review 2009)."""

    exponent: float
    least: int  # smallest count that the law describes
    users: int  # number of users that the law describes
    distance: float  # Kolmogorov-Smirnov distance between the counts and the law


@dataclass(frozen=True)
class ShownDescription:
    """Statistics that only logs of shown lists have: clicks by position, and signs of forged clicks."""

    unit: str  # what a user is: "person" or "browser"
    lengths: tuple[int, int, int]  # list lengths: minimum, median, maximum
    later_pages: int  # lists that start after the first position
    unclicked: float  # share of lists without a click
    shown_at: NDArray[np.int64]  # [positions]: impressions
    clicked_at: NDArray[np.int64]  # [positions]: clicks
    dwell: float  # median dwell time on clicked documents in seconds; NaN if unknown
    has_propensities: bool  # whether the sampling probabilities of lists are known
    largest_before: tuple[float, ...]  # shares of all clicks of the most active users before limits, largest first
    largest_after: tuple[float, ...]
    capped: dict[str, dict[str, int]]  # by rule: lists, clicks and affected clients
    noticed: dict[str, int]  # unusual rows
    left_out: dict[str, int]  # rows that were not used, by reason
    redacted: dict[str, int]  # queries whose text is not stored, by reason


@dataclass(frozen=True)
class LogDescription:
    """A search log in numbers."""

    name: str
    entries: int
    users: int
    queries: int
    documents: int  # distinct, clicked
    first: int  # time of the first entry, seconds since 1970
    last: int
    clicks: NDArray[np.int64]  # [users]: entries, most active first
    half: int  # smallest number of users with half of all entries
    power_law: PowerLaw | None  # None if too few users differ
    burstiness: NDArray[np.float64]  # [users]: -1 periodic, 0 random, 1 bursty; NaN for few entries
    days: NDArray[np.int64]  # [plotted users, days]: entries of the most active users per day
    plotted_users: tuple[str, ...]  # their names
    compared: tuple[str, ...]  # users whose clicks are compared
    distances: NDArray[np.float64]  # [compared, compared]: mean Wasserstein distance in standard deviations
    by_chance: float  # mean distance after permuting clicks among the compared users
    features: tuple[tuple[str, float], ...]  # features with their mean distance, in descending order
    notes: tuple[str, ...]  # notes on the processing of the log's rows
    shown: ShownDescription | None = None  # None for synthetic lists

    @property
    def mean_distance(self) -> float:
        """Mean over all pairs of compared users; NaN if there is only one user."""
        size = len(self.distances)
        return float(self.distances.sum() / (size * (size - 1))) if size > 1 else float("nan")


def describe_log(log: SearchLog) -> LogDescription:
    """Describe a log; clicks are compared only among the most active users, with at most 2,000 entries each."""
    if not len(log):
        raise ValueError(f"{log.folder} has no entries to describe; build the data set again")
    try:
        sentences = tuple(notes(log.facts))
        shown = _shown(log) if log.is_shown else None
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(
            f"{log.folder / FACTS} does not describe the processing of the log ({problem!r}); the folder is damaged: "
            "delete it and build it again"
        ) from None
    clicks = np.bincount(log.user, minlength=len(log.users)).astype(np.int64)
    chosen = _users_with_clicks(log)[:COMPARED]
    tables = []
    for user in chosen:
        rows = log.rows_of(user)
        if len(rows) > SAMPLE:
            rows = np.sort(rng_for(1, "describe", user).choice(rows, SAMPLE, replace=False))
        tables.append(np.asarray(log.features[log.clicked(rows)], dtype=np.float64))
    chosen = [user for user, table in zip(chosen, tables, strict=True) if len(table)]
    tables = [table for table in tables if len(table)] or [np.zeros((1, log.features.shape[1]))]
    distances, per_feature = feature_distances(tables)
    mixed = rng_for(1, "by chance").permutation(np.concatenate(tables))
    ends = np.cumsum([len(table) for table in tables])
    chance, _ = feature_distances(np.split(mixed, ends[:-1]))
    pairs = max(1, len(chosen) * (len(chosen) - 1))
    order = [int(i) for i in np.argsort(-per_feature, kind="stable") if per_feature[i] > 0]
    first, last = int(log.time[0]), int(log.time[-1])
    day = (np.asarray(log.time) - first) // _DAY
    days = np.zeros((min(PLOTTED_USERS, len(log.users)), int(day[-1]) + 1), dtype=np.int64)
    for user in range(len(days)):
        np.add.at(days[user], day[log.rows_of(user)], 1)
    return LogDescription(
        name=log.folder.resolve().name,
        entries=len(log),
        users=len(log.users),
        queries=len(log.queries),
        documents=len(np.unique(log.document[log.clicked()])),
        first=first,
        last=last,
        clicks=clicks,
        half=int(np.searchsorted(np.cumsum(clicks), clicks.sum() / 2)) + 1,
        power_law=power_law(clicks),
        burstiness=_bursts(log),
        days=days,
        plotted_users=log.users[: len(days)],
        compared=tuple(log.users[user] for user in chosen),
        distances=distances,
        by_chance=float(chance.sum() / pairs) if len(chosen) > 1 else float("nan"),
        features=tuple((log.feature_names[i], float(per_feature[i])) for i in order),
        notes=sentences,
        shown=shown,
    )


def _users_with_clicks(log: SearchLog) -> list[int]:
    """Users with at least one click, most active first."""
    if log.clicks is None:
        return list(range(len(log.users)))
    blocks = [slice(i, i + _BLOCK_ROWS) for i in range(0, len(log), _BLOCK_ROWS)]
    some = [log.user[block][log.clicks[block].any(axis=1)] for block in blocks]
    return [int(user) for user in np.unique(np.concatenate(some))]


def _shown(log: SearchLog) -> ShownDescription:
    entries = np.arange(len(log))
    shown_at, clicked_at = np.zeros(POSITIONS, np.int64), np.zeros(POSITIONS, np.int64)
    unclicked = 0
    assert log.clicks is not None, "a log of shown lists has clicks"
    assert log.first is not None, "a log of shown lists has positions"
    for begin in range(0, len(log), _BLOCK_ROWS):
        some = slice(begin, begin + _BLOCK_ROWS)
        positions = log.first[some][:, None] + np.arange(log.lists.shape[1])
        for counts, which in ((shown_at, log.lists[some] >= 0), (clicked_at, log.clicks[some] > 0)):
            counts += np.bincount(positions[which & (positions < POSITIONS)], minlength=POSITIONS)
        unclicked += int(np.count_nonzero(~log.clicks[some].any(axis=1)))
    last = int(np.flatnonzero(shown_at)[-1]) + 1 if shown_at.any() else 0
    lengths = lengths_of(log, entries)
    known = log.dwell[~np.isnan(log.dwell)] if log.dwell is not None else np.empty(0)
    largest = log.facts.get("largest", {})
    return ShownDescription(
        unit=log.unit,
        lengths=(int(lengths.min()), int(np.median(lengths)), int(lengths.max())),
        later_pages=int(np.count_nonzero(log.first)),
        unclicked=unclicked / len(log),
        shown_at=shown_at[:last],
        clicked_at=clicked_at[:last],
        dwell=float(np.median(known)) if len(known) else float("nan"),
        has_propensities=log.drawn is not None,
        largest_before=tuple(map(float, largest.get("before", ()))),
        largest_after=tuple(map(float, largest.get("after", ()))),
        capped={
            rule: {name: int(one[name]) for name in ("lists", "clicks", "clients")}
            for rule, one in log.facts.get("capped", {}).items()
        },
        noticed={reason: int(one["rows"]) for reason, one in log.facts.get("noticed", {}).items()},
        left_out={reason: int(one["rows"]) for reason, one in log.facts.get("left_out", {}).items()},
        redacted={reason: int(n) for reason, n in log.facts.get("redacted", {}).items()},
    )


def power_law(counts: NDArray[np.integer]) -> PowerLaw | None:
    """Fit a discrete power law by maximum likelihood; the bound is the best one with at least 10 users."""
    from scipy.optimize import minimize_scalar
    from scipy.special import zeta

    counts = np.sort(np.asarray(counts, dtype=np.int64))
    counts = counts[counts > 0]
    best: PowerLaw | None = None
    for least in np.unique(counts).tolist():
        tail = counts[counts >= least]
        values, repeats = np.unique(tail, return_counts=True)
        if len(tail) < MIN_TAIL_USERS or len(values) < 2:
            break
        mean = float(np.log(tail).mean())
        fitted = minimize_scalar(
            lambda a, least=least, mean=mean: float(np.log(zeta(a, least))) + a * mean,
            bounds=(1.01, 10.0),
            method="bounded",
        )
        exponent = float(fitted.x)
        law = 1 - zeta(exponent, values + 1) / zeta(exponent, least)  # P(x <= value)
        seen = np.cumsum(repeats) / len(tail)
        distance = float(np.abs(law - seen).max())
        if best is None or distance < best.distance:
            best = PowerLaw(exponent, int(least), len(tail), distance)
    return best


def burstiness(times: NDArray[np.integer]) -> float:
    """(σ - μ) / (σ + μ) of the gaps between entries (Goh and Barabási, EPL 2008); NaN for fewer than two gaps.

    >>> burstiness(np.array([0, 10, 20, 30]))
    -1.0
    """
    gaps = np.diff(np.sort(np.asarray(times, dtype=np.int64))).astype(np.float64)
    if len(gaps) < 2 or not gaps.any():
        return float("nan")
    return float((gaps.std() - gaps.mean()) / (gaps.std() + gaps.mean()))


def feature_distances(tables: list[NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Wasserstein distances [users, users], mean over features; and [features], mean over pairs of users.

    Features are measured in standard deviations of all rows; constant features count as 0 and are not averaged.
    """
    from scipy.stats import wasserstein_distance

    together = np.concatenate(tables)
    spread = together.std(axis=0)
    varying = np.flatnonzero(spread > 1e-9 * np.maximum(np.abs(together).max(axis=0), 1e-30))
    distances = np.zeros((len(tables), len(tables)))
    per_feature = np.zeros(together.shape[1])
    pairs = [(one, other) for one in range(len(tables)) for other in range(one)]
    for one, other in pairs:
        for column in varying:
            distance = wasserstein_distance(tables[one][:, column], tables[other][:, column]) / spread[column]
            distances[one, other] += distance / len(varying)
            per_feature[column] += distance / len(pairs)
    return distances + distances.T, per_feature


def _bursts(log: SearchLog) -> NDArray[np.float64]:
    order = np.argsort(log.user, kind="stable")
    ends = np.cumsum(np.bincount(log.user, minlength=len(log.users)))
    times = np.split(np.asarray(log.time)[order], ends[:-1])
    return np.array([burstiness(one) if len(one) >= MIN_ENTRIES else np.nan for one in times])


def description_as_json(found: LogDescription) -> str:
    """Return all numbers as JSON text; unknown values are null."""
    values = {key: value for key, value in asdict(found).items() if key != "shown" or value is not None}
    return json.dumps(_plain(values), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def date_of(seconds: int) -> str:
    """Seconds since 1970 as a date."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):  # years beyond 9999 or before 1
        return f"{seconds:,} s"


def _plain(value: Any) -> Any:
    """Convert to JSON values: arrays to lists, NaN to null."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def notes(facts: dict[str, Any]) -> list[str]:
    """Return sentences on the processing of a log's rows."""
    counts = facts["counts"]
    lines = [
        f"{counts['rows']:,} rows, {counts['sound']:,} of them valid; the data set contains {counts['entries']:,} "
        f"entries of {counts['users']:,} users with {counts['queries']:,} queries",
        *_reasons("left out", facts["left_out"]),
        *(f"dropped, {reason}: {n:,}" for reason, n in facts["dropped"].items() if n),
        *_reasons("noticed", facts.get("noticed", {})),
        *(f"also, {what}: {n:,}" for what, n in facts.get("also", {}).items()),
        *(
            f"redacted, {reason}: {n:,} queries, whose text is not stored"
            for reason, n in facts.get("redacted", {}).items()
        ),
    ]
    if held := facts.get("held_out"):
        lines.append(about_held_out(held))
    if counts.get("clicks") == 0:
        lines.append("no list has a click, so nothing can be learned; set --action to the event that counts as a click")
    if facts.get("unit") == "browser":
        lines.append("users are browsers, not persons: one person may have several, and several may share one")
    if facts["out_of_order"]:
        lines.append(f"{facts['out_of_order']:,} entries were out of order; the log was sorted by time")
    if facts["broken_documents"]:
        lines.append(
            f"{facts['broken_documents']:,} documents contain bytes that are not UTF-8; these were replaced by �"
        )
    if heavy := facts["heavy_user"]:
        lines.append(
            f"user {heavy['user']} has {heavy['entries']:,} of the entries ({heavy['share']:.0%}), the next one "
            f"{heavy['next']:,}; it may be a robot; use --exclude {heavy['user']} to leave it out"
        )
    return lines


def _reasons(what: str, rows: dict[str, Any]) -> list[str]:
    """Reasons, each with the number of rows and their first lines."""
    return [
        f"{what}, {reason}: {one['rows']:,} (lines {', '.join(map(str, one['lines']))}"
        f"{', ...' if one['rows'] > len(one['lines']) else ''})"
        for reason, one in rows.items()
    ]
