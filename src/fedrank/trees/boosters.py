"""Boosters: forests of regression trees that learn to rank, through LightGBM.

All of them are LambdaMART (Burges, 2010); they differ in the rows on which a tree is grown. Training stops when nDCG@10
on the validation queries, under fedrank's convention, has not improved for `patience` trees, and the forest is
truncated to its best size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.ranking.measures import Evaluator, average
from fedrank.seeds import key_for, rng_for
from fedrank.trees.arrays import Trees
from fedrank.trees.forest import Forest, make_forest
from fedrank.trees.lightgbm_training import STUMP, LightGbmTrainer, Reals

MEASURE = "ndcg@10"  # for early stopping
Rows = NDArray[np.bool_]  # [documents]: whether a tree is grown on it


@dataclass(frozen=True)
class Step:
    """The forest after one more tree."""

    tree: str  # as in a text model
    grown: Trees  # the same as arrays
    validation: float  # nDCG@10 on the validation queries; NaN without any
    kept: Rows | None  # the rows selected before this tree; None: no new selection


@dataclass(frozen=True)
class BoosterState:
    """The state from which a training is resumed."""

    trees: tuple[str, ...] = ()
    validation: tuple[float, ...] = ()  # [trees]


class NothingToSplit(ValueError):
    """Not even a first tree could be grown with these settings on these data."""


class Trainer(Protocol):
    """Trains a forest on documents with relevance labels."""

    def __call__(
        self, train: RankingData, validation: RankingData | None = None, seed: int = 0, threads: int = 1
    ) -> Forest: ...


class Booster(Trainer, Protocol):
    """A trainer that grows its forest tree by tree."""

    @property
    def trees(self) -> int:
        """Maximum number of trees."""

    def grow(
        self, train: RankingData, validation: RankingData | None, seed: int, threads: int = 1, past: BoosterState = ...
    ) -> Iterator[Step]: ...


@dataclass(frozen=True)
class Lambdamart:
    """Trees on all rows, with pairs weighted by their effect on nDCG (LambdaMART; Burges, 2010)."""

    trees: int = 1000  # maximum number of trees
    leaves: int = 64  # maximum number of leaves per tree
    rate: float = 0.05  # learning rate, which multiplies the output of a tree
    min_data_in_leaf: int = 20  # minimum number of documents per leaf
    min_sum_hessian: float = 0.001  # minimum sum of hessians per leaf
    patience: int = 100  # trees without a better nDCG@10 on the validation queries before training stops; 0: never
    lambda_norm: bool = True  # pairs with close scores get more weight, as in LightGBM; false: as in Burges (2010)
    lambda_truncation: int = 30  # only pairs with a document among the first this many, as ranked by the forest

    def __post_init__(self) -> None:
        if self.trees < 1 or self.leaves < 2:
            raise ValueError(f"trees must be at least 1 and leaves at least 2 (got {self.trees} and {self.leaves})")
        if not 0 < self.rate < np.inf:
            raise ValueError(f"rate must be finite and above 0 (got {self.rate}); use a number such as 0.05")
        if self.min_data_in_leaf < 1 or self.min_sum_hessian < 0 or self.patience < 0:
            raise ValueError(
                "min_data_in_leaf must be at least 1, min_sum_hessian and patience at least 0 (got "
                f"{self.min_data_in_leaf}, {self.min_sum_hessian} and {self.patience})"
            )
        if self.lambda_truncation < 1:
            raise ValueError(
                f"lambda_truncation must be at least 1 (got {self.lambda_truncation}); use 10 for nDCG@10, for example"
            )

    def __call__(
        self, train: RankingData, validation: RankingData | None = None, seed: int = 0, threads: int = 1
    ) -> Forest:
        """Grow the whole forest; with validation queries, truncate it to its best size."""
        steps = list(self.grow(train, validation, seed, threads))
        best = best_size([step.validation for step in steps])
        return make_forest([step.tree for step in steps[:best]], train)

    def grow(
        self,
        train: RankingData,
        validation: RankingData | None,
        seed: int,
        threads: int = 1,
        past: BoosterState = BoosterState(),
    ) -> Iterator[Step]:
        """The forest tree by tree; a resumed training continues with the tree after its past."""
        self.check(train)
        judge = None if validation is None else _Judge(self.stops_by(validation))
        curve, scores = list(past.validation), np.zeros(train.documents)
        if self.is_over(curve):
            return
        known = self.restart(len(past.trees))
        for before in past.trees[:known]:
            tree = Trees.read([before])
            tree.add(train.features, scores, threads)
            if judge is not None:
                judge.add(tree, threads)
        trainer, more, rows = LightGbmTrainer(train, self.engine(seed, threads)), None, None
        for number in range(known, self.trees):
            choice = self.choice(number, train, scores, seed)
            if choice is not None or more is None:
                rows = self.standing(train) if choice is None else choice
                more = trainer.trees(scores, rows)
            text = next(more)
            if text is None:
                if number == 0:
                    raise NothingToSplit(
                        f"no split of {train.name or 'the training set'} improves on the same score for all "
                        f"documents; lower min_data_in_leaf = {self.min_data_in_leaf} or min_sum_hessian = "
                        f"{self.min_sum_hessian}, or check whether the features separate documents"
                    )
                if not self.is_random():
                    return
                more, text = trainer.trees(scores, rows), STUMP
            tree = Trees.read([text])
            tree.add(train.features, scores, threads)
            quality = float("nan") if judge is None else judge.add(tree, threads)
            if number < len(past.trees):
                continue  # grown again, because LightGBM cannot start in the middle
            curve.append(quality)
            yield Step(text, tree, quality, choice)
            if self.is_over(curve):
                return

    def is_over(self, curve: list[float]) -> bool:
        """Whether the last `patience` trees brought no improvement."""
        return bool(self.patience and len(curve) - best_size(curve) >= self.patience)

    def engine(self, seed: int, threads: int) -> dict[str, Any]:
        """The settings under LightGBM's names."""
        return {
            "objective": "lambdarank",
            "metric": "none",
            "num_leaves": self.leaves,
            "learning_rate": self.rate,
            "min_data_in_leaf": self.min_data_in_leaf,
            "min_sum_hessian_in_leaf": self.min_sum_hessian,
            "lambdarank_norm": self.lambda_norm,
            "lambdarank_truncation_level": self.lambda_truncation,
            "feature_pre_filter": False,
            "seed": int(key_for(seed, "boosting") % np.uint64(2**31)),
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": threads,
            "verbose": -1,
        }

    def check(self, train: RankingData) -> None:
        """Raise ValueError for data that the method cannot learn from."""

    def choice(self, number: int, train: RankingData, scores: Reals, seed: int) -> Rows | None:
        """The rows for tree `number` (from 0) and those after it; None: unchanged."""
        return None

    def standing(self, train: RankingData) -> Rows | None:
        """The rows of trees before the first selection; None: all."""
        return None

    def stops_by(self, validation: RankingData) -> RankingData:
        """The lists for early stopping."""
        return validation

    def restart(self, number: int) -> int:
        """The last tree, up to this one, before which a resumed training can start."""
        return number

    def is_random(self) -> bool:
        """Whether another selection of rows may succeed where one found nothing to split."""
        return False


