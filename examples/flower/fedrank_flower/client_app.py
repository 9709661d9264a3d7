"""A client on Flower: it learns from its own data, by its own copy of the spec, and charges its own ledger.

The node's settings are its policy (`flower-supernode --node-config`): `spec` is the spec that it accepted, `client` its
number, `letor` its own file, `ledger` a folder, and `epsilon` the limit over all runs. A server's message has only a
model and the number of a round. This code itself comes from the server unless the node pins the app that it runs.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from fedrank import SimulatedClients, make_clients, read_letor, wire
from fedrank.experiments.runner.data import clients_of
from fedrank.federated.client import ClientTask, answer
from fedrank.federated.messages import Call, ExpectedCall
from fedrank.privacy.population import Population
from fedrank.ranking.impressions import SimulatedImpressions
from fedrank.seeds import Chance
from fedrank.types import OwnChance
from fedrank_flower.task import CALL, CLIENT, MESSAGE, RECORD, Task

app = ClientApp()


@dataclass(frozen=True)
class Node:
    """One client: its task, its data and its policy."""

    task: Task
    id: int
    settings: Any

    @classmethod
    def of(cls, context: Context) -> Node:
        settings = context.node_config
        id = settings.get("client", settings.get("partition-id"))
        if id is None:
            raise ValueError("start the node with --node-config 'client=0', its number in the spec")
        if "client" in settings and not settings.get("spec"):
            raise ValueError("a node needs --node-config 'spec=\"accepted.toml\"': the spec that it accepted")
        return cls(Task.read(str(settings.get("spec", ""))), int(id), settings)

    @property
    def clients(self) -> SimulatedClients:
        """This client alone."""
        experiment = self.task.experiment
        if "letor" not in self.settings:
            return clients_of(experiment, self.task.fold, self.task.seed).rows(slice(self.id, self.id + 1))
        of_all = experiment.clients
        data = read_letor(str(self.settings["letor"]), normalise=experiment.data.normalise)
        models, searches = of_all.click_models, of_all.searches
        one = make_clients(
            data, 1, click_model=models[self.id % len(models)], interactions=searches[self.id % len(searches)],
            seed=self.task.seed,
        )  # fmt: skip
        return replace(one, ids=one.ids + self.id)

    def answer(self, content: bytes, last: int) -> tuple[bytes, int]:
        """The message of a round, and the number of the round; a round is answered once."""
        federation, clients = self.task.federation, self.clients
        parameters = federation.learner.ranker.size(clients.data.features.shape[1])
        number = wire.read_label(content).round
        if not last < number <= self.task.experiment.rounds:
            raise wire.Refused(f"round {number} was answered before, or is not in the spec")
        call = Call.unpack(content, ExpectedCall(self.task.run, number, parameters))
        if call.cohort != federation.cohort(self.task.experiment.clients.count):
            raise wire.Refused(f"the call names another number of clients than the spec, {call.cohort}")
        self._charge(parameters)
        own = OwnChance(Chance(self.task.seed, number), self.id)
        task = ClientTask(federation.learner, None, federation.mechanism)
        message, _ = answer(task, call, SimulatedImpressions(clients, own, task.learner), None, own)
        return message.pack(), number

    def _charge(self, parameters: int) -> None:
        """Write the cost of an answer to the ledger before the answer exists; refuse at the limit."""
        experiment = self.task.experiment
        limit, folder = float(self.settings.get("epsilon", math.inf)), str(self.settings.get("ledger", ""))
        promises = experiment.guarantees(parameters) if experiment.mechanism is not None else []
        if limit < math.inf and not promises:
            raise ValueError("this node has a limit of ε, but the spec has no mechanism")
        if not promises:
            return
        if not folder or limit == math.inf:
            raise ValueError("a spec with a mechanism needs --node-config 'ledger=\"folder\" epsilon=4.0' at the node")
        if any(one.event is None for one in promises):
            raise ValueError("the mechanism of the spec promises nothing against some observer")
        people = Population.open(Path(folder), 1, experiment.privacy.delta, limit)
        refusal = people.release(self.task.run.hex(), secrets.token_hex(16), promises, 1, lambda: None)
        if refusal is not None:
            raise ValueError(refusal)


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Tell the server the number of this client."""
    return Message(RecordDict({RECORD: ConfigRecord({CLIENT: Node.of(context).id})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer the call of a round."""
    last = int(context.state[RECORD]["round"]) if RECORD in context.state else 0
    try:
        sent, number = Node.of(context).answer(bytes(message.content[RECORD][CALL]), last)
    except Exception as problem:  # its text may quote data, and Flower sends it to the server
        log(WARNING, "refused: %s", problem)
        raise RuntimeError("this node refused the call; its own log says why") from None
    context.state[RECORD] = ConfigRecord({"round": number})
    return Message(RecordDict({RECORD: ConfigRecord({MESSAGE: sent})}), reply_to=message)
