"""The pages as text: templates with everything escaped, and how dates, sizes and marked words are written."""

from __future__ import annotations

import os
import time
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.search import pictures
from fedrank.search.results import Snippet
from fedrank.web.templates import templates

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

KINDS = {"file": "file", "mail": "mail", "page": "bookmark", "note": "note"}
ORDERS = {
    "drawn": ("learned", "What was learned, with a little chance among close results; clicks teach."),
    "fixed": ("fixed", "What was learned so far, always the same; clicks are noted and teach nothing."),
    "engine": ("engine", "The search engine's own order; clicks are noted and teach nothing."),
}


def render(template: str, **values: Any) -> bytes:
    """A page. Whatever half a character a document or a name holds, it can be sent."""
    return _environment().get_template(template).render(**values).encode("utf-8", "replace")


@cache
def part(name: str) -> bytes:
    """A file that pages load: one of `style.css`, `dwell.js`, `icon.svg`."""
    return files("fedrank.search").joinpath("pages", name).read_bytes()


@cache
def _environment() -> Environment:
    from fedrank.data.live_features import LIVE_1

    environment = templates("fedrank.search", "pages")
    environment.filters |= {"day": day, "moment": moment, "size": size, "marked": marked, "short": short}
    environment.filters["location"] = location
    environment.globals |= {"kinds": KINDS, "orders": ORDERS, "scale": pictures.BarScale.over}
    environment.globals |= {"week_bar": pictures.week_bar, "stack": pictures.stack, "meanings": LIVE_1.meanings}
    return environment


def day(seconds: float) -> str:
    """A date; nothing where it is not known or no calendar has it."""
    return _time("%Y-%m-%d", seconds)


def moment(seconds: float) -> str:
    return _time("%Y-%m-%d %H:%M", seconds)


def _time(form: str, seconds: float) -> str:
    try:
        return time.strftime(form, time.localtime(seconds)) if seconds else ""
    except (OverflowError, ValueError, OSError):
        return ""


def size(count: float) -> str:
    """Bytes, as people read them."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def short(text: str, most: int) -> str:
    """A text that must not push everything else aside."""
    return text if len(text) <= most else text[: most - 1] + "…"


def location(where: str, most: int = 60) -> str:
    """A place for people: `~` for the home folder, and of a long path its beginning and its last two parts."""
    before, separator, path = where.rpartition(" · ")
    home = str(Path.home())
    if path == home or path.startswith(home + os.sep):
        path = "~" + path[len(home) :]
    parts = path.split(os.sep)
    if len(path) > most and len(parts) > 4 and "://" not in path:
        path = os.sep.join([*parts[: 1 if parts[0] else 2], "…", *parts[-2:]])
    return before + separator + path


def marked(snippet: Snippet) -> Markup:
    """The snippet with its words marked, and everything escaped."""
    from markupsafe import Markup, escape

    pieces, at = [], 0
    for start, end in sorted(snippet.marked):
        if at <= start < end <= len(snippet.text):
            pieces += [escape(snippet.text[at:start]), Markup("<mark>"), escape(snippet.text[start:end])]
            pieces.append(Markup("</mark>"))
            at = end
    return Markup("").join([*pieces, escape(snippet.text[at:])])
