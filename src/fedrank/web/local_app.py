"""An application of pages for one browser: its routes, the way in, and the guard before all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedrank.extras import missing_extra
from fedrank.files import told
from fedrank.web.access import ENTER, Access
from fedrank.web.middleware import Guard, entered, in_thread, no_head

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp

HTTP_ERRORS = {404: "There is no such page.", 405: "This cannot be asked for in this way.", 413: "That is too much."}


@dataclass
class LocalApp:
    """Collects pages, each of which is answered in a thread, and makes one application of them."""

    door: Access
    served: Any  # what every page gets before its request
    extra: str  # of fedrank, which has the packages that pages need
    message: Callable[[int, str], Response]  # a page that says one sentence, with a status
    _routes: list[Route] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            from starlette.routing import Route
        except ImportError:
            raise missing_extra("the page needs a web framework", self.extra) from None
        self._route = Route

    def get(self, path: str, answer: Callable[[Any, Request], Response], head: bool = True) -> None:
        """Add a page. Without `head`, requests for headers alone are refused, because the page has effects."""

        async def endpoint(request: Request) -> Response:
            if not head:
                no_head(request)
            return await in_thread(answer, self.served, request)

        self._routes.append(self._route(path, endpoint, methods=["GET"]))

    def post(
        self,
        path: str,
        answer: Callable[[Any, Request, Any], Response],
        read: Callable[[Request], Awaitable[Any]],  # what was sent, checked
    ) -> None:
        async def endpoint(request: Request) -> Response:
            form = await read(request)
            return await in_thread(answer, self.served, request, form)

        self._routes.append(self._route(path, endpoint, methods=["POST"]))

    def build(self, errors: Mapping[type[Exception], Callable[[Exception], tuple[int, str]]]) -> ASGIApp:
        """The application, with the page that the one-time link opens.

        An error is shown as a page of one sentence: `errors` gives status and sentence of those that the application
        raises; those of HTTP and of the file system are known.
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
            OSError: lambda problem: (503, told(problem)),
            **errors,
        }
        self.get(ENTER + "{token}", self._enter)
        handlers: Any = {kind: handler(describe) for kind, describe in known.items()}
        app = Starlette(routes=self._routes, exception_handlers=handlers)
        app.router.redirect_slashes = False  # an address is ours, or there is no such page
        return Guard(app, self.door)

    def _enter(self, served: Any, request: Request) -> Response:
        again = f"This link was used before, or is not ours. End {self.door.command} and start it again."
        return entered(self.door, request) or self.message(401, again)
