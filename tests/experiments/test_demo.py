"""The demo: its story is made of the numbers of its own runs."""

from __future__ import annotations

import re

import pytest

from fedrank.attacks.audits import READING
from fedrank.experiments.builtin import demo as demo_module
from fedrank.experiments.builtin.demo import LIARS, demo
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.spec.source import read_experiment


@pytest.fixture
def short(monkeypatch):
    """The same demo with fewer rounds, seeds and messages."""

    def fewer(name):
        changes = ["rounds=20"] if name == "demo-privacy" else ["rounds=20", "seeds=[1]", "evaluate_every=5"]
        return read_experiment(name, changes)

    monkeypatch.setattr(demo_module, "read_experiment", fewer)
    for name, value in {"MESSAGES": 10, "REPEATS": 1000, "RUNS": 40}.items():
        monkeypatch.setattr(demo_module, name, value)


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_the_story_holds_the_numbers_of_its_runs(tmp_path):
    pytest.importorskip("dp_accounting")
    lines = []
    demo(tmp_path / "runs", tmp_path / "demo.html", lines.append)
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    runs = load_runs(tmp_path / "runs")
    assert {run.status for run in runs} == {"finished"}
    for variant in ("together", "alone", "attacked", "contained"):
        [run] = runs.filter(experiment="demo", variant=variant)
        assert f"{run.final_value('ndcg@10'):.4f}" in page
        assert f"{run.final_value('ndcg@10'):.4f}" in "\n".join(lines)
    [forgotten] = runs.filter(experiment="demo-unlearned")
    assert forgotten.receipt.removed["clients"] == list(LIARS)
    assert f"{forgotten.final_value('ndcg@10'):.4f}" in page
    assert re.search(r"no noise: \d+ of 10 messages", page)
    assert READING in page
    assert "`" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL), "commands are marked up, not quoted"


def test_liars_are_those_of_the_spec():
    attacked = [variant for variant in read_experiment("demo").variants if variant.name == "attacked"]
    assert attacked[0].experiment.clients.malicious == len(LIARS)
