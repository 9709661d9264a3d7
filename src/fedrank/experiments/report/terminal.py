"""Sections in a terminal, without drawings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedrank.display import visible
from fedrank.experiments.report import sections as content
from fedrank.experiments.report.sections import BOLD, Section, Table, Tone

if TYPE_CHECKING:
    from rich.console import Console

STYLES: dict[Tone, str] = {
    "better": "green",
    "worse": "red",
    "warn": "yellow",
    "quiet": "dim",
    "note": "dim",
    "name": "cyan",
    "lead": "",
    "": "",
}


MAX_WORD_LENGTH = 30  # that is not broken; longer ones are mostly paths


def show(sections: Sequence[Section], console: Console) -> None:
    """Print sections, with an empty line behind each."""
    for section in sections:
        _show(section, console)
        console.print()


def _show(part: content.Part, console: Console) -> None:
    from rich.text import Text

    match part:
        case Section():
            if part.heading:
                over = (visible("  " + part.over), "dim") if part.over else ""
                console.print(Text.assemble((visible(part.heading), "bold"), over))
            for inner in part.parts:
                _show(inner, console)
        case content.Paragraph():
            _line(part, console)
        case content.Points():
            for point in part.points:
                console.print(Text(visible(f"- {point}")))
        case content.Pairs():
            rows = [(Text(visible(name), style="dim"), Text(visible(text))) for name, text in part.pairs]
            console.print(_grid(rows))
        case Table():
            _table(part, console)
        case content.Interactive():
            for inner in part.still:
                _show(inner, console)
        case content.Listing():
            console.print(Text(visible(part.text)), soft_wrap=True)


def _line(part: content.Paragraph, console: Console) -> None:
    from rich.text import Text

    looks = {"strong": "bold", "code": "cyan", "": ""}
    text = Text.assemble(*((visible(span.text), looks[span.style]) for span in part.spans), style=STYLES[part.tone])
    console.print(text, soft_wrap=any(span.style == "code" for span in part.spans))  # what is to be typed stays whole


def _grid(rows: Sequence[Sequence[object]]) -> object:
    from rich.table import Table as Grid

    grid = Grid(box=None, pad_edge=False, show_header=False)
    grid.add_column(no_wrap=all(len(str(row[0])) <= MAX_WORD_LENGTH for row in rows))
    grid.add_column()
    for row in rows:
        grid.add_row(*row)  # type: ignore[arg-type]
    return grid


def _table(table: Table, console: Console) -> None:
    from rich.text import Text

    rows = [[(visible(name), "dim") for name in table.header]] * (not table.bare)
    rows += [
        [(visible(str(cell)), "bold" if cell.strong else STYLES[cell.tone]) for cell in row] for row in table.cells
    ]
    widths = _widths(table, rows, console.width - 2 * (len(table.header) - 1))
    if widths is None:
        _show_records(table, rows, console)
    else:
        _show_rows(table, rows, widths, console)
    for note in table.notes:
        if note == BOLD and console.color_system is None:
            continue  # nothing is bold in a file or pipe
        console.print(Text(visible(note), style="dim"))


def _show_rows(
    table: Table, rows: Sequence[Sequence[tuple[str, str]]], widths: Sequence[int], console: Console
) -> None:
    """Print a table as Rich would, at a tenth of the time; cells that are wider than their column are wrapped."""
    from rich.cells import cell_len
    from rich.segment import Segment, Segments
    from rich.text import Text

    styles = {style: console.get_style(style) for row in rows for _, style in row}
    segments = []
    for row in rows:
        cells = []
        for (text, _), width in zip(row, widths, strict=True):
            whole = cell_len(text) <= width and not {"\n", "\t"} & {*text}
            wrapped = () if whole else Text(text).wrap(console, width, overflow="fold")
            cells.append([line.plain.rstrip() for line in wrapped] or [text])
        for number in range(max(map(len, cells))):
            for i, (lines, (_, style)) in enumerate(zip(cells, row, strict=True)):
                text = lines[number] if number < len(lines) else ""
                space, between = " " * (widths[i] - cell_len(text)), "  " if i + 1 < len(row) else "\n"
                before, behind = ("", space + between) if table.is_text(i) else (space, between)
                segments += [Segment(before), Segment(text, styles[style]), Segment(behind)]
    console.print(Segments(segments), soft_wrap=True, end="")


def _widths(table: Table, rows: Sequence[Sequence[tuple[str, str]]], room: int) -> list[int] | None:
    """How wide each column is when words are wrapped; None where not even that makes room."""
    from rich.cells import cell_len

    headings = 0 if table.bare else 1
    least, widths = [], []
    for i in range(len(table.header)):
        texts = [row[i][0] for row in rows]
        lines = [line for text in texts for line in text.splitlines()]
        words = [word for text in texts[:headings] for word in text.split()]  # a heading may be wrapped in any column
        if i == table.unbroken_column or not table.is_text(i):
            words += texts[headings:]
        else:
            words += [word for text in texts[headings:] for word in text.split() if len(word) <= MAX_WORD_LENGTH]
        least.append(max(map(cell_len, words), default=1))
        widths.append(max(map(cell_len, lines), default=1))
    if sum(least) > room:
        return None
    while sum(widths) > room:
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


def _show_records(table: Table, rows: Sequence[Sequence[tuple[str, str]]], console: Console) -> None:
    """Every row by itself: what its first column says, and below it the others by their names."""
    from rich.text import Text

    for row in rows if table.bare else rows[1:]:
        console.print(Text(row[0][0], style=row[0][1] or "bold"))
        pairs = [
            (Text(f"  {visible(name)}", style="dim"), Text(text, style=style))
            for name, (text, style) in zip(table.header[1:], row[1:], strict=True)
            if text
        ]
        console.print(_grid(pairs))
