from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.silo.rtk import NONE, PUBLISHED, ReverseTopK, TopKRule, build, cover_rate, naive
from fedrank.silo.sketch import Sketcher
from tests.oracles import sketch as oracle

KEY = bytes(range(32))
DEPTH, WIDTH = 4, 3


def random_sketches(seed: int, n: int) -> np.ndarray:
    """Values with many ties."""
    return np.random.default_rng(seed).integers(-4, 5, (n, DEPTH, WIDTH)).astype(np.int32)


def built(sketches, rule, kind="count-sketch", blocks=1) -> ReverseTopK:
    return build(np.array_split(sketches, blocks), rule, kind, sketches.shape[1], sketches.shape[2])


RULES = st.builds(
    TopKRule,
    alpha=st.sampled_from([1.0, 1.5, 3.0]),
    beta=st.sampled_from([0.0, 0.3, 0.6, 1.0]),
    k=st.integers(1, 4),
    keep=st.sampled_from(["ends", "largest"]),
    missing=st.sampled_from(["zero", "threshold", "absent"]),
)


@settings(deadline=None, max_examples=120)
@given(RULES, st.integers(0, 1000), st.integers(1, 25), st.integers(1, 4), st.booleans())
def test_query_equals_the_oracle(rule, seed, n, blocks, smallest):
    sketches = random_sketches(seed, n)
    if smallest:
        sketches, rule = np.abs(sketches), replace(rule, keep="largest")
    rng = np.random.default_rng(seed)
    cells = rng.integers(WIDTH, size=DEPTH)
    signs = np.ones(DEPTH, dtype=int) if smallest else rng.choice([-1, 1], size=DEPTH)
    rows, counts = built(sketches, rule, "count-min" if smallest else "count-sketch", blocks).query(cells, signs)
    expected = oracle.query(
        dict(enumerate(sketches.tolist())),
        cells.tolist(),
        signs.tolist(),
        keep=rule.keep,
        missing=rule.missing,
        capacity=rule.capacity,
        fewest=rule.beta * DEPTH,
        k=rule.k,
        smallest=smallest,
    )
    assert list(zip(rows.tolist(), counts.tolist(), strict=True)) == expected


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 200), st.integers(1, 5), st.booleans())
def test_naive_is_the_median_of_all_documents(seed, n, k, smallest):
    sketches = random_sketches(seed, n)
    rng = np.random.default_rng(seed)
    cells, signs = rng.integers(WIDTH, size=DEPTH), rng.choice([-1, 1], size=DEPTH)
    kind = "count-min" if smallest else "count-sketch"
    estimates = Sketcher(kind, WIDTH, DEPTH).estimate(sketches[:, np.arange(DEPTH), cells], signs)
    order = np.argsort(-estimates, kind="stable")
    expected = [d for d in order if estimates[d] > 0][:k]
    rows, counts = naive(sketches, cells, signs, k, kind)
    assert rows.tolist() == expected
    assert counts.tolist() == estimates[expected].tolist()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 20))
def test_with_room_for_all_it_is_naive(seed, n):
    sketches = random_sketches(seed, n)
    rng = np.random.default_rng(seed)
    cells, signs = rng.integers(WIDTH, size=DEPTH), rng.choice([-1, 1], size=DEPTH)
    whole = built(sketches, TopKRule(alpha=1, k=20), blocks=3)
    found, expected = whole.query(cells, signs, 5), naive(sketches, cells, signs, 5)
    assert found[0].tolist() == expected[0].tolist()
    assert found[1].tolist() == expected[1].tolist()
    assert whole.holes == whole.short_cells == 0


@pytest.mark.long
@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["ends", "largest", "magnitude"]),
    st.integers(1, 6),
    st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), max_size=12),
)
def test_cells_hold_the_best_of_who_is_there(keep, k, steps):
    """Insert and delete at random: what is kept is the head of the true order, and nobody missing beats `lost`."""
    rule = TopKRule(alpha=1, k=k, keep=keep)
    there = dict(enumerate(random_sketches(k, 5)))
    rtk, rows = built(np.stack(list(there.values())), rule), 5
    for insert, seed in steps:
        if insert:
            new = random_sketches(seed, 1 + seed % 3)
            rtk = rtk.insert(new)
            there |= {rows + i: table for i, table in enumerate(new)}
            rows += len(new)
        elif there:
            gone = sorted(there)[seed % len(there)]
            rtk = rtk.delete([gone])
            del there[gone]
    assert (len(rtk), len(rtk.present)) == (len(there), rows)
    assert np.flatnonzero(rtk.present).tolist() == sorted(there)
    holes = 0
    for row in range(DEPTH):
        for column in range(WIDTH):
            cell = {d: int(table[row, column]) for d, table in there.items()}
            for end, order in enumerate(oracle.cell_ends(cell, keep, 10**9)):
                size = int(rtk.sizes[end, row, column])
                documents, values = rtk.documents[end, row, column], rtk.values[end, row, column]
                assert list(zip(documents[:size].tolist(), values[:size].tolist(), strict=True)) == order[:size]
                assert np.all(documents[size:] == -1)
                lost = int(rtk.lost[end, row, column])
                if lost == NONE:
                    assert size == len(order)
                else:
                    side = {0: lambda v: v, 1: lambda v: -v, 2: abs}[2 if keep == "magnitude" else end]
                    assert all(side(value) <= side(lost) for _, value in order[size:])
                    holes += k - size
    assert rtk.holes == holes


