"""Sources of documents: folders are walked, and files are opened without following symbolic links.

A folder stays open while its files are read, so a path between the root and a file cannot be replaced by a link during
the walk. Skipped files are counted by reason.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fedrank.search.readers import ParsedDocument, Unreadable, clean, format_of, read_pieces

MAX_FILE = 32 << 20  # bytes of a file that is one document
MAX_MANY = 1 << 30  # bytes of a file with many documents, which is read incrementally
LATEST = 1 << 62  # nanoseconds since 1970
DEEPEST = 60  # levels of folders below the root; each folder stays open
SKIPPED_FOLDERS = {"node_modules", "__pycache__", "site-packages", "venv"}
_MAILDIR = {"cur", "new", "tmp"}
_HAS_FOLDERS = os.open in os.supports_dir_fd and os.scandir in os.supports_fd
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FOLDER = _READ | getattr(os, "O_DIRECTORY", 0)


def is_passed_over(name: str) -> bool:
    """Whether folders of this name are skipped."""
    return name.startswith(".") or name in SKIPPED_FOLDERS


@dataclass(frozen=True)
class Left:
    """A file or folder that was skipped."""

    key: bytes
    reason: str


@dataclass(frozen=True)
class FoundFile:
    """A file below a root; it can be read only before the walk continues."""

    key: bytes  # identifies the file: its path below the root, without the parts that a mail program changes
    path: bytes  # below the root; empty if the root is the file
    size: int
    modified: int  # nanoseconds since 1970
    mail: bool  # in a Maildir
    folder: int | None  # descriptor of its folder, if the system supports it
    full: str

    def pieces(self, format: str = "") -> Iterator[ParsedDocument | Unreadable]:
        """The documents of the file, and reasons for unreadable parts."""
        name = os.path.basename(self.full)
        try:
            handle = os.open(name, _READ, dir_fd=self.folder) if self.folder is not None else os.open(self.full, _READ)
            with open(handle, "rb") as file:
                facts = os.fstat(handle)
                if not stat.S_ISREG(facts.st_mode):
                    raise Unreadable("no file")
                if facts.st_size > MAX_MANY:
                    raise Unreadable("too large")
                if facts.st_size == 0:  # also special files of the system, which may be endless
                    raise Unreadable("empty")
                first = file.read(4096)
                file.seek(0)
                shown = clean(os.fsencode(name).decode("utf-8", "replace"))
                kind = format or ("eml" if self.mail else format_of(shown, first))
                if facts.st_size > MAX_FILE and kind not in ("mbox", "jsonl"):
                    raise Unreadable("too large")
                yield from read_pieces(file, facts.st_size, shown, kind)
        except Unreadable as problem:
            yield problem
        except FileNotFoundError:
            yield Unreadable("vanished")
        except PermissionError:
            yield Unreadable("not allowed")
        except OSError:
            yield Unreadable("cannot be read")
        except (ValueError, RecursionError, MemoryError):  # untrusted content may cause any of these
            yield Unreadable("broken")


Avoided = Mapping[tuple[int, int], str]  # from (device, inode) of files and folders to skip to the reason


def walk(root: Path, avoid: Avoided = MappingProxyType({})) -> Iterator[FoundFile | Left]:
    """All files of a root that may contain documents, sorted by name. A root may be a single file."""
    facts = os.stat(root)  # follows a link, since the user chose the root
    if stat.S_ISREG(facts.st_mode):
        yield FoundFile(b"", b"", facts.st_size, _modified(facts), False, None, str(root.resolve()))
    elif stat.S_ISDIR(facts.st_mode):
        handle = os.open(root, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0)) if _HAS_FOLDERS else None
        try:
            yield from _folder(handle, str(root), b"", 0, avoid, False)
        finally:
            if handle is not None:
                os.close(handle)
    else:
        yield Left(b"", "no file")


def _modified(facts: os.stat_result) -> int:
    """The modification time, limited to what the database can store."""
    return max(min(facts.st_mtime_ns, LATEST), -LATEST)


def _folder(
    handle: int | None, full: str, path: bytes, depth: int, avoid: Avoided, of_maildir: bool
) -> Iterator[FoundFile | Left]:
    try:
        with os.scandir(full if handle is None else handle) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        yield Left(path, "cannot be read")
        return
    names = {entry.name for entry in entries}
    maildir = names >= _MAILDIR
    for entry in entries:
        below = os.path.join(path, os.fsencode(entry.name))
        try:
            facts = entry.stat(follow_symlinks=False)
        except OSError:
            yield Left(below, "vanished")
            continue
        if stat.S_ISLNK(facts.st_mode):
            yield Left(below, "link")
        elif (facts.st_dev, facts.st_ino) in avoid:
            yield Left(below, avoid[facts.st_dev, facts.st_ino])
        elif stat.S_ISREG(facts.st_mode):
            if entry.name.startswith(".") or maildir or (of_maildir and entry.name.startswith("dovecot")):
                yield Left(below, "hidden")
                continue
            key = os.path.join(os.path.dirname(path), below.rpartition(b"/")[2].partition(b":2,")[0])
            known_by = key if of_maildir else below
            where = os.path.join(full, entry.name)
            yield FoundFile(known_by, below, facts.st_size, _modified(facts), of_maildir, handle, where)
        elif not stat.S_ISDIR(facts.st_mode):
            yield Left(below, "no file")
        elif maildir and entry.name == "tmp":
            continue
        elif is_passed_over(entry.name) and not maildir:
            yield Left(below, "hidden")
        elif depth >= DEEPEST:
            yield Left(below, "too deep")
        else:
            inner: int | None = None
            try:
                if handle is not None:
                    inner = os.open(entry.name, _FOLDER, dir_fd=handle)
            except OSError:
                yield Left(below, "cannot be read")
                continue
            try:
                mails = maildir and entry.name in ("cur", "new")
                yield from _folder(inner, os.path.join(full, entry.name), below, depth + 1, avoid, mails)
            finally:
                if inner is not None:
                    os.close(inner)
