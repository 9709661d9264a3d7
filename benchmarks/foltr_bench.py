"""What is stated about FOLTR-Bench: digests of its data, and the smallest difference that each cell shows.

Run the pairs of `PAIRS` first: `fedrank bench run NAME --out OUT`, with MQ2008 and NFCorpus below FEDRANK_DATA. Then

    python -m benchmarks.foltr_bench OUT/bench-1

prints the tables of `src/fedrank/experiments/bench/frozen.toml`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fedrank.experiments.bench.board import MEASURE, smallest_difference
from fedrank.experiments.bench.check import check_folder
from fedrank.experiments.bench.tasks import SETTINGS, SKYLINE, cells_of, data_digests, task_grid
from fedrank.experiments.report.contrast import contrast

# Task: two built-in methods that differ about as much as methods that are worth comparing.
PAIRS = {
    "online": ("fedavg", "adam"),
    "noniid": ("fedavg", "adam"),
    "poisoned": ("fedavg", "adam"),
    "private": ("fedavg", "noise-by-organisation"),
    "unlearning": ("fed-eraser", SKYLINE),
    "silos": ("silo-global", "silo-local"),
}


def main(folder: Path) -> None:
    grids = [task_grid(task, {cell: {} for cell in cells_of(task)}) for task in (*SETTINGS, SKYLINE)]
    print("[data]")
    for key, digest in sorted(data_digests(grids).items()):
        print(f'"{key}" = "{digest}"')
    print("\n[smallest]")
    checked = {name: check_folder(folder / name) for name in dict.fromkeys(sum(PAIRS.values(), ()))}
    for task, (one, other) in PAIRS.items():
        for cell in cells_of(task):
            found = contrast(checked[one].rows[task, cell], checked[other].rows[task, cell], MEASURE)
            print(f'"{task}/{cell}" = {smallest_difference(found):.4f}  # {found.difference:+.4f}, {found.unit}')


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the results of the pairs")
    main(parser.parse_args().folder)
