"""Small made-up data for tests."""

from __future__ import annotations

import numpy as np

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
