"""What a tenant's reranker has stored: requests as features, feedback, models and word statistics, in one SQLite file.

Texts of queries and passages are not stored, only hashes of their words and digests, both with the secret key of the
folder. Everything is on disk before an answer leaves, except word statistics, which are written every few requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.files import private_folder, read_bytes, write_atomic
from fedrank.search.rerank.passages import BUCKETS, PassageStatistics, Words

VERSION = 2
APPLICATION = 0x6672_7272  # "frrr": SQLite application id
FILE, KEY = "rerank.db", "rerank.key"
FLUSH_EVERY = 50  # requests between writes of word statistics
_ASKED = 500  # digests per query; SQLite limits them
DAY = 86_400

_SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE passages (
    digest BLOB PRIMARY KEY, time REAL NOT NULL, derived INTEGER NOT NULL DEFAULT 0, source BLOB
) WITHOUT ROWID;
CREATE TABLE answers (id INTEGER PRIMARY KEY, request TEXT NOT NULL, time REAL NOT NULL, runs BLOB NOT NULL);
CREATE TABLE requests (
    id TEXT PRIMARY KEY, number INTEGER NOT NULL, time REAL NOT NULL, texts BLOB NOT NULL, query BLOB NOT NULL,
    person BLOB, documents BLOB NOT NULL, names TEXT NOT NULL, features BLOB NOT NULL, memory BLOB NOT NULL,
    shown BLOB NOT NULL, arm TEXT NOT NULL, trial INTEGER, outcome REAL, reader TEXT
) WITHOUT ROWID;
CREATE INDEX requests_by_texts ON requests (texts, time);
CREATE INDEX requests_by_number ON requests (number);
CREATE INDEX requests_by_person ON requests (person, time);
CREATE TABLE feedback (
    request TEXT NOT NULL, document INTEGER NOT NULL, kind TEXT NOT NULL, time REAL NOT NULL,
    PRIMARY KEY (request, document, kind)
) WITHOUT ROWID;
CREATE TABLE models (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, names TEXT NOT NULL, weights BLOB NOT NULL,
    feedbacks INTEGER NOT NULL, state TEXT NOT NULL, note TEXT NOT NULL
);
"""
_SINCE_1 = """
ALTER TABLE passages ADD COLUMN derived INTEGER NOT NULL DEFAULT 0;
ALTER TABLE passages ADD COLUMN source BLOB;
ALTER TABLE requests ADD COLUMN reader TEXT;
CREATE TABLE answers (id INTEGER PRIMARY KEY, request TEXT NOT NULL, time REAL NOT NULL, runs BLOB NOT NULL);
CREATE INDEX requests_by_person ON requests (person, time);
"""


class RerankError(ValueError):
    """A problem that the caller can solve."""


@dataclass(frozen=True, eq=False)
class Request:
    """A list that was reranked."""

    id: str
    number: int
    time: float
    query: NDArray[np.int32]  # distinct hashed stems, ascending
    documents: tuple[bytes, ...]  # digests in the caller's order
    names: tuple[str, ...]  # of features
    features: NDArray[np.float32]  # [documents, features]
    memory: NDArray[np.float32]  # [documents]: what memory added
    shown: NDArray[np.int16]  # indices of the answer, best first
    arm: str  # "caller", "model", "included", "old" or "new"
    person: bytes | None = None  # keyed hash of the `user`
    reader: str | None = None  # version of the reader that sent the feedback


@dataclass(frozen=True, eq=False)
class StoredModel:
    """Weights by the name of a feature."""

    id: int
    time: float
    weights: dict[str, float]
    feedbacks: int  # requests with feedback that it was fitted to
    state: str  # "in use", "on trial", "replaced", "refused", "rolled back"
    note: str


def folder_key(folder: Path) -> bytes:
    """The secret key of a folder, which is created if it does not exist."""
    path = private_folder(folder) / KEY
    if not path.exists():
        if (folder / FILE).exists():
            raise RerankError(
                f"{path} is missing, so what is stored in {folder} cannot be matched to texts; restore the file from a "
                "backup, or use another folder"
            )
        write_atomic(path, secrets.token_bytes(32), private=True)
    key = read_bytes(path, 64)
    if len(key) != 32:
        raise RerankError(f"{path} has {len(key)} bytes instead of 32; restore it from a backup")
    return key


