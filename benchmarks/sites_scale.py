"""Measure how a federation grows with its sites: memory, CPU time and bytes, with processes and by simulation.

    python -m benchmarks.sites_scale folder nvflare --sites 3 10 30
    python -m benchmarks.sites_scale simulated --sites 10 30 100 300 1000
    python -m benchmarks.sites_scale secure --sites 10 30 100 300

folder, nvflare: real sites as processes on this machine, with noise on the client. The first site over NVFLARE is
started with `fedrank deploy start`; this program supervises the others, to save memory. simulated, secure: the same
sites in one process, without a transport. A site has 12 queries, so learning takes almost nothing. CPU seconds hardly
depend on what else the machine does; seconds do. Bytes over NVFLARE are those on the loopback interface: as root,
`unshare --net sh -c 'ip link set lo up; exec python -m benchmarks.sites_scale ...'` has a separate one.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.deploy import loopback
from fedrank import wire
from fedrank.deploy import consent
from fedrank.deploy.coordinate import SITES
from fedrank.deploy.flare_jobs import run_deployed
from fedrank.deploy.flare_local import LocalFederation, provision_locally, running_locally, wait_for_sites
from fedrank.deploy.make_plans import parties_of, plan_runs
from fedrank.deploy.warm_up import warm_up
from fedrank.experiments.spec.source import read_spec
from fedrank.files import private_folder
from tests.deploy.commands import NOISE as CLIENT_NOISE
from tests.deploy.commands import SITE, SPEC, CommandFederation
from tests.deploy.plans import letor_file
from tests.deploy.real_trial import LINEAR, NOISE, SUM, RealTrial

FIRST = 2  # rounds before the first one that is measured


class Load:
    """CPU seconds and bytes up to now, by place."""

    def __init__(self, folder: Path) -> None:
        self.at = time.monotonic()
        self.cpu: Counter[str] = Counter()
        self.loopback = loopback()
        for pid, place in members(folder).items():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                self.cpu[place] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def members(folder: Path) -> dict[int, str]:
    """Processes of a federation: "sites" or "coordinator", by process id."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode().replace("\0", " ")
            where = f"{words} {os.readlink(entry / 'cwd')}"
            if str(folder) in where and int(entry.name) != os.getpid():
                found[int(entry.name)] = "sites" if re.search(r"--home clinic-|/clinic-", where) else "coordinator"
    return found


def memory(pids: Sequence[int]) -> dict[str, float]:
    """MB of these processes together: resident, proportional, and the parts of the latter."""
    sums: Counter[str] = Counter()
    for pid in pids:
        name = ""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
                words = line.split()
                if re.fullmatch("[0-9a-f]+-[0-9a-f]+", words[0]):
                    name = words[5] if len(words) > 5 and words[5].startswith("/") else "data"
                elif words[0] == "Rss:":
                    sums["RSS"] += int(words[1])
                elif words[0] == "Pss:":
                    sums["PSS"] += int(words[1])
                    sums["libraries" if name != "data" else name] += int(words[1])
    return {what: kilobytes / 1024 for what, kilobytes in sums.items()}


def memory_of_site(folder: Path, site: str) -> dict[str, dict[str, float]]:
    """Memory of the processes of a site, by what they do."""
    parts, found = {"worker_process": "job", "flare_processes": "engine", "deploy start": "start"}, {}
    for pid, place in members(folder).items():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ")
            if place == "sites" and site in f"{words} {os.readlink(f'/proc/{pid}/cwd')}":
                name = next((part for word, part in parts.items() if word in words), "other")
                found[f"memory of a site: {name}"] = memory([pid])
    return found


def rounds_done(folder: Path) -> list[dict[str, str]]:
    """Lines of the coordinator's record of requests, of all rounds so far."""
    for path in folder.rglob(SITES):
        with path.open() as file:
            return [line for line in csv.DictReader(file) if int(line["round"]) > 0]
    return []


def watched(folder: Path, rounds: int, site: str, ended: Callable[[], bool]) -> dict[str, dict[str, float]]:
    """Memory of a site, and what the rounds after the first ones take, while others perform them."""
    marks: dict[int, Load] = {}
    found: dict[str, dict[str, float]] = {}
    while not ended():
        found |= memory_of_site(folder, site)
        number = max((int(line["round"]) for line in rounds_done(folder)), default=0)
        if FIRST <= number < rounds and number not in marks:
            marks[number] = Load(folder)
        time.sleep(0.1)
    assert len(marks) > 1, "the rounds were too short, or the run failed"
    first, last = min(marks), max(marks)
    count, before, after = last - first, marks[first], marks[last]
    lines = [line for line in rounds_done(folder) if first < int(line["round"]) <= last and not line["refused"]]
    found["rounds"] = {
        "s a round": (after.at - before.at) / count,
        "CPU s of sites": (after.cpu["sites"] - before.cpu["sites"]) / count,
        "CPU s of the coordinator": (after.cpu["coordinator"] - before.cpu["coordinator"]) / count,
        "kB of messages": sum(int(line["bytes_down"]) + int(line["bytes_up"]) for line in lines) / count / 1000,
        "kB on loopback": (after.loopback - before.loopback) / count / 1000,
    }
    return found


