"""Reads mutated files, one after the other, in bounded time and memory; what went wrong it says on its output.

`python -m tests.fuzz.child NAMES COUNT SEED FIRST_READER FIRST_NUMBER`; a line is JSON: the mutation that comes next,
or what one did. Whoever started it knows from the last line which one killed it.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.mutations import mutated
from tests.fuzz.readers import READERS, Reader, flat

SECONDS = 5.0  # for one file
MEMORY = 2**30  # bytes more than what all examples took
REFUSED = (ValueError, OSError, ImportError)  # what a command tells in one line; anything else is a traceback


class TooSlow(BaseException):
    """It took longer than any file of this size may."""


def digest(value: Any) -> str | None:
    return None if value is None else hashlib.sha256(b"\0".join(flat(value))).hexdigest()


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def restore(folder: Path, files: dict[Path, bytes]) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and path not in files:
            path.unlink()
    for path, content in files.items():
        path.write_bytes(content)


def outcome(reader: Reader, folder: Path, expected: str | None) -> str:
    """How a file was read: `refused`, `same` or `other` where that is right, or what is wrong."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        said = digest(reader.read(folder))
        if said is None:
            return "refused"
        if said == expected:
            return "same"
        if reader.sealed:
            return "silent: it says something else, and nobody is told"
        return "other" if digest(reader.read(folder)) == said else "silent: read twice, it says two things"
    except REFUSED:
        return "refused"
    except TooSlow:
        return "hang"
    except BaseException as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        return f"crash: {type(problem).__name__}: {str(problem)[:80]} ({Path(where.filename).name}:{where.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main(names: list[str], count: int, seed: int, first_reader: int, first: int) -> None:
    def too_slow(*_: object) -> None:
        raise TooSlow

    def tell(*values: Any) -> None:
        print(json.dumps(values), flush=True)

    signal.signal(signal.SIGALRM, too_slow)
    warnings.simplefilter("ignore")
    memory = Path("/dev/shm")  # files that live for milliseconds need no disk
    root = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        folders, expected, files = {}, {}, {}
        for name in names[first_reader:]:
            folders[name] = root / name.replace(" ", "-")
            folders[name].mkdir()
            READERS[name].make(folders[name])
            files[name] = contents(folders[name])
            expected[name] = digest(READERS[name].read(folders[name]))
            assert expected[name] is not None, f"{name}: the example itself cannot be read"
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for place, name in enumerate(names[first_reader:], first_reader):
            for number in range(first if place == first_reader else 0, count):
                rng = np.random.default_rng([seed, zlib.crc32(name.encode()), number])
                restore(folders[name], files[name])
                chosen = sorted(files[name])[rng.integers(len(files[name]))]
                chosen.write_bytes(mutated(files[name][chosen], rng))
                tell("next", place, number)
                tell("was", place, number, chosen.name, outcome(READERS[name], folders[name], expected[name]))
        tell("end")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(json.loads(sys.argv[1]), *map(int, sys.argv[2:]))
