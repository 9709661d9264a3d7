"""Watching the indexed folders, and indexing what changed.

Changed paths are collected until the folders rest, and only these are looked at. If there are too many, if the system
lost events, and once an hour, everything is looked at. A pause follows that is longer than the indexing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.extras import missing_extra
from fedrank.files import Locked
from fedrank.progress import Progress, quiet
from fedrank.search.client import SearchClient
from fedrank.search.ingest import roots_of
from fedrank.search.results import Indexed
from fedrank.search.sources import is_passed_over

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent

REST = 2.0  # seconds without a change before files are read, since programs write files in pieces
MAX_WAIT = 30.0  # seconds after which files are read in any case
MAX_CHANGES = 1_000  # paths; if more change at once, everything is looked at
EVERYTHING_EVERY = 3600.0  # seconds
UNWATCHED_EVERY = 300.0  # seconds, if the system cannot watch
PAUSE = 9.0  # times the duration of indexing, before the next
LONGEST_PAUSE = 60.0  # seconds
# Events of reading are ignored: otherwise indexing would trigger itself.
CHANGES = {"created", "modified", "deleted", "moved", "closed"}


class Changes:
    """Paths that changed since they were last taken."""

    def __init__(self, roots: list[Path], own: str) -> None:
        self._roots, self._own = [(root, root.resolve()) for root in roots], own
        self._turn = threading.Lock()
        self._paths: set[str] = set()
        self._everything = True  # files may have changed before the watch began
        self.some = threading.Event()
        self.some.set()

    def dispatch(self, event: FileSystemEvent) -> None:
        """Take an event of watchdog."""
        if event.event_type not in CHANGES:
            return
        if event.is_directory and event.event_type == "modified" and sys.platform == "linux":
            return  # the entry of the folder that changed has an event, too
        for path in (os.fsdecode(name) for name in (event.src_path, event.dest_path) if name):
            for root, real in self._roots if not _below(path, self._own) else ():
                at = Path(path)
                if at.is_relative_to(real):  # some systems resolve links
                    at = root / at.relative_to(real)
                if self._is_read(at, root):
                    self.add(str(at))

    def add(self, path: str | None) -> None:
        """Add a path; None: anything may have changed."""
        with self._turn:
            if path is not None:
                self._paths.add(path)
            if path is None or len(self._paths) > MAX_CHANGES:
                self._everything, self._paths = True, set()
            self.some.set()

    def take(self) -> list[Path] | None:
        """The changed paths, or None if everything must be looked at."""
        with self._turn:
            self.some.clear()
            paths = None if self._everything else sorted(map(Path, self._paths))
            self._everything, self._paths = False, set()
            return paths

    @staticmethod
    def _is_read(path: Path, root: Path) -> bool:
        if not path.is_relative_to(root):
            return str(path).startswith(str(root))  # a log of a database
        folders = path.relative_to(root).parts[:-1]
        return folders[-1:] in (("cur",), ("new",)) or not any(map(is_passed_over, folders))


class _Lost(logging.Handler):
    """Takes warnings of watchdog, which it writes if events were lost."""

    def __init__(self, changes: Changes) -> None:
        super().__init__(logging.WARNING)
        self._changes = changes

    def emit(self, record: logging.LogRecord) -> None:
        self._changes.add(None)


def watch(
    client: SearchClient,
    indexed: Callable[[Indexed], None],
    stop: threading.Event,
    rest: float = REST,
    progress: Progress = quiet,
) -> None:
    """Index after changes until `stop` is set; changes during indexing are not missed."""
    try:
        from watchdog.observers import Observer
    except ImportError:
        raise missing_extra("watching folders requires the package watchdog", "search") from None

    roots = [root.path for root in roots_of(client.store)]
    changes = Changes(roots, str(client.folder.resolve()))
    observer: Any = Observer()
    log, lost = logging.getLogger("watchdog"), _Lost(changes)
    log.addHandler(lost)
    every = EVERYTHING_EVERY
    try:
        try:
            for folder, whole in _folders(roots):
                observer.schedule(changes, str(folder), recursive=whole)
            observer.start()
        except OSError as problem:  # most systems limit the number of watched folders
            every = UNWATCHED_EVERY
            warnings.warn(
                f"the system cannot watch these folders ({problem.strerror or problem}); all files are checked every "
                f"{every / 60:.0f} minutes instead",
                stacklevel=2,
            )
        looked = time.monotonic()
        while not stop.is_set():
            if time.monotonic() - looked > every:
                changes.add(None)
            if not changes.some.wait(0.2):
                continue
            began = time.monotonic()
            while changes.some.is_set() and time.monotonic() - began < MAX_WAIT and not stop.is_set():
                changes.some.clear()
                stop.wait(rest)
            paths = changes.take()
            began = time.monotonic()
            looked = began if paths is None else looked
            try:
                done = client.index(progress=progress, changed=paths)
            except Locked:  # another process is indexing, and may have missed these changes
                for path in [None] if paths is None else paths:
                    changes.add(None if path is None else str(path))
                continue
            if done.added or done.changed or done.removed:
                indexed(done)
            stop.wait(min(PAUSE * (time.monotonic() - began), LONGEST_PAUSE))
    finally:
        log.removeHandler(lost)
        if observer.is_alive():
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
