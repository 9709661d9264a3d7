"""Measure the index of a folder with 100,000 small files: first run, nothing new, changes, a moved folder, one file.

    python -m benchmarks.search_folder [--files 100000] [--keep FOLDER]

Files are notes of 60 to 260 words like the documents of `benchmarks.live_search`, in a hundred folders. "One changed
file" is what the watcher does after an event. Each step runs in a separate process, whose peak of memory is given.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = ("first run", "nothing new", "a changed folder", "one changed file", "a moved folder", "a deleted folder")
FOLDERS = 100


def write_files(folder: Path, count: int) -> None:
    from benchmarks.live_search import write_documents

    lines = folder.with_suffix(".jsonl")
    write_documents(lines, count)
    with lines.open() as file:
        for number, line in enumerate(file):
            one = json.loads(line)
            inner = folder / f"{number * FOLDERS // count:03}"
            inner.mkdir(parents=True, exist_ok=True)
            (inner / f"note-{number:06}.txt").write_text(f"{one['title']}\n\n{one['text']}\n")
    lines.unlink()


def change(folder: Path, step: str) -> list[Path]:
    """Change files for a step; returns the changed paths."""
    changed = {
        "a changed folder": [*(folder / "000").iterdir()],
        "one changed file": [next((folder / "001").iterdir())],
    }
    for path in changed.get(step, ()):
        path.write_text(path.read_text() + "one more line\n")
    if step == "a moved folder":
        (folder / "002").rename(folder / "moved")
    elif step == "a deleted folder":
        shutil.rmtree(folder / "003")
    return changed[step] if step == "one changed file" else []


def measure(folder: Path, store: Path, step: str) -> None:
    """Run one step in this process, and print its figures."""
    from fedrank.search.client import SearchClient

    with SearchClient(store) as client:
        before = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        began = time.perf_counter()
        changed = change(folder, step)
        done = client.index([folder], **({"changed": changed} if changed else {}))
        wall = time.perf_counter() - began
        after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        counts = client.store.one("SELECT count(*), min(id), max(id) FROM documents")
    cpu = [b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(before, after, strict=True)]
    memory = after[0].ru_maxrss / 1024
    outcome = f"{done.added} added, {done.changed} changed, {done.removed} removed, ids {counts[1]} to {counts[2]}"
    print(
        f"{step:20} CPU {sum(cpu):7.2f} s (readers {cpu[1]:6.2f}), wall {wall:7.2f} s, memory {memory:4.0f} MB; "
        f"{outcome}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="work in this folder, and keep it")
    parser.add_argument("--step", choices=STEPS, help="only this step, in this process")
    given = parser.parse_args()
    home = given.keep or Path(tempfile.mkdtemp(prefix="fedrank-search-folder-"))
    folder, store = home / "documents", home / "store"
    if given.step:
        measure(folder, store, given.step)
        return
    try:
        if not folder.exists():
            home.mkdir(exist_ok=True)
            write_files(folder, given.files)
        for step in STEPS:
            words = [sys.executable, "-m", "benchmarks.search_folder", "--keep", str(home), "--step", step]
            subprocess.run(words, check=True)
        disk = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
        text = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"disk: {disk / 1e6:.0f} MB of index for {text / 1e6:.0f} MB of text")
    finally:
        if not given.keep:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
