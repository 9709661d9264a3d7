"""People who learn together: only over a network, only enough of them, and only with searches made after joining."""

from __future__ import annotations

import math
import re
import threading
import time
from pathlib import Path

import pytest

from fedrank.deploy import consent
from fedrank.deploy.identity import new_identity, read_identity
from fedrank.deploy.make_plans import plan_runs
from fedrank.deploy.plan import PlannedSite, make_plan
from fedrank.deploy.settings import site_template
from fedrank.experiments.runner.privacy import planned
from fedrank.experiments.runner.privacy_rule import noise_norm, signal
from fedrank.files import private_folder
from fedrank.privacy.mechanisms import SecureAggregation
from fedrank.search import coordinator, joining, sharing, web
from fedrank.search.coordinator import built_in, check_people, people_needed, too_few
from fedrank.search.results import SearchError
from fedrank.search.sharing import Sharing
from tests.deploy.plans import experiment
from tests.oracles.accounting import gaussian_epsilon
from tests.search.made_up import FRUIT, Clock, opened, search_often

pytest.importorskip("tantivy", reason="pip install 'fedrank[search]'")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def anna(tmp_path, clock):
    with opened(tmp_path / "anna", clock) as client:
        yield client


@pytest.fixture
def site(tmp_path, anna):
    """The folder of a site, without certificates, to which the searches of anna are given."""
    folder = tmp_path / "site"
    (folder / "kit").mkdir(parents=True)
    new_identity(folder)
    (folder / "site.toml").write_text(site_template("anna", 0, "friends"))
    return folder


def join(client, site):
    """What `join_network` does, without the address of the server."""
    lists = private_folder(private_folder(client.folder / "federation") / "searches")
    joining.networked.point_at(site, lists)
    Sharing("friends at localhost:1", client.rows.last_search, 8.0, str(site)).write(client.folder)


def people(count, tmp_path, site):
    """Planned sites, the first of which is this one."""
    folders = [site, *(tmp_path / f"p{id}" for id in range(1, count))]
    for folder in folders[1:]:
        new_identity(folder)
    return [
        PlannedSite("anna" if folder == site else folder.name, (id,), read_identity(folder).public)
        for id, folder in enumerate(folders)
    ]


@pytest.mark.parametrize("where", ["file:shared", "file:", "file:/tmp/x"])
def test_a_shared_folder_is_refused_with_the_reason_and_the_remedy(where):
    with pytest.raises(SearchError) as caught:
        joining.site_of(where)
    said = str(caught.value)
    assert "noise on each device destroys what a small group learns" in said
    assert ".146 nDCG@10 below BM25" in said
    assert "fedrank deploy join, then fedrank search join HOME" in said


def test_what_is_no_site_is_refused(tmp_path):
    with pytest.raises(SearchError, match="give the folder that `fedrank deploy join` created"):
        joining.site_of("https://example.org")
    (tmp_path / "site.toml").write_text("")
    assert joining.site_of(str(tmp_path)) == tmp_path


def test_a_membership_of_an_earlier_version_sends_nothing_and_can_be_left(anna, clock):
    private_folder(private_folder(anna.folder / "federation") / "searches")
    Sharing("/shared", 0, 8.0).write(anna.folder)
    search_often(anna, clock, 2)
    with pytest.raises(SearchError, match="joined through a shared folder, which has ended"):
        joining.take_part(anna)
    joining.leave(anna)
    assert joining.state_of(anna) == ""


