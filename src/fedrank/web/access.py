"""Who may come in: one browser on this machine, with the link that was printed, and no other web page on its behalf."""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

ENTER = "/enter/"
_FOREIGN = ("cross-site", "same-site")  # another site, or another port of this machine
_READS = ("GET", "HEAD")
_AHEAD = (b"sec-purpose", b"purpose", b"x-moz", b"x-purpose")  # how browsers say that nobody clicked yet

Headers = Sequence[tuple[bytes, bytes]]


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    reason: str


@dataclass
class Access:
    """Lets the first browser with the printed link in, and afterwards only that one, by its cookie."""

    port: int
    command: str  # that printed the link, and prints another one
    _link: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def origin(self) -> str:
        return f"http://{self.host}"

    @property
    def link(self) -> str:
        """Opens the page once."""
        return f"{self.origin}{ENTER}{self._link}"

    @property
    def cookie(self) -> str:
        """Browsers send cookies to every port of a machine: so its name has the port."""
        return f"fedrank-{self.port}"

    def refuses(self, method: str, path: str, headers: Headers) -> Refusal | None:
        """None where a request may be answered; the link itself is looked at by `enter`."""
        hosts = _all(headers, b"host")
        if not hosts:
            return Refusal(400, "a request without Host")
        if hosts != [self.host]:
            return Refusal(421, f"this page is at {self.origin} and nowhere else")
        if any(site in _FOREIGN for site in _all(headers, b"sec-fetch-site")):
            return Refusal(
                403, "another web page sent you here; copy the address into the address bar if it was you who wanted to"
            )
        if method not in _READS and _all(headers, b"origin") != [self.origin]:
            return Refusal(403, "only this page's own forms may change anything")
        if path.startswith(ENTER) or self.knows(headers):
            return None
        return Refusal(401, f"use the link that {self.command} printed; it opens this page once, in one browser")

    def enter(self, token: str) -> str | None:
        """The cookie's value for whoever has the link, the first time; None otherwise."""
        with self._turn:  # of two who come together, one is first
            if not self._link or not hmac.compare_digest(token.encode(errors="replace"), self._link.encode()):
                return None
            self._link = ""
            return self._session

    def knows(self, headers: Headers) -> bool:
        """Whether the cookie is ours; takes as long for a wrong one."""
        given = [
            value
            for line in _all(headers, b"cookie")
            for name, _, value in (part.strip().partition("=") for part in line.split(";"))
            if name == self.cookie
        ]
        return len(given) == 1 and hmac.compare_digest(given[0].encode(errors="replace"), self._session.encode())


def ahead(headers: Headers) -> bool:
    """Whether a browser asks before anybody clicked (prefetch, prerender, preview)."""
    return any(
        word in value.lower() for name in _AHEAD for value in _all(headers, name) for word in ("prefetch", "preview")
    )


def _all(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key == name]
