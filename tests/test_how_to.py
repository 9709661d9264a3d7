"""How-to guides that show commands with their output: each is followed from top to bottom in an empty folder."""

from __future__ import annotations

import pytest

from tests.documents import DOCS
from tests.test_documents import _follow, folder

__all__ = ["folder"]  # a fixture

FOLLOWED = ["attacks-and-unlearning", "cluster-and-gpu", "document-collections", "export", "privacy", "trees"]


@pytest.mark.long
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_guide_can_be_followed(name, folder, monkeypatch):
    _follow(DOCS / "how-to" / f"{name}.md", folder, monkeypatch)
