"""Lists and clicks: how one is shown, what is recorded of it, and how the model learns from what was recorded.

    shown -> opened -> closed -> learned | discarded
    shown -> abandoned (no click within 30 minutes)        any -> forgotten (rows are deleted)

Showing and learning are the compiled loops of simulation. A list teaches if the model drew it ("pdgd"); one that
compares two models ("interleaved"), that was filtered, sorted or in a fixed order ("plain"), or that came among more
than 30 searches a minute ("fast"), does not.

Features are kept as 16-bit numbers, and scores are computed from these: what is learned from is exactly what was shown.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import FeatureSet, ForwardRows, Usage, WordStatistics
from fedrank.ranking.impressions import search_stream
from fedrank.ranking.learners import Pdgd
from fedrank.search.results import NotFound
from fedrank.search.store import Store, marks
from fedrank.types import Features, Impression, Scores

KAPPA = 0.1  # probability that the first place is drawn like the others
LEARNER = Pdgd(rate=0.03, temperature=0.3, keep=1 - KAPPA)
STATES = ("shown", "opened", "closed", "abandoned", "learned", "discarded")
ListKind = Literal["pdgd", "interleaved", "plain", "fast"]

# First weight of "clicked for this query". PDGD hardly learns from documents far below others, since it never sees them
# swapped; somebody who opens the same one for the same words again and again expects it to come up all the same.
HABIT = 3.0

MINUTE, DAY = 60.0, 86_400.0
BOUNCE = 5.0  # seconds: who comes back earlier did not want it
ABANDONED = 30 * MINUTE  # without a click; also how long an opened list waits for the next one
TOO_OLD = 7 * DAY  # to be learned from
FAST = 30  # searches a minute
KEPT = 1_000  # latest impressions whose scores and features are kept, to try other models on


@dataclass(frozen=True, eq=False)
class Recorded:
    """An impression as it is stored."""

    id: int
    time: float
    number: int  # counts searches; its chance is keyed by it
    query: str
    terms: bytes  # stems of the query, sorted: two searches for the same thing have the same
    filters: str  # as JSON
    sort: str
    kind: ListKind
    state: str
    model: int
    temperature: float
    keep: float
    found: int
    candidates: NDArray[np.int64]  # ids of documents, in the engine's order; 0: forgotten
    scores: Scores | None  # [candidates]; None where it is so old that they were dropped
    shown: NDArray[np.int64]  # [places]: candidates, of all pages drawn so far
    raw: NDArray[np.float16] | None  # [candidates, features], 0 .. 1
    teams: NDArray[np.int8] | None = None  # [places] of an interleaved list, as in `gate`: whose choice each was
    trial: int | None = None  # the model on trial in such a list


@dataclass(frozen=True)
class Clicked:
    """A click."""

    position: int
    document: int
    time: float
    bounced: bool


def first_weights(features: FeatureSet) -> NDArray[np.float64]:
    """The model that a person begins with: the engine's order, and what was opened twice for the same words."""
    weights = features.start()
    weights[features.names.index("clicked for this query")] = HABIT
    return weights


def pack_features(raw: NDArray[np.float16]) -> bytes:
    """Columns one after the other: they repeat themselves more than rows do."""
    return zlib.compress(np.ascontiguousarray(raw.T).astype("<f2").tobytes(), 6)


def unpack_features(blob: bytes, candidates: int) -> NDArray[np.float16]:
    columns = np.frombuffer(zlib.decompress(blob), "<f2").astype(np.float16)
    return np.ascontiguousarray(columns.reshape(-1, candidates).T if candidates else columns.reshape(0, 0))


def stream_of(key: int, number: int, page: int = 1) -> np.uint64:
    """The chance of search `number`; pages after the first have their own.

    The same as that of simulated client 0 with this key.
    """
    return search_stream(np.uint64(key), 0, number, *([page] if page > 1 else []))


def draw_more(scores: Scores, shown: NDArray[np.int64], learner: Pdgd, stream: np.uint64) -> NDArray[np.int64]:
    """The next page, drawn from what is left. Behind one another both pages are one list, as if it had been drawn so.

    What keeps the best document first acts on the first page alone. Scores are those of the first page, whatever was
    learned meanwhile: as the only feature of a model of weight 1.
    """
    rest = np.setdiff1d(np.arange(len(scores)), shown)
    if not len(rest):
        return rest
    return rest[replace(learner, keep=0.0).draw(np.ones(1, np.float32), scores[rest, None].copy(), stream)[1]]


