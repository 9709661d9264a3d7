"""Making the table of clients: who searches with what, sees which grades, and clicks how."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.federate.partition import Iid, Partition
from fedrank.rank.users import User, user_for
from fedrank.seeds import rng_for
from fedrank.types import Clients


def make_clients(
    data: RankingData,
    count: int,
    *,
    partition: Partition | None = None,
    user: str | User | Sequence[str | User] = "perfect",
    interactions: int | Sequence[int] = 5,
    seed: int = 1,
) -> Clients:
    """A table of `count` clients over `data`.

    Of a list of users or interactions, client c gets entry c, counted around.
    """
    from fedrank.kernels.measures import ideal_dcg

    if count < 1:
        raise ValueError(f"{count} clients; at least one must take part")
    users = [user] if isinstance(user, (str, User)) else list(user)
    searches = np.resize(np.asarray(interactions, dtype=np.int64), count)
    if searches.min() < 0 or searches.max() < 1:
        raise ValueError(f"interactions = {interactions}: nobody would search; use 1 or more")
    tables = [user_for(one, data.top_grade) if isinstance(one, str) else one for one in users]
    for one in tables:
        if len(one.click) <= data.top_grade:
            raise ValueError(
                f"a user has click probabilities for {len(one.click)} grades, the data have {data.top_grade + 1}; "
                "give one for each"
            )
    levels = max(len(one.click) for one in tables)
    grades = np.ascontiguousarray(data.grades[None, :])
    split = (partition or Iid())(data, count, rng_for(seed, "partition"))
    return Clients(
        data=data,
        ids=np.arange(count, dtype=np.int64),
        pool=split.pool,
        view=np.zeros(count, dtype=np.int32),
        user=np.arange(count, dtype=np.int32) % np.int32(len(users)),
        interactions=searches,
        malicious=np.zeros(count, dtype=np.bool_),
        queries=np.concatenate(split.pools),
        pools=np.cumsum([0, *map(len, split.pools)]).astype(np.int64),
        grades=grades,
        ideal=ideal_dcg(grades, data.offsets, 10),
        click=_rows([one.click for one in tables], levels),
        stop=_rows([one.stop for one in tables], levels),
        attention=np.array([one.attention for one in tables]),
        user_names=tuple(one if isinstance(one, str) else f"own table {u + 1}" for u, one in enumerate(users)),
    )


def _rows(tables: Sequence[Sequence[float]], levels: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.array([[*table, *[0.0] * (levels - len(table))] for table in tables])
