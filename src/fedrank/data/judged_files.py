"""Files of judged queries and documents: which reader reads which kind of file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedrank.data.lines import PACKED
from fedrank.data.ranking import RankingData

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class JudgedFileError(ValueError):
    """A file that a reader cannot use; the message names file, line, text and remedy."""


def _read_letor(paths: Paths, **options: Any) -> RankingData:
    from fedrank.data.letor import read_letor  # compiles: reading a spec must not

    return read_letor(paths, **options)


# Readers by the end of a file's name, "" for all others. A reader takes the arguments of `read_judged`, and raises
# `JudgedFileError` for a file that is not sound.
READERS: dict[str, Callable[..., RankingData]] = {"": _read_letor}


def read_judged(
    paths: Paths,
    *,
    features: int | None = None,
    normalise: str = "none",
    missing: float | None = None,
    cache: bool = True,
) -> RankingData:
    """Read files with the reader for the first one's name; `fedrank.read_letor` explains the arguments."""
    first = Path(paths) if isinstance(paths, (str, os.PathLike)) else Path(next(iter(paths), ""))
    ending = next((suffix.lower() for suffix in reversed(first.suffixes) if suffix.lower() not in PACKED), "")
    reader = READERS.get(ending, READERS[""])
    return reader(paths, features=features, normalise=normalise, missing=missing, cache=cache)
