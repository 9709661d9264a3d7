"""The database: one SQLite file with documents, word counts, impressions and clicks.

All writes are transactions. `seq` counts changes of documents; the engine's index is derived from them, and `indexed`
is the last change that it contains. Data is not encrypted, so only the owner has access to the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import ForwardRow, WordStatistics
from fedrank.files import private_folder
from fedrank.search.results import SearchError

VERSION = 5
APPLICATION = 0x6672_6E6B  # "frnk": SQLite application id
FILE = "search.db"
_OURS = {FILE, "engine", "index.lock"}  # one of these identifies a search folder
PAGE = 1024  # buckets of word counts per row

_SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE roots (id INTEGER PRIMARY KEY, path BLOB UNIQUE NOT NULL, format TEXT NOT NULL);
CREATE TABLE files (
    id INTEGER PRIMARY KEY, root INTEGER NOT NULL, key BLOB NOT NULL, path BLOB NOT NULL,
    size INTEGER NOT NULL, modified INTEGER NOT NULL, content BLOB, UNIQUE (root, key)
);
CREATE INDEX files_by_content ON files (content);
CREATE TABLE skipped (file INTEGER NOT NULL, reason TEXT NOT NULL, times INTEGER NOT NULL, PRIMARY KEY (file, reason))
    WITHOUT ROWID;
CREATE TABLE passed_over (root INTEGER NOT NULL, reason TEXT NOT NULL, times INTEGER NOT NULL,
    PRIMARY KEY (root, reason)) WITHOUT ROWID;
CREATE TABLE documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, part TEXT NOT NULL, digest BLOB NOT NULL,
    seq INTEGER NOT NULL, kind TEXT NOT NULL, title TEXT NOT NULL, place TEXT NOT NULL, link TEXT NOT NULL,
    date INTEGER NOT NULL, sender TEXT NOT NULL, UNIQUE (file, part)
);
CREATE INDEX documents_by_seq ON documents (seq);
CREATE TABLE texts (document INTEGER PRIMARY KEY, text BLOB NOT NULL);
CREATE TABLE forward (document INTEGER PRIMARY KEY, words BLOB NOT NULL);
CREATE TABLE removed (document INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
CREATE TABLE frequencies (page INTEGER PRIMARY KEY, counts BLOB NOT NULL);
CREATE TABLE left_out (name BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE impressions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, number INTEGER NOT NULL, query TEXT NOT NULL,
    terms BLOB NOT NULL, filters TEXT NOT NULL, sort TEXT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL,
    found INTEGER NOT NULL, candidates BLOB NOT NULL, scores BLOB, shown BLOB NOT NULL, features BLOB, teams BLOB,
    opponent INTEGER, memory BLOB
);
CREATE INDEX impressions_by_state ON impressions (state, time);
CREATE INDEX impressions_by_time ON impressions (time);
CREATE INDEX impressions_by_opponent ON impressions (opponent) WHERE opponent IS NOT NULL;
CREATE INDEX impressions_by_terms ON impressions (terms);
CREATE INDEX impressions_with_features ON impressions (id) WHERE features IS NOT NULL;
CREATE TABLE clicks (
    impression INTEGER NOT NULL, place INTEGER NOT NULL, document INTEGER NOT NULL, time REAL NOT NULL,
    bounced INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (impression, place)
) WITHOUT ROWID;
CREATE INDEX clicks_by_document ON clicks (document);
"""
_AGENTS = """
CREATE TABLE agent_folders (path BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE agent_searches (
    id TEXT PRIMARY KEY, time REAL NOT NULL, query TEXT NOT NULL, terms BLOB NOT NULL, documents BLOB NOT NULL,
    used BLOB NOT NULL
) WITHOUT ROWID;
"""


