"""The search client: one object that a page and the command call. It never prints, and no byte leaves through it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Self

from fedrank.files import locked
from fedrank.progress import Progress, quiet
from fedrank.search import sharing, ubi
from fedrank.search.candidates import raw_features, still_there
from fedrank.search.explain import explain
from fedrank.search.forgetting import MAX_QUERY_LENGTH, forget_document, forget_everything, forget_searches
from fedrank.search.impressions import BOUNCE, ImpressionRows, Recorded, first_weights, warm_up
from fedrank.search.index import Engine
from fedrank.search.index_sync import IndexSync
from fedrank.search.ingest import Collector, remember_roots, roots_of
from fedrank.search.lists import Query, ResultLists
from fedrank.search.readers import clean
from fedrank.search.result_pages import ResultPages, count_pages
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
    Sort,
    UbiFiles,
)
from fedrank.search.sent import SentRecord
from fedrank.search.settings import SearchSettings, begin, features_of
from fedrank.search.status import skipped_files, status_of
from fedrank.search.store import Store
from fedrank.search.trial import Trials
from fedrank.search.vectors import DocumentVectors

FOLLOW_EVERY = 5_000  # documents after which the engine follows, so that a first long run can be searched early


class SearchClient:
    """One person's documents, searches and clicks, in one private folder.

    All methods may be called from several threads; each takes its turn at the store. Whatever was answered is on the
    disk. Problems that one line can tell are `SearchError`s; `NotFound` is for 404, `Gone` for 410.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        serve: bool = False,
        clock: Callable[[], float] = time.time,
        language: str | None = None,
    ) -> None:
        """Open a folder, made if need be (0700). With `serve` nobody else may serve it: `files.Locked` says who does.

        `language` is that of the stemmer, english if none is given, or "none"; a folder keeps the one it began with.
        What a crash left undone is done first. A context manager: `with SearchClient(folder) as client`.
        """
        self.folder = Path(folder).expanduser()
        self._clock = clock
        with contextlib.ExitStack() as closing:
            self.store = Store(self.folder)
            closing.callback(self.store.close)
            if serve:
                closing.enter_context(locked(self.folder / "serve.lock", f"the search in {self.folder}"))
            self.features = features_of(self.store, language)
            self.engine = Engine(self.folder)
            self.rows = ImpressionRows(self.store, self.features)
            self.trials = Trials(self.rows, clock)
            self.sent = SentRecord(self.store, self.folder, clock)
            self.settings = SearchSettings(self.store)
            begin(self.rows, clock)
            self.vectors = DocumentVectors(self.store)
            self.sync = IndexSync(self.store, self.features, self.engine)
            self.lists = ResultLists(self.rows, self.trials)
            self.pages = ResultPages(self.store, self.features)
            self._closing = closing.pop_all()
        if serve:  # so that the first search does not wait for all of it; it needs nothing of the store
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
    ) -> Indexed:
        """Read what changed below these paths, and below those of earlier times; documents that vanished go.

        A path is a folder (a Maildir among them), or one file: text, mbox, .eml, JSONL. Nothing in them is trusted:
        what cannot be read is counted with its reason. May be stopped at any moment and goes on where it was.
        """
        began = time.monotonic()
        with self.sync.updating():
            with self.store.turn:
                remember_roots(self.store, paths)
                remember_roots(self.store, bookmarks, "bookmarks")
                roots = roots_of(self.store)
            progress("prepare", 0, 1, "compiled once on this machine, in half a minute")
            warm_up(self.rows)
            progress("prepare", 1, 1)
            with self.store.turn:
                collector = Collector(
                    self.store, self.features, progress, lambda: self.sync.follow_if_behind(FOLLOW_EVERY)
                )
            counts = collector.collect(roots)
            self.sync.follow()
            self.vectors.make_missing(progress)
        with self.store.turn:
            documents = self.store.count("SELECT count(*) FROM documents")
            progress("index", 1, 1, f"{documents:,} documents")
            return Indexed(
                counts.files, counts.unchanged, counts.added, counts.changed, counts.removed, documents,
                skipped_files(self.store), time.monotonic() - began,
            )  # fmt: skip

    # searching

    def search(self, query: str, filters: Filters | None = None, sort: Sort = "rank") -> Shown:
        """A new impression and its first page. Any text is a query; one without words finds nothing.

        The page answers 303 to /results/ID and shows `shown(ID)`, so that reload and back make no second impression.
        """
        query = " ".join(clean(query[:MAX_QUERY_LENGTH]).split())
        with self.store.turn:
            request = Query(query, self.features.query(query), filters or Filters(), sort, self._clock())
            self._settle(request.time, searching=True)
            self.sync.catch_up()
            found = self.engine.candidates_for(request.terms, request.filters, sort == "date")
            found, rows = still_there(self.store, found)
            raw = raw_features(
                self.store, self.features, self.vectors.encoder, request.terms, query, found, rows, request.time
            )
            one = self.lists.add(request, found, raw)
            return self.pages.page(one, 1, self.lists.clicks(one))

    def _settle(self, now: float, searching: bool) -> None:
        """Let every list reach the state that it is in by now, learn, and judge a model on trial."""
        self.rows.settle(now, searching, self._learns_now)
        self.trials.judge()

    @property
    def _learns_now(self) -> bool:
        return self.settings.learns and self.trials.phase != "replay"

    def shown(self, impression: int, page: int = 1) -> Shown:
        """A page of an impression, the same whenever it is asked for.

        A page that nobody asked for before is drawn now from the rest of the candidates, with all pages before it.
        Coming back within five seconds of a click takes that click back (`bounced`).
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
        """The document at a position (`Result.position`), and a click on it, once; with click = False none is recorded.

        Give click = False for HEAD and for a prefetch (`Sec-Purpose`).
        """
        with self.store.turn:
            one = self._at(impression, position)
            id = int(one.candidates[one.shown[position]])
            try:
                document = self.pages.document(id)
            except NotFound:
                raise Gone("this document was there, and has been removed since") from None
            if click and self.lists.is_recorded(one) and self.settings.learns:
                self.rows.click(one.id, position, id, self._clock())
            return document

    def bounced(self, impression: int, position: int) -> None:
        """The person came back at once: this click is kept, and not learned from."""
        with self.store.turn:
            one = self._at(impression, position)
            if self.lists.is_recorded(one):
                self.rows.bounce(one.id, position)

    def _at(self, impression: int, position: int) -> Recorded:
        """A list that shows something at this place."""
        one = self.lists.get(impression)
        if not 0 <= position < len(one.shown):
            raise NotFound(f"search {impression} shows nothing at place {position}")
        return one

    def close_impression(self, impression: int) -> None:
        """The person is done with this list; what waits 30 minutes otherwise is learned from now."""
        with self.store.turn:
            if self.lists.is_recorded(self.lists.get(impression)):
                self.rows.close(impression, self._clock(), self._learns_now)
                self.trials.judge()

    def why(self, impression: int) -> tuple[Explained, ...]:
        """Why this order: every place of the list that was shown so far, from the top, by the model as it is now."""
        with self.store.turn:
            one = self.lists.get(impression)
            clicked = {click.position for click in self.lists.clicks(one)}
            return explain(self.rows, one, self.pages.results(one, range(len(one.shown)), clicked))

    # what there is

    def status(self) -> SearchStatus:
        """What there is, what was learned, and every byte that ever left."""
        with self.store.turn:
            self._settle(self._clock(), searching=False)
            learns = self.settings.learns
            return status_of(self.folder, self.rows, self.trials, self.sent, learns, self.vectors.digest)

    def forget(
        self,
        *,
        query: str | None = None,
        document: int | None = None,
        since: int | None = None,
        everything: bool = False,
    ) -> ForgottenRows:
        """Delete rows: searches with this text; a document and every click on it; all searches since a moment
        (seconds since 1970); or everything, documents and model included. Exactly one of the four.

        A document is not indexed again; the engine drops its hashed words when it merges its files next. What the model
        learned stays in its weights, except with `everything`; `learn_setting("reset")` removes it. The list of what
        left this device stays always.
        """
        if sum((query is not None, document is not None, since is not None, everything)) != 1:
            raise SearchError("say what to forget: a query, a document, a moment, or everything; exactly one of them")
        with self.store.turn:
            self.lists.forget_unrecorded()
            if everything:
                with self.sync.updating():
                    gone = forget_everything(self.store)
                    self.sync.begin_anew()
                    begin(self.rows, self._clock)
                    self.vectors.load()
                    self.store.db.execute("VACUUM")
            elif document is not None:
                self.pages.document(document)  # or NotFound
                with self.sync.updating():
                    gone = forget_document(self.store, document)
                    self.sync.follow()
            else:
                gone = forget_searches(self.store, self.features, query, since)
            self.store.sweep()
            sharing.record(self.rows, self.folder, anew=True)
            return gone

    def learn_setting(self, setting: Literal["on", "off", "reset"]) -> None:
        """Off: no search and no click is recorded, lists come in the model's order. Reset: the model as at first."""
        if setting not in ("on", "off", "reset"):
            raise SearchError(f"learn {setting}: there is on, off and reset")
        with self.store.writing():
            if setting == "reset":
                self.store.db.execute(
                    "UPDATE impressions SET state = 'discarded' WHERE state IN ('shown', 'opened', 'closed')"
                )
                self.rows.new_model(self._clock(), "the engine's order, after a reset", first_weights(self.features))
                if self.trials.phase:
                    self.trials.end("stopped")
            else:
                self.store.set(learn=int(setting == "on"))

    def record_for_sharing(self) -> None:
        """Let what the federation's site learns from be what is here: nothing, for somebody who did not join."""
        with self.store.turn:
            self._settle(self._clock(), searching=False)
            sharing.record(self.rows, self.folder)

    def export_ubi(self, folder: str | os.PathLike[str]) -> UbiFiles:
        """Write all searches and clicks as User Behavior Insights 1.3: `ubi_queries.jsonl`, `ubi_events.jsonl`."""
        with self.store.turn:
            return ubi.export(self.rows, folder)
