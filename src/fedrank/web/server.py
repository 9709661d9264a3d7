"""Serving a page: on this machine only, on one socket that nobody else can reach."""

from __future__ import annotations

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

_TWO_HOSTS = b"421: this page has one Host\n"
_NO_REQUEST = b"400: this is no request\n"


def serve_page(
    command: str,
    make_app: Callable[[Access], ASGIApp],
    port: int = 0,
    ready: Callable[[str], None] = lambda link: None,
    *,
    extra: str,  # of fedrank, which has the packages that a server needs
    meanwhile: contextlib.AbstractContextManager[None] | None = None,
) -> None:
    """Serve a page until interrupted; `ready` is told the one-time link as soon as it can be opened."""
    with listening(command, port) as (bound, door):
        server = make_server(make_app(door), door, ready, extra)
        with meanwhile or contextlib.nullcontext(), ended_by_signals():
            server.run(sockets=[bound])


@contextlib.contextmanager
def listening(command: str, port: int = 0) -> Iterator[tuple[socket.socket, Access]]:
    """A socket of this machine's own address, and the door behind it; port 0: any that is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        if sys.platform != "win32":  # there it would let two programs listen
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise OSError(f"port {port} cannot be used ({reason}); choose another, or 0 for any") from None
        yield bound, Access(bound.getsockname()[1], command)


def make_server(app: ASGIApp, door: Access, ready: Callable[[str], None], extra: str = "search") -> uvicorn.Server:
    """What serves the page; `ready` is told the link. `extra` of this package brings what it needs."""
    try:
        import uvicorn
    except ImportError:
        raise missing_extra("the page needs a web server", extra) from None

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready(door.link)

    config = uvicorn.Config(
        app, http=_protocol(), ws="none", lifespan="off", loop="asyncio", log_level="critical",
        access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=30, timeout_graceful_shutdown=3,
    )  # fmt: skip
    return Server(config)


def _protocol() -> Any:
    """HTTP as uvicorn has it, where two Hosts are answered as another one is: this is not their server.

    What is no request is answered without the parser, which would stumble once more and print that.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class OneHost(H11Protocol):
        def send_400_response(self, msg: str) -> None:
            two = "multiple Host" in str(sys.exc_info()[1])
            status, told = ("421 Misdirected Request", _TWO_HOSTS) if two else ("400 Bad Request", _NO_REQUEST)
            head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {len(told)}\r\nconnection: close"
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # nothing was answered yet
                self.transport.write(f"{head}\r\n\r\n".encode() + told)
            self.transport.close()

    return OneHost


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """The server ends in order, then signals come again as usual; the end is no error, and files are closed."""
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
