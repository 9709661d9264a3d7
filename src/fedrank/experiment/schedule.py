"""Many runs: plan them, do them side by side, show how far they are, and stop without losing anything."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.experiment.run import News, Task, perform
from fedrank.experiment.spec import Question, to_toml
from fedrank.experiment.store import duration, load_runs

if TYPE_CHECKING:
    from rich.console import Console

SECONDS_BETWEEN_LINES = 10.0  # where progress is plain lines
SECONDS_TO_STOP = 30.0  # until a worker that was asked to stop is ended


@dataclass
class Results:
    """What became of the runs of an experiment."""

    finished: list[Task] = field(default_factory=list)
    skipped: list[Task] = field(default_factory=list)  # finished before
    interrupted: list[Task] = field(default_factory=list)
    failed: list[tuple[Task, str]] = field(default_factory=list)


def plan(experiment: Question, name: str, out: str | Path) -> list[Task]:
    """Every run of an experiment, in the order in which they are done: all variants of a repeat before the next."""
    folder = Path(out) / name
    tasks = []
    variants = experiment.expand()
    for fold, seed in experiment.repeats():
        for variant in variants:
            single = variant.experiment.single(fold, seed)
            path = folder / variant.name / f"fold-{fold}-seed-{seed}"
            tasks.append(Task(path, single, name, variant.name, variant.settings, fold, seed))
    return tasks


def run_experiment(
    experiment: Question,
    name: str,
    out: str | Path = "runs",
    *,
    workers: int = 1,
    threads: int = 1,
    console: Console | None = None,
) -> Results:
    """Do all runs that are not finished, `workers` of them at a time, each in its own process if there are several."""
    tasks = plan(experiment, name, out)
    results = Results()
    waiting = []
    for task in tasks:
        if _is_finished(task):
            results.skipped.append(task)
        else:
            waiting.append(task)
    for asked in {task.experiment.data: task.experiment for task in waiting}.values():
        asked.require_data()
    folder = Path(out) / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.toml").write_text(to_toml(experiment), encoding="utf-8")
    if not waiting:
        return results
    workers = max(1, min(workers, len(waiting)))
    with _stopping() as stop, _progress(console, len(tasks), len(results.skipped)) as show:
        if workers == 1:
            _one_after_the_other(waiting, threads, stop, show, results)
        else:
            _side_by_side(waiting, workers, threads, stop, show, results)
    return results


def _is_finished(task: Task) -> bool:
    """Whether the folder already holds this very run; one of another spec is never overwritten."""
    spec = task.folder / "spec.toml"
    if not spec.exists():
        return False
    if spec.read_text(encoding="utf-8") != to_toml(task.experiment):
        raise FileExistsError(
            f"{task.folder} holds a run of another spec, and nothing is overwritten; choose another --out or --name, "
            "or delete that folder"
        )
    [run] = load_runs(task.folder)
    if run.status == "running":
        raise FileExistsError(f"{task.folder} is being worked on by another process; wait for it, or stop it")
    return run.status == "finished"


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask runs to stop at the end of their round; a second Ctrl-C does not wait for that."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only the main thread may listen to signals
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _one_after_the_other(
    waiting: list[Task], threads: int, stop: Callable[[], bool], show: Show, results: Results
) -> None:
    for task in waiting:
        if stop():
            results.interrupted.append(task)
            continue
        status = perform(task, threads, lambda news, task=task: show.news(task, news), stop)  # type: ignore[misc]
        _account(task, status, results, show)


def _account(task: Task, status: str, results: Results, show: Show) -> None:
    if status == "failed":
        [run] = load_runs(task.folder)
        results.failed.append((task, run.reason))
    else:
        getattr(results, status).append(task)
    show.ended(task, status)


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: Task | None = None


def _side_by_side(
    waiting: list[Task], workers: int, threads: int, stop: Callable[[], bool], show: Show, results: Results
) -> None:
    """Processes that take one task after the other. A worker that dies takes nobody with it."""
    # Runs use one core each: libraries that start threads of their own would only get in each other's way.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    context = multiprocessing.get_context("spawn")
    stopped = context.Event()
    left = waiting[::-1]

    def hire() -> _Worker:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, stopped, threads), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def give(worker: _Worker) -> None:
        worker.task = None if stop() or not left else left.pop()
        with suppress(OSError):  # it died while idle; waiting for its answer will show that
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
                code = worker.process.exitcode
                why = (
                    f"its process was killed (signal {-code})" if code is not None and code < 0 else "its process ended"
                )
                if stop():
                    results.interrupted.append(task)
                else:
                    results.failed.append((task, f"{why}; perhaps memory ran out. Run the command again to resume it"))
                show.ended(task, "interrupted")
                staff.remove(worker)
                if left and not stop():
                    staff.append(hire())
                    give(staff[-1])
                continue
            if isinstance(message, News):
                show.news(task, message)
            else:
                _account(task, message, results, show)
                give(worker)
        if time.monotonic() > deadline:
            for worker in staff:
                worker.process.terminate()
    results.interrupted += left[::-1]
    for worker in staff:
        worker.process.join(SECONDS_TO_STOP)


def _work(pipe: Connection, stopped: Any, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; both receive Ctrl-C
    deserted = False

    def tell(message: Any) -> None:
        nonlocal deserted
        try:
            pipe.send(message)
        except OSError:  # the parent is gone: stop as if it had asked
            deserted = True

    while not deserted:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        if task is None:
            return
        tell(perform(task, threads, tell, lambda: deserted or stopped.is_set()))


class Show:
    """Progress: bars on a terminal, a line now and then elsewhere."""

    def news(self, task: Task, news: News) -> None: ...
    def ended(self, task: Task, status: str) -> None: ...


@contextmanager
def _progress(console: Console | None, runs: int, done: int) -> Iterator[Show]:
    if console is None:
        yield Show()
    elif console.is_terminal:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            yield _Bars(progress, runs, done)
    else:
        yield _Lines(console, runs, done)


class _Bars(Show):
    def __init__(self, progress: Any, runs: int, done: int) -> None:
        self._progress, self._runs, self._done = progress, runs, done
        self._all = progress.add_task("all runs", total=runs, completed=done, detail=f"{done} of {runs}")
        self._bars: dict[Path, Any] = {}

    def news(self, task: Task, news: News) -> None:
        if task.folder not in self._bars:
            self._bars[task.folder] = self._progress.add_task(task.label, total=news.rounds, detail="")
        self._progress.update(self._bars[task.folder], completed=news.round, detail=_detail(task, news))

    def ended(self, task: Task, status: str) -> None:
        if task.folder in self._bars:
            self._progress.remove_task(self._bars.pop(task.folder))
        self._done += status == "finished"
        self._progress.update(self._all, completed=self._done, detail=f"{self._done} of {self._runs}")


class _Lines(Show):
    def __init__(self, console: Console, runs: int, done: int) -> None:
        self._console, self._runs, self._done = console, runs, done
        self._said: dict[Path, float] = {}

    def news(self, task: Task, news: News) -> None:
        now = time.monotonic()
        if now - self._said.setdefault(task.folder, now) >= SECONDS_BETWEEN_LINES:
            self._said[task.folder] = now
            text = f"{task.label}: {_detail(task, news)}, about {duration(news.seconds_left)} left"
            self._console.print(text, soft_wrap=True, highlight=False)

    def ended(self, task: Task, status: str) -> None:
        self._done += status == "finished"
        self._console.print(f"{task.label}: {status} ({self._done} of {self._runs})", soft_wrap=True, highlight=False)


def _detail(task: Task, news: News) -> str:
    speed = f", {news.interactions / news.seconds:,.0f} interactions/s" if news.interactions and news.seconds else ""
    quality = "" if math.isnan(news.quality) else f", {task.experiment.measures[0]} {news.quality:.4f}"
    return f"{task.experiment.unit} {news.round:,} of {news.rounds:,}{quality}{speed}"
