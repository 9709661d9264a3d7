"""What the commands share: how they speak, and options that mean the same everywhere."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from rich.console import Console

    from fedrank.experiments.report.sections import Section
    from fedrank.experiments.runner.writer import Task
    from fedrank.experiments.spec.grid import Grid
    from fedrank.progress import Progress

LARGEST = 1_000_000_000  # of options that count something, as in a spec
MAX_WAIT = 366 * 86_400  # seconds
FAILED = 1  # how a command ends whose runs failed
AS_WIDE_AS_IT_TAKES = 100_000  # columns: nothing is wrapped that goes into a file or another program
SECONDS_BETWEEN_LINES = 10.0  # where progress is plain lines
TOO_LITTLE = 0.02  # share of a thing that must be done before it can be said how long the rest takes


def _specs(begun: str) -> list[str]:
    """Specs whose name begins so, for the completion of a shell: files, and those that come with fedrank."""
    from fedrank.experiments.spec.source import builtin_specs

    folder = Path(begun).parent if "/" in begun else Path()
    try:
        files = [str(path) for path in sorted(folder.glob("*.toml"))]
    except OSError:
        files = []
    return [name for name in (*files, *builtin_specs()) if name.startswith(begun)]


Spec = Annotated[str, typer.Argument(help="A TOML file, or the name of a built-in experiment.", autocompletion=_specs)]
AsJson = Annotated[bool, typer.Option("--json", help="Print all of it as JSON, for programs.")]
Name = Annotated[str | None, typer.Option(help="Name of the results; the spec's own if not given.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the spec; may be repeated."),
]
Variants = Annotated[
    list[str] | None, typer.Option("--variant", metavar="NAME", help="Only this variant; may be repeated.")
]
AnswerFile = Annotated[
    Path | None, typer.Option(help="File: .json for all numbers, .md for what is printed; a folder for both.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, max=10_000, help="Runs side by side; one per core if not given, and elsewhere all that are taken."
    ),
]
RunsFolders = Annotated[list[Path], typer.Argument(help="Folders of runs, such as runs/quickstart.")]
ModelFile = Annotated[
    Path, typer.Argument(help="model.json, or the folder of a finished run (of its experiment, if it has one run).")
]
DataFile = Annotated[
    str, typer.Argument(help="A LETOR file (.txt, .gz, .xz), a search log, or a name of the catalog (its test part).")
]
Client = Annotated[int | None, typer.Option(help="Whose model, where every client has its own.")]


Trust = Annotated[
    bool, typer.Option("--trust", help="Import methods from outside fedrank that it names; they may do anything.")
]


def new_console() -> Console:
    """Where commands speak: as wide as the terminal; where there is none, as wide as it takes."""
    from rich.console import Console

    console = Console()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(width=AS_WIDE_AS_IT_TAKES)


def print_json(value: Any) -> None:
    """All of an answer, for programs. What is not a number is null."""
    typer.echo(json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, float) or (hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0):
        number = value if isinstance(value, float) else value.item()
        return number if not isinstance(number, float) or math.isfinite(number) else None
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def print_line(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is: paths are not cut, brackets are not markup, `:x:` is no picture."""
    from fedrank.experiments.report.terminal import printable

    console.print(printable(text), style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Something worth knowing, apart from what was asked for."""
    typer.echo(f"note: {text}", err=True)


def print_sections(sections: Sequence[Section], console: Console) -> None:
    """Print what there is to say."""
    from fedrank.experiments.report.terminal import show

    show(sections, console)


@contextmanager
def progress(console: Console) -> Iterator[Progress]:
    """How far things are: bars on a terminal, a line now and then elsewhere."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    from rich.progress import BarColumn, ProgressColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.table import Column
    from rich.text import Text

    class Short(ProgressColumn):
        """Text that is cut where the line is too short, so that the bar and the time left stay."""

        def __init__(self, read: Callable[[Any], str]) -> None:
            super().__init__(Column())
            self._read = read

        def render(self, task: Any) -> Text:
            return Text(self._read(task), no_wrap=True, overflow="ellipsis")

    columns = (
        Short(lambda task: str(task.description)),
        BarColumn(bar_width=12, table_column=Column(no_wrap=True)),
        Short(lambda task: str(task.fields["detail"])),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
    )
    with Bars(*columns, console=console, transient=True) as bars:
        shown: dict[str, Any] = {}

        def tell(what: str, done: float, of: float, detail: str = "") -> None:
            if what not in shown:
                shown[what] = bars.add_task(what, total=of, detail=detail)
            bars.update(shown[what], completed=done, total=of, detail=detail)
            if done >= of:
                bars.remove_task(shown.pop(what))

        yield tell


class _Lines:
    """Progress where there is no terminal: what is slow is told now and then, and how each thing ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._first: dict[str, tuple[float, float]] = {}  # when something was first heard of, and how far it was
        self._said: dict[str, float] = {}

    def __call__(self, what: str, done: float, of: float, detail: str = "") -> None:
        from fedrank.experiments.report.formatting import duration
        from fedrank.experiments.runner.schedule import ALL_RUNS

        now = time.monotonic()
        began, before = self._first.setdefault(what, (now, done))
        if done >= of:
            if detail and what != ALL_RUNS:
                print_line(self._console, f"{what}: {detail}")
        elif now - self._said.setdefault(what, now) >= SECONDS_BETWEEN_LINES:
            self._said[what] = now
            left = ""
            if done - before >= TOO_LITTLE * of:
                left = f", about {duration((now - began) / (done - before) * (of - done))} left"
            print_line(self._console, f"{what}: {detail or f'{done / of:.0%}'}{left}")


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


def print_failures(failed: Sequence[tuple[Task, str]], console: Console) -> None:
    """Each cause once, and where somebody's own code failed, the last lines of its traceback."""
    from fedrank.experiments.runner.failures import causes

    for cause in causes(failed):
        print_line(console, cause.told, style="red")
        for line in cause.lines:
            print_line(console, f"    {line}", style="dim")
        if cause.file is not None:
            print_line(console, f"    All of it: {cause.file}")


def do_experiment(
    grid: Grid[Any],
    label: str,
    out: Path,
    workers: int | None,
    threads: int = 1,
    device: str = "cpu",
    engine: tuple[Executor, str] | None = None,
) -> None:
    """Do all runs of an experiment that are not finished, and show what came out.

    An engine elsewhere does them if there is one; what is to be said of it comes with it.
    """
    from fedrank.experiments.report.compose import brief
    from fedrank.experiments.report.formatting import amount
    from fedrank.experiments.runner.federated import recorded_bytes
    from fedrank.experiments.runner.runs import load_runs
    from fedrank.experiments.runner.schedule import run_experiment

    folder = out / label
    for place in (folder, *folder.parents):
        if place.is_file():
            raise NotADirectoryError(f"{place} is a file; --out and --name must lead to a folder")
    runs = len(grid.variants) * len(grid.repeats())
    console = new_console()
    print_line(console, grid.title or label, style="bold")
    print_line(console, f"{count_runs(runs)} of {grid.base.extent}, into {folder}")
    recorded = sum(recorded_bytes(variant.experiment) for variant in grid.variants) * len(grid.repeats())
    if recorded:
        print_line(console, f"Updates are recorded there, too: {amount('bytes', recorded)} at most")
    executor = None
    if engine is None:
        workers = workers or os.cpu_count() or 1
    else:
        executor, about = engine
        print_line(console, about)
    with progress(console) as tell:
        results = run_experiment(
            grid, label, out, workers=workers, threads=threads, device=device, progress=tell, executor=executor
        )
    if results.skipped:
        print_line(console, f"{count_runs(len(results.skipped))} of {runs} finished before")
    print_failures(results.failed, console)
    if results.interrupted:
        left = len(results.interrupted)
        are = "is" if left == 1 else "are"
        why = f": {results.stopped}" if results.stopped else ""
        resume = "nothing is lost: run the same command to resume."
        print_line(console, f"Stopped{why}. {count_runs(left)} {are} not finished; {resume}")
    if results.finished or results.skipped:
        print_sections(brief(load_runs(folder)), console)
        print_line(console, f"Pictures and tests: fedrank report {folder} --out report.html")
    if results.interrupted:
        raise typer.Exit(130)
    if results.failed:
        raise typer.Exit(FAILED)
