"""Tests of the search client show lists without the engine as an opponent, and read files without another process,
unless they are about these."""

from __future__ import annotations

import pytest

from tests.conftest import STARTING


@pytest.fixture(autouse=True)
def without_opponent(monkeypatch):
    monkeypatch.setattr("fedrank.search.opponents.SHARE", 0.0)
    monkeypatch.setattr("fedrank.search.opponents.MEMORY_SHARE", 0.0)


@pytest.fixture(autouse=True, scope="session")
def without_reader_process():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedrank.search.reader_process.ISOLATED", False)
        yield


@pytest.fixture(autouse=True)
def with_reader_process_if_marked(request, monkeypatch):
    if any(request.node.get_closest_marker(name) for name in STARTING):
        monkeypatch.setattr("fedrank.search.reader_process.ISOLATED", True)
