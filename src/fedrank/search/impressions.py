"""Impressions and clicks: how a ranking is drawn and recorded, and how the model learns from it.

    shown -> opened -> closed -> learned | discarded
    shown -> abandoned (no click within 30 minutes)        any -> forgotten (rows are deleted)

Drawing and learning use the compiled loops of the simulation. Weights are learned only from rankings that were drawn
("pdgd"), and never in the model in use: the learned one has to pass the gate (`trial.py`). Nothing is learned from a
ranking that interleaves two models ("interleaved"), that was not drawn ("plain"), or that followed more than 30
searches within a minute ("fast").

Features are stored as 16-bit floats, and scores are computed from the stored values, so learning uses exactly what
was shown.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import FeatureSet, ForwardRows, Usage, WordStatistics
from fedrank.ranking.impressions import search_stream
from fedrank.ranking.learners import Pdgd
from fedrank.search.results import NotFound
from fedrank.search.store import Store, marks
from fedrank.types import Features, Impression, Scores

KAPPA = 0.1  # probability that the first position is drawn like the others
LEARNER = Pdgd(rate=0.03, temperature=0.15, keep=1 - KAPPA)  # drawn lists lose .001 of nDCG@10
OWN_RATE = 0.003  # of a model that learns from this person alone; the k-th search for the same words has a kth of it
ONE = np.ones(1, np.float32)  # the weight of scores that are drawn from
ENGINE_FIRST = 2  # results of the engine that stay first unless the user opened others before
STATES = ("shown", "opened", "closed", "abandoned", "learned", "discarded")
ListKind = Literal["pdgd", "interleaved", "plain", "fast"]

MINUTE, DAY = 60.0, 86_400.0
BOUNCE = 5.0  # seconds: a click followed by an earlier return does not count
ABANDONED = 30 * MINUTE  # without a click; also the time after its last click until an impression is closed
TOO_OLD = 7 * DAY  # older impressions are not learned from
FAST = 30  # searches per minute
KEPT = 1_000  # latest impressions whose scores and features are stored, to evaluate other models


@dataclass(frozen=True, eq=False)
class Recorded:
    """An impression as it is stored."""

    id: int
    time: float
    number: int  # counts searches; the key of its random stream
    query: str
    terms: bytes  # sorted stems of the query: equal for searches for the same words
    filters: str  # as JSON
    sort: str
    kind: ListKind
    state: str
    model: int
    temperature: float
    keep: float
    found: int
    candidates: NDArray[np.int64]  # ids of documents, in the engine's order; 0: forgotten
    scores: Scores | None  # [candidates], with what the memory of clicks added; None for an old impression
    shown: NDArray[np.int64]  # [positions]: candidates, of all pages drawn so far
    raw: NDArray[np.float16] | None  # [candidates, features], 0 .. 1
    teams: NDArray[np.int8] | None = None  # [positions] of an interleaved ranking: which model chose each (see `gate`)
    trial: int | None = None  # the other model of an interleaved ranking; the one that learned from a drawn ranking
    memory: Scores | None = None  # [candidates]: what the memory of clicks added to the scores; None: nothing


@dataclass(frozen=True)
class Clicked:
    """A click."""

    position: int
    document: int
    time: float
    bounced: bool


def first_weights(features: FeatureSet) -> NDArray[np.float64]:
    """The initial model: the engine's score, and what the best results have in common; `start.json` has its card."""
    found = json.loads(files("fedrank.search").joinpath("start.json").read_text(encoding="utf-8"))["weights"]
    return np.array([found.get(name, 0.0) for name in features.names])


def pack_features(raw: NDArray[np.float16]) -> bytes:
    """Compress features by column, since values within a column are similar."""
    return zlib.compress(np.ascontiguousarray(raw.T).astype("<f2").tobytes(), 6)


def unpack_features(blob: bytes, candidates: int) -> NDArray[np.float16]:
    columns = np.frombuffer(zlib.decompress(blob), "<f2").astype(np.float16)
    return np.ascontiguousarray(columns.reshape(-1, candidates).T if candidates else columns.reshape(0, 0))


def stream_of(key: int, number: int, page: int = 1) -> np.uint64:
    """The random stream of search `number`, equal to that of simulated client 0; each later page has its own."""
    return search_stream(np.uint64(key), 0, number, *([page] if page > 1 else []))


