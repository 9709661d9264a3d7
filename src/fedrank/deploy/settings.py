"""What people write: `federation.toml`, by which a coordinator says who takes part, and `site.toml` of each site.

A site's policy is its own. Whoever plans a run cannot turn it off: `Policy.objections` says why a plan does not fit it,
and the site asks before it does anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from fedrank.data.normalise import NORMALISATIONS
from fedrank.experiments.spec.experiment import SpecError
from fedrank.experiments.spec.families import SpecSection, name_of, read_fields
from fedrank.files import opened, write_atomic
from fedrank.names import did_you_mean
from fedrank.privacy.guarantees import OBSERVERS, Guarantee, up
from fedrank.privacy.mechanisms import PLACEMENTS, AtServer
from fedrank.ranking.learners import LEARNERS, Pdgd
from fedrank.ranking.measures import measure
from fedrank.toml import LONGEST, parse_toml, shown
from fedrank.trees.boosters import BOOSTERS
from fedrank.trees.histograms import Histograms
from fedrank.types import has_trait
from fedrank.value_checks import (
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
MAX_ID = (1 << 31) - 1
MIN_SEARCHES = 30  # behind an update of one person
EVERY_LEARNER = (*LEARNERS, *BOOSTERS, "cross-silo")  # forests are listed by their booster
EVERY_PLACEMENT = tuple(PLACEMENTS)
USUAL_PLACEMENTS = ("client", "secure-aggregation")  # who adds noise; "server" would see updates without it

_HOST = re.compile(
    r"(?=.{1,253}$)([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
)

# What a certificate can carry: a common name of 64 letters at most, of which a file name can be made everywhere.
CertificateName = Annotated[
    str,
    Limit(
        lambda text: bool(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,62}[A-Za-z0-9])?", text)),
        "no certificate can carry it; use at most 64 letters a-z, digits, - and _, with no - or _ at the ends",
    ),
]
Organisation = Annotated[
    str,
    Limit(
        lambda text: bool(re.fullmatch(r"[A-Za-z0-9_]{1,64}", text)),
        "no certificate can carry it; use at most 64 letters a-z, digits and _",
    ),
]
Email = Annotated[
    str,
    Limit(
        lambda text: (
            bool(re.fullmatch(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}", text))
            and len(text) <= 64
        ),
        'people are known by an e-mail address of at most 64 letters, such as "anna@clinic.org"',
    ),
]
HostName = Annotated[
    str,
    Limit(lambda text: bool(_HOST.fullmatch(text)), 'give the name by which sites reach it, such as "fl.clinics.org"'),
]
ClientId = Annotated[int, at_least(0), at_most(MAX_ID)]
Role = Literal["project_admin", "org_admin", "lead", "member"]
Section = TypeVar("Section", bound=SpecSection)


@dataclass(frozen=True)
class SiteEntry(SpecSection):
    """A site of a federation. Its id is written, since chance and charges are keyed by it for ever."""

    name: CertificateName = field(metadata={"example": 'name = "clinic-a"'})
    organisation: Organisation = field(metadata={"example": 'organisation = "Clinic_A"'})
    id: ClientId = field(metadata={"example": "id = 0"})


@dataclass(frozen=True)
class Person(SpecSection):
    """Somebody who may ask the server for something, and in which role."""

    name: Email = field(metadata={"example": 'name = "anna@clinic.org"'})
    organisation: Organisation = field(metadata={"example": 'organisation = "Clinic_A"'})
    role: Role = "lead"


@dataclass(frozen=True)
class FederationFile(SpecSection):
    """Who takes part, and where they meet."""

    name: CertificateName = field(metadata={"example": 'name = "clinics"'})
    host: HostName = field(metadata={"example": 'host = "fl.clinics.org"'})
    port: Annotated[int, at_least(1), at_most(65535)] = field(metadata={"example": "port = 8002"})
    sites: tuple[SiteEntry, ...] = field(metadata={"example": "[[sites]] for each of them"})
    people: tuple[Person, ...] = ()

    def problems(self) -> list[str]:
        found = [] if self.sites else ["sites: there are none; write [[sites]] for each of them"]
        for what in ("name", "id"):
            values = [shown(getattr(site, what)).lower() for site in self.sites]
            other = "call one of them otherwise" if what == "name" else "each needs an id of its own"
            found += [
                f"sites[{place}].{what}: {value} is that of site {self.sites[values.index(value)].name!r}, too, and "
                f"messages of one would pass for the other's; {other}"
                for place, value in enumerate(values)
                if value in values[:place]
            ]
        names = [person.name.lower() for person in self.people]
        found += [
            f"people[{place}].name: {shown(self.people[place].name)} stands there twice; give each person one role"
            for place, name in enumerate(names)
            if name in names[:place]
        ]
        return found

    def site(self, name: str) -> SiteEntry:
        for entry in self.sites:
            if entry.name == name:
                return entry
        known = [entry.name for entry in self.sites]
        raise ValueError(f"no site {name!r} in federation {self.name!r}{did_you_mean(name, known)}")


@dataclass(frozen=True)
class SiteData(SpecSection):
    """What a site has: judged queries, a search log, recorded searches, or documents. It never leaves the site."""

    letor: str | None = None  # file with features and grades
    log: str | None = None  # folder of `fedrank logs build`: logged lists and clicks
    impressions: str | None = None  # folder of lists that one person was shown, with clicks; see `recorded_lists.py`
    documents: str | None = None  # for sketches: .jsonl or .tsv with id, title and text
    features: Positive | None = None  # of a LETOR file: how many there are; None: the highest index counts
    names: str | None = None  # of a LETOR file: a file with the name of each feature, one a line
    top_grade: Positive | None = None  # of a LETOR file: highest of the scale, 1, 2 or 4; None: as high as any it has
    normalise: str | None = None  # "none" or "query"; None: "none" for a LETOR file, fixed for engine-1, or "query"
    # Whose a query is, for unit = "person". Of a LETOR file: a key of the comments, such as patient in `# patient = 7`.
    # Of a log: "user".
    person: str | None = None
    test_share: Annotated[float, more_than(0), less_than(1)] | None = None  # last queries, by which quality is measured
    given: str | None = None  # what users have now: "file", "random", "feature 7" or a feature's name; None: as known

    @property
    def normalised(self) -> str:
        return self.normalise or ("query" if self.log is not None else "none")

    @property
    def learns(self) -> bool:
        """Whether there are queries to learn from again and again; recorded searches are learnt from once."""
        return self.letor is not None or self.log is not None

    def problems(self) -> list[str]:
        found = []
        given = [name for name in ("letor", "log", "impressions", "documents") if getattr(self, name) is not None]
        to_learn_from = [name for name in given if name != "documents"]
        if len(to_learn_from) > 1:
            both = " and ".join(to_learn_from)
            found.append(f"data: has both {both}, and nobody could say which counts; leave out one of them")
        if self.normalise == "global":
            found.append(
                'data.normalise: "global" needs the smallest and largest values of all sites, which would tell them; '
                'use "query" or "none"'
            )
        elif self.normalise is not None and self.normalise not in NORMALISATIONS:
            found.append(f"data.normalise: no {self.normalise!r}{did_you_mean(self.normalise, NORMALISATIONS)}")
        for name in ("features", "names", "top_grade"):
            if getattr(self, name) is not None and self.letor is None:
                found.append(f"data.{name}: is a setting of a LETOR file, and there is none; leave it out")
        if self.log is not None and self.person not in (None, "user"):
            found.append(f'data.person: {shown(self.person)} is no column of a log; use "user"')
        if self.letor is not None and self.person is not None and not re.fullmatch(r"[\w.-]+", self.person):
            found.append(f"data.person: {shown(self.person)} is no key of a comment; write one word, such as patient")
        if not self.learns:
            for name in ("normalise", "person", "test_share", "given"):
                if getattr(self, name) is not None:
                    found.append(
                        f"data.{name}: is about queries, and there are none; set letor or log, or leave it out"
                    )
        for name in given:
            path = Path(getattr(self, name))
            is_folder = name in ("log", "impressions")
            if not (path.is_dir() if is_folder else path.is_file()):
                what = "folder" if is_folder else "file"
                found.append(f"data.{name}: no {what} {path}; mend the path, which is seen from the folder of {SITE}")
        if self.names is not None and not Path(self.names).is_file():
            found.append(f"data.names: no file {self.names}; mend the path, or leave it out")
        return found


def _known(names: Sequence[str], what: str) -> Limit:
    return Limit(lambda values: set(values) <= set(names), f"list {what} of {', '.join(shown(name) for name in names)}")


@dataclass(frozen=True)
class Policy(SpecSection):
    """What a site agrees to. Everything that is not allowed here is refused, whoever asks."""

    learners: Annotated[Filled[str], _known(EVERY_LEARNER, "learners")] = field(
        metadata={"example": 'learners = ["pdgd"]'}
    )
    placements: Annotated[Filled[str], _known(EVERY_PLACEMENT, "placements")] = (
        USUAL_PLACEMENTS  # where noise may be added
    )
    # What must be protected: all that the site has, all of each person, or each query.
    unit: Literal["site", "person", "query"] = "site"
    largest_epsilon: Annotated[float, more_than(0)] | None = None  # ε over all runs, at this δ
    delta: Annotated[float, more_than(0), less_than(1)] = 1e-5
    unprotected: bool = False  # whether updates may leave without noise
    history: bool = False  # whether the coordinator may record updates, to unlearn from
    most_rounds: Positive = 1000  # of one run
    min_sites: Positive = 3  # of a run, this one included
    measures: tuple[str, ...] = ()  # sums over own queries that may be reported; none
    accept: Literal["listed", "within-policy"] = "listed"  # listed: only plans that somebody here accepted

    def problems(self) -> list[str]:
        found: list[str] = []
        for place, text in enumerate(self.measures):
            with noting(found, f"policy.measures[{place}]"):
                measure(text)
        if self.largest_epsilon is None and not self.unprotected:
            found.append(
                "policy.largest_epsilon: is missing; write the ε that all runs together may cost, such as 8.0, or "
                "unprotected = true if updates may leave without noise"
            )
        return found

    def objections(self, plan: Plan) -> list[str]:
        """Why this site does not take part in a plan, one sentence each; nothing: it does."""
        question: Any = plan.question
        found = [] if plan.simulated or plan.forests is not None or plan.silos is not None else _of_simulation(plan)
        key = "booster" if plan.forests is not None else "method" if plan.silos is not None else "learner"
        found += _unlisted(f"{key}.name", name_of(getattr(question, key)), "learners", self.learners)
        if plan.forests is None and question.rounds > self.most_rounds:
            found.append(
                f"rounds: {question.rounds:,} is more than policy.most_rounds = {self.most_rounds:,}; plan fewer, or "
                "raise it"
            )
        found += self._objections_to_few(plan)
        if plan.forests is not None:
            return found + self._objections_to_forests(plan, plan.forests.merge)
        if plan.silos is not None:
            return found + self._objections_to_silos(plan.silos)
        if question.record_every and not self.history:
            found.append(
                f"record_every: {question.record_every} lets the coordinator keep what this site sends, and "
                "policy.history = false; plan with 0, or allow it"
            )
        return found + self._objections_to_protection(plan)

    def _objections_to_few(self, plan: Plan) -> list[str]:
        if len(plan.sites) < self.min_sites:
            return [
                f"sites: {len(plan.sites)} take part, and policy.min_sites = {self.min_sites}, since fewer tell more "
                "of each; invite more, or lower it"
            ]
        if plan.summed and plan.in_step:
            clients = plan.experiment.clients
            together = int(plan.cohort)
            if together < self.min_sites:
                return [
                    f"clients.participation: {clients.participation:g} makes sums of {together} sites, and "
                    f"policy.min_sites = {self.min_sites}; let more take part in a round, or lower it"
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
            "merge: forests leave as they are, and their thresholds lie between values of this site's documents; "
            "no noise can protect them here: plan another learner with noise, or set policy.unprotected = true"
        ]

    def _objections_to_silos(self, experiment: SiloExperiment) -> list[str]:
        found = []
        if not self.unprotected:
            found.append(
                "method: sketches are noised, but the weights that go from site to site are not, and they tell of this "
                "site's queries and documents; set policy.unprotected = true if they may"
            )
        sketcher: Any = getattr(experiment.method, "sketcher", None)
        cost = 0.0 if sketcher is None else sketcher.privacy(self.delta)
        if self.largest_epsilon is not None and cost > self.largest_epsilon:
            found.append(
                f"method.noise: a sketch costs ε = {up(cost)} at δ = {self.delta:g} for one occurrence of a word, and "
                f"policy.largest_epsilon = {self.largest_epsilon:g} is for all sketches; plan with more noise, or "
                "raise it"
            )
        return found

    def _objections_to_protection(self, plan: Plan) -> list[str]:
        mechanism: Any = plan.experiment.mechanism
        if mechanism is None:
            if self.unprotected:
                return []
            return [
                "mechanism: there is none, so that updates leave as they are and clicks can be read from them; plan "
                "with noise, or set policy.unprotected = true"
            ]
        found = _unlisted("mechanism.placement", placement_of(mechanism), "placements", self.placements)
        if not plan.simulated and getattr(getattr(mechanism, "placement", None), "sum", "protocol") == "ideal":
            found.append(
                'mechanism.placement.sum: "ideal" is secure aggregation without the protocol, which hides nothing '
                'between real sites; plan with "protocol"'
            )
        return found + self._objections_to_prices(plan, "mechanism", "rounds")

    def _objections_to_prices(self, plan: Plan, where: str, fewer: str) -> list[str]:
        """Why the guarantees of a plan are not those that this site asks for."""
        try:
            priced = plan_prices(plan, self.delta)
        except ValueError as problem:  # such as noise that cannot be shared out
            return [f"{where}: {line}" for line in str(problem).splitlines()]
        found, unit = list[str](), priced[0].guarantee.unit
        enough = {"site": ("client",), "person": ("person", "client"), "query": ("query", "person", "client")}
        if unit not in enough[self.unit]:
            asked = '" or "'.join(enough[self.unit])
            found.append(
                f'{where}.unit: "{unit}" protects less than policy.unit = "{self.unit}" asks for; plan with "{asked}"'
            )
        mechanism: Any = getattr(plan.question, "mechanism", None)
        trusted = isinstance(getattr(mechanism, "placement", None), AtServer)  # which `placements` must list
        guarantees = [one.guarantee for one in priced]
        bare = [one for one in guarantees if one.event is None and not (trusted and one.against == "server")]
        if bare and not self.unprotected:
            found.append(
                f"{where}: {name_of(mechanism)!r} guarantees nothing against the {bare[0].against} "
                f"({bare[0].because}); plan with gaussian or laplace noise, or set policy.unprotected = true"
            )
        cost = max((one.total for one in priced if one.guarantee.event is not None), default=0.0)
        if self.largest_epsilon is not None and cost > self.largest_epsilon:
            found.append(
                f"{where}: the run alone would cost ε = {up(cost)} at δ = {self.delta:g}, and policy.largest_epsilon = "
                f"{self.largest_epsilon:g} is for all runs; plan with more noise or fewer {fewer}, or raise it"
            )
        return found


# What sites of a trial on one machine agree to: they simulate people, so that nobody is to be protected.
TRIAL = Policy(
    learners=EVERY_LEARNER,
    placements=EVERY_PLACEMENT,
    unit="person",
    unprotected=True,
    history=True,
    most_rounds=MAX_ID,
    min_sites=1,
    accept="within-policy",
)


@dataclass(frozen=True)
class SiteSettings(SpecSection):
    """What `site.toml` says: who this site is, what it has, and what it agrees to."""

    name: CertificateName = field(metadata={"example": 'name = "clinic-a"'})
    id: ClientId = field(metadata={"example": "id = 0"})
    federation: CertificateName = field(metadata={"example": 'federation = "clinics"'})
    data: SiteData = field(metadata={"example": '[data] with letor = "train.txt"'})
    policy: Policy = field(metadata={"example": '[policy] with learners = ["pdgd"]'})
    simulated: bool = False  # a trial on one machine, which simulates the people of a spec

    def problems(self) -> list[str]:
        data = self.data
        if data.impressions is not None and self.policy.unit != "site":
            return [
                f'policy.unit: "{self.policy.unit}" is for sites with several people, and data.impressions are of one; '
                'write unit = "site"'
            ]
        if self.simulated or data.learns or data.impressions is not None or data.documents is not None:
            return []
        return ["data: says nothing of what there is; set letor, log, impressions or documents"]

    def objections(self, plan: Plan) -> list[str]:
        """Why this site does not take part in a plan; nothing: it does, if it is accepted."""
        found = []
        if plan.federation != self.federation:
            found.append(
                f"federation: the plan is for {plan.federation!r}, and this site belongs to {self.federation!r}; "
                "ask whoever sent it"
            )
        if plan.simulated and not self.simulated:
            found.append(
                "simulated: the plan is a trial on one machine, and this site has data of people; a trial is run with "
                "`fedrank deploy run SPEC --local 3`, a real one without --local"
            )
        mine = next((party for party in plan.sites if party.name == self.name), None)
        if mine is None:
            listed = ", ".join(party.name for party in plan.sites)
            found.append(f"sites: {self.name!r} is not among {listed}; ask the coordinator to plan with it")
        elif not plan.simulated and mine.clients != (self.id,):
            ids = ", ".join(map(str, mine.clients))
            found.append(
                f"sites: the plan gives {self.name!r} the id {ids}, and {SITE} has id = {self.id}, by which it is "
                "charged; ask the coordinator"
            )
        if self.data.impressions is not None:
            found += self._objections_of_a_person(plan)
        return found + self.policy.objections(plan)

    def _objections_of_a_person(self, plan: Plan) -> list[str]:
        """Why somebody whose own searches are recorded takes no part in a plan."""
        if plan.forests is not None or plan.silos is not None:
            return ["kind: this site has recorded searches, from which clicks are learnt; plan with the learner pdgd"]
        experiment, found = plan.experiment, []
        learner, people = experiment.learner, experiment.clients.people
        if not isinstance(learner, Pdgd) or learner.lists != "drawn":
            found.append(
                f"learner: {name_of(learner)!r} cannot learn from lists that a model drew before; plan with pdgd and "
                'lists = "drawn"'
            )
        if people > 1:
            found.append(f"clients.people: {people} at each site, and this site is one person; plan with 1")
        if (searches := searches_of(plan, self.id)) < MIN_SEARCHES:
            found.append(
                f"clients.interactions: an update of {searches} searches tells much of each, and this site sends none "
                f"of fewer than {MIN_SEARCHES}; plan with more, in fewer rounds"
            )
        return found


def searches_of(plan: Plan, id: int) -> int:
    """From how many searches a client learns in a round."""
    searches = plan.experiment.clients.searches
    return int(searches[id % len(searches)])


def placement_of(mechanism: Any) -> str:
    """Where a mechanism adds its noise, by its name; one without a place works on the client."""
    place = getattr(mechanism, "placement", None)
    return "client" if place is None else name_of(place)


def site_guarantees(plan: Plan) -> list[Guarantee]:
    """What a plan promises a site. Whoever asks may ask it more often than chance would: it counts on no draw."""
    if plan.forests is not None:
        return _guarantees_of_trees(plan, plan.forests)
    experiment = plan.experiment
    if has_trait(experiment.mechanism, "hides cohort"):
        experiment = replace(experiment, clients=replace(experiment.clients, participation=1.0))
    return experiment.guarantees(plan.features)


def _guarantees_of_trees(plan: Plan, experiment: TreesExperiment) -> list[Guarantee]:
    """What one release costs, where trees grow under noise: everybody sees what is made of it."""
    merge = experiment.merge
    noise = merge.tree_noise(len(plan.clients)) if isinstance(merge, Histograms) else None
    if noise is None:
        return []
    rules = Histograms.rules(experiment.booster)
    guarantee = replace(noise.priced(plan.features, rules.bins, rules.fraction), paid="participation")
    return [replace(guarantee, against=each) for each in OBSERVERS]


def plan_prices(plan: Plan, delta: float) -> list[Price]:
    """What a plan alone would cost the site that takes part most often, all but surely, against each observer."""
    from fedrank.experiments.runner.privacy import Price

    if plan.forests is not None:
        releases = releases_of(plan)
        return Price.of_each(site_guarantees(plan), releases, releases, delta)
    experiment = plan.experiment
    # Who arrives when is not known before: at most in every round.
    often = experiment.rounds if experiment.arrival is not None else experiment.most_participations()
    return Price.of_each(site_guarantees(plan), often, experiment.rounds, delta)


def releases_of(plan: Plan) -> int:
    """How often people pay in a run whose trees grow under noise, where nothing has to be asked again."""
    assert plan.forests is not None
    merge = plan.forests.merge
    assert isinstance(merge, Histograms)
    noise = merge.tree_noise(len(plan.clients))
    assert noise is not None
    return plan.forests.booster.trees * noise.releases


def read_federation(path: str | Path) -> FederationFile:
    """The `federation.toml` of a coordinator; mistakes name their line."""
    return _read(FederationFile, Path(path))


def no_home(folder: Path) -> FileNotFoundError:
    """The error that a folder belongs to neither a site nor a coordinator."""
    return FileNotFoundError(
        f"{folder} has neither {SITE} nor {FEDERATION}; give the folder of a site or of a coordinator as --home"
    )


def read_site(path: str | Path) -> SiteSettings:
    """The `site.toml` of a site, or of its folder; paths in it are seen from where it lies."""
    path = Path(path)
    return _read(SiteSettings, path if path.is_file() else path / SITE)


def _read(kind: type[Section], path: Path) -> Section:
    try:
        with opened(path) as file:
            text = file.read(LONGEST + 1).decode("utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"no {path.name} at {path.parent}; give its path, or --home") from None
    except UnicodeDecodeError:
        raise SpecError(["is not text in UTF-8; save it as such"], str(path)) from None
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
    for name in ("letor", "log", "impressions", "documents", "names"):
        if isinstance(data, dict) and isinstance(data.get(name), str) and data[name]:
            data[name] = str((folder / data[name]).absolute())


def _with_line(text: str, problem: str) -> str:
    """A problem with the line of its place, where that can be found."""
    place = re.match(r"[\w.\[\]-]+(?=:)", problem)
    line = place and line_of(text, place[0])
    return f"line {line}: {problem}" if line else problem


def line_of(text: str, place: str) -> int | None:
    """The line on which a key such as `sites[1].name` stands, or else the table in which it should.

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
    """Why a value that the policy does not list is refused; nothing where it lists it."""
    if value in listed:
        return []
    names = ", ".join(shown(name) for name in listed)
    return [f"{key}: {shown(value)} is not among policy.{listed_as} = [{names}]; plan with one of these, or list it"]


