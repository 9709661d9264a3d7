"""A stand-in for OpenSearch and Solr: it takes what their documentation says they take, and answers as it says.

It computes by fedrank's own rules, so that it can show mistakes of scripts and formats, and none of numbers.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from fedrank.data.documents import Documents
from fedrank.data.engine_features import ENGINE_1, NAMES
from fedrank.data.values import parse_time
from fedrank.trees.export.engine_rules import engine_scores
from tests.engine.schema import problems


class Engine:
    """What it was told."""

    def __init__(self, to: str) -> None:
        self.to = to
        self.documents: dict[str, dict[str, Any]] = {}
        self.model = b""
        self.asked: list[str] = []

    def check(self, schema: str, body: bytes) -> Any:
        content = json.loads(body)
        found = problems(schema, content)
        if found:
            raise ValueError("; ".join(found))
        return content

    def answer(self, method: str, path: str, body: bytes) -> Any:
        self.asked.append(f"{method} {path}")
        return self.solr(method, path, body) if self.to == "solr" else self.opensearch(method, path, body)

    def opensearch(self, method: str, path: str, body: bytes) -> Any:
        if path == "/_bulk?refresh=wait_for":
            lines = [json.loads(line) for line in body.splitlines()]
            for action, fields in zip(lines[::2], lines[1::2], strict=True):
                self.documents[action["index"]["_id"]] = fields
        elif (method, path) == ("POST", "/_ltr/_featureset/engine-1"):
            self.check("featureset", body)
        elif path == "/_ltr/_featureset/engine-1/_createmodel":
            self.model = body
        elif (method, path) == ("PUT", "/fedrank-try"):
            self.check("index", body)
        elif path == "/fedrank-try/_search":
            return self.searched(self.check("search", body))
        elif (method, path) != ("PUT", "/_ltr"):
            raise ValueError(f"no {method} {path}")
        return {"acknowledged": True}

    def searched(self, query: dict[str, Any]) -> dict[str, Any]:
        rescored = query.get("rescore")
        sltr = rescored["query"]["rescore_query"]["sltr"] if rescored else query["query"]["bool"]["filter"][-1]["sltr"]
        names, features, scores = self.best(sltr["params"]["keywords"], sltr["params"]["time"], query["size"])
        if rescored:
            scores = engine_scores("opensearch", self.model, features, NAMES)
        log = query["ext"]["ltr_log"]["log_specs"]["name"]
        hits = [
            {
                "_id": names[row],
                "_score": float(scores[row]),
                "fields": {
                    "_ltrlog": [{log: [{"name": n, "value": float(features[row, i])} for i, n in enumerate(NAMES)]}]
                },
            }
            for row in np.argsort(-scores, kind="stable")
        ]
        return {"took": 1, "hits": {"hits": hits}}

    def solr(self, method: str, path: str, body: bytes) -> Any:
        if path == "/fedrank-try/update/json/docs?commit=true":
            for line in body.splitlines():
                fields = json.loads(line)
                self.documents[fields.pop("id")] = fields
        elif path == "/fedrank-try/schema":
            self.check("solr-schema", body)
        elif (method, path) == ("PUT", "/fedrank-try/schema/feature-store"):
            self.check("solr-features", body)
        elif (method, path) == ("PUT", "/fedrank-try/schema/model-store"):
            assert json.loads(body)["store"] == "engine-1"
            self.model = body
        elif path == "/fedrank-try/query":
            return self.queried(self.check("solr-query", body))
        elif path != "/admin/collections?action=RELOAD&name=fedrank-try":
            raise ValueError(f"no {method} {path}")
        return {"responseHeader": {"status": 0}}

    def queried(self, query: dict[str, Any]) -> dict[str, Any]:
        params = query["params"]
        names, features, scores = self.best(params["keywords"], params["time"], query["limit"])
        if "rq" in params:
            scores = engine_scores("solr", self.model, features, NAMES)
        docs = [
            {
                "id": names[row],
                "score": float(scores[row]),
                "[features]": ",".join(f"{name}={features[row, i]!s}" for i, name in enumerate(NAMES)),
            }
            for row in np.argsort(-scores, kind="stable")
        ]
        return {"responseHeader": {"status": 0, "params": params}, "response": {"docs": docs}}

    def best(self, keywords: str, time: str, size: int) -> tuple[list[str], Any, Any]:
        names = list(self.documents)
        fields = [[str(one.get(name, "")) for one in self.documents.values()] for name in _FIELDS]
        index = ENGINE_1.index(Documents(names, *fields[:2], [""] * len(names), (), *fields[2:]))
        features = index.describe(keywords, range(len(names)), parse_time(time))
        scores = features[:, NAMES.index("all_match")]
        rows = [row for row in np.argsort(-scores, kind="stable") if scores[row] > 0][:size]
        return [names[row] for row in rows], features[rows], scores[rows]


_FIELDS = ("title", "body", "changed", "popularity")


@contextmanager
def standing_in(to: str) -> Iterator[tuple[Engine, str]]:
    """An engine, and where it answers."""
    engine = Engine(to)

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = re.sub("^/solr", "", self.path)
            try:
                status, told = 200, engine.answer(self.command, path, body)
            except Exception as problem:
                status, told = 400, {"error": str(problem)}
                engine.asked.append(f"refused: {problem}")
            content = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = handle_any

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield engine, f"http://127.0.0.1:{server.server_port}" + ("/solr" if to == "solr" else "")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
