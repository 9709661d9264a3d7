"""Variants of the card's loops, and what else a card does: rounds of ten clients, robust rules, measures.

    python benchmarks/gpu_tuning.py          # needs a graphics card and CuPy; two minutes

A variant is the same text with other numbers of groups and blocks; each is checked to give the same bits.
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
from fedrank.federate.robust_there import change_there
from fedrank.federate.round import first_state, simulate
from fedrank.gpu import machines
from fedrank.gpu.measures import EvaluatorThere
from fedrank.gpu.pdgd import PdgdThere
from fedrank.rank.measures import Evaluator
from fedrank.seeds import Chance
from fedrank.types import Messages

# (features, groups that are fetched together, lines that are called up beforehand, blocks of a multiprocessor)
LONG = [("float", 4, 0, 4), ("float", 4, 1, 4), ("float", 4, 2, 4), ("float", 4, 4, 4), ("float", 2, 1, 7),
        ("Half", 4, 0, 4), ("Half", 4, 1, 4), ("Half", 4, 2, 4), ("Half", 4, 4, 4), ("Half", 2, 2, 8)]  # fmt: skip
SHORT = [("float", 2, 0, 7), ("float", 2, 0, 8)]


def named(kind: str, groups: int, called: int, blocks: int) -> str:
    return f"tuned_{kind.lower()}_{groups}_{called}_{blocks}"


def card_with_variants() -> machines.GraphicsCard:
    text = machines.source()
    lines = [
        f"LOOP({named(*each)}, {each[0]}, true, {each[1]}, {each[2]}, {each[3]})"
        for each in dict.fromkeys(LONG + SHORT)
    ]
    machines.source = lambda: "\n".join([text, *lines, ""])  # type: ignore[assignment]
    return machines.GraphicsCard()


def large_rounds(card: Any, shape: tuple[int, int, int], variants: list[tuple[str, int, int, int]]) -> None:
    crowd = fr.make_clients(made_up(*shape), count=400_000, user="informational", interactions=4)
    learner, chance, start, best = fr.learners.Pdgd(rate=0.1), Chance(1, 7), np.zeros(shape[2]), bandwidth(card)
    held: dict[str, Any] = {}
    first: dict[str, Any] = {}
    for kind, groups, called, blocks in variants:
        if kind not in held:
            held.clear()
            held[kind] = PdgdThere(card, learner, crowd, "float32" if kind == "float" else "float16")
        many = held[kind]
        name = named(kind, groups, called, blocks)
        many._begin = lambda *_, name=name, many=many: setattr(many, "_loop", name)
        learn = seconds(card, 3, partial(many.learn, start, chance))
        whole = seconds(card, 3, partial(many.parts, start, chance, None, True, 1 << 17))
        needed = 1.6e6 * shape[1] * shape[2] * (4 if kind == "float" else 2) / best
        said = f"{1.6 / learn:.1f} million, {1.6 / whole:.1f} with the mean ({needed / whole:.0%})"
        total = many.parts(start, chance, None, True, 1 << 17)[0]
        same = np.array_equal(first.setdefault(kind, total), total)
        print(
            f"{shape[2]} x {shape[1]} {kind} groups {groups} blocks {blocks}: {', carved '.join(said)} {same}",
            flush=True,
        )


def small_rounds(card: Any, shape: tuple[int, int, int], count: int = 10) -> str:
    crowd = fr.make_clients(made_up(*shape), count=count, user="informational", interactions=5)
    federation = fr.Federation(fr.learners.Pdgd(rate=0.1))
    ahead = Ahead.of(PdgdThere(card, federation.learner, crowd), federation, crowd, 1, weighted=True)
    assert ahead is not None
    state, _ = first_state(federation, crowd, 1)
    everybody = np.arange(count)
    begun = ahead._begin(state, 10**6, lambda number: everybody)
    rounds = len(begun.numbers)
    taken = seconds(card, 5, lambda: ahead._begin(state, 10**6, lambda number: everybody).collect())
    said = f"{shape[2]} x {shape[1]}, {count} clients: {5 * count * rounds / taken / 1e6:.2f} million in one call"
    federated = simulate(federation, crowd, 10**6, device=card)
    for _ in range(3 * rounds):
        next(federated)
    begin = time.perf_counter()
    for _ in range(6 * rounds):
        next(federated)
    said += f", {30 * count * rounds / (time.perf_counter() - begin) / 1e6:.2f} with all that Python does"
    *_, expected = simulate(federation, crowd, 50)
    *_, found = simulate(federation, crowd, 50, device=card)
    return said + (", same bits" if np.array_equal(expected.weights, found.weights) else ", OTHER BITS")


def robust_rules(card: Any) -> None:
    rules = {
        "krum": fr.aggregators.Krum(), "multi-krum": fr.aggregators.MultiKrum(),
        "trimmed mean": fr.aggregators.TrimmedMean(), "median": fr.aggregators.Median(),
    }  # fmt: skip
    for clients in (40, 1000, 10_000):
        updates = np.random.default_rng(1).normal(size=(clients, 136)).astype(np.float32)
        there, said = card.put(updates), []
        for name, rule in rules.items():
            taken = seconds(card, 3, partial(change_there, card, rule, there))
            text = f"{name} {1e3 * taken:.2f} ms"
            if clients <= 1000:
                sizes = np.ones(clients, np.int64)
                messages = Messages(updates, sizes, np.arange(clients), np.zeros(136), 1)
                rule(messages)
                begin = time.perf_counter()
                expected = rule(messages)
                text += f" (processor {1e3 * (time.perf_counter() - begin):.2f})"
                found = change_there(card, rule, there)
                text += " same" if np.array_equal(found, expected) else f" {np.abs(found - expected).max():.0e}"
            said.append(text)
        print(f"{clients} x 136: {'; '.join(said)}", flush=True)


def measured(card: Any) -> None:
    import cupy

    for shape in (SHAPES[0], SHAPES[3]):
        data, rng = made_up(*shape), np.random.default_rng(1)
        weights, linear = rng.normal(size=(100, shape[2])), fr.rankers.Linear()
        evaluator = Evaluator(data, ["ndcg@10"])
        there = EvaluatorThere(card, evaluator)
        taken = seconds(card, 5, partial(there, weights, linear))
        features, models = card.put(data.features), card.put(weights.astype(np.float32).T)
        product = seconds(card, 5, partial(cupy.matmul, features, models))
        few = rng.normal(size=(20, shape[2]))
        begin = time.perf_counter()
        expected = evaluator(few, linear)
        here = time.perf_counter() - begin
        same = np.array_equal(there(few, linear), expected)
        flops = 2e-12 * data.features.size * 100
        where = f"measures {shape[2]} x {shape[1]}"
        print(
            f"{where}: 100 in {1e3 * taken:.2f} ms ({flops / taken:.1f} Tflop/s), the matrix product in "
            f"{1e3 * product:.2f} ms; 20 on the processor in {1e3 * here:.0f} ms; same bits: {same}", flush=True,
        )  # fmt: skip


def main() -> None:
    card = card_with_variants()
    if "--profile" in sys.argv:
        for shape in (SHAPES[0], SHAPES[3]):
            crowd = fr.make_clients(made_up(*shape), count=100_000, user="informational", interactions=4)
            PdgdThere(card, fr.learners.Pdgd(rate=0.1), crowd).learn(np.zeros(shape[2]), Chance(1, 7))
            card.finish()
        return
    same, tried = agreement(card, clients=60)
    print(f"the same bits for {same:,} of {tried:,} clients", flush=True)
    for shape, count in ((SHAPES[2], 10), (SHAPES[0], 10), (SHAPES[3], 10), (SHAPES[3], 200)):
        print(small_rounds(card, shape, count), flush=True)
    robust_rules(card)
    measured(card)
    large_rounds(card, SHAPES[3], SHORT)
    large_rounds(card, SHAPES[0], LONG)


if __name__ == "__main__":
    main()
