"""The public interface of `fedrank`: functions and records, and methods grouped by family.

This is the only list of them; type checkers and `__init__.py` read it.
"""

from fedrank import testing as testing
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
from fedrank.federated.asynchronous_simulation import simulate_arrivals as simulate_arrivals
from fedrank.federated.clients import make_clients as make_clients
from fedrank.federated.federation import Federation as Federation
from fedrank.federated.heterogeneity import differences as differences
from fedrank.federated.quality import quality_by_client as quality_by_client
from fedrank.federated.round import personal_models as personal_models
from fedrank.federated.simulation import simulate as simulate
from fedrank.ranking.click_models import ClickModel as ClickModel
from fedrank.ranking.impressions import ImpressionLearner as ImpressionLearner
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
def _family_doc(name: str) -> str: ...

class learners:
    """Learners compute the update of a client from the lists that it is shown.

    Pass one as `learner` to `fedrank.Federation`. `Pdgd` and `Evolution` learn from clicks, `LoggedClicks` from the
    clicks of a search log, and `LambdaRank` from relevance labels, as an upper bound.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=40)
    >>> quality = fr.Evaluator(data, ["ndcg@10"])
    >>> for learner in (fr.learners.Pdgd(rate=0.1), fr.learners.LambdaRank(rate=0.1)):
    ...     *_, last = fr.simulate(fr.Federation(learner), fr.make_clients(data, count=4), rounds=20)
    ...     print(type(learner).__name__, quality(last.weights, learner.ranker).round(3))
    Pdgd [0.551]
    LambdaRank [0.591]
    """

    from fedrank.ranking.evolution import Evolution as Evolution
    from fedrank.ranking.learners import LambdaRank as LambdaRank
    from fedrank.ranking.learners import LoggedClicks as LoggedClicks
    from fedrank.ranking.learners import Pdgd as Pdgd

class rankers:
    """Rankers are functions from features to a score, with all parameters in one vector.

    Pass one as `ranker` to a learner, and to everything that scores with the trained weights.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=40)
    >>> for ranker in (fr.rankers.Linear(), fr.rankers.Mlp(hidden=8)):
    ...     federation = fr.Federation(fr.learners.Pdgd(ranker))
    ...     *_, last = fr.simulate(federation, fr.make_clients(data, count=4), rounds=20)
    ...     quality = fr.Evaluator(data, ["ndcg@10"])(last.weights, ranker)
    ...     print(len(last.weights), quality.round(3))
    46 [0.551]
    384 [0.494]
    """

    from fedrank.ranking.rankers import Linear as Linear
    from fedrank.ranking.rankers import Mlp as Mlp
    from fedrank.ranking.rankers import Relu as Relu

class local_steps:
    """Local methods limit how far the models of clients with different data drift apart.

    Pass one as `local` to `fedrank.Federation`. `FedProx` pulls clients back to the global model, `Scaffold` corrects
    their drift, and `FedPer` leaves the last layer of the ranker with the client.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=60)
    >>> clients = fr.make_clients(data, count=6, partition=fr.partitions.Labels(), interactions=50)
    >>> for local in (None, fr.local_steps.Scaffold()):
    ...     *_, last = fr.simulate(fr.Federation(local=local), clients, rounds=20)
    ...     print(local, fr.Evaluator(data, ["ndcg@10"])(last.weights, fr.rankers.Linear()).round(3))
    None [0.186]
    Scaffold() [0.235]
    """

    from fedrank.federated.local import FedPer as FedPer
    from fedrank.federated.local import FedProx as FedProx
    from fedrank.federated.local import Scaffold as Scaffold

