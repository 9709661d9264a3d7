"""A search log as a fold: earlier entries for training, the latest for testing."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray

from fedrank.data.catalog import Fold
from fedrank.data.logs import SearchLog, as_ranking, lengths_of, load_log, pairs_of, stretch_of
from fedrank.data.mapped import open_mapped
from fedrank.data.normalise import Ranges, normalise, normalise_into
from fedrank.data.ranking import RankingData
from fedrank.files import writing
from fedrank.types import Features

TEST_SHARE = 0.2  # share of the latest entries (AOL4FOLTR)
IN_MEMORY = 1 << 30  # bytes of features; larger arrays are stored in the cache folder
FORMAT = 1  # increase when the same entries would get different features

_SOME = 4000  # entries with features in memory at a time


def log_fold(
    folder: str | os.PathLike[str],
    users: int | None = None,
    test_share: float = TEST_SHARE,
    how: str = "query",
    fixed: Ranges | None = None,
) -> Fold:
    """Return the entries of a log's most active users (None: all) in order of time; the last ones are the test set.

    Entries that are held out are in neither part. Clicked documents of an entry have label 1, all others 0. Training
    queries record their user and time. Features of a large log stay on disk. `fixed` are ranges for "global"
    normalisation; None: those of the training entries.
    """
    log = load_log(folder)
    chosen = log.training_rows()
    if users is not None:
        entries = np.bincount(log.user[chosen], minlength=len(log.users))
        if users > np.count_nonzero(entries):
            raise ValueError(
                f"{users} users were requested, but {folder} has entries of {np.count_nonzero(entries)}; request fewer"
            )
        active = np.argsort(-entries, kind="stable")[:users]
        chosen = chosen[np.isin(log.user[chosen], active)]
    kept = len(chosen) - math.floor(len(chosen) * test_share)
    if not 0 < kept < len(chosen):
        raise ValueError(
            f"a test share of {test_share:g} divides {len(chosen)} entries into {kept} for training and "
            f"{len(chosen) - kept} for testing; use a larger log or another share"
        )
    ranges = None
    if how == "global":
        ranges = _ranges(log, chosen[:kept]) if fixed is None else fixed
    learn, check = (log_part(log, rows, how, ranges) for rows in (chosen[:kept], chosen[kept:]))
    note = (
        f"temporal split: {kept:,} entries of {len(np.unique(learn.who)):,} users for training, "
        f"the latest {len(chosen) - kept:,} for testing"
    )
    if held := int(log.held_out.sum()):
        note += f"; {held:,} entries that the log holds out are in neither part"
    return Fold(learn, None, check, learn.name, 1, (note,))


def log_part(log: SearchLog, rows: NDArray[np.int64], how: str, ranges: Ranges | None = None) -> RankingData:
    """Return some entries of a log, normalised; large features stay on disk."""
    if _bytes(log, rows) <= IN_MEMORY or (how == "none" and stretch_of(log, rows) is not None):
        data = normalise(as_ranking(log, rows), how, ranges)
    else:
        data = replace(as_ranking(log, rows, _on_disk(log, rows, how, ranges)), normalised=how, ranges=ranges)
    return replace(data, who=np.asarray(log.user[rows]), when=np.asarray(log.time[rows]))


def _bytes(log: SearchLog, rows: NDArray[np.int64]) -> int:
    size: int = int(lengths_of(log, rows).sum()) * log.features.shape[1] * log.features.itemsize
    return size


def _blocks(log: SearchLog, rows: NDArray[np.int64]) -> Iterator[Features]:
    """Yield the features of some entries' lists in blocks."""
    for first in range(0, len(rows), _SOME):
        yield log.features[pairs_of(log, rows[first : first + _SOME])]


def _ranges(log: SearchLog, rows: NDArray[np.int64]) -> Ranges:
    """Minimum and maximum of every feature, [2, features]."""
    found = [(block.min(axis=0), block.max(axis=0)) for block in _blocks(log, rows)]
    return np.stack([np.min([low for low, _ in found], axis=0), np.max([high for _, high in found], axis=0)])


def _on_disk(log: SearchLog, rows: NDArray[np.int64], how: str, ranges: Ranges | None) -> Features:
    """Normalised features of some entries in a file of the cache folder, which is written if missing."""
    from fedrank.kernels.compile import cache_folder

    path = cache_folder() / "logs" / f"{_key(log, rows, how, ranges)}.npy"
    if not path.is_file():
        try:
            _write(path, log, rows, how, ranges)
        except OSError as error:
            raise OSError(
                f"{path.parent} needs {_bytes(log, rows) / 1e9:.1f} GB for features ({error}); free space, or set "
                "FEDRANK_CACHE to another folder"
            ) from error
    features: Features = open_mapped(path)
    return features


def _key(log: SearchLog, rows: NDArray[np.int64], how: str, ranges: Ranges | None) -> str:
    status = (log.folder / "features.npy").stat()
    about = [FORMAT, str(log.folder.resolve()), status.st_size, status.st_mtime_ns, how]
    digest = hashlib.blake2b(json.dumps(about).encode(), digest_size=16)
    digest.update(rows.tobytes())
    digest.update(b"" if ranges is None else ranges.tobytes())
    return digest.hexdigest()


def _write(path: Path, log: SearchLog, rows: NDArray[np.int64], how: str, ranges: Ranges | None) -> None:
    lengths, width = lengths_of(log, rows), log.features.shape[1]
    with writing(path, private=True) as file:
        shape = (int(lengths.sum()), width)
        write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for number, block in enumerate(_blocks(log, rows)):
            own = lengths[number * _SOME : (number + 1) * _SOME]
            normalise_into(block, block, np.concatenate(([0], np.cumsum(own))), how, ranges)
            file.write(block.data)
