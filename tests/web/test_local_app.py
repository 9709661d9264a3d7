"""Pages behind a door, asked as a server asks them."""

from __future__ import annotations

import asyncio

import pytest

from fedrank.web.access import ENTER, Access

pytest.importorskip("starlette")

from starlette.responses import PlainTextResponse

from fedrank.web.local_app import LocalApp

DOOR = Access(8000, "fedrank test")


def make(door=DOOR):
    app = LocalApp(door, "served", "search", lambda status, text: PlainTextResponse(text, status))
    app.get("/", lambda served, request: PlainTextResponse(f"{served} at {request.url.path}"))

    async def read(request):
        return (await request.body()).decode()

    app.post("/say", lambda served, request, form: PlainTextResponse(f"{served} {form}"), read)
    return app.build({})


def ask(app, method, path, body=b"", cookie=""):
    """Status, headers and body of the answer to one request."""
    headers = [(b"host", DOOR.host.encode()), (b"origin", DOOR.origin.encode())]
    headers += [(b"cookie", cookie.encode())] if cookie else []
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": headers, "scheme": "http", "server": ("127.0.0.1", 8000), "root_path": "",
    }  # fmt: skip
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    answer = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answer, b"".join(one.get("body", b"") for one in sent[1:]).decode()


def enter(app):
    status, headers, _ = ask(app, "GET", ENTER + DOOR.link.rsplit("/", 1)[1])
    assert status == 303
    return headers["set-cookie"].split(";")[0]


def test_pages_and_actions_are_answered_with_what_is_served():
    app = make()
    cookie = enter(app)
    assert ask(app, "GET", "/", cookie=cookie)[::2] == (200, "served at /")
    assert ask(app, "POST", "/say", b"hello", cookie)[::2] == (200, "served hello")
    assert ask(app, "GET", "/say", cookie=cookie)[0] == 405
    assert ask(app, "GET", "/say/", cookie=cookie)[0] == 404  # no address is guessed
    assert ask(app, "GET", "/", cookie=cookie)[1]["cache-control"] == "no-store"


def test_nobody_enters_without_the_link_or_twice_with_it():
    app = make(Access(8000, "fedrank test"))
    assert ask(app, "GET", "/")[0] in (401, 403)
    status, _, text = ask(app, "GET", ENTER + "guess")
    assert status == 401
    assert text == "This link was used before or is not valid. Stop fedrank test and start it again."
