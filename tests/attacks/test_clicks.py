"""Reading clicks: the replay against the compiled loop, by hand, and against noise of both kinds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedrank.attacks import click_audit as audit_module
from fedrank.attacks import clicks
from fedrank.attacks.click_audit import Share, click_audit
from fedrank.attacks.clicks import KnownTraining, Search, misfit, reconstruct, replay
from fedrank.data.ranking import RankingData
from fedrank.federated.clients import make_clients
from fedrank.ranking.click_models import ClickModel
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import Mlp
from fedrank.seeds import Chance
from fedrank.types import Messages
from tests import needs
from tests.made_up import made_up_data

LEARNERS = [
    Pdgd(),
    Pdgd(rate=0.5, clip_weights=0.6),
    Pdgd(batch=True),
    Pdgd(batch=True, clip_gradients=0.05, clip_weights=0.6),
]


def few_clients(interactions=(3, 1, 0, 5), queries=60, count=4, click_model="navigational"):
    data = made_up_data(queries=queries, features=40, seed=3)
    start = 0.1 * np.random.default_rng(1).standard_normal(40)
    return start, make_clients(data, count, click_model=click_model, interactions=list(interactions))


def gamma_noise(clients, seed=1, width=2.5):
    """What fpdgd-paper adds for that many clients."""
    rng = np.random.default_rng(seed)

    def send(arrived):
        up, down = rng.gamma(1 / clients, width, size=(2, *arrived.updates.shape))
        return replace(arrived, updates=(arrived.updates + up - down).astype(np.float32))

    return send


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_a_replay_gives_the_same_update_to_the_last_bit(learner):
    start, clients = few_clients()
    arrived = learner(start, clients, Chance(2, 7))
    for c, steps in enumerate([3, 1, 0, 5]):
        searches = replay(learner, start, clients, c, Chance(2, 7))
        assert len(searches) == steps
        update = KnownTraining(learner, start, clients.data).forward(searches).update
        assert np.array_equal(update.astype(np.float32), arrived.updates[c])
    assert any(search.clicked.any() for search in searches)


def test_a_replay_knows_users_that_are_drawn_and_starts_of_clients_own():
    start, clients = few_clients(click_model=["perfect", "poison"])
    clients.click_model[:] = -1
    starts = start + np.arange(4)[:, None] / 10
    arrived = Pdgd()(starts, clients, Chance(2, 7))
    for c in (0, 3):
        searches = replay(Pdgd(), starts, clients, c, Chance(2, 7))
        update = KnownTraining(Pdgd(), starts[c], clients.data).forward(searches).update
        assert np.array_equal(update.astype(np.float32), arrived.updates[c])


def test_clicks_drawn_again_follow_the_labels_of_the_same_query():
    start, clients = few_clients(click_model=ClickModel(click=(0.0, 1.0, 1.0), stop=(0.0,) * 3))
    searches = replay(Pdgd(), start, clients, 3, Chance(2, 7))
    turned = [search._replace(clicked=~search.clicked) for search in searches]
    again = audit_module._clicks_again(KnownTraining(Pdgd(), start, clients.data), clients, 3, turned, Chance(2, 7))
    assert {search.query for search in searches} - {0}, "the offsets of the first query would hide a fault"
    for search, true in zip(again, searches, strict=True):
        assert search.clicked.tolist() == true.clicked.tolist()


def test_only_plain_updates_of_linear_rankers_are_read():
    start, clients = few_clients()
    with pytest.raises(ValueError, match="linear"):
        KnownTraining(Pdgd(ranker=Mlp(hidden=3)), start, clients.data).forward([])


def three_documents(clicked):
    """One query with documents that have one feature each, all shown in order."""
    data = RankingData(np.eye(3, 4, dtype=np.float32), np.zeros(3, np.int8), np.array([0, 3]), np.array(["q"]))
    return data, Search(0, 0, np.arange(3), np.array(clicked))


def test_factors_by_hand():
    # The first of three was clicked; the second counts, being next, the third does not. Scores are equal: rho = 1/2,
    # slope = 1/4.
    data, search = three_documents([True, False, False])
    update = KnownTraining(Pdgd(), np.zeros(4), data).forward([search]).update
    assert update == pytest.approx([0.1 / 8, -0.1 / 8, 0, 0])
    (factors,) = reconstruct(update, np.zeros(4), [data.features.astype(float)])
    assert factors == pytest.approx([1 / 8, -1 / 8, 0], abs=1e-7)


def test_one_coordinate_with_much_noise_does_not_matter_to_regression():
    rng = np.random.default_rng(1)
    documents = rng.random((10, 40))
    factors = np.array([0.2, -0.1, 0, 0, 0.3, -0.4, 0, 0, 0, 0])
    weights = rng.random(40)
    update = 0.1 * factors @ documents - 0.02 * weights
    update[5] += 30.0
    (found,) = reconstruct(update, weights, [documents], clipped=True)
    assert found == pytest.approx(factors, abs=1e-4)
    (found,) = reconstruct(update, weights, [documents], clipped=False)
    assert not np.allclose(found, factors, atol=1e-2), "what clipping did must be allowed for"


def test_few_factors_are_found_among_many_candidates():
    rng = np.random.default_rng(2)
    candidates = rng.random((60, 40))  # more than there are features: no plain regression
    factors = np.zeros(60)
    factors[[4, 17, 30]] = 0.3, -0.1, -0.2
    (found,) = reconstruct(0.1 * factors @ candidates, np.zeros(40), [candidates], price=0.03, passes=3)
    assert found == pytest.approx(factors, abs=1e-3)


def test_all_click_patterns_have_the_gradients_of_their_steps():
    start, clients = few_clients()
    data = clients.data
    for clip, temperature, keep in ((0.0, 1.0, 0.0), (0.05, 1.0, 0.0), (0.0, 0.5, 0.3)):
        learner = Pdgd(batch=True, rate=1.0, clip_gradients=clip, temperature=temperature, keep=keep)
        search = replay(learner, start, clients, 3, Chance(2, 7))[1]
        training = KnownTraining(learner, start, data)
        patterns, factors, gradients = training._patterns(start.astype(np.float32), search)
        assert len(patterns) == 2 ** len(search.shown) == len(np.unique(patterns, axis=0))
        assert factors.sum(axis=1) == pytest.approx(np.zeros(len(factors)), abs=1e-12)
        for p in range(0, len(patterns), max(1, len(patterns) // 28)):
            expected = training.forward([search._replace(clicked=patterns[p])]).update
            assert gradients[p] == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert np.abs(gradients).max() > 1e-3


def test_misfit_by_hand():
    assert misfit(np.array([3.0, -4.0]), 2, 0.0) == pytest.approx(9 + 16)
    assert misfit(np.array([3.0, -4.0]), 1, 0.0) == pytest.approx(3 + 4)
    assert misfit(np.array([3.0, -4.0]), 0, 0.0) == pytest.approx(math.log(3) + math.log(4))
    assert misfit(np.array([[0.0], [2.0]]), 0, 1e7).tolist() == pytest.approx([math.log(1), math.log(3)])


def test_match_prefers_what_fits_most_coordinates():
    data, one = three_documents([True, False, False])
    other = one._replace(clicked=np.array([False, True, False]))
    training = KnownTraining(Pdgd(), np.zeros(4), data)
    message = training.forward([one]).update + np.array([0, 0, -9.0, 0])
    assert training.match(message, [one], [other], 0.5) > 0
    assert training.match(message, [other], [one], 0.5) < 0
    assert training.match(message, [one], [other], 2.0) < 0, "squares look at the largest residual alone"
    halved = replace(training, leaves=lambda update: update / 2)
    assert halved.match(message / 2, [one], [other], 0.5) > 0


def test_the_other_clicks_of_the_game_are_as_likely_as_the_true_ones():
    # Otherwise the longer pattern, say, could be told without any message.
    _, clients = few_clients(interactions=(1,), count=20, click_model="informational")
    training = KnownTraining(Pdgd(), np.zeros(40), clients.data)
    found = audit_module._collect(training, clients, lambda arrived: arrived, 1, "test", 600)
    pairs = [(one.searches[0].clicked, one.other[0].clicked) for one in found if one.other is not None]
    more = sum(true.sum() > other.sum() for true, other in pairs)
    fewer = sum(true.sum() < other.sum() for true, other in pairs)
    assert more + fewer > 150
    assert stats.binomtest(more, more + fewer).pvalue > 1e-4
    for one in found:
        if one.other is not None:
            assert np.array_equal(one.other[0].shown, one.searches[0].shown)
            assert one.other[0].clicked.any()


@pytest.mark.parametrize("learner", LEARNERS[:4], ids=str)
def test_decoding_finds_all_clicks_from_no_idea(learner):
    start, clients = few_clients(interactions=(2, 1, 0, 3))
    learned = learner(start, clients, Chance(2, 7))
    message = gamma_noise(1000)(Messages(learned.updates, clients.interactions, clients.ids, start)).updates
    for c in (0, 1, 3):
        searches = replay(learner, start, clients, c, Chance(2, 7))
        nothing = [np.zeros_like(search.clicked) for search in searches]
        training = KnownTraining(learner, start, clients.data)
        found = training.decode(message[c], searches, nothing, 0.5)
        update = training.forward([s._replace(clicked=f) for s, f in zip(searches, found, strict=True)]).update
        # Clicks that lead to no pair (none, or all) cannot be told apart: compare what they do.
        true = training.forward(searches).update
        assert update == pytest.approx(true, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("right", "of"), [(0, 10), (3, 10), (10, 10), (150, 200)])
def test_intervals_are_those_of_the_binomial_law(right, of):
    low, high = Share(right, of).interval()
    assert stats.binom.sf(right - 1, of, low) == pytest.approx(0.025 if right else 1.0)
    assert stats.binom.cdf(right, of, high) == pytest.approx(0.025 if right < of else 1.0)
    assert Share(3, 10).confidence == "(7% to 65%, 95% confidence)"


def test_auc_by_hand():
    # Of the four pairs of a clicked and an unclicked document three are in order and one is a tie.
    assert audit_module._auc(np.array([3.0, 1.0, 1.0, 0.0]), np.array([True, True, False, False])) == pytest.approx(
        3.5 / 4
    )


def audit(send, messages=30, interactions=(1,), **more):
    start, clients = few_clients(interactions=interactions, count=20)
    return click_audit(KnownTraining(Pdgd(), start, clients.data), clients, send, 1, messages, **more)


@pytest.mark.long
def test_clean_messages_are_read_and_noise_for_a_thousand_hides_little():
    seen = []
    clean = audit(lambda arrived: arrived, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[0] < 0.1, "told from the preparation on"
    assert (len(seen), seen[-1]) == (30 + 6, 1)
    assert clean.messages == clean.read.of == 30
    assert clean.queries > 15
    assert clean.interactions == 1
    assert clean.matched.right == clean.matched.of > 15
    assert clean.read.right >= 28, "all, but for lists whose every document was clicked"
    assert clean.decoded.right >= 28
    assert clean.auc > 0.98
    assert clean.accuracy > 0.98
    assert clean.read.interval()[0] > clean.read_guess.interval()[1]
    assert clean.candidates.interval()[0] > clean.candidates_guess.interval()[1]
    noisy = audit(gamma_noise(1000))
    assert noisy.read.interval()[0] > noisy.read_guess.interval()[1]
    assert noisy.decoded.right >= 26
    assert noisy.matched.right >= noisy.matched.of - 1


@pytest.mark.long
def test_local_noise_leaves_nothing_to_read():
    rng = np.random.default_rng(1)

    def send(arrived):
        return replace(
            arrived, updates=(arrived.updates + 5.0 * rng.standard_normal(arrived.updates.shape)).astype("f4")
        )

    lost = audit(send)
    for attack, guess in ((lost.read, lost.read_guess), (lost.decoded, lost.read_guess)):
        assert attack.right / attack.of <= guess.interval()[1]
    assert lost.candidates.right <= 2
    assert abs(lost.auc - 0.5) < 0.12
    low, high = lost.matched.interval(0.999)
    assert low < 0.5 < high


@pytest.mark.long
def test_what_a_mechanism_does_apart_from_noise_is_allowed_for():
    def send(arrived):  # a tenth of every update
        return replace(arrived, updates=(arrived.updates / 10).astype(np.float32))

    told, untold = audit(send, expect=send), audit(send)
    assert told.decoded.right >= 28
    assert told.matched.right == told.matched.of
    assert untold.decoded.right < 15


@pytest.mark.long
def test_an_audit_does_not_depend_on_anything_but_its_seed():
    assert audit(gamma_noise(100), messages=10) == audit(gamma_noise(100), messages=10)


def test_an_audit_says_what_it_cannot_do():
    with pytest.raises(ValueError, match="messages must be at least 1"):
        audit(lambda arrived: arrived, messages=0)
    silent = ClickModel((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    start, clients = few_clients(interactions=(1,), count=1, click_model=silent)
    with pytest.raises(ValueError, match="only 0 of 5 messages"):
        click_audit(KnownTraining(Pdgd(), start, clients.data), clients, lambda arrived: arrived, 1, 5)


@pytest.mark.long
@needs.data
def test_published_noise_lets_clicks_of_real_queries_be_read():
    from fedrank.data.catalog import load

    data = load("mslr-sample").train
    clients = make_clients(data, 60, click_model="navigational", interactions=2)
    learner, start = Pdgd(clip_weights=1.5), np.zeros(136)
    learned = learner(start, clients, Chance(1, 1))
    sent = gamma_noise(1000)(Messages(learned.updates, clients.interactions, clients.ids, start)).updates
    right = tried = 0
    for c in range(20):
        searches = replay(learner, start, clients, c, Chance(1, 1))
        found = reconstruct(sent[c], start, [clicks.features_of(data, search) for search in searches], clipped=True)
        tried += any(search.clicked.any() for search in searches)
        right += any(search.clicked.any() for search in searches) and all(
            np.array_equal(own > 1e-4, search.clicked) for own, search in zip(found, searches, strict=True)
        )
    assert tried >= 15
    assert right >= tried - 2
