"""How kernels are compiled, and where compiled code is stored."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def cache_folder() -> Path:
    """The cache folder: `FEDRANK_CACHE`, or the user's cache folder."""
    named = os.environ.get("FEDRANK_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "fedrank"


def _compiled_folder(kernels: Path) -> str:
    # Numba checks only the file of the function itself, so a change in a called kernel would go unnoticed. A folder
    # named after the digest of all kernel sources, including sub-folders, cannot contain stale code.
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(kernels.rglob("*.py")):
        digest.update(source.read_bytes())
    return str(cache_folder() / "compiled" / digest.hexdigest())


# Where results are known to be identical, byte for byte: `make bits`, and 64-bit ARM under emulation.
SAME_BYTES = ("x86_64", "amd64", "aarch64")


def compiled_for() -> str:
    """The architecture and CPU that kernels are compiled for; it does not affect results."""
    import numba
    from llvmlite import binding

    config: Any = numba.config
    return f"{platform.machine().lower()}, {config.CPU_NAME or binding.get_host_cpu_name()}"


def same_bytes_here() -> bool:
    """Whether results on this machine are known to equal those on all others."""
    return platform.machine().lower() in SAME_BYTES


COMPILED_IN = os.environ.get("NUMBA_CACHE_DIR") or _compiled_folder(Path(__file__).parent)


def compiled(inline: bool = False) -> Callable[[Function], Function]:
    """Compile on first call, cache on disk, release the interpreter lock while running.

    Never with `fastmath`: reordered sums differ between CPUs. See `lanes` for fast sums in a fixed order.
    """
    import numba  # not above: a process that only needs the folder takes half the memory without it

    config: Any = numba.config

    def decorate(function: Function) -> Function:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "forceinline": inline}
        before = config.CACHE_DIR
        config.CACHE_DIR = COMPILED_IN
        try:
            done: Any = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # no writable folder: compile in every process
            done = numba.njit(**options)(function)
        finally:
            config.CACHE_DIR = before
        return cast(Function, done)

    return decorate
