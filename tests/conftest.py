"""Made-up examples are the same in every run, so that a change is judged by what it changed.

Set FEDRANK_EXPLORE=1 to look for new ones.
"""

import os

import pytest
from hypothesis import settings

settings.register_profile("steady", derandomize=not os.environ.get("FEDRANK_EXPLORE"))
settings.load_profile("steady")


# A minute and more each: they begin first, so that nobody waits for one of them at the end.
LONGEST = (
    "test_three_users",
    "test_same_bytes",
    "test_flare.py",
    "deploy/test_tutorial",
    "test_packaging",
    "test_fuzz.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONGEST))
