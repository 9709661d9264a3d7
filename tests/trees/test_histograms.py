"""Forests grown from histograms as a merger and from files: the pooled forest, resumed and refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("lightgbm")
pytest.importorskip("cryptography")

from fedrank.data.letor import letor_lines
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.model_output import about_grown
from fedrank.ranking.model import read_for
from fedrank.trees.binning import bounded_edges, grid_edges
from fedrank.trees.boosters import BoosterState, Grower, Lambdamart, Selgb
from fedrank.trees.forest_checkpoint import ForestCheckpoint, Grown
from fedrank.trees.growing import grow_alone
from fedrank.trees.growing_files import FINISHED, UNFINISHED, grow_files
from fedrank.trees.histograms import Histograms
from fedrank.trees.mergers import Pooled
from fedrank.trees.model_files import load_model
from fedrank.trees.splits import Portion
from tests.made_up import made_up_data

RULES = Grower(trees=6, leaves=4, rate=0.2, min_data_in_leaf=5, patience=3)


def parts(seed: int = 0) -> tuple[Portion, ...]:
    data = made_up_data(60, seed=seed)
    halves = [data.select(np.arange(start, 60, 2)) for start in (0, 1)]
    return tuple(Portion(f"half {i}", half, made_up_data(20, seed=9 + i), None, half) for i, half in enumerate(halves))


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("rules", [RULES, replace(RULES, bins=15, query_share=0.7)])
def test_the_forest_is_that_of_pooled_data(secure, rules):
    shared = Histograms(edges="pooled", secure=secure)(parts(), (), rules, 1)
    assert shared[0] is shared[1]
    assert shared[0].trees == Pooled()(parts(), (), rules, 1)[0].trees


@pytest.mark.parametrize("merger", [Histograms(), Histograms(edges="bounded"), Histograms(secure=True)])
def test_edges_that_tell_nothing_and_a_stopped_run(merger):
    class Stop(Exception):
        pass

    def stop():
        if len(forestry.forests[0].trees) == 2:
            raise Stop

    whole = merger(parts(), (), RULES, 1)[0]
    forestry = ForestCheckpoint(RULES, turn=stop)
    with pytest.raises(Stop):
        merger(parts(), (), forestry, 1)
    kept = [Grown(list(one.trees), list(one.validation)) for one in forestry.forests]
    assert merger(parts(), (), ForestCheckpoint(RULES, forests=kept), 1)[0].trees == whole.trees


def test_edges_from_a_file(tmp_path):
    bounded_edges(5, 0.0, 1.0).save(tmp_path / "edges.json")
    from_file = Histograms(edges="file", file=str(tmp_path / "edges.json"))(parts(), (), RULES, 1)[0]
    assert from_file.trees == Histograms(edges="bounded")(parts(), (), RULES, 1)[0].trees


def test_the_settings_of_a_booster():
    rules = Histograms.rules(Lambdamart(trees=3, leaves=9, rate=0.2, min_data_in_leaf=7))
    assert (rules.trees, rules.leaves, rules.rate, rules.min_data_in_leaf, rules.bins) == (3, 9, 0.2, 7, 255)
    burges = Histograms.rules(Lambdamart(lambda_norm=False, lambda_truncation=4))
    assert (burges.lambda_norm, burges.lambda_truncation) == (False, 4)
    with pytest.raises(ValueError, match='which selgb does not; use booster = "grower"'):
        Histograms()(parts(), (), Selgb(), 1)
    with pytest.raises(ValueError, match='a file requires edges = "file"'):
        Histograms(edges="file")
    with pytest.raises(ValueError, match="low must be below high"):
        Histograms(edges="bounded", low=1, high=0)


@pytest.mark.parametrize("bins", [2, 16, 63, 64, 255, 256])
def test_a_grid_for_all_numbers(bins):
    edges = grid_edges(2, bins)
    assert edges.bins <= bins
    inner = np.array(edges.values[0])
    assert (inner > 0).sum() >= min(bins // 2, 40)
    if bins >= 63:
        assert inner.min() < -1000
        assert inner.max() > 1e6


@pytest.fixture
def files(tmp_path):
    for number, portion in enumerate(parts()):
        (tmp_path / f"{number}.txt").write_text("".join(letor_lines(portion.train)))
        (tmp_path / f"v{number}.txt").write_text("".join(letor_lines(portion.validation)))
    return tmp_path


@pytest.mark.parametrize("secure", [False, True])
def test_from_files(files, secure):
    silos, checks = [files / "0.txt", files / "1.txt"], [files / "v0.txt", files / "v1.txt"]
    made = grow_files(silos, files / "out", RULES, checks, checks[:1], secure=secure)
    assert load_model(files / "out" / "model.json").trees == made.forest.trees
    assert not (files / "out" / UNFINISHED).exists()
    data = made_up_data(60)
    pooled = data.select([*range(0, 60, 2), *range(1, 60, 2)])
    trees = [step.tree for step in grow_alone(RULES, pooled, None, 1, BoosterState(), grid_edges(5))]
    assert made.forest.trees == tuple(trees[: len(made.forest)])
    assert list(made.test) == [str(checks[0])]
    assert 0 < made.test[str(checks[0])] <= 1
    assert read_for(silos[0], 5, "none").documents == made.silos[str(silos[0])].documents


def test_a_killed_command_goes_on(files):
    class Killed(Exception):
        pass

    def kill(grown, quality):
        if grown == 3:
            raise Killed

    silos = [files / "0.txt", files / "1.txt"]
    whole = grow_files(silos, files / "whole", RULES)
    with pytest.raises(Killed):
        grow_files(silos, files / "out", RULES, tell=kill)
    assert len(json.loads((files / "out" / UNFINISHED).read_text())["trees"]) == 3
    with pytest.raises(ValueError, match="other settings or files"):
        grow_files(silos, files / "out", replace(RULES, rate=0.1))
    with pytest.raises(ValueError, match="other settings or files"):
        grow_files(silos[::-1], files / "out", RULES)
    made = grow_files(silos, files / "out", RULES)
    assert made.resumed == 3
    assert made.forest.trees == whole.forest.trees
    said = markdown(about_grown(replace(made, resumed=made.grown - 1, bytes_up=3_000_000)))
    assert "1.50 MB sent per tree and client" in said  # one tree, two clients
    before = {path.name: path.read_bytes() for path in (files / "out").iterdir()}
    again = grow_files(silos, files / "out", RULES, test=silos[:1], tell=kill)
    assert again.finished_before
    assert (again.grown, again.forest.trees) == (made.grown, made.forest.trees)
    assert list(again.test) == [str(silos[0])]
    for other in (replace(RULES, rate=0.1), replace(RULES, trees=RULES.trees + 1)):
        with pytest.raises(FileExistsError, match="other settings or from other files, and is not overwritten"):
            grow_files(silos, files / "out", other)
    with pytest.raises(FileExistsError, match="other settings or from other files"):
        grow_files(silos[::-1], files / "out", RULES)
    assert {path.name: path.read_bytes() for path in (files / "out").iterdir()} == before
    (files / "out" / FINISHED).unlink()
    with pytest.raises(FileExistsError, match="is not empty, and its files are not overwritten"):
        grow_files(silos, files / "out", RULES)


def test_files_that_do_not_fit(files):
    silos = [files / "0.txt", files / "1.txt"]
    with pytest.raises(ValueError, match="needs two or more silos"):
        grow_files(silos[:1], files / "out", RULES)
    with pytest.raises(ValueError, match="1 validation files for 2 silos"):
        grow_files(silos, files / "out", RULES, silos[:1])
    bounded_edges(4, 0, 1).save(files / "edges.json")
    with pytest.raises(ValueError, match="5 features, but the bin edges are for 4"):
        grow_files(silos, files / "out", RULES, edges=files / "edges.json")
    (files / "narrow.txt").write_text("1 qid:1 1:0.5 2:0.1\n0 qid:1 1:0.2 2:0.3\n")
    with pytest.raises(ValueError, match=r"narrow\.txt has 2 features, but another silo has 5"):
        grow_files([silos[0], files / "narrow.txt"], files / "out", RULES)
    (files / "bad").mkdir()
    (files / "bad" / UNFINISHED).write_text('{"format": "other"}')
    with pytest.raises(ValueError, match="no forest that can be continued"):
        grow_files(silos, files / "bad", RULES)


def test_the_command(files):
    from typer.testing import CliRunner

    from fedrank.cli import app

    asked = ["trees", "grow", "--trees", "3", "--leaves", "4", "--min-data-in-leaf", "5", "--out", str(files / "out")]
    for number in range(2):
        asked += ["--silo", str(files / f"{number}.txt")]
    done = CliRunner().invoke(app, [*asked, "--vote", "1", "--test", str(files / "v0.txt")])
    assert done.exit_code == 0, done.output
    assert "3 trees" in done.output
    assert "not private" in done.output
    assert len(load_model(files / "out" / "model.json")) == 3
    card = json.loads((files / "out" / "privacy.json").read_text())
    assert "No privacy guarantee" in card["summary"]
    assert card["what"] == "simulated run"  # one process read all files
    again = CliRunner().invoke(app, [*asked, "--vote", "1", "--test", str(files / "v0.txt")])
    assert again.exit_code == 0, again.output
    assert "already finished" in again.output
    other = CliRunner().invoke(app, [*asked, "--vote", "2"])
    assert "grown with other settings" in str(other.exception)


def test_a_forest_grown_together_has_the_pairs_that_its_booster_asks_for():
    forests = {}
    for norm, truncation in ((True, 30), (False, 30), (True, 1)):
        asked = Lambdamart(trees=2, leaves=4, min_data_in_leaf=5, lambda_norm=norm, lambda_truncation=truncation)
        shared = Histograms(edges="pooled", secure=norm)(parts(), (), asked, 1)[0]
        alone = Pooled()(parts(), (), Histograms.rules(asked), 1)[0]
        assert shared.trees == alone.trees
        forests[norm, truncation] = shared.trees
    assert len(set(forests.values())) == 3
