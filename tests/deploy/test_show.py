"""Before anything leaves: what would, to whom, at which price, and what would be refused."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fedrank.deploy import consent
from fedrank.deploy.charging import Charging
from fedrank.deploy.data_sources import load_share
from fedrank.deploy.settings import Policy, SiteData, plan_prices
from fedrank.deploy.show import about_plan, as_facts, drafts, look_at, sum_view
from fedrank.deploy.transport import store_shared_folder
from fedrank.experiments.report.terminal import show
from fedrank.experiments.spec.experiment import SpecError
from tests.deploy.plans import NOISE, OPEN, SUM, letor_file, made_plan, site_settings
from tests.made_up import made_up_data, made_up_shown

POLICY = Policy(("pdgd", "evolution", "lambdarank"), largest_epsilon=30.0)
PEOPLE = {"count": 3, "people": 20, "interactions": 2}
OF_PERSONS = {"mechanism": NOISE | {"unit": "person"}, "clients": PEOPLE}
KEYS = tuple(f"{number:02x}" * 32 for number in (1, 2, 3))


def printed(view):
    console = Console(file=io.StringIO(), width=200)
    show(about_plan(view), console)
    return console.file.getvalue()


def leaves(view):
    return {one.what: one for one in view.leaves}


def test_bytes_are_those_that_a_site_sends(tmp_path):
    """What is told of a round is what `Answers` and `Message` come to, not a guess."""
    from fedrank.deploy.protocol import Answers
    from fedrank.federated.messages import Message
    from fedrank.wire import Label

    plan = made_plan(features=46)
    view = look_at(tmp_path, site_settings(POLICY), plan)
    message = Message(plan.run, 3, 0, np.ones(46, dtype=np.float32), 1).pack()
    sent = Answers((message,), np.empty(0), np.empty(0)).pack(Label("answers", plan.run, 3, 0, 0))
    assert leaves(view)["update"].bytes_each == len(sent)
    assert leaves(view)["update"].bytes_in_all == 10 * len(sent)
    assert leaves(view)["update"].covered
    assert view.bytes_down > 4 * 46


def test_rewards_are_few_bytes(tmp_path):
    learner = {"name": "evolution", "truth": 0.6}
    plan = made_plan(learner=learner, mechanism={"name": "es-randomised-response"}, server={"name": "adam"})
    view = look_at(tmp_path, site_settings(OPEN), plan)
    assert (
        leaves(view)["rewards"].bytes_each < look_at(tmp_path, site_settings(), made_plan()).leaves[0].bytes_each + 16
    )
    assert leaves(view)["rewards"].covered


def test_a_plan_whose_seeds_tell_clicks_is_refused():
    learner = {"name": "evolution", "chance": "shared"}
    with pytest.raises(SpecError, match=r'learner.chance: "shared" derives clicks from the seed in the plan'):
        made_plan(mechanism=None, learner=learner, server="adam")


def test_what_is_not_covered_is_named(tmp_path):
    data = SiteData(letor=str(letor_file(tmp_path / "t.txt")), test_share=0.25)
    settings = site_settings(replace(OPEN, measures=("ndcg@10",), plain_measures=True, history=True), data)
    plan = made_plan(mechanism=None, record_every=2, local="scaffold")
    view = look_at(tmp_path, settings, plan, load_share(data))
    found = leaves(view)
    assert not found["update"].covered
    assert not found["interactions behind an update"].covered
    assert "computes the control of each site from its update" in found["control of SCAFFOLD"].about
    assert not found["sums of measures"].covered
    assert "ndcg@10" in found["sums of measures"].about
    text = " ".join(view.not_covered)
    assert "reveal clicks" in text
    assert "every 2 rounds" in text
    assert "sums of measures over the own queries of clinic-a" in text
    assert "reveal clicks" in printed(view)
    without = look_at(tmp_path, settings, plan, load_share(replace(data, test_share=None)))
    assert "sums of measures" not in leaves(without)


@pytest.mark.parametrize(("sites", "threshold", "dropouts"), [(3, 3, 0), (4, 3, 1)])
def test_a_secure_sum_says_what_it_stands(tmp_path, sites, threshold, dropouts):
    plan = made_plan(sites=sites, mechanism=SUM)
    view = look_at(tmp_path, site_settings(POLICY), plan)
    assert (view.sum.sites, view.sum.threshold, view.sum.dropouts) == (sites, threshold, dropouts)
    text = printed(view)
    assert f"{threshold} of {sites} sites must agree" in text
    assert ("A round tolerates no dropout" in text) == (dropouts == 0)
    assert f"learn the sum of the {sites - 1} others" in text
    assert leaves(view)["masked update"].bytes_each > 4 * plan.sent
    assert sum_view(made_plan()) is None


def test_the_price_is_that_of_this_run_and_of_all_runs(tmp_path):
    plan, settings = made_plan(), site_settings(POLICY)
    view = look_at(tmp_path, settings, plan)
    alone = {price.guarantee.against: price.total for price in plan_prices(plan, 1e-5)}
    assert view.spent == {}
    assert view.after == pytest.approx(alone)
    assert view.affordable == 10
    promises = [price.guarantee for price in view.prices]
    other = Charging(tmp_path / "people", "ab" * 16, 1, promises, 1e-5, 30.0)
    for round in range(1, 5):
        other.charge(round, np.zeros(1, dtype=np.int64))
    own = Charging(tmp_path / "people", plan.digest[:32], 1, promises, 1e-5, 30.0)
    own.charge(1, np.zeros(1, dtype=np.int64))  # begun, so that it is not counted twice
    again = look_at(tmp_path, settings, plan)
    for guarantee in promises:
        assert again.spent[guarantee.against] == pytest.approx(guarantee.epsilon(4, 1e-5))
        assert again.after[guarantee.against] == pytest.approx(guarantee.epsilon(14, 1e-5))
    limit = promises[0].epsilon(9, 1e-5) * 1.0001
    less = look_at(tmp_path, site_settings(replace(POLICY, largest_epsilon=limit)), plan)
    assert less.affordable == 5
    assert any("it covers 5 of 10 rounds" in line for line in less.refused)
    assert "5 of 10 rounds" in printed(less)
    for one in (other, own):
        one.close()


def test_readers_of_a_shared_folder_are_recipients(tmp_path):
    plan, settings = made_plan(), site_settings(POLICY)
    assert leaves(look_at(tmp_path, settings, plan))["update"].to == "the coordinator"
    store_shared_folder(tmp_path, tmp_path / "shared")
    view = look_at(tmp_path, settings, plan)
    assert {one.to for one in view.leaves} == {"the coordinator, readers of the folder"}
    assert f"everyone who can read {tmp_path / 'shared'} sees these messages, too" in view.sees


def test_a_damaged_ledger_is_a_refusal(tmp_path):
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "people.json").write_text("{")
    view = look_at(tmp_path, site_settings(POLICY), made_plan())
    assert any(line.startswith("ledger:") for line in view.refused)


def test_objections_differences_and_the_word_are_told(tmp_path):
    data = SiteData(letor=str(letor_file(tmp_path / "t.txt")))
    settings = site_settings(replace(POLICY, learners=("lambdarank",)), data)
    plan = made_plan(features=46, identities=KEYS)
    view = look_at(tmp_path, settings, plan, load_share(data))
    assert [line.partition(":")[0] for line in view.refused] == ["learner.name", "features"]
    assert "not accepted yet" in printed(view)
    assert [one.pinned for one in view.partners] == [False, False]
    assert "no: compare by telephone" in printed(view)
    consent.accept(tmp_path, plan)
    after = look_at(tmp_path, settings, plan)
    assert after.word == "accepted"
    assert [one.pinned for one in after.partners] == [True, True]
    assert after.partners[0].fingerprint in printed(after)
    fits = look_at(tmp_path, site_settings(POLICY), made_plan())
    assert "Nothing: the plan fits" in printed(fits)
    assert "the plan has no key" in printed(fits)


def test_facts_are_json(tmp_path):
    plan = made_plan(mechanism=NOISE | {"placement": "server"})
    view = look_at(tmp_path, site_settings(replace(POLICY, placements=("server",))), plan)
    facts = json.loads(json.dumps(as_facts(view), allow_nan=False))
    assert facts["prices"][0]["against"] == "server"
    assert facts["prices"][0]["epsilon"] is None
    assert facts["leaves"][0]["bytes_in_all"] == view.leaves[0].bytes_in_all
    summed = as_facts(look_at(tmp_path, site_settings(POLICY), made_plan(mechanism=SUM)))
    assert json.loads(json.dumps(summed, allow_nan=False))["sum"]["threshold"] == 3


SPEC = """\
rounds = 10
seeds = [1, 2]

