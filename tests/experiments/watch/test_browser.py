"""The page on runs in a real browser: curves that grow, failures, comparing by clicking, reports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.browser import chromium
from tests.experiments.watch.served import WatchedPage, finish, grow, running, served, write_folders

pytest.importorskip("starlette", reason="pip install 'fedrank[watch]'")
pytest.importorskip("playwright.sync_api", reason="pip install 'fedrank[test]'")
pytestmark = [pytest.mark.browser, needs.browser]

SPEC = """
rounds = 300
evaluate_every = 5
seeds = [1, 2]

[data]
name = "synthetic-mq2007"

[clients]
count = 5

[learner]
name = "pdgd"
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as one:
        yield one


@pytest.fixture
def site(tmp_path: Path) -> Iterator[WatchedPage]:
    write_folders(tmp_path / "runs")
    with served(tmp_path / "runs") as one:
        yield one


@pytest.fixture
def person(browser: Any) -> Iterator[Callable[[WatchedPage], Any]]:
    """Opens a tab by the link; in the end nothing stands in the console, and nobody else was asked."""
    contexts, said, asked, origins = [], [], [], []

    def begin(site: WatchedPage) -> Any:
        context = browser.new_context()
        context.set_default_timeout(20_000)
        contexts.append(context)
        origins.append(site.origin)
        context.on("console", lambda message: said.append(message.text))
        context.on("weberror", lambda problem: said.append(str(problem.error)))
        context.on("request", lambda request: asked.append(request.url))
        tab = context.new_page()
        tab.said = said
        tab.goto(site.door.link)
        assert tab.url == f"{site.origin}/"
        return tab

    yield begin
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not any(url.startswith(f"{origin}/") for origin in origins)] == []


def test_a_run_goes_on_and_the_page_follows(site: WatchedPage, person: Callable[[WatchedPage], Any]) -> None:
    with running(site.folder, "second", "median", 2, 3) as folder:
        tab = person(site)
        tab.get_by_text("1 running").wait_for()
        assert "1 min 00 s" in tab.inner_text("main")
        box = tab.get_by_label("compare first")
        box.check()
        tab.click("text=second")
        curve = tab.locator("#charts svg").first.locator(".curve").last
        before = curve.get_attribute("points").count(",")
        assert before == 5
        tab.get_by_text("10 of 40").wait_for()
        tab.get_by_role("checkbox", name="Logarithmic axis").check()
        grow(folder, 10)
        tab.get_by_text("20 of 40").wait_for()
        assert curve.get_attribute("points").count(",") == 10
        assert tab.get_by_role("checkbox", name="Logarithmic axis").is_checked(), "what was chosen stays"
        finish(folder)
    tab.get_by_text("5 finished").wait_for()


def test_what_is_ticked_stays_and_is_compared_by_clicking(
    site: WatchedPage, person: Callable[[WatchedPage], Any]
) -> None:
    tab = person(site)
    tab.get_by_label("compare first").check()
    tab.get_by_label("compare second").check()
    with running(site.folder, "second", "median", 2, 3):
        tab.get_by_text("1 running").wait_for()
        assert tab.locator("input:checked").count() == 2
        tab.get_by_role("button", name="Compare").click()
        tab.wait_for_url("**/compare?*")
        assert tab.locator("#charts svg").count() == 3
        assert tab.locator("#charts svg").first.locator(".curve").count() == 12 + 6
        tab.get_by_role("checkbox", name="first: mean", exact=True).uncheck()
        assert tab.locator("#charts svg").first.locator(".curve").count() == 6 + 6
        tab.locator("#charts svg").first.scroll_into_view_if_needed()
        spot = tab.locator("#charts svg").first.bounding_box()
        tab.mouse.move(spot["x"] + spot["width"] - 27, spot["y"] + 50)
        assert "second: median, fold 1, seed 1" in tab.locator(".tip:visible").inner_text()
    tab.click("text=Open the report")
    tab.get_by_role("heading", name="first and second, compared").wait_for()
    tab.get_by_role("checkbox", name="first: mean", exact=True).uncheck()
    assert tab.locator(".lively > svg").first.locator(".curve").count() == 2, "its script runs here as well"


def test_the_log_of_a_failure(site: WatchedPage, person: Callable[[WatchedPage], Any]) -> None:
    tab = person(site)
    tab.on("dialog", lambda dialog: pytest.fail(f"a log ran a script: {dialog.message}"))
    tab.locator("#failures a").first.click()
    assert "no such luck" in tab.locator("pre.log").inner_text()
    assert "<script>alert(1)</script>" in tab.locator("pre.log").inner_text()
    assert "round 7, client 2" in tab.locator("p.warn:visible").inner_text()


def test_the_page_says_when_nobody_answers(tmp_path: Path, person: Callable[[WatchedPage], Any]) -> None:
    write_folders(tmp_path / "runs")
    with served(tmp_path / "runs") as site:
        tab = person(site)
    tab.get_by_text("fedrank watch has ended").wait_for()
    assert "12 finished" in tab.inner_text("main"), "the last that was known"
    tab.said[:] = [said for said in tab.said if "ERR_CONNECTION" not in said]
    tab.goto("about:blank")


def test_real_runs_of_another_process(tmp_path: Path, person: Callable[[WatchedPage], Any]) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "runs").mkdir()
    with served(tmp_path / "runs") as site:
        tab = person(site)
        tab.get_by_text("There is no run yet").wait_for()
        command = [sys.executable, "-m", "fedrank", "run", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "runs")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ) as process:
            tab.set_default_timeout(60_000)
            tab.get_by_text(re.compile(r"\d (running|finished)")).first.wait_for()
            assert process.wait(60) == 0
        tab.get_by_text("2 finished").wait_for()
        tab.get_by_role("link", name="open").click()
        tab.get_by_role("heading", name="Learning curves").wait_for()


def test_axe_finds_nothing(site: WatchedPage, person: Callable[[WatchedPage], Any]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'fedrank[test]'")
    tab = person(site)
    addresses = [site.origin + "/"]
    addresses += [site.origin + tab.locator(where).first.get_attribute("href") for where in ("td a", "#failures a")]
    for address in addresses:
        tab.goto(address)
        found = axe.Axe().run(tab, options={"runOnly": ["wcag2a", "wcag2aa"]}).response["violations"]
        assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found] == [], address
