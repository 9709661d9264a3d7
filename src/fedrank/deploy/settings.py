"""Configuration files: `federation.toml` of a coordinator, and `site.toml` of each site.

A site's policy is its own, and the author of a plan cannot disable it: `Policy.objections` returns why a plan violates
it, and the site checks it first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from fedrank.data.logs import log_unit
from fedrank.data.normalise import NORMALISATIONS
from fedrank.deploy import releases
from fedrank.experiments.spec.experiment import SpecError
from fedrank.experiments.spec.families import SpecSection, name_of, read_fields
from fedrank.files import opened, write_atomic
from fedrank.names import did_you_mean
from fedrank.privacy.guarantees import OBSERVERS, Guarantee, up
from fedrank.privacy.mechanisms import PLACEMENTS, AtServer
from fedrank.ranking.learners import LEARNERS
from fedrank.ranking.measures import measure
from fedrank.toml import LONGEST, parse_toml, shown
from fedrank.trees.boosters import BOOSTERS
from fedrank.trees.histograms import Histograms
from fedrank.types import has_trait
from fedrank.value_checks import (
    LARGEST,
    Filled,
    Limit,
    Positive,
    at_least,
    at_most,
    checked,
    less_than,
    more_than,
    noting,
)

if TYPE_CHECKING:
    from fedrank.deploy.plan import Plan
    from fedrank.experiments.runner.privacy import Price
    from fedrank.experiments.spec.silo import SiloExperiment
    from fedrank.experiments.spec.trees import TreesExperiment

FEDERATION, SITE = "federation.toml", "site.toml"
LOCAL = "local"  # the name of a federation on one machine, for trying out
USER: Final = "user"
BROWSER: Final = "browser"  # values of data.person with a log
MAX_ID = (1 << 31) - 1
EVERY_LEARNER = (*LEARNERS, *BOOSTERS, "cross-silo")  # forests are listed by their booster
EVERY_PLACEMENT = tuple(PLACEMENTS)
USUAL_PLACEMENTS = ("client", "secure-aggregation")  # where noise is added; "server" would see updates without it

_HOST = re.compile(
    r"(?=.{1,253}$)([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
)

# A certificate's common name has at most 64 characters, which must be valid in file names everywhere.
CertificateName = Annotated[
    str,
    Limit(
        lambda text: bool(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,62}[A-Za-z0-9])?", text)),
        "certificates allow at most 64 letters a-z, digits, - and _, with no - or _ at the ends",
    ),
]
Organisation = Annotated[
    str,
    Limit(
        lambda text: bool(re.fullmatch(r"[A-Za-z0-9_]{1,64}", text)),
        "certificates allow at most 64 letters a-z, digits and _",
    ),
]
Email = Annotated[
    str,
    Limit(
        lambda text: (
            bool(re.fullmatch(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}", text))
            and len(text) <= 64
        ),
        'use an e-mail address of at most 64 characters, such as "anna@clinic.org"',
    ),
]
HostName = Annotated[
    str,
    Limit(
        lambda text: bool(_HOST.fullmatch(text)),
        'use the host name by which sites reach the server, such as "fl.clinics.org"',
    ),
]
ClientId = Annotated[int, at_least(0), at_most(MAX_ID)]
Role = Literal["project_admin", "org_admin", "lead", "member"]
Section = TypeVar("Section", bound=SpecSection)


@dataclass(frozen=True)
class SiteEntry(SpecSection):
    """A site of a federation. Its id is fixed, because randomness and charges are keyed by it."""

    name: CertificateName = field(metadata={"example": 'name = "clinic-a"'})
    organisation: Organisation = field(metadata={"example": 'organisation = "Clinic_A"'})
    id: ClientId = field(metadata={"example": "id = 0"})


@dataclass(frozen=True)
class Person(SpecSection):
    """A user who may send requests to the server, and the role."""

    name: Email = field(metadata={"example": 'name = "anna@clinic.org"'})
    organisation: Organisation = field(metadata={"example": 'organisation = "Clinic_A"'})
    role: Role = "lead"


@dataclass(frozen=True)
class FederationFile(SpecSection):
    """The sites of a federation, and the address of its server."""

    name: CertificateName = field(metadata={"example": 'name = "clinics"'})
    host: HostName = field(metadata={"example": 'host = "fl.clinics.org"'})
    port: Annotated[int, at_least(1), at_most(65535)] = field(metadata={"example": "port = 8002"})
    sites: tuple[SiteEntry, ...] = field(metadata={"example": "[[sites]], one per site"})
    people: tuple[Person, ...] = ()

    def problems(self) -> list[str]:
        found = [] if self.sites else ["sites: is empty; add one [[sites]] per site"]
        for what in ("name", "id"):
            values = [shown(getattr(site, what)).lower() for site in self.sites]
            other = "rename one of them" if what == "name" else "each site needs a different id"
            found += [
                f"sites[{place}].{what}: {value} is also used by site {self.sites[values.index(value)].name!r}, and "
                f"their messages could not be distinguished; {other}"
                for place, value in enumerate(values)
                if value in values[:place]
            ]
        names = [person.name.lower() for person in self.people]
        found += [
            f"people[{place}].name: {shown(self.people[place].name)} occurs twice; give each person one role"
            for place, name in enumerate(names)
            if name in names[:place]
        ]
        return found

    def site(self, name: str) -> SiteEntry:
        for entry in self.sites:
            if entry.name == name:
                return entry
        known = [entry.name for entry in self.sites]
        raise ValueError(f"federation {self.name!r} has no site {name!r}{did_you_mean(name, known)}")


@dataclass(frozen=True)
class SiteData(SpecSection):
    """A site's data: judged queries, a search log, or documents. They never leave the site."""

    letor: str | None = None  # file with features and relevance labels
    log: str | None = None  # folder of `fedrank data build`: logged lists and clicks
    documents: str | None = None  # for sketches: .jsonl or .tsv with id, title and text
    features: Positive | None = None  # of a LETOR file: number of features; None: the highest index
    names: str | None = None  # of a LETOR file: a file with the name of each feature, one per line
    top_grade: Positive | None = None  # of a LETOR file: highest label of the scale, 1, 2 or 4; None: from the data
    normalise: str | None = (
        None  # "none" or "query"; None: "none" for a LETOR file, fixed ranges for engine-1, else "query"
    )
    # The person of a query, for unit = "person". LETOR file: a key of the comments, such as patient in `# patient = 7`.
    # Log: "user", or "browser" if its users are browsers, and ε is a promise per browser.
    person: str | None = None
    test_share: Annotated[float, more_than(0), less_than(1)] | None = None  # share of the last queries, for evaluation
    given: str | None = None  # current ranking: "file", "random", "feature 7" or a feature's name; None: as known

    @property
    def normalised(self) -> str:
        return self.normalise or ("query" if self.log is not None else "none")

    @property
    def are_browsers(self) -> bool:
        """Whether users of the log are browsers, by the declaration of the site or by the log."""
        return self.log is not None and (self.person == BROWSER or log_unit(self.log) == BROWSER)

    @property
    def learns(self) -> bool:
        """Whether there are queries for training."""
        return self.letor is not None or self.log is not None

    def problems(self) -> list[str]:
        found = []
        given = [name for name in ("letor", "log", "documents") if getattr(self, name) is not None]
        to_learn_from = [name for name in given if name != "documents"]
        if len(to_learn_from) > 1:
            both = " and ".join(to_learn_from)
            found.append(f"data: {both} are both set; remove one of them")
        if self.normalise == "global":
            found.append(
                'data.normalise: "global" needs the smallest and largest values of all sites, which would reveal them; '
                'use "query" or "none"'
            )
        elif self.normalise is not None and self.normalise not in NORMALISATIONS:
            found.append(
                f"data.normalise: unknown value {self.normalise!r}{did_you_mean(self.normalise, NORMALISATIONS)}"
            )
        for name in ("features", "names", "top_grade"):
            if getattr(self, name) is not None and self.letor is None:
                found.append(f"data.{name}: applies only to a LETOR file, and letor is not set; remove it")
        if self.log is not None and self.person not in (None, USER, BROWSER):
            found.append(f'data.person: {shown(self.person)} is not "{USER}" or "{BROWSER}", which a log has; use one')
        if self.letor is not None and self.person is not None and not re.fullmatch(r"[\w.-]+", self.person):
            found.append(f"data.person: {shown(self.person)} is not a key of a comment; use one word, such as patient")
        if not self.learns:
            for name in ("normalise", "person", "test_share", "given"):
                if getattr(self, name) is not None:
                    found.append(
                        f"data.{name}: applies only to queries, and there are none; set letor or log, or remove it"
                    )
        for name in given:
            path = Path(getattr(self, name))
            if not (path.is_dir() if name == "log" else path.is_file()):
                what = "folder" if name == "log" else "file"
                found.append(
                    f"data.{name}: the {what} {path} does not exist; correct the path, which is relative to the folder "
                    f"of {SITE}"
                )
        if self.names is not None and not Path(self.names).is_file():
            found.append(f"data.names: the file {self.names} does not exist; correct the path, or remove it")
        return found


