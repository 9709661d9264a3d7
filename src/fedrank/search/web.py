"""The web application: routes, forms and how it is served. Only the measurement of dwell time needs a script."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args
from urllib.parse import parse_qsl

from fedrank.display import count_of
from fedrank.search.agents import AgentSearch
from fedrank.search.client import SearchClient
from fedrank.search.folders import folder_option
from fedrank.search.learned import what_was_learned, why_in_words
from fedrank.search.opening import OUTCOMES, open_original
from fedrank.search.queries import TYPES, seconds_of
from fedrank.search.render import matches, part, render
from fedrank.search.results import Document, Filters, Gone, NotFound, Order, SearchError, Snippet, Sort
from fedrank.web.access import Access
from fedrank.web.local_app import LocalApp, see_other
from fedrank.web.server import serve_page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

COMMAND = "fedrank search serve"
MAX_FORM_LENGTH = 1 << 20  # bytes
PART = 200_000  # characters of a document on one page
SHOWN_ASKED = 50  # latest searches of agents
MAX_FILTER = 500  # characters of a folder or sender
LEAST_SHARE = 0.005  # smaller contributions would be shown as 0.00
PARTS = {"style.css": "text/css", "dwell.js": "text/javascript", "icon.svg": "image/svg+xml"}
NOTES = {
    "forgotten": "Deleted: {}, {}, {}.",
    "kept": "Deleted: {}, {}, {}. Searches that showed the document stay; you can delete them below by their text.",
    "asked": "Deleted: {} of agents.",
    "no-search": "No search with this text is recorded, so nothing was deleted.",
    "on": "Learning is on.",
    "off": "Learning is off: searches and clicks are not recorded.",
    "order": "The order was changed.",
    **OUTCOMES,
}
HEADINGS = {
    400: "This is not possible",
    401: "This link does not work",
    404: "Not found",
    405: "Not allowed",
    410: "No longer available",
    413: "Too large",
    503: "The data cannot be accessed",
}
NO_ENTRY_STYLE = (
    "body { font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 15vh auto 0; padding: 0 1rem; }"
)

Form = Mapping[str, str]
OpensOriginal = Callable[[str], str]  # from a path to a key of `OUTCOMES`


class Served(NamedTuple):
    """The context of every request."""

    client: SearchClient
    open: OpensOriginal
    hint: str  # shown below the search box of the home page


def serve(
    client: SearchClient, port: int = 0, hint: str = "", ready: Callable[[str], None] = lambda link: None
) -> None:
    """Serve until interrupted; `ready` is called with the one-time link as soon as it works."""
    serve_page(COMMAND, lambda access: make_app(client, access, hint), port, ready, extra="search")


def make_app(client: SearchClient, access: Access, hint: str = "", opens: OpensOriginal = open_original) -> ASGIApp:
    """The ASGI application of the search page."""
    app = LocalApp(access, Served(client, opens, hint), "search", _message)
    for path, page in PAGES.items():
        app.get(path, page, head=page not in (_home, _results, _why, _status, _learned))
    for path, action in ACTIONS.items():
        app.post(path, action, _form)
    return app.build(
        {
            NotFound: lambda problem: (404, "This search, result or document does not exist."),
            Gone: lambda problem: (410, f"{problem}."),
            SearchError: lambda problem: (400, str(problem)),
        }
    )


def _home(served: Served, request: Request) -> Response:
    option = folder_option(served.client.folder.absolute())
    return _html("home.html", status=served.client.status(), hint=served.hint, option=option, note=_note(request))


def _part(served: Served, request: Request) -> Response:
    from starlette.responses import Response

    name = request.url.path.removeprefix("/")
    return Response(part(name), media_type=PARTS[name])


def _search(served: Served, request: Request, form: Form) -> Response:
    query = form.get("q", "")
    if not query.strip():
        return see_other("/")
    if form.get("order"):
        served.client.settings.set_order(_one_of(form["order"], Order, "order"))
    kind = form.get("kind") or None
    if kind is not None and kind not in TYPES:
        raise SearchError(f"kind must be one of {', '.join(TYPES)} (got {kind!r})")
    folder, sender = (form.get(name, "").strip()[:MAX_FILTER] or None for name in ("folder", "sender"))
    filters = Filters(kind, _since(form.get("since", "")), _until(form), folder, sender)
    if filters.since is not None and filters.before is not None and filters.since >= filters.before:
        raise SearchError(f"the date From ({form['since']}) must not be after To ({form['until']})")
    shown = served.client.search(query, filters, _one_of(form.get("sort") or "rank", Sort, "sort"))
    return see_other(f"/results/{shown.impression}")


def _results(served: Served, request: Request) -> Response:
    shown = served.client.shown(_number(request, "impression"), _whole(request.query_params.get("page", "1")))
    settings = served.client.settings
    return _html("results.html", shown=shown, order=settings.order, learns=settings.learns, note=_note(request))


def _open(served: Served, request: Request) -> Response:
    impression, position = _number(request, "impression"), _number(request, "place")
    document = served.client.open_document(impression, position, click=request.method == "GET")
    return _show(served, request, document, impression, position, clicked=True)


def _document(served: Served, request: Request) -> Response:
    document = served.client.pages.document(_number(request, "document"))
    return _show(served, request, document, *_result(request.query_params))


def _result(given: Mapping[str, str]) -> tuple[int, int]:
    """(impression, position) of the result that a document page was opened from; (0, 0) if there is none."""
    return _whole(given.get("impression", "0")), _whole(given.get("position", "0"))


def _show(
    served: Served, request: Request, document: Document, impression: int, position: int, clicked: bool = False
) -> Response:
    """A document as text; a long document is split into parts."""
    parts = max(-(-len(document.text) // PART), 1)
    at = _whole(request.query_params.get("part", "1"))
    if not 1 <= at <= parts:
        raise NotFound(f"document {document.id} has no part {at}")
    begin, marked = (at - 1) * PART, served.client.marked(document.text, impression)
    here = [(a - begin, b - begin) for a, b in marked if begin <= a and b <= begin + PART]
    text, places = matches(Snippet(document.text[begin : begin + PART], tuple(here)))
    elsewhere = sorted({a // PART + 1 for a, _ in marked} - {at})
    return _html(
        "document.html", document=document, text=text, part=at, parts=parts, impression=impression, position=position,
        clicked=clicked, note=_note(request), listed=served.client.pages.listed(document.id), places=places,
        elsewhere=elsewhere,
    )  # fmt: skip


def _bounced(served: Served, request: Request, form: Form) -> Response:
    from starlette.responses import Response

    served.client.bounced(_number(request, "impression"), _number(request, "place"))
    return Response(status_code=204)


def _original(served: Served, request: Request, form: Form) -> Response:
    id = _number(request, "document")
    impression, position = _result(form)
    back = f"&impression={impression}&position={position}" if impression else ""
    return see_other(f"/documents/{id}?note={served.open(served.client.pages.document(id).original)}{back}")


def _why(served: Served, request: Request) -> Response:
    impression = _number(request, "impression")
    why = why_in_words(served.client, impression)
    explained = [one for one, _ in why.results]
    visible = [[cause for cause in one.causes if abs(cause.share) >= LEAST_SHARE] for one in explained]
    shares = [cause.share for causes in visible for cause in causes]
    sums = [sum(cause.share for cause in one.causes) for one in explained]
    words = [sentences for _, sentences in why.results]
    rows = list(zip(explained, words, visible, sums, strict=True))
    return _html("why.html", impression=impression, why=why, explained=rows, shares=shares)


def _learned(served: Served, request: Request) -> Response:
    learned = what_was_learned(served.client)
    return _html("learned.html", learned=learned, learns=served.client.settings.learns, note=_note(request))


def _status(served: Served, request: Request) -> Response:
    status = served.client.status()
    option = folder_option(served.client.folder.absolute())
    agents = AgentSearch(served.client)
    of_agents = {"folders": agents.folders(), "asked": agents.log(SHOWN_ASKED)}
    return _html("status.html", status=status, option=option, agents=of_agents, note=_note(request))


def _learn(served: Served, request: Request, form: Form) -> Response:
    setting = _one_of(form.get("setting", ""), Literal["on", "off"], "setting")
    served.client.learn_setting(setting)
    return see_other(f"/status?note={setting}")


def _order(served: Served, request: Request, form: Form) -> Response:
    served.client.settings.set_order(_one_of(form.get("order", ""), Order, "order"))
    return see_other("/status?note=order")


def _forget(served: Served, request: Request, form: Form) -> Response:
    what: dict[str, Any]
    match form.get("what"):
        case "agents":
            return see_other(f"/status?note=asked&n={AgentSearch(served.client).forget()}")
        case "query":
            what = {"query": form.get("query", "")}
        case "document":
            what = {"document": _whole(form.get("document", "")), "searches": form.get("searches") == "on"}
        case "since":
            what = {"since": _since(form.get("since", ""))}
        case "learned":
            what = {"learned": True}
        case "everything" if form.get("sure", "").strip().lower() == "everything":
            what = {"everything": True}
        case _:
            raise SearchError("Nothing was deleted. To delete everything, type the word everything into the box.")
    if what.get("since", 0) is None:
        raise SearchError("Nothing was deleted. Choose a day.")
    gone = served.client.forget(**what)
    if "query" in what and not gone.impressions:
        return see_other("/status?note=no-search")
    if "learned" in what:
        return see_other(f"/learned?note=forgotten&n={gone.impressions}&n={gone.clicks}&n={gone.documents}")
    note = "kept" if gone.kept else "forgotten"
    return see_other(f"/status?note={note}&n={gone.impressions}&n={gone.clicks}&n={gone.documents}")


def _html(template: str, status_code: int = 200, **values: Any) -> Response:
    from starlette.responses import HTMLResponse

    return HTMLResponse(render(template, **values), status_code)


def _message(status_code: int, text: str) -> Response:
    heading = HEADINGS.get(status_code, "Error")
    if status_code != 401:
        return _html("message.html", status_code, text=text, heading=heading)
    # A browser that was not admitted gets no style sheet either, so this page contains its style.
    response = _html("no-entry.html", status_code, text=text, heading=heading, style=NO_ENTRY_STYLE)
    digest = base64.b64encode(hashlib.sha256(NO_ENTRY_STYLE.encode()).digest()).decode()
    response.headers["content-security-policy"] = (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; frame-ancestors 'none'"
    )
    return response


def _note(request: Request) -> str:
    """The confirmation of the last action, from `NOTES`; only numbers come from the address."""
    form = NOTES.get(request.query_params.get("note", ""), "")
    numbers = [text for text in request.query_params.getlist("n") if re.fullmatch(r"[0-9]{1,12}", text)]
    if form.count("{}") != len(numbers):
        return ""
    nouns = (("search", "searches"), ("click", "clicks"), ("document", "documents"))
    return form.format(*(count_of(int(text), *noun) for text, noun in zip(numbers, nouns, strict=False)))


def _number(request: Request, name: str) -> int:
    return _whole(request.path_params[name])


def _whole(text: str) -> int:
    """A number from an address; raises NotFound for any other text."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise NotFound(text)
    return int(text)


def _one_of(text: str, kinds: Any, what: str) -> Any:
    if text not in get_args(kinds):
        raise SearchError(f"{what} must be one of {', '.join(get_args(kinds))} (got {text!r})")
    return text


def _since(text: str) -> int | None:
    """The beginning of a day in local time; None for an empty text."""
    return None if not text else seconds_of(_date(text))


def _until(form: Form) -> int | None:
    text = form.get("until", "")
    return None if not text else seconds_of(_date(text) + timedelta(days=1))


def _date(text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise SearchError(f"the date must have the form 2024-12-31 (got {text!r})") from None
    if not 1900 <= day.year <= 9000:
        raise SearchError(f"the year must be between 1900 and 9000 (got {text!r})")
    return day


async def _form(request: Request) -> Form:
    """The fields of a form; the first value of each name. Invalid bytes become replacement characters."""
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
    "/learned": _learned,
}
ACTIONS: dict[str, Callable[[Served, Request, Form], Response]] = {
    "/search": _search,
    "/results/{impression}/bounced/{place}": _bounced,
    "/documents/{document}/original": _original,
    "/learn": _learn,
    "/order": _order,
    "/forget": _forget,
}
