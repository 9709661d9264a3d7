"""The effect of a plan on a site before anything is sent: messages, observers, costs, and refusals.

`look_at` collects it as a record; `about_plan` formats it in sections for any renderer, `as_facts` as data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedrank import __version__
from fedrank.data.ranking import RankingData
from fedrank.deploy import protocol
from fedrank.deploy.budget import Budget, charged_prices
from fedrank.deploy.consent import partners, said_of
from fedrank.deploy.data_sources import SiteSplit, about_data
from fedrank.deploy.forests import largest_forest
from fedrank.deploy.heads import most_bytes
from fedrank.deploy.identity import fingerprint
from fedrank.deploy.make_plans import features_of
from fedrank.deploy.objections import objections
from fedrank.deploy.plan import PROTOCOL, Plan, PlannedSite, make_plan
from fedrank.deploy.protocol import PHASES, Answers, bundle, reply, request
from fedrank.deploy.releases import PROPENSITY, QUALITY, WORDS, release_of, releases_of
from fedrank.deploy.settings import BROWSER, SiteSettings, tree_releases
from fedrank.deploy.transport import shared_folder
from fedrank.experiments.report.formatting import amount
from fedrank.experiments.report.privacy_output import about_prices
from fedrank.experiments.report.sections import Cell, Section
from fedrank.experiments.runner.merge import ForestDisclosure
from fedrank.experiments.runner.not_covered import not_covered_between_sites
from fedrank.experiments.runner.privacy import Price
from fedrank.experiments.spec.federated import ELSEWHERE, FederatedExperiment
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.federated.messages import Call, Message, payload_of
from fedrank.privacy.guarantees import up
from fedrank.privacy.ledger import LedgerError
from fedrank.privacy.secure_aggregation import threshold_for
from fedrank.privacy.secure_messages import message_bytes
from fedrank.silo.spending import SiloLedger
from fedrank.toml import parse_toml, shown
from fedrank.trees.histograms import Histograms
from fedrank.types import has_trait
from fedrank.wire import Label

SILO_LEDGER = "silo/own.spending"  # ledger of sketches
COORDINATOR, READERS = "the coordinator", "readers of the folder"
STATEMENTS = "statements about journals of other sites"  # not through a shared folder


@dataclass(frozen=True)
class Outgoing:
    """One kind of message that a site sends."""

    what: str
    to: str
    bytes_each: int
    times: int
    covered: bool  # whether the stated ε covers it
    about: str = ""

    @property
    def bytes_in_all(self) -> int:
        return self.bytes_each * self.times


REFUSALS = Outgoing("refusals", COORDINATOR, 0, 0, False, "the reason, without data")


@dataclass(frozen=True)
class PartnerView:
    """Another site, and whether its key was compared."""

    name: str
    fingerprint: str  # "": the plan has no key
    pinned: bool
    changed: bool = False  # whether another key was compared before


@dataclass(frozen=True)
class SumView:
    """The properties of secure aggregation in this federation."""

    sites: int  # per round
    threshold: int  # sites that must agree before a sum is opened
    opened: int  # minimum number of values in an opened sum
    dropouts: int  # that a round tolerates
    dealt: bool = False  # whether each person or client participates in one round

    def lines(self) -> list[str]:
        """A description in sentences."""
        after = (
            "is lost, because a dealt schedule has no second message" if self.dealt else "is repeated and charged again"
        )
        lost = (
            f"A round tolerates no dropout: if a site drops out after masked values were sent, the round {after}."
            if self.dropouts == 0
            else f"A round tolerates {_count(self.dropouts, 'dropout')}; with more, it {after}."
        )
        others = self.sites - 1
        left = "the update of the only other site" if others == 1 else f"the sum of the {others} others"
        return [
            f"Against a malicious coordinator, {self.threshold} of {self.sites} sites must agree on the members of a "
            f"sum before it is opened, and it must contain the values of {self.opened}.",
            lost,
            f"A site that colludes with the coordinator can subtract its values and learn {left}, with their noise.",
            "Partners' keys must have been compared by telephone: the holder of a forged key can sign for a site.",
        ]


@dataclass(frozen=True)
class PlanView:
    """What a site should know about a plan before it accepts it."""

    site: str
    run: str
    digest: str
    federation: str
    simulated: bool
    rounds: int
    word: str  # the decision of this site: "accepted", "refused" or ""
    partners: tuple[PartnerView, ...]
    leaves: tuple[Outgoing, ...]
    bytes_down: int  # received per round
    sees: str
    prices: tuple[Price, ...]  # of this run alone; empty: nothing is protected
    delta: float
    limit: float | None  # ε over all runs
    spent: Mapping[str, float]  # ε of all runs so far, against each observer
    after: Mapping[str, float]  # the same after this run
    affordable: int  # number of rounds of this run within the limit
    sum: SumView | None
    refused: tuple[str, ...]
    not_covered: tuple[str, ...]


class _Disclosed(NamedTuple):
    """What a site sends in one kind of run, and its cost."""

    leaves: Iterable[Outgoing]
    sees: str
    not_covered: Iterable[str]
    bytes_down: int


def look_at(
    folder: Path, settings: SiteSettings, plan: Plan, share: SiteSplit | None = None, draft: bool = False
) -> PlanView:
    """The effect of a plan on a site; `share` is its data, if they could be read. A draft has no keys yet."""
    folder, policy = Path(folder), settings.policy
    if plan.forests is not None:
        disclosed = _of_forests(plan, plan.forests, settings)
    elif plan.silos is not None:
        disclosed = _of_silos(plan, settings)
    else:
        disclosed = _of_updates(plan, settings, share)
    found: list[Price] = []
    spent, after, affordable = dict[str, float](), dict[str, float](), 0
    with suppress(LedgerError, OSError, ValueError):  # these are objections
        found = charged_prices(plan, policy.delta, policy.released_measures)
        spent, after, affordable = Budget.of(folder, policy, plan, found).spending()
    if settings.data.are_browsers:
        found = [replace(one, guarantee=replace(one.guarantee, unit=BROWSER)) for one in found]
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
        leaves=tuple(disclosed.leaves),
        bytes_down=disclosed.bytes_down,
        sees=disclosed.sees,
        prices=tuple(found),
        delta=policy.delta,
        limit=policy.largest_epsilon,
        spent=spent,
        after=after,
        affordable=plan.rounds if plan.forests is not None or plan.silos is not None else affordable,
        sum=sum_view(plan),
        refused=tuple(objections(folder, settings, plan, share, draft)),
        not_covered=tuple(disclosed.not_covered),
    )
    if (shared := shared_folder(folder)) is not None:
        view = _through_folder(view, shared)
    return view if plan.silos is None else _with_sketch_costs(view, folder, plan.silos)


def _through_folder(view: PlanView, shared: Path) -> PlanView:
    """Name the readers of a shared folder as recipients: its messages are signed, but not encrypted."""
    sent = (one for one in view.leaves if one.what != STATEMENTS)
    leaves = (replace(one, to=one.to.replace(COORDINATOR, f"{COORDINATOR}, {READERS}")) for one in sent)
    sees = f"{view.sees}; everyone who can read {shared} sees these messages, too: they are signed, but not encrypted"
    return replace(view, leaves=tuple(leaves), sees=sees)


def _of_updates(plan: Plan, settings: SiteSettings, share: SiteSplit | None) -> _Disclosed:
    mechanism = plan.experiment.mechanism
    sees = "the server sees every update as it is" if mechanism is None else mechanism.sees
    leaves, uncovered = leaving_of(plan, settings, share), not_covered(plan, settings, share)
    return _Disclosed(leaves, sees, uncovered, _bytes_down(plan))


def not_covered(plan: Plan, settings: SiteSettings, share: SiteSplit | None = None) -> tuple[str, ...]:
    """What the stated ε does not cover."""
    if plan.simulated:
        return ("anything, because people are simulated",)
    one, data = [settings.name], settings.data
    return not_covered_between_sites(
        plan.question,
        logs=data.log is not None,
        browsers=one if data.are_browsers else (),
        plain=one if _plain_measures(plan, settings, share) else (),
    )


def _of_forests(plan: Plan, experiment: TreesExperiment, settings: SiteSettings) -> _Disclosed:
    merge, trees = experiment.merge, experiment.booster.trees
    assert merge is not None
    disclosure, down = ForestDisclosure.of(merge), len(request("forest", plan.run, 1))
    if not isinstance(merge, Histograms):
        about = f"at most {trees:,} trees, whose thresholds and leaves depend on own documents; no noise"
        sent = [
            Outgoing("forest", f"{COORDINATOR}, and merged to all sites", largest_forest(experiment), 1, False, about),
            Outgoing("number of queries", COORDINATOR, 8, 1, False, "on which the forest was trained"),
        ]
    elif merge.private != "no":
        noise = merge.tree_noise(len(plan.clients))
        assert noise is not None
        bins = Histograms.rules(experiment.booster).bins
        sums = 2**noise.depth * (1 if noise.design == "random-splits" else plan.features * bins)
        part = "a part of the distributed noise, and masks" if merge.secure else "the complete noise"
        about = f"of gradients and hessians, with {part}; the number of rows is not sent"
        to = f"{COORDINATOR}, which learns only the sum" if merge.secure else COORDINATOR
        sent = [Outgoing("noised sums", to, 16 * sums, tree_releases(plan), True, about)]
    else:
        sent = list(_histograms(plan, experiment, merge))
    leaves = (*sent, *_technical(plan, settings, sum(one.times for one in sent)))
    return _Disclosed(leaves, disclosure.who_sees_what, not_covered(plan, settings), down)


def _histograms(plan: Plan, experiment: TreesExperiment, merge: Histograms) -> Iterable[Outgoing]:
    """Messages of one forest that is trained without noise."""
    each = "aggregated over all sites before any party sees them" if merge.secure else "which reveal labels of few rows"
    trees, leaf, vote = experiment.booster.trees, getattr(experiment.booster, "leaves", 64), merge.vote
    about = f"of gradients, hessians and rows, for every leaf of at most {trees:,} trees, {each}; no noise"
    sent = min(4 * vote, 2 * plan.features) if vote else plan.features  # a vote is for both parts of a leaf
    yield Outgoing("histograms", COORDINATOR, 24 * 256 * sent, trees * leaf, False, about)
    if vote:
        voted = f"for the {vote} features with the largest gain on own rows, for every leaf; no noise"
        size = 8 * 2 * plan.features if merge.secure else 2 * -(-plan.features // 8)
        yield Outgoing("votes", COORDINATOR, size, trees * leaf, False, voted)
    yield Outgoing("number of rows, and sum of nDCG@10", COORDINATOR, 24, trees, False, "of own queries")


def _of_silos(plan: Plan, settings: SiteSettings) -> _Disclosed:
    partners, others = len(plan.sites) - 1, "the other sites, sealed"
    leaves: tuple[Outgoing, ...] = (
        Outgoing("answers", others, 0, partners, True, "from a noised sketch of own documents"),
        Outgoing("questions", others, 0, partners, False, "words of own queries, which the others read"),
        Outgoing("model", "the next site, sealed; the last one to all", 1024, plan.rounds, False, "weights, no noise"),
    )
    leaves += tuple(_technical(plan, settings, sum(one.times for one in leaves)))
    sees, down = "the coordinator forwards sealed letters that it cannot read", len(request("forest", plan.run, 1))
    return _Disclosed(leaves, sees, not_covered(plan, settings), down)


def _technical(plan: Plan, settings: SiteSettings, answers: int, noised: Sequence[str] = ()) -> Iterable[Outgoing]:
    """What a site sends besides contributions, of which there are `answers`."""
    about = "number of features, digest of their names, normalisation, version of fedrank"
    about += ", highest relevance label" if plan.silos is not None else ""
    facts = {
        "version": __version__, "protocol": PROTOCOL, "last": 0, "measures": [], "noised": list(noised),
        "features": plan.features, "feature_names": plan.feature_names, "normalised": plan.normalised,
    }  # fmt: skip
    if not plan.simulated:
        with suppress(ValueError, OSError):  # the data are checked elsewhere
            facts["data"] = about_data(settings.data)
        about += ", kind, unit and retention of the data"
    if plan.summed:
        facts["identities"] = {str(settings.id): "0" * 64}
        about += ", public key"
    yield Outgoing("facts", COORDINATOR, _bytes_of_facts(facts), 1, False, about)
    confirmed = 1 + (release_of(plan, PROPENSITY) is not None)
    about = "that the model, or the propensities of all sites, were received"
    yield Outgoing("confirmations", COORDINATOR, _bytes_of_facts({"kept": True}), confirmed, False, about)
    if not plan.simulated:
        about = "once after each start"
        size = len(reply("letters", Label("letters", plan.run, 0), 0, letters=b""))
        yield Outgoing(STATEMENTS, COORDINATOR, size, 1, False, about)
        about = "with every answer, at most: counters and hashes of the journals of this and other sites"
        times = answers + 2 + confirmed
        yield Outgoing("signed heads", COORDINATOR, most_bytes(len(plan.sites)), times, False, about)
    yield REFUSALS


def _bytes_of_facts(facts: Mapping[str, Any]) -> int:
    return len(reply("facts", Label("facts", bytes(16), 0), 0, facts=protocol.facts(facts)))


def _with_sketch_costs(view: PlanView, folder: Path, experiment: SiloExperiment) -> PlanView:
    """Add the costs of sketches: a sketch of the same documents and settings is charged once, in a separate ledger."""
    because = "Gaussian noise in the sketch of the document and in that of the document frequencies, drawn once"
    guarantee = experiment.method.sketcher.guarantee("silos that see answers", because, "once")  # type: ignore[attr-defined]
    ledger = folder / SILO_LEDGER
    spent = SiloLedger.spent_at(ledger)
    found = Price.of_each([guarantee], 1, 1, view.delta)
    after = {guarantee.against: max(spent, found[0].total)}
    return replace(view, prices=tuple(found), spent={guarantee.against: spent}, after=after)


def leaving_of(plan: Plan, settings: SiteSettings, share: SiteSplit | None = None) -> Iterable[Outgoing]:
    """Everything that a site sends in a run, with its size."""
    experiment, placement = plan.experiment, plan.secure_sum
    clients = len(next((site.clients for site in plan.sites if site.name == settings.name), (0,)))
    often = experiment.arrival is not None or experiment.deals_persons  # a site with persons is in every round
    times = experiment.rounds if often else experiment.most_participations()
    covered = experiment.mechanism is not None
    if placement is not None:
        about = f"{plan.sent:,} masked integers with a part of the distributed noise; keys, secret shares, signatures"
        size = _bytes_of_sum(plan, placement.bits, clients)
        yield Outgoing("masked update", f"{COORDINATOR}, which learns only the sum", size, times, True, about)
    else:
        kind, count = payload_of(experiment.learner, experiment.mechanism, plan.sent)
        what, about = "update", f"{count:,} numbers"
        if isinstance(kind, np.dtype):
            what, about = "rewards", "a seed and two mean rewards"
        yield Outgoing(what, COORDINATOR, _bytes_up(plan, clients), times, covered, about)
    if not covered:
        yield Outgoing("interactions behind an update", COORDINATOR, 0, times, False, "one number, within the update")
    if has_trait(experiment.local, "common"):
        about = "nothing more is sent: the coordinator computes the control of each site from its update"
        yield Outgoing("control of SCAFFOLD", f"{COORDINATOR}; their mean to all sites", 0, times, covered, about)
    if has_trait(experiment.local, "shared part"):
        yield Outgoing("own part of the model", "not sent", 0, 0, True, "FedPer")
    if names := _plain_measures(plan, settings, share):
        about = f"sums of {', '.join(names)} over own queries, for the model and for the current ranking; no noise"
        yield Outgoing("sums of measures", COORDINATOR, 64 * len(names), 1, False, about)
    measures = settings.policy.released_measures if share is None or share.test is not None else ()
    releases = releases_of(plan, measures)
    for release in releases or ():
        assert releases is not None
        cost = max(one.epsilon(1, settings.policy.delta) for one in releases.promises(release))
        about = (
            f"{WORDS[release.kind]}: {release.numbers} sums over people, each person clipped to {release.clip:.3g}, "
            f"with noise of {release.deviation:.3g} from this site; alone ε = {up(cost)}"
        )
        to = f"{COORDINATOR}, and to all sites" if release.kind == PROPENSITY else COORDINATOR
        size = len(reply("facts", Label("facts", plan.run, 0), 0, facts=protocol.sums([0.0] * release.numbers)))
        yield Outgoing(f"noised sums: {release.kind}", to, size, 1, True, about)
    phases = len(PHASES) if placement is not None else 1
    answers = phases * times + len(list(releases or ())) + bool(_plain_measures(plan, settings, share))
    noised = [] if releases is None or release_of(plan, QUALITY, measures) is None else releases.names
    yield from _technical(plan, settings, answers, noised)
    if plan.simulated:
        yield Outgoing("online quality", COORDINATOR, 16 * clients, times, False, "of simulated people, in trials only")


def _plain_measures(plan: Plan, settings: SiteSettings, share: SiteSplit | None) -> list[str]:
    """Measures that a site reports without noise."""
    if plan.simulated or not settings.policy.plain_measures or (share is not None and share.test is None):
        return []
    return [name for name in plan.experiment.measures if name in settings.policy.measures]


def sum_view(plan: Plan) -> SumView | None:
    """The properties of the plan's secure aggregation; None without it."""
    if not plan.summed:
        return None
    mechanism: Any = plan.experiment.mechanism
    placement = mechanism.placement
    together = int(plan.cohort)
    threshold = threshold_for(together, placement.colluders(together), active=True)
    opened = max(threshold, placement.opened(together))
    return SumView(together, threshold, opened, max(0, together - opened), bool(plan.federated.dealt))


