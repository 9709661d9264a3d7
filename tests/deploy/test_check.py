"""Before a process starts: one line for each thing, and what to do about it. No engine is needed."""

from __future__ import annotations

import errno
import io
import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedrank.deploy import consent
from fedrank.deploy.charging import Charging
from fedrank.deploy.check import Looks, _disk, about_checks, check, is_fine, taken, unreachable
from fedrank.deploy.heads import upgrade
from fedrank.deploy.identity import new_identity
from fedrank.deploy.settings import plan_prices, site_template
from fedrank.experiments.report.terminal import show
from fedrank.files import error_message, locked
from tests.deploy.plans import NOISE, letor_file, made_plan

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class MadeUpFacts:
    path: Path = Path("kit/startup/client.crt")
    subject: str = "clinic-a"
    not_before: datetime = NOW - timedelta(days=100)
    not_after: datetime = NOW + timedelta(days=200)
    host: str = "fl.clinics.org"
    port: int = 8002


@dataclass(frozen=True)
class MadeUpKits:
    known: MadeUpFacts = MadeUpFacts()
    wrong: tuple = ()
    wrong_host: tuple = ()
    sites: tuple = ()

    def facts(self, folder):
        return self.known

    def problems(self, folder, now):
        assert self.known.not_before < now < self.known.not_after  # dates have lines of their own
        return self.wrong

    def host_problems(self, folder):
        return self.wrong_host

    def members(self, home):
        return self.sites


def looks(kits=None, **changes):
    usual = Looks(
        kits or MadeUpKits(),
        unreachable=lambda host, port: "",
        taken=lambda port: "",
        room=lambda folder: 10**10,
        now=lambda: NOW,
    )
    return replace(usual, **changes)


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir(mode=0o700)
    letor_file(folder / "train.txt")
    text = site_template("clinic-a", 0, "clinics").replace('# letor      = "train.txt"', 'letor = "train.txt"')
    (folder / "site.toml").write_text(text)
    new_identity(folder)
    for path in folder.iterdir():
        path.chmod(0o600)
        os.utime(path, (NOW.timestamp(), NOW.timestamp()))
    return folder


def lines(folder, plan=None, **changes):
    return {line.what: line for line in check(folder, plan, looks(**changes))}


def wrong(found):
    return {what for what, line in found.items() if line.state == "wrong"}


def test_a_sound_site_has_a_line_for_everything(site):
    found = check(site, None, looks())
    assert [line.what for line in found] == [
        *(
            "chain",
            "expiry",
            "clock",
            "host",
            "port",
            "folder",
            "data",
            "features",
            "policy",
            "ledger",
            "journal",
            "disk",
        )
    ]
    assert {line.state for line in found} == {"fine"}
    assert all(line.said and not line.remedy for line in found)
    assert is_fine(found)
    console = Console(file=io.StringIO(), width=200)
    show(about_checks(found), console)
    assert "12 queries" in console.file.getvalue()


def test_what_is_wrong_with_a_chain_is_told_with_its_remedy(site):
    kits = MadeUpKits(wrong=(("client.crt was not issued by the CA beside it", "ask the coordinator"),))
    found = lines(site, kits=kits)
    assert wrong(found) == {"chain"}
    assert (found["chain"].said, found["chain"].remedy) == kits.wrong[0]


def test_no_kit_at_all(site):
    class BaselineResult(MadeUpKits):
        def facts(self, folder):
            raise FileNotFoundError("startup has no certificate")

    found = lines(site, kits=BaselineResult())
    assert wrong(found) == {"chain"}
    assert found["expiry"].state == "unknown"
    assert found["data"].state == "fine"


@pytest.mark.parametrize(
    ("begins", "ends", "what", "state"),
    [
        (-100, -1, "expiry", "wrong"),
        (-100, 10, "expiry", "soon"),
        (-100, 31, "expiry", "fine"),
        (1, 9, "clock", "wrong"),
    ],
)
def test_dates(site, begins, ends, what, state):
    known = MadeUpFacts(not_before=NOW + timedelta(days=begins), not_after=NOW + timedelta(days=ends))
    found = lines(site, kits=MadeUpKits(known))
    assert found[what].state == state
    if state != "fine":
        assert found[what].remedy
        assert (known.not_after if what == "expiry" else known.not_before).strftime("%Y-%m-%d") in found[what].said


