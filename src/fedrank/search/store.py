"""The only truth: one SQLite file with documents, forward rows, word counts, impressions, clicks, models, what left.

Written in transactions: after a crash a change is there whole or not at all. `seq` counts changes of documents; the
engine's index is derived from them, and `indexed` says up to which change it has followed. Nothing is encrypted: who
can read the folder can read all of it, so nobody but its owner may.
"""

from __future__ import annotations

import contextlib
import os
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

VERSION = 1
APPLICATION = 0x6672_6E6B  # "frnk": that this is our file, and no other program's
FILE = "search.db"
_OURS = {FILE, "engine", "index.lock"}  # one of these tells that a folder is ours
PAGE = 1024  # buckets of word counts in a row

_SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE roots (id INTEGER PRIMARY KEY, path BLOB UNIQUE NOT NULL, format TEXT NOT NULL);
CREATE TABLE files (
    id INTEGER PRIMARY KEY, root INTEGER NOT NULL, key BLOB NOT NULL, path BLOB NOT NULL,
    size INTEGER NOT NULL, modified INTEGER NOT NULL, UNIQUE (root, key)
);
CREATE TABLE skipped (file INTEGER NOT NULL, reason TEXT NOT NULL, times INTEGER NOT NULL, PRIMARY KEY (file, reason))
    WITHOUT ROWID;
CREATE TABLE passed_over (root INTEGER NOT NULL, reason TEXT NOT NULL, times INTEGER NOT NULL,
    PRIMARY KEY (root, reason)) WITHOUT ROWID;
