"""Federated learning to rank: train one ranker together, without moving documents, queries or clicks.

Verbs and records stand here, such as `fedrank.simulate`, and methods under the name of their family, such as
`fedrank.aggregators.Krum`. `__init__.pyi` lists them all. Names are imported when they are first used, so that
`import fedrank` costs nothing.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

__version__ = "0.1.0"


@cache
def _listed() -> dict[str, Any]:
    """Where every name is at home: a module, or for a family those of its methods."""
    import ast
    from pathlib import Path

    def homes(statements: list[ast.stmt]) -> dict[str, str]:
        imports = [one for one in statements if isinstance(one, ast.ImportFrom)]
        return {name.name: str(one.module) for one in imports for name in one.names}

    stub = ast.parse(Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8")).body
    families = {one.name: homes(one.body) for one in stub if isinstance(one, ast.ClassDef)}
    return homes(stub) | families


def __dir__() -> list[str]:
    return sorted(_listed())


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name.startswith("__") or name not in _listed():
        raise AttributeError(f"module 'fedrank' has no attribute {name!r}")
    home = _listed()[name]
    if isinstance(home, str):
        return getattr(import_module(home), name)
    from types import SimpleNamespace

    return SimpleNamespace(**{method: getattr(import_module(place), method) for method, place in home.items()})
