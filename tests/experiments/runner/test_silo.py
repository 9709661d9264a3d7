"""Runs of kind "silo": their files, that they repeat to the last byte, stop, refuse, and feed reports."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrank.data.synthetic_text import synthetic_collection
from fedrank.experiments.report.write import write_report
from fedrank.experiments.runner import silo as silo_run
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.runner.writer import Task
from fedrank.experiments.spec.grid import read_tables
from fedrank.silo.features import FEATURE_NAMES, RANGES
from fedrank.silo.training import LocalPlus
from fedrank.trees.export import ENGINES, export, plain_scores, probes, take_apart
from fedrank.trees.export.engine_rules import engine_scores
from fedrank.trees.model_files import load_model

SKETCH = {"width": 128, "depth": 5, "k": 6}


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small made-up collection as files."""
    made, folder = synthetic_collection(120, 40, seed=1, topics=6, length=20), tmp_path_factory.mktemp("pets")
    documents = zip(made.documents.ids, made.documents.title, made.documents.text, strict=True)
    rows = [json.dumps({"_id": key, "title": title, "text": text}) for key, title, text in documents]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    asked = zip(made.query_ids, made.queries, strict=True)
    (folder / "queries.jsonl").write_text("\n".join(json.dumps({"_id": key, "text": text}) for key, text in asked))
    lines = ["query\tdocument\tgrade"]
    for query, key in enumerate(made.query_ids):
        lines += [f"{key}\td{row}\t{grade}" for row, grade in zip(*made.judgements(query), strict=True)]
    (folder / "qrels.tsv").write_text("\n".join(lines))
    return folder


def spec(collection: Path, method: Any, **more: Any) -> Any:
    return read_tables(
        {
            "kind": "silo",
            "rounds": 4,
            "seeds": [1],
            "measures": ["ndcg@10", "err"],
            "data": {"folder": str(collection)},
            "silos": {"count": 3},
            "method": method,
        }
        | more
    )


def task(asked: Any, folder: Path) -> Task:
    return Task(folder, asked.base.single(1, 1), "made-up", "all", {}, 1, 1)


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_run_writes_its_files(collection: Path, tmp_path: Path) -> None:
    done = task(spec(collection, {"name": "cross-silo", "noise": 0.0, **SKETCH}), tmp_path / "run")
    assert perform(done) == "finished"
    passes = rows(done.folder / "rounds.csv")
    assert [row["round"] for row in passes] == ["1", "2", "3", "4"]
    sent = [int(row["bytes_up"]) for row in passes]
    assert np.diff(sent).tolist() == [3 * 17 * 4] * 3, "three silos send 17 weights in a pass"
    quality = [float(row["ndcg@10"]) for row in passes]
    queries = [float(row["ndcg@10"]) for row in rows(done.folder / "queries.csv")]
    assert np.mean(queries) == pytest.approx(quality[-1])
    silos = rows(done.folder / "clients.csv")
    assert [float(row["ndcg@10 everywhere"]) for row in silos] == pytest.approx([quality[-1]] * 3)
    assert len({row["ndcg@10"] for row in silos}) == 3
    assert load_model(done.folder).features == 16
    facts = json.loads((done.folder / "run.json").read_text())
    assert facts["status"] == "finished"
    assert facts["round"] == 4
    assert "documents of other silos in its training lists" in facts["notes"][0]


def test_silos_that_train_alone_have_their_own_models(collection: Path, tmp_path: Path) -> None:
    done = task(spec(collection, "local"), tmp_path / "run")
    assert perform(done) == "finished"
    assert [row["bytes_up"] for row in rows(done.folder / "rounds.csv")] == ["0"] * 4
    everywhere = [float(row["err everywhere"]) for row in rows(done.folder / "clients.csv")]
    assert len(set(everywhere)) == 3
    assert np.mean(everywhere) == pytest.approx(float(rows(done.folder / "rounds.csv")[-1]["err"]))


@pytest.mark.parametrize("name", ["global", "local-plus"])
def test_a_run_without_noise_repeats_to_the_last_byte(name: str, collection: Path, tmp_path: Path) -> None:
    method = {"name": name} | ({"noise": 0.0, **SKETCH} if name == "local-plus" else {})
    one, again = (task(spec(collection, method), tmp_path / part) for part in ("one", "again"))
    assert perform(one) == "finished"
    silo_run._silos.cache_clear()
    assert perform(again) == "finished"
    for file in ("rounds.csv", "queries.csv", "clients.csv", "model.json"):
        assert (one.folder / file).read_bytes() == (again.folder / file).read_bytes()


def test_runs_share_silos_only_where_these_are_the_same(collection: Path, tmp_path: Path) -> None:
    silo_run._silos.cache_clear()
    asked = {
        "first": spec(collection, "global"),
        "another method": spec(collection, {"name": "cross-silo", "noise": 0.0, **SKETCH}),
        "again": spec(collection, "global"),
        "other silos": spec(collection, "global", silos={"count": 3, "split": "topics"}),
    }
    models = {}
    for part, question in asked.items():
        done = task(question, tmp_path / part)
        assert perform(done) == "finished"
        models[part] = (done.folder / "model.json").read_bytes()
    assert silo_run._silos.cache_info().misses == 2
    assert models["first"] == models["again"], "nothing of the silos was changed by the run between"
    assert models["first"] != models["other silos"]


