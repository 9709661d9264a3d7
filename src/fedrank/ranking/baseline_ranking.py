"""What users have without learning: the order in which documents are given, and how good it is.

Every run is compared with it. Which order that is, is the first of these that there is: the one that was asked for; the
one that the data know of (the logged order of a search log, a feature that the catalog names); BM25, where a feature is
called so; and chance, whose value is the mean over shuffles that are always the same.
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
GIVEN = "given"  # as a start: the model that gives the order that users have
SHUFFLES = 100  # whose mean is the value of chance
MAX_SCORES = 20_000_000  # of all shuffles together: many documents need fewer shuffles
BM25 = ("BM25 of whole document", "BM25 of body")  # which of several, if it is there; otherwise the first

_FEATURE = re.compile(r"feature (\d+)( \(.*\))?")


@dataclass(frozen=True, eq=False)
class BaselineRanking:
    """How good the given order is on every query."""

    name: str  # "BM25 of whole document", "logged order", "random"
    values: NDArray[np.float64]  # [measures, queries]; NaN where the measure skips a query
    about: str = ""  # how the values came about, if that needs to be said


def baseline_order(evaluator: Evaluator, asked: str | None = None) -> BaselineRanking:
    """The order that users have, measured: the one asked for, or the one that the data give.

    `asked` is "file" (as documents stand), "random", "feature 7" or the name of a feature, highest value first.
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
    """A linear model that ranks as users have it now; only where that is by one feature."""
    order = asked or data.given or _bm25(data.feature_names)
    if order in (RANDOM, FILE):
        raise ValueError(
            f'start = "{GIVEN}": {data.name or "the data"} are given in the order {order!r}, which no feature has; '
            "name one as data.given, or start otherwise"
        )
    weights = np.zeros(data.features.shape[1])
    weights[_feature(order, data)[0]] = 1.0
    return weights


def _bm25(names: tuple[str, ...]) -> str:
    """The name of a feature that is BM25; chance where there is none."""
    found = [name for name in names if name.startswith("BM25")]
    return next((name for name in (*BM25, *found) if name in found), RANDOM)


def _feature(order: str, data: RankingData) -> tuple[int, str]:
    """Column and name of a feature."""
    names, width = data.feature_names, data.features.shape[1]
    if order in names:
        return names.index(order), order
    numbered = _FEATURE.fullmatch(order)
    if numbered is None:
        raise ValueError(
            f"data.given: no order {order!r}, so nothing could be compared with it{did_you_mean(order, names)}; use "
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
    return BaselineRanking(RANDOM, total / shuffles, f"the mean over {shown} that are always the same")
