"""Unlearning of sites that leave: with the help of the remaining sites, and with a receipt.

`fed-remove` adds up recorded updates again, without the sites. The other methods perform rounds with the remaining
sites, with a separate plan: they accept it, their policies apply, and their ledgers are charged. With secure
aggregation, individual updates were never visible, so only `retrain` is possible.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.deploy.coordinate import PLAN, state_before
from fedrank.deploy.handshake import Handshake
from fedrank.deploy.plan import Plan
from fedrank.deploy.site_calls import Send, SiteCalls
from fedrank.experiments.runner.cards import issued_receipt
from fedrank.experiments.runner.data import evaluation_queries, load_fold
from fedrank.experiments.runner.federated import per_query
from fedrank.experiments.runner.folder import Card, Receipt
from fedrank.experiments.runner.runs import Run, load_runs
from fedrank.experiments.runner.traces import history_of, what_remains
from fedrank.experiments.runner.unlearning import NOBODY_ASKED, atomic_run_folder
from fedrank.experiments.runner.writer import RunWriter, Task
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.source import read_spec
from fedrank.federated.clients import make_clients
from fedrank.federated.server import State
from fedrank.progress import Progress, by_rounds, quiet
from fedrank.ranking.baseline_ranking import baseline_order
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.model import load_weights, save_model
from fedrank.types import Messages, Weights, has_trait
from fedrank.unlearning.cost import forget
from fedrank.unlearning.history import History
from fedrank.unlearning.methods import Case, FedEraser, FedRemove, FineTune, Retrain, Unlearned, Unlearner, rescaled
from fedrank.unlearning.verify import receipt

PATIENCE = 30.0  # seconds for sites that left to accept their receipt


@dataclass(frozen=True)
class Departure:
    """A request to unlearn sites of a finished run."""

    parent: Path  # its run folder
    leaving: tuple[str, ...]  # names of sites
    unlearner: Unlearner

    @cached_property
    def run(self) -> Run:
        runs = load_runs(self.parent)
        if len(runs) != 1 or runs[0].status != "finished":
            raise ValueError(
                f"{self.parent} is not a finished run; give the folder of a run that `fedrank deploy run` finished"
            )
        return runs[0]

    @cached_property
    def plan(self) -> Plan:
        """The plan of the run to unlearn from."""
        path = self.parent / PLAN
        if not path.exists():
            raise ValueError(f"{self.parent} is not a run between sites: it has no {PLAN}; use `fedrank forget client`")
        return Plan.load(path.read_bytes())

    @cached_property
    def experiment(self) -> FederatedExperiment:
        """The experiment of that run, with the coordinator's paths."""
        found = read_spec(self.parent / "spec.toml", trust=False).base
        assert isinstance(found, FederatedExperiment)
        return found

    @property
    def gone(self) -> tuple[int, ...]:
        return tuple(id for name in self.leaving for id in self.plan.party(name).clients)

    @cached_property
    def history(self) -> History | None:
        return history_of(self.parent)

    @cached_property
    def case(self) -> Case:
        """The original run, with the coordinator's data instead of those of sites."""
        experiment, plan, run = self.experiment, self.plan, self.run
        clients = make_clients(load_fold(experiment.data, run.fold).train, len(plan.clients))
        searches = [experiment.clients.searches[id % len(experiment.clients.searches)] for id in plan.clients]
        clients = replace(clients, ids=np.array(plan.clients), interactions=np.array(searches, dtype=np.int64))
        state = state_before(plan)
        final = load_weights(self.parent).weights
        federation = replace(plan.federated, mechanism=None)
        return Case(federation, clients, self.gone, run.seed, state.weights, final, run.round, self.history)

    def check(self) -> None:
        """Raise ValueError for an impossible request, before any site is asked."""
        name = describe(self.unlearner)["name"]
        if self.experiment.kind != "federated":
            raise ValueError(f'{self.parent} is an asynchronous run, whose rounds cannot be repeated; use "retrain"')
        if not isinstance(self.unlearner, (Retrain, FineTune, FedEraser, FedRemove)):
            raise ValueError(
                f"{name} needs the participation of the leaving site; use retrain, fed-eraser, fed-remove or fine-tune"
            )
        if self.plan.summed and has_trait(self.unlearner, "history"):
            raise ValueError(
                f"{name} needs the update of each site, which secure aggregation does not reveal; use --method retrain"
            )
        if has_trait(self.unlearner, "history") and self.history is None:
            raise ValueError(
                f"{name} needs recorded updates, but this run has none (record_every = 0); use --method retrain or "
                "fine-tune"
            )
        stay = len(self.plan.sites) - len(set(self.leaving))
        if stay < 2 and not isinstance(self.unlearner, FedRemove):
            raise ValueError(f"{stay} of {len(self.plan.sites)} sites remain, but at least 2 are needed")
        self.case  # noqa: B018

    def planned(self, out: Path, name: str | None = None) -> tuple[Task, Plan]:
        """The run that unlearns, and its plan for the remaining sites."""
        experiment, plan = self.experiment, self.plan
        method = describe(self.unlearner)["name"]
        clients = replace(experiment.clients, count=len(plan.clients) - len(self.gone))
        rounds = self.run.round
        if isinstance(self.unlearner, FineTune):
            rounds = self.unlearner.rounds
        if isinstance(self.unlearner, FedEraser):
            fewer = tuple(min(count, self.unlearner.steps) for count in clients.searches)
            clients, rounds = replace(clients, interactions=fewer), len(self.case.recorded(method))
        title = f"{experiment.title or self.run.experiment}, unlearned"
        changed = replace(experiment, clients=clients, rounds=rounds, record_every=0, start=None, title=title)
        label = name or f"{self.run.experiment}-unlearned"
        folder = out / label / method / self.parent.name
        task = Task(folder, changed, label, method, {"method.name": method}, self.run.fold, self.run.seed)
        return task, plan.without(self.leaving, changed, f"{label}/{method}/{self.parent.name}")

    @property
    def start(self) -> Weights | None:
        """The initial weights of the remaining sites; None: as in the original run."""
        return load_weights(self.parent).weights if isinstance(self.unlearner, FineTune) else None

    def reshape(self, messages: Messages) -> Messages:
        """FedEraser: the direction of the new updates with the norm of the recorded ones."""
        if not isinstance(self.unlearner, FedEraser):
            return messages
        ids, lengths = self._lengths[messages.round - 1]
        known = {int(id): float(length) for id, length in zip(ids, lengths, strict=True)}
        own = np.array([known.get(int(id), 0.0) for id in messages.ids])
        searches = self.experiment.clients.searches
        sizes = np.array([searches[int(id) % len(searches)] for id in messages.ids], dtype=np.int64)
        return replace(messages, updates=rescaled(messages.updates, own), sizes=sizes)

    @cached_property
    def _lengths(self) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        return [(ids.copy(), lengths.copy()) for _, ids, lengths in self.case.recorded("fed-eraser").lengths()]

    def facts(self, folder: Path, rounds: int) -> dict[str, Any]:
        return {
            "parent": os.path.relpath(self.parent, folder),
            "clients": list(self.gone),
            "method": describe(self.unlearner),
            "gone": list(self.gone),
            "rounds_trained": self.run.round,
            "last_round": rounds,
        }

    def write_receipt(self, folder: Path, plan: Plan, state: State, searches: NDArray[np.int64]) -> None:
        """Write the receipt: what was done, in words and numbers, for both models."""
        interactions = state.round * int(searches.sum())
        unlearned = Unlearned(state, None, state.round, interactions, ((state.round, state.weights),))
        self.issue(folder, unlearned)

    def issue(self, folder: Path, unlearned: Unlearned) -> Receipt:
        paper = Receipt(
            **receipt(self.case, self.unlearner, unlearned),
            parent=os.path.relpath(self.parent, folder),
            remains=tuple(what_remains(self.parent, self.gone)),
        )
        paper = issued_receipt(paper, folder, self.parent)
        paper.write(folder)
        return paper

    def tell_those_who_left(self, send: Send, folder: Path) -> dict[str, str]:
        """Send the receipt to the leaving sites, with the plan that they know; return why sites did not accept it."""
        staying = {site.name: "remains" for site in self.plan.sites if site.name not in self.leaving}
        calls = SiteCalls(self.plan, send, PATIENCE, left_out=staying)
        why = Handshake(calls, self.plan.secure_sum is not None).greet_once(self.run.round)
        content = {"model": b"", "card": b"", "receipt": (folder / Receipt.FILE).read_bytes()}
        why |= calls.give(self.run.round, **content)
        return {name: f"{reason}; send receipt.json by other means" for name, reason in why.items()}


