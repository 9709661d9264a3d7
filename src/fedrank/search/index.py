"""The engine that finds candidates: a tantivy index of a store's documents. It can be rebuilt from the store.

Results are ranked by `words`, stems as 31-bit hashes in eight hexadecimal digits, so engine and features use the same
terms. The other fields are for conditions of queries: `plain` has the words as they are written, for exact words,
beginnings of words and spelling; `title` has stems, `kind` also the ending of the file's name, `folder` hashed names.
Document ids are signed integers because tantivy cannot delete by an unsigned field. One process updates the index,
others reload it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import FeatureSet, ForwardRow
from fedrank.extras import missing_extra
from fedrank.files import Locked, locked, private_folder
from fedrank.search.queries import NO_CONDITIONS, Condition, Parsed, endings_of, folders_of, parse, words_of
from fedrank.search.readers import name_in_words
from fedrank.search.results import Filters, SearchError
from fedrank.search.store import Store

FOLDER = "engine"
CANDIDATES = 100
COMMON = 50_000  # a term in more documents is ignored if the query has rarer terms
HEAP = 48 << 20  # bytes of the writer's buffer
BATCH = 2_000  # documents per commit
LONGEST_WORD = 40  # characters of a word in `plain`
MAX_TAGS = 200
SHORTEST_SIMILAR = 4  # letters of a word for which a similar one is suggested; twice as many may have two errors
MOST_RESPELLED = 8  # words of a query
RANKED_BEGINNINGS = 8  # most frequent words with the beginning in a query that count in the ranking
ON_WORDS = {"exact", "prefix", "title"}  # conditions on words of the text
_FIELDS = {  # the fields of text with what they store of a word in a document
    "words": "freq", "plain": "position", "title": "position", "kind": "basic", "folder": "position",
    "sender": "position", "tag": "basic",
}  # fmt: skip
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
            self._prepare()
            self._searcher.doc_freq("tag", "")  # raises ValueError for an index of an earlier version
        except (ValueError, OSError):
            self.make_anew()
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
        for field, option in _FIELDS.items():
            raw = field in ("kind", "tag")
            builder.add_text_field(field, tokenizer_name="raw" if raw else "whitespace", index_option=option)
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
            self.store.set(indexed=0, has_forgotten=0)
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
            "SELECT documents.id, seq, date, words, title, roots.path, files.path, kind, part, link, place, sender "
            "FROM documents JOIN forward ON document = documents.id JOIN files ON files.id = file "
            "JOIN roots ON roots.id = root WHERE seq > ? ORDER BY seq LIMIT ?",
            last,
            BATCH,
        )
        until = changed[-1][1] if len(changed) == BATCH else store.seq
        gone = store.rows("SELECT document FROM removed WHERE seq > ? AND seq <= ?", last, until)
        if self.documents:
            for document, *_ in [*gone, *changed]:
                writer.delete_documents_by_term("id", document)
        for document, _, date, words, title, root, path, *about in changed:
            one = self._tantivy.Document()
            one.add_integer("id", document)
            one.add_integer("date", date)
            path = os.fsdecode(os.path.join(root, path) if path else root)
            row = ForwardRow.unpack(zlib.decompress(words))
            for field, value in _fields_of(row, title, store.text(document), (path, *about), self.features):
                one.add_text(field, value)
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
        self,
        terms: Mapping[int, int],
        filters: Filters,
        by_date: bool,
        among: Sequence[int] | None = None,
        parsed: Parsed = NO_CONDITIONS,
    ) -> Candidacy:
        """The best candidates for the stems of a query with their weights, or the newest if `by_date`.

        Candidates meet the conditions of the query (`parsed`); with `among`, only these documents are candidates. If
        the conditions include words of the text, the other words of the query need not occur.
        """
        query, occur = self._tantivy.Query, self._tantivy.Occur
        ranked = self._ranked_by(terms) + [
            (self._word("words", term(stem)), 1)
            for one in parsed.required
            if one.field == "prefix"
            for stem in self._stems_beginning(one.value) - terms.keys()
        ]
        limits = [self._condition(one) for one in (*parsed.required, *conditions_of(filters))]
        if among is not None:
            limits.append(query.term_set_query(self._index.schema, "id", list(among)))
        on_words = any(one.field in ON_WORDS for one in parsed.required)
        if not on_words and not ranked and (terms or not (limits or parsed.excluded)):
            return Candidacy(np.empty(0, np.int64), np.empty(0), 0)
        wanted = [(occur.Must, query.const_score_query(limit, 0.0)) for limit in limits or [query.all_query()]]
        wanted += [(occur.MustNot, self._condition(one)) for one in parsed.excluded]
        if ranked:
            each = [(occur.Should, part if n == 1 else query.boost_query(part, float(n))) for part, n in ranked]
            wanted.append((occur.Should if on_words else occur.Must, query.boolean_query(each)))
        by_date = by_date or not ranked
        result = self._searcher.search(
            query.boolean_query(wanted), CANDIDATES, count=True, order_by_field="date" if by_date else None
        )
        if not result.hits:
            return Candidacy(np.empty(0, np.int64), np.empty(0), 0)
        documents = self._searcher.fast_field_values("id", [address for _, address in result.hits])
        scores = [1.0 if by_date else score for score, _ in result.hits]
        return Candidacy(np.array(documents, np.int64), np.array(scores), int(result.count))

    def _ranked_by(self, terms: Mapping[int, int]) -> list[tuple[Any, int]]:
        """Queries for the terms that occur, with their weights, without common ones if there are others."""
        words = [(self._searcher.doc_freq("words", term(stem)), stem) for stem in terms]
        words = [(having, stem) for having, stem in words if having]
        kept = [stem for having, stem in words if having <= COMMON] or [stem for _, stem in sorted(words)[:1]]
        return [(self._word("words", term(stem)), terms[stem]) for stem in kept]

    def _stems_beginning(self, prefix: str) -> set[int]:
        """The stems of the most frequent words with this beginning."""
        found = self._searcher.terms_with_prefix("plain", _plain(prefix), limit=RANKED_BEGINNINGS)
        return {int(stem) for word, _ in found for stem in self.features.query(word).stems}

    def _word(self, field: str, *words: str) -> Any:
        """A query for words of a field that follow each other."""
        query, schema = self._tantivy.Query, self._index.schema
        if len(words) > 1:
            return query.phrase_query(schema, field, list(words))
        return query.term_query(schema, field, words[0], _FIELDS[field]) if words else query.empty_query()

    def _condition(self, one: Condition) -> Any:
        """The query for the documents that meet a condition."""
        query, value = self._tantivy.Query, one.value
        match one.field:
            case "exact":
                return self._word("plain", *_plain(value).split())
            case "prefix":
                return query.regex_query(self._index.schema, "plain", f"{_plain(value)}.*")
            case "title":
                return self._word("title", *_as_terms(self.features.row("", value).words).split())
            case "type":
                kinds = [(self._tantivy.Occur.Should, self._word("kind", kind)) for kind in endings_of(value)]
                return query.boolean_query(kinds)
            case "in":
                return self._word("folder", *map(_folder, folders_of(value)))
            case "from":
                return self._word("sender", *_plain(value).split())
            case "tag":
                return self._word("tag", value)
            case "after" | "before":
                after = one.field == "after"
                return query.range_query(
                    self._index.schema, "date", self._tantivy.FieldType.Integer, int(value) if after else None,
                    None if after else int(value), include_upper=after,
                )  # fmt: skip

    def respelled(self, text: str) -> str:
        """The query with similar words in place of those that do not occur; "" if there are none."""
        unknown = [
            word
            for word in dict.fromkeys(_plain(parse(text).words).split())
            if len(word) >= SHORTEST_SIMILAR and word.isalpha()
            for stem in self.features.query(word).stems.tolist()
            if not self._searcher.doc_freq("words", term(stem)) and not self._searcher.doc_freq("plain", word)
        ]
        found = text
        for word in unknown[:MOST_RESPELLED]:
            if (similar := self._similar(word)) is not None:
                found = re.sub(rf"(?<!\w){word}(?!\w)", similar, found, flags=re.IGNORECASE)
        return found if found != text else ""

    def _similar(self, word: str) -> str | None:
        """The most frequent word that differs least from a word."""
        query, schema = self._tantivy.Query, self._index.schema
        for distance in (1, 2) if len(word) >= 2 * SHORTEST_SIMILAR - 1 else (1,):
            like = query.fuzzy_term_query(schema, "plain", word, distance)
            for first in dict.fromkeys(word[:2]):  # most errors are not in the first letter
                for other, _ in self._searcher.terms_with_prefix("plain", first, like):
                    if abs(len(other) - len(word)) <= distance >= edits(word, other):
                        return str(other)
        return None


def conditions_of(filters: Filters) -> list[Condition]:
    """The filters of the search form as conditions."""
    given: dict[str, str | int | None] = {"type": filters.kind, "in": filters.folder, "from": filters.sender}
    given |= {"after": filters.since, "before": filters.before}
    return [Condition(field, str(value)) for field, value in given.items() if value is not None]  # type: ignore[arg-type]


def edits(a: str, b: str) -> int:
    """The number of letters to insert, delete, replace or swap with a neighbour, to get from `a` to `b`.

    >>> edits("recieve", "receive"), edits("roof", "rooft"), edits("cat", "dog")
    (1, 1, 3)
    """
    rows = [list(range(len(b) + 1))]
    for i, letter in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != other)))
            if i > 1 < j and a[i - 2 : i] == b[j - 2 : j][::-1]:
                row[-1] = min(row[-1], rows[-2][j - 2] + 1)
        rows.append(row)
    return rows[-1][-1]


def term(stem: int) -> str:
    """A stem's hash as a term of the index.

    >>> term(255)
    '000000ff'
    """
    return f"{stem:08x}"


def _fields_of(
    row: ForwardRow, title: str, text: str, about: Sequence[str], features: FeatureSet
) -> Iterator[tuple[str, str]]:
    """The fields of a document with their values; `about`: path of its file, kind, part, link, ...."""
    path, kind, part, link, place, sender = about
    folder, name = os.path.split(path)
    ending = os.path.splitext(name)[1].lower()
    yield "words", _terms_of(row, text, features)
    names = "" if part else f"{_plain(name)} . {_plain(name_in_words(name))}"
    yield "plain", f"{_plain(title)} . {names} . {_plain(text)}"  # no phrase crosses a dot
    yield "title", _as_terms(row.words[: row.title])
    yield "kind", kind
    yield "kind", ending
    yield "folder", " ".join(map(_folder, folders_of(folder)))
    if host := urlsplit(link).hostname:
        yield "folder", _folder(host)
    yield "sender", _plain(f"{sender} {place.rpartition(' · ')[0]}")
    for tag in tags_of(text, ending in (".md", ".markdown")):
        yield "tag", tag


def _terms_of(row: ForwardRow, text: str, features: FeatureSet) -> str:
    """All terms of a document, including words beyond the length of its forward row."""
    pieces = [_as_terms(row.words)]
    if row.length > len(row.words):
        pieces += map(_as_terms, features.stems_behind(row.title, text))
    return " ".join(pieces)


def _as_terms(words: NDArray[np.int32]) -> str:
    return words.astype(">u4").tobytes().hex(" ", 4)


def _plain(text: str) -> str:
    """The words of a text as they are written, without regard to case."""
    return " ".join([word[:LONGEST_WORD] for word in words_of(text)])


def _folder(name: str) -> str:
    return term(zlib.crc32(name.encode("utf-8", "surrogatepass")))


_TAGS_LINE = re.compile(
    r"^(?:tags|keywords):[ \t]*(.{0,2000}(?:\n[ \t]*-[ \t].{0,100}){0,100})", re.MULTILINE | re.IGNORECASE
)
_TAG = re.compile(r"(?<!\S)#([^\W\d][\w/-]{0,99})")


def tags_of(text: str, marked: bool) -> list[str]:
    """The tags of a document: of lines that begin with `tags:`, and, if `marked`, words such as #garden.

    >>> tags_of("tags: [Garden, to do]\\n#roof is wet", True)
    ['garden', 'to do', 'roof']
    """
    names = [name for line in _TAGS_LINE.findall(text) for name in re.split(r"[,;]|\n[ \t]*-[ \t]", line)]
    names += _TAG.findall(text) if marked else []
    names = [name.strip(" \t\n[]\"'#-").lower() for name in names[:MAX_TAGS]]
    return [*dict.fromkeys(filter(None, names))]