class aggregators:
    """Aggregators combine the updates of a round into one change of the model.

    Pass one as `aggregator` to `fedrank.Federation`. `Mean` is federated averaging, `Apart` trains each client alone,
    and the others are robust against malicious clients.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=50)
    >>> clients = fr.make_clients(data, count=10, malicious=3)
    >>> for aggregator in (fr.aggregators.Mean(), fr.aggregators.Median()):
    ...     federation = fr.Federation(aggregator=aggregator, attack=fr.attacks.SignFlip(scale=3.0))
    ...     *_, last = fr.simulate(federation, clients, rounds=20)
    ...     print(aggregator, fr.Evaluator(data, ["ndcg@10"])(last.weights, fr.rankers.Linear()).round(3))
    Mean(weighted=True) [0.149]
    Median() [0.47]
    """

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

class server_optimizers:
    """Server optimizers move the model of the server by the combined change.

    Pass one as `server` to `fedrank.Federation`. `Add` is the step of federated averaging.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=40)
    >>> clients = fr.make_clients(data, count=4)
    >>> for server in (fr.server_optimizers.Add(), fr.server_optimizers.Momentum(momentum=0.9)):
    ...     *_, last = fr.simulate(fr.Federation(server=server), clients, rounds=20)
    ...     print(type(server).__name__, fr.Evaluator(data, ["ndcg@10"])(last.weights, fr.rankers.Linear()).round(3))
    Add [0.551]
    Momentum [0.57]
    """

    from fedrank.federated.server_optimizers import Adam as Adam
    from fedrank.federated.server_optimizers import Add as Add
    from fedrank.federated.server_optimizers import Momentum as Momentum

class arrivals:
    """Arrival rules define how the server processes updates that arrive asynchronously.

    Pass one to `fedrank.simulate_arrivals`. `Sync` waits for all clients, `FedBuff` for a number of updates, and
    `FedAsync` uses each update at once and gives less weight to an older one.

    >>> import fedrank as fr
    >>> rule = fr.arrivals.FedAsync(staleness="polynomial", mixing=0.6)
    >>> for age in (1, 4, 9):
    ...     print(f"age {age}: the model moves {rule.share(age):.2f} of the way to the client's model")
    age 1: the model moves 0.60 of the way to the client's model
    age 4: the model moves 0.30 of the way to the client's model
    age 9: the model moves 0.20 of the way to the client's model
    """

    from fedrank.federated.asynchronous import FedAsync as FedAsync
    from fedrank.federated.asynchronous import FedBuff as FedBuff
    from fedrank.federated.asynchronous import Sync as Sync

class attacks:
    """Attacks replace the updates of malicious clients in a simulation.

    Pass one as `attack` to `fedrank.Federation`, and `malicious` to `fedrank.make_clients`.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=50)
    >>> clients = fr.make_clients(data, count=10, malicious=3)
    >>> for attack in (None, fr.attacks.Noise(scale=1.0), fr.attacks.Opposite(scale=2.0)):
    ...     *_, last = fr.simulate(fr.Federation(attack=attack), clients, rounds=20)
    ...     print(attack, fr.Evaluator(data, ["ndcg@10"])(last.weights, fr.rankers.Linear()).round(3))
    None [0.547]
    Noise(scale=1.0) [0.526]
    Opposite(scale=2.0) [0.291]
    """

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
    """Privacy mechanisms clip updates and add noise before they leave a client.

    Pass one as `mechanism` to `fedrank.Federation`. `Gaussian` and `Laplace` clip an update to the length `clip` and
    add noise of `noise` times that length. Noise comes from the secure random source of the system, so no seed repeats
    it.

    >>> import fedrank as fr
    >>> mechanism = fr.mechanisms.Gaussian(clip=0.1, noise=2.0)
    >>> clients = fr.make_clients(fr.synthetic("mq2007", queries=20), count=10)
    >>> received = []
    >>> _ = list(fr.simulate(fr.Federation(mechanism=mechanism), clients, rounds=1, watch=received.append))
    >>> f"{received[0].updates.std():.1f}"  # the standard deviation of the noise, clip x noise, hides the updates
    '0.2'
    """

    from fedrank.privacy.mechanisms import EsRandomisedResponse as EsRandomisedResponse
    from fedrank.privacy.mechanisms import FpdgdPaper as FpdgdPaper
    from fedrank.privacy.mechanisms import Gaussian as Gaussian
    from fedrank.privacy.mechanisms import Laplace as Laplace

