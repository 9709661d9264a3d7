"""The reference pages list what the code has: measures, keys of files, commands."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import typer

from fedrank.cli import app
from fedrank.deploy.settings import Policy, SiteData
from fedrank.ranking.measures import EMPTY, LABELS, MEASURES
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from tests.documents import DOCS, hook

REFERENCE = DOCS / "reference"


def _page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text(encoding="utf-8")


def _keys(page: str, header: str) -> list[str]:
    """The first column of the table that begins with this header."""
    table = page.partition(f"| {header} |")[2].partition("\n\n")[0]
    return [key for cell in re.findall(r"^\| (.+?) \|", table, re.MULTILINE) for key in re.findall(r"`([\w-]+)`", cell)]


def test_every_measure_is_listed():
    page = _page("spec")
    assert _keys(page, "Name") == list(MEASURES)
    assert _keys(page, "After the slash") == list(EMPTY)
    assert _keys(page, "By") == [name for name in LABELS if name]


def test_every_key_of_a_site_is_listed():
    page = _page("file-formats")
    for header, kind in (("Key of `[data]`", SiteData), ("Key of `[policy]`", Policy)):
        assert _keys(page, header) == [field.name for field in dataclasses.fields(kind)], header


def test_every_key_of_a_model_is_listed(tmp_path):
    ranges = np.zeros((2, 2), np.float32)
    save_model(Model(Linear(), np.zeros(2), 2, "global", ("a", "b"), ranges=ranges), tmp_path / "model.json")
    written = json.loads((tmp_path / "model.json").read_text())
    listed = _keys(_page("file-formats").partition("## model.json")[2], "Key")
    assert set(listed) == set(written)


def _commands(command, name=""):
    for inner, one in command.commands.items():
        if one.hidden:
            continue
        if hasattr(one, "commands"):
            yield from _commands(one, f"{name}{inner} ")
        else:
            yield f"{name}{inner}"


def test_every_command_is_on_the_page_of_commands():
    pages, root = hook("cli_pages"), typer.main.get_command(app)
    assert pages["MARKER"] in _page("cli")
    text = pages["cli_commands"]()
    for name in _commands(root):
        assert re.search(rf"^#+ {name}$", text, re.MULTILINE), name
    top = {name for name, one in root.commands.items() if not one.hidden}
    listed = set(re.findall(r"`(?:fedrank )?(\w+)`", _page("cli").partition("| Command |")[2].partition("## ")[0]))
    assert listed - {"papers"} == top - {"papers"}  # a plug-in


def test_paths_on_the_page_about_the_architecture_exist():
    page = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    paths = {path for path in re.findall(r"`([\w./*-]+/[\w.*-]*)`", page) if "FOLDER" not in path}
    assert len(paths) > 60
    roots = (DOCS.parent, DOCS.parent / "src" / "fedrank")
    assert [path for path in sorted(paths) if not any(any(root.glob(path)) for root in roots)] == []
