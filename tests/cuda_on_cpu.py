"""The CUDA sources as C++ on this CPU, lane by lane: slow, and the same bits as on a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from fedrank.kernels.devices import FAST_MEMORY, DeviceError, source


@cache
def _compiled_here():
    compiler = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if compiler is None:
        raise DeviceError("no C++ compiler was found; install g++ or clang++ to test CUDA kernels without a GPU")
    with tempfile.TemporaryDirectory(prefix="fedrank-twins-") as folder:
        text, library = Path(folder, "twins.cpp"), Path(folder, "twins.so")
        text.write_text(source(), encoding="utf-8")
        options = ["-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
        subprocess.run([compiler, *options, "-o", str(library), str(text)], check=True)
        return ctypes.CDLL(str(library))


class Processor:
    """This CPU as a device."""

    name = "cpu"
    at_once = 1
    fast_memory = FAST_MEMORY

    def __init__(self):
        self._loops = _compiled_here()

    def put(self, array):
        return np.ascontiguousarray(array)

    def get(self, array):
        return np.array(array)  # a copy, since the memory is reused

    def empty(self, shape, kind):
        return np.empty(shape, kind)

    def address(self, array):
        return int(array.ctypes.data)

    def free(self):
        return 1 << 62  # allocation errors are raised by the system

    def each_client(self, loop, task, clients, shared_bytes):
        scratch = np.empty(shared_bytes + 16, np.uint8)
        task["scratch"] = -(-self.address(scratch) // 16) * 16
        self._call(loop, task)

    def each_part(self, loop, task, blocks, threads, memory):
        if "scratch" in (task.dtype.names or ()):
            self.each_client(loop, task, blocks, memory)
        else:
            self._call(loop, task)

    def one_behind_the_other(self, first, second, together):
        for one, other in zip(first, second, strict=True):
            one()
            other()

    def finish(self):
        pass

    def _call(self, loop, task):
        getattr(self._loops, loop)(ctypes.c_void_p(task.ctypes.data))
