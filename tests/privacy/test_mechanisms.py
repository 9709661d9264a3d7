"""Mechanisms: what leaves a client, what a sum opens, how much noise is in it, and what may be claimed."""

from __future__ import annotations

import math
import tomllib

import numpy as np
import pytest

from fedrank.experiments.spec.families import build, describe
from fedrank.federated.aggregators import Mean
from fedrank.privacy.accounting import (
    ConcentratedEvent,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    ResponseEvent,
    delta_of,
)
from fedrank.privacy.guarantees import OBSERVERS, Setting
from fedrank.privacy.mechanisms import (
    MECHANISMS,
    PLACEMENTS,
    AtServer,
    EsRandomisedResponse,
    FpdgdPaper,
    Gaussian,
    Laplace,
    OnClient,
    PricedMechanism,
    SecureAggregation,
    _slack,
)
from fedrank.privacy.noise import GridNoise, SecureSource, discrete_gaussian, rounded_gaussian, rounded_laplace
from fedrank.privacy.secure_messages import message_bytes
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.learners import Pdgd
from fedrank.toml import write_toml
from fedrank.types import Messages, has_trait

IDEAL = SecureAggregation(sum="ideal")
BOUNDED = Pdgd(batch=True, clip_gradients=1.0)  # an interaction moves an update by 0.1 x 1 at most


def arrivals(updates, sizes=None) -> Messages:
    updates = np.asarray(updates, dtype=np.float32)
    count, parameters = updates.shape
    sizes = np.ones(count, dtype=np.int64) if sizes is None else np.asarray(sizes)
    return Messages(updates, sizes, np.arange(count), np.zeros(parameters), round=1)


def setting(clients=100, parameters=46, participation=1.0, interactions=(4,), learner=None, aggregator=None):
    return Setting(clients, parameters, participation, interactions, learner or Pdgd(), aggregator or Mean())


def source() -> SecureSource:
    return SecureSource(key=bytes(32))


@pytest.fixture
def silent(monkeypatch):
    """All noise on a grid is zero."""
    monkeypatch.setattr(GridNoise, "draw", lambda self, shape, source: np.zeros(shape, np.int64))


def combined(mechanism, arrived, cohort):
    sent = mechanism.protect(arrived, cohort, source())
    rule = mechanism.rule(cohort, source()) if has_trait(mechanism, "adds up") else Mean()
    return rule(sent)


# What is sent, and what is done with it


@pytest.mark.parametrize(
    "place", [OnClient(), AtServer(), IDEAL, SecureAggregation()], ids=["client", "server", "ideal", "sum"]
)
def test_without_noise_a_sum_is_what_it_is_by_hand(silent, place):
    if place == SecureAggregation():
        pytest.importorskip("cryptography")
    updates = [[3, 4], [0.3, 0.4], [np.nan, 1], [0, -5]]
    sizes = [1, 2, 4, 9]  # with cap = 4 weights 1/4, 1/2, 1 and 1
    change = combined(Gaussian(1.0, 1.0, place, cap=4), arrivals(updates, sizes), cohort=4)
    by_hand = [(0.6 / 4 + 0.3 / 2) / 4, (0.8 / 4 + 0.4 / 2 - 1) / 4]
    assert change == pytest.approx(by_hand, abs=4 * 2.0**-25)


def test_laplace_shortens_in_l1(silent):
    change = combined(Laplace(1.0, 1.0, AtServer()), arrivals([[3, 4], [0.3, 0.4]]), cohort=2)
    assert change == pytest.approx([(3 / 7 + 0.3) / 2, (4 / 7 + 0.4) / 2], abs=2.0**-24)


def test_a_sum_is_divided_by_a_public_number_whoever_came(silent):
    """Three of ten clients, each with probability 0.4: the sum is divided by 4, not by 3; of nobody too."""
    mechanism = Gaussian(1.0, 1.0, AtServer())
    change = combined(mechanism, arrivals([[1, 0], [0.5, 0], [0.5, 0]]), cohort=0.4 * 10)
    assert change.tolist() == [2 / 4, 0]
    assert combined(mechanism, arrivals(np.zeros((0, 2))), cohort=4.0).tolist() == [0, 0]


