"""Watching the indexed folders, and indexing changed files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.extras import missing_extra
from fedrank.files import Locked
from fedrank.progress import Progress, quiet
from fedrank.search.client import SearchClient
from fedrank.search.ingest import roots_of
from fedrank.search.results import Indexed

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent

REST = 2.0  # seconds without a change before files are read, since programs write files in pieces
MAX_WAIT = 30.0  # seconds after which files are read in any case
# Events of reading are ignored: otherwise indexing would trigger itself.
CHANGES = {"created", "modified", "deleted", "moved", "closed"}


def watch(
    client: SearchClient,
    indexed: Callable[[Indexed], None],
    stop: threading.Event,
    rest: float = REST,
    progress: Progress = quiet,
) -> None:
    """Index again after every change until `stop` is set; changes during indexing are not missed."""
    try:
        from watchdog.events import FileSystemEventHandler
        from watchdog.observers import Observer
    except ImportError:
        raise missing_extra("watching folders requires the package watchdog", "search") from None

    changed = threading.Event()
    own = str(client.folder.resolve())

    class Changes(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            names = [os.fsdecode(name) for name in (event.src_path, event.dest_path) if name]
            if event.event_type in CHANGES and not all(_below(name, own) for name in names):
                changed.set()

    observer: Any = Observer()
    for folder, whole in _folders([root.path for root in roots_of(client.store)]):
        observer.schedule(Changes(), str(folder), recursive=whole)
    observer.start()
    try:
        while not stop.is_set():
            if not changed.wait(0.2):
                continue
            began = time.monotonic()
            while changed.is_set() and time.monotonic() - began < MAX_WAIT and not stop.is_set():
                changed.clear()
                stop.wait(rest)
            changed.clear()
            try:
                done = client.index(progress=progress)
            except Locked:  # another process is indexing, and may have missed this change
                changed.set()
                continue
            if done.added or done.changed or done.removed:
                indexed(done)
    finally:
        observer.stop()
        observer.join()


def _folders(roots: list[Path]) -> list[tuple[Path, bool]]:
    """(folder, recursive) to watch: folders recursively, and for a file its parent folder."""
    found: dict[Path, bool] = {}
    for root in roots:
        where = root if root.is_dir() else root.parent
        if where.is_dir():
            found[where] = found.get(where, False) or root.is_dir()
    return sorted(found.items())


def _below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(folder + os.sep)
