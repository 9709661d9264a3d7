"""`fedrank new`, `run`, `tune`, `report`, `watch` and `methods`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fedrank.cli.config import Config, with_settings
from fedrank.cli.shared import (
    AsJson,
    Browser,
    Changes,
    Name,
    Port,
    Quiet,
    RunsFolders,
    Spec,
    Threads,
    Workers,
    Yes,
    count_runs,
    open_page,
    print_failures,
    print_if_compiling,
    print_json,
    print_line,
    print_result,
    print_sections,
    progress,
    results_name,
    run_and_print,
)
from fedrank.files import write_atomic

experiments_app = typer.Typer()  # its commands are on the top level
PANEL = "Experiments"
DEMO, DEMO_PAGE = "demo", Path("demo.html")


@experiments_app.command(
    rich_help_panel=PANEL, epilog="Examples:  fedrank new my.toml  ·  fedrank new forests.toml --kind trees"
)
def new(
    file: Annotated[Path, typer.Argument(help="Spec to write, such as my.toml.")],
    kind: Annotated[str, typer.Option(help="Kind of experiment: federated, async, silo or trees.")] = "federated",
) -> None:
    """Write a commented spec, and a JSON schema with which editors complete its keys."""
    from fedrank.experiments.spec.new_spec import NEEDED, SCHEMA, blank_spec, schema_text

    if file.suffix != ".toml":
        raise ValueError(f"the name of a spec must end in .toml (got {file}); use {file}.toml")
    if file.exists():
        raise FileExistsError(f"{file} exists and is not overwritten; choose another name")
    text = blank_spec(kind, SCHEMA)
    write_atomic(file.with_name(SCHEMA), schema_text())
    write_atomic(file, text)
    print_line(f"Spec: {file}")
    print_line(f"Schema for editors: {file.with_name(SCHEMA)}")
    if needed := NEEDED.get(kind):
        print_line(f"First: {needed}")
    print_line(f"Run it: fedrank run {file}")


@dataclass(frozen=True)
class RunOptions:
    """Further options of `run`."""

    threads: Threads = 1  # threads per run; useful only with thousands of clients
    on: str | None = None  # executor on other machines, dask://HOST:PORT or slurm; OUT must be the same path there
    sbatch: list[str] | None = None  # KEY=VALUE: with --on slurm, option of each job, as time=240; may be repeated


@experiments_app.command(
    rich_help_panel=PANEL,
    epilog="Examples:  fedrank run quickstart  ·  fedrank run demo  ·  "
    "fedrank run my.toml --short  ·  fedrank run my.toml --set learner.rate=0.05 --workers 2"
    "  ·  fedrank run my.toml --on dask://node7:8786  ·  fedrank run my.toml --on slurm --sbatch partition=short",
)
@with_settings
def run(
    spec: Spec,
    out: Annotated[Path, typer.Option(help="Folder for the results; they are written to OUT/NAME.")] = Path("runs"),
    name: Name = None,
    set_: Changes = None,
    workers: Workers = None,
    device: Annotated[
        str,
        typer.Option(
            help="Device of the clients: cpu, cuda or auto (identical results), or cuda-float16 (features of two "
            "bytes, which changes results)."
        ),
    ] = "cpu",
    short: Annotated[
        bool, typer.Option("--short", help="Run only the first fold and seed. Without it, the others are added later.")
    ] = False,
    quiet: Quiet = False,
    config: Config = None,
    *,
    more: RunOptions,
) -> None:
    """Run an experiment. Finished runs are skipped; interrupted runs resume.

    `fedrank run demo` trains, attacks and unlearns in two minutes and writes demo.html.
    """
    from fedrank.experiments.spec.source import read_spec

    label = results_name(name, spec)
    on, threads, sbatch = more.on, more.threads, more.sbatch or []
    if on is None and sbatch:
        raise ValueError(f"--sbatch {sbatch[0]} needs --on slurm; add it, or remove --sbatch")
    if spec == DEMO and not Path(spec).is_file():
        if set_ or name or on or short or threads != 1 or device != "cpu":
            raise ValueError("fedrank run demo takes only --out, --quiet and --config; remove the other options")
        _demo(out, quiet)
        return
    grid = read_spec(spec, set_ or [])
    if short:
        fold, seed = grid.repeats()[0]
        grid = read_spec(spec, [*(set_ or []), f"data.folds=[{fold}]", f"seeds=[{seed}]"])
    if on is None:
        run_and_print(grid, label, out, workers, threads, device, quiet=quiet)
        return
    from fedrank.experiments.runner.executors import open_executor

    with open_executor(on, out / label, sbatch, threads, device) as found:
        run_and_print(grid, label, out, workers, threads, device, found, quiet)


def _demo(out: Path, quiet: bool) -> None:
    from fedrank.experiments.builtin.demo import DemoStopped, demo

    if not quiet:
        print_if_compiling()
    try:
        with progress(quiet) as tell:
            demo(out, DEMO_PAGE, lambda text: print_line(text, style="bold"), tell)
    except DemoStopped:
        print_line("Stopped; run the same command to resume.")
        raise typer.Exit(130) from None
    print_line(f"Report with charts: {DEMO_PAGE}")


@experiments_app.command(
    rich_help_panel=PANEL,
    epilog="Examples:  fedrank tune quickstart --over 'learner.rate=[0.03,0.1,0.3]'  ·  then: fedrank run "
    "runs/quickstart-tuning/tuned.toml",
)
def tune(
    spec: Spec,
    over: Annotated[
        list[str], typer.Option(metavar="KEY=[VALUES]", help="Setting to tune and its values; may be repeated.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results; they are written to OUT/NAME-tuning.")] = Path(
        "runs"
    ),
    name: Name = None,
    set_: Changes = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Select settings on the validation queries, separately for each variant."""
    from fedrank.experiments.report.run_output import about_tuning
    from fedrank.experiments.runner.tune import tune
    from fedrank.experiments.spec.source import read_experiment
    from fedrank.toml import parse_override

    grid = read_experiment(spec, set_ or [])
    tried_over = {".".join(keys): values for keys, values in map(parse_override, over)}
    for key, values in tried_over.items():
        if not isinstance(values, list):
            raise ValueError(f"--over {key} must list the values to try, such as '{key}=[0.03,0.1,0.3]' (got {values})")
    with progress(quiet) as tell:
        results, tried, path = tune(
            grid, results_name(name, spec), tried_over, out, workers=workers or os.cpu_count() or 1, progress=tell
        )
    print_failures(results.failed)
    if path is None:
        print_line("Stopped before all runs finished, so no setting is selected; run the same command again.")
        raise typer.Exit(130)
    print_sections(about_tuning(tried, grid.measures[0]))
    print_line(f"All results: fedrank report {path.parent}")
    print_line(f"Run the tuned experiment: fedrank run {path}")


