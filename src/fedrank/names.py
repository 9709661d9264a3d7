"""Suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


def did_you_mean(word: str, known: Iterable[str], most: int = 20) -> str:
    """Return `; did you mean "krum"?`, or the known names if none is similar.

    >>> nearest("kurm", ["mean", "krum"])
    '; did you mean "krum"?'
    >>> nearest("xyz", ["mean", "krum"])
    '; there is "mean", "krum"'
    """
    names = list(known)
    near = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.55)
    if near:
        return f'; did you mean "{near[0]}"?'
    if not names:
        return "; there is none"
    listed = ", ".join(f'"{name}"' for name in names[:most])
    return f"; there is {listed}" + (f" and {len(names) - most} more" if len(names) > most else "")


def missing_file(path: str | Path) -> str:
    """Return the message for a file that does not exist, with a file of a similar name if there is one."""
    path = Path(path)
    others = [each.name for each in path.parent.iterdir() if each.is_file()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, others, n=1)
    remedy = f'did you mean "{path.with_name(near[0])}"?' if near else "check its name and folder"
    return f"file {path} does not exist; {remedy}"
