"""`show` and `accept` refuse what a site refuses when the run starts, with the same reason."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedrank import wire
from fedrank.cli import main
from fedrank.deploy import consent, protocol
from fedrank.deploy.charging import UNLIMITED, Charging
from fedrank.deploy.check import check
from fedrank.deploy.data_sources import load_share
from fedrank.deploy.heads import upgrade
from fedrank.deploy.identity import new_identity, read_identity
from fedrank.deploy.make_plans import plan_runs
from fedrank.deploy.plan import Plan
from fedrank.deploy.settings import SiteData, read_site, site_guarantees
from fedrank.deploy.show import look_at
from fedrank.deploy.site import Site
from fedrank.experiments.spec.source import read_spec
from fedrank.wire import Refused
from tests.deploy.plans import NOISE, OPEN, SUM, letor_file, made_plan, site_settings
from tests.deploy.real_trial import LINEAR, RealTrial
from tests.deploy.real_trial import NOISE as NOISE_TEXT
from tests.deploy.real_trial import SUM as SUM_TEXT


def shown(where, plan):
    settings = read_site(where)
    return look_at(where, settings, plan, load_share(settings.data)).refused


def refusal_at_hello(where, plan) -> str:
    with Site.open(where) as site:
        answer = site.answer(protocol.request("hello", plan.run, 0, plan=plan.dump()))
    label = wire.read_label(answer)
    return "" if label.kind == "facts" else protocol_reason(answer, label)


def protocol_reason(answer, label) -> str:
    _, found = wire.unpack(answer, label, {"reason": wire.Part("|S", len(answer))})
    return found["reason"].decode()


def with_keys(plan, **keys) -> Plan:
    content = json.loads(plan.dump())
    for site in content["sites"]:
        site["identity"] = keys.get(site["name"].replace("-", "_"), site["identity"])
    return Plan.load(json.dumps(content).encode())


def changed_policy(where, before, after):
    path = where / "site.toml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def spent_before(where):
    """An earlier run has spent almost everything."""
    plan = made_plan(mechanism=NOISE | {"noise": 2.0}, rounds=30)
    charging = Charging(where / "people", plan.digest[:32], 4, site_guarantees(plan), 1e-5, 1000.0)
    for round in range(1, 31):
        charging.charge(round, np.zeros(1, dtype=np.int64))
    left = max(charging.spent().values()) + 0.01
    charging.close()
    upgrade(where)
    changed_policy(where, "largest_epsilon = 1000.0", f"largest_epsilon = {left:.4f}")


REFUSED = {
    "learner": (lambda where: changed_policy(where, "learners", 'learners = ["evolution"]\n#'), "policy.learners"),
    "placement": (lambda where: changed_policy(where, "placements", 'placements = ["server"]\n#'), "placement"),
    "clip": (lambda where: changed_policy(where, "[policy]", "[policy]\nlargest_clip = 0.001"), "policy.largest_clip"),
    "cost": (lambda where: changed_policy(where, "= 1000.0", "= 0.001"), "this run alone would cost"),
    "budget": (spent_before, "all runs together would cost"),
}


@pytest.mark.parametrize("why", ["", *REFUSED])
def test_show_accept_check_and_the_site_give_the_same_verdict(tmp_path, monkeypatch, capsys, why):
    trial = RealTrial(tmp_path, LINEAR + NOISE_TEXT)
    where, plan = trial.folders["clinic-a"], trial.plan
    change, reason = REFUSED.get(why, (lambda where: None, ""))
    change(where)
    (tmp_path / "plan.json").write_bytes(plan.dump())

    def said(*command) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["fedrank", "deploy", *command, "--home", str(where)])
        monkeypatch.setenv("COLUMNS", "400")
        with pytest.raises(SystemExit) as ended:
            main()
        found = capsys.readouterr()
        return ended.value.code or 0, found.out + found.err

    file = str(tmp_path / "plan.json")
    verdicts = {
        "show": said("show", file),
        "accept": said("accept", file, "--yes"),
        "check": said("check", file),
        "site": (0, refusal_at_hello(where, plan)),
    }
    if not why:
        assert verdicts["site"][1] == ""
        assert verdicts["show"][0] == verdicts["accept"][0] == 0
        assert "policy   wrong" not in verdicts["check"][1]  # the made-up site has no kit
        return
    for name, (code, text) in verdicts.items():
        assert reason in text, (name, text)
        assert code != 0 or name == "site", name


IMPOSSIBLE = {
    "fine_tune = 3\n": "fine_tune: is not supported between sites",
    'aggregator = { name = "krum" }\n': "aggregator: Krum has no guarantee",
    "attack = 'lie'\n": "attack",
}


@pytest.mark.parametrize("line", IMPOSSIBLE)
def test_a_spec_that_no_sites_can_run_is_refused_by_every_command(tmp_path, monkeypatch, capsys, line):
    trial = RealTrial(tmp_path, LINEAR + NOISE_TEXT)
    where, reason, spec = trial.folders["clinic-a"], IMPOSSIBLE[line], tmp_path / "impossible.toml"
    spec.write_text(line + (tmp_path / "spec.toml").read_text())
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr("fedrank.experiments.runner.audit.audit_experiment", lambda *args, **more: [])
    home = ("--home", str(where))
    for command in (
        ("deploy", "show", str(spec), *home),
        ("deploy", "accept", str(spec), "--yes", *home),
        ("deploy", "check", str(spec), *home),
        ("privacy", "show", str(spec)),
        ("privacy", "audit", str(spec)),
    ):
        monkeypatch.setattr("sys.argv", ["fedrank", *command])
        with pytest.raises(SystemExit) as ended:
            main()
        found = capsys.readouterr()
        assert reason in found.out + found.err, command
        assert bool(ended.value.code) == (command[0] == "deploy")
    with pytest.raises(ValueError, match=reason.replace("(", ".")):
        plan_runs(read_spec(spec), "impossible", tmp_path / "run", trial.plan.sites, "clinics")


def test_a_plan_that_fits_is_refused_by_neither(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + SUM_TEXT)
    where = trial.folders["clinic-a"]
    assert shown(where, trial.plan) == ()
    assert refusal_at_hello(where, trial.plan) == ""


def test_keys_that_a_site_refuses_are_shown(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + SUM_TEXT)
    where, plan = trial.folders["clinic-a"], trial.plan
    own = plan.party("clinic-b").identity
    for changed, reason in (
        (with_keys(plan, clinic_b=""), "the plan has no key of clinic-b"),
        (with_keys(plan, clinic_c=own), "two sites of the plan have the same key"),
        (with_keys(plan, clinic_a="ab" * 32), "the key of this site in the plan is not its own"),
    ):
        assert any(reason in line for line in shown(where, changed))
        (where / "partners.json").unlink()
        consent.accept(where, changed)
        said = refusal_at_hello(where, changed)
        assert reason in said or "the keys of clinic-b have not been compared" in said
    settings = read_site(where)
    assert look_at(where, settings, with_keys(plan, clinic_b=""), draft=True).refused == ()


def test_a_changed_key_of_a_partner_is_shown(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + NOISE_TEXT)
    where = trial.folders["clinic-a"]
    changed = with_keys(trial.plan, clinic_b="ab" * 32)
    partners = {one.name: one for one in look_at(where, read_site(where), changed).partners}
    assert partners["clinic-b"].changed
    assert not partners["clinic-c"].changed


def test_a_policy_that_promises_less_than_before_is_shown(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + NOISE_TEXT)
    where = trial.folders["clinic-a"]
    assert refusal_at_hello(where, trial.plan) == ""  # creates the ledger with its limit
    path = where / "site.toml"
    text = path.read_text()
    for change, reason in (
        (("largest_epsilon = 1000.0", "largest_epsilon = 2000.0"), "promised its people a limit of ε = 1000"),
        (("largest_epsilon = 1000.0", "largest_epsilon = 1000.0\ndelta = 1e-7"), "policy.delta: earlier charges"),
    ):
        path.write_text(text.replace(*change))
        assert any(reason in line for line in shown(where, trial.plan))
        assert reason in refusal_at_hello(where, trial.plan)


def test_data_that_changed_since_the_start_are_shown(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + NOISE_TEXT, rounds=1)
    assert trial.run() == "finished"
    where = trial.folders["clinic-a"]
    assert shown(where, trial.plan) == ()
    letor_file(where / "train.txt", queries=12, longest=8, seed=99, comment="patient = {query}")
    assert any("have changed since it started to participate" in line for line in shown(where, trial.plan))
    assert "have changed since it started" in refusal_at_hello(where, trial.plan)


def test_a_site_without_queries_is_shown(tmp_path):
    (tmp_path / "corpus.jsonl").write_text("")
    settings = site_settings(OPEN, SiteData(documents=str(tmp_path / "corpus.jsonl")))
    assert any("no queries for training" in line for line in look_at(tmp_path, settings, made_plan()).refused)


def test_a_plan_that_a_shared_folder_cannot_carry_is_shown(tmp_path):
    settings = site_settings(replace(OPEN, placements=("client", "secure-aggregation", "server")))
    plans = made_plan(mechanism=SUM), made_plan(mechanism=NOISE | {"placement": "server"})
    for plan in plans:
        assert not any("folder" in line for line in look_at(tmp_path, settings, plan, draft=True).refused)
    (tmp_path / "folder.json").write_text("{}")
    (tmp_path / "transport.json").write_text(json.dumps({"format": 1, "transport": "folder", "shared": "/shared"}))
    for plan, reason in zip(plans, ("needs all sites online at once", "every reader of the folder"), strict=True):
        assert any(reason in line for line in look_at(tmp_path, settings, plan, draft=True).refused)
    assert look_at(tmp_path, settings, made_plan()).refused == ()


SERVER = NOISE | {"placement": "server"}


@pytest.mark.parametrize("limit", [None, 30.0])
def test_noise_at_the_server_after_noise_on_the_client_is_refused_in_words(tmp_path, limit):
    """No total ε holds then, which once raised OverflowError."""
    policy = replace(OPEN, placements=("client", "server"), largest_epsilon=limit)
    first, then = made_plan(mechanism=SERVER), made_plan()
    assert look_at(tmp_path, site_settings(policy), first).refused == ()

    def charge(plan):
        charging = Charging(tmp_path / "people", plan.digest[:32], 1, site_guarantees(plan), 1e-5, limit or UNLIMITED)
        try:
            charging.charge(1, np.zeros(1, dtype=np.int64))
        finally:
            charging.close()

    charge(first)
    [line] = look_at(tmp_path, site_settings(policy), then).refused
    assert "no guarantee would hold any more against the server" in line
    assert "∞" not in line
    with pytest.raises(Refused, match="no guarantee would hold any more against the server"):
        charge(then)
    again = look_at(tmp_path, site_settings(policy), made_plan(mechanism=SERVER, rounds=11))
    assert again.refused == ()


def test_another_unit_than_earlier_runs_is_shown(tmp_path):
    people = {"count": 3, "interactions": 4, "people": 5}
    policy = replace(OPEN, unit="person", largest_epsilon=100.0)
    other = made_plan(clients=people, mechanism=NOISE | {"unit": "person"})
    charging = Charging(tmp_path / "people", other.digest[:32], 1, site_guarantees(other), 1e-5, 100.0)
    charging.charge(1, np.zeros(1, dtype=np.int64))
    charging.close()
    [line] = look_at(tmp_path, site_settings(policy), made_plan()).refused
    assert "other runs protect each person, this one each client" in line


def test_check_makes_the_same_checks(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + SUM_TEXT)
    where = trial.folders["clinic-a"]
    (where / "folder.json").write_text("{}")
    (where / "transport.json").write_text(json.dumps({"format": 1, "transport": "folder", "shared": "/shared"}))
    broken = with_keys(trial.plan, clinic_b="")
    said = {line.said for line in check(where, broken) if line.state == "wrong"}
    assert any("the plan has no key of clinic-b" in one for one in said)
    assert any("not possible in a folder" in one for one in said)
    drafted = {line.said for line in check(where, broken, draft=True) if line.state == "wrong"}
    assert not any("the plan has no key" in one for one in drafted)


def test_a_site_without_its_own_key_is_shown(tmp_path):
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
        new_identity(folder)
    keys = [read_identity(folder).public for folder in folders]
    plan = made_plan(mechanism=SUM, identities=keys)
    home = tmp_path / "home"
    home.mkdir()
    assert any("messages cannot be signed" in line for line in look_at(home, site_settings(OPEN), plan).refused)
    assert look_at(tmp_path / "0", site_settings(OPEN), plan).refused == ()


def test_a_started_run_keeps_the_plan_that_sites_accepted(tmp_path):
    """An override makes another plan: before the run it is what sites see, afterwards it is refused."""
    trial = RealTrial(tmp_path, LINEAR + NOISE_TEXT, rounds=2)
    changed = read_spec(tmp_path / "spec.toml", ["rounds=3"])

    def planned(grid, name="trial"):
        return plan_runs(grid, name, tmp_path / "run", trial.plan.sites, "clinics")

    [(task, plan)] = planned(changed)
    assert (plan.rounds, "rounds = 3" in plan.spec) == (3, True)
    [(task, plan)] = planned(trial.grid)
    task.folder.mkdir(parents=True)
    (task.folder / "plan.json").write_bytes(plan.dump())
    assert [one.digest for _, one in planned(trial.grid)] == [plan.digest]
    with pytest.raises(
        ValueError, match=r"its spec is rounds = 2, but now it is rounds = 3; restore the previous spec and --set"
    ):
        planned(changed)
    assert planned(changed, "another")[0][1].rounds == 3