def drafts(text: str, settings: SiteSettings, own: RankingData | None) -> list[Plan]:
    """The plans of a spec before it is planned, assuming that all sites have the features of this site.

    Its data are the coordinator's, so their paths are not opened. The other sites are not known yet.
    """
    tables = parse_toml(text)
    data = tables.get("data")
    given = data if isinstance(data, dict) else {}
    agreed = {key: given[key] for key in ("folds", "propensities", "bias") if key in given}
    grid = read_tables(tables | {"data": {"name": ELSEWHERE, "folds": [1]} | agreed}, full_check=False)
    found = []
    for variant in grid.variants:
        experiment = variant.experiment
        if not isinstance(experiment, FederatedExperiment | TreesExperiment | SiloExperiment):
            raise ValueError(f"kind: {shown(grid.kind)} is not supported between sites; use `fedrank run`")
        # A spec does not state how many sites merge forests: assume the minimum of this site.
        count = settings.policy.min_sites
        if not isinstance(experiment, TreesExperiment):
            count = experiment.silos.count if isinstance(experiment, SiloExperiment) else experiment.clients.count
        ids = [settings.id, *(id for id in range(count + 1) if id != settings.id)][:count]
        names = [settings.name, *(f"another-site-{number}" for number in range(1, count))]
        parties = [PlannedSite(name, (id,)) for name, id in zip(names, ids, strict=True)]
        features: dict[str, Any] = {}
        if own is not None:
            features = features_of(own)
        elif not isinstance(experiment, SiloExperiment):
            raise ValueError("this site has no queries, so a spec cannot be compared with its data; set letor or log")
        of = settings.federation
        found += [
            make_plan(
                experiment.single(fold, seed), variant.name, parties, federation=of, fold=fold, seed=seed, **features
            )
            for fold, seed in grid.repeats()
        ]
    return found


