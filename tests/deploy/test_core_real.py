"""Real sites without an engine: own data, seeds, policies and consent; what they send, and what they refuse."""

from __future__ import annotations

import csv
import json
import threading
import time

import numpy as np
import pytest

from fedrank import wire
from fedrank.deploy import consent, protocol, site_calls
from fedrank.deploy.plan import Plan
from fedrank.deploy.site import Site
from fedrank.experiments.report.write import write_report
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.spec.experiment import SpecError
from tests.deploy.plans import letor_file, made_plan
from tests.deploy.real_trial import LINEAR, NOISE, SUM, RealTrial

NEURAL = '[learner]\nname = "pdgd"\nranker = { name = "mlp", hidden = 3 }\n'
CASES = {
    "linear": LINEAR,
    "noise": LINEAR + NOISE,
    "laplace": LINEAR + NOISE.replace("gaussian", "laplace"),
    "secure sum": LINEAR + SUM,
    "server": LINEAR + NOISE + 'placement = { name = "server" }\n',
    "neural": NEURAL,
    "grades": '[learner]\nname = "lambdarank"\n',
    "evolution": '[server]\nname = "adam"\nrate = 0.1\n[learner]\nname = "evolution"\ntruth = 0.5\n'
    '[mechanism]\nname = "es-randomised-response"\n',
    "fedprox": LINEAR + '[local]\nname = "fedprox"\n',
    "fedper": NEURAL + '[local]\nname = "fedper"\n',
    "scaffold": NEURAL + '[local]\nname = "scaffold"\n',
    "median": '[aggregator]\nname = "median"\n' + LINEAR,
    "trust": '[aggregator]\nname = "trust"\n' + LINEAR,
}


