"""Docstrings and comments as Markdown, for the hooks that generate pages."""

from __future__ import annotations

import re


def prose(text: str | None) -> str:
    """A docstring as Markdown: examples become code blocks."""
    paragraphs = (text or "").split("\n\n")
    return "\n\n".join(f"```pycon\n{each}\n```" if each.startswith(">>> ") else _plain(each) for each in paragraphs)


def _plain(text: str) -> str:
    """Docstrings are plain text except for code: escape what Markdown would read as emphasis or a tag."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def cell(text: str) -> str:
    """Prose in a table."""
    return prose(text).replace("|", r"\|")


def code(text: str) -> str:
    """Code in a table, or nothing."""
    return f"`{text}`" if text else ""
