"""Ten processes, each with one client's data, and a server process without any, come to what `simulate` comes to."""

from __future__ import annotations

import multiprocessing
import pickle
from dataclasses import replace

import numpy as np
import pytest

from fedrank.federated.aggregators import AGGREGATORS
from fedrank.federated.asynchronous import FedAsync, FedBuff, Sync, schedule
from fedrank.federated.asynchronous_simulation import simulate_arrivals
from fedrank.federated.client import ClientTask
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.local import FedPer, FedProx, Scaffold
from fedrank.federated.partition import Own, Users
from fedrank.federated.round import personal_models, taking_part
from fedrank.federated.server import ServerTask
from fedrank.federated.server_optimizers import SERVER_OPTIMIZERS, Adam
from fedrank.federated.simulation import simulate
from fedrank.privacy.mechanisms import AtServer, EsRandomisedResponse, Gaussian, Laplace, SecureAggregation
from fedrank.privacy.noise import SecureSource
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.learners import LambdaRank, LoggedClicks, Pdgd
from fedrank.ranking.rankers import Mlp, Relu
from fedrank.seeds import rng_for
from fedrank.types import has_trait
from tests.federated import in_processes
from tests.federated.in_processes import COORDINATOR, SERVER_KEY, ClientCase, Keyed, ServerCase, only
from tests.made_up import made_up_data

pytestmark = pytest.mark.process

CLIENTS, ROUNDS, SEED = 10, 3, 7
IDEAL = SecureAggregation(sum="ideal")


class Apart:
    """A server process, ten client processes, and one more for what a server learns from queries of its own."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["pytest", "tests.federated.in_processes", "tests.federated.warm"])
        pipes = [(context.Pipe(), context.Pipe()) for _ in range(CLIENTS + 1)]
        self.clients = [ours for (ours, _), _ in pipes]
        self.server, theirs = context.Pipe()
        self.processes = [
            context.Process(target=in_processes.client, args=(its_test, its_server), daemon=True)
            for (_, its_test), (_, its_server) in pipes
        ]
        ends = [end for _, (end, _) in pipes]
        self.processes.append(
            context.Process(target=in_processes.server, args=(theirs, ends[:-1], ends[-1]), daemon=True)
        )
        for process in self.processes:
            process.start()

    def run(self, server, clients):
        """(models after every round, what each client keeps)."""
        for pipe, case in zip(self.clients, clients, strict=True):
            pipe.send(case)
        self.server.send(server)
        assert self.server.poll(60), "no process answers"
        models = self.server.recv()
        for pipe in self.clients:
            pipe.send("end")
        return models, [pipe.recv() for pipe in self.clients][:-1]

    def end(self) -> None:
        for pipe in (*self.clients, self.server):
            pipe.send(None)
        for process in self.processes:
            process.join(10)


@pytest.fixture(scope="module")
def apart():
    processes = Apart()
    yield processes
    processes.end()


def people(interactions=(2, 3, 5)):
    users = ["perfect", "navigational", "informational"]
    return make_clients(
        made_up_data(queries=40, longest=14),
        CLIENTS,
        partition=Own(),
        click_model=users,
        interactions=interactions,
        seed=2,
    )


def coordinator_of(federation, clients):
    """The server's own client, as the simulation makes it, or one that is never called."""
    count = min(getattr(federation.aggregator, "queries", 1), clients.data.queries)
    queries = rng_for(SEED, "trusted").choice(clients.data.queries, size=count, replace=False).astype(np.int32)
    one = replace(
        clients.rows(slice(0, 1)),
        ids=np.array([COORDINATOR]),
        pool=np.zeros(1, dtype=np.int32),
        queries=queries,
        pools=np.array([0, count]),
    )
    return only(one, 0)


def task_of(federation):
    """What every client does, and whether its noise can be repeated."""
    mechanism = federation.mechanism
    keyed = isinstance(mechanism, Keyed)
    return ClientTask(federation.learner, federation.local, mechanism.inner if keyed else mechanism), keyed


