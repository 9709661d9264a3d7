"""Executors for runs on other machines: Dask, and Slurm through submitit. Both are extras.

Each is a `concurrent.futures.Executor`, the interface that `run_experiment` expects.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedrank.display import count_of
from fedrank.extras import missing_extra
from fedrank.names import did_you_mean

EXECUTORS = ("dask", "slurm")
HOW = "use dask://HOST:PORT or slurm"
SECONDS_TO_ANSWER = 10.0  # timeout for connecting to a scheduler
SECONDS_BETWEEN_LOOKS = 1.0  # between checks for the result of a job
SECONDS_BETWEEN_QUESTIONS = 60.0  # between queries to Slurm about jobs without a result
MINUTES = 60  # default time limit of a Slurm job; a longer run is submitted again
JOBS = ".slurm"  # in the folder of an experiment: the files of submitit
# Options of sbatch that apply to one run on one machine.
SBATCH = (
    "partition", "time", "mem", "account", "qos", "constraint", "cpus_per_task", "gpus_per_node", "gres", "nodelist",
    "exclude", "comment", "mail_type", "mail_user",
)  # fmt: skip
NUMBERS = ("time", "cpus_per_task", "gpus_per_node")


@contextmanager
def open_executor(
    on: str, folder: Path, sbatch: Sequence[str] = (), threads: int = 1, device: str = "cpu"
) -> Iterator[tuple[Executor, str]]:
    """The executor for `--on`, and a sentence about it; it is closed when the block ends.

    `folder` is the folder of the experiment. `sbatch` has options for Slurm, such as "partition=short".
    """
    kind = on.partition(":")[0]
    if kind not in EXECUTORS:
        raise ValueError(f"--on {on}: unknown executor {kind!r}{did_you_mean(kind, EXECUTORS)}; {HOW}")
    if sbatch and kind != "slurm":
        raise ValueError(f"--sbatch {sbatch[0]}: sbatch options apply only to Slurm; remove it, or use --on slurm")
    if kind == "dask":
        with _dask(on) as found:
            yield found
    elif on != "slurm":
        raise ValueError(f"--on {on}: slurm has no address; use --on slurm on a machine where sbatch works")
    else:
        options: dict[str, Any] = {"time": MINUTES, "cpus_per_task": threads}
        if device.startswith("cuda"):
            options["gpus_per_node"] = 1
        yield _slurm(folder, options | sbatch_options(sbatch)), "Runs are submitted to Slurm, one job per run"


@contextmanager
def _dask(on: str) -> Iterator[tuple[Executor, str]]:
    try:
        host, port = urlsplit(on).hostname, urlsplit(on).port
    except ValueError as problem:
        raise ValueError(f"--on {on}: {problem}; write dask://HOST:PORT, such as dask://node7:8786") from None
    if host is None or port is None or "@" in on or on.rstrip("/") != f"dask://{urlsplit(on).netloc}":
        raise ValueError(
            f"--on {on} is not the address of a scheduler; write dask://HOST:PORT, such as dask://node7:8786"
        )
    try:
        from distributed import Client
    except ImportError:
        raise missing_extra(f"--on {on} needs the package distributed", "dask") from None
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        client = Client(f"tcp://{address}", timeout=SECONDS_TO_ANSWER, set_as_default=False)
    except OSError as problem:
        raise ConnectionError(
            f"--on {on}: no Dask scheduler answered within {SECONDS_TO_ANSWER:.0f} seconds ({problem}); start one "
            "with `dask scheduler`, and workers with `dask worker`, or correct the address"
        ) from None
    with client:
        yield client.get_executor(pure=False), _about_workers(address, list(client.nthreads().values()))


def _about_workers(address: str, threads: Sequence[int]) -> str:
    if not threads:
        return f"Runs are submitted to Dask at {address}, which has no worker yet; they begin when one joins"
    text = f"Runs are submitted to Dask at {address}, which has {count_of(len(threads), 'worker')}"
    if max(threads) > 1:
        text += (
            "; each executes one run at a time, so start one worker per core: dask worker --nworkers auto --nthreads 1"
        )
    return text


def sbatch_options(given: Sequence[str]) -> dict[str, Any]:
    """Options of sbatch in the form that submitit expects.

    >>> sbatch_options(["partition=short", "time=240", "cpus-per-task=2"])
    {'partition': 'short', 'time': 240, 'cpus_per_task': 2}
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        key = name.lstrip("-").replace("-", "_")
        if not equals or not value:
            raise ValueError(f"--sbatch {text}: has no value; write, for example, --sbatch partition=short")
        if key not in SBATCH:
            raise ValueError(f"--sbatch {text}: unknown or unsupported option {name!r}{did_you_mean(key, SBATCH)}")
        if key in NUMBERS and not (value.isascii() and value.isdigit() and int(value) > 0):
            unit = "minutes" if key == "time" else "a number"
            raise ValueError(f"--sbatch {text}: {value!r} is not {unit}; write, for example, {name}=2")
        found[key] = int(value) if key in NUMBERS else value
    return found


def _slurm(folder: Path, options: Mapping[str, Any]) -> Executor:
    try:
        from submitit import SlurmExecutor
    except ImportError:
        raise missing_extra("--on slurm needs the package submitit", "slurm") from None
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise FileNotFoundError(
            "--on slurm: sbatch and srun were not found; run the command on a machine of the cluster, such as its "
            "login node"
        )
    jobs = SlurmExecutor(folder.absolute() / JOBS / "%j")
    jobs.update_parameters(job_name=f"fedrank-{folder.name}", **options)
    return SubmititExecutor(jobs)


class SubmititExecutor(Executor):
    """A submitit executor with Python's executor interface: one job per call."""

    def __init__(self, jobs: Any) -> None:
        self._jobs = jobs  # a submitit.Executor
        self._checked = time.monotonic()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return _JobFuture(self._jobs.submit(fn, *args, **kwargs), self._must_check)

    def _must_check(self) -> bool:
        """Whether to query Slurm now. One query covers all jobs; by default, submitit waits up to ten minutes."""
        due = time.monotonic() - self._checked >= SECONDS_BETWEEN_QUESTIONS
        self._checked = time.monotonic() if due else self._checked
        return due


class _JobFuture(Future[Any]):
    """The result of a submitit job, which `done` checks periodically."""

    def __init__(self, job: Any, must_check: Callable[[], bool]) -> None:
        super().__init__()
        self._job, self._must_check, self._looked = job, must_check, 0.0

    def done(self) -> bool:
        if not super().done() and time.monotonic() - self._looked >= SECONDS_BETWEEN_LOOKS:
            self._looked = time.monotonic()
            if self._job.done(force_check=self._must_check()):
                try:
                    self.set_result(self._job.result())
                except Exception as problem:  # submitit raises various errors for a job without a result
                    self.set_exception(problem)
        return super().done()

    def cancel(self) -> bool:
        self._job.cancel(check=False)
        return super().cancel()
