"""Rendering of pages: templates with escaping, filters for dates, sizes, paths and snippets, and bars in tables.

Bars are SVG drawn on the server, so the pages need no script; the row also contains the numbers as text.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedrank.display import count_of, visible
from fedrank.search.ingest import MISSING
from fedrank.search.queries import KINDS, SYNTAX, TYPES
from fedrank.search.results import Snippet, Week
from fedrank.web.templates import templates

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

PLACE, MAX_PLACES = 300, 20  # characters from which words are at another place; places to jump to
WIDE, TALL = 100.0, 10.0  # SVG units; a bar is stretched to the width of its column
ORDERS = {  # name, meaning, what clicks do while learning is on
    "learned": ("learned", "What you opened before moves up; some lists are mixed with the engine's to compare.", ""),
    "fixed": ("fixed", "The same, but never mixed.", ""),
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
    return ", ".join(count_of(count, KINDS.get(kind, kind)) for kind, count in kinds.items() if count)


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
    from fedrank.search.learned import IN_WORDS

    environment = templates("fedrank.search", "pages")
    environment.filters |= {"day": day, "moment": moment, "size": size, "marked": marked, "short": short}
    environment.filters |= {"location": location, "many": count_of, "skipped_counts": skipped_counts}
    environment.filters |= {"kind_counts": kind_counts, "breakable": breakable}
    environment.globals |= {"kinds": KINDS, "types": TYPES, "syntax": SYNTAX, "orders": ORDERS, "scale": BarScale.over}
    environment.globals |= {"week_bar": week_bar, "stack": stack}
    environment.globals |= {"meanings": {name: LIVE_1.meanings[name] for name in IN_WORDS}}
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


def short(text: str, most: int) -> str:
    """A text truncated to at most this length."""
    return text if len(text) <= most else text[: most - 1] + "…"


def location(where: str) -> str:
    """A path with `~` for the home folder, and at most the last two folders of it; an address is not changed.

    A message of a Maildir has a name without a meaning, so its folder is shown.
    """
    before, separator, path = where.rpartition(" · ")
    if "://" in path or not os.path.isabs(path):
        return where
    home = str(Path.home())
    if path == home or path.startswith(home + os.sep):
        path = "~" + path[len(home) :]
    first, *rest = path.split(os.sep)
    if before and rest[-2:-1] in (["cur"], ["new"]):
        del rest[-2:]
    if len(rest) > 3:
        rest = ["…", *rest[-3:]]
    return before + separator + os.sep.join([first, *rest])


def breakable(text: str) -> Markup:
    """Escaped text that a browser may break after a slash."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(escape(visible(piece)) for piece in re.split(r"(?<=[/\\])(?=[^/\\])", text))


def marked(snippet: Snippet, title: bool = False) -> Markup:
    """The snippet as escaped HTML with its words marked; invisible characters are left out, or shown in a `title`."""
    from markupsafe import Markup, escape

    shown = partial(visible, drop=not title)
    pieces, at = [], 0
    for start, end in sorted(snippet.marked):
        if at <= start < end <= len(snippet.text):
            pieces += [escape(shown(snippet.text[at:start])), Markup("<mark>"), escape(shown(snippet.text[start:end]))]
            pieces.append(Markup("</mark>"))
            at = end
    return Markup("").join([*pieces, escape(shown(snippet.text[at:]))])


def matches(snippet: Snippet) -> tuple[Markup, int]:
    """A text as escaped HTML with its words marked, and the number of places to jump to, with ids from match-1."""
    from markupsafe import Markup, escape

    pieces, at, places, last = [], 0, 0, -PLACE
    for start, end in snippet.marked:
        pieces += [escape(snippet.text[at:start]), Markup("<mark>")]
        if start - last >= PLACE and places < MAX_PLACES:
            places, last = places + 1, start
            pieces[-1] = Markup('<mark id="match-{}">').format(places)
        pieces += [escape(snippet.text[start:end]), Markup("</mark>")]
        at = end
    return Markup("").join([*pieces, escape(snippet.text[at:])]), places


if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True)
class BarScale:
    """A linear scale that always includes 0."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> Self:
        all_values = [0.0, *values]
        low, high = min(all_values), max(all_values)
        return cls(low, high if high > low else low + 1)

    def at(self, value: float) -> float:
        return WIDE * (value - self.low) / (self.high - self.low)

    def bar(self, value: float, before: float | None = None) -> Markup:
        """A bar from 0 to the value, with a mark at the previous value."""
        left, right = sorted((self.at(0), self.at(value)))
        drawn = [_rect(left, 1.5, max(right - left, 0.4), TALL - 3, "up" if value >= 0 else "down")]
        drawn.append(_rect(self.at(0) - 0.15, 0, 0.3, TALL, "axis"))
        if before is not None:
            drawn.append(_rect(self.at(before) - 0.4, 0, 0.8, TALL, "before"))
        return _svg(drawn)

    def interval(self, low: float, value: float, high: float) -> Markup:
        """An interval with a mark at the estimate, and one at 0."""
        left, right = self.at(low), self.at(high)
        marks = [_rect(left, 3, max(right - left, 0.4), TALL - 6, "up"), _rect(self.at(0) - 0.15, 0, 0.3, TALL, "axis")]
        return _svg([*marks, _rect(self.at(value) - 0.4, 1, 0.8, TALL - 2, "before")])


def text_bar(value: float, most: float, width: int = 20) -> str:
    """A bar in a terminal, with its sign; `most` is the longest one.

    >>> text_bar(0.2, 0.4, 8), text_bar(-0.4, 0.4, 8)
    ('++++', '--------')
    """
    return ("+" if value >= 0 else "-") * round(width * abs(value) / most) if most else ""


def week_bar(week: Week) -> Markup:
    """The searches of a week by their highest click: position 1, positions 2 and 3, lower, none."""
    return stack(split(week))


def split(week: Week) -> list[tuple[str, int]]:
    """The number of searches of a week by the position of the highest click."""
    top_three = max(week.top_three - week.first, 0)
    return [
        ("first", week.first),
        ("three", top_three),
        ("lower", max(week.clicked - week.first - top_three, 0)),
        ("none", max(week.searches - week.clicked, 0)),
    ]


def stack(parts: Sequence[tuple[str, float]]) -> Markup:
    """A stacked bar."""
    drawn, at, whole = [], 0.0, sum(count for _, count in parts)
    for name, count in parts:
        if count > 0:
            wide = WIDE * count / whole
            drawn.append(_rect(at, 0, max(wide - 0.4, 0.1), TALL, name))
            at += wide
    return _svg(drawn)


def _svg(drawn: Iterable[Markup]) -> Markup:
    from markupsafe import Markup

    return Markup(
        '<svg class="bar" viewBox="0 0 {:.0f} {:.0f}" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(WIDE, TALL, Markup("").join(drawn))


def _rect(x: float, y: float, wide: float, tall: float, name: str) -> Markup:
    from markupsafe import Markup

    return Markup('<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>').format(
        name, x, y, wide, tall
    )
