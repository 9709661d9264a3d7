"""A complete federation on one machine: a server and its sites as processes, with mutual TLS on loopback.

Everything is done as between machines, except that fingerprints are not compared by people: kits are created,
requested, approved and joined, processes are supervised, and jobs are submitted.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrank.deploy.flare_commands import engine_commands
from fedrank.deploy.flare_kit import approve, init, join, request, sign
from fedrank.deploy.flare_processes import serve
from fedrank.deploy.flare_session import Away, Coordinator
from fedrank.deploy.settings import FederationFile, Person, SiteEntry
from fedrank.files import private_folder

HOST = "localhost"
HUB = "hub"  # the coordinator's home, next to the folders of the sites
PATIENCE = 180.0  # seconds until all sites must be connected; on a busy machine they start slowly


@dataclass(frozen=True)
class LocalFederation:
    """A federation on this machine."""

    home: Path  # of the coordinator
    sites: Mapping[str, Path]


def provision_locally(
    folder: Path, sites: Mapping[str, int], name: str = "local", people: Sequence[Person] = ()
) -> LocalFederation:
    """Create the home of a coordinator and the folder of each site, by name and id, without starting a process."""
    folder = private_folder(folder)
    entries = tuple(SiteEntry(site, site.replace("-", "_"), id) for site, id in sites.items())
    with engine_commands(folder):
        made = init(folder / HUB, FederationFile(name, HOST, free_port(), entries, tuple(people)))
        for invitation in made.invitations:
            asked = request(invitation, folder / invitation.stem)
            join(sign(approve(asked, made.home), made.home), folder / invitation.stem, made.fingerprint)
    return LocalFederation(made.home, {site: folder / site for site in sites})


@contextlib.contextmanager
def local_federation(
    sites: Mapping[str, int],
    folder: Path | None = None,
    prepare: Callable[[LocalFederation], None] = lambda federation: None,
    name: str = "local",
    tell: Callable[[str], None] = lambda line: None,
    warm_up: Callable[[], None] = lambda: None,
) -> Iterator[LocalFederation]:
    """A federation with a running server and sites, stopped at the end; without a folder, its files are deleted.

    `prepare` writes the files that sites need before they start, such as `site.toml`. `warm_up` compiles their code
    once for all of them while they start.
    """
    with contextlib.ExitStack() as held:
        if folder is None:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="fedrank-")))
        federation = provision_locally(folder, sites, name)
        prepare(federation)
        held.enter_context(running_locally(federation, tell, warm_up))
        yield federation


@contextlib.contextmanager
def running_locally(
    federation: LocalFederation,
    tell: Callable[[str], None] = lambda line: None,
    warm_up: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Supervise the processes of a federation on this machine; at the start of the block, all sites are connected."""
    stop = threading.Event()
    problems: list[BaseException] = []

    def look_after(folder: Path) -> None:
        try:
            serve(folder, tell=lambda line: tell(f"{folder.name}: {line}"), stop=stop)
        except BaseException as problem:
            problems.append(problem)

    folders = [federation.home, *federation.sites.values()]
    threads = [threading.Thread(target=look_after, args=(folder,), daemon=True) for folder in folders]
    for thread in threads:
        thread.start()
    try:
        warm_up()
        wait_for_sites(federation, problems)
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def wait_for_sites(federation: LocalFederation, problems: list[BaseException] | None = None) -> None:
    """Return when all sites are connected to the server."""
    deadline = time.monotonic() + PATIENCE
    with Coordinator(federation.home) as server:
        here: set[str] = set()
        reached = False
        while True:
            if problems:
                raise problems[0]
            try:
                reached = reached or server.connect()
                here = set(server.connected()) if reached else set()
            except Away:
                reached = False
            if here >= set(federation.sites):
                return
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(set(federation.sites) - here))
                raise TimeoutError(
                    f"{missing} did not start within {PATIENCE:g} s; check engine.log and kit/log.txt in "
                    f"{federation.home.parent}"
                )
            time.sleep(0.2)


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
