"""Check plain values of a spec against type hints: no text for a number, no number for a Boolean.

This module uses no library: most of a spec are methods and sections, which are dataclasses (see families.py). For the
few plain types in them, errors have the same form as all others, with key, value and remedy.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from fedrank.toml import shown

T = TypeVar("T")


@dataclass(frozen=True)
class Limit:
    """A constraint on a value in addition to its type, in an Annotated hint."""

    holds: Callable[[Any], bool]
    remedy: str
    keyword: tuple[str, float] | None = None  # the same in a JSON schema

    def __call__(self, value: Any, place: str) -> None:
        if not self.holds(value):
            raise Unfit(place, value, self.remedy)


def at_least(least: float) -> Limit:
    return Limit(lambda value: value >= least, f"give {least} or more", ("minimum", least))


def at_most(most: float) -> Limit:
    return Limit(lambda value: value <= most, f"give {most} or less", ("maximum", most))


def more_than(bound: float) -> Limit:
    return Limit(lambda value: value > bound, f"give more than {bound}", ("exclusiveMinimum", bound))


def less_than(bound: float) -> Limit:
    return Limit(lambda value: value < bound, f"give less than {bound}", ("exclusiveMaximum", bound))


NotEmpty = Limit(lambda values: len(values) > 0, "list at least 1", ("minItems", 1))
LARGEST = 1_000_000_000  # maximum of counts such as rounds, searches and trees
Positive = Annotated[int, at_least(1), at_most(LARGEST)]
Filled = Annotated[tuple[T, ...], NotEmpty]


class Unfit(ValueError):
    """An invalid value, with its key and the remedy."""

    def __init__(self, place: str, value: Any, remedy: str) -> None:
        self.place, self.remedy = place, remedy
        super().__init__(f"{place}: {shown(value)} cannot be used; {remedy}")


PLAIN: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "give true or false"),
    int: ((int,), "give an integer"),
    float: ((int, float), "give a number"),
    str: ((str,), "give text in quotes"),
    dict: ((Mapping,), "give a table"),
}


def checked(hint: Any, value: Any, place: str) -> Any:
    """Return the value if it matches the hint; an integer is a number, and a list may become a tuple."""
    if type(value) is hint and hint in PLAIN:  # the common case; inspecting a type is slow
        if hint is int and not -(2**63) <= value < 2**63:
            raise Unfit(place, value, "give an integer of 64 bits")
        return value
    kind, inner = (hint, ()) if type(hint) is type else (get_origin(hint) or hint, get_args(hint))
    if kind is Annotated:
        plain = checked(inner[0], value, place)
        for check in inner[1:]:
            check(value, place)
        return plain
    if kind in (Union, types.UnionType):
        return _one_of(inner, value, place)
    if kind is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in inner):
            raise Unfit(place, value, f"give {' or '.join(map(shown, inner))}")
        return value
    if kind in (list, tuple):
        if not isinstance(value, (list, tuple)):
            raise Unfit(place, value, "give a list in brackets")
        return kind(checked(inner[0], one, f"{place}[{i}]") if inner else one for i, one in enumerate(value))
    if kind is dict and inner:
        table = checked(dict, value, place)
        if inner[1] is Any:
            return dict(table)
        return {key: checked(inner[1], one, f"{place}.{key}") for key, one in table.items()}
    if kind not in PLAIN:
        return value  # a user-defined class validates it itself
    fitting, remedy = PLAIN[kind]
    if not isinstance(value, fitting) or (isinstance(value, bool) and kind is not bool):
        raise Unfit(place, value, remedy)
    try:
        return float(value) if kind is float else value  # type: ignore[arg-type]
    except OverflowError:
        raise Unfit(place, value, "give a smaller number") from None


def _one_of(hints: Collection[Any], value: Any, place: str) -> Any:
    """Check a value that may have several types. In a list with an invalid entry, the entry is reported."""
    if value is None and type(None) in hints:
        return None
    unfit: list[Unfit] = []
    for hint in hints:
        if hint is type(None):
            continue
        try:
            return checked(hint, value, place)
        except Unfit as problem:
            unfit.append(problem)
    for one in unfit:
        if one.place != place:
            raise one
    raise Unfit(place, value, " or ".join(dict.fromkeys(one.remedy for one in unfit)))


@contextmanager
def noting(problems: list[str], place: str = "") -> Iterator[None]:
    """Record errors, one per line, and continue."""
    try:
        yield
    except ValueError as problem:
        problems += [f"{place}: {line}" if place else line for line in str(problem).splitlines()]


def twice(values: Iterable[Any]) -> list[Any]:
    """Return the values that occur more than once."""
    values = list(values)
    return [value for i, value in enumerate(values) if value in values[:i]]
