"""Corrects clicks of a log for position bias, with propensities of all clients, of each client, or from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.logs import SearchLog
from fedrank.data.ranking import RankingData
from fedrank.files import parse_json, read_bytes
from fedrank.ranking.propensity import (
    IN_THE_CLEAR,
    MAX_WEIGHT,
    OWN,
    SHARED,
    Bias,
    NotIdentifiable,
    Propensities,
    ShownResults,
    correct,
    given_propensities,
    propensities_of,
)
from fedrank.types import SimulatedClients

LARGEST = 1 << 20  # bytes of a file of propensities
_LISTED = 3  # positions below the first in a note


def shown_results(log: SearchLog, rows: NDArray[np.integer[Any]] | None = None) -> ShownResults:
    """The results shown in a log, or in some of its entries; an error if lists were built around a click."""
    if log.clicks is None or log.first is None:
        raise ValueError(
            f"{log.folder} has synthetic lists around one click each, so their positions were never shown to users; "
            "build it from a log of shown lists"
        )
    some = slice(None) if rows is None else rows
    return ShownResults.of_lists(log.lists[some], log.clicks[some], log.first[some], log.query[some])


def positions_of_log(
    log: SearchLog, bias: Bias = "position", rows: NDArray[np.integer[Any]] | None = None
) -> Propensities:
    """Propensities from entries of a log, by default all that are not held out; `NotIdentifiable` if undetermined."""
    return propensities_of(shown_results(log, log.training_rows() if rows is None else rows), log.features, bias)


def corrected_data(data: RankingData, log: SearchLog, source: str, bias: Bias) -> tuple[RankingData, list[str]]:
    """Entries of a log with corrected clicks, and notes about them. `source` is "shared", or a file."""
    rows = data.query_ids.astype(np.int64)
    if source != SHARED:
        shown_results(log, rows[:1])  # checks that there are shown lists
    by = positions_of_log(log, bias, rows) if source == SHARED else read_propensities(source)
    found = correct(data.grades > 0, data.position, by)
    known = [position for position in np.flatnonzero(by.known).tolist() if position > 0][:_LISTED]
    each = [f"{by.slope[k]:.2f} at position {k + 1} ({by.low[k]:.2f} to {by.high[k]:.2f})" for k in known]
    return replace(data, relevance=found.relevance), [
        f"clicks are corrected by propensities ({by.how}): clicks relative to the first position: {', '.join(each)}; "
        f"{found.clipped:.1%} of clicks have their weight clipped to {MAX_WEIGHT:g}, {found.unknown:.1%} are at "
        "positions with unknown propensity and are ignored",
        *by.notes,
        *([IN_THE_CLEAR] if source == SHARED else []),
        "test queries are evaluated with uncorrected logged clicks, which favour the shown order; `fedrank model "
        "estimate` estimates the clicks that users would have made",
    ]


def corrected_clients(clients: SimulatedClients, log: SearchLog, bias: Bias) -> SimulatedClients:
    """Clients whose clicks are corrected with propensities from their own lists alone."""
    data, pools = clients.data, np.unique(clients.pool)
    own = [clients.queries[clients.pools[pool] : clients.pools[pool + 1]] for pool in pools]
    if len(pools) < len(clients) or len(np.unique(np.concatenate(own))) < sum(map(len, own)):
        raise ValueError(
            f'data.propensities: "{OWN}" requires that each query belongs to one client, but several clients share '
            f'queries; use "{SHARED}", or a partition that assigns each query to one client, such as {{ name = '
            f'"users" }}'
        )
    relevance = np.full(data.documents, np.nan, np.float32)
    for pool, queries in zip(pools, own, strict=True):
        try:
            by = positions_of_log(log, bias, data.query_ids[queries].astype(np.int64))
        except NotIdentifiable as problem:
            client = int(clients.ids[np.flatnonzero(clients.pool == pool)[0]])
            raise NotIdentifiable(
                f'client {client} has {len(queries):,} lists, and {problem.because} (data.propensities = "{OWN}"; with '
                f'"{SHARED}", the lists of all clients are used)',
                problem.offer,
            ) from None
        rows = _documents(data, queries)
        relevance[rows] = correct(data.grades[rows] > 0, data.position[rows], by).relevance
    return _with_relevance(clients, relevance)


def with_propensities(clients: SimulatedClients, by: Propensities) -> SimulatedClients:
    """Clients whose clicks are corrected with the same propensities."""
    data = clients.data
    return _with_relevance(clients, correct(data.grades > 0, data.position, by).relevance)


def _with_relevance(clients: SimulatedClients, relevance: NDArray[np.float32]) -> SimulatedClients:
    data = replace(clients.data, relevance=relevance)
    people = None if clients.people is None else replace(clients.people, data=data)
    return replace(clients, data=data, people=people)


def read_propensities(path: str | Path) -> Propensities:
    """Propensities from a file of `fedrank data propensities --out`, or from other measurements."""
    path = Path(path)
    try:
        content = parse_json(read_bytes(path, LARGEST).decode())
        if not isinstance(content, dict) or not isinstance(content.get("slope"), list):
            raise ValueError('the list "slope" is missing')
        slope = _numbers(content["slope"])
        extra = _numbers(content.get("extra", [0.0] * len(slope)))
        if len(extra) != len(slope):
            raise ValueError(f'"slope" has {len(slope)} positions, "extra" {len(extra)}')
        return given_propensities(slope, extra)
    except (ValueError, TypeError, RecursionError) as problem:
        raise ValueError(
            f"{path} cannot be read as propensities: {problem}; write the file with `fedrank data propensities`"
        ) from None


def _numbers(values: Sequence[Any]) -> list[float]:
    wrong = [one for one in values if one is not None and (isinstance(one, bool) or not isinstance(one, (int, float)))]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is not a number")
    return [np.nan if one is None else float(one) for one in values]


def _documents(data: RankingData, queries: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    lengths = np.diff(data.offsets)[queries]
    starts = np.cumsum(lengths) - lengths
    rows: NDArray[np.int64] = np.repeat(data.offsets[queries] - starts, lengths) + np.arange(lengths.sum())
    return rows
