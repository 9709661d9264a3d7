"""Generate a synthetic production log in the format of User Behavior Insights, with the faults of real logs.

Users, queries, times and wanted documents are those of `synthetic_log`. An engine ranks by words, with errors; users
examine positions from the top, some open further pages, and they click the wanted document or one near the top. A
robot searches, a client forges clicks, queries contain e-mail addresses, and events lack their query.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedrank import kernels
from fedrank.data.documents import Documents, read_documents
from fedrank.data.synthetic_log import CORPUS, log_lines, write_new
from fedrank.seeds import rng_for

QUERIES, EVENTS = "ubi_queries.ndjson", "ubi_events.ndjson"
PAGE = 10
_PAGES = 3  # maximum number of pages that the engine returns
_ROBOT, _FORGER = 400, 60  # number of robot searches, number of forged clicks
_FORGED = ("click", 99)  # action and position of forged events


def synthetic_ubi(out: str | Path, users: int = 1000, seed: int = 1, **others: int) -> tuple[Path, Path, Path]:
    """Write a log into a folder and return its files: queries, events and documents.

    `others` are arguments of `log_lines`.
    """
    out = Path(out)
    queries, events, corpus = out / QUERIES, out / EVENTS, out / CORPUS
    lines, described = log_lines(users, seed, **others)
    write_new({corpus: described})
    rows = [line.rstrip("\n").split("\t") for line in lines]
    engine, rng = _Engine(read_documents(corpus), seed), rng_for(seed, "browsers")
    asked: list[str] = []
    done: list[str] = []
    for number, (user, time, text, wanted) in enumerate(rows):
        browser = f"{user}-{int(rng.random() < 0.2)}"  # some users have a second browser
        about = {"application": "made-up", "client_id": browser, "query_id": f"q{number}"}
        if rng.random() < 0.01:
            text += f" {user}@mail.example"
        for row, happened in _search(about, float(time), text, wanted, user, engine, rng):
            (done if happened else asked).append(json.dumps(row) + "\n")
    for row, happened in _trouble(int(rows[-1][1]), rows[0][2], engine):
        (done if happened else asked).append(json.dumps(row) + "\n")
    write_new({queries: asked, events: done})
    return queries, events, corpus


class _Engine:
    """An engine that ranks by the number of matching words, with more weight on titles, plus noise."""

    def __init__(self, documents: Documents, seed: int) -> None:
        self.ids = documents.ids
        self._holders: dict[str, dict[int, float]] = {}
        for row, (title, text) in enumerate(zip(documents.title, documents.text, strict=True)):
            for weight, words in ((1.0, set(title.split())), (0.5, set(text.split()))):
                for word in words:
                    held = self._holders.setdefault(word, {})
                    held[row] = held.get(row, 0.0) + weight
        self._mistake = rng_for(seed, "engine").normal(0.0, 0.6, len(documents))
        self._known: dict[str, list[str]] = {}

    def __call__(self, text: str) -> list[str]:
        """Return the ids of the best documents, best first."""
        if text not in self._known:
            found: dict[int, float] = {}
            for word in text.split():
                for row, weight in self._holders.get(word, {}).items():
                    found[row] = found.get(row, float(self._mistake[row])) + weight
            best = sorted(found, key=lambda row: (-found[row], row))[: PAGE * _PAGES]
            self._known[text] = [self.ids[row] for row in best]
        return self._known[text]


def _search(
    about: dict[str, Any], time: float, text: str, wanted: str, user: str, engine: _Engine, rng: np.random.Generator
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Return the rows of one search: pages, then clicks; the flag marks events."""
    ranked = engine(text)
    if rng.random() < 0.3 and len(ranked) > 1:  # engines are updated, and documents change positions
        at = int(rng.integers(min(len(ranked), PAGE) - 1))
        ranked = [*ranked[:at], ranked[at + 1], ranked[at], *ranked[at + 2 :]]
    signed_in = rng.random() < 0.6
    for page in range(0, max(len(ranked), 1), PAGE):
        hits = ranked[page : page + PAGE]
        yield (
            about
            | {
                "user_query": text,
                "timestamp": _date(time),
                "query_response_id": f"{about['query_id']}-{page // PAGE}",
                "query_response_hit_ids": hits,
                "object_id_field": "id",
                "query_attributes": {"from": str(page)} if page else {},
            },
            False,
        )
        found = False
        for place, document in enumerate(hits):
            looked = rng.random() < kernels.elementary.power(1.0 + place, -0.7)
            liked = document == wanted
            if looked and rng.random() < (0.9 if liked else 0.06):
                time += float(rng.exponential(15.0)) + 1
                found |= liked
                yield (
                    _event(about, "click", time, document, page + place + 1) | ({"user_id": user} if signed_in else {}),
                    True,
                )
                if rng.random() < 0.5:
                    spent = round(float(rng.exponential(60.0 if liked else 8.0)), 1)
                    seen = _event(about, "view", time + spent, document, page + place + 1)
                    seen["event_attributes"]["dwell_time"] = spent
                    yield seen, True
        if found or rng.random() < 0.8:
            return
        time += 20


def _event(about: dict[str, Any], action: str, time: float, document: str, ordinal: int) -> dict[str, Any]:
    where = {"object": {"object_id": document, "object_id_field": "id"}, "position": {"ordinal": ordinal}}
    when = int(time * 1000) if action == "view" else _date(time)  # some clients send milliseconds
    return about | {"action_name": action, "timestamp": when, "event_attributes": where}


def _trouble(last: int, text: str, engine: _Engine) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield rows that are not from real users, as production logs contain."""
    hits = engine(text)[:PAGE]
    for number in range(_ROBOT):
        about = {"client_id": "robot", "query_id": f"r{number}"}
        yield about | {"user_query": text, "timestamp": _date(last + 5 * number), "query_response_hit_ids": hits}, False
    about = {"client_id": "forger", "query_id": "f"}
    yield about | {"user_query": text, "timestamp": _date(last), "query_response_hit_ids": hits}, False
    action, place = _FORGED
    for number in range(_FORGER):
        yield _event(about, action, last + number, hits[number % len(hits)], place), True
        yield _event(about | {"query_id": f"f{number}"}, action, last + number, hits[0], 1), True


def _date(seconds: float) -> str:
    return f"{np.datetime64(int(seconds * 1000), 'ms')}+0000"  # the format of the OpenSearch plugin
