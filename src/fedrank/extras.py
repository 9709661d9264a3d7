"""Error messages for missing optional packages."""

from __future__ import annotations


def missing_extra(what: str, extra: str) -> ImportError:
    """Return the error for a feature that needs the packages of an extra in pyproject.toml.

    pip keeps the installed fedrank and adds the packages of the extra.

    >>> str(missing("exports to ONNX need the package onnx", "onnx"))
    "exports to ONNX need the package onnx: pip install 'fedrank[onnx]'"
    """
    return ImportError(f"{what}: pip install 'fedrank[{extra}]'")
