"""Searches of agents in folders that the user allowed for them, and the log of what they asked.

No folder is allowed at first. Consent is read at every search, so it can be withdrawn while an agent runs. A search is
in the log before its results leave. Agents never change the user's own order: what they say they used lifts documents
in later searches of agents only, by the rule of `memory.py`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrank.data.live_features import QueryTerms
from fedrank.search.client import SearchClient
from fedrank.search.impressions import best_order
from fedrank.search.ingest import absolute, roots_of
from fedrank.search.memory import LEAST, LIFT, SAME, Lifts, likeness
from fedrank.search.render import day
from fedrank.search.results import SearchError
from fedrank.search.store import in_parts, marks

MAX_RESULTS = 10
MAX_LOG = 10_000  # the latest searches of agents
WORDS, CHARACTERS = 200, 2_000  # of an excerpt
UNKNOWN, USED, UNUSED = 0, 1, 2  # what an agent said about a result


@dataclass(frozen=True)
class AgentQuery:
    """A search of an agent."""

    time: float
    query: str
    documents: tuple[str, ...]  # what it was shown; "" for a document that is no longer in the index
    used: tuple[int, ...]  # positions of those that it said it used, from 0


class AgentSearch:
    """What agents may search, and what they asked."""

    def __init__(self, client: SearchClient) -> None:
        self.client, self.store = client, client.store

    # consent

    def folders(self) -> list[str]:
        """The folders and files that agents may search."""
        return [os.fsdecode(path) for (path,) in self.store.rows("SELECT path FROM agent_folders ORDER BY path")]

    def allow(self, folder: str | os.PathLike[str]) -> int:
        """Allow agents to search a folder; returns the number of its documents."""
        path = absolute(folder)
        roots = [root.path for root in roots_of(self.store)]
        if not any(path.is_relative_to(root) or root.is_relative_to(path) for root in roots):
            known = ", ".join(map(str, roots)) or "none"
            raise SearchError(f"{path} is not in an indexed folder ({known}); nothing was allowed; index it first")
        with self.store.writing():
            self.store.db.execute("INSERT OR IGNORE INTO agent_folders VALUES (?)", (os.fsencode(path),))
        return len(self._documents_in([os.fsencode(path)]))

    def revoke(self, folder: str | os.PathLike[str]) -> None:
        """Withdraw a consent."""
        path = absolute(folder)
        with self.store.writing():
            gone = self.store.db.execute("DELETE FROM agent_folders WHERE path = ?", (os.fsencode(path),)).rowcount
        if not gone:
            raise SearchError(
                f"{path} is not one of the allowed folders ({', '.join(self.folders()) or 'none'}); nothing was changed"
            )

    def _documents_in(self, folders: Sequence[bytes]) -> list[int]:
        """The documents of these folders and files. A mailbox or a list of bookmarks is one file."""
        found: set[int] = set()
        for root in roots_of(self.store):
            where = os.fsencode(root.path)
            for folder in folders:
                if _is_below(where, folder):
                    which, values = "1", list[bytes]()
                elif _is_below(folder, where):
                    part = folder[len(where.rstrip(b"/")) + 1 :]
                    which, values = "(path = ? OR (path >= ? AND path < ?))", [part, part + b"/", part + b"0"]
                else:
                    continue
                found |= {
                    id
                    for (id,) in self.store.rows(
                        f"SELECT documents.id FROM documents JOIN files ON files.id = file WHERE root = ? AND {which}",
                        root.id, *values,
                    )
                }  # fmt: skip
        return sorted(found)

    # searches of agents

    def search(self, query: str, limit: int = MAX_RESULTS) -> dict[str, Any]:
        """Results in the allowed folders with excerpts, and an id for feedback."""
        if isinstance(limit, bool) or not 1 <= limit <= MAX_RESULTS:
            raise SearchError(f"limit must be from 1 to {MAX_RESULTS} (got {limit})")
        with self.store.turn:
            folders = [os.fsencode(folder) for folder in self.folders()]
            if not folders:
                raise SearchError(
                    "the user has not allowed any folder for agents; `fedrank search mcp --allow FOLDER` allows one"
                )
            client = self.client
            request = client.request(query)
            found, raw = client.candidates(request, self._documents_in(folders))
            documents = found.documents.tolist()
            order = np.arange(len(documents))
            if client.settings.order != "engine":
                weights = client.rows.weights()
                memories = client.lists.memory.lifts(request.terms, documents), self._lifts(request.terms, documents)
                lifts = np.maximum(*(client.rows.limited(one, weights, raw) for one in memories))
                order = best_order(client.rows.scores(weights, raw, lifts))
            shown = [documents[place] for place in order[:limit].tolist()]
            id = secrets.token_urlsafe(12)
            with self.store.writing():
                self.store.db.execute(
                    "INSERT INTO agent_searches VALUES (?, ?, ?, ?, ?, ?)",
                    (id, request.time, request.text, request.terms.key, np.array(shown, "<i8").tobytes(),
                     bytes(len(shown))),
                )  # fmt: skip
                self.store.db.execute(
                    "DELETE FROM agent_searches WHERE id IN (SELECT id FROM agent_searches ORDER BY time DESC "
                    "LIMIT -1 OFFSET ?)",
                    (MAX_LOG,),
                )
            excerpts = client.pages.excerpts(shown, request.parsed, WORDS, CHARACTERS)
        return {
            "id": id,
            "results": [{"index": index, **one, "date": day(one["date"])} for index, one in enumerate(excerpts)],
        }

    def _lifts(self, terms: QueryTerms, documents: Sequence[int]) -> Lifts:
        """6 c / (c + u + 1), c uses and u non-uses by agents, each times the likeness of its query."""
        rows = self.store.rows("SELECT terms, documents, used FROM agent_searches WHERE instr(used, x'01')")
        counts, same = np.zeros((len(documents), 2)), np.zeros(len(documents), np.bool_)
        place = {document: number for number, document in enumerate(documents)}
        for like, (_, shown, used) in zip(
            likeness(terms, [row[0] for row in rows], self.store.statistics()), rows, strict=True
        ):
            for document, said in zip(np.frombuffer(shown, "<i8").tolist(), used, strict=True):
                if like >= LEAST and said != UNKNOWN and document in place:
                    counts[place[document], said - 1] += like
                    same[place[document]] |= like >= SAME and said == USED
        return Lifts((LIFT * counts[:, 0] / (counts.sum(axis=1) + 1)).astype(np.float32), same)

    def feedback(self, id: str, events: dict[int, str]) -> dict[str, Any]:
        """Record which results of a search were used ("cited") and which were not ("ignored")."""
        with self.store.writing():
            found = self.store.one("SELECT used FROM agent_searches WHERE id = ?", id)
            if found is None:
                raise SearchError("no search with this id is in the log; the user may have deleted it")
            used = bytearray(found[0])
            for index, kind in events.items():
                if not 0 <= index < len(used):
                    raise SearchError(f"the search has no result {index}; it had {len(used)}")
                used[index] = USED if kind == "cited" else UNUSED
            self.store.db.execute("UPDATE agent_searches SET used = ? WHERE id = ?", (bytes(used), id))
        return {"id": id, "recorded": [{"index": index, "kind": kind} for index, kind in events.items()]}

    # log

    def log(self, latest: int = MAX_LOG) -> list[AgentQuery]:
        """The latest searches of agents, oldest first."""
        with self.store.turn:
            rows = self.store.rows(
                "SELECT time, query, documents, used FROM agent_searches ORDER BY time DESC LIMIT ?", latest
            )
            wanted = sorted({id for row in rows for id in np.frombuffer(row[2], "<i8").tolist()})
            places = {
                id: place
                for some in in_parts(wanted)
                for id, place in self.store.rows(f"SELECT id, place FROM documents WHERE id IN ({marks(some)})", *some)
            }
        return [
            AgentQuery(
                time,
                query,
                tuple(places.get(id, "") for id in np.frombuffer(documents, "<i8").tolist()),
                tuple(index for index, said in enumerate(used) if said == USED),
            )
            for time, query, documents, used in rows[::-1]
        ]

    def forget(self) -> int:
        """Delete the log, and what was learned from it; returns the number of searches."""
        with self.store.writing():
            gone = self.store.db.execute("DELETE FROM agent_searches").rowcount
        self.store.sweep()
        return gone


def _is_below(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")
