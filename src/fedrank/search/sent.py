"""The record of what this device sent, written before anything is sent, and the status of sharing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fedrank.deploy.sent_log import what_was_sent
from fedrank.search import sharing
from fedrank.search.results import SearchError, SentBytes
from fedrank.search.store import Store


class SentRecord:
    """Notes of what left, in the store and in the folders of sites that keep their own."""

    def __init__(self, store: Store, folder: Path, clock: Callable[[], float]) -> None:
        self.store, self.folder, self.clock = store, folder, clock

    def note(self, receiver: str, what: str, size: int) -> int:
        """Note what is about to leave this device, for ever; returns the number of the note."""
        with self.store.writing():
            made = self.store.db.execute(
                "INSERT INTO sent (time, receiver, what, bytes) VALUES (?, ?, ?, ?)",
                (self.clock(), receiver, what, size),
            )
            return int(made.lastrowid or 0)

    def take_back(self, noted: int) -> None:
        """Remove a note of what was refused before anything left."""
        with self.store.writing():
            self.store.db.execute("DELETE FROM sent WHERE id = ?", (noted,))

    def add_journal(self, site: Path, receiver: str) -> None:
        """Remember a folder whose site writes down what leaves from there; it is told for ever as if noted here."""
        inside = site.relative_to(self.folder) if site.is_relative_to(self.folder) else site  # which may be moved
        with self.store.writing():
            known = json.loads(self.store.setting("journals", "{}"))
            self.store.set(journals=json.dumps(known | {str(inside): receiver}))

    def everything(self) -> tuple[SentBytes, ...]:
        """Everything that ever left, by whoever wrote it down before it did."""
        noted = self.store.rows("SELECT time, receiver, what, bytes FROM sent ORDER BY id")
        found = [SentBytes(int(when), to, what, size) for when, to, what, size in noted]
        for site, receiver in json.loads(self.store.setting("journals", "{}")).items():
            if not (self.folder / site).is_dir():
                found.append(SentBytes(0, receiver, f"nobody knows what any more: {site} is gone", 0))
            for one in what_was_sent(self.folder / site):
                often = f" ({one.times:,} times)" if one.times > 1 else ""
                found.append(SentBytes(int(one.at), receiver, one.what + often, one.bytes))
        return tuple(sorted(found, key=lambda one: one.time))

    def note_problem(self, problem: str) -> None:
        """What keeps this device from taking part in its federation, for the status; "": nothing."""
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
        text = f"Shared through {joined.shared}, at most ε = {joined.epsilon:g} in all: {count:,} searches are recorded"
        return (f"{text}. They stay here; what leaves is listed above.", *([problem] if problem else []))
