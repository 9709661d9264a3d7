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
from fedrank.search.encoder import Encoder
from fedrank.search.forgetting import terms_key
from fedrank.search.impressions import (
    LEARNER,
    Clicked,
    ImpressionRows,
    ListKind,
    Recorded,
    best_order,
    draw_more,
    scores_of,
    stream_of,
)
from fedrank.search.index import Candidacy
from fedrank.search.results import PAGE_SIZE, Filters, Sort
from fedrank.search.settings import SearchSettings
from fedrank.search.store import Store, marks
from fedrank.search.trial import Trials

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
    store: Store,
    features: FeatureSet,
    encoder: Encoder | None,
    terms: QueryTerms,
    query: str,
    found: Candidacy,
    rows: ForwardRows,
    now: float,
) -> NDArray[np.float16]:
    """Features of all candidates, in the precision in which they are recorded."""
    ids = found.documents.tolist()
    query_vector = vectors = None
    if encoder is not None and ids:
        stored = dict(
            store.rows(
                f"SELECT document, vector FROM vectors WHERE encoder = ? AND document IN ({marks(ids)})",
                encoder.digest,
                *ids,
            )
        )
        none = bytes(2 * encoder.dimensions)
        vectors = np.array([np.frombuffer(stored.get(id, none), "<f2") for id in ids], np.float32)
        query_vector = encoder([query])[0]
    past = _past(store, terms, ids, now)
    raw = features.raw(terms, rows, found.scores, store.statistics(), past, query_vector, vectors)
    return raw.astype(np.float16)


def _past(store: Store, terms: QueryTerms, ids: Sequence[int], now: float) -> list[Usage]:
    """Metadata and click history of the candidates."""
    for_query = dict(
        store.rows(
            "SELECT document, count(*) FROM clicks JOIN impressions ON id = impression WHERE terms = ? AND NOT "
            "bounced GROUP BY document",
            terms_key(terms),
        )
    )
    clicks = {
        id: (times, last)
        for id, times, last in store.rows(
            f"SELECT document, count(*), max(time) FROM clicks WHERE document IN ({marks(ids)}) AND NOT bounced "
            "GROUP BY document",
            *ids,
        )
    }
    facts = {
        id: (kind, date, depth, answered)
        for id, kind, date, depth, answered in store.rows(
            "SELECT id, kind, date, depth, sender != '' AND EXISTS (SELECT 1 FROM written_to WHERE address = "
            f"sender) FROM documents WHERE id IN ({marks(ids)})",
            *ids,
        )
    }
    past = []
    for id in ids:  # the first click for a query may be accidental and is not counted
        kind, date, depth, answered = facts[id]
        times, last = clicks.get(id, (0, None))
        past.append(
            Usage(
                max(for_query.get(id, 0) - 1, 0), times, None if last is None else (now - last) / DAY,
                (now - date) / DAY if date else None, "file" if kind == "note" else kind, depth, bool(answered),
            )
        )  # fmt: skip
    return past


class ResultLists:
    """The result lists in a store, and those in memory of searches that are not recorded."""

    def __init__(self, rows: ImpressionRows, trials: Trials) -> None:
        self.rows, self.store, self.trials = rows, rows.store, trials
        self.settings = SearchSettings(rows.store)
        self._unrecorded: OrderedDict[int, Recorded] = OrderedDict()

    def add(self, query: Query, found: Candidacy, raw: NDArray[np.float16]) -> Recorded:
        """Create a list of these candidates; it is recorded unless learning is off."""
        learns = self.settings.learns
        one = self._make(query, found, raw, learns)
        if learns:
            with self.store.writing():
                self.store.set(searches=one.number + 1)
                return replace(one, id=self.rows.add(one))
        one = replace(one, id=UNRECORDED + secrets.randbits(32))
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
        """Create a list: drawn, interleaved or sorted."""
        order = self.settings.order
        kind: ListKind = "pdgd"
        if query.filters or query.sort != "rank" or order != "drawn" or not learns:
            kind = "plain"
        elif self.rows.fast(query.time):
            kind = "fast"
        number = int(self.store.setting("searches", 0))
        model, master = self.rows.model()
        features, weights = self.rows.scaled(raw), master.astype(np.float32)
        teams, on_trial = None, self.trials.on_trial() if kind == "pdgd" else None
        if on_trial is not None and on_trial.phase == "draft":
            kind = "interleaved"
            scores = scores_of(weights, features)
            mixed = self.trials.mixed(on_trial, features, scores, number, PAGE_SIZE)
            shown, teams = mixed.shown, mixed.team
        elif kind == "pdgd" and len(raw):
            scores, shown = LEARNER.draw(weights, features, stream_of(self.store.setting("chance"), number))
        else:
            scores = scores_of(weights, features)
            in_order = np.arange(len(raw)) if query.sort == "date" or order == "engine" else best_order(scores)
            shown = in_order[:PAGE_SIZE]
        drawn = (LEARNER.temperature, LEARNER.keep) if kind == "pdgd" else (0.0, 0.0)
        return Recorded(
            0, query.time, number, query.text, terms_key(query.terms), json.dumps(asdict(query.filters)), query.sort,
            kind, "shown", model, *drawn, found.found, found.documents, scores, shown, raw, teams,
            None if on_trial is None or teams is None else on_trial.id,
        )  # fmt: skip
