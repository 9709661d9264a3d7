"""The data and the clients of an experiment."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.data.catalog import Fold, load, load_files
from fedrank.data.feature_sets import default_normalisation, feature_facts, fixed_ranges, log_features
from fedrank.data.live_ranking import collection_fold
from fedrank.data.log_fold import TEST_SHARE, log_fold
from fedrank.data.logs import load_log
from fedrank.data.ranking import RankingData
from fedrank.experiments.runner.position_bias import corrected_clients, corrected_data
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.sections import DataSpec
from fedrank.federated.clients import make_clients
from fedrank.ranking.propensity import OWN, Bias
from fedrank.types import SimulatedClients


def load_fold(data: DataSpec, fold: int, deployed: bool = False) -> Fold:
    """The fold of a spec's [data]; cached, because runs with different seeds share it.

    A coordinator of sites (`deployed`) may have no data: its fold has features and no queries.
    """
    if data.at_sites and deployed:
        return fold_without_data(data)
    if data.at_sites:
        raise ValueError(
            f"data: only sites have data ({data.features!r} names their features, and no log is set); run it between "
            "sites with `fedrank deploy run`, on this machine with --local 3 --log A --log B --log C, or set data.log "
            "to simulate with one log"
        )
    if data.log is not None:
        share = TEST_SHARE if data.test_share is None else data.test_share
        source = None if data.propensities == OWN else data.propensities  # for those of each client, see `clients_of`
        return _load_log(data.log, data.users, share, data.normalise, data.described_by, source, data.bias)
    if data.collection is not None:
        return _load_collection(data.collection, data.parts or 1, fold, data.described_by, data.normalise)
    if data.name is not None:
        return _load_named(data.name, fold, data.normalise)
    # A file that changes during the process, as in a notebook, is read again.
    now = tuple((status.st_mtime_ns, status.st_size) for status in map(Path.stat, data.files().values()))
    return _load_files(now, data.train, data.test, data.validation, data.normalise or "none", data.features)


def fold_without_data(data: DataSpec) -> Fold:
    """The fold of a coordinator without data: no queries, and features as the spec names them."""
    assert isinstance(data.features, str)
    names, normalised, ranges = feature_facts(data.features)
    normalised = data.normalise or normalised
    ranges = ranges if normalised == "global" else None
    none = np.zeros((0, len(names)), np.float32), np.empty(0, np.int8), np.zeros(1, np.int64), np.empty(0, np.str_)
    made = RankingData(*none, top_grade=1, feature_names=names, normalised=normalised, ranges=ranges)
    return Fold(made, None, made, f"{data.features} at sites", 1)


@lru_cache(maxsize=2)
def _load_log(
    folder: str,
    users: int | None,
    share: float,
    normalise: str | None,
    features: str,
    propensities: str | None,
    bias: Bias,
) -> Fold:
    """The fold of a search log, with corrected clicks. Its features must be the requested ones, if any."""
    log = load_log(folder)
    log.check_retention()
    has = log_features(log)
    if features and features != has:
        raise ValueError(
            f"data.features: {folder} has the features {has}, not {features}; rebuild it with `fedrank data build "
            f"--features {features}`, or remove data.features"
        )
    fold = log_fold(folder, users, share, normalise or default_normalisation(has), fixed_ranges(has))
    if propensities is None:
        return fold
    train, notes = corrected_data(fold.train, log, propensities, bias)
    return replace(fold, train=train, notes=(*fold.notes, *notes))


@lru_cache(maxsize=2)
def _load_files(
    now: tuple[tuple[int, int], ...], train: str, test: str, validation: str | None, how: str, features: int | None
) -> Fold:
    return load_files(train, test, validation, how, features=features)


_load_named = lru_cache(maxsize=2)(load)
_load_collection = lru_cache(maxsize=5)(collection_fold)


def clear_log_cache() -> None:
    """Make the next access read logs again, after one has changed on disk."""
    _load_log.cache_clear()


def clear_data_cache() -> None:
    """Release cached data that other processes will read themselves."""
    for cached in (_load_named, _load_files, _load_log, _load_collection):
        cached.cache_clear()


def evaluation_queries(fold: Fold, data: DataSpec) -> RankingData:
    """The queries on which models are evaluated."""
    queries = fold.test if data.evaluate_on == "test" else fold.validation
    if queries is None:
        raise ValueError(f"{fold.name} has no validation queries to tune on; set data.validation to a file")
    return queries


def described(name: str, train_queries: int, test_queries: int, data: RankingData) -> dict[str, Any]:
    """The description of the data in run.json."""
    return {
        "name": name,
        "train_queries": train_queries,
        "test_queries": test_queries,
        "features": data.features.shape[1],
        "normalised": data.normalised,
        "top_grade": data.top_grade,
    }


def clients_of(experiment: FederatedExperiment, fold: int, seed: int) -> SimulatedClients:
    """The clients of an experiment."""
    clients = make_clients(
        load_fold(experiment.data, fold).train,
        experiment.clients.count,
        partition=experiment.clients.partition,
        click_model=experiment.clients.click_models,
        interactions=experiment.clients.interactions,
        click_model_per=experiment.clients.click_model_per,
        malicious=experiment.clients.malicious,
        malicious_click_model=getattr(experiment.attack, "click_model", None),
        people=experiment.clients.people,
        seed=seed,
    )
    data = experiment.data
    if data.log is None or data.propensities != OWN:
        return clients
    return corrected_clients(clients, load_log(data.log), data.bias)
