"""The hooks that build the site, as tests call them."""

from __future__ import annotations

import runpy
import sys
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


@cache
def hook(name: str) -> dict[str, Any]:
    """The names of a hook in docs/, which finds its neighbours as it does when MkDocs loads it."""
    sys.path.insert(0, str(DOCS))
    try:
        return runpy.run_path(str(DOCS / f"{name}.py"))
    finally:
        sys.path.remove(str(DOCS))