def _known(names: Sequence[str], what: str) -> Limit:
    return Limit(
        lambda values: set(values) <= set(names), f"use {what} from {', '.join(shown(name) for name in names)}"
    )


@dataclass(frozen=True)
class Policy(SpecSection):
    """What a site accepts. Everything else is refused, regardless of who requests it."""

    learners: Annotated[Filled[str], _known(EVERY_LEARNER, "learners")] = field(
        metadata={"example": 'learners = ["pdgd"]'}
    )
    placements: Annotated[Filled[str], _known(EVERY_PLACEMENT, "placements")] = (
        USUAL_PLACEMENTS  # where noise may be added
    )
    # What must be protected: all data of the site, all data of each person, or each query.
    unit: Literal["site", "person", "query"] = "site"
    largest_epsilon: Annotated[float, more_than(0)] | None = None  # ε over all runs, at this δ
    delta: Annotated[float, more_than(0), less_than(1)] = 1e-5
    unprotected: bool = False  # whether updates may be sent without noise
    history: bool = False  # whether the coordinator may record updates for unlearning
    most_rounds: Positive = 1000  # maximum number of rounds of one run
    largest_clip: Annotated[float, more_than(0)] | None = None  # maximum mechanism.clip, the norm of an update
    largest_rate: Annotated[float, more_than(0)] | None = None  # maximum learning rate of the learner or booster
    min_sites: Positive = 3  # minimum number of sites of a run, including this one
    measures: tuple[str, ...] = ()  # that may be reported, as sums over people with noise
    plain_measures: bool = False  # whether sums of these measures over queries may be sent without noise instead
    plans_per_year: Positive = 4  # maximum number of plans in a year on which the gate of this site decides
    accept: Literal["listed", "within-policy"] = "listed"  # listed: only plans that a user accepted at this site

    def problems(self) -> list[str]:
        found: list[str] = []
        for place, text in enumerate(self.measures):
            with noting(found, f"policy.measures[{place}]"):
                measure(text)
        if self.largest_epsilon is None and not self.unprotected:
            found.append(
                "policy.largest_epsilon: is missing; set the total ε of all runs, such as 8.0, or unprotected = true "
                "if updates may be sent without noise"
            )
        return found

    @property
    def released_measures(self) -> tuple[str, ...]:
        """Measures that may be reported as noised sums over people."""
        return () if self.plain_measures else self.measures

    def objections(self, plan: Plan) -> list[str]:
        """Reasons why this site does not participate in a plan, one sentence each; empty if it does."""
        question: Any = plan.question
        found = [] if plan.simulated or plan.forests is not None or plan.silos is not None else _of_simulation(plan)
        key = "booster" if plan.forests is not None else "method" if plan.silos is not None else "learner"
        found += _unlisted(f"{key}.name", name_of(getattr(question, key)), "learners", self.learners)
        if plan.forests is None and question.rounds > self.most_rounds:
            found.append(
                f"rounds: {question.rounds:,} is more than policy.most_rounds = {self.most_rounds:,}; use fewer in the "
                "plan, or increase it"
            )
        found += self._objections_to_rate(key, getattr(question, key)) + self._objections_to_few(plan)
        if plan.forests is not None:
            return found + self._objections_to_forests(plan, plan.forests.merge)
        if plan.silos is not None:
            return found + self._objections_to_silos(plan.silos)
        if question.record_every and not self.history:
            found.append(
                f"record_every: {question.record_every} lets the coordinator store what this site sends, but "
                "policy.history = false; use 0 in the plan, or allow it"
            )
        gate = question.gate
        if gate is not None and gate.plans < self.plans_per_year:
            found.append(
                f"gate.plans: the error rate of a year is divided by {gate.plans}, but policy.plans_per_year = "
                f"{self.plans_per_year}; use at least this number in the plan, or decrease it"
            )
        return found + self._objections_to_clip(plan) + self._objections_to_protection(plan)

    def _objections_to_rate(self, key: str, method: Any) -> list[str]:
        rate = getattr(method, "rate", None)  # evolution has none
        if self.largest_rate is None or rate is None or rate <= self.largest_rate:
            return []
        return [
            f"{key}.rate: {rate:g} is more than policy.largest_rate = {self.largest_rate:g}; use a smaller one in the "
            "plan, or increase it"
        ]

    def _objections_to_clip(self, plan: Plan) -> list[str]:
        """Reasons why an update may be longer than this site allows; rewards have no norm."""
        experiment = plan.experiment
        if self.largest_clip is None or has_trait(experiment.learner, "rewards"):
            return []
        clip = getattr(experiment.mechanism, "clip", None)
        if clip is None:
            return [
                f"mechanism.clip: is missing, so the norm of an update has no limit, but policy.largest_clip = "
                f"{self.largest_clip:g}; use gaussian or laplace noise with clip in the plan, or remove it"
            ]
        if clip <= self.largest_clip:
            return []
        return [
            f"mechanism.clip: {clip:g} is more than policy.largest_clip = {self.largest_clip:g}; use a smaller one in "
            "the plan, or increase it"
        ]

    def _objections_to_few(self, plan: Plan) -> list[str]:
        if len(plan.sites) < self.min_sites:
            return [
                f"sites: {len(plan.sites)} participate, but policy.min_sites = {self.min_sites}, because a smaller "
                "group reveals more about each site; invite more, or decrease it"
            ]
        if plan.summed and plan.synchronous:
            clients = plan.experiment.clients
            together = int(plan.cohort)
            if together < self.min_sites:
                what = "schedule: dealt" if clients.schedule == "dealt" else f"participation: {clients.participation:g}"
                return [
                    f"clients.{what} gives sums of {together} sites, but "
                    f"policy.min_sites = {self.min_sites}; use more sites in each round, or decrease it"
                ]
        return []

    def _objections_to_forests(self, plan: Plan, merge: Any) -> list[str]:
        if isinstance(merge, Histograms) and merge.private != "no":
            placement = "secure-aggregation" if merge.secure else "client"
            found = _unlisted("merge.secure", placement, "placements", self.placements)
            return found + self._objections_to_prices(plan, "merge", "trees")
        if self.unprotected:
            return []
        return [
            "merge: forests are sent without noise, and their thresholds are values between those of this site's "
            "documents; use another learner with noise in the plan, or set policy.unprotected = true"
        ]

    def _objections_to_silos(self, experiment: SiloExperiment) -> list[str]:
        found = []
        if not self.unprotected:
            found.append(
                "method: sketches have noise, but the weights that sites pass on have none, and they reveal "
                "information about this site's queries and documents; set policy.unprotected = true to allow it"
            )
        sketcher: Any = getattr(experiment.method, "sketcher", None)
        cost = 0.0 if sketcher is None else sketcher.privacy(self.delta)
        if self.largest_epsilon is not None and cost > self.largest_epsilon:
            found.append(
                f"method.noise: a sketch costs ε = {up(cost)} at δ = {self.delta:g} for one occurrence of a word, but "
                f"policy.largest_epsilon = {self.largest_epsilon:g} for all sketches; use more noise in the plan, or "
                "increase it"
            )
        return found

    def _objections_to_protection(self, plan: Plan) -> list[str]:
        mechanism: Any = plan.experiment.mechanism
        if mechanism is None:
            if self.unprotected:
                return []
            return [
                "mechanism: is missing, so updates are sent without noise and reveal clicks; add noise in the plan, or "
                "set policy.unprotected = true"
            ]
        found = _unlisted("mechanism.placement", placement_of(mechanism), "placements", self.placements)
        if not plan.simulated and getattr(getattr(mechanism, "placement", None), "sum", "protocol") == "ideal":
            found.append(
                'mechanism.placement.sum: "ideal" simulates secure aggregation without its protocol and hides nothing '
                'between real sites; use "protocol" in the plan'
            )
        return found + self._objections_to_prices(plan, "mechanism", "rounds")

    def _objections_to_prices(self, plan: Plan, where: str, fewer: str) -> list[str]:
        """Reasons why the guarantees of a plan do not meet this site's requirements."""
        try:
            priced = plan_prices(plan, self.delta, self.released_measures)
        except ValueError as problem:  # such as noise that cannot be divided
            return [f"{where}: {line}" for line in str(problem).splitlines()]
        found, unit = list[str](), priced[0].guarantee.unit
        enough = {"site": ("client",), "person": ("person", "client"), "query": ("query", "person", "client")}
        if unit not in enough[self.unit]:
            asked = '" or "'.join(enough[self.unit])
            found.append(
                f'{where}.unit: "{unit}" protects less than policy.unit = "{self.unit}"; use "{asked}" in the plan'
            )
        mechanism: Any = getattr(plan.question, "mechanism", None)
        trusted = isinstance(getattr(mechanism, "placement", None), AtServer)  # which `placements` must list
        guarantees = [one.guarantee for one in priced]
        bare = [one for one in guarantees if one.event is None and not (trusted and one.against == "server")]
        if bare and not self.unprotected:
            found.append(
                f"{where}: {name_of(mechanism)!r} gives no guarantee against the {bare[0].against} "
                f"({bare[0].because}); use gaussian or laplace noise in the plan, or set policy.unprotected = true"
            )
        cost = max((one.total for one in priced if one.guarantee.event is not None), default=0.0)
        if self.largest_epsilon is not None and cost > self.largest_epsilon:
            found.append(
                f"{where}: this run alone would cost ε = {up(cost)} at δ = {self.delta:g}, but policy.largest_epsilon "
                f"= {self.largest_epsilon:g} for all runs; use more noise or fewer {fewer} in the plan, or increase it"
            )
        return found


