"""Collections of documents: JSON Lines or tab-separated text, plain, `.gz` or `.xz`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrank.data.lines import file_kind
from fedrank.data.rows import Column, RowFormat, RowReader
from fedrank.data.values import as_text, is_name

MAX_DOCUMENT_LENGTH = 1 << 30  # bytes per line


def _stripped(value: Any) -> str:
    return as_text(value).strip()


DOCUMENT_COLUMNS: dict[str, Column] = {
    "id": Column(("id", "_id", "doc_id", "docid", "docno"), _stripped),
    "title": Column(("title",), required=False),
    "text": Column(("text", "body"), required=False),
    "url": Column(("url",), _stripped, required=False),
    "changed": Column(("changed", "last_modified", "modified", "updated", "updated_at", "date"), required=False),
    "popularity": Column(("popularity",), required=False),
}


@dataclass(frozen=True)
class Documents:
    """A collection of documents: item d of every list is document d; missing fields are empty strings."""

    ids: list[str]
    title: list[str]
    text: list[str]
    url: list[str]
    broken: tuple[int, ...] = field(default=(), compare=False)  # documents with bytes that are not UTF-8, replaced by �
    changed: list[str] = field(default_factory=list)  # dates or seconds as in the file; empty if no document has one
    popularity: list[str] = field(default_factory=list)  # numbers as in the file; empty if no document has one

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.title) == len(self.text) == len(self.url):
            raise ValueError(
                f"{len(self.ids)} ids, {len(self.title)} titles, {len(self.text)} texts and {len(self.url)} urls were "
                "given, but each document needs all four; use empty strings for missing values"
            )
        for name, column in (("changed", self.changed), ("popularity", self.popularity)):
            if len(column) not in (0, len(self.ids)):
                raise ValueError(
                    f"{len(column)} values of {name} were given for {len(self.ids)} documents; give one per document "
                    "(empty if missing), or no values"
                )

    def __len__(self) -> int:
        return len(self.ids)


def read_documents(path: str | os.PathLike[str]) -> Documents:
    """Read a collection.

    A line of JSON is an object with `id` or `_id` and optionally `title`, `text` or `body`, `url`, `changed` (a date)
    and `popularity`. A tab-separated file has these names in its header. Duplicate or missing ids are errors, because
    clicks on them would be ambiguous. Bytes that are not UTF-8 are replaced, and `broken` lists their documents.
    """
    columns: dict[str, list[str]] = {name: [] for name in DOCUMENT_COLUMNS}
    lines: dict[str, int] = {}  # by id
    reader = document_rows(path, DOCUMENT_COLUMNS)
    for number, row in reader:
        key = row["id"]
        if not is_name(key):
            raise ValueError(
                f"{path}, line {number}: the id {key!r} is not valid; use a non-empty id without line breaks"
            )
        first = lines.setdefault(key, number)
        if first != number:
            raise ValueError(
                f"{path}, line {number}: the id {key!r} already occurs in line {first}, so clicks on it would be "
                "ambiguous; give every document a unique id"
            )
        for name, column in columns.items():
            column.append(row[name])
    if not lines:
        raise ValueError(f"{path} contains no documents; write one per line, as in " + '{"id": "d1", "text": "..."}')
    for name in ("changed", "popularity"):
        columns[name] = columns[name] if any(columns[name]) else []
    return Documents(**{"ids": columns.pop("id")} | columns, broken=tuple(reader.replaced))


def document_rows(path: str | os.PathLike[str], columns: dict[str, Column], nested: bool = False) -> RowReader:
    """Read the columns of the documents in a file; a malformed row is an error."""
    if file_kind(Path(path)) == "csv":
        raise ValueError(f"{path}: documents must be in a .jsonl or .tsv file")
    layout = RowFormat(columns, nested=nested, unwrap=False, longest=MAX_DOCUMENT_LENGTH)
    return RowReader(path, layout, strict=True)
