"""Devices that run the CUDA versions of compiled loops: a GPU (CuPy); tests run the same source as C++ on the CPU.

The sources (`kernels/*.cu`) are next to the loops that they mirror. They are compiled without fused multiply-adds, so
sums and products are rounded like those of the compiled loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank.extras import missing_extra

SOURCES = (
    *("warp", "crew", "chance", "elementary", "show", "pdgd", "sums", "rounds", "robust", "measures", "rankers"),
    *("neural_pdgd", "evolution", "clip"),
)
WARPS = 4  # per block
FAST_MEMORY = 220 << 10  # bytes of shared memory per block that suitable GPUs always allow
ENOUGH = 64  # warps per multiprocessor; more would wait


class DeviceError(RuntimeError):
    """A GPU that is missing, too small or not usable."""


class Device(Protocol):
    """A device with its own memory, and kernels that run on it."""

    name: str
    at_once: int  # maximum number of concurrent blocks
    fast_memory: int  # bytes of shared memory per block

    def put(self, array: NDArray[Any]) -> Any: ...

    def get(self, array: Any) -> NDArray[Any]: ...

    def empty(self, shape: tuple[int, ...], kind: Any) -> Any: ...

    def address(self, array: Any) -> int: ...

    def free(self) -> int:
        """Free memory in bytes."""

    def each_client(self, loop: str, task: NDArray[Any], clients: int, shared_bytes: int) -> None:
        """Run a kernel with one warp per client, with `shared_bytes` bytes of shared memory each."""

    def each_part(self, loop: str, task: NDArray[Any], blocks: int, threads: int, memory: int) -> None:
        """Run a kernel with this number of blocks and threads, and `memory` bytes of shared memory per block."""

    def one_behind_the_other(
        self, first: Sequence[Callable[[], None]], second: Sequence[Callable[[], None]], together: bool
    ) -> None:
        """Run each of `second` after its counterpart in `first`, overlapping with the next of `first`.

        `together`: kernels of `first` may overlap, too.
        """

    def finish(self) -> None:
        """Wait until all kernels have finished."""


@cache
def source() -> str:
    """Return all CUDA sources as one text, in the order of their dependencies."""
    folder = Path(__file__).parent
    return "\n".join((folder / f"{name}.cu").read_text(encoding="utf-8") for name in SOURCES)


class CudaDevice:
    """A GPU, by CuPy."""

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as problem:
            raise missing_extra("device = 'cuda' needs the package cupy", "gpu") from problem
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as problem:
            raise DeviceError(
                f"the GPU cannot be used ({problem}); check nvidia-smi, or use the default device"
            ) from problem
        if count == 0:
            raise DeviceError("no GPU was found; use the default device")
        self._cupy: Any = cupy
        properties = cupy.cuda.runtime.getDeviceProperties(0)
        self.name = str(properties["name"].decode())
        self._multiprocessors = self.at_once = int(properties["multiProcessorCount"])
        self.fast_memory = int(properties["sharedMemPerBlockOptin"]) - 1024
        self._module = cupy.RawModule(code=source(), options=("-std=c++17", "--fmad=false"))
        self._loops: dict[str, Any] = {}
        self._scratch: dict[tuple[int, int], Any] = {}  # by size and stream
        self._beside = cupy.cuda.Stream(non_blocking=True)
        self._behind = cupy.cuda.Stream(non_blocking=True, priority=-1)  # high priority, since its kernels are short

    def put(self, array: NDArray[Any]) -> Any:
        return self._guarded(lambda: self._cupy.asarray(np.ascontiguousarray(array)), array.nbytes)

    def get(self, array: Any) -> NDArray[Any]:
        # Into pinned memory, which is ten times as fast, and is reused when it is no longer referenced.
        memory = self._cupy.cuda.alloc_pinned_memory(max(array.nbytes, 1))
        found: NDArray[Any] = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
        array.get(out=found)
        return found

    def empty(self, shape: tuple[int, ...], kind: Any) -> Any:
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        return self._guarded(lambda: self._cupy.empty(shape, kind), size)

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def free(self) -> int:
        return int(self._cupy.cuda.runtime.memGetInfo()[0] + self._cupy.get_default_memory_pool().free_bytes())

    def each_client(self, loop: str, task: NDArray[Any], clients: int, shared_bytes: int) -> None:
        warps = min(WARPS, self.fast_memory // shared_bytes)
        blocks = -(-clients // max(warps, 1))
        if warps == 0:  # lists are too long for shared memory
            warps = WARPS
            blocks = min(-(-clients // warps), self._multiprocessors * ENOUGH // warps)
            place = shared_bytes, int(self._cupy.cuda.get_current_stream().ptr)
            if place not in self._scratch:
                self._scratch[place] = self.empty((self._multiprocessors * ENOUGH, shared_bytes), np.uint8)
            task["scratch"] = self.address(self._scratch[place])
            self._loop(f"{loop.partition('_clients')[0]}_clients_wide", 0)((blocks,), (32 * warps,), (task,))
            return
        self._loop(loop, warps * shared_bytes)((blocks,), (32 * warps,), (task,), shared_mem=warps * shared_bytes)

    def each_part(self, loop: str, task: NDArray[Any], blocks: int, threads: int, memory: int) -> None:
        self._loop(loop, memory)((blocks,), (threads,), (task,), shared_mem=memory)

    def one_behind_the_other(
        self, first: Sequence[Callable[[], None]], second: Sequence[Callable[[], None]], together: bool
    ) -> None:
        front = self._cupy.cuda.get_current_stream()
        begun = front.record()
        self._behind.wait_event(begun)
        self._beside.wait_event(begun)
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            stream = self._beside if together and number % 2 else front
            with stream:
                one()
            self._behind.wait_event(stream.record())
            with self._behind:
                other()
        front.wait_event(self._behind.record())

    def finish(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()

    def _loop(self, loop: str, memory: int) -> Any:
        if loop not in self._loops:
            self._loops[loop] = self._module.get_function(loop)
        found = self._loops[loop]
        if memory > found.max_dynamic_shared_size_bytes:
            found.max_dynamic_shared_size_bytes = memory
            found.preferred_shared_memory_carveout = 100  # per cent of the memory shared with the cache
        return found

    def _guarded(self, take: Any, size: int) -> Any:
        try:
            return take()
        except self._cupy.cuda.memory.OutOfMemoryError as problem:
            free, all_of_it = self._cupy.cuda.runtime.memGetInfo()
            raise DeviceError(
                f"{size / 2**30:.2f} GiB more do not fit on {self.name}: {free / 2**30:.2f} of "
                f"{all_of_it / 2**30:.2f} GiB are free; use fewer clients or queries, or the CPU"
            ) from problem
