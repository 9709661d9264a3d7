"""`fedrank logs`: search logs as data sets."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.shared import LARGEST, new_console, print_line, print_sections, progress
from fedrank.files import write_atomic

if TYPE_CHECKING:
    from fedrank.data.click_caps import ClickCaps
    from fedrank.data.logs import SearchLog
    from fedrank.progress import Progress

_MADE_UP, _SHOWN = "Lists made up around clicks", "Lists as they were shown"  # which options are for which
_UBI = "User Behavior Insights"

logs_app = typer.Typer(
    help="Search logs: from queries, clicks and documents to a data set of real users.", no_args_is_help=True
)


@logs_app.command(
    "build",
    epilog="Examples:  fedrank logs build --log log.tsv --docs corpus.jsonl --out aol  ·  fedrank logs build --log "
    "clicks.csv.gz --docs corpus.tsv --out mine --users 100 --exclude 71845 --column user=person  ·  fedrank logs "
    "build --ubi-queries ubi_queries.ndjson --ubi-events ubi_events.ndjson --docs docs.jsonl --out shop --keep-days 90",
)
def logs_build(
    docs: Annotated[
        Path, typer.Option(help="The documents, with id, title, text and url: .jsonl, .tsv; or ir_datasets:NAME.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the data set.")],
    log: Annotated[
        Path | None,
        typer.Option(
            help="Who searched when for what and clicked which: .tsv, .csv, .jsonl; or ir_datasets:NAME. With a column "
            "named shown, lists are those that were shown."
        ),
    ] = None,
    ubi_queries: Annotated[
        Path | None, typer.Option(help="Searches and what they returned, of User Behavior Insights: .ndjson.")
    ] = None,
    ubi_events: Annotated[Path | None, typer.Option(help="Clicks, of User Behavior Insights: .ndjson.")] = None,
    users: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help="Only so many users, the most active; all if not given.")
    ] = None,
    min_interactions: Annotated[int, typer.Option(min=1, max=LARGEST, help="Entries that a user must have.")] = 1,
    exclude: Annotated[list[str] | None, typer.Option(help="User to leave out; may be repeated.")] = None,
    window: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_MADE_UP, help="ranked, or shuffled as in the published code.", show_default="ranked"
        ),
    ] = None,
    short: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_MADE_UP,
            help="Where too few documents match: drop the entry, or fill at random.",
            show_default="drop",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=NAME", help="What the log calls user, time, query or document; may be repeated."),
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_MADE_UP,
            help="Clicks name documents by id or url; auto: by url in AOL's format.",
            show_default="auto",
        ),
    ] = None,
    stem: Annotated[str, typer.Option(help="Stems of words instead of words: none, or english.")] = "none",
    features: Annotated[
        str,
        typer.Option(help="aol-103, those of AOL4FOLTR; live-1, of fedrank search; or engine-1, of search engines."),
    ] = "aol-103",
    published: Annotated[
        bool, typer.Option("--published", rich_help_panel=_MADE_UP, help="Features as the published code has them.")
    ] = False,
    person: Annotated[
        str | None,
        typer.Option(metavar="FIELD", rich_help_panel=_UBI, help="What names the person; else users are browsers."),
    ] = None,
    action: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=_UBI, help="Event that counts as a click; may be repeated.", show_default="click"),
    ] = None,
    object_field: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", rich_help_panel=_UBI, help="Column of the documents that object ids are in."),
    ] = None,
    application: Annotated[
        str | None,
        typer.Option(metavar="NAME", rich_help_panel=_UBI, help="Only searches of this application; all if not given."),
    ] = None,
    positions: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, rich_help_panel=_SHOWN, help="Places of a page that are kept.", show_default="100"
        ),
    ] = None,
    drawn: Annotated[
        str | None,
        typer.Option(
            metavar="TEMPERATURE,KEEP", rich_help_panel=_SHOWN, help="How lists with a column scores were drawn."
        ),
    ] = None,
    cap: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE=N",
            rich_help_panel=_SHOWN,
            help="Limit of a client: robot, clicks_list, lists_hour, clicks_hour, share, least; =none: no limit.",
        ),
    ] = None,
    keep_days: Annotated[
        int | None,
        typer.Option(min=1, max=36_500, rich_help_panel=_SHOWN, help="Lists that are older are never stored."),
    ] = None,
    rare: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LARGEST,
            rich_help_panel=_SHOWN,
            help="Users that a query needs, or its text is not stored.",
            show_default="5",
        ),
    ] = None,
    keep_patterns: Annotated[
        bool,
        typer.Option(
            "--keep-patterns", rich_help_panel=_SHOWN, help="Store queries with e-mail addresses and long numbers."
        ),
    ] = False,
    redact_words: Annotated[
        Path | None, typer.Option(rich_help_panel=_SHOWN, help="Words, one a line; queries with one are not stored.")
    ] = None,
    drop_redacted: Annotated[
        bool,
        typer.Option(
            "--drop-redacted", rich_help_panel=_SHOWN, help="Leave out the lists of redacted queries as well."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="For what is drawn by chance.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1_024, help="For features; one per core if not given.")
    ] = None,
) -> None:
    """Lists, features, users and times of a log, with made-up lists or those shown. One that was stopped continues."""
    from fedrank.data.build_log import LogBuild, build_log
    from fedrank.data.build_shown import ShownBuild, UbiSource, build_shown
    from fedrank.data.lists import ListRules
    from fedrank.data.redaction import Redaction, read_words
    from fedrank.data.shown import is_shown_table
    from fedrank.data.ubi import UbiRules

    workers = threads or os.cpu_count() or 1
    columns = dict(_pair(text) for text in column or [])
    of_ubi = {"--person": person, "--action": action, "--object-field": object_field, "--application": application}
    of_tables = {"--column": column, "--drawn": drawn}
    of_shown = {
        "--positions": positions, "--cap": cap, "--keep-days": keep_days, "--rare": rare,
        "--keep-patterns": keep_patterns, "--redact-words": redact_words, "--drop-redacted": drop_redacted,
    }  # fmt: skip
    of_made_up = {"--window": window, "--short": short, "--match": match, "--published": published}
    source: Path | UbiSource
    if ubi_queries is not None and ubi_events is not None and log is None:
        source, wrong = UbiSource(ubi_queries, ubi_events), {**of_made_up, **of_tables}
    elif log is None or ubi_queries is not None or ubi_events is not None:
        raise ValueError("give --log, or both --ubi-queries and --ubi-events")
    elif is_shown_table(log, columns):
        source, wrong = log, {**of_made_up, **of_ubi}
    else:
        _only("lists as they were shown", {**of_ubi, **of_shown, "--drawn": drawn})
        rules = ListRules(window=window or "ranked", short=short or "drop")
        made_up = LogBuild(
            rules,
            users,
            min_interactions,
            tuple(exclude or ()),
            columns,
            match or "auto",
            published,
            seed,
            stem,
            features,
        )
        _make_log(lambda report: build_log(log, docs, out, made_up, threads=workers, progress=report))
        return
    _only("another kind of log", wrong)
    usual, hidden = UbiRules(), Redaction()
    how = ShownBuild(
        features, stem, users, min_interactions, tuple(exclude or ()), columns, _draws(drawn),
        UbiRules(person, tuple(action or usual.actions), object_field, application, positions or usual.positions),
        _caps(cap or []),
        Redaction(
            rare or hidden.people, not keep_patterns, read_words(redact_words) if redact_words else (),
            "drop" if drop_redacted else "replace",
        ),
        keep_days,
    )  # fmt: skip
    _make_log(lambda report: build_shown(source, docs, out, how, threads=workers, progress=report))


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
    from fedrank.data.aol4foltr import convert_aol4foltr

    _make_log(lambda report: convert_aol4foltr(metadata, letor, out, report))


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
    from fedrank.experiments.report.command_output import about_log

    console = new_console()
    log = describe_log(load_log(folder))
    print_sections(about_log(log), console)
    if out is not None:
        from fedrank.experiments.report.log_figures import draw_log

        draw_log(log, out)
        print_line(console, f"Picture: {out}")
    if numbers is not None:
        write_atomic(numbers, description_as_json(log), private=True)
        print_line(console, f"Numbers: {numbers}, with user ids")


@logs_app.command(
    "redact",
    epilog="Example:  fedrank logs redact aol --rare 10 --redact-words names.txt",
)
def logs_redact(
    folder: Annotated[Path, typer.Argument(help="A data set that fedrank logs build or convert wrote.")],
    rare: Annotated[int, typer.Option(min=1, max=LARGEST, help="Users that a query needs, or its text goes.")] = 5,
    keep_patterns: Annotated[
        bool, typer.Option("--keep-patterns", help="Keep queries with e-mail addresses and long numbers.")
    ] = False,
    redact_words: Annotated[
        Path | None, typer.Option(help="Words, one a line; the text of queries with one goes.")
    ] = None,
) -> None:
    """Take texts of queries out of a data set, for good; lists, clicks and features stay."""
    from fedrank.data.redact_log import redact_log
    from fedrank.data.redaction import Redaction, read_words
    from fedrank.experiments.runner.cards import log_card

    console = new_console()
    log = redact_log(folder, Redaction(rare, not keep_patterns, read_words(redact_words) if redact_words else ()))
    log_card(log).write(log.folder)
    redacted = log.facts["redacted"]
    print_line(console, f"{sum(redacted.values()):,} of {len(log.queries):,} queries are without their text")
    for reason, n in redacted.items():
        print_line(console, f"redacted, {reason}: {n:,}")
    print_line(console, "The log that it was built from, copies and backups still have them.")


@logs_app.command(
    "synth",
    epilog="Examples:  fedrank logs synth --users 1000 --out toy  ·  fedrank logs synth --ubi --users 500 --out shop",
)
def logs_synth(
    out: Annotated[Path, typer.Option(help="Folder for log.tsv and corpus.jsonl.")],
    ubi: Annotated[
        bool, typer.Option("--ubi", help="A production log in place of log.tsv: shown lists and clicks, as UBI.")
    ] = False,
    users: Annotated[int, typer.Option(min=1, help="How many people search.")] = 1000,
    documents: Annotated[int, typer.Option(min=1, help="How many documents there are.")] = 2000,
    topics: Annotated[int, typer.Option(min=1, help="What documents and tastes are about.")] = 20,
    days: Annotated[int, typer.Option(min=1, help="How long the log is.")] = 90,
    seed: Annotated[int, typer.Option(help="For all that is made up.")] = 1,
) -> None:
    """Make up a log with the character of a real one: few busy users, bursts, tastes that differ."""
    from fedrank.data.synthetic_log import synthetic_log
    from fedrank.data.synthetic_ubi import synthetic_ubi

    console = new_console()
    if ubi:
        made = synthetic_ubi(out, users, seed, documents=documents, topics=topics, days=days)
        print_line(console, f"Queries: {made.queries}")
        print_line(console, f"Events: {made.events}")
        print_line(console, f"Documents: {made.corpus}")
        print_line(
            console,
            f"Next: fedrank logs build --ubi-queries {made.queries} --ubi-events {made.events} --docs {made.corpus} "
            f"--out {out / 'data'}",
        )
        return
    log, docs = synthetic_log(out, users, seed, documents=documents, topics=topics, days=days)
    print_line(console, f"Log: {log}")
    print_line(console, f"Documents: {docs}")
    print_line(console, f"Next: fedrank logs build --log {log} --docs {docs} --out {out / 'data'}")


def _make_log(make: Callable[[Progress], SearchLog]) -> None:
    from fedrank.data.describe_log import notes
    from fedrank.experiments.runner.cards import log_card

    console = new_console()
    try:
        with progress(console) as tell:
            log = make(tell)
    except KeyboardInterrupt:
        print_line(console, "Stopped; nothing is lost: run the same command to continue.")
        raise typer.Exit(130) from None
    for note in notes(log.facts):
        print_line(console, note)
    log_card(log).write(log.folder)
    print_line(console, f"Data set: {log.folder}")
    print_line(console, f"Numbers and a picture: fedrank logs describe {log.folder} --out log.png")


def _pair(text: str) -> tuple[str, str]:
    """The two sides of FIELD=NAME."""
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError(f"--column {text!r}: write FIELD=NAME, such as user=AnonID")
    return name, value


def _only(what: str, options: Mapping[str, object]) -> None:
    """Refuse options that would be ignored."""
    for name, value in options.items():
        if value:
            raise ValueError(f"{name} is for {what}, and would change nothing here; leave it out")


def _draws(text: str | None) -> tuple[float, float] | None:
    """Temperature and keep."""
    if text is None:
        return None
    try:
        temperature, keep = map(float, text.split(","))
    except ValueError:
        raise ValueError(f"--drawn {text!r}: write TEMPERATURE,KEEP, such as 0.3,0.5") from None
    if not (0 < temperature < float("inf") and 0 <= keep <= 1):
        raise ValueError(f"--drawn {text!r}: no list can be drawn so; use a temperature above 0 and a share to keep")
    return temperature, keep


def _caps(texts: list[str]) -> ClickCaps:
    """Limits, with those that are set otherwise."""
    from fedrank.data.click_caps import ClickCaps
    from fedrank.names import did_you_mean

    chosen: dict[str, int | float | None] = {}
    rules = [one.name for one in fields(ClickCaps)]
    for text in texts:
        rule, _, value = text.partition("=")
        if rule not in rules:
            raise ValueError(f"--cap {text!r}: no such rule{did_you_mean(rule, rules)}")
        try:
            chosen[rule] = None if value == "none" and rule != "least" else (float if rule == "share" else int)(value)
        except ValueError:
            raise ValueError(f"--cap {text!r}: write a number, as in {rule}=60, or {rule}=none") from None
    return replace(ClickCaps(), **chosen)  # type: ignore[arg-type]  # checked by name