[data]
train = "/nowhere/train.txt"
test = "/nowhere/test.txt"

[clients]
count = 3
interactions = 4

[learner]
name = "pdgd"

[mechanism]
name = "gaussian"
clip = 1.0
noise = 20.0
"""


def test_a_spec_is_drafted_without_a_look_at_the_coordinators_files():
    settings = site_settings(POLICY, id=7)
    found = drafts(SPEC, settings, made_up_data())
    assert [plan.seed for plan in found] == [1, 2]
    assert found[0].party("clinic-a").clients == (7,)
    assert len(found[0].sites) == 3
    assert settings.objections(found[0]) == []


def test_the_draft_of_a_spec_has_the_digest_of_the_plan_that_is_made_of_it(tmp_path):
    """So that a site can accept a spec, and the coordinator's plan of it is then known there."""
    from fedrank.deploy.plan import PlannedSite, make_plan
    from fedrank.experiments.spec.grid import read_tables
    from fedrank.toml import parse_toml

    tables = parse_toml(SPEC.replace("/nowhere", str(tmp_path)))
    for name in ("train", "test"):
        letor_file(tmp_path / f"{name}.txt")
    experiment = read_tables(tables).base.single(1, 2)
    parties = [PlannedSite(name, (id,), KEYS[id]) for id, name in enumerate(("clinic-a", "clinic-b", "clinic-c"))]
    plan = make_plan(experiment, "real", parties, federation="clinics", features=5, seed=2)
    draft = drafts(SPEC, site_settings(POLICY), made_up_data())[1]
    assert consent.spec_digest(plan) == consent.spec_digest(draft)
    consent.accept_spec(tmp_path, draft)
    assert consent.objection(tmp_path, plan, POLICY) is None


