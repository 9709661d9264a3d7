"""Result lists: features of the candidates, and how lists are drawn or sorted, page by page, and stored."""

from __future__ import annotations

import json
import secrets
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import FeatureSet, ForwardRows, QueryTerms, Usage
from fedrank.search.impressions import (
    LEARNER,
    ONE,
    Clicked,
    ImpressionRows,
    ListKind,
    Recorded,
    best_order,
    draw_more,
    stream_of,
)
from fedrank.search.index import Candidacy
from fedrank.search.memory import ClickMemory
from fedrank.search.results import PAGE_SIZE, Filters, Sort
from fedrank.search.settings import SearchSettings
from fedrank.search.sharing import Sharing
from fedrank.search.store import Store, marks
from fedrank.search.trial import FORGETFUL, Trials

UNRECORDED = 1 << 50  # larger ids are lists in memory only
MAX_UNRECORDED = 200
DAY = 86_400.0


@dataclass(frozen=True)
class Query:
    """A search request."""

    text: str
    terms: QueryTerms
    filters: Filters
    sort: Sort
    time: float


def still_there(store: Store, found: Candidacy) -> tuple[Candidacy, ForwardRows]:
    """The candidates that are still in the store, with their forward rows; the index may lag behind the store."""
    ids = found.documents.tolist()
    blobs = dict(store.rows(f"SELECT document, words FROM forward WHERE document IN ({marks(ids)})", *ids))
    there = np.array([id in blobs for id in ids], bool)
    rows = ForwardRows.of([zlib.decompress(blobs[id]) for id in ids if id in blobs])
    return Candidacy(found.documents[there], found.scores[there], found.found), rows


def raw_features(
    store: Store, features: FeatureSet, query: Query, found: Candidacy, rows: ForwardRows
) -> NDArray[np.float16]:
    """Features of all candidates, in the precision in which they are recorded."""
    past = _past(store, found.documents.tolist(), query.time)
    return features.raw(query.terms, rows, found.scores, store.statistics(), past).astype(np.float16)


def _past(store: Store, ids: Sequence[int], now: float) -> list[Usage]:
    """Metadata of the candidates; earlier clicks are a separate rule (`memory.py`)."""
    facts = {
        id: Usage((now - date) / DAY if date else None, "file" if kind == "note" else kind, depth, bool(answered))
        for id, kind, date, depth, answered in store.rows(
            "SELECT id, kind, date, depth, sender != '' AND EXISTS (SELECT 1 FROM written_to WHERE address = "
            f"sender) FROM documents WHERE id IN ({marks(ids)})",
            *ids,
        )
    }
    return [facts[id] for id in ids]


class ResultLists:
    """The result lists in a store, and those in memory of searches that are not recorded."""

    def __init__(self, rows: ImpressionRows, trials: Trials) -> None:
        self.rows, self.store, self.trials = rows, rows.store, trials
        self.settings, self.memory = SearchSettings(rows.store), ClickMemory(rows.store)
        self._unrecorded: OrderedDict[int, Recorded] = OrderedDict()

    def add(self, query: Query, found: Candidacy, raw: NDArray[np.float16]) -> Recorded:
        """Create a list of these candidates; it is recorded unless learning is off."""
        learns = self.settings.learns
        one = self._make(query, found, raw, learns)
        if learns:
            with self.store.writing():
                self.store.set(searches=one.number + 1)
                return replace(one, id=self.rows.add(one))
        one = replace(one, id=UNRECORDED + secrets.randbits(32), state="discarded")
        self._unrecorded[one.id] = one
        if len(self._unrecorded) > MAX_UNRECORDED:
            self._unrecorded.popitem(last=False)
        return one

    def get(self, id: int) -> Recorded:
        found = self._unrecorded.get(id)
        return self.rows.get(id) if found is None else found

    def is_recorded(self, one: Recorded) -> bool:
        return one.id not in self._unrecorded

    def clicks(self, one: Recorded) -> list[Clicked]:
        return self.rows.clicks(one.id) if self.is_recorded(one) else []

    def forget_unrecorded(self) -> None:
        self._unrecorded.clear()

    def extend(self, one: Recorded, page: int) -> Recorded:
        """Extend a list to this page with the remaining candidates."""
        shown = one.shown
        for number in range(len(shown) // PAGE_SIZE + 1, page + 1):
            if one.kind == "pdgd" and one.scores is not None:
                stream = stream_of(self.store.setting("chance"), one.number, number)
                shown = np.concatenate([shown, draw_more(one.scores, shown, LEARNER, stream)])
            else:
                order = np.arange(len(one.candidates))
                engine = np.array_equal(one.shown, np.arange(len(one.shown)))  # the list is in the engine's order
                if one.scores is not None and one.sort == "rank" and not engine:
                    order = best_order(one.scores)
                rest = order[~np.isin(order, shown)]
                shown = np.concatenate([shown, rest[:PAGE_SIZE]])
        one = replace(one, shown=shown)
        if self.is_recorded(one):
            self.rows.extend(one.id, shown)
        else:
            self._unrecorded[one.id] = one
        return one

    def _make(self, query: Query, found: Candidacy, raw: NDArray[np.float16], learns: bool) -> Recorded:
        """Create a list: sorted, interleaved with another model's, or drawn if something learns from it."""
        order, number = self.settings.order, int(self.store.setting("searches", 0))
        model, weights = self.rows.model()
        lifts = self.memory.lifts(query.terms, found.documents.tolist())
        scores = self.rows.scores(weights, raw, lifts)
        shown = best_order(scores)[:PAGE_SIZE]
        kind: ListKind = "plain"
        teams, other = None, None
        if query.filters or query.sort != "rank" or order != "drawn" or not learns:
            if query.sort == "date" or order == "engine":
                shown = np.arange(len(raw))[:PAGE_SIZE]
        elif self.rows.fast(query.time):
            kind = "fast"
        elif (other := self.trials.opponent(number, bool(lifts.any()))) is not None:
            new = self.rows.scores(other.weights, raw, None if other.id == FORGETFUL else lifts)
            mixed = self.trials.mixed(scores, new, number)
            kind, shown, teams = "interleaved", mixed.shown, mixed.team
        elif self._explores and len(raw):
            kind = "pdgd"
            _, shown = LEARNER.draw(ONE, scores[:, None].copy(), stream_of(self.store.setting("chance"), number))
        drawn = (LEARNER.temperature, LEARNER.keep) if kind == "pdgd" else (0.0, 0.0)
        return Recorded(
            0, query.time, number, query.text, query.terms.key, json.dumps(asdict(query.filters)), query.sort, kind,
            "shown", model, *drawn, found.found, found.documents, scores, shown, raw, teams,
            None if other is None else other.id, lifts if lifts.any() else None,
        )  # fmt: skip

    @property
    def _explores(self) -> bool:
        """Whether lists are drawn: if a model learns from them, here or in a federation, or if a replay needs them."""
        return self.settings.learns_weights or self.trials.phase == "replay" or Sharing.is_there(self.store.folder)
