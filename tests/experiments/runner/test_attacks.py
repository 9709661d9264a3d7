"""Attacks and defences in specs, runs and reports; recorded updates."""

from __future__ import annotations

import csv
import io
import json
import sys
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fedrank.attacks.poison import Adaptive, Fang, Promote
from fedrank.experiments.report.analysis import analyse
from fedrank.experiments.report.compose import brief
from fedrank.experiments.report.tables import robustness_table
from fedrank.experiments.report.terminal import show
from fedrank.experiments.report.write import write_report
from fedrank.experiments.runner.data import clients_of, load_fold
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import plan
from fedrank.experiments.runner.writer import Task
from fedrank.experiments.spec.experiment import SpecError, to_toml
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.source import builtin_specs, read_experiment
from fedrank.federated.aggregators import Mean
from fedrank.federated.federation import Federation
from fedrank.federated.gossip import RankGuardStyle
from fedrank.federated.robust import Krum, Median, MultiKrum, TrimmedMean
from fedrank.federated.simulation import simulate
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.model import load_weights
from fedrank.ranking.rankers import Linear, Mlp
from fedrank.unlearning.history import History
from tests.experiments.report.made_up_runs import write_experiment, write_run

FILES = ("rounds.csv", "queries.csv", "model.json", "spec.toml")


def spec(**changes):
    base = {
        "rounds": 12,
        "evaluate_every": 5,
        "data": {"name": "synthetic-mq2007"},
        "clients": {"count": 6, "interactions": 2, "click_model": "navigational", "malicious": 2},
        "learner": {"name": "pdgd"},
        "attack": {"name": "noise", "scale": 3.0},
    }
    merged = base | changes
    return {key: value for key, value in merged.items() if value is not None}


def one_task(folder, **changes) -> Task:
    [task] = plan(read_tables(spec(**changes)), "test", folder)
    return task


def in_parts(task: Task, monkeypatch, *rounds: int) -> None:
    """Do a run that is stopped after these numbers of rounds."""
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0.0)
    for number in rounds:
        calls = iter([False] * (number - 1) + [True])
        assert perform(task, stop=lambda calls=calls: next(calls)) == "interrupted"
    assert perform(task) == "finished"


def content(folder, *more):
    return {name: (folder / name).read_bytes() for name in (*FILES, *more)}


def history_bytes(folder):
    return {path.name: path.read_bytes() for path in (folder / "history").iterdir()}


