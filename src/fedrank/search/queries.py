"""The query language: words, "exact words", prefixes*, fields such as title:roof, and exclusions with a minus sign.

Any text is a valid query. An operator that cannot be understood is searched as words, and `Parsed.notes` says why.
"""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import Literal, NamedTuple

Field = Literal["exact", "prefix", "title", "type", "in", "from", "tag", "after", "before"]
FIELDS = {"title", "type", "in", "from", "tag", "after", "before"}
MAX_CONDITIONS = 32
KINDS = {"file": "file", "mail": "mail", "page": "web page", "note": "note"}
ENDINGS = {  # types with several endings; any other type is one ending
    "text": ("txt", "text", "md", "markdown", "rst", "org", "adoc", "tex"),
    "document": ("docx", "odt", "doc", "rtf", "epub"),
    "table": ("xlsx", "ods", "csv", "tsv", "xls"),
    "slides": ("pptx", "odp", "ppt"),
    "picture": ("jpg", "jpeg", "png", "tif", "tiff", "webp"),
}
TYPES = {**KINDS, "pdf": "PDF", **{name: name for name in ENDINGS}}  # for a menu
SYNTAX = {  # examples with their meaning, for a help text
    "roof invoice": "either word; documents with both come first",
    '"night train"': "exactly these words in this order",
    "insul*": "words that begin so",
    "-draft": "without this word; a minus sign excludes any of these conditions, as in -type:pdf",
    "title:roof": "in the title",
    "type:pdf": f"a type: {', '.join([*KINDS, *ENDINGS])}, or the ending of a file name",
    "in:invoices": "in a folder with this name or path, or on a site",
    "from:anna": "by this sender",
    "tag:garden": "with this tag",
    "after:2026-01-31": "from this day, month or year on",
    "before:2027": "before this day, month or year",
}
_ITEM = re.compile(
    r'(?<!\S)(?P<minus>-(?=["\w]))?(?:(?P<field>[A-Za-z]+):)?(?:"(?P<quoted>[^"]*)"(?!["\w])[^\s"]*|(?P<plain>\S*))'
)
_QUOTES = str.maketrans(dict.fromkeys("“”„‟«»", '"'))
_NOUNS: dict[str, str] = {
    "exact": "exactly “{}”", "prefix": "words beginning with “{}”",
    "title": "“{}” in the title", "type": "type {}", "in": "folder “{}”", "from": "sender “{}”", "tag": "tag “{}”",
    "after": "dates from {} on", "before": "dates before {}",
}  # fmt: skip


class Condition(NamedTuple):
    """What a document has, or must not have."""

    field: Field
    value: str

    def __str__(self) -> str:
        value = KINDS.get(self.value, self.value) if self.field == "type" else self.value
        if self.field in ("after", "before"):
            value = date.fromtimestamp(int(value)).isoformat()
        return _NOUNS[self.field].format(value)


@dataclass(frozen=True)
class Parsed:
    """A query as it is understood."""

    words: str  # what results are ranked by: all words but those of exclusions, folders, senders, tags, types and dates
    required: tuple[Condition, ...] = ()
    excluded: tuple[Condition, ...] = ()
    notes: tuple[str, ...] = ()  # operators that were searched as words, and why

    def __bool__(self) -> bool:
        """Whether there are conditions."""
        return bool(self.required or self.excluded)

    @property
    def meaning(self) -> tuple[str, ...]:
        """The conditions in words."""
        return (*map(str, self.required), *(f"without {str(one).removeprefix('exactly ')}" for one in self.excluded))


NO_CONDITIONS = Parsed("")


@lru_cache(maxsize=256)
def parse(query: str) -> Parsed:
    """Parse a query.

    >>> parse('"night train" berlin -draft type:pdf').meaning
    ('exactly “night train”', 'type pdf', 'without “draft”')
    """
    words: list[str] = []
    notes: list[str] = []
    required: list[Condition] = []
    excluded: list[Condition] = []
    for item in _ITEM.finditer(query.translate(_QUOTES)):
        exclude, one = item["minus"] is not None, None
        try:
            one = _condition(item)
            if one and len(required) + len(excluded) >= MAX_CONDITIONS:
                raise ValueError(f"a query has at most {MAX_CONDITIONS} conditions")
        except ValueError as problem:
            notes.append(f"{item[0]} was searched as words: {problem}")
            one = None
        if one is not None:
            (excluded if exclude else required).append(one)
        if one is None or (not exclude and one.field in ("exact", "prefix", "title")):
            words.append(item[0] if one is None else one.value)
    return Parsed(" ".join(filter(None, words)), tuple(required), tuple(excluded), tuple(notes))


def _condition(item: re.Match[str]) -> Condition | None:
    """The condition of an item; None for words."""
    field, quoted, plain = (item["field"] or "").lower(), item["quoted"], item["plain"] or ""
    value = " ".join((plain if quoted is None else quoted).split())
    if plain.startswith('"'):
        raise ValueError("the closing quotation mark is missing")
    if field in FIELDS:
        return Condition(field, _checked(field, value))  # type: ignore[arg-type]
    if item["field"]:  # such as an address or a time
        if item["minus"] and words_of(item[0]):
            return Condition("exact", item[0][1:])
        return None
    if quoted is not None:
        return Condition("exact", value) if words_of(value) else None
    if re.fullmatch(r"\w+\*", value):
        if len(value) < 3:
            raise ValueError("the beginning of a word needs at least two letters")
        return Condition("prefix", value[:-1])
    if item["minus"]:
        return Condition("exact", value)
    return None


def _checked(field: str, value: str) -> str:
    """The value of a field in its normal form; raises ValueError if it has no meaning."""
    if field in ("after", "before"):
        return str(seconds_of(day_of(value)))
    if not words_of(value) and not (field == "in" and value[:1] in ("/", "~")):
        raise ValueError("it has no word after the colon")
    if field == "type":
        value = value.lower().lstrip(".")
        value = "page" if value == "bookmark" else value
        if not value.isalnum():
            raise ValueError("a type is mail, page, note, file, or the ending of a file name such as pdf")
    return value.lower().lstrip("#") if field == "tag" else value


def day_of(text: str) -> date:
    """The first day of a year, a month or a day, such as 2026, 2026-01 or 2026-01-31."""
    found = re.fullmatch(r"(\d{4})(?:-(\d\d?)(?:-(\d\d?))?)?", text)
    try:
        day = date(*(int(part or 1) for part in found.groups())) if found else None
    except ValueError:
        day = None
    if day is None or not 1900 <= day.year <= 9000:
        raise ValueError(f"a date has the form 2024-12-31, 2024-12 or 2024 (got {text!r})")
    return day


def words_of(text: str) -> list[str]:
    """The words of a text as they are written, without regard to case."""
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def seconds_of(day: date) -> int:
    """The beginning of a day in local time, in seconds since 1970."""
    return int(datetime(day.year, day.month, day.day).timestamp())


def folders_of(path: str) -> list[str]:
    """The names in a path, for comparison without regard to case; an absolute path begins with an empty name.

    >>> folders_of("/home/Anna/Rechnungen")
    ['', 'home', 'anna', 'rechnungen']
    """
    path = os.path.expanduser(path) if path.startswith("~") else path
    names = unicodedata.normalize("NFKC", path).casefold().replace("\\", "/").split("/")
    return names[:1] + [name for name in names[1:] if name]


def endings_of(type: str) -> tuple[str, ...]:
    """The values of the index's field `kind` for a type: a kind of documents, or endings of file names with a dot."""
    return (type,) if type in KINDS else tuple(f".{ending}" for ending in ENDINGS.get(type, (type,)))
