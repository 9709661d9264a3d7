"""Collections of documents: JSON Lines or tab-separated text, plain, `.gz` or `.xz`."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from fedrank.files import opened, parse_json

FIELDS: dict[str, tuple[str, ...]] = {  # what a column may be called, in any case of letters
    "id": ("id", "_id", "doc_id", "docid", "docno"),
    "title": ("title",),
    "text": ("text", "body"),
    "url": ("url",),
    "changed": ("changed", "last_modified", "modified", "updated", "updated_at", "date"),
    "popularity": ("popularity",),
}
SHOWN = 5  # line numbers that are named
_BOM = "\ufeff"


@dataclass(frozen=True)
class Documents:
    """A collection: row d of every list is document d; a field that it does not have is empty."""

    ids: list[str]
    title: list[str]
    text: list[str]
    url: list[str]
    broken: tuple[int, ...] = field(default=(), compare=False)  # rows with bytes that are not UTF-8, shown as �
    changed: list[str] = field(default_factory=list)  # dates or seconds, as they stand there; empty: nobody has one
    popularity: list[str] = field(default_factory=list)  # numbers, as they stand there; empty: nobody has one

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.title) == len(self.text) == len(self.url):
            raise ValueError(
                f"{len(self.ids)} ids, {len(self.title)} titles, {len(self.text)} texts and {len(self.url)} urls: "
                "give every document all four, empty where it has none"
            )
        for name, column in (("changed", self.changed), ("popularity", self.popularity)):
            if len(column) not in (0, len(self.ids)):
                raise ValueError(
                    f"{len(column)} values of {name} for {len(self.ids)} documents: whose they are would be a guess; "
                    "give every document one, empty where it has none, or none at all"
                )

    def __len__(self) -> int:
        return len(self.ids)


def read_documents(path: str | os.PathLike[str]) -> Documents:
    """Read a collection.

    A line of JSON is an object with `id` or `_id`, and where there are any `title`, `text` or `body`, `url`, `changed`
    (a date), `popularity`. A tab-separated file names its columns so in its first line. Two documents with one id, or
    one without, are refused: a click on them would be a guess. Bytes that are not UTF-8 are replaced, and their
    documents named in `broken`.
    """
    path = Path(path)
    columns: dict[str, list[str]] = {name: [] for name in FIELDS}
    lines: dict[str, int] = {}  # of every id
    broken = []
    for number, row, sound in _rows(path):
        key = row["id"]
        if not is_name(key):
            raise ValueError(f"{path}, line {number}: the id {key!r} cannot name a document; give it one of one line")
        first = lines.setdefault(key, number)
        if first != number:
            raise ValueError(
                f"{path}, line {number}: the id {key!r} stands in line {first} already, so that a click on it would be "
                "a guess; give every document its own"
            )
        if not sound:
            broken.append(len(columns["id"]))
        for name, column in columns.items():
            column.append(row[name])
    if not lines:
        raise ValueError(f"{path} holds no document; every line should be one, as in " + '{"id": "d1", "text": "..."}')
    changed, popularity = (column if any(column) else [] for column in (columns["changed"], columns["popularity"]))
    return Documents(
        columns["id"], columns["title"], columns["text"], columns["url"], tuple(broken), changed, popularity
    )


def text_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines of a plain, `.gz` or `.xz` file with their numbers from 1, without line ends; empty lines are left out."""
    with opened(path) as file:
        try:
            for number, line in enumerate(unpacked(file, path.suffix), start=1):
                line = line.rstrip(b"\r\n")
                if line.strip():
                    yield number, line
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{path}: the archive is damaged or cut short ({error}), so lines would be missing; copy or download "
                "it again"
            ) from error


