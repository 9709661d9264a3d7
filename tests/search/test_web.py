"""The page over a real socket: who is let in, that nothing of a document is ever run, and what is recorded."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from fedrank.search.render import BarScale, breakable, day, location, marked, moment, short, size, split, week_bar
from fedrank.search.results import SearchError, Snippet, Week
from fedrank.search.status import monday
from fedrank.search.web import COMMAND, MAX_FORM_LENGTH, open_original
from fedrank.web.access import Access
from fedrank.web.local_app import HEADERS
from tests import needs
from tests.search.served import EVIL, ServedPage, served

pytest.importorskip("tantivy", reason="pip install 'fedrank[search]'")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    with served(tmp_path_factory.mktemp("served")) as one:
        yield one


@pytest.fixture
def browser(page: ServedPage) -> Iterator[httpx.Client]:
    page.client.learn_setting("on")
    page.client.settings.set_order("learned")
    with page.browser() as one:
        yield one


class Tags(HTMLParser):
    """What a browser would make of a page: its elements with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def every_page(page: ServedPage, browser: httpx.Client) -> dict[str, httpx.Response]:
    kraken, marks = page.search(browser, "kraken"), page.search(browser, "bookmarked")
    addresses = [
        *("/", "/status", "/nowhere", kraken, marks, f"{kraken}/why", f"{marks}/why"),
        *(f"{kraken}/open/{place}" for place in range(2)),
        *(f"{marks}/open/{place}" for place in range(5)),
        page.search(browser, EVIL),
        page.search(browser, "nothinglikeit" + EVIL),
        page.search(browser, EVIL, kind="mail", since="2019-12-31", until="2020-02-01"),
    ]
    return {address: browser.get(address) for address in addresses}


# the door


def request(page: ServedPage, *lines: str, method: str = "GET", path: str = "/status", version: str = "1.1") -> int:
    """The status of an answer to a request with the right cookie and these lines."""
    cookie = f"Cookie: {page.door.cookie}={page.door._session}"
    head = "\r\n".join([f"{method} {path} HTTP/{version}", cookie, "Connection: close", "Content-Length: 0", *lines])
    return int(page.raw(f"{head}\r\n\r\n").split()[1])


def test_only_its_own_host_is_answered(page: ServedPage) -> None:
    host = page.door.host
    assert request(page, f"Host: {host}") == 200
    assert request(page, "Host: evil.example") == 421
    assert request(page, f"Host: localhost:{page.door.port}") == 421
    assert request(page, "Host: 127.0.0.1") == 421
    assert request(page, f"Host: {host}", "Host: evil.example") == 421
    assert request(page, f"Host: {host}", f"Host: {host}") == 421
    assert request(page) == 400
    assert request(page, version="1.0") == 400


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_other_sites_are_refused(page: ServedPage, site: str, status: int) -> None:
    assert request(page, f"Host: {page.door.host}", f"Sec-Fetch-Site: {site}") == status


def test_a_form_needs_the_origin_of_the_page(page: ServedPage) -> None:
    host = f"Host: {page.door.host}"
    learning = page.client.status().learn
    for lines in ([], ["Origin: null"], ["Origin: http://evil.example"], [f"Origin: https://{page.door.host}"]):
        assert request(page, host, *lines, method="POST", path="/learn") == 403
        assert request(page, host, *lines, method="DELETE", path="/status") == 403
    twice = [f"Origin: {page.origin}", "Origin: null"]
    assert request(page, host, *twice, method="POST", path="/learn") == 403
    assert request(page, host, f"Origin: {page.origin}", method="POST", path="/learn") == 400, "let in, and incomplete"
    assert page.client.status().learn == learning


