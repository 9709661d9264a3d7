"""Benchmarks run as they are documented, and say what they measure before they measure it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import needs

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__")
DOCUMENTED = [
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "benchmarks").glob("*.py"),
    *(ROOT / "reproduction").rglob("*.toml"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")),
]


class Short(NamedTuple):
    """How a benchmark runs in seconds: its options, and constants of its module. `{}` is an empty folder."""

    options: str = ""
    constants: dict[str, Any] = {}  # noqa: RUF012  # never changed
    needs: str = ""  # a text collection or a package without which it cannot run


FEW_QUERIES = {"46 x 41": (46, 41, 20, 2), "136 x 120": (136, 120, 20, 4)}
SHORT = {
    "active_server": Short("--attacks 2"),
    "async": Short(constants={"ENTRIES": 400, "REPEATS": 1}),
    "certified": Short("--data generated --sets 2 --seeds 1 --deletions 8"),
    "checkouts": Short(". . --pairs 2 --only linear"),
    "clients": Short("--clients 500"),
    "clients_for_privacy": Short("--out {} --data synthetic-mq2007 --device cpu --most 10 --rounds 2 --seeds 2"),
    "compilation": Short(),
    "evaluate": Short("--repeats 1"),
    "evolution": Short(constants={"CLIENTS": 20, "ROUNDS": 1}),
    "fpdgd": Short(constants={"SHAPES": FEW_QUERIES}),
    "gate": Short("--out {}/results.jsonl --logs 1 --federations 1"),
    "grow": Short("--size 30 60 20 --repeats 1"),
    "grow_bytes": Short("--data synthetic-mq2007 --repeats 1 --queries 8 --trees 1"),
    "grow_quality": Short("--trees 2"),
    "grow_table": Short(
        "--data synthetic-mq2007 --splits chance --repeats 1 --queries 16 --trees 1 --leaves 4", needs="xgboost"
    ),
    "grow_xgboost": Short("--data synthetic-mq2007 --trees 2", needs="xgboost"),
    "letor": Short("1"),
    "live_quality": Short(
        "--collections docstrings --people careful --repeats 0.5 --searches 10 --out {}/lives.jsonl",
        constants={"NEEDS": 6, "MORE": 4},
        needs="tantivy",
    ),
    "live_search": Short("--documents 300 --queries 5"),
    "log_features": Short("--documents 300 --pairs 2000"),
    "many_runs": Short("--runs 8"),
    "merge": Short("--repeats 1"),
    "noise": Short("1000"),
    "noniid": Short(constants={"TURNS": 1}),
    "offpolicy": Short("--seeds 2 --repeats 2"),
    "organisations": Short("--out {} --quick"),
    "outside": Short("--pairs 2", {"ROUNDS": {"10 clients, 46 x 41": 20, "1,000 clients, 136 x 120": 2}}),
    "poisoning": Short(
        "--out {} --data synthetic-mq2007 --rules mean reputation rankguard-style",
        {"REPEATS": {"rounds": 20, "evaluate_every": 10, "seeds": [1], "folds": [1, 2]}},
    ),
    "private_noise": Short("--out {} --quick --data synthetic-mq2007 --only alone_synthetic-mq2007_1000"),
    "protect": Short(constants={"TURNS": 1, "CLIENTS": 20}),
    "aol4foltr": Short("1"),
    "read_ubi": Short("2000"),
    "recoll": Short("--collections cranfield --needs 3 --documents 30", needs="cranfield"),
    "rerank": Short("--out {} --only cranfield/vector/usual", {"LOOKS": (5, 10), "NEEDS": 4}, needs="cranfield"),
    "rerank_join": Short("", {"COLLECTIONS": ("cranfield",), "LOOKS": (5, 10), "NEEDS": 4}, needs="cranfield"),
    "rerank_speed": Short("--requests 2"),
    "rivals": Short("--seeds 1 --folds 1", {"ROUNDS": 20, "CHOSEN": {"corrected, hinge": 0.001}}),
    "robust": Short(constants={"SIZES": [(10, 46)], "REPEATS": 1}),
    "rounds": Short(constants={"SHAPES": FEW_QUERIES, "ROUNDS": 20, "ROUNDS_OF_A_RUN": 40}),
    "rtk": Short("--documents 400"),
    "search_together": Short(
        "",
        {
            "COLLECTIONS": ("cisi", "cranfield"),
            "SEARCHED": ("cisi",),
            "OTHER": "cranfield",
            "QUERIES": 30,
            "SPLITS": (1,),
            "SEEDS": (1,),
            "TRIED": ((20, 4.0, 2.0),),
        },
        needs="cisi and cranfield",
    ),
    "secure_sum": Short("--size 5", {"COUNTS": (5, 10)}),
    "search_folder": Short("--files 300"),
    "silo_collection": Short("{} --documents 60 --queries 10 --length 50 --topics 5"),
    "sites_scale": Short("simulated --sites 3 --rounds 3"),
    "sketch_size": Short("cranfield", {"SIZES": ((5, 20),)}, needs="cranfield"),
    "targets": Short("--rounds 25"),
    "trees": Short("--size 30 60 20 --repeats 1"),
    "trial_errors": Short("--organisations 3"),
    "trial_level": Short("--trials 20"),
    "unlearning": Short("--data generated --sets 2 --seeds 1 --rounds 20"),
}
# Sites as processes, whose timeouts a busy machine breaks; tests/deploy/ runs such a federation.
DEPLOYED = ("deploy",)
GPU = ("gpu", "gpu_learners", "gpu_tuning")
OF_RUNS = ("foltr_es", "foltr_bench")  # read results of experiments that take hours


@cache
def said_of(name: str) -> str:
    """What `--help` prints."""
    out, before = io.StringIO(), dict(os.environ)
    argv, sys.argv = sys.argv, [name, "--help"]
    try:
        with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"), run_name="__main__")
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(before)
    assert end.value.code == 0
    return out.getvalue()


def documented() -> Iterator[tuple[str, str, str]]:
    """(where, name, options) of every command line that runs a benchmark."""
    for page in DOCUMENTED:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"python -m\s+benchmarks\.(\w+)([^\n`#;\"]*)", text):
            if found[1] != "NAME":
                yield page.name, found[1], found[2]


@pytest.mark.parametrize("name", NAMES)
def test_help_is_printed_and_nothing_is_measured(name: str) -> None:
    said = said_of(name)
    assert f"python -m benchmarks.{name}" in said, "the docstring shows how it is run"


def test_documented_options_are_there() -> None:
    for where, name, options in documented():
        for option in re.findall(r"--[a-z-]+", options):
            assert option in said_of(name), f"{where}: benchmarks.{name} has no {option}"


def test_files_that_are_named_are_there() -> None:
    for page in DOCUMENTED:
        for name in re.findall(r"benchmarks/(\w+)\.py", page.read_text(encoding="utf-8")):
            assert name in NAMES, f"{page.name}: benchmarks/{name}.py"


def test_every_benchmark_has_a_short_form() -> None:
    assert sorted([*SHORT, *GPU, *OF_RUNS, *DEPLOYED]) == NAMES


def run(name: str, options: list[str], constants: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    code = (
        "import importlib, sys\n"
        f"module = importlib.import_module('benchmarks.{name}')\n"
        f"for key, value in {constants!r}.items():\n"
        "    assert hasattr(module, key), key\n"
        "    setattr(module, key, value)\n"
        f"sys.argv = {[name, *options]!r}\n"
        "sys.exit(module.main())\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("name", SHORT)
def test_short_form_runs(name: str, tmp_path: Path) -> None:
    short = SHORT[name]
    if short.needs == "xgboost":
        pytest.importorskip("xgboost")
    elif short.needs and not os.environ.get("FEDRANK_DATA"):
        needs.skip("data", f"FEDRANK_DATA is not set, and {name} needs {short.needs}")
    (tmp_path / "out").mkdir()
    options = [option.format(tmp_path / "out") for option in short.options.split()]
    done = run(name, options, short.constants, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.mark.process
@pytest.mark.parametrize("name", GPU)
def test_without_a_graphics_card_one_line_says_so(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("cupy"):
        needs.skip("system", "cupy is installed, so there may be a graphics card")
    done = run(name, [], {}, tmp_path)
    assert done.returncode == 1
    assert "needs the package cupy" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    done = run("foltr_es", [str(tmp_path)], {}, tmp_path)
    assert done.returncode == 1
    assert "no run" in done.stderr.lower()


@pytest.mark.process
def test_live_quality_compares_engines(tmp_path: Path) -> None:
    pytest.importorskip("tantivy")
    pytest.importorskip("bm25s")
    done = run("live_quality", ["--engine", "--collections", "docstrings"], {"NEEDS": 6, "MORE": 4}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| docstrings (10) | ." in done.stdout


def test_needs_of_live_quality_have_no_conditions() -> None:
    pytest.importorskip("tantivy")
    from benchmarks.live_quality import without_operators
    from fedrank.search.queries import parse

    for text in (
        'the "effective area" of wings',
        "“quoted” -x title:wing",
        "flow* -title:a",
        "in:a «b» „c‟",
        "a-b -- -c --d",
        "the »b«-c",
    ):
        parsed = parse(without_operators(text))
        assert (bool(parsed), parsed.notes) == (False, ()), text