def _of_simulation(plan: Plan) -> list[str]:
    from fedrank.deploy.plan import only_simulated

    found = only_simulated(plan.experiment)
    if plan.experiment.start is not None:
        found.append(
            f"start: {shown(plan.experiment.start)} names a path, and a plan that came from elsewhere opens none; "
            "leave it out"
        )
    return found


SITE_TEMPLATE = """\
# Who this site is; as the coordinator wrote it.
name       = {name}
id         = {id}
federation = {federation}

# What this site has. It never leaves this machine. Paths are seen from the folder of this file.
[data]
# One of: judged queries with features (LETOR), or logged lists and clicks (a folder of `fedrank logs build`).
# letor      = "train.txt"
# log        = "searches"
# documents  = "corpus.jsonl"   # for sketches: id, title and text; queries.jsonl and qrels.tsv lie beside it
# names      = "names.txt"      # of a LETOR file: what its features are called, one a line
# top_grade  = 4                # of a LETOR file: the highest grade of the scale, if no query here has it
# normalise  = "query"          # "none" or "query"; must be the same at all sites
# person     = "patient"        # whose a query is: a key of LETOR comments (`# patient = 7`); "user" in a log
# test_share = 0.2              # the last queries, by which quality is measured here; without it all are for learning

# What this site agrees to. Whatever is not allowed here is refused, whoever asks.
[policy]
learners        = ["pdgd"]                  # of "pdgd", "evolution", "lambdarank"; "lambdamart", "cross-silo"
placements      = ["client", "secure-aggregation"]  # where noise may be added; "server" would see updates without it
unit            = "site"                    # what must be protected: all that the site has, or all of each "person"
largest_epsilon = 8.0                       # that all runs together may cost
delta           = 1e-5                      # probability with which that may fail; far below 1 / people
unprotected     = false                     # may updates leave without noise?
history         = false                     # may the coordinator record updates, so that sites can be unlearned?
most_rounds     = 1000                      # of one run
min_sites       = 3                         # of a run, this one included
measures        = []                        # that may be reported as sums, such as "ndcg@10"; they carry no noise
accept          = "listed"                  # or "within-policy": take part in all that fits the above, unasked
"""


def site_template(name: str, id: int, federation: str) -> str:
    """A `site.toml` to fill in."""
    return SITE_TEMPLATE.format(name=shown(name), id=id, federation=shown(federation))


def write_template(folder: Path, name: str, id: int, federation: str) -> Path:
    """Put a `site.toml` to fill in into a folder, unless there is one."""
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
    """A name that a certificate, a file and a `site.toml` can carry."""
    found: str = checked(CertificateName, name, "name")
    return found