# The policy of sites of a trial on one machine: people are simulated and need no protection.
TRIAL = Policy(
    learners=EVERY_LEARNER,
    placements=EVERY_PLACEMENT,
    unit="person",
    unprotected=True,
    history=True,
    most_rounds=LARGEST,
    min_sites=1,
    accept="within-policy",
)


@dataclass(frozen=True)
class SiteSettings(SpecSection):
    """The content of `site.toml`: the site's identity, data and policy."""

    name: CertificateName = field(metadata={"example": 'name = "clinic-a"'})
    id: ClientId = field(metadata={"example": "id = 0"})
    federation: CertificateName = field(metadata={"example": 'federation = "clinics"'})
    data: SiteData = field(metadata={"example": '[data] with letor = "train.txt"'})
    policy: Policy = field(metadata={"example": '[policy] with learners = ["pdgd"]'})
    simulated: bool = False  # a trial on one machine that simulates the people of a spec
    second_place: str = ""  # folder for a copy of the journal, outside this one; "": the state folder of the user

    def problems(self) -> list[str]:
        if self.simulated or self.data.learns or self.data.documents is not None:
            return []
        return ["data: is empty; set letor, log or documents"]

    def objections(self, plan: Plan) -> list[str]:
        """Reasons why this site does not participate in a plan; empty if it does after acceptance."""
        found = []
        if plan.federation != self.federation:
            found.append(
                f"federation: the plan is for {plan.federation!r}, but this site belongs to {self.federation!r}; "
                "ask the sender of the plan"
            )
        if plan.simulated and not self.simulated:
            found.append(
                "simulated: the plan is a trial on one machine, but this site has data of real people; run a trial "
                "with `fedrank deploy run SPEC --local 3`, a real run without --local"
            )
        mine = next((party for party in plan.sites if party.name == self.name), None)
        if mine is None:
            listed = ", ".join(party.name for party in plan.sites)
            found.append(f"sites: {self.name!r} is not in the plan ({listed}); ask the coordinator to include it")
        elif not plan.simulated and mine.clients != (self.id,):
            ids = ", ".join(map(str, mine.clients))
            found.append(
                f"sites: the plan has id {ids} for {self.name!r}, but {SITE} has id = {self.id}, by which charges are "
                "recorded; ask the coordinator"
            )
        return found + self.policy.objections(plan)