# From format 1, which had no memory of clicks. Documents, searches and clicks stay, and clicks are remembered.
_FROM_FORMAT_1 = """
ALTER TABLE impressions ADD COLUMN memory BLOB;
CREATE INDEX impressions_with_features ON impressions (id) WHERE features IS NOT NULL;
UPDATE impressions SET state = 'discarded' WHERE state IN ('shown', 'opened', 'closed');
UPDATE impressions SET scores = NULL, features = NULL;
"""
# To format 4: files have a hash of their content; no learned models, federations and text encoders. What was sent stays
# on record.
_TO_FORMAT_4 = """
DROP TABLE IF EXISTS vectors;
DROP TABLE IF EXISTS written_to;
ALTER TABLE documents DROP COLUMN depth;
DROP TABLE models;
DROP INDEX IF EXISTS impressions_by_trial;
ALTER TABLE impressions RENAME COLUMN trial TO opponent;
CREATE INDEX impressions_by_opponent ON impressions (opponent) WHERE opponent IS NOT NULL;
ALTER TABLE impressions DROP COLUMN model;
ALTER TABLE impressions DROP COLUMN temperature;
ALTER TABLE impressions DROP COLUMN keep;
UPDATE impressions SET opponent = NULL, teams = NULL WHERE opponent >= 0;
UPDATE impressions SET kind = 'plain' WHERE kind = 'pdgd' OR (kind = 'interleaved' AND opponent IS NULL);
UPDATE impressions SET state = 'closed' WHERE state = 'learned';
UPDATE settings SET value = 'learned' WHERE name = 'order' AND value = 'drawn';
DELETE FROM settings WHERE name IN ('encoder', 'model', 'own_model', 'trial', 'trial_phase', 'trial_from',
    'learn_weights', 'federation_problem');
ALTER TABLE files ADD COLUMN content BLOB;
CREATE INDEX files_by_content ON files (content);
"""
# To format 5: all files are read again at the next update, since more types and properties are read.
_TO_FORMAT_5 = """
UPDATE files SET size = -1;
DROP INDEX impressions_by_state;
CREATE INDEX impressions_by_state ON impressions (state, time);
"""
_STEPS = {  # by the format of a file
    0: _SCHEMA + _AGENTS,
    1: _FROM_FORMAT_1 + _AGENTS + _TO_FORMAT_4 + _TO_FORMAT_5,
    2: _AGENTS + _TO_FORMAT_4 + _TO_FORMAT_5,
    3: _TO_FORMAT_4 + _TO_FORMAT_5,
    4: _TO_FORMAT_5,
}


@dataclass(frozen=True)
class NewDocument:
    """A document to store; it replaces the one with the same file and part."""

    part: str
    digest: bytes
    kind: str
    title: str
    location: str
    link: str
    date: int
    sender: str
    text: str
    row: ForwardRow