def about_plan(view: PlanView) -> list[Section]:
    """A plan in sentences and tables."""
    who = [
        ("run", view.run),
        ("plan", view.digest[:12]),
        ("federation", view.federation),
        ("rounds", f"{view.rounds:,}"),
    ]
    who.append(("here", view.word or "not accepted yet"))
    first = Section("").pairs(who)
    if view.simulated:
        first = first.paragraph("A trial on one machine: people are simulated and not protected.", tone="warn")
    if view.partners:
        rows = [[Cell(one.name, tone="name"), one.fingerprint, _compared(one)] for one in view.partners]
        first = first.table(["with", "key", "compared"], rows, 3, unbroken_column=1)
    sections = [first, _refused(view), _leaving(view)]
    if view.sum is not None:
        sections.append(Section("Secure aggregation").points(view.sum.lines()))
    return [*sections, _costs(view), Section("What is not covered").points(view.not_covered)]


def as_facts(view: PlanView) -> dict[str, Any]:
    """The same as data for a file; values without a guarantee are null."""
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
    section = Section("What would be refused")
    if not view.refused:
        return section.paragraph("Nothing: the plan fits the policy of this site.")
    return section.paragraph("This site would refuse the plan:", tone="warn").points(view.refused)


def _leaving(view: PlanView) -> Section:
    rows = [
        [
            Cell(one.what, tone="name"),
            one.to,
            amount("bytes", one.bytes_each) if one.bytes_each else "",
            amount("bytes", one.bytes_in_all) if one.bytes_each else "",
            Cell("yes" if one.covered else "no", tone="" if one.covered else "warn"),
        ]
        for one in view.leaves
    ]
    notes = [f"{one.what}: {one.about}" for one in view.leaves if one.about]
    section = Section("What this site sends")
    section = section.table(["sent", "to", "each time", "total", "covered by ε"], rows, 2, notes=notes)
    return section.paragraph(f"{view.sees[0].upper()}{view.sees[1:]}.").paragraph(
        "Bytes are those of messages, as the privacy card counts them: without TLS, repeated requests, and what a "
        f"restarted site sends again. {amount('bytes', view.bytes_down)} are received per round.",
        tone="quiet",
    )


