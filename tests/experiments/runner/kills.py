"""Kill long commands, or take their disk away, wherever they write, and give the same command again.

    python -m tests.experiments.runner.kills                 # every write of every command
    python -m tests.experiments.runner.kills --only private --random 20

Each command runs in its own process, which is killed, or is refused room, at its first change of the output folder,
then at its second, and so on: before a file is opened for writing, takes its place, is removed, or is made durable.
Then the size of files is limited, so that a write is cut in the middle. Afterwards the same command must succeed, and
its files must be those of an undisturbed command, apart from times, process numbers and noise. A command that finds no
room must name a file or folder and say what to do, without a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.cli import app
from fedrank.cli import main as fedrank
from fedrank.data.letor import letor_lines
from fedrank.data.synthetic_shown import made_up_queries, simulate_shown
from fedrank.data.synthetic_text import synthetic_collection
from fedrank.privacy.ledger import Ledger
from fedrank.privacy.population import Account, ledgers_below
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from tests.made_up import made_up_data

ROOM = "free disk space, then run the same command again"
CHANGES = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate"}
# A checkpoint stays where a run was killed after it had finished, and before it removed it.
NOT_COMPARED = {"timing.csv", "lock", "lock.unfinished", "traceback.txt", "checkpoint.npz"}
TIMES = {"begun", "ended", "pid", "issued", "seconds", "cpu_seconds", "commits"}  # keys of JSON files
LEAST_SAID = 500  # bytes: what a command says goes into a file, too
ROUNDS, CLIENTS = 6, 4
SPEC = f"""
rounds = {ROUNDS}
evaluate_every = 2
learner = "pdgd"
clients = {{ count = {CLIENTS}, interactions = 2 }}
data = {{ train = "train.txt", validation = "vali.txt", test = "vali.txt" }}
seeds = [1]
"""
PRIVATE = """
population = "town"
mechanism = { name = "gaussian", clip = 1.0, noise = 30.0, placement = "server" }
privacy = { budget = 8.0 }
"""
DEALT = """
rounds = 4
evaluate_every = 2
learner = "pdgd"
clients = { count = 9, interactions = 2, schedule = "dealt" }
data = { train = "train.txt", validation = "vali.txt", test = "vali.txt" }
seeds = [1]
mechanism = { name = "gaussian", clip = 1.0, noise = 4.0, placement = "server" }
"""
DEALT_PEOPLE = DEALT.replace("count = 9", "count = 2, people = 5").replace(
    'placement = "server"', 'unit = "person", placement = { name = "secure-aggregation", colluding = 0.0 }'
)
FOREST = """
kind = "trees"
seeds = [1]
data = { train = "train.txt", validation = "vali.txt", test = "vali.txt" }
booster = { name = "lambdamart", trees = 5 }
"""
SILO = """
kind = "silo"
rounds = 3
seeds = [1]
measures = ["ndcg@10"]
data = { folder = "pets" }
silos = { count = 3 }
method = { name = "cross-silo", noise = 0.0, width = 128, depth = 5, k = 6 }
"""


@dataclass(frozen=True)
class Case:
    """A command, what it needs, and what must hold when it has ended."""

    words: str
    make: Callable[[], None]  # writes what it reads into the working directory
    first: tuple[str, ...] = ()  # commands that come before it, and nobody disturbs
    check: Callable[[Path], None] | None = None  # takes the place of the comparison of all files


def letor_files() -> None:
    data = made_up_data(40)
    for name, rows in (("train", np.arange(24)), ("vali", np.arange(24, 40))):
        Path(f"{name}.txt").write_text("".join(letor_lines(data.select(rows))))


def specs() -> None:
    letor_files()
    Path("plain.toml").write_text(SPEC)
    Path("private.toml").write_text(PRIVATE + SPEC)
    Path("dealt.toml").write_text(DEALT)
    Path("dealt-people.toml").write_text(DEALT_PEOPLE)
    Path("forest.toml").write_text(FOREST)


def collection() -> None:
    made, folder = synthetic_collection(60, 20, seed=1, topics=6, length=20), Path("pets")
    folder.mkdir()
    documents = zip(made.documents.ids, made.documents.title, made.documents.text, strict=True)
    rows = [json.dumps({"_id": key, "title": title, "text": text}) for key, title, text in documents]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    asked = zip(made.query_ids, made.queries, strict=True)
    (folder / "queries.jsonl").write_text("\n".join(json.dumps({"_id": key, "text": text}) for key, text in asked))
    lines = ["query\tdocument\tgrade"]
    for query, key in enumerate(made.query_ids):
        lines += [f"{key}\td{row}\t{grade}" for row, grade in zip(*made.judgements(query), strict=True)]
    (folder / "qrels.tsv").write_text("\n".join(lines))
    Path("silo.toml").write_text(SILO)


def shown_log() -> None:
    truth = made_up_queries(100, seed=4)
    simulate_shown(truth, 8000, popularity=0.2).write(Path("shown"))
    save_model(Model(Linear(), truth.best, 10), Path("model.json"))


def nothing() -> None:
    pass


def charged(out: Path) -> None:
    """Every round that anybody was asked for is charged, also those that a kill took."""
    asked: Counter[int] = Counter()
    for line in Path("witness").read_text().splitlines():
        asked.update(json.loads(line))
    accounts = [account for account in map(Account.read, ledgers_below(out)) if account is not None]
    assert accounts, "there is no ledger"
    paid = sum(account.participations for account in accounts)
    assert all(paid[client] >= times for client, times in asked.items()), f"asked {asked}, charged {paid}"
    [run] = out.glob("private/*/*/run.json")
    assert json.loads(run.read_text())["status"] == "finished"
    rows = (run.parent / "rounds.csv").read_text().splitlines()
    assert len(rows) == 1 + ROUNDS
    card = json.loads((run.parent / "privacy.json").read_text())
    assert card["participations_charged"] == int(paid.max())


def once(out: Path) -> None:
    """Nobody was asked twice or is charged twice, whatever was killed; who was not asked was not charged."""
    asked: Counter[int] = Counter()
    for line in Path("witness").read_text().splitlines():
        asked.update(json.loads(line))
    assert max(asked.values()) == 1, f"asked {asked}"
    [account] = [account for account in map(Account.read, ledgers_below(out)) if account is not None]
    assert account.participations.max() == 1, account.participations
    assert account.participations.sum() >= len(asked)
    [run] = out.glob("*/*/*/run.json")
    assert json.loads(run.read_text())["status"] == "finished"
    assert len((run.parent / "rounds.csv").read_text().splitlines()) == 5
    assert len(json.loads((run.parent / "deal.json").read_text())["round_of_each"]) == len(account.participations)
    assert json.loads((run.parent / "privacy.json").read_text())["participations_charged"] == 1


def there(out: Path) -> None:
    """Files whose bytes are drawn by chance must be there, and no other."""
    whole = out.with_name("whole")
    odd = {*files(out)} ^ {*files(whole)}
    assert not odd, f"these files are missing, or too many: {sorted(map(str, odd))}"


GROW = "trees grow --silo train.txt --silo vali.txt --trees 2 --leaves 6 --min-data-in-leaf 3 --out OUT/forest"
CASES = {
    "run": Case("run plain.toml --workers 1 --out OUT", specs),
    "private": Case("run private.toml --workers 1 --out OUT", specs, check=charged),
    "dealt": Case("run dealt.toml --workers 1 --out OUT", specs, check=once),
    "dealt-people": Case("run dealt-people.toml --workers 1 --out OUT", specs, check=once),
    "tune": Case("tune plain.toml --over learner.rate=[0.05,0.1] --workers 1 --out OUT", specs),
    "silo": Case("run silo.toml --workers 1 --out OUT", collection),
    "sketch": Case(
        "data sketch --docs pets/corpus.jsonl --key shared.key --noise 1.0 --budget 1e9 --out OUT/a.sketch",
        collection,
        ("data sketch --docs pets/corpus.jsonl --key shared.key --out first.sketch",),
        there,
    ),
    "synth": Case("data synth --users 20 --documents 60 --topics 3 --out OUT", nothing),
    "synth-ubi": Case("data synth --ubi --users 20 --documents 60 --topics 3 --out OUT", nothing),
    "build": Case(
        "data build --log toy/log.tsv --docs toy/corpus.jsonl --threads 1 --out OUT/log",
        nothing,
        ("data synth --users 20 --documents 60 --topics 3 --out toy",),
    ),
    "build-shown": Case(
        "data build --ubi-queries toy/ubi_queries.ndjson --ubi-events toy/ubi_events.ndjson --docs toy/corpus.jsonl "
        "--threads 1 --out OUT/log",
        nothing,
        ("data synth --ubi --users 20 --documents 60 --topics 3 --out toy",),
    ),
    "estimate": Case("model estimate model.json --log shown --out OUT/estimate.png", shown_log),
    "grow": Case(GROW, letor_files),
    "grow-secure": Case(GROW + " --secure", letor_files),
    "train": Case("run forest.toml --workers 1 --out OUT", specs),
    "train-tune": Case("run forest.toml --set tune=6 --workers 1 --out OUT", specs),
    "split": Case("trees split --data train.txt --by chance --out OUT/split", letor_files),
    "report": Case(
        "report runs/plain --out OUT/report.html --figures OUT/figures", specs, ("run plain.toml --workers 1",)
    ),
}


def files(out: Path) -> list[Path]:
    """All files of a folder, relative to it."""
    found = (path.relative_to(out) for path in out.rglob("*") if path.is_file() and path.name not in NOT_COMPARED)
    return sorted(found)


def content(path: Path) -> Any:
    """What is compared of a file: its bytes, and of JSON all but times."""
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_text()))
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(one) for key, one in value.items() if key not in TIMES}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def same(out: Path) -> None:
    """Compare all files with those of a command that was not disturbed."""
    there(out)
    for name in files(out):
        assert content(out / name) == content(Path("whole") / name), f"{name} differs"


def killed(path: str | None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def full(path: str | None) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *([] if path is None else [path]))


def disturb(point: int, act: Callable[[str | None], None], only_once: bool) -> None:
    """From here on, this process is disturbed before it changes OUT for the so-manieth time, from 0."""
    out, changes, busy = os.path.realpath("out"), 0, False

    def changed(path: object, named: bool = True) -> None:
        nonlocal changes, busy
        if busy or not isinstance(path, (str, bytes, os.PathLike)):
            return
        busy = True
        try:
            below = (os.path.realpath(os.fsdecode(path)) + "/").startswith(out + "/")
        finally:
            busy = False
        if below:
            changes += 1
            if changes - 1 == point or (changes > point and not only_once):
                act(os.fsdecode(path) if named else None)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES:
            if act is killed or event not in ("os.remove", "os.rmdir"):  # these need no room
                changed(arguments[0])
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            changed(arguments[0])

    sync = os.fsync

    def fsync(handle: int) -> None:
        changed(os.readlink(f"/proc/self/fd/{handle}"), named=False)  # as the system does
        sync(handle)

    os.fsync = fsync
    sys.addaudithook(hook)


def limited(size: int, kill: bool) -> None:
    """Limit the size of files that this process writes; a write past it is cut, and kills the process if `kill`."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if kill else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def witness() -> None:
    """From here on, this process writes down whom it asks for a round, before it does."""
    begun, there = Ledger.begun, os.open(os.path.abspath("witness"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def asked(self: Ledger, round: int) -> None:
        begun(self, round)
        reserved = self.reserved(round)
        assert reserved is not None
        os.write(there, f"{reserved.tolist()}\n".encode())

    Ledger.begun = asked  # type: ignore[method-assign]


def in_child(words: str, prepare: Callable[[], None] = nothing) -> int:
    """The number of a process that does a command; what it says goes into the file `said`."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        to = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(to, 1)
        os.dup2(to, 2)
        sys.argv = ["fedrank", *words.replace("OUT", "out").split()]
        witness()
        prepare()
        fedrank()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 70
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def ended(child: int) -> int:
    """How it ended: its status, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def warm(words: str) -> None:
    """Do a command here, so that children find all that is imported and compiled. Not LightGBM's: its threads do not
    survive a fork."""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet), contextlib.suppress(SystemExit):
        app(words.replace("OUT", "out").split(), standalone_mode=False)


def done(words: str) -> None:
    code = ended(in_child(words))
    assert code == 0, f"fedrank {words} ended with {code}: {said()}"


def said() -> str:
    return Path("said").read_text(errors="replace")


def clear() -> None:
    shutil.rmtree("out", ignore_errors=True)
    Path("witness").unlink(missing_ok=True)


def settle(case: Case, code: int) -> None:
    """Give the command again, unless it had succeeded, and look whether it did what it was to do."""
    if code:
        done(case.words)
    (case.check or same)(Path("out"))


def refused(code: int) -> None:
    """A command that found no room says so: which file, and what to do."""
    text = said()
    assert code in (1, 2), f"it ended with {code}: {text}"
    assert "Traceback" not in text, text
    assert ROOM in " ".join(text.split()), f"it does not say what to do: {text}"
    assert "out/" in text or "out:" in text, f"it names no file: {text}"


class Found(list[str]):
    """What went wrong."""

    @contextlib.contextmanager
    def about(self, what: str) -> Iterator[None]:
        try:
            yield
        except AssertionError as problem:
            self.append(f"{what}: {problem}")
            print(f"FAULT {what}: {problem}", flush=True)


def disturbed(case: Case, found: Found, name: str, every: int, at_random: int, seed: int = 1) -> dict[str, int]:
    """Disturb a command everywhere; how often each way was tried."""
    tried: Counter[str] = Counter()
    clear()
    if not case.words.startswith("run forest"):
        warm(case.words)
        clear()
    began = time.monotonic()
    done(case.words)
    longest = time.monotonic() - began
    print(f"{name}: {longest:.2f} s", flush=True)
    shutil.rmtree("whole", ignore_errors=True)
    os.rename("out", "whole")
    points = 0  # at which it changes its folder
    for way, act, once in (("killed", killed, True), ("full", full, True), ("full from", full, False)):
        for point in range(0, points or 10_000, every):
            clear()
            code = ended(in_child(case.words, partial(disturb, point, act, once)))
            if act is killed and code == 0:
                points = point
                break
            tried[way] += 1
            with found.about(f"{name}: {way} at {point}"):
                if act is killed:
                    assert code == -signal.SIGKILL, f"it ended with {code}: {said()}"
                elif code:
                    refused(code)
                settle(case, code)
    sizes = sorted({(Path("whole") / path).stat().st_size for path in files(Path("whole"))})
    for kill in (True, False):
        for size in sorted({max(0, some - 1) for some in sizes} | {some // 2 for some in sizes}):
            if not kill and size < LEAST_SAID:
                continue
            clear()
            code = ended(in_child(case.words, partial(limited, size, kill)))
            tried["cut, killed" if kill else "cut"] += 1
            with found.about(f"{name}: files of at most {size} bytes, {'killed' if kill else 'refused'}"):
                if kill:
                    assert code in (0, -signal.SIGXFSZ), f"it ended with {code}: {said()}"
                elif code:
                    refused(code)
                settle(case, code)
    chance = random.Random(seed)
    for number in range(at_random):
        clear()
        child = in_child(case.words)
        time.sleep(chance.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        code = ended(child)
        tried["at random"] += 1
        with found.about(f"{name}: killed at random, {number}"):
            settle(case, code)
    return dict(tried)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=CASES, help="may be repeated")
    parser.add_argument("--every", type=int, default=1, help="only every so-manieth write")
    parser.add_argument("--random", type=int, default=5, help="kills of each command at random moments")
    given = parser.parse_args()
    found = Found()
    for name in given.only or CASES:
        case = CASES[name]
        with tempfile.TemporaryDirectory(prefix="fedrank-kills-") as folder, contextlib.chdir(folder):
            case.make()
            for words in case.first:
                done(words)
            began = time.monotonic()
            tried = disturbed(case, found, name, given.every, given.random)
            print(f"{name}: {tried}, {time.monotonic() - began:.0f} s", flush=True)
    if found:
        raise SystemExit(f"{len(found)} faults")
    print("All ended as if nobody had disturbed them.")


if __name__ == "__main__":
    main()
