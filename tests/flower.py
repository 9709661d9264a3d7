"""The Flower app in Flower's simulation engine and between processes: the same model as `simulate`, to the last bit.

`make test-flower` runs this in its own virtual environment, because flwr's upper bounds clash with ours.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from fedrank import simulate
from fedrank.experiments.runner.data import clients_of

APP = Path(__file__).parents[1] / "examples" / "flower"
BIN = Path(sys.executable).parent
PATIENCE = 600  # seconds
NOISE = '\n[mechanism]\nname = "gaussian"\nclip = 1.0\nnoise = 2.0\n'


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


@contextmanager
def running(name: str, *arguments: str, log: Path):
    with log.open("ab") as file:
        process = subprocess.Popen([BIN / name, *arguments], stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def reachable(port: int, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None, log.read_text()[-4000:]
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, f"nothing answers on port {port}"
        time.sleep(0.5)


def model(folder: Path, nodes: list[str], spec: Path) -> np.ndarray:
    """The model that `flwr run` trains; without nodes, in the simulation engine."""
    folder.mkdir()
    server_port, *own = free_ports(1 + len(nodes))
    os.environ["FLWR_HOME"] = str(folder)
    os.environ["PATH"] = os.pathsep.join([str(BIN), os.environ["PATH"]])  # Flower starts its own commands
    options = "" if nodes else "options.num-supernodes = 4\n"
    address = f"127.0.0.1:{server_port}"
    (folder / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n{options}'
    )
    out, log = folder / "model.npz", folder / "log.txt"
    mode = ["--insecure", "--disable-runtime-dependency-installation", "--port", str(server_port)]
    mode += [] if nodes else ["--simulation"]
    with ExitStack() as held:
        server = held.enter_context(running("flower-superlink", *mode, log=log))
        reachable(server_port, server, log)
        for settings, port in zip(nodes, own, strict=True):
            node = ["--insecure", "--superlink", address, "--port", str(port), "--node-config", settings]
            held.enter_context(running("flower-supernode", *node, log=log))
        changes = f'out="{out}" spec="{spec}"'
        command = [BIN / "flwr", "run", str(APP), "here", "--run-config", changes, "--format", "json"]
        print(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout), flush=True)
        deadline = time.monotonic() + PATIENCE
        while not out.exists():
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(1)
        time.sleep(1)
    return np.load(out)["weights"]


def main() -> None:
    sys.path.insert(0, str(APP))
    from fedrank_flower.task import SPEC, Task

    task = Task.read()
    *_, last = simulate(task.federation, clients_of(task.experiment, task.fold, task.seed), task.experiment.rounds)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        numbers = range(task.experiment.clients.count)
        assert np.array_equal(model(root / "simulation", [], SPEC), last.weights)
        print("the simulation engine trains the same model, to the last bit")
        nodes = [f'client={number} spec="{SPEC}"' for number in numbers]
        assert np.array_equal(model(root / "processes", nodes, SPEC), last.weights)
        print("a SuperLink and four SuperNodes train the same model, to the last bit")
        noised = root / "noised.toml"
        noised.write_text(SPEC.read_text() + NOISE)
        nodes = [f'client={n} spec="{noised}" ledger="{root / f"ledger-{n}"}" epsilon=1000.0' for n in numbers]
        assert not np.array_equal(model(root / "noise", nodes, noised), last.weights)
        charges = [len(list((root / f"ledger-{n}").rglob("charges.log"))) for n in numbers]
        assert charges == [1] * len(nodes)
        print("with noise, every node has charged its ledger")


if __name__ == "__main__":
    main()
