"""What a run is to everybody who takes part: said once, by the coordinator, and known by its digest.

A plan holds the spec as TOML, who takes part, and what all must agree on. It comes over the wire, so that reading one
opens no path and imports nothing that it names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from fedrank import __version__
from fedrank.federate.federation import Federation
from fedrank.federate.robust import without_promise
from fedrank.files import parse_json
from fedrank.rank.learners import Pdgd
from fedrank.spec.experiment import SpecError, to_tables
from fedrank.spec.families import code_from_outside
from fedrank.spec.federated import ClientsSpec, FederatedExperiment
from fedrank.spec.grid import read_tables
from fedrank.spec.toml import parse_toml, write_toml
from fedrank.types import has
from fedrank.wire import Refused

PROTOCOL = 1  # raise it whenever two sides of different versions would misunderstand each other
LARGEST = 1 << 20  # bytes of a plan
ELSEWHERE = "coordinator"  # the data of a plan: the coordinator's own, to which no site has a path
IDS = 1 << 31  # ids of clients lie below it


@dataclass(frozen=True)
class Party:
    """A site, and the clients it answers for: itself, or in a trial those it simulates."""

    name: str
    clients: tuple[int, ...]
    identity: str = ""  # its public key, in hex, by which partners know it


@dataclass(frozen=True)
class Plan:
    """A run, as all who take part in it must see it."""

    federation: str
    name: str  # of the run
    spec: str  # TOML of one experiment on one fold with one seed
    fold: int
    seed: int
    sites: tuple[Party, ...]
    features: int
    feature_names: str  # digest of them; "": they have none
    normalised: str
    fewest: int  # sites without which no round ends
    simulated: bool = False  # a trial on one machine, whose sites simulate the spec's people
    version: str = __version__
    protocol: int = PROTOCOL

    def dump(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False).encode()

    @classmethod
    def load(cls, content: bytes) -> Plan:
        """A plan that came from somewhere, with everything checked."""
        if len(content) > LARGEST:
            raise Refused(f"a plan of {len(content):,} bytes is too long: at most {LARGEST:,}")
        try:
            values = parse_json(content)
        except ValueError as problem:
            raise Refused(f"it is no plan: {problem}") from None
        kinds = {"fold": int, "seed": int, "features": int, "fewest": int, "protocol": int, "simulated": bool}
        if not isinstance(values, dict) or set(values) != set(cls.__dataclass_fields__):
            raise Refused("it is no plan of this version of fedrank: its keys differ")
        for key, value in values.items():
            kind = kinds.get(key, list if key == "sites" else str)
            if type(value) is not kind:
                raise Refused(f"its {key} is {type(value).__name__}, expected was {kind.__name__}")
        plan = cls(**values | {"sites": tuple(_party(one) for one in values["sites"])})
        _check(plan)
        return plan

    @cached_property
    def digest(self) -> str:
        """By which a plan is accepted: it changes with everything that the plan says."""
        return hashlib.sha256(self.dump()).hexdigest()

    @cached_property
    def run(self) -> bytes:
        """16 bytes that name the run in messages."""
        return bytes.fromhex(self.digest)[:16]

    @cached_property
    def experiment(self) -> FederatedExperiment:
        """The question, with its methods built. Nothing is imported for it, and no file is looked for."""
        try:
            found = read_tables(parse_toml(self.spec), here=False).base
        except ValueError as problem:
            raise Refused("its spec: " + "; ".join(str(problem).splitlines())) from None
        if not isinstance(found, FederatedExperiment):
            raise Refused(f'its spec is of kind "{found.kind}", and a federation of clients was expected')
        return found

    @property
    def clients(self) -> tuple[int, ...]:
        """Everybody's ids, in order: row r of a table is the r-th."""
        return tuple(sorted(id for site in self.sites for id in site.clients))

    @property
    def parameters(self) -> int:
        """Numbers of a model."""
        return self.experiment.learner.ranker.size(self.features)

    @property
    def sent(self) -> int:
        """Numbers of a model that travel."""
        return self.federated.sent(self.parameters)

    @cached_property
    def federated(self) -> Federation:
        """Who does what."""
        return self.experiment.federation(attacked=False)

    def party(self, name: str) -> Party:
        for site in self.sites:
            if site.name == name:
                return site
        raise Refused(f"site {name!r} does not take part in run {self.name!r}")


