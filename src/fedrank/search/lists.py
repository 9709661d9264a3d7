"""Result lists: how they are drawn or sorted, page by page, and stored."""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import QueryTerms
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
from fedrank.search.trial import Trials

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
                by_score = one.scores is not None and one.sort == "rank" and not _was_engine(one)
                order = (
                    best_order(one.scores) if by_score and one.scores is not None else np.arange(len(one.candidates))
                )
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


def _was_engine(one: Recorded) -> bool:
    return bool(np.array_equal(one.shown, np.arange(len(one.shown))))
