"""The origin of a result: its time, code, processor and files.

Checksums of large files are cached next to the parsed data, by the file's size, time and ends, so each file is read
once for its checksum.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from fedrank.data.cache import cache_key
from fedrank.experiments.spec.experiment import Experiment
from fedrank.files import opened, read_text, write_atomic
from fedrank.kernels.compile import cache_folder

CODE = Path(__file__).parents[2]
HERE = "working directory"
CHANGES, UNKNOWN = "with changes", "perhaps with changes"
SMALL = 1 << 20  # smaller files are read again instead of cached
SECONDS_FOR_GIT = 10.0
SHA256 = re.compile(r"[0-9a-f]{64}")
Sums = dict[str, str]  # file -> SHA-256


def data_sums(experiment: Experiment) -> Sums:
    """The checksum of every file that an experiment reads, by its name in the spec or the catalog.

    Built-in data have no file; the version of fedrank identifies them.
    """
    files: dict[str, Path] = experiment.data.files()
    start = getattr(experiment, "start", None)
    if start is not None and (model := Path(start) / "model.json" if Path(start).is_dir() else Path(start)).is_file():
        files = files | {start: model}
    return {name: checksum(path) for name, path in sorted(files.items())}


class DataSums:
    """The checksums of experiments' data, computed once for all experiments on the same data."""

    def __init__(self) -> None:
        self._known: dict[Any, Sums | None] = {}

    def __call__(self, experiment: Experiment) -> Sums | None:
        """None if a file cannot be read; loading the data reports that."""
        key = (experiment.data, getattr(experiment, "start", None))
        if key not in self._known:
            self._known[key] = None
            with suppress(OSError, ValueError):
                self._known[key] = data_sums(experiment)
        return self._known[key]


def checksum(file: Path) -> str:
    """SHA-256 of a file."""
    status = os.stat(file)
    if status.st_size <= SMALL:
        return _digest(file)
    return _checksum(file.resolve(), status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=4096)
def _checksum(file: Path, size: int, changed: int, inode: int) -> str:
    cached = cache_folder() / "checksums" / cache_key([file], {"inode": inode})
    with suppress(OSError, ValueError):
        known = read_text(cached).strip()
        if SHA256.fullmatch(known):
            return known
    found = _digest(file)
    with suppress(OSError):  # without a cache, it is read again
        write_atomic(cached, found + "\n")
    return found


def _digest(file: Path) -> str:
    with opened(file) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Files that have changed, or that only one of the two has."""
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


@cache
def commits() -> dict[str, str]:
    """The commits of fedrank's code and of the working directory, if they are in git repositories."""
    own = _commit(CODE, tracked="__init__.py")
    here = _commit(Path.cwd())
    found = {"fedrank": own, HERE: here if here != own else ""}
    return {what: commit for what, commit in found.items() if commit}


def _commit(folder: Path, tracked: str = "") -> str:
    """The commit of a folder, and whether it has changes; empty without a repository or without git.

    An installed package may be inside another repository: `tracked` must be part of it.
    """
    with suppress(OSError, subprocess.SubprocessError):
        if tracked:
            _git(folder, "ls-files", "--error-unmatch", tracked)
        commit = _git(folder, "rev-parse", "HEAD").strip()
        try:
            changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
        except subprocess.TimeoutExpired:  # a very large repository
            return f"{commit} {UNKNOWN}"
        return f"{commit} {CHANGES}" if changes.strip() else commit
    return ""


def _git(folder: Path, *words: str) -> str:
    # Programs named by the repository's settings are not started.
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *words]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True, timeout=SECONDS_FOR_GIT, env=environment
    )
    return done.stdout


@cache
def processor() -> str:
    """The name of the processor, if the system reports it, and its number of cores."""
    name = platform.processor() or platform.machine()
    with suppress(OSError, ValueError):
        if found := re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            name = found[1].strip()
    cores = os.cpu_count()
    return f"{name}, {cores} core{'' if cores == 1 else 's'}" if cores else name


def known(experiment: Experiment) -> dict[str, Any]:
    """The origin of a run at its start. An unreadable file is reported when its data are loaded."""
    return {"commits": commits(), "processor": processor(), "files": DataSums()(experiment) or {}}
