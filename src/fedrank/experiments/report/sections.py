"""The content of pages without layout: sections of paragraphs, tables and figures.

A command or report makes a list of sections; `terminal`, `markdown` and `html` render them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

BOLD = "Bold: highest mean of its column."
Tone = str  # "", "better", "worse", "warn", "quiet", "note", "name" or "lead"


@dataclass(frozen=True)
class Span:
    """A few words within a paragraph that stand out."""

    text: str
    style: str = ""  # "strong" or "code"
    link: str = ""  # where they lead


@dataclass(frozen=True)
class Paragraph:
    """Words."""

    shape: ClassVar[str] = "paragraph"

    spans: tuple[Span, ...]
    tone: Tone = ""

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)


def paragraph(*parts: str | Span, tone: Tone = "") -> Paragraph:
    """A paragraph of plain words, and of some that stand out."""
    return Paragraph(tuple(Span(part) if isinstance(part, str) else part for part in parts), tone)


@dataclass(frozen=True)
class Points:
    """Sentences, each by itself."""

    shape: ClassVar[str] = "points"

    points: tuple[str, ...]


@dataclass(frozen=True)
class Pairs:
    """Names, and what each is."""

    shape: ClassVar[str] = "pairs"

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    strong: bool = False  # the best of its column
    hint: str = ""  # more, where there is room for it
    tone: Tone = ""
    mark: str | None = None  # ▲ or ▼, "" where there could be one, None where there cannot

    def __str__(self) -> str:
        return f"{self.text} {self.mark}" if self.mark else self.text


Row = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """Rows under their headings, and what to know about them."""

    shape: ClassVar[str] = "table"

    header: Sequence[str]
    rows: Sequence[Row]
    words: int = 1  # leading columns that hold words; the others hold numbers
    notes: Sequence[str] = ()
    whole: int | None = None  # the column of commands, which must not be broken across lines
    bare: bool = False  # the headings would say nothing, and are left out where a table can do without

    @property
    def cells(self) -> list[list[Cell]]:
        return [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in self.rows]

    def is_words(self, column: int) -> bool:
        return column < self.words or self.header[column] in ("verdict", "reason", "meaning")

    @staticmethod
    def is_baseline(row: Sequence[Cell]) -> bool:
        return any(cell.text.endswith("(baseline)") for cell in row)


@dataclass(frozen=True)
class Drawing:
    """A drawing."""

    shape: ClassVar[str] = "figure"

    draw: Callable[[], str]  # as SVG; drawn only where it is shown
    caption: str


@dataclass(frozen=True)
class Interactive:
    """An interactive part of a page; without a script, the parts that it replaces."""

    shape: ClassVar[str] = "interactive"

    shows: str  # "curves" or "queries": which part of the script makes it
    data: Callable[[], Mapping[str, Any]]  # as JSON; computed only where it is shown
    still: tuple[Part, ...]


@dataclass(frozen=True)
class Listing:
    """Text that stays as it is, such as a spec."""

    shape: ClassVar[str] = "listing"

    text: str
    language: str = ""


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; a section within a section is one level down."""

    shape: ClassVar[str] = "section"

    heading: str
    parts: tuple[Part, ...] = ()
    over: str = ""  # a quiet line that belongs to the heading
    anchor: str = ""  # by which it can be found
    link: str = ""  # where the heading leads
    folded: bool = False  # collapsed, on pages that can

    @property
    def tables(self) -> list[Table]:
        return [part for part in self.parts if isinstance(part, Table)]

    # Each of these returns the section with one more part at its end.

    def add(self, *parts: Part) -> Section:
        return replace(self, parts=(*self.parts, *parts))

    def paragraph(self, *parts: str | Span, tone: Tone = "") -> Section:
        return self.add(paragraph(*parts, tone=tone))

    def points(self, points: Iterable[str]) -> Section:
        return self.add(Points(tuple(points)))

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> Section:
        return self.add(Pairs(tuple(pairs)))

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Any]], words: int = 1, **options: Any) -> Section:
        """Add a table of texts and cells; `options` are the other fields of `Table`."""
        return self.add(Table(header, rows, words, **options))


Part = Paragraph | Points | Pairs | Table | Drawing | Interactive | Listing | Section
