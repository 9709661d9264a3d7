"""The metadata of pictures: EXIF, IPTC, XMP and text chunks in JPEG, PNG, WebP and TIFF. No pixel is decoded.

Only the beginning of a file is read, every loop has a limit, and damaged metadata is left out.
"""

from __future__ import annotations

import contextlib
import html
import re
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from fedrank.search.readers import MAX_TEXT, ParsedDocument, clean, decoded, one_line, read_date

MAX_READ = 1 << 20  # bytes of the beginning of a file, which hold the metadata
MAX_TIFF = 16 << 20  # the same for TIFF, whose metadata may be behind the picture
MAX_XMP = 1 << 17
MAX_VALUE = 20_000  # bytes of one value
MAX_BLOCKS = 10_000
_TIFF = (b"II*\0", b"MM\0*")
_EXIF_TEXTS = {0x010E: "", 0x010F: "", 0x0110: "", 0x013B: "", 0x8298: "", 0x9286: "", 0x9003: "date"}
_EXIF_TEXTS |= dict.fromkeys(range(0x9C9B, 0x9CA0), "")  # of Windows, in UTF-16
_MORE_EXIF = 0x8769  # points to another directory
_IPTC_TEXTS = {5, 15, 20, 25, 55, 80, 90, 92, 95, 101, 105, 116, 120}  # title, keywords, places, author, caption, ...
_XMP_TEXT = re.compile(
    r"<dc:(title|description|subject|creator|rights)\b[^<>]{0,999}>(.{1,2000}?)</dc:\1>|\b(?:photoshop:(?:City|State|"
    r"Country|Headline|Credit)|Iptc4xmpCore:Location|lr:hierarchicalSubject)(?:=\"|>)([^<>\"]{1,999})",
    re.DOTALL,
)
_PNG_TEXTS = {b"title", b"author", b"description", b"copyright", b"comment", b"keywords", b"source"}


def read_picture(file: BinaryIO, size: int, name: str) -> Iterator[ParsedDocument]:
    """A picture as a document: what its metadata say about it, under its name."""
    data = file.read(min(size, MAX_READ))
    if data[:4] in _TIFF:
        data += file.read(min(size, MAX_TIFF) - len(data))
    texts: dict[str, str] = {}  # distinct texts with what they are
    left = MAX_TEXT
    for what, said in _texts(data):
        text = clean(said)
        left -= 0 if text in texts else len(text)
        if left < 0:
            break
        texts.setdefault(text, what)
    texts.pop("", None)
    dates = [text for text, what in texts.items() if what == "date"]
    date = read_date(dates[0].replace(":", "-", 2)) if dates else 0
    title = next((one_line(text) for text, what in texts.items() if what == "title" and len(text) <= 100), "")
    yield ParsedDocument("", "file", title or name, "\n".join(texts), date=date, name=name if title else "")


def _texts(data: bytes) -> Iterator[tuple[str, str]]:
    """Texts of the metadata with what they are: "title", "date" or ""."""
    for kind, block in _blocks(data):
        with contextlib.suppress(struct.error, ValueError, zlib.error, IndexError):
            yield from {"exif": _exif, "iptc": _iptc, "text": _png_text}[kind](block)
    begin = data.find(b"<x:xmpmeta")
    packet = data[begin : min(data.find(b"</x:xmpmeta>", begin), begin + MAX_XMP)] if begin >= 0 else b""
    for tag, of_list, alone in _XMP_TEXT.findall(decoded(packet)):
        text = html.unescape(re.sub(r"<[^<>]{0,999}>", "\n", of_list) or alone)
        yield "title" if tag == "title" else "", text


def _blocks(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Blocks of metadata with their kinds; what follows damage is left out."""
    with contextlib.suppress(struct.error):
        if data[:2] == b"\xff\xd8":
            at = 2
            for _ in range(MAX_BLOCKS):
                marker, length = struct.unpack_from(">HH", data, at)
                block = data[at + 4 : at + 2 + length]
                if marker == 0xFFDA or length < 2:  # the picture itself
                    return
                if marker == 0xFFE1 and block.startswith(b"Exif\0\0"):
                    yield "exif", block[6:]
                elif marker == 0xFFED:
                    yield "iptc", block
                at += 2 + length
        elif data[:4] in _TIFF:
            yield "exif", data
        else:  # chunks of PNG and WebP
            at, order = (8, ">I4s") if data[:1] == b"\x89" else (12, "<4sI")
            for _ in range(MAX_BLOCKS):
                length, kind = sorted(struct.unpack_from(order, data, at), key=lambda value: isinstance(value, bytes))
                block = data[at + 8 : at + 8 + length]
                if kind in (b"eXIf", b"EXIF"):
                    yield "exif", block.removeprefix(b"Exif\0\0")
                elif kind in (b"tEXt", b"zTXt", b"iTXt"):
                    yield "text", kind + block
                at += 8 + length + (4 if order[0] == ">" else length % 2)


def _exif(data: bytes) -> Iterator[tuple[str, str]]:
    """Texts of the directories of a TIFF structure."""
    order = "<" if data[:2] == b"II" else ">"
    todo: list[int] = [*struct.unpack_from(order + "I", data, 4)]
    seen: set[int] = set()
    while todo and len(seen) < 8:  # directories may refer to each other
        begin = todo.pop()
        if begin in seen:
            continue
        seen.add(begin)
        for number in range(min(struct.unpack_from(order + "H", data, begin)[0], 500)):
            at = begin + 2 + 12 * number
            tag, kind, length, place = struct.unpack_from(order + "HHII", data, at)
            if tag == _MORE_EXIF:
                todo.append(place)
            elif tag in _EXIF_TEXTS and kind in (1, 2, 7):  # bytes and text
                place = at + 8 if length <= 4 else place
                value = data[place : place + min(length, MAX_VALUE)]
                if tag == 0x9286:  # a comment begins with the name of its encoding
                    wide, value = value.startswith(b"UNICODE"), value[8:]
                else:
                    wide = tag >= 0x9C9B
                text = value.decode("utf-16-le" if order == "<" or tag >= 0x9C9B else "utf-16-be", "replace")
                yield _EXIF_TEXTS[tag], (text if wide else decoded(value)).replace("\0", " ")


def _iptc(data: bytes) -> Iterator[tuple[str, str]]:
    """Texts of IPTC records in a segment of Photoshop."""
    at = data.find(b"8BIM\x04\x04")
    at = data.find(b"\x1c", at)
    for _ in range(500):
        if at < 0 or data[at : at + 1] != b"\x1c":
            return
        record, number, length = struct.unpack_from(">BBH", data, at + 1)
        if record == 2 and number in _IPTC_TEXTS and length < MAX_VALUE:
            yield "title" if number == 5 else "", decoded(data[at + 5 : at + 5 + length])
        at += 5 + length


def _png_text(block: bytes) -> Iterator[tuple[str, str]]:
    """The text of a chunk, if its key says that it is about the picture."""
    kind, (key, _, rest) = block[:4], block[4:].partition(b"\0")
    if key.lower() not in _PNG_TEXTS:
        return
    if kind == b"iTXt":
        packed, rest = rest[:1] == b"\1", rest[2:].split(b"\0", 2)[2]
    else:
        packed, rest = kind == b"zTXt", rest[kind == b"zTXt" :]
    if packed:
        rest = zlib.decompressobj().decompress(rest, MAX_VALUE)
    yield "title" if key.lower() == b"title" else "", decoded(rest[:MAX_VALUE])
