"""Measures of ranking quality by name, per query and on average, for many models at once.

    >>> import numpy as np
    >>> from fedrank.data.ranking import RankingData
    >>> data = RankingData(
    ...     np.zeros((3, 1), np.float32), np.array([2, 0, 1], np.int8), np.array([0, 3]), np.array(["cats"])
    ... )
    >>> evaluate(["ndcg@10", "mrr"], np.array([0.1, 0.7, 0.3], np.float32), data).round(3).tolist()
    [0.587, 0.5]

Ties: documents with equal scores are ordered by a fixed shuffle of their positions in the query. It depends only on the
number of documents, so a file that is sorted by relevance label does not favour a model with tied scores. Scores are
compared as float32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrank.data.ranking import RankingData
from fedrank.names import did_you_mean
from fedrank.types import Grades, Offsets, Ranker, Scores, Weights

Values = NDArray[np.float64]

MEASURES = {
    "ndcg": "normalised DCG: gain 2^label - 1, discount 1 / log2(rank + 1), ideal over all candidates",
    "ndcg-linear": "normalised DCG with gain = label, as in several other tools",
    "map": "mean average precision over all relevant documents (label 1 or more), at any cutoff",
    "mrr": "reciprocal rank of the first relevant document",
    "err": "expected reciprocal rank of the satisfying document: P = (2^label - 1) / 2^highest label",
    "p": "precision: share of relevant documents among the first k",
}

EMPTY = {
    "skip": "queries without a relevant document do not count",
    "zero": "queries without a relevant document count as 0",
    "one": "queries without a relevant document count as 1",
}

LABELS = {
    "": "",
    "intents": "by the relevance labels of each intent of a query, averaged over its intents",
    "union": "by the union of the intents: a document is relevant if it is for any of them",
}

MODELS = 16  # per matrix product
DOCUMENTS = 4096  # per matrix product, approximately; their scores fit into the cache
EVERY_RANK = 2**62  # a cutoff without effect


@dataclass(frozen=True)
class Measure:
    """A measure, written as `name@cutoff/empty by labels`: "ndcg@10", "map", "mrr@10/zero", "ndcg@10 by union"."""

    name: str  # one of MEASURES
    cutoff: int | None = None  # number of top ranks; None: all
    empty: str = "skip"  # value of queries without a relevant document: one of EMPTY
    by: str = ""  # which labels, if queries have several intents: one of LABELS; "": those of the data

    def __post_init__(self) -> None:
        if self.name not in MEASURES:
            raise ValueError(f"unknown measure '{self.name}'{did_you_mean(self.name, MEASURES)}; {_SYNTAX}")
        if self.empty not in EMPTY:
            raise ValueError(f"unknown choice '{self.empty}'{did_you_mean(self.empty, EMPTY)}; {_SYNTAX}")
        if self.by not in LABELS:
            raise ValueError(f"unknown labels '{self.by}'{did_you_mean(self.by, LABELS)}; {_SYNTAX}")
        if self.cutoff is not None and self.cutoff < 1:
            raise ValueError(f"the cutoff of {self.name}@{self.cutoff} must be at least 1")
        if self.name == "p" and self.cutoff is None:
            raise ValueError(
                'p needs a cutoff, because the precision of a full ranking is the same in every order; write "p@10"'
            )

    def __str__(self) -> str:
        cutoff = "" if self.cutoff is None else f"@{self.cutoff}"
        empty = "" if self.empty == "skip" else f"/{self.empty}"
        return f"{self.name}{cutoff}{empty}" + (f" by {self.by}" if self.by else "")

    @property
    def about(self) -> str:
        """An explanation of the measure."""
        return "; ".join(part for part in (MEASURES[self.name], EMPTY[self.empty], LABELS[self.by]) if part)


_SYNTAX = (
    f'write name[@cutoff][/{"|".join(EMPTY)}], such as "ndcg@10" or "mrr@10/zero", with one of {", ".join(MEASURES)}; '
    'for queries with intents, optionally " by intents" or " by union"'
)


def measure(text: str | Measure) -> Measure:
    """Return the measure that a text names, such as "ndcg@10", "map", "mrr@10/zero" or "ndcg@10 by union".

    The part after the slash is the value of queries without a relevant document: "skip", "zero" or "one".

    >>> import fedrank as fr
    >>> fr.measure("ndcg@10")
    Measure(name='ndcg', cutoff=10, empty='skip', by='')
    >>> fr.measure("mrr@10/zero").about
    'reciprocal rank of the first relevant document; queries without a relevant document count as 0'
    """
    if isinstance(text, Measure):
        return text
    parts = re.fullmatch(r"([^@/ ]*)(?:@([0-9]+))?(?:/([^@/ ]*))?(?: by ([^@/ ]*))?", text.strip().lower())
    if parts is None:
        raise ValueError(f"'{text}' is not a measure; {_SYNTAX}")
    name, cutoff, empty, by = parts.groups()
    name = {"ap": "map", "rr": "mrr"}.get(name, name)  # their names in ir_measures, whose nDCG is our ndcg-linear
    return Measure(name, None if cutoff is None else int(cutoff), "skip" if empty is None else empty, by or "")


class MeasureSettings(NamedTuple):
    """Measures on one set of queries, in the form that loops take."""

    offsets: Offsets
    grades: Grades
    relevant: NDArray[np.int64]  # [queries]: number of relevant documents
    kinds: NDArray[np.int64]  # [measures]
    cutoffs: NDArray[np.int64]
    scales: Values  # [measures, queries]: normalisation constants; 1 without relevant documents
    top_grade: int


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates rankers on the queries of one data set.

    Create it once and call it often: it precomputes everything that does not depend on a model. The third argument
    replaces the relevance labels of the data, for example with those that one client sees. A call with one weight
    vector returns the mean of each measure over queries; a call with several vectors returns [measures, models]. The
    value of a model does not depend on the other models, to the last bit.

    >>> import fedrank as fr
    >>> train, test = (fr.synthetic("mq2007", queries=40, seed=seed) for seed in (1, 2))
    >>> quality = fr.Evaluator(test, ["ndcg@10", "mrr@10"])
    >>> for outcome in fr.simulate(fr.Federation(), fr.make_clients(train, count=4), rounds=40):
    ...     if outcome.round % 20 == 0:
    ...         print(outcome.round, quality(outcome.weights, fr.rankers.Linear()).round(3))
    20 [0.543 0.767]
    40 [0.545 0.776]
    """

    data: RankingData
    measures: Sequence[str | Measure]
    grades: Grades | None = None  # [documents]: replaces the relevance labels of the data

    parsed: tuple[Measure, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parsed = tuple(measure(each) for each in self.measures)
        if not parsed:
            raise ValueError('measures must name at least one measure, such as "ndcg@10"')
        grades = np.asarray(self.data.grades if self.grades is None else self.grades)
        if grades.shape != (self.data.documents,):
            raise ValueError(
                f"relevance labels of shape {list(grades.shape)} "  # prose: ok
                f"for {self.data.documents} documents; give one per document"
            )
        if grades.min() < 0 or grades.max() > 127:
            raise ValueError(
                f"relevance labels must be from 0 (not relevant) to 127 "
                f"(got {grades.min()} to {grades.max()})"  # prose: ok
            )
        if any(each.by for each in parsed) and not len(self.data.intents):
            [by, *_] = [str(each) for each in parsed if each.by]
            raise ValueError(
                f"{self.data.name or 'this data set'} has no judgements by intent for '{by}'; remove it, or use "
                "data with judgements by intent, such as synthetic-intents"
            )
        object.__setattr__(self, "parsed", parsed)

    def __call__(self, weights: Weights, ranker: Ranker) -> Values:
        """Return averages over queries: [measures, models], or [measures] for one weight vector."""
        return average(self.per_query(weights, ranker))

    def per_query(self, weights: Weights, ranker: Ranker) -> Values:
        """Return [measures, models, queries], or [measures, queries] for one weight vector; NaN for skipped queries."""
        models = np.atleast_2d(weights)
        values = self._values(lambda some, rows: ranker.score(models[some], self.data.features[rows]), len(models))
        return values if np.ndim(weights) == 2 else values[:, 0]

    def per_query_of_scores(self, scores: ArrayLike) -> Values:
        """Return [measures, models, queries] for scores [models, documents]; without models for scores [documents]."""
        given = np.asarray(scores, dtype=np.float32)
        table = np.atleast_2d(given)
        if table.ndim != 2 or table.shape[1] != self.data.documents:
            raise ValueError(
                f"scores of shape {list(given.shape)} for {self.data.documents} documents; give one per document"
            )
        values = self._values(lambda some, rows: table[some, rows], len(table))
        return values if given.ndim == 2 else values[:, 0]

    def _values(self, score: Callable[[slice, slice], Scores], models: int) -> Values:
        if not any(each.by for each in self.parsed):
            return self._by_own_grades(score, models)
        values = np.empty((len(self.parsed), models, self.data.queries))
        known: dict[tuple[int, int], Scores] = {}

        def once(some: slice, rows: slice) -> Scores:
            place = some.start, rows.start
            if place not in known:
                known[place] = score(some, rows)
            return known[place]

        for places, evaluators in self._by_labels:
            each = [evaluator._by_own_grades(once, models) for evaluator in evaluators]
            values[places] = average(np.stack(each, axis=-1))
        return values

    @cached_property
    def _by_labels(self) -> list[tuple[list[int], list[Evaluator]]]:
        """Indices of the measures with the same labels, and an evaluator for each of these labels."""
        intents = self.data.intents
        rows = {"": [self.grades], "intents": list(intents), "union": [intents.max(axis=0)]}
        found = []
        for by in dict.fromkeys(each.by for each in self.parsed):
            places = [place for place, each in enumerate(self.parsed) if each.by == by]
            measures = [replace(self.parsed[place], by="") for place in places]
            found.append((places, [Evaluator(self.data, measures, grades) for grades in rows[by]]))
        return found

    def _by_own_grades(self, score: Callable[[slice, slice], Scores], models: int) -> Values:
        """Evaluate batches of models in chunks of queries; `score` returns [models, documents] for both."""
        from fedrank.kernels.measures import measure_lists

        offsets, grades, relevant, kinds, cutoffs, scales, top_grade = self.compiled_settings
        values = np.empty((len(self.parsed), models, self.data.queries))
        for first, last in query_chunks(offsets, DOCUMENTS):
            rows = slice(int(offsets[first]), int(offsets[last]))
            for some in (slice(begin, min(begin + MODELS, models)) for begin in range(0, models, MODELS)):
                # Diverged models overflow; the error below is clearer than a warning.
                with np.errstate(over="ignore", invalid="ignore"):
                    scores = np.require(score(some, rows).T, np.float32, ["C", "W"])
                bad = measure_lists(
                    scores.view(np.int32), offsets, first, last, grades, kinds, cutoffs, scales, top_grade, some.start,
                    values,
                )  # fmt: skip
                if bad > 0:
                    self._refuse(scores, first, some.start)
        for values_of_measure, each in zip(values, self.parsed, strict=True):
            values_of_measure[:, relevant == 0] = {"skip": np.nan, "zero": 0.0, "one": 1.0}[each.empty]
        return values

    def _refuse(self, scores: Scores, first: int, shift: int) -> NoReturn:
        row, model = np.argwhere(np.isnan(scores))[0]
        query = np.searchsorted(self.data.offsets, self.data.offsets[first] + row, side="right") - 1
        raise ValueError(
            f"model {shift + model} scores a document of query {self.data.query_ids[query]} as NaN; look for NaN or "
            "infinity in features and weights, and for a learning rate that is too high"
        )

    @cached_property
    def compiled_settings(self) -> MeasureSettings:
        """The arguments of compiled loops and GPU kernels."""
        from fedrank.kernels.measures import ERR, GAIN, MAP, MRR, NDCG, NDCG_LINEAR, PRECISION, best_dcg

        # Copies, because code would be compiled again for read-only (memory-mapped) arrays.
        grades = np.array(self.data.grades if self.grades is None else self.grades, dtype=np.int8)
        offsets = np.array(self.data.offsets, dtype=np.int64)
        relevant = np.add.reduceat(grades >= 1, offsets[:-1], dtype=np.int64)
        kinds = {"ndcg": NDCG, "ndcg-linear": NDCG_LINEAR, "map": MAP, "mrr": MRR, "err": ERR, "p": PRECISION}
        cutoffs = np.array([each.cutoff or EVERY_RANK for each in self.parsed], dtype=np.int64)
        scales = np.ones((len(self.parsed), self.data.queries))
        for scale, each, cutoff in zip(scales, self.parsed, cutoffs, strict=True):
            if each.name in ("ndcg", "ndcg-linear"):
                gain = GAIN if each.name == "ndcg" else np.arange(128.0)
                scale[:] = best_dcg(grades[None], offsets, gain, int(cutoff))[0]
            elif each.name == "map":
                scale[:] = relevant
            elif each.name == "p":
                scale[:] = cutoff
        scales[:, relevant == 0] = 1.0
        return MeasureSettings(
            offsets,
            grades,
            relevant,
            np.array([kinds[each.name] for each in self.parsed], dtype=np.int64),
            cutoffs,
            scales,
            max(self.data.top_grade, int(grades.max())),
        )


def query_chunks(offsets: Offsets, documents: int) -> Iterator[tuple[int, int]]:
    """Ranges of queries with about this number of documents: (first, one after the last)."""
    first, queries = 0, len(offsets) - 1
    while first < queries:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + documents, side="right")) - 1)
        yield first, last
        first = last


