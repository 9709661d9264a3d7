"""`fedrank data`: data sets, clients and click logs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrank.cli.config import Config, with_settings
from fedrank.cli.model import BiasName, bias_named
from fedrank.cli.shared import (
    EXIT_FAILURE,
    AsJson,
    Changes,
    Picture,
    Seed,
    Threads,
    print_file,
    print_line,
    print_result,
    print_sections,
    progress,
)
from fedrank.cli.sketch import EXAMPLES, sketch
from fedrank.files import write_atomic
from fedrank.names import missing_file
from fedrank.value_checks import LARGEST, Positive, at_least, at_most

if TYPE_CHECKING:
    from fedrank.data.click_caps import ClickCaps
    from fedrank.data.held_out import HoldOut
    from fedrank.data.logs import SearchLog
    from fedrank.progress import Progress

data_app = typer.Typer(no_args_is_help=True)
data_app.command("sketch", epilog=EXAMPLES)(sketch)


@data_app.command("list", epilog="Example:  FEDRANK_DATA=/data fedrank data list")
def data_list(as_json: AsJson = False) -> None:
    """List the known data sets and text collections: what they contain, where they are, how to get them."""
    from fedrank.data.catalog import available
    from fedrank.data.collection import collections
    from fedrank.experiments.report.data_output import about_catalog

    sets, texts = available(), collections()
    facts = {
        "sets": [
            vars(entry) | {"folder": folder, "here": folder is not None or entry.layout == "built-in"}
            for entry, folder in sets
        ],
        "collections": [{"name": name, "folder": folder} for name, folder in texts],
    }
    print_result(as_json, lambda: facts, lambda: about_catalog(sets, texts))


@data_app.command(
    "check",
    epilog="Examples:  fedrank data check train.txt  ·  fedrank data check S1.txt.xz S2.txt.xz  ·  fedrank data check "
    "aol --out log.png  ·  fedrank data check shop/june --against shop/may --out drift.png  ·  fedrank data check "
    "hospital-a.sketch  ·  fedrank data check my.toml --set clients.count=20 --out clients.png",
)
def data_check(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Judged files (LETOR; also .gz, .xz), one data set folder written by fedrank data build, a .sketch, "
            "or a spec."
        ),
    ],
    against: Annotated[
        Path | None, typer.Option(help="Earlier data set: report drift of features and click rates; status 1 if any.")
    ] = None,
    out: Picture = None,
    set_: Changes = None,
    fold: Annotated[int | None, typer.Option(min=1, help="Fold of a spec. Default: its first.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of a spec. Default: its first.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check judged files, describe a data set of click logs (users, times, clicks by position) or a sketch.

    Of a spec, show the queries, documents and relevance labels of each client, and how much the clients differ.
    """
    if len(paths) == 1 and (paths[0].suffix == ".toml" or not (paths[0].suffix or paths[0].exists())):
        if against is not None:
            raise ValueError(f"--against {against} compares data set folders; remove it to describe clients")
        _describe_clients(str(paths[0]), out, set_ or [], fold, seed, as_json)
        return
    if set_ or fold is not None or seed is not None:
        raise ValueError(f"--set, --fold and --seed belong to a spec, but {paths[0]} is none; remove them")
    if any(path.is_dir() for path in paths):
        if len(paths) > 1:
            raise ValueError(f"give one data set folder, or data files (got {len(paths)} paths with a folder)")
        if against is not None:
            _compare_logs(paths[0], against, out, as_json)
        else:
            _describe_log(paths[0], out, as_json)
        return
    if against is not None:
        raise ValueError(f"--against {against} compares data set folders; remove it to check files")
    if out is not None:
        raise ValueError(f"--out {out} draws a data set folder; remove it to check files")
    from fedrank.data.check import check_files
    from fedrank.experiments.report.data_output import about_checks, about_sketch

    for path in paths:
        if not path.exists():
            raise FileNotFoundError(missing_file(path))
    if len(paths) == 1 and paths[0].suffix == ".sketch":
        from fedrank.silo.describe import describe_sketch

        found = describe_sketch(paths[0])
        print_result(as_json, lambda: found, lambda: about_sketch(found))
        return
    checks = check_files(paths)
    facts = [{**vars(check), "sound": check.sound} for check in checks]
    print_result(as_json, lambda: facts, lambda: about_checks(checks))
    if not all(check.sound for check in checks):
        raise typer.Exit(EXIT_FAILURE)


