"""What people spent outlives the runs they spent it on, adds up over runs on them, and is kept from others."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys

import numpy as np
import pytest

from fedrank.cli import main
from fedrank.experiments.report.compose import brief
from fedrank.experiments.report.terminal import show
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.privacy import budget_forecast, guarantees_of
from fedrank.experiments.runner.runs import clean, load_runs
from fedrank.experiments.runner.schedule import plan, run_experiment
from fedrank.experiments.runner.tune import tune
from fedrank.experiments.runner.unlearning import unlearn_runs
from fedrank.experiments.runner.writer import RunWriter
from fedrank.experiments.spec.experiment import SpecError, to_toml
from fedrank.experiments.spec.grid import read_tables
from fedrank.files import is_locked
from fedrank.privacy.guarantees import down, up
from fedrank.privacy.ledger import Ledger, LedgerError
from fedrank.privacy.noise import SecureSource
from fedrank.privacy.population import LOCK, Population, forget_ledgers, forgotten, open_ledger, spent_together
from fedrank.privacy.spending import Spending
from fedrank.unlearning.methods import FedEraser, FedRemove, FineTune, GradientAscent, Retrain

ROUNDS = 12
CENTRAL = {"name": "gaussian", "clip": 1.0, "noise": 3.0, "placement": "server"}
LOCAL = CENTRAL | {"placement": "client"}
IDEAL_SUM = CENTRAL | {"placement": {"name": "secure-aggregation", "sum": "ideal"}}
PROTOCOL = CENTRAL | {"placement": {"name": "secure-aggregation"}}
# What may be read by others: that a run exists, what was asked, the model, and what may be claimed for it.
FOR_ALL = {"spec.toml", "run.json", "timing.csv", "model.json", "privacy.json", "receipt.json", "experiment.toml"}


def grid(**changes):
    base = {
        "rounds": ROUNDS,
        "evaluate_every": 4,
        "data": {"name": "synthetic-mq2007"},
        "clients": {"count": 6, "interactions": 2},
        "learner": {"name": "pdgd"},
        "mechanism": CENTRAL,
    } | changes
    return read_tables({key: value for key, value in base.items() if value is not None})


def facts(task, name="run.json"):
    return json.loads((task.folder / name).read_text(encoding="utf-8"))


def budget_for(rounds, **changes):
    return guarantees_of(grid(**changes).base)[-1].epsilon(rounds, 1e-5) + 1e-3


class Killed(BaseException):
    """Nobody catches it, as nobody catches `kill -9`."""


def killed_after(monkeypatch, task, rounds):
    """A process that dies after so many rounds, when one more was kept but not yet written down."""
    left = iter([False] * rounds + [True])
    real = RunWriter.add

    def dying(self, *arguments, **keywords):
        if next(left):
            raise Killed
        real(self, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "add", dying)
        with pytest.raises(Killed):
            perform(task)


def killed_in_a_round(monkeypatch, task):
    """A process that dies when messages may have been sent, and nothing is kept yet."""

    def dying(self, *arguments):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Spending, "keep", dying)
        with pytest.raises(Killed):
            perform(task)


@pytest.fixture
def fedrank(monkeypatch, capsys, tmp_path):
    """The command, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fedrank", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        done = capsys.readouterr()
        return code, done.out + done.err

    return run


# Cleaning


def test_cleaning_keeps_the_ledger_and_says_so(tmp_path, monkeypatch, fedrank):
    [task] = plan(grid(), "test", tmp_path)
    killed_after(monkeypatch, task, 5)
    with Ledger.open(task.folder / "ledger", 6) as ledger:
        charged = ledger.participations()
    assert charged.max() >= 6
    code, said = fedrank("watch", tmp_path, "--list", "--clean", "--yes")
    assert code == 0
    assert f"{charged.sum():,} participations of 6 people stay recorded" in said
    assert "--forget --because REASON" in said
    assert [path.name for path in task.folder.iterdir()] == ["ledger"]
    assert len(load_runs(tmp_path)) == 0
    # Run again, everybody pays on top of what they had paid.
    assert perform(task) == "finished"
    assert facts(task, "privacy.json")["participations_charged"] == charged.max() + ROUNDS


def test_after_cleaning_another_spec_begins_anew_and_pays_on_top(tmp_path, monkeypatch):
    """What was kept belongs to a run that is gone; what was charged belongs to people."""
    [task] = plan(grid(), "test", tmp_path)
    killed_after(monkeypatch, task, 3)
    clean(load_runs(tmp_path))
    [other] = plan(grid(learner={"name": "pdgd", "rate": 0.01}, mechanism=CENTRAL | {"noise": 9.0}), "test", tmp_path)
    assert perform(other) == "finished"
    assert sorted(path.name for path in task.folder.glob("ledger*")) == ["ledger", "ledger-1"]
    [run] = load_runs(tmp_path)
    assert run.card.rounds_charged == ROUNDS


