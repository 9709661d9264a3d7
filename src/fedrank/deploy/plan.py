"""What a run is to everybody who takes part: said once, by the coordinator, and known by its digest.

A plan holds the spec as TOML, who takes part, and what all must agree on. It comes over the wire, so that reading one
opens no path and imports nothing that it names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank import __version__
from fedrank.deploy.protocol import OVERHEAD
from fedrank.experiments.spec.experiment import Experiment, SpecError, to_tables
from fedrank.experiments.spec.families import code_from_outside, name_of
from fedrank.experiments.spec.federated import ELSEWHERE, FederatedExperiment
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.federated.federation import Federation
from fedrank.federated.partition import Users
from fedrank.federated.robust import without_guarantee
from fedrank.files import parse_json
from fedrank.privacy.mechanisms import SecureAggregation
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.propensity import OWN
from fedrank.seeds import rng_for
from fedrank.silo.features import FEATURE_NAMES
from fedrank.silo.training import CrossSilo
from fedrank.toml import TomlTable, parse_toml, write_toml
from fedrank.trees.histograms import Histograms
from fedrank.types import Weights, has_trait
from fedrank.wire import Label, Refused

PROTOCOL = 2  # raise it whenever two sides of different versions would misunderstand each other
LARGEST = 1 << 20  # bytes of a plan
IDS = 1 << 31  # ids of clients lie below it
NO_DATA: TomlTable = {"name": ELSEWHERE}  # all that sites learn of the coordinator's data
MAX_NUMBERS = 1 << 23  # of a model: more would fill the memory of a site


class OtherVersion(Refused):
    """A plan of another version of fedrank, which may mean something else by it."""


@dataclass(frozen=True)
class PlannedSite:
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
    sites: tuple[PlannedSite, ...]
    features: int
    feature_names: str  # digest of them; "": they have none
    normalised: str
    min_sites: int  # sites without which no round ends
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
        if isinstance(values, dict) and {"version", "protocol"} <= set(values):
            _check_version(values["version"], values["protocol"])
        kinds = {"fold": int, "seed": int, "features": int, "min_sites": int, "protocol": int, "simulated": bool}
        if not isinstance(values, dict) or set(values) != set(cls.__dataclass_fields__):
            raise Refused("it is no plan of this version of fedrank: its keys differ")
        for key, value in values.items():
            kind = kinds.get(key, list if key == "sites" else str)
            if type(value) is not kind:
                raise Refused(f"its {key} is {type(value).__name__}, expected was {kind.__name__}")
        plan = cls(**values | {"sites": tuple(_party(one) for one in values["sites"])})
        check_plan(plan)
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
    def question(self) -> Experiment:
        """What is asked, with its methods built. Nothing is imported for it, and no file is looked for."""
        try:
            found: Experiment = read_tables(parse_toml(self.spec), here=False).base
        except ValueError as problem:
            raise Refused("its spec: " + "; ".join(str(problem).splitlines())) from None
        return found

    @property
    def experiment(self) -> FederatedExperiment:
        """The question of a run in which clients send updates."""
        if not isinstance(self.question, FederatedExperiment):
            raise Refused(f'its spec is of kind "{self.question.kind}", and a federation of clients was expected')
        return self.question

    @property
    def forests(self) -> TreesExperiment | None:
        """The question of a run in which sites send forests; None: it is another."""
        return self.question if isinstance(self.question, TreesExperiment) else None

    @property
    def silos(self) -> SiloExperiment | None:
        """The question of a run in which organisations train through sketches; None: it is another."""
        return self.question if isinstance(self.question, SiloExperiment) else None

    @property
    def rounds(self) -> int:
        return self.question.rounds_asked

    @property
    def clients(self) -> tuple[int, ...]:
        """Everybody's ids, in order: row r of a table is the r-th."""
        return tuple(sorted(id for site in self.sites for id in site.clients))

    @cached_property
    def row_of(self) -> dict[int, int]:
        """The row of each client."""
        return {id: row for row, id in enumerate(self.clients)}

    @cached_property
    def site_of(self) -> dict[int, PlannedSite]:
        """The site that answers for each client."""
        return {id: site for site in self.sites for id in site.clients}

    @property
    def searches(self) -> NDArray[np.int64]:
        """[clients]: searches a round, which the spec says by their ids."""
        clients = self.experiment.clients
        each = np.asarray(clients.searches, dtype=np.int64)
        found: NDArray[np.int64] = each[np.array(self.clients) % len(each)] * clients.people
        return found

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
        try:
            return self.experiment.federation(attacked=False)
        except ValueError as problem:
            raise Refused("its spec: " + "; ".join(str(problem).splitlines())) from None

    def whole(self, shared: Weights) -> Weights:
        """A model to rank with, where clients keep a part of theirs: that part is as everybody begins."""
        if not has_trait(self.federated.local, "shared part"):
            return shared
        first = self.experiment.learner.ranker.first(self.features, rng_for(self.seed, "first"))
        return np.concatenate([shared, first[self.sent :]])

    @property
    def in_step(self) -> bool:
        """Whether rounds have the same number for everybody; otherwise sites come when they are ready."""
        return self.experiment.arrival is None

    @property
    def cohort(self) -> float:
        """How many clients a round has, or has on average: what noise is made for, and what every call must name."""
        arrival, count = self.experiment.arrival, len(self.clients)
        if arrival is None:
            return self.federated.cohort(count)
        return count if arrival.together else max(1, arrival.gathers)

    @property
    def summed(self) -> bool:
        """Whether updates are added up so that the coordinator sees no single one."""
        placement = getattr(getattr(self.question, "mechanism", None), "placement", None)
        return isinstance(placement, SecureAggregation)

    @cached_property
    def secure_sum(self) -> SecureAggregation | None:
        """How updates are added up by the protocol of secure aggregation; None: the coordinator sees messages."""
        placement = getattr(self.experiment.mechanism, "placement", None)
        return placement if isinstance(placement, SecureAggregation) and placement.sum == "protocol" else None

    def sum_terms(self, label: Label) -> dict[str, Any]:
        """What all parties of a secure sum agree on; its threshold holds against a coordinator that breaks rules."""
        from fedrank.privacy.secure_aggregation import threshold_for

        placement, cohort = self.secure_sum, self.cohort
        assert placement is not None
        threshold = threshold_for(int(cohort), placement.colluders(cohort), active=True)
        return {
            "session": label.run + label.attempt.to_bytes(4, "little"),
            "round": label.round,
            "threshold": threshold,
            "min_survivors": max(threshold, placement.opened(cohort)),
            "size": self.sent,
            "bits": placement.bits,
        }

    @property
    def longest_letter(self) -> int:
        """Bytes of the longest letter of a secure sum."""
        return OVERHEAD + 512 * len(self.clients) + 16 * self.sent

    @property
    def last_number(self) -> int:
        """The highest number that a request for a round can have."""
        if not isinstance(self.question, FederatedExperiment):
            return self.rounds
        return self.experiment.rounds * (1 if self.in_step or self.simulated else len(self.clients))

    def without(self, leaving: Sequence[str], experiment: FederatedExperiment, name: str) -> Plan:
        """The plan of a run that forgets some sites, for those who stay, with the ids that they have."""
        tables = to_tables(experiment)
        tables["data"] = _elsewhere(tables["data"]) if not self.simulated else tables["data"]
        staying = tuple(site for site in self.sites if site.name not in leaving)
        plan = replace(
            self, name=name, spec=write_toml(tables), sites=staying, min_sites=min(self.min_sites, len(staying))
        )
        check_plan(plan)
        return plan

    def party(self, name: str) -> PlannedSite:
        for site in self.sites:
            if site.name == name:
                return site
        raise Refused(f"site {name!r} does not take part in run {self.name!r}")


