"""A ledger belongs to people: what all runs cost them together, who is refused, and what is left of a deleted one."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat

import numpy as np
import pytest

from fedrank.privacy.accounting import ConcentratedEvent, GaussianEvent, LaplaceEvent, PureEvent, composed, epsilon
from fedrank.privacy.guarantees import Guarantee
from fedrank.privacy.ledger import Charges, Ledger, LedgerError
from fedrank.privacy.population import (
    FORGOTTEN,
    Account,
    LedgerTerms,
    Population,
    forget_ledgers,
    forgotten,
    ledgers_below,
    open_ledger,
    spent_together,
)
from fedrank.privacy.spending import BudgetSpentError, SharedSpending

ALL = np.arange(4)
DELTA = 1e-5


def terms(event=None, against="public", paid="participation", spec="") -> LedgerTerms:
    event = GaussianEvent(3.0) if event is None else event
    return LedgerTerms(4, DELTA, (Guarantee(against, event, "test", paid),), spec)


def account(said, counts, rounds=None) -> Account:
    counts = np.array(counts)
    return Account(said, counts, int(counts.max()) if rounds is None else rounds, 0)


# Composed, then priced


def test_many_kinds_of_people_are_priced_as_if_one_had_paid_most_of_everything():
    """Everybody's own sum would take too long; more than anybody paid is never too little."""

    def said(cost, counts):
        return Account(LedgerTerms(70, DELTA, (Guarantee("public", PureEvent(cost), "test"),)), counts, 70, 0)

    up, most = np.arange(1, 71), np.full(70, 70)
    assert spent_together([said(0.1, up), said(0.2, up[::-1])], DELTA) == spent_together(
        [said(0.1, most), said(0.2, most)], DELTA
    )


def test_an_interaction_is_paid_again_for_rounds_that_were_lost():
    said = terms(PureEvent(1.0), paid="once")
    [guarantee] = said.promises
    assert Account(said, np.array([9, 2, 0, 4]), 9, lost=3).times(guarantee).tolist() == [4, 2, 0, 4]


def test_events_that_differ_are_composed_and_then_priced():
    """Two Gaussians are one with the root of the sum of squares, which costs less than the sum of their prices."""
    one, other = GaussianEvent(3.0), GaussianEvent(5.0)
    cost = composed({one: 30, other: 40}, DELTA)
    together = GaussianEvent((30 / 9 + 40 / 25) ** -0.5)
    assert cost == pytest.approx(epsilon(together, 1, DELTA))
    assert max(epsilon(one, 30, DELTA), epsilon(other, 40, DELTA)) < cost
    assert cost < epsilon(one, 30, DELTA) + epsilon(other, 40, DELTA)


@pytest.mark.parametrize(
    "events",
    [
        {GaussianEvent(2.0, 0.1): 100, GaussianEvent(3.0): 4},
        {LaplaceEvent(4.0): 10, GaussianEvent(5.0): 10},
        {PureEvent(0.3): 10, ConcentratedEvent(0.02): 20},
        {PureEvent(0.3): 10, GaussianEvent(2.0, 0.05): 30},
    ],
)
def test_together_costs_at_least_each_and_at_most_the_sum(events):
    cost = composed(events, DELTA)
    assert max(epsilon(event, times, DELTA) for event, times in events.items()) <= cost + 1e-6
    assert cost <= sum(epsilon(event, times, DELTA / 2) for event, times in events.items()) + 1e-9


def test_what_holds_without_a_chance_of_failure_comes_on_top_of_the_rest():
    noised = epsilon(GaussianEvent(1.0), 3, DELTA)
    cost = composed({GaussianEvent(1.0): 3, PureEvent(0.5): 2}, DELTA)
    assert noised < cost <= noised + 1.0
    assert composed({GaussianEvent(1.0): 3, PureEvent(0.0): 2}, DELTA) == noised


def test_nothing_costs_nothing_and_one_event_costs_what_it_did():
    assert composed({}, DELTA) == 0.0
    assert composed({GaussianEvent(2.0): 7, PureEvent(1.0): 0}, DELTA) == epsilon(GaussianEvent(2.0), 7, DELTA)
    assert composed({PureEvent(0.5): 2, PureEvent(0.25): 4}, 0.0) == 2.0


