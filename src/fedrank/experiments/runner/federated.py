"""One run of a federation of clients, in rounds or as updates arrive.

Privacy noise is not keyed by round, unlike all other randomness. Rounds that were noised before a stop are taken from
the ledger, so they are not charged twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.attacks.poison import Promote, promotion
from fedrank.experiments.runner.data import clients_of, described, evaluation_queries, fold_without_data, load_fold
from fedrank.experiments.runner.privacy import RunSpending, setting_of, until_spent
from fedrank.experiments.runner.releases import SiteQuality
from fedrank.experiments.runner.writer import NOISE, RunWriter
from fedrank.experiments.spec.experiment import Experiment
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.federated.asynchronous import schedule
from fedrank.federated.asynchronous_simulation import simulate_arrivals
from fedrank.federated.deal import DEAL
from fedrank.federated.federation import Federation
from fedrank.federated.quality import alike, quality_by_client
from fedrank.federated.robust import without_guarantee
from fedrank.federated.round import Outcome, evaluated, first_state, first_weights, personal_models
from fedrank.federated.server import State
from fedrank.federated.simulation import simulate
from fedrank.kernels.devices import Device, DeviceError
from fedrank.ranking.baseline_ranking import (
    GIVEN,
    LOGGED,
    START_ALONE,
    BaselineRanking,
    baseline_order,
    baseline_weights,
)
from fedrank.ranking.cuda.choice import choose, features_of
from fedrank.ranking.cuda.measures import evaluator_on_device
from fedrank.ranking.evolution import Evolution, expected_rewards
from fedrank.ranking.learners import fine_tune, warm_up
from fedrank.ranking.measures import Evaluator, average, measure
from fedrank.ranking.model import Model, load_weights, origin, save_model
from fedrank.types import Memory, Ranker, SimulatedClients, Weights, has_trait
from fedrank.unlearning.history import HistoryWriter, size_beforehand

ONLINE = (
    "nDCG@10 of the lists that users were shown, mean over a client's interactions, then over clients; queries without "
    "a relevant document count as 0"
)
PROCESSOR = "the processor"
REWARD = "mean over clients of the true rewards of the models they tried (known only in simulation)"


class FederatedRun:
    """The run folder of a federation of clients: simulated clients, or deployed sites."""

    def __init__(self, experiment: FederatedExperiment, writer: RunWriter) -> None:
        self.experiment, self.writer, data = experiment, writer, experiment.data
        self.fold = fold_without_data(data) if data.at_sites else load_fold(data, writer.task.fold)
        self.history: HistoryWriter | None = None
        self._evaluator: Evaluator | None = None
        self.baseline: BaselineRanking | None = None
        self.queries: tuple[Sequence[str], NDArray[np.float64]] | None = None

    @property
    def evaluator(self) -> Evaluator:
        assert self._evaluator is not None, "a coordinator without data evaluates nothing"
        return self._evaluator

    def describe(self, last: int, notes: Sequence[str] = ()) -> None:
        """Record the facts of the run, and prepare its evaluation."""
        fold, experiment = self.fold, self.experiment
        self.writer.update_facts(
            notes=[*fold.notes, *notes],
            conventions=conventions_of(experiment),
            data=described(fold.name, fold.train.queries, fold.test.queries, fold.train),
            asked=last,
        )
        if experiment.data.at_sites:
            return
        self._evaluator = Evaluator(evaluation_queries(fold, experiment.data), experiment.measures)
        self.baseline = start_alone(experiment, self.evaluator) or baseline_order(self.evaluator, experiment.data.given)

    def begin(self, evaluate: Any = None) -> tuple[State | None, Memory, Any]:
        """State, memory and checkpoint of a resumed run; each is None for a new run."""
        learner, evaluate = self.experiment.learner, evaluate or self._evaluator
        checkpoint = self.writer.begin(
            None if evaluate is None else lambda models: evaluate(models, learner.ranker),
            reward=has_trait(learner, "rewards"),
        )
        return (
            (None, None, None) if checkpoint is None else (state_of(checkpoint), checkpoint.get("memory"), checkpoint)
        )

    def record_updates(self, clients: int, size: int) -> None:
        """Record messages of this size, if the experiment asks for it."""
        every = self.experiment.record_every
        if every:
            self.history = HistoryWriter(self.writer.folder / "history", clients, size, every, self.writer.round)

    def add(self, outcome: Outcome, ends: bool, values: Sequence[float] | None = None) -> None:
        """Add the row of one round; `values` are known measures of its model."""
        evaluate = self._evaluator is not None and (outcome.round % self.experiment.evaluate_every == 0 or ends)
        self.writer.add(
            outcome.round,
            interactions=outcome.interactions,
            bytes_up=outcome.bytes_up,
            bytes_down=outcome.bytes_down,
            online=outcome.online,
            reward=outcome.reward,
            model=outcome.weights if evaluate else None,
            values=values,
        )

    def checkpoint(self, state: State | None, memory: Memory) -> dict[str, Any]:
        """The state from which a stopped run resumes."""
        if self.history is not None:
            self.history.keep()
        return parts_of(state, memory)

    def first(
        self, federation: Federation, clients: SimulatedClients, start: Weights | None = None
    ) -> tuple[State, Memory]:
        """State and memory of simulated clients before round 1, if they start from a model."""
        return first_state(federation, clients, self.writer.task.seed, start, self.experiment.arrival)

    def start(self, clients: SimulatedClients) -> Weights | None:
        """The initial model of the experiment, if it names one or warms one up."""
        return start_weights(self.experiment, clients, self.writer.task.seed)

    def final(
        self, federation: Federation, state: State, memory: Memory, clients: SimulatedClients
    ) -> tuple[Weights, Weights | None, dict[str, Any]]:
        """The final model of simulated clients, their personal models if they have any, and their quality."""
        weights, models = evaluated(federation, state, memory, clients), None
        if has_trait(federation.local, "shared part"):
            models = personal_models(federation, state, memory, clients)
        seed, threads = self.writer.task.seed, self.writer.threads
        if has_trait(federation.aggregator, "gossip"):
            honest = clients.rows(~clients.malicious)
            return weights, state.weights, by_client(self.experiment, weights, None, honest, seed, threads)
        return weights, models, by_client(self.experiment, weights, models, clients, seed, threads)

    def save_model(self, weights: Weights, models: Weights | None, features: int) -> None:
        """Write the final model, or the models of all clients."""
        train = self.fold.train
        shape = features, train.normalised, train.feature_names, self.writer.origin(self.fold.name), train.ranges
        model = Model(self.experiment.learner.ranker, weights if models is None else models, *shape)
        save_model(model, self.writer.folder / "model.json")

    def measured_by_sites(self, found: Mapping[str, Mapping[str, SiteQuality]]) -> list[float]:
        """Take the quality of the final model, by site and measure, from sites; return the means over sites.

        Sites take the place of queries in the files of the run.
        """
        names, sides = self.experiment.measures, []
        for side in ("model", "given"):
            rows = [[getattr(table.get(name), side, math.nan) for table in found.values()] for name in names]
            sides.append(np.array(rows, np.float64))
        self.queries = list(found), sides[0]
        errors = [one.error for table in found.values() for one in table.values()]
        about = f"a row is a site: noised sums over people, standard error of the noise {max(errors):.3f} or less"
        self.baseline = BaselineRanking(LOGGED, sides[1], about)
        return [float(np.nanmean(row)) if np.isfinite(row).any() else math.nan for row in sides[0]]

    def finish(self, state: State, weights: Weights, **more: Any) -> None:
        """Evaluate the final model on every query, unless sites did; `more` is written to the run folder."""
        if (evaluator := self._evaluator) is not None:
            ids, ranker = evaluator.data.query_ids.tolist(), self.experiment.learner.ranker
            self.queries = ids, per_query(evaluator, weights, ranker)
        self.writer.finish(state.round, queries=self.queries, baseline=self.baseline, **more)


def perform_federated(experiment: FederatedExperiment, writer: RunWriter) -> None:
    """Execute the remaining rounds, and evaluate the final model."""
    task, run = writer.task, FederatedRun(experiment, writer)
    simulated = clients_of(experiment, task.fold, task.seed)
    federation = experiment.federation(attacked=experiment.clients.malicious > 0)
    ranker, features = experiment.learner.ranker, run.fold.train.features.shape[1]
    last, notes = available_rounds(experiment, simulated)
    weak = without_guarantee(federation.aggregator, math.ceil(federation.cohort(len(simulated))))
    run.describe(last, [*([weak] if weak else []), *notes])
    if federation.dealt:
        federation.deal(simulated, task.seed).keep(writer.folder / DEAL)
    device = device_of(experiment, federation, simulated, task.device)
    evaluate = None if device is None else evaluator_on_device(device, run.evaluator, ranker)
    with RunSpending.open(replace(experiment, rounds=last), task, features) as spent:
        writer.safe = spent.forget
        state, memory, checkpoint = run.begin(evaluate)
        excluded: dict[str, list[int]] = {} if checkpoint is None else checkpoint["excluded"]
        devices = note_device(writer, device, [] if checkpoint is None else checkpoint.get("devices", []))
        run.record_updates(len(simulated), federation.sent(ranker.size(features)))

        def parts() -> dict[str, Any]:
            return run.checkpoint(state, memory) | {"excluded": excluded} | ({"devices": devices} if devices else {})

        try:
            rounds = _rounds(experiment, federation, simulated, last, writer, state, memory, spent, run.history)
            for outcome, ends in until_spent(rounds, last, experiment.privacy.budget):
                state, memory = outcome.state, outcome.memory
                run.add(outcome, ends)
                for client in outcome.excluded:
                    since, times = excluded.get(str(client), (outcome.round, 0))
                    excluded[str(client)] = [since, times + 1]
                writer.after_round(outcome.round, last, parts, ends)
        except DeviceError as problem:
            if state is None or state.round == 0:
                raise
            if state.round > writer.round:
                writer.save_checkpoint(state.round, parts())
            raise DeviceError(
                f"{problem}. Rounds up to {state.round:,} are saved; run the same command again to resume, with "
                "--device cpu to use the processor"
            ) from problem
        assert state is not None
        spent.stop(state.round)
        card = spent.card()
    weights, models, columns = run.final(federation, state, memory, simulated)
    run.save_model(weights, models, features)
    promoted = experiment.attack if isinstance(experiment.attack, Promote) else None
    run.finish(
        state,
        weights,
        notes=_last_notes(experiment, state.round, last, excluded),
        clients=columns,
        rewards=_rewards(experiment, weights, simulated),
        card=card,
        promotion=promoted and promotion(weights, ranker, run.evaluator.data, promoted.features),
    )


def _rounds(
    experiment: FederatedExperiment,
    federation: Federation,
    clients: SimulatedClients,
    last: int,
    writer: RunWriter,
    state: State | None,
    memory: Memory,
    spent: RunSpending,
    history: HistoryWriter | None,
) -> Iterator[Outcome]:
    """The remaining rounds."""
    seed = writer.task.seed
    start = start_weights(experiment, clients, seed) if state is None else None
    common: dict[str, Any] = {"start": start, "state": state, "threads": writer.threads, "journal": spent.journal}
    if experiment.arrival is not None:
        return simulate_arrivals(federation, experiment.arrival, clients, last, seed, **common)

    watch = None if history is None else history.watch
    return simulate(federation, clients, last, seed, memory=memory, watch=watch, device=writer.task.device, **common)


def device_of(
    experiment: FederatedExperiment, federation: Federation, clients: SimulatedClients, device: str
) -> Device | None:
    """The device on which clients train; None: the processor."""
    if experiment.arrival is None:
        return choose(device, federation.learner, clients)
    if device not in ("cpu", "auto"):
        raise DeviceError('kind = "async" is not supported on a GPU; use device = "cpu" or "auto"')
    return None


def note_device(writer: RunWriter, device: Device | None, before: list[Any]) -> list[Any]:
    """Record the devices of clients in run.json and its notes; [] if only the processor was used."""
    name = PROCESSOR if device is None else device.name
    if device is not None and features_of(writer.task.device) == "float16":
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
        f"on {each['device']}" + (f" from round {each['from']:,}" if len(devices) > 1 else "") for each in devices
    )
    rounded = any("float16" in each["device"] for each in devices)
    results = "of features rounded to two bytes" if rounded else "of any processor"
    writer.update_facts(notes=[f"clients were trained {where}; the results are those {results}"], devices=devices)
    return devices


def parts_of(state: State | None, memory: Memory) -> dict[str, Any]:
    """The state of server and clients for a checkpoint."""
    assert state is not None
    arrays = {"weights": state.weights, "server": state.server}
    arrays |= {f"rule.{name}": array for name, array in state.rule.items()}
    some = {"common": state.common, "held": state.held, "memory": memory}
    return arrays | {name: array for name, array in some.items() if array is not None}


def state_of(checkpoint: Any) -> State:
    rule = {name.removeprefix("rule."): array for name, array in checkpoint.items() if name.startswith("rule.")}
    return State(
        int(checkpoint["round"]),
        checkpoint["weights"],
        checkpoint.get("common"),
        checkpoint["server"],
        rule,
        checkpoint.get("held"),
    )


def available_rounds(experiment: FederatedExperiment, clients: SimulatedClients) -> tuple[int, list[str]]:
    """The number of rounds, and a note if a log has fewer than requested."""
    asked = experiment.rounds
    last = asked if experiment.arrival is None else min(asked, schedule(clients, experiment.arrival).rounds)
    return last, [f"{last:,} of {asked:,} rounds: the log has no more complete updates"] if last < asked else []


def _last_notes(experiment: FederatedExperiment, done: int, last: int, excluded: dict[str, list[int]]) -> list[str]:
    notes = [
        f"client {client} was excluded from {times:,} round{'' if times == 1 else 's'}, the first was round {since:,}: "
        "its update was not finite"
        for client, (since, times) in excluded.items()
    ]
    if done < last:
        notes.append(
            f"stopped after round {done:,} of {last:,}: another round would exceed the privacy budget of "
            f"ε = {experiment.privacy.budget:g}"
        )
    return notes


def start_model(experiment: FederatedExperiment, clients: SimulatedClients) -> Weights | None:
    """The initial model that the experiment names, if any."""
    if experiment.start is None:
        return None
    if experiment.start == GIVEN:
        return baseline_weights(clients.data, experiment.data.given)
    return _named_start(experiment).weights


def _named_start(experiment: FederatedExperiment) -> Model:
    """The model file that the experiment starts from."""
    assert experiment.start is not None
    model = load_weights(experiment.start)
    if model.ranker.hidden != experiment.learner.ranker.hidden or model.weights.ndim != 1:
        raise ValueError(
            f"start = {experiment.start!r} has another ranker than learner.ranker; set learner.ranker to that of "
            "the model"
        )
    return model


def start_alone(experiment: FederatedExperiment, evaluator: Evaluator) -> BaselineRanking | None:
    """What users of a public start have without learning: its own ranking; None if the experiment names no model."""
    if experiment.start in (None, GIVEN):
        return None
    model = _named_start(experiment)
    if model.features != evaluator.data.features.shape[1]:
        return None  # training refuses it and names the reason
    name = f"{START_ALONE} ({origin(model.notes) or Path(str(experiment.start)).name})"
    return BaselineRanking(name, per_query(evaluator, model.weights, model.ranker))


def start_weights(experiment: FederatedExperiment, clients: SimulatedClients, seed: int) -> Weights | None:
    """The initial weights, unless the ranker's own are used."""
    learner, weights = experiment.learner, start_model(experiment, clients)
    if interactions := getattr(experiment.clients.partition, "warm_up", 0):
        if weights is None:
            weights = first_weights(learner.ranker, clients, seed)
        weights = warm_up(learner, weights, clients, seed, interactions)
    return weights


