"""`fedrank data`: data sets, clients and click logs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.config import Config
from fedrank.cli.model import BiasName, bias_named
from fedrank.cli.shared import (
    EXIT_FAILURE,
    MAX_COUNT,
    AsJson,
    Changes,
    Picture,
    Seed,
    Spec,
    new_console,
    print_json,
    print_line,
    print_sections,
    progress,
)
from fedrank.files import write_atomic
from fedrank.names import missing_file

if TYPE_CHECKING:
    from fedrank.data.click_caps import ClickCaps
    from fedrank.data.logs import SearchLog
    from fedrank.progress import Progress

# Which options of `data build` belong to which kind of log.
_CANDIDATES, _SHOWN = "Logs of clicks: candidate lists are constructed", "Logs of shown lists"
_UBI = "User Behavior Insights"

data_app = typer.Typer(
    help="Data sets: list, check and describe them; build them from click logs.", no_args_is_help=True
)


@data_app.command("list", epilog="Example:  FEDRANK_DATA=/data fedrank data list")
def data_list(as_json: AsJson = False) -> None:
    """List the known data sets and text collections: what they contain, where they are, how to get them."""
    from fedrank.data.catalog import available
    from fedrank.data.collection import collections
    from fedrank.experiments.report.command_output import about_catalog

    sets, texts = available(), collections()
    if not as_json:
        print_sections(about_catalog(sets, texts), new_console())
        return
    print_json(
        {
            "sets": [
                vars(entry) | {"folder": folder, "here": folder is not None or entry.layout == "built-in"}
                for entry, folder in sets
            ],
            "collections": [{"name": name, "folder": folder} for name, folder in texts],
        }
    )


@data_app.command(
    "check",
    epilog="Examples:  fedrank data check train.txt  ·  fedrank data check S1.txt.xz S2.txt.xz  ·  fedrank data check "
    "aol --out log.png",
)
def data_check(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Judged files (LETOR; also .gz, .xz), or one data set folder written by fedrank data build."
        ),
    ],
    out: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Check judged files, or describe a data set of click logs: users, times, clicks by position."""
    if any(path.is_dir() for path in paths):
        if len(paths) > 1:
            raise ValueError(f"give one data set folder, or data files (got {len(paths)} paths with a folder)")
        _describe_log(paths[0], out, as_json)
        return
    if out is not None:
        raise ValueError(f"--out {out} draws a data set folder; remove it to check files")
    from fedrank.data.check import check_files
    from fedrank.experiments.report.command_output import about_checks

    for path in paths:
        if not path.exists():
            raise FileNotFoundError(missing_file(path))
    checks = check_files(paths)
    if as_json:
        print_json([{**vars(check), "sound": check.sound} for check in checks])
    else:
        print_sections(about_checks(checks), new_console())
    if not all(check.sound for check in checks):
        raise typer.Exit(EXIT_FAILURE)


def _describe_log(folder: Path, out: Path | None, as_json: bool) -> None:
    from fedrank.data.describe_log import describe_log, description_as_json
    from fedrank.data.logs import load_log
    from fedrank.experiments.report.command_output import about_log

    console = new_console()
    log = describe_log(load_log(folder))
    if as_json:
        typer.echo(description_as_json(log))
    else:
        print_sections(about_log(log), console)
    if out is not None:
        from fedrank.experiments.report.log_figures import draw_log

        draw_log(log, out)
        if not as_json:
            print_line(console, f"Picture: {out}")


