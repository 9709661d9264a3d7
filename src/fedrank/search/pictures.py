"""SVG bars for the rows of tables. They are drawn on the server, so the pages need no script.

The row also contains the numbers as text. Colours come from the style sheet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from fedrank.search.results import Week

if TYPE_CHECKING:
    from markupsafe import Markup

WIDE, TALL = 100.0, 10.0  # SVG units; a bar is stretched to the width of its column


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
