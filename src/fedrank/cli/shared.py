"""What the commands share: how they speak, and options that mean the same everywhere."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from fedrank.experiment.spec import Question

FAILED = 1  # how a command ends whose runs failed

Spec = Annotated[str, typer.Argument(help="A TOML file, or the name of a built-in experiment.")]
Name = Annotated[str | None, typer.Option(help="Name of the results; the spec's own if not given.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the spec; may be repeated."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Runs side by side; one per core if not given.")]
RunsFolders = Annotated[list[Path], typer.Argument(help="Folders of runs, such as runs/quickstart.")]
ModelFile = Annotated[
    Path, typer.Argument(help="model.json, or the folder of a finished run (of its experiment, if it has one run).")
]
DataFile = Annotated[
    str, typer.Argument(help="A LETOR file (.txt, .gz, .xz), or a name of the catalog (its test part).")
]
Client = Annotated[int | None, typer.Option(help="Whose model, where every client has its own.")]


def new_console() -> Console:
    from rich.console import Console

    return Console()


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is: paths are not cut, brackets are not markup."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def count_runs(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs:,} runs"


def label_of(name: str | None, spec: str) -> str:
    """Where below OUT the results lie: the given name, or that of the spec."""
    if name is None:
        path = Path(spec)
        return re.sub(r"[^\w.+=,-]+", "-", path.stem).strip("-.") or "experiment" if path.is_file() else spec
    parts = name.split("/")
    if not all(re.fullmatch(r"[\w.+=,-]+", part) and part.strip(".") for part in parts):
        raise ValueError(f"--name {name!r} does not name a folder below OUT; use letters, digits, - and _")
    return name


def do_experiment(experiment: Question, label: str, out: Path, workers: int | None, threads: int = 1) -> None:
    """Do all runs of an experiment that are not finished, and show what came out."""
    from fedrank.experiment.report import show_table
    from fedrank.experiment.run import recorded_bytes
    from fedrank.experiment.schedule import run_experiment
    from fedrank.experiment.store import load_runs
    from fedrank.experiment.tables import amount

    for folder in (out / label, *(out / label).parents):
        if folder.is_file():
            raise NotADirectoryError(f"{folder} is a file; --out and --name must lead to a folder")
    variants = experiment.expand()
    runs = len(variants) * len(experiment.repeats())
    console = new_console()
    say(console, experiment.title or label, style="bold")
    say(console, f"{count_runs(runs)} of {experiment.extent}, into {out / label}")
    recorded = sum(recorded_bytes(variant.experiment) for variant in variants) * len(experiment.repeats())
    if recorded:
        say(console, f"Updates are recorded there, too: {amount('bytes', recorded)} at most")
    results = run_experiment(
        experiment, label, out, workers=workers or os.cpu_count() or 1, threads=threads, console=console
    )
    if results.skipped:
        say(console, f"{count_runs(len(results.skipped))} of {runs} finished before")
    for task, reason in results.failed:
        say(console, f"failed {task.label}: {reason}", style="red")
    if results.interrupted:
        left = len(results.interrupted)
        are = "is" if left == 1 else "are"
        say(
            console, f"Stopped. {count_runs(left)} {are} not finished; nothing is lost: run the same command to resume."
        )
    if results.finished or results.skipped:
        show_table(load_runs(out / label), console)
        say(console, f"Pictures and tests: fedrank report {out / label} --out report.html")
    if results.interrupted:
        raise typer.Exit(130)
    if results.failed:
        raise typer.Exit(FAILED)
