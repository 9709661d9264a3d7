"""The process of a server or a site: checked before it starts, restarted when it dies, stopped with its children.

NVFLARE's modules run in a child process in the foreground. Jobs are children of that child, in separate process groups,
and end with it.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedrank.deploy.flare_certificates import KitError, KitFinding, certificate_facts, host_problems
from fedrank.deploy.flare_hardening import ANSWERED_BY_A_SITE, HEARTBEAT
from fedrank.deploy.flare_kit import CA, KIT, folder_problems
from fedrank.deploy.records import open_log
from fedrank.files import is_locked, locked, private_folder

SERVER, CLIENT = "nvflare.private.fed.app.server.server_train", "nvflare.private.fed.app.client.client_train"
LOG, LOCK, PID = "engine.log", "start.lock", "engine.pid"
FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0  # seconds before a dead process is restarted; doubled each time
STEADY = 30.0  # seconds of running after which a death does not count as a failed start
ENDING = 5.0  # seconds for an orderly end
WATCH = 0.2  # seconds
READ_ONCE = (
    "startup/server.crt",
    "startup/client.crt",
    "disabled_clients.json",
)  # files of a kit that a process reads only when it starts
QUIET = ("GRPC_VERBOSITY", "NONE")

Tell = Callable[[str], None]


@dataclass
class Running:
    """An NVFLARE process."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    read: tuple[int, ...] = ()  # modification times of the kit's files that it read

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
        """Whether the kit has changed since the process read it: a certificate was renewed, or a site excluded."""
        return self.read != _kit_stamp(self.folder / KIT)

    def stop(self) -> None:
        """Stop the process and every job that it started."""
        if self.process is None:
            return
        end_with_children(self.process.pid, ENDING)
        self.process.wait()
        (self.folder / PID).unlink(missing_ok=True)


def serve(
    folder: Path,
    learners: Sequence[str] | None = None,
    tell: Tell = lambda line: None,
    stop: threading.Event | None = None,
) -> None:
    """Run the server of a coordinator's home or the client of a site's folder until `stop`; restart it if it dies.

    The code of `learners` is compiled first: without a cache it takes half a minute, and a job would have to wait. A
    child process does it, because compiled code would take 130 MB of this process, which only watches another one.
    """
    folder, stop = Path(folder).absolute(), stop or threading.Event()
    look_before(folder)
    with locked(folder / LOCK, f"{folder} (`fedrank deploy start`)"):
        end_leftovers(folder)
        _check_port(folder)
        _sweep_jobs(folder / KIT)
        if learners is not None:
            tell("preparing; the first start compiles for half a minute or more")
            warm_up_in_child(learners)
        running = Running(folder)
        try:
            _keep_running(running, tell, stop)
        finally:
            running.stop()
            tell("stopped")


def warm_up_in_child(learners: Sequence[str]) -> None:
    """Compile the code of learners and store it for other processes; a failure only costs the first job time."""
    words = [sys.executable, "-m", "fedrank.deploy.warm_up", *learners]
    subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def look_before(folder: Path) -> None:
    """Raise KitError for a problem that a process would retry forever: chain, expiry, clock, key, name, host."""
    found = folder_problems(folder)
    if not found and not (folder / CA).exists():
        found = host_problems(folder / KIT)
    if found:
        raise KitError(found)


def _check_port(folder: Path) -> None:
    """Raise KitError if another program uses the port of this server, which NVFLARE would not report."""
    if not (folder / CA).exists():
        return
    from fedrank.deploy.check import taken  # not above: it loads the readers of data, and with them the compiler

    if why := taken(port := certificate_facts(folder / KIT).port):
        remedy = "stop the process that uses it, or create a federation with another port"
        raise KitError([KitFinding(f"port {port} cannot be used ({why})", remedy)])


def stop_serving(folder: Path, patience: float = 15.0) -> bool:
    """Stop the process that serves a folder, and wait for it; return False if there is none."""
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
            raise TimeoutError(f"process {pid} has not ended within {patience:g} s; check {Path(folder) / LOG}")
        time.sleep(WATCH)
    return True


