"""The engine that finds candidates: a tantivy index over the stems of forward rows. It can be rebuilt from the store.

A term is a stem's 31-bit hash in eight hexadecimal digits, so engine and features use the same terms. Document ids are
signed integers because tantivy cannot delete by an unsigned field. One process updates the index, others reload it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import FeatureSet, ForwardRows
from fedrank.extras import missing_extra
from fedrank.files import Locked, locked, private_folder
from fedrank.search.results import Filters, SearchError
from fedrank.search.store import Store

FOLDER = "engine"
CANDIDATES = 100
COMMON = 50_000  # a term in more documents is ignored if the query has rarer terms
HEAP = 48 << 20  # bytes of the writer's buffer
BATCH = 2_000  # documents per commit
_DAMAGED = ("FileAlreadyExists", "FileDoesNotExist", "DataCorruption", "corrupt")


class Candidacy(NamedTuple):
    """The candidates that the engine found, best first."""

    documents: NDArray[np.int64]
    scores: NDArray[np.float64]
    found: int  # how many match


class Engine:
    """The index of a store; it is rebuilt if it is missing, damaged or from another version."""

    def __init__(self, store: Store, features: FeatureSet) -> None:
        try:
            import tantivy
        except ImportError:
            raise missing_extra("search requires the package tantivy", "search") from None
        self._tantivy: Any = tantivy
        self.store, self.features, self.folder = store, features, store.folder / FOLDER
        private_folder(self.folder)
        self.fresh = False
        try:
            if not (tantivy.Index.exists(str(self.folder)) and tantivy.Index.is_compatible(str(self.folder))):
                raise ValueError("no readable index")
            self._index: Any = tantivy.Index.open(str(self.folder))
        except (ValueError, OSError):
            self.make_anew()
        self._prepare()
        with contextlib.suppress(Locked), self.updating():  # if locked, the other process updates the index
            self.follow()
        self._followed = store.indexed  # last change of the store in the index as loaded by this process

    def updating(self) -> contextlib.AbstractContextManager[None]:
        """Lock the index for updates; raises `files.Locked` if another process holds the lock."""
        return locked(self.store.folder / "index.lock", f"the index in {self.store.folder}")

    def make_anew(self) -> None:
        """Replace the index by an empty one; the caller then adds all documents."""
        shutil.rmtree(self.folder, ignore_errors=True)
        private_folder(self.folder)
        builder = self._tantivy.SchemaBuilder()
        builder.add_integer_field("id", stored=False, indexed=True, fast=True)
        builder.add_integer_field("date", stored=False, indexed=True, fast=True)
        builder.add_text_field("kind", stored=False, tokenizer_name="raw", index_option="basic")
        builder.add_text_field("words", stored=False, tokenizer_name="whitespace", index_option="freq")
        try:
            self._index = self._tantivy.Index(builder.build(), path=str(self.folder))
        except (ValueError, OSError) as problem:
            raise SearchError(f"cannot create an index in {self.folder}: {problem}") from None
        self.fresh = True
        self._prepare()

    def _prepare(self) -> None:
        split = self._tantivy.TextAnalyzerBuilder(self._tantivy.Tokenizer.whitespace()).build()
        self._index.register_tokenizer("whitespace", split)
        self._index.config_reader("Manual", 0)
        self._reload()

    def _reload(self) -> None:
        """Make the latest commits visible."""
        self._index.reload()
        self._searcher: Any = self._index.searcher()

    @property
    def documents(self) -> int:
        return int(self._searcher.num_docs)

    def follow(self) -> None:
        """Apply all changes of the store; the index is rebuilt if the numbers of documents still differ."""
        with self.store.turn:
            self._follow()
            if self.documents != self.store.count("SELECT count(*) FROM documents"):
                self.make_anew()
                self._follow()
            self._followed = self.store.indexed

    def follow_if_behind(self, changes: int) -> None:
        """Update the index if it is at least this many changes behind the store."""
        with self.store.turn:
            if self.store.seq - self.store.indexed >= changes:
                self.follow()

    def catch_up(self) -> None:
        """Load what another process has indexed."""
        if (indexed := self.store.indexed) != self._followed:
            self._reload()
            self._followed = indexed

    def begin_anew(self) -> None:
        """Replace the index by an empty one, for a store without documents."""
        self.make_anew()
        self.fresh = False
        self._followed = self.store.indexed

    def _follow(self) -> None:
        """Apply the store's changes to the index; a damaged index is rebuilt."""
        if self.fresh:
            self._forget_what_is_done()
        try:
            return self._commit_changes()
        except (ValueError, OSError) as problem:
            if isinstance(problem, SearchError):
                raise
            if not any(sign in str(problem) for sign in _DAMAGED):  # for example a full disk
                raise SearchError(
                    f"cannot write the index in {self.folder}: {problem}; no data was lost; free disk space and try "
                    "again"
                ) from None
        self.make_anew()
        self._forget_what_is_done()
        return self._commit_changes()

    def _forget_what_is_done(self) -> None:
        with self.store.writing():
            self.store.set(indexed=0)
        self.fresh = False

    def _commit_changes(self) -> None:
        """Record progress after each commit; applying a change twice has no effect, so a crash is harmless."""
        if self.store.indexed >= self.store.seq:
            return
        try:
            writer = self._index.writer(HEAP, 1)
            writer.garbage_collect_files()  # a crash may have left files whose names will be reused
            while (last := self.store.indexed) < self.store.seq:
                self._commit_some(writer, last)
            writer.wait_merging_threads()
        finally:
            self._reload()

    def _commit_some(self, writer: Any, last: int) -> None:
        store = self.store
        changed = store.rows(
            "SELECT id, seq, kind, date, words FROM documents JOIN forward ON document = id WHERE seq > ? "
            "ORDER BY seq LIMIT ?",
            last,
            BATCH,
        )
        until = changed[-1][1] if len(changed) == BATCH else store.seq
        gone = store.rows("SELECT document FROM removed WHERE seq > ? AND seq <= ?", last, until)
        if self.documents:
            for document, *_ in [*gone, *changed]:
                writer.delete_documents_by_term("id", document)
        rows = ForwardRows.of([zlib.decompress(words) for *_, words in changed])
        for number, (document, _, kind, date, _) in enumerate(changed):
            one = self._tantivy.Document()
            one.add_integer("id", document)
            one.add_integer("date", date)
            one.add_text("kind", kind)
            one.add_text("words", terms_of(rows, number, partial(store.text, document), self.features))
            writer.add_document(one)
        writer.commit()
        for name in os.listdir(self.folder):
            with contextlib.suppress(OSError):
                os.chmod(self.folder / name, 0o600)
        with store.writing():
            store.set(indexed=until)
            store.db.execute("DELETE FROM removed WHERE seq <= ?", (until,))
        self._reload()

    def candidates_for(
        self, terms: Mapping[int, int], filters: Filters, by_date: bool, among: Sequence[int] | None = None
    ) -> Candidacy:
        """The best candidates for the stems of a query with their weights, or the newest if `by_date`.

        With `among`, only these documents are candidates.
        """
        query = self._tantivy.Query
        schema, occur = self._index.schema, self._tantivy.Occur
        words = [(stem, self._searcher.doc_freq("words", term(stem))) for stem in terms]
        words = [(stem, having) for stem, having in words if having]
        if not words:
            return Candidacy(np.empty(0, np.int64), np.empty(0), 0)
        rare = [stem for stem, having in words if having <= COMMON] or [min(words, key=lambda pair: pair[1])[0]]
        parts = [(query.term_query(schema, "words", term(stem), "freq"), terms[stem]) for stem in rare]
        wanted = query.boolean_query(
            [(occur.Should, part if often == 1 else query.boost_query(part, float(often))) for part, often in parts]
        )
        limits = [] if among is None else [query.term_set_query(schema, "id", list(among))]
        if filters.kind is not None:
            limits.append(query.term_query(schema, "kind", filters.kind, "basic"))
        if filters.since is not None or filters.before is not None:
            limits.append(
                query.range_query(
                    schema, "date", self._tantivy.FieldType.Integer, filters.since, filters.before,
                    include_upper=filters.before is None,
                )
            )  # fmt: skip
        if limits:
            limited = [(occur.Must, query.const_score_query(limit, 0.0)) for limit in limits]
            wanted = query.boolean_query([(occur.Must, wanted), *limited])
        result = self._searcher.search(wanted, CANDIDATES, count=True, order_by_field="date" if by_date else None)
        if not result.hits:
            return Candidacy(np.empty(0, np.int64), np.empty(0), 0)
        documents = self._searcher.fast_field_values("id", [address for _, address in result.hits])
        scores = [1.0 if by_date else score for score, _ in result.hits]
        return Candidacy(np.array(documents, np.int64), np.array(scores), int(result.count))


def term(stem: int) -> str:
    """A stem's hash as a term of the index.

    >>> term(255)
    '000000ff'
    """
    return f"{stem:08x}"


def terms_of(rows: ForwardRows, number: int, text: Callable[[], str], features: FeatureSet) -> str:
    """All terms of a document, including words beyond the length of its forward row."""
    words = rows.words[rows.offsets[number] : rows.offsets[number + 1]]
    pieces = [_as_terms(words)]
    if rows.lengths[number] > len(words):
        pieces += map(_as_terms, features.stems_behind(int(rows.titles[number]), text()))
    return " ".join(pieces)


def _as_terms(words: NDArray[np.int32]) -> str:
    return words.astype(">u4").tobytes().hex(" ", 4)
