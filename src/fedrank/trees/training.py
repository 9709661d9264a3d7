"""Clients that train forests separately and merge them: local models, merged models, and the quality of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrank.data.catalog import Fold
from fedrank.ranking.measures import Evaluator, average
from fedrank.ranking.model import Scorer
from fedrank.seeds import rng_for
from fedrank.trees.boosters import Trainer, usable_validation
from fedrank.trees.mergers import Merger
from fedrank.trees.splits import Portion, Splitter

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Merging:
    """The models of clients before and after merging, and their quality on the test queries."""

    queries: Mapping[str, int]  # number of training queries by client name
    local: tuple[Scorer, ...]  # [clients]: trained on own data
    merged: tuple[Scorer, ...]  # [clients]
    measures: tuple[str, ...]
    before: Reals  # [measures, clients, test queries]: with the local models; NaN where a measure skips the query
    after: Reals  # [measures, clients, test queries]: with the merged ones
    own: NDArray[np.bool_]  # [clients, test queries]: whether a query is of the client's kind

    def by_client(self) -> dict[str, Reals]:
        """Columns [clients]: each measure on own, on other clients' and on all test queries, before and after.

        Where the kind of test queries is unknown, the first two are NaN.
        """
        others = self.own.any(axis=0) & ~self.own
        return {
            f"{measure} {where} {when}": average(np.where(chosen, values[m], np.nan))
            for m, measure in enumerate(self.measures)
            for where, chosen in (("own", self.own), ("others", others), ("all", np.ones_like(self.own)))
            for when, values in (("before", self.before), ("after", self.after))
        }


def train_locally(
    portions: Sequence[Portion],
    booster: Trainer,
    seed: int,
    threads: int = 1,
    before: Callable[[], None] = lambda: None,  # each model
) -> tuple[Scorer, ...]:
    """The model of each client, from its own data alone."""
    models = []
    for portion in portions:
        before()
        model = booster(portion.train, usable_validation(portion.validation), seed=seed, threads=threads)
        models.append(replace(model, notes={"client": portion.name, "queries": portion.train.queries}))
    return tuple(models)


def train_and_merge(
    fold: Fold, split: Splitter, booster: Trainer, merger: Merger, measures: Sequence[str], seed: int, threads: int = 1
) -> Merging:
    """Split a fold among clients, train a model for each, merge the models, and measure them before and after.

    `split`, `booster` and `merger` are methods of these families. The result has the models `local` and `merged` of
    each client; `by_client()` compares them on the client's own, on other and on all test queries.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=90)
    >>> train, validation, test = (data.select(range(start, start + 30)) for start in (0, 30, 60))
    >>> fold = fr.Fold(train, validation, test, name="small", fold=1)
    >>> booster = fr.boosters.Grower(trees=3, leaves=4)
    >>> merging = fr.train_and_merge(fold, fr.splits.Dealt(), booster, fr.mergers.WeightedSum(), ["ndcg@10"], seed=1)
    >>> quality = merging.by_client()
    >>> print(quality["ndcg@10 all before"].round(3), quality["ndcg@10 all after"].round(3))
    [0.488 0.446] [0.521 0.523]
    """
    portions = split(fold, rng_for(seed, "split"))
    local = train_locally(portions, booster, seed, threads)
    return measured(portions, local, merger(portions, local, booster, seed, threads), fold, measures)


def measured(
    portions: Sequence[Portion], local: Sequence[Scorer], merged: Sequence[Scorer], fold: Fold, measures: Sequence[str]
) -> Merging:
    """The quality of clients' models, before and after merging, on the test queries."""
    ids = [() if portion.test is None else portion.test.query_ids for portion in portions]
    own = np.array([np.isin(fold.test.query_ids, one) for one in ids])
    queries = {portion.name: portion.train.queries for portion in portions}
    return measured_for(queries, local, merged, fold, measures, own)


def measured_for(
    queries: Mapping[str, int],
    local: Sequence[Scorer],
    merged: Sequence[Scorer],
    fold: Fold,
    measures: Sequence[str],
    own: NDArray[np.bool_],
) -> Merging:
    """The same for clients whose data are elsewhere, with the fields of `Merging`."""
    evaluator = Evaluator(fold.test, measures)
    before, after = (_measured(models, evaluator) for models in (local, merged))
    return Merging(queries, tuple(local), tuple(merged), tuple(measures), before, after, own)


def _measured(models: Sequence[Scorer], evaluator: Evaluator) -> Reals:
    """[measures, models, queries]; a model that several clients share is scored once."""
    known: dict[int, NDArray[np.float32]] = {}
    for model in models:
        if id(model) not in known:
            known[id(model)] = np.asarray(model.score(evaluator.data), dtype=np.float32)
    return evaluator.per_query_of_scores(np.stack([known[id(model)] for model in models]))
