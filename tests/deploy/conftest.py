"""Fixtures for tests of deployments."""

from __future__ import annotations

import pytest

from fedrank.deploy.heads import SiteJournal


@pytest.fixture
def unconfirmed(monkeypatch):
    """A site answers although no other site has confirmed its journal, so a test may ask one site alone."""
    monkeypatch.setattr(SiteJournal, "check_confirmed", lambda self, statements, keys: None)


@pytest.fixture(scope="session", autouse=True)
def short_own_training():
    """Sites train their own model in few steps, because its quality does not matter in most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedrank.experiments.runner.releases.OWN_ROUNDS", 10)
        yield
