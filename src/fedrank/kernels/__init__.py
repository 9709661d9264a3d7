"""Compiled loops: arrays and numbers in, arrays out; no objects, no global state.

Modules are imported on first use (`kernels.sums.length(...)`), so other commands do not load the compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrank.kernels import chance as chance
    from fedrank.kernels import compile as compile
    from fedrank.kernels import elementary as elementary
    from fedrank.kernels import evolution as evolution
    from fedrank.kernels import lambdarank as lambdarank
    from fedrank.kernels import logged as logged
    from fedrank.kernels import measures as measures
    from fedrank.kernels import pdgd as pdgd
    from fedrank.kernels import rankers as rankers
    from fedrank.kernels import records as records
    from fedrank.kernels import robust as robust
    from fedrank.kernels import rounds as rounds
    from fedrank.kernels import show as show
    from fedrank.kernels import sums as sums
    from fedrank.kernels import twister as twister


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return import_module(f"fedrank.kernels.{name}")
