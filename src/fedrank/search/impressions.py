"""Impressions and clicks: what was shown and why, and what the user opened.

    shown -> opened -> closed
    shown -> abandoned (no click within 30 minutes)        any -> forgotten (rows are deleted)

A list is sorted ("plain"), mixed with an opponent's ("interleaved", see `opponents.py`), or followed more than 30
searches within a minute ("fast"), which are not mixed. Features are stored as 16-bit floats, and scores are computed
from the stored values, so an explanation uses exactly what was shown.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import FeatureSet
from fedrank.search.memory import Lifts
from fedrank.search.results import NotFound
from fedrank.search.store import Store, marks
from fedrank.types import Features, Scores

ENGINE_FIRST = 2  # results of the engine that stay first unless the user opened others before
STATES = ("shown", "opened", "closed", "abandoned", "discarded")  # the last: not recorded, or from earlier versions
ListKind = Literal["interleaved", "plain", "fast"]

MINUTE = 60.0
BOUNCE = 5.0  # seconds: a click followed by an earlier return does not count
ABANDONED = 30 * MINUTE  # without a click; also the time after its last click until an impression is closed
FAST = 30  # searches per minute
KEPT = 1_000  # latest impressions whose scores and features are stored, to explain them


@dataclass(frozen=True, eq=False)
class Recorded:
    """An impression as it is stored."""

    id: int
    time: float
    number: int  # counts searches; the key of its random numbers
    query: str
    terms: bytes  # sorted stems of the query: equal for searches for the same words
    filters: str  # as JSON
    sort: str
    kind: ListKind
    state: str
    found: int
    candidates: NDArray[np.int64]  # ids of documents, in the engine's order; 0: forgotten
    scores: Scores | None  # [candidates], with what the memory of clicks added; None for an old impression
    shown: NDArray[np.int64]  # [positions]: candidates, of all pages shown so far
    raw: NDArray[np.float16] | None  # [candidates, features], 0 .. 1
    teams: NDArray[np.int8] | None = None  # [positions] of an interleaved ranking: which order chose each (see `gate`)
    opponent: int | None = None  # of an interleaved ranking
    memory: Scores | None = None  # [candidates]: what the memory of clicks added to the scores; None: nothing


@dataclass(frozen=True)
class Clicked:
    """A click."""

    position: int
    document: int
    time: float
    bounced: bool


@lru_cache(maxsize=8)
def start_weights(features: FeatureSet) -> NDArray[np.float64]:
    """The weights of everyone: mostly the engine's score; `start.json` has the card."""
    found = json.loads(files("fedrank.search").joinpath("start.json").read_text(encoding="utf-8"))["weights"]
    return np.array([found.get(name, 0.0) for name in features.names])


def pack_features(raw: NDArray[np.float16]) -> bytes:
    """Compress features by column, since values within a column are similar."""
    return zlib.compress(np.ascontiguousarray(raw.T).astype("<f2").tobytes(), 6)


def unpack_features(blob: bytes, candidates: int) -> NDArray[np.float16]:
    columns = np.frombuffer(zlib.decompress(blob), "<f2").astype(np.float16)
    return np.ascontiguousarray(columns.reshape(-1, candidates).T if candidates else columns.reshape(0, 0))


def best_order(scores: Scores) -> NDArray[np.int64]:
    """All candidates by descending score; ties are in the engine's order."""
    return np.argsort(-scores, kind="stable").astype(np.int64)


def engine_first(scores: NDArray[Any]) -> NDArray[Any]:
    """Scores in the engine's order, in which each of its first results counts at least as much as those below it.

    Reordering helps further down and often loses the one right answer at the top.
    """
    raised = np.maximum.accumulate(scores[::-1])[::-1]
    return np.concatenate([raised[:ENGINE_FIRST], scores[ENGINE_FIRST:]])


