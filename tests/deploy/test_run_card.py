"""The card of a deployed run states what crossed the wire."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace

import pytest

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.heads import split
from fedrank.deploy.received import HEADS, RECEIVED, ReceivedAnswers, Total, read_totals
from fedrank.deploy.run_card import COLLUDERS
from fedrank.experiments.report.impact import TO_FILL_IN, impact, read_assessed
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.runner.folder import Card
from fedrank.wire import Label
from tests.deploy.real_trial import LINEAR, NOISE, SUM, RealTrial

MEASURES = {"clinic-b": {"measures": '["ndcg@10"]', "plain_measures": "true"}}
HELD_OUT = {name: {"test_share": "0.25"} for name in ("clinic-a", "clinic-b")}
RUN = bytes(16)


class Wire:
    """A transport that counts what passes, with the heads behind each message."""

    with_heads = True

    def __init__(self) -> None:
        self.times, self.bytes, self.lock = Counter(), Counter(), threading.Lock()
        self.before_result = None

    def __call__(self, site, request, answer):
        found, asked = answer(), wire.read_label(request).kind
        message = split(found)[0]
        with self.lock:
            if asked == "result" and self.before_result is None:
                self.before_result = dict(self.times), dict(self.bytes)
            key = asked, wire.read_label(found).kind
            self.times[key] += 1
            self.bytes[key] += len(message)
            if len(message) < len(found):
                self.times[HEADS, HEADS] += 1
                self.bytes[HEADS, HEADS] += len(found) - len(message)
        return found


def card_of(trial: RealTrial) -> dict:
    return json.loads((trial.task.folder / "privacy.json").read_text())


@pytest.mark.parametrize("text", [LINEAR, LINEAR + NOISE, LINEAR + SUM], ids=["no noise", "noise", "secure"])
def test_the_card_lists_what_crossed_the_wire(tmp_path, text):
    trial, passed = RealTrial(tmp_path, text, rounds=2, policy=MEASURES, data=HELD_OUT), Wire()
    assert trial.run(passed) == "finished"
    card = card_of(trial)
    times, sizes = passed.before_result
    left = {(one["request"], one["answer"]): one for one in card["deployment"]["left"]}
    assert {key: one["times"] for key, one in left.items()} == times
    assert {key: one["bytes"] for key, one in left.items()} == sizes
    everything = read_totals(trial.task.folder / RECEIVED)
    assert sum(one.bytes for one in everything) == sum(passed.bytes.values())
    assert sum(one.times for one in everything) == sum(passed.times.values())
    updates = left["mask" if "secure" in text else "round", "letters" if "secure" in text else "answers"]
    assert ("gaussian, 2 x clip 0.5" in updates["noise"]) == ("mechanism" in text)
    measured = left["measure", "facts"]
    assert (measured["times"], measured["noise"]) == (1, "none")
    assert (trial.task.folder / "clients.csv").exists()
    assert not any("must not collect" in line for line in card["not_covered"])
    assert any("queries of clinic-b, which leave without noise" in line for line in card["not_covered"])
    assert f"{measured['bytes']:,} bytes; noise: none" in card["summary"]
    for where in trial.folders.values():
        [kept] = (where / "models").glob("*/privacy.json")
        assert json.loads(kept.read_text()) == card


def test_the_card_names_issuer_data_unit_and_retention(tmp_path, monkeypatch):
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=1)
    assert trial.run() == "finished"
    card = card_of(trial)
    assert card["issuer"] == "the coordinator of clinics"
    assert card["data"].startswith("clinic-a: judged queries; clinic-b: judged queries; ")
    assert "evaluated by the coordinator on" in card["data"]
    assert card["deployment"]["unit"] == "client"
    assert card["deployment"]["sites"]["clinic-a"] == {"data": "judged queries", "keep_days": None}
    found = Card.read(trial.task.folder)
    assert found is not None
    assert found.deployment == card["deployment"]


@pytest.mark.parametrize(
    ("federation", "said"), [("clinics", "cannot know who operates"), ("local", "one machine ran")]
)
def test_the_card_says_only_what_the_program_knows_of_the_machines(tmp_path, federation, said):
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=1)
    trial.plan = replace(trial.plan, federation=federation)
    for folder in trial.folders.values():
        settings = folder / "site.toml"
        settings.write_text(settings.read_text().replace("clinics", federation))
    assert trial.run() == "finished"
    card = card_of(trial)
    assert said in card["summary"]
    assert "own computer" not in card["summary"]
    assert card["deployment"]["one_machine"] is (federation == "local")


def test_colluders_with_noise_at_each_site_learn_nothing_more(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=1)
    assert trial.run() == "finished"
    card = card_of(trial)
    rows = card["deployment"]["collusion"]
    assert [one["against"] for one in rows] == list(COLLUDERS)
    assert {one["epsilon"] for one in rows} == {card["promises"][0]["epsilon"]}


def test_with_three_sites_two_read_the_third(tmp_path):
    trial = RealTrial(tmp_path, LINEAR + SUM, rounds=1)
    assert trial.run() == "finished"
    card = card_of(trial)
    alone, one, two = [row["epsilon"] for row in card["deployment"]["collusion"]]
    # Two sites must be honest: one colluder leaves the planned noise, two leave half of its variance.
    assert alone == one == card["promises"][0]["epsilon"]
    assert 1.4 * alone < two < 2 * alone
    assert "two that collude read the update of the third" in card["summary"]


def test_without_noise_nothing_can_be_claimed(tmp_path):
    trial = RealTrial(tmp_path, LINEAR, rounds=1)
    assert trial.run() == "finished"
    assert {one["epsilon"] for one in card_of(trial)["deployment"]["collusion"]} == {None}


def test_refusals_are_counted(tmp_path):
    trial, passed = RealTrial(tmp_path, LINEAR, rounds=2, min_sites=2), Wire()
    (trial.folders["clinic-c"] / "consent.json").unlink(missing_ok=True)
    settings = trial.folders["clinic-c"] / "site.toml"
    settings.write_text(settings.read_text().replace("within-policy", "listed").replace('"pdgd", ', ""))
    assert trial.run(passed) == "finished"
    refused = [one for one in card_of(trial)["deployment"]["left"] if one["answer"] == "refused"]
    times, sizes = passed.before_result
    assert times["hello", "refused"] > 0
    for one in refused:
        assert one["noise"] == "none; not covered"
        assert (one["times"], one["bytes"]) == (times[one["request"], "refused"], sizes[one["request"], "refused"])
    assert card_of(trial)["deployment"]["sites"]["clinic-c"]["data"] == "not described"


def answered(received: ReceivedAnswers, site: str, kind: str, answer: bytes) -> None:
    done: Future[bytes] = Future()
    done.set_result(answer)
    received.recording(lambda site, content, patience: done)(site, protocol.request(kind, RUN), 1.0)


def test_totals_survive_a_restart_and_are_written_at_once(tmp_path):
    received, facts = ReceivedAnswers(tmp_path), protocol.reply("facts", Label("hello", RUN, 0), 1, facts=b"{}")
    answered(received, "a", "hello", facts)
    answered(received, "b", "hello", facts)
    answered(received, "a", "round", b"nonsense")
    answered(received, "a", "hello", facts)
    expected = [
        Total("a", "hello", "facts", 2, 2 * len(facts)),
        Total("b", "hello", "facts", 1, len(facts)),
        Total("a", "round", "unknown", 1, 8),
    ]
    assert read_totals(tmp_path / RECEIVED) == expected  # before totals() is called
    with (tmp_path / RECEIVED).open("a") as file:
        file.write("b,round,ans")  # killed while it wrote
    again = ReceivedAnswers(tmp_path)
    answered(again, "b", "hello", facts)
    assert again.totals() == [expected[0], replace_times(expected[1]), expected[2]]
    assert (tmp_path / RECEIVED).stat().st_mode & 0o077 == 0


def replace_times(one: Total) -> Total:
    return one._replace(times=2 * one.times, bytes=2 * one.bytes)


def test_a_damaged_record_is_an_error(tmp_path):
    (tmp_path / RECEIVED).write_text("site,request,answer,times,bytes\na,hello,facts,x,1\n")
    with pytest.raises(ValueError, match=r"received\.csv is damaged"):
        ReceivedAnswers(tmp_path)


def test_a_description_of_another_type_or_length_is_not_used(tmp_path):
    received = ReceivedAnswers(tmp_path)
    for site, data in {
        "a": [1],
        "b": {"kind": 7, "keep_days": True},
        "c": {"kind": "x\n" * 500, "keep_days": 9},
    }.items():
        content = protocol.facts({"data": data})
        answered(received, site, "hello", protocol.reply("facts", Label("hello", RUN, 0), 1, facts=content))
    assert "a" not in received.described
    assert received.described["b"] == {"data": "not described", "keep_days": None}
    assert received.described["c"] == {"data": "x " * 100, "keep_days": 9}


def test_a_card_with_invalid_entries_is_refused(tmp_path):
    card = Card(mechanism=None, who_sees_what="", delta=0.0, budget=None)
    wrong = {"sites": {}, "coordinator": "", "left": [{"what": "updates"}], "collusion": []}
    replace(card, deployment=wrong).write(tmp_path)
    with pytest.raises(ValueError, match=r"lacks|deployment.left\[0\]"):
        Card.read(tmp_path)


def test_the_draft_of_an_impact_assessment_fills_in_what_files_know(tmp_path):
    """38 entries were left to complete before the card listed what left."""
    trial = RealTrial(tmp_path, LINEAR + NOISE, rounds=1, policy=MEASURES, data=HELD_OUT)
    assert trial.run() == "finished"
    text = markdown(impact(read_assessed(trial.task.folder)))
    assert text.count(TO_FILL_IN.strip()) <= 20
    assert "Sites that took part: clinic-a, clinic-b, clinic-c." in text
    assert "clinic-a: judged queries" in text
    assert "Retention of data: clinic-a: no limit stated" in text
    card = card_of(trial)
    for one in card["deployment"]["left"]:
        assert f"| {one['what']} | {one['times']:,} | {one['bytes']:,} |" in text
    assert "for the ranking before" in text
    assert "no query, document or user id left a site in plain text" in text
    assert "ndcg@10 from " in text


def test_a_recorded_transport_says_of_itself_what_the_transport_says(tmp_path):
    """In a shared folder, an answer may have the nonce of an earlier process of the coordinator."""

    def send(site, content, patience):
        raise NotImplementedError

    received = ReceivedAnswers(tmp_path)
    assert not received.recording(send).keeps_requests
    send.keeps_requests = True
    assert received.recording(send).keeps_requests
