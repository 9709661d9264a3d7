"""Files of arrays with a header: memory-mapped for reading, and verified by checksums.

A file consists of `BEGIN` (format, version, size of the header and its checksum), the header (JSON) and the parts:
arrays in the order of the header's list "parts", which has name, shape, offset and checksum (BLAKE2b, 16 bytes) of
each. The first part begins at the next multiple of 64 bytes after the header, and offsets count from there. The file
does not contain types: a reader derives them from the name of a part, after the last dot.

A part may be packed: the first bytes of all numbers, then the second bytes and so on, each such plane compressed by
zlib; "packed" has the size of every plane, and the checksum covers the compressed bytes. Small numbers leave all planes
but the first empty, and noise is coded by the frequency of each number. Files with packed parts have version 4, others
version 3.

A packed file grows in memory, and its sender may be malicious: a file of n bytes takes at most `GROWTH` n bytes of
memory. The writer does not pack a file that would exceed this.
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
GROWTH = 64  # maximum ratio of the size in memory to the size of the file
MIDDLE = 128  # added to packed numbers, so numbers near 0 fit into a byte

Part = NDArray[Any]


# What parsing raises where checksums are right: a malicious sender can compute them, too.
UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


class SketchFileError(ValueError):
    """The file is not a valid sketch file of this version."""


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
    # Noise has no repeated sequences, so only run lengths and byte frequencies can be coded.
    deflate = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_RLE)
    return deflate.compress(data) + deflate.flush()


def read_arrays(path: Path, types: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Part]]:
    """Header and mapped parts of a file; a damaged or truncated file, or another version, raises an error."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < BEGIN.size:
            raise SketchFileError(f"{path} has {size} bytes, too few for a sketch file; it may be truncated")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    form, version, length, checksum = BEGIN.unpack_from(data)
    if form != FORMAT:
        raise SketchFileError(f"{path} is not a sketch file; create one with `fedrank data sketch`")
    if version not in (PLAIN, PACKED):
        remedy = "update fedrank" if version > PACKED else _ANEW
        raise SketchFileError(
            f"{path} has version {version}, and this fedrank reads versions {PLAIN} and {PACKED}; {remedy}"
        )
    raw = data[BEGIN.size : BEGIN.size + length] if length <= MAX_HEADER_LENGTH else b""
    if _digest(raw) != checksum:
        raise SketchFileError(f"{path}: the header is damaged or truncated; {_AGAIN}")
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
        raise SketchFileError(f"{path}: the header cannot be read ({error!r}); {_AGAIN}") from None
    return header, parts


_AGAIN = "copy it again, or create it again"
_ANEW = "sketch the documents again with `fedrank data sketch`"


def _read(
    data: mmap.mmap, start: int, entry: Mapping[str, Any], types: Mapping[str, str], path: Path, most: int
) -> Part:
    """One part: mapped, or unpacked into `most` bytes at most."""
    dtype, shape = _type(entry["name"], types), tuple(entry["shape"])
    count, at = prod(shape), start + entry["at"]
    planes = entry.get("packed")
    sizes = (count * dtype.itemsize,) if planes is None else tuple(planes)
    if min((*shape, *sizes), default=0) < 0 or at < start or at + sum(sizes) > len(data):
        raise SketchFileError(f"{path} ends within the part {entry['name']!r}: it is truncated; {_AGAIN}")
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
            "size may; do not use this file, it may be malicious"
        )
    if len(sizes) != dtype.itemsize:
        raise ValueError(f"it has {len(sizes)} planes for numbers of {dtype.itemsize} bytes")
    columns = np.empty((count, dtype.itemsize), np.uint8)
    for column, length in enumerate(sizes):
        columns[:, column] = np.frombuffer(_inflated(raw[:length], count), np.uint8)
        raw = raw[length:]
    unsigned = np.dtype(f"<u{dtype.itemsize}")
    numbers = columns.reshape(-1).view(unsigned) - unsigned.type(MIDDLE)
    unpacked: Part = numbers.view(dtype).reshape(shape)
    return unpacked


def _inflated(data: memoryview, count: int) -> bytes:
    """The unpacked bytes, which must be exactly `count`; more are never allocated."""
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(data, count + 1)
    except zlib.error as problem:
        raise ValueError(f"its bytes cannot be unpacked: {problem}") from None
    if len(found) != count or not inflate.eof or inflate.unused_data:
        raise ValueError(f"a plane has {len(found):,} bytes (expected {count:,})")
    return found


def _type(name: str, types: Mapping[str, str]) -> np.dtype[Any]:
    return np.dtype(types[name.rpartition(".")[2]])


def _bytes(array: Part) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
