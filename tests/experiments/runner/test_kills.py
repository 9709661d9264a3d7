"""Commands that are killed or find no room wherever they write: a few here, all of them in `make chaos`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import needs


@pytest.mark.process
@pytest.mark.long
@needs.linux
@pytest.mark.parametrize("name", ["run", "private", "build"])
def test_a_disturbed_command_succeeds_when_it_is_given_again(name):
    command = [sys.executable, "-m", "tests.experiments.runner.kills", "--only", name, "--every", "25", "--random", "1"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "All ended as if nobody had disturbed them." in found.stdout
