"""The search index of the site: every section of every page, as a script, because a page that was opened from a file
may load scripts but cannot fetch files.

MkDocs runs this as a hook (see mkdocs.yml). `theme/site.js` reads the index.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

LONGEST = 6000  # characters per section: listings of files would be most of the index otherwise
HEADINGS = {"h1", "h2", "h3", "h4"}
BREAKS = {"p", "li", "td", "th", "tr", "pre", "div", "br", *HEADINGS}  # words on both sides are two words
SKIPPED = {"script", "style"}

_pages: list[dict[str, Any]] = []


class Sections(HTMLParser):
    """The text of a page by heading."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, str]] = []  # anchor, heading, text
        self._anchor, self._heading, self._text = "", "", ""
        self._in_heading, self._skipping = False, 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in HEADINGS:
            self.end()
            self._anchor, self._in_heading = dict(attrs).get("id") or "", True
        elif tag in SKIPPED:
            self._skipping += 1
        if tag in BREAKS:
            self._text += " "

    def handle_endtag(self, tag: str) -> None:
        if tag in HEADINGS:
            self._in_heading = False
        elif tag in SKIPPED:
            self._skipping -= 1

    def handle_data(self, data: str) -> None:
        if self._in_heading:
            self._heading += data
        elif not self._skipping:
            self._text += data

    def end(self) -> None:
        """End a section."""
        text = re.sub(r"\s+", " ", self._text).strip()
        if self._heading or text:
            self.found.append((self._anchor, self._heading.strip(), text[:LONGEST]))
        self._heading, self._text = "", ""


def sections(html: str) -> list[tuple[str, str, str]]:
    """(anchor, heading, text) of every section of a page."""
    parser = Sections()
    parser.feed(html)
    parser.close()
    parser.end()
    return parser.found


def on_pre_build(**_: Any) -> None:
    """Begin with an empty index, also when `mkdocs serve` builds again."""
    _pages.clear()


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Add the sections of the page."""
    _pages.append({"title": str(page.title), "url": page.url, "sections": sections(html)})
    return html


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Write the index."""
    text = json.dumps(_pages, ensure_ascii=False, separators=(",", ":"))
    Path(config.site_dir, "search-index.js").write_text(f"window.searchIndex={text};\n", encoding="utf-8")
