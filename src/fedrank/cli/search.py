"""`fedrank search`: one person's documents, searched on this machine, in an order that their clicks teach."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedrank.cli.shared import MAX_WAIT, new_console, print_line, print_note, progress

if TYPE_CHECKING:
    from rich.console import Console

    from fedrank.search.client import SearchClient
    from fedrank.search.joining import Meeting
    from fedrank.search.results import Indexed, SearchStatus

search_app = typer.Typer(
    help="Search your own documents on this machine; the order learns from what you open, and nothing leaves.",
    no_args_is_help=True,
)
Home = Annotated[
    Path | None,
    typer.Option("--folder", envvar="FEDRANK_SEARCH", help="Where everything is kept; your data folder if not given."),
]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Of the page; 0: any that is free.")]
Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in your browser.")]


@search_app.command(
    "index",
    epilog="Examples:  fedrank search index ~/Documents ~/Mail --bookmarks bookmarks.html  ·  again, what changed:  "
    "fedrank search index",
)
def search_index(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders, mail (mbox, Maildir, .eml), JSONL; those of earlier times if not given."),
    ] = None,
    bookmarks: Annotated[
        list[Path] | None, typer.Option(help="A browser's exported bookmarks; may be repeated.")
    ] = None,
    encoder: Annotated[
        Path | None, typer.Option(help="A text encoder of your own as an ONNX file, for two more features.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="Of word stems, where the folder is new: english, german ...; none: whole words.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, and read what changes, until Ctrl-C.")] = False,
    folder: Home = None,
) -> None:
    """Read documents, or what changed in them since the last time. May be stopped and goes on where it was."""
    console = new_console()
    with _client(folder, language=language, begin=True) as client:
        if encoder is not None:
            client.vectors.use(encoder)
        with progress(console) as tell:
            done = client.index(paths or [], bookmarks=bookmarks or [], progress=tell)
        _tell_indexed(done, console)
        if done.skipped:
            print_line(console, f"Skipped: {_counts(done.skipped)}")
        if not done.documents:
            print_note("there is nothing to search; name a folder, such as fedrank search index ~/Documents")
        print_line(console, f"Search them: fedrank search serve{_same(folder)}")
        if watch:
            from fedrank.search.watch import watch as watch_folders

            print_line(console, "Watching; Ctrl-C ends it.")
            with contextlib.suppress(KeyboardInterrupt):
                watch_folders(client, lambda done: _tell_indexed(done, console), threading.Event())


@search_app.command("serve", epilog="Examples:  fedrank search serve  ·  fedrank search serve --port 8080 --no-browser")
def search_serve(port: Port = 0, browser: Browser = True, folder: Home = None) -> None:
    """Open the page, on this machine only, by a link that works once; until Ctrl-C."""
    console = new_console()
    with _client(folder, serve=True, begin=True) as client:
        _serve(client, console, port, browser)


@search_app.command("status", epilog="Examples:  fedrank search status  ·  fedrank search status --json")
def search_status(
    json: Annotated[bool, typer.Option("--json", help="All numbers, as JSON.")] = False, folder: Home = None
) -> None:
    """Documents, searches, clicks, what was learned, which model is in use, and every byte that ever left."""
    with _client(folder) as client:
        status = client.status()
    if json:
        typer.echo(status.as_json())
    else:
        _tell(status, new_console())


@search_app.command(
    "forget",
    epilog="Examples:  fedrank search forget --query 'night train'  ·  fedrank search forget --since 2026-01-31  ·  "
    "fedrank search forget --all",
)
def search_forget(
    query: Annotated[str | None, typer.Option(help="Searches with this text.")] = None,
    document: Annotated[int | None, typer.Option(help="A document by its number, and every click on it.")] = None,
    since: Annotated[str | None, typer.Option(help="All searches since this day, such as 2026-01-31.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Documents, searches, clicks and the model.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, with --all.")] = False,
    folder: Home = None,
) -> None:
    """Delete rows. What the model learned from them stays in its weights until fedrank search learn reset."""
    from fedrank.search.results import NotFound

    if (query is not None) + (document is not None) + (since is not None) + all != 1:
        raise ValueError("nothing was deleted: give one of --query, --document, --since and --all")
    moment = None if since is None else _moment(since)
    if all and not yes:
        typer.confirm("Delete the index, all searches and clicks, and what was learned?", abort=True)
    with _client(folder) as client:
        try:
            gone = client.forget(query=query, document=document, since=moment, everything=all)
        except NotFound:
            raise ValueError(f"--document {document}: there is no such document; nothing was deleted") from None
    print_line(new_console(), f"{gone}")


@search_app.command("learn", epilog="Examples:  fedrank search learn off  ·  fedrank search learn reset")
def search_learn(
    setting: Annotated[str, typer.Argument(help="on; off: nothing is recorded; reset: the model as at first.")],
    folder: Home = None,
) -> None:
    """Learn from clicks or not, or forget what was learned."""
    said: dict[str, tuple[Literal["on", "off", "reset"], str]] = {
        "on": ("on", "Learning is on: searches and clicks are recorded here, and the order learns from them."),
        "off": ("off", "Learning is off: no search and no click is recorded."),
        "reset": ("reset", "The model is as it was at first. Searches and clicks stay: see fedrank search forget."),
    }
    if setting not in said:
        raise ValueError(f"{setting!r} is not one of on, off, reset; nothing was changed")
    chosen, sentence = said[setting]
    with _client(folder) as client:
        client.learn_setting(chosen)
    print_line(new_console(), sentence)


@search_app.command("export", epilog="Example:  fedrank search export --ubi my-searches")
def search_export(
    ubi: Annotated[Path, typer.Option(help="Folder for ubi_queries.jsonl and ubi_events.jsonl.")], folder: Home = None
) -> None:
    """Write all searches and clicks in the form of User Behavior Insights 1.3."""
    with _client(folder) as client:
        written = client.export_ubi(ubi)
    console = new_console()
    print_line(console, f"{written.queries}: {written.searches:,} searches")
    print_line(console, f"{written.events}: {written.clicks:,} clicks")


@search_app.command(
    "join",
    epilog="Examples:  fedrank search join file:SHARED --name anna --fingerprint SHA256:66...  ·  over a network, "
    "after fedrank deploy join:  fedrank search join anna  ·  look at what is planned, and answer:  fedrank search "
    "join file:SHARED  ·  answer only:  fedrank search join file:SHARED --once",
)
def search_join(
    federation: Annotated[
        str, typer.Argument(help="file:FOLDER, where the federation meets; or the folder of fedrank deploy join.")
    ],
    name: Annotated[str | None, typer.Option(help="By which the others know you; at first, with file:.")] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="Of the coordinator, as told by telephone; at first, with file:.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="That all rounds together may cost; at first, with file:; 8 if not given.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Answer what was agreed to, and ask nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    folder: Home = None,
) -> None:
    """Learn with others: see what would leave, to whom and at which ε, agree, and answer what is asked."""
    from fedrank.search import joining

    console, meeting = new_console(), joining.meeting_of(federation)
    if meeting.network and any(given is not None for given in (name, fingerprint, epsilon)):
        raise ValueError(
            f"--name, --fingerprint and --epsilon are for file:FOLDER: {meeting.folder / 'site.toml'} says them, and "
            "policy.largest_epsilon there is the limit; nothing was sent"
        )
    with _client(folder, begin=True) as client:
        if joining.state_of(client, meeting):
            _go_on(client, meeting, once, yes, console)
        elif meeting.network:
            _join_network(client, meeting.folder, yes, console)
        else:
            _ask_to_join(client, meeting.folder, name, fingerprint, 8.0 if epsilon is None else epsilon, yes, console)


@search_app.command("leave", epilog="Example:  fedrank search leave --because 'enough'")
def search_leave(
    because: Annotated[str, typer.Option(help="Why; the others can read it.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    folder: Home = None,
) -> None:
    """Leave the federation: nothing leaves this device any more. What was sent was sent."""
    from fedrank.search.joining import check_joined, leave

    with _client(folder) as client:
        check_joined(client)
        if not yes:
            typer.confirm("Leave the federation? You cannot come back under this name.", abort=True)
        leave(client, because)
    print_line(new_console(), "Left. Recorded searches were removed; the ledger and the list of what was sent stay.")


@search_app.command(
    "aggregate",
    epilog="Examples:  fedrank search aggregate SHARED --home coordinator --epsilon 8  ·  over a network:  fedrank "
    "search aggregate --home clinics",
)
def search_aggregate(
    home: Annotated[Path, typer.Option(help="The coordinator's own folder, of fedrank deploy folder begin, or init.")],
    shared: Annotated[
        Path | None, typer.Argument(help="The folder in which the federation meets; none: over its network.")
    ] = None,
    epsilon: Annotated[float, typer.Option(help="That all rounds together cost each person, at most.")] = 8.0,
    name: Annotated[str, typer.Option(help="Of the run.")] = "searches",
    patience: Annotated[
        float, typer.Option(min=1, max=MAX_WAIT, help="Seconds to wait for somebody in a round, in a folder.")
    ] = 86_400,
) -> None:
    """The coordinator's part: ten rounds with everybody who joined; run again to go on.

    In a folder each device adds all of its noise; over a network a secure sum shows the sum alone.
    """
    from fedrank.cli.deploy import tell_results
    from fedrank.experiments.runner.stop_signals import stop_requested
    from fedrank.search.coordinator import aggregate, aggregate_online

    console = new_console()
    print_note("what is measured is a made-up collection: it shows a broken model, not how well one serves anybody")
    with progress(console) as report, stop_requested() as stop:
        if shared is None:
            results = aggregate_online(
                home, home / "runs", name, epsilon, stop, report, lambda line: print_line(console, line)
            )
        else:
            results = aggregate(
                shared,
                home,
                home / "runs",
                name,
                epsilon,
                stop,
                report,
                patience,
                lambda line: print_line(console, line),
            )
    tell_results(results, home / "runs" / name)


@search_app.command("demo", epilog="Example:  fedrank search demo")
def search_demo(
    out: Annotated[Path, typer.Option(help="Folder for the made-up documents and their index.")] = Path("search-demo"),
    port: Port = 0,
    browser: Browser = True,
) -> None:
    """A made-up mailbox, notes and bookmarks with six weeks of searches, and the page to try at once."""
    from fedrank.search.demo import HINT, make_demo

    console = new_console()
    with progress(console) as tell:
        store = make_demo(out, time.time(), tell)
    print_line(console, f"Made-up documents: {out / 'documents'}; to remove all of it, delete {out}")
    with _client(store, serve=True, begin=True) as client:
        _serve(client, console, port, browser, HINT)


_NEVER_LEAVES = (
    "Never leaves: a document, a query, a click. How often you search shows in one thing: whether it was 30 times "
    "since the last round. Searches before you joined are not used."
)
_WHO_ANSWERS = "What is asked is answered while fedrank search serve runs, or fedrank deploy start --home {}."


def default_folder() -> Path:
    """Where this system keeps what belongs to a person's programs."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "fedrank" / "search"


