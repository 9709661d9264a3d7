"""One run of a federation of clients, in rounds or as updates arrive.

Noise that protects people is not keyed by round, as all other chance is: rounds that had been noised before a stop are
taken from the ledger, so that nobody pays for them twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.attacks.poison import Promote, promotion
from fedrank.experiments.runner.data import clients_of, described, judged, load_fold
from fedrank.experiments.runner.privacy import Spent, setting_of, until_spent
from fedrank.experiments.runner.writer import NOISE, RunWriter
from fedrank.experiments.spec.experiment import Experiment
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.federated.asynchronous import schedule
from fedrank.federated.federation import Federation, cohort_size
from fedrank.federated.quality import alike, quality_by_client
from fedrank.federated.robust import without_promise
from fedrank.federated.round import Outcome, evaluated, first_weights, personal_models, simulate, simulate_arrivals
from fedrank.federated.server import State
from fedrank.kernels.devices import Device, DeviceError
from fedrank.ranking.baseline_ranking import GIVEN, baseline_order, baseline_weights
from fedrank.ranking.cuda.choice import choose, features_of
from fedrank.ranking.cuda.measures import evaluator_on_device
from fedrank.ranking.learners import fine_tune, warm_up
from fedrank.ranking.measures import Evaluator, average, measure
from fedrank.ranking.model import Model, load_weights, save_model
from fedrank.types import Memory, Ranker, SimulatedClients, Weights, has_trait
from fedrank.unlearning.history import HistoryWriter, size_beforehand

ONLINE = (
    "nDCG@10 of the lists that users were shown, mean over a client's interactions, then over clients; queries without "
    "a relevant document count as 0"
)
PROCESSOR = "the processor"
REWARD = "mean over clients of the true rewards of the models they tried (known only in simulation)"


def perform_federated(experiment: FederatedExperiment, writer: RunWriter) -> None:
    """Do all rounds that are left, and judge the model that comes out."""
    task = writer.task
    fold, crowd = load_fold(experiment.data, task.fold), clients_of(experiment, task.fold, task.seed)
    federation = experiment.federation(attacked=experiment.clients.malicious > 0)
    ranker, features = experiment.learner.ranker, fold.train.features.shape[1]
    last, notes = rounds_there_are(experiment, crowd)
    weak = without_promise(federation.aggregator, cohort_size(len(crowd), federation.participation))
    writer.know(
        notes=[*fold.notes, *([weak] if weak else []), *notes],
        conventions=conventions_of(experiment),
        data=described(fold.name, fold.train.queries, fold.test.queries, fold.train),
        asked=last,
    )
    evaluator = Evaluator(judged(fold, experiment.data), experiment.measures)
    nothing = baseline_order(evaluator, experiment.data.given)
    machine = machine_of(experiment, federation, crowd, task.device)
    evaluate = evaluator if machine is None else evaluator_on_device(machine, evaluator, ranker)
    with Spent.open(replace(experiment, rounds=last), task, features) as spent:
        writer.safe = spent.forget
        kept = writer.begin(lambda models: evaluate(models, ranker), reward=has_trait(experiment.learner, "rewards"))
        state, memory = (None, None) if kept is None else (state_of(kept), kept.get("memory"))
        excluded: dict[str, list[int]] = {} if kept is None else kept["excluded"]
        devices = note_device(writer, machine, [] if kept is None else kept.get("devices", []))
        history = None
        if experiment.record_every:
            size = federation.sent(ranker.size(features))
            history = HistoryWriter(writer.folder / "history", len(crowd), size, experiment.record_every, writer.round)

        def parts() -> dict[str, Any]:
            if history is not None:
                history.keep()
            return parts_of(state, memory) | {"excluded": excluded} | ({"devices": devices} if devices else {})

        try:
            rounds = _rounds(experiment, federation, crowd, last, writer, state, memory, spent, history)
            for outcome, ends in until_spent(rounds, last, experiment.privacy.budget):
                state, memory = outcome.state, outcome.memory
                record(outcome, writer, evaluate=outcome.round % experiment.evaluate_every == 0 or ends)
                for client in outcome.excluded:
                    since, times = excluded.get(str(client), (outcome.round, 0))
                    excluded[str(client)] = [since, times + 1]
                writer.turn(outcome.round, last, parts, ends)
        except DeviceError as problem:
            if state is None or state.round == 0:
                raise
            if state.round > writer.round:
                writer.keep(state.round, parts())
            raise DeviceError(
                f"{problem}. Rounds up to {state.round:,} are kept: the same command goes on from there, on the "
                "processor with --device cpu"
            ) from problem
        assert state is not None
        spent.stop(state.round)
        card = spent.card()
    weights = evaluated(federation, state, memory, crowd)
    models = personal_models(federation, state, memory, crowd) if has_trait(federation.local, "shared part") else None
    model = Model(
        ranker,
        weights if models is None else models,
        features,
        fold.train.normalised,
        fold.train.feature_names,
        writer.origin(fold.name),
        fold.train.ranges,
    )
    save_model(model, writer.folder / "model.json")
    promoted = experiment.attack if isinstance(experiment.attack, Promote) else None
    writer.finish(
        state.round,
        notes=_last_notes(experiment, state.round, last, excluded),
        queries=(evaluator.data.query_ids.tolist(), per_query(evaluator, weights, ranker)),
        nothing=nothing,
        clients=by_client(experiment, weights, models, crowd, task.seed, writer.threads),
        card=card,
        promotion=promoted and promotion(weights, ranker, evaluator.data, promoted.features),
    )


def _rounds(
    experiment: FederatedExperiment,
    federation: Federation,
    crowd: SimulatedClients,
    last: int,
    writer: RunWriter,
    state: State | None,
    memory: Memory,
    spent: Spent,
    history: HistoryWriter | None,
) -> Iterator[Outcome]:
    """The rounds that are left."""
    seed = writer.task.seed
    start = start_weights(experiment, crowd, seed) if state is None else None
    common: dict[str, Any] = {
        "start": start,
        "state": state,
        "threads": writer.threads,
        "journal": spent.journal,
    }
    if experiment.arrival is not None:
        return simulate_arrivals(federation, experiment.arrival, crowd, last, seed, **common)

    watch = None if history is None else history.watch
    return simulate(federation, crowd, last, seed, memory=memory, watch=watch, device=writer.task.device, **common)


def machine_of(
    experiment: FederatedExperiment, federation: Federation, crowd: SimulatedClients, device: str
) -> Device | None:
    """The machine on which clients learn; None: the processor."""
    if experiment.arrival is None:
        return choose(device, federation.learner, crowd)
    if device not in ("cpu", "auto"):
        raise DeviceError(
            'clients that arrive one by one have no twin on a graphics card; use device = "cpu", or "auto"'
        )
    return None


def note_device(writer: RunWriter, machine: Device | None, before: list[Any]) -> list[Any]:
    """Where clients learned, in run.json and in words; [] if it was the processor all the time."""
    name = PROCESSOR if machine is None else machine.name
    if machine is not None and features_of(writer.task.device) == "float16":
        name = f"{name} (features as float16)"
    devices = list(before)
    if not devices or devices[-1]["device"] != name:
        first = writer.round + 1
        if not devices and first > 1:
            devices.append({"from": 1, "device": PROCESSOR})
        devices.append({"from": first, "device": name})
    if all(each["device"] == PROCESSOR for each in devices):
        return []
    where = ", ".join(
        f"on {each['device']}" + (f" from round {each['from']:,} on" if len(devices) > 1 else "") for each in devices
    )
    rounded = any("float16" in each["device"] for each in devices)
    results = "of features that were rounded to two bytes" if rounded else "of any processor"
    writer.know(notes=[f"clients learned {where}; the results are those {results}"], devices=devices)
    return devices


def record(outcome: Outcome, writer: RunWriter, evaluate: bool) -> None:
    """The row of one round."""
    writer.add(
        outcome.round,
        interactions=outcome.interactions,
        bytes_up=outcome.bytes_up,
        bytes_down=outcome.bytes_down,
        online=outcome.online,
        reward=outcome.reward,
        model=outcome.weights if evaluate else None,
    )


def parts_of(state: State | None, memory: Memory) -> dict[str, Any]:
    """What a checkpoint holds of the server and of what clients keep."""
    assert state is not None
    arrays = {"weights": state.weights, "server": state.server}
    arrays |= {f"rule.{name}": array for name, array in state.rule.items()}
    some = {"common": state.common, "held": state.held, "memory": memory}
    return arrays | {name: array for name, array in some.items() if array is not None}


def state_of(kept: Any) -> State:
    rule = {name.removeprefix("rule."): array for name, array in kept.items() if name.startswith("rule.")}
    return State(int(kept["round"]), kept["weights"], kept.get("common"), kept["server"], rule, kept.get("held"))


def rounds_there_are(experiment: FederatedExperiment, crowd: SimulatedClients) -> tuple[int, list[str]]:
    """How many rounds there will be, and what to say about it: a log may have fewer than were asked for."""
    asked = experiment.rounds
    last = asked if experiment.arrival is None else min(asked, schedule(crowd, experiment.arrival).rounds)
    return last, [f"{last:,} of {asked:,} rounds: the log has no more complete updates"] if last < asked else []


def _last_notes(experiment: FederatedExperiment, done: int, last: int, excluded: dict[str, list[int]]) -> list[str]:
    notes = [
        f"client {client} was left out of {times:,} round{'' if times == 1 else 's'}, first of round {since:,}: "
        "its update was not finite"
        for client, (since, times) in excluded.items()
    ]
    if done < last:
        notes.append(
            f"stopped by itself after round {done:,} of {last:,}: another one would exceed the privacy budget of "
            f"ε = {experiment.privacy.budget:g}"
        )
    return notes


def start_model(experiment: FederatedExperiment, crowd: SimulatedClients) -> Weights | None:
    """The model that a federation is asked to begin with, if any."""
    if experiment.start is None:
        return None
    if experiment.start == GIVEN:
        return baseline_weights(crowd.data, experiment.data.given)
    model = load_weights(experiment.start)
    if model.ranker.hidden != experiment.learner.ranker.hidden or model.weights.ndim != 1:
        raise ValueError(
            f"start = {experiment.start!r} is not a model of the same ranker as learner.ranker; choose the one it has"
        )
    return model.weights


def start_weights(experiment: FederatedExperiment, crowd: SimulatedClients, seed: int) -> Weights | None:
    """What the federation begins with, if not with the ranker's own first weights."""
    learner, weights = experiment.learner, start_model(experiment, crowd)
    if interactions := getattr(experiment.clients.partition, "warm_up", 0):
        if weights is None:
            weights = first_weights(learner.ranker, crowd, seed)
        weights = warm_up(learner, weights, crowd, seed, interactions)
    return weights


