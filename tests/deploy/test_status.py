"""How a federation is doing, from files alone: those that somebody else is writing, or wrote half."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from rich.console import Console

from fedrank.deploy import check as check_module
from fedrank.deploy import consent
from fedrank.deploy import status as status_module
from fedrank.deploy.charging import Charging
from fedrank.deploy.flare_active import reports
from fedrank.deploy.protocol import SAY_HELLO
from fedrank.deploy.settings import plan_prices, site_template
from fedrank.deploy.status import TAIL, about_status, as_facts, last_answers, quality, status
from fedrank.experiments.report.terminal import show
from fedrank.files import locked
from tests.deploy.plans import letor_file, made_plan
from tests.deploy.test_check import MadeUpFacts, MadeUpKits

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
KITS = MadeUpKits(
    MadeUpFacts(not_after=NOW + timedelta(days=20)),
    sites=(
        ("s0", "joined", (NOW + timedelta(days=300)).isoformat()),
        ("s1", "joined", (NOW - timedelta(days=2)).isoformat()),
        ("s2", "left", ""),
    ),
)
SITES = """\
round,site,seconds,bytes_down,bytes_up,refused
1,s0,0.5000,200,230,
1,s1,1.0000,200,230,
2,s0,1.5000,200,230,
2,s1,9.0000,200,0,no answer within 9 s
"""


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    run = folder / "runs" / "first"
    run.mkdir(parents=True)
    text = 'name = "clinics"\nhost = "fl.org"\nport = 8002\n'
    text += "".join(f'[[sites]]\nname = "s{id}"\norganisation = "A"\nid = {id}\n' for id in range(3))
    (folder / "federation.toml").write_text(text)
    (folder / "active.json").write_text(json.dumps(ACTIVE | {"folder": str(run)}))
    return folder


ACTIVE = {"run": "ab" * 16, "stretch": 1, "name": "first", "spec": "rounds = 30\n"}
NEWS = reports(ACTIVE["run"], ACTIVE["stretch"])


def found(folder, kits=KITS):
    return status(folder, kits, NOW.timestamp())


def printed(one):
    console = Console(file=io.StringIO(), width=200)
    show(about_status(one), console)
    json.dumps(as_facts(one), allow_nan=False)
    return console.file.getvalue()


def test_a_home_before_its_first_run(home):
    (home / "active.json").unlink()
    now = found(home)
    assert (now.run, now.state, now.round, now.last_news) == ("", "", 0, None)
    assert [site.name for site in now.sites] == ["s0", "s1", "s2"]
    assert now.days_left == 20
    assert "expires in 20 days" in printed(now)
    assert "has expired" in printed(now)


def test_a_run_under_way(home):
    run = home / "runs" / "first"
    (run / "sites.csv").write_text(SITES + "3,s0,0.5")  # the last row is being written
    (run / "rounds.csv").write_text(
        "round,interactions,bytes_up,bytes_down,ndcg@10\n1,4,230,200,\n2,4,230,200,0.4321\n3,4,230,200,\n"
    )
    told = {
        "at": NOW.timestamp() - 7,
        "run": "first",
        "round": 2,
        "rounds": 30,
        "waiting": {},
        "last_refusal": "s1: no",
    }
    (run / "sites.json").write_text(json.dumps(told))
    now = found(home)
    assert (now.run, now.state, now.round, now.rounds) == ("first", "running", 2, 30)
    assert now.quality == {"ndcg@10": 0.4321}
    assert now.seconds_left == pytest.approx((1.0 + 9.0) / 2 * 28)
    assert now.last_news == pytest.approx(7)
    assert now.last_refusal == "s1: no"
    by_name = {site.name: site for site in now.sites}
    assert (by_name["s0"].round, by_name["s0"].seconds, by_name["s0"].refused) == (2, 1.5, "")
    assert (by_name["s1"].round, by_name["s1"].refused) == (1, "no answer within 9 s")
    assert by_name["s1"].days_left == -2
    text = printed(now)
    assert "round 2 of 30" in text
    assert "0.4321" in text
    assert "Last refusal: s1: no" in text


def test_a_run_that_waits_says_for_whom(home):
    run = home / "runs" / "first"
    (run / "sites.csv").write_text(SITES)
    (run / "sites.json").write_text(json.dumps({"at": 1.0, "round": 3, "waiting": {"s1": "cannot be reached"}}))
    now = found(home)
    assert (now.state, now.round, now.rounds) == ("waiting", 2, 30)
    assert "s1: cannot be reached" in printed(now)


@pytest.mark.parametrize("state", ["finished", "interrupted", "failed"])
def test_a_run_that_ended(home, state):
    run = home / "runs" / "first"
    (run / "run.json").write_text(json.dumps({"status": state}))
    assert found(home).state == state
    assert found(home).seconds_left is None


def test_news_of_a_failure(home):
    (home / NEWS).write_text(json.dumps({"ended": "failed", "why": "features differ", "at": 1.0}))
    now = found(home)
    assert (now.state, now.last_refusal) == ("failed", "features differ")


def test_damaged_files_say_nothing_and_stop_nothing(home):
    run = home / "runs" / "first"
    for path in (home / "active.json", home / NEWS):
        path.write_text("{")
    assert found(home).run == ""
    (home / "active.json").write_text(json.dumps({"folder": str(run)}))
    for name in ("sites.json", "run.json", "sites.csv", "rounds.csv"):
        (run / name).write_bytes(b"\xff[1]\n\x00")
    assert found(home).state == "running"
    assert found(home).quality is None


def test_a_federation_without_an_engine_lists_its_sites(home):
    class BaselineResult(MadeUpKits):
        def members(self, home):
            raise FileNotFoundError

        def facts(self, folder):
            raise ImportError

    now = found(home, BaselineResult())
    assert [site.name for site in now.sites] == ["s0", "s1", "s2"]
    assert now.days_left is None


def test_a_long_table_is_read_from_its_end(tmp_path):
    path = tmp_path / "sites.csv"
    rows = "".join(f"{round},s0,0.01,200,230,\n" for round in range(1, 10_000))
    path.write_text(SITES.splitlines()[0] + "\n" + rows)
    assert path.stat().st_size > TAIL
    assert last_answers(path)["s0"].round == 9_999
    assert last_answers(tmp_path / "none.csv") == {}
    assert quality(tmp_path / "none.csv") is None


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    letor_file(folder / "train.txt")
    text = site_template("clinic-a", 0, "clinics").replace('# letor      = "train.txt"', 'letor = "train.txt"')
    (folder / "site.toml").write_text(text)
    return folder


def test_a_site(site):
    before = found(site)
    assert (before.who, before.federation, before.state, before.spent) == ("clinic-a", "clinics", "", None)
    assert not before.serves
    told = {"at": NOW.timestamp() - 90, "run": "first", "round": 4, "rounds": 10, "refused": ""}
    (site / "status.json").write_text(json.dumps(told))
    (site / "site.log").write_text("2026 round, round 2: Refused: it is too long\n2026 hello, round 0: fine\n")
    promises = [price.guarantee for price in plan_prices(made_plan(), 1e-5)]
    charging = Charging(site / "people", "ab" * 16, 1, promises, 1e-5, 8.0)
    charging.charge(1, np.zeros(1, dtype=np.int64))
    charging.close()
    consent.propose(site, made_plan())
    with locked(site / "lock", "test"):
        now = found(site)
    assert (now.run, now.state, now.round, now.rounds) == ("first", "running", 4, 10)
    assert now.serves
    assert now.spent["server"] == pytest.approx(promises[0].epsilon(1, 1e-5))
    assert now.limit == 8.0
    assert "it is too long" in now.last_refusal
    assert now.to_decide == (f"{made_plan().digest[:12]} (first)",)
    text = printed(now)
    assert "of 8" in text
    assert made_plan().digest[:12] in text
    assert found(site).state == "stopped"


def test_a_site_whose_ledger_is_damaged_says_so(site):
    (site / "people").mkdir()
    (site / "people" / "people.json").write_text("{")
    assert "people.json cannot be read" in found(site).last_refusal


def test_a_site_that_does_not_answer_is_not_shown_as_connected(home):
    run = home / "runs" / "first"
    rows = "3,s0,0.1000,200,230,\n3,s1,9.0000,200,0,s1 cannot be reached (TIMEOUT)\n"
    (run / "sites.csv").write_text(SITES.rpartition("2,s1")[0] + rows)
    links = {site.name: (site.state, site.link) for site in found(home).sites}
    assert links == {"s0": ("joined", "up"), "s1": ("joined", "down"), "s2": ("left", "")}
    assert "down" in printed(found(home))
    # A site that refuses a request is connected.
    (run / "sites.csv").write_text(SITES + "3,s1,0.1000,200,120,the budget is spent\n")
    assert {site.name: site.link for site in found(home).sites}["s1"] == "up"
    # A site that could not be told about the run is not the reason; why it could not be, is.
    (run / "sites.csv").write_text(SITES + f"3,s1,0.1000,200,120,the disk is full\n3,s1,0.1000,200,120,{SAY_HELLO}\n")
    assert {site.name: site.refused for site in found(home).sites}["s1"] == "the disk is full"
    # The last report of the job counts, and so does what the run waits for now.
    (home / NEWS).write_text(json.dumps({"lost": ["s0"], "at": 1.0}))
    (run / "sites.json").write_text(json.dumps({"waiting": {"s1": "no answer for 7 s"}}))
    assert [site.link for site in found(home).sites] == ["down", "down", ""]
    # Nothing is known about links when no run is active.
    (run / "run.json").write_text(json.dumps({"status": "finished"}))
    assert [site.link for site in found(home).sites] == ["", "", ""]


def test_a_run_whose_processes_are_gone_is_not_running(home):
    run = home / "runs" / "first"
    (run / "run.json").write_text(json.dumps({"status": "running"}))
    with locked(run / "lock", "the job"):
        assert found(home).state == "running"
    assert found(home).state == "interrupted"
    assert found(home).seconds_left is None
    with locked(home / "run.lock", "the command"):
        assert found(home).state == "starting"
    (run / "lock").unlink()
    assert found(home).state == "interrupted"
    (run / "run.json").write_text(json.dumps({"status": "interrupted"}))
    assert found(home).state == "interrupted"
    with locked(home / "run.lock", "the command"):  # between two jobs of a run
        assert found(home).state == "starting"


def test_a_run_whose_command_was_killed_says_that_nothing_watches_it(home):
    run = home / "runs" / "first"
    (run / "run.json").write_text(json.dumps({"status": "running"}))
    (home / "run.lock").touch()
    with locked(run / "lock", "the job"):
        assert found(home).unattended
        assert "run the command again" in printed(found(home))
        with locked(home / "run.lock", "the command"):
            assert not found(home).unattended
    assert not found(home).unattended  # the job has ended, too


def test_an_excluded_site_is_shown_also_when_the_run_does_not_wait_for_it(home):
    (home / "runs" / "first" / "left-out.json").write_text(json.dumps({"s1": "excluded after 3 invalid answers"}))
    assert {site.name: site.refused for site in found(home).sites}["s1"] == "excluded after 3 invalid answers"
    assert "excluded after 3" in printed(found(home))


def test_progress_counts_rounds_that_were_recorded_after_the_last_report(home):
    run = home / "runs" / "first"
    (run / "sites.csv").write_text(SITES)
    (run / "sites.json").write_text(json.dumps({"round": 1, "rounds": 10, "waiting": {}}))
    assert found(home).round == 2


def test_a_stopped_run_and_reports_of_an_earlier_one(home):
    content = json.loads((home / "active.json").read_text())
    (home / "active.json").write_text(json.dumps(content | {"run": "cd" * 16}))
    (home / NEWS).write_text(json.dumps({"ended": "finished", "at": 1.0, "why": "old"}))
    assert (found(home).state, found(home).last_refusal) == ("running", "")
    (home / "active.json").write_text(json.dumps(content | {"run": "cd" * 16, "stopped": True}))
    assert found(home).state == "interrupted"


@pytest.mark.parametrize("name", ["model.json", "model-trial-only.json", "model-vetoed.json"])
def test_a_site_that_received_the_model_has_finished(site, name):
    """The process of a shared folder holds the lock also between runs."""
    with locked(site / "lock", "test"):
        assert found(site).state == "idle"
        (site / "status.json").write_text(json.dumps({"at": 1.0, "run": "first", "digest": "ab" * 32, "round": 10}))
        assert found(site).state == "running"
        model = site / "models" / ("ab" * 8) / name
        model.parent.mkdir(parents=True)
        model.write_text("{}")
        assert found(site).state == "finished"


def test_a_site_that_the_server_does_not_admit_says_so(site):
    line = "{:%Y-%m-%d %H:%M:%S},000 - Communicator - INFO - Failed to send heartbeat. Will try again.\n"
    at = NOW.astimezone()
    (site / "engine.log").write_text(line.format(at - timedelta(seconds=90)) + "something else\n")
    assert found(site).link == ""
    (site / "engine.log").write_text(line.format(at - timedelta(seconds=6)) + "something else\n")
    assert found(site).link == "down"
    assert "no longer admits this site" in printed(found(site))
    (site / "engine.log").write_text("Failed to send heartbeat\n")
    assert found(site).link == ""


def test_with_a_shared_folder_the_command_is_the_process_and_no_link_is_known(home, monkeypatch):
    (home / "federation.toml").unlink()
    (home / "federation.json").write_text("{}")
    monkeypatch.setattr(status_module, "_federation", lambda *_: ("clinics", [("s0", "joined", "")]))
    (home / "runs" / "first" / "sites.json").write_text(json.dumps({"waiting": {"s0": "no answer for 15 s"}}))
    assert not found(home).serves
    with locked(home / "folder.lock", "test"), locked(home / "runs" / "first" / "lock", "test"):
        now = found(home)
    assert (now.serves, now.state, now.sites[0].link, now.sites[0].waited_for) == (
        *(True, "waiting", "", "no answer for 15 s"),
    )


def test_a_full_or_read_only_disk_is_shown(home, site, monkeypatch):
    assert (found(home).storage, found(site).storage) == ("", "")
    for free, said in ((0, "is full"), (50_000_000, "has only 50.0 MB left")):
        monkeypatch.setattr(check_module, "_free", lambda folder, free=free: free)
        for folder in (home, site):
            assert said in found(folder).storage
            assert "free disk space" in printed(found(folder))
    monkeypatch.setattr(check_module.os, "access", lambda path, mode: False)
    assert "cannot be written to, so nothing is sent or recorded; make it writable" in found(site).storage


def test_neither(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither"):
        status(tmp_path)
