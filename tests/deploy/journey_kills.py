"""Three hospitals under kill -9, from click logs to a second plan: `python -m tests.deploy.journey_kills --kills 100`.

Every command of the journey is a process that is killed before a random one of its writes, and repeated: building a
data set, accepting, the coordinator and the sites of a run with releases and a gate, delivery, export, planning,
reading, deciding and adopting a trial, and `engine refresh` around a second plan that starts from the first model.

At the end nothing is lost and nothing is charged twice: every site has one message and one charge per round and per
release of each plan; each window was used for one model; the data set and the trial are those of commands that were
not killed; every site has the model of the coordinator, and one that it made of it; and one trial is planned by the
refresh.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from fedrank.cli import app
from fedrank.data.held_out import read_window
from fedrank.data.logs import load_log
from fedrank.deploy.site_releases import MODEL_FILES, RECEIVED
from fedrank.engine.practice import EVENTS, QUERIES, Practice
from fedrank.engine.trial import EngineTrial
from fedrank.engine.trial_record import PLAN
from fedrank.experiments.runner.runs import load_runs
from fedrank.privacy.population import LEDGER, RELEASES, Account, Charge
from tests.deploy.restored import Fate

SITES = ("north", "east", "south")
SEARCHES, PEOPLE, ROUNDS = 2000, 60, 2
SPEC = f"""
rounds = {ROUNDS}
measures = ["ndcg@10"]
[data]
features = "engine-1"
propensities = "swaps"
[clients]
count = 3
people = {PEOPLE}
interactions = 100
schedule = "dealt"
[learner]
name = "logged-clicks"
rate = 1.0
[server]
name = "add"
rate = 1.5
[mechanism]
name = "gaussian"
unit = "person"
clip = 6.8
noise = 0.1
[privacy]
release_noise = 0.05
[gate]
"""
SITE = """
name = "{name}"
id = {id}
federation = "hospitals"
second_place = "../second/{name}"
[data]
log = "../{log}"
person = "user"
[policy]
learners = ["logged-clicks"]
unit = "person"
largest_epsilon = 1000000.0
min_sites = 3
measures = ["ndcg@10"]
accept = "listed"
"""
REFRESH = """
[build]
ubi_queries = "next-north/ubi_queries.ndjson"
ubi_events = "next-north/ubi_events.ndjson"
docs = "next-north/docs.jsonl"
features = "engine-1"
person = "user_id"
previous = "built-north"
[received]
models = "north/models"
[trial]
to = "own"
who = "ann"
"""
PATIENCE = 3600.0  # seconds until a run must have ended


class Journey:
    """Runs commands in forked processes, kills them, and repeats them."""

    def __init__(self, kills: int, seed: int) -> None:
        self.rng, self.left, self.killed, self.began = random.Random(seed), kills, Counter[str](), time.monotonic()

    def fork(self, words: list[str], dies: bool, longest: int) -> int:
        """The id of a process that runs a command and, if it `dies`, is killed before one of its first writes."""
        at = self.rng.randint(1, longest) if dies else 0
        if pid := os.fork():
            return pid
        status, printed = 3, io.StringIO()
        try:
            if at:
                Fate(at)
            with contextlib.redirect_stdout(printed):
                status = app(words, standalone_mode=False) or 0
        except BaseException:
            traceback.print_exc(file=printed)
        if status not in (0, 1):
            sys.stderr.write(f"{' '.join(words)}\n{printed.getvalue()}\n")
            sys.stderr.flush()
        os._exit(status)

    def note(self, what: str, status: int) -> bool:
        """Whether a process ended by itself; anything but a kill or success is an error."""
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            self.killed[what] += 1
            self.left -= 1
            return False
        if os.waitstatus_to_exitcode(status):
            raise AssertionError(f"{what} ended with status {os.waitstatus_to_exitcode(status)}")
        return True

    def do(self, what: str, command: str, kills: int = 0, longest: int = 12) -> None:
        """Repeat a command until it ends; it is killed up to `kills` times."""
        while True:
            pid = self.fork(command.split(), kills > 0 and self.left > 0, longest)
            if self.note(what, os.waitpid(pid, 0)[1]):
                break
            kills -= 1
        print(f"{time.monotonic() - self.began:6.0f} s  {what}: done, {sum(self.killed.values())} kills", flush=True)

    def run(self, name: str, more: str, kills: int) -> None:
        """The coordinator and three sites, each killed up to `kills` times."""
        command = f"deploy run spec.toml --name {name} --home coordinator --quiet {more}".split()
        left = dict.fromkeys(("coordinator", *SITES), kills)
        ends, at_work = time.monotonic() + PATIENCE, 0
        while True:
            if not at_work:
                at_work = self.fork(command, left["coordinator"] > 0 and self.left > 0, 40)
            found, status = os.waitpid(at_work, os.WNOHANG)
            if found:
                at_work = 0
                if self.note(f"{name}: the coordinator", status):
                    break
                left["coordinator"] -= 1
            pids = {}
            for site in SITES:
                dies = left[site] > 0 and self.left > 0
                pids[site] = self.fork(f"deploy start --home {site} --once".split(), dies, 25)
            for site, pid in pids.items():
                if not self.note(f"{name}: a site", os.waitpid(pid, 0)[1]):
                    left[site] -= 1
            if time.monotonic() > ends:
                os.kill(at_work, signal.SIGKILL)
                raise AssertionError(f"the run {name} did not end")
            time.sleep(0.2)
        print(f"{time.monotonic() - self.began:6.0f} s  {name}: done, {sum(self.killed.values())} kills", flush=True)


def build(site: str, log: str, out: str, more: str) -> str:
    return (
        f"data build --ubi-queries {log}-{site}/{QUERIES} --ubi-events {log}-{site}/{EVENTS} "
        f"--docs {log}-{site}/docs.jsonl --features engine-1 --person user_id --out {out} --quiet {more}"
    )


FIRST = "--hold-out-days 10 --hold-out-users 0.1 --hold-out-key practice"


def write_logs(log: str, first: int, model: str | None) -> None:
    """In another process, so that this one, which forks, has no threads."""
    if (pid := os.fork()) == 0:
        for site in SITES:
            Practice.begin(site).write_log(f"{log}-{site}", SEARCHES, PEOPLE, first=first, model=model)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def write_trial(trial: str) -> None:
    if (pid := os.fork()) == 0:
        for week in range(3):
            Practice.begin("north").write_trial(trial, f"week-{week}", 500, first=500 * week, people=PEOPLE)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def write_settings(logs: dict[str, str]) -> None:
    for id, (site, log) in enumerate(logs.items()):
        Path(site, "site.toml").write_text(SITE.format(name=site, id=id, log=log))


def chaos(kills: int, seed: int) -> Counter[str]:
    journey = Journey(kills, seed)
    Path("spec.toml").write_text(SPEC)
    Path("refresh.toml").write_text(REFRESH)
    write_logs("log", 0, None)
    journey.do("init", "deploy init --folder shared --name hospitals --home coordinator")
    for id, site in enumerate(SITES):
        journey.do("build", build(site, "log", f"built-{site}", FIRST), 3)
        journey.do(
            "join", f"deploy join shared --name {site} --id {id} --fingerprint {key('coordinator')} --home {site}"
        )
        journey.do("approve", f"deploy approve {site} --id {id} --fingerprint {key(site)} --home coordinator")
    write_settings({site: f"built-{site}" for site in SITES})
    for site in SITES:
        journey.do("accept", f"deploy accept spec.toml --home {site} --yes", 2, 4)
    journey.run("first", "", 8)
    [first] = Path("north", "models").glob("*/model*.json")
    shutil.copy(first, "candidate.json")
    journey.do("export", "model export candidate.json --to opensearch --out exported.json --anyway", 2, 3)
    json.loads(Path("exported.json").read_text())
    planned = "engine trial plan candidate.json --against engine --to own --out trials/spring --key practice --who ann"
    journey.do("plan", planned, 3, 6)
    shutil.copytree("trials/spring", "unkilled/spring")
    write_trial("trials/spring")
    for week in range(3):
        files = f"week-{week}/{QUERIES} week-{week}/{EVENTS}"
        journey.do("read", f"engine trial read trials/spring {files}", 4, 6)
        journey.do("read", f"engine trial read unkilled/spring {files}")
    journey.do("decide", "engine trial decide trials/spring --who ann", 2, 4)
    journey.do("adopt", "engine trial adopt trials/spring --who ann --anyway --because practice", 3, 5)
    write_logs("next", SEARCHES, "candidate.json")
    journey.do("refresh", "engine refresh .", 5, 12)
    [data] = Path("data").glob("20*")
    for site in SITES[1:]:
        journey.do("build", build(site, "next", f"next-{site}/built", f"--previous built-{site}"), 3)
    write_settings({"north": str(data)} | {site: f"next-{site}/built" for site in SITES[1:]})
    journey.run("second", "--set start=coordinator/runs/first/only/fold-1-seed-1", 8)
    while journey.left > 0 and not list(Path("trials", data.name).glob(PLAN)):
        pid = journey.fork(["engine", "refresh", "."], True, 12)
        if journey.note("refresh", os.waitpid(pid, 0)[1]):
            break
    journey.do("refresh", "engine refresh .")
    journey.do("build", build("north", "log", "unkilled/built", FIRST))
    check(data)
    return journey.killed


def key(party: str) -> str:
    from fedrank.deploy.identity import fingerprint, read_identity

    return fingerprint(read_identity(Path(party)).public)


def check(data: Path) -> None:
    one, other = load_log("built-north"), load_log("unkilled/built")
    for name in ("user", "time", "query", "lists", "clicks", "swap", "held_out"):
        assert (getattr(one, name) == getattr(other, name)).all(), f"the data set differs in {name}"
    runs = {name: load_runs(f"coordinator/runs/{name}")[0] for name in ("first", "second")}
    for site in SITES:
        plans = sorted(Path(site, "people").glob(f"*/{LEDGER}"))
        assert len(plans) == 2, f"{site} has charges of {len(plans)} plans"
        for ledger in plans:
            account = Account.read(ledger)
            assert account is not None
            assert account.participations.max() == ROUNDS, f"{site} was charged {account.participations.max()} times"
            charges = {charge.key: charge.times for charge in Charge.read_all(ledger.with_name(RELEASES))}
            assert charges == {"propensity": 1, "quality": 1, "gate": 1}, f"{site}: {charges}"
            outbox = Path(site, "outbox", ledger.parent.name)
            sent = [path.name.partition("-")[0] for path in outbox.iterdir() if path.is_file()]
            assert len(sent) == len(set(sent)) == account.rounds == ROUNDS, f"{site}: {sent}, {account.rounds} charged"
        assert len(models_of(site)) == 2, f"{site} combined {len(models_of(site))} models"
        models = {hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(site, "models").glob(f"*/{RECEIVED}")}
        assert models == {hashlib.sha256((run.path / "model.json").read_bytes()).hexdigest() for run in runs.values()}
    for folder in ("built-north", "built-east", "built-south", data, "next-east/built", "next-south/built"):
        assert len(read_window(folder).uses) == 1, (
            f"the window of {folder} was used {len(read_window(folder).uses)} times"
        )
    killed, unkilled = (EngineTrial(folder).judged() for folder in ("trials/spring", "unkilled/spring"))
    assert (killed.ruling, killed.because) == (unkilled.ruling, unkilled.because)
    assert sum(entry.what == "adopted" for entry in EngineTrial("trials/spring").history()) == 1
    vetoed = (models_of("north")[-1]).name == MODEL_FILES["veto"]
    assert len(list(Path("trials").glob(f"20*/{PLAN}"))) == (0 if vetoed else 1)


def models_of(site: str) -> list[Path]:
    found = [path for name in MODEL_FILES.values() for path in Path(site, "models").glob(f"*/{name}")]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedrank-journey-") as folder, contextlib.chdir(folder):
        killed = chaos(asked.kills, asked.seed)
    print(f"{sum(killed.values())} kills, nothing lost and nothing charged twice: {dict(killed)}")


if __name__ == "__main__":
    main()
