"""The page: what a browser may ask for, and what it gets. Plain forms and links; only dwell time needs a script."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args
from urllib.parse import parse_qsl

from fedrank.search.client import SearchClient
from fedrank.search.open_original import OpensOriginal, open_original
from fedrank.search.render import part, render
from fedrank.search.results import Document, Filters, Gone, Kind, NotFound, Order, SearchError, Sort
from fedrank.web.access import Access
from fedrank.web.local_app import LocalApp
from fedrank.web.middleware import see_other

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

MAX_FORM_LENGTH = 1 << 20  # bytes
PART = 200_000  # characters of a document on one page
DRAWN_CAUSES = 6
PARTS = {"style.css": "text/css", "dwell.js": "text/javascript", "icon.svg": "image/svg+xml"}
NOTES = {
    "forgotten": "Deleted: {} searches, {} clicks, {} documents.",
    "on": "Learning is on.",
    "off": "Learning is off: no search and no click is recorded.",
    "reset": "The model is as it was at first.",
    "order": "The order is set.",
    "opened": "The original was handed to your system.",
    "no-original": "There is no original to open.",
    "program": "This file could run as a program, so it was not opened. Its place is shown below.",
    "no-opener": "Your system has no command to open files with. Its place is shown below.",
    "vanished": "The original is no longer there.",
}

Form = Mapping[str, str]


class Served(NamedTuple):
    """What every page needs."""

    client: SearchClient
    open: OpensOriginal
    hint: str  # a sentence below the search box of the first page


def make_app(client: SearchClient, door: Access, hint: str = "", opens: OpensOriginal = open_original) -> ASGIApp:
    """The whole page as an application that a server runs."""
    app = LocalApp(door, Served(client, opens, hint), "search", _message)
    for path, page in PAGES.items():
        app.get(path, page, head=page not in (_home, _results, _why, _status))
    for path, action in ACTIONS.items():
        app.post(path, action, _form)
    return app.build(
        {
            NotFound: lambda problem: (404, "There is no such search, place or document."),
            Gone: lambda problem: (410, f"Too late: {problem}."),
            SearchError: lambda problem: (400, str(problem)),
        }
    )


def _home(served: Served, request: Request) -> Response:
    return _html("home.html", status=served.client.status(), hint=served.hint, note=_note(request))


def _part(served: Served, request: Request) -> Response:
    from starlette.responses import Response

    name = request.url.path.removeprefix("/")
    return Response(part(name), media_type=PARTS[name])


def _search(served: Served, request: Request, form: Form) -> Response:
    query = form.get("q", "")
    if not query.strip():
        return see_other("/")
    if form.get("order"):
        served.client.settings.set_order(_one_of(form["order"], Order, "an order"))
    kind = form.get("kind") or None
    filters = Filters(
        None if kind is None else _one_of(kind, Kind, "a kind"), _since(form.get("since", "")), _until(form)
    )
    shown = served.client.search(query, filters, _one_of(form.get("sort") or "rank", Sort, "a way to sort"))
    return see_other(f"/results/{shown.impression}")


def _results(served: Served, request: Request) -> Response:
    shown = served.client.shown(_number(request, "impression"), _whole(request.query_params.get("page", "1")))
    return _html("results.html", shown=shown, order=served.client.settings.order, note=_note(request))


def _open(served: Served, request: Request) -> Response:
    impression, position = _number(request, "impression"), _number(request, "place")
    document = served.client.open_document(impression, position, click=request.method == "GET")
    return _show(request, document, impression, position)


def _document(served: Served, request: Request) -> Response:
    return _show(request, served.client.pages.document(_number(request, "document")))


def _show(request: Request, document: Document, impression: int = 0, position: int = 0) -> Response:
    """A document as text, however long: in parts."""
    parts = max(-(-len(document.text) // PART), 1)
    at = _whole(request.query_params.get("part", "1"))
    if not 1 <= at <= parts:
        raise NotFound(f"no part {at}")
    text = document.text[(at - 1) * PART : at * PART]
    return _html(
        "document.html", document=document, text=text, part=at, parts=parts, impression=impression, position=position,
        note=_note(request),
    )  # fmt: skip


def _bounced(served: Served, request: Request, form: Form) -> Response:
    from starlette.responses import Response

    served.client.bounced(_number(request, "impression"), _number(request, "place"))
    return Response(status_code=204)


def _original(served: Served, request: Request, form: Form) -> Response:
    id = _number(request, "document")
    return see_other(f"/documents/{id}?note={served.open(served.client.pages.document(id).original)}")


def _why(served: Served, request: Request) -> Response:
    impression = _number(request, "impression")
    explained = served.client.why(impression)
    shares = [cause.share for one in explained for cause in one.causes]
    return _html("why.html", impression=impression, explained=explained, shares=shares, most=DRAWN_CAUSES)


def _status(served: Served, request: Request) -> Response:
    status = served.client.status()
    changed = sorted(status.weights, key=lambda one: -abs(one.now - one.start))
    return _html("status.html", status=status, changed=changed, note=_note(request))


def _learn(served: Served, request: Request, form: Form) -> Response:
    setting = _one_of(form.get("setting", ""), Literal["on", "off", "reset"], "a setting")
    served.client.learn_setting(setting)
    return see_other(f"/status?note={setting}")


def _order(served: Served, request: Request, form: Form) -> Response:
    served.client.settings.set_order(_one_of(form.get("order", ""), Order, "an order"))
    return see_other("/status?note=order")


def _forget(served: Served, request: Request, form: Form) -> Response:
    what: dict[str, Any]
    match form.get("what"):
        case "query":
            what = {"query": form.get("query", "")}
        case "document":
            what = {"document": _whole(form.get("document", ""))}
        case "since":
            what = {"since": _since(form.get("since", ""))}
        case "everything" if form.get("sure", "").strip().lower() == "everything":
            what = {"everything": True}
        case _:
            raise SearchError("nothing was deleted: type the word everything into the box if you mean it")
    if what.get("since", 0) is None:
        raise SearchError("nothing was deleted: choose a day")
    gone = served.client.forget(**what)
    return see_other(f"/status?note=forgotten&n={gone.impressions}&n={gone.clicks}&n={gone.documents}")


def _html(template: str, status_code: int = 200, **values: Any) -> Response:
    from starlette.responses import HTMLResponse

    return HTMLResponse(render(template, **values), status_code)


def _message(status_code: int, text: str) -> Response:
    return _html("message.html", status_code, text=text, code=status_code)


def _note(request: Request) -> str:
    """What was just done: one of our own sentences, with numbers at most."""
    form = NOTES.get(request.query_params.get("note", ""), "")
    numbers = [text for text in request.query_params.getlist("n") if re.fullmatch(r"[0-9]{1,12}", text)]
    return form.format(*(f"{int(text):,}" for text in numbers)) if form.count("{}") == len(numbers) else ""


def _number(request: Request, name: str) -> int:
    return _whole(request.path_params[name])


def _whole(text: str) -> int:
    """A number that a row may have; whatever else stands in an address leads nowhere."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise NotFound(text)
    return int(text)


