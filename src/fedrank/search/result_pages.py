"""Pages of a result list: documents with their snippets, and why they are in this order. Reading changes nothing."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import FeatureSet, ForwardRow
from fedrank.search.forgetting import listed_in
from fedrank.search.impressions import Clicked, ImpressionRows, Recorded, best_order, engine_first
from fedrank.search.memory import LIFT
from fedrank.search.queries import Parsed, parse
from fedrank.search.results import (
    PAGE_SIZE,
    Cause,
    Document,
    Explained,
    Filters,
    Gone,
    NotFound,
    Result,
    Shown,
    Snippet,
    Sort,
)
from fedrank.search.store import Store, marks

WORDS = 32  # maximum length of a snippet
CHARACTERS = 400  # maximum length of a snippet; a word may be arbitrarily long
MAX_TITLE = 200  # characters of a title
FARTHEST = 60_000  # characters of the text that are searched
_WORD = re.compile(r"\w+")
_CUT = "… "


class ResultPages:
    """Reads documents and result pages from a store."""

    def __init__(self, store: Store, features: FeatureSet) -> None:
        self.store, self.features = store, features

    def page(self, one: Recorded, page: int, clicks: Sequence[Clicked]) -> Shown:
        """A page of a list, with the clicks on it."""
        positions = range((page - 1) * PAGE_SIZE, min(page * PAGE_SIZE, len(one.shown)))
        results = self.results(one, positions, {click.position for click in clicks if not click.bounced})
        teaches = one.state in ("shown", "opened")
        filters = Filters(**json.loads(one.filters))
        sort: Sort = "date" if one.sort == "date" else "rank"
        parsed = parse(one.query)
        return Shown(
            one.id, one.query, filters, sort, page, count_pages(one), one.found, len(one.candidates), results,
            one.state, teaches, parsed.meaning, parsed.notes,
        )  # fmt: skip

    def results(self, one: Recorded, positions: Sequence[int], clicked: Collection[int]) -> tuple[Result, ...]:
        """The results at these positions; a document that was removed since the search is marked as gone."""
        ids = one.candidates[one.shown[list(positions)]].tolist()
        asked = Asked(parse(one.query), self.features)
        facts = {
            row[0]: row[1:]
            for row in self.store.rows(
                "SELECT id, kind, title, place, link, date, words, text FROM documents JOIN forward ON "
                f"forward.document = id JOIN texts ON texts.document = id WHERE id IN ({marks(ids)})",
                *ids,
            )
        }
        results = []
        for position, id in zip(positions, ids, strict=True):
            if id not in facts:
                results.append(Result(id, position, "file", "", "", "", 0, Snippet(""), position in clicked, True))
                continue
            kind, title, where, link, date, words, text = facts[id]
            row = ForwardRow.unpack(zlib.decompress(words))
            snippet = snippet_of(zlib.decompress(text).decode(), row, asked)
            heading = marked_title(title, asked)
            before = one.memory is not None and bool(one.memory[one.shown[position]] > 0)
            about = (id, position, kind, title, where, link, date, snippet, position in clicked)
            results.append(Result(*about, before=before, heading=heading))
        return tuple(results)

    def excerpts(self, documents: Sequence[int], parsed: Parsed, words: int, characters: int) -> list[dict[str, Any]]:
        """Title, location, date and an excerpt of documents, as plain values."""
        found, asked = [], Asked(parsed, self.features)
        for id in documents:
            title, where, date, blob = self.store.one(
                "SELECT title, place, date, words FROM documents JOIN forward ON document = id WHERE id = ?", id
            )
            row = ForwardRow.unpack(zlib.decompress(blob))
            text = snippet_of(self.store.text(id), row, asked, words, characters).text
            found.append({"title": title[:MAX_TITLE], "where": where, "date": date, "text": text})
        return found

    def listed(self, document: int) -> int:
        """The number of recorded searches that showed a document."""
        with self.store.turn:
            return len(listed_in(self.store, document))

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


class Asked:
    """The words of a query, to be found in texts."""

    def __init__(self, parsed: Parsed, features: FeatureSet) -> None:
        self.features, self._stems = features, {*features.query(parsed.words).stems.tolist()}
        exact = (one.value for one in parsed.required if one.field == "exact")
        self._phrases = [stems for stems in map(self._in_order, exact) if len(stems) > 1]
        beginnings = "|".join(re.escape(one.value) for one in parsed.required if one.field == "prefix")
        self._known: dict[str, bool] = {}  # words of texts
        self._beginning = re.compile(rf"(?<!\w)(?:{beginnings})\w*", re.IGNORECASE) if beginnings else None

    def _in_order(self, text: str) -> NDArray[np.int32]:
        return self.features.row("", text).words

    def is_in(self, word: str) -> bool:
        """Whether a word of a text is one of the query's."""
        if (known := self._known.get(word)) is None:
            begins = self._beginning is not None and bool(self._beginning.match(word))
            known = self._known[word] = begins or self.features.stem(word) in self._stems
        return known

    def places(self, body: NDArray[np.int32], text: str) -> NDArray[np.int64]:
        """The places of the query's words in a text; if there are exact words in their order, only those."""
        for stems in self._phrases:
            ends = len(body) - len(stems) + 1
            at = np.flatnonzero(np.all([body[n : n + max(ends, 0)] == stem for n, stem in enumerate(stems)], axis=0))
            if len(at):
                return (at[:, None] + np.arange(len(stems))).ravel()
        begun = self._beginning.findall(text, 0, FARTHEST) if self._beginning else []
        stems = np.array([*self._stems, *map(self.features.stem, dict.fromkeys(begun))], np.int32)
        return np.flatnonzero((body[:, None] == stems).any(axis=1))


