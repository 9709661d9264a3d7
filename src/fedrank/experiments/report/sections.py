"""The content of pages without layout: sections of paragraphs, tables and figures.

A command or report makes a list of sections; `terminal`, `markdown` and `html` render them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

BOLD = "Bold: highest mean of its column."
Tone = str  # "", "better", "worse", "warn", "quiet", "note", "name" or "lead"


@dataclass(frozen=True)
class Span:
    """Part of a paragraph with its own style or link."""

    text: str
    style: str = ""  # "strong" or "code"
    link: str = ""  # target of a link


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text."""

    spans: tuple[Span, ...]
    tone: Tone = ""

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)


def paragraph(*parts: str | Span, tone: Tone = "") -> Paragraph:
    """Make a paragraph of plain text and styled spans."""
    return Paragraph(tuple(Span(part) if isinstance(part, str) else part for part in parts), tone)


@dataclass(frozen=True)
class Points:
    """A list of sentences."""

    points: tuple[str, ...]


@dataclass(frozen=True)
class Pairs:
    """Names with their descriptions."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    strong: bool = False  # the best of its column
    hint: str = ""  # more details, for a tooltip
    tone: Tone = ""
    mark: str | None = None  # ▲ or ▼; "" if the column has marks but this cell has none; None if the column has none

    def __str__(self) -> str:
        return f"{self.text} {self.mark}" if self.mark else self.text


Row = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """A table with headings and notes."""

    header: Sequence[str]
    rows: Sequence[Row]
    text_columns: int = 1  # number of leading columns with text; the others contain numbers
    notes: Sequence[str] = ()
    unbroken_column: int | None = None  # a column whose cells must not be broken across lines, such as commands
    bare: bool = False  # omit the headings where the format permits it

    @property
    def cells(self) -> list[list[Cell]]:
        return [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in self.rows]

    def is_text(self, column: int) -> bool:
        return column < self.text_columns or self.header[column] in ("verdict", "reason", "meaning")

    @staticmethod
    def is_baseline(row: Sequence[Cell]) -> bool:
        return any(cell.text.endswith("(baseline)") for cell in row)


@dataclass(frozen=True)
class Drawing:
    """A drawing."""

    draw: Callable[[], str]  # returns SVG; called only if the drawing is shown
    caption: str


@dataclass(frozen=True)
class Interactive:
    """An interactive part of a page; without a script, the parts that it replaces."""

    shows: str  # "curves" or "queries": the part of the script that draws it
    data: Callable[[], Mapping[str, Any]]  # for JSON; called only if the part is shown
    still: tuple[Part, ...]


@dataclass(frozen=True)
class Listing:
    """Preformatted text, such as a spec."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class Section:
    """A heading with its contents; a section within a section is one level lower."""

    heading: str
    parts: tuple[Part, ...] = ()
    over: str = ""  # a small line beside the heading
    anchor: str = ""  # id for links to it
    link: str = ""  # link target of the heading
    folded: bool = False  # collapsed in HTML

    # Each of these methods returns the section with one more part at the end.

    def add(self, *parts: Part) -> Section:
        return replace(self, parts=(*self.parts, *parts))

    def paragraph(self, *parts: str | Span, tone: Tone = "") -> Section:
        return self.add(paragraph(*parts, tone=tone))

    def points(self, points: Iterable[str]) -> Section:
        return self.add(Points(tuple(points)))

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> Section:
        return self.add(Pairs(tuple(pairs)))

    def table(
        self, header: Sequence[str], rows: Sequence[Sequence[Any]], text_columns: int = 1, **options: Any
    ) -> Section:
        """Add a table of texts and cells; `options` are the other fields of `Table`."""
        return self.add(Table(header, rows, text_columns, **options))


Part = Paragraph | Points | Pairs | Table | Drawing | Interactive | Listing | Section
