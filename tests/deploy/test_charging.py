"""The ledger of a site over all runs."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.deploy.charging import Charging
from fedrank.privacy.accounting import GaussianEvent, epsilon
from fedrank.privacy.guarantees import Guarantee
from fedrank.privacy.ledger import LedgerError
from fedrank.wire import Refused

DELTA, EVENT = 1e-5, GaussianEvent(3.0)
ALL = np.array([0])


def charging(folder, run, limit, unit="client"):
    return Charging(folder / "people", run, 1, [Guarantee("server", EVENT, "a test", unit=unit)], DELTA, limit)


def test_runs_add_up_and_the_limit_is_that_of_all(tmp_path):
    limit = epsilon(EVENT, 7, DELTA) + 1e-9
    first = charging(tmp_path, "a", limit)
    for round in range(1, 5):
        first.charge(round, ALL)
    first.close()
    second = charging(tmp_path, "b", limit)
    for round in range(1, 4):
        second.charge(round, ALL)
    assert second.spent() == {"server": pytest.approx(epsilon(EVENT, 7, DELTA))}
    with pytest.raises(Refused, match="limit is"):
        second.charge(4, ALL)
    assert second.ledger.rounds() == 3
    second.close()


def test_what_is_refused_is_not_even_written(tmp_path):
    one = charging(tmp_path, "a", epsilon(EVENT, 1, DELTA) / 2)
    written = []
    with pytest.raises(Refused, match="limit is"):
        one.charge(1, ALL, first=lambda: written.append(1))
    assert (written, one.charged(1)) == ([], False)
    one.close()


def test_prices_of_different_units_are_not_added_up(tmp_path):
    first = charging(tmp_path, "a", 50.0)
    first.charge(1, ALL)
    first.close()
    second = charging(tmp_path, "b", 50.0, unit="person")
    with pytest.raises(Refused, match="cannot be added up"):
        second.charge(1, ALL)
    second.close()


@pytest.mark.parametrize("name", ["a/ledger/participants.log", "a/ledger/terms.json", "people.json"])
def test_a_site_of_whose_ledgers_a_file_is_missing_charges_nobody(tmp_path, name):
    first, second = charging(tmp_path, "a", 50.0), charging(tmp_path, "b", 50.0)
    first.charge(1, ALL)
    first.close()
    (tmp_path / "people" / name).unlink()
    if name != "people.json":  # which is read when a run is opened
        with pytest.raises(LedgerError, match=r"is missing.*[Rr]estore"):
            second.charge(1, ALL)
        assert second.ledger.rounds() == 0
    second.close()
    with pytest.raises(LedgerError, match=r"is missing.*[Rr]estore"):
        charging(tmp_path, "c", 1000.0 if name == "people.json" else 50.0).charge(1, ALL)