def _one_of(text: str, kinds: Any, what: str) -> Any:
    if text not in get_args(kinds):
        raise SearchError(f"{text!r} is not {what}; there are {', '.join(get_args(kinds))}")
    return text


def _since(text: str) -> int | None:
    """The beginning of a day, here; None without one."""
    return None if not text else _seconds(_date(text))


def _until(form: Form) -> int | None:
    text = form.get("until", "")
    return None if not text else _seconds(_date(text) + timedelta(days=1))


def _date(text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise SearchError(f"{text!r} is not a day; write it as 2024-12-31") from None
    if not 1900 <= day.year <= 9000:
        raise SearchError(f"{text!r} is not a day that documents have; write it as 2024-12-31")
    return day


def _seconds(day: date) -> int:
    return int(datetime(day.year, day.month, day.day).timestamp())


async def _form(request: Request) -> Form:
    """The fields of a form, the first of each name; bytes that are no text become a replacement character."""
    from starlette.exceptions import HTTPException

    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_LENGTH:
            raise HTTPException(413)
    try:
        pairs = parse_qsl(body.decode("ascii", "replace"), keep_blank_values=True, errors="replace", max_num_fields=50)
    except ValueError:
        raise HTTPException(413) from None
    return dict(reversed(pairs))


PAGES: dict[str, Callable[[Served, Request], Response]] = {
    "/": _home,
    **{f"/{name}": _part for name in PARTS},
    "/results/{impression}": _results,
    "/results/{impression}/why": _why,
    "/results/{impression}/open/{place}": _open,
    "/documents/{document}": _document,
    "/status": _status,
}
ACTIONS: dict[str, Callable[[Served, Request, Form], Response]] = {
    "/search": _search,
    "/results/{impression}/bounced/{place}": _bounced,
    "/documents/{document}/original": _original,
    "/learn": _learn,
    "/order": _order,
    "/forget": _forget,
}
