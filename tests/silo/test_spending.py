"""The ledger of a silo: sums by hand, refusals, and what a crash or a second process leaves."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from math import ceil, exp, inf, log, nan, sqrt

import pytest
from scipy.stats import norm

from fedrank.experiments.report.privacy_output import about_ledgers
from fedrank.privacy.accounting import PureEvent
from fedrank.privacy.accounting import epsilon as priced
from fedrank.privacy.guarantees import Guarantee, up
from fedrank.privacy.ledger import LedgerError
from fedrank.privacy.population import Account, Charge, ledgers_below, spent_together
from fedrank.silo.spending import MAX_BUDGET, TOGETHER, Limits, SiloLedger

DELTA = 1e-5


def delta_by_hand(shift: float, epsilon: float) -> float:
    """Balle and Wang 2018: δ of Gaussian noise with sensitivity / deviation = shift."""
    return norm.cdf(shift / 2 - epsilon / shift) - exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)


def answered(ledger: SiloLedger, querier: str, terms: int, epsilon: float | None) -> SiloLedger:
    """The same ledger after answers whose noise was drawn for each, as version 0.1 could charge them."""
    event = None if epsilon is None else PureEvent(epsilon)
    promises = [Guarantee(each, event, "", unit="occurrence") for each in (f"querier {querier}", TOGETHER)]
    key = f"answer {len(Charge.read_all(ledger.path / 'ledger')) + 1}"
    Charge(key, tuple(promises), times=terms).write(ledger.path / "ledger")
    return SiloLedger(ledger.path)


def test_lookups_add_up_per_querier_and_over_all(tmp_path):
    ledger = SiloLedger(tmp_path / "a.spending")
    for querier in ("b", "c", "d"):
        for _ in range(2):
            ledger = answered(ledger, querier, 100 * 6, 0.5)
    assert ledger.spent("b") == priced(PureEvent(0.5), 200 * 6, DELTA) < 200 * 6 * 0.5
    # 1,800 at the paper's size by adding up; composed, by Kairouz, Oh and Viswanath 2015, theorem 3.4, at most this
    n = 3 * 200 * 6
    loose = n * 0.5 * (exp(0.5) - 1) / (exp(0.5) + 1) + 0.5 * sqrt(2 * n * log(1 / DELTA))
    assert loose * 0.95 < ledger.spent() <= loose
    assert ledger.totals()[-1] == {
        "querier": "all together",
        "terms answered": 3 * 200 * 6,
        "epsilon": f"{ceil(ledger.spent())}",
        "budget": "no limit",
    }


def test_a_sketch_is_paid_once_and_again_when_its_document_changes(tmp_path):
    ledger = SiloLedger(tmp_path / "a.spending")
    ledger.charge_sketches(["d1", "d2"], 1.0)
    once = ledger.spent()
    assert once == pytest.approx(4.377, abs=1e-3)  # the 4.4 that is stated for σ1 = 1
    assert delta_by_hand(1.0, once) == pytest.approx(DELTA, rel=1e-6)
    ledger.charge_sketches(["d3"], 1.0)
    assert ledger.spent() == once  # documents are disjoint
    ledger.charge_sketches(["d2"], 0.5)
    assert delta_by_hand(sqrt(1 + 0.5**-2), ledger.spent()) == pytest.approx(DELTA, rel=1e-6)


def test_lookups_come_on_top_of_sketches(tmp_path):
    ledger = SiloLedger(tmp_path / "a.spending")
    ledger.charge_sketches(["d1"], 1.0)
    sketched = ledger.spent()
    ledger = answered(ledger, "b", 2, 0.5)
    assert ledger.spent("b") == pytest.approx(sketched + 2 * 0.5)
    assert ledger.spent("c") == sketched


def test_a_sketch_that_costs_too_much_is_refused_before_it_is_made(tmp_path):
    ledger = SiloLedger(tmp_path / "a.spending", Limits(total=5.0))
    ledger.charge_sketches(["d1"], 1.0)
    with pytest.raises(ValueError, match="budget is ε = 5"):
        ledger.charge_sketches(["d0", "d1"], 1.0)
    ledger.charge_sketches(["d0"], 1.0)
    assert ledger.spent() < 5


@pytest.mark.parametrize("limits", [Limits(querier=5.0), Limits(total=5.0)])
def test_sketches_and_lookups_share_one_budget(tmp_path, limits):
    ledger = answered(SiloLedger(tmp_path / "a.spending", limits), "b", 2, 0.5)
    with pytest.raises(ValueError, match="budget is ε = 5"):
        ledger.charge_sketches(["d1"], 1.0)
    assert ledger.spent() == pytest.approx(1.0, abs=1e-4)


def test_a_budget_that_is_set_late_counts_what_was_spent_before(tmp_path):
    ledger = SiloLedger(tmp_path / "c.spending")
    for _ in range(2):
        ledger.charge_sketches(["d1"], 1.0)
    late = SiloLedger(tmp_path / "c.spending", limits=Limits(total=5.0))
    with pytest.raises(ValueError, match="budget is ε = 5"):
        late.charge_sketches(["d2"], 1.0)  # costs 4.4 for itself, and d1 has cost 6.5


def test_a_sketch_without_noise_costs_nothing_while_it_stays(tmp_path):
    ledger = SiloLedger(tmp_path / "a.spending")
    ledger.charge_sketches(["d1"], None)
    assert ledger.spent() == 0


def test_noise_that_protects_nothing_prints_none_for_ever(tmp_path):
    ledger = answered(SiloLedger(tmp_path / "a.spending"), "b", 6, None)
    ledger = answered(ledger, "c", 1, 0.5)
    assert ledger.spent("b") == ledger.spent() == inf
    assert [row["epsilon"] for row in ledger.totals()] == ["none", "0.50", "none"]
    limited = SiloLedger(tmp_path / "a.spending", Limits(total=1e9))
    with pytest.raises(ValueError, match="nothing would be guaranteed"):
        limited.charge_sketches(["d1"], 1.0)


def test_a_ledger_is_read_back_with_its_limits(tmp_path):
    ledger = SiloLedger(tmp_path / "a.spending", Limits(2.0, 9.0, 1e-6))
    ledger.charge_sketches(["d1"], 4.0)
    ledger = answered(ledger, "b", 1, 0.5)
    again = SiloLedger(tmp_path / "a.spending")
    assert again.limits == Limits(2.0, 9.0, 1e-6)
    assert (again.spent("b"), again.spent(), again.totals()) == (ledger.spent("b"), ledger.spent(), ledger.totals())
    wider = SiloLedger(tmp_path / "a.spending", limits=Limits(3.0, 9.0, 1e-6))
    assert wider.limits.querier == SiloLedger(tmp_path / "a.spending").limits.querier == 3.0


@pytest.mark.process
def test_two_processes_share_one_ledger(tmp_path):
    path = tmp_path / "a.spending"
    mine = SiloLedger(path)
    code = (
        "import sys; from fedrank.silo.spending import SiloLedger; s = SiloLedger(sys.argv[1]); "
        "print('ready', flush=True); input(); "
        "print(len([s.charge_sketches(['d'], 1.0) for _ in range(40)]))"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "ready\n"
        other.stdin.write("\n")
        other.stdin.flush()
        for _ in range(40):
            mine.charge_sketches(["d"], 1.0)
        assert int(other.stdout.readline()) == 40
    assert other.returncode == 0
    assert len(Charge.read_all(path / "ledger")) == 80


def test_a_charge_is_on_the_disk_before_anything_is_answered(tmp_path, monkeypatch):
    ledger, log = SiloLedger(tmp_path / "a.spending"), tmp_path / "a.spending" / "ledger" / "charges.log"
    lengths = []
    monkeypatch.setattr("os.fsync", lambda _: lengths.append(log.stat().st_size))
    before = log.stat().st_size
    ledger.charge_sketches(["d1"], 1.0)
    assert lengths == [log.stat().st_size] > [before]


def test_the_name_of_a_new_ledger_is_on_the_disk_too(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    SiloLedger(tmp_path / "a.spending")
    files = ["limits.json", "ledger", "ledger/charges.log", "ledger/terms.json"]
    assert {(tmp_path / "a.spending" / name).stat().st_ino for name in files} <= set(synced)
    assert {tmp_path.stat().st_ino, (tmp_path / "a.spending").stat().st_ino} <= set(synced)


def test_nobody_but_the_owner_reads_it(tmp_path):
    SiloLedger(tmp_path / "a.spending", Limits(total=5.0)).charge_sketches(["d1"], 2.0)
    for path in (tmp_path / "a.spending", *(tmp_path / "a.spending").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_charges_that_make_no_sense_are_refused(tmp_path):
    ledger = SiloLedger(tmp_path / "a.spending", limits=Limits(total=1.0))
    for multiplier in (0.0, -1.0, nan):
        with pytest.raises(ValueError, match="multiplier must be above 0"):
            ledger.charge_sketches(["d"], multiplier)
    assert ledger.spent() == 0


def test_a_charge_cut_short_by_a_crash_is_dropped_and_the_next_one_is_whole(tmp_path):
    path = tmp_path / "a.spending"
    log = path / "ledger" / "charges.log"
    SiloLedger(path).charge_sketches(["d1"], 1.0)
    whole = log.read_bytes()
    SiloLedger(path).charge_sketches(["d2"], 1.0)
    log.write_bytes(log.read_bytes()[:-3])
    ledger = SiloLedger(path)
    assert len(Charge.read_all(path / "ledger")) == 1
    ledger.charge_sketches(["d3"], 1.0)
    assert log.read_bytes().startswith(whole)
    assert [charge.who for charge in Charge.read_all(path / "ledger")] == [("d1",), ("d3",)]


@pytest.mark.parametrize("place", [0.1, 0.5])
def test_a_damaged_ledger_answers_nothing(tmp_path, place):
    path = tmp_path / "a.spending"
    log = path / "ledger" / "charges.log"
    ledger = SiloLedger(path)
    for _ in range(3):
        ledger.charge_sketches(["d1"], 1.0)
    content = bytearray(log.read_bytes())
    content[int(place * len(content))] ^= 1
    log.write_bytes(content)
    for look in (lambda: SiloLedger(path), lambda: ledger.charge_sketches(["d1"], 1.0)):
        with pytest.raises(LedgerError, match="restore"):
            look()


@pytest.mark.parametrize("gone", ["limits.json", "ledger/charges.log", "ledger/terms.json", "ledger"])
def test_a_ledger_of_which_a_part_is_gone_answers_nothing(tmp_path, gone):
    SiloLedger(tmp_path / "a.spending", Limits(total=9.0)).charge_sketches(["d1"], 1.0)
    (tmp_path / "a.spending" / gone).rename(tmp_path / "away")
    with pytest.raises(LedgerError, match=r"is (gone|missing).*restore"):
        SiloLedger(tmp_path / "a.spending")
    (tmp_path / "a.spending" / "limits.json").write_text("[]")
    with pytest.raises(LedgerError, match=r"restore"):
        SiloLedger(tmp_path / "a.spending")


def test_a_ledger_that_shrank_is_noticed(tmp_path):
    path = tmp_path / "a.spending"
    ledger = SiloLedger(path)
    before = (path / "ledger" / "charges.log").read_bytes()
    ledger.charge_sketches(["d1"], 1.0)
    (path / "ledger" / "charges.log").write_bytes(before)
    with pytest.raises(LedgerError, match="fewer charges than before"):
        ledger.charge_sketches(["d1"], 1.0)


def test_an_older_ledger_is_refused(tmp_path):
    path = tmp_path / "a.spending"
    path.write_text(json.dumps({"fedrank": "silo spending", "version": 2, "owner": "a"}) + "\n")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"older version.*use that version"):
        SiloLedger(path)
    assert path.read_bytes() == before


def test_it_is_shown_like_the_ledger_of_people(tmp_path):
    """What documents have paid towards whom, composed and priced as for people."""
    ledger = SiloLedger(tmp_path / "a.spending", Limits(total=50.0))
    ledger.charge_sketches(["d1", "d2"], 1.0)
    ledger.charge_sketches(["d2"], 1.0)
    ledger = answered(ledger, "b", 3, 0.5)
    [folder] = ledgers_below(tmp_path)
    account = Account.read(folder)
    assert (account.terms.people, account.rounds, account.participations.tolist()) == (2, 3, [2, 3])
    assert spent_together([account], DELTA) == {
        "anybody": ledger.spent("c"),
        "querier b": ledger.spent("b"),
        "all queriers together": ledger.spent(),
    }
    text = str(about_ledgers([tmp_path]))
    assert "a.spending" in text
    assert "2 documents" in text
    assert f"{up(ledger.spent())} against querier b, all queriers together" in text


def test_senseless_limits_are_refused():
    with pytest.raises(ValueError, match="must be above 0"):
        Limits(querier=0)
    with pytest.raises(ValueError, match="delta must be between 0 and 1"):
        Limits(delta=0)


@pytest.mark.parametrize("budget", [float("inf"), 1e308])
@pytest.mark.parametrize("name", ["querier", "total"])
def test_a_budget_without_an_end_is_refused(name, budget):
    assert Limits(**{name: MAX_BUDGET})
    with pytest.raises(ValueError, match="must be at most 1e\\+09"):
        Limits(**{name: budget})
