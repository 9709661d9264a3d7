"""A dealt schedule between sites: the same as in simulation, lists on disk, and no second participation."""

from __future__ import annotations

import json
import math
import tomllib
from collections import Counter
from dataclasses import replace

import pytest

from fedrank import wire
from fedrank.deploy import consent, protocol, site_calls
from fedrank.deploy.coordinate import state_before
from fedrank.deploy.plan import Plan
from fedrank.deploy.settings import plan_prices, read_site, site_guarantees
from fedrank.deploy.show import leaving_of, not_covered, sum_view
from fedrank.deploy.site import Site
from fedrank.experiments.runner.folder import Card
from fedrank.federated.deal import Deal
from fedrank.federated.server import ServerTask
from fedrank.privacy.population import Population
from fedrank.ranking.learners import Pdgd
from fedrank.toml import write_toml
from fedrank.types import SimulatedClients
from tests.deploy.real_trial import LINEAR, NOISE, SUM, RealTrial
from tests.deploy.trial import Trial, check_equal, spec_of, write_data
from tests.oracles.accounting import gaussian_epsilon

PERSONS = {name: {"person": '"patient"'} for name in ("clinic-a", "clinic-b", "clinic-c")}
DEALT = 'interactions = 1\npeople = 15\nschedule = "dealt"'
SUM_OF_PEOPLE = SUM + 'unit = "person"\n'


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    monkeypatch.setattr(site_calls, "PAUSE", 0.01)


def facts(trial) -> str:
    return (trial.task.folder / "run.json").read_text()


def deals(trial) -> dict[str, list[int]]:
    found = {}
    for name, folder in trial.folders.items():
        [path] = (folder / "deals").iterdir()
        assert path.stat().st_mode & 0o077 == 0
        found[name] = json.loads(path.read_text())["round_of_each"]
    return found


@pytest.fixture
def learned(monkeypatch):
    """By person: how often they learned."""
    counted: Counter[int] = Counter()
    plain = Pdgd.__call__

    def note(self, start, clients: SimulatedClients, *more):
        counted.update(clients.ids.tolist())
        return plain(self, start, clients, *more)

    monkeypatch.setattr(Pdgd, "__call__", note)
    return counted


# Trials: the same as a simulation


@pytest.mark.parametrize("clients", ["count = 7", "count = 3\npeople = 5"])
def test_sites_come_to_what_a_simulation_comes_to(tmp_path, clients):
    write_data(tmp_path)
    trial = Trial(tmp_path, spec_of(tmp_path, LINEAR, rounds=3, clients=f'{clients}\nschedule = "dealt"'))
    assert trial.run() == "finished", facts(trial)
    check_equal(trial.task.folder, trial.simulated())


@pytest.mark.long
def test_clients_of_a_trial_participate_once(tmp_path, learned):
    write_data(tmp_path)
    clients = 'count = 9\nschedule = "dealt"'
    trial = Trial(tmp_path, spec_of(tmp_path, LINEAR + SUM, rounds=3, clients=clients))
    assert trial.run() == "finished", facts(trial)
    assert learned == dict.fromkeys(range(9), 1)
    for folder in trial.folders.values():
        [account] = Population.find(folder / "people").accounts()
        assert account.participations.tolist() == [1] * 3


# Real sites


@pytest.mark.parametrize("text", [LINEAR + NOISE + 'unit = "person"\n', LINEAR + SUM_OF_PEOPLE])
def test_each_person_of_a_site_participates_once(tmp_path, learned, text):
    trial = RealTrial(tmp_path, text, clients=DEALT, data=PERSONS)
    assert trial.plan.min_sites == 3
    assert trial.run() == "finished", facts(trial)
    assert len(learned) == 36
    assert set(learned.values()) == {1}
    lists = deals(trial)
    assert all(set(Counter(groups).values()) == {3} for groups in lists.values())
    assert len({tuple(groups) for groups in lists.values()}) == 3, "each site deals by a secret of its own"
    card = Card.read(trial.task.folder)
    delta = card.delta
    [price] = {row.epsilon for row in card.promises}
    [site] = {row.total for row in plan_prices(trial.plan, delta)}
    assert price == pytest.approx(site)
    spent = Population.find(trial.folders["clinic-a"] / "people").spent()
    assert spent["server"] == pytest.approx(site)
    assert site == pytest.approx(gaussian_epsilon(2.0, delta), rel=1e-3), "one Gaussian release, up to the grid"


