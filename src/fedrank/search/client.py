"""The search client: the object that the web page and the command line call. It never prints or sends data."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedrank.files import locked
from fedrank.progress import Progress, quiet
from fedrank.search import sharing, ubi
from fedrank.search.encoder import DocumentVectors
from fedrank.search.forgetting import (
    MAX_QUERY_LENGTH,
    forget_document,
    forget_everything,
    forget_learned,
    forget_searches,
)
from fedrank.search.impressions import BOUNCE, ImpressionRows, Recorded, first_weights, warm_up
from fedrank.search.index import Candidacy, Engine
from fedrank.search.ingest import Collector, remember_roots, remove_root, roots_of
from fedrank.search.lists import Query, ResultLists, raw_features, still_there
from fedrank.search.reader_process import ReaderProcess
from fedrank.search.readers import clean
from fedrank.search.result_pages import ResultPages, count_pages, explain
from fedrank.search.results import (
    PAGE_SIZE,
    Document,
    Explained,
    Filters,
    ForgottenRows,
    Gone,
    Indexed,
    NotFound,
    SearchError,
    SearchStatus,
    Shown,
    SkippedFile,
    Sort,
    UbiFiles,
)
from fedrank.search.settings import START, SearchSettings, begin, check_language, features_of
from fedrank.search.sharing import SentRecord
from fedrank.search.status import empty_roots, list_skipped, missing_roots, skipped_files, status_of
from fedrank.search.store import Store
from fedrank.search.trial import Trials

FOLLOW_EVERY = 5_000  # documents between index updates; makes a long first run searchable early


class SearchClient:
    """One person's documents, searches and clicks, in one private folder.

    All methods are thread-safe. Data is on disk before a method returns. Problems that the user can solve raise
    `SearchError`; `NotFound` corresponds to HTTP 404 and `Gone` to 410.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        serve: bool = False,
        clock: Callable[[], float] = time.time,
        language: str | None = None,
    ) -> None:
        """Open a search folder; it is created with mode 0700 if it does not exist.

        With `serve` the folder is locked; `files.Locked` is raised if another process serves it. `language` selects
        the stemmer ("none": no stemming; default: english) and cannot change later. Work that a crash interrupted is
        finished first. Use it as a context manager: `with SearchClient(folder) as client`.
        """
        self.folder = Path(folder).expanduser()
        self._clock = clock
        if language is not None:
            check_language(language)
        with contextlib.ExitStack() as closing:
            self.store = Store(self.folder)
            closing.callback(self.store.close)
            if serve:
                closing.enter_context(locked(self.folder / "serve.lock", f"the search in {self.folder}"))
            self.features = features_of(self.store, language)
            self.rows = ImpressionRows(self.store, self.features)
            self.trials = Trials(self.rows, clock)
            self.sent = SentRecord(self.store, self.folder)
            self.settings = SearchSettings(self.store)
            begin(self.rows, clock)
            self.vectors = DocumentVectors(self.store)
            self.engine = Engine(self.store, self.features)
            self.lists = ResultLists(self.rows, self.trials)
            self.pages = ResultPages(self.store, self.features)
            self._closing = closing.pop_all()
        if serve:  # compile in the background; the store is not used
            threading.Thread(target=warm_up, args=(self.rows,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        with self.store.turn:
            self._closing.close()

    # documents

    def index(
        self,
        paths: Sequence[str | os.PathLike[str]] = (),
        *,
        bookmarks: Sequence[str | os.PathLike[str]] = (),
        progress: Progress = quiet,
        changed: Collection[Path] | None = None,
    ) -> Indexed:
        """Index new and changed files below these paths and all paths given earlier; deleted files are removed.

        A path is a folder (including a Maildir) or one file: text, mbox, .eml, JSONL. File contents are not trusted:
        they are read in a process with limits, and those that cannot be read are counted by reason. Indexing can be
        interrupted; the next call continues. With `changed`, only these paths and what is below them are looked at.
        """
        began = time.monotonic()
        with self.engine.updating():
            with self.store.turn:
                remember_roots(self.store, paths, bookmarks)
                roots = roots_of(self.store)
            progress("prepare", 0, 1, "compiling once on this machine, about 30 seconds")
            warm_up(self.rows)
            progress("prepare", 1, 1)
            with ReaderProcess(self.folder) as reader:
                with self.store.turn:
                    collector = Collector(
                        self.store, self.features, reader, progress, lambda: self.engine.follow_if_behind(FOLLOW_EVERY)
                    )
                counts = collector.collect(roots, changed)
            self.engine.follow()
            self.vectors.make_missing(progress)
        with self.store.turn:
            documents = self.store.count("SELECT count(*) FROM documents")
            progress("index", 1, 1, f"{documents:,} documents")
            return Indexed(
                counts.files, counts.unchanged, counts.added, counts.changed, counts.removed, documents,
                skipped_files(self.store), time.monotonic() - began, empty_roots(self.store), missing_roots(self.store),
                counts.moved,
            )  # fmt: skip

    def remove_root(self, path: str | os.PathLike[str]) -> int:
        """Stop indexing a folder or file given to `index`, and remove its documents; returns their number.

        The path need not exist. If it is below another indexed folder, the next `index` reads it with that folder.
        """
        with self.store.turn, self.engine.updating():
            removed = remove_root(self.store, path)
            self.engine.follow()
            self.store.sweep()
        return removed

    # search

    def search(self, query: str, filters: Filters | None = None, sort: Sort = "rank") -> Shown:
        """Create an impression and return its first page. Any text is a valid query.

        The web page redirects (303) to /results/ID and shows `shown(ID)`, so reloading creates no second impression.
        """
        with self.store.turn:
            request = self.request(query, filters, sort)
            self._settle(request.time, searching=True)
            one = self.lists.add(request, *self.candidates(request))
            return self.pages.page(one, 1, self.lists.clicks(one))

    def request(self, query: str, filters: Filters | None = None, sort: Sort = "rank") -> Query:
        """A query as it is searched, now."""
        text = " ".join(clean(query[:MAX_QUERY_LENGTH]).split())
        return Query(text, self.features.query(text), filters or Filters(), sort, self._clock())

    def candidates(self, request: Query, among: Sequence[int] | None = None) -> tuple[Candidacy, NDArray[np.float16]]:
        """The engine's candidates, of these documents only if `among` is given, and their features."""
        self.engine.catch_up()
        terms = self.features.engine_terms(request.text)
        found = self.engine.candidates_for(terms, request.filters, request.sort == "date", among)
        found, rows = still_there(self.store, found)
        raw = raw_features(
            self.store, self.features, self.vectors.encoder, request.terms, request.text, found, rows, request.time
        )
        return found, raw

    def _settle(self, now: float, searching: bool) -> None:
        """Update the state of all impressions, learn from closed ones, and evaluate the model on trial."""
        learning = self.settings.learns_weights
        closed = self.rows.settle(now, searching, learning and self.trials.phase != "replay")
        self.trials.judge(closed)
        if learning:
            self.trials.try_own()

    def shown(self, impression: int, page: int = 1) -> Shown:
        """A page of an impression; repeated calls return the same results.

        A page that was not requested before is drawn from the remaining candidates, after all pages before it.
        Returning within five seconds of a click marks that click as bounced.
        """
        with self.store.turn:
            one = self.lists.get(impression)
            if not 1 <= page <= max(count_pages(one), 1):
                raise NotFound(f"search {impression} has no page {page}")
            if len(one.shown) > (page - 1) * PAGE_SIZE:
                self._take_back(one, page)
            elif page > 1:
                one = self.lists.extend(one, page)
            return self.pages.page(one, page, self.lists.clicks(one))

    def _take_back(self, one: Recorded, page: int) -> None:
        clicks = [
            click for click in self.lists.clicks(one) if not click.bounced and click.position // PAGE_SIZE == page - 1
        ]
        if clicks and 0 <= self._clock() - (last := max(clicks, key=lambda click: click.time)).time < BOUNCE:
            self.rows.bounce(one.id, last.position)

    def open_document(self, impression: int, position: int, click: bool = True) -> Document:
        """The document at a position (`Result.position`); records one click per position unless `click` is False.

        Use click = False for HEAD requests and prefetches (`Sec-Purpose`).
        """
        with self.store.turn:
            one = self._at(impression, position)
            id = int(one.candidates[one.shown[position]])
            try:
                document = self.pages.document(id)
            except NotFound:
                raise Gone("this document has been removed since the search; search again") from None
            if click and self.lists.is_recorded(one) and self.settings.learns:
                self.rows.click(one.id, position, id, self._clock())
            return document

    def bounced(self, impression: int, position: int) -> None:
        """Mark a click as bounced: it stays recorded but is not learned from."""
        with self.store.turn:
            one = self._at(impression, position)
            if self.lists.is_recorded(one):
                self.rows.bounce(one.id, position)

    def _at(self, impression: int, position: int) -> Recorded:
        """The impression, which must have a result at this position."""
        one = self.lists.get(impression)
        if not 0 <= position < len(one.shown):
            raise NotFound(f"search {impression} has no result at position {position}")
        return one

    def why(self, impression: int) -> tuple[Explained, ...]:
        """Explain the order of all results shown so far, from the top, with the current model."""
        with self.store.turn:
            one = self.lists.get(impression)
            clicked = {click.position for click in self.lists.clicks(one)}
            return explain(self.rows, one, self.pages.results(one, range(len(one.shown)), clicked))

    # status and settings

    def status(self) -> SearchStatus:
        """Documents, searches, the learned model, and all data that was ever sent."""
        with self.store.turn:
            self._settle(self._clock(), searching=False)
            learns = self.settings.learns
            return status_of(self.folder, self.rows, self.trials, self.sent, learns, self.vectors.digest)

    def skipped(self) -> list[SkippedFile]:
        """Files that could not be indexed, at least in part."""
        with self.store.turn:
            return list_skipped(self.store)

    def forget(
        self,
        *,
        query: str | None = None,
        document: int | None = None,
        since: int | None = None,
        learned: bool = False,
        everything: bool = False,
        searches: bool = False,
    ) -> ForgottenRows:
        """Delete searches with this text, a document and its clicks, all searches since a time (seconds since 1970),
        everything that was learned about the user (all searches, clicks and models), or everything including documents.
        Give exactly one of the five. With a document, `searches` also deletes the searches that showed it; otherwise
        `ForgottenRows.kept` has their queries.

        A forgotten document is not indexed again; its hashed words leave the index at the next merge of segments.
        The model keeps what it learned, except with `learned` and `everything`; `learn_setting("reset")` resets it.
        The record of sent data is never deleted.
        """
        if sum((query is not None, document is not None, since is not None, learned, everything)) != 1:
            raise SearchError("give exactly one of query, document, since, learned and everything; nothing was deleted")
        with self.store.turn:
            self.lists.forget_unrecorded()
            if everything:
                with self.engine.updating(), ReaderProcess(self.folder):  # which deletes copies that a kill has left
                    gone = forget_everything(self.store)
                    self.engine.begin_anew()
                    begin(self.rows, self._clock)
                    self.vectors.load()
                    self.store.db.execute("VACUUM")
            elif learned:
                self.learn_setting("reset")
                gone = forget_learned(self.store)
            elif document is not None:
                self.pages.document(document)  # raises NotFound
                with self.engine.updating():
                    gone = forget_document(self.store, document, searches)
                    self.engine.follow()
            else:
                gone = forget_searches(self.store, self.features, query, since)
            self.store.sweep()
            sharing.record(self.rows, self.folder, rewrite=True)
            return gone

    def learn_setting(self, setting: Literal["on", "off", "weights", "reset"]) -> None:
        """Turn learning on or off, or reset the model. With learning off, searches and clicks are not recorded.

        "on" remembers what was opened; "weights" also learns the weights of a model, which is then tried.
        """
        if setting not in ("on", "off", "weights", "reset"):
            raise SearchError(f"learn must be on, off, weights or reset (got {setting!r})")
        with self.store.writing():
            if setting == "reset":
                self.store.db.execute(
                    "UPDATE impressions SET state = 'discarded' WHERE state IN ('shown', 'opened', 'closed')"
                )
                start = self.rows.new_model(self._clock(), f"{START}, after a reset", first_weights(self.features))
                self.store.set(model=start, own_model=0)
                if self.trials.phase:
                    self.trials.end("stopped")
            else:
                self.store.set(learn=int(setting != "off"), learn_weights=int(setting == "weights"))

    def record_for_sharing(self) -> None:
        """Update the impressions that the federation's site learns from; without a federation there are none."""
        with self.store.turn:
            self._settle(self._clock(), searching=False)
            sharing.record(self.rows, self.folder)

    def export_ubi(self, folder: str | os.PathLike[str]) -> UbiFiles:
        """Write all searches and clicks in User Behavior Insights 1.3: `ubi_queries.jsonl`, `ubi_events.jsonl`."""
        with self.store.turn:
            return ubi.export(self.rows, folder)