def make_plan(
    experiment: Experiment,
    name: str,
    sites: Sequence[PlannedSite],
    *,
    federation: str,
    features: int = 0,
    feature_names: Sequence[str] = (),
    normalised: str = "none",
    fold: int = 1,
    seed: int = 1,
    min_sites: int | None = None,
    simulated: bool = False,
) -> Plan:
    """The plan of a run of any kind. What only a simulation can do is refused outside one, by name."""
    if found := _problems(experiment, sites, simulated):
        raise SpecError(found)
    tables = to_tables(experiment)
    if not simulated:
        tables["data"] = _elsewhere(tables["data"]) if isinstance(experiment, FederatedExperiment) else NO_DATA
        if isinstance(experiment, FederatedExperiment):
            tables["clients"].pop("partition", None)  # which nothing but a log needs
            tables.pop("start", None)
    if isinstance(experiment, SiloExperiment):  # fedrank computes the features itself
        features, feature_names = len(FEATURE_NAMES), FEATURE_NAMES
        normalised = "query" if getattr(experiment.method, "normalise", "") == "query" else "global"
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
        _enough(experiment, len(sites), simulated) if min_sites is None else min_sites,
        simulated,
    )
    check_plan(plan)
    return plan


def _problems(experiment: Experiment, sites: Sequence[PlannedSite], simulated: bool) -> list[str]:
    """Why an experiment cannot be planned for these sites."""
    if isinstance(experiment, TreesExperiment):
        return forest_problems(experiment, simulated)
    if isinstance(experiment, SiloExperiment):
        return silo_problems(experiment, len(sites))
    if not isinstance(experiment, FederatedExperiment):
        return [f'kind: "{experiment.kind}" is not done between sites in this version; use `fedrank run`']
    count, wanted = sum(len(site.clients) for site in sites), experiment.clients.count
    found = [] if simulated else only_simulated(experiment) or too_few(experiment, count)
    if count != wanted:
        found.append(f"clients.count: {wanted} where {count} take part; set clients.count = {count}")
    if has_trait(experiment.aggregator, "apart"):
        found.append('aggregator: with "none" everybody learns alone and nothing travels; leave that to fedrank run')
    return found


