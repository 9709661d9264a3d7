"""`fedrank engine`: features, read-log, compare, and trials of a model (`fedrank engine trial`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrank.cli.config import Config, with_settings
from fedrank.cli.shared import (
    EXIT_FAILURE,
    AsJson,
    Picture,
    print_file,
    print_json,
    print_line,
    print_note,
    print_sections,
)
from fedrank.value_checks import LARGEST, at_least, at_most

if TYPE_CHECKING:
    from fedrank.data.rows import LeftOut
    from fedrank.engine.adoption import InUse
    from fedrank.engine.compare import Compared
    from fedrank.engine.read_log import LoggedFeatures
    from fedrank.engine.trial import Count, EngineTrial
    from fedrank.engine.trial_decision import Judgement

engine_app = typer.Typer(no_args_is_help=True)

LETOR = (".txt", ".letor", ".dat")
LoggedAnswers = Annotated[Path, typer.Argument(help="Responses of the engine, one per line, each with its query_id.")]
FeatureNames = Annotated[
    Path | None, typer.Option(help="File with feature names, one per line. Default: those of engine-1.")
]
Entry = Annotated[str, typer.Option(help="Name of the logged feature set, if there are several.")]
Url = Annotated[str, typer.Option(help="Address of the engine. Default: this machine.")]


@dataclass(frozen=True)
class FeatureOptions:
    """Further options of `engine features`."""

    title: str = "title"  # field with the title
    body: str = "body"  # field with the text
    all: str = "all"  # field into which title and text are copied
    bm25: str = ""  # BM25 formula: lucene, or legacy (with a factor k1 + 1); default: that of new versions


@engine_app.command(
    "features",
    epilog="Examples:  fedrank engine features engine-1 --to opensearch --out engine  ·  fedrank engine features "
    "engine-1-english --to solr --index products --changed updated --popularity sold --out engine",
)
@with_settings
def engine_features(
    features: Annotated[
        str, typer.Argument(help="Feature set: engine-1, or with Snowball's stemmer engine-1-english.")
    ],
    to: Annotated[str, typer.Option(help="Engine: opensearch, elasticsearch or solr.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    url: Url = "",
    index: Annotated[str, typer.Option(help="Index of the engine, or collection of Solr.")] = "documents",
    model: Annotated[str, typer.Option(help="Name of the model in the engine.")] = "fedrank",
    changed: Annotated[str, typer.Option(help="Field with a date, for the feature recency.")] = "",
    popularity: Annotated[str, typer.Option(help="Field with a number, for the feature popularity.")] = "",
    config: Config = None,
    *,
    more: FeatureOptions,
) -> None:
    """Write a feature set, a logging query and a rescore query for an engine, as files and command lines."""
    from fedrank.data.engine_features import EngineFeatures
    from fedrank.engine.templates import EngineSetup, curl_lines, write_engine_files

    setup = EngineSetup(
        to, EngineFeatures.named(features), url, index, model, changed=changed, popularity=popularity, **vars(more)
    )
    written = write_engine_files(setup, out)
    print_line(f"{len(written)} files: {out}")
    for what, line in curl_lines(setup).items():
        print_line(f"{what}:\n    {line}")
    print_line(f"Instructions and the meaning of each feature: {out / 'README.md'}")


@engine_app.command(
    "read-log",
    epilog="Examples:  fedrank engine read-log ltr.ndjson --clicks events.ndjson --out train.txt  ·  fedrank engine "
    "read-log ltr.ndjson --ubi-queries queries.ndjson --ubi-events events.ndjson --out data",
)
def engine_read_log(
    log: LoggedAnswers,
    out: Annotated[Path, typer.Option(help="LETOR file (.txt); or, with UBI, a folder for a data set of shown lists.")],
    clicks: Annotated[
        Path | None, typer.Option(help="Clicks: query_id and document, or UBI events; .jsonl, .tsv or .csv.")
    ] = None,
    ubi_queries: Annotated[Path | None, typer.Option(help="UBI queries with the shown results.")] = None,
    ubi_events: Annotated[Path | None, typer.Option(help="UBI events.")] = None,
    person: Annotated[
        str | None, typer.Option(help="UBI field that identifies the person. Default: client_id, a browser.")
    ] = None,
    feature_names: FeatureNames = None,
    entry: Entry = "",
) -> None:
    """Join logged features with clicks. Rows that cannot be used are omitted and counted with the reason."""
    from fedrank.engine.read_log import join_ubi, read_joined_clicks, write_joined, write_logged
    from fedrank.experiments.runner.cards import log_card

    if clicks is not None and ubi_queries is not None:
        raise ValueError("--clicks and --ubi-queries cannot be combined; remove one of them")
    if (ubi_queries is None) != (ubi_events is None):
        raise ValueError("UBI has two files; give both --ubi-queries and --ubi-events")
    if out.suffix.lower() not in LETOR and ubi_queries is None:
        raise ValueError(
            f"--out {out} is a folder for shown lists, which needs --ubi-queries and --ubi-events; give them, or a "
            "name that ends in .txt for a LETOR file"
        )
    logged = _read_logged(log, feature_names, entry)
    if logged.missing:
        print_note(f"{logged.missing:,} values were not logged, because their query did not match; they count as 0")
    grades = None
    if ubi_queries is not None and ubi_events is not None:
        joined = join_ubi(logged, ubi_queries, ubi_events, person)
        _note_omitted(ubi_queries, joined.left_out)
        if out.suffix.lower() not in LETOR:
            data = write_joined(out, logged, joined)
            log_card(data).write(data.folder)
            print_line(f"Data set: {out}, {len(data):,} lists of {len(data.users):,} users ({data.unit}s)")
            return
        grades = joined.grades
    elif clicks is not None:
        found = read_joined_clicks(clicks, logged)
        _note_omitted(clicks, found.left_out)
        grades = found.grades
    else:
        print_note("without clicks all relevance labels are 0; use the file for scoring, not for training")
    write_logged(out, logged, grades)
    clicked = 0 if grades is None else int(grades.sum())
    print_line(
        f"LETOR file: {out}, {len(logged.searches):,} queries, {len(logged):,} documents, {clicked:,} of them clicked"
    )


@engine_app.command(
    "compare",
    epilog="Examples:  fedrank engine compare rescored.ndjson --model runs/mine/only/fold-1-seed-1  ·  fedrank engine "
    "compare ltr.ndjson --docs docs.jsonl --queries queries.tsv",
)
def engine_compare(
    log: LoggedAnswers,
    model: Annotated[Path | None, typer.Option(help="Model that the engine uses: compare scores.")] = None,
    docs: Annotated[Path | None, typer.Option(help="Documents of the engine: compare features.")] = None,
    queries: Annotated[
        Path | None, typer.Option(help="With --docs: query_id, query and optional time; .tsv or .jsonl.")
    ] = None,
    features: Annotated[str, typer.Option(help="With --docs: feature set, such as engine-1.")] = "engine-1",
    feature_names: FeatureNames = None,
    entry: Entry = "",
    as_json: AsJson = False,
) -> None:
    """Compare the features or scores of an engine with those of fedrank, to a tolerance of 1e-5."""
    from fedrank.data.documents import read_documents
    from fedrank.data.engine_features import EngineFeatures
    from fedrank.engine.compare import compare_features, compare_scores, read_queries
    from fedrank.trees.model_files import load_model

    if (model is None) == (docs is None) or (docs is None) != (queries is None):
        raise ValueError("give --model to compare scores, or --docs and --queries to compare features")
    logged = _read_logged(log, feature_names, entry)
    if docs is not None and queries is not None:
        found = compare_features(logged, read_documents(docs), read_queries(queries), EngineFeatures.named(features))
        facts: object = found
        agrees = all(one.agrees for one in found)
        lines = [f"{one.what}: {_difference(one)}" for one in found]
    else:
        assert model is not None
        facts = scores = compare_scores(logged, load_model(model, print_note))
        agrees = scores.agrees
        same = f"The ten best are the same in {scores.same_top:,} of {scores.lists:,} lists"
        lines = [f"Scores: {_difference(scores.scores)}", same]
    if not agrees:
        lines.append("They differ; the README of the feature set lists known differences between engines.")
    if as_json:
        print_json({"agrees": agrees, "compared": facts})
    for line in [] if as_json else lines:
        print_line(line)
    if not agrees:
        raise typer.Exit(EXIT_FAILURE)


def _difference(one: Compared) -> str:
    return f"{one.values:,} values, largest difference {one.worst:.2g}, {one.beyond:,} above 1e-5"


def _read_logged(log: Path, feature_names: Path | None, entry: str) -> LoggedFeatures:
    from fedrank.data.engine_features import NAMES
    from fedrank.engine.read_log import read_feature_names, read_logged

    logged = read_logged(log, read_feature_names(feature_names) if feature_names is not None else NAMES, entry)
    _note_omitted(log, logged.left_out)
    return logged


def _note_omitted(path: Path, left_out: dict[str, LeftOut]) -> None:
    for reason, count in left_out.items():
        print_note(f"{path}: omitted, {reason}: {count}")


@engine_app.command(
    "refresh",
    epilog="Example:  fedrank engine refresh site  ·  with site/refresh.toml that has the sections build, train (or "
    "received), trial, and fetch if the log is in OpenSearch",
)
def engine_refresh(
    home: Annotated[Path, typer.Argument(help="Folder with refresh.toml; data, runs and trials are written there.")],
) -> None:
    """Refresh the model of one site, for a timer: new log files, drift, training, estimate, and a planned trial.

    A step that is done is skipped. Status 1: the estimate vetoes the new model.
    """
    import io
    from contextlib import redirect_stdout

    from fedrank.cli import app
    from fedrank.cli.refresh import refresh

    def call(words: list[str]) -> int:
        with redirect_stdout(io.StringIO()):  # one line per step
            return app(words, standalone_mode=False) or 0

    if not refresh(home, call, print_line):
        raise typer.Exit(EXIT_FAILURE)


trial_app = typer.Typer(
    help="Compare two models on live queries of your engine (interleaving); clicks decide which one is used.",
    no_args_is_help=True,
)
engine_app.add_typer(trial_app, name="trial")
TrialFolder = Annotated[Path, typer.Argument(metavar="TRIAL", help="Folder of the trial.")]
Who = Annotated[str | None, typer.Option(help="Your name, for the record. Default: your user name.")]

AtMost = Annotated[int, at_most(LARGEST)]  # TrialRules checks the minimum


@dataclass(frozen=True)
class RuleOptions:
    """Rules of a trial that `engine trial plan` rarely changes."""

    per_client: AtMost = 1  # maximum number of decided queries per client; above 1 only if they are independent
    liars: AtMost = 1  # adoption must hold without the clients that favour it most, this many and 5 % of all; 0: none
    wait: float = 30.0  # minutes to wait for clicks on a list


@dataclass(frozen=True)
class TrialOptions:
    """Further options of `engine trial plan`."""

    positions: Annotated[int, at_least(1), at_most(1_000)] = 10  # number of positions per list
    feature_set: str = "engine-1"  # feature set, or store, of the models in the engine
    query: Path | None = None  # query body for OpenSearch, with %SearchText% in place of the query text
    current: Path | None = None  # file that names the model in use; default: current.json beside TRIAL
    key: str = ""  # key of the random draws, for reproducible simulations; default: a new key
    because: str = ""  # reason, for the record
    who: str | None = None  # your name, for the record; default: your user name


@trial_app.command(
    "plan",
    epilog="Examples:  fedrank engine trial plan model.json --against engine --to opensearch --index products --out "
    "trials/spring  ·  fedrank engine trial plan new.json --against old.json --to own --wins 0.55 --out trials/summer",
)
@with_settings
def trial_plan(
    model: Annotated[Path, typer.Argument(help="New model: model.json, or folder of a finished run.")],
    against: Annotated[str, typer.Option(help="Model in use, or engine for the order of the engine.")],
    to: Annotated[str, typer.Option(help="Software that interleaves the lists: opensearch, solr or own.")],
    out: Annotated[Path, typer.Option(help="Folder for the trial.")],
    wins: Annotated[
        float, typer.Option(help="Share of decided queries that a useful model wins; a smaller share takes longer.")
    ] = 0.6,
    level: Annotated[
        float, typer.Option(help="Significance level: probability to adopt a model that is not better.")
    ] = 0.05,
    index: Annotated[str, typer.Option(help="Index or collection of the engine.")] = "",
    url: Url = "",
    config: Config = None,
    *,
    limits: RuleOptions,
    more: TrialOptions,
) -> None:
    """Plan a trial: write its record and the files for the engine, and compute the number of queries."""
    from fedrank.engine.start_trial import plan_trial
    from fedrank.engine.trial_decision import TrialRules, needed
    from fedrank.engine.trial_record import PLAN
    from fedrank.engine.trial_summary import about_plan
    from fedrank.ranking.model_remarks import remarks_on

    rules = TrialRules.for_wins(wins, level, per_client=limits.per_client, liars=limits.liars, wait=60 * limits.wait)
    plan, files = plan_trial(model, against, to, out, rules, url=url, index=index, **vars(more))
    for remark in remarks_on(model):
        print_note(remark)
    print_sections(about_plan(plan, needed(rules)))
    print_line(f"Record: {out / PLAN}")
    for file in files:
        print_line(f"For your engine: {file}")
    print_line(f"Then: fedrank engine trial read {out} EVENTS")


@trial_app.command(
    "read",
    epilog="Examples:  fedrank engine trial read trials/spring searches.jsonl clicks.jsonl  ·  fedrank engine trial "
    "read trials/spring answers.jsonl ubi_events.ndjson --old-id 9c858901 --new-id 1b4e28ba",
)
def trial_read(
    trial: TrialFolder,
    events: Annotated[
        list[Path],
        typer.Argument(help="Logged queries and clicks: UBI, JSONL, or responses of the engine."),
    ],
    old_id: Annotated[str | None, typer.Option(help="Id of the old model in OpenSearch.")] = None,
    new_id: Annotated[str | None, typer.Option(help="Id of the new model in OpenSearch.")] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="Everything until now was read: do not wait for more of it.")
    ] = False,
) -> None:
    """Read shown lists and clicks into a trial. Every row is checked; a file that is read twice counts once.

    Searches and clicks may be in different files, and days may be read in any order within seven days.
    """
    from fedrank.engine.trial import EngineTrial
    from fedrank.engine.trial_summary import about_reading

    labels = {label: side for label, side in ((old_id, "old"), (new_id, "new")) if label is not None}
    folder = EngineTrial(trial)
    brought = folder.read(events, labels, complete)
    count = folder.count()
    print_sections(about_reading(brought, count, folder.plan.rules.window))
    judgement = folder.judged(count)
    print_line(f"So far: {judgement.because} ({judgement.ruling}). Details: fedrank engine trial decide {trial}")


@trial_app.command("decide", epilog="Example:  fedrank engine trial decide trials/spring --out evidence.png")
def trial_decide(trial: TrialFolder, out: Picture = None, who: Who = None, as_json: AsJson = False) -> None:
    """Show evidence and history, and decide: adopt, refuse or continue. Ask at any time; a decision is recorded."""
    from fedrank.engine.adoption import decide
    from fedrank.engine.trial import EngineTrial

    folder = EngineTrial(trial)
    count = folder.count()
    judgement = folder.judged(count)
    decide(folder, count, judgement, who)
    _print_trial(folder, count, judgement, out, as_json)
    if as_json or folder.ended:
        return
    if judgement.ruling == "adopt":
        print_line(f"Use the new model: fedrank engine trial adopt {trial}")
    elif judgement.ruling == "refuse":
        print_line(f"Return to the old order: fedrank engine trial rollback {trial} --because '{judgement.because}'")
    else:
        print_line(f"Continue: fedrank engine trial read {trial} EVENTS")
        if judgement.provisional:
            print_line("If everything until now was read, add --complete: rows of these days do not count later.")


@trial_app.command(
    "adopt",
    epilog="Examples:  fedrank engine trial adopt trials/spring  ·  fedrank engine trial adopt trials/spring "
    "--anyway --because 'the license of the old model has expired'",
)
def trial_adopt(
    trial: TrialFolder,
    because: Annotated[str, typer.Option(help="Reason, for the record. Default: the decision.")] = "",
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Adopt without a decision for the new model; needs --because.")
    ] = False,
    who: Who = None,
) -> None:
    """Adopt the new model if the trial decided for it, and record the adoption."""
    from fedrank.engine.adoption import adopt
    from fedrank.engine.start_trial import ADOPT
    from fedrank.engine.trial import EngineTrial

    folder = EngineTrial(trial)
    _print_model_in_use(folder, adopt(folder, who, because, anyway), ADOPT)


@trial_app.command(
    "rollback", epilog="Example:  fedrank engine trial rollback trials/spring --because 'customers find no spare parts'"
)
def trial_rollback(
    trial: TrialFolder,
    because: Annotated[str, typer.Option(help="Reason, for the record.")],
    who: Who = None,
) -> None:
    """Return to the old model, or end a running trial, and record it."""
    from fedrank.engine.adoption import roll_back
    from fedrank.engine.start_trial import ROLL_BACK
    from fedrank.engine.trial import EngineTrial

    folder = EngineTrial(trial)
    _print_model_in_use(folder, roll_back(folder, because, who), ROLL_BACK)


def _print_trial(trial: EngineTrial, count: Count, judgement: Judgement, out: Path | None, as_json: bool) -> None:
    from fedrank.engine.trial_summary import about_trial

    if as_json:
        counts = vars(count) | {"earlier": len(count.earlier)}
        facts = {"trial": trial.plan.id, "ruling": judgement.ruling, "because": judgement.because, "count": counts}
        print_json(facts)
    else:
        print_sections(about_trial(trial, count, judgement))
    if out is not None:
        from fedrank.experiments.report.charts import draw_trial

        title = f"{trial.plan.id}: {judgement.because}"
        draw_trial(judgement.evidence, trial.plan.rules.gate, title, out)
        print_file("Picture", out, as_json)


def _print_model_in_use(trial: EngineTrial, put: InUse, script: str) -> None:
    from fedrank.engine.start_trial import commands_of

    print_line(f"In use: {put.name or 'the engine'} ({put.path or 'order of the engine'})")
    print_line(f"Record: {trial.current}, and history.json in {trial.folder}")
    if command := commands_of(trial.folder, script):
        print_line(f"Run this for your engine: {command}")
    else:
        print_note("your service reads from that file which model is in use")
