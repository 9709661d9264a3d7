"""Files that are whole or not there, locks that end with whoever holds them, and what is really on the disk."""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

UNFINISHED = ".part"  # how the names of files end that are still being written
FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))  # no room, or none that is left to us
PATIENCE = 1.0  # seconds to wait for a lock: whoever only looks holds it for less
LARGEST = 512 << 20  # bytes of a file that is read at once


def write_atomic(path: str | Path, content: str | bytes | Iterable[str], private: bool = False) -> None:
    """Replace a file at once and durably: whoever reads it, even after a crash, finds the old or the new one whole."""
    with writing(path, private) as file:
        for part in (content,) if isinstance(content, (str, bytes)) else content:
            file.write(part.encode() if isinstance(part, str) else part)


@contextlib.contextmanager
def writing(path: str | Path, private: bool = False, replace: bool = True) -> Iterator[BinaryIO]:
    """A file that takes its place when all of it is on the disk; what was there before stays until then.

    A private one can be read by its owner only, from its first byte on. Without `replace` a file that is there already
    is never lost. Problems name the file, which those of a full disk do not.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    try:
        with naming(path):
            _sweep(path)  # what lies there from a crash
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
def naming(path: str | Path) -> Iterator[None]:
    """Let problems within name this file where they name none, as those of a full disk do not."""
    try:
        yield
    except OSError as problem:
        if problem.filename is None and problem.errno is not None:  # ours have none, and say what is needed
            raise OSError(problem.errno, problem.strerror or str(problem), str(path)) from problem
        raise


def told(problem: BaseException) -> str:
    """A problem in one line; that of a file begins with its name, and a full disk is no reason to begin again."""
    if not isinstance(problem, OSError) or not problem.strerror or problem.filename is None:
        return str(problem) or type(problem).__name__
    line = f"{os.fsdecode(problem.filename)}: {problem.strerror}"
    return f"{line}; make room, then run the same command again" if problem.errno in FULL else line


def for_owner(path: str, flags: int) -> int:
    """Opens what nobody but its owner may read, for `open(..., opener=for_owner)`: what describes people."""
    handle = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o600)
    os.chmod(path, 0o600)  # it may have been there before
    return handle


def private_folder(path: str | Path) -> Path:
    """A folder that nobody but its owner may look into, made if need be."""
    path = Path(path)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(path, 0o700)
    return path


def opened(path: str | os.PathLike[str]) -> io.BufferedReader:
    """A file to be read. What is none, such as a pipe on which nobody writes, is refused rather than waited for."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    check_is_file(handle, path)
    return open(handle, "rb")


def check_is_file(handle: int, path: str | os.PathLike[str]) -> None:
    """Close and refuse what was opened and is no file."""
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)
        what = "a folder" if stat.S_ISDIR(kind) else "a pipe" if stat.S_ISFIFO(kind) else "a device"
        raise ValueError(f"{path} is {what}, where a file was expected")


def is_plain(name: object) -> bool:
    """Whether this is the name of something in a folder, and leads nowhere else.

    >>> [is_plain(name) for name in ("model-1.json", "..", "../model.json", "", None)]
    [True, False, False, False, False]
    """
    return isinstance(name, str) and name not in ("", ".", "..") and not {*name} & {"/", "\\", "\0"}


def read_bytes(path: str | os.PathLike[str], most: int = LARGEST) -> bytes:
    """All of a file that may come from anybody, and may be no file, or larger than memory.

    As much as it has now is read, and no more: some files of the system have no end.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"{path} has {size:,} bytes, and such a file has at most {most:,}; was it exchanged?")
        return file.read(size)


def read_text(path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
    """The same as text, with line ends as Python has them."""
    text = read_bytes(path).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _sweep(path: Path) -> None:
    """Remove what processes that no longer live left unfinished of a file."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*{UNFINISHED}"):
        pid = part.name.removesuffix(UNFINISHED).rpartition(".")[2]
        if pid.isdigit() and (int(pid) == os.getpid() or not is_alive(int(pid))):
            part.unlink(missing_ok=True)


def parse_json(text: str | bytes, each: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None) -> Any:
    """What a JSON text says; ValueError where it is none, or nested too deeply. `each` makes its objects."""
    try:
        return json.loads(text, object_pairs_hook=each)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def exchange(new: str | Path, old: str | Path) -> None:
    """Let two folders change places at once, so that nobody ever finds none, or half of one.

    A system that cannot do that moves one after the other; a process that is killed in between leaves `old` without a
    folder, and both of them under other names.
    """
    if not _swapped(os.fsencode(new), os.fsencode(old)):
        aside = Path(old).with_name(f"{Path(new).name}{UNFINISHED}")
        os.rename(old, aside)
        os.rename(new, old)
        os.rename(aside, new)


def _swapped(new: bytes, old: bytes) -> bool:
    """Whether the system exchanged two names in one step."""
    import ctypes
    import sys

    here, exchanging = -100, 2  # AT_FDCWD; RENAME_EXCHANGE of Linux is RENAME_SWAP of macOS
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            failed = library.renamex_np(new, old, exchanging)
        else:
            failed = library.renameat2(here, new, here, old, exchanging)
    except (OSError, AttributeError, TypeError):  # another system, or an older one
        return False
    if failed and ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fsdecode(old))
    return not failed


def is_alive(pid: int) -> bool:
    """Whether a process of this number runs; where that cannot be asked, yes."""
    if os.name == "nt":  # signal 0 would end it there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def private_parents(path: Path) -> None:
    """The folders above a file, for the owner alone; a link among them could lead anywhere."""
    missing = []
    for above in path.parents:
        if above.is_symlink():
            raise ValueError(f"{above} is a link, and what is restored there could land anywhere; remove it")
        if above.exists():
            break
        missing.append(above)
    for above in reversed(missing):
        above.mkdir(mode=0o700)
        sync(above.parent)


def sync(path: str | Path) -> None:
    """Return when a file, or which files a folder has, is on the disk."""
    path = Path(path)
    if os.name == "nt" and path.is_dir():  # folders cannot be opened there, and need not be
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Locked(FileExistsError):
    """Somebody else works on it."""


@contextlib.contextmanager
def locked(path: str | Path, what: str, leave: bool = True) -> Iterator[None]:
    """Hold the lock of this file, which ends with the process however it ends; `what` is for the error of others.

    The file says who holds it, and stays. Without `leave` it is removed at the end, while it is still held: whoever
    opened it before finds that the lock it gets is that of no file any more, and takes the new one.
    """
    try:
        import fcntl
    except ImportError:  # not on this system
        yield
        return
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + PATIENCE
    while True:
        file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                break
        except OSError:
            if time.monotonic() > deadline:
                holder = file.read(20).strip()
                file.close()
                who = f"process {holder}" if holder.isdigit() else "another process"
                raise Locked(f"{what} is being worked on by {who}; wait for it, or stop it") from None
            time.sleep(0.02)
        file.close()
    with file:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            if not leave:
                path.unlink(missing_ok=True)


def is_locked(path: str | Path) -> bool | None:
    """Whether somebody holds the lock of this file; None where there is no file, or no locks, or we may not look."""
    try:
        import fcntl

        with opened(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
            return False
    except (ImportError, FileNotFoundError, PermissionError, ValueError):  # ValueError: a pipe, or a folder
        return None
