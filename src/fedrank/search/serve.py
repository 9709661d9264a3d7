"""Serving the search page, and participating in a federation while it is served."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from fedrank.search.client import SearchClient
from fedrank.search.sharing import Sharing
from fedrank.search.web import make_app
from fedrank.web.server import serve_page

COMMAND = "fedrank search serve"
SECONDS_BETWEEN_LOOKS = 5.0  # checks whether the user joined a federation


def serve(
    client: SearchClient,
    port: int = 0,
    hint: str = "",
    ready: Callable[[str], None] = lambda link: None,
) -> None:
    """Serve until interrupted; `ready` is called with the one-time link as soon as it works."""
    serve_page(
        COMMAND,
        lambda access: make_app(client, access, hint),
        port,
        ready,
        extra="search",
        meanwhile=_taking_part(client),
    )


@contextlib.contextmanager
def _taking_part(client: SearchClient) -> Iterator[None]:
    """Participate in the federation of this folder; the user may also join while the page is served."""

    def take_part() -> None:
        while not stop.wait(SECONDS_BETWEEN_LOOKS):
            if Sharing.is_there(client.folder):
                from fedrank.search.joining import keep_taking_part  # imports a site, which most users do not need

                keep_taking_part(client, stop)

    stop = threading.Event()
    thread = threading.Thread(target=take_part, name="fedrank-federation", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
