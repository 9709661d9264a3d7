"""Read files of judged queries and documents with the reader for their file type."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedrank.data.lines import PACKED
from fedrank.data.ranking import RankingData

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class JudgedFileError(ValueError):
    """An invalid file of judgements; the message names file, line, text and remedy."""


def _read_letor(paths: Paths, **options: Any) -> RankingData:
    from fedrank.data.letor import read_letor  # imported late because it compiles kernels

    return read_letor(paths, **options)


# Readers by file name suffix, "" for all others. A reader takes the arguments of `read_judged`, and raises
# `JudgedFileError` for an invalid file.
READERS: dict[str, Callable[..., RankingData]] = {"": _read_letor}


def read_judged(
    paths: Paths,
    *,
    features: int | None = None,
    normalise: str = "none",
    missing: float | None = None,
    cache: bool = True,
) -> RankingData:
    """Read files with the reader for the first file's suffix; see `fedrank.read_letor` for the arguments."""
    first = Path(paths) if isinstance(paths, (str, os.PathLike)) else Path(next(iter(paths), ""))
    ending = next((suffix.lower() for suffix in reversed(first.suffixes) if suffix.lower() not in PACKED), "")
    reader = READERS.get(ending, READERS[""])
    return reader(paths, features=features, normalise=normalise, missing=missing, cache=cache)
