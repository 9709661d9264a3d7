"""FOLtR-ES and neural PDGD on a GPU: identical results to the CPU, and searches per second.

    python -m benchmarks.gpu_learners            # needs a GPU and CuPy; fails if a bit differs
    python -m benchmarks.gpu_learners --tune     # and again with other sizes of tiles and blocks

Like benchmarks/gpu.py, which covers linear PDGD: first random problems learned by both, then speeds, with the mean of
all updates.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from functools import partial
from typing import Any

import numpy as np

import fedrank as fr
from benchmarks.gpu import made_up, seconds, the_card
from fedrank.kernels import devices
from fedrank.kernels.devices import CudaDevice, Device
from fedrank.ranking.cuda import neural
from fedrank.seeds import Chance
from fedrank.types import Learner

CHECKED: tuple[Learner, ...] = (
    *(fr.learners.Evolution(ranker) for ranker in (fr.rankers.Linear(), fr.rankers.Relu(10), fr.rankers.Mlp(64))),
    fr.learners.Evolution(reward="dcg", deviation=1.0),
    fr.learners.Evolution(truth=0.6),
    *(fr.learners.Pdgd(fr.rankers.Mlp(hidden)) for hidden in (64, 20, 7)),
    fr.learners.Pdgd(fr.rankers.Relu(10, start="normal"), batch=True),
    fr.learners.Pdgd(fr.rankers.Mlp(64), temperature=0.3, keep=0.5),
    fr.learners.Pdgd(fr.rankers.Mlp(16), clip_weights=0.5),
    fr.learners.Pdgd(fr.rankers.Mlp(16), batch=True, clip_gradients=0.01),
)
ES, NEURAL = fr.learners.Evolution(), fr.learners.Pdgd(fr.rankers.Mlp(64))
WIDE = (CHECKED[2], NEURAL)  # including models that are too large for shared memory
# learner, (queries, documents, features), clients, searches per client
SPEEDS = (
    (ES, (1000, 41, 46), 100_000, 5),
    (ES, (1000, 41, 46), 1_000_000, 4),
    (ES, (400, 120, 136), 100_000, 5),
    (ES, (6000, 120, 136), 100_000, 5),
    (fr.learners.Evolution(fr.rankers.Relu(10)), (1000, 41, 46), 100_000, 5),
    (NEURAL, (1000, 41, 46), 20_000, 5),
    (NEURAL, (400, 120, 136), 20_000, 5),
    (NEURAL, (6000, 120, 136), 20_000, 5),
)
# Units per thread, and groups of warps that must fit on a multiprocessor.
NEURAL_VARIANTS = ((16, 4), (8, 4), (8, 5))
LEFT_OUT = {  # disabled stages of neural PDGD, as text replacements
    "no gradients": ("if (moved) add_mlp", "if (false) add_mlp"),
    "no hidden sums": ("f < whole; f += 4) {", "f < 0; f += 4) {"),
    "four parameters at once": ("#define AT_ONCE 8", "#define AT_ONCE 4"),
}
EVOLUTION_VARIANTS = ((8, 4),)  # blocks of four warps per multiprocessor, for short and long lists


def agreement(machine: Device, clients: int = 60) -> tuple[int, int]:
    """(clients with identical results, clients) over random problems."""
    same = tried = 0
    for number, learner in enumerate(CHECKED):
        for documents, features in ((7, 5), (41, 46), (130, 136), (300, 30), (20, 1000))[: 5 if learner in WIDE else 4]:
            data = made_up(40, documents, features, number, ragged=True)
            simulated = fr.make_clients(data, count=clients, click_model="informational", interactions=4, seed=number)
            start = learner.ranker.first(features, np.random.default_rng(number)) * 5
            expected = learner(start, simulated, Chance(number, 3))
            found = learner.on_device(machine, simulated).learned(
                start, Chance(number, 3), None, fr.types.NO_CORRECTION
            )
            alike = (expected.updates == found.updates).all(axis=1)
            alike &= expected.observed.online == found.observed.online
            if expected.sent is not None:
                alike &= expected.sent == found.sent
            same, tried = same + int(alike.sum()), tried + clients
            if not alike.all():
                off = np.abs(expected.updates - found.updates).max()
                print(f"{learner}, {documents} x {features}: {clients - int(alike.sum())} differ, by up to {off:.3g}")
    return same, tried


def speed(card: CudaDevice, learner: Learner, clients: Any, repeats: int = 5) -> tuple[float, float]:
    """Searches per second, for learning alone and with the sum of all updates."""
    weights = learner.ranker.first(clients.data.features.shape[1], np.random.default_rng(1))
    many, chance = learner.on_device(card, clients), Chance(1, 7)
    searches = int(clients.interactions.sum())
    learn = seconds(card, repeats, partial(many.learn, weights, chance))
    return searches / learn, searches / seconds(
        card, repeats, partial(many.parts, weights, chance, None, True, len(clients))
    )


def with_only(text: str, kernels: tuple[str, ...]) -> str:
    """The CUDA source without other kernels, to save compilation time."""
    kernel = re.compile(r'extern "C" __global__ void __launch_bounds__\([^)]*\) (\w+)\(.*?\n}\n', re.DOTALL)
    return kernel.sub(lambda found: found[0] if found[1] in kernels else "", text)


def tune() -> None:
    """Measure speeds with other sizes."""
    original, text = devices.source, devices.source()
    small, large = ((1000, 41, 46), (6000, 120, 136))
    sizes = neural.TILE, neural.GROUPS
    try:
        plain = with_only(text, ("neural_clients_plain", "add_rows"))
        for tile, blocks in NEURAL_VARIANTS:
            changed = plain.replace("#define TILE 16", f"#define TILE {tile}")
            changed = changed.replace("__launch_bounds__(CREW, 4)", f"__launch_bounds__(CREW, {blocks})")
            neural.TILE, neural.GROUPS = tile, blocks
            report_variant(f"neural: tiles of {tile}, {blocks} warp groups", changed, NEURAL, (small, large), 10_000)
        neural.TILE, neural.GROUPS = sizes
        for name, (old, new) in LEFT_OUT.items():
            assert old in plain
            report_variant(f"neural: {name}", plain.replace(old, new), NEURAL, (small, large), 10_000)
        for short, long in EVOLUTION_VARIANTS:
            changed = with_only(text, ("evolution_clients", "evolution_clients_short", "add_rows"))
            changed = changed.replace(
                "__launch_bounds__(128, 8) evolution", f"__launch_bounds__(128, {short}) evolution"
            )
            changed = changed.replace(
                "__launch_bounds__(128, 4) evolution", f"__launch_bounds__(128, {long}) evolution"
            )
            report_variant(f"FOLtR-ES: {short} blocks, {long} for long lists", changed, ES, (small, large), 100_000)
    finally:
        devices.source = original


def report_variant(name: str, text: str, learner: Learner, shapes: Any, clients: int) -> None:
    devices.source = lambda: text  # type: ignore[assignment]
    card, found = the_card(), []
    for shape in shapes:
        simulated = fr.make_clients(made_up(*shape), count=clients, click_model="informational", interactions=5)
        found.append(f"{speed(card, learner, simulated)[0] / 1e6:.2f}")
    print(f"{name}: {' and '.join(found)} million per second", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="also measure other sizes")
    options = parser.parse_args()
    begin = time.perf_counter()
    card = the_card()
    same, tried = agreement(card)
    print(f"{card.name}: identical results for {same:,} of {tried:,} clients ({time.perf_counter() - begin:.0f} s)")
    for learner, shape, clients, searches in SPEEDS:
        data = made_up(*shape)
        few = fr.make_clients(data, count=100, click_model="informational", interactions=searches)
        weights = learner.ranker.first(shape[2], np.random.default_rng(1))
        took = time.process_time()
        learner(weights, few, Chance(1, 7))
        one_core = 100 * searches / (time.process_time() - took)
        simulated = fr.make_clients(data, count=clients, click_model="informational", interactions=searches)
        alone, whole = speed(card, learner, simulated)
        print(
            f"{type(learner).__name__} {learner.ranker}, {shape[2]} x {shape[1]}, {data.features.nbytes / 2**20:,.0f} "
            f"MiB, {clients:,} clients: {whole / 1e6:.2f} million with the mean, {alone / 1e6:.2f} without it, "
            f"{whole / one_core:,.0f} times one core ({one_core:,.0f})",
            flush=True,
        )
    if options.tune:
        tune()
    if same < tried:
        sys.exit("updates of the GPU differ from those of the CPU")


if __name__ == "__main__":
    main()
