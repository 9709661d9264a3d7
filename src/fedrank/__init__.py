"""Federated learning to rank: train one ranker together, without moving documents, queries or clicks.

Names are imported when they are first used, so that `import fedrank` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedrank.attack.poison import Fang as Fang
    from fedrank.attack.poison import InnerProduct as InnerProduct
    from fedrank.attack.poison import Lie as Lie
    from fedrank.attack.poison import MinMax as MinMax
    from fedrank.attack.poison import MinSum as MinSum
    from fedrank.attack.poison import Noise as Noise
    from fedrank.attack.poison import Opposite as Opposite
    from fedrank.attack.poison import PoisonedClicks as PoisonedClicks
    from fedrank.attack.poison import Promote as Promote
    from fedrank.attack.poison import SignFlip as SignFlip
    from fedrank.attack.poison import promotion as promotion
    from fedrank.data.build_log import build_log as build_log
    from fedrank.data.catalog import Fold as Fold
    from fedrank.data.catalog import load as load
    from fedrank.data.catalog import load_files as load_files
    from fedrank.data.collection import Collection as Collection
    from fedrank.data.collection import load_collection as load_collection
    from fedrank.data.letor import read_letor as read_letor
    from fedrank.data.logs import load_log as load_log
    from fedrank.data.normalise import normalise as normalise
    from fedrank.data.published_log import convert_published as convert_published
    from fedrank.data.ranking import RankingData as RankingData
    from fedrank.data.synthetic import synthetic as synthetic
    from fedrank.data.text import Tokeniser as Tokeniser
    from fedrank.experiment.federated_spec import Experiment as Experiment
    from fedrank.experiment.federated_spec import read_experiment as read_experiment
    from fedrank.experiment.report import write_report as write_report
    from fedrank.experiment.schedule import run_experiment as run_experiment
    from fedrank.experiment.spec import read_question as read_question
    from fedrank.experiment.store import load_runs as load_runs
    from fedrank.federate.aggregate import Apart as Apart
    from fedrank.federate.aggregate import Mean as Mean
    from fedrank.federate.asynchronous import FedAsync as FedAsync
    from fedrank.federate.asynchronous import FedBuff as FedBuff
    from fedrank.federate.asynchronous import Sync as Sync
    from fedrank.federate.asynchronous import simulate_arrivals as simulate_arrivals
    from fedrank.federate.clients import make_clients as make_clients
    from fedrank.federate.differences import differences as differences
    from fedrank.federate.forests import train_and_merge as train_and_merge
    from fedrank.federate.merge import Stacking as Stacking
    from fedrank.federate.partition import Attribute as Attribute
    from fedrank.federate.partition import Dirichlet as Dirichlet
    from fedrank.federate.partition import Iid as Iid
    from fedrank.federate.partition import Intents as Intents
    from fedrank.federate.partition import Labels as Labels
    from fedrank.federate.partition import Own as Own
    from fedrank.federate.partition import Shared as Shared
    from fedrank.federate.partition import Users as Users
    from fedrank.federate.quality import quality_by_client as quality_by_client
    from fedrank.federate.robust import Bulyan as Bulyan
    from fedrank.federate.robust import GeometricMedian as GeometricMedian
    from fedrank.federate.robust import Krum as Krum
    from fedrank.federate.robust import Median as Median
    from fedrank.federate.robust import MultiKrum as MultiKrum
    from fedrank.federate.robust import NormBound as NormBound
    from fedrank.federate.robust import Reputation as Reputation
    from fedrank.federate.robust import TrimmedMean as TrimmedMean
    from fedrank.federate.robust import Trust as Trust
    from fedrank.federate.round import Federation as Federation
    from fedrank.federate.round import federated_round as federated_round
    from fedrank.federate.round import personal_models as personal_models
    from fedrank.federate.round import simulate as simulate
    from fedrank.federate.server import Adam as Adam
    from fedrank.federate.server import Add as Add
    from fedrank.federate.server import Momentum as Momentum
    from fedrank.federate.splits import Categories as Categories
    from fedrank.federate.splits import Dealt as Dealt
    from fedrank.federate.splits import Topics as Topics
    from fedrank.protect.mechanisms import AtServer as AtServer
    from fedrank.protect.mechanisms import EsRandomisedResponse as EsRandomisedResponse
    from fedrank.protect.mechanisms import FpdgdPaper as FpdgdPaper
    from fedrank.protect.mechanisms import Gaussian as Gaussian
    from fedrank.protect.mechanisms import Laplace as Laplace
    from fedrank.protect.mechanisms import OnClient as OnClient
    from fedrank.protect.mechanisms import SecureSum as SecureSum
    from fedrank.rank.evolution import Evolution as Evolution
    from fedrank.rank.export import export as export
    from fedrank.rank.forest import Forest as Forest
    from fedrank.rank.forest import load_forest as load_forest
    from fedrank.rank.forest import save_forest as save_forest
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
    from fedrank.rank.trees import Bagging as Bagging
    from fedrank.rank.trees import Goss as Goss
    from fedrank.rank.trees import Lambdamart as Lambdamart
    from fedrank.rank.trees import Negsgb as Negsgb
    from fedrank.rank.trees import Selgb as Selgb
    from fedrank.rank.trees import Sgb as Sgb
    from fedrank.rank.users import USERS as USERS
    from fedrank.rank.users import User as User
    from fedrank.silo.rtk import ReverseTopK as ReverseTopK
    from fedrank.silo.silos import SilosRule as SilosRule
    from fedrank.silo.silos import make_silos as make_silos
    from fedrank.silo.sketch import Sketcher as Sketcher
    from fedrank.silo.training import CrossSilo as CrossSilo
    from fedrank.silo.training import LocalPlus as LocalPlus
    from fedrank.types import Arrivals as Arrivals
    from fedrank.types import Clients as Clients
    from fedrank.unlearn.history import History as History
    from fedrank.unlearn.history import HistoryWriter as HistoryWriter
    from fedrank.unlearn.methods import Case as Case
    from fedrank.unlearn.methods import FedEraser as FedEraser
    from fedrank.unlearn.methods import FedRemove as FedRemove
    from fedrank.unlearn.methods import FineTune as FineTune
    from fedrank.unlearn.methods import GradientAscent as GradientAscent
    from fedrank.unlearn.methods import Retrain as Retrain

_HOMES = {
    "Adam": "federate.server",
    "Add": "federate.server",
    "Apart": "federate.aggregate",
    "Arrivals": "types",
    "AtServer": "protect.mechanisms",
    "Attribute": "federate.partition",
    "Bagging": "rank.trees",
    "Bulyan": "federate.robust",
    "Case": "unlearn.methods",
    "Categories": "federate.splits",
    "Clients": "types",
    "Collection": "data.collection",
    "CrossSilo": "silo.training",
    "Dealt": "federate.splits",
    "Dirichlet": "federate.partition",
    "EsRandomisedResponse": "protect.mechanisms",
    "Evaluator": "rank.measures",
    "Evolution": "rank.evolution",
    "Experiment": "experiment.federated_spec",
    "Fang": "attack.poison",
    "FedAsync": "federate.asynchronous",
    "FedBuff": "federate.asynchronous",
    "FedEraser": "unlearn.methods",
    "FedRemove": "unlearn.methods",
    "Federation": "federate.round",
    "FineTune": "unlearn.methods",
    "Fold": "data.catalog",
    "Forest": "rank.forest",
    "FpdgdPaper": "protect.mechanisms",
    "Gaussian": "protect.mechanisms",
    "GeometricMedian": "federate.robust",
    "Goss": "rank.trees",
    "GradientAscent": "unlearn.methods",
    "History": "unlearn.history",
    "HistoryWriter": "unlearn.history",
    "Iid": "federate.partition",
    "InnerProduct": "attack.poison",
    "Intents": "federate.partition",
    "Krum": "federate.robust",
    "Labels": "federate.partition",
    "LambdaRank": "rank.learners",
    "Lambdamart": "rank.trees",
    "Laplace": "protect.mechanisms",
    "Lie": "attack.poison",
    "Linear": "rank.rankers",
    "LocalPlus": "silo.training",
    "Mean": "federate.aggregate",
    "Measure": "rank.measures",
    "Median": "federate.robust",
    "MinMax": "attack.poison",
    "MinSum": "attack.poison",
    "Mlp": "rank.rankers",
    "Model": "rank.model",
    "Momentum": "federate.server",
    "MultiKrum": "federate.robust",
    "Negsgb": "rank.trees",
    "Noise": "attack.poison",
    "NormBound": "federate.robust",
    "OnClient": "protect.mechanisms",
    "Opposite": "attack.poison",
    "Own": "federate.partition",
    "Pdgd": "rank.learners",
    "PoisonedClicks": "attack.poison",
    "Promote": "attack.poison",
    "RankingData": "data.ranking",
    "Relu": "rank.rankers",
    "Reputation": "federate.robust",
    "Retrain": "unlearn.methods",
    "ReverseTopK": "silo.rtk",
    "SecureSum": "protect.mechanisms",
    "Selgb": "rank.trees",
    "Sgb": "rank.trees",
    "Shared": "federate.partition",
    "SignFlip": "attack.poison",
    "SilosRule": "silo.silos",
    "Sketcher": "silo.sketch",
    "Stacking": "federate.merge",
    "Sync": "federate.asynchronous",
    "Tokeniser": "data.text",
    "Topics": "federate.splits",
    "TrimmedMean": "federate.robust",
    "Trust": "federate.robust",
    "USERS": "rank.users",
    "User": "rank.users",
    "Users": "federate.partition",
    "build_log": "data.build_log",
    "convert_published": "data.published_log",
    "differences": "federate.differences",
    "evaluate": "rank.measures",
    "export": "rank.export",
    "federated_round": "federate.round",
    "fine_tune": "rank.learners",
    "load": "data.catalog",
    "load_collection": "data.collection",
    "load_files": "data.catalog",
    "load_forest": "rank.forest",
    "load_log": "data.logs",
    "load_model": "rank.model",
    "load_runs": "experiment.store",
    "make_clients": "federate.clients",
    "make_silos": "silo.silos",
    "measure": "rank.measures",
    "normalise": "data.normalise",
    "per_query": "rank.measures",
    "personal_models": "federate.round",
    "promotion": "attack.poison",
    "quality_by_client": "federate.quality",
    "read_experiment": "experiment.federated_spec",
    "read_letor": "data.letor",
    "read_question": "experiment.spec",
    "run_experiment": "experiment.schedule",
    "save_forest": "rank.forest",
    "save_model": "rank.model",
    "simulate": "federate.round",
    "simulate_arrivals": "federate.asynchronous",
    "synthetic": "data.synthetic",
    "train_and_merge": "federate.forests",
    "write_report": "experiment.report",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedrank' has no attribute {name!r}")
    return getattr(import_module(f"fedrank.{_HOMES[name]}"), name)
