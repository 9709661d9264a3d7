"""Features, memory, refit, trial and used passages, each against a slow oracle or by hand."""

import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from fedrank.data.text import stemmer, tokens
from fedrank.search.rerank.learning import LARGEST, PENALTY, REMEMBERED, SCALES, Example, _pairs_of, is_due, refit
from fedrank.search.rerank.memory import MAX_QUERIES, ReaderRecord, UseMemory
from fedrank.search.rerank.passages import (
    BUCKETS,
    MIN_BACKGROUND,
    OWN,
    START,
    Hasher,
    PassageStatistics,
    describe,
    likeness,
    standardised,
)
from fedrank.search.rerank.trial import (
    ENOUGH,
    LEVEL,
    MOST,
    ArmOutcome,
    difference,
    evidence,
    flipped,
    judge,
    value_of,
)
from fedrank.search.rerank.used import used_passages

KEY = b"k" * 32
TEXTS = [
    "The asthma inhaler helps patients with asthma.",
    "Inhalers of different kinds, and how nurses explain them.",
    "Weather report for the coming week: rain.",
    "Asthma attacks and the weather.",
    "",
]


def words_of(texts):
    hasher = Hasher(KEY)
    return hasher, hasher.passages(texts, [hasher.digest(text) for text in texts])


def test_columns_against_an_oracle():
    """BM25 and the centroid, recomputed with dictionaries of stems."""
    hasher, words = words_of(TEXTS)
    many = PassageStatistics.empty()
    many.add(words * MIN_BACKGROUND)  # enough that the list itself is not added
    query = "asthma inhaler weather"
    found = describe(hasher.query(query), words, many)
    stem = stemmer("english")
    bags = [Counter(stem(word) for word in tokens(text)) for text in TEXTS]
    total = len(TEXTS) * MIN_BACKGROUND

    def idf(word):
        n = MIN_BACKGROUND * sum(word in bag for bag in bags)
        return math.log1p((total - n + 0.5) / (n + 0.5))

    mean = sum(sum(bag.values()) for bag in bags) / len(bags)
    asked = {stem(word) for word in tokens(query)}
    bm25 = [
        sum(
            idf(word) * bag[word] / (bag[word] + 0.9 * (0.6 + 0.4 * sum(bag.values()) / mean))
            for word in asked & set(bag)
        )
        for bag in bags
    ]
    vectors = [{word: math.log1p(count) * idf(word) for word, count in bag.items()} for bag in bags]
    units = [
        {word: value / math.sqrt(sum(v * v for v in vector.values())) for word, value in vector.items()}
        for vector in vectors
    ]

    def cosine(row):
        others = Counter()
        for other, unit in enumerate(units):
            if other != row:
                others.update(unit)
        length = math.sqrt(sum(value * value for value in others.values()))
        return sum(value * others[word] for word, value in units[row].items()) / length

    np.testing.assert_allclose(found.table[:, 1], standardised(np.array(bm25)), atol=1e-9)
    np.testing.assert_allclose(found.table[:, 2], standardised(np.array([cosine(row) for row in range(5)])), atol=1e-9)
    np.testing.assert_allclose(found.table[:, 0], standardised(-np.log(np.arange(1.0, 6))), atol=1e-12)
    np.testing.assert_allclose(found.absolute, np.array(bm25) / sum(map(idf, asked)), atol=1e-12)


def test_a_missing_signal_counts_as_average_and_is_named():
    hasher, words = words_of(TEXTS)
    signals = {"date": np.array([1.0, np.nan, 3.0, np.nan, 2.0])}
    found = describe(hasher.query("asthma"), words, PassageStatistics.empty(), signals)
    assert found.names == (*OWN, "date")
    np.testing.assert_allclose(found.table[:, 3], [-(1.5**0.5), 0, 1.5**0.5, 0, 0])
    assert found.missing == {"date": 2}
    assert np.isfinite(found.table).all()


