"""A bad line between sites and their server: a process that forwards connections, late, slowly and not always.

    python -m tests.deploy.slow_link SETTINGS COUNTS

It listens where sites look for the server, and hands on to where the server is. What a site sends and gets passes one
line in each direction: so many bytes a second, a delay, and now and then a segment that arrives only after it was sent
again, with all that wait behind it. Now and then a connection is cut. SETTINGS may change meanwhile; COUNTS says how
many bytes passed for each site.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import psutil

from fedrank.deploy.flare_local import free_port
from fedrank.deploy.flare_processes import end_with_parent
from fedrank.files import parse_json, write_atomic

SEGMENT = 1448  # bytes, as on most networks
QUEUE = 64  # segments that a line holds before who sends must wait
LOOK = 0.1  # seconds
OTHERS = "others"  # connections that are no site's, such as the coordinator's own


@dataclass(frozen=True)
class Line:
    """How bad a line is. The first one does nothing but count."""

    listen: tuple[str, int] = ("127.0.0.1", 0)
    to: tuple[str, int] = ("127.0.0.1", 0)
    sites: dict[str, str] = field(default_factory=dict)  # folder of each, by which its processes are known
    bad: tuple[str, ...] = ()  # sites behind the bad line
    delay: float = 0.0  # seconds, each way
    rate: float = 0.0  # bytes a second, each way; 0: as fast as it goes
    lost: float = 0.0  # part of the segments
    again: float = 0.4  # seconds until a lost one was sent again: two round trips
    cut: float = 0.0  # seconds between cuts of a connection, on average; 0: never
    down: bool = False  # nothing passes, and nobody is told

    @classmethod
    def read(cls, path: Path) -> Line:
        found = parse_json(path.read_bytes())
        return cls(**found | {key: tuple(found[key]) for key in ("listen", "to", "bad")})

    def write(self, path: Path) -> None:
        write_atomic(path, json.dumps(asdict(self)))


class Forwarder:
    """The process: connections, and how much passed each."""

    def __init__(self, settings: Path, counts: Path) -> None:
        self.settings, self.counts = settings, counts
        self.line = Line.read(settings)
        self.passed: Counter[str] = Counter()
        self.free: dict[tuple[str, str], float] = {}  # when a line has sent what it was given
        self.open: dict[asyncio.StreamWriter, str] = {}
        self.chance = random.Random(1)

    async def run(self) -> None:
        server = await asyncio.start_server(self.accept, *self.line.listen)
        async with server:
            await asyncio.gather(self.look(), self.cuts())

    async def look(self) -> None:
        seen = 0
        while True:
            if (stamp := self.settings.stat().st_mtime_ns) != seen:
                seen, self.line = stamp, Line.read(self.settings)
            write_atomic(self.counts, json.dumps(self.passed))
            await asyncio.sleep(LOOK)

    async def cuts(self) -> None:
        due = 0.0
        while True:
            await asyncio.sleep(LOOK)
            if not self.line.cut:
                due = 0.0
                continue
            due = due or time.monotonic() + self.chance.expovariate(1 / self.line.cut)
            there = [writer for writer, who in self.open.items() if who in self.line.bad]
            if time.monotonic() > due and there:
                due = 0.0
                self.passed["cut"] += 1
                self.chance.choice(there).transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("peername")[1]
        who = await asyncio.to_thread(owner, port, self.line)
        self.passed[f"{who} connections"] += 1
        try:
            there_reader, there = await asyncio.open_connection(*self.line.to)
        except OSError:
            writer.transport.abort()
            return
        self.open[writer] = who
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self.forward(reader, there, who, "up"))
                both.create_task(self.forward(there_reader, writer, who, "down"))
        except* OSError:
            pass
        finally:
            del self.open[writer]
            for one in (writer, there):
                one.transport.abort()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, who: str, way: str) -> None:
        """One direction. What is read at once arrives in its order, each segment when its time has come."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUE)

        async def deliver() -> None:
            while True:
                due, content = await waiting.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                while self.line.down and who in self.line.bad:
                    await asyncio.sleep(LOOK)
                if not content:
                    raise ConnectionResetError
                writer.write(content)
                await writer.drain()

        async def take() -> None:
            last = 0.0
            while True:
                content = await reader.read(SEGMENT)
                self.passed[f"{who} {way}"] += len(content)
                last = max(last, self.due(who, way, len(content)))
                await waiting.put((last, content))
                if not content:
                    return

        async with asyncio.TaskGroup() as both:
            both.create_task(deliver())
            both.create_task(take())

    def due(self, who: str, way: str, size: int) -> float:
        """When a segment arrives at the other end."""
        now, line = time.monotonic(), self.line
        if who not in line.bad:
            return now
        sent = max(now, self.free.get((who, way), 0.0)) + (size / line.rate if line.rate else 0.0)
        self.free[who, way] = sent
        arrives = sent + line.delay
        while self.chance.random() < line.lost:
            self.passed[f"{who} lost"] += 1
            arrives += line.again
        return arrives


def owner(port: int, line: Line) -> str:
    """The site whose process holds the other end of a connection."""
    for connection in psutil.net_connections("tcp"):
        if connection.laddr and connection.laddr.port == port and connection.pid:
            try:
                words = " ".join(psutil.Process(connection.pid).cmdline())
            except psutil.Error:
                break
            return next((name for name, folder in line.sites.items() if f"{folder}/" in f"{words}/"), OTHERS)
    return OTHERS


@dataclass
class Link:
    """A forwarder that runs, as its owner sees it."""

    folder: Path
    line: Line

    @property
    def _settings(self) -> Path:
        return self.folder / "line.json"

    def change(self, **values: object) -> None:
        """Make the line better or worse."""
        self.line = replace(self.line, **values)  # type: ignore[arg-type]
        self.line.write(self._settings)

    def counts(self) -> Counter[str]:
        path = self.folder / "counts.json"
        return Counter(parse_json(path.read_bytes())) if path.exists() else Counter()


@contextlib.contextmanager
def link(folder: Path, home: Path, sites: dict[str, Path]) -> Iterator[Link]:
    """A forwarder at the port that all kits name. The server, which was not started yet, listens beside it.

    Nothing changes but the port at which the server's own kit listens, as behind any port that is forwarded.
    """
    kit = home / "kit" / "startup" / "fed_server.json"
    said = parse_json(kit.read_bytes())
    [server] = said["servers"]
    host, _, port = server["service"]["target"].rpartition(":")
    beside = free_port()
    server["service"]["target"], server["admin_port"] = f"{host}:{beside}", beside
    write_atomic(kit, json.dumps(said), private=True)
    line = Line(("127.0.0.1", int(port)), ("127.0.0.1", beside), {name: str(path) for name, path in sites.items()})
    made = Link(folder, line)
    made.change()
    process = subprocess.Popen([sys.executable, "-m", __name__, str(made._settings), str(folder / "counts.json")])
    try:
        while not reachable(*line.listen):
            assert process.poll() is None, "the line did not come up"
            time.sleep(LOOK)
        yield made
    finally:
        process.kill()
        process.wait()


def reachable(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(Forwarder(Path(sys.argv[1]), Path(sys.argv[2])).run())
