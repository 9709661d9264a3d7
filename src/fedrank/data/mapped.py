"""Arrays in files that may be larger than memory."""

from __future__ import annotations

import mmap
import os
import platform
import sys
import tokenize
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.files import opened

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