@pytest.mark.parametrize("place", [OnClient(), AtServer(), IDEAL])
def test_how_often_somebody_searched_does_not_leave(silent, place):
    one = Gaussian(1.0, 1.0, place, cap=2).protect(arrivals([[1, 0], [1, 0]], [2, 500]), 2, source())
    assert one.sizes.tolist() == [1, 1]
    assert one.updates[0].tolist() == one.updates[1].tolist()


def test_bytes_of_a_message():
    arrived = arrivals(np.zeros((4, 10)))
    assert Gaussian(1.0, 1.0).protect(arrived, 4, source()).bytes_each == 40
    assert Gaussian(1.0, 1.0, IDEAL).protect(arrived, 4, source()).bytes_each == message_bytes(4, 10, 32)
    wide = SecureAggregation(bits=40, sum="ideal")
    assert Gaussian(1.0, 1.0, wide).protect(arrived, 4, source()).bytes_each == message_bytes(4, 10, 40)


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_the_order_of_clients_does_not_matter(kind):
    """Central noise is the same whatever the order, since it is drawn after the sum."""
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(8, 5)).astype(np.float32)
    mechanism = kind(1.0, 1.0, AtServer())
    sent = mechanism.protect(arrivals(updates), 8, source())
    turned = mechanism.protect(arrivals(updates[::-1]), 8, source())
    assert np.array_equal(sent.updates[::-1], turned.updates)
    assert np.array_equal(mechanism.rule(8, source())(sent), mechanism.rule(8, source())(turned))


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_the_ideal_sum_is_bit_by_bit_what_the_protocol_opens(kind):
    pytest.importorskip("cryptography")
    updates = np.random.default_rng(2).normal(size=(7, 6))
    changes = []
    for which in ("ideal", "protocol"):
        mechanism = kind(1.0, 1.0, SecureAggregation(honest=0.6, colluding=0.0, sum=which))
        changes.append(combined(mechanism, arrivals(updates), 7))
    assert np.array_equal(*changes)
    assert np.abs(changes[0]).min() > 0


def test_the_protocol_takes_all_clients_at_once():
    """In parts the server would see sums of a few clients."""
    assert hasattr(Gaussian(1.0, 1.0, IDEAL).rule(10, source()), "part")
    assert not hasattr(Gaussian(1.0, 1.0, SecureAggregation()).rule(10, source()), "part")


@pytest.mark.parametrize("honest", [0.01, 0.3, 0.5, 1.0])
def test_the_protocol_runs_whatever_the_share_of_honest_clients(honest):
    pytest.importorskip("cryptography")
    mechanism = Gaussian(1.0, 1.0, SecureAggregation(honest=honest, colluding=0.0))
    assert np.isfinite(combined(mechanism, arrivals(np.zeros((5, 3))), 5)).all()


# How much noise there is