def per_query(evaluator: Evaluator, weights: Weights, ranker: Ranker) -> NDArray[np.float64]:
    """[measures, queries]: mean over the models, where there are several."""
    values = evaluator.per_query(weights, ranker)
    return average(np.moveaxis(values, 1, -1)) if weights.ndim == 2 else values


def by_client(
    experiment: FederatedExperiment,
    averaged: Weights,
    own: Weights | None,
    crowd: SimulatedClients,
    seed: int,
    threads: int,
) -> dict[str, Any]:
    """Quality of every client with the final model, with its personal one, and after fine-tuning, where these exist."""
    learner = experiment.learner
    measures = [name for name in experiment.measures if not measure(name).by]  # clients have labels of their own
    models = {"": averaged} if own is None else {" averaged": averaged, " personal": own}
    if experiment.fine_tune:
        last = list(models.values())[-1]
        models[" fine-tuned"] = fine_tune(learner, last, crowd, seed, experiment.fine_tune, threads)
    if (alike(crowd) and len(models) == 1) or not measures:
        return {}
    queries = np.diff(crowd.pools)[crowd.pool]
    columns = {"client": crowd.ids, "queries": queries, "interactions": crowd.interactions}
    for kind, weights in models.items():
        rows = quality_by_client(measures, weights, learner.ranker, crowd)
        columns |= {f"{name}{kind}": values for name, values in zip(measures, rows, strict=True)}
    return columns


def conventions_of(experiment: FederatedExperiment) -> dict[str, str]:
    """How the numbers of a federation came about, beyond what its measures mean."""
    conventions = {
        "online": ONLINE,
        "rounds": "row r is the model after the aggregation of round r",
        "final": "mean of the last 10 evaluations",
    }
    if has_trait(experiment.learner, "rewards"):
        conventions["reward"] = REWARD
    if experiment.arrival is not None:
        rule = experiment.arrival
        what = "the next update of every client that has one" if rule.together else "the arrival of one update"
        what = f"a sum of {rule.gathers} clients' updates" if rule.gathers else what
        conventions["rounds"] = f"row r is the model after round r; a round is {what}"
    if experiment.mechanism is not None:
        conventions["noise"] = NOISE
    return conventions


def recorded_bytes(experiment: Experiment) -> int:
    """What the recorded updates of one run take on disk, at most."""
    if not isinstance(experiment, FederatedExperiment) or not experiment.record_every:
        return 0
    clients, parameters = experiment.clients.count, setting_of(experiment).parameters
    return size_beforehand(clients, parameters, experiment.rounds, experiment.record_every)
