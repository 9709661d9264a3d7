"""A server and three sites as processes: bytes carried, attacks refused, every kind of process killed.

The server is hostile throughout: it allows everything to everybody, as whoever runs it may. What holds, holds at sites.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="the engine is the extra fedrank[deploy]")

import psutil

from fedrank.deploy import flare_processes, flare_session
from fedrank.deploy.flare_active import Active
from fedrank.deploy.flare_hardening import RIGHTS, ROLES
from fedrank.deploy.flare_jobs import Chain, Job
from fedrank.deploy.flare_kit import CA, PEOPLE, ca_fingerprint
from fedrank.deploy.flare_local import provision_locally, running_locally
from fedrank.deploy.flare_processes import CLIENT, child_environment, stop_serving, unit
from fedrank.deploy.flare_session import Away, Coordinator, NotAllowed
from fedrank.deploy.settings import Person
from tests.deploy.flare_stand_in import CONTROLLER, EXECUTOR, read_rounds

pytestmark = pytest.mark.process

SITES = ("clinic-a", "clinic-b", "clinic-c")
PEOPLE_THERE = {"lead": "lead@evil.org", "member": "member@evil.org"}
ROOT = Path(__file__).parents[2]
WORD = "Paracelsus-4711"  # of a patient's file


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    root = tmp_path_factory.mktemp("federation")
    people = [Person(name, "evil", role) for role, name in PEOPLE_THERE.items()]
    found = provision_locally(root, {name: id for id, name in enumerate(SITES)}, people=people)
    for folder in found.sites.values():
        change(folder / "kit/local/resources.json", class_allow_list=[EXECUTOR])
    kit = found.home / "kit"
    change(kit / "local/resources.json", class_allow_list=["*"])
    change(kit / "local/authorization.json", permissions={role: dict.fromkeys(RIGHTS, "any") for role in ROLES})
    mint_project_admin(found.home)
    with pytest.MonkeyPatch.context() as patch:
        # The engine's processes import stand-ins of this folder.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
        with running_locally(found):
            yield found


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def mint_project_admin(home):
    """A role that the engine's own commands do not issue; whoever holds the CA can."""
    from nvflare.lighter.utils import (
        Identity,
        generate_cert,
        generate_keys,
        load_crt,
        load_private_key_file,
        serialize_cert,
        serialize_pri_key,
    )

    kit = home / PEOPLE / "admin@evil.org"
    shutil.copytree(home / PEOPLE / PEOPLE_THERE["lead"], kit)
    key, public = generate_keys()
    root = load_crt(str(home / CA / "rootCA.pem"))
    certificate = generate_cert(
        subject=Identity("admin@evil.org", "evil", "project_admin"),
        issuer=Identity(root.subject.rfc4514_string().split("CN=")[1].split(",")[0]),
        signing_pri_key=load_private_key_file(str(home / CA / "rootCA.key")),
        subject_pub_key=public,
    )
    (kit / "startup/client.crt").write_bytes(serialize_cert(certificate))
    (kit / "startup/client.key").write_bytes(serialize_pri_key(key))
    said = json.loads((kit / "startup/fed_admin.json").read_text())
    said["admin"]["username"] = "admin@evil.org"
    (kit / "startup/fed_admin.json").write_text(json.dumps(said))


def chain(federation, server, name, sites=SITES, **settings):
    """A run of stand-ins; its folder and its jobs."""
    folder = federation.home.parent / "runs" / name
    run = name.encode().hex().ljust(32, "0")[:32]
    values = {"rounds": 0, "sites": list(sites)} | settings

    def active(stretch):
        return Active(run, stretch, "", "", str(folder), name, "only", values, 1, 1)

    return folder, Chain(federation.home, active, sites, server, CONTROLLER, EXECUTOR)


def asked(folder):
    """What was said to each question: how long it is, how it begins, after how many seconds."""
    return json.loads((folder / "asked.json").read_text())


def test_bytes_are_carried_and_what_is_too_long_is_refused(federation):
    questions = [
        ["clinic-a", "hello", 0],
        ["clinic-a", "", 60 << 20],
        ["clinic-a", "", 300 << 20],
        ["clinic-b", "grow 300000000", 0],
        ["clinic-b", "hello", 0],
    ]
    news = []
    with Coordinator(federation.home) as server:
        folder, jobs = chain(federation, server, "bytes", rounds=40, ask=questions, patience=20.0)
        assert jobs.follow(tell=news.append) == "finished"
    rows = read_rounds(folder)
    assert [row[0] for row in rows] == list(range(40))
    assert all(all(row[4:]) for row in rows)
    assert news[-1].round == 40
    took = statistics.median(row[1] for row in rows)
    assert took < 0.5, "a round takes 20 ms where nobody else works"
    lengths, words, seconds = zip(*[one[1:] for one in asked(folder)], strict=True)
    assert lengths[:2] == (5, 60 << 20)
    assert words[2].startswith("the message is too long (314,572,800 bytes")
    assert "was lost: it is longer than 64 MiB" in words[3]
    assert seconds[3] < 1.0
    assert words[4] == "hello"


