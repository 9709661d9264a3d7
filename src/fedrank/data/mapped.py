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

from fedrank.files import add_path_to_errors, opened, sync

# Python defines the constant since 3.13; the number is that of Linux on these architectures.
_KNOWN = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if _KNOWN else 0)


def open_mapped(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Memory-map an `.npy` file; writing to the array does not change the file.

    It is writable because kernels would otherwise need a second, read-only signature. NumPy's copy-on-write mode is not
    an option: Linux then reserves memory for a full copy, and refuses files larger than memory.
    """
    opened(path).close()  # NumPy would block on a pipe
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (
        SyntaxError,
        TypeError,
        tokenize.TokenError,
        OverflowError,
    ) as problem:  # errors that NumPy raises for invalid headers
        raise ValueError(f"its header is invalid: {problem}") from None
    if sys.platform == "win32" or not found.flags.c_contiguous:
        return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
    with opened(path) as file:
        pages = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return np.ndarray(found.shape, found.dtype, buffer=pages, offset=found.offset)


def new_mapped(path: Path, shape: tuple[int, ...], kind: DTypeLike) -> np.memmap[Any, Any]:
    """Create a memory-mapped array in an `.npy` file.

    Disk space is reserved first: otherwise, the system would kill the process (SIGBUS) without a message when it
    writes to a page without disk space.
    """
    made = open_memmap(path, mode="w+", dtype=np.dtype(kind), shape=shape)
    if made.nbytes and hasattr(os, "posix_fallocate"):
        with add_path_to_errors(path), open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    return made


def save_array(path: Path, values: NDArray[Any]) -> None:
    """Write an array like `np.save`, flushed to disk; errors name the file.

    When the disk is full, NumPy's own error only states how many values were written.
    """
    with add_path_to_errors(path), open(path, "wb") as file:
        write_array(SimpleNamespace(write=file.write), values, allow_pickle=False)
    sync(path)
