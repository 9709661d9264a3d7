"""A made-up production log has what real ones have."""

from __future__ import annotations

import json

import pytest

from fedrank.data.build_shown import ShownBuild, UbiSource, build_shown
from fedrank.data.click_caps import EVERYWHERE, ROBOT
from fedrank.data.describe_log import describe_log
from fedrank.data.synthetic_ubi import synthetic_ubi
from fedrank.data.ubi import FORGED, NO_QUERY, UbiRules
from tests.engine.schema import problems


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return synthetic_ubi(tmp_path_factory.mktemp("ubi"), 150, documents=400, topics=6, days=20)


@pytest.mark.long
def test_the_same_seed_gives_the_same_bytes(made, tmp_path):
    again = synthetic_ubi(tmp_path, 150, documents=400, topics=6, days=20)
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(made, again, strict=True))
    again[0].unlink()  # as if it had been stopped before
    again = synthetic_ubi(tmp_path, 150, documents=400, topics=6, days=20)
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(made, again, strict=True))
    with pytest.raises(FileExistsError, match="already exists with other contents"):
        synthetic_ubi(tmp_path, 2, documents=20, topics=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "corpus.jsonl",
        "ubi_events.ndjson",
        "ubi_queries.ndjson",
    ]


@pytest.mark.long
def test_what_is_read_of_it(made, tmp_path):
    how = ShownBuild(features="engine-1")
    log = build_shown(UbiSource(*made[:2]), made[2], tmp_path / "out", how)
    assert {"robot", "forger"}.isdisjoint(log.users)
    assert log.facts["capped"][EVERYWHERE]["lists"] >= 1
    assert log.facts["capped"][ROBOT]["lists"] == 400
    assert log.facts["left_out"][NO_QUERY]["rows"] == 60
    assert log.facts["noticed"][FORGED]["rows"] == 10, "each of ten documents was clicked once, and again"
    assert log.facts["redacted"]["an e-mail address"] > 0
    assert all("@" not in text for text in log.queries)
    told = describe_log(log).shown
    rates = told.clicked_at / told.shown_at
    assert rates[0] > 1.5 * rates[4] > 1.5 * rates[9], "people look from above"
    assert told.later_pages > 50
    assert told.dwell > 0
    people = build_shown(
        UbiSource(*made[:2]),
        made[2],
        tmp_path / "people",
        ShownBuild(ubi=UbiRules(person="user_id")),
    )
    assert len(people.users) < len(log.users)
    assert people.unit == "person"


@pytest.mark.long
def test_rows_are_as_the_schema_has_them(made):
    queries, events = ([json.loads(line) for line in path.read_text().splitlines()] for path in made[:2])
    for row in queries:
        assert problems("ubi-query", row) == []
    for row in events:
        found = problems("ubi-event", row)
        assert found == ([] if row["action_name"] == "click" else ["$.timestamp is no string"]), (
            "views have milliseconds"
        )
