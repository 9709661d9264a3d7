"""Reading files into the store: only changed files are read; an interruption loses at most the last batch."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedrank.data.live_features import FeatureSet
from fedrank.progress import Progress, quiet
from fedrank.search.commands import WITHOUT_TEXT, commands_of, output_of
from fedrank.search.databases import LOGS
from fedrank.search.formats import MAX_MANY, PICTURES, Pieces, ending_of
from fedrank.search.reader_process import PASSING, ReaderProcess
from fedrank.search.readers import ParsedDocument, Unreadable, clean, has_bookmarks, name_in_words
from fedrank.search.results import SearchError
from fedrank.search.sources import FoundFile, Left, Wanted, is_passed_over, is_profile, is_wanted, walk, wanted_of
from fedrank.search.store import NewDocument, Store, in_parts, marks

BATCH = 1_000  # documents per transaction
BATCH_CHARACTERS = 8_000_000
BATCH_SECONDS = 10.0  # after which a batch is stored in any case, since a stop loses what is not stored
AHEAD = 32  # files; the reader is asked for at most twice as many before its answers are taken
COPIES = 20  # files with the same content that are considered as the former place of a new file
MISSING = "root is not there"  # a stored reason
UNFINISHED = -1  # stored as the size of a file that is not completely read


@dataclass
class Collected:
    """Counts of files and documents."""

    files: int = 0
    unchanged: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0
    moved: int = 0  # files


@dataclass(frozen=True)
class Root:
    """A folder or file to index."""

    id: int
    path: Path
    format: str  # "" or "bookmarks"


def remember_roots(
    store: Store, paths: Iterable[str | os.PathLike[str]], bookmarks: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Add paths to those that are indexed; if one of them cannot be used, none is added."""
    given = {"": [absolute(path) for path in paths], "bookmarks": [absolute(path) for path in bookmarks]}
    for path in (*given[""], *given["bookmarks"]):
        if not path.exists():
            raise SearchError(f"{path} does not exist; nothing was indexed; check the path")
    for path in given["bookmarks"]:
        if not has_bookmarks(path):
            raise SearchError(
                f"{path} contains no bookmarks; nothing was indexed; give the HTML file that your browser exports, and "
                "other files and folders without --bookmarks"
            )
    folders = [root.path for root in roots_of(store) if not root.format and root.path.is_dir()]
    with store.writing():
        for format, resolved in given.items():
            for path in sorted(resolved):
                if format or is_profile(path) or not any(_is_walked(path, folder) for folder in folders):
                    store.db.execute(
                        "INSERT OR IGNORE INTO roots (path, format) VALUES (?, ?)", (os.fsencode(path), format)
                    )
                    folders += [path] * (not format and path.is_dir())


def remove_root(store: Store, path: str | os.PathLike[str]) -> int:
    """Remove a folder or file from those that are indexed, with its documents; returns the number of documents.

    It need not exist. The clicks on its documents stay, as for deleted files.
    """
    resolved = absolute(path)
    roots = roots_of(store)
    found = next((root for root in roots if root.path == resolved), None)
    if found is None:
        known = ", ".join(str(root.path) for root in roots) or "none"
        raise SearchError(f"{resolved} is not one of the indexed folders ({known}); nothing was removed")
    with store.writing():
        removed = _remove_files(store, [id for (id,) in store.rows("SELECT id FROM files WHERE root = ?", found.id)])
        store.db.execute("DELETE FROM passed_over WHERE root = ?", (found.id,))
        store.db.execute("DELETE FROM roots WHERE id = ?", (found.id,))
    return removed


def _remove_files(store: Store, files: Sequence[int]) -> int:
    """Remove files with their documents; returns the number of documents."""
    removed = 0
    for some in in_parts(files):
        below = f"file IN ({marks(some)})"
        removed += store.remove(id for (id,) in store.rows(f"SELECT id FROM documents WHERE {below}", *some))
        store.db.execute(f"DELETE FROM skipped WHERE {below}", some)
        store.db.execute(f"DELETE FROM files WHERE id IN ({marks(some)})", some)
    return removed


def absolute(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))


def _is_walked(path: Path, folder: Path) -> bool:
    """Whether a walk of the folder includes this path."""
    return path.is_relative_to(folder) and not any(map(is_passed_over, path.relative_to(folder).parts))


def roots_of(store: Store) -> list[Root]:
    rows = store.rows("SELECT id, path, format FROM roots ORDER BY id")
    return [Root(id, Path(os.fsdecode(path)), format) for id, path, format in rows]


