"""Serving the page on runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedrank.experiments.watch.state import Watched
from fedrank.experiments.watch.web import make_app
from fedrank.web.server import serve_page

COMMAND = "fedrank watch"


def watch(folders: Sequence[Path], port: int = 0, ready: Callable[[str], None] = lambda link: None) -> None:
    """Serve until interrupted; `ready` gets the one-time link as soon as it can be opened."""
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"no folder {folder}; give the folder that runs go to, such as runs")
    watched = Watched(tuple(one.resolve() for one in folders))
    serve_page(COMMAND, lambda door: make_app(watched, door), port, ready, extra="watch")
