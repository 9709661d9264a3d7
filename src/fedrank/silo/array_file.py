"""Files of arrays with a header, mapped when they are read, and refused when a single bit is wrong.

A file is `BEGIN` (format, version, bytes of the header and its checksum), the header (JSON) and the parts: arrays in
the order of the header's list "parts", which has name, shape, place and checksum (BLAKE2b, 16 bytes) of each. The first
part begins at the next multiple of 64 bytes behind the header, and places count from there. Types are not in the file:
a reader knows them by the part's name, behind the last dot. A header may end in a "proof" of all that stands before it.

A part may be packed: first bytes of all numbers, then second ones and so on, each such plane by zlib; "packed" has the
bytes of every plane, and the checksum is of these. Small numbers leave all planes but the first empty, and noise is
coded by how often each number occurs. Such files have version 4; one in which nothing is packed has version 3.

A packed file grows in memory, and may come from somebody who means harm: whoever sends n bytes gets no more than
`GROWTH` n of ours. The writer keeps to that, too, and packs nothing where it cannot.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.files import opened, parse_json, writing

PLAIN, PACKED = 3, 4  # versions; 1 had no document frequencies, 2 a fingerprint of 64 bits
FORMAT = b"fedrank sketch\n\0"
BEGIN = struct.Struct("<16sII16s")  # format, version, bytes of the header, its checksum
MAX_HEADER_LENGTH = 1 << 20  # bytes
ALIGN = 64  # bytes
GROWTH = 64  # times the size of its file that anything may take in memory
MIDDLE = 128  # is added to packed numbers: those around 0 fit into a byte

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
    planes: Mapping[str, Sequence[bytes]] | None = None,  # of parts that are packed, as `pack` made them
) -> None:
    """Write a file that only its owner can read, completely or not at all."""
    planes = planes or {}
    entries, written, at = [], [], 0
    for name, array in parts.items():
        typed = np.ascontiguousarray(array, dtype=_type(name, types))
        found = b"".join(planes[name]) if name in planes else _bytes(typed)
        entry = {"name": name, "shape": list(typed.shape), "at": at, "sum": _digest(found).hex()}
        entries.append(entry | ({"packed": [len(plane) for plane in planes[name]]} if name in planes else {}))
        written.append(found)
        at += -(-len(found) // ALIGN) * ALIGN
    content = {**settings, "parts": entries}
    header = json.dumps(content).encode()
    with writing(path, private=True) as out:
        out.write(BEGIN.pack(FORMAT, PACKED if planes else PLAIN, len(header), _digest(header)))
        out.write(header)
        for found in written:
            out.write(bytes(-out.tell() % ALIGN))
            out.write(found)


def pack(name: str, array: Part, types: Mapping[str, str]) -> list[bytes]:
    """The planes of one part."""
    dtype = _type(name, types)
    unsigned = np.dtype(f"<u{dtype.itemsize}")
    numbers = np.ascontiguousarray(array, dtype=dtype).view(unsigned) + unsigned.type(MIDDLE)
    columns = numbers.reshape(-1).view(np.uint8).reshape(-1, dtype.itemsize).T
    return [_deflated(np.ascontiguousarray(column).data) for column in columns]


def _deflated(data: memoryview) -> bytes:
    # Noise has no words that come again: runs, and how often each byte occurs, are all there is to find.
    deflate = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_RLE)
    return deflate.compress(data) + deflate.flush()


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
    if version not in (PLAIN, PACKED):
        mend = "update fedrank" if version > PACKED else _ANEW
        raise SketchFileError(
            f"{path} has version {version}, and this fedrank reads versions {PLAIN} and {PACKED}; {mend}"
        )
    raw = data[BEGIN.size : BEGIN.size + length] if length <= MAX_HEADER_LENGTH else b""
    if _digest(raw) != checksum:
        raise SketchFileError(f"{path}: the header is damaged or cut short; {_AGAIN}")
    start = -(-(BEGIN.size + length) // ALIGN) * ALIGN
    try:
        header = parse_json(raw)
        parts, left = {}, GROWTH * size
        for entry in header["parts"]:
            parts[entry["name"]] = _read(data, start, entry, types, path, left)
            left -= parts[entry["name"]].nbytes if "packed" in entry else 0
    except SketchFileError:
        raise
    except UNREADABLE as error:
        raise SketchFileError(f"{path}: a header that makes no sense ({error!r}); {_AGAIN}") from None
    return header, parts


_AGAIN = "copy it again, or make it anew"
_ANEW = "sketch the documents anew by `fedrank silo sketch`, or ask whoever sent it for a new copy"


def _read(
    data: mmap.mmap, start: int, entry: Mapping[str, Any], types: Mapping[str, str], path: Path, most: int
) -> Part:
    """One part: mapped, or unpacked into `most` bytes at most."""
    dtype, shape = _type(entry["name"], types), tuple(entry["shape"])
    count, at = prod(shape), start + entry["at"]
    planes = entry.get("packed")
    sizes = (count * dtype.itemsize,) if planes is None else tuple(planes)
    if min((*shape, *sizes), default=0) < 0 or at < start or at + sum(sizes) > len(data):
        raise SketchFileError(f"{path} ends within the part {entry['name']!r}: it was cut short; {_AGAIN}")
    raw = memoryview(data)[at : at + sum(sizes)]
    mapped: Part = np.empty(0)
    if planes is None:
        mapped = np.frombuffer(raw, dtype=dtype).reshape(shape)
    if _digest(raw).hex() != entry["sum"]:
        raise SketchFileError(f"{path}: the part {entry['name']!r} is damaged; {_AGAIN}")
    if planes is None:
        return mapped
    if count * dtype.itemsize > most:
        raise SketchFileError(
            f"{path}: the part {entry['name']!r} would take {count * dtype.itemsize:,} bytes, more than a file of this "
            "size may; it was made to harm, so do not use it"
        )
    if len(sizes) != dtype.itemsize:
        raise ValueError(f"{len(sizes)} planes for numbers of {dtype.itemsize} bytes")
    columns = np.empty((count, dtype.itemsize), np.uint8)
    for column, length in enumerate(sizes):
        columns[:, column] = np.frombuffer(_inflated(raw[:length], count), np.uint8)
        raw = raw[length:]
    unsigned = np.dtype(f"<u{dtype.itemsize}")
    numbers = columns.reshape(-1).view(unsigned) - unsigned.type(MIDDLE)
    unpacked: Part = numbers.view(dtype).reshape(shape)
    return unpacked


def _inflated(data: memoryview, count: int) -> bytes:
    """What was packed, if it is exactly so many bytes; never more are made."""
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(data, count + 1)
    except zlib.error as problem:
        raise ValueError(f"bytes that cannot be unpacked: {problem}") from None
    if len(found) != count or not inflate.eof or inflate.unused_data:
        raise ValueError(f"{len(found):,} bytes in a plane of {count:,}")
    return found


def _type(name: str, types: Mapping[str, str]) -> np.dtype[Any]:
    return np.dtype(types[name.rpartition(".")[2]])


def _bytes(array: Part) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
