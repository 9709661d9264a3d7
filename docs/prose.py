"""Words of the code as Markdown, for all hooks that make pages of them."""

from __future__ import annotations

import re


def prose(text: str | None) -> str:
    """Docstrings are plain text but for their code: what Markdown would take for emphasis or a tag is none."""
    parts = (text or "").split("`")
    parts[::2] = [re.sub(r"([*_])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def cell(text: str) -> str:
    """Prose in a table."""
    return prose(text).replace("|", r"\|")


def code(text: str) -> str:
    """Code in a table, or nothing."""
    return f"`{text}`" if text else ""