@pytest.mark.parametrize("values", [[2.0, 2.0, 2.0], [np.nan, np.nan], [1e15, 1e15], []])
def test_equal_or_absent_values_are_zero(values):
    assert not standardised(np.array(values)).any()


def test_the_rarest_word_that_passages_have():
    hasher, words = words_of(TEXTS)
    many = PassageStatistics.empty()
    many.add(words)
    assert [many.rarest(hasher.query(text)) for text in ("please", "")] == [None, None]
    assert many.rarest(hasher.query("asthma nurse please")) == hasher.query("nurse")[0]


def test_a_query_without_words():
    hasher, words = words_of(TEXTS)
    found = describe(hasher.query("?!"), words, PassageStatistics.empty())
    assert not found.table[:, 1].any()
    assert not found.absolute.any()


def test_hashes_depend_on_the_key_and_on_lengths():
    one, other = Hasher(KEY), Hasher(b"o" * 32)
    assert set(one.query("asthma inhaler")).isdisjoint(other.query("asthma inhaler"))
    assert one.query("inhaler with steroid, what to do?").tolist() == one.query("a steroid inhaler").tolist()
    assert one.digest("a", "b") != one.digest("ab", "")
    assert one.digest("a") != other.digest("a")


def test_frequencies_count_a_passage_once_per_word():
    _, words = words_of(["rain rain rain snow", "snow fog"])
    background = PassageStatistics.empty()
    background.add(words)
    background.add([])
    assert (background.passages, background.words, background.frequencies.sum()) == (2, 6, 4)


# memory


def test_memory_by_hand():
    """Two words of three are shared; with equal idf the likeness is 2/4, which counts by half."""
    memory, background = UseMemory(), PassageStatistics.empty()
    one, other = np.array([1, 2, 3], np.int32), np.array([1, 2, 4], np.int32)
    memory.add(one, b"used", 2, 0)
    memory.add(one, b"unused", 0, 1)
    np.testing.assert_allclose(memory.lift(one, [b"used", b"unused", b"new"], background), [20 / 3, 0, 0])
    np.testing.assert_allclose(memory.lift(other, [b"used"], background), [10 * 1 / 2])
    assert not memory.lift(np.array([1, 8, 9], np.int32), [b"used"], background).any()  # likeness 1/5
    memory.add(one, b"used", -2, 0)
    assert not memory.lift(one, [b"used"], background).any()


def test_votes_of_a_person_are_limited_and_those_of_a_reader_weighted():
    """A person with 6 votes counts as 3, 2 of them for the passage; the trust in the reader is a factor of both."""
    memory, background, stems = UseMemory(), PassageStatistics.empty(), np.array([1, 2], np.int32)
    memory.add(stems, b"d", 4, 2, "model-1", b"ann")
    np.testing.assert_allclose(memory.lift(stems, [b"d"], background), [10 * 2 / (3 + 1)])
    memory.add(stems, b"d", 0, 1, "model-2")
    np.testing.assert_allclose(memory.lift(stems, [b"d"], background), [10 * 2 / (4 + 1)])
    trust = {"model-1": 0.5}
    np.testing.assert_allclose(memory.lift(stems, [b"d"], background, trust), [10 * 1 / (2.5 + 1)])


def test_trust_by_hand():
    """Each record begins with 20 passages: 12 of those used before were used again, and 4 of the others."""
    assert ReaderRecord().trust == 1
    record = ReaderRecord([30, 100], [24, 80])  # 42/120 - 28/100 = .07, of .2
    assert record.trust == pytest.approx(0.35)
    assert ReaderRecord([0, 1000], [300, 1000]).trust == 0


def test_memory_is_bounded_by_votes(monkeypatch):
    monkeypatch.setattr("fedrank.search.rerank.memory.MAX_VOTES", 4)
    memory = UseMemory()
    for number in range(3):
        for passage in (b"a", b"b"):
            memory.add(np.array([number], np.int32), passage, 1, 0)
    assert (len(memory), memory._votes) == (2, 4)


