"""A run of trees leaves a folder that says everything, and survives interruptions."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightgbm")
pytest.importorskip("optuna")

from fedrank.data.letor import letor_lines
from fedrank.data.synthetic_shown import made_up_queries, simulate_shown
from fedrank.experiments.report.write import write_report
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.runner.scoring import evaluate_model, score_lines
from fedrank.experiments.runner.writer import Task
from fedrank.experiments.spec.experiment import SpecError
from fedrank.experiments.spec.grid import read_tables
from fedrank.privacy.ledger import Ledger
from fedrank.ranking.measures import average, evaluate
from fedrank.seeds import rng_for
from fedrank.trees.mergers import MERGERS
from fedrank.trees.model_files import load_model
from fedrank.trees.selection import Selected
from tests.made_up import made_up_data

FILES = ("rounds.csv", "validation.csv", "queries.csv", "model.txt", "model.json", "selected.npz")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """LETOR files of made-up data."""
    folder = tmp_path_factory.mktemp("letor")
    for number, name in enumerate(("train", "validation", "test")):
        data = made_up_data(queries=60 if name == "train" else 20, longest=40, seed=number)
        lines = []
        for query, (begin, end) in enumerate(zip(data.offsets[:-1], data.offsets[1:], strict=True)):
            for row in range(begin, end):
                cells = " ".join(f"{i}:{value:.6f}" for i, value in enumerate(data.features[row], start=1))
                lines.append(f"{data.grades[row]} qid:{number}{query:02d} {cells}\n")
        (folder / f"{name}.txt").write_text("".join(lines))
    return {name: str(folder / f"{name}.txt") for name in ("train", "validation", "test")}


def task_of(folder: Path, data, **changes) -> Task:
    booster = {
        "name": "selgb",
        "trees": 20,
        "leaves": 5,
        "min_data_in_leaf": 3,
        "rate": 0.3,
        "keep": 0.3,
        "patience": 6,
    }
    tables = {
        "kind": "trees",
        "data": data,
        "booster": booster | changes.pop("booster", {}),
        "measures": ["ndcg@10", "map"],
        "evaluate_every": 3,
        **changes,
    }
    return Task(folder, read_tables(tables).base.single(1, 5), "test", "only", {}, 1, 5)


def columns(path: Path) -> dict[str, list[str]]:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    return {name: [row[i] for row in rows[1:]] for i, name in enumerate(rows[0])}


@pytest.mark.long
def test_forests_of_fixed_sizes_are_judged_next_to_the_best_one(tmp_path, files):
    sizes = {"sizes": [2, 7, 20], "booster": {"patience": 0}}
    task, usual = (
        task_of(tmp_path / "sizes", files, **sizes),
        task_of(tmp_path / "usual", files, booster=sizes["booster"]),
    )
    assert perform(task) == perform(usual) == "finished"
    names = [f"{name} of {size} trees" for size in (2, 7, 20) for name in ("ndcg@10", "map")]
    rounds, before = columns(task.folder / "rounds.csv"), columns(usual.folder / "rounds.csv")
    assert {name: values for name, values in rounds.items() if name not in names} == before
    test = load_fold(task.experiment.data, 1).test
    steps = list(task.experiment.booster.grow(load_fold(task.experiment.data, 1).train, None, 5))
    queries = columns(task.folder / "queries.csv")
    for size in (2, 7, 20):
        scores = np.zeros(test.documents)
        for step in steps[:size]:
            step.grown.add(test.features, scores)
        for name, expected in zip(("ndcg@10", "map"), evaluate(["ndcg@10", "map"], scores, test), strict=True):
            column = f"{name} of {size} trees"
            assert float(rounds[column][-1]) == pytest.approx(expected)
            assert not any(rounds[column][:-1])
            each = [float(value) for value in queries[column] if value]
            assert np.mean(each) == pytest.approx(expected)
            nothing = columns(task.folder / "nothing.csv")
            assert nothing[column] == nothing[name]


def test_a_forest_that_stopped_early_has_no_value_beyond(tmp_path, files):
    task = task_of(tmp_path / "run", files, sizes=[2, 20], booster={"patience": 2})
    perform(task)
    rounds, facts = columns(task.folder / "rounds.csv"), json.loads((task.folder / "run.json").read_text())
    assert rounds["map of 2 trees"][-1]
    assert not rounds["map of 20 trees"][-1]
    assert any("20 trees cannot be evaluated; set booster.patience = 0" in note for note in facts["notes"])


@pytest.mark.parametrize(
    ("sizes", "said"),
    [([5, 30], "at most 20 trees cannot be truncated to 30"), ([5, 5], "5 is listed twice"), ([0], "sizes")],
)
def test_sizes_must_be_those_of_a_forest(files, sizes, said):
    with pytest.raises(SpecError, match=said):
        task_of(Path("run"), files, sizes=sizes)


def test_merged_models_have_no_sizes(files):
    with pytest.raises(SpecError, match="sizes: merged models cannot be truncated"):
        task_of(Path("run"), files, sizes=[5], split="topics", merge="alone")


def test_a_finished_run_says_everything(tmp_path, files):
    task = task_of(tmp_path / "run", files)
    news = []
    assert perform(task, on_progress=news.append) == "finished"
    facts = json.loads((task.folder / "run.json").read_text())
    curve = [float(value) for value in columns(task.folder / "validation.csv")["ndcg@10"]]
    size = int(np.argmax(curve)) + 1
    model = load_model(task.folder)
    assert len(model) == size == facts["round"] == facts["rounds"]
    assert len(curve) == min(size + 6, 20)
    assert facts["engine"].startswith("LightGBM ")
    assert facts["behind_final"] == 1  # a report's final value is that of the model
    assert "do not count" in facts["conventions"]["stopping"]

    rounds = columns(task.folder / "rounds.csv")
    assert rounds["round"] == [str(number) for number in range(1, size + 1)]
    evaluated = [number for number, value in enumerate(rounds["ndcg@10"], start=1) if value]
    assert evaluated == sorted({*range(3, size + 1, 3), size})
    test = load_fold(task.experiment.data, 1).test
    for number in evaluated:
        expected = evaluate(["ndcg@10", "map"], model.truncated(number).score(test), test)
        row = [float(rounds[name][number - 1]) for name in ("ndcg@10", "map")]
        np.testing.assert_allclose(row, expected, atol=1e-12)
    queries = columns(task.folder / "queries.csv")
    assert queries["query"] == test.query_ids.tolist()
    mean = np.mean([float(value) for value in queries["map"] if value])
    assert float(rounds["map"][-1]) == pytest.approx(mean)

    selected = Selected.load(task.folder)
    assert selected.trees == list(range(2, len(curve) + 1))
    assert selected.counts.sum() == sum(selected.kept)
    assert news[-1].round == size
    assert not (task.folder / "checkpoint.npz").exists()


def test_its_model_scores_new_data(tmp_path, files):
    task = task_of(tmp_path / "run", files, booster={"trees": 5})
    assert perform(task) == "finished"
    model = load_model(task.folder)
    test = load_fold(task.experiment.data, 1).test
    for path in (task.folder, task.folder / "model.txt"):
        lines = list(score_lines(path, files["test"]))
        np.testing.assert_allclose([float(line) for line in lines], model.score(test), rtol=1e-8)
    quality = evaluate_model(task.folder, files["test"], ["ndcg@10"])
    assert f"{float(average(quality.values)[0])!r}" in (task.folder / "rounds.csv").read_text().splitlines()[-1]
    with pytest.raises(ValueError, match="holds one model for all clients; remove client = 0"):
        evaluate_model(task.folder, files["test"], ["ndcg@10"], client=0)


@pytest.mark.parametrize("booster", [{}, {"every": 4}, {"name": "goss", "keep": None}])
def test_an_interrupted_run_ends_as_an_undisturbed_one(tmp_path, files, booster, monkeypatch):
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0)
    settings = {"name": "selgb", "trees": 12, "leaves": 5, "min_data_in_leaf": 3, "rate": 0.3, "keep": 0.3} | booster
    settings = {key: value for key, value in settings.items() if value is not None}
    tables = {"kind": "trees", "data": files, "booster": settings, "evaluate_every": 2}
    whole, parts = (
        Task(tmp_path / name, read_tables(tables).base.single(1, 5), "test", "only", {}, 1, 5)
        for name in ("whole", "parts")
    )
    assert perform(whole) == "finished"
    for trees in (2, 4):
        asked = iter([False] * (trees - 1) + [True])
        assert perform(parts, stop=lambda a=asked: next(a)) == "interrupted"
    assert json.loads((parts.folder / "run.json").read_text())["round"] == 6
    assert perform(parts) == "finished"
    written = FILES if "keep" in settings else FILES[:-1]  # GOSS chooses its rows itself, and says nothing of them
    for name in written:
        assert (whole.folder / name).read_bytes() == (parts.folder / name).read_bytes(), name
    assert not {path.name for path in parts.folder.iterdir()} & {"checkpoint.npz", *FILES} - set(written)


def test_tuned_settings_are_used_and_written_down(tmp_path, files):
    task = task_of(tmp_path / "run", files, tune=2, booster={"trees": 3})
    assert perform(task) == "finished"
    tuned = json.loads((task.folder / "run.json").read_text())["tuned"]
    assert tuned["trials"] == 2
    assert (task.folder / "study.db").exists()
    # Leaf values in the file are multiplied by the rate that was chosen.
    assert f"shrinkage={tuned['rate']:g}\n" in (task.folder / "model.txt").read_text()


def test_without_validation_all_trees_stay(tmp_path, files):
    task = task_of(tmp_path / "run", {key: files[key] for key in ("train", "test")}, booster={"trees": 7})
    assert perform(task) == "finished"
    assert len(load_model(task.folder)) == 7
    assert "no validation queries" in " ".join(json.loads((task.folder / "run.json").read_text())["notes"])


def test_what_is_wrong_stands_in_the_run(tmp_path, files):
    task = task_of(tmp_path / "run", {key: files[key] for key in ("train", "test")}, tune=2)
    assert perform(task) == "failed"
    error = json.loads((task.folder / "run.json").read_text())["error"]
    assert "no validation queries to tune on" in error["message"]


def test_clients_merge_their_forests(tmp_path, files):
    booster = {"name": "lambdamart", "trees": 4, "leaves": 4, "min_data_in_leaf": 3}
    tables = {
        "kind": "trees",
        "data": files,
        "booster": booster,
        "measures": ["ndcg@10", "map"],
        "split": {"name": "topics", "clients": 2},
        "merge": {"name": "linear"},
    }
    task = Task(tmp_path / "run", read_tables(tables).base.single(1, 5), "test", "only", {}, 1, 5)
    status = perform(task)
    facts = json.loads((task.folder / "run.json").read_text())
    assert status == "finished", facts["error"]
    clients = columns(task.folder / "clients.csv")
    assert len(clients["client"]) == 2
    assert {"ndcg@10 own before", "ndcg@10 own after", "map all after"} <= set(clients)
    after = [float(value) for value in clients["ndcg@10 all after"]]
    rounds = columns(task.folder / "rounds.csv")
    assert float(rounds["ndcg@10"][0]) == pytest.approx(np.mean(after))
    test = load_fold(task.experiment.data, 1).test
    for number, value in enumerate(after, start=1):
        model = load_model(task.folder / "clients" / str(number) / "merged")
        # By these, `fedrank model evaluate` knows the test queries of its fold.
        assert (model.notes["data"], model.notes["fold"]) == ("train", 1)
        assert model.notes["merged by"] == "linear"
        assert evaluate(["ndcg@10"], model.score(test), test)[0] == pytest.approx(value)


def merging(folder, files, **changes):
    tables = {
        "kind": "trees",
        "data": files,
        "booster": {"name": "lambdamart", "trees": 4, "leaves": 4, "min_data_in_leaf": 3},
        "measures": ["ndcg@10"],
        "split": {"name": "dealt"},
        "merge": "pooled",
        **changes,
    }
    return Task(folder, read_tables(tables).base.single(1, 5), "test", "only", {}, 1, 5)


@pytest.mark.parametrize("merge", MERGERS)
def test_an_interrupted_merge_ends_as_an_undisturbed_one(tmp_path, files, merge, monkeypatch):
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0)
    whole, parts = (merging(tmp_path / name, files, merge=merge) for name in ("whole", "parts"))
    assert perform(whole) == "finished"
    grown = [0]
    # Stopped again and again after two trees: before them, every step up to there is told once more.
    while perform(parts, stop=iter([False] * 5 + [True] * 9).__next__) == "interrupted":
        facts = json.loads((parts.folder / "run.json").read_text())
        assert (facts["round"], facts["rounds"]) == (0, 1)
        with np.load(parts.folder / "checkpoint.npz") as kept:
            forests = json.loads(str(kept["forests"]))
        grown.append(sum(len(forest["trees"]) for forest in forests))
        assert grown[-1] > grown[-2]  # what has grown stays
    assert len(grown) > 2
    written = sorted(file.relative_to(whole.folder) for file in whole.folder.rglob("*.*") if file.is_file())
    assert Path("clients/2/merged/model.json") in written
    for name in written:
        if name.name not in ("run.json", "timing.csv", "privacy.json"):  # these say when
            assert (whole.folder / name).read_bytes() == (parts.folder / name).read_bytes(), name
    assert not (parts.folder / "checkpoint.npz").exists()


def test_a_split_run_says_who_holds_what_and_whether_stacking_can_be_tested(tmp_path, files):
    for merge, text in (
        ("alone", None),
        ("stacking", "a merge set has 12 queries; testing stacking needs at least 150"),
    ):
        task = merging(tmp_path / merge, files, merge=merge, split={"name": "dealt", "apart": 0.5, "merge_queries": 12})
        assert perform(task) == "finished"
        facts = json.loads((task.folder / "run.json").read_text())
        assert facts.get("not_testable") == text
        assert (f"not testable: {text}" in facts["notes"]) == (text is not None)
    fold = load_fold(task.experiment.data, 1)
    portions = task.experiment.split(fold, rng_for(5, "split"))
    everybody, first, second = facts["portions"]
    assert everybody["test"] == {
        "queries": 20, "documents": fold.test.documents, "relevant": int((fold.test.grades > 0).sum())
    }  # fmt: skip
    assert [row["client"] for row in (everybody, first, second)] == ["all", "client 1", "client 2"]
    for row, portion in zip((first, second), portions, strict=True):
        assert row["merge"]["queries"] == 12
        assert row["train"]["queries"] == portion.train.queries
        assert row["merge"]["relevant"] == (portion.merge.grades > 0).sum()


def test_enough_queries_make_stacking_testable(tmp_path, files):
    large = tmp_path / "large.txt"
    large.write_text("".join(letor_lines(made_up_data(420, longest=8, seed=3))))
    split = {"name": "dealt", "apart": 0.9, "merge_queries": 150}
    task = merging(tmp_path / "run", files | {"train": str(large)}, merge="stacking", split=split)
    assert perform(task) == "finished"
    assert "not_testable" not in json.loads((task.folder / "run.json").read_text())


@pytest.mark.long
def test_a_stacked_model_is_tuned_like_any_other(tmp_path, files):
    large = tmp_path / "large.txt"
    large.write_text("".join(letor_lines(made_up_data(600, longest=60, seed=3))))
    split = {"name": "dealt", "apart": 0.5}
    merge = {"name": "stacking", "booster": {"name": "lambdamart", "trees": 3}}
    task = merging(tmp_path / "run", files | {"train": str(large)}, merge=merge, split=split, tune=2)
    assert perform(task) == "finished", (task.folder / "run.json").read_text()
    tuned = json.loads((task.folder / "run.json").read_text())["tuned"]
    assert len(tuned) == 4  # two local models, two on top of them
    stacked = load_model(task.folder / "clients/2/merged").final
    assert f"shrinkage={tuned[3]['rate']:g}" in stacked.text
    assert len(stacked) == tuned[3]["trees"]


@pytest.mark.long
def test_every_forest_is_tuned_by_its_own_validation_queries(tmp_path, files):
    large = tmp_path / "large.txt"  # the space was made for large data: leaves of a small set are too light
    large.write_text("".join(letor_lines(made_up_data(300, longest=60, seed=3))))
    first, again = (merging(tmp_path / name, files | {"train": str(large)}, tune=2) for name in ("first", "again"))
    assert perform(first) == "finished", (first.folder / "run.json").read_text()
    tuned = json.loads((first.folder / "run.json").read_text())["tuned"]
    assert [set(each) for each in tuned] == [
        {"trials", "trees", "rate", "leaves", "min_data_in_leaf", "min_sum_hessian"}
    ] * 3
    settings = {key: value for key, value in tuned[0].items() if key not in ("trials", "trees")}
    portion = first.experiment.split(load_fold(first.experiment.data, 1), rng_for(5, "split"))[0]
    alone = dataclasses.replace(first.experiment.booster, **settings)(portion.train, portion.validation, seed=5)
    assert load_model(first.folder / "clients/1/local").trees == alone.trees
    # A run that was killed begins again, but tries nothing twice.
    again.folder.mkdir()
    for study in ("study-1.db", "study-2.db", "study-3.db"):
        (again.folder / study).write_bytes((first.folder / study).read_bytes())
    assert perform(again) == "finished"
    for file in ("rounds.csv", "queries.csv", "clients.csv", "model.json", "model.txt"):
        assert (again.folder / file).read_bytes() == (first.folder / file).read_bytes(), file
    assert json.loads((again.folder / "run.json").read_text())["tuned"] == tuned


def test_settings_that_never_split_are_named(tmp_path, files):
    task = merging(tmp_path / "run", files, tune=1)
    assert perform(task) == "failed"
    error = json.loads((task.folder / "run.json").read_text())["error"]
    assert "none of 1 settings could split" in error["message"]


def test_a_tuned_client_needs_validation_queries(tmp_path, files):
    data = {key: files[key] for key in ("train", "test")}
    by = {"name": "categories", "by": "feature:1", "bins": 3, "rest": "none"}
    task = merging(tmp_path / "run", data, tune=1, split=by, merge="alone")
    assert perform(task) == "failed"
    error = json.loads((task.folder / "run.json").read_text())["error"]
    assert "no validation queries" in error["message"]


def test_who_grows_a_forest_together_has_no_settings_of_its_own(tmp_path, files):
    with pytest.raises(SpecError, match="clients that grow one forest together share its settings"):
        merging(tmp_path, files, tune=1, merge={"name": "cyclic"})


@pytest.mark.long
def test_a_report_speaks_of_trees(tmp_path, files):
    data = {key: files[key] for key in ("train", "test")}
    run_experiment(task_of(tmp_path, data, evaluate_every=1).experiment, "grown", tmp_path)
    run_experiment(merging(tmp_path, files, merge="linear").experiment, "merged", tmp_path)
    grown, merged = (
        write_report(load_runs(tmp_path / name), tmp_path / f"{name}.html").read_text() for name in ("grown", "merged")
    )
    assert "ndcg@10 by number of trees" in grown
    assert "splits and leaf values by gradients and hessians" in grown
    assert "Learning curves" not in merged
    assert "model before and after merging" in merged
    for text in (grown, merged):
        page = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)  # which knows charts of all kinds
        assert "sent by clients" not in page
        assert "interactions" not in page
        assert "aggregation" not in page


def test_forests_of_different_sizes_still_make_a_report(tmp_path, files):
    data = {key: files[key] for key in ("train", "test")}
    for trees in (2, 4):  # two repeats that share no row of rounds.csv
        asked = task_of(tmp_path, data, evaluate_every=50, booster={"trees": trees}).experiment
        run_experiment(dataclasses.replace(asked, seeds=(trees,)), "sizes", tmp_path)
    runs = load_runs(tmp_path / "sizes")
    assert len(runs.finished) == 2
    assert "Final quality" in write_report(runs, tmp_path / "sizes.html").read_text()


def test_a_forest_that_ends_too_early_says_so(tmp_path, files):
    few = {"min_data_in_leaf": 600, "keep": 0.01}  # of 1,798 documents; those that are chosen are fewer than 1,200
    task = task_of(tmp_path / "run", {key: files[key] for key in ("train", "test")}, booster=few)
    assert perform(task) == "finished"
    notes = " ".join(json.loads((task.folder / "run.json").read_text())["notes"])
    assert "growth ended after 1 of 20 trees" in notes


def test_a_forest_grows_from_the_clicks_of_a_search_log(tmp_path):
    simulate_shown(made_up_queries(50, seed=5), 400, people=4).write(tmp_path / "log")
    asked = {"kind": "trees", "data": {"log": str(tmp_path / "log")}, "booster": {"name": "lambdamart", "trees": 5}}
    results = run_experiment(read_tables(asked), "clicks", tmp_path / "runs")
    assert not results.failed
    [run] = load_runs(tmp_path / "runs")
    assert run.data["train_queries"] == 320
    assert run.data["top_grade"] == 1
    quality = evaluate_model(run.path, str(tmp_path / "log"), ["ndcg@10"])
    assert average(quality.values)[0] == pytest.approx(run.final_value("ndcg@10"))
    with pytest.raises(SpecError, match=r"data\.propensities: trees use the clicks of a log as relevance labels"):
        read_tables(asked | {"data": asked["data"] | {"propensities": "shared"}})
    with pytest.raises(SpecError, match="tune: a click log has no validation queries to tune on"):
        read_tables(asked | {"tune": 3})


def test_a_forest_that_is_grown_from_histograms_is_the_pooled_one(tmp_path, files):
    edges = {"name": "histograms", "edges": "pooled"}
    booster = {"name": "grower", "trees": 4, "leaves": 4, "min_data_in_leaf": 5}
    tasks = [
        merging(tmp_path / str(number), files, merge=merge, booster=booster)
        for number, merge in enumerate((edges, "pooled"))
    ]
    assert [perform(task) for task in tasks] == ["finished"] * 2
    shared, pooled = (load_model(task.folder) for task in tasks)
    assert shared.trees == pooled.trees
    assert json.loads((tasks[0].folder / "privacy.json").read_text())["promises"] == []


def test_a_forest_that_is_grown_under_noise_is_charged_tree_by_tree(tmp_path, files):
    merge = {"name": "histograms", "private": "random-splits", "noise": 10.0}
    booster = {"name": "grower", "trees": 4, "leaves": 4}
    task = merging(tmp_path, files, merge=merge, booster=booster)
    assert perform(task) == "finished", (task.folder / "run.json").read_text()
    card = json.loads((task.folder / "privacy.json").read_text())
    [guarantee] = card["promises"]
    assert card["rounds_charged"] == guarantee["times"] == 4
    assert guarantee["unit"] == "query"
    assert 0 < guarantee["epsilon"] < 10
    assert "never a single row" in guarantee["because"]
    with Ledger.open(task.folder / "ledger", 2) as ledger:
        assert ledger.rounds() == 4
        assert ledger.participations().tolist() == [4, 4]
    model = (task.folder / "model.txt").read_text()
    [ranges] = [line for line in model.split("\n") if line.startswith("feature_infos=")]
    assert set(ranges.partition("=")[2].split()) == {"none"}  # a range is two values of rows
