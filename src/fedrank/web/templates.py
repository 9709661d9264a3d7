"""Jinja templates with automatic escaping, and JSON inside a page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fedrank.display import visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def templates(package: str, folder: str) -> Environment:
    """The templates in a folder of a package. Values are escaped, because names and texts come from files.

    Invisible characters are escaped, too, except in `{{ value|data }}`, for fields, addresses and texts.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import escape

    environment = Environment(
        loader=PackageLoader(package, folder),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data"] = escape
    return environment


def script_json(content: Any) -> Markup:
    """JSON for a script element; its content cannot end the element."""
    from markupsafe import Markup

    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
