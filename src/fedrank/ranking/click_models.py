"""Users: how somebody reads and clicks a result list.

A user reads from the top over at most ten results, looks at rank i with probability `attention[i]`, clicks with
P(click | grade), and after a click leaves with P(stop | grade). Results that are not clicked never stop the reader.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHOWN = 10  # results on a page


@dataclass(frozen=True)
class ClickModel:
    """A way of clicking: tables by grade, and attention by rank.

    Cascade users give every rank attention 1 (Guo et al., WSDM 2009); position-based users never stop, and attention
    falls with the rank. Poisoned clicks are simply a user whose table lies.
    """

    click: tuple[float, ...]  # [grades]: P(click | read)
    stop: tuple[float, ...]  # [grades]: P(leave | clicked)
    attention_decay: float = 0.0  # η of (1 / rank)^η; 0: every rank is read

    def __post_init__(self) -> None:
        if len(self.click) != len(self.stop):
            raise ValueError(
                f"{len(self.click)} click and {len(self.stop)} stop probabilities; give one of each per grade"
            )
        for name, table in (("click", self.click), ("stop", self.stop)):
            if any(not 0 <= p <= 1 for p in table):
                raise ValueError(f"{name} = {table}: probabilities lie between 0 and 1")
        if self.attention_decay < 0:
            raise ValueError(
                f"attention_decay = {self.attention_decay} would raise attention with the rank; use 0 or more"
            )

    @property
    def attention(self) -> NDArray[np.float64]:
        """[10]: P(read | rank)."""
        return (1.0 / np.arange(1, SHOWN + 1)) ** self.attention_decay


PERFECT = {2: (0.0, 1.0), 3: (0.0, 0.5, 1.0), 5: (0.0, 0.2, 0.4, 0.8, 1.0)}


def _never(levels: int) -> tuple[float, ...]:
    return (0.0,) * levels


def _position_based(decay: float) -> dict[int, ClickModel]:
    return {levels: ClickModel(click, _never(levels), decay) for levels, click in PERFECT.items()}


USERS: dict[str, dict[int, ClickModel]] = {  # name -> number of grades -> tables
    "perfect": {levels: ClickModel(click, _never(levels)) for levels, click in PERFECT.items()},
    "navigational": {
        2: ClickModel((0.05, 0.95), (0.2, 0.9)),
        3: ClickModel((0.05, 0.5, 0.95), (0.2, 0.5, 0.9)),
        5: ClickModel((0.05, 0.3, 0.5, 0.7, 0.95), (0.2, 0.3, 0.5, 0.7, 0.9)),
    },
    "informational": {
        2: ClickModel((0.3, 0.7), (0.1, 0.5)),
        3: ClickModel((0.4, 0.7, 0.9), (0.1, 0.3, 0.5)),
        5: ClickModel((0.4, 0.6, 0.7, 0.8, 0.9), (0.1, 0.2, 0.3, 0.4, 0.5)),
    },
    "poison": {levels: ClickModel(click[::-1], _never(levels)) for levels, click in PERFECT.items()},
    "position-0": _position_based(0.0),
    "position-0.5": _position_based(0.5),
    "position-1": _position_based(1.0),
    "position-1.5": _position_based(1.5),
    "position-2": _position_based(2.0),
}

USER_MEANINGS = {
    "perfect": "clicks by relevance alone and reads to the end",
    "navigational": "looks for one good result, then leaves",
    "informational": "clicks much, also what is not relevant, and reads on",
    "poison": "lies: clicks what is not relevant and never what is",
    "position-0": "perfect clicks, reads every rank",
    "position-0.5": "perfect clicks, reads rank i with probability (1/i)^0.5",
    "position-1": "perfect clicks, reads rank i with probability 1/i",
    "position-1.5": "perfect clicks, reads rank i with probability (1/i)^1.5",
    "position-2": "perfect clicks, reads rank i with probability (1/i)^2",
}


def click_model_for(name: str, top_grade: int) -> ClickModel:
    """The named user's tables for a scale of grades 0 .. top_grade."""
    if name not in USERS:
        raise ValueError(f"no user {name!r}; there are {', '.join(USERS)}")
    tables = USERS[name]
    if (levels := top_grade + 1) not in tables:
        raise ValueError(
            f"user {name!r} has tables for {', '.join(map(str, sorted(tables)))} grades, the data have {levels}; "
            "give `click` and `stop` probabilities for every grade instead of a name"
        )
    return tables[top_grade + 1]
