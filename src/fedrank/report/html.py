"""Sections as one web page that needs nothing from the network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from fedrank.report.sections import Drawing, Part, Section

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def page(title: str, sections: Sequence[Section], last: Sequence[Part] = ()) -> str:
    """A web page. Several sections get a list of contents; `last` stands below all of them."""
    return _environment().get_template("page.html").render(title=title, sections=sections, last=last)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fedrank", "report/templates"),
        autoescape=True,  # names and notes come from files
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawing"] = _drawing
    return environment


def _drawing(figure: Drawing) -> Markup:
    """The drawing, with its caption for those who cannot see it."""
    from markupsafe import Markup

    named = Markup('<svg role="img" aria-label="{}" ').format(figure.caption)
    return Markup(figure.draw().replace("<svg ", named, 1))