def test_without_the_cookie_nothing_is_shown(page: ServedPage) -> None:
    for cookie in ({}, {page.door.cookie: ""}, {page.door.cookie: "x" * 43}, {"other": page.door._session}):
        with httpx.Client(base_url=page.origin, cookies=cookie, verify=False, trust_env=False) as stranger:
            for path in ("/", "/status", "/results/1", "/style.css", "/dwell.js", "/nowhere"):
                answer = stranger.get(path)
                assert answer.status_code == 401
                assert answer.headers["content-type"].startswith("text/plain")
            assert stranger.post("/search", data={"q": "x"}, headers={"origin": page.origin}).status_code == 401
    two = f"{page.door.cookie}={page.door._session}; {page.door.cookie}=x"
    assert httpx.get(page.origin, headers={"cookie": two}, verify=False, trust_env=False).status_code == 401


def test_the_link_works_once(tmp_path: Path) -> None:
    with (
        served(tmp_path) as page,
        httpx.Client(verify=False, trust_env=False) as first,
        httpx.Client(verify=False, trust_env=False) as second,
    ):
        link = page.door.link
        assert page.door._session not in repr(page.door)
        assert first.get(link[:-1] + "!").status_code == 401
        assert first.head(link).status_code == 405
        assert first.get(link, headers={"sec-purpose": "prefetch;prerender"}).status_code == 503
        came = first.get(link)
        assert (came.status_code, came.headers["location"]) == (303, "/")
        cookie = came.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "domain" not in cookie
        assert link.rsplit("/", 1)[1] not in came.headers["set-cookie"], "the link is not the cookie"
        assert first.get(f"{page.origin}/").status_code == 200
        assert first.get(link).status_code == 303, "a reload by whoever came in"
        again = second.get(link)
        assert again.status_code == 401
        assert "used before" in again.text
        assert "press Ctrl-C in the terminal" in again.text
        assert "Skip to the content" not in again.text
        digest = base64.b64encode(hashlib.sha256(re.findall("<style>(.*)</style>", again.text)[0].encode()).digest())
        assert f"style-src 'sha256-{digest.decode()}'" in again.headers["content-security-policy"]
        assert second.get(f"{page.origin}/").status_code == 401


def test_the_door_does_not_rely_on_the_server_before_it() -> None:
    door = Access(8080, COMMAND)
    host, cookie = (b"host", b"127.0.0.1:8080"), (b"cookie", f"a=b; {door.cookie}={door._session}".encode())
    assert door.refuses("GET", "/", [host, cookie]) is None
    for headers, status in (([cookie], 400), ([host, host, cookie], 421), ([host, (b"host", b"x"), cookie], 421)):
        refusal = door.refuses("GET", "/", headers)
        assert refusal is not None
        assert refusal.status == status
    assert door.enter("é\0") is None


def test_what_is_no_request_is_one_line_and_nothing_is_printed(
    page: ServedPage, caplog: pytest.LogCaptureFixture
) -> None:
    host, chunked = f"Host: {page.door.host}", "Transfer-Encoding: chunked"
    for head in (("HEAD / HTTP/1.1", host, chunked), ("GET / HTTP/1.1", host, "Content-Length: -1"), ("G\0T /", "")):
        answer = page.raw("\r\n".join(head) + "\r\n\r\nno chunk\r\n")
        assert answer.startswith(b"HTTP/1.1 4")
    assert caplog.records == []


def test_of_many_who_come_together_one_is_let_in() -> None:
    for _ in range(20):
        door = Access(1, COMMAND)
        token = door.link.rpartition("/")[2]
        with ThreadPoolExecutor(8) as together:
            came = list(together.map(door.enter, [token] * 8))
        assert sorted(value is None for value in came) == [False] + [True] * 7


# nothing of a document is run


def test_every_answer_has_the_headers(page: ServedPage, browser: httpx.Client) -> None:
    answers = [
        *every_page(page, browser).values(),
        browser.get("/style.css"),
        httpx.get(page.origin, verify=False, trust_env=False),
    ]
    answers.append(browser.post("/search", data={"q": "river"}))
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert HEADERS["content-security-policy"].startswith("default-src 'none';")
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_markup_is_shown_as_text(page: ServedPage, browser: httpx.Client) -> None:
    seen = ""
    for address, answer in every_page(page, browser).items():
        assert answer.status_code == (404 if address == "/nowhere" else 200), address
        tags = Tags(answer.text)
        seen += tags.text
        for tag, attributes in tags.found:
            assert tag not in ("img", "iframe", "object", "embed", "base", "style", "b") or (tag, address) == (
                "b",
                "/status",
            )
            assert not [name for name in attributes if name.startswith("on") or name == "style"], address
            if tag == "script":
                assert attributes["src"] == "/dwell.js"
        assert answer.text.count("<script") == (re.fullmatch(r"/results/\d+(/open/\d+)?", address) is not None)
    assert seen.count("alert(1)") >= 8, "title, text, name, sender and query are all shown"
    assert EVIL in seen
    assert "<b>evil&.md" in seen


