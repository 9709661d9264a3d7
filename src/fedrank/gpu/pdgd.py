"""PDGD's twin: linear rankers on drawn lists, a warp for each client."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.gpu.machines import Machine
from fedrank.rank.learners import Pdgd
from fedrank.rank.loops import as_sent
from fedrank.seeds import Chance
from fedrank.types import STRAIGHT, Bend, Crowd, Weights

SHOWN = 10  # as kernels/show.py has it, which is compiled and not wanted before somebody learns
LANES = 32
SHORT = 64  # documents of a list; up to here, many warps are better than many fetches
ROWS_AT_ONCE = 256  # as kernels/sums.cu has it

_ADDRESSES = (
    "rows blocks offsets places present ids pool interactions queries pools at view grades ideal user click stop "
    "attention discount starts drifts updates online scratch key"
)
_COUNTS = "documents query_count features longest users levels first taking_part many_starts batch room"
_REALS = "rate pull clip_weights clip_gradients temperature keep"
# As `struct Task` in kernels/pdgd.cu and `struct RowSum` in kernels/sums.cu have them.
TASK = np.dtype(
    [(name, kind) for names, kind in ((_ADDRESSES, "<u8"), (_COUNTS, "<i8"), (_REALS, "<f8")) for name in names.split()]
)
ROW_SUM = np.dtype(
    [(name, "<u8") for name in ("weights", "rows", "totals")]
    + [(name, "<i8") for name in ("count", "columns", "fresh")]
)
PIECES, PIECE = 8, 4096  # of a round: while one is added up, the next learns; and the fewest clients of one


def in_blocks(
    features: NDArray[np.float32], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
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


class PdgdThere:
    """A learner with its clients and their data in a machine's memory, where they are put once."""

    def __init__(self, machine: Machine, learner: Pdgd, crowd: Crowd) -> None:
        self.machine, self.learner, self.crowd = machine, learner, crowd
        data, put = crowd.data, machine.put
        blocks, places = in_blocks(data.features, data.offsets)
        self._held = {
            "rows": put(data.features),
            "blocks": put(blocks),
            "places": put(places),
            "offsets": put(data.offsets.astype(np.int64)),
            "ids": put(crowd.ids.astype(np.int64)),
            "pool": put(crowd.pool.astype(np.int32)),
            "interactions": put(crowd.interactions.astype(np.int64)),
            "queries": put(crowd.queries.astype(np.int32)),
            "pools": put(crowd.pools.astype(np.int64)),
            "view": put(crowd.view.astype(np.int32)),
            "grades": put(crowd.grades.astype(np.int8)),
            "ideal": put(crowd.ideal.astype(np.float64)),
            "user": put(crowd.user.astype(np.int32)),
            "click": put(crowd.click.astype(np.float64)),
            "stop": put(crowd.stop.astype(np.float64)),
            "attention": put(crowd.attention.astype(np.float64)),
            "discount": put(kernels.elementary.discounts(SHOWN)),
        }
        if len(crowd.at):
            self._held["at"] = put(crowd.at.astype(np.int64))
        self.features = data.features.shape[1]
        self.room = room_of(self.features, int(data.longest), learner.clip_gradients > 0)
        self.task = np.zeros((), TASK)
        for name, array in self._held.items():
            self.task[name] = machine.address(array)
        numbers = {
            "documents": data.documents, "query_count": data.queries, "features": self.features,
            "longest": data.longest, "users": len(crowd.click), "levels": crowd.click.shape[1], "batch": learner.batch,
            "room": self.room, "rate": learner.rate, "clip_weights": learner.clip_weights,
            "clip_gradients": learner.clip_gradients, "temperature": learner.temperature, "keep": learner.keep,
        }  # fmt: skip
        for name, number in numbers.items():
            self.task[name] = number
        self.bare = not (learner.keep or learner.clip_weights or learner.clip_gradients) and learner.temperature == 1
        self._updates: Any = None
        self._online: Any = None
        self._round: tuple[Any, ...] = ()
        self._loop = ""
        self._totals = machine.empty((self.features,), np.float64)

    def learn(
        self, start: Weights, chance: Chance, present: NDArray[np.int64] | None = None, bend: Bend = STRAIGHT
    ) -> tuple[Any, Any]:
        """(updates, online) of those who take part, in the machine's memory: the next call uses it again."""
        count = self._ready(start, chance, present, bend)
        self._learn(0, count)
        return self._updates[:count], self._online[:count]

    def part(
        self, start: Weights, chance: Chance, present: NDArray[np.int64] | None, weighted: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The sum of updates [features], by interactions if `weighted`, and online quality: updates stay there."""
        count = self._ready(start, chance, present, STRAIGHT)
        weights = self._held["interactions"]
        if present is not None:
            weights = self.machine.put(self.crowd.interactions[present].astype(np.int64))
        piece = max(PIECE, -(-count // PIECES))
        pieces = [(first, min(first + piece, count)) for first in range(0, count, piece)]
        self.machine.one_behind_the_other(
            [partial(self._learn, *each) for each in pieces],
            [partial(self._add_up, weights if weighted else None, *each) for each in pieces],
        )
        return self.machine.get(self._totals), self.machine.get(self._online[:count])

    def _ready(self, start: Weights, chance: Chance, present: NDArray[np.int64] | None, bend: Bend) -> int:
        """Bring what a round needs into place; returns how many take part."""
        machine, task = self.machine, self.task
        count = len(self.crowd) if present is None else len(present)
        if self._updates is None or len(self._updates) < count:
            self._updates = machine.empty((count, self.features), np.float32)
            self._online = machine.empty((count,), np.float64)
        starts = machine.put(as_sent(start))
        there = None if present is None else machine.put(present.astype(np.int64))
        drifts = None if bend.drifts is None else machine.put(bend.drifts.astype(np.float64))
        self._round = (starts, there, drifts)  # kept until the next one
        task["starts"], task["many_starts"] = machine.address(starts), len(starts) > 1
        task["present"] = 0 if there is None else machine.address(there)
        task["drifts"] = 0 if drifts is None else machine.address(drifts)
        task["updates"], task["online"] = machine.address(self._updates), machine.address(self._online)
        task["key"], task["pull"] = chance.key("learn"), self.learner.rate * bend.pull
        self._loop = "pdgd_clients"
        if self.bare and not bend.pull and drifts is None:
            self._loop = "pdgd_clients_short" if self.crowd.data.longest <= SHORT else "pdgd_clients_plain"
        return count

    def _learn(self, first: int, last: int) -> None:
        task = self.task.copy()
        task["first"], task["taking_part"] = first, last
        self.machine.each_client(self._loop, task, last - first, self.room)

    def _add_up(self, weights: Any, first: int, last: int) -> None:
        machine, columns = self.machine, self.features
        task = np.zeros((), ROW_SUM)
        task["weights"] = 0 if weights is None else machine.address(weights) + 8 * first
        task["rows"] = machine.address(self._updates) + 4 * columns * first
        task["totals"], task["count"], task["columns"] = machine.address(self._totals), last - first, columns
        task["fresh"] = first == 0
        machine.each_part("add_rows", task, -(-columns // LANES), 9 * LANES, 2 * ROWS_AT_ONCE * (4 * LANES + 8))
