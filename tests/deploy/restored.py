"""Site processes that die at every write, and whose files are lost, old, cut or exchanged between rounds.

    python -m tests.deploy.restored --count 100 [--writes 60] [--seed 1]

A coordinator and three sites are processes that exchange messages through a shared folder. First a site, then the
coordinator, is killed (SIGKILL) at its 1st, 2nd, 3rd ... write. Then, as often as `--count` says, a site is killed,
files of its home or its second place are deleted, emptied, shortened, changed, replaced by older ones or by those of
another site, one by one or mixed, or the whole home is put back from an older copy; and it is started again.

Every message that leaves a site is also written to a file outside its home. At any time the ledger of the site has at
least as many charges as messages left it; a round has a second message only after `fedrank deploy restore`. A site that
refuses says how to go on, and goes on when that was done.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrank import wire
from fedrank.deploy import heads, protocol, site_calls
from fedrank.deploy.backup import backup, restore
from fedrank.deploy.coordinate import LEFT_OUT, coordinate
from fedrank.deploy.flare_processes import end_with_parent
from fedrank.deploy.folder import FolderSend, serve
from fedrank.deploy.folder_members import read_home
from fedrank.deploy.make_plans import plan_runs, readmit
from fedrank.deploy.site import Site
from fedrank.deploy.warm_up import warm_up
from fedrank.experiments.runner.folder import checkpoint_round
from fedrank.experiments.spec.source import read_spec
from fedrank.privacy import ledger
from fedrank.privacy.ledger import LedgerError
from fedrank.privacy.population import Population
from tests.deploy.commands import CommandFederation

EVERY = 0.02  # seconds between looks into the folder
PATIENCE = 180.0  # seconds until something must have happened
MOST_RESTORES = 3  # of a site
# What an administrator can do: each refusal names at least one.
REMEDIES = (
    "restore", "put ", "run `", "--confirm-head", "ledger show", "continue with the next round",
    "start another run", "ask the coordinator", "accept", "check", "create", "join", "use ", "set ", "remove", "write",
)  # fmt: skip


class Fate:
    """Ends this process with SIGKILL before its n-th step towards the disk; lines are written in part."""

    def __init__(self, at: int) -> None:
        self.left = at
        for name in ("fsync", "replace", "link", "mkdir", "unlink", "truncate"):
            setattr(os, name, self._counted(getattr(os, name)))
        ledger._write = self._torn(ledger._write, 1)
        heads._append = self._torn(heads._append, 1)

    def _ends(self) -> bool:
        self.left -= 1
        return self.left == 0

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*words: Any, **more: Any) -> Any:
            if self._ends():
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*words, **more)

        return counted

    def _torn(self, real: Callable[..., Any], place: int) -> Callable[..., Any]:
        def torn(*words: Any, **more: Any) -> Any:
            if self._ends():
                half = bytes(words[place])[: len(words[place]) // 2]
                real(*words[:place], half, *words[place + 1 :], **more)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*words, **more)

        return torn


class Tapped:
    """A site with a witness of all that leaves it, outside its home."""

    def __init__(self, site: Site, tap: Path) -> None:
        self.site, self.tap = site, tap

    def hear(self, content: bytes) -> None:
        self.site.hear(content)

    def answer(self, content: bytes) -> bytes:
        answer, _ = heads.split(found := self.site.answer(content))
        label, asked = wire.read_label(answer), wire.read_label(content)
        line = {"kind": label.kind, "asked": asked.kind, "round": asked.round, "run": label.run.hex()}
        line["digest"] = hashlib.sha256(answer).hexdigest()[:16]
        if label.kind == "refused":
            try:
                protocol.read(answer, label, {})
            except wire.Refused as refusal:
                line["reason"] = str(refusal)
            if "its log" in line["reason"]:
                line["reason"] = (self.site.folder / "site.log").read_text(errors="replace").splitlines()[-1]
        append(self.tap, line)
        return found


def append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def serve_site(shared: Path, home: Path, tap: Path, at: int) -> None:
    """What `fedrank deploy start` does."""
    end_with_parent(os.getppid())
    if at:
        Fate(at)
    try:
        with Site.open(home) as site:
            append(tap, {"kind": "opened"})
            serve(
                shared,
                home,
                EVERY,
                site=Tapped(site, tap),
                tell=lambda line: append(tap, {"kind": "told", "reason": line}),
            )
    except Exception as problem:
        append(tap, {"kind": "failed", "reason": f"{type(problem).__name__}: {problem}"})
    os._exit(1)


def serve_run(folder: Path, at: int) -> None:
    """What `fedrank deploy run` does, with less patience."""
    end_with_parent(os.getppid())
    if at:
        Fate(at)
    site_calls.LATE, site_calls.PAUSE = 0.3, 0.1
    [(task, plan)] = planned(folder)
    try:
        with FolderSend(folder / "shared", folder / "hub", EVERY) as send:
            coordinate(task, plan, send, patience=5.0, home=folder / "hub")
    except Exception as problem:
        append(folder / "hub.tap", {"kind": "failed", "reason": f"{type(problem).__name__}: {problem}"})
    os._exit(1)


def planned(folder: Path):
    federation = read_home(folder / "hub")
    return plan_runs(read_spec(folder / "my.toml"), "my", folder / "hub" / "runs", federation.parties(), "clinics")


class Ordeal:
    """The processes of a federation, and what they went through."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        self.federation = CommandFederation(folder, rounds=20_000, every=10_000)
        [(self.task, self.plan)] = planned(folder)
        self.run = self.plan.digest[:32]
        self.names = self.federation.names
        self.processes: dict[str, Any] = {}
        self.restored: Counter[str] = Counter()
        self.most: Counter[str] = Counter()  # charges that were seen
        self.outcomes: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}  # with numbers left out: one of them
        self.copies: dict[str, list[Path]] = {name: [] for name in self.names}
        warm_up(["pdgd"])

    # Processes

    def start(self, name: str, at: int = 0) -> None:
        home = self.folder / name
        target, words = (serve_run, (self.folder, at)) if name == "hub" else (
            serve_site, (self.folder / "shared", home, self.tap(name), at)
        )  # fmt: skip
        self.processes[name] = multiprocessing.get_context("fork").Process(target=target, args=words, daemon=True)
        self.processes[name].start()

    def kill(self, name: str) -> None:
        if (process := self.processes.pop(name, None)) is not None:
            process.kill()
            process.join()

    def alive(self, name: str) -> bool:
        return name in self.processes and self.processes[name].is_alive()

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    def wait(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: nothing happened within {PATIENCE:g} s\n{self.latest()}")
            if not self.alive("hub"):
                self.start("hub")
            time.sleep(0.02)

    # What is known

    def tap(self, name: str) -> Path:
        return self.folder / f"{name}.tap"

    def lines(self, name: str) -> list[dict[str, Any]]:
        if not self.tap(name).exists():
            return []
        return [json.loads(line) for line in self.tap(name).read_text().splitlines()]

    def latest(self) -> str:
        last = {name: self.lines(name)[-3:] for name in (*self.names, "hub")}
        return json.dumps(last, indent=1)

    def sent(self, name: str) -> dict[int, set[str]]:
        """The messages that left a site, by round."""
        found: dict[int, set[str]] = {}
        for line in self.lines(name):
            if line["kind"] == "answers":
                found.setdefault(line["round"], set()).add(line["digest"])
        return found

    def reached(self) -> int:
        return checkpoint_round(self.task.folder)

    def check(self, name: str, restored: bool = False) -> None:
        """Nothing is under-charged, and no round has a second message, except attempts of a restored site."""
        sent = self.sent(name)
        messages = sum(map(len, sent.values()))
        charged = Population.charges_by_run(self.folder / name / "people").get(self.run, 0)
        assert charged >= messages, f"{name}: {messages} messages left it, and {charged} are charged"
        # A site that lost files and was restored may have charged more often than messages left it, before or after.
        assert restored or charged >= self.most[name], f"{name}: {charged} charges, but {self.most[name]} were made"
        self.most[name] = charged
        twice = {round: digests for round, digests in sent.items() if len(digests) > 1}
        assert len(twice) <= self.restored[name], f"{name}: rounds {sorted(twice)} have several messages"

    # What happens to them

    def all_at_work(self) -> None:
        for name in ("hub", *self.names):
            if not self.alive(name):
                self.start(name)
        for name in self.names:
            self.goes_on(name)

    def goes_on(self, name: str, since: int | None = None) -> None:
        """Wait until a site answered one more round."""
        before = max(self.sent(name), default=0) if since is None else since

        def answered() -> bool:
            self.readmit_if_excluded(name)
            return max(self.sent(name), default=0) > before

        self.wait(answered, f"{name} answers round {before + 1} or a later one")

    def readmit_if_excluded(self, name: str) -> None:
        path = self.task.folder / LEFT_OUT
        if path.exists() and name in json.loads(path.read_text()):
            self.kill("hub")
            readmit(self.task.folder, name)
            self.outcomes["excluded and readmitted"] += 1
            self.start("hub")

    def killed_at_every_write(self, name: str, most: int) -> int:
        """Kill a process at its 1st, 2nd, ... write; return how often."""
        done = 0
        for at in range(1, most + 1):
            self.kill(name)
            self.start(name, at)
            self.wait(lambda: not self.processes[name].is_alive(), f"{name} is killed at write {at}")
            assert self.processes[name].exitcode == -signal.SIGKILL, self.latest()
            self.kill(name)
            self.start(name)
            for site in self.names:
                self.goes_on(site)
                if site != name:
                    self.check(site)
            if name != "hub":
                self.check(name)
            done += 1
        return done

    def copy(self, name: str) -> Path:
        """A copy of a home and its second place."""
        to = self.folder / "copies" / f"{name}-{time.monotonic_ns()}"
        shutil.copytree(self.folder / name, to / "home", symlinks=True)
        shutil.copytree(self.second(name).parent, to / "state")
        return to

    def second(self, name: str) -> Path:
        return heads.SiteJournal(self.folder / name, heads.read_site(self.folder / name)).second

    def put_back(self, copy: Path, name: str, second: Path | None) -> None:
        shutil.rmtree(self.folder / name)
        shutil.copytree(copy / "home", self.folder / name, symlinks=True)
        if second is not None:
            second.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(copy / "state" / second.name, second)

    def harm(self, name: str, second: Path) -> str:
        """Do something to the files of a site that is not running; what it was."""
        home, old = self.folder / name, self.rng.choice(self.copies[name])
        kind = self.rng.choice(["file"] * 7 + ["mixed", "mixed", "home", "machine", "folders"])
        if kind == "home":
            self.put_back(old, name, None)
            return "an old copy of the home"
        if kind == "machine":
            self.put_back(old, name, second)
            return "an old copy of home and second place"
        if kind == "folders":
            gone = self.rng.sample(["people", "outbox", "journal.log", "heads.txt", "accepted"], self.rng.randint(1, 4))
            for one in gone:
                shutil.rmtree(home / one) if (home / one).is_dir() else (home / one).unlink(missing_ok=True)
            return f"deleted {' '.join(sorted(gone))}"
        if kind == "mixed":
            some = [path for path in files(old / "home") if self.rng.random() < 0.5]
            for path in some:
                to = home / path.relative_to(old / "home")
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, to)
            if self.rng.random() < 0.3:
                shutil.copy(old / "state" / second.name, second)
            return "half of the files from an old copy"
        groups: dict[str, list[Path]] = {"second place": [second]}
        for path in files(home):
            groups.setdefault(re.sub(r"[0-9a-f]{12,}|\d{4,}(-\d+)?", "*", str(path.relative_to(home))), []).append(path)
        group = self.rng.choice(sorted(groups))
        path = self.rng.choice(groups[group])
        return f"{self.harm_file(path, name, old)} {group}"

    def harm_file(self, path: Path, name: str, old: Path) -> str:
        home = self.folder / name
        content = path.read_bytes()
        inside = path.is_relative_to(home)
        earlier = old / "home" / path.relative_to(home) if inside else old / "state" / path.name
        other = self.folder / self.rng.choice([one for one in self.names if one != name])
        whose = other / path.relative_to(home) if inside else next(path.parent.glob("*"))
        what = self.rng.choice(["deleted", "emptied", "shortened", "changed", "aged", "swapped"])
        if what == "deleted" or (what == "aged" and not earlier.exists()):
            path.unlink()
            return "deleted"
        if what == "emptied" or not content:
            path.write_bytes(b"")
            return "emptied"
        if what == "shortened":
            path.write_bytes(content[: self.rng.randrange(len(content))])
        elif what == "aged":
            shutil.copy(earlier, path)
        elif what == "swapped" and whose.exists() and whose.is_file():
            shutil.copy(whose, path)
        else:
            what, place = "changed", self.rng.randrange(len(content))
            path.write_bytes(
                content[:place] + bytes([content[place] ^ (1 << self.rng.randrange(8))]) + content[place + 1 :]
            )
        return what

    def harmed(self) -> None:
        """One case: kill a site, harm its files, start it; let it go on if it refuses."""
        name = self.rng.choice(self.names)
        if len(self.copies[name]) < 3 or self.rng.random() < 0.1:
            self.kill(name)
            self.copies[name].append(self.copy(name))
            self.all_at_work()
        self.kill(name)
        self.check(name)
        second, newest = self.second(name), self.copy(name)
        what = self.harm(name, second)
        before, last = len(self.lines(name)), max(self.sent(name), default=0)
        self.start(name)

        def said() -> list[dict[str, Any]]:
            return [line for line in self.lines(name)[before:] if is_problem(line)]

        def outcome() -> bool:
            self.readmit_if_excluded(name)
            done = max(self.sent(name), default=0) > last
            # A site that says nothing at all also counts: its messages are not recognised, or it is asked nothing.
            return done or bool(said()) or not self.alive(name) or time.monotonic() > until

        until = time.monotonic() + 60.0  # a loaded machine starts a process in half a minute
        self.wait(outcome, f"{name} after {what}")
        problems = [line["reason"] for line in said()]
        if max(self.sent(name), default=0) > last and not problems:
            self.outcomes["continued"] += 1
            self.check(name)
            verdict = "continued"
        else:
            for reason in problems or ["(it said nothing)"]:
                self.reasons.setdefault(plain(reason), f"{what}: {reason}")
            verdict = self.repair(name, what, newest, second, last)
        print(
            f"{self.reached():6} {name} {what}: {verdict}" + (f" | {problems[0][:150]}" if problems else ""), flush=True
        )
        shutil.rmtree(newest)

    def repair(self, name: str, what: str, newest: Path, second: Path, last: int) -> str:
        self.kill(name)
        # A restored site charges again what its journal has lost, so charges double each time: a few times are enough.
        if self.rng.random() < 0.5 and self.restored[name] < MOST_RESTORES:
            try:
                archive = self.folder / f"{time.monotonic_ns()}.backup"
                backup(self.folder / name, archive)
                restore(archive, self.folder / name)
                self.restored[name] += 1
                self.start(name)
                before = len(self.lines(name))

                def said(*kinds: str) -> list[str]:
                    lines = [line for line in self.lines(name)[before:] if is_problem(line)]
                    return [line["reason"] for line in lines if not kinds or line["kind"] in kinds]

                def answered() -> bool:
                    self.readmit_if_excluded(name)
                    # The round in progress is refused: a restored site continues with the next one.
                    refused = len(said("refused")) > 2 or bool(said("told", "failed"))
                    return max(self.sent(name), default=0) > last or refused or not self.alive(name)

                self.wait(answered, f"{name} after a restore")
                if max(self.sent(name), default=0) > last:
                    self.check(name, restored=True)
                    self.outcomes["refused, restored and continued"] += 1
                    return "refused, restored and continued"
                self.outcomes["restored, and refused again"] += 1
                reason = said()[-1] if said() else "(it said nothing)"
                self.reasons.setdefault(plain(f"restored: {reason}"), f"{what}, restored: {reason}")
            except (ValueError, OSError, LedgerError, RuntimeError) as problem:
                self.reasons.setdefault(f"restore: {type(problem).__name__}", f"{what}, restore: {problem}")
            self.kill(name)
        self.put_back(newest, name, second)
        self.start(name)
        self.goes_on(name)
        self.check(name)
        self.outcomes["refused, put back and continued"] += 1
        return "refused, put back and continued"


