"""Requests of the coordinator to its own server: start a job, end it, show its state, list connected sites.

The NVFLARE session runs in a child process, which is ended when it hangs: a session with a server that is still
starting waits forever, and an open session prevents its process from ending.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from fedrank.deploy.flare_kit import ADMIN, COORDINATOR
from fedrank.deploy.flare_processes import child_environment, end_with_parent

IMPORTING = 120.0  # seconds until NVFLARE is loaded, which takes long on a busy machine
CONNECTING = 10.0  # seconds; a session takes one second when the server is running
ANSWERING = 20.0  # seconds for all other requests
MAX_QUESTIONS = 500  # after which a new session is opened: each request leaks about 60 kB


class Away(Exception):
    """The server cannot be reached, or was restarted and no longer has the session."""


class NotAllowed(Exception):
    """The server refuses a request; the text gives the reason."""


class Coordinator:
    """A session of the coordinator with the server."""

    def __init__(self, home: Path, kit: Path | None = None, who: str = COORDINATOR) -> None:
        self._home, self._kit, self._who = home, kit or home / ADMIN, who
        self._child: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()
        self._asked = 0

    def connect(self, patience: float = CONNECTING) -> bool:
        """Connect to the server, replacing a broken session; return whether it can be reached."""
        self.close()
        self._asked = 0
        self._child = subprocess.Popen(
            [sys.executable, "-m", "fedrank.deploy.flare_session", str(self._kit), self._who, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=child_environment(self._home),
            cwd=self._home,
        )
        self._answers = queue.Queue()
        threading.Thread(target=_collect, args=(self._child, self._answers), daemon=True).start()
        try:
            self._ask("import", within=IMPORTING)
            self._ask("connect", patience, within=2 * patience)
        except Away:
            self.close()
            return False
        return True

    @property
    def is_open(self) -> bool:
        """Whether there is a session; the server may have stopped meanwhile."""
        return self._child is not None and self._child.poll() is None

    def submit(self, folder: Path, token: str) -> str:
        """Submit the job in a folder and return its id, which is the same for the same token."""
        found: str = self._ask("submit", str(folder), token)
        return found

    def state(self, id: str) -> tuple[str, list[str]]:
        """The state of a job, and the reports of the sites to which it was sent."""
        if self._asked >= MAX_QUESTIONS and not self.connect():
            raise Away("the server refused a new session")
        state, said = self._ask("state", id)
        return state, list(said)

    def end(self, id: str) -> None:
        """End a job; ignore a job that has ended and a server that cannot be reached."""
        with contextlib.suppress(Away, NotAllowed):
            self._ask("end", id)

    def connected(self) -> dict[str, float]:
        """Sites that are connected to the server, and when each last sent a heartbeat (seconds since 1970).

        The server considers a site that has died connected for some time.
        """
        found: dict[str, float] = self._ask("connected")
        return found

    def command(self, line: str) -> Any:
        """The server's answer to a command line."""
        return self._ask("command", line)

    def close(self) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        assert child.stdin is not None
        with contextlib.suppress(OSError):
            child.stdin.close()
        try:
            child.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def _ask(self, what: str, *words: Any, within: float = ANSWERING) -> Any:
        if self._child is None:
            raise Away("the session is not open")
        assert self._child.stdin is not None
        self._asked += 1
        try:
            self._child.stdin.write(json.dumps([what, *words]) + "\n")
            self._child.stdin.flush()
            line = self._answers.get(timeout=within)
        except (OSError, queue.Empty):
            raise Away(f"no answer within {within:g} s") from None
        if not line:
            raise Away("the session ended")
        kind, said = json.loads(line)
        if kind == "away":
            raise Away(said)
        if kind == "refused":
            raise NotAllowed(said)
        return said


def _collect(child: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
    assert child.stdout is not None
    with child.stdout as lines:
        for line in lines:
            answers.put(line)
    answers.put("")


def _serve_session(kit: str, who: str, parent: str) -> None:
    """The child: one session, one request per line.

    It ends with its parent: a request that hangs would otherwise keep it alive, with the rights of an administrator.
    """
    end_with_parent(int(parent))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # NVFLARE prints to standard output
    logging.disable(logging.CRITICAL)
    session: Any = None
    for line in sys.stdin:
        what, *words = json.loads(line)
        try:
            said: Any = None
            if what == "import":
                import nvflare.fuel.flare_api.flare_api as flare_api
            elif what == "connect":
                session = flare_api.new_secure_session(who, kit, timeout=words[0])
            else:
                said = _do(session, what, words)
            answer = ["done", said]
        except Exception as problem:
            name = type(problem).__name__
            kind = "refused" if name in REFUSALS else "away"
            answer = [kind, f"{name}: {problem}"]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)  # an open session would prevent the exit


# All other errors mean that the server cannot be reached or no longer has this session.
REFUSALS = ("AuthorizationError", "InvalidJobDefinition", "JobNotFound", "JobNotRunning", "InvalidArgumentError")


def _do(session: Any, what: str, words: list[Any]) -> Any:
    if what == "submit":
        return session.submit_job(words[0], submit_token=words[1])
    if what == "state":
        meta = session.get_job_meta(words[0])
        return meta.get("status", ""), meta.get("job_deploy_detail") or []
    if what == "end":
        return session.abort_job(words[0])
    if what == "connected":
        return {client.name: client.last_connect_time or 0.0 for client in session.get_system_info().client_info}
    if what == "command":
        return json.loads(json.dumps(session.do_command(words[0]), default=str))
    raise ValueError(f"unknown request {what!r}")


if __name__ == "__main__":
    _serve_session(*sys.argv[1:])
