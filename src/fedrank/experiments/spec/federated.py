"""The spec of federated experiments: kind "federated" runs in rounds, kind "async" as updates arrive."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from fedrank.data.catalog import CATALOG
from fedrank.experiments.spec.experiment import Experiment
from fedrank.experiments.spec.families import ExternalMethod, SpecSection, build, code_from_outside, describe, hints_of
from fedrank.experiments.spec.sections import ELSEWHERE as ELSEWHERE
from fedrank.experiments.spec.sections import DataSpec, PrivacySpec
from fedrank.federated.aggregators import Mean
from fedrank.federated.asynchronous import ArrivalRule, FedAsync
from fedrank.federated.compatibility import people_clashes
from fedrank.federated.federation import Federation, planned_size, unweighted
from fedrank.federated.partition import Iid, Intents, Partition, Shared, Users
from fedrank.federated.server_optimizers import Add
from fedrank.names import did_you_mean
from fedrank.privacy.guarantees import Guarantee, Setting
from fedrank.privacy.mechanisms import OnClient, PricedMechanism, SecureAggregation
from fedrank.privacy.population import SIMULATED
from fedrank.ranking.baseline_ranking import GIVEN
from fedrank.ranking.click_models import CLICK_MODELS, ClickModel, OwnClickModel
from fedrank.ranking.measures import measure
from fedrank.ranking.propensity import OWN, SWAPS
from fedrank.ranking.rankers import RANKERS, Linear
from fedrank.toml import TomlTable, shown
from fedrank.types import Aggregator, Attack, Learner, LocalStep, ServerOptimizer, has_trait
from fedrank.value_checks import LARGEST, Filled, Positive, at_least, at_most, checked, less_than, more_than, noting

Count = Annotated[int, at_least(0), at_most(LARGEST)]
UNLIKELY = 1e-3  # probability that any client participates more often than was planned for
MAX_CLIENTS = 10_000_000  # a million of them take about 1 GB


def _from_outside(given: str | TomlTable) -> bool:
    name = given.get("name", "") if isinstance(given, dict) else given
    return isinstance(name, str) and ":" in name


def _click_model(given: str | TomlTable) -> str | ClickModel | OwnClickModel:
    if _from_outside(given):
        model: OwnClickModel = build(OwnClickModel, given, "clients.click_model")
        return model
    if isinstance(given, str):
        if given not in CLICK_MODELS:
            raise ValueError(f"clients.click_model: unknown click model {given!r}{did_you_mean(given, CLICK_MODELS)}")
        return given
    known = {each.name for each in dataclasses.fields(ClickModel)}
    if not {"click", "stop"} <= set(given) <= known:
        raise ValueError(
            f"clients.click_model: {shown(given)} is not a click model; write {{ click = [...], stop = [...] }} with a "
            "probability for each relevance label (attention_decay = 1.0 is optional), or "
            '{ name = "module:Class" } for your own class'
        )
    values = {
        key: checked(hints_of(ClickModel)[key], value, f"clients.click_model.{key}") for key, value in given.items()
    }
    try:
        return ClickModel(**values)
    except ValueError as problem:
        raise ValueError(f"clients.click_model: {problem}") from None


def _population(name: str, location: str) -> None:
    if not re.fullmatch(r"[\w][\w.+=-]*", name):
        raise ValueError(f"{location}: {shown(name)} cannot be the name of a folder; use letters, digits, - and _")


def _listed(click_model: str | Sequence[str] | TomlTable) -> Sequence[str | TomlTable]:
    return [click_model] if isinstance(click_model, (str, dict)) else click_model


def _known_click_models(click_model: str | Sequence[str] | TomlTable, location: str) -> None:
    found: list[str] = []
    for one in _listed(click_model):
        with noting(found):
            if not _from_outside(one):  # reading a spec must not import code
                _click_model(one)
    if found:
        raise ValueError("\n".join(found))


@dataclass(frozen=True)
class ClientsSpec(SpecSection):
    """The clients of the federation."""

    count: Annotated[int, at_least(1), at_most(MAX_CLIENTS)] = field(metadata={"example": "count = 10"})
    partition: Partition = field(default_factory=Iid)
    # A name; a list that is assigned to clients cyclically; or a table.
    click_model: Annotated[str | Filled[str] | TomlTable, _known_click_models] = "perfect"
    interactions: Positive | Filled[Positive] = 5  # per client and round; a list is assigned to clients cyclically
    click_model_per: Literal["client", "interaction"] = "client"  # interaction: each draws from the list
    participation: Annotated[float, more_than(0), at_most(1)] = 1.0  # fraction of clients that participate in a round
    # drawn: every round draws its participants; dealt: each client, or person of a client, is in one round.
    schedule: Literal["drawn", "dealt"] = "drawn"
    malicious: Count = 0
    people: Positive = 1  # people per client, for clients that are organisations; each has `interactions` per round

    @cached_property
    def click_models(self) -> list[str | ClickModel | OwnClickModel]:
        return [_click_model(one) for one in _listed(self.click_model)]

    @property
    def searches(self) -> tuple[int, ...]:
        """Interactions per round; a list is assigned to clients cyclically."""
        return self.interactions if isinstance(self.interactions, tuple) else (self.interactions,)

    def code_from_outside(self, location: str) -> list[str]:
        """External click models, each with its key."""
        outside = [one for one in _listed(self.click_model) if _from_outside(one)]
        return [f"{location}.click_model: {one['name'] if isinstance(one, dict) else one!r}" for one in outside]

    def problems(self) -> list[str]:
        with noting(found := list[str]()):
            _ = self.click_models
        if found:
            return found
        if not self.malicious or 2 * self.malicious < self.count:
            return []
        return [
            f"clients.malicious: {self.malicious} of {self.count} clients are malicious; fewer than half of the "
            "clients can be"
        ]


@dataclass(frozen=True)
class GateSpec(SpecSection):
    """Between sites: what a model must fulfil on held-out lists before a site may export it."""

    margin: Annotated[float, more_than(0), less_than(1)] = 0.05  # maximum loss of a site, in clicks per list
    alpha: Annotated[float, more_than(0), less_than(0.5)] = 0.05  # error rate of all plans of a year together
    plans: Positive = 4  # plans in a year, over which alpha is divided


@dataclass(frozen=True, kw_only=True)
class FederatedExperiment(Experiment):
    """An experiment with a federation of clients."""

    rounds: Positive = field(metadata={"example": "rounds = 1000"})
    data: DataSpec = field(metadata={"example": '[data] with name = "synthetic-mq2007"'})
    clients: ClientsSpec = field(metadata={"example": "[clients] with count = 10"})
    learner: Learner = field(metadata={"example": '[learner] with name = "pdgd"'})
    kind: Literal["federated", "async"] = "federated"
    evaluate_every: Positive = 10  # rounds
    aggregator: Aggregator = field(default_factory=Mean)
    server: ServerOptimizer = field(default_factory=Add)
    local: LocalStep | None = None  # local method against client drift; None: plain local steps
    arrival: ArrivalRule | None = None  # for kind "async": how the server uses each update; None: "fedasync"
    attack: Attack | None = None  # the attack of malicious clients
    mechanism: PricedMechanism | None = None  # privacy mechanism for updates; None: no protection
    privacy: PrivacySpec = field(default_factory=PrivacySpec)
    gate: GateSpec | None = None  # between sites: the decision whether a model may be exported; None: not decided
    population: Annotated[str, _population] = SIMULATED  # clients with this name share one privacy ledger over all runs
    start: str | None = None  # initial model; "given": the baseline ranking (linear rankers only)
    record_every: Count = 0  # rounds between recordings of all updates, for unlearning; 0: never
    fine_tune: Count = 0  # interactions with which each client fine-tunes the final model

    sections = ("data", "clients", "privacy")

    @property
    def extent(self) -> str:
        return f"{self.rounds:,} rounds"

    def setting(self, features: int) -> Setting:
        """What the guarantees of a mechanism depend on, for data with this many features."""
        return promised_in(self, self.learner.ranker.size(features))

    def guarantees(self, features: int) -> list[Guarantee]:
        """The guarantees of the mechanism; none without a mechanism."""
        return [] if self.mechanism is None else self.mechanism.guarantees(self.setting(features))

    @property
    def uncovered_propensities(self) -> str | None:
        """What ε does not cover if each client estimates propensities from clicks of all its people; None: nothing."""
        unit = getattr(self.mechanism, "unit", "client")
        if not self.data.from_own_clicks or unit == "client":
            return None
        return (
            f"propensities: they are estimated without noise from the clicks of all people of a client, so one {unit} "
            f"changes the weights of all others, in updates and in the gate, and ε holds only for what a {unit} adds "
            'beyond that; in a deployment, "swaps" releases them with noise'
        )

    def most_participations(self, rounds: int | None = None) -> int:
        """Upper bound (99.9 %) on the rounds in which any one client participates, where clients are drawn."""
        from scipy.stats import binom

        rounds, count = self.rounds if rounds is None else rounds, self.clients.count
        if self.clients.schedule == "dealt":
            return 1
        # A round has at least one client, so each may participate more often than the share that was asked for.
        share = self.federation(attacked=False).cohort(count) / count
        return rounds if share >= 1 else int(binom.isf(UNLIKELY / count, rounds, share))

    def federation(self, attacked: bool) -> Federation:
        """The federation; without malicious clients it has no attack."""
        return Federation(
            learner=self.learner,
            aggregator=self.aggregator,
            server=self.server,
            local=self.local,
            attack=self.attack if attacked else None,
            mechanism=self.mechanism,
            participation=self.clients.participation,
            dealt=_dealt(self),
        )

    @property
    def deals_persons(self) -> bool:
        """Whether persons are dealt into rounds, and not the clients, which are then in every round."""
        return bool(_dealt(self)) and _has_persons(self)

    def schedule_problems(self) -> list[str]:
        """Conflicts of a dealt schedule with the number of clients, and with arrivals."""
        return _schedule_problems(self)

    @property
    def charged(self) -> int:
        """The number of clients, or persons if these are dealt, that a privacy ledger charges."""
        return self.clients.count * (self.clients.people if self.deals_persons else 1)

    @classmethod
    def complete(cls, values: TomlTable, tables: TomlTable, problems: list[str]) -> None:
        """Give an attack the aggregator and ranker that it targets, and an asynchronous run its arrival rule.

        A mechanism for people gets the number of people per organisation; SCAFFOLD uses an unweighted mean.
        """
        mechanism: Any = values.get("mechanism")
        settings = tables.get("mechanism")
        if has_trait(mechanism, "people") and "clients" in values and "people" not in (settings or {}):
            people = values["clients"].people
            if values["clients"].schedule == "dealt" and "rounds" in values:
                people = planned_size(people, values["rounds"])
            values["mechanism"] = dataclasses.replace(mechanism, people=people)
        if values.get("kind") == "async" and "arrival" not in tables:
            values["arrival"] = FedAsync()
        if has_trait(values.get("local"), "alike"):
            values["aggregator"] = unweighted(values.get("aggregator", Mean()))
        attack, given = values.get("attack"), tables.get("attack")
        if attack is None or "learner" not in values:
            return
        beside = {"aggregator": values.get("aggregator", Mean()), "ranker": getattr(values["learner"], "ranker", None)}
        settings = {each.name for each in dataclasses.fields(attack)} - set(given if isinstance(given, dict) else ())
        known = {name: other for name, other in beside.items() if name in settings}
        if any(isinstance(other, ExternalMethod) for other in known.values()):
            values["attack"] = ExternalMethod(describe(attack), tuple(code_from_outside(known, "attack")))
            return
        with noting(problems, "attack"):
            values["attack"] = dataclasses.replace(attack, **known)

    @classmethod
    def problems(cls, spec: Any) -> list[str]:
        found = super().problems(spec)
        nobody_attacks = spec.attack is None and "attack" not in spec.unusable
        if spec.clients is not None and spec.clients.malicious and nobody_attacks:
            found.append(
                f"clients.malicious: is {spec.clients.malicious}, but no attack is set; use 0, or set an "
                'attack such as { name = "poisoned-clicks" }'
            )
        if not found and None not in (spec.data, spec.learner, spec.clients):
            found += _contradictions(spec)
        if spec.start == GIVEN:
            if spec.learner is not None and not isinstance(spec.learner.ranker, Linear):
                found.append(
                    'start: "given" ranks by a single feature, which requires a linear ranker; use the ranker '
                    '"linear", or another start'
                )
        elif spec.start is not None and not any(map(os.path.isfile, (spec.start, Path(spec.start, "model.json")))):
            found.append(
                f'start: {spec.start} is not a model; give a model.json, the folder of a finished run, or "{GIVEN}"'
            )
        return found


def _contradictions(spec: Any) -> list[str]:
    """Methods that cannot be combined."""
    found: list[str] = []
    with noting(found):
        Federation(
            spec.learner,
            spec.aggregator,
            spec.server,
            spec.local,
            spec.attack,
            spec.mechanism,
            spec.clients.participation if spec.clients.schedule == "dealt" else 1.0,
            _dealt(spec),
        )
        if spec.clients.click_model_per == "interaction" and hasattr(spec.attack, "click_model"):
            found.append(
                'clients.click_model_per: with "interaction", honest clients would use the click models of malicious '
                'ones; use "client"'
            )
        if spec.record_every and isinstance(getattr(spec.mechanism, "placement", None), SecureAggregation):
            found.append(
                "record_every: individual updates cannot be recorded under secure aggregation; use 0, or another "
                "mechanism.placement"
            )
        if spec.record_every and has_trait(spec.aggregator, "apart"):
            found.append("record_every: with this aggregator, clients send no updates to a server; use 0")
        by_intent = [text for text in spec.measures if measure(text).by]
        if by_intent and (spec.data.name not in CATALOG or not CATALOG[spec.data.name].intents):
            found.append(
                f"measures: {by_intent[0]!r} needs judgements by intent, which this data set does not have; remove it, "
                'or use data.name = "synthetic-intents"'
            )
        found += _people_problems(spec) + _schedule_problems(spec) + _privacy_problems(spec) + _log_problems(spec)
        found += _arrival_problems(spec) if spec.kind == "async" else []
        if spec.kind != "async" and spec.arrival is not None:
            found.append('arrival: has no effect in synchronous rounds; set kind = "async", or remove it')
        if type(spec.learner.ranker) not in RANKERS.values():
            found.append(
                "learner.ranker.name: an external ranker cannot be written to model.json; use a built-in ranker"
            )
        if has_trait(spec.learner, "rewards"):
            if min(spec.clients.searches) < 2:
                searches = shown(spec.clients.interactions)
                found.append(
                    f"clients.interactions: evolution needs at least 2 interactions per round (got {searches})"
                )
            if spec.fine_tune:
                found.append("fine_tune: evolution needs many clients and cannot adapt to a single one; use 0, or pdgd")
            if spec.server == Add():
                found.append('server: steps of evolution are far too large with "add" at rate 1; use { name = "adam" }')
    return found


def _people_problems(spec: Any) -> list[str]:
    """Conflicts with clients that are organisations, or with clients that are not."""
    people, mechanism = spec.clients.people, spec.mechanism
    if people == 1:
        if not has_trait(mechanism, "people"):
            return []
        return [
            'mechanism.unit: "person" requires clients with several people (clients.people is 1); set clients.people'
        ]
    found = people_clashes(spec.learner, spec.local, spec.attack, mechanism, spec.aggregator)
    dealt = _dealt(spec)
    most = planned_size(people, dealt) if dealt else people
    if has_trait(mechanism, "people") and mechanism.people < most:
        found.append(
            f"mechanism.people: {mechanism.people} is less than clients.people = {people}"
            f"{f' dealt into {dealt} rounds' if dealt else ''}, so the noise would not be sufficient; "
            "remove mechanism.people"
        )
    if spec.kind == "async":
        found.append('clients.people: kind = "async" does not simulate organisations with several people; use 1')
    return found


def _has_log(spec: Any) -> bool:
    """Whether there is a log, or may be one at each site of a federation."""
    return spec.data.log is not None or _elsewhere(spec)


def _elsewhere(spec: Any) -> bool:
    """Whether only sites have data: in a plan that they received, or in the spec of a coordinator without data."""
    return bool(spec.data.name == ELSEWHERE or spec.data.at_sites)


def _log_problems(spec: Any) -> list[str]:
    """Settings that require a click log, or conflict with one."""
    found = []
    here = spec.data.log is not None or spec.data.collection is not None or _elsewhere(spec)
    if isinstance(spec.clients.partition, Users) and not here:
        found.append(
            'clients.partition: "users" requires data with users; set data.log to the folder of a click log, or '
            "data.collection and data.parts"
        )
    if spec.gate is not None and not (_elsewhere(spec) and getattr(spec.mechanism, "unit", "") == "person"):
        found.append(
            "gate: sites decide from sums over their people; use data.features without a log, and a mechanism with "
            'unit = "person", or remove gate'
        )
    elif spec.gate is not None and spec.data.propensities is None:
        found.append("gate: estimated clicks need propensities; set data.propensities")
    if spec.data.propensities == SWAPS and spec.data.bias != "position":
        found.append('data.bias: counts of swaps determine position bias alone; use "position", or other propensities')
    if spec.data.propensities == SWAPS and getattr(spec.mechanism, "unit", "") != "person":
        found.append(
            f'data.propensities: "{SWAPS}" are sums over people with noise; use a mechanism with unit = "person", or '
            f'"{OWN}"'
        )
    if spec.data.propensities is not None and not has_trait(spec.learner, "logged"):
        found.append(
            "data.propensities: this learner does not weight logged clicks by propensity; use the learner "
            '"logged-clicks", or remove data.propensities'
        )
    if getattr(spec.learner, "lists", "drawn") == "logged" or has_trait(spec.learner, "logged"):
        location, otherwise = (
            ("learner: this learner", "pdgd")
            if has_trait(spec.learner, "logged")
            else ('learner.lists: "logged"', '"drawn"')
        )
        if not _has_log(spec):
            found.append(f"{location} learns from the lists in a click log; set data.log")
        if spec.clients.click_model != "perfect" or hasattr(spec.attack, "click_model"):
            found.append(
                f"{location} takes clicks from the log, so clicks cannot be simulated; use clients.click_model = "
                f'"perfect" and no attack by clicks, or {otherwise}'
            )
        if spec.kind != "async" and getattr(spec.mechanism, "unit", "client") == "interaction":
            found.append(
                'mechanism.unit: "interaction" assumes that each interaction is used once, but rounds use those of a '
                'log repeatedly; use "client", or kind = "async", where each is used once'
            )
    return found


def _arrival_problems(spec: Any) -> list[str]:
    """Settings that conflict with kind = "async"."""
    found = []
    if not _has_log(spec):
        found.append('kind: "async" needs the times of a click log; set data.log')
    if isinstance(spec.clients.partition, (Iid, Intents, Shared)) and not _elsewhere(spec):
        found.append(
            "clients.partition: with this partition, several clients hold the same logged query; "
            'use { name = "users" }, or another partition that assigns each query to one client'
        )
    if spec.aggregator != Mean() or spec.server != Add():
        name = "aggregator" if spec.aggregator != Mean() else "server"
        found.append(f'{name}: with kind = "async", arrival takes its place; remove it')
    if has_trait(spec.learner, "rewards"):
        found.append('learner: evolution needs synchronous rounds of many clients; use pdgd with kind = "async"')
    if has_trait(spec.local, "common") or has_trait(spec.local, "shared part"):
        found.append(
            'local: with kind = "async", clients do not store control variates or personal weights; remove it, or use '
            '"fedprox"'
        )
    if spec.clients.participation < 1:
        found.append('clients.participation: with kind = "async", the log determines participation; use 1.0')
    if spec.clients.malicious or spec.attack is not None:
        found.append("attack: asynchronous attacks are not simulated; remove it, and set clients.malicious to 0")
    if spec.record_every:
        found.append("record_every: asynchronous updates cannot be recorded; use 0")
    if spec.mechanism is None or spec.arrival is None:
        return found
    location = getattr(spec.mechanism, "placement", None)
    gathered = isinstance(location, SecureAggregation) and spec.arrival.gathers
    published = getattr(spec.mechanism, "shares", None) is not None  # it has no guarantee
    if not (isinstance(location, OnClient) or gathered or published):
        found.append(
            "mechanism: updates arrive one at a time, without a sum over a round to protect; use gaussian or "
            'laplace noise with placement = { name = "client" }, or secure aggregation with arrival = { name = '
            '"fedbuff", wait = true }; only for comparison, use fpdgd-paper with shares'
        )
    if not spec.arrival.receive:
        found.append(
            "arrival.receive: with false, clients continue from models without noise, so their later updates reveal "
            "what the noise had hidden; use true with a mechanism"
        )
    return found


def _privacy_problems(spec: Any) -> list[str]:
    """Conflicts of a mechanism with other settings, and budgets that cannot be enforced."""
    budget = spec.privacy.budget
    if spec.mechanism is None and spec.population != SIMULATED:
        return [
            f"population: {shown(spec.population)} has a privacy ledger, but no mechanism is set, so ε would be "
            f"infinite; set a mechanism, or remove population (default: {shown(SIMULATED)})"
        ]
    if spec.mechanism is None:
        return [] if budget is None else [f"privacy.budget: a budget of {budget:g} needs a mechanism; set one"]
    found: list[str] = []
    if spec.population != SIMULATED and budget is None:
        found.append(
            f"population: {shown(spec.population)} has no limit on its total ε over all runs; set privacy.budget, "
            "the maximum ε per client"
        )
    with noting(found, "mechanism"):
        # The number of parameters changes the ε of a guarantee, not whether there is one.
        promises = spec.mechanism.guarantees(promised_in(spec, 100))
        if budget is not None and all(guarantee.event is None for guarantee in promises):
            found.append(
                f"privacy.budget: a budget of {budget:g} cannot be enforced; this mechanism has no guarantee in "
                "this setting"
            )
    return found


def promised_in(spec: Any, parameters: int) -> Setting:
    """The settings on which the privacy guarantees of an experiment depend."""
    gathered = 0 if spec.arrival is None else spec.arrival.gathers  # clients per secure aggregation
    clients = spec.clients
    searches = clients.searches[: clients.count]
    return Setting(
        gathered or clients.count,
        parameters,
        clients.participation,
        searches,
        spec.learner,
        spec.aggregator,
        _dealt(spec),
    )


def _dealt(spec: Any) -> int:
    """The number of rounds into which clients are dealt; 0: they are drawn every round."""
    return spec.rounds if spec.clients.schedule == "dealt" else 0


def _has_persons(spec: Any) -> bool:
    """Whether clients are organisations whose persons are the unit."""
    return spec.clients.people > 1 and getattr(spec.mechanism, "unit", "person") == "person"


def _schedule_problems(spec: Any) -> list[str]:
    dealt, clients, placement = _dealt(spec), spec.clients, getattr(spec.mechanism, "placement", None)
    if not dealt:
        return []
    if spec.kind == "async":
        return [
            'clients.schedule: with kind = "async", the log determines when clients participate, so they cannot be '
            'dealt into rounds; use "drawn"'
        ]
    persons = _has_persons(spec)
    count, which = (clients.people, "clients.people") if persons else (clients.count, "clients.count")
    if count < dealt:
        return [f"clients.schedule: {which} = {count} cannot be dealt into {dealt} rounds; use at most {count} rounds"]
    if isinstance(placement, SecureAggregation) and not persons:
        most, least = planned_size(count, dealt), count // dealt
        if least < placement.opened(most):
            return [
                f"clients.schedule: rounds have {least} to {most} clients, but a sum of fewer than "
                f"{placement.opened(most)} is not opened; use a number of rounds that divides {count}, or a smaller "
                "mechanism.placement.honest"
            ]
    return []