def test_a_draft_keeps_how_clicks_are_corrected():
    """Otherwise a site would accept another spec than the coordinator plans."""
    files = 'train = "/nowhere/train.txt"\ntest = "/nowhere/test.txt"'
    logged = SPEC.replace(files, 'log = "/nowhere"\npropensities = "own"').replace('"pdgd"', '"logged-clicks"')
    assert [plan.experiment.data.propensities for plan in drafts(logged, site_settings(POLICY), made_up_data())] == [
        *("own", "own"),
    ]


def test_a_draft_of_a_simulation_or_of_code_is_refused_by_name():
    with pytest.raises(SpecError, match=r"clients\.click_model"):
        drafts(SPEC.replace("interactions = 4", 'click_model = "navigational"'), site_settings(), made_up_data())
    with pytest.raises(SpecError, match="os:system"):
        drafts(SPEC + '\n[aggregator]\nname = "os:system"\n', site_settings(), made_up_data())


def test_the_bytes_of_a_secure_sum_are_those_that_sites_sent(tmp_path):
    """A run between sites in this process, whose sites.csv says what travelled."""
    from fedrank.deploy.settings import read_site
    from tests.deploy.trial import Trial, spec_of, write_data

    write_data(tmp_path)
    noise = '[learner]\nname = "pdgd"\n[mechanism]\nname = "gaussian"\nclip = 1.0\nnoise = 8.0\n'
    noise += 'placement = "secure-aggregation"\n'
    trial = Trial(tmp_path, spec_of(tmp_path, noise, rounds=2))
    assert trial.run() == "finished"
    rows = [row.split(",") for row in (trial.task.folder / "sites.csv").read_text().splitlines()[1:]]
    for name, folder in trial.folders.items():
        view = look_at(folder, read_site(folder), trial.plan)
        told = leaves(view)["masked update"].bytes_each + leaves(view)["online quality"].bytes_each
        for round in ("1", "2"):
            sent = sum(int(row[4]) for row in rows if row[:2] == [round, name])
            assert told == sent


def test_users_of_a_log_that_are_browsers_are_not_called_persons(tmp_path):
    for unit in ("browser", "person"):
        data = SiteData(log=str(made_up_shown(tmp_path / unit, [0, 1, 0], unit=unit).folder), person="browser")
        view = look_at(tmp_path, site_settings(OPEN, data), made_plan(**OF_PERSONS))
        assert any("a browser, not a person" in text for text in view.not_covered)
        assert "one browser" in printed(view)


def test_a_log_of_browsers_is_refused_until_the_site_says_so(tmp_path):
    data = SiteData(log=str(made_up_shown(tmp_path / "log", [0, 1, 0], unit="browser").folder), person="user")
    plan = made_plan(**OF_PERSONS)
    [line] = [line for line in look_at(tmp_path, site_settings(OPEN, data), plan).refused if "data.person" in line]
    assert "--person COLUMN" in line
    assert 'set person = "browser" in site.toml' in line
    declared = look_at(tmp_path, site_settings(OPEN, replace(data, person="browser")), plan)
    assert not any("data.person" in line for line in declared.refused)
    assert {price.guarantee.unit for price in declared.prices} == {"browser"}
    of_sites = look_at(tmp_path, site_settings(OPEN, data), made_plan())
    assert not any("data.person" in line for line in of_sites.refused)


@pytest.mark.parametrize(("unit", "told"), [("person", True), ("client", False)])
def test_what_a_site_computed_from_the_log_of_all_people_is_not_covered(tmp_path, unit, told):
    data = SiteData(log=str(made_up_shown(tmp_path / "log", [0, 1, 0]).folder))
    plan = made_plan(mechanism=NOISE | {"unit": unit}, clients=PEOPLE)
    view = look_at(tmp_path, site_settings(OPEN, data), plan)
    assert any("a popularity that counts clicks" in text for text in view.not_covered) == told
