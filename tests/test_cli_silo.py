"""`fedrank silo`: a sketch is created with its key, described (`fedrank data check`) and updated."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from fedrank.cli import main


@pytest.fixture
def silo(tmp_path, monkeypatch, capsys):
    """Call `fedrank silo` in a folder with documents: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name, ids in (("corpus", range(6)), ("more", range(6, 9))):
        rows = [json.dumps({"id": f"d{i}", "title": "flu", "text": "what helps against fever " * (i + 1)}) for i in ids]
        Path(f"{name}.jsonl").write_text("\n".join(rows))

    def call(*words, group=("silo",)):
        monkeypatch.setattr(sys, "argv", ["fedrank", *group, *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


def test_a_sketch_from_documents_to_updates(silo):
    made = ("sketch", "--docs", "corpus.jsonl", "--key", "shared.key", "--out", "a.sketch")
    code, out, err = silo(*made)
    assert (code, err) == (0, "")
    assert "New key: shared.key, fingerprint " in out
    assert stat.S_IMODE(Path("shared.key").stat().st_mode) == 0o600
    key = Path("shared.key").read_bytes()
    code, out, _ = silo(*made[:-1], "again.sketch")
    assert (code, "New key" in out) == (0, False)
    assert Path("shared.key").read_bytes() == key
    assert "privacy" in json.loads(silo("a.sketch", "--json", group=("data", "check"))[1])
    change = ("update", "a.sketch", "--add", "more.jsonl", "--key", "shared.key", "--remove", "d1", "--remove", "d2")
    code, out, err = silo(*change)
    assert (code, err) == (0, "")
    assert out == "a.sketch: 2 removed, 4 documents now\na.sketch: 3 added, 7 documents now\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --add DOCUMENTS, --remove ID, or both"),
        (("--add", "more.jsonl"), "--add and --key belong together; give both"),
        (("--key", "shared.key", "--remove", "d1"), "--add and --key belong together; give both"),
        (("--remove", "d1", "--add", "none.jsonl", "--key", "shared.key"), "none.jsonl"),
        (("--remove", "d99"), "d99"),
    ],
)
def test_a_mistake_changes_nothing(silo, words, message):
    silo("sketch", "--docs", "corpus.jsonl", "--key", "shared.key", "--out", "a.sketch")
    before = Path("a.sketch").read_bytes()
    code, out, err = silo("update", "a.sketch", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert Path("a.sketch").read_bytes() == before
