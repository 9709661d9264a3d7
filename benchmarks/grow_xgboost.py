"""Compare jointly grown forests with XGBoost's federated mode (rank:ndcg): bytes, time and quality.

    pip install xgboost-cpu                  # the extra `xgboost`: XGBoost on pooled rows
    pip install xgboost                      # the large wheel, built with the federated mode
    python -m benchmarks.grow_xgboost --data mq2007-85 --clients 2 --trees 30

All methods run in one process after the other, with equal numbers of threads. XGBoost's federated mode is measured if
the installed version has it. Each of its workers is a process, and so is its server; a proxy between them counts all
bytes, including gRPC frames. For fedrank, the bytes of all messages are counted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedrank.data.catalog import load
from fedrank.data.ranking import RankingData
from fedrank.ranking.measures import evaluate
from fedrank.trees.binning import grid_edges, quantile_edges
from fedrank.trees.boosters import Grower
from fedrank.trees.forest import make_forest
from fedrank.trees.growing import GrowPlan
from fedrank.trees.growing_protocol import TreeClient, TreeServer, in_process

SEED = 1
SETTINGS = {
    "objective": "rank:ndcg", "lambdarank_pair_method": "topk", "lambdarank_num_pair_per_sample": 30, "eta": 0.05,
    "grow_policy": "lossguide", "max_leaves": 31, "max_depth": 0, "tree_method": "hist", "nthread": 1,
    "min_child_weight": 0.001, "base_score": 0.5,
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The quality and the cost of one method."""

    way: str
    quality: float
    seconds: float
    processor: float  # CPU seconds of all clients and of our server, not of XGBoost's
    up: int | None = None  # bytes from all clients
    down: int | None = None
    trees: tuple[str, ...] = ()  # as text, for comparison


class CountingProxy:
    """Forwards connections to another port of this machine, and counts bytes."""

    def __init__(self, to: int) -> None:
        self.up, self.down, self._to = 0, 0, to
        self._lock = threading.Lock()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            for one, other, name in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._carry, args=(one, other, name), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, name: str) -> None:
        try:
            while content := one.recv(1 << 16):
                with self._lock:
                    setattr(self, name, getattr(self, name) + len(content))
                other.sendall(content)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self._door.close()


def matrix(data: RankingData):
    import xgboost

    numbers = np.repeat(np.arange(data.queries), np.diff(data.offsets))
    return xgboost.DMatrix(data.features, data.grades, qid=numbers)


def pooled(train: RankingData, test: RankingData, trees: int) -> Outcome:
    import xgboost

    rows, clock = matrix(train), Clock()
    made = xgboost.train(SETTINGS, rows, trees)
    return _outcome("XGBoost, pooled rows", made, test, *clock.read())


def _outcome(way: str, made, test: RankingData, seconds: float, processor: float, **more) -> Outcome:
    import xgboost

    scores = made.predict(xgboost.DMatrix(test.features))
    quality = evaluate(["ndcg@10"], scores, test)[0]
    return Outcome(way, quality, seconds, processor, trees=tuple(made.get_dump()), **more)


