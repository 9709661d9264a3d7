"""The search client: one object that a page and the command call. It never prints, and no byte leaves through it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import LIVE_1, FeatureSet, ForwardRow, ForwardRows, QueryTerms, Usage, WordStatistics
from fedrank.extras import missing
from fedrank.files import Locked, locked
from fedrank.progress import Progress, quiet
from fedrank.search import sharing, ubi
from fedrank.search.candidates import raw_features, still_there
from fedrank.search.encoder import CHARACTERS, Encoder
from fedrank.search.forgetting import LONGEST_QUERY, forget_document, forget_searches, terms_key
from fedrank.search.impressions import (
    BOUNCE,
    LEARNER,
    ImpressionRows,
    ListKind,
    Recorded,
    best_order,
    draw,
    draw_more,
    first_weights,
    learn,
    scores_of,
    stream_of,
)
from fedrank.search.index import Candidacy, Engine
from fedrank.search.ingest import Collector, remember_roots, roots_of
from fedrank.search.readers import clean
from fedrank.search.results import (
    Cause,
    Document,
    Explained,
    Filters,
    ForgottenRows,
    Gone,
    Indexed,
    NotFound,
    Order,
    Result,
    SearchError,
    SearchStatus,
    Shown,
    Snippet,
    Sort,
    UbiFiles,
)
from fedrank.search.sent import SentRecord
from fedrank.search.snippets import snippet_of
from fedrank.search.status import skipped_files, status_of
from fedrank.search.store import Store, marks
from fedrank.search.trial import Trials
from fedrank.types import Impression

PLACES = 10  # of a page
FOLLOW_EVERY = 5_000  # documents after which the engine follows, so that a first long run can be searched early
UNRECORDED = 1 << 50  # ids from here on are lists that are nowhere but in memory
MOST_UNRECORDED = 200


class SearchClient:
    """One person's documents, searches and clicks, in one private folder.

    All methods may be called from several threads; each takes its turn. Whatever was answered is on the disk. Problems
    that one line can tell are `SearchError`s; `NotFound` is for 404, `Gone` for 410.
    """

    def __init__(
        self, folder: str | os.PathLike[str], serve: bool, clock: Callable[[], float], language: str | None
    ) -> None:
        self.folder = Path(folder).expanduser()
        self._clock = clock
        self._turn = threading.RLock()
        self._unrecorded: OrderedDict[int, Recorded] = OrderedDict()
        self._encoder: Encoder | None = None
        with contextlib.ExitStack() as closing:
            self.store = Store(self.folder)
            closing.callback(self.store.close)
            if serve:
                closing.enter_context(locked(self.folder / "serve.lock", f"the search in {self.folder}"))
            self.features = self._features(language)
            self.engine = Engine(self.folder)
            self.rows = ImpressionRows(self.store, self.features)
            self.trials = Trials(self.rows)
            self.sent = SentRecord(self.store, self.folder, clock)
            self._begin()
            with contextlib.suppress(Locked), self._indexing():  # whoever indexes just now does it
                self._follow()
            self._followed = self.store.indexed
            self._closing = closing.pop_all()
        if serve:  # so that the first search does not wait for all of it; it needs nothing of the store
            threading.Thread(target=self.warm, daemon=True).start()

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        serve: bool = False,
        clock: Callable[[], float] = time.time,
        language: str | None = None,
    ) -> Self:
        """Open a folder, made if need be (0700). With `serve` nobody else may serve it: `files.Locked` says who does.

        `language` is that of the stemmer, english if none is given, or "none"; a folder keeps the one it began with.
        What a crash left undone is done first. A context manager: `with SearchClient.open(folder) as client`.
        """
        return cls(folder, serve, clock, language)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._turn:
            self._closing.close()

    def _features(self, language: str | None) -> FeatureSet:
        """The features that this folder has, or begins with."""
        known = self.store.setting("language")
        if known is None:
            known = language or LIVE_1.stemmer
        elif language not in (None, known):
            raise SearchError(f"{self.folder} began with the language {known}, not {language}; use another folder")
        features = LIVE_1 if known == LIVE_1.stemmer else FeatureSet(known)
        try:
            features.query("words")
        except ImportError:
            raise missing("searching needs the package PyStemmer", "search") from None
        except (KeyError, ValueError) as problem:
            raise SearchError(f"no stemmer for {known!r}: {problem}") from None
        if (version := self.store.setting("features", features.version)) != features.version:
            raise SearchError(f"{self.folder} has features {version!r}, and this is {features.version!r}; index anew")
        return features

    def _begin(self) -> None:
        """A new folder has a model and a key of its own chance."""
        if self.store.setting("model") is None:
            with self.store.writing():
                if self.store.setting("model") is None:
                    self.store.set(
                        features=self.features.version, language=self.features.stemmer, chance=secrets.randbits(62),
                        created=self._clock(),
                    )  # fmt: skip
                    self.rows.new_model(self._clock(), "the engine's order", first_weights(self.features))
        if path := self.store.setting("encoder", ""):
            with contextlib.suppress(SearchError, ImportError):  # a file that was moved: its feature is 0
                self._encoder = Encoder(path)

    @contextlib.contextmanager
    def _indexing(self) -> Iterator[None]:
        with locked(self.folder / "index.lock", f"the index in {self.folder}"):
            yield

    def _follow(self, told: Callable[[int], None] = lambda done: None) -> None:
        """Let the engine have what the store has; should their numbers differ even then, it begins anew."""
        with self._turn:
            self.engine.follow(self.store, self.features, told)
            if self.engine.documents != self.store.count("SELECT count(*) FROM documents"):
                self.engine.make_anew()
                self.engine.follow(self.store, self.features, told)
            self._followed = self.store.indexed

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
        with self._indexing():
            with self._turn:
                remember_roots(self.store, paths)
                remember_roots(self.store, bookmarks, "bookmarks")
                roots = roots_of(self.store)
            progress("prepare", 0, 1, "compiled once on this machine, in half a minute")
            self.warm()
            progress("prepare", 1, 1)

            def after_batch() -> None:
                with self._turn:
                    if self.store.seq - self.store.indexed >= FOLLOW_EVERY:
                        self._follow()

            with self._turn:
                collector = Collector(self.store, self.features, self._turn, progress, after_batch)
            counts = collector.collect(roots)
            self._follow()
            self._encode(progress)
        with self._turn:
            documents = self.store.count("SELECT count(*) FROM documents")
            progress("index", 1, 1, f"{documents:,} documents")
            return Indexed(
                counts.files, counts.unchanged, counts.added, counts.changed, counts.removed, documents,
                skipped_files(self.store), time.monotonic() - began,
            )  # fmt: skip

    def warm(self) -> None:
        """Compile what searching and learning need, so that the first search does not wait for it."""
        rows = ForwardRows.join([self.features.row("one title", f"some text {n}") for n in range(12)])
        some = self.features.raw(
            self.features.query("some text"), rows, np.ones(12), WordStatistics.of(rows), [Usage()] * 12
        )
        scaled, weights = self.rows.scaled(some.astype(np.float16)), self.features.start()
        scores, shown = draw(weights.astype(np.float32), scaled, LEARNER, stream_of(1, 0))
        draw_more(scores, shown, LEARNER, stream_of(1, 0, 2))
        learn(weights, Impression(scaled, scores, shown, shown == shown[1]), LEARNER)

    def _encode(self, progress: Progress) -> None:
        """Vectors of documents that have none by the present encoder."""
        if self._encoder is None:
            return
        encoder, done = self._encoder, 0
        missing = (
            "SELECT id, title FROM documents WHERE NOT EXISTS "
            "(SELECT 1 FROM vectors WHERE document = id AND encoder = ?) ORDER BY id LIMIT 256"
        )
        with self._turn:
            of = self.store.count(f"SELECT count(*) FROM ({missing.replace('LIMIT 256', '')})", encoder.digest)
        while True:
            with self._turn:
                some = self.store.rows(missing, encoder.digest)
                texts = [f"{title}. {self.store.text(id)[:CHARACTERS]}"[:CHARACTERS] for id, title in some]
            if not some:
                return
            vectors = encoder(texts).astype("<f2")
            with self._turn, self.store.writing():
                self.store.db.executemany(
                    "REPLACE INTO vectors SELECT id, ?, ? FROM documents WHERE id = ?",
                    ((encoder.digest, one.tobytes(), id) for one, (id, _) in zip(vectors, some, strict=True)),
                )
            done += len(some)
            progress("encode", done, of, f"{done:,} of {of:,} documents")

    # searching

    def search(self, query: str, filters: Filters | None = None, sort: Sort = "rank") -> Shown:
        """A new impression and its first page. Any text is a query; one without words finds nothing.

        The page answers 303 to /results/ID and shows `shown(ID)`, so that reload and back make no second impression.
        """
        filters = filters or Filters()
        query = " ".join(clean(query[:LONGEST_QUERY]).split())
        with self._turn:
            now, learning = self._clock(), self._learns
            self._settle(now, searching=True)
            self._catch_up()
            terms = self.features.query(query)
            found = self.engine.find(terms, filters, sort == "date")
            found, rows = still_there(self.store, found)
            raw = raw_features(self.store, self.features, self._encoder, terms, query, found, rows, now)
            one = self._listed(query, terms, filters, sort, found, raw, now, learning)
            if learning:
                with self.store.writing():
                    self.store.set(searches=one.number + 1)
                    one = replace(one, id=self.rows.add(one))
            else:
                one = replace(one, id=UNRECORDED + secrets.randbits(32))
                self._unrecorded[one.id] = one
                if len(self._unrecorded) > MOST_UNRECORDED:
                    self._unrecorded.popitem(last=False)
            return self._page(one, 1)

    def _settle(self, now: float, searching: bool) -> None:
        """Let every list reach the state that it is in by now, learn, and judge a model on trial."""
        self.rows.settle(now, searching, self._learns and self.trials.phase != "replay")
        self.trials.judge()

    @property
    def _learns(self) -> bool:
        return bool(self.store.setting("learn", 1))

    def _catch_up(self) -> None:
        """See what another process indexed meanwhile."""
        if (indexed := self.store.indexed) != self._followed:
            self.engine.reload()
            self._followed = indexed

    def _listed(
        self, query: str, terms: QueryTerms, filters: Filters, sort: Sort, found: Candidacy,
        raw: NDArray[np.float16], now: float, learning: bool,
    ) -> Recorded:  # fmt: skip
        """The list, drawn or in order."""
        order: Order = self.store.setting("order", "drawn")
        kind: ListKind = "pdgd"
        if filters or sort != "rank" or order != "drawn" or not learning:
            kind = "plain"
        elif self.rows.fast(now):
            kind = "fast"
        number = int(self.store.setting("searches", 0))
        model, master = self.rows.model()
        features, weights = self.rows.scaled(raw), master.astype(np.float32)
        teams, on_trial = None, self.trials.on_trial() if kind == "pdgd" else None
        if on_trial is not None and on_trial.phase == "draft":
            kind = "interleaved"
            scores = scores_of(weights, features)
            mixed = self.trials.mixed(on_trial, features, scores, number, PLACES)
            shown, teams = mixed.shown, mixed.team
        elif kind == "pdgd" and len(raw):
            scores, shown = draw(weights, features, LEARNER, stream_of(self.store.setting("chance"), number))
        else:
            scores = scores_of(weights, features)
            in_order = np.arange(len(raw)) if sort == "date" or order == "engine" else best_order(scores)
            shown = in_order[:PLACES]
        drawn = (LEARNER.temperature, LEARNER.keep) if kind == "pdgd" else (0.0, 0.0)
        return Recorded(
            0, now, number, query, terms_key(terms), json.dumps(asdict(filters)), sort, kind, "shown", model, *drawn,
            found.found, found.documents, scores, shown, raw, teams,
            None if on_trial is None or teams is None else on_trial.id,
        )  # fmt: skip

    def shown(self, impression: int, page: int = 1) -> Shown:
        """A page of an impression, the same whenever it is asked for.

        A page that nobody asked for before is drawn now from the rest of the candidates, with all pages before it.
        Coming back within five seconds of a click takes that click back (`bounced`).
        """
        with self._turn:
            one = self._get(impression)
            if not 1 <= page <= max(_pages(one), 1):
                raise NotFound(f"search {impression} has no page {page}")
            if len(one.shown) > (page - 1) * PLACES:
                self._take_back(one, page)
            elif page > 1:
                one = self._draw_until(one, page)
            return self._page(one, page)

    def _take_back(self, one: Recorded, page: int) -> None:
        clicks = [click for click in self._clicks(one) if not click.bounced and click.place // PLACES == page - 1]
        if clicks and 0 <= self._clock() - (last := max(clicks, key=lambda click: click.time)).time < BOUNCE:
            self.rows.bounce(one.id, last.place)

    def _draw_until(self, one: Recorded, page: int) -> Recorded:
        shown = one.shown
        for number in range(len(shown) // PLACES + 1, page + 1):
            if one.kind == "pdgd" and one.scores is not None:
                stream = stream_of(self.store.setting("chance"), one.number, number)
                shown = np.concatenate([shown, draw_more(one.scores, shown, LEARNER, stream)])
            else:
                by_score = one.scores is not None and one.sort == "rank" and not self._was_engine(one)
                order = (
                    best_order(one.scores) if by_score and one.scores is not None else np.arange(len(one.candidates))
                )
                rest = order[~np.isin(order, shown)]
                shown = np.concatenate([shown, rest[:PLACES]])
        one = replace(one, shown=shown)
        if one.id in self._unrecorded:
            self._unrecorded[one.id] = one
        else:
            with self.store.writing():
                self.store.db.execute(
                    "UPDATE impressions SET shown = ? WHERE id = ?", (shown.astype("u1").tobytes(), one.id)
                )
        return one

    @staticmethod
    def _was_engine(one: Recorded) -> bool:
        return bool(np.array_equal(one.shown, np.arange(len(one.shown))))

    def _get(self, impression: int) -> Recorded:
        found = self._unrecorded.get(impression)
        return self.rows.get(impression) if found is None else found

    def _clicks(self, one: Recorded) -> list[Any]:
        return [] if one.id in self._unrecorded else self.rows.clicks(one.id)

    def _page(self, one: Recorded, page: int) -> Shown:
        places = range((page - 1) * PLACES, min(page * PLACES, len(one.shown)))
        clicked = {click.place for click in self._clicks(one) if not click.bounced}
        results = self._results(one, places, clicked)
        teaches = one.kind == "pdgd" and one.state in ("shown", "opened")
        filters = Filters(**json.loads(one.filters))
        sort: Sort = "date" if one.sort == "date" else "rank"
        return Shown(
            one.id, one.query, filters, sort, page, _pages(one), one.found, len(one.candidates), results, one.state,
            teaches,
        )  # fmt: skip

    def _results(self, one: Recorded, places: Sequence[int], clicked: set[int]) -> tuple[Result, ...]:
        ids = one.candidates[one.shown[list(places)]].tolist()
        terms = self.features.query(one.query)
        facts = {
            row[0]: row[1:]
            for row in self.store.rows(
                f"SELECT id, kind, title, place, link, date, words FROM documents JOIN forward ON document = id "
                f"WHERE id IN ({marks(ids)})",
                *ids,
            )
        }
        results = []
        for place, id in zip(places, ids, strict=True):
            if id not in facts:
                results.append(Result(id, place, "file", "", "", "", 0, Snippet(""), place in clicked, True))
                continue
            kind, title, where, link, date, words = facts[id]
            snippet = snippet_of(self.store.text(id), ForwardRow.unpack(zlib.decompress(words)), terms, self.features)
            results.append(Result(id, place, kind, title, where, link, date, snippet, place in clicked))
        return tuple(results)

    def open_document(self, impression: int, place: int, click: bool = True) -> Document:
        """The document at a place (`Result.place`), and a click on it, once; with click = False none is recorded.

        Give click = False for HEAD and for a prefetch (`Sec-Purpose`).
        """
        with self._turn:
            one = self._get(impression)
            if not 0 <= place < len(one.shown):
                raise NotFound(f"search {impression} shows nothing at place {place}")
            id = int(one.candidates[one.shown[place]])
            try:
                document = self.document(id)
            except NotFound:
                raise Gone("this document was there, and has been removed since") from None
            if click and one.id not in self._unrecorded and self._learns:
                self.rows.click(one.id, place, id, self._clock())
            return document

    def document(self, document: int) -> Document:
        """A document by its id, without any click."""
        with self._turn:
            found = None
            if 0 < document < 1 << 62:
                found = self.store.one(
                    "SELECT kind, title, place, link, date, sender, roots.path, files.path FROM documents JOIN files "
                    "ON files.id = file JOIN roots ON roots.id = root WHERE documents.id = ?",
                    document,
                )
            if found is None:
                raise NotFound(f"no document {document}")
            kind, title, where, link, date, sender, root, path = found
            original = os.fsdecode(os.path.join(root, path) if path else root)
            return Document(document, kind, title, where, link, original, date, sender, self.store.text(document))

    def bounced(self, impression: int, place: int) -> None:
        """The person came back at once: this click is kept, and not learned from."""
        with self._turn:
            one = self._get(impression)
            if not 0 <= place < len(one.shown):
                raise NotFound(f"search {impression} shows nothing at place {place}")
            if one.id not in self._unrecorded:
                self.rows.bounce(one.id, place)

    def close_impression(self, impression: int) -> None:
        """The person is done with this list; what waits 30 minutes otherwise is learned from now."""
        with self._turn:
            if self._get(impression).id not in self._unrecorded:
                self.rows.close(impression, self._clock(), self._learns and self.trials.phase != "replay")
                self.trials.judge()

    def why(self, impression: int) -> tuple[Explained, ...]:
        """Why this order: every place of the list that was shown so far, from the top, by the model as it is now."""
        with self._turn:
            one = self._get(impression)
            if one.raw is None:
                raise Gone("this search is so old that what it was scored by is no longer kept")
            if not len(one.candidates):
                return ()
            _, weights = self.rows.model()
            features = self.rows.scaled(one.raw)
            shares = weights * (features - features.mean(axis=0, keepdims=True))
            scores = scores_of(weights.astype(np.float32), features)
            by_model = np.argsort(best_order(scores))
            results = self._results(one, range(len(one.shown)), {click.place for click in self._clicks(one)})
            explained = []
            for result, candidate in zip(results, one.shown.tolist(), strict=True):
                parts = shares[candidate]
                causes = tuple(
                    Cause(self.features.names[f], float(one.raw[candidate, f]), float(parts[f]))
                    for f in np.argsort(-np.abs(parts), kind="stable").tolist()
                )
                explained.append(
                    Explained(result, float(scores[candidate]), int(by_model[candidate]), candidate, causes)
                )
            return tuple(explained)

    # what there is

    def status(self) -> SearchStatus:
        """What there is, what was learned, and every byte that ever left."""
        with self._turn:
            self._settle(self._clock(), searching=False)
            encoder = self._encoder.digest if self._encoder else ""
            return status_of(self.folder, self.rows, self.trials, self.sent, self._learns, encoder)

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
        with self._turn:
            self._unrecorded.clear()
            if everything:
                gone = self._forget_everything()
            elif document is not None:
                self.document(document)  # or NotFound
                with self._indexing():
                    gone = forget_document(self.store, document)
                    self._follow()
            else:
                gone = forget_searches(self.store, self.features, query, since)
            self.store.sweep()
            sharing.record(self.rows, self.folder, anew=True)
            return gone

    def _forget_everything(self) -> ForgottenRows:
        store = self.store
        with self._indexing():
            counts = [store.count(f"SELECT count(*) FROM {table}") for table in ("documents", "impressions", "clicks")]
            kept, journals = store.seq, store.setting("journals", "{}")
            with store.writing():
                store.empty({"sent", "sqlite_sequence"})
                store.set(seq=kept, indexed=kept, journals=journals)
            self.engine.make_anew()
            self.engine.fresh = False
            self._encoder = None
            self._begin()
            self._followed = store.indexed
            store.db.execute("VACUUM")
        return ForgottenRows(*counts)

    # settings

    def learn_setting(self, setting: Literal["on", "off", "reset"]) -> None:
        """Off: no search and no click is recorded, lists come in the model's order. Reset: the model as at first."""
        if setting not in ("on", "off", "reset"):
            raise SearchError(f"learn {setting}: there is on, off and reset")
        with self._turn, self.store.writing():
            if setting == "reset":
                self.store.db.execute(
                    "UPDATE impressions SET state = 'discarded' WHERE state IN ('shown', 'opened', 'closed')"
                )
                self.rows.new_model(self._clock(), "the engine's order, after a reset", first_weights(self.features))
                if self.trials.phase:
                    self.trials.end("stopped")
            else:
                self.store.set(learn=int(setting == "on"))

    def try_model(self, weights: NDArray[np.float64], origin: str) -> None:
        """Put a new model on trial: it is used once recorded searches and the person's clicks have shown it better.

        `status().trial` says how it does. With learning off, or in a fixed order, a trial waits.
        """
        with self._turn:
            self.trials.begin(self._clock(), np.asarray(weights, np.float64), origin)

    def stop_trial(self) -> None:
        """The model in use stays."""
        with self._turn:
            self.trials.stop()

    @property
    def on_trial(self) -> bool:
        """Whether a model is on trial."""
        with self._turn:
            return bool(self.trials.phase)

    def knows_model(self, origin: str) -> bool:
        """Whether a model of this origin was here before."""
        with self._turn:
            return bool(self.store.count("SELECT count(*) FROM models WHERE origin = ?", origin))

    # what is shared, by whoever joined a federation

    @property
    def last_search(self) -> int:
        """The number of the last search that was recorded; none that comes later has it, whatever is forgotten."""
        with self._turn:
            found = self.store.one("SELECT seq FROM sqlite_sequence WHERE name = 'impressions'")
            return 0 if found is None else int(found[0])

    def record_for_sharing(self) -> None:
        """Let what the federation's site learns from be what is here: nothing, for somebody who did not join."""
        with self._turn:
            self._settle(self._clock(), searching=False)
            sharing.record(self.rows, self.folder)

    def note_sent(self, receiver: str, what: str, size: int) -> int:
        """Note what is about to leave this device, for ever; returns the number of the note."""
        with self._turn:
            return self.sent.note(receiver, what, size)

    def was_not_sent(self, noted: int) -> None:
        """Take back a note of what was refused before anything left."""
        with self._turn:
            self.sent.take_back(noted)

    def keeps_journal(self, site: Path, receiver: str) -> None:
        """Remember a folder whose site writes down what leaves from there."""
        with self._turn:
            self.sent.add_journal(site, receiver)

    def note_problem(self, problem: str) -> None:
        """What keeps this device from taking part in its federation, for the status; "": nothing."""
        with self._turn:
            self.sent.note_problem(problem)

    def order_setting(self, order: Order) -> None:
        """How results are ordered from now on; only "drawn" lists teach."""
        if order not in ("drawn", "fixed", "engine"):
            raise SearchError(f"order {order}: there is drawn, fixed and engine")
        with self._turn, self.store.writing():
            self.store.set(order=order)

    @property
    def roots(self) -> list[Path]:
        """Folders and files that are indexed."""
        with self._turn:
            return [root.path for root in roots_of(self.store)]

    @property
    def order(self) -> Order:
        """How results are ordered now."""
        with self._turn:
            return cast(Order, self.store.setting("order", "drawn"))

    def encoder_setting(self, path: str | os.PathLike[str] | None) -> None:
        """Use the encoder in this ONNX file for the features "latent", which are 0 without; None: no longer.

        `index` makes the vectors of documents.
        """
        encoder = None if path is None else Encoder(path)
        with self._turn, self.store.writing():
            self.store.set(encoder="" if encoder is None else str(encoder.path))
            if encoder is None:
                self.store.db.execute("DELETE FROM vectors")
            self._encoder = encoder

    def export_ubi(self, folder: str | os.PathLike[str]) -> UbiFiles:
        """Write all searches and clicks as User Behavior Insights 1.3: `ubi_queries.jsonl`, `ubi_events.jsonl`."""
        with self._turn:
            return ubi.export(self.rows, folder)


def _pages(one: Recorded) -> int:
    return -(-len(one.candidates) // PLACES)
