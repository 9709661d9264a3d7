"""How much a log differs from an earlier one: distributions of features, and click rates by position.

The population stability index (PSI) of a feature compares the shares of ten bins, which are tenths of the earlier log:
the sum of (new - old) ln(new / old). By the usual rule of thumb, values below 0.1 mean stability, values above 0.2 a
change that a model should be trained for.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data.logs import SearchLog, pairs_of

BINS = 10
THRESHOLD = 0.2  # PSI of a feature that has drifted
CHANGED = 0.2  # relative change of a click rate
CERTAIN = 4.0  # standard errors of such a change: users click several times, and ten positions are compared
MOST = 50_000  # lists that are read, spread evenly over the log
POSITIONS = 10
_LEAST = 1e-4  # share of an empty bin


class RateChange(NamedTuple):
    """The click rate at one position in both logs."""

    position: int  # from 1
    old: float
    new: float
    errors: float  # standard errors of the difference

    @property
    def drifted(self) -> bool:
        """Whether the change is large and certain."""
        return abs(self.new - self.old) > CHANGED * self.old and abs(self.errors) > CERTAIN


@dataclass(frozen=True)
class Drift:
    """Differences of a log from an earlier one."""

    lists: int  # that were compared, of the later log
    since: int | None  # seconds since 1970: only later lists were compared; None: all
    features: tuple[tuple[str, float], ...]  # name and PSI, largest first
    rates: tuple[RateChange, ...]  # by position; empty if lists were not shown to users

    @property
    def drifted(self) -> list[str]:
        """What has changed, a few words each."""
        found = [f"{name} (PSI {psi:.2f})" for name, psi in self.features if psi > THRESHOLD]
        rates = [
            f"clicks at position {one.position} ({one.old:.3f} to {one.new:.3f})" for one in self.rates if one.drifted
        ]
        return found + rates

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "rates": [one._asdict() for one in self.rates], "drifted": self.drifted}


def drift(log: SearchLog, earlier: SearchLog) -> Drift:
    """Compare a log with an earlier one; of a log that continues it, only later lists are compared."""
    if log.feature_names != earlier.feature_names:
        raise ValueError(
            f"{log.folder} and {earlier.folder} have different features; build both with the same --features"
        )
    last = int(earlier.time.max(initial=0)) if len(earlier) else 0
    later = np.flatnonzero(np.asarray(log.time) > last)
    continues = 0 < len(later) < len(log)
    rows, old = _some(later if continues else np.arange(len(log))), _some(np.arange(len(earlier)))
    if not len(rows) or not len(old):
        raise ValueError(f"{log.folder} or {earlier.folder} has no lists to compare")
    new_values, old_values = (one.features[pairs_of(one, some)] for one, some in ((log, rows), (earlier, old)))
    psi = [stability(old_values[:, column], new_values[:, column]) for column in range(old_values.shape[1])]
    features = sorted(zip(log.feature_names, psi, strict=True), key=lambda one: -one[1])
    rates = () if log.clicks is None or earlier.clicks is None else _rates(log, rows, earlier, old)
    return Drift(len(rows), last if continues else None, tuple(features), rates)


def stability(old: NDArray[np.floating[Any]], new: NDArray[np.floating[Any]]) -> float:
    """The population stability index of one feature."""
    edges = np.unique(np.quantile(old, np.arange(1, BINS) / BINS))
    # Values that equal an edge are in the bin below it, so a constant feature has two bins.
    shares = [
        np.maximum(np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1) / len(values), _LEAST)
        for values in (old, new)
    ]
    return float(np.sum((shares[1] - shares[0]) * np.log(shares[1] / shares[0])))


def _some(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    step = -(-len(rows) // MOST)
    return rows[:: max(step, 1)]


def _rates(
    log: SearchLog, rows: NDArray[np.int64], earlier: SearchLog, old: NDArray[np.int64]
) -> tuple[RateChange, ...]:
    counted = [_clicks(one, some) for one, some in ((earlier, old), (log, rows))]
    found = []
    for position in range(POSITIONS):
        (shown, clicked), (now_shown, now_clicked) = ((each[0][position], each[1][position]) for each in counted)
        if shown and now_shown:
            before, after = clicked / shown, now_clicked / now_shown
            pooled = (clicked + now_clicked) / (shown + now_shown)
            error = math.sqrt(pooled * (1 - pooled) * (1 / shown + 1 / now_shown))
            found.append(RateChange(position + 1, before, after, (after - before) / error if error else 0.0))
    return tuple(found)


def _clicks(log: SearchLog, rows: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Lists and clicks at each of the first positions."""
    assert log.clicks is not None
    assert log.first is not None
    there = log.lists[rows] >= 0
    position = (log.first[rows][:, None] + np.arange(there.shape[1]))[there]
    clicks = log.clicks[rows][there]
    near = position < POSITIONS
    shown = np.bincount(position[near], minlength=POSITIONS)
    return shown.tolist(), np.bincount(position[near], clicks[near], minlength=POSITIONS).astype(int).tolist()
