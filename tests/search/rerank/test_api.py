"""The HTTP interface, its page, its tools for agents and its commands, without a server."""

import asyncio
import json

import pytest
from starlette.testclient import TestClient

from fedrank.cli import main
from fedrank.search.mcp import rerank_tools
from fedrank.search.rerank.api import MAX_BODY, make_api
from fedrank.search.rerank.page import make_page
from fedrank.search.rerank.store import RerankError
from fedrank.search.rerank.tenants import Tenants
from fedrank.web.access import Access

TEXTS = ["rain in the north", "an asthma inhaler", "snow", "the inhaler is shaken well before each use by the nurse"]


@pytest.fixture
def tenants(tmp_path):
    made = Tenants(tmp_path / "server")
    yield made
    made.close()


@pytest.fixture
def fedrank(monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr("sys.argv", ["fedrank", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


@pytest.fixture
def client(tenants):
    with TestClient(make_api(tenants), headers={"authorization": f"Bearer {tenants.add_key('shop')}"}) as one:
        yield one


def rerank(client, **body):
    return client.post("/v2/rerank", json={"model": "any", "query": "asthma inhaler", "documents": TEXTS, **body})


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_an_answer_has_coheres_form(client, path):
    answer = client.post(
        path, json={"query": "asthma inhaler", "documents": TEXTS, "top_n": 2, "return_documents": True}
    )
    content = answer.json()
    assert answer.status_code == 200
    assert set(content) == {"id", "results", "meta"}
    assert len(content["results"]) == 2
    for row in content["results"]:
        assert set(row) == {"index", "relevance_score", "document"}
        assert row["document"]["text"] == TEXTS[row["index"]]
        assert 0 < row["relevance_score"] < 1


def test_objects_and_numbers_in_metadata(client, tenants):
    documents = [{"text": text, "metadata": {"date": number, "source": "x"}} for number, text in enumerate(TEXTS)]
    documents[2]["metadata"] = {"date": None}
    answer = rerank(client, documents=documents, signals={"vector": [0.1, 0.2, 0.3, 0.4]})
    assert answer.json()["meta"]["warnings"] == ["signal date is missing for 1 documents, which count as average"]
    stored = tenants.reranker("shop")._store.request(answer.json()["id"])
    assert stored.names == ("rank", "bm25", "centroid", "date", "vector")


# As Weaviate (reranker-cohere), Open WebUI (external reranker) and TanStack AI (cohereRerank; it sends objects as JSON
# text) send it; written from their sources.
ASKED = {"model": "x", "query": "asthma inhaler", "documents": TEXTS}
SENT = {
    "weaviate": ("/v2/rerank", {**ASKED, "return_documents": False}),
    "open-webui": ("/v1/rerank", {**ASKED, "top_n": 4}),
    "tanstack": (
        "/v2/rerank",
        {**ASKED, "documents": [json.dumps({"body": text}) for text in TEXTS], "top_n": 2, "max_tokens_per_doc": 100},
    ),
}


@pytest.mark.parametrize("sender", SENT)
def test_requests_of_clients_in_other_languages(client, sender):
    path, body = SENT[sender]
    headers = {"request-source": "unspecified:weaviate", "x-openwebui-user-name": "ann"}
    answer = client.post(path, json=body, headers=headers).json()
    assert isinstance(answer["id"], str)
    assert {row["index"] for row in answer["results"]} <= set(range(4))
    assert len(answer["results"]) == body.get("top_n", 4)
    scores = [row["relevance_score"] for row in answer["results"]]  # Open WebUI sorts by them itself
    assert scores == sorted(set(scores), reverse=True)
    events = [{"index": 1, "kind": "cited"}]
    seen = {"query": body["query"], "documents": body["documents"], "events": events, "order": [1, 3]}
    assert client.post("/v2/feedback", json=seen).json() == {"id": answer["id"], "recorded": events}


def test_sources_and_derived_texts_in_metadata_or_beside(client, tenants):
    documents = [{"text": text, "metadata": {"source": "wiki", "derived": n == 1}} for n, text in enumerate(TEXTS)]
    assert rerank(client, documents=documents).status_code == 200
    assert rerank(client, derived=[2], sources=["wiki", None, None, "mail"]).status_code == 200
    store = tenants.reranker("shop")._store
    assert store.count("SELECT count(*) FROM passages WHERE derived") == 2
    assert store.count("SELECT count(DISTINCT source) FROM passages") == 2
    assert b"wiki" not in (store.folder / "rerank.db").read_bytes()


def test_a_verdict_on_a_passage_counts_more_than_a_citation_in_the_answer(client):
    rerank(client)
    said = "First, the inhaler is shaken well before each use [4]."
    down = [{"index": 3, "kind": "down"}]
    body = {"query": "asthma inhaler", "documents": TEXTS, "answer": said, "events": down, "reader": "model-1"}
    assert client.post("/v2/feedback", json=body).json()["recorded"] == down


def test_texts_with_an_answer_may_be_sent_as_the_reader_saw_them(client):
    id = rerank(client).json()["id"]
    said = "First, the inhaler is shaken well before each use."
    seen = client.post("/v2/feedback", json={"id": id, "documents": [TEXTS[3], TEXTS[0]], "answer": said})
    assert seen.json()["recorded"] == [{"index": 3, "kind": "cited"}]
    other = client.post("/v2/feedback", json={"id": id, "documents": [TEXTS[3], "other"], "answer": said})
    assert (other.status_code, "documents[1] is not in the request" in other.text) == (400, True)


def test_feedback_by_id_by_texts_and_by_an_answer(client):
    first = rerank(client).json()["id"]
    events = [{"index": 1, "kind": "clicked"}]
    assert client.post("/v2/feedback", json={"id": first, "events": events}).json() == {"id": first, "recorded": events}
    texts = {"query": "asthma inhaler", "documents": TEXTS}
    assert client.post("/feedback", json={**texts, "events": events}).json()["id"] == first
    said = {**texts, "answer": "First, the inhaler is shaken well before each use [4]."}
    assert client.post("/v2/feedback", json=said).json()["recorded"] == [{"index": 3, "kind": "cited"}]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v2/rerank", {"documents": TEXTS}, "query must be a text"),
        ("/v2/rerank", {"query": "q"}, "documents must be a list"),
        ("/v2/rerank", {"query": "q", "documents": ["x"] * 1001}, "documents must be a list of at most 1,000"),
        ("/v2/rerank", {"query": "q", "documents": [{"title": "x"}]}, "documents[0] must be a text, or an object"),
        ("/v2/rerank", {"query": "q", "documents": [[1]]}, "documents[0] must be a text"),
        ("/v2/rerank", {"query": "q", "documents": ["x"], "top_n": "3"}, "top_n must be an integer"),
        ("/v2/rerank", {"query": "q", "documents": ["x"], "signals": [1]}, "signals must be an object"),
        ("/v2/rerank", {"query": "q", "documents": ["x"], "signals": {"a": 1}}, "one list of numbers per name"),
        ("/v2/rerank", {"query": "q", "documents": ["x"], "user": 3}, "user must be a text"),
        ("/v2/rerank", {"query": "q", "documents": ["x"], "rank_fields": "text"}, "rank_fields must be a list"),
        ("/v2/rerank", {"query": "q", "documents": ["x"], "derived": [1]}, "derived must list indices"),
        ("/v2/rerank", {"query": "q", "documents": ["x"], "derived": [True]}, "derived must be a list of indices"),
        ("/v2/rerank", {"query": "q", "documents": ["x"], "sources": "wiki"}, "sources must be a list"),
        ("/v2/rerank", {"query": "q", "documents": ["x"], "sources": []}, "sources has 0 values for 1"),
        ("/v2/rerank", {"query": "q", "documents": ["x"], "sources": ["x" * 1001]}, "at most 1,000 characters"),
        ("/v2/rerank", [1], "must be a JSON object"),
        ("/v2/feedback", {"id": "x", "events": [{"index": 0, "kind": "cited"}]}, "no such request"),
        ("/v2/feedback", {"id": "\ud800", "events": [{"index": 0, "kind": "cited"}]}, "no such request"),
        ("/v2/feedback", {"id": "x"}, "names no event"),
        ("/v2/feedback", {"id": 3, "events": [{"index": 0, "kind": "cited"}]}, "id must be a text"),
        ("/v2/feedback", {"query": 3, "events": []}, "query must be a text"),
        ("/v2/feedback", {"events": {"index": 0}}, "events must be a list"),
        ("/v2/feedback", {"events": [{"index": True, "kind": "cited"}]}, "needs an index and a kind"),
        ("/v2/feedback", {"events": [{}] * 7001}, "at most 7,000"),
        ("/v2/feedback", {"id": "x", "events": [{"index": 0, "kind": "up"}], "reader": "<b>"}, "reader must have"),
        ("/v2/feedback", {"id": "x", "events": [{"index": 0, "kind": "up"}], "reader": 3}, "reader must have"),
        ("/v2/feedback", {"id": "x", "answer": "y"}, "answer must be a text of at most 100,000 characters, sent with"),
        ("/v2/feedback", {"id": "x", "events": [{"index": 0, "kind": "up"}], "order": 3}, "order must be a list"),
    ],
)
def test_bad_bodies_are_refused(client, tenants, path, body, message):
    answer = client.post(path, content=json.dumps(body))
    assert answer.status_code == 400
    assert message in answer.json()["message"]
    assert tenants.reranker("shop").status().requests == 0


def test_metadata_with_many_names_are_refused_before_they_are_arranged(client):
    many = {f"n{number}": number for number in range(100_000)}
    answer = rerank(client, documents=[{"text": text, "metadata": many} for text in TEXTS])
    assert (answer.status_code, "100,000 numbers" in answer.json()["message"]) == (400, True)


def test_not_json_and_too_large(client):
    assert client.post("/v2/rerank", content=b"{").json() == {"message": "the request is not valid JSON"}
    assert client.post("/v2/rerank", content=b"[" * 100_000).status_code == 400
    assert client.post("/v2/rerank", content=b" " * (MAX_BODY + 1)).status_code == 413


def test_hostile_texts_do_not_come_back_in_errors(client):
    for more in ({"top_n": 0}, {"documents": [{"t": "x"}], "rank_fields": ["<script>\ud800"]}, {"user": ["<script>"]}):
        answer = client.post("/v2/rerank", content=json.dumps({"query": "<script>", "documents": ["<script>"], **more}))
        assert (answer.status_code, "<script>" in answer.text) == (400, False)
    answer = rerank(client, signals={"x" * 1_000_000: [1, 2, 3, 4]})
    assert (answer.status_code, len(answer.text) < 300) == (400, True)


def test_texts_that_are_not_valid_unicode_are_answered(client):
    body = json.dumps({"query": "\ud800", "documents": ["\ud800 x"], "user": "\ud800", "return_documents": True})
    answer = client.post("/v2/rerank", content=body)
    assert (answer.status_code, answer.json()["results"][0]["document"]["text"]) == (200, "\ud800 x")


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic x", "Bearer \u00e9"])
def test_without_a_key_nothing_is_answered(tenants, header):
    tenants.add_key("shop")
    with TestClient(make_api(tenants)) as one:
        headers = {"authorization": header.encode("latin-1")} if header else {}
        assert one.post("/v2/rerank", json={}, headers=headers).status_code == 401
        assert one.get("/v2/rerank").status_code == 405
        assert one.get("/health").text == "ok\n"


def test_tenants_do_not_see_each_other(tenants):
    keys = {name: tenants.add_key(name) for name in ("shop", "library")}
    with TestClient(make_api(tenants)) as one:
        bearer = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
        id = one.post("/rerank", json={"query": "q", "documents": TEXTS}, headers=bearer["shop"]).json()["id"]
        events = {"id": id, "events": [{"index": 0, "kind": "up"}]}
        assert one.post("/feedback", json=events, headers=bearer["library"]).status_code == 400
        assert one.post("/feedback", json=events, headers=bearer["shop"]).status_code == 200
    assert tenants.names() == ["library", "shop"]
    tenants.forget("shop")
    assert tenants.names() == ["library"]
    assert tenants.tenant_of(keys["shop"]) is None
    assert not (tenants.folder / "tenants" / "shop").exists()


@pytest.mark.parametrize("name", ["", "../x", "Shop", "a" * 41, "-a", "a b"])
def test_names_of_tenants_are_checked(tenants, name):
    with pytest.raises(RerankError, match="cannot be the name of a tenant"):
        tenants.add_key(name)
    with pytest.raises(RerankError, match="cannot be the name of a tenant"):
        tenants.reranker(name)


@pytest.mark.parametrize("content", ["{", "[1]", '{"x": 3}', '{"x": "../y"}'])
def test_a_damaged_file_of_keys_is_refused(tenants, content):
    tenants.folder.mkdir()
    (tenants.folder / "keys.json").write_text(content)
    with pytest.raises(RerankError, match=r"keys\.json"):
        tenants.tenant_of("x")


def test_keys_are_not_stored(tenants):
    key = tenants.add_key("shop")
    assert key not in (tenants.folder / "keys.json").read_text()
    assert (tenants.folder / "keys.json").stat().st_mode & 0o077 == 0
    assert tenants.tenant_of(key) == "shop"
    other, second = tenants.add_key("library"), tenants.add_key("shop", revoke=True)
    assert [tenants.tenant_of(one) for one in (key, other, second)] == [None, "library", "shop"]


def test_metrics_and_the_description_of_the_interface(client):
    rerank(client)
    client.post("/v2/feedback", json={"id": "x"})
    text = client.get("/metrics").text
    assert 'fedrank_rerank_answers_total{interface="rerank",status="200"} 1' in text
    assert 'fedrank_rerank_answers_total{interface="feedback",status="400"} 1' in text
    assert "fedrank_rerank_seconds_count 1" in text
    assert "shop" not in text
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {"/v2/rerank", "/v2/feedback"}


# the page


def test_the_page_shows_what_was_learned_and_rolls_back(tenants, client):
    id = rerank(client, signals={"own": [1, 2, 3, 4]}, derived=[0]).json()["id"]
    client.post("/v2/feedback", json={"id": id, "events": [{"index": 1, "kind": "up"}], "reader": "a:1"})
    access = Access(8000, "fedrank rerank serve")
    browser = TestClient(make_page(tenants, access), base_url=access.origin)
    assert browser.get("/").status_code == 401
    browser.get(access.link)
    shown = browser.get("/").text
    assert "Start and memory; no weights have been fitted." in shown
    assert "not enough requests kept your order yet" in shown
    assert "Reader <bdi>a:1</bdi>" in shown
    assert "used 0 of 0 passages that were used before for such a query, and 1 of 3 others" in shown
    assert "1 passages, which get no credit" in shown
    headers = {"origin": access.origin}
    assert browser.post("/rollback", data={"tenant": "shop"}, headers=headers).status_code == 200
    assert browser.post("/rollback", data={"tenant": "other"}, headers=headers).status_code == 400
    assert browser.post("/rollback", data={"tenant": "x" * 2000}, headers=headers).status_code == 413


# tools for agents


def test_tools_of_an_agent(tenants):
    server = rerank_tools(tenants.reranker("agent"))

    async def use():
        assert [tool.name for tool in await server.list_tools()] == ["rerank", "feedback"]
        found = content(await server.call_tool("rerank", {"query": "asthma inhaler", "documents": TEXTS, "top_n": 2}))
        told = content(await server.call_tool("feedback", {"id": found["id"], "used": [1]}))
        return found, told

    def content(answer):
        return answer.structured_content if hasattr(answer, "structured_content") else answer[1]

    found, told = asyncio.run(use())
    assert len(found["results"]) == 2
    assert told == {"id": found["id"], "recorded": [{"index": 1, "kind": "cited"}]}
    assert tenants.reranker("agent").status().with_feedback == 1


# commands


def test_a_mistyped_tenant_is_an_error_and_is_not_made(fedrank, tmp_path):
    folder = ("--folder", str(tmp_path / "server"))
    for words in (("status", "shp"), ("forget", "shp", "--query", "x"), ("forget", "shp", "--everything")):
        code, out, err = fedrank("rerank", *words, *folder)
        assert (code, out, "tenant 'shp' is not in" in err) == (2, "", True)
        assert not (tmp_path / "server").exists()
    fedrank("rerank", "key", "shop", *folder)
    assert 'did you mean "shop"?' in fedrank("rerank", "status", "shp", *folder)[2]


@pytest.mark.parametrize("address", ["8011", "host:", ":80", "host:x", "host:99999", "host:-1"])
def test_addresses_are_checked(fedrank, tmp_path, address):
    for command in ("serve", "mcp"):
        code, _, err = fedrank("rerank", command, "--address", address, "--folder", str(tmp_path / "server"))
        assert code == 2
        assert "--address must" in err


def test_tools_without_a_key_stay_on_this_machine(fedrank, tmp_path):
    code, _, err = fedrank("rerank", "mcp", "--address", "0.0.0.0:8012", "--folder", str(tmp_path / "server"))
    assert (code, "must be on this machine" in err) == (2, True)


def test_commands(fedrank, tmp_path):
    folder = ("--folder", str(tmp_path / "server"))
    code, key, _ = fedrank("rerank", "key", "shop", *folder)
    assert code == 0
    tenants = Tenants(tmp_path / "server")
    assert tenants.tenant_of(key.strip()) == "shop"
    with TestClient(make_api(tenants), headers={"authorization": f"Bearer {key.strip()}"}) as one:
        rerank(one)
    tenants.close()
    code, out, _ = fedrank("rerank", "status", "shop", *folder)
    assert (code, out.splitlines()[:2]) == (
        0, ["Start and memory; no weights have been fitted.", "1 requests, 0 with feedback"]
    )  # fmt: skip
    code, out, _ = fedrank("rerank", "status", "shop", "--json", *folder)
    assert json.loads(out)["weights"] == {"rank": 1.0, "bm25": 1.0, "centroid": 0.5}
    assert (
        fedrank("rerank", "forget", "shop", "--query", "inhaler asthma", *folder)[1]
        == "1 requests deleted or changed\n"
    )
    code, _, err = fedrank("rerank", "forget", "shop", *folder)
    assert code == 2
    assert "exactly one" in err
    assert fedrank("rerank", "forget", "shop", "--everything", *folder)[0] == 0
    assert tenants.names() == []
