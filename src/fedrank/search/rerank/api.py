"""The HTTP interface: `/v2/rerank` as Cohere's clients send it, and `/v2/feedback`."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedrank import __version__
from fedrank.extras import missing_extra
from fedrank.files import error_message, parse_json
from fedrank.search.rerank.reranker import KINDS, MAX_DOCUMENTS, MAX_SIGNALS, MAX_TEXT, Reranker
from fedrank.search.rerank.store import RerankError
from fedrank.search.rerank.tenants import Tenants
from fedrank.search.rerank.used import used_passages

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

EXTRA = "search"
MAX_BODY = 8 << 20  # bytes; parsed, they may take 25 times as much memory
BODY_SECONDS = 30.0  # until a request must have arrived
MAX_EVENTS = len(KINDS) * MAX_DOCUMENTS
LATENCIES = 1_000  # of the latest requests, for quantiles
Body = dict[str, Any]


class Metrics:
    """Counts for Prometheus. There are no labels with names of tenants, since metrics are served without a key."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._answers: Counter[tuple[str, int]] = Counter()
        self._seconds: deque[float] = deque(maxlen=LATENCIES)
        self._sum = 0.0

    def add(self, path: str, status: int, seconds: float) -> None:
        with self._turn:
            self._answers[path, status] += 1
            if path == "rerank":
                self._seconds.append(seconds)
                self._sum += seconds

    def text(self) -> str:
        """The exposition format of Prometheus."""
        with self._turn:
            answers, ordered = dict(self._answers), sorted(self._seconds)
            total = self._sum
        lines = [
            "# HELP fedrank_rerank_answers_total Answers by interface and status.",
            "# TYPE fedrank_rerank_answers_total counter",
        ]
        lines += [
            f'fedrank_rerank_answers_total{{interface="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(answers.items())
        ]
        lines += [
            "# HELP fedrank_rerank_seconds Time to rerank, of the latest requests.",
            "# TYPE fedrank_rerank_seconds summary",
        ]
        if ordered:
            for share in (0.5, 0.95, 0.99):
                value = ordered[min(int(share * len(ordered)), len(ordered) - 1)]
                lines.append(f'fedrank_rerank_seconds{{quantile="{share}"}} {value:.6f}')
        count = sum(times for (path, _), times in answers.items() if path == "rerank")
        lines += [f"fedrank_rerank_seconds_sum {total:.6f}", f"fedrank_rerank_seconds_count {count}"]
        return "\n".join(lines) + "\n"


