"""Check files of judged queries: whether they are valid, what they contain, and what is unusual about them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank.data.judged_files import JudgedFileError, read_judged
from fedrank.data.normalise import feature_ranges
from fedrank.data.ranking import RankingData


@dataclass(frozen=True)
class FileCheck:
    """The contents of a file; all counts are 0 if the file cannot be read."""

    path: str
    error: str = ""  # why it cannot be read; "" for a valid file
    queries: int = 0
    documents: int = 0
    features: int = 0
    grades: tuple[int, ...] = ()  # numbers of documents with label 0, 1, 2, ...
    fewest: int = 0  # documents of the query with the fewest
    median: float = 0.0  # documents per query
    most: int = 0  # documents of the query with the most
    without_relevant: int = 0  # queries whose documents all have label 0
    single: int = 0  # queries with one document
    same_grade: int = 0  # queries with several documents, all with the same label
    constant: tuple[int, ...] = ()  # constant features other than 0, counted from 1
    all_zero: tuple[int, ...] = ()  # features that are always 0, counted from 1
    duplicates: int = 0  # documents with the same features as another of the query
    sorted_queries: float = (
        0.0  # share of queries with different labels whose documents are sorted by label, best first
    )
    looks_normalised: bool = False  # all values from 0 to 1
    zeros: float = 0.0  # share of values
    oddities: tuple[str, ...] = ()  # sentences

    @property
    def sound(self) -> bool:
        return not self.error

    @property
    def sorted_by_grade(self) -> bool:
        """Whether most queries list their best documents first, which flatters rankers with tied scores."""
        return self.sorted_queries > 0.5


def check_files(
    paths: Sequence[str | os.PathLike[str]], *, features: int | None = None, missing: float | None = None
) -> list[FileCheck]:
    """Check each file; an invalid file is a result and raises no exception."""
    checks = []
    for path in paths:
        try:
            data = read_judged(path, features=features, missing=missing, cache=False)
        except JudgedFileError as error:
            checks.append(FileCheck(str(path), error=str(error)))
        except OSError as error:
            checks.append(FileCheck(str(path), error=f"{path}: {error.strerror or error}"))
        else:
            checks.append(check_data(data, str(path)))
    return checks


def check_data(data: RankingData, path: str) -> FileCheck:
    """Check a data set that is already read."""
    starts = data.offsets[:-1]
    lengths = np.diff(data.offsets)
    best = np.maximum.reduceat(data.grades, starts)
    worst = np.minimum.reduceat(data.grades, starts)
    low, high = feature_ranges(data)
    values = data.features.size
    check = FileCheck(
        path,
        queries=data.queries,
        documents=data.documents,
        features=data.features.shape[1],
        grades=tuple(np.bincount(data.grades).tolist()),
        fewest=int(lengths.min()),
        median=float(np.median(lengths)),
        most=int(lengths.max()),
        without_relevant=int(np.sum(best == 0)),
        single=int(np.sum(lengths == 1)),
        same_grade=int(np.sum((best == worst) & (lengths > 1))),
        constant=_numbers((low == high) & (low != 0)),
        all_zero=_numbers((low == 0) & (high == 0)),
        duplicates=_duplicates(data),
        sorted_queries=_sorted_queries(data, best > worst),
        looks_normalised=bool(low.min() >= 0 and high.max() <= 1),
        zeros=(values - int(np.count_nonzero(data.features))) / values,
    )
    return replace(check, oddities=tuple(_oddities(check)))


def _numbers(which: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple((np.flatnonzero(which) + 1).tolist())


def _duplicates(data: RankingData) -> int:
    repeated = 0
    for start, stop in zip(data.offsets[:-1].tolist(), data.offsets[1:].tolist(), strict=True):
        rows = data.features[start:stop] + np.float32(0)  # turns -0 into 0, so equal rows have equal bytes
        repeated += len(rows) - len({row.tobytes() for row in rows})
    return repeated


def _sorted_queries(data: RankingData, several: NDArray[np.bool_]) -> float:
    if not several.any():
        return 0.0
    rises = np.zeros(data.documents, np.int64)
    rises[1:] = np.diff(data.grades.astype(np.int64)) > 0
    rises[data.offsets[:-1]] = 0
    in_order = np.add.reduceat(rises, data.offsets[:-1]) == 0
    return float(np.mean(in_order[several]))


def _oddities(check: FileCheck) -> list[str]:
    sentences = []
    if check.without_relevant:
        sentences.append(f"{_count(check.without_relevant, 'query has', 'queries have')} no relevant document")
    if check.single:
        sentences.append(
            f"{_count(check.single, 'query has', 'queries have')} only one document, so there is nothing to rank"
        )
    if check.same_grade:
        sentences.append(
            f"{_count(check.same_grade, 'query has', 'queries have')} several documents, all with the same relevance "
            "label"
        )
    skipped = [str(grade) for grade, count in enumerate(check.grades) if count == 0]
    if skipped:
        sentences.append(f"no document has relevance label {_listed(skipped)}")
    if check.constant:
        sentences.append(_features(check.constant, "is constant", "are constant"))
    if check.all_zero:
        sentences.append(_features(check.all_zero, "is always 0", "are always 0"))
    if check.duplicates:
        sentences.append(
            f"{_count(check.duplicates, 'document has', 'documents have')} the same features as another document of "
            "the query"
        )
    if check.sorted_by_grade:
        sentences.append(
            f"{check.sorted_queries:.0%} of the queries list their documents by relevance label, best first; a ranker "
            "with tied scores looks perfect if ties keep the order of the file"
        )
    return sentences


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _features(numbers: Sequence[int], one: str, many: str) -> str:
    if len(numbers) == 1:
        return f"feature {numbers[0]} {one}"
    return f"features {_listed([str(number) for number in numbers])} {many}"


def _listed(words: Sequence[str]) -> str:
    if len(words) > 8:
        words = [*words[:7], f"{len(words) - 7} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Map paths to their file names if these are unique."""
    alone = [Path(path).name for path in paths]
    return {path: path if alone.count(name) > 1 else name for path, name in zip(paths, alone, strict=True)}
