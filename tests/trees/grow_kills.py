"""Kill `fedrank trees grow` again and again, and look whether the forest is the one that was grown in one go.

    python -m tests.trees.grow_kills --count 100

First at random moments. Then at every single point at which it changes its folder: before a file takes its place, and
before one is removed; a process of its own dies at each. Every time the command is given again as it was, until it
ends by itself. Trees are compared byte by byte, and a finished forest has its card.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedrank.cli import app
from fedrank.data.letor import letor_lines
from tests.made_up import made_up_data

FILES = ("model.txt", "model.json")


def in_child(work: Callable[[], None], quiet: Path) -> int:
    """The number of a process that does this and ends."""
    child = os.fork()
    if child:
        return child
    try:
        to = os.open(quiet, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(to, 1)
        os.dup2(to, 2)
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def died(child: int) -> bool:
    """Whether it was killed; False: it ended well. Anything else is a finding."""
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"it ended by signal {os.WTERMSIG(status)}"
        return True
    assert os.WEXITSTATUS(status) == 0, f"it ended with {os.WEXITSTATUS(status)}; its words are in the log"
    return False


def die_at(point: int) -> None:
    """From here on this process dies before it changes the folder for the so-manieth time, from 0."""
    changes = 0

    def dying(change: Callable[..., None]) -> Callable[..., None]:
        def instead(*args: object, **settings: object) -> None:
            nonlocal changes
            if changes == point:
                os.kill(os.getpid(), signal.SIGKILL)
            changes += 1
            change(*args, **settings)

        return instead

    os.replace, os.unlink = dying(os.replace), dying(os.unlink)


def grow(folder: Path, out: str, trees: int, secure: bool) -> None:
    files = [f"--silo={folder / f'{number}.txt'}" for number in range(2)]
    files += [f"--validation={folder / f'v{number}.txt'}" for number in range(2)]
    settings = [f"--trees={trees}", "--leaves=6", "--min-data-in-leaf=3", "--rate=0.2", f"--out={folder / out}"]
    app(["trees", "grow", *files, *settings, *(["--secure"] if secure else [])], standalone_mode=False)


def compare(folder: Path, out: str) -> None:
    for name in FILES:
        assert (folder / out / name).read_bytes() == (folder / "whole" / name).read_bytes(), f"{out}/{name} differs"
    left = sorted(path.name for path in (folder / out).iterdir())
    assert left == sorted(path.name for path in (folder / "whole").iterdir()), f"{left} lie in {out}"


def at_random(folder: Path, count: int, trees: int, secure: bool, seed: int = 1) -> int:
    """Kill as often, over as many forests as it takes; how many forests there were."""
    rng, killed, forests = random.Random(seed), 0, 0
    grow(folder, "whole", trees, secure)  # here, so that children find all that is compiled
    began = time.monotonic()
    assert not died(in_child(lambda: grow(folder, "again", trees, secure), folder / "log"))
    longest = time.monotonic() - began
    compare(folder, "again")
    while killed < count:
        forests += 1
        out = f"random-{forests}"
        while True:
            child = in_child(lambda out=out: grow(folder, out, trees, secure), folder / "log")
            if killed < count:
                time.sleep(rng.uniform(0, longest))
                os.kill(child, signal.SIGKILL)
            if not died(child):
                break
            killed += 1
        compare(folder, out)
    return forests


def at_every_point(folder: Path) -> int:
    """How many points there are at which it can die; after each the command is given again."""

    def dying(out: str, point: int) -> None:
        die_at(point)
        grow(folder, out, 2, False)

    grow(folder, "whole", 2, False)
    point = 0
    while True:
        out = f"point-{point}"
        if not died(in_child(lambda out=out, point=point: dying(out, point), folder / "log")):
            return point
        assert not died(in_child(lambda out=out: grow(folder, out, 2, False), folder / "log"))
        compare(folder, out)
        point += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--trees", type=int, default=40)
    asked = parser.parse_args()
    data = made_up_data(60)
    for secure in (False, True):
        with tempfile.TemporaryDirectory(prefix="fedrank-grow-kills-") as place:
            folder = Path(place)
            for number in range(2):
                for name, first in (("", number), ("v", number + 40)):
                    rows = data.select(np.arange(first, 60 if name else 40, 2))
                    (folder / f"{name}{number}.txt").write_text("".join(letor_lines(rows)))
            try:
                forests = at_random(folder, asked.count, asked.trees, secure)
                print(f"{asked.count} kills of {forests} forests{', secure' if secure else ''}: all as grown in one go")
                if not secure:
                    for path in (folder / "whole").iterdir():
                        path.unlink()
                    print(f"{at_every_point(folder)} points at which it can die: the forest is the same after each")
            except AssertionError:
                print((folder / "log").read_text(), file=sys.stderr)
                raise


if __name__ == "__main__":
    main()
