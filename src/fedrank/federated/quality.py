"""The quality of a model for each client, on its own queries and labels, which an average would hide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedrank.ranking.measures import Evaluator
from fedrank.types import Ranker, SimulatedClients, Weights


def alike(clients: SimulatedClients) -> bool:
    """Whether all clients draw from the same queries and see the same labels, so quality is the same for all."""
    return len(clients) < 2 or (len(np.unique(clients.pool)) == 1 and len(np.unique(clients.judged)) == 1)


def quality_by_client(
    measures: Sequence[str], weights: Weights, ranker: Ranker, clients: SimulatedClients
) -> NDArray[np.float64]:
    """Measure the model of each client on its own queries, by its own relevance labels.

    `weights` is one model for all clients, or a row for each client. The result is [measures, clients]. It is NaN if
    all documents of each of the client's queries have the same label.

    >>> import fedrank as fr
    >>> clients = fr.make_clients(fr.synthetic("mq2007", queries=40), count=4, partition=fr.partitions.Own())
    >>> *_, last = fr.simulate(fr.Federation(), clients, rounds=20)
    >>> print(fr.quality_by_client(["ndcg@10", "mrr"], last.weights, fr.rankers.Linear(), clients).round(2))
    [[0.41 0.66 0.44 0.68]
     [0.64 0.89 0.75 1.  ]]
    """
    values = np.full((len(measures), len(clients)), np.nan)
    places = np.stack([clients.pool, clients.judged], axis=1)
    for pool, view in np.unique(places, axis=0):
        queries = clients.queries[clients.pools[pool] : clients.pools[pool + 1]]
        seen = replace(clients.data, grades=clients.grades[view])
        queries = np.unique(queries)
        low = np.minimum.reduceat(seen.grades, seen.offsets[:-1])[queries]
        high = np.maximum.reduceat(seen.grades, seen.offsets[:-1])[queries]
        queries = queries[low < high]  # if all labels are equal, all orders are equally good
        if not len(queries):
            continue
        evaluator = Evaluator(seen.select(queries), measures)
        here = np.flatnonzero((places == (pool, view)).all(axis=1))
        models = weights[here] if weights.ndim == 2 else weights[None]
        values[:, here] = evaluator(models, ranker)
    return values