def _describe_log(folder: Path, out: Path | None, as_json: bool) -> None:
    from fedrank.data.describe_log import describe_log, description_as_json
    from fedrank.data.logs import load_log
    from fedrank.experiments.report.data_output import about_log

    log = describe_log(load_log(folder))
    if as_json:
        typer.echo(description_as_json(log))
    else:
        print_sections(about_log(log))
    if out is not None:
        from fedrank.experiments.report.charts import draw_log

        draw_log(log, out)
        print_file("Picture", out, as_json)


def _compare_logs(folder: Path, against: Path, out: Path | None, as_json: bool) -> None:
    from fedrank.data.drift import drift
    from fedrank.data.logs import load_log
    from fedrank.experiments.report.data_output import about_drift

    found = drift(load_log(folder), load_log(against))
    print_result(as_json, found.as_json, lambda: about_drift(found))
    if out is not None:
        from fedrank.experiments.report.charts import draw_drift

        draw_drift(found, out)
        print_file("Picture", out, as_json)
    if found.drifted:
        raise typer.Exit(EXIT_FAILURE)


def _describe_clients(
    spec: str, out: Path | None, changes: list[str], fold: int | None, seed: int | None, as_json: bool
) -> None:
    from fedrank.experiments.report.data_output import about_clients
    from fedrank.experiments.runner.client_summary import describe_clients
    from fedrank.experiments.spec.source import read_experiment

    summary = describe_clients(read_experiment(spec, changes), fold, seed)
    print_result(as_json, lambda: summary, lambda: about_clients(summary))
    if out is not None:
        from fedrank.experiments.report.charts import draw_clients

        draw_clients(summary, out)
        print_file("Picture", out, as_json)


@dataclass(frozen=True)
class BuildOptions:
    """Options for all kinds of logs."""

    users: Positive | None = None  # number of users to keep, the most active ones; default: all
    min_interactions: Positive = 1  # minimum number of entries per user
    exclude: list[str] | None = None  # user to exclude; may be repeated
    stem: str = "none"  # stemming of words: none or english
    seed: int = 1  # random seed
    threads: Threads | None = None  # threads to compute features; default: one per core
    quiet: bool = False  # do not print progress

    def selection(self) -> dict[str, Any]:
        """Settings of `LogBuild` and of `ShownBuild`."""
        exclude = tuple(self.exclude or ())
        return {"users": self.users, "min_interactions": self.min_interactions, "exclude": exclude, "stem": self.stem}


@dataclass(frozen=True)
class CandidateOptions:
    """Options for logs of clicks, for which candidate lists are constructed."""

    window: str | None = None  # order around the clicked document: ranked (default), or shuffled as the published code
    short: str | None = None  # if too few documents match: drop the entry (default), or fill with random documents
    match: str | None = None  # how clicks name documents: id, url, or auto (default; url in AOL's format)
    published: bool = False  # compute features as the published code of AOL4FOLTR does


@dataclass(frozen=True)
class TableOptions:
    """Options for logs that are tables."""

    column: list[str] | None = None  # FIELD=NAME: column for user, time, query or document; may be repeated
    drawn: str | None = None  # TEMPERATURE,KEEP: how the lists of a log with a column scores were sampled


@dataclass(frozen=True)
class UbiOptions:
    """Options for User Behavior Insights."""

    person: str | None = None  # field that identifies the person; default: users are browsers (client_id)
    action: list[str] | None = None  # event that counts as a click (default: click); may be repeated
    object_field: str | None = None  # column of the documents with the object ids
    application: str | None = None  # only queries of this application; default: all applications


