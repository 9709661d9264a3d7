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


def _read_letor_comments(paths: Paths) -> list[str]:
    from fedrank.data.letor import read_comments  # imported late because it compiles kernels

    return read_comments(paths)


# Readers by file name suffix, "" for all others. A reader takes the arguments of `read_judged` and returns its
# `RankingData`; tests/data/test_judged_files.py adds one. The contract:
# - The documents of a query are adjacent; a query that occurs again after another one is an error.
# - Relevance labels are integers from 0 to 31 (`kernels.letor.MAX_GRADE`); features are finite float32 values.
# - `features` is the expected number of features, or None to take the number from the file.
# - `normalise` is applied by the reader (`data.normalise.normalise`), which sets `RankingData.normalised`.
# - `missing` is a value that is read as 0.
# - `cache=True` permits the reader to store what it read (`data.cache`); it may ignore this.
# - `name` of the data is the file name without suffixes, and only for display.
# - An invalid file raises `JudgedFileError`.
READERS: dict[str, Callable[..., RankingData]] = {"": _read_letor}

# For a suffix of `READERS` whose files have comments: returns one comment per document, in order, "" for none.
COMMENT_READERS: dict[str, Callable[[Paths], list[str]]] = {"": _read_letor_comments}


def read_judged(
    paths: Paths,
    *,
    features: int | None = None,
    normalise: str = "none",
    missing: float | None = None,
    cache: bool = True,
) -> RankingData:
    """Read files with the reader for the first file's suffix; see `fedrank.read_letor` for the arguments."""
    reader = READERS[_format_of(paths)]
    return reader(paths, features=features, normalise=normalise, missing=missing, cache=cache)


def comments_of(paths: Paths, documents: int) -> list[str] | None:
    """Return the comment of each document; None if the format has no comments."""
    reader = COMMENT_READERS.get(_format_of(paths))
    if reader is None:
        return None
    comments = reader(paths)
    if len(comments) != documents:
        raise JudgedFileError(
            f"{paths}: {len(comments):,} comments were read for {documents:,} documents; if the file is being "
            "written, wait until it is complete, then read it again"
        )
    return comments


def _format_of(paths: Paths) -> str:
    """Return the key of the first file in `READERS`."""
    first = Path(paths) if isinstance(paths, (str, os.PathLike)) else Path(next(iter(paths), ""))
    ending = next((suffix.lower() for suffix in reversed(first.suffixes) if suffix.lower() not in PACKED), "")
    return ending if ending in READERS else ""