def searches_of(plan: Plan, id: int) -> int:
    """The number of interactions of a client per round."""
    searches = plan.experiment.clients.searches
    return int(searches[id % len(searches)])


def placement_of(mechanism: Any) -> str:
    """The name of the placement of a mechanism's noise; without a placement it is the client."""
    place = getattr(mechanism, "placement", None)
    return "client" if place is None else name_of(place)


def site_guarantees(plan: Plan) -> list[Guarantee]:
    """The guarantees of a plan for a site. They do not rely on client sampling, which the coordinator could bypass."""
    if plan.forests is not None:
        return _guarantees_of_trees(plan, plan.forests)
    experiment = plan.experiment
    if has_trait(experiment.mechanism, "hides cohort"):
        experiment = replace(experiment, clients=replace(experiment.clients, participation=1.0))
    found = experiment.guarantees(plan.features)
    # The ledger of a site has one row for all its people; each of them participates once if they are dealt.
    return [replace(one, paid="once") for one in found] if experiment.deals_persons else found


def _guarantees_of_trees(plan: Plan, experiment: TreesExperiment) -> list[Guarantee]:
    """The cost of one release of trees with noise, against every observer of the result."""
    merge = experiment.merge
    noise = merge.tree_noise(len(plan.clients)) if isinstance(merge, Histograms) else None
    if noise is None:
        return []
    rules = Histograms.rules(experiment.booster)
    guarantee = replace(noise.priced(plan.features, rules.bins, rules.fraction), paid="participation")
    return [replace(guarantee, against=each) for each in OBSERVERS]


