"""A log of everything that a one-person site sends, written to disk before sending.

    FOLDER/left.jsonl

A waiting site repeats its message many times: repetitions for the same round are counted in one line, which is
overwritten. Numbers have a fixed width, so no other line moves.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from fedrank.files import parse_json
from fedrank.wire import Label

LEFT = "left.jsonl"


@dataclass(frozen=True)
class SentTotals:
    """A sent message and its repetitions."""

    at: float  # seconds since 1970, of the last time
    run: str  # hexadecimal
    what: str
    times: int
    bytes: int  # in total


class SentLog:
    """The log of a running site, its only writer."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / LEFT
        self._lines: dict[tuple[str, str], tuple[int, SentTotals]] | None = (
            None  # by run and what: offset, totals so far
        )
        self._end = 0

    def note(self, asked: Label, kind: str, size: int) -> None:
        """Record an answer before it is sent."""
        what = "refusal with its reason" if kind == "refused" else f"answer to {asked.kind}"
        one = SentTotals(time.time(), asked.run.hex(), f"round {asked.round}: {what}", 1, size)
        with open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            if self._lines is None or os.fstat(file.fileno()).st_size != self._end:
                self._look(file)
            assert self._lines is not None
            place = self._end
            if (before := self._lines.get((one.run, one.what))) is not None:
                place, said = before
                one = replace(one, times=said.times + 1, bytes=said.bytes + size)
            line = _line(one)
            file.seek(place)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._lines[one.run, one.what] = place, one
        self._end = max(self._end, place + len(line))

    def _look(self, file: BinaryIO) -> None:
        """Read the existing lines; an incomplete line belongs to a message that was not sent."""
        content = file.read()
        self._end = content.rfind(b"\n") + 1
        file.truncate(self._end)
        self._lines, place = {}, 0
        for line in content[: self._end].splitlines(keepends=True):
            if (one := _read(line)) is not None and _line(one) == line:
                self._lines[one.run, one.what] = place, one
            place += len(line)


def what_was_sent(folder: Path) -> list[SentTotals]:
    """Everything that a site sent, in order; an unreadable line is reported as such."""
    try:
        lines = (Path(folder) / LEFT).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    damaged = "unknown: line {} of {} is damaged"
    return [
        _read(line) or SentTotals(0.0, "", damaged.format(number, Path(folder) / LEFT), 1, 0)
        for number, line in enumerate(lines, start=1)
    ]


def _line(one: SentTotals) -> bytes:
    numbers = f'"at": {one.at:14.3f}, "times": {one.times:9}, "bytes": {one.bytes:15}'
    said = json.dumps(one.what, ensure_ascii=False)
    return f'{{{numbers}, "run": "{one.run}", "what": {said}}}\n'.encode()


def _read(line: bytes) -> SentTotals | None:
    """Parse a line; None if it is damaged."""
    try:
        found = parse_json(line)
        return SentTotals(
            float(found["at"]), str(found["run"]), str(found["what"]), int(found["times"]), int(found["bytes"])
        )
    except (ValueError, KeyError, TypeError):
        return None
