"""The frozen tasks: which specs they are, what a submission may set in them, and which data they must have.

A task is a built-in spec whose variants are its cells: `generated-...` on data that fedrank generates, others on public
data sets below FEDRANK_DATA. A change to a task needs a new version, since results of two versions cannot be compared.
"""

from __future__ import annotations

import copy
import hashlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fedrank.data.collection import load_collection
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.spec.experiment import Experiment
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.grid import Grid, read_tables
from fedrank.experiments.spec.source import builtin_specs, read_spec
from fedrank.toml import TomlTable

VERSION = "1"
CLIENTS = ("learner", "aggregator", "server", "local")
# Task: the keys that a submission may set. Secure aggregation shows sums only, so "private" has no aggregator.
SETTINGS: dict[str, tuple[str, ...]] = {
    "online": CLIENTS,
    "noniid": CLIENTS,
    "poisoned": CLIENTS,
    "private": ("learner", "server", "local", "mechanism"),
    "unlearning": ("unlearner",),
    "silos": ("method",),
}
SKYLINE = "skyline"  # name of the task, and of the row, of the true relevance labels
GENERATED = "generated"
TRIED = 8  # settings that a submission may have tried before it is frozen, equal for all
LEAVING = 0  # the client that "unlearning" forgets
UNLEARNED = "unlearned"  # folder of the models without that client


@dataclass(frozen=True)
class Frozen:
    """What was measured and fixed when the tasks were frozen."""

    data: Mapping[str, str]  # data set/fold -> SHA-256 of its content
    smallest: Mapping[str, float]  # task/cell -> smallest difference that a test shows in four of five cases


@cache
def frozen() -> Frozen:
    tables = tomllib.loads(resources.files(__package__).joinpath("frozen.toml").read_text("utf-8"))
    return Frozen(tables["data"], tables["smallest"])


@cache
def tasks_digest() -> str:
    """SHA-256 of all task files."""
    found = hashlib.sha256()
    for task in (*SETTINGS, SKYLINE):
        found.update(f"{task}\n".encode() + builtin_specs()[_spec(task)].read_bytes())
    return found.hexdigest()


def _spec(task: str) -> str:
    return f"bench-{VERSION}/{task}"


@cache
def _tables(task: str, short: bool) -> TomlTable:
    return read_spec(_spec(task), quick=short).tables


def cells_of(task: str, short: bool = False) -> list[str]:
    return list(_tables(task, short)["variants"])


def data_of(cell: str) -> tuple[str, str]:
    """The data set of a cell, and what else distinguishes it from others of its task."""
    data, _, rest = cell.partition("-")
    return data, rest


def task_grid(
    task: str,
    settings: Mapping[str, TomlTable],  # cell -> keys of the submission
    short: bool = False,
    seeds: Sequence[int] = (),  # instead of the public ones
    full_check: bool = True,
) -> Grid[Any]:
    """The experiment of a submission in a task, with one variant for each of these cells."""
    tables = copy.deepcopy(_tables(task, short))
    tables.pop("quick", None)
    own = {cell: {key: value for key, value in keys.items() if key != "unlearner"} for cell, keys in settings.items()}
    tables["variants"] = {cell: tables["variants"][cell] | keys for cell, keys in own.items()}
    if seeds:
        tables["seeds"] = list(seeds)
    return read_tables(tables, full_check=full_check)


def data_digests(grids: Iterable[Grid[Any]]) -> dict[str, str]:
    """SHA-256 of the content of all data sets and folds that are read, independent of how files are compressed."""
    found: dict[str, str] = {}
    for grid in grids:
        for variant in grid.variants:
            for fold in variant.experiment.data.folds:
                key = f"{variant.experiment.data.name}/{fold}"
                found[key] = found.get(key) or _content(variant.experiment, fold)
    return found


def _content(experiment: Experiment, fold: int) -> str:
    found = hashlib.sha256()
    if isinstance(experiment, FederatedExperiment):
        parts = load_fold(experiment.data, fold)
        for part in (parts.train, parts.validation, parts.test):
            if part is not None:
                for array in (part.features.astype("<f4"), part.grades, part.offsets.astype("<i8")):
                    found.update(array.tobytes())
                found.update("\n".join(part.query_ids.tolist()).encode())
        return found.hexdigest()
    collection = load_collection(experiment.data.name)
    documents = collection.documents
    found.update(
        repr([collection.query_ids, collection.queries, documents.ids, documents.title, documents.text]).encode()
    )
    for array in (collection.offsets.astype("<i8"), collection.judged.astype("<i8"), collection.grades):
        found.update(array.tobytes())
    return found.hexdigest()


def check_data(digests: Mapping[str, str]) -> None:
    """Raise an error if data are not those that the tasks were frozen with."""
    for key, digest in digests.items():
        if frozen().data.get(key) != digest:
            name, _, fold = key.partition("/")
            raise ValueError(
                f"changed data: {name}, fold {fold}, does not have the content that FOLTR-Bench {VERSION} was frozen "
                "with; restore the published files, or update fedrank"
            )
