"""Create simulated clients: their queries, relevance labels and click models."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.federated.partition import Iid, Partition, Split
from fedrank.ranking.click_models import ClickModel, OwnClickModel, click_model_for
from fedrank.ranking.loops import IN_TABLE, compiled_function
from fedrank.seeds import rng_for
from fedrank.types import SimulatedClients

AnyClickModel = str | ClickModel | OwnClickModel


def make_clients(
    data: RankingData,
    count: int,
    *,
    partition: Partition | None = None,
    click_model: AnyClickModel | Sequence[AnyClickModel] = "perfect",
    interactions: int | Sequence[int] = 5,
    click_model_per: Literal["client", "interaction"] = "client",
    malicious: int = 0,
    malicious_click_model: AnyClickModel | None = None,
    people: int = 1,
    seed: int = 1,
) -> SimulatedClients:
    """Create `count` simulated clients that search the queries of `data`.

    `partition` assigns queries to clients; without it, all clients draw from all queries. `click_model` is a
    `ClickModel`, the name of one, or a function: it takes the relevance labels of a list and uniform random numbers,
    two per result, and returns which results are clicked. `interactions` is the number of searches per round. If either
    is a list, client c gets entry c, and the list repeats; with `click_model_per="interaction"`, each interaction draws
    one of the click models at random. The first `malicious` clients are malicious; `malicious_click_model` is theirs,
    if it differs.

    With `people` above 1, clients are organisations, and the settings of a client apply to each of its persons. The
    queries of an organisation are divided among its persons; if there are too few, several persons have the same query.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=20)
    >>> fr.make_clients(data, count=4, partition=fr.partitions.Own(), click_model="navigational", interactions=[1, 10])
    <SimulatedClients of synthetic-mq2007; clients: 4; queries each: 5; interactions per round: 1 to 10; users:
    navigational; malicious: 0>
    """
    from fedrank.kernels.measures import ideal_dcg

    if count < 1:
        raise ValueError(f"count must be at least 1 (got {count})")
    if people < 1:
        raise ValueError(f"people must be at least 1 (got {people})")
    if click_model_per not in ("client", "interaction"):
        raise ValueError(f'click_model_per must be "client" or "interaction" (got {click_model_per!r})')
    if not 0 <= malicious <= count:
        raise ValueError(f"malicious must be from 0 to {count} (got {malicious})")
    users = (
        list(click_model) if isinstance(click_model, Sequence) and not isinstance(click_model, str) else [click_model]
    )
    honest = len(users)
    if malicious and malicious_click_model is not None:
        users.append(malicious_click_model)
    searches = np.resize(np.asarray(interactions, dtype=np.int64), count)
    if searches.min() < 0 or searches.max() < 1:
        raise ValueError(f"interactions must be at least 1 (got {interactions})")
    own = tuple(None if isinstance(one, (str, ClickModel)) else one for one in users)
    tables = [_table_of(one, data.top_grade) for one in users]
    for one in tables:
        if len(one.click) <= data.top_grade:
            raise ValueError(
                f"a click model has probabilities for {len(one.click)} relevance labels, but the data have "
                f"{data.top_grade + 1}; give one per label"
            )
    levels = max(len(one.click) for one in tables)
    split = (partition or Iid())(data, count, rng_for(seed, "partition"))
    _check(split, count)
    data = data if split.data is None else split.data
    grades = np.ascontiguousarray(data.grades[None, :] if split.grades is None else split.grades)
    view = np.zeros(count, dtype=np.int32) if split.view is None else split.view.astype(np.int32)
    # -1: kernels draw a row of the tables at each interaction.
    who = (
        np.arange(count, dtype=np.int32) % np.int32(honest)
        if click_model_per == "client"
        else np.full(count, -1, np.int32)
    )
    if len(users) > honest:
        if click_model_per == "interaction":
            raise ValueError(
                'click_model_per = "interaction" draws from all click models, including that of malicious clients; use '
                '"client"'
            )
        who[:malicious] = honest
    click = _rows([one.click for one in tables], levels)
    for row, model in enumerate(own):
        if model is not None:
            click[row] = IN_TABLE
            if compiled_function(model) is None:
                _note_slow(_click_model_name(model, row + 1))
    clients = SimulatedClients(
        data=data,
        ids=np.arange(count, dtype=np.int64),
        pool=split.pool,
        view=view,
        judged=view if split.judged is None else split.judged,
        click_model=who,
        interactions=searches,
        malicious=np.arange(count) < malicious,
        queries=np.concatenate(split.pools),
        pools=np.cumsum([0, *map(len, split.pools)]).astype(np.int64),
        grades=grades,
        ideal=ideal_dcg(grades, data.offsets, 10),
        click=click,
        stop=_rows([one.stop for one in tables], levels),
        attention=np.array([one.attention for one in tables]),
        shared=np.zeros(0, dtype=np.int32) if split.shared is None else split.shared,
        click_model_names=tuple(_click_model_name(one, u + 1) for u, one in enumerate(users)),
        own_click_models=own if any(own) else (),
    )
    return clients if people == 1 else _with_people(clients, people, rng_for(seed, "people"))


def _table_of(model: AnyClickModel, top_grade: int) -> ClickModel:
    """Return the probabilities of a click model; the table of a user-defined one is never read."""
    if isinstance(model, str):
        return click_model_for(model, top_grade)
    if isinstance(model, ClickModel):
        return model
    if not callable(model):
        raise ValueError(f"click_model = {model!r} is not a click model; use a name, a ClickModel or a function")
    return ClickModel((0.0,) * (top_grade + 1), (0.0,) * (top_grade + 1))


@cache
def _note_slow(name: str) -> None:
    """Warn once per process."""
    warnings.warn(
        f"the click model {name} runs in Python, about 25 times slower than a compiled one; use @numba.njit if that is "
        "too slow",
        stacklevel=3,
    )


def _click_model_name(model: AnyClickModel, number: int) -> str:
    if isinstance(model, str):
        return model
    if isinstance(model, ClickModel):
        return f"own table {number}"
    return str(getattr(model, "__name__", type(model).__name__))


def _with_people(clients: SimulatedClients, people: int, rng: np.random.Generator) -> SimulatedClients:
    """Divide every client into persons with a share of its queries each; users of a search log are not divided."""
    pools: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = []
    for pool in clients.pool:
        queries = clients.queries[clients.pools[pool] : clients.pools[pool + 1]]
        who = clients.data.who[queries] if len(clients.data.who) else queries
        users, of_query = np.unique(who, return_inverse=True)
        places = np.split(np.argsort(of_query.ravel(), kind="stable"), np.cumsum(np.bincount(of_query.ravel()))[:-1])
        turn = np.resize(rng.permutation(len(users)), max(len(users), people))
        dealt = (
            np.concatenate([places[click_model] for click_model in turn[person::people]]) for person in range(people)
        )
        pools += [queries[np.sort(mine)] for mine in dealt]
    client = np.repeat(np.arange(len(clients)), people)
    each = replace(
        clients.rows(client),
        ids=clients.ids[client] * people + np.tile(np.arange(people), len(clients)),
        pool=np.arange(len(pools), dtype=np.int32),
        queries=np.concatenate(pools),
        pools=np.cumsum([0, *map(len, pools)]).astype(np.int64),
        client=clients.ids[client],
    )
    return replace(clients, interactions=clients.interactions * people, people=each)


def _check(split: Split, count: int) -> None:
    if len(split.pool) != count:
        raise ValueError(
            f"the partition returned {len(split.pool)} clients instead of {count}; fix the partition, or change the "
            "count"
        )
    sizes = np.array([len(pool) for pool in split.pools])
    without = np.flatnonzero(sizes[split.pool] == 0)
    if len(without):
        raise ValueError(f"client {without[0]} of {count} has no queries; use fewer clients or another partition")


def _rows(tables: Sequence[Sequence[float]], levels: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.array([[*table, *[0.0] * (levels - len(table))] for table in tables])
