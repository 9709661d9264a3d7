"""Measure variants of the CUDA kernels with other numbers of groups and blocks.

    python -m benchmarks.gpu_tuning          # needs a GPU and CuPy; takes a minute

A variant is the same source with other numbers; each must give the same sum.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np

import fedrank as fr
from benchmarks.gpu import SHAPES, bandwidth, made_up, seconds, the_card
from fedrank.kernels import devices
from fedrank.ranking.cuda.pdgd import PdgdOnDevice
from fedrank.seeds import Chance

# (features, groups per load, blocks per multiprocessor)
LONG = [("float", 4, 4), ("float", 2, 7), ("float", 3, 5), ("Half", 4, 4), ("Half", 4, 5), ("Half", 2, 8)]
SHORT = [("float", 2, 7), ("float", 2, 8), ("float", 2, 9)]


def named(kind: str, groups: int, blocks: int) -> str:
    return f"tuned_{kind.lower()}_{groups}_{blocks}"


def card_with_variants() -> devices.CudaDevice:
    text = devices.source()
    lines = [f"LOOP({named(*each)}, {each[0]}, true, {each[1]}, {each[2]})" for each in dict.fromkeys(LONG + SHORT)]
    devices.source = lambda: "\n".join([text, *lines, ""])  # type: ignore[assignment]
    return the_card()


def large_rounds(card: Any, shape: tuple[int, int, int], variants: list[tuple[str, int, int]]) -> None:
    clients = fr.make_clients(made_up(*shape), count=400_000, click_model="informational", interactions=4)
    learner, chance, start, best = fr.learners.Pdgd(rate=0.1), Chance(1, 7), np.zeros(shape[2]), bandwidth(card)
    held: dict[str, Any] = {}
    first: dict[str, Any] = {}
    for kind, groups, blocks in variants:
        if kind not in held:
            held.clear()
            held[kind] = PdgdOnDevice(card, learner, clients, "float32" if kind == "float" else "float16")
        many = held[kind]
        name = named(kind, groups, blocks)
        many._begin = lambda *_, name=name, many=many: setattr(many, "_loop", name)
        learn = seconds(card, 3, partial(many.learn, start, chance))
        whole = seconds(card, 3, partial(many.parts, start, chance, None, True, 1 << 17))
        needed = 1.6e6 * shape[1] * shape[2] * (4 if kind == "float" else 2) / best
        said = f"{1.6 / learn:.1f} million, {1.6 / whole:.1f} with the mean ({needed / whole:.0%})"
        total = many.parts(start, chance, None, True, 1 << 17)[0]
        same = np.array_equal(first.setdefault(kind, total), total)
        where = f"{shape[2]} x {shape[1]} {kind} groups {groups} blocks {blocks}"
        print(f"{where}: {said} {same}", flush=True)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    card = card_with_variants()
    large_rounds(card, SHAPES[3], SHORT)
    large_rounds(card, SHAPES[0], LONG)


if __name__ == "__main__":
    main()
