"""Sources of documents: folders are walked, and files are opened without following symbolic links.

A folder stays open while its files are read, so a path between the root and a file cannot be replaced by a link during
the walk. Skipped files are counted by reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from fedrank.search.databases import DATABASES, LOGS, read_database
from fedrank.search.formats import MAX_MANY, Pieces, format_of, read_pieces
from fedrank.search.readers import Unreadable, clean

HASHED = 1 << 20  # bytes at the beginning of a file by which it is recognised, with its size
LATEST = 1 << 62  # nanoseconds since 1970
DEEPEST = 60  # levels of folders below the root; each folder stays open
SKIPPED_FOLDERS = {"node_modules", "__pycache__", "site-packages", "venv"}
_MAILDIR = {"cur", "new", "tmp"}
_HAS_FOLDERS = os.open in os.supports_dir_fd and os.scandir in os.supports_fd
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FOLDER = _READ | getattr(os, "O_DIRECTORY", 0)


@dataclass(frozen=True)
class Program:
    """A folder of a program, recognised by the names in it, of which only some are read: mail folders or a database."""

    signs: frozenset[str]
    read: frozenset[str]
    format: str  # of what is read
    deepest: int = DEEPEST  # levels below a root; a deeper one was not asked for, and is not read


_PROFILES = frozenset({"Default", *(f"Profile {number}" for number in range(1, 100))})
PROGRAMS = (
    Program(frozenset({"prefs.js", "Mail"}), frozenset({"Mail", "ImapMail"}), "mbox"),  # Thunderbird
    Program(frozenset({"prefs.js", "ImapMail"}), frozenset({"Mail", "ImapMail"}), "mbox"),
    Program(frozenset({"prefs.js", "places.sqlite"}), frozenset({"places.sqlite"}), "database", 1),  # Firefox
    Program(frozenset({"Local State", "Default"}), _PROFILES, "", 0),  # Chrome and its relatives
    Program(frozenset({"Preferences", "History"}), frozenset({"History"}), "database", 1),
    Program(frozenset({"zotero.sqlite"}), frozenset({"zotero.sqlite"}), "database"),
)


def is_profile(path: Path) -> bool:
    """Whether this is a folder of a program that is read only if it, or the folder around it, was asked for."""
    names: set[str] = set()
    with contextlib.suppress(OSError):
        names.update(os.listdir(path))
    return any(names >= one.signs and one.deepest < DEEPEST for one in PROGRAMS)


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
    """A file below a root; it can be read only before the walk continues, unless it is `kept`."""

    key: bytes  # identifies the file: its path below the root, without the parts that a mail program changes
    path: bytes  # below the root; empty if the root is the file
    size: int
    modified: int  # nanoseconds since 1970
    format: str  # if its place decides: eml, mbox or database; else ""
    folder: int | None  # descriptor of its folder, if the system supports it
    full: str

    @property
    def name(self) -> str:
        return os.path.basename(self.full)

    def kept(self) -> FoundFile:
        """The same file with a descriptor that stays open until `close`."""
        return self if self.folder is None else replace(self, folder=os.dup(self.folder))

    def close(self) -> None:
        if self.folder is not None:
            os.close(self.folder)

    def open(self, name: str) -> BinaryIO:
        """Open a file by its path below the folder of this one; no link is followed."""
        return open(self._handle(name), "rb")

    def _handle(self, name: str) -> int:
        if self.folder is None:
            return os.open(os.path.join(os.path.dirname(self.full), name), _READ)
        inner, slash, below = name.partition("/")
        if not slash:
            return os.open(name, _READ, dir_fd=self.folder)
        folder = os.open(inner, _FOLDER, dir_fd=self.folder)
        try:
            return replace(self, folder=folder)._handle(below)
        finally:
            os.close(folder)

    def content(self) -> bytes:
        """A hash of its size and first megabyte, by which a moved file is recognised; b"" if it is unreadable or empty.

        A database changes all the time and has none.
        """
        if self.format == "database":
            return b""
        try:
            handle = self._handle(self.name)
            try:
                facts = os.fstat(handle)
                data = os.read(handle, min(facts.st_size, HASHED)) if stat.S_ISREG(facts.st_mode) else b""
            finally:
                os.close(handle)
        except OSError:
            return b""
        return hashlib.blake2b(facts.st_size.to_bytes(8) + data, digest_size=16).digest() if data else b""

    def pieces(self, format: str = "") -> Pieces:
        """The documents of the file, and reasons for unreadable parts."""
        try:
            with self.open(self.name) as file:
                facts = os.fstat(file.fileno())
                if not stat.S_ISREG(facts.st_mode):
                    raise Unreadable("no file")
                if facts.st_size > MAX_MANY:
                    raise Unreadable("too large")
                if facts.st_size == 0:  # also special files of the system, which may be endless
                    raise Unreadable("empty")
                first = file.read(4096)
                file.seek(0)
                if self.format == "database" and first.startswith(b"SQLite format 3\0"):
                    yield from read_database(self.name, self.open)
                    return
                shown = clean(os.fsencode(self.name).decode("utf-8", "replace"))
                kind = format or self.format.replace("database", "") or format_of(shown, first)
                yield from read_pieces(file, facts.st_size, shown, kind)
        except Unreadable as problem:
            yield problem
        except FileNotFoundError:
            yield Unreadable("vanished")
        except PermissionError:
            yield Unreadable("not allowed")
        except OSError:
            yield Unreadable("cannot be read")
        except MemoryError:
            yield Unreadable("needs too much memory")
        except (ValueError, RecursionError):  # untrusted content may cause any of these
            yield Unreadable("broken")


Avoided = Mapping[tuple[int, int], str]  # from (device, inode) of files and folders to skip to the reason
Wanted = dict[str, "Wanted | None"]  # the entries of a folder to look at, and below them; None: everything


def wanted_of(paths: Iterable[str]) -> Wanted | None:
    """The entries to look at, for these paths below a root.

    >>> wanted_of(["a/b", "a/c", "a/b/d"]), wanted_of(["a", ""])
    ({'a': {'b': None, 'c': None}}, None)
    """
    whole: Wanted = {}
    for path in paths:
        if not path:
            return None
        *folders, last = path.split("/")
        at: Wanted | None = whole
        for name in folders:
            at = at if at is None else at.setdefault(name, {})
        if at is not None:
            at[last] = None
    return whole


def is_wanted(path: str, wanted: Wanted | None) -> bool:
    """Whether a path is one of those to look at, or below one."""
    for name in path.split("/"):
        if wanted is None:
            return True
        if name not in wanted:
            return False
        wanted = wanted[name]
    return wanted is None


def walk(root: Path, avoid: Avoided | None = None, wanted: Wanted | None = None) -> Iterator[FoundFile | Left]:
    """All files of a root that may contain documents, sorted by name. A root may be a single file.

    With `wanted`, only these entries are looked at.
    """
    facts = os.stat(root)  # follows a link, since the user chose the root
    if not stat.S_ISREG(facts.st_mode) and not stat.S_ISDIR(facts.st_mode):
        yield Left(b"", "no file")
        return
    whole = stat.S_ISDIR(facts.st_mode)
    path = root if whole else root.resolve()
    handle = os.open(path if whole else path.parent, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0)) if _HAS_FOLDERS else None
    try:
        if whole:
            yield from _folder(handle, str(root), b"", 0, avoid or {}, "", wanted)
        else:
            format = "database" if path.name in DATABASES else ""
            yield FoundFile(b"", b"", *_size_and_time(handle, str(path), facts, format), format, handle, str(path))
    finally:
        if handle is not None:
            os.close(handle)


def _size_and_time(folder: int | None, full: str, facts: os.stat_result, format: str) -> tuple[int, int]:
    """Size and modification time, limited to what the store can hold; those of a database include its logs."""
    size, modified = facts.st_size, facts.st_mtime_ns
    for ending in LOGS if format == "database" else ():
        with contextlib.suppress(OSError):
            where = full if folder is None else os.path.basename(full)
            log = os.stat(where + ending, dir_fd=folder, follow_symlinks=False)
            size, modified = size + log.st_size, max(modified, log.st_mtime_ns)
    return size, max(min(modified, LATEST), -LATEST)


def _folder(
    handle: int | None, full: str, path: bytes, depth: int, avoid: Avoided, inside: str, wanted: Wanted | None
) -> Iterator[FoundFile | Left]:
    """`inside` is "eml" in the folders of a Maildir with messages, and "mbox" below the mail of Thunderbird."""
    try:
        with os.scandir(full if handle is None else handle) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        yield Left(path, "cannot be read")
        return
    names = {entry.name for entry in entries}
    maildir = names >= _MAILDIR or (inside == "mbox" and names >= _MAILDIR - {"new"})
    program = next((one for one in PROGRAMS if names >= one.signs), None)
    for entry in entries:
        if wanted is not None and entry.name not in wanted:
            continue
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
        elif program and (entry.name not in program.read or depth > program.deepest):
            yield Left(below, "data of a program")
        elif stat.S_ISREG(facts.st_mode):
            if entry.name.startswith(".") or maildir or (inside == "eml" and entry.name.startswith("dovecot")):
                yield Left(below, "hidden")
                continue
            if entry.name.endswith(".msf"):
                yield Left(below, "data of a program")
                continue
            key = below
            if inside == "eml":
                key = os.path.join(os.path.dirname(path), below.rpartition(b"/")[2].partition(b":2,")[0])
            where, format = os.path.join(full, entry.name), program.format if program else inside
            yield FoundFile(key, below, *_size_and_time(handle, where, facts, format), format, handle, where)
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
            within = "mbox" if "mbox" in (inside, program and program.format) else ""
            if maildir and entry.name in ("cur", "new"):
                within = "eml"
            try:
                yield from _folder(
                    inner, os.path.join(full, entry.name), below, depth + 1, avoid, within,
                    None if wanted is None else wanted[entry.name],
                )  # fmt: skip
            finally:
                if inner is not None:
                    os.close(inner)