def test_only_web_addresses_become_links(page: ServedPage, browser: httpx.Client) -> None:
    out, text = set(), ""
    for answer in every_page(page, browser).values():
        tags = Tags(answer.text)
        text += tags.text
        for tag, attributes in tags.found:
            for name in ("href", "src", "action"):
                target = attributes.get(name)
                if target is not None and not target.startswith(("/", "#", "?")):
                    assert (tag, name) == ("a", "href")
                    assert {"noreferrer", "noopener"} <= set((attributes["rel"] or "").split())
                    out.add(target)
    assert out == {"https://good.example/?a=1&b=2"}
    for shown in ("javascript:alert(1)", "file:///etc/passwd", "data:text/html,x"):
        assert shown in text


def test_marked_words_are_escaped_and_odd_spans_left_out() -> None:
    assert marked(Snippet("a <b> & c", ((2, 5),))) == "a <mark>&lt;b&gt;</mark> &amp; c"
    assert marked(Snippet("one two", ((4, 7), (0, 3), (1, 5), (6, 99), (-2, 1)))) == (
        "<mark>one</mark> <mark>two</mark>"
    )
    assert marked(Snippet("")) == ""


# any address, any query


@pytest.mark.parametrize(
    "path",
    [
        *("/results/0", "/results/-1", "/results/999999999999", "/results/" + "9" * 21, "/results/1.0"),
        *("/results/%D9%A1", "/results/ /why", "/results/x/why", "/results/1/open/" + "9" * 21),
        *("/results/1/open/-1", "/results/1/open/77", "/%2e%2e/%2e%2e/etc/passwd"),
        *("/documents/0", "/documents/-1", "/documents/" + "9" * 21, "/documents/99999", "/documents/1?part=0"),
        *("/documents/1?part=9", "/documents/1?part=x", "/results/1?page=0", "/results/1?page=" + "9" * 21),
        *("/results/1?page=-1", "/results/..%2f..%2fetc%2fpasswd", "/..%2f..%2fetc/passwd"),
        *("/pages/style.css", "/results/" + "9" * 5000, "/style.css%00", "/status/", "/enter/a/b", "/%ff%fe", "/%7f"),
    ],
)  # fmt: skip
def test_no_such_address_is_404(page: ServedPage, browser: httpx.Client, path: str) -> None:
    page.search(browser, "river")
    assert browser.get(path).status_code == 404


def test_forms_about_what_is_not_there_are_404(page: ServedPage, browser: httpx.Client) -> None:
    for path in (f"/results/{'9' * 21}/bounced/0", "/results/99999999/bounced/0", "/documents/99999/original"):
        assert browser.post(path).status_code == 404
    for id in ("9" * 21, "-1", "x"):
        assert browser.post("/forget", data={"what": "document", "document": id}).status_code == 404


@pytest.mark.parametrize(
    "query",
    [
        *("\0", "river\0sea", "x" * 65536, "river " * 11000, "🦑" * 200, 'title:("\' AND', "* OR *", "-", "\n\t"),
        *("river\u202e", "%", "_", "NOT river", "river AND", '"', "\ufdd0", "a" * 3000 + " river", "..\\..", "{{7*7}}"),
    ],
)  # fmt: skip
def test_any_text_is_a_query(page: ServedPage, browser: httpx.Client, query: str) -> None:
    where = browser.post("/search", data={"q": query}).headers["location"]
    answer = browser.get(where)
    assert answer.status_code == 200
    assert where == "/" or "found" in answer.text
    assert query != "{{7*7}}" or 'value="{{7*7}}"' in answer.text


