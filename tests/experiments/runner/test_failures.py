"""Failures that explain themselves: own methods, one cause of many runs, and what is known before the first run."""

from __future__ import annotations

import sys

import pytest

from fedrank.experiments.runner.failures import TRACEBACK, causes
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.grid import read_tables
from fedrank.privacy.secure_messages import primitives
from tests.experiments.runner.test_run import tables
from tests.test_cli import shell

OWN = "tests.experiments.runner.own_methods:"


def failed(tmp_path, **changes):
    return run_experiment(read_tables(tables(rounds=3, **changes)), "test", tmp_path).failed


@pytest.mark.parametrize(
    ("name", "said", "last"),
    [
        ("Crashes", "KeyError: 'weights'; own_methods.py, line ", "KeyError: 'weights'"),
        ("Multiplies", "ValueError: matmul: ", "ValueError: matmul: "),
        ("Leaves", "SystemExit: 0; own_methods.py, line ", "SystemExit: 0"),  # no success, though it says so
    ],
)
def test_a_crash_in_an_own_method_leaves_its_traceback(tmp_path, name, said, last):
    [(task, reason)] = failed(tmp_path, aggregator={"name": OWN + name})
    assert reason.startswith(said)
    assert f"in {name}.__call__" in reason
    text = (task.folder / TRACEBACK).read_text()
    assert "own_methods.py" in text
    assert text.startswith("Traceback")
    [cause] = causes([(task, reason)])
    assert cause.lines[-1].startswith(last)
    assert any("own_methods.py" in line for line in cause.lines)
    assert len(cause.lines) <= 6
    assert cause.file == task.folder / TRACEBACK


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("number", "returned a single value (float32), but a change has one value per parameter (46)"),
        ("nothing", "returned nothing, but"),
        ("short", "returned 45 values, but"),
        ("all", "returned an array of shape (4, 46), but"),
        ("nan", "returned 46 of 46 values that are not finite, from finite updates"),
        ("complex", "returned values of type complex64, but a change must have real numbers"),
        ("words", "returned values of type <U32, but"),
        ("objects", "returned values of type object, but"),
    ],
)
def test_what_an_aggregator_cannot_return_is_refused_by_its_name(tmp_path, what, said):
    [(task, reason)] = failed(tmp_path, aggregator={"name": OWN + "Returns", "what": what})
    assert reason.startswith(f"the aggregator {OWN}Returns {said}")
    assert reason.endswith("(round 1)")
    [run] = load_runs(task.folder)
    assert run.error["client"] is None  # nobody else is blamed


def test_a_server_step_that_loses_parameters_is_refused_by_its_name(tmp_path):
    [(_, reason)] = failed(tmp_path, server={"name": OWN + "Shrinks"})
    assert f"the server step {OWN}Shrinks returned 45 values, but the model has shape (46,)" in reason


def test_one_cause_is_told_once_with_a_count(tmp_path):
    wrong = failed(tmp_path, seeds=[1, 2, 3], aggregator={"name": OWN + "Crashes"})
    [cause] = causes(wrong)
    assert cause.message.startswith("failed 3 runs, first only, fold 1, seed 1: KeyError")
    deep = "".join(f"line {n}\n    ~~~^^^\n" for n in range(1, 21))
    other = "\nThe above exception was the direct cause of the following exception:\n\nTraceback\nRoundError\n"
    (wrong[0][0].folder / TRACEBACK).write_text(deep + other)
    assert causes(wrong)[0].lines == tuple(f"line {n}" for n in range(15, 21))  # the last six of what came first
    rates = failed(tmp_path / "rates", seeds=[1, 2], learner={"name": "pdgd", "rate": 1e300})
    [cause] = causes(rates)  # whichever round and client it was
    assert cause.message.startswith("failed 2 runs, ")
    assert (cause.lines, cause.file) == ((), None)  # nobody's code crashed
    assert len(causes(wrong + rates)) == 2


