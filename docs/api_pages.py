"""Pages on everything that `import fedrank` offers: signatures, fields and docstrings, read from the code.

MkDocs runs this as a hook (see mkdocs.yml). Which names there are, `fedrank/__init__.pyi` says; a name that is new
there is on its page without being named here.
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

WIDTH = 88  # of a signature, before it takes a line for each argument


class Group(NamedTuple):
    """Names that stand on one page: those whose home is in one of these rooms."""

    page: str
    title: str
    what: str
    rooms: tuple[str, ...]


GROUPS = (
    Group("data", "Data", "What is ranked: files, logs, collections and made-up data.", ("data",)),
    Group("ranking", "Ranking", "How one machine ranks: models, measures, users who click.", ("ranking",)),
    Group(
        "federation",
        "Federation",
        "Many learn together: clients, rounds, and their two halves.",
        ("federated", "types"),
    ),
    Group("testing", "Testing", "Contract checks for methods of your own.", ("testing",)),
    Group("experiments", "Experiments", "Specs in, run folders and reports out.", ("experiments",)),
    Group("organisations", "Organisations", "Forests, and documents that stay in their house.", ("trees", "silo")),
)


def api_pages() -> dict[str, str]:
    """Markdown by path: an overview, a page for each group of verbs and records, and one for each family of methods."""
    pages, overview = {}, ["# The Python interface", "", OPENING, ""]
    overview += ["## Verbs and records", "", "| Page | What it is | Names |", "|---|---|---|"]
    verbs, families = _names()
    for group in GROUPS:
        names = [name for name in verbs if _room(name) in group.rooms]
        overview.append(f"| [{group.title}]({group.page}.md) | {group.what} | {_links(group.page, names)} |")
        told = {name: getattr(fedrank, name) for name in names}
        pages[f"api/{group.page}.md"] = _page(group.title, group.what, "fedrank", told)
    overview += ["", "## Methods", "", "| Family | What it is | Names |", "|---|---|---|"]
    for family in families:
        methods = vars(fedrank._family(family))
        what = fedrank._family_doc(family)
        overview.append(f"| [{family}]({family}.md) | {cell(_first(what))} | {_links(family, list(methods))} |")
        pages[f"api/{family}.md"] = _page(f"fedrank.{family}", what, f"fedrank.{family}", methods)
    return {"api/index.md": "\n".join(overview) + "\n"} | pages


OPENING = """Everything that `import fedrank` offers, read from the code. Verbs and records are names of `fedrank`,
such as `fedrank.simulate`. Methods stand under their family, as in `fedrank.aggregators.Krum`. How a spec names them is
on the [pages about methods](../methods/index.md). Whatever is not here may change without notice.

To see how the names work together, read [the tutorial](../tutorial.md) or
[how to work in a notebook](../how-to-work-in-a-notebook.md)."""


def _names() -> tuple[list[str], list[str]]:
    """Verbs and records; families. Both in the order of the alphabet."""
    families = [name for name in fedrank.__all__ if isinstance(fedrank._listed()[name], dict)]
    return [name for name in fedrank.__all__ if name not in families], families


def _room(name: str) -> str:
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
    """How it is called, what it says of itself, and what it has."""
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
    """A docstring that somebody wrote; dataclasses without one get their signature from Python."""
    said = inspect.getdoc(one) or ""
    return "" if inspect.isclass(one) and said.startswith(f"{one.__name__}(") else said


def signature(one: Any, called: str) -> str:
    """As one would type it, on one line where it fits."""
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
    """As it is typed, or dots where only its class would tell."""
    text = repr(value)
    return "..." if text.startswith("<") else text


def _fields(kind: type) -> Iterator[str]:
    """Fields that a comment says more about than their name and kind, which the signature has."""
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
    """Public methods and properties that say something of themselves."""
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
    """What its classes in this project define; not what Python gives to each."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("fedrank"):
            found |= vars(base)
    return found


def _compact(function: Any, name: str) -> str:
    """A call with its arguments' names: kinds are for the editor."""
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