def test_bytes_that_are_no_text_are_a_query(page: ServedPage, browser: httpx.Client) -> None:
    for body in (b"q=%ED%A0%80river", b"q=\xff\xfe", b"q=%ff", b"q=%zz", b"q", b"&&&=", b"q=river&q=sea"):
        answer = browser.post("/search", content=body)
        assert answer.status_code == 303
        assert browser.get(answer.headers["location"]).status_code == 200


def test_forms_have_a_limit(browser: httpx.Client) -> None:
    assert browser.post("/search", content=b"q=" + b"x" * MAX_FORM_LENGTH).status_code == 413
    assert browser.post("/search", content=b"&".join(b"a=1" for _ in range(99))).status_code == 413


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/search", {"q": "river", "kind": "spy"}),
        ("/search", {"q": "river", "sort": "up"}),
        ("/search", {"q": "river", "since": "yesterday"}),
        ("/search", {"q": "river", "until": "9999-12-31"}),
        ("/search", {"q": "river", "since": "0001-01-01"}),
        ("/search", {"q": "river", "since": "2024-02-01", "until": "2024-01-31"}),
        ("/search", {"q": "river", "order": "best"}),
        ("/learn", {"setting": "maybe"}),
        ("/order", {}),
        ("/forget", {}),
        ("/forget", {"what": "since"}),
        ("/forget", {"what": "everything", "sure": "no"}),
    ],
)
def test_an_odd_form_changes_nothing(page: ServedPage, browser: httpx.Client, path: str, form: dict[str, str]) -> None:
    before = page.client.status()
    answer = browser.post(path, data=form)
    assert answer.status_code == 400
    assert '<p class="message">' in answer.text
    assert "<h1>This is not possible</h1>" in answer.text
    after = page.client.status()
    assert (after.searches, after.documents, after.order) == (before.searches, before.documents, before.order)


def test_problems_of_the_disk_are_one_line(
    page: ServedPage, browser: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for problem, status, told in (
        (OSError(28, "No space left on device", "/x/store.db"), 503, "/x/store.db: No space left on device"),
        (SearchError("the folder can only be read"), 400, "the folder can only be read"),
    ):

        def search(*given: object, problem: Exception = problem) -> None:
            raise problem

        with monkeypatch.context() as patched:
            patched.setattr(page.client, "search", search)
            answer = browser.post("/search", data={"q": "river"})
        assert answer.status_code == status
        assert told in answer.text


# what is recorded


def test_a_search_is_one_impression_and_a_click_counts_once(page: ServedPage, browser: httpx.Client) -> None:
    before = page.client.status()
    where = page.search(browser, "river sea")
    lists = [browser.get(where).text for _ in range(3)]
    assert lists[0] == lists[1] == lists[2]
    for _ in range(2):
        assert browser.head(f"{where}/open/3").status_code == 200
        for name in ("sec-purpose", "purpose", "x-moz"):
            assert browser.get(f"{where}/open/3", headers={name: "prefetch"}).status_code == 503
            assert browser.get(f"{where}?page=2", headers={name: "prefetch"}).status_code == 503
    assert browser.head(where).status_code == 405
    assert page.clicks() == before.clicks
    for _ in range(3):
        assert browser.get(f"{where}/open/3").status_code == 200
    after = page.client.status()
    assert after.clicks == before.clicks + 1
    assert after.searches == before.searches + 1
    page.clock.ahead += 10
    shown = browser.get(where).text
    assert shown.count('class="opened"') == 1, "it is said which was opened"


def test_back_within_five_seconds_and_the_script_take_a_click_back(page: ServedPage, browser: httpx.Client) -> None:
    for leave in (lambda where: browser.get(where), lambda where: browser.post(f"{where}/bounced/0")):
        where = page.search(browser, "river")
        before = page.client.status()
        browser.get(f"{where}/open/0")
        assert page.clicks() == before.clicks + 1
        assert leave(where).status_code in (200, 204)
        after = page.client.status()
        assert (after.clicks, after.bounced) == (before.clicks, before.bounced + 1)


def test_pages_filters_and_dates(page: ServedPage, browser: httpx.Client) -> None:
    where = page.search(browser, "river")
    places: list[str] = []
    for number in (1, 2, 3):
        text = browser.get(f"{where}?page={number}").text
        assert f"page {number} of 3" in text
        places += re.findall(rf"{where}/open/(\d+)\"", text)
    assert sorted(map(int, places)) == list(range(25))
    assert browser.get(f"{where}?page=2").text == browser.get(f"{where}?page=2").text
    text = browser.get(page.search(browser, "kraken", kind="mail")).text
    assert text.count("<li>") == 1
    assert '<option value="mail" selected>' in text
    text = browser.get(page.search(browser, "kraken", since="2020-01-05", until="2020-01-07", sort="date")).text
    assert text.count("<li>") == 1
    assert 'value="2020-01-05"' in text
    assert 'value="2020-01-07"' in text
    assert "is remembered" in text
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text.partition("section class")[2]))
    assert {name: hidden[name] for name in ("q", "kind", "since", "until", "sort")} == {
        "q": "kraken", "kind": "", "since": "2020-01-05", "until": "2020-01-07", "sort": "date",
    }  # fmt: skip
    assert browser.get(page.search(browser, "kraken", until="2019-12-31")).text.count("<li>") == 0


