"""A reranker that is killed (SIGKILL) amid requests, feedback, refits, roll-backs and forgetting.

    python -m tests.search.rerank.kills --count 50

A child process works on a folder and prints what it has answered. After each kill, everything that was answered must be
stored, once; what is held in memory must be what the store says; and the next child continues.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedrank.search.rerank import Reranker

WORK = """
import random, sys, time
from fedrank.search.rerank import Reranker
rng = random.Random(int(sys.argv[2]))
now = [float(sys.argv[3])]
with Reranker(sys.argv[1], opponent=0.2, clock=lambda: now[0]) as one:
    print("ready", flush=True)
    while True:
        texts = [f"text {rng.randrange(500)} about {rng.choice(['rain', 'snow', 'fog'])}" for _ in range(12)]
        good = rng.randrange(12)
        signal = [float(index == good) for index in range(12)]
        answer = one.rerank(f"need {rng.randrange(40)}", texts, 5, signals={"own": signal})
        print("request", answer.id, flush=True)
        one.feedback(answer.id, {good: "cited"})
        print("feedback", answer.id, good, flush=True)
        now[0] += 4000.0
        if rng.random() < 0.01:
            one.rollback()
            print("rollback", flush=True)
"""


def check(folder: Path, told: list[list[str]]) -> None:
    """What was answered is stored; what is held in memory is what a new process reads."""
    with Reranker(folder, opponent=0.2) as one:
        for kind, *rest in told:
            if kind == "request":
                assert one._store.request(rest[0]) is not None, f"request {rest[0]} is lost"
            elif kind == "feedback":
                assert one._store.feedback_of(rest[0]) == {int(rest[1]): {"cited"}}, f"feedback on {rest[0]} is lost"
        assert len(one._store.models("in use")) <= 1
        assert len(one._store.models("on trial")) <= 1
        assert one._store.db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        missing = one._store.count(
            "SELECT count(*) FROM requests WHERE outcome IS NULL AND id IN (SELECT request FROM feedback)"
        )
        assert missing == 0, f"{missing} requests have feedback and no value"


def kill_often(folder: Path, count: int, seed: int = 1) -> int:
    """Kill a child `count` times; returns the number of requests with feedback."""
    rng, told, now = random.Random(seed), [], time.time() - 100 * 86_400.0
    for number in range(count):
        child = subprocess.Popen(
            [sys.executable, "-c", WORK, str(folder), str(seed + number), str(now)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        lines = [child.stdout.readline() for _ in range(rng.randrange(1, 60))]
        time.sleep(rng.random() * 0.01)
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.read().splitlines(keepends=True)
        child.wait()
        child.stdout.close()
        told += [line.split() for line in lines if line.endswith("\n")]
        now += 4000.0 * len(lines)
        check(folder, told)
    return sum(kind == "feedback" for kind, *_ in told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedrank-rerank-") as made:
        stored = kill_often(Path(made, "t"), asked.count)
        print(f"{asked.count} kills: {stored:,} requests with feedback, none lost")


if __name__ == "__main__":
    main()