@pytest.mark.parametrize(("kind", "factor"), [(Gaussian, 1.0), (Laplace, math.sqrt(2))])
def test_noise_on_a_client_is_as_wide_as_it_says(kind, factor):
    sent = kind(2.0, 1.5).protect(arrivals(np.zeros((200, 200))), 200, source()).updates.astype(np.float64)
    assert sent.std() == pytest.approx(2.0 * 1.5 * factor, rel=0.02)
    assert abs(sent.mean()) < 0.02 * sent.std()
    # Independent from client to client, and from parameter to parameter.
    assert abs(np.corrcoef(sent[0::2].ravel(), sent[1::2].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(sent[:, 0::2].ravel(), sent[:, 1::2].ravel())[0, 1]) < 0.03


@pytest.mark.parametrize(("kind", "factor"), [(Gaussian, 1.0), (Laplace, math.sqrt(2))])
def test_noise_at_the_server_is_as_wide_as_it_says(kind, factor):
    change = kind(2.0, 1.5, AtServer()).rule(50.0, source())(arrivals(np.zeros((3, 40_000))))
    assert change.std() * 50 == pytest.approx(2.0 * 1.5 * factor, rel=0.02)


@pytest.mark.parametrize(("kind", "factor"), [(Gaussian, 1.0), (Laplace, math.sqrt(2))])
def test_shares_of_the_honest_alone_are_as_wide_as_it_says(kind, factor):
    """4 of 10 stay and do not collude: their shares suffice, and all ten make √(10/4) of it."""
    mechanism = kind(2.0, 1.5, SecureAggregation(honest=0.4, colluding=0.0, sum="ideal"))
    sent = mechanism.protect(arrivals(np.zeros((10, 40_000))), 10, source())
    honest = sent.updates[:4].sum(axis=0) * mechanism.step(10)
    assert honest.std() == pytest.approx(2.0 * 1.5 * factor, rel=0.03)
    everybody = mechanism.rule(10, source())(sent) * 10
    assert everybody.std() == pytest.approx(2.0 * 1.5 * factor * math.sqrt(10 / 4), rel=0.03)


def test_fpdgd_noise_adds_up_to_laplace_noise_and_is_almost_nothing_alone():
    """Δ / ε = 2.5: one of 1,000 messages has 97 % of its coordinates below 1e-6 (methods: N = 1,000, ε = 1.2)."""
    sent = FpdgdPaper(1.2).protect(arrivals(np.zeros((1000, 100))), 1000, source()).updates.astype(np.float64)
    assert (np.abs(sent) < 1e-6).mean() == pytest.approx(0.97, abs=0.005)
    total = sent.sum(axis=0)
    assert np.abs(total).mean() == pytest.approx(2.5, rel=0.3)  # E|Laplace| = scale; 100 of them: ± 10 %
    few = FpdgdPaper(1.2).protect(arrivals(np.zeros((10, 4000))), 10, source()).updates.astype(np.float64)
    assert (np.abs(few) < 1e-6).mean() == pytest.approx(0.06, abs=0.015)
    assert np.abs(few.sum(axis=0)).mean() == pytest.approx(2.5, rel=0.08)


def test_fpdgd_noise_may_be_shared_among_messages_that_come_one_by_one():
    """A hundred messages, each a round of its own, have the noise of one round of a hundred, and none is promised."""
    alone, drawn = FpdgdPaper(1.2, shares=100), source()
    sent = [alone.protect(arrivals(np.zeros((1, 2000))), 1, drawn).updates.astype(np.float64) for _ in range(100)]
    assert np.abs(np.sum(sent, axis=0)).mean() == pytest.approx(2.5, rel=0.1)
    assert (np.abs(sent[0]) < 1e-6).mean() > 0.6
    rows = alone.guarantees(setting(learner=Pdgd(clip_weights=1.5)))
    assert all(row.event is None for row in rows)
    assert "as many messages as shares" in rows[-1].because
    with pytest.raises(ValueError, match="shares must be at least 1"):
        FpdgdPaper(1.2, shares=0)


def test_fpdgd_noise_is_made_for_those_who_take_part():
    sent = FpdgdPaper(1.2).protect(arrivals(np.zeros((10, 4000)), np.full(10, 4)), 10, source())
    assert sent.sizes.tolist() == [4] * 10
    other = FpdgdPaper(1.2).protect(arrivals(np.zeros((10, 4000))), 1000, source())
    assert np.abs(other.updates.sum(axis=0)).mean() < 0.1 * np.abs(sent.updates.sum(axis=0)).mean()


def test_response_adds_nothing():
    arrived = arrivals(np.ones((2, 3)))
    assert EsRandomisedResponse().protect(arrived, 2, source()) is arrived


# What may be claimed


def is_event(event, kind, multiplier, sampling=1.0) -> bool:
    return (
        type(event) is kind and event.sampling == sampling and event.multiplier == pytest.approx(multiplier, rel=1e-12)
    )


@pytest.mark.parametrize(
    ("kind", "event", "spread"), [(Gaussian, GaussianEvent, math.sqrt(46)), (Laplace, LaplaceEvent, 46)]
)
def test_promises_of_local_noise(kind, event, spread):
    """Replaced by anything else, a message moves by 2 clip; and every coordinate by a step, of 2^-24."""
    rows = kind(1.0, 3.0).guarantees(setting(participation=0.1))
    assert [row.against for row in rows] == list(OBSERVERS)
    for row in rows:
        assert row.event == event(3 / (2 + spread * 2.0**-24), 1.0)
        assert (row.paid, row.unit, row.neighbours) == ("participation", "client", "replace-one")
        assert row.slack > 0


@pytest.mark.parametrize(
    ("kind", "event", "spread"), [(Gaussian, GaussianEvent, math.sqrt(46)), (Laplace, LaplaceEvent, 46)]
)
@pytest.mark.parametrize("participation", [1.0, 0.1])
def test_promises_of_central_noise(kind, event, spread, participation):
    server, *others = kind(1.0, 3.0, AtServer()).guarantees(setting(participation=participation))
    assert (server.against, server.event) == ("server", None)
    assert [row.against for row in others] == ["other clients", "public"]
    for row in others:
        # Everybody pays in every round, taking part or not: chance is what hides them.
        assert row.event == event(3 / (1 + spread * 2.0**-25), participation)
        assert (row.paid, row.neighbours) == ("round", "zero-out")
        assert ("secret" in row.because) == (participation < 1)


def test_promises_of_gaussian_shares():
    """Kairouz, Liu and Steinke 2021, theorem 1: only the noise of the honest counts; cohorts are no secret."""
    mechanism = Gaussian(1.0, 3.0, SecureAggregation(honest=0.5, colluding=0.0, bits=16, sum="ideal"))
    rows = mechanism.guarantees(setting(clients=40, participation=0.5))
    # 20 clients with 1 each, and 12 x 3 x √(20/10) of noise: 70.9 in steps of 1/256 (18,155 < 2^15 <= 2 x 18,155).
    step = 1 / 256
    deviation = 3 / step / math.sqrt(10)  # of one share, in steps
    gap = 10 * sum(math.exp(-2 * math.pi**2 * deviation**2 * k / (k + 1)) for k in range(1, 10))
    ratio = (1 + step * math.sqrt(46) / 2) / 3
    cost = min(math.sqrt(ratio**2 + gap * 46 / 2), ratio + gap * math.sqrt(46))
    assert [row.against for row in rows] == list(OBSERVERS)
    for row in rows:
        assert isinstance(row.event, ConcentratedEvent)
        assert row.event.rho == pytest.approx(cost**2 / 2, rel=1e-12)
        assert (row.paid, row.neighbours) == ("participation", "zero-out")
        assert "fewer than 10 clients are not opened" in row.because


def test_narrow_shares_cost_more_than_one_wide_noise():
    """With shares 2.2 steps wide the gap to a discrete Gaussian of the same width is priced, not forgotten."""
    wide = Gaussian(1.0, 1.0)._event_of_shares(scale=1000.0, reach=1000.0, shares=100, parameters=46)
    narrow = Gaussian(1.0, 1.0)._event_of_shares(scale=5.0, reach=5.0, shares=100, parameters=46)
    assert wide.rho == pytest.approx(1 / 2, rel=1e-12)
    deviation = 5 / 10
    gap = 10 * sum(math.exp(-2 * math.pi**2 * deviation**2 * k / (k + 1)) for k in range(1, 100))
    assert narrow.rho == pytest.approx(min(1 + gap * 23, (1 + gap * math.sqrt(46)) ** 2) / 2, rel=1e-12)
    assert narrow.rho > 1


def test_promises_of_laplace_shares():
    rows = Laplace(1.0, 3.0, SecureAggregation(honest=0.5, colluding=0.0, bits=16, sum="ideal")).guarantees(
        setting(clients=20)
    )
    # 20 and 12 x 2.5 x 3 x √2 make 147.3: steps of 1/128 (18,854 < 2^15).
    for row in rows:
        assert isinstance(row.event, PureEvent)
        assert row.event.epsilon == pytest.approx((1 + 46 / 128 / 2) / 3)


def test_shares_that_are_too_narrow_are_refused():
    with pytest.raises(ValueError, match="grid steps wide"):
        Gaussian(1.0, 0.01, SecureAggregation(bits=16, sum="ideal")).guarantees(setting())


@pytest.mark.parametrize(("kind", "event"), [(Gaussian, GaussianEvent), (Laplace, LaplaceEvent)])
def test_an_interaction_that_is_longer_than_the_clip_can_turn_an_update_round(kind, event):
    """0.1 x 30 > 1: with the interaction an update may be +clip, and without it -clip."""
    long = setting(learner=Pdgd(batch=True, clip_gradients=30.0))
    spread = math.sqrt(46) if kind is Gaussian else 46
    both = 2 + spread * 2.0**-24
    for place in (OnClient(), AtServer()):
        row = kind(1.0, 3.0, place, unit="interaction").guarantees(long)[-1]
        assert is_event(row.event, event, 3 / both)


def test_promises_for_an_interaction():
    """One interaction moves an update by rate x clip_gradients = 0.1; shortening never moves it further in L2."""
    short = setting(learner=BOUNDED, participation=0.1)
    rounding = 2.0**-24 * (math.sqrt(46) + 4)  # to the grid with and without it, and to four bytes before
    central = Gaussian(1.0, 3.0, AtServer(), unit="interaction").guarantees(short)[-1]
    # Who knows that it took place knows that its client took part: no amplification.
    assert is_event(central.event, GaussianEvent, 3 / (0.1 + rounding))
    assert (central.paid, central.unit) == ("once", "interaction")
    local = Gaussian(1.0, 3.0, unit="interaction").guarantees(short)[0]
    assert is_event(local.event, GaussianEvent, 3 / (2 * (0.1 + rounding)))
    # In L1 a vector is up to √46 times as long, and shortening takes two up to twice as far apart.
    rounding = 2.0**-24 * (46 + 4)
    central = Laplace(1.0, 3.0, AtServer(), unit="interaction").guarantees(short)[-1]
    assert is_event(central.event, LaplaceEvent, 3 / (0.2 * math.sqrt(46) + rounding))


@pytest.mark.parametrize("learner", [Pdgd(), Pdgd(batch=True), Evolution()])
def test_an_interaction_needs_a_bound(learner):
    with pytest.raises(ValueError, match="clip_gradients"):
        Gaussian(1.0, 1.0, unit="interaction").guarantees(setting(learner=learner))


@pytest.mark.parametrize(
    ("variant", "parameters", "pure", "after_1000"),
    [("text", 46, 8.1, 900), ("code", 46, 16.3, 3240), ("text", 136, 14, 900), ("code", 136, 28, 3240)],
)
def test_what_the_paper_calls_1_2(variant, parameters, pure, after_1000):
    """The numbers of the methods page."""
    clip = 1.5 if variant == "text" else 3.0
    mechanism = FpdgdPaper(1.2, 3.0, variant)
    server, *others = mechanism.guarantees(setting(1000, parameters, learner=Pdgd(clip_weights=clip)))
    assert server.event is None
    for row in others:
        assert row.epsilon(1, 0.0) == pytest.approx(pure, rel=0.007)
        assert row.epsilon(1, 0.0) == pytest.approx(1.2 * clip / 1.5 * math.sqrt(parameters), rel=1e-12)
        assert row.epsilon(1000, 1e-5) == pytest.approx(after_1000, rel=0.005)
        assert (row.paid, row.neighbours) == ("participation", "replace-one")


def test_what_the_paper_says_is_rounded_up_not_down():
    """4.5 x √46 = 30.52."""
    row = FpdgdPaper(4.5, 5.0).guarantees(setting(learner=Pdgd(clip_weights=2.5)))[-1]
    assert "ε = 30.6 holds" in row.because


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"interactions": (4, 5)}, "different weight"), ({"aggregator": object()}, "only in an equally weighted mean")],
)
def test_the_paper_promises_nothing_where_shares_do_not_add_up(changes, reason):
    rows = FpdgdPaper(1.2).guarantees(setting(learner=Pdgd(clip_weights=1.5), **changes))
    assert all(row.event is None for row in rows)
    assert reason in rows[-1].because


