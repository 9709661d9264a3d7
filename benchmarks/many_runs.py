"""Measure `fedrank watch --list` and `fedrank report` for many runs.

    python -m benchmarks.many_runs [--runs 2000] [--check]

A few short runs are executed, with several aggregators and seeds; the others are copies under other folds and seeds.
CPU seconds of complete commands, the minimum of three.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TARGETS = {"watch": 2.0, "report": 5.0}  # seconds for 2,000 runs
AGGREGATORS = ("mean", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median")
SEEDS = (1, 2, 3, 4)  # of the executed runs
SPEC = """
kind = "federated"
title = "Many runs"
rounds = 200
measures = ["ndcg@10", "mrr@10"]
learner = "pdgd"
attack = "poisoned-clicks"
clients = { count = 10, malicious = 1 }
data = { name = "synthetic-mq2007" }
"""


def fedrank(*arguments: object) -> float:
    """CPU seconds of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "fedrank", *map(str, arguments)]
    # Modules are compiled once and stored, as in an installed package.
    environment = os.environ | {"COLUMNS": "120", "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def make(folder: Path, runs: int) -> int:
    """Fill a folder with about `runs` runs; return their number."""
    spec = folder / "many.toml"
    variants = "\n".join(f'[variants.{name}]\naggregator = "{name}"' for name in AGGREGATORS)
    spec.write_text(f"{SPEC}\nseeds = {list(SEEDS)}\n{variants}")
    fedrank("run", spec, "--out", folder, "--workers", 1)
    made = len(AGGREGATORS) * len(SEEDS)
    repeats = [(fold, seed) for seed in range(1, 1 + runs) for fold in range(1, 6)]
    for fold, seed in repeats:
        for name in AGGREGATORS:
            new = folder / "many" / name / f"fold-{fold}-seed-{seed}"
            if made >= runs or new.exists():
                continue
            real = 1 + (seed + fold) % len(SEEDS)
            shutil.copytree(new.with_name(f"fold-1-seed-{real}"), new)
            facts = json.loads((new / "run.json").read_text())
            (new / "run.json").write_text(json.dumps(facts | {"fold": fold, "seed": seed}, indent=1))
            text = (new / "spec.toml").read_text().replace(f"seeds = [{real}]", f"seeds = [{seed}]")
            (new / "spec.toml").write_text(text.replace("folds = [1]", f"folds = [{fold}]"))
            made += 1
    return made


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=2000, help="number of run folders")
    arguments.add_argument("--keep", type=Path, help="create them in this folder, or use existing ones")
    arguments.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    given = arguments.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        many = folder / "many"
        made = make(folder, given.runs) if not many.exists() else sum(1 for _ in many.glob("*/*/run.json"))
        for command, options in (("watch", ("--list",)), ("report", ("--out", folder / "report.html"))):
            seconds = min(fedrank(command, many, *options) for _ in range(3))
            print(f"fedrank {command}, {made:,} runs: {seconds:.2f} s (target: {TARGETS[command]:g} s for 2,000)")
            missed |= seconds > TARGETS[command]
    return 1 if given.check and missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
