"""The spec of a federation of clients: kinds "federated", in rounds, and "async", as updates arrive."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field

from fedrank.attack.poison import ATTACKS
from fedrank.experiment.families import build, checked, describe
from fedrank.experiment.sections import DataSpec, Filled, Positive, PrivacySpec, Table, data_problems, require_data
from fedrank.experiment.spec import (
    COMMON_READERS,
    Question,
    SpecError,
    noting,
    read_method,
    read_question,
    read_section,
)
from fedrank.experiment.toml import shown
from fedrank.federate.aggregate import Apart, Mean
from fedrank.federate.asynchronous import ArrivalRule
from fedrank.federate.partition import Iid, Intents, Partition, Shared, Users
from fedrank.federate.round import Federation
from fedrank.federate.server import Add
from fedrank.names import nearest
from fedrank.protect.mechanisms import OnClient, PricedMechanism, SecureSum
from fedrank.protect.promises import Setting
from fedrank.rank.evolution import Evolution
from fedrank.rank.rankers import RANKERS
from fedrank.rank.users import USERS, User
from fedrank.types import Aggregator, Attack, Learner, ServerStep


@dataclass(frozen=True)
class ClientsSpec:
    """Who takes part."""

    count: Positive = field(metadata={"example": "count = 10"})
    partition: str | Table = field(default_factory=lambda: {"name": "iid"})
    user: str | Filled[str] | Table = "perfect"  # a name; a list, client c gets entry c, counted around; or own tables
    interactions: Positive | Filled[Positive] = 5  # searches a round; a list is counted around
    user_per: Literal["client", "interaction"] = "client"  # interaction: each draws one of the users in the list
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of clients in a round
    malicious: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True)
class Methods:
    """What the tables of a spec build."""

    learner: Learner
    aggregator: Aggregator
    server: ServerStep
    partition: Partition
    users: list[str | User]
    mechanism: PricedMechanism | None = None
    attack: Attack | None = None
    arrival: ArrivalRule | None = None  # of kind "async"


@dataclass(frozen=True, kw_only=True)
class Experiment(Question):
    """A question to a federation of clients, as it stands in its TOML file."""

    rounds: Positive = field(metadata={"example": "rounds = 1000"})
    data: DataSpec = field(metadata={"example": '[data] with name = "synthetic-mq2007"'})
    clients: ClientsSpec = field(metadata={"example": "[clients] with count = 10"})
    learner: str | Table = field(metadata={"example": '[learner] with name = "pdgd"'})
    kind: Literal["federated", "async"] = "federated"
    evaluate_every: Positive = 10  # rounds
    aggregator: str | Table = field(default_factory=lambda: {"name": "mean"})
    server: str | Table = field(default_factory=lambda: {"name": "add"})
    arrival: str | Table | None = None  # of kind "async": what the server does with each update; None: "fedasync"
    attack: str | Table | None = None  # what malicious clients do
    mechanism: str | Table | None = None  # what protects updates; None: nothing does
    privacy: PrivacySpec = field(default_factory=PrivacySpec)
    start: str | None = None  # a model to go on from
    record_every: Annotated[int, Field(ge=0)] = 0  # rounds between recordings of all updates, to unlearn from; 0: none
    fine_tune: Annotated[int, Field(ge=0)] = 0  # interactions with which every client adapts the final model to itself

    sections = ("data", "clients", "privacy")

    @property
    def extent(self) -> str:
        return f"{self.rounds:,} rounds"

    @property
    def rounds_asked(self) -> int:
        return self.rounds

    @cached_property
    def methods(self) -> Methods:
        users = [self.clients.user] if isinstance(self.clients.user, (str, dict)) else self.clients.user
        return Methods(
            build(Learner, self.learner, "learner"),
            build(Aggregator, self.aggregator, "aggregator"),
            build(ServerStep, self.server, "server"),
            build(Partition, self.clients.partition, "clients.partition"),
            [_user(one) for one in users],
            None if self.mechanism is None else build(PricedMechanism, self.mechanism, "mechanism"),
            _attack({"attack": self.attack, "aggregator": self.aggregator, "learner": self.learner}),
            None if self.kind != "async" else build(ArrivalRule, self.arrival or "fedasync", "arrival"),
        )

    def require_data(self) -> None:
        require_data(self.data)

    def written_out(self) -> Table:
        def described(method: Any) -> Table | None:
            return None if method is None else describe(method)

        methods = self.methods
        return {
            "clients": dataclasses.replace(self.clients, partition=describe(methods.partition)),
            "learner": describe(methods.learner),
            "aggregator": describe(methods.aggregator),
            "server": describe(methods.server),
            "arrival": described(methods.arrival),
            "attack": described(methods.attack),
            "mechanism": described(methods.mechanism),
        }

    @classmethod
    def problems(cls, values: Table) -> list[str]:
        return _federated_problems(values)


def read_experiment(source: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """A TOML file, or a built-in experiment by its name, about a federation of clients."""
    found = read_question(source, overrides)
    if not isinstance(found, Experiment):
        raise SpecError(
            [f'kind: "{found.kind}" has no federation of clients to look at; `fedrank run` does it'], str(source)
        )
    return found


def _federated_problems(values: Table) -> list[str]:
    """What is wrong with a federation of clients, or with updates that arrive out of step."""
    found: list[str] = []
    data, clients = values.get("data"), values.get("clients")
    if data is not None:
        found += data_problems(data)
    if clients is not None and 2 * clients.malicious >= clients.count and clients.malicious:
        found.append(
            f"clients.malicious: {clients.malicious} of {clients.count} clients decide as they like; use less than half"
        )
    elif clients is not None and clients.malicious and values.get("attack") is None:
        found.append(
            f"clients.malicious: {clients.malicious} would do no harm, no attack is set; use 0, or an attack such as "
            '{ name = "poisoned-clicks" }'
        )
    if not found and "learner" in values and clients is not None:
        found += _contradictions({"aggregator": "mean", "server": "add"} | values)
    start = values.get("start")
    if start is not None and not (Path(start).is_file() or Path(start, "model.json").is_file()):
        found.append(f"start: no model at {start}; give a model.json, or the folder of a finished run")
    return found


def _contradictions(values: Table) -> list[str]:
    """Methods that are each right and do not go together."""
    found: list[str] = []
    with noting(found):
        learner = build(Learner, values["learner"], "learner")
        server = build(ServerStep, values["server"], "server")
        aggregator = build(Aggregator, values["aggregator"], "aggregator")
        mechanism = None
        if values.get("mechanism") is not None:
            mechanism = build(PricedMechanism, values["mechanism"], "mechanism")
        attack = _attack(values)
        Federation(learner, aggregator, server, attack=attack, mechanism=mechanism)
        if attack is not None and values["clients"].user_per == "interaction" and hasattr(attack, "user"):
            found.append(
                'clients.user_per: "interaction" would let honest clients click as malicious ones; use "client"'
            )
        if values.get("record_every") and isinstance(getattr(mechanism, "place", None), SecureSum):
            found.append("record_every: nobody can record single updates under a secure sum; use 0, or another place")
        if values.get("record_every") and isinstance(aggregator, Apart):
            found.append('record_every: with the aggregator "none" no update leaves a client; use 0')
        together = values["clients"].count  # whose updates a sum holds
        if values.get("kind") == "async":
            together = build(ArrivalRule, values.get("arrival") or "fedasync", "arrival").gathers or together
        privacy = values.get("privacy")
        found += _privacy_problems(mechanism, learner, aggregator, values["clients"], together, privacy)
        found += _arrival_problems(values, learner, aggregator, server, mechanism)
        if type(learner.ranker) not in RANKERS.values():
            found.append("learner.ranker.name: a ranker from outside cannot be written to model.json; use a known one")
        if isinstance(learner, Evolution):
            searches = values["clients"].interactions
            if min(searches if isinstance(searches, list) else [searches]) < 2:
                found.append(f"clients.interactions: {shown(searches)} is too few for evolution; use 2 or more")
            if values.get("fine_tune"):
                found.append("fine_tune: evolution needs many clients, one alone cannot go on with it; use 0, or pdgd")
            if server == Add():
                found.append('server: evolution takes far too long steps with "add" at rate 1; use { name = "adam" }')
    return found


def _arrival_problems(
    values: Table, learner: Learner, aggregator: Aggregator, server: ServerStep, mechanism: PricedMechanism | None
) -> list[str]:
    """What does not go together with kind = "async", or only with it."""
    data, clients = values.get("data"), values["clients"]
    partition = build(Partition, clients.partition, "clients.partition")
    found = []
    if isinstance(partition, Users) and data is not None and data.log is None:
        found.append('clients.partition: "users" needs to know who asked what; set data.log to the folder of a log')
    if getattr(learner, "lists", "drawn") == "logged":
        if data is not None and data.log is None:
            found.append('learner.lists: "logged" learns from what a search log says was shown; set data.log')
        if clients.user != "perfect" or hasattr(_attack(values), "user"):
            found.append(
                'learner.lists: "logged" takes clicks from the log, so that nobody clicks in another way; use the user '
                '"perfect" and no attack by clicks, or "drawn"'
            )
        if values.get("kind") != "async" and getattr(mechanism, "unit", "client") == "interaction":
            found.append(
                'mechanism.unit: "interaction" is paid once, and in rounds the same search of a log is taken up again '
                'and again; use "client", or kind = "async", where everything arrives once'
            )
    if values.get("kind") != "async":
        if values.get("arrival") is not None:
            found.append('arrival: would do nothing in a federation in step; set kind = "async", or leave it out')
        return found
    if data is not None and data.log is None:
        found.append("kind: async lets updates arrive when they did, which only a search log says; set data.log")
    if isinstance(partition, (Iid, Intents, Shared)):
        found.append(
            "clients.partition: here several clients hold the same query, which was asked once; "
            'use { name = "users" }, or another one that deals queries out'
        )
    rule = build(ArrivalRule, values.get("arrival") or "fedasync", "arrival")
    if aggregator != Mean() or server != Add():
        name = "aggregator" if aggregator != Mean() else "server"
        found.append(f"{name}: arrival takes its place when kind is async; leave it out")
    if isinstance(learner, Evolution) or getattr(learner, "control", False):
        found.append('learner: evolution and control = true need rounds of many clients; use pdgd with kind = "async"')
    if getattr(learner, "personal", "none") != "none":
        found.append('learner.personal: weights that stay with clients have no mean in kind = "async"; use "none"')
    if clients.participation < 1:
        found.append("clients.participation: the log says who takes part when kind is async; use 1.0")
    if clients.malicious or values.get("attack") is not None:
        found.append("attack: clients that attack out of step are not simulated in this version; leave it out")
    if values.get("record_every"):
        found.append("record_every: updates that arrive out of step are not recorded in this version; use 0")
    place = getattr(mechanism, "place", None)
    summed = isinstance(place, SecureSum) and rule.gathers
    if mechanism is not None and not summed and not isinstance(place, OnClient):
        found.append(
            "mechanism: there is no round whose sum could be protected when updates arrive one by one; use gaussian or "
            'laplace noise with place = { name = "client" }, or a secure sum with arrival = { name = "fedbuff", wait = '
            "true }"
        )
    if mechanism is not None and not rule.receive:
        found.append(
            "arrival.receive: false lets clients go on from models without noise, so what they send later tells what "
            "noise had hidden; use true with a mechanism"
        )
    return found


def _attack(values: Mapping[str, Any]) -> Attack | None:
    """The attack, which knows the rule and the ranker that it attacks unless the spec says otherwise."""
    given = values.get("attack")
    if given is None:
        return None
    table = {"name": given} if isinstance(given, str) else dict(given)
    kind = ATTACKS.get(str(table.get("name")))
    known = {each.name for each in dataclasses.fields(kind)} if kind is not None else set()  # type: ignore[arg-type]
    learner = values["learner"]
    beside = {
        "aggregator": values["aggregator"],
        "ranker": learner.get("ranker") if isinstance(learner, dict) else None,
    }
    for name, other in beside.items():
        if name in known and name not in table and other is not None:
            table[name] = other
    attack: Attack = build(Attack, table, "attack")
    return attack


def _privacy_problems(
    mechanism: PricedMechanism | None,
    learner: Learner,
    aggregator: Aggregator,
    clients: ClientsSpec,
    together: int,
    privacy: PrivacySpec | None,
) -> list[str]:
    """What a mechanism cannot do together with the rest, and a budget that nothing keeps."""
    budget = None if privacy is None else privacy.budget
    if mechanism is None:
        return [] if budget is None else [f"privacy.budget: {budget:g} cannot be kept without a mechanism; set one"]
    found: list[str] = []
    with noting(found, "mechanism"):
        searches = clients.interactions if isinstance(clients.interactions, list) else [clients.interactions]
        # How many parameters there are changes what a promise costs, not whether it can be made.
        setting = Setting(together, 100, clients.participation, tuple(searches), learner, aggregator)
        promises = mechanism.promises(setting)
        if budget is not None and all(promise.event is None for promise in promises):
            found.append(f"privacy.budget: {budget:g} cannot be kept; nothing can be claimed for this mechanism here")
    return found


def _read_attack(given: Any, place: str, problems: list[str]) -> Any:
    if not isinstance(given, (str, dict)):
        build(Attack, given, place)
    return given  # built with the rule and the ranker that it attacks, once these are known


def _read_user(given: Any, place: str, problems: list[str]) -> Any:
    user = checked(get_type_hints(ClientsSpec, include_extras=True)["user"], given, place)
    for one in user if isinstance(user, list) else [user]:
        with noting(problems):
            _user(one)
    return user


def _user(given: str | Table) -> str | User:
    if isinstance(given, str):
        if given not in USERS:
            raise ValueError(f"clients.user: no {given!r}{nearest(given, USERS)}")
        return given
    known = {each.name for each in dataclasses.fields(User)}
    if not {"click", "stop"} <= set(given) <= known:
        raise ValueError(
            f"clients.user: {shown(given)} is no user; write {{ click = [...], stop = [...] }}, a probability for each "
            "grade, and perhaps attention_decay = 1.0"
        )
    hints = get_type_hints(User)
    values = {key: checked(hints[key], value, f"clients.user.{key}") for key, value in given.items()}
    try:
        return User(**values)
    except ValueError as problem:
        raise ValueError(f"clients.user: {problem}") from None


Experiment.readers = COMMON_READERS | {
    "data": read_section(DataSpec),
    "clients": read_section(ClientsSpec, {"clients.partition": read_method(Partition), "clients.user": _read_user}),
    "learner": read_method(Learner),
    "aggregator": read_method(Aggregator),
    "server": read_method(ServerStep),
    "arrival": read_method(ArrivalRule),
    "attack": _read_attack,
    "mechanism": read_method(PricedMechanism),
    "privacy": read_section(PrivacySpec),
}
