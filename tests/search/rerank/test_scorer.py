"""The owner's own model: its scores are a signal; whatever it does, the reranker answers."""

import json
import shlex
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fedrank.search.rerank import ModelScorer, Reranker
from fedrank.search.rerank.scorer import MAX_ANSWER
from fedrank.search.rerank.store import RerankError

TEXTS = ["rain", "an inhaler", "snow"]
NOTHING = [None, None, None]


def test_a_function_is_a_signal(tmp_path):
    with Reranker(tmp_path / "t", scorer=ModelScorer(lambda query, texts: [len(text) for text in texts])) as reranker:
        answer = reranker.rerank("inhaler", TEXTS, signals={"own": [1, 2, 3]})
        assert answer.missing == {}
        assert reranker._store.request(answer.id).names == ("rank", "bm25", "centroid", "own", "model")
        assert reranker.rerank("inhaler", []).results == ()
        with pytest.raises(RerankError, match="signal model is that of the server's own model"):
            reranker.rerank("inhaler", TEXTS, signals={"model": [1, 2, 3]})


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (lambda query, texts: [0.5, None, 2], [0.5, None, 2.0]),
        (lambda query, texts: [float("nan"), float("inf"), 1e300], NOTHING),
        (lambda query, texts: ["1", True, [2]], NOTHING),
        (lambda query, texts: [1.0], NOTHING),
        (lambda query, texts: None, NOTHING),
        (lambda query, texts: 1 / 0, NOTHING),
    ],
)
def test_what_is_not_a_score_is_missing(tmp_path, score, expected):
    assert ModelScorer(score)("q", TEXTS) == expected
    with Reranker(tmp_path / "t", scorer=ModelScorer(score)) as reranker:
        answer = reranker.rerank("inhaler", TEXTS)
        assert len(answer.results) == 3
        assert answer.missing == {"model": expected.count(None)}


def test_a_late_model_is_not_waited_for_and_not_asked_twice():
    go, asked = threading.Event(), []

    def slow(query, texts):
        asked.append(query)
        go.wait(20)
        return [1.0] * len(texts)

    scorer = ModelScorer(slow, seconds=0.2)
    assert scorer("first", TEXTS) == NOTHING
    assert scorer("second", TEXTS) == NOTHING
    assert asked == ["first"]
    go.set()
    with scorer._busy:  # the late one has ended
        pass
    assert scorer("third", TEXTS) == [1.0] * 3


def test_requests_wait_for_each_other():
    both = threading.Barrier(2)
    scorer = ModelScorer(lambda query, texts: [float(query)] * len(texts), seconds=20)
    found = {}

    def ask(query):
        both.wait()
        found[query] = scorer(query, TEXTS)

    for _ in range(20):
        threads = [threading.Thread(target=ask, args=(query,)) for query in "12"]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert found == {"1": [1.0] * 3, "2": [2.0] * 3}


@pytest.mark.parametrize("wrong", [{"model": ""}, {"model": "x", "seconds": 0}, {"model": "x", "seconds": 61}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        ModelScorer(**wrong)


@pytest.fixture
def address():
    """A server whose answer is chosen by the path; what it was asked; and how often another path was asked."""
    asked = []
    answers = {
        "/scores": b'{"scores": [1, 2, null]}',
        "/rerank": b'{"results": [{"index": 2, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]}',
        "/outside": b'{"results": [{"index": 3, "relevance_score": 1}]}',
        "/long": b'{"scores": [1, 2, 3], "x": "' + b"x" * MAX_ANSWER + b'"}',
        "/text": b"hello",
        "/list": b"[1, 2, 3]",
    }

    class Server(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
            if self.path == "/moved":
                self.send_response(307)
                self.send_header("location", "/scores")
            else:
                self.send_response(200)
            self.end_headers()
            self.wfile.write(answers.get(self.path, b""))

        def log_message(self, *said):
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_a_server(address, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    where, asked = address
    expected = {"/scores": [1.0, 2.0, None], "/rerank": [0.1, None, 0.9]}
    for path in ("/scores", "/rerank", "/outside", "/long", "/text", "/list", "/moved", "/nothing"):
        assert ModelScorer(where + path, seconds=20)("q", TEXTS) == expected.get(path, NOTHING)
    assert asked[0] == ("/scores", {"model": "model", "query": "q", "documents": TEXTS})
    assert [path for path, _ in asked].count("/scores") == 1, "a redirection is not followed"
    assert ModelScorer("http://127.0.0.1:9/none", seconds=5)("q", TEXTS) == NOTHING


@pytest.mark.process
def test_a_command_is_started_once_and_again_after_it_failed(tmp_path):
    program = tmp_path / "model.py"
    program.write_text(
        "import json, os, sys, time\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    if asked['query'] == 'end': break\n"
        "    if asked['query'] == 'wait': time.sleep(60)\n"
        "    print(json.dumps({'scores': [os.getpid()] * len(asked['documents'])}), flush=True)\n"
    )
    scorer = ModelScorer(shlex.join([sys.executable, str(program)]), seconds=30)
    first, again = scorer("q", TEXTS), scorer("q", TEXTS)
    assert first == again
    assert None not in first
    assert scorer("end", TEXTS) == NOTHING
    second = scorer("q", TEXTS)
    assert second not in (NOTHING, first)
    scorer._seconds = 0.5
    assert scorer("wait", TEXTS) == NOTHING
    with scorer._busy:
        pass
    scorer._seconds = 30
    assert scorer("q", TEXTS) not in (NOTHING, second)
    scorer.close()
    assert ModelScorer("/no/such/program")("q", TEXTS) == NOTHING
