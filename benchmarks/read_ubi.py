"""Measure speed and memory of reading User Behavior Insights: generated queries and a million events.

python -m benchmarks.read_ubi [EVENTS] [--check]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

LEAST_ROWS = 25_000  # per second of CPU time
MAX_MEMORY = 600.0  # MB for a million events
DOCUMENTS, PAGE = 20_000, 10


def write_files(folder: Path, events: int) -> tuple[Path, Path, Path]:
    """Write half a query per event, ids as long as UUIDs; every second event is an impression or a view."""
    rng = np.random.default_rng(1)
    documents, queries, happened = (folder / name for name in ("docs.jsonl", "queries.ndjson", "events.ndjson"))
    documents.write_text("".join(f'{{"_id": "B{row:09}"}}\n' for row in range(DOCUMENTS)))
    with open(queries, "w") as asked, open(happened, "w") as done:
        for number in range(events // 2):
            hits = [f"B{row:09}" for row in rng.choice(DOCUMENTS, PAGE, replace=False)]
            moment = 1_700_000_000 + number
            about = {
                "application": "shop",
                "client_id": f"5e3b2a1c-8b7d-4f2e-a3d4-{rng.zipf(1.5) % 100_000:012}",
                "query_id": f"00112233-4455-6677-8899-{number:012}",
            }
            search = {
                "user_query": f"words of query {rng.zipf(1.3) % 50_000}",
                "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S.000+0000", time.gmtime(moment)),
                "query_response_id": f"aabbccdd-4455-6677-8899-{number:012}",
                "query_response_hit_ids": hits,
                "query_attributes": {},
                "query": '{"from":0,"size":10,"query":{"match":{"title":"words"}}}',
            }
            asked.write(json.dumps(about | search) + "\n")
            for action in ("click", "impression"):
                place = int(rng.integers(PAGE))
                where = {
                    "object": {"object_id": hits[place], "object_id_field": "_id"},
                    "position": {"ordinal": place + 1},
                }
                event = {"action_name": action, "session_id": "s", "timestamp": (moment + 5) * 1000}
                done.write(json.dumps(about | event | {"event_attributes": where}) + "\n")
    return documents, queries, happened


def measure(files: tuple[Path, Path, Path], found: Any) -> None:
    """Measure in a separate process, so memory is that of reading."""
    from fedrank.data.documents import read_documents
    from fedrank.data.ubi import read_ubi

    documents = read_documents(files[0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    rows = read_ubi(files[1], files[2], documents, files[0])
    seconds = time.process_time() - start
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
    found.put((rows.rows, len(rows), int(rows.clicks.sum()), seconds, memory))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("events", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--check", action="store_true", help="fail if a target is missed")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), asked.events)
        megabytes = sum(path.stat().st_size for path in files[1:]) / 1e6
        context = multiprocessing.get_context("spawn")
        found = context.Queue()
        process = context.Process(target=measure, args=(files, found))
        process.start()
        rows, lists, clicks, seconds, memory = found.get()
        process.join()
    table = Table("rows", "MB", "lists", "clicks", "CPU s", "rows/s", "memory, MB")
    table.add_row(
        f"{rows:,}",
        f"{megabytes:,.0f}",
        f"{lists:,}",
        f"{clicks:,}",
        f"{seconds:.1f}",
        f"{rows / seconds:,.0f}",
        f"{memory:,.0f}",
    )
    Console().print(table)
    if asked.check and (rows / seconds < LEAST_ROWS or memory > MAX_MEMORY * max(asked.events / 1e6, 0.1)):
        sys.exit(f"too slow or too large: at least {LEAST_ROWS:,} rows per second, at most {MAX_MEMORY:,.0f} MB")


if __name__ == "__main__":
    main()