def draw_more(scores: Scores, shown: NDArray[np.int64], learner: Pdgd, stream: np.uint64) -> NDArray[np.int64]:
    """Draw the next page from the remaining candidates, as if all pages had been drawn as one ranking.

    The bias towards the best document at the first position applies to the first page only. The scores of the first
    page are used again, even if the model has changed.
    """
    rest = np.setdiff1d(np.arange(len(scores)), shown)
    if not len(rest):
        return rest
    return rest[replace(learner, keep=0.0).draw(ONE, scores[rest, None].copy(), stream)[1]]


def best_order(scores: Scores) -> NDArray[np.int64]:
    """All candidates by descending score; ties are in the engine's order."""
    return np.argsort(-scores, kind="stable").astype(np.int64)


def engine_first(scores: NDArray[Any]) -> NDArray[Any]:
    """Scores in the engine's order, in which each of its first results counts at least as much as those below it.

    Reordering helps further down and often loses the one right answer at the top.
    """
    raised = np.maximum.accumulate(scores[::-1])[::-1]
    return np.concatenate([raised[:ENGINE_FIRST], scores[ENGINE_FIRST:]])


def warm_up(rows: ImpressionRows) -> None:
    """Compile what searching and learning need before the first search."""
    features = rows.features
    some = ForwardRows.join([features.row("one title", f"some text {n}") for n in range(12)])
    raw = features.raw(features.query("some text"), some, np.ones(12), WordStatistics.of(some), [Usage()] * 12)
    scaled, weights = rows.scaled(raw.astype(np.float16)), features.start()
    scores = rows.scores(weights, raw.astype(np.float16))
    _, shown = LEARNER.draw(ONE, scores[:, None].copy(), stream_of(1, 0))
    draw_more(scores, shown, LEARNER, stream_of(1, 0, 2))
    LEARNER.learn(weights, Impression(scaled, scores, shown, shown == shown[1]))


