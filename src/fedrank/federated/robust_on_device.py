"""Robust rules of which a graphics card has twins: updates stay there."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrank.federated.robust import Krum, Median, MultiKrum, TrimmedMean, krum_numbers
from fedrank.kernels.devices import Device
from fedrank.ranking.cuda.robust import RobustOnDevice, most_clients
from fedrank.types import Aggregator, Change


def has_twin(machine: Device, rule: Aggregator, clients: int) -> bool:
    """Whether a machine can do this rule for so many clients."""
    if type(rule) in (Krum, MultiKrum):
        return clients <= most_clients(machine, 8)
    return type(rule) in (TrimmedMean, Median) and clients <= most_clients(machine, 4)


def change_on_device(machine: Device, rule: Any, updates: Any) -> Change | None:
    """What a rule makes of updates in a machine's memory; None if one of them is not finite."""
    there = RobustOnDevice(machine, updates)
    if not there.sound():
        return None
    if isinstance(rule, TrimmedMean | Median):
        return there.trimmed_mean(rule.dropped(there.clients))
    neighbours, count = krum_numbers(rule.attackers, there.clients, alone=isinstance(rule, Krum))
    scores = there.krum_scores(neighbours, rule.distance == "squared")
    return there.mean_of(np.argsort(scores, kind="stable")[:count])
