"""The command: each reads files, calls one function, writes files, and prints where they lie.

Everything heavy is imported inside the commands, so that `fedrank --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_group

from fedrank import plugins
from fedrank.cli.estimate import estimate
from fedrank.cli.ledger import ledger_app
from fedrank.cli.logs import logs_app
from fedrank.cli.rights import forget_person, impact
from fedrank.cli.shared import (
    AnswerFile,
    AsJson,
    Changes,
    Client,
    DataFile,
    ModelFile,
    Name,
    RunsFolders,
    Spec,
    Trust,
    Variants,
    Workers,
    count_runs,
    do_experiment,
    label_of,
    new_console,
    print_failures,
    print_json,
    print_line,
    print_note,
    print_sections,
    progress,
)
from fedrank.cli.silo import silo_app
from fedrank.cli.trees import trees_app
from fedrank.cli.watch import watch
from fedrank.files import told, write_atomic

# One thread for each matrix product: whole runs go side by side instead. Read when NumPy is first imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

app = typer.Typer(
    name="fedrank",
    help="Federated learning to rank: train one ranker together, without moving documents, queries or clicks.",
    epilog="First steps:  fedrank run quickstart  ·  fedrank report runs/quickstart --out report.html",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
# Under which heading of `fedrank --help` a command stands.
EXPERIMENTS, MODELS, DATA = "Experiments", "Models", "Data"
PRIVACY, TOGETHER, SEARCH = "Privacy and rights", "Between organisations", "Search engines and your own documents"
data_app = typer.Typer(
    help="Data sets: which are known, which are here, and whether a file is sound.", no_args_is_help=True
)
app.add_typer(data_app, name="data", rich_help_panel=DATA)
app.add_typer(logs_app, name="logs", rich_help_panel=DATA)
app.add_typer(silo_app, name="silo", rich_help_panel=TOGETHER)
app.add_typer(trees_app, name="trees", rich_help_panel=MODELS)
app.add_typer(ledger_app, name="ledger", rich_help_panel=PRIVACY)
# fedrank's own applications, as entry points like those of plug-ins, and their headings.
APPLICATIONS = {
    EntryPoint("deploy", "fedrank.cli.deploy:deploy_app", plugins.COMMANDS): TOGETHER,
    EntryPoint("engine", "fedrank.cli.engine:engine_app", plugins.COMMANDS): SEARCH,
    EntryPoint("search", "fedrank.cli.search:search_app", plugins.COMMANDS): SEARCH,
    EntryPoint("trial", "fedrank.cli.trial:trial_app", plugins.COMMANDS): SEARCH,
}


@app.command(
    rich_help_panel=EXPERIMENTS,
    epilog="Examples:  fedrank new my.toml  ·  fedrank new forests.toml --kind trees",
)
def new(
    file: Annotated[Path, typer.Argument(help="The spec to write, such as my.toml.")],
    kind: Annotated[str, typer.Option(help="federated, async, silo or trees.")] = "federated",
) -> None:
    """Write a commented spec to begin with, and beside it a JSON schema, by which editors complete its keys."""
    from fedrank.experiments.spec.blank import NEEDED, SCHEMA, blank_spec
    from fedrank.experiments.spec.schema import schema_text

    if file.suffix != ".toml":
        raise ValueError(f"{file} does not end in .toml, so that no editor knows what it is; name it {file}.toml")
    if file.exists():
        raise FileExistsError(f"{file} is there already, and nothing is overwritten; choose another name")
    text = blank_spec(kind, SCHEMA)
    write_atomic(file.with_name(SCHEMA), schema_text())
    write_atomic(file, text)
    console = new_console()
    print_line(console, f"Spec: {file}")
    print_line(console, f"For editors: {file.with_name(SCHEMA)}")
    if needed := NEEDED.get(kind):
        print_line(console, f"First: {needed}")
    print_line(console, f"Do it: fedrank run {file}")


@app.command(
    rich_help_panel=EXPERIMENTS,
    epilog="Examples:  fedrank run quickstart  ·  fedrank run my.toml --set learner.rate=0.05 --workers 2  ·  "
    "fedrank run quickstart --set rounds=100 --name short  ·  fedrank run my.toml --on dask://node7:8786  ·  "
    "fedrank run my.toml --on slurm --sbatch partition=short --sbatch mem=4G",
)
def run(
    spec: Spec,
    out: Annotated[Path, typer.Option(help="Folder for results; they go to OUT/NAME.")] = Path("runs"),
    name: Name = None,
    set_: Changes = None,
    workers: Workers = None,
    threads: Annotated[
        int, typer.Option(min=1, max=1_024, help="Threads within a run; pays only for thousands of clients.")
    ] = 1,
    device: Annotated[
        str,
        typer.Option(
            help="Where clients learn: cpu, cuda (a graphics card), or auto; results are the same bytes. cuda-float16 "
            "rounds features to two bytes, and gives the results of that."
        ),
    ] = "cpu",
    on: Annotated[
        str | None,
        typer.Option(
            help="Engine that does the runs: dask://HOST:PORT, or slurm. It must see OUT under the same path."
        ),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="With --on slurm: an option of each job, such as time=240 (minutes)."),
    ] = None,
) -> None:
    """Do an experiment. Finished runs are skipped, interrupted ones resume."""
    from fedrank.experiments.spec.source import read_spec

    label = label_of(name, spec)
    if on is None and sbatch:
        raise ValueError(f"--sbatch {sbatch[0]} is an option of Slurm; also say --on slurm, or leave it out")
    grid = read_spec(spec, set_ or [])
    if on is None:
        do_experiment(grid, label, out, workers, threads, device)
        return
    from fedrank.experiments.runner.executors import open_executor

    with open_executor(on, out / label, sbatch or [], threads, device) as found:
        do_experiment(grid, label, out, workers, threads, device, found)


@app.command(
    rich_help_panel=EXPERIMENTS,
    epilog="Examples:  fedrank tune quickstart --over learner.rate=[0.03,0.1,0.3]  ·  then: fedrank run "
    "runs/quickstart-tuning/tuned.toml",
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
    from fedrank.experiments.report.command_output import about_tuning
    from fedrank.experiments.runner.tune import tune
    from fedrank.experiments.spec.source import read_experiment
    from fedrank.toml import parse_override

    grid = read_experiment(spec, set_ or [])
    tried_over = {".".join(keys): values for keys, values in map(parse_override, over)}
    for key, values in tried_over.items():
        if not isinstance(values, list):
            raise ValueError(f"--over {key}={values}: list the values to try, such as {key}=[0.03,0.1,0.3]")
    console = new_console()
    with progress(console) as tell:
        results, tried, path = tune(
            grid, label_of(name, spec), tried_over, out, workers=workers or os.cpu_count() or 1, progress=tell
        )
    print_failures(results.failed, console)
    if path is None:
        print_line(console, "Nothing is chosen while runs are interrupted: run the same command again.")
        raise typer.Exit(130)
    print_sections(about_tuning(tried, grid.measures[0]), console)
    print_line(console, f"All that was tried: fedrank report {path.parent}")
    print_line(console, f"The tuned experiment: fedrank run {path}")


@app.command(
    rich_help_panel=EXPERIMENTS,
    epilog="Examples:  fedrank clients quickstart  ·  fedrank clients my.toml --out clients.png --set clients.count=20",
)
def clients(
    spec: Spec,
    out: Annotated[Path | None, typer.Option(help="Picture to draw: .png, .svg or .pdf.")] = None,
    set_: Changes = None,
    fold: Annotated[int | None, typer.Option(min=1, help="Which fold; the spec's first if not given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which seed; the spec's first if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Who holds what: queries, documents and grades of each client, and how different clients are."""
    from fedrank.experiments.report.command_output import about_clients
    from fedrank.experiments.runner.client_summary import describe_clients
    from fedrank.experiments.spec.source import read_experiment

    console = new_console()
    who = describe_clients(read_experiment(spec, set_ or []), fold, seed)
    if as_json:
        print_json(who)
    else:
        print_sections(about_clients(who), console)
    if out is not None:
        from fedrank.experiments.report.client_figures import draw_clients

        draw_clients(who, out)
        if not as_json:
            print_line(console, f"Picture: {out}")


