"""`fedrank logs`: search logs as data sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.shared import answer, new_console, progress, say
from fedrank.files import write_whole

if TYPE_CHECKING:
    from fedrank.data.logs import SearchLog
    from fedrank.progress import Progress

logs_app = typer.Typer(
    help="Search logs: from queries, clicks and documents to a data set of real users.", no_args_is_help=True
)


@logs_app.command(
    "build",
    epilog="Examples:  fedrank logs build --log log.tsv --docs corpus.jsonl --out aol  ·  fedrank logs build --log "
    "clicks.csv.gz --docs corpus.tsv --out mine --users 100 --exclude 71845 --column user=person",
)
def logs_build(
    log: Annotated[
        Path,
        typer.Option(help="Who searched when for what and clicked which: .tsv, .csv, .jsonl; or ir_datasets:NAME."),
    ],
    docs: Annotated[
        Path, typer.Option(help="The documents, with id, title, text and url: .jsonl, .tsv; or ir_datasets:NAME.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the data set.")],
    users: Annotated[
        int | None, typer.Option(min=1, help="Only so many users, the most active; all if not given.")
    ] = None,
    least: Annotated[int, typer.Option(min=1, help="Entries that a user must have.")] = 1,
    exclude: Annotated[list[str] | None, typer.Option(help="User to leave out; may be repeated.")] = None,
    window: Annotated[str, typer.Option(help="ranked, or shuffled as in the published code.")] = "ranked",
    short: Annotated[
        str, typer.Option(help="Where too few documents match: drop the entry, or fill at random.")
    ] = "drop",
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=NAME", help="What the log calls user, time, query or document; may be repeated."),
    ] = None,
    match: Annotated[
        str, typer.Option(help="Clicks name documents by id or url; auto: by url in AOL's format.")
    ] = "auto",
    stem: Annotated[str, typer.Option(help="Stems of words instead of words: none, or english.")] = "none",
    features: Annotated[
        str, typer.Option(help="aol-103, those of AOL4FOLTR; or live-1, those of fedrank search.")
    ] = "aol-103",
    published: Annotated[bool, typer.Option("--published", help="Features as the published code has them.")] = False,
    seed: Annotated[int, typer.Option(help="For what is drawn by chance.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="For features; one per core if not given.")] = None,
) -> None:
    """Result lists, features, users and times of a log. A build that was interrupted continues."""
    from fedrank.data.build_log import LogBuild, build_log
    from fedrank.data.lists import ListRules

    columns = dict(_pair(text) for text in column or [])
    how = LogBuild(
        ListRules(window=window, short=short), users, least, tuple(exclude or ()), columns, match, published, seed,
        stem, features,
    )  # fmt: skip
    _make_log(lambda report: build_log(log, docs, out, how, threads=threads or os.cpu_count() or 1, progress=report))


@logs_app.command(
    "convert",
    epilog="Example:  fedrank logs convert --metadata metadata.csv --letor letor.txt --out aol",
)
def logs_convert(
    metadata: Annotated[Path, typer.Option(help="Who asked what and when: metadata.csv.")],
    letor: Annotated[Path, typer.Option(help="The features: letor.txt, unpacked.")],
    out: Annotated[Path, typer.Option(help="Folder for the data set.")],
) -> None:
    """The published files of AOL4FOLTR as a data set. A conversion that was interrupted continues."""
    from fedrank.data.published_log import convert_published

    _make_log(lambda report: convert_published(metadata, letor, out, report))


@logs_app.command(
    "describe",
    epilog="Examples:  fedrank logs describe aol  ·  fedrank logs describe aol --out log.png --numbers log.json",
)
def logs_describe(
    folder: Annotated[Path, typer.Argument(help="A data set that fedrank logs build wrote.")],
    out: Annotated[Path | None, typer.Option(help="Picture to draw: .png, .svg or .pdf.")] = None,
    numbers: Annotated[Path | None, typer.Option(help="File for all numbers, as JSON.")] = None,
) -> None:
    """How unequal, how bursty and how different users are: numbers and a picture."""
    from fedrank.data.describe_log import describe_log, description_as_json
    from fedrank.data.logs import load_log
    from fedrank.report.answers import about_log

    console = new_console()
    log = describe_log(load_log(folder))
    answer(about_log(log), console)
    if out is not None:
        from fedrank.report.log_figures import draw_log

        draw_log(log, out)
        say(console, f"Picture: {out}")
    if numbers is not None:
        write_whole(numbers, description_as_json(log), private=True)
        say(console, f"Numbers: {numbers}, with user ids")


@logs_app.command("synth", epilog="Example:  fedrank logs synth --users 1000 --out toy")
def logs_synth(
    out: Annotated[Path, typer.Option(help="Folder for log.tsv and corpus.jsonl.")],
    users: Annotated[int, typer.Option(min=1, help="How many people search.")] = 1000,
    documents: Annotated[int, typer.Option(min=1, help="How many documents there are.")] = 2000,
    topics: Annotated[int, typer.Option(min=1, help="What documents and tastes are about.")] = 20,
    days: Annotated[int, typer.Option(min=1, help="How long the log is.")] = 90,
    seed: Annotated[int, typer.Option(help="For all that is made up.")] = 1,
) -> None:
    """Make up a log with the character of a real one: few busy users, bursts, tastes that differ."""
    from fedrank.data.synthetic_log import synthetic_log

    log, docs = synthetic_log(out, users, seed, documents=documents, topics=topics, days=days)
    console = new_console()
    say(console, f"Log: {log}")
    say(console, f"Documents: {docs}")
    say(console, f"Next: fedrank logs build --log {log} --docs {docs} --out {out / 'data'}")


def _make_log(make: Callable[[Progress], SearchLog]) -> None:
    from fedrank.data.build_log import notes
    from fedrank.run.cards import log_card

    console = new_console()
    try:
        with progress(console) as tell:
            log = make(tell)
    except KeyboardInterrupt:
        say(console, "Stopped; nothing is lost: run the same command to continue.")
        raise typer.Exit(130) from None
    for note in notes(log.facts):
        say(console, note)
    log_card(log).write(log.folder)
    say(console, f"Data set: {log.folder}")
    say(console, f"Numbers and a picture: fedrank logs describe {log.folder} --out log.png")


def _pair(text: str) -> tuple[str, str]:
    """The two sides of FIELD=NAME."""
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError(f"--column {text!r}: write FIELD=NAME, such as user=AnonID")
    return name, value
