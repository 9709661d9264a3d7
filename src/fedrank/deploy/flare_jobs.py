"""A run is a chain of NVFLARE jobs. Its state is in the run folder; a job only advances it.

The next job is submitted when a job ends early, when an absent site returns, or when a run makes no progress for a
while. Each job has a token (run and stretch), so submitting it twice creates one job. If the watching process is
killed, running the command again continues the run.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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

POLL = 2.0  # seconds between requests: each adds to the server's audit log
SETTLE = 5.0  # seconds
LOOK = 0.1  # seconds between reads of a file
STILL = 180.0  # seconds without progress until the next job is submitted
ENDED, RUNNING = "FINISHED", "RUNNING"  # prefix of NVFLARE's states of a completed job; and the state of a running one
INTERRUPTED = "interrupted"  # status of a run that continues when it is run again
GONE = ("expelled", "left")
FAILURES = 3  # consecutive jobs without progress until the run stops with an error
LOCK = "run.lock"


@dataclass(frozen=True)
class Job:
    """What is submitted: a meta file and two configurations that name one class each, without code."""

    name: str
    sites: tuple[str, ...]
    controller: str = CONTROLLER
    executor: str = EXECUTOR

    def write(self, folder: Path) -> Path:
        """Write the job folder in NVFLARE's layout."""
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
    """Perform or continue a run with the sites of a federation; return its status: finished, interrupted or failed.

    `say` receives messages about events besides rounds. With `departure`, the rounds unlearn sites that left.
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
    active: Callable[[int], Active]  # the run, by number of the stretch
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
        """Submit job after job until the run ends or is stopped."""
        stretch, nowhere = self._first(), 0
        while True:
            active = self.active(stretch)
            active.write(self.home)
            try:
                if not self._reach(stop, say):
                    replace(active, stopped=True).write(self.home)
                    return INTERRUPTED
                self._settle()
                ended, why = self._one(active, tell, stop)
            except Away as problem:
                self.server.close()
                ended, why = "", f"the server was unreachable ({problem})"
            if ended:
                return ended
            news = HubNews.read(self.home, active)
            nowhere = nowhere + 1 if news is None else 0
            if nowhere >= FAILURES:
                raise RuntimeError(
                    f"{FAILURES} consecutive jobs made no progress, the last one: {why}; check engine.log and "
                    f"kit/log.txt in {self.home} and at the sites, then run the same command again"
                )
            say(f"{why}; the run continues with the next job")
            stretch += 1

    def _first(self) -> int:
        """One more than the last stretch submitted for this run."""
        try:
            before = Active.read(self.home)
        except (FileNotFoundError, ValueError):
            return 1
        return before.stretch + 1 if before.run == self.active(1).run else 1

    def _reach(self, stop: Callable[[], bool], say: Callable[[str], None]) -> bool:
        """Wait for the server; return False if the run was stopped."""
        reported = False
        while not self.server.is_open and not self.server.connect():
            if not reported:
                say("the server cannot be reached; start it with `fedrank deploy start`")
                reported = True
            if stop():
                return False
            time.sleep(LOOK)
        if reported:
            say("the server can be reached again")
        return True

    def _settle(self) -> None:
        """Give sites a moment to reconnect after a restart of the server."""
        deadline = time.monotonic() + SETTLE
        while not self.server.connected().keys() >= self._were_here and time.monotonic() < deadline:
            time.sleep(SETTLE / 10)
        self._were_here = self.server.connected().keys() & set(self.sites)

    def _one(self, active: Active, tell: Callable[[News], None], stop: Callable[[], bool]) -> tuple[str, str]:
        """Submit a job and watch it; return the status of the run, or "" and why the job ended."""
        from fedrank.experiments.runner.writer import News

        gone = {member.name for member in read_members(self.home).values() if member.state in GONE}
        sites = tuple(site for site in self.sites if site not in gone)
        token = f"{active.run}-{active.stretch}"
        with tempfile.TemporaryDirectory(dir=self.home) as folder:
            job = Job(active.job, sites, self.controller, self.executor).write(Path(folder))
            id = self.server.submit(job, token)
        asked = moved = time.monotonic()
        shown = 0.0
        lost: dict[str, float] = {}  # when each site was lost, in seconds since 1970
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
                    continue  # its last report
                self.server.end(id)
                return "", f"the job's process {news.process} died"
            if stopped:
                replace(active, stopped=True).write(self.home)  # ends the job if the server does not
                self.server.end(id)
                return INTERRUPTED, ""
            newly = news is not None and news.lost != sorted(lost)
            if newly or time.monotonic() - asked >= POLL:
                asked = time.monotonic()
                lost = {} if news is None else {site: lost.get(site, time.time()) for site in news.lost}
                if why := self._over(id, news, asked - moved, lost):
                    self.server.end(id)
                    return "", why
            time.sleep(LOOK)

    def _over(self, id: str, news: HubNews | None, still: float, lost: Mapping[str, float]) -> str:
        """Return why the next job is needed; "" if it is not."""
        try:
            state, said = self.server.state(id)
        except NotAllowed as problem:
            return f"the server no longer has the job ({problem})"
        if state.startswith(ENDED) or (news is not None and news.ended):
            return f"the job ended ({'; '.join(said) or state})"
        connected = self.server.connected() if lost else {}
        if back := sorted(site for site, since in lost.items() if connected.get(site, 0.0) > since):
            return f"{', '.join(back)} reconnected"
        return f"the run made no progress for {still:.0f} s" if still > STILL and state == RUNNING else ""


def _write(path: Path, content: Any) -> None:
    write_atomic(path, json.dumps(content, indent=1) + "\n")