def make_plan(
    experiment: FederatedExperiment,
    name: str,
    sites: Sequence[Party],
    *,
    federation: str,
    features: int,
    feature_names: Sequence[str] = (),
    normalised: str = "none",
    fold: int = 1,
    seed: int = 1,
    fewest: int | None = None,
    simulated: bool = False,
) -> Plan:
    """The plan of a run. What only a simulation can do is refused outside one, by name."""
    if not simulated and (found := only_simulated(experiment)):
        raise SpecError(found)
    count = sum(len(site.clients) for site in sites)
    if count != experiment.clients.count:
        raise SpecError(
            [f"clients.count: {experiment.clients.count} where {count} take part; set clients.count = {count}"]
        )
    if not simulated and (weak := without_promise(experiment.aggregator, count)):
        raise SpecError([f"aggregator: {weak}"])
    if has(experiment.aggregator, "apart"):
        raise SpecError(
            ['aggregator: with "none" everybody learns alone and nothing travels; leave that to fedrank run']
        )
    tables = to_tables(experiment)
    if not simulated:
        tables["data"] = {"name": ELSEWHERE}
        tables.pop("start", None)
    plan = Plan(
        federation,
        name,
        write_toml(tables),
        fold,
        seed,
        tuple(sorted(sites, key=lambda site: site.clients)),
        features,
        names_digest(feature_names),
        normalised,
        len(sites) // 2 + 1 if fewest is None else fewest,
        simulated,
    )
    _check(plan)
    return plan


def names_digest(names: Iterable[str]) -> str:
    """By which two sites find that their features have the same names; "" where they have none."""
    listed = list(names)
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()[:32] if listed else ""


def only_simulated(experiment: FederatedExperiment) -> list[str]:
    """What belongs to a simulation, and has no meaning between real sites: one line each."""
    clients, usual = experiment.clients, ClientsSpec(count=1)
    found = [
        f"clients.{name}: belongs to a simulation, and real sites have their own; leave it out, or try it with --local"
        for name in ("partition", "user", "user_per", "malicious")
        if getattr(clients, name) != getattr(usual, name)
    ]
    if experiment.attack is not None:
        found.append("attack: nobody attacks a real federation on purpose; leave it out, or try it with --local")
    if experiment.fine_tune:
        found.append("fine_tune: a site adapts the final model itself, with `fedrank deploy`; set it to 0")
    if isinstance(experiment.learner, Pdgd) and getattr(experiment.mechanism, "unit", "") == "interaction":
        found.append("mechanism.unit: a site learns from the same search again and again; use client or person")
    found += [f"{line}: code from outside fedrank never runs at a site" for line in code_from_outside(experiment)]
    return found


def _party(found: Any) -> Party:
    if not isinstance(found, dict) or set(found) != {"name", "clients", "identity"}:
        raise Refused("one of its sites is none: expected were a name, clients and an identity")
    ids = found["clients"]
    if not isinstance(ids, list) or not ids or any(type(id) is not int or not 0 <= id < IDS for id in ids):
        raise Refused("one of its sites has clients that are no ids")
    if not all(isinstance(found[key], str) and len(found[key]) <= 200 for key in ("name", "identity")):
        raise Refused("one of its sites has a name or an identity that is no short text")
    return Party(found["name"], tuple(ids), found["identity"])


def _check(plan: Plan) -> None:
    if plan.protocol != PROTOCOL or plan.version != __version__:
        raise Refused(
            f"the run was planned by fedrank {plan.version}, protocol {plan.protocol}, and this is {__version__}, "
            f"protocol {PROTOCOL}: finish the run with the version it began with, or begin a new one"
        )
    names, ids = [site.name for site in plan.sites], plan.clients
    if len(set(names)) != len(names) or len(set(ids)) != len(ids):
        raise Refused("two of its sites have one name, or one id")
    if not 1 <= plan.fewest <= len(names):
        raise Refused(f"no round could end: {plan.fewest} of {len(names)} sites are needed")
    if not 1 <= plan.features <= 1 << 20:
        raise Refused(f"{plan.features} features cannot be")
    if found := list(code_from_outside(plan.experiment)):
        raise Refused(f"it names code from outside fedrank, which never runs at a site: {found[0]}")
    if not plan.simulated and (found := only_simulated(plan.experiment)):
        raise Refused("; ".join(found))
    if plan.experiment.start is not None and not plan.simulated:
        raise Refused("it names a path, and a spec that came over the wire opens none")


def with_identities(plan: Plan, identities: Mapping[str, str]) -> Plan:
    """The same plan with the public keys of its sites."""
    return replace(plan, sites=tuple(replace(site, identity=identities[site.name]) for site in plan.sites))
