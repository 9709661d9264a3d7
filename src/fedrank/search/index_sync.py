"""Synchronization of the index with the store: one process updates the index, others reload it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from fedrank.data.live_features import FeatureSet
from fedrank.files import Locked, locked
from fedrank.search.index import Engine
from fedrank.search.store import Store


class IndexSync:
    """Updates an engine's index from a store."""

    def __init__(self, store: Store, features: FeatureSet, engine: Engine) -> None:
        self.store, self.features, self.engine = store, features, engine
        self._followed = -1  # last change of the store in the index as loaded by this process
        with contextlib.suppress(Locked), self.updating():  # if locked, the other process updates the index
            self.follow()
        self._followed = store.indexed

    def updating(self) -> contextlib.AbstractContextManager[None]:
        """Lock the index for updates; raises `files.Locked` if another process holds the lock."""
        return locked(self.store.folder / "index.lock", f"the index in {self.store.folder}")

    def follow(self, on_progress: Callable[[int], None] = lambda done: None) -> None:
        """Apply all changes of the store; the index is rebuilt if the numbers of documents still differ."""
        with self.store.turn:
            self.engine.follow(self.store, self.features, on_progress)
            if self.engine.documents != self.store.count("SELECT count(*) FROM documents"):
                self.engine.make_anew()
                self.engine.follow(self.store, self.features, on_progress)
            self._followed = self.store.indexed

    def follow_if_behind(self, changes: int) -> None:
        """Update the index if it is at least this many changes behind the store."""
        with self.store.turn:
            if self.store.seq - self.store.indexed >= changes:
                self.follow()

    def catch_up(self) -> None:
        """Load what another process has indexed."""
        if (indexed := self.store.indexed) != self._followed:
            self.engine.reload()
            self._followed = indexed

    def begin_anew(self) -> None:
        """Replace the index by an empty one, for a store without documents."""
        self.engine.make_anew()
        self.engine.fresh = False
        self._followed = self.store.indexed
