"""Tests of the search client show lists without the engine as an opponent, unless they are about it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def without_opponent(monkeypatch):
    monkeypatch.setattr("fedrank.search.opponents.SHARE", 0.0)
    monkeypatch.setattr("fedrank.search.opponents.MEMORY_SHARE", 0.0)
