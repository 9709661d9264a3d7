"""Federated learning to rank: train one ranker together, without moving documents, queries or clicks.

Names are imported when they are first used, so that `import fedrank` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedrank.data.catalog import Fold as Fold
    from fedrank.data.catalog import load as load
    from fedrank.data.catalog import load_files as load_files
    from fedrank.data.letor import read_letor as read_letor
    from fedrank.data.normalise import normalise as normalise
    from fedrank.data.ranking import RankingData as RankingData
    from fedrank.data.synthetic import synthetic as synthetic
    from fedrank.experiment.report import write_report as write_report
    from fedrank.experiment.schedule import run_experiment as run_experiment
    from fedrank.experiment.spec import Experiment as Experiment
    from fedrank.experiment.spec import read_experiment as read_experiment
    from fedrank.experiment.store import load_runs as load_runs
    from fedrank.federate.aggregate import Apart as Apart
    from fedrank.federate.aggregate import Mean as Mean
    from fedrank.federate.clients import make_clients as make_clients
    from fedrank.federate.differences import differences as differences
    from fedrank.federate.partition import Attribute as Attribute
    from fedrank.federate.partition import Dirichlet as Dirichlet
    from fedrank.federate.partition import Iid as Iid
    from fedrank.federate.partition import Intents as Intents
    from fedrank.federate.partition import Labels as Labels
    from fedrank.federate.partition import Own as Own
    from fedrank.federate.partition import Shared as Shared
    from fedrank.federate.quality import quality_by_client as quality_by_client
    from fedrank.federate.round import Federation as Federation
    from fedrank.federate.round import federated_round as federated_round
    from fedrank.federate.round import personal_models as personal_models
    from fedrank.federate.round import simulate as simulate
    from fedrank.federate.server import Adam as Adam
    from fedrank.federate.server import Add as Add
    from fedrank.federate.server import Momentum as Momentum
    from fedrank.rank.evolution import Evolution as Evolution
    from fedrank.rank.learners import LambdaRank as LambdaRank
    from fedrank.rank.learners import Pdgd as Pdgd
    from fedrank.rank.learners import fine_tune as fine_tune
    from fedrank.rank.measures import Evaluator as Evaluator
    from fedrank.rank.measures import Measure as Measure
    from fedrank.rank.measures import evaluate as evaluate
    from fedrank.rank.measures import measure as measure
    from fedrank.rank.measures import per_query as per_query
    from fedrank.rank.model import Model as Model
    from fedrank.rank.model import load_model as load_model
    from fedrank.rank.model import save_model as save_model
    from fedrank.rank.rankers import Linear as Linear
    from fedrank.rank.rankers import Mlp as Mlp
    from fedrank.rank.rankers import Relu as Relu
    from fedrank.rank.users import USERS as USERS
    from fedrank.rank.users import User as User
    from fedrank.types import Arrivals as Arrivals
    from fedrank.types import Clients as Clients

_HOMES = {
    "Adam": "federate.server",
    "Add": "federate.server",
    "Apart": "federate.aggregate",
    "Arrivals": "types",
    "Attribute": "federate.partition",
    "Clients": "types",
    "Dirichlet": "federate.partition",
    "Evaluator": "rank.measures",
    "Evolution": "rank.evolution",
    "Experiment": "experiment.spec",
    "Federation": "federate.round",
    "Fold": "data.catalog",
    "Iid": "federate.partition",
    "Intents": "federate.partition",
    "Labels": "federate.partition",
    "LambdaRank": "rank.learners",
    "Linear": "rank.rankers",
    "Mean": "federate.aggregate",
    "Measure": "rank.measures",
    "Mlp": "rank.rankers",
    "Model": "rank.model",
    "Momentum": "federate.server",
    "Own": "federate.partition",
    "Pdgd": "rank.learners",
    "RankingData": "data.ranking",
    "Relu": "rank.rankers",
    "Shared": "federate.partition",
    "USERS": "rank.users",
    "User": "rank.users",
    "differences": "federate.differences",
    "evaluate": "rank.measures",
    "federated_round": "federate.round",
    "fine_tune": "rank.learners",
    "load": "data.catalog",
    "load_files": "data.catalog",
    "load_model": "rank.model",
    "load_runs": "experiment.store",
    "make_clients": "federate.clients",
    "measure": "rank.measures",
    "normalise": "data.normalise",
    "per_query": "rank.measures",
    "personal_models": "federate.round",
    "quality_by_client": "federate.quality",
    "read_experiment": "experiment.spec",
    "read_letor": "data.letor",
    "run_experiment": "experiment.schedule",
    "save_model": "rank.model",
    "simulate": "federate.round",
    "synthetic": "data.synthetic",
    "write_report": "experiment.report",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedrank' has no attribute {name!r}")
    return getattr(import_module(f"fedrank.{_HOMES[name]}"), name)
