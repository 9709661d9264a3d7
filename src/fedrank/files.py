"""Atomic and durable file writes, locks that end with their process, and safe reads."""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

UNFINISHED = ".part"  # suffix of files that are being written
FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))  # disk full, or quota exceeded
PATIENCE = 1.0  # seconds to wait for a lock; readers hold it for less
_LOCKED_BYTE = 1 << 30  # on Windows, others cannot read what is locked; a byte behind the text is
LARGEST = 512 << 20  # maximum bytes of a file that is read into memory


def write_atomic(path: str | Path, content: str | bytes | Iterable[str], private: bool = False) -> None:
    """Replace a file atomically and durably: readers find the complete old or new file, even after a crash."""
    with writing(path, private) as file:
        for part in (content,) if isinstance(content, (str, bytes)) else content:
            file.write(part.encode() if isinstance(part, str) else part)


@contextlib.contextmanager
def writing(path: str | Path, private: bool = False, replace: bool = True) -> Iterator[BinaryIO]:
    """Open a file that replaces the old one when it is complete on disk.

    A private file is readable only by its owner from the start. Without `replace`, an existing file is never lost.
    Errors name the file, unlike the system's error for a full disk.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{threading.get_native_id()}.{os.getpid()}{UNFINISHED}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    try:
        with add_path_to_errors(path):
            _sweep(path)  # remove leftovers of a crash; other threads may be writing the same file
            with open(os.open(part, flags, 0o600 if private else 0o666), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if replace:
                os.replace(part, path)
            else:
                os.link(part, path)
            sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def add_path_to_errors(path: str | Path) -> Iterator[None]:
    """Add the file name to errors without one, such as those of a full disk."""
    try:
        yield
    except OSError as problem:
        if problem.filename is None and problem.errno is not None:  # errors of fedrank have no errno and are complete
            raise OSError(problem.errno, problem.strerror or str(problem), str(path)) from problem
        raise


def error_message(problem: BaseException) -> str:
    """Format an error in one line; errors of files begin with the name. A full or read-only disk gets a remedy."""
    if not isinstance(problem, OSError) or not problem.strerror or problem.filename is None:
        return str(problem) or type(problem).__name__
    line = f"{os.fsdecode(problem.filename)}: {problem.strerror}"
    if problem.errno in FULL:
        return f"{line}; free disk space, then run the same command again"
    if problem.errno == errno.EROFS:
        return f"{line}; mount it for writing, or use another folder, then run the same command again"
    return line


def for_owner(path: str, flags: int) -> int:
    """An opener for `open(..., opener=for_owner)` that makes a file readable only by its owner."""
    handle = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o600)
    os.chmod(path, 0o600)  # the file may have existed before
    return handle


def private_folder(path: str | Path) -> Path:
    """Create a folder that only its owner can read."""
    path = Path(path)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(path, 0o700)
    return path


def opened(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file for reading. Anything else, such as a pipe, is an error instead of blocking."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    check_is_file(handle, path)
    return open(handle, "rb")


def check_is_file(handle: int, path: str | os.PathLike[str]) -> None:
    """Raise an error and close the handle if it is not a regular file."""
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)
        what = "a folder" if stat.S_ISDIR(kind) else "a pipe" if stat.S_ISFIFO(kind) else "a device"
        raise ValueError(f"{path} is {what}; name a file")


def is_plain(name: object) -> bool:
    """Whether this is a plain file name without path components.

    >>> [is_plain(name) for name in ("model-1.json", "..", "../model.json", "", None)]
    [True, False, False, False, False]
    """
    return isinstance(name, str) and name not in ("", ".", "..") and not {*name} & {"/", "\\", "\0"}


def read_bytes(path: str | os.PathLike[str], most: int = LARGEST) -> bytes:
    """Read a file from an untrusted source, which may not be a regular file, or may be larger than memory.

    Only its current size is read, since some system files have no end.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(
                f"{path} has {size:,} bytes, but at most {most:,} are allowed; check that it is the right file"
            )
        return file.read(size)