class ImpressionRows:
    """The impressions and clicks in a store."""

    def __init__(self, store: Store, features: FeatureSet) -> None:
        self.store, self.features = store, features

    # weights

    @property
    def uses_engine(self) -> bool:
        """Whether the engine's order is used, since it won."""
        return bool(self.store.setting("engine_after", 0))

    def weights(self) -> NDArray[np.float64]:
        """The weights in use."""
        return self.features.start() if self.uses_engine else start_weights(self.features)

    # impressions and clicks

    def add(self, one: Recorded) -> int:
        """Add an impression and return its id; requires a transaction."""
        assert one.scores is not None
        blobs = {
            "candidates": one.candidates.astype("<i8").tobytes(),
            "scores": one.scores.astype("<f4").tobytes(),
            "shown": one.shown.astype("u1").tobytes(),
            "raw": None if one.raw is None else pack_features(one.raw),
            "teams": None if one.teams is None else one.teams.astype("i1").tobytes(),
            "memory": None if one.memory is None else one.memory.astype("<f4").tobytes(),
        }
        values = [blobs[name] if name in blobs else getattr(one, name) for name in _FIELDS]
        id = self.store.db.execute(f"INSERT INTO impressions ({_COLUMNS}) VALUES ({marks(values)})", values).lastrowid
        return int(id or 0)

    def get(self, id: int) -> Recorded:
        if not 0 < id < 1 << 62:
            raise NotFound(f"no search {id}")
        found = self.store.one(f"SELECT id, {_COLUMNS} FROM impressions WHERE id = ?", id)
        if found is None:
            raise NotFound(f"no search {id}")
        return _recorded(found)

    def clicks(self, id: int) -> list[Clicked]:
        rows = self.store.rows(
            "SELECT place, document, time, bounced FROM clicks WHERE impression = ? ORDER BY place", id
        )
        return [Clicked(position, document, time, bool(bounced)) for position, document, time, bounced in rows]

    def extend(self, id: int, shown: NDArray[np.int64]) -> None:
        """Record that an impression shows more results."""
        with self.store.writing():
            self.store.db.execute(
                "UPDATE impressions SET shown = ? WHERE id = ? AND length(shown) < ?",
                (shown.astype("u1").tobytes(), id, len(shown)),
            )

    def click(self, id: int, position: int, document: int, now: float) -> None:
        """Record one click per position; a second click cancels a bounce."""
        with self.store.writing():
            self.store.db.execute(
                "INSERT INTO clicks (impression, place, document, time) VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET time = excluded.time, bounced = 0 WHERE bounced",
                (id, position, document, now),
            )
            self.store.db.execute("UPDATE impressions SET state = 'opened' WHERE id = ? AND state = 'shown'", (id,))

    def bounce(self, id: int, position: int) -> None:
        """Mark a click as bounced; an impression without other clicks returns to the state 'shown'."""
        with self.store.writing():
            self.store.db.execute("UPDATE clicks SET bounced = 1 WHERE impression = ? AND place = ?", (id, position))
            self.store.db.execute(
                "UPDATE impressions SET state = 'shown' WHERE id = ? AND state = 'opened' AND NOT EXISTS "
                "(SELECT 1 FROM clicks WHERE impression = impressions.id AND NOT bounced)",
                (id,),
            )

    def fast(self, now: float) -> bool:
        """Whether the next search exceeds 30 searches within the last minute."""
        return self.store.count("SELECT count(*) FROM impressions WHERE time > ?", now - MINUTE) >= FAST

    # from shown to closed

    def settle(self, now: float, searching: bool) -> list[int]:
        """Update the states of impressions; returns those that were closed now.

        An opened impression is closed 30 minutes after its last click, or at the next search unless the click is so
        recent that it may still bounce.
        """
        due = self.store.rows(
            "SELECT id, (SELECT max(time) FROM clicks WHERE impression = id AND NOT bounced) FROM impressions "
            "WHERE state = 'opened' ORDER BY id"
        )
        waits = BOUNCE if searching else ABANDONED
        closed = [id for id, last in due if last is None or now - last >= waits]
        late = self.store.rows("SELECT id FROM impressions WHERE state = 'shown' AND time <= ?", now - ABANDONED)
        if not closed and not late:
            return []
        with self.store.writing():
            self._move("opened", "closed", closed)
            self._move("shown", "abandoned", [id for (id,) in late])
            self.store.db.execute(
                "UPDATE impressions SET scores = NULL, features = NULL WHERE features IS NOT NULL AND state NOT IN "
                "('shown', 'opened') AND id <= (SELECT max(id) FROM impressions) - ?",
                (KEPT,),
            )
        return closed

    def _move(self, before: str, after: str, ids: list[int]) -> None:
        """Change the state of impressions that another process has not changed already."""
        self.store.db.executemany(
            "UPDATE impressions SET state = ? WHERE id = ? AND state = ?", ((after, id, before) for id in ids)
        )

    def scores(self, weights: NDArray[np.float64], raw: NDArray[np.float16], memory: Scores | None = None) -> Scores:
        """[candidates]: weighted sums of features, with what the memory of clicks adds.

        Only the memory can put another result before the engine's best ones (`engine_first`).
        """
        scores: Scores = engine_first(self.scaled(raw) @ weights.astype(np.float32))
        return scores if memory is None else scores + memory

    def limited(self, lifts: Lifts, weights: NDArray[np.float64], raw: NDArray[np.float16]) -> NDArray[np.float32]:
        """What the memory of clicks adds to the scores with these weights."""
        return lifts.limited(self.scores(weights, raw), raw[:, self.features.names.index("covered")])

    def scaled(self, raw: NDArray[np.float16]) -> Features:
        return np.ascontiguousarray(self.features.scaled(raw.astype(np.float32)), dtype=np.float32)


_FIELDS = tuple(field.name for field in fields(Recorded))[1:]  # all but the id
_COLUMNS = ", ".join(_FIELDS).replace("raw", "features")


def _recorded(row: tuple[Any, ...]) -> Recorded:
    *plain, candidates, scores, shown, features, teams, opponent, memory = row
    ids = np.frombuffer(candidates, "<i8").astype(np.int64)
    values = [
        *plain,
        ids,
        None if scores is None else np.frombuffer(scores, "<f4").astype(np.float32),
        np.frombuffer(shown, "u1").astype(np.int64),
        None if features is None else unpack_features(features, len(ids)),
        None if teams is None else np.frombuffer(teams, "i1").astype(np.int8),
        opponent,
        None if memory is None else np.frombuffer(memory, "<f4").astype(np.float32),
    ]
    return Recorded(*values)