class placements:
    """Noise placements define which party adds the noise of a mechanism, and which sees updates without it.

    Pass one as `placement` to a mechanism: each client adds all noise, the clients add shares of it under secure
    aggregation, or a trusted server adds it to the sum.

    >>> import fedrank as fr
    >>> for placement in (fr.placements.OnClient(), fr.placements.SecureAggregation(), fr.placements.AtServer()):
    ...     print(fr.mechanisms.Gaussian(clip=1.0, noise=1.0, placement=placement).sees)
    the server sees every update, clipped and with noise
    the server sees the sum of a round's updates, with noise, and which clients participated
    the server sees every update without noise; all others see only models computed from noisy sums
    """

    from fedrank.privacy.mechanisms import AtServer as AtServer
    from fedrank.privacy.mechanisms import OnClient as OnClient
    from fedrank.privacy.mechanisms import SecureAggregation as SecureAggregation

class partitions:
    """Partitions divide the queries of a data set among clients.

    Pass one as `partition` to `fedrank.make_clients`. `Iid` gives all clients all queries, and `Own` gives each an
    equal share; with the others, clients differ.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=40)
    >>> for partition in (fr.partitions.Iid(), fr.partitions.Own(), fr.partitions.Dirichlet(concentration=0.1)):
    ...     clients = fr.make_clients(data, count=4, partition=partition)
    ...     print(partition, fr.differences(clients).queries)
    Iid() [40 40 40 40]
    Own() [10 10 10 10]
    Dirichlet(concentration=0.1, over='grade') [ 2  5 26  7]
    """

    from fedrank.federated.partition import Attribute as Attribute
    from fedrank.federated.partition import Dirichlet as Dirichlet
    from fedrank.federated.partition import Iid as Iid
    from fedrank.federated.partition import Intents as Intents
    from fedrank.federated.partition import Labels as Labels
    from fedrank.federated.partition import Own as Own
    from fedrank.federated.partition import Shared as Shared
    from fedrank.federated.partition import Users as Users

class unlearners:
    """Unlearning methods remove the influence of clients from a trained model.

    `Retrain` is exact: it trains again without these clients. `Certified` gives a linear ranker on logged clicks with a
    certificate. The others are approximations. `FedEraser` and `FedRemove` need the updates that a run
    recorded. Each is called with a case, which describes the run and names the clients that leave; `fedrank forget
    client` does this for run folders.

    >>> import numpy as np
    >>> import fedrank as fr
    >>> from fedrank.unlearning.methods import Case
    >>> data = fr.synthetic("mq2007", queries=40)
    >>> clients, federation = fr.make_clients(data, count=5, malicious=1), fr.Federation(attack=fr.attacks.Opposite())
    >>> *_, last = fr.simulate(federation, clients, rounds=20)
    >>> case = Case(federation, clients, leaving=(0,), seed=1, first=np.zeros(46), final=last.state, rounds=20)
    >>> for weights in (last.weights, fr.unlearners.Retrain()(case).weights):
    ...     print(fr.Evaluator(data, ["ndcg@10"])(weights, fr.rankers.Linear()).round(3))
    [0.455]
    [0.535]
    """

    from fedrank.unlearning.methods import Certified as Certified
    from fedrank.unlearning.methods import FedEraser as FedEraser
    from fedrank.unlearning.methods import FedRemove as FedRemove
    from fedrank.unlearning.methods import FineTune as FineTune
    from fedrank.unlearning.methods import GradientAscent as GradientAscent
    from fedrank.unlearning.methods import Retrain as Retrain

