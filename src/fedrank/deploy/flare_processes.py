"""The process of a server or a site: looked at before it starts, started again when it dies, ended with all it began.

The engine's own modules run in a child, in the foreground. Jobs are children of that child, in process groups of their
own; they end when it does.
"""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedrank.deploy.flare_certificates import KitError, certificate_facts, host_problems
from fedrank.deploy.flare_hardening import ANSWERED_BY_A_SITE, HEARTBEAT
from fedrank.deploy.flare_kit import CA, KIT, folder_problems
from fedrank.deploy.records import open_log
from fedrank.files import is_locked, locked, private_folder

SERVER, CLIENT = "nvflare.private.fed.app.server.server_train", "nvflare.private.fed.app.client.client_train"
LOG, LOCK, PID = "engine.log", "start.lock", "engine.pid"
FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0  # seconds before a process that died is started again; doubled each time
STEADY = 30.0  # seconds after which a process that dies is not one that cannot start
ENDING = 5.0  # seconds to end in order
WATCH = 0.2  # seconds
READ_ONCE = ("startup/server.crt", "startup/client.crt", "disabled_clients.json")  # of a kit, by a process that starts
QUIET = ("GRPC_VERBOSITY", "NONE")

Tell = Callable[[str], None]


@dataclass
class Running:
    """A process of the engine, and how often it was started."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    read: tuple[int, ...] = ()  # of what kit

    @property
    def pid(self) -> int:
        return -1 if self.process is None else self.process.pid

    def start(self) -> None:
        kit = self.folder / KIT
        self.read = _kit_stamp(kit)
        with open_log(self.folder / LOG) as out:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "fedrank.deploy.flare_processes", str(kit), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=kit,
                env=child_environment(self.folder) | self.environment,
                start_new_session=True,
            )
        self.starts += 1
        (self.folder / PID).write_text(f"{self.process.pid}\n")

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def outdated(self) -> bool:
        """Whether the kit has changed since the process read it: a certificate was renewed, or a site shut out."""
        return self.read != _kit_stamp(self.folder / KIT)

    def stop(self) -> None:
        """End the process and every job that it began."""
        if self.process is None:
            return
        end_with_children(self.process.pid, ENDING)
        self.process.wait()
        (self.folder / PID).unlink(missing_ok=True)


def serve(
    folder: Path,
    warm_up: Callable[[], None] | None = None,
    tell: Tell = lambda line: None,
    stop: threading.Event | None = None,
) -> None:
    """Run the server of a coordinator's home, or the client of a site's folder, until `stop`; a death is a new start.

    `warm_up` compiles what is needed: it takes half a minute where nothing is cached, and a job would wait for it.
    """
    folder, stop = Path(folder).absolute(), stop or threading.Event()
    look_before(folder)
    with locked(folder / LOCK, f"{folder} (`fedrank deploy start`)"):
        end_leftovers(folder)
        _sweep_jobs(folder / KIT)
        if warm_up is not None:
            tell("gets ready; the first time this compiles, for half a minute or more")
            warm_up()
        running = Running(folder)
        try:
            _keep_running(running, tell, stop)
        finally:
            running.stop()
            tell("stopped")


def look_before(folder: Path) -> None:
    """Raise KitError where a process would try for ever: chain, expiry, clock, key, name, host."""
    found = folder_problems(folder)
    if not found and not (folder / CA).exists():
        found = host_problems(folder / KIT)
    if found:
        raise KitError(found)


def stop_serving(folder: Path, patience: float = 15.0) -> bool:
    """Ask whoever serves a folder to end, and wait for it; False: nobody did."""
    path = Path(folder) / LOCK
    try:
        pid = int(path.read_text().strip() or "0")
    except (FileNotFoundError, ValueError):
        return False
    if not is_locked(path) or pid <= 0:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while is_locked(path):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} has not ended within {patience:g} s; look at {Path(folder) / LOG}")
        time.sleep(WATCH)
    return True


def unit(folder: Path, command: str | None = None, user: str | None = None) -> str:
    """A systemd unit that serves a folder, and writes nowhere else: what is compiled and parsed lies there, too."""
    folder = Path(folder).absolute()
    run = command or f"{shlex.quote(sys.executable)} -m fedrank deploy start --home {shlex.quote(str(folder))}"
    who = f"User={user}\n" if user else ""
    return f"""\
[Unit]
Description=fedrank: {folder.name}
After=network-online.target
Wants=network-online.target

[Service]
{who}ExecStart={run}
Restart=always
RestartSec=2
KillMode=control-group
TimeoutStopSec=20
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths={folder}
Environment="FEDRANK_CACHE={folder / ".engine" / "cache"}"

