"""Measure the reranker: milliseconds for 100 passages of 200 words, 50 requests at once, and memory of a tenant.

    python -m benchmarks.rerank_speed [--requests 200] [--check]

CPU time of the process, which excludes other programs; over HTTP wall time, and the CPU time of the server, which is a
separate process. Cached: the same passages again, also with a full memory. Cold: passages that were never seen. For
comparison, the same passages scored by bm25s, index included; the ratio to it says how busy the machine was. `--check`
fails if the 95th percentile is above 30 ms cold or 10 ms cached.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import numpy as np
import psutil

from fedrank.search.rerank import Reranker
from fedrank.search.rerank.memory import MAX_QUERIES
from fedrank.search.rerank.serve import bound_to, make_server
from fedrank.search.rerank.tenants import Tenants
from fedrank.seeds import rng_for

PASSAGES, WORDS, VOCABULARY, AT_ONCE, TENANTS = 100, 200, 20_000, 50, 21


def passages(rng: np.random.Generator) -> list[str]:
    rare = 1 / np.arange(1, VOCABULARY + 1)
    drawn = rng.choice(VOCABULARY, size=(PASSAGES, WORDS), p=rare / rare.sum())
    return [" ".join(f"w{word}x" for word in row) for row in drawn]


def timed(work: list, clock=time.process_time) -> np.ndarray:
    found = []
    for one in work:
        began = clock()
        one()
        found.append(1000 * (clock() - began))
    return np.array(found)


def line(name: str, milliseconds: np.ndarray) -> str:
    return f"{name:42} p50 {np.quantile(milliseconds, 0.5):6.1f} ms   p95 {np.quantile(milliseconds, 0.95):6.1f} ms"


def fill(reranker: Reranker, query: str, texts: list[str], rng: np.random.Generator) -> None:
    """Fill memory with queries, each of which shares one of the words of a query."""
    stems = reranker._hasher.query(query)
    for number in range(MAX_QUERIES):
        other = np.unique([stems[number % len(stems)], *rng.integers(0, 2**31, 2)]).astype(np.int32)
        reranker._memory.add(other, reranker._hasher.digest(texts[number % PASSAGES]), 1, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    count = asked.requests
    rng = rng_for(1, "rerank speed")
    query = "w30x w500x w7x w1200x"
    lists = [passages(rng) for _ in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        with Reranker(Path(folder, "one")) as reranker:
            reranker.rerank(query, lists[0])
            before = psutil.Process().memory_info().rss
            cold = timed([lambda texts=texts: reranker.rerank(query, texts, 10) for texts in lists])
            after = psutil.Process().memory_info().rss
            cached = timed([lambda: reranker.rerank(query, lists[-1], 10)] * count)
            fill(reranker, query, lists[-1], rng)
            full = timed([lambda: reranker.rerank(query, lists[-1], 10)] * count)
        print(line("cold, CPU", cold))
        print(line("cached, CPU", cached))
        print(line(f"cached, {MAX_QUERIES:,} queries remembered, CPU", full))
        print(f"{'memory of a tenant':42} {(after - before) / 1e6:.1f} MB with {count * PASSAGES:,} passages")
        import bm25s

        def outside(texts: list[str]) -> None:
            index = bm25s.BM25()
            index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
            index.retrieve(bm25s.tokenize([query], show_progress=False), k=10, show_progress=False)

        reference = timed([lambda texts=texts: outside(texts) for texts in lists])
        print(line("bm25s on the same lists, CPU", reference))
        ratios = [np.quantile(some, 0.95) / np.quantile(reference, 0.95) for some in (cold, cached)]
        print(f"{'ratio of p95 to bm25s':42} cold {ratios[0]:.2f}   cached {ratios[1]:.2f}")
        over_http(Path(folder, "server"), query, lists, count)
    if asked.check and not (np.quantile(cold, 0.95) <= 30 and np.quantile(cached, 0.95) <= 10):
        sys.exit("a goal was missed")


def over_http(folder: Path, query: str, lists: list[list[str]], count: int) -> None:
    """Requests to a server in a separate process: wall time, its CPU time, and its memory with many tenants."""
    tenants = Tenants(folder)
    keys = [tenants.add_key(f"tenant-{number}") for number in range(TENANTS)]
    tenants.close()
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=serve, args=(folder, there), daemon=True)
    child.start()
    address, process = here.recv(), psutil.Process(child.pid)
    with httpx.Client(timeout=600, limits=httpx.Limits(max_connections=AT_ONCE)) as client:

        def post(texts: list[str], key: str = keys[0]) -> None:
            body = {"query": query, "documents": texts, "top_n": 10}
            client.post(address, json=body, headers={"authorization": f"Bearer {key}"}).raise_for_status()

        def spent(name: str, milliseconds: np.ndarray, before: float) -> None:
            times = process.cpu_times()
            cpu = 1000 * (times.user + times.system - before) / len(milliseconds)
            print(f"{line(name, milliseconds)}   mean CPU time of the server {cpu:.1f} ms")

        def used() -> float:
            return process.cpu_times().user + process.cpu_times().system

        post(lists[0])
        before = used()
        spent(
            "over HTTP, one at a time, cached, wall", timed([lambda: post(lists[0])] * count, time.perf_counter), before
        )
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for name, some in (("cold", lists[1:]), ("cached", [lists[0]] * 4 * AT_ONCE)):
                before = used()
                together = list(pool.map(lambda texts: timed([lambda: post(texts)], time.perf_counter)[0], some))
                spent(f"over HTTP, {AT_ONCE} at once, {name}, wall", np.array(together), before)
        memory = process.memory_info().rss
        for key in keys[1:]:
            for texts in lists[:10]:
                post(texts, key)
        grown = (process.memory_info().rss - memory) / (TENANTS - 1) / 1e6
        print(f"{'memory of a tenant, in a server':42} {grown:.1f} MB with {10 * PASSAGES:,} passages")
    child.kill()
    child.join()


def serve(folder: Path, ready: Connection) -> None:
    with bound_to("127.0.0.1", 0) as bound:
        bound.listen(128)
        ready.send(f"http://127.0.0.1:{bound.getsockname()[1]}/v2/rerank")
        make_server(Tenants(folder)).run(sockets=[bound])


if __name__ == "__main__":
    main()
