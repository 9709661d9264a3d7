"""`fedrank.testing`: contracts that methods from outside keep, and what is said where one does not."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import fedrank as fr
from fedrank.experiments.runner.privacy import card
from fedrank.experiments.spec.families import code_from_outside
from fedrank.federated.partition import Split
from fedrank.privacy.noise import SecureSource

EXAMPLE = Path(__file__).parent.parent / "examples" / "my_methods.py"


@pytest.mark.parametrize("name", list(vars(fr.aggregators)))
def test_built_in_aggregators_keep_their_contract(name):
    fr.testing.check_aggregator(getattr(fr.aggregators, name)())


@pytest.mark.parametrize("name", list(vars(fr.learners)))
def test_built_in_learners_keep_their_contract(name):
    fr.testing.check_learner(getattr(fr.learners, name)())


@pytest.mark.parametrize("attack", [fr.attacks.SignFlip(1.0), fr.attacks.Lie(), fr.attacks.MinMax()], ids=str)
def test_built_in_attacks_keep_their_contract(attack):
    fr.testing.check_attack(attack)


@pytest.mark.parametrize("partition", [fr.partitions.Iid(), fr.partitions.Own(), fr.partitions.Dirichlet()], ids=str)
def test_built_in_partitions_keep_their_contract(partition):
    fr.testing.check_partition(partition)


@pytest.mark.parametrize(
    "mechanism", [fr.mechanisms.Gaussian(1.0, 1.0), fr.mechanisms.Laplace(1.0, 1.0, fr.placements.AtServer())], ids=str
)
def test_built_in_mechanisms_keep_their_contract(mechanism):
    fr.testing.check_mechanism(mechanism)


@dataclass(frozen=True)
class Bad:
    """Does one thing wrong."""

    wrong: str
    ranker = fr.rankers.Linear()
    sees = "nothing"
    source = SecureSource
    traits = frozenset()

    def __call__(self, *given):
        return getattr(self, self.wrong)(*given)

    def few_values(self, messages):
        return messages.updates[0, :2]

    def writes(self, messages):
        messages.updates[0] = 1.0
        return messages.updates.mean(axis=0)

    def random(self, messages):
        return np.random.default_rng().random(messages.updates.shape[1])

    def honest_too(self, messages, malicious, rng):
        return replace(messages, updates=-messages.updates)

    def always(self, messages, malicious, rng):
        return replace(messages, updates=np.where(malicious[:, None] | ~malicious.any(), 0, messages.updates))

    def never(self, labels, draws):
        return np.zeros(len(labels), bool)

    def empty(self, data, count, rng):
        return Split((np.arange(3, dtype=np.int32), np.zeros(0, np.int32)), np.arange(count, dtype=np.int32) % 2)

    def lucky(self, data, count, rng):
        order = np.random.default_rng().permutation(data.queries).astype(np.int32)
        return Split(tuple(np.array_split(order, count)), np.arange(count, dtype=np.int32))

    def idle(self, start, clients, chance, correction=None, threads=1):
        updates = np.zeros((len(clients), len(start)), np.float32)
        return fr.learners.Pdgd()(start, clients, chance)._replace(updates=updates)

    def protect(self, messages, cohort, source, counts=None):
        return replace(messages, updates=messages.updates - messages.updates.mean(axis=0))


@pytest.mark.parametrize(
    ("check", "wrong", "message"),
    [
        ("aggregator", "few_values", "returned 2 values"),
        ("aggregator", "writes", "changes its input"),
        ("aggregator", "random", "a different result for the same input"),
        ("attack", "honest_too", "changes the updates of honest clients"),
        ("attack", "always", "although no client is malicious"),
        ("click_model", "never", "never clicks"),
        ("partition", "empty", "none may be empty"),
        ("partition", "lucky", "different queries for the same seed"),
        ("learner", "idle", "returned only zeros"),
        ("mechanism", "protect", "depend on other clients"),
    ],
)
def test_a_contract_that_is_broken_is_said(check, wrong, message):
    with pytest.raises((AssertionError, RuntimeError), match=message):
        getattr(fr.testing, f"check_{check}")(Bad(wrong))


def test_the_methods_of_the_example_have_at_most_twelve_lines():
    source = EXAMPLE.read_text()
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    assert len(classes) == 6
    for node in classes:
        lines = [line for line in ast.get_source_segment(source, node).splitlines()[2:] if line.strip()]
        assert len(lines) <= 12, node.name


def spec_beside(folder):
    (folder / "my_methods_here.py").write_text(EXAMPLE.read_text())
    text = EXAMPLE.with_suffix(".toml").read_text().replace("my_methods:", "my_methods_here:")
    (folder / "spec.toml").write_text(text.replace("rounds   = 100", "rounds = 2"))
    return folder / "spec.toml"


def test_a_file_beside_the_spec_is_found_and_cards_say_not_verified(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    grid = fr.read_spec(spec_beside(tmp_path))
    by_name = {variant.name: variant.experiment for variant in grid.variants}
    made = card(by_name["mechanism"], [], 2, 2)
    assert made.summary.startswith("Not verified: the mechanism is not part of fedrank")
    assert "not verified: whether my_methods_here:Clip achieves what it claims" in made.not_covered
    assert list(code_from_outside(by_name["click-model"])) == ["clients.click_model: 'my_methods_here:Dcm'"]
    with pytest.raises(ValueError, match="my_methods_here:Dcm"):
        fr.read_spec(spec_beside(tmp_path), trust=False)


def test_a_click_model_that_cannot_be_imported_is_an_error_before_anything_runs(tmp_path):
    spec = tmp_path / "spec.toml"
    spec.write_text(
        'rounds = 1\ndata = { name = "synthetic-mq2007" }\nlearner = { name = "pdgd" }\n'
        'clients = { count = 2, click_model = "no_such_module:Dcm" }\n'
    )
    with pytest.raises(ValueError, match=r"clients.click_model.name: 'no_such_module:Dcm' cannot be imported"):
        fr.read_spec(spec)


@pytest.mark.process
def test_the_example_runs(tmp_path):
    subprocess.run([sys.executable, EXAMPLE], check=True, capture_output=True)
    command = [sys.executable, "-m", "fedrank", "run", spec_beside(tmp_path), "--out", tmp_path / "runs"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "click-model" in result.stdout