def test_runs_of_words():
    hasher = Hasher(KEY)
    text = "one two three four five six seven eight nine"
    assert len(hasher.runs(text)) == 2
    assert set(hasher.runs(text.upper() + "!")) == set(hasher.runs(text))
    assert set(hasher.runs("ten " + text)) > set(hasher.runs(text))
    assert len(hasher.runs("one two three four five six seven")) == len(hasher.runs("")) == 0
    assert set(Hasher(b"o" * 32).runs(text)).isdisjoint(hasher.runs(text))


def test_passages_are_split_together_as_one_by_one():
    together, alone = Hasher(KEY), Hasher(KEY)
    texts = [*TEXTS, TEXTS[0], "Straße ﬁne " * 3000, "x" * 50]
    digests = [together.digest(text) for text in texts]
    for words, text, digest in zip(together.passages(texts, digests), texts, digests, strict=True):
        other = alone.passages([text], [digest])[0]
        assert (words.stems.tolist(), words.counts.tolist(), words.length) == (
            other.stems.tolist(), other.counts.tolist(), other.length,
        )  # fmt: skip
        assert words.counts.sum() == min(words.length, 4096)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("fedrank.search.rerank.memory.MAX_QUERIES", 3)
    memory = UseMemory()
    for number in range(5):
        memory.add(np.array([number], np.int32), b"d", 1, 0)
    assert len(memory) == 3
    assert not memory.lift(np.array([0], np.int32), [b"d"], PassageStatistics.empty()).any()
    assert memory.lift(np.array([4], np.int32), [b"d"], PassageStatistics.empty()) > 0
    assert MAX_QUERIES > 1000


def test_likeness_is_weighted():
    """Of 10 passages, 1, 5 and 5 have the words 1, 2 and 3."""
    background = PassageStatistics(10, 100, np.zeros(BUCKETS, np.int32))
    background.frequencies[[1, 2, 3]] = 1, 5, 5
    rare, common = math.log1p(9.5 / 1.5), math.log1p(5.5 / 5.5)
    others = [np.array(stems, np.int32) for stems in ([1, 3], [3], [1, 2], [])]
    found = likeness(np.array([1, 2], np.int32), others, background)
    np.testing.assert_allclose(found, [rare / (rare + 2 * common), 0, 1, 0])


# refit


def examples(rng, signal, count=300):
    made = []
    for _ in range(count):
        features = rng.normal(size=(5, 4))
        chance = 1 / (1 + np.exp(-(0.5 * features[:, :3] @ START + signal * features[:, 3])))
        used = rng.random(5) < chance
        made.append(Example(features, np.zeros(5), np.flatnonzero(used), np.flatnonzero(~used), 1.0, len(made)))
    return made


def test_refit_finds_the_worth_of_a_signal():
    rng = np.random.default_rng(1)
    names = [*OWN, "own"]
    found = refit(names, examples(rng, 0.3))
    assert 0.15 < found["own"] < 0.45
    np.testing.assert_allclose([found[name] / found["rank"] for name in OWN], START, atol=0.1)  # nearly its proportions
    assert 0.25 < found["rank"] < 0.75
    strong = refit(names, examples(rng, 3.0))
    assert strong["own"] == pytest.approx(LARGEST * strong["bm25"], rel=0.1)  # no signal counts more than the rank


