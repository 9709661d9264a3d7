"""Pages on the Python interface: signatures, fields and docstrings of every name of `import fedrank`, from the code.

MkDocs runs this as a hook (see mkdocs.yml). `fedrank/__init__.pyi` lists the names; a new name there appears on its
page without a change here.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from prose import cell, code, prose

import fedrank
from fedrank.experiments.spec.listing import comments_of

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

WIDTH = 88  # of a signature; a longer one has one line per argument


class Group(NamedTuple):
    """Names on one page: those defined in one of these packages."""

    page: str
    title: str
    what: str
    packages: tuple[str, ...]


GROUPS = (
    Group("data", "Data", "Files, logs, collections and generated data.", ("data",)),
    Group("ranking", "Ranking", "Models, measures and click models.", ("ranking",)),
    Group(
        "federation",
        "Federation",
        "Clients, rounds, and the client and server halves of a round.",
        ("federated", "types"),
    ),
    Group("testing", "Testing", "Contract checks for your own methods.", ("testing",)),
    Group("experiments", "Experiments", "Specs, run folders and reports.", ("experiments",)),
    Group(
        "organisations", "Organisations", "Trees, and document collections of several organisations.", ("trees", "silo")
    ),
)


def api_pages() -> dict[str, str]:
    """Markdown by path: an overview, a page for each group of names, and one for each family of methods."""
    pages, overview = {}, ["# The Python interface", "", OPENING, ""]
    overview += ["## Functions and records", "", "| Page | What it is | Names |", "|---|---|---|"]
    verbs, families = _names()
    for group in GROUPS:
        names = [name for name in verbs if _package(name) in group.packages]
        overview.append(f"| [{group.title}]({group.page}.md) | {group.what} | {_links(group.page, names)} |")
        described = {name: getattr(fedrank, name) for name in names}
        pages[f"reference/python/{group.page}.md"] = _page(group.title, group.what, "fedrank", described)
    overview += ["", "## Methods", "", "| Family | What it is | Names |", "|---|---|---|"]
    for family in families:
        methods = vars(fedrank._family(family))
        what = fedrank._family_doc(family)
        overview.append(f"| [{family}]({family}.md) | {cell(_first(what))} | {_links(family, list(methods))} |")
        pages[f"reference/python/{family}.md"] = _page(f"fedrank.{family}", what, f"fedrank.{family}", methods)
    return {"reference/python/index.md": "\n".join(overview) + "\n"} | pages


OPENING = """Every name of `import fedrank`, read from the code. Functions and records are names of `fedrank`, such as
`fedrank.simulate`. Methods are below their family, as in `fedrank.aggregators.Krum`; the
[pages about methods](../methods/index.md) show how a spec names them. Names that are not listed here may change without
notice.

The [tutorial](../../tutorials/first-experiment.md) and the
[section on notebooks](../../how-to/compare-methods.md#notebooks-and-data-frames) show how the names work together."""


def _names() -> tuple[list[str], list[str]]:
    """Functions and records; families. Both in alphabetical order."""
    families = [name for name in fedrank.__all__ if isinstance(fedrank._listed()[name], dict)]
    return [name for name in fedrank.__all__ if name not in families], families


def _package(name: str) -> str:
    one = getattr(fedrank, name)
    return (one.__name__ if inspect.ismodule(one) else one.__module__).split(".")[1]


def _links(page: str, names: list[str]) -> str:
    return ", ".join(f"[`{name}`]({page}.md#{name.lower()})" for name in names)


def _page(title: str, what: str, home: str, names: dict[str, Any]) -> str:
    parts = [f"# {title}", prose(what)]
    for name, one in names.items():
        parts += [f"## {name}", *_described(one, f"{home}.{name}")]
    return "\n\n".join(parts) + "\n"


def _described(one: Any, called: str) -> Iterator[str]:
    """Its signature, docstring and members."""
    if inspect.ismodule(one):
        yield prose(inspect.getdoc(one))
        for name, function in sorted(vars(one).items()):
            if inspect.isfunction(function) and function.__module__ == one.__name__ and not name.startswith("_"):
                yield f"### {name}"
                yield from _described(function, f"{called}.{name}")
        return
    yield f"```python\n{signature(one, called)}\n```"
    yield prose(_said(one))
    if inspect.isclass(one):
        yield from _fields(one)
        yield from _members(one)
    yield f"In `{one.__module__}`."


def _said(one: Any) -> str:
    """The docstring; Python gives a dataclass without one its signature, which is left out."""
    said = inspect.getdoc(one) or ""
    return "" if inspect.isclass(one) and said.startswith(f"{one.__name__}(") else said


def signature(one: Any, called: str) -> str:
    """The call as it is typed, on one line if it fits."""
    asked = inspect.signature(one)
    arguments, starred = [], False
    for parameter in asked.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            arguments.append("*")
            starred = True
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        arguments.append(_argument(parameter))
    back = (
        ""
        if inspect.isclass(one) or asked.return_annotation is asked.empty
        else f" -> {_kind(asked.return_annotation)}"
    )
    line = f"{called}({', '.join(arguments)}){back}"
    if len(line) <= WIDTH:
        return line
    return f"{called}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){back}"


def _argument(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_kind(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        spaced = " = " if parameter.annotation is not parameter.empty else "="
        text += spaced + _default(parameter.default)
    return text


def _kind(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    """The value as it is typed, or dots if its repr is only its class."""
    text = repr(value)
    return "..." if text.startswith("<") else text


def _fields(kind: type) -> Iterator[str]:
    """Fields with a comment; the signature has the names and types of all."""
    if not dataclasses.is_dataclass(kind):
        return
    comments = comments_of(kind)
    lines = ["| Field | Meaning |", "|---|---|"]
    for field in dataclasses.fields(kind):
        if field.name in comments and not field.name.startswith("_"):
            lines.append(f"| `{field.name}` | {cell(comments[field.name])} |")
    if len(lines) > 2:
        yield "\n".join(lines)


def _members(kind: type) -> Iterator[str]:
    """Public methods and properties that have a docstring."""
    lines = ["| Member | What it does |", "|---|---|"]
    for name, member in sorted(_own(kind).items()):
        asked = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        said = inspect.getdoc(asked if not isinstance(asked, property) else asked.fget)
        if name.startswith("_") or not said:
            continue
        if callable(asked):
            lines.append(f"| {code(_compact(asked, name))} | {cell(_first(said))} |")
        elif isinstance(asked, property) or hasattr(asked, "func"):
            lines.append(f"| `{name}` | {cell(_first(said))} |")
    if len(lines) > 2:
        yield "\n".join(lines)


def _own(kind: type) -> dict[str, Any]:
    """Members that classes of this project define."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("fedrank"):
            found |= vars(base)
    return found


def _compact(function: Any, name: str) -> str:
    """A call with the names of its arguments."""
    names = [
        str(each.name) for each in inspect.signature(function).parameters.values() if each.name not in ("self", "cls")
    ]
    return f"{name}({', '.join(names)})"


def _first(said: str) -> str:
    return re.sub(r"\s+", " ", said.split("\n\n")[0])


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add these pages to those of docs/."""
    from mkdocs.structure.files import File

    for path, text in api_pages().items():
        files.append(File.generated(config, path, content=text))
    return files
