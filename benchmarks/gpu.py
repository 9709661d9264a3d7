"""Compare a round on a GPU with one CPU core of the same machine: identical results, and the speed-up.

    python -m benchmarks.gpu                 # needs a GPU and CuPy
    python -m benchmarks.gpu --clients 1000000 --interactions 4
    python -m benchmarks.gpu --check         # fails if a bit differs

First random problems (settings, list lengths and users) are learned by both. Then, for each shape: interactions per
second on one core and on the GPU, and the share of the GPU's memory bandwidth (measured in the same run by a copy)
that reading the features needs. Last, rounds of ten clients, robust rules and measures.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import fedrank as fr
from fedrank.data.ranking import RankingData
from fedrank.federated.multi_round import MultiRound
from fedrank.federated.round import first_state
from fedrank.federated.simulation import simulate
from fedrank.kernels.devices import CudaDevice, Device, DeviceError
from fedrank.ranking.cuda.measures import EvaluatorOnDevice
from fedrank.ranking.cuda.pdgd import PdgdOnDevice
from fedrank.ranking.cuda.robust import RobustOnDevice
from fedrank.ranking.measures import Evaluator
from fedrank.seeds import Chance
from fedrank.types import Messages

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"batch": True},
    {"keep": 0.5},
    {"temperature": 0.3},
    {"temperature": 0.001, "keep": 0.5},
    {"clip_weights": 0.5},
    {"batch": True, "clip_gradients": 0.1},
)
SHAPES = ((6000, 120, 136), (18000, 120, 136), (400, 120, 136), (1000, 41, 46))  # queries, documents, features


def made_up(queries: int, documents: int, features: int, seed: int = 1, ragged: bool = False) -> RankingData:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, documents + 1, queries) if ragged else np.full(queries, documents)
    count = int(sizes.sum())
    return RankingData(
        rng.random((count, features), dtype=np.float32),
        rng.integers(0, 5, count).astype(np.int8),
        np.concatenate([[0], np.cumsum(sizes)]),
        np.array([str(q) for q in range(queries)]),
        top_grade=4,
    )


def agreement(machine: Device, clients: int = 200) -> tuple[int, int]:
    """(clients with identical update and online quality, clients) over random problems."""
    same = tried = 0
    for number, settings in enumerate(SETTINGS):
        learner = fr.learners.Pdgd(rate=0.1, **settings)
        for documents, features in ((7, 5), (41, 46), (130, 136), (300, 64)):
            for click_model in ("perfect", "navigational", "informational"):
                data = made_up(40, documents, features, number, ragged=True)
                simulated = fr.make_clients(data, count=clients, click_model=click_model, interactions=5, seed=number)
                start = np.random.default_rng(number).normal(size=features)
                expected = learner(start, simulated, Chance(number, 3))
                found = PdgdOnDevice(machine, learner, simulated).learn(start, Chance(number, 3))
                updates, online = (machine.get(each) for each in found)
                [total], _ = PdgdOnDevice(machine, learner, simulated).parts(
                    start, Chance(number, 3), None, True, clients
                )
                if not np.array_equal(total, fr.kernels.sums.weighted_sum(simulated.interactions, expected.updates)):
                    sys.exit(f"the sums of updates differ: {settings}, {documents} x {features}, {click_model}")
                alike = (expected.updates == updates).all(axis=1) & (expected.observed.online == online)
                same, tried = same + int(alike.sum()), tried + clients
    return same, tried


def seconds(card: CudaDevice, repeats: int, what: Callable[[], Any]) -> float:
    what()
    card.finish()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        what()
        card.finish()
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken))


def bandwidth(card: CudaDevice) -> float:
    """Bytes per second that a copy reads and writes."""
    a, b = card.empty((1 << 30,), np.uint8), card.empty((1 << 30,), np.uint8)
    return 2 * (1 << 30) / seconds(card, 10, lambda: b.__setitem__(slice(None), a))


def loop_times(card: Any, what: Callable[[], Any]) -> dict[str, float]:
    """Seconds in each kernel."""
    taken: dict[str, float] = {}
    each_part = card.each_part

    def timed(loop: str, *given: Any) -> None:
        card.finish()
        begin = time.perf_counter()
        each_part(loop, *given)
        card.finish()
        taken[loop] = taken.get(loop, 0.0) + time.perf_counter() - begin

    card.each_part = timed
    try:
        what()
    finally:
        card.each_part = each_part
    return taken


def small_rounds(card: Any, shape: tuple[int, int, int], count: int = 10) -> str:
    clients = fr.make_clients(made_up(*shape), count=count, click_model="informational", interactions=5)
    federation = fr.Federation(fr.learners.Pdgd(rate=0.1))
    ahead = MultiRound.of(PdgdOnDevice(card, federation.learner, clients), federation, clients, 1, weighted=True)
    assert ahead is not None
    state, _ = first_state(federation, clients, 1)
    everybody = np.arange(count)
    begun = ahead._begin(state, 10**6, lambda number: everybody)
    rounds = len(begun.numbers)
    taken = seconds(card, 5, lambda: ahead._begin(state, 10**6, lambda number: everybody).collect())
    said = f"{shape[2]} x {shape[1]}, {count} clients: {5 * count * rounds / taken / 1e6:.2f} million in one launch"
    federated = simulate(federation, clients, 10**6, device=card)
    for _ in range(3 * rounds):
        next(federated)
    begin = time.perf_counter()
    for _ in range(6 * rounds):
        next(federated)
    said += f", {30 * count * rounds / (time.perf_counter() - begin) / 1e6:.2f} including Python"
    *_, expected = simulate(federation, clients, 50)
    *_, found = simulate(federation, clients, 50, device=card)
    return said + (", identical" if np.array_equal(expected.weights, found.weights) else ", DIFFERENT")


def robust_rules(card: Any) -> None:
    rules = {
        "krum": fr.aggregators.Krum(), "multi-krum": fr.aggregators.MultiKrum(),
        "trimmed mean": fr.aggregators.TrimmedMean(), "median": fr.aggregators.Median(),
    }  # fmt: skip
    for clients in (40, 1000, 10_000):
        updates = np.random.default_rng(1).normal(size=(clients, 136)).astype(np.float32)
        there, said = card.put(updates), []
        for name, rule in rules.items():
            taken = seconds(card, 3, partial(rule.on_device, RobustOnDevice(card, there)))
            text = f"{name} {1e3 * taken:.2f} ms"
            if clients <= 1000:
                sizes = np.ones(clients, np.int64)
                messages = Messages(updates, sizes, np.arange(clients), np.zeros(136), 1)
                rule(messages)
                begin = time.perf_counter()
                expected = rule(messages)
                text += f" (CPU {1e3 * (time.perf_counter() - begin):.2f})"
                found = rule.on_device(RobustOnDevice(card, there))
                text += " same" if np.array_equal(found, expected) else f" {np.abs(found - expected).max():.0e}"
            said.append(text)
        print(f"{clients} x 136: {'; '.join(said)}", flush=True)


def measured(card: Any) -> None:
    import cupy

    for shape in (SHAPES[0], SHAPES[3]):
        data, rng = made_up(*shape), np.random.default_rng(1)
        weights, linear = rng.normal(size=(100, shape[2])), fr.rankers.Linear()
        evaluator = Evaluator(data, ["ndcg@10"])
        there = EvaluatorOnDevice(card, evaluator)
        taken = seconds(card, 5, partial(there, weights, linear))
        features, models = card.put(data.features), card.put(weights.astype(np.float32).T)
        product = seconds(card, 5, partial(cupy.matmul, features, models))
        few = rng.normal(size=(20, shape[2]))
        begin = time.perf_counter()
        expected = evaluator(few, linear)
        here = time.perf_counter() - begin
        same = np.array_equal(there(few, linear), expected)
        loops = loop_times(card, partial(there, weights, linear))
        times = ", ".join(f"{name} {1e3 * each:.2f}" for name, each in loops.items())
        flops = 2e-12 * data.features.size * 100
        where = f"measures {shape[2]} x {shape[1]}"
        print(
            f"{where}: 100 in {1e3 * taken:.2f} ms ({flops / taken:.1f} Tflop/s), matrix product in "
            f"{1e3 * product:.2f} ms; 20 on the CPU in {1e3 * here:.0f} ms; loops: {times}; same bits: "
            f"{same}",
            flush=True,
        )


def the_card() -> CudaDevice:
    """Return the GPU, or exit with a message about what is missing."""
    try:
        return CudaDevice()
    except (ImportError, DeviceError) as problem:
        raise SystemExit(str(problem)) from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--interactions", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="fail if a bit differs")
    options = parser.parse_args()
    card = the_card()
    same, tried = agreement(card)
    print(f"{card.name}: identical results for {same:,} of {tried:,} clients")
    if options.check and same < tried:
        sys.exit("updates of the GPU differ from those of the CPU")
    best = bandwidth(card)
    print(f"a copy moves {best / 1e12:.2f} TB per second")
    for queries, documents, features in SHAPES:
        data, learner, chance, weights = (
            made_up(queries, documents, features), fr.learners.Pdgd(rate=0.1), Chance(1, 7), np.zeros(features),
        )  # fmt: skip
        few = fr.make_clients(data, count=2000, click_model="informational", interactions=options.interactions)
        learner(weights, few, chance)  # compiles
        begin = time.process_time()
        learner(weights, few, chance)
        one_core = len(few) * options.interactions / (time.process_time() - begin)
        clients = fr.make_clients(
            data, count=options.clients, click_model="informational", interactions=options.interactions
        )
        many = PdgdOnDevice(card, learner, clients)
        learn = seconds(card, 7, partial(many.learn, weights, chance))
        whole = seconds(card, 7, partial(many.parts, weights, chance, None, True, 1 << 17))
        searches = options.clients * options.interactions
        needed = searches * documents * features * 4 / best
        print(
            f"{features} x {documents}, {data.features.nbytes / 2**20:,.0f} MiB: one core {one_core:,.0f} per second; "
            f"GPU {searches / whole / 1e6:.1f} million with the mean ({searches / whole / one_core:,.0f} times one "
            f"core, {needed / whole:.0%} of the bandwidth), {searches / learn / 1e6:.1f} without it "
            f"({needed / learn:.0%}); {1e3 * whole:.2f} milliseconds, of which learning {1e3 * learn:.2f}",
            flush=True,
        )
        del many
        half = PdgdOnDevice(card, learner, clients, "float16")
        whole = seconds(card, 7, partial(half.parts, weights, chance, None, True, 1 << 17))
        print(f"    features in two bytes: {searches / whole / 1e6:.1f} million with the mean", flush=True)
    for shape, count in ((SHAPES[0], 10), (SHAPES[3], 10), (SHAPES[3], 200)):
        print(small_rounds(card, shape, count))
    robust_rules(card)
    measured(card)


if __name__ == "__main__":
    main()