def test_a_run_without_a_ledger_is_cleaned_away(tmp_path):
    [task] = plan(grid(mechanism=None), "test", tmp_path)
    assert perform(task, stop=lambda: True) in ("interrupted", "finished")
    if load_runs(tmp_path)[0].status == "interrupted":
        clean(load_runs(tmp_path))
        assert not task.folder.exists()


# Resuming


def test_a_run_that_was_killed_and_resumed_has_the_same_card_byte_for_byte(tmp_path, monkeypatch):
    cards = []
    # Noise that is the same in every round, so that both runs come to the same model.
    monkeypatch.setattr(
        SecureSource, "words", lambda self, n: np.random.default_rng(n).integers(0, 2**64, n, np.uint64)
    )
    for name in ("whole", "killed"):
        moments = iter(f"2030-01-01T00:00:{second:02}+00:00" for second in range(60))
        for module in ("writer", "cards"):
            monkeypatch.setattr(f"fedrank.experiments.runner.{module}.now", lambda moments=moments: next(moments))
        [task] = plan(grid(population="town", privacy={"budget": 50.0}), "test", tmp_path / name)
        if name == "killed":
            killed_after(monkeypatch, task, 5)
        assert perform(task) == "finished"
        cards.append((task.folder / "privacy.json").read_bytes())
        assert facts(task)["ended"].startswith("2030")
    assert cards[0] == cards[1]


# Forgetting


@pytest.mark.long
def test_forgetting_is_its_own_command_with_its_own_words(tmp_path, monkeypatch, fedrank):
    [task] = plan(grid(), "test", tmp_path)
    killed_after(monkeypatch, task, 2)
    fedrank("watch", tmp_path, "--list", "--clean", "--yes")
    code, said = fedrank("privacy", "ledger", tmp_path)
    assert code == 0
    assert "6" in said
    for words in (("nowhere",), (tmp_path / "test" / "nowhere", "--forget", "--because", "a typo")):
        code, said = fedrank("privacy", "ledger", *words)
        assert code == 2
        assert "nowhere" in said
    code, said = fedrank("privacy", "ledger", task.folder, "--forget", "--because", "made-up people", "--words", "yes")
    assert code == 2
    assert "nothing was deleted" in said
    assert (task.folder / "ledger").exists()
    words = "forget what 6 people spent"
    code, said = fedrank("privacy", "ledger", task.folder, "--forget", "--because", "made-up people", "--words", words)
    assert code == 0
    assert not (task.folder / "ledger").exists()
    assert forgotten(task.folder)[0]["because"] == "made-up people"
    assert "made-up people" in fedrank("privacy", "ledger", task.folder)[1]
    clean(load_runs(tmp_path))
    assert forgotten(task.folder)


# Populations


def test_runs_variants_and_seeds_on_a_population_add_up_and_are_refused_at_the_limit(tmp_path):
    budget = budget_for(30)
    spec = grid(seeds=[1, 2, 3, 4], population="town", privacy={"budget": budget})
    results = run_experiment(spec, "test", tmp_path)
    rounds = [run.round for run in load_runs(tmp_path / "test").finished]
    assert rounds == [12, 12, 6]
    [(task, reason)] = results.failed
    assert task.seed == 4
    assert "'town'" in reason
    assert "over all runs" in reason
    population = Population.read(tmp_path / "populations" / "town")
    assert spent_together(population.accounts(), 1e-5)["public"] <= budget
    run = load_runs(tmp_path / "test").finished[2]
    assert run.card.population["runs"] == 3
    assert run.card.population["epsilon"]["public"] == pytest.approx(budget, abs=2e-3)
    assert "'town'" in run.card.summary
    # Cleaning and another name change nothing: these are the same people.
    clean(load_runs(tmp_path))
    results = run_experiment(grid(population="town", privacy={"budget": budget}), "again", tmp_path)
    assert len(results.failed) == 1


@pytest.mark.process
def test_runs_side_by_side_do_not_spend_the_same_rest_twice(tmp_path):
    budget = budget_for(30)
    spec = grid(seeds=[1, 2, 3, 4], population="town", privacy={"budget": budget})
    run_experiment(spec, "test", tmp_path, workers=2)
    population = Population.read(tmp_path / "populations" / "town")
    assert sum(account.rounds for account in population.accounts()) == 30
    assert spent_together(population.accounts(), 1e-5)["public"] <= budget