@experiments_app.command(
    rich_help_panel=PANEL,
    epilog="Examples:  fedrank report runs/quickstart  ·  fedrank report runs/quickstart --out table.csv  ·  "
    "fedrank report runs/a runs/b --out both.html --baseline centralised --figures paper  ·  "
    "fedrank report runs/quickstart --to mlflow:sqlite:///mlflow.db",
)
def report(
    folders: RunsFolders,
    out: Annotated[
        Path | None, typer.Option(help="File to write: .html, .md or .csv. Default: report.html, or none with --to.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Variant that the others are tested against; EXPERIMENT/VARIANT if there are several experiments."
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for charts (.svg, .pdf) and tables (.tex) for a paper.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="Send finished runs to a tracker: mlflow, mlflow:URI, wandb or wandb:PROJECT."),
    ] = None,
) -> None:
    """Write a report on one or several experiments: curves, tables, significance tests, queries, cost."""
    from fedrank.experiments.report.write import write_report
    from fedrank.experiments.runner.runs import load_runs

    runs = load_runs(folders)
    if to is not None:
        from fedrank.experiments.report.trackers import send_runs

        sent = send_runs(runs, to)
        before = f", which had {count_runs(sent.known)} already" if sent.known else ""
        print_line(f"Sent {count_runs(sent.new)} to {sent.place}{before}")
        if out is None and baseline is None and figures is None:
            return
    out = out or Path("report.html")
    write_report(runs, out, baseline=baseline, figures=figures)
    print_line(f"Report: {out}")
    if figures is not None:
        print_line(f"Figures and tables: {figures}")