def through_a_folder(folder: Path, sites: int, rounds: int) -> dict[str, dict[str, float]]:
    made = CommandFederation(folder, sites, rounds, every=rounds)
    made.start()
    try:
        run = made.begin("run", "run", "my.toml", "--home", "hub")
        found = watched(folder, rounds, made.names[0], lambda: run.poll() is not None)
    finally:
        made.close()
    assert run.returncode == 0, made.said("run")
    return found


def over_nvflare(folder: Path, sites: int, rounds: int) -> dict[str, dict[str, float]]:
    names = {f"clinic-{id:03d}": id for id in range(sites)}
    federation = provision_locally(folder / "federation", names, "clinics")
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    for name, home in federation.sites.items():
        letor_file(home / "train.txt", seed=names[name])
        (home / "site.toml").write_text(SITE.format(name=name, id=names[name], min_sites=2))
    for number, name in enumerate(("train", "test")):
        letor_file(folder / f"{name}.txt", seed=1001 + number)
    spec = folder / "my.toml"
    spec.write_text(SPEC.format(rounds=rounds, every=rounds, sites=sites, mechanism=CLIENT_NOISE))
    [(task, plan)] = plan_runs(read_spec(spec), "run", folder / "runs", parties_of(federation.home), "clinics")
    for home in federation.sites.values():
        consent.accept(home, plan)
    first = next(iter(federation.sites))
    others = LocalFederation(federation.home, {name: at for name, at in federation.sites.items() if name != first})
    begun = subprocess.Popen(
        [sys.executable, "-m", "fedrank", "deploy", "start", "--home", str(federation.sites[first])],
        stdout=subprocess.DEVNULL,
        cwd=folder,
    )
    try:
        with running_locally(others):
            wait_for_sites(federation)
            status: list[str] = []
            say = partial(print, "", flush=True)
            work = threading.Thread(target=lambda: status.append(run_deployed(federation.home, task, plan, say=say)))
            work.start()
            found = watched(folder, rounds, first, lambda: not work.is_alive())
            work.join()
    finally:
        begun.terminate()
        begun.wait()
    assert status == ["finished"], status
    return found


def in_one_process(folder: Path, sites: int, rounds: int, secure: bool = False) -> dict[str, dict[str, float]]:
    """Sites without a transport; what is not spent in a site is spent by the coordinator."""
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    warm_up(["pdgd"])
    trial = RealTrial(folder, LINEAR + (SUM if secure else NOISE), sites, rounds)
    marks: dict[int, tuple[float, float, int]] = {}
    spent, passed, turn = [0.0], [0], threading.Lock()

    def between(name: str, content: bytes, answer: Callable[[], bytes]) -> bytes:
        label = wire.read_label(content)
        with turn:
            if label.kind in ("round", "advertise"):
                marks.setdefault(label.round, (time.process_time(), spent[0], passed[0]))
        began = time.thread_time()
        found = answer()
        with turn:
            spent[0] += time.thread_time() - began
            passed[0] += len(content) + len(found)
        return found

    between.with_heads = True  # type: ignore[attr-defined]
    began = time.process_time()
    status = trial.run(between, patience=3600.0)
    assert status == "finished", status
    first, last = min(FIRST, rounds - 1), rounds
    count = last - first
    whole, own, size = (float(after - before) for before, after in zip(marks[first], marks[last], strict=True))
    rates = {"CPU s of sites": own, "CPU s of the coordinator": whole - own, "kB of messages": size / 1000}
    start = {"CPU s before round 1": marks[1][0] - began}
    return {"rounds": {what: value / count for what, value in rates.items()} | start}


def growth(sites: Sequence[int], values: Sequence[float]) -> str:
    """The fit a + b n + c n^2 without negative coefficients, weighted by relative error, and its largest error."""
    from scipy.optimize import nnls

    n, y = np.array(sites, float), np.array(values)
    powers = np.stack([np.ones_like(n), n, n**2], axis=1)
    found, _ = nnls(powers / y[:, None], np.ones_like(y))
    error = float(np.abs(powers @ found / y - 1).max())
    return f"{found[0]:.3g} + {found[1]:.3g} n + {found[2]:.3g} n^2, within {100 * error:.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds: dict[str, Callable[..., dict[str, dict[str, float]]]] = {
        "folder": through_a_folder,
        "nvflare": over_nvflare,
        "simulated": in_one_process,
        "secure": lambda *given: in_one_process(*given, secure=True),
    }
    parser.add_argument("what", nargs="+", choices=kinds)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10, 30])
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    for what in asked.what:
        table: dict[str, list[float]] = {}
        for sites in asked.sites:
            with tempfile.TemporaryDirectory(prefix="fedrank-scale-") as name:
                for label, found in kinds[what](private_folder(Path(name) / "f"), sites, asked.rounds).items():
                    shown = ", ".join(f"{key} {value:.4g}" for key, value in found.items())
                    print(f"{what}, {sites} sites, {label}: {shown}", flush=True)
                    for key, value in found.items() if label == "rounds" else ():
                        table.setdefault(key, []).append(value)
        for key, values in table.items() if len(asked.sites) > 2 else ():
            if min(values) > 0:
                print(f"{what}: {key} = {growth(asked.sites, values)}", flush=True)


if __name__ == "__main__":
    main()