class ImpressionRows:
    """The impressions, clicks and models in a store."""

    def __init__(self, store: Store, features: FeatureSet) -> None:
        self.store, self.features = store, features

    # models

    def model(self) -> tuple[int, NDArray[np.float64]]:
        """The current model: its id, and its weights in double precision."""
        id, weights = self.store.one("SELECT id, weights FROM models WHERE id = ?", self.store.setting("model"))
        return int(id), np.frombuffer(weights, "<f8").copy()

    def new_model(self, now: float, origin: str, start: NDArray[np.float64], learned: int = 0) -> int:
        """Add a model with these weights; requires a transaction."""
        blob = start.astype("<f8").tobytes()
        id = self.store.db.execute(
            "INSERT INTO models (made, origin, features, start, weights, learned) VALUES (?, ?, ?, ?, ?, ?)",
            (now, origin, self.features.version, blob, blob, learned),
        ).lastrowid
        return int(id or 0)

    def own_model(self) -> tuple[int, NDArray[np.float64], int] | None:
        """The model that learns from this person's searches and is not in use: id, weights, searches learned from."""
        found = self.store.one(
            "SELECT id, weights, learned FROM models WHERE id = ?", self.store.setting("own_model", 0)
        )
        return None if found is None else (int(found[0]), np.frombuffer(found[1], "<f8").copy(), int(found[2]))

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
            self.store.db.execute("UPDATE impressions SET shown = ? WHERE id = ?", (shown.astype("u1").tobytes(), id))

    @property
    def last_search(self) -> int:
        """The id of the last recorded search; ids are not reused after deletions."""
        found = self.store.one("SELECT seq FROM sqlite_sequence WHERE name = 'impressions'")
        return 0 if found is None else int(found[0])

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

    # from shown to learned

    def settle(self, now: float, searching: bool, learning: bool) -> list[int]:
        """Update the states of impressions and learn from closed ones; returns those that were closed now.

        An opened impression is closed 30 minutes after its last click, or at the next search unless the click is so
        recent that it may still bounce. Weights and state change in one transaction, so each is learned from once.
        """
        due = self.store.rows(
            "SELECT id, (SELECT max(time) FROM clicks WHERE impression = id AND NOT bounced) FROM impressions "
            "WHERE state = 'opened' ORDER BY id"
        )
        waits = BOUNCE if searching else ABANDONED
        closed = [id for id, last in due if last is None or now - last >= waits]
        late = self.store.rows("SELECT id FROM impressions WHERE state = 'shown' AND time <= ?", now - ABANDONED)
        if not closed and not late and not self.store.one(_TO_LEARN):
            return []
        with self.store.writing():
            self._move("opened", "closed", closed)
            self._move("shown", "abandoned", [id for (id,) in late])
            self.store.db.execute(
                "UPDATE impressions SET scores = NULL, features = NULL WHERE features IS NOT NULL AND state NOT IN "
                "('shown', 'opened') AND NOT (state = 'closed' AND kind = 'pdgd') AND id <= "
                "(SELECT max(id) FROM impressions) - ?",
                (KEPT,),
            )
            self.store.db.execute(
                "UPDATE impressions SET state = 'discarded' WHERE state = 'closed' AND kind = 'pdgd' AND time < ?",
                (now - TOO_OLD,),
            )
            if learning:
                self._learn(now)
        return closed

    def _move(self, before: str, after: str, ids: list[int]) -> None:
        """Change the state of impressions that another process has not changed already."""
        self.store.db.executemany(
            "UPDATE impressions SET state = ? WHERE id = ? AND state = ?", ((after, id, before) for id in ids)
        )

    def _learn(self, now: float) -> None:
        waiting = [id for (id,) in self.store.rows(_TO_LEARN)]
        if not waiting:
            return
        own = self.own_model()
        if own is None:
            _, master = self.model()
            own = self.new_model(now, "own searches", master), master, 0
            self.store.set(own_model=own[0])
        model, master, taught = own
        for id in waiting:
            recorded = self.get(id)
            if (one := self.as_impression(recorded)) is not None:
                learner = replace(
                    LEARNER,
                    rate=OWN_RATE / self.repeats(recorded),
                    temperature=recorded.temperature,
                    keep=recorded.keep,
                )
                taught += learner.learn(master, one)
            self.store.db.execute("UPDATE impressions SET state = 'learned', trial = ? WHERE id = ?", (model, id))
        self.store.db.execute(
            "UPDATE models SET weights = ?, learned = ? WHERE id = ?", (master.astype("<f8").tobytes(), taught, model)
        )

    def repeats(self, one: Recorded) -> int:
        """How many searches for the same words were learned from, with this one."""
        return 1 + self.store.count(
            "SELECT count(*) FROM impressions WHERE terms = ? AND state = 'learned' AND id < ?", one.terms, one.id
        )

    def as_impression(self, one: Recorded) -> Impression | None:
        """The impression for learners, without bounced clicks; None if its features were deleted."""
        if one.raw is None or one.scores is None:
            return None
        clicked = np.zeros(len(one.shown), bool)
        clicked[[click.position for click in self.clicks(one.id) if not click.bounced]] = True
        return Impression(self.scaled(one.raw), one.scores, one.shown, clicked)

    def scores(self, weights: NDArray[np.float64], raw: NDArray[np.float16], memory: Scores | None = None) -> Scores:
        """[candidates]: the model's scores, with what the memory of clicks adds.

        Only the memory can put another result before the engine's best ones (`engine_first`).
        """
        scores = engine_first(LEARNER.scores(weights.astype(np.float32), self.scaled(raw)))
        return scores if memory is None else scores + memory

    def scaled(self, raw: NDArray[np.float16]) -> Features:
        return np.ascontiguousarray(self.features.scaled(raw.astype(np.float32)), dtype=np.float32)


_TO_LEARN = "SELECT id FROM impressions WHERE state = 'closed' AND kind = 'pdgd' ORDER BY id"
_FIELDS = tuple(field.name for field in fields(Recorded))[1:]  # all but the id
_COLUMNS = ", ".join(_FIELDS).replace("raw", "features")


def _recorded(row: tuple[Any, ...]) -> Recorded:
    *plain, candidates, scores, shown, features, teams, trial, memory = row
    ids = np.frombuffer(candidates, "<i8").astype(np.int64)
    values = [
        *plain,
        ids,
        None if scores is None else np.frombuffer(scores, "<f4").astype(np.float32),
        np.frombuffer(shown, "u1").astype(np.int64),
        None if features is None else unpack_features(features, len(ids)),
        None if teams is None else np.frombuffer(teams, "i1").astype(np.int8),
        trial,
        None if memory is None else np.frombuffer(memory, "<f4").astype(np.float32),
    ]
    return Recorded(*values)
