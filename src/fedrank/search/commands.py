"""Commands of the user that turn files into text, such as OCR or speech recognition.

A command belongs to an ending of file names. It runs without a shell, for a limited time, and its output is limited. It
runs if the file has no text otherwise, and for every picture.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from fedrank.search.readers import MAX_TEXT, Unreadable, clean, decoded
from fedrank.search.results import SearchError
from fedrank.search.store import Store

SECONDS = 600.0  # wall time of a command
WITHOUT_TEXT = {"not text", "PDF without text"}  # reasons for which a command runs


def commands_of(store: Store) -> dict[str, list[str]]:
    """The commands by ending."""
    found: dict[str, list[str]] = json.loads(store.setting("commands", "{}"))
    return found


def remember_command(store: Store, given: str) -> None:
    """Remember a command, given as in `png=tesseract {file} -`, or remove it, as in `png=`.

    Files with this ending are read again at the next update.
    """
    ending, equals, command = given.partition("=")
    ending = ending.strip().lstrip(".").lower()
    try:
        words = shlex.split(command)
    except ValueError:
        words = ["?"]
    if not equals or not ending.isalnum() or (words and not any("{file}" in word for word in words[1:])):
        raise SearchError(
            "--command must be an ending and a command with {file}, such as 'png=tesseract {file} -' "
            f"(got {given!r}); nothing was changed"
        )
    commands = commands_of(store)
    commands.pop(ending, None)
    if words:
        if (program := shutil.which(words[0])) is None:
            raise SearchError(f"--command: no program {words[0]!r}; install it, or give its path; nothing was changed")
        commands[ending] = [os.path.abspath(program), *words[1:]]
    with store.writing():
        store.set(commands=json.dumps(commands))
        store.db.execute(
            "UPDATE files SET size = -1 WHERE lower(substr(CAST(path AS TEXT), ?)) = ?",
            (-len(ending) - 1, f".{ending}"),
        )


def output_of(command: Sequence[str], path: str) -> str:
    """The text that a command writes about a file; `Unreadable` if it fails."""
    words = [word.replace("{file}", path) for word in command]
    late = threading.Event()
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:
        raise Unreadable("command cannot be run") from None

    def end() -> None:
        late.set()
        _kill(process)

    timer = threading.Timer(SECONDS, end)
    timer.start()
    try:
        assert process.stdout is not None
        with process.stdout:
            data = process.stdout.read(4 * MAX_TEXT)
            whole = not process.stdout.read(1)
        status = process.wait() if whole else 0
    finally:
        timer.cancel()
        _kill(process)
    if late.is_set():
        raise Unreadable("command takes too long")
    if status:
        raise Unreadable("command failed")
    return clean(decoded(data))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a command with its own processes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        elif process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