@pytest.mark.long
def test_a_later_plan_composes(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + NOISE + 'unit = "person"\n', clients=DEALT, data=PERSONS)
    assert trial.run() == "finished"
    people = Population.find(trial.folders["clinic-a"] / "people")
    once = people.spent()["server"]
    first = deals(trial)
    trial.plan, trial.task = replace(trial.plan, name="again"), replace(trial.task, folder=tmp_path / "again")
    for where in trial.folders.values():
        consent.accept(where, trial.plan)
    assert trial.run() == "finished"
    [guarantee, *_] = site_guarantees(trial.plan)
    assert guarantee.epsilon(1, people.delta) == pytest.approx(once)
    assert people.spent()["server"] == pytest.approx(guarantee.epsilon(2, people.delta))
    for name, where in trial.folders.items():
        lists = [json.loads(path.read_text())["round_of_each"] for path in (where / "deals").iterdir()]
        assert len(lists) == 2
        assert first[name] in lists
        assert lists[0] != lists[1], "newcomers would be in the second deal"


def vanish(phase: str, name: str):
    """The answer of one site is lost in a phase of the first attempt; afterwards it is there again."""

    def between(who, request, answer):
        found, label = answer(), wire.read_label(request)
        if who == name and label.kind == phase and label.round == 2 and label.attempt == 0:
            raise TimeoutError("nobody is there")
        return found

    return between


@pytest.mark.parametrize("phase", [pytest.param("advertise", marks=pytest.mark.long), "share"])
def test_before_masks_left_an_attempt_is_repeated(tmp_path, phase):
    trial = RealTrial(tmp_path, LINEAR + SUM_OF_PEOPLE, clients=DEALT, data=PERSONS)
    assert trial.run(vanish(phase, "clinic-b")) == "finished", facts(trial)
    assert [trial.outbox(name).get(2).attempt for name in trial.names] == [1, 1, 1]
    assert {trial.paid(name) for name in trial.names} == {4}  # rounds, of other people each


@pytest.mark.parametrize("phase", ["mask", *(pytest.param(one, marks=pytest.mark.long) for one in ("sign", "open"))])
def test_after_masks_left_the_round_is_over(tmp_path, phase, learned):
    trial = RealTrial(tmp_path, LINEAR + SUM_OF_PEOPLE, clients=DEALT, data=PERSONS)
    assert trial.run(vanish(phase, "clinic-b")) == "finished", facts(trial)
    assert {trial.outbox(name).get(2).attempt for name in trial.names} == {0}
    assert all(len(list(trial.outbox(name).folder.glob("0*-0*"))) == 4 for name in trial.names)
    assert set(learned.values()) == {1}
    assert Card.read(trial.task.folder).participations_charged == 1


@pytest.mark.long
def test_four_sites_go_on_without_one_whose_masks_are_lost(tmp_path):
    people = PERSONS | {"clinic-d": {"person": '"patient"'}}
    trial = RealTrial(tmp_path, LINEAR + SUM_OF_PEOPLE, sites=4, clients=DEALT, data=people)
    assert trial.run(vanish("mask", "clinic-b")) == "finished", facts(trial)
    assert {trial.outbox(name).get(2).attempt for name in trial.names} == {0}


def test_the_site_itself_refuses_a_second_attempt(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + SUM_OF_PEOPLE, clients=DEALT, data=PERSONS)
    asked = {}

    def listen(name, request, answer):
        asked.setdefault((name, wire.read_label(request).kind), request)
        return answer()

    assert trial.run(listen) == "finished"
    first = asked["clinic-a", "advertise"]
    _, found = wire.unpack(
        first,
        wire.Label("advertise", trial.plan.run, 1, 0),
        {"call": wire.Part("|S", 1 << 20), "asked": wire.Part("|S", 1 << 20)},
    )
    again = wire.pack(wire.Label("advertise", trial.plan.run, 1, 1), found)
    with Site.open(trial.folders["clinic-a"]) as site:
        site.answer(trial.hello(4))
        assert protocol.PARTICIPATED.encode() in site.answer(again)
        assert protocol.PARTICIPATED.encode() in site.answer(first)
    assert trial.paid("clinic-a") == 4


def test_a_lost_message_is_not_made_again(tmp_path):
    """In the open, the same bytes are sent again; where they are lost, the round goes on without the site."""
    trial = RealTrial(tmp_path, LINEAR + NOISE + 'unit = "person"\n', clients=DEALT, data=PERSONS)
    lost = []

    def lose(name, request, answer):
        found, label = answer(), wire.read_label(request)
        if name == "clinic-b" and label.kind == "round" and label.round == 2 and not lost:
            lost.append(found)
            raise TimeoutError("nobody is there")
        if lost and name == "clinic-b" and label.kind == "round" and label.round == 2:
            assert found == lost[0]
        return found

    assert trial.run(lose) == "finished", facts(trial)
    assert lost
    assert trial.paid("clinic-b") == 4


