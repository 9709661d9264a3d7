"""Before every page: who asks, and from where; after it: the headers that all answers have."""

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
    "x-dns-prefetch-control": "off",  # links of bookmarks are not looked up before somebody clicks
    "referrer-policy": "same-origin",  # with no-referrer, browsers would hide the origin of our own forms from us
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",  # nothing of it stays in the browser, and going back asks us again
}


class Guard:
    """An application behind a door: nobody is answered whom the door refuses, and every answer has the headers."""

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
        elif ahead(scope["headers"]):  # refused, so that a browser asks again once somebody clicks
            answer = PlainTextResponse("503: nothing is shown before somebody clicks\n", 503)
        await answer(scope, receive, sealed)


def entered(door: Access, request: Request) -> Response | None:
    """The way in for whoever has the link; None where it was used before, or is not ours."""
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
    """The answer to look elsewhere."""
    from starlette.responses import RedirectResponse

    return RedirectResponse(where, 303)


def no_head(request: Request) -> None:
    """A page that might change something when it is shown is not shown to those who want its headers only."""
    from starlette.exceptions import HTTPException

    if request.method == "HEAD":
        raise HTTPException(405)


async def in_thread(answer: Callable[..., Response], *given: Any) -> Response:
    """Answering takes milliseconds of reading: others are answered meanwhile."""
    from starlette.concurrency import run_in_threadpool

    run = cast(Callable[..., Awaitable["Response"]], run_in_threadpool)
    return await run(answer, *given)