class Clock:
    """Wall-clock and CPU seconds since its creation."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.monotonic() - self._began[0], time.process_time() - self._began[1]


def serve(workers: int, port: int) -> None:
    import xgboost.federated

    xgboost.federated.run_federated_server(workers, port)


def work(rank: int, workers: int, port: int, name: str, trees: int, out: str) -> None:
    """One worker, with its part of the rows."""
    import xgboost

    fold = load(name)
    rows = matrix(fold.train.select(np.arange(rank, fold.train.queries, workers)))
    settings = {
        "dmlc_communicator": "federated", "federated_server_address": f"127.0.0.1:{port}",
        "federated_world_size": workers, "federated_rank": rank,
    }  # fmt: skip
    with xgboost.collective.CommunicatorContext(**settings):
        clock = Clock()
        made = xgboost.train(SETTINGS, rows, trees)
        took = clock.read()
    made.save_model(f"{out}/{rank}.json")
    Path(f"{out}/{rank}.seconds").write_text(json.dumps(took))


def federated(name: str, workers: int, trees: int, test: RankingData) -> Outcome:
    import xgboost

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    how = multiprocessing.get_context("spawn")
    server = how.Process(target=serve, args=(workers, port), daemon=True)
    server.start()
    _wait_for(port)
    proxy = CountingProxy(port)
    with tempfile.TemporaryDirectory(prefix="fedrank-xgboost-") as folder:
        asked = [
            how.Process(target=work, args=(rank, workers, proxy.port, name, trees, folder)) for rank in range(workers)
        ]
        for one in asked:
            one.start()
        for one in asked:
            one.join()
        if any(one.exitcode for one in asked):
            raise RuntimeError(f"workers of XGBoost's federated mode ended with {[one.exitcode for one in asked]}")
        models = [xgboost.Booster(model_file=f"{folder}/{rank}.json") for rank in range(workers)]
        took = np.array([json.loads(Path(f"{folder}/{rank}.seconds").read_text()) for rank in range(workers)])
    server.terminate()
    proxy.close()
    assert len({tuple(one.get_dump()) for one in models}) == 1, "workers ended with models that differ"
    return _outcome(
        "XGBoost, federated", models[0], test, took[:, 0].max(), took[:, 1].sum(), up=proxy.up, down=proxy.down
    )


def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"XGBoost's server does not answer on port {port}")


def ours(
    train: RankingData, test: RankingData, clients: int, trees: int, bins: int, edges: str, secure: bool
) -> Outcome:
    rules = Grower(trees=trees, leaves=31, rate=0.05, min_data_in_leaf=1, patience=0, bins=bins)
    chosen = grid_edges(train.features.shape[1], bins) if edges == "grid" else quantile_edges(train, bins)
    plan = GrowPlan(rules, chosen, SEED, tuple(range(clients)), secure)
    clock = Clock()
    parts = [train.select(np.arange(one, train.queries, clients)) for one in range(clients)]
    halves = {one: TreeClient(one, plan, part) for one, part in enumerate(parts)}
    server = TreeServer(plan, in_process(halves))
    texts = [text for text, _ in server.forest()]
    took = clock.read()
    forest = make_forest(texts, train, {}, with_ranges=False)
    way = f"ours, {edges} edges, {bins} bins{', secure aggregation' if secure else ''}"
    quality = evaluate(["ndcg@10"], forest.score(test), test)[0]
    return Outcome(way, quality, *took, server.bytes_up, server.bytes_down, tuple(texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mq2007-85")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--trees", type=int, default=30)
    asked, console = parser.parse_args(), Console()
    fold = load(asked.data)
    train, test = fold.train, fold.test
    ours(train, test, asked.clients, 1, 255, "grid", False)  # compiles, before anything is timed
    kinds = ("quantile", 255, False), ("grid", 255, False), ("grid", 63, False), ("grid", 63, True)
    found = [ours(train, test, asked.clients, asked.trees, bins, edges, secure) for edges, bins, secure in kinds]
    try:
        import xgboost
    except ImportError:
        console.print("xgboost is not installed: pip install xgboost-cpu")
    else:
        found.append(pooled(train, test, asked.trees))
        if xgboost.build_info()["USE_FEDERATED"]:
            found.append(federated(asked.data, asked.clients, asked.trees, test))
            same = sum(one == other for one, other in zip(found[-1].trees, found[-2].trees, strict=True))
            console.print(f"XGBoost {xgboost.__version__}: {same} of {asked.trees} federated trees are the pooled ones")
        else:
            console.print(
                f"XGBoost {xgboost.__version__} is built without its federated mode; the wheel `xgboost` has it"
            )
    shown = Table(
        "way", "nDCG@10", "seconds", "CPU seconds", "MB up per tree and client", "MB down",
        title=f"{asked.data}, {asked.clients} clients",
    )  # fmt: skip
    for one in found:
        each = 1e6 * asked.trees * asked.clients
        sizes = ["" if size is None else f"{size / each:.3f}" for size in (one.up, one.down)]
        shown.add_row(one.way, f"{one.quality:.4f}", f"{one.seconds:.1f}", f"{one.processor:.1f}", *sizes)
    console.print(shown)


if __name__ == "__main__":
    main()
