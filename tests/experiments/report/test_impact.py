"""The impact assessment: filled from files, marked where people must speak, and claiming no more than a card."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedrank.cli import main
from fedrank.experiments.report.impact import TO_FILL_IN, impact, read_assessed
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.runner.cards import read_card
from fedrank.experiments.runner.folder import DEPLOYED_RUN
from fedrank.experiments.runner.forget_person import forget_person
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.source import read_spec
from tests.deploy.log_trial import spec_text
from tests.made_up import made_up_shown

CLICK_MODELS = [0, 1, 2, 0, 1, 2, 0, 1] * 4
SPEC = """\
title = "Clicks of a shop"
rounds = 3
[data]
log = "{log}"
[clients]
count = 3
partition = {{ name = "users" }}
[learner]
name = "pdgd"
{more}
"""
PROTECTED = '[mechanism]\nname = "gaussian"\nclip = 1.0\nnoise = 2.0\n[privacy]\nbudget = 50.0\n'


@pytest.fixture
def spec(tmp_path):
    log = made_up_shown(tmp_path / "log", CLICK_MODELS, unit="browser").folder

    def write(more=""):
        path = tmp_path / "shop.toml"
        path.write_text(SPEC.format(log=log, more=more), encoding="utf-8")
        return path

    return write


def epsilons(text):
    return set(re.findall(r"ε = ([0-9]+(?:\.[0-9]+)?)", text)) | set(re.findall(r"\| ([0-9]+\.[0-9]+) \|", text))


def test_before_a_run_it_says_what_is_planned(spec):
    text = markdown(impact(read_assessed(spec())))
    assert "Clicks of a shop" in text
    assert "Nothing has run yet." in text
    assert "No mechanism: clients send exact updates" in text
    assert "browsers, not people" in text
    assert "ε = " not in text.replace("no budget stops a run", "")
    assert text.count(TO_FILL_IN) > 15
    assert "| A query names a person, who is recognised |" in text
    assert "| The model ranks worse for some people than for others |" in text


def test_of_a_spec_whose_data_are_at_sites_it_lists_what_would_leave(tmp_path):
    (tmp_path / "spec.toml").write_text(spec_text(more="[gate]\n"))
    text = markdown(impact(read_assessed(tmp_path / "spec.toml")))
    assert "| clients | 3 sites, each with its own data |" in text
    assert "simulated" not in text
    for line in ("propensity: 18 sums", "quality: 3 sums", "gate: 6 sums", "clipped and noised per person"):
        assert line in text
    assert "in a shared folder, all who can read it" in text
    assert "the model that a site then uses" in text
    assert "ε is for one person" in text


def test_of_a_run_it_claims_what_the_card_claims_and_no_more(spec, tmp_path):
    run_experiment(read_spec(spec(PROTECTED)), "shop", tmp_path / "runs", workers=1)
    text = markdown(impact(read_assessed(tmp_path / "runs" / "shop")))
    card = read_card(tmp_path / "runs" / "shop" / "only" / "fold-1-seed-1")
    assert epsilons(text) <= epsilons(card.summary) | {"50"}
    assert epsilons(card.summary) <= epsilons(text)
    for point in card.not_covered:
        assert point.split(";")[0] in text
    assert "a run stops at ε = 50" in text
    assert f"{card.who_sees_what}; no update is kept." in text


def test_a_card_of_another_model_claims_nothing(spec, tmp_path):
    run_experiment(read_spec(spec(PROTECTED)), "shop", tmp_path / "runs", workers=1)
    model = tmp_path / "runs" / "shop" / "only" / "fold-1-seed-1" / "model.json"
    model.write_text(model.read_text() + " ")
    text = markdown(impact(read_assessed(tmp_path / "runs" / "shop")))
    assert "This card was issued for another model.json" in text
    assert epsilons(text) == {"50"}  # where the spec would stop


def test_it_knows_how_many_were_forgotten(spec, tmp_path):
    path = spec()
    forget_person("user1", tmp_path / "log")
    assert "that the data set has carried out: 1." in markdown(impact(read_assessed(path)))


@pytest.mark.long
@pytest.mark.parametrize("name", ["quickstart", "hospitals"])
def test_every_kind_of_spec(name):
    text = markdown(impact(read_assessed(name)))
    assert text.startswith("# Data protection impact assessment: ")


@pytest.mark.long
def test_the_command_never_replaces_what_somebody_wrote(spec, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedrank", "privacy", "impact", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, capsys.readouterr()

    path = spec()
    code, said = call(path, "--out", "dpia.md")
    assert code == 0
    assert "entries to complete are marked TO FILL IN" in said.out
    before = Path("dpia.md").read_text()
    for wrong, says in (
        ((path, "--out", "dpia.md"), "exists and is not replaced"),
        ((path, "--out", "dpia.pdf"), "is Markdown"),
        (("nowhere.toml", "--out", "other.md"), "spec nowhere.toml does not exist"),
        ((tmp_path / "log", "--out", "other.md"), "no finished run"),
    ):
        code, said = call(*wrong)
        assert code == 2
        assert says in said.err
        assert "Traceback" not in said.err
    assert Path("dpia.md").read_text() == before
    assert not Path("other.md").exists()


def test_of_sites_it_does_not_say_what_only_a_simulation_has(spec, tmp_path):
    path = spec()
    run_experiment(read_spec(path), "my", tmp_path / "runs", workers=1)
    simulated = read_assessed(tmp_path / "runs" / "my")
    assert ", partition " in markdown(impact(simulated))
    cards = tuple((run, replace(card, what=DEPLOYED_RUN)) for run, card in simulated.runs)
    text = markdown(impact(replace(simulated, runs=cards)))
    assert "sites, each with its own data" in text
    assert ", partition " not in text
    assert "| population |" not in text
