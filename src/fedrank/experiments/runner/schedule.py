"""Schedules many runs: plans them, executes them in parallel, reports progress, and stops without losing results."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedrank.display import DisplayMixin
from fedrank.experiments.runner.data import clear_data_cache
from fedrank.experiments.runner.folder import checkpoint_round
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.preflight import check_before
from fedrank.experiments.runner.provenance import DataSums, Sums, changed_files
from fedrank.experiments.runner.remote_executor import send
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.stop_signals import stop_requested
from fedrank.experiments.runner.writer import News, Task
from fedrank.experiments.spec.experiment import Experiment, to_toml
from fedrank.experiments.spec.families import with_new_names
from fedrank.experiments.spec.grid import Grid, read_tables
from fedrank.experiments.spec.kinds import KINDS
from fedrank.files import error_message, read_text, write_atomic
from fedrank.progress import Progress, here, show_warnings_as_notes, shown_notes
from fedrank.ranking.cuda.choice import DEVICES, check_device
from fedrank.toml import parse_toml

ALL_RUNS = "all runs"  # label of the total progress
SECONDS_TO_STOP = 30.0  # until a worker that was asked to stop is terminated


@dataclass(repr=False)
class Results(DisplayMixin):
    """The results of the runs of an experiment."""

    finished: list[Task] = field(default_factory=list)
    skipped: list[Task] = field(default_factory=list)  # finished before
    interrupted: list[Task] = field(default_factory=list)
    failed: list[tuple[Task, str]] = field(default_factory=list)
    stopped: str = ""  # why runs on other machines were interrupted, if this process did not request it

    def _display(self) -> tuple[str, dict[str, str]]:
        done = {"finished": self.finished, "finished before": self.skipped, "interrupted": self.interrupted}
        facts = {what: f"{len(tasks):,}" for what, tasks in done.items() if tasks}
        if self.failed:
            facts["failed"] = f"{len(self.failed):,}, first {self.failed[0][0].label}: {self.failed[0][1]}"
        return "", facts


def plan(grid: Grid[Any], name: str, out: str | Path) -> list[Task]:
    """Every run of a grid, in order of execution: all variants of a repeat before the next repeat."""
    folder = Path(out) / name
    tasks = []
    for fold, seed in grid.repeats():
        for variant in grid.variants:
            run, experiment = folder / variant.name / f"fold-{fold}-seed-{seed}", variant.experiment.single(fold, seed)
            tasks.append(Task(run, experiment, name, variant.name, variant.settings, fold, seed))
    return tasks


def run_experiment(
    question: Grid[Any] | Experiment,
    name: str,
    out: str | Path = "runs",
    *,
    workers: int | None = None,
    threads: int = 1,
    device: str = "cpu",
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> Results:
    """Execute all runs of an experiment that are not finished, and write them to the folder `name` in `out`.

    `workers` is the number of runs at a time, each in its own process if there are several. device="cuda" trains on a
    GPU, and "auto" does so if it is faster; the results are the same. "cuda-float16" gives the results of features that
    are rounded to two bytes. `progress` is a function of (what, done, of, detail); without it, a notebook shows
    progress bars and a script is silent. The result lists which runs finished, failed or were interrupted.

    An `executor`, such as that of a cluster, executes the runs on other machines, which must see the folder `out`
    under the same path. Without `workers`, the executor gets all runs at once.

    >>> import fedrank as fr
    >>> grid = fr.read_spec("quickstart", ["rounds=10", "seeds=[1]", "data.folds=[1]"])
    >>> fr.run_experiment(grid, "first", out="runs")
    <Results; finished: 4>
    >>> fr.run_experiment(grid, "first", out="runs")
    <Results; finished before: 4>
    """
    # Workers have their own devices.
    check_device("auto" if executor is not None and device in DEVICES else device)
    grid = question if isinstance(question, Grid) else Grid.of(question)
    tasks = [replace(task, device=device) for task in plan(grid, name, out)]
    results = Results()
    waiting: list[Task] = []
    sums = DataSums()
    for task in tasks:
        (results.skipped if is_finished(task, sums) else waiting).append(task)
    for experiment in {task.experiment.data: task.experiment for task in waiting}.values():
        experiment.data.require()
    check_before(waiting)
    folder = Path(out) / name
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "experiment.toml", grid.toml())
    if not waiting:
        return results
    show = _Show(progress or here(), len(tasks), results)
    most = len(waiting) if workers is None and executor is not None else workers or 1
    workers = max(1, min(most, len(waiting)))
    if workers > 1 or executor is not None:
        clear_data_cache()  # each worker reads its own data
    with stop_requested() as stop:
        if executor is not None:
            left, results.stopped = send(waiting, executor, workers, threads, stop, show)
            results.interrupted += left
        elif workers == 1:
            for task in waiting:
                if stop():
                    results.interrupted.append(task)
                else:
                    show.ended(task, *_performed(task, threads, partial(show.news, task), stop))
        else:
            _side_by_side(waiting, workers, threads, stop, show)
    return results


def show_news(progress: Progress, task: Task, news: News) -> None:
    """Report the progress of a run."""
    if news.round == news.rounds:
        return  # files remain to be written
    speed = f", {news.interactions / news.seconds:,.0f} interactions/s" if news.interactions else ""
    quality = "" if math.isnan(news.quality) else f", {task.experiment.measures[0]} {news.quality:.4f}"
    unit = KINDS[task.experiment.kind].unit
    detail = f"{unit} {news.round:,} of {news.rounds:,}{quality}{speed}"
    progress(task.label, news.round, news.rounds, detail)


@dataclass
class _Show:
    """Records the results of runs, and reports them."""

    progress: Progress
    runs: int
    results: Results

    def news(self, task: Task, news: News) -> None:
        show_news(self.progress, task, news)

    def lost(self, task: Task, round: int, reason: str) -> None:
        """Report that a worker was lost, and that the run resumes from this round."""
        rounds = task.experiment.rounds_asked
        self.progress(task.label, min(round, rounds - 1), rounds, f"resubmitted after round {round:,}: {reason}")

    def ended(self, task: Task, status: str, reason: str = "") -> None:
        results = self.results
        if status == "failed":
            results.failed.append((task, reason or load_runs(task.folder)[0].reason))
        else:
            getattr(results, status).append(task)
        done = len(results.finished) + len(results.skipped)
        self.progress(task.label, 1, 1, f"{status} ({done} of {self.runs})")
        self.progress(ALL_RUNS, done, self.runs, f"{done} of {self.runs}")


def is_finished(task: Task, sums: DataSums | None = None) -> bool:
    """Whether the folder already contains this run; a run of another spec or other data is never overwritten."""
    spec = task.folder / "spec.toml"
    if not spec.exists():
        return False
    if not _is_same_spec(read_text(spec), to_toml(task.experiment)):
        raise FileExistsError(
            f"{task.folder} contains a run of another spec, which is not overwritten; choose another --out or --name, "
            "or delete that folder"
        )
    [run] = load_runs(task.folder)
    if run.status == "running":
        raise FileExistsError(f"another process is working on {task.folder}; wait for it, or stop it")
    if run.files and (run.status == "finished" or checkpoint_round(task.folder) is not None):
        _check_same_data(task, run.files, run.status, sums or DataSums())
    return run.status == "finished"


def _is_same_spec(recorded: str, asked: str) -> bool:
    """Whether two specs describe the same run; the recorded one may have names of version 0.1, and lack newer keys."""
    if recorded == asked:
        return True
    try:
        return to_toml(read_tables(with_new_names(parse_toml(recorded)), full_check=False).base) == asked
    except ValueError:
        return False


def _check_same_data(task: Task, before: Sums, status: str, sums: DataSums) -> None:
    """Raise an error if the data of a finished or interrupted run have changed; missing data are accepted."""
    now = sums(task.experiment)
    changed = [] if now is None else changed_files(before, now)
    if changed:
        more = f" and {len(changed) - 1} more of its files" if len(changed) > 1 else ""
        was = "finished with" if status == "finished" else "was begun with"
        raise FileExistsError(
            f"{task.folder} {was} other data: {changed[0]}{more} changed since (checksums are in run.json), so "
            "its result does not belong to the current data, and is not overwritten; choose another --out or "
            "--name, delete that folder, or restore the old data"
        )


def _performed(task: Task, threads: int, tell: Callable[[News], None], stop: Callable[[], bool]) -> tuple[str, str]:
    """Execute a run; returns its status, and the problem if its folder cannot record it."""
    try:
        return perform(task, threads, tell, stop), ""
    except OSError as problem:  # the other runs continue: their folders may be elsewhere
        return "failed", error_message(problem)


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Any  # a Connection, or a PipeConnection on Windows
    task: Task | None = None


def _side_by_side(waiting: list[Task], workers: int, threads: int, stop: Callable[[], bool], show: _Show) -> None:
    """Execute runs in several processes, one task at a time in each. A worker that dies does not affect the others."""
    # Runs use one core each: libraries with own threads would compete for cores.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    context = multiprocessing.get_context("spawn")
    stopped = context.Event()
    left = waiting[::-1]

    def hire() -> _Worker:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, stopped, threads, shown_notes()), daemon=True)
        with _without_ctrl_c():
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def give(worker: _Worker) -> None:
        worker.task = None if stop() or not left else left.pop()
        with suppress(OSError):  # it died while idle; waiting for its answer will detect that
            worker.pipe.send(worker.task)

    staff = [hire() for _ in range(workers)]
    for worker in staff:
        give(worker)
    deadline = float("inf")
    while any(worker.task for worker in staff):
        if stop() and not stopped.is_set():
            stopped.set()
            deadline = time.monotonic() + SECONDS_TO_STOP
        busy = {worker.pipe: worker for worker in staff if worker.task}
        for pipe in wait(list(busy), timeout=0.2):
            worker = busy[pipe]  # type: ignore[index]
            task = worker.task
            assert task is not None
            try:
                message = worker.pipe.recv()
            except (EOFError, ConnectionError):
                worker.process.join()
                code = worker.process.exitcode or 0
                reason = f"its process was killed (signal {-code})" if code < 0 else "its process ended"
                reason += "; memory may have run out. Run the command again to resume it"
                show.ended(task, "interrupted" if stop() else "failed", reason)
                staff.remove(worker)
                if left and not stop():
                    staff.append(hire())
                    give(staff[-1])
                continue
            if isinstance(message, News):
                show.news(task, message)
            else:
                show.ended(task, *message)
                give(worker)
        if time.monotonic() > deadline:
            for worker in staff:
                worker.process.terminate()
    show.results.interrupted += left[::-1]
    for worker in staff:
        worker.process.join(SECONDS_TO_STOP)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Let child processes ignore Ctrl-C from the start; only this process receives it."""
    if sys.platform == "win32":  # it has no masks of signals
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Any, stopped: Any, threads: int, notes: frozenset[str] | None = None) -> None:
    if notes is not None:
        show_warnings_as_notes(notes)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; both receive Ctrl-C
    deserted = False

    def tell(message: Any) -> None:
        nonlocal deserted
        try:
            pipe.send(message)
        except OSError:  # the parent has died: stop
            deserted = True

    while not deserted:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        if task is None:
            return
        tell(_performed(task, threads, tell, lambda: deserted or stopped.is_set()))