def test_only_lists_after_joining_that_the_model_drew_are_recorded_and_forgetting_removes_them(anna, clock, site):
    search_often(anna, clock, 4)
    anna.record_for_sharing()
    assert not (anna.folder / "federation").exists()
    join(anna, site)
    anna.settings.set_order("engine")
    search_often(anna, clock, 2)
    anna.settings.set_order("drawn")
    search_often(anna, clock, 10)
    joining.take_part(anna)
    lists = sharing.recorded(anna.folder)
    assert lists.numbers() == list(range(7, 17))
    assert lists.get(7).impression.clicked.any()
    anna.forget(query=f"orchard {FRUIT[0]}")
    assert lists.numbers() == list(range(8, 17))
    document = int(anna.rows.clicks(8)[0].document)
    anna.forget(document=document)
    assert not lists.get(8).impression.clicked.any()
    anna.forget(everything=True)
    assert lists.numbers() == []
    assert anna.rows.last_search == 16


def test_leaving_removes_recorded_lists_and_nothing_is_answered_any_more(anna, clock, site):
    join(anna, site)
    search_often(anna, clock, 5)
    anna.record_for_sharing()
    assert len(sharing.recorded(anna.folder).numbers()) == 5
    assert "5 searches are recorded" in " ".join(anna.status().notes)
    with pytest.raises(SearchError, match="leave it first"):
        joining.state_of(anna, site.with_name("other"))
    joining.leave(anna)
    assert not (site / "kit").exists()
    assert sharing.recorded(anna.folder).numbers() == []
    assert joining.state_of(anna) == ""
    joining.take_part(anna)
    with pytest.raises(SearchError, match="not joined a federation"):
        joining.leave(anna)


# How many people are needed


@pytest.mark.parametrize("epsilon", [4.0, 8.0])
def test_the_number_of_people_is_the_smallest_that_the_rule_accepts(tmp_path, epsilon, monkeypatch):
    monkeypatch.setattr(coordinator, "FEWEST", 6)
    needed = people_needed(epsilon)
    enough, less = (built_in(tmp_path, count, epsilon).base for count in (needed, needed - 4))
    assert too_few(enough) == ""
    assert f"at least {needed:,} are needed" in too_few(less) or f"at least {needed - 1:,} are needed" in too_few(less)
    check_people(needed, epsilon)
    with pytest.raises(ValueError, match=f"ε = {epsilon:g} needs at least {needed:,} people, and 3 joined"):
        check_people(3, epsilon)
    assert coordinator._signal(less) == pytest.approx(signal(less)), "the rule of the plan"
    # The norm of noise in the model, by the formula of the plan, relative to the largest change of the model.
    assert noise_norm(enough) / coordinator.STEP <= 1 / coordinator.SIGNAL * (1 + 1e-9)


def test_more_people_are_needed_for_a_smaller_epsilon_and_never_few():
    needed = [people_needed(epsilon) for epsilon in (8.0, 4.0, 1.0, 0.5)]
    assert needed == sorted(needed)
    assert needed[0] == coordinator.FEWEST < needed[-1]


def test_the_tutorial_has_these_numbers():
    tutorial = (Path(__file__).parents[2] / "docs" / "tutorials" / "search.md").read_text()
    [epsilons] = re.findall(r"^\| \[ε\]\(\S+\) \|(.*)\|$", tutorial, re.M)
    [numbers] = re.findall(r"^\| people needed \|(.*)\|$", tutorial, re.M)
    found = {
        float(epsilon): int(number) for epsilon, number in zip(epsilons.split("|"), numbers.split("|"), strict=True)
    }
    assert found == {epsilon: people_needed(epsilon) for epsilon in found}
    assert len(found) == 4


@pytest.mark.parametrize("people", [80, 399, 401, 1000])
def test_everyone_takes_part_once_in_few_rounds_at_the_price_of_one_gaussian(tmp_path, people):
    base = built_in(tmp_path, people, 4.0).base
    assert base.clients.schedule == "dealt"
    assert base.rounds == max(2, math.ceil(people / 200))
    assert isinstance(base.mechanism.placement, SecureAggregation)
    totals = [row.total for row in planned(base) if row.guarantee.event is not None]
    assert 0.98 * 4.0 < max(totals) <= 4.0
    assert max(totals) == pytest.approx(gaussian_epsilon(base.mechanism.noise, 1e-5), rel=2e-3)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_that_is_no_budget_is_refused(tmp_path, epsilon):
    with pytest.raises(ValueError, match="positive and finite"):
        built_in(tmp_path, 10, epsilon)
    with pytest.raises(ValueError, match="positive and finite"):
        check_people(10, epsilon)


