"""Evaluate many models on a GPU, with the same values as on the CPU to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.kernels.devices import Device
from fedrank.ranking.cuda.pdgd import LANES, SHOWN
from fedrank.ranking.measures import Evaluator, Values, query_chunks
from fedrank.ranking.rankers import Linear
from fedrank.types import Ranker, Weights

MODELS = 128  # per batch, as in kernels/measures.cu
DOCUMENTS = 1 << 17  # per batch, approximately; their scores fit into the cache
_TILE, _WARPS, _LEAF = 128, 4, 128

_ADDRESSES = (
    "columns weights scores offsets grades kinds cutoffs "  # prose: ok
    "scales without relevant discount leaves values totals bad"
)
_COUNTS = "features documents queries models stride measures first last leaf_count top_grade"
# The layout of `struct Measures` in kernels/measures.cu.
MEASURES = np.dtype([(name, kind) for names, kind in ((_ADDRESSES, "<u8"), (_COUNTS, "<i8")) for name in names.split()])


def why_not(evaluator: Evaluator, ranker: Ranker) -> str:
    """Return why these measures cannot be computed on a GPU; empty if they can."""
    if type(ranker) is not Linear:
        return f"{type(ranker).__name__} cannot be evaluated on a GPU; the linear ranker can"
    for each in evaluator.parsed:
        if each.by or (each.cutoff or SHOWN + 1) > SHOWN:
            return (
                f"{each} cannot be computed on a GPU; measures of the first {SHOWN} positions by one set of labels can"
            )
    return ""


def evaluator_on_device(device: Device, evaluator: Evaluator, ranker: Ranker) -> Evaluator | EvaluatorOnDevice:
    """Return the evaluator on the device, or the evaluator itself if it is not supported or does not fit."""
    data = evaluator.data
    scores = min(DOCUMENTS, data.documents) + int(data.longest)
    needed = data.features.nbytes + 8 * MODELS * (scores + len(evaluator.parsed) * data.queries)
    return (
        evaluator if why_not(evaluator, ranker) or needed > device.free() // 2 else EvaluatorOnDevice(device, evaluator)
    )


def leaves_of(count: int, first: int = 0) -> list[int]:
    """The starts of the blocks that NumPy's pairwise sum adds sequentially."""
    if count <= _LEAF:
        return [first]
    half = count // 2 - count // 2 % 8
    return leaves_of(half, first) + leaves_of(count - half, first + half)


class EvaluatorOnDevice:
    """An evaluator with its data in device memory."""

    def __init__(self, device: Device, evaluator: Evaluator) -> None:
        self.device, self.evaluator = device, evaluator
        data, settings = evaluator.data, evaluator.compiled_settings
        self._offsets: NDArray[np.int64] = settings.offsets
        order = np.concatenate([
            begin + np.argsort(_tie_keys(end - begin), kind="stable")
            for begin, end in zip(self._offsets[:-1], self._offsets[1:], strict=True)
        ])  # fmt: skip
        leaves = leaves_of(data.queries)
        without = np.array([1.0 if each.empty == "one" else 0.0 for each in evaluator.parsed])
        arrays = {
            "columns": np.ascontiguousarray(data.features[order].T), "offsets": self._offsets,
            "grades": settings.grades[order], "kinds": settings.kinds, "cutoffs": settings.cutoffs,
            "scales": settings.scales, "without": without, "relevant": (settings.relevant > 0).astype(np.int8),
            "discount": kernels.elementary.discounts(SHOWN), "leaves": np.array([*leaves, data.queries], np.int64),
        }  # fmt: skip
        self._held = {name: device.put(array) for name, array in arrays.items()}
        self._leaves = len(leaves)
        self._task = np.zeros((), MEASURES)
        for name, array in self._held.items():
            self._task[name] = device.address(array)
        numbers = {
            "features": data.features.shape[1], "documents": data.documents, "queries": data.queries,
            "measures": len(without), "leaf_count": len(leaves), "top_grade": settings.top_grade,
        }  # fmt: skip
        for name, number in numbers.items():
            self._task[name] = number
        skipped = np.array([each.empty == "skip" for each in evaluator.parsed])
        self._counted = np.where(skipped, int(np.count_nonzero(settings.relevant)), data.queries)
        self._chunks = list(query_chunks(self._offsets, DOCUMENTS))
        self._buffers: tuple[int, Any, Any] | None = None

    def __call__(self, weights: Weights, ranker: Ranker) -> Values:
        """Return averages over queries, as `Evaluator` does: [measures, models], or [measures] for one vector."""
        models = np.atleast_2d(weights)
        some = [self._measure(models[begin : begin + MODELS]) for begin in range(0, len(models), MODELS)]
        if any(each is None for each in some):
            return self.evaluator(weights, ranker)  # reports which score is NaN
        totals = np.concatenate([each for each in some if each is not None], axis=1)
        counted = self._counted[:, None]
        found: Values = np.where(counted > 0, totals / np.maximum(counted, 1), np.nan)
        return found if np.ndim(weights) == 2 else found[:, 0]

    def _measure(self, models: Weights) -> Values | None:
        """[measures, models]: sums over queries; None if a score is NaN."""
        device, count, measures = self.device, len(models), len(self._counted)
        across = max(8, 2 * -(-count // 16))  # columns of threads, with eight models each
        if self._buffers is None or self._buffers[0] != count:
            longest = max(int(self._offsets[last] - self._offsets[first]) for first, last in self._chunks)
            self._buffers = (
                count,
                device.empty((longest, 8 * across), np.float32),
                device.empty((measures, count, len(self._offsets) - 1), np.float64),
            )
        weights = device.put(np.ascontiguousarray(models.astype(np.float32).T))
        totals = device.put(np.zeros(measures * count + 1))
        task = self._task.copy()
        places = {"weights": weights, "scores": self._buffers[1], "values": self._buffers[2], "totals": totals}
        for name, array in places.items():
            task[name] = device.address(array)
        task["bad"], task["models"] = device.address(totals) + 8 * measures * count, count
        task["stride"] = 8 * across
        for first, last in self._chunks:
            task = task.copy()
            task["first"], task["last"] = first, last
            documents = int(self._offsets[last] - self._offsets[first])
            device.each_part("score_models", task, -(-documents // _TILE), 16 * across, 0)
            lists = (last - first) * -(-count // LANES)
            device.each_part("measure_lists", task, -(-lists // _WARPS), _WARPS * LANES, 0)
        device.each_part("total_of_values", task, measures * count, LANES, 8 * self._leaves)
        found = device.get(totals)
        return None if found[-1] else found[:-1].reshape(measures, count)


def _tie_keys(documents: int) -> NDArray[np.int64]:
    """Sort keys for documents with equal scores, ascending."""
    from fedrank.kernels.measures import LOW, STEP, TURN

    return (np.arange(documents, dtype=np.int64) * STEP + documents * TURN) & LOW
