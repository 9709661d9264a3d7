"""Quality of a model at sites that report it: sums of measures over their own queries, not per query."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.handshake import Handshake
from fedrank.deploy.plan import Plan
from fedrank.types import Weights
from fedrank.wire import Label

MAX_QUERIES = 1 << 40  # upper bound of a plausible number of queries
Sums = Mapping[str, tuple[float, float, float]]  # by measure: of the model, of the current ranking, number of queries


def ask_measures(handshake: Handshake, weights: Weights, round: int) -> dict[str, Sums]:
    """Sums of measures from sites whose policy lists them. Invalid values are ignored."""
    calls, plan = handshake.calls, handshake.calls.plan
    content = wire.pack(Label("measure", plan.run, round), {"weights": weights[: plan.sent].astype(np.float32)})
    asked = {site.name: content for site in calls.sites() if site.name in handshake.reporting}
    found, _ = calls.ask(asked, round, protocol.read_facts, "facts")
    tables: dict[str, Sums] = {}
    for name, facts in found.items():
        table, known = facts.get("measures"), plan.experiment.measures
        if isinstance(table, dict) and set(table) <= set(known) and all(_is_sum(row) for row in table.values()):
            tables[name] = {measure: tuple(row) for measure, row in table.items()}
    return tables


def as_sums(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Sums]:
    """Quality from noised sums in the format of plain ones; the number of queries is the noised number of people."""
    return {
        site: {name: (one.model * one.people, one.given * one.people, one.people) for name, one in table.items()}
        for site, table in found.items()
    }


def as_columns(found: Mapping[str, Sums], plan: Plan) -> dict[str, list[Any]] | None:
    """Means per site, next to those of the current ranking, in the format of a run folder's clients."""
    if not found:
        return None
    columns: dict[str, list[Any]] = {"client": [], "queries": []}
    for name, table in found.items():
        columns["client"].append(plan.party(name).clients[0])
        columns["queries"].append(round(max((row[2] for row in table.values()), default=0)))
        for measure in plan.experiment.measures:
            model, given, count = table.get(measure, (math.nan, math.nan, 0))
            columns.setdefault(measure, []).append(model / count if count else math.nan)
            columns.setdefault(f"{measure} given", []).append(given / count if count else math.nan)
    return columns


def _is_sum(row: Any) -> bool:
    """Whether a row has two sums and a number of queries."""
    if not isinstance(row, list) or len(row) != 3 or type(row[2]) is not int or not 0 <= row[2] < MAX_QUERIES:
        return False
    return all(isinstance(value, (int, float)) and 0 <= value <= row[2] * 1e9 for value in row[:2])
