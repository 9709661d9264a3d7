"""What the search client answers: plain records that a page or a command shows. Texts in them are never escaped."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["file", "mail", "page", "note"]  # a file, a mail, a bookmark, a line of JSONL
Sort = Literal["rank", "date"]
Order = Literal["drawn", "fixed", "engine"]  # of results: with a little chance, the model's own, the engine's
PAGE_SIZE = 10  # results


class SearchError(ValueError):
    """Something that one line tells the person in front of the page, such as a folder that cannot be written to."""


class NotFound(LookupError):
    """No such impression, place or document: 404."""


class Gone(LookupError):
    """Something that was there when the list was shown, and has been removed since: 410."""


@dataclass(frozen=True)
class Filters:
    """What a search is limited to; with any of these it teaches nothing."""

    kind: Kind | None = None
    since: int | None = None  # seconds since 1970, inclusive
    before: int | None = None  # seconds since 1970, exclusive

    def __bool__(self) -> bool:
        return self != Filters()


@dataclass(frozen=True)
class Snippet:
    """A piece of a document's text; `marked` [start, end) are the characters to highlight."""

    text: str
    marked: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Result:
    """One place of a list."""

    id: int  # of the document
    position: int  # from 0, over all pages: page 2 begins at 10
    kind: Kind
    title: str
    where: str  # a path or an address, to be shown
    link: str  # http(s) address of a bookmark, else empty: nothing else may become a link
    date: int  # seconds since 1970; 0: not known
    snippet: Snippet
    clicked: bool  # in this impression
    gone: bool = False  # removed since; title, where and snippet are empty


@dataclass(frozen=True)
class Shown:
    """One page of a list, as it was drawn: asking for it again gives the same."""

    impression: int
    query: str
    filters: Filters
    sort: Sort
    page: int  # from 1
    pages: int  # how many there are to draw
    found: int  # documents that match
    candidates: int  # of those, how many were ranked
    results: tuple[Result, ...]
    state: str  # see `impressions.STATES`
    teaches: bool  # whether clicks in this list are learned from


@dataclass(frozen=True)
class Document:
    """A document, to be shown as text."""

    id: int
    kind: Kind
    title: str
    where: str
    link: str  # as in `Result`
    original: str  # path of the file that it stands in; only for an explicit "open with the system"; may be empty
    date: int
    sender: str  # of a mail, else empty
    text: str


@dataclass(frozen=True)
class Cause:
    """One feature's part in a document's score."""

    feature: str
    value: float  # 0 .. 1, as it is defined
    share: float  # what it adds to the score, less what it adds on average over the candidates


@dataclass(frozen=True)
class Explained:
    """Why a document stands where it does."""

    result: Result
    score: float
    model_position: int  # from 0, in the model's own order of all candidates
    engine_position: int  # from 0, in the engine's order
    causes: tuple[Cause, ...]  # largest share first, by its size


@dataclass(frozen=True)
class Indexed:
    """What became of the files and documents that `index` looked at."""

    files: int  # looked at
    unchanged: int  # files not read again
    added: int  # documents
    changed: int
    removed: int
    documents: int  # in the store now
    skipped: dict[str, int]  # files or parts of files by reason, with those of earlier times that still stand
    seconds: float

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=2)


@dataclass(frozen=True)
class Week:
    """What clicks say of the lists of one week, without any grades."""

    begins: int  # seconds since 1970
    searches: int
    clicked: int  # searches with a click that was not taken back
    first: int  # searches whose first place was clicked
    top_three: int
    abandoned: int
    reciprocal: float  # mean of 1 / place of the first click, from 1; 0 without a click


@dataclass(frozen=True)
class Weight:
    """What was learned about one feature."""

    feature: str
    start: float
    now: float


@dataclass(frozen=True)
class SentBytes:
    """Something that left this device."""

    time: int
    to: str
    what: str
    bytes: int


@dataclass(frozen=True)
class TrialNews:
    """How a new model does that is on trial, or how the last trial ended."""

    origin: str
    state: str  # replay, draft, adopted, refused by a replay, refused by clicks, stopped
    kept: int  # searches kept from learning so far, for the replay
    wins: int  # mixed lists that the new model won
    losses: int


@dataclass(frozen=True)
class SearchStatus:
    """Everything that the status page and `status --json` show."""

    folder: str
    documents: int
    kinds: dict[str, int]  # documents by kind
    skipped: dict[str, int]  # files and parts by reason
    roots: tuple[str, ...]  # what is indexed
    disk_bytes: int
    searches: int
    clicks: int  # without those taken back
    bounced: int  # clicks taken back within five seconds
    impressions: dict[str, int]  # by state
    kinds_of_lists: dict[str, int]  # pdgd, interleaved, plain, fast
    learn: bool
    order: Order
    learned_from: int  # impressions that taught the model in use
    model: str  # which one is in use, in words
    feature_set: str
    weights: tuple[Weight, ...]
    weeks: tuple[Week, ...]  # oldest first
    replay: dict[str, float]  # mean 1 / log2(place + 1) of what was clicked: shown, engine, model; empty without clicks
    interleaved: dict[str, float]  # wins, losses, ties of a model on trial, share of wins with its interval; or empty
    sent: tuple[SentBytes, ...]  # every one that ever left
    sent_bytes: int
    encoder: str  # digest of the encoder in use, or empty
    waiting: int = 0  # documents in the store that the index does not have yet
    trial: TrialNews | None = None  # of a new model, the latest
    notes: tuple[str, ...] = field(default=())  # sentences for the person, such as that nothing is encrypted at rest

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)


@dataclass(frozen=True)
class ForgottenRows:
    """What `forget` deleted."""

    documents: int
    impressions: int
    clicks: int

    def __str__(self) -> str:
        return f"{self.impressions:,} searches, {self.clicks:,} clicks and {self.documents:,} documents were deleted"


@dataclass(frozen=True)
class UbiFiles:
    """What `export_ubi` wrote."""

    queries: str  # paths
    events: str
    searches: int
    clicks: int