def test_a_client_participates_in_its_own_round_only(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + NOISE, sites=6, rounds=3, clients='interactions = 3\nschedule = "dealt"')
    turns = Deal.of(6, 3, trial.plan.seed).round_of_each
    asked = {}

    def listen(name, request, answer):
        label = wire.read_label(request)
        if label.kind == "round":
            asked[name, label.round] = request
        return answer()

    assert trial.run(listen) == "finished", facts(trial)
    assert sorted(asked) == sorted((f"clinic-{chr(97 + row)}", int(turn)) for row, turn in enumerate(turns))
    assert {trial.paid(name) for name in trial.names} == {1}
    name, number = min(asked)
    parts = {"call": wire.Part("|S", 1 << 20), "asked": wire.Part("|S", 1 << 20)}
    _, found = wire.unpack(asked[name, number], wire.Label("round", trial.plan.run, number), parts)
    other = number % 3
    state, task = replace(state_before(trial.plan), round=other), ServerTask(trial.plan.federated, 6)
    found["call"] = task.call(state, trial.plan.run, 0, 2).pack()
    with Site.open(trial.folders[name]) as site:
        site.answer(trial.hello())
        answer = site.answer(wire.pack(wire.Label("round", trial.plan.run, other + 1), found))
    assert b"participates in no other" in answer
    assert trial.paid(name) == 1


def test_groups_too_small_for_a_sum_are_refused_in_the_plan(tmp_path):
    with pytest.raises(wire.Refused, match="7 clients dealt into 3 rounds leave 2 in some"):
        RealTrial(tmp_path, LINEAR + SUM, sites=7, rounds=3, clients='interactions = 3\nschedule = "dealt"')


@pytest.mark.parametrize(
    ("clients", "says"),
    [
        ('interactions = 3\nschedule = "dealt"', "clients.count = 3 cannot be dealt into 4000000 rounds"),
        (DEALT, "clients.people = 15 cannot be dealt into 4000000 rounds"),
    ],
)
def test_a_received_plan_with_more_rounds_than_participants_is_refused(tmp_path, clients, says):
    text = LINEAR + NOISE + ('unit = "person"\n' if "people" in clients else "")
    trial = RealTrial(tmp_path, text, rounds=3, clients=clients, data=PERSONS)
    content = json.loads(trial.plan.dump())
    content["spec"] = content["spec"].replace("rounds = 3", "rounds = 4000000")
    with pytest.raises(wire.Refused, match=says):
        Plan.load(json.dumps(content).encode())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clients": {"participation": 0.5}}, "remove clients.participation"),
        ({"kind": "async", "arrival": {"name": "fedasync"}}, "the log determines when clients participate"),
        ({"mechanism": {"name": "laplace"}}, "Laplace is not Gaussian noise"),
        ({"local": {"name": "scaffold"}}, "Scaffold stores state at a client"),
    ],
)
def test_a_received_plan_that_does_not_fit_is_refused(tmp_path, changes, says):
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=3, clients='interactions = 3\nschedule = "dealt"')
    content = json.loads(trial.plan.dump())
    tables = tomllib.loads(content["spec"])
    for key, value in changes.items():
        tables[key] = tables.get(key, {}) | value if isinstance(value, dict) else value
    with pytest.raises(wire.Refused, match=says):
        Plan.load(json.dumps(content | {"spec": write_toml(tables)}).encode())


def test_a_site_with_more_people_than_the_mechanism_divides_by_is_refused(tmp_path):
    text = LINEAR + NOISE + 'unit = "person"\n'
    trial = RealTrial(tmp_path, text, rounds=3, clients=DEALT, data=PERSONS)
    content = json.loads(trial.plan.dump())
    content["spec"] = content["spec"].replace("people = 5", "people = 3")  # of the mechanism: for 9 people, not 12
    trial.plan = Plan.load(json.dumps(content).encode())
    consent.accept(trial.folders["clinic-a"], trial.plan)
    with Site.open(trial.folders["clinic-a"]) as site:
        assert wire.read_label(site.answer(trial.hello())).kind == "refused"
    assert "this site has 12, but the plan allows at most 9" in (trial.folders["clinic-a"] / "site.log").read_text()
    assert not list((trial.folders["clinic-a"]).glob("deals/*"))


