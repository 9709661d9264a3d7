"""Growing under noise between machines: sums as in one process, noise of its law and price, no answer twice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

pytest.importorskip("lightgbm")
pytest.importorskip("cryptography")

from fedrank.trees.binning import bounded_edges
from fedrank.trees.boosters import Grower
from fedrank.trees.growing import GrowPlan
from fedrank.trees.growing_protocol import TreeClient, TreeServer, in_process
from fedrank.trees.histograms import Histograms
from fedrank.trees.noise import TreeNoise
from fedrank.trees.row_store import PrivateRowStore
from fedrank.wire import Label, Refused, pack, read_label
from tests.made_up import made_up_data
from tests.trees.test_noise import forest_of

EDGES = bounded_edges(5, 0, 1, 16)
RULES = Grower(trees=4, rate=0.3, bins=16)
DATA = made_up_data(queries=60)
PARTS = [DATA.select(np.arange(first, 60, 3)) for first in range(3)]
BOTH = pytest.mark.parametrize("design", ["histograms", "random-splits"])
SECURE = pytest.mark.parametrize("secure", [False, True])


def plan_of(design="histograms", secure=False, **noise) -> GrowPlan:
    noise = {"noise": 5.0, "depth": 2, "shares": 2 if secure else 1} | noise
    return GrowPlan(RULES, EDGES, 7, (0, 1, 2), secure, noise=TreeNoise(design, **noise))


def clients_of(plan: GrowPlan) -> dict[int, TreeClient]:
    return {id: TreeClient(id, plan, part) for id, part in enumerate(PARTS)}


def grown(plan, ask, past=()) -> list[str]:
    return [text for text, _ in TreeServer(plan, ask).forest(past, [math.nan] * len(past))]


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(PrivateRowStore, "_noised", lambda self, found, cells: found)


@BOTH
@SECURE
def test_without_noise_it_is_what_one_process_adds_up(no_noise, design, secure):
    plan = plan_of(design, secure, shares=1)
    server = TreeServer(plan, in_process(clients_of(plan)))
    trees = [text for text, _ in server.forest()]
    expected = forest_of(plan, [DATA])
    # Newton's step allows for the noise of one client there, and of three here: cuts and sums are the same.
    same = ("split_feature", "threshold", "leaf_weight") if design == "random-splits" else ("leaf_weight",)
    first, other = (dict(line.split("=") for line in texts[0].split("\n")) for texts in (trees, expected))
    assert {key: first[key] for key in same} == {key: other[key] for key in same}
    assert trees == forest_of(plan, PARTS)
    assert server.releases == 4 * plan.noise.releases


@BOTH
@SECURE
def test_a_stopped_server_goes_on(no_noise, design, secure):
    plan = plan_of(design, secure)
    whole = grown(plan, in_process(clients_of(plan)))
    clients = clients_of(plan)
    running = TreeServer(plan, in_process(clients)).forest()
    begun = [next(running)[0], next(running)[0]]
    assert begun + grown(plan, in_process(clients), begun) == whole


@SECURE
def test_the_sum_has_as_much_noise_as_is_claimed_of_those_who_are_honest(secure):
    """With shares, the noise of two of three clients is what one alone would add without a secure sum."""
    plan = plan_of("histograms", secure)
    found = []
    for _ in range(2):
        server = TreeServer(plan, in_process(clients_of(plan)))
        next(server.forest())
        server.begin(1, 0)
        found.append(server.noised(0).reshape(-1, 2).astype(float))
    spread = (found[0] - found[1]).std(axis=0) / math.sqrt(2)
    claimed = np.array(plan.noise.deviations(5, 2.0**-20))
    np.testing.assert_allclose(spread, claimed * math.sqrt(3 / plan.noise.shares), rtol=0.3)


@BOTH
@SECURE
def test_epsilon_lies_between_that_of_true_gaussians_and_the_textbook_bound(design, secure):
    """By Balle and Wang's formula for Gaussian noise, and by ρ + 2 √(ρ ln 1/δ) for concentrated privacy."""
    plan = plan_of(design, secure)
    times, delta = 4 * plan.noise.releases, 1e-5
    mu, rho = math.sqrt(times) / 5.0, times / (2 * 5.0**2)

    def delta_of(epsilon):
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)

    low, high = 0.0, 100.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    claimed = plan.noise.epsilon(4, 5, 16, delta)
    assert low * (1 - 1e-6) <= claimed <= rho + 2 * math.sqrt(rho * math.log(1 / delta))


def test_shares_that_are_too_thin_cost_more():
    """The gap of a sum of discrete Gaussians, written out."""
    noise = TreeNoise("random-splits", noise=2.0, clip=3 * 2**-10, clip_hessian=2**-10, shares=3)
    scale = min(noise.deviations(1, 2.0**-10))
    assert scale == pytest.approx(2 * math.sqrt(2))
    with pytest.raises(ValueError, match=r"at least 2 grid steps wide .got 1\.6"):
        noise.guarantee(1, 8, 2.0**-10)
    wider = replace(noise, noise=3.0)
    gap = 10 * sum(math.exp(-2 * math.pi**2 * (3 * math.sqrt(2)) ** 2 / 3 * k / (k + 1)) for k in (1, 2))
    costs = math.sqrt(1 / 9 + gap * 16 / 2), 1 / 3 + gap * 4
    assert wider.guarantee(1, 8, 2.0**-10).event.rho == pytest.approx(min(costs) ** 2 / 2, rel=1e-12)


