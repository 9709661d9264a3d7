"""An experiment: one value for every setting, with its methods built and ready to run."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fedrank.experiments.spec.families import SpecSection, default_of, describe, read_fields, settings_of
from fedrank.experiments.spec.sections import PrivacySpec
from fedrank.privacy.population import SIMULATED
from fedrank.ranking.measures import measure
from fedrank.toml import TomlTable, shown, write_toml
from fedrank.value_checks import Filled, noting, twice

E = TypeVar("E", bound="Experiment")


class SpecError(ValueError):
    """All problems of a spec, one per line."""

    def __init__(self, problems: Iterable[str], source: str = ""):
        self.problems = list(dict.fromkeys(line for problem in problems for line in str(problem).splitlines()))
        self.source = source
        super().__init__(self.problems, source)  # makes the exception picklable

    def __str__(self) -> str:
        return "\n".join(f"{self.source}: {line}" if self.source else line for line in self.problems)


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """The settings that all kinds of experiments have."""

    title: str = ""
    measures: Filled[str] = ("ndcg@10",)
    seeds: Filled[int] = (1,)

    sections: ClassVar[tuple[str, ...]]  # tables in which variants can change single settings
    if TYPE_CHECKING:  # declared by every kind with its own type
        kind: str
        data: Any  # a section with `folds` and `require`
        rounds: int

    @property
    @abstractmethod
    def extent(self) -> str:
        """The length of a run, with its unit."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What is measured: the columns of rounds.csv and queries.csv."""
        return self.measures

    @property
    def rounds_asked(self) -> int:
        """The maximum number of rows in rounds.csv."""
        return self.rounds

    def repeats(self) -> list[tuple[int, int]]:
        """The (fold, seed) pair of every repeat."""
        return list(itertools.product(self.data.folds, self.seeds))

    def single(self: E, fold: int, seed: int) -> E:
        """This experiment on one fold with one seed."""
        return dataclasses.replace(self, data=dataclasses.replace(self.data, folds=(fold,)), seeds=(seed,))

    @classmethod
    def read(
        cls: type[E], tables: TomlTable, problems: list[str], known: Iterable[str] = (), full_check: bool = True
    ) -> E | None:
        """Build an experiment from the tables of its TOML. Problems are appended, and the result is then None.

        `full_check=False` is for a finished run, whose values were valid when it ran: only the structure is checked.
        """
        before = len(problems)
        values = read_fields(cls, tables, "", problems, known=known, full_check=full_check)
        cls.complete(values, tables, problems)
        if full_check:
            defaults = {field.name: default_of(field) for field in dataclasses.fields(cls)}
            unusable = set(tables) - set(values)  # these have been reported already
            problems += cls.problems(SimpleNamespace(**(defaults | values), unusable=unusable))
        return cls(**values) if len(problems) == before else None

    @classmethod
    def complete(cls, values: TomlTable, tables: TomlTable, problems: list[str]) -> None:
        """Fill in settings that one section inherits from another."""
        return

    @classmethod
    def problems(cls, spec: Any) -> list[str]:
        """Conflicts between values that are valid on their own. An `unusable` value is None in `spec`."""
        found: list[str] = []
        names = []
        for i, text in enumerate(spec.measures):
            with noting(found, f"measures[{i}]"):
                names.append(str(measure(text)))
        folds = () if spec.data is None else spec.data.folds
        for location, listed in (("measures", names), ("seeds", spec.seeds), ("data.folds", folds)):
            if again := twice(listed):
                found.append(f"{location}: {shown(again[0])} is listed twice; list each value once")
        return found


def of_sizes(measures: Iterable[str], sizes: Iterable[int]) -> list[str]:
    """Names of the measures of forests that are truncated to these numbers of trees."""
    measures = list(measures)
    return [f"{name} of {size} trees" for size in sizes for name in measures]


def to_tables(experiment: Experiment) -> TomlTable:
    """The tables of an experiment with every setting of its methods, independent of later defaults.

    Absent and empty values are left out.
    """
    tables: TomlTable = {}
    for field in dataclasses.fields(experiment):
        value = getattr(experiment, field.name)
        if value == PrivacySpec() or (field.name, value) == ("population", SIMULATED):
            continue
        if dataclasses.is_dataclass(value):
            value = settings_of(value) if isinstance(value, SpecSection) else describe(value)
        if value is not None and value not in ({}, "", ()):
            tables[field.name] = list(value) if isinstance(value, tuple) else copy.deepcopy(value)
    first = ("kind", "title", "rounds", "evaluate_every", "measures", "seeds", "start")
    return {key: tables[key] for key in (*first, *tables) if key in tables}


def to_toml(experiment: Experiment) -> str:
    """The experiment as TOML."""
    return write_toml(to_tables(experiment))
