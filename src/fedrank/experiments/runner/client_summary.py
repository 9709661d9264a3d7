"""Who holds what: the clients that an experiment makes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrank.experiments.runner.data import clients_of, load_fold
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.grid import Grid, Variant
from fedrank.federated.heterogeneity import Differences, differences
from fedrank.toml import shown
from fedrank.types import SimulatedClients

MAX_VARIANTS = 8
MEANINGS = {
    "grades, from all": "how far a client's shares of grades are from those of all clients; 0 alike, 1 nothing alike",
    "features, from all": "how far its features are from those of all, in standard deviations (Wasserstein)",
    "queries in common": "of the queries that either of two clients has, the share that both have",
    "judged differently": "of what both hold and one finds relevant, the share that the other grades differently",
}


@dataclass(frozen=True)
class Group:
    """Clients that one variant, or several, make."""

    variants: tuple[str, ...]  # names of all variants with these clients
    how: str  # the settings that made them
    found: Differences

    @property
    def title(self) -> str:
        names = ", ".join(self.variants[:3])
        return names if len(self.variants) <= 3 else f"{names} and {len(self.variants) - 3} more"


@dataclass(frozen=True)
class ClientSummary:
    """The clients of an experiment, on one fold with one seed."""

    data: str
    fold: int
    seed: int
    groups: tuple[Group, ...]
    left_out: int  # further groups, beyond MAX_VARIANTS


def describe_clients(
    grid: Grid[FederatedExperiment], fold: int | None = None, seed: int | None = None
) -> ClientSummary:
    """What every variant's clients hold; variants with the same clients are described together.

    The first fold and seed of the grid are taken unless others are given.
    """
    first = grid.repeats()[0]
    fold, seed = first[0] if fold is None else fold, first[1] if seed is None else seed
    alike: dict[str, list[Variant[FederatedExperiment]]] = {}
    for variant in grid.variants:
        experiment = variant.experiment
        # Everything that decides who holds what; learners and servers do not.
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
    """The settings behind some clients, in one line."""
    partition = describe(experiment.clients.partition)
    people = experiment.clients.people
    searches = np.unique(clients.interactions // people).tolist()
    brings = f"{searches[0]}" if len(searches) == 1 else f"{searches[0]} to {searches[-1]}"
    many = "1 client" if len(clients) == 1 else f"{len(clients):,} clients"
    each = "" if people == 1 else f" of {people:,} people each"
    return f"{many}{each}, partition {_short(partition)}, {brings} searches a round"


def _short(table: dict[str, Any]) -> str:
    settings = [
        f"{key} = {_short(value) if isinstance(value, dict) else shown(value)}"
        for key, value in table.items()
        if key != "name"
    ]
    return f"{table['name']} ({', '.join(settings)})" if settings else str(table["name"])