@dataclass(frozen=True)
class ShownOptions:
    """Options for logs of shown lists."""

    positions: Annotated[int, at_least(1), at_most(10_000)] | None = None  # number of positions per list; default: 100
    cap: list[str] | None = None  # RULE=N, RULE=none: a limit per client (see the guide); may be repeated
    keep_days: Annotated[int, at_least(1), at_most(36_500)] | None = None  # maximum age; older lists are dropped
    rare: Positive | None = None  # minimum number of users per query (default: 5); rarer texts are not stored
    keep_patterns: bool = False  # store the text of queries that contain e-mail addresses or long numbers
    redact_words: Path | None = None  # words, one per line; the text of queries that contain one is not stored
    drop_redacted: bool = False  # also drop the lists of redacted queries
    hold_out_days: float | None = None  # hold the latest days out of training, for one estimate of a model
    hold_out_users: float | None = None  # hold this share of the users out of training, with all their lists
    hold_out_key: str = ""  # key that chooses the users, for reproducible simulations; default: a new key
    previous: Path | None = None  # data set that this one continues: same held-out users, a later window

    def hold_out(self) -> HoldOut | None:
        """What to hold out; None: nothing."""
        from fedrank.data.held_out import HoldOut, continued

        if self.previous is not None:
            if self.hold_out_key:
                raise ValueError("--hold-out-key: with --previous, the key is that of the earlier data set; remove it")
            return continued(self.previous, self.hold_out_days, self.hold_out_users)
        if self.hold_out_days is None and self.hold_out_users is None:
            if self.hold_out_key:
                raise ValueError("--hold-out-key has no effect without --hold-out-users; remove it, or give both")
            return None
        return HoldOut(self.hold_out_days, self.hold_out_users, self.hold_out_key)


@data_app.command(
    "build",
    epilog="Examples:  fedrank data build --log log.tsv --docs corpus.jsonl --out aol  ·  fedrank data build --log "
    "clicks.csv.gz --docs corpus.tsv --out mine --users 100 --exclude 71845 --column user=person  ·  fedrank data "
    "build --ubi-queries ubi_queries.ndjson --ubi-events ubi_events.ndjson --docs docs.jsonl --out shop --keep-days 90"
    "  ·  fedrank data build --ubi-queries ubi_queries.ndjson --ubi-events ubi_events.ndjson --docs docs.jsonl --out "
    "shop --hold-out-days 7 --hold-out-users 0.1",
)
@with_settings
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
        Path | None,
        typer.Option(help="Queries and results in the format of User Behavior Insights: .ndjson, or a folder of them."),
    ] = None,
    ubi_events: Annotated[
        Path | None, typer.Option(help="Clicks in the format of User Behavior Insights: .ndjson, or a folder of them.")
    ] = None,
    features: Annotated[
        str,
        typer.Option(help="Feature set: aol-103 (AOL4FOLTR), live-1 (fedrank search) or engine-1 (search engines)."),
    ] = "aol-103",
    config: Config = None,
    *,
    more: BuildOptions,
    candidates: CandidateOptions,
    tables: TableOptions,
    shown: ShownOptions,
    ubi: UbiOptions,
) -> None:
    """Build a data set from a click log: lists, features, users and times. A stopped build continues.

    The log is a table (--log) or User Behavior Insights (--ubi-queries, --ubi-events).
    """
    from fedrank.data.build_log import LogBuild, build_log
    from fedrank.data.build_shown import ShownBuild, UbiSource, build_shown
    from fedrank.data.lists import ListRules
    from fedrank.data.redaction import Redaction, read_words
    from fedrank.data.shown import is_shown_table
    from fedrank.data.ubi import UbiRules

    workers = more.threads or os.cpu_count() or 1
    columns = dict(_pair(text) for text in tables.column or [])
    if docs is None:
        raise ValueError("--docs is missing; give the documents that the log refers to")
    source: Path | UbiSource
    if ubi_queries is not None and ubi_events is not None and log is None:
        _refuse("another kind of log", vars(candidates), vars(tables))
        source = UbiSource(ubi_queries, ubi_events)
    elif log is None or ubi_queries is not None or ubi_events is not None:
        raise ValueError("give --log, or both --ubi-queries and --ubi-events")
    elif is_shown_table(log, columns):
        _refuse("another kind of log", vars(candidates), vars(ubi))
        source = log
    else:
        _refuse("a log of shown lists", vars(ubi), vars(shown), {"drawn": tables.drawn})
        rules = LogBuild(
            ListRules(window=candidates.window or "ranked", short=candidates.short or "drop"),
            match=candidates.match or "auto",
            published=candidates.published,
            seed=more.seed,
            columns=columns,
            features=features,
            **more.selection(),
        )
        make_log(lambda report: build_log(log, docs, out, rules, threads=workers, progress=report), more.quiet)
        return
    usual, redaction = UbiRules(), Redaction()
    actions, positions = tuple(ubi.action or usual.actions), shown.positions or usual.positions
    words = read_words(shown.redact_words) if shown.redact_words else ()
    how = ShownBuild(
        drawn=_draws(tables.drawn),
        ubi=UbiRules(ubi.person, actions, ubi.object_field, ubi.application, positions),
        caps=_caps(shown.cap or []),
        redaction=Redaction(
            shown.rare or redaction.people, not shown.keep_patterns, words, "drop" if shown.drop_redacted else "replace"
        ),
        keep_days=shown.keep_days,
        hold_out=shown.hold_out(),
        columns=columns,
        features=features,
        **more.selection(),
    )
    make_log(lambda report: build_shown(source, docs, out, how, threads=workers, progress=report), more.quiet)


