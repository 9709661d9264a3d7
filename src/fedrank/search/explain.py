"""Explanation of a ranking: the contribution of each feature to the score of a document, with the current model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrank.search.impressions import ImpressionRows, Recorded, best_order, scores_of
from fedrank.search.results import Cause, Explained, Gone, Result


def explain(rows: ImpressionRows, one: Recorded, results: Sequence[Result]) -> tuple[Explained, ...]:
    """For every result, from the top: its score, its position by score, and the contributions of the features."""
    if one.raw is None:
        raise Gone("the scores of this search were deleted because it is old; search again")
    if not len(one.candidates):
        return ()
    _, weights = rows.model()
    features = rows.scaled(one.raw)
    shares = weights * (features - features.mean(axis=0, keepdims=True))
    scores = scores_of(weights.astype(np.float32), features)
    by_model = np.argsort(best_order(scores))
    explained = []
    for result, candidate in zip(results, one.shown.tolist(), strict=True):
        parts = shares[candidate]
        causes = tuple(
            Cause(rows.features.names[f], float(one.raw[candidate, f]), float(parts[f]))
            for f in np.argsort(-np.abs(parts), kind="stable").tolist()
        )
        explained.append(Explained(result, float(scores[candidate]), int(by_model[candidate]), candidate, causes))
    return tuple(explained)