def plain(reason: str) -> str:
    """A reason without numbers and paths."""
    return re.sub(r"[0-9a-f]{12,}|/\S+|\d+", "#", reason)


def is_problem(line: dict[str, Any]) -> bool:
    """Whether a site says why it does not answer; a coordinator that is told to say hello does."""
    reason = line.get("reason", "")
    if line["kind"] == "told":
        return not reason.endswith(" answered") and " refused: " not in reason
    return line["kind"] in ("refused", "failed") and reason != protocol.SAY_HELLO


def files(folder: Path) -> list[Path]:
    """The files that matter: not locks, and not what belongs to nobody."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("lock"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="cases of harmed files")
    parser.add_argument("--writes", type=int, default=40, help="writes at which a site and the coordinator are killed")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedrank-restored-") as made:
        ordeal = Ordeal(Path(made), asked.seed)
        try:
            ordeal.all_at_work()
            for name in (ordeal.names[1], "hub") if asked.writes else ():
                done = ordeal.killed_at_every_write(name, asked.writes)
                print(f"{name} was killed at each of {done} writes; round {ordeal.reached()}", flush=True)
            assert not ordeal.outcomes, f"honest sites were excluded: {dict(ordeal.outcomes)}"
            for _ in range(asked.count):
                ordeal.harmed()
            for name in ordeal.names:
                ordeal.check(name)
        finally:
            ordeal.close()
        print(f"{asked.count} cases: {dict(ordeal.outcomes)}; {ordeal.reached()} rounds")
        for reason in sorted(ordeal.reasons.values()):
            print(f"  {reason}")
        mute = [one for one in ordeal.reasons.values() if not any(word in one for word in REMEDIES)]
        sys.exit("no way to go on:\n" + "\n".join(mute) if mute else 0)


if __name__ == "__main__":
    main()