def facts(trial: RealTrial) -> dict:
    return json.loads((trial.task.folder / "run.json").read_text())


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_real_sites_finish_a_run(tmp_path, case):
    trial = RealTrial(tmp_path, CASES[case])
    assert trial.run() == "finished", facts(trial)
    assert write_report(load_runs(trial.task.folder), tmp_path / "report.html").stat().st_size > 1000
    with (trial.task.folder / "rounds.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [row["round"] for row in found] == ["1", "2", "3", "4"]
    assert all(row["online"] == "" for row in found)  # nobody but a simulation sees that
    assert float(found[-1]["ndcg@10"]) > 0
    card = json.loads((trial.task.folder / "privacy.json").read_text())
    assert card["what"] == "deployed run"
    assert "Sites that participated: clinic-a, clinic-b, clinic-c." in card["summary"]
    for name in trial.names:
        kept = trial.folders[name] / "models" / trial.plan.digest[:16]
        mine, all_ = (json.loads((where / "model.json").read_text())["weights"] for where in (kept, trial.task.folder))
        assert mine[: trial.plan.sent] == all_[: trial.plan.sent]
        assert (mine == all_) == (case != "fedper")  # there everybody keeps a part
        assert len(mine) == trial.plan.parameters
        assert json.loads((kept / "privacy.json").read_text())["what"] == "deployed run"
        assert len(trial.outbox(name)) == 4
        if "mechanism" in CASES[case]:
            assert trial.paid(name) == 4
    if "mechanism" in CASES[case]:
        assert card["participations_charged"] in (4, None)


def test_sites_draw_by_seeds_of_their_own(tmp_path):
    """Whoever knows the plan, and the seed in it, cannot repeat what a site did."""
    trial = RealTrial(tmp_path, LINEAR, rounds=1)
    assert trial.run() == "finished"
    seeds = {(folder / "seed").read_text() for folder in trial.folders.values()}
    assert len(seeds) == 3
    assert all((folder / "seed").stat().st_mode & 0o077 == 0 for folder in trial.folders.values())
    assert str(trial.plan.seed) not in {seed.strip() for seed in seeds}


@pytest.mark.usefixtures("unconfirmed")
def test_measures_are_reported_where_the_policy_lists_them_and_once(tmp_path):
    trial = RealTrial(
        tmp_path,
        policy={"clinic-b": {"measures": '["ndcg@10"]', "plain_measures": "true"}},
        data={name: {"test_share": "0.25"} for name in ("clinic-a", "clinic-b")},
    )
    asked = {}

    def listen(name, request, answer):
        found = answer()
        if wire.read_label(request).kind == "measure":
            asked[name] = request, found
        return found

    assert trial.run(listen) == "finished"
    with (trial.task.folder / "clients.csv").open() as file:
        [row] = csv.DictReader(file)
    assert (row["client"], row["queries"]) == ("20", "3")
    assert 0 < float(row["ndcg@10"]) <= 1
    assert set(asked) == {"clinic-b"}
    with Site.open(trial.folders["clinic-a"]) as site:
        site.answer(trial.hello())
        assert b"does not report measures" in site.answer(asked["clinic-b"][0])
    with Site.open(trial.folders["clinic-b"]) as site:
        site.answer(trial.hello())
        assert site.answer(asked["clinic-b"][0]) == asked["clinic-b"][1]
        other = wire.pack(
            wire.Label("measure", trial.plan.run, 4), {"weights": np.ones(trial.plan.sent, dtype=np.float32)}
        )
        assert b"not answered twice" in site.answer(other)


def test_people_are_the_unit(tmp_path):
    text = LINEAR + NOISE + 'unit = "person"\n'
    people = {name: {"person": '"patient"'} for name in ("clinic-a", "clinic-b", "clinic-c")}
    trial = RealTrial(tmp_path, text, clients="interactions = 1\npeople = 15", data=people)
    assert trial.run() == "finished", facts(trial)
    card = json.loads((trial.task.folder / "privacy.json").read_text())
    assert {row["unit"] for row in card["promises"]} == {"person"}
    assert trial.paid("clinic-a") == 4


def test_a_site_with_more_people_than_planned_says_so_in_its_log_alone(tmp_path):
    text = LINEAR + NOISE + 'unit = "person"\n'
    people = {name: {"person": '"patient"'} for name in ("clinic-a", "clinic-b", "clinic-c")}
    trial = RealTrial(tmp_path, text, clients="interactions = 1\npeople = 5", data=people)
    with Site.open(trial.folders["clinic-a"]) as site:
        answer = site.answer(trial.hello())
    assert wire.read_label(answer).kind == "refused"
    assert b"12" not in answer
    assert "12" in (trial.folders["clinic-a"] / "site.log").read_text()


@pytest.mark.parametrize("rule", ['"fedasync"', '"fedbuff"\nsize = 2'])
@pytest.mark.parametrize("noise", ["", NOISE])
def test_a_slow_site_never_blocks_the_others(tmp_path, rule, noise):
    trial = RealTrial(tmp_path, LINEAR + noise, rule=rule, rounds=8)
    over = threading.Event()

    def slow(name, request, answer):
        if name == "clinic-c" and wire.read_label(request).kind == "round":
            over.wait(20)
        return answer()

    until = time.monotonic() + 20

    def stop():
        if trial.task.folder.joinpath("timing.csv").exists():
            rounds = trial.task.folder.joinpath("timing.csv").read_text().count("\n") - 1
            if rounds >= 5:
                over.set()
                return True
        return time.monotonic() > until

    assert trial.run(slow, stop) == "interrupted"  # the coordinator ends in between
    done = facts(trial)["round"]
    assert done >= 5
    assert trial.run() == "finished", facts(trial)
    with (trial.task.folder / "sites.csv").open() as file:
        heard = list(csv.DictReader(file))
    assert not [row for row in heard if row["refused"]], heard
    assert sum(len(trial.outbox(name)) for name in trial.names) >= 8
    if noise:
        assert all(trial.paid(name) == len(trial.outbox(name)) for name in trial.names)


def test_in_step_out_of_step(tmp_path):
    trial = RealTrial(tmp_path, rule='"sync"', rounds=3)
    assert trial.run() == "finished", facts(trial)
    assert [len(trial.outbox(name)) for name in trial.names] == [3, 3, 3]


def test_sites_that_differ_stop_before_the_first_round_and_are_listed(tmp_path):
    trial = RealTrial(tmp_path, data={"clinic-b": {"normalise": '"query"'}})
    letor_file(trial.folders["clinic-c"] / "train.txt", queries=5, longest=5, features=7, seed=1)
    assert trial.run() == "failed"
    message = facts(trial)["error"]["message"]
    assert "clinic-b has normalised query, the plan none" in message
    assert f"clinic-c has features 7, the plan {trial.plan.features}" in message
    assert "clinic-a" not in message
    assert not any(len(trial.outbox(name)) for name in trial.names)


def test_another_version_stops_before_the_first_round(tmp_path):
    trial = RealTrial(tmp_path)
    other = Plan.load(trial.plan.dump())
    object.__setattr__(other, "version", "9.9.9")

    def newer(name, request, answer):
        label = wire.read_label(request)
        if name != "clinic-b" or label.kind != "hello":
            return answer()
        with Site.open(trial.folders[name]) as site:
            found = wire.unpack(
                site.answer(protocol.request("hello", trial.plan.run, plan=other.dump())),
                wire.Label("facts", trial.plan.run, 0, 0, 20),
                {"facts": wire.Part("|S", 10_000)},
            )[1]["facts"]
        told = json.loads(found)
        assert set(told) == {"version", "protocol"}  # which is all that can be said of a plan of another version
        return protocol.reply("facts", label, 20, facts=protocol.facts(told | {"version": "9.9.9"}))

    with Site.open(trial.folders["clinic-a"]) as a, Site.open(trial.folders["clinic-c"]) as c:
        answering = {"clinic-a": a.answer, "clinic-b": None, "clinic-c": c.answer}
        assert trial.run_with(answering, newer) == "failed"
    assert "clinic-b has version 9.9.9, the plan 0." in facts(trial)["error"]["message"]


def test_a_history_is_recorded_where_policies_allow_it(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + NOISE, top="record_every = 2")
    assert trial.run() == "finished", facts(trial)
    assert any((trial.task.folder / "history").iterdir())


def test_a_history_is_refused_where_a_policy_does_not_allow_it(tmp_path, monkeypatch):
    monkeypatch.setattr(site_calls, "PAUSE", 0.05)
    trial = RealTrial(tmp_path, top="record_every = 2", policy={"clinic-a": {"history": "false"}}, min_sites=3)
    seen = []
    assert trial.run(lambda name, request, answer: _note(seen, answer()), lambda: len(seen) > 6) == "failed"
    assert any(b"policy.history = false" in one for one in seen)
    reason = load_runs(trial.task.folder)[0].reason
    assert "3 sites are needed, but 1 of 3 refuse or fail" in reason
    assert "clinic-a: the policy of this site refuses the plan: record_every" in reason
    assert "crashed" not in facts(trial)["error"], "no traceback is shown"


def _note(seen, answer):
    seen.append(answer)
    return answer


def test_changed_data_are_refused_in_the_middle_of_a_run(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=6)
    seen = []
    assert trial.run(lambda n, r, a: _note(seen, a()), lambda: len(seen) > 10) == "interrupted"
    done = len(trial.outbox("clinic-b"))
    path = trial.folders["clinic-b"] / "train.txt"
    before = path.read_text()
    path.write_text(before.replace("1:0.", "1:1.", 1))
    assert path.read_text() != before
    with Site.open(trial.folders["clinic-b"]) as site:
        assert b"data of this site have changed" in site.answer(trial.hello())
    assert trial.run() == "finished"  # with the others
    assert len(trial.outbox("clinic-b")) == done
    assert "data of this site have changed" in (trial.task.folder / "sites.csv").read_text()
    path.write_text(before)
    with Site.open(trial.folders["clinic-b"]) as site:
        assert wire.read_label(site.answer(trial.hello())).kind == "facts"


@pytest.mark.usefixtures("unconfirmed")
def test_rounds_beyond_the_plan_and_before_it(tmp_path):
    trial = RealTrial(tmp_path, rounds=3)
    calls = {}

    def listen(name, request, answer):
        if wire.read_label(request).kind == "round":
            calls[wire.read_label(request).round] = request
        return answer()

    assert trial.run(listen) == "finished"
    with Site.open(trial.folders["clinic-a"]) as site:
        site.answer(trial.hello(3))
        for round in (0, 4, 2**63):
            request = protocol.request("round", trial.plan.run, round, call=b"", asked=b"")
            assert f"between 1 and 3 (got {round})".encode() in site.answer(request)
        assert b"the plan has 3" in site.answer(trial.hello(4))


@pytest.mark.parametrize(("rule", "sites"), [("krum", 3), ("multi-krum", 4), ("bulyan", 4)])
def test_rules_that_need_more_sites_are_refused_by_name(tmp_path, rule, sites):
    with pytest.raises(SpecError, match="aggregator"):
        made_plan(sites=sites, mechanism=None, aggregator={"name": rule, "attackers": 0.25})


def test_rules_that_must_see_single_updates_are_refused_under_a_sum(tmp_path):
    with pytest.raises(ValueError, match="needs single updates"):
        RealTrial(tmp_path, '[aggregator]\nname = "median"\n' + LINEAR + SUM)


def test_a_refusal_at_a_site_holds_from_then_on(tmp_path):
    trial = RealTrial(tmp_path, rounds=6)

    def refuse(name, request, answer):
        if wire.read_label(request).kind == "round" and wire.read_label(request).round == 3 and name == "clinic-a":
            consent.refuse(trial.folders[name], trial.plan.digest, "our committee says no")
        return answer()

    assert trial.run(refuse) == "finished"
    assert [len(trial.outbox(name)) for name in trial.names] == [2, 6, 6]
    assert "our committee says no" in (trial.task.folder / "sites.csv").read_text()


@pytest.mark.parametrize("text", [LINEAR, LINEAR + NOISE, LINEAR + SUM])
def test_a_site_that_is_started_anew_is_greeted_anew(tmp_path, text):
    """It knows nothing of the run then, and loses no round for it."""
    trial = RealTrial(tmp_path, text, rounds=4)
    sites = {name: Site.open(where) for name, where in trial.folders.items()}

    def restart(name, request, answer):
        label = wire.read_label(request)
        if name == "clinic-b" and label.kind in ("round", "advertise") and label.round == 3:
            sites[name].close()
            sites[name] = Site.open(trial.folders[name])
            return sites[name].answer(request)
        return answer()

    restarted = []

    def once(name, request, answer):
        label = wire.read_label(request)
        if (name, label.kind, label.round) not in restarted:
            restarted.append((name, label.kind, label.round))
            return restart(name, request, answer)
        return answer()

    try:
        answering = {name: lambda content, name=name: sites[name].answer(content) for name in trial.names}
        assert trial.run_with(answering, once) == "finished", facts(trial)
    finally:
        for site in sites.values():
            site.close()
    assert [len(trial.outbox(name)) for name in trial.names] == [4, 4, 4]


def test_a_site_that_was_restarted_after_the_last_round_receives_the_model(tmp_path):
    trial, restarted = RealTrial(tmp_path, LINEAR, rounds=2), []

    def listen(name, request, answer):
        label = wire.read_label(request)
        if name == "clinic-b" and label.kind == "result" and not restarted:
            restarted.append(label.round)
            return protocol.refusal(label, 20, protocol.SAY_HELLO)
        return answer()

    assert trial.run(listen) == "finished"
    assert restarted == [2]
    assert list((trial.folders["clinic-b"] / "models").glob("*/model.json"))
    assert "did not receive" not in str(load_runs(trial.task.folder)[0].notes)
    assert json.loads((trial.task.folder / "sites.json").read_text())["last_refusal"] == ""


@pytest.mark.parametrize(
    ("key", "value", "word"), [("largest_epsilon", "2000.0", "ε = 1000"), ("delta", "1e-3", "δ = 1e-05")]
)
def test_a_policy_takes_back_no_promise(tmp_path, key, value, word):
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=1)
    assert trial.run() == "finished"
    path = trial.folders["clinic-a"] / "site.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key} =")]
    path.write_text("\n".join([*lines, f"{key} = {value}", ""]))
    with Site.open(trial.folders["clinic-a"]) as site:
        answer = site.answer(trial.hello())
    assert f"policy.{key}".encode() in answer
    assert word.encode() in answer