def test_unequal_sizes_do_not_matter_to_the_paper_where_they_do_not_count():
    equal = setting(learner=Pdgd(clip_weights=1.5), interactions=(4, 5), aggregator=Mean(weighted=False))
    assert FpdgdPaper(1.2).guarantees(equal)[-1].event is not None


def test_the_paper_gets_no_amplification():
    """Its cohort comes from the run's seed; noise is made for those in it, so each participation costs the same."""
    learner = Pdgd(clip_weights=1.5)
    some, all_ = (FpdgdPaper(1.2).guarantees(setting(1000, participation=q, learner=learner))[-1] for q in (0.1, 1.0))
    assert some.event == all_.event
    assert (some.times(7, 70), some.paid) == (7, "participation")


@pytest.mark.parametrize("clip_weights", [0.0, 3.0])
def test_the_paper_needs_its_clip(clip_weights):
    with pytest.raises(ValueError, match=r"clip_weights = 1\.5"):
        FpdgdPaper(1.2).guarantees(setting(learner=Pdgd(clip_weights=clip_weights)))


@pytest.mark.parametrize(
    ("truth", "message", "pure", "approximate"),
    [(0.25, 4.8, 1204, 298), (0.5, 9.2, 2303, 1218), (0.9, 18.0, 4500, 4199)],
)
def test_foltr_es_costs_four_rewards_a_message(truth, message, pure, approximate):
    """The numbers of the methods page: 4 rewards a message, 250 messages."""
    rows = EsRandomisedResponse().guarantees(setting(2000, learner=Evolution(truth=truth)))
    assert [row.against for row in rows] == list(OBSERVERS)
    for row in rows:
        assert row.event == ResponseEvent(truth, 11, 4)
        assert row.epsilon(1, 0.0) == pytest.approx(message, abs=0.03)
        assert row.epsilon(250, 0.0) == pytest.approx(pure, rel=0.001)
        assert row.epsilon(250, 1e-5) == pytest.approx(approximate, rel=0.003)


