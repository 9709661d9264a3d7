"""A federation on separate hosts: `python -m tests.deploy.hosts` (as root, on Linux).

Every member is in its own network namespace, with an address, a host name, a home and an account; a router is
between them. The router forwards only connections that a site opens to the server's port, drops one packet in a
hundred, and delays packets where the kernel can (netem). In the middle of the run two sites lose their lines and get
them back. Without the privilege it says what is missing and ends with 0. Nothing leaves the namespaces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedrank.deploy.outbox import Outbox
from fedrank.privacy.population import Population
from tests.deploy.commands import CommandFederation

HUB, SERVER = "hub", "hub.fedrank.test"
FIRST_ACCOUNT = 23_001  # user ids that need no entry in the list of users
TOOLS = ("ip", "nft", "unshare", "setpriv", "mount", "hostname")
LOSS, DELAY = 1, 30  # per cent of packets; milliseconds each way
AWAY = 30.0  # seconds without a line
REPOSITORY = Path(__file__).parents[2]
# Arguments: host name, file of hosts, account, home of the user who runs this, folders below it that are kept, and the
# command. On a separate host, the home of that user would not be there.
ENTER = """\
set -eu
name=$1 hosts=$2 account=$3 hidden=$4 kept=$5; shift 5
mount --make-rprivate /
hostname "$name"
mount --bind "$hosts" /etc/hosts
mount --bind /dev/null /etc/resolv.conf  # no name server, instead of one that does not answer
held=$(mktemp -d); number=0
for path in $kept; do number=$((number + 1)); mkdir "$held/$number"; mount --bind "$path" "$held/$number"; done
mount -t tmpfs -o mode=0755 tmpfs "$hidden"; number=0
for path in $kept; do number=$((number + 1)); mkdir -p "$path"; mount --bind "$held/$number" "$path"; done
exec setpriv --reuid "$account" --regid "$account" --clear-groups --no-new-privs --bounding-set=-all "$@"
"""


def missing() -> str:
    """What this machine lacks for separate hosts; "" if nothing."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid():
        return "network namespaces and accounts need root"
    if lacks := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(lacks)} not found; install iproute2, nftables and util-linux"
    name = f"fedrank-try-{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
        run("ip", "netns", "exec", name, "unshare", "--mount", "--uts", "nft", "list", "ruleset")
        return ""
    except subprocess.CalledProcessError as problem:
        return f"namespaces cannot be made here: {problem.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def run(*words: str, given: str = "") -> str:
    return subprocess.run(words, input=given, capture_output=True, text=True, check=True, timeout=60).stdout


def say(line: str) -> None:
    print(line, flush=True)


