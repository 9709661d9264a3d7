"""Messages that a site sent, per round: written to disk before they are sent, and repeated byte for byte.

One file per round contains the answer, the digest of its call, and the state that the site's clients kept afterwards.
For a round with secure aggregation it contains the values under the masks instead of the answer: an answer is never
repeated, because the same values under different masks could be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank import wire
from fedrank.files import error_message, private_folder, write_atomic
from fedrank.wire import Label, Part

OUTBOX = "outbox"  # folder of a site with one folder per run


class OutboxError(RuntimeError):
    """The record of sent messages cannot be read."""


@dataclass(frozen=True)
class Sent:
    """One file of the outbox."""

    round: int
    attempt: int
    call: bytes  # digest of the request
    answer: bytes  # empty for secure aggregation
    values: bytes  # values under the masks of secure aggregation, one client after the other
    memory: NDArray[np.float64]  # state that clients keep, one after the other
    data: bytes = b""  # digest of the training data; empty if people are simulated


class Outbox:
    """The files of one run."""

    def __init__(self, folder: Path, run: bytes) -> None:
        self.folder, self.run = private_folder(folder), run
        self._files: dict[int, int] = {}  # round -> last attempt
        for name in sorted(path.name for path in self.folder.iterdir()):
            round, _, attempt = name.partition("-")
            if round.isdigit() and attempt.isdigit():
                self._files[int(round)] = max(int(attempt), self._files.get(int(round), 0))
        self._last: Sent | None = None

    def __len__(self) -> int:
        return len(self._files)

    @property
    def last(self) -> int:
        """The last answered round; 0 if there is none."""
        return max(self._files, default=0)

    def get(self, round: int) -> Sent | None:
        """The last message sent for a round."""
        if round not in self._files:
            return None
        attempt = self._files[round]
        if self._last is not None and (self._last.round, self._last.attempt) == (round, attempt):
            return self._last
        return self._read(self._path(round, attempt), round, attempt)

    def every(self) -> Iterator[Sent]:
        """All sent messages, with all attempts."""
        for path in sorted(self.folder.iterdir()):
            round, _, attempt = path.name.partition("-")
            if round.isdigit() and attempt.isdigit():
                yield self._read(path, int(round), int(attempt))

    def _read(self, path: Path, round: int, attempt: int) -> Sent:
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise OutboxError(
                f"{error_message(problem)}; the record of sent messages cannot be read"
            ) from None  # prose: ok
        size = len(content)
        parts = {"call": Part("|S", 32), **{name: Part("|S", size) for name in ("answer", "values", "memory")}}
        parts |= {"data": Part("|S", 32), "used": Part("|S", size)}  # `used`: of earlier versions
        try:
            _, found = wire.unpack(content, Label("sent", self.run, round, attempt), parts)
        except wire.Refused as problem:
            raise OutboxError(
                f"{path} is damaged ({problem}), so the record of sent messages is incomplete; restore it from a backup"
            ) from None
        memory = np.frombuffer(found["memory"], "<f8").astype(np.float64)
        return Sent(round, attempt, found["call"], found["answer"], found["values"], memory, found["data"])

    def put(self, sent: Sent) -> None:
        """Write a message before it is sent."""
        parts = {"call": sent.call, "answer": sent.answer, "values": sent.values, "memory": sent.memory.tobytes()}
        parts |= {"data": sent.data, "used": b""}
        content = wire.pack(Label("sent", self.run, sent.round, sent.attempt), parts)
        write_atomic(self._path(sent.round, sent.attempt), content, private=True)
        self._files[sent.round], self._last = sent.attempt, sent

    def memory_before(self, round: int) -> NDArray[np.float64] | None:
        """State that clients kept after the last earlier round; None if there is none."""
        earlier = [known for known in self._files if known < round]
        sent = self.get(max(earlier)) if earlier else None
        return None if sent is None else sent.memory

    def _path(self, round: int, attempt: int) -> Path:
        return self.folder / f"{round:08d}-{attempt:04d}"