def test_insert_and_delete_leave_the_old_one_alone():
    sketches = random_sketches(1, 10)
    whole = built(sketches, TopKRule(alpha=1, k=3))
    before = whole.documents.copy(), whole.values.copy(), whole.sizes.copy(), whole.lost.copy()
    frozen = replace(whole, documents=_read_only(whole.documents), values=_read_only(whole.values))
    more = frozen.insert(sketches[:2])
    fewer = frozen.delete([3])
    assert (len(whole), len(more), len(fewer)) == (10, 12, 9)
    for array, old in zip((whole.documents, whole.values, whole.sizes, whole.lost), before, strict=True):
        assert np.array_equal(array, old)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.setflags(write=False)
    return view


def test_inserting_one_by_one_is_building_at_once():
    sketches = random_sketches(2, 12)
    rule = TopKRule(alpha=1, k=4)
    grown = built(sketches[:0], rule)
    for table in sketches:
        grown = grown.insert(table[None])
    whole = built(sketches, rule)
    for name in ("documents", "values", "sizes", "lost", "present"):
        assert np.array_equal(getattr(grown, name), getattr(whole, name)), name


def test_holes_and_when_a_rebuild_is_due():
    # One cell, documents 0 .. 9 with values 0 .. 9: 9 8 7 6 are kept, and 5 is the best that is lost.
    cell = np.arange(10, dtype=np.int32).reshape(10, 1, 1)
    rule = TopKRule(alpha=2, k=2, keep="largest")
    rtk = built(cell, rule)
    assert (rtk.lost.item(), rtk.holes, rtk.short_cells) == (5, 0, 0)
    rtk = rtk.delete([0])  # was pushed out long ago
    assert rtk.holes == 0
    rtk = rtk.delete([9, 7])
    assert (rtk.documents[0, 0, 0].tolist(), rtk.holes, rtk.short_cells) == ([8, 6], 2, 0)
    rtk = rtk.insert(np.array([[[5]], [[7]]], dtype=np.int32))  # 5 is no better than the one that is lost
    assert (rtk.documents[0, 0, 0].tolist(), rtk.holes) == ([8, 11, 6], 1)
    rtk = rtk.delete([8, 11])
    assert (rtk.holes, rtk.short_cells) == (3, 1)
    with pytest.raises(ValueError, match="document 8 does not exist"):
        rtk.delete([8])
    with pytest.raises(ValueError, match="document 12 does not exist"):
        rtk.delete([6, 12])
    with pytest.raises(ValueError, match="document -1 does not exist"):
        rtk.delete([-1])
    assert len(rtk.delete([])) == len(rtk) == 12 - 5


def test_a_deleted_document_is_never_found_again():
    sketcher = Sketcher(width=50, depth=9)
    hashing = sketcher.hashing(KEY)
    counts = sketcher.term_counts(["a a a", "a a", "", "a"])
    rtk = build(sketcher.blocks(counts, hashing), TopKRule(k=3), sketcher.kind, 9, 50)
    cells, signs = sketcher.locate(["a", "never seen"], hashing)
    assert [x.tolist() for x in rtk.query(cells[0], signs[0])] == [[0, 1, 3], [3, 2, 1]]
    assert [x.tolist() for x in rtk.query(cells[0], signs[0], k=1)] == [[0], [3]]
    assert [x.tolist() for x in rtk.delete([0]).query(cells[0], signs[0])] == [[1, 3], [2, 1]]
    assert [x.tolist() for x in rtk.query(cells[1], signs[1])] == [[], []]
    assert [x.tolist() for x in rtk.delete([0, 1, 2, 3]).query(cells[0], signs[0])] == [[], []]


def test_there_are_as_many_places_as_the_fullest_cell_needs():
    rule = TopKRule(alpha=2, k=4)
    for n in (0, 1, 3, 8, 20):
        for blocks in (1, 5):
            rtk = built(random_sketches(1, n), rule, blocks=blocks)
            assert rtk.documents.shape == rtk.values.shape == (2, DEPTH, WIDTH, min(n, rule.capacity))
    few = built(random_sketches(1, 3), rule)
    assert few.insert(random_sketches(2, 2)).documents.shape[3] == 3 + 2
    assert few.insert(random_sketches(2, 20)).documents.shape[3] == rule.capacity
    assert few.insert(random_sketches(2, 0)).documents.shape[3] == 3
    assert few.delete([0, 2]).documents.shape[3] == 1
    assert few.delete([0, 1, 2]).bytes < few.bytes / 2


