"""The journal of what left a site that is one person: before it does, once for each time, whoever is killed."""

from __future__ import annotations

from fedrank.deploy.sent_log import LEFT, SentLog, what_was_sent
from fedrank.wire import Label


def asked(round, kind="round", run=bytes(16)):
    return Label(kind, run, round)


def test_every_answer_is_there_and_the_same_refusal_is_counted(tmp_path):
    assert what_was_sent(tmp_path) == []
    journal = SentLog(tmp_path)
    journal.note(asked(1), "answers", 500)
    for _ in range(100):
        journal.note(asked(2), "refused", 80)
        journal.note(asked(0, "hello"), "facts", 400)
    journal.note(asked(2), "answers", 501)
    found = what_was_sent(tmp_path)
    assert [(one.what, one.times, one.bytes) for one in found] == [
        ("round 1: answer to round", 1, 500),
        ("round 2: refusal with its reason", 100, 8_000),
        ("round 0: answer to hello", 100, 40_000),
        ("round 2: answer to round", 1, 501),
    ]
    assert (tmp_path / LEFT).stat().st_size < 700
    assert (tmp_path / LEFT).stat().st_mode & 0o777 == 0o600


def test_another_process_goes_on_and_another_run_begins_a_new_line(tmp_path):
    SentLog(tmp_path).note(asked(1), "refused", 80)
    journal = SentLog(tmp_path)
    journal.note(asked(1), "refused", 80)
    journal.note(asked(1, run=b"x" * 16), "refused", 80)
    assert [(one.times, one.bytes) for one in what_was_sent(tmp_path)] == [(2, 160), (1, 80)]


def test_half_a_line_of_somebody_who_was_killed_is_gone_and_a_damaged_one_is_told(tmp_path):
    path = tmp_path / LEFT
    SentLog(tmp_path).note(asked(1), "answers", 500)
    whole = path.read_bytes()
    journal = SentLog(tmp_path)
    for cut in range(1, len(whole)):
        path.write_bytes(whole + whole[:cut])
        assert len(what_was_sent(tmp_path)) == 1
        journal.note(asked(2), "answers", 7)
        assert [one.bytes for one in what_was_sent(tmp_path)] == [500, 7]
    path.write_bytes(b"nothing\n" + whole)
    journal.note(asked(1), "answers", 1)
    first, second = what_was_sent(tmp_path)
    assert "line 1 of" in first.what
    assert second.bytes == 501
    path.unlink()
    journal.note(asked(1), "answers", 1)
    assert [one.bytes for one in what_was_sent(tmp_path)] == [1]
