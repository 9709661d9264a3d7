"""A site's data for a run: those of the site itself, or in a trial those of all clients that it simulates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import LIVE_1
from fedrank.data.ranking import RankingData
from fedrank.deploy.plan import Plan, names_digest
from fedrank.deploy.recorded_lists import RecordedFolder, RecordedImpressions, RecordError
from fedrank.deploy.settings import SiteSettings
from fedrank.experiments.runner.data import clients_of, load_fold
from fedrank.federated.client import ClientAnswer, ClientTask, answer, answer_from_holdings
from fedrank.federated.messages import Call
from fedrank.ranking.learners import Pdgd
from fedrank.seeds import Chance
from fedrank.types import Memory, Observed, OwnChance, SimulatedClients
from fedrank.wire import Refused


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

    def answer(
        self, task: ClientTask, call: Call, asked: Any, searches: Sequence[int], memory: Memory, seed: int
    ) -> ClientAnswer:
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


@dataclass(frozen=True)
class RecordedSiteData:
    """The recorded searches of one person, who is the site: each is used once over all runs."""

    folder: RecordedFolder
    searches: int  # per round
    learner: Pdgd
    used: set[int]  # grows with every round

    people = 1
    ledger_rows = np.zeros(1, dtype=np.int64)
    test = None

    def rows(self, ids: list[int], round: int) -> NDArray[np.int64]:
        return self.ledger_rows

    def answer(
        self, task: ClientTask, call: Call, asked: Any, searches: Sequence[int], memory: Memory, seed: int
    ) -> ClientAnswer:
        """The message and state of the person, from these recorded searches."""
        own = OwnChance(Chance(seed, call.round), int(asked["client"]), None)
        message, after = answer(task, call, self.impressions(searches), memory, own)
        return ClientAnswer(message, after, Observed(np.full(1, np.nan)))

    def next(self, before: Sequence[int] = ()) -> tuple[int, ...]:
        """Numbers of the searches of a round; for a further attempt, those of the one `before` that still exist."""
        there = self.folder.numbers()
        again, fresh = set(before).intersection(there), [number for number in there if number not in self.used]
        taken = [*sorted(again), *fresh][: self.searches]
        if len(taken) < self.searches:
            raise NotYet(f"waiting: {len(taken)} of {self.searches} searches", self.searches)
        return tuple(taken)

    def impressions(self, numbers: Sequence[int]) -> RecordedImpressions:
        """The recorded lists with these numbers."""
        lists, learner = [], self.learner
        for number in numbers:
            one = self.folder.get(number)
            if one.version != LIVE_1.version or one.impression.features.shape[1] != len(LIVE_1.names):
                raise RecordError(
                    f"list {number} of {self.folder.folder} has {one.impression.features.shape[1]} features "
                    f"{one.version!r}, but the model uses those of {LIVE_1.version!r}; remove it"
                )
            if (one.temperature, one.keep) != (learner.temperature, learner.keep):
                raise Refused(
                    f"lists at this site were drawn with temperature {one.temperature:g} and keep {one.keep:g}, but "
                    "the "
                    f"plan has {learner.temperature:g} and {learner.keep:g}, which would give biased updates; use the "
                    "same values"
                )
            lists.append(one)
        return RecordedImpressions(tuple(lists))


class NotYet(Refused):
    """The person has not searched enough for a round yet. The number of searches is not sent."""

    def __init__(self, said: str, searches: int) -> None:
        super().__init__(said)
        self.leaving = f"waiting: fewer than {searches} searches since the last round"


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


def open_site_data(folder: Path, settings: SiteSettings, plan: Plan) -> ClientSiteData | RecordedSiteData:
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
    from fedrank.deploy.data_sources import open_data_source, open_recorded

    if settings.data.impressions is not None:
        return open_recorded(folder, settings, plan)

    return open_data_source(settings, plan)
