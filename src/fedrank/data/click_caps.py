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
RULES = (ROBOT, EVERYWHERE, HOURLY, SHARE)
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
    chosen = np.ones(len(client), bool)
    everywhere = (clicks == lengths) & (lengths > _FEW) if caps.clicks_list is not None else ~chosen
    cut: dict[str, Cut] = {}
    for rule, find in zip(RULES, (_robots, _everywhere, _hourly, _share), strict=True):
        out = chosen & find(caps, np.asarray(client), np.asarray(time), np.where(chosen, clicks, 0), chosen)
        out |= chosen & everywhere if rule == EVERYWHERE else False
        if out.any():
            cut[rule] = Cut(int(out.sum()), int(clicks[out].sum()), len(np.unique(client[out])))
        chosen &= ~out
    return chosen, cut


def _robots(caps: ClickCaps, client: Any, time: Any, clicks: Any, chosen: Any) -> NDArray[np.bool_]:
    """All lists of clients with too many lists within sixty minutes."""
    out = np.zeros(len(client), bool)
    if caps.robot is None or len(client) <= caps.robot:
        return out
    order = np.lexsort((time, client))
    clients, times = client[order], time[order]
    fast = (clients[caps.robot :] == clients[: -caps.robot]) & (times[caps.robot :] - times[: -caps.robot] < _HOUR)
    return np.isin(client, np.unique(clients[caps.robot :][fast]))


def _everywhere(caps: ClickCaps, client: Any, time: Any, clicks: Any, chosen: Any) -> NDArray[np.bool_]:
    out: NDArray[np.bool_] = clicks > (len(clicks) and clicks.max() if caps.clicks_list is None else caps.clicks_list)
    return out


def _hourly(caps: ClickCaps, client: Any, time: Any, clicks: Any, chosen: Any) -> NDArray[np.bool_]:
    """Lists that exceed the hourly number of lists or clicks of their client."""
    hour = time // _HOUR
    out = np.zeros(len(client), bool)
    for limit, amount in ((caps.lists_hour, chosen.astype(np.int64)), (caps.clicks_hour, clicks.astype(np.int64))):
        if limit is not None:
            out |= _running(np.lexsort((hour, client)), (client, hour), amount) > limit
    return out


def _share(caps: ClickCaps, client: Any, time: Any, clicks: Any, chosen: Any) -> NDArray[np.bool_]:
    if caps.share is None or not len(client):
        return np.zeros(len(client), bool)
    limit = fair_share(np.bincount(client, clicks).astype(np.float64), caps.share, caps.least)
    out: NDArray[np.bool_] = _running(np.argsort(client, kind="stable"), (client,), clicks.astype(np.int64)) > limit
    return out


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
