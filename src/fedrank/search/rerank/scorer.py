"""Scores of the owner's own model, such as a cross-encoder, as one more signal: a function, an address or a command.

A model gets {"query", "documents"} and answers {"scores": [...]} or, as rerank servers do, {"results": [{"index",
"relevance_score"}]}. A command is started once and exchanges one line of JSON per request. Scores that are missing,
late or not finite count as average. Only the owner chooses the model; no request can.
"""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from fedrank.files import parse_json

NAME = "model"  # of the signal
SECONDS = 2.0  # until an answer is late
MAX_ANSWER = 1 << 20  # bytes
Score = Callable[[str, Sequence[str]], Sequence[float | None]]


class ModelScorer:
    """Asks a model, one request after the other; while a late one is still computing, all scores are missing."""

    def __init__(self, model: Score | str, seconds: float = SECONDS) -> None:
        """`model` is a function, the address of a server (http:// or https://), or a command line."""
        if not 0 < seconds <= 60:
            raise ValueError(f"seconds must be above 0 and at most 60 (got {seconds})")
        self._seconds, self._busy, self._late = seconds, threading.Lock(), False
        self._process: subprocess.Popen[bytes] | None = None
        self._command: list[str] = []
        self._score = model if callable(model) else self._answered
        if isinstance(model, str):
            self._url = model if model.startswith(("http://", "https://")) else ""
            self._command = [] if self._url else shlex.split(model)
            if not self._url and not self._command:
                raise ValueError("the model must be a function, an address (http://...) or a command (got nothing)")

    def __call__(self, query: str, documents: Sequence[str]) -> list[float | None]:
        """A score for each document; None where there is none."""
        nothing: list[float | None] = [None] * len(documents)
        if not documents or not self._busy.acquire(timeout=0 if self._late else self._seconds):
            return nothing
        answer: Future[list[float | None]] = Future()

        def work() -> None:
            found = nothing
            try:
                given = list(self._score(query, documents))
                if len(given) == len(documents):
                    found = [_number(one) for one in given]
            except Exception:  # of a model that is not ours: it must not stop the reranker
                found = nothing
            finally:
                self._late = False
                self._busy.release()  # before the answer, since the next request may follow at once
                answer.set_result(found)

        threading.Thread(target=work, daemon=True).start()
        try:
            return answer.result(self._seconds)
        except TimeoutError:
            self._late = not answer.done()
            self.close()  # a command is started again at the next request
            return nothing

    def close(self) -> None:
        """End the command; a thread that waits for its answer notices and cleans up."""
        if (process := self._process) is not None:
            process.kill()
            if self._busy.acquire(blocking=False):
                self._end(process)
                self._busy.release()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        process.kill()
        with contextlib.suppress(OSError):
            process.communicate()

    def _answered(self, query: str, documents: Sequence[str]) -> list[float | None]:
        content = json.dumps({"model": NAME, "query": query, "documents": list(documents)}).encode()
        answer = parse_json(self._posted(content) if self._url else self._said(content))
        if isinstance(answer.get("scores"), list):
            return list(answer["scores"])
        scores: list[float | None] = [None] * len(documents)
        for one in answer["results"]:
            scores[range(len(documents))[one["index"]]] = one["relevance_score"]
        return scores

    def _posted(self, content: bytes) -> bytes:
        # Neither a proxy of the environment nor a redirection may send texts elsewhere.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
        request = urllib.request.Request(self._url, content, {"content-type": "application/json"})
        with opener.open(request, timeout=self._seconds) as answer:
            return bytes(answer.read(MAX_ANSWER))

    def _said(self, content: bytes) -> bytes:
        process = self._process = self._process or subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        with contextlib.suppress(OSError):
            process.stdin.write(content + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline(MAX_ANSWER)
        if not answer.endswith(b"\n"):  # it ended, was late, or said too much
            self._end(process)
        return answer


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *request: Any) -> None:
        return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value) if abs(value) <= 1e15 else None
