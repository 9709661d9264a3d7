"""Click models from outside: a function of labels and draws."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pytest

from fedrank.attacks.clicks import replay
from fedrank.data.ranking import RankingData
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.server_optimizers import Adam
from fedrank.federated.simulation import simulate
from fedrank.kernels.devices import DeviceError
from fedrank.ranking.click_models import CLICK_MODELS
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.learners import LambdaRank, Pdgd
from fedrank.seeds import Chance
from tests.made_up import made_up_data

pytestmark = pytest.mark.filterwarnings("ignore:the click model .* runs in Python")
DATA = made_up_data(queries=30)


@dataclass(frozen=True)
class Cascade:
    """The built-in reader, written again: two draws for each result decide on a click and on leaving."""

    name: str = "navigational"

    def __call__(self, labels, draws):
        model = CLICK_MODELS[self.name][DATA.top_grade + 1]
        clicks = np.zeros(len(labels), dtype=bool)
        for i, label in enumerate(labels):
            if draws[2 * i] < model.click[label] * model.attention[i]:
                clicks[i] = True
                if draws[2 * i + 1] < model.stop[label]:
                    break
        return clicks


@pytest.mark.parametrize(
    "federation", [Federation(), Federation(Pdgd(batch=True)), Federation(Evolution(), server=Adam(0.1))]
)
@pytest.mark.parametrize("per", ["client", "interaction"])
def test_the_built_in_model_written_again_gives_the_same_bits(federation, per):
    def outcomes(click_model):
        clients = make_clients(DATA, 4, click_model=click_model, click_model_per=per, interactions=[2, 5], seed=3)
        return list(simulate(federation, clients, 3, 5))

    ours = outcomes(["navigational", "informational"])
    theirs = outcomes([Cascade(), "informational"])
    for one, other in zip(ours, theirs, strict=True):
        assert one.weights.tobytes() == other.weights.tobytes()
        assert one.online.hex() == other.online.hex()
        assert one.reward == pytest.approx(other.reward, abs=1e-15) if one.reward else other.reward is None


@pytest.mark.long
@pytest.mark.parametrize("learner", [Pdgd(), Evolution()], ids=str)
def test_a_compiled_model_gives_the_same_bits_in_compiled_loops(learner, monkeypatch):
    numba = pytest.importorskip("numba")
    click, stop = (CLICK_MODELS["navigational"][3].click, CLICK_MODELS["navigational"][3].stop)

    @numba.njit
    def cascade(labels, draws):
        clicks = np.zeros(len(labels), np.bool_)
        for i in range(len(labels)):
            if draws[2 * i] < click[labels[i]]:
                clicks[i] = True
                if draws[2 * i + 1] < stop[labels[i]]:
                    break
        return clicks

    monkeypatch.delattr("fedrank.ranking.impressions.SimulatedImpressions.drawn")
    monkeypatch.delattr("fedrank.ranking.impressions.SimulatedImpressions.best")

    @dataclass(frozen=True)
    class Compiled:
        def __call__(self, labels, draws):
            raise AssertionError  # the compiled function is called instead

        def compiled(self):
            return cascade

    found = []
    for model in ("navigational", cascade, Compiled()):
        clients = make_clients(DATA, 4, click_model=[model, "informational"], interactions=[2, 5], seed=3)
        found.append([*simulate(Federation(learner), clients, 3, 5, threads=2)][-1])
    for one in found[1:]:
        assert one.weights.tobytes() == found[0].weights.tobytes()
        assert one.online.hex() == found[0].online.hex()


def slow_one(labels, draws):
    return labels > 0


@pytest.mark.filterwarnings("default")
def test_what_runs_in_python_is_noted_once():
    with pytest.warns(UserWarning, match="click model slow_one runs in Python"):
        make_clients(DATA, 2, click_model=slow_one)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_clients(DATA, 2, click_model=slow_one)


def test_a_plain_function_is_enough_and_names_the_clients():
    def first_only(labels, draws):
        return np.arange(len(labels)) == 0

    clients = make_clients(DATA, 3, click_model=first_only)
    assert clients.click_model_names == ("first_only",)
    assert "first_only" in repr(clients)
    outcome = [*simulate(Federation(), clients, 2)][-1]
    assert np.isfinite(outcome.weights).all()


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (np.zeros(3, bool), r"of shape \(3,\) for 10 results"),
        (np.zeros(10), "float64 values"),
        (None, "object values"),
    ],
)
def test_what_is_not_one_truth_value_for_each_result_is_refused(returned, said):
    rng = np.random.default_rng(1)
    data = RankingData(
        rng.random((60, 5), np.float32), np.zeros(60, np.int8), np.arange(6) * 12, np.arange(5).astype(str)
    )
    clients = make_clients(data, 2, click_model=lambda labels, draws: returned)
    with pytest.raises(ValueError, match=said):
        list(simulate(Federation(), clients, 1))


def test_what_needs_probabilities_refuses_them():
    clients = make_clients(DATA, 2, click_model=Cascade())
    with pytest.raises(ValueError, match="click audit needs the probabilities"):
        replay(Pdgd(), np.zeros(5), clients, 0, Chance(1, 1))
    with pytest.raises((DeviceError, ImportError)):
        list(simulate(Federation(), clients, 1, device="cuda"))
    with pytest.raises(ValueError, match="42 is not a click model"):
        make_clients(DATA, 2, click_model=42)


def test_learners_without_clicks_do_not_call_them():
    def never(labels, draws):
        raise AssertionError

    list(simulate(Federation(LambdaRank()), make_clients(DATA, 2, click_model=never), 1))