def _client(folder: Path | None, serve: bool = False, language: str | None = None, begin: bool = False) -> SearchClient:
    """What is kept in a folder; a folder that was named is made only by a command that may `begin` one."""
    from fedrank.search.client import SearchClient

    if folder is not None and not begin and not folder.expanduser().is_dir():
        raise FileNotFoundError(f"no folder {folder}; give the folder that fedrank search index made, with --folder")
    return SearchClient(folder or default_folder(), serve=serve, language=language)


def _go_on(client: SearchClient, meeting: Meeting, once: bool, yes: bool, console: Console) -> None:
    """Look at what is planned, and answer what was agreed to."""
    from fedrank.cli.shared import print_sections
    from fedrank.deploy.show import about_plan
    from fedrank.search import joining

    for plan, view in [] if once else joining.open_plans(client):
        print_sections(about_plan(view), console)
        if view.refused:
            continue  # it says why, and nobody can agree to it
        compare = "Did each of them read you their fingerprint by telephone, and do you take part in this run?"
        if yes or typer.confirm("Take part in this run?" if view.sum is None else compare):
            joining.agree(client, plan)
        else:
            joining.decline(client, plan)
    done = joining.take_part(client)
    for one in done:
        print_line(console, f"Round {one.round}: {one.kind} {'refused' if one.refused else 'answered'}")
    if meeting.network:
        print_line(console, _WHO_ANSWERS.format(meeting.folder))
    elif not done:
        waits = joining.state_of(client) == "waiting"
        print_line(console, "The coordinator has not approved you yet." if waits else "Nothing is asked just now.")


