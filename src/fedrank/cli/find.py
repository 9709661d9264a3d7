"""`fedrank search WORDS`: results in the terminal, and completion of recent queries."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from fedrank.cli.shared import console, print_line, print_note
from fedrank.display import count_of, visible
from fedrank.search.folders import default_folder
from fedrank.search.queries import KINDS
from fedrank.search.results import NotFound, Snippet

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from fedrank.search.client import SearchClient
    from fedrank.search.results import Result, Shown

COMPLETED, RECENT = 20, 1_000  # queries that are suggested, of the latest that are looked at
_HARMLESS = re.compile(r"[\w .,@/+-]+")  # a shell completes without quotes


class SearchGroup(TyperGroup):
    """Commands, of which `find` is called for words that are not a command; `--` is before such words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["find", *args]
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
    found = dict.fromkeys(query for (query,) in rows if query.startswith(typed) and _HARMLESS.fullmatch(query))
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
    from rich.console import Group
    from rich.text import Text

    for note in shown.notes:
        print_note(note)
    if shown.suggestion:
        print_note(f"did you mean: {shown.suggestion}")
    if not results:
        print_line(f"Nothing found for {shown.query!r}")
        return
    lines = [line for one in results for line in _lines_of(one)]
    if shown.meaning:
        lines = [Text(f"Only documents with: {' · '.join(map(visible, shown.meaning))}"), Text(), *lines]
    all_lines, out = Group(*lines, Text(f"{len(results):,} of {count_of(shown.found, 'result')}")), console()
    with _paged(out, out.is_terminal and len(out.render_lines(all_lines)) >= out.height):
        out.print(all_lines)


@contextmanager
def _paged(out: Console, long: bool) -> Iterator[None]:
    """Print through the user's pager if the text is `long`, in colours if the pager is less and may show them."""
    if not long:
        yield
        return
    less = "less" in os.environ.get("PAGER", "less")
    with out.pager(styles=less and "r" in os.environ.setdefault("LESS", "-R").lower()):
        yield


def _lines_of(one: Result) -> list[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    from fedrank.search.render import day, location

    line = Text.assemble((f"{one.position + 1:>2}  ", "dim"))
    if one.gone:
        return [line.append("This document was removed"), Text()]
    about = [KINDS[one.kind], day(one.date), "opened before" if one.before else "", visible(location(one.where))]
    texts = [Text(" · ".join(filter(None, about)), style="dim"), _marked(one.snippet, drop=True)]
    title = _marked(one.heading if one.title else Snippet("Untitled"), style="bold")
    return [line.append_text(title), *(Padding(text, (0, 0, 0, 4), expand=False) for text in texts if text), Text()]


def _marked(snippet: Snippet, style: str = "", drop: bool = False) -> Text:
    """A snippet with its words in colour; invisible characters are escaped, or left out."""
    from rich.text import Text

    line, at = Text(style=style), 0
    for start, end in [*snippet.marked, (len(snippet.text),) * 2]:
        for piece, colour in ((snippet.text[at:start], None), (snippet.text[start:end], "yellow")):
            line.append(visible(re.sub(r"\s+", " ", piece), drop=drop), colour)
        at = end
    return line


def open_result(client: SearchClient, impression: int, number: int) -> None:
    """Open a result of a search, and record the click."""
    from fedrank.search.opening import OUTCOMES, open_original
    from fedrank.search.results import PAGE_SIZE

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
    elif document.link.startswith(("http://", "https://")):
        typer.launch(document.link)
        print_line(f"Opened {document.link}")
    else:
        out = console()
        with _paged(out, out.is_terminal):
            print_line(f"{document.title}\n{document.where}\n\n{document.text}")