def plan_prices(plan: Plan, delta: float, measures: Sequence[str] = ()) -> list[Price]:
    """The cost of a plan for the site that participates most often (with high probability), against each observer.

    It includes the sums that are released besides rounds, if the site reports these measures.
    """
    from fedrank.experiments.runner.privacy import Price

    if plan.forests is not None:
        times = tree_releases(plan)
        return Price.of_each(site_guarantees(plan), times, times, delta)
    experiment = plan.experiment
    # The arrival times are unknown: assume every round.
    often = experiment.rounds if experiment.arrival is not None else experiment.most_participations()
    rounds = Price.of_each(site_guarantees(plan), often, experiment.rounds, delta)
    return [one.with_releases(releases.release_charges(plan, measures).values()) for one in rounds]


def tree_releases(plan: Plan) -> int:
    """Number of charges of a run that trains trees with noise, without repeated requests."""
    assert plan.forests is not None
    merge = plan.forests.merge
    assert isinstance(merge, Histograms)
    noise = merge.tree_noise(len(plan.clients))
    assert noise is not None
    return plan.forests.booster.trees * noise.releases


def read_federation(path: str | Path) -> FederationFile:
    """Read the `federation.toml` of a coordinator; errors name their line."""
    return _read(FederationFile, Path(path))


