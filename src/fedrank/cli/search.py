"""`fedrank search`: search your own documents on this machine with a ranker that learns from your clicks."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.shared import (
    AsJson,
    Browser,
    Port,
    Quiet,
    Yes,
    open_page,
    print_json,
    print_line,
    print_note,
    print_outcome,
    print_sections,
    progress,
)
from fedrank.display import count_of
from fedrank.search.folders import default_folder, folder_option

if TYPE_CHECKING:
    from fedrank.search.agents import AgentSearch
    from fedrank.search.client import SearchClient
    from fedrank.search.results import Indexed, SearchStatus, SkippedFile

search_app = typer.Typer(no_args_is_help=True)
Home = Annotated[
    Path | None,
    typer.Option(
        "--folder", envvar="FEDRANK_SEARCH", help="Folder of the index and the model. Default: your data folder."
    ),
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
    encoder: Annotated[Path | None, typer.Option(help="Text encoder as an ONNX file, for two more features.")] = None,
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
        if paths or bookmarks or encoder or watch or command:
            raise ValueError("--remove must be used alone; nothing was changed; remove first, then index")
        with _client(folder) as client:
            for path in remove:
                print_line(f"{path}: {count_of(client.remove_root(path), 'document')} removed from the index")
        return
    with _client(folder, language=language, begin=True) as client:
        if encoder is not None:
            client.vectors.use(encoder)
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
    """Show documents, queries, clicks, the model, and all data that have left the device."""
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
        bool, typer.Option("--learned", help="Delete all queries, clicks and learned weights; the documents stay.")
    ] = False,
    all: Annotated[bool, typer.Option("--all", help="Delete documents, queries, clicks and the model.")] = False,
    yes: Yes = False,
    folder: Home = None,
) -> None:
    """Delete queries, clicks or documents. The model keeps what it learned until `fedrank search learn reset`."""
    from fedrank.search.results import NotFound

    if (query is not None) + (document is not None) + (since is not None) + learned + all != 1:
        raise ValueError("nothing was deleted: give one of --query, --document, --since, --learned and --all")
    if queries and document is None:
        raise ValueError("nothing was deleted: --queries is for --document")
    moment = None if since is None else _moment(since)
    if learned and not yes:
        typer.confirm("Delete all queries and clicks, and what was learned from them?", abort=True)
    if all and not yes:
        typer.confirm("Delete the index, all queries and clicks, and the model?", abort=True)
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


@search_app.command("learn", epilog="Examples:  fedrank search learn off  ·  fedrank search learn reset")
def search_learn(
    setting: Annotated[
        str,
        typer.Argument(
            metavar="on|weights|off|reset",
            help="on (remember what is opened); weights (also learn a model); off (nothing is recorded); or reset.",
        ),
    ],
    folder: Home = None,
) -> None:
    """Turn learning from clicks on or off, or reset the model."""
    said = {
        "on": "Learning is on: queries and clicks are recorded on this device, and what you open moves up.",
        "weights": "Learning is on, also of weights: close results sometimes swap; the learned model is tried first.",
        "off": "Learning is off: queries and clicks are not recorded.",
        "reset": "The model is reset. Queries and clicks stay; `fedrank search forget` deletes them.",
    }
    if setting not in said:
        raise ValueError(f"the setting must be on, weights, off or reset (got {setting!r}); nothing was changed")
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


@search_app.command(
    "join",
    epilog="Examples:  after fedrank deploy join:  fedrank search join anna  ·  show the plans and accept:  fedrank "
    "search join anna",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},  # those of file: had other options
)
def search_join(
    context: typer.Context,
    federation: Annotated[str, typer.Argument(help="Home made by fedrank deploy join.")],
    yes: Yes = False,
    folder: Home = None,
) -> None:
    """Train with others: show what leaves this device, its privacy budget and the benefit to expect; accept plans."""
    from fedrank.search import joining

    if context.args and not federation.startswith(joining.PREFIX):
        raise typer.BadParameter(f"unexpected: {' '.join(context.args)}; nothing was sent")
    site = joining.site_of(federation)
    with _client(folder, begin=True) as client:
        if joining.state_of(client, site):
            _continue(client, site, yes)
        else:
            _join_network(client, site, yes)


@search_app.command("leave", epilog="Example:  fedrank search leave --because 'enough'")
def search_leave(
    because: Annotated[str, typer.Option(help="Reason; the other members can read it.")] = "",
    yes: Yes = False,
    folder: Home = None,
) -> None:
    """Leave the federation. This device sends nothing more; what it sent cannot be recalled."""
    from fedrank.search.joining import check_joined, leave

    with _client(folder) as client:
        check_joined(client)
        if not yes:
            typer.confirm("Leave the federation? You cannot join again under this name.", abort=True)
        leave(client, because)
    print_line("Left. Recorded queries were deleted; the ledger and the list of sent data stay.")


@search_app.command("aggregate", epilog="Example:  fedrank search aggregate --home coordinator --epsilon 4")
def search_aggregate(
    home: Annotated[Path, typer.Option(help="Folder of the coordinator, made by fedrank deploy init.")],
    epsilon: Annotated[float, typer.Option(help="Maximum privacy budget ε of all rounds, per person.")] = 8.0,
    name: Annotated[str, typer.Option(help="Name of the run.")] = "searches",
    quiet: Quiet = False,
) -> None:
    """Train with all members, as their coordinator, if they are enough for this ε. Run it again to continue.

    Every person takes part in one of few rounds. Secure aggregation shows only the sum of a round.
    """
    from fedrank.deploy.transport import shared_folder
    from fedrank.experiments.runner.stop_signals import stop_requested
    from fedrank.search.coordinator import aggregate
    from fedrank.search.joining import DEVICE_NOISE

    if shared_folder(home) is not None:
        raise ValueError(
            f"{home} is a federation in a shared folder, but searches are trained over a network only, because "
            f"{DEVICE_NOISE}; create one with fedrank deploy init --host; nothing was planned"
        )
    print_note("quality is measured on generated documents; it reveals a broken model, not the quality for your users")
    runs = home / "runs"
    with progress(quiet) as report, stop_requested() as stop:
        results = aggregate(home, runs, name, epsilon, stop, report, print_line)
    print_outcome(results, runs / name)


_NEVER_LEAVES = (
    "Documents, queries and clicks never leave this device. The coordinator learns whether you searched at least 30 "
    "times since the last round. Queries from before you joined are not used."
)
_WHEN_ANSWERED = "Requests are answered while `fedrank search serve` or `fedrank deploy start --home {}` runs."


def _client(folder: Path | None, serve: bool = False, language: str | None = None, begin: bool = False) -> SearchClient:
    """The search client of a folder. Only a command that may `begin` one creates a folder that was given."""
    from fedrank.search.client import SearchClient

    if folder is not None and not begin and not folder.expanduser().is_dir():
        raise FileNotFoundError(f"no folder {folder}; give the folder that `fedrank search index` made with --folder")
    return SearchClient(folder or default_folder(), serve=serve, language=language)


def _continue(client: SearchClient, site: Path, yes: bool) -> None:
    """Show the plans and ask for consent."""
    from fedrank.deploy.show import about_plan
    from fedrank.search import joining

    for plan, view in joining.open_plans(client):
        print_sections(about_plan(view))
        if view.refused:
            continue  # the sections contain the reason; it cannot be accepted
        if yes or typer.confirm("Did each member read you their fingerprint by telephone? Participate in this run?"):
            joining.agree(client, plan)
        else:
            joining.decline(client, plan)
    joining.take_part(client)
    print_line(_WHEN_ANSWERED.format(site))


def _join_network(client: SearchClient, site: Path, yes: bool) -> None:
    from fedrank.search.coordinator import EXPECTED, people_needed
    from fedrank.search.joining import join_network, server

    there = server(client, site)
    print_line(f"Federation {there.federation} at {there.address}, CA {there.fingerprint}; you are {there.name}")
    print_line("Nothing leaves this device now. While the site runs, it is connected to that server, which sees that.")
    print_line(
        f"Later, only for runs that you accept: one update, from 30 queries or more, with a share of the noise that is "
        f"added on this device; the server sees only the sum over many people. The total privacy budget is at most "
        f"ε = {there.epsilon:g} (δ = {there.delta:g}). Runs with fewer than {people_needed(there.epsilon):,} people "
        "are refused, since chance and noise could do harm."
    )
    print_line(EXPECTED)
    print_line(_NEVER_LEAVES)
    if not yes:
        typer.confirm("Participate with your queries?", abort=True)
    join_network(client, site)
    print_line(_WHEN_ANSWERED.format(site))
    print_line(f"When a run is planned, show and accept it: fedrank search join {site}")


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
    print_line(f"Weights: {learned.model}")
    if learned.given_up:
        print_line("Earlier clicks do not count any more: mixed lists showed that the order without them was better")
    for each in learned.remembered:
        print_line(f"For {each.query!r} you opened {each.title or 'Untitled'} ({each.clicks:,}, {day(each.time)})")
    if learned.weeks:
        print_line("By week, how much higher opened results were than in the engine's order (favours what was shown):")
    most = max((abs(week.difference) for week in learned.weeks), default=0.0)
    for week in learned.weeks:
        print_line(f"{day(week.begins)}  {week.difference:+.3f}  {text_bar(week.difference, most)}")
    print_line(f"Lists that mixed both orders: {learned.wins:,} won by yours, {learned.losses:,} by the engine's")
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
    from fedrank.search.render import ORDERS, kind_counts, moment, size, skipped_counts

    changed = sorted(status.weights, key=lambda one: -abs(one.now - one.start))[:5] if status.learned_from else []
    week = status.weeks[-1] if status.weeks else None
    replay = [
        f"{name} {value:.0f}" if name == "searches" else f"{name} {value:.3f}" for name, value in status.replay.items()
    ]
    trial = status.trial
    lines = [
        ("Documents", f"{status.documents:,}" + (f" ({kind_counts(status.kinds)})" if status.kinds else "")),
        ("From", ", ".join(status.roots) or "nothing yet; use fedrank search index ~/Documents"),
        ("Missing", ", ".join(status.missing)),
        ("Skipped", skipped_counts(status.skipped) or "nothing"),
        ("Queries", f"{status.searches:,}"),
        ("Clicks", f"{status.clicks:,}; {status.bounced:,} more ended within five seconds and do not count"),
        ("Learning", ("on" if status.learn else "off: nothing is recorded") + f"; order: {ORDERS[status.order][0]}"),
        ("Model", f"{status.model}; features {status.feature_set}"),
        ("Changed most", ", ".join(f"{one.feature} {one.start:+.2f} to {one.now:+.2f}" for one in changed)),
        (
            "Last week",
            f"{week.searches:,} queries, {week.first:,} with a click at the top, {week.clicked:,} with a click"
            if week
            else "",
        ),
        ("Clicked, 1/log2", ", ".join(replay)),
        ("Interleaved lists", ", ".join(f"{name} {value:.3g}" for name, value in status.interleaved.items())),
        (
            "On trial",
            f"{trial.origin}: {trial.state}; {trial.kept:,} queries counted, {trial.wins:,} won, {trial.losses:,} lost"
            if trial
            else "",
        ),
        ("Folder", f"{status.folder}, {size(status.disk_bytes)}"),
        ("Sent", f"{status.sent_bytes:,} bytes" + ("" if status.sent else ": nothing has left this device")),
        *(("", f"{moment(one.time)} to {one.to}: {one.what}, {one.bytes:,} bytes") for one in status.sent),
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