def in_step(apart, federation, simulated, rounds=ROUNDS):
    """(models after every round, what clients keep), by processes."""
    features = simulated.data.features.shape[1]
    sent = federation.sent(federation.learner.ranker.size(features))
    asked = [
        taking_part(len(simulated), federation.participation, SEED, number).tolist() for number in range(1, rounds + 1)
    ]
    task, keyed = task_of(federation)
    clients = []
    for row in range(CLIENTS):
        when = {number: (0, 0) for number, rows in enumerate(asked, start=1) if row in rows}
        clients.append(ClientCase(task, only(simulated, row), sent, SEED, when, keyed=keyed))
    always = dict.fromkeys(range(1, rounds + 1), (0, 0))
    root = ClientCase(ClientTask(federation.learner), coordinator_of(federation, simulated), sent, SEED, always)
    server = ServerCase(ServerTask(federation, CLIENTS), features, SEED, asked)
    assert b"RankingData" not in pickle.dumps(server)
    return apart.run(server, [*clients, root])


def check_in_step(apart, federation, clients=None, rounds=ROUNDS):
    clients = people() if clients is None else clients
    expected = list(simulate(federation, clients, rounds, SEED, noise=SecureSource(key=SERVER_KEY)))
    models, kept = in_step(apart, federation, clients, rounds)
    assert len(models) == rounds
    for outcome, model in zip(expected, models, strict=True):
        assert model.tobytes() == outcome.state.weights.tobytes(), f"round {outcome.round}"
    assert not np.array_equal(models[0], models[-1])
    if federation.local is None or expected[-1].memory is None:
        assert kept == [None] * CLIENTS
    else:
        assert np.concatenate(kept).tobytes() == expected[-1].memory.tobytes()
    return expected[-1], models, kept


def test_a_client_has_nothing_but_its_own_queries():
    clients = people()
    alone = [only(clients, row) for row in range(CLIENTS)]
    assert sum(one.data.queries for one in alone) == clients.data.queries
    seen = [set(one.data.query_ids.tolist()) for one in alone]
    assert len(set.union(*seen)) == clients.data.queries, "pools are apart"
    assert all(one.grades.shape == (len(clients.grades), one.data.documents) for one in alone)


