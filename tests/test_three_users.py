"""What three users do, from an empty folder: the script says whether everything that they were told was said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parent.parent / "examples" / "three_users.sh"


def told(folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPT), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHON": sys.executable})


@needs.bash
def test_three_users_come_to_their_end(tmp_path: Path) -> None:
    for package in ("dp_accounting", "cryptography", "bm25s"):
        pytest.importorskip(package, reason="pip install 'fedrank[privacy,logs]'")
    done = told(tmp_path / "users")
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr}"
    assert done.stdout.count("########") == 3
    assert "All three users are done." in done.stdout


@needs.bash
def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = told(tmp_path)
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
