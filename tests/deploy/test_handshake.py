"""The handshake by itself, with sites that are functions."""

from __future__ import annotations

import pytest

from fedrank.deploy import protocol, site_calls
from fedrank.deploy.handshake import Differs, Handshake
from fedrank.deploy.heads import Witness
from fedrank.wire import Part
from tests.deploy.fake_sites import calls_to, facts, stranger
from tests.deploy.plans import SUM, made_plan


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    monkeypatch.setattr(site_calls, "PAUSE", 0.01)


def read_note(content, label):
    return protocol.read(content, label, {"note": Part("|S", 10)})["note"]


def note(plan, name, label):
    return protocol.reply("answers", label, plan.party(name).clients[0], note=b"here")


def test_hello_ends_when_enough_sites_have_answered_and_greets_nobody_twice():
    plan, heard, away = made_plan(), [], {"clinic-b": 1, "clinic-c": 100}

    def answer(name, content, label):
        heard.append((name, label.round))
        away[name] = away.get(name, 0) - 1
        return None if away[name] >= 0 else facts(plan, name, label, measures=["mrr"] if name == "clinic-b" else [])

    handshake = Handshake(calls_to(plan, answer))
    handshake.hello(over=4)
    assert [name for name, _ in heard] == ["clinic-a", "clinic-b", "clinic-c", "clinic-b", "clinic-c"]
    assert {over for _, over in heard} == {4}
    assert handshake.reporting == {"clinic-b"}


def test_sites_that_fail_at_their_own_settings_end_the_run_with_their_reason(monkeypatch):
    monkeypatch.setattr("fedrank.deploy.handshake.MAX_FAILURES", 3)
    plan, heard = made_plan(), []

    def answer(name, content, label):
        heard.append(name)
        reason = f"{protocol.SITE_FAILS[0]} (FileNotFoundError); the reason is in its log"
        return protocol.refusal(label, plan.party(name).clients[0], reason)

    with pytest.raises(
        Differs, match=r"2 sites are needed, but 3 of 3 refuse or fail.*clinic-a: something is wrong.*NotFound"
    ):
        Handshake(calls_to(plan, answer)).hello()
    assert heard.count("clinic-a") == 3


@pytest.mark.parametrize("reason", ["this site refused run 'trial' on 2026-01-01: not our question", None])
def test_sites_that_refuse_the_plan_end_the_run_with_their_reason(reason):
    plan = made_plan()

    def answer(name, content, label):
        if name == "clinic-a":
            return facts(plan, name, label)
        why = reason or f"{protocol.REFUSED[1]}: rounds: 10 is more than policy.most_rounds = 3"
        return protocol.refusal(label, plan.party(name).clients[0], why)

    with pytest.raises(
        Differs, match=r"2 sites are needed, but 2 of 3 refuse or fail.*clinic-b: .*; clinic-c: "
    ) as end:
        Handshake(calls_to(plan, answer)).hello()
    assert (reason or "policy.most_rounds = 3") in str(end.value)


def test_a_plan_that_nobody_accepted_yet_is_waited_for(monkeypatch):
    monkeypatch.setattr("fedrank.deploy.handshake.MAX_FAILURES", 3)
    plan, heard = made_plan(), []

    def answer(name, content, label):
        heard.append(name)
        if heard.count(name) < 8:
            return protocol.refusal(label, plan.party(name).clients[0], "the plan is not accepted at this site")
        return facts(plan, name, label)

    Handshake(calls_to(plan, answer)).hello()


def test_a_site_that_was_restarted_is_greeted_and_asked_again():
    plan, greeted, traffic = made_plan(), {"clinic-a", "clinic-b"}, []

    def answer(name, content, label):
        if label.kind == "hello":
            greeted.add(name)
            return facts(plan, name, label)
        return note(plan, name, label) if name in greeted else stranger(plan, name, label)

    handshake = Handshake(calls_to(plan, answer), over=2)
    requests = {site.name: protocol.request("round", plan.run, 3) for site in plan.sites}
    found, why = handshake.ask_for_round(requests, 3, read_note, 0, traffic)
    assert (found, why) == (dict.fromkeys(("clinic-a", "clinic-b", "clinic-c"), b"here"), {})
    assert [(one.site, bool(one.reason)) for one in traffic] == [
        ("clinic-a", False), ("clinic-b", False), ("clinic-c", True), ("clinic-c", False),
    ]  # fmt: skip