def test_whoever_paid_most_over_all_runs_decides():
    """Nobody is in both runs: it is not the sum of the two maxima."""
    said = terms()
    apart = spent_together([account(said, [10, 0, 0, 0]), account(said, [0, 10, 0, 0])], DELTA)
    both = spent_together([account(said, [10, 0, 0, 0]), account(said, [10, 0, 0, 0])], DELTA)
    assert apart == {"public": pytest.approx(epsilon(GaussianEvent(3.0), 10, DELTA))}
    assert both == {"public": pytest.approx(epsilon(GaussianEvent(3.0), 20, DELTA))}


def test_a_run_that_claims_nothing_voids_what_another_promised():
    shown = LedgerTerms(4, DELTA, (Guarantee("server", None, "the server sees all"),))
    assert spent_together([account(shown, [5] * 4)], DELTA) == {}  # nothing was promised against it
    found = spent_together([account(shown, [5] * 4), account(terms(against="server"), [5] * 4)], DELTA)
    assert found == {"server": math.inf}


def test_chance_that_hides_people_is_paid_by_all_of_them():
    said = terms(GaussianEvent(2.0, 0.5), paid="round")
    found = spent_together([account(said, [1, 0, 0, 0], rounds=6)] * 2, DELTA)
    assert found["public"] == pytest.approx(epsilon(GaussianEvent(2.0, 0.5), 12, DELTA))


# A limit for all runs


def spend(folder, name, rounds, limit, said=None, cohort=ALL):
    """Rounds that a run on these people could do."""
    said = terms() if said is None else said
    population = Population.open(folder, 4, DELTA, limit)
    place = folder / name / "ledger"
    done = 0
    with open_ledger(place, said) as ledger:
        spending = SharedSpending(ledger, said, rounds, population, place)
        try:
            for round in range(1, rounds + 1):
                spending.cohort(round, lambda _: cohort)
                spending.keep(round, np.zeros(2))
                done = round
        except BudgetSpentError:
            pass
        ledger.give_back()
    return done


def test_runs_on_the_same_people_add_up_and_stop_at_the_limit(tmp_path):
    limit = epsilon(GaussianEvent(3.0), 50, DELTA) + 1e-6
    assert spend(tmp_path / "town", "a", 30, limit) == 30
    assert spend(tmp_path / "town", "b", 30, limit) == 20
    with pytest.raises(ValueError, match=r"'town'.*public.*limit is ε"):
        spend(tmp_path / "town", "c", 30, limit)
    population = Population.read(tmp_path / "town")
    assert spent_together(population.accounts(), DELTA)["public"] <= limit


def test_other_people_of_the_population_may_still_be_asked(tmp_path):
    limit = epsilon(GaussianEvent(3.0), 20, DELTA) + 1e-6
    assert spend(tmp_path / "town", "a", 30, limit, cohort=np.array([0, 1])) == 20
    assert spend(tmp_path / "town", "b", 30, limit, cohort=np.array([2, 3])) == 20


def test_mechanisms_that_differ_share_the_limit(tmp_path):
    limit = epsilon(GaussianEvent(3.0), 20, DELTA) + 1e-6  # twenty at 3 are eighty at 6
    assert spend(tmp_path / "town", "a", 10, limit) == 10
    assert spend(tmp_path / "town", "b", 100, limit, terms(GaussianEvent(6.0))) == 40


def test_what_people_were_promised_is_not_raised_later(tmp_path):
    Population.open(tmp_path / "town", 4, DELTA, 8.0)
    Population.open(tmp_path / "town", 4, DELTA, 4.0)  # a run that wants less
    with pytest.raises(ValueError, match=r"ε = 8.*privacy.budget = 9"):
        Population.open(tmp_path / "town", 4, DELTA, 9.0)
    with pytest.raises(ValueError, match=r"clients.count = 4.*has 5"):
        Population.open(tmp_path / "town", 5, DELTA, 8.0)
    with pytest.raises(ValueError, match=r"privacy.delta"):
        Population.open(tmp_path / "town", 4, 1e-6, 8.0)


