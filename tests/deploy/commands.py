"""A federation of real sites, set up and operated with `fedrank deploy` as the documentation says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.deploy.flare_local import free_port
from tests.deploy.plans import letor_file

SPEC = """\
rounds = {rounds}
evaluate_every = {every}
[data]
train = "train.txt"
test = "test.txt"
[clients]
count = {sites}
interactions = 4
[learner]
name = "pdgd"
{mechanism}
"""
NOISE = '[mechanism]\nname = "gaussian"\nclip = 1.0\nnoise = 8.0\n'
SITE = """\
name = "{name}"
id = {id}
federation = "clinics"
[data]
letor = "train.txt"
[policy]
learners = ["pdgd"]
placements = ["client", "secure-aggregation"]
largest_epsilon = 1000.0
unprotected = true
most_rounds = 1000000
min_sites = {min_sites}
accept = "listed"
"""
FINGERPRINT = re.compile(r"SHA256:\S+")


class CommandFederation:
    """A coordinator `hub` and sites below one folder; a command is a process, as in a terminal."""

    def __init__(
        self, folder: Path, sites: int = 3, rounds: int = 4, network: bool = False, min_sites: int = 2,
        mechanism: str = NOISE, every: int = 2, host: str = "localhost",
    ) -> None:  # fmt: skip
        self.folder, self.network, self.port, self.host = Path(folder), network, free_port(), host
        self.names = [f"clinic-{chr(97 + id)}" if sites <= 26 else f"clinic-{id:02d}" for id in range(sites)]
        self.hub, self.spec = self.folder / "hub", self.folder / "my.toml"
        # The second places of the sites' journals are outside their homes, as on a real machine.
        self.environment = os.environ | {"COLUMNS": "200", "XDG_STATE_HOME": str(self.folder / "state")}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        letor_file(self.folder / "train.txt", seed=1001)
        letor_file(self.folder / "test.txt", seed=1002)
        self.spec.write_text(SPEC.format(rounds=rounds, every=every, sites=sites, mechanism=mechanism))
        self._join_network() if network else self._join_folder()
        for id, name in enumerate(self.names):
            letor_file(self.home(name) / "train.txt", seed=id)
            text = SITE.format(name=name, id=id, min_sites=min_sites)
            (self.home(name) / "site.toml").write_text(text)
            self.fedrank("accept", "my.toml", "--home", name, "--yes")

    def home(self, name: str) -> Path:
        return self.folder / name

    def _join_folder(self) -> None:
        said = self.fedrank("init", "--folder", "shared", "--name", "clinics", "--home", "hub")
        coordinator = FINGERPRINT.search(said)[0]
        for id, name in enumerate(self.names):
            own = ["--name", name, "--id", str(id), "--fingerprint", coordinator, "--home", name]
            key = FINGERPRINT.search(self.fedrank("join", "shared", *own))[0]
            self.fedrank("approve", name, "--id", str(id), "--fingerprint", key, "--home", "hub")

    def _join_network(self) -> None:
        lines = ['name = "clinics"', f'host = "{self.host}"', f"port = {self.port}"]
        for id, name in enumerate(self.names):
            lines += ["[[sites]]", f'name = "{name}"', f'organisation = "Clinic_{id}"', f"id = {id}"]
        (self.folder / "federation.toml").write_text("\n".join(lines) + "\n")
        coordinator = FINGERPRINT.search(self.fedrank("init", "federation.toml", "--home", "hub"))[0]
        for name in self.names:
            self.fedrank("join", f"hub/invitations/{name}.json", "--home", name)
            self.fedrank("approve", f"{name}/{name}.request.zip", "--home", "hub", "--yes")
            self.fedrank("join", f"{name}/{name}.signed.zip", "--fingerprint", coordinator, "--home", name)

    def call(self, *words: str, typed: str = "", within: float = 300.0) -> tuple[int, str]:
        """A command that ends: its code, and what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "fedrank", "deploy", *words], cwd=self.folder, env=self.environment, input=typed,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=within,
        )  # fmt: skip
        return done.returncode, done.stdout

    def fedrank(self, *words: str) -> str:
        """What a command prints that must succeed; in this process, because starting one takes seconds."""
        with contextlib.chdir(self.folder), pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", self.environment["XDG_STATE_HOME"])
            patch.setenv("COLUMNS", "200")
            done = CliRunner().invoke(app, ["deploy", *words])
        assert done.exit_code == 0, f"{words}: {done.output} {done.exception!r}"
        return done.output

    def begin(self, label: str, *words: str) -> subprocess.Popen[bytes]:
        """A command in a terminal of its own, whose output goes to LABEL.txt."""
        with self.output(label).open("ab") as out:
            self.running[label] = subprocess.Popen(
                [sys.executable, "-m", "fedrank", "deploy", *words], cwd=self.folder, env=self.environment, stdout=out,
                stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        return self.running[label]

    def start(self, *names: str) -> None:
        for name in names or ([*(("hub",) if self.network else ()), *self.names]):
            self.begin(name, "start", "--home", name)

    def output(self, label: str) -> Path:
        return self.folder / f"{label}.txt"

    def said(self, label: str) -> str:
        return self.output(label).read_text(errors="replace")

    def close(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
