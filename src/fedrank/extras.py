"""Packages that only some of fedrank needs, and what to install where one is missing.

fedrank itself may have come from a checkout, a file or an index; so what is named is what is missing, and not fedrank.
"""

from __future__ import annotations

import shlex

# The extras of pyproject.toml, as a test checks.
EXTRAS: dict[str, tuple[str, ...]] = {
    "logs": ("bm25s>=0.2", "PyStemmer>=2.2.0.2"),
    "privacy": ("dp-accounting>=0.5", "cryptography>=45"),
    "trees": ("lightgbm>=4.4", "optuna>=3.5"),
    "onnx": ("onnx>=1.14",),
    "deploy": ("dp-accounting>=0.5", "cryptography>=45", "nvflare>=2.9,<2.10"),
    "search": ("tantivy>=0.27", "starlette>=0.45", "uvicorn>=0.30", "PyStemmer>=2.2.0.2", "watchdog>=4"),
    "watch": ("starlette>=0.45", "uvicorn>=0.30"),
    "gpu": ("cupy-cuda13x>=14.2",),
    "dask": ("distributed>=2024.1",),
    "slurm": ("submitit>=1.5.1",),
    "ir-datasets": ("ir-datasets>=0.5",),
    "xgboost": ("xgboost-cpu>=3.2",),
}


def missing(what: str, extra: str) -> ImportError:
    """The error that something cannot be done without the packages of an extra, which it names.

    >>> str(missing("exports to ONNX need the package onnx", "onnx"))
    "exports to ONNX need the package onnx: pip install 'onnx>=1.14'"
    """
    return ImportError(f"{what}: pip install {' '.join(map(shlex.quote, EXTRAS[extra]))}")
