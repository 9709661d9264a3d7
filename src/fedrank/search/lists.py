"""Result lists: features of the candidates, and how lists are sorted or mixed, page by page, and stored."""

from __future__ import annotations

import json
import secrets
import zlib
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import ForwardRows, QueryTerms
from fedrank.search.features import weighted_features
from fedrank.search.impressions import Clicked, ImpressionRows, ListKind, Recorded, best_order
from fedrank.search.index import Candidacy
from fedrank.search.memory import ClickMemory
from fedrank.search.opponents import FORGETFUL, Opponents
from fedrank.search.queries import NO_CONDITIONS, Parsed
from fedrank.search.results import PAGE_SIZE, Filters, Sort
from fedrank.search.settings import SearchSettings
from fedrank.search.store import Store, marks

UNRECORDED = 1 << 50  # larger ids are lists in memory only
MAX_UNRECORDED = 200


@dataclass(frozen=True)
class Query:
    """A search request."""

    text: str
    terms: QueryTerms
    filters: Filters
    sort: Sort
    time: float
    parsed: Parsed = NO_CONDITIONS


def still_there(store: Store, found: Candidacy) -> tuple[Candidacy, ForwardRows]:
    """The candidates that are still in the store, with their forward rows; the index may lag behind the store."""
    ids = found.documents.tolist()
    blobs = dict(store.rows(f"SELECT document, words FROM forward WHERE document IN ({marks(ids)})", *ids))
    there = np.array([id in blobs for id in ids], bool)
    rows = ForwardRows.of([zlib.decompress(blobs[id]) for id in ids if id in blobs])
    return Candidacy(found.documents[there], found.scores[there], found.found), rows


def raw_features(store: Store, query: Query, found: Candidacy, rows: ForwardRows) -> NDArray[np.float16]:
    """Features of all candidates, in the precision in which they are recorded; 0 for those without a weight."""
    return weighted_features(query.terms, rows, found.scores, store.statistics()).astype(np.float16)


class ResultLists:
    """The result lists in a store, and those in memory of searches that are not recorded."""

    def __init__(self, rows: ImpressionRows) -> None:
        self.rows, self.store, self.opponents = rows, rows.store, Opponents(rows)
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
        order = np.arange(len(one.candidates))
        engine = np.array_equal(one.shown, np.arange(len(one.shown)))  # the list is in the engine's order
        if one.scores is not None and one.sort == "rank" and not engine:
            order = best_order(one.scores)
        rest = order[~np.isin(order, one.shown)]
        shown = np.concatenate([one.shown, rest[: page * PAGE_SIZE - len(one.shown)]])
        one = replace(one, shown=shown)
        if self.is_recorded(one):
            self.rows.extend(one.id, shown)
        else:
            self._unrecorded[one.id] = one
        return one

    def _make(self, query: Query, found: Candidacy, raw: NDArray[np.float16], learns: bool) -> Recorded:
        """Create a list: sorted, or mixed with the order of an opponent."""
        order, number = self.settings.order, int(self.store.setting("searches", 0))
        weights = self.rows.weights()
        remembered = self.memory.lifts(query.terms, found.documents.tolist())
        by_rank = query.sort == "rank"  # candidates are in the engine's order
        lifts = self.rows.limited(remembered, weights, raw) if by_rank else remembered.values
        scores = self.rows.scores(weights, raw, lifts)
        shown = best_order(scores)[:PAGE_SIZE]
        kind: ListKind = "plain"
        teams, opponent = None, None
        if query.filters or query.parsed or query.sort != "rank" or order != "learned" or not learns:
            if query.sort == "date" or order == "engine" or not len(query.terms):
                shown = np.arange(len(raw))[:PAGE_SIZE]
        elif self.rows.fast(query.time):
            kind = "fast"
        elif (opponent := self.opponents.choose(number, bool(lifts.any()))) is not None:
            others = self.rows.scores(weights, raw)
            if opponent != FORGETFUL:
                others = self.rows.scores(self.rows.features.start(), raw, lifts)
            mixed = self.opponents.mixed(scores, others, number)
            kind, shown, teams = "interleaved", mixed.shown, mixed.team
        return Recorded(
            0, query.time, number, query.text, query.terms.key, json.dumps(asdict(query.filters)), query.sort, kind,
            "shown", found.found, found.documents, scores, shown, raw, teams, opponent,
            lifts if lifts.any() else None,
        )  # fmt: skip