def _costs(view: PlanView) -> Section:
    section = Section("What it costs")
    if not view.prices:
        return section.add(*about_prices(view.prices))
    section = section.paragraph("This run alone:").add(*about_prices(view.prices))
    limit = "no limit" if view.limit is None else f"ε = {view.limit:g} at δ = {view.delta:g}"
    rows = [(against, _cost(view.spent.get(against, 0.0)), _cost(cost)) for against, cost in view.after.items()]
    section = section.paragraph(f"All runs on the people of this site (limit: {limit}):")
    return section.table(["against", "so far", "after"], rows)


def _cost(cost: float) -> str:
    return "no guarantee" if math.isinf(cost) else f"ε = {up(cost)}"


def _compared(partner: PartnerView) -> str:
    if not partner.fingerprint:
        return "the plan has no key"
    if partner.changed:
        return "no: differs from the key compared before; call the site before you accept with --new-key"
    return "yes" if partner.pinned else "no: compare by telephone"


def _partner(site: PlannedSite, pinned: Mapping[str, str]) -> PartnerView:
    known = fingerprint(site.identity) if site.identity else ""
    before = pinned.get(site.name, "")
    same = bool(site.identity) and before == site.identity
    return PartnerView(site.name, known, same, bool(site.identity and before) and not same)


