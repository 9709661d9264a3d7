"""What to install where a package is missing that only some of fedrank needs."""

from __future__ import annotations


def missing_extra(what: str, extra: str) -> ImportError:
    """The error that something needs the packages of an extra of pyproject.toml.

    pip keeps the fedrank that is installed, wherever it came from, and adds what the extra lists.

    >>> str(missing("exports to ONNX need the package onnx", "onnx"))
    "exports to ONNX need the package onnx: pip install 'fedrank[onnx]'"
    """
    return ImportError(f"{what}: pip install 'fedrank[{extra}]'")
