"""Clients that people use, against a real server; every request must go to the configured address.

`make test-clients` installs those that are not development dependencies, into .venv-clients.
"""

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from pathlib import Path

import pytest

from fedrank.search.rerank.serve import bound_to, make_server
from fedrank.search.rerank.tenants import Tenants
from tests.search.rerank.kills import kill_often

pytestmark = pytest.mark.process
HERE = {"127.0.0.1", "localhost"}
TUTORIAL = Path(__file__).parents[3].joinpath("docs", "tutorials", "rerank.md").read_text("utf-8")
PASSAGES = [
    "Shake the inhaler well before each use.",
    "Store the inhaler below 30 degrees, away from light.",
    "Visiting hours are from two to eight.",
    "Rinse your mouth with water after you have used the steroid inhaler.",
]
TEXTS = ["rain in the north", "an asthma inhaler for children", "snow", "how to use the inhaler"]


@pytest.fixture
def server(tmp_path):
    """The address and a key of a server."""
    tenants = Tenants(tmp_path / "server")
    with bound_to("127.0.0.1", 0) as bound:
        bound.listen()  # a test may connect before the server runs
        running = make_server(tenants)
        thread = threading.Thread(target=lambda: running.run(sockets=[bound]), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}", tenants.add_key("shop"), tenants
        running.should_exit = True
        thread.join()
    tenants.close()


@pytest.fixture
def only_here(monkeypatch):
    """The hosts that were looked up or connected to; all but loopback are refused.

    The environment names another address, which clients must not use.
    """
    asked = []

    def noted(host):
        asked.append(host)
        if host not in HERE:
            raise OSError(f"{host} is not the configured address")

    def looked_up(host, *more, **named):
        noted(host)
        return resolve(host, *more, **named)

    def connected(one, address):
        noted(address[0] if isinstance(address, tuple) else address)
        return connect(one, address)

    resolve, connect = socket.getaddrinfo, socket.socket.connect
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    monkeypatch.setattr(socket.socket, "connect", connected)
    for name in ("CO_API_URL", "COHERE_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://elsewhere.example")
    monkeypatch.setenv("NO_PROXY", ",".join(HERE))
    yield asked
    assert set(asked) <= HERE
    with warnings.catch_warnings():  # clients leave their connections open
        warnings.simplefilter("ignore")
        gc.collect()


def test_the_guard_notices_other_addresses(only_here):
    with pytest.raises(OSError, match="is not the configured address"):
        socket.create_connection(("elsewhere.example", 80), timeout=1)
    with socket.socket() as one, pytest.raises(OSError, match="is not the configured address"):
        one.connect(("192.0.2.1", 80))
    assert only_here == ["elsewhere.example", "192.0.2.1"]
    only_here.clear()


def shown(package, **names):
    """Run the block of the tutorial that imports a package; its names."""
    [code] = [one for one in re.findall(r"^```py\n(.*?)^```$", TUTORIAL, re.M | re.S) if package in one]
    assert len([line for line in code.splitlines() if line]) <= 7
    exec(compile(code.replace("http://127.0.0.1:8011", names.get("address", "")), package, "exec"), names)
    return names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("package", ["cohere", "langchain_cohere", "llama_index.postprocessor", "lightrag.rerank"])
def test_the_tutorial_ends_with_a_learned_order(server, only_here, package):
    pytest.importorskip(package, reason=f"client: {package} is not installed")
    address, key, tenants = server
    names = {"address": address, "key": key, "query": "steroid inhaler", "passages": PASSAGES}
    if package.startswith("llama"):
        from llama_index.core.schema import NodeWithScore, TextNode

        names["nodes"] = [NodeWithScore(node=TextNode(text=text)) for text in PASSAGES]
    block = f"import {package}\n" if package == "cohere" else f"from {package}"
    assert shown(block, **names)["order"][0] == 0
    shown("import httpx", **names)
    assert tenants.reranker("shop").status().with_feedback == 1
    # One request in twenty keeps the caller's order.
    assert any(shown(block, **names)["order"][0] == 3 for _ in range(5))


def test_cohere(server, only_here):
    cohere = pytest.importorskip("cohere", reason="client: cohere is not installed")
    address, key, tenants = server
    client = cohere.ClientV2(key, base_url=address)
    answer = client.rerank(model="fedrank", query="asthma inhaler", documents=TEXTS, top_n=2)
    assert len(tenants.reranker("shop")._store.request(answer.id).documents) == 4
    more = {"additional_body_parameters": {"signals": {"vector": [0.1, 0.9, 0.2, 0.8]}, "user": "ann"}}
    answer = client.rerank(model="fedrank", query="inhaler", documents=TEXTS, request_options=more)
    assert "vector" in tenants.reranker("shop")._store.request(answer.id).names
    with pytest.raises(cohere.errors.UnauthorizedError):
        cohere.ClientV2("wrong", base_url=address).rerank(model="fedrank", query="x", documents=TEXTS)


