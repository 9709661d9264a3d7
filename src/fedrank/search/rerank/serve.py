"""Serve the HTTP interface on an address, and the owner's page on this machine only."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fedrank.extras import missing_extra
from fedrank.search.rerank.api import EXTRA, make_api
from fedrank.search.rerank.page import make_page
from fedrank.search.rerank.tenants import Tenants
from fedrank.web.server import http_protocol, serve_page

if TYPE_CHECKING:
    import uvicorn

COMMAND = "fedrank rerank serve"
MAX_CONCURRENT = 256  # connections; a request on one more is answered with 503


def serve(
    tenants: Tenants, host: str, port: int, ready: Callable[[str, str], None] = lambda address, link: None
) -> None:
    """Serve until interrupted; `ready` receives the address of the interface and the one-time link of the page."""
    api = make_server(tenants)
    with bound_to(host, port) as bound:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{bound.getsockname()[1]}"
        serve_page(
            COMMAND,
            lambda access: make_page(tenants, access),
            ready=lambda link: ready(address, link),
            extra=EXTRA,
            meanwhile=_running(api, bound),
        )


def make_server(tenants: Tenants) -> uvicorn.Server:
    """The server of the interface."""
    try:
        import uvicorn
    except ImportError:
        raise missing_extra("the server needs uvicorn", EXTRA) from None
    config = uvicorn.Config(
        make_api(tenants), http=http_protocol(), ws="none", lifespan="off", loop="asyncio", log_level="critical",
        access_log=False, server_header=False, proxy_headers=False, limit_concurrency=MAX_CONCURRENT,
        timeout_graceful_shutdown=5,
    )  # fmt: skip
    return uvicorn.Server(config)


@contextlib.contextmanager
def bound_to(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket on this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:  # asyncio asks for it to send at once
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except (OSError, OverflowError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise OSError(f"{host}, port {port}, cannot be used ({reason}); choose another address or port") from None
        yield bound


@contextlib.contextmanager
def _running(server: uvicorn.Server, bound: socket.socket) -> Iterator[None]:
    """A server in a thread."""
    thread = threading.Thread(target=lambda: server.run(sockets=[bound]), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(timeout=10)
