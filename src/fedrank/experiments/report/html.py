"""Sections as one web page that needs nothing from the network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from fedrank.experiments.report.sections import Drawing, Interactive, Part, Section
from fedrank.web.templates import script_json, templates

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def page(title: str, sections: Sequence[Section], last: Sequence[Part] = ()) -> str:
    """A web page. Several sections get a list of contents; `last` is below all of them."""
    from markupsafe import Markup

    script = _script() if any(map(_is_lively, (*sections, *last))) else ""
    values = {"title": title, "sections": sections, "last": last, "script": Markup(script)}
    return _environment().get_template("page.html").render(**values, policy=Markup(policy(script)))


def part(name: str) -> str:
    """A file that pages are made of: `style.css`, `chart.js` or `lively.js`."""
    return files("fedrank.experiments.report").joinpath("templates", name).read_text("utf-8")


def policy(script: str | None = None) -> str:
    """The content security policy of a report: nothing is fetched, and only its own script runs."""
    digest = hashlib.sha256((_script() if script is None else script).encode()).digest()
    allowed = "" if script == "" else f"; script-src 'sha256-{base64.b64encode(digest).decode()}'"
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:{allowed}; base-uri 'none'; form-action 'none'"


@cache
def _script() -> str:
    return part("chart.js") + part("lively.js")


def _is_lively(part: Part) -> bool:
    return isinstance(part, Interactive) or (isinstance(part, Section) and any(map(_is_lively, part.parts)))


@cache
def _environment() -> Environment:
    environment = templates("fedrank.experiments.report", "templates")
    environment.filters |= {"drawing": _drawing, "data": lambda part: script_json(part.data())}
    environment.filters["kind"] = lambda part: type(part).__name__
    return environment


def _drawing(figure: Drawing) -> Markup:
    """The drawing, with its caption as a text alternative."""
    from markupsafe import Markup

    named = Markup('<svg role="img" aria-label="{}" ').format(figure.caption)
    return Markup(figure.draw().replace("<svg ", named, 1))
