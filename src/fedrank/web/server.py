"""Serve a page on this machine only, on one local socket."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from fedrank.extras import missing_extra
from fedrank.web.access import Access

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

_TWO_HOSTS = b"421: the request must have one Host header\n"
_NO_REQUEST = b"400: this is not a valid HTTP request\n"
PATIENCE = 30.0  # seconds; a connection on which no request arrives for as long is closed


def serve_page(
    command: str,
    make_app: Callable[[Access], ASGIApp],
    port: int = 0,
    ready: Callable[[str], None] = lambda link: None,
    *,
    extra: str,  # extra of fedrank with the packages that a server needs
    meanwhile: contextlib.AbstractContextManager[None] | None = None,
) -> None:
    """Serve a page until interrupted; `ready` receives the one-time link as soon as it can be opened."""
    with listening(command, port) as (bound, door):
        server = make_server(make_app(door), door, ready, extra)
        with meanwhile or contextlib.nullcontext(), ended_by_signals():
            server.run(sockets=[bound])


@contextlib.contextmanager
def listening(command: str, port: int = 0) -> Iterator[tuple[socket.socket, Access]]:
    """A socket on the loopback address and its access control; port 0: any free port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        if sys.platform != "win32":  # on Windows it would let two programs listen
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise OSError(
                f"port {port} cannot be used ({reason}); choose another one, or 0 for any free port"
            ) from None
        yield bound, Access(bound.getsockname()[1], command)


def make_server(app: ASGIApp, door: Access, ready: Callable[[str], None], extra: str = "search") -> uvicorn.Server:
    """The server of the page; `ready` receives the link. `extra` of this package installs its requirements."""
    try:
        import uvicorn
    except ImportError:
        raise missing_extra("the page needs a web server", extra) from None

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready(door.link)

    config = uvicorn.Config(
        app, http=http_protocol(), ws="none", lifespan="off", loop="asyncio", log_level="critical",
        access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=30, timeout_graceful_shutdown=3,
    )  # fmt: skip
    return Server(config)


def http_protocol() -> Any:
    """The HTTP protocol of uvicorn, with 421 for several Host headers, as for a wrong one, and a limit on waiting.

    An invalid request is answered without the parser, which would fail again and print an error. A connection is closed
    if the head of a request does not arrive, since a few hundred of them would block all other clients.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Bounded(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(PATIENCE, self._look, (None, False))

        def _look(self, before: tuple[Any, bool]) -> None:
            """Close the connection if it has waited for the head of a request since the last look."""
            now = self.cycle, self.cycle is not None and not self.cycle.response_complete
            if now == before and not now[1]:
                self.transport.close()
            elif not self.transport.is_closing():
                self.loop.call_later(PATIENCE, self._look, now)

        def send_400_response(self, msg: str) -> None:
            two = "multiple Host" in str(sys.exc_info()[1])
            status, body = ("421 Misdirected Request", _TWO_HOSTS) if two else ("400 Bad Request", _NO_REQUEST)
            head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\nconnection: close"
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # nothing was answered yet
                self.transport.write(f"{head}\r\n\r\n".encode() + body)
            self.transport.close()

    return Bounded


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Stop the server in order on signals, then restore the handlers; stopping is not an error."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)
