"""Commands with many options: those that their help does not list, and `--config FILE.toml`, which sets any of them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from fedrank.value_checks import checked

MOST_VISIBLE = 8  # options in the help of a command; the others are hidden and belong in a file
LARGEST = 1_000_000  # bytes of a file


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a dataclass by its fields, as options that the help does not list.

    The comment behind a field documents it, and its type hint has its limits, as for the settings of methods.
    """
    signature = inspect.signature(command, eval_str=True)
    options = {name: given for name, given in signature.parameters.items() if not is_dataclass(given.annotation)}
    groups = {name: given.annotation for name, given in signature.parameters.items() if name not in options}
    for kind in groups.values():
        plain, limited = get_type_hints(kind), get_type_hints(kind, include_extras=True)
        for one in fields(kind):
            flag = f"--{one.name.rstrip('_').replace('_', '-')}"
            option = typer.Option(one.default, flag, hidden=True, **_limits(limited[one.name]))
            options[one.name] = inspect.Parameter(
                one.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=plain[one.name]
            )

    def call(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{one.name: values.pop(one.name) for one in fields(kind)})
        command(**values)

    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__annotations__ = {name: one.annotation for name, one in options.items()}
    vars(call).update(__signature__=signature.replace(parameters=[*options.values()]), settings=[*groups.values()])
    return call


def _limits(hint: Any) -> dict[str, Any]:
    """The limits of a number, such as `Positive | None`, as Typer names them."""
    limits = [limit for one in (hint, *get_args(hint)) for limit in getattr(one, "__metadata__", ())]
    return {limit.keyword[0][:3]: limit.keyword[1] for limit in limits}  # minimum, maximum


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
            raise ValueError(f"{file}: {key!r} is not an option of `{context.command_path}`{did_you_mean(name, known)}")
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


def _check(annotation: Any, value: Any, where: str) -> None:
    """Refuse a value whose type differs from that of the option."""
    if isinstance(annotation, types.UnionType):  # such as Path | None
        annotation = get_args(annotation)[0]
    several = get_origin(annotation) in (list, tuple)
    kind: Any = get_args(annotation)[0] if several else annotation
    kind = str if kind is Path else kind
    checked(list[kind] if several else kind, value, where)


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