def test_variants_with_other_noise_share_the_limit(tmp_path):
    spec = grid(population="town", privacy={"budget": budget_for(15)}, vary={"mechanism.noise": [3.0, 6.0]})
    run_experiment(spec, "test", tmp_path)
    rounds = {run.settings["mechanism.noise"]: run.round for run in load_runs(tmp_path).finished}
    assert rounds == {3.0: 12, 6.0: 12}  # 12 of noise 6 are three of noise 3
    population = Population.read(tmp_path / "populations" / "town")
    spent = spent_together(population.accounts(), 1e-5)["public"]
    assert spent == pytest.approx(budget_for(15) - 1e-3, rel=1e-6)


@pytest.mark.parametrize("place", ["client", "server", {"name": "secure-aggregation", "sum": "ideal"}])
def test_people_in_organisations_add_up_over_runs_and_are_refused_at_the_limit(tmp_path, place):
    """A row of the ledger is a site, and each of its people pays whenever the site takes part."""
    people = {
        "clients": {"count": 3, "interactions": 2, "people": 5, "partition": {"name": "own"}},
        "mechanism": {"name": "gaussian", "clip": 1.0, "noise": 9.0, "unit": "person", "placement": place},
    }
    budget = budget_for(18, **people)
    spec = grid(seeds=[1, 2, 3], population="patients", privacy={"budget": budget}, **people)
    results = run_experiment(spec, "test", tmp_path)
    assert [run.round for run in load_runs(tmp_path / "test").finished] == [12, 6]
    assert len(results.failed) == 1
    population = Population.read(tmp_path / "populations" / "patients")
    spent = spent_together(population.accounts(), 1e-5)["public"]
    assert budget - 2e-3 < spent <= budget
    assert guarantees_of(spec.base)[-1].unit == "person"


def test_what_protects_another_unit_is_refused_since_its_price_cannot_be_added(tmp_path):
    budget = {"budget": 50.0}
    assert not run_experiment(grid(population="town", privacy=budget), "clients", tmp_path).failed
    searches = grid(
        population="town",
        privacy=budget,
        learner={"name": "pdgd", "batch": True, "clip_gradients": 1.0},
        mechanism=CENTRAL | {"unit": "interaction"},
    )
    [(_, reason)] = run_experiment(searches, "searches", tmp_path).failed
    assert "other runs protect each client, this one each interaction, so their ε cannot be added up" in reason


def test_a_ledger_is_set_aside_only_while_nobody_adds_up(tmp_path, monkeypatch):
    """It moves, and whoever adds up all charges at that moment would miss it."""
    held = []

    def looking(folder, terms, hashed):
        held.append(is_locked(tmp_path / "populations" / "town" / LOCK))
        return open_ledger(folder, terms, hashed)

    monkeypatch.setattr("fedrank.experiments.runner.privacy.open_ledger", looking)
    assert not run_experiment(grid(population="town", privacy={"budget": 50.0}), "test", tmp_path).failed
    assert held == [True]


def test_tuning_spends_on_the_population_too(tmp_path):
    spec = grid(population="town", privacy={"budget": budget_for(20)})
    _, tried, _ = tune(spec, "test", {"learner.rate": [0.1, 0.01]}, tmp_path)
    assert len(tried) == 2
    results = run_experiment(spec, "test", tmp_path)
    assert len(results.failed) == 1


def test_a_ledger_that_was_forgotten_stands_on_every_later_card(tmp_path):
    spec = grid(seeds=[1, 2], population="town", privacy={"budget": budget_for(30)})
    first, second = plan(spec, "test", tmp_path)
    assert perform(first) == "finished"
    forget_ledgers(tmp_path / "populations" / "town", "a mistake")
    assert perform(second) == "finished"
    card = facts(second, "privacy.json")
    assert card["population"]["runs"] == 1
    assert card["population"]["forgotten"][0]["rounds"] == ROUNDS
    assert "a ledger that was deleted" in card["summary"]
    assert "a mistake" in card["summary"]


# Ledgers that say less than the run folders beside them


def spent_run(tmp_path):
    """A finished run on a town, its spec, and its ledger."""
    spec = grid(population="town", privacy={"budget": 50.0})
    [task] = plan(spec, "test", tmp_path)
    assert perform(task) == "finished"
    return spec, task, tmp_path / "populations" / "town" / task.folder.relative_to(tmp_path) / "ledger"


