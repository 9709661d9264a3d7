"""The page on runs: its routes, and serving it. It only reads; nothing on it changes a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrank.experiments.report.formatting import duration
from fedrank.experiments.report.html import part, policy
from fedrank.experiments.report.write import report_page
from fedrank.experiments.runner.runs import Runs
from fedrank.experiments.watch.state import Watched, WatchedExperiment, charts, log_of, preview
from fedrank.web.access import Access
from fedrank.web.local_app import LocalApp
from fedrank.web.server import serve_page
from fedrank.web.templates import script_json, templates

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

COMMAND = "fedrank watch"
PARTS = {
    "style.css": "text/css",
    "chart.js": "text/javascript",
    "watch.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
MAX_COMPARED = 12  # experiments


class UnknownRun(Exception):
    """This experiment or run does not exist, or was deleted."""


def watch(folders: Sequence[Path], port: int = 0, ready: Callable[[str], None] = lambda link: None) -> None:
    """Serve until interrupted; `ready` gets the one-time link as soon as it can be opened."""
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"no folder {folder}; give the folder that runs go to, such as runs")
    watched = Watched(tuple(one.resolve() for one in folders))
    serve_page(COMMAND, lambda door: make_app(watched, door), port, ready, extra="watch")


def make_app(watched: Watched, door: Access) -> ASGIApp:
    """The ASGI application."""
    app = LocalApp(door, watched, "watch", _message)
    for path, page in PAGES.items():
        app.get(path, page)
    return app.build({UnknownRun: lambda problem: (404, "This experiment or run does not exist, or was deleted.")})


def _overview(watched: Watched, request: Request) -> Response:
    return _html("overview.html", experiments=watched.look(), folders=watched.folders)


def _part(watched: Watched, request: Request) -> Response:
    from starlette.responses import Response

    name = request.url.path.removeprefix("/")
    return Response(_file(name), media_type=PARTS[name])


@cache
def _file(name: str) -> str:
    if name == "chart.js":
        return part(name)
    own = files("fedrank.experiments.watch").joinpath("pages", name).read_text("utf-8")
    return part(name) + own if name == "style.css" else own


def _experiment(watched: Watched, request: Request) -> Response:
    found = watched.experiment(request.path_params["id"])
    if found is None:
        raise UnknownRun
    return _html("experiments.html", title=found.title or found.name, experiments=[found], charts=charts([found]))


def _compare(watched: Watched, request: Request) -> Response:
    chosen = _chosen(watched, request)
    names = ", ".join(one.name for one in chosen)
    return _html("experiments.html", title=f"Compare {names}", experiments=chosen, charts=charts(chosen))


def _run(watched: Watched, request: Request) -> Response:
    found = watched.run(request.path_params["id"])
    if found is None:
        raise UnknownRun
    experiment, one = found
    log = log_of(one.run) if one.run.status != "finished" else ""
    drawn = charts([experiment], one)
    return _html("run.html", title=one.run.label, experiment=experiment, one=one, log=log, charts=drawn)


def _report(watched: Watched, request: Request) -> Response:
    """The report as `fedrank report` writes it; its policy goes with it."""
    from starlette.responses import HTMLResponse

    runs = [one.run for experiment in _chosen(watched, request) for one in experiment.runs]
    try:
        text = report_page(Runs(tuple(runs)))
    except ValueError as problem:
        return _message(409, f"There is no report yet: {problem}.")
    return HTMLResponse(
        text.encode("utf-8", "replace"), headers={"content-security-policy": f"{policy()}; frame-ancestors 'none'"}
    )


def _chosen(watched: Watched, request: Request) -> list[WatchedExperiment]:
    """The experiments that an address names, always in the same order, so colours do not change."""
    wanted = {*request.query_params.getlist("e")}
    chosen = [one for one in watched.look() if one.id in wanted]
    if not chosen:
        raise UnknownRun
    return sorted(chosen, key=lambda one: one.folder)[:MAX_COMPARED]


def _html(template: str, status_code: int = 200, **values: Any) -> Response:
    from starlette.responses import HTMLResponse

    text = _environment().get_template(template).render(now=time.strftime("%H:%M:%S"), **values)
    return HTMLResponse(text.encode("utf-8", "replace"), status_code)


def _message(status_code: int, text: str) -> Response:
    return _html("message.html", status_code, title=str(status_code), text=text)


@cache
def _environment() -> Environment:
    environment = templates("fedrank.experiments.watch", "pages")
    environment.filters |= {"data": script_json, "time": _time, "quality": _quality, "preview": preview}
    return environment


def _time(seconds: float) -> str:
    return "" if math.isnan(seconds) else duration(seconds)


def _quality(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"


PAGES: dict[str, Callable[[Watched, Request], Response]] = {
    "/": _overview,
    **{f"/{name}": _part for name in PARTS},
    "/experiments/{id}": _experiment,
    "/runs/{id}": _run,
    "/compare": _compare,
    "/report": _report,
}
