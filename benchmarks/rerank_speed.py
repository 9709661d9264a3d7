"""Measure the reranker: milliseconds for 100 passages of 200 words, 50 requests at once, and memory of a tenant.

    python -m benchmarks.rerank_speed [--requests 200]

CPU time of the process, which excludes other programs; wall time over HTTP. Cached: the same passages
again. Cold: passages that were never seen. For comparison, the same passages scored by bm25s, index included.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import uvicorn

from fedrank.search.rerank import Reranker
from fedrank.search.rerank.api import make_api
from fedrank.search.rerank.serve import bound_to
from fedrank.search.rerank.tenants import Tenants
from fedrank.seeds import rng_for

PASSAGES, WORDS, VOCABULARY, AT_ONCE = 100, 200, 20_000, 50


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
    return f"{name:34} p50 {np.quantile(milliseconds, 0.5):6.1f} ms   p95 {np.quantile(milliseconds, 0.95):6.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    count = parser.parse_args().requests
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
        print(line("cold, CPU", cold))
        print(line("cached, CPU", cached))
        print(f"{'memory of a tenant':34} {(after - before) / 1e6:.1f} MB with {count * PASSAGES:,} passages")
        import bm25s

        def outside(texts: list[str]) -> None:
            index = bm25s.BM25()
            index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
            index.retrieve(bm25s.tokenize([query], show_progress=False), k=10, show_progress=False)

        print(line("bm25s on the same lists, CPU", timed([lambda texts=texts: outside(texts) for texts in lists])))
        tenants = Tenants(Path(folder, "server"))
        with bound_to("127.0.0.1", 0) as bound:
            server = uvicorn.Server(uvicorn.Config(make_api(tenants), lifespan="off", log_level="critical"))
            thread = threading.Thread(target=lambda: server.run(sockets=[bound]), daemon=True)
            thread.start()
            address = f"http://127.0.0.1:{bound.getsockname()[1]}/v2/rerank"
            headers = {"authorization": f"Bearer {tenants.add_key('one')}"}
            body = {"query": query, "documents": lists[0], "top_n": 10}
            with httpx.Client(headers=headers, timeout=60) as client:

                def post() -> None:
                    client.post(address, json=body).raise_for_status()

                alone = timed([post] * count, time.perf_counter)
                print(line("over HTTP, one at a time, wall", alone))
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    together = list(pool.map(lambda _: timed([post], time.perf_counter)[0], range(4 * AT_ONCE)))
                print(line(f"over HTTP, {AT_ONCE} at once, wall", np.array(together)))
            server.should_exit = True
            thread.join()
        tenants.close()


if __name__ == "__main__":
    main()
