"""A run is a chain of jobs. The truth lies in the run folder; a job of the engine only moves it on.

When a job ends early, when a site comes back that was away, or when nothing has moved for a while, the next one is
submitted. Each has a token, run and stretch, so that submitting it twice makes one. Whoever watches may be killed: run
again, it goes on.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.deploy.flare_active import Active, HubNews
from fedrank.deploy.flare_hardening import CONTROLLER, EXECUTOR
from fedrank.deploy.flare_kit import read_members
from fedrank.deploy.flare_session import Away, Coordinator, NotAllowed
from fedrank.files import is_alive, locked, write_atomic

if TYPE_CHECKING:
    from fedrank.deploy.plan import Plan
    from fedrank.deploy.unlearning import Departure
    from fedrank.experiments.runner.writer import News, Task

POLL = 2.0  # seconds between questions: each fills the server's audit log
SETTLE = 5.0  # seconds
LOOK = 0.1  # seconds between looks at a file
STILL = 180.0  # seconds without news after which the next job is submitted
ENDED, RUNNING = "FINISHED", "RUNNING"  # how the engine's states of a job begin when it is over; and one that runs
INTERRUPTED = "interrupted"  # the status of a run that goes on when it is run again
GONE = ("expelled", "left")
FAILURES = 3  # of jobs in a row that got nowhere, after which somebody has to look
LOCK = "run.lock"


@dataclass(frozen=True)
class Job:
    """What is submitted: a meta file and two configurations that name one class each. No code."""

    name: str
    sites: tuple[str, ...]
    controller: str = CONTROLLER
    executor: str = EXECUTOR

    def write(self, folder: Path) -> Path:
        """Its folder, as the engine wants it."""
        job = folder / self.name
        meta = {
            "name": self.name,
            "resource_spec": {},
            "min_clients": 1,
            "deploy_map": {"hub": ["server"], "site": list(self.sites)},
        }
        hub = {"format_version": 2, "workflows": [{"id": "hub", "path": self.controller, "args": {}}], "components": []}
        executor = {"tasks": ["*"], "executor": {"path": self.executor, "args": {}}}
        site = {"format_version": 2, "executors": [executor], "components": []}
        _write(job / "meta.json", meta)
        _write(job / "hub" / "config" / "config_fed_server.json", hub)
        _write(job / "site" / "config" / "config_fed_client.json", site)
        return job


def run_deployed(
    home: Path,
    task: Task,
    plan: Plan,
    tell: Callable[[News], None] = lambda news: None,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda line: None,
    departure: Departure | None = None,
) -> str:
    """Do a run with the sites of a federation, or go on with it; its status: finished, interrupted or failed.

    `say` is told in words what happens besides rounds. With `departure` its rounds unlearn who left another run.
    """
    home = Path(home).absolute()
    with locked(home / LOCK, f"{home} (`fedrank deploy run`)"), Coordinator(home) as server:
        sites = [*(site.name for site in plan.sites), *(() if departure is None else departure.leaving)]
        chain = Chain(home, lambda stretch: Active.of(task, plan, stretch, departure), sites, server)
        return chain.follow(tell, stop, say)


@dataclass
class Chain:
    """The jobs of one run, one after the other."""

    home: Path
    active: Callable[[int], Active]  # what is to be done, by the number of the stretch
    sites: Sequence[str]
    server: Coordinator
    controller: str = CONTROLLER
    executor: str = EXECUTOR

    def __post_init__(self) -> None:
        self._were_here = set(self.sites)

    def follow(
        self,
        tell: Callable[[News], None] = lambda news: None,
        stop: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda line: None,
    ) -> str:
        """Job after job, until the run has ended or somebody stops it."""
        stretch, nowhere = self._first(), 0
        while True:
            active = self.active(stretch)
            active.write(self.home)
            try:
                if not self._reach(stop, say):
                    return INTERRUPTED
                self._settle()
                ended, why = self._one(active, tell, stop)
            except Away as problem:
                self.server.close()
                ended, why = "", f"the server was away ({problem})"
            if ended:
                return ended
            news = HubNews.read(self.home, active)
            nowhere = nowhere + 1 if news is None else 0
            if nowhere >= FAILURES:
                raise RuntimeError(
                    f"{FAILURES} jobs in a row got nowhere, the last: {why}; look at engine.log and kit/log.txt in "
                    f"{self.home}, and at the sites, then run the same command again"
                )
            say(f"{why}; the run goes on with the next job")
            stretch += 1

    def _first(self) -> int:
        """One more than was ever submitted for this run."""
        try:
            before = Active.read(self.home)
        except (FileNotFoundError, ValueError):
            return 1
        return before.stretch + 1 if before.run == self.active(1).run else 1

    def _reach(self, stop: Callable[[], bool], say: Callable[[str], None]) -> bool:
        """Wait for the server; False: somebody stopped us."""
        told = False
        while not self.server.is_open and not self.server.connect():
            if not told:
                say("the server cannot be reached; start it with `fedrank deploy start`")
                told = True
            if stop():
                return False
            time.sleep(LOOK)
        if told:
            say("the server is there")
        return True

    def _settle(self) -> None:
        """Give sites that were here a moment to come back, as they do when the server was started anew."""
        deadline = time.monotonic() + SETTLE
        while not self.server.connected() >= self._were_here and time.monotonic() < deadline:
            time.sleep(SETTLE / 10)
        self._were_here = self.server.connected() & set(self.sites)

    def _one(self, active: Active, tell: Callable[[News], None], stop: Callable[[], bool]) -> tuple[str, str]:
        """Submit a job and watch it: how the run ended, or "" and why the job did."""
        from fedrank.experiments.runner.writer import News

        gone = {member.name for member in read_members(self.home).values() if member.state in GONE}
        sites = tuple(site for site in self.sites if site not in gone)
        token = f"{active.run}-{active.stretch}"
        with tempfile.TemporaryDirectory(dir=self.home) as folder:
            job = Job(active.job, sites, self.controller, self.executor).write(Path(folder))
            id = self.server.submit(job, token)
        asked = moved = time.monotonic()
        shown = 0.0
        lost: list[str] = []
        while True:
            stopped = stop()
            news = HubNews.read(self.home, active)
            if news is not None and news.at != shown:
                moved, shown = time.monotonic(), news.at
                if news.news is not None:
                    tell(News(**news.news))
            if news is not None and news.ended and news.ended != INTERRUPTED:
                if news.why:
                    raise RuntimeError(news.why)
                return news.ended, ""
            if news is not None and not news.ended and not is_alive(news.process):
                if HubNews.read(self.home, active) != news:
                    continue  # its last words
                self.server.end(id)
                return "", f"the job's process {news.process} died"
            if stopped:
                self.server.end(id)
                return INTERRUPTED, ""
            newly = news is not None and news.lost != lost
            if newly or time.monotonic() - asked >= POLL:
                asked, lost = time.monotonic(), [] if news is None else news.lost
                if why := self._over(id, news, asked - moved):
                    self.server.end(id)
                    return "", why
            time.sleep(LOOK)

    def _over(self, id: str, news: HubNews | None, still: float) -> str:
        """Why the next job is needed; "": it is not."""
        try:
            state, said = self.server.state(id)
        except NotAllowed as problem:
            return f"the server knows the job no more ({problem})"
        if state.startswith(ENDED) or (news is not None and news.ended):
            return f"the job ended ({'; '.join(said) or state})"
        if news is not None and news.lost and (back := sorted(set(news.lost) & self.server.connected())):
            return f"{', '.join(back)} came back"
        return f"nothing moved for {still:.0f} s" if still > STILL and state == RUNNING else ""


def _write(path: Path, content: Any) -> None:
    write_atomic(path, json.dumps(content, indent=1) + "\n")
