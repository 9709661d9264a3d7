"""A summary of the clients of an experiment: how many there are, and what data they hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrank.display import count_of, listed
from fedrank.experiments.runner.data import clients_of, load_fold
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.grid import Grid, Variant
from fedrank.federated.heterogeneity import Differences, differences
from fedrank.toml import shown
from fedrank.types import SimulatedClients

MAX_VARIANTS = 8
MEANINGS = {
    "grades, from all": "distance of its label distribution from that of all (0: equal, 1: disjoint)",  # prose: ok
    "features, from all": "distance of its features from those of all clients, in standard deviations (Wasserstein)",
    "queries in common": "fraction of the queries of two clients that both have",
    "judged differently": "fraction of shared documents, relevant for one client, that the other labels differently",
}


@dataclass(frozen=True)
class Group:
    """The clients of one or several variants."""

    variants: tuple[str, ...]  # all variants with these clients
    how: str  # their settings
    found: Differences

    @property
    def title(self) -> str:
        return listed(self.variants, 3)


@dataclass(frozen=True)
class ClientSummary:
    """The clients of an experiment, with one fold and seed."""

    data: str
    fold: int
    seed: int
    groups: tuple[Group, ...]
    left_out: int  # groups beyond MAX_VARIANTS


def describe_clients(
    grid: Grid[FederatedExperiment], fold: int | None = None, seed: int | None = None
) -> ClientSummary:
    """Describe the data of every variant's clients; variants with the same clients are described together.

    By default, the first fold and seed of the grid are used.
    """
    first = grid.repeats()[0]
    fold, seed = first[0] if fold is None else fold, first[1] if seed is None else seed
    alike: dict[str, list[Variant[FederatedExperiment]]] = {}
    for variant in grid.variants:
        experiment = variant.experiment
        # The settings that determine the data of clients; learners and servers do not.
        made_of = replace(experiment.clients, participation=1.0, malicious=0)
        alike.setdefault(repr((experiment.data, made_of)), []).append(variant)
    groups = []
    for variants in list(alike.values())[:MAX_VARIANTS]:
        experiment = variants[0].experiment
        clients = clients_of(experiment, fold, seed)
        names = tuple(variant.name for variant in variants)
        groups.append(Group(names, _how(experiment, clients), differences(clients, seed)))
    name = load_fold(grid.base.data, fold).name
    return ClientSummary(name, fold, seed, tuple(groups), max(0, len(alike) - MAX_VARIANTS))


def _how(experiment: FederatedExperiment, clients: SimulatedClients) -> str:
    """The settings of some clients, in one line."""
    partition = describe(experiment.clients.partition)
    people = experiment.clients.people
    searches = np.unique(clients.interactions // people).tolist()
    brings = f"{searches[0]}" if len(searches) == 1 else f"{searches[0]} to {searches[-1]}"
    each = "" if people == 1 else f" of {people:,} people each"
    return f"{count_of(len(clients), 'client')}{each}, partition {_short(partition)}, {brings} interactions per round"


def _short(table: dict[str, Any]) -> str:
    settings = [
        f"{key} = {_short(value) if isinstance(value, dict) else shown(value)}"
        for key, value in table.items()
        if key != "name"
    ]
    return f"{table['name']} ({', '.join(settings)})" if settings else str(table["name"])
