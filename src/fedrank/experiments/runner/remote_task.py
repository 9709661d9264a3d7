"""A run on another machine: what a worker receives, what it checks before it begins, and when it stops.

A remote task is one text, so any executor can carry it and nothing of ours is pickled. Everything else goes through the
folder of the experiment, which the worker must see under the same path: results, progress, and a file that says that
the runs are still wanted. A worker stops at the end of its round when that file is gone.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fedrank import __version__
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.provenance import Sums, changed_files, data_sums
from fedrank.experiments.runner.runs import LOCK, load_runs
from fedrank.experiments.runner.stop_signals import stop_requested
from fedrank.experiments.runner.writer import Task
from fedrank.experiments.spec.experiment import to_toml
from fedrank.experiments.spec.families import hints_of
from fedrank.experiments.spec.grid import read_tables
from fedrank.files import Locked, is_locked, is_plain, parse_json, read_bytes, told, write_atomic
from fedrank.ranking.cuda.choice import check_device
from fedrank.toml import parse_toml
from fedrank.value_checks import at_least, checked

SENT = "sent.txt"  # in the folder of an experiment: while it is there, workers elsewhere go on
MAX_BYTES = 4096  # of that file; it has a line for workers, and one for people
SECONDS_BETWEEN_LOOKS = 1.0  # at that file: it may lie on another machine
SECONDS_FOR_LOCK = 120.0  # until the lock of a machine that died is given up by a file system between machines
ENDS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")  # by which engines say that a worker's time is over
OF_TASK = ("name", "variant", "settings", "fold", "seed", "device")  # fields that a `Task` has, too
REFUSED, BUSY = "refused", "busy"  # what a worker may answer besides the status of a run

_turn = threading.Lock()  # a process does one run at a time, however many threads its engine gives it


@dataclass(frozen=True)
class RemoteTask:
    """One run, and who asks for it."""

    folder: str  # of the whole experiment
    token: str  # that the file of the folder has while the run is wanted
    attempt: int  # engines that remember answers shall not take a second one for the first
    run: str  # folder of the run, below that of the experiment
    spec: str  # TOML of the run, every setting written out
    name: str
    variant: str
    settings: dict[str, Any]
    fold: int
    seed: int
    device: str = "cpu"
    threads: Annotated[int, at_least(1)] = 1
    files: Sums = field(default_factory=dict)  # data as whoever asks has them

    def text(self) -> str:
        return json.dumps({"fedrank": __version__} | asdict(self), ensure_ascii=False)


def remote_task_of(task: Task, token: str, attempt: int, threads: int, files: Sums) -> RemoteTask:
    """What a worker needs to do this run."""
    home = task.folder.absolute().parents[1]
    run = task.folder.absolute().relative_to(home).as_posix()
    same = {name: getattr(task, name) for name in OF_TASK}
    return RemoteTask(str(home), token, attempt, run, to_toml(task.experiment), **same, threads=threads, files=files)


def announce(folder: Path, token: str) -> None:
    """Say in the folder of an experiment that its runs are wanted."""
    explained = "Runs of this folder are done by workers elsewhere, which stop when this file is deleted."
    write_atomic(folder / SENT, f"{token}\n{explained}\n")


def withdraw(folder: Path, token: str) -> None:
    """Let workers stop, unless somebody else has sent the runs again."""
    if token_in(folder) == token:
        (folder / SENT).unlink(missing_ok=True)


def token_in(folder: Path) -> str | None:
    """Who wants the runs of an experiment now; None where nobody does."""
    try:
        return read_bytes(folder / SENT, MAX_BYTES).decode().partition("\n")[0].rstrip("\r")
    except (OSError, ValueError):
        return None


def do_remote_task(text: str) -> tuple[str, str]:
    """Do a run that was sent as a text: its status, and a reason where its folder does not say it.

    This is all that an engine calls. "refused" means that this worker cannot do it, "busy" that another one does.
    """
    here = f"worker {socket.gethostname()}"
    try:
        content = checked(dict, parse_json(text), "a remote task")
        version = content.pop("fedrank", "unknown")
        if version != __version__:
            return REFUSED, (
                f"{here} has fedrank {__version__}, and these runs were sent by fedrank {version}, whose results may "
                f"be others; install {version} on every worker"
            )
        remote = _parse_remote_task(content)
    except ValueError as problem:
        return REFUSED, f"{here} received what is no remote task ({problem}); let `fedrank run --on` send it"
    folder = Path(remote.folder)
    if token_in(folder) != remote.token:
        return REFUSED, (
            f"{here} does not find {folder / SENT} as it was written, so that its results would not arrive; choose an "
            "--out on a file system that all workers share, under the same path"
        )
    try:
        task = _task_of(remote)
    except (ValueError, OSError, ImportError) as problem:
        return REFUSED, f"{here}: {told(problem)}"
    with stop_requested(ENDS, again=False) as ends:
        wanted = RequestedRun(folder, remote.token)
        return _in_turn(task, remote.threads, lambda: ends() or not wanted(), here)


def _parse_remote_task(content: dict[str, Any]) -> RemoteTask:
    """What is asked for; ValueError where that is none of ours, or leads out of the folder of its experiment."""
    hints = hints_of(RemoteTask)
    if other := sorted({*hints} ^ {*content}):
        raise ValueError(f"{other[0]!r} is {'not known' if other[0] in content else 'missing'}")
    remote = RemoteTask(**{name: checked(hint, content[name], name) for name, hint in hints.items()})
    parts = remote.run.split("/")
    if len(parts) != 2 or not all(map(is_plain, parts)):
        raise ValueError(f"run = {remote.run!r} is no folder of a variant and of a run below it")
    return remote


def _task_of(remote: RemoteTask) -> Task:
    """The run that is asked for, if it is the same here as where it was asked."""
    experiment = read_tables(parse_toml(remote.spec)).base
    if to_toml(experiment) != remote.spec:
        raise ValueError("the spec is read as another one here; install the same fedrank, and the same own methods")
    if experiment.single(remote.fold, remote.seed) != experiment:
        raise ValueError(f"the spec is not that of fold {remote.fold} with seed {remote.seed}; send the runs again")
    check_device(remote.device)
    experiment.require_data()
    changed = changed_files(remote.files, data_sums(experiment)) if remote.files else []
    if changed:
        more = f" and {len(changed) - 1} more of its files" if len(changed) > 1 else ""
        raise ValueError(
            f"{changed[0]}{more} are other data than where the runs were sent, and so would be the result; let "
            "FEDRANK_DATA lead to the same files everywhere"
        )
    return Task(Path(remote.folder) / remote.run, experiment, **{name: getattr(remote, name) for name in OF_TASK})


class RequestedRun:
    """Whether the runs of a folder are still wanted; the file is not read more often than needed."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder, self._token = folder, token
        self._looked, self._answer = 0.0, True

    def __call__(self) -> bool:
        now = time.monotonic()
        if self._answer and now - self._looked >= SECONDS_BETWEEN_LOOKS:
            self._looked, self._answer = now, token_in(self._folder) == self._token
        return self._answer


def _in_turn(task: Task, threads: int, stop: Callable[[], bool], here: str) -> tuple[str, str]:
    """Do the run when this process is free and nobody else works on it; it may be finished by then."""
    while not _turn.acquire(timeout=SECONDS_BETWEEN_LOOKS):
        if stop():
            return "interrupted", ""
    try:
        deadline = time.monotonic() + SECONDS_FOR_LOCK
        while not stop():
            if is_locked(task.folder / LOCK) is not True:
                if _is_done(task):
                    return "finished", ""
                try:
                    return perform(task, threads, stop=stop), ""
                except Locked:
                    pass
                except OSError as problem:
                    return "failed", f"{here}: {told(problem)}"
            if time.monotonic() > deadline:
                return BUSY, f"{task.folder} is being worked on by another process"
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return "interrupted", ""
    finally:
        _turn.release()


def _is_done(task: Task) -> bool:
    """Whether another worker finished it: an engine may have lost sight of one that was only slow."""
    return task.folder.is_dir() and any(run.status == "finished" for run in load_runs(task.folder))
