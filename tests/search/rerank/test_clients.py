"""Clients that people use, against a real server; every request must go to the configured address.

`make test-clients` installs those that are not development dependencies, into .venv-clients.
"""

import asyncio
import contextlib
import gc
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings

import pytest
import uvicorn

from fedrank.search.rerank.api import make_api
from fedrank.search.rerank.serve import bound_to
from fedrank.search.rerank.tenants import Tenants
from tests.search.rerank.kills import kill_often

pytestmark = pytest.mark.process
HERE = {"127.0.0.1", "localhost"}
TEXTS = ["rain in the north", "an asthma inhaler for children", "snow", "how to use the inhaler"]


@pytest.fixture
def server(tmp_path):
    """The address and a key of a server."""
    tenants = Tenants(tmp_path / "server")
    with bound_to("127.0.0.1", 0) as bound:
        running = uvicorn.Server(uvicorn.Config(make_api(tenants), lifespan="off", log_level="critical"))
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


def test_cohere(server, only_here):
    cohere = pytest.importorskip("cohere", reason="package: cohere is not installed")
    address, key, tenants = server
    client = cohere.ClientV2(key, base_url=address)
    answer = client.rerank(model="fedrank", query="asthma inhaler", documents=TEXTS, top_n=2)
    assert len(answer.results) == 2
    assert {row.index for row in answer.results} <= set(range(4))
    stored = tenants.reranker("shop")._store.request(answer.id)
    assert len(stored.documents) == 4
    more = {"additional_body_parameters": {"signals": {"vector": [0.1, 0.9, 0.2, 0.8]}, "user": "ann"}}
    answer = client.rerank(model="fedrank", query="inhaler", documents=TEXTS, request_options=more)
    assert "vector" in tenants.reranker("shop")._store.request(answer.id).names
    with pytest.raises(cohere.errors.UnauthorizedError):
        cohere.ClientV2("wrong", base_url=address).rerank(model="fedrank", query="x", documents=TEXTS)


@pytest.mark.filterwarnings("ignore")
def test_langchain(server, only_here):
    langchain = pytest.importorskip("langchain_cohere", reason="package: langchain-cohere is not installed")
    address, key, tenants = server
    reranker = langchain.CohereRerank(model="fedrank", cohere_api_key=key, base_url=address, top_n=2)
    found = reranker.rerank(TEXTS, "asthma inhaler")
    assert len(found) == 2
    assert all(0 < row["relevance_score"] < 1 for row in found)
    id = tenants.reranker("shop").feedback(
        query="asthma inhaler", documents=TEXTS, events={1: "cited"}
    )  # it drops the id
    assert id


@pytest.mark.filterwarnings("ignore")
def test_llama_index(server, only_here):
    module = pytest.importorskip(
        "llama_index.postprocessor.cohere_rerank",
        reason="package: cohere_rerank of llama-index",
    )
    schema = pytest.importorskip("llama_index.core.schema")
    address, key, _ = server
    nodes = [schema.NodeWithScore(node=schema.TextNode(text=text), score=0.5) for text in TEXTS]
    reranker = module.CohereRerank(api_key=key, base_url=address, model="fedrank", top_n=2)
    found = reranker.postprocess_nodes(nodes, query_str="asthma inhaler")
    assert len(found) == 2
    assert all(0 < node.score < 1 for node in found)


@pytest.mark.filterwarnings("ignore")
def test_lightrag(server, only_here):
    lightrag = pytest.importorskip("lightrag.rerank", reason="package: lightrag-hku is not installed")
    address, key, tenants = server
    asked = lightrag.cohere_rerank(
        "asthma inhaler", TEXTS, top_n=2, api_key=key, base_url=f"{address}/v2/rerank",
        extra_body={"signals": {"vector": [0.1, 0.9, 0.2, 0.8]}, "user": "ann"},
    )  # fmt: skip
    found = asyncio.run(asked)
    assert len(found) == 2
    assert all(0 < row["relevance_score"] < 1 for row in found)
    reranker = tenants.reranker("shop")
    id = reranker.feedback(query="asthma inhaler", documents=TEXTS, events={found[0]["index"]: "cited"})
    assert "vector" in reranker._store.request(id).names


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


def test_health_and_an_address_in_use(server):
    address, _, _ = server
    with contextlib.closing(urllib.request.urlopen(f"{address}/health")) as answer:
        assert answer.read() == b"ok\n"
    with pytest.raises(OSError, match="cannot be used"), bound_to("127.0.0.1", int(address.rsplit(":", 1)[1])) as bound:
        bound.listen()


def test_kills_lose_nothing(tmp_path):
    assert kill_often(tmp_path / "t", 3) > 5
