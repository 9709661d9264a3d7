"""Run a thousand attacks of a malicious coordinator on secure aggregation, against four real sites.

    python -m benchmarks.active_server [--attacks 1000] [--check]

It swaps keys, shows two rosters or two lists of survivors, delivers to some sites only, replays, and asks twice or out
of order (see tests/deploy/active_server.py). With --check it fails if a single update could be read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedrank.deploy.heads import SiteJournal
from fedrank.deploy.site import Site
from tests.deploy.active_server import WAYS, ActiveServer
from tests.deploy.real_trial import LINEAR, SUM, RealTrial

SITES = 4
POLICY = {"largest_epsilon": "1e6"}  # every attempt is charged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="fail if a single update could be read")
    arguments = parser.parse_args()
    began = time.monotonic()
    # A site answers only if another site confirms its journal. Here the attacker has all confirmations that it needs.
    SiteJournal.check_confirmed = lambda self, statements, keys: None  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        names = [f"clinic-{letter}" for letter in "abcd"]
        trial = RealTrial(Path(folder), LINEAR + SUM, sites=SITES, rounds=1, policy=dict.fromkeys(names, POLICY))
        sites = {name: opened.enter_context(Site.open(where)) for name, where in trial.folders.items()}
        for site in sites.values():
            site.answer(trial.hello())
        server = ActiveServer(trial, sites, np.random.default_rng(arguments.seed))
        for number in range(arguments.attacks):
            server.attack(WAYS[number % len(WAYS)])
    table = Table(title=f"{arguments.attacks:,} attacks of {len(WAYS)} kinds on {SITES} sites")
    for name in ("requests", "refused", "sums of all, opened once", "single updates read", "s"):
        table.add_column(name, justify="right")
    table.add_row(
        f"{len(server.left):,}",
        f"{server.refused:,}",
        f"{server.sums:,}",
        f"{len(server.found)}",
        f"{time.monotonic() - began:.0f}",
    )
    console = Console()
    console.print(table)
    for line in server.found:
        console.print(line)
    return int(arguments.check and bool(server.found))


if __name__ == "__main__":
    sys.exit(main())
