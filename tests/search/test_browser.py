"""The page in a real browser: Chromium as the system has it. What a person does, and what others try."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests import browser, needs
from tests.search.served import ServedPage, served

pytest.importorskip("tantivy", reason="pip install 'fedrank[search]'")
pytest.importorskip("playwright.sync_api", reason="pip install 'fedrank[test]'")
pytestmark = [pytest.mark.browser, needs.browser]
CLOSE_BY = 5  # seconds within which going back takes a click back


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    with served(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.chromium() as one:
        yield one


@pytest.fixture
def person(chromium: Any, site: ServedPage) -> Iterator[Callable[..., Any]]:
    """Opens a tab of somebody who came in; in the end nothing stands in the console, and nobody else was asked."""
    site.client.learn_setting("on")
    site.client.settings.set_order("learned")
    contexts, said, asked = [], [], []

    def begin(**settings: Any) -> Any:
        context = chromium.new_context(**settings)
        context.set_default_timeout(20_000)
        contexts.append(context)
        cookie = {"name": site.door.cookie, "value": site.door._session, "url": site.origin, "sameSite": "Strict"}
        context.add_cookies([{**cookie, "httpOnly": True}])
        context.on("console", lambda message: said.append(message.text))
        context.on("weberror", lambda problem: said.append(str(problem.error)))
        context.on("request", lambda request: asked.append(request.url))
        tab = context.new_page()
        tab.expected = said  # a test takes away what it expects
        tab.goto(f"{site.origin}/")
        return tab

    yield begin
    for context in contexts:
        context.close()
    assert said == []
    assert {url for url in asked if not url.startswith(f"{site.origin}/")} == set()


def search(tab: Any, text: str) -> str:
    tab.fill("#q", text)
    with tab.expect_navigation(url="**/results/*"):
        tab.press("#q", "Enter")
    return str(tab.url)


def titles(tab: Any) -> list[str]:
    tab.wait_for_load_state()
    return list(tab.locator("ol.results h2").all_inner_texts())


def later(site: ServedPage) -> None:
    """So much that going back is no regret."""
    site.clock.ahead += CLOSE_BY + 1


def test_the_link_lets_one_browser_in(site: ServedPage, chromium: Any) -> None:
    mine, other = chromium.new_context(), chromium.new_context()
    tab, link = mine.new_page(), site.door.link
    tab.goto(link)
    assert tab.url == f"{site.origin}/"
    assert tab.locator("#q").is_visible()
    assert tab.evaluate("document.cookie") == "", "no script can read it"
    assert tab.evaluate("document.referrer") == "", "the link is told to nobody"
    (cookie,) = mine.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    stranger = other.new_page()
    for address in (site.origin + "/", link):
        assert stranger.goto(address).status == 401
    mine.close()
    other.close()


def test_search_click_reload_and_back(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person()
    before = site.client.status()
    where = search(tab, "river sea")
    assert tab.locator("mark").count() > 5
    shown = titles(tab)
    tab.reload()
    assert titles(tab) == shown
    tab.click("ol.results li:nth-child(3) a")
    assert tab.locator("h1").inner_text() == shown[2]
    assert "runs to the sea" in tab.locator("pre").inner_text()
    tab.reload()
    later(site)
    tab.go_back()
    assert tab.url == where
    assert titles(tab) == shown
    assert tab.locator(".opened").count() == 1
    tab.go_forward()
    later(site)
    tab.go_back()
    after = site.client.status()
    assert (after.searches - before.searches, after.clicks - before.clicks) == (1, 1)
    assert after.bounced == before.bounced


def test_double_middle_and_ctrl_click(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person()
    search(tab, "river sea")
    before = site.clicks()
    tab.locator("ol.results li:nth-child(1) a").dblclick()
    tab.wait_for_url("**/open/0")
    tab.wait_for_load_state()
    assert site.clicks() == before + 1
    later(site)
    tab.go_back()
    for button, modifiers, place in (("middle", [], 1), ("left", ["ControlOrMeta"], 2)):
        with tab.context.expect_page() as opened:
            tab.locator(f"ol.results li:nth-child({place + 1}) a").click(button=button, modifiers=modifiers)
        opened.value.wait_for_load_state()
        assert opened.value.url.endswith(f"/open/{place}")
        assert site.clicks() == before + 1 + place
    assert "/open/" not in tab.url


def test_a_tab_that_is_closed_at_once_takes_its_click_back(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person()
    search(tab, "river sea")
    before = site.client.status()
    with tab.context.expect_page() as opened:
        tab.locator("ol.results li:nth-child(4) a").click(modifiers=["ControlOrMeta"])
    opened.value.wait_for_load_state()
    assert site.clicks() == before.clicks + 1
    opened.value.close(run_before_unload=True)
    for _ in range(100):
        tab.wait_for_timeout(50)
        if site.client.status().bounced > before.bounced:
            break
    after = site.client.status()
    assert (after.clicks, after.bounced) == (before.clicks, before.bounced + 1)


def test_a_page_that_a_browser_kept_is_asked_for_again(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person()
    search(tab, "river sea")
    with tab.expect_navigation():
        tab.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    assert tab.locator("ol.results > li").count() == 10


def test_what_is_fetched_ahead_is_no_click(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person()
    where = search(tab, "river sea")
    before = site.clicks()
    tab.evaluate(
        """address => { const link = document.createElement("link"); link.rel = "prefetch"; link.href = address;
        document.head.append(link); }""",
        f"{where}/open/5",
    )
    for _ in range(100):
        tab.wait_for_timeout(50)
        if tab.expected:
            break
    assert ["503" in said for said in tab.expected] == [True], "asked for, and refused"
    tab.expected.clear()
    assert site.clicks() == before


def test_page_two_holds_the_rest(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person()
    where = search(tab, "river")
    first = titles(tab)
    tab.click("a[rel=next]")
    second = titles(tab)
    assert not set(first) & set(second)
    tab.click("ol.results li:nth-child(2) a")
    assert tab.url == f"{where}/open/11"
    later(site)
    tab.click("text=← Results")
    assert tab.url == f"{where}?page=2"
    assert titles(tab) == second
    tab.click("a[rel=prev]")
    assert titles(tab) == first


def test_filters_and_dates(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person()
    search(tab, "kraken")
    assert tab.locator("ol.results > li").count() == 2
    tab.click("summary")
    tab.select_option("select[name=kind]", "mail")
    tab.fill(".search input[name=since]", "2020-01-01")
    tab.select_option("select[name=sort]", "date")
    with tab.expect_navigation():
        tab.click("text=Apply")
    assert tab.locator("ol.results > li").count() == 1
    assert tab.locator("select[name=kind]").input_value() == "mail"
    assert tab.locator(".search input[name=since]").input_value() == "2020-01-01"
    assert "is remembered" in tab.locator("section.tools").inner_text()


def test_conditions_suggestions_and_marks(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person(java_script_enabled=False)
    search(tab, '"runs to the sea" -title:07')
    said = tab.locator("main").inner_text()
    assert "Only documents with: exactly “runs to the sea” · without “07” in the title" in said
    assert {"runs", "sea"} <= {*tab.locator("ol.results .snippet mark").all_inner_texts()}
    search(tab, "krakne after:yesterday")
    assert "after:yesterday was searched as words: a date has the form" in tab.locator("main").inner_text()
    search(tab, "krakne")
    assert "Nothing found" in tab.locator("main").inner_text()
    with tab.expect_navigation():
        tab.click("button:has-text('kraken')")
    assert tab.locator("#q").input_value() == "kraken"
    assert tab.locator("ol.results > li").count() == 2
    assert tab.locator("ol.results h2 mark").all_inner_texts() == ["kraken"], "of the mail, whose title has the word"


def test_filters_by_folder_sender_and_type_stay_while_one_searches_on(
    site: ServedPage, person: Callable[..., Any]
) -> None:
    tab = person()
    search(tab, "kraken")
    tab.click("text=Filter and sort")
    tab.get_by_label("Sender").fill("evil.example")
    with tab.expect_navigation():
        tab.click("text=Apply")
    assert tab.locator("ol.results > li").count() == 1
    assert tab.get_by_label("Sender").input_value() == "evil.example"
    tab.get_by_label("Sender").fill("")
    tab.get_by_label("Folder").fill("documents")
    tab.get_by_label("Type").select_option("text")
    search(tab, "kraken")
    assert tab.locator("ol.results .kind").all_inner_texts() == ["file"]
    tab.get_by_label("Folder").fill("nowhere")
    search(tab, "kraken")
    assert "or remove the filter" in tab.locator("main").inner_text()


def test_query_syntax_is_found_and_read_with_the_keyboard(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person()
    search(tab, "kraken")
    for name in ("Filter and sort", "Query syntax"):
        for _ in range(30):
            tab.keyboard.press("Tab")
            if tab.evaluate("document.activeElement.textContent") == name:
                break
        tab.keyboard.press("Enter")
    examples = tab.locator(".syntax code").all_inner_texts()
    assert tab.locator(".syntax dd").count() == len(examples)
    assert len(list(filter(None, examples))) == len(examples) > 8, "they are visible"
    for example in examples:
        search(tab, example)
        assert "was searched as words" not in tab.locator("main").inner_text(), example


def test_places_with_the_words_are_reached_in_a_long_document(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person(java_script_enabled=False)
    search(tab, "leviathan")
    tab.click("ol.results h2 a")
    assert tab.locator("pre mark").all_inner_texts() == ["leviathan"]
    with tab.expect_event("framenavigated"):
        tab.get_by_role("navigation", name="Places with words of the search").get_by_role("link").first.click()
    assert tab.url.endswith("#match-1")
    assert tab.locator("pre mark").first.is_visible()
    site.client.forget(query="leviathan")  # other tests count its searches


def test_with_the_keyboard_alone(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person()
    assert tab.evaluate("document.activeElement.id") == "q", "one may type at once"
    tab.keyboard.type("river sea")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/results/*")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    assert tab.locator(".skip").bounding_box()["x"] >= 0, "it is seen once it has the focus"
    tab.keyboard.press("Enter")
    for _ in range(3):
        tab.keyboard.press("Tab")
        if "/open/0" in (tab.evaluate("document.activeElement.href") or ""):
            break
    outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "one sees where one is"
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/open/0")
    later(site)
    for _ in range(12):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.textContent") == "← Results":
            break
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/results/*")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_320_pixels(site: ServedPage, person: Callable[..., Any], scheme: str) -> None:
    tab = person(viewport={"width": 320, "height": 640}, color_scheme=scheme)
    where = search(tab, "kraken")
    assert (
        tab.evaluate("getComputedStyle(document.body).backgroundColor")
        == {
            "light": "rgb(255, 255, 255)",
            "dark": "rgb(21, 26, 32)",
        }[scheme]
    )
    long = site.client.search(f"krakne in:{'folder/' * 30} {'word' * 60} after:{'9' * 60}").impression
    for address in ("/", where, f"{where}/why", f"{where}/open/0", "/status", "/learned", f"/results/{long}"):
        tab.goto(address if address.startswith("http") else site.origin + address)
        tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert tab.evaluate("document.documentElement.scrollWidth") == 320, address
        wide = "[...document.querySelectorAll('.syntax dd')].every(one => one.getBoundingClientRect().width > 250)"
        assert tab.evaluate(wide), "a text is not a column of letters"
        low = tab.evaluate(
            "[...document.querySelectorAll('button, input, select')]"
            ".filter(one => !['hidden', 'radio', 'checkbox'].includes(one.type))"
            ".filter(one => one.checkVisibility() && one.getBoundingClientRect().height < 40).map(one => one.outerHTML)"
        )
        assert low == [], "large enough for a finger"


def test_without_javascript(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person(java_script_enabled=False)
    before = site.client.status()
    where = search(tab, "river sea")
    tab.click("ol.results li:nth-child(2) a")
    assert "runs to the sea" in tab.locator("pre").inner_text()
    tab.click("text=← Results")
    assert tab.url == where
    assert site.client.status().bounced == before.bounced + 1, "back at once is noticed without a script"
    tab.click("a[rel=next]")
    tab.click("text=Why this order?")
    tab.wait_for_load_state()  # counting does not wait for the rest of a long page
    assert tab.locator("section.why").count() == 20
    tab.goto(f"{site.origin}/status")
    tab.click("text=Turn learning off")
    assert "Learning is off" in tab.locator("[role=status]").inner_text()
    tab.click("text=Turn learning on")
    tab.click("text=Fixed.")
    tab.click("text=Set the order")
    assert site.client.settings.order == "fixed"


def test_forget_removes_rows(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person()
    search(tab, "leviathan")
    tab.click("ol.results li:nth-child(1) a")
    later(site)
    tab.go_back()
    counted = "SELECT (SELECT count(*) FROM impressions WHERE query = 'leviathan'), (SELECT count(*) FROM clicks)"
    database = next((site.folder / "store").glob("*.db"))
    with sqlite3.connect(database) as rows:
        searches, clicks = rows.execute(counted).fetchone()
        assert searches > 0
        tab.click("text=Forget this search")
        assert "Deleted: " in tab.locator("[role=status]").inner_text()
        assert rows.execute(counted).fetchone() == (0, clicks - 1)
    rows.close()


@pytest.mark.parametrize("script", [True, False])
def test_why_in_words_and_what_was_learned_with_one_button_to_forget(
    site: ServedPage, person: Callable[..., Any], script: bool
) -> None:
    site.client.forget(learned=True)
    tab = person(java_script_enabled=script, viewport={"width": 320, "height": 640})
    search(tab, "kraken")
    tab.click("ol.results li:nth-child(2) a")
    wanted = tab.locator("h1").inner_text()
    later(site)
    site.clock.ahead += 3600
    tab.goto(f"{site.origin}/")
    search(tab, "kraken")
    assert titles(tab)[0] == wanted, "what was opened is first now"
    assert tab.locator(".opened").all_inner_texts() == ["you opened this before"]
    tab.click("text=Why this order?")
    tab.wait_for_load_state()
    first = tab.locator("section.why").first
    assert "You opened it once for \u201ckraken\u201d" in first.inner_text()
    assert not first.locator("table").first.is_visible(), "numbers are folded away"
    first.locator("summary").first.click()
    assert first.locator("table").first.is_visible()
    tab.click("text=What was learned")
    assert tab.locator("h1").inner_text() == "What have you learned about me?"
    assert tab.locator("#remembered ~ .wide tbody tr").count() == 1
    assert tab.locator("#difference ~ table svg").locator(".up, .down").count() == 1, "one week"
    tab.click("text=Forget what was learned")
    assert "Deleted: 2 searches, 1 click, 0 documents." in tab.locator("[role=status]").inner_text()
    assert "Nothing: no search is recorded" in tab.locator("main").inner_text()
    assert site.client.status().searches == 0


def test_what_was_learned_is_reached_and_forgotten_with_the_keyboard(
    site: ServedPage, person: Callable[..., Any]
) -> None:
    tab = person()
    search(tab, "leviathan")
    tab.goto(f"{site.origin}/learned")
    for wanted in ("a[href='/learned']", "button[value=learned]"):
        for _ in range(12):
            tab.keyboard.press("Tab")
            if tab.evaluate("wanted => document.activeElement.matches(wanted)", wanted):
                break
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/learned?note=forgotten*")
    assert site.client.status().searches == 0


def test_a_name_with_a_direction_override_is_what_it_is(site: ServedPage, person: Callable[..., Any]) -> None:
    file = site.folder / "documents" / "basilisk\u202efdp.md"
    file.write_text("# A basilisk\u202egnp\u2066\u200b\n\nbasilisk")
    site.client.index()
    tab = person()
    where = search(tab, "basilisk")
    assert titles(tab) == ["A basilisk\\u202egnp\\u2066\\u200b"]
    assert "basilisk\\u202efdp.md" in tab.locator(".where").inner_text()
    for address in (where, f"{where}/why", f"{where}/open/0", "/learned", "/status"):
        tab.goto(address if address.startswith("http") else site.origin + address)
        outside = tab.evaluate(
            "(() => { const page = document.documentElement.cloneNode(true); "
            "page.querySelectorAll('pre').forEach(one => one.remove()); return page.outerHTML; })()"
        )
        assert not set(outside) & set("\u202e\u2066\u200b"), address
    file.unlink()
    site.client.index()


def test_a_document_is_forgotten_with_its_searches(site: ServedPage, person: Callable[..., Any]) -> None:
    file = site.folder / "documents" / "manticore.md"
    file.write_text("# manticore\n\nmanticore")
    site.client.index()
    tab = person()
    search(tab, "manticore")
    tab.click("ol.results li:nth-child(1) a")
    tab.click("text=Forget this document")
    tab.check("text=Also delete the 1 search that showed it")
    tab.click("text=Forget document")
    assert "Deleted: 1 search, 1 click, 1 document." in tab.locator("[role=status]").inner_text()
    assert not site.client.store.count("SELECT count(*) FROM impressions WHERE query = 'manticore'")


def test_learning_off_records_nothing(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person()
    tab.goto(f"{site.origin}/status")
    tab.click("text=Turn learning off")
    before = site.client.status()
    tab.goto(f"{site.origin}/")
    search(tab, "river")
    tab.click("ol.results li:nth-child(1) a")
    later(site)
    tab.go_back()
    tab.click("a[rel=next]")
    after = site.client.status()
    assert (after.searches, after.clicks) == (before.searches, before.clicks)


def test_forms_and_links_of_another_site_are_refused(site: ServedPage, chromium: Any) -> None:
    """A page on another port of this machine, the nearest that another site can come."""
    form = (
        f'<form method="post" action="{site.origin}/learn"><input name="setting" value="off"><button>x</button></form>'
    )
    frame = f'<iframe src="{site.origin}/status"></iframe>'
    other = f'<a href="{site.origin}/status">look</a>{form}{frame}<img src="{site.origin}/icon.svg">'.encode()

    class Foreign(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(other)

        def log_message(self, *given: object) -> None:
            pass

    site.client.learn_setting("on")
    with HTTPServer(("127.0.0.1", 0), Foreign) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = chromium.new_context()
        context.add_cookies([{"name": site.door.cookie, "value": site.door._session, "url": site.origin}])
        tab = context.new_page()
        statuses: list[tuple[str, int]] = []
        tab.on("response", lambda answer: statuses.append((answer.url, answer.status)))
        address = f"http://127.0.0.1:{server.server_port}/"
        tab.goto(address)
        assert tab.evaluate("document.querySelector('img').naturalWidth") == 0
        assert dict(statuses)[f"{site.origin}/status"] == 403
        with tab.expect_navigation() as gone:
            tab.click("a")
        assert gone.value.status == 403
        tab.goto(address)
        with tab.expect_navigation() as gone:
            tab.click("button")
        assert gone.value.status == 403
        context.close()
        server.shutdown()
    assert site.client.status().learn


def test_scripts_of_a_document_do_not_run(site: ServedPage, person: Callable[..., Any]) -> None:
    tab = person()
    tab.on("dialog", lambda dialog: pytest.fail(f"a document ran a script: {dialog.message}"))
    where = search(tab, "kraken")
    for address in (f"{where}/open/0", f"{where}/open/1", f"{where}/why"):
        tab.goto(address)
        assert tab.locator("img").count() == 0
    assert tab.expected == []
    tab.evaluate(
        """() => { const one = document.createElement("script"); one.textContent = "window.ran = true";
        document.body.append(one);
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.ran = 1'>"); }"""
    )
    tab.wait_for_timeout(200)
    assert tab.evaluate("window.ran") is None, "were one ever to get in, it is blocked"
    assert any(re.search("content security policy", said, re.IGNORECASE) for said in tab.expected)
    tab.expected.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(site: ServedPage, person: Callable[..., Any], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'fedrank[test]'")
    tab = person(color_scheme=scheme)
    rules = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}[scheme]  # all else is the same in the dark
    search(tab, "river sea")
    tab.click("ol.results li:nth-child(2) a")
    later(site)
    tab.goto(f"{site.origin}/")
    where, found = search(tab, "kraken"), {}
    more = f"/results/{site.client.search('krakne -draft after:yesterday').impression}"
    for address in ("/", where, more, f"{where}/why", f"{where}/open/0", "/status?note=on", "/learned", "/nowhere"):
        tab.goto(address if address.startswith("http") else site.origin + address)
        tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        found[address] = [
            (one["id"], [node["html"] for node in one["nodes"]])
            for one in axe.Axe().run(tab, options=rules).response["violations"]
        ]
    assert {address: problems for address, problems in found.items() if problems} == {}
    assert ["404" in said for said in tab.expected] == [True]
    tab.expected.clear()
