"""Output, progress and options that the commands share."""

from __future__ import annotations

import functools
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrank.display import json_text
from fedrank.value_checks import at_least, at_most

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from rich.console import Console

    from fedrank.experiments.report.sections import Section
    from fedrank.experiments.runner.schedule import Results
    from fedrank.experiments.runner.writer import Task
    from fedrank.experiments.spec.grid import Grid
    from fedrank.progress import Progress
    from fedrank.unlearning.methods import Unlearner

MAX_WAIT = 366 * 86_400  # seconds
EXIT_FAILURE = 1  # exit code of a command that failed
FILE_WIDTH = 100_000  # columns: output to a file or a program is not wrapped
SECONDS_BETWEEN_LINES = 10.0  # where progress is plain lines
MIN_SHARE_TO_ESTIMATE = 0.02  # share of the work that must be done before the remaining time is estimated


def _specs(begun: str) -> list[str]:
    """Specs whose name begins with `begun`, for shell completion: TOML files and built-in experiments."""
    from fedrank.experiments.spec.source import builtin_specs

    folder = Path(begun).parent if "/" in begun else Path()
    try:
        files = [str(path) for path in sorted(folder.glob("*.toml"))]
    except OSError:
        files = []
    return [name for name in (*files, *builtin_specs()) if name.startswith(begun)]


Spec = Annotated[str, typer.Argument(help="TOML file, or name of a built-in experiment.", autocompletion=_specs)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not print progress.")]
Yes = Annotated[bool, typer.Option("--yes", help="Answer yes to every question.")]
Name = Annotated[str | None, typer.Option(help="Name of the results. Default: the name of the spec.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key of the spec; may be repeated."),
]
MethodChanges = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting of the method; may be repeated."),
]
Variants = Annotated[
    list[str] | None, typer.Option("--variant", metavar="NAME", help="Only this variant; may be repeated.")
]
AnswerFile = Annotated[
    Path | None,
    typer.Option(help="File to write: .json for all numbers, .md for the printed text, or a folder for both."),
]
Picture = Annotated[Path | None, typer.Option("--out", help="Picture to write: .png, .svg or .pdf.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=10_000,
        help="Number of runs in parallel. Default: one per core, or as many as the executor of --on accepts.",
    ),
]
Threads = Annotated[int, at_least(1), at_most(1_024)]
RunsFolders = Annotated[list[Path], typer.Argument(help="Folders with runs, such as runs/quickstart.")]
RunsFolder = Annotated[Path, typer.Option(help="Folder with the runs; population ledgers are in RUNS/populations.")]
ModelFile = Annotated[
    Path,
    typer.Argument(help="Model file (model.json), folder of a finished run, or folder of an experiment with one run."),
]
DataFile = Annotated[
    str,
    typer.Argument(
        help="Judged file (LETOR; also .gz, .xz), click log folder, or data set of the catalog (its test part)."
    ),
]
Client = Annotated[int | None, typer.Option(help="Client number, if each client has its own model.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import methods from other packages that the spec names; they run as code.")
]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port of the page; 0 selects a free port.")]
Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in your browser.")]


def console() -> Console:
    """The console of this process: as wide as the terminal; output to a file or a program is not wrapped."""
    return _console(os.environ.get("COLUMNS"))


@functools.lru_cache(1)  # one object, because progress bars must know of every printed line
def _console(columns: str | None) -> Console:
    from rich.console import Console

    made = Console()
    return made if made.is_terminal or columns is not None else Console(width=FILE_WIDTH)


def print_json(value: Any) -> None:
    """Print a result as JSON. Numbers that are not finite become null."""
    typer.echo(json_text(value))


