"""The baseline ranking: the order that users see without learning, and its quality.

Every run is compared with it. It is the first available of: the requested order; the order recorded in the data (the
logged order of a search log, or a feature named in the catalog); BM25, if a feature has this name; and a random order,
whose value is the mean over fixed shuffles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.names import did_you_mean
from fedrank.ranking.measures import Evaluator
from fedrank.seeds import rng_for
from fedrank.types import Weights

FILE, RANDOM = "file", "random"
LOGGED = "logged order"  # name of the order of a search log, as runs store it
START_ALONE = "start alone"  # name of the order of an initial model, with its origin
GIVEN = "given"  # as a start: the model that reproduces the baseline ranking
SHUFFLES = 100  # their mean is the value of a random order
MAX_SCORES = 20_000_000  # in all shuffles; with many documents, fewer shuffles are used
BM25 = ("BM25 of whole document", "BM25 of body")  # preferred; otherwise the first feature with BM25 in its name

_FEATURE = re.compile(r"feature (\d+)( \(.*\))?")


@dataclass(frozen=True, eq=False)
class BaselineRanking:
    """The quality of the baseline ranking on every query."""

    name: str  # "BM25 of whole document", "logged order", "random"
    values: NDArray[np.float64]  # [measures, queries]; NaN if the measure skips the query
    about: str = ""  # an explanation of the values, if necessary


def baseline_order(evaluator: Evaluator, asked: str | None = None) -> BaselineRanking:
    """Evaluate the baseline ranking: the requested order, or that of the data.

    `asked` is "file" (the order of the file), "random", "feature 7" or the name of a feature, highest value first.
    """
    data = evaluator.data
    order = asked or data.given or _bm25(data.feature_names)
    if order == RANDOM:
        return _random(evaluator)
    if order == FILE:
        starts = np.repeat(data.offsets[:-1], np.diff(data.offsets))
        name = LOGGED if len(data.who) else "order of the file"
        return BaselineRanking(name, evaluator.per_query_of_scores(starts - np.arange(data.documents)))
    feature, name = _feature(order, data)
    return BaselineRanking(name, evaluator.per_query_of_scores(data.features[:, feature]))


def baseline_weights(data: RankingData, asked: str | None = None) -> Weights:
    """Return a linear model that reproduces the baseline ranking, which must be the order of one feature."""
    order = asked or data.given or _bm25(data.feature_names)
    if order in (RANDOM, FILE):
        raise ValueError(
            f'start = "{GIVEN}": the baseline ranking of {data.name or "the data"} is {order!r}, which is not '
            "the order of a feature; name a feature as data.given, or choose another start"
        )
    weights = np.zeros(data.features.shape[1])
    weights[_feature(order, data)[0]] = 1.0
    return weights


def _bm25(names: tuple[str, ...]) -> str:
    """Return the name of a BM25 feature, or "random" if there is none."""
    found = [name for name in names if name.startswith("BM25")]
    return next((name for name in (*BM25, *found) if name in found), RANDOM)


def _feature(order: str, data: RankingData) -> tuple[int, str]:
    """Return the column and name of a feature."""
    names, width = data.feature_names, data.features.shape[1]
    if order in names:
        return names.index(order), order
    numbered = _FEATURE.fullmatch(order)
    if numbered is None:
        raise ValueError(
            f"data.given: unknown order {order!r}{did_you_mean(order, names)}; use "
            f"'file', 'random', 'feature 1' to 'feature {width}', or the name of a feature"
        )
    number = int(numbered[1])
    if not 1 <= number <= width:
        raise ValueError(f"data.given: no feature {number}; {data.name} has features 1 to {width}")
    return number - 1, names[number - 1] if names else order


def _random(evaluator: Evaluator) -> BaselineRanking:
    documents = evaluator.data.documents
    shuffles = int(np.clip(MAX_SCORES // max(documents, 1), 1, SHUFFLES))
    rng, total = rng_for(0, "given order"), np.zeros(1)
    for _ in range(shuffles):
        total = total + evaluator.per_query_of_scores(rng.random(documents, dtype=np.float32))
    shown = f"{shuffles} shuffle{'s' if shuffles > 1 else ''}"
    return BaselineRanking(RANDOM, total / shuffles, f"the mean over {shown} with a fixed seed")