class RerankStore:
    """The database of one tenant. Hold `turn` for several steps that belong together."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.turn = private_folder(folder), threading.RLock()
        path = folder / FILE
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
        try:
            self._prepare(path)
            self.background = self._read_background()
        except sqlite3.DatabaseError as problem:
            self.db.close()
            raise RerankError(f"{path} cannot be read ({problem}); restore it from a backup") from None
        except BaseException:
            self.db.close()
            raise
        self._unwritten = 0

    def _prepare(self, path: Path) -> None:
        version, application = (
            int(self.db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("user_version", "application_id")
        )
        if version > VERSION:
            raise RerankError(f"{path} was written by a newer fedrank (format {version}); upgrade fedrank")
        if application not in (0, APPLICATION):
            raise RerankError(f"{path} is a database of another program; use another folder")
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = NORMAL")  # only a power failure can lose the last transactions
        self.db.execute("PRAGMA secure_delete = ON")
        if version < VERSION:
            with self.writing():
                for statement in (_SINCE_1 if version else _SCHEMA).split(";"):
                    self.db.execute(statement)
                self.db.execute(f"PRAGMA application_id = {APPLICATION}")
                self.db.execute(f"PRAGMA user_version = {VERSION}")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction."""
        with self.turn:
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.db.execute("COMMIT")
            except BaseException as problem:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                if isinstance(problem, sqlite3.OperationalError):
                    raise OSError(f"{FILE} cannot be written ({problem}); nothing was recorded") from None
                raise

    def close(self) -> None:
        with self.turn:
            self.write_background()
            self.db.close()

    def get(self, name: str, default: Any = None) -> Any:
        found = self.db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return default if found is None else found[0]

    def put(self, **values: Any) -> None:
        self.db.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", values.items())

    def count(self, query: str, *values: Any) -> int:
        return int(self.db.execute(query, values).fetchone()[0])

    # word statistics

    def _read_background(self) -> PassageStatistics:
        blob = self.get("frequencies")
        if blob is None:
            return PassageStatistics.empty()
        frequencies = np.frombuffer(blob, "<i4").astype(np.int32)
        if len(frequencies) != BUCKETS:
            raise RerankError(f"word statistics of {self.folder} are damaged; restore {FILE} from a backup")
        return PassageStatistics(int(self.get("passages", 0)), int(self.get("words", 0)), frequencies)

    def new_passages(self, digests: Sequence[bytes]) -> set[bytes]:
        """Those that were not seen before."""
        asked = list(dict.fromkeys(digests))
        known: set[bytes] = set()
        for start in range(0, len(asked), _ASKED):
            part = asked[start : start + _ASKED]
            marks = ", ".join("?" * len(part))
            known.update(
                row[0] for row in self.db.execute(f"SELECT digest FROM passages WHERE digest IN ({marks})", part)
            )
        return set(asked) - known

    def count_passages(self, new: Mapping[bytes, Words], now: float) -> None:
        """Add passages that were not seen before to the statistics; call it within `writing`."""
        self.db.executemany("INSERT INTO passages (digest, time) VALUES (?, ?)", ((one, now) for one in new))
        self.background.add([*new.values()])
        self._unwritten += bool(new)
        if self._unwritten >= FLUSH_EVERY:
            self.write_background()

    def mark_passages(self, derived: Iterable[bytes], sources: Mapping[bytes, bytes | None]) -> None:
        """Note which passages were made from answers, and where passages come from; call it within `writing`."""
        self.db.executemany("UPDATE passages SET derived = 1 WHERE digest = ?", ((one,) for one in derived))
        named = [(source, digest, source) for digest, source in sources.items() if source is not None]
        self.db.executemany("UPDATE passages SET source = ? WHERE digest = ? AND source IS NOT ?", named)

    def write_background(self) -> None:
        if self._unwritten:
            background, self._unwritten = self.background, 0
            self.put(
                frequencies=background.frequencies.astype("<i4").tobytes(),
                passages=background.passages,
                words=background.words,
            )

    def forget_background(self) -> None:
        self.background, self._unwritten = PassageStatistics.empty(), 0

    # requests and feedback

    def add_request(self, one: Request, texts: bytes, trial: int | None) -> None:
        self.db.execute(
            "INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
            (
                one.id, one.number, one.time, texts, one.query.tobytes(), one.person, b"".join(one.documents),
                json.dumps(one.names), one.features.tobytes(), one.memory.tobytes(), one.shown.tobytes(), one.arm,
                trial,
            ),
        )  # fmt: skip

    def next_number(self) -> int:
        return self.count("SELECT coalesce(max(number), 0) + 1 FROM requests")

    def request(self, id: str) -> Request | None:
        return next(self.requests("WHERE id = ?", id), None)

    def latest_with(self, texts: bytes) -> Request | None:
        """The latest request with these texts."""
        return next(self.requests("WHERE texts = ? ORDER BY time DESC LIMIT 1", texts), None)

    def requests(self, which: str, *values: Any) -> Iterator[Request]:
        columns = "id, number, time, query, documents, names, features, memory, shown, arm, person, reader"
        for row in self.db.execute(f"SELECT {columns} FROM requests {which}", values):
            id, number, time, query, documents, names, features, memory, shown, arm, person, reader = row
            known = tuple(json.loads(names))
            digests = tuple(documents[place : place + 8] for place in range(0, len(documents), 8))
            yield Request(
                id, number, time, np.frombuffer(query, np.int32), digests, known,
                np.frombuffer(features, np.float32).reshape(len(digests), len(known)),
                np.frombuffer(memory, np.float32), np.frombuffer(shown, np.int16), arm, person, reader,
            )  # fmt: skip

    def feedback_of(self, id: str) -> dict[int, set[str]]:
        """The kinds of feedback by document."""
        found: dict[int, set[str]] = {}
        for document, kind in self.db.execute("SELECT document, kind FROM feedback WHERE request = ?", (id,)):
            found.setdefault(document, set()).add(kind)
        return found

    def add_answer(self, id: str, runs: NDArray[np.uint64], now: float, most: int) -> None:
        """Store the runs of words of an answer, once per request, and drop all but the latest answers."""
        blob = runs.tobytes()
        self.db.execute(
            "INSERT INTO answers (request, time, runs) SELECT ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM answers WHERE "
            "request = ? AND runs = ?)",
            (id, now, blob, id, blob),
        )
        self.db.execute("DELETE FROM answers WHERE id <= (SELECT max(id) FROM answers) - ?", (most,))

    def given_by(self, person: bytes, since: float) -> int:
        """How many requests of a person since then have feedback."""
        requests = "SELECT count(*) FROM requests WHERE person = ? AND time >= ?"
        return self.count(f"{requests} AND id IN (SELECT request FROM feedback)", person, since)

    # models

    def models(self, state: str | None = None) -> list[StoredModel]:
        rows = self.db.execute("SELECT id, time, names, weights, feedbacks, state, note FROM models ORDER BY id")
        return [
            StoredModel(
                id, time, dict(zip(json.loads(names), np.frombuffer(weights).tolist(), strict=True)), used, now, note
            )
            for id, time, names, weights, used, now, note in rows.fetchall()
            if state in (None, now)
        ]

    def add_model(self, weights: dict[str, float], feedbacks: int, state: str, note: str, now: float) -> int:
        blob = np.array(list(weights.values()), np.float64).tobytes()
        made = self.db.execute(
            "INSERT INTO models (time, names, weights, feedbacks, state, note) VALUES (?, ?, ?, ?, ?, ?)",
            (now, json.dumps(list(weights)), blob, feedbacks, state, note),
        )
        return int(made.lastrowid or 0)

    def move_model(self, id: int, state: str, note: str) -> None:
        self.db.execute("UPDATE models SET state = ?, note = ? WHERE id = ?", (state, note, id))
