"""Measure CPU time and memory of converting the published files of AOL4FOLTR, and of opening them as training data.

The files are generated in the format of the released code; the published ones have 55 GB.

    python -m benchmarks.aol4foltr [MB] [--check]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

MAX_SECONDS = 10.0  # of CPU time per GB of letor.txt
MAX_MEMORY = 1000.0  # MB, for files of any size
LENGTH, WIDTH = 20, 103


def write_files(folder: Path, megabytes: float) -> tuple[Path, Path]:
    """Write metadata.csv and letor.txt: values are float32 with all digits of a double, or integers."""
    rng = np.random.default_rng(1)
    # A pool of lists is repeated under new ids to speed up writing.
    pool = []
    for _ in range(200):
        values = np.exp(rng.normal(0, 2, (LENGTH, WIDTH))).astype(np.float32)
        values[rng.random((LENGTH, WIDTH)) < 0.5] = 0
        whole = rng.random(WIDTH) < 0.15
        lines = []
        for row in values:
            numbers = [str(int(v)) if w else repr(float(v)) for v, w in zip(row, whole, strict=True)]
            lines.append(" ".join(f"{i}:{number}" for i, number in enumerate(numbers, 1)))
        pool.append(lines)
    others = ", ".join(f"'{i:012x}'" for i in range(LENGTH - 1))
    metadata, letor = folder / "metadata.csv", folder / "letor.txt"
    with open(metadata, "w", encoding="ascii") as rows, open(letor, "w", encoding="ascii") as text:
        rows.write("qid,user_id,timestamp,query,target_doc_id,candidate_doc_ids\n")
        qid = 0
        while text.tell() < megabytes * 1e6:
            seconds = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1_141_171_200 + qid))
            target = f"{rng.integers(2**40):012x}"
            rows.write(
                f"{qid},{rng.zipf(1.5) % 10_000},{seconds},query {qid % 999},{target},\"{{'{target}', {others}}}\"\n"
            )
            clicked = rng.integers(LENGTH)
            for place, line in enumerate(pool[rng.integers(len(pool))]):
                text.write(f"{int(place == clicked)} qid:{qid} {line}\n")
            qid += 1
    return metadata, letor


def convert(folder: Path) -> Any:
    from fedrank_papers.aol4foltr import convert_aol4foltr

    convert_aol4foltr(folder / "metadata.csv", folder / "letor.txt", folder / "out")


def open_fold(folder: Path) -> Any:
    """Open the log as training data, normalised by query and stored on disk, and read every value once."""
    from fedrank.data import log_fold

    log_fold.IN_MEMORY = 0
    fold = log_fold.log_fold(folder / "out")
    return [float(part.features.sum()) for part in (fold.train, fold.test)]


def own_memory() -> float:
    """Private memory of this process in MB, without pages of files, which the system can reclaim."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return float(text.partition("RssAnon:")[2].split()[0]) / 1e3


def measured(call: Callable[[Path], Any], folder: Path) -> tuple[float, float]:
    """CPU seconds and peak memory of a call in a separate process."""
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(target=_measure, args=(call, folder, sender))
    child.start()
    sender.close()
    seconds, memory = json.loads(receiver.recv())
    child.join()
    return seconds, memory


def _measure(call: Callable[[Path], Any], folder: Path, sender: Any) -> None:
    call(folder / "small")  # compiles
    most, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.02):
            most = max(most, own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.process_time()
    call(folder)
    seconds = time.process_time() - start
    done.set()
    watcher.join()
    sender.send(json.dumps([seconds, most]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mb", type=float, nargs="?", default=1000, help="size of the generated letor.txt")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["FEDRANK_CACHE"] = str(folder / "cache")
        os.environ.pop("NUMBA_CACHE_DIR", None)
        small = folder / "small"
        small.mkdir()
        write_files(small, 1)
        metadata, letor = write_files(folder, options.mb)
        reading, memory = measured(convert, folder)
        opening, opened = measured(open_fold, folder)
        features = (folder / "out" / "features.npy").stat().st_size / 1e6
        sizes = letor.stat().st_size / 1e6, metadata.stat().st_size / 1e6
    table = Table(title=f"letor.txt of {sizes[0]:,.0f} MB, metadata.csv of {sizes[1]:,.0f} MB", box=None)
    for name in ("what", "CPU seconds", "target", "memory, MB", "target"):
        table.add_column(name, justify="left" if name == "what" else "right")
    most = MAX_SECONDS * sizes[0] / 1000
    limit = f"at most {MAX_MEMORY:g}"
    table.add_row("convert", f"{reading:.1f}", f"at most {most:.1f}", f"{memory:.0f}", limit)
    table.add_row(f"open {features:,.0f} MB of features as a fold", f"{opening:.1f}", "", f"{opened:.0f}", limit)
    Console().print(table)
    missed = reading > most or max(memory, opened) > MAX_MEMORY
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
