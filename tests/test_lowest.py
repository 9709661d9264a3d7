"""The lowest versions that pyproject.toml allows are those that ran, and none is forbidden for being new."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.lowest import Dependency, dependencies, fingerprint, recorded

TEXT = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
CAPPED = {
    "mkdocs": "2",  # announced as a rewrite without plug-ins and hooks, and docs/build.py is a hook
    "nvflare": "2.10",  # deploy/ leans on private parts of it, which tests/deploy/test_flare_version.py names
}


def same(version):
    """1.26 and 1.26.0 are one version."""
    return re.sub(r"(\.0)+$", "", version)


@pytest.mark.parametrize("one", dependencies(TEXT), ids=lambda one: one.name)
def test_the_lowest_version_allowed_is_one_that_ran(one: Dependency) -> None:
    assert same(recorded()[one.name]) == same(one.lowest), "run: make lowest"


@pytest.mark.parametrize("one", dependencies(TEXT), ids=lambda one: one.name)
def test_only_what_is_known_to_break_has_a_highest_version(one: Dependency) -> None:
    assert one.bounds.keys() <= {">=", "<"}
    assert one.bounds.get("<") == CAPPED.get(one.name)


def test_pythons_named_are_allowed() -> None:
    project = tomllib.loads(TEXT)["project"]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert project["requires-python"] == f">={named[0]}", "and it is the one of make lowest"
    assert recorded()["python"].startswith(named[0] + ".")


def test_only_dependencies_are_in_the_fingerprint() -> None:
    assert fingerprint(TEXT) == fingerprint(TEXT.replace("line-length = 120", "line-length = 100"))
    assert fingerprint(TEXT) != fingerprint(TEXT.replace("numpy>=", "numpy>=9"))


def test_a_dependency_without_a_lowest_version_is_named() -> None:
    with pytest.raises(ValueError, match=r"'numpy<2' has no lowest version; write numpy>=VERSION"):
        _ = Dependency("numpy", "numpy<2", "").lowest
