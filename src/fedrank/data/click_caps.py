"""Limits on what one client can contribute to a log. Browsers write events, so anyone can write any number.

A limit leaves out whole lists, never single clicks: a list of which some clicks are gone would mean that people saw
documents and did not want them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROBOT = "of clients that search like a robot"
EVERYWHERE = "with clicks nearly everywhere"
HOURLY = "beyond what a client may add in an hour"
SHARE = "beyond a client's share of all clicks"
RULES = (ROBOT, EVERYWHERE, HOURLY, SHARE)
_HOUR = 3600
_FEW = 5  # documents of a list that a person may open all


@dataclass(frozen=True)
class ClickCaps:
    """How much of one client counts. None of these: no such limit."""

    robot: int | None = 300  # lists in an hour: one every twelve seconds is no person, and nothing of it counts
    clicks_list: int | None = 10  # on one list, or all of more than five: people open a few, scripts open everything
    lists_hour: int | None = 60  # one a minute for an hour; what comes behind them does not count
    clicks_hour: int | None = 60  # the same for clicks
    share: float | None = 0.1  # of all clicks that count: ten clients at least must agree on what is good
    least: int = 100  # clicks that a client may have whatever its share, or small logs would be empty

    def __post_init__(self) -> None:
        for name in ("robot", "clicks_list", "lists_hour", "clicks_hour"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value} leaves no list of any client; use 1 or more, or None for no limit")
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"share = {self.share} is no share of all clicks; use one above 0 and up to 1")
        if self.least < 1:
            raise ValueError(f"least = {self.least} leaves nothing of a client in a small log; use 1 or more")


class Cut(NamedTuple):
    """What one rule left out."""

    lists: int
    clicks: int
    clients: int  # that had them


def apply_caps(
    caps: ClickCaps,
    client: NDArray[np.integer],
    time: NDArray[np.integer],
    clicks: NDArray[np.integer],
    lengths: NDArray[np.integer],
) -> tuple[NDArray[np.bool_], dict[str, Cut]]:
    """Which lists count, and what each rule left out. Lists stand in order of time.

    `clicks` [lists] fell on each of them, on different documents, of which each has `lengths`.
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
    """All lists of clients that had too many in any sixty minutes."""
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
    """Lists behind so many of the same client and hour, or behind so many clicks."""
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
    """How many clicks a client may have, so none has more than a share of those that then count.

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
    """[lists]: how much a group has with this one and those before it; `order` puts groups together."""
    if not len(order):
        return amount
    total = np.cumsum(amount[order])
    new = np.concatenate(([True], np.any([np.diff(key[order]) != 0 for key in keys], axis=0)))
    before = np.maximum.accumulate(np.where(new, total - amount[order], 0))
    running = np.empty(len(order), np.int64)
    running[order] = total - before
    return running
