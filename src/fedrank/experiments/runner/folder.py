"""The run folder: what stands in its files, for whoever writes them and whoever reads them.

`run.json` says what a run is and how far it is (`Facts`), `privacy.json` what may be claimed for its model (`Card`),
and `receipt.json` what unlearning did (`Receipt`). Tables are CSV: `rounds.csv`, `queries.csv`, `nothing.csv`
(the same for the order that users have without a model), `clients.csv`, `timing.csv`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar
from zipfile import BadZipFile

import numpy as np

from fedrank import __version__
from fedrank.experiments.spec.families import hints_of, is_required
from fedrank.files import opened, parse_json, read_text, write_atomic
from fedrank.privacy.guarantees import up
from fedrank.value_checks import NotEmpty, at_least, checked, less_than

Json = dict[str, Any]
Price = Annotated[float, at_least(0), less_than(math.inf)]  # an ε
J = TypeVar("J", bound="Written")

FORMAT = 1  # of run.json, privacy.json and receipt.json
LAST = 10  # evaluations behind every "final" value
CHECKPOINT = "checkpoint.npz"
NEEDS_QUOTES = re.compile(r'[,"\r\n]')
SIMULATED_RUN, DEPLOYED_RUN, SEARCH_LOG, SKETCH_FILE = "simulated run", "deployed run", "search log", "sketch file"
STATES = ("finished", "running", "interrupted", "failed", "broken")


@dataclass(frozen=True, kw_only=True)
class Written:
    """A small JSON file of a run folder: its fields, except those of `optional` that hold nothing."""

    FILE: ClassVar[str]
    optional: ClassVar[tuple[str, ...]] = ()
    called: ClassVar[dict[str, str]] = {"version": "fedrank"}  # fields that have another name in the file
    first: ClassVar[tuple[str, ...]] = ()  # fields that the file begins with

    version: str = __version__  # of fedrank

    def json(self) -> str:
        values = {
            self.called.get(name, name): value
            for name, value in dataclasses.asdict(self).items()
            if value is not None or name not in self.optional
        }
        begin = {name: values[name] for name in self.first}
        return json.dumps(begin | {"format": FORMAT} | values, indent=1, ensure_ascii=False) + "\n"

    def write(self, folder: Path) -> None:
        write_atomic(folder / self.FILE, self.json())

    @classmethod
    def read(cls: type[J], folder: Path) -> J | None:
        """What the file of a run folder holds; None where there is none."""
        try:
            return cls(**cls.values(folder)) if (folder / cls.FILE).exists() else None
        except KeyError as missing:
            raise ValueError(f"{cls.FILE} lacks {missing}") from None

    @classmethod
    def values(cls, folder: Path) -> Json:
        """The fields that stand in the file; ValueError or KeyError where they are not as they should be."""
        content = read_json(folder / cls.FILE)
        if checked(int, content.get("format", FORMAT), f"{cls.FILE}: format") > FORMAT:
            raise ValueError(f"{cls.FILE} has format {content['format']}, newer than this fedrank; update fedrank")
        return {"version": ""} | _fields(cls, content, f"{cls.FILE}: ", cls.called)


def _fields(kind: type[Any], content: Json, location: str, called: Mapping[str, str] | None = None) -> Json:
    """The fields of a class that stand in a table of a file, each of its type."""
    hints, values = hints_of(kind), Json()  # type: ignore[arg-type]
    for each in dataclasses.fields(kind):
        key = (called or {}).get(each.name, each.name)
        if key in content:
            values[each.name] = checked(hints[each.name], content[key], f"{location}{key}")
        elif is_required(each):
            raise KeyError(key)
    return values


def _table(content: Any, hints: Mapping[str, Any], location: str) -> Json:
    """A table of a file in which these entries are there, each of its type; others may be anything."""
    known = dict(checked(Json, content, location))
    return known | {key: checked(hint, known[key], f"{location}.{key}") for key, hint in hints.items()}


@dataclass(frozen=True, kw_only=True)
class Facts(Written):
    """What a run is, and how far: `run.json`."""

    FILE = "run.json"
    optional = ("given", "promotion", "engine", "tuned", "portions", "not_testable", "unlearned", "ended", "devices")
    called = Written.called | {"asked": "rounds"}

    experiment: str  # name of the whole experiment
    variant: str
    fold: int
    seed: int
    status: str  # one of STATES; "broken" where the folder cannot be understood
    title: str = ""
    settings: Json = field(default_factory=dict)  # only what varies: {"aggregator.name": "krum"}
    round: int = 0  # rounds done
    asked: int = 0  # rounds asked for
    data: Json = field(default_factory=dict)
    conventions: dict[str, str] = field(default_factory=dict)  # measure -> how it was computed
    error: Json | None = None  # message, round, client
    notes: tuple[str, ...] = ()
    compiled_for: str = ""
    begun: str = ""  # date and time; of a resumed run the first time
    ended: str | None = None  # when it finished
    commits: dict[str, str] = field(default_factory=dict)  # of fedrank's code and of the working directory, if any
    versions: dict[str, str] = field(default_factory=dict)  # library -> version
    processor: str = ""
    devices: list[Json] | None = None  # where clients learned, and from which round on, if not on the processor alone
    files: dict[str, str] = field(default_factory=dict)  # data that it read -> SHA-256
    pid: int = 0
    behind_final: int = LAST  # evaluations; 1 where the last model alone is the result
    given: str | None = None  # the order that users have without the model: what nothing.csv measures
    promotion: float | None = None  # share of the documents that an attack promotes that reach the top ten
    engine: str | None = None  # what grew the trees
    tuned: Any = None  # settings that were chosen on validation queries
    portions: Any = None  # who holds how many queries, documents and relevant ones, where one set is split
    not_testable: str | None = None  # why a comparison with this run would say nothing about a claim
    unlearned: Json | None = None  # of which run this is the result: parent, clients, method, gone, rounds


@dataclass(frozen=True)
class Paid:
    """One promise, and what the client that took part most often has paid for it."""

    against: str
    epsilon: Price | None  # None: nothing can be claimed
    epsilon_each_time: Price | None
    times: int
    paid_per: str
    delta: float
    unit: str
    neighbours: str
    because: str

    @property
    def often(self) -> str:
        return paid_for(self.paid_per, self.times)


# What a card says of all runs on the same people.
POPULATION = {
    "name": str,
    "limit": float,
    "delta": float,
    "runs": int,
    "epsilon": dict[str, Price | None],
    "forgotten": tuple[Json, ...],
}


@dataclass(frozen=True, kw_only=True)
class Card(Written):
    """What may be claimed for a model or a file, and what may not: `privacy.json`."""

    FILE = "privacy.json"
    optional = (
        "rounds_charged", "participations_charged", "kept_updates", "unlearned", "population", "issued", "clients",
    )  # fmt: skip
    first = ("what",)

    what: str = SIMULATED_RUN  # one of WHAT
    mechanism: Json | None
    who_sees_what: str
    delta: float
    budget: float | None
    rounds_charged: int | None = None
    participations_charged: int | None = None
    promises: tuple[Paid, ...] = ()
    not_covered: tuple[str, ...] = ()
    kept_updates: str | None = None
    unlearned: Json | None = None
    population: Json | None = None  # what all runs on the same people have spent, where people are named
    issued: str | None = None  # date and time; of a run, run.json has them, so that a resumed run has the same card
    issuer: str = ""
    versions: dict[str, str] = field(default_factory=dict)  # library -> version
    data: str = ""
    clients: int | None = None
    files: dict[str, str] = field(default_factory=dict)  # what it is the card of: file -> SHA-256
    summary: str = ""

    @classmethod
    def values(cls, folder: Path) -> Json:
        values = super().values(folder)
        if values["mechanism"] is not None:
            _table(values["mechanism"], {"name": str}, f"{cls.FILE}: mechanism")
        if values.get("population") is not None:
            _table(values["population"], POPULATION, f"{cls.FILE}: population")
            for i, record in enumerate(values["population"]["forgotten"]):
                _table(record, {"forgotten": str, "because": str}, f"{cls.FILE}: population.forgotten[{i}]")
        locations = ((f"{cls.FILE}: promises[{i}]", row) for i, row in enumerate(values.get("promises", ())))
        paid = tuple(Paid(**_fields(Paid, checked(Json, row, location), f"{location}.")) for location, row in locations)
        return values | {"promises": paid}

    @property
    def spent(self) -> float:
        """The largest ε; infinite where something is promised and nothing can be claimed."""
        return max((np.inf if row.epsilon is None else row.epsilon for row in self.promises), default=0.0)

    @property
    def claim(self) -> str:
        """What may be claimed, in a few words: against the server if possible, else against the public."""
        for row in self.promises:
            if row.epsilon is not None:
                return f"ε = {up(row.epsilon)}, {row.against}"
        return "no ε"


@dataclass(frozen=True, kw_only=True)
class Receipt(Written):
    """What unlearning did, at what cost, and how that was verified: `receipt.json`."""

    FILE = "receipt.json"
    first = ("summary",)

    summary: str = ""  # in plain sentences, beginning with what is not shown
    issued: str = ""  # date and time
    issuer: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # the models before and after -> SHA-256
    removed: Json
    method: Json
    cost: Json
    verified: Json
    parent: str
    purged: tuple[str, ...] = ()
    remains: tuple[Json, ...] = ()
    quality: dict[str, Json] = field(default_factory=dict)  # measure -> model -> value

    @classmethod
    def values(cls, folder: Path) -> Json:
        values = super().values(folder)
        asked: dict[str, Mapping[str, Any]] = {
            "removed": {"clients": Annotated[list[Any], NotEmpty]},
            "method": {"name": str},
            "cost": {"share_of_retraining": float | None},
        }
        for key, hints in asked.items():
            _table(values[key], hints, f"{cls.FILE}: {key}")
        for i, one in enumerate(values.get("remains", ())):
            _table(one, {"file": str}, f"{cls.FILE}: remains[{i}]")
        for measure, models in values.get("quality", {}).items():
            _table(models, {"parent": float | None, "unlearned": float | None}, f"{cls.FILE}: quality.{measure}")
        return values

    @property
    def is_verified(self) -> bool:
        return "unlearned" in self.verified

    @property
    def sentence(self) -> str:
        """What may be said of those who left, and no more."""
        who, method = self.removed["clients"], self.method["name"]
        named = f"Client {who[0]} is" if len(who) == 1 else f"Clients {', '.join(map(str, who))} are"
        if self.method.get("exact"):
            text = f"{named} forgotten by this model: it was trained again from the beginning without them."
        elif self.verified.get("within_spread"):
            text = (
                f"{named} not shown to be forgotten: after {method} the model is as near to those that were trained "
                "again without them as these are to each other, and near is no proof."
            )
        elif self.is_verified:
            text = f"{named} NOT shown to be forgotten: after {method} the model differs from all that never knew them."
        else:
            text = f"{named} NOT shown to be forgotten: {method} was applied, and nobody compared with retraining."
        if self.remains:
            files = dict.fromkeys(one["file"] for one in self.remains)
            text += f" What the run before still holds of them: {', '.join(files)}."
        return f"{text} Copies that were given away, and other runs, are not affected."


def paid_for(paid: str, times: int) -> str:
    """How often a client paid, in words."""
    if paid == "once" and times <= 1:
        return "once"
    unit = "round" if paid == "round" else "time"
    return f"{times:,} {unit}{'' if times == 1 else 's'}"


def checkpoint_round(folder: Path) -> int | None:
    """Up to which round the checkpoint of a run goes; None where there is none, or one that cannot be read."""
    try:
        with opened(folder / CHECKPOINT) as file, np.load(file, allow_pickle=False) as stored:
            return int(stored["round"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, NotImplementedError, BadZipFile, zlib.error):
        return None


def read_json(file: Path) -> dict[str, Any]:
    try:
        facts = parse_json(read_text(file))
    except ValueError as error:
        raise ValueError(f"{file.name} cannot be read: {error}") from None
    if not isinstance(facts, dict):
        raise ValueError(f"{file.name} holds {type(facts).__name__} where an object was expected")
    return facts


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A CSV file, from which every name comes back as it was; cells that are NaN are empty.

    Not by csv.writer, which leaves a carriage return without quotes before Python 3.13.

    >>> print(table(["query", "map"], [["a, b", 0.5], ["c", math.nan]]))
    query,map
    "a, b",0.5
    c,
    <BLANKLINE>
    """
    return "".join(",".join(_quoted(cell(each)) for each in row) + "\n" for row in (header, *rows))


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if NEEDS_QUOTES.search(text) else text


def cell(value: Any) -> str:
    """A value in a CSV file, numbers in full."""
    if isinstance(value, (float, np.floating)):
        return "" if math.isnan(value) else repr(float(value))
    return str(value)
