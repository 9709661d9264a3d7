"""The NVFLARE commands `nvflare cert` and `nvflare package`, run in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fedrank.extras import missing_extra
from fedrank.files import parse_json, private_folder

# Runs NVFLARE commands, one per line, and prints their output: starting a process takes half a second.
_COMMANDS = """
import io, json, sys
from contextlib import redirect_stdout
from nvflare.cli import main
for line in sys.stdin:
    sys.argv = ["nvflare", "--format", "json", *json.loads(line)]
    said, code = io.StringIO(), 0
    with redirect_stdout(said):
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, said.getvalue()]), flush=True)
"""


class _Commands:
    """A process that runs NVFLARE commands. They write into HOME, which is set to a folder of this home."""

    def __init__(self, home: Path) -> None:
        notes = private_folder(home / ".engine")
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMANDS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | {"HOME": str(notes)},
            cwd=notes,
        )

    def __call__(self, *words: str | Path) -> dict[str, Any]:
        """Return the answer of a command; ValueError gives the reason of a failure."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([str(word) for word in words]) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise self._ended(f"nvflare {words[0]}")
        code, text = json.loads(line)
        answer = parse_json(text.splitlines()[-1]) if text.strip() else {}
        if code:
            said = f"{answer.get('message', text)} {answer.get('hint', '')}".strip()
            raise ValueError(f"nvflare {words[0]} {words[1]}: {said}")
        found: dict[str, Any] = answer["data"]
        return found

    def _ended(self, what: str) -> Exception:
        self._errors.seek(0)
        said = self._errors.read()
        if "No module named 'nvflare'" in said:
            return missing_extra("a federation needs the package nvflare", "deploy")
        return RuntimeError(f"{what} ended unexpectedly: {said.strip()[-1000:]}")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


_running: ContextVar[_Commands | None] = ContextVar("_running", default=None)


@contextmanager
def engine_commands(home: Path) -> Iterator[None]:
    """Run all NVFLARE commands in this context in one process, to create many kits quickly."""
    commands = _Commands(home)
    token = _running.set(commands)
    try:
        yield
    finally:
        _running.reset(token)
        commands.close()


def nvflare(home: Path, *words: str | Path) -> dict[str, Any]:
    """Return the answer of an NVFLARE command."""
    if (commands := _running.get()) is not None:
        return commands(*words)
    with closing(_Commands(home)) as once:
        return once(*words)
