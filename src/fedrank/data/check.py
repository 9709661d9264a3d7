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


def check_files(paths: Sequence[str | os.PathLike[str]]) -> list[FileCheck]:
    """Check each file; an invalid file is a result and raises no exception."""
    checks = []
    for path in paths:
        try:
            data = read_judged(path, cache=False)
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
    queries, documents = ("query has", "queries have"), ("document has", "documents have")
    skipped = [str(grade) for grade, count in enumerate(check.grades) if count == 0]
    by_label = (
        f"{check.sorted_queries:.0%} of the queries list their documents by relevance label, best first; a ranker with "
        "tied scores looks perfect if ties keep the order of the file"
    )
    sentences = (
        _count(check.without_relevant, *queries, "no relevant document"),
        _count(check.single, *queries, "only one document, so there is nothing to rank"),
        _count(check.same_grade, *queries, "several documents, all with the same relevance label"),
        f"no document has relevance label {_listed(skipped)}" if skipped else "",
        _features(check.constant, "constant"),
        _features(check.all_zero, "always 0"),
        _count(check.duplicates, *documents, "the same features as another document of the query"),
        by_label if check.sorted_by_grade else "",
    )
    return [sentence for sentence in sentences if sentence]


def _count(number: int, one: str, many: str, what: str) -> str:
    return f"{number:,} {one if number == 1 else many} {what}" if number else ""


def _features(numbers: Sequence[int], what: str) -> str:
    if len(numbers) < 2:
        return f"feature {numbers[0]} is {what}" if numbers else ""
    return f"features {_listed([str(number) for number in numbers])} are {what}"


def _listed(words: Sequence[str]) -> str:
    if len(words) > 8:
        words = [*words[:7], f"{len(words) - 7} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Map paths to their file names if these are unique."""
    alone = [Path(path).name for path in paths]
    return {path: path if alone.count(name) > 1 else name for path, name in zip(paths, alone, strict=True)}
