"""Files of arrays with a header, mapped when they are read, and refused when a single bit is wrong.

A file is `BEGIN` (format, version, bytes of the header and its checksum), the header (JSON) and the parts: arrays in
the order of the header's list "parts", which has name, shape, place and checksum (BLAKE2b, 16 bytes) of each. The first
part begins at the next multiple of 64 bytes behind the header, and places count from there. Types are not in the file:
a reader knows them by the part's name, behind the last dot. A header may end in a "proof" of all that stands before it.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.files import opened, parse_json, writing

VERSION = 3  # 1 had no document frequencies, 2 a fingerprint of 64 bits
FORMAT = b"fedrank sketch\n\0"
BEGIN = struct.Struct("<16sII16s")  # format, version, bytes of the header, its checksum
LONGEST_HEADER = 1 << 20  # bytes
ALIGN = 64  # bytes

Part = NDArray[Any]


# What parsing raises where checksums are right: they do not make the sender honest.
UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


class SketchFileError(ValueError):
    """The file is no sketch that this fedrank can trust."""


def write_arrays(
    path: Path,
    settings: Mapping[str, Any],
    parts: Mapping[str, Part],
    types: Mapping[str, str],
    private: bool,  # only its owner can read it
    prove: Callable[[bytes], bytes] | None = None,  # of the header, and so of every part
) -> None:
    """Write a file whole or not at all."""
    typed = {name: np.ascontiguousarray(array, dtype=_type(name, types)) for name, array in parts.items()}
    entries, at = [], 0
    for name, array in typed.items():
        entries.append({"name": name, "shape": list(array.shape), "at": at, "sum": _digest(_bytes(array)).hex()})
        at += -(-array.nbytes // ALIGN) * ALIGN
    content = {**settings, "parts": entries}
    if prove is not None:
        content["proof"] = prove(json.dumps(content).encode()).hex()
    header = json.dumps(content).encode()
    with writing(path, private) as out:
        out.write(BEGIN.pack(FORMAT, VERSION, len(header), _digest(header)))
        out.write(header)
        for array in typed.values():
            out.write(bytes(-out.tell() % ALIGN))
            out.write(_bytes(array))


def read_arrays(path: Path, types: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Part]]:
    """Header and mapped parts of a file; one that is damaged, cut short or of another version is refused."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < BEGIN.size:
            raise SketchFileError(f"{path}: {size} bytes are no sketch file; was it cut short?")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    form, version, length, checksum = BEGIN.unpack_from(data)
    if form != FORMAT:
        raise SketchFileError(f"{path} is no sketch file; make one by `fedrank silo sketch`")
    if version != VERSION:
        mend = "update fedrank" if version > VERSION else _ANEW
        raise SketchFileError(f"{path} has version {version}, and this fedrank reads version {VERSION}; {mend}")
    raw = data[BEGIN.size : BEGIN.size + length] if length <= LONGEST_HEADER else b""
    if _digest(raw) != checksum:
        raise SketchFileError(f"{path}: the header is damaged or cut short; {_AGAIN}")
    start = -(-(BEGIN.size + length) // ALIGN) * ALIGN
    try:
        header = parse_json(raw)
        parts = {entry["name"]: _mapped(data, start, entry, types, path) for entry in header["parts"]}
    except SketchFileError:
        raise
    except UNREADABLE as error:
        raise SketchFileError(f"{path}: a header that makes no sense ({error!r}); {_AGAIN}") from None
    return header, parts


_AGAIN = "copy it again, or make it anew"
_ANEW = "sketch the documents anew by `fedrank silo sketch`, or ask whoever sent it for a new copy"


def _mapped(data: mmap.mmap, start: int, entry: Mapping[str, Any], types: Mapping[str, str], path: Path) -> Part:
    dtype, shape = _type(entry["name"], types), tuple(entry["shape"])
    count, at = prod(shape), start + entry["at"]
    if min(shape, default=0) < 0 or at < start or at + count * dtype.itemsize > len(data):
        raise SketchFileError(f"{path} ends within the part {entry['name']!r}: it was cut short; {_AGAIN}")
    array: Part = np.frombuffer(data, dtype=dtype, count=count, offset=at if count else 0).reshape(shape)
    if _digest(_bytes(array)).hex() != entry["sum"]:
        raise SketchFileError(f"{path}: the part {entry['name']!r} is damaged; {_AGAIN}")
    return array


def _type(name: str, types: Mapping[str, str]) -> np.dtype[Any]:
    return np.dtype(types[name.rpartition(".")[2]])


def _bytes(array: Part) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
