"""Every command of fedrank as Markdown, read from the program.

MkDocs runs this as a hook (see mkdocs.yml): the commands replace a marker in `reference/cli.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer
from prose import cell, code

from fedrank.cli import app
from fedrank.experiments.spec.listing import comments_of

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

MARKER = "<!-- every command -->"


def cli_commands() -> str:
    """Markdown: a section for each top-level command, and below it one for each of its commands."""
    root = typer.main.get_command(app)
    return "\n\n".join(part for name, command in _shown(root) for part in _section(command, name, 2)) + "\n"


def _shown(group: Any) -> list[tuple[str, Any]]:
    return [(name, command) for name, command in group.commands.items() if not command.hidden]


def _section(command: Any, name: str, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} {name}"
    yield cell(" ".join((command.help or "").split()))
    if hasattr(command, "commands"):
        for inner, one in _shown(command):
            yield from _section(one, f"{name} {inner}", min(depth + 1, 4))
        return
    if examples := list(_examples(command.epilog or "")):
        yield "```bash\n" + "\n".join(examples) + "\n```"
    options = [option for option in command.params if "--help" not in option.opts]
    if listed := [_row(option, option.help or "") for option in options if not option.hidden]:
        yield _table("Argument or option", listed)
    meanings = hidden_options(command)
    if hidden := [_row(option, meanings[option.name]) for option in options if option.hidden]:
        yield "The help of the command does not list these options; `--config` can set them, too:"
        yield _table("Option", hidden)


def hidden_options(command: Any) -> dict[str, str]:
    """The meaning of each option that the help of a command does not list."""
    groups = getattr(command.callback, "settings", [])
    return {name: f"{text[:1].upper()}{text[1:]}." for kind in groups for name, text in comments_of(kind).items()}


def _table(title: str, rows: list[str]) -> str:
    return "\n".join([f"| {title} | Default | Meaning |", "|---|---|---|", *rows])


def _examples(epilog: str) -> Iterator[str]:
    """The command lines at the end of the help of a command."""
    for part in epilog.partition(":")[2].split("·"):
        line = " ".join(part.split())
        if line.startswith("fedrank "):
            yield line


def _row(parameter: Any, meaning: str) -> str:
    is_option = parameter.opts[0].startswith("-")
    names = ", ".join(code(name) for name in (*parameter.opts, *parameter.secondary_opts))
    if not is_option:
        names = code((parameter.metavar or parameter.name).upper())
    default = "required" if parameter.required else _default(parameter.default)
    return f"| {names} | {default} | {cell(' '.join(meaning.split()))} |"


def _default(value: Any) -> str:
    return "" if value is None or value is False or value in ((), []) or callable(value) else code(str(value))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in the commands."""
    return markdown.replace(MARKER, cli_commands()) if page.file.src_uri == "reference/cli.md" else markdown
