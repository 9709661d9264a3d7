"""Readers of databases of other programs: the history of Firefox and Chrome, and the library of Zotero.

A database is copied before it is opened, since the program may be using it; the original is only read. The copy is
opened without functions of its schema that could have effects, and rows, values and texts are limited.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from fedrank.search.readers import (
    MAX_TEXT,
    ParsedDocument,
    Unreadable,
    clean,
    decoded,
    link_of,
    moment,
    one_line,
    page,
    part_keys,
    read_date,
    text_of_markup,
)

DATABASES = {"places.sqlite", "History", "zotero.sqlite"}  # names of files
LOGS = ("-wal", "-journal")  # endings of files with changes that are not in the database yet
MAX_COPY = 1 << 30  # bytes of a database with its logs
MAX_VISITED = 200_000  # addresses, the latest first
MAX_ITEMS = 200_000
MAX_VALUE = 4 << 20  # bytes of one value
_SINCE_1601 = 11_644_473_600  # seconds from 1601, where Chrome's time begins, to 1970

Open = Callable[[str], BinaryIO]  # opens a file below the folder of the database without following links


def read_database(name: str, opened: Open) -> Iterator[ParsedDocument]:
    """The documents of a database; its tables decide what it is."""
    with tempfile.TemporaryDirectory(prefix="copy-") as folder:
        copy = Path(folder, "copy.sqlite")
        for attempt in range(3):  # the program may write while it is copied
            try:
                _copy(name, opened, copy)
                yield from _documents(copy, opened)
                return
            except sqlite3.Error as problem:
                if attempt == 2 or "malformed" not in str(problem):
                    raise Unreadable("broken database") from None


def _copy(name: str, opened: Open, copy: Path) -> None:
    left = MAX_COPY
    for ending in ("", *LOGS):
        target = copy.with_name(copy.name + ending)
        target.unlink(missing_ok=True)
        try:
            source = opened(name + ending)
        except FileNotFoundError:
            if not ending:
                raise
            continue
        with source, open(target, "wb") as file:
            if (left := left - os.fstat(source.fileno()).st_size) < 0:
                raise Unreadable("too large")
            shutil.copyfileobj(source, file, 1 << 20)


def _documents(copy: Path, opened: Open) -> Iterator[ParsedDocument]:
    with contextlib.closing(sqlite3.connect(copy)) as db:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        db.text_factory = lambda value: value.decode("utf-8", "replace")
        db.execute("PRAGMA trusted_schema = OFF")
        if [*db.execute("PRAGMA quick_check(1)")] != [("ok",)]:  # it was written while it was copied, or is damaged
            raise sqlite3.DatabaseError("malformed")
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 10000")}
        if "moz_places" in tables:
            yield from _visited(
                db, "SELECT url, title, last_visit_date / 1000000 FROM moz_places WHERE visit_count > 0 AND NOT hidden "
                "ORDER BY last_visit_date DESC LIMIT ?", 0,
            )  # fmt: skip
        elif {"urls", "visits"} <= tables:
            yield from _visited(
                db, "SELECT url, title, last_visit_time / 1000000 FROM urls WHERE visit_count > 0 AND NOT hidden "
                "ORDER BY last_visit_time DESC LIMIT ?", _SINCE_1601,
            )  # fmt: skip
        elif {"items", "itemData", "itemNotes", "itemAttachments"} <= tables:
            yield from _library(db, opened)
        else:
            raise Unreadable("not text")


def _visited(db: sqlite3.Connection, query: str, since: int) -> Iterator[ParsedDocument]:
    """Visited pages with the time of the last visit; only addresses of the web."""
    key = part_keys()
    for address, title, seconds in db.execute(query, (MAX_VISITED,)):
        where = one_line(_text(address), 2_000)
        if link_of(where) and (one := page(_text(title), "", where, moment(_number(seconds) - since), key)):
            yield one


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


_FIELDS = """SELECT itemID, fieldName, value FROM itemData JOIN itemDataValues USING (valueID)
    JOIN fields USING (fieldID) LIMIT 4000000"""
_CREATORS = """SELECT itemID, trim(coalesce(firstName, '') || ' ' || coalesce(lastName, '')) FROM itemCreators
    JOIN creators USING (creatorID) ORDER BY itemID, orderIndex LIMIT 2000000"""
_TAGS = "SELECT itemID, name FROM itemTags JOIN tags USING (tagID) LIMIT 2000000"
_NOTES = "SELECT coalesce(parentItemID, itemID), note FROM itemNotes LIMIT 200000"
_MARKED = """SELECT coalesce(a.parentItemID, a.itemID), coalesce(n.text, '') || ' ' || coalesce(n.comment, '')
    FROM itemAnnotations n JOIN itemAttachments a ON a.itemID = n.parentItemID LIMIT 1000000"""
_FILES = """SELECT coalesce(parentItemID, itemID), key, path FROM itemAttachments JOIN items USING (itemID)
    WHERE itemID NOT IN (SELECT itemID FROM deletedItems) LIMIT 200000"""
_ITEMS = """SELECT itemID, key, dateModified FROM items WHERE itemID NOT IN (SELECT itemID FROM deletedItems)
    AND itemID NOT IN (SELECT itemID FROM itemNotes WHERE parentItemID IS NOT NULL)
    AND itemID NOT IN (SELECT itemID FROM itemAttachments WHERE parentItemID IS NOT NULL) ORDER BY itemID LIMIT ?"""


def _library(db: sqlite3.Connection, opened: Open) -> Iterator[ParsedDocument]:
    """Items of Zotero with their authors, abstracts, tags, notes and marked text, and the text of attached files."""
    fields: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for item, name, value in db.execute(_FIELDS):
        fields[item][_text(name)] = str(value)
    of: dict[str, defaultdict[int, list[str]]] = {}
    for query in (_CREATORS, _TAGS, _NOTES, _MARKED):
        of[query] = defaultdict(list)
        with contextlib.suppress(sqlite3.OperationalError):  # a version without this table
            for item, value in db.execute(query):
                of[query][item].append(_text(value))
    files: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
    for item, key, path in db.execute(_FILES):
        files[item].append((_text(key), _text(path).removeprefix("storage:")))
    for item, key, modified in db.execute(_ITEMS, (MAX_ITEMS,)):
        about = fields[item]
        creators = ", ".join(of[_CREATORS][item][:100])
        notes = [text_of_markup(note)[1] for note in of[_NOTES][item]]
        pieces = [
            creators, about.get("publicationTitle", ""), about.get("date", "")[:4], ", ".join(of[_TAGS][item]),
            about.get("abstractNote", ""), *notes, *of[_MARKED][item], *(path for _, path in files[item]),
        ]  # fmt: skip
        pieces += [_full_text(key, opened) for key, _ in files[item]]
        text = clean("\n\n".join(filter(None, pieces)))
        title = one_line(about.get("title", "")) or (one_line(notes[0], 80) if notes else "")
        if not (title and _text(key)):
            continue
        doi = about.get("DOI", "").strip()
        link = link_of(about.get("url", "") or (f"https://doi.org/{doi}" if doi else ""))
        where = " · ".join(filter(None, ["Zotero", one_line(creators, 80), about.get("date", "")[:4]]))
        yield ParsedDocument(key, "note", title, text, where, link, read_date(_text(modified)))


def _full_text(key: str, opened: Open) -> str:
    """The text of an attached file as Zotero extracted it."""
    if len(key) != 8 or not key.isalnum():
        return ""
    try:
        with opened(f"storage/{key}/.zotero-ft-cache") as file:
            return decoded(file.read(4 * MAX_TEXT))
    except OSError:
        return ""