def _enough(experiment: Experiment, sites: int, simulated: bool) -> int:
    """Sites that are enough for a round: more than half, or as many as can open a secure sum.

    Silos need all sites, and so does a trial with forests.
    """
    if isinstance(experiment, SiloExperiment) or (isinstance(experiment, TreesExperiment) and simulated):
        return sites
    placement = getattr(getattr(experiment, "mechanism", None), "placement", None)
    if not isinstance(placement, SecureAggregation):
        return sites // 2 + 1
    from fedrank.privacy.secure_aggregation import threshold_for

    return max(placement.opened(sites), threshold_for(sites, placement.colluders(sites), active=True))


def names_digest(names: Iterable[str]) -> str:
    """By which two sites find that their features have the same names; "" where they have none."""
    listed = list(names)
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()[:32] if listed else ""


def _elsewhere(data: TomlTable) -> TomlTable:
    """What sites are told of the data: nothing but how each corrects its own clicks."""
    return NO_DATA | {key: data[key] for key in ("propensities", "bias") if key in data}


def only_simulated(experiment: FederatedExperiment) -> list[str]:
    """What belongs to a simulation, and has no meaning between real sites: one line each."""
    clients, usual = experiment.clients, type(experiment.clients)(count=1)
    found = [
        f"clients.{name}: belongs to a simulation, and real sites have their own; leave it out, or try it with --local"
        for name in ("partition", "click_model", "click_model_per", "malicious")
        if getattr(clients, name) != getattr(usual, name) and not _of_log(experiment, name)
    ]
    if experiment.data.propensities not in (None, OWN):
        found.append(
            f"data.propensities: {experiment.data.propensities!r} belongs to a simulation, since nobody sees the "
            f'clicks of all sites; use "{OWN}"'
        )
    if experiment.attack is not None:
        found.append("attack: nobody attacks a real federation on purpose; leave it out, or try it with --local")
    if experiment.fine_tune:
        found.append("fine_tune: a site adapts the final model itself, with `fedrank deploy`; set it to 0")
    if getattr(experiment.learner, "chance", "") == "shared":
        found.append('learner.chance: "shared" draws clicks from the seed that is sent; use "independent"')
    if isinstance(experiment.learner, Pdgd) and getattr(experiment.mechanism, "unit", "") == "interaction":
        found.append("mechanism.unit: a site learns from the same search again and again; use client or person")
    found += [f"{line}: code from outside fedrank never runs at a site" for line in code_from_outside(experiment)]
    return found


def forest_problems(experiment: TreesExperiment, simulated: bool) -> list[str]:
    """What keeps a question to forests from being asked between sites: one line each."""
    found, merge = [], experiment.merge
    if isinstance(merge, Histograms):
        if merge.edge_noise() is not None:
            found.append(
                f'merge.edges: "{merge.edges}" are estimated by `fedrank run` and `fedrank trees grow`, not between '
                'sites; use "grid" or "bounded"'
            )
        elif merge.edges not in ("grid", "bounded"):
            found.append(f'merge.edges: "{merge.edges}" do not follow from a plan; use "grid" or "bounded"')
    elif merge is None or name_of(merge) not in ("linear", "stacking"):
        named = "there is none" if merge is None else f'"{name_of(merge)}"'
        found.append(
            f"merge: {named}, and sites grow forests that are then merged: use linear, stacking or histograms, or "
            "`fedrank run`"
        )
    if experiment.tune:
        found.append("tune: settings are not looked for between sites; find them with `fedrank tune`, and set it to 0")
    if (experiment.split is not None and name_of(experiment.split) == "sites") == simulated:
        found.append(
            'split: "sites" have queries of their own, and a trial simulates them; split by topics or dealt'
            if simulated
            else 'split: belongs to a simulation, and real sites have their own queries; write split = "sites", or try '
            "it with --local"
        )
    return found


