"""Synthetic ranking data with several intents per query: a document can be relevant to one and not to another.

Some signals are positive for all intents, others for one. A separate judgement over all intents differs from the union
of the others, as in the TREC Web track. Shares of relevant documents follow ClueWeb09: .15, .10, .09 and .03 for the
four intents, .24 for any of them, .23 for the judgement over all intents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.ranking import RankingData
from fedrank.seeds import rng_for

SHARED, OWN, IDLE = 8, 4, 8  # signals relevant to all intents, to each intent, to none
SHARES = (0.15, 0.10, 0.09, 0.03)  # of documents that are relevant to each intent
OVERALL = 0.23  # share of documents that are relevant over all intents
LENGTHS = (40, 160)  # documents per query: minimum and maximum


def synthetic_intents(queries: int = 200, seed: int = 0) -> RankingData:
    """Generate random queries and documents with labels over all intents; the same seed gives the same data."""
    if queries < 1:
        raise ValueError(f"queries must be at least 1 (got {queries})")
    rng = rng_for(seed, "synthetic intents", queries)
    lengths = rng.integers(LENGTHS[0], LENGTHS[1] + 1, size=queries)
    query = np.repeat(np.arange(queries), lengths)
    signals = kernels.chance.normals(rng, len(query), SHARED + OWN * len(SHARES) + IDLE)
    own = signals[:, SHARED : SHARED + OWN * len(SHARES)].reshape(len(query), len(SHARES), OWN).sum(axis=2).T
    common = 0.45 * signals[:, :SHARED].sum(axis=1)
    appeal = [*(common + 0.4 * each for each in own), common + 0.15 * own.sum(axis=0)]
    shares = zip(appeal, (*SHARES, OVERALL), strict=True)
    judged = np.stack([_relevant(one, share, query, queries, rng) for one, share in shares])
    seen = np.round(signals + 0.7 * kernels.chance.normals(rng, *signals.shape), 4)  # observed features are noisy
    names = [f"shared {i + 1}" for i in range(SHARED)]
    names += [f"signal {i + 1} of intent {n + 1}" for n in range(len(SHARES)) for i in range(OWN)]
    return RankingData(
        features=seen.astype(np.float32),
        grades=judged[-1],
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        query_ids=np.arange(1, queries + 1).astype(str),
        name="synthetic-intents",
        top_grade=1,
        feature_names=(*names, *(f"idle {i + 1}" for i in range(IDLE))),
        intents=judged[:-1],
    )


def _relevant(
    appeal: NDArray[np.float64], share: float, query: NDArray[np.int64], queries: int, rng: np.random.Generator
) -> NDArray[np.int8]:
    """Whether documents are relevant, as judged by a noisy assessor whose strictness varies by query."""
    judged = appeal + 0.5 * kernels.chance.normals(rng, queries)[query] + 0.5 * kernels.chance.normals(rng, len(query))
    return (judged > np.quantile(judged, 1 - share, method="higher")).astype(np.int8)
