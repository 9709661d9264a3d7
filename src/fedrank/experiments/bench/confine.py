"""Limits of the process that runs the code of a submission: time, memory, processes, and files that it may write.

On Linux, Landlock denies writes outside given folders, to all processes that the code starts. Other systems have no
such limit here. The code can still read files, use the network, and falsify its own measurements.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

MEMORY = 16 << 30  # bytes of all processes of a submission together
PROCESSES = 100  # of a submission at once
THREADS = 1_000  # of a submission at once
SECONDS = 0.5  # between two looks at its processes
LONGEST = 1 << 20  # bytes of a message
_SUBREAPER = 36  # prctl: processes whose parent ended become children of this one
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls of Landlock, on all architectures
_NO_NEW_PRIVILEGES = 38
_WRITES = (0x1FF2, 0x3FF2, 0x7FF2)  # kinds of writing that versions 1, 2 and from 3 on of Landlock know
_OF_FILES = 1 << 1 | 1 << 14  # to write and to truncate


def memory() -> int:
    """The limit on memory here: never more than three quarters of the machine."""
    if sys.platform == "win32":
        return MEMORY
    return min(MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4)


def confine(folders: Sequence[Path]) -> bool:
    """Limit this process and all that it starts; returns whether writes outside the folders are denied."""
    if sys.platform == "win32":
        return False
    import resource

    os.setsid()  # so all its processes can be ended together
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        most = sum(len(os.listdir(place / "task")) for place in Path("/proc").glob("[0-9]*") if _ours(place)) + THREADS
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))  # of the user; the system administrator has no limit
    return deny_writes_outside(folders)


def _ours(place: Path) -> bool:
    with suppress(OSError):
        return sys.platform != "win32" and place.stat().st_uid == os.getuid() and (place / "task").is_dir()
    return False


def deny_writes_outside(folders: Sequence[Path]) -> bool:
    """Deny this process and all that it starts to write elsewhere (Landlock); False if the system cannot do that."""
    if not sys.platform.startswith("linux"):
        return False
    kernel = ctypes.CDLL(None, use_errno=True)
    version = kernel.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return False
    kinds = _WRITES[min(version, len(_WRITES)) - 1]
    rules = kernel.syscall(_CREATE_RULESET, struct.pack("=Q", kinds), ctypes.c_size_t(8), ctypes.c_uint32(0))
    if rules < 0:
        return False
    try:
        places = [*((folder, kinds) for folder in (*folders, Path("/dev/shm"))), (Path("/dev/null"), kinds & _OF_FILES)]
        for path, allowed in places:
            with suppress(FileNotFoundError):
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
                kernel.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", allowed, place), ctypes.c_uint32(0))
                os.close(place)
        kernel.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return bool(kernel.syscall(_RESTRICT_SELF, rules, ctypes.c_uint32(0)) == 0)
    finally:
        os.close(rules)


def received(process: SpawnProcess, pipe: Any, seconds: float, where: str, others: set[int]) -> bytes:
    """The message of a confined process; a ValueError says which limit it passed. All its processes are ended."""
    deadline = time.monotonic() + seconds
    try:
        while not pipe.poll(min(SECONDS, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise ValueError(
                    f"{where}: its code did not finish within {seconds / 60:g} minutes, and was ended; finished runs "
                    "are kept. Raise --minutes if it is only slow"
                )
            found = descendants(others)
            if sum(found.values()) > memory():
                raise ValueError(f"{where}: its code used more than {memory() >> 30} GiB of memory, and was ended")
            if len(found) > PROCESSES:
                raise ValueError(f"{where}: its code started more than {PROCESSES} processes, and was ended")
        return bytes(pipe.recv_bytes(LONGEST))  # never `recv`: what the code sends is not unpickled
    except (EOFError, OSError):
        process.join()
        raise ValueError(
            f"{where}: its process ended (exit code {process.exitcode}); memory may have run out"
        ) from None
    except KeyboardInterrupt:
        os.kill(_pid(process), signal.SIGINT)
        process.join(30)
        raise
    finally:
        _end(process, others)


def adopt_orphans() -> set[int]:
    """Let processes whose parent ends become children of this one; returns the children that it has already."""
    resource_tracker.ensure_running()  # which would otherwise start with the process, and be ended with it
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    return {pid for pid, (parent, _) in _processes().items() if parent == os.getpid()}


def descendants(others: set[int]) -> dict[int, int]:
    """Bytes in memory of all processes below this one, without those below `others`; empty where /proc is missing."""
    known, found = _processes(), dict[int, int]()
    below = {os.getpid()}
    while below:
        below = {pid for pid, (parent, _) in known.items() if parent in below and pid not in others}
        found |= {pid: known[pid][1] for pid in below}
    return found


def _processes() -> dict[int, tuple[int, int]]:
    """Parent and bytes in memory of every process."""
    found = dict[int, tuple[int, int]]()
    if sys.platform == "win32":
        return found
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):  # it ended
            stat = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
            found[int(place.name)] = int(stat[1]), int(stat[21]) * os.sysconf("SC_PAGE_SIZE")
    return found


def _end(process: SpawnProcess, others: set[int]) -> None:
    """End a process, its session, and all that it started, also what left its session."""
    process.kill()
    if sys.platform == "win32":
        return
    with suppress(ProcessLookupError, PermissionError):  # it had not begun its session, or it ended
        os.killpg(_pid(process), signal.SIGKILL)
    process.join()
    for _ in range(1_000):
        if not (found := descendants(others)):
            return
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # a child of another one, which is about to end
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def _pid(process: SpawnProcess) -> int:
    assert process.pid is not None, "it was started"
    return process.pid
