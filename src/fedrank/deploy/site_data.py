"""A site's data for a run: those of the site itself, or in a trial those of all clients that it simulates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.deploy.plan import Plan, names_digest
from fedrank.deploy.settings import SiteSettings
from fedrank.experiments.runner.data import clients_of, load_fold
from fedrank.federated.client import ClientAnswer, ClientTask, answer_from_holdings
from fedrank.federated.messages import Call
from fedrank.seeds import Chance
from fedrank.types import Memory, OwnChance, SimulatedClients


@dataclass(frozen=True)
class ClientSiteData:
    """A site's clients and their rows in its ledger."""

    clients: SimulatedClients
    people: int  # rows of the ledger
    ledger_rows: NDArray[np.int64]  # [clients, or people of clients]
    test: RankingData | None = None  # own queries for evaluation
    groups: NDArray[np.int64] | None = None  # [people]: the only round of each, if people are dealt into rounds
    whose: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # [queries]: person
    test_whose: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # [queries of test]: person

    def client(self, id: int) -> SimulatedClients:
        """A single client."""
        return self.clients.rows(np.flatnonzero(self.clients.ids == id))

    def rows(self, ids: list[int], round: int) -> NDArray[np.int64]:
        """Rows of the ledger of these clients, or of their people in a round."""
        whose = self.clients.ids if self.clients.people is None else self.clients.people.client
        turn = True if self.groups is None else self.groups == round
        return np.unique(self.ledger_rows[np.isin(whose, ids) & turn])

    def answer(self, task: ClientTask, call: Call, asked: Any, memory: Memory, seed: int) -> ClientAnswer:
        """The message and state of a client; in a trial with a log, `asked` names its interactions."""
        id, at = int(asked["client"]), int(asked["at"])
        one, chance = self.client(id), Chance(seed, call.round)
        if self.groups is not None:
            assert self.clients.people is not None
            turn = self.clients.people.ids[self.groups == call.round]
            assert one.people is not None
            one = replace(one, people=one.people.rows(np.isin(one.people.ids, turn)))
        if at >= 0:
            one = replace(one, at=np.array([at]), interactions=np.array([int(asked["searches"])]))
            chance = Chance(seed, 0)
        return answer_from_holdings(task, call, one, memory, OwnChance(chance, id, None))


def facts_of(settings: SiteSettings, plan: Plan) -> tuple[dict[str, Any], bytes]:
    """Facts that must be the same at all sites, and the digest of this site's data (empty if people are simulated)."""
    if plan.simulated:
        data = load_fold(plan.experiment.data, plan.fold).train
        names, features, normalised = data.feature_names, data.features.shape[1], data.normalised
        return {"features": features, "feature_names": names_digest(names), "normalised": normalised}, b""
    from fedrank.deploy.data_sources import describe

    found = describe(settings.data)
    facts = {"features": found.features, "feature_names": found.names_digest, "normalised": found.normalised}
    return facts, bytes.fromhex(found.digest)


def open_site_data(settings: SiteSettings, plan: Plan) -> ClientSiteData:
    """The clients of a site; in a trial from the spec, which was written on this machine."""
    if plan.simulated:
        everybody = clients_of(plan.experiment, plan.fold, plan.seed)
        own = np.isin(everybody.ids, plan.party(settings.name).clients)
        clients = everybody.rows(np.flatnonzero(own))
        count = len(clients if clients.people is None else clients.people)
        groups = None
        if plan.experiment.deals_persons:
            groups = plan.federated.deal(clients, plan.seed).round_of_each
        return ClientSiteData(clients, count, np.arange(count), groups=groups)
    from fedrank.deploy.data_sources import open_data_source

    return open_data_source(settings, plan)
