"""All that `import fedrank` offers: verbs and records, and methods under the name of their family.

This is the only list of them: type checkers read it, and so does `__init__.py`.
"""

from fedrank.data.build_log import build_log as build_log
from fedrank.data.catalog import Fold as Fold
from fedrank.data.catalog import load as load
from fedrank.data.catalog import load_files as load_files
from fedrank.data.collection import load_collection as load_collection
from fedrank.data.letor import read_letor as read_letor
from fedrank.data.logs import load_log as load_log
from fedrank.data.normalise import normalise as normalise
from fedrank.data.ranking import RankingData as RankingData
from fedrank.data.synthetic import synthetic as synthetic
from fedrank.experiments.report import plot as plot
from fedrank.experiments.report.write import write_report as write_report
from fedrank.experiments.runner.runs import load_runs as load_runs
from fedrank.experiments.runner.schedule import run_experiment as run_experiment
from fedrank.experiments.spec.source import read_experiment as read_experiment
from fedrank.experiments.spec.source import read_spec as read_spec
from fedrank.federated.clients import make_clients as make_clients
from fedrank.federated.federation import Federation as Federation
from fedrank.federated.heterogeneity import differences as differences
from fedrank.federated.quality import quality_by_client as quality_by_client
from fedrank.federated.round import personal_models as personal_models
from fedrank.federated.round import simulate as simulate
from fedrank.federated.round import simulate_arrivals as simulate_arrivals
from fedrank.ranking.click_models import ClickModel as ClickModel
from fedrank.ranking.learners import fine_tune as fine_tune
from fedrank.ranking.measures import Evaluator as Evaluator
from fedrank.ranking.measures import evaluate as evaluate
from fedrank.ranking.measures import measure as measure
from fedrank.ranking.measures import per_query as per_query
from fedrank.ranking.model import Model as Model
from fedrank.ranking.model import save_model as save_model
from fedrank.silo.silos import make_silos as make_silos
from fedrank.trees.export import export as export
from fedrank.trees.forest import Forest as Forest
from fedrank.trees.model_files import load_model as load_model
from fedrank.trees.training import train_and_merge as train_and_merge
from fedrank.types import Impression as Impression
from fedrank.types import Messages as Messages
from fedrank.types import SimulatedClients as SimulatedClients

__version__: str

def _family(name: str) -> object: ...

class learners:
    """What clients do with what they are shown."""

    from fedrank.ranking.evolution import Evolution as Evolution
    from fedrank.ranking.learners import LambdaRank as LambdaRank
    from fedrank.ranking.learners import LoggedClicks as LoggedClicks
    from fedrank.ranking.learners import Pdgd as Pdgd

class rankers:
    """Functions from features to a score."""

    from fedrank.ranking.rankers import Linear as Linear
    from fedrank.ranking.rankers import Mlp as Mlp
    from fedrank.ranking.rankers import Relu as Relu

class local_steps:
    """How clients that differ keep their local steps together."""

    from fedrank.federated.local import FedPer as FedPer
    from fedrank.federated.local import FedProx as FedProx
    from fedrank.federated.local import Scaffold as Scaffold

class aggregators:
    """How the server combines updates."""

    from fedrank.federated.aggregators import Apart as Apart
    from fedrank.federated.aggregators import Mean as Mean
    from fedrank.federated.robust import Bulyan as Bulyan
    from fedrank.federated.robust import GeometricMedian as GeometricMedian
    from fedrank.federated.robust import Krum as Krum
    from fedrank.federated.robust import Median as Median
    from fedrank.federated.robust import MultiKrum as MultiKrum
    from fedrank.federated.robust import NormBound as NormBound
    from fedrank.federated.robust import Reputation as Reputation
    from fedrank.federated.robust import TrimmedMean as TrimmedMean
    from fedrank.federated.robust import Trust as Trust

class server_steps:
    """How the server moves its model."""

    from fedrank.federated.server_optimizers import Adam as Adam
    from fedrank.federated.server_optimizers import Add as Add
    from fedrank.federated.server_optimizers import Momentum as Momentum

