"""Compile the code that a site runs in a round, before the first request."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.federated.client import ClientTask, answer_from_holdings
from fedrank.federated.clients import make_clients
from fedrank.federated.messages import Call
from fedrank.privacy.mechanisms import Gaussian
from fedrank.ranking.learners import LEARNERS
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.rankers import Linear
from fedrank.seeds import Chance
from fedrank.types import OwnChance, has_trait


def warm_up(learners: Sequence[str]) -> None:
    """Run one round of each learner on a few synthetic documents and discard the result."""
    rng = np.random.default_rng(0)
    data = RankingData(
        rng.random((20, 3), dtype=np.float32),
        np.arange(20, dtype=np.int8) % 2,
        np.array([0, 10, 20]),
        np.array(["1", "2"]),
    )
    clients = make_clients(data, 1, interactions=2)
    call = Call(bytes(16), 1, np.zeros(3, dtype=np.float32), 1.0)
    for name in set(learners) & set(LEARNERS):  # forests need no slow compilation
        learner = LEARNERS[name]()
        mechanism = None if has_trait(learner, "rewards") else Gaussian(1.0, 1.0)
        answer_from_holdings(ClientTask(learner, None, mechanism), call, clients, None, OwnChance(Chance(0, 1), 0))
    Evaluator(data, ["ndcg@10"]).per_query(np.zeros(3), Linear())


if __name__ == "__main__":
    warm_up(sys.argv[1:])
