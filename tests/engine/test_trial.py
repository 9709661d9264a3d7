"""Trials: what is read counts once and only if it can be true, decisions hold, and the way back is one step."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedrank.data.rows import RowReader, UnusableRow
from fedrank.engine import team_draft as draft
from fedrank.engine import trial as trial_module
from fedrank.engine import trial_events
from fedrank.engine.adoption import adopt, decide, read_current, roll_back
from fedrank.engine.start_trial import DRAFT, commands_of, plan_trial
from fedrank.engine.trial import EngineTrial, ForgottenEvents, find_trials
from fedrank.engine.trial_decision import DecidedSearch, TrialRules, judge, needed
from fedrank.engine.trial_events import BEFORE, parse_row
from fedrank.engine.trial_record import digest_of, read_plan
from fedrank.engine.trial_summary import about_reading
from fedrank.ranking import gate
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from tests.engine.schema import problems

BEGINNING = 1_800_000_000
OLD, NEW = ["a", "b", "c", "d"], ["a", "d", "c", "b"]


def a_model(path: Path, *weights: float) -> Path:
    save_model(Model(Linear(), np.array(weights), len(weights)), path)
    return path


@pytest.fixture
def models(tmp_path):
    return a_model(tmp_path / "old.json", 1.0, 0.5), a_model(tmp_path / "new.json", 0.5, 1.0)


@pytest.fixture
def planned(tmp_path, models):
    def plan(to="own", **more):
        rules, index = TrialRules(**more), "products" if to != "own" else ""
        return plan_trial(models[1], models[0], to, tmp_path / "trial", rules, index=index, who="ann")[0]

    return plan


def a_search(plan, number, client="x", wins=True, old=OLD, new=NEW, clicks=None):
    """Lines of one search that the new model wins, or loses."""
    search, time = f"s{number}", BEGINNING + 60 * number
    mixed = draft.team_draft(old, new, len(old), plan.key, search)
    clicked = clicks if clicks is not None else [next(one for one, team in mixed if team == ("new" if wins else "old"))]
    return [
        draft.search_line(mixed, old, new, search, client, time, plan.id),
        *(draft.click_line(search, client, time + 9, document) for document in clicked),
    ]


def a_file(path, lines):
    path.write_text("\n".join(line for some in lines for line in (some if isinstance(some, list) else [some])) + "\n")
    return path


def test_the_copied_draft_is_the_gates():
    """The file for other services mixes as ranking/gate.py does, coin for coin."""

    class Coins:
        turn = 0

        def integers(self, _):
            self.turn += 1
            return int(draft.coin("key", search, self.turn))

    rng = np.random.default_rng(3)
    for number in range(200):
        search, size = f"search {number}", int(rng.integers(1, 12))
        old, new = rng.permutation(size), rng.permutation(size)
        places = int(rng.integers(1, 13))
        expected = gate.team_draft(old, new, places, Coins())
        names = {gate.Team.OLD: "old", gate.Team.NEW: "new", gate.Team.NEITHER: "both"}
        found = draft.team_draft(old.astype(str), new.astype(str), places, "key", search)
        assert found == [(str(d), names[int(t)]) for d, t in zip(expected.shown, expected.team, strict=True)]
        shorter = draft.team_draft(
            list(old[:places].astype(str)), list(new[:places].astype(str)), places, "key", search
        )
        assert shorter == found, "what is logged is enough to mix again"
    assert 60 < sum(draft.coin("key", str(n), 1) for n in range(200)) < 140


def test_a_plan_is_written_once_and_read_back(planned, tmp_path, models):
    plan = planned()
    assert read_plan(tmp_path / "trial") == plan
    assert plan.new.digest == digest_of(models[1])
    assert (tmp_path / "trial" / "trial.json").stat().st_mode & 0o077 == 0, "it holds a key"
    with pytest.raises(FileExistsError, match="another trial"):
        planned()
    with pytest.raises(ValueError, match="same model"):
        plan_trial(models[0], models[0], "own", tmp_path / "other", TrialRules())
    with pytest.raises(ValueError, match="--index"):
        plan_trial(*models, "solr", tmp_path / "other", TrialRules())
    with pytest.raises(ValueError, match="unknown engine 'lucene'"):
        plan_trial(*models, "lucene", tmp_path / "other", TrialRules())
    assert not (tmp_path / "other").exists()
    source = (tmp_path / "trial" / DRAFT).read_text()
    assert "fedrank" not in "".join(re.findall(r"^(?:import|from) .*$", source, re.MULTILINE))


def test_rules_are_for_the_share_of_wins_that_is_worth_having():
    assert TrialRules.for_wins(0.6, liars=0).gate == TrialRules().gate
    # Without the 5 % of clients that win most, 55 of 95 remain.
    assert TrialRules.for_wins(0.6).gate.stake == pytest.approx(2 * 55 / 95 - 1, abs=1e-6)
    rows = {one.wins: one for one in needed(TrialRules.for_wins(0.55), (0.2, 0.5, 0.55), trials=300)}
    assert rows[0.5].adopted <= 0.05
    assert rows[0.55].adopted >= 0.8
    assert rows[0.2].median <= 25
    assert rows[0.55].low < rows[0.55].median < rows[0.55].high
    with pytest.raises(ValueError, match=r"between 0\.51 and 0\.94"):
        TrialRules.for_wins(0.5)
    with pytest.raises(ValueError, match=r"at least 0\.53 where 5% of the clients may be malicious"):
        TrialRules.for_wins(0.52)


def test_every_form_says_the_same(planned):
    plan = planned("solr")
    teams = [plan.new.name, plan.old.name, plan.new.name]
    shown, lists = ["d", "a", "c"], {"old": ["a", "d", "c"], "new": ["d", "c", "a"]}
    about = {"query_id": "s1", "client_id": "x", "timestamp": BEGINNING * 1000}
    whole = {"numFound": 3, "start": 0, "docs": []}
    whole["docs"] = [{"id": d, "score": 1.0, "[interleaving]": t} for d, t in zip(shown, teams, strict=True)]
    solr = {"responseHeader": {"status": 0}, "response": whole}
    hits = [
        {"_index": "i", "_id": d, "_score": 1.0, "_source": {}, "_search_configuration_id": t}
        for d, t in zip(shown, ("B", "A", "B"), strict=True)
    ]
    opensearch = {"test_id": "t", "hits": hits}
    assert not problems("solr-interleaved", solr)
    assert not problems("ab-answer", opensearch)
    forms = [
        {"search": "s1", "client": "x", "time": BEGINNING, "shown": shown, "teams": teams, **lists},
        {**about, "query_response_hit_ids": shown, "query_attributes": {"teams": teams, **lists}},
        {**about, "query_response_hit_ids": shown, "query_attributes.teams": teams, **_dotted(lists)},
        {**about, "timestamp": "2027-01-15T08:00:00Z", "response": solr, **lists},
        {**about, "response": whole, **lists},
        {**about, "response": opensearch, **lists},
        {**about, **opensearch, **lists},
    ]
    found = [parse_row(row, plan, {"A": "old", "B": "new"}) for row in forms]
    assert found == [("s1", "x", float(BEGINNING), ("d", "a", "c"), "nob", True)] * len(forms)
    clicks = [
        {"search": "s1", "client": "x", "clicked": "d", "team": plan.new.name},
        {"action_name": "click", "query_id": "s1", "client_id": "x",
         "event_attributes": {"object": {"object_id": "d"}, "team": plan.new.name}},
    ]  # fmt: skip
    assert {parse_row(row, plan, {}) for row in clicks} == {("s1", "d", "x", plan.new.name)}


def _dotted(lists):
    return {f"query_attributes.{name}": value for name, value in lists.items()}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"teams": ["new", "old"]}, "the numbers of teams and positions differ"),
        ({"teams": ["new", "old", "mine"]}, "not part of this trial"),
        ({"teams": ["new", "new", "new"]}, "one model only"),
        ({"teams": ["old", "new", "new"]}, "contradict"),
        ({"shown": ["d", "d", "c"]}, "duplicate document"),
        ({"shown": ["d", "a", {}]}, "invalid document id"),
        ({"shown": []}, "empty"),
        ({"shown": ["d"] * 1001}, "more than 1,000"),
        ({"teams": None}, "not part of the trial"),
        ({"trial": "another"}, "another trial"),
        ({"time": "soon"}, "time"),
        ({"time": None}, "time"),
        ({"search": ""}, "without an id"),
        ({"old": ["x"]}, "contradict"),
    ],
)
def test_what_cannot_be_is_not_counted(planned, change, reason):
    plan = planned("solr")
    row = {"search": "s1", "client": "x", "time": BEGINNING, "shown": ["d", "a", "c"], "teams": ["new", "old", "new"]}
    row |= {"old": ["a", "d", "c"], "new": ["d", "c", "a"]}
    assert parse_row(row, plan, {}).teams == "nob"
    with pytest.raises(UnusableRow, match=reason):
        parse_row(row | change, plan, {})


def test_a_draft_of_ones_own_is_mixed_again(planned):
    plan = planned()
    row = json.loads(a_search(plan, 1)[0])
    assert parse_row(row, plan, {}).known
    turned = [{"old": "new", "new": "old", "both": "both"}[team] for team in row["teams"]]
    with pytest.raises(UnusableRow, match="trial's key"):
        parse_row(row | {"teams": turned}, plan, {})


def test_what_both_would_choose_is_nobodys(planned):
    """An engine's draft gives it to one of them, by a coin."""
    plan = planned("solr")
    row = {"search": "s1", "client": "x", "time": BEGINNING, "shown": ["a", "d", "b", "c"]}
    row |= {"teams": ["old", "new", "old", "new"]}
    without = parse_row(row, plan, {})
    assert (without.teams, without.known) == ("onon", False)
    both = parse_row(row | {"old": OLD, "new": NEW}, plan, {})
    assert (both.teams, both.known) == ("bnon", True)


