"""Categories of queries, derived from the categories of their relevant documents, by a file or by a feature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.files import read_text
from fedrank.names import did_you_mean

MAX_CATEGORIES = 1_000  # a feature with more values is a measurement, not a category
_UNKNOWN = -1  # category of a document without one

Counts = NDArray[np.int64]


class Tally(NamedTuple):
    """Documents of each category per query; all [queries, categories]."""

    relevant: Counts  # relevant documents
    grades: Counts  # sum of their relevance labels
    top: Counts  # their highest relevance label
    any: Counts  # documents, relevant or not


def query_categories(tally: Tally, rule: str, rng: np.random.Generator) -> Counts:
    """[queries]: the category of each query, -1 where the rule assigns none.

    Ties that remain after sums and highest labels are broken at random. Rules that need no random numbers also draw
    them, so all rules use the same amount of `rng`.
    """
    most = tally.relevant.max(axis=1, keepdims=True)
    best = (tally.relevant == most) & (most > 0)
    tie_breaker = rng.random(best.shape)
    if rule == "no-ties":
        best &= best.sum(axis=1, keepdims=True) == 1
    elif rule == "exclusive":
        best &= most == tally.relevant.sum(axis=1, keepdims=True)
    else:
        for values in (tally.grades, tally.top):
            left = np.where(best, values, -1)
            best &= left == left.max(axis=1, keepdims=True)
    return np.where(best.any(axis=1), np.argmax(np.where(best, tie_breaker, -1.0), axis=1), -1)


@dataclass(frozen=True)
class Tallies:
    """Counts the categories of documents, from a feature or from a file."""

    names: tuple[str, ...]
    of_documents: Callable[[RankingData], Counts]  # [documents]: category of each, -1 where it has none
    of_queries: Callable[[RankingData], Counts] | None = None  # [queries], where a file lists whole queries

    def __call__(self, data: RankingData) -> Tally:
        if self.of_queries is not None:
            one = np.zeros((data.queries, len(self.names)), dtype=np.int64)
            one[np.arange(data.queries), self.of_queries(data)] = 1
            return Tally(one, one, one, one)
        category = self.of_documents(data)
        grades = data.grades.astype(np.int64)
        query = np.repeat(np.arange(data.queries), np.diff(data.offsets))
        shape = (data.queries, len(self.names))
        cells = query * len(self.names) + category
        known, relevant = category >= 0, (category >= 0) & (grades > 0)
        size = shape[0] * shape[1]
        top = np.zeros(size, dtype=np.int64)
        np.maximum.at(top, cells[relevant], grades[relevant])
        return Tally(
            np.bincount(cells[relevant], minlength=size).reshape(shape),
            np.bincount(cells[relevant], weights=grades[relevant], minlength=size).astype(np.int64).reshape(shape),
            top.reshape(shape),
            np.bincount(cells[known], minlength=size).reshape(shape),
        )


def tallies(by: str, bins: int, parts: Sequence[RankingData]) -> Tallies:
    """Counts by a file, or by "feature:" and a feature's name or number; `parts` are all the data to be counted."""
    if not by:
        raise ValueError('by must not be empty; give a file such as "category.tsv", or a feature such as "feature:12"')
    if by.startswith("feature:"):
        return _of_feature(_column(by.removeprefix("feature:"), parts[0]), bins, parts)
    if bins:
        raise ValueError(f"bins = {bins} applies only to features; {by} names categories already")
    return _of_file(by)


def _column(name: str, data: RankingData) -> int:
    width = data.features.shape[1]
    if name in data.feature_names:
        return data.feature_names.index(name)
    if not name.isdecimal() or not 1 <= int(name) <= width:
        raise ValueError(f"unknown feature {name!r}; use a number from 1 to {width}, or a feature name of the data")
    return int(name) - 1


def _of_feature(column: int, bins: int, parts: Sequence[RankingData]) -> Tallies:
    if bins:
        seen = parts[0].features[:, column]  # other parts must not influence the categories
        edges = np.unique(np.quantile(seen, np.arange(1, bins) / bins, method="higher"))
        names = ("lowest", *(f"from {edge:g}" for edge in edges))
        return Tallies(names, lambda data: np.searchsorted(edges, data.features[:, column], side="right"))
    values = np.unique(np.concatenate([np.unique(part.features[:, column]) for part in parts]))
    if len(values) > MAX_CATEGORIES:
        raise ValueError(
            f"feature {column + 1} has {len(values):,} values, too many for categories; give bins, such as bins = 4"
        )
    return Tallies(
        tuple(f"{value:g}" for value in values), lambda data: np.searchsorted(values, data.features[:, column])
    )


def _of_file(file: str) -> Tallies:
    known = _read_categories(file)
    names = tuple(sorted(set(known.values())))
    place = {name: number for number, name in enumerate(names)}

    def of_queries(data: RankingData) -> Counts:
        ids = [str(query) for query in data.query_ids]
        lacking = [query for query in ids if (query, "") not in known]
        if lacking:
            raise ValueError(
                f"{file} has no category for {len(lacking)} of {len(ids)} queries, such as {lacking[0]}; "
                "add a line for each"
            )
        return np.array([place[known[query, ""]] for query in ids], dtype=np.int64)

    def of_documents(data: RankingData) -> Counts:
        lengths = np.diff(data.offsets)
        queries = np.repeat(data.query_ids, lengths).tolist()
        numbers = (np.arange(data.documents) - np.repeat(data.offsets[:-1], lengths) + 1).tolist()
        found = [place.get(known.get((q, str(n)), ""), _UNKNOWN) for q, n in zip(queries, numbers, strict=True)]
        category = np.array(found, dtype=np.int64)
        lacking = np.flatnonzero((category < 0) & (data.grades > 0))
        if len(lacking):
            row = int(lacking[0])
            raise ValueError(
                f"{file} has no category for {len(lacking)} relevant documents, such as document {numbers[row]} of "
                f"query {queries[row]}; add a line for each"
            )
        return category

    if all(document == "" for _, document in known):
        return Tallies(names, of_documents, of_queries)
    return Tallies(names, of_documents)


@lru_cache(maxsize=2)
def _read_categories(file: str) -> dict[tuple[str, str], str]:
    """Lines of: query, tab, category; or query, tab, position of the document in the query from 1, tab, category."""
    known: dict[tuple[str, str], str] = {}
    width = 0
    if not Path(file).is_file():
        raise FileNotFoundError(
            f'category file {file} does not exist; for a feature write "feature:" and its name or number'
        )
    for number, line in enumerate(read_text(file, "utf-8-sig").splitlines(), start=1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        width = width or len(cells)
        if len(cells) not in (2, 3) or len(cells) != width or not all(cells):
            raise ValueError(
                f"{file}, line {number}: {line!r} has no category; write 'query<TAB>category' on all lines, or "
                "'query<TAB>number of the document<TAB>category'"
            )
        key = (cells[0], cells[1] if width == 3 else "")
        if known.setdefault(key, cells[-1]) != cells[-1]:
            raise ValueError(
                f"{file}, line {number}: {' '.join(key).strip()} has two categories, {known[key]!r} and "
                f"{cells[-1]!r}; remove one of them"
            )
    if not known:
        raise ValueError(f"{file} is empty; write lines of 'query<TAB>category'")
    return known


def place_of(name: str, names: Sequence[str], by: str) -> int:
    if name not in names:
        raise ValueError(f"unknown category {name!r} in {by}{did_you_mean(name, names)}")
    return names.index(name)