# What can be asked


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attack": "lei"}, "attack.name: unknown attack 'lei'; did you mean \"lie\"?"),
        (
            {"attack": 3, "clients": {"count": 6}},
            'attack: 3 is not a method; write a table such as { name = "poisoned-clicks" }',
        ),
        ({"attack": {"scale": 2.0}}, "attack.name: is missing"),
        ({"attack": {"name": "noise", "scale": -1.0}}, "attack: scale must be finite and above 0 (got -1.0)"),
        ({"attack": {"name": "noise", "size": 1.0}}, "attack.size: no such setting of noise"),
        (
            {"attack": {"name": "poisoned-clicks", "click_model": "x"}},
            "attack: unknown click model 'x'; `fedrank methods click-model` lists",
        ),
        ({"clients": {"count": 6, "malicious": 3}}, "clients.malicious: 3 of 6 clients are malicious"),
        ({"clients": {"count": 6, "malicious": -1}}, "clients.malicious: -1 cannot be used; give 0 or more"),
        (
            {"mechanism": {"name": "gaussian", "clip": 1.0, "noise": 1.0}, "clients": {"count": 0}},
            "clients.count: 0 cannot be used; give 1 or more",
        ),
        ({"attack": None}, "clients.malicious: is 2, but no attack is set"),
        ({"aggregator": "none"}, 'malicious clients have no effect with the aggregator "none"'),
        ({"aggregator": "bulyan", "attack": "fang"}, "attack: Fang's attack has no formula against Bulyan"),
        ({"local": "scaffold"}, "local: Scaffold reads every client's gradient"),
        (
            {"learner": {"name": "pdgd", "control": True}},
            'learner.control: is no longer a setting; remove it, and write local = "scaffold"',
        ),
        (
            {"aggregator": {"name": "krum", "attackers": 0.5}},
            "aggregator: attackers must be at least 0 and less than 0.5 (got 0.5)",
        ),
        (
            {"attack": "poisoned-clicks", "clients": {"count": 6, "malicious": 1, "click_model_per": "interaction"}},
            'clients.click_model_per: with "interaction", honest clients would use',
        ),
        (
            {
                "attack": None,
                "clients": {"count": 6},
                "record_every": 2,
                "mechanism": {
                    "name": "gaussian",
                    "clip": 1.0,
                    "noise": 1.0,
                    "placement": {"name": "secure-aggregation"},
                },
            },
            "record_every: individual updates cannot be recorded under secure aggregation",
        ),
        (
            {
                "aggregator": "krum",
                "mechanism": {
                    "name": "gaussian",
                    "clip": 1.0,
                    "noise": 1.0,
                    "placement": {"name": "secure-aggregation"},
                },
            },
            "Krum needs single updates, but this mechanism reveals only their sum",
        ),
        (
            {"attack": None, "clients": {"count": 6}, "record_every": 2, "aggregator": "none"},
            "record_every: with this aggregator, clients send no updates to a server",
        ),
        (
            {"attack": None, "clients": {"count": 4, "people": 3}, "aggregator": "rankguard-style"},
            "aggregator: an organisation has no single click history",
        ),
        ({"record_every": -1}, "record_every: -1 cannot be used; give 0 or more"),
    ],
)
def test_mistakes_are_one_clear_line(changes, said):
    with pytest.raises(SpecError) as caught:
        read_tables(spec(**changes))
    [line] = caught.value.problems
    assert said in line


@pytest.mark.parametrize(
    "changes",
    [
        {"attack": "lie"},
        {"attack": {"name": "fang", "knowledge": "full"}, "aggregator": {"name": "krum", "attackers": 0.3}},
        {"attack": {"name": "fang", "aggregator": {"name": "median"}}, "aggregator": "krum"},
        {"attack": {"name": "promote", "features": [2, 3]}, "learner": {"name": "pdgd", "ranker": {"name": "mlp"}}},
        {"attack": "poisoned-clicks", "aggregator": {"name": "norm-bound", "bound": 2.0}},
        {"aggregator": {"name": "reputation", "window": 4}, "record_every": 3},
        {"aggregator": {"name": "trust", "queries": 7}},
        {"aggregator": {"name": "rankguard-style", "neighbours": 2}, "attack": {"name": "adaptive", "largest": 3.0}},
    ],
)
def test_settings_survive_toml_and_back(changes):
    one = read_tables(spec(**changes)).base
    assert read_tables(tomllib.loads(to_toml(one))).base == one
    single = one.single(2, 9)
    tables = tomllib.loads(to_toml(single))
    assert read_tables(tables).base == single
    assert (single.attack, single.clients, single.record_every) == (one.attack, one.clients, one.record_every)
    assert tables["attack"] == describe(one.attack)  # every setting is written out


def test_adaptive_attacks_know_the_rule_and_the_ranker_unless_told_otherwise():
    def attack(**changes):
        return read_tables(spec(**changes)).base.attack

    krum = {"name": "krum", "attackers": 0.3, "distance": "squared"}
    assert attack(attack="fang", aggregator=krum) == Fang(Krum(0.3, "squared"))
    assert attack(attack="fang") == Fang(Mean())
    assert attack(attack="adaptive", aggregator=krum) == Adaptive(Krum(0.3, "squared"))
    assert attack(attack="adaptive", aggregator="rankguard-style") == Adaptive(RankGuardStyle())
    told = {"name": "fang", "aggregator": "median", "knowledge": "full"}
    assert attack(attack=told, aggregator=krum) == Fang(Median(), "full")
    neural = {"name": "pdgd", "ranker": {"name": "mlp", "hidden": 3}}
    assert attack(attack="promote", learner=neural) == Promote(ranker=Mlp(hidden=3))
    assert attack(attack="promote", learner="pdgd") == Promote(ranker=Linear())
    told = {"name": "promote", "ranker": {"name": "linear"}}
    assert attack(attack=told, learner=neural) == Promote(ranker=Linear())