def solr_draft(old, new, rng):
    """As TeamDraftInterleaving of Solr's LTR module does it, for two orders of the same documents."""
    orders, shown, teams = {"old": list(old), "new": list(new)}, [], []
    while len(shown) < len(old):
        old_has, new_has = teams.count("old"), teams.count("new")
        team = "old" if old_has < new_has or (old_has == new_has and rng.random() < 0.5) else "new"
        shown.append(next(one for one in orders[team] if one not in shown))
        teams.append(team)
    return shown, teams


def opensearch_draft(old, new, rng):
    """As TeamDraftInterleaver of OpenSearch's search-relevance does it, for lists that may differ in all ways."""
    orders, shown, teams = {"old": list(old), "new": list(new)}, [], []
    size = max(len(old), len(new))
    while len(shown) < size:
        before = len(shown)
        for team in ("old", "new") if rng.random() < 0.5 else ("new", "old"):
            left = [one for one in orders[team] if one not in shown]
            if left and len(shown) < size:
                shown.append(left[0])
                teams.append(team)
        if len(shown) == before:
            break
    return shown, teams


@pytest.mark.parametrize("mix", [solr_draft, opensearch_draft])
def test_drafts_of_engines_are_understood(planned, mix):
    """Their lists are never refused; what both chose is found; and equal rankings win equally often."""
    plan, rng = planned("solr"), np.random.default_rng(8)
    wins = {"o": 0, "n": 0}
    for number in range(1500):
        size = int(rng.integers(1, 9))
        pool = [f"d{row}" for row in range(size if mix is solr_draft else size + int(rng.integers(3)))]
        old, new = (list(rng.permutation(pool))[: size if mix is solr_draft else int(rng.integers(1, size + 1))]
                    for _ in range(2))  # fmt: skip
        if number % 3 == 0:
            new = [*old[: len(old) // 2], *[one for one in new if one not in old[: len(old) // 2]]]
        if rng.random() < 0.5:
            old, new = new, old  # neither is longer than the other on the whole
        shown, teams = mix(old, new, rng)
        row = {"search": "s", "time": 1, "shown": shown, "teams": teams, "old": old, "new": new}
        if len(shown) > 1 and len(set(teams)) == 1:
            continue  # one list had nothing to add: it is not counted
        found = parse_row(row, plan, {})
        common = next((n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), None)
        if common is None or common > 0:
            assert found.teams[0] == "b", "both have the same first document"
        elif old[0] != new[0]:
            assert found.teams[0] in "on"
        own = [letter for letter in found.teams if letter != "b"]
        if own:
            wins[rng.choice(own)] += 1  # somebody clicks at random
    assert abs(wins["n"] - wins["o"]) < 3.5 * sum(wins.values()) ** 0.5


def test_each_thing_counts_once_however_it_is_read(planned, tmp_path):
    plan = planned(wait=0)
    trial = EngineTrial(tmp_path / "trial")
    lines = [a_search(plan, number, client=f"c{number}", wins=number % 3 > 0) for number in range(30)]
    first, whole = a_file(tmp_path / "first", lines[:20]), a_file(tmp_path / "whole", lines)
    assert trial.read([first]).searches == 20
    before = _files(tmp_path / "trial")
    again = trial.read([first])
    assert (again.searches, again.clicks, again.skipped) == (0, 0, (str(first),))
    assert _files(tmp_path / "trial") == before
    more = trial.read([whole], complete=True)
    assert (more.searches, more.clicks, more.known) == (10, 10, 40)
    judged = trial.judged()
    assert (judged.wins, judged.losses) == (20, 10)
    copied = a_file(tmp_path / "copied", [*lines, ""])
    trial.read([copied], complete=True)
    assert (trial.judged().wins, trial.judged().losses) == (20, 10)
    stored = "".join(path.read_text() for path in (tmp_path / "trial" / "events").iterdir())
    assert '"c7"' not in stored, "client ids are not kept"


def _files(folder):
    return {
        path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"
    }


def test_clicks_may_come_before_or_after_their_searches(planned, tmp_path):
    plan = planned(wait=600)
    trial = EngineTrial(tmp_path / "trial")
    lines = [a_search(plan, number, client=f"c{number}") for number in range(40)]
    searches, clicks = ([one[part] for one in lines] for part in (0, 1))
    trial.read([a_file(tmp_path / "early", clicks[:20])])
    assert trial.count().without_search == 20
    trial.read([a_file(tmp_path / "searches", searches)])
    count = trial.count()
    assert (len(count.decided), count.open) == (10, 30), "clicks are known until search 19, which is 10 minutes later"
    trial.read([a_file(tmp_path / "late", clicks[20:])])
    count = trial.count()
    assert (len(count.decided), count.open, count.late) == (30, 10, 0)
    trial.read([a_file(tmp_path / "none", [draft.click_line("s5", "c5", 0, "never shown")])], complete=True)
    count = trial.count()
    assert (len(count.decided), count.late, count.open, count.unclicked) == (40, 0, 0, 0)
    trial.read([a_file(tmp_path / "more", [draft.click_line("s6", "c6", 0, "never shown")])])
    assert trial.count().late == 1, "no more clicks were expected"


def some_days(plan, folder, days):
    """Files of searches and of clicks of some days, with rows that occur twice."""
    files = []
    for day in range(days):
        lines = []
        for number in range(20 * day, 20 * day + 20):
            lines.append(a_search(plan, number * 72, client=f"c{number % 25}", wins=number % 3 > 0))
        searches, clicks = ([one[part] for one in lines] for part in (0, 1))
        files.append(a_file(folder / f"searches-{day}", searches))
        files.append(a_file(folder / f"clicks-{day}", [*clicks, *clicks[:3]]))
    again = draft.search_line([("b", "both")], ["b"], ["b"], "s0", "c0", BEGINNING + 30, plan.id)
    return [*files, a_file(folder / "again", [again])]  # a search that was logged with other content


@pytest.mark.parametrize("at_once", [pytest.param(1, marks=pytest.mark.long), 2])
def test_the_order_of_reading_does_not_matter(planned, tmp_path, at_once):
    """Every permutation of the files, read one by one or two at a time: the same counts, evidence and decision."""
    plan = planned(wait=600)
    files = some_days(plan, tmp_path, days=2)[: 5 if at_once == 1 else 4]
    found = []
    for order in itertools.permutations(files):
        folder = tmp_path / "trial"
        shutil.rmtree(folder / "events", ignore_errors=True)
        trial = EngineTrial(folder)
        outside = [trial.read(order[i : i + at_once]).outside for i in range(0, len(order), at_once)]
        assert not any(outside)
        count = trial.count()
        found.append((vars(count), trial.judged(count).evidence.tolist(), trial.judged(count).ruling))
        assert found[-1] == found[0], order
    count = found[0][0]
    assert count["searches"] == 40
    assert (count["late"], count["too_old"], count["without_search"]) == (0, 0, 0)
    assert len(count["decided"]) > 35
    assert count["dropped"][trial_module.DIFFERS] == len(files) - 4


def test_what_is_read_outside_the_window_does_not_count_and_is_told(planned, tmp_path):
    plan = planned(wait=600, window=86_400)
    trial = EngineTrial(tmp_path / "trial")
    files = some_days(plan, tmp_path, days=3)
    trial.read(files[4:6])
    brought = trial.read(files[:2])
    count = trial.count()
    assert brought.outside == count.too_old + count.late > 0
    assert count.too_old + count.searches == 40
    text = "\n".join(str(part) for section in about_reading(brought, count, 86_400) for part in section.parts)
    assert f"{brought.outside:,} of these searches and clicks do not count" in text
    assert "within 1 days" in text


@pytest.mark.parametrize("complete", [True, False])
def test_an_adoption_rests_on_searches_that_cannot_change(planned, tmp_path, complete):
    plan = planned(wait=0)
    trial = EngineTrial(tmp_path / "trial")
    lines = [a_search(plan, number, client=f"c{number}", wins=number % 4 > 0) for number in range(120)]
    trial.read([a_file(tmp_path / "day", lines[10:])])
    assert (trial.judged().ruling, trial.judged().provisional) == ("undecided", True)
    assert "which would be enough, but files of these days may still be read" in trial.judged().because
    with pytest.raises(ValueError, match="does not show"):
        adopt(trial)
    if complete:
        trial.read([], complete=True)
    else:
        trial.read([a_file(tmp_path / "later", a_search(plan, 8 * 24 * 60))])
    assert (trial.judged().ruling, trial.judged().provisional) == ("adopt", False)
    before = vars(trial.count()) | {"clicks": 0, "late": 0, "too_old": 0}
    assert trial.read([a_file(tmp_path / "late", lines[:10])]).outside == 20
    assert vars(trial.count()) | {"clicks": 0, "late": 0, "too_old": 0} == before, "what was adopted upon stays"


def test_a_harmful_model_is_refused_at_once(planned, tmp_path):
    plan = planned(wait=0)
    trial = EngineTrial(tmp_path / "trial")
    lines = [a_search(plan, number, client=f"c{number}", wins=False) for number in range(60)]
    trial.read([a_file(tmp_path / "day", lines)])
    assert (trial.judged().ruling, trial.judged().harmful) == ("refuse", True)


def test_clicks_without_a_time_are_as_late_as_the_searches(planned, tmp_path):
    plan = planned(wait=600)
    trial = EngineTrial(tmp_path / "trial")
    lines = [a_search(plan, number, client=f"c{number}") for number in range(40)]
    trial.read([a_file(tmp_path / "searches", [one[0] for one in lines])])
    assert trial.count().open == 40, "no click is known, so none is missing yet"
    untimed = [json.dumps({k: v for k, v in json.loads(one[1]).items() if k != "time"}) for one in lines]
    trial.read([a_file(tmp_path / "clicks", untimed)])
    count = trial.count()
    assert (len(count.decided), count.open) == (30, 10)


def test_a_file_that_grows_while_it_is_read_is_read_again(planned, tmp_path, monkeypatch):
    plan = planned(wait=0)
    trial = EngineTrial(tmp_path / "trial")
    lines = [a_search(plan, number, client=f"c{number}") for number in range(6)]
    events = a_file(tmp_path / "events.jsonl", lines[:4])

    class Grows(RowReader):
        def __iter__(self):
            yield from super().__iter__()
            a_file(tmp_path / "events.jsonl", lines)

    monkeypatch.setattr(trial_events, "RowReader", Grows)
    assert trial.read([events]).searches == 4
    monkeypatch.undo()
    assert trial.read([events], complete=True).searches == 2


def test_a_crash_while_reading_loses_nothing(planned, tmp_path, monkeypatch):
    plan = planned(wait=0)
    trial = EngineTrial(tmp_path / "trial")
    lines = [a_search(plan, number, client=f"c{number}") for number in range(10)]
    events = a_file(tmp_path / "events.jsonl", lines)
    trial.read([a_file(tmp_path / "first", lines[:3])])

    def dies(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        trial.read([events], complete=True)
    monkeypatch.undo()
    assert trial.count().searches == 3
    trial.read([events], complete=True)
    assert (trial.count().searches, trial.judged().wins) == (10, 10)


def test_rows_of_a_client_are_forgotten(planned, tmp_path):
    """Its searches and clicks, and clicks of others on its searches; the same file does not restore them."""
    plan = planned()
    trial = EngineTrial(tmp_path / "trial")
    first = a_file(tmp_path / "1.jsonl", [a_search(plan, n, client=f"c{n % 3}") for n in range(9)])
    foreign = [draft.click_line("s1", "c2", BEGINNING + 99, "a"), draft.click_line("s2", "c1", BEGINNING + 99, "a")]
    second = a_file(tmp_path / "2.jsonl", [foreign, a_search(plan, 10, client="c1")])
    trial.read([first, second])
    path = tmp_path / "trial" / "events" / "0001.jsonl"
    head, *rest = path.read_text().splitlines()
    listed = {"earlier": [trial._stand_in("c1"), trial._stand_in("c2")]}
    path.write_text("\n".join([json.dumps(json.loads(head) | listed), *rest]) + "\n")
    assert trial.events_of("c1") == ForgottenEvents(str(tmp_path / "trial"), 4, 6)
    assert trial.events_of("c1") == trial.forget("c1")
    assert (
        trial.events_of("c1")
        == trial.forget("nobody")
        == trial.forget("")
        == ForgottenEvents(str(tmp_path / "trial"), 0, 0)
    )
    stored = "".join(path.read_text() for path in sorted((tmp_path / "trial" / "events").iterdir()))
    assert trial._stand_in("c1") not in stored
    assert trial._stand_in("c2") in stored
    assert trial.count().searches == 6
    again = trial.read([first, second])
    assert (again.searches, again.clicks, len(again.skipped)) == (0, 0, 2)
    [entry] = [one for one in trial.history() if one.what == "forgot a client"]
    assert entry.facts == {"searches": 4, "clicks": 6}
    assert "c1" not in json.dumps(vars(entry))


def test_trials_are_found_in_folders(planned, tmp_path):
    planned()
    assert [one.folder for one in find_trials([tmp_path, tmp_path / "trial"])] == [tmp_path / "trial"]
    assert find_trials([tmp_path / "none"]) == []


def test_browsers_are_not_believed(planned, tmp_path):
    plan = planned(wait=0)
    trial = EngineTrial(tmp_path / "trial")
    mixed = dict(draft.team_draft(OLD, NEW, 4, plan.key, "s1"))
    new, old = (next(one for one, team in mixed.items() if team == side) for side in ("new", "old"))
    lines = [
        a_search(plan, 1, clicks=[])[0],
        draft.click_line("s1", "x", 1, "never shown"),
        draft.click_line("nobody's search", "x", 1, "a"),
        draft.click_line("s1", "somebody else", 1, old),
        json.dumps({"search": "s1", "clicked": old}),  # whoever guesses ids of searches names no client
        json.dumps({"search": "s1", "client": "x", "clicked": new, "team": "old"}),  # may not hide the true one below
        json.dumps({"search": "s1", "client": "x", "clicked": new, "team": "new"}),
        *[draft.click_line("s1", "x", 1, new)] * 50,
        "{", "[1]", "{}", json.dumps({"action_name": "view", "query_id": "s1"}),
    ]  # fmt: skip
    brought = trial.read([a_file(tmp_path / "events", lines)], complete=True)
    assert brought.known == 49
    assert sum(brought.dropped.values()) == 4
    count = trial.count()
    assert (count.not_shown, count.without_search, count.of_others, count.forged) == (1, 1, 2, 1)
    assert [one.won for one in count.decided] == [True]
    with pytest.raises(ValueError, match="none of its 2 lines can be used"):
        trial.read([a_file(tmp_path / "useless", ["{}", "nothing"])])


def test_clicks_on_what_both_chose_say_nothing(planned, tmp_path):
    plan = planned(wait=0)
    trial = EngineTrial(tmp_path / "trial")
    trial.read([a_file(tmp_path / "events", [a_search(plan, n, clicks=["a"]) for n in range(5)])], complete=True)
    count = trial.count()
    assert (len(count.decided), count.drawn, count.nobodys) == (0, 5, 5)


def test_one_client_counts_a_bounded_number(planned, tmp_path):
    plan = planned(wait=0, per_client=3)
    trial = EngineTrial(tmp_path / "trial")
    flood = [a_search(plan, number, client="flood") for number in range(200)]
    others = [a_search(plan, 200 + number, client=f"c{number}", wins=number % 2 > 0) for number in range(40)]
    again = [a_search(plan, 300 + number, client="flood") for number in range(20)]
    nameless = [a_search(plan, 400 + number, client="") for number in range(20)]
    trial.read([a_file(tmp_path / "events", flood + others + again + nameless)], complete=True)
    count, judged = trial.count(), trial.judged()
    assert (judged.wins, judged.losses) == (20 + 3 + 3, 20)
    assert (judged.beyond, judged.capped, count.without_client) == (217 + 17, 2, 20)
    assert count.largest > 0.7


@pytest.mark.long
def test_a_liar_gains_nothing():
    """Adoption must hold without the client who did most for it: an equal model stays out, whatever that one does."""
    rng = np.random.default_rng(5)
    adopted = {True: 0, False: 0}
    for _ in range(300):
        honest = [DecidedSearch(f"c{n}", bool(rng.random() < 0.5)) for n in range(400)]
        lies = [DecidedSearch("liar", True)] * 5
        mixed = [*honest[:100], *lies, *honest[100:]]
        for careful in (True, False):
            found = judge(mixed, TrialRules(liars=int(careful)))
            adopted[careful] += found.ruling == "adopt"
    assert adopted[True] <= 0.06 * 300
    assert adopted[False] > adopted[True]


def test_evidence_is_that_of_the_gate():
    rules = TrialRules(liars=0)
    won = [bool(n % 3) for n in range(40)]
    found = judge([DecidedSearch(str(n), one) for n, one in enumerate(won)], rules)
    for n in range(1, len(found.evidence)):
        wins = sum(won[:n])
        assert tuple(found.evidence[n, [0, 2]]) == pytest.approx(rules.gate.evidence(wins, n - wins))
        assert found.evidence[n, 0] == found.evidence[n, 1]
    late = judge([DecidedSearch(str(n), n % 5 == 0) for n in range(100)], rules)
    assert late.ruling == "refuse"
    assert late.counted + late.after == 100
    assert rules.gate.verdict(late.wins, late.losses) == "refuse"
    assert "it is worse" in late.because
    slightly = judge([DecidedSearch(str(n), n % 25 < 11) for n in range(500)], rules)  # 44 %
    assert (slightly.ruling, slightly.counted) == ("refuse", rules.gate.most)
    assert "not significantly better" in slightly.because, "it was not refused for harm, but because it took too long"


def test_early_on_one_client_counts_a_tenth_of_all():
    """Five losses of one client among the first six searches would stop a trial that nobody else objects to."""
    loud = [DecidedSearch("loud", False)] * 5
    rules = TrialRules(per_client=5)
    judged = judge([*loud, DecidedSearch("a", True), *loud], rules)
    assert (judged.wins, judged.losses, judged.beyond, judged.capped) == (1, 1, 9, 1)
    clients = [DecidedSearch(str(n), n % 2 == 0) for n in range(28)]
    judged = judge([*clients, *loud], rules)
    assert (judged.losses, judged.beyond) == (14 + 3, 2), "a tenth of 28, and of 30 once two are counted"


def test_a_decision_says_how_many_clients_it_survives_losing():
    won = [DecidedSearch(str(n), n % 4 > 0) for n in range(300)]
    found = judge(won, TrialRules.for_wins(0.6))
    assert found.ruling == "adopt"
    rules = TrialRules.for_wins(0.6).gate
    evidence = [rules.evidence(found.wins - lost, found.losses)[0] for lost in (found.survives, found.survives + 1)]
    assert evidence[0] >= -math.log(rules.level) > evidence[1]
    assert found.survives >= TrialRules().assumed_liars(found.clients) >= 1
    assert f"holds without any {found.survives} clients of {found.clients}" in found.because
    assert judge(won[:3], TrialRules()).survives == 0


def test_only_clients_from_before_the_trial_count_where_the_log_names_them(planned, tmp_path):
    plan = planned(wait=0)
    trial = EngineTrial(tmp_path / "trial")
    before = [
        json.dumps({"search": f"e{n}", "client": f"c{n}", "time": 1_700_000_000 + n, "shown": ["a", "b"]})
        for n in range(20)
    ]
    during = [a_search(plan, n, client=f"c{n}", wins=n % 2 > 0) for n in range(30)]
    invented = [a_search(plan, 100 + n, client=f"new{n}") for n in range(10)]
    trial.read([a_file(tmp_path / "events", during + invented)], complete=True)
    assert (trial.judged().counted, trial.judged().unknown) == (40, 0), "nothing is known about earlier clients"
    trial.read([a_file(tmp_path / "earlier", before)], complete=True)
    count, judged = trial.count(), trial.judged()
    assert len(count.earlier) == 20
    assert count.dropped[BEFORE] == 20
    assert (judged.counted, judged.unknown) == (20, 20)
    assert '"c1"' not in "".join(path.read_text() for path in (tmp_path / "trial" / "events").iterdir())


@pytest.mark.long
def test_ten_coordinated_clients_do_not_adopt_an_equal_model():
    """With five searches per client and one liar, they did so in 95 % of trials."""
    rng = np.random.default_rng(7)
    rules, adopted = TrialRules.for_wins(0.6), 0
    for _ in range(300):
        honest = [DecidedSearch(f"c{n}", bool(rng.random() < 0.5)) for n in range(640)]
        lies = [DecidedSearch(f"liar{n % 10}", True) for n in range(50)]
        adopted += judge([*honest[:100], *lies, *honest[100:]], rules).ruling == "adopt"
    assert adopted <= 0.05 * 300


@pytest.mark.long
@pytest.mark.parametrize("clients", [60, 300])
def test_fixed_tastes_of_clients_do_not_exceed_the_level(clients):
    from benchmarks.trial_level import adopted

    assert adopted(TrialRules.for_wins(0.6), clients, trials=2000) <= 0.05


def _trial_with(plan, folder, tmp_path, share, searches=300, name="events"):
    trial = EngineTrial(folder)
    lines = [a_search(plan, n, client=f"c{n}", wins=(n * 7) % 10 < 10 * share) for n in range(searches)]
    trial.read([a_file(tmp_path / name, lines)], complete=True)
    return trial


def test_adopt_and_roll_back_leave_a_record(planned, tmp_path, models):
    plan = planned(wait=0)
    trial = EngineTrial(tmp_path / "trial")
    with pytest.raises(ValueError, match=r"does not show that .* is better.*--anyway"):
        adopt(trial, "ann")
    with pytest.raises(ValueError, match="--because"):
        adopt(trial, "ann", anyway=True)
    trial = _trial_with(plan, tmp_path / "trial", tmp_path, 0.7)
    count = trial.count()
    deed = decide(trial, count, trial.judged(count), "bob")
    assert (deed.facts["ruling"], deed.who) == ("adopt", "bob")
    assert decide(trial, count, trial.judged(count), "eve") == deed, "it is decided once"
    put = adopt(trial, "bob")
    current = read_current(trial.current)
    assert current.now == put
    assert (put.digest, put.trial, put.who) == (plan.new.digest, plan.id, "bob")
    with pytest.raises(ValueError, match="was adopted on"):
        trial.read([tmp_path / "events"])
    with pytest.raises(ValueError, match="already in use"):
        adopt(trial)
    with pytest.raises(ValueError, match="needs a reason"):
        roll_back(trial, " ")
    back = roll_back(trial, "complaints", "cat")
    current = read_current(trial.current)
    assert (current.now, current.history) == (back, (put,))
    assert (back.digest, back.because) == (plan.old.digest, "complaints")
    assert [deed.what for deed in trial.history()] == ["planned", "decided", "adopted", "rolled back"]
    with pytest.raises(ValueError, match=r"rolled back on .*complaints"):
        adopt(trial)
    a_model(models[0], 3.0, 4.0)
    with pytest.raises(ValueError, match="is not the model of the trial"):
        roll_back(trial, "once more")


def test_a_model_in_use_that_was_not_compared_stays(planned, tmp_path):
    plan = planned(wait=0)
    trial = _trial_with(plan, tmp_path / "trial", tmp_path, 0.7)
    other = {"name": "x", "path": "x", "digest": "0", "since": "2026", "who": "", "because": "", "trial": ""}
    trial.current.write_text(json.dumps({"format": "fedrank-current", "now": other, "history": []}))
    before = trial.current.read_bytes()
    with pytest.raises(ValueError, match="does not show which"):
        adopt(trial)
    with pytest.raises(ValueError, match="not part of this trial"):
        roll_back(trial, "harm")
    assert trial.current.read_bytes() == before
    assert adopt(trial, because="it was agreed on", anyway=True).digest == plan.new.digest


def test_an_adoption_that_was_killed_is_noted_once(planned, tmp_path, monkeypatch):
    trial = _trial_with(planned(wait=0), tmp_path / "trial", tmp_path, 0.7)
    with monkeypatch.context() as killed:
        killed.setattr("fedrank.engine.adoption.write_atomic", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            adopt(trial, "bob")
    assert read_current(trial.current).now is None
    adopt(trial, "bob")
    assert read_current(trial.current).now is not None
    assert [deed.what for deed in trial.history()].count("adopted") == 1


def test_an_unfair_coin_says_nothing(planned, tmp_path):
    planned("solr", wait=0)
    trial = EngineTrial(tmp_path / "trial")
    rows = []
    for number in range(200):
        row = {"search": f"s{number}", "client": f"c{number}", "time": BEGINNING + number, "shown": ["d", "a"]}
        rows += [row | {"teams": ["new", "old"]}, {"search": f"s{number}", "client": f"c{number}", "clicked": "d"}]
    trial.read([a_file(tmp_path / "events", list(map(json.dumps, rows)))], complete=True)
    assert trial.judged().ruling == "adopt"
    with pytest.raises(ValueError, match="assignment of this trial was not balanced"):
        adopt(trial)


def test_ids_of_opensearch_are_learned_once(planned, tmp_path):
    planned("opensearch", wait=0)
    trial = EngineTrial(tmp_path / "trial")
    hits = [{"_id": d, "_search_configuration_id": t} for d, t in (("a", "A"), ("d", "B"))]
    answers = a_file(tmp_path / "answers", [json.dumps({"query_id": "s", "timestamp": BEGINNING, "hits": hits})])
    for wrong in ({}, {"C": "old", "D": "new"}):  # nothing was read with these
        with pytest.raises(ValueError, match="a team that is not part of this trial"):
            trial.read([answers], wrong)
    trial.read([answers], {"A": "old", "B": "new"})
    assert trial.count().searches == 1
    with pytest.raises(ValueError, match="cannot belong to the new model"):
        trial.read([answers], {"A": "new"})
    with pytest.raises(ValueError, match="cannot belong to the old model"):
        trial.read([answers], {"C": "old"})


CURL = """#!/bin/sh
echo "$@" >> "$LOG"
case "$*" in
*search_configurations*old*) echo '{"search_configuration_id":"id-of-old","search_configuration_result":"CREATED"}';;
*search_configurations*new*) echo '{"search_configuration_id":"id-of-new","search_configuration_result":"CREATED"}';;
*_search\\ *) if grep -q true requests/test.json; then
  echo '{"test_id":"t","hits":[{"_search_configuration_id":"uuid-of-b"},{"_search_configuration_id":"uuid-of-a"}]}'
else echo '{"test_id":"t","hits":[{"_id":"1","_search_configuration_id":"uuid-of-a"}]}'; fi;;
*ab_tests*) cat requests/test.json >> "$LOG"; echo '{}';;
esac
"""


def _sh(script, tmp_path):
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin" / "curl").write_text(CURL)
    (tmp_path / "bin" / "curl").chmod(0o755)
    log = tmp_path / "log"
    log.unlink(missing_ok=True)
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "LOG": str(log)}
    done = subprocess.run(["sh", str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, log.read_text() if log.exists() else ""


@pytest.mark.process
def test_what_opensearch_is_asked(planned, tmp_path):
    """Requests as the plugin's REST handlers take them (search-relevance, pull requests 498 and 511)."""
    plan = planned("opensearch")
    folder = tmp_path / "trial"
    said, sent = _sh(folder / "begin.sh", tmp_path)
    assert "are not known yet" not in said
    assert EngineTrial(folder).labels() == {"uuid-of-a": "old", "uuid-of-b": "new"}
    paths = re.findall(r"-X (\w+) http://localhost:9200(\S+)", sent)
    test = ("PUT", "/_plugins/_search_relevance/ab_tests/trial")
    assert paths == [
        ("PUT", "/_cluster/settings"),
        ("POST", "/_ltr/_featureset/engine-1/_createmodel"),
        ("POST", "/_ltr/_featureset/engine-1/_createmodel"),
        ("PUT", "/_plugins/_search_relevance/search_configurations"),
        ("PUT", "/_plugins/_search_relevance/search_configurations"),
        test,
        (test[0], f"{test[1]}/_update"),
        ("POST", "/_plugins/_search_relevance/ab_tests/trial/_search"),
        (test[0], f"{test[1]}/_update"),
        ("POST", "/_plugins/_search_relevance/ab_tests/trial/_search"),
    ]
    states = _objects(sent)
    assert states == [
        {"search_configuration_a": "id-of-old", "search_configuration_b": "id-of-new"},
        {"enabled": False},
        {"enabled": True},
    ]
    assert not problems("ab-test", states[0])
    assert not [line for one in states[1:] for line in problems("ab-update", one)]
    assert not problems("ab-search", json.loads((folder / "requests" / "search.json").read_text()))
    new, old = (json.loads((folder / "requests" / f"{side}-configuration.json").read_text()) for side in ("new", "old"))
    for one in (new, old):
        assert not problems("search-configuration", one)
        assert not problems("search-body", json.loads(one["query"]))
    body = json.loads(new["query"])
    rescored = body["rescore"]["query"]["rescore_query"]["sltr"]
    assert rescored["model"] == plan.new.name
    assert rescored["params"]["keywords"] == "%SearchText%"
    uploaded = json.loads((folder / "requests" / "new-model.json").read_text())
    assert uploaded["model"]["name"] == plan.new.name
    for script, first in (("adopt.sh", "id-of-new"), ("rollback.sh", "id-of-old")):
        (state,) = _objects(_sh(folder / script, tmp_path)[1])
        assert not problems("ab-update", state)
        assert (state["search_configuration_a"], state["enabled"]) == (first, False)
        assert commands_of(folder, script) == f"sh {folder / script}"


def _objects(text):
    return [json.loads(found) for found in re.findall(r"\{[^{}]*\}", text)]


@pytest.mark.process
def test_what_solr_is_asked(models, tmp_path):
    plan, _ = plan_trial(models[1], "engine", "solr", tmp_path / "t", TrialRules(), index="books")
    said, sent = _sh(tmp_path / "t" / "begin.sh", tmp_path)
    assert f"{{!ltr model=_OriginalRanking_ model={plan.new.name} reRankDocs=100" in said
    assert "[interleaving]" in said
    assert re.findall(r"-X (\w+) \S+/solr(\S+)", sent) == [("PUT", "/books/schema/model-store")]
    assert f"model={plan.new.name}" in _sh(tmp_path / "t" / "adopt.sh", tmp_path)[0]
    assert "no rq" in _sh(tmp_path / "t" / "rollback.sh", tmp_path)[0]
    assert plan.old.is_engine


def test_a_model_that_no_engine_can_have_leaves_no_trial(tmp_path, models):
    """The command may be repeated, with another model."""
    by_query = tmp_path / "by-query.json"
    save_model(Model(Linear(), np.array([1.0, 2.0]), 2, "query"), by_query)
    with pytest.raises(ValueError, match="normalised by query"):
        plan_trial(by_query, models[0], "solr", tmp_path / "t", TrialRules(), index="x")
    with pytest.raises(FileNotFoundError, match="is not a trial"):
        EngineTrial(tmp_path / "t")
    plan_trial(models[1], models[0], "solr", tmp_path / "t", TrialRules(), index="x")
    assert (tmp_path / "t" / "trial.json").exists()


def test_an_own_query_needs_a_place_for_the_words(models, tmp_path):
    query = tmp_path / "query.json"
    query.write_text('{"query": {"match": {"text": "words"}}}')
    with pytest.raises(ValueError, match="%SearchText%"):
        plan_trial(*models, "opensearch", tmp_path / "t", TrialRules(), index="x", query=query)


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"to": "lucene"}, {"rules": {}}, {"old": None}, {"places": 1.5}, {"key": 7}, {"engine": {"a": 1}}],
)
def test_a_damaged_plan_is_refused(planned, tmp_path, change):
    planned()
    path = tmp_path / "trial" / "trial.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match="cannot be read"):
        read_plan(tmp_path / "trial")
