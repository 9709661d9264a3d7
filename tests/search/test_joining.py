"""People who learn together through a folder: nothing leaves before they join, and a model comes back on trial."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from fedrank.data.live_features import LIVE_1
from fedrank.deploy import site_calls
from fedrank.deploy.folder_members import approve_in_folder, create_folder_federation, read_invitation
from fedrank.deploy.outbox import used_searches
from fedrank.ranking.model import load_weights
from fedrank.search import coordinator, joining, sharing, web
from fedrank.search.coordinator import aggregate, built_in
from fedrank.search.results import SearchError
from tests.search.made_up import FRUIT, Clock, opened, search_often

pytest.importorskip("tantivy", reason="pip install 'fedrank[search]'")


class Group:
    """A coordinator, and people with their own clients around one folder."""

    def __init__(self, root, open_one, names):
        self.shared, self.home = root / "shared", root / "home"
        create_folder_federation(self.shared, self.home, "friends")
        self.clocks = {name: Clock() for name in names}
        self.clients = {name: open_one(root / name, self.clocks[name]) for name in names}

    def join(self, name, epsilon=8.0):
        told = read_invitation(self.shared).fingerprint
        own = joining.ask_to_join(self.clients[name], self.shared, name, told, epsilon)
        approve_in_folder(self.shared, self.home, name, own)

    def search(self, name, times):
        search_often(self.clients[name], self.clocks[name], times)

    def files(self):
        return sorted(str(path.relative_to(self.shared)) for path in self.shared.rglob("*") if path.is_file())


@pytest.fixture
def group(tmp_path):
    with ExitStack() as opening:
        yield Group(
            tmp_path, lambda folder, clock: opening.enter_context(opened(folder, clock)), ("anna", "ben", "cleo")
        )


def in_background(group, **more):
    """The coordinator, until told to stop."""
    stop, results = threading.Event(), []

    def work():
        results.append(
            aggregate(
                group.shared, group.home, group.home / "runs", "searches", 8.0, stop.is_set, patience=60.0, **more
            )
        )

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, stop, results


def take_part_until(group, done, seconds=60.0):
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "nothing happened for too long"
        for client in group.clients.values():
            for plan, view in joining.open_plans(client):
                assert view.refused == ()
                joining.agree(client, plan)
            joining.take_part(client)
        time.sleep(0.05)


@pytest.mark.long
def test_three_people_learn_together_and_the_model_goes_on_trial(group, monkeypatch):
    monkeypatch.setattr(coordinator, "ROUNDS", 2)
    monkeypatch.setattr(site_calls, "PAUSE", 0.05)
    before = group.files()
    for name in group.clients:
        group.search(name, 3)
    assert group.files() == before == ["federation.json"]  # nothing leaves before somebody joins
    assert all(client.status().sent == () for client in group.clients.values())
    for name in group.clients:
        group.join(name)
        group.search(name, 61)
    thread, stop, results = in_background(group)
    try:
        take_part_until(group, lambda: not thread.is_alive())
    finally:
        stop.set()
        thread.join()
    assert results[0].failed == []
    assert len(results[0].finished) == 1
    made = load_weights(results[0].finished[0].folder / "model.json")
    assert made.feature_names == LIVE_1.names
    for client in group.clients.values():
        joining.take_part(client)
        status = client.status()
        assert status.trial.state == "replay"  # on trial, not in use
        assert status.trial.origin.startswith("federation friends")
        assert "initialized from the start weights" in status.model
        np.testing.assert_array_equal(client.trials.on_trial().weights, made.weights)
        used = used_searches(client.folder / "federation" / "outbox")
        assert len(used) == 60
        assert min(used) > 3  # what was searched before joining is nobody's business
        rounds = [one.what for one in status.sent if one.what.endswith("answer to round")]
        assert rounds == ["round 1: answer to round", "round 2: answer to round"]
        # A plan that came between being agreed to and being answered was refused at first.
        first = [one.what for one in status.sent if one.what.startswith("round 0: ")]
        assert set(first) <= {"round 0: answer to hello", "round 0: that it does not, and why"}
        assert len(set(first)) == len(first) > 0
        assert status.sent[0].what.startswith("request to join")
        joining.take_part(client)
        assert client.status().trial.origin == status.trial.origin  # once


def test_what_leaves_stands_in_sent_before_it_does(group, monkeypatch):
    group.join("anna")
    client, told = group.clients["anna"], []

    def watched(receiver, what, size):
        told.append((what, len(group.files())))
        return 0

    monkeypatch.setattr(client.sent, "note", watched)
    before = len(group.files())
    joining.leave(client, "enough")
    assert told == [("notice of leaving", before)]
    assert len(group.files()) == before + 1


def test_what_is_refused_at_once_was_not_sent(group):
    client = group.clients["anna"]
    with pytest.raises(ValueError, match="it is another federation"):
        joining.ask_to_join(client, group.shared, "anna", "SHA256:" + "-".join(["0000"] * 8), 8.0)
    assert client.status().sent == ()
    assert group.files() == ["federation.json"]
    assert joining.state_of(client) == ""
    with pytest.raises(SearchError, match="file:FOLDER"):
        joining.meeting_of("https://example.org")


def test_only_lists_after_joining_that_the_model_drew_are_recorded_and_forgetting_removes_them(group):
    client = group.clients["anna"]
    group.search("anna", 4)
    client.record_for_sharing()
    assert not (client.folder / "federation").exists()
    group.join("anna")
    client.settings.set_order("engine")
    group.search("anna", 2)
    client.settings.set_order("drawn")
    group.search("anna", 10)
    client.record_for_sharing()
    lists = sharing.recorded(client.folder)
    assert lists.numbers() == list(range(7, 17))
    assert lists.get(7).impression.clicked.any()
    client.forget(query=f"orchard {FRUIT[0]}")
    assert lists.numbers() == list(range(8, 17))
    document = int(client.rows.clicks(8)[0].document)
    client.forget(document=document)
    assert not lists.get(8).impression.clicked.any()
    client.forget(everything=True)
    assert lists.numbers() == []
    assert client.rows.last_search == 16


def test_leaving_removes_recorded_lists_and_nothing_is_answered_any_more(group):
    group.join("anna")
    group.search("anna", 5)
    client = group.clients["anna"]
    client.record_for_sharing()
    assert len(sharing.recorded(client.folder).numbers()) == 5
    assert "5 searches are recorded" in " ".join(client.status().notes)
    joining.leave(client)
    assert sharing.recorded(client.folder).numbers() == []
    assert joining.state_of(client) == ""
    assert joining.take_part(client) == []
    with pytest.raises(SearchError, match="not joined a federation"):
        joining.leave(client)


def test_who_waits_for_the_coordinator_sends_nothing(group):
    client = group.clients["anna"]
    joining.ask_to_join(client, group.shared, "anna", read_invitation(group.shared).fingerprint, 8.0)
    before = group.files()
    group.search("anna", 3)
    assert joining.state_of(client) == "waiting"
    assert joining.open_plans(client) == []
    assert joining.take_part(client) == []
    assert group.files() == before == ["federation.json", "joining/anna"]


def test_the_built_in_question_keeps_its_epsilon(tmp_path):
    from fedrank.experiments.runner.privacy import planned

    for epsilon in (1.0, 8.0):
        base = built_in(tmp_path, 10, epsilon).base
        totals = [row.total for row in planned(base) if row.guarantee.event is not None]
        assert 0.95 * epsilon < max(totals) <= epsilon
    with pytest.raises(ValueError, match="positive and finite"):
        built_in(tmp_path, 10, 0.0)


COORDINATOR = """
from fedrank.deploy import site_calls
from fedrank.search import coordinator
coordinator.ROUNDS, site_calls.PAUSE = 1, 0.1
from fedrank.cli import main
main()
"""


@pytest.mark.process
def test_the_page_answers_meanwhile_and_the_command_aggregates(group, monkeypatch):
    """`fedrank search aggregate` in a process of its own; whoever joins while the page is open is answered for, too."""
    monkeypatch.setattr(web, "SECONDS_BETWEEN_LOOKS", 0.05)
    monkeypatch.setattr(joining, "SECONDS_BETWEEN_LOOKS", 0.1)
    with ExitStack() as pages:
        for name, client in group.clients.items():
            pages.enter_context(web._taking_part(client))
            group.join(name)
            group.search(name, 30)
        words = ["search", "aggregate", str(group.shared), "--home", str(group.home), "--patience", "60"]
        coordinator = subprocess.Popen(
            [sys.executable, "-c", COORDINATOR, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        pages.callback(coordinator.kill)
        agreed = set()
        wait_until(lambda: agreed.update(agree_to_everything(group)) or len(agreed) == 3, coordinator)
        said, _ = coordinator.communicate(timeout=60)
        assert coordinator.returncode == 0, said
        assert "generated documents" in said
        wait_until(lambda: all(client.trials.phase for client in group.clients.values()))
    [made] = group.home.glob("runs/searches/*/*/model.json")
    for client in group.clients.values():
        assert client.status().trial.state == "replay"
        np.testing.assert_array_equal(client.trials.on_trial().weights, load_weights(made).weights)
        assert len(used_searches(client.folder / "federation" / "outbox")) == 30
        assert not [note for note in client.status().notes if "cannot" in note]
    assert not [thread for thread in threading.enumerate() if thread.name == "fedrank-federation"]


def test_a_problem_of_the_answering_thread_stands_in_the_status_until_it_is_gone(group, monkeypatch):
    monkeypatch.setattr(web, "SECONDS_BETWEEN_LOOKS", 0.05)
    monkeypatch.setattr(joining, "SECONDS_BETWEEN_LOOKS", 0.05)
    client, away = group.clients["anna"], group.shared.with_name("pulled-out")
    group.join("anna")
    with web._taking_part(client):
        group.shared.rename(away)
        wait_until(lambda: str(group.shared) in client.status().notes[-1] and len(client.status().notes) == 3)
        away.rename(group.shared)
        wait_until(lambda: len(client.status().notes) == 2)
        mark = client.folder / "federation" / "search.json"
        whole = mark.read_bytes()
        mark.write_bytes(b"{")
        wait_until(lambda: "restore it" in client.status().notes[-1])
        mark.write_bytes(whole)
        wait_until(lambda: len(client.status().notes) == 2)
        joining.leave(client)
        before = group.files()
        group.search("anna", 3)
        assert sharing.recorded(client.folder).numbers() == []
        assert group.files() == before


def agree_to_everything(group):
    for name, client in group.clients.items():
        for plan, view in joining.open_plans(client):
            assert view.refused == ()
            joining.agree(client, plan)
            yield name


def wait_until(true, process=None, seconds=60.0):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "nothing happened for too long"
        assert process is None or process.poll() is None, process.stdout.read()
        time.sleep(0.05)