[Install]
WantedBy=multi-user.target
"""


@contextlib.contextmanager
def ending_on_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT end a process in order; for the main thread."""
    kept = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def child_environment(folder: Path) -> dict[str, str]:
    """The engine writes into HOME and into the temporary folder; it gets its own of both.

    What was compiled is found where it is, though the cache of parsed data lies in HOME: nobody compiles twice.
    """
    from fedrank.kernels.compile import COMPILED_IN  # not above: the engine's own process compiles nothing

    own = private_folder(folder / ".engine")
    return os.environ | {
        "HOME": str(own),
        "TMPDIR": str(private_folder(own / "tmp")),
        "NUMBA_CACHE_DIR": COMPILED_IN,
        "PYTHONUNBUFFERED": "1",
        "MALLOC_ARENA_MAX": "2",
        QUIET[0]: QUIET[1],
    }


def end_leftovers(folder: Path) -> None:
    """End what somebody who was killed left running: processes of the engine that were started with this kit."""
    import psutil

    kit = str(folder / KIT)
    left = [one for one in psutil.process_iter(["cmdline"]) if kit in (one.info["cmdline"] or ())]
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            one.kill()
    psutil.wait_procs(left, timeout=ENDING)
    (folder / PID).unlink(missing_ok=True)


def end_with_children(pid: int, patience: float) -> None:
    """End a process and all that descend from it, each with its group."""
    import psutil

    try:
        process = psutil.Process(pid)
        everybody = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        process.terminate()
    psutil.wait_procs([process], timeout=patience)
    for one in everybody:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(everybody, timeout=ENDING)


def _keep_running(running: Running, tell: Tell, stop: threading.Event) -> None:
    pause, started = FIRST_PAUSE, time.monotonic()
    running.start()
    tell(f"started, process {running.pid}")
    while not stop.wait(WATCH):
        if running.alive():
            if running.outdated():
                tell("the kit has changed; the process is started again with it")
                running.stop()
                started = time.monotonic()
                running.start()
                tell(f"started, process {running.pid}")
            continue
        assert running.process is not None
        code = running.process.returncode
        if time.monotonic() - started > STEADY:
            pause = FIRST_PAUSE
        tell(f"process {running.pid} ended with {code}; started again in {pause:g} s")
        end_with_children(running.pid, 0.0)
        if stop.wait(pause):
            return
        pause, started = min(2 * pause, MAX_PAUSE), time.monotonic()
        running.start()
        tell(f"started, process {running.pid}")


def _kit_stamp(kit: Path) -> tuple[int, ...]:
    """Of what the engine reads only when it starts, when each was written. Keys are there before their certificates."""
    paths = [kit / name for name in READ_ONCE]
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


def _sweep_jobs(kit: Path) -> None:
    """Remove the folders of old jobs, which hold their logs; what counts lies elsewhere."""
    for path in kit.iterdir():
        if path.is_dir() and re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", path.name):
            shutil.rmtree(path, ignore_errors=True)


def _engine_arguments(kit: Path) -> list[str]:
    if (kit / "startup" / "fed_server.json").exists():
        org = certificate_facts(kit).organisation
        return [
            SERVER,
            "-m",
            str(kit),
            "-s",
            "fed_server.json",
            "--set",
            "secure_train=true",
            f"org={org}",
            "config_folder=",
        ]
    facts = certificate_facts(kit)
    sets = ["secure_train=true", f"uid={facts.subject}", f"org={facts.organisation}", "config_folder="]
    return [CLIENT, "-m", str(kit), "-s", "fed_client.json", "--set", *sets, f"heart_beat_interval={HEARTBEAT}"]


def _answer_less() -> None:
    """Leave a site's process nothing but the beginning and the end of jobs.

    The engine asks for rights only where a message says that it should, and it is the server that writes it.
    """
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    found = ClientRequestProcessors.request_processors
    ClientRequestProcessors.request_processors = [one for one in found if type(one).__name__ in ANSWERED_BY_A_SITE]


def end_with_parent(parent: int | None = None) -> None:
    """End this process when whoever started it is gone: the engine's jobs ask themselves to end, and may not.

    Who has been handed over to process 1 already has lost his parent before he could look.
    """
    expected = os.getppid() if parent is None else parent

    def watch() -> None:
        while os.getppid() == expected != 1:
            time.sleep(WATCH)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main(kit: Path, parent: int) -> None:
    """The child: becomes a process of the engine."""
    end_with_parent(parent)
    module, *words = _engine_arguments(kit)
    if module == CLIENT:
        _answer_less()
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
