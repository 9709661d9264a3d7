"""For the process that others are forked from: compiled loops are loaded here once, and not in every client again."""

from __future__ import annotations

import numpy as np

from fedrank.federated.client import ClientTask, answer
from fedrank.federated.clients import make_clients
from fedrank.federated.messages import Call
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.impressions import SimulatedImpressions
from fedrank.ranking.learners import LoggedClicks, Pdgd
from fedrank.seeds import Chance
from fedrank.types import OwnChance
from tests.made_up import made_up_data

_OWN = OwnChance(Chance(1, 1), 0)
_ONE = make_clients(made_up_data(queries=3), 1, interactions=2)
for _learner in (Pdgd(), LoggedClicks(), Evolution()):
    _call = Call(bytes(16), 1, np.zeros(5, dtype=np.float32), 1.0)
    answer(ClientTask(_learner), _call, SimulatedImpressions(_ONE, _OWN, _learner), None, _OWN)