def test_foltr_es_promises_nothing_where_sizes_show():
    rows = EsRandomisedResponse().guarantees(setting(learner=Evolution(truth=0.5), interactions=(4, 6)))
    assert all(row.event is None for row in rows)


def test_foltr_es_promises_nothing_where_the_seed_tells_the_clicks():
    rows = EsRandomisedResponse().guarantees(setting(learner=Evolution(truth=0.5, chance="shared")))
    assert all(row.event is None and "the seed in a message also draws the clicks" in row.because for row in rows)


@pytest.mark.parametrize("learner", [Evolution(), Pdgd()])
def test_foltr_es_needs_flips(learner):
    with pytest.raises(ValueError, match="truth below 1"):
        EsRandomisedResponse().guarantees(setting(learner=learner))


def test_the_secure_sum_is_refused_where_it_cannot_be():
    with pytest.raises(ValueError, match="ideal"):
        Gaussian(1.0, 1.0, SecureAggregation()).guarantees(setting(clients=201))
    assert Gaussian(1.0, 1.0, SecureAggregation()).guarantees(setting(clients=2000, participation=0.1))
    assert Gaussian(1.0, 1.0, IDEAL).guarantees(setting(clients=201))
    with pytest.raises(ValueError, match="single client"):
        Gaussian(1.0, 1.0, IDEAL).guarantees(setting(clients=10, participation=0.1))


