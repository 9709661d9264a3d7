"""`fedrank trees split` and `fedrank trees merge`: files in, files out."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from fedrank.data.letor import letor_lines, read_letor
from fedrank.experiments.report.model_output import about_merged, about_split
from fedrank.experiments.report.terminal import show
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from fedrank.trees.merge_files import merge_models
from fedrank.trees.model_files import load_model
from fedrank.trees.split_folder import split_data, splitter_for
from fedrank.trees.splits import Categories, Dealt, Topics
from tests.made_up import made_up_data


def save_linear(path, *weights: float):
    save_model(Model(Linear(), np.array(weights), len(weights)), path)
    return path


def shown(sections) -> str:
    console = Console(file=io.StringIO(), width=200)
    show(sections, console)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    folder = tmp_path_factory.mktemp("split") / "split"
    asked = splitter_for("feature:category", "exclusive", categories=["1"])
    return split_data("synthetic-categories", asked, folder, seed=3)


def test_options_name_a_rule():
    assert splitter_for("topics", clients=3) == Topics(3)
    assert splitter_for("chance") == Dealt(2)
    assert splitter_for("17", bins=3) == Categories("feature:17", bins=3)
    assert splitter_for("c.tsv", "no-ties", categories=["a"]) == Categories("c.tsv", ("a",), rule="no-ties")
    with pytest.raises(ValueError, match="unknown rule 'exclusiv'; did you mean \"exclusive\""):
        splitter_for("c.tsv", "exclusiv")


def test_what_is_written_is_what_was_split(split):
    content = json.loads((split.folder / "split.json").read_text())
    assert [client["name"] for client in content["clients"]] == ["1", "rest"]
    assert content["split"]["rule"] == "exclusive"
    for number, portion in enumerate(split.portions, start=1):
        for part in ("train", "validation", "test", "merge"):
            held, back = (
                getattr(portion, part),
                read_letor(split.folder / f"client-{number}" / f"{part}.txt", cache=False),
            )
            assert np.array_equal(back.features, held.features)
            assert np.array_equal(back.grades, held.grades)
            assert back.query_ids.tolist() == held.query_ids.tolist()
            assert content["clients"][number - 1][part]["queries"] == held.queries


def test_a_split_shows_sizes_and_distances(split):
    text = shown(about_split(split))
    assert f"{split.portions[0].train.queries:,}" in text
    assert "features, from all" in text


def test_a_file_is_split_into_queries_to_learn_from_and_to_merge_by(tmp_path):
    data = made_up_data(30, seed=2)
    file = tmp_path / "own.txt"
    file.write_text("".join(letor_lines(data)))
    (tmp_path / "category.tsv").write_text("".join(f"{q}\t{'abc'[int(q) % 3]}\n" for q in data.query_ids))
    asked = splitter_for(str(tmp_path / "category.tsv"), categories=["a", "b"], rest="none")
    made = split_data(str(file), asked, tmp_path / "out")
    written = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.txt"))
    assert written == [f"client-{c}/{part}.txt" for c in (1, 2) for part in ("merge", "train")]
    assert {int(q) % 3 for q in made.portions[1].train.query_ids} == {1}
    assert {int(q) % 3 for q in made.portions[1].merge.query_ids} == {2}


@pytest.mark.long
def test_every_client_gets_a_model_that_scores_by_itself(split, tmp_path):
    files = [save_linear(tmp_path / f"{i}.json", *(np.arange(29) == i).astype(float)) for i in (0, 10)]
    made = merge_models(files, split.folder, "linear", tmp_path / "merged")
    assert [one.client for one in made] == ["1", "rest"]
    for one, portion in zip(made, split.portions, strict=True):
        back = load_model(one.file)
        assert np.array_equal(back.score(portion.test), one.model.score(portion.test))
        assert one.values["test of 1"].shape == (3, 3, split.portions[0].test.queries)
    text = shown(about_merged(made))
    assert "model 1 (own)" in text
    assert "test of rest" in text


def test_a_merge_set_makes_one_model(split, tmp_path):
    files = [save_linear(tmp_path / f"{i}.json", *(np.arange(29) == i).astype(float)) for i in (0, 10)]
    made = merge_models(files, split.folder / "client-1" / "merge.txt", "uniform", tmp_path / "merged")
    assert [one.file for one in made] == [tmp_path / "merged" / "model.json"]
    assert made[0].model.weights == (0.5, 0.5)
    assert "0.5 x model 1 + 0.5 x model 2" in shown(about_merged(made))


def test_stacked_models_are_written_too(split, tmp_path):
    pytest.importorskip("lightgbm")
    files = [save_linear(tmp_path / f"{i}.json", *(np.arange(29) == i).astype(float)) for i in (0, 10)]
    merge_set = split.folder / "client-1" / "merge.txt"
    made = merge_models(files, merge_set, "stacking-scores", tmp_path / "merged")
    assert np.array_equal(
        load_model(tmp_path / "merged").score(read_letor(merge_set)), made[0].model.score(read_letor(merge_set))
    )
    assert "trees on the scores of 2 models" in shown(about_merged(made))


def test_what_cannot_be_merged_is_named(split, tmp_path):
    one, two = (save_linear(tmp_path / f"{i}.json", *np.ones(29)) for i in (1, 2))
    other = save_linear(tmp_path / "other.json", 1, 2)
    for models, on, method, out, message in (
        ([one, two], split.folder, "linar", "a", "unknown method 'linar'; did you mean \"linear\""),
        ([one], split.folder, "linear", "b", "at least 2"),
        ([one, other], split.folder, "linear", "c", "model 1 uses 29 features, model 2 uses 2"),
        ([one, two, one], split.folder, "linear", "d", "3 models for 2 clients"),
    ):
        with pytest.raises(ValueError, match=message):
            merge_models(models, on, method, tmp_path / out)
    with pytest.raises(FileNotFoundError, match=r"merge set .* does not exist"):
        merge_models([one, two], tmp_path / "nowhere.txt", "linear", tmp_path / "e")
    with pytest.raises(FileNotFoundError, match=r"split\.json is missing"):
        merge_models([one, two], tmp_path, "linear", tmp_path / "f")
    with pytest.raises(FileExistsError, match="not overwritten"):
        merge_models([one, two], split.folder, "linear", tmp_path)


def test_a_truncated_model_or_split_is_named(split, tmp_path):
    whole, cut = (save_linear(tmp_path / f"{name}.json", *np.ones(29)) for name in ("whole", "cut"))
    cut.write_text(cut.read_text()[:30])
    with pytest.raises(ValueError, match=r"cut\.json is not a valid model"):
        merge_models([whole, cut], split.folder, "linear", tmp_path / "a")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "split.json").write_text((split.folder / "split.json").read_text()[:100])
    with pytest.raises(ValueError, match=r"is not a valid split.*make it again"):
        merge_models([whole, whole], broken, "linear", tmp_path / "b")


def test_an_unknown_data_set_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="'synthetic-categorie' is neither a file nor a data set; did you mean"):
        split_data("synthetic-categorie", Topics(), tmp_path / "out")


def test_files_are_split_together(tmp_path):
    for name, seed in (("train", 2), ("validation", 3), ("test", 4)):
        (tmp_path / f"{name}.txt").write_text("".join(letor_lines(made_up_data(30, seed=seed))))
    files = {name: tmp_path / f"{name}.txt" for name in ("validation", "test")}
    made = split_data(str(tmp_path / "train.txt"), splitter_for("topics"), tmp_path / "out", **files)
    assert sum(portion.test.queries for portion in made.portions) == 30
    assert all((tmp_path / "out" / f"client-{c}" / "test.txt").exists() for c in (1, 2))
    read = read_letor(tmp_path / "validation.txt")
    assert set(made.portions[0].merge.query_ids) <= set(read.query_ids) - set(made.portions[0].validation.query_ids)
    with pytest.raises(ValueError, match="synthetic-categories is not a file"):
        split_data("synthetic-categories", splitter_for("topics"), tmp_path / "other", **files)


def test_what_fails_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="unknown category '9'"):
        split_data("synthetic-categories", splitter_for("feature:category", categories=["9"]), tmp_path / "split")
    models = [save_linear(tmp_path / f"{name}.json", 1.0, 2.0) for name in "ab"]
    with pytest.raises(FileNotFoundError, match=r"merge set .* does not exist"):
        merge_models(models, tmp_path / "nowhere", "linear", tmp_path / "merged")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_the_folder_of_an_experiment_stands_for_its_only_run(tmp_path):
    for number, run in enumerate(("fold-1-seed-1", "fold-1-seed-2"), start=1):
        place = tmp_path / "trained" / "only" / run
        place.mkdir(parents=True)
        save_linear(place / "model.json", float(number))
        (place / "run.json").write_text("{}")
        if number == 1:
            assert load_model(tmp_path / "trained").weights.tolist() == [1.0]
    with pytest.raises(FileNotFoundError, match=r"contains 2 runs; name the folder of one of them.*fold-1-seed-1"):
        load_model(tmp_path / "trained")
