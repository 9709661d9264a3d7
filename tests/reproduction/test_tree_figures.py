"""Tables and pictures of the papers on trees: counted from runs and data, by hand where that is short."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightgbm")

from fedrank.experiments.report.analysis import Analysis, analyse
from fedrank.experiments.report.claims import UNTESTED
from fedrank.experiments.report.sections import Drawing, Table
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.source import read_spec
from fedrank.trees.model_files import load_model
from fedrank_papers.figures import drawings
from fedrank_papers.merge_figures import category_shares, chosen_settings, held, importance, looked_at
from fedrank_papers.tree_figures import cut_lists

SMALL = ["booster.trees=3", "data.folds=[1]"]


def done(name: str, folder: Path, *changes: str) -> Analysis:
    asked = read_spec(name, [*SMALL, *changes], quick=True)
    assert not run_experiment(asked, name, folder).failed
    [found] = analyse(load_runs(folder))
    return found


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.cells]


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return done("noniid-trees/table-3", tmp_path_factory.mktemp("table-3"))


@pytest.mark.long
def test_who_holds_what_is_counted(splits: Analysis) -> None:
    [table] = held(splits)
    assert isinstance(table, Table)
    rows = {tuple(row[:3]): row[3:] for row in texts(table)}
    run = splits.runs.finished[0]
    train = load_fold(run.spec.data, 1).train
    whole = [f"{count:,}" for count in (train.queries, (train.grades > 0).sum(), train.documents)]
    assert {name for name, _, _ in rows} == {"['1'], no-ties", "['1'], exclusive"}
    for name in ("['1'], no-ties", "['1'], exclusive"):
        assert rows[name, "all", "train"] == whole
        assert {client for rule, client, _ in rows if rule == name} == {"all", "1", "rest"}
    # The exclusive rule gives a client no more queries than the one without ties, and the rest stays the same.
    count = {key: int(row[0].replace(",", "")) for key, row in rows.items()}
    assert count["['1'], exclusive", "1", "train"] < count["['1'], no-ties", "1", "train"]
    assert count["['1'], exclusive", "rest", "train"] == count["['1'], no-ties", "rest", "train"]
    assert table in list(drawings("noniid-trees/table-3", splits))


def test_categories_are_shared_out_as_in_the_data(splits: Analysis) -> None:
    [drawing] = category_shares(splits)
    assert isinstance(drawing, Drawing)
    names, documents, queries = drawing.draw.args  # type: ignore[attr-defined]
    train = load_fold(splits.runs.finished[0].spec.data, 1).train
    relevant = train.features[train.grades > 0, -1]
    np.testing.assert_allclose(documents, [np.mean(relevant == float(name)) for name in names])
    assert queries.sum() == pytest.approx(1)
    assert "relevant documents" in drawing.draw()


@pytest.mark.long
def test_chosen_settings_are_those_of_the_runs(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    changes = ["tune=1", 'variants.split-1.split.rule="no-ties"', 'vary.merge.name=["alone", "pooled"]']
    found = done("noniid-trees/table-4", tmp_path, *changes)
    [table] = chosen_settings(found)
    rows = texts(table)  # type: ignore[arg-type]
    for run in found.runs.finished:
        mine = [row for row in rows if row[0] == run.variant]
        assert [row[1] for row in mine] == ["1", "rest", "merged, 1"][: len(run.tuned)]
        for row, tuned in zip(mine, run.tuned, strict=True):
            assert float(row[2]) == tuned["rate"]
            assert int(row[3]) == tuned["leaves"]
            assert row[-1] == "1"


@pytest.mark.long
def test_stacked_models_are_drawn_by_what_their_splits_gain(tmp_path: Path) -> None:
    few = [f"variants.{name}.merge.booster.trees=5" for name in ("stacking", "scores-only", "features-only")]
    found = done("noniid-trees/table-5", tmp_path, *few)
    pictures = list(looked_at(found))
    names = [picture.caption.split(":")[0] for picture in pictures]  # type: ignore[union-attr]
    assert names == ["stacking,split.rule=exclusive", "scores-only,split.rule=exclusive"]
    [run] = [run for run in found.runs.finished if run.variant == names[0]]
    gains = pictures[0].draw.args[0]  # type: ignore[union-attr]
    assert list(gains) == ["client 1", "client 2"]
    model = load_model(run.path / "clients/2/merged")
    expected = importance(model.final)  # type: ignore[attr-defined]
    assert gains["client 2"]["score of model 2"] == pytest.approx(expected[-1] / expected.sum())
    assert gains["client 2"]["feature 1"] == pytest.approx(expected[0] / expected.sum())
    assert "fraction of gain" in pictures[0].draw()  # type: ignore[union-attr]


def test_what_is_left_of_cut_lists_is_counted(tmp_path: Path) -> None:
    changes = ["data.name=synthetic-categories", "booster.leaves=4", "vary.booster.negatives=[3, 100]"]
    found = done("selgb/fig-1", tmp_path, *changes)
    [table] = cut_lists(found)
    fold = load_fold(found.runs.finished[0].spec.data, 1)
    parts = (fold.train, fold.validation, fold.test)
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    relevant = np.concatenate([np.add.reduceat(part.grades > 0, part.offsets[:-1], dtype=np.int64) for part in parts])
    for row, negatives in zip(texts(table), (3, 100), strict=True):
        kept = relevant + np.minimum(lengths - relevant, negatives)
        assert row[1:5] == ["1,000", "29", f"{kept.sum():,}", str(kept.max())]
        assert row[6] == f"{relevant.sum():,} ({100 * relevant.sum() / kept.sum():.2f} %)"


@pytest.mark.long
def test_stacking_on_few_queries_is_not_judged(tmp_path: Path) -> None:
    few = [f"variants.{name}.merge.booster.trees=3" for name in ("stacking-20", "stacking-500", "features-150")]
    found = done("noniid-trees/merge-queries", tmp_path, "tune=0", "data.name=synthetic-mq2007", *few)
    verdicts = {claim.says.rpartition(": ")[2]: claim for claim in found.claims}
    assert verdicts["20 merge queries"].verdict == UNTESTED
    assert (
        verdicts["20 merge queries"].reason
        == "not testable: a merge set has 20 queries; testing stacking needs at least 150"
    )
    assert verdicts["500 merge queries"].verdict != UNTESTED
    texts = [part.caption for part in drawings("noniid-trees/merge-queries", found) if isinstance(part, Drawing)]
    assert any("queries per merge set" in text for text in texts)
