"""The search client: one object that a page and the command call. It never prints, and no byte leaves through it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, Self

from fedrank.progress import Progress, quiet
from fedrank.search.answers import (
    Document,
    Explained,
    Filters,
    ForgottenRows,
    Indexed,
    Order,
    SearchStatus,
    Shown,
    Sort,
    UbiFiles,
)


class SearchClient:
    """One person's documents, searches and clicks, in one private folder.

    All methods may be called from several threads; each takes its turn. Whatever was answered is on the disk. Problems
    that one line can tell are `SearchError`s; `NotFound` is for 404, `Gone` for 410.
    """

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], *, serve: bool = False, clock: Callable[[], float] = time.time
    ) -> Self:
        """Open a folder, made if need be (0700). With `serve` nobody else may serve it: `files.Locked` says who does.

        What a crash left undone is done first. A context manager: `with SearchClient.open(folder) as client`.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError

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
        raise NotImplementedError

    def search(self, query: str, filters: Filters | None = None, sort: Sort = "rank") -> Shown:
        """A new impression and its first page. Any text is a query; one without words finds nothing.

        The page answers 303 to /results/ID and shows `shown(ID)`, so that reload and back make no second impression.
        """
        raise NotImplementedError

    def shown(self, impression: int, page: int = 1) -> Shown:
        """A page of an impression, the same whenever it is asked for.

        A page that nobody asked for before is drawn now from the rest of the candidates, with all pages before it.
        Coming back within five seconds of a click takes that click back (`bounced`).
        """
        raise NotImplementedError

    def open_document(self, impression: int, place: int, click: bool = True) -> Document:
        """The document at a place (`Result.place`), and a click on it, once; with click = False none is recorded.

        Give click = False for HEAD and for a prefetch (`Sec-Purpose`).
        """
        raise NotImplementedError

    def document(self, document: int) -> Document:
        """A document by its id, without any click."""
        raise NotImplementedError

    def bounced(self, impression: int, place: int) -> None:
        """The person came back at once: this click is kept, and not learned from."""
        raise NotImplementedError

    def close_impression(self, impression: int) -> None:
        """The person is done with this list; what waits 30 minutes otherwise is learned from now."""
        raise NotImplementedError

    def why(self, impression: int) -> tuple[Explained, ...]:
        """Why this order: every place of the list that was shown so far, from the top."""
        raise NotImplementedError

    def status(self) -> SearchStatus:
        """What there is, what was learned, and every byte that ever left."""
        raise NotImplementedError

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

        What the model learned from them stays in its weights, except with `everything`; `learn_setting("reset")`
        removes it.
        """
        raise NotImplementedError

    def learn_setting(self, setting: Literal["on", "off", "reset"]) -> None:
        """Off: no search and no click is recorded, lists come in the model's order. Reset: the model as at first."""
        raise NotImplementedError

    def order_setting(self, order: Order) -> None:
        """How results are ordered from now on; only "drawn" lists teach."""
        raise NotImplementedError

    def encoder_setting(self, path: str | os.PathLike[str] | None) -> None:
        """Use the encoder in this ONNX file for one more feature, which is 0 without; None: no longer."""
        raise NotImplementedError

    def export_ubi(self, folder: str | os.PathLike[str]) -> UbiFiles:
        """Write all searches and clicks as User Behavior Insights 1.3: `ubi_queries.jsonl`, `ubi_events.jsonl`."""
        raise NotImplementedError