class Hosts:
    """Namespaces around a router, named by member."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.mark = list(names), f"fr{os.getpid()}"
        self.router, self.delayed = f"{self.mark}-router", False

    def namespace(self, name: str) -> str:
        return f"{self.mark}-{name}"

    def address(self, name: str) -> str:
        return f"198.18.{self.names.index(name)}.2"  # a range for tests of networks, routed nowhere

    def make(self, port: int) -> None:
        run("ip", "netns", "add", self.router)
        run("ip", "netns", "exec", self.router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for number, name in enumerate(self.names):
            inside, line = self.namespace(name), f"line{number}"
            run("ip", "netns", "add", inside)
            run("ip", "-n", self.router, "link", "add", line, "type", "veth", "peer", "name", "eth0", "netns", inside)
            run("ip", "-n", self.router, "addr", "add", f"198.18.{number}.1/24", "dev", line)
            run("ip", "-n", inside, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            for where, device in ((self.router, line), (inside, "eth0"), (inside, "lo")):
                run("ip", "-n", where, "link", "set", device, "up")
            run("ip", "-n", inside, "route", "add", "default", "via", f"198.18.{number}.1")
            delay = ["tc", "-n", inside, "qdisc", "add", "dev", "eth0", "root", "netem", "delay", f"{DELAY}ms"]
            if shutil.which("tc"):
                self.delayed = not subprocess.run(delay, capture_output=True, check=False).returncode
        rules = f"""
            table ip outbound {{
              chain forward {{
                type filter hook forward priority 0; policy drop;
                numgen random mod 100 < {LOSS} counter drop
                ct state established,related accept
                ip daddr {self.address(HUB)} tcp dport {port} accept
              }}
            }}"""
        run("ip", "netns", "exec", self.router, "nft", "-f", "-", given=f"{rules}\n")

    def line(self, name: str, up: bool) -> None:
        run("ip", "-n", self.router, "link", "set", f"line{self.names.index(name)}", "up" if up else "down")

    def lost(self) -> int:
        """Packets that the router dropped at random."""
        found = json.loads(run("ip", "netns", "exec", self.router, "nft", "-j", "list", "ruleset"))
        parts = [part for rule in found["nftables"] if "rule" in rule for part in rule["rule"]["expr"]]
        return sum(part["counter"]["packets"] for part in parts if "counter" in part)

    def close(self) -> None:
        for name in (*map(self.namespace, self.names), self.router):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class HostFederation(CommandFederation):
    """The commands of each member on its own host and under its own account."""

    def __init__(self, folder: Path, hosts: Hosts, rounds: int) -> None:
        super().__init__(folder, len(hosts.names) - 1, rounds, network=True, host=SERVER)
        self.hosts = hosts
        self.accounts = {name: FIRST_ACCOUNT + number for number, name in enumerate(hosts.names)}
        self.folder.chmod(0o755)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts.address(HUB)} {SERVER}\n")
        (self.folder / "hosts").chmod(0o644)
        for path in self.folder.glob("*.t*"):  # specs and data of all
            path.chmod(0o644)
        for name, account in self.accounts.items():
            for path in (self.home(name), self.state(name)):
                path.mkdir(mode=0o700, exist_ok=True)
                run("chown", "-R", f"{account}:{account}", str(path))

    def state(self, name: str) -> Path:
        return self.folder / f"{name}-state"

    def on(self, name: str, *words: str) -> list[str]:
        """A command on the host of a member, which replaces every process in between."""
        home, kept = str(Path.home()), {sys.base_prefix, sys.prefix, str(REPOSITORY), str(self.folder)}
        below = " ".join(sorted(path for path in kept if Path(path).is_relative_to(home)))
        enter = ["sh", "-c", ENTER, "-", f"{name}.fedrank.test", str(self.folder / "hosts"), str(self.accounts[name])]
        inside = ["ip", "netns", "exec", self.hosts.namespace(name), "unshare", "--mount", "--uts"]
        return [*inside, *enter, home, below, *words]

    def environment_of(self, name: str) -> dict[str, str]:
        own = {"HOME": self.home(name), "XDG_STATE_HOME": self.state(name), "FEDRANK_CACHE": self.folder / "cache"}
        return self.environment | {key: str(path) for key, path in own.items()} | {"LOGNAME": name}

    def begin(self, label: str, *words: str) -> subprocess.Popen[bytes]:
        name = HUB if label == "run" else label
        command = self.on(name, sys.executable, "-m", "fedrank", "deploy", *words)
        with self.output(label).open("ab") as out:
            self.running[label] = subprocess.Popen(
                command, cwd=self.folder, env=self.environment_of(name), stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        return self.running[label]

    def on_host(self, name: str, code: str) -> str:
        """What Python prints on the host of a member."""
        done = subprocess.run(
            self.on(name, sys.executable, "-c", code), cwd=self.folder, env=self.environment_of(name),
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return done.stdout.strip() or done.stderr.strip()

    def status(self) -> dict[str, object]:
        done = subprocess.run(
            self.on(HUB, sys.executable, "-m", "fedrank", "deploy", "status", "--home", HUB, "--json"),
            cwd=self.folder, env=self.environment_of(HUB), capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        return json.loads(done.stdout) if not done.returncode else {}


def check_separation(made: HostFederation) -> None:
    """Each host has a name and an account, reads no other home, and accepts no connection from outside."""
    one, other = made.names[0], made.names[1]
    found = made.on_host(one, "import os, socket; print(socket.gethostname(), os.getuid())")
    assert found == f"{one}.fedrank.test {made.accounts[one]}", found
    found = made.on_host(one, f"import os; print(os.listdir({str(made.home(other))!r}))")
    assert "PermissionError" in found, found
    listen = "import socket, time; s = socket.create_server(('0.0.0.0', 9000)); print('up', flush=True); time.sleep(60)"
    command = made.on(one, sys.executable, "-c", listen)
    listener = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=made.folder, env=made.environment_of(one))
    try:
        assert listener.stdout is not None
        listener.stdout.readline()
        for name in (HUB, other):
            reach = f"import socket; socket.create_connection(({made.hosts.address(one)!r}, 9000), 3); print('reached')"
            found = made.on_host(name, reach)
            assert "timed out" in found, found
        reach = "import socket; socket.create_connection(('127.0.0.1', 9000), 3); print('reached')"
        assert made.on_host(one, reach) == "reached"  # it does listen
    finally:
        listener.send_signal(signal.SIGKILL)
        listener.wait()
    say("each host has a name, an account and a home that others cannot read; none accepts connections from outside")


@contextlib.contextmanager
def separate_hosts(folder: Path, rounds: int, sites: int = 3) -> Iterator[HostFederation]:
    hosts = Hosts([HUB, *(f"clinic-{chr(97 + id)}" for id in range(sites))])
    made = HostFederation(folder, hosts, rounds)
    try:
        hosts.make(made.port)
        yield made
    finally:
        made.close()
        hosts.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    if why := missing():
        say(f"skipped: {why}")
        return
    with tempfile.TemporaryDirectory(prefix="fedrank-hosts-") as made_in:
        folder = Path(made_in)
        (folder / "cache").mkdir()
        compiles = "from fedrank.deploy.warm_up import warm_up; warm_up(['pdgd'])"  # once, for all hosts
        cached = os.environ | {"FEDRANK_CACHE": str(folder / "cache")}
        subprocess.run([sys.executable, "-c", compiles], env=cached, check=True)
        run("chmod", "-R", "a+rwX", str(folder / "cache"))
        with separate_hosts(folder, rounds) as made:
            check_separation(made)
            try:
                leave_and_return(made, rounds)
            except AssertionError:
                for label in made.running:
                    say(f"--- {label}\n{made.said(label)[-2000:]}")
                raise


def leave_and_return(made: HostFederation, rounds: int) -> None:
    gone, began = made.names[1:], time.monotonic()  # too few remain for a round, so the run waits
    made.start()
    task = made.begin("run", "run", "my.toml", "--home", HUB)
    down = up = 0.0
    missed = False
    while task.poll() is None:
        found = made.status()
        now = time.monotonic() - began
        if not down and int(str(found.get("round", 0))) >= rounds // 10:
            down = now
            for name in gone:
                made.hosts.line(name, up=False)
            say(f"  {now:.0f} s, round {found['round']}: {', '.join(gone)} have no line")
        sites = {one["name"]: one for one in found.get("sites", ())}  # type: ignore[attr-defined]
        if (
            down
            and not up
            and any(sites[name]["waited_for"] or sites[name]["link"] == "down" for name in gone if sites)
        ):
            missed = True
        if down and not up and now - down > AWAY:
            up = now
            for name in gone:
                made.hosts.line(name, up=True)
            say(f"  {now:.0f} s, round {found.get('round')}: {', '.join(gone)} have their lines back")
        time.sleep(2.0)
    assert task.returncode == 0, made.said("run")
    assert up, "the run did not wait for the sites"
    assert missed, "status never showed that sites were away"
    [plan] = {path.name for name in made.names for path in (made.home(name) / "outbox").iterdir()}
    answered = {name: len(Outbox(made.home(name) / "outbox" / plan, bytes.fromhex(plan))) for name in made.names}
    charged = {name: Population.charges_by_run(made.home(name) / "people")[plan] for name in made.names}
    assert charged == answered, (charged, answered)
    delay = f"{DELAY} ms of delay" if made.hosts.delayed else "no delay, because the kernel has no netem"
    say(
        f"separate hosts: {rounds} rounds in {time.monotonic() - began:.0f} s, {made.hosts.lost()} packets lost, "
        f"{delay}; rounds answered: {answered}, each charged once"
    )


if __name__ == "__main__":
    main()
