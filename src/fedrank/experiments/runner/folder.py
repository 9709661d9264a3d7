"""The run folder: the contents of its files, for writers and readers.

`run.json` describes a run and its progress (`Facts`), `privacy.json` the privacy guarantees of its model (`Card`),
and `receipt.json` an unlearning request (`Receipt`). Tables are CSV: `rounds.csv`, `queries.csv`, `nothing.csv`
(the same measures for the baseline ranking), `clients.csv`, `timing.csv`.
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
from fedrank.display import count_of
from fedrank.experiments.spec.families import hints_of, is_required
from fedrank.files import opened, parse_json, read_text, write_atomic
from fedrank.privacy.guarantees import up
from fedrank.value_checks import at_least, checked, less_than

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
    """A small JSON file of a run folder: its fields, without empty ones of `optional`."""

    FILE: ClassVar[str]
    optional: ClassVar[tuple[str, ...]] = ()
    called: ClassVar[dict[str, str]] = {"version": "fedrank"}  # fields with another name in the file
    first: ClassVar[tuple[str, ...]] = ()  # fields at the beginning of the file

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
        """The contents of the file in a run folder; None if there is none."""
        try:
            return cls(**cls.values(folder)) if (folder / cls.FILE).exists() else None
        except KeyError as missing:
            raise ValueError(f"{cls.FILE} lacks {missing}") from None

    @classmethod
    def values(cls, folder: Path) -> Json:
        """The fields in the file; ValueError or KeyError if they are invalid."""
        content = read_json(folder / cls.FILE)
        if checked(int, content.get("format", FORMAT), f"{cls.FILE}: format") > FORMAT:
            raise ValueError(
                f"{cls.FILE} has format {content['format']}, which is newer than this version of fedrank supports; "
                "update fedrank"
            )
        return {"version": ""} | _fields(cls, content, f"{cls.FILE}: ", cls.called)


def _fields(kind: type[Any], content: Json, location: str, called: Mapping[str, str] | None = None) -> Json:
    """The fields of a class in a table of a file, each checked against its type."""
    hints, values = hints_of(kind), Json()  # type: ignore[arg-type]
    for each in dataclasses.fields(kind):
        key = (called or {}).get(each.name, each.name)
        if key in content:
            values[each.name] = checked(hints[each.name], content[key], f"{location}{key}")
        elif is_required(each):
            raise KeyError(key)
    return values


def _table(content: Any, hints: Mapping[str, Any], location: str) -> Json:
    """A table of a file with these entries, each checked against its type; other entries are not checked."""
    known = dict(checked(Json, content, location))
    return known | {key: checked(hint, known[key], f"{location}.{key}") for key, hint in hints.items()}


def _check_rows(rows: Iterable[Any], hints: Mapping[str, Any], location: str) -> None:
    for i, row in enumerate(rows):
        _table(row, hints, f"{location}[{i}]")


@dataclass(frozen=True, kw_only=True)
class Facts(Written):
    """The description and progress of a run: `run.json`."""

    FILE = "run.json"
    optional = ("given", "promotion", "engine", "tuned", "portions", "not_testable", "unlearned", "ended", "devices")
    called = Written.called | {"asked": "rounds"}

    experiment: str  # name of the whole experiment
    variant: str
    fold: int
    seed: int
    status: str  # one of STATES; "broken" if the folder cannot be read
    title: str = ""
    settings: Json = field(default_factory=dict)  # only varied settings: {"aggregator.name": "krum"}
    round: int = 0  # completed rounds
    asked: int = 0  # requested rounds
    data: Json = field(default_factory=dict)
    conventions: dict[str, str] = field(default_factory=dict)  # measure -> how it was computed
    error: Json | None = None  # message, round, client
    notes: tuple[str, ...] = ()
    compiled_for: str = ""
    begun: str = ""  # date and time; for a resumed run, of the first start
    ended: str | None = None  # date and time
    commits: dict[str, str] = field(default_factory=dict)  # of fedrank and of the working directory, if any
    versions: dict[str, str] = field(default_factory=dict)  # library -> version
    processor: str = ""
    devices: list[Json] | None = None  # devices of clients by first round, unless only the processor was used
    files: dict[str, str] = field(default_factory=dict)  # data file -> SHA-256
    pid: int = 0
    behind_final: int = LAST  # number of evaluations; 1 if only the last model counts
    given: str | None = None  # the baseline ranking, which nothing.csv measures
    promotion: float | None = None  # fraction of promoted documents of an attack that reach the top ten
    engine: str | None = None  # the library that grew the trees
    tuned: Any = None  # settings chosen on validation queries
    portions: Any = None  # numbers of queries, documents and relevant documents per client, if split
    not_testable: str | None = None  # why a claim cannot be tested with this run
    unlearned: Json | None = None  # the unlearning request: parent, clients, method, gone, rounds


@dataclass(frozen=True)
class Paid:
    """One privacy guarantee, and what the client that participated most often has paid for it."""

    against: str
    epsilon: Price | None  # None: no privacy guarantee
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


# The entries of a card about all runs on the same population.
POPULATION = {
    "name": str,
    "limit": float,
    "delta": float,
    "runs": int,
    "epsilon": dict[str, Price | None],
    "forgotten": tuple[Json, ...],
}
# The entries of a card about a deployed run: by site its data and their retention, what left, and colluding parties.
DEPLOYMENT = {"sites": dict[str, Json], "coordinator": str, "left": tuple[Json, ...], "collusion": tuple[Json, ...]}
LEFT = {"what": str, "times": int, "bytes": int, "noise": str}
COLLUSION = {"against": str, "epsilon": Price | None, "because": str}


@dataclass(frozen=True, kw_only=True)
class Card(Written):
    """The privacy guarantees of a model or file, and their limits: `privacy.json`."""

    FILE = "privacy.json"
    optional = (
        "rounds_charged", "participations_charged", "kept_updates", "unlearned", "population", "issued", "clients",
        "deployment",
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
    population: Json | None = None  # total ε of all runs on the same population, unless simulated
    issued: str | None = None  # date and time; not for a run, whose resumed card must have the same bytes
    issuer: str = ""
    versions: dict[str, str] = field(default_factory=dict)  # library -> version
    data: str = ""
    clients: int | None = None
    files: dict[str, str] = field(default_factory=dict)  # the files that it covers -> SHA-256
    deployment: Json | None = None  # of a deployed run: its sites, everything that left them, ε against colluders
    summary: str = ""

    @classmethod
    def values(cls, folder: Path) -> Json:
        values = super().values(folder)
        if (deployment := values.get("deployment")) is not None:
            _table(deployment, DEPLOYMENT, f"{cls.FILE}: deployment")
            _check_rows(deployment["left"], LEFT, f"{cls.FILE}: deployment.left")
            _check_rows(deployment["collusion"], COLLUSION, f"{cls.FILE}: deployment.collusion")
        if values["mechanism"] is not None:
            _table(values["mechanism"], {"name": str}, f"{cls.FILE}: mechanism")
        if (population := values.get("population")) is not None:
            _table(population, POPULATION, f"{cls.FILE}: population")
            hints = {"forgotten": str, "because": str}
            _check_rows(population["forgotten"], hints, f"{cls.FILE}: population.forgotten")
        locations = ((f"{cls.FILE}: promises[{i}]", row) for i, row in enumerate(values.get("promises", ())))
        paid = tuple(Paid(**_fields(Paid, checked(Json, row, location), f"{location}.")) for location, row in locations)
        return values | {"promises": paid}

    @property
    def spent(self) -> float:
        """The largest ε; infinite if there is a mechanism without a guarantee."""
        return max((np.inf if row.epsilon is None else row.epsilon for row in self.promises), default=0.0)

    @property
    def claim(self) -> str:
        """A short guarantee: against the server if possible, else against the public."""
        for row in self.promises:
            if row.epsilon is not None:
                return f"ε = {up(row.epsilon)}, {row.against}"
        return "no ε"


@dataclass(frozen=True, kw_only=True)
class Receipt(Written):
    """What unlearning did, its cost, and how it was verified: `receipt.json`."""

    FILE = "receipt.json"
    first = ("summary",)

    summary: str = ""  # sentences, beginning with what is not shown
    issued: str = ""  # date and time
    issuer: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # the models before and after -> SHA-256
    removed: Json
    method: Json
    cost: Json
    verified: Json
    certificate: Json = field(default_factory=dict)  # of a certified method: its claim and what it assumes
    parent: str
    purged: tuple[str, ...] = ()
    remains: tuple[Json, ...] = ()
    quality: dict[str, Json] = field(default_factory=dict)  # measure -> model -> value

    @classmethod
    def values(cls, folder: Path) -> Json:
        values = super().values(folder)
        _table(values["removed"], {"clients": list[Any]}, f"{cls.FILE}: removed")
        _table(values["method"], {"name": str}, f"{cls.FILE}: method")
        _table(values["cost"], {"share_of_retraining": float | None}, f"{cls.FILE}: cost")
        _check_rows(values.get("remains", ()), {"file": str}, f"{cls.FILE}: remains")
        for measure, models in values.get("quality", {}).items():
            _table(models, {"parent": float | None, "unlearned": float | None}, f"{cls.FILE}: quality.{measure}")
        return values

    @property
    def is_verified(self) -> bool:
        return "unlearned" in self.verified

    @property
    def sentence(self) -> str:
        """A sentence about what has been shown for the removed clients."""
        clients, method = self.removed["clients"], self.method["name"]
        named = f"Client {clients[0]} is" if len(clients) == 1 else f"Clients {', '.join(map(str, clients))} are"
        named = named if clients else "People who were removed from the data set are"
        not_shown = f"{named} NOT shown to be forgotten: after {method}, the model"
        if self.method.get("exact"):
            text = f"{named} forgotten by this model: it was retrained from scratch without them."
        elif self.certificate:
            text = (
                f"{named} forgotten by this model, with a certificate: {self.certificate['claim']}. Earlier models "
                "remain known."
            )
        elif self.verified.get("within_spread"):
            close = "is as close to retrained models as these are to each other, which does not prove that it forgot"
            text = f"{not_shown.replace('NOT', 'not')} {close}."
        elif self.is_verified:
            text = f"{not_shown} differs from all retrained models."
        else:
            text = f"{not_shown} was not compared with retrained ones."
        if self.remains:
            files = dict.fromkeys(one["file"] for one in self.remains)
            text += f" Files of the previous run that still contain their data: {', '.join(files)}."
        return f"{text} Shared copies and other runs are not affected."


def paid_for(paid: str, times: int) -> str:
    """How often a client paid, as text."""
    return "once" if paid == "once" and times <= 1 else count_of(times, "round" if paid == "round" else "time")


def checkpoint_round(folder: Path) -> int | None:
    """The round of a run's checkpoint; None if there is none or it is unreadable."""
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
    """A CSV table that preserves every name exactly; NaN cells are empty.

    It does not use csv.writer, which leaves a carriage return unquoted before Python 3.13.

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
    """A value in a CSV file, numbers with full precision."""
    if isinstance(value, (float, np.floating)):
        return "" if math.isnan(value) else repr(float(value))
    return str(value)