CREATE TABLE documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, part TEXT NOT NULL, digest BLOB NOT NULL,
    seq INTEGER NOT NULL, kind TEXT NOT NULL, title TEXT NOT NULL, place TEXT NOT NULL, link TEXT NOT NULL,
    date INTEGER NOT NULL, depth INTEGER NOT NULL, sender TEXT NOT NULL, UNIQUE (file, part)
);
CREATE INDEX documents_by_seq ON documents (seq);
CREATE TABLE texts (document INTEGER PRIMARY KEY, text BLOB NOT NULL);
CREATE TABLE forward (document INTEGER PRIMARY KEY, words BLOB NOT NULL);
CREATE TABLE removed (document INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
CREATE TABLE frequencies (page INTEGER PRIMARY KEY, counts BLOB NOT NULL);
CREATE TABLE written_to (document INTEGER NOT NULL, address TEXT NOT NULL, PRIMARY KEY (address, document))
    WITHOUT ROWID;
CREATE INDEX written_to_by_document ON written_to (document);
CREATE TABLE left_out (name BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE vectors (document INTEGER PRIMARY KEY, encoder TEXT NOT NULL, vector BLOB NOT NULL);
CREATE TABLE models (
    id INTEGER PRIMARY KEY AUTOINCREMENT, made REAL NOT NULL, origin TEXT NOT NULL, features TEXT NOT NULL,
    start BLOB NOT NULL, weights BLOB NOT NULL, learned INTEGER NOT NULL DEFAULT 0, fate TEXT NOT NULL DEFAULT ''
);
CREATE TABLE impressions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, number INTEGER NOT NULL, query TEXT NOT NULL,
    terms BLOB NOT NULL, filters TEXT NOT NULL, sort TEXT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL,
    model INTEGER NOT NULL, temperature REAL NOT NULL, keep REAL NOT NULL, found INTEGER NOT NULL,
    candidates BLOB NOT NULL, scores BLOB, shown BLOB NOT NULL, features BLOB, teams BLOB,
    trial INTEGER
);
CREATE INDEX impressions_by_state ON impressions (state);
CREATE INDEX impressions_by_time ON impressions (time);
CREATE INDEX impressions_by_trial ON impressions (trial) WHERE trial IS NOT NULL;
CREATE INDEX impressions_by_terms ON impressions (terms);
CREATE TABLE clicks (
    impression INTEGER NOT NULL, place INTEGER NOT NULL, document INTEGER NOT NULL, time REAL NOT NULL,
    bounced INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (impression, place)
) WITHOUT ROWID;
CREATE INDEX clicks_by_document ON clicks (document);
CREATE TABLE sent (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, receiver TEXT NOT NULL, what TEXT NOT NULL,
    bytes INTEGER NOT NULL
);
"""


@dataclass(frozen=True)
class NewDocument:
    """A document to be stored in place of the one with the same file and part."""

    part: str
    digest: bytes
    kind: str
    title: str
    location: str
    link: str
    date: int
    depth: int
    sender: str
    text: str
    row: ForwardRow
    written_to: tuple[str, ...] = ()


class Store:
    """One connection. Threads that share it take turns: hold `turn` where several steps belong together."""

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
        """Nobody else may look into ours: a folder full of other things would be closed to whoever uses them."""
        names = {*os.listdir(self.folder)} if self.folder.is_dir() else set()
        if any(not name.startswith(".") for name in names) and not names & _OURS:
            raise SearchError(f"{self.folder} holds other things; nothing was changed; choose a new or an empty folder")

    def _prepare(self) -> None:
        version, application = self._pragma("user_version"), self._pragma("application_id")
        if version > VERSION:
            raise SearchError(
                f"{self.folder / FILE} was written by a newer fedrank (format {version}, this one reads {VERSION}); "
                "nothing was changed; use that one"
            )
        if version == 0 and (application or self._pragma("schema_version")):
            raise SearchError(f"{self.folder / FILE} is another program's database; choose another folder")
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = NORMAL")  # a crash of ours loses nothing; a power cut the last moment
        self.db.execute("PRAGMA secure_delete = ON")  # what is forgotten is overwritten
        self.db.execute("PRAGMA cache_size = -16384")
        self.db.execute(f"PRAGMA journal_size_limit = {8 << 20}")
        if version == 0:
            with self.writing():
                if self._pragma("user_version") == 0:  # nobody else made it meanwhile
                    for statement in _SCHEMA.split(";"):
                        self.db.execute(statement)
                    self.db.execute(f"PRAGMA application_id = {APPLICATION}")
                    self.db.execute(f"PRAGMA user_version = {VERSION}")

    def _pragma(self, name: str) -> int:
        return int(self.db.execute(f"PRAGMA {name}").fetchone()[0])

    def close(self) -> None:
        self.db.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction: all of it or nothing."""
        with self.turn, plain_errors(self.folder):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.db.execute("COMMIT")
            except BaseException:
                self._statistics = None  # what was counted did not happen
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
        """Within a transaction."""
        self.db.executemany("REPLACE INTO settings VALUES (?, ?)", values.items())

    @property
    def seq(self) -> int:
        return int(self.setting("seq", 0))

    @property
    def indexed(self) -> int:
        return int(self.setting("indexed", 0))

    def statistics(self) -> WordStatistics:
        """Word counts of all documents, as of now."""
        version = self._pragma("data_version")  # another value if another connection wrote
        if self._statistics is None or version != self._version:
            frequencies = WordStatistics.empty().frequencies
            for page, counts in self.rows("SELECT page, counts FROM frequencies"):
                frequencies[page * PAGE : (page + 1) * PAGE] = np.frombuffer(zlib.decompress(counts), "<i4")
            totals = (int(self.setting(name, 0)) for name in ("documents", "words", "title_words"))
            documents, words, title_words = totals
            self._statistics, self._version = WordStatistics(documents, frequencies, words, title_words), version
        return self._statistics

    def save(self, documents: Sequence[tuple[int, NewDocument]], known_files: Container[int]) -> tuple[int, int]:
        """Store documents with the ids of their files, within a transaction; returns how many are new and changed.

        One that is the same as before is left as it is. Files that are not among the known ones have no documents yet.
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
                one.digest, seq, one.kind, one.title, one.location, one.link, one.date, one.depth, one.sender,
            )  # fmt: skip
            document: int | None
            if (file, one.part) in known:
                document = known[file, one.part][0]
                self.db.execute(
                    "UPDATE documents SET digest = ?, seq = ?, kind = ?, title = ?, place = ?, link = ?, date = ?, "
                    "depth = ?, sender = ? WHERE id = ?",
                    (*values, document),
                )
                self.db.execute("DELETE FROM written_to WHERE document = ?", (document,))
                self.db.execute("DELETE FROM vectors WHERE document = ?", (document,))
            else:
                document = self.db.execute(
                    "INSERT INTO documents (digest, seq, kind, title, place, link, date, depth, sender, file, part) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (*values, file, one.part),
                ).lastrowid
            self.db.execute("REPLACE INTO texts VALUES (?, ?)", (document, zlib.compress(one.text.encode(), 3)))
            self.db.execute("REPLACE INTO forward VALUES (?, ?)", (document, zlib.compress(one.row.pack(), 1)))
            self.db.executemany(
                "INSERT OR IGNORE INTO written_to VALUES (?, ?)", ((document, a) for a in one.written_to)
            )
        self.set(seq=seq)
        self._count([one.row for _, one in fresh], 1)
        return len(fresh) - len(old), len(old)

    def _known(self, file: int, parts: Sequence[str]) -> Iterator[tuple[int, str, bytes]]:
        for some in in_parts(parts):
            yield from self.rows(
                f"SELECT id, part, digest FROM documents WHERE file = ? AND part IN ({marks(some)})", file, *some
            )

    def remove(self, documents: Iterable[int]) -> int:
        """Remove documents, within a transaction; what was searched and clicked stays. Returns how many there were."""
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
        """In any order."""
        return [
            ForwardRow.unpack(zlib.decompress(words))
            for some in in_parts(documents)
            for (words,) in self.rows(f"SELECT words FROM forward WHERE document IN ({marks(some)})", *some)
        ]

    def _count(self, rows: Sequence[ForwardRow], times: int) -> None:
        """Add documents to the word counts, or take them away."""
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
        """Delete all rows but those of the tables that are kept, within a transaction."""
        for (table,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'"):
            if table not in excepted:
                self.db.execute(f"DELETE FROM {table}")
        self._statistics = None  # or words of documents that are gone would be counted on

    def sweep(self) -> None:
        """Overwrite what was deleted also in the log of transactions."""
        with plain_errors(self.folder):
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


_OF_DOCUMENTS = {"texts": "document", "forward": "document", "written_to": "document", "vectors": "document"} | {
    "documents": "id"
}


def in_parts(values: Sequence[Any], most: int = 500) -> Iterator[Sequence[Any]]:
    """A few at a time: SQLite takes only so many values."""
    for start in range(0, len(values), most):
        yield values[start : start + most]


def marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


@contextlib.contextmanager
def plain_errors(folder: Path) -> Iterator[None]:
    """Let problems of the database and the disk be one line that says what to do."""
    try:
        yield
    except sqlite3.Error as problem:
        text = str(problem)
        if "full" in text:
            line = f"no room on the disk of {folder}; nothing was lost; make room, then try again"
        elif "readonly" in text or "unable to open" in text:
            line = f"{folder} cannot be written to; give yourself the right to write there, or choose another folder"
        elif "locked" in text or "busy" in text:
            line = f"another process writes to {folder} for too long; wait for it, or stop it"
        elif "disk I/O error" in text:
            line = f"the disk of {folder} fails ({text}); what was answered is kept; look after it, then try again"
        elif "not a database" in text or "malformed" in text:
            line = f"{folder / FILE} is damaged ({text}); move it away and index again, or bring back a copy"
        else:
            raise
        raise SearchError(line) from problem
    except PermissionError as problem:
        raise SearchError(
            f"{folder} cannot be written to; give yourself the right to write there, or choose another folder"
        ) from problem
    except OSError as problem:
        if problem.filename is None:
            raise
        raise SearchError(f"{os.fsdecode(problem.filename)}: {problem.strerror}") from problem
