"""Rendering of pages: templates with escaping, and filters for dates, sizes, paths and snippets."""

from __future__ import annotations

import os
import re
import time
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.search import pictures
from fedrank.search.ingest import MISSING
from fedrank.search.results import Snippet
from fedrank.web.templates import templates

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

KINDS = {"file": "file", "mail": "mail", "page": "bookmark", "note": "note"}
ORDERS = {  # name, meaning, what clicks do while learning is on
    "drawn": ("learned", "The learned order; close results sometimes swap.", "Clicks improve it."),
    "fixed": ("fixed", "The learned order, always the same.", "Clicks are recorded but do not change it."),
    "engine": ("engine", "The order of the search engine.", "Clicks are recorded but do not change it."),
}


SKIPPED = {  # stored reasons; all others are shown as they are
    "indexed by itself": "in a folder listed separately",
    MISSING: "missing",
    "root cannot be read": "unreadable",
    "fedrank's own": "of fedrank's own index",
    "no file": "not a regular file",
    "not allowed": "without permission",
    "vanished": "deleted while indexing",
    "link": "reached by a symbolic link",
    "forgotten": "forgotten by you",
    "unpacks to too much": "too large when unpacked",
}


def skipped_counts(skipped: dict[str, int]) -> str:
    """The counts of skipped files by reason; missing folders are listed by name elsewhere."""
    return ", ".join(f"{count:,} {SKIPPED.get(why, why)}" for why, count in skipped.items() if why != MISSING)


def kind_counts(kinds: dict[str, int]) -> str:
    """The numbers of documents of each kind."""
    return ", ".join(many(count, KINDS.get(kind, kind)) for kind, count in kinds.items() if count)


def render(template: str, **values: Any) -> bytes:
    """Render a page; lone surrogates in documents or names are replaced."""
    return _environment().get_template(template).render(**values).encode("utf-8", "replace")


@cache
def part(name: str) -> bytes:
    """A static file: `style.css`, `dwell.js` or `icon.svg`."""
    return files("fedrank.search").joinpath("pages", name).read_bytes()


@cache
def _environment() -> Environment:
    from fedrank.data.live_features import LIVE_1

    environment = templates("fedrank.search", "pages")
    environment.filters |= {"day": day, "moment": moment, "size": size, "marked": marked, "short": short}
    environment.filters |= {"location": location, "many": many, "skipped_counts": skipped_counts}
    environment.filters |= {"kind_counts": kind_counts, "breakable": breakable}
    environment.globals |= {"kinds": KINDS, "orders": ORDERS, "scale": pictures.BarScale.over}
    environment.globals |= {"week_bar": pictures.week_bar, "stack": pictures.stack, "meanings": LIVE_1.meanings}
    return environment


def day(seconds: float) -> str:
    """A date; "" if it is unknown or out of range."""
    return _time("%Y-%m-%d", seconds)


def moment(seconds: float) -> str:
    return _time("%Y-%m-%d %H:%M", seconds)


def _time(form: str, seconds: float) -> str:
    try:
        return time.strftime(form, time.localtime(seconds)) if seconds else ""
    except (OverflowError, ValueError, OSError):
        return ""


def size(count: float) -> str:
    """A number of bytes with a unit."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def many(count: int, thing: str, things: str = "") -> str:
    """A count with its noun.

    >>> many(1, "search", "searches"), many(1200, "click")
    ('1 search', '1,200 clicks')
    """
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def short(text: str, most: int) -> str:
    """A text truncated to at most this length."""
    return text if len(text) <= most else text[: most - 1] + "…"


def location(where: str) -> str:
    """A path with `~` for the home folder, and at most the last two folders of it; an address is not changed."""
    before, separator, path = where.rpartition(" · ")
    if "://" in path or not os.path.isabs(path):
        return where
    home = str(Path.home())
    if path == home or path.startswith(home + os.sep):
        path = "~" + path[len(home) :]
    first, *rest = path.split(os.sep)
    if len(rest) > 3:
        rest = ["…", *rest[-3:]]
    return before + separator + os.sep.join([first, *rest])


def breakable(text: str) -> Markup:
    """Escaped text that a browser may break after a slash."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(escape(piece) for piece in re.split(r"(?<=[/\\])(?=[^/\\])", text))


def marked(snippet: Snippet) -> Markup:
    """The snippet as escaped HTML with its words marked."""
    from markupsafe import Markup, escape

    pieces, at = [], 0
    for start, end in sorted(snippet.marked):
        if at <= start < end <= len(snippet.text):
            pieces += [escape(snippet.text[at:start]), Markup("<mark>"), escape(snippet.text[start:end])]
            pieces.append(Markup("</mark>"))
            at = end
    return Markup("").join([*pieces, escape(snippet.text[at:])])
