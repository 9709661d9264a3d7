"""What the coordinator received from sites: for each site and kind of request, the number of answers and their bytes.

    RUN/received.csv

Totals are overwritten in place as soon as an answer arrives, before it is used, so a killed coordinator loses none.
Numbers have a fixed width, so no other line moves.
"""

from __future__ import annotations

import csv
import threading
from concurrent.futures import Future
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.heads import split
from fedrank.deploy.records import printable
from fedrank.deploy.settings import BROWSER
from fedrank.deploy.site_calls import Send
from fedrank.files import write_atomic
from fedrank.wire import Label, Refused

RECEIVED = "received.csv"
ANSWERS = ("facts", "letters", "answers", "grown", "refused")  # kinds of answers; others are counted as UNKNOWN
UNKNOWN, HEADS = "unknown", "heads"
_HEADER = "site,request,answer,times,bytes\n"
_MAX_TEXT = 200  # characters of a site's description of its data


class Total(NamedTuple):
    """All answers of one kind from one site to one kind of request."""

    site: str
    request: str
    answer: str
    times: int
    bytes: int  # without the envelopes of the transport


class ReceivedAnswers:
    """The record of a running coordinator, its only writer."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / RECEIVED
        self.described: dict[str, dict[str, Any]] = {}  # by site: its description of its data, from hello
        self._lock = threading.Lock()
        self._pending: dict[Future[bytes], tuple[str, Label]] = {}
        self._totals = {one[:3]: one for one in read_totals(self.path)}
        self._starts: dict[tuple[str, str, str], int] = {}  # where the line of a total starts in the file
        self._end = 0  # of the last line
        self._write()

    def recording(self, send: Send) -> Send:
        """The same transport, whose answers are recorded."""

        def recorded(site: str, request: bytes, patience: float) -> Future[bytes]:
            future = send(site, request, patience)
            with self._lock:
                self._pending[future] = site, wire.read_label(request)
            future.add_done_callback(self._record)
            return future

        # A shared folder also returns answers to the same request of an earlier process.
        recorded.keeps_requests = getattr(send, "keeps_requests", False)  # type: ignore[attr-defined]
        return recorded

    def totals(self) -> list[Total]:
        """Everything received so far."""
        for future in [one for one in list(self._pending) if one.done()]:
            self._record(future)  # its callback may not have been called yet
        with self._lock:
            self._write()
            return list(self._totals.values())

    def _record(self, future: Future[bytes]) -> None:
        with self._lock:
            site, asked = self._pending.pop(future, (None, None))
            if site is None or asked is None or future.cancelled() or future.exception() is not None:
                return
            answer = future.result()
            kind = _kind(answer)
            message = _without_heads(answer)
            if (asked.kind, kind) == ("hello", "facts"):
                self._describe(site, message)
            if len(message) < len(answer):
                self._add(site, HEADS, HEADS, len(answer) - len(message))
            self._add(site, asked.kind, kind, len(message))

    def _add(self, site: str, request: str, answer: str, bytes: int) -> None:
        key = site, request, answer
        before = self._totals.get(key, Total(*key, 0, 0))
        self._totals[key] = Total(*key, before.times + 1, before.bytes + bytes)
        line = _line(self._totals[key]).encode()
        start = self._starts.setdefault(key, self._end)
        self._end = max(self._end, start + len(line))
        try:
            with open(self.path, "r+b") as file:
                file.seek(start)
                file.write(line)
        except OSError:
            pass  # totals() writes the whole file, and raises if it cannot

    def _describe(self, site: str, message: bytes) -> None:
        try:
            data = protocol.read_facts(message, wire.read_label(message)).get("data")
        except Refused:
            return
        if not isinstance(data, dict):
            return
        text, days, unit = data.get("kind"), data.get("keep_days"), data.get("unit")
        self.described[site] = {
            "data": printable(text)[:_MAX_TEXT] if isinstance(text, str) else "not described",
            "keep_days": days if type(days) is int and days > 0 else None,
            **({"unit": unit} if unit == BROWSER else {}),
        }

    def _write(self) -> None:
        lines = [_line(one) for one in self._totals.values()]
        ends = list(accumulate(map(len, lines), initial=len(_HEADER)))
        self._starts, self._end = dict(zip(self._totals, ends, strict=False)), ends[-1]
        write_atomic(self.path, _HEADER + "".join(lines), private=True)


def read_totals(path: Path) -> list[Total]:
    """The totals in a file; an incomplete last line belongs to an answer that was not used."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    try:
        return [Total(row[0], row[1], row[2], int(row[3]), int(row[4])) for row in rows[1:]]
    except (IndexError, ValueError):
        raise ValueError(
            f"{path} is damaged, and the privacy card cannot be made without it; restore it from a backup"
        ) from None


def _without_heads(answer: bytes) -> bytes:
    try:
        return split(answer)[0]
    except Refused:  # its heads are counted with it
        return answer


def _kind(answer: bytes) -> str:
    try:
        kind = wire.read_label(answer).kind
    except Refused:
        return UNKNOWN
    return kind if kind in ANSWERS else UNKNOWN


def _line(one: Total) -> str:
    return f"{one.site},{one.request},{one.answer},{one.times:9},{one.bytes:15}\n"
