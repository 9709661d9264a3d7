"""Engines that do runs on other machines: Dask, and Slurm through submitit. Both are extras.

Each becomes a `concurrent.futures.Executor`, which is all that `run_experiment` knows of it.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedrank.extras import missing
from fedrank.names import nearest

KINDS_OF_ENGINES = ("dask", "slurm")
HOW = "use dask://HOST:PORT or slurm"
SECONDS_TO_ANSWER = 10.0  # until a scheduler that does not answer is given up
SECONDS_BETWEEN_LOOKS = 1.0  # at the answers of jobs
SECONDS_BETWEEN_QUESTIONS = 60.0  # to Slurm, about jobs that left none
MINUTES = 60  # that Slurm gives a job if nobody says otherwise; a run that takes longer is sent again
JOBS = ".slurm"  # below the folder of an experiment: what submitit writes of its jobs
# Options of sbatch that mean something for one run on one machine.
SBATCH = (
    "partition", "time", "mem", "account", "qos", "constraint", "cpus_per_task", "gpus_per_node", "gres", "nodelist",
    "exclude", "comment", "mail_type", "mail_user",
)  # fmt: skip
NUMBERS = ("time", "cpus_per_task", "gpus_per_node")


@contextmanager
def engine(
    on: str, folder: Path, sbatch: Sequence[str] = (), threads: int = 1, device: str = "cpu"
) -> Iterator[tuple[Executor, str]]:
    """The engine that `--on` names, and what there is to say of it; it is left when the block ends.

    `folder` is that of the experiment. `sbatch` has options for Slurm, such as "partition=short".
    """
    kind = on.partition(":")[0]
    if kind not in KINDS_OF_ENGINES:
        raise ValueError(f"--on {on}: no engine {kind!r}{nearest(kind, KINDS_OF_ENGINES)}; {HOW}")
    if sbatch and kind != "slurm":
        raise ValueError(f"--sbatch {sbatch[0]}: {kind} has no such options; leave it out, or say --on slurm")
    if kind == "dask":
        with _dask(on) as found:
            yield found
    elif on != "slurm":
        raise ValueError(f"--on {on}: slurm has no address; say --on slurm on a machine from which sbatch works")
    else:
        asked = {"time": MINUTES, "cpus_per_task": threads} | (
            {"gpus_per_node": 1} if device.startswith("cuda") else {}
        )
        with _slurm(folder, asked | sbatch_options(sbatch)) as executor:
            yield executor, "Runs go to Slurm, a job each"


@contextmanager
def _dask(on: str) -> Iterator[tuple[Executor, str]]:
    try:
        host, port = urlsplit(on).hostname, urlsplit(on).port
    except ValueError as problem:
        raise ValueError(f"--on {on}: {problem}; write dask://HOST:PORT, such as dask://node7:8786") from None
    if host is None or port is None or "@" in on or on.rstrip("/") != f"dask://{urlsplit(on).netloc}":
        raise ValueError(f"--on {on} names no scheduler; write dask://HOST:PORT, such as dask://node7:8786")
    try:
        from distributed import Client
    except ImportError:
        raise missing(f"--on {on} needs the package distributed", "dask") from None
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        client = Client(f"tcp://{address}", timeout=SECONDS_TO_ANSWER, set_as_default=False)
    except OSError as problem:
        raise ConnectionError(
            f"--on {on}: no Dask scheduler answers there within {SECONDS_TO_ANSWER:.0f} seconds ({problem}); start one "
            "with `dask scheduler`, and workers with `dask worker`, or give its address"
        ) from None
    with client:
        yield client.get_executor(pure=False), _about_workers(address, list(client.nthreads().values()))


def _about_workers(address: str, threads: Sequence[int]) -> str:
    if not threads:
        return f"Runs go to Dask at {address}, which has no worker yet; they begin when one joins"
    said = f"Runs go to Dask at {address}, which has {len(threads)} worker{'' if len(threads) == 1 else 's'}"
    if max(threads) > 1:
        said += "; each does one run at a time, so start one per core: dask worker --nworkers auto --nthreads 1"
    return said


def sbatch_options(given: Sequence[str]) -> dict[str, Any]:
    """Options of sbatch as submitit takes them.

    >>> sbatch_options(["partition=short", "time=240", "cpus-per-task=2"])
    {'partition': 'short', 'time': 240, 'cpus_per_task': 2}
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        key = name.lstrip("-").replace("-", "_")
        if not equals or not value:
            raise ValueError(f"--sbatch {text}: say what it shall be, as in --sbatch partition=short")
        if key not in SBATCH:
            raise ValueError(f"--sbatch {text}: no option {name!r} that runs can have{nearest(key, SBATCH)}")
        if key in NUMBERS and not (value.isascii() and value.isdigit() and int(value) > 0):
            unit = "minutes" if key == "time" else "a number"
            raise ValueError(f"--sbatch {text}: {value!r} is not {unit}; write, for example, {name}=2")
        found[key] = int(value) if key in NUMBERS else value
    return found


@contextmanager
def _slurm(folder: Path, options: Mapping[str, Any]) -> Iterator[Executor]:
    try:
        from submitit import SlurmExecutor
    except ImportError:
        raise missing("--on slurm needs the package submitit", "slurm") from None
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise FileNotFoundError(
            "--on slurm: no sbatch and srun here; run the command on a machine of the cluster, such as its login node"
        )
    jobs = SlurmExecutor(folder.absolute() / JOBS / "%j")
    jobs.update_parameters(job_name=f"fedrank-{folder.name}", **options)
    with SubmititExecutor(jobs) as executor:
        yield executor


class SubmititExecutor(Executor):
    """An executor of submitit as one of Python's: a job for each call, whose answer is looked for now and then."""

    def __init__(self, jobs: Any) -> None:
        self._jobs = jobs  # a submitit.Executor
        self._turn = threading.Condition()
        self._under_way: dict[Future[Any], Any] = {}  # -> submitit.Job
        self._closed = False
        self._watcher: threading.Thread | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._turn:
            if self._closed:
                raise RuntimeError("this executor is closed, and takes nothing any more")
            future: Future[Any] = Future()
            job = self._jobs.submit(fn, *args, **kwargs)
            self._under_way[future] = job
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="submitit", daemon=True)
                self._watcher.start()
        future.add_done_callback(lambda done: job.cancel(check=False) if done.cancelled() else None)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._turn:
            self._closed = True
            left = list(self._under_way)
            self._turn.notify_all()
        if cancel_futures:
            for future in left:
                future.cancel()
        if wait and self._watcher is not None:
            self._watcher.join()

    def _watch(self) -> None:
        asked = time.monotonic()
        while True:
            with self._turn:
                if self._closed and not self._under_way:
                    return
                under_way = list(self._under_way.items())
            # One question is about all jobs; by itself submitit waits up to ten minutes for the next.
            ask = time.monotonic() - asked >= SECONDS_BETWEEN_QUESTIONS
            for future, job in under_way:
                if future.cancelled() or job.done(force_check=ask):
                    _answer(future, job)
                    with self._turn:
                        del self._under_way[future]
                if ask:
                    ask, asked = False, time.monotonic()
            with self._turn:
                self._turn.wait(SECONDS_BETWEEN_LOOKS)


def _answer(future: Future[Any], job: Any) -> None:
    """Hand on what a job left: its result, or why there is none."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = job.result()
    except Exception as problem:  # whatever submitit makes of a job that ended without one
        future.set_exception(problem)
    else:
        future.set_result(result)
