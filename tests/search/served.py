"""A page that is really served, over documents that want to do harm, and a way to ask it for anything."""

from __future__ import annotations

import mailbox
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path

import httpx

from fedrank.search.client import SearchClient
from fedrank.search.web import COMMAND, make_app
from fedrank.web.access import Access
from fedrank.web.server import listening, make_server

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
NOTES = 25  # so that there are three pages


class Clock:
    """The present, moved by hand."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@dataclass
class ServedPage:
    client: SearchClient
    door: Access
    folder: Path
    clock: Clock
    opened: list[str] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return self.door.origin

    def browser(self, **headers: str) -> httpx.Client:
        """Somebody who came in; forms carry the page's own origin unless told otherwise."""
        origin = {"origin": self.origin, **headers}
        client = httpx.Client(base_url=self.origin, headers=origin, verify=False, trust_env=False)  # plain HTTP
        client.cookies.set(self.door.cookie, self.door._session, domain="127.0.0.1")
        return client

    def raw(self, text: str) -> bytes:
        """The answer to bytes that no browser sends."""
        with socket.create_connection(("127.0.0.1", self.door.port), timeout=10) as connection:
            connection.sendall(text.encode("latin-1"))
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def search(self, browser: httpx.Client, query: str, **form: str) -> str:
        """The address of the results."""
        answer = browser.post("/search", data={"q": query, **form})
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def clicks(self) -> int:
        return self.client.status().clicks


def write_documents(folder: Path) -> None:
    """Notes about rivers for several pages; a file, a mail, and bookmarks full of markup."""
    folder.mkdir()
    for number in range(NOTES):
        words = " ".join(["river"] * (number % 5 + 1))
        (folder / f"note-{number:02}.md").write_text(
            f"# Note {number}\n\nThe {words} runs to the sea. Number {number}.\n"
        )
    (folder / "<b>evil&.md").write_text(f"# {EVIL}\n\nkraken {EVIL} kraken\n")
    (folder / "long.txt").write_text("A leviathan. " + "word " * 90_000)
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = f'"{EVIL}" <eve@evil.example>', "me@home.example", f"kraken {EVIL}"
    mail["Date"] = "Mon, 06 Jan 2020 10:00:00 +0000"
    mail.set_content(f"kraken {EVIL}")
    box = mailbox.mbox(folder / "mail.mbox")
    box.add(mail)
    box.close()
    links = (
        "javascript:alert(1)",
        "file:///etc/passwd",
        "https://good.example/?a=1&b=2",
        "data:text/html,x",
        " JaVaScRiPt:x",
    )
    lines = "".join(f'<DT><A HREF="{address}">bookmarked {n}</A>\n' for n, address in enumerate(links))
    (folder.parent / "bookmarks.html").write_text(f"<!DOCTYPE NETSCAPE-Bookmark-file-1>\n<DL><p>\n{lines}</DL>\n")


@contextmanager
def served(folder: Path) -> Iterator[ServedPage]:
    """The page over a fresh index, on a free port, in a thread."""
    write_documents(folder / "documents")
    clock = Clock()
    opened: list[str] = []

    def opens(path: str) -> str:
        opened.append(path)
        return "opened"

    with SearchClient(folder / "store", serve=True, clock=clock) as client:
        client.index([folder / "documents"], bookmarks=[folder / "bookmarks.html"])
        with listening(COMMAND) as (bound, door):
            ready = threading.Event()
            server = make_server(make_app(client, door, opens=opens), door, lambda link: ready.set())
            thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
            thread.start()
            assert ready.wait(20), "the page is not served"
            yield ServedPage(client, door, folder, clock, opened)
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive(), "the page does not end"