LEARNERS = {
    "sequential": Federation(),
    "batch": Federation(Pdgd(batch=True, rate=0.3)),
    "clipped": Federation(Pdgd(batch=True, clip_gradients=0.05, clip_weights=0.3)),
    "cooler": Federation(Pdgd(temperature=0.5, keep=0.4)),
    "neural": Federation(Pdgd(Mlp(hidden=4))),
    "rectified": Federation(Pdgd(Relu(units=4, start="normal"), batch=True)),
    "grades": Federation(LambdaRank(rate=0.1)),
    "logged clicks": Federation(LoggedClicks()),
    "logged clicks, clipped": Federation(LoggedClicks(batch=True, clip_gradients=0.05, clip_weights=0.3)),
    "logged clicks, scaffold, neural": Federation(LoggedClicks(Mlp(hidden=4)), local=Scaffold()),
    "fedprox": Federation(local=FedProx(0.5)),
    "fedprox, neural": Federation(Pdgd(Mlp(hidden=4)), local=FedProx(0.5)),
    "scaffold": Federation(local=Scaffold()),
    "scaffold, neural": Federation(Pdgd(Mlp(hidden=4)), local=Scaffold()),
    "evolution": Federation(Evolution(), server=Adam(0.1)),
    "evolution, neural, flipped": Federation(
        Evolution(Relu(units=3), truth=0.5), server=Adam(0.1), mechanism=EsRandomisedResponse()
    ),
    "evolution, dcg": Federation(Evolution(reward="dcg"), server=Adam(0.1)),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_learners(apart, name):
    check_in_step(apart, LEARNERS[name])


@pytest.mark.parametrize("local", [None, FedProx(0.5), Scaffold(), FedPer(), FedPer(0.5)], ids=str)
def test_some_take_part(apart, local):
    check_in_step(apart, Federation(Pdgd(Mlp(hidden=3)), local=local, participation=0.4), rounds=5)


def test_fedper_shares_one_part_and_keeps_the_other(apart):
    federation, clients = Federation(Pdgd(Mlp(hidden=4)), local=FedPer()), people()
    last, models, kept = check_in_step(apart, federation, clients)
    assert len(models[-1]) == 4 * (5 + 1)
    # Curves are evaluated from both parts afterwards.
    whole = np.array([np.concatenate([models[-1], own[0]]) for own in kept])
    assert whole.tobytes() == personal_models(federation, last.state, last.memory, clients).tobytes()
    assert len({own.tobytes() for own in kept}) == CLIENTS


# Where all learn apart nothing travels.
@pytest.mark.parametrize("name", [name for name, kind in AGGREGATORS.items() if not has_trait(kind, "apart")])
def test_aggregators(apart, name):
    kind = AGGREGATORS[name]
    check_in_step(apart, Federation(aggregator=kind(attackers=0.1) if name == "bulyan" else kind()), rounds=4)


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_server_steps(apart, name):
    check_in_step(apart, Federation(server=SERVER_OPTIMIZERS[name]()))


@pytest.mark.parametrize(
    "mechanism",
    [
        Gaussian(0.5, 0.1),
        Gaussian(0.5, 0.1, cap=4),
        Laplace(0.5, 0.1),
        Gaussian(0.5, 0.1, IDEAL),
        Gaussian(0.5, 0.1, SecureAggregation(), cap=4),
        Laplace(0.5, 0.1, IDEAL),
        Gaussian(0.5, 0.1, AtServer()),
    ],
    ids=str,
)
def test_noise(apart, mechanism):
    if mechanism.placement == SecureAggregation():
        pytest.importorskip("cryptography")
    federation = Federation(mechanism=Keyed(mechanism))
    task = ServerTask(federation, CLIENTS)
    expected = task.expected(task.first(np.zeros(5)), in_processes.RUN, [0])
    assert expected.type == ("<i8" if has_trait(mechanism, "adds up") and mechanism.placement != AtServer() else "<f4")
    check_in_step(apart, federation)


def test_noise_on_rewards_hides_the_seed_that_would_tell_them(apart):
    federation = Federation(Evolution(), server=Adam(0.1), mechanism=Keyed(Gaussian(0.5, 0.1)))
    check_in_step(apart, federation)


def test_noise_and_a_robust_rule(apart):
    check_in_step(apart, Federation(aggregator=AGGREGATORS["median"](), mechanism=Keyed(Gaussian(0.5, 0.1))))


def log_of_people():
    rng = np.random.default_rng(3)
    data = made_up_data(queries=90, longest=12)
    who = np.concatenate([np.repeat(np.arange(CLIENTS), 3), rng.integers(CLIENTS, size=60)]).astype(np.int32)
    data = replace(data, who=rng.permutation(who), when=np.arange(90))
    return make_clients(data, CLIENTS, partition=Users(), click_model="informational", interactions=2)


def check_out_of_step(apart, federation, rule, rounds):
    simulated = log_of_people()
    plan = schedule(simulated, rule)
    noise = SecureSource(key=SERVER_KEY)
    expected = [
        outcome.weights.copy() for outcome in simulate_arrivals(federation, rule, simulated, rounds, SEED, noise=noise)
    ]
    asked = [plan.cohort(number).tolist() for number in range(1, len(expected) + 1)]
    (task, keyed), features = task_of(federation), simulated.data.features.shape[1]
    sent = federation.learner.ranker.size(features)
    clients = []
    for row in range(CLIENTS):
        when = {}
        for number in range(1, len(expected) + 1):
            for batch in range(int(plan.edges[number - 1]), int(plan.edges[number])):
                if plan.rows[batch] == row:
                    when[number] = int(plan.at[batch]), int(plan.searches[batch])
        clients.append(ClientCase(task, only(simulated, row), sent, SEED, when, in_step=False, keyed=keyed))
    nobody = ClientCase(task, coordinator_of(federation, simulated), sent, SEED, {})
    server = ServerCase(ServerTask(federation, CLIENTS, rule), features, SEED, asked)
    models, _ = apart.run(server, [*clients, nobody])
    assert [model.tobytes() for model in models] == [model.tobytes() for model in expected]
    assert not np.array_equal(models[0], models[-1])


@pytest.mark.parametrize(
    "rule",
    [
        Sync(), FedAsync(), FedAsync("hinge", 0.6, patience=2.0), FedAsync(receive=False), FedBuff(3),
        FedBuff(3, receive=False), FedBuff(4, wait=True),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(
    "federation",
    [Federation(), Federation(Pdgd(Mlp(hidden=3), batch=True)), Federation(local=FedProx(0.5))],
    ids=["linear", "neural", "fedprox"],
)
def test_out_of_step(apart, federation, rule):
    check_out_of_step(apart, federation, rule, rounds=3 if rule.together or rule.gathers else 24)


@pytest.mark.parametrize("mechanism", [Gaussian(0.5, 0.1), Gaussian(0.5, 0.1, IDEAL, cap=4)], ids=["client", "sum"])
def test_noise_out_of_step(apart, mechanism):
    check_out_of_step(apart, Federation(mechanism=Keyed(mechanism)), FedBuff(4, wait=True), rounds=6)
