"""The server on Flower: it calls clients, checks what they answer, and moves the model. It needs no data."""

from __future__ import annotations

import time
from logging import INFO, WARNING

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from fedrank.experiments.runner.data import load_fold
from fedrank.federated.round import taking_part
from fedrank.federated.server import ServerTask, receive, settle
from fedrank.seeds import rng_for
from fedrank_flower.task import CALL, CLIENT, MESSAGE, RECORD, Task

PATIENCE = 600.0  # seconds for the answers of a round, and for nodes to connect

app = ServerApp()


def ask(grid: Grid, kind: str, contents: dict[int, dict[str, object]]) -> dict[int, ConfigRecord]:
    """Send records to nodes; return their answers, by node."""
    sent = [
        Message(RecordDict({RECORD: ConfigRecord(content)}), dst_node_id=node, message_type=kind)
        for node, content in contents.items()
    ]
    found = {}
    for reply in grid.send_and_receive(sent, timeout=PATIENCE):
        if reply.has_error():
            log(WARNING, "node %s: %s", reply.metadata.src_node_id, reply.error.reason)
        elif RECORD in reply.content:
            found[reply.metadata.src_node_id] = reply.content[RECORD]
    return found


def nodes_of_clients(grid: Grid, count: int) -> dict[int, int]:
    """The node of each client, by its number, when all are connected."""
    deadline, known = time.monotonic() + PATIENCE, {}
    while len(known) < count:
        fresh = [node for node in grid.get_node_ids() if node not in known.values()]
        for node, record in ask(grid, MessageType.QUERY, {node: {"hello": 1} for node in fresh}).items():
            number = record.get(CLIENT)
            if type(number) is not int or not 0 <= number < count or number in known:
                raise ValueError(f"node {node} says it is client {number!r}, which another node is, or none of {count}")
            known[number] = node
        if len(known) < count and time.monotonic() > deadline:
            raise TimeoutError(f"{len(known)} of {count} clients are connected; start the other nodes")
        if len(known) < count:
            time.sleep(1)
    return known


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the rounds of the spec, and write the model."""
    task = Task.read(str(context.run_config["spec"]))
    federation, experiment, count = task.federation, task.experiment, task.experiment.clients.count
    features = load_fold(experiment.data, task.fold).train.features.shape[1]
    server = ServerTask(federation, count)
    state = server.first(federation.learner.ranker.first(features, rng_for(task.seed, "first")))
    nodes = nodes_of_clients(grid, count)
    while state.round < experiment.rounds:
        number = state.round + 1
        asked = taking_part(count, federation.participation, task.seed, number).tolist()
        calls = {nodes[one]: {CALL: server.call(state, task.run, one, len(asked)).pack()} for one in asked}
        answers = ask(grid, MessageType.TRAIN, calls)
        contents = [record[MESSAGE] for record in answers.values() if isinstance(record.get(MESSAGE), bytes)]
        received = receive(server.expected(state, task.run, asked), contents)
        for note in received.notes:
            log(WARNING, note)
        messages = server.gathered(state, received.messages)
        state = settle(server, state, messages, asked=np.array(asked))
        log(INFO, "round %d of %d: %d of %d clients", number, experiment.rounds, len(received.messages), len(asked))
    np.savez(str(context.run_config["out"]), weights=state.weights)
    log(INFO, "written: %s", context.run_config["out"])
