"""What `fedrank audit` does: which attacks it makes, what it says, and what it leaves."""

from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

from fedrank.attack.clicks import ClickAudit, Share
from fedrank.experiment import audit
from fedrank.experiment.audit import audit_experiment, matching_bound
from fedrank.experiment.spec import from_tables
from fedrank.protect.noise import SecureSource

FEW = {"messages": 12, "repeats": 20_000, "runs": 400}


def spec(**changes):
    return from_tables(
        {
            "rounds": 10,
            "data": {"name": "synthetic-mq2007"},
            "clients": {"count": 20, "interactions": 2, "user": "informational"},
            "learner": {"name": "pdgd"},
        }
        | changes
    )


def attacked(experiment, out=None, **few):
    screen = Console(file=io.StringIO(), width=200)
    found = audit_experiment(experiment, screen, out, source=SecureSource(bytes(32)), **(FEW | few))
    return found, screen.file.getvalue()


def verdicts(found):
    return {each.attacked: each.verdict for each in found}


def test_without_a_mechanism_clicks_are_read_and_nothing_is_promised(tmp_path):
    found, printed = attacked(spec(), tmp_path, messages=25)
    assert verdicts(found) == {"clicks, from one message": "READ", "membership": "SKIPPED"}
    assert "nothing is promised" in printed
    kept = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert kept["level"] == 1e-4
    [clicks, membership] = kept["findings"]
    assert clicks["counts"]["messages"] == 25
    assert clicks["counts"]["matched"]["of"] <= 25
    assert membership["verdict"] == "SKIPPED"


def test_a_correct_mechanism_is_not_shown_broken_where_the_control_is_caught(tmp_path):
    mechanism = {"name": "laplace", "clip": 0.1, "noise": 0.5, "place": {"name": "server"}}
    found, printed = attacked(spec(mechanism=mechanism), tmp_path / "mine.json", runs=3000)
    assert verdicts(found) == {
        "clicks, from one message": "SKIPPED",
        "membership, by the mechanism alone": "NOT SHOWN",
        "membership, by whole rounds": "NOT SHOWN",
    }
    assert "trusted" in found[0].sentence
    assert found[1].promised == "ε = 2.00"  # 1 / noise
    counts = json.loads((tmp_path / "mine.json").read_text(encoding="utf-8"))["findings"][1]["counts"]
    assert counts["control"]["violated"]
    assert not counts["trial"]["violated"]
    assert counts["epsilon_shown"] <= counts["epsilon_claimed"] < counts["epsilon_largest"]
    assert counts["trial"]["outside"] == FEW["repeats"]
    assert counts["trial"]["level"] == pytest.approx(1e-4 / 7)
    assert "NOT SHOWN" in printed
    assert "largest ε that could have been shown" in printed


def test_the_published_mechanism_is_violated():
    mechanism = {"name": "fpdgd-paper", "epsilon": 1.2, "sensitivity": 3.0}
    found, _ = attacked(spec(mechanism=mechanism, learner={"name": "pdgd", "clip_weights": 1.5}))
    verdict = verdicts(found)
    assert verdict["membership, by the mechanism alone"] == "VIOLATED"
    assert found[-2].promised == "ε = 1.20"  # what the paper states, not what holds


def test_where_there_is_no_power_nothing_is_shown():
    mechanism = {"name": "gaussian", "clip": 0.1, "noise": 1000.0}
    found, printed = attacked(spec(mechanism=mechanism), repeats=2000, runs=40)
    one = next(each for each in found if each.attacked == "membership, by the mechanism alone")
    assert one.verdict == "NO POWER"
    assert one.shown == ""
    assert "says nothing" in printed


def test_nothing_leaves_clients_who_learn_alone():
    [only], _ = attacked(spec(aggregator="none"))
    assert only.verdict == "SKIPPED"
    assert "nothing leaves" in only.sentence.lower()


def test_randomised_rewards_are_attacked_through_the_learner():
    experiment = spec(
        learner={"name": "evolution", "truth": 0.6},
        server={"name": "adam"},
        mechanism="es-randomised-response",
    )
    found, _ = attacked(experiment)
    assert verdicts(found) == {
        "clicks, from one message": "SKIPPED",
        "membership, by the mechanism alone": "NOT SHOWN",
        "membership, by whole rounds": "SKIPPED",
    }


def test_every_variant_is_attacked_at_its_share_of_the_level(monkeypatch):
    levels = []
    monkeypatch.setattr(audit._Audit, "all", lambda self: levels.append(self.level) or [])
    attacked(spec(vary={"mechanism.noise": [1.0, 2.0]}, mechanism={"name": "gaussian", "clip": 0.1, "noise": 1.0}))
    assert levels == [1e-4 / 14] * 2


def click_results(right, of=200):
    other = Share(0, of)
    values = dict.fromkeys(("read", "read_guess", "decoded", "candidates", "candidates_guess"), other)
    numbers = dict.fromkeys(("accuracy", "accuracy_guess", "auc", "auc_guess"), 0.5)
    return ClickAudit(
        messages=of, queries=50, interactions=2.0, matched=Share(right, of), matched_guess=other, **values, **numbers
    )


@pytest.mark.parametrize(
    ("right", "control", "verdict"),
    [(199, 200, "VIOLATED"), (150, 199, "NOT SHOWN"), (150, 150, "NO POWER"), (150, None, "NO POWER")],
)
def test_matching_against_what_epsilon_allows(right, control, verdict):
    """ε = 1 allows 73 % of messages."""
    made = audit._Audit(spec(), "only", 1e-5, 200, 1, 1, None, lambda what: lambda share: None)
    finding = made._matching("x", click_results(right), None if control is None else click_results(control), 1.0, 0.0)
    assert finding.verdict == verdict
    assert (finding.shown == "") == (verdict == "NO POWER")


def test_matching_bound_by_hand():
    assert matching_bound(math.log(3), 0.01) == pytest.approx(3 / 4 + 0.01)
    assert matching_bound(800.0, 0.1) == 1


def test_bounds_are_rounded_to_the_safe_side():
    assert audit._up(1.201) == "1.21"
    assert audit._up(1.2) == "1.20"
    assert audit._down(1.209) == "1.20"
    assert audit._up(math.inf) == "infinite"


def test_what_is_no_number_is_null_in_the_file():
    assert audit._plain({"a": [math.inf, 1.5], "b": math.nan}) == {"a": [None, 1.5], "b": None}


def test_bars_on_a_terminal_end_with_the_attack():
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    with audit._progress(screen, "variant") as begin:
        tell = begin("clicks")
        tell(0.5)
        begin("rounds")(1.0)
    assert "variant: rounds" in screen.file.getvalue()
