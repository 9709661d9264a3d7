"""Fixtures for tests of deployments."""

from __future__ import annotations

import pytest

from fedrank.deploy.heads import SiteJournal


@pytest.fixture
def unconfirmed(monkeypatch):
    """A site answers although no other site has confirmed its journal, so a test may ask one site alone."""
    monkeypatch.setattr(SiteJournal, "check_confirmed", lambda self, statements, keys: None)
