"""Estimated bin edges: without noise quantiles on the grid, with noise their price, and paid for once."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("lightgbm")
pytest.importorskip("cryptography")

from fedrank.cli import app
from fedrank.data.letor import letor_lines
from fedrank.data.ranking import RankingData
from fedrank.privacy.guarantees import up
from fedrank.privacy.ledger import Ledger
from fedrank.privacy.noise import SecureSource
from fedrank.trees import growing_files as files_module
from fedrank.trees import noise
from fedrank.trees.binning import bounded_edges
from fedrank.trees.boosters import Grower
from fedrank.trees.growing_files import grow_files
from fedrank.trees.histograms import Histograms
from fedrank.trees.noise import ROW, EdgeNoise, counted, edges_of_counts, estimated_edges, noised_counts
from tests.made_up import made_up_data

DATA = made_up_data(queries=80)
PARTS = [DATA.select(np.arange(first, 80, 2)) for first in (0, 1)]
BOUNDED = EdgeNoise(noise=1.0, rows=1000, bounds=(0.0, 1.0))


def slow_quantiles(column, ends, bins):
    """Bins filled cell by cell: one ends with its part of what is left, or where a common value begins or ends."""
    cells = [sum(value > end for end in ends) for value in column]
    held = sorted(set(cells))
    if len(held) <= bins:
        return tuple(ends[cell] for cell in held[:-1])
    counts = {cell: cells.count(cell) for cell in held}
    total, edges, done, inside = len(column), [], 0, 0
    for cell, following in pairwise(held):
        inside += counts[cell]
        left = bins - len(edges)
        if left == 1:
            break
        common = counts[cell] * bins >= total or counts[following] * bins >= total
        if inside * left >= total - done or common:
            edges.append(ends[cell])
            done, inside = done + inside, 0
    return tuple(edges)


@pytest.mark.parametrize("bins", [4, 16, 63])
@pytest.mark.parametrize("secure", [False, True])
def test_without_noise_edges_are_the_quantiles_of_pooled_rows_on_the_grid(bins, secure, monkeypatch):
    monkeypatch.setattr(noise, "noised_counts", counted)
    monkeypatch.setattr(EdgeNoise, "deviation", lambda self, features: 0.0)
    edges, pooled = estimated_edges(PARTS, BOUNDED, bins, secure), RankingData.join(PARTS)
    for found, ends, column in zip(edges.values, BOUNDED.grid(5).values, pooled.features.T, strict=True):
        assert found == slow_quantiles(column.tolist(), ends, bins)
        assert len(found) == bins - 1
        sizes = np.diff([0, *(int((column <= edge).sum()) for edge in found), len(column)])
        assert sizes.max() < 2 * len(column) / bins + 30, "about equally many"


def test_little_noise_moves_edges_little():
    exact = edges_of_counts(counted(DATA, BOUNDED, BOUNDED.grid(5)), BOUNDED.grid(5), 8)
    found = estimated_edges(PARTS, replace(BOUNDED, noise=1e-6), 8)
    for one, other in zip(found.values, exact.values, strict=True):
        np.testing.assert_allclose(one, other, atol=2 / 256)


def test_by_hand():
    grid = bounded_edges(1, 0, 8, 8)  # cells of width 1
    assert grid.values[0] == tuple(map(float, range(1, 8)))
    counts = np.array([[5, 5, 0, 0, 20, 5, 5, 0]])
    assert edges_of_counts(counts, grid, 4).values == ((2.0, 5.0, 6.0),)
    assert edges_of_counts(counts, grid, 4, deviation=3.0).values == ((),), (
        "5 is no more than noise, and one cell is left"
    )
    assert edges_of_counts(counts, grid, 4, deviation=100.0).values == ((2.0, 4.0, 6.0),), "noise alone: even cells"


@pytest.mark.parametrize("unit", ["query", "person", "client"])
def test_what_one_unit_changes_is_what_is_priced(unit):
    who = np.arange(80, dtype=np.int32) // 4
    data = replace(DATA, who=who, when=np.zeros(80, np.int64))
    noise = EdgeNoise(noise=3.0, unit=unit, rows=7, bounds=(0, 1))
    grid = noise.grid(5)
    gone = {"query": [79], "person": [76, 77, 78, 79], "client": list(range(80))}[unit]
    kept = np.setdiff1d(np.arange(80), gone)
    rest = counted(data.select(kept), noise, grid) if len(kept) else 0
    change = np.sqrt(((counted(data, noise, grid) - rest).astype(float) ** 2).sum())
    assert 0 < change / noise.deviation(5) <= 1 / 3.0
    assert (counted(data, noise, grid).sum(axis=1) <= len(set(who if unit == "person" else range(80))) * 7 * ROW).all()


def test_the_price_and_the_noise():
    noise = EdgeNoise(noise=4.0, rows=10, bounds=(0, 1))
    rho = 1 / (2 * 16)
    cost = noise.guarantee(5).epsilon(1, 1e-5)
    assert rho < cost <= rho + 2 * math.sqrt(rho * math.log(1e5))
    assert EdgeNoise(noise=4.0, rows=10, shares=3).guarantee(5).epsilon(1, 1e-5) == pytest.approx(cost, rel=1e-3)
    spread = (
        noised_counts(DATA, noise, noise.grid(5), SecureSource(bytes(32))) - counted(DATA, noise, noise.grid(5))
    ).std()
    assert spread == pytest.approx(4.0 * 10 * ROW * math.sqrt(5), rel=0.1)


@pytest.fixture
def silos(tmp_path):
    for number, part in enumerate(PARTS):
        (tmp_path / f"{number}.txt").write_text("".join(letor_lines(part)))
    return [tmp_path / "0.txt", tmp_path / "1.txt"]


def test_from_files_edges_are_paid_for_once(tmp_path, silos, monkeypatch):
    rules, noise, out = Grower(trees=3, leaves=4, bins=16), EdgeNoise(noise=0.5, bounds=(0, 1)), tmp_path / "out"

    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files_module, "estimated_edges", killed)
        with pytest.raises(KeyboardInterrupt):
            grow_files(silos, out, rules, edge_noise=noise)
    with pytest.raises(KeyboardInterrupt):
        grow_files(silos, out, rules, edge_noise=noise, tell=killed)
    edges = (out / "edges.json").read_bytes()
    with pytest.raises(ValueError, match="was charged"):
        grow_files(silos, out, rules, edge_noise=replace(noise, noise=1.0))
    made = grow_files(silos, out, rules, edge_noise=noise)
    assert (out / "edges.json").read_bytes() == edges
    assert made.resumed == 1
    with Ledger.open(out / "ledger", 2) as ledger:
        assert ledger.rounds() == 2, "once in vain, and once for the edges that are there"
    assert made.priced.times == 2
    assert made.priced.epsilon == noise.guarantee(5).epsilon(2, 1e-5)
    (out / "edges.json").unlink()
    assert grow_files(silos, out, rules, edge_noise=noise).finished_before, "nothing is charged again"
    with Ledger.open(out / "ledger", 2) as ledger:
        assert ledger.rounds() == 2
    with pytest.raises(ValueError, match="need no noise"):
        grow_files(silos, tmp_path / "other", rules, edges=out / "edges.json", edge_noise=noise)
    thresholds = {value for tree in made.forest.trees for value in json.loads(_line(tree, "threshold"))}
    assert thresholds <= {value for row in json.loads(edges)["edges"] for value in row}


def test_the_command_and_its_card(tmp_path, silos):
    where = [f"--silo={silo}" for silo in silos]
    settings = ["--trees=2", "--leaves=4", "--bins=16", "--edge-noise=0.5", "--bounds", "0", "1"]
    app(["trees", "grow", *where, *settings, f"--out={tmp_path / 'out'}"], standalone_mode=False)
    card = json.loads((tmp_path / "out" / "privacy.json").read_text())
    cost = up(EdgeNoise(noise=0.5, bounds=(0, 1)).guarantee(5).epsilon(1, 1e-5))
    assert "noise is not added to anything else. No privacy guarantee." in card["summary"]
    assert f"Bin edges alone cost ε = {cost} at δ = 1e-05 for one query" in card["summary"]
    assert card["promises"] == []


def test_bounds_without_noise_are_refused_and_not_forgotten(tmp_path, silos):
    where = [f"--silo={silo}" for silo in silos]
    with pytest.raises(ValueError, match="--bounds 0 1 needs --edge-noise"):
        app(["trees", "grow", *where, "--bounds", "0", "1", f"--out={tmp_path / 'out'}"], standalone_mode=False)
    assert not (tmp_path / "out").exists()


def _line(tree: str, name: str) -> str:
    values = next(line for line in tree.split("\n") if line.startswith(f"{name}=")).partition("=")[2]
    return f"[{','.join(values.split())}]"


def test_what_cannot_be():
    for settings, message in (
        ({"noise": 0}, "noise must be .*got 0"),
        ({"rows": 0}, "rows must be .*got 0"),
        ({"shares": 0}, "shares must be .*got 0"),
        ({"bounds": (1.0, 0.0)}, "low must be below high"),
    ):
        with pytest.raises(ValueError, match=message):
            EdgeNoise(**settings)
    with pytest.raises(ValueError, match="distributed noise of 3 clients"):
        estimated_edges(PARTS, EdgeNoise(shares=3), 16, secure=True)
    with pytest.raises(ValueError, match="distributed noise of 2 clients"):
        estimated_edges(PARTS, EdgeNoise(shares=2), 16)
    with pytest.raises(ValueError, match="do not record persons"):
        estimated_edges(PARTS, EdgeNoise(unit="person"), 16)
    assert Histograms(edges="noised-bounded", high=3.0).edge_noise().bounds == (0.0, 3.0)
    assert Histograms(edges="noised-grid", secure=True).edge_noise(4).shares == 2
    assert Histograms().edge_noise() is None
