"""Middleware: access control before every page, and security headers on all answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from fedrank.web.access import Access, ahead

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "x-dns-prefetch-control": "off",  # do not resolve links of bookmarks before a click
    "referrer-policy": "same-origin",  # with no-referrer, browsers would hide the origin of this page's forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",  # nothing is stored in the browser, and going back requests the page again
}


class Guard:
    """Wraps an application: requests that `Access` refuses are not passed on, and every answer has the headers."""

    def __init__(self, app: ASGIApp, door: Access) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import PlainTextResponse

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in given)]
            await send(message)

        answer: ASGIApp = self._app
        if (refusal := self._door.refuses(scope["method"], scope["path"], scope["headers"])) is not None:
            answer = PlainTextResponse(f"{refusal.status}: {refusal.reason}\n", refusal.status)
        elif ahead(scope["headers"]):  # refused, so the browser asks again after a click
            answer = PlainTextResponse("503: this page does not support prefetching\n", 503)
        await answer(scope, receive, sealed)


def entered(door: Access, request: Request) -> Response | None:
    """Admit a browser with the link; None if the link was used before or is not valid."""
    no_head(request)
    response = see_other("/")
    if door.knows(request.scope["headers"]):  # a reload
        return response
    session = door.enter(request.path_params["token"])
    if session is None:
        return None
    response.set_cookie(door.cookie, session, path="/", httponly=True, samesite="strict")
    return response


def see_other(where: str) -> Response:
    """A redirect with status 303."""
    from starlette.responses import RedirectResponse

    return RedirectResponse(where, 303)


def no_head(request: Request) -> None:
    """Refuse HEAD requests for a page with side effects."""
    from starlette.exceptions import HTTPException

    if request.method == "HEAD":
        raise HTTPException(405)


async def in_thread(answer: Callable[..., Response], *given: Any) -> Response:
    """Answer in a thread, so other requests are answered meanwhile."""
    from starlette.concurrency import run_in_threadpool

    run = cast(Callable[..., Awaitable["Response"]], run_in_threadpool)
    return await run(answer, *given)