def test_a_signal_that_repeats_the_rank_does_not_turn_against_it():
    """Shown are the 5 passages of 50 with the best start; used are those with words of the query.

    Among these, rank and words are negatively related, so the copy of the rank looks harmful.
    """
    rng = np.random.default_rng(5)
    made, lists = [], []
    for number in range(400):
        features = rng.normal(size=(50, 4))
        features[:, 3] = features[:, 0] + rng.normal(0, 0.3, 50)
        shown = np.argsort(-(features[:, :3] @ START))[:5]
        used = rng.random(5) < 1 / (1 + np.exp(-3 * (features[shown, 1] - features[shown, 1].mean())))
        made.append(Example(features, np.zeros(50), shown[used], shown[~used], 1.0, number))
        lists.append(features)
    pairs, explained = _pairs_of(made)
    scale, fitted = pairs.fit()
    weights, every = np.append(scale * START - explained @ fitted, fitted), np.concatenate(lists)
    assert np.corrcoef(every @ weights, every[:, :3] @ START)[0, 1] > 0.97


def test_a_worthless_signal_is_rarely_fitted():
    """At two standard errors, one side: 2.3 % of the cases; more than 6 of 60 have probability .001."""
    rng = np.random.default_rng(3)
    assert sum(refit([*OWN, "own"], examples(rng, 0.0, 60)) is not None for _ in range(60)) <= 6


def test_refit_against_an_optimiser():
    rng = np.random.default_rng(2)
    made = examples(rng, 0.7, 40)
    made[0] = Example(made[0].features, 3 * rng.normal(size=5), made[0].used, made[0].unused, 0.5, 0)
    pairs = [
        (one.features[i] - one.features[j], one.memory[i] - one.memory[j], one.weight / len(one.used) / len(one.unused))
        for one in made
        for i in one.used
        for j in one.unused
    ]
    every = np.concatenate([one.features for one in made])
    explained = np.linalg.lstsq(  # least squares with a small penalty, written as rows
        np.concatenate([every[:, :3], (1e-3 * len(every)) ** 0.5 * np.eye(3)]), np.append(every[:, 3], np.zeros(3))
    )[0]
    x, offset, weight = (np.array(column) for column in zip(*pairs, strict=True))
    kept = np.abs(offset) <= REMEMBERED
    assert 0 < (~kept).sum() < 10
    x, offset, weight = x[kept], offset[kept], weight[kept]
    start, rest = x[:, :3] @ START, x[:, 3] - x[:, :3] @ explained

    def loss(scale, own):
        return weight @ np.logaddexp(0, -(scale * start + own * rest + offset))

    scale = minimize(lambda v: loss(v[0], 0), [0.5], bounds=[SCALES], tol=1e-12).x[0]
    own = minimize(lambda v: loss(scale, v[0]) + PENALTY / 2 * v[0] ** 2, [0.0], tol=1e-12).x[0]
    found = refit([*OWN, "own"], made)
    assert [found[name] for name in OWN] == pytest.approx((scale * START - own * explained).tolist(), abs=1e-4)
    assert found["own"] == pytest.approx(own, abs=1e-4)


def test_nothing_to_fit():
    rng = np.random.default_rng(1)
    assert refit(OWN, [Example(np.zeros((2, 3)), np.zeros(2), np.array([0]), np.array([1]), 1.0, 0)]) is None
    assert (
        refit([*OWN, "own"], [Example(rng.normal(size=(2, 4)), np.zeros(2), np.array([0]), np.array([], int), 1.0, 0)])
        is None
    )


@pytest.mark.parametrize(
    ("feedbacks", "fitted", "due"), [(49, 0, False), (50, 0, True), (99, 50, False), (100, 50, True), (250, 120, True)]
)
def test_refits_come_at_doubled_numbers(feedbacks, fitted, due):
    assert is_due(feedbacks, fitted) == due


# trial


def test_value_by_hand():
    assert value_of([4, 2, 7], [2]) == pytest.approx(1 / math.log2(3))
    assert value_of([4, 2, 7], [4, 2]) == 1
    assert value_of([4, 2], [9]) == 0
    assert value_of([4, 2], []) == 0


def test_evidence_by_hand():
    """One request of the first arm with value 1: the bet on 0.5 · (1 - 0.5) / 0.5 = 0.5 of each stake."""
    stakes = (0.05, 0.1, 0.2, 0.4)
    assert evidence([ArmOutcome(1.0, True)]) == pytest.approx(math.log(np.mean([1 + 0.5 * stake for stake in stakes])))
    assert evidence([ArmOutcome(1.0, False)]) == pytest.approx(math.log(np.mean([1 - 0.5 * stake for stake in stakes])))
    assert evidence([]) == 0