def test_a_damaged_population_is_refused(tmp_path):
    Population.open(tmp_path / "town", 4, DELTA, 8.0)
    said = {"people": 4, "delta": DELTA, "limit": 8.0}
    odd = [{}, [], 1, said | {"people": -1}, said | {"people": 1e13}, said | {"people": math.inf}, said | {"delta": 1}]
    for content in (*odd, said | {"limit": None}, said | {"limit": math.nan}, said | {"limit": 10**400}):
        (tmp_path / "town" / "people.json").write_text(json.dumps(content))
        with pytest.raises(LedgerError, match=r"people.json cannot be read"):
            Population.open(tmp_path / "town", 4, DELTA, 8.0)


# Ledgers


def test_a_ledger_is_read_while_another_process_writes_to_it(tmp_path):
    with Ledger.open(tmp_path, 4) as ledger:
        ledger.reserve({1: ALL, 2: np.array([0])})
        before = (tmp_path / "participants.log").read_bytes()
        charges = Charges.read(tmp_path, 4)
        assert charges.participations.tolist() == [2, 1, 1, 1]
        assert (charges.rounds, charges.lost) == (2, 0)
        assert (tmp_path / "participants.log").read_bytes() == before
    with Ledger.open(tmp_path, 4) as ledger:  # as after a crash
        ledger.reserve({2: ALL})
    assert Charges.read(tmp_path, 4).lost == 1
    with (tmp_path / "participants.log").open("ab") as file:
        file.write(b"half a rec")
    assert Charges.read(tmp_path, 4).rounds == 3


def test_a_ledger_whose_charges_cost_something_else_is_set_aside_and_counts_on(tmp_path):
    folder = tmp_path / "run" / "ledger"
    for said in (terms(), terms(GaussianEvent(6.0)), terms(GaussianEvent(6.0))):
        with open_ledger(folder, said) as ledger:
            ledger.reserve({1: ALL})
    assert [path.name for path in ledgers_below(tmp_path)] == ["ledger", "ledger-1"]
    accounts = [Account.read(path) for path in ledgers_below(tmp_path)]
    assert [one.rounds for one in accounts] == [2, 1]
    expected = composed({GaussianEvent(3.0): 1, GaussianEvent(6.0): 2}, DELTA)
    assert spent_together(accounts, DELTA)["public"] == pytest.approx(expected)


def test_a_truncated_replaced_or_missing_ledger_differs_from_its_hash(tmp_path):
    people = Population.open(tmp_path / "town", 4, DELTA, 100.0)
    ledger = people.ledger("run")
    log = ledger / "participants.log"
    copies = []
    for round in (1, 2):
        with open_ledger(ledger, terms(), hashed=True) as opened:
            opened.reserve({round: ALL})
        copies.append(log.read_bytes())
    with open_ledger(ledger, terms()) as opened:  # killed: the hash is that of the run before
        opened.reserve({3: ALL})
    assert [one.rounds for one in people.accounts()] == [3]
    for content in (copies[0], copies[0][:-5], copies[1][:-1] + b"x", b""):
        log.write_bytes(content)
        with pytest.raises(LedgerError, match=r"was truncated or replaced since its last run ended .* restore both"):
            people.accounts()
    shutil.rmtree(ledger)
    with pytest.raises(LedgerError, match="is missing, or was truncated"):
        people.accounts()


def test_changes_of_another_run_of_the_same_name_are_not_used(tmp_path):
    folder = tmp_path / "ledger"
    with open_ledger(folder, terms(spec="one")) as ledger:
        ledger.reserve({1: ALL})
        ledger.keep(1, np.ones(3))
    with open_ledger(folder, terms(spec="one")) as ledger:
        assert ledger.kept(1) is not None
    with open_ledger(folder, terms(spec="other")) as ledger:
        assert ledger.kept(1) is None
        assert ledger.rounds() == 1  # was sent, and stays charged


