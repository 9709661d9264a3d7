"""Where twins of compiled loops run: on a graphics card (CuPy), or on this processor, where their text is tested.

The sources lie beside the loops that they mirror (`kernels/*.cu`). Both machines compile the same text without fused
multiply-adds, so that sums and products are rounded as compiled loops round them.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
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
WARPS = 4  # of a block
FAST_MEMORY = 220 << 10  # bytes of a block that are never too many on a card that has them
ENOUGH = 64  # warps for each multiprocessor: more wait for their turn


class DeviceError(RuntimeError):
    """A graphics card that is not there, is too small, or cannot be used."""


class Device(Protocol):
    """Memory of its own, and loops that run there."""

    name: str
    at_once: int  # blocks that run at the same time, whatever they need
    fast_memory: int  # bytes that a block may have

    def put(self, array: NDArray[Any]) -> Any: ...

    def get(self, array: Any) -> NDArray[Any]: ...

    def empty(self, shape: tuple[int, ...], kind: Any) -> Any: ...

    def address(self, array: Any) -> int: ...

    def free(self) -> int:
        """Bytes that are not in use."""

    def each_client(self, loop: str, task: NDArray[Any], clients: int, room: int) -> None:
        """Run a loop with a warp for each client, which has `room` bytes."""

    def each_part(self, loop: str, task: NDArray[Any], blocks: int, threads: int, memory: int) -> None:
        """Run a loop with so many blocks of threads, and so many bytes of fast memory for each block."""

    def one_behind_the_other(
        self, first: Sequence[Callable[[], None]], second: Sequence[Callable[[], None]], together: bool
    ) -> None:
        """Do each of `second` after its counterpart in `first`, and at the same time as the next of these.

        `together`: one of `first` may begin while another ends.
        """

    def finish(self) -> None:
        """Wait until everything is done."""


@cache
def source() -> str:
    """All twins as one text, each below what it builds on."""
    folder = Path(__file__).parent
    return "\n".join((folder / f"{name}.cu").read_text(encoding="utf-8") for name in SOURCES)


@cache
def _compiled_here() -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if compiler is None:
        raise DeviceError("no C++ compiler is here; install g++ or clang++ to test twins without a graphics card")
    with tempfile.TemporaryDirectory(prefix="fedrank-twins-") as folder:
        text, library = Path(folder, "twins.cpp"), Path(folder, "twins.so")
        text.write_text(source(), encoding="utf-8")
        options = ["-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
        subprocess.run([compiler, *options, "-o", str(library), str(text)], check=True)
        return ctypes.CDLL(str(library))


class Processor:
    """This processor: the same text as C++, lane by lane. Slow; it shows that the text is right."""

    name = "cpu"
    at_once = 1
    fast_memory = FAST_MEMORY

    def __init__(self) -> None:
        self._loops = _compiled_here()

    def put(self, array: NDArray[Any]) -> Any:
        return np.ascontiguousarray(array)

    def get(self, array: Any) -> NDArray[Any]:
        return np.array(array)  # its memory is used again

    def empty(self, shape: tuple[int, ...], kind: Any) -> Any:
        return np.empty(shape, kind)

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def free(self) -> int:
        return 1 << 62  # what is missing, this processor says itself

    def each_client(self, loop: str, task: NDArray[Any], clients: int, room: int) -> None:
        scratch = np.empty(room + 16, np.uint8)
        task["scratch"] = -(-self.address(scratch) // 16) * 16
        self._call(loop, task)

    def each_part(self, loop: str, task: NDArray[Any], blocks: int, threads: int, memory: int) -> None:
        if "scratch" in (task.dtype.names or ()):
            self.each_client(loop, task, blocks, memory)
        else:
            self._call(loop, task)

    def one_behind_the_other(
        self, first: Sequence[Callable[[], None]], second: Sequence[Callable[[], None]], together: bool
    ) -> None:
        for one, other in zip(first, second, strict=True):
            one()
            other()

    def finish(self) -> None:
        pass

    def _call(self, loop: str, task: NDArray[Any]) -> None:
        getattr(self._loops, loop)(ctypes.c_void_p(task.ctypes.data))


class CudaDevice:
    """A graphics card, by CuPy."""

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as problem:
            raise missing_extra("device = 'cuda' needs the package cupy", "gpu") from problem
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as problem:
            raise DeviceError(
                f"no graphics card can be used here ({problem}); look at nvidia-smi, or leave device as it is"
            ) from problem
        if count == 0:
            raise DeviceError("no graphics card is here; leave device as it is")
        self._cupy: Any = cupy
        properties = cupy.cuda.runtime.getDeviceProperties(0)
        self.name = str(properties["name"].decode())
        self._multiprocessors = self.at_once = int(properties["multiProcessorCount"])
        self.fast_memory = int(properties["sharedMemPerBlockOptin"]) - 1024
        self._module = cupy.RawModule(code=source(), options=("-std=c++17", "--fmad=false"))
        self._loops: dict[str, Any] = {}
        self._scratch: dict[tuple[int, int], Any] = {}  # by its size and the stream that uses it
        self._beside = cupy.cuda.Stream(non_blocking=True)
        self._behind = cupy.cuda.Stream(non_blocking=True, priority=-1)  # before others: it has little to do

    def put(self, array: NDArray[Any]) -> Any:
        return self._guarded(lambda: self._cupy.asarray(np.ascontiguousarray(array)), array.nbytes)

    def get(self, array: Any) -> NDArray[Any]:
        # Into memory that the card writes to itself, which is ten times as fast, and is used again once nobody has it.
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

    def each_client(self, loop: str, task: NDArray[Any], clients: int, room: int) -> None:
        warps = min(WARPS, self.fast_memory // room)
        blocks = -(-clients // max(warps, 1))
        if warps == 0:  # lists so long that nobody's room is in fast memory
            warps = WARPS
            blocks = min(-(-clients // warps), self._multiprocessors * ENOUGH // warps)
            place = room, int(self._cupy.cuda.get_current_stream().ptr)
            if place not in self._scratch:
                self._scratch[place] = self.empty((self._multiprocessors * ENOUGH, room), np.uint8)
            task["scratch"] = self.address(self._scratch[place])
            self._loop(f"{loop.partition('_clients')[0]}_clients_wide", 0)((blocks,), (32 * warps,), (task,))
            return
        self._loop(loop, warps * room)((blocks,), (32 * warps,), (task,), shared_mem=warps * room)

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
            found.preferred_shared_memory_carveout = 100  # of the memory that fast memory and the cache share
        return found

    def _guarded(self, take: Any, size: int) -> Any:
        try:
            return take()
        except self._cupy.cuda.memory.OutOfMemoryError as problem:
            free, all_of_it = self._cupy.cuda.runtime.memGetInfo()
            raise DeviceError(
                f"{size / 2**30:.2f} GiB more do not fit on {self.name}: {free / 2**30:.2f} of "
                f"{all_of_it / 2**30:.2f} GiB are free; use fewer clients or queries, or the processor"
            ) from problem


def digest() -> str:
    """Of the twins' text: what a result of a graphics card was made with."""
    return hashlib.blake2b(source().encode(), digest_size=8).hexdigest()
