"""What comes from files stays text in Markdown: judged by a reader of Markdown, not by looking at backslashes."""

from __future__ import annotations

import html
import re

import pytest
from markdown_it import MarkdownIt

from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.sections import Cell, Listing, Pairs, Points, Section, Span, Table, paragraph

ODD = [
    "# no heading",
    "1. no list",
    "- no list",
    "> no quote",
    ">no quote",
    "---",
    "===",
    "a|b\\|c",
    "`code` **strong** __strong__ _em_ ~~gone~~",
    "![picture](https://example.org/x.png) [link](https://example.org) [x][y]",
    "[x]: https://example.org",
    "R&D &lt; <b onclick=x>bold</b> <https://example.org>",
    "snake_case_name and a\nsecond line",
    "95% [0.1, 0.2], -0.3, 2.5 and 1:x:2",
    "```",
    "```` and more",
]


def rendered(text: str) -> str:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)


def words(rendering: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", rendering)).strip()


@pytest.mark.parametrize("text", ODD)
def test_text_stays_text(text):
    one_line = " ".join(text.split())
    for part in (paragraph(text), paragraph(text, tone="warn"), Points((text,)), Section(text)):
        page = rendered(markdown([part]))
        assert words(page) == one_line
        tags = set(re.findall(r"<(\w+)", page))
        assert tags <= {"p", "blockquote", "ul", "li", "h1"}
    page = rendered(markdown([Table([text, "n"], [[Cell(text), Cell("1", strong=True)]])]))
    assert [words(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", page)] == [one_line, "n", one_line, "1"]
    assert set(re.findall(r"<(\w+)", page)) <= {"table", "thead", "tbody", "tr", "th", "td", "strong"}
    page = rendered(markdown([Pairs(((text, text),))]))
    assert words(page) == f"{one_line}: {one_line}"


@pytest.mark.parametrize("text", ODD)
def test_a_listing_ends_where_it_ends(text):
    page = rendered(markdown([Listing(text), paragraph("behind")]))
    assert words(page) == f"{text}\n\nbehind"
    assert page.endswith("<p>behind</p>\n")


@pytest.mark.parametrize("text", ODD)
def test_words_may_lead_somewhere_and_stay_words(text):
    one_line = " ".join(text.split())
    page = rendered(markdown([paragraph(text, " see ", Span(text, link="more.md#there"), ".")]))
    assert words(page) == f"{one_line} see {one_line}."
    assert re.findall(r'<a href="([^"]*)"', page) == ["more.md#there"]
    assert set(re.findall(r"<(\w+)", page)) <= {"p", "a"}
