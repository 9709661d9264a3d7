"""A federation of processes under random kill -9: `python -m tests.deploy.chaos --kills 100 [--sum | --dealt]`.

A server, three sites, their jobs and the command that does the run are killed one after the other while it goes on.
At the end the model is that of a simulation, bit for bit; under a secure sum, whose noise nobody can repeat, it is the
one that the outboxes of all sites add up to. No round is lost, and none is charged twice; a secure sum that was tried
again is charged again. With a dealt schedule, the people of each site take part in one round each: none twice, and a
sum that failed after masked messages had left is not tried again.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedrank.deploy.flare_jobs import run_deployed
from fedrank.deploy.flare_local import local_federation
from fedrank.deploy.local import prepare, site_name, trial_plan
from fedrank.deploy.outbox import Outbox
from fedrank.experiments.runner.folder import checkpoint_round
from fedrank.experiments.runner.schedule import plan as tasks_of
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.source import read_spec
from fedrank.privacy.population import Account, ledgers_below
from tests.deploy.trial import check_equal, weights, write_data

SITES = 3
SPEC = """
rounds = {rounds}
evaluate_every = 50
[learner]
name = "pdgd"
{more}
[clients]
count = 3
interactions = 2
{people}
[data]
train = "train.txt"
test = "test.txt"
"""
SUM = (
    '[mechanism]\nname = "gaussian"\nclip = 0.5\nnoise = 1.0\n'
    'placement = { name = "secure-aggregation", colluding = 0.0 }\n'
)


def task_of(folder: Path):
    [task] = tasks_of(read_spec(folder / "spec.toml"), "chaos", folder / "runs")
    return task


def work(folder: Path) -> None:
    """What `fedrank deploy run` does; it may be killed, and is begun again."""
    task = task_of(folder)
    status = run_deployed(folder / "federation" / "hub", task, trial_plan(task, SITES))
    sys.exit(status != "finished")


def processes(folder: Path) -> dict[int, str]:
    """All processes that work on a folder, but this one: what each is."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in command:
                found[int(entry.name)] = command
    return found


def kind_of(command: str) -> str:
    kinds = {"tests.deploy.chaos": "the command", "tests.deploy.slow_link": "the line"}
    kinds |= {"runner_process": "the server's job", "worker_process": "a site's job", "flare_session": "the session"}
    kinds |= {"/hub/kit": "the server", "/kit": "a site"}
    return next((kind for word, kind in kinds.items() if word in command), command[:160])


def chaos(folder: Path, kills: int, rounds: int, summed: bool, dealt: bool, seed: int) -> None:
    rng = random.Random(seed)
    write_data(folder)
    more, people = SUM if summed or dealt else "", ""
    if dealt:
        more, people = more + 'unit = "person"\n', f'people = {2 * rounds}\nschedule = "dealt"'
    (folder / "spec.toml").write_text(SPEC.format(rounds=rounds, more=more, people=people))
    names = {site_name(number): number for number in range(SITES)}
    killed: dict[str, int] = {}
    with local_federation(names, folder / "federation", prepare, "local"):
        began = time.monotonic()
        worker = None
        while True:
            if worker is None or worker.poll() is not None:
                if worker is not None and worker.returncode == 0:
                    break
                worker = subprocess.Popen([sys.executable, "-m", "tests.deploy.chaos", "--work", str(folder)])
            time.sleep(rng.uniform(1.0, 8.0))
            reached = checkpoint_round(task_of(folder).folder)
            if sum(killed.values()) < kills and reached:
                victims = processes(folder)
                if victims:
                    pid = rng.choice(sorted(victims))
                    kind = kind_of(victims[pid])
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                    killed[kind] = killed.get(kind, 0) + 1
                    print(
                        f"{time.monotonic() - began:6.0f} s  killed {kind}, round {reached}",
                        flush=True,
                    )
    report(folder, rounds, summed, dealt, killed)


def report(folder: Path, rounds: int, summed: bool, dealt: bool, killed: dict[str, int]) -> None:
    task = task_of(folder)
    plan, made = trial_plan(task, SITES), task.folder
    outboxes = {
        site.name: Outbox(folder / "federation" / site.name / "outbox" / plan.digest[:32], plan.run)
        for site in plan.sites
    }
    print(f"{sum(killed.values())} kills: {killed}")
    if dealt:
        for name, box in outboxes.items():
            numbers = [path.name.partition("-")[0] for path in box.folder.iterdir()]
            assert len(set(numbers)) == len(numbers), f"{name} sent two messages in a round"
            [ledger] = ledgers_below(folder / "federation" / name / "people")
            participations = Account.read(ledger).participations
            assert participations.max() == 1
            print(f"{name}: {len(numbers)} messages in {rounds} rounds, {participations.sum()} people charged once")
        return
    if not summed:
        run_experiment(read_spec(folder / "spec.toml"), "chaos", folder / "simulated")
        check_equal(made, folder / "simulated" / made.relative_to(folder / "runs"))
        assert all(len(box) == rounds for box in outboxes.values())
        print(f"{rounds} rounds, byte-equal to the simulation")
        return
    mechanism = task.experiment.mechanism
    total = np.zeros(plan.sent)
    for round in range(1, rounds + 1):
        sent = [box.get(round) for box in outboxes.values()]
        total += sum(np.frombuffer(one.values, "<i8") for one in sent) * mechanism.step(SITES) / SITES
    assert np.allclose(total, weights(made), atol=1e-9)
    paid = {}
    for name in outboxes:
        [ledger] = ledgers_below(folder / "federation" / name / "people")
        paid[name] = Account.read(ledger).rounds
        assert paid[name] >= rounds
    print(f"{rounds} rounds of a secure sum, equal to what the outboxes add up to; charged: {paid}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--sum", action="store_true")
    parser.add_argument("--dealt", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.work is not None:
        work(asked.work)
    with tempfile.TemporaryDirectory(prefix="fedrank-chaos-") as folder:
        chaos(Path(folder), asked.kills, asked.rounds, asked.sum, asked.dealt, asked.seed)


if __name__ == "__main__":
    main()