def scores_of(weights: NDArray[np.float32], features: Features) -> Scores:
    return LEARNER.scores(weights, features)


def best_order(scores: Scores) -> NDArray[np.int64]:
    """All candidates, the best first; of equal ones the engine's better."""
    return np.argsort(-scores, kind="stable").astype(np.int64)


def warm_up(rows: ImpressionRows) -> None:
    """Compile what searching and learning need, so that the first search does not wait for it."""
    features = rows.features
    some = ForwardRows.join([features.row("one title", f"some text {n}") for n in range(12)])
    raw = features.raw(features.query("some text"), some, np.ones(12), WordStatistics.of(some), [Usage()] * 12)
    scaled, weights = rows.scaled(raw.astype(np.float16)), features.start()
    scores, shown = LEARNER.draw(weights.astype(np.float32), scaled, stream_of(1, 0))
    draw_more(scores, shown, LEARNER, stream_of(1, 0, 2))
    LEARNER.learn(weights, Impression(scaled, scores, shown, shown == shown[1]))


class ImpressionRows:
    """The impressions, clicks and models in a store."""

    def __init__(self, store: Store, features: FeatureSet) -> None:
        self.store, self.features = store, features

    # models

    def model(self) -> tuple[int, NDArray[np.float64]]:
        """The model in use: its id, and its weights in double precision."""
        id, weights = self.store.one("SELECT id, weights FROM models WHERE id = ?", self.store.setting("model"))
        return int(id), np.frombuffer(weights, "<f8").copy()

    def new_model(self, now: float, origin: str, start: NDArray[np.float64]) -> int:
        """Use these weights from now on, within a transaction."""
        blob = start.astype("<f8").tobytes()
        id = self.store.db.execute(
            "INSERT INTO models (made, origin, features, start, weights) VALUES (?, ?, ?, ?, ?)",
            (now, origin, self.features.version, blob, blob),
        ).lastrowid
        self.store.set(model=id)
        return int(id or 0)

    # what was shown and clicked

    def add(self, one: Recorded) -> int:
        """Within a transaction; returns its id."""
        assert one.scores is not None
        blobs = {
            "candidates": one.candidates.astype("<i8").tobytes(),
            "scores": one.scores.astype("<f4").tobytes(),
            "shown": one.shown.astype("u1").tobytes(),
            "raw": None if one.raw is None else pack_features(one.raw),
            "teams": None if one.teams is None else one.teams.astype("i1").tobytes(),
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
        """Note that a list shows more places."""
        with self.store.writing():
            self.store.db.execute("UPDATE impressions SET shown = ? WHERE id = ?", (shown.astype("u1").tobytes(), id))

    @property
    def last_search(self) -> int:
        """The number of the last search that was recorded; none that comes later has it, whatever is forgotten."""
        found = self.store.one("SELECT seq FROM sqlite_sequence WHERE name = 'impressions'")
        return 0 if found is None else int(found[0])

    def click(self, id: int, position: int, document: int, now: float) -> None:
        """Once for each place; whoever took it back and comes again wants it after all."""
        with self.store.writing():
            self.store.db.execute(
                "INSERT INTO clicks (impression, place, document, time) VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET time = excluded.time, bounced = 0 WHERE bounced",
                (id, position, document, now),
            )
            self.store.db.execute("UPDATE impressions SET state = 'opened' WHERE id = ? AND state = 'shown'", (id,))

    def bounce(self, id: int, position: int) -> None:
        """Take a click back; a list without any other is as it was before."""
        with self.store.writing():
            self.store.db.execute("UPDATE clicks SET bounced = 1 WHERE impression = ? AND place = ?", (id, position))
            self.store.db.execute(
                "UPDATE impressions SET state = 'shown' WHERE id = ? AND state = 'opened' AND NOT EXISTS "
                "(SELECT 1 FROM clicks WHERE impression = impressions.id AND NOT bounced)",
                (id,),
            )

    def fast(self, now: float) -> bool:
        """Whether more than 30 searches, with the one to come, are of the last minute."""
        return self.store.count("SELECT count(*) FROM impressions WHERE time > ?", now - MINUTE) >= FAST

    # from shown to learned

    def settle(self, now: float, searching: bool, learning: bool) -> int:
        """Let impressions reach the state that they are in by now, and learn; returns from how many.

        An opened list is closed half an hour after its last click, or at the next search unless its click is so fresh
        that the person may still come back. Each is learned from once: the weights and its state change together.
        """
        due = self.store.rows(
            "SELECT id, (SELECT max(time) FROM clicks WHERE impression = id AND NOT bounced) FROM impressions "
            "WHERE state = 'opened' ORDER BY id"
        )
        waits = BOUNCE if searching else ABANDONED
        closed = [id for id, last in due if last is None or now - last >= waits]
        late = self.store.rows("SELECT id FROM impressions WHERE state = 'shown' AND time <= ?", now - ABANDONED)
        if not closed and not late and not self.store.one(_TO_LEARN):
            return 0
        with self.store.writing():
            self._move("opened", "closed", closed)
            self._move("shown", "abandoned", [id for (id,) in late])
            return self._learn(now) if learning else self._discard(now)

    def close(self, id: int, now: float, learning: bool) -> None:
        """The person is done with this list."""
        with self.store.writing():
            self.store.db.execute("UPDATE impressions SET state = 'closed' WHERE id = ? AND state = 'opened'", (id,))
            if learning:
                self._learn(now)

    def _move(self, before: str, after: str, ids: list[int]) -> None:
        """Another process may have moved them already."""
        self.store.db.executemany(
            "UPDATE impressions SET state = ? WHERE id = ? AND state = ?", ((after, id, before) for id in ids)
        )

    def _discard(self, now: float) -> int:
        self.store.db.execute(
            "UPDATE impressions SET state = 'discarded' WHERE state = 'closed' AND kind = 'pdgd' AND time < ?",
            (now - TOO_OLD,),
        )
        return 0

    def _learn(self, now: float) -> int:
        self._discard(now)
        waiting = [id for (id,) in self.store.rows(_TO_LEARN)]
        if not waiting:
            return 0
        model, master = self.model()
        taught = 0
        for id in waiting:
            recorded = self.get(id)
            if (one := self.as_impression(recorded)) is not None:
                taught += replace(LEARNER, temperature=recorded.temperature, keep=recorded.keep).learn(master, one)
        self._move("closed", "learned", waiting)
        self.store.db.execute(
            "UPDATE models SET weights = ?, learned = learned + ? WHERE id = ?",
            (master.astype("<f8").tobytes(), taught, model),
        )
        self.store.db.execute(
            "UPDATE impressions SET scores = NULL, features = NULL WHERE features IS NOT NULL AND "
            "state IN ('learned', 'discarded', 'abandoned') AND id <= (SELECT max(id) FROM impressions) - ?",
            (KEPT,),
        )
        return len(waiting)

    def as_impression(self, one: Recorded) -> Impression | None:
        """What was recorded, as learners take it; None where it was dropped. Clicks that were taken back are none."""
        if one.raw is None or one.scores is None:
            return None
        clicked = np.zeros(len(one.shown), bool)
        clicked[[click.position for click in self.clicks(one.id) if not click.bounced]] = True
        return Impression(self.scaled(one.raw), one.scores, one.shown, clicked)

    def scaled(self, raw: NDArray[np.float16]) -> Features:
        return np.ascontiguousarray(self.features.scaled(raw.astype(np.float32)), dtype=np.float32)


_TO_LEARN = "SELECT id FROM impressions WHERE state = 'closed' AND kind = 'pdgd' ORDER BY id"
_FIELDS = tuple(field.name for field in fields(Recorded))[1:]  # all but the id
_COLUMNS = ", ".join(_FIELDS).replace("raw", "features")


def _recorded(row: tuple[Any, ...]) -> Recorded:
    *plain, candidates, scores, shown, features, teams, trial = row
    ids = np.frombuffer(candidates, "<i8").astype(np.int64)
    values = [
        *plain,
        ids,
        None if scores is None else np.frombuffer(scores, "<f4").astype(np.float32),
        np.frombuffer(shown, "u1").astype(np.int64),
        None if features is None else unpack_features(features, len(ids)),
        None if teams is None else np.frombuffer(teams, "i1").astype(np.int8),
        trial,
    ]
    return Recorded(*values)