def test_silent_broken_and_talkative_sites(federation):
    """The round waits its patience; nothing of what a site says to itself reaches the coordinator."""
    a, b, c = federation.sites.values()
    (a / "word").write_text(f"cannot read the file of {WORD}")
    (b / "broken").write_text(f"line 7 of {WORD} is no number")
    (c / "silent").write_text("10")
    try:
        with Coordinator(federation.home) as server:
            questions = [[name, "hello", 0] for name in SITES]
            folder, jobs = chain(federation, server, "silent", ask=questions, patience=3.0)
            assert jobs.follow() == "finished"
    finally:
        for path in (a / "word", b / "broken", c / "silent"):
            path.unlink()
    (_, _, talkative, _), (_, _, broken, _), (_, _, silent, seconds) = asked(folder)
    assert talkative == "the site cannot answer (ValueError); the reason is in its site.log"
    assert broken == "the site cannot be opened (ValueError); the reason is in the site's site.log"
    assert silent == "clinic-c did not answer within 3 s"
    assert 2.9 < seconds < 5
    assert WORD in (a / "site.log").read_text()
    assert WORD in (b / "site.log").read_text()
    for path in federation.home.rglob("*"):
        assert not path.is_file() or WORD.encode() not in path.read_bytes(), path


def evil_job(folder, name, kind, marker):
    """A job that would leave a file at a site: by its own code, or by a class of Python's."""
    job = Job(name, SITES, CONTROLLER, EXECUTOR).write(folder)
    config = job / "site" / "config" / "config_fed_client.json"
    said = json.loads(config.read_text())
    if kind == "code":
        custom = job / "site" / "custom"
        custom.mkdir()
        (custom / "evil.py").write_text(
            "from pathlib import Path\nfrom nvflare.apis.executor import Executor\n"
            f"Path({str(marker)!r}).touch()\nclass Evil(Executor): pass\n"
        )
        said["executors"][0]["executor"]["path"] = "evil.Evil"
    elif kind == "Popen":
        command = {"args": [sys.executable, "-c", f"open({str(marker)!r}, 'w')"]}
        said["components"] = [{"id": "evil", "path": "subprocess.Popen", "args": command}]
    else:  # hidden in an argument of what is allowed
        command = {"args": [sys.executable, "-c", f"open({str(marker)!r}, 'w')"]}
        said["executors"][0]["executor"]["args"] = {"site": {"path": "subprocess.Popen", "args": command}}
    config.write_text(json.dumps(said))
    return job


COMMANDS = {
    "cat": "cat {site} startup/fed_client.json",
    "ls": "ls {site}",
    "pwd": "pwd {site}",
    "report_env": "report_env {site}",
    "sys_info": "sys_info client {site}",
}
KINDS = ("code", "Popen", "argument")
ATTACKERS = {**PEOPLE_THERE, "project_admin": "admin@evil.org"}


FAILED = "FINISHED:FAILED_TO_RUN"


def attack(home, folder, role, who):
    """What somebody was told: of jobs their last state, of commands the answer."""
    found, ids = {}, {}
    with Coordinator(home, home / PEOPLE / who, who) as session:
        assert session.connect(30), role
        for kind in KINDS:
            job = evil_job(folder / role, f"{role}-{kind}", kind, folder / f"{role}-{kind}")
            try:
                ids[kind] = session.submit(job, job.name)
            except (NotAllowed, Away) as problem:
                found[role, kind] = str(problem)
        for name, words in COMMANDS.items():
            found[role, name] = json.dumps(session.command(words.format(site=SITES[0])))
        deadline = time.monotonic() + 60
        for kind, id in ids.items():
            state, said = session.state(id)
            while not (state.startswith("FINISHED") and (said or state != FAILED)) and time.monotonic() < deadline:
                time.sleep(0.5)  # what sites said is known a moment after the state
                state, said = session.state(id)
            found[role, kind] = str((state, said))
    return found


@pytest.fixture(scope="module")
def attacked(federation, tmp_path_factory):
    """What became of attacks by everybody, and where their marks would be."""
    folder = tmp_path_factory.mktemp("attacks")
    with ThreadPoolExecutor(len(ATTACKERS)) as threads:
        work = [threads.submit(attack, federation.home, folder, *one) for one in ATTACKERS.items()]
        return {key: said for done in work for key, said in done.result().items()}, folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ATTACKERS)
