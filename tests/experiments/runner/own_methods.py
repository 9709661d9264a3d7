"""Methods as somebody outside might write them, each wrong in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Crashes:
    def __call__(self, messages: Any) -> Any:
        table: dict[str, float] = {}
        return table["weights"]


@dataclass(frozen=True)
class Multiplies:
    def __call__(self, messages: Any) -> Any:
        return messages.updates @ np.ones(3)


@dataclass(frozen=True)
class Leaves:
    """Ends the program, as somebody's script might."""

    def __call__(self, messages: Any) -> Any:
        raise SystemExit(0)


@dataclass(frozen=True)
class Returns:
    what: str

    def __call__(self, messages: Any) -> Any:
        mean = messages.updates.mean(axis=0)
        wrong = {
            "number": mean.mean(),
            "nothing": None,
            "short": mean[:-1],
            "all": messages.updates,
            "nan": mean * np.nan,
            "complex": mean + 1j,
            "words": mean.astype(str),
            "objects": mean.astype(object),
        }
        return wrong[self.what]


@dataclass(frozen=True)
class Shrinks:
    """A server step that loses a parameter."""

    def first(self, size: int) -> Any:
        return np.zeros(0)

    def __call__(self, weights: Any, change: Any, state: Any) -> Any:
        return (weights + change)[1:], state


@dataclass(frozen=True)
class Deals:
    """A partition that fails as other code of its author does."""

    def __call__(self, data: Any, clients: int, rng: Any) -> Any:
        raise ValueError("no way to deal these out")
