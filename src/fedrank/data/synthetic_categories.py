"""Synthetic ranking data of several categories with different relevance signals.

Some signals are positive in every category. Others are positive in one category and negative in another. A model
trained on one category cannot rank the others well; a model trained on all can distinguish them by the last feature,
the category. Many queries have documents of a single category, many have a mixture.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.ranking import RankingData
from fedrank.seeds import rng_for

SHARED, OWN, IDLE = 6, 4, 6  # signals relevant to all categories, to each category, to none
SHARES = (0.70, 0.16, 0.08, 0.04, 0.02)  # of relevance labels 0 .. 4
PURE = 0.4  # share of queries whose documents are all of one category
LENGTHS = (10, 50)  # documents per query: minimum and maximum


def synthetic_categories(queries: int = 1_000, categories: int = 4, seed: int = 0) -> RankingData:
    """Generate random queries and documents; category c is more frequent than category c + 1.

    The same seed gives the same data.
    """
    if queries < 1 or categories < 2:
        raise ValueError(f"queries must be at least 1 (got {queries}) and categories at least 2 (got {categories})")
    rng = rng_for(seed, "synthetic categories", queries, categories)
    lengths = rng.integers(LENGTHS[0], LENGTHS[1] + 1, size=queries)
    query = np.repeat(np.arange(queries), lengths)
    frequency = 1.0 / np.arange(2, categories + 2)
    category = _categories(query, queries, frequency / frequency.sum(), rng)
    signals = kernels.chance.normals(rng, len(query), SHARED + OWN * categories + IDLE)
    grades = _grades(signals, category, query, queries, categories, rng)
    seen = np.round(signals + 0.5 * kernels.chance.normals(rng, *signals.shape), 4)  # observed features are noisy
    names = [f"shared {i + 1}" for i in range(SHARED)]
    names += [f"signal {i + 1} of category {c + 1}" for c in range(categories) for i in range(OWN)]
    names += [f"idle {i + 1}" for i in range(IDLE)]
    return RankingData(
        features=np.column_stack([seen, category + 1]).astype(np.float32),
        grades=grades,
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        query_ids=np.arange(1, queries + 1).astype(str),
        name="synthetic-categories",
        top_grade=len(SHARES) - 1,
        feature_names=(*names, "category"),
    )


def _categories(
    query: NDArray[np.int64], queries: int, shares: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """[documents]: the category of the query; in mixed queries sometimes another."""
    main = rng.choice(len(shares), size=queries, p=shares)
    strays = np.where(rng.random(queries) < PURE, 0.0, rng.uniform(0.1, 0.7, size=queries))
    other = rng.choice(len(shares), size=len(query), p=shares)
    return np.where(rng.random(len(query)) < strays[query], other, main[query])


def _grades(
    signals: NDArray[np.float64],
    category: NDArray[np.int64],
    query: NDArray[np.int64],
    queries: int,
    categories: int,
    rng: np.random.Generator,
) -> NDArray[np.int8]:
    appeal = 0.4 * signals[:, :SHARED].sum(axis=1)
    for c in range(categories):
        own = signals[:, SHARED + OWN * c : SHARED + OWN * (c + 1)]
        # The best signals count, and their combination counts more than their sum, which is non-linear.
        helps = own.sum(axis=1) * 0.6 + np.maximum(own[:, 0], 0) * np.maximum(own[:, 1], 0)
        appeal += np.where(category == c, helps, -0.25 * own.sum(axis=1))
    judged = appeal + 0.5 * kernels.chance.normals(rng, queries)[query] + 0.8 * kernels.chance.normals(rng, len(query))
    limits = np.quantile(judged, np.cumsum(SHARES)[:-1], method="higher")
    grades: NDArray[np.int8] = np.searchsorted(limits, judged, side="right").astype(np.int8)
    return grades
