"""Texts of queries leave a data set."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedrank.data.describe_log import notes
from fedrank.data.logs import FACTS, load_log
from fedrank.data.redaction import EARLIER, RARE, Redaction, redact_log
from tests.made_up import made_up_log, made_up_shown

CLICK_MODELS = [0, 1, 0, 0, 2, 2]  # query 0 is asked by two, others by one


def test_texts_go_and_all_else_stays(tmp_path):
    queries = ["both ask", "mail a@b.org", "alone"]
    log = made_up_shown(tmp_path / "log", CLICK_MODELS, queries=queries)
    others = {path: path.read_bytes() for path in log.folder.iterdir() if path.name not in ("queries.txt", FACTS)}
    found = redact_log(log.folder, Redaction(people=2))
    assert found.queries == ("both ask", "[redacted 1]", "[redacted 2]")
    assert found.facts["redacted"] == {"an e-mail address": 1, RARE: 1}
    assert {path: path.read_bytes() for path in others} == others
    assert np.array_equal(found.features, log.features)
    assert oct((log.folder / "queries.txt").stat().st_mode & 0o777) == "0o600"
    assert "redacted, asked by too few: 1 queries, whose text is not stored" in notes(found.facts)


def test_again_it_goes_on_where_it_was(tmp_path):
    folder = made_up_shown(tmp_path / "log", CLICK_MODELS, queries=["both ask", "mail a@b.org", "alone"]).folder
    redact_log(folder, Redaction(people=1))
    found = redact_log(folder, Redaction(people=9))
    assert found.queries == ("[redacted 2]", "[redacted 1]", "[redacted 3]"), "nobody gets another one's number"
    assert found.facts["redacted"] == {"an e-mail address": 1, RARE: 2}
    assert redact_log(folder, Redaction(people=9)).facts == found.facts


def test_killed_before_the_count(tmp_path):
    folder = made_up_shown(tmp_path / "log", CLICK_MODELS).folder
    facts = json.loads((folder / FACTS).read_text())
    redact_log(folder, Redaction(people=9))
    (folder / FACTS).write_text(json.dumps(facts))
    assert redact_log(folder, Redaction(people=9)).facts["redacted"] == {EARLIER: 3}


def test_logs_with_made_up_lists_have_texts_too(tmp_path):
    folder = made_up_log(tmp_path / "log", CLICK_MODELS)
    assert set(redact_log(folder, Redaction()).queries) == {f"[redacted {i}]" for i in range(1, 7)}
    assert load_log(folder).target is not None


def test_lists_are_not_dropped(tmp_path):
    with pytest.raises(ValueError, match="build it again with --drop-redacted"):
        redact_log(made_up_log(tmp_path / "log", CLICK_MODELS), Redaction(what="drop"))
    with pytest.raises(FileNotFoundError):
        redact_log(tmp_path / "nothing", Redaction())
    assert not (tmp_path / "nothing").exists()
