"""Reading files into the store: only changed files are read; an interruption loses at most the last batch."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedrank.data.live_features import FeatureSet
from fedrank.progress import Progress
from fedrank.search.readers import ParsedDocument, Unreadable, clean, has_bookmarks
from fedrank.search.results import SearchError
from fedrank.search.sources import FoundFile, Left, is_passed_over, walk
from fedrank.search.store import NewDocument, Store

BATCH = 1_000  # documents per transaction
BATCH_CHARACTERS = 8_000_000
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
                if format or not any(_is_walked(path, folder) for folder in folders):
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
        removed = _remove_files(store, "root = ?", found.id)
        store.db.execute("DELETE FROM passed_over WHERE root = ?", (found.id,))
        store.db.execute("DELETE FROM roots WHERE id = ?", (found.id,))
    return removed


def _remove_files(store: Store, which: str, id: int) -> int:
    """Remove files with their documents; `which` is a condition with one value. Returns the number of documents."""
    below = f"file IN (SELECT id FROM files WHERE {which})"
    removed = store.remove(document for (document,) in store.rows(f"SELECT id FROM documents WHERE {below}", id))
    store.db.execute(f"DELETE FROM skipped WHERE {below}", (id,))
    store.db.execute(f"DELETE FROM files WHERE {which}", (id,))
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
    documents: dict[str, NewDocument] = field(default_factory=dict)  # by part
    parts: set[str] = field(default_factory=set)  # all parts read
    reasons: Counter[str] = field(default_factory=Counter)
    finished: bool = False


class Collector:
    """Reads roots into a store. The store is locked only while it is written, so searches remain possible."""

    def __init__(self, store: Store, features: FeatureSet, progress: Progress, after_batch: Callable[[], None]) -> None:
        self.store, self.features, self.progress = store, features, progress
        self.after_batch = after_batch
        self.counts = Collected()
        self._works: list[_Work] = []
        self._waiting = self._characters = 0  # documents and characters not stored yet
        self._reported = 0.0
        self._some_are_forgotten = store.count("SELECT count(*) FROM left_out") > 0
        self._avoid = {_identity(store.folder): "fedrank's own"}

    def collect(self, roots: Sequence[Root]) -> Collected:
        for root in roots:  # a root below another root is not read twice
            with contextlib.suppress(OSError):
                self._avoid.setdefault(_identity(root.path), "indexed by itself")
        for root in roots:
            self._collect_root(root)
        self._flush()
        return self.counts

    def _collect_root(self, root: Root) -> None:
        with self.store.turn:
            known = {
                key: (id, path, size, modified)
                for id, key, path, size, modified in self.store.rows(
                    "SELECT id, key, path, size, modified FROM files WHERE root = ?", root.id
                )
            }
        seen: set[bytes] = set()
        passed: Counter[str] = Counter()
        try:
            for found in walk(root.path, self._avoid):
                if isinstance(found, Left):
                    passed[found.reason] += 1
                    continue
                if self._is_forgotten(root, found.key, ""):  # its name must not be stored either
                    passed["forgotten"] += 1
                    continue
                self.counts.files += 1
                seen.add(found.key)
                self._report(root)
                id, path, size, modified = known.get(found.key, (0, b"", UNFINISHED, 0))
                if not id or (size, modified) != (found.size, found.modified):
                    self._read(_Work(root, found, id))
                    continue
                self.counts.unchanged += 1
                if path != found.path:
                    with self.store.writing():
                        self.store.db.execute("UPDATE files SET path = ? WHERE id = ?", (found.path, id))
        except OSError as problem:  # of the root: its documents stay, since a drive may be disconnected temporarily
            gone = isinstance(problem, FileNotFoundError)
            passed[MISSING if gone else "root cannot be read"] += 1
            seen |= known.keys()
        self._flush()
        with self.store.writing():
            for key in known.keys() - seen:
                self.counts.removed += _remove_files(self.store, "id = ?", known[key][0])
            self.store.db.execute("DELETE FROM passed_over WHERE root = ?", (root.id,))
            self.store.db.executemany(
                "INSERT INTO passed_over VALUES (?, ?, ?)", ((root.id, why, times) for why, times in passed.items())
            )

    def _read(self, work: _Work) -> None:
        """Read one file; its documents are stored in batches."""
        self._works.append(work)
        for piece in work.found.pieces(work.root.format):
            if isinstance(piece, Unreadable):
                work.reasons[str(piece)] += 1
            elif self._is_forgotten(work.root, work.found.key, piece.part):
                work.reasons["forgotten"] += 1
            else:
                work.parts.add(piece.part)
                work.documents[piece.part] = self._document(work.root, work.found, piece)
                self._waiting += 1
                self._characters += len(piece.text)
                self._flush_if_full()
        work.finished = True
        self._flush_if_full()

    def _flush_if_full(self) -> None:
        if self._waiting >= BATCH or self._characters >= BATCH_CHARACTERS or len(self._works) >= 2 * BATCH:
            self._flush()

    def _document(self, root: Root, found: FoundFile, piece: ParsedDocument) -> NewDocument:
        path = os.path.join(os.fsencode(root.path), found.path) if found.path else os.fsencode(root.path)
        shown = clean(path.decode("utf-8", "replace"))
        location = f"{piece.where} · {shown}" if piece.kind == "mail" and piece.where else piece.where or shown
        date = piece.date or max(found.modified // 1_000_000_000, 0)
        digest = hashlib.blake2b(digest_size=16)
        for value in (self.features.version, piece.kind, piece.title, location, piece.link, str(date), piece.text):
            digest.update(f"{len(value)} ".encode() + value.encode())
        return NewDocument(
            piece.part, digest.digest(), piece.kind, piece.title, location, piece.link, date, piece.sender,
            piece.text, self.features.row(f"{piece.title} {piece.name}", piece.text),
        )  # fmt: skip

    def _flush(self) -> None:
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
        if len(rows) > len(work.parts):
            self.counts.removed += self.store.remove(id for id, part in rows if part not in work.parts)
        db = self.store.db
        db.execute("DELETE FROM skipped WHERE file = ?", (work.id,))
        db.executemany(
            "INSERT INTO skipped VALUES (?, ?, ?)", ((work.id, why, times) for why, times in work.reasons.items())
        )
        # A file that could not be opened may become readable without a change of its size or time.
        passing = work.reasons.keys() & {"vanished", "not allowed", "cannot be read"}
        size, modified = (UNFINISHED, 0) if passing else (work.found.size, work.found.modified)
        db.execute(
            "UPDATE files SET path = ?, size = ?, modified = ? WHERE id = ?", (work.found.path, size, modified, work.id)
        )

    def _is_forgotten(self, root: Root, key: bytes, part: str) -> bool:
        if not self._some_are_forgotten:
            return False
        name = forgotten_name(os.fsencode(root.path), key, part)
        return self.store.one("SELECT 1 FROM left_out WHERE name = ?", name) is not None

    def _report(self, root: Root) -> None:
        now = time.monotonic()
        if now - self._reported > 0.2:
            self._reported = now
            done = self.counts.added + self.counts.changed + self._waiting
            self.progress(str(root.path), done, float("inf"), f"{self.counts.files:,} files, {done:,} documents read")


def _identity(path: Path) -> tuple[int, int]:
    facts = os.stat(path)
    return facts.st_dev, facts.st_ino


def forgotten_name(root: bytes, key: bytes, part: str) -> bytes:
    """A hash that identifies a forgotten document without storing its name."""
    return hashlib.blake2b(b"\0".join((root, key, part.encode())), digest_size=16).digest()
