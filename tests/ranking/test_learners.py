"""Learners against the slow, obvious versions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrank.data.ranking import RankingData
from fedrank.federated.clients import make_clients
from fedrank.federated.partition import Own
from fedrank.kernels import pdgd, show
from fedrank.kernels.chance import stream
from fedrank.ranking.click_models import CLICK_MODELS
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.impressions import SimulatedImpressions
from fedrank.ranking.learners import LambdaRank, LoggedClicks, Pdgd, fine_tune
from fedrank.ranking.rankers import Linear, Mlp, Relu
from fedrank.seeds import Chance
from fedrank.types import Impression, LocalCorrection, OwnChance
from tests.made_up import made_up_data
from tests.oracles import pdgd as oracle
from tests.oracles.propensity import hinge_update, softmax_update


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("ranker", [Linear(), Linear(start_norm=0.5), Mlp(hidden=6)])
@pytest.mark.parametrize("click_model", ["perfect", "informational", "position-1"])
def test_updates_equal_the_oracle(ranker, batch, click_model):
    data = made_up_data(features=7)
    clients = make_clients(
        data, 4, click_model=[click_model, "navigational"], interactions=[1, 6], partition=Own(), seed=3
    )
    learner = Pdgd(ranker=ranker, rate=0.3, batch=batch)
    start = ranker.first(7, np.random.default_rng(2)).astype(np.float32).astype(float)
    chance = Chance(5, 9)
    arrived = learner(start, clients, chance)
    for c in range(len(clients)):
        expected = oracle.client_update(start, ranker.hidden, 0.3, batch, data, clients, c, chance.key("learn"))
        assert arrived.updates[c] == pytest.approx(expected, rel=2e-4, abs=1e-6)
    assert np.abs(arrived.updates).max() > 0


def in_order(clients, at):
    return replace(clients, at=np.array(at, dtype=np.int64))


@pytest.mark.parametrize("batch", [False, True])
def test_queries_in_order_equal_the_oracle(batch):
    data = made_up_data(queries=24, features=7)
    clients = make_clients(data, 4, click_model="informational", interactions=[1, 3], partition=Own(), seed=3)
    clients = in_order(clients, [5, 2, 0, 3])
    start = np.linspace(-0.5, 0.5, 7).astype(np.float32).astype(float)
    arrived = Pdgd(rate=0.3, batch=batch)(start, clients, Chance(5, 9))
    for c in range(4):
        expected = oracle.client_update(start, 0, 0.3, batch, data, clients, c, Chance(5, 9).key("learn"))
        assert arrived.updates[c] == pytest.approx(expected, rel=2e-4, abs=1e-6)
    some = Pdgd(rate=0.3, batch=batch)(start, clients.rows(np.array([3, 1])), Chance(5, 9))
    assert np.array_equal(some.updates, arrived.updates[[3, 1]])
    elsewhere = Pdgd(rate=0.3, batch=batch)(start, in_order(clients, [5, 3, 0, 3]), Chance(5, 9))
    assert [np.array_equal(*rows) for rows in zip(elsewhere.updates, arrived.updates, strict=True)] == [
        True, False, True, True,
    ]  # fmt: skip


def logged_data(length=14, queries=24, features=7):
    """Queries of a log with lists longer than ten, of which one document was clicked, wherever it stands."""
    rng = np.random.default_rng(4)
    clicked = np.zeros((queries, length), dtype=np.int8)
    clicked[np.arange(queries), np.arange(queries) % length] = 1
    return RankingData(
        rng.random((queries * length, features), dtype=np.float32),
        clicked.ravel(),
        np.arange(queries + 1) * length,
        np.arange(queries).astype(str),
        who=np.zeros(queries, dtype=np.int32),
        when=np.arange(queries),
    )


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("ranker", [Linear(), Mlp(hidden=4)])
def test_logged_lists_equal_the_oracle(batch, ranker):
    data = logged_data()
    clients = in_order(make_clients(data, 3, interactions=6, partition=Own(), seed=3), [0, 2, 1])
    start = ranker.first(7, np.random.default_rng(2)).astype(np.float32).astype(float)
    start += 0.3 * np.sin(np.arange(len(start)))
    start = start.astype(np.float32).astype(float)
    arrived = Pdgd(ranker, 0.3, batch, "logged")(start, clients, Chance(5, 9))
    for c in range(3):
        key = Chance(5, 9).key("learn")
        expected = oracle.client_update(start, ranker.hidden, 0.3, batch, data, clients, c, key, logged=True)
        assert arrived.updates[c] == pytest.approx(expected, rel=2e-4, abs=1e-6)
    other = Pdgd(ranker, 0.3, batch, "logged")(start, clients, Chance(6, 9))
    assert np.array_equal(arrived.updates, other.updates), "nothing is drawn"
    drawn = Pdgd(ranker, 0.3, batch)(start, clients, Chance(5, 9))
    assert not np.allclose(arrived.updates, drawn.updates)


def test_logged_lists_by_hand():
    # Two documents with features 1 and 3, equal scores, the second clicked: rho x slope = 1/2 x 1/4.
    data = RankingData(
        np.array([[1.0], [3.0]], np.float32), np.array([0, 1], np.int8), np.array([0, 2]), np.array(["q"]),
        who=np.zeros(1, np.int32), when=np.zeros(1, np.int64),
    )  # fmt: skip
    clients = in_order(make_clients(data, 1, interactions=1), [0])
    arrived = Pdgd(rate=1.0, lists="logged")(np.zeros(1), clients, Chance(1, 1))
    assert arrived.updates[0, 0] == pytest.approx(1 / 2 * 1 / 4 * (3 - 1))
    assert arrived.observed.online[0] == pytest.approx(1 / np.log2(3)), "that of the list in the log"


def test_logged_lists_need_a_log():
    clients = make_clients(made_up_data(), 2, interactions=2)
    with pytest.raises(ValueError, match="needs a search log"):
        Pdgd(lists="logged")(np.zeros(5), clients, Chance(1, 1))
    with pytest.raises(ValueError, match="lists must be"):
        Pdgd(lists="shown")


def test_lambdarank_takes_queries_in_order():
    data = made_up_data(queries=6)
    own = replace(make_clients(data, 1, interactions=2), at=np.array([3]))
    arrived = LambdaRank(rate=0.1)(np.zeros(5), own, Chance(1, 1))
    weights = np.zeros(5)
    for query in (3, 4):
        only = make_clients(data.select([query]), 1, interactions=1)
        weights += LambdaRank(rate=0.1)(weights, only, Chance(1, 1)).updates[0]
    assert np.abs(weights).max() > 0.01
    assert arrived.updates[0] == pytest.approx(weights, rel=1e-4, abs=1e-7)


def test_evolution_refuses_queries_in_order():
    clients = in_order(make_clients(made_up_data(), 2, interactions=2), [0, 0])
    with pytest.raises(ValueError, match="evolution does not support clients that take their queries in order"):
        Evolution()(np.zeros(5), clients, Chance(1, 1))


def test_a_client_may_have_its_own_start():
    data = made_up_data()
    clients = make_clients(data, 3, interactions=4)
    starts = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32).astype(float)
    together = Pdgd()(starts, clients, Chance(1, 1))
    for c in range(3):
        alone = Pdgd()(starts[c], clients.rows(slice(c, c + 1)), Chance(1, 1))
        assert np.array_equal(together.updates[c], alone.updates[0])


def test_threads_and_selection_change_nothing():
    data = made_up_data(queries=30)
    clients = make_clients(data, 400, interactions=5)
    one = Pdgd()(np.zeros(5), clients, Chance(1, 1), threads=1)
    three = Pdgd()(np.zeros(5), clients, Chance(1, 1), threads=3)
    some = Pdgd()(np.zeros(5), clients.rows(np.array([7, 100])), Chance(1, 1))
    assert np.array_equal(one.updates, three.updates)
    assert np.array_equal(one.observed.online, three.observed.online)
    assert np.array_equal(one.updates[[7, 100]], some.updates)


def test_a_user_drawn_at_every_interaction():
    data = made_up_data()
    clients = make_clients(data, 1, click_model=["perfect", "poison"], interactions=200)
    mixed = clients.rows(slice(None))
    mixed.click_model[:] = -1
    arrived = Pdgd(batch=True)(np.zeros(5), mixed, Chance(1, 1))
    expected = oracle.client_update(np.zeros(5), 0, 0.1, True, data, mixed, 0, Chance(1, 1).key("learn"))
    assert arrived.updates[0] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_no_click_no_update():
    data = made_up_data()
    silent = [level * 0.0 for level in range(3)]
    from fedrank.ranking.click_models import ClickModel

    clients = make_clients(data, 2, click_model=ClickModel(tuple(silent), tuple(silent)), interactions=50)
    arrived = Pdgd()(np.zeros(5), clients, Chance(1, 1))
    assert not arrived.updates.any()


class Live:
    """Lists that were shown to somebody, and what was clicked: nothing is drawn, whatever the model is."""

    def __init__(self, lists):
        self.lists, self.asked = lists, []

    def __len__(self):
        return len(self.lists)

    def drawn(self, weights, number):
        self.asked.append((number, weights.copy()))
        return self.lists[number]


def lists_shown(count=6, features=7, seed=1):
    rng = np.random.default_rng(seed)
    lists = []
    for _ in range(count):
        candidates = int(rng.integers(3, 30))
        lists.append(
            Impression(
                rng.random((candidates, features), dtype=np.float32),
                rng.standard_normal(candidates).astype(np.float32),
                rng.permutation(candidates)[:10],
                rng.random(min(10, candidates)) < 0.4,
            )
        )
    return lists


@pytest.mark.parametrize(("temperature", "keep"), [(1.0, 0.0), (0.5, 0.0), (1.0, 0.4), (2.0, 0.3)])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("ranker", [Linear(), Mlp(hidden=4)])
def test_real_lists_and_clicks_equal_the_oracle(ranker, batch, temperature, keep):
    learner = Pdgd(ranker, 0.3, batch, temperature=temperature, keep=keep)
    start = ranker.first(7, np.random.default_rng(2)).astype(np.float32) + np.float32(0.1)
    live = Live(lists_shown())
    learned = learner.from_impressions(start, live, OwnChance(Chance(1, 1), 0))
    weights, total = start.astype(float), 0.0
    for (number, asked), one in zip(live.asked, live.lists, strict=True):
        assert asked == pytest.approx(weights, rel=1e-4, abs=1e-5), f"asked with the present weights, list {number}"
        clicked = one.clicked.tolist()
        considered = min(len(clicked), max([i + 2 for i, each in enumerate(clicked) if each], default=0))
        shown = one.shown.tolist()
        scales = oracle.position_scales(
            one.scores.astype(float).tolist(), shown, clicked, considered, temperature, keep
        )
        gradients = [oracle.score_and_gradient(weights, ranker.hidden, one.features[d])[1] for d in shown]
        step = 0.3 / temperature * sum(scale * each for scale, each in zip(scales, gradients, strict=True))
        total = total + step
        weights = weights if batch else weights + step
    assert learned.updates[0] == pytest.approx(total, rel=2e-4, abs=1e-6)
    assert np.abs(total).max() > 0.01
    assert learned.updates.shape == (1, len(start))
    assert learned.updates.dtype == np.float32


@pytest.mark.parametrize("levels", [2, 3, 5])
@pytest.mark.parametrize("name", sorted(CLICK_MODELS))
def test_click_frequencies_follow_the_tables(name, levels):
    click_model = CLICK_MODELS[name][levels]
    attention = click_model.attention
    grades = (np.arange(10) % levels).astype(np.int8)
    shown = np.arange(10)
    click, stop = np.array(click_model.click), np.array(click_model.stop)
    runs, counts = 20_000, np.zeros(10)
    clicked = np.empty(10, dtype=np.bool_)
    for i in range(runs):
        show.read_and_click(grades, shown, 10, click, stop, attention, np.uint64(stream(np.uint64(1), i)), clicked)
        counts += clicked
    reading, expected = 1.0, []
    for i in range(10):
        p = click[grades[i]] * attention[i]
        expected.append(reading * p)
        reading *= 1 - p * stop[grades[i]]
    error = np.sqrt(np.array(expected) * (1 - np.array(expected)) / runs)
    assert (np.abs(counts / runs - expected) <= 5.5 * error + 1e-12).all()


def test_considered_positions_end_after_the_last_click():
    clicked = np.empty(10, dtype=np.bool_)
    always, never = np.ones(10), np.zeros(3)
    click = np.array([0.0, 0.0, 1.0])  # only grade 2 is clicked, surely
    for grades, expected in (([0, 0, 2, 0, 0], 4), ([2, 2, 2], 3), ([0, 0], 0), ([0, 2], 2), ([2], 1)):
        shown = np.arange(len(grades))
        show.read_and_click(
            np.array(grades, dtype=np.int8), shown, len(shown), click, never, always, np.uint64(3), clicked
        )
        assert pdgd.considered_positions(clicked, len(shown)) == expected


@pytest.mark.parametrize("learner", [Pdgd(), Pdgd(ranker=Mlp(hidden=8)), LambdaRank()])
def test_learning_beats_the_start(learner):
    data = made_up_data(queries=60, seed=4)
    clients = make_clients(data, 1, interactions=3000)
    start = learner.ranker.first(5, np.random.default_rng(1))
    arrived = learner(start, clients, Chance(1, 1))
    grades = data.grades.astype(float)
    before = np.corrcoef(learner.ranker.score(start + 1e-9, data.features) + 1e-9 * np.arange(data.documents), grades)[
        0, 1
    ]
    after = np.corrcoef(learner.ranker.score(start + arrived.updates[0], data.features), grades)[0, 1]
    assert after > 0.7
    assert after > before + 0.1


@pytest.mark.long
def test_a_million_perfect_updates_stay_sound():
    data = made_up_data(queries=20, seed=2)
    clients = make_clients(data, 1, interactions=1_000_000)
    arrived = Pdgd(rate=5.0)(np.zeros(5), clients, Chance(1, 1))
    assert np.isfinite(arrived.updates).all()
    scores = Linear().score(arrived.updates[0].astype(float), data.features)
    assert np.corrcoef(scores, data.grades)[0, 1] > 0.7


def test_lambdas_by_hand():
    from fedrank.kernels.lambdarank import lambdas

    # Two documents, the relevant one second: lambda = sigmoid(-(0 - 1)) x (1 - 1/log2 3) x (2^1 - 2^0) / ideal 1.
    scales = np.empty(2)
    lambdas(
        np.array([1.0, 0.0], np.float32),
        np.array([0, 1], np.int8),
        2,
        np.array([0, 1]),
        1.0,
        np.array([1.0, 1 / np.log2(3)]),
        scales,
    )
    pull = (1 - 1 / np.log2(3)) / (1 + np.exp(-1.0))
    assert scales == pytest.approx([-pull, pull])


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_useless_rate_is_refused(rate):
    with pytest.raises(ValueError, match="rate"):
        Pdgd(rate=rate)


def few_clients(interactions=(1, 6, 0, 3), features=7):
    data = made_up_data(features=features)
    users = ["perfect", "informational"]
    return data, make_clients(data, 4, click_model=users, interactions=interactions, partition=Own(), seed=3)


def as_sent(weights):
    return weights.astype(np.float32).astype(float)


@pytest.mark.parametrize(
    "learner",
    [
        Pdgd(rate=0.3),
        LambdaRank(),
        Pdgd(ranker=Mlp(hidden=6)),
        Pdgd(clip_weights=0.1),
    ],
    ids=str,
)
def test_fine_tuning_goes_on_with_plain_steps_and_chance_of_its_own(learner):
    _, clients = few_clients()
    start = learner.ranker.first(7, np.random.default_rng(1))
    tuned = fine_tune(learner, start, clients, seed=1, interactions=8)
    assert tuned.shape == (4, len(start))
    assert (np.abs(tuned - start).max(axis=1) > 0).all(), "all take steps, whatever they bring to a round"
    assert np.array_equal(tuned, fine_tune(learner, np.tile(start, (4, 1)), clients, seed=1, interactions=8, threads=2))
    assert not np.array_equal(tuned, fine_tune(learner, start, clients, seed=2, interactions=8))
    plain = learner if isinstance(learner, LambdaRank) else Pdgd(ranker=learner.ranker, rate=learner.rate)
    assert np.array_equal(tuned, fine_tune(plain, start, clients, seed=1, interactions=8)), "plain steps"
    longer = replace(clients, interactions=np.full(4, 8))
    for number in range(4):
        used = plain(start, longer, Chance(1, number))
        assert not np.array_equal(start + used.updates, tuned), "chance of a round"
    assert clients.interactions.tolist() == [1, 6, 0, 3]


def test_fine_tuning_learns_what_the_client_searches_for():
    data = made_up_data(queries=60, seed=4)
    clients = make_clients(data, 2, partition=Own(), interactions=1)
    tuned = fine_tune(Pdgd(), np.zeros(5), clients, seed=1, interactions=2000)
    for model in tuned:
        assert np.corrcoef(Linear().score(model, data.features), data.grades)[0, 1] > 0.7


def test_fine_tuning_refuses_what_cannot_work():
    _, clients = few_clients()
    with pytest.raises(ValueError, match="interactions must be at least 1"):
        fine_tune(Pdgd(), np.zeros(7), clients, 1, 0)
    with pytest.raises(ValueError, match="evolution"):
        fine_tune(Evolution(), np.zeros(7), clients, 1, 4)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("ranker", [Linear(start_norm=0.5), Mlp(hidden=6)])
@pytest.mark.parametrize("prox", [0.0, 0.25])
def test_clipped_weights_equal_the_oracle(ranker, batch, prox):
    data, clients = few_clients()
    start = as_sent(ranker.first(7, np.random.default_rng(2)))
    clip = 1.01 * float(np.linalg.norm(start))  # the first step may be within it, later ones are not
    learner, correction = (
        Pdgd(ranker=ranker, rate=2.0, batch=batch, clip_weights=clip),
        LocalCorrection(pull=0.0 if batch else prox),
    )
    arrived = learner(start, clients, Chance(5, 9), correction)
    plain = replace(learner, clip_weights=0.0)(start, clients, Chance(5, 9), correction)
    for c in range(4):
        expected = oracle.client_update(
            start, ranker.hidden, 2.0, batch, data, clients, c, Chance(5, 9).key("learn"),
            prox=correction.pull, clip_weights=clip,
        )  # fmt: skip
        assert arrived.updates[c] == pytest.approx(expected, rel=2e-4, abs=1e-6)
        assert np.linalg.norm(start + arrived.updates[c]) <= clip * (1 + 1e-6)
    assert not np.allclose(arrived.updates, plain.updates, rtol=1e-3)
    roomy = replace(learner, clip_weights=1e6)(start, clients, Chance(5, 9), correction)
    assert np.array_equal(roomy.updates, plain.updates)


@pytest.mark.parametrize("batch", [False, True])
def test_a_start_that_is_too_long_is_clipped_even_where_nobody_clicks(batch):
    from fedrank.ranking.click_models import ClickModel

    silent = ClickModel((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    clients = make_clients(made_up_data(features=2), 2, click_model=silent, interactions=[0, 3])
    arrived = Pdgd(batch=batch, clip_weights=2.5)(np.array([3.0, 4.0]), clients, Chance(1, 1))
    # (3, 4) is 5 long: half of it is left. Who did not search sends nothing.
    assert arrived.updates.tolist() == [[0.0, 0.0], [-1.5, -2.0]]


@pytest.mark.parametrize("ranker", [Linear(), Linear(start_norm=0.5), Mlp(hidden=6)])
@pytest.mark.parametrize("temperature", [1.0, 0.3])  # a cool draw has steep gradients; the bound holds all the same
def test_clipped_gradients_equal_the_oracle(ranker, temperature):
    data, clients = few_clients()
    start = as_sent(ranker.first(7, np.random.default_rng(2)))
    learner = Pdgd(ranker=ranker, rate=0.3, batch=True, clip_gradients=0.05, temperature=temperature)
    arrived = learner(start, clients, Chance(5, 9))
    plain = replace(learner, clip_gradients=0.0)(start, clients, Chance(5, 9))
    for c, interactions in enumerate([1, 6, 0, 3]):
        expected = oracle.client_update(
            start, ranker.hidden, 0.3, True, data, clients, c, Chance(5, 9).key("learn"), clip_gradients=0.05,
            temperature=temperature,
        )  # fmt: skip
        assert arrived.updates[c] == pytest.approx(expected, rel=2e-4, abs=1e-6)
        assert np.linalg.norm(arrived.updates[c]) <= interactions * 0.3 * 0.05 * (1 + 1e-6)
    assert not np.allclose(arrived.updates, plain.updates, rtol=1e-3)
    roomy = replace(learner, clip_gradients=1e6)(start, clients, Chance(5, 9))
    assert roomy.updates == pytest.approx(plain.updates, rel=1e-6, abs=1e-9)


def test_both_clips_together_and_with_personal_weights():
    data, clients = few_clients()
    start = as_sent(Linear(start_norm=0.5).first(7, np.random.default_rng(2)))
    both = Pdgd(rate=1.0, batch=True, clip_weights=0.5, clip_gradients=0.1)(start, clients, Chance(5, 9))
    key = Chance(5, 9).key("learn")
    for c in range(4):
        expected = oracle.client_update(
            start, 0, 1.0, True, data, clients, c, key, clip_weights=0.5, clip_gradients=0.1
        )
        assert both.updates[c] == pytest.approx(expected, rel=2e-4, abs=1e-6)
    ranker = Mlp(hidden=6)
    start = as_sent(ranker.first(7, np.random.default_rng(2)))
    learner = Pdgd(ranker=ranker, rate=0.3, batch=True, clip_gradients=0.05)
    arrived = learner(start, clients, Chance(5, 9), LocalCorrection(personal=np.tile(start[-6:], (4, 1))))
    expected = oracle.client_update(start, 6, 0.3, True, data, clients, 1, key, clip_gradients=0.05)
    assert arrived.updates[1, :-6] == pytest.approx(expected[:-6], rel=2e-4, abs=1e-6)
    assert arrived.personal[1] - start[-6:] == pytest.approx(expected[-6:], rel=2e-4, abs=1e-6)


def test_gradients_that_are_no_numbers_add_nothing_under_a_clip():
    clients = make_clients(made_up_data(features=7), 4, interactions=6)
    clients.data.features[clients.data.offsets[:-1:3], 0] = np.inf
    loose = Pdgd(batch=True)(np.zeros(7), clients, Chance(5, 9))
    arrived = Pdgd(batch=True, clip_gradients=1.0)(np.zeros(7), clients, Chance(5, 9))
    assert not np.isfinite(loose.updates).all(), "nobody searched for such a query; choose another round"
    assert np.isfinite(arrived.updates).all()
    assert arrived.updates.any()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clip_weights": -1.0}, "clip_weights must be positive"),
        ({"clip_weights": float("nan")}, "clip_weights must be positive"),
        ({"clip_gradients": -1.0, "batch": True}, "clip_gradients must be positive"),
        ({"clip_gradients": float("inf"), "batch": True}, "clip_gradients must be positive"),
        ({"clip_gradients": 1.0}, "clip_gradients = 1.0.*use batch = true"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"keep": 1.5}, "keep must be between 0 and 1"),
        ({"keep": 0.5, "lists": "logged"}, "cannot be combined with keep or temperature"),
        ({"ranker": Relu()}, 'start = "normal"'),
    ],
)
def test_settings_that_cannot_work_say_what_to_do(settings, words):
    with pytest.raises(ValueError, match=words):
        Pdgd(**settings)


@pytest.mark.parametrize("learner", [Pdgd, LambdaRank, LoggedClicks])
def test_a_start_without_gradient_is_refused(learner):
    with pytest.raises(ValueError, match='start = "normal"'):
        learner(ranker=Relu())
    assert learner(ranker=Relu(start="normal")).ranker.hidden == -10


def corrected_data():
    """The same, with clicks that are numbers, some below 0, some not known."""
    data, rng = logged_data(), np.random.default_rng(7)
    relevance = rng.normal(size=data.documents).astype(np.float32)
    relevance[rng.random(data.documents) < 0.3] = 0
    relevance[rng.random(data.documents) < 0.1] = np.nan
    relevance[data.offsets[3] : data.offsets[4]] = 0  # nothing to learn
    return replace(data, relevance=relevance)


@pytest.mark.parametrize("loss", ["softmax", "hinge"])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("make", [logged_data, corrected_data])
def test_logged_clicks_equal_the_oracle(make, batch, loss):
    data, step = make(), {"softmax": softmax_update, "hinge": hinge_update}[loss]
    clients = in_order(make_clients(data, 4, interactions=[2, 6], partition=Own(), seed=3), [0, 0, 0, 0])
    start = np.linspace(-0.5, 0.5, 7).astype(np.float32).astype(float)
    arrived = LoggedClicks(rate=0.05, batch=batch, loss=loss)(start, clients, Chance(5, 9))
    for c in range(4):
        weights = start.copy()
        pool = clients.queries[clients.pools[c] :][: clients.interactions[c]]
        for query in pool:
            rows = slice(data.offsets[query], data.offsets[query + 1])
            at = start if batch else weights
            weights = weights + step(at, data.features[rows], data.labels[rows], 0.05)
        assert arrived.updates[c] == pytest.approx(weights - start, rel=2e-4, abs=1e-6)
    assert np.abs(arrived.updates).max() > 0.01
    assert np.isnan(arrived.observed.online).all(), "nobody is shown another list"


def test_hinge_by_hand():
    """Clicked: the second of three documents with features 0, 1 and 3, with weight 2; weights 0, then 1."""
    data = RankingData(
        np.array([[0.0], [1.0], [3.0]], np.float32), np.array([0, 1, 0], np.int8), np.array([0, 3]), np.array(["q"]),
        relevance=np.array([0, 2, 0], np.float32),
    )  # fmt: skip
    clients = make_clients(data, 1, interactions=1)
    for start, pairs in ((0.0, [1, -2]), (1.0, [-2]), (2.5, [-2]), (-4.0, [1])):  # differences below the margin
        update = LoggedClicks(rate=0.5, loss="hinge")(np.array([start]), clients, Chance(1, 1)).updates
        assert update.tolist() == [[0.5 * 2 * sum(pairs)]], "towards the clicked document, away from the others"
    with pytest.raises(ValueError, match='loss must be "softmax" or "hinge"'):
        LoggedClicks(loss="log")


def test_logged_clicks_do_not_depend_on_threads_or_who_else_learns():
    data = corrected_data()
    clients = make_clients(data, 6, interactions=400, partition=Own(), seed=3)
    start, learner = np.zeros(7), LoggedClicks()
    one, many = (learner(start, clients, Chance(5, 9), threads=threads) for threads in (1, 3))
    assert one.updates.tobytes() == many.updates.tobytes()
    some = learner(start, clients.rows(np.array([4, 1])), Chance(5, 9))
    assert some.updates.tobytes() == one.updates[[4, 1]].tobytes()


def test_logged_clicks_are_clipped():
    data = corrected_data()
    clients = make_clients(data, 3, interactions=5, partition=Own(), seed=3)
    learner = LoggedClicks(rate=0.5, batch=True, clip_gradients=0.1, clip_weights=0.1)
    start = np.zeros(7)
    norms = np.linalg.norm(learner(start, clients, Chance(1, 1)).updates, axis=1)
    assert norms.max() <= 0.1 + 1e-6
    each = np.linalg.norm(replace(learner, clip_weights=0.0)(start, clients, Chance(1, 1)).updates, axis=1)
    assert 0.1 < each.max() <= 5 * 0.5 * 0.1 + 1e-6
    with pytest.raises(ValueError, match="needs batch = true"):
        LoggedClicks(clip_gradients=0.1)


def test_logged_clicks_far_apart_are_still_numbers():
    data = corrected_data()
    clients = make_clients(data, 3, interactions=5, partition=Own(), seed=3)
    assert np.isfinite(LoggedClicks()(np.full(7, 1e6), clients, Chance(1, 1)).updates).all()


def test_relevance_travels_with_its_documents():
    data = corrected_data()
    some = data.select([5, 2])
    assert np.array_equal(some.relevance[:14], data.relevance[data.offsets[5] : data.offsets[6]], equal_nan=True)
    joined = RankingData.join([some, some])
    assert len(joined.relevance) == 2 * len(some.relevance)
    assert not len(RankingData.join([some, logged_data()]).relevance)
    with pytest.raises(ValueError, match="3 values of relevance for 336 documents; give one per document, or none"):
        replace(data, relevance=np.zeros(3, np.float32))


def drawn_data():
    data = logged_data(length=6)
    scores = np.random.default_rng(8).normal(size=data.documents).astype(np.float32)
    return replace(data, drawn=scores, draw=(0.7, 0.4))


@pytest.mark.long
@pytest.mark.parametrize("batch", [False, True])
def test_lists_whose_draw_is_known_have_its_weights(batch):
    """Probabilities of the list and its swapped form are those of the log, slopes those of the model."""
    data = drawn_data()
    clients = in_order(make_clients(data, 3, interactions=4, partition=Own(), seed=3), [0, 0, 0])
    start = np.linspace(-0.5, 0.5, 7).astype(np.float32).astype(float)
    learner = Pdgd(rate=0.3, lists="logged", batch=batch)
    arrived = learner(start, clients, Chance(5, 9))
    for c in range(3):
        weights = start.copy()
        for query in clients.queries[clients.pools[c] :][:4]:
            rows = slice(data.offsets[query], data.offsets[query + 1])
            features, clicked = data.features[rows].astype(float), data.grades[rows] > 0
            now = features @ (start if batch else weights)
            then, shown = data.drawn[rows].astype(float), list(range(6))
            considered = min(int(np.flatnonzero(clicked)[-1]) + 2, 6)
            for d in np.flatnonzero(clicked):
                for e in range(considered):
                    if not clicked[e]:
                        odds = np.exp(-abs(now[d] - now[e]))
                        weight = oracle.kept_rho(list(then), shown, d, e, 0.7, 0.4) * odds / (1 + odds) ** 2
                        weights = weights + 0.3 * weight * (features[d] - features[e])
        assert arrived.updates[c] == pytest.approx(weights - start, rel=2e-3, abs=1e-5)
    assert not np.array_equal(
        arrived.updates, learner(start, replace(clients, data=logged_data(length=6)), Chance(5, 9)).updates
    )
    chance = OwnChance(Chance(5, 9), 1)
    one = clients.rows(np.array([1]))
    alone = learner.from_impressions(start.astype(np.float32), SimulatedImpressions(one, chance, learner), chance)
    assert alone.updates[0] == pytest.approx(arrived.updates[1], rel=1e-5)


def test_draws_need_scores_and_how():
    with pytest.raises(ValueError, match="give both, or neither"):
        replace(drawn_data(), draw=None)
    some = drawn_data().select([3])
    assert len(some.drawn) == 6
    assert RankingData.join([some, some]).draw is None
