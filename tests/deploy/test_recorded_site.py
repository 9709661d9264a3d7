"""A site that is one person, whose searches were recorded: each is learnt from once, and nothing leaves too early."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedrank import wire
from fedrank.data.live_features import LIVE_1
from fedrank.deploy import protocol
from fedrank.deploy.check import check
from fedrank.deploy.identity import new_identity
from fedrank.deploy.outbox import Outbox, used_searches
from fedrank.deploy.plan import PlannedSite, make_plan
from fedrank.deploy.recorded_lists import RecordedFolder, RecordedImpressions
from fedrank.deploy.settings import read_site
from fedrank.deploy.show import look_at
from fedrank.deploy.site import Site
from fedrank.federated.client import ClientTask, answer
from fedrank.federated.messages import Call
from fedrank.privacy.population import Account
from fedrank.seeds import Chance
from fedrank.types import OwnChance
from tests.deploy.plans import experiment
from tests.deploy.test_recorded_lists import a_list

LEARNER = {"name": "pdgd", "rate": 0.03, "temperature": 0.3, "keep": 0.9}
NOISE = {"name": "gaussian", "clip": 0.1, "noise": 2.0}
POLICY = 'learners = ["pdgd"]\naccept = "within-policy"\n'


def a_plan(interactions=30, names=LIVE_1.names, rounds=4, mechanism=NOISE, learner=LEARNER, **clients):
    question = experiment(
        rounds=rounds,
        clients={"count": 3, "interactions": interactions, **clients},
        learner=learner,
        mechanism=mechanism,
    )
    parties = [PlannedSite(f"person-{id}", (id,)) for id in range(3)]
    return make_plan(
        question, "first", parties, federation="friends", features=34, feature_names=names, normalised="none"
    )


class Person:
    """The folder of a site with recorded searches, and how it is asked."""

    def __init__(self, folder, searches=0, policy=POLICY + "largest_epsilon = 50.0\n"):
        self.folder = folder / "site"
        self.folder.mkdir(mode=0o700)
        new_identity(self.folder)
        self.lists = RecordedFolder(self.folder / "searches")
        self.lists.folder.mkdir(mode=0o700)
        self.record(range(1, searches + 1))
        text = 'name = "person-0"\nid = 0\nfederation = "friends"\n[data]\nimpressions = "searches"\n[policy]\n'
        (self.folder / "site.toml").write_text(text + policy)

    def record(self, numbers):
        for number in numbers:
            self.lists.add(number, a_list(number))

    def outbox(self, plan):
        return Outbox(self.folder / "outbox" / plan.digest[:32], plan.run)

    def log(self):
        return (self.folder / "site.log").read_text()


def hello(plan, over=0):
    return protocol.request("hello", plan.run, over, plan=plan.dump())


def call_of(plan, round=1):
    return Call(plan.run, round, LIVE_1.start().astype(np.float32), plan.cohort)


def a_round(plan, round=1):
    asked = np.array([(0, -1, plan.experiment.clients.searches[0])], protocol.ASKED)
    return protocol.request("round", plan.run, round, call=call_of(plan, round).pack(), asked=asked.tobytes())


def is_refused(content):
    return wire.read_label(content).kind == "refused"


def test_a_round_is_what_the_client_half_makes_of_the_recorded_lists(tmp_path):
    """Without noise, so that it can be compared."""
    plan, person = a_plan(mechanism=None), Person(tmp_path, 40, POLICY + "unprotected = true\n")
    with Site.open(person.folder) as site:
        assert not is_refused(site.answer(hello(plan)))
        found = site.answer(a_round(plan))
    lists = RecordedImpressions(tuple(a_list(number) for number in range(1, 31)))
    task = ClientTask(plan.experiment.learner)
    message, _ = answer(task, call_of(plan), lists, None, OwnChance(Chance(1, 1), 0, None))
    assert message.pack() in found
    assert message.payload.any()
    assert person.outbox(plan).get(1).used == tuple(range(1, 31))


def test_each_search_is_used_once_and_the_same_question_gets_the_same_bytes(tmp_path):
    plan, person = a_plan(), Person(tmp_path, 60)
    with Site.open(person.folder) as site:
        site.answer(hello(plan))
        first = site.answer(a_round(plan))
        person.record([61])  # somebody goes on searching
        assert site.answer(a_round(plan)) == first
    with Site.open(person.folder) as site:  # as after a kill
        site.answer(hello(plan))
        assert site.answer(a_round(plan)) == first
        assert not is_refused(site.answer(a_round(plan, 2)))
        assert is_refused(site.answer(a_round(plan, 3)))
    assert person.outbox(plan).get(2).used == tuple(range(31, 61))
    assert used_searches(person.folder / "outbox") == set(range(1, 61))


def test_another_run_does_not_use_them_again(tmp_path):
    person = Person(tmp_path, 40)
    plans = [a_plan(rounds=rounds) for rounds in (3, 4)]
    with Site.open(person.folder) as site:
        for plan, refused in zip(plans, (False, True), strict=True):
            site.answer(hello(plan))
            assert is_refused(site.answer(a_round(plan))) == refused
    assert "waiting: 10 of 30 searches" in person.log()


def test_who_waits_says_so_and_not_how_often_somebody_searched(tmp_path):
    plan, person = a_plan(), Person(tmp_path, 12)
    with Site.open(person.folder) as site:
        site.answer(hello(plan))
        found = site.answer(a_round(plan))
        assert is_refused(found)
        assert b"waiting: fewer than 30 searches" in found
        assert b"12" not in found
        assert "waiting: 12 of 30 searches" in person.log()
        assert "12 of 30" in json.loads((person.folder / "status.json").read_text())["refused"]
        assert len(person.outbox(plan)) == 0
        person.record(range(13, 31))
        assert not is_refused(site.answer(a_round(plan)))


def test_killed_between_the_outbox_and_the_charge_nothing_is_used_or_paid_twice(tmp_path, monkeypatch):
    from fedrank.privacy.ledger import Ledger

    plan, person = a_plan(), Person(tmp_path, 60)

    def killed(*_):
        raise KeyboardInterrupt

    with Site.open(person.folder) as site, monkeypatch.context() as during:
        site.answer(hello(plan))
        during.setattr(Ledger, "reserve", killed)
        with pytest.raises(KeyboardInterrupt):
            site.answer(a_round(plan))
    kept = person.outbox(plan).get(1)
    with Site.open(person.folder) as site:
        site.answer(hello(plan))
        assert site.answer(a_round(plan)) == kept.answer
        site.answer(a_round(plan, 2))
        assert site._runs[plan.run].charging.ledger.participations().tolist() == [2]
    assert person.outbox(plan).get(2).used == tuple(range(31, 61))


def test_the_limit_holds_and_what_it_refuses_is_not_used(tmp_path):
    plan = a_plan(mechanism=NOISE | {"noise": 5.0})
    person = Person(tmp_path, 120, POLICY + "largest_epsilon = 50.0\n")
    with Site.open(person.folder) as site:
        site.answer(hello(plan))
        site.answer(a_round(plan))
        spent = max(site._runs[plan.run].charging.spent().values())
    other = a_plan(rounds=3, mechanism=NOISE | {"noise": 5.0})
    tight = (person.folder / "site.toml").read_text().replace("50.0", f"{2 * spent:.4f}")
    (person.folder / "site.toml").write_text(tight)
    refused = []
    with Site.open(person.folder) as site:
        for round in (1, 2, 3):
            site.answer(hello(other))
            refused.append(is_refused(site.answer(a_round(other, round))))
    assert refused[-1]
    assert len(used_searches(person.folder / "outbox")) == 30 * (1 + refused.count(False))


def test_an_answer_stands_in_the_journal_before_it_leaves_and_none_leaves_without(tmp_path, monkeypatch):
    from fedrank.deploy.sent_log import SentLog, what_was_sent

    plan, person = a_plan(), Person(tmp_path, 30)

    def full(*_):
        raise OSError(28, "no space")

    with Site.open(person.folder) as site:
        site.answer(hello(plan))
        with monkeypatch.context() as during:
            during.setattr(SentLog, "note", full)
            with pytest.raises(OSError, match="no space"):
                site.answer(a_round(plan))
        sent = site.answer(a_round(plan))  # the same: it was charged and kept before
        assert is_refused(site.answer(a_round(plan, 2)))
        assert site._runs[plan.run].charging.ledger.participations().tolist() == [1]
    found = what_was_sent(person.folder)
    assert [one.what for one in found] == [
        "round 0: answer to hello",
        "round 1: answer to round",
        "round 2: refusal with its reason",
    ]
    assert found[1].bytes == len(sent)


def test_a_forgotten_search_is_never_learnt_from(tmp_path):
    plan, person = a_plan(), Person(tmp_path, 31)
    person.lists.forget(5)
    with Site.open(person.folder) as site:
        site.answer(hello(plan))
        site.answer(a_round(plan))
    assert person.outbox(plan).get(1).used == (*range(1, 5), *range(6, 32))


def test_a_damaged_or_foreign_file_stops_the_round_and_its_name_stays_here(tmp_path):
    plan, person = a_plan(), Person(tmp_path, 30)
    path = person.lists.folder / "000000000007"
    path.write_bytes(path.read_bytes()[:-1])
    with Site.open(person.folder) as site:
        site.answer(hello(plan))
        found = site.answer(a_round(plan))
        assert is_refused(found)
        assert b"000000000007" not in found
        assert "000000000007 is not a recorded list or is damaged" in person.log()
        person.lists.forget(7)
        (person.lists.folder / "diary.txt").write_text("dear diary")
        found = site.answer(a_round(plan))
        assert is_refused(found)
        assert b"diary" not in found
    assert len(person.outbox(plan)) == 0
    [line] = [one for one in check(person.folder) if one.what == "data"]
    assert "diary.txt" in line.said


@pytest.mark.parametrize(("key", "value"), [("temperature", 1.0), ("keep", 0.0)])
def test_lists_that_were_drawn_otherwise_are_refused(tmp_path, key, value):
    plan, person = a_plan(learner=LEARNER | {key: value}), Person(tmp_path, 30)
    with Site.open(person.folder) as site:
        site.answer(hello(plan))
        assert b"lists at this site were drawn with temperature 0.3 and keep 0.9" in site.answer(a_round(plan))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"interactions": 29}, "clients.interactions: an update from 29 searches"),
        ({"learner": {"name": "lambdarank"}}, "learner: 'lambdarank' cannot use lists"),
        ({"people": 5}, "clients.people: 5 per site"),
    ],
)
def test_a_plan_that_does_not_fit_one_person_is_refused(tmp_path, changes, said):
    person, plan = Person(tmp_path, 30), a_plan(**changes)
    settings = read_site(person.folder)
    assert any(line.startswith(said) for line in settings.objections(plan))
    with Site.open(person.folder) as site:
        assert is_refused(site.answer(hello(plan)))


def test_other_features_are_told_before_anything_is_learnt(tmp_path):
    person, plan = Person(tmp_path, 30), a_plan(names=tuple(f"f{number}" for number in range(34)))
    settings = read_site(person.folder)
    assert any("feature names" in line for line in look_at(person.folder, settings, plan).refused)
    with Site.open(person.folder) as site:
        site.answer(hello(plan))
        assert b"do not match the plan" in site.answer(a_round(plan))


def test_what_leaves_is_shown_before_and_what_is_not_covered(tmp_path):
    person, plan = Person(tmp_path, 30), a_plan()
    view = look_at(person.folder, read_site(person.folder), plan)
    assert view.refused == ()
    assert next(one for one in view.leaves if one.what == "update").covered
    assert any("searched 30 times" in line for line in view.not_covered)
    assert not (person.folder / "outbox").exists()


def test_show_tells_how_many_searches_there_are_and_for_how_many_rounds(tmp_path, monkeypatch, capsys):
    from fedrank.cli import main

    person, plan = Person(tmp_path, 95), a_plan()
    with Site.open(person.folder) as site:
        site.answer(hello(plan))
        site.answer(a_round(plan))
    view = look_at(person.folder, read_site(person.folder), plan)
    said = "95 recorded searches of one person, all closed, 65 of them not used yet"
    assert view.has == f"{said}: enough for 2 rounds of 30"
    [line] = [one for one in check(person.folder) if one.what == "data"]
    assert line.said == said
    spec = tmp_path / "spec.toml"
    spec.write_text(
        'rounds = 4\n[data]\nname = "mslr10k"\n[clients]\ncount = 3\ninteractions = 30\n[learner]\nname = "pdgd"\n'
        'rate = 0.03\ntemperature = 0.3\nkeep = 0.9\n[mechanism]\nname = "gaussian"\nclip = 0.1\nnoise = 2.0\n'
    )
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.argv", ["fedrank", "deploy", "show", str(spec), "--home", str(person.folder)])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert not ended.value.code, told.err
    assert said in told.out
    assert "This site would refuse the plan" not in told.out
    (person.folder / "searches" / "diary.txt").write_text("dear diary")
    assert "cannot be counted" in look_at(person.folder, read_site(person.folder), plan).has


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('impressions = "searches"', 'impressions = "nowhere"', "data.impressions: the folder"),
        (
            'impressions = "searches"',
            'impressions = "searches"\nletor = "site.toml"',
            "letor and impressions are both set",
        ),
        ("[policy]", '[policy]\nunit = "person"', "policy.unit"),
    ],
)
def test_mistakes_in_site_toml_are_told(tmp_path, before, after, said):
    from fedrank.experiments.spec.experiment import SpecError

    person = Person(tmp_path, 0)
    path = person.folder / "site.toml"
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(SpecError, match=said):
        read_site(person.folder)


def test_a_person_of_a_dealt_schedule_takes_part_in_one_round(tmp_path):
    plan, person = a_plan(rounds=3, schedule="dealt"), Person(tmp_path, 90)
    turn = int(plan.turns[0])
    found = {}
    for number in (1, 2, 3, turn):
        with Site.open(person.folder) as site:
            site.answer(hello(plan))
            answers = [site.answer(a_round(plan, number)) for _ in range(2)]
        assert answers[0] == answers[1]
        assert is_refused(answers[0]) == (number != turn)
        assert found.setdefault(number, answers[0]) == answers[0], "the same bytes, also after a restart"
    assert any(b"was dealt into round" in answer for answer in found.values())
    assert len(person.outbox(plan)) == 1
    assert used_searches(person.folder / "outbox") == set(range(1, 31))
    account = Account.read(person.folder / "people" / plan.digest[:32] / "ledger")
    assert account.participations.tolist() == [1]
