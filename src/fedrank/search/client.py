"""The search client: the object that the web page and the command line call. It never prints or sends data."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedrank.files import locked
from fedrank.progress import Progress, quiet
from fedrank.search import ubi
from fedrank.search.forgetting import (
    MAX_QUERY_LENGTH,
    forget_document,
    forget_everything,
    forget_learned,
    forget_searches,
)
from fedrank.search.impressions import BOUNCE, ImpressionRows, Recorded
from fedrank.search.index import Candidacy, Engine
from fedrank.search.ingest import Collector, remember_roots, remove_root, roots_of
from fedrank.search.lists import Query, ResultLists, raw_features, still_there
from fedrank.search.queries import parse
from fedrank.search.reader_process import ReaderProcess
from fedrank.search.readers import clean
from fedrank.search.result_pages import Asked, ResultPages, count_pages, explain, marked_words
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
from fedrank.search.settings import SearchSettings, begin, check_language, features_of
from fedrank.search.status import empty_roots, list_skipped, missing_roots, skipped_files, status_of
from fedrank.search.store import Store

FOLLOW_EVERY = 5_000  # documents between index updates; makes a long first run searchable early


class SearchClient:
    """One person's documents, searches and clicks, in one private folder. Nothing is sent.

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
            self.settings = SearchSettings(self.store)
            begin(self.rows, clock)
            self.engine = Engine(self.store, self.features)
            self.lists = ResultLists(self.rows)
            self.pages = ResultPages(self.store, self.features)
            self._closing = closing.pop_all()

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
            with ReaderProcess(self.folder) as reader:
                with self.store.turn:
                    collector = Collector(
                        self.store, self.features, reader, progress, lambda: self.engine.follow_if_behind(FOLLOW_EVERY)
                    )
                counts = collector.collect(roots, changed)
            if self.store.setting("has_forgotten"):
                self.engine.make_anew()
            self.engine.follow()
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
            return self._page(self.lists.add(request, *self.candidates(request)), 1)

    def request(self, query: str, filters: Filters | None = None, sort: Sort = "rank") -> Query:
        """A query as it is searched, now."""
        text = " ".join(clean(query[:MAX_QUERY_LENGTH]).split())
        parsed = parse(text)
        return Query(text, self.features.query(parsed.words), filters or Filters(), sort, self._clock(), parsed)

    def candidates(self, request: Query, among: Sequence[int] | None = None) -> tuple[Candidacy, NDArray[np.float16]]:
        """The engine's candidates, of these documents only if `among` is given, and their features."""
        self.engine.catch_up()
        terms = self.features.engine_terms(request.parsed.words)
        by_date = request.sort == "date"
        found = self.engine.candidates_for(terms, request.filters, by_date, among, request.parsed)
        found, rows = still_there(self.store, found)
        return found, raw_features(self.store, request, found, rows)

    def _settle(self, now: float, searching: bool) -> None:
        """Update the state of all impressions, and judge the opponents."""
        if closed := self.rows.settle(now, searching):
            self.lists.opponents.judge(closed)

    def shown(self, impression: int, page: int = 1) -> Shown:
        """A page of an impression; repeated calls return the same results.

        A page that was not requested before continues with the remaining candidates.
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
            return self._page(one, page)

    def _page(self, one: Recorded, page: int) -> Shown:
        shown = self.pages.page(one, page, self.lists.clicks(one))
        return replace(shown, suggestion=self.engine.respelled(one.query))

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

    def marked(self, text: str, impression: int) -> tuple[tuple[int, int], ...]:
        """The [start, end) ranges of a text with words of a search; none if it is not recorded."""
        with self.store.turn:
            try:
                query = self.lists.get(impression).query
            except NotFound:
                return ()
        return marked_words(text, Asked(parse(query), self.features)).marked

    def last_search(self) -> int:
        """The number of the last recorded search."""
        if not (last := self.store.count("SELECT max(id) FROM impressions")):
            raise SearchError("no search is recorded; give the words to search for")
        return last

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
        """Explain the order of all results shown so far, from the top, with the weights in use."""
        with self.store.turn:
            one = self.lists.get(impression)
            clicked = {click.position for click in self.lists.clicks(one)}
            return explain(self.rows, one, self.pages.results(one, range(len(one.shown)), clicked))

    # status and settings

    def status(self) -> SearchStatus:
        """Documents, searches and settings."""
        with self.store.turn:
            self._settle(self._clock(), searching=False)
            return status_of(self.folder, self.store, self.settings)

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
        everything that was learned about the user (all searches and clicks), or everything including documents.
        Give exactly one of the five. With a document, `searches` also deletes the searches that showed it; otherwise
        `ForgottenRows.kept` has their queries.

        A forgotten document is not indexed again; its words leave the index at the next call of `index`.
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
                    self.store.db.execute("VACUUM")
            elif learned:
                gone = forget_learned(self.store)
            elif document is not None:
                self.pages.document(document)  # raises NotFound
                with self.engine.updating():
                    gone = forget_document(self.store, document, searches)
                    self.engine.follow()
            else:
                gone = forget_searches(self.store, self.features, query, since)
            self.store.sweep()
            return gone

    def learn_setting(self, setting: Literal["on", "off"]) -> None:
        """Remember what is opened, or not; with learning off, searches and clicks are not recorded."""
        if setting not in ("on", "off"):
            raise SearchError(f"learn must be on or off (got {setting!r})")
        with self.store.writing():
            self.store.set(learn=int(setting == "on"))

    def export_ubi(self, folder: str | os.PathLike[str]) -> UbiFiles:
        """Write all searches and clicks in User Behavior Insights 1.3: `ubi_queries.jsonl`, `ubi_events.jsonl`."""
        with self.store.turn:
            return ubi.export(self.rows, folder)