def test_why_shows_every_place_with_its_shares(page: ServedPage, browser: httpx.Client) -> None:
    where = page.search(browser, "river sea")
    text = browser.get(f"{where}/why").text
    explained = page.client.why(int(where.split("/")[-1]))
    assert text.count('<section class="why">') == len(explained) == 10
    sums = [sum(cause.share for cause in one.causes) for one in explained]
    for one, relative in zip(explained, sums, strict=True):
        assert f"position {one.model_position + 1} by score, position {one.engine_position + 1} in the search" in text
        assert f"{one.causes[0].share:+.2f}" in text
        assert relative - sums[0] == pytest.approx(one.score - explained[0].score, abs=1e-4)
        assert f"Score {one.score:.2f}, {relative:+.2f} relative to the mean" in text
    visible = [cause for one in explained for cause in one.causes if abs(cause.share) >= 0.005]
    assert 0 < text.count('<td class="picture">') == len(visible) < 10 * len(explained[0].causes)
    assert not re.search(r">[+-]0\.00<", text)
    assert "Why this order?" in browser.get(where).text
    assert "Why this order?" not in browser.get(page.search(browser, "river sea", sort="date")).text


def test_why_and_what_was_learned_are_in_words_and_one_button_forgets(tmp_path: Path) -> None:
    with served(tmp_path) as page, page.browser() as browser:
        assert "Nothing: no search is recorded" in browser.get("/learned").text
        for position in (1, 0):  # it moved up
            browser.get(page.search(browser, f"kraken {EVIL}") + f"/open/{position}")
        page.clock.ahead += 3600
        where = page.search(browser, f"kraken {EVIL}")
        text = browser.get(where).text
        assert text.count("you opened this before") == 1
        text = browser.get(f"{where}/why").text
        assert "You opened it twice for \u201ckraken &lt;script&gt;" in text
        assert EVIL not in text
        text = browser.get("/learned").text
        assert "3 searches" in text
        assert "2 clicks" in text
        assert EVIL not in text
        assert "kraken &lt;script&gt;" in text
        assert "Difference from the search engine by week" in text
        assert '<svg class="bar"' in text
        given_up = "Earlier clicks do not count any more"
        assert given_up not in text
        with page.client.store.writing():
            page.client.store.set(remember_after=3)
        assert given_up in browser.get("/learned").text
        answer = browser.post("/forget", data={"what": "learned"})
        text = browser.get(answer.headers["location"]).text
        assert "Deleted: 3 searches, 2 clicks, 0 documents." in text
        assert "Nothing: no search is recorded" in text
        assert page.client.status().documents > 25
        assert "you opened this before" not in browser.get(page.search(browser, "kraken")).text