def test_a_restarted_site_that_no_longer_fits_is_no_reason_for_others_to_stop():
    plan = made_plan()
    calls = calls_to(plan, lambda name, content, label: facts(plan, name, label, features=99))
    why = Handshake(calls).greet_strangers({"clinic-a": "is away", "clinic-c": protocol.SAY_HELLO})
    assert why["clinic-a"] == "is away"
    assert "clinic-c has features 99, the plan 5" in why["clinic-c"]


def test_nobody_is_greeted_where_nobody_is_a_stranger():
    assert Handshake(calls_to(made_plan(), None)).greet_strangers({"clinic-a": "is away"}) == {"clinic-a": "is away"}


def test_a_run_may_check_more_facts():
    plan = made_plan()

    def check(name, told):
        if "top_grade" not in told:
            raise Differs(f"{name} does not say its highest grade")

    calls = calls_to(plan, lambda name, content, label: facts(plan, name, label))
    with pytest.raises(Differs, match="clinic-a does not say its highest grade"):
        Handshake(calls, check=check).hello()


def test_keys_of_a_trial_come_from_its_sites_and_go_to_everybody():
    plan, introduced = made_plan(simulated=True, mechanism=SUM), {}

    def answer(name, content, label):
        id = plan.party(name).clients[0]
        if label.kind == "partners":
            introduced[name] = content
            return protocol.reply("letters", label, id, letters=b"")
        return facts(plan, name, label, identities={str(id): bytes([id] * 32).hex()})

    handshake = Handshake(calls_to(plan, answer), secure=True)
    handshake.hello()
    assert handshake.identities == {id: bytes([id] * 32) for id in range(3)}
    assert set(introduced) == {"clinic-a", "clinic-b", "clinic-c"}


def test_a_site_of_a_trial_without_keys_stops_a_secure_run():
    plan = made_plan(simulated=True, mechanism=SUM)
    calls = calls_to(plan, lambda name, content, label: facts(plan, name, label, identities={"0": "zz"}))
    with pytest.raises(Differs, match="clinic-a reports no signing keys"):
        Handshake(calls, secure=True).hello()


def test_keys_of_real_sites_stand_in_the_plan():
    keys = [bytes([id + 1] * 32).hex() for id in range(3)]
    handshake = Handshake(calls_to(made_plan(mechanism=SUM, identities=keys), None), secure=True)
    assert handshake.identities == {id: bytes([id + 1] * 32) for id in range(3)}


@pytest.mark.parametrize("shared", [False, True])
def test_sites_sign_for_each_other_after_hello_but_not_in_a_shared_folder(tmp_path, shared):
    plan, heard = made_plan(identities=["ab" * 32, "cd" * 32, "ef" * 32]), []

    def answer(name, content, label):
        heard.append((label.kind, name))
        if name == "clinic-c":
            return None
        if label.kind == "witness":
            return protocol.reply("letters", label, plan.party(name).clients[0], letters=b"")
        return facts(plan, name, label)

    calls = calls_to(plan, answer, witness=Witness(tmp_path / "heads.txt"))
    send = calls.send
    calls.send = lambda *args: send(*args)
    calls.send.keeps_requests = shared
    handshake = Handshake(calls)
    handshake.hello()
    asked = [name for kind, name in heard if kind == "witness"]
    assert asked == ([] if shared else ["clinic-a", "clinic-b"])
    heard.clear()
    why = {"clinic-a": protocol.NOT_CONFIRMED}
    assert handshake.greet_strangers(why) == why
    assert [kind for kind, _ in heard] == [] if shared else ["witness", "witness"]
