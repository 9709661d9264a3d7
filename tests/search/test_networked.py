"""People who learn together over a network: the folder of `fedrank deploy join`, with searches in it."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedrank.deploy.identity import new_identity
from fedrank.deploy.outbox import used_searches
from fedrank.deploy.sent_log import SentLog, what_was_sent
from fedrank.deploy.settings import read_site, site_template
from fedrank.privacy.population import Account
from fedrank.ranking.model import load_weights
from fedrank.search import coordinator, joining, sharing
from fedrank.search.results import SearchError
from fedrank.search.web import _taking_part
from fedrank.wire import Label
from tests.search.made_up import Clock, opened, search_often

pytest.importorskip("tantivy", reason="pip install 'fedrank[search]'")
pytest.importorskip("nvflare", reason="the engine is the extra fedrank[deploy]")

from fedrank.deploy.flare_kit import Invitation
from fedrank.deploy.flare_local import LocalFederation, provision_locally, running_locally, wait_for_sites

pytestmark = pytest.mark.process

PEOPLE = ("anna", "ben", "cleo")  # far too few for ε = 8, so the test lowers the limit
ROOT = Path(__file__).parents[2]


def a_site(folder, text=None):
    """A folder as `fedrank deploy join` leaves it, but for certificates."""
    (folder / "kit").mkdir(parents=True)
    new_identity(folder)
    (folder / "site.toml").write_text(site_template("anna", 0, "friends") if text is None else text)
    said = Invitation("friends", "anna", "anna", 0, "fl.example.org", 8002, "SHA256:00")
    (folder / "invitation.json").write_text(json.dumps(asdict(said)))
    return folder


def test_joining_shows_whom_it_would_connect_to_and_changes_two_lines(tmp_path):
    site = a_site(tmp_path / "site")
    before = (site / "site.toml").read_text()
    with opened(tmp_path / "anna") as client:
        there = joining.server(client, site)
        assert (there.federation, there.address, there.epsilon) == ("friends", "fl.example.org:8002", 8.0)
        assert (site / "site.toml").read_text() == before
        assert joining.state_of(client) == ""
        joining.join_network(client, site)
        lists = sharing.recorded(client.folder).folder
        assert read_site(site).data.impressions == str(lists)
        added = set((site / "site.toml").read_text().splitlines()) - set(before.splitlines())
        [line] = [each for each in added if each.startswith("placements ")]
        assert added == {f'impressions = "{lists}"', line}
        assert read_site(site).policy.placements == ("secure-aggregation",)
        joining.join_network(client, site)  # the same again
        assert joining.state_of(client, joining.site_of(str(site))) == "joined"
        assert "friends at fl.example.org:8002, with at most ε = 8 in total" in " ".join(client.status().notes)
        assert client.status().sent == ()
        with pytest.raises(SearchError, match="leave it first"):
            joining.state_of(client, tmp_path)
        SentLog(site).note(Label("round", bytes(16), 3), "answers", 700)
        client.forget(everything=True)
        [told] = client.status().sent
        assert (told.to, told.what, told.bytes) == ("friends at fl.example.org:8002", "round 3: answer to round", 700)
        site.rename(tmp_path / "elsewhere")
        [told] = client.status().sent
        assert f"the record in {site} is missing" in told.what


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("[data]\n", '[data]\nletor = "train.txt"\n', "has other data"),
        ("[data]\n", '[data]\nimpressions = "elsewhere"\n', "yours are in"),
        ("[data]\n", "", "has no table"),
        ("unprotected     = false", "unprotected = true", "without noise"),
        ('"client", "secure-aggregation"]', '"client",\n # and\n "server"]', "must allow only secure aggregation"),
        ("placements ", "# placements ", "must allow only secure aggregation"),
        ('accept          = "listed"', 'accept = "within-policy"', "accepts plans without asking"),
    ],
)
def test_a_folder_that_does_not_fit_is_left_as_it_is(tmp_path, before, after, said):
    text = site_template("anna", 0, "friends").replace(before, after)
    site = a_site(tmp_path / "site", text)
    with opened(tmp_path / "anna") as client:
        with pytest.raises(SearchError, match=said):
            joining.join_network(client, site)
        assert joining.state_of(client) == ""
    assert (site / "site.toml").read_text() == text
    assert sorted(path.name for path in site.iterdir()) == ["identity.key", "invitation.json", "kit", "site.toml"]


def test_three_people_learn_together_over_a_network_under_a_secure_sum(tmp_path, monkeypatch):
    """Real processes and certificates; two are served by the page's own thread, one by `fedrank deploy start`."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    monkeypatch.setattr(coordinator, "ROUNDS", 1)
    monkeypatch.setattr(coordinator, "SIGNAL", 0.1)
    monkeypatch.setattr(coordinator, "FEWEST", 3)
    monkeypatch.setattr("fedrank.search.web.SECONDS_BETWEEN_LOOKS", 0.1)
    monkeypatch.setattr(joining, "SECONDS_BETWEEN_LOOKS", 0.5)
    federation = provision_locally(tmp_path / "net", {name: id for id, name in enumerate(PEOPLE)}, "friends")
    sites = "".join(f'[[sites]]\nname = "{name}"\norganisation = "x"\nid = {id}\n' for id, name in enumerate(PEOPLE))
    meets = f'name = "friends"\nhost = "localhost"\nport = {port_of(federation.sites["anna"])}\n'
    (federation.home / "federation.toml").write_text(meets + sites)
    stop, results = threading.Event(), []

    def coordinate():
        results.append(coordinator.aggregate(federation.home, federation.home / "runs", "s", 8.0, stop.is_set))

    with ExitStack() as running:
        clients = {}
        running.enter_context(running_locally(LocalFederation(federation.home, {"cleo": federation.sites["cleo"]})))
        for name in PEOPLE:
            clock = Clock()
            clients[name] = client = running.enter_context(opened(tmp_path / name, clock))
            search_often(client, clock, 3)
            joining.join_network(client, federation.sites[name])
            search_often(client, clock, 31)
            running.enter_context(_taking_part(client))
        wait_for_sites(federation)
        thread = threading.Thread(target=coordinate, daemon=True)
        thread.start()
        try:
            until = time.monotonic() + 90
            while thread.is_alive():
                assert time.monotonic() < until, [client.status().notes for client in clients.values()]
                for client in clients.values():
                    for plan, view in joining.open_plans(client):
                        assert view.refused == ()
                        assert view.sum is not None
                        assert max(view.after.values()) <= 8.0
                        joining.agree(client, plan)
                time.sleep(0.2)
        finally:
            stop.set()
            thread.join()
        [task] = results[0].finished
        made = load_weights(task.folder / "model.json")
        for name, client in clients.items():
            site = federation.sites[name]
            wait_for_trial(client)
            np.testing.assert_array_equal(client.trials.on_trial().weights, made.weights)
            assert client.status().trial.origin.startswith("federation friends, run ")
            assert used_searches(site / "outbox") == set(range(4, 34))  # after joining, each once
            [ledger] = [Account.read(path) for path in site.glob("people/*/ledger")]
            assert ledger.participations.tolist() == [1]
            said = [one.what for one in client.status().sent]
            for phase in ("advertise", "share", "mask", "sign", "open"):
                assert f"round 1: answer to {phase}" in said
            assert {one.to for one in client.status().sent} == {f"friends at localhost:{port_of(site)}"}
            assert client.status().sent_bytes == sum(one.bytes for one in what_was_sent(site)) > 0
        engine = int((federation.sites["anna"] / "engine.pid").read_text())
        joining.leave(clients["anna"], "enough")
        assert not (federation.sites["anna"] / "kit").exists()
        assert sharing.recorded(clients["anna"].folder).numbers() == []
        assert clients["anna"].status().sent_bytes > 0
        until = time.monotonic() + 20
        while psutil.pid_exists(engine):
            assert time.monotonic() < until, "who left is still connected"
            time.sleep(0.1)


def port_of(site):
    return Invitation.read(site / "invitation.json").port


def wait_for_trial(client):
    until = time.monotonic() + 20
    while not client.trials.phase:
        assert time.monotonic() < until, client.status().notes
        time.sleep(0.2)
