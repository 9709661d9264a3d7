"""A web application for one browser: its routes and entry link, with access control and headers for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedrank.extras import missing_extra
from fedrank.files import error_message
from fedrank.web.access import ENTER, Access, ahead

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HTTP_ERRORS = {404: "This page does not exist.", 405: "This method is not allowed.", 413: "The request is too large."}
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


@dataclass
class LocalApp:
    """Collects pages, each answered in a thread, and builds one application from them."""

    door: Access
    served: Any  # passed to every page before its request
    extra: str  # extra of fedrank with the packages that pages need
    message: Callable[[int, str], Response]  # a page with one sentence and a status
    _routes: list[Route] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            from starlette.routing import Route
        except ImportError:
            raise missing_extra("the page needs a web framework", self.extra) from None
        self._route = Route

    def get(self, path: str, answer: Callable[[Any, Request], Response], head: bool = True) -> None:
        """Add a page. Without `head`, HEAD requests are refused, because the page has side effects."""
        from starlette.exceptions import HTTPException

        def endpoint(request: Request) -> Response:  # Starlette runs it in a thread, because it is not a coroutine
            if request.method == "HEAD" and not head:
                raise HTTPException(405)
            return answer(self.served, request)

        self._routes.append(self._route(path, endpoint, methods=["GET"]))

    def post(
        self,
        path: str,
        answer: Callable[[Any, Request, Any], Response],
        read: Callable[[Request], Awaitable[Any]],  # the content of the request, checked
    ) -> None:
        from starlette.concurrency import run_in_threadpool

        async def endpoint(request: Request) -> Response:
            form = await read(request)
            return await run_in_threadpool(answer, self.served, request, form)

        self._routes.append(self._route(path, endpoint, methods=["POST"]))

    def build(self, errors: Mapping[type[Exception], Callable[[Exception], tuple[int, str]]]) -> ASGIApp:
        """The application, with the page that the one-time link opens.

        An error is shown as a page with one sentence: `errors` gives status and sentence for the application's
        exceptions; those of HTTP and the file system are built in.
        """
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException

        def http_error(problem: Exception) -> tuple[int, str]:
            assert isinstance(problem, HTTPException)
            return problem.status_code, HTTP_ERRORS.get(problem.status_code, problem.detail)

        def handler(describe: Callable[[Exception], tuple[int, str]]) -> Callable[[Request, Exception], Response]:
            return lambda request, problem: self.message(*describe(problem))

        known: dict[Any, Callable[[Exception], tuple[int, str]]] = {
            HTTPException: http_error,
            OSError: lambda problem: (503, error_message(problem)),
            **errors,
        }
        self.get(ENTER + "{token}", self._enter, head=False)
        handlers: Any = {kind: handler(describe) for kind, describe in known.items()}
        app = Starlette(routes=self._routes, exception_handlers=handlers)
        app.router.redirect_slashes = False  # unknown addresses are answered with 404
        return Guard(app, self.door)

    def _enter(self, served: Any, request: Request) -> Response:
        """Admit a browser with the link, unless the link was used before or is not valid."""
        response = see_other("/")
        if self.door.knows(request.scope["headers"]):  # a reload
            return response
        session = self.door.enter(request.path_params["token"])
        if session is None:
            again = f"This link was used before or is not valid. Stop {self.door.command} and start it again."
            return self.message(401, again)
        response.set_cookie(self.door.cookie, session, path="/", httponly=True, samesite="strict")
        return response


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


def see_other(where: str) -> Response:
    """A redirect with status 303."""
    from starlette.responses import RedirectResponse

    return RedirectResponse(where, 303)