def test_a_stopped_run_begins_again(collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", -1.0)  # asked after every pass
    done = task(spec(collection, "global"), tmp_path / "run")
    calls = iter(range(100))
    assert perform(done, stop=lambda: next(calls) == 1) == "interrupted"
    assert json.loads((done.folder / "run.json").read_text())["status"] == "interrupted"
    assert not (done.folder / "model.json").exists()
    assert perform(done) == "finished"
    assert len(rows(done.folder / "rounds.csv")) == 4


@pytest.mark.parametrize("name", ["cross-silo", "local"])
def test_a_model_on_fixed_ranges_can_leave_for_any_engine(name: str, collection: Path, tmp_path: Path) -> None:
    method = {"name": name, "normalise": "fixed"} | ({"counts": "exact", "k": 6} if name == "cross-silo" else {})
    done = task(spec(collection, method), tmp_path / "run")
    assert perform(done) == "finished"
    model = load_model(done.folder)
    assert model.normalised == "global"
    np.testing.assert_array_equal(model.ranges, RANGES)
    client = 1 if name == "local" else None
    raw = probes(take_apart(model, FEATURE_NAMES, client), 50)
    expected = plain_scores(model, raw, client)
    for engine in ENGINES:
        made = export(done.folder, engine, tmp_path / engine, client=client)
        assert "fedrank.silo.features" in made.needs
        theirs = engine_scores(engine, made.path.read_bytes(), raw, FEATURE_NAMES)
        assert theirs == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert np.argsort(theirs, kind="stable").tolist() == np.argsort(expected, kind="stable").tolist()


def test_a_model_on_lists_scaled_by_themselves_is_refused_with_the_remedy(collection: Path, tmp_path: Path) -> None:
    done = task(spec(collection, "global"), tmp_path / "run")
    assert perform(done) == "finished"
    with pytest.raises(ValueError, match=r'train with method\.normalise = "fixed" instead'):
        export(done.folder, "solr", tmp_path / "model.json")
    assert not (tmp_path / "model.json").exists()


def test_fixed_ranges_outlive_a_stop(collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = spec(collection, {"name": "global", "normalise": "fixed"})
    whole, done = task(asked, tmp_path / "whole"), task(asked, tmp_path / "run")
    assert perform(whole) == "finished"
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", -1.0)
    calls = iter(range(100))
    assert perform(done, stop=lambda: next(calls) == 1) == "interrupted"
    assert perform(done) == "finished"
    assert (done.folder / "model.json").read_bytes() == (whole.folder / "model.json").read_bytes()


def test_the_card_claims_what_noise_pays_for(collection: Path, tmp_path: Path) -> None:
    cards = {}
    methods = {"noised": {"name": "cross-silo", "noise": 2.0, **SKETCH}, "alone": "local", "global": "global"}
    methods["plain"] = {"name": "local-plus", "noise": 0.0, **SKETCH}
    for key, method in methods.items():
        done = task(spec(collection, method, rounds=1), tmp_path / key)
        assert perform(done) == "finished"
        cards[key] = json.loads((done.folder / "privacy.json").read_text())
    (guarantee,) = cards["noised"]["promises"]
    assert 2.5 < guarantee["epsilon"] < 3.5, "two Gaussians of multiplier 2 at 1e-5"
    assert any("weights" in text for text in cards["noised"]["not_covered"])
    for key in ("alone", "plain", "global"):
        assert cards[key]["mechanism"] is None
        assert not cards[key]["promises"]
    assert "no privacy guarantee" in cards["plain"]["summary"]
    assert "exchange nothing" in cards["alone"]["summary"]


def test_the_card_of_answers_counts_every_number_that_is_told(collection: Path, tmp_path: Path) -> None:
    """The silo that is asked most tells, for each term of the others, a count and how many documents hold it; for a
    term of a test query the latter."""
    asked = spec(collection, {"name": "cross-silo", "noise_in": "lookup", **SKETCH}, rounds=1)
    done = task(asked, tmp_path / "run")
    assert perform(done) == "finished"
    silos = silo_run.silos_of(asked.base, 1)
    told = [2 * sum(len(q.terms) for q in silo.train) + sum(len(q.terms) for q in silo.test) for silo in silos]
    card = json.loads((done.folder / "privacy.json").read_text())
    (guarantee,) = card["promises"]
    assert guarantee["times"] == sum(told) - min(told)
    assert guarantee["epsilon"] == pytest.approx(0.5 * guarantee["times"])
    assert card["mechanism"]["name"] == "lookup"
    assert "Every answer is noised" in card["summary"]


def test_the_card_says_that_published_noise_hides_nothing(collection: Path, tmp_path: Path) -> None:
    method = {"name": "local-plus", "noise_in": "paper", "true_rows": 3, **SKETCH}
    done = task(spec(collection, method, rounds=1), tmp_path / "run")
    assert perform(done) == "finished"
    card = json.loads((done.folder / "privacy.json").read_text())
    assert not card["promises"]
    assert "which hides nothing. No privacy guarantee." in card["summary"]
    done = task(spec(collection, method, privacy={"budget": 2.0}), tmp_path / "other")
    assert perform(done) == "failed"
    assert (
        "published noise, which hides nothing" in json.loads((done.folder / "run.json").read_text())["error"]["message"]
    )


def test_some_of_the_silos_train_and_all_are_tested_on(
    collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", -1.0)
    tested = {}
    for count in (1, 2):
        done = task(spec(collection, "local", silos={"count": count, "of": 3}), tmp_path / str(count))
        calls = iter(range(100))
        assert perform(done, stop=lambda calls=calls: next(calls) == 1) == "interrupted"  # type: ignore[misc]
        assert perform(done) == "finished", "lists are read back as they were kept"
        tested[count] = [row["query"] for row in rows(done.folder / "queries.csv")]
        assert len(rows(done.folder / "clients.csv")) == count
        notes = json.loads((done.folder / "run.json").read_text())["notes"]
        assert f"{3 - count} more silos do not participate" in notes[count]
    assert tested[1] == tested[2]


def test_runs_that_differ_in_training_only_share_their_lists(
    collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo_run._lists.cache_clear()
    made: list[str] = []
    lists = LocalPlus.lists

    def counted(self: LocalPlus, *given: Any) -> Any:
        made.append(type(self).__name__)
        return lists(self, *given)

    monkeypatch.setattr(LocalPlus, "lists", counted)
    method = {"name": "cross-silo", **SKETCH}
    asked = [method, {**method, "rate": 0.1, "steps": 5}, {**method, "name": "local-plus"}, {**method, "k": 5}]
    for number, one in enumerate(asked):
        assert perform(task(spec(collection, one, rounds=1), tmp_path / str(number))) == "finished"
    assert made == ["LocalPlus"] * 2, "one for the first three, and one for another k"


def test_a_run_may_say_what_questions_find_and_cost(collection: Path, tmp_path: Path) -> None:
    method = {"name": "cross-silo", "noise": 0.0, "width": 1024, "depth": 9, "k": 6}
    done = task(spec(collection, method, rounds=1, measure_sketches=True), tmp_path / "run")
    assert perform(done) == "finished"
    found = json.loads((done.folder / "sketches.json").read_text())
    assert found["naive_cover"] == 1.0, "wide sketches without noise are exact"
    assert 0.9 < found["cover"] <= 1.0
    assert found["naive_megabytes"] == pytest.approx(40 * 9 * 1024 * 4 / 1e6)
    assert min(found["milliseconds"], found["naive_milliseconds"], found["megabytes"]) > 0
    assert (found["documents"], found["k"]) == (40, 6)
    notes = json.loads((done.folder / "run.json").read_text())["notes"]
    assert "of the best 6 of 40 documents" in notes[-1]
    plain = task(spec(collection, "local", rounds=1, measure_sketches=True), tmp_path / "plain")
    assert perform(plain) == "finished"
    assert not (plain.folder / "sketches.json").exists(), "there are none"


@pytest.mark.parametrize(
    ("silos", "says"),
    [
        ({"count": 1}, "training needs at least 2 silos"),
        ({"count": 3, "of": 2}, r"must be at least silos.count = 3 \(got 2\)"),
    ],
)
def test_numbers_of_silos_that_make_no_sense_are_refused(silos: Any, says: str, collection: Path) -> None:
    with pytest.raises(ValueError, match=says):
        spec(collection, "local", silos=silos)


@pytest.mark.parametrize(
    ("noise", "says"), [(1.0, "costs ε = "), (0.0, "adds no noise, so no ε holds, but the budget is 2")]
)
def test_a_budget_that_does_not_pay_is_refused(noise: float, says: str, collection: Path, tmp_path: Path) -> None:
    method = {"name": "cross-silo", "noise": noise, **SKETCH}
    done = task(spec(collection, method, privacy={"budget": 2.0}), tmp_path / "run")
    assert perform(done) == "failed"
    assert says in json.loads((done.folder / "run.json").read_text())["error"]["message"]


@pytest.mark.long
def test_methods_can_be_compared_in_a_report(collection: Path, tmp_path: Path) -> None:
    variants = {"local": {"method": "local"}, "exact": {"method": {"name": "cross-silo", "counts": "exact", "k": 6}}}
    asked = spec(collection, "local", seeds=[1, 2], variants=variants)
    assert not run_experiment(asked, "silos", tmp_path, workers=1).failed
    runs = load_runs(tmp_path / "silos")
    assert [run.status for run in runs] == ["finished"] * 4
    text = write_report(runs, tmp_path / "report.md").read_text(encoding="utf-8")
    assert "exact" in text
    assert "err" in text
    assert "ndcg@10 by pass, mean over repeats" in write_report(runs, tmp_path / "report.html").read_text("utf-8")