def test_nobody_runs_code_at_a_site(attacked, federation, role, kind):
    said, folder = attacked
    assert not (folder / f"{role}-{kind}").exists(), f"a {role} ran {kind} at a site"
    if role == "member":
        assert said[role, kind].count("is not authorized for 'submit_job'") == len(SITES)
    elif kind == "code":
        assert said[role, kind].count("BYOC not permitted") == len(SITES)
    else:
        assert "FINISHED:COMPLETED" not in said[role, kind]
        refused = (federation.sites[SITES[0]] / "engine.log").read_text().count("ComponentNotAuthorized")
        assert refused >= 2


def test_nobody_shuts_a_site_down(attacked, federation):
    who = ATTACKERS["project_admin"]
    process = (federation.sites[SITES[0]] / "engine.pid").read_text()
    with Coordinator(federation.home, federation.home / PEOPLE / who, who) as session:
        assert session.connect(30)
        for words in ("shutdown", "restart"):  # which the server itself refuses while a job runs
            wait_for(lambda: "invalid_request" in json.dumps(session.command(f"{words} client {SITES[0]}")), 45)  # noqa: B023
    assert (federation.sites[SITES[0]] / "engine.pid").read_text() == process
    assert psutil.pid_exists(int(process))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("role", ATTACKERS)
def test_nobody_looks_at_files_or_operates_a_site(attacked, federation, role, command):
    said = attacked[0][role, command]
    assert "invalid_request" in said  # a site has no answer to it, whatever the server says of rights
    for secret in ("ssl_private_key", "startup\\n", str(federation.sites[SITES[0]]), "python"):
        assert secret not in said, said


def test_strangers_do_not_come_in(federation, tmp_path):
    """With a certificate of another CA, or under a name that is not the certificate's."""
    elsewhere = provision_locally(tmp_path, {"clinic-x": 9})
    foreign = elsewhere.sites["clinic-x"] / "kit"
    ours = json.loads((federation.sites["clinic-a"] / "kit/startup/fed_client.json").read_text())
    theirs = json.loads((foreign / "startup/fed_client.json").read_text())
    theirs["servers"] = ours["servers"]
    (foreign / "startup/fed_client.json").write_text(json.dumps(theirs))
    borrowed = tmp_path / "borrowed" / "kit"
    shutil.copytree(federation.sites["clinic-b"] / "kit", borrowed)
    change(borrowed / "startup/fed_client.json", client=ours["client"] | {"fqsn": "clinic-y"})
    with closing_all() as processes, Coordinator(federation.home) as server:
        for kit, name in ((foreign, "clinic-x"), (borrowed, "clinic-y")):
            words = ["-m", kit, "-s", "fed_client.json", "--set", "secure_train=true", f"uid={name}", "org=x"]
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", CLIENT, *map(str, words), "config_folder="],
                    env=child_environment(kit.parent),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        assert server.connect()
        until = time.monotonic() + 8
        while time.monotonic() < until:
            assert server.connected().keys() == set(SITES)
            time.sleep(1)
    assert ca_fingerprint(elsewhere.home) != ca_fingerprint(federation.home)


class closing_all(list):
    def __enter__(self):
        return self

    def __exit__(self, *problem):
        for process in self:
            process.kill()
            process.wait()


def test_submitting_twice_makes_one_job(federation, tmp_path):
    with Coordinator(federation.home) as server:
        assert server.connect()
        job = Job("twice", SITES, CONTROLLER, EXECUTOR).write(tmp_path)
        first, second = server.submit(job, "twice-1"), server.submit(job, "twice-1")
        assert first == second
        server.end(first)


def test_every_kind_of_process_is_killed_and_back_at_work(federation):
    """kill -9 of the server, its job, a site, its job: rounds go on, and all sites take part again."""

    def of(folder):
        return psutil.Process(int((folder / "engine.pid").read_text()))

    home, site = federation.home, federation.sites["clinic-b"]
    victims = {
        "the server": lambda: of(home),
        "the server's job": lambda: of(home).children()[0],
        "a site": lambda: of(site),
        "a site's job": lambda: of(site).children()[0],
    }
    over = threading.Event()
    words: list[str] = []
    jobs_seen: set[psutil.Process] = set()
    with Coordinator(home) as server:
        folder, jobs = chain(federation, server, "kills", rounds=1_000_000, pause=0.01, patience=60.0)
        following = threading.Thread(target=jobs.follow, kwargs={"stop": over.is_set, "say": words.append})
        following.start()
        try:
            for victim in victims.values():
                wait_for(lambda: whole_rounds(folder, time.time() - 1), 60)
                jobs_seen |= {*of(home).children(), *of(site).children()}
                stretch = read_rounds(folder)[-1][3]
                victim().kill()
                wait_for(lambda at=stretch: any(row[3] > at for row in whole_rounds(folder, 0)), 60)
        finally:
            over.set()
            following.join()
    wait_for(lambda: not any(job.is_running() for job in jobs_seen), 15)
    numbers = [row[0] for row in read_rounds(folder)]
    assert numbers == list(range(len(numbers))), "a round was lost, or done twice"