def test_varied_rules_are_attacked_each_by_its_own_fang():
    grid = read_tables(spec(attack="fang", vary={"aggregator.name": ["multi-krum", "trimmed-mean"]}))
    assert [one.experiment.attack for one in grid.variants] == [Fang(MultiKrum()), Fang(TrimmedMean())]


def test_the_malicious_click_as_the_attack_says_and_others_as_before():
    some = clients_of(read_tables(spec(attack="poisoned-clicks")).base, 1, 1)
    assert some.malicious.tolist() == [True] * 2 + [False] * 4
    assert [some.click_model_names[user] for user in some.click_model] == ["poison"] * 2 + ["navigational"] * 4
    noisy = clients_of(read_tables(spec()).base, 1, 1)
    assert [noisy.click_model_names[user] for user in noisy.click_model] == ["navigational"] * 6
    told = clients_of(read_tables(spec(attack={"name": "poisoned-clicks", "click_model": "informational"})).base, 1, 1)
    assert told.click_model_names[told.click_model[0]] == "informational"


# What runs leave behind


def test_an_attack_without_malicious_clients_changes_no_byte(tmp_path):
    few = {"count": 6, "interactions": 2, "click_model": "navigational"}
    plain = one_task(tmp_path / "plain", attack=None, clients=few)
    quiet = one_task(tmp_path / "quiet", attack="poisoned-clicks", clients=few)
    loud = one_task(tmp_path / "loud", attack="poisoned-clicks")
    assert [perform(task) for task in (plain, quiet, loud)] == ["finished"] * 3
    files = [{name: (task.folder / name).read_bytes() for name in FILES[:3]} for task in (plain, quiet, loud)]
    assert files[0] == files[1]
    assert files[0] != files[2]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aggregator": {"name": "reputation", "window": 3}},
        {"aggregator": {"name": "trust", "queries": 5}, "attack": "min-max"},
        {"attack": {"name": "fang", "knowledge": "full"}, "aggregator": {"name": "multi-krum", "attackers": 0.2}},
        {"clients": {"count": 10, "interactions": 2, "malicious": 4, "participation": 0.5}, "attack": "sign-flip"},
    ],
    ids=["noise", "reputation", "trust", "fang", "participation"],
)
def test_the_same_spec_gives_the_same_bytes_stopped_or_not(tmp_path, monkeypatch, changes):
    whole, parts = (one_task(tmp_path / name, record_every=2, **changes) for name in ("whole", "parts"))
    assert perform(whole, threads=2) == "finished"
    in_parts(parts, monkeypatch, 1, 3, 4)
    assert content(whole.folder) == content(parts.folder)
    assert history_bytes(whole.folder) == history_bytes(parts.folder)


LAB = """
from dataclasses import dataclass, replace

@dataclass(frozen=True)
class Broken:
    '''Sends something that is no number in some rounds, or the wrong number of numbers.'''
    every: int = 3
    columns: int = 0

    def __call__(self, arrived, malicious, rng):
        updates = arrived.updates.copy()
        if self.columns:
            updates = updates[:, :self.columns]
        elif arrived.round % self.every == 0:
            updates[malicious, 2] = float("nan")
        return replace(arrived, updates=updates)
"""


