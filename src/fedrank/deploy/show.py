"""Before anything leaves a site: what would, who would see it, what it would cost, and what would be refused.

`look_at` gathers this as a record; `about_plan` says it in sections that any renderer can show, `as_facts` as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedrank.data.live_features import LIVE_1
from fedrank.data.logs import not_persons
from fedrank.data.ranking import RankingData
from fedrank.deploy.consent import partners, said_of
from fedrank.deploy.data_sources import SiteSplit, differences, differences_of_recorded, recorded_facts
from fedrank.deploy.forests import largest_forest
from fedrank.deploy.identity import fingerprint
from fedrank.deploy.make_plans import features_of
from fedrank.deploy.outbox import OutboxError
from fedrank.deploy.plan import Plan, PlannedSite, make_plan
from fedrank.deploy.protocol import PHASES, Answers, bundle, reply, request
from fedrank.deploy.settings import SiteSettings, plan_prices, releases_of, searches_of
from fedrank.experiments.report.command_output import about_prices
from fedrank.experiments.report.formatting import amount
from fedrank.experiments.report.sections import Cell, Pairs, Part, Points, Section, Table, paragraph
from fedrank.experiments.runner.merge import ForestDisclosure
from fedrank.experiments.runner.privacy import UNPROTECTED, Price, most_participations, prices
from fedrank.experiments.runner.silo import NOT_COVERED as SILOS_NOT_COVERED
from fedrank.experiments.spec.federated import ELSEWHERE, FederatedExperiment
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.federated.messages import Call, Message, payload_of
from fedrank.files import told
from fedrank.privacy.guarantees import up
from fedrank.privacy.ledger import LedgerError
from fedrank.privacy.population import LEDGER, Account, LedgerTerms, Population, spent_together
from fedrank.privacy.secure_aggregation import message_bytes, threshold_for
from fedrank.silo.spending import SiloLedger, is_ledger
from fedrank.toml import parse_toml, shown
from fedrank.trees.histograms import Histograms
from fedrank.types import has_trait
from fedrank.wire import Label

SILO_LEDGER = "silo/own.spending"  # of sketches
LEDGERS = "people"  # the folder of a site's ledgers over all runs
COORDINATOR = "the coordinator"


@dataclass(frozen=True)
class Outgoing:
    """One kind of thing that leaves a site."""

    what: str
    to: str
    bytes_each: int
    times: int
    covered: bool  # whether the ε that is told covers it
    about: str = ""

    @property
    def bytes_in_all(self) -> int:
        return self.bytes_each * self.times


FACTS = Outgoing(
    "facts",
    COORDINATOR,
    400,
    1,
    False,
    "number of features, digest of their names, normalisation, version of fedrank, public key",
)
REFUSALS = Outgoing("refusals", COORDINATOR, 0, 0, False, "why, in words of fedrank; never of data")
ALWAYS_OPEN = (
    "settings that were chosen by looking at results of the same people",
    "runs on the same people elsewhere, which this site's ledger does not know of",
)


@dataclass(frozen=True)
class PartnerView:
    """Another site, and whether its key was compared."""

    name: str
    fingerprint: str  # "": the plan brings no key
    pinned: bool


@dataclass(frozen=True)
class SumView:
    """What a secure sum of this federation stands, and what it does not."""

    sites: int  # in a round
    threshold: int  # of them who must agree before a sum opens
    opened: int  # numbers that must have come before a sum opens
    dropouts: int  # that a round survives

    def lines(self) -> list[str]:
        """In words."""
        lost = (
            "No dropout is survived: if one site goes in the middle of a round, the round stops and is tried again, "
            "which is charged again."
            if self.dropouts == 0
            else f"A round survives {_count(self.dropouts, 'dropout')}; with more it stops and is tried again, which "
            "is charged again."
        )
        others = self.sites - 1
        left = "the update of the only other site" if others == 1 else f"the sum of the {others} others"
        return [
            f"Against a coordinator that breaks the rules {self.threshold} of {self.sites} sites must agree on who is "
            f"in a sum before it opens, and the numbers of {self.opened} must be in it.",
            lost,
            f"One site that works with the coordinator takes its own numbers out and learns {left}, with their noise.",
            "Keys of partners must have been compared by telephone: whoever holds one can sign in its place.",
        ]


@dataclass(frozen=True)
class PlanView:
    """All that a site should know of a plan before it says yes."""

    site: str
    run: str
    digest: str
    federation: str
    simulated: bool
    rounds: int
    word: str  # what was said of it here: "accepted", "refused" or ""
    partners: tuple[PartnerView, ...]
    leaves: tuple[Outgoing, ...]
    bytes_down: int  # that come, a round
    sees: str
    prices: tuple[Price, ...]  # of this run alone; none: nothing is protected
    delta: float
    limit: float | None  # ε over all runs
    spent: Mapping[str, float]  # ε of all runs by now, against each observer
    after: Mapping[str, float]  # the same after this run
    affordable: int  # rounds of this run that the limit pays for
    sum: SumView | None
    refused: tuple[str, ...]
    not_covered: tuple[str, ...]
    has: str = ""  # what a site of one person has to learn from


class _Disclosed(NamedTuple):
    """What leaves a site in one kind of run, and what that costs."""

    leaves: Iterable[Outgoing]
    sees: str
    not_covered: Iterable[str]
    bytes_down: int
    charges: int = 0  # how often people pay; 0: nothing is protected
    unit: str = "rounds"  # what is charged


def look_at(folder: Path, settings: SiteSettings, plan: Plan, share: SiteSplit | None = None) -> PlanView:
    """What a plan means for a site; `share` is its data, where they could be read."""
    folder, policy = Path(folder), settings.policy
    if plan.forests is not None:
        told = _of_forests(plan, plan.forests)
    elif plan.silos is not None:
        told = _of_silos(plan)
    else:
        told = _of_updates(plan, settings, share)
    refused = settings.objections(plan) + _differences(settings, plan, share)
    found: list[Price] = []
    spent, after, affordable = dict[str, float](), dict[str, float](), told.charges
    try:
        if told.charges:
            found = _prices(plan, policy.delta)
        others = _accounts(folder, plan)
        limit = policy.largest_epsilon
        spent, after, affordable = _spending(plan, policy.delta, limit, found, others, told.charges)
    except (LedgerError, OSError, ValueError) as problem:
        refused.append(f"ledger: {problem}")
        affordable = 0
    limit = policy.largest_epsilon
    if limit is not None and affordable < told.charges and max(after.values(), default=0.0) > limit:
        refused.append(
            f"ledger: all runs together would cost ε = {up(max(after.values()))}, and policy.largest_epsilon = "
            f"{limit:g}; it pays for {affordable:,} of {told.charges:,} {told.unit}, and the next one is refused"
        )
    pinned = partners(folder)
    view = PlanView(
        site=settings.name,
        run=plan.name,
        digest=plan.digest,
        federation=plan.federation,
        simulated=plan.simulated,
        rounds=plan.rounds,
        word=said_of(folder, plan) or "",
        partners=tuple(_partner(site, pinned) for site in plan.sites if site.name != settings.name),
        leaves=tuple(told.leaves),
        bytes_down=told.bytes_down,
        sees=told.sees,
        prices=tuple(found),
        delta=policy.delta,
        limit=limit,
        spent=spent,
        after=after,
        affordable=affordable if told.unit == "rounds" else plan.rounds,
        sum=sum_view(plan),
        refused=tuple(dict.fromkeys(refused)),
        not_covered=tuple(told.not_covered),
        has=_searches(folder, settings, plan),
    )
    return view if plan.silos is None else _with_sketch_costs(view, folder, plan.silos)


def _prices(plan: Plan, delta: float) -> list[Price]:
    """What a plan alone would cost; nothing where updates cannot be priced, which is among the objections."""
    try:
        return plan_prices(plan, delta)
    except ValueError:
        if plan.forests is not None:
            raise
        return []


def _differences(settings: SiteSettings, plan: Plan, share: SiteSplit | None) -> list[str]:
    """Where the site's data do not fit a plan."""
    if plan.simulated or plan.silos is not None:
        return []
    if plan.forests is None and settings.data.impressions is not None:
        return differences_of_recorded(plan)
    if share is None:
        return []
    found = differences(share, plan)
    merge = None if plan.forests is None else plan.forests.merge
    if isinstance(merge, Histograms) and merge.private != "no" and merge.unit == "person" and not len(share.whose):
        found.append(
            "data.person: the plan protects persons, and site.toml does not say whose the queries are; name the key "
            "of the comments, or of a log its users, in site.toml"
        )
    return found


