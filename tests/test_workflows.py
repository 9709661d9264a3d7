"""Workflows name targets, markers and Python versions that exist; `make release` compares them with GitHub's schema."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="package: PyYAML, which mkdocs brings")

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
FILES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")}
WORKFLOWS = {name: yaml.safe_load(text) for name, text in FILES.items()}
STEPS = [(name, step) for name, one in WORKFLOWS.items() for job in one["jobs"].values() for step in job["steps"]]


def test_every_target_exists():
    named = {target for _, step in STEPS for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}
    assert {"check", "release", "docs", "test-rest"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_the_tests_are_those_of_make_test():
    [command] = [step["run"] for _, step in STEPS if "pytest" in step.get("run", "")]
    [rest] = re.findall(r"^REST\s*:= (.+)$", MAKEFILE, re.MULTILINE)
    assert f"not ({rest} or smoke)" in command


def test_systems_and_versions_are_tested():
    matrix = WORKFLOWS["tests"]["jobs"]["test"]["strategy"]["matrix"]
    named = set(re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"])))
    assert named <= set(matrix["python"])
    assert {one["os"].split("-")[0] for one in matrix["include"]} | {matrix["os"][0].split("-")[0]} == {
        "ubuntu",
        "macos",
        "windows",
    }


def test_actions_are_fixed_by_their_digest():
    """The one of PyPI is marked for the owner."""
    for name, step in STEPS:
        action = step.get("uses", "pypa/gh-action-pypi-publish@")
        assert action.startswith("pypa/gh-action-pypi-publish@") or re.search(r"@[0-9a-f]{40}$", action), (name, action)


def test_only_the_jobs_that_need_it_may_write():
    granted = {
        f"{name}.{job}"
        for name, one in WORKFLOWS.items()
        for job, content in one["jobs"].items()
        if "write" in content.get("permissions", {}).values()
    }
    assert granted == {"release.build", "release.publish", "docs.deploy"}
    assert all("write" not in one["permissions"].values() for one in WORKFLOWS.values())
