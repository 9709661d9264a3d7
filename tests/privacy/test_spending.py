"""Spending: everything is noted before it is sent, and no client ever pays more than the budget."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.privacy.accounting import PureEvent
from fedrank.privacy.guarantees import Guarantee
from fedrank.privacy.ledger import Ledger
from fedrank.privacy.spending import MAX_AHEAD, BudgetSpentError, Spending

ALL = np.arange(4)


def guarantee(paid="participation", cost=1.0) -> Guarantee:
    return Guarantee("public", PureEvent(cost), "test", paid)


def everybody(round):
    return ALL


def spend(spending, rounds, draw=everybody) -> int:
    """Rounds until the budget ends."""
    for round in rounds:
        try:
            spending.cohort(round, draw)
        except BudgetSpentError:
            return round - 1
        spending.keep(round, np.full(2, float(round)))
    return rounds[-1]


@pytest.mark.parametrize("paid", ["participation", "round"])
def test_the_budget_ends_the_run(tmp_path, paid):
    with Ledger.open(tmp_path, 4) as ledger:
        spending = Spending(ledger, [guarantee(paid)], rounds=100, delta=1e-5, budget=10.5)
        # At δ = 1e-5 ten or eleven times 1 cost less than their sum, but not much.
        affordable = guarantee(paid).affordable(1e-5, 10.5, 100)
        assert 10 <= affordable < 100
        assert spend(spending, range(1, 101)) == affordable
        assert ledger.rounds() == affordable
        assert ledger.participations().tolist() == [affordable] * 4


def test_the_dearest_promise_decides(tmp_path):
    with Ledger.open(tmp_path, 4) as ledger:
        rows = [guarantee(cost=0.001), Guarantee("server", None, "nothing"), guarantee(cost=3.0)]
        assert spend(Spending(ledger, rows, 100, 0.0, 10), range(1, 101)) == 3  # 3 x 3 <= 10


def test_without_a_budget_nothing_ends(tmp_path):
    with Ledger.open(tmp_path, 4) as ledger:
        assert spend(Spending(ledger, [guarantee(cost=1e6)], 100, 0.0, None), range(1, 101)) == 100
        assert ledger.rounds() == 100


def test_the_client_that_took_part_most_decides(tmp_path):
    """Client 0 is in every cohort, the others every third time."""

    def draw(round):
        return np.array([0, 1 + round % 3])

    with Ledger.open(tmp_path, 4) as ledger:
        assert spend(Spending(ledger, [guarantee()], 100, 0.0, 7), range(1, 101), draw) == 7
        assert ledger.participations().tolist() == [7, 2, 3, 2]


def test_clients_that_did_not_take_part_pay_where_chance_hides_them(tmp_path):
    with Ledger.open(tmp_path, 4) as ledger:
        nobody = np.zeros(0, dtype=np.int64)
        assert spend(Spending(ledger, [guarantee("round")], 100, 0.0, 5), range(1, 101), lambda round: nobody) == 5
        assert ledger.participations().tolist() == [0] * 4


def test_an_interaction_pays_once_and_again_for_every_round_that_was_lost(tmp_path):
    """Rounds done again repeat the same interactions with other noise."""
    with Ledger.open(tmp_path, 4) as ledger:
        assert spend(Spending(ledger, [guarantee("once")], 100, 0.0, 1.5), range(1, 4)) == 3
        Spending(ledger, [], 100, 0.0, None)
        ledger.reserve({4: ALL})
    # A crash: the change of round 4 was never kept.
    with Ledger.open(tmp_path, 4) as ledger:
        assert ledger.rounds() >= 4
        lost = ledger.rounds() - 3
        with pytest.raises(BudgetSpentError):
            Spending(ledger, [guarantee("once")], 100, 0.0, lost + 0.5).cohort(4, everybody)
        assert Spending(ledger, [guarantee("once")], 100, 0.0, lost + 1.5).cohort(4, everybody).tolist() == [0, 1, 2, 3]


def test_a_budget_below_one_round_is_refused(tmp_path):
    with Ledger.open(tmp_path, 4) as ledger:
        with pytest.raises(ValueError, match=r"is less than the cost of one round, ε = 1\.00 against the public"):
            Spending(ledger, [guarantee()], 10, 0.0, 0.5)
        assert ledger.rounds() == 0


def test_rounds_are_on_the_disk_before_anything_is_sent(tmp_path):
    with Ledger.open(tmp_path, 4) as ledger:
        Spending(ledger, [guarantee()], 10, 1e-5, None).cohort(1, everybody)
        # Another process reads the files as they are now: a crash at this moment.
        with Ledger.open(tmp_path, 4) as after:
            assert after.participations().tolist() == [1] * 4


def test_rounds_are_noted_ahead_in_growing_blocks_but_never_beyond_the_end(tmp_path):
    with Ledger.open(tmp_path, 4) as ledger:
        spending = Spending(ledger, [guarantee()], 150, 1e-5, None)
        seen = []
        for round in range(1, 151):
            spending.cohort(round, everybody)
            spending.keep(round, np.zeros(2))
            seen.append(ledger.rounds())
        assert seen[0] == 1
        assert max(noted - round for round, noted in enumerate(seen, 1)) < MAX_AHEAD
        assert seen[-1] == 150


def test_a_noted_cohort_is_used_and_not_drawn_again(tmp_path):
    draws = []

    def draw(round):
        draws.append(round)
        return np.array([round % 4])

    with Ledger.open(tmp_path, 4) as ledger:
        spending = Spending(ledger, [guarantee()], 20, 1e-5, None)
        for round in range(1, 21):
            assert spending.cohort(round, draw).tolist() == [round % 4]
            assert spending.cohort(round, draw).tolist() == [round % 4]
            spending.keep(round, np.zeros(2))
    assert draws == list(range(1, 21))


@pytest.mark.parametrize("crash_after", [1, 2, 3, 5, 8])
def test_after_a_crash_nothing_is_forgotten_and_the_budget_still_holds(tmp_path, crash_after):
    with Ledger.open(tmp_path, 4) as ledger:
        spending = Spending(ledger, [guarantee()], 30, 0.0, 12)
        spend(spending, range(1, crash_after + 1))
        spending.cohort(crash_after + 1, everybody)
        charged = ledger.rounds()
        assert charged > crash_after
    with Ledger.open(tmp_path, 4) as ledger:
        assert ledger.rounds() == charged
        spending = Spending(ledger, [guarantee()], 30, 0.0, 12)
        for round in range(1, crash_after + 1):  # nobody is asked again
            kept = spending.kept(round)
            assert kept.change.tolist() == [round, round]
        assert spending.kept(crash_after + 1) is None
        last = spend(spending, range(crash_after + 1, 31))
        assert ledger.participations().tolist() == [12] * 4
        assert last == crash_after + 12 - charged


def test_a_crash_does_not_end_a_run_that_the_budget_still_pays_for(tmp_path):
    """12 rounds, two of them charged twice, and a budget for 20."""
    with Ledger.open(tmp_path, 4) as ledger:
        ledger.reserve({1: ALL, 2: ALL})
    with Ledger.open(tmp_path, 4) as ledger:
        assert spend(Spending(ledger, [guarantee()], 12, 0.0, 20), range(1, 13)) == 12
        assert ledger.rounds() == 14


def test_a_budget_that_was_spent_in_vain_says_so(tmp_path):
    with Ledger.open(tmp_path, 4) as ledger:
        Spending(ledger, [guarantee()], 10, 0.0, 1).cohort(1, everybody)
    with Ledger.open(tmp_path, 4) as ledger:
        spending = Spending(ledger, [guarantee()], 10, 0.0, 1)
        with pytest.raises(ValueError, match="no model"):
            spending.cohort(1, everybody)
        assert ledger.rounds() == 1
