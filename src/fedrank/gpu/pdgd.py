"""PDGD's twin: linear rankers on drawn lists, a warp for each client."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.gpu.machines import Machine
from fedrank.rank.learners import Pdgd
from fedrank.rank.loops import as_sent
from fedrank.seeds import Chance
from fedrank.types import STRAIGHT, Bend, Crowd, Weights

SHOWN = kernels.show.SHOWN
LANES = 32
_ADDRESSES = (
    "rows blocks offsets places present ids pool interactions queries pools at view grades ideal user click stop "
    "attention discount starts drifts updates online scratch key"
).split()
_COUNTS = "documents query_count features longest users levels taking_part many_starts batch room".split()
_REALS = "rate pull clip_weights clip_gradients temperature keep".split()
# As `struct Task` in kernels/pdgd.cu has them.
TASK = np.dtype([*((n, "<u8") for n in _ADDRESSES), *((n, "<i8") for n in _COUNTS), *((n, "<f8") for n in _REALS)])
ROW_SUM = np.dtype([*((n, "<u8") for n in ("weights", "rows", "totals")), *((n, "<i8") for n in ("count", "columns", "part"))])


def in_blocks(features: NDArray[np.float32], offsets: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features by groups of 32 documents of a query, [group, feature, 32], and where each query begins."""
    sizes, width = np.diff(offsets), features.shape[1]
    groups = -(-sizes // LANES)
    places = np.concatenate([[0], np.cumsum(groups)[:-1]]) * (width * LANES)
    padded = np.zeros((int(groups.sum()) * LANES, width), dtype=np.float32)
    rows = np.arange(len(features)) + np.repeat(np.cumsum(groups * LANES) - groups * LANES - offsets[:-1], sizes)
    padded[rows] = features
    return np.ascontiguousarray(padded.reshape(-1, LANES, width).transpose(0, 2, 1)), places.astype(np.int64)


def room_of(features: int, longest: int, clipped: bool) -> int:
    """Bytes of one warp, as `furnish` in kernels/pdgd.cu lays them out."""
    at_least = max(longest, SHOWN)
    parts = (4 * (features + 8), 8 * features, 8 * features * clipped, 8 * longest, 8 * at_least, 4 * longest)
    small = 8 * (2 * SHOWN * SHOWN + 3 * SHOWN + 1) + 4 * SHOWN
    return sum(-(-part // 16) * 16 for part in (*parts, 4 * at_least, small))


class ClientsThere:
    """Clients and their data in a machine's memory, put there once."""

    def __init__(self, machine: Machine, crowd: Crowd) -> None:
        self.machine, self.crowd = machine, crowd
        data = crowd.data
        blocks, places = in_blocks(data.features, data.offsets)
        self.arrays = {
            "rows": machine.put(data.features),
            "blocks": machine.put(blocks),
            "places": machine.put(places),
            "offsets": machine.put(data.offsets.astype(np.int64)),
            "ids": machine.put(crowd.ids.astype(np.int64)),
            "pool": machine.put(crowd.pool.astype(np.int32)),
            "interactions": machine.put(crowd.interactions.astype(np.int64)),
            "queries": machine.put(crowd.queries.astype(np.int32)),
            "pools": machine.put(crowd.pools.astype(np.int64)),
            "view": machine.put(crowd.view.astype(np.int32)),
            "grades": machine.put(crowd.grades.astype(np.int8)),
            "ideal": machine.put(crowd.ideal.astype(np.float64)),
            "user": machine.put(crowd.user.astype(np.int32)),
            "click": machine.put(crowd.click.astype(np.float64)),
            "stop": machine.put(crowd.stop.astype(np.float64)),
            "attention": machine.put(crowd.attention.astype(np.float64)),
            "discount": machine.put(kernels.elementary.discounts(SHOWN)),
        }
        if len(crowd.at):
            self.arrays["at"] = machine.put(crowd.at.astype(np.int64))
        self.updates: Any = None
        self.online: Any = None

    def learn(
        self,
        learner: Pdgd,
        start: Weights,
        chance: Chance,
        present: NDArray[np.int64] | None = None,
        bend: Bend = STRAIGHT,
    ) -> tuple[Any, Any]:
        """(updates, online) of those who take part, in the machine's memory; used again by the next call."""
        machine, crowd, data = self.machine, self.crowd, self.crowd.data
        count = len(crowd) if present is None else len(present)
        features, longest = data.features.shape[1], int(data.longest)
        if self.updates is None or len(self.updates) < count:
            self.updates = machine.empty((count, features), np.float32)
            self.online = machine.empty((count,), np.float64)
        starts = machine.put(as_sent(start))
        held = dict(self.arrays, starts=starts, updates=self.updates, online=self.online)
        if present is not None:
            held["present"] = machine.put(present.astype(np.int64))
        if bend.drifts is not None:
            held["drifts"] = machine.put(bend.drifts.astype(np.float64))
        room = room_of(features, longest, learner.clip_gradients > 0)
        task = np.zeros((), TASK)
        for name, array in held.items():
            task[name] = machine.address(array)
        task["key"] = chance.key("learn")
        numbers = {
            "documents": data.documents, "query_count": data.queries, "features": features, "longest": longest,
            "users": len(crowd.click), "levels": crowd.click.shape[1], "taking_part": count,
            "many_starts": len(starts) > 1, "batch": learner.batch, "room": room, "rate": learner.rate,
            "pull": learner.rate * bend.pull, "clip_weights": learner.clip_weights,
            "clip_gradients": learner.clip_gradients, "temperature": learner.temperature, "keep": learner.keep,
        }  # fmt: skip
        for name, number in numbers.items():
            task[name] = number
        plain = not (
            learner.keep or learner.clip_weights or learner.clip_gradients or bend.pull or bend.drifts is not None
        )
        loop = "pdgd_clients_plain" if plain and learner.temperature == 1 else "pdgd_clients"
        machine.each_client(loop, task, count, room)
        return self.updates[:count], self.online[:count]

    def part(self, learner: Pdgd, start: Weights, chance: Chance, present: NDArray[np.int64] | None, weighted: bool) -> Any:
        """What `Mean.part` makes of the updates, [features], and online quality [taking part]: updates stay there."""
        updates, online = self.learn(learner, start, chance, present)
        return self.add_up(updates, present, weighted), self.machine.get(online)

    def add_up(self, updates: Any, present: NDArray[np.int64] | None, weighted: bool) -> NDArray[np.float64]:
        """The sum of updates, by interactions if `weighted`, row by row."""
        machine, (count, columns) = self.machine, updates.shape
        weights = None
        if weighted:
            weights = self.arrays["interactions"]
            if present is not None:
                weights = machine.put(self.crowd.interactions[present].astype(np.int64))
        totals = machine.empty((1, columns), np.float64)
        task = np.zeros((), ROW_SUM)
        task["weights"] = 0 if weights is None else machine.address(weights)
        task["rows"], task["totals"] = machine.address(updates), machine.address(totals)
        task["count"], task["columns"], task["part"] = count, columns, count
        machine.each_part("add_rows", task, -(-columns // LANES), 9 * LANES)
        total: NDArray[np.float64] = machine.get(totals)[0]
        return total
