"""The site, in a browser, from a file: it finds, it has colours, and it asks nobody for anything."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedrank
from tests import browser as browsers
from tests import needs
from tests.documents import hook

pytestmark = pytest.mark.build

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="pip install 'fedrank[docs]'")
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml")]
    done = subprocess.run([*build, "--site-dir", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if browsers.CHROMIUM is None:
        needs.skip("browser", "Chromium was not found")
    pytest.importorskip("playwright", reason="pip install 'fedrank[test]'")
    with browsers.chromium() as started:
        yield started


@pytest.fixture
def reader(browser: Any) -> Iterator[Any]:
    """A page of the browser; what it complains about, and whom it asks, is looked at in the end."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if not _local(request.url) else None)
    yield page
    page.close()
    assert complaints == []


def _local(url: str) -> bool:
    return url.startswith(("file:", "data:"))


def _find(page: Any, words: str) -> list[str]:
    page.keyboard.press("/")
    page.locator("#words").fill(words)
    page.locator("#count:not(:empty)").wait_for()
    return page.locator("#found strong").all_inner_texts()


def test_search_finds_a_section_and_leads_there(site: Path, reader: Any) -> None:
    reader.goto((site / "tutorials" / "first-experiment.html").as_uri())
    found = _find(reader, "position bias")
    assert 5 < len(found) <= 20
    assert "Correct position bias" in found[0]
    assert "section" in reader.locator("#count").inner_text()
    reader.keyboard.press("ArrowDown")
    assert reader.locator("#found [aria-selected]").count() == 1
    assert reader.locator("#words").get_attribute("aria-activedescendant") == "found-1"
    reader.keyboard.press("ArrowUp")
    reader.keyboard.press("Enter")
    reader.wait_for_url("**/how-to/click-logs.html#correct-position-bias")
    assert not reader.locator("#search").is_visible()


def test_search_from_a_page_in_a_folder(site: Path, reader: Any) -> None:
    reader.goto((site / "reference" / "methods" / "aggregator.html").as_uri())
    found = _find(reader, "KRUM")
    assert set(found[:2]) == {"aggregator › krum", "fedrank.aggregators › Krum"}, (
        "headings that are the word come first"
    )
    reader.locator("#found a", has_text="fedrank.aggregators › Krum").first.click()
    reader.wait_for_url("**/reference/python/aggregators.html#krum")


def test_search_says_when_there_is_nothing_and_takes_any_text(site: Path, reader: Any) -> None:
    reader.goto((site / "index.html").as_uri())
    assert _find(reader, "xyzzyplugh") == []
    assert "No section contains" in reader.locator("#count").inner_text()
    _find(reader, "<img src=x onerror=alert(1)> clients (.*[")
    assert reader.locator("#search img").count() == 0
    reader.keyboard.press("Escape")
    assert not reader.locator("#search").is_visible()


def test_code_has_colours_that_can_be_read_in_light_and_dark(site: Path, reader: Any) -> None:
    reader.goto((site / "tutorials" / "first-experiment.html").as_uri())
    for _ in ("light", "dark"):
        assert len(_colours(reader)) >= 5
        assert _least_contrast(reader) >= 4.5
        reader.locator("#theme").click()
    before = reader.evaluate("getComputedStyle(document.body).backgroundColor")
    reader.locator("#theme").click()
    chosen = reader.evaluate("getComputedStyle(document.body).backgroundColor")
    assert chosen != before
    reader.reload()
    assert reader.evaluate("getComputedStyle(document.body).backgroundColor") == chosen, "it is remembered"


def _colours(page: Any) -> list[str]:
    return page.evaluate(
        "[...new Set([...document.querySelectorAll('.highlight span')].map(e => getComputedStyle(e).color))]"
    )


def _least_contrast(page: Any) -> float:
    """Of code on its ground, by the formula of WCAG 2."""
    ground = page.evaluate("getComputedStyle(document.querySelector('pre')).backgroundColor")
    below = _luminance(ground)
    ratios = []
    for colour in _colours(page):
        dark, light = sorted((_luminance(colour), below))
        ratios.append((light + 0.05) / (dark + 0.05))
    return min(ratios)


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("width", [400, 1200])
def test_no_page_is_wider_than_the_window(site: Path, reader: Any, width: int) -> None:
    reader.set_viewport_size({"width": width, "height": 900})
    for path in sorted(site.rglob("*.html")):
        reader.goto(path.as_uri())
        assert reader.evaluate("document.documentElement.scrollWidth") <= width, path.name


def test_the_menu_is_grouped_and_opens_on_a_small_window(site: Path, reader: Any) -> None:
    reader.set_viewport_size({"width": 400, "height": 900})
    reader.goto((site / "how-to" / "trees.html").as_uri())
    assert not reader.locator("#pages").is_visible()
    reader.locator("#menu").click()
    assert reader.locator("#pages").is_visible()
    assert reader.locator("#pages h2").all_inner_texts() == [
        *("TUTORIALS", "HOW-TO GUIDES", "REFERENCE", "EXPLANATION"),
    ]
    assert reader.locator("#pages [aria-current]").inner_text() == "Trees"


@pytest.mark.parametrize(
    "name", ["index.html", "explanation/simulated-and-deployed.html", "reference/python/federation.html"]
)
def test_axe_finds_nothing(site: Path, browser: Any, name: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)  # which axe makes complain that files have no origin
        page.goto((site / name).as_uri())
        found = Axe().run(page).response["violations"]
        page.close()
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


def test_the_index_holds_every_page_and_stays_small(site: Path) -> None:
    text = (site / "search-index.js").read_text(encoding="utf-8")
    pages = json.loads(text.removeprefix("window.searchIndex=").rstrip(";\n"))
    assert {page["url"] for page in pages} == {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert len(text) < 2_000_000
    assert "base64" not in text


def test_sections_are_text_by_heading() -> None:
    html = "<p>Before &amp; after</p><h2 id='a'>One <code>x</code></h2><p>two</p><p>three</p><style>no</style>"
    assert hook("search_index")["sections"](f"{html}<h3 id='b'>B</h3>") == [
        ("", "", "Before & after"),
        ("a", "One x", "two three"),
        ("b", "B", ""),
    ]


def test_every_public_name_is_described_with_its_signature() -> None:
    pages = hook("api_pages")["api_pages"]()
    text = "\n".join(pages.values())
    for name in fedrank.__all__:
        if isinstance(fedrank._listed()[name], dict):
            assert "\n```pycon\n>>> import " in pages[f"reference/python/{name}.md"]
            for method in vars(fedrank._family(name)):
                assert f"\n## {method}\n\n```python\nfedrank.{name}.{method}(" in pages[f"reference/python/{name}.md"]
        else:
            assert text.count(f"\n## {name}\n") == 1, (
                f"fedrank.{name} belongs to no group of docs/api_pages.py, or to two"
            )
    assert (
        "fedrank.plot.curves(runs: Runs | Run, column: str | None = None) -> Picture"
        in pages["reference/python/experiments.md"]
    )
    assert "<factory>" not in text
    assert " object at 0x" not in text
