"""Audits: which attacks fit, how they are judged, and what is told on the way."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedrank.attacks import audits
from fedrank.attacks.audits import Audit, Finding, matching_bound
from fedrank.attacks.click_audit import ClickAudit, Share
from fedrank.attacks.clicks import KnownTraining, replay
from fedrank.federated.aggregators import Apart, Mean
from fedrank.federated.clients import make_clients
from fedrank.federated.local import FedProx, Scaffold
from fedrank.privacy.guarantees import Setting
from fedrank.privacy.mechanisms import AtServer, Laplace
from fedrank.privacy.noise import SecureSource
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import Mlp
from fedrank.seeds import Chance
from fedrank.types import LocalCorrection
from tests.made_up import made_up_data

FEW = {"messages": 5, "repeats": 2000, "runs": 40}


def audit(learner=None, aggregator=None, **changes) -> Audit:
    clients = make_clients(made_up_data(queries=60, features=20), 8, click_model="informational", interactions=2)
    setting = Setting(8, 20, 1.0, (2,), learner or Pdgd(), aggregator or Mean())
    return Audit(setting=setting, clients=clients, delta=1e-5, seed=1, source=SecureSource(bytes(32)), **FEW | changes)


def findings(audit, told=lambda what, share: None):
    found = []
    for step in audit.plan():
        made = [step] if isinstance(step, Finding) else step.make(lambda share, what=step.what: told(what, share))
        found += made
    return found


def test_nothing_leaves_clients_who_learn_alone():
    [only] = findings(audit(aggregator=Apart()))
    assert (only.verdict, only.counts) == ("SKIPPED", {})
    assert only.sentence == 'With the aggregator "none" nothing leaves a client.'


@pytest.mark.parametrize(
    "changes",
    [{"learner": Pdgd(ranker=Mlp(hidden=3))}, {"learner": Pdgd(lists="logged")}, {"local": Scaffold()}],
    ids=["neural", "logged", "scaffold"],
)
def test_clicks_are_read_from_plain_messages_alone(changes):
    clicks, _ = findings(audit(**changes))
    assert (clicks.attacked, clicks.verdict) == (audits.READING, "SKIPPED")
    assert "plain PDGD with a linear ranker" in clicks.sentence


@pytest.mark.long
def test_steps_that_are_pulled_back_are_replayed_to_the_last_bit():
    made, start, correction = audit(local=FedProx(strength=2.0)), np.linspace(-0.1, 0.1, 20), LocalCorrection(pull=2.0)
    updates = Pdgd()(start, made.clients, Chance(2, 7), correction).updates
    for c in range(8):
        searches = replay(Pdgd(), start, made.clients, c, Chance(2, 7), correction)
        steps = KnownTraining(Pdgd(), start, made.clients.data, correction).forward(searches)
        assert np.array_equal(steps.update.astype(np.float32), updates[c])
    clicks, *_ = findings(made)
    assert clicks.counts["decoded"]["right"] > 2


@pytest.mark.long
def test_every_attack_is_announced_and_told_to_its_end():
    told = []
    mechanism = Laplace(clip=0.1, noise=0.5, placement=AtServer())
    found = findings(audit(mechanism=mechanism), lambda what, share: told.append((what, share)))
    attacked = [each.attacked for each in found if each.verdict != "SKIPPED"]
    assert attacked == [audits.ALONE, audits.ROUNDS]
    for what in attacked:
        shares = [done for name, done in told if name == what]
        assert shares[-1] == 1
        assert np.all(np.diff(shares) >= 0)


def click_results(right, of=200, read=0):
    other = Share(0, of)
    values = dict.fromkeys(("read_guess", "decoded", "candidates", "candidates_guess"), other)
    values["read"] = Share(read, of)
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
    finding = audit(level=1e-5)._matching(
        click_results(right), None if control is None else click_results(control), 1.0, 0.0
    )
    assert finding.verdict == verdict
    assert (finding.shown == "") == (verdict == "NO POWER")


@pytest.mark.parametrize(
    ("read", "of", "verdict", "power"),
    [
        (13, 20, "READ", "13 or more of 20"),
        (12, 20, "NOT READ", "13 or more of 20"),
        (5, 5, "NO POWER", "not even 5 of 5 would be significantly better than guessing"),
        (0, 200, "NOT READ", None),
    ],
)
def test_fewer_messages_say_what_they_could_have_shown(read, of, verdict, power):
    finding = audit(level=1e-3)._reading(click_results(0, of, read))
    assert (finding.verdict, finding.shown, finding.guessed) == (verdict, f"{read} of {of} messages", f"0 of {of}")
    assert ("messages were attacked" in finding.sentence) == (power is not None)
    assert power is None or power in finding.sentence
    assert "95% confidence" in finding.sentence


@pytest.mark.parametrize(("right", "of", "verdict"), [(16, 20, "NOT READ"), (20, 20, "READ"), (5, 5, "NO POWER")])
def test_patterns_are_told_apart_more_often_than_by_chance(right, of, verdict):
    finding = audit(level=1e-3)._summary(click_results(right, of))
    assert (finding.attacked, finding.verdict, finding.guessed) == (audits.MATCHING, verdict, "half")


def test_messages_with_many_searches_behind_them_are_fewer():
    assert [audits.messages_for(searches, audits.SECONDS) for searches in (1, 5, 20, 50, 500)] == [200, 200, 30, 20, 20]


def test_matching_bound_by_hand():
    assert matching_bound(math.log(3), 0.01) == pytest.approx(3 / 4 + 0.01)
    assert matching_bound(800.0, 0.1) == 1


def test_bounds_are_rounded_to_the_safe_side():
    assert audits.rounded_up(1.201) == "1.21"
    assert audits.rounded_up(1.2) == "1.20"
    assert audits.rounded_up(math.inf) == "infinite"
    assert audits.rounded_down(1.209) == "1.20"