@app.command(
    rich_help_panel=PRIVACY,
    epilog="Examples:  fedrank privacy my.toml  ·  fedrank privacy thesis/fig-3-6 --target 2 --target 8  ·  "
    "fedrank privacy my.toml --set mechanism.noise=20 --out privacy.md",
)
def privacy(
    spec: Spec,
    set_: Changes = None,
    target: Annotated[
        list[float] | None, typer.Option(help="ε to find the noise for; may be repeated. 1, 2, 4 and 8 if not given.")
    ] = None,
    variant: Variants = None,
    out: AnswerFile = None,
    runs: Annotated[
        Path, typer.Option(help="The folder that runs go to: ledgers of a population lie in RUNS/populations.")
    ] = Path("runs"),
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Before a run: what would it spend or give away, to whom, and which noise would a target need?"""
    from fedrank.experiments.report.command_output import about_privacy
    from fedrank.experiments.report.write import answer_files, write_answer
    from fedrank.experiments.runner.disclosures import as_facts
    from fedrank.experiments.runner.privacy import TARGETS
    from fedrank.experiments.spec.source import read_spec

    for value in target or []:
        if not value > 0:
            raise ValueError(f"--target {value:g} cannot be reached with any noise; use a positive ε")
    files, console = answer_files(out, "privacy"), new_console()
    grid = read_spec(spec, set_ or [], trust=trust).only(variant or [])
    if as_json:
        if files:
            raise ValueError("--json prints what --out would write; leave out one of them")
        print_json(as_facts(grid, target or TARGETS, runs))
        return
    with progress(console) as tell:
        sections = about_privacy(grid, target or TARGETS, tell, runs)
    print_sections(sections, console)
    write_answer(files, sections, lambda: as_facts(grid, target or TARGETS, runs))
    for file in files:
        print_line(console, f"Written: {file}")


@app.command(
    rich_help_panel=PRIVACY,
    epilog="Examples:  fedrank audit my.toml  ·  fedrank audit quickstart --variant federated --out audit.md  ·  "
    "fedrank audit my.toml --set mechanism.noise=1 --out audit.json",
)
def audit(
    spec: Spec,
    set_: Changes = None,
    variant: Variants = None,
    messages: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000_000, help="Messages to read clicks from; as many as take a minute if not given."
        ),
    ] = None,
    out: AnswerFile = None,
) -> None:
    """Attack what would leave clients, silos or growers of forests: what leaks, next to what is promised."""
    from fedrank.experiments.report.command_output import about_audit
    from fedrank.experiments.report.write import answer_files, write_answer
    from fedrank.experiments.runner.audit import as_facts, audit_experiment
    from fedrank.experiments.spec.source import read_spec

    files, console = answer_files(out, "audit"), new_console()
    grid = read_spec(spec, set_ or []).only(variant or [])
    with progress(console) as tell:
        findings = audit_experiment(grid, messages=messages, progress=tell)
    sections = about_audit(findings, grid)
    print_sections(sections, console)
    write_answer(files, sections, lambda: as_facts(findings, grid))
    for file in files:
        print_line(console, f"Written: {file}")


@app.command(
    rich_help_panel=PRIVACY,
    epilog="Examples:  fedrank unlearn runs/my --client 9  ·  fedrank unlearn runs/my --client 9 --client 3 --method "
    "fed-eraser --set steps=2 --verify  ·  fedrank unlearn runs/my --client 9 --method retrain --purge-parent",
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
    trust: Trust = False,
) -> None:
    """Let finished runs forget clients: new runs without them, each with a receipt."""
    from fedrank.experiments.report.command_output import about_forgotten
    from fedrank.experiments.runner.unlearning import unlearn_runs
    from fedrank.experiments.spec.families import build
    from fedrank.toml import parse_override
    from fedrank.unlearning.methods import Unlearner

    changes = {".".join(keys): value for keys, value in map(parse_override, set_ or [])}
    unlearner = build(Unlearner, {"name": method} | changes, "method")
    label = None if name is None else label_of(name, "")
    if purge_parent and not yes:
        typer.confirm("Delete the models of these runs, and what the clients sent? This cannot be undone.", abort=True)
    console = new_console()
    with progress(console) as tell:
        results = unlearn_runs(
            folders, client, unlearner, out, label, verify=verify, purge=purge_parent, trust=trust, progress=tell
        )
    print_sections(about_forgotten(results), console)
    print_line(console, f"Compare: fedrank report {' '.join(map(str, folders))} {results[0].folder.parent.parent}")


@app.command(
    rich_help_panel=EXPERIMENTS, epilog="Examples:  fedrank runs runs  ·  fedrank runs runs/quickstart --clean"
)
def runs(
    folders: RunsFolders,
    clean: Annotated[bool, typer.Option("--clean", help="Delete interrupted, failed and broken runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before deleting.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which runs are finished, interrupted or failed."""
    from fedrank.experiments.report.command_output import about_runs
    from fedrank.experiments.runner.runs import clean as delete
    from fedrank.experiments.runner.runs import load_runs, run_facts

    console = new_console()
    listed = load_runs(folders)
    if as_json:
        if clean:
            raise ValueError("--json only shows runs; leave out --clean")
        print_json([run_facts(run) for run in listed.checked()])
        return
    print_sections(about_runs(listed), console)
    if not clean:
        return
    doomed = [run for run in listed if run.status in ("interrupted", "failed", "broken")]
    if not doomed:
        print_line(console, "Nothing to clean.")
    elif yes or typer.confirm(f"Delete {count_runs(len(doomed))}?"):
        for path in delete(listed):
            print_line(console, f"deleted {path}{_but_ledgers(path)}")


def _but_ledgers(folder: Path) -> str:
    """What of a deleted run stays: who was charged for it."""
    from fedrank.experiments.runner.runs import ledgers_of_run
    from fedrank.privacy.population import Account, totals

    kept = ledgers_of_run(folder)
    if not kept:
        return ""
    said = totals([account for account in map(Account.read, kept) if account is not None])
    return (
        f", except its ledger: {said['participations']:,} participations of {said['people']:,} people stay on record "
        f"and count when it is run again (to delete them: fedrank ledger forget {folder})"
    )


@app.command(
    rich_help_panel=EXPERIMENTS,
    epilog="Examples:  fedrank report runs/quickstart  ·  fedrank report runs/quickstart --out table.csv  ·  "
    "fedrank report runs/a runs/b --out both.html --baseline centralised --figures paper",
)
def report(
    folders: RunsFolders,
    out: Annotated[Path, typer.Option(help="File to write: .html, .md or .csv.")] = Path("report.html"),
    baseline: Annotated[
        str | None, typer.Option(help="Variant that the others are tested against; EXPERIMENT/VARIANT of several.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write charts (.svg, .pdf) and tables (.tex) for a paper.")
    ] = None,
) -> None:
    """Write one report on one or several experiments: curves, tables, significance, queries, cost."""
    from fedrank.experiments.report.write import write_report
    from fedrank.experiments.runner.runs import load_runs

    write_report(load_runs(folders), out, baseline=baseline, figures=figures)
    console = new_console()
    print_line(console, f"Report: {out}")
    if figures is not None:
        print_line(console, f"Figures and tables: {figures}")


@app.command(
    rich_help_panel=MODELS,
    epilog="Examples:  fedrank score runs/quickstart/federated/fold-1-seed-1 new.txt > scores.txt  ·  "
    "fedrank score model.json new.txt --trec mine --out mine.run",
)
def score(
    model: ModelFile,
    data: DataFile,
    out: Annotated[Path | None, typer.Option(help="File to write; the screen if not given.")] = None,
    trec: Annotated[str | None, typer.Option(metavar="TAG", help="Write a TREC run file with this tag.")] = None,
    client: Client = None,
) -> None:
    """Score documents: one number a line, in the order of the file; or a TREC run file."""
    from fedrank.experiments.runner.scoring import score_lines

    lines = score_lines(model, data, trec, client, print_note)
    if out is None:
        sys.stdout.writelines(lines)
    else:
        write_atomic(out, lines)
        print_line(new_console(), f"Scores: {out}")


@app.command(
    rich_help_panel=MODELS,
    epilog="Examples:  fedrank evaluate runs/quickstart/federated/fold-1-seed-1 synthetic-mq2007  ·  "
    "fedrank evaluate model.json test.txt --measure ndcg@5 --measure map --per-query values.csv",
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
    from fedrank.experiments.report.command_output import about_quality
    from fedrank.experiments.runner.scoring import evaluate_model

    quality = evaluate_model(model, data, measure or ["ndcg@10", "mrr@10", "map"], client, print_note)
    console = new_console()
    print_sections(about_quality(quality), console)
    if per_query is not None:
        write_atomic(per_query, quality.csv())
        print_line(console, f"Values per query: {per_query}")


@app.command(
    rich_help_panel=MODELS,
    epilog="Examples:  fedrank export runs/mine/only/fold-1-seed-1 --to opensearch --out model.json  ·  fedrank export "
    "forest.txt --to solr --name mine --feature-names names.txt --out model.json",
)
def export(
    model: ModelFile,
    to: Annotated[str, typer.Option(help="opensearch, elasticsearch, solr or onnx.")],
    out: Annotated[Path, typer.Option(help="File to write.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the model in the engine; that of the file if not given.")
    ] = None,
    feature_names: Annotated[
        Path | None, typer.Option(help="What the engine calls the features, one a line; the model's own if not given.")
    ] = None,
    client: Client = None,
    store: Annotated[
        str | None, typer.Option(help="Solr's store that has the features; the usual if not given.")
    ] = None,
) -> None:
    """Write a ranker as a search engine reads it, and check that the engine would score alike."""
    from fedrank.trees.export import export as write

    done = write(model, to, out, name=name, feature_names=feature_names, client=client, tell=print_note, store=store)
    console = new_console()
    print_line(console, f"{done.what}: {done.path}")
    print_line(console, done.next)
    if done.needs:
        print_note(done.needs)


@data_app.command("check", epilog="Examples:  fedrank data check train.txt  ·  fedrank data check S1.txt.xz S2.txt.xz")
def data_check(files: Annotated[list[Path], typer.Argument(help="LETOR files: plain, .gz or .xz.")]) -> None:
    """Is a LETOR file sound? Queries, documents, features, grades, and what is odd."""
    from fedrank.data.check import check_files
    from fedrank.experiments.report.command_output import about_checks

    checks = check_files(files)
    print_sections(about_checks(checks), new_console())
    if not all(check.sound for check in checks):
        raise typer.Exit(1)


@data_app.command("list", epilog="Example:  FEDRANK_DATA=/data fedrank data list")
def data_list(as_json: AsJson = False) -> None:
    """Known data sets and text collections: what they are, whether they are here, where to get them."""
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


@app.command(rich_help_panel=EXPERIMENTS, epilog="Example:  fedrank demo --out runs --report demo.html")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for its runs.")] = Path("runs"),
    report: Annotated[Path, typer.Option(help="The story as a web page.")] = Path("demo.html"),
) -> None:
    """Two minutes: a federation learns, is attacked and forgets, and its messages are read."""
    from fedrank.experiments.builtin.demo import DemoStopped, demo

    console = new_console()
    try:
        with progress(console) as tell:
            demo(out, report, lambda text: print_line(console, text, style="bold"), tell)
    except DemoStopped:
        print_line(console, "Stopped; nothing is lost: run the same command to resume.")
        raise typer.Exit(130) from None
    print_line(console, f"The story in pictures: {report}")


@app.command(
    rich_help_panel=EXPERIMENTS,
    epilog="Examples:  fedrank methods  ·  fedrank methods aggregator  ·  fedrank methods fltrust",
)
def methods(
    word: Annotated[
        str | None,
        typer.Argument(help="Only this family, such as learner; or a method, or what it or its paper is called."),
    ] = None,
    name: Annotated[str | None, typer.Argument(help="Only this method of the family.")] = None,
    as_json: AsJson = False,
) -> None:
    """Every learner, aggregator, user and measure, with its settings and one sentence."""
    from fedrank.experiments.report.command_output import about_methods
    from fedrank.experiments.spec.listing import search

    found = search(word, name)
    if as_json:
        print_json(found)
    else:
        print_sections(about_methods(found), new_console())


app.command(
    "forget-person",
    rich_help_panel=PRIVACY,
    epilog="Examples:  fedrank forget-person 71845 --data aol --plan  ·  fedrank forget-person 71845 --data aol --out "
    "receipt.json",
)(forget_person)
app.command(
    rich_help_panel=PRIVACY,
    epilog="Examples:  fedrank impact my.toml --out dpia.md  ·  fedrank impact runs/my --out dpia.md",
)(impact)
app.command(
    rich_help_panel=MODELS,
    epilog="Examples:  fedrank estimate runs/mine/only/fold-1-seed-1 --log mylog  ·  fedrank estimate model.json --log "
    "mylog --out estimate.png  ·  fedrank estimate model.json --log mylog --json",
)(estimate)
app.command(
    rich_help_panel=EXPERIMENTS,
    epilog="Examples:  fedrank watch runs  ·  fedrank watch runs/my runs/other --port 8080 --no-browser",
)(watch)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        from fedrank import __version__

        typer.echo(f"fedrank {__version__}")
        raise typer.Exit


def _add_applications() -> None:
    """Commands of applications and of other packages; a plug-in that cannot be loaded costs one line."""
    taken = {group.name for group in app.registered_groups} | {entry.name for entry in APPLICATIONS}
    taken |= {one.name or one.callback.__name__.replace("_", "-") for one in app.registered_commands if one.callback}
    for entry, panel in APPLICATIONS.items():
        app.add_typer(entry.load(), name=entry.name, rich_help_panel=panel)
    for entry in plugins.commands():
        try:
            if entry.name in taken:
                raise ValueError(f"{entry.name} is a command of fedrank already")
            added = entry.load()
            if not isinstance(added, typer.Typer):
                raise TypeError(f"it is a {type(added).__name__}, and must be a typer.Typer")
            get_group(added)  # commands that cannot be built would break all others
            app.add_typer(added, name=entry.name, rich_help_panel="Plug-ins")
            taken.add(entry.name)
        except (Exception, SystemExit) as problem:  # whatever the code of others may raise while it is imported
            reason = " ".join(str(problem).split())[:200]
            typer.echo(f"note: the plug-in {entry.name} = {entry.value} is ignored: {reason}", err=True)


_add_applications()


# Commands and options of version 0.1, and what they are called now.
RENAMED = {
    ("logs", "places"): "propensities",
    ("methods", "place"): "placement",
    ("methods", "user"): "click-model",
    ("logs", "build", "--least"): "--min-interactions",
    ("logs", "build", "--places"): "--positions",
    ("trial", "plan", "--places"): "--positions",
    ("trees", "grow", "--least"): "--min-data-in-leaf",
}


def _refuse_earlier_names(words: Sequence[str]) -> None:
    for (*command, last), now in RENAMED.items():
        after = list(words[len(command) :])
        given = (word.split("=")[0] for word in after) if last.startswith("--") else after[:1]
        if list(words[: len(command)]) == command and last in given:
            raise ValueError(f"fedrank {' '.join(command)}: {last} is called {now} since version 0.2; use {now}")


def main() -> None:
    """Errors that a user can mend are one clear message; anything else is a bug and shows where."""
    try:
        _refuse_earlier_names(sys.argv[1:])
        app()
    except KeyboardInterrupt:  # before or after what a command does, which says itself how it goes on
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except (ValueError, OSError, ImportError) as problem:
        if os.environ.get("FEDRANK_DEBUG"):
            raise
        from fedrank.experiments.report.terminal import printable

        typer.echo(f"fedrank: {printable(told(problem))}", err=True)
        raise SystemExit(2) from None