def print_line(text: str, style: str | None = None) -> None:
    """Print a line unchanged: paths are not cut; brackets and `:x:` are not markup."""
    from fedrank.display import visible

    console().print(visible(text), style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print a note on standard error."""
    from fedrank.display import visible

    typer.echo(f"note: {visible(text)}", err=True)


def print_sections(sections: Sequence[Section]) -> None:
    """Print sections of a report."""
    from fedrank.experiments.report.terminal import show

    show(sections, console())


def print_result(as_json: bool, facts: Callable[[], Any], sections: Callable[[], Sequence[Section]]) -> None:
    """Print a result as JSON or as sections of a report; only one of them is computed."""
    if as_json:
        print_json(facts())
    else:
        print_sections(sections())


def print_file(what: str, path: Path, as_json: bool = False) -> None:
    """Print the path of a file that was written, unless the output is JSON."""
    if not as_json:
        print_line(f"{what}: {path}")


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """Report progress: bars on a terminal, a line every ten seconds elsewhere, nothing if quiet."""
    if quiet:
        from fedrank.progress import quiet as no_progress

        yield no_progress
        return
    if not console().is_terminal:
        yield _Lines()
        return
    from rich.progress import BarColumn, ProgressColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.table import Column
    from rich.text import Text

    class Short(ProgressColumn):
        """Text that is cut where the line is too short; the bar and the remaining time stay."""

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
    with Bars(*columns, console=console(), transient=True) as bars:
        shown: dict[str, Any] = {}

        def tell(what: str, done: float, of: float, detail: str = "") -> None:
            total = of if math.isfinite(of) else None  # not known yet
            if what not in shown:
                shown[what] = bars.add_task(what, total=total, detail=detail)
            bars.update(shown[what], completed=done, total=total, detail=detail)
            if done >= of:
                bars.remove_task(shown.pop(what))

        yield tell


class _Lines:
    """Progress without a terminal: a line every ten seconds for slow tasks, and one when a task ends."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[float, float]] = {}  # time and progress of the first report
        self._said: dict[str, float] = {}

    def __call__(self, what: str, done: float, of: float, detail: str = "") -> None:
        from fedrank.experiments.report.formatting import duration
        from fedrank.experiments.runner.schedule import ALL_RUNS

        now = time.monotonic()
        began, before = self._first.setdefault(what, (now, done))
        if done >= of:
            if detail and what != ALL_RUNS:
                print_line(f"{what}: {detail}")
        elif now - self._said.setdefault(what, now) >= SECONDS_BETWEEN_LINES:
            self._said[what] = now
            left = ""
            if done - before >= MIN_SHARE_TO_ESTIMATE * of:
                left = f", about {duration((now - began) / (done - before) * (of - done))} left"
            print_line(f"{what}: {detail or f'{done / of:.0%}'}{left}")


def count_runs(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs:,} runs"


def results_name(name: str | None, spec: str) -> str:
    """Folder of the results below OUT: the given name, or the name of the spec."""
    if name is None:
        path = Path(spec)
        return re.sub(r"[^\w.+=,-]+", "-", path.stem).strip("-.") or "experiment" if path.is_file() else spec
    parts = name.split("/")
    if not all(re.fullmatch(r"[\w.+=,-]+", part) and part.strip(".") for part in parts):
        raise ValueError(f"--name {name!r} does not name a folder below OUT; use letters, digits, - and _")
    return name


def unlearner(method: str, changes: list[str] | None) -> Unlearner:
    """The unlearning method of `--method`, with the settings of `--set`."""
    from fedrank.experiments.spec.families import build
    from fedrank.toml import parse_override
    from fedrank.unlearning.methods import Unlearner

    settings = {".".join(keys): value for keys, value in map(parse_override, changes or [])}
    built: Unlearner = build(Unlearner, {"name": method} | settings, "method")
    return built


def print_failures(failed: Sequence[tuple[Task, str]]) -> None:
    """Print each cause once, with the last lines of the traceback if code from another package failed."""
    from fedrank.experiments.runner.failures import causes

    for cause in causes(failed):
        print_line(cause.message, style="red")
        for line in cause.lines:
            print_line(f"    {line}", style="dim")
        if cause.file is not None:
            print_line(f"    Full traceback: {cause.file}")


def run_and_print(
    grid: Grid[Any],
    label: str,
    out: Path,
    workers: int | None,
    threads: int = 1,
    device: str = "cpu",
    executor: tuple[Executor, str] | None = None,
    quiet: bool = False,
) -> None:
    """Execute all unfinished runs of an experiment and print the results.

    `executor` runs on other machines; with it comes a line that describes it.
    """
    from fedrank.experiments.report.formatting import amount
    from fedrank.experiments.runner.federated import recorded_bytes
    from fedrank.experiments.runner.schedule import run_experiment

    folder = out / label
    for place in (folder, *folder.parents):
        if place.is_file():
            raise NotADirectoryError(f"{place} is a file; --out and --name must lead to a folder")
    runs = len(grid.variants) * len(grid.repeats())
    print_line(grid.title or label, style="bold")
    print_line(f"{count_runs(runs)} of {grid.base.extent}, into {folder}")
    recorded = sum(recorded_bytes(variant.experiment) for variant in grid.variants) * len(grid.repeats())
    if recorded:
        print_line(f"Recorded updates need at most {amount('bytes', recorded)} there")
    if executor is None:
        workers, pool = workers or os.cpu_count() or 1, None
    else:
        pool, about = executor
        print_line(about)
    if executor is None and not quiet:
        print_if_compiling()
    with progress(quiet) as tell:
        results = run_experiment(
            grid, label, out, workers=workers, threads=threads, device=device, progress=tell, executor=pool
        )
    if results.skipped:
        print_line(f"{len(results.skipped):,} of {count_runs(runs)} were already finished")
    print_outcome(results, folder)


def print_outcome(results: Results, folder: Path) -> None:
    """Print the results of runs and the causes of failures; exit if runs failed or were interrupted."""
    from fedrank.experiments.report.compose import brief
    from fedrank.experiments.runner.runs import load_runs

    print_failures(results.failed)
    if results.interrupted:
        left = len(results.interrupted)
        are = "is" if left == 1 else "are"
        why = f": {results.stopped}" if results.stopped else ""
        resume = "run the same command to resume."
        print_line(f"Stopped{why}. {count_runs(left)} {are} not finished; {resume}")
    if results.finished or results.skipped:
        print_sections(brief(load_runs(folder)))
        print_line(f"Charts and significance tests: fedrank report {folder} --out report.html")
    if results.interrupted:
        raise typer.Exit(130)
    if results.failed:
        raise typer.Exit(EXIT_FAILURE)


def print_if_compiling() -> None:
    """Explain the pause before the first progress of the first run."""
    from fedrank.kernels import compile

    # Every run needs the kernels of the measures.
    if not any(Path(compile.COMPILED_IN).rglob("measures.*.nbc")):
        print_line("Compiling the inner loops (once per version, up to a minute)")


def open_page(link: str, browser: bool, ctrl_c: str) -> None:
    """Print the link of a page that is now served, and open it in the user's browser."""
    import webbrowser

    print_line(f"Open {link}")
    print_line(f"The link works once, in one browser. Ctrl-C {ctrl_c}.")
    if browser:
        # A browser in the terminal would block the server of the page.
        threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
