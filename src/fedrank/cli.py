"""The command: each reads files, calls one function, writes files, and prints where they lie.

Everything heavy is imported inside the commands, so that `fedrank --help` answers at once.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

# One thread for each matrix product: whole runs go side by side instead. Read when NumPy is first imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

app = typer.Typer(
    name="fedrank",
    help="Federated learning to rank: train one ranker together, without moving documents, queries or clicks.",
    epilog="First steps:  fedrank run quickstart  ·  fedrank report runs/quickstart --out report.html",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(
    help="Data sets: which are known, which are here, and whether a file is sound.", no_args_is_help=True
)
app.add_typer(data_app, name="data")
logs_app = typer.Typer(
    help="Search logs: from queries, clicks and documents to a data set of real users.", no_args_is_help=True
)
app.add_typer(logs_app, name="logs")

Spec = Annotated[str, typer.Argument(help="A TOML file, or the name of a built-in experiment.")]
Name = Annotated[str | None, typer.Option(help="Name of the results; the spec's own if not given.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the spec; may be repeated."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Runs side by side; one per core if not given.")]
RunsFolders = Annotated[list[Path], typer.Argument(help="Folders of runs, such as runs/quickstart.")]


@app.command(
    epilog="Examples:  fedrank run quickstart  ·  fedrank run my.toml --set learner.rate=0.05 --workers 2  ·  "
    "fedrank run quickstart --set rounds=100 --name short"
)
def run(
    spec: Spec,
    out: Annotated[Path, typer.Option(help="Folder for results; they go to OUT/NAME.")] = Path("runs"),
    name: Name = None,
    set_: Changes = None,
    workers: Workers = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads within a run; pays only for thousands of clients.")] = 1,
) -> None:
    """Do an experiment. Finished runs are skipped, interrupted ones resume."""
    from fedrank.experiment.report import show_table
    from fedrank.experiment.run import recorded_bytes
    from fedrank.experiment.schedule import run_experiment
    from fedrank.experiment.spec import read_question
    from fedrank.experiment.store import load_runs
    from fedrank.experiment.tables import amount

    experiment = read_question(spec, set_ or [])
    label = _label(name, spec)
    for folder in (out / label, *(out / label).parents):
        if folder.is_file():
            raise NotADirectoryError(f"{folder} is a file; --out and --name must lead to a folder")
    runs = len(experiment.expand()) * len(experiment.repeats())
    console = _console()
    _say(console, experiment.title or label, style="bold")
    _say(console, f"{_count(runs)} of {experiment.extent}, into {out / label}")
    recorded = sum(recorded_bytes(each.experiment) for each in experiment.expand()) * len(experiment.repeats())
    if recorded:
        _say(console, f"Updates are recorded there, too: {amount('bytes', recorded)} at most")
    results = run_experiment(
        experiment, label, out, workers=workers or os.cpu_count() or 1, threads=threads, console=console
    )
    if results.skipped:
        _say(console, f"{_count(len(results.skipped))} of {runs} finished before")
    for task, reason in results.failed:
        _say(console, f"failed {task.label}: {reason}", style="red")
    if results.interrupted:
        left = len(results.interrupted)
        are = "is" if left == 1 else "are"
        _say(console, f"Stopped. {_count(left)} {are} not finished; nothing is lost: run the same command to resume.")
    if results.finished or results.skipped:
        show_table(load_runs(out / label), console)
        _say(console, f"Pictures and tests: fedrank report {out / label} --out report.html")
    if results.failed:
        raise typer.Exit(1)
    if results.interrupted:
        raise typer.Exit(130)


@app.command(
    epilog="Examples:  fedrank tune quickstart --over learner.rate=[0.03,0.1,0.3]  ·  then: fedrank run "
    "runs/quickstart-tuning/tuned.toml"
)
def tune(
    spec: Spec,
    over: Annotated[
        list[str], typer.Option(metavar="KEY=[VALUES]", help="Setting to tune and its values; may be repeated.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for results; they go to OUT/NAME-tuning.")] = Path("runs"),
    name: Name = None,
    set_: Changes = None,
    workers: Workers = None,
) -> None:
    """Choose settings on the validation queries, for every variant by itself."""
    from fedrank.experiment.spec import read_experiment
    from fedrank.experiment.toml import parse_override
    from fedrank.experiment.tune import show_tried, tune

    experiment = read_experiment(spec, set_ or [])
    grid = {".".join(keys): values for keys, values in map(parse_override, over)}
    for key, values in grid.items():
        if not isinstance(values, list):
            raise ValueError(f"--over {key}={values}: list the values to try, such as {key}=[0.03,0.1,0.3]")
    console = _console()
    results, tried, path = tune(
        experiment, _label(name, spec), grid, out, workers=workers or os.cpu_count() or 1, console=console
    )
    for task, reason in results.failed:
        _say(console, f"failed {task.label}: {reason}", style="red")
    if path is None:
        _say(console, "Nothing is chosen while runs are interrupted: run the same command again.")
        raise typer.Exit(130)
    show_tried(tried, experiment.measures[0], console)
    _say(console, f"All that was tried: fedrank report {path.parent}")
    _say(console, f"The tuned experiment: fedrank run {path}")


@app.command(
    epilog="Examples:  fedrank clients quickstart  ·  fedrank clients my.toml --out clients.png --set clients.count=20"
)
def clients(
    spec: Spec,
    out: Annotated[Path | None, typer.Option(help="Picture to draw: .png, .svg or .pdf.")] = None,
    set_: Changes = None,
    fold: Annotated[int | None, typer.Option(min=1, help="Which fold; the spec's first if not given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which seed; the spec's first if not given.")] = None,
) -> None:
    """Who holds what: queries, documents and grades of each client, and how different clients are."""
    from fedrank.experiment.spec import read_experiment
    from fedrank.experiment.who import describe_clients, draw_clients, show_clients

    console = _console()
    who = describe_clients(read_experiment(spec, set_ or []), fold, seed)
    show_clients(who, console)
    if out is not None:
        draw_clients(who, out)
        _say(console, f"Picture: {out}")


@app.command(
    epilog="Examples:  fedrank privacy my.toml  ·  fedrank privacy thesis/fig-3-6 --target 2 --target 8  ·  "
    "fedrank privacy my.toml --set mechanism.noise=20"
)
def privacy(
    spec: Spec,
    set_: Changes = None,
    target: Annotated[
        list[float] | None, typer.Option(help="ε to find the noise for; may be repeated. 1, 2, 4 and 8 if not given.")
    ] = None,
) -> None:
    """Before a run: what would it spend, against whom, and which noise would a target need?"""
    from fedrank.experiment.privacy import TARGETS, show_privacy
    from fedrank.experiment.spec import read_experiment

    for value in target or []:
        if not value > 0:
            raise ValueError(f"--target {value:g} cannot be reached with any noise; use a positive ε")
    show_privacy(read_experiment(spec, set_ or []), _console(), target or TARGETS)


@app.command(
    epilog="Examples:  fedrank audit my.toml  ·  fedrank audit my.toml --set mechanism.noise=1 --out audit.json"
)
def audit(
    spec: Spec,
    set_: Changes = None,
    out: Annotated[Path | None, typer.Option(help="File for all counts, as JSON.")] = None,
) -> None:
    """Attack the messages that a spec would send: what leaks, next to what is promised. Takes some minutes."""
    from fedrank.experiment.audit import audit_experiment
    from fedrank.experiment.spec import read_experiment

    console = _console()
    audit_experiment(read_experiment(spec, set_ or []), console, out)


@app.command(
    epilog="Examples:  fedrank unlearn runs/my --client 9  ·  fedrank unlearn runs/my --client 9 --client 3 --method "
    "fed-eraser --set steps=2 --verify  ·  fedrank unlearn runs/my --client 9 --method retrain --purge-parent"
)
def unlearn(
    folders: RunsFolders,
    client: Annotated[list[int], typer.Option(help="Who leaves, by number from 0; may be repeated.")],
    method: Annotated[str, typer.Option(help="How: see fedrank methods unlearner.")] = "fed-eraser",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one setting of the method; may be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results; they go to OUT/NAME.")] = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="Name of the results; that of the runs and -unlearned if not given.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also retrain without them, with four seeds, and compare.")
    ] = False,
    purge_parent: Annotated[
        bool, typer.Option("--purge-parent", help="Delete the runs' models and what these clients sent.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before deleting.")] = False,
) -> None:
    """Let finished runs forget clients: new runs without them, each with a receipt."""
    from fedrank.experiment.families import build
    from fedrank.experiment.forget import show_forgotten, unlearn_runs
    from fedrank.experiment.toml import parse_override
    from fedrank.unlearn.methods import Unlearner

    changes = {".".join(keys): value for keys, value in map(parse_override, set_ or [])}
    unlearner = build(Unlearner, {"name": method} | changes, "method")  # type: ignore[type-abstract, unused-ignore]
    label = None if name is None else _label(name, "")
    if purge_parent and not yes:
        typer.confirm("Delete the models of these runs, and what the clients sent? This cannot be undone.", abort=True)
    console = _console()
    results = unlearn_runs(folders, client, unlearner, out, label, verify=verify, purge=purge_parent, console=console)
    show_forgotten(results, console)
    _say(console, f"Compare: fedrank report {' '.join(map(str, folders))} {results[0].folder.parent.parent}")


@app.command(epilog="Examples:  fedrank runs runs  ·  fedrank runs runs/quickstart --clean")
def runs(
    folders: RunsFolders,
    clean: Annotated[bool, typer.Option("--clean", help="Delete interrupted, failed and broken runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before deleting.")] = False,
) -> None:
    """Show which runs are finished, interrupted or failed."""
    from fedrank.experiment import store

    console = _console()
    found = store.load_runs(folders)
    store.show_runs(found, console)
    if not clean:
        return
    doomed = [run for run in found if run.status in ("interrupted", "failed", "broken")]
    if not doomed:
        _say(console, "Nothing to clean.")
    elif yes or typer.confirm(f"Delete {_count(len(doomed))}?"):
        for path in store.clean(found):
            _say(console, f"deleted {path}")


@app.command(
    epilog="Examples:  fedrank report runs/quickstart  ·  fedrank report runs/quickstart --out table.csv  ·  "
    "fedrank report runs/a runs/b --out both.html --baseline centralised"
)
def report(
    folders: RunsFolders,
    out: Annotated[Path, typer.Option(help="File to write: .html, .md or .csv.")] = Path("report.html"),
    baseline: Annotated[str | None, typer.Option(help="Variant that the others are tested against.")] = None,
) -> None:
    """Write a report: curves with confidence bands, tables, significance, cost."""
    from fedrank.experiment.report import write_report
    from fedrank.experiment.store import load_runs

    write_report(load_runs(folders), out, baseline=baseline)
    _say(_console(), f"Report: {out}")


ModelFile = Annotated[Path, typer.Argument(help="model.json, or the folder of a finished run.")]
DataFile = Annotated[
    str, typer.Argument(help="A LETOR file (.txt, .gz, .xz), or a name of the catalog (its test part).")
]
Client = Annotated[int | None, typer.Option(help="Whose model, where every client has its own.")]


@app.command(
    epilog="Examples:  fedrank score runs/quickstart/federated/fold-1-seed-1 new.txt > scores.txt  ·  "
    "fedrank score model.json new.txt --trec mine --out mine.run"
)
def score(
    model: ModelFile,
    data: DataFile,
    out: Annotated[Path | None, typer.Option(help="File to write; the screen if not given.")] = None,
    trec: Annotated[str | None, typer.Option(metavar="TAG", help="Write a TREC run file with this tag.")] = None,
    client: Client = None,
) -> None:
    """Score documents: one number a line, in the order of the file; or a TREC run file."""
    from fedrank.experiment.apply import save, score_lines

    lines = score_lines(model, data, trec, client)
    if out is None:
        sys.stdout.writelines(lines)
    else:
        save(lines, out)
        _say(_console(), f"Scores: {out}")


@app.command(
    epilog="Examples:  fedrank evaluate runs/quickstart/federated/fold-1-seed-1 synthetic-mq2007  ·  "
    "fedrank evaluate model.json test.txt --measure ndcg@5 --measure map --per-query values.csv"
)
def evaluate(
    model: ModelFile,
    data: DataFile,
    measure: Annotated[
        list[str] | None, typer.Option(help="Such as ndcg@10, map, mrr@10, err, p@5; may be repeated.")
    ] = None,
    per_query: Annotated[Path | None, typer.Option(help="CSV file for the value of every query.")] = None,
    client: Client = None,
) -> None:
    """Measure a model on judged data, on average and per query."""
    from fedrank.experiment.apply import evaluate_model, save, show_quality

    quality = evaluate_model(model, data, measure or ["ndcg@10", "mrr@10", "map"], client)
    console = _console()
    show_quality(quality, console)
    if per_query is not None:
        save([quality.csv()], per_query)
        _say(console, f"Values per query: {per_query}")


@data_app.command("check", epilog="Examples:  fedrank data check train.txt  ·  fedrank data check S1.txt.xz S2.txt.xz")
def data_check(files: Annotated[list[Path], typer.Argument(help="LETOR files: plain, .gz or .xz.")]) -> None:
    """Is a LETOR file sound? Queries, documents, features, grades, and what is odd."""
    from fedrank.data.check import check_files, show_checks

    checks = check_files(files)
    show_checks(checks, _console())
    if not all(check.sound for check in checks):
        raise typer.Exit(1)


@data_app.command("list", epilog="Example:  FEDRANK_DATA=/data fedrank data list")
def data_list() -> None:
    """Known data sets: what they are, whether they are here, where to get them."""
    from fedrank.data.catalog import show_catalog

    show_catalog(_console())


@logs_app.command(
    "build",
    epilog="Examples:  fedrank logs build --log log.tsv --docs corpus.jsonl --out aol  ·  fedrank logs build --log "
    "clicks.csv.gz --docs corpus.tsv --out mine --users 100 --exclude 71845 --column user=person",
)
def logs_build(
    log: Annotated[
        Path, typer.Option(help="Who searched when for what and clicked which: .tsv, .csv, .jsonl, or AOL's.")
    ],
    docs: Annotated[Path, typer.Option(help="The documents: .jsonl or .tsv with id, title, text and url.")],
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
    published: Annotated[bool, typer.Option("--published", help="Features as the published code has them.")] = False,
    seed: Annotated[int, typer.Option(help="For what is drawn by chance.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="For features; one per core if not given.")] = None,
) -> None:
    """Result lists, features, users and times of a log. A build that was interrupted continues."""
    from fedrank.data.build_log import LogBuild, build_log, notes, progress_bar
    from fedrank.data.lists import ListRules

    columns = dict(_pair(text) for text in column or [])
    how = LogBuild(
        ListRules(window=window, short=short), users, least, tuple(exclude or ()), columns, match, published, seed, stem
    )
    console = _console()
    try:
        with progress_bar(console) as progress:
            built = build_log(log, docs, out, how, threads=threads or os.cpu_count() or 1, progress=progress)
    except KeyboardInterrupt:
        _say(console, "Stopped; nothing is lost: run the same command to continue.")
        raise typer.Exit(130) from None
    for note in notes(built.facts):
        _say(console, note)
    _say(console, f"Data set: {out}")
    _say(console, f"Numbers and a picture: fedrank logs describe {out} --out log.png")


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
    from fedrank.data.describe_log import describe_log, description_as_json, draw_log, show_log
    from fedrank.data.logs import load_log

    console = _console()
    found = describe_log(load_log(folder))
    show_log(found, console)
    if out is not None:
        draw_log(found, out)
        _say(console, f"Picture: {out}")
    if numbers is not None:
        numbers.write_text(description_as_json(found), encoding="utf-8")
        _say(console, f"Numbers: {numbers}")


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
    console = _console()
    _say(console, f"Log: {log}")
    _say(console, f"Documents: {docs}")
    _say(console, f"Next: fedrank logs build --log {log} --docs {docs} --out {out / 'data'}")


@app.command(epilog="Examples:  fedrank methods  ·  fedrank methods aggregator  ·  fedrank methods learner pdgd")
def methods(
    family: Annotated[str | None, typer.Argument(help="Only this family, such as learner.")] = None,
    name: Annotated[str | None, typer.Argument(help="Only this method, with all its settings.")] = None,
) -> None:
    """Every learner, aggregator, user and measure, with its settings and one sentence."""
    from fedrank.experiment.families import show_methods

    show_methods(_console(), family, name)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        from fedrank import __version__

        typer.echo(f"fedrank {__version__}")
        raise typer.Exit


def _console() -> Console:
    from rich.console import Console

    return Console()


def _say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is: paths are not cut, brackets are not markup."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs:,} runs"


def _pair(text: str) -> tuple[str, str]:
    """The two sides of FIELD=NAME."""
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError(f"--column {text!r}: write FIELD=NAME, such as user=AnonID")
    return name, value


def _label(name: str | None, spec: str) -> str:
    """Where below OUT the results lie: the given name, or that of the spec."""
    if name is None:
        path = Path(spec)
        return re.sub(r"[^\w.+=,-]+", "-", path.stem).strip("-.") or "experiment" if path.is_file() else spec
    parts = name.split("/")
    if not all(re.fullmatch(r"[\w.+=,-]+", part) and part.strip(".") for part in parts):
        raise ValueError(f"--name {name!r} does not name a folder below OUT; use letters, digits, - and _")
    return name


def main() -> None:
    """Errors that a user can mend are one clear message; anything else is a bug and shows where."""
    try:
        app()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except (ValueError, OSError, ImportError) as problem:
        if os.environ.get("FEDRANK_DEBUG"):
            raise
        typer.echo(f"fedrank: {_message(problem)}", err=True)
        raise SystemExit(2) from None


def _message(problem: Exception) -> object:
    if isinstance(problem, OSError) and problem.strerror and problem.filename:
        return f"{problem.filename}: {problem.strerror}"
    return problem
