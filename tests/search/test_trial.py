"""A new model is used only after recorded searches and clicks have shown it better; a broken one never."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrank.ranking.gate import Gate
from fedrank.search import memory
from fedrank.search import trial as trial_module
from fedrank.search.client import SearchClient
from fedrank.search.learned import what_was_learned
from fedrank.search.results import SearchError
from fedrank.search.trial import FEWEST, Replay
from tests.search.made_up import FRUIT, Clock, opened


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def client(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(memory, "LIFT", 0.0)  # which would lift what is opened again and again in every list
    with opened(tmp_path, clock) as client:
        yield client


def model(client, **features):
    weights = client.features.start()
    for name, value in features.items():
        weights[client.features.names.index(name)] = value
    return weights


def live(client, clock, most):
    """Search, open the longest document that is shown, and wait, until the trial has ended; returns how often."""
    for number in range(most):
        found = client.search(f"orchard {FRUIT[number % 10]}")
        longest = max(found.results, key=lambda result: len(client.pages.document(result.id).text))
        client.open_document(found.impression, longest.position)
        clock.wait(60)
        if client.store.setting("trial_phase") == "":
            return number
    return most


def stop(client):
    with client.store.writing():
        client.trials.end("stopped")


def test_a_better_model_is_adopted_after_both_steps(client, clock):
    better = model(client, length=8.0)
    client.trials.begin(better, "a friend")
    used, before = client.rows.model()
    assert client.status().trial.state == "replay"
    live(client, clock, FEWEST + 1)
    assert client.status().trial.state == "draft"
    assert client.rows.model()[0] == used
    assert live(client, clock, 200) < 200
    trial = client.status().trial
    assert (trial.state, trial.origin, trial.losses) == ("adopted", "a friend", 0)
    assert trial.wins >= np.log(1 / Gate().level) / np.log(1 + Gate().stake)
    np.testing.assert_array_equal(client.rows.model()[1], better)
    assert (before != better).any()
    assert client.status().interleaved["wins"] == trial.wins


def test_a_replay_that_is_worth_few_searches_refuses_nothing(client, clock, monkeypatch):
    worth = Replay(40, 2.0, 0.3, 0.0, -0.4, -0.2)
    for effective, state in ((2.0, "draft"), (25.0, "refused by a replay")):
        found = replace(worth, effective=effective)
        monkeypatch.setattr(trial_module, "replay", lambda *_, found=found: found)
        client.trials.begin(model(client, length=8.0), "a friend")
        live(client, clock, FEWEST + 1)
        assert client.status().trial.state == state
        if state == "draft":
            stop(client)


def test_a_broken_model_is_refused_and_the_one_in_use_goes_on(client, clock):
    used, _ = client.rows.model()
    client.trials.begin(model(client, engine=-5.0, length=-8.0), "somebody")
    live(client, clock, 120)
    trial = client.status().trial
    assert trial.state.startswith("refused")
    assert client.rows.model()[0] == used


def test_searches_kept_for_the_replay_are_learned_from_afterwards(client, clock):
    client.learn_setting("weights")
    client.trials.begin(model(client, length=8.0), "a friend")
    live(client, clock, 20)
    assert client.rows.own_model() is None
    assert client.status().impressions == {"closed": 19, "opened": 1}
    stop(client)
    clock.wait(60)
    client.search("something else")
    assert client.store.count("SELECT count(*) FROM impressions WHERE state = 'learned'") == 20
    assert client.status().trial.state == "stopped"


def test_mixed_lists_teach_nothing(client, clock):
    client.trials.begin(model(client, length=8.0), "a friend")
    live(client, clock, FEWEST + 1)
    client.status()
    clock.wait(60)
    found = client.search("orchard")
    assert client.rows.get(found.impression).kind == "interleaved"
    weights = client.rows.model()[1]
    client.open_document(found.impression, 4)
    assert client.shown(found.impression, 2).results
    clock.wait(3600)
    client.status()
    np.testing.assert_array_equal(client.rows.model()[1], weights)


def test_a_trial_goes_on_after_a_restart_and_ends_with_a_reset(client, clock):
    client.trials.begin(model(client, length=8.0), "a friend")
    live(client, clock, 5)
    client.close()
    with SearchClient(client.folder, clock=clock) as again:
        assert again.status().trial.kept == 4
        with pytest.raises(SearchError, match="already"):
            again.trials.begin(model(again), "another")
        again.learn_setting("reset")
        assert again.status().trial.state == "stopped"


@pytest.mark.parametrize("weights", [np.zeros(3), np.full(34, np.nan), np.zeros((34, 1))])
def test_what_is_no_model_is_refused(client, weights):
    with pytest.raises(SearchError, match="finite weights"):
        client.trials.begin(weights, "nobody")
    assert client.status().trial is None


def follow(client, clock, want, times):
    """Open the longest or the shortest document of every list; returns whether the engine was returned to."""
    for number in range(times):
        found = client.search(f"orchard {FRUIT[number % 10]}")
        chosen = want(found.results, key=lambda result: len(client.pages.document(result.id).text))
        client.open_document(found.impression, chosen.position)
        clock.wait(60)
        client.search("nothing")
        clock.wait(60)
        if client.store.one("SELECT 1 FROM models WHERE fate = ?", trial_module.WORSE):
            return True
    return False


def use(client, weights):
    with client.store.writing():
        client.store.set(model=client.rows.new_model(0.0, "a friend", weights))


def test_a_model_that_loses_against_the_engine_is_given_up(client, clock, monkeypatch):
    monkeypatch.setattr(trial_module, "SHARE", 0.5)
    bad = model(client, length=-8.0)
    use(client, bad)
    used = client.rows.model()[0]
    assert follow(client, clock, max, 200)
    np.testing.assert_array_equal(client.rows.model()[1], client.features.start())
    wins, losses = client.trials.against_engine(used)
    assert wins >= np.log(1 / Gate().level) / np.log(1 + Gate().stake)
    assert losses == 0
    lists = client.status().kinds_of_lists
    follow(client, clock, max, 20)
    assert client.status().kinds_of_lists.get("interleaved") == lists["interleaved"]  # the engine has no opponent


def test_a_model_that_wins_against_the_engine_stays(client, clock, monkeypatch):
    monkeypatch.setattr(trial_module, "SHARE", 0.5)
    use(client, model(client, length=8.0))
    used = client.rows.model()[0]
    assert not follow(client, clock, max, 60)
    assert client.rows.model()[0] == used
    wins, losses = client.trials.against_engine(used)
    assert wins == 0 < losses


def test_by_default_a_tenth_of_the_lists_has_the_engine_as_opponent(client, monkeypatch):
    monkeypatch.undo()
    drawn = [client.trials.opponent(number) for number in range(1_000)]
    others = [one for one in drawn if one is not None]
    assert 60 < len(others) < 140
    assert {one.id for one in others} == {trial_module.ENGINE}
    np.testing.assert_array_equal(others[0].weights, client.features.start())
    drawn = [client.trials.opponent(number, remembers=True) for number in range(1_000)]
    others = [one for one in drawn if one is not None]
    assert 20 < len(others) < 60
    assert {one.id for one in others} == {trial_module.FORGETFUL}
    np.testing.assert_array_equal(others[0].weights, client.rows.model()[1])


def test_own_learning_is_tried_before_it_is_used_and_begins_anew_after_a_trial(client, clock, monkeypatch):
    monkeypatch.setattr(trial_module, "OWN_SEARCHES", 10)
    client.learn_setting("weights")
    in_use, before = client.rows.model()
    live(client, clock, 12)
    assert client.trials.phase == "replay"
    (id, own, learned), trial = client.rows.own_model(), client.trials.on_trial()
    assert trial.id != id
    assert learned == 10
    np.testing.assert_array_equal(trial.weights, own)
    assert (own != before).any()
    np.testing.assert_array_equal(client.rows.model()[1], before)
    assert client.rows.model()[0] == in_use
    stop(client)
    assert client.rows.own_model() is None


def some_clicks(client, clock, place):
    """Search for pairs of fruits, and open the result at a place of the order by score; returns how many lists."""
    for number in range(30):
        found = client.search(f"{FRUIT[number % 10]} {FRUIT[(number + 1 + number // 10) % 10]} orchard")
        recorded = client.rows.get(found.impression)
        wanted = place(recorded)
        client.open_document(found.impression, int(np.flatnonzero(recorded.shown == wanted)[0]))
        clock.wait(60)


@pytest.mark.parametrize("harms", [True, False])
def test_a_memory_that_loses_against_lists_without_it_is_given_up(tmp_path, clock, monkeypatch, harms):
    with opened(tmp_path, clock) as client:
        some_clicks(client, clock, lambda one: int(one.shown[-1]))  # results that nobody wants
        monkeypatch.setattr(trial_module, "MEMORY_SHARE", 1.0)
        remembered = what_was_learned(client)
        some_clicks(client, clock, (lambda one: 0) if harms else lambda one: int(one.memory.argmax()))
        clock.wait(3600)
        client.status()
        kinds = client.store.rows("SELECT DISTINCT trial FROM impressions WHERE kind = 'interleaved'")
        assert (trial_module.FORGETFUL,) in kinds
        learned, before = what_was_learned(client), client.store.setting("remember_after", 0)
        assert learned.given_up == bool(before) == harms
        assert remembered.pairs > 20
        assert learned.pairs < 20 if harms else learned.pairs >= remembered.pairs
        lifted = client.search(client.rows.get(1).query)
        assert any(one.before for one in lifted.results) != harms
        assert client.store.count("SELECT count(*) FROM clicks") == 60, "clicks stay recorded"
        monkeypatch.setattr(trial_module, "MEMORY_SHARE", 0.0)
        again = client.search("orchard shade")
        client.open_document(again.impression, 5)
        clock.wait(60)
        assert any(one.before for one in client.search("orchard shade").results), "new clicks count"
        client.forget(learned=True)
        assert not what_was_learned(client).given_up
