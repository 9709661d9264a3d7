"""Poisoning of clicks and updates, and audits of what a message reveals; also the family `fedrank.attacks`."""

from __future__ import annotations

from typing import Any

import fedrank

__doc__ = fedrank._family_doc("attacks")  # once imported, this package shadows the family


def __getattr__(name: str) -> Any:
    """A method of the family with the same name as this package."""
    return getattr(fedrank._family("attacks"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *vars(fedrank._family("attacks"))})