def _join_network(client: SearchClient, site: Path, yes: bool, console: Console) -> None:
    from fedrank.search.joining import join_network, server

    there = server(client, site)
    print_line(
        console, f"Federation {there.federation} at {there.address}, CA {there.fingerprint}; you are {there.name}"
    )
    print_line(
        console,
        "Now leaves nothing. Whenever the site runs, it is connected to that server, which sees that you are there.",
    )
    print_line(
        console,
        f"Later, only for runs that you look at and agree to: at most one update a round, from 30 searches or more, "
        f"with noise that is added here; a run says whether the server sees each update, or their sum alone. All "
        f"together cost at most ε = {there.epsilon:g} (δ = {there.delta:g}).",
    )
    print_line(console, _NEVER_LEAVES)
    if not yes:
        typer.confirm("Take part with your searches?", abort=True)
    join_network(client, site)
    print_line(console, _WHO_ANSWERS.format(site))
    print_line(console, f"When a run was planned, look at it, and agree: fedrank search join {site}")


def _ask_to_join(
    client: SearchClient,
    shared: Path,
    name: str | None,
    fingerprint: str | None,
    epsilon: float,
    yes: bool,
    console: Console,
) -> None:
    from fedrank.search.joining import ask_to_join, invitation

    there = invitation(shared)
    if name is None or fingerprint is None:
        raise ValueError(
            f"--name and --fingerprint are missing: ask the coordinator of {there.federation!r} by telephone for the "
            "fingerprint, and choose a name; nothing was sent"
        )
    print_line(console, f"Federation {there.federation}, coordinator {there.fingerprint}")
    print_line(console, f"With: {', '.join(there.members) or 'nobody yet'}")
    print_line(console, f"Now leaves, to everybody who can read {shared}: the name {name} and a public key.")
    print_line(
        console,
        f"Later, only for runs that you look at and agree to: at most one update a round, from 30 searches or more, "
        f"with noise that is added here; all together cost at most ε = {epsilon:g} (δ = 1e-05).",
    )
    print_line(console, _NEVER_LEAVES)
    if not yes:
        typer.confirm("Ask to take part?", abort=True)
    own = ask_to_join(client, shared, name, fingerprint, epsilon)
    print_line(console, "Your fingerprint, which you tell the coordinator by telephone:")
    print_line(console, own, style="bold")
    print_line(console, f"Then, and now and then: fedrank search join file:{shared}")


