"""Federated learning to rank: train one ranker together, without moving documents, queries or clicks.

Functions and records are attributes, such as `fedrank.simulate`; methods are grouped by family, such as
`fedrank.aggregators.Krum`. `__init__.pyi` lists them all. Names are imported on first use, so `import fedrank` is fast.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

__version__ = "0.2.0.dev0"


@cache
def _stub() -> list[Any]:
    import ast
    from pathlib import Path

    return ast.parse(Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8")).body


@cache
def _listed() -> dict[str, Any]:
    """Map every name to its module; for a family, the names of its methods."""
    import ast

    def homes(statements: list[ast.stmt]) -> dict[str, str]:
        imports = [one for one in statements if isinstance(one, ast.ImportFrom)]
        return {name.name: str(one.module) for one in imports for name in one.names}

    return homes(_stub()) | {one.name: homes(one.body) for one in _stub() if isinstance(one, ast.ClassDef)}


def _family_doc(name: str) -> str:
    """Return the docstring of a family from the stub."""
    import ast

    return next(ast.get_docstring(one) or "" for one in _stub() if getattr(one, "name", "") == name)


@cache
def _family(name: str) -> Any:
    """Return the methods of a family, as attributes."""
    from types import SimpleNamespace

    class Family(SimpleNamespace):
        __doc__ = _family_doc(name)

        def __repr__(self) -> str:
            return f"<fedrank.{name}: {', '.join(vars(self))}>"

    return Family(**{method: getattr(import_module(home), method) for method, home in _listed()[name].items()})


def __dir__() -> list[str]:
    return sorted({*_listed(), *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_listed())
    if name.startswith("__") or name not in _listed():
        import sys

        raise AttributeError(f"module 'fedrank' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    home = _listed()[name]
    if not isinstance(home, str):
        return _family(name)
    if home == __name__:
        return import_module(f"{home}.{name}")
    module = import_module(home)
    return getattr(module, name) if hasattr(module, name) else import_module(f"{home}.{name}")