def test_the_traceback_goes_when_a_run_succeeds(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.experiments.runner.own_methods.Crashes.__call__", lambda self, messages: 1 / 0)
    [(task, reason)] = failed(tmp_path, aggregator={"name": OWN + "Crashes"})
    assert reason.startswith("ZeroDivisionError: division by zero; test_failures.py, line")
    monkeypatch.setattr(
        "tests.experiments.runner.own_methods.Crashes.__call__", lambda self, messages: messages.updates.mean(axis=0)
    )
    assert not failed(tmp_path, aggregator={"name": OWN + "Crashes"})
    assert not (task.folder / TRACEBACK).exists()


@pytest.mark.process
def test_the_screen_shows_the_cause_its_last_lines_and_where_all_of_it_is(tmp_path):
    (tmp_path / "crash.toml").write_text(
        'rounds = 3\nseeds = [1, 2]\n[data]\nname = "synthetic-mq2007"\n[clients]\ncount = 4\ninteractions = 3\n'
        f'[learner]\nname = "pdgd"\n[aggregator]\nname = "{OWN}Crashes"\n'
    )
    done = shell("run", str(tmp_path / "crash.toml"), "--out", str(tmp_path / "runs"), "--workers", "2")
    assert done.returncode == 1
    assert done.stdout.count("KeyError: 'weights'; own_methods.py") == 1
    assert 'return table["weights"]' in done.stdout
    assert "Full traceback: " in done.stdout


# Before the first run.


def refused(tmp_path, **changes) -> str:
    with pytest.raises(ValueError) as problem:
        failed(tmp_path, **changes)
    assert not (tmp_path / "test").exists()  # no run began
    return str(problem.value)


def test_too_few_clients_for_a_rule_are_refused_before_the_first_run(tmp_path):
    said = refused(tmp_path, clients={"count": 2, "interactions": 3}, aggregator={"name": "krum"})
    assert "Krum has no neighbours to compare with" in said
    assert said.endswith("; nothing was run")


def test_a_variant_that_cannot_succeed_is_named_before_the_first_run(tmp_path):
    said = refused(tmp_path, vary={"aggregator.name": ["mean", "krum"]}, clients={"count": 2, "interactions": 3})
    assert said.startswith("variant aggregator.name=krum: attackers = 0.2 means 0 of 2 clients")


def test_an_impossible_partition_is_refused_before_the_first_run(tmp_path):
    clients = {"count": 5000, "interactions": 3, "partition": {"name": "own"}}
    assert "5000 clients need at least as many queries" in refused(tmp_path, seeds=[1, 2], clients=clients)


def test_a_file_that_cannot_be_read_is_refused_before_the_first_run(tmp_path):
    good = "".join(f"{n % 3} qid:{n // 4} 1:0.{n} 2:1\n" for n in range(1, 40))
    (tmp_path / "train.txt").write_text(good + "what is this\n")
    (tmp_path / "test.txt").write_text(good)
    files = {"train": str(tmp_path / "train.txt"), "test": str(tmp_path / "test.txt")}
    assert "train.txt, line 40" in refused(tmp_path, data=files, seeds=[1, 2])


def test_a_model_of_other_features_is_refused_as_a_start_before_the_first_run(tmp_path):
    run_experiment(read_tables(tables(rounds=2)), "first", tmp_path)
    [first] = load_runs(tmp_path / "first")
    lines = "".join(f"{n % 3} qid:{n // 4} 1:0.{n} 2:1\n" for n in range(1, 40))
    (tmp_path / "own.txt").write_text(lines)
    data = {"train": str(tmp_path / "own.txt"), "test": str(tmp_path / "own.txt")}
    said = refused(tmp_path, data=data, start=str(first.path / "model.json"))
    assert "has 46 parameters, but Linear on 2 features has 2" in said


def test_a_missing_package_is_told_before_the_first_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    asked = {"kind": "trees", "data": {"name": "synthetic-mq2007"}, "booster": {"name": "lambdamart"}}
    with pytest.raises(ValueError, match=r"trees need LightGBM: .*; nothing was run"):
        run_experiment(read_tables(asked), "test", tmp_path)
    assert not (tmp_path / "test").exists()


@pytest.mark.parametrize("sum", ["protocol", "ideal"])
def test_secure_sums_are_not_begun_without_their_package(tmp_path, monkeypatch, sum):
    """What only computes the sum needs no cipher."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    primitives.cache_clear()
    place = {"name": "secure-aggregation", "sum": sum}
    changes = {"mechanism": {"name": "gaussian", "clip": 1.0, "noise": 1.0, "placement": place}}
    if sum == "ideal":
        assert not failed(tmp_path, **changes)
    else:
        said = refused(tmp_path, **changes)
        assert "secure aggregation needs the package cryptography: pip install" in said
        assert said.endswith("; nothing was run")


def test_a_budget_that_silos_would_exceed_is_told_before_the_first_run(tmp_path):
    asked = {
        "kind": "silo",
        "rounds": 2,
        "data": {"name": "synthetic-silos"},
        "method": {"name": "cross-silo", "noise": 1.0},
        "privacy": {"budget": 2.0},
    }
    with pytest.raises(ValueError, match=r"costs ε = 6\.6 .* but the budget is 2; .*; nothing was run"):
        run_experiment(read_tables(asked), "test", tmp_path)
    assert not (tmp_path / "test").exists()


def test_what_fails_in_an_own_partition_is_left_to_the_run_which_keeps_the_traceback(tmp_path):
    clients = {"count": 4, "interactions": 3, "partition": {"name": OWN + "Deals"}}
    [(task, reason)] = failed(tmp_path, clients=clients)
    assert reason.startswith("ValueError: no way to deal these out; own_methods.py, line")
    assert (task.folder / TRACEBACK).exists()