def no_home(folder: Path) -> FileNotFoundError:
    """The error for a folder that belongs neither to a site nor to a coordinator."""
    return FileNotFoundError(
        f"{folder} has neither {SITE} nor {FEDERATION}; give the folder of a site or of a coordinator as --home"
    )


def read_site(path: str | Path) -> SiteSettings:
    """Read the `site.toml` of a site or its folder; its paths are relative to the file."""
    path = Path(path)
    return _read(SiteSettings, path if path.is_file() else path / SITE)


def _read(kind: type[Section], path: Path) -> Section:
    try:
        with opened(path) as file:
            text = file.read(LONGEST + 1).decode("utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path.parent} has no {path.name}; give its path, or --home") from None
    except UnicodeDecodeError:
        raise SpecError(["is not UTF-8 text; save it with this encoding"], str(path)) from None
    try:
        tables = parse_toml(text)
    except ValueError as problem:
        raise SpecError([f"is not TOML: {problem}"], str(path)) from None
    _resolve(tables.get("data"), path.parent)
    problems: list[str] = []
    values = read_fields(kind, tables, "", problems)
    if not problems:
        section = kind(**values)
        problems = section.problems()
    if problems:
        raise SpecError([_with_line(text, problem) for problem in problems], str(path))
    return section


def _resolve(data: Any, folder: Path) -> None:
    for name in ("letor", "log", "documents", "names"):
        if isinstance(data, dict) and isinstance(data.get(name), str) and data[name]:
            data[name] = str((folder / data[name]).absolute())


