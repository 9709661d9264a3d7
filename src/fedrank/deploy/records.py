"""Log lines and records of a site or a coordinator for its administrators."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from fedrank.files import now, sync

RECORDS = "records.jsonl"  # who joined, left, was expelled
MAX_LOG_LENGTH = 4 << 20  # bytes after which a new log is started; the previous one is kept


def open_log(path: Path) -> IO[bytes]:
    """Open a log for appending, readable only by its owner; a log that is too long is rotated."""
    if path.exists() and path.stat().st_size > MAX_LOG_LENGTH:
        os.replace(path, path.with_suffix(".log.1"))
    return open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")


def log_line(path: Path, line: str) -> None:
    """Append a line to a log, with the time and without control characters."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with open_log(path) as file:
        file.write(f"{stamp} {printable(line)}\n".encode())


def last_line(path: Path) -> str | None:
    """The last line of a log; None if there is no log."""
    if not path.exists():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else None


def record(folder: Path, what: str, **more: Any) -> None:
    """Append a line to the records of a folder and flush it to disk."""
    path = Path(folder) / RECORDS
    with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as file:
        file.write(json.dumps({"when": now(), "what": what, **more}, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)


def event_printer(member: str) -> Callable[[str], None]:
    """Print events as JSON lines for a log collector.

    A reason may contain values of the site, such as names of files and features, and stays in `site.log`.
    """

    def tell(line: str) -> None:
        event, _, reason = printable(line).partition("refused: ")
        level = "warning" if reason else "info"
        text = f"{event}refused" if reason else event
        print(json.dumps({"time": now(), "level": level, "member": member, "event": text}), flush=True)

    return tell


def printable(text: str) -> str:
    """A text in one line without control characters."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