def test_a_clock_that_lies_behind_what_was_written(site):
    ahead = NOW.timestamp() + 3600
    os.utime(site / "train.txt", (ahead, ahead))
    assert "was written on 2026-11-16 13:00" in lines(site)["clock"].said
    assert wrong(lines(site)) == {"clock"}


def test_host_and_port(site):
    nowhere = lines(site, kits=MadeUpKits(wrong_host=(("the host has no address", "check DNS"),)))
    assert wrong(nowhere) == {"host"}
    assert nowhere["port"].state == "unknown"
    closed = lines(site, unreachable=lambda host, port: f"refused by {host}:{port}")
    assert wrong(closed) == {"port"}
    assert "refused by fl.clinics.org:8002" in closed["port"].said


def test_real_ports():
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert unreachable("127.0.0.1", port) == ""
        assert taken(port)
    assert unreachable("127.0.0.1", port)
    assert taken(port) == ""


def test_a_folder_that_others_can_read(site):
    site.chmod(0o750)
    found = lines(site)
    assert wrong(found) == {"folder"}
    assert "is accessible to other users (mode 750)" in found["folder"].said
    assert found["folder"].remedy == f"chmod 700 {site}"


def test_settings_and_data(site):
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace('accept          = "listed"', 'accept = "everything"'))
    found = lines(
        site, now=lambda: datetime.now(UTC), kits=MadeUpKits(MadeUpFacts(not_after=NOW + timedelta(days=9999)))
    )
    assert "policy.accept" in found["policy"].said
    assert "data" not in found
    (site / "site.toml").write_text(text)
    (site / "train.txt").write_text("0 qid:1 1:0.5\n0 qid:1 1:0.7\n")
    os.utime(site / "site.toml", (NOW.timestamp(), NOW.timestamp()))
    os.utime(site / "train.txt", (NOW.timestamp(), NOW.timestamp()))
    assert "no document is relevant" in lines(site)["data"].said
    (site / "train.txt").write_text("not letor\n")
    os.utime(site / "train.txt", (NOW.timestamp(), NOW.timestamp()))
    damaged = lines(site)
    assert wrong(damaged) == {"data"}
    assert "line 1" in damaged["data"].said
    assert damaged["features"].state == "unknown"


def test_a_plan_is_compared_with_data_and_policy(site):
    plan = made_plan(mechanism=NOISE | {"noise": 200.0})
    found = lines(site, plan)
    assert wrong(found) == set()  # the last policy line is the summary
    policy = [line for line in check(site, plan, looks()) if line.what == "policy"]
    assert "has not been accepted at this site" in policy[0].said
    consent.accept(site, plan)
    for path in site.rglob("*"):
        os.utime(path, (NOW.timestamp(), NOW.timestamp()))
    assert is_fine(check(site, plan, looks()))
    other = made_plan(features=46, rounds=5000)
    said = [line for line in check(site, other, looks()) if line.state == "wrong"]
    assert any("this site has 5, the plan 46" in line.said for line in said)
    assert any("most_rounds" in line.said and line.remedy for line in said)


def test_an_unprotected_policy_stands_out(site):
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace("unprotected     = false", "unprotected = true"))
    os.utime(site / "site.toml", (NOW.timestamp(), NOW.timestamp()))
    assert lines(site)["policy"].state == "soon"
    assert "WITHOUT NOISE" in lines(site)["policy"].said


def charged(site, rounds, limit=8.0, delta=1e-5):
    promises = [price.guarantee for price in plan_prices(made_plan(), delta)]
    charging = Charging(site / "people", "ab" * 16, 1, promises, delta, limit)
    for round in range(1, rounds + 1):
        charging.charge(round, np.zeros(1, dtype=np.int64))
    charging.close()
    upgrade(site)
    for path in site.rglob("*"):
        os.utime(path, (NOW.timestamp(), NOW.timestamp()))


