"""Serving the page of one person's documents, and taking part in a federation meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from fedrank.search.client import SearchClient
from fedrank.search.sharing import Sharing
from fedrank.search.web import make_app
from fedrank.web.server import serve_page

COMMAND = "fedrank search serve"
SECONDS_BETWEEN_LOOKS = 5.0  # whether somebody joined a federation


def serve(
    client: SearchClient,
    port: int = 0,
    hint: str = "",
    ready: Callable[[str], None] = lambda link: None,
) -> None:
    """Serve until interrupted; `ready` is told the one-time link as soon as it can be opened."""
    serve_page(
        COMMAND,
        lambda door: make_app(client, door, hint),
        port,
        ready,
        extra="search",
        meanwhile=_taking_part(client),
    )


@contextlib.contextmanager
def _taking_part(client: SearchClient) -> Iterator[None]:
    """Answer the federation meanwhile, where this folder joined one; somebody may join while the page is served."""

    def take_part() -> None:
        while not stop.wait(SECONDS_BETWEEN_LOOKS):
            if Sharing.is_there(client.folder):
                from fedrank.search.joining import keep_taking_part  # a whole site, which few need

                keep_taking_part(client, stop)

    stop = threading.Event()
    thread = threading.Thread(target=take_part, name="fedrank-federation", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
