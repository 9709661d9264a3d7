"""The reference backend, in which every client learns by itself, gives the bits of the compiled one."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.attacks.poison import SignFlip
from fedrank.federated.aggregators import Apart, Median
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.gossip import RankGuardStyle
from fedrank.federated.local import FedPer, FedProx, Scaffold
from fedrank.federated.partition import Own
from fedrank.federated.robust import Reputation, Trust
from fedrank.federated.server_optimizers import Adam, Momentum
from fedrank.federated.simulation import simulate
from fedrank.privacy.mechanisms import AtServer, Gaussian
from fedrank.privacy.noise import SecureSource
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.learners import LambdaRank, LoggedClicks, Pdgd
from fedrank.ranking.rankers import Mlp
from tests.made_up import made_up_data

FEDERATIONS = {
    "pdgd": Federation(),
    "batch": Federation(Pdgd(batch=True, clip_gradients=0.05, clip_weights=0.3), participation=0.5),
    "neural, momentum": Federation(Pdgd(Mlp(hidden=3)), server=Momentum()),
    "lambdarank": Federation(LambdaRank(rate=0.1)),
    "logged clicks": Federation(LoggedClicks()),
    "evolution": Federation(Evolution(), server=Adam(0.1)),
    "median": Federation(aggregator=Median()),
    "reputation": Federation(aggregator=Reputation()),
    "trust": Federation(aggregator=Trust(queries=5)),
    "apart": Federation(aggregator=Apart()),
    "without a server": Federation(aggregator=RankGuardStyle(searches=3), participation=0.5),
    "fedprox": Federation(local=FedProx(0.5)),
    "scaffold": Federation(local=Scaffold(), participation=0.5),
    "fedper": Federation(Pdgd(Mlp(hidden=3)), local=FedPer()),
    "attacked": Federation(attack=SignFlip(1.0)),
    "noise on clients": Federation(mechanism=Gaussian(1.0, 1.0)),
    "noise at the server": Federation(mechanism=Gaussian(1.0, 1.0, AtServer()), participation=0.5),
}


@pytest.mark.parametrize("name", FEDERATIONS)
def test_every_client_by_itself_gives_the_same_bits(name):
    federation = FEDERATIONS[name]
    clients = make_clients(
        made_up_data(queries=40, longest=14),
        6,
        partition=Own(),
        click_model=["perfect", "navigational"],
        interactions=[2, 3, 5],
        malicious=1 if federation.attack else 0,
    )
    found = [
        list(simulate(federation, clients, 3, 7, noise=SecureSource(key=b"k" * 32), device=device))
        for device in ("cpu", "reference")
    ]
    for one, other in zip(*found, strict=True):
        assert one.state.weights.tobytes() == other.state.weights.tobytes()
        assert one.state.server.tobytes() == other.state.server.tobytes()
        assert (one.interactions, one.bytes_up, one.bytes_down) == (
            other.interactions, other.bytes_up, other.bytes_down,
        )  # fmt: skip
        assert (one.memory is None) == (other.memory is None)
        assert one.memory is None or np.array_equal(one.memory, other.memory)
    assert not np.array_equal(found[0][0].weights, found[0][-1].weights)


def test_people_of_organisations_are_refused():
    clients = make_clients(made_up_data(queries=20), 2, interactions=4, people=2)
    with pytest.raises(ValueError, match='device = "reference" does not support persons'):
        next(iter(simulate(Federation(), clients, 1, device="reference")))
