"""A real `fedrank trees grow` under kill -9: a few kills here, a long series in `make chaos`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import needs

pytestmark = pytest.mark.process

pytest.importorskip("lightgbm")
pytest.importorskip("cryptography")


@needs.linux
def test_a_killed_command_ends_with_the_forest_that_was_grown_in_one_go():
    command = [sys.executable, "-m", "tests.trees.grow_kills", "--count", "3", "--trees", "10"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "3 kills" in found.stdout
    assert "points at which it can die: the forest is the same after each" in found.stdout
