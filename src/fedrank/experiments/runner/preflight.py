"""Checks before the first run: unreadable data, impossible clients, missing packages.

Each of these would make every run of a variant fail, possibly hours later.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from fedrank.experiments.runner.data import clients_of, evaluation_queries, load_fold
from fedrank.experiments.runner.failures import own_line
from fedrank.experiments.runner.federated import start_model
from fedrank.experiments.runner.privacy import guarantees_of
from fedrank.experiments.runner.silo import silo_card
from fedrank.experiments.runner.writer import Task
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.federated.federation import Federation
from fedrank.federated.robust import RememberingAggregator
from fedrank.files import error_message
from fedrank.privacy.mechanisms import SecureAggregation
from fedrank.privacy.secure_messages import primitives
from fedrank.seeds import rng_for
from fedrank.trees.forest import lightgbm
from fedrank.trees.tuning import optuna
from fedrank.types import Messages, has_trait

EXPLAINED = (ValueError, OSError, ImportError)
MAX_CLIENTS = 2000  # maximum for trying an aggregator; with more clients, none needs more


def check_before(tasks: Sequence[Task]) -> None:
    """Raise an error for runs that cannot succeed before any of them begins: each cause once, with its variants.

    Each variant is checked with its first fold and seed; the data of all folds are read. Failures in external methods
    are left to the run, whose folder will contain the traceback.
    """
    found: dict[str, list[str]] = {}
    first: dict[str, Task] = {}
    read: set[Any] = set()
    for task in tasks:
        begins = first.setdefault(task.variant, task) is task
        key = (task.experiment.data, task.fold)
        if not begins and key in read:
            continue
        read.add(key)
        problem = _problem(task, begins)
        if problem and task.variant not in found.get(problem, ()):
            found.setdefault(problem, []).append(task.variant)
    if found:
        variants = len(first)
        raise ValueError("\n".join(_message(problem, names, variants) for problem, names in found.items()))


def _message(problem: str, names: Sequence[str], variants: int) -> str:
    if len(names) == variants:
        return f"{problem}; nothing was run"
    which = f"variant {names[0]}" if len(names) == 1 else f"{len(names):,} variants, such as {names[0]}"
    return f"{which}: {problem}; nothing was run"


def _problem(task: Task, begins: bool) -> str:
    """Why this run could not succeed; empty if no reason is known."""
    experiment = task.experiment
    try:
        if isinstance(experiment, FederatedExperiment):
            _check_federated(experiment, task, begins)
        elif isinstance(experiment, TreesExperiment):
            _check_trees(experiment, task, begins)
        elif isinstance(experiment, SiloExperiment) and begins:
            silo_card(experiment)  # whether its releases can be priced, and the budget allows them
    except EXPLAINED as problem:
        return "" if own_line(problem, experiment) else error_message(problem)
    except Exception as problem:
        if own_line(problem, experiment):
            return ""
        raise
    return ""


def _check_federated(experiment: FederatedExperiment, task: Task, begins: bool) -> None:
    if experiment.data.collection is not None:
        return  # its features are computed by the first run
    evaluation_queries(load_fold(experiment.data, task.fold), experiment.data)
    if not begins:
        return
    clients = clients_of(experiment, task.fold, task.seed)
    features = clients.data.features.shape[1]
    ranker, start = experiment.learner.ranker, start_model(experiment, clients)
    if start is not None and start.size != ranker.size(features):
        raise ValueError(
            f"start = {experiment.start!r} has {start.size} parameters, but {type(ranker).__name__} on {features} "
            f"features has {ranker.size(features)}; start from a model with the same features"
        )
    _check_rule(experiment.federation(attacked=experiment.clients.malicious > 0), len(clients))
    placement = getattr(experiment.mechanism, "placement", None)
    if isinstance(placement, SecureAggregation) and placement.sum == "protocol":
        primitives()  # raises an error if the package for secure aggregation is missing
    for guarantee in guarantees_of(experiment, features):
        guarantee.epsilon(1, experiment.privacy.delta)  # raises an error if the package for accounting is missing


def _check_rule(federation: Federation, clients: int) -> None:
    """Whether a built-in aggregator has enough clients, by trying it on zero updates."""
    rule, present = federation.aggregator, int(federation.cohort(clients))
    if not has_trait(rule, "robust") or has_trait(federation.mechanism, "adds up") or present > MAX_CLIENTS:
        return
    ids = np.arange(present)
    baseline = np.zeros((present, 1), dtype=np.float32)
    messages = Messages(baseline, np.ones(present, dtype=np.int64), ids, np.zeros(1), 1, root=baseline[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the notes of the run say it
        if has_trait(rule, "remembers"):
            remembering = cast(RememberingAggregator, rule)
            remembering(messages, remembering.first(clients, 1))
        else:
            rule(messages)


def _check_trees(experiment: TreesExperiment, task: Task, begins: bool) -> None:
    lightgbm()
    if experiment.tune:
        optuna()
    asked = experiment.unscaled
    fold = load_fold(asked, task.fold)
    evaluation_queries(fold, asked)
    if begins and experiment.split is not None:
        experiment.split(fold, rng_for(task.seed, "split"))
