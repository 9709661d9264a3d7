"""Users: how somebody reads and clicks a result list.

A user reads from the top over at most ten results, looks at rank i with probability `attention[i]`, clicks with
P(click | grade), and after a click leaves with P(stop | grade). Results that are not clicked never stop the reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

SHOWN = 10  # results on a page


@dataclass(frozen=True)
class ClickModel:
    """A click model describes how a simulated user reads and clicks a result list.

    `click` and `stop` hold one probability per relevance grade: to click a document that was read, and to leave after
    that click. The user reads rank i with probability (1 / i)^attention_decay. With a decay of 0 this is the cascade
    model (Guo et al., WSDM 2009); with `stop` all 0 it is a position-based model. `make_clients` takes click
    models as `click_model`.

    >>> import fedrank as fr
    >>> skimmer = fr.ClickModel(click=(0.05, 0.4, 0.9), stop=(0.0, 0.0, 0.5), attention_decay=1.0)
    >>> skimmer.attention[:4].round(2).tolist()
    [1.0, 0.5, 0.33, 0.25]
    >>> clients = fr.make_clients(fr.synthetic("mq2007", queries=20), count=4, click_model=skimmer)
    >>> [outcome] = fr.simulate(fr.Federation(), clients, rounds=1)
    >>> f"nDCG@10 of the lists that users saw: {outcome.online:.3f}"
    'nDCG@10 of the lists that users saw: 0.216'
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


class OwnClickModel(Protocol):
    """A click model from outside: what a user clicks of a list whose relevance labels are known."""

    def __call__(self, labels: NDArray[np.int8], draws: NDArray[np.float64]) -> Any:
        """[n]: whether each of n results is clicked, from the top; `draws` are 2 n uniform random numbers in [0, 1)."""


def checked_clicks(model: object, clicks: Any, count: int) -> NDArray[np.bool_]:
    """What a click model from outside returned, if it is one truth value for each result."""
    found = np.asarray(clicks)
    if found.shape != (count,) or found.dtype.kind not in "biu":
        raise ValueError(
            f"the click model {type(model).__name__} returned {found.dtype} values of shape {found.shape} for {count} "
            f"results; return {count} truth values"
        )
    return found.astype(np.bool_)


PERFECT = {2: (0.0, 1.0), 3: (0.0, 0.5, 1.0), 5: (0.0, 0.2, 0.4, 0.8, 1.0)}


def _never(levels: int) -> tuple[float, ...]:
    return (0.0,) * levels


def _position_based(decay: float) -> dict[int, ClickModel]:
    return {levels: ClickModel(click, _never(levels), decay) for levels, click in PERFECT.items()}


CLICK_MODELS: dict[str, dict[int, ClickModel]] = {  # name -> number of grades -> tables
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

CLICK_MODEL_MEANINGS = {
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
    if name not in CLICK_MODELS:
        raise ValueError(f"no click model {name!r}; there are {', '.join(CLICK_MODELS)}")
    tables = CLICK_MODELS[name]
    if (levels := top_grade + 1) not in tables:
        raise ValueError(
            f"user {name!r} has tables for {', '.join(map(str, sorted(tables)))} grades, the data have {levels}; "
            "give `click` and `stop` probabilities for every grade instead of a name"
        )
    return tables[top_grade + 1]