def simulated(rng, gap, count, share=0.5):
    first = rng.random(count) < share
    values = np.clip(rng.beta(1, 1, count) * 0.8 + np.where(first, gap, 0.0), 0, 1)
    return [ArmOutcome(float(value), bool(one)) for value, one in zip(values, first, strict=True)]


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_equal_arms_rarely_give_evidence_at_any_look(share):
    """100 runs with a look after every 50 requests; at level 5 %, more than 12 false alarms have probability .002."""
    rng = np.random.default_rng(1)
    false = 0
    for _ in range(100):
        outcomes = simulated(rng, 0.0, 600, share)
        false += any(evidence(outcomes[:end], share) >= -math.log(LEVEL) for end in range(50, 601, 50))
    assert false <= 12


def test_a_worse_model_is_refused_and_a_better_one_adopted():
    rng = np.random.default_rng(2)
    assert judge(simulated(rng, -0.15, 1500)) == "refuse"
    assert judge(simulated(rng, 0.15, ENOUGH)) == "adopt"
    assert judge(simulated(rng, 0.15, ENOUGH - 1)) == "continue"
    slightly = [
        ArmOutcome(0.5 + 0.4 * (-1) ** (number // 2) - 0.04 * (number % 2), number % 2 == 1) for number in range(MOST)
    ]
    assert judge(slightly[:-1]) == "continue"  # worse than the margin, and not yet significant
    assert judge(slightly) == "refuse"


def test_difference_and_flip():
    outcomes = [ArmOutcome(1.0, True), ArmOutcome(0.0, True), ArmOutcome(0.0, False), ArmOutcome(0.0, False)]
    found = difference(outcomes)
    assert (found.difference, found.requests, found.means) == (0.5, (2, 2), (0.5, 0.0))
    assert found.low < 0.5 < found.high
    assert difference(flipped(outcomes)).difference == -0.5
    assert difference(outcomes[:2]) is None


# used passages


PASSAGES = [
    "The inhaler should be shaken well before each use by the patient.",
    "Weather in the north is often wet and cold in November.",
    "The inhaler should be shaken well before each use by the patient. Store it below 30 degrees in a dry place.",
]


def test_citations_and_spans():
    answer = "Store it below 30 degrees in a dry place [3]. Rain is likely [2]."
    found = used_passages(answer, PASSAGES)
    assert [(one.index, one.cited, one.supported) for one in found] == [(1, True, False), (2, True, True)]
    assert found[1].span == "store it below 30 degrees in a dry place"


def test_a_span_that_two_passages_share_counts_for_neither():
    assert used_passages("The inhaler should be shaken well before each use by the patient.", PASSAGES) == []


@pytest.mark.parametrize("answer", ["", "[0] [9] [1234]", "nothing in common", "[]"])
def test_nothing_used(answer):
    assert used_passages(answer, PASSAGES) == []


def test_numbers_from_zero_and_lists_of_numbers():
    assert [one.index for one in used_passages("see [0, 2]", PASSAGES, first_number=0)] == [0, 2]
    with pytest.raises(ValueError, match="min_words"):
        used_passages("", PASSAGES, min_words=1)


def test_the_tutorial_shows_what_happens(tmp_path, monkeypatch, capsys):
    """The first example of the tutorial prints the indices in its comments; the key decides which requests differ."""
    page = Path(__file__).parents[3] / "docs" / "tutorials" / "rerank.md"
    code = re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reranker").mkdir()
    (tmp_path / "reranker" / "rerank.key").write_bytes(bytes(32))
    exec(code, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"# (\[\d, \d\])", code) == ["[0, 3]", "[3, 0]"]