def named(run: Path, sites: Sequence[str], unlearner: Unlearner) -> Departure:
    """A checked request with sites of the run."""
    found = Departure(Path(run), tuple(dict.fromkeys(sites)), unlearner)
    for name in found.leaving:
        found.plan.party(name)
    found.check()
    return found


def remove(departure: Departure, out: Path, name: str | None = None, progress: Progress = quiet) -> Path:
    """`fed-remove`: compute the model from recorded updates on the coordinator; return the new run folder."""
    task, _ = departure.planned(out, name)
    if task.folder.exists():
        raise FileExistsError(f"{task.folder} already exists and is not overwritten; use another --name")
    experiment, run = departure.experiment, departure.run
    ranker = experiment.learner.ranker
    evaluator = Evaluator(
        evaluation_queries(load_fold(experiment.data, run.fold), experiment.data), experiment.measures
    )
    done = forget(departure.case, departure.unlearner, by_rounds(progress, task.label))
    weights = done.unlearned.weights
    with atomic_run_folder(task.folder) as part, RunWriter(replace(task, folder=part)) as writer:
        writer.begin(lambda models: evaluator(models, ranker), online=False)
        for point in done.points:
            writer.add(point.round, model=point.weights)
        save_model(replace(load_weights(departure.parent), weights=weights), part / "model.json")
        writer.finish(
            done.unlearned.rounds,
            queries=(evaluator.data.query_ids.tolist(), per_query(evaluator, weights, ranker)),
            baseline=baseline_order(evaluator, experiment.data.given),
            card=_card(run),
            asked=done.unlearned.rounds,
            data=run.data,
            conventions=run.conventions,
            unlearned=departure.facts(part, done.unlearned.rounds),
        )
        departure.issue(part, done.unlearned)
    return task.folder


def _card(run: Run) -> Card | None:
    """The card of the original run: the new model reveals at most what the coordinator knew."""
    had = run.card
    return None if had is None else replace(had, not_covered=(*had.not_covered, NOBODY_ASKED))
