"""The page: what a browser may ask for, and what it gets. It only reads; nothing on it changes a run."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from fedrank.experiments.report.html import part, policy
from fedrank.experiments.report.tables import duration
from fedrank.experiments.report.write import report_page
from fedrank.experiments.runner.runs import Runs
from fedrank.experiments.watch.state import Watched, WatchedExperiment, charts, log_of
from fedrank.extras import missing
from fedrank.files import told
from fedrank.web.access import ENTER, Access
from fedrank.web.middleware import Guard, entered, in_thread

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

PARTS = {
    "style.css": "text/css",
    "chart.js": "text/javascript",
    "watch.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
MOST_COMPARED = 12  # experiments


class Nobody(Exception):
    """There is no such experiment or run, or no longer."""


class WatchPage(NamedTuple):
    """What every page needs."""

    watched: Watched
    door: Access


def make_app(watched: Watched, door: Access) -> ASGIApp:
    """The whole page as an application that a server runs."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError:
        raise missing("the page needs a web framework", "watch") from None

    served = WatchPage(watched, door)

    def get(path: str, answer: Callable[[WatchPage, Request], Response]) -> Route:
        async def endpoint(request: Request) -> Response:
            return await in_thread(answer, served, request)

        return Route(path, endpoint, methods=["GET"])

    app = Starlette(
        routes=[
            get("/", _overview),
            get(ENTER + "{token}", _enter),
            *(get(f"/{name}", _part) for name in PARTS),
            get("/experiments/{id}", _experiment),
            get("/runs/{id}", _run),
            get("/compare", _compare),
            get("/report", _report),
        ],
        exception_handlers=_problems(),
    )
    app.router.redirect_slashes = False  # an address is ours, or there is no such page
    return Guard(app, door)


def _overview(served: WatchPage, request: Request) -> Response:
    return _html("overview.html", experiments=served.watched.look(), folders=served.watched.folders)


def _enter(served: WatchPage, request: Request) -> Response:
    again = f"This link was used before, or is not ours. End {served.door.command} and start it again."
    return entered(served.door, request) or _message(401, again)


def _part(served: WatchPage, request: Request) -> Response:
    from starlette.responses import Response

    name = request.url.path.removeprefix("/")
    return Response(_file(name), media_type=PARTS[name])


@cache
def _file(name: str) -> str:
    if name == "chart.js":
        return part(name)
    own = files("fedrank.experiments.watch").joinpath("pages", name).read_text("utf-8")
    return part(name) + own if name == "style.css" else own


def _experiment(served: WatchPage, request: Request) -> Response:
    found = served.watched.experiment(request.path_params["id"])
    if found is None:
        raise Nobody
    return _html("experiments.html", title=found.title or found.name, experiments=[found], charts=charts([found]))


def _compare(served: WatchPage, request: Request) -> Response:
    chosen = _chosen(served, request)
    names = ", ".join(one.name for one in chosen)
    return _html("experiments.html", title=f"Compare {names}", experiments=chosen, charts=charts(chosen))


def _run(served: WatchPage, request: Request) -> Response:
    found = served.watched.run(request.path_params["id"])
    if found is None:
        raise Nobody
    experiment, one = found
    log = log_of(one.run) if one.run.status != "finished" else ""
    drawn = charts([experiment], one)
    return _html("run.html", title=one.run.label, experiment=experiment, one=one, log=log, charts=drawn)


def _report(served: WatchPage, request: Request) -> Response:
    """The report as `fedrank report` writes it; its policy goes with it."""
    from starlette.responses import HTMLResponse

    runs = [one.run for experiment in _chosen(served, request) for one in experiment.runs]
    try:
        text = report_page(Runs(tuple(runs)))
    except ValueError as problem:
        return _message(409, f"There is no report yet: {problem}.")
    return HTMLResponse(
        text.encode("utf-8", "replace"), headers={"content-security-policy": f"{policy()}; frame-ancestors 'none'"}
    )


def _chosen(served: WatchPage, request: Request) -> list[WatchedExperiment]:
    """The experiments that an address names, always in the same order: colours should not change while one looks."""
    wanted = {*request.query_params.getlist("e")}
    chosen = [one for one in served.watched.look() if one.id in wanted]
    if not chosen:
        raise Nobody
    return sorted(chosen, key=lambda one: one.folder)[:MOST_COMPARED]


def _problems() -> dict[Any, Callable[[Request, Exception], Response]]:
    """Every problem as a page of one sentence."""
    from starlette.exceptions import HTTPException

    def of_http(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, HTTPException)
        told = {404: "There is no such page.", 405: "This cannot be asked for in this way."}
        return _message(problem.status_code, told.get(problem.status_code, problem.detail))

    return {
        HTTPException: of_http,
        Nobody: lambda request, problem: _message(404, "There is no such experiment or run, or no longer."),
        OSError: lambda request, problem: _message(503, told(problem)),
    }


def _html(template: str, status_code: int = 200, **values: Any) -> Response:
    from starlette.responses import HTMLResponse

    text = _environment().get_template(template).render(now=time.strftime("%H:%M:%S"), **values)
    return HTMLResponse(text.encode("utf-8", "replace"), status_code)


def _message(status_code: int, text: str) -> Response:
    return _html("message.html", status_code, title=str(status_code), text=text)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def data(content: Any) -> Markup:
        """JSON in which nothing can end the element that it stands in."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
        return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))

    environment = Environment(
        loader=PackageLoader("fedrank.experiments.watch", "pages"),
        autoescape=True,  # names and reasons come from files
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"data": data, "time": _time, "quality": _quality}
    return environment


def _time(seconds: float) -> str:
    return "" if math.isnan(seconds) else duration(seconds)


def _quality(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"