def _serve(client: SearchClient, console: Console, port: int, browser: bool, hint: str = "") -> None:
    from fedrank.search.serve import serve

    def ready(link: str) -> None:
        print_line(console, f"Open {link}")
        print_line(console, "This link works once, in one browser. Ctrl-C ends it.")
        if browser:
            browse(link)

    serve(client, port, hint, ready)
    print_line(console, "Ended; everything that was answered is kept.")


def browse(link: str) -> None:
    """Open a link in the person's browser."""
    import webbrowser

    # A browser of the terminal would keep the page from being served.
    threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()


def _tell_indexed(done: Indexed, console: Console) -> None:
    print_line(
        console,
        f"{done.documents:,} documents: {done.added:,} new, {done.changed:,} changed, {done.removed:,} removed; "
        f"{done.unchanged:,} of {done.files:,} files as before; {done.seconds:.1f} s",
    )


def _tell(status: SearchStatus, console: Console) -> None:
    from fedrank.search.render import moment, size

    lines = [
        ("Documents", f"{status.documents:,}" + (f" ({_counts(status.kinds)})" if status.kinds else "")),
        ("From", ", ".join(status.roots) or "nowhere yet: fedrank search index ~/Documents"),
        ("Skipped", _counts(status.skipped) or "nothing"),
        ("Searches", f"{status.searches:,}" + (f" ({_counts(status.impressions)})" if status.impressions else "")),
        ("Clicks", f"{status.clicks:,}, and {status.bounced:,} taken back within five seconds"),
        ("Learning", ("on" if status.learn else "off: nothing is recorded") + f"; order {status.order}"),
        ("Model", f"{status.model}; features {status.feature_set}"),
    ]
    changed = sorted(status.weights, key=lambda one: -abs(one.now - one.start))[:5]
    if status.learned_from:
        told = ", ".join(f"{one.feature} {one.start:+.2f} to {one.now:+.2f}" for one in changed)
        lines.append(("Changed most", told))
    if status.weeks:
        week = status.weeks[-1]
        lines.append(
            ("Last week", f"{week.searches:,} searches, {week.first:,} clicked at the top, {week.clicked:,} at all")
        )
    if status.replay:
        told = ", ".join(f"{name} {value:.3f}" for name, value in status.replay.items())
        lines.append(("Clicked, 1/log2", told))
    if status.interleaved:
        lines.append(("Mixed lists", ", ".join(f"{name} {value:.3g}" for name, value in status.interleaved.items())))
    if (trial := status.trial) is not None:
        told = f"{trial.state}; {trial.kept:,} searches kept, {trial.wins:,} won, {trial.losses:,} lost"
        lines.append(("On trial", f"{trial.origin}: {told}"))
    lines.append(("Kept in", f"{status.folder}, {size(status.disk_bytes)}"))
    lines.append(("Left", f"{status.sent_bytes:,} bytes" + ("" if status.sent else ": nothing, ever")))
    lines += [("", f"{moment(one.time)} to {one.to}: {one.what}, {one.bytes:,} bytes") for one in status.sent]
    wide = max(len(name) for name, _ in lines) + 2
    for name, text in lines:
        print_line(console, f"{name:{wide}}{text}")
    for text in status.notes:
        print_note(text)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _moment(day: str) -> int:
    try:
        return int(datetime.fromisoformat(day).timestamp())
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"--since {day!r} is not a day; nothing was deleted; write it as 2026-01-31") from None


def _same(folder: Path | None) -> str:
    return "" if folder is None else f" --folder {folder}"
