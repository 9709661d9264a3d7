"""A round on a graphics card against one core of the same machine: the same bits, and how many times as fast.

    python benchmarks/gpu.py                 # needs a graphics card and CuPy
    python benchmarks/gpu.py --clients 1000000 --interactions 4

Prints, for each shape: interactions a second on one core and on the card, the share of the card's memory bandwidth that
reading features alone needs (measured in the same run by a copy), and whether updates are the same bits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import fedrank as fr
from fedrank.data.ranking import RankingData
from fedrank.gpu.machines import GraphicsCard
from fedrank.gpu.pdgd import PdgdThere
from fedrank.seeds import Chance


def made_up(queries: int, documents: int, features: int) -> RankingData:
    rng = np.random.default_rng(1)
    table = rng.random((queries * documents, features), dtype=np.float32)
    grades = rng.integers(0, 5, queries * documents).astype(np.int8)
    offsets = np.arange(queries + 1) * documents
    return RankingData(table, grades, offsets, np.array([str(q) for q in range(queries)]), top_grade=4)


def seconds(card: GraphicsCard, repeats: int, what: Callable[[], Any]) -> float:
    what()
    card.finish()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        what()
        card.finish()
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken))


def bandwidth(card: GraphicsCard) -> float:
    """Bytes a second that a copy reads and writes."""
    a, b = card.empty((1 << 30,), np.uint8), card.empty((1 << 30,), np.uint8)
    taken = seconds(card, 10, lambda: b.__setitem__(slice(None), a))
    return 2 * (1 << 30) / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--interactions", type=int, default=5)
    options = parser.parse_args()
    card = GraphicsCard()
    best = bandwidth(card)
    print(f"{card.name}: a copy moves {best / 1e12:.2f} TB a second")
    for queries, documents, features in ((6000, 120, 136), (18000, 120, 136), (400, 120, 136), (1000, 41, 46)):
        data = made_up(queries, documents, features)
        learner, chance, weights = fr.learners.Pdgd(rate=0.1), Chance(1, 7), np.zeros(features)
        few = fr.make_clients(data, count=2000, user="informational", interactions=options.interactions)
        learned = learner(weights, few, chance)  # compiles
        begin = time.process_time()
        learned = learner(weights, few, chance)
        one_core = len(few) * options.interactions / (time.process_time() - begin)
        there = PdgdThere(card, learner, few)
        updates, online = (card.get(each) for each in there.learn(weights, chance))
        same = int((learned.updates == updates).all(axis=1).sum())
        same_online = int((learned.observed.online == online).sum())
        total, _ = there.part(weights, chance, None, True)
        mean = np.zeros(features)
        fr.kernels.sums.add_rows(few.interactions, learned.updates, mean)
        crowd = fr.make_clients(data, count=options.clients, user="informational", interactions=options.interactions)
        many = PdgdThere(card, learner, crowd)
        learn = seconds(card, 7, partial(many.learn, weights, chance))
        whole = seconds(card, 7, partial(many.part, weights, chance, None, True))
        all_of_them = options.clients * options.interactions
        read = all_of_them * documents * features * 4
        print(
            f"{features} x {documents}, {data.features.nbytes / 2**20:.0f} MiB: one core {one_core:,.0f} a second; "
            f"card {all_of_them / learn / 1e6:.1f} million, with the mean {all_of_them / whole / 1e6:.1f} million "
            f"({all_of_them / whole / one_core:,.0f} times), {read / whole / best:.0%} of the bandwidth "
            f"({read / learn / best:.0%} without the mean); the same bits: {same} of {len(few)} updates, "
            f"{same_online} online, mean {'yes' if np.array_equal(total, mean) else 'NO'}"
        )


if __name__ == "__main__":
    main()
