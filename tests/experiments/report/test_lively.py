"""A report in a real browser: what its reader can switch, point at and choose, with no network and one script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedrank.experiments.report.write import write_report
from fedrank.experiments.runner.runs import load_runs
from tests import needs
from tests.browser import chromium
from tests.experiments.report.made_up_runs import write_experiment, write_run

pytest.importorskip("playwright.sync_api", reason="pip install 'fedrank[test]'")
pytestmark = [pytest.mark.browser, needs.browser]
BAD = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two experiments on the same queries; one has a variant with a name that no page may believe."""
    out = tmp_path_factory.mktemp("lively")
    for name, variants in {"first": {"mean": 0.45, "krum": 0.4}, "second": {"median": 0.44, BAD: 0.43}}.items():
        write_experiment(out, experiment=name)
        for variant, level in variants.items():
            for seed in (1, 2, 3):
                folder = write_run(out, name, variant.replace("/", ""), seed=seed, level=level, nothing=0.3)
                assert (folder / "queries.csv").exists()
    return write_report(load_runs(out), out / "report.html")


@pytest.fixture
def tab(browser: Any, report: Path) -> Iterator[Any]:
    """The report, opened as a file; in the end nothing was complained of and nothing was fetched."""
    context = browser.new_context()
    context.set_default_timeout(10_000)
    said: list[str] = []
    asked: list[str] = []
    context.on("console", lambda message: said.append(message.text))
    context.on("weberror", lambda problem: said.append(str(problem.error)))
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    page.said = said
    page.goto(report.as_uri())
    yield page
    context.close()
    assert said == []
    assert asked == [report.as_uri()]


def charts(tab: Any) -> Any:
    return tab.locator(".lively[data-shows=curves] > svg")


def switch(tab: Any, name: str) -> Any:
    return tab.get_by_role("checkbox", name=name, exact=True)


def test_variants_are_switched_off_and_on(tab: Any) -> None:
    assert charts(tab).count() == 3  # two measures and online
    assert tab.locator(".still:visible").count() == 0
    first = charts(tab).first
    assert first.locator(".curve").count() == 4
    assert first.locator(".band").count() == 4
    switch(tab, "first: krum").uncheck()
    assert [chart.locator(".curve").count() for chart in charts(tab).all()] == [3, 3, 3]
    for name in ("first: mean", "second: median", f"second: {BAD}"):
        switch(tab, name).uncheck()
    assert "No variant is switched on" in first.text_content()
    first.hover()
    switch(tab, "first: krum").check()
    assert first.locator(".curve").count() == 1
    switch(tab, "Bands").uncheck()
    assert first.locator(".band").count() == 0


def test_axis_and_scale(tab: Any) -> None:
    first = charts(tab).first
    assert "2,000" not in first.text_content()
    tab.get_by_label("Axis", exact=True).select_option("interactions")
    assert "2,000" in first.text_content()  # fifty a round
    tab.get_by_label("Axis", exact=True).select_option("rounds")
    before = first.locator(".curve").first.get_attribute("points")
    switch(tab, "Logarithmic axis").check()
    after = first.locator(".curve").first.get_attribute("points")
    assert before != after
    xs = [float(point.split(",")[0]) for point in after.split()]
    steps = [two - one for one, two in pairwise(xs)]
    assert steps[0] > 3 * steps[-1]  # early rounds are spread out


