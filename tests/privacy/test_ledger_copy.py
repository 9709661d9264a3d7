"""Copies of ledgers come back, and nothing says less than before."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from fedrank.privacy.accounting import GaussianEvent
from fedrank.privacy.guarantees import Guarantee
from fedrank.privacy.ledger import PARTICIPANTS
from fedrank.privacy.ledger_copy import LedgerCopy
from fedrank.privacy.population import TERMS, Account, LedgerTerms, Population, open_ledger

LEDGER_TERMS = LedgerTerms(3, 1e-5, (Guarantee("server", GaussianEvent(2.0), "noise"),))


def charge(folder: Path, *rounds: int, terms: LedgerTerms = LEDGER_TERMS) -> None:
    with open_ledger(folder, terms) as ledger:
        for number in rounds:
            ledger.reserve({number: np.array([0, 1])})
            ledger.begun(number)


def charged(folder: Path) -> int:
    found = Account.read(folder)
    assert found is not None
    return found.rounds


@pytest.fixture
def both(tmp_path):
    """A ledger of two rounds, and a copy of it elsewhere."""
    charge(tmp_path / "run" / "ledger", 1, 2)
    shutil.copytree(tmp_path / "run" / "ledger", tmp_path / "copy" / "ledger")
    return tmp_path / "run" / "ledger", LedgerCopy(tmp_path / "copy" / "ledger")


def test_a_missing_ledger_comes_back_whole(both):
    ledger, copy = both
    shutil.rmtree(ledger)
    assert copy.restore_into(ledger) == "was missing and was restored"
    assert charged(ledger) == 2


def test_one_that_says_more_stays(both):
    ledger, copy = both
    charge(ledger, 3)
    assert copy.restore_into(ledger) == ""
    assert charged(ledger) == 3


def test_one_that_says_less_is_replaced(both):
    ledger, copy = both
    charge(copy.path, 3, 4)
    assert "recorded less than its copy" in copy.restore_into(ledger)
    assert charged(ledger) == 4


def test_where_both_say_something_both_count_and_only_once(both, tmp_path):
    ledger, copy = both
    charge(ledger, 3)
    charge(copy.path, 4)
    again = LedgerCopy(tmp_path / "again" / "ledger")
    shutil.copytree(copy.path, again.path)
    assert copy.restore_into(ledger).endswith("the copy as ledger-1")
    assert [charged(ledger.parent / name) for name in ("ledger", "ledger-1")] == [3, 3]
    assert again.restore_into(ledger) == ""
    assert sorted(path.name for path in ledger.parent.iterdir()) == ["ledger", "ledger-1"]


def test_a_damaged_ledger_is_set_aside(both):
    ledger, copy = both
    (ledger / PARTICIPANTS).write_bytes(b"no ledger")
    assert not LedgerCopy(ledger).is_whole()
    assert "was damaged" in copy.restore_into(ledger)
    assert charged(ledger) == 2
    assert (ledger.parent / "damaged-ledger-1").is_dir()


def test_a_price_that_was_lost_comes_back(both):
    ledger, copy = both
    (ledger / TERMS).unlink()
    assert copy.is_whole()
    assert "had lost the cost of its charges" in copy.restore_into(ledger)
    assert charged(ledger) == 2


@pytest.mark.parametrize(
    ("name", "holds"),
    [("people/run/ledger/terms.json", True), ("ledger-12/terms.json", True), ("ledger/other", False),
     ("ledger-x/terms.json", False), ("terms.json", False)],
)  # fmt: skip
def test_files_of_a_ledger_are_known_by_their_names(name, holds):
    assert LedgerCopy.holds(PurePosixPath(name)) is holds


def test_sizes_of_ledgers_change_when_anybody_pays(both, tmp_path):
    ledger, copy = both
    people = Population(tmp_path, 3, 1e-5, 1.0)
    before = people.ledger_sizes(but=copy.path)
    assert {str(Path(name).parent) for name, _ in before} == {str(ledger)}
    charge(ledger, 3)
    assert people.ledger_sizes(but=copy.path) != before
