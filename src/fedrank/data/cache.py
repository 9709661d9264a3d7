"""Disk cache of parsed data sets: a file is parsed once and memory-mapped in milliseconds afterwards.

An entry is a folder of plain `.npy` files and a `header.json`. It is renamed into place when complete. An entry with a
missing file, another size or another shape counts as absent, and the data set is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.mapped import open_mapped
from fedrank.data.ranking import RankingData
from fedrank.files import opened, parse_json, read_text
from fedrank.kernels.compile import cache_folder

FORMAT = 1  # increase when parsing or the layout of entries changes

_ARRAYS = ("features", "grades", "offsets", "query_ids")
_SAMPLE = 1 << 20  # bytes hashed at the beginning and the end of a file
_UNFINISHED = ".unfinished-"  # prefix of unfinished folders
_ABANDONED = 24 * 3600  # seconds after which the writer of an unfinished entry must have died


def cache_key(paths: Sequence[Path], options: Mapping[str, Any]) -> str:
    """Return the name of the entry for these files in their current state, read with these options."""
    files = [_fingerprint(path) for path in paths]
    text = json.dumps([FORMAT, files, dict(options)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def load(key: str) -> RankingData | None:
    """Return the memory-mapped data set of this entry, or None if it is missing or damaged."""
    folder = _entries() / key
    try:
        header = parse_json(read_text(folder / "header.json"))
        arrays: dict[str, Any] = {name: _open(folder / f"{name}.npy", header["arrays"][name]) for name in _ARRAYS}
        return RankingData(**arrays, top_grade=int(header["top_grade"]), normalised=str(header["normalised"]))
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError):
        return None


def store(key: str, data: RankingData) -> bool:
    """Store a data set under this name; return False if the cache folder is not writable."""
    entries = _entries()
    try:
        entries.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=entries))
    except OSError:
        return False
    try:
        _remove_abandoned(entries)
        _write(unfinished, data)
        return _move_in(unfinished, entries / key, key)
    except OSError:
        return False
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _entries() -> Path:
    return cache_folder() / "data"


def _fingerprint(path: Path) -> list[str | int]:
    # The path is included because parts of one archive may have equal sizes, times and ends.
    with opened(path) as file:
        status = os.fstat(file.fileno())
        digest = hashlib.blake2b(file.read(_SAMPLE), digest_size=16)
        file.seek(max(0, status.st_size - _SAMPLE))
        digest.update(file.read(_SAMPLE))
    return [str(path.resolve()), status.st_size, status.st_mtime_ns, digest.hexdigest()]


def _open(path: Path, expected: Mapping[str, Any]) -> NDArray[Any]:
    if path.stat().st_size != expected["bytes"]:
        raise ValueError(f"{path} must have {expected['bytes']} bytes")
    array = open_mapped(path)
    if list(array.shape) != expected["shape"] or array.dtype.str != expected["type"]:
        raise ValueError(f"{path} must have type {expected['type']} and shape {expected['shape']}")
    return array


def _write(folder: Path, data: RankingData) -> None:
    described = {}
    for name in _ARRAYS:
        array = getattr(data, name)
        path = folder / f"{name}.npy"
        np.save(path, array, allow_pickle=False)
        described[name] = {"shape": list(array.shape), "type": array.dtype.str, "bytes": path.stat().st_size}
    header = {"format": FORMAT, "arrays": described, "top_grade": data.top_grade, "normalised": data.normalised}
    (folder / "header.json").write_text(json.dumps(header, indent=1), encoding="utf-8")


def _move_in(unfinished: Path, entry: Path, key: str) -> bool:
    for _ in range(3):
        try:
            os.rename(unfinished, entry)
            return True
        except OSError:
            if load(key) is not None:
                return True  # another process wrote the same entry first
            # A damaged entry is in the way. It is renamed before it is deleted, so readers never see a partial entry.
            away = tempfile.mkdtemp(prefix=_UNFINISHED, dir=entry.parent)
            with contextlib.suppress(OSError):
                os.rename(entry, Path(away) / "damaged")
            shutil.rmtree(away, ignore_errors=True)
    return False


def _remove_abandoned(entries: Path) -> None:
    for folder in entries.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)
