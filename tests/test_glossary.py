"""The list of terms is true: its names exist, and names that are listed as replaced are not used again."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TERMS = (ROOT / "docs" / "explanation" / "concepts.md").read_text(encoding="utf-8").partition("## Terms")[2]
STABILITY = (ROOT / "docs" / "reference" / "stability.md").read_text(encoding="utf-8")
EARLIER = STABILITY.partition("Names in Python, which are not used again")[2]
NAMES = re.findall(r"\| `(fedrank[\w.]+)` \|$", TERMS, re.MULTILINE)
REPLACED = [re.findall(r"`(\w+)`", cells) for cells in re.findall(r"^\| (.+?) \| .+ \|$", EARLIER, re.MULTILINE)]
NEW = [re.findall(r"`(\w+)`", cells) for cells in re.findall(r"^\| .+? \| (.+) \|$", EARLIER, re.MULTILINE)]


@pytest.mark.parametrize("name", NAMES)
def test_a_term_has_the_name_that_the_glossary_gives(name):
    module, _, attribute = name.rpartition(".")
    if "." in module and find_spec(module) and hasattr(import_module(module), attribute):
        return
    assert find_spec(name) is not None, f"there is no {name}"


def test_every_term_is_explained_once():
    terms = re.findall(r"^\| (.+?) \| .+ \| `fedrank", TERMS, re.MULTILINE)
    assert len(terms) == len(set(terms)) == len(NAMES) >= 35


def test_names_that_were_replaced_are_not_used_again():
    text = "\n".join(source.read_text(encoding="utf-8") for source in (ROOT / "src").rglob("*.py"))
    defined = {*re.findall(r"^class (\w+)", text, re.MULTILINE), *re.findall(r"^(\w+)(?:: .+)? = ", text, re.MULTILINE)}
    old, new = ({name for names in table for name in names} for table in (REPLACED, NEW))
    assert len(old) >= 15
    assert not old & defined
    assert new <= defined