@experiments_app.command(
    rich_help_panel=PANEL,
    epilog="Examples:  fedrank watch runs  ·  fedrank watch runs/my runs/other --port 8080 --no-browser  ·  "
    "fedrank watch runs --list  ·  fedrank watch runs/my --list --clean",
)
def watch(
    folders: RunsFolders,
    port: Port = 0,
    browser: Browser = True,
    list_: Annotated[bool, typer.Option("--list", help="Print the runs and their state instead.")] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="With --list: delete interrupted, failed and damaged runs.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show runs in the browser while they train: progress, curves, failures, comparisons and reports."""
    if list_:
        _list_runs(folders, clean, yes, as_json)
        return
    for option, given in (("--clean", clean), ("--yes", yes), ("--json", as_json)):
        if given:
            raise ValueError(f"{option} needs --list; add it, or remove {option}")
    from fedrank.experiments.watch.web import watch

    watch(folders, port, lambda link: open_page(link, browser, "closes the page; the runs continue"))
    print_line("Closed; the runs continue.")


def _list_runs(folders: list[Path], clean: bool, yes: bool, as_json: bool) -> None:
    from fedrank.experiments.report.run_output import about_runs
    from fedrank.experiments.runner.runs import clean as delete
    from fedrank.experiments.runner.runs import load_runs, run_facts

    listed = load_runs(folders)
    if as_json:
        if clean:
            raise ValueError("--json cannot be combined with --clean; remove one of them")
        print_json([run_facts(run) for run in listed.checked()])
        return
    print_sections(about_runs(listed))
    if not clean:
        return
    unfinished = [run for run in listed if run.status in ("interrupted", "failed", "broken")]
    if not unfinished:
        print_line("No runs to delete.")
    elif yes or typer.confirm(f"Delete {count_runs(len(unfinished))}?"):
        for path in delete(listed):
            print_line(f"Deleted {path}{_except_ledgers(path)}")


def _except_ledgers(folder: Path) -> str:
    """A remark on the ledger of a deleted run, which stays."""
    from fedrank.experiments.runner.runs import ledgers_of_run
    from fedrank.privacy.population import Account, totals

    ledgers = ledgers_of_run(folder)
    if not ledgers:
        return ""
    sums = totals([account for account in map(Account.read, ledgers) if account is not None])
    return (
        f", except its ledger: {sums['participations']:,} participations of {sums['people']:,} people stay recorded "
        f"and count if the run is repeated (to delete them: fedrank privacy ledger {folder} --forget --because REASON)"
    )


@experiments_app.command(
    rich_help_panel=PANEL,
    epilog="Examples:  fedrank methods  ·  fedrank methods aggregator  ·  fedrank methods fltrust",
)
def methods(
    word: Annotated[
        str | None,
        typer.Argument(help="Family, such as learner; or a method, a word of its description, or its name in a paper."),
    ] = None,
    name: Annotated[str | None, typer.Argument(help="Method of the family.")] = None,
    as_json: AsJson = False,
) -> None:
    """List learners, aggregators, click models, metrics and all other methods, with their settings."""
    from fedrank.experiments.report.run_output import about_methods
    from fedrank.experiments.spec.listing import search

    found = search(word, name)
    print_result(as_json, lambda: found, lambda: about_methods(found))