def test_terms_survive_a_file(tmp_path):
    for event in (GaussianEvent(2.0, 0.5), ConcentratedEvent(0.1), PureEvent(1.0), None):
        said = LedgerTerms(
            4, DELTA, (Guarantee("server", event, "because", "round", "interaction", slack=1e-9),), "spec"
        )
        said.write(tmp_path)
        assert LedgerTerms.read(tmp_path) == said
    (tmp_path / "terms.json").write_text("{")
    with pytest.raises(LedgerError, match=r"terms.json"):
        LedgerTerms.read(tmp_path)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("people", (math.inf, 10**13, -1, 2.5, True, None, "4", 10**400)),
        ("delta", (1, -1, math.nan, None, "x", [])),
        ("spec", (None, 1, [])),
        ("promises", (1, None, [1], [None], ["event"], [[]], [{}])),
        ("event", (1, [], "GaussianEvent", {}, {"name": []}, {"name": "GaussianEvent"}, {"name": "Other"})),
        ("multiplier", (1e308, 1e-308, 1e20, -1, 0, math.inf, math.nan, None, "x", True)),
        ("sampling", (0, 2, None, "x", math.nan)),
        ("slack", (None, [], -1, math.inf, math.nan, "x", {})),
        ("against", (None, 1, [])),
        ("paid", (None, "never", [])),
        ("unit", (None, "cat", {})),
        ("because", (None, 1)),
    ],
)
def test_terms_that_make_no_sense_are_refused(tmp_path, key, values):
    with open_ledger(tmp_path / "ledger", terms(GaussianEvent(3.0, 0.5))) as ledger:
        ledger.reserve({1: ALL})
    file = tmp_path / "ledger" / "terms.json"
    before = json.loads(file.read_text())
    for value in values:
        content = json.loads(json.dumps(before))
        guarantee = content["promises"][0]
        [place] = [table for table in (content, guarantee, guarantee["event"]) if key in table]
        place[key] = value
        file.write_text(json.dumps(content))
        with pytest.raises(LedgerError, match=r"terms.json cannot be read .* restore it from a copy"):
            Account.read(tmp_path / "ledger")


@pytest.mark.parametrize(
    "event",
    [
        {"name": "ConcentratedEvent", "rho": 0.1, "pure": 1e200},
        {"name": "PureEvent", "epsilon": 1e308},
        {"name": "ResponseEvent", "truth": 5e-324},
        {"name": "ResponseEvent", "truth": 0.9, "values": 10**30},
        {"name": "ResponseEvent", "truth": 0.9, "answers": 10**13},
        {"name": "ResponseEvent", "truth": 0.9, "answers": 2.5},
        {"name": "LaplaceEvent", "multiplier": 1e-155},
    ],
)
def test_events_that_cannot_be_priced_are_refused(tmp_path, event):
    """Their price would overflow, or take for ever."""
    terms().write(tmp_path)
    content = json.loads((tmp_path / "terms.json").read_text())
    content["promises"][0]["event"] = event
    (tmp_path / "terms.json").write_text(json.dumps(content))
    with pytest.raises(LedgerError, match=r"terms.json cannot be read"):
        LedgerTerms.read(tmp_path)


