"""The formats that are read: how a file's format is recognised, and the reader of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from fedrank.search.packed import PACKED, read_packed
from fedrank.search.pictures import read_picture
from fedrank.search.readers import (
    ParsedDocument,
    Unreadable,
    read_bookmarks,
    read_code,
    read_eml,
    read_json_lines,
    read_markup,
    read_mbox,
    read_pdf,
    read_rtf,
    read_text,
)

MAX_FILE = 32 << 20  # bytes of a file that is read as a whole
MAX_MANY = 1 << 30  # bytes of a file that is read in parts

Pieces = Iterator[ParsedDocument | Unreadable]
Whole = Callable[[bytes, str], Iterator[ParsedDocument]]
Partial = Callable[[BinaryIO, int, str], Pieces]

_WHOLE: dict[str, Whole] = {
    "text": read_text,
    "code": read_code,
    "markup": read_markup,
    "eml": read_eml,
    "bookmarks": read_bookmarks,
    "packed": read_packed,
    "pdf": read_pdf,
    "rtf": read_rtf,
}
_PARTIAL: dict[str, Partial] = {
    "mbox": lambda file, size, name: read_mbox(file, size),
    "jsonl": lambda file, size, name: read_json_lines(file, size),
    "picture": read_picture,
}
_CODE = (
    "bash bat c cc cfg clj cpp cs css dart el erl ex fs go gradle h hpp hs ini java jl js json kt lisp lua m make ml "
    "nim pas php pl proto ps1 py r rb rkt rs scala sh sql swift tcl tf toml ts tsx v vb vim xml yaml yml zig"
)
_BY_ENDING = (
    dict.fromkeys(PACKED, "packed")
    | dict.fromkeys(_CODE.split(), "code")
    | dict.fromkeys(("txt", "text", "md", "markdown", "rst", "org", "tex", "csv", "tsv", "log", "adoc", "bib"), "text")
    | dict.fromkeys(("srt", "vtt"), "text")
    | dict.fromkeys(("html", "htm", "xhtml"), "markup")
    | {"eml": "eml", "jsonl": "jsonl", "ndjson": "jsonl"}
)
PICTURES = {"jpg", "jpeg", "png", "tif", "tiff", "webp"}
_PICTURE = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|II\*\0|MM\0\*|RIFF....WEBP", re.DOTALL)


def ending_of(name: str) -> str:
    """The ending of a file name in lower case, without the dot; may be empty."""
    return name.rpartition(".")[2].lower() if "." in name.lstrip(".") else ""


def format_of(name: str, first: bytes) -> str:
    """The format of a file by its name and first bytes, as a key of the tables above."""
    ending = ending_of(name)
    by_ending = _BY_ENDING.get(ending, "")
    if by_ending in ("packed", "eml", "jsonl") and not first.startswith(b"%PDF-"):
        return by_ending
    if first.startswith(b"%PDF-"):
        return "pdf"
    if _PICTURE.match(first):
        return "picture"
    if first.startswith(b"{\\rtf"):
        return "rtf"
    if first.startswith(b"From ") and b"\n" in first and (ending in ("mbox", "mbx") or _has_headers(first)):
        return "mbox"
    if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return by_ending or "text"
    if b"\0" in first:
        raise Unreadable("not text")
    if first.lstrip()[:40].upper().startswith(b"<!DOCTYPE NETSCAPE-BOOKMARK-FILE"):
        return "bookmarks"
    if by_ending:
        return by_ending
    try:
        first[: len(first) - 4 if len(first) > 4 else None].decode("utf-8")
    except UnicodeDecodeError as problem:
        if problem.end < len(first) - 8:
            raise Unreadable("not text") from None
    return "text"


def _has_headers(first: bytes) -> bool:
    return bool(re.match(rb"From [^\n]{1,500}\n[!-9;-~]{1,80}:[ \t]", first))


def read_pieces(file: BinaryIO, size: int, name: str, format: str) -> Pieces:
    """The documents of a file, and the reasons for its unreadable parts."""
    if size > (MAX_MANY if format in _PARTIAL else MAX_FILE):
        raise Unreadable("too large")
    if format in _PARTIAL:
        yield from _PARTIAL[format](file, size, name)
    else:
        yield from _WHOLE[format](file.read(size), name)
