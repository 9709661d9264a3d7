"""The record of sent data, written before anything is sent, and the status of sharing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fedrank.deploy.sent_log import what_was_sent
from fedrank.search import sharing
from fedrank.search.results import SearchError, SentBytes
from fedrank.search.store import Store


class SentRecord:
    """The record of sent data, in the store and in the folders of sites that write their own."""

    def __init__(self, store: Store, folder: Path, clock: Callable[[], float]) -> None:
        self.store, self.folder, self.clock = store, folder, clock

    def note(self, receiver: str, what: str, size: int) -> int:
        """Record data that is about to be sent; returns the number of the entry, which is never deleted."""
        with self.store.writing():
            made = self.store.db.execute(
                "INSERT INTO sent (time, receiver, what, bytes) VALUES (?, ?, ?, ?)",
                (self.clock(), receiver, what, size),
            )
            return int(made.lastrowid or 0)

    def take_back(self, noted: int) -> None:
        """Remove an entry if nothing was sent."""
        with self.store.writing():
            self.store.db.execute("DELETE FROM sent WHERE id = ?", (noted,))

    def add_journal(self, site: Path, receiver: str) -> None:
        """Include the record of a site's folder permanently."""
        # A relative path stays valid if the search folder is moved.
        inside = site.relative_to(self.folder) if site.is_relative_to(self.folder) else site
        with self.store.writing():
            known = json.loads(self.store.setting("journals", "{}"))
            self.store.set(journals=json.dumps(known | {str(inside): receiver}))

    def everything(self) -> tuple[SentBytes, ...]:
        """All data that was ever sent, from all records."""
        noted = self.store.rows("SELECT time, receiver, what, bytes FROM sent ORDER BY id")
        found = [SentBytes(int(when), to, what, size) for when, to, what, size in noted]
        for site, receiver in json.loads(self.store.setting("journals", "{}")).items():
            if not (self.folder / site).is_dir():
                found.append(SentBytes(0, receiver, f"unknown: the record in {site} is missing", 0))
            for one in what_was_sent(self.folder / site):
                often = f" ({one.times:,} times)" if one.times > 1 else ""
                found.append(SentBytes(int(one.at), receiver, one.what + often, one.bytes))
        return tuple(sorted(found, key=lambda one: one.time))

    def note_problem(self, problem: str) -> None:
        """Store the problem that prevents participation in the federation, for the status; "": none."""
        if self.store.setting("federation_problem", "") != problem:
            with self.store.writing():
                self.store.set(federation_problem=problem)

    def about_sharing(self) -> tuple[str, ...]:
        """Notes on sharing for the status page; empty for a person who has not joined a federation."""
        try:
            joined = sharing.Sharing.read(self.folder)
        except SearchError as damaged:
            return (str(damaged),)
        if joined is None:
            return ()
        count, problem = len(sharing.recorded(self.folder).numbers()), self.store.setting("federation_problem", "")
        text = (
            f"You participate in a federation through {joined.shared}, with at most ε = {joined.epsilon:g} in total. "
            f"{count:,} searches are recorded for it. They stay on this device; all data that was sent is listed."
        )
        return (text, *([problem] if problem else []))
