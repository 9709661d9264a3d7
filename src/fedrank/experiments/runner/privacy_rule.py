"""The rule that predicts what noise costs: the norm of the noise in a model, relative to what is learned."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fedrank.experiments.runner.privacy import enough, noise_needed, planned, setting_of
from fedrank.experiments.spec.experiment import SpecError, to_tables
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.federated.server_optimizers import Add
from fedrank.privacy.mechanisms import Gaussian, OnClient, SecureAggregation
from fedrank.ranking.learners import Pdgd

# nDCG@10 that runs with a tuned server rate lose against no noise, by people / (σ · √(T · d)): medians of 50 cells with
# linear PDGD on MQ2008, MQ2007-85 and OHSUMED, 2 to 100 rounds, ε from 0.5 to 4 (benchmarks/private_noise.py).
LOSSES = {0.84: 0.078, 1.5: 0.057, 3.9: 0.026, 7.0: 0.014, 11.0: 0.005, 28.0: 0.003}
WASTED = 2.0  # an advice is given if the recipe has this many times as much signal for its noise
RECIPE_ROUNDS = 4


def wasted_budget(experiment: FederatedExperiment) -> str | None:
    """Advice if few rounds, with each person in one of them, would lose much less quality at the same ε."""
    mechanism, clients = experiment.mechanism, experiment.clients
    if (
        not isinstance(mechanism, Gaussian)
        or mechanism.unit == "interaction"
        or not isinstance(experiment.learner, Pdgd)
    ):
        return None
    price = max((each.total for each in planned(experiment) if math.isfinite(each.total)), default=math.inf)
    dealt = clients.people if mechanism.unit == "person" else clients.count
    if math.isinf(price) or dealt < RECIPE_ROUNDS or experiment.kind == "async":
        return None
    try:
        recipe = with_noise(changed(experiment, {"rounds": RECIPE_ROUNDS}), price)
    except ValueError:  # a method of the spec cannot be combined with the schedule
        return None
    now, then = signal(experiment), signal(recipe)
    if then < WASTED * now:
        return None
    return (
        f"This spec wastes budget: with {RECIPE_ROUNDS} rounds, each person in one of them (clients.schedule = "
        f'"dealt"), and a larger server.rate, the same ε loses about {expected_loss(then):.3f} nDCG@10 instead of '
        f"about {expected_loss(now):.3f} (measured with linear rankers on MQ2008, MQ2007-85 and OHSUMED). Let "
        "`fedrank privacy plan` propose settings."
    )


def expected_loss(signal: float) -> float:
    """The measured loss at this signal, between those of `LOSSES`."""
    return float(np.interp(math.log(signal), np.log(list(LOSSES)), list(LOSSES.values())))


def signal(experiment: FederatedExperiment) -> float:
    """people / (σ · √(T · d)): proportional to the norm of what is learned over the norm of the noise in the model."""
    mechanism: Any = experiment.mechanism
    server = replace(experiment, server=Add(1.0), mechanism=replace(mechanism, clip=1.0))
    return experiment.rounds / noise_norm(server)


def noise_norm(experiment: FederatedExperiment) -> float:
    """The expected norm of the noise in the model: rate · σ · clip · √(T · d) / people in a round.

    If each person is in one round, it is rate · σ · clip · T^1.5 · √d / people. Noise that several parties add to their
    messages is larger by the square root of their number.
    """
    mechanism, server, clients = experiment.mechanism, experiment.server, experiment.clients
    assert isinstance(mechanism, Gaussian)
    share = 1 / experiment.rounds if clients.schedule == "dealt" else clients.participation
    cohort = people_of(experiment) * share
    noises = 1.0
    if isinstance(mechanism.placement, OnClient):
        noises = clients.count if mechanism.unit == "person" else cohort
    elif isinstance(mechanism.placement, SecureAggregation):
        noises = 1 / mechanism.placement.honest
    rate = getattr(server, "rate", 1.0)
    size = setting_of(experiment).parameters * experiment.rounds * noises
    return float(rate * mechanism.noise * mechanism.clip * math.sqrt(size) / cohort)


def people_of(experiment: FederatedExperiment) -> int:
    """The number of people: the clients, or those of all organisations."""
    return experiment.clients.count * experiment.clients.people


def changed(experiment: FederatedExperiment, changes: dict[str, Any]) -> FederatedExperiment:
    """The experiment with other settings, checked like a spec."""
    tables, problems = to_tables(experiment), list[str]()
    tables["server"] = {"name": "add"}
    tables["privacy"] = {"delta": experiment.privacy.delta}  # a plan has one run, whose ε is chosen
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        (tables[section] if section else tables)[name] = value
    tables["clients"] |= {"schedule": changes.get("clients.schedule", "dealt"), "participation": 1.0}
    if changes.get("mechanism", tables) is None:
        del tables["mechanism"]
    else:
        tables["mechanism"].pop("people", None)  # follows from the people of a round
    found = FederatedExperiment.read(tables, problems)
    if found is None:
        raise SpecError(problems)
    return found


def with_noise(experiment: FederatedExperiment, epsilon: float) -> FederatedExperiment:
    """The experiment with the noise that a target ε needs against every observer for whom there is a guarantee."""
    found = [values[0] for values in noise_needed(experiment, [epsilon]).values()]
    if not found or math.isinf(max(found)):
        raise ValueError(f"no noise gives ε = {epsilon:g} with this mechanism; use a larger --epsilon")
    mechanism: Any = experiment.mechanism
    return replace(experiment, mechanism=replace(mechanism, noise=float(enough(max(found)))))
