"""Click models: how a simulated user reads and clicks a result list.

A user reads at most ten results from the top, examines rank i with probability `attention[i]`, clicks with
P(click | label), and leaves after a click with P(stop | label). Results that are not clicked never stop the user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

SHOWN = 10  # results per page


@dataclass(frozen=True)
class ClickModel:
    """How a simulated user reads and clicks a result list.

    `click` and `stop` have one probability per relevance label: to click an examined document, and to leave after
    that click. The user examines rank i with probability (1 / i)^attention_decay. With a decay of 0 this is the cascade
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

    click: tuple[float, ...]  # [labels]: P(click | examined)
    stop: tuple[float, ...]  # [labels]: P(leave | clicked)
    attention_decay: float = 0.0  # η of (1 / rank)^η; 0: every rank is examined

    def __post_init__(self) -> None:
        if len(self.click) != len(self.stop):
            raise ValueError(
                f"{len(self.click)} click and {len(self.stop)} stop probabilities; give one of each per relevance label"
            )
        for name, table in (("click", self.click), ("stop", self.stop)):
            if any(not 0 <= p <= 1 for p in table):
                raise ValueError(f"{name} must contain probabilities between 0 and 1 (got {table})")
        if self.attention_decay < 0:
            raise ValueError(f"attention_decay must be at least 0 (got {self.attention_decay})")

    @property
    def attention(self) -> NDArray[np.float64]:
        """[10]: P(examined | rank)."""
        return (1.0 / np.arange(1, SHOWN + 1)) ** self.attention_decay


class OwnClickModel(Protocol):
    """A user-defined click model: which results of a list are clicked, given their relevance labels."""

    def __call__(self, labels: NDArray[np.int8], draws: NDArray[np.float64]) -> Any:
        """[n]: whether each of n results is clicked, from the top; `draws` are 2 n uniform random numbers in [0, 1)."""


def checked_clicks(model: object, clicks: Any, count: int) -> NDArray[np.bool_]:
    """Validate the result of a user-defined click model: one Boolean per result."""
    found = np.asarray(clicks)
    if found.shape != (count,) or found.dtype.kind not in "biu":
        raise ValueError(
            f"the click model {type(model).__name__} returned {found.dtype} values of shape {found.shape} for {count} "
            f"results; return {count} Booleans"
        )
    return found.astype(np.bool_)


PERFECT = {2: (0.0, 1.0), 3: (0.0, 0.5, 1.0), 5: (0.0, 0.2, 0.4, 0.8, 1.0)}


def _without_stop(clicks: dict[int, tuple[float, ...]], decay: float = 0.0) -> dict[int, ClickModel]:
    return {levels: ClickModel(click, (0.0,) * levels, decay) for levels, click in clicks.items()}


CLICK_MODELS: dict[str, dict[int, ClickModel]] = {  # name -> number of relevance labels -> tables
    "perfect": _without_stop(PERFECT),
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
    "poison": _without_stop({levels: click[::-1] for levels, click in PERFECT.items()}),
    **{f"position-{decay:g}": _without_stop(PERFECT, decay) for decay in (0.0, 0.5, 1.0, 1.5, 2.0)},
}

CLICK_MODEL_MEANINGS = {
    "perfect": "clicks by relevance only and reads to the end",
    "navigational": "looks for one relevant result, then leaves",
    "informational": "clicks often, also on irrelevant results, and continues to read",
    "poison": "malicious: clicks irrelevant results and never relevant ones",
    "position-0": "perfect clicks, examines every rank",
    "position-0.5": "perfect clicks, examines rank i with probability (1/i)^0.5",
    "position-1": "perfect clicks, examines rank i with probability 1/i",
    "position-1.5": "perfect clicks, examines rank i with probability (1/i)^1.5",
    "position-2": "perfect clicks, examines rank i with probability (1/i)^2",
}


def click_model_for(name: str, top_grade: int) -> ClickModel:
    """Return the named click model for relevance labels 0 .. top_grade."""
    if name not in CLICK_MODELS:
        raise ValueError(f"unknown click model {name!r}; use one of {', '.join(CLICK_MODELS)}")
    tables = CLICK_MODELS[name]
    if (levels := top_grade + 1) not in tables:
        raise ValueError(
            f"the click model {name!r} is defined for {', '.join(map(str, sorted(tables)))} relevance labels, but the "
            f"data have {levels}; give `click` and `stop` probabilities for every label instead of a name"
        )
    return tables[top_grade + 1]
