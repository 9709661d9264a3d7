"""Twins of compiled loops, compiled as C++ for this processor: the same bits as the loops themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedrank as fr
from fedrank.data.ranking import RankingData
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.source import read_spec
from fedrank.federated.multi_round import MultiRound
from fedrank.federated.round import first_state
from fedrank.federated.simulation import simulate
from fedrank.kernels.devices import DeviceError
from fedrank.ranking.cuda import pdgd
from fedrank.ranking.cuda.choice import find_device_learner, why_not
from fedrank.ranking.cuda.pdgd import PdgdOnDevice, in_blocks
from fedrank.seeds import Chance
from fedrank.types import LocalCorrection
from tests.cuda_on_cpu import Processor

pytestmark = pytest.mark.build


def problem(seed: int, features: int, longest: int, grades: int = 4) -> RankingData:
    """Queries of all lengths from 1 on."""
    rng = np.random.default_rng(seed)
    sizes = np.concatenate([[1, 2, longest], rng.integers(1, longest + 1, 20)])
    documents = int(sizes.sum())
    table = rng.normal(size=(documents, features)).astype(np.float32)
    return RankingData(
        table,
        rng.integers(0, grades + 1, documents).astype(np.int8),
        np.concatenate([[0], np.cumsum(sizes)]),
        np.array([str(q) for q in range(len(sizes))]),
        top_grade=grades,
    )


LEARNERS = {
    "plain": {},
    "batch": {"batch": True},
    "kept first place": {"keep": 0.5},
    "always kept": {"keep": 1.0},
    "cold": {"temperature": 0.3},
    "far apart": {"temperature": 0.001},
    "far apart and kept": {"temperature": 0.001, "keep": 0.5},
    "clipped weights": {"clip_weights": 0.5},
    "clipped gradients": {"batch": True, "clip_gradients": 0.1},
    "steps too large": {"rate": 1000.0},
}


@pytest.mark.parametrize("settings", LEARNERS.values(), ids=LEARNERS)
@pytest.mark.parametrize("shape", [(5, 7), (8, 33), (46, 41), (136, 130)])
def test_twin_gives_the_same_bits(machine: Processor, settings: dict[str, float], shape: tuple[int, int]) -> None:
    features, longest = shape
    learner = fr.learners.Pdgd(**{"rate": 0.1, **settings})  # type: ignore[arg-type]
    for seed, click_model in enumerate(("perfect", "navigational", "informational")):
        clients = fr.make_clients(
            problem(seed, features, longest), count=15, click_model=click_model, interactions=6, seed=seed
        )
        start = np.random.default_rng(seed).normal(size=features) * 0.3
        expected = learner(start, clients, Chance(seed, 5))
        updates, online = PdgdOnDevice(machine, learner, clients).learn(start, Chance(seed, 5))
        assert np.array_equal(expected.updates, updates, equal_nan=True)
        assert np.array_equal(expected.observed.online, online)


def test_twin_bends_as_the_loop_does(machine: Processor) -> None:
    clients = fr.make_clients(problem(1, 12, 40), count=9, click_model="informational", interactions=5)
    rng = np.random.default_rng(1)
    start, learner = rng.normal(size=12), fr.learners.Pdgd(rate=0.2)
    correction = LocalCorrection(pull=0.3, drifts=rng.normal(size=(9, 12)).astype(np.float64))
    expected = learner(start, clients, Chance(1, 1), correction)
    updates, _ = PdgdOnDevice(machine, learner, clients).learn(start, Chance(1, 1), None, correction)
    assert np.array_equal(expected.updates, updates)


def test_some_clients_learn_as_they_do_among_all(machine: Processor) -> None:
    clients = fr.make_clients(problem(2, 12, 40), count=20, click_model="informational", interactions=5)
    learner, start, some = fr.learners.Pdgd(rate=0.2), np.zeros(12), np.array([3, 4, 11, 19])
    expected = learner(start, clients.rows(some), Chance(1, 1))
    updates, online = PdgdOnDevice(machine, learner, clients).learn(start, Chance(1, 1), some)
    assert np.array_equal(expected.updates, updates)
    assert np.array_equal(expected.observed.online, online)


@pytest.mark.parametrize("participation", [1.0, 0.4])
@pytest.mark.parametrize(
    "rule",
    [
        fr.aggregators.Mean(),
        fr.aggregators.Mean(weighted=False),
        fr.aggregators.Median(),
        fr.aggregators.Apart(),
    ],
)
def test_rounds_on_a_machine_are_those_of_the_processor(machine: Processor, rule: object, participation: float) -> None:
    clients = fr.make_clients(problem(3, 12, 40), count=20, click_model="informational", interactions=5)
    federation = fr.Federation(fr.learners.Pdgd(rate=0.2), rule, participation=participation)  # type: ignore[arg-type]
    there = list(simulate(federation, clients, 6, seed=4, device=machine))
    for one, other in zip(simulate(federation, clients, 6, seed=4), there, strict=True):
        assert np.array_equal(one.weights, other.weights)
        assert (one.online, one.interactions, one.bytes_up) == (other.online, other.interactions, other.bytes_up)


def test_a_sum_in_parts_is_added_up_in_the_same_parts(machine: Processor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrank.federated.backends.CHUNK_BYTES", 4 * 12 * 7)
    clients = fr.make_clients(problem(3, 12, 40), count=20, click_model="informational", interactions=5)
    federation = fr.Federation(fr.learners.Pdgd(rate=0.2))
    (one,), (other,) = (list(simulate(federation, clients, 1, device=device)) for device in ("cpu", machine))
    assert np.array_equal(one.weights, other.weights)
    assert one.online == other.online


def test_documents_lie_in_groups_of_a_warp() -> None:
    data = problem(1, 3, 70)
    flat, places = in_blocks(data.features, data.offsets, step=32)
    for query in range(data.queries):
        begin, end = data.offsets[query], data.offsets[query + 1]
        for d in range(end - begin):
            at = places[query] + (d // 32 * 3 + np.arange(3)) * 32 + d % 32
            assert np.array_equal(flat[at], data.features[begin + d])


@pytest.mark.parametrize("half", [False, True])
def test_documents_lie_tightly_and_in_pairs(half: bool) -> None:
    data = problem(1, 3, 170)
    features = data.features.astype(np.float16) if half else data.features
    blocks, places = in_blocks(features, data.offsets)
    group = 64 if half else 32
    for query in range(data.queries):
        begin, count = int(data.offsets[query]), int(np.diff(data.offsets)[query])
        for d in range(count):
            left = count - d // group * group
            row = min(group, -(-left // 8) * 8)
            i = d % group
            inside = (i % (row // 2)) * 2 + i // (row // 2) if half else i
            at = places[query] + d // group * 3 * group + np.arange(3) * row + inside
            assert np.array_equal(blocks[at], features[begin + d])
    waste = len(blocks) - group - features.size
    assert waste < data.queries * 3 * 8


@pytest.mark.parametrize("shape", [(5, 7), (46, 41), (136, 170)])
def test_features_in_two_bytes_give_what_rounded_features_give(machine: Processor, shape: tuple[int, int]) -> None:
    data = problem(7, *shape)
    rounded = replace(data, features=data.features.astype(np.float16).astype(np.float32))
    clients, expected_crowd = (
        fr.make_clients(each, count=15, click_model="informational", interactions=6, seed=2) for each in (data, rounded)
    )
    start = np.random.default_rng(1).normal(size=shape[0]) * 0.3
    for learner in (fr.learners.Pdgd(rate=0.1), fr.learners.Pdgd(rate=0.1, keep=0.5, clip_weights=2.0)):
        expected = learner(start, expected_crowd, Chance(1, 5))
        there = PdgdOnDevice(machine, learner, clients, "float16")
        updates, online = there.learn(start, Chance(1, 5))
        assert np.array_equal(expected.updates, updates)
        assert np.array_equal(expected.observed.online, online)
        federation = fr.Federation(learner)
        ahead = MultiRound.of(there, federation, clients, 3, weighted=True)
        assert ahead is not None
        state, _ = first_state(federation, clients, 3, start)
        found = ahead(state, 4, lambda number: np.arange(15))
        for one, (after, *_) in zip(simulate(federation, expected_crowd, 4, 3, start=start), found, strict=True):
            assert np.array_equal(one.weights, after.weights)


def test_features_that_two_bytes_cannot_hold_are_refused(machine: Processor) -> None:
    data = problem(7, 5, 7)
    data.features[3, 2] = 1e6
    clients = fr.make_clients(data, count=2, click_model="informational", interactions=6, seed=2)
    with pytest.raises(DeviceError, match=r"1e\+06, but the maximum of float16 is 65504; normalise"):
        PdgdOnDevice(machine, fr.learners.Pdgd(), clients, "float16")
    with pytest.raises(ValueError, match=r"unknown type of features 'float8'.*float16"):
        PdgdOnDevice(machine, fr.learners.Pdgd(), clients, "float8")


@pytest.mark.parametrize(
    ("free", "said"),
    [
        (10_000, r"need 0\.00 GiB on cpu.*float16 would need .* does not fit either; use fewer"),
        (40_000, r"float16 would need .* which fits: use device"),
    ],
)
def test_data_that_do_not_fit_are_refused_before_they_are_copied(
    machine: Processor, monkeypatch: pytest.MonkeyPatch, free: int, said: str
) -> None:
    data = problem(7, 30, 20)  # about 200 documents: 48 and 24 thousand bytes
    monkeypatch.setattr(type(machine), "free", lambda self: free)
    clients = fr.make_clients(data, count=2, click_model="informational", interactions=6, seed=2)
    with pytest.raises(DeviceError, match=said):
        PdgdOnDevice(machine, fr.learners.Pdgd(), clients)


def test_what_has_no_twin_is_named(machine: Processor) -> None:
    clients = fr.make_clients(problem(1, 12, 40), count=3, click_model="informational", interactions=5)
    graded = fr.learners.LambdaRank()
    assert "LambdaRank" in why_not(graded, clients)
    with pytest.raises(DeviceError, match="LambdaRank has no GPU version"):
        find_device_learner(machine, graded, clients)
    assert find_device_learner("auto", graded, clients) is None
    assert find_device_learner("cpu", graded, clients) is None
    with pytest.raises(ValueError, match="unknown device 'tpu'"):
        find_device_learner("tpu", graded, clients)


def test_lists_have_one_length_everywhere() -> None:
    assert pdgd.SHOWN == fr.kernels.show.SHOWN


def test_a_run_on_a_machine_writes_the_same_rows_and_says_where(
    machine: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrank.ranking.cuda.choice.card", lambda: machine)
    (tmp_path / "spec.toml").write_text(
        'rounds = 4\nmeasures = ["ndcg@10"]\nlearner = "pdgd"\naggregator = "mean"\n[data]\nname = "synthetic-mq2007"\n'
        'folds = [1]\n[clients]\ncount = 5\nclick_model = "navigational"\ninteractions = 3\n',
        encoding="utf-8",
    )
    grid = read_spec(tmp_path / "spec.toml")
    for device in ("cpu", "cuda"):
        assert not run_experiment(grid, device, tmp_path, device=device).failed
    here, there = (next(run for run in load_runs(tmp_path / device)) for device in ("cpu", "cuda"))
    assert (here.path / "rounds.csv").read_bytes() == (there.path / "rounds.csv").read_bytes()
    assert (here.path / "queries.csv").read_bytes() == (there.path / "queries.csv").read_bytes()
    assert any("on cpu" in note for note in there.notes)
    assert not any("clients learned on" in note for note in here.notes)


SPEC = (
    'rounds = 6\nmeasures = ["ndcg@10"]\nlearner = "pdgd"\naggregator = "median"\n[data]\nname = "synthetic-mq2007"\n'
    'folds = [1]\n[clients]\ncount = 5\nclick_model = "navigational"\ninteractions = 3\n'
)


def facts_of(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return facts


def test_a_card_that_is_full_in_the_middle_leaves_a_run_to_go_on_from(
    machine: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrank.ranking.cuda.choice.card", lambda: machine)
    (tmp_path / "spec.toml").write_text(SPEC, encoding="utf-8")
    grid = read_spec(tmp_path / "spec.toml")
    assert not run_experiment(grid, "whole", tmp_path).failed
    calls, learn = [], PdgdOnDevice.learn

    def full_soon(self: PdgdOnDevice, *given: object, **named: object) -> object:
        calls.append(1)
        if len(calls) == 4:
            raise DeviceError("0.10 GiB more do not fit on cpu")
        return learn(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(PdgdOnDevice, "learn", full_soon)
    assert run_experiment(grid, "halves", tmp_path, device="cuda").failed
    (run,) = load_runs(tmp_path / "halves")
    error = facts_of(run.path)["error"]
    assert "Rounds up to 3 are saved" in error["message"]
    assert "crashed" not in error
    assert not run_experiment(grid, "halves", tmp_path).failed
    (run,), (whole,) = (list(load_runs(tmp_path / name)) for name in ("halves", "whole"))
    assert (run.path / "rounds.csv").read_bytes() == (whole.path / "rounds.csv").read_bytes()
    assert facts_of(run.path)["devices"] == [{"from": 1, "device": "cpu"}, {"from": 4, "device": "the processor"}]
    assert any("on cpu from round 1, on the processor from round 4" in note for note in run.notes)
    assert "devices" not in facts_of(whole.path)


def test_a_run_with_features_in_two_bytes_says_so(
    machine: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrank.ranking.cuda.choice.card", lambda: machine)
    (tmp_path / "spec.toml").write_text(SPEC, encoding="utf-8")
    assert not run_experiment(read_spec(tmp_path / "spec.toml"), "half", tmp_path, device="cuda-float16").failed
    (run,) = load_runs(tmp_path / "half")
    assert facts_of(run.path)["devices"] == [{"from": 1, "device": "cpu (features as float16)"}]
    assert any("those of features rounded to two bytes" in note for note in run.notes)


def test_a_device_that_is_none_stops_before_the_first_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown device 'cdua'.*cuda"):
        run_experiment(read_spec("quickstart"), "typo", tmp_path, device="cdua")
    assert list(tmp_path.iterdir()) == []
