from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedrank.data.ranking import RankingData
from fedrank.ranking import measures as module
from fedrank.ranking.measures import (
    MEASURES,
    Evaluator,
    Measure,
    average,
    evaluate,
    measure,
    per_query,
    ranking,
)
from fedrank.ranking.rankers import Linear
from tests.oracles import measures as oracle

ALL = ["ndcg@10", "ndcg", "ndcg-linear@3", "ndcg-linear", "map", "map@3", "mrr@2", "mrr", "err@5", "err", "p@1", "p@7"]
INFINITY = float("inf")


def made_up(lengths: list[int], features: int = 3, grades: int = 5, seed: int = 1) -> RankingData:
    rng = np.random.default_rng(seed)
    documents = sum(lengths)
    return RankingData(
        rng.standard_normal((documents, features)).astype(np.float32),
        rng.integers(0, grades, documents).astype(np.int8),
        np.concatenate([[0], np.cumsum(lengths)]),
        np.arange(len(lengths)).astype(str),
    )


def one_query(grades: list[int], top_grade: int = -1) -> RankingData:
    return RankingData(
        np.zeros((len(grades), 1), np.float32),
        np.array(grades, np.int8),
        np.array([0, len(grades)]),
        np.array(["only"]),
        top_grade=top_grade,
    )


def in_order(grades: list[int], name: str, top_grade: int = -1) -> float:
    """The measure of a list that shows these grades from the top."""
    scores = -np.arange(len(grades), dtype=np.float32)
    return float(evaluate([name], scores, one_query(grades, top_grade))[0])


# names


@pytest.mark.parametrize("text", [*ALL, "ndcg@10/zero", "mrr/one", "ndcg-linear@5/one", "map/zero"])
def test_text_survives(text: str) -> None:
    assert str(measure(text)) == text


def test_parses_to_fields() -> None:
    assert measure("ndcg-linear@5/zero") == Measure("ndcg-linear", 5, "zero")
    assert measure("map") == Measure("map", None, "skip")
    assert measure("ndcg@10/zero by Union") == Measure("ndcg", 10, "zero", "union")
    assert str(measure("ndcg@10/zero by union")) == "ndcg@10/zero by union"
    assert measure("ndcg@10 by intents").about.endswith("averaged over its intents")


