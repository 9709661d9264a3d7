"""Reading files in a child process with limited time and memory, since parsers meet untrusted files.

The process stays for many files. It receives the folder of a file as an open descriptor, so it opens the file that the
walk found, and answers in lines of JSON. Several files are asked for before their answers are taken, since waiting for
each would take longer than reading most files. If a document takes too much time or memory, the process ends, the file
is skipped with that reason, and the next one gets a new process. Windows cannot pass descriptors, so files are read in
the calling process there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import astuple
from pathlib import Path
from typing import Any, Self

from fedrank.files import private_folder
from fedrank.search.formats import MAX_MANY, Pieces
from fedrank.search.readers import ParsedDocument, Unreadable
from fedrank.search.results import SearchError
from fedrank.search.sources import FoundFile

ISOLATED = sys.platform != "win32"
SECONDS = 20  # CPU time for one document
PATIENCE = 120.0  # seconds without an answer, for example from a disk in a network
MEMORY = 1 << 30  # bytes more than before the first file
LONGEST = 32 << 20  # bytes of an answer
BUFFER = 1 << 16
FOLDER = "reading"  # for copies of databases, inside the search folder
TOO_SLOW, TOO_LARGE = "takes too long to read", "needs too much memory"
PASSING = {"vanished", "not allowed", "cannot be read", "not read in time", "its reader was killed"}  # tried again
_OUT_OF_MEMORY = 3  # exit status


class ReaderProcess:
    """Reads files in a child process, which starts with the first file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        shutil.rmtree(self._folder, ignore_errors=True)  # a kill may have left a copy
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: deque[tuple[FoundFile, str]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._stop()
        while self._asked:
            self._asked.popleft()[0].close()

    def ask(self, found: FoundFile, format: str) -> None:
        """Ask for a file; `pieces` answers in the order of the questions."""
        self._asked.append((found.kept(), format))
        if self._child is not None:
            self._send(*self._asked[-1])

    def pieces(self) -> Pieces:
        """The documents of the first file that was asked for, and reasons for unreadable parts."""
        found, format = self._asked[0]
        try:
            yield from self._answers_of() if ISOLATED else found.pieces(format)
        finally:
            self._asked.popleft()
            found.close()

    def _answers_of(self) -> Pieces:
        if self._child is None:
            self._start()
        healthy = False
        try:
            reasons = set()
            while (answer := self._answer()) is not None:
                if isinstance(answer, Unreadable):
                    reasons.add(str(answer))
                yield answer
            healthy = TOO_LARGE not in reasons
        except TimeoutError:
            yield Unreadable("not read in time")
        except (OSError, EOFError):
            yield Unreadable(self._why_ended())
        except (ValueError, TypeError):
            yield Unreadable("broken")
        finally:
            if not healthy:
                self._stop()

    def _send(self, found: FoundFile, format: str) -> None:
        if sys.platform == "win32":
            raise NotImplementedError
        assert found.folder is not None
        request = json.dumps([os.fsencode(found.name).hex(), found.format, format])
        with contextlib.suppress(OSError):  # it ended, which is noticed when it does not answer
            socket.send_fds(self._socket, [request.encode() + b"\n"], [found.folder])

    def _answer(self) -> ParsedDocument | Unreadable | None:
        """A document, a reason why a part is unreadable, or None at the end of the file."""
        line = self._answers.readline(LONGEST)
        if not line.endswith(b"\n"):
            raise EOFError
        return _checked(json.loads(line))

    def _start(self) -> None:
        private_folder(self._folder)
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "fedrank.search.reader_process"],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, "TMPDIR": str(self._folder)},
            )  # fmt: skip
        self._socket.settimeout(PATIENCE)
        self._answers = self._socket.makefile("rb", BUFFER)
        try:
            self._answer()
        except (OSError, EOFError):
            self._stop()
            raise SearchError("the process that reads files could not start; the message above says why") from None
        for asked in self._asked:
            self._send(*asked)

    def _why_ended(self) -> str:
        if sys.platform == "win32":
            raise NotImplementedError
        if self._child is None:
            return "broken"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(5)
        reasons = {-signal.SIGXCPU: TOO_SLOW, -signal.SIGKILL: "its reader was killed", _OUT_OF_MEMORY: TOO_LARGE}
        return reasons.get(self._child.returncode, "broken")

    def _stop(self) -> None:
        if self._child is not None:
            self._answers.close()
            self._socket.close()
            self._child.kill()
            self._child.wait()
            self._child = None
            shutil.rmtree(self._folder, ignore_errors=True)


def _checked(answer: Any) -> ParsedDocument | Unreadable | None:
    """An answer as a value of the types that it must have, since its process read untrusted files."""
    if isinstance(answer, list):
        *texts, date, sender, recipients, name = answer
        part, kind, title, text, where, link = map(str, texts)
        if kind not in ("file", "mail", "page", "note"):
            raise ValueError
        addresses = tuple(map(str, recipients))
        return ParsedDocument(part, kind, title, text, where, link, int(date), str(sender), addresses, str(name))  # type: ignore[arg-type]
    return None if answer is None else Unreadable(str(answer)[:200])


def main() -> None:
    """Answer requests from standard input, which is a socket, until it is closed."""
    if sys.platform == "win32":
        raise NotImplementedError
    import resource

    def limit(what: int, most: int) -> None:
        with contextlib.suppress(OSError, ValueError):  # some systems do not have all limits
            _, hard = resource.getrlimit(what)
            resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))

    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, MAX_MANY)
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY)
    with socket.socket(fileno=0) as channel, channel.makefile("wb", BUFFER) as answers:

        def answer(value: Any) -> None:
            limit(resource.RLIMIT_CPU, int(time.process_time()) + SECONDS)
            answers.write(json.dumps(value).encode() + b"\n")

        answer(None)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # warnings about files are noise
        while True:
            answers.flush()  # before the next file, which may end this process
            request, folders, *_ = socket.recv_fds(channel, 1 << 16, 1)
            if not request:
                return
            name, place, format = json.loads(request)
            found = FoundFile(b"", b"", 0, 0, place, folders[0], os.fsdecode(bytes.fromhex(name)))
            for piece in found.pieces(format):
                answer(str(piece) if isinstance(piece, Unreadable) else astuple(piece))
            answer(None)
            found.close()


if __name__ == "__main__":
    try:
        main()
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    except ConnectionError:  # the calling process ended
        os._exit(1)