@dataclass(frozen=True)
class _Sampling(Lambdamart):
    """Boosters that grow trees on some of the rows."""

    purpose: ClassVar[str]  # of the random numbers that select rows: part of every result, so it never changes

    every: int = 1  # trees between two selections of rows; the first trees, this many, use all rows
    keep: float = 0.25  # fraction of the rows

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise ValueError(f"every must be at least 1 (got {self.every})")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep must be above 0 and at most 1 (got {self.keep}); use 0.01 for 1 %, for example")

    def choice(self, number: int, train: RankingData, scores: Reals, seed: int) -> Rows | None:
        """At every `every`-th tree except the first."""
        if number == 0 or number % self.every:
            return None
        return self.chosen(train, scores, rng_for(seed, self.purpose, number))

    def chosen(self, train: RankingData, scores: Reals, rng: np.random.Generator) -> Rows:
        """The rows on which trees are grown."""
        raise NotImplementedError

    def restart(self, number: int) -> int:
        """The last tree before which rows were selected, which depends on the scores at that point."""
        return number // self.every * self.every

    def is_random(self) -> bool:
        return True


@dataclass(frozen=True)
class _NegativeSampling(_Sampling):
    """Trees on all relevant documents and some of the others."""

    min_negatives: int = 1  # minimum number of non-relevant documents per query, for short lists

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_negatives < 0:
            raise ValueError(f"min_negatives must be 0 or more (got {self.min_negatives})")

    def check(self, train: RankingData) -> None:
        negatives = np.add.reduceat(train.grades < 1, train.offsets[:-1], dtype=np.int64)
        if self.min_negatives == 0 and np.floor(self.keep * negatives.max() + 0.5) < 1:
            raise ValueError(
                f"keep = {self.keep} of at most {negatives.max():,} non-relevant documents per query keeps none; use "
                f"min_negatives = 1 or more, or keep = {1 / max(int(negatives.max()), 1):.2g} or more"
            )


