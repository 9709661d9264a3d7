"""Robust aggregation of updates in device memory: Krum scores, sorted columns, and the mean of selected rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.kernels.devices import Device
from fedrank.ranking.cuda.pdgd import LANES, ROW_SUM, ROWS_AT_ONCE
from fedrank.ranking.cuda.rounds import TEAM

# The layout of `struct Robust` in kernels/robust.cu.
ROBUST = np.dtype(
    [(name, "<u8") for name in ("rows", "out", "scratch")]
    + [(name, "<i8") for name in ("count", "columns", "number", "squared")]
)
_SUMS = 8 * LANES * TEAM  # bytes, for partial sums of threads


def most_clients(device: Device, bytes_each: int) -> int:
    """The maximum number of values of this size that a team can sort."""
    return 1 << ((device.fast_memory - _SUMS) // bytes_each).bit_length() - 1


class RobustOnDevice:
    """Updates [clients, parameters] in device memory, and the results of robust rules."""

    def __init__(self, device: Device, updates: Any) -> None:
        self.device, self.updates = device, updates
        self.clients, self.parameters = updates.shape

    def sound(self) -> bool:
        """Whether all updates are finite."""
        out = self.device.put(np.zeros(1))
        self._run("unsound", out, self.device.at_once, 0, 0)
        return bool(self.device.get(out)[0] == 0)

    def krum_scores(self, neighbours: int, squared: bool) -> NDArray[np.float64]:
        """[clients]: sums of the distances to the nearest `neighbours`."""
        out = self.device.empty((self.clients,), np.float64)
        self._run("krum_scores", out, self.clients, neighbours, 8, squared)
        return self.device.get(out)

    def trimmed_mean(self, drop: int) -> NDArray[np.float64]:
        """[parameters]: means without the `drop` smallest and largest values."""
        out = self.device.empty((self.parameters,), np.float64)
        self._run("trimmed_means", out, self.parameters, drop, 4)
        return self.device.get(out)

    def mean_of(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """[parameters]: the mean of these rows, summed in this order."""
        device, columns = self.device, self.parameters
        which, totals = device.put(rows.astype(np.int64)), device.empty((columns,), np.float64)
        task = np.zeros((), ROW_SUM)
        task["rows"], task["which"], task["totals"] = map(device.address, (self.updates, which, totals))
        task["count"], task["columns"], task["fresh"] = len(rows), columns, True
        device.each_part("add_rows", task, -(-columns // LANES), 9 * LANES, 2 * ROWS_AT_ONCE * (4 * LANES + 8))
        return device.get(totals) / len(rows)

    def _run(self, loop: str, out: Any, blocks: int, number: int, bytes_each: int, squared: bool = False) -> None:
        device, task = self.device, np.zeros((), ROBUST)
        task["rows"], task["out"] = device.address(self.updates), device.address(out)
        task["count"], task["columns"], task["number"], task["squared"] = (
            self.clients, self.parameters, number, squared,
        )  # fmt: skip
        size = 1 << (self.clients - 1).bit_length()
        device.each_part(loop, task, blocks, LANES * TEAM, _SUMS + bytes_each * size)
