"""The history of a run: the updates of all clients at rounds 1, 1 + every, 1 + 2 every, ..., stored for unlearning.

The folder has chunk files and `index.json`, which names the valid ones, with their checksums. A chunk is written
under a new name before the index is replaced by one that names it, and files that no index names are deleted
afterwards: after an interruption at any time, the history is complete, either in its old or in its new state.

A chunk is `HEAD` and a zlib stream of five arrays, little-endian: rounds, clients in each, whether the weights of each
are stored, ids of clients, then weights (float64) and updates (float32). In the last two all first bytes come first,
then all second ones, and so on: similar exponents are then adjacent, which makes them compressible.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.files import for_owner, is_plain, parse_json, private_folder, read_bytes, sync, write_atomic
from fedrank.types import Messages, Updates, Weights

FORMAT = 1
ROUNDS_IN_CHUNK = 32
CHUNK_BYTES = 4 << 20  # a chunk of large rounds contains fewer of them
MAGIC = b"fedrank history\n"
HEAD = struct.Struct("<16sIIQQ")  # MAGIC, rounds, how many of them with weights, clients in all of them, parameters
INDEX = "index.json"
INDEX_BYTES = 1024  # about: beginning and end
ENTRY_BYTES = 160  # about: a chunk's line in the index


class HistoryError(ValueError):
    """A history that cannot be used, with the reason and what to do."""


class Stored(NamedTuple):
    """The stored data of one round."""

    round: int
    ids: NDArray[np.int64]  # [n]: clients that participated
    updates: Updates  # [n, parameters], as they reached the server
    weights: Weights | None  # [parameters] before the round; None where `forget` removed weights a client influenced


@dataclass(frozen=True)
class _Entry:
    """A chunk in the index."""

    file: str
    first: int  # round
    last: int  # round
    rounds: int
    bytes: int
    crc: int


@dataclass(frozen=True)
class Index:
    """The sizes of a history, and its chunks."""

    clients: int
    parameters: int
    every: int
    version: int  # number of times clients were forgotten; new chunks need new names
    chunks: tuple[_Entry, ...]


def size_beforehand(clients: int, parameters: int, rounds: int, every: int) -> int:
    """Upper bound on the bytes of the history of such a run: incompressible, and all clients participate."""
    _check_sizes(clients, parameters, every)
    stored = -(-rounds // every)
    raw = stored * (17 + 8 * parameters + clients * (8 + 4 * parameters))
    chunks = -(-stored // _rounds_in_chunk(clients, parameters))
    # An incompressible stream is stored, with five bytes for every 16,383, and a few at its ends.
    return INDEX_BYTES + raw + 5 * (raw // 16_383) + chunks * (HEAD.size + 32 + ENTRY_BYTES)


class HistoryWriter:
    """Writes the history of a run that may be stopped at any time; the bytes do not depend on how often it was.

    `add` holds a few rounds in memory. Call `keep` before a checkpoint is written; a resumed run passes the
    `round` of that checkpoint, and later rounds are dropped. With round 0 a new history begins.
    """

    def __init__(self, folder: Path | str, clients: int, parameters: int, every: int, round: int = 0):
        _check_sizes(clients, parameters, every)
        self.folder, self.every = Path(folder), every
        self._index = Index(clients, parameters, every, 0, ())
        self._waiting: list[Stored] = []
        self._written = 0  # of the waiting rounds, how many are in the last chunk of the index
        self._new: list[Path] = []  # chunks since the index was written
        private_folder(self.folder)
        if round > 0:
            self._resume(round)
        _write_index(self.folder, self._index)
        _sweep(self.folder, self._index)

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.keep()

    @property
    def next(self) -> int:
        """The round to add next."""
        if self._waiting:
            return self._waiting[-1].round + self.every
        return self._index.chunks[-1].last + self.every if self._index.chunks else 1

    def wants(self, round: int) -> bool:
        """Whether this round is to be added."""
        return (round - 1) % self.every == 0

    def watch(self, messages: Messages) -> None:
        """Add the messages of a round, if it is wanted."""
        if self.wants(messages.round):
            self.add(messages.round, messages.ids, messages.updates, messages.weights)

    def add(self, round: int, ids: NDArray[np.int64], updates: Updates, weights_before: Weights) -> None:
        """Add a round that the writer `wants`; arrays are copied."""
        index = self._index
        if round != self.next:
            raise HistoryError(f"round {round} is out of order: with every = {self.every} the next is {self.next}")
        if updates.shape != (len(ids), index.parameters) or weights_before.shape != (index.parameters,):
            raise HistoryError(
                f"round {round}: updates {updates.shape} of {len(ids)} clients and weights {weights_before.shape} do "
                f"not fit {index.parameters} parameters; a history needs one model shared by all clients"
            )
        if len(ids) > index.clients or len(np.unique(ids)) < len(ids):
            raise HistoryError(
                f"round {round}: {len(ids)} updates of {len(np.unique(ids))} of {index.clients} clients; "
                "every client must send one update"
            )
        stored = Stored(
            int(round),
            np.array(ids, dtype=np.int64),
            np.array(updates, dtype=np.float32, order="C"),
            np.array(weights_before, dtype=np.float64),
        )
        self._waiting.append(stored)
        if len(self._waiting) == _rounds_in_chunk(index.clients, index.parameters):
            self._write_waiting()
            self._waiting, self._written = [], 0

    def keep(self) -> None:
        """Make all added rounds durable."""
        if len(self._waiting) > self._written:
            self._write_waiting()
        if not self._new:
            return
        for path in self._new:
            sync(path)
        self._new.clear()
        _write_index(self.folder, self._index)
        _sweep(self.folder, self._index)

    def _write_waiting(self) -> None:
        """Write a chunk; it counts once the index names it, and is made durable before that."""
        entry = _write_chunk(self.folder, self._index, self._waiting)
        before = self._index.chunks[:-1] if self._written else self._index.chunks
        self._index = replace(self._index, chunks=(*before, entry))
        self._written = len(self._waiting)
        self._new.append(self.folder / entry.file)

    def _resume(self, round: int) -> None:
        found = _read_index(self.folder)
        theirs, ours = ((one.clients, one.parameters, one.every) for one in (found, self._index))
        if theirs != ours:
            raise HistoryError(
                f"{self.folder} was recorded with clients, parameters, every = {', '.join(map(str, theirs))}, but the "
                f"run has {ours}, so it cannot be continued; remove the run folder, and run again"
            )
        last = 1 + (round - 1) // self.every * self.every
        have = found.chunks[-1].last if found.chunks else 0
        if have < last:
            raise HistoryError(
                f"{self.folder} ends with round {have}, but the run is resumed after round {round}: round {last} is "
                "missing and cannot be recovered; remove the run folder, and run again"
            )
        whole = [chunk for chunk in found.chunks if chunk.last <= last]
        cut = [chunk for chunk in found.chunks if chunk.first <= last < chunk.last]
        if cut:
            self._waiting = [one for one in _read_chunk(self.folder, found, cut[0]) if one.round <= last]
        elif whole and whole[-1].rounds < _rounds_in_chunk(found.clients, found.parameters):
            self._waiting = _read_chunk(self.folder, found, whole[-1])
            self._written = len(self._waiting)
        self._index = replace(found, chunks=tuple(whole))
        if cut:
            self.keep()


@dataclass(frozen=True)
class History:
    """A recorded history, read one chunk at a time."""

    folder: Path
    index: Index

    @classmethod
    def open(cls, folder: Path | str) -> History:
        """Read the index; a damaged chunk raises an error when it is read."""
        folder = Path(folder)
        return cls(folder, _read_index(folder))

    @property
    def last(self) -> int:
        """The last stored round; 0 if there is none."""
        return self.index.chunks[-1].last if self.index.chunks else 0

    @property
    def bytes(self) -> int:
        """Bytes on disk, without the index."""
        return sum(chunk.bytes for chunk in self.index.chunks)

    def __len__(self) -> int:
        return sum(chunk.rounds for chunk in self.index.chunks)

    def __iter__(self) -> Iterator[Stored]:
        for chunk in self.index.chunks:
            yield from _read_chunk(self.folder, self.index, chunk)

    def lengths(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float64]]]:
        """(round, ids, L2 norm of each update), round by round."""
        for chunk in self.index.chunks:
            rounds = _read_chunk(self.folder, self.index, chunk)
            every = lengths_of(np.concatenate([stored.updates for stored in rounds]))
            end = 0
            for stored in rounds:
                begin, end = end, end + len(stored.ids)
                yield stored.round, stored.ids, every[begin:end]

    def holds(self, client: int) -> bool:
        """Whether any stored round has an update of this client."""
        return any(client in stored.ids for stored in self)

    def forget(self, clients: int | Collection[int]) -> History:
        """Rewrite the history without the updates of these clients, and without all weights they may have influenced.

        Those are the weights of all rounds after the first, because they are the global model. The updates of other
        clients stay, though they started from such weights. Files are deleted; a disk may retain their bytes until it
        needs the space.
        """
        leaving = np.array([clients] if isinstance(clients, int) else sorted(clients), dtype=np.int64)
        before = _read_index(self.folder)
        index = replace(before, chunks=(), version=before.version + 1)
        for chunk in before.chunks:
            rows = [_without(stored, leaving) for stored in _read_chunk(self.folder, before, chunk)]
            entry = _write_chunk(self.folder, index, rows)
            index = replace(index, chunks=(*index.chunks, entry))
            sync(self.folder / entry.file)
        _write_index(self.folder, index)
        _sweep(self.folder, index)
        return History(self.folder, index)


def lengths_of(updates: Updates) -> NDArray[np.float64]:
    """L2 norm of every update."""
    return kernels.sums.lengths(np.ascontiguousarray(updates))


def _without(stored: Stored, leaving: NDArray[np.int64]) -> Stored:
    stays = ~np.isin(stored.ids, leaving)
    weights = stored.weights if stored.round == 1 else None
    return Stored(stored.round, stored.ids[stays], stored.updates[stays], weights)


def _check_sizes(clients: int, parameters: int, every: int) -> None:
    for name, value in (("clients", clients), ("parameters", parameters), ("every", every)):
        if value < 1:
            raise HistoryError(f"{name} must be at least 1 (got {value})")


def _rounds_in_chunk(clients: int, parameters: int) -> int:
    return max(1, min(ROUNDS_IN_CHUNK, CHUNK_BYTES // (4 * clients * parameters)))


def _write_chunk(folder: Path, index: Index, rounds: Sequence[Stored]) -> _Entry:
    weights = [one.weights for one in rounds if one.weights is not None]
    ids = np.concatenate([one.ids for one in rounds])
    updates = np.concatenate([one.updates for one in rounds])
    body = b"".join(
        [
            np.array([one.round for one in rounds], dtype="<i8").tobytes(),
            np.array([len(one.ids) for one in rounds], dtype="<i8").tobytes(),
            np.array([one.weights is not None for one in rounds], dtype=np.uint8).tobytes(),
            ids.astype("<i8").tobytes(),
            _shuffled(np.array(weights, dtype="<f8")),
            _shuffled(updates.astype("<f4")),
        ]
    )
    content = HEAD.pack(MAGIC, len(rounds), len(weights), len(ids), index.parameters) + zlib.compress(body, 1)
    first, last = rounds[0].round, rounds[-1].round
    name = f"{first:08d}-{last:08d}.{index.version}.chunk"
    with open(folder / name, "wb", opener=for_owner) as file:
        file.write(content)
    return _Entry(name, first, last, len(rounds), len(content), zlib.crc32(content))


def _read_chunk(folder: Path, index: Index, entry: _Entry) -> list[Stored]:
    path = folder / entry.file
    try:
        content = read_bytes(path, size_beforehand(index.clients, index.parameters, entry.rounds, 1))
    except FileNotFoundError:
        raise HistoryError(_damaged(path, f"rounds {entry.first} to {entry.last} are missing")) from None
    if len(content) != entry.bytes or zlib.crc32(content) != entry.crc:
        raise HistoryError(_damaged(path, "its checksum differs from the one in the index"))
    try:
        return _unpacked(content, index, entry)
    except (zlib.error, struct.error, ValueError) as problem:
        raise HistoryError(_damaged(path, f"{problem}")) from None


def _unpacked(content: bytes, index: Index, entry: _Entry) -> list[Stored]:
    magic, rounds, weighed, rows, parameters = HEAD.unpack_from(content)
    size = 17 * rounds + 8 * rows + 8 * weighed * parameters + 4 * rows * parameters
    if magic != MAGIC or parameters != index.parameters or rounds != entry.rounds:
        raise ValueError("it does not belong to this history")
    body = zlib.decompressobj().decompress(content[HEAD.size :], size + 1)
    if len(body) != size:
        raise ValueError(f"it has {len(body)} bytes instead of {size}")
    numbers = np.frombuffer(body, "<i8", rounds).astype(np.int64)
    counts = np.frombuffer(body, "<i8", rounds, 8 * rounds).astype(np.int64)
    has = np.frombuffer(body, np.uint8, rounds, 16 * rounds).astype(np.bool_)
    ids = np.frombuffer(body, "<i8", rows, at := 17 * rounds).astype(np.int64)
    at += 8 * rows
    middle = at + 8 * weighed * parameters
    weights = iter(_restored(body[at:middle], "<f8").reshape(weighed, parameters))
    updates = _restored(body[middle:], "<f4").reshape(rows, parameters)
    ends = np.cumsum(counts)
    if numbers[0] != entry.first or numbers[-1] != entry.last or ends[-1] != rows or has.sum() != weighed:
        raise ValueError("it does not belong to this history")
    return [
        Stored(int(number), ids[end - count : end], updates[end - count : end], next(weights) if stored else None)
        for number, count, end, stored in zip(numbers, counts, ends, has, strict=True)
    ]


def _shuffled(values: NDArray[Any]) -> bytes:
    """All first bytes, then all second ones, and so on."""
    return values.reshape(-1).view(np.uint8).reshape(-1, values.itemsize).T.tobytes()


def _restored(content: bytes, kind: str) -> NDArray[Any]:
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(np.frombuffer(content, np.uint8).reshape(width, -1).T).reshape(-1).view(kind)


def _read_index(folder: Path) -> Index:
    path = folder / INDEX
    try:
        found = parse_json(read_bytes(path))
        if found["format"] != FORMAT:
            raise HistoryError(
                f"{path} has format {found['format']}, but this version of fedrank reads {FORMAT}; use a newer one"
            )
        chunks = tuple(_Entry(**one) for one in found["chunks"])
        index = Index(found["clients"], found["parameters"], found["every"], found["version"], chunks)
    except FileNotFoundError:
        raise HistoryError(
            f"{folder} has no recorded history to start from; record one during the run, "
            "or use a method that needs none"
        ) from None
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise HistoryError(_damaged(path, f"it cannot be read ({problem!r})")) from None
    if not all(type(one) is int for one in (index.clients, index.parameters, index.every, index.version)):
        raise HistoryError(_damaged(path, "its numbers are not integers"))
    _check_sizes(index.clients, index.parameters, index.every)
    expected = 1
    for chunk in chunks:
        if not is_plain(chunk.file) or not all(type(one) is int for one in (chunk.first, chunk.last, chunk.rounds)):
            # Checked before anything is deleted: the name could point outside the folder.
            raise HistoryError(_damaged(path, f"{chunk.file!r} is not the name of a chunk"))
        if chunk.first != expected or chunk.last != chunk.first + (chunk.rounds - 1) * index.every:
            raise HistoryError(_damaged(path, f"round {chunk.first} follows round {expected - index.every}"))
        expected = chunk.last + index.every
    return index


def _write_index(folder: Path, index: Index) -> None:
    """Replace the index atomically and durably."""
    settings = {"format": FORMAT} | {name: value for name, value in vars(index).items() if name != "chunks"}
    lines = ",\n".join("  " + json.dumps(vars(chunk)) for chunk in index.chunks)
    text = json.dumps(settings, indent=1)[:-2] + ',\n "chunks": [' + ("\n" + lines + "\n " if lines else "") + "]\n}\n"
    sync(folder)
    write_atomic(folder / INDEX, text, private=True)


def _sweep(folder: Path, index: Index) -> None:
    """Delete files that the index does not name, such as those left by a crash."""
    counts = {INDEX, *(chunk.file for chunk in index.chunks)}
    old = [path for path in folder.iterdir() if path.suffix in (".chunk", ".part") and path.name not in counts]
    for path in old:
        path.unlink()
    if old:
        sync(folder)


def _damaged(path: Path, what: str) -> str:
    return f"{path} is damaged: {what}; restore it from a copy, or use a method that needs no history"
