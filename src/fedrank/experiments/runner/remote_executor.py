"""Runs on other machines: submitted to an executor, monitored through their folders, resubmitted if lost.

The executor is any `concurrent.futures.Executor`. It only carries text; a lost run resumes from its checkpoint
on any worker.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from fedrank import __version__
from fedrank.experiments.runner.folder import checkpoint_round
from fedrank.experiments.runner.provenance import DataSums
from fedrank.experiments.runner.remote_task import (
    REFUSED,
    SENT,
    RequestedRun,
    announce,
    do_remote_task,
    remote_task_of,
    token_in,
    withdraw,
)
from fedrank.experiments.runner.runs import LOCK, Run, load_runs
from fedrank.experiments.runner.writer import News, Task
from fedrank.files import is_locked

SECONDS_TO_STOP = 60.0  # wait for workers that were asked to stop
SECONDS_BETWEEN_LOOKS = 1.0  # between checks of run folders
SECONDS_TO_SEE = 90.0  # until a worker's files are visible here: network file systems cache
PAUSE = 0.1  # seconds
TRIES = 3  # attempts of a run without progress
MAX_CAUSES = 10  # length of an examined chain of causes
NOT_THERE = ("No module named 'fedrank", "Can't get attribute 'do_remote_task'", "cannot import name 'do_remote_task'")


class Follower(Protocol):
    """Receives the progress and results of runs."""

    def news(self, task: Task, news: News) -> None: ...

    def ended(self, task: Task, status: str, reason: str = "") -> None: ...

    def lost(self, task: Task, round: int, reason: str) -> None: ...


@dataclass(frozen=True)
class _Try:
    """A submitted run."""

    task: Task
    attempt: int = 1
    vain: int = 0  # attempts since its last progress
    round: int = 0  # its last checkpointed round then


def send(
    tasks: Sequence[Task], executor: Executor, most: int, threads: int, stop: Callable[[], bool], follower: Follower
) -> tuple[list[Task], str]:
    """Submit the runs of one experiment, at most `most` at a time, until all have ended or `stop` returns True.

    They also stop when the file that requests them is deleted, or when another command submits them. The result has
    the runs that did not begin, and why runs stopped if this process did not request it.
    """
    folder, token = tasks[0].folder.absolute().parents[1], secrets.token_hex(8)
    waiting = deque(_Try(task, round=checkpoint_round(task.folder) or 0) for task in tasks)
    sender = _Sender(executor, threads, follower, folder, token, waiting)
    announce(folder, token)
    wanted = RequestedRun(folder, token)
    try:
        while sender.left and wanted() and not stop():
            if len(sender.under_way) < most:
                sender.send()
            sender.follow(moment=0.0 if sender.waiting and len(sender.under_way) < most else PAUSE)
        stopped, now = "", token_in(folder)
        if now != token and not stop():
            stopped = f"{folder / SENT} was deleted" if now is None else "another command submitted it"
        withdraw(folder, token)
        sender.stop()
    finally:
        withdraw(folder, token)
        for future in sender.under_way:
            future.cancel()
    return sender.not_begun, stopped


@dataclass
class _Sender:
    """Submitted and waiting runs."""

    executor: Executor
    threads: int
    follower: Follower
    folder: Path
    token: str
    waiting: deque[_Try]
    under_way: dict[Future[tuple[str, str]], _Try] = field(default_factory=dict)
    not_begun: list[Task] = field(default_factory=list)
    _answered: dict[str, tuple[_Try, str, float]] = field(default_factory=dict)  # label -> run, status, deadline
    _seen: dict[str, int] = field(default_factory=dict)  # label -> last reported round
    _sums: DataSums = field(default_factory=DataSums)
    _stopping: bool = False
    _look_next: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> bool:
        return bool(self.waiting or self.under_way or self._answered)

    @property
    def _is_over(self) -> bool:
        """Whether runs end as requested; a worker may notice that before this process."""
        return self._stopping or token_in(self.folder) != self.token

    def send(self) -> None:
        """Submit the next run, if there is one."""
        if not self.waiting:
            return
        one = self.waiting.popleft()
        remote = remote_task_of(one.task, self.token, one.attempt, self.threads, self._sums(one.task.experiment) or {})
        try:
            self.under_way[self.executor.submit(do_remote_task, remote.text())] = one
        except Exception as problem:  # an executor may raise anything, and would refuse the other runs, too
            reason = f"it could not be submitted ({_in_a_line(problem)}); run the command again to resume it"
            for each in (one, *self.waiting):
                self.follower.ended(each.task, "failed", reason)
            self.waiting.clear()

    def follow(self, moment: float = PAUSE) -> None:
        """Wait up to `moment` seconds; collect ended runs, and check the progress of the others."""
        if self.under_way:
            wait(self.under_way, timeout=moment, return_when=FIRST_COMPLETED)
        else:
            time.sleep(moment)
        for future in [future for future in self.under_way if future.done()]:
            self._take(self.under_way.pop(future), future)
        for label in list(self._answered):
            self._settle(label)
        began = time.monotonic()
        if began >= self._look_next:
            for one in self.under_way.values():
                self._look(one.task)
            took = time.monotonic() - began  # thousands of folders on another machine take time
            self._look_next = began + max(SECONDS_BETWEEN_LOOKS, 10 * took)

    def stop(self) -> None:
        """Cancel runs that have not begun, and let the others finish their round."""
        self._stopping = True
        self.not_begun += [one.task for one in self.waiting]
        self.waiting.clear()
        for future, one in self.under_way.items():
            if not is_locked(one.task.folder / LOCK):
                future.cancel()
        deadline = time.monotonic() + SECONDS_TO_STOP
        while self.left and time.monotonic() < deadline:
            self.follow()
        for future in self.under_way:
            future.cancel()
        for one in (*self.under_way.values(), *(answered[0] for answered in self._answered.values())):
            self.follower.ended(one.task, "interrupted")
        self.under_way.clear()

    def _take(self, one: _Try, future: Future[tuple[str, str]]) -> None:
        """Handle the result of a run: the worker's answer, or its absence."""
        if future.cancelled():
            if self._is_over:
                self.not_begun.append(one.task)
            else:
                self._lost(one, "its executor cancelled it")
            return
        problem = future.exception()
        if problem is not None:
            lacking = next((line for line in _lines(problem) if any(text in line for text in NOT_THERE)), None)
            if lacking is None:
                self._lost(one, _in_a_line(problem))
            else:
                needed = f"install fedrank {__version__} on every worker and on the scheduler"
                reason = f"a worker has no fedrank, or another version ({lacking}); {needed}"
                self.follower.ended(one.task, "failed", reason)
            return
        status, reason = future.result()
        if status == REFUSED and self._is_over:
            self.not_begun.append(one.task)
        elif status == REFUSED:
            self.follower.ended(one.task, "failed", reason)
        elif status == "failed" and reason:
            self.follower.ended(one.task, status, reason)
        elif status in ("finished", "failed"):
            self._answered[one.task.label] = one, status, time.monotonic() + SECONDS_TO_SEE
        else:
            self._lost(one, reason or "its worker was asked to stop")

    def _settle(self, label: str) -> None:
        """Mark a run as ended once its folder shows that here, too."""
        one, status, deadline = self._answered[label]
        run = _run_in(one.task)
        if run is not None and run.status == status:
            self.follower.ended(one.task, status)
        elif time.monotonic() > deadline:
            reason = (
                f"its worker reports the status {status}, but {one.task.folder} does not show it; check that the "
                "folder is shared"
            )
            self.follower.ended(one.task, "failed", reason)
        else:
            return
        del self._answered[label]

    def _lost(self, one: _Try, reason: str) -> None:
        """Resubmit a run from its checkpoint; after several attempts without progress it fails."""
        if self._is_over:
            self.follower.ended(one.task, "interrupted")
            return
        safe = checkpoint_round(one.task.folder) or 0
        vain = 1 if safe > one.round else one.vain + 1
        if vain >= TRIES:
            text = f"its worker was lost {vain} times without progress ({reason}); memory may have run out"
            self.follower.ended(one.task, "failed", f"{text}. Run the command again to resume it")
            return
        self.follower.lost(one.task, safe, reason)
        self.waiting.appendleft(replace(one, attempt=one.attempt + 1, vain=vain, round=safe))

    def _look(self, task: Task) -> None:
        run = _run_in(task)
        if run is None or run.round == self._seen.get(task.label, 0):
            return
        self._seen[task.label] = run.round
        quality, seconds = math.nan, math.nan
        with suppress(OSError, ValueError):  # not yet written, or being written
            quality, seconds = run.latest_value[1], run.seconds
        self.follower.news(task, News(run.round, run.asked, quality, 0, seconds, math.nan))


def _run_in(task: Task) -> Run | None:
    with suppress(OSError):
        if task.folder.is_dir():
            return next(iter(load_runs(task.folder)), None)
    return None


def _lines(problem: BaseException) -> Iterator[str]:
    """A problem with all its causes, line by line: executors wrap errors of their workers."""
    one: BaseException | None = problem
    for _ in range(MAX_CAUSES):
        if one is None:
            return
        yield from (line.strip() for line in str(one).splitlines() if line.strip())
        one = one.__cause__ or one.__context__


def _in_a_line(problem: BaseException) -> str:
    """The first line of an executor's error."""
    first = next(_lines(problem), "") if str(problem).strip() else ""
    return f"{type(problem).__name__}: {first}" if first else type(problem).__name__
