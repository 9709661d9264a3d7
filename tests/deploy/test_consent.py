"""A site's word: by digest, with its date, for nobody else to read; and the keys of partners, which are pinned."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace

import pytest

from fedrank.deploy import consent
from fedrank.deploy.identity import fingerprint
from fedrank.deploy.settings import Policy
from tests.deploy.plans import SUM, made_plan

LISTED = Policy(("pdgd",), largest_epsilon=50.0)
FREE = replace(LISTED, accept="within-policy")
KEYS = tuple(f"{number:02x}" * 32 for number in (1, 2, 3))


def test_what_nobody_accepted_is_refused_and_kept_to_be_looked_at(tmp_path):
    plan = made_plan(identities=KEYS)
    why = consent.objection(tmp_path, plan, LISTED)
    assert "has not been accepted at this site" in why
    assert f"fedrank deploy accept {plan.digest[:12]}" in why
    assert consent.proposals(tmp_path) == [plan]
    assert consent.find_plan(tmp_path, plan.digest[:12]) == plan == consent.find_plan(tmp_path, "first")
    word = consent.accept(tmp_path, plan)
    assert word.digest == plan.digest
    assert word.at.startswith("20")
    assert consent.objection(tmp_path, plan, LISTED) is None
    assert consent.proposals(tmp_path) == []


def test_a_plan_that_says_anything_else_is_another_one(tmp_path):
    plan = made_plan(identities=KEYS)
    consent.accept(tmp_path, plan)
    assert consent.objection(tmp_path, replace(plan, min_sites=1), LISTED) is not None
    assert consent.objection(tmp_path, made_plan(identities=KEYS, rounds=11), LISTED) is not None


def test_a_policy_may_accept_by_itself(tmp_path):
    assert consent.objection(tmp_path, made_plan(identities=KEYS), FREE) is None
    assert not (tmp_path / consent.PROPOSED).exists()


def test_a_spec_is_accepted_whoever_takes_part(tmp_path):
    draft = made_plan()
    consent.accept_spec(tmp_path, draft)
    assert consent.objection(tmp_path, replace(draft, name="other", min_sites=3), LISTED) is None
    assert consent.objection(tmp_path, made_plan(rounds=11), LISTED) is not None
    assert consent.partners(tmp_path) == {}


def test_a_refusal_wins_and_says_why(tmp_path):
    plan = made_plan(identities=KEYS)
    consent.accept(tmp_path, plan)
    consent.refuse(tmp_path, plan.digest, "our board said no", plan.name)
    assert "our board said no" in consent.objection(tmp_path, plan, FREE)
    accepted, refused = consent.words(tmp_path)
    assert accepted == []
    assert [word.because for word in refused] == ["our board said no"]
    consent.accept(tmp_path, plan)
    assert consent.objection(tmp_path, plan, LISTED) is None
    with pytest.raises(ValueError, match="a refusal needs a reason"):
        consent.refuse(tmp_path, plan.digest, " ")


def test_a_refused_spec_is_refused_in_every_plan(tmp_path):
    plan = made_plan()
    consent.refuse(tmp_path, consent.spec_digest(plan), "no")
    assert "no" in consent.objection(tmp_path, plan, FREE)


def test_records_are_for_the_owner_alone(tmp_path):
    plan = made_plan(identities=KEYS)
    consent.objection(tmp_path, plan, LISTED)
    consent.accept(tmp_path, plan)
    consent.refuse(tmp_path, "ab" * 32, "no")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4  # proposed, accepted, refused, partners
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir() if path.is_dir()} == {0o700}


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"digest": "else", "run": "", "at": "", "because": ""}'])
def test_a_damaged_record_is_never_a_yes(tmp_path, damage):
    plan = made_plan(identities=KEYS)
    consent.accept(tmp_path, plan)
    (tmp_path / consent.ACCEPTED / f"{plan.digest}.json").write_text(damage)
    assert consent.objection(tmp_path, plan, LISTED) is not None
    consent.refuse(tmp_path, plan.digest, "no")
    (tmp_path / consent.REFUSED / f"{plan.digest}.json").write_text(damage)
    assert "cannot be read" in consent.objection(tmp_path, plan, FREE)


def test_accepting_pins_partners_and_another_key_is_refused_by_name(tmp_path):
    plan = made_plan(identities=KEYS)
    consent.accept(tmp_path, plan)
    assert consent.partners(tmp_path) == {"clinic-a": KEYS[0], "clinic-b": KEYS[1], "clinic-c": KEYS[2]}
    other = "0a" * 32
    changed = made_plan(identities=(KEYS[0], other, KEYS[2]))
    for policy in (FREE, LISTED):
        why = consent.objection(tmp_path, changed, policy)
        assert why is not None
    assert "the key of 'clinic-b' differs" in consent.objection(tmp_path, changed, FREE)
    with pytest.raises(ValueError, match="'clinic-b'") as problem:
        consent.accept(tmp_path, changed)
    assert fingerprint(KEYS[1]) in str(problem.value)
    assert fingerprint(other) in str(problem.value)
    assert consent.partners(tmp_path)["clinic-b"] == KEYS[1]
    assert consent.objection(tmp_path, changed, LISTED) is not None
    consent.accept(tmp_path, changed, compared=["clinic-b"])
    assert consent.partners(tmp_path)["clinic-b"] == other
    assert consent.objection(tmp_path, changed, LISTED) is None
    assert "'clinic-b'" in consent.objection(tmp_path, plan, LISTED)  # the old one is now the stranger


def test_a_secure_sum_needs_keys_that_somebody_compared(tmp_path):
    plan = made_plan(identities=KEYS, mechanism=SUM)
    why = consent.objection(tmp_path, plan, FREE)
    assert "the keys of clinic-a, clinic-b, clinic-c have not been compared" in why
    consent.accept(tmp_path, plan)
    assert consent.objection(tmp_path, plan, FREE) is None
    nobody = made_plan(mechanism=SUM)
    assert consent.objection(tmp_path / "other", nobody, FREE) is not None
    trial = made_plan(mechanism=SUM, simulated=True)
    assert consent.objection(tmp_path / "other", trial, FREE) is None


def test_keys_that_cannot_be_read_stop_everything(tmp_path):
    (tmp_path / consent.PARTNERS).write_text("[1]")
    with pytest.raises(ValueError, match="restore it from a backup"):
        consent.objection(tmp_path, made_plan(identities=KEYS), FREE)
    (tmp_path / consent.PARTNERS).write_text("{")
    with pytest.raises(ValueError, match="restore it from a backup"):
        consent.partners(tmp_path)


def test_nobody_fills_the_disk_with_plans(tmp_path):
    first = made_plan()
    for number in range(consent.MAX_PROPOSED + 3):
        path = consent.propose(tmp_path, replace(first, name=f"run-{number}"))
        os.utime(path, (number, number))
    kept = consent.proposals(tmp_path)
    assert len(kept) == consent.MAX_PROPOSED
    assert kept[0].name == f"run-{consent.MAX_PROPOSED + 2}"
    assert "run-0" not in {plan.name for plan in kept}


def test_plans_are_found_by_file_name_and_digits(tmp_path):
    plan, other = made_plan(), made_plan(rounds=11)
    path = consent.propose(tmp_path, plan)
    consent.propose(tmp_path, other)
    assert consent.find_plan(tmp_path, str(path)) == plan
    with pytest.raises(ValueError, match="matches several plans"):
        consent.find_plan(tmp_path, "first")
    with pytest.raises(FileNotFoundError, match=plan.digest[:12]):
        consent.find_plan(tmp_path, "nothing")
    with pytest.raises(FileNotFoundError):
        consent.find_plan(tmp_path, plan.digest[:3])
    (tmp_path / "bad.plan").write_text(json.dumps({"a": 1}))
    with pytest.raises(ValueError, match=r"bad\.plan: it is not a plan"):
        consent.find_plan(tmp_path, str(tmp_path / "bad.plan"))
    (tmp_path / consent.PROPOSED / "x.plan").write_text("{}")  # of another version
    assert len(consent.proposals(tmp_path)) == 2


def test_a_plan_with_an_accepted_spec_still_waits_for_keys(tmp_path):
    plan = made_plan(identities=KEYS, mechanism=SUM)
    consent.propose(tmp_path, plan)
    consent.accept_spec(tmp_path, plan)
    assert consent.proposals(tmp_path) == [plan]
    consent.accept(tmp_path, plan)
    assert consent.proposals(tmp_path) == []
