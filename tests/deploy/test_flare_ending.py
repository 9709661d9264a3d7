"""Jobs and sessions that outlive their command end by themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from fedrank.deploy import flare_jobs, flare_processes
from fedrank.deploy.flare_active import Active, HubNews, HubVoice, StopMark
from fedrank.deploy.flare_jobs import INTERRUPTED, Chain

FIRST = Active("ab" * 16, 1, "{}", "", "/nowhere", "first", "only", {}, 1, 1)
OTHER = replace(FIRST, run="cd" * 16, name="other")


def test_a_job_ends_when_its_run_was_stopped_or_another_one_became_active(tmp_path):
    for later in (replace(FIRST, stopped=True), OTHER, replace(FIRST, stretch=2)):
        FIRST.write(tmp_path)
        stop = StopMark(tmp_path, FIRST, every=0.0)
        assert not stop()
        later.write(tmp_path)
        assert stop()
        FIRST.write(tmp_path)
        assert stop()  # a job that was told to end does not continue


def test_a_file_that_cannot_be_read_ends_no_job(tmp_path):
    stop = StopMark(tmp_path, FIRST, every=0.0)
    assert not stop()
    (tmp_path / "active.json").write_text("{")
    assert not stop()


def test_the_file_is_read_only_at_intervals(tmp_path):
    FIRST.write(tmp_path)
    stop = StopMark(tmp_path, FIRST, every=3600.0)
    assert not stop()
    OTHER.write(tmp_path)
    assert not stop()


def test_a_job_that_was_replaced_does_not_overwrite_the_news_of_the_next(tmp_path):
    FIRST.write(tmp_path)
    with HubVoice(tmp_path, FIRST, list) as voice:
        OTHER.write(tmp_path)
        HubNews(OTHER.run, 1, 1.0, os.getpid(), ended="finished").write(tmp_path)
        voice.end("interrupted")
    news = HubNews.read(tmp_path, OTHER)
    assert news is not None
    assert news.ended == "finished"
    replace(OTHER, stretch=2).write(tmp_path)
    assert not [*tmp_path.glob("hub-*")]  # reports of earlier jobs are removed


class ServerThatIsAway:
    """A server to which the session is lost once a job was submitted."""

    is_open = True

    def __init__(self) -> None:
        self.asked_to_end: list[str] = []

    def connected(self) -> dict[str, float]:
        return {"s0": 0.0}

    def submit(self, job, token) -> str:
        return token

    def end(self, id) -> None:  # as `Coordinator.end`, which ignores a server that cannot be reached
        self.asked_to_end.append(id)

    def state(self, id):
        return "RUNNING", []


def test_a_stopped_run_ends_its_job_without_the_server(tmp_path, monkeypatch):
    monkeypatch.setattr(flare_jobs, "read_members", lambda home: {})
    chain = Chain(tmp_path, lambda stretch: replace(FIRST, stretch=stretch), ["s0"], ServerThatIsAway())
    assert chain.follow(stop=lambda: True) == INTERRUPTED
    assert Active.read(tmp_path).stopped
    assert StopMark(tmp_path, FIRST)()
    # The next command continues with the next stretch, which is not stopped.
    assert chain._first() == 2
    replace(FIRST, stretch=2).write(tmp_path)
    assert not StopMark(tmp_path, replace(FIRST, stretch=2))()


def test_a_lost_site_is_back_when_the_server_heard_it_again(tmp_path):
    """The server lists a site that died for half a minute: a new job would begin without it, again and again."""
    heard = {"s0": 100.0}
    server = ServerThatIsAway()
    server.connected = lambda: heard
    chain = Chain(tmp_path, lambda stretch: FIRST, ["s0"], server)
    assert chain._over("job", None, 0.0, {"s0": 101.0}) == ""
    heard["s0"] = 103.0
    assert chain._over("job", None, 0.0, {"s0": 101.0}) == "s0 reconnected"
    assert chain._over("job", None, 0.0, {}) == ""
    assert chain._over("job", None, 0.0, {"s1": 101.0}) == ""


def test_a_process_whose_parent_is_process_1_of_a_container_continues(monkeypatch):
    ended = []
    monkeypatch.setattr(flare_processes.os, "getppid", lambda: 1)
    monkeypatch.setattr(flare_processes.os, "kill", lambda *what: ended.append(what))
    monkeypatch.setattr(flare_processes, "WATCH", 0.01)
    flare_processes.end_with_parent(1)
    time.sleep(0.1)
    assert ended == []
    flare_processes.end_with_parent()  # its parent was gone before
    time.sleep(0.1)
    assert len(ended) == 1
    monkeypatch.setattr(flare_processes.os, "getppid", lambda: 7)  # ends the first watch, too
    time.sleep(0.1)
    assert len(ended) == 2


PARENT = """
import sys, time
from pathlib import Path
from fedrank.deploy.flare_session import Coordinator
server = Coordinator(Path(sys.argv[1]))
import threading
threading.Thread(target=server.connect, args=(600.0,), daemon=True).start()
while server._child is None:
    time.sleep(0.01)
print(server._child.pid, flush=True)
time.sleep(600)
"""
HANGS = """
import os, pathlib, time
def new_secure_session(*words, **options):
    pathlib.Path(os.environ["HUNG"]).touch()
    time.sleep(600)
"""


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="uses SIGKILL")
def test_an_administrator_session_that_hangs_ends_with_its_command(tmp_path):
    import psutil

    module = tmp_path / "nvflare" / "fuel" / "flare_api"
    module.mkdir(parents=True)
    for folder in (module, module.parent, module.parent.parent):
        (folder / "__init__.py").write_text("")
    (module / "flare_api.py").write_text(HANGS)
    hung = tmp_path / "hung"
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "HUNG": str(hung)},
    )
    with command:
        try:
            child = psutil.Process(int(command.stdout.readline()))
            deadline = time.monotonic() + 60
            while not hung.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert hung.exists(), "the session did not start"
        finally:
            command.send_signal(signal.SIGKILL)
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_the_mark_is_part_of_the_file(tmp_path):
    replace(FIRST, stopped=True).write(tmp_path)
    content = json.loads((tmp_path / "active.json").read_text())
    assert content["stopped"] is True
    content.pop("stopped")  # as an earlier command wrote it
    (tmp_path / "active.json").write_text(json.dumps(content))
    assert not Active.read(tmp_path).stopped
