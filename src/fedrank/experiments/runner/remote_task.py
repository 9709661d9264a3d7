"""A run on another machine: what a worker receives, what it checks first, and when it stops.

A remote task is one text, so any executor can carry it without pickling our classes. Everything else passes through
the folder of the experiment, which workers must see under the same path: results, progress, and a file that requests
the runs. A worker stops at the end of its round when that file is deleted.
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
from fedrank.files import Locked, error_message, is_locked, is_plain, parse_json, read_bytes, write_atomic
from fedrank.ranking.cuda.choice import check_device
from fedrank.toml import parse_toml
from fedrank.value_checks import at_least, checked

SENT = "sent.txt"  # in the folder of an experiment: workers continue while it exists
MAX_BYTES = 4096  # of that file; it has one line for workers, and one for users
SECONDS_BETWEEN_LOOKS = 1.0  # between checks of that file, which may be on another machine
SECONDS_FOR_LOCK = 120.0  # until a network file system releases the lock of a dead machine
ENDS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")  # with which executors end a worker
OF_TASK = ("name", "variant", "settings", "fold", "seed", "device")  # fields shared with `Task`
REFUSED, BUSY = "refused", "busy"  # answers of a worker besides the status of a run

_turn = threading.Lock()  # a process executes one run at a time, in any number of threads


@dataclass(frozen=True)
class RemoteTask:
    """One run, and the request that it belongs to."""

    folder: str  # of the whole experiment
    token: str  # content of the file while the run is requested
    attempt: int  # distinguishes retries for executors that cache results
    run: str  # folder of the run, relative to that of the experiment
    spec: str  # TOML of the run with every setting
    name: str
    variant: str
    settings: dict[str, Any]
    fold: int
    seed: int
    device: str = "cpu"
    threads: Annotated[int, at_least(1)] = 1
    files: Sums = field(default_factory=dict)  # checksums of the sender's data

    def text(self) -> str:
        return json.dumps({"fedrank": __version__} | asdict(self), ensure_ascii=False)


def remote_task_of(task: Task, token: str, attempt: int, threads: int, files: Sums) -> RemoteTask:
    """What a worker needs to execute this run."""
    home = task.folder.absolute().parents[1]
    run = task.folder.absolute().relative_to(home).as_posix()
    same = {name: getattr(task, name) for name in OF_TASK}
    return RemoteTask(str(home), token, attempt, run, to_toml(task.experiment), **same, threads=threads, files=files)


def announce(folder: Path, token: str) -> None:
    """Write the file that requests the runs of an experiment."""
    explained = "Workers on other machines execute the runs of this folder; they stop when this file is deleted."
    write_atomic(folder / SENT, f"{token}\n{explained}\n")


def withdraw(folder: Path, token: str) -> None:
    """Let workers stop, unless another command has submitted the runs again."""
    if token_in(folder) == token:
        (folder / SENT).unlink(missing_ok=True)


def token_in(folder: Path) -> str | None:
    """The token of the current request for the runs of an experiment; None if there is none."""
    try:
        return read_bytes(folder / SENT, MAX_BYTES).decode().partition("\n")[0].rstrip("\r")
    except (OSError, ValueError):
        return None


def do_remote_task(text: str) -> tuple[str, str]:
    """Execute a run that was sent as a text: returns its status, and a reason if its folder does not have it.

    This is the only function that executors call. "refused": this worker cannot execute it; "busy": another one does.
    """
    here = f"worker {socket.gethostname()}"
    try:
        content = checked(dict, parse_json(text), "a remote task")
        version = content.pop("fedrank", "unknown")
        if version != __version__:
            return REFUSED, (
                f"{here} has fedrank {__version__}, but these runs were sent by fedrank {version}, whose results may "
                f"differ; install {version} on every worker"
            )
        remote = _parse_remote_task(content)
    except ValueError as problem:
        return REFUSED, f"{here} received an invalid remote task ({problem}); submit runs with `fedrank run --on`"
    folder = Path(remote.folder)
    if token_in(folder) != remote.token:
        return REFUSED, (
            f"{here} cannot find {folder / SENT} with the expected content, so its results would be lost; choose an "
            "--out on a file system that all workers share, under the same path"
        )
    try:
        task = _task_of(remote)
    except (ValueError, OSError, ImportError) as problem:
        return REFUSED, f"{here}: {error_message(problem)}"  # prose: ok
    with stop_requested(ENDS, again=False) as ends:
        wanted = RequestedRun(folder, remote.token)
        return _in_turn(task, remote.threads, lambda: ends() or not wanted(), here)


def _parse_remote_task(content: dict[str, Any]) -> RemoteTask:
    """The task in a message; ValueError if it is invalid, or points outside the folder of its experiment."""
    hints = hints_of(RemoteTask)
    if other := sorted({*hints} ^ {*content}):
        raise ValueError(f"{other[0]!r} is {'not known' if other[0] in content else 'missing'}")
    remote = RemoteTask(**{name: checked(hint, content[name], name) for name, hint in hints.items()})
    parts = remote.run.split("/")
    if len(parts) != 2 or not all(map(is_plain, parts)):
        raise ValueError(f"run = {remote.run!r} must be the folder of a variant and of a run in it")
    return remote


def _task_of(remote: RemoteTask) -> Task:
    """The requested run, if spec and data are the same on this machine."""
    experiment = read_tables(parse_toml(remote.spec)).base
    if to_toml(experiment) != remote.spec:
        raise ValueError("the spec is read differently here; install the same fedrank and the same external methods")
    if experiment.single(remote.fold, remote.seed) != experiment:
        raise ValueError(f"the spec is not that of fold {remote.fold} with seed {remote.seed}; send the runs again")
    check_device(remote.device)
    experiment.data.require()
    changed = changed_files(remote.files, data_sums(experiment)) if remote.files else []
    if changed:
        more = f" and {len(changed) - 1} more of its files" if len(changed) > 1 else ""
        raise ValueError(
            f"{changed[0]}{more} differ from the sender's data, so the result would differ; let "
            "FEDRANK_DATA point to the same files on every machine"
        )
    return Task(Path(remote.folder) / remote.run, experiment, **{name: getattr(remote, name) for name in OF_TASK})


class RequestedRun:
    """Whether the runs of a folder are still requested; the file is read only when necessary."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder, self._token = folder, token
        self._looked, self._answer = 0.0, True

    def __call__(self) -> bool:
        now = time.monotonic()
        if self._answer and now - self._looked >= SECONDS_BETWEEN_LOOKS:
            self._looked, self._answer = now, token_in(self._folder) == self._token
        return self._answer


def _in_turn(task: Task, threads: int, stop: Callable[[], bool], here: str) -> tuple[str, str]:
    """Execute the run when this process is free and no other one works on it; it may be finished by then."""
    while not _turn.acquire(timeout=SECONDS_BETWEEN_LOOKS):
        if stop():
            return "interrupted", ""
    try:
        deadline = time.monotonic() + SECONDS_FOR_LOCK
        while not stop():
            if is_locked(task.folder / LOCK) is not True:
                # Another worker may have finished it: an executor may have lost a worker that was only slow.
                if task.folder.is_dir() and any(run.status == "finished" for run in load_runs(task.folder)):
                    return "finished", ""
                try:
                    return perform(task, threads, stop=stop), ""
                except Locked:
                    pass
                except OSError as problem:
                    return "failed", f"{here}: {error_message(problem)}"  # prose: ok
            if time.monotonic() > deadline:
                return BUSY, f"another process is working on {task.folder}"
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return "interrupted", ""
    finally:
        _turn.release()