def test_why_of_nothing_and_of_something_old_is_a_page(page: ServedPage, browser: httpx.Client) -> None:
    where = page.search(browser, "nothinglikeit")
    answer = browser.get(f"{where}/why")
    assert answer.status_code == 200
    assert "no results, so there is no order to explain" in answer.text
    where = page.search(browser, "river sea")
    with page.client.store.writing():
        page.client.store.db.execute(
            "UPDATE impressions SET scores = NULL, features = NULL WHERE id = ?", (where.rpartition("/")[2],)
        )
    answer = browser.get(f"{where}/why")
    assert answer.status_code == 410
    assert "deleted because it is old" in answer.text
    assert browser.get(where).status_code == 200


def test_the_order_is_one_click_away(page: ServedPage, browser: httpx.Client) -> None:
    where = page.search(browser, "river sea", order="engine")
    assert page.client.settings.order == "engine"
    text = browser.get(where).text
    assert re.search(r'value="engine" class="plain chosen"', text)
    assert "is remembered" in text
    assert [one.engine_position for one in page.client.why(int(where.split("/")[-1]))] == list(range(10))
    assert "moves up" not in browser.get("/").text
    assert "The order is set to <em>engine</em>: clicks are recorded" in browser.get("/").text
    assert browser.post("/order", data={"order": "learned"}).headers["location"] == "/status?note=order"
    assert page.client.settings.order == "learned"


def test_learning_off_records_nothing(page: ServedPage, browser: httpx.Client) -> None:
    assert browser.post("/learn", data={"setting": "off"}).headers["location"] == "/status?note=off"
    before = page.client.status()
    where = page.search(browser, "river")
    assert browser.get(where).status_code == 200
    assert browser.get(f"{where}?page=2").status_code == 200
    assert browser.get(f"{where}/open/1").status_code == 200
    assert browser.get(f"{where}/why").status_code == 200
    after = page.client.status()
    assert (after.searches, after.clicks) == (before.searches, before.clicks)
    assert "Learning is off" in browser.get("/").text
    text = browser.get("/status").text
    assert "Turn learning on" in text
    assert "Clicks are recorded" not in text + browser.get(where).text


def test_forget_removes_rows(tmp_path: Path) -> None:
    with served(tmp_path) as page, page.browser() as browser:
        for query in ("river", "kraken", "leviathan"):
            browser.get(page.search(browser, query) + "/open/0")
        answer = browser.post("/forget", data={"what": "query", "query": "river"})
        assert "Deleted: 1 search, 1 click, 0 documents." in browser.get(answer.headers["location"]).text
        answer = browser.post("/forget", data={"what": "query", "query": "river"})
        assert "No search with this text is recorded" in browser.get(answer.headers["location"]).text
        long = page.client.search("leviathan").results[0].id
        where = page.search(browser, "leviathan")
        assert browser.post("/forget", data={"what": "document", "document": str(long)}).status_code == 303
        assert browser.get(f"/documents/{long}").status_code == 404
        assert browser.get(f"{where}/open/0").status_code == 410
        assert "This document was removed" in browser.get(where).text
        browser.post("/forget", data={"what": "since", "since": "2020-01-01"})
        assert page.client.status().searches == 0
        browser.post("/forget", data={"what": "everything", "sure": " Everything "})
        assert page.client.status().documents == 0
        home = browser.get("/").text
        assert "nothing to search yet" in home
        assert f"fedrank search index ~/Documents --folder {page.client.folder}</code>" in home


def test_a_document_is_forgotten_with_the_searches_that_showed_it(tmp_path: Path) -> None:
    with served(tmp_path) as page, page.browser() as browser:
        for query in ("kraken", "leviathan", "kraken"):
            browser.get(page.search(browser, query) + "/open/0")
        document = page.client.search("kraken").results[0].id
        text = browser.get(f"/documents/{document}").text
        assert "Also delete the 3 searches that showed it" in text
        form = {"what": "document", "document": str(document)}
        answer = browser.post("/forget", data={**form, "searches": "on"})
        assert "Deleted: 3 searches, 2 clicks, 1 document." in browser.get(answer.headers["location"]).text
        queries = [query for (query,) in page.client.store.rows("SELECT query FROM impressions")]
        assert queries == ["leviathan"]
        document = page.client.search("leviathan").results[0].id
        answer = browser.post("/forget", data={**form, "document": str(document)})
        assert "Searches that showed the document stay" in browser.get(answer.headers["location"]).text


