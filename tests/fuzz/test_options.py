"""Numbers that nobody should give to a command."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fedrank.cli import app
from tests.fuzz.options import LINES, WHOLE, numeric

# The command refuses these with a message that names the range, which may depend on what it works on.
CHECKED_INSIDE = {
    "data check --fold", "forget client --client", "model score --client", "model evaluate --client",
    "model export --client", "model estimate --client", "data synth --users", "data synth --documents",
    "data synth --topics", "data synth --days", "trees split --fold",
    "search forget --document", "deploy invite id",
}  # fmt: skip


def test_every_whole_number_has_a_largest() -> None:
    """Except seeds, which may be any."""
    free = {f"{case.command} {case.option}" for case in numeric() if case.numbers is WHOLE and not case.bounded}
    assert {name for name in free if not name.endswith("--seed")} == CHECKED_INSIDE


def test_every_command_with_a_number_is_tried() -> None:
    assert {case.command for case in numeric()} == set(LINES)


@pytest.mark.parametrize("number", ["99999999999999999999", "nan", "inf", "0"])
def test_how_long_to_wait_is_bounded(number: str) -> None:
    done = CliRunner().invoke(app, ["deploy", "run", "small.toml", "--home", "coordinator", "--patience", number])
    assert done.exit_code == 2
    assert "--patience" in done.output
