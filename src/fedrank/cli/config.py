"""`--config FILE.toml`: a file that sets options of a command."""

from __future__ import annotations

import inspect
import types
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

MOST_VISIBLE = 8  # options in the help of a command; the others are hidden and belong in a file
LARGEST = 1_000_000  # bytes of a file
_WORDS: dict[Any, str] = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def _set_defaults(context: typer.Context, file: Path | None) -> Path | None:
    """Make the values of a file the defaults of the command. An option on the command line has precedence."""
    if file is None or context.resilient_parsing:
        return file
    from fedrank.files import opened
    from fedrank.names import did_you_mean
    from fedrank.toml import parse_toml

    with opened(file) as content:
        read = content.read(LARGEST + 1)
    if len(read) > LARGEST:
        raise ValueError(f"{file} is larger than {LARGEST:,} bytes; a file of options has a few lines")
    try:
        values = parse_toml(read.decode("utf-8-sig"))
    except ValueError as problem:
        raise ValueError(f"{file} is not a TOML file: {problem}") from None
    known = {
        option.opts[0].removeprefix("--"): option
        for option in context.command.params
        if option.opts[0].startswith("--") and option.opts[0] not in ("--config", "--help")
    }
    annotations = get_type_hints(inspect.unwrap(context.command.callback))  # type: ignore[arg-type]  # every command has one
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("_", "-")
        if name not in known:
            raise ValueError(f"{file}: {key!r} is not an option of `{_command(context)}`{did_you_mean(name, known)}")
        option = known[name]
        if option.name in defaults:
            raise ValueError(f"{file}: {key!r} is set twice; leave out one of them")
        _check(annotations[option.name], value, f"{file}: {key}")
        try:
            option.process_value(context, value)
        except Exception as problem:  # an error of Typer or of Click
            raise ValueError(f"{file}: {key}: {getattr(problem, 'message', problem)}") from None
        defaults[option.name] = value
    context.default_map = {**(context.default_map or {}), **defaults}
    return file


def _command(context: typer.Context) -> str:
    """The command as the user types it."""
    words: list[str] = []
    level: Any = context
    while level.parent is not None:
        words.insert(0, level.info_name)
        level = level.parent
    return " ".join(["fedrank", *words])


def _check(annotation: Any, value: Any, where: str) -> None:
    """Refuse a value whose type differs from that of the option."""
    if isinstance(annotation, types.UnionType):  # such as Path | None
        annotation = get_args(annotation)[0]
    several = get_origin(annotation) in (list, tuple)
    if several != isinstance(value, list):
        raise ValueError(f"{where} must be {'a list' if several else 'one value'} (got {value!r:.80})")
    kind = get_args(annotation)[0] if several else annotation
    kind = str if kind is Path else kind
    accepted = (int, float) if kind is float else kind
    for one in value if several else [value]:
        if not isinstance(one, accepted) or (isinstance(one, bool) and kind is not bool):
            raise ValueError(f"{where} must be {_WORDS[kind]} (got {one!r:.80})")
    if get_origin(annotation) is tuple and len(value) != len(get_args(annotation)):
        raise ValueError(f"{where} must have {len(get_args(annotation))} values (got {len(value)})")


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        is_eager=True,
        callback=_set_defaults,
        help="TOML file that sets options by name, including those that this help does not list (see the reference).",
    ),
]