@pytest.mark.parametrize(("text", "canonical"), [(" nDCG@10 ", "ndcg@10"), ("mrr/skip", "mrr"), ("p@05", "p@5")])
def test_prints_canonical_text(text: str, canonical: str) -> None:
    assert str(measure(text)) == canonical


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ndgc@10", "unknown measure 'ndgc'; did you mean \"ndcg\"\\?; write name\\[@cutoff\\]"),
        ("ndcg@10/zeros", "unknown choice 'zeros'; did you mean \"zero\"\\?"),
        ("ndcg@", "'ndcg@' is not a measure; write"),
        ("ndcg@10 by unions", "unknown labels 'unions'; did you mean \"union\""),
        ("ndcg@10 by", "'ndcg@10 by' is not a measure; write"),
        ("ndcg@ten", "is not a measure"),
        ("ndcg@10/zero/one", "is not a measure"),
        ("ndcg/", "unknown choice ''"),
        ("", "unknown measure ''"),
        ("ndcg@0", "must be at least 1"),
        ("map@0", "must be at least 1"),
        ("p", 'write "p@10"'),
    ],
)
def test_mistakes_are_explained(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        measure(text)


def test_all_measures_are_tested() -> None:
    assert {measure(text).name for text in ALL} == set(MEASURES)


# by hand


@pytest.mark.parametrize(
    ("name", "shown", "expected"),
    [
        ("ndcg@10", [1, 0, 2], (1 + 3 / 2) / (3 + 1 / math.log2(3))),
        ("ndcg@2", [1, 0, 2], 1 / (3 + 1 / math.log2(3))),
        ("ndcg", [0, 0, 0, 1], 1 / math.log2(5)),
        ("ndcg-linear@10", [1, 0, 2], (1 + 2 / 2) / (2 + 1 / math.log2(3))),
        ("ndcg-linear@1", [1, 0, 2], 1 / 2),
        ("map", [0, 1, 2, 0, 1], (1 / 2 + 2 / 3 + 3 / 5) / 3),
        ("map@3", [0, 1, 2, 0, 1], (1 / 2 + 2 / 3) / 3),  # of three relevant documents, though one lies below
        ("map@1", [2, 1], 1 / 2),
        ("mrr", [0, 0, 3, 1], 1 / 3),
        ("mrr@2", [0, 0, 3, 1], 0),
        ("mrr@3", [0, 0, 3, 1], 1 / 3),
        ("p@1", [0, 1], 0),
        ("p@2", [0, 1], 1 / 2),
        ("p@10", [0, 1], 1 / 10),
    ],
)
def test_by_hand(name: str, shown: list[int], expected: float) -> None:
    assert in_order(shown, name) == pytest.approx(expected, rel=1e-14)


def test_err_by_hand() -> None:
    # Top grade 2: grade 1 satisfies with (2 - 1) / 4, grade 2 with (4 - 1) / 4.
    assert in_order([1, 0, 2], "err", top_grade=2) == pytest.approx(1 / 4 + 3 / 4 * 3 / 4 / 3)
    assert in_order([1, 0, 2], "err@2", top_grade=2) == 1 / 4


def test_err_knows_a_scale_whose_top_does_not_occur() -> None:
    assert in_order([1, 0], "err", top_grade=4) == 1 / 16


# queries without a relevant document


def test_queries_without_relevant_documents() -> None:
    data = RankingData(
        np.zeros((4, 1), np.float32), np.array([0, 0, 0, 1], np.int8), np.array([0, 2, 4]), np.array(["none", "one"])
    )
    scores = np.array([1, 0, 1, 0], np.float32)
    values = per_query(["mrr", "mrr/zero", "mrr/one"], scores, data)
    np.testing.assert_array_equal(values, [[np.nan, 1 / 2], [0, 1 / 2], [1, 1 / 2]])
    np.testing.assert_array_equal(average(values), [1 / 2, (0 + 1 / 2) / 2, (1 + 1 / 2) / 2])


@pytest.mark.parametrize("name", ALL)
def test_nothing_relevant_anywhere(name: str) -> None:
    assert math.isnan(in_order([0, 0, 0], name))
    assert in_order([0, 0, 0], name + "/zero") == 0
    assert in_order([0, 0, 0], name + "/one") == 1


# shapes, grades from elsewhere, ties, NaN


def test_shapes() -> None:
    data = made_up([4, 3])
    weights = np.random.default_rng(1).standard_normal((20, 3))
    scores = Linear().score(weights, data.features)
    assert per_query(ALL, scores, data).shape == (len(ALL), 20, 2)
    assert per_query(ALL, scores[0], data).shape == (len(ALL), 2)
    assert evaluate(ALL, scores, data).shape == (len(ALL), 20)
    assert evaluate(ALL, scores[0], data).shape == (len(ALL),)
    assert Evaluator(data, ALL)(weights, Linear()).shape == (len(ALL), 20)
    assert Evaluator(data, ALL)(weights[0], Linear()).shape == (len(ALL),)
    assert Evaluator(data, ALL)(weights[:0], Linear()).shape == (len(ALL), 0)


def test_other_grades() -> None:
    data = one_query([2, 0, 0])
    scores = np.array([3, 2, 1], np.float32)
    assert evaluate(["mrr"], scores, data, grades=np.array([0, 0, 1], np.int8)) == 1 / 3
    assert Evaluator(data, ["mrr"], np.array([0, 1, 0], np.int8))(np.array([1.0]), Fixed(scores)) == 1 / 2
    assert evaluate(["err"], scores, data, grades=np.array([1, 0, 0], np.int8)) == 1 / 4


@pytest.mark.parametrize("grades", [[1, 0], [0, -1, 1], [0, 128, 1]])
def test_wrong_grades_are_refused(grades: list[int]) -> None:
    with pytest.raises(ValueError, match="relevance labels"):
        evaluate(["ndcg"], np.zeros(3), one_query([0, 1, 2]), grades=np.array(grades))


def test_wrong_scores_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scores of shape \[2\] for 3 documents"):
        evaluate(["ndcg"], np.zeros(2), one_query([0, 1, 2]))
    with pytest.raises(ValueError, match="2 scores for 3 documents"):
        ranking(np.zeros(2), np.array([0, 3]))
    with pytest.raises(ValueError, match="at least one measure"):
        evaluate([], np.zeros(3), one_query([0, 1, 2]))


def test_nan_is_refused_and_located() -> None:
    data = made_up([4, 3])
    scores = np.zeros((18, 7))
    scores[17, 5] = np.nan
    with pytest.raises(ValueError, match="model 17 scores a document of query 1 as NaN"):
        evaluate(["ndcg@10"], scores, data)
    weights = np.ones((3, 3))
    weights[2] = np.nan
    with pytest.raises(ValueError, match="model 2 scores a document of query 0 as NaN"):
        Evaluator(data, ["ndcg"])(weights, Linear())
    with pytest.raises(ValueError, match="document row 1 is NaN"):
        ranking(np.array([0, np.nan]), np.array([0, 2]))


def test_infinite_scores_and_signed_zeros_have_their_places() -> None:
    scores = np.array([0.0, -INFINITY, 1e-45, INFINITY, -1e-45, 3e38, -3e38])
    assert ranking(scores, np.array([0, 7])).tolist() == [3, 5, 2, 0, 4, 6, 1]
    zeros = np.array([0.0, -0.0, 0.0, -0.0, 0.0])
    assert ranking(zeros, np.array([0, 5])).tolist() == ranking(np.zeros(5), np.array([0, 5])).tolist()


def test_ranking_keeps_queries_apart() -> None:
    assert ranking(np.array([1, 2, 9, 7, 8]), np.array([0, 2, 5])).tolist() == [1, 0, 2, 4, 3]


@pytest.mark.parametrize("documents", [1, 2, 63, 64, 65, 300])
def test_ties_are_shuffled_alike_for_every_score(documents: int) -> None:
    shuffles = [ranking(np.full(documents, score), np.array([0, documents])).tolist() for score in (-2.5, 0.0, 7.0)]
    assert sorted(shuffles[0]) == list(range(documents))
    assert shuffles[0] == shuffles[1] == shuffles[2] == oracle.ranking([0.0] * documents)


def test_a_constant_model_gains_nothing_from_a_sorted_file() -> None:
    lengths = list(range(5, 205))
    grades = np.concatenate([np.arange(n) < (n + 4) // 5 for n in lengths]).astype(np.int8)
    data = made_up(lengths)
    chance = np.mean([((n + 4) // 5) / n for n in lengths])
    for sorted_grades in (grades, np.concatenate([part[::-1] for part in np.split(grades, data.offsets[1:-1])])):
        assert evaluate(["p@1"], np.zeros(data.documents), data, sorted_grades)[0] == pytest.approx(chance, abs=0.05)
        assert evaluate(["p@5"], np.zeros(data.documents), data, sorted_grades)[0] == pytest.approx(chance, abs=0.02)


# many models at once


@dataclass(frozen=True)
class Fixed:
    """A ranker that multiplies fixed scores by its only weight."""

    scores: np.ndarray
    hidden = 0

    def size(self, features: int) -> int:
        return 1

    def first(self, features: int, rng: np.random.Generator) -> np.ndarray:
        return np.ones(1)

    def score(self, weights: np.ndarray, features: np.ndarray) -> np.ndarray:
        assert len(weights) <= module.MODELS
        return (weights * self.scores).astype(np.float32)


def test_weights_and_scores_agree() -> None:
    # Small integers: every product is exact, whichever way it is computed.
    rng = np.random.default_rng(3)
    data = made_up([40] * 250)
    data.features[:] = rng.integers(-30, 30, data.features.shape)
    weights = rng.integers(-30, 30, (19, 3)).astype(float)
    np.testing.assert_array_equal(
        Evaluator(data, ALL).per_query(weights, Linear()),
        per_query(ALL, weights @ data.features.T, data),
    )


def test_a_value_does_not_depend_on_the_company() -> None:
    data = made_up([1, 30, 7, 200] * 40, features=46)
    assert len(list(module.query_chunks(data.offsets, module.DOCUMENTS))) > 1
    weights = np.random.default_rng(5).standard_normal((37, 46))
    judge = Evaluator(data, ["ndcg@10", "map"])
    together = judge.per_query(weights, Linear())
    alone = np.stack([judge.per_query(row, Linear()) for row in weights], axis=1)
    np.testing.assert_array_equal(together, alone)
    averages = judge(weights, Linear())
    for first, last in [(0, 5), (5, 25), (25, 37)]:
        np.testing.assert_array_equal(averages[:, first:last], judge(weights[first:last], Linear()))


def test_chunks_cover_all_queries_and_survive_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DOCUMENTS", 10)
    assert list(module.query_chunks(np.array([0, 4, 10, 31, 33, 40]), 10)) == [(0, 2), (2, 3), (3, 5)]
    data = made_up([4, 6, 21, 2, 7])
    scores = np.random.default_rng(1).standard_normal((2, 40))
    in_chunks = per_query(ALL, scores, data)
    monkeypatch.setattr(module, "DOCUMENTS", 4096)
    np.testing.assert_array_equal(in_chunks, per_query(ALL, scores, data))


def test_evaluator_leaves_the_rankers_array_alone() -> None:
    data = one_query([1, 0, 2])
    scores = np.array([-1.0, 2.0, -3.0], np.float32)
    evaluate(ALL, scores, data)
    assert scores.tolist() == [-1.0, 2.0, -3.0]
    scores.flags.writeable = False
    assert evaluate(["mrr"], scores, data) == 1 / 2


# the slow oracle


@pytest.mark.parametrize("levels", [3, 10**6])  # many ties, hardly any
def test_against_the_oracle(levels: int) -> None:
    data = made_up([1, 2, 5, 9, 10, 11, 12, 19, 20, 21, 64, 65, 70, 150], grades=3)
    scores = np.random.default_rng(levels).integers(-levels, levels, (18, data.documents)).astype(np.float32)
    values = per_query(ALL, scores, data)
    for m, text in enumerate(ALL):
        wanted = measure(text)
        for query, (a, b) in enumerate(pairwise(data.offsets)):
            for model in (0, 3, 17):
                grades = data.grades[a:b].tolist()
                expected = oracle.value(wanted.name, wanted.cutoff, scores[model, a:b].tolist(), grades, 2)
                assert values[m, model, query] == pytest.approx(
                    expected or (0.0 if max(grades) else np.nan), nan_ok=True
                )


@pytest.mark.parametrize("cutoff", [1, 2, 3, 9, 16, 40])
def test_every_cutoff_agrees_with_the_oracle(cutoff: int) -> None:
    data = made_up([130, 37], grades=4)
    scores = np.random.default_rng(cutoff).integers(0, 60, (16, data.documents)).astype(np.float32)
    values = per_query([f"ndcg@{cutoff}"], scores, data)[0]
    for query, (a, b) in enumerate(pairwise(data.offsets)):
        for model in range(16):
            expected = oracle.value("ndcg", cutoff, scores[model, a:b].tolist(), data.grades[a:b].tolist(), 3)
            assert values[model, query] == pytest.approx(expected)


# outsiders


@pytest.mark.parametrize("cutoff", [None, 3, 10])
def test_against_scikit_learn(cutoff: int | None) -> None:
    from sklearn.metrics import ndcg_score

    data = made_up([12, 40, 25])
    scores = np.random.default_rng(4).permutation(data.documents).astype(np.float32)
    suffix = "" if cutoff is None else f"@{cutoff}"
    values = per_query([f"ndcg{suffix}", f"ndcg-linear{suffix}"], scores, data)
    for query, (a, b) in enumerate(pairwise(data.offsets)):
        gains = 2.0 ** data.grades[None, a:b] - 1
        assert values[0, query] == pytest.approx(ndcg_score(gains, scores[None, a:b], k=cutoff))
        assert values[1, query] == pytest.approx(ndcg_score(data.grades[None, a:b], scores[None, a:b], k=cutoff))


def test_names_of_ir_measures() -> None:
    assert [str(measure(name)) for name in ("AP", "AP@10", "RR@10/zero", "P@5")] == [
        "map",
        "map@10",
        "mrr@10/zero",
        "p@5",
    ]


def test_against_ir_measures() -> None:
    ir_measures = pytest.importorskip("ir_measures")
    theirs = {
        "map": ir_measures.AP,
        "map@10": ir_measures.AP @ 10,
        "mrr": ir_measures.RR,
        "mrr@3": ir_measures.RR @ 3,
        "p@5": ir_measures.P @ 5,
        "p@50": ir_measures.P @ 50,
        "ndcg-linear@10": ir_measures.nDCG @ 10,
        "ndcg-linear": ir_measures.nDCG,
    }
    data = made_up([12, 40, 25, 3], grades=3)
    data.grades[data.offsets[1] : data.offsets[1] + 30] = 0
    scores = np.random.default_rng(6).permutation(data.documents).astype(np.float32)
    rows = [(str(q), str(d)) for q in range(4) for d in range(data.offsets[q], data.offsets[q + 1])]
    grades = [ir_measures.Qrel(q, d, int(data.grades[int(d)])) for q, d in rows]
    run = [ir_measures.ScoredDoc(q, d, float(scores[int(d)])) for q, d in rows]
    values = per_query(list(theirs), scores, data)
    names = {their: i for i, their in enumerate(theirs.values())}
    found = list(ir_measures.iter_calc(list(theirs.values()), grades, run))
    assert len(found) == len(theirs) * 4
    for metric in found:
        assert values[names[metric.measure], int(metric.query_id)] == pytest.approx(metric.value)


# properties


@st.composite
def graded_lists(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    documents = draw(st.integers(1, 40))
    grades = draw(arrays.arrays(np.int8, documents, elements=st.integers(0, 31)))
    places = draw(st.permutations(range(documents)))
    return grades, np.array(places, np.float32) - 7


@settings(deadline=None, max_examples=60)
@given(graded_lists(), st.randoms(use_true_random=False))
def test_order_of_the_file_does_not_matter(made: tuple[np.ndarray, np.ndarray], random: object) -> None:
    grades, scores = made
    shuffle = np.random.default_rng(random.getrandbits(32)).permutation(len(grades))  # type: ignore[attr-defined]
    here = evaluate(ALL, scores, one_query(grades.tolist()))
    there = evaluate(ALL, scores[shuffle], one_query(grades[shuffle].tolist()))
    np.testing.assert_array_equal(here, there)


@settings(deadline=None, max_examples=60)
@given(graded_lists())
def test_between_0_and_1_and_best_when_sorted(made: tuple[np.ndarray, np.ndarray]) -> None:
    grades, scores = made
    data = one_query(grades.tolist())
    values = evaluate([f"{name}/zero" for name in ALL], scores, data)
    assert np.all((values >= 0) & (values <= 1))
    best = evaluate([f"{name}/zero" for name in ALL], np.sort(grades)[np.argsort(np.argsort(grades))], data)
    assert np.all(best >= values)
    if grades.max() > 0:
        perfect = evaluate(["ndcg@10", "ndcg", "ndcg-linear@4", "map", "mrr"], grades, data)
        np.testing.assert_array_equal(perfect, 1)


@pytest.mark.parametrize("name", ALL)
def test_extreme_lists(name: str) -> None:
    cutoff = measure(name).cutoff or 1
    alone = in_order([1], name, top_grade=1)
    assert alone == (1 / 2 if name.startswith("err") else 1 / cutoff if name.startswith("p") else 1)
    for shown in ([3] * 50, [31, 0, 30]):
        scores = [-rank for rank in range(len(shown))]
        expected = oracle.value(measure(name).name, measure(name).cutoff, scores, shown, max(shown))
        assert in_order(shown, name) == pytest.approx(expected, rel=1e-13)


# averages and clicks


def test_average_without_skipped_queries() -> None:
    values = np.array([[[0.25, np.nan, 0.75]], [[np.nan, np.nan, np.nan]]])
    np.testing.assert_array_equal(average(values), [[0.5], [np.nan]])


def test_labels_of_intents_and_of_their_union_by_hand():
    features = np.arange(6, 0, -1, dtype=np.float32)[:, None]  # ranked as they stand
    intents = np.array([[0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 1]], np.int8)  # the first is nowhere in the second query
    data = RankingData(features, np.ones(6, np.int8), np.array([0, 3, 6]), np.array(["a", "b"]), intents=intents)
    evaluator = Evaluator(data, ["mrr by intents", "mrr", "mrr by union", "p@2/zero by intents"])
    assert evaluator.per_query(np.ones(1), Linear()).tolist() == [
        [0.75, 1 / 3],  # the mean of 1/2 and 1; the only intent that has something relevant
        [1.0, 1.0],
        [1.0, 1 / 3],
        [0.5, 0.0],  # 1 of 2 by either intent; 0 by both
    ]
    two = evaluator.per_query(np.array([[1.0], [-1.0]]), Linear())
    assert two.shape == (4, 2, 2)
    assert np.array_equal(two[:, 0], evaluator.per_query(np.ones(1), Linear()))


def test_labels_of_intents_need_intents():
    data = RankingData(np.ones((2, 1), np.float32), np.ones(2, np.int8), np.array([0, 2]), np.array(["a"]), "flat")
    with pytest.raises(ValueError, match="flat has no judgements by intent for 'mrr by union'"):
        Evaluator(data, ["mrr", "mrr by union"])
