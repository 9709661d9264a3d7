"""`fedrank data sketch`: a sketch is created with its key, described (`fedrank data check`) and updated."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from fedrank.cli import main


@pytest.fixture
def data(tmp_path, monkeypatch, capsys):
    """Call `fedrank data` in a folder with documents: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name, ids in (("corpus", range(6)), ("more", range(6, 9))):
        rows = [json.dumps({"id": f"d{i}", "title": "flu", "text": "what helps against fever " * (i + 1)}) for i in ids]
        Path(f"{name}.jsonl").write_text("\n".join(rows))

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedrank", "data", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


def test_a_sketch_from_documents_to_updates(data):
    made = ("sketch", "--docs", "corpus.jsonl", "--key", "shared.key", "--out", "a.sketch")
    code, out, err = data(*made)
    assert (code, err) == (0, "")
    assert "New key: shared.key, fingerprint " in out
    assert stat.S_IMODE(Path("shared.key").stat().st_mode) == 0o600
    key = Path("shared.key").read_bytes()
    code, out, _ = data(*made[:-1], "again.sketch")
    assert (code, "New key" in out) == (0, False)
    assert Path("shared.key").read_bytes() == key
    assert "privacy" in json.loads(data("check", "a.sketch", "--json")[1])
    change = (
        "sketch",
        "--out",
        "a.sketch",
        "--add",
        "more.jsonl",
        "--key",
        "shared.key",
        "--remove",
        "d1",
        "--remove",
        "d2",
    )
    code, out, err = data(*change)
    assert (code, err) == (0, "")
    assert out == "a.sketch: 2 removed, 4 documents now\na.sketch: 3 added, 7 documents now\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --docs DOCUMENTS for a new sketch, or --add DOCUMENTS, --remove ID or both"),
        (("--docs", "more.jsonl"), "a new sketch needs --key FILE"),
        (("--docs", "more.jsonl", "--remove", "d1"), "--docs makes a new sketch; remove --add and --remove"),
        (("--docs", "more.jsonl", "--key", "shared.key"), "a.sketch exists"),
        (("--add", "more.jsonl"), "--add and --key belong together; give both"),
        (("--key", "shared.key", "--remove", "d1"), "--add and --key belong together; give both"),
        (("--remove", "d1", "--add", "none.jsonl", "--key", "shared.key"), "none.jsonl"),
        (("--remove", "d99"), "d99"),
        (("--remove", "d1", "--noise", "2"), "a sketch keeps the settings it was made with"),
        (("--remove", "d1", "--depth", "4"), "a sketch keeps the settings it was made with"),
    ],
)
def test_a_mistake_changes_nothing(data, words, message):
    data("sketch", "--docs", "corpus.jsonl", "--key", "shared.key", "--out", "a.sketch")
    before = Path("a.sketch").read_bytes()
    code, out, err = data("sketch", "--out", "a.sketch", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert Path("a.sketch").read_bytes() == before