@data_app.command(
    "clients",
    epilog="Examples:  fedrank data clients quickstart  ·  fedrank data clients my.toml --out clients.png --set "
    "clients.count=20",
)
def data_clients(
    spec: Spec,
    out: Picture = None,
    set_: Changes = None,
    fold: Annotated[int | None, typer.Option(min=1, help="Fold. Default: the first of the spec.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed. Default: the first of the spec.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the queries, documents and relevance labels of each client, and how much the clients differ."""
    from fedrank.experiments.report.command_output import about_clients
    from fedrank.experiments.runner.client_summary import describe_clients
    from fedrank.experiments.spec.source import read_experiment

    console = new_console()
    summary = describe_clients(read_experiment(spec, set_ or []), fold, seed)
    if as_json:
        print_json(summary)
    else:
        print_sections(about_clients(summary), console)
    if out is not None:
        from fedrank.experiments.report.client_figures import draw_clients

        draw_clients(summary, out)
        if not as_json:
            print_line(console, f"Picture: {out}")


@data_app.command(
    "build",
    epilog="Examples:  fedrank data build --log log.tsv --docs corpus.jsonl --out aol  ·  fedrank data build --log "
    "clicks.csv.gz --docs corpus.tsv --out mine --users 100 --exclude 71845 --column user=person  ·  fedrank data "
    "build --ubi-queries ubi_queries.ndjson --ubi-events ubi_events.ndjson --docs docs.jsonl --out shop --keep-days 90"
    "  ·  fedrank data build --aol4foltr metadata.csv --letor letor.txt --out aol",
)
def data_build(
    out: Annotated[Path, typer.Option(help="Folder for the data set.")],
    docs: Annotated[
        Path | None,
        typer.Option(help="Documents with id, title, text and url: .jsonl, .tsv; or ir_datasets:NAME."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            help="Click log with user, time, query and document: .tsv, .csv, .jsonl; or ir_datasets:NAME. With a "
            "column shown, the lists are those that users saw."
        ),
    ] = None,
    ubi_queries: Annotated[
        Path | None, typer.Option(help="Queries and their results in the format of User Behavior Insights: .ndjson.")
    ] = None,
    ubi_events: Annotated[
        Path | None, typer.Option(help="Clicks in the format of User Behavior Insights: .ndjson.")
    ] = None,
    aol4foltr: Annotated[
        Path | None, typer.Option(help="Published metadata.csv of AOL4FOLTR; also give its features with --letor.")
    ] = None,
    letor: Annotated[
        Path | None, typer.Option(hidden=True, help="With --aol4foltr: the published features, letor.txt, unpacked.")
    ] = None,
    users: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_COUNT, hidden=True, help="Number of users to keep, the most active ones. Default: all."
        ),
    ] = None,
    min_interactions: Annotated[
        int, typer.Option(min=1, max=MAX_COUNT, hidden=True, help="Minimum number of entries per user.")
    ] = 1,
    exclude: Annotated[list[str] | None, typer.Option(hidden=True, help="User to exclude; may be repeated.")] = None,
    window: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_CANDIDATES,
            hidden=True,
            help="Order of the candidates around the clicked document: ranked, or shuffled as in the published code.",
            show_default="ranked",
        ),
    ] = None,
    short: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_CANDIDATES,
            hidden=True,
            help="If too few documents match: drop the entry, or fill the list with random documents.",
            show_default="drop",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=NAME",
            hidden=True,
            help="Column of the log for user, time, query or document; may be repeated.",
        ),
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_CANDIDATES,
            hidden=True,
            help="How clicks name documents: id, url, or auto (url in AOL's format).",
            show_default="auto",
        ),
    ] = None,
    stem: Annotated[str, typer.Option(hidden=True, help="Stemming of words: none or english.")] = "none",
    features: Annotated[
        str,
        typer.Option(help="Feature set: aol-103 (AOL4FOLTR), live-1 (fedrank search) or engine-1 (search engines)."),
    ] = "aol-103",
    published: Annotated[
        bool,
        typer.Option(
            "--published",
            rich_help_panel=_CANDIDATES,
            hidden=True,
            help="Compute features as the published code of AOL4FOLTR does.",
        ),
    ] = False,
    person: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            rich_help_panel=_UBI,
            hidden=True,
            help="Field that identifies the person. Default: users are browsers (client_id).",
        ),
    ] = None,
    action: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=_UBI,
            hidden=True,
            help="Event that counts as a click; may be repeated.",
            show_default="click",
        ),
    ] = None,
    object_field: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", rich_help_panel=_UBI, hidden=True, help="Column of the documents with the object ids."
        ),
    ] = None,
    application: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_UBI,
            hidden=True,
            help="Only queries of this application. Default: all applications.",
        ),
    ] = None,
    positions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            rich_help_panel=_SHOWN,
            hidden=True,
            help="Number of positions per list.",
            show_default="100",
        ),
    ] = None,
    drawn: Annotated[
        str | None,
        typer.Option(
            metavar="TEMPERATURE,KEEP",
            rich_help_panel=_SHOWN,
            hidden=True,
            help="How the lists of a log with a column scores were sampled.",
        ),
    ] = None,
    cap: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE=N",
            rich_help_panel=_SHOWN,
            hidden=True,
            help="Limit per client: robot, clicks_list, lists_hour, clicks_hour, share or least; RULE=none removes "
            "the limit; may be repeated.",
        ),
    ] = None,
    keep_days: Annotated[
        int | None,
        typer.Option(
            min=1, max=36_500, rich_help_panel=_SHOWN, hidden=True, help="Maximum age in days; older lists are dropped."
        ),
    ] = None,
    rare: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_COUNT,
            rich_help_panel=_SHOWN,
            hidden=True,
            help="Minimum number of users per query; the text of rarer queries is not stored.",
            show_default="5",
        ),
    ] = None,
    keep_patterns: Annotated[
        bool,
        typer.Option(
            "--keep-patterns",
            rich_help_panel=_SHOWN,
            hidden=True,
            help="Store the text of queries that contain e-mail addresses or long numbers.",
        ),
    ] = False,
    redact_words: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_SHOWN,
            hidden=True,
            help="File with words, one per line; the text of queries that contain one is not stored.",
        ),
    ] = None,
    drop_redacted: Annotated[
        bool,
        typer.Option(
            "--drop-redacted", rich_help_panel=_SHOWN, hidden=True, help="Also drop the lists of redacted queries."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(hidden=True, help="Random seed.")] = 1,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=1_024, hidden=True, help="Threads to compute features. Default: one per core."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", hidden=True, help="Do not print progress.")] = False,
    config: Config = None,
) -> None:
    """Build a data set from a click log: lists, features, users and times. A stopped build continues.

    The log is a table (--log), User Behavior Insights (--ubi-queries, --ubi-events) or AOL4FOLTR (--aol4foltr).
    """
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
    of_candidates = {"--window": window, "--short": short, "--match": match, "--published": published}
    if aol4foltr is not None or letor is not None:
        files = {"--docs": docs, "--log": log, "--ubi-queries": ubi_queries, "--ubi-events": ubi_events}
        picked = {"--users": users, "--exclude": exclude}
        _only("another kind of log", {**files, **picked, **of_ubi, **of_tables, **of_shown, **of_candidates})
        _build_aol4foltr(aol4foltr, letor, out, quiet)
        return
    if docs is None:
        raise ValueError("--docs is missing; give the documents that the log refers to")
    source: Path | UbiSource
    if ubi_queries is not None and ubi_events is not None and log is None:
        source, wrong = UbiSource(ubi_queries, ubi_events), {**of_candidates, **of_tables}
    elif log is None or ubi_queries is not None or ubi_events is not None:
        raise ValueError("give --log, both --ubi-queries and --ubi-events, or --aol4foltr and --letor")
    elif is_shown_table(log, columns):
        source, wrong = log, {**of_candidates, **of_ubi}
    else:
        _only("a log of shown lists", {**of_ubi, **of_shown, "--drawn": drawn})
        rules = ListRules(window=window or "ranked", short=short or "drop")
        rules_of_build = LogBuild(
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
        _make_log(lambda report: build_log(log, docs, out, rules_of_build, threads=workers, progress=report), quiet)
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
    _make_log(lambda report: build_shown(source, docs, out, how, threads=workers, progress=report), quiet)


@data_app.command(
    "propensities",
    epilog="Examples:  fedrank data propensities mylog  ·  fedrank data propensities mylog --bias trust --out "
    "propensities.json",
)
def data_propensities(
    folder: Annotated[Path, typer.Argument(help="Folder of a click log with shown lists.")],
    bias: BiasName = "position",
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the propensities; data.propensities of a spec reads it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the probability that users examine each position, from documents that changed positions.

    If the log does not identify the propensities, the command prints the cost of an experiment that would.
    """
    from fedrank.data.logs import load_log
    from fedrank.experiments.report.estimates import about_positions
    from fedrank.experiments.runner.position_bias import positions_of_log, shown_results
    from fedrank.ranking.propensity import NotIdentifiable

    console, log = new_console(), load_log(folder)
    try:
        by = positions_of_log(log, bias_named(bias))
    except NotIdentifiable as problem:
        text = str(problem)
        print_line(console, f"{text[0].upper()}{text[1:]}.")
        raise typer.Exit(EXIT_FAILURE) from None
    if as_json:
        print_json(by.as_json())
    else:
        print_sections(about_positions(by, shown_results(log)), console)
    if out is not None:
        write_atomic(out, json.dumps(by.as_json(), indent=1) + "\n")
        if not as_json:
            print_line(console, f"Propensities: {out}")


@data_app.command(
    "redact",
    epilog="Example:  fedrank data redact aol --rare 10 --redact-words names.txt",
)
def data_redact(
    folder: Annotated[Path, typer.Argument(help="Data set written by fedrank data build.")],
    rare: Annotated[
        int,
        typer.Option(
            min=1, max=MAX_COUNT, help="Minimum number of users per query; the text of rarer queries is deleted."
        ),
    ] = 5,
    keep_patterns: Annotated[
        bool,
        typer.Option("--keep-patterns", help="Keep the text of queries that contain e-mail addresses or long numbers."),
    ] = False,
    redact_words: Annotated[
        Path | None,
        typer.Option(help="File with words, one per line; the text of queries that contain one is deleted."),
    ] = None,
) -> None:
    """Delete texts of queries from a data set permanently; lists, clicks and features stay."""
    from fedrank.data.redact_log import redact_log
    from fedrank.data.redaction import Redaction, read_words
    from fedrank.experiments.runner.cards import log_card

    console = new_console()
    log = redact_log(folder, Redaction(rare, not keep_patterns, read_words(redact_words) if redact_words else ()))
    log_card(log).write(log.folder)
    redacted = log.facts["redacted"]
    print_line(console, f"Deleted the text of {sum(redacted.values()):,} of {len(log.queries):,} queries")
    for reason, n in redacted.items():
        print_line(console, f"Redacted, {reason}: {n:,}")
    print_line(console, "The original log, copies and backups still contain these texts.")


@data_app.command(
    "synth",
    epilog="Examples:  fedrank data synth --users 1000 --out toy  ·  fedrank data synth --ubi --users 500 --out shop",
)
def data_synth(
    out: Annotated[Path, typer.Option(help="Folder for log.tsv and corpus.jsonl.")],
    ubi: Annotated[
        bool, typer.Option("--ubi", help="Write shown lists and clicks as User Behavior Insights instead of log.tsv.")
    ] = False,
    users: Annotated[int, typer.Option(min=1, help="Number of users.")] = 1000,
    documents: Annotated[int, typer.Option(min=1, help="Number of documents.")] = 2000,
    topics: Annotated[int, typer.Option(min=1, help="Number of topics of documents and users.")] = 20,
    days: Annotated[int, typer.Option(min=1, help="Length of the log in days.")] = 90,
    seed: Seed = 1,
) -> None:
    """Generate a synthetic log that resembles a real one: few active users, bursts, different interests."""
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
            f"Next: fedrank data build --ubi-queries {made.queries} --ubi-events {made.events} --docs {made.corpus} "
            f"--out {out / 'data'}",
        )
        return
    log, docs = synthetic_log(out, users, seed, documents=documents, topics=topics, days=days)
    print_line(console, f"Log: {log}")
    print_line(console, f"Documents: {docs}")
    print_line(console, f"Next: fedrank data build --log {log} --docs {docs} --out {out / 'data'}")


def _build_aol4foltr(metadata: Path | None, letor: Path | None, out: Path, quiet: bool) -> None:
    from fedrank.data.aol4foltr import convert_aol4foltr

    if metadata is None or letor is None:
        raise ValueError("AOL4FOLTR has two files; give both --aol4foltr METADATA and --letor LETOR")
    _make_log(lambda report: convert_aol4foltr(metadata, letor, out, report), quiet)


def _make_log(make: Callable[[Progress], SearchLog], quiet: bool = False) -> None:
    from fedrank.data.describe_log import notes
    from fedrank.experiments.runner.cards import log_card

    console = new_console()
    try:
        with progress(console, quiet) as tell:
            log = make(tell)
    except KeyboardInterrupt:
        print_line(console, "Stopped; run the same command to continue.")
        raise typer.Exit(130) from None
    for note in notes(log.facts):
        print_line(console, note)
    log_card(log).write(log.folder)
    print_line(console, f"Data set: {log.folder}")
    print_line(console, f"Describe it: fedrank data check {log.folder} --out log.png")


def _pair(text: str) -> tuple[str, str]:
    """FIELD and NAME of FIELD=NAME."""
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError(f"--column must be FIELD=NAME, such as user=AnonID (got {text!r})")
    return name, value


def _only(what: str, options: Mapping[str, object]) -> None:
    """Refuse options that would have no effect."""
    for name, value in options.items():
        if value:
            raise ValueError(f"{name} is an option for {what} and has no effect here; remove it")


def _draws(text: str | None) -> tuple[float, float] | None:
    """Temperature and keep."""
    if text is None:
        return None
    try:
        temperature, keep = map(float, text.split(","))
    except ValueError:
        raise ValueError(f"--drawn must be TEMPERATURE,KEEP, such as 0.3,0.5 (got {text!r})") from None
    if not (0 < temperature < float("inf") and 0 <= keep <= 1):
        raise ValueError(f"--drawn needs a temperature above 0 and a share from 0 to 1 (got {text!r})")
    return temperature, keep


def _caps(texts: list[str]) -> ClickCaps:
    """The default limits with the given changes."""
    from fedrank.data.click_caps import ClickCaps
    from fedrank.names import did_you_mean

    chosen: dict[str, int | float | None] = {}
    rules = [one.name for one in fields(ClickCaps)]
    for text in texts:
        rule, _, value = text.partition("=")
        if rule not in rules:
            raise ValueError(f"--cap {text!r}: unknown rule {rule!r}{did_you_mean(rule, rules)}")
        try:
            chosen[rule] = None if value == "none" and rule != "least" else (float if rule == "share" else int)(value)
        except ValueError:
            raise ValueError(f"--cap {rule} must be a number, such as {rule}=60, or none (got {value!r})") from None
    return replace(ClickCaps(), **chosen)  # type: ignore[arg-type]  # checked by name
