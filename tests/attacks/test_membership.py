"""Membership by canaries: what holds is not called broken, what is broken is, and nobody judges without power."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from fedrank.attacks import membership
from fedrank.attacks.membership import (
    Membership,
    Scope,
    Trial,
    audit_answers,
    audit_mechanism,
    audit_paper,
    audit_round,
    look_for,
    upper_bound,
    weaker,
)
from fedrank.federated.aggregators import Mean
from fedrank.federated.clients import make_clients
from fedrank.federated.round import RoundContext
from fedrank.privacy import mechanisms
from fedrank.privacy.guarantees import Setting
from fedrank.privacy.mechanisms import AtServer, FpdgdPaper, Gaussian, Laplace, OnClient, SecureAggregation
from fedrank.privacy.noise import SecureSource
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.learners import Pdgd
from tests.made_up import made_up_data
from tests.oracles.accounting import gaussian_epsilon

PLACES = (OnClient(), AtServer(), SecureAggregation())


def source(number=0):
    return SecureSource(number.to_bytes(32, "little"))


def setting(participation=1.0, learner=None, interactions=5, parameters=5):
    return Setting(10, parameters, participation, (interactions,), learner or Pdgd(), Mean())


def clients():
    return make_clients(made_up_data(), 3, interactions=1)


def test_upper_bound_by_hand():
    assert upper_bound(0, 10, 0.05) == pytest.approx(1 - 0.05**0.1)  # (1 - p)^10 = 0.05
    assert upper_bound(9, 10, 0.05) == pytest.approx(0.95**0.1)  # 1 - p^10 = 0.05
    assert upper_bound(10, 10, 0.05) == 1


@pytest.mark.parametrize(("errors", "runs"), [(3, 40), (120, 20_000), (19_000, 20_000)])
def test_upper_bound_is_where_so_few_errors_have_the_probability_of_the_level(errors, runs):
    assert binom.cdf(errors, runs, upper_bound(errors, runs, 1e-5)) == pytest.approx(1e-5, rel=1e-4)


def test_epsilon_of_errors_by_hand():
    trial = Trial("", 0.0, 1000, 0, 1000, 0, 0.02, 1.0)
    bound = 1 - 0.01**0.001  # no error in 1,000 runs, at half the level
    assert trial.alpha == trial.beta == pytest.approx(bound)
    assert trial.epsilon(1e-5) == pytest.approx(math.log((1 - 1e-5 - bound) / bound))
    assert trial.largest(1e-5) == trial.epsilon(1e-5)
    few = replace(trial, false_negatives=300)
    assert few.epsilon(0.0) == pytest.approx(math.log((1 - few.beta) / bound))
    assert few.largest(0.0) == trial.largest(0.0)
    assert replace(few, false_positives=700).epsilon(0.0) == 0  # as good as guessing


def test_verdicts():
    bad = Trial("", 0.0, 1000, 0, 1000, 0, 0.02, 0.9)
    good = replace(bad, allowed=0.001)
    common = ("", "server", 1, 1e-5, 1.0)
    assert Membership(*common, bad, bad).verdict == "VIOLATED"
    assert Membership(*common, good, bad).verdict == "NOT SHOWN"
    assert Membership(*common, good, good).verdict == "NO POWER"


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_what_holds_is_not_broken_and_its_control_is(kind, place):
    result = audit_mechanism(kind(1.5, 0.8, place), setting(), source(), Scope(repeats=40_000))
    assert result.verdict == "NOT SHOWN"
    assert result.shown < result.claimed
    assert result.largest > result.shown


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_a_quarter_less_noise_than_claimed_is_violated(kind, place):
    claimed = kind(1.5, 0.8, place)
    result = audit_mechanism(weaker(claimed), setting(), source(1), Scope(repeats=40_000), priced=claimed)
    assert result.verdict == "VIOLATED"


@pytest.mark.long
def test_sampling_counts_and_a_client_that_is_always_there_breaks_its_claim(monkeypatch):
    mechanism = Gaussian(1.0, 0.7, AtServer())
    result = audit_mechanism(mechanism, setting(0.5), source(), Scope(repeats=40_000))
    assert result.verdict == "NOT SHOWN"
    monkeypatch.setattr(SecureSource, "bernoulli", lambda self, q, n: np.ones(n, dtype=bool))
    assert audit_mechanism(mechanism, setting(0.5), source(), Scope(repeats=40_000)).verdict == "VIOLATED"


def test_noise_that_hides_everything_leaves_no_power():
    result = audit_mechanism(Gaussian(1.0, 1000.0, AtServer()), setting(), source(), Scope(repeats=4000))
    assert result.verdict == "NO POWER"


@pytest.mark.long
def test_more_noise_takes_more_rounds_until_the_control_is_caught():
    result = audit_mechanism(Gaussian(1.0, 8.0, AtServer()), setting(), source(), Scope(repeats=10_000))
    assert result.rounds > 1
    assert result.verdict == "NOT SHOWN"


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_a_mechanism_that_does_not_shorten_updates_is_violated(kind, place, monkeypatch):
    def unclipped(updates, weights, clip, norm, step):
        finite = np.where(np.isfinite(updates), updates, 0.0).astype(np.float64)
        return np.rint(finite * weights[:, None] / step).astype(np.int64)

    monkeypatch.setattr(mechanisms, "contributions", unclipped)
    assert audit_mechanism(kind(1.0, 2.0, place), setting(), source(), Scope(repeats=10_000)).verdict == "VIOLATED"


@pytest.mark.long
def test_laplace_noise_on_updates_of_bounded_l2_is_violated(monkeypatch):
    right = mechanisms.contributions
    monkeypatch.setattr(mechanisms, "contributions", lambda u, w, clip, norm, step: right(u, w, clip, 2, step))
    result = audit_mechanism(Laplace(1.0, 1.0, AtServer()), setting(), source(), Scope(repeats=40_000))
    assert result.verdict == "VIOLATED"
    assert result.trial.attack.startswith("all coordinates")


def test_weights_without_a_cap_are_violated(monkeypatch):
    monkeypatch.setattr(mechanisms, "weights_of", lambda sizes, cap: sizes / cap)
    assert audit_mechanism(Gaussian(1.0, 2.0), setting(), source(), Scope(repeats=10_000)).verdict == "VIOLATED"


@pytest.mark.parametrize("cohort", [10, 100, 1000])
def test_one_message_of_the_paper_breaks_what_the_paper_states(cohort):
    result = audit_paper(FpdgdPaper(1.2, 3.0), cohort, source(), Scope(repeats=20_000))
    assert result.verdict == "VIOLATED"
    assert result.claimed == 1.2
    assert result.shown > 1.2


@pytest.mark.long
def test_randomised_response_keeps_its_promise_and_lies_that_are_missing_are_seen(monkeypatch):
    learner = Evolution(truth=0.6)
    asked = setting(learner=learner, interactions=2)
    assert audit_answers(learner, asked, 1, Scope(repeats=20_000)).verdict == "NOT SHOWN"
    honest = mechanisms.EsRandomisedResponse.guarantees
    cheap = replace(learner, truth=0.4)  # claims more lies than are told
    monkeypatch.setattr(
        mechanisms.EsRandomisedResponse, "guarantees", lambda self, s: honest(self, replace(s, learner=cheap))
    )
    assert audit_answers(learner, asked, 1, Scope(repeats=20_000)).verdict == "VIOLATED"


@pytest.mark.long
@pytest.mark.parametrize(
    ("mechanism", "participation"),
    [
        (Gaussian(1.0, 1.4), 1.0),
        (Laplace(1.0, 0.5, AtServer(), cap=5), 1.0),
        (Gaussian(1.0, 0.7, SecureAggregation()), 1.0),
    ],
)
def test_rounds_keep_what_is_promised(mechanism, participation):
    result = audit_round(mechanism, setting(participation), clients(), source(), 1, Scope(level=1e-2, repeats=500))
    assert result.verdict == "NOT SHOWN"
    assert result.rounds == 2


@pytest.mark.long
def test_rounds_of_secret_cohorts_keep_what_is_promised_to_the_public():
    mechanism = Gaussian(1.0, 0.3, AtServer())
    result = audit_round(mechanism, setting(0.5), clients(), source(), 1, Scope(level=1e-2, repeats=500))
    assert result.verdict == "NOT SHOWN"


DEALT = replace(setting(), dealt=5)


@pytest.mark.long
@pytest.mark.parametrize("placement", PLACES)
def test_a_dealt_schedule_keeps_what_is_promised(placement):
    mechanism = Gaussian(1.0, 1.0 if isinstance(placement, OnClient) else 0.5, placement)
    four = make_clients(made_up_data(), 4, interactions=1)
    result = audit_round(mechanism, DEALT, four, source(), 1, Scope(level=1e-2, repeats=4000))
    assert result.verdict == "NOT SHOWN"
    assert result.shown <= result.claimed
    assert result.claimed == pytest.approx(gaussian_epsilon(0.5, 1e-5), rel=1e-3), "one release"
    assert audit_mechanism(mechanism, DEALT, source(), Scope(repeats=20_000)).verdict == "NOT SHOWN"


@pytest.mark.long
def test_a_dealt_schedule_that_lets_clients_participate_twice_is_violated(monkeypatch):
    monkeypatch.setattr(RoundContext, "draw", lambda self, round: np.arange(len(self.clients)))
    four = make_clients(made_up_data(), 4, interactions=1)
    result = audit_round(Gaussian(1.0, 0.5, AtServer()), DEALT, four, source(), 1, Scope(level=1e-2, repeats=4000))
    assert result.verdict == "VIOLATED"


@pytest.mark.long
def test_a_round_that_forgets_the_noise_of_its_sum_is_violated(monkeypatch):
    monkeypatch.setattr(
        mechanisms._NoisySum, "whole", lambda self, total: total.astype(np.float64) * (self.step / self.cohort)
    )
    result = audit_round(
        Gaussian(1.0, 0.8, AtServer()), setting(), clients(), source(), 1, Scope(level=1e-3, repeats=200)
    )
    assert result.verdict == "VIOLATED"


@pytest.mark.long
def test_much_noise_is_replaced_by_less_for_rounds_and_said_so():
    mechanism = Laplace(1.0, 50.0, AtServer())
    result = audit_round(mechanism, setting(), clients(), source(), 1, Scope(level=1e-3, repeats=50))
    assert "instead of 50" in result.note


def test_thresholds_come_from_other_runs_than_those_that_are_judged():
    """Every batch of runs is moved by another amount: only the first two, which choose, fit a threshold of 0.5."""
    asked = []

    def watch(index, inside, count):
        asked.append((inside, count))
        shift = 100.0 if len(asked) > 2 else 0.0
        return {"only": np.linspace(0, 0.4, count) + 0.6 * inside + shift}

    trial = look_for(watch, ["pair"], lambda alphas: 1 - alphas, 400, 0.01)
    assert asked == [(False, 100), (True, 100), (False, 400), (True, 400)]
    assert 0.4 <= trial.threshold <= 0.7
    assert trial.false_positives == 400  # a threshold that had seen these runs would have made none
    assert trial.false_negatives == 0
    assert not trial.violated


def test_the_most_telling_statistic_is_chosen():
    def watch(index, inside, count):
        blind = np.arange(count) % 7.0
        return {"blind": blind, "telling": blind + 100 * inside * index}

    trial = look_for(watch, ["nothing", "canary"], lambda alphas: 1 - alphas, 4000, 0.01)
    assert trial.attack == "canary, by telling"
    assert trial.violated
    assert trial.false_positives == trial.false_negatives == 0


def test_progress_ends_at_one():
    told = []
    audit_mechanism(Gaussian(1.0, 0.8), setting(), source(), Scope(repeats=2000, on_progress=told.append))
    assert told == sorted(told)
    assert told[-1] == 1.0


@pytest.mark.long
def test_the_same_key_gives_the_same_audit():
    once, twice = (
        audit_mechanism(Laplace(1.0, 0.8), setting(), source(3), Scope(repeats=2000)).trial for _ in range(2)
    )
    assert once == twice


def test_nothing_claimed_is_nothing_to_break():
    with pytest.raises(ValueError, match="claims no guarantee"):
        membership._claimed(FpdgdPaper(1.0).guarantees(setting(learner=Pdgd(clip_weights=1.5)))[:1])