def cut(ledger, rounds):
    """Cut the log at the end of a record, and drop what else in the ledger would tell."""
    (ledger / "changes.log").unlink()
    log = ledger / "participants.log"
    begin = 32
    os.truncate(log, begin + (log.stat().st_size - begin) // ROUNDS * rounds)


def unhashed(ledger):
    """As written by a version without hashes."""
    ledger.with_name("ledger.hash").unlink()


def refused(tmp_path, fedrank, spec, message):
    """Everybody who asks what the town has spent is told what is wrong."""
    code, said = fedrank("privacy", "ledger", tmp_path)
    assert (code, message in said) == (2, True), said
    with pytest.raises(LedgerError, match=message):
        budget_forecast(spec.base, tmp_path)
    [(_, reason)] = run_experiment(spec, "other", tmp_path).failed
    assert message in reason


def test_a_mistyped_folder_of_runs_does_not_read_like_nothing_spent(tmp_path, fedrank):
    """It is no error: before the first run there is none."""
    (tmp_path / "spec.toml").write_text(to_toml(grid(population="town", privacy={"budget": 50.0}).base))
    code, said = fedrank("privacy", "show", "spec.toml", "--runs", "nowhere")
    assert (code, "There is no folder nowhere, so no earlier run is counted" in said) == (0, True), said
    (tmp_path / "nowhere").mkdir()
    assert "There is no folder" not in fedrank("privacy", "show", "spec.toml", "--runs", "nowhere")[1]


def test_a_ledger_that_was_cut_at_the_end_of_a_record_is_noticed_by_the_run_folder(tmp_path, fedrank):
    spec, _, ledger = spent_run(tmp_path)
    cut(ledger, 5)
    refused(tmp_path, fedrank, spec, "was truncated or replaced since its last run ended")
    unhashed(ledger)
    refused(tmp_path, fedrank, spec, "records 12 rounds that were charged to population 'town', but the ledgers in")


@pytest.mark.parametrize("what", ["people.json", "test", "."])
def test_a_population_of_which_a_part_is_missing_is_not_begun_again(tmp_path, fedrank, what):
    spec, _, _ = spent_run(tmp_path)
    town = tmp_path / "populations" / "town"
    if what == "people.json":
        (town / what).unlink()
        refused(tmp_path, fedrank, spec, "people.json is missing")
        return
    shutil.rmtree(town / what)
    if what == "test":
        refused(tmp_path, fedrank, spec, "have 0: a ledger is missing")
    [(_, reason)] = run_experiment(spec, "another", tmp_path).failed
    assert "have 0: a ledger is missing or was truncated. Restore" in reason
    assert what != "." or not (town / "people.json").exists()


def test_an_interrupted_run_is_a_record_too(tmp_path, monkeypatch):
    spec, task, _ = spent_run(tmp_path)
    [other] = plan(spec, "other", tmp_path)
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0.0)
    killed_after(monkeypatch, other, 6)
    shutil.rmtree(task.folder)
    shutil.rmtree(tmp_path / "populations" / "town" / "test")
    own = tmp_path / "populations" / "town" / other.folder.relative_to(tmp_path) / "ledger"
    (own / "changes.log").unlink()
    os.truncate(own / "participants.log", 32)
    with pytest.raises(LedgerError, match=r"records \d+ rounds .* have 0"):
        budget_forecast(spec.base, tmp_path)


def test_a_run_folder_that_was_moved_is_known_by_its_spec(tmp_path, fedrank):
    spec, _, ledger = spent_run(tmp_path)
    (tmp_path / "test").rename(tmp_path / "moved")
    assert fedrank("privacy", "ledger", tmp_path)[0] == 0
    assert budget_forecast(spec.base, tmp_path).runs == 1
    cut(ledger, 5)
    assert fedrank("privacy", "ledger", tmp_path)[0] == 2


def test_unlearned_runs_count_what_they_were_unlearned_from(tmp_path, fedrank):
    task, town = trained(tmp_path, 3 * ROUNDS)
    [done] = unlearn_runs([task.folder], [2], FineTune(rounds=3), tmp_path / "runs")
    assert fedrank("privacy", "ledger", town.folder)[0] == 0
    place = town.folder / done.folder.relative_to(tmp_path / "runs") / "ledger"
    shutil.rmtree(place)
    code, said = fedrank("privacy", "ledger", town.folder)
    assert (code, f"records {ROUNDS + 3} rounds" in said) == (2, True), said


def test_the_ledger_of_a_forest_is_named_without_a_price(tmp_path, fedrank):
    """It has no terms.json: what its charges cost is on the card of the run."""
    with Ledger.open(tmp_path / "forest" / "ledger", 2) as ledger:
        ledger.reserve({1: np.arange(2)})
    code, said = fedrank("privacy", "ledger", tmp_path)
    assert (code, "forest/ledger has no terms.json" in said.replace("\n", "")) == (0, True), said


