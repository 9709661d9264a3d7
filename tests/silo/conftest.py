from __future__ import annotations

import pytest

from fedrank.silo import keys
from fedrank.silo.letters import Party


@pytest.fixture(scope="session")
def parties(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Party]:
    """Silos a and b, who know each other, and c, whom only b knows."""
    folder = tmp_path_factory.mktemp("keys")
    public = {name: keys.read_public(keys.new_identity(folder / f"{name}.secret")) for name in "abc"}
    secret = {name: keys.read_secret(folder / f"{name}.secret") for name in "abc"}
    known = {"a": "b", "b": "ac", "c": "b"}
    return {name: Party(name, secret[name], {other: public[other] for other in known[name]}) for name in "abc"}
