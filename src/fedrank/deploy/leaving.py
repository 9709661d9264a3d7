"""Everything that left a site which is one person, a line each: on the disk before it leaves.

    FOLDER/left.jsonl

A site that waits says so again and again: what is the same as the last time is counted in the last line, which is
written over. Its numbers have a fixed width, so that nothing moves.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from fedrank.files import parse_json
from fedrank.wire import Label

LEFT = "left.jsonl"


@dataclass(frozen=True)
class LeftBytes:
    """What left, once or several times."""

    at: float  # seconds since 1970, the last time
    what: str
    times: int
    bytes: int  # of all times


class LeavingJournal:
    """The file of a site at work, which alone writes it."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / LEFT
        self._last: tuple[str, int, LeftBytes] | None = None  # of which run and round, where the line is, what it says

    def note(self, asked: Label, kind: str, size: int) -> None:
        """Write down an answer that is about to leave."""
        what = "that it does not, and why" if kind == "refused" else f"answer to {asked.kind}"
        one = LeftBytes(time.time(), f"round {asked.round}: {what}", 1, size)
        with open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            of = f"{asked.run.hex()} {one.what}"
            if self._last is not None and self._last[0] == of and os.fstat(file.fileno()).st_size > self._last[1]:
                _, place, before = self._last
                one = LeftBytes(one.at, one.what, before.times + 1, before.bytes + size)
            else:
                content = file.read()
                place = content.rfind(b"\n") + 1  # what is behind it was being written when somebody was killed
                file.truncate(place)
            file.seek(place)
            file.write(_line(one))
            file.flush()
            os.fsync(file.fileno())
        self._last = of, place, one


def what_left(folder: Path) -> list[LeftBytes]:
    """Everything that left a site, in order; a line that cannot be read is told as such."""
    try:
        lines = (Path(folder) / LEFT).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [_read(line, f"line {number} of {Path(folder) / LEFT}") for number, line in enumerate(lines, start=1)]


def _line(one: LeftBytes) -> bytes:
    said = json.dumps(one.what, ensure_ascii=False)
    return f'{{"at": {one.at:14.3f}, "times": {one.times:9}, "bytes": {one.bytes:15}, "what": {said}}}\n'.encode()


def _read(line: bytes, where: str) -> LeftBytes:
    try:
        found = parse_json(line)
        return LeftBytes(float(found["at"]), str(found["what"]), int(found["times"]), int(found["bytes"]))
    except (ValueError, KeyError, TypeError):
        return LeftBytes(0.0, f"something that nobody can tell any more: {where} is damaged", 1, 0)