# Unlearning


def trained(tmp_path, rounds, **changes):
    """A run on a town whose limit pays for so many rounds, and the town."""
    limit = guarantees_of(grid(mechanism=LOCAL).base)[-1].epsilon(rounds, 1e-5) + 1e-3
    spec = grid(population="town", privacy={"budget": limit}, mechanism=LOCAL, record_every=2, **changes)
    [task] = plan(spec, "test", tmp_path / "runs")
    assert perform(task) == "finished"
    return task, Population.read(tmp_path / "runs" / "populations" / "town")


def charged(population):
    return sum(account.participations for account in population.accounts()).tolist()


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != LOCK}


@pytest.mark.parametrize(
    ("method", "rounds"), [(Retrain(), ROUNDS), (FineTune(rounds=5), 5), (FedEraser(steps=1), ROUNDS // 2)]
)
@pytest.mark.parametrize("out", ["runs", "elsewhere"])
def test_what_unlearning_asks_of_people_is_charged_to_them(tmp_path, method, rounds, out):
    task, town = trained(tmp_path, 2 * ROUNDS)
    [done] = unlearn_runs([task.folder], [2], method, tmp_path / out)
    assert charged(town) == [ROUNDS + rounds] * 2 + [ROUNDS] + [ROUNDS + rounds] * 3, "who left is asked for nothing"
    card = json.loads((done.folder / "privacy.json").read_text())
    cost = guarantees_of(grid(mechanism=LOCAL).base)[0].epsilon(ROUNDS + rounds, 1e-5)
    assert [row["epsilon"] for row in card["promises"]] == [pytest.approx(cost)] * 3
    assert (card["rounds_charged"], card["participations_charged"]) == (ROUNDS + rounds, ROUNDS + rounds)
    assert card["promises"][0]["times"] == ROUNDS + rounds
    assert card["population"]["epsilon"]["server"] == pytest.approx(cost)
    assert (
        f"{rounds} more rounds from the remaining clients, protected like those of the run and charged to "
        "population 'town'" in card["summary"]
    )
    assert (tmp_path / "elsewhere" / "populations").exists() is False


def test_a_second_request_is_charged_on_top(tmp_path):
    task, town = trained(tmp_path, 2 * ROUNDS)
    [first] = unlearn_runs([task.folder], [2], FineTune(rounds=3), tmp_path / "elsewhere")
    [second] = unlearn_runs([first.folder], [0], FineTune(rounds=4), tmp_path / "elsewhere", "again")
    assert charged(town) == [ROUNDS + 3, ROUNDS + 7, ROUNDS, *[ROUNDS + 7] * 3]
    card = json.loads((second.folder / "privacy.json").read_text())
    assert card["participations_charged"] == ROUNDS + 7
    assert card["promises"][0]["epsilon"] == pytest.approx(
        guarantees_of(grid(mechanism=LOCAL).base)[0].epsilon(ROUNDS + 7, 1e-5)
    )


def test_nothing_is_claimed_where_the_ledger_of_the_training_was_forgotten(tmp_path):
    task, town = trained(tmp_path, 2 * ROUNDS)
    forget_ledgers(town.folder, "a test")
    [done] = unlearn_runs([task.folder], [2], FineTune(rounds=3), tmp_path / "runs")
    card = json.loads((done.folder / "privacy.json").read_text())
    assert [row["epsilon"] for row in card["promises"]] == [None] * 3
    assert "a ledger that was deleted" in card["summary"]


def test_adding_up_recorded_messages_costs_nobody_anything(tmp_path):
    task, town = trained(tmp_path, ROUNDS)
    before = charged(town)
    [done] = unlearn_runs([task.folder], [0], FedRemove(), tmp_path / "runs")
    assert charged(town) == before
    card = json.loads((done.folder / "privacy.json").read_text())
    assert card["population"]["runs"] == 1
    assert "contacted no clients" in card["summary"]


@pytest.mark.parametrize(("method", "pays"), [(Retrain(), ROUNDS), (FedEraser(steps=1), 6), (FineTune(rounds=5), 5)])
def test_past_the_limit_unlearning_is_refused_and_leaves_nothing(tmp_path, method, pays):
    """The last of its rounds would be too much, so that nobody is asked for the first."""
    task, town = trained(tmp_path, ROUNDS + pays - 1)
    before, folders = content(tmp_path), {path for path in tmp_path.rglob("*") if path.is_dir()}
    with pytest.raises(ValueError, match=r"'town'.*ε would become.*no client was contacted"):
        unlearn_runs([task.folder], [2], method, tmp_path / "runs")
    assert content(tmp_path) == before
    assert {path for path in tmp_path.rglob("*") if path.is_dir()} == folders
    assert charged(town) == [ROUNDS] * 6


def test_what_asks_without_protection_is_refused_as_before(tmp_path):
    task, town = trained(tmp_path, 3 * ROUNDS)
    before = content(tmp_path)
    with pytest.raises(ValueError, match=r"cost that unlearning cannot charge"):
        unlearn_runs([task.folder], [2], GradientAscent(steps=1, rounds=1), tmp_path / "runs")
    with pytest.raises(ValueError, match=r"remove --verify"):
        unlearn_runs([task.folder], [2], FineTune(rounds=1), tmp_path / "runs", verify=True)
    assert content(tmp_path) == before
    assert charged(town) == [ROUNDS] * 6


def test_a_run_whose_people_are_not_there_is_not_unlearned(tmp_path):
    task, town = trained(tmp_path, 3 * ROUNDS)
    town.folder.rename(tmp_path / "moved")
    for method in (FedRemove(), Retrain()):
        with pytest.raises(ValueError, match=r"'town'.*budget is unknown; restore that folder"):
            unlearn_runs([task.folder], [2], method, tmp_path / "runs")


@pytest.mark.parametrize("method", [Retrain(), FedEraser(steps=1), FineTune(rounds=8)])
def test_unlearning_that_is_killed_goes_on_with_what_was_kept(tmp_path, monkeypatch, method):
    """What was sent is charged, what was kept is used again, and what may have been lost is charged twice."""
    task, town = trained(tmp_path, 4 * ROUNDS)
    rounds = {Retrain: ROUNDS, FedEraser: ROUNDS // 2, FineTune: 8}[type(method)]
    left, real, kept = iter([False] * 4 + [True]), Spending.keep, []

    def dying(self, round, change):
        if next(left):
            raise Killed
        kept.append(change)
        real(self, round, change)

    with monkeypatch.context() as patch:
        patch.setattr(Spending, "keep", dying)
        with pytest.raises(Killed):
            unlearn_runs([task.folder], [2], method, tmp_path / "runs")
    after = charged(town)
    assert ROUNDS + 5 <= after[0] <= ROUNDS + 7, "four that were kept, and all that were noted with the fifth"
    again = []

    def counting(self, round, change):
        again.append(round)
        real(self, round, change)

    monkeypatch.setattr(Spending, "keep", counting)
    [done] = unlearn_runs([task.folder], [2], method, tmp_path / "runs")
    assert again == list(range(5, rounds + 1))
    assert charged(town) == [rows + rounds - 4 for rows in after[:2]] + [ROUNDS] + [
        rows + rounds - 4 for rows in after[3:]
    ]
    card = json.loads((done.folder / "privacy.json").read_text())
    assert card["rounds_charged"] == charged(town)[0]


def test_a_request_that_fails_gives_back_what_nobody_was_asked_for(tmp_path, monkeypatch):
    task, town = trained(tmp_path, 3 * ROUNDS)
    left, real = iter([False] * 4 + [True]), Spending.keep

    def failing(self, round, change):
        if next(left):
            raise OSError("no room")
        real(self, round, change)

    with monkeypatch.context() as patch:
        patch.setattr(Spending, "keep", failing)
        with pytest.raises(OSError, match="no room"):
            unlearn_runs([task.folder], [2], Retrain(), tmp_path / "runs")
    assert charged(town)[0] == ROUNDS + 5
    assert not (tmp_path / "runs" / "test-unlearned" / "retrain" / task.folder.name).exists()


# Before a run


def asked(fedrank, tmp_path, spec, *more):
    (tmp_path / "spec.toml").write_text(to_toml(spec.base))
    return fedrank("privacy", "show", "spec.toml", "--runs", "runs", *more)


@pytest.mark.long
def test_what_a_run_would_cost_people_next_to_what_they_spent(tmp_path, fedrank):
    spec = grid(population="town", privacy={"budget": budget_for(30)}, seeds=[1])
    guarantee = guarantees_of(spec.base)[-1]
    code, said = asked(fedrank, tmp_path, spec)
    assert code == 0
    assert "Population 'town', no run yet: at most" in said
    assert not (tmp_path / "runs").exists(), "looking begins nothing"
    assert len(run_experiment(spec, "test", tmp_path / "runs").finished) == 1
    found = budget_forecast(spec.base, tmp_path / "runs")
    alone, both = guarantee.epsilon(ROUNDS, 1e-5), guarantee.epsilon(2 * ROUNDS, 1e-5)
    assert found.spent == found.alone == {"other clients": alone, "public": alone}
    assert found.after == {"other clients": pytest.approx(both), "public": pytest.approx(both)}
    assert found.left["public"] == pytest.approx(budget_for(30) - alone)
    assert (found.runs, found.rounds, found.paid, found.refusal) == (1, ROUNDS, ROUNDS, None)
    code, said = asked(fedrank, tmp_path, spec, "--out", "privacy.json")
    assert "Population 'town', 1 run so far" in said
    for cost in (up(alone), up(both), down(budget_for(30) - alone)):
        assert cost in said
    assert "will stop after them" not in said
    [variant] = json.loads((tmp_path / "privacy.json").read_text())["variants"]
    assert variant["population"]["left"]["public"] == pytest.approx(budget_for(30) - alone)
    assert variant["population"]["after"]["public"] == pytest.approx(both)


@pytest.mark.long
def test_what_is_left_says_how_far_the_next_run_comes(tmp_path, fedrank):
    """And it comes as far."""
    spec = grid(population="town", privacy={"budget": budget_for(20)}, seeds=[1])
    assert len(run_experiment(spec, "test", tmp_path / "runs").finished) == 1
    code, said = asked(fedrank, tmp_path, spec)
    assert code == 0
    assert f"The remaining budget covers 8 of {ROUNDS} rounds: the run will stop after them." in said
    [next_run] = run_experiment(spec, "next", tmp_path / "runs").finished
    assert facts(next_run)["round"] == 8
    code, said = asked(fedrank, tmp_path, spec)
    said = " ".join(said.split())
    assert "The budget does not cover one round of this run: population 'town': " in said
    assert "against the other clients, over all runs on these people" in said
    assert "The run will be refused." in said
    code, said = asked(fedrank, tmp_path, grid(population="town", privacy={"budget": 99.0}))
    assert code != 0
    assert "has a limit of" in said


def test_every_run_of_a_spec_adds_to_what_people_spend(tmp_path, fedrank):
    code, said = asked(fedrank, tmp_path, grid(population="town", privacy={"budget": 50.0}, seeds=[1, 2, 3]))
    assert "This spec has 3 such runs, and each adds to it." in said
    code, said = asked(fedrank, tmp_path, grid(privacy={"budget": 50.0}))
    assert code == 0
    assert "Population" not in said


def test_a_population_needs_a_mechanism_and_a_limit():
    with pytest.raises(SpecError, match=r"population.*privacy.budget"):
        grid(population="town")
    with pytest.raises(SpecError, match=r"population.*mechanism"):
        grid(population="town", mechanism=None)
    with pytest.raises(SpecError, match=r"cannot be the name of a folder"):
        grid(population="../town", privacy={"budget": 1.0})


def test_simulated_people_are_the_default_and_stand_in_no_spec():
    assert grid().base.population == "simulated"
    assert "population" not in to_toml(grid().base)
    assert 'population = "town"' in to_toml(grid(population="town", privacy={"budget": 1.0}).base)


def test_simulated_runs_are_priced_alone_and_a_line_says_what_all_would_cost(tmp_path):
    from rich.console import Console

    spec = grid(seeds=[1, 2, 3], privacy={"budget": budget_for(20)})
    assert len(run_experiment(spec, "test", tmp_path).finished) == 3
    alone = guarantees_of(spec.base)[-1].epsilon(12, 1e-5)
    runs = load_runs(tmp_path)
    assert all(run.card.promises[-1].epsilon == pytest.approx(alone) for run in runs)
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=400, file=nowhere)
        show(brief(runs), console)
    text = console.export_text()
    together = guarantees_of(spec.base)[-1].epsilon(36, 1e-5)
    assert "all 3 runs together would cost" in text
    assert f"ε = {together:.1f}"[:6] in text


# Who may read it


def modes(folder):
    """Mode of every file and folder below, by name."""
    return {path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


@pytest.mark.parametrize("stopped", [False, True])
def test_everything_that_describes_people_is_for_its_owner_only(tmp_path, stopped, monkeypatch):
    """Every file that a private run writes is either on the short list of what others may read, or closed to them."""
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0.0)
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    old = os.umask(0o022)
    try:
        spec = grid(
            mechanism=LOCAL,
            record_every=2,
            fine_tune=2,
            clients={"count": 6, "interactions": 2, "partition": {"name": "dirichlet"}},
        )
        [task] = plan(spec, "test", tmp_path)
        stops = iter([False] * 5 + [True] * 3)
        perform(task, stop=(lambda: next(stops)) if stopped else (lambda: False))
    finally:
        os.umask(old)
    found = modes(task.folder)
    assert any(name.startswith("history/") for name in found)
    assert any(name.startswith("ledger/") for name in found)
    assert ("checkpoint.npz" in found) == stopped
    assert stopped or {"queries.csv", "clients.csv"} <= set(found)
    for name, mode in found.items():
        if name not in FOR_ALL:
            assert mode == (0o700 if (task.folder / name).is_dir() else 0o600), name


# Killed


@pytest.mark.parametrize("after", [0, 4])
@pytest.mark.parametrize("mechanism", [CENTRAL, LOCAL, IDEAL_SUM, PROTOCOL], ids=["server", "client", "ideal", "sum"])
def test_after_a_kill_all_that_may_have_been_sent_is_charged_and_what_was_kept_is_replayed(
    tmp_path, monkeypatch, mechanism, after
):
    [task] = plan(grid(mechanism=mechanism), "test", tmp_path)
    killed_after(monkeypatch, task, after)
    with Ledger.open(task.folder / "ledger", 6) as ledger:
        charged, rounds = ledger.participations(), ledger.rounds()
        kept = [ledger.kept(round) for round in range(1, after + 2)]
    assert all(kept)
    assert rounds >= after + 1
    models = []
    monkeypatch.setattr("fedrank.experiments.runner.federated.FederatedRun.add", _watching(models))
    assert perform(task) == "finished"
    card = facts(task, "privacy.json")
    assert card["rounds_charged"] == ROUNDS + rounds - (after + 1)
    assert card["participations_charged"] >= charged.max()
    expected = guarantees_of(task.experiment)[-1].epsilon(card["rounds_charged"], 1e-5)
    assert card["promises"][-1]["epsilon"] == pytest.approx(expected)
    model = np.zeros(46)
    for weights, old in zip(models, kept, strict=False):
        model = model + old.change
        assert np.array_equal(weights, model)


@pytest.mark.parametrize("mechanism", [CENTRAL, LOCAL, IDEAL_SUM, PROTOCOL], ids=["server", "client", "ideal", "sum"])
def test_a_kill_within_a_round_costs_it_twice(tmp_path, monkeypatch, mechanism):
    [task] = plan(grid(mechanism=mechanism), "test", tmp_path)
    killed_in_a_round(monkeypatch, task)
    assert perform(task) == "finished"
    card = facts(task, "privacy.json")
    assert (card["rounds_charged"], card["participations_charged"]) == (ROUNDS + 1, ROUNDS + 1)


@pytest.mark.parametrize("mechanism", [CENTRAL, IDEAL_SUM], ids=["server", "ideal"])
def test_a_limit_of_people_holds_across_kills(tmp_path, monkeypatch, mechanism):
    budget = budget_for(10, mechanism=mechanism)
    [task] = plan(grid(mechanism=mechanism, population="town", privacy={"budget": budget}), "test", tmp_path)
    for after in (1, 2):
        killed_after(monkeypatch, task, after)
    assert perform(task) == "finished"
    population = Population.read(tmp_path / "populations" / "town")
    assert max(spent_together(population.accounts(), 1e-5).values()) <= budget


def _watching(models):
    from fedrank.experiments.runner.federated import FederatedRun

    add = FederatedRun.add

    def watching(self, outcome, ends):
        models.append(outcome.state.weights.copy())
        add(self, outcome, ends)

    return watching


@pytest.mark.parametrize("name", ["populations", "populations/town", "./populations/town", "Populations/town"])
def test_no_run_lies_among_what_people_have_spent(tmp_path, name):
    with pytest.raises(ValueError, match=r"populations/ contains privacy ledgers.* choose another name"):
        run_experiment(grid(), name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../other", "a/../../b", "..", "", "/other"])
def test_a_name_does_not_lead_out_of_the_folder_of_results(tmp_path, name):
    """The ledger of such a run would not be found below its population."""
    with pytest.raises(ValueError, match=r"is not a folder within the folder of results"):
        run_experiment(grid(population="town", privacy={"budget": 8.0}), name, tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_a_run_on_simulated_people_is_not_counted_among_those_of_a_population(tmp_path):
    Population.open(tmp_path / "populations" / "town", 6, 1e-5, 8.0)
    results = run_experiment(grid(), "town", tmp_path / "populations")
    assert "is in the folder of population 'town'" in results.failed[0][1]
    assert Population.read(tmp_path / "populations" / "town").accounts() == []