def _bytes_up(plan: Plan, clients: int) -> int:
    kind, count = payload_of(plan.experiment.learner, plan.experiment.mechanism, plan.sent)
    message = Message(plan.run, 1, 0, np.zeros(count, dtype=kind), 1).pack()
    return len(Answers((message,) * clients, np.empty(0), np.empty(0)).pack(Label("answers", plan.run, 1, 0, 0)))


def _bytes_of_sum(plan: Plan, bits: int, clients: int) -> int:
    """The size of all messages of one round, with envelopes."""
    at, nothing = Label("answers", plan.run, 1, 0, 0), (b"",) * clients
    first = len(Answers(nothing, np.empty(0), np.empty(0)).pack(at))
    later = len(reply("letters", at, 0, letters=bundle(nothing)))
    own = message_bytes(int(plan.cohort), plan.sent, bits, signed=True)
    return clients * own + first + len(PHASES[1:]) * later


def _bytes_down(plan: Plan) -> int:
    weights = np.zeros(plan.sent, dtype=np.float32)
    common = weights if has_trait(plan.experiment.local, "common") else None
    return len(Call(plan.run, 1, weights, 1.0, common=common).pack())


def _finite(costs: Mapping[str, float]) -> dict[str, float | None]:
    return {against: None if math.isinf(cost) else cost for against, cost in costs.items()}


def _count(many: int, one: str) -> str:
    return f"1 {one}" if many == 1 else f"{many} {one}s"
