"""PDGD for linear rankers on a GPU: sampled lists, one warp per client."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.kernels.devices import Device, DeviceError
from fedrank.names import did_you_mean
from fedrank.ranking.loops import as_sent
from fedrank.seeds import Chance
from fedrank.types import NO_CORRECTION, Clip, Learned, LocalCorrection, Observed, SimulatedClients, Weights

SHOWN = 10  # as in kernels/show.py, whose import would compile kernels too early
LANES = 32
SHORT = 64  # documents per list; up to this length, more warps are faster than more loads in flight
ROWS_AT_ONCE = 256  # as in kernels/sums.cu

_ADDRESSES = (
    "rows blocks offsets places present ids pool interactions queries pools at view grades ideal "  # prose: ok
    "user click stop attention discount starts drifts updates online scratch key"
)
_COUNTS = "documents query_count features longest users levels first taking_part many_starts batch room"
_REALS = "rate pull clip_weights clip_gradients temperature keep"
# The layouts of `struct Task` in kernels/pdgd.cu and `struct RowSum` in kernels/sums.cu.
TASK = np.dtype(
    [(name, kind) for names, kind in ((_ADDRESSES, "<u8"), (_COUNTS, "<i8"), (_REALS, "<f8")) for name in names.split()]
)
ROW_SUM = np.dtype(
    [(name, "<u8") for name in ("weights", "rows", "totals")]
    + [(name, "<i8") for name in ("count", "columns", "fresh")]
    + [("which", "<u8")]
)
CLIPPED_SUM = np.dtype(  # the layout of `struct ClippedSum` in kernels/clip.cu
    [(name, "<u8") for name in ("rows", "weights", "totals")]
    + [(name, "<i8") for name in ("count", "columns", "norm")]
    + [(name, "<f8") for name in ("clip", "step")]
)
FEATURES = ("float32", "float16")
MAX_HALF = 65504.0
PIECES, PIECE = 16, 4096  # pieces per round, so sums overlap with learning; and the minimum of clients per piece


def in_blocks(
    features: NDArray[np.floating[Any]], offsets: NDArray[np.int64], step: int = 8
) -> tuple[NDArray[np.floating[Any]], NDArray[np.int64]]:
    """Return features in groups of 32 documents of a query, [group, feature, 32], and the start of each query.

    The last group of a query has only as many documents as needed, rounded up to a multiple of `step`; see
    kernels/show.cu. Features of two bytes are in groups of 64, in pairs.
    """
    width, half = features.shape[1], features.dtype == np.float16
    group = 2 * LANES if half else LANES
    sizes = np.diff(offsets)
    rounded = sizes // group * group + -(-(sizes % group) // step) * step
    places = (np.concatenate([[0], np.cumsum(rounded)[:-1]]) * width).astype(np.int64)
    blocks = np.zeros(int(rounded.sum()) * width + group, dtype=features.dtype)  # idle lanes read past the end
    for query, place in enumerate(places):
        for first in range(int(offsets[query]), int(offsets[query + 1]), group):
            some = features[first : min(first + group, int(offsets[query + 1]))]
            padded = group if len(some) == group else -(-len(some) // step) * step
            rows = blocks[place : place + width * padded].reshape(width, padded)
            if half:
                pairs = padded // 2
                rows[:, : 2 * min(pairs, len(some)) : 2] = some[:pairs].T
                rows[:, 1 : 2 * max(len(some) - pairs, 0) : 2] = some[pairs:].T
            else:
                rows[:, : len(some)] = some.T
            place += width * padded
    return blocks, places


def rounded_features(features: NDArray[np.float32], kind: str) -> NDArray[np.floating[Any]]:
    """Return features as stored on the device: "float32" unchanged, or "float16", rounded to two bytes."""
    if kind not in FEATURES:
        raise ValueError(
            f"unknown type of features {kind!r}{did_you_mean(kind, FEATURES)}; use one of {', '.join(FEATURES)}"
        )
    if kind == "float32":
        return features
    largest = float(np.abs(features).max(initial=0.0))
    if not largest <= MAX_HALF:
        raise DeviceError(
            f"a feature has the value {largest:g}, but the maximum of float16 is {MAX_HALF:g}; normalise the features, "
            "or use float32"
        )
    return features.astype(np.float16)


def aligned(*parts: int) -> int:
    """The size of consecutive parts in bytes; each part begins at a multiple of 16."""
    return sum(-(-part // 16) * 16 for part in parts)


def shared_bytes_of(features: int, longest: int, clipped: bool) -> int:
    """Bytes per warp, in the layout of `furnish` in kernels/pdgd.cu."""
    at_least = max(longest, SHOWN)
    parts = (4 * (features + 8), 8 * features, 8 * features * clipped, 8 * longest, 8 * at_least, 4 * longest)
    small = 8 * (2 * SHOWN * SHOWN + 3 * SHOWN + 1) + 4 * SHOWN + 40
    return aligned(*parts, 4 * at_least, small)


def check_memory(device: Device, simulated: SimulatedClients, features: str) -> None:
    """Raise an error for data that do not fit into device memory, before anything is copied."""
    values, clients = simulated.data.features.size, len(simulated)
    rest = (
        40 * clients
        + 4 * len(simulated.queries)
        + simulated.grades.nbytes
        + simulated.ideal.nbytes
        + 8 * simulated.data.queries * 2
    )
    free, needed = device.free(), {kind: rest + 2 * values * size for kind, size in (("float32", 4), ("float16", 2))}
    if needed.get(features, 0) <= free:
        return
    remedy = "use fewer queries or features, or the CPU"
    if features == "float32":
        how = "fits: use device = 'cuda-float16', or" if needed["float16"] <= free else "does not fit either;"
        remedy = f"features as float16 would need {needed['float16'] / 2**30:.2f} GiB, which {how} {remedy}"
    raise DeviceError(
        f"the data need {needed[features] / 2**30:.2f} GiB on {device.name}, but {free / 2**30:.2f} GiB are free; "
        f"{remedy}"
    )


class PdgdOnDevice:
    """A learner with its clients and their data in device memory."""

    many_rounds: ClassVar[bool] = True  # whether a kernel can run many rounds per launch
    bytes_each: ClassVar[int | None] = None  # bytes per message, if messages are not updates
    step: ClassVar[int] = 8  # of the last group of documents; neural kernels need full groups

    def __init__(self, device: Device, learner: Any, clients: SimulatedClients, features: str = "float32") -> None:
        self.device, self.learner, self.clients, self.kind = device, learner, clients, features
        data, put = clients.data, device.put
        check_memory(device, clients, features)
        rows = rounded_features(data.features, features)
        blocks, places = in_blocks(rows, data.offsets, self.step)
        self._held = {
            "rows": put(rows),
            "blocks": put(blocks),
            "places": put(places),
            "offsets": put(data.offsets.astype(np.int64)),
            "ids": put(clients.ids.astype(np.int64)),
            "pool": put(clients.pool.astype(np.int32)),
            "interactions": put(clients.interactions.astype(np.int64)),
            "queries": put(clients.queries.astype(np.int32)),
            "pools": put(clients.pools.astype(np.int64)),
            "view": put(clients.view.astype(np.int32)),
            "grades": put(clients.grades.astype(np.int8)),
            "ideal": put(clients.ideal.astype(np.float64)),
            "user": put(clients.click_model.astype(np.int32)),
            "click": put(clients.click.astype(np.float64)),
            "stop": put(clients.stop.astype(np.float64)),
            "attention": put(clients.attention.astype(np.float64)),
            "discount": put(kernels.elementary.discounts(SHOWN)),
        }
        if len(clients.at):
            self._held["at"] = put(clients.at.astype(np.int64))
        self.features = data.features.shape[1]
        self.width = learner.ranker.size(self.features)  # of an update
        self.shared_bytes = self._shared_bytes()
        self.task = np.zeros((), TASK)
        for name, array in self._held.items():
            self.task[name] = device.address(array)
        numbers = {
            "documents": data.documents, "query_count": data.queries, "features": self.features,
            "longest": data.longest, "users": len(clients.click), "levels": clients.click.shape[1],
            "room": self.shared_bytes, **self._settings(),
        }  # fmt: skip
        for name, number in numbers.items():
            self.task[name] = number
        self._updates: Any = None
        self._online: Any = None
        self._round: tuple[Any, ...] = ()
        self._loop = ""
        self._totals: Any = None

    def _shared_bytes(self) -> int:
        """Bytes of shared memory per active client."""
        return shared_bytes_of(self.features, int(self.clients.data.longest), self.learner.clip_gradients > 0)

    def _settings(self) -> dict[str, float]:
        """The learner's fields of a task."""
        names = ("batch", "rate", "clip_weights", "clip_gradients", "temperature", "keep")
        return {name: float(getattr(self.learner, name)) for name in names}

    @property
    def bare(self) -> bool:
        """Whether keep and clipping are off and the temperature is 1."""
        learner = self.learner
        return not (learner.keep or learner.clip_weights or learner.clip_gradients) and learner.temperature == 1

    def learned(
        self, start: Weights, chance: Chance, present: NDArray[np.int64] | None, correction: LocalCorrection
    ) -> Learned:
        """Return the same as the learner itself, in host memory."""
        updates, online = self.learn(start, chance, present, correction)
        return Learned(self.device.get(updates), Observed(self.device.get(online)))

    def learn(
        self,
        start: Weights,
        chance: Chance,
        present: NDArray[np.int64] | None = None,
        correction: LocalCorrection = NO_CORRECTION,
    ) -> tuple[Any, Any]:
        """Return (updates, online) of the participants in device memory, which the next call overwrites."""
        count = self._ready(start, chance, present, correction)
        self._learn(0, count)
        return self._updates[:count], self._online[:count]

    def stay(self, start: Weights, chance: Chance, present: NDArray[np.int64] | None) -> tuple[Any, Observed]:
        """Return updates in device memory, and observations."""
        updates, _ = self.learn(start, chance, present)
        return updates, self._observed(len(updates))

    def parts(
        self, start: Weights, chance: Chance, present: NDArray[np.int64] | None, weighted: bool, rows: int
    ) -> tuple[NDArray[np.float64], Observed]:
        """Return sums of updates [parts, width], by interactions if `weighted`, and observations.

        Updates stay on the device. A part is a fixed number of rows.
        """
        count = self._ready(start, chance, present, NO_CORRECTION)
        weights = self._held["interactions"]
        if present is not None:
            weights = self.device.put(self.clients.interactions[present].astype(np.int64))
        piece = min(max(PIECE, -(-count // PIECES)), rows)
        pieces = [
            (first, min(first + piece, begin + rows, count), begin)
            for begin in range(0, count, rows)
            for first in range(begin, min(begin + rows, count), piece)
        ]
        self._totals = self.device.empty((-(-count // rows), self.width), np.float64)
        self.device.one_behind_the_other(
            [partial(self._learn, first, last) for first, last, _ in pieces],
            [
                partial(self._add_up, weights if weighted else None, first, last, begin, begin // rows)
                for first, last, begin in pieces
            ],
            together=self.many_rounds,
        )
        return self.device.get(self._totals), self._observed(count)

    def clipped(
        self, start: Weights, chance: Chance, present: NDArray[np.int64] | None, clip: Clip
    ) -> tuple[NDArray[np.int64], Observed]:
        """Return the sum of updates on a grid, clipped and weighted by `clip`, and observations; updates stay there."""
        device = self.device
        count = self._ready(start, chance, present, NO_CORRECTION)
        self._learn(0, count)
        weights, totals = device.put(clip.weights), device.put(np.zeros(self.width, np.int64))
        task = np.zeros((), CLIPPED_SUM)
        task["rows"], task["weights"] = device.address(self._updates), device.address(weights)
        task["totals"], task["count"], task["columns"] = device.address(totals), count, self.width
        task["norm"], task["clip"], task["step"] = clip.norm, clip.length, clip.step
        if count:
            device.each_part("add_clipped", task, -(-count // ROWS_AT_ONCE), ROWS_AT_ONCE, 0)
        return device.get(totals), self._observed(count)

    def _observed(self, count: int) -> Observed:
        return Observed(self.device.get(self._online[:count]))

    def _ready(
        self, start: Weights, chance: Chance, present: NDArray[np.int64] | None, correction: LocalCorrection
    ) -> int:
        """Copy the inputs of a round to the device; return the number of participants."""
        device, task = self.device, self.task
        count = len(self.clients) if present is None else len(present)
        if self._updates is None or len(self._updates) < count:
            self._updates = device.empty((count, self.width), np.float32)
            self._online = device.empty((count,), np.float64)
        starts = device.put(as_sent(start))
        on_device = None if present is None else device.put(present.astype(np.int64))
        drifts = None if correction.drifts is None else device.put(correction.drifts.astype(np.float64))
        self._round = (starts, on_device, drifts)  # keeps the arrays alive until the next round
        task["starts"], task["many_starts"] = device.address(starts), len(starts) > 1
        task["present"] = 0 if on_device is None else device.address(on_device)
        task["drifts"] = 0 if drifts is None else device.address(drifts)
        task["updates"], task["online"] = device.address(self._updates), device.address(self._online)
        task["key"] = chance.key("learn")
        self._begin(chance, correction, count)
        return count

    def _begin(self, chance: Chance, correction: LocalCorrection, count: int) -> None:
        """Choose the kernel and set the fields that change every round."""
        self.task["pull"] = self.learner.rate * correction.pull
        self._loop = self.loop("clients")
        if self.bare and not correction.pull and correction.drifts is None:
            self._loop += "_short" if self.clients.data.longest <= SHORT else "_plain"

    def loop(self, name: str) -> str:
        """The name of a kernel for features of four or two bytes."""
        return f"pdgd_{name}" if self.kind == "float32" else f"pdgd_half_{name}"

    def _learn(self, first: int, last: int) -> None:
        task = self.task.copy()
        task["first"], task["taking_part"] = first, last
        self.device.each_client(self._loop, task, last - first, self.shared_bytes)

    def _add_up(self, weights: Any, first: int, last: int, begin: int, part: int) -> None:
        device, columns = self.device, self.width
        task = np.zeros((), ROW_SUM)
        task["weights"] = 0 if weights is None else device.address(weights) + 8 * first
        task["rows"] = device.address(self._updates) + 4 * columns * first
        task["totals"] = device.address(self._totals) + 8 * columns * part
        task["count"], task["columns"], task["fresh"] = last - first, columns, first == begin
        device.each_part("add_rows", task, -(-columns // LANES), 9 * LANES, 2 * ROWS_AT_ONCE * (4 * LANES + 8))