def test_a_pipe_in_place_of_a_file_of_a_ledger_is_not_waited_for(tmp_path):
    with open_ledger(tmp_path, terms()) as ledger:
        ledger.reserve({1: ALL})
    for name in ("participants.log", "changes.log", "terms.json"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
        with pytest.raises(ValueError, match="is a pipe"), open_ledger(tmp_path, terms()):
            pass
        with pytest.raises(ValueError, match="is a pipe"):
            Account.read(tmp_path)
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(content)


# Files that are missing or shortened


def charged_ledger(folder):
    """A population with one ledger of six rounds, the changes of which are kept."""
    spend(folder, "a", 6, 100.0)
    return folder / "a" / "ledger"


@pytest.mark.parametrize("name", ["participants.log", "terms.json"])
def test_a_ledger_without_one_of_its_files_is_an_error(tmp_path, name):
    ledger = charged_ledger(tmp_path / "town")
    (ledger / name).unlink()
    message = rf"{name} is missing.* [Rr]estore it from a copy"
    assert ledgers_below(tmp_path) == [ledger]
    with pytest.raises(LedgerError, match=message):
        Account.read(ledger)
    with pytest.raises(LedgerError, match=message):
        Population.read(tmp_path / "town").accounts()
    with pytest.raises(LedgerError, match=message), open_ledger(ledger, terms()):
        pass
    with pytest.raises(LedgerError, match=message):
        spend(tmp_path / "town", "b", 6, 100.0)
    assert not (ledger / name).exists()


def test_a_ledger_of_which_only_the_changes_are_left_is_an_error(tmp_path):
    ledger = charged_ledger(tmp_path / "town")
    for name in ("participants.log", "terms.json"):
        (ledger / name).unlink()
    with pytest.raises(LedgerError, match=r"terms.json is missing"):
        Population.read(tmp_path / "town").accounts()


@pytest.mark.parametrize("size", [0, 10, 32, 60, 100, 104, 200])
def test_a_log_that_is_shorter_than_the_changes_beside_it_show_is_an_error(tmp_path, size):
    ledger = charged_ledger(tmp_path / "town")
    log = ledger / "participants.log"
    assert log.stat().st_size > size
    os.truncate(log, size)
    with pytest.raises(LedgerError, match=r"participants.log .* [Rr]estore it from a copy"):
        Account.read(ledger)
    with pytest.raises(LedgerError, match=r"participants.log"), open_ledger(ledger, terms()):
        pass
    assert log.stat().st_size == size, "what is left is evidence"


@pytest.mark.parametrize("half", [1, 20, 32, 35])
def test_a_record_whose_writing_was_cut_short_is_no_error(tmp_path, half):
    """As `kill -9` leaves it: a reservation that had not ended, so that nothing was sent."""
    ledger = charged_ledger(tmp_path / "town")
    whole = (ledger / "participants.log").read_bytes()
    with Ledger.open(ledger, 4) as opened:
        opened.reserve({7: ALL})
    more = (ledger / "participants.log").read_bytes()[len(whole) :]
    assert half < len(more)
    (ledger / "participants.log").write_bytes(whole + more[:half])
    assert Account.read(ledger).rounds == 6
    with open_ledger(ledger, terms()) as opened:
        assert opened.rounds() == 6
        assert opened.kept(6) is not None


@pytest.mark.parametrize("at", ["nothing", "lock", "logs"])
def test_a_ledger_whose_beginning_was_interrupted_is_begun(tmp_path, at):
    """Logs are created before terms.json, so that what is missing then was never there."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    if at == "lock":
        (folder / "lock").touch()
    if at == "logs":
        Ledger.open(folder, 4).close()
    assert Account.read(folder) is None
    with open_ledger(folder, terms()) as ledger:
        ledger.reserve({1: ALL})
    assert Account.read(folder).rounds == 1


def test_changes_that_are_missing_cost_nothing_but_themselves(tmp_path):
    ledger = charged_ledger(tmp_path / "town")
    (ledger / "changes.log").unlink()
    assert Account.read(ledger).rounds == 6
    with open_ledger(ledger, terms()) as opened:
        assert opened.rounds() == 6


@pytest.mark.parametrize("left", ["ledgers", "the record of what was forgotten"])
def test_people_who_were_charged_are_not_promised_anything_new(tmp_path, left):
    charged_ledger(tmp_path / "town")
    if left != "ledgers":
        forget_ledgers(tmp_path / "town", "a test")
    (tmp_path / "town" / "people.json").unlink()
    for look in (lambda: Population.find(tmp_path / "town"), lambda: spend(tmp_path / "town", "b", 1, 1000.0)):
        with pytest.raises(LedgerError, match=r"people.json is missing.*restore the file from a copy"):
            look()
    assert not (tmp_path / "town" / "people.json").exists()


def test_a_population_that_was_not_begun_is_none(tmp_path):
    assert Population.find(tmp_path / "town") is None


def test_a_forgotten_ledger_goes_at_once(tmp_path, monkeypatch):
    """One of which only some files are gone would be an error to all others."""
    charged_ledger(tmp_path / "town")
    monkeypatch.setattr("shutil.rmtree", lambda path: None)  # killed before the first file is deleted
    forget_ledgers(tmp_path / "town", "a test")
    assert Population.read(tmp_path / "town").accounts() == []


def test_a_place_that_no_file_has_is_not_given_back(tmp_path):
    from fedrank.privacy.ledger import BACK, COHORTS, _Log

    log = _Log(tmp_path / "participants.log", COHORTS, 4)
    log.append(BACK, 0, 0, np.array([2**64 - 1], "<u8").tobytes())
    log.file.close()
    with pytest.raises(LedgerError, match="which does not exist"):
        Charges.read(tmp_path, 4)


# Forgetting


def test_forgetting_needs_a_reason_and_leaves_a_record(tmp_path):
    spend(tmp_path / "town", "a", 5, 100.0)
    with pytest.raises(ValueError, match=r"reason"):
        forget_ledgers(tmp_path / "town", " ")
    assert len(ledgers_below(tmp_path)) == 1
    forget_ledgers(tmp_path / "town", "a test")
    assert ledgers_below(tmp_path) == []
    [record] = forgotten(tmp_path / "town")
    assert (record["because"], record["rounds"], record["participations"]) == ("a test", 5, 20)
    assert record["epsilon"]["public"] == pytest.approx(epsilon(GaussianEvent(3.0), 5, DELTA))
    assert stat.S_IMODE((tmp_path / "town" / FORGOTTEN).stat().st_mode) == 0o600
    spend(tmp_path / "town", "a", 5, 100.0)
    forget_ledgers(tmp_path / "town", "again")
    assert [one["because"] for one in forgotten(tmp_path / "town")] == ["a test", "again"]
    with pytest.raises(FileNotFoundError, match=r"no ledger"):
        forget_ledgers(tmp_path / "town", "a third time")


def test_a_ledger_in_use_is_not_forgotten(tmp_path):
    with open_ledger(tmp_path / "ledger", terms()) as ledger:
        ledger.reserve({1: ALL})
        with pytest.raises(FileExistsError, match="is writing to"):
            forget_ledgers(tmp_path, "a test")
    assert ledgers_below(tmp_path)


def test_a_population_keeps_the_record_of_ledgers_that_were_forgotten_below_it(tmp_path):
    """Whoever forgets a single run, or all folders at once, does not hide it from those who ask the people."""
    town, village = tmp_path / "populations" / "town", tmp_path / "populations" / "village"
    spend(town, "a", 5, 100.0)
    spend(town, "b", 4, 100.0)
    spend(village, "c", 3, 100.0)
    record = forget_ledgers(town / "a", "one run")
    assert record["ledgers"] == ["ledger"]
    assert [(one["because"], one["ledgers"], one["rounds"]) for one in forgotten(town)] == [
        ("one run", ["a/ledger"], 5)
    ]
    assert forgotten(town / "a") == [record]
    forget_ledgers(tmp_path, "all of them")
    assert [(one["because"], one["rounds"]) for one in forgotten(town)] == [("one run", 5), ("all of them", 4)]
    assert [(one["because"], one["rounds"]) for one in forgotten(village)] == [("all of them", 3)]
    assert [one["rounds"] for one in forgotten(tmp_path)] == [7]
    assert stat.S_IMODE((village / FORGOTTEN).stat().st_mode) == 0o600


@pytest.mark.parametrize("line", ["1", "[]", "null", "{}", '{"forgotten": 1, "because": "x"}', "{", '"x"', "[" * 9999])
def test_a_record_that_cannot_be_read_is_told(tmp_path, line):
    (tmp_path / FORGOTTEN).write_text(f'{{"forgotten": "2026-01-01", "because": "x"}}\n{line}\n')
    with pytest.raises(LedgerError, match=r"forgotten.jsonl: line 2 cannot be read"):
        forgotten(tmp_path)
