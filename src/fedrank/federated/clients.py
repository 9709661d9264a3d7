"""Making the table of clients: who searches with what, sees which grades, and clicks how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.federated.partition import Iid, Partition, Split
from fedrank.ranking.click_models import ClickModel, click_model_for
from fedrank.seeds import rng_for
from fedrank.types import SimulatedClients


def make_clients(
    data: RankingData,
    count: int,
    *,
    partition: Partition | None = None,
    user: str | ClickModel | Sequence[str | ClickModel] = "perfect",
    interactions: int | Sequence[int] = 5,
    user_per: Literal["client", "interaction"] = "client",
    malicious: int = 0,
    malicious_user: str | ClickModel | None = None,
    people: int = 1,
    seed: int = 1,
) -> SimulatedClients:
    """A table of `count` clients over `data`.

    Of a list of users or interactions, client c gets entry c, counted around. With `user_per="interaction"` every
    interaction draws one of the users instead, all alike. The first `malicious` clients are malicious, and click as
    their own user does, if one is given.

    With more than one of `people`, clients are organisations, and what is said of a client holds for each of its
    people. The queries of an organisation are dealt out to them; where it has fewer, several ask the same.
    """
    from fedrank.kernels.measures import ideal_dcg

    if count < 1:
        raise ValueError(f"{count} clients; at least one must take part")
    if people < 1:
        raise ValueError(f"people = {people}: no client has anybody who searches; use 1 or more")
    if user_per not in ("client", "interaction"):
        raise ValueError(f'user_per = {user_per!r} is not known; use "client" or "interaction"')
    if not 0 <= malicious <= count:
        raise ValueError(f"{malicious} of {count} clients cannot be malicious; use 0 to {count}")
    users = [user] if isinstance(user, (str, ClickModel)) else list(user)
    honest = len(users)
    if malicious and malicious_user is not None:
        users.append(malicious_user)
    searches = np.resize(np.asarray(interactions, dtype=np.int64), count)
    if searches.min() < 0 or searches.max() < 1:
        raise ValueError(f"interactions = {interactions}: nobody would search; use 1 or more")
    tables = [click_model_for(one, data.top_grade) if isinstance(one, str) else one for one in users]
    for one in tables:
        if len(one.click) <= data.top_grade:
            raise ValueError(
                f"a user has click probabilities for {len(one.click)} grades, the data have {data.top_grade + 1}; "
                "give one for each"
            )
    levels = max(len(one.click) for one in tables)
    split = (partition or Iid())(data, count, rng_for(seed, "partition"))
    _check(split, count)
    data = data if split.data is None else split.data
    grades = np.ascontiguousarray(data.grades[None, :] if split.grades is None else split.grades)
    view = np.zeros(count, dtype=np.int32) if split.view is None else split.view.astype(np.int32)
    # -1: kernels draw a row of the tables at every interaction.
    who = np.arange(count, dtype=np.int32) % np.int32(honest) if user_per == "client" else np.full(count, -1, np.int32)
    if len(users) > honest:
        if user_per == "interaction":
            raise ValueError(
                'user_per = "interaction" draws among all users, also that of malicious clients; use "client"'
            )
        who[:malicious] = honest
    crowd = SimulatedClients(
        data=data,
        ids=np.arange(count, dtype=np.int64),
        pool=split.pool,
        view=view,
        judged=view if split.judged is None else split.judged,
        user=who,
        interactions=searches,
        malicious=np.arange(count) < malicious,
        queries=np.concatenate(split.pools),
        pools=np.cumsum([0, *map(len, split.pools)]).astype(np.int64),
        grades=grades,
        ideal=ideal_dcg(grades, data.offsets, 10),
        click=_rows([one.click for one in tables], levels),
        stop=_rows([one.stop for one in tables], levels),
        attention=np.array([one.attention for one in tables]),
        shared=np.zeros(0, dtype=np.int32) if split.shared is None else split.shared,
        user_names=tuple(one if isinstance(one, str) else f"own table {u + 1}" for u, one in enumerate(users)),
    )
    return crowd if people == 1 else _with_people(crowd, people, rng_for(seed, "people"))


def _with_people(crowd: SimulatedClients, people: int, rng: np.random.Generator) -> SimulatedClients:
    """Every client with so many people, each with a share of its queries; users of a search log stay whole."""
    pools: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = []
    for pool in crowd.pool:
        queries = crowd.queries[crowd.pools[pool] : crowd.pools[pool + 1]]
        who = crowd.data.who[queries] if len(crowd.data.who) else queries
        users, of_query = np.unique(who, return_inverse=True)
        places = np.split(np.argsort(of_query.ravel(), kind="stable"), np.cumsum(np.bincount(of_query.ravel()))[:-1])
        turn = np.resize(rng.permutation(len(users)), max(len(users), people))
        dealt = (np.concatenate([places[user] for user in turn[person::people]]) for person in range(people))
        pools += [queries[np.sort(mine)] for mine in dealt]
    client = np.repeat(np.arange(len(crowd)), people)
    each = replace(
        crowd.rows(client),
        ids=crowd.ids[client] * people + np.tile(np.arange(people), len(crowd)),
        pool=np.arange(len(pools), dtype=np.int32),
        queries=np.concatenate(pools),
        pools=np.cumsum([0, *map(len, pools)]).astype(np.int64),
        client=crowd.ids[client],
    )
    return replace(crowd, interactions=crowd.interactions * people, people=each)


def _check(split: Split, count: int) -> None:
    if len(split.pool) != count:
        raise ValueError(
            f"the partition made {len(split.pool)} clients instead of {count}; mend it, or ask for as many"
        )
    sizes = np.array([len(pool) for pool in split.pools])
    without = np.flatnonzero(sizes[split.pool] == 0)
    if len(without):
        raise ValueError(
            f"client {without[0]} of {count} would have no query to search with; use fewer clients or another partition"
        )


def _rows(tables: Sequence[Sequence[float]], levels: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.array([[*table, *[0.0] * (levels - len(table))] for table in tables])
