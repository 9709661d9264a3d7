"""The plan of a run with differential privacy: its rule, its proposal, and when it advises against training."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedrank as fr
from fedrank.cli import app
from fedrank.experiments.runner import privacy_plan
from fedrank.experiments.runner.privacy import planned
from fedrank.experiments.runner.privacy_plan import caution, plan_privacy
from fedrank.experiments.runner.privacy_rule import expected_loss, noise_norm, wasted_budget

SPEC = """
title     = "A thousand clients"
rounds    = 100
mechanism = { name = "gaussian", clip = 0.2, noise = 4.0, placement = "server" }
clients   = { count = 1000, interactions = 4, click_model = "navigational", schedule = "dealt" }
data      = { name = "synthetic-mq2007" }
learner   = { name = "pdgd" }
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few settings and seeds, so a plan takes seconds."""
    for name, value in {
        "SETS": 1, "FIRST": 1, "MORE": 1, "TESTS": 4, "ROUNDS": (1, 2), "FREE_ROUNDS": (2,), "STEPS": (1.0, 2.0, 4.0),
        "MAX_SEARCHES": 1200, "MAX_FACTOR": 2,
    }.items():  # fmt: skip
        monkeypatch.setattr(privacy_plan, name, value)


def read(spec: Path, *changes: str) -> fr.Experiment:
    return fr.read_experiment(spec, list(changes)).base


def refusal(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code != 0
    return str(done.exception)


def test_the_norm_of_noise_by_hand(spec):
    dealt = read(spec, "rounds=4", "server.name=add", "server.rate=100", "mechanism.clip=0.1", "mechanism.noise=3.73")
    assert noise_norm(dealt) == pytest.approx(100 * 3.73 * 0.1 * 4**1.5 * math.sqrt(46) / 1000)
    drawn = read(spec, "clients.schedule=drawn")
    assert noise_norm(drawn) == pytest.approx(1 * 4.0 * 0.2 * math.sqrt(100 * 46) / 1000)
    # Every one of 10 clients in a round adds noise to its message.
    local = read(spec, "mechanism.placement=client")
    assert noise_norm(local) == pytest.approx(1 * 4.0 * 0.2 * math.sqrt(10) * math.sqrt(100 * 46) / 10)


def test_a_wasteful_spec_gets_advice_with_measured_losses(spec):
    advice = wasted_budget(read(spec))
    # x = people / (σ √(T d)) = 1000 / (4 √(100 · 46)) = 3.7 now; with 4 rounds, 5 times as much.
    now, then = expected_loss(1000 / (4 * math.sqrt(4600))), expected_loss(1000 / (4 * math.sqrt(4 * 46)))
    assert f"about {then:.3f} nDCG@10 instead of about {now:.3f}" in advice
    assert (f"{then:.3f}", f"{now:.3f}") == ("0.004", "0.028")


@pytest.mark.parametrize(
    "changes",
    [
        ["rounds=4"],
        ["clients.schedule=drawn", "mechanism.noise=40"],  # everybody in every round: 100 times as many interactions
        ["mechanism.name=laplace", "clients.schedule=drawn"],
        ["clients.count=3", "rounds=3"],
    ],
)
def test_other_specs_get_none(spec, changes):
    assert wasted_budget(read(spec, *changes)) is None


def test_measured_losses_end_with_those_of_the_table():
    assert (expected_loss(0.01), expected_loss(7.0), expected_loss(1000.0)) == (0.078, 0.014, 0.003)


@pytest.mark.usefixtures("small")
def test_a_proposal_keeps_epsilon_and_beats_the_spec(spec, tmp_path):
    out = tmp_path / "planned.toml"
    arguments = ["privacy", "plan", str(spec), "--epsilon", "1", "--out", str(out), "--json", "--quiet"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    proposal, as_it_is = facts["arms"][:2]
    assert (proposal["name"], as_it_is["name"]) == ("proposal", "the spec as it is")
    assert facts["worthwhile"]
    assert facts["people"] == 1000
    assert facts["parameters"] == 46
    assert proposal["rounds"] <= 2
    assert proposal["quality"]["mean"] > as_it_is["quality"]["mean"] + 0.02
    assert proposal["difference"]["low"] <= proposal["difference"]["mean"] <= proposal["difference"]["high"]
    written = fr.read_experiment(out).base
    assert written.clients.schedule == "dealt"
    assert written.rounds == proposal["rounds"]
    assert max(each.total for each in planned(written) if math.isfinite(each.total)) <= 1.0
    assert wasted_budget(written) is None
    assert out.read_text().startswith("# fedrank privacy plan, ε = 1: Train")
    assert "exists and is not replaced" in refusal(*arguments)


@pytest.mark.usefixtures("small")
def test_too_few_people_for_a_good_start_are_told_not_to_train(spec, tmp_path):
    model = tmp_path / "model.json"
    *_, last = fr.simulate(fr.Federation(), fr.make_clients(fr.synthetic("mq2007", queries=20), count=4), rounds=2)
    fr.save_model(fr.Model(fr.rankers.Linear(), last.weights, 46), model)
    made = plan_privacy(read(spec, f"start={model}", "clients.count=20", "rounds=4"), 0.5)
    assert not made.worthwhile
    assert made.alternative == "the start alone"
    assert made.verdict.startswith("Do not train with 20 people at ε = 0.5: they are too few.")
    assert made.verdict.endswith("Use the start without training. 2 times as many people would be too few, too.")
    assert replace(made, people_needed=400).verdict.endswith("About 400 people would be enough.")
    names = [arm.name for arm in made.arms]
    assert "the start alone" in names
    assert "do nothing (BM25)" in names
    assert "one client alone" in names


@pytest.mark.usefixtures("small")
def test_persons_of_organisations(spec):
    changes = ["clients.count=3", "clients.people=100", "mechanism.unit=person", "rounds=4"]
    changes += ["mechanism.placement={ name = 'secure-aggregation', honest = 1.0, colluding = 0.0 }"]
    made = plan_privacy(read(spec, *changes), 1.0)
    assert made.people == 300
    assert "one organisation alone" in [arm.name for arm in made.arms]
    assert made.proposal.mechanism.people == math.ceil(100 / made.proposal.rounds)
    assert max(each.total for each in planned(made.proposal)) <= 1.0


@pytest.mark.usefixtures("small")
def test_the_same_plan_every_time(spec):
    changes = ["clients.count=60", "rounds=4"]
    assert plan_privacy(read(spec, *changes), 2.0) == plan_privacy(read(spec, *changes), 2.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["mechanism.name=laplace", "clients.schedule=drawn"], "a plan is for gaussian noise"),
        (["learner.name=lambdarank"], "a plan simulates pdgd with drawn lists only"),
        (["clients.count=4", "clients.people=20", "rounds=4"], "protects whole organisations"),
        (["local.name=fedprox", "clients.schedule=drawn"], "without `local` and `attack`"),
    ],
)
def test_specs_that_cannot_be_planned(spec, changes, message):
    with pytest.raises(ValueError, match=message):
        plan_privacy(read(spec, *changes), 1.0)


def test_a_spec_without_a_mechanism(spec):
    spec.write_text(SPEC.replace("mechanism =", "# mechanism =").replace(', schedule = "dealt"', ""))
    with pytest.raises(ValueError, match="it is not known where noise is added; add one, such as"):
        plan_privacy(read(spec), 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "0"], "--epsilon must be positive (got 0)"),
        (["--epsilon", "nan"], "--epsilon must be positive (got nan)"),
        (["--epsilon", "1", "--out", "plan.txt"], "--out must end in .toml"),
    ],
)
def test_bad_arguments(spec, arguments, message):
    assert message in refusal("privacy", "plan", str(spec), *arguments)


def test_a_spec_with_several_variants():
    assert "use --variant with one of" in refusal("privacy", "plan", "hospitals", "--epsilon", "1")


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [
        (8.01, "ε = 8.01 gives almost no protection: an observer decides between two"),
        (1e9, "correctly in at most 100 % of cases (50 % by guessing). Use at most 8."),
        (0.099, "ε = 0.099 is stricter than usual"),
        (1e-3, "It needs about 100 times as much noise as ε = 0.1, and as many times the people."),
    ],
)
def test_an_absurd_epsilon_gets_a_warning(epsilon, said):
    assert said in caution(epsilon)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_a_usual_epsilon_gets_none(epsilon):
    assert caution(epsilon) == ""


@pytest.mark.usefixtures("small")
def test_the_warning_is_printed_and_in_the_facts(spec):
    arguments = ["privacy", "plan", str(spec), "--set", "clients.count=60", "--set", "rounds=4", "--quiet"]
    printed = CliRunner().invoke(app, [*arguments, "--epsilon", "50"])
    assert "gives almost no protection" in " ".join(printed.stdout.split())
    facts = json.loads(CliRunner().invoke(app, [*arguments, "--epsilon", "50", "--json"]).stdout)
    assert facts["caution"] == caution(50.0)