def _searches(folder: Path, settings: SiteSettings, plan: Plan) -> str:
    """What a person has to learn from, and for how many rounds; "": the site has queries."""
    if plan.simulated or settings.data.impressions is None or not isinstance(plan.question, FederatedExperiment):
        return ""
    try:
        facts = recorded_facts(folder, settings.data.impressions)
    except (ValueError, OSError, OutboxError) as problem:
        return f"recorded searches that cannot be counted: {told(problem)}"
    enough = facts.unused // searches_of(plan, settings.id)
    return f"{facts}: enough for {_count(enough, 'round')} of {searches_of(plan, settings.id)}"


def _of_updates(plan: Plan, settings: SiteSettings, share: SiteSplit | None) -> _Disclosed:
    mechanism = plan.experiment.mechanism
    sees = "the server sees every update as it is" if mechanism is None else mechanism.sees
    leaves, uncovered = leaving_of(plan, settings, share), not_covered(plan, settings, share)
    return _Disclosed(leaves, sees, uncovered, _bytes_down(plan), 0 if mechanism is None else plan.rounds)


def _of_forests(plan: Plan, experiment: TreesExperiment) -> _Disclosed:
    merge, trees = experiment.merge, experiment.booster.trees
    assert merge is not None
    told, down, charges = ForestDisclosure.of(merge), len(request("forest", plan.run, 1)), 0
    uncovered = ("anything: forests leave as they are", *told.not_covered)
    if not isinstance(merge, Histograms):
        about = f"at most {trees:,} trees, whose thresholds and leaves are made of own documents; no noise"
        sent = [
            Outgoing("forest", f"{COORDINATOR}, and merged to all sites", largest_forest(experiment), 1, False, about),
            Outgoing("number of queries", COORDINATOR, 8, 1, False, "that the forest was grown on"),
        ]
    elif merge.private != "no":
        noise, uncovered, charges = merge.tree_noise(len(plan.clients)), told.not_covered, releases_of(plan)
        assert noise is not None
        bins = Histograms.rules(experiment.booster).bins
        sums = 2**noise.depth * (1 if noise.design == "random-splits" else plan.features * bins)
        part = "a share of the noise, and masks" if merge.secure else "all of the noise"
        about = f"of gradients and hessians, with {part}; how many rows there are is not told"
        to = f"{COORDINATOR}, who learns the sum alone" if merge.secure else COORDINATOR
        sent = [Outgoing("noised sums", to, 16 * sums, charges, True, about)]
    else:
        sent = list(_histograms(plan, experiment, merge))
    uncovered = (*uncovered, "that this site takes part, and how long it takes to answer")
    return _Disclosed((*sent, FACTS, REFUSALS), told.who_sees_what, uncovered, down, charges, "releases")


