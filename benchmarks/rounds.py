"""Measure the benefit of many rounds in one compiled call over single rounds, on one core.

    python -m benchmarks.rounds [--check]

Interactions per second of CPU time, 10 clients x 5 per round; both variants take turns, so other load affects both.
`whole run` is `fedrank run`: it writes a row for each of 20,000 rounds, writes checkpoints, and evaluates a model every
1,000 rounds, on 200 queries; reading the data is excluded.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fedrank.federated.backends as backends
from benchmarks.fpdgd import CLIENTS, INTERACTIONS, SHAPES, made_up
from fedrank.data.ranking import RankingData
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.source import read_spec
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.simulation import simulate
from fedrank.federated.small_rounds import ENOUGH_ROUNDS

TARGETS = {"46 x 41": 500_000, "136 x 120": 200_000}  # interactions per second on an idle core
ROUNDS, ROUNDS_OF_A_RUN, QUERIES_OF_A_RUN, NEVER = 2_000, 20_000, 200, 1 << 60

SPEC = """
rounds = {rounds}
evaluate_every = 1000
data = {{ train = "{file}", test = "{file}", normalise = "none" }}
clients = {{ count = 10, interactions = 5, click_model = "navigational" }}
learner = {{ name = "pdgd" }}
"""


def both(work: Callable[[], float], repeats: int) -> tuple[float, float, float]:
    """Minimum CPU seconds of single and combined rounds, and the median of their ratio."""
    seconds: dict[int, list[float]] = {NEVER: [], ENOUGH_ROUNDS: []}
    for _ in range(repeats):
        for enough, taken in seconds.items():
            backends.ENOUGH_ROUNDS = enough
            taken.append(work())
    slow, fast = seconds.values()
    return min(slow), min(fast), statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def of_rounds(data: RankingData) -> Callable[[], float]:
    clients, federation = (
        make_clients(data, CLIENTS, click_model="navigational", interactions=INTERACTIONS),
        Federation(),
    )

    def work() -> float:
        begin = time.process_time()
        for _ in simulate(federation, clients, ROUNDS):
            pass
        return time.process_time() - begin

    return work


def of_a_run(data: RankingData, folder: Path) -> Callable[[], float]:
    file, spec = folder / "data.txt", folder / "spec.toml"
    with file.open("w") as lines:
        for q in range(QUERIES_OF_A_RUN):
            for row in range(data.offsets[q], data.offsets[q + 1]):
                features = " ".join(f"{i}:{value:.4f}" for i, value in enumerate(data.features[row].tolist(), start=1))
                lines.write(f"{data.grades[row]} qid:{q} {features}\n")  # prose: ok
    spec.write_text(SPEC.format(rounds=ROUNDS_OF_A_RUN, file=file))
    grid = read_spec(spec)

    def work() -> float:
        with tempfile.TemporaryDirectory() as out:
            run_experiment(grid, "rounds", out)
            [timing] = Path(out).rglob("timing.csv")
            return float(timing.read_text().splitlines()[-1].split(",")[2])  # cpu_seconds

    return work


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    check = arguments.parse_args().check
    missed = []
    print(f"{'':10} {'features x documents':22} {'one by one':>12} {'many at once':>13} {'times':>6}")
    for shape in SHAPES:
        data = made_up(shape)
        with tempfile.TemporaryDirectory() as folder:
            for name, work, rounds, repeats in (
                ("rounds", of_rounds(data), ROUNDS, 7),
                ("whole run", of_a_run(data, Path(folder)), ROUNDS_OF_A_RUN, 2),
            ):
                backends.ENOUGH_ROUNDS = ENOUGH_ROUNDS
                work()  # compiles
                *each, ratio = both(work, repeats)
                slow, fast = (rounds * CLIENTS * INTERACTIONS / seconds for seconds in each)
                print(f"{name:10} {shape:22} {slow:12,.0f} {fast:13,.0f} {ratio:6.2f}")
                if name == "rounds" and fast < TARGETS[shape]:
                    missed.append(f"{shape}: {fast:,.0f} interactions/s, target {TARGETS[shape]:,}")
    for line in missed:
        print("missed:", line)
    return 1 if check and missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
