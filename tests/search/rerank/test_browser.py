"""The page of a rerank server in a real browser: what was learned, by keyboard, on a phone, in the dark, unscripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fedrank.search.rerank import Reranker
from fedrank.search.rerank.page import make_page
from fedrank.search.rerank.tenants import Tenants
from fedrank.web.server import listening, make_server
from tests import browser, needs

pytest.importorskip("playwright.sync_api", reason="package: playwright is not installed")
pytestmark = [pytest.mark.browser, needs.browser]
TWO_DAYS_AGO = -2 * 86_400.0  # later than what the retention period deletes
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
TEXTS = [EVIL, *(f"passage {number} about rain and a long river" for number in range(7))]


def use(reranker: Reranker, now: list[float], requests: int) -> None:
    """Requests of a reader who uses the passages with the highest signal."""
    for number in range(requests):
        own = [float((number + index) % 8) for index in range(8)]
        answer = reranker.rerank(f"{EVIL} {number}", TEXTS, 5, signals={"own-signal": own}, user=EVIL)
        best = max(answer.indices, key=own.__getitem__)
        reranker.feedback(answer.id, {best: "cited"})
        now[0] += 600.0


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Tenants]]:
    """A served page with a tenant that has learned, one on trial with hostile names, and a new one."""
    folder, now = tmp_path_factory.mktemp("rerank"), [time.time() + TWO_DAYS_AGO]
    for name, requests in (("shop", 120), ("library", 3)):
        path = folder / "tenants" / name
        path.mkdir(parents=True)
        (path / "rerank.key").write_bytes(bytes(32))  # the same requests keep the caller's order in every run
        with Reranker(path, clock=lambda: now[0]) as reranker:
            use(reranker, now, requests)
            with reranker._store.writing():
                state = "in use" if name == "shop" else "on trial"
                weights = {"rank": 1.0, "bm25": 1.0, "centroid": 0.5, f"own{EVIL}": 0.7}
                reranker._store.add_model(weights, requests, state, f"fitted {EVIL}", now[0])
    tenants = Tenants(folder)
    tenants.add_key("new")
    with listening("fedrank rerank serve") as (bound, access):
        ready = threading.Event()
        server = make_server(make_page(tenants, access), access, lambda link: ready.set())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        assert ready.wait(20), "the page is not served"
        yield access, tenants
        server.should_exit = True
        thread.join(20)
    tenants.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.chromium() as one:
        yield one


@pytest.fixture
def owner(chromium: Any, page: Any) -> Iterator[Callable[..., Any]]:
    """Opens the page; at the end the console is empty, and no other address was asked."""
    access, _ = page
    contexts, said, asked = [], [], []

    def begin(**settings: Any) -> Any:
        context = chromium.new_context(**settings)
        context.set_default_timeout(20_000)
        contexts.append(context)
        cookie = {"name": access.cookie, "value": access._session, "url": access.origin, "sameSite": "Strict"}
        context.add_cookies([{**cookie, "httpOnly": True}])
        context.on("console", lambda message: said.append(message.text))
        context.on("weberror", lambda problem: said.append(str(problem.error)))
        context.on("request", lambda request: asked.append(request.url))
        tab = context.new_page()
        tab.goto(f"{access.origin}/")
        return tab

    yield begin
    for context in contexts:
        context.close()
    assert said == []
    assert {url for url in asked if not url.startswith(f"{access.origin}/")} == set()


def test_what_was_learned_with_its_interval(owner: Callable[..., Any]) -> None:
    tab = owner(java_script_enabled=False)
    assert tab.locator("h2").all_inner_texts() == ["library", "new", "shop"]
    shop = tab.get_by_role("region", name="shop", exact=True)
    text = shop.inner_text()
    assert "120, 120 of them with feedback (100 %)" in text
    assert "assigned at random" in text
    assert "95 % confidence interval" in text
    drawn = shop.locator("svg.bar")
    assert drawn.count() == 1
    assert drawn.bounding_box()["width"] > 100
    assert "not enough requests kept your order yet" in tab.get_by_role("region", name="new", exact=True).inner_text()


def test_hostile_texts_stay_texts(owner: Callable[..., Any]) -> None:
    tab = owner()
    assert tab.locator("img, script, [onerror]").count() == 0
    assert f"own{EVIL}" in tab.locator("bdi").all_inner_texts()
    assert tab.get_by_text(f"fitted {EVIL}").count() == 2
    assert "passage 1" not in tab.content()
    assert "<img" not in tab.content()


def test_a_keyboard_is_enough_to_roll_back(owner: Callable[..., Any], page: Any) -> None:
    tab, (_, tenants) = owner(java_script_enabled=False), page
    assert tenants.reranker("library").status().on_trial is not None
    tab.keyboard.press("Tab")
    assert tab.locator("*:focus").inner_text() == "Skip to the content"
    tab.keyboard.press("Enter")
    for _ in range(20):
        tab.keyboard.press("Tab")
        if tab.locator("button:focus").count():
            break
    assert tab.locator("button:focus").get_attribute("value") == "library"
    with tab.expect_navigation():
        tab.keyboard.press("Enter")
    assert tenants.reranker("library").status().on_trial is None
    assert "rolled back; by the owner" in tab.get_by_role("region", name="library", exact=True).inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(owner: Callable[..., Any], scheme: str) -> None:
    tab = owner(viewport={"width": 320, "height": 568}, color_scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 320
    background, text = (
        tab.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color")
    )
    light = [sum(map(int, colour.split("(")[1].rstrip(")").split(",")[:3])) for colour in (background, text)]
    assert (light[0] < light[1]) == (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(owner: Callable[..., Any], page: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="package: axe is not installed")
    tab = owner(color_scheme=scheme)
    found = axe.Axe().run(tab).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
