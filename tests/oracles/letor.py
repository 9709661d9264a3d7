"""A slow, obvious reader of LETOR text and a slow, obvious min-max normalisation."""

from __future__ import annotations

import numpy as np


def read_text(text: str, missing: float | None = None) -> tuple[np.ndarray, list[int], list[str]]:
    """Features [documents, features], grades, and the query id of every document."""
    rows: list[dict[int, float]] = []
    grades: list[int] = []
    queries: list[str] = []
    for line in text.removeprefix("\ufeff").split("\n"):
        words = line.split("#")[0].split()
        if not words:
            continue
        assert words[0].isdecimal()
        assert 0 <= int(words[0]) <= 31
        assert words[1].startswith("qid:")
        pairs = [word.split(":") for word in words[2:]]
        row = {int(index): float(value) for index, value in pairs}
        assert len(row) == len(pairs)
        assert all(index >= 1 for index in row)
        rows.append({index: 0.0 if value == missing else value for index, value in row.items()})
        grades.append(int(words[0]))
        queries.append(words[1][4:])
    for i in range(1, len(queries)):
        assert queries[i] == queries[i - 1] or queries[i] not in queries[:i]
    features = np.zeros((len(rows), max(max(row, default=0) for row in rows)), np.float32)
    for i, row in enumerate(rows):
        for index, value in row.items():
            features[i, index - 1] = np.float32(value)
    assert np.isfinite(features).all()
    return features, grades, queries


def normalise_rows(rows: np.ndarray) -> np.ndarray:
    """Min-max over all rows, feature by feature; a feature that never changes becomes 0."""
    out = np.zeros(rows.shape)
    for column in range(rows.shape[1]):
        low, high = float(rows[:, column].min()), float(rows[:, column].max())
        for row in range(len(rows)):
            if high > low:
                out[row, column] = (float(rows[row, column]) - low) / (high - low)
    return out
