"""What a booster chose is counted, and shown by rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrank.data.ranking import RankingData
from fedrank.trees.selection import Selected
from fedrank_papers.tree_figures import by_rank, selection_map

# Two queries of three and two documents; by the feature they rank 2, 0, 1 and 4, 3. Document 1 is relevant.
DATA = RankingData(
    np.array([[0.5], [0.1], [0.9], [0.2], [0.4]], dtype=np.float32),
    np.array([0, 1, 0, 0, 0], dtype=np.int8),
    np.array([0, 3, 5]),
    np.array(["a", "b"]),
)


@pytest.fixture
def selected():
    found = Selected(np.zeros(5, dtype=np.int32))
    found.add(2, np.array([True, True, False, False, True]), DATA)
    found.add(3, np.array([False, True, True, False, True]), DATA)
    return found


def test_counts_by_hand(selected):
    assert selected.counts.tolist() == [1, 0, 1, 0, 2]
    assert (selected.trees, selected.kept, selected.new) == ([2, 3], [2, 2], [2, 1])


def test_it_survives_a_file(selected, tmp_path):
    np.savez(tmp_path / "selected.npz", **selected.arrays())
    back = Selected.load(tmp_path)
    assert back.counts.tolist() == selected.counts.tolist()
    assert (back.trees, back.kept, back.new) == (selected.trees, selected.kept, selected.new)
    back.add(4, np.ones(5, dtype=bool), DATA)
    assert back.new == [2, 1, 1]


def test_shares_by_rank_by_hand(selected):
    # In the order of the data: first documents 1 + 0, second ones 0 + 2, third one 1, of 4 in all.
    np.testing.assert_allclose(by_rank(selected, DATA), [1 / 4, 3 / 4, 4 / 4])
    # By the feature: first documents 1 + 2, second ones 1 + 0, third one 0.
    np.testing.assert_allclose(by_rank(selected, DATA, column=0), [3 / 4, 4 / 4, 4 / 4])


def test_the_map_begins_with_the_shortest_list(selected):
    grid = selection_map(selected, DATA, column=0)
    np.testing.assert_array_equal(grid, [[2, 0, np.nan], [1, 1, 0]])


def test_other_data_are_refused(selected):
    shorter = DATA.select([0])
    with pytest.raises(ValueError, match="selection has 5 documents, but the data have 3"):
        by_rank(selected, shorter)
    with pytest.raises(ValueError, match="no non-relevant document was selected"):
        by_rank(replace(selected, counts=np.zeros(5, dtype=np.int32)), DATA)