def make_api(tenants: Tenants) -> ASGIApp:
    """The application; every request but /health, /metrics and /openapi.json needs a key."""
    try:
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse, PlainTextResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise missing_extra("the server needs a web framework", EXTRA) from None
    metrics = Metrics()
    turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def answering(name: str, work: Callable[[Reranker, Body, str], Body]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            began = time.perf_counter()
            status, content = await _answer(request, tenants, work, run_in_threadpool, turns)
            metrics.add(name, status, time.perf_counter() - began)
            return Response(json.dumps(content), status, media_type="application/json")  # ASCII: any text can be sent

        return endpoint

    rerank, feedback = answering("rerank", rerank_request), answering("feedback", feedback_request)
    paths = [("/rerank", rerank), ("/v1/rerank", rerank), ("/v2/rerank", rerank), ("/feedback", feedback)]
    routes = [Route(path, one, methods=["POST"]) for path, one in [*paths, ("/v2/feedback", feedback)]]
    routes += [
        Route("/health", lambda request: PlainTextResponse("ok\n")),
        Route("/metrics", lambda request: PlainTextResponse(metrics.text())),
        Route("/openapi.json", lambda request: JSONResponse(openapi())),
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    return app


async def _answer(
    request: Request,
    tenants: Tenants,
    work: Callable[[Reranker, Body, str], Body],
    in_thread: Any,
    turns: Mapping[str, asyncio.Lock],
) -> tuple[int, Body]:
    """Status and content of an answer; the message of an error never repeats a text of the request.

    Requests of a tenant wait for each other here, not in threads, so a busy tenant cannot take all threads.
    """
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    tenant = await in_thread(tenants.tenant_of, key.strip()) if scheme.lower() == "bearer" else None
    if tenant is None:
        return 401, {
            "message": "send an API key as 'Authorization: Bearer KEY'; `fedrank rerank key TENANT` creates one"
        }
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                content += part
                if len(content) > MAX_BODY:
                    return 413, {"message": f"the request is larger than {MAX_BODY:,} bytes"}
    except TimeoutError:
        return 408, {"message": f"the request did not arrive within {BODY_SECONDS:g} seconds"}
    async with turns[tenant]:
        answer: tuple[int, Body] = await in_thread(
            _worked, content, lambda body: work(tenants.reranker(tenant), body, request.url.path)
        )
        return answer


def _worked(content: bytearray, work: Callable[[Body], Body]) -> tuple[int, Body]:
    try:
        body = parse_json(bytes(content))
    except ValueError:
        return 400, {"message": "the request is not valid JSON"}
    if not isinstance(body, dict):
        return 400, {"message": "the request must be a JSON object"}
    try:
        return 200, work(body)
    except RerankError as problem:
        return 400, {"message": str(problem)}
    except OSError as problem:
        return 503, {"message": error_message(problem)}


def rerank_request(reranker: Reranker, body: Body, path: str = "/v2/rerank") -> Body:
    """Answer a request to rerank."""
    texts, signals, about = _documents(body)
    for name, values in _object(body, "signals").items():
        if not isinstance(values, list):
            raise RerankError("signals must have one list of numbers per name")
        signals[name] = values
    user, query = body.get("user"), body.get("query")
    if not isinstance(query, str):
        raise RerankError("query must be a text")
    if user is not None and (not isinstance(user, str) or len(user) > 1_000):
        raise RerankError("user must be a text of at most 1,000 characters")
    sources, derived = body.get("sources", [one.get("source") for one in about]), body.get("derived", [])
    if not isinstance(sources, list):
        raise RerankError("sources must be a list with one text or null per document")
    if not isinstance(derived, list) or any(type(index) is not int for index in derived):
        raise RerankError("derived must be a list of indices of documents")
    derived = {*derived, *(index for index, one in enumerate(about) if one.get("derived") is True)}
    named = [one if isinstance(one, str) else None for one in sources]
    ranking = reranker.rerank(
        query, texts, body.get("top_n"), signals=signals, user=user, sources=named, derived=derived
    )
    results: list[Body] = [{"index": one.index, "relevance_score": one.relevance_score} for one in ranking.results]
    if body.get("return_documents") is True:
        for row in results:
            row["document"] = {"text": texts[row["index"]]}
    version = "1" if path.startswith("/v1") else "2"
    meta: Body = {"api_version": {"version": version}, "billed_units": {"search_units": 0}}
    if ranking.missing:
        meta["warnings"] = [
            f"signal {name} is missing for {count} documents, which count as average"
            for name, count in ranking.missing.items()
        ]
    return {"id": ranking.id, "results": results, "meta": meta}


def _documents(body: Body) -> tuple[list[str], dict[str, list[Any]], list[Mapping[str, Any]]]:
    """Texts of documents, the numbers in their metadata as signals, and the metadata."""
    documents = body.get("documents")
    if not isinstance(documents, list) or len(documents) > MAX_DOCUMENTS:
        raise RerankError(f"documents must be a list of at most {MAX_DOCUMENTS:,}")
    fields = body.get("rank_fields") or ["text"]
    if not isinstance(fields, list) or len(fields) > 100 or not all(isinstance(name, str) for name in fields):
        raise RerankError("rank_fields must be a list of at most 100 names; text if not given")
    texts: list[str] = []
    numbers: list[Mapping[str, Any]] = []
    for index, one in enumerate(documents):
        if isinstance(one, str):
            texts.append(one)
            numbers.append({})
            continue
        found = [one[name] for name in fields if isinstance(one.get(name), str)] if isinstance(one, dict) else []
        if not found:
            raise RerankError(f"documents[{index}] must be a text, or an object with text or one of rank_fields")
        texts.append("\n".join(found))
        metadata = one.get("metadata")
        numbers.append(metadata if isinstance(metadata, dict) else {})
    names = dict.fromkeys(name for some in numbers for name, value in some.items() if _is_number(value))
    if len(names) > MAX_SIGNALS:
        raise RerankError(
            f"the metadata of the documents have {len(names):,} numbers; send at most {MAX_SIGNALS} signals"
        )
    signals = {name: [some.get(name) if _is_number(some.get(name)) else None for some in numbers] for name in names}
    return texts, signals, numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _object(body: Body, name: str) -> Body:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RerankError(f"{name} must be an object")
    return value


def feedback_request(reranker: Reranker, body: Body, path: str = "/v2/feedback") -> Body:
    """Record what was used, from events or from the text of an answer that cites or quotes the documents."""
    id, query = body.get("id"), body.get("query")
    if id is not None and not isinstance(id, str):
        raise RerankError("id must be a text")
    if query is not None and not isinstance(query, str):
        raise RerankError("query must be a text")
    texts = _documents(body)[0] if body.get("documents") is not None else None
    events: dict[int, str] = {}
    given = body.get("events", [])
    if not isinstance(given, list) or len(given) > MAX_EVENTS or not all(isinstance(one, dict) for one in given):
        raise RerankError(f'events must be a list of at most {MAX_EVENTS:,}, such as [{{"index": 0, "kind": "cited"}}]')
    for one in given:
        index, kind = one.get("index"), one.get("kind")
        if isinstance(index, bool) or not isinstance(index, int) or kind not in KINDS:
            raise RerankError(f"each event needs an index and a kind: {', '.join(KINDS)}")
        events[index] = kind
    answer = body.get("answer")
    if answer is not None:
        if not isinstance(answer, str) or len(answer) > MAX_TEXT or texts is None:
            raise RerankError(
                f"answer must be a text of at most {MAX_TEXT:,} characters, sent with the documents that the reader saw"
            )
        places = range(len(texts)) if id is None else reranker.places(id, texts)
        events = {places[one.index]: "cited" for one in used_passages(answer, texts) if one.supported} | events
    if not events:
        raise RerankError("the request names no event, and no passage supports the answer; nothing was recorded")
    order = body.get("order")
    if order is not None and not isinstance(order, list):
        raise RerankError("order must be a list of indices")
    found = reranker.feedback(
        id, events, query=None if id else query, documents=None if id else texts, order=order, answer=answer,
        reader=body.get("reader"),
    )  # fmt: skip
    return {"id": found, "recorded": [{"index": index, "kind": kind} for index, kind in events.items()]}


def openapi() -> Body:
    """A description of the interface (OpenAPI 3.1)."""
    text, number = {"type": "string"}, {"type": "number"}
    document = {
        "oneOf": [text, {"type": "object", "properties": {"text": text, "metadata": {"type": "object"}}}],
    }
    documents = {"type": "array", "items": document, "maxItems": MAX_DOCUMENTS}
    event = {
        "type": "object",
        "required": ["index", "kind"],
        "properties": {"index": {"type": "integer"}, "kind": {"enum": list(KINDS)}},
    }
    signals = {"type": "object", "additionalProperties": {"type": "array", "items": {"type": ["number", "null"]}}}

    def operation(summary: str, required: list[str], properties: Body, answer: Body) -> Body:
        body = {"type": "object", "required": required, "properties": properties}
        return {
            "post": {
                "summary": summary,
                "security": [{"key": []}],
                "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
                "responses": {
                    "200": {"description": "OK", "content": {"application/json": {"schema": answer}}},
                    "400": {"description": "The request is not valid; `message` says why."},
                    "401": {"description": "The API key is missing or unknown."},
                    "408": {"description": "The request did not arrive in time."},
                    "413": {"description": "The request is too large."},
                    "503": {"description": "The server is busy or cannot store data; send the request again later."},
                },
            }
        }

    result = {"type": "object", "properties": {"index": {"type": "integer"}, "relevance_score": number}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "fedrank rerank", "version": __version__},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "paths": {
            "/v2/rerank": operation(
                "Order passages for a query",
                ["query", "documents"],
                {
                    "model": text, "query": text, "documents": documents, "top_n": {"type": "integer", "minimum": 1},
                    "user": text, "signals": signals,
                    "sources": {"type": "array", "items": {"type": ["string", "null"]}},
                    "derived": {"type": "array", "items": {"type": "integer"}},
                },
                {"type": "object", "properties": {"id": text, "results": {"type": "array", "items": result}}},
            ),
            "/v2/feedback": operation(
                "Record which passages were used",
                [],
                {
                    "id": text, "query": text, "documents": documents, "answer": text, "reader": text,
                    "events": {"type": "array", "items": event},
                    "order": {"type": "array", "items": {"type": "integer"}},
                },
                {"type": "object", "properties": {"id": text, "recorded": {"type": "array", "items": event}}},
            ),
        },
    }  # fmt: skip