def _with_line(text: str, problem: str) -> str:
    """Prefix a problem with the line number of its key, if it can be found."""
    place = re.match(r"[\w.\[\]-]+(?=:)", problem)
    line = place and line_of(text, place[0])
    return f"line {line}: {problem}" if line else problem


def line_of(text: str, place: str) -> int | None:
    """The line of a key such as `sites[1].name`, or else of the table to which it belongs.

    >>> line_of('port = 1\\n[[sites]]\\nid = 0\\n[[sites]]\\nid = 0\\n', "sites[1].id")
    5
    """
    parts = re.fullmatch(r"(?:(\w+)(?:\[(\d+)\])?\.)?(\w+)(?:\[(\d+)\])*(?:\..*)?", place)
    if parts is None:
        return None
    table, row, key = parts[1], int(parts[2] or 0), parts[3]
    if table is None and parts[4]:  # a whole table, such as sites[1]
        table, row, key = key, int(parts[4]), ""
    inside, rows, best = None, 0, None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)\s*([\w.-]+)\s*\]", line):
            inside = header[2]
            if inside == table:
                rows += 1
                if rows == row + 1:
                    best = number
            elif inside == key and table is None:
                return number
            continue
        written = re.match(r"\s*\"?([\w-]+)\"?\s*=", line)
        if written is None:
            continue
        here = inside == table and (table is None or rows == row + 1)
        if here and written[1] == key:
            return number
        if inside is None and written[1] == table:
            best = number
    return best


