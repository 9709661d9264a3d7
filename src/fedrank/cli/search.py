"""`fedrank search`: search your own documents on this machine."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.find import SearchGroup, facts_of, open_result, print_results, recent_queries
from fedrank.cli.shared import (
    EXIT_FAILURE,
    AsJson,
    Browser,
    Port,
    Quiet,
    Yes,
    open_page,
    print_json,
    print_line,
    print_note,
    progress,
)
from fedrank.display import count_of
from fedrank.search.folders import default_folder, folder_option
from fedrank.search.results import PAGE_SIZE

if TYPE_CHECKING:
    from fedrank.search.agents import AgentSearch
    from fedrank.search.client import SearchClient
    from fedrank.search.results import Indexed, SearchStatus, SkippedFile

search_app = typer.Typer(cls=SearchGroup, no_args_is_help=True, subcommand_metavar="WORDS... | COMMAND [ARGS]...")
Home = Annotated[
    Path | None,
    typer.Option("--folder", envvar="FEDRANK_SEARCH", help="Folder of the index. Default: your data folder."),
]
DEMO_FOLDER = Path("search-demo")


@search_app.command(
    "index",
    epilog="Examples:  fedrank search index ~/Documents ~/Mail --bookmarks bookmarks.html  ·  update the index:  "
    "fedrank search index",
)
def search_index(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders, mail (mbox, Maildir, .eml), JSONL, profiles of browsers and Thunderbird, Zotero's folder. "
            "Default: those of the last time."
        ),
    ] = None,
    bookmarks: Annotated[
        list[Path] | None, typer.Option(help="Bookmarks exported from a browser; may be repeated.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="Language of a new index, for stemming: english, german, ..., or none.")
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Option(
            help="Program that writes the text of files, by ending, such as 'png=tesseract {file} -'; may be repeated."
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Continue to index changes until Ctrl-C.")] = False,
    remove: Annotated[
        list[Path] | None,
        typer.Option(help="Indexed folder or file whose documents to remove from the index; may be repeated."),
    ] = None,
    folder: Home = None,
    quiet: Quiet = False,
) -> None:
    """Index documents, or update the index. A stopped command continues where it stopped."""
    from fedrank.search.commands import remember_command
    from fedrank.search.render import skipped_counts

    if remove:
        if paths or bookmarks or watch or command:
            raise ValueError("--remove must be used alone; nothing was changed; remove first, then index")
        with _client(folder) as client:
            for path in remove:
                print_line(f"{path}: {count_of(client.remove_root(path), 'document')} removed from the index")
        return
    with _client(folder, language=language, begin=True) as client:
        for given in command or []:
            remember_command(client.store, given)
        try:
            with progress(quiet) as tell:
                done = client.index(paths or [], bookmarks=bookmarks or [], progress=tell)
        except KeyboardInterrupt:
            documents = count_of(client.status().documents, "document")
            print_line(f"Stopped; {documents} are in the index. Run the same command to continue.")
            raise typer.Exit(130) from None
        _print_indexed(done)
        if said := skipped_counts(done.skipped):
            print_line(f"Skipped: {said} (list them: fedrank search status --skipped{folder_option(folder)})")
        _note_unused(client, done, paths or [])
        if done.documents:
            print_line(f"Search: fedrank search serve{folder_option(folder)}")
        else:
            print_note(
                "the index is empty; give a folder, such as fedrank search index ~/Documents" + folder_option(folder)
            )
        if watch:
            from fedrank.search.watch import watch as watch_folders

            print_line("Watching for changes; Ctrl-C stops.")
            with contextlib.suppress(KeyboardInterrupt):
                watch_folders(client, _print_indexed, threading.Event())


@search_app.command(
    "find",
    epilog="Examples:  fedrank search roof invoice  ·  fedrank search '\"night train\" -draft type:pdf'  ·  fedrank "
    "search roof --open 1  ·  the same with the name of the command:  fedrank search find roof --json",
    context_settings={"ignore_unknown_options": True},  # -draft is a word to exclude
)
def search_find(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help='Words, "exact words", begin*, -without, title:, in:, from:, type:, tag:, after:, before:.',
            autocompletion=recent_queries,
        ),
    ] = None,
    open: Annotated[
        int | None,
        typer.Option(min=1, max=100, help="Open the result with this number; without words, of the last search."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of results.")] = 10,
    as_json: AsJson = False,
    folder: Home = None,
) -> None:
    """Search in the terminal; `fedrank search WORDS` is the same. Exit code 0: found, 1: nothing found, 2: error.

    Searches, and results opened with --open, are recorded as on the page. Give words that begin with the name of a
    command behind `--`, as in: fedrank search -- index funds.
    """
    query = " ".join(words or [])
    if unknown := [word for word in words or [] if word.startswith("--")]:
        raise ValueError(f"unknown option {unknown[0]}; the options are --open, --limit, --json and --folder")
    if open is None and not query.strip():
        raise ValueError("give words to search for, or --open with the number of a result of the last search")
    if open and as_json:
        raise ValueError("--json cannot be combined with --open; use the path or link of the result")
    with _client(folder) as client:
        if not query.strip():
            last = client.last_search()
        else:
            shown = client.search(query)
            last = shown.impression
            pages = range(2, 1 if open else min(shown.pages, -(-limit // PAGE_SIZE)) + 1)
            results = [*shown.results, *(one for page in pages for one in client.shown(last, page).results)][:limit]
            if as_json:
                print_json(facts_of(client, shown, results))
            elif not open or not results:
                print_results(shown, results)
            if not results:
                raise typer.Exit(EXIT_FAILURE)
        if open:
            open_result(client, last, open)


@search_app.command(
    "serve",
    epilog="Examples:  fedrank search serve  ·  fedrank search serve --port 8080 --no-browser  ·  fedrank search serve "
    "--demo",
)
def search_serve(
    context: typer.Context,
    port: Port = 0,
    browser: Browser = True,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo", help="Search generated mail, notes and bookmarks with six weeks of clicks, in search-demo."
        ),
    ] = False,
    folder: Home = None,
) -> None:
    """Serve the search page to this machine until Ctrl-C. The link to the page works once."""
    hint = ""
    if demo:
        source = context.get_parameter_source("folder")
        if source is not None and source.name == "COMMANDLINE":
            raise ValueError("--demo uses the folder search-demo and cannot be combined with --folder")
        from fedrank.search.demo import HINT, make_demo

        made = DEMO_FOLDER
        with progress() as tell:
            folder, hint = make_demo(made, time.time(), tell), HINT
        print_line(f"Generated documents: {made / 'documents'}; to remove the demo, delete {made}")
    from fedrank.search.web import serve

    with _client(folder, serve=True, begin=True) as client:
        serve(client, port, hint, lambda link: open_page(link, browser, "stops the server"))
        print_line("Stopped; all answers are stored.")


@search_app.command("status", epilog="Examples:  fedrank search status  ·  fedrank search status --ubi my-searches")
def search_status(
    skipped: Annotated[
        bool, typer.Option("--skipped", help="List the files that could not be indexed, with the reasons.")
    ] = False,
    learned: Annotated[
        bool, typer.Option("--learned", help="Show what was learned about you, and the difference to the engine.")
    ] = False,
    why: Annotated[
        int | None,
        typer.Option(min=1, max=10**18, help="Explain the order of the search with this number, from its address."),
    ] = None,
    ubi: Annotated[
        Path | None,
        typer.Option(help="Write all queries and clicks to this folder, in the format of User Behavior Insights 1.3."),
    ] = None,
    as_json: AsJson = False,
    folder: Home = None,
) -> None:
    """Show documents, queries, clicks and settings."""
    if skipped + learned + (why is not None) + (ubi is not None) > 1:
        raise ValueError("give only one of --skipped, --learned, --why and --ubi")
    with _client(folder) as client:
        if ubi is not None:
            written = client.export_ubi(ubi)
            print_line(f"{written.queries}: {written.searches:,} queries")
            print_line(f"{written.events}: {written.clicks:,} clicks")
            return
        if learned or why is not None:
            _print_learned(client, why, as_json)
            return
        status, files = client.status(), client.skipped() if skipped else []
    if skipped:
        _print_skipped(files, status, as_json)
    elif as_json:
        typer.echo(status.as_json())
    else:
        _print_status(status)


@search_app.command(
    "forget",
    epilog="Examples:  fedrank search forget --query 'night train'  ·  fedrank search forget --since 2026-01-31  ·  "
    "fedrank search forget --all",
)
def search_forget(
    query: Annotated[str | None, typer.Option(help="Text of the queries to delete.")] = None,
    document: Annotated[
        int | None, typer.Option(help="Number of the document to delete, with all clicks on it.")
    ] = None,
    queries: Annotated[
        bool, typer.Option("--queries", help="With --document: also delete the searches that showed it.")
    ] = False,
    since: Annotated[str | None, typer.Option(help="Delete all queries since this day, such as 2026-01-31.")] = None,
    learned: Annotated[
        bool, typer.Option("--learned", help="Delete all queries and clicks; the documents stay.")
    ] = False,
    all: Annotated[bool, typer.Option("--all", help="Delete documents, queries and clicks.")] = False,
    yes: Yes = False,
    folder: Home = None,
) -> None:
    """Delete queries, clicks or documents."""
    from fedrank.search.results import NotFound

    if (query is not None) + (document is not None) + (since is not None) + learned + all != 1:
        raise ValueError("nothing was deleted: give one of --query, --document, --since, --learned and --all")
    if queries and document is None:
        raise ValueError("nothing was deleted: --queries is for --document")
    moment = None if since is None else _moment(since)
    if learned and not yes:
        typer.confirm("Delete all queries and clicks, and what was learned from them?", abort=True)
    if all and not yes:
        typer.confirm("Delete the index, and all queries and clicks?", abort=True)
    with _client(folder) as client:
        try:
            gone = client.forget(
                query=query, document=document, since=moment, learned=learned, everything=all, searches=queries
            )
        except NotFound:
            raise ValueError(f"--document {document}: no such document; nothing was deleted") from None
    if query is not None and not gone.impressions:
        raise ValueError(f"--query {query!r}: no search with this text; nothing was deleted")
    print_line(f"{gone}")
    if gone.kept:
        print_line("Searches that showed it stay; to delete them, use fedrank search forget --query with their texts:")
        for text in gone.kept:
            print_line(f"  {text}")


@search_app.command("learn", epilog="Examples:  fedrank search learn off  ·  fedrank search learn on")
def search_learn(
    setting: Annotated[
        str,
        typer.Argument(metavar="on|off", help="on (remember what is opened) or off (nothing is recorded)."),
    ],
    folder: Home = None,
) -> None:
    """Turn learning from clicks on or off."""
    said = {
        "on": "Learning is on: queries and clicks are recorded on this device, and what you open moves up.",
        "off": "Learning is off: queries and clicks are not recorded.",
    }
    if setting not in said:
        raise ValueError(f"the setting must be on or off (got {setting!r}); nothing was changed")
    with _client(folder) as client:
        client.learn_setting(setting)  # type: ignore[arg-type]  # checked above
    print_line(said[setting])


@search_app.command(
    "mcp",
    epilog="Examples:  fedrank search mcp --allow ~/Documents/recipes  ·  in the settings of an agent:  fedrank search "
    "mcp",
)
def search_mcp(
    allow: Annotated[
        list[Path] | None, typer.Option(help="Indexed folder or file that agents may search; may be repeated.")
    ] = None,
    revoke: Annotated[
        list[Path] | None, typer.Option(help="Folder or file that agents may no longer search; may be repeated.")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Show what agents may search, and what they asked.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete the log of what agents asked, and what was learned from it.")
    ] = False,
    as_json: AsJson = False,
    folder: Home = None,
) -> None:
    """Serve the tools `search` and `feedback` to an agent over standard input, for the folders that you allow.

    No folder is allowed at first. Every query is logged before its results leave (Model Context Protocol).
    """
    from fedrank.search.agents import AgentSearch

    with _client(folder) as client:
        agents = AgentSearch(client)
        for path in allow or []:
            print_line(f"{path}: agents may search {count_of(agents.allow(path), 'document')}")
        for path in revoke or []:
            agents.revoke(path)
            print_line(f"{path}: agents may no longer search it")
        if forget:
            print_line(f"{count_of(agents.forget(), 'search', 'searches')} of agents deleted")
        if log:
            _print_agents(agents, as_json)
        if not (allow or revoke or forget or log):
            from fedrank.search.mcp import search_tools

            search_tools(agents).run("stdio")


def _client(folder: Path | None, serve: bool = False, language: str | None = None, begin: bool = False) -> SearchClient:
    """The search client of a folder. Only a command that may `begin` one creates a folder that was given."""
    from fedrank.search.client import SearchClient

    if folder is not None and not begin and not folder.expanduser().is_dir():
        raise FileNotFoundError(f"no folder {folder}; give the folder that `fedrank search index` made with --folder")
    return SearchClient(folder or default_folder(), serve=serve, language=language)


def _print_learned(client: SearchClient, why: int | None, as_json: bool) -> None:
    """Print what was learned, or why a search has its order."""
    from fedrank.search.learned import what_was_learned, why_in_words
    from fedrank.search.render import day, text_bar
    from fedrank.search.results import Gone, NotFound

    if why is not None:
        try:
            found = why_in_words(client, why)
        except NotFound:
            raise ValueError(f"--why {why}: no such search; use the number in the address of its results") from None
        except Gone as old:
            raise ValueError(f"--why {why}: {old}") from None
        if as_json:
            print_json(found)
            return
        print_line(f"Search {why}: {found.query}")
        print_line(found.order)
        for one, sentences in found.results:
            print_line(f"{one.result.position + 1}. {one.result.title or 'This document was removed'}")
            for sentence in sentences:
                print_line(f"   {sentence}")
        return
    learned = what_was_learned(client)
    if as_json:
        print_json(learned)
        return
    searches, clicks = (
        count_of(learned.searches, "recorded query", "recorded queries"),
        count_of(learned.clicks, "click"),
    )
    print_line(f"From {searches} and {clicks}")
    if learned.given_up:
        print_line("Earlier clicks do not count any more: in mixed lists, the order without them won")
    if learned.uses_engine:
        print_line("The order of the search engine is used: it won in mixed lists")
    for each in learned.remembered:
        print_line(f"For {each.query!r} you opened {each.title or 'Untitled'} ({each.clicks:,}, {day(each.time)})")
    if learned.weeks:
        print_line("By week, how much higher opened results were than in the engine's order (favours what was shown):")
    most = max((abs(week.difference) for week in learned.weeks), default=0.0)
    for week in learned.weeks:
        print_line(f"{day(week.begins)}  {week.difference:+.3f}  {text_bar(week.difference, most)}")
    print_line(
        "Lists that mixed your order with another one (the engine's, or yours without earlier clicks): "
        f"{learned.wins:,} won by yours, {learned.losses:,} by the other"
    )
    print_line("Forget all of this: fedrank search forget --learned")


def _print_agents(agents: AgentSearch, as_json: bool) -> None:
    from fedrank.search.render import moment

    folders, asked = agents.folders(), agents.log()
    if as_json:
        print_json({"folders": folders, "searches": asked})
        return
    print_line(f"Agents may search: {', '.join(folders) or 'nothing'}")
    for one in asked:
        results = count_of(len(one.documents), "result")
        print_line(f"{moment(one.time)}  {one.query}: {results}, {len(one.used):,} used")
        for index in one.used:
            print_line(f"    {one.documents[index] or 'removed since'}")


def _print_indexed(done: Indexed) -> None:
    moved = f"{count_of(done.moved, 'file')} moved; " if done.moved else ""
    print_line(
        f"{done.documents:,} documents: {done.added:,} new, {done.changed:,} changed, {done.removed:,} removed; "
        f"{moved}{done.unchanged:,} of {done.files:,} files unchanged; {done.seconds:.1f} s"
    )


def _print_status(status: SearchStatus) -> None:
    from fedrank.search.render import ORDERS, kind_counts, size, skipped_counts

    week = status.weeks[-1] if status.weeks else None
    lines = [
        ("Documents", f"{status.documents:,}" + (f" ({kind_counts(status.kinds)})" if status.kinds else "")),
        ("From", ", ".join(status.roots) or "nothing yet; use fedrank search index ~/Documents"),
        ("Missing", ", ".join(status.missing)),
        ("Skipped", skipped_counts(status.skipped) or "nothing"),
        ("Queries", f"{status.searches:,}"),
        ("Clicks", f"{status.clicks:,}; {status.bounced:,} more ended within five seconds and do not count"),
        ("Learning", ("on" if status.learn else "off: nothing is recorded") + f"; order: {ORDERS[status.order][0]}"),
        (
            "Last week",
            f"{week.searches:,} queries, {week.first:,} with a click at the top, {week.clicked:,} with a click"
            if week
            else "",
        ),
        ("Folder", f"{status.folder}, {size(status.disk_bytes)}"),
    ]
    lines = [(name, text) for name, text in lines if text]
    wide = max(len(name) for name, _ in lines) + 2
    for name, text in lines:
        print_line(f"{name:{wide}}{text}")
    for text in status.notes:
        print_note(text)


def _note_unused(client: SearchClient, done: Indexed, paths: list[Path]) -> None:
    """Print which of the indexed folders and of the given files gave no document."""
    from fedrank.search.render import SKIPPED

    for path in done.empty:
        print_note(f"{path} contains no files")
    if done.missing:
        print_note(
            f"{count_of(len(done.missing), 'folder')} {'is' if len(done.missing) == 1 else 'are'} missing: "
            f"{', '.join(done.missing)}; the documents stay; to remove them: fedrank search index --remove PATH"
        )
    given = {str(path.expanduser().absolute()) for path in paths if path.is_file()}
    for file in client.skipped() if given else []:
        if file.path in given:
            print_note(f"{file.path} was skipped: {SKIPPED.get(file.reason, file.reason)}")


def _print_skipped(files: list[SkippedFile], status: SearchStatus, as_json: bool) -> None:
    from fedrank.search.render import SKIPPED, skipped_counts

    if as_json:
        print_json(files)
        return
    for file in files:
        parts = f" ({file.times:,} parts)" if file.times > 1 else ""
        print_line(f"{file.path}: {SKIPPED.get(file.reason, file.reason)}{parts}")
    listed = {file.reason for file in files}
    rest = {why: count for why, count in status.skipped.items() if why not in listed}
    if said := skipped_counts(rest):
        print_line(f"Only counted: {said}")


def _moment(day: str) -> int:
    try:
        return int(datetime.fromisoformat(day).timestamp())
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"--since must be a day, such as 2026-01-31 (got {day!r}); nothing was deleted") from None
