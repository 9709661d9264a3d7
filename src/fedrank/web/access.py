"""Access control: one browser on this machine, with the printed link, and no other web page on its behalf."""

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
_AHEAD = (b"sec-purpose", b"purpose", b"x-moz", b"x-purpose")  # headers of requests without a click

Headers = Sequence[tuple[bytes, bytes]]


class Refusal(NamedTuple):
    """Why a request is refused."""

    status: int
    reason: str


@dataclass
class Access:
    """Admits the first browser with the printed link, and afterwards only that browser, by its cookie."""

    port: int
    command: str  # that printed the link
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
        """The link that opens the page once."""
        return f"{self.origin}{ENTER}{self._link}"

    @property
    def cookie(self) -> str:
        """The name of the cookie; it contains the port, because browsers send cookies to every port of a machine."""
        return f"fedrank-{self.port}"

    def refuses(self, method: str, path: str, headers: Headers) -> Refusal | None:
        """None if a request may be answered; `enter` checks the link itself."""
        hosts = _all(headers, b"host")
        if not hosts:
            return Refusal(400, "the request has no Host header")
        if hosts != [self.host]:
            return Refusal(421, f"this page is served only at {self.origin}")
        if any(site in _FOREIGN for site in _all(headers, b"sec-fetch-site")):
            return Refusal(
                403, "the request came from another web page; to open this page, copy its address into the address bar"
            )
        if method not in _READS and _all(headers, b"origin") != [self.origin]:
            return Refusal(403, "only forms of this page may change data")
        if path.startswith(ENTER) or self.knows(headers):
            return None
        return Refusal(401, f"use the link that {self.command} printed; it works once, in one browser")

    def enter(self, token: str) -> str | None:
        """The value of the cookie for the first request with the link; None otherwise."""
        with self._turn:  # only the first of two simultaneous requests succeeds
            if not self._link or not hmac.compare_digest(token.encode(errors="replace"), self._link.encode()):
                return None
            self._link = ""
            return self._session

    def knows(self, headers: Headers) -> bool:
        """Whether the cookie is valid, compared in constant time."""
        given = [
            value
            for line in _all(headers, b"cookie")
            for name, _, value in (part.strip().partition("=") for part in line.split(";"))
            if name == self.cookie
        ]
        return len(given) == 1 and hmac.compare_digest(given[0].encode(errors="replace"), self._session.encode())


def ahead(headers: Headers) -> bool:
    """Whether a browser sends a request before a click (prefetch, prerender, preview)."""
    return any(
        word in value.lower() for name in _AHEAD for value in _all(headers, name) for word in ("prefetch", "preview")
    )


def _all(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key == name]
