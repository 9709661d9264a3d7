"""The engine's index follows the store: one process at a time updates it, and others see what it has done."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from fedrank.data.live_features import FeatureSet
from fedrank.files import Locked, locked
from fedrank.search.index import Engine
from fedrank.search.store import Store


class IndexSync:
    """Keeps an engine in step with a store."""

    def __init__(self, store: Store, features: FeatureSet, engine: Engine) -> None:
        self.store, self.features, self.engine = store, features, engine
        self._followed = -1  # change of the store up to which this process sees the index
        with contextlib.suppress(Locked), self.updating():  # whoever indexes just now does it
            self.follow()
        self._followed = store.indexed

    def updating(self) -> contextlib.AbstractContextManager[None]:
        """No other process may update the index meanwhile: `files.Locked` says who does."""
        return locked(self.store.folder / "index.lock", f"the index in {self.store.folder}")

    def follow(self, on_progress: Callable[[int], None] = lambda done: None) -> None:
        """Let the engine have what the store has; should their numbers differ even then, it begins anew."""
        with self.store.turn:
            self.engine.follow(self.store, self.features, on_progress)
            if self.engine.documents != self.store.count("SELECT count(*) FROM documents"):
                self.engine.make_anew()
                self.engine.follow(self.store, self.features, on_progress)
            self._followed = self.store.indexed

    def follow_if_behind(self, changes: int) -> None:
        """The same if the store is so many changes ahead, so that a first long run can be searched early."""
        with self.store.turn:
            if self.store.seq - self.store.indexed >= changes:
                self.follow()

    def catch_up(self) -> None:
        """See what another process indexed meanwhile."""
        if (indexed := self.store.indexed) != self._followed:
            self.engine.reload()
            self._followed = indexed

    def begin_anew(self) -> None:
        """An empty index, for a store without documents."""
        self.engine.make_anew()
        self.engine.fresh = False
        self._followed = self.store.indexed
