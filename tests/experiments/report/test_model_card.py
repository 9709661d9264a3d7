"""Model cards: registries can read the header, and the text states what the run and its privacy card state."""

from __future__ import annotations

import json

import pytest

from fedrank.experiments.report.model_card import model_card
from tests.experiments.report.made_up_runs import write_run

yaml = pytest.importorskip("yaml", reason="package: PyYAML, which mkdocs brings")


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path, data={"name": "letor\n---\nlicense: mit"})


def header(text):
    start, content, body = text.split("---\n", 2)
    assert start == ""
    return yaml.safe_load(content), body


def test_the_header_is_read_and_names_from_outside_stay_text(run):
    found, body = header(model_card(run))
    assert found["library_name"] == "fedrank"
    assert "license" not in found
    [result] = found["model-index"][0]["results"]
    assert result["dataset"]["name"] == "letor\n---\nlicense: mit"
    assert [metric["type"] for metric in result["metrics"]] == ["ndcg@10", "mrr@10"]
    assert f"- ndcg@10: {result['metrics'][0]['value']:.4f}" in body
    assert "TO FILL IN" in body


def test_its_quality_is_that_of_the_model_and_not_the_mean_of_the_last_evaluations(tmp_path):
    path = write_run(tmp_path, rounds=4, offline=[None, 0.25, None, 0.5], measures=["ndcg@10"])
    [result] = header(model_card(path))[0]["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "ndcg@10", "value": 0.5}]


def test_the_header_has_what_the_published_schema_requires_and_no_empty_results(tmp_path):
    # modelcard.md of huggingface/hub-docs; ModelCard of huggingface_hub 2.4 read this header when it was written.
    found, _ = header(model_card(write_run(tmp_path)))
    [model] = found["model-index"]
    assert isinstance(model["name"], str)
    for result in model["results"]:
        assert result["task"]["type"]
        assert {"type", "name"} <= result["dataset"].keys()
        assert all({"type", "value"} <= metric.keys() for metric in result["metrics"])
    unmeasured = write_run(tmp_path, variant="unmeasured", measures=["ndcg@10"], offline=[None] * 40)
    assert "model-index" not in header(model_card(unmeasured))[0]


def test_it_claims_nothing_without_a_privacy_card(run):
    (run / "privacy.json").unlink(missing_ok=True)
    assert "no privacy card, so there is no privacy guarantee" in model_card(run)


def test_only_a_finished_run_with_a_model_has_one(run):
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"status": "interrupted"}))
    with pytest.raises(ValueError, match="must be the folder of one finished run"):
        model_card(run)