@data_app.command(
    "fetch",
    epilog="Examples:  fedrank data fetch https://search.example.org:9200 --out ubi --credentials opensearch.txt  ·  "
    "OPENSEARCH_USER=reader OPENSEARCH_PASSWORD=... fedrank data fetch https://search.example.org:9200 --out ubi "
    "--since 2026-01-01",
)
def data_fetch(
    url: Annotated[str, typer.Argument(help="Address of the OpenSearch cluster: https://HOST:PORT.")],
    out: Annotated[Path, typer.Option(help="Folder for the files and the cursor.")],
    credentials: Annotated[
        Path | None,
        typer.Option(help="File with user:password. Default: OPENSEARCH_USER and OPENSEARCH_PASSWORD."),
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="Certificates of the authority that signed the cluster's.")] = None,
    since: Annotated[str, typer.Option(help="Date at which the first call begins. Default: the first row.")] = "",
    overlap_hours: Annotated[float, typer.Option(help="Hours by which events may be indexed late.")] = 24.0,
    queries: Annotated[str, typer.Option(help="Index of queries.")] = "ubi_queries",
    events: Annotated[str, typer.Option(help="Index of events.")] = "ubi_events",
    page: Annotated[int, typer.Option(min=1, max=10_000, help="Rows per request.")] = 1000,
) -> None:
    """Copy new queries and events of User Behavior Insights from OpenSearch to files for fedrank data build.

    The next call continues, also after it was stopped. Certificates are always verified.
    """
    from fedrank.data.fetch_ubi import FetchSettings, fetch_ubi, open_client
    from fedrank.data.values import parse_time

    begin = parse_time(since) if since else 0.0
    if begin is None:
        raise ValueError(f"--since must be a date such as 2026-01-31 (got {since!r})")
    settings = FetchSettings(queries, events, int(1000 * begin), overlap_hours, page)
    client = open_client(url, credentials, ca)
    from opensearchpy.exceptions import OpenSearchException

    try:
        with progress() as tell:
            found = fetch_ubi(client, out, settings, progress=tell)
    except OpenSearchException as problem:
        text = "".join(one for one in str(problem) if one.isprintable())
        raise ConnectionError(f"{url} did not answer: {text[:300]}; what was fetched stays, try again later") from None
    for one in found:
        print_line(f"{one.folder}: {one.rows:,} new rows, {one.known:,} known ones")
    folders = f"--ubi-queries {found[0].folder} --ubi-events {found[1].folder}"
    print_line(f"Next: fedrank data build {folders} --docs DOCS --out DATA")


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
    from fedrank.experiments.report.data_output import about_positions
    from fedrank.experiments.runner.position_bias import positions_of_log, shown_results
    from fedrank.ranking.propensity import NotIdentifiable

    log = load_log(folder)
    try:
        by = positions_of_log(log, bias_named(bias))
    except NotIdentifiable as problem:
        text = str(problem)
        print_line(f"{text[0].upper()}{text[1:]}.")
        raise typer.Exit(EXIT_FAILURE) from None
    print_result(as_json, by.as_json, lambda: about_positions(by, shown_results(log, log.training_rows())))
    if out is not None:
        write_atomic(out, json.dumps(by.as_json(), indent=1) + "\n")
        print_file("Propensities", out, as_json)