@dataclass(frozen=True)
class Selgb(_NegativeSampling):
    """Trees on the relevant documents and the highest-ranked non-relevant ones (SelGB; Lucchese et al., SIGIR 2018)."""

    purpose: ClassVar[str] = "selgb"

    keep: float = 0.01  # p: fraction of a query's non-relevant documents

    def chosen(self, train: RankingData, scores: Reals, rng: np.random.Generator) -> Rows:
        return _best_negatives(train, scores.astype(np.float32), self.keep, self.min_negatives)

    def is_random(self) -> bool:
        return False


@dataclass(frozen=True)
class Negsgb(_NegativeSampling):
    """Trees on the relevant documents and a random fraction of the others (NegSGB; Lucchese et al., SIGIR 2018)."""

    purpose: ClassVar[str] = "negsgb"

    keep: float = 0.25  # fraction of a query's non-relevant documents

    def chosen(self, train: RankingData, scores: Reals, rng: np.random.Generator) -> Rows:
        return _best_negatives(train, rng.random(train.documents, dtype=np.float32), self.keep, self.min_negatives)


@dataclass(frozen=True)
class Sgb(_Sampling):
    """Trees on a random fraction of all documents (stochastic gradient boosting; Friedman, 2002)."""

    purpose: ClassVar[str] = "sgb"

    keep: float = 0.25  # fraction of the documents

    def chosen(self, train: RankingData, scores: Reals, rng: np.random.Generator) -> Rows:
        return _drawn(train.documents, self.keep, rng)


@dataclass(frozen=True)
class Bagging(_Sampling):
    """Trees on all documents of a random fraction of the queries."""

    purpose: ClassVar[str] = "bagging"

    keep: float = 0.5  # fraction of the queries

    def chosen(self, train: RankingData, scores: Reals, rng: np.random.Generator) -> Rows:
        rows: Rows = np.repeat(_drawn(train.queries, self.keep, rng), np.diff(train.offsets))
        return rows


@dataclass(frozen=True)
class Shortlist(Lambdamart):
    """Trees on the relevant documents and the first others of each query, like a smaller first stage."""

    negatives: int = 500  # non-relevant documents per query
    by: int = 0  # feature (from 1) that orders them, highest first, such as the first stage's score; 0: file order
    cut_validation: bool = False  # whether early stopping uses lists truncated in the same way; false: full lists

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.negatives < 1 or self.by < 0:
            raise ValueError(
                f"negatives must be at least 1, and by a feature number or 0 (got {self.negatives} and {self.by})"
            )

    def check(self, train: RankingData) -> None:
        if self.by > train.features.shape[1]:
            raise ValueError(f"by must be at most {train.features.shape[1]}, the number of features (got {self.by})")

    def standing(self, train: RankingData) -> Rows | None:
        return self.kept(train)

    def stops_by(self, validation: RankingData) -> RankingData:
        return shortened(validation, self.kept(validation)) if self.cut_validation else validation

    def kept(self, data: RankingData) -> Rows:
        """The documents of a data set that are retained."""
        place = np.arange(data.documents) - np.repeat(data.offsets[:-1], np.diff(data.offsets))
        order = -place if self.by == 0 else np.ascontiguousarray(data.features[:, self.by - 1])
        return _best_negatives(data, order.astype(np.float32), 0.0, self.negatives)


@dataclass(frozen=True)
class Goss(Lambdamart):
    """Trees on the rows with the largest gradients and a random fraction of the others (GOSS; Ke et al., NIPS 2017).

    The implementation of LightGBM, which does not sample in the first 1 / rate trees. A resumed training starts over.
    """

    top: float = 0.2  # fraction of rows, those with the largest gradients
    other: float = 0.1  # fraction of rows, drawn from the rest

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.top > 0 and self.other > 0 and self.top + self.other <= 1):
            raise ValueError(
                f"top and other must be above 0, and their sum at most 1 (got {self.top} and {self.other})"
            )

    def engine(self, seed: int, threads: int) -> dict[str, Any]:
        sampling = {"data_sample_strategy": "goss", "top_rate": self.top, "other_rate": self.other}
        return super().engine(seed, threads) | sampling

    def restart(self, number: int) -> int:
        return 0


