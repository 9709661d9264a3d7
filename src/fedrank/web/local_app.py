"""A web application for one browser: its routes, the entry link, and access control for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedrank.extras import missing_extra
from fedrank.files import error_message
from fedrank.web.access import ENTER, Access
from fedrank.web.middleware import Guard, entered, in_thread, no_head

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp

HTTP_ERRORS = {404: "This page does not exist.", 405: "This method is not allowed.", 413: "The request is too large."}


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

        async def endpoint(request: Request) -> Response:
            if not head:
                no_head(request)
            return await in_thread(answer, self.served, request)

        self._routes.append(self._route(path, endpoint, methods=["GET"]))

    def post(
        self,
        path: str,
        answer: Callable[[Any, Request, Any], Response],
        read: Callable[[Request], Awaitable[Any]],  # the content of the request, checked
    ) -> None:
        async def endpoint(request: Request) -> Response:
            form = await read(request)
            return await in_thread(answer, self.served, request, form)

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
        self.get(ENTER + "{token}", self._enter)
        handlers: Any = {kind: handler(describe) for kind, describe in known.items()}
        app = Starlette(routes=self._routes, exception_handlers=handlers)
        app.router.redirect_slashes = False  # unknown addresses are answered with 404
        return Guard(app, self.door)

    def _enter(self, served: Any, request: Request) -> Response:
        again = f"This link was used before or is not valid. Stop {self.door.command} and start it again."
        return entered(self.door, request) or self.message(401, again)