def snippet_of(text: str, row: ForwardRow, asked: Asked, words: int = WORDS, most: int = CHARACTERS) -> Snippet:
    """The earliest excerpt with the most distinct query words, with these words marked; `most`: characters."""
    body = row.words[row.title :]
    where = asked.places(body, text)
    first = max(_best_start(where, body) - 3, 0) if len(where) else 0
    start, end, number = 0, 0, -1
    spans = []
    for number, word in enumerate(_WORD.finditer(text, 0, FARTHEST)):
        if number < first:
            continue
        if number == first:
            start = word.start()
        if number >= first + words or (number > first and word.end() - start > most):
            break
        end = word.end()
        spans.append(word.span())
    if number < first:  # the text was truncated, or its words are counted differently
        return Snippet(text[:200] + (_CUT[::-1] if len(text) > 200 else ""))
    end = min(end, start + most)
    before, behind = _CUT if first else "", _CUT[::-1] if _WORD.search(text, end) else ""
    shift = len(before) - start
    marked = tuple((a + shift, min(b, end) + shift) for a, b in spans if asked.is_in(text[a:b]))
    return Snippet(before + text[start:end].replace("\n", " ") + behind, marked)


def marked_title(title: str, asked: Asked) -> Snippet:
    """The beginning of a title, with the query's words marked."""
    return marked_words(title if len(title) <= MAX_TITLE else title[: MAX_TITLE - 1] + "…", asked)


def marked_words(text: str, asked: Asked) -> Snippet:
    spans = (word.span() for word in _WORD.finditer(text))
    return Snippet(text, tuple((a, b) for a, b in spans if asked.is_in(text[a:b])))


def _best_start(where: NDArray[np.int64], body: NDArray[np.int32]) -> int:
    """The first of these places at which the most different words begin an excerpt."""
    places, stems = where.tolist(), body[where].tolist()
    best, most, end = places[0], 0, 0
    inside: Counter[int] = Counter()
    for at, stem in zip(places[:200], stems, strict=False):
        while end < len(places) and places[end] < at + WORDS - 3:
            inside[stems[end]] += 1
            end += 1
        if len(inside) > most:
            best, most = at, len(inside)
        inside[stem] -= 1
        if not inside[stem]:
            del inside[stem]
    return int(best)


def explain(rows: ImpressionRows, one: Recorded, results: Sequence[Result]) -> tuple[Explained, ...]:
    """For every result, from the top: its score, its position by score, and the contributions of the features."""
    if one.raw is None:
        raise Gone("the scores of this search were deleted because it is old; search again")
    if not len(one.candidates):
        return ()
    weights = rows.weights()
    features = rows.scaled(one.raw)
    scores = rows.scores(weights, one.raw, one.memory)
    memory = np.zeros(len(scores)) if one.memory is None else one.memory
    plain = features @ weights
    first = engine_first(plain) - plain  # what the rule for the engine's best results adds
    rules = np.column_stack([first, memory])
    used = np.flatnonzero(weights)
    values = np.column_stack([one.raw[:, used], first > 0, memory / LIFT])
    parts = np.column_stack([weights[used] * features[:, used], rules])
    shares = parts - parts.mean(axis=0)
    names = (*(rows.features.names[feature] for feature in used.tolist()), "best of the engine", "opened before")
    by_model = np.argsort(best_order(scores))
    explained = []
    for result, candidate in zip(results, one.shown.tolist(), strict=True):
        of_one = shares[candidate]
        causes = tuple(
            Cause(names[f], float(values[candidate, f]), float(of_one[f]))
            for f in np.argsort(-np.abs(of_one), kind="stable").tolist()
        )
        explained.append(Explained(result, float(scores[candidate]), int(by_model[candidate]), candidate, causes))
    return tuple(explained)
