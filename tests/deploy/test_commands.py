"""A federation of processes, operated with `fedrank deploy`: commands that are stopped, sites that come and go."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fedrank.deploy.outbox import Outbox
from tests.deploy.commands import CommandFederation

pytestmark = pytest.mark.process
pytest.importorskip("nvflare", reason="pip install 'fedrank[deploy]'")


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[CommandFederation]:
    made = CommandFederation(tmp_path, rounds=20_000, every=1000, network=True)
    (tmp_path / "other.toml").write_text(made.spec.read_text().replace("rounds = 20000", "rounds = 5"))
    for name in made.names:
        made.fedrank("accept", "other.toml", "--home", name, "--yes")
    yield made
    made.close()


def status(federation: CommandFederation) -> dict:
    return json.loads(federation.fedrank("status", "--home", "hub", "--json"))


def wait_for(true: Callable[[], bool], federation: CommandFederation) -> None:
    deadline = time.monotonic() + 180
    while not true():
        assert time.monotonic() < deadline, {label: federation.said(label)[-2000:] for label in federation.running}
        time.sleep(0.5)


def processes(folder: Path, word: str) -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [one for one in found if word in (line := " ".join(one.info["cmdline"] or ())) and str(folder) in line]


def test_sites_come_and_go_and_a_command_that_ends_holds_nothing(federation):
    def last_round(name: str) -> int:
        return next(site["round"] for site in status(federation)["sites"] if site["name"] == name)

    federation.start()
    command = federation.begin("run", "run", "my.toml", "--home", "hub")
    wait_for(lambda: min(map(last_round, federation.names)) > 2, federation)

    # A site is away: the others go on, status says so, and it comes back into the run.
    federation.fedrank("stop", "--home", "clinic-c")
    federation.running["clinic-c"].wait(60)
    left = last_round("clinic-c")
    wait_for(lambda: last_round("clinic-a") > left + 20, federation)
    link = {site["name"]: site["link"] for site in status(federation)["sites"]}
    assert (link["clinic-a"], link["clinic-c"]) == ("up", "down")
    assert "clinic-c reconnected" not in federation.said("run")
    federation.start("clinic-c")
    wait_for(lambda: last_round("clinic-c") > left, federation)
    assert federation.said("run").count("clinic-c reconnected") == 1

    # The command is killed: its session ends with it, and its job goes on until another run begins.
    command.kill()
    command.wait()
    wait_for(lambda: not processes(federation.folder, "flare_session"), federation)
    reached = last_round("clinic-a")
    wait_for(lambda: last_round("clinic-a") > reached, federation)
    assert (status(federation)["state"], status(federation)["unattended"]) == ("running", True)
    assert federation.begin("other", "run", "other.toml", "--home", "hub").wait(180) == 0, federation.said("other")
    assert (status(federation)["run"], status(federation)["state"]) == ("other/only/fold-1-seed-1", "finished")

    # The first run continues, and ends with Ctrl-C.
    command = federation.begin("run", "run", "my.toml", "--home", "hub")
    reached = max(reached, last_round("clinic-a"))
    wait_for(lambda: status(federation)["run"].startswith("my/") and last_round("clinic-a") > reached, federation)
    command.send_signal(signal.SIGINT)
    assert command.wait(60) == 130
    assert (status(federation)["state"], status(federation)["unattended"]) == ("interrupted", False)
    wait_for(lambda: not processes(federation.folder, "runner_process"), federation)

    # Every message that left is stored and charged.
    for name in federation.names:
        for outbox in (federation.home(name) / "outbox").iterdir():
            ledger = json.loads(federation.fedrank("status", "--home", name, "--json"))
            assert ledger["spent"]["server"] > 0
            assert len(Outbox(outbox, bytes.fromhex(outbox.name))) > 0