@dataclass
class _Work:
    """A file that is being read, with the documents that are not stored yet."""

    root: Root
    found: FoundFile
    id: int  # 0: not in the store yet
    content: bytes
    former: tuple[bytes, bytes] | None  # root and key, if it was moved
    documents: dict[str, NewDocument] = field(default_factory=dict)  # by part
    parts: set[str] = field(default_factory=set)  # all parts read
    reasons: Counter[str] = field(default_factory=Counter)
    finished: bool = False


class Collector:
    """Reads roots into a store. The store is locked only while it is written, so searches remain possible."""

    def __init__(
        self,
        store: Store,
        features: FeatureSet,
        reader: ReaderProcess,
        progress: Progress,
        after_batch: Callable[[], None],
    ) -> None:
        self.store, self.features, self.reader, self.progress = store, features, reader, progress
        self.after_batch = after_batch
        self.counts = Collected()
        self._works: list[_Work] = []
        self._asked: deque[_Work] = deque()  # files that the reader was asked for, which are read next
        self._waiting = self._characters = 0  # documents and characters not stored yet
        self._reported = self._flushed = time.monotonic()
        self._begun, self._expected, self._looked_at = self._reported, math.inf, 0.0  # of a root, see `_work_of`
        self._some_are_forgotten = store.count("SELECT count(*) FROM left_out") > 0
        self._avoid = {_identity(store.folder): "fedrank's own"}
        self._commands = commands_of(store)
        self._moved: set[int] = set()  # files that were found at another place

    def collect(self, roots: Sequence[Root], changed: Collection[Path] | None = None) -> Collected:
        """Read new and changed files; with `changed`, look only at these paths and below them."""
        for root in roots:  # a root below another root is not read twice
            with contextlib.suppress(OSError):
                self._avoid.setdefault(_identity(root.path), "indexed by itself")
        gone: list[int] = []
        for root in roots:
            wanted = None if changed is None else _wanted_below(root.path, changed)
            if wanted is None or wanted:
                gone += self._collect_root(root, wanted)
        if gone := [id for id in gone if id not in self._moved]:  # at the end: a file may have moved to another root
            with self.store.writing():
                self.counts.removed += _remove_files(self.store, gone)
        return self.counts

    def _collect_root(self, root: Root, wanted: Wanted | None) -> list[int]:
        """Read a root; returns the ids of files that are gone."""
        with self.store.turn:
            known: dict[bytes, tuple[Any, ...]] = {
                key: facts
                for key, *facts in self.store.rows(
                    "SELECT key, id, path, size, modified, content IS NULL FROM files WHERE root = ?", root.id
                )
            }
        name = os.fsencode(root.path)
        seen: set[bytes] = set()
        passed: Counter[str] = Counter()
        self._begun, self._expected, self._looked_at = time.monotonic(), math.inf, 0.0
        try:
            for found in walk(root.path, self._avoid, wanted):
                if isinstance(found, Left):
                    passed[found.reason] += 1
                    continue
                if self._is_forgotten(name, found.key, ""):  # its name must not be stored either
                    passed["forgotten"] += 1
                    continue
                self.counts.files += 1
                seen.add(found.key)
                id, path, size, modified, unhashed = known.get(found.key, (0, b"", UNFINISHED, 0, True))
                if not id or (size, modified) != (found.size, found.modified):
                    self._read_changed(root, found, id, known, passed)
                else:
                    self.counts.unchanged += 1
                    if path != found.path or unhashed:
                        values = (found.path, found.content(), id)
                        with self.store.writing():
                            self.store.db.execute("UPDATE files SET path = ?, content = ? WHERE id = ?", values)
                    self._report(root, found)
        except OSError as problem:  # of the root: its documents stay, since a drive may be disconnected temporarily
            passed[MISSING if isinstance(problem, FileNotFoundError) else "root cannot be read"] += 1
            seen |= known.keys()
        while self._asked:
            self._read_next()
        self._flush()
        if wanted is None:
            with self.store.writing():
                self.store.db.execute("DELETE FROM passed_over WHERE root = ?", (root.id,))
                self.store.db.executemany(
                    "INSERT INTO passed_over VALUES (?, ?, ?)", ((root.id, why, times) for why, times in passed.items())
                )
        left = (known[key] for key in known.keys() - seen)
        return [id for id, path, *_ in left if wanted is None or is_wanted(os.fsdecode(path), wanted)]

    def _read_changed(
        self,
        root: Root,
        found: FoundFile,
        id: int,
        known: dict[bytes, tuple[Any, ...]],
        passed: Counter[str],
    ) -> None:
        """Read a new, changed or moved file."""
        content = found.content()
        if content and self._is_forgotten(b"", content, ""):
            passed["forgotten"] += 1
            return
        former = self._former_place(content) if content and not id else None
        if former is not None:
            id, _, key = former
            if key in known and known[key][0] == id:
                del known[key]
            self._move(root, found, id)
        self.reader.ask(found, root.format)
        self._asked.append(_Work(root, found, id, content, former and former[1:]))
        if len(self._asked) >= 2 * AHEAD:
            for _ in range(AHEAD):
                self._read_next()

    def _former_place(self, content: bytes) -> tuple[int, bytes, bytes] | None:
        """The id, root and key of a file with this content that is no longer where it was."""
        rows = self.store.rows(
            "SELECT files.id, key, roots.path, files.path FROM files JOIN roots ON roots.id = root WHERE content = ? "
            "AND files.path != x'' LIMIT ?",
            content,
            COPIES,
        )
        for id, key, root, path in rows:
            if os.path.isdir(root) and not os.path.lexists(os.path.join(root, path)):
                return id, root, key
        return None

    def _move(self, root: Root, found: FoundFile, id: int) -> None:
        """Give a file a new place; its documents keep their ids, and so the clicks on them."""
        with self.store.writing():
            self.store.db.execute(
                "UPDATE files SET root = ?, key = ?, path = ?, size = ? WHERE id = ?",
                (root.id, found.key, found.path, UNFINISHED, id),
            )
        self._moved.add(id)
        self.counts.moved += 1

    def _read_next(self) -> None:
        """Read one file; its documents are stored in batches."""
        work = self._asked.popleft()
        root, found, former = work.root, work.found, work.former
        known = dict(self.store.rows("SELECT part, digest FROM documents WHERE file = ?", work.id) if work.id else ())
        self._works.append(work)
        for piece in self._pieces(root, found):
            if isinstance(piece, Unreadable):
                work.reasons[str(piece)] += 1
            elif self._is_forgotten(os.fsencode(root.path), found.key, piece.part):
                work.reasons["forgotten"] += 1
            elif former and self._is_forgotten(*former, piece.part):
                work.reasons["forgotten"] += 1
                with self.store.writing():
                    leave_out(self.store, os.fsencode(root.path), found.key, piece.part)
            else:
                work.parts.add(piece.part)
                document = self._document(root, found, piece, known.get(piece.part, b""))
                if document is None:
                    continue
                work.documents[piece.part] = document
                self._waiting += 1
                self._characters += len(piece.text)
                self._flush_if_full()
        work.finished = True
        self._flush_if_full()
        self._report(root, found)

    def _pieces(self, root: Root, found: FoundFile) -> Pieces:
        """What is read from a file; if it has no text, or is a picture, also what the user's command says."""
        ending = ending_of(found.name)
        if root.format or ending not in self._commands:
            yield from self.reader.pieces()
            return
        pieces = [*self.reader.pieces()]
        one = pieces[0] if pieces else None
        if isinstance(one, Unreadable) and str(one) in WITHOUT_TEXT:
            one = ParsedDocument("", "file", clean(os.fsencode(found.name).decode("utf-8", "replace")), "")
        elif not isinstance(one, ParsedDocument) or ending not in PICTURES:
            yield from pieces
            return
        try:
            yield replace(one, text=f"{one.text}\n\n{output_of(self._commands[ending], found.full)}".strip())
        except Unreadable as problem:
            yield problem
            yield from pieces

    def _flush_if_full(self) -> None:
        full = self._waiting >= BATCH or self._characters >= BATCH_CHARACTERS or len(self._works) >= 2 * BATCH
        if full or time.monotonic() - self._flushed > BATCH_SECONDS:
            self._flush()

    def _document(self, root: Root, found: FoundFile, piece: ParsedDocument, known: bytes) -> NewDocument | None:
        """The document to store, or None if it is in the store, with this digest."""
        path = os.path.join(os.fsencode(root.path), found.path) if found.path else os.fsencode(root.path)
        shown = clean(path.decode("utf-8", "replace"))
        location = f"{piece.where} · {shown}" if piece.kind == "mail" and piece.where else piece.where or shown
        date = piece.date or max(found.modified // 1_000_000_000, 0)
        digest = hashlib.blake2b(digest_size=16)
        for value in (self.features.version, piece.kind, piece.title, location, piece.link, str(date), piece.text):
            digest.update(f"{len(value)} ".encode() + value.encode())
        if digest.digest() == known:
            return None
        names = [piece.title, piece.name, name_in_words(piece.name or piece.title) if piece.kind == "file" else ""]
        return NewDocument(
            piece.part, digest.digest(), piece.kind, piece.title, location, piece.link, date, piece.sender,
            piece.text, self.features.row(" ".join(names), piece.text),
        )  # fmt: skip

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        if not self._works:
            return
        works, self._works = self._works, [work for work in self._works if not work.finished]
        with self.store.writing():
            known: set[int] = set()
            for work in works:
                if work.id:
                    known.add(work.id)
                    self.store.db.execute("UPDATE files SET size = ? WHERE id = ?", (UNFINISHED, work.id))
                else:
                    work.id = self._new_file(work)
            documents = [(work.id, document) for work in works for document in work.documents.values()]
            added, changed = self.store.save(documents, known)
            for work in works:
                work.documents = {}
                if work.finished:
                    self._finish(work)
        self.counts.added += added
        self.counts.changed += changed
        self._waiting = self._characters = 0
        self.after_batch()

    def _new_file(self, work: _Work) -> int:
        cursor = self.store.db.execute(
            "INSERT INTO files (root, key, path, size, modified) VALUES (?, ?, ?, ?, 0)",
            (work.root.id, work.found.key, work.found.path, UNFINISHED),
        )
        return int(cursor.lastrowid or 0)

    def _finish(self, work: _Work) -> None:
        """Remove documents that are no longer in this file, and mark it as completely read."""
        rows = self.store.rows("SELECT id, part FROM documents WHERE file = ?", work.id)
        if len(rows) > len(work.parts) and not work.reasons.keys() & (PASSING - {"vanished", "not allowed"}):
            self.counts.removed += self.store.remove(id for id, part in rows if part not in work.parts)
        db = self.store.db
        db.execute("DELETE FROM skipped WHERE file = ?", (work.id,))
        db.executemany(
            "INSERT INTO skipped VALUES (?, ?, ?)", ((work.id, why, times) for why, times in work.reasons.items())
        )
        # A file that could not be opened may become readable without a change of its size or time.
        passing = work.reasons.keys() & PASSING
        size, modified = (UNFINISHED, 0) if passing else (work.found.size, work.found.modified)
        db.execute(
            "UPDATE files SET path = ?, size = ?, modified = ?, content = ? WHERE id = ?",
            (work.found.path, size, modified, work.content, work.id),
        )

    def _is_forgotten(self, root: bytes, key: bytes, part: str) -> bool:
        if not self._some_are_forgotten:
            return False
        return self.store.one("SELECT 1 FROM left_out WHERE name = ?", _forgotten_name(root, key, part)) is not None

    def _report(self, root: Root, found: FoundFile) -> None:
        self._looked_at += _work_of(found)
        now = time.monotonic()
        if now - self._reported > 0.2:
            self._reported = now
            done = self.counts.added + self.counts.changed + self._waiting
            if self._expected == math.inf and now - self._begun > 1.0 and self.progress is not quiet:
                self._expected = sum(map(_work_of, walk(root.path, self._avoid)))
            expected = max(self._expected, self._looked_at + 1)
            self.progress(
                str(root.path), self._looked_at, expected, f"{self.counts.files:,} files, {done:,} documents read"
            )


def _work_of(found: FoundFile | Left) -> float:
    """An estimate of the work that a file takes, for the time left: opening one is like reading 16 kB."""
    return 1 + min(found.size, MAX_MANY) / 16_384 if isinstance(found, FoundFile) else 0.0


def _wanted_below(root: Path, changed: Collection[Path]) -> Wanted | None:
    """The entries of a root that may have changed; a log belongs to its database."""
    paths: list[str] = []
    for path in changed:
        if root.is_relative_to(path):
            return None
        for name in (path.name, *(path.name.removesuffix(ending) for ending in LOGS)):
            if (one := path.with_name(name)).is_relative_to(root):
                paths.append("" if one == root else one.relative_to(root).as_posix())
    return wanted_of(paths)


def _identity(path: Path) -> tuple[int, int]:
    facts = os.stat(path)
    return facts.st_dev, facts.st_ino


def leave_out(store: Store, root: bytes, key: bytes, part: str) -> None:
    """Exclude a forgotten document from later updates; with an empty root, the key is the hash of its content."""
    store.db.execute("INSERT OR IGNORE INTO left_out VALUES (?)", (_forgotten_name(root, key, part),))


def _forgotten_name(root: bytes, key: bytes, part: str) -> bytes:
    """A hash that identifies a forgotten document without storing its name."""
    return hashlib.blake2b(b"\0".join((root, key, part.encode())), digest_size=16).digest()
