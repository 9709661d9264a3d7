"""`fedrank search WORDS`: results in the terminal, and completion of recent queries."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import textwrap
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from fedrank.cli.shared import print_line, print_note
from fedrank.display import count_of, visible
from fedrank.search.folders import default_folder

if TYPE_CHECKING:
    from fedrank.search.client import SearchClient
    from fedrank.search.results import Result, Shown

COMPLETED, RECENT = 20, 1_000  # queries that are suggested, of the latest that are looked at


class SearchGroup(TyperGroup):
    """Commands, of which `find` is called for words that are not a command; `--` is before such words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["find", *args[args[0] == "--" :]]
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        words = next(param for param in self.commands["find"].params if param.name == "words")
        return [*super().shell_complete(ctx, incomplete), *words.shell_complete(ctx, incomplete)]


def recent_queries(ctx: typer.Context, args: list[str], incomplete: str) -> list[str]:
    """The user's recent queries that continue what is typed, without the words before the one to complete."""
    typed = " ".join([*(ctx.params.get("words") or ()), ""]) + incomplete
    folder = ctx.params.get("folder") or os.environ.get("FEDRANK_SEARCH") or default_folder()
    database = Path(folder).expanduser().absolute() / "search.db"
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=0.1)) as db:
            rows = db.execute("SELECT query FROM impressions ORDER BY id DESC LIMIT ?", (RECENT,)).fetchall()
    except sqlite3.Error:
        return []
    found = dict.fromkeys(query for (query,) in rows if query.startswith(typed) and query.isprintable())
    return [query[len(typed) - len(incomplete) :] for query in found][:COMPLETED]


def facts_of(client: SearchClient, shown: Shown, results: Sequence[Result]) -> dict[str, Any]:
    """A list as plain values, for scripts."""
    from fedrank.search.render import day

    return {
        "search": shown.impression, "query": shown.query, "found": shown.found, "conditions": shown.meaning,
        "notes": shown.notes, "suggestion": shown.suggestion or None,
        "results": [
            {
                "number": one.position + 1, "document": one.id, "title": one.title, "kind": one.kind,
                "date": day(one.date) or None, "where": one.where, "link": one.link or None,
                "path": client.pages.document(one.id).original or None, "snippet": one.snippet.text,
                "opened_before": one.before,
            }
            for one in results if not one.gone
        ],
    }  # fmt: skip


def print_results(shown: Shown, results: Sequence[Result]) -> None:
    """Print a list; through the pager if it is longer than the terminal."""
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    size = shutil.get_terminal_size()
    width = size.columns if sys.stdout.isatty() else 0
    lines = [line for one in results for line in _lines_of(one, colours, width)]
    for note in shown.notes:
        print_note(note)
    if shown.suggestion:
        print_note(f"did you mean: {shown.suggestion}")
    if shown.meaning:
        lines = [f"Only documents with: {' · '.join(map(visible, shown.meaning))}", "", *lines]
    lines.append(f"{len(results):,} of {count_of(shown.found, 'result')}")
    if not results:
        print_line(f"Nothing found for {shown.query!r}")
    elif width and len(lines) >= size.lines:
        typer.echo_via_pager("\n".join(lines) + "\n", color=colours)
    else:
        typer.echo("\n".join(lines), color=colours)


def _lines_of(one: Result, colours: bool, width: int) -> list[str]:
    from fedrank.search.render import KINDS, day, location

    def styled(text: str, **style: Any) -> str:
        return typer.style(text, **style) if colours else text

    number = f"{one.position + 1:>2} "
    if one.gone:
        return [f"{number} This document was removed", ""]
    about = [KINDS[one.kind], day(one.date), "opened before" if one.before else "", visible(location(one.where))]
    text = " ".join(visible(one.snippet.text, drop=True).split())
    wrapped = textwrap.wrap(text, width - 4) if width > 20 else [text]
    words = {one.snippet.text[a:b] for a, b in one.snippet.marked}
    return [
        styled(number, dim=True) + " " + styled(visible(one.title) or "Untitled", bold=True),
        "    " + styled(" · ".join(filter(None, about)), dim=True),
        *("    " + _marked(line, words if colours else set()) for line in wrapped if line),
        "",
    ]


def _marked(line: str, words: set[str]) -> str:
    import re

    return re.sub(r"\w+", lambda word: typer.style(word[0], fg="yellow") if word[0] in words else word[0], line)


def open_result(client: SearchClient, impression: int, number: int) -> None:
    """Open a result of a search, and record the click."""
    from fedrank.search.opening import OUTCOMES, open_original
    from fedrank.search.results import PAGE_SIZE, NotFound

    try:
        client.shown(impression, (number - 1) // PAGE_SIZE + 1)
        document = client.open_document(impression, number - 1)
    except NotFound:
        raise ValueError(f"--open {number}: the search has no result with this number") from None
    if document.original and document.kind != "page":
        outcome = open_original(document.original)
        if outcome != "opened":
            raise ValueError(f"{OUTCOMES[outcome].split('.')[0]}: {document.original}")
        print_line(f"Opened {document.original}")
    elif document.link:
        typer.launch(document.link)
        print_line(f"Opened {document.link}")
    else:
        text = f"{document.title}\n{document.where}\n\n{document.text}\n"
        typer.echo_via_pager("".join(map(visible, text.splitlines(keepends=True))))