class arrivals:
    """What the server does with updates that arrive out of step."""

    from fedrank.federated.asynchronous import FedAsync as FedAsync
    from fedrank.federated.asynchronous import FedBuff as FedBuff
    from fedrank.federated.asynchronous import Sync as Sync

class attacks:
    """What malicious clients do."""

    from fedrank.attacks.poison import Fang as Fang
    from fedrank.attacks.poison import InnerProduct as InnerProduct
    from fedrank.attacks.poison import Lie as Lie
    from fedrank.attacks.poison import MinMax as MinMax
    from fedrank.attacks.poison import MinSum as MinSum
    from fedrank.attacks.poison import Noise as Noise
    from fedrank.attacks.poison import Opposite as Opposite
    from fedrank.attacks.poison import PoisonedClicks as PoisonedClicks
    from fedrank.attacks.poison import Promote as Promote
    from fedrank.attacks.poison import SignFlip as SignFlip

class mechanisms:
    """What protects updates."""

    from fedrank.privacy.mechanisms import EsRandomisedResponse as EsRandomisedResponse
    from fedrank.privacy.mechanisms import FpdgdPaper as FpdgdPaper
    from fedrank.privacy.mechanisms import Gaussian as Gaussian
    from fedrank.privacy.mechanisms import Laplace as Laplace

class places:
    """Who adds the noise."""

    from fedrank.privacy.mechanisms import AtServer as AtServer
    from fedrank.privacy.mechanisms import OnClient as OnClient
    from fedrank.privacy.mechanisms import SecureAggregation as SecureAggregation

class partitions:
    """Who holds which queries."""

    from fedrank.federated.partition import Attribute as Attribute
    from fedrank.federated.partition import Dirichlet as Dirichlet
    from fedrank.federated.partition import Iid as Iid
    from fedrank.federated.partition import Intents as Intents
    from fedrank.federated.partition import Labels as Labels
    from fedrank.federated.partition import Own as Own
    from fedrank.federated.partition import Shared as Shared
    from fedrank.federated.partition import Users as Users

class unlearners:
    """How a client is forgotten."""

    from fedrank.unlearning.methods import FedEraser as FedEraser
    from fedrank.unlearning.methods import FedRemove as FedRemove
    from fedrank.unlearning.methods import FineTune as FineTune
    from fedrank.unlearning.methods import GradientAscent as GradientAscent
    from fedrank.unlearning.methods import Retrain as Retrain

class silo_methods:
    """How organisations learn that keep their documents."""

    from fedrank.silo.training import CrossSilo as CrossSilo
    from fedrank.silo.training import Global as Global
    from fedrank.silo.training import Local as Local
    from fedrank.silo.training import LocalPlus as LocalPlus

class boosters:
    """How forests grow."""

    from fedrank.trees.boosters import Bagging as Bagging
    from fedrank.trees.boosters import Goss as Goss
    from fedrank.trees.boosters import Grower as Grower
    from fedrank.trees.boosters import Lambdamart as Lambdamart
    from fedrank.trees.boosters import Negsgb as Negsgb
    from fedrank.trees.boosters import SelectiveGrower as SelectiveGrower
    from fedrank.trees.boosters import Selgb as Selgb
    from fedrank.trees.boosters import Sgb as Sgb
    from fedrank.trees.boosters import Shortlist as Shortlist

class splits:
    """Who holds which queries, where forests are merged."""

    from fedrank.trees.splits import Categories as Categories
    from fedrank.trees.splits import Dealt as Dealt
    from fedrank.trees.splits import Sites as Sites
    from fedrank.trees.splits import Topics as Topics

class mergers:
    """How several forests become one model."""

    from fedrank.trees.histograms import Histograms as Histograms
    from fedrank.trees.mergers import Alone as Alone
    from fedrank.trees.mergers import Pooled as Pooled
    from fedrank.trees.mergers import Stacking as Stacking
    from fedrank.trees.mergers import WeightedSum as WeightedSum
    from fedrank.trees.together import Bagged as Bagged
    from fedrank.trees.together import Cyclic as Cyclic
