"""Small made-up data for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.log_folder import ShownLists, write_shown
from fedrank.data.logs import ARRAYS, FACTS, FORMAT, SearchLog
from fedrank.data.ranking import RankingData
from fedrank.seeds import rng_for


def made_up_data(queries=12, features=5, longest=30, top_grade=2, seed=0) -> RankingData:
    """Queries of 1 .. longest documents whose first feature tells something about the grade."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, size=queries)
    lengths[0], lengths[-1] = 1, longest
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    grades = rng.binomial(top_grade, 0.3, size=offsets[-1]).astype(np.int8)
    table = rng.random((offsets[-1], features), dtype=np.float32)
    table[:, 0] = 0.5 * table[:, 0] + 0.5 * grades / top_grade
    return RankingData(table, grades, offsets, np.arange(queries).astype(str), name="made up", top_grade=top_grade)


def made_up_log(folder: Path, users: list[int], features=4, length=12, seed=0) -> Path:
    """The folder of a log: entry i is of user users[i], asked a minute after the one before."""
    rng = np.random.default_rng(seed)
    entries = len(users)
    target = rng.integers(length, size=entries)
    table = rng.random((entries * length, features), dtype=np.float32)
    table[np.arange(entries) * length + target, 0] += 0.5
    columns = {
        "features": table,
        "lists": np.arange(entries * length).reshape(entries, length),
        "target": target,
        "user": users,
        "time": 1_000_000 + 60 * np.arange(entries),
        "query": np.arange(entries),
        "document": np.arange(entries * length),
    }
    texts = {"users": max(users) + 1, "queries": entries, "documents": entries * length}
    folder.mkdir(parents=True)
    arrays = {name: np.asarray(column).astype(ARRAYS[name]) for name, column in columns.items()}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    for name, count in texts.items():
        (folder / f"{name}.txt").write_text("".join(f"{name}{i}\n" for i in range(count)))
    facts = {
        "format": FORMAT,
        "feature_names": [f"f{i}" for i in range(features)],
        "counts": texts,
        "shapes": {name: list(array.shape) for name, array in arrays.items()},
    }
    (folder / FACTS).write_text(json.dumps(facts))
    return folder


def made_up_shown(folder: Path, users: list[int], features=4, longest=10, documents=40, seed=0, **others) -> SearchLog:
    """A log of lists as they were shown, 3 to `longest` documents each; entry i is of user users[i].

    Every second query has a second page behind it. Clicks fall on the first feature, and less often on later places.
    `others` replace fields of `ShownLists`, such as scores, dwell or unit.
    """
    rng = np.random.default_rng(seed)
    entries = len(users)
    query = np.arange(entries) // 2  # asked twice in a row
    first = np.where(np.arange(entries) % 4 == 1, longest, 0)
    document = np.tile(np.arange(documents), query.max() + 1)  # every query with every document is a pair
    table = rng.random((len(document), features), dtype=np.float32)
    lists = np.full((entries, longest), -1)
    for entry in range(entries):
        length = rng.integers(3, longest + 1)
        lists[entry, :length] = query[entry] * documents + rng.permutation(documents)[:length]
    seen = 1 / (1 + first[:, None] + np.arange(longest))
    clicks = (lists >= 0) & (rng.random(lists.shape) < seen * table[lists, 0])
    about = {
        "features": table,
        "lists": lists,
        "clicks": clicks,
        "user": np.array(users),
        "time": 1_000_000 + 60 * np.arange(entries),
        "query": query,
        "document": document,
        "users": [f"user{i}" for i in range(max(users) + 1)],
        "queries": [f"query {i}" for i in range(query.max() + 1)],
        "documents": [f"d{i}" for i in range(documents)],
        "feature_names": [f"f{i}" for i in range(features)],
        "first": first,
    }
    return write_shown(folder, ShownLists(**about | others), {"features": "made up"})


def zipf_documents(
    n: int, terms: int, vocabulary: int, seed: int, *, exponent: float = 1.0
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Sample the word counts of n documents of a given length: (offsets, terms, counts).

    Document d contains terms[offsets[d] : offsets[d + 1]], in ascending order. The word of rank r, counted from 1, has
    a probability proportional to 1 / r^exponent.
    """
    for name, value in (("n", n), ("terms", terms), ("vocabulary", vocabulary)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1 (got {value})")
    edges = np.cumsum(kernels.elementary.power_each(np.arange(1, vocabulary + 1), -exponent))
    sizes, words, counts = [], [], []
    for first in range(0, n, 1024):
        rows = min(1024, n - first)
        rng = rng_for(seed, "zipf", first)
        drawn = np.searchsorted(edges, rng.random(rows * terms) * edges[-1], side="right")
        cells = np.repeat(np.arange(rows) * vocabulary, terms) + np.minimum(drawn, vocabulary - 1)
        cells, times = np.unique(cells, return_counts=True)
        sizes.append(np.bincount(cells // vocabulary, minlength=rows))
        words.append((cells % vocabulary).astype(np.int32))
        counts.append(times.astype(np.int32))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
    return offsets, np.concatenate(words), np.concatenate(counts)
