"""One binary envelope for all messages: calls, updates and letters between silos.

    magic, version, kind, run, round, attempt, sender | parts: name, type, number of values, bytes | checksum

A receiver states what it expects, and anything else is refused: no size in a message is trusted, nothing is unpickled,
and no more memory is used than expected. The checksum detects damage, not forgery, which needs signatures or a secure
channel.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC, VERSION = b"frnk", 1
SERVER = -1  # the sender id of a server
_HEAD = struct.Struct("<4sH16s16sQIqB")  # magic, version, kind, run, round, attempt, sender, number of parts
_PART = struct.Struct("<16s4sQ")  # name, type, number of values
_SUM = 16  # bytes of the checksum
Value = NDArray[Any] | bytes


class Refused(ValueError):
    """A message that does not match the expectation."""


@dataclass(frozen=True)
class Label:
    """The header of a message: its kind, run, round and attempt."""

    kind: str  # at most 16 ASCII letters
    run: bytes  # 16 bytes that identify a run
    round: int
    attempt: int = 0  # number of the attempt at this round
    sender: int = SERVER


@dataclass(frozen=True)
class Part:
    """The expected type and size of one part of a message."""

    type: str | np.dtype[Any]  # a NumPy type such as "<f4", or a record; "|S" is bytes
    size: int  # number of values, or maximum number of bytes
    finite: bool = True  # whether all numbers must be finite


def pack(label: Label, parts: Mapping[str, Value]) -> bytes:
    """Encode a message."""
    run, kind = label.run, label.kind.encode("ascii")
    if len(run) != 16 or not 0 < len(kind) <= 16:
        raise ValueError(f"a run must have 16 bytes and a kind 1 to 16 letters (got {len(run)} and {len(kind)})")
    pieces = [
        _HEAD.pack(MAGIC, VERSION, kind, run, label.round, label.attempt, label.sender, len(parts)),
    ]
    for name, value in parts.items():
        if isinstance(value, bytes):
            pieces += [_PART.pack(name.encode(), b"|S", len(value)), value]
        else:
            array = np.ascontiguousarray(value)
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            pieces += [_PART.pack(name.encode(), _code(little.dtype), little.size), little.tobytes()]
    content = b"".join(pieces)
    return content + hashlib.blake2b(content, digest_size=_SUM).digest()


def unpack(
    content: bytes, expected: Label, parts: Mapping[str, Part], senders: Collection[int] | None = None
) -> tuple[int, dict[str, Any]]:
    """Decode a message into sender and parts (flat arrays or bytes). `senders` are the allowed senders."""
    largest = _HEAD.size + sum(_PART.size + _bytes(part) for part in parts.values()) + _SUM
    if not isinstance(content, bytes):
        raise Refused(f"a message of kind {expected.kind} must be bytes, not {type(content).__name__}")
    if len(content) < _HEAD.size + _SUM:
        raise Refused(f"{len(content)} bytes are too few for a message of kind {expected.kind}")
    magic, version, kind, run, round_, attempt, sender, count = _HEAD.unpack_from(content)
    if magic != MAGIC:
        raise Refused("it is not a message of fedrank")
    for what, its, wanted in (
        ("version", version, VERSION),
        ("kind", kind.rstrip(b"\0").decode("ascii", "replace"), expected.kind),
        ("run", run.hex(), expected.run.hex()),
        ("round", round_, expected.round),
        ("attempt", attempt, expected.attempt),
    ):
        if its != wanted:
            raise Refused(f"it is of {what} {its}, but {what} {wanted} was expected")
    if sender not in (senders if senders is not None else (expected.sender,)):
        raise Refused(f"it comes from {sender}, which was not asked")
    if len(content) > largest:
        raise Refused(f"{len(content)} bytes are too many for a message of kind {expected.kind}: at most {largest}")
    body, total = content[:-_SUM], content[-_SUM:]
    if hashlib.blake2b(body, digest_size=_SUM).digest() != total:
        raise Refused("its checksum is wrong: it was damaged in transit")
    if count != len(parts):
        raise Refused(f"it has {count} parts, but {len(parts)} were expected: {', '.join(parts)}")
    values: dict[str, Any] = {}
    at = _HEAD.size
    for name, part in parts.items():
        values[name], at = _read(body, at, name, part)
    if at != len(body):
        raise Refused(f"{len(body) - at} bytes follow its last part")
    return sender, values


def read_label(content: bytes) -> Label:
    """Return the unverified header of a message, by which its receiver decides what to expect."""
    if not isinstance(content, bytes) or len(content) < _HEAD.size + _SUM:
        raise Refused("it is too short for a message of fedrank")
    magic, version, kind, run, round_, attempt, sender, _ = _HEAD.unpack_from(content)
    if magic != MAGIC or version != VERSION:
        raise Refused("it is not a message of fedrank, or from another version")
    return Label(kind.rstrip(b"\0").decode("ascii", "replace"), run, round_, attempt, sender)


def _read(body: bytes, at: int, name: str, part: Part) -> tuple[Any, int]:
    if at + _PART.size > len(body):
        raise Refused(f"it ends before its part {name}")
    its_name, code, size = _PART.unpack_from(body, at)
    at += _PART.size
    if its_name.rstrip(b"\0") != name.encode():
        raise Refused(f"it has a part {its_name.rstrip(bytes(1))!r} where {name} was expected")
    if part.type == "|S":
        if code.rstrip(b"\0") != b"|S" or size > part.size or at + size > len(body):
            raise Refused(f"its {name} has {size} bytes of type {code!r}, but at most {part.size} were expected")
        return body[at : at + size], at + size
    wanted = np.dtype(part.type)
    if code != _code(wanted).ljust(4, b"\0") or size != part.size:
        its_type = code.rstrip(b"\0").decode("ascii", "replace")
        raise Refused(f"its {name} has {size} values of type {its_type}, but {part.size} of {part.type} were expected")
    end = at + size * wanted.itemsize
    if end > len(body):
        raise Refused(f"it ends within its part {name}")
    values = np.frombuffer(body[at:end], dtype=wanted)
    if part.finite and not all(np.isfinite(column).all() for column in _columns(values)):
        raise Refused(f"its {name} has values that are not finite")
    return values, end


def _columns(values: NDArray[Any]) -> list[NDArray[Any]]:
    names = values.dtype.names
    columns = [values] if names is None else [values[name] for name in names]
    return [column for column in columns if column.dtype.kind == "f"]


def _code(kind: np.dtype[Any]) -> bytes:
    """Encode a type in four bytes; records are encoded by their size."""
    return (f"V{kind.itemsize}" if kind.names else kind.str).encode()


def _bytes(part: Part) -> int:
    return part.size if part.type == "|S" else part.size * np.dtype(part.type).itemsize