def test_deleting_ignores_row_numbers_that_cannot_be():
    rtk = built(np.ones((3, DEPTH, WIDTH), dtype=np.int32), TopKRule(alpha=1, k=3))
    rtk.documents[0, :, 0, 1] = 10**9
    rtk.documents[0, :, 1, 1] = -1  # as an index it would be the last, which is there
    rtk.sizes[0, 0, 2] = 10**6
    left = rtk.delete([0])
    assert [left.documents[0, 1, column].tolist() for column in range(WIDTH)] == [[2, -1], [2, -1], [1, 2]]
    assert left.sizes[0, 0].tolist() == [1, 1, 2]


def test_a_row_number_that_cannot_be_is_left_out():
    sketches = np.ones((3, DEPTH, WIDTH), dtype=np.int32)
    rtk = built(sketches, TopKRule(alpha=1, k=3))
    rtk.documents[0, :, 0, 1] = 10**9
    rows, _ = rtk.query(np.zeros(DEPTH), np.ones(DEPTH))
    assert rows.tolist() == [0, 2]
    rtk.sizes[:] = 10**6
    rows, _ = rtk.query(np.zeros(DEPTH), np.ones(DEPTH))
    assert rows.tolist() == [0, 2]


def test_both_ends_find_what_the_published_rule_does_not():
    # Document 0 holds the term 5 times, so that its cells are +5 or -5 by the sign of the row. Document 1 does not, and
    # shares one cell with a word that it holds 50 times. Two are kept of a cell (of each end).
    signs = np.array([1, 1, -1, -1])
    sketches = np.array([5 * signs, [50, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]], dtype=np.int32)[:, :, None]
    cells = np.zeros(4)

    def answer(rule: TopKRule) -> tuple[int, float]:
        rows, counts = built(sketches, replace(rule, alpha=2, k=1)).query(cells, signs)
        return int(rows[0]), float(counts[0])

    assert answer(TopKRule()) == (0, 5)
    assert answer(PUBLISHED) == (1, 50)  # the only row in which document 1 survives
    assert answer(TopKRule(missing="absent")) == (0, (5 + 5) / 2)  # it survives with 50, 0, 0


def test_cover_rate_by_hand():
    counts = np.array([0, 5, 3, 3, 3, 1])
    assert cover_rate(np.array([1, 4]), counts, 2) == 1  # a tie with the second best is as good
    assert cover_rate(np.array([1, 5, 0]), counts, 3) == 1 / 3
    assert cover_rate(np.array([1, 2, 3, 4, 5]), counts, 10) == 1  # only five hold it
    assert cover_rate(np.array([1, 2, 3, 4, 0]), counts, 10) == 4 / 5
    assert cover_rate(np.array([], dtype=int), counts, 3) == 0
    assert cover_rate(np.array([0]), np.zeros(3), 2) == 1


def test_memory_while_building_is_that_of_the_result_and_a_block():
    rule = TopKRule(alpha=1, k=10)
    whole = built(random_sketches(1, 4), rule)
    tracemalloc.start()
    build((random_sketches(i, 1000) for i in range(20)), rule, "count-sketch", DEPTH, WIDTH)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Eight bytes a value while it is drawn and four after, of one block and the one before: a third of all twenty.
    assert peak < whole.bytes + 2 * 12 * 1000 * DEPTH * WIDTH + 100_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.5}, "alpha must be at least 1"),
        ({"beta": 1.5}, "beta must be between 0 and 1"),
        ({"k": 0}, "k must be at least 1"),
        ({"keep": "some"}, "'ends' or 'largest'"),
        ({"missing": "none"}, "'zero' or 'threshold'"),
        ({"keep": "magnitude", "missing": "threshold"}, "sign of a missing value"),
    ],
)
def test_wrong_rules_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TopKRule(**settings)


def test_wrong_questions_are_refused():
    rtk = built(random_sketches(1, 5), TopKRule(k=2))
    right = np.zeros(DEPTH, dtype=int), np.ones(DEPTH, dtype=int)
    with pytest.raises(ValueError, match="got 3"):
        rtk.query(*right, k=3)
    with pytest.raises(ValueError, match="4 cells and signs"):
        rtk.query(right[0][:3], right[1][:3])
    with pytest.raises(ValueError, match="cells must be from 0"):
        rtk.query(right[0] + WIDTH, right[1])
    with pytest.raises(ValueError, match="signs 1 or -1"):
        rtk.query(right[0], 0 * right[1])
    with pytest.raises(ValueError, match="must have 4 x 3"):
        rtk.insert(np.zeros((1, 3, 4), dtype=np.int32))
    with pytest.raises(ValueError, match="build it again"):
        replace(rtk, rule=TopKRule(alpha=1, k=4))  # keeps 4, and 5 are there
    with pytest.raises(ValueError, match="do not match the documents"):
        replace(rtk, sizes=rtk.sizes[0])
