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
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.folder import Receipt
from fedrank.experiments.runner.runs import Run, load_runs
from fedrank.experiments.runner.traces import history_of
from fedrank.experiments.runner.unlearning import issue_receipt, unlearn_recorded
from fedrank.experiments.runner.writer import Task
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.source import read_spec
from fedrank.federated.clients import make_clients
from fedrank.federated.server import State
from fedrank.progress import Progress, quiet
from fedrank.ranking.model import load_weights
from fedrank.types import Messages, Weights, has_trait
from fedrank.unlearning.methods import Case, Unlearner

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
    def alone(self) -> bool:
        """Whether recorded updates are enough, and no site is asked."""
        return has_trait(self.unlearner, "asks nobody")  # prose: ok

    @cached_property
    def remote(self) -> Any:
        """How the method works in rounds with the sites that stay."""
        return self.unlearner.remote(self.case)  # type: ignore[attr-defined]

    @property
    def gone(self) -> tuple[int, ...]:
        return tuple(id for name in self.leaving for id in self.plan.party(name).clients)

    @cached_property
    def case(self) -> Case:
        """The original run, with the coordinator's data instead of those of sites."""
        experiment, plan, run = self.experiment, self.plan, self.run
        count, data = len(plan.clients), load_fold(experiment.data, run.fold, deployed=True).train
        if not data.queries:  # a coordinator without data; methods that run here do not read queries
            features, grades = np.zeros((count, plan.features), np.float32), np.zeros(count, np.int8)
            data = replace(
                data,
                features=features,
                grades=grades,
                offsets=np.arange(count + 1),
                query_ids=np.arange(count).astype(str),
            )
        clients = make_clients(data, count)
        searches = [experiment.clients.searches[id % len(experiment.clients.searches)] for id in plan.clients]
        clients = replace(clients, ids=np.array(plan.clients), interactions=np.array(searches, dtype=np.int64))
        state = state_before(plan)
        final = load_weights(self.parent).weights
        federation, history = replace(plan.federated, mechanism=None), history_of(self.parent)
        return Case(federation, clients, self.gone, run.seed, state.weights, final, run.round, history)

    def check(self) -> None:
        """Raise ValueError for an impossible request, before any site is asked."""
        name = describe(self.unlearner)["name"]
        if self.experiment.kind != "federated":
            raise ValueError(f'{self.parent} is an asynchronous run, whose rounds cannot be repeated; use "retrain"')
        if has_trait(self.unlearner, "certified"):
            raise ValueError(
                f"{name} is not available between organisations, because sites would see models without its noise; use "
                "retrain, fed-eraser, fed-remove or fine-tune"
            )
        if not self.alone and not hasattr(self.unlearner, "remote"):
            raise ValueError(
                f"{name} needs the leaving site to participate; use retrain, fed-eraser, fed-remove or fine-tune"
            )
        if self.plan.summed and has_trait(self.unlearner, "history"):
            raise ValueError(
                f"{name} needs the update of each site, which secure aggregation does not reveal; use --method retrain"
            )
        if has_trait(self.unlearner, "history") and self.case.history is None:
            raise ValueError(
                f"{name} needs recorded updates, but this run has none (record_every = 0); use --method retrain or "
                "fine-tune"
            )
        if self.alone and self.experiment.data.at_sites:
            raise ValueError(
                f"{name} measures the new model on queries of the coordinator, which has none in this run; use "
                "--method retrain or fine-tune"
            )
        stay = len(self.plan.sites) - len(set(self.leaving))
        if stay < 2 and not self.alone:
            raise ValueError(f"{stay} of {len(self.plan.sites)} sites remain, but at least 2 are needed")
        self.case  # noqa: B018

    def planned(self, out: Path, name: str | None = None) -> tuple[Task, Plan]:
        """The run that unlearns, and its plan for the remaining sites."""
        experiment, plan = self.experiment, self.plan
        method = describe(self.unlearner)["name"]
        clients = replace(experiment.clients, count=len(plan.clients) - len(self.gone))
        rounds = self.run.round if self.alone else self.remote.count
        if not self.alone and self.remote.steps is not None:
            clients = replace(clients, interactions=tuple(min(one, self.remote.steps) for one in clients.searches))
        title = f"{experiment.title or self.run.experiment}, unlearned"
        changed = replace(experiment, clients=clients, rounds=rounds, record_every=0, start=None, title=title)
        label = name or f"{self.run.experiment}-unlearned"
        folder = out / label / method / self.parent.name
        task = Task(folder, changed, label, method, {"method.name": method}, self.run.fold, self.run.seed)
        return task, plan.without(self.leaving, changed, f"{label}/{method}/{self.parent.name}")

    @property
    def start(self) -> Weights | None:
        """The initial weights of the remaining sites; None: as in the original run."""
        return load_weights(self.parent).weights if self.remote.continues else None

    def reshape(self, messages: Messages) -> Messages:
        """Updates of the remaining sites as the method uses them."""
        reshaped: Messages = self.remote.reshape(messages, self.case.clients)
        return reshaped

    def asked(self, folder: Path) -> dict[str, Any]:
        """The request, as run.json of the new run describes it."""
        return {
            "parent": os.path.relpath(self.parent, folder),
            "clients": list(self.gone),
            "method": describe(self.unlearner),
            "gone": list(self.gone),
            "rounds_trained": self.run.round,
        }

    def write_receipt(self, folder: Path, plan: Plan, state: State, searches: NDArray[np.int64]) -> None:
        """Write the receipt: what was done, in words and numbers, for both models."""
        unlearned = self.remote.outcome(state, state.round * int(searches.sum()))
        issue_receipt(self.parent, self.case, self.unlearner, unlearned, folder)

    def tell_those_who_left(self, send: Send, folder: Path) -> dict[str, str]:
        """Send the receipt to the leaving sites, with the plan that they know; return why sites did not accept it."""
        staying = {site.name: "remains" for site in self.plan.sites if site.name not in self.leaving}
        calls = SiteCalls(self.plan, send, PATIENCE, left_out=staying)
        why = Handshake(calls, self.plan.secure_sum is not None).greet_once(self.run.round)
        content = {"model": b"", "card": b"", "receipt": (folder / Receipt.FILE).read_bytes()}
        why |= calls.give(self.run.round, content)
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
    asked = departure.asked(task.folder)
    unlearn_recorded(departure.run, departure.case, departure.unlearner, task, asked, progress)
    return task.folder
