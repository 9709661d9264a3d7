"""Lines that a site or a coordinator writes for its own administrators."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import IO, Any

from fedrank.files import sync
from fedrank.privacy.population import now

RECORDS = "records.jsonl"  # who joined, left, was expelled
MAX_LOG_LENGTH = 4 << 20  # bytes after which a new log begins; the previous one stays


def open_log(path: Path) -> IO[bytes]:
    """A log to append to, for its owner alone; one that is too long begins anew."""
    if path.exists() and path.stat().st_size > MAX_LOG_LENGTH:
        os.replace(path, path.with_suffix(".log.1"))
    return open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")


def log_line(path: Path, line: str) -> None:
    """Add a line to a log, with the time and without signs that move a cursor."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with open_log(path) as file:
        file.write(f"{stamp} {printable(line)}\n".encode())


def record(folder: Path, what: str, **more: Any) -> None:
    """Add a line to the records of a folder; it is on the disk when this returns."""
    path = Path(folder) / RECORDS
    with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as file:
        file.write(json.dumps({"when": now(), "what": what, **more}, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)


def printable(text: str) -> str:
    """A text in one line and without signs that move a cursor."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
