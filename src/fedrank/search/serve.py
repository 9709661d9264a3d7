"""Serving the page: on this machine only, on one socket that nobody else can reach."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from fedrank.search.client import SearchClient
from fedrank.search.door import Door
from fedrank.search.sharing import Sharing
from fedrank.search.web import make_app

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

SECONDS_BETWEEN_LOOKS = 5.0  # whether somebody joined a federation
_TWO_HOSTS = b"421: this page has one Host\n"
_NO_REQUEST = b"400: this is no request\n"


@contextlib.contextmanager
def listening(port: int = 0) -> Iterator[tuple[socket.socket, Door]]:
    """A socket of this machine's own address, and the door behind it; port 0: any that is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        if sys.platform != "win32":  # there it would let two programs listen
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise OSError(f"port {port} cannot be used ({reason}); choose another, or 0 for any") from None
        yield bound, Door(bound.getsockname()[1])


def serve(
    client: SearchClient,
    port: int = 0,
    hint: str = "",
    ready: Callable[[str], None] = lambda link: None,
) -> None:
    """Serve until interrupted; `ready` is told the one-time link as soon as it can be opened."""
    with listening(port) as (bound, door):
        server = make_server(make_app(client, door, hint), door, ready)
        with _taking_part(client), _ended_by_signals():
            server.run(sockets=[bound])


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


def make_server(app: ASGIApp, door: Door, ready: Callable[[str], None]) -> uvicorn.Server:
    """What serves the page; `ready` is told the link."""
    try:
        import uvicorn
    except ImportError:
        raise ImportError("the page needs a web server: pip install 'fedrank[search]'") from None

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
def _ended_by_signals() -> Iterator[None]:
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