def test_a_site_cannot_end_a_round_of_a_drawn_schedule(tmp_path):
    """Only a dealt schedule has sites that have participated; otherwise such a refusal is one like others."""
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=1, min_sites=3)
    refused = []

    def between(name, request, answer):
        label = wire.read_label(request)
        if name == "clinic-b" and label.kind == "round" and len(refused) < 2:
            refused.append(name)
            return protocol.refusal(label, 20, f"{protocol.PARTICIPATED}, so they say")
        return answer()

    assert trial.run(between) == "finished"
    assert all(trial.outbox(name).get(1) is not None for name in trial.names)


# Refused at a site, with nothing spent


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"round_of_each": [1, 2, 3, 4] * 3}, "it was changed afterwards"),
        ({"round_of_each": [1, 2, 3, 4] * 5}, "it lists 20 participants, but there are 12"),
        ({"rounds": 3}, "3 rounds were dealt, and now there are 4"),
        ({"data": "00"}, "the data have changed since then"),
    ],
)
def test_a_changed_list_is_refused(tmp_path, change, says):
    trial = RealTrial(tmp_path, LINEAR + SUM_OF_PEOPLE, clients=DEALT, data=PERSONS)
    with Site.open(trial.folders["clinic-a"]) as site:
        assert wire.read_label(site.answer(trial.hello())).kind == "facts"
    [path] = (trial.folders["clinic-a"] / "deals").iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with Site.open(trial.folders["clinic-a"]) as site:
        answer = site.answer(trial.hello())
    assert wire.read_label(answer).kind == "refused"
    assert b"see its log" in answer
    assert b"12" not in answer.split(b"refused")[-1]
    assert says in (trial.folders["clinic-a"] / "site.log").read_text()
    assert not list((trial.folders["clinic-a"] / "outbox").glob("*/0*"))


def test_too_few_people_for_the_rounds_are_refused(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + SUM_OF_PEOPLE, rounds=13, clients=DEALT, data=PERSONS)
    with Site.open(trial.folders["clinic-a"]) as site:
        assert wire.read_label(site.answer(trial.hello())).kind == "refused"
    assert "12 clients cannot be dealt into 13 rounds" in (trial.folders["clinic-a"] / "site.log").read_text()


def test_the_list_is_the_same_after_it_is_lost(tmp_path):
    """The seed of the site and the plan determine it, so a restored folder deals nobody twice."""
    trial = RealTrial(tmp_path, LINEAR + SUM_OF_PEOPLE, clients=DEALT, data=PERSONS)
    with Site.open(trial.folders["clinic-a"]) as site:
        site.answer(trial.hello())
    [path] = (trial.folders["clinic-a"] / "deals").iterdir()
    before = path.read_text()
    path.unlink()
    with Site.open(trial.folders["clinic-a"]) as site:
        site.answer(trial.hello())
    assert path.read_text() == before


def test_a_site_sees_what_it_would_send(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + SUM_OF_PEOPLE, clients=DEALT, data=PERSONS)
    settings = read_site(trial.folders["clinic-a"])
    assert next(iter(leaving_of(trial.plan, settings))).times == 4, "each round is that of other people"
    assert any("the round is lost, because a dealt schedule" in line for line in sum_view(trial.plan).lines())
    assert not any("repeated attempt" in line for line in not_covered(trial.plan, settings))


# Three organisations, stated collusion


@pytest.mark.parametrize(
    ("honest", "colluding", "deviations"),
    [("0.6666", "0.0", [1.0, 1.0, math.sqrt(0.5)]), ("0.3333", "0.6666", [1.0, 1.0, 1.0])],
)
def test_the_card_states_epsilon_against_each_collusion(tmp_path, honest, colluding, deviations):
    sum_ = SUM_OF_PEOPLE.replace("honest = 0.5", f"honest = {honest}").replace(
        "colluding = 0.0", f"colluding = {colluding}"
    )
    trial = RealTrial(tmp_path, LINEAR + sum_.replace("noise = 2.0", "noise = 3.75"), clients=DEALT, data=PERSONS)
    assert trial.run() == "finished", facts(trial)
    card = Card.read(trial.task.folder)
    found = [row["epsilon"] for row in card.deployment["collusion"]]
    expected = [gaussian_epsilon(3.75 * deviation, card.delta) for deviation in deviations]
    assert found == pytest.approx(expected, rel=2e-3)
    assert all(f"ε = {math.ceil(100 * each) / 100:.2f}" in card.summary for each in found)