def per_query(
    measures: Sequence[str | Measure], scores: ArrayLike, data: RankingData, grades: Grades | None = None
) -> Values:
    """Return the value of each measure for each query.

    The result is [measures, queries] for scores [documents], and [measures, models, queries] for scores [models,
    documents]. It is NaN if the measure skips the query. The last argument replaces the relevance labels of the data.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=6, seed=3)
    >>> print(fr.per_query(["ndcg@10", "mrr"], data.features[:, 24], data).round(2))  # by BM25
    [[ nan 0.22 0.51 0.54 0.3  0.5 ]
     [ nan 1.   0.5  1.   0.17 0.5 ]]
    """
    return Evaluator(data, measures, grades).per_query_of_scores(scores)


def evaluate(
    measures: Sequence[str | Measure], scores: ArrayLike, data: RankingData, grades: Grades | None = None
) -> Values:
    """Return the mean of each measure over the queries of `data`.

    The result is [measures] for scores [documents], and [measures, models] for scores [models, documents]. The last
    argument replaces the relevance labels of the data.

    >>> import numpy as np
    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=20)
    >>> data.feature_names[24], data.feature_names[19]
    ('BM25 of whole document', 'stream length of whole document')
    >>> fr.evaluate(["ndcg@10", "map"], np.stack([data.features[:, 24], data.features[:, 19]]), data).round(3).tolist()
    [[0.422, 0.111], [0.465, 0.286]]
    """
    return average(per_query(measures, scores, data, grades))


