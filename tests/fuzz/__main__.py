"""`python -m tests.fuzz --count 5000`: every reader meets so many mutated files; `make chaos` does it."""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fuzz.readers import READERS

SEED = 16
PATIENCE = 60.0  # seconds without a word from the child: it hangs where no signal reaches, or has not begun yet


@dataclass
class Found:
    """How one reader did."""

    right: Counter[str] = field(default_factory=Counter)  # refused, or read as the same, or (unsealed) as other content
    wrong: list[str] = field(default_factory=list)  # crashes, hangs and silent changes, by number of the mutation


def fuzz(count: int, names: Sequence[str] = tuple(READERS), seed: int = SEED) -> dict[str, Found]:
    """How every reader did. A child that is killed is followed by another one, which goes on with the next file."""
    found = {name: Found() for name in names}
    reader = number = 0
    while reader < len(names):
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.fuzz.child",
                json.dumps(list(names)),
                *map(str, (count, seed, reader, number)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        lines: queue.Queue[str] = queue.Queue()
        assert child.stdout is not None
        threading.Thread(target=_drain, args=(child.stdout, lines), daemon=True).start()
        begun = False
        while True:
            try:
                line = lines.get(timeout=PATIENCE)
            except queue.Empty:
                child.kill()
                line = ""
            if not line:
                break
            what, *values = json.loads(line)
            if what == "end":
                reader = len(names)
            elif what == "next":
                begun, (reader, number) = True, values
            else:
                _note(found[names[values[0]]], *values[1:])
        ended = child.wait()
        child.stdout.close()
        if reader < len(names):
            if not begun:
                raise RuntimeError(f"the child could not begin with {names[reader]}, number {number}")
            found[names[reader]].wrong.append(
                f"{number}: " + ("hang: killed" if ended == -9 else f"crash: it ended with {ended}")
            )
            reader, number = (reader, number + 1) if number + 1 < count else (reader + 1, 0)
    return found


def _note(found: Found, number: int, file: str, outcome: str) -> None:
    if outcome in ("refused", "same", "other"):
        found.right[outcome] += 1
    else:
        found.wrong.append(f"{number}: {file}: {outcome}")


def _drain(lines, into) -> None:
    for line in lines:
        into.put(line)
    into.put("")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=5000, help="mutations for each reader")
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("readers", nargs="*", help=f"of {', '.join(READERS)}; all if none is named")
    chosen = options.parse_args()
    began = time.monotonic()
    found = fuzz(chosen.count, chosen.readers or tuple(READERS), chosen.seed)
    for name, one in found.items():
        right = ", ".join(f"{many:,} {what}" for what, many in sorted(one.right.items()))
        print(f"{name}: {len(one.wrong)} of {chosen.count:,} went wrong ({right})")
        for line in one.wrong[:20]:
            print(f"  {line}")
    print(f"{time.monotonic() - began:.0f} s; seed {chosen.seed}")
    sys.exit(1 if any(one.wrong for one in found.values()) else 0)


if __name__ == "__main__":
    main()
