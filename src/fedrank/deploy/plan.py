"""The plan of a run: written by the coordinator, identical for all participants, identified by its digest.

A plan contains the spec as TOML, the participating sites, and what they must agree on. It is received over the network,
so reading it opens no path and imports no code that it names.
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
from fedrank.deploy.settings import USER, SiteData, check_name
from fedrank.experiments.spec.experiment import Experiment, SpecError, to_tables
from fedrank.experiments.spec.families import code_from_outside, name_of
from fedrank.experiments.spec.federated import ELSEWHERE, FederatedExperiment
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.federated.federation import Federation
from fedrank.federated.messages import Call
from fedrank.federated.partition import Users
from fedrank.federated.robust import without_guarantee
from fedrank.files import parse_json
from fedrank.privacy.mechanisms import SecureAggregation
from fedrank.ranking.learners import Pdgd
from fedrank.seeds import rng_for
from fedrank.silo.features import FEATURE_NAMES
from fedrank.silo.training import CrossSilo
from fedrank.toml import TomlTable, parse_toml, write_toml
from fedrank.trees.histograms import Histograms
from fedrank.types import Weights, has_trait
from fedrank.wire import Refused

PROTOCOL = 4  # increase it when two versions could misunderstand each other
LARGEST = 1 << 20  # maximum size of a plan in bytes
IDS = 1 << 31  # upper bound of client ids
NO_DATA: TomlTable = {"name": ELSEWHERE}  # what sites learn about the coordinator's data
MAX_NUMBERS = 1 << 23  # maximum size of a model: a larger one would exhaust the memory of a site
MAX_SITES = 1000  # a message carries the heads of the journals of all sites (`heads.MAX_HEADS`)
MAX_NAME = 300  # maximum length of the name of a run: folder, variant, and fold with seed


class OtherVersion(Refused):
    """A plan of another version of fedrank."""


@dataclass(frozen=True)
class PlannedSite:
    """A site and its clients: itself, or in a trial the clients it simulates."""

    name: str
    clients: tuple[int, ...]
    identity: str = ""  # its public key in hex, by which partners identify it


@dataclass(frozen=True)
class Plan:
    """A run, identical for all participants."""

    federation: str
    name: str  # of the run
    spec: str  # TOML of one experiment on one fold with one seed
    fold: int
    seed: int
    sites: tuple[PlannedSite, ...]
    features: int
    feature_names: str  # their digest; "" if there are none
    normalised: str
    min_sites: int  # minimum number of sites per round
    simulated: bool = False  # a trial on one machine, whose sites simulate the people of the spec
    version: str = __version__
    protocol: int = PROTOCOL

    def dump(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False).encode()

    @classmethod
    def load(cls, content: bytes) -> Plan:
        """Read and check a received plan."""
        if len(content) > LARGEST:
            raise Refused(f"the plan is too long ({len(content):,} bytes; at most {LARGEST:,})")
        try:
            values = parse_json(content)
        except ValueError as problem:
            raise Refused(f"it is not a plan: {problem}") from None
        if isinstance(values, dict) and {"version", "protocol"} <= set(values):
            _check_version(values["version"], values["protocol"])
        kinds = {"fold": int, "seed": int, "features": int, "min_sites": int, "protocol": int, "simulated": bool}
        if not isinstance(values, dict) or set(values) != set(cls.__dataclass_fields__):
            raise Refused("it is not a plan of this version of fedrank: its keys differ")
        for key, value in values.items():
            kind = kinds.get(key, list if key == "sites" else str)
            if type(value) is not kind:
                raise Refused(f"its {key} must be of type {kind.__name__} (got {type(value).__name__})")
        plan = cls(**values | {"sites": tuple(_party(one) for one in values["sites"])})
        check_plan(plan)
        return plan

    @cached_property
    def digest(self) -> str:
        """The digest by which a plan is accepted; it covers the whole plan."""
        return hashlib.sha256(self.dump()).hexdigest()

    @cached_property
    def run(self) -> bytes:
        """The identifier of the run in messages (16 bytes)."""
        return bytes.fromhex(self.digest)[:16]

    @cached_property
    def question(self) -> Experiment:
        """The experiment with its methods. Building it imports no code and opens no file."""
        try:
            found: Experiment = read_tables(parse_toml(self.spec), full_check=False).base
        except ValueError as problem:
            raise Refused("its spec: " + "; ".join(str(problem).splitlines())) from None
        return found

    @property
    def experiment(self) -> FederatedExperiment:
        """The experiment of a run in which clients send updates."""
        if not isinstance(self.question, FederatedExperiment):
            raise Refused(f'its spec is of kind "{self.question.kind}", but "federated" is required')
        return self.question

    @property
    def forests(self) -> TreesExperiment | None:
        """The experiment of a run in which sites send forests; otherwise None."""
        return self.question if isinstance(self.question, TreesExperiment) else None

    @property
    def silos(self) -> SiloExperiment | None:
        """The experiment of a run in which organisations train with sketches; otherwise None."""
        return self.question if isinstance(self.question, SiloExperiment) else None

    @property
    def rounds(self) -> int:
        return self.question.rounds_asked

    @property
    def clients(self) -> tuple[int, ...]:
        """The ids of all clients in order: row r of a table is the r-th."""
        return tuple(sorted(id for site in self.sites for id in site.clients))

    @cached_property
    def row_of(self) -> dict[int, int]:
        """The row of each client."""
        return {id: row for row, id in enumerate(self.clients)}

    @cached_property
    def site_of(self) -> dict[int, PlannedSite]:
        """The site of each client."""
        return {id: site for site in self.sites for id in site.clients}

    @property
    def searches(self) -> NDArray[np.int64]:
        """[clients]: interactions per round, which the spec sets by client id."""
        return self.searches_in(0)

    def searches_in(self, round: int) -> NDArray[np.int64]:
        """[clients]: interactions in a round; fewer if the persons of clients are dealt into rounds."""
        clients, dealt = self.experiment.clients, self.experiment.deals_persons and round > 0
        each = np.asarray(clients.searches, dtype=np.int64)
        people = (clients.people - round) // self.rounds + 1 if dealt else clients.people  # sizes differ by 1
        found: NDArray[np.int64] = each[np.array(self.clients) % len(each)] * people
        return found

    @cached_property
    def turns(self) -> NDArray[np.int64] | None:
        """[clients]: the only round of each, if clients are dealt into rounds."""
        if not self.federated.dealt or self.experiment.deals_persons:
            return None
        return self.federated.deal(len(self.clients), self.seed).round_of_each

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        return self.experiment.learner.ranker.size(self.features)

    @property
    def sent(self) -> int:
        """Number of parameters that are sent."""
        return self.federated.sent(self.parameters)

    @cached_property
    def federated(self) -> Federation:
        """The federation of the spec, without attackers."""
        try:
            return self.experiment.federation(attacked=False)
        except ValueError as problem:
            raise Refused("its spec: " + "; ".join(str(problem).splitlines())) from None

    def whole(self, shared: Weights) -> Weights:
        """A complete model where clients keep a part of theirs: that part has its initial values."""
        if not has_trait(self.federated.local, "shared part"):
            return shared
        first = self.experiment.learner.ranker.first(self.features, rng_for(self.seed, "first"))
        return np.concatenate([shared, first[self.sent :]])

    @property
    def synchronous(self) -> bool:
        """Whether all sites perform the same round at the same time; otherwise the run is asynchronous."""
        return self.experiment.arrival is None

    @property
    def cohort(self) -> float:
        """Number of clients per round, or its mean: noise is calibrated to it, and every call must contain it."""
        arrival, count = self.experiment.arrival, len(self.clients)
        if arrival is None:
            return self.federated.cohort(count)
        return count if arrival.together else max(1, arrival.gathers)

    @property
    def summed(self) -> bool:
        """Whether updates are aggregated so the coordinator does not see individual ones."""
        placement = getattr(getattr(self.question, "mechanism", None), "placement", None)
        return isinstance(placement, SecureAggregation)

    @cached_property
    def secure_sum(self) -> SecureAggregation | None:
        """The settings of secure aggregation by protocol; None if the coordinator sees individual messages."""
        placement = getattr(self.experiment.mechanism, "placement", None)
        return placement if isinstance(placement, SecureAggregation) and placement.sum == "protocol" else None

    def sum_terms(self, call: Call) -> dict[str, Any]:
        """The terms of secure aggregation; its threshold holds against a malicious coordinator.

        They contain a digest of the whole plan and call, so clients that received different ones have no common sum. In
        a trial without common rounds, clients have different models by design, and the digest is of the plan alone.
        """
        placement = self.secure_sum
        assert placement is not None
        asked = call.pack() if self.synchronous or not self.simulated else b""
        return {
            "session": call.run + call.attempt.to_bytes(4, "little"),
            "request": hashlib.sha256(bytes.fromhex(self.digest) + asked).digest(),
            "round": call.round,
            "threshold": self.sum_threshold,
            "min_survivors": self.min_survivors,
            "size": self.sent,
            "bits": placement.bits,
        }

    @property
    def sum_threshold(self) -> int:
        """The number of clients that can open a sum."""
        from fedrank.privacy.secure_aggregation import threshold_for

        assert self.secure_sum is not None
        return threshold_for(int(self.cohort), self.secure_sum.colluders(self.cohort), active=True)

    @property
    def min_survivors(self) -> int:
        """The minimum number of clients in a sum that is opened."""
        assert self.secure_sum is not None
        return max(self.sum_threshold, self.secure_sum.opened(self.cohort))

    @property
    def longest_letter(self) -> int:
        """Maximum size of a message of secure aggregation in bytes."""
        return OVERHEAD + 512 * len(self.clients) + 16 * self.sent

    @property
    def last_number(self) -> int:
        """The highest number of a request for a round."""
        if not isinstance(self.question, FederatedExperiment):
            return self.rounds
        return self.experiment.rounds * (1 if self.synchronous or self.simulated else len(self.clients))

    def without(self, leaving: Sequence[str], experiment: FederatedExperiment, name: str) -> Plan:
        """The plan of a run that unlearns sites, for the remaining sites with their ids."""
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
        raise Refused(f"site {name!r} does not participate in run {self.name!r}")


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
    """Plan a run of any kind; settings that only a simulation supports are refused by name."""
    if found := _problems(experiment, sites, simulated):
        raise SpecError(found)
    tables = to_tables(experiment)
    if not simulated:
        tables["data"] = _elsewhere(tables["data"]) if isinstance(experiment, FederatedExperiment) else NO_DATA
        if isinstance(experiment, FederatedExperiment):
            tables["clients"].pop("partition", None)  # only a log needs it
            tables.pop("start", None)
    if isinstance(experiment, SiloExperiment):  # fedrank computes the features
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
    return Plan.load(plan.dump())  # exactly what every site receives and checks


def problems_between_sites(experiment: Experiment) -> list[str]:
    """Reasons why no coordinator can plan an experiment for as many real sites as its spec has."""
    silos = experiment.silos.count if isinstance(experiment, SiloExperiment) else 0
    count = experiment.clients.count if isinstance(experiment, FederatedExperiment) else silos
    return _problems(experiment, [PlannedSite(f"site-{id}", (id,)) for id in range(count)], simulated=False)


def _problems(experiment: Experiment, sites: Sequence[PlannedSite], simulated: bool) -> list[str]:
    """Reasons why an experiment cannot be planned for these sites."""
    if not simulated and len(sites) > MAX_SITES:
        return [f"{len(sites):,} sites take part; a plan may have at most {MAX_SITES:,}, so divide them into two runs"]
    if isinstance(experiment, TreesExperiment):
        return forest_problems(experiment, simulated)
    if isinstance(experiment, SiloExperiment):
        return silo_problems(experiment, len(sites))
    if not isinstance(experiment, FederatedExperiment):
        return [f'kind: "{experiment.kind}" is not supported between sites; use `fedrank run`']
    count, wanted = sum(len(site.clients) for site in sites), experiment.clients.count
    found = [] if simulated else only_simulated(experiment) or too_few(experiment, count)
    if count != wanted:
        found.append(f"clients.count: {wanted}, but {count} participate; set clients.count = {count}")
    if has_trait(experiment.aggregator, "apart"):
        found.append('aggregator: with "none" clients learn separately and send nothing; use fedrank run')
    return found


def _enough(experiment: Experiment, sites: int, simulated: bool) -> int:
    """Minimum number of sites per round: more than half, or as many as secure aggregation needs.

    Silos, trials with forests and organisations that deal their people need all sites.
    """
    if isinstance(experiment, SiloExperiment) or (isinstance(experiment, TreesExperiment) and simulated):
        return sites
    if isinstance(experiment, FederatedExperiment) and experiment.clients.schedule == "dealt":
        if experiment.deals_persons:
            return sites
        sites = int(experiment.federation(attacked=False).cohort(sites))
    placement = getattr(getattr(experiment, "mechanism", None), "placement", None)
    if not isinstance(placement, SecureAggregation):
        return sites // 2 + 1
    from fedrank.privacy.secure_aggregation import threshold_for

    return max(placement.opened(sites), threshold_for(sites, placement.colluders(sites), active=True))


def names_digest(names: Iterable[str]) -> str:
    """A digest to compare the feature names of two sites; "" if there are none."""
    listed = list(names)
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()[:32] if listed else ""


def _elsewhere(data: TomlTable) -> TomlTable:
    """What sites learn about the data: only how each corrects its own clicks."""
    return NO_DATA | {key: data[key] for key in ("propensities", "bias") if key in data}


def only_simulated(experiment: FederatedExperiment) -> list[str]:
    """Settings that are valid only in a simulation, one line each."""
    clients, usual = experiment.clients, type(experiment.clients)(count=1)
    found = [
        f"clients.{name}: is valid only in a simulation, because real sites have their own{_instead(name)}; remove it, "
        "or use --local"
        for name in ("partition", "click_model", "click_model_per", "malicious")
        if getattr(clients, name) != getattr(usual, name) and not _of_log(experiment, name)
    ]
    data = experiment.data
    if not (data.propensities is None or data.from_own_clicks or data.from_swaps):
        found.append(
            f"data.propensities: {experiment.data.propensities!r} is valid only in a simulation, because no party sees "
            'the clicks of all sites; use "swaps", noised sums of logged random swaps of all sites, or "own"'
        )
    if data.from_swaps or experiment.gate is not None:
        what = "gate" if experiment.gate is not None else "data.propensities"
        if not has_trait(experiment.mechanism, "people"):
            found.append(f'{what}: is a release about people; use a mechanism with unit = "person"')
    if experiment.attack is not None:
        found.append("attack: is valid only in a simulation; remove it, or use --local")
    if experiment.fine_tune:
        found.append("fine_tune: is not supported between sites; set it to 0")
    if getattr(experiment.learner, "chance", "") == "shared":
        found.append('learner.chance: "shared" derives clicks from the seed in the plan; use "independent"')
    if isinstance(experiment.learner, Pdgd) and getattr(experiment.mechanism, "unit", "") == "interaction":
        found.append("mechanism.unit: a site uses the same search repeatedly; use client or person")
    found += [f"{line}: code from outside fedrank is not executed at a site" for line in code_from_outside(experiment)]
    return found


def _instead(name: str) -> str:
    """What a deployed spec has in place of a partition."""
    if name != "partition":
        return ""
    return " (each client is a site, and clients.people is the number of its users, at most)"


def forest_problems(experiment: TreesExperiment, simulated: bool) -> list[str]:
    """Reasons why an experiment with forests cannot run between sites, one line each."""
    found, merge = [], experiment.merge
    if isinstance(merge, Histograms):
        if merge.edges not in ("grid", "bounded"):
            found.append(f'merge.edges: "{merge.edges}" cannot be derived from a plan; use "grid" or "bounded"')
    elif merge is None or name_of(merge) not in ("linear", "stacking"):
        named = "not set" if merge is None else f'"{name_of(merge)}"'
        found.append(
            f"merge: {named}, but sites train forests that are then merged; use linear, stacking or histograms, or "
            "`fedrank run`"
        )
    if experiment.tune:
        found.append("tune: is not supported between sites; set it to 0, and tune with `fedrank tune`")
    if (experiment.split is not None and name_of(experiment.split) == "sites") == simulated:
        found.append(
            'split: "sites" uses the queries of real sites, but a trial simulates them; use topics or dealt'
            if simulated
            else 'split: is valid only in a simulation, because sites have their own queries; set split = "sites", '
            "or use --local"
        )
    return found


def silo_problems(experiment: SiloExperiment, sites: int) -> list[str]:
    """Reasons why an experiment across document collections cannot run between sites, one line each."""
    method, silos, usual = experiment.method, experiment.silos, type(experiment.silos)()
    found = [
        f"silos.{name}: is valid only in a simulation, because real sites have their own documents and queries; remove "
        "it"
        for name in ("split", "queries", "labels", "of")
        if getattr(silos, name) != getattr(usual, name)
    ]
    if silos.count != sites:
        found.append(f"silos.count: {silos.count}, but {sites} sites participate; set silos.count = {sites}")
    if not isinstance(method, CrossSilo):
        return [
            *found,
            f'method: "{name_of(method)}" is not supported between sites; use "cross-silo", or `fedrank run`',
        ]
    wanted = {
        "combine": "round-robin",
        "counts": "sketch",
        "grades": "like-own",
        "scaling": "own",
        "noise_in": "sketch",
        "find": "both-ends",
    }
    found += [
        f'method.{name}: must be "{value}" between sites; set it, or use `fedrank run`'
        for name, value in wanted.items()
        if getattr(method, name) != value
    ]
    found += [
        f"method.{name}: is supported only in a simulation; remove it, or use `fedrank run`"
        for name in ("steps", "k_share", "true_rows")
        if getattr(method, name) is not None
    ]
    if not method.noise > 0:
        found.append("method.noise: 0 would reveal the words of documents; use 1.0 or more")
    return found


def uses_keys(plan: Plan) -> bool:
    """Whether sites use the keys in the plan: for secure aggregation or sealed letters."""
    merge = None if plan.forests is None else plan.forests.merge
    return plan.silos is not None or plan.summed or (isinstance(merge, Histograms) and merge.secure)


def key_problems(plan: Plan, name: str = "", public: str = "") -> list[str]:
    """Reasons why the keys of a plan cannot be used; with the name and public key of a site, also for this site."""
    if unknown := [site.name for site in plan.sites if not site.identity]:
        what = "sealed letters need" if plan.silos is not None else "secure aggregation needs"
        return [f"the plan has no key of {', '.join(unknown)}, but {what} the keys of all sites"]
    if len({site.identity for site in plan.sites}) != len(plan.sites):
        return ["two sites of the plan have the same key, so one site could impersonate the other"]
    if public and plan.party(name).identity != public:
        return ["the key of this site in the plan is not its own"]
    return []


BROWSERS_ARE_NOT_USERS = (
    "data.person: the plan protects persons, but the users of this site's log are browsers (client_id): a person with "
    "two browsers would count as two; build the log again with `fedrank data build --person COLUMN`, or set person = "
    '"browser" in site.toml, which makes ε a promise per browser'
)


def data_problems(plan: Plan, data: SiteData) -> list[str]:
    """Reasons why a site with these settings of its data cannot train in a plan; queries and clicks are not read."""
    if plan.silos is not None:
        missing = data.documents is None
        return ["this site has no documents for a sketch; set data.documents in its site.toml"] if missing else []
    if plan.forests is not None:
        if data.letor is not None:
            return []
        return ["forests are trained on relevance labels, and this site has no LETOR file; set data.letor in site.toml"]
    if has_trait(plan.experiment.mechanism, "people") and data.log is not None and data.person == USER:
        return [BROWSERS_ARE_NOT_USERS] if data.are_browsers else []
    if data.learns:
        return []
    return ["this site has no queries for training; set data.letor or data.log in site.toml"]


def _of_log(experiment: FederatedExperiment, name: str) -> bool:
    """Whether a setting only states that clients are the users of a log, which is always true at sites."""
    return name == "partition" and experiment.arrival is not None and experiment.clients.partition == Users()


def too_few(experiment: FederatedExperiment, count: int) -> list[str]:
    """Rules that need more clients than there are, or than can be online together, one line each."""
    weak = without_guarantee(experiment.aggregator, count)
    found = [f"aggregator: {weak}"] if weak else []
    if experiment.arrival is not None and isinstance(
        getattr(experiment.mechanism, "placement", None), SecureAggregation
    ):
        found.append(
            "arrival: secure aggregation needs several sites at once, but an asynchronous run has one; add noise on "
            "the client"
        )
    return found


def _party(found: Any) -> PlannedSite:
    if not isinstance(found, dict) or set(found) != {"name", "clients", "identity"}:
        raise Refused("the entry of a site is not valid: it must have a name, clients and an identity")
    ids = found["clients"]
    if not isinstance(ids, list) or not ids or any(type(id) is not int or not 0 <= id < IDS for id in ids):
        raise Refused("the clients of a site must be a list of ids")
    name, identity = found["name"], found["identity"]
    if not isinstance(name, str):
        raise Refused("the name of a site must be a text")
    if not isinstance(identity, str) or not re.fullmatch("([0-9a-f]{64})?", identity):
        raise Refused(f"the key of {name!r} is not valid")
    return PlannedSite(name, tuple(ids), identity)


def _check_version(version: Any, protocol: Any) -> None:
    if (version, protocol) != (__version__, PROTOCOL):
        raise OtherVersion(
            f"the run was planned by fedrank {str(version)[:40]}, protocol {str(protocol)[:40]}, but this is "
            f"{__version__}, protocol {PROTOCOL}: finish the run with the version that started it, or start a new run"
        )


def _check_names(plan: Plan) -> None:
    """Refuse names that are unsafe in paths, terminals and logs."""
    for key, name in (("federation", plan.federation), *(("sites", site.name) for site in plan.sites)):
        try:
            check_name(name)
        except ValueError:
            raise Refused(
                f"{key}: {_quoted(name)} is not a valid name; use at most 64 letters a-z, digits, - and _, with no - "
                "or _ at the ends"
            ) from None
    parts = plan.name.split("/")
    safe = plan.name.isprintable() and "\\" not in plan.name and all(part.strip(".") for part in parts)
    if not safe or len(plan.name) > MAX_NAME:
        raise Refused(
            f"name: {_quoted(plan.name)} is not a valid name of a run; use at most {MAX_NAME} printable characters "
            "without empty parts, '.', '..' and backslashes"
        )


def _quoted(name: str) -> str:
    """A name from outside, in one line of limited length."""
    return ascii(name if len(name) <= 60 else f"{name[:60]}... ({len(name):,} characters)")


def check_plan(plan: Plan) -> None:
    _check_version(plan.version, plan.protocol)
    _check_names(plan)
    names, ids = [site.name for site in plan.sites], plan.clients
    if len(set(names)) != len(names) or len(set(ids)) != len(ids):
        raise Refused("two of its sites have the same name or id")
    if not plan.simulated and len(names) > MAX_SITES:
        raise Refused(f"it has {len(names):,} sites, but at most {MAX_SITES:,} are allowed")
    if not 1 <= plan.min_sites <= len(names):
        raise Refused(f"min_sites must be between 1 and {len(names)} (got {plan.min_sites})")
    if not 1 <= plan.features <= 1 << 20:
        raise Refused(f"features must be between 1 and {1 << 20:,} (got {plan.features})")
    if found := list(code_from_outside(plan.question)):
        raise Refused(f"it names code from outside fedrank, which is not executed at a site: {found[0]}")
    if not plan.simulated and len(ids) != len(names):
        raise Refused("a site has several clients, which is valid only in a simulation")
    found = []
    if plan.forests is not None:
        found = forest_problems(plan.forests, plan.simulated)
    elif plan.silos is not None:
        found = silo_problems(plan.silos, len(names))
        found += ["simulated: use `fedrank run` to simulate organisations with documents"] * plan.simulated
    else:
        _check_federation(plan)
    if found:
        raise Refused("; ".join(found))


def _check_federation(plan: Plan) -> None:
    experiment, ids = plan.experiment, plan.clients
    # Noise is divided among the clients that exist, and accounted for as many as the spec has.
    if experiment.clients.count != len(ids):
        raise Refused(f"its spec is for {experiment.clients.count} clients, but {len(ids)} participate")
    if plan.parameters > MAX_NUMBERS:
        raise Refused(f"the model is too large ({plan.parameters:,} parameters; at most {MAX_NUMBERS:,})")
    if has_trait(plan.federated.aggregator, "apart"):
        raise Refused("with this aggregator clients learn separately and send nothing")
    if not plan.simulated and (found := [*only_simulated(experiment), *too_few(experiment, len(ids))]):
        raise Refused("; ".join(found))
    if found := experiment.schedule_problems():
        raise Refused("; ".join(found))
    if plan.turns is not None and plan.secure_sum is not None:
        least, needed = len(ids) // plan.federated.dealt, plan.min_survivors
        if least < needed:
            raise Refused(
                f"clients.schedule: {len(ids)} clients dealt into {plan.rounds} rounds leave {least} in some, but a "
                f"sum of fewer than {needed} is not opened; use fewer rounds, or a number that divides {len(ids)}"
            )
    if plan.experiment.start is not None and not plan.simulated:
        raise Refused("it names a path, which is not allowed in a received spec")