# names that are not what they seem


def test_characters_that_change_the_direction_or_are_invisible_are_escaped_in_names(tmp_path: Path) -> None:
    with served(tmp_path) as page, page.browser() as browser:
        (page.folder / "documents" / "griffin\u202efdp.md").write_text("# A griffin\u2066 \u200bbill\n\na griffin")
        persian = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"  # with a joiner
        (page.folder / "documents" / f"{persian}.md").write_text("# x\n\nhippogriff")
        page.client.index()
        where = page.search(browser, "griffin\u202e")
        document = page.client.search("griffin").results[0]
        pages = [where, f"{where}/why", f"/documents/{document.id}", "/status"]
        for text in (browser.get(each).text for each in pages):
            assert not any(sign in re.sub(r'(?s)value="[^"]*"|<pre.*</pre>', "", text) for sign in "\u202e\u2066\u200b")
        text = browser.get(where).text
        assert "<mark>griffin</mark>\\u2066 \\u200bbill" in text
        assert "griffin\\u202efdp.md" in text
        assert 'value="griffin\u202e"' in text, "a query is data and stays"
        assert persian in browser.get(page.search(browser, "hippogriff")).text
        assert "\u202e" in page.client.search("griffin").results[0].where, "so is what programs get"


# documents and originals


def test_a_long_document_comes_in_parts(page: ServedPage, browser: httpx.Client) -> None:
    where = page.search(browser, "leviathan") + "/open/0"
    first, last = browser.get(where).text, browser.get(f"{where}?part=3").text
    assert "Part 1 of 3" in first
    assert 'href="?part=2"' in first
    assert "Part 3 of 3" in last
    assert len(first) < 230_000


def test_the_original_is_opened_by_a_form_only(page: ServedPage, browser: httpx.Client) -> None:
    where = page.search(browser, "leviathan") + "/open/0"
    target = re.search(r'action="(/documents/\d+/original)"', browser.get(where).text)
    assert target is not None
    assert browser.get(target[1]).status_code == 405
    assert page.opened == []
    answer = browser.post(target[1])
    assert page.opened == [str(page.folder / "documents" / "long.txt")]
    text = browser.get(answer.headers["location"]).text
    assert "Asked the system to open the original file." in text
    assert f"<dt>Number</dt><dd>{target[1].split('/')[2]}</dd>" in text
    assert "← Results" not in text
    shown = dict(
        re.findall(r'<input type="hidden" name="(impression|position)" value="(\d+)">', browser.get(where).text)
    )
    before = page.client.status()
    text = browser.get(browser.post(target[1], data=shown).headers["location"]).text
    assert f'<a href="{where.removesuffix("/open/0")}">← Results</a>' in text
    assert 'href="?part=2&amp;impression=' in text
    assert "<script" not in text
    assert page.client.status() == before


def test_one_mail_of_a_mailbox_has_no_original_to_open(page: ServedPage, browser: httpx.Client) -> None:
    text = browser.get(page.search(browser, "kraken", kind="mail") + "/open/0").text
    assert "<dt>Kind</dt><dd>mail</dd>" in text
    assert "Open the original" not in text


@pytest.mark.process
@needs.posix
def test_what_could_run_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told"
    for name in ("xdg-open", "open"):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\nprintf %s "$1" > {told}\n')
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    script, link, note = tmp_path / "run.txt", tmp_path / "start.DESKTOP", tmp_path / "- a note.txt"
    for path in (script, link, note):
        path.write_text("text")
    script.chmod(0o755)
    assert open_original(str(script)) == open_original(str(link)) == "program"
    assert open_original("") == open_original("relative.txt") == open_original(str(tmp_path)) == "no-original"
    assert open_original(str(tmp_path / "gone.txt")) == open_original("/a\0b") == "vanished"
    assert not told.exists()
    assert open_original(str(note)) == "opened"
    for _ in range(100):
        if told.exists() and told.read_text():
            break
        time.sleep(0.05)
    assert told.read_text() == str(note)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert open_original(str(note)) == "no-opener"
    code = tmp_path / "code.PY"
    code.write_text("text")
    assert open_original(str(code)) == "no-opener"
    monkeypatch.setattr("sys.platform", "win32")
    assert open_original(str(code)) == "program"