class Store:
    """A database connection that threads share: hold `turn` for several steps that belong together."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.turn = threading.RLock()
        with plain_errors(self.folder):
            self._refuse_a_folder_of_others()
            private_folder(self.folder)
            path = self.folder / FILE
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            os.chmod(path, 0o600)
            self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
            try:
                self._prepare()
            except BaseException:
                self.db.close()
                raise
        self._statistics: WordStatistics | None = None
        self._version = -1

    def _refuse_a_folder_of_others(self) -> None:
        """Refuse a folder with other files, since making it private would remove the access of other users."""
        names = {*os.listdir(self.folder)} if self.folder.is_dir() else set()
        if any(not name.startswith(".") for name in names) and not names & _OURS:
            raise SearchError(f"{self.folder} contains other files; nothing was changed; choose a new or empty folder")

    def _prepare(self) -> None:
        version, application = self._pragma("user_version"), self._pragma("application_id")
        if version > VERSION:
            raise SearchError(
                f"{self.folder / FILE} was written by a newer fedrank (format {version}; this one reads {VERSION}); "
                "nothing was changed; upgrade fedrank"
            )
        if version == 0 and (application or self._pragma("schema_version")):
            raise SearchError(f"{self.folder / FILE} is a database of another program; choose another folder")
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = NORMAL")  # only a power failure can lose the last transactions
        self.db.execute("PRAGMA secure_delete = ON")  # deleted rows are overwritten
        self.db.execute("PRAGMA cache_size = -4096")
        self.db.execute(f"PRAGMA journal_size_limit = {8 << 20}")
        if version < VERSION:
            with self.writing():
                version = self._pragma("user_version")  # another process may have been first
                if version:  # earlier versions recorded searches for a federation
                    shutil.rmtree(self.folder / "federation" / "searches", ignore_errors=True)
                for statement in _STEPS.get(version, "").split(";"):
                    self.db.execute(statement)
                self.db.execute(f"PRAGMA application_id = {APPLICATION}")
                self.db.execute(f"PRAGMA user_version = {VERSION}")

    def _pragma(self, name: str) -> int:
        return int(self.db.execute(f"PRAGMA {name}").fetchone()[0])

    def close(self) -> None:
        self.db.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction; it is rolled back if an exception is raised."""
        with self.turn, plain_errors(self.folder):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.db.execute("COMMIT")
            except BaseException:
                self._statistics = None  # may include changes that are rolled back
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    def rows(self, statement: str, *values: Any) -> list[Any]:
        with self.turn, plain_errors(self.folder):
            return self.db.execute(statement, values).fetchall()

    def one(self, statement: str, *values: Any) -> Any:
        """The first row, or None."""
        with self.turn, plain_errors(self.folder):
            return self.db.execute(statement, values).fetchone()

    def count(self, statement: str, *values: Any) -> int:
        return int(self.one(statement, *values)[0] or 0)

    def setting(self, name: str, otherwise: Any = None) -> Any:
        found = self.one("SELECT value FROM settings WHERE name = ?", name)
        return otherwise if found is None else found[0]

    def set(self, **values: Any) -> None:
        """Store settings; requires a transaction."""
        self.db.executemany("REPLACE INTO settings VALUES (?, ?)", values.items())

    @property
    def seq(self) -> int:
        return int(self.setting("seq", 0))

    @property
    def indexed(self) -> int:
        return int(self.setting("indexed", 0))

    def statistics(self) -> WordStatistics:
        """Current word counts of all documents."""
        version = self._pragma("data_version")  # changes when another connection writes
        if self._statistics is None or version != self._version:
            frequencies = WordStatistics.empty().frequencies
            for page, counts in self.rows("SELECT page, counts FROM frequencies"):
                frequencies[page * PAGE : (page + 1) * PAGE] = np.frombuffer(zlib.decompress(counts), "<i4")
            totals = (int(self.setting(name, 0)) for name in ("documents", "words", "title_words"))
            documents, words, title_words = totals
            self._statistics, self._version = WordStatistics(documents, frequencies, words, title_words), version
        return self._statistics

    def save(self, documents: Sequence[tuple[int, NewDocument]], known_files: Container[int]) -> tuple[int, int]:
        """Store documents with the ids of their files; returns the numbers of new and changed ones.

        Unchanged documents are not written. Files outside `known_files` have no documents yet. Requires a transaction.
        """
        known: dict[tuple[int, str], tuple[int, bytes]] = {}
        by_file: dict[int, list[str]] = {}
        for file, one in documents:
            if file in known_files:
                by_file.setdefault(file, []).append(one.part)
        for file, parts in by_file.items():
            known |= {(file, part): (id, digest) for id, part, digest in self._known(file, parts)}
        fresh = [(file, one) for file, one in documents if known.get((file, one.part), (0, b""))[1] != one.digest]
        if not fresh:
            return 0, 0
        old = [known[file, one.part][0] for file, one in fresh if (file, one.part) in known]
        seq = self.seq
        self._count(self.forward_rows(old), -1)
        for file, one in fresh:
            seq += 1
            values = (
                one.digest, seq, one.kind, one.title, one.location, one.link, one.date, one.sender,
            )  # fmt: skip
            document: int | None
            if (file, one.part) in known:
                document = known[file, one.part][0]
                self.db.execute(
                    "UPDATE documents SET digest = ?, seq = ?, kind = ?, title = ?, place = ?, link = ?, date = ?, "
                    "sender = ? WHERE id = ?",
                    (*values, document),
                )
            else:
                document = self.db.execute(
                    "INSERT INTO documents (digest, seq, kind, title, place, link, date, sender, file, part) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (*values, file, one.part),
                ).lastrowid
            self.db.execute("REPLACE INTO texts VALUES (?, ?)", (document, zlib.compress(one.text.encode(), 3)))
            self.db.execute("REPLACE INTO forward VALUES (?, ?)", (document, zlib.compress(one.row.pack(), 1)))
        self.set(seq=seq)
        self._count([one.row for _, one in fresh], 1)
        return len(fresh) - len(old), len(old)

    def _known(self, file: int, parts: Sequence[str]) -> Iterator[tuple[int, str, bytes]]:
        for some in in_parts(parts):
            yield from self.rows(
                f"SELECT id, part, digest FROM documents WHERE file = ? AND part IN ({marks(some)})", file, *some
            )

    def remove(self, documents: Iterable[int]) -> int:
        """Remove documents but not their clicks; returns the number removed. Requires a transaction."""
        gone = 0
        for some in in_parts([*documents]):
            there = [row[0] for row in self.rows(f"SELECT id FROM documents WHERE id IN ({marks(some)})", *some)]
            self._count(self.forward_rows(there), -1)
            seq = self.seq
            for table, column in _OF_DOCUMENTS.items():
                self.db.execute(f"DELETE FROM {table} WHERE {column} IN ({marks(there)})", there)
            self.db.executemany("REPLACE INTO removed VALUES (?, ?)", ((id, seq + n + 1) for n, id in enumerate(there)))
            self.set(seq=seq + len(there))
            gone += len(there)
        return gone

    def forward_rows(self, documents: Sequence[int]) -> list[ForwardRow]:
        """The forward rows of these documents, in any order."""
        return [
            ForwardRow.unpack(zlib.decompress(words))
            for some in in_parts(documents)
            for (words,) in self.rows(f"SELECT words FROM forward WHERE document IN ({marks(some)})", *some)
        ]

    def _count(self, rows: Sequence[ForwardRow], times: int) -> None:
        """Add documents to the word counts (times = 1), or subtract them (times = -1)."""
        if not rows:
            return
        before = self.statistics()
        found = np.concatenate([row.buckets for row in rows])
        changed: NDArray[Any] = np.unique(found // PAGE)
        frequencies = before.frequencies.copy()
        np.add.at(frequencies, found, np.int32(times))
        self.db.executemany(
            "REPLACE INTO frequencies VALUES (?, ?)",
            (
                (page, zlib.compress(frequencies[page * PAGE : (page + 1) * PAGE].astype("<i4").tobytes(), 1))
                for page in changed.tolist()
            ),
        )
        after = WordStatistics(
            before.documents + times * len(rows),
            frequencies,
            before.words + times * sum(len(row.words) for row in rows),
            before.title_words + times * sum(row.title for row in rows),
        )
        self.set(documents=after.documents, words=after.words, title_words=after.title_words)
        self._statistics = after

    def text(self, document: int) -> str:
        found = self.one("SELECT text FROM texts WHERE document = ?", document)
        return "" if found is None else zlib.decompress(found[0]).decode()

    def empty(self, excepted: Container[str]) -> None:
        """Delete all rows except those of the given tables; requires a transaction."""
        for (table,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'"):
            if table not in excepted:
                self.db.execute(f"DELETE FROM {table}")
        self._statistics = None  # the cached counts include the deleted documents

    def sweep(self) -> None:
        """Remove deleted data from the write-ahead log, too."""
        with plain_errors(self.folder):
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


_OF_DOCUMENTS = dict.fromkeys(("texts", "forward"), "document") | {"documents": "id"}


def in_parts(values: Sequence[Any], most: int = 500) -> Iterator[Sequence[Any]]:
    """Slices of at most `most` values, since SQLite limits the number of parameters."""
    for start in range(0, len(values), most):
        yield values[start : start + most]


def marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


_NOT_WRITABLE = "{folder} is not writable; change its permissions, or choose another folder"
_PROBLEMS = {  # by a part of SQLite's message
    "full": "the disk of {folder} is full; no data was lost; free disk space and try again",
    "readonly": _NOT_WRITABLE,
    "unable to open": _NOT_WRITABLE,
    "locked": "{folder} is locked by another process; wait until it ends, or stop it",
    "busy": "{folder} is locked by another process; wait until it ends, or stop it",
    "disk I/O error": "the disk of {folder} failed ({text}); saved data is not affected; check the disk and try again",
    "not a database": "{file} is damaged ({text}); restore it from a backup, or move it away and index again",
    "malformed": "{file} is damaged ({text}); restore it from a backup, or move it away and index again",
}


@contextlib.contextmanager
def plain_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the database and the disk into a `SearchError` that says what to do."""
    try:
        yield
    except sqlite3.Error as problem:
        line = next((line for sign, line in _PROBLEMS.items() if sign in str(problem)), None)
        if line is None:
            raise
        raise SearchError(line.format(folder=folder, file=folder / FILE, text=problem)) from problem
    except PermissionError as problem:
        raise SearchError(_NOT_WRITABLE.format(folder=folder)) from problem
    except OSError as problem:
        if problem.filename is None:
            raise
        raise SearchError(f"{os.fsdecode(problem.filename)}: {problem.strerror}") from problem