@pytest.fixture
def broken(tmp_path, monkeypatch):
    (tmp_path / "broken_lab.py").write_text(LAB, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield {"name": "broken_lab:Broken"}
    sys.modules.pop("broken_lab", None)


def test_left_out_clients_are_noted_also_after_a_stop(tmp_path, monkeypatch, broken):
    few = {"count": 6, "interactions": 2, "malicious": 2}
    whole, parts = (one_task(tmp_path / name, attack=broken, clients=few) for name in ("whole", "parts"))
    assert perform(whole) == "finished"
    in_parts(parts, monkeypatch, 7, 2)
    assert content(whole.folder) == content(parts.folder)
    for task in (whole, parts):
        notes = json.loads((task.folder / "run.json").read_text())["notes"]
        assert notes[-2:] == [
            f"client {client} was excluded from 4 rounds, the first was round 3: its update was not finite"
            for client in (0, 1)
        ]
    once = one_task(tmp_path / "once", attack=broken | {"every": 10}, clients=few | {"malicious": 1})
    assert perform(once) == "finished"
    [*_, note] = json.loads((once.folder / "run.json").read_text())["notes"]
    assert note == "client 0 was excluded from 1 round, the first was round 10: its update was not finite"


def test_updates_of_a_wrong_size_end_the_run_with_a_message(tmp_path, broken):
    task = one_task(tmp_path, attack=broken | {"columns": 7})
    assert perform(task) == "failed"
    error = json.loads((task.folder / "run.json").read_text())["error"]
    assert error["round"] == 1
    assert (
        "6 clients sent updates of shape (6, 7); one row per client is needed, with 46 parameters" in error["message"]
    )


def test_a_rule_with_too_few_clients_ends_the_run_with_its_round(tmp_path):
    task = one_task(tmp_path, attack=None, clients={"count": 3}, aggregator="krum")
    assert perform(task) == "failed"
    error = json.loads((task.folder / "run.json").read_text())["error"]
    assert error["round"] == 1
    assert "means 1 of 3 clients" in error["message"]


def test_a_run_without_a_server_keeps_all_models_and_measures_those_of_honest_clients(tmp_path, monkeypatch):
    changes = {
        "aggregator": "rankguard-style",
        "attack": "sign-flip",
        "clients": {"count": 6, "interactions": 2, "malicious": 2, "partition": {"name": "own"}},
    }
    whole, stopped = one_task(tmp_path / "whole", **changes), one_task(tmp_path / "stopped", **changes)
    assert perform(whole) == "finished"
    in_parts(stopped, monkeypatch, 4)
    assert content(whole.folder) == content(stopped.folder)
    model = load_weights(whole.folder)
    assert model.weights.shape == (6, 46)
    with (whole.folder / "clients.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["client"] for row in rows] == ["2", "3", "4", "5"]
    [run] = load_runs(whole.folder).finished
    fold = load_fold(whole.experiment.data, 1)
    expected = Evaluator(fold.test, ["ndcg@10"])(model.weights[2:], Linear()).mean()
    assert run.rounds["ndcg@10"][-1] == pytest.approx(expected, abs=1e-6)
    assert run.rounds["bytes_up"][-1] == 12 * 6 * 5 * 4 * 46


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_recorded_updates_are_those_that_reached_the_server(tmp_path, participation):
    few = {"count": 6, "interactions": 2, "malicious": 2, "participation": participation}
    task = one_task(tmp_path, record_every=5, clients=few)
    assert perform(task) == "finished"
    one = task.experiment
    seen = {}
    list(
        simulate(
            Federation(one.learner, attack=one.attack, participation=participation),
            clients_of(one, 1, 1),
            12,
            1,
            watch=lambda arrived: seen.update({arrived.round: replace(arrived, updates=arrived.updates.copy())}),
        )
    )
    history = History.open(task.folder / "history")
    assert [stored.round for stored in history] == [1, 6, 11]
    assert (history.index.clients, history.index.parameters, history.index.every) == (6, 46, 5)
    for stored in history:
        arrived = seen[stored.round]
        np.testing.assert_array_equal(stored.ids, arrived.ids)
        np.testing.assert_array_equal(stored.updates, arrived.updates)
        np.testing.assert_array_equal(stored.weights, arrived.weights)
    assert not (one_task(tmp_path / "none").folder / "history").exists()


def test_recording_changes_nothing_else_and_the_privacy_card_names_it(tmp_path):
    plain, recorded = one_task(tmp_path / "plain"), one_task(tmp_path / "recorded", record_every=4)
    assert perform(plain) == perform(recorded) == "finished"
    for name in FILES[:3]:
        assert (plain.folder / name).read_bytes() == (recorded.folder / name).read_bytes()
    assert not (plain.folder / "history").exists()
    card = json.loads((recorded.folder / "privacy.json").read_text())
    assert card["kept_updates"] == "the updates of all clients, recorded every 4 rounds, in history/"
    assert any("history/" in text for text in card["not_covered"])
    card = json.loads((plain.folder / "privacy.json").read_text())
    assert "kept_updates" not in card
    assert not any("history/" in text for text in card["not_covered"])


# What reports say


def attacked(out, name, quality, rule="mean", attack=None, malicious=0, settings=None, rest="", **repeats):
    """A made-up run with an exact final quality; `rule` and `attack` are inline tables, or names."""
    table = rule if rule.startswith("{") else f'{{ name = "{rule}" }}'
    folder = write_run(out, variant=name, offline=[quality] * 40, settings=settings, **repeats)
    text = f'kind = "federated"\nrounds = 40\nseeds = [{repeats.get("seed", 1)}]\naggregator = {table}\n'
    if attack is not None:
        text += f"attack = {attack}\n"
    rest = rest or 'learner = "pdgd"'
    text += f'{rest}\n[clients]\ncount = 10\nmalicious = {malicious}\n[data]\nname = "mq2008"\nfolds = [1]\n'
    tomllib.loads(text)
    (folder / "spec.toml").write_text(text)
    return folder


def table_of(out):
    [found] = analyse(load_runs(out))
    table = robustness_table(found)
    return None if table is None else (table.header, [[str(cell) for cell in row] for row in table.rows])


FLIP = '{ name = "sign-flip", scale = 3.0 }'
CLICKS = '{ name = "poisoned-clicks", click_model = "poison" }'


def test_the_table_by_hand(tmp_path):
    write_experiment(tmp_path)
    for rule, qualities in {"mean": (0.5, 0.4, 0.1), "krum": (0.45, 0.44, 0.46)}.items():
        for malicious, quality in zip((0, 2, 4), qualities, strict=True):
            for seed, luck in ((1, -0.01), (2, 0.01)):
                name = f"{rule}-{malicious}"
                attacked(tmp_path, name, quality + luck, rule, FLIP, malicious, seed=seed)
    header, rows = table_of(tmp_path)
    assert header == ["rule", "attack", "no attack", "defence alone", "2 of 10", "4 of 10"]
    assert rows == [
        ["krum", "sign-flip, scale = 3", "0.4500", "-0.0500", "0.4400 (-0.0100)", "0.4600 (+0.0100)"],
        ["mean", "sign-flip, scale = 3", "0.5000", "", "0.4000 (-0.1000)", "0.1000 (-0.4000)"],
    ]


@pytest.mark.long
def test_the_table_is_not_shown_when_nobody_attacks(tmp_path):
    write_experiment(tmp_path)
    attacked(tmp_path, "mean", 0.5, attack=FLIP)
    attacked(tmp_path, "krum", 0.4, "krum")
    assert table_of(tmp_path) is None
    for kind in ("md", "html"):
        text = write_report(load_runs(tmp_path), tmp_path / f"r.{kind}").read_text("utf-8")
        assert "Under attack" not in text
        assert "An attack is set, but no client is malicious" in text


def test_only_an_attack_that_nobody_makes_is_worth_a_note(tmp_path):
    write_experiment(tmp_path)
    attacked(tmp_path, "mean", 0.5)
    [found] = analyse(load_runs(tmp_path))
    assert not any("malicious" in note for note in found.notes)
    attacked(tmp_path, "attacked", 0.5, attack=FLIP, malicious=1)
    [found] = analyse(load_runs(tmp_path))
    assert not any("malicious" in note for note in found.notes)


def test_runs_from_before_attacks_have_no_table(tmp_path):
    write_experiment(tmp_path)
    write_run(tmp_path)
    assert table_of(tmp_path) is None


@pytest.mark.long
def test_without_a_run_without_attack_cells_stay_empty(tmp_path):
    write_experiment(tmp_path)
    attacked(tmp_path, "krum", 0.4, "krum", FLIP, 1)
    header, rows = table_of(tmp_path)
    assert header[-1] == "1 of 10"
    assert rows == [["krum", "sign-flip, scale = 3", "-", "", "0.4000"]]
    for kind in ("md", "html", "csv"):
        write_report(load_runs(tmp_path), tmp_path / f"r.{kind}")


def test_several_attacks_share_what_there_is_without_attack(tmp_path):
    write_experiment(tmp_path)
    attacked(tmp_path, "a", 0.5)
    attacked(tmp_path, "b", 0.3, attack=FLIP, malicious=1)
    attacked(tmp_path, "c", 0.2, attack=CLICKS, malicious=1)
    attacked(tmp_path, "d", 0.1, attack=CLICKS, malicious=3)
    attacked(tmp_path, "e", 0.4, "median")
    attacked(tmp_path, "f", 0.35, attack='{ name = "fang", knowledge = "full" }', malicious=1)
    _, rows = table_of(tmp_path)
    assert rows == [
        ["mean", "sign-flip, scale = 3", "0.5000", "", "0.3000 (-0.2000)", ""],
        ["mean", "poisoned-clicks", "0.5000", "", "0.2000 (-0.3000)", "0.1000 (-0.4000)"],
        ["mean", "fang, full", "0.5000", "", "0.3500 (-0.1500)", ""],
        ["median", "none", "0.4000", "-0.1000", "", ""],
    ]


def test_a_share_that_follows_the_attackers_stays_one_rule(tmp_path):
    write_experiment(tmp_path)
    for malicious, share in ((0, 0.2), (1, 0.1), (3, 0.3)):
        rule = f'{{ name = "krum", attackers = {share} }}'
        attacked(tmp_path, f"krum-{malicious}", 0.4 + malicious / 100, rule, CLICKS, malicious)
    _, rows = table_of(tmp_path)
    assert rows == [["krum", "poisoned-clicks", "0.4000", "", "0.4100 (+0.0100)", "0.4300 (+0.0300)"]]


def test_settings_of_a_rule_or_an_attack_that_are_compared_get_rows_of_their_own(tmp_path):
    write_experiment(tmp_path)
    for share in (0.1, 0.4):
        for malicious in (0, 1):
            rule = f'{{ name = "krum", attackers = {share} }}'
            settings = {"aggregator.attackers": share, "clients.malicious": malicious}
            name = ",".join(f"{key}={value}" for key, value in settings.items())
            attacked(tmp_path, name, 0.4 + share / 10 - malicious / 10, rule, CLICKS, malicious, settings)
    header, rows = table_of(tmp_path)
    assert header[:2] == ["rule", "attack"]
    assert rows == [
        ["krum, attackers = 0.1", "poisoned-clicks", "0.4100", "", "0.3100 (-0.1000)"],
        ["krum, attackers = 0.4", "poisoned-clicks", "0.4400", "", "0.3400 (-0.1000)"],
    ]


def test_attacks_that_differ_in_any_setting_do_not_overwrite_each_other(tmp_path):
    write_experiment(tmp_path)
    for push, quality in (("unit", 0.1), ("std", 0.2)):
        attack = f'{{ name = "min-max", perturbation = "{push}", knowledge = "partial" }}'
        settings = {"attack.perturbation": push}
        attacked(tmp_path, f"attack.perturbation={push}", quality, "median", attack, 1, settings)
    header, rows = table_of(tmp_path)
    assert header == ["rule", "attack", "no attack", "defence alone", "1 of 10"]
    assert sorted(rows) == [
        ["median", "min-max, perturbation = std, partial", "-", "", "0.2000"],
        ["median", "min-max, perturbation = unit, partial", "-", "", "0.1000"],
    ]


def test_what_else_is_varied_gets_a_column_and_is_compared_with_itself(tmp_path):
    write_experiment(tmp_path)
    for rate, base in ((0.1, 0.5), (0.3, 0.3)):
        for malicious in (0, 2):
            settings = {"learner.rate": rate, "clients.malicious": malicious}
            name = ",".join(f"{key}={value}" for key, value in settings.items())
            rest = f'learner = {{ name = "pdgd", rate = {rate} }}'
            attacked(tmp_path, name, base - malicious / 20, "mean", CLICKS, malicious, settings, rest)
    header, rows = table_of(tmp_path)
    assert header == ["learner.rate", "rule", "attack", "no attack", "defence alone", "2 of 10"]
    assert rows == [
        ["0.1", "mean", "poisoned-clicks", "0.5000", "", "0.4000 (-0.1000)"],
        ["0.3", "mean", "poisoned-clicks", "0.3000", "", "0.2000 (-0.1000)"],
    ]


def test_data_sets_are_not_mixed_up(tmp_path):
    write_experiment(tmp_path)
    for data, base in (("mq2007", 0.5), ("mq2008", 0.3)):
        for malicious in (0, 2):
            settings = {"data.name": data, "clients.malicious": malicious}
            name = ",".join(f"{key}={value}" for key, value in settings.items())
            folder = attacked(tmp_path, name, base - malicious / 20, "mean", CLICKS, malicious, settings)
            text = (folder / "spec.toml").read_text().replace('"mq2008"', f'"{data}"')
            (folder / "spec.toml").write_text(text)
    header, rows = table_of(tmp_path)
    assert header[0] == "data.name"
    assert [row[0] for row in rows] == ["mq2007", "mq2008"]
    assert [row[3] for row in rows] == ["0.5000", "0.3000"]


def test_named_variants_that_differ_elsewhere_are_told_apart(tmp_path):
    write_experiment(tmp_path)
    for name, rate in (("slow", 0.1), ("fast", 0.5)):
        rest = f'learner = {{ name = "pdgd", rate = {rate} }}'
        attacked(tmp_path, name, rate, "mean", CLICKS, 2, rest=rest)
    header, rows = table_of(tmp_path)
    assert header[0] == "such as"
    assert sorted((row[0], row[-1]) for row in rows) == [("fast", "0.5000"), ("slow", "0.1000")]


def test_variants_that_nobody_attacked_are_told_apart(tmp_path):
    write_experiment(tmp_path)
    attacked(tmp_path, "attacked", 0.2, "mean", CLICKS, 2)
    for name, rate in (("slow", 0.3), ("fast", 0.5)):
        attacked(tmp_path, name, rate, "mean", rest=f'learner = {{ name = "pdgd", rate = {rate} }}')
    _, rows = table_of(tmp_path)
    assert sorted(row[0] for row in rows) == ["attacked", "fast", "slow"]


@pytest.mark.long
def test_the_page_markdown_and_the_terminal_show_the_table_and_explain_it(tmp_path):
    write_experiment(tmp_path)
    attacked(tmp_path, "quiet", 0.5, attack=FLIP)
    attacked(tmp_path, "loud", 0.2, attack=FLIP, malicious=4)
    runs = load_runs(tmp_path)
    markdown = write_report(runs, tmp_path / "r.md").read_text("utf-8")
    assert "## Under attack" in markdown
    assert "| mean | sign-flip, scale = 3 | 0.5000 |  | 0.2000 (-0.3000) |" in markdown
    page = write_report(runs, tmp_path / "r.html").read_text("utf-8")
    assert "<h2>Under attack</h2>" in page
    assert "0.2000 (-0.3000)" in page
    printed = io.StringIO()
    show(brief(runs), Console(file=printed, width=200))
    for text in ("Under attack", "0.2000 (-0.3000)", "change from the same rule without an attack"):
        assert text in printed.getvalue()


def test_fedrank_run_prints_the_table(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from fedrank.cli import app

    monkeypatch.chdir(tmp_path)
    text = read_tables(spec(rounds=2, vary={"clients.malicious": [0, 2]})).toml()
    (tmp_path / "mine.toml").write_text(text)
    done = CliRunner().invoke(app, ["run", "mine.toml", "--workers", "1"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "Under attack" in done.output
    assert "noise, scale = 3" in done.output
    assert "2 of 6" in done.output


ATTACKED = [name for name in builtin_specs() if name.startswith("thesis/fig-5")]


@pytest.mark.parametrize("name", ATTACKED)
def test_built_in_attacks_compare_with_no_attack(name):
    """Every rule under attack has its run without, with the same users."""
    variants = [variant.experiment for variant in read_experiment(name).variants]
    quiet = {(describe(one.aggregator)["name"], one.clients.click_model) for one in variants if not _attacked(one)}
    loud = {(describe(one.aggregator)["name"], one.clients.click_model) for one in variants if _attacked(one)}
    assert loud <= quiet
    assert len(loud) == 5 * len({user for _, user in loud})


def _attacked(one):
    return one.attack is not None and one.clients.malicious > 0


@pytest.mark.filterwarnings("ignore:Krum has no guarantee", "ignore:MultiKrum has no guarantee")
@pytest.mark.parametrize("name", ATTACKED)
def test_every_variant_of_built_in_attacks_works_for_two_rounds(name):
    """On data that are always there; the general test of built-in specs tries two variants, without attack."""
    changed = set()
    for variant in read_experiment(name, ["data.name=synthetic-mq2007", "data.folds=[1]"]).variants:
        one = variant.experiment
        if one.clients.click_model != "navigational":
            continue
        last = list(simulate(one.federation(_attacked(one)), clients_of(one, 1, 1), 2))[-1]
        assert np.isfinite(last.weights).all()
        changed.add(last.weights.tobytes())
    assert len(changed) >= 20  # they are not all the same


def test_promotion_is_measured_with_and_without_attack(tmp_path):
    attack = {"name": "promote", "features": [3, 7], "scale": 5.0}
    reached = {}
    for malicious in (0, 2):
        clients = spec()["clients"] | {"malicious": malicious}
        task = one_task(tmp_path / str(malicious), attack=attack, clients=clients, rounds=30)
        assert perform(task) == "finished"
        reached[malicious] = json.loads((task.folder / "run.json").read_text())["promotion"]
    assert reached[2] > reached[0] + 0.1
    write_report(load_runs([tmp_path / "2"]), tmp_path / "report.md")
    assert f"{reached[2]:.4f}" in (tmp_path / "report.md").read_text()


def test_a_rule_that_promises_nothing_says_so_in_the_notes_and_not_as_a_warning(tmp_path):
    clients = spec()["clients"] | {"count": 10}
    task = one_task(tmp_path, aggregator={"name": "krum", "attackers": 0.4}, clients=clients, rounds=2)
    assert perform(task) == "finished"  # warnings are errors here
    notes = json.loads((task.folder / "run.json").read_text())["notes"]
    assert any("Krum has no guarantee if 4 of 10 clients are attackers; use at least 11" in note for note in notes)
    quiet = one_task(tmp_path / "b", aggregator={"name": "krum", "attackers": 0.2}, clients=clients, rounds=2)
    assert perform(quiet) == "finished"
    assert not any("promises" in note for note in json.loads((quiet.folder / "run.json").read_text())["notes"])