def test_a_run_whose_command_was_killed_does_not_hold_the_server(federation, tmp_path):
    """Its job continues alone, and ends when another run becomes active: sites participate in one run at a time."""
    with Coordinator(federation.home) as server:
        assert server.connect()
        folder, jobs = chain(federation, server, "orphan", rounds=1_000_000, pause=0.01, patience=60.0)
        orphan = jobs.active(1)
        orphan.write(federation.home)
        server.submit(Job(orphan.job, SITES, CONTROLLER, EXECUTOR).write(tmp_path), "orphan-1")
        wait_for(lambda: whole_rounds(folder, time.time() - 1), 60)
        _, others = chain(federation, server, "another", rounds=20, patience=60.0)
        assert others.follow() == "finished"
        last = len(read_rounds(folder))
        time.sleep(1.0)
        assert len(read_rounds(folder)) == last, "the job of the killed command continues"


def whole_rounds(folder, since):
    return [row for row in read_rounds(folder)[-50:] if row[2] > since and all(row[4:])]


def wait_for(true, patience):
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, "nothing moves any more"
        time.sleep(0.1)


def test_who_looks_after_a_process_is_killed_and_nothing_is_left_running(tmp_path):
    """`fedrank deploy start` of a site in a process of its own, killed once and told to stop once."""
    site = tmp_path / "clinic-d"
    shutil.copytree(provision_locally(tmp_path / "other", {"clinic-d": 4}).sites["clinic-d"], site)
    code = (
        "import sys, threading; from pathlib import Path; from fedrank.deploy import flare_processes as p\n"
        "stop = threading.Event()\n"
        "with p.ending_on_signals(stop): p.serve(Path(sys.argv[1]), stop=stop)"
    )
    for end in (lambda process: process.kill(), lambda process: stop_serving(site)):
        process = subprocess.Popen([sys.executable, "-c", code, str(site)])
        wait_for((site / "engine.pid").exists, 30)
        child = psutil.Process(int((site / "engine.pid").read_text()))
        end(process)
        process.wait(20)
        wait_for(lambda child=child: not child.is_running(), 10)
        (site / "engine.pid").unlink(missing_ok=True)
    assert not stop_serving(site)
    with pytest.raises(ValueError, match=r"site\.toml"):  # the template has no data, so the second place is not known
        unit(site)


@pytest.mark.parametrize("name", ["startup/client.crt", "startup/server.crt", "disabled_clients.json"])
def test_a_process_is_started_again_when_its_kit_changes(tmp_path, monkeypatch, name):
    """A certificate that is renewed and a site that is shut out count at once."""
    changes, sleeper = tmp_path / "kit" / name, tmp_path / "sleeper"
    changes.parent.mkdir(parents=True)
    changes.write_text("old")
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o700)
    monkeypatch.setattr(flare_processes.sys, "executable", str(sleeper))
    running, stop, words = flare_processes.Running(tmp_path), threading.Event(), []
    watching = threading.Thread(target=flare_processes._keep_running, args=(running, words.append, stop))
    watching.start()
    try:
        wait_for(lambda: running.starts == 1, 10)
        before = running.pid
        time.sleep(2 * flare_processes.WATCH)
        assert running.starts == 1
        changes.write_text("new")
        wait_for(lambda: running.starts == 2, 10)
    finally:
        stop.set()
        watching.join()
        running.stop()
    assert not psutil.pid_exists(before)
    assert "the kit has changed" in words[1]


def test_a_session_that_was_asked_much_is_made_anew(federation, monkeypatch):
    monkeypatch.setattr(flare_session, "MAX_QUESTIONS", 3)
    with Coordinator(federation.home) as server:
        assert server.connect()
        first = server._child
        for _ in range(2):
            server.connected()
        with pytest.raises((NotAllowed, Away), match="nothing-of-the-kind"):
            server.state("nothing-of-the-kind")
        assert server._child is not first
        assert server.connected().keys() == set(SITES)


def test_a_second_start_says_who_holds_the_lock(federation):
    from fedrank.deploy.flare_processes import serve
    from fedrank.files import Locked

    with pytest.raises(Locked, match="is in use by process"):
        serve(federation.sites["clinic-a"])
