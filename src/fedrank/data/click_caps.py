"""Limits on what one client can contribute to a log, since a browser can write any number of events.

A limit removes complete lists, never single clicks: a list without some of its clicks would count documents as seen
and rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROBOT = "of clients that search like a robot"
EVERYWHERE = "with clicks on nearly every document"
HOURLY = "above the hourly limit of a client"
SHARE = "above a client's share of all clicks"
_HOUR = 3600
_FEW = 5  # a person may open every document of a list of this length


@dataclass(frozen=True)
class ClickCaps:
    """Limits per client; None disables a limit."""

    robot: int | None = 300  # lists per hour; a client above it is a robot, and none of its lists count
    clicks_list: int | None = 10  # clicks per list, or all of more than five documents: people open only a few
    lists_hour: int | None = 60  # lists per hour; further lists do not count
    clicks_hour: int | None = 60  # clicks per hour; further clicks do not count
    share: float | None = 0.1  # of all counted clicks; 0.1 makes at least ten clients necessary
    least: int = 100  # clicks that a client may always have, so small logs do not become empty

    def __post_init__(self) -> None:
        for name in ("robot", "clicks_list", "lists_hour", "clicks_hour"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, or None for no limit (got {value})")
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"share must be greater than 0 and at most 1 (got {self.share})")
        if self.least < 1:
            raise ValueError(f"least must be at least 1 (got {self.least})")


class Cut(NamedTuple):
    """What one rule removed."""

    lists: int
    clicks: int
    clients: int  # number of affected clients


def apply_caps(
    caps: ClickCaps,
    client: NDArray[np.integer],
    time: NDArray[np.integer],
    clicks: NDArray[np.integer],
    lengths: NDArray[np.integer],
) -> tuple[NDArray[np.bool_], dict[str, Cut]]:
    """Return which lists count, and what each rule removed. Lists are ordered by time.

    `clicks` [lists] is the number of clicked documents in each list, `lengths` the number of its documents.
    """
    client, time = np.asarray(client), np.asarray(time)
    chosen = np.ones(len(client), bool)
    cut: dict[str, Cut] = {}

    def leave_out(rule: str, which: NDArray[np.bool_]) -> None:
        out = chosen & which
        if out.any():
            cut[rule] = Cut(int(out.sum()), int(clicks[out].sum()), len(np.unique(client[out])))
        chosen[out] = False

    if caps.robot is not None:
        leave_out(ROBOT, _robots(client, time, caps.robot))
    if caps.clicks_list is not None:
        leave_out(EVERYWHERE, (clicks > caps.clicks_list) | ((clicks == lengths) & (lengths > _FEW)))
    hour, above = time // _HOUR, np.zeros(len(client), bool)
    for limit, amount in ((caps.lists_hour, chosen), (caps.clicks_hour, np.where(chosen, clicks, 0))):
        if limit is not None:
            above |= _running(np.lexsort((hour, client)), (client, hour), amount.astype(np.int64)) > limit
    leave_out(HOURLY, above)
    if caps.share is not None and len(client):
        counted = np.where(chosen, clicks, 0).astype(np.int64)
        most = fair_share(np.bincount(client, counted).astype(np.float64), caps.share, caps.least)
        leave_out(SHARE, _running(np.argsort(client, kind="stable"), (client,), counted) > most)
    return chosen, cut


def _robots(client: NDArray[Any], time: NDArray[Any], most: int) -> NDArray[np.bool_]:
    """All lists of clients with more than this number of lists within sixty minutes."""
    order = np.lexsort((time, client))
    clients, times = client[order], time[order]
    fast = (clients[most:] == clients[:-most]) & (times[most:] - times[:-most] < _HOUR)
    return np.isin(client, np.unique(clients[most:][fast]))


def fair_share(clicks: NDArray[np.floating[Any]], share: float, least: int) -> int:
    """The largest number of clicks per client at which no client exceeds its share of the clicks that then count.

    >>> fair_share(np.array([1000.0] + [10.0] * 90), 0.1, least=5)
    100
    """
    limit = int(clicks.max(initial=0))
    while limit > least:
        fair = int(share * float(np.minimum(clicks, limit).sum()))
        if fair >= limit:
            break
        limit = max(fair, least)
    return max(limit, least)


def _running(order: Any, keys: tuple[Any, ...], amount: NDArray[np.int64]) -> NDArray[np.int64]:
    """[lists]: running total of `amount` within each group; `order` makes groups contiguous."""
    if not len(order):
        return amount
    total = np.cumsum(amount[order])
    new = np.concatenate(([True], np.any([np.diff(key[order]) != 0 for key in keys], axis=0)))
    before = np.maximum.accumulate(np.where(new, total - amount[order], 0))
    running = np.empty(len(order), np.int64)
    running[order] = total - before
    return running
