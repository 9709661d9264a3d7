"""Two small files in the coordinator's home that connect `fedrank deploy run` and the server's job.

`active.json` names the run; the command writes it before it submits a job, so the job carries no content.
`hub-JOB.json` holds the progress and result of a job, which writes it. Both survive a restart of either process.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.files import parse_json, write_atomic

if TYPE_CHECKING:
    from fedrank.deploy.plan import Plan
    from fedrank.deploy.unlearning import Departure
    from fedrank.experiments.runner.writer import News, Task

ACTIVE = "active.json"
BETWEEN_NEWS = 0.2  # seconds
BETWEEN_MARKS = 1.0  # seconds between reads of active.json


@dataclass(frozen=True)
class Active:
    """The run that a coordinator works on. A chain of jobs performs it, one stretch each."""

    run: str  # 16 bytes, in hex
    stretch: int
    plan_text: str
    spec: str  # TOML, with the coordinator's paths
    folder: str
    name: str
    variant: str
    settings: dict[str, Any]
    fold: int
    seed: int
    departure: dict[str, Any] | None = None  # which sites its rounds unlearn, from which run and how
    stopped: bool = False  # whether the user stopped the run: its job ends even if the server cannot be reached

    @classmethod
    def of(cls, task: Task, plan: Plan, stretch: int, departure: Departure | None = None) -> Active:
        from fedrank.experiments.spec.experiment import to_toml
        from fedrank.experiments.spec.families import describe

        return cls(
            plan.run.hex(),
            stretch,
            plan.dump().decode(),
            to_toml(task.experiment),
            str(task.folder.absolute()),
            task.name,
            task.variant,
            task.settings,
            task.fold,
            task.seed,
            None
            if departure is None
            else {
                "run": str(departure.parent.absolute()),
                "leaving": list(departure.leaving),
                "method": describe(departure.unlearner),
            },
        )

    @classmethod
    def read(cls, home: Path) -> Active:
        path = home / ACTIVE
        try:
            return cls(**parse_json(path.read_bytes()))
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} does not exist: no run was requested; use `fedrank deploy run`") from None
        except TypeError as problem:
            raise ValueError(
                f"{path} was written by another version of fedrank ({problem}); run the spec again"
            ) from None

    @property
    def job(self) -> str:
        """The name of the job that performs this stretch."""
        return f"fedrank-{self.run[:8]}-{self.stretch}"

    def write(self, home: Path) -> None:
        """Name this job, and remove the reports of earlier ones."""
        write_atomic(home / ACTIVE, json.dumps(asdict(self), indent=1) + "\n", private=True)
        for path in home.glob(reports("*", "*")):
            if path.name != reports(self.run, self.stretch):
                path.unlink(missing_ok=True)

    def task(self) -> Task:
        from fedrank.experiments.runner.writer import Task
        from fedrank.experiments.spec.grid import read_tables
        from fedrank.toml import parse_toml

        experiment = read_tables(parse_toml(self.spec)).base
        return Task(Path(self.folder), experiment, self.name, self.variant, self.settings, self.fold, self.seed)

    def plan(self) -> Plan:
        from fedrank.deploy.plan import Plan

        return Plan.load(self.plan_text.encode())

    def departs(self) -> Departure | None:
        """The sites that the rounds of this run unlearn."""
        from fedrank.deploy.unlearning import named
        from fedrank.experiments.spec.families import build
        from fedrank.unlearning.methods import Unlearner

        if self.departure is None:
            return None
        asked = self.departure
        return named(Path(asked["run"]), asked["leaving"], build(Unlearner, asked["method"], "method"))


def reports(run: str, stretch: int | str) -> str:
    """Name of the file with the reports of a job. A job that was replaced may still write to its own one."""
    return f"hub-{run[:8]}-{stretch}.json"


def _latest(home: Path) -> Active | None:
    try:
        return Active.read(home)
    except (OSError, ValueError):
        return None


class StopMark:
    """Whether a job must end because its run was stopped, or because the home names another job.

    A job whose command was killed, or could not reach the server to end it, would otherwise occupy the sites: each
    participates in one run at a time, so no other run could start.
    """

    def __init__(self, home: Path, active: Active, every: float = BETWEEN_MARKS) -> None:
        self._home, self._active, self._every = home, active, every
        self._read = float("-inf")
        self._found = False

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self._found and now - self._read >= self._every:
            self._read, found = now, _latest(self._home)
            own = self._active.run, self._active.stretch
            self._found = found is not None and (found.stopped or (found.run, found.stretch) != own)
        return self._found


@dataclass(frozen=True)
class HubNews:
    """What a job last reported about its run."""

    run: str
    stretch: int
    at: float  # seconds since 1970; identifies the report
    process: int  # process ID of the job on the coordinator's machine
    news: dict[str, Any] | None = (
        None  # fields of `fedrank.experiments.runner.writer.News`; None: no round has completed in this job
    )
    lost: list[str] = field(default_factory=list)  # sites that cannot be reached
    ended: str = ""  # "": it continues; otherwise the status from `coordinate`, or "failed"
    why: str = ""  # reason of a failure

    @classmethod
    def read(cls, home: Path, active: Active) -> HubNews | None:
        """Read the report; None if no job of this stretch has written one."""
        try:
            return cls(**parse_json((home / reports(active.run, active.stretch)).read_bytes()))
        except (FileNotFoundError, TypeError):  # or written by another version
            return None

    def write(self, home: Path) -> None:
        write_atomic(home / reports(self.run, self.stretch), json.dumps(asdict(self)) + "\n", private=True)


class HubVoice:
    """Writes the reports of a job about its run: progress at intervals, the result immediately."""

    def __init__(self, home: Path, active: Active, lost: Callable[[], Iterable[str]]) -> None:
        self._home, self._lost = home, lost
        self._last = HubNews(active.run, active.stretch, time.time(), os.getpid())
        self._over = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> HubVoice:
        self._writer.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._over.set()
        self._writer.join()

    def tell(self, news: News) -> None:
        self._last = replace(self._last, at=time.time(), news=asdict(news))

    def end(self, status: str, why: str = "") -> None:
        self.__exit__()
        replace(self._last, at=time.time(), ended=status, why=why).write(self._home)

    def _write(self) -> None:
        written = None
        while True:
            found = replace(self._last, lost=sorted(self._lost()))
            if (found.at, found.lost) != written:
                found.write(self._home)
                written = found.at, found.lost
            if self._over.wait(BETWEEN_NEWS):
                return