class silo_methods:
    """Silo methods train rankers for organisations (silos) that keep their documents.

    `Local` trains each silo alone and `Global` one model for all. `LocalPlus` and `CrossSilo` also train on documents
    that queries find in other silos through sketches.

    >>> import fedrank as fr
    >>> from fedrank.data.text import Tokeniser
    >>> from fedrank.silo.silos import SilosRule
    >>> collection = fr.load_collection("synthetic-silos")
    >>> silos = fr.make_silos(collection, SilosRule(count=2, queries=3), Tokeniser(), seed=1)
    >>> for method in (fr.silo_methods.Local(), fr.silo_methods.CrossSilo(counts="exact", k=20)):
    ...     lists = method.lists(silos, seed=1)
    ...     print(type(method).__name__, [train.documents for train in lists.train], lists.added)
    Local [280, 382] [0 0]
    CrossSilo [340, 442] [60 60]
    """

    from fedrank.silo.training import CrossSilo as CrossSilo
    from fedrank.silo.training import Global as Global
    from fedrank.silo.training import Local as Local
    from fedrank.silo.training import LocalPlus as LocalPlus

class boosters:
    """Boosters train a forest of regression trees on ranking data.

    A booster is called with training data and returns a `fedrank.Forest`; with validation data it stops early.
    `Lambdamart` uses LightGBM on all documents. The others choose documents or queries, or grow trees that several
    clients can share.

    >>> import fedrank as fr
    >>> train, test = (fr.synthetic("mq2007", queries=40, seed=seed) for seed in (1, 2))
    >>> for booster in (fr.boosters.Grower(trees=5), fr.boosters.SelectiveGrower(trees=5, keep=0.5)):
    ...     forest = booster(train)
    ...     print(type(booster).__name__, fr.evaluate(["ndcg@10"], forest.score(test), test).round(3))
    Grower [0.483]
    SelectiveGrower [0.517]
    """

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
    """Splits divide a fold among clients that train and merge forests.

    Pass one as `split` to `fedrank.train_and_merge`. `Dealt` divides queries at random, `Topics` by their features and
    `Categories` by the category of their relevant documents. `Sites` is for deployments, where each site has its
    queries.

    >>> import numpy as np
    >>> import fedrank as fr
    >>> split = fr.splits.Topics(clients=2)
    >>> for portion in split(fr.load("synthetic-mq2007"), np.random.default_rng(1)):
    ...     print(portion.name, portion.train.queries, portion.merge.queries)
    topic 1 510 154
    topic 2 506 145
    """

    from fedrank.trees.splits import Categories as Categories
    from fedrank.trees.splits import Dealt as Dealt
    from fedrank.trees.splits import Sites as Sites
    from fedrank.trees.splits import Topics as Topics

class mergers:
    """Mergers make a model for each client from the models or data of all.

    Pass one as `merger` to `fedrank.train_and_merge`. `Alone` and `Pooled` are lower and upper references.
    `WeightedSum` and `Stacking` combine trained models; `Bagged`, `Cyclic` and `Histograms` grow one forest together.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=90)
    >>> train, validation, test = (data.select(range(start, start + 30)) for start in (0, 30, 60))
    >>> fold = fr.Fold(train, validation, test, name="small", fold=1)
    >>> split, booster = fr.splits.Dealt(clients=2), fr.boosters.Grower(trees=3, leaves=4)
    >>> for merger in (fr.mergers.Alone(), fr.mergers.WeightedSum()):
    ...     merging = fr.train_and_merge(fold, split, booster, merger, ["ndcg@10"], seed=1)
    ...     print(type(merger).__name__, merging.by_client()["ndcg@10 all after"].round(3))
    Alone [0.488 0.446]
    WeightedSum [0.521 0.523]
    """

    from fedrank.trees.histograms import Histograms as Histograms
    from fedrank.trees.mergers import Alone as Alone
    from fedrank.trees.mergers import Bagged as Bagged
    from fedrank.trees.mergers import Cyclic as Cyclic
    from fedrank.trees.mergers import Pooled as Pooled
    from fedrank.trees.mergers import Stacking as Stacking
    from fedrank.trees.mergers import WeightedSum as WeightedSum