@pytest.mark.filterwarnings("ignore")
def test_lightrag_sends_signals(server, only_here):
    lightrag = pytest.importorskip("lightrag.rerank", reason="client: lightrag-hku is not installed")
    address, key, tenants = server
    more = {"signals": {"vector": [0.1, 0.9, 0.2, 0.8]}, "user": "ann"}
    asked = lightrag.cohere_rerank("inhaler", TEXTS, 2, key, base_url=f"{address}/v2/rerank", extra_body=more)
    [first, second] = asyncio.run(asked)
    assert 1 > first["relevance_score"] > second["relevance_score"] > 0
    reranker = tenants.reranker("shop")
    id = reranker.feedback(query="inhaler", documents=TEXTS, events={first["index"]: "cited"})
    assert "vector" in reranker._store.request(id).names


@pytest.mark.filterwarnings("ignore")
def test_the_agent_of_the_tutorial(tmp_path, monkeypatch):
    pytest.importorskip("mcp", reason="package: mcp is not installed")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    order = shown("import asyncio, json, mcp", query="steroid inhaler", passages=PASSAGES)["order"]
    assert len(order) == 2
    assert [*tmp_path.rglob("rerank.db")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("over", ["http", "stdio"])
def test_an_agent(tmp_path, over):
    """The official client of the Model Context Protocol, with the command as agents start it."""
    mcp = pytest.importorskip("mcp", reason="package: mcp is not installed")
    words = ["-m", "fedrank", "rerank", "mcp", "agent", "--folder", str(tmp_path / "server")]
    with bound_to("127.0.0.1", 0) as bound:  # a free port
        port = bound.getsockname()[1]

    async def use(server):
        async with mcp.Client(server) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            asked = {"query": "asthma inhaler", "documents": TEXTS, "top_n": 2}
            found = json.loads((await client.call_tool("rerank", asked)).content[0].text)
            await client.call_tool("feedback", {"id": found["id"], "used": [found["results"][0]["index"]]})
            wrong = await client.call_tool("feedback", {"id": "foreign", "used": [0]})
            return tools, len(found["results"]), wrong.content[0].text

    if over == "stdio":
        said = asyncio.run(use(mcp.StdioServerParameters(command=sys.executable, args=words)))
    else:
        process = subprocess.Popen([sys.executable, *words, "--address", f"127.0.0.1:{port}"])
        try:
            for _ in range(600):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                assert process.poll() is None
                time.sleep(0.1)
            said = asyncio.run(use(f"http://127.0.0.1:{port}/mcp"))
        finally:
            process.terminate()
            process.wait(30)
    assert said[:2] == (["rerank", "feedback"], 2)
    assert "no such request is recorded" in said[2]
    with Tenants(tmp_path / "server").reranker("agent") as reranker:
        assert reranker.status().with_feedback == 1


def test_clients_that_send_nothing_or_slowly_do_not_block_others(server, monkeypatch):
    """Connections on which no request arrives are closed, and bodies must arrive in time."""
    monkeypatch.setattr("fedrank.web.server.PATIENCE", 0.1)
    monkeypatch.setattr("fedrank.search.rerank.api.BODY_SECONDS", 0.1)
    address, key, _ = server
    head = f"POST /v2/rerank HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 100\r\n\r\n"
    for sent, answer in ((b"", b""), (b"POST /v2/rer", b""), (head.encode() + b"{", b"HTTP/1.1 408 ")):
        with socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])), timeout=30) as one:
            one.sendall(sent)
            assert one.recv(13) == answer


def test_a_busy_tenant_does_not_block_others(server):
    address, key, tenants = server
    other = tenants.add_key("library")

    def rerank(key):
        body = json.dumps({"query": "inhaler", "documents": TEXTS}).encode()
        request = urllib.request.Request(f"{address}/rerank", body, {"authorization": f"Bearer {key}"})
        with contextlib.closing(urllib.request.urlopen(request, timeout=20)) as answer:
            return answer.status

    with concurrent.futures.ThreadPoolExecutor(60) as pool:  # more than the server has threads
        with tenants.reranker("shop")._turn:
            busy = [pool.submit(rerank, key) for _ in range(60)]
            time.sleep(0.5)
            assert rerank(other) == 200
            assert not any(one.done() for one in busy)
        assert {one.result() for one in busy} == {200}


def test_health_and_an_address_in_use(server):
    address, _, _ = server
    with contextlib.closing(urllib.request.urlopen(f"{address}/health")) as answer:
        assert answer.read() == b"ok\n"
    with pytest.raises(OSError, match="cannot be used"), bound_to("127.0.0.1", int(address.rsplit(":", 1)[1])) as bound:
        bound.listen()


def test_kills_lose_nothing(tmp_path):
    assert kill_often(tmp_path / "t", 3) > 5
