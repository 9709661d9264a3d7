"""Arrays in files that may be larger than memory."""

from __future__ import annotations

import mmap
import os
import platform
import sys
import tokenize
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap, write_array
from numpy.typing import DTypeLike, NDArray

from fedrank.files import naming, opened, sync

# Python names it from 3.13 on; the number is that of Linux on these machines.
_KNOWN = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if _KNOWN else 0)


def open_mapped(path: str | os.PathLike[str]) -> NDArray[Any]:
    """An array of an `.npy` file that is read when it is used; writing to it changes nothing on disk.

    It is writable because kernels would need a second, read-only signature otherwise. NumPy's own copy-on-write mode
    does not do: Linux then sets memory aside for a copy of it all, and refuses files larger than memory.
    """
    opened(path).close()  # NumPy would wait for a pipe
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (SyntaxError, TypeError, tokenize.TokenError, OverflowError) as problem:  # what NumPy lets pass of a header
        raise ValueError(f"its header makes no sense: {problem}") from None
    if sys.platform == "win32" or not found.flags.c_contiguous:
        return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
    with opened(path) as file:
        pages = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return np.ndarray(found.shape, found.dtype, buffer=pages, offset=found.offset)


def new_mapped(path: Path, shape: tuple[int, ...], kind: DTypeLike) -> np.memmap[Any, Any]:
    """A new array in an `.npy` file, which is written through memory.

    Its room on the disk is reserved first: the system ends a process (SIGBUS) that writes to memory for which the disk
    has no room, and there would be no message.
    """
    made = open_memmap(path, mode="w+", dtype=np.dtype(kind), shape=shape)
    if made.nbytes and hasattr(os, "posix_fallocate"):
        with naming(path), open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    return made


def save_array(path: Path, values: NDArray[Any]) -> None:
    """Write an array as `np.save` does; it is on the disk when this returns, and problems name the file.

    NumPy writes to a file by itself, and where the disk is full it says only how many values were written.
    """
    with naming(path), open(path, "wb") as file:
        write_array(SimpleNamespace(write=file.write), values, allow_pickle=False)
    sync(path)
