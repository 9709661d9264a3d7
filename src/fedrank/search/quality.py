"""Ranking quality measured by clicks. Clicks are biased towards what was shown; there are no relevance labels."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from fedrank.ranking.gate import Draft, Team
from fedrank.search.impressions import ImpressionRows, best_order, scores_of
from fedrank.search.results import Week
from fedrank.search.store import Store
from fedrank.types import Scores

WEEKS = 26  # latest weeks shown
REPLAYED = 100  # latest clicked impressions
FUSION = 60  # constant of reciprocal rank fusion (Cormack et al., SIGIR 2009)


def weeks(store: Store) -> tuple[Week, ...]:
    """The latest weeks with searches; a search without a click for 30 minutes counts as abandoned."""
    rows = store.rows(
        "SELECT time, state, (SELECT min(place) FROM clicks WHERE impression = id AND NOT bounced) FROM impressions "
        "WHERE length(shown) > 0 ORDER BY time"
    )
    by_week: dict[int, list[tuple[str, int | None]]] = defaultdict(list)
    for time, state, position in rows:
        by_week[monday(time)].append((state, position))
    return tuple(_week(week, by_week[week]) for week in sorted(by_week)[-WEEKS:])


def monday(time: float) -> int:
    """The beginning of the week of this time, in local time."""
    day = datetime.fromtimestamp(time)
    return int((datetime(day.year, day.month, day.day) - timedelta(days=day.weekday())).timestamp())


def _week(begins: int, lists: list[tuple[str, int | None]]) -> Week:
    positions = [position for _, position in lists if position is not None]
    return Week(
        begins,
        len(lists),
        len(positions),
        sum(position == 0 for position in positions),
        sum(position < 3 for position in positions),
        sum(state == "abandoned" for state, position in lists if position is None),
        sum(1.0 / (position + 1) for position in positions) / len(lists),
    )


def replay(rows: ImpressionRows, weights: NDArray[np.float64]) -> dict[str, float]:
    """Mean 1 / log2(position + 1), from 1, of clicked documents in three orders: as shown, engine, model.

    With an encoder also in the reciprocal rank fusion of engine and encoder, which needs no learning. Clicks are biased
    towards what was shown, so the measure favours the model that was in use: it can warn, but it is not evidence.
    """
    found = rows.store.rows(
        "SELECT DISTINCT impression FROM clicks JOIN impressions ON id = impression WHERE NOT bounced AND features IS "
        "NOT NULL AND sort = 'rank' ORDER BY impression DESC LIMIT ?",
        REPLAYED,
    )
    latent = rows.features.names.index("latent")
    gains: dict[str, list[float]] = {"shown": [], "engine": [], "model": [], "engine and encoder": []}
    for (id,) in found:
        one = rows.get(id)
        assert one.raw is not None
        clicked = np.array([click.position for click in rows.clicks(id) if not click.bounced])
        documents = one.shown[clicked]
        positions = {
            "shown": clicked,
            "engine": documents,
            "model": _positions(scores_of(weights.astype(np.float32), rows.scaled(one.raw)))[documents],
        }
        if one.raw[:, latent].any():
            by_encoder = _positions(one.raw[:, latent].astype(np.float32))
            fused = 1 / (FUSION + np.arange(len(by_encoder))) + 1 / (FUSION + by_encoder)
            positions["engine and encoder"] = _positions(fused.astype(np.float32))[documents]
        for name, where in positions.items():
            gains[name].append(float(np.mean(1.0 / np.log2(where + 2.0))))
    if not found:
        return {}
    return {name: float(np.mean(values)) for name, values in gains.items() if values} | {"searches": len(found)}


def _positions(scores: Scores) -> NDArray[np.int64]:
    """[candidates]: the position of each, from 0."""
    return np.argsort(best_order(scores))


def interleaved(store: Store) -> dict[str, float]:
    """Wins, losses and ties of models on trial in interleaved lists, and the share of wins with a 95 % interval."""
    wins = losses = ties = 0
    for teams, positions in store.rows(
        "SELECT teams, (SELECT group_concat(place) FROM clicks WHERE impression = id AND NOT bounced) FROM impressions "
        "WHERE kind = 'interleaved' AND teams IS NOT NULL"
    ):
        clicked = np.zeros(len(teams), bool)
        clicked[
            [int(position) for position in (positions or "").split(",") if position and int(position) < len(teams)]
        ] = True
        team = np.frombuffer(teams, np.int8)
        winner = Draft(np.arange(len(team)), team).winner(clicked)
        if (team[clicked] != Team.NEITHER).any():
            wins, losses, ties = (
                wins + (winner == Team.NEW),
                losses + (winner == Team.OLD),
                ties + (winner == Team.NEITHER),
            )
    decided = wins + losses
    if not decided + ties:
        return {}
    out = {"wins": float(wins), "losses": float(losses), "ties": float(ties)}
    if decided:
        share, z = wins / decided, 1.96
        middle = (share + z * z / (2 * decided)) / (1 + z * z / decided)  # Wilson's interval
        half = z * np.sqrt(share * (1 - share) / decided + z * z / (4 * decided**2)) / (1 + z * z / decided)
        out |= {"share": share, "low": float(middle - half), "high": float(middle + half)}
    return out
