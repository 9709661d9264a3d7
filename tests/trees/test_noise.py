"""Growing under noise: units are cut to their bounds, noise has its law, prices are those of the accountant."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("lightgbm")

from fedrank.privacy.accounting import ConcentratedEvent, epsilon
from fedrank.privacy.noise import SecureSource
from fedrank.ranking.measures import evaluate
from fedrank.trees.arrays import Trees
from fedrank.trees.binning import bounded_edges
from fedrank.trees.boosters import BoosterState, Grower
from fedrank.trees.forest import make_forest
from fedrank.trees.growing import GrowPlan, LocalClients, grow_forest
from fedrank.trees.histograms import Histograms
from fedrank.trees.noise import TreeNoise, clip_units, units_of
from fedrank.trees.row_store import PrivateRowStore
from fedrank.trees.split_finder import LeafSplit
from tests.made_up import made_up_data

EDGES = bounded_edges(5, 0, 1, 16)
RULES = Grower(trees=5, rate=0.3, bins=16)
DATA = made_up_data(queries=60)


def forest_of(plan, parts, charge=lambda tree: None) -> list[str]:
    """Grown by row stores in this process."""
    clients = LocalClients(plan, [plan.store(part) for part in parts], charge)
    return [text for text, _ in grow_forest(clients)]


BOTH = pytest.mark.parametrize("design", ["histograms", "random-splits"])


@given(
    st.lists(st.tuples(st.integers(-(2**25), 2**25), st.integers(0, 4)), min_size=1, max_size=50),
    st.integers(1, 2**22),
)
@settings(max_examples=80, deadline=None)
def test_a_unit_never_exceeds_its_bound_and_keeps_its_signs(rows, bound):
    values, units = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    cut = clip_units(values, units, bound)
    for unit in np.unique(units):
        own, before = cut[units == unit], values[units == unit]
        assert np.abs(own).sum() <= bound
        assert np.all(own * before >= 0)
        if np.abs(before).sum() <= bound:
            np.testing.assert_array_equal(own, before)


def test_large_bounds_do_not_run_over():
    cut = clip_units(np.array([2**33, -(2**33), 5]), np.zeros(3, np.int64), 2**33)
    assert cut.tolist() == [2**32 - 2, -(2**32 - 2), 2]


def test_no_forest_of_a_server_takes_a_unit_beyond_its_bound():
    """Leaves whose sums run over make gradients that are no numbers; the noise would be for much smaller ones."""
    noise = TreeNoise(clip=0.3, clip_hessian=0.1)
    holder = PrivateRowStore(DATA, EDGES, RULES, noise)
    middle = repr(float(np.median(DATA.features[:, 0])))
    text = "\n".join(
        ["num_leaves=2", "num_cat=0", "split_feature=0", f"threshold={middle}", "decision_type=2", "left_child=-1",
         "right_child=-2", "leaf_value=1e308 -1e308"]
    )  # fmt: skip
    for _ in range(2):
        holder.add(Trees.read([text]))
    assert np.isinf(holder.scores).all()
    holder.begin(2, 0)
    units = units_of(DATA, "query")
    for column, bound in ((0, 0.3), (1, 0.1)):
        sizes = np.bincount(units, np.abs(holder._pairs[:, column].astype(np.float64)))
        assert sizes.max() <= bound / holder.unit


@BOTH
@pytest.mark.parametrize("unit", ["query", "client", "person"])
def test_what_one_unit_changes_is_what_is_priced(design, unit):
    """The L2 norm of the difference without one unit, in units of the noise, is at most 1 / noise."""
    who = np.arange(DATA.queries, dtype=np.int32) // 3
    data = replace(DATA, who=who, when=np.zeros(DATA.queries, np.int64))
    noise = TreeNoise(design, unit, noise=1e-3, clip=0.3, clip_hessian=0.1, depth=1)
    left = {"query": [59], "person": [57, 58, 59], "client": list(range(60))}[unit]
    kept = np.setdiff1d(np.arange(60), left)

    def released(rows):
        holder = PrivateRowStore(rows, EDGES, RULES, noise)
        holder._noised = lambda found, cells: found
        holder.begin(0, 0)
        if design == "random-splits":
            holder.split(LeafSplit(0, 1, 0, 8))
            return holder.released(0), 1
        return holder.released(0), 5

    whole, cells = released(data)
    rest = released(data.select(kept))[0] if len(kept) else np.zeros_like(whole)
    deviations = np.array(noise.deviations(cells, 2.0**-20))
    size = np.sqrt((((whole - rest) / deviations) ** 2).sum())
    assert 0 < size <= 1 / noise.noise * (1 + 1e-9)


@BOTH
def test_the_price_is_the_accountants(design):
    noise = TreeNoise(design, noise=8.0, depth=3)
    times = 20 * (1 if design == "random-splits" else 4)
    plain = epsilon(ConcentratedEvent(1 / 128), times, 1e-5)
    assert noise.epsilon(20, 46, 63, 1e-5) == pytest.approx(plain, rel=1e-3)
    assert noise.epsilon(20, 46, 63, 1e-5) >= plain
    assert noise.epsilon(40, 46, 63, 1e-5) > noise.epsilon(20, 46, 63, 1e-5)
    assert TreeNoise(design, noise=4.0).epsilon(20, 46, 63, 1e-5) > noise.epsilon(20, 46, 63, 1e-5)


def test_noise_is_there_and_as_wide_as_it_says():
    noise = TreeNoise("histograms", noise=2.0)
    holder = PrivateRowStore(DATA, EDGES, RULES, noise, SecureSource(bytes(32)))
    holder.begin(0, 0)
    first, second = holder.released(0), holder.released(0)
    spread = (first - second).reshape(-1, 2).std(axis=0) / math.sqrt(2)
    np.testing.assert_allclose(spread, noise.deviations(5, 2.0**-20), rtol=0.3)


@BOTH
def test_with_little_noise_it_learns_and_can_be_resumed(design):
    noise = TreeNoise(design, noise=1e-3, clip=5.0, clip_hessian=5.0)
    parts = [DATA.select(np.arange(first, 60, 2)) for first in (0, 1)]
    rules = replace(RULES, trees=20)

    plan = GrowPlan(rules, EDGES, 1, (0, 1), noise=noise)
    charged: list[int] = []
    texts = forest_of(plan, parts, charged.append)
    assert charged == list(range(20))
    quality = evaluate(["ndcg@10"], make_forest(texts, DATA, {}, with_ranges=False).score(DATA), DATA)[0]
    assert quality > evaluate(["ndcg@10"], np.zeros(DATA.documents), DATA)[0] + 0.1
    assert all("leaf_count=0 0" in text for text in texts), "how many rows a leaf has is not told"
    again = LocalClients(plan, [plan.store(part) for part in parts])
    again.add(texts[:10])
    assert len(list(grow_forest(again, BoosterState(tuple(texts[:10]), (math.nan,) * 10)))) == 10


def test_splits_by_chance_look_at_no_data():
    noise = TreeNoise("random-splits")
    forests = []
    for seed in (0, 1):
        data = made_up_data(queries=20, seed=seed)
        grown = forest_of(GrowPlan(RULES, EDGES, 7, (0,), noise=noise), [data])
        forests.append([Trees.read([text]) for text in grown])
    for one, other in zip(*forests, strict=True):
        np.testing.assert_array_equal(one.feature, other.feature)
        np.testing.assert_array_equal(one.threshold, other.threshold)


def test_persons_must_be_known_and_settings_make_sense():
    with pytest.raises(ValueError, match="do not record persons"):
        units_of(DATA, "person")
    for settings_, message in (
        ({"noise": 0}, "noise must be"),
        ({"clip": -1}, "clip must be"),
        ({"depth": 0}, "depth must be"),
    ):
        with pytest.raises(ValueError, match=message):
            TreeNoise(**settings_)
    with pytest.raises(ValueError, match="cannot undo"):
        Histograms(edges="pooled", private="histograms")
    with pytest.raises(ValueError, match="at most 24"):
        PrivateRowStore(DATA, EDGES, replace(RULES, fraction=30), TreeNoise())
