"""A page for the owner of a rerank server: what each tenant's reranker has learned, and one button to undo it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from fedrank.search.render import BarScale, part
from fedrank.search.rerank.memory import ReaderRecord
from fedrank.search.rerank.reranker import RerankStatus
from fedrank.search.rerank.store import RerankError
from fedrank.search.rerank.tenants import Tenants
from fedrank.search.rerank.trial import Difference
from fedrank.web.access import Access
from fedrank.web.local_app import LocalApp, see_other
from fedrank.web.templates import templates

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

MAX_FORM = 1_000  # bytes
MODES = {
    "learned": "Start, memory, and weights fitted to your signals.",
    "start": "Start and memory; no weights have been fitted.",
    "caller": "Stopped: your own order turned out better, so it is returned unchanged.",
}
MEANINGS = {
    "rank": "the order in which you sent the passages",
    "bm25": "words of the query in the passage",
    "centroid": "similarity to your first ten passages",
}


def compared(found: Difference | None) -> str:
    """The difference to the caller's order in words."""
    if found is None:
        return "not enough requests kept your order yet"
    verdict = "better" if found.low > 0 else "worse" if found.high < 0 else "not significantly different"
    return (
        f"{verdict}: {found.difference:+.3f} ({found.low:+.3f} to {found.high:+.3f}) in the discounted share of used "
        f"passages, {found.requests[0]:,} requests against {found.requests[1]:,} with your order, assigned at random"
    )


def consistency(record: ReaderRecord) -> str:
    """What is known of a version of the reader, in words."""
    (again, shown_again), (other, shown_other) = record.again, record.other
    return (
        f"used {again:,} of {shown_again:,} passages that were used before for such a query, and {other:,} of "
        f"{shown_other:,} others; memory counts its uses at {record.trust:.0%}"
    )


def names(status: RerankStatus) -> list[str]:
    return list(dict.fromkeys([*status.weights, *(status.on_trial or {})]))


@cache
def _environment() -> Environment:
    environment = templates("fedrank.search.rerank", "pages")
    environment.globals |= {"modes": MODES, "meanings": MEANINGS, "compared": compared, "names": names}
    environment.globals |= {"scale": BarScale.over, "consistency": consistency}
    return environment


def _html(heading: str, text: str = "", tenants: Sequence[tuple[str, RerankStatus]] = (), code: int = 200) -> Response:
    from starlette.responses import HTMLResponse

    return HTMLResponse(
        _environment().get_template("learned.html").render(heading=heading, text=text, tenants=tenants), code
    )


def make_page(tenants: Tenants, access: Access) -> ASGIApp:
    """The application, for one browser on this machine."""
    app = LocalApp(access, tenants, "search", lambda code, text: _html("This is not possible", text, code=code))
    app.get("/", _home)
    for name, kind in (("style.css", "text/css"), ("icon.svg", "image/svg+xml")):
        app.get(f"/{name}", _static(name, kind))
    app.post("/rollback", _rollback, _form)
    return app.build({RerankError: lambda problem: (400, str(problem))})


def _home(tenants: Tenants, request: Request) -> Response:
    known = tenants.names()
    text = "" if known else "There is no tenant yet; `fedrank rerank key NAME` creates one."
    return _html("What was learned", text, [(name, tenants.reranker(name).status()) for name in known])


def _static(name: str, kind: str) -> Any:
    def answer(tenants: Tenants, request: Request) -> Response:
        from starlette.responses import Response

        return Response(part(name), media_type=kind)

    return answer


def _rollback(tenants: Tenants, request: Request, form: dict[str, str]) -> Response:
    tenant = form.get("tenant", "")
    if tenant not in tenants.names():
        raise RerankError("there is no such tenant")
    tenants.reranker(tenant).rollback()
    return see_other("/")


async def _form(request: Request) -> dict[str, str]:
    from starlette.exceptions import HTTPException

    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM:
            raise HTTPException(413)
    return dict(parse_qsl(body.decode("ascii", "replace")))
