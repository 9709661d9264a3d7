"""Pages of a result list: documents with their snippets. Reading a page changes nothing."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Collection, Sequence

from fedrank.data.live_features import FeatureSet, ForwardRow
from fedrank.search.impressions import Clicked, Recorded
from fedrank.search.results import PAGE_SIZE, Document, Filters, NotFound, Result, Shown, Snippet, Sort
from fedrank.search.snippets import marked_title, snippet_of
from fedrank.search.store import Store, marks


class ResultPages:
    """Reads documents and result pages from a store."""

    def __init__(self, store: Store, features: FeatureSet) -> None:
        self.store, self.features = store, features

    def page(self, one: Recorded, page: int, clicks: Sequence[Clicked]) -> Shown:
        """A page of a list, with the clicks on it."""
        positions = range((page - 1) * PAGE_SIZE, min(page * PAGE_SIZE, len(one.shown)))
        results = self.results(one, positions, {click.position for click in clicks if not click.bounced})
        teaches = one.kind == "pdgd" and one.state in ("shown", "opened")
        filters = Filters(**json.loads(one.filters))
        sort: Sort = "date" if one.sort == "date" else "rank"
        return Shown(
            one.id, one.query, filters, sort, page, count_pages(one), one.found, len(one.candidates), results,
            one.state, teaches,
        )  # fmt: skip

    def results(self, one: Recorded, positions: Sequence[int], clicked: Collection[int]) -> tuple[Result, ...]:
        """The results at these positions; a document that was removed since the search is marked as gone."""
        ids = one.candidates[one.shown[list(positions)]].tolist()
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
        for position, id in zip(positions, ids, strict=True):
            if id not in facts:
                results.append(Result(id, position, "file", "", "", "", 0, Snippet(""), position in clicked, True))
                continue
            kind, title, where, link, date, words = facts[id]
            snippet = snippet_of(self.store.text(id), ForwardRow.unpack(zlib.decompress(words)), terms, self.features)
            heading = marked_title(title, terms, self.features)
            results.append(
                Result(id, position, kind, title, where, link, date, snippet, position in clicked, heading=heading)
            )
        return tuple(results)

    def document(self, document: int) -> Document:
        """A document by its id; no click is recorded."""
        with self.store.turn:
            found = None
            if 0 < document < 1 << 62:
                found = self.store.one(
                    "SELECT kind, title, place, link, date, sender, roots.path, files.path, part FROM documents "
                    "JOIN files ON files.id = file JOIN roots ON roots.id = root WHERE documents.id = ?",
                    document,
                )
            if found is None:
                raise NotFound(f"no document {document}")
            kind, title, where, link, date, sender, root, path, part = found
            # A program would show the whole mailbox or list, so a part of a file has no original to open.
            original = "" if part else os.fsdecode(os.path.join(root, path) if path else root)
            return Document(document, kind, title, where, link, original, date, sender, self.store.text(document))


def count_pages(one: Recorded) -> int:
    """The number of pages of a list, including pages that were not requested yet."""
    return -(-len(one.candidates) // PAGE_SIZE)