def unit(folder: Path, command: str | None = None, user: str | None = None) -> str:
    """A systemd unit that serves a folder and writes only there, to its second place and to its shared folder.

    Its caches are in the folder, too. Numba compiles, so memory may be both writable and executable.
    """
    folder = Path(folder).absolute()
    run = command or f"{shlex.quote(sys.executable)} -m fedrank deploy start --home {shlex.quote(str(folder))}"
    who = f"User={user}\n" if user else ""
    writable = " ".join(f'"{path}"' for path in (folder, *_outside(folder)))
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
Environment="FEDRANK_CACHE={folder / ".engine" / "cache"}"
ReadWritePaths={writable}
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectProc=invisible
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
LockPersonality=yes
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def _outside(folder: Path) -> list[Path]:
    """Folders outside a member's folder into which it writes; the second place is created, as systemd requires."""
    from fedrank.deploy.heads import second_place
    from fedrank.deploy.settings import SITE, read_site
    from fedrank.deploy.transport import shared_folder

    found = [shared] if (shared := shared_folder(folder)) is not None else []
    if (folder / SITE).exists():
        found.append(private_folder(second_place(folder, read_site(folder))))
    return [path.absolute() for path in found]


@contextlib.contextmanager
def ending_on_signals(stop: threading.Event) -> Iterator[None]:
    """Stop in order on SIGTERM and SIGINT; for the main thread."""
    kept = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def child_environment(folder: Path) -> dict[str, str]:
    """Separate HOME and temporary folders for NVFLARE, which writes into both.

    The cache of compiled code stays where it is, although the cache of parsed data is in HOME: nothing is compiled
    twice.
    """
    from fedrank.kernels.compile import COMPILED_IN  # not above: NVFLARE's process compiles nothing

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
    """Stop leftover NVFLARE processes that were started with this kit by a killed process."""
    import psutil

    kit = str(folder / KIT)
    left = [one for one in psutil.process_iter(["cmdline"]) if kit in (one.info["cmdline"] or ())]
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            one.kill()
    psutil.wait_procs(left, timeout=ENDING)
    (folder / PID).unlink(missing_ok=True)


def end_with_children(pid: int, patience: float) -> None:
    """Stop a process and all its descendants, each with its process group."""
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
                tell("the kit has changed; the process is restarted")
                running.stop()
                started = time.monotonic()
                running.start()
                tell(f"started, process {running.pid}")
            continue
        assert running.process is not None
        code = running.process.returncode
        if time.monotonic() - started > STEADY:
            pause = FIRST_PAUSE
        tell(f"process {running.pid} ended with code {code}; it restarts in {pause:g} s")
        end_with_children(running.pid, 0.0)
        if stop.wait(pause):
            return
        pause, started = min(2 * pause, MAX_PAUSE), time.monotonic()
        running.start()
        tell(f"started, process {running.pid}")


def _kit_stamp(kit: Path) -> tuple[int, ...]:
    """Modification times of the files that NVFLARE reads only at start. Keys are written before their certificates."""
    paths = [kit / name for name in READ_ONCE]
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


def _sweep_jobs(kit: Path) -> None:
    """Remove the folders of old jobs, which contain only their logs."""
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
    """Restrict a site's process to starting and ending jobs.

    NVFLARE checks permissions only if a message requests it, and the server writes the message.
    """
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    found = ClientRequestProcessors.request_processors
    ClientRequestProcessors.request_processors = [one for one in found if type(one).__name__ in ANSWERED_BY_A_SITE]


def end_with_parent(parent: int | None = None) -> None:
    """End this process when its parent is gone: NVFLARE's jobs end themselves, but not reliably.

    Without `parent`, a process that belongs to process 1 lost its parent before the first check. In a container the
    parent itself may be process 1, so it passes its id.
    """
    expected = os.getppid() if parent is None else parent
    lost = parent is None and expected == 1

    def watch() -> None:
        while not lost and os.getppid() == expected:
            time.sleep(WATCH)
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    threading.Thread(target=watch, daemon=True).start()


def main(kit: Path, parent: int) -> None:
    """The child: becomes an NVFLARE process."""
    end_with_parent(parent)
    module, *words = _engine_arguments(kit)
    if module == CLIENT:
        _answer_less()
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
