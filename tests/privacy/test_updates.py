"""Updates of any model: clipped, charged, noised; sums over people; what is left of an update."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fedrank.privacy.updates import PersonSum, PrivateUpdates, UpdatePrivacy, UpdateRefused, person_sum
from tests import needs

SITE = {"unit": "site", "shapes": {"w": (6,)}, "clip": 1.0, "epsilon": 4.0, "rounds": 5}


class Tensor:
    """What is used of a PyTorch tensor."""

    def __init__(self, values) -> None:
        self.values = np.array(values, np.float32)

    def detach(self):
        return self

    cpu = detach

    def numpy(self):
        return self.values

    def clone(self):
        return Tensor(self.values)


def test_epsilon_is_that_of_an_outside_accountant():
    accounting = pytest.importorskip("dp_accounting", reason="pip install 'fedrank[privacy]'")
    for unit, people in (("site", 1), ("person", 500)):
        for rounds in (1, 20):
            settings = UpdatePrivacy(unit, {"w": (1000,)}, 0.5, 2.0, rounds, 1e-5, people=people)
            reach = 2.0 if unit == "site" else 1.0  # another update of a site, or none of a person
            accountant = accounting.pld.PLDAccountant()
            event = accounting.GaussianDpEvent(settings.noise / reach)
            accountant.compose(accounting.SelfComposedDpEvent(event, rounds))
            assert accountant.get_epsilon(1e-5) == pytest.approx(2.0, rel=0.01)
            assert settings.guarantee(settings.noise).epsilon(rounds, 1e-5) <= 2.0


def test_the_expected_cosine_is_what_is_measured(tmp_path):
    settings = UpdatePrivacy("person", {"w": (200,)}, 1.0, 8.0, 60, 1e-5, sites=3, people=100)
    true = np.full(200, 1 / math.sqrt(200))  # everybody sends the same, of the length of the clip
    updates = PrivateUpdates(settings, tmp_path)
    total = PersonSum(1.0, 100)
    for _ in range(100):
        total.add({"w": true})
    cosines = []
    for _ in range(20):
        mean = np.mean([updates.protect(total.update(), "job", total.mark)["w"] for _ in range(3)], axis=0)
        cosines.append(float(mean @ true / np.linalg.norm(mean)))
    assert np.mean(cosines) == pytest.approx(settings.expected_cosine, abs=0.03)


def test_large_models_are_refused_before_they_are_trained():
    """The figures of NVFLARE users with 7 million parameters."""
    settings = UpdatePrivacy("site", {"w": (7_000_000,)}, 1.0, 1.0, 1, 1e-5)
    assert settings.expected_cosine == pytest.approx(5e-5, rel=0.1)
    with pytest.raises(ValueError, match=r"expected cosine .* is 0\.0001, below 0\.1"):
        settings.check_useful()
    UpdatePrivacy("person", {"w": (200,)}, 1.0, 4.0, 10, people=500).check_useful()


def test_one_person_moves_a_sum_by_the_clip_at_most():
    rows = np.random.default_rng(1).normal(size=(30, 6)) * np.logspace(-2, 3, 30)[:, None]
    rows[7] = np.nan
    sums = []
    for left_out in (None, *range(30)):
        total = PersonSum(0.5, 30)
        for row in (row for number, row in enumerate(rows) if number != left_out):
            total.add({"a": row[:4].reshape(2, 2), "b": row[4:]})
        sums.append(np.concatenate([one.ravel() for one in total.update().values()]))
    moved = np.linalg.norm(np.array(sums[1:]) - sums[0], axis=1)
    assert moved.max() <= 0.5 + 6 * total.step
    assert moved[-1] == pytest.approx(0.5, abs=1e-4)
    assert moved[7] == 0  # not a number: as if the person were not there


def test_arrays_and_tensors_give_the_same_sum():
    weights, people = [0.5, -0.5, 0.0], [1, 2, 3]
    plain = person_sum({"w": np.array(weights)}, people, lambda w, who: {"w": w["w"] + who / 10}, 0.2, 3)

    def train(copy, who):
        copy["w"].values += np.float32(who / 10)
        return copy

    start = {"w": Tensor(weights)}
    tensors = person_sum(start, people, train, 0.2, 3)
    assert start["w"].values.tolist() == weights
    shared = np.array(weights)  # as if the model that is trained has this memory

    def train_in_place(copy, who):
        shared[:] = copy["w"] + who / 10
        return {"w": shared}

    assert np.array_equal(person_sum({"w": shared}, people, train_in_place, 0.2, 3).update()["w"], plain.update()["w"])
    assert tensors.update()["w"] == pytest.approx(plain.update()["w"], abs=1e-6)
    assert plain.update()["w"] == pytest.approx([0.1 / math.sqrt(0.03) * 0.1732 + 2 * 0.2 / math.sqrt(3)] * 3, abs=1e-3)


def test_a_model_of_pytorch_gives_the_sum_of_its_gradient_steps():
    """Of each person alone, although `state_dict` shares the memory of the model that is trained."""
    torch = pytest.importorskip("torch", reason=needs.reason("torch", "PyTorch is not installed"))
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    people = {who: torch.tensor(np.random.default_rng(who).normal(size=(5, 2)), dtype=torch.float32) for who in (1, 2)}

    def train(copy, who):
        model.load_state_dict(copy)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (model(people[who]) - who).square().mean().backward()
            optimizer.step()
        return model.state_dict()

    start = {name: value.clone() for name, value in model.state_dict().items()}
    expected = dict.fromkeys(start, 0.0)
    for who in people:
        trained = train(start, who)
        moved = {name: value.double() - start[name] for name, value in trained.items() if value.is_floating_point()}
        norm = math.sqrt(sum(float(value.square().sum()) for value in moved.values()))
        assert norm > 0.2  # it is clipped
        expected |= {name: expected[name] + 0.2 * value / norm for name, value in moved.items()}
    model.load_state_dict(start)
    found = person_sum(model.state_dict(), people, train, 0.2, 2).update()
    assert set(found) == set(start) - {"1.num_batches_tracked"}
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-5)
    for problem in (torch.ones(2, dtype=torch.bfloat16), torch.ones(2).to_sparse()):
        with pytest.raises(UpdateRefused, match=r"'w' cannot be read: .*; convert it to float32"):
            person_sum({"w": problem}, [1], lambda copy, who: copy, 0.2, 2)


def test_people_beyond_the_public_number_and_other_shapes_are_refused():
    total = PersonSum(1.0, 1)
    with pytest.raises(ValueError, match="no person was added"):
        total.update()
    total.add({"w": np.ones(2)})
    with pytest.raises(ValueError, match="people = 1 is the maximum"):
        total.add({"w": np.ones(2)})
    more = PersonSum(1.0, 2)
    more.add({"w": np.ones(2)})
    with pytest.raises(ValueError, match="different names or shapes"):
        more.add({"w": np.ones(3)})


def test_an_unmarked_sum_or_one_that_was_not_clipped_is_refused(tmp_path):
    updates = PrivateUpdates(UpdatePrivacy("person", {"w": (2,)}, 1.0, 4.0, 5, people=10), tmp_path)
    for mark in (None, {"clip": 2.0, "people": 10}, "person", {"clip": 1.0}):
        with pytest.raises(UpdateRefused, match="not marked as a sum over people"):
            updates.protect({"w": np.ones(2)}, "job", mark)
    for value, problem in ((100.0, "longer than all people"), (0.1, "grid"), (np.nan, "grid"), (np.inf, "grid")):
        with pytest.raises(UpdateRefused, match=problem):
            updates.protect({"w": np.full(2, value)}, "job", {"clip": 1.0, "people": 10})
    assert updates.population.spent() == {}


def test_only_named_arrays_leave(tmp_path):
    updates = PrivateUpdates(UpdatePrivacy(**SITE), tmp_path)
    found = updates.protect({"w": np.ones(6), "batches": np.array([17]), "patient 17": np.ones(17)}, "../../job")
    assert list(found) == ["w"]
    assert found["w"].dtype == np.float32
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger", "updates.json"]  # no path from a job's name


def test_names_and_not_their_order_say_what_is_added_up():
    total = PersonSum(1.0, 2)
    total.add({"a": np.array([0.25]), "b": np.array([0.5])})
    total.add({"b": np.array([0.5]), "a": np.array([0.25]), "counter": np.array([17])})
    assert {name: value.tolist() for name, value in total.update().items()} == {"a": [0.5], "b": [1.0]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "shapes: is missing"),
        ('unit = "site"\nclips = 1', "unknown key 'clips'"),
        ("shapes = { w = [0] }\nunit = 'site'\nclip = 1.0\nepsilon = 1.0\nrounds = 1", "shapes.w"),
        ("shapes = { w = [6] }\nunit = 3", "unit: 3 cannot be used"),
        ('unit = "site"\nshapes = { w = [6] }\nclip = 0.0\nepsilon = 1.0\nrounds = 1', "clip: 0.0 cannot be used"),
        ('unit = "site"\nshapes = { w = [6] }\nclip = nan\nepsilon = 1.0\nrounds = 1', "clip: nan cannot be used"),
        ('unit = "site"\nshapes = { w = [6] }\nclip = 1.0\nepsilon = 1.0\nrounds = 1\npeople = 2', "only to unit"),
        ("unit = [[[", "filter.toml"),
    ],
)
def test_wrong_settings_are_named(tmp_path, text, problem):
    path = tmp_path / "filter.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=problem):
        PrivateUpdates.open(path)


def test_settings_that_are_not_text_are_named(tmp_path):
    path = tmp_path / "filter.toml"
    path.write_bytes(b"\xa6\xff")
    with pytest.raises(ValueError, match=r"filter\.toml is not UTF-8 text"):
        PrivateUpdates.open(path)


KILLS = 8
KILLED = """
import sys
import numpy as np
from pathlib import Path
from fedrank.privacy.updates import PrivateUpdates, UpdatePrivacy
updates = PrivateUpdates(UpdatePrivacy("site", {"w": (6,)}, 1.0, 100.0, 100_000), Path(sys.argv[1]))
while True:
    updates.protect({"w": np.ones(6)}, "job")
    sys.stdout.write("left\\n")
    sys.stdout.flush()
"""


@pytest.mark.process
def test_killed_at_any_time_everything_that_left_is_charged(tmp_path):
    left, chance = 0, random.Random(3)
    settings = UpdatePrivacy("site", {"w": (6,)}, 1.0, 100.0, 100_000)
    for _ in range(KILLS):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline()
        time.sleep(chance.random() / 4)
        os.kill(child.pid, signal.SIGKILL)
        left += 1 + len(child.stdout.read().splitlines())
        child.wait()
        child.stdout.close()
        updates = PrivateUpdates(settings, tmp_path)
        [account] = updates.population.accounts()
        assert left <= account.rounds <= left + KILLS
    print(f"{KILLS} kills, {left} updates left, {account.rounds} charged")
