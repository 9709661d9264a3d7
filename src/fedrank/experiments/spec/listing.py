"""All methods that a spec can name, with their settings and documentation."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedrank import plugins
from fedrank.experiments.spec.families import FAMILIES, default_of, hints_of, name_of
from fedrank.names import did_you_mean
from fedrank.ranking.click_models import CLICK_MODEL_MEANINGS
from fedrank.ranking.measures import MEASURES
from fedrank.toml import shown

LISTS = {"click-model": CLICK_MODEL_MEANINGS, "measure": MEASURES}  # names without settings


@dataclass(frozen=True)
class ListedSetting:
    """The documentation of one setting of a method."""

    name: str
    kind: str
    default: str
    comment: str


@dataclass(frozen=True)
class ListedMethod:
    """The documentation of one method."""

    family: str
    name: str
    meaning: str  # the first paragraph of its docstring
    settings: tuple[ListedSetting, ...] = ()
    text: str = ""  # the whole docstring, with references

    def mentions(self, word: str) -> bool:
        return any(word.casefold() in text.casefold() for text in (self.name, self.meaning, self.text))


def methods() -> list[ListedMethod]:
    """All methods that a spec can name."""
    rows = [
        ListedMethod(family.name, name, summary_of(cls), _settings(cls), inspect.getdoc(cls) or "")
        for family in FAMILIES.values()
        for name, cls in family.methods.items()
    ]
    known = {(row.family, row.name) for row in rows}
    for full, home in plugins.methods().items():
        family, _, name = full.partition(".")
        if family in {one.name for one in FAMILIES.values()} and (family, name) not in known:
            rows.append(ListedMethod(family, name, f"Method of a plug-in: {home}"))
    for family, names in LISTS.items():
        rows += [ListedMethod(family, name, meaning) for name, meaning in names.items()]
    return rows


def search(word: str | None = None, name: str | None = None) -> list[ListedMethod]:
    """Methods of a family, with a name, or whose documentation mentions a word; without a word, all methods.

    With `name`, the word is a family and the result is that one method.
    """
    rows = methods()
    if word is None:
        return rows
    families = list(dict.fromkeys(row.family for row in rows))
    if word in families or name is not None:
        if word not in families:
            raise ValueError(f"unknown family {word!r}{did_you_mean(word, families)}")
        rows = [row for row in rows if row.family == word]
        if name is None:
            return rows
        if not (named := [row for row in rows if row.name == name]):
            raise ValueError(f"unknown {word} {name!r}{did_you_mean(name, [row.name for row in rows])}")
        return named
    found = [row for row in rows if row.name == word] or [row for row in rows if row.mentions(word)]
    if not found:
        known = [*families, *(row.name for row in rows)]
        raise ValueError(f"no family or method is called {word!r} or mentions it{did_you_mean(word, known)}")
    return found


def summary_of(cls: type) -> str:
    """The first paragraph of the docstring of a class."""
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def settings_in(cls: type) -> list[tuple[dataclasses.Field[Any], Any, Any, str]]:
    """The settings of a method or section: each with its type hint, its default (None if required) and its comment."""
    hints, comments = hints_of(cls), comments_of(cls)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    return [(each, hints[each.name], default_of(each), comments.get(each.name, "")) for each in fields]


def _settings(cls: type) -> tuple[ListedSetting, ...]:
    rows = []
    for field, hint, default, comment in settings_in(cls):
        family = FAMILIES.get(hint)
        text = "" if default is None else shown(default) if family is None else name_of(default)
        rows.append(ListedSetting(field.name, str(field.type) if family is None else family.name, text, comment))
    return tuple(rows)


def comments_of(cls: type) -> dict[str, str]:
    """Comments behind the fields of a class: they are the documentation of the settings."""
    found: dict[str, str] = {}
    for base in cls.__mro__[-2::-1]:  # from the most general class, without `object`
        found |= _own_comments(base)
    return found


@cache
def _own_comments(cls: type) -> dict[str, str]:
    try:
        lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
    except (OSError, TypeError):
        return {}
    body = ast.parse("\n".join(lines)).body[0]
    fields = [node for node in getattr(body, "body", []) if isinstance(node, ast.AnnAssign)]
    found = {}
    for node in fields:
        _, mark, comment = lines[(node.end_lineno or 1) - 1][node.end_col_offset or 0 :].partition("#")
        if mark:
            found[getattr(node.target, "id", "")] = comment.strip()
    return found