# Plans that reach a person


def test_a_plan_with_too_few_people_is_shown_with_the_number_and_cannot_be_accepted(tmp_path, anna, site):
    join(anna, site)
    [(_, plan)] = plan_runs(built_in(tmp_path, 6, 8.0), "few", tmp_path, people(6, tmp_path, site), "friends")
    consent.propose(site, plan)
    [(found, view)] = joining.open_plans(anna)
    assert found.digest == plan.digest
    assert any("at least 300 are needed" in why for why in view.refused)
    with pytest.raises(SearchError, match="6 people are too few"):
        joining.agree(anna, plan)
    assert consent.said_of(site, plan) is None


def test_a_plan_with_enough_people_can_be_accepted(tmp_path, anna, site, monkeypatch):
    monkeypatch.setattr(coordinator, "SIGNAL", 0.1)
    monkeypatch.setattr(coordinator, "FEWEST", 3)
    join(anna, site)
    [(_, plan)] = plan_runs(built_in(tmp_path, 6, 8.0), "enough", tmp_path, people(6, tmp_path, site), "friends")
    consent.propose(site, plan)
    [(_, view)] = joining.open_plans(anna)
    assert view.refused == ()
    joining.agree(anna, plan)
    assert consent.said_of(site, plan) == "accepted"


@pytest.mark.parametrize("mechanism", [None, {"name": "gaussian", "clip": 0.1, "noise": 9.0, "placement": "client"}])
def test_noise_on_each_device_is_refused_by_name(tmp_path, anna, site, mechanism):
    join(anna, site)
    spec = experiment(rounds=2, clients={"count": 6, "interactions": 30}, learner={"name": "pdgd"}, mechanism=mechanism)
    plan = make_plan(spec, "local", people(6, tmp_path, site), federation="friends", features=34, normalised="none")
    said = joining.plan_problem(plan)
    assert said.startswith("mechanism.placement must be secure-aggregation, because noise on each device destroys")
    with pytest.raises(SearchError, match="secure-aggregation"):
        joining.agree(anna, plan)
    settings = joining.read_site(site)
    if mechanism is not None:
        assert any('"client" is not in policy.placements' in line for line in settings.objections(plan))
    assert settings.policy.placements == ("secure-aggregation",)


def test_a_problem_of_the_answering_thread_stands_in_the_status_until_it_is_gone(anna, clock, site, monkeypatch):
    monkeypatch.setattr(web, "SECONDS_BETWEEN_LOOKS", 0.05)
    monkeypatch.setattr(joining, "SECONDS_BETWEEN_LOOKS", 0.05)
    monkeypatch.setattr(joining.SiteRunner, "keep_running", lambda self: None)
    join(anna, site)
    with web._taking_part(anna):
        (site / "kit").rename(site / "away")
        wait_until(lambda: "no longer has a kit" in anna.status().notes[-1])
        (site / "away").rename(site / "kit")
        wait_until(lambda: len(anna.status().notes) == 2)
        mark = anna.folder / "federation" / "search.json"
        whole = mark.read_bytes()
        mark.write_bytes(b"{")
        wait_until(lambda: "restore it" in anna.status().notes[-1])
        mark.write_bytes(whole)
        wait_until(lambda: len(anna.status().notes) == 2)
        joining.leave(anna)
        search_often(anna, clock, 3)
        assert sharing.recorded(anna.folder).numbers() == []
    assert not [thread for thread in threading.enumerate() if thread.name == "fedrank-federation"]


def wait_until(true, seconds=60.0):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "nothing happened for too long"
        time.sleep(0.05)
