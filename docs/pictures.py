"""Screenshots of every page that users see, by a real browser: `python docs/pictures.py FOLDER`.

FOLDER gets the report, the page on runs, the site, a notebook and the search page, each in the width of a desktop and
of a telephone, to look at after a change. `--docs` also replaces the few that README.md shows.
It needs the packages of `.[dev]` and Chromium. Results that are in FOLDER are not computed again.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FEDRANK = [sys.executable, "-m", "fedrank"]
WIDTHS = {"wide": 1200, "narrow": 400}
TALLEST = 8000  # pixels; of the rest of a page there is nothing new to see
COLOURS = 256  # enough for charts and text, and a third of the bytes
SHOWN = {  # in README.md: a part of a picture, by its left, upper, right and lower edge
    "report": ("report-top.png", (0, 30, 1060, 630)),
    "search": ("search-results-wide.png", (220, 0, 980, 680)),
}
BROKEN = """# broken.py
from dataclasses import dataclass

import fedrank


@dataclass(frozen=True)
class Broken:
    def __call__(self, messages: fedrank.Messages):
        return messages.updates.mean(axis=1)  # over the wrong axis
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", action="store_true", help="also replace the pictures that README.md shows")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "broken.py").write_text(BROKEN)
    fedrank(folder, "run", "quickstart")
    fedrank(
        folder,
        "run",
        "quickstart",
        "--name",
        "perfect",
        "--set",
        'clients.click_model="perfect"',
        "--set",
        "rounds=300",
    )
    fedrank(folder, "report", "runs/quickstart", "--out", "report.html")
    fedrank(folder, "report", "runs/quickstart", "runs/perfect", "--out", "compared.html")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", str(ROOT / "mkdocs.yml")]
    subprocess.run([*build, "--site-dir", str(folder / "site")], check=True)
    with browser() as chromium:
        for kind, width in WIDTHS.items():
            tab = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme="light")
            for name, file in still_pages(folder).items():
                tab.goto(file.as_uri())
                picture(tab, folder / f"{name}-{kind}.png")
            tab.close()
        top_of_report(chromium, folder)
        live_pages(chromium, folder)
        search_pages(chromium, folder)
    if asked.docs:
        for name, (file, edges) in SHOWN.items():
            with Image.open(folder / file) as whole:
                part = whole.convert("RGB").crop(edges).quantize(COLOURS, dither=Image.Dither.NONE)
            part.save(ROOT / f"docs/{name}.png", optimize=True)
            print(ROOT / f"docs/{name}.png")


def fedrank(folder: Path, *words: str, check: bool = True) -> None:
    subprocess.run([*FEDRANK, *words], cwd=folder, check=check, stdout=subprocess.DEVNULL)


def still_pages(folder: Path) -> dict[str, Path]:
    site = folder / "site"
    return {
        "report": folder / "report.html",
        "compared": folder / "compared.html",
        "site": site / "index.html",
        "site-tutorial": site / "tutorials" / "first-experiment.html",
        "site-methods": site / "reference" / "methods" / "index.html",
        "notebook": site / "files" / "examples" / "first_federation.ipynb.html",
    }


def top_of_report(chromium: Any, folder: Path) -> None:
    """The conclusion and the main chart of the report."""
    tab = chromium.new_page(viewport={"width": 1100, "height": 900}, color_scheme="light")
    tab.goto((folder / "report.html").as_uri())
    tab.screenshot(path=folder / "report-top.png")
    tab.close()


def live_pages(chromium: Any, folder: Path) -> None:
    """The page on runs, while one experiment is running and another has failed."""
    fails = [
        "--set",
        "variants.federated={aggregator='broken:Broken'}",
        "--set",
        "seeds=[1]",
        "--set",
        "data.folds=[1]",
    ]
    fedrank(folder, "run", "quickstart", "--name", "broken", *fails, check=False)
    shutil.rmtree(folder / "runs" / "long", ignore_errors=True)
    with (
        started(folder, "run", "quickstart", "--name", "long", "--set", "rounds=30000") as long,
        opened(chromium, folder, "watch", "runs") as (origin, context),
    ):
        long.stdout.readline()  # a title, and how many runs of how many rounds
        tab = context.new_page()
        tab.goto(origin)
        tab.get_by_text(re.compile(r"\d running")).first.wait_for()
        tab.wait_for_timeout(4_000)
        pages = {
            "watch": "/",
            "watch-running": tab.get_by_role("link", name="long", exact=True).get_attribute("href"),
            "watch-failed": tab.locator("#failures a").first.get_attribute("href"),
        }
        for name, address in pages.items():
            for kind, width in WIDTHS.items():
                tab.set_viewport_size({"width": width, "height": 900})
                tab.goto(origin + address)
                picture(tab, folder / f"{name}-{kind}.png")


def search_pages(chromium: Any, folder: Path) -> None:
    shutil.rmtree(folder / "search-demo", ignore_errors=True)
    with opened(chromium, folder, "search", "serve", "--demo") as (origin, context):
        tab = context.new_page()
        for kind, width in WIDTHS.items():
            tab.set_viewport_size({"width": width, "height": 900})
            tab.goto(origin)
            picture(tab, folder / f"search-{kind}.png")
            tab.fill("input[name=q]", "roof invoice")
            tab.keyboard.press("Enter")
            tab.wait_for_url("**/results/*")
            without_folder(tab, folder)
            picture(tab, folder / f"search-results-{kind}.png")


@contextmanager
def opened(chromium: Any, folder: Path, *words: str) -> Iterator[tuple[str, Any]]:
    """A page that a command serves: its address, and a browser that came in by its link."""
    with started(folder, *words, "--no-browser") as process:
        link = next(line for line in process.stdout if line.startswith("Open ")).split()[1]
        context = chromium.new_context(color_scheme="light")
        tab = context.new_page()
        tab.goto(link)
        yield link.partition("/enter/")[0], context
        context.close()


@contextmanager
def started(folder: Path, *words: str) -> Iterator[Any]:
    command = [*FEDRANK, *words]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.stdout.read()


@contextmanager
def browser() -> Iterator[Any]:
    """Without its sandbox, because this may run as root in a container."""
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield one
        one.close()


def without_folder(tab: Any, folder: Path) -> None:
    """Hide where this machine stores the documents."""
    tab.evaluate(
        """folder => { for (const one of document.querySelectorAll("body *"))
        for (const node of one.childNodes)
            if (node.nodeType === 3) node.textContent = node.textContent.replace(folder, "~"); }""",
        str(folder),
    )


def picture(tab: Any, file: Path) -> None:
    tab.wait_for_load_state("networkidle")
    wide = tab.evaluate("document.documentElement.scrollWidth")
    if wide > tab.viewport_size["width"]:
        print(f"{file.name}: {wide} pixels wide, which needs horizontal scrolling")
    with Image.open(io.BytesIO(tab.screenshot(full_page=True))) as whole:
        whole.convert("RGB").crop((0, 0, whole.width, min(TALLEST, whole.height))).save(file)
    print(file)


if __name__ == "__main__":
    main()
