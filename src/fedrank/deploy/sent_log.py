"""Everything that left a site which is one person, a line each: on the disk before it leaves.

    FOLDER/left.jsonl

A site that waits says so again and again: what was said before of the same round is counted in its line, which is
written over. Numbers have a fixed width, so that nothing moves.
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
    """What left, once or several times."""

    at: float  # seconds since 1970, the last time
    run: str  # hexadecimal
    what: str
    times: int
    bytes: int  # of all times


class SentLog:
    """The file of a site at work, which alone writes it."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / LEFT
        self._lines: dict[tuple[str, str], tuple[int, SentTotals]] | None = None  # by run and what: where, and so far
        self._end = 0

    def note(self, asked: Label, kind: str, size: int) -> None:
        """Write down an answer that is about to leave."""
        what = "that it does not, and why" if kind == "refused" else f"answer to {asked.kind}"
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
        """What is there; half a line was being written when somebody was killed, and what it says has not left."""
        content = file.read()
        self._end = content.rfind(b"\n") + 1
        file.truncate(self._end)
        self._lines, place = {}, 0
        for line in content[: self._end].splitlines(keepends=True):
            if (one := _read(line)) is not None and _line(one) == line:
                self._lines[one.run, one.what] = place, one
            place += len(line)


def what_was_sent(folder: Path) -> list[SentTotals]:
    """Everything that left a site, in order; a line that cannot be read is told as such."""
    try:
        lines = (Path(folder) / LEFT).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    damaged = "something that nobody can tell any more: line {} of {} is damaged"
    return [
        _read(line) or SentTotals(0.0, "", damaged.format(number, Path(folder) / LEFT), 1, 0)
        for number, line in enumerate(lines, start=1)
    ]


def _line(one: SentTotals) -> bytes:
    numbers = f'"at": {one.at:14.3f}, "times": {one.times:9}, "bytes": {one.bytes:15}'
    said = json.dumps(one.what, ensure_ascii=False)
    return f'{{{numbers}, "run": "{one.run}", "what": {said}}}\n'.encode()


def _read(line: bytes) -> SentTotals | None:
    """None: it is damaged."""
    try:
        found = parse_json(line)
        return SentTotals(
            float(found["at"]), str(found["run"]), str(found["what"]), int(found["times"]), int(found["bytes"])
        )
    except (ValueError, KeyError, TypeError):
        return None