def _unlisted(key: str, value: str, listed_as: str, listed: Sequence[str]) -> list[str]:
    """A message if the policy does not list a value; otherwise empty."""
    if value in listed:
        return []
    names = ", ".join(shown(name) for name in listed)
    return [
        f"{key}: {shown(value)} is not in policy.{listed_as} = [{names}]; use one of these in the plan, or add it to "
        "the list"
    ]


def _of_simulation(plan: Plan) -> list[str]:
    from fedrank.deploy.plan import only_simulated

    found = only_simulated(plan.experiment)
    if plan.experiment.start is not None:
        found.append(
            f"start: {shown(plan.experiment.start)} names a path, which is not allowed in a received plan; remove it"
        )
    return found


SITE_TEMPLATE = """\
# Identity of this site, as set by the coordinator.
name       = {name}
id         = {id}
federation = {federation}

# Data of this site. They never leave this machine. Paths are relative to the folder of this file.
[data]
# One of: judged queries with features (LETOR), or logged lists and clicks (a folder of `fedrank data build`).
# letor      = "train.txt"
# log        = "searches"
# documents  = "corpus.jsonl"   # for sketches: id, title and text; queries.jsonl and qrels.tsv are in the same folder
# names      = "names.txt"      # of a LETOR file: names of its features, one per line
# top_grade  = 4                # of a LETOR file: the highest relevance label of the scale, if no query here has it
# normalise  = "query"          # "none" or "query"; must be the same at all sites
# person     = "patient"        # person of a query: a key of LETOR comments (`# patient = 7`); log: "user", "browser"
# test_share = 0.2              # share of the last queries, for evaluation at this site; default: all are for training

# What this site accepts. Everything else is refused, regardless of who requests it.
[policy]
learners        = ["pdgd"]                  # of {learners}
placements      = ["client", "secure-aggregation"]  # where noise may be added; "server" would see updates without it
unit            = "site"                    # what must be protected: all data of the site, or all data of each "person"
largest_epsilon = 8.0                       # total ε of all runs
delta           = 1e-5                      # probability that the guarantee fails; far below 1 / people
unprotected     = false                     # may updates be sent without noise?
history         = false                     # may the coordinator record updates for unlearning?
most_rounds     = 1000                      # maximum per run
# largest_clip  = 1.0                       # maximum norm of an update (mechanism.clip); default: no limit
# largest_rate  = 0.1                       # maximum learning rate; default: no limit
min_sites       = 3                         # minimum number of sites of a run, including this one
measures        = []                        # measures that may be reported, such as "ndcg@10"; noised if unit is person
plain_measures  = false                     # may they be reported without noise, which no ε covers?
plans_per_year  = 4                         # maximum number of models in a year on which the gate decides
accept          = "listed"                  # or "within-policy": participate in every plan that fits this policy
"""


def site_template(name: str, id: int, federation: str) -> str:
    """A `site.toml` template."""
    learners = ", ".join(map(shown, EVERY_LEARNER))
    return SITE_TEMPLATE.format(name=shown(name), id=id, federation=shown(federation), learners=learners)


def write_template(folder: Path, name: str, id: int, federation: str) -> Path:
    """Write a `site.toml` template into a folder unless one exists."""
    path = Path(folder) / SITE
    if not path.exists():
        write_atomic(path, site_template(name, id, federation), private=True)
    return path


def new_entry(name: str, organisation: str, id: int) -> SiteEntry:
    """A site that is invited later, checked like those in `federation.toml`."""
    problems: list[str] = []
    values = read_fields(SiteEntry, {"name": name, "organisation": organisation, "id": id}, "", problems)
    if problems:
        raise SpecError(problems)
    return SiteEntry(**values)


def check_name(name: str) -> str:
    """Check that a name is valid in certificates, file names and `site.toml`."""
    found: str = checked(CertificateName, name, "name")
    return found
