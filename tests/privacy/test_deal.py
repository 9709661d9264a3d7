"""The price of a dealt schedule: one exact Gaussian, by two other accountants and by adding up probabilities."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedrank.federated.aggregators import Mean
from fedrank.privacy.accounting import GaussianEvent, composed, delta_of
from fedrank.privacy.guarantees import Setting, cost_together
from fedrank.privacy.mechanisms import (
    AtServer,
    Gaussian,
    OnClient,
    SecureAggregation,
    event_of_gaussian_shares,
    exact_event_of_gaussian_shares,
)
from fedrank.ranking.learners import Pdgd
from tests.oracles.accounting import gaussian_epsilon

DELTA = 1e-5
PLACEMENTS = [OnClient(), AtServer(), SecureAggregation(sum="ideal")]
SETTING = Setting(1000, 46, 1.0, (4,), Pdgd(), Mean(), dealt=4)


def dp_accounting_epsilon(multiplier: float, times: int = 1) -> float:
    """By the privacy loss distribution of another project."""
    package = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    one = package.from_gaussian_mechanism(multiplier, value_discretization_interval=1e-3)
    return float(one.self_compose(times).get_epsilon_for_delta(DELTA))


@pytest.mark.parametrize("noise", [0.7, 3.73, 20.0])
@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_one_participation_costs_one_gaussian(placement, noise):
    mechanism = Gaussian(0.1, noise, placement)
    guarantee = mechanism.guarantees(SETTING)[-1]
    multiplier = noise / 2 if isinstance(placement, OnClient) else noise  # replaced by any other, or taken out
    assert guarantee.paid == "participation"
    assert "one of 4 rounds, dealt beforehand" in guarantee.because
    assert isinstance(guarantee.event, GaussianEvent)
    assert guarantee.event.sampling == 1
    found = guarantee.epsilon(1, DELTA)
    for other in (gaussian_epsilon(multiplier, DELTA), dp_accounting_epsilon(multiplier)):
        assert found == pytest.approx(other, rel=2e-3)
    assert found >= gaussian_epsilon(multiplier, DELTA), "the grid costs a little"


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_persons_cost_the_same(placement):
    people = Gaussian(0.1, 3.73, placement, unit="person", people=63)
    setting = replace(SETTING, clients=3)
    found = people.guarantees(setting)[-1]
    assert (found.unit, found.paid) == ("person", "participation")
    assert found.epsilon(1, DELTA) == pytest.approx(gaussian_epsilon(3.73, DELTA), rel=2e-3)
    assert setting.cohort(people) == 3


def test_the_exact_price_is_less_than_that_of_moments():
    """1.093 by Rényi moments and 1.000 exactly, for the noise of ε = 1."""
    secure = Gaussian(0.1, 3.7305, SecureAggregation(sum="ideal"))
    dealt, drawn = (secure.guarantees(replace(SETTING, dealt=rounds))[0].epsilon(1, DELTA) for rounds in (4, 0))
    assert dealt == pytest.approx(1.000, abs=2e-3)
    assert drawn == pytest.approx(1.093, abs=3e-2)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_later_plans_compose_in_the_ledger(placement):
    one, other = (Gaussian(0.1, noise, placement).guarantees(SETTING)[-1] for noise in (4.0, 5.0))
    factor = 2 if isinstance(placement, OnClient) else 1
    together = factor * math.sqrt(1 / 4.0**2 + 1 / 5.0**2)
    assert cost_together([(one, 1), (other, 1)], DELTA) == pytest.approx(
        gaussian_epsilon(1 / together, DELTA), rel=2e-3
    )
    assert one.epsilon(2, DELTA) == pytest.approx(dp_accounting_epsilon(4.0 / factor, 2), rel=2e-3)


def discrete(scale: float, reach: int) -> np.ndarray:
    """Probabilities of a discrete Gaussian at -reach .. reach."""
    k = np.arange(-reach, reach + 1)
    weights = np.exp(-(k**2) / (2 * scale**2))
    return weights / weights.sum()


@pytest.mark.parametrize(("scale", "shares", "shift"), [(4.5, 1, 3), (6.0, 2, 5), (9.0, 4, 9), (20.0, 3, 11)])
def test_the_exact_price_of_shares_covers_every_outcome(scale, shares, shift):
    """A sum of discrete Gaussians, moved by whole steps: δ by adding up all outcomes, beside the claimed δ."""
    share = discrete(scale / math.sqrt(shares), 140)
    total = share
    for _ in range(shares - 1):
        total = np.convolve(total, share)
    inside, outside = total[shift:], total[:-shift]
    event, slack = exact_event_of_gaussian_shares(scale, shift, shares, 1)
    assert isinstance(event, GaussianEvent)
    for epsilon in np.linspace(0.05, 4, 20):
        true = max(
            np.maximum(0, inside - np.exp(epsilon) * outside).sum(),
            np.maximum(0, outside - np.exp(epsilon) * inside).sum(),
        )
        # The same correction as in `Guarantee.epsilon`.
        claimed = delta_of(event, 1, max(0.0, epsilon - slack)) * math.exp(slack / 2)
        assert true <= claimed * (1 + 1e-9) + 1e-14
        assert claimed <= 3 * true + 1e-3, "and the claim is not far from it"


def test_the_exact_price_covers_shifts_in_two_coordinates():
    scale, (right, up) = 5.0, (3, 4)
    one = discrete(scale, 60)
    both = np.outer(one, one)
    inside, outside = both[right:, up:], both[:-right, :-up]
    event, slack = exact_event_of_gaussian_shares(scale, math.hypot(right, up), 1, 2)
    for epsilon in np.linspace(0.05, 4, 20):
        true = np.maximum(0, inside - np.exp(epsilon) * outside).sum()
        assert true <= delta_of(event, 1, max(0.0, epsilon - slack)) * math.exp(slack / 2) * (1 + 1e-9) + 1e-14


def test_noise_that_is_too_narrow_keeps_the_price_of_moments():
    assert exact_event_of_gaussian_shares(3.0, 1.0, 2, 5) == (event_of_gaussian_shares(3.0, 1 / 3.0, 2, 5), 0.0)


def test_no_amplification_by_sampling_on_top():
    dealt = Gaussian(0.1, 3.73, AtServer()).guarantees(SETTING)[-1]
    everybody = Gaussian(0.1, 3.73, AtServer()).guarantees(replace(SETTING, dealt=0, clients=250))[-1]
    assert composed({dealt.event: 1}, DELTA) == composed({everybody.event: 1}, DELTA)