# pictures and how things are written


def test_bars_show_their_numbers() -> None:
    scale = BarScale.over([-1.0, 3.0])
    assert (scale.at(-1), scale.at(0), scale.at(3)) == (0, 25, 100)
    up, down = scale.bar(1.0, before=3.0), scale.bar(-1.0)
    assert '<rect class="up" x="25.00" y="1.50" width="25.00"' in up
    assert '<rect class="before" x="99.60"' in up
    assert '<rect class="down" x="0.00" y="1.50" width="25.00"' in down
    assert BarScale.over([]).at(0) == 0


def test_the_bar_of_a_week_adds_up() -> None:
    week = Week(0, searches=10, clicked=8, first=5, top_three=7, abandoned=2, reciprocal=0.6)
    assert split(week) == [("first", 5), ("three", 2), ("lower", 1), ("none", 2)]
    widths = [float(wide) + 0.4 for wide in re.findall(r'width="([\d.]+)"', week_bar(week))]
    assert widths == pytest.approx([50, 20, 10, 20])
    assert "<rect" not in week_bar(Week(0, 0, 0, 0, 0, 0, 0.0))


def test_the_status_shows_half_a_year(page: ServedPage, browser: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    weeks = tuple(Week(1_700_000_000 + n * 604_800, 10, 8, 5, 7, 2, 0.6) for n in range(40))
    status = replace(page.client.status(), weeks=weeks)
    monkeypatch.setattr(page.client, "status", lambda: status)
    assert Tags(browser.get("/status").text).text.count("50%") == 26


def test_dates_and_sizes_are_written_for_people() -> None:
    assert day(0) == moment(0) == day(10**18) == day(-(10**18)) == ""
    assert re.fullmatch(r"20(19|20)-\d\d-\d\d", day(1577836800))
    assert [size(n) for n in (0, 999, 1500, 2_000_000, 3e9)] == ["0 bytes", "999 bytes", "1.5 kB", "2.0 MB", "3.0 GB"]
    assert short("abcdef", 4) == "abc…"
    assert short("abcd", 4) == "abcd"


def test_long_paths_are_short_by_hand(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    assert location("/home/ann/notes/a.txt") == "~/notes/a.txt"
    assert location("/home/anna/a.txt") == "/home/anna/a.txt"
    deep = "/".join(["folder"] * 12)
    assert location(f"/home/ann/{deep}/roof/a.txt") == "~/…/folder/roof/a.txt"
    assert location(f"/srv/{deep}/roof/a.txt") == "/…/folder/roof/a.txt"
    assert location("/home/ann/one/two/a.txt") == "~/one/two/a.txt"
    assert location("/srv/one/two/a.txt") == "/…/one/two/a.txt"
    assert location(f"ann@example.org · /home/ann/{deep}/roof/box") == "ann@example.org · ~/…/folder/roof/box"
    assert location("Ann · /srv/one/two/three/Mail/cur/1763.M9P1.host:2,S") == "Ann · /…/two/three/Mail"
    assert location("/srv/new/a.txt") == "/srv/new/a.txt"
    assert location(f"https://example.org/{deep}") == f"https://example.org/{deep}"
    assert location("") == ""
    assert breakable("/a<b>/c") == "/<wbr>a&lt;b&gt;/<wbr>c"


def test_weeks_begin_on_monday() -> None:
    for days in range(14):
        begins = datetime.fromtimestamp(monday(1_790_000_000 + days * 86_400))
        assert (begins.weekday(), begins.hour) == (0, 0)
        assert 0 <= 1_790_000_000 + days * 86_400 - begins.timestamp() < 7 * 86_400 + 3_600