def _histograms(plan: Plan, experiment: TreesExperiment, merge: Histograms) -> Iterable[Outgoing]:
    """What leaves where one forest grows without noise."""
    each = (
        "added up over all sites before anybody sees them" if merge.secure else "which tell grades where rows are few"
    )
    trees, leaf, vote = experiment.booster.trees, getattr(experiment.booster, "leaves", 64), merge.vote
    about = f"of gradients, hessians and rows, for every leaf of at most {trees:,} trees, {each}; no noise"
    sent = min(4 * vote, 2 * plan.features) if vote else plan.features  # a vote is for both parts of a leaf
    yield Outgoing("histograms", COORDINATOR, 24 * 256 * sent, trees * leaf, False, about)
    if vote:
        voted = f"for the {vote} features that gain most on own rows, for every leaf; no noise"
        size = 8 * 2 * plan.features if merge.secure else 2 * -(-plan.features // 8)
        yield Outgoing("votes", COORDINATOR, size, trees * leaf, False, voted)
    yield Outgoing("number of rows, and nDCG@10 in sum", COORDINATOR, 24, trees, False, "of own queries")


def _of_silos(plan: Plan) -> _Disclosed:
    partners, others = len(plan.sites) - 1, "the other sites, sealed"
    leaves = (
        Outgoing("answers", others, 0, partners, True, "what a noised sketch of own documents tells"),
        Outgoing("questions", others, 0, partners, False, "words of own queries, which the others read"),
        Outgoing("model", "the next site, sealed; the last one to all", 1024, plan.rounds, False, "weights, no noise"),
        replace(FACTS, about=f"{FACTS.about}, highest grade"),
        REFUSALS,
    )
    uncovered = (
        *SILOS_NOT_COVERED,
        "the weights, which tell of own queries, judgements and documents",
        "that this site takes part, and how long it takes to answer",
    )
    down = len(request("forest", plan.run, 1))
    return _Disclosed(leaves, "the coordinator carries letters that it cannot open", uncovered, down, unit="sketches")


def _with_sketch_costs(view: PlanView, folder: Path, experiment: SiloExperiment) -> PlanView:
    """A sketch of the same documents and settings is paid once, in a ledger beside it."""
    because = "Gaussian noise in the sketch of the document and in that of the document frequencies, drawn once"
    guarantee = experiment.method.sketcher.guarantee("silos that see answers", because, "once")  # type: ignore[attr-defined]
    ledger = folder / SILO_LEDGER
    spent = SiloLedger(ledger).spent() if is_ledger(ledger) else 0.0
    found = prices([guarantee], 1, 1, view.delta)
    after = {guarantee.against: max(spent, found[0].total)}
    return replace(view, prices=tuple(found), spent={guarantee.against: spent}, after=after)


def leaving_of(plan: Plan, settings: SiteSettings, share: SiteSplit | None = None) -> Iterable[Outgoing]:
    """Everything that leaves a site in a run, with its size."""
    experiment, placement = plan.experiment, plan.secure_sum
    clients = len(next((site.clients for site in plan.sites if site.name == settings.name), (0,)))
    times = experiment.rounds if experiment.arrival is not None else most_participations(experiment)
    covered = experiment.mechanism is not None
    if placement is not None:
        about = f"{plan.sent:,} whole numbers under masks, with a share of noise; keys, shares of secrets, signatures"
        size = _bytes_of_sum(plan, placement.bits, clients)
        yield Outgoing("masked update", f"{COORDINATOR}, who learns the sum alone", size, times, True, about)
    else:
        kind, count = payload_of(experiment.learner, experiment.mechanism, plan.sent)
        what, about = "update", f"{count:,} numbers"
        if isinstance(kind, np.dtype):
            what, about = "rewards", "a seed and two mean rewards"
        yield Outgoing(what, COORDINATOR, _bytes_up(plan, clients), times, covered, about)
    if not covered:
        yield Outgoing("searches behind an update", COORDINATOR, 0, times, False, "one number, within the update")
    if has_trait(experiment.local, "common"):
        about = "nothing more leaves: the coordinator reads the control of each site from its update"
        yield Outgoing("control of SCAFFOLD", f"{COORDINATOR}; their mean to all sites", 0, times, covered, about)
    if has_trait(experiment.local, "shared part"):
        yield Outgoing("own part of the model", "nobody: it stays here", 0, 0, True, "FedPer")
    names = [name for name in experiment.measures if name in settings.policy.measures]
    if names and not plan.simulated and (share is None or share.test is not None):
        about = f"sums of {', '.join(names)} over own queries, for the model and for what users have now; no noise"
        yield Outgoing("sums of measures", COORDINATOR, 64 * len(names), 1, False, about)
    yield FACTS
    yield REFUSALS
    if plan.simulated:
        yield Outgoing("online quality", COORDINATOR, 16 * clients, times, False, "of simulated people, in trials only")


def sum_view(plan: Plan) -> SumView | None:
    """What the secure sum of a plan stands; None where there is none."""
    if not plan.summed:
        return None
    mechanism: Any = plan.experiment.mechanism
    placement = mechanism.placement
    together = int(plan.cohort)
    threshold = threshold_for(together, placement.colluders(together), active=True)
    opened = max(threshold, placement.opened(together))
    return SumView(together, threshold, opened, max(0, together - opened))


def not_covered(plan: Plan, settings: SiteSettings, share: SiteSplit | None = None) -> Iterable[str]:
    """What no ε here speaks of."""
    experiment = plan.experiment
    yield "that this site takes part, in which rounds, and how long it takes to answer"
    if settings.data.impressions is not None:
        yield f"whether you searched {searches_of(plan, settings.id)} times since the last round; not how often"
    names = [name for name in experiment.measures if name in settings.policy.measures]
    if names and not plan.simulated and (share is None or share.test is not None):
        yield f"sums of {', '.join(names)}, which leave without noise because policy.measures lists them"
    mechanism: Any = experiment.mechanism
    if mechanism is None:
        yield "anything: updates leave as they are, and clicks can be read from them"
    elif getattr(mechanism, "unit", "client") == "person" and getattr(mechanism, "sites", 1) == 1:
        yield "people who are at several sites: what each site costs them adds up"
    yield from not_persons(settings.data.log)
    if experiment.record_every:
        yield f"what the coordinator keeps: the update of every {experiment.record_every}. round, to unlearn from"
    if plan.summed:
        yield "a second attempt at a round, which draws new noise and is charged again when it happens"
    if plan.simulated:
        yield "anything, since people are simulated"
    yield from ALWAYS_OPEN


def drafts(text: str, settings: SiteSettings, own: RankingData | None) -> list[Plan]:
    """The plans that a spec would make, before anybody planned it, if all had features as this site has them.

    Its data are the coordinator's, so that no path of them is looked at. Who else takes part is not known yet.
    """
    tables = parse_toml(text)
    data = tables.get("data")
    given = data if isinstance(data, dict) else {}
    agreed = {key: given[key] for key in ("folds", "propensities", "bias") if key in given}
    grid = read_tables(tables | {"data": {"name": ELSEWHERE, "folds": [1]} | agreed}, here=False)
    found = []
    for variant in grid.variants:
        experiment = variant.experiment
        if not isinstance(experiment, FederatedExperiment | TreesExperiment | SiloExperiment):
            raise ValueError(f"kind: {shown(grid.kind)} is not done between sites; use `fedrank run`")
        # How many sites merge forests, no spec says: as many as this one asks for.
        count = settings.policy.min_sites
        if not isinstance(experiment, TreesExperiment):
            count = experiment.silos.count if isinstance(experiment, SiloExperiment) else experiment.clients.count
        ids = [settings.id, *(id for id in range(count + 1) if id != settings.id)][:count]
        names = [settings.name, *(f"another-site-{number}" for number in range(1, count))]
        parties = [PlannedSite(name, (id,)) for name, id in zip(names, ids, strict=True)]
        features: dict[str, Any] = {}
        if settings.data.impressions is not None and isinstance(experiment, FederatedExperiment):
            features = {"features": len(LIVE_1.names), "feature_names": LIVE_1.names}
        elif own is not None:
            features = features_of(own)
        elif not isinstance(experiment, SiloExperiment):
            raise ValueError("this site has no queries to learn from, so that no spec can be fitted; set letor or log")
        of = settings.federation
        found += [
            make_plan(
                experiment.single(fold, seed), variant.name, parties, federation=of, fold=fold, seed=seed, **features
            )
            for fold, seed in grid.repeats()
        ]
    return found


def about_plan(view: PlanView) -> list[Section]:
    """A plan in words and tables."""
    who = [
        ("run", view.run),
        ("plan", view.digest[:12]),
        ("federation", view.federation),
        ("rounds", f"{view.rounds:,}"),
    ]
    who.append(("here", view.word or "not accepted yet"))
    if view.has:
        who.append(("has", view.has))
    first: list[Part] = [Pairs(tuple(who))]
    if view.simulated:
        first.append(paragraph("A trial on one machine: people are simulated, and nobody is protected.", tone="warn"))
    if view.partners:
        rows = [[Cell(one.name, tone="name"), Cell(one.fingerprint), Cell(_compared(one))] for one in view.partners]
        first.append(Table(["with", "key", "compared"], rows, 3, whole=1))
    sections = [Section("", tuple(first)), _refused(view), _leaving(view)]
    if view.sum is not None:
        sections.append(Section("The secure sum", (Points(tuple(view.sum.lines())),)))
    return [*sections, _costs(view), Section("What is not covered", (Points(view.not_covered),))]


def as_facts(view: PlanView) -> dict[str, Any]:
    """The same as numbers, for a file; what cannot be claimed is null."""
    facts = asdict(view) | {
        "prices": [asdict(price.paid) for price in view.prices],
        "leaves": [asdict(one) | {"bytes_in_all": one.bytes_in_all} for one in view.leaves],
        "spent": _finite(view.spent),
        "after": _finite(view.after),
    }
    if view.sum is not None:
        facts["sum"] = asdict(view.sum) | {"lines": view.sum.lines()}
    return facts


def _refused(view: PlanView) -> Section:
    if not view.refused:
        return Section("What would be refused", (paragraph("Nothing: the plan fits the policy of this site."),))
    return Section("What would be refused", (paragraph("This site would say no:", tone="warn"), Points(view.refused)))


def _leaving(view: PlanView) -> Section:
    rows = [
        [
            Cell(one.what, tone="name"),
            Cell(one.to),
            Cell(amount("bytes", one.bytes_each) if one.bytes_each else ""),
            Cell(amount("bytes", one.bytes_in_all) if one.bytes_each else ""),
            Cell("yes" if one.covered else "no", tone="" if one.covered else "warn"),
        ]
        for one in view.leaves
    ]
    notes = [f"{one.what}: {one.about}" for one in view.leaves if one.about]
    table = Table(["leaves", "to", "each time", "in all", "covered by ε"], rows, 2, notes=notes)
    sees = f"{view.sees[0].upper()}{view.sees[1:]}."
    coming = paragraph(
        f"{amount('bytes', view.bytes_down)} come with each round, besides what a connection needs.", tone="quiet"
    )
    return Section("What leaves this site", (table, paragraph(sees), coming))


def _costs(view: PlanView) -> Section:
    if not view.prices:
        return Section("What it costs", (paragraph(UNPROTECTED, tone="warn"),))
    parts: list[Part] = [paragraph("This run alone:"), *about_prices(view.prices)]
    limit = "no limit" if view.limit is None else f"ε = {view.limit:g} at δ = {view.delta:g}"
    rows = [
        [Cell(against), Cell(_cost(view.spent.get(against, 0.0))), Cell(_cost(cost))]
        for against, cost in view.after.items()
    ]
    parts += [
        paragraph(f"All runs on the people of this site (limit: {limit}):"),
        Table(["against", "by now", "after"], rows),
    ]
    return Section("What it costs", tuple(parts))


def _cost(cost: float) -> str:
    return "none can be claimed" if math.isinf(cost) else f"ε = {up(cost)}"


def _compared(partner: PartnerView) -> str:
    if not partner.fingerprint:
        return "the plan brings no key"
    return "yes" if partner.pinned else "no: call them and compare"


def _partner(site: PlannedSite, pinned: Mapping[str, str]) -> PartnerView:
    known = fingerprint(site.identity) if site.identity else ""
    return PartnerView(site.name, known, bool(site.identity) and pinned.get(site.name) == site.identity)


def _bytes_up(plan: Plan, clients: int) -> int:
    kind, count = payload_of(plan.experiment.learner, plan.experiment.mechanism, plan.sent)
    message = Message(plan.run, 1, 0, np.zeros(count, dtype=kind), 1).pack()
    return len(Answers((message,) * clients, np.empty(0), np.empty(0)).pack(Label("answers", plan.run, 1, 0, 0)))


def _bytes_of_sum(plan: Plan, bits: int, clients: int) -> int:
    """All letters of one round, each in its envelope."""
    at, nothing = Label("answers", plan.run, 1, 0, 0), (b"",) * clients
    first = len(Answers(nothing, np.empty(0), np.empty(0)).pack(at))
    later = len(reply("letters", at, 0, letters=bundle(nothing)))
    own = message_bytes(int(plan.cohort), plan.sent, bits, signed=True)
    return clients * own + first + len(PHASES[1:]) * later


def _bytes_down(plan: Plan) -> int:
    weights = np.zeros(plan.sent, dtype=np.float32)
    common = weights if has_trait(plan.experiment.local, "common") else None
    return len(Call(plan.run, 1, weights, 1.0, common=common).pack())


def _accounts(folder: Path, plan: Plan) -> list[Account]:
    """What all other runs have charged the people of a site."""
    place = folder / LEDGERS
    known = Population.find(place)
    return [] if known is None else known.accounts(but=(place / plan.digest[:32] / LEDGER).absolute())


def _spending(
    plan: Plan, delta: float, limit: float | None, prices: Sequence[Price], others: Sequence[Account], rounds: int
) -> tuple[dict[str, float], dict[str, float], int]:
    """ε by now, ε after this run, and how many of its rounds the limit pays for."""
    spent = spent_together(others, delta)
    if not prices:
        return spent, {}, rounds
    terms = LedgerTerms(1, delta, tuple(price.guarantee for price in prices), plan.digest[:32])
    people = max((len(one.participations) for one in others), default=1)

    def after(some: int) -> dict[str, float]:
        often = min(some, max(price.times for price in prices))
        account = Account(terms, np.full(people, often, dtype=np.int64), some, 0)
        return spent_together([*others, account], delta)

    def fits(some: int) -> bool:
        return limit is None or max(after(some).values(), default=0.0) <= limit

    low, high = 0, rounds
    if fits(high):
        return spent, after(rounds), rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return spent, after(rounds), low


def _finite(costs: Mapping[str, float]) -> dict[str, float | None]:
    return {against: None if math.isinf(cost) else cost for against, cost in costs.items()}


def _count(many: int, one: str) -> str:
    return f"1 {one}" if many == 1 else f"{many} {one}s"
