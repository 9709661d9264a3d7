"""A federation of processes where things are hard: `python -m tests.deploy.hard_links [ten thirty renewal slow ...]`.

Ten sites on one machine; thirty real ones around a shared folder, with the memory that they take; a certificate that is
renewed in the middle of a run; a slow line that loses segments and is cut; thousands of rounds, with the bytes and the
memory that they take; a site that is expelled meanwhile. Where nobody is shut out, the model is that of a simulation,
bit for bit; the thirty sites add noise.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil

from fedrank.deploy.flare_jobs import run_deployed
from fedrank.deploy.flare_kit import approve, ca_fingerprint, expel, join, kits, renew, sign
from fedrank.deploy.flare_local import LocalFederation, provision_locally, running_locally
from fedrank.deploy.local import prepare, run_local, site_name, trial_plan
from fedrank.deploy.outbox import Outbox
from fedrank.deploy.settings import FEDERATION
from fedrank.deploy.status import DeploymentStatus, status
from fedrank.deploy.warm_up import warm_up
from fedrank.experiments.runner.schedule import is_finished, run_experiment
from fedrank.experiments.runner.schedule import plan as tasks_of
from fedrank.experiments.spec.source import read_spec
from fedrank.files import private_folder, write_atomic
from fedrank.privacy.population import Population
from fedrank.toml import write_toml
from tests.deploy.chaos import kind_of, processes
from tests.deploy.commands import CommandFederation
from tests.deploy.restored import serve_site
from tests.deploy.slow_link import Link, link
from tests.deploy.trial import check_equal, write_data

SPEC = """
rounds = {rounds}
evaluate_every = {every}
[learner]
name = "pdgd"
[clients]
count = {clients}
interactions = 2
[data]
train = "train.txt"
test = "test.txt"
"""
SLOW = {"delay": 0.1, "rate": 125_000.0, "lost": 0.01, "cut": 20.0}  # 100 ms each way, 1 Mbit/s, 1 %
NUMBERS = 2 * 4 * 5  # bytes of the five weights of the data of tests, down and up


class Trial:
    """A run between processes, beside the same by simulation."""

    def __init__(self, folder: Path, name: str, rounds: int, clients: int = 3) -> None:
        self.folder, self.rounds = folder, rounds
        write_data(folder)
        self.spec = folder / f"{name}.toml"
        self.spec.write_text(SPEC.format(rounds=rounds, every=max(1, rounds // 10), clients=clients))
        [self.task] = tasks_of(read_spec(self.spec), name, folder / "runs")
        self.plan = trial_plan(self.task, min(clients, 3))

    def check(self, federation: LocalFederation | None = None) -> None:
        """Nothing was lost, nothing charged twice, and the model is that of a simulation."""
        assert is_finished(self.task)
        out = self.folder / "simulated"
        run_experiment(read_spec(self.spec), self.task.name, out)
        check_equal(self.task.folder, out / self.task.folder.relative_to(self.folder / "runs"))
        for name, path in ({} if federation is None else federation.sites).items():
            box = Outbox(path / "outbox" / self.plan.digest[:32], self.plan.run)
            assert len(box) == self.rounds, f"{name}: {len(box)} rounds in its outbox"


def say(line: str) -> None:
    print(line, flush=True)


@contextlib.contextmanager
def three_sites(folder: Path) -> Iterator[tuple[LocalFederation, Link]]:
    """A server and three sites, and a line between them that only counts at first."""
    federation = provision_locally(folder / "federation", {site_name(number): number for number in range(3)})
    prepare(federation)
    # What a coordinator with a federation.toml has, so that `status` knows the place.
    sites = [
        {"name": name, "organisation": name.replace("-", "_"), "id": id} for id, name in enumerate(federation.sites)
    ]
    said = {"name": "local", "host": "localhost", "port": kits(federation.home)["kit"].port, "sites": sites}
    write_atomic(federation.home / FEDERATION, write_toml(said), private=True)
    with link(folder, federation.home, dict(federation.sites)) as line, running_locally(federation):
        yield federation, line


def watched(federation: LocalFederation, trial: Trial, look: Callable[[DeploymentStatus, float], None]) -> float:
    """Do a run, and look at what `fedrank deploy status` says of it every half second; seconds that it took."""
    began = time.monotonic()
    over = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        work = threads.submit(run_deployed, federation.home, trial.task, trial.plan, stop=over.is_set, say=say)
        try:
            while not work.done():
                found = status(federation.home)
                if found.folder == str(trial.task.folder):  # before, it is of the last run
                    look(found, time.monotonic() - began)
                time.sleep(0.5)
        finally:
            over.set()
        assert work.result() == "finished", work.result()
    return time.monotonic() - began


def ten(folder: Path) -> None:
    trial, began = Trial(folder, "ten", 20, clients=10), time.monotonic()
    results = run_local(read_spec(trial.spec), "ten", folder / "runs", 10, say=say)
    assert not results.failed, results.failed
    took = time.monotonic() - began
    trial.check()
    say(f"ten sites: 20 rounds in {took:.0f} s from nothing to a model, byte-equal to the simulation")


def thirty(folder: Path) -> None:
    """Thirty real sites around a shared folder, as processes that share the memory of the program."""
    made, began = CommandFederation(private_folder(folder / "thirty"), sites=30, rounds=5), time.monotonic()
    os.environ["XDG_STATE_HOME"] = made.environment["XDG_STATE_HOME"]
    warm_up(["pdgd"])
    forked = multiprocessing.get_context("fork")
    sites = [
        forked.Process(
            target=serve_site, args=(made.folder / "shared", made.home(name), made.folder / f"{name}.tap", 0)
        )
        for name in made.names
    ]
    for site in sites:
        site.start()
    try:
        run = made.begin("run", "run", "my.toml", "--home", "hub")
        while run.poll() is None:
            held = [psutil.Process(site.pid).memory_full_info().uss / 1e6 for site in sites if site.pid]
            time.sleep(1.0)
    finally:
        for site in sites:
            site.kill()
        made.close()
    assert run.returncode == 0, made.said("run")
    [plan] = {path.name for name in made.names for path in (made.home(name) / "outbox").iterdir()}
    answered = [len(Outbox(made.home(name) / "outbox" / plan, bytes.fromhex(plan))) for name in made.names]
    assert min(answered) >= 1, answered
    charged = [Population.charges_by_run(made.home(name) / "people")[plan] for name in made.names]
    assert charged == answered, (charged, answered)
    say(
        f"thirty sites: 5 rounds in {time.monotonic() - began:.0f} s; rounds answered by a site: {min(answered)} to "
        f"{max(answered)}, each charged once; {max(held):.0f} MB of a site that it does not share"
    )


def renewal(folder: Path, federation: LocalFederation, line: Link) -> None:
    """The certificate of a site, and then that of the server, are exchanged while rounds go on."""
    trial = Trial(folder, "renewal", 600)
    name, site = next(iter(federation.sites.items()))
    before = {path: kits(path)["kit"] for path in (site, federation.home)}
    due = [150, 350]

    def look(found: DeploymentStatus, seconds: float) -> None:
        if not due or found.round < due[0]:
            return
        if due.pop(0) == 150:
            join(sign(approve(renew(site), federation.home), federation.home), site, ca_fingerprint(federation.home))
            say(f"  {seconds:.0f} s, round {found.round}: the certificate of {name} was exchanged")
        else:
            renew(federation.home)
            say(f"  {seconds:.0f} s, round {found.round}: those of the server and the coordinator were exchanged")

    took = watched(federation, trial, look)
    assert not due, "the run was over before the certificates were renewed"
    assert all(kits(path)["kit"] != facts for path, facts in before.items())
    trial.check(federation)
    say(f"renewal: 600 rounds in {took:.0f} s, nothing lost, byte-equal to the simulation")


def slow(folder: Path, federation: LocalFederation, line: Link) -> None:
    """One site behind a bad line that also fails for a while; then all of them behind such lines."""
    name = list(federation.sites)[1]
    for label, bad, fails in (("one", (name,), True), ("all", tuple(federation.sites), False)):
        trial = Trial(folder, f"slow-{label}", 100)
        line.change(bad=bad, **SLOW)
        before, waits, down = line.counts(), set[str](), [0.0, 0.0]

        def look(found: DeploymentStatus, seconds: float, fails=fails, waits=waits, down=down) -> None:
            if fails and found.round >= 20 and not down[0]:
                down[0] = seconds
                line.change(down=True)
            if down[0] and not down[1] and seconds - down[0] > 90:
                down[1] = seconds
                line.change(down=False)
            for site in found.sites:
                told = f"{site.name}: {site.waited_for}"
                if site.waited_for and (kind := re.sub(r"\d+ s", "", told)) not in waits:
                    waits.add(kind)
                    say(f"  {seconds:.0f} s, round {found.round}, {found.state}: waits for {told}")

        took = watched(federation, trial, look)
        passed = line.counts() - before
        line.change(bad=(), cut=0.0)
        trial.check(federation)
        lost = sum(count for what, count in passed.items() if what.endswith(" lost"))
        if fails:
            assert any(told.startswith(name) for told in waits), "status never said for whom the run waits"
        say(
            f"slow line, {label}: 100 rounds in {took:.0f} s, {lost} segments sent again, {passed['cut']} connections "
            f"cut{', 90 s without a line' if fails else ''}; byte-equal to the simulation"
        )


def memory(folder: Path, federation: LocalFederation, line: Link, rounds: int = 3000) -> None:
    """What processes hold after the first rounds and after many; and what passes between a site and the server."""
    trial = Trial(folder, "memory", rounds)
    shown: list[tuple[int, dict[str, float], float]] = []

    def look(found: DeploymentStatus, seconds: float) -> None:
        if found.round >= 300 * (len(shown) + 1):
            held: dict[str, float] = {}
            for pid, command in processes(folder).items():
                kind = kind_of(command)
                held[kind] = max(held.get(kind, 0.0), resident(pid))
            counts = line.counts()
            passed = sum(counts[f"{name} {way}"] for name in federation.sites for way in ("up", "down"))
            shown.append((found.round, held, passed))
            text = ", ".join(f"{kind} {size:.0f}" for kind, size in sorted(held.items()))
            say(f"  {seconds:.0f} s, round {found.round}: MB of the largest: {text}")

    took = watched(federation, trial, look)
    trial.check(federation)
    first, last = shown[0], shown[-1]
    each = (last[2] - first[2]) / (last[0] - first[0]) / len(federation.sites)
    say(f"{rounds} rounds in {took:.0f} s, {1000 * took / rounds:.0f} ms each; byte-equal to the simulation")
    for kind, size in sorted(first[1].items()):
        say(f"  {kind}: {size:.0f} MB after {first[0]} rounds, {last[1].get(kind, 0):.0f} after {last[0]}")
    say(f"  {each / 1000:.1f} kB a site and round between it and the server, {(each - NUMBERS) / 1000:.1f} kB overhead")


def expelled(folder: Path, federation: LocalFederation, line: Link) -> None:
    """A site is shut out while the run goes on; the server lets it in no more, and the others finish."""
    trial = Trial(folder, "expelled", 400)
    trial.plan = replace(trial.plan, min_sites=2)
    name = list(federation.sites)[-1]
    out: list[float] = []

    def look(found: DeploymentStatus, seconds: float) -> None:
        if not out and found.round >= 100:
            expel(federation.home, name, "a trial")
            out.append(seconds)
            say(f"  {seconds:.0f} s, round {found.round}: {name} is expelled")

    watched(federation, trial, look)
    box = Outbox(federation.sites[name] / "outbox" / trial.plan.digest[:32], trial.plan.run)
    assert out, "the run was over before"
    assert 100 <= len(box) < 400, f"{name} answered {len(box)} rounds"
    say(f"expelled: {name} was asked for {len(box)} of 400 rounds, and the others finished")


def resident(pid: int) -> float:
    """MB that a process holds."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return 0.0


TOGETHER = {"renewal": renewal, "slow": slow, "memory": memory, "expel": expelled}  # in one federation, in this order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = ["ten", "thirty", *TOGETHER]
    parser.add_argument("what", nargs="*", choices=[*everything, []])  # Python 3.11 compares [] with the choices
    asked = parser.parse_args().what or everything
    with tempfile.TemporaryDirectory(prefix="fedrank-hard-") as made:
        folder = Path(made)
        if "ten" in asked:
            ten(folder)
        if "thirty" in asked:
            thirty(folder)
        if some := [show for name, show in TOGETHER.items() if name in asked]:
            with three_sites(folder) as (federation, line):
                for show in some:
                    show(folder, federation, line)


if __name__ == "__main__":
    main()
