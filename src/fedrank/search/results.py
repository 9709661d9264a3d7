"""Result types of the search client. Texts in them are not escaped."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from fedrank.display import count_of

Kind = Literal["file", "mail", "page", "note"]  # page: a bookmark or a visited page; note: JSONL, an item of Zotero
Sort = Literal["rank", "date"]
Order = Literal["learned", "fixed", "engine"]  # with memory of clicks and mixed lists, never mixed, the search engine's
PAGE_SIZE = 10  # results


class SearchError(ValueError):
    """A problem that the user can solve, such as a folder that is not writable; the message is one line."""


class NotFound(LookupError):
    """The impression, position or document does not exist (HTTP 404)."""


class Gone(LookupError):
    """The document or data was removed after the list was shown (HTTP 410)."""


@dataclass(frozen=True)
class Filters:
    """Filters of a search, whose list is not mixed with that of an opponent."""

    kind: str | None = None  # a kind of documents, or a type as in queries (`queries.ENDINGS`)
    since: int | None = None  # seconds since 1970, inclusive
    before: int | None = None  # seconds since 1970, exclusive
    folder: str | None = None  # a path or the name of a folder
    sender: str | None = None  # words of a name or an address

    def __bool__(self) -> bool:
        return self != Filters()


@dataclass(frozen=True)
class Snippet:
    """An excerpt of a document's text; `marked` contains the [start, end) ranges to highlight."""

    text: str
    marked: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Result:
    """One result of a list."""

    id: int  # of the document
    position: int  # from 0, over all pages: page 2 begins at 10
    kind: Kind
    title: str
    where: str  # a path or an address, for display
    link: str  # http(s) address of a page, else empty; only this may become a link
    date: int  # seconds since 1970; 0: unknown
    snippet: Snippet
    clicked: bool  # in this impression
    gone: bool = False  # removed since the search; title, where and snippet are empty
    before: bool = False  # opened earlier for the same or similar words
    heading: Snippet = Snippet("")  # the title, if necessary shortened, with the query's words marked


@dataclass(frozen=True)
class Shown:
    """One page of a result list; requesting it again returns the same results."""

    impression: int
    query: str
    filters: Filters
    sort: Sort
    page: int  # from 1
    pages: int  # number of pages
    found: int  # number of matching documents
    candidates: int  # number of ranked documents
    results: tuple[Result, ...]
    state: str  # see `impressions.STATES`
    teaches: bool  # whether clicks in this list are remembered
    meaning: tuple[str, ...] = ()  # conditions of the query in words
    notes: tuple[str, ...] = ()  # what was not understood as a condition, and why
    suggestion: str = ""  # the query with other spellings of words that do not occur


@dataclass(frozen=True)
class Document:
    """A document as plain text."""

    id: int
    kind: Kind
    title: str
    where: str
    link: str  # as in `Result`
    original: str  # path of its file, only for opening it on the user's request; may be empty
    date: int
    sender: str  # of a mail, else empty
    text: str


@dataclass(frozen=True)
class Cause:
    """The contribution of one feature to a document's score."""

    feature: str
    value: float  # 0 .. 1
    share: float  # contribution to the score, minus the mean contribution over the candidates


@dataclass(frozen=True)
class Explained:
    """The explanation of a document's position."""

    result: Result
    score: float
    model_position: int  # from 0, among all candidates by score
    engine_position: int  # from 0, in the engine's order
    causes: tuple[Cause, ...]  # by descending absolute share


@dataclass(frozen=True)
class Indexed:
    """The outcome of `SearchClient.index`."""

    files: int  # found
    unchanged: int  # files not read again
    added: int  # documents
    changed: int
    removed: int
    documents: int  # in the store now
    skipped: dict[str, int]  # files or parts of files by reason, including earlier runs
    seconds: float
    empty: tuple[str, ...] = ()  # indexed folders without files
    missing: tuple[str, ...] = ()  # indexed folders that no longer exist; their documents stay
    moved: int = 0  # files found at another place; their documents are among the changed ones


@dataclass(frozen=True)
class SkippedFile:
    """A file that was skipped, at least in part."""

    path: str
    reason: str
    times: int  # number of its parts


@dataclass(frozen=True)
class Week:
    """Click statistics of one week."""

    begins: int  # seconds since 1970
    searches: int
    clicked: int  # searches with a click that did not bounce
    first: int  # searches with a click at the first position
    top_three: int  # searches with a click at the first three positions
    abandoned: int
    reciprocal: float  # mean reciprocal rank of the highest click; 0 without a click


@dataclass(frozen=True)
class SearchStatus:
    """The content of the status page and of `fedrank search status --json`."""

    folder: str
    documents: int
    kinds: dict[str, int]  # documents by kind
    skipped: dict[str, int]  # files and parts by reason
    roots: tuple[str, ...]  # indexed folders and files
    missing: tuple[str, ...]  # those that did not exist at the last update
    disk_bytes: int
    searches: int
    clicks: int  # without bounced clicks
    bounced: int  # clicks followed by a return within five seconds
    impressions: dict[str, int]  # by state
    kinds_of_lists: dict[str, int]  # plain, interleaved, fast
    learn: bool
    order: Order
    feature_set: str
    weeks: tuple[Week, ...]  # oldest first
    waiting: int = 0  # documents in the store that are not indexed yet
    notes: tuple[str, ...] = field(default=())  # notes for the user, such as that data is not encrypted

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=2)


@dataclass(frozen=True)
class ForgottenRows:
    """What `forget` deleted."""

    documents: int
    impressions: int
    clicks: int
    kept: tuple[str, ...] = ()  # queries of the searches that listed a deleted document and stay

    def __str__(self) -> str:
        searches, clicks = count_of(self.impressions, "search", "searches"), count_of(self.clicks, "click")
        return f"Deleted {searches}, {clicks} and {count_of(self.documents, 'document')}"


@dataclass(frozen=True)
class UbiFiles:
    """What `export_ubi` wrote."""

    queries: str  # paths
    events: str
    searches: int
    clicks: int
