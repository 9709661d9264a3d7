"""What comes from files stays text on a terminal: no markup, no emoji, nothing that a terminal would obey."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fedrank.cli.shared import print_line
from fedrank.experiments.report import terminal
from fedrank.experiments.report.sections import Cell, Listing, Pairs, Points, Section, Table
from fedrank.experiments.report.sections import paragraph as paragraph

ODD = ["1:x:2", "[red]no[/red] [link=https://example.org]markup", "a\\[b] :warning:"]


def console(width: int = 200) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def printed(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


@pytest.mark.parametrize("text", ODD)
def test_no_markup_and_no_emoji(monkeypatch, text):
    to = console()
    monkeypatch.setattr("fedrank.cli.shared.console", lambda: to)
    print_line(f"failed {text}")
    print_line(f"failed {text}", style="red")
    assert printed(to) == f"failed {text}\n" * 2
    table = Table([text, "n"], [[Cell(text), Cell(text)]], notes=[text])
    parts = (paragraph(text), Points((text,)), Pairs(((text, text),)), table, Listing(text))
    to = console()
    terminal.show([Section(text, parts, over=text)], to)
    assert printed(to).count(text) == 2 + 1 + 1 + 2 + 4 + 1


def test_nothing_that_a_terminal_obeys(monkeypatch):
    text = "a\x1b[2J\x1b]0;title\x07b\x9b1mc"
    to = console()
    monkeypatch.setattr("fedrank.cli.shared.console", lambda: to)
    print_line(text)
    terminal.show([Section(text, (paragraph(text), Table([text], [[Cell(text)]])))], to)
    assert printed(to).count("a\\x1b[2J\\x1b]0;title\\x07b\\x9b1mc") == 5
    assert not set(printed(to)) & {"\x1b", "\x07", "\x9b"}


CELLS = ["", "krum, malicious=1", "nDCG ▲", "日本語 x", "0.123 ± 0.4", "[red]x[/red] :x:", "finished"]


@pytest.mark.parametrize("columns", [1, 2, 5])
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("width", [35, 50, 200])
def test_a_table_looks_as_rich_would_show_it(columns, bare, width):
    rows = [[Cell(CELLS[(i * 3 + j) % len(CELLS)], strong=i == 1) for j in range(columns)] for i in range(7)]
    table = Table([CELLS[j + 1] for j in range(columns)], rows, text_columns=1, bare=bare)
    ours, theirs = console(width), console(width)
    terminal.show([Section("", (table,))], ours)
    texts = [[(str(cell), "") for cell in row] for row in ([] if bare else [table.header]) + rows]
    widths = terminal._widths(table, texts, width - 2 * (columns - 1))
    if widths is None:
        return  # printed as records
    grid = Grid(box=None, pad_edge=False, show_header=False)
    for i, each in enumerate(widths):
        grid.add_column(justify="left" if table.is_text(i) else "right", overflow="fold", width=each)
    for row in texts:
        grid.add_row(*(Text(text) for text, _ in row))
    theirs.print(grid)
    assert printed(ours) == f"{printed(theirs)}\n"


def test_a_table_that_does_not_fit_is_wrapped():
    to = console(width=30)
    terminal.show([Section("", (Table(["a", "b"], [[Cell("long words " * 5), Cell("1")]]),))], to)
    assert max(map(len, printed(to).splitlines())) <= 30
    assert printed(to).count("long") == 5


def test_words_and_numbers_stay_whole_where_a_table_is_wrapped():
    rows = [[Cell(f"variant with a long name {n}"), Cell("0.3738 ± 0.0095"), Cell("0.2403 ± 0.0842")] for n in range(3)]
    table = Table(["variant", "ndcg@10", "online nDCG@10 of everybody"], rows)
    to = console(width=55)
    terminal.show([Section("", (table,))], to)
    lines = printed(to).splitlines()
    assert max(map(len, lines)) <= 55
    assert printed(to).count("0.3738 ± 0.0095") == printed(to).count("0.2403 ± 0.0842") == 3
    assert printed(to).count("variant") == 4


def test_where_not_even_words_fit_every_row_stands_by_itself():
    rows = [[Cell(f"first {n}"), *(Cell("0.3738 ± 0.0095") for _ in range(4))] for n in range(2)]
    to = console(width=50)
    terminal.show([Section("", (Table(["variant", *"abcd"], rows),))], to)
    assert max(map(len, printed(to).splitlines())) <= 50
    assert printed(to).count("0.3738 ± 0.0095") == 8
    assert printed(to).splitlines()[1].split() == ["a", "0.3738", "±", "0.0095"]
