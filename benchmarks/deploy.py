"""Measure a deployment: three sites and a server on this machine, with mutual TLS on loopback.

    python -m benchmarks.deploy [--check] [--rounds 200]

Prints time, CPU time and bytes per round and site, the same for secure aggregation, the time of a short run from start
to report, and the memory of a site after the first and the last rounds. Bytes are those on the loopback interface, so
nothing else should use it.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import time
from pathlib import Path

from fedrank.deploy.flare_jobs import run_deployed
from fedrank.deploy.flare_local import local_federation
from fedrank.deploy.local import prepare, site_name, trial_plan
from fedrank.deploy.settings import LOCAL
from fedrank.experiments.runner.schedule import plan as tasks_of
from fedrank.experiments.spec.source import read_spec

SITES = 3
SPEC = """
rounds = {rounds}
evaluate_every = {rounds}
[learner]
name = "pdgd"
{more}
[clients]
count = 3
[data]
name = "synthetic-mq2007"
folds = [1]
"""
SUM = (
    '[mechanism]\nname = "gaussian"\nclip = 0.5\nnoise = 1.0\n'
    'placement = { name = "secure-aggregation", colluding = 0.0 }\n'
)
TARGETS = {
    "ms per round": 50,
    "ms of CPU per site and round": 20,
    "kB of overhead per site and round": 8,
    "ms per secure aggregation": 200,
}


def processes(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(folder).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(pids: list[int]) -> float:
    """MB of the largest process."""
    most = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        most = max(most, *(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")), 0)
    return most / 1024


def loopback() -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "lo":
            return int(rest.split()[0])
    return 0


def measure(folder: Path, hub: Path, rounds: int, more: str, label: str) -> dict[str, float]:
    """Measure the rounds of one run, without its start and end."""
    spec = folder / f"{label}.toml"
    spec.write_text(SPEC.format(rounds=rounds, more=more))
    [task] = tasks_of(read_spec(spec), label, folder / "runs")
    marks: list[tuple[int, float, float, int, float]] = []

    def tell(news) -> None:
        pids = processes(folder)
        marks.append((news.round, time.monotonic(), cpu_seconds(pids), loopback(), memory(pids)))

    status = run_deployed(hub, task, trial_plan(task, SITES), tell)
    assert status == "finished", status
    first, last = next(mark for mark in marks if mark[0] >= min(10, rounds // 4)), marks[-1]
    count = last[0] - first[0]
    with (task.folder / "timing.csv").open() as file:
        seconds = {int(row["round"]): float(row["seconds"]) for row in csv.DictReader(file)}
    ms = 1000 * (seconds[rounds] - seconds[min(10, rounds // 4)]) / (rounds - min(10, rounds // 4))
    numbers = 2 * 4 * 46
    return {
        "ms per round": ms,
        "ms of CPU per site and round": 1000 * (last[2] - first[2]) / count / (SITES + 1),
        "kB of overhead per site and round": ((last[3] - first[3]) / count / SITES - numbers) / 1000,
        "MB after the first rounds": first[4],
        "MB after the last": last[4],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--check", action="store_true", help="fail if a target is missed")
    asked = parser.parse_args()
    missed = []
    with tempfile.TemporaryDirectory(prefix="fedrank-bench-") as name:
        folder, began = Path(name), time.monotonic()
        names = {site_name(number): number for number in range(SITES)}
        with local_federation(names, folder / "federation", prepare, LOCAL) as federation:
            print(f"{time.monotonic() - began:8.1f}  s until a server and {SITES} sites are ready")
            measure(folder, federation.home, 30, "", "first")
            whole = time.monotonic() - began
            plain = measure(folder, federation.home, asked.rounds, "", "plain")
            summed = measure(folder, federation.home, max(20, asked.rounds // 4), SUM, "summed")
    found = {
        "s for 30 rounds, from nothing to a model": whole,
        **plain,
        "ms per secure aggregation": summed["ms per round"],
    }
    for what, value in found.items():
        target = TARGETS.get(what, 45 if what.startswith("s for") else None)
        print(f"{value:8.1f}  {what}" + (f" (at most {target})" if target else ""))
        if target is not None and value > target:
            missed.append(what)
    if asked.check and missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
