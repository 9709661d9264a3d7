"""Write shown lists as a data set that `load_log` opens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.log_folder import begin, finish, working_on, write_texts
from fedrank.data.logs import FORMAT, SHOWN_ARRAYS, SHOWN_MORE, TEXTS, SearchLog, load_log
from fedrank.data.mapped import save_array
from fedrank.types import Features

UNITS = ("person", "browser")


@dataclass(frozen=True, kw_only=True)
class ShownLists:
    """Lists, clicks and features in memory; entries and users in any order. See `SearchLog` for the fields."""

    features: Features  # [pairs, features]
    lists: NDArray[np.integer[Any]]  # [entries, longest]
    clicks: NDArray[Any]  # [entries, longest]
    user: NDArray[np.integer[Any]]  # [entries]
    time: NDArray[np.integer[Any]]  # [entries]
    query: NDArray[np.integer[Any]]  # [entries]
    document: NDArray[np.integer[Any]]  # [pairs]
    users: Sequence[str]
    queries: Sequence[str]
    documents: Sequence[str]
    feature_names: Sequence[str]
    first: NDArray[np.integer[Any]] | None = None  # [entries]; None: all are first pages
    dwell: NDArray[np.floating[Any]] | None = None  # [entries, longest]
    scores: NDArray[np.floating[Any]] | None = None  # [entries, longest], with `temperature` and `keep`
    temperature: float | None = None
    keep: float | None = None
    unit: str = "person"  # or "browser"

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"unit must be one of {', '.join(UNITS)} (got {self.unit!r})")
        if self.scores is not None and (self.temperature is None or self.keep is None):
            raise ValueError("scores need temperature and keep to determine how lists were sampled; give all three")

    def ordered(self) -> ShownLists:
        """Return entries ordered by time, and users with the most active first."""
        order = np.argsort(self.time, kind="stable")
        active = np.argsort(-np.bincount(self.user, minlength=len(self.users)), kind="stable")
        number = np.empty(len(self.users), np.int64)
        number[active] = np.arange(len(self.users))
        by_entry = {
            one.name: getattr(self, one.name)[order]
            for one in fields(self)
            if one.name in _BY_ENTRY and getattr(self, one.name) is not None
        }
        return replace(self, **by_entry | {"user": number[self.user[order]], "users": [self.users[i] for i in active]})


_BY_ENTRY = ("lists", "clicks", "user", "time", "query", "first", "dwell", "scores")


def write_shown(
    folder: str | os.PathLike[str], shown: ShownLists, settings: Mapping[str, Any], facts: Mapping[str, Any] = {}
) -> SearchLog:
    """Write a data set and open it. `settings` describe how it was made, such as {"features": "engine-1"}.

    `facts` override the default facts, by which every entry is a valid row and no row was left out.
    """
    folder, shown = Path(folder), shown.ordered()
    values = shown.__dict__ | {"first": np.zeros(len(shown.user)) if shown.first is None else shown.first}
    kinds = SHOWN_ARRAYS | {name: kind for name, kind in SHOWN_MORE.items() if values[name] is not None}
    arrays = {name: np.asarray(values[name]).astype(kind) for name, kind in kinds.items()}
    with working_on(folder):
        begin(folder, {"settings": dict(settings)}).begin()  # marks the folder as unfinished
        for name, array in arrays.items():
            save_array(folder / f"{name}.npy", array)
        write_texts(folder, shown.users, shown.queries, shown.documents)
        finish(
            folder,
            {
                "format": FORMAT,
                "settings": dict(settings),
                "unit": shown.unit,
                "counts": {
                    "rows": len(shown.user),
                    "sound": len(shown.user),
                    "entries": len(shown.user),
                    "pairs": len(shown.document),
                    **{name: len(values[name]) for name in TEXTS},
                },
                "left_out": {},
                "dropped": {},
                "out_of_order": 0,
                "broken_documents": 0,
                "heavy_user": None,
                "shapes": {name: list(array.shape) for name, array in arrays.items()},
                "feature_names": list(shown.feature_names),
                **({} if shown.scores is None else {"temperature": shown.temperature, "keep": shown.keep}),
                **facts,
            },
        )
    return load_log(folder)