def kind_of(path: Path) -> str:
    """How a file's rows are written, by its name: "json", "csv" or "tsv"."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in (".gz", ".xz")]
    kinds = {".jsonl": "json", ".json": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "tsv", ".txt": "tsv"}
    last = suffixes[-1] if suffixes else ""
    if last not in kinds:
        raise ValueError(
            f"{path}: the name does not tell how the file is written; let it end in .jsonl, .csv, .tsv or .txt, with "
            ".gz or .xz behind it if it is packed"
        )
    return kinds[last]


def find_columns(
    names: Sequence[str],
    fields: Mapping[str, tuple[str, ...]],
    chosen: Mapping[str, str],
    needed: Iterable[str],
    where: str,
) -> dict[str, str]:
    """Which column holds which field: the chosen one, else the first that has one of the field's names."""
    known = {name.strip().lower(): name for name in reversed(names)}
    found = {}
    for name, aliases in fields.items():
        wanted = (chosen[name],) if name in chosen else aliases
        for alias in wanted:
            if alias.strip().lower() in known:
                found[name] = known[alias.strip().lower()]
                break
        else:
            if name in chosen or name in needed:
                raise ValueError(
                    f"{where}: no column {' or '.join(map(repr, wanted))} for the {name}; there are "
                    f"{', '.join(map(repr, names)) or 'none'}; name its columns in the first line"
                )
    return found


def is_name(text: str) -> bool:
    """Whether a text can stand in a line of its own: not empty, no line end, no half of a character."""
    return bool(text) and "\n" not in text and "\r" not in text and _is_utf8(text)


def as_text(value: Any) -> str:
    """A value of a JSON object as text; null is empty, a list is its parts."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(map(as_text, value))
    return value if isinstance(value, str) else str(value)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can write half of a surrogate pair
        return False
    return True


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str], bool]]:
    """Number, fields and soundness of every document."""
    kind = kind_of(path)
    if kind == "csv":
        raise ValueError(f"{path}: documents are read from .jsonl or .tsv; write them as one of these")
    header: list[str] = []
    for number, line in text_lines(path):
        text, sound = _decoded(line)
        if not header:
            text = text.removeprefix(_BOM)
        if kind == "json":
            row = _object(text, path, number)
            header = header or ["."]
            names = find_columns(list(row), FIELDS, {}, ("id",), f"{path}, line {number}")
            yield number, {name: _tidy(name, as_text(row.get(names.get(name, "")))) for name in FIELDS}, sound
            continue
        cells = text.split("\t")
        if not header:
            header = cells
            names = find_columns(header, FIELDS, {}, ("id",), f"{path}, line {number}")
            places = {name: header.index(column) for name, column in names.items()}
            continue
        if len(cells) > len(header):
            raise ValueError(
                f"{path}, line {number}: {len(cells)} columns where the first line names {len(header)}; replace tabs "
                "within texts by blanks"
            )
        cells += [""] * (len(header) - len(cells))
        row = {name: cells[places[name]] if name in places else "" for name in FIELDS}
        yield number, {name: _tidy(name, value) for name, value in row.items()}, sound


def _decoded(line: bytes) -> tuple[str, bool]:
    try:
        return line.decode("utf-8"), True
    except UnicodeDecodeError:
        return line.decode("utf-8", errors="replace"), False


def _object(text: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number}: not an object of JSON ({error}); write one document a line") from None
    if not isinstance(row, dict):
        raise ValueError(f"{path}, line {number}: {text[:40]!r} is not an object of JSON; write one document a line")
    return row


def _tidy(name: str, value: str) -> str:
    return value.strip() if name in ("id", "url") else value


def unpacked(file: BinaryIO, suffix: str) -> BinaryIO:
    """The contents of a plain, `.gz` or `.xz` file, told by its first bytes too: archives are often renamed."""
    start = file.read(6)
    file.seek(0)
    if suffix == ".gz" or start.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if suffix == ".xz" or start == b"\xfd7zXZ\x00":
        return cast(BinaryIO, io.BufferedReader(_Xz(file), 1 << 16))
    return file


class _Xz(io.RawIOBase):
    """The contents of an .xz file; unlike `lzma.LZMAFile`, which stops there, it refuses what is no stream of one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._stream, self._rest, self._ended = file, lzma.LZMADecompressor(lzma.FORMAT_XZ), b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        while not self._ended:
            if self._stream.needs_input and not self._rest:
                self._rest = self._file.read(1 << 16)
                if not self._rest:
                    raise EOFError("it ends in the middle of a stream")
            got = self._stream.decompress(self._rest, len(room))
            self._rest = b""
            if self._stream.eof:
                self._next()
            if got:
                room[: len(got)] = got
                return len(got)
        return 0

    def _next(self) -> None:
        """Behind a stream: padding of zeros, and another stream or the end of the file."""
        rest = self._stream.unused_data
        while not rest.strip(b"\0"):
            rest = self._file.read(1 << 16)
            if not rest:
                self._ended = True
                return
        self._rest = rest.lstrip(b"\0")
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