@data_app.command(
    "redact",
    epilog="Example:  fedrank data redact aol --rare 10 --redact-words names.txt",
)
def data_redact(
    folder: Annotated[Path, typer.Argument(help="Data set written by fedrank data build.")],
    rare: Annotated[
        int,
        typer.Option(
            min=1, max=LARGEST, help="Minimum number of users per query; the text of rarer queries is deleted."
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
    from fedrank.data.redaction import Redaction, read_words, redact_log
    from fedrank.experiments.runner.cards import log_card

    log = redact_log(folder, Redaction(rare, not keep_patterns, read_words(redact_words) if redact_words else ()))
    log_card(log).write(log.folder)
    redacted = log.facts["redacted"]
    print_line(f"Deleted the text of {sum(redacted.values()):,} of {len(log.queries):,} queries")
    for reason, n in redacted.items():
        print_line(f"Redacted, {reason}: {n:,}")
    print_line("The original log, copies and backups still contain these texts.")


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

    if ubi:
        queries, events, corpus = synthetic_ubi(out, users, seed, documents=documents, topics=topics, days=days)
        for what, path in (("Queries", queries), ("Events", events), ("Documents", corpus)):
            print_file(what, path)
        print_line(
            f"Next: fedrank data build --ubi-queries {queries} --ubi-events {events} --docs {corpus} "
            f"--out {out / 'data'}"
        )
        return
    log, docs = synthetic_log(out, users, seed, documents=documents, topics=topics, days=days)
    print_line(f"Log: {log}")
    print_line(f"Documents: {docs}")
    print_line(f"Next: fedrank data build --log {log} --docs {docs} --out {out / 'data'}")


def make_log(make: Callable[[Progress], SearchLog], quiet: bool = False) -> None:
    """Build or convert a data set with a progress bar, and print what it contains."""
    from fedrank.data.describe_log import notes
    from fedrank.experiments.runner.cards import log_card

    try:
        with progress(quiet) as tell:
            log = make(tell)
    except KeyboardInterrupt:
        print_line("Stopped; run the same command to continue.")
        raise typer.Exit(130) from None
    for note in notes(log.facts):
        print_line(note)
    log_card(log).write(log.folder)
    print_line(f"Data set: {log.folder}")
    print_line(f"Describe it: fedrank data check {log.folder} --out log.png")


def _pair(text: str) -> tuple[str, str]:
    """FIELD and NAME of FIELD=NAME."""
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError(f"--column must be FIELD=NAME, such as user=AnonID (got {text!r})")
    return name, value


def _refuse(what: str, *options: Mapping[str, object]) -> None:
    """Refuse options that would have no effect."""
    for name, value in (pair for group in options for pair in group.items()):
        if value:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} is an option for {what} and has no effect here; remove it")


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
