"""Measures of many models in a machine's memory: the same values as on this processor, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.kernels.devices import Device
from fedrank.ranking.cuda.pdgd import LANES, SHOWN
from fedrank.ranking.measures import Evaluator, Values
from fedrank.ranking.rankers import Linear
from fedrank.types import Ranker, Weights

MODELS = 128  # at once, as kernels/measures.cu has it
DOCUMENTS = 1 << 17  # at once, about: their scores stay in the cache
_TILE, _WARPS, _LEAF = 128, 4, 128

_ADDRESSES = (
    "columns weights scores offsets grades kinds cutoffs scales without relevant discount leaves values totals bad"
)
_COUNTS = "features documents queries models stride measures first last leaf_count top_grade"
# As `struct Measures` in kernels/measures.cu has it.
MEASURES = np.dtype([(name, kind) for names, kind in ((_ADDRESSES, "<u8"), (_COUNTS, "<i8")) for name in names.split()])


def why_not(evaluator: Evaluator, ranker: Ranker) -> str:
    """Why these measures cannot be taken on a card; empty if they can."""
    if type(ranker) is not Linear:
        return f"{type(ranker).__name__} has no twin for evaluation; the linear ranker has"
    for each in evaluator.parsed:
        if each.by or (each.cutoff or SHOWN + 1) > SHOWN:
            return f"{each} has no twin; measures of the first {SHOWN} places by one set of labels have"
    return ""


def evaluator_on_device(device: Device, evaluator: Evaluator, ranker: Ranker) -> Evaluator | EvaluatorOnDevice:
    """The evaluator itself, where it has no twin, or no room there."""
    data = evaluator.data
    scores = min(DOCUMENTS, data.documents) + int(data.longest)
    needed = data.features.nbytes + 8 * MODELS * (scores + len(evaluator.parsed) * data.queries)
    return (
        evaluator if why_not(evaluator, ranker) or needed > device.free() // 2 else EvaluatorOnDevice(device, evaluator)
    )


def leaves_of(count: int, first: int = 0) -> list[int]:
    """Where NumPy's sum of so many values begins to add one by one."""
    if count <= _LEAF:
        return [first]
    half = count // 2 - count // 2 % 8
    return leaves_of(half, first) + leaves_of(count - half, first + half)


class EvaluatorOnDevice:
    """An evaluator with its data in a machine's memory, where they are put once."""

    def __init__(self, device: Device, evaluator: Evaluator) -> None:
        self.device, self.evaluator = device, evaluator
        data, settings = evaluator.data, evaluator.compiled_settings()
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
        self._chunks = _chunks(self._offsets)
        self._room: tuple[int, Any, Any] | None = None

    def __call__(self, weights: Weights, ranker: Ranker) -> Values:
        """Averages over queries, as `Evaluator` gives them: [measures, models], or [measures] for one weight vector."""
        models = np.atleast_2d(weights)
        some = [self._measure(models[begin : begin + MODELS]) for begin in range(0, len(models), MODELS)]
        if any(each is None for each in some):
            return self.evaluator(weights, ranker)  # says which score is not a number
        totals = np.concatenate([each for each in some if each is not None], axis=1)
        counted = self._counted[:, None]
        found: Values = np.where(counted > 0, totals / np.maximum(counted, 1), np.nan)
        return found if np.ndim(weights) == 2 else found[:, 0]

    def _measure(self, models: Weights) -> Values | None:
        """[measures, models]: sums over queries; None if a score is not a number."""
        device, count, measures = self.device, len(models), len(self._counted)
        across = max(8, 2 * -(-count // 16))  # columns of threads, each of eight models
        if self._room is None or self._room[0] != count:
            longest = max(int(self._offsets[last] - self._offsets[first]) for first, last in self._chunks)
            self._room = (
                count,
                device.empty((longest, 8 * across), np.float32),
                device.empty((measures, count, len(self._offsets) - 1), np.float64),
            )
        weights = device.put(np.ascontiguousarray(models.astype(np.float32).T))
        totals = device.put(np.zeros(measures * count + 1))
        task = self._task.copy()
        places = {"weights": weights, "scores": self._room[1], "values": self._room[2], "totals": totals}
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
    """Equal scores are ordered by these, smallest first."""
    from fedrank.kernels.measures import LOW, STEP, TURN

    return (np.arange(documents, dtype=np.int64) * STEP + documents * TURN) & LOW


def _chunks(offsets: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Whole queries of about DOCUMENTS documents: (first, one after the last)."""
    first, queries, found = 0, len(offsets) - 1, []
    while first < queries:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + DOCUMENTS, side="right")) - 1)
        found.append((first, last))
        first = last
    return found
