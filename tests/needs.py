"""What a test needs and a machine may lack: each skip says what is missing and how to get it.

`make test` lists what was missing once, at its end. `FEDRANK_REQUIRE=browser,compiler,data` turns these skips into
failures: `make test-all` fails for what it names and does not find.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from fedrank.kernels.compile import same_bytes_here
from tests.browser import CHROMIUM

# Name of a need -> how to get what is missing. A reason for skipping starts with one of these names.
REMEDIES = {
    "data": "set FEDRANK_DATA to a folder with the data sets of docs/how-to/own-data.md",
    "browser": "install Chromium as `chromium`, for example with apt-get install chromium",
    "compiler": "install a C++ compiler as `g++` or `clang++`, for example with apt-get install g++",
    "latex": "install tectonic or pdflatex, for example with apt-get install texlive-latex-recommended",
    "engine": "set the variables that the docstring of tests/engine/plugin_scores.py names",
    "package": "install it, or all development dependencies with: pip install --editable '.[dev]'",
    "client": "run `make test-clients`",
    "torch": "run `make test-torch`",
    "index": "make a package index reachable for pip",
    "system": "run this test on another kind of system",
}


def reason(need: str, missing: str) -> str:
    return f"{need}: {missing}; {REMEDIES[need]}"


def skip(need: str, missing: str) -> NoReturn:
    """Skip the test or the module that calls this, because something it needs is missing."""
    pytest.skip(reason(need, missing), allow_module_level=True)


def _unless(condition: bool, need: str, missing: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not condition, reason=reason(need, missing))


DATA = os.environ.get("FEDRANK_DATA")
data = _unless(bool(DATA), "data", "FEDRANK_DATA is not set")
browser = _unless(CHROMIUM is not None, "browser", "Chromium was not found")
latex = _unless(any(map(shutil.which, ("tectonic", "pdflatex"))), "latex", "neither tectonic nor pdflatex was found")
bash = _unless(shutil.which("bash") is not None, "system", "bash was not found")
fork = _unless(hasattr(os, "fork"), "system", "processes cannot be forked here")
posix = _unless(os.name == "posix", "system", "this is not a POSIX system")
linux = _unless(sys.platform == "linux", "system", "this is not Linux")


def data_folder(path: str) -> Path:
    """A file or folder below `FEDRANK_DATA`, or skip."""
    if not DATA:
        skip("data", "FEDRANK_DATA is not set")
    found = Path(DATA) / path
    if not found.exists():
        skip("data", f"{path} is not below FEDRANK_DATA")
    return found


def same_bytes() -> None:
    """Skip on architectures whose results may differ in the last bit."""
    if not same_bytes_here():
        skip("system", f"on {platform.machine()} the last bits may differ")