class Line:
    """Carries messages, and breaks where it is told to."""

    def __init__(self, clients):
        self.clients, self.asked, self.broken = clients, [], lambda client, content: False

    def __call__(self, requests):
        answers = {}
        for client, content in requests.items():
            self.asked.append((client, content))
            try:
                if not self.broken(client, content):
                    answers[client] = self.clients[client].answer(content)
            except Refused:
                continue
        return answers


@SECURE
def test_who_drops_out_is_in_the_next_attempt_or_the_tree_goes_without(no_noise, secure):
    plan = plan_of(secure=secure)
    line = Line(clients_of(plan))
    lost = []

    def broken(client, content):
        is_ask = read_label(content).kind == "noised-ask"
        lost.append(client) if client == 1 and is_ask else None
        return client == 1 and is_ask and len(lost) in (2, 3)

    line.broken = broken
    whole = grown(plan, in_process(clients_of(plan)))
    assert grown(plan, line) == whole
    attempts = {read_label(content).attempt for _, content in line.asked}
    # Without masks whoever is missing is asked once more, before all begin a new attempt with new noise.
    assert attempts == ({0, 1, 2} if secure else {0, 1})


def test_who_was_started_anew_costs_nobody_another_attempt(no_noise):
    plan = plan_of()
    clients = clients_of(plan)
    line = Line(clients)
    asked = []

    def restart(client, content):
        asked.append(client)
        if len(asked) == 20:
            clients[2] = TreeClient(2, plan, PARTS[2])
        return False

    line.broken = restart
    whole = grown(plan, in_process(clients_of(plan)))
    assert grown(plan, line) == whole
    assert {read_label(content).attempt for _, content in line.asked} == {0}


def test_no_answer_twice_with_other_noise():
    plan = plan_of("random-splits")
    client = TreeClient(0, plan, PARTS[0])

    def ask(attempt=0, number=0, cuts=((0, 0, 3), (0, 1, 4), (1, 2, 5)), tree=0, roster=b""):
        parts = {"number": np.array([number]), "cuts": np.array(cuts, "<i4").tobytes(), "roster": roster}
        return pack(Label("noised-ask", plan.run, tree, attempt), parts)

    first = client.answer(ask())
    assert client.answer(ask()) == first
    with pytest.raises(Refused, match="not answered again with other noise"):
        client.answer(ask(cuts=((0, 1, 3), (0, 1, 4), (1, 2, 5))))
    assert client.answer(ask(attempt=1)) != first
    with pytest.raises(Refused, match="not answered again"):
        client.answer(ask())
    for message, content in {
        "there are 1 per tree and 4 trees": ask(number=1, attempt=2),
        "release 0 of tree 9": ask(tree=9),
        "client 0 has 0 trees": ask(tree=2),
        "follows 3 splits": ask(cuts=((0, 0, 3),), attempt=2),
        "split 1": ask(cuts=((0, 0, 3), (2, 1, 4), (1, 2, 5)), attempt=2),
        "split 2": ask(cuts=((0, 0, 3), (0, 1, 4), (1, 2, 15)), attempt=2),
        "a roster was sent": ask(attempt=2, roster=b"x"),
        "different bin edges": pack(Label("noised-plan", plan.run, 0), {"edges": bytes(16)}),
        "unknown kind of message": pack(Label("grow-begin", plan.run, 0), {}),
        "keys are not needed": pack(Label("noised-keys", plan.run, 0), {}),
    }.items():
        with pytest.raises(Refused, match=message):
            client.answer(content)
    summed = plan_of("random-splits", secure=True)
    parts = {"number": np.array([0]), "cuts": np.zeros(9, "<i4").tobytes(), "roster": b""}
    with pytest.raises(Refused, match="without new keys"):
        TreeClient(0, summed, PARTS[0]).answer(pack(Label("noised-ask", summed.run, 0), parts))


def test_plans_that_protect_nobody():
    with pytest.raises(ValueError, match="requires secure aggregation"):
        plan_of(shares=2)
    with pytest.raises(ValueError, match="4 clients is needed, but only 3 participate"):
        plan_of(secure=True, shares=4)
    with pytest.raises(ValueError, match="shares must be at least 1"):
        TreeNoise(shares=0)
    with pytest.raises(ValueError, match="honest must be above 0"):
        Histograms(honest=0)
    assert Histograms(private="histograms", secure=True).tree_noise(5).shares == 3
    assert Histograms(private="histograms").tree_noise(5).shares == 1
    assert plan_of().run != plan_of(noise=6.0).run
