"""The data of a run of kind "trees", and the queries that its models are evaluated on."""

from __future__ import annotations

from fedrank.data.catalog import Fold
from fedrank.experiments.runner.data import described, evaluation_queries, load_fold
from fedrank.experiments.runner.writer import RunWriter
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.ranking.baseline_ranking import BaselineRanking, baseline_order
from fedrank.ranking.measures import Evaluator
from fedrank.trees.boosters import MEASURE
from fedrank.trees.forest import lightgbm

CONVENTIONS = {
    "rounds": "row r is the forest of the first r trees; the last row is the model, of the size that ranks the "
    "validation queries best",
    "final": "the last evaluation, which is that of the model",
    "stopping": f"by {MEASURE} of the validation queries under fedrank's convention: those without a relevant document "
    "do not count, where LightGBM counts them as 1",
}


def begin_trees(experiment: TreesExperiment, writer: RunWriter) -> tuple[Fold, Evaluator, BaselineRanking]:
    """Describe the data in the run folder; return the data, the evaluator and the baseline ranking."""
    asked = experiment.unscaled
    fold, engine = load_fold(asked, writer.task.fold), _engine()
    writer.update_facts(
        notes=fold.notes,
        conventions=CONVENTIONS | {"engine": engine},
        data=described(fold.name, fold.train.queries, fold.test.queries, fold.train),
        engine=engine,
        behind_final=1,
    )
    evaluator = Evaluator(evaluation_queries(fold, asked), experiment.measures)
    return fold, evaluator, baseline_order(evaluator, asked.given)


def _engine() -> str:
    """What grows the trees: figures of other engines are not comparable."""
    return (
        f"LightGBM {lightgbm().__version__}, objective lambdarank: splits and leaf values by gradients and hessians; "
        "another version or processor may grow slightly different trees"
    )
