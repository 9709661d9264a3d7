"""One list of sections, rendered three ways."""

from __future__ import annotations

import base64
import hashlib
import io
import re

from rich.console import Console

from fedrank.experiments.report.html import page
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.sections import (
    Cell,
    Drawing,
    Interactive,
    Listing,
    Pairs,
    Points,
    Section,
    Span,
    Table,
    paragraph,
)
from fedrank.experiments.report.terminal import show

LONG = "fedrank report " + "a-long-name/" * 12
BAD = "<i>&| *x* [red]"


def drawn() -> str:
    return '<svg width="1"></svg>'


def never() -> str:
    raise AssertionError("whoever cannot show a drawing should not have it drawn")


def sections(draw=drawn) -> list[Section]:
    table = Table(
        ["rule", "quality"],
        [[Cell("mean (baseline)"), Cell("0.5", strong=True, hint="of two")], [Cell(BAD), Cell("0.4", mark="▼")]],
        notes=["Bold: highest."],
    )
    code = paragraph("Type ", Span(LONG, "code"), ", not ", Span("that", "strong"), ".")
    parts = (
        paragraph("It works.", tone="lead"),
        code,
        Points(("first point", "second point")),
        Pairs((("data", "mq2008"),)),
        table,
        Section("Pictures", (Drawing(draw, "a curve"),)),
        Section("More", (Listing("rounds = 3", "toml"),), folded=True),
    )
    return [Section("The question", parts, over="federated experiment", anchor="one")]


def in_terminal(width: int) -> str:
    out = io.StringIO()
    show(sections(never), Console(file=out, width=width))
    return out.getvalue()


def test_every_renderer_says_everything():
    web = page("A report", sections())
    words = ["The question", "federated experiment", "It works.", "first point", "second point", "mq2008", "quality"]
    words += ["mean (baseline)", "0.5", "0.4", "▼", "Bold: highest.", "rounds = 3", "More", LONG]
    for text in (web, markdown(sections(never)), in_terminal(100)):
        assert [word for word in words if word not in text] == []


def test_a_page_is_escaped_and_folds_and_draws():
    text = page("A report", sections())
    assert BAD not in text
    assert "&lt;i&gt;&amp;| *x* [red]" in text
    assert f"<p>Type <code>{LONG}</code>, not <strong>that</strong>.</p>" in text
    assert '<article id="one">' in text
    assert "<h1>The question</h1>" in text
    assert "<h2>Pictures</h2>" in text
    assert "<summary>More</summary>" in text
    assert '<svg role="img" aria-label="a curve" width="1"></svg>' in text
    assert '<tr class="base">' in text
    assert '<span class="best" title="of two">0.5</span>' in text
    assert "<nav>" not in text
    assert '<li><a href="#one">The question</a></li>' in page("Two", [*sections(), *sections()])


def test_a_page_runs_the_script_it_comes_with_and_no_other():
    """By its hash, which a browser compares with what stands in the page."""

    def allowed(text):
        [policy] = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">', text)
        return [rule for rule in policy.split("; ") if rule.startswith(("default-src", "script-src"))]

    plain = page("A report", sections())
    assert "<script" not in plain
    assert allowed(plain) == ["default-src 'none'"]
    curves = Interactive("curves", lambda: {"title": "</script><script>alert(1)"}, (paragraph("a curve"),))
    lively = page("A report", [*sections(), Section("Curves", (Section("Inner", (curves,)),))])
    [script] = re.findall(r"<script>(.*?)</script>", lively, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert allowed(lively) == ["default-src 'none'", f"script-src 'sha256-{digest}'"]


def test_markdown_is_escaped_and_has_no_empty_section():
    text = markdown(sections(never))
    assert "| &lt;i>&\\| \\*x\\* [red] | 0.4 ▼ |" in text
    assert "| mean (baseline) | **0.5** |" in text
    assert "Pictures" not in text
    assert "## More\n\n````toml\nrounds = 3\n````" in text


def test_a_terminal_keeps_what_is_to_be_typed_in_one_piece():
    text = in_terminal(60)
    assert LONG in text
    assert "[red]" in text  # brackets are not markup
    assert max(len(line) for line in text.splitlines() if LONG not in line) <= 60
