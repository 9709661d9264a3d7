"""A site's data as the one row of a table of clients."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedrank.data.engine_features import ENGINE_1
from fedrank.data.judged_files import READERS
from fedrank.data.logs import FACTS
from fedrank.deploy.data_sources import describe, differences, load_share, open_data_source, simulated_clients_of
from fedrank.deploy.plan import names_digest
from fedrank.deploy.settings import SiteData
from fedrank.federated.clients import make_clients
from tests.deploy.plans import NOISE, OPEN, letor_file, made_plan, site_settings
from tests.made_up import made_up_log, made_up_shown


def test_a_site_is_one_client_with_all_its_queries(tmp_path):
    data = SiteData(letor=str(letor_file(tmp_path / "train.txt")))
    held = open_data_source(site_settings(data=data, id=2, name="clinic-c"), made_plan())
    clients = held.clients
    assert clients.ids.tolist() == [2]
    assert clients.interactions.tolist() == [4]
    assert clients.queries.tolist() == list(range(12))
    assert clients.people is None
    assert held.test is None
    assert (held.people, held.rows([2], 1).tolist()) == (1, [0])
    assert held.client(2).ids.tolist() == [2]


def test_the_row_is_that_of_a_simulation_of_the_same_data(tmp_path):
    share = load_share(SiteData(letor=str(letor_file(tmp_path / "train.txt"))))
    plan = made_plan(learner={"name": "pdgd"}, clients={"count": 3, "interactions": [2, 3, 4]})
    clients = simulated_clients_of(share, plan, 1)
    simulated = make_clients(share.train, 3, interactions=[2, 3, 4]).rows(np.array([1]))
    for name in ("ids", "pool", "interactions", "queries", "pools", "view", "click_model", "click", "grades", "ideal"):
        assert np.array_equal(getattr(clients, name), getattr(simulated, name)), name
    from fedrank.seeds import Chance

    learner, start = plan.experiment.learner, np.zeros(5)
    one, other = (learner(start, each, Chance(7, 1)).updates for each in (clients, simulated))
    assert np.array_equal(one, other)
    assert np.abs(one).max() > 0


def test_the_last_queries_measure_quality(tmp_path):
    data = SiteData(letor=str(letor_file(tmp_path / "train.txt")), test_share=0.25)
    share = load_share(data)
    assert (share.train.queries, share.test.queries) == (9, 3)
    assert share.test.query_ids.tolist() == ["9", "10", "11"]
    assert describe(data).queries == 9
    with pytest.raises(ValueError, match=r"data\.test_share: 0.01 divides 12 queries"):
        load_share(replace(data, test_share=0.01))


def test_people_are_rows_of_their_own(tmp_path):
    data = SiteData(letor=str(letor_file(tmp_path / "t.txt", comment="docid = 7 patient = p{query}")), person="patient")
    plan = made_plan(mechanism=NOISE | {"unit": "person"}, clients={"count": 3, "people": 20, "interactions": 2})
    held = open_data_source(site_settings(replace(OPEN, unit="person"), data, id=1, name="clinic-b"), plan)
    people = held.clients.people
    assert len(people) == 12
    assert people.ids.tolist() == list(range(20, 32))  # nobody else's, at any site
    assert set(people.client.tolist()) == {1}
    assert held.clients.interactions.tolist() == [24]
    assert people.interactions.tolist() == [2] * 12
    assert sorted(people.queries.tolist()) == list(range(12))
    assert held.rows([1], 1).tolist() == [0]  # all of them pay at once
    assert len(held.client(1).people) == 12
    with pytest.raises(ValueError, match=r"this site has 12, but the plan allows at most 11"):
        simulated_clients_of(load_share(data), made_plan(clients={"count": 3, "people": 11}, mechanism=None), 1)
    assert differences(load_share(data), made_plan(clients={"count": 3, "people": 12}, mechanism=None)) == []
    [why] = differences(load_share(data), made_plan(clients={"count": 3, "people": 11}, mechanism=None))
    assert why.startswith(
        "people: this site has 12, but the plan allows at most 11"
    )  # so that a look at the plan says it
    with pytest.raises(ValueError, match=r"data\.person: the plan has clients\.people = 20"):
        simulated_clients_of(load_share(replace(data, person=None)), plan, 1)


def test_everybody_is_somebody(tmp_path):
    some = letor_file(tmp_path / "some.txt", comment="ward = 3")
    with pytest.raises(ValueError, match=r"query 0 of .*some\.txt is not assigned to a person; write `# patient"):
        load_share(SiteData(letor=str(some), person="patient"))
    two = tmp_path / "two.txt"
    two.write_text("1 qid:1 1:0.5 # patient = a\n0 qid:1 1:0.1 # patient: b\n")
    with pytest.raises(ValueError, match="assigned to a, b"):
        load_share(SiteData(letor=str(two), person="patient"))
    one = load_share(SiteData(letor=str(some), person="ward"))
    assert one.people == 1


def test_a_format_without_comments_names_no_person(tmp_path, monkeypatch):
    monkeypatch.setitem(READERS, ".judged-test", READERS[""])
    file = letor_file(tmp_path / "some.judged-test", comment="ward = 3")
    with pytest.raises(ValueError, match=r"data\.person: the format of .* has no comments"):
        load_share(SiteData(letor=str(file), person="ward"))


def test_a_log_with_features_of_engines_has_fixed_ranges(tmp_path):
    """Every site scales alike, and nobody is told a smallest or largest value; the model records the ranges."""
    folder = made_up_shown(tmp_path / "log", [0, 1] * 10, features=len(ENGINE_1.names)).folder
    raw = load_share(SiteData(log=str(folder), normalise="none")).train
    facts = json.loads((folder / FACTS).read_text())
    (folder / FACTS).write_text(json.dumps(facts | {"settings": {"features": "engine-1"}}))
    train = load_share(SiteData(log=str(folder))).train
    assert train.normalised == "global"
    assert_array_equal(train.ranges, ENGINE_1.ranges)
    assert_allclose(train.features, raw.features / ENGINE_1.ranges[1], rtol=1e-6)


def test_a_log_brings_lists_clicks_and_users(tmp_path):
    log = made_up_log(tmp_path / "log", [0, 1, 0, 2, 1, 0, 0, 3, 3, 3])
    data = SiteData(log=str(log), person="user", test_share=0.3)
    share = load_share(data)
    assert (share.train.queries, share.test.queries) == (7, 3)
    assert share.train.who.tolist() == [0, 1, 0, 2, 1, 0, 0]
    assert share.people == 3  # the fourth is in the test set alone
    assert share.train.normalised == "query"
    assert share.train.given == "file"
    facts = describe(data)
    assert (facts.features, facts.people, facts.queries) == (4, 3, 7)
    assert facts.names_digest == names_digest(["f0", "f1", "f2", "f3"])
    learner = {"name": "pdgd", "lists": "logged"}
    plan = made_plan(features=4, normalised="query", names=["f0", "f1", "f2", "f3"])
    plan = replace(plan, spec=plan.spec.replace('lists = "drawn"', 'lists = "logged"'))
    assert plan.experiment.learner.lists == learner["lists"]
    assert differences(share, plan) == []
    assert load_share(replace(data, test_share=None)).test is None


def test_differences_name_both_values(tmp_path):
    file = letor_file(tmp_path / "train.txt")
    share = load_share(SiteData(letor=str(file)))
    [width] = differences(share, made_plan(features=46))
    assert "this site has 5, the plan 46" in width
    [normalised] = differences(share, made_plan(normalised="query"))
    assert 'this site has "none", the plan "query"' in normalised
    with pytest.raises(ValueError, match="this site has 5, the plan 46"):
        simulated_clients_of(share, made_plan(features=46), 0)
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\ne\n")
    named = load_share(SiteData(letor=str(file), names=str(tmp_path / "names.txt")))
    assert differences(named, made_plan(names=list("abcde"))) == []
    [unnamed] = differences(share, made_plan(names=list("abcde")))
    assert "digest at this site is none" in unnamed
    assert "set data.names in site.toml" in unnamed
    assert "remove data.names" in differences(named, made_plan())[0]
    [names] = differences(named, made_plan(names=list("abced")))
    assert names_digest("abcde") in names
    assert names_digest("abced") in names
    plan = made_plan()
    logged = replace(plan, spec=plan.spec.replace('lists = "drawn"', 'lists = "logged"'))
    assert "this site has no log" in differences(share, logged)[0]


def test_names_and_grades_of_a_file_must_fit_it(tmp_path):
    file = letor_file(tmp_path / "train.txt")
    (tmp_path / "names.txt").write_text("a\nb")
    with pytest.raises(ValueError, match=r"names\.txt has 2 lines.* 5 features"):
        load_share(SiteData(letor=str(file), names=str(tmp_path / "names.txt")))
    with pytest.raises(ValueError, match=r"data\.top_grade: 1 is lower"):
        load_share(SiteData(letor=str(file), top_grade=1))
    assert load_share(SiteData(letor=str(file), top_grade=4)).train.top_grade == 4
    few = tmp_path / "few.txt"
    few.write_text("0 qid:1 1:1\n3 qid:1 1:2\n")
    assert load_share(SiteData(letor=str(few))).train.top_grade == 4  # a scale that users are known for


def test_changed_data_have_another_digest(tmp_path):
    file = letor_file(tmp_path / "train.txt")
    data = SiteData(letor=str(file))
    before = describe(data)
    assert describe(data) == before
    text = file.read_text()
    grade = text[0]
    file.write_text(("1" if grade == "0" else "0") + text[1:])
    assert describe(data).digest != before.digest
    assert describe(data).queries == before.queries


def test_no_data_are_opened_for_a_plan_that_the_policy_refuses(tmp_path):
    settings = site_settings(replace(OPEN, learners=("lambdarank",)), SiteData(letor=str(tmp_path / "missing.txt")))
    with pytest.raises(ValueError, match=r"learner\.name"):
        open_data_source(settings, made_plan())


def test_documents_alone_teach_nothing(tmp_path):
    with pytest.raises(ValueError, match="no training data are configured"):
        load_share(SiteData(documents="corpus.jsonl"))
