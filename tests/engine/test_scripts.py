"""The scripts for real engines: what they would send, and the whole way against a stand-in."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import needs
from tests.engine.schema import problems
from tests.engine.stand_in import standing_in

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.sh"))
pytestmark = [pytest.mark.process, needs.bash]


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(3)
    words = np.array(["red", "blue", "shoes", "shoe", "fox", "city", "run", "o'clock", "3.5"])
    docs = [
        {
            "id": f"d/{i}",
            "title": " ".join(rng.choice(words, 4)),
            "text": " ".join(rng.choice(words, 40)),
            "changed": f"2026-01-{1 + i % 28:02}",
            "popularity": i,
        }
        for i in range(120)
    ]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in docs))
    asked = [" ".join(rng.choice(words, 2)) for _ in range(12)]
    rows = "".join(f"q{i}\t{text}\t2026-02-01\n" for i, text in enumerate(asked))
    (tmp_path / "queries.tsv").write_text(f"query_id\tquery\ttime\n{rows}")
    clicks = "".join(f"q{i}\td/{rng.integers(120)}\n" for i in range(12) for _ in range(4))
    (tmp_path / "clicks.tsv").write_text(f"query_id\tdocument\n{clicks}")
    return tmp_path


def script(name, folder, *options, **environment):
    return subprocess.run(
        ["bash", str(ROOT / "examples" / f"{name}.sh"), *options, "docs.jsonl", "queries.tsv", "clicks.tsv", "try"],
        cwd=folder,
        env=os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src")} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_shell_understands_it(path):
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-x", str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["opensearch", "solr"])
def test_a_dry_run_prints_requests_and_sends_none(files, name):
    done = script(name, files, "--dry-run", URL="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("curl --netrc")]
    assert len(lines) > 25
    for line in lines:
        words = shlex.split(line)
        body = [word[1:] for word in words if word.startswith("@")]
        assert all((files / one).exists() for one in body if not one.endswith("model.json"))
        assert not (files / words[-1]).exists()
    schema = "solr-query" if name == "solr" else "search"
    for request in (files / "try" / "requests").glob("*.json"):
        assert problems(schema, json.loads(request.read_text())) == []
    assert "fedrank engine trial plan" in done.stdout


@pytest.mark.parametrize("name", ["opensearch", "solr"])
def test_the_whole_way_against_a_stand_in(files, name):
    with standing_in(name) as (engine, url):
        done = script(name, files, URL=url)
    refused = [line for line in engine.asked if line.startswith("refused")]
    assert not refused
    assert done.returncode == 0, done.stderr + done.stdout
    told = " ".join(done.stdout.split())
    assert "title_match: 1,200 values, largest difference" in told
    assert "Scores: 1,200 values, largest difference" in told
    assert "The ten best are the same in 12 of 12 lists" in told
    assert "They differ" not in told
    assert len(engine.documents) == 120
    assert (files / "try" / "trial" / "trial.json").exists()


def test_without_files_it_says_what_it_needs(tmp_path):
    done = subprocess.run(
        ["bash", str(ROOT / "examples" / "solr.sh"), "--dry-run"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_an_engine_that_does_not_answer_ends_it(files):
    done = script("opensearch", files, URL="http://127.0.0.1:9")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert not (files / "try" / "model.json").exists()
