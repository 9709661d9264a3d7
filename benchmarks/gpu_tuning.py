"""Variants of the card's loops: how many searches a second with other numbers of blocks, groups and warps of a team.

    python benchmarks/gpu_tuning.py          # needs a graphics card and CuPy; two minutes

Each variant is the same text with other macros, so that its results have the same bits; that is checked here as well.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

import numpy as np
from gpu import SHAPES, agreement, bandwidth, made_up, seconds

import fedrank as fr
from fedrank.federate.ahead import Ahead
from fedrank.federate.round import first_state, simulate
from fedrank.gpu import machines
from fedrank.gpu import rounds as small
from fedrank.gpu.pdgd import PdgdThere
from fedrank.seeds import Chance

LARGE = [(4, 7), (3, 6), (5, 8), (4, 5)]  # blocks of a multiprocessor: long lists, short ones
TEAMS = (8, 16)


def variant(macros: str) -> machines.GraphicsCard:
    text = machines.source.__wrapped__() if hasattr(machines.source, "__wrapped__") else machines.source()
    machines.source = lambda: f"{macros}\n{text}"  # type: ignore[assignment]
    try:
        return machines.GraphicsCard()
    finally:
        machines.source = lambda: text  # type: ignore[assignment]


def small_rounds(card: Any, shape: tuple[int, int, int], warps: int, features: str = "float32") -> str:
    queries, documents, width = shape
    small.TEAM = warps
    crowd = fr.make_clients(made_up(queries, documents, width), count=10, user="informational", interactions=5)
    federation = fr.Federation(fr.learners.Pdgd(rate=0.1))
    ahead = Ahead.of(PdgdThere(card, federation.learner, crowd, features), federation, crowd, 1, weighted=True)
    assert ahead is not None
    state, _ = first_state(federation, crowd, 1)
    everybody = np.arange(10)
    taken = seconds(card, 5, lambda: ahead(state, 400, lambda number: everybody))
    said = f"{width} x {documents}: {20_000 / taken / 1e6:.2f} million in one call"
    if features == "float32":
        begin = time.perf_counter()
        *_, last = simulate(federation, crowd, 2000, device=card)
        said += f", {100_000 / (time.perf_counter() - begin) / 1e6:.2f} with all that Python does"
        *_, expected = simulate(federation, crowd, 100)
        *_, found = simulate(federation, crowd, 100, device=card)
        said += ", same bits" if np.array_equal(expected.weights, found.weights) else ", OTHER BITS"
    return said


def profiled() -> None:
    """One launch of each loop, for a profiler to look at."""
    card = machines.GraphicsCard()
    for shape in (SHAPES[0], SHAPES[3]):
        crowd = fr.make_clients(made_up(*shape), count=100_000, user="informational", interactions=4)
        PdgdThere(card, fr.learners.Pdgd(rate=0.1), crowd).learn(np.zeros(shape[2]), Chance(1, 7))
        card.finish()


def main() -> None:
    if "--profile" in sys.argv:
        profiled()
        return
    if "--quick" not in sys.argv:
        same, tried = agreement(machines.GraphicsCard(), clients=60)
        print(f"the same bits for {same:,} of {tried:,} clients", flush=True)
    data = {shape: made_up(*shape) for shape in (SHAPES[0], SHAPES[3])}
    learner, chance = fr.learners.Pdgd(rate=0.1), Chance(1, 7)
    crowds = {
        shape: fr.make_clients(each, count=400_000, user="informational", interactions=4)
        for shape, each in data.items()
    }
    for plain, short in LARGE:
        card = variant(f"#define PLAIN_BLOCKS {plain}\n#define SHORT_BLOCKS {short}")
        best, said = bandwidth(card), []
        for shape, crowd in crowds.items():
            for kind in ("float32", "float16"):
                many, start = PdgdThere(card, learner, crowd, kind), np.zeros(shape[2])
                learn = seconds(card, 3, partial(many.learn, start, chance))
                whole = seconds(card, 3, partial(many.parts, start, chance, None, True, 1 << 17))
                needed = 1_600_000 * shape[1] * shape[2] * (4 if kind == "float32" else 2) / best
                said.append(f"{kind} {1.6 / learn:.1f}/{1.6 / whole:.1f} ({needed / whole:.0%})")
                del many
        print(f"blocks {plain} and {short}: 136 x 120 {said[0]}, {said[1]}; 46 x 41 {said[2]}, {said[3]}", flush=True)
    for warps in TEAMS:
        card = variant(f"#define TEAM {warps}")
        for shape in ((400, 120, 136), SHAPES[0], SHAPES[3]):
            print(f"team of {warps}, {shape[0]} queries, {small_rounds(card, shape, warps)}", flush=True)
    print("float16:", small_rounds(card, SHAPES[0], TEAMS[-1], "float16"))


if __name__ == "__main__":
    main()