def test_values_on_a_logarithmic_scale(tab: Any) -> None:
    first = charts(tab).first
    before = heights(first)
    switch(tab, "Logarithmic values").check()
    after = heights(first)
    assert len(before) == len(after)
    assert all(two > one - 0.01 for one, two in pairwise(sorted(after)))
    low, high = before[0], before[-1]  # a curve that rises: logarithms lift what lies between its ends
    middle = before[len(before) // 2]
    share = (low - middle) / (low - high)
    lifted = (after[0] - after[len(after) // 2]) / (after[0] - after[-1])
    assert lifted > share
    marks = [float(text) for text in first.locator("text").all_text_contents() if re.fullmatch(r"0\.\d+", text)]
    assert len(marks) == len(set(marks)) >= 3, "marks can be told apart"


def heights(chart: Any) -> list[float]:
    points = chart.locator(".curve").first.get_attribute("points").split()
    return [float(point.split(",")[1]) for point in points]


def test_on_a_telephone_words_are_as_large_as_elsewhere(tab: Any) -> None:
    tab.set_viewport_size({"width": 400, "height": 800})
    first = charts(tab).first
    tab.wait_for_function("document.querySelector('.lively > svg').viewBox.baseVal.width < 400")
    assert first.locator("text").first.evaluate("node => node.getBoundingClientRect().height") >= 11
    right = first.bounding_box()["x"] + first.bounding_box()["width"]
    for text in first.locator("text").all():
        box = text.bounding_box()
        assert box["x"] + box["width"] <= right + 0.5, "no word is cut off"
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400


def test_everything_drawn_lies_within_the_frame(tab: Any) -> None:
    for chart in charts(tab).all():
        for shape in chart.locator(".band, .curve").all():
            points = [tuple(map(float, point.split(","))) for point in shape.get_attribute("points").split()]
            right = float(chart.get_attribute("viewBox").split()[2])
            assert all(57 <= x <= right and 9 <= y <= 289 for x, y in points)


def test_values_are_shown_under_the_pointer_and_by_keys(tab: Any) -> None:
    first = charts(tab).first
    first.scroll_into_view_if_needed()
    box = first.bounding_box()
    tab.mouse.move(box["x"] + box["width"] - 27, box["y"] + 40)
    tip = tab.locator(".tip:visible")
    assert tip.count() == 1
    words = tip.inner_text()
    assert "round 40" in words
    assert re.search(r"0\.\d{4} ± 0\.\d{4}\s+first: mean", words)
    tab.mouse.move(1, 1)
    assert tip.count() == 0
    first.focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert "round 4" in tip.inner_text()


def test_queries_won_and_lost_between_any_two(tab: Any) -> None:
    place = tab.locator(".lively[data-shows=queries]")
    told = place.locator(".tally")
    place.get_by_label("Variant", exact=True).select_option(label="first: mean")
    place.get_by_label("against", exact=True).select_option(label="first: krum")
    words = told.inner_text()
    found = re.fullmatch(
        r"first: mean wins (\d+) queries against first: krum, loses (\d+), and (\d+) are equal.", words
    )
    assert found
    assert sum(map(int, found.groups())) == 29  # one of thirty is skipped
    rows = place.locator("tbody:visible tr")
    assert rows.count() == 20
    place.get_by_text("More queries").click()
    assert rows.count() == int(found[1]) + int(found[2])
    place.get_by_label("Queries", exact=True).select_option("lost")
    assert all(text.startswith("-") for text in place.locator("tbody:visible td:nth-child(4)").all_inner_texts())
    assert re.fullmatch(r"10\d\d", rows.first.locator("td").first.inner_text())
    place.get_by_label("Variant", exact=True).select_option(label="first: krum")
    assert told.inner_text().endswith("loses 0, and 29 are equal.")
    assert rows.count() == 0


def test_a_name_is_no_markup_and_no_other_script_runs(tab: Any) -> None:
    assert tab.locator("img").count() == 0
    tab.evaluate(
        """() => { const one = document.createElement("script"); one.textContent = "window.ran = true";
        document.body.append(one); }"""
    )
    assert tab.evaluate("window.ran") is None
    assert any(re.search("content security policy", said, re.IGNORECASE) for said in tab.said)
    tab.said.clear()


def test_without_a_script_it_is_a_report_of_pictures_and_tables(browser: Any, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("figure svg:visible").count() >= 3
    assert "queries won" in page.inner_text("main")
    context.close()


def test_axe_finds_nothing(tab: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'fedrank[test]'")
    found = axe.Axe().run(tab, options={"runOnly": ["wcag2a", "wcag2aa"]}).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found] == []
