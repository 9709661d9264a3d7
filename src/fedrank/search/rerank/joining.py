"""Learning with other tenants or companies: feedback as a click log for `fedrank deploy`, and a model that comes back.

The log has the form of `fedrank data build`, so a site reads it as `[data] log`, with the policy, ledger and cards of
every site. The person of a request is its `user`; all requests without one count as one person, the tenant. A model
that comes back is compared with the tenant's own feedback, and then tried like weights that were fitted here.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.data.build_shown import DescribedRows, write_described
from fedrank.data.logs import SearchLog
from fedrank.data.shown import ShownRows
from fedrank.ranking.model import load_weights
from fedrank.search.rerank import learning
from fedrank.search.rerank.passages import OWN
from fedrank.search.rerank.reranker import Reranker
from fedrank.search.rerank.store import RerankError

FEATURES = "rerank-1"  # name of the feature set; signals follow: "rerank-1:date,vector"
TENANT = "tenant"  # the person of requests without a user


def write_log(reranker: Reranker, out: str | os.PathLike[str]) -> SearchLog:
    """Write the requests with feedback as a data set of shown lists. It has hashes and numbers, but no text."""
    given = reranker.lists_with_feedback()
    if not given:
        raise RerankError(
            "there is no request with feedback yet, so there is nothing to learn from; nothing was written"
        )
    names = (*OWN, *sorted({name for one, _ in given for name in one.names} - set(OWN)))
    users: dict[str, int] = {}
    queries: dict[str, int] = {}
    documents: dict[str, int] = {}
    features, which, clicks = [], [], []
    for one, used in given:
        table = np.zeros((len(one.shown), len(names)), np.float32)  # a signal that was not sent counts as average
        table[:, [names.index(name) for name in one.names]] = one.features[one.shown]
        features.append(table)
        which += [documents.setdefault(one.documents[index].hex(), len(documents)) for index in one.shown.tolist()]
        clicks += [index in used for index in one.shown.tolist()]
    rows = ShownRows(
        user=_numbers(users, [TENANT if one.person is None else one.person.hex() for one, _ in given]),
        time=np.array([int(one.time) for one, _ in given], np.int64),
        query=_numbers(queries, [one.query.tobytes().hex() or "none" for one, _ in given]),
        first=np.zeros(len(given), np.int32),
        offsets=np.cumsum([0, *(len(one.shown) for one, _ in given)], dtype=np.int64),
        document=np.arange(len(which), dtype=np.int32),
        clicks=np.array(clicks, np.uint8),
        users=list(users), queries=list(queries), rows=len(given), left_out={},
    )  # fmt: skip
    described = DescribedRows(np.concatenate(features), names, which, list(documents))
    return write_described(out, rows, described, ":".join([FEATURES, *filter(None, [",".join(names[len(OWN) :])])]), {})


def _numbers(known: dict[str, int], texts: list[str]) -> Any:
    return np.array([known.setdefault(text, len(known)) for text in texts], np.int32)


def try_model(reranker: Reranker, path: str | Path) -> None:
    """Try the model of a federation if it predicts the tenant's own feedback better than the start does.

    As in a refit, rank, BM25 and centroid keep their relative weights: the model sets their scale, and the weights of
    signals.
    """
    model = load_weights(path)
    learned = np.asarray(model.weights, np.float64).ravel()
    if tuple(model.feature_names[: len(OWN)]) != OWN or model.normalised != "none" or not np.isfinite(learned).all():
        raise RerankError(
            f"{path} is not a model of the features {FEATURES} ({', '.join(OWN)}, signals) without normalisation; it "
            "was not used"
        )
    weights = learning.with_start(dict(zip(model.feature_names, learned.tolist(), strict=True)))
    if not math.isfinite(gain := reranker.try_weights(weights, f"from the federation's model {Path(path).name}")):
        raise RerankError("there is not enough feedback to compare the model with; it was not used")
    if gain <= 0:
        raise RerankError(
            "the model does not predict the tenant's own feedback better than the start does "
            f"({gain:+.1f} standard errors); it was not used"
        )