def average(values: Values) -> Values:
    """Mean over the last axis, the queries, without skipped ones; NaN if all are skipped.

    >>> average(np.array([[0.5, np.nan, 1.0], [np.nan, np.nan, np.nan]])).tolist()
    [0.75, nan]
    """
    counted = ~np.isnan(values)
    number = counted.sum(axis=-1)
    total: Values = np.where(counted, values, 0.0).sum(axis=-1)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def ranking(scores: ArrayLike, offsets: Offsets) -> NDArray[np.int64]:
    """Rank documents: scores [documents] -> row indices [documents], best first within each query.

    >>> ranking(np.array([1.0, 3.0, 2.0, 0.5, 0.6]), np.array([0, 3, 5])).tolist()
    [1, 2, 0, 4, 3]
    """
    from fedrank.kernels.measures import ranked_rows

    column = np.array(scores, dtype=np.float32).reshape(-1, 1)
    if np.isnan(column).any():
        row = int(np.isnan(column).argmax())
        raise ValueError(f"the score of document row {row} is NaN; look for NaN or infinity in features and weights")
    if len(column) != offsets[-1]:
        raise ValueError(f"{len(column)} scores for {offsets[-1]} documents; give one per document")
    return ranked_rows(column.view(np.int32), np.array(offsets, dtype=np.int64))