def per_query(evaluator: Evaluator, weights: Weights, ranker: Ranker) -> NDArray[np.float64]:
    """[measures, queries]: the mean over the models if there are several."""
    values = evaluator.per_query(weights, ranker)
    return average(np.moveaxis(values, 1, -1)) if weights.ndim == 2 else values


def _rewards(
    experiment: FederatedExperiment, weights: Weights, clients: SimulatedClients
) -> tuple[Sequence[str], NDArray[np.float64]] | None:
    """Training queries and the expected reward of the last model for each, if it is known."""
    learner = experiment.learner
    values = expected_rewards(learner, weights, clients) if isinstance(learner, Evolution) else None
    return None if values is None else (clients.data.query_ids[clients.queries].tolist(), values)


def by_client(
    experiment: FederatedExperiment,
    averaged: Weights,
    own: Weights | None,
    clients: SimulatedClients,
    seed: int,
    threads: int,
) -> dict[str, Any]:
    """Quality of the final model for each client, and of its personal and fine-tuned models if they exist."""
    learner = experiment.learner
    measures = [name for name in experiment.measures if not measure(name).by]  # clients have their own labels
    models = {"": averaged} if own is None else {" averaged": averaged, " personal": own}
    if experiment.fine_tune:
        last = list(models.values())[-1]
        models[" fine-tuned"] = fine_tune(learner, last, clients, seed, experiment.fine_tune, threads)
    if (alike(clients) and len(models) == 1) or not measures:
        return {}
    queries = np.diff(clients.pools)[clients.pool]
    columns = {"client": clients.ids, "queries": queries, "interactions": clients.interactions}
    for kind, weights in models.items():
        rows = quality_by_client(measures, weights, learner.ranker, clients)
        columns |= {f"{name}{kind}": values for name, values in zip(measures, rows, strict=True)}
    return columns


def conventions_of(experiment: FederatedExperiment) -> dict[str, str]:
    """How the values of a federation are computed, in addition to the definitions of its measures."""
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
    """The maximum disk space of the recorded updates of one run."""
    if not isinstance(experiment, FederatedExperiment) or not experiment.record_every:
        return 0
    clients, parameters = experiment.clients.count, setting_of(experiment).parameters
    return size_beforehand(clients, parameters, experiment.rounds, experiment.record_every)