@pytest.mark.parametrize(
    ("clients", "honest", "colluding", "fewest", "opened", "threshold"),
    [(100, 0.5, 0.25, 50, 75, 26), (30, 0.1, 0.9, 3, 30, 28), (7, 1.0, 0.0, 7, 7, 2), (10, 0.7, 0.3, 7, 10, 4)],
)
def test_who_may_collude_cannot_open_a_sum(clients, honest, colluding, fewest, opened, threshold):
    place = SecureAggregation(honest=honest, colluding=colluding)
    assert (place.min_honest(clients), place.opened(clients), place.threshold(clients)) == (fewest, opened, threshold)
    assert place.opened(clients) - place.colluders(clients) >= place.min_honest(
        clients
    )  # whoever lies, noise is enough
    assert place.threshold(clients) > place.colluders(clients)


def test_a_sum_that_colluders_could_strip_of_its_noise_does_not_open(monkeypatch):
    """Seven of ten survive, three of them may lie: four honest shares are fewer than the seven that are priced."""
    pytest.importorskip("cryptography")
    from fedrank.privacy import secure_aggregation

    whole = secure_aggregation.secure_sum

    def with_dropouts(values, bits, threshold, fewest, **rest):
        return whole(values, bits, threshold, fewest, {0: "share", 1: "share", 2: "share"}, **rest)

    monkeypatch.setattr(secure_aggregation, "secure_sum", with_dropouts)
    mechanism = Gaussian(1.0, 1.0, SecureAggregation(honest=0.7, colluding=0.3))
    source = SecureSource(bytes(32))
    sent = mechanism.protect(arrivals(np.zeros((10, 3))), 10, source)
    with pytest.raises(secure_aggregation.TooFewClients):
        mechanism.rule(10, source)(sent)


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
@pytest.mark.parametrize("bits", [16, 20, 32, 62])
def test_a_sum_never_wraps_around(kind, bits):
    """Everybody at full length, and six deviations of noise, in one coordinate."""
    mechanism = kind(2.0, 5.0, SecureAggregation(bits=bits, sum="ideal"))
    step = mechanism.step(150)
    deviation = mechanism.tail * 5 * 2 * math.sqrt(2)
    assert 150 * math.ceil(2 / step) + 6 * deviation / step < 2 ** (bits - 1)
    assert step >= 2.0**-23