def read_text(path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
    """Read a file as text with universal newlines."""
    text = read_bytes(path).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _sweep(path: Path) -> None:
    """Remove unfinished versions of a file from processes that have ended."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*{UNFINISHED}"):
        pid = part.name.removesuffix(UNFINISHED).rpartition(".")[2]
        if pid.isdigit() and int(pid) != os.getpid() and not is_alive(int(pid)):
            part.unlink(missing_ok=True)


def parse_json(text: str | bytes, each: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None) -> Any:
    """Parse JSON; ValueError if it is invalid or nested too deeply. `each` creates its objects."""
    try:
        return json.loads(text, object_pairs_hook=each)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def exchange(new: str | Path, old: str | Path) -> None:
    """Exchange two folders atomically.

    A system without atomic exchange renames one after the other; a process that is killed in between leaves both
    folders under other names.
    """
    if not _swapped(os.fsencode(new), os.fsencode(old)):
        aside = Path(old).with_name(f"{Path(new).name}{UNFINISHED}")
        os.rename(old, aside)
        os.rename(new, old)
        os.rename(aside, new)


def _swapped(new: bytes, old: bytes) -> bool:
    """Exchange two names in one step; return False if the system cannot."""
    import ctypes

    here, exchanging = -100, 2  # AT_FDCWD; RENAME_EXCHANGE of Linux is RENAME_SWAP of macOS
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            failed = library.renamex_np(new, old, exchanging)
        else:
            failed = library.renameat2(here, new, here, old, exchanging)
    except (OSError, AttributeError, TypeError):  # not supported by this system
        return False
    if failed and ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fsdecode(old))
    return not failed


def is_alive(pid: int) -> bool:
    """Whether a process with this id exists; True if that cannot be determined."""
    if os.name == "nt":  # signal 0 would end the process on Windows
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def private_parents(path: Path) -> None:
    """Create the parent folders of a file, readable only by the owner; symbolic links are errors."""
    missing = []
    for above in path.parents:
        if above.is_symlink():
            raise ValueError(f"{above} is a symbolic link, so files would be restored elsewhere; remove it")
        if above.exists():
            break
        missing.append(above)
    for above in reversed(missing):
        above.mkdir(mode=0o700)
        sync(above.parent)


def sync(path: str | Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    path = Path(path)
    if os.name == "nt" and path.is_dir():  # folders cannot be opened on Windows, and need no flush
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Locked(FileExistsError):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(path: str | Path, what: str, leave: bool = True) -> Iterator[None]:
    """Hold the lock of this file, which ends with the process; `what` is for the error of other processes.

    The file records the holder, and stays. Without `leave` it is removed at the end, while it is still locked: a
    process that opened it before notices that its lock belongs to a removed file, and locks the new one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + PATIENCE
    while True:
        file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")  # noqa: SIM115
        try:
            _lock(file.fileno())
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                break
        except OSError:
            if time.monotonic() > deadline:
                holder = file.read(20).strip()
                file.close()
                who = f"process {holder}" if holder.isdigit() else "another process"
                raise Locked(f"{what} is in use by {who}; wait for it, or stop it") from None
            time.sleep(0.02)
        file.close()
    with file:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            if not leave and sys.platform != "win32":  # Windows does not remove a file that is open
                path.unlink(missing_ok=True)


def _lock(handle: int, shared: bool = False) -> None:
    """Lock an open file until it is closed; OSError if another process holds the lock."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def is_locked(path: str | Path) -> bool | None:
    """Whether a process holds the lock of this file; None if that cannot be determined."""
    try:
        with opened(path) as file:
            try:
                _lock(file.fileno(), shared=True)
            except OSError:
                return True
            return False
    except (FileNotFoundError, PermissionError, ValueError):  # ValueError: a pipe, or a folder
        return None


def now() -> str:
    """The current time as records have it: UTC, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
