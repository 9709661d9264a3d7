"""Measure the cost of secure aggregation: the whole protocol, all clients and the server, next to X25519 exchanges.

python -m benchmarks.secure_sum [--size 136] [--check]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

COUNTS = (10, 50, 100)
LONGEST = 2.5  # CPU seconds for 100 clients
MAX_RATIO = 2.5  # relative to the bare exchanges, for 100 clients
BITS = 40


def cpu_seconds(call: Callable[[], Any], repeats: int = 1) -> float:
    """Minimum CPU time of several calls."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def exchanges(count: int) -> None:
    """Agree on as many secrets as the protocol: both ends of every pair, for masks and for encryption."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    mine, other = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()
    for _ in range(2 * count * (count - 1)):
        mine.exchange(other)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=136, help="numbers per client")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args()
    return 1 if measure(options.size) and options.check else 0


def measure(size: int) -> bool:
    """Print the table; True if a target was missed."""
    from fedrank.privacy.secure_aggregation import Step, ideal_sum, secure_sum, threshold_for
    from fedrank.privacy.secure_messages import message_bytes

    table = Table(title=f"Secure aggregation of {size} numbers, one round (CPU seconds of all parties)", box=None)
    columns = ("clients", "protocol", "a tenth drops out", "signed", "bare exchanges", "ratio", "ideal sum")
    for name in (*columns, "kB up per client"):
        table.add_column(name, justify="right")
    secure_sum(np.zeros((2, 1), dtype=np.int64), BITS, 2)
    missed = False
    for count in COUNTS:
        values = np.random.default_rng(1).integers(-(2**20), 2**20, (count, size))
        threshold = 2 * count // 3
        vanished: dict[int, Step] = dict.fromkeys(range(count // 10), "share")
        repeats = 3 if count < 100 else 2

        def protocol(values: Any = values, threshold: int = threshold, dropped: Any = None) -> None:
            secure_sum(values, BITS, threshold, dropped_after=dropped)

        whole = cpu_seconds(protocol, repeats)
        dropping = cpu_seconds(lambda run=protocol, dropped=vanished: run(dropped=dropped), repeats)
        # Every client verifies the signatures of all others for their keys, and of most for the survivors.
        above = threshold_for(count, active=True)
        signing = cpu_seconds(lambda v=values, t=above: secure_sum(v, BITS, t, signed=True), repeats)
        bare = cpu_seconds(lambda count=count: exchanges(count), repeats)
        ideal = cpu_seconds(lambda values=values: ideal_sum(values, BITS), 5)
        ratio = whole / bare
        missed |= count == 100 and (ratio > MAX_RATIO or whole > LONGEST)
        up = message_bytes(count, size, BITS)
        table.add_row(
            f"{count}",
            f"{whole:.3f}",
            f"{dropping:.3f}",
            f"{signing:.3f}",
            f"{bare:.3f}",
            f"{ratio:.2f} x",
            f"{ideal:.6f}",
            f"{up / 1000:.1f}",
        )
    Console().print(table)
    Console().print(f"targets for 100 clients: at most {LONGEST:g} s, at most {MAX_RATIO:g} x the bare exchanges")
    return missed


if __name__ == "__main__":
    sys.exit(main())