def silo_problems(experiment: SiloExperiment, sites: int) -> list[str]:
    """What keeps a question to organisations with documents from being asked between sites: one line each."""
    method, silos, usual = experiment.method, experiment.silos, type(experiment.silos)()
    found = [
        f"silos.{name}: belongs to a simulation, and real sites have their own documents and queries; leave it out"
        for name in ("split", "queries", "labels", "of")
        if getattr(silos, name) != getattr(usual, name)
    ]
    if silos.count != sites:
        found.append(f"silos.count: {silos.count} where {sites} take part; set silos.count = {sites}")
    if not isinstance(method, CrossSilo):
        return [*found, f'method: "{name_of(method)}" is not done between sites; use "cross-silo", or `fedrank run`']
    wanted = {
        "combine": "round-robin",
        "counts": "sketch",
        "grades": "like-own",
        "scaling": "own",
        "noise_in": "sketch",
        "find": "both-ends",
    }
    found += [
        f'method.{name}: between sites it is "{value}"; write that, or use `fedrank run`'
        for name, value in wanted.items()
        if getattr(method, name) != value
    ]
    found += [
        f"method.{name}: is done in a simulation only; leave it out, or use `fedrank run`"
        for name in ("steps", "k_share", "true_rows")
        if getattr(method, name) is not None
    ]
    if not method.noise > 0:
        found.append("method.noise: 0 would tell what documents hold, word by word; use 1.0, or more")
    return found


def _of_log(experiment: FederatedExperiment, name: str) -> bool:
    """Whether a setting only says that clients are the users of a log, as they are at sites."""
    return name == "partition" and experiment.arrival is not None and experiment.clients.partition == Users()


def too_few(experiment: FederatedExperiment, count: int) -> list[str]:
    """Rules that need more clients than there are, or than they can have together: one line each."""
    weak = without_guarantee(experiment.aggregator, count)
    found = [f"aggregator: {weak}"] if weak else []
    if experiment.arrival is not None and isinstance(
        getattr(experiment.mechanism, "placement", None), SecureAggregation
    ):
        found.append(
            "arrival: a secure sum needs its sites together, and out of step each comes alone; use noise on the client"
        )
    return found


def _party(found: Any) -> PlannedSite:
    if not isinstance(found, dict) or set(found) != {"name", "clients", "identity"}:
        raise Refused("one of its sites is none: expected were a name, clients and an identity")
    ids = found["clients"]
    if not isinstance(ids, list) or not ids or any(type(id) is not int or not 0 <= id < IDS for id in ids):
        raise Refused("one of its sites has clients that are no ids")
    name, identity = found["name"], found["identity"]
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise Refused("one of its sites has a name that is no short text")
    if not isinstance(identity, str) or not re.fullmatch("([0-9a-f]{64})?", identity):
        raise Refused(f"the key of {name!r} is none")
    return PlannedSite(name, tuple(ids), identity)


def _check_version(version: Any, protocol: Any) -> None:
    if (version, protocol) != (__version__, PROTOCOL):
        raise OtherVersion(
            f"the run was planned by fedrank {str(version)[:40]}, protocol {str(protocol)[:40]}, and this is "
            f"{__version__}, protocol {PROTOCOL}: finish the run with the version it began with, or begin a new one"
        )


def check_plan(plan: Plan) -> None:
    _check_version(plan.version, plan.protocol)
    names, ids = [site.name for site in plan.sites], plan.clients
    if len(set(names)) != len(names) or len(set(ids)) != len(ids):
        raise Refused("two of its sites have one name, or one id")
    if not 1 <= plan.min_sites <= len(names):
        raise Refused(f"no round could end: {plan.min_sites} of {len(names)} sites are needed")
    if not 1 <= plan.features <= 1 << 20:
        raise Refused(f"{plan.features} features cannot be")
    if found := list(code_from_outside(plan.question)):
        raise Refused(f"it names code from outside fedrank, which never runs at a site: {found[0]}")
    if not plan.simulated and len(ids) != len(names):
        raise Refused("one of its sites answers for several clients, which only simulated ones do")
    found = []
    if plan.forests is not None:
        found = forest_problems(plan.forests, plan.simulated)
    elif plan.silos is not None:
        found = silo_problems(plan.silos, len(names))
        found += ["simulated: organisations with documents are simulated by `fedrank run`"] * plan.simulated
    else:
        _check_federation(plan)
    if found:
        raise Refused("; ".join(found))


def _check_federation(plan: Plan) -> None:
    experiment, ids = plan.experiment, plan.clients
    # Noise is shared out among as many clients as there are, and priced for as many as the spec says.
    if experiment.clients.count != len(ids):
        raise Refused(f"its spec is for {experiment.clients.count} clients, and {len(ids)} take part")
    if plan.parameters > MAX_NUMBERS:
        raise Refused(f"a model of {plan.parameters:,} numbers is too large: at most {MAX_NUMBERS:,}")
    if has_trait(plan.federated.aggregator, "apart"):
        raise Refused("with it everybody learns alone, and nothing travels")
    if not plan.simulated and (found := [*only_simulated(experiment), *too_few(experiment, len(ids))]):
        raise Refused("; ".join(found))
    if plan.experiment.start is not None and not plan.simulated:
        raise Refused("it names a path, and a spec that came over the wire opens none")