def test_the_ledger_is_read_and_what_it_promised_holds(site):
    charged(site, 3)
    found = lines(site)
    assert found["ledger"].state == "fine"
    assert "of 8 spent in 1 run" in found["ledger"].said
    text = (site / "site.toml").read_text()
    for before, after, said in (
        ("largest_epsilon = 8.0", "largest_epsilon = 9.0", "promised its people a limit of ε = 8"),
        ("delta           = 1e-5", "delta = 1e-4", "computed with δ = 1e-05"),
        ("largest_epsilon = 8.0", "largest_epsilon = 0.1", "of 0.1 spent"),
    ):
        (site / "site.toml").write_text(text.replace(before, after))
        os.utime(site / "site.toml", (NOW.timestamp(), NOW.timestamp()))
        found = lines(site)
        assert wrong(found) == {"ledger"}
        assert said in found["ledger"].said
        assert found["ledger"].remedy


def test_a_damaged_or_lost_ledger(site):
    charged(site, 3)
    content = (site / "people" / "people.json").read_text()
    (site / "people" / "people.json").write_text("{")
    assert wrong(lines(site)) == {"ledger"}
    (site / "people" / "people.json").unlink()
    os.utime(site / "people", (NOW.timestamp(), NOW.timestamp()))
    assert "is missing, but its people were charged" in lines(site)["ledger"].said
    (site / "people" / "people.json").write_text(content)
    [log] = [path for path in (site / "people").rglob("*") if path.is_file() and path.name == "terms.json"]
    log.write_text("{}")
    os.utime(site / "people", (NOW.timestamp(), NOW.timestamp()))
    assert wrong(lines(site)) == {"ledger", "journal"}
    log.unlink()
    assert "terms.json is missing" in lines(site)["ledger"].said


def test_a_full_disk(site):
    found = lines(site, room=lambda folder: 10**6)
    assert wrong(found) == {"disk"}
    assert "1.0 MB free" in found["disk"].said


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    text = 'name = "clinics"\nhost = "fl.org"\nport = 8002\n'
    text += "".join(f'[[sites]]\nname = "s{id}"\norganisation = "A"\nid = {id}\n' for id in range(3))
    (folder / "federation.toml").write_text(text)
    (folder / "federation.toml").chmod(0o600)
    os.utime(folder / "federation.toml", (NOW.timestamp(), NOW.timestamp()))
    return folder


def test_a_coordinator(home):
    far = (NOW + timedelta(days=300)).isoformat()
    sites = tuple((f"s{id}", "joined", far) for id in range(3))
    found = check(home, None, looks(MadeUpKits(sites=sites)))
    assert {line.state for line in found} == {"fine"}
    assert [line.what for line in found] == [
        *("chain", "expiry", "clock", "host", "port", "folder", "policy", "sites", "disk")
    ]
    soon = (NOW + timedelta(days=3)).isoformat()
    past = (NOW - timedelta(days=3)).isoformat()
    sites = (("s0", "joined", soon), ("s1", "invited", ""), ("s2", "joined", past), ("s3", "left", past))
    said = [line for line in check(home, None, looks(MadeUpKits(sites=sites))) if line.what == "sites"]
    assert [line.state for line in said] == ["soon", "soon", "wrong"]
    assert "not joined yet: s1" in said[0].said
    assert "s0 expires in 3 days" in said[1].said
    assert "s2" in said[2].said


def test_a_port_that_somebody_else_has(home):
    found = lines(home, taken=lambda port: "in use")
    assert wrong(found) == {"port"}
    with locked(home / "start.lock", "test"):
        os.utime(home / "start.lock", (NOW.timestamp(), NOW.timestamp()))
        assert lines(home, taken=lambda port: "in use")["port"].state == "fine"


def test_neither_a_site_nor_a_coordinator(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither site\.toml nor federation\.toml"):
        check(tmp_path)


@pytest.mark.parametrize(("number", "remedy"), [(errno.ENOSPC, "free disk space"), (errno.EROFS, "make it writable")])
def test_the_remedy_for_a_disk_is_that_of_its_problem(tmp_path, monkeypatch, number, remedy):
    def fails(path, *more):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("fedrank.deploy.check.os.open", fails)
    line = _disk(tmp_path, Looks(MadeUpKits(), room=lambda folder: 10**12), 0)
    assert (line.state, line.remedy) == ("wrong", remedy)


def test_a_read_only_home_has_a_remedy():
    problem = OSError(errno.EROFS, os.strerror(errno.EROFS), "home/lock")
    assert "home/lock: Read-only file system; mount it for writing, or use another folder" in error_message(problem)