@dataclass(frozen=True)
class Grower(Lambdamart):
    """LambdaMART in fedrank's compiled loops, which several clients can grow together, exactly, in fixed point.

    Gradients are those of LightGBM's lambdarank, rounded to integers before they are added up: a forest does
    not depend on which client has which queries.
    """

    bins: int = 255  # maximum number of bins per feature
    depth: int = 0  # maximum depth of a tree; 0: unlimited
    l2: float = 0.0  # L2 regularisation, added to the hessian of a leaf
    feature_share: float = 1.0  # fraction of the features, drawn for every tree
    query_share: float = 1.0  # fraction of the queries, drawn for every tree
    fraction: int = 20  # fractional bits of gradients and hessians

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.bins <= 256:
            raise ValueError(f"bins must be between 2 and 256 (got {self.bins}); 255 is usual")
        if self.depth < 0 or not 0 <= self.l2 < np.inf:
            raise ValueError(f"depth and l2 must be 0 or more (got {self.depth} and {self.l2})")
        for name, share in (("feature_share", self.feature_share), ("query_share", self.query_share)):
            if not 0 < share <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1 (got {share})")
        if not 8 <= self.fraction <= 32:
            raise ValueError(f"fraction must be between 8 and 32 bits (got {self.fraction}); 20 is usual")

    def grow(
        self,
        train: RankingData,
        validation: RankingData | None,
        seed: int,
        threads: int = 1,
        past: BoosterState = BoosterState(),
    ) -> Iterator[Step]:
        from fedrank.trees.growing import grow_alone

        return grow_alone(self, train, validation, seed, past)


@dataclass(frozen=True)
class SelectiveGrower(Selgb, Grower):
    """SelGB in fedrank's compiled loops, which copy no rows."""


BOOSTERS: dict[str, type] = {
    "lambdamart": Lambdamart,
    "selgb": Selgb,
    "sgb": Sgb,
    "negsgb": Negsgb,
    "goss": Goss,
    "bagging": Bagging,
    "shortlist": Shortlist,
    "grower": Grower,
    "grower-selgb": SelectiveGrower,
}


def best_size(curve: list[float]) -> int:
    """The number of trees with the best validation quality; the smallest of equals; all without validation.

    >>> best_size([0.3, 0.5, 0.5, 0.4])
    2
    """
    return len(curve) if not curve or np.isnan(curve[0]) else int(np.argmax(curve)) + 1


def shortened(data: RankingData, kept: Rows) -> RankingData:
    """Lists of the retained documents; every query must retain at least one."""
    sizes = np.add.reduceat(kept, data.offsets[:-1], dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    return RankingData(
        data.features[kept], data.grades[kept], offsets, data.query_ids, name=data.name, top_grade=data.top_grade
    )


def usable_validation(data: RankingData | None) -> RankingData | None:
    """Validation data; None if they have no relevant document and so cannot decide when to stop."""
    return data if data is not None and np.any(data.grades > 0) else None


class _Judge:
    """nDCG@10 of a growing forest; only the new tree is applied."""

    def __init__(self, data: RankingData) -> None:
        self.evaluator, self.scores = Evaluator(data, [MEASURE]), np.zeros(data.documents)
        if not (data.grades > 0).any():
            raise ValueError(
                f"{data.name or 'the validation set'} has no relevant document, so it cannot decide when to stop; "
                "give other validation queries, or none"
            )

    def add(self, tree: Trees, threads: int) -> float:
        tree.add(self.evaluator.data.features, self.scores, threads)
        return float(average(self.evaluator.per_query_of_scores(self.scores))[0])


def _best_negatives(train: RankingData, scores: NDArray[np.float32], share: float, min_negatives: int) -> Rows:
    from fedrank.kernels.trees import best_negatives

    kept = np.empty(train.documents, dtype=np.bool_)
    best_negatives(scores.view(np.int32), train.grades, train.offsets, share, min_negatives, kept)
    return kept


def _drawn(count: int, share: float, rng: np.random.Generator) -> Rows:
    """A random fraction of `count` rows, at least one."""
    kept = np.zeros(count, dtype=np.bool_)
    kept[rng.choice(count, max(1, round(share * count)), replace=False, shuffle=False)] = True
    return kept