def test_a_site_counts_on_no_draw_of_the_coordinator(tmp_path):
    """Whoever draws may draw one site always: what it pays for a round is the price without any draw."""
    text = LINEAR + NOISE + 'placement = { name = "server" }\n'
    (tmp_path / "all").mkdir()
    (tmp_path / "some").mkdir()
    everybody = RealTrial(tmp_path / "all", text, rounds=2)
    some = RealTrial(tmp_path / "some", text, rounds=2, clients="interactions = 3\nparticipation = 0.5")
    events = []
    for trial in (everybody, some):
        with Site.open(trial.folders["clinic-a"]) as site:
            assert wire.read_label(site.answer(trial.hello())).kind == "facts"
            charging = site._runs[trial.plan.run].charging
            events.append([guarantee.event for guarantee in charging.terms.promises])
    assert events[0] == events[1]


def test_a_finished_run_is_not_begun_again(tmp_path):
    """The next job of a chain may start while the one before it finishes."""
    trial, asked = RealTrial(tmp_path, LINEAR, rounds=2), []
    assert trial.run() == "finished"
    before = {path.name: path.read_bytes() for path in trial.task.folder.iterdir() if path.is_file()}
    assert trial.run(lambda name, request, answer: asked.append(name) or answer()) == "finished"
    assert asked == []
    assert {path.name: path.read_bytes() for path in trial.task.folder.iterdir() if path.is_file()} == before
