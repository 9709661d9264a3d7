"""Small made-up data for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedrank.data.logs import ARRAYS, FACTS, FORMAT
from fedrank.data.ranking import RankingData


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
