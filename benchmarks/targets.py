"""Compare vector instruction sets: results must be identical, and the speed is measured.

    python -m benchmarks.targets [--rounds 2000]

The same rounds of FPDGD, compiled for several x86-64 CPUs that this one supports: digests of the weights, and
interactions per second of CPU time. The exit code is 1 if digests differ.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

TARGETS = {
    "this processor": {},
    "haswell (AVX2)": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+avx,+sse4.2,+bmi,+bmi2"},
    "nehalem (SSE 4.2)": {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse4.2"},
    "any x86-64 (SSE 2)": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
}
WORKER = """
import hashlib, sys, time
import numpy as np
import fedrank as fr
from benchmarks.fpdgd import made_up
many = int(sys.argv[1])
for shape, learner, rounds in (
    ("46 x 41", fr.learners.Pdgd(), many),
    ("136 x 120", fr.learners.Pdgd(), many),
    ("136 x 120", fr.learners.Pdgd(ranker=fr.rankers.Mlp()), max(1, many // 25)),
):
    clients = fr.make_clients(made_up(shape), 10, click_model="navigational", interactions=5)
    federation = fr.Federation(learner)
    for outcome in fr.simulate(federation, clients, 5): pass
    times = []
    for _ in range(3):
        begin = time.process_time()
        for outcome in fr.simulate(federation, clients, rounds): pass
        times.append(time.process_time() - begin)
    digest = hashlib.blake2b(outcome.weights.tobytes(), digest_size=6).hexdigest()
    print(f"{shape}|{type(learner.ranker).__name__.lower()}|{digest}|{rounds * 50 / min(times):.0f}")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000, help="rounds per linear case; neural: 1 in 25")
    rounds = parser.parse_args().rounds
    print(f"{'compiled for':20} {'shape':10} {'ranker':7} {'weights':13} {'interactions/s':>14}")
    seen: dict[tuple[str, str], set[str]] = {}
    for name, settings in TARGETS.items():
        done = subprocess.run(
            [sys.executable, "-c", WORKER, str(rounds)],
            env=os.environ | settings | {"OPENBLAS_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        for line in done.stdout.splitlines():
            shape, ranker, digest, rate = line.split("|")
            seen.setdefault((shape, ranker), set()).add(digest)
            print(f"{name:20} {shape:10} {ranker:7} {digest:13} {int(rate):14,}")
    return int(any(len(digests) > 1 for digests in seen.values()))


if __name__ == "__main__":
    raise SystemExit(main())