# Settings


def settings_of(mechanism):
    return tomllib.loads(write_toml({"mechanism": describe(mechanism)}))["mechanism"]


@pytest.mark.parametrize(
    "mechanism",
    [
        kind(0.5, 1.25, place, cap=3)
        for kind in (Gaussian, Laplace)
        for place in (OnClient(), AtServer(), SecureAggregation(0.25, 0.5, 40, "ideal"))
    ]
    + [Gaussian(1.0, 2.0, unit="interaction"), FpdgdPaper(2.3, 5.0, "code"), EsRandomisedResponse()],
    ids=str,
)
def test_settings_survive_a_file(mechanism):
    assert build(PricedMechanism, settings_of(mechanism), "mechanism") == mechanism


def test_every_mechanism_and_place_says_who_sees_what():
    assert set(MECHANISMS) == {"gaussian", "laplace", "fpdgd-paper", "es-randomised-response"}
    assert set(PLACEMENTS) == {"client", "secure-aggregation", "server"}
    for kind in [*MECHANISMS.values(), *PLACEMENTS.values()]:
        assert kind.__doc__
    for place in PLACEMENTS.values():
        assert "server" in Gaussian(1.0, 1.0, place()).sees


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Gaussian(0.0, 1.0), "clip must be .*got 0"),
        (lambda: Gaussian(math.inf, 1.0), "clip must be .*got inf"),
        (lambda: Gaussian(math.nan, 1.0), "clip must be .*got nan"),
        (lambda: Gaussian(1.0, 0.0), "noise must be .*got 0"),
        (lambda: Laplace(1.0, math.nan), "noise must be .*got nan"),
        (lambda: Gaussian(1.0, 1.0, cap=0), "cap must be .*got 0"),
        (lambda: Gaussian(1.0, 1.0, cap=4, unit="interaction"), "cap must be .*got 4"),
        (lambda: SecureAggregation(honest=0.0, colluding=0.0), "honest must be .*got 0"),
        (lambda: SecureAggregation(bits=63), "bits must be .*got 63"),
        (lambda: SecureAggregation(sum="none"), "none"),
        (lambda: FpdgdPaper(0.0), "epsilon must be .*got 0"),
        (lambda: FpdgdPaper(1.2, math.inf), "sensitivity must be .*got inf"),
    ],
)
def test_settings_that_make_no_sense(make, problem):
    with pytest.raises(ValueError, match=problem):
        make()


# Noise comes from tables


@pytest.mark.parametrize("multiplier", [0.1, 0.2, 0.3, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_what_the_sampler_really_gives_costs_no_more_than_is_claimed(kind, multiplier):
    """Exact, from its probabilities. With little noise a neighbour's noise would lie beyond tables that end."""
    mechanism = kind(1.0, 1.0)
    scale = 3000.0 if kind is Gaussian else 600.0
    law = mechanism._law(scale)
    shift = round(scale / multiplier)
    end = 50 * 600 + shift
    chances = law.probabilities(-end, end)
    one, other = chances[shift:], chances[:-shift]
    slack = _slack(law, 1)
    assert 0 < slack < 1e-10
    for cost in (1.0, 5.0, 10.0, 20.0, 30.0, 40.0):
        claimed = delta_of(mechanism._event(scale / shift), 1, cost - slack) * math.exp(slack / 2)
        for p, q in ((one, other), (other, one)):
            assert np.maximum(p - math.exp(cost) * q, 0).sum() <= claimed * (1 + 1e-6) + 1e-18


def test_slack_counts_every_draw_that_protects():
    gaussian = Gaussian(1.0, 3.0).guarantees(setting())[0]
    step = 2.0**-24
    assert gaussian.slack == 2 * 46 * rounded_gaussian(3 / step).log_error
    central = Laplace(1.0, 3.0, AtServer()).guarantees(setting())[-1]
    assert central.slack == 2 * 46 * rounded_laplace(3 / step).log_error
    mechanism = Gaussian(1.0, 3.0, SecureAggregation(honest=0.4, colluding=0.0, sum="ideal"))
    shares = mechanism.guarantees(setting(clients=10))[0]
    assert shares.slack == 2 * 46 * 4 * discrete_gaussian(3 / mechanism.step(10) / 2).log_error
