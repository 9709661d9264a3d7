"""Wheel and sdist: they build, hold what is needed, and work in an environment that has nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

import fedrank
from tests import needs

pytestmark = pytest.mark.build

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What pip says where it cannot reach an index, or where that does not have what is asked for.
OUT_OF_REACH = re.compile(
    r"No matching distribution|Could not find a version|Temporary failure|Connection|timed out|ProxyError|SSLError|"
    r"Network is unreachable|HTTP error|ReadTimeout|Max retries"
)
BUILD = """\
import sys
from hatchling import build
print(getattr(build, f"build_{sys.argv[1]}")(sys.argv[2]))
"""
PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"


def clean() -> dict[str, str]:
    """An environment from which no other fedrank can be imported."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "FEDRANK_DATA")}


def do(*command: str | Path, cwd: Path, minutes: float = 10) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=clean(), capture_output=True, text=True, timeout=60 * minutes, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(python: Path, *what: str | Path) -> None:
    """Install with pip, or skip where packages cannot be had."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", *what]
    try:
        done = subprocess.run(
            list(map(str, command)), env=clean(), capture_output=True, text=True, timeout=900, check=False
        )
    except subprocess.TimeoutExpired:
        needs.skip("index", f"pip install {what[0]} took more than 15 minutes")
    if done.returncode and (reason := OUT_OF_REACH.search(done.stderr)):
        needs.skip("index", f"pip says {reason.group()!r}")
    assert done.returncode == 0, done.stderr


def empty(folder: Path) -> Path:
    """The interpreter of a new environment without any package but pip."""
    venv.create(folder, with_pip=True, symlinks=os.name != "nt")
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("built")
    python = empty(folder / "builder")
    install(python, *tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"])
    return {
        kind: folder / do(python, "-c", BUILD, kind, folder, cwd=ROOT).splitlines()[-1] for kind in ("wheel", "sdist")
    }


def test_the_wheel_holds_all_that_the_package_reads(built):
    with ZipFile(built["wheel"]) as wheel:
        held = {name for name in wheel.namelist() if not name.startswith("fedrank-")}
    package = Path(fedrank.__file__).parent
    there = {
        f"fedrank/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there <= held
    assert not [name for name in held if not name.startswith("fedrank/")]


def test_the_sdist_holds_what_a_checkout_has(built):
    with tarfile.open(built["sdist"]) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    for needed in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CITATION.cff",
        "src/fedrank/py.typed",
        "tests/conftest.py",
    ):
        assert needed in held
    assert not [name for name in held if name.startswith((".venv", "runs/", "site/"))]


def test_the_same_sources_give_the_same_bytes(built, tmp_path):
    """Built again from the unpacked sdist, whose files have other times and modes."""
    with tarfile.open(built["sdist"]) as sdist:
        sdist.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    (source / "PKG-INFO").unlink()  # a checkout has none, and the build writes it
    for path in source.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    python = built["wheel"].parent / "builder" / ("Scripts" if os.name == "nt" else "bin") / "python"
    for kind, before in built.items():
        again = tmp_path / do(python, "-c", BUILD, kind, tmp_path, cwd=source).splitlines()[-1]
        assert again.name == before.name
        assert again.read_bytes() == before.read_bytes(), kind


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """The interpreter of an empty environment into which the wheel was installed, with what it depends on."""
    python = empty(tmp_path_factory.mktemp("installed") / "empty")
    install(python, built["wheel"])
    return python


def test_the_example_plugin_adds_its_command_and_its_method(installed, tmp_path):
    shutil.copytree(ROOT / "examples" / "plugin", tmp_path / "plugin")
    install(installed, "--no-deps", tmp_path / "plugin")
    assert "fedrank_lab:ShrunkMedian" in do(
        installed, "-m", "fedrank", "methods", "aggregator", "shrunk-median", cwd=tmp_path
    )
    assert "largest weights" in do(installed, "-m", "fedrank", "weights", "--help", cwd=tmp_path)
    do(installed, "-m", "pip", "uninstall", "--yes", "fedrank-lab", cwd=tmp_path)


def test_the_papers_are_a_package_beside_fedrank(installed, tmp_path):
    assert "10 clients" in do(installed, "-m", "fedrank", "data", "check", "quickstart", cwd=tmp_path)
    shutil.copytree(ROOT / "reproduction", tmp_path / "reproduction")
    install(installed, "--no-deps", tmp_path / "reproduction")
    assert "selgb/fig-1" in do(installed, "-m", "fedrank", "papers", "list", cwd=tmp_path)
    do(installed, "-m", "pip", "uninstall", "--yes", "fedrank-papers", cwd=tmp_path)


def test_the_wheel_works_in_an_empty_environment(installed, tmp_path):
    command, here = installed.with_name("fedrank"), tmp_path
    assert do(command, "--version", cwd=here) == f"fedrank {PROJECT['version']}\n"
    assert "krum" in do(command, "methods", "aggregator", cwd=here)
    do(command, "new", "mine.toml", cwd=here)
    assert "finished" in do(command, "run", "mine.toml", "--set", "rounds=2", "--workers", "1", cwd=here)
    do(command, "report", "runs/mine", "--out", "report.html", cwd=here)
    assert (here / "report.html").stat().st_size > 10_000
    # What needs more says so before anything runs, and names packages that exist.
    do(command, "new", "trees.toml", "--kind", "trees", cwd=here)
    done = subprocess.run(
        [command, "run", "trees.toml"], cwd=here, env=clean(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "trees need LightGBM: pip install 'fedrank[trees]'" in done.stderr


def test_the_sdist_installs_into_an_empty_environment_and_works(built, installed, tmp_path):
    """pip builds it with tools that it fetches. It asks for what the wheel asks for, so that is not fetched twice."""
    python = empty(tmp_path / "empty")
    install(python, "--no-deps", built["sdist"])
    asks = "from importlib.metadata import requires; print(sorted(requires('fedrank')))"
    assert do(python, "-c", asks, cwd=tmp_path) == do(installed, "-c", asks, cwd=tmp_path)
    own, other = (Path(do(one, "-c", PACKAGES, cwd=tmp_path).strip()) for one in (python, installed))
    (own / "dependencies.pth").write_text(f"{other}\n", encoding="utf-8")  # behind its own packages
    command = python.with_name("fedrank")
    assert do(command, "--version", cwd=tmp_path) == f"fedrank {PROJECT['version']}\n"
    where = do(python, "-c", "import fedrank; print(fedrank.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(own)
    assert "krum" in do(command, "methods", "aggregator", cwd=tmp_path)
    # With the same files as the wheel it does what that did; a run would compile them all once more.
    with ZipFile(built["wheel"]) as wheel:
        for name in wheel.namelist():
            assert name.startswith("fedrank-") or (own / name).read_bytes() == wheel.read(name), name


@pytest.mark.parametrize("folder", ["src", "docs", "examples"])
def test_nobody_is_told_to_install_a_package_that_does_not_exist(folder):
    """fedrank is on no index: `pip install fedrank` would bring nothing, or what somebody else called so.

    An extra of the fedrank that is installed may be asked for: pip keeps what is installed, and adds the extra.
    """
    wrong = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".html", ".toml", ".ipynb", ".sh", ".js")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"pip install [^`]*?(?<![\w/.-])['\"]?fedrank\b(?!-|\[)", line)
    ]
    assert not wrong


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {PROJECT['version']}\n" in text
    assert f"license: {PROJECT['license']}\n" in text
