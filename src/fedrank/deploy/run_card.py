"""The privacy card of a deployed run, made from what the coordinator received, not from the spec alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedrank.deploy.data_sources import SEARCH_LOG
from fedrank.deploy.plan import Plan
from fedrank.deploy.received import HEADS, UNKNOWN, ReceivedAnswers, Total
from fedrank.deploy.releases import GATE, PROPENSITY, QUALITY, WORDS, release_charges, release_of
from fedrank.deploy.settings import LOCAL
from fedrank.deploy.show import sum_view
from fedrank.experiments.runner.folder import Card
from fedrank.experiments.runner.not_covered import not_covered_between_sites
from fedrank.experiments.runner.privacy import Price
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.privacy.guarantees import up
from fedrank.privacy.mechanisms import AtServer

Charges = Mapping[str, Any]  # guarantees of releases besides updates, by kind

NO_NOISE = "none"
NO_DATA = "none needed: it does not depend on data"
# By request: what its answers contain, and whether they depend on a site's data.
CONTENTS = {
    "hello": ("facts: versions, features, kind and retention of the data", False),
    "witness": ("signed statements about the journals of other sites", False),
    "partners": ("confirmations of keys", False),
    "round": ("updates", True),
    "advertise": ("public keys of secure aggregation", False),
    "share": ("encrypted secret shares of secure aggregation", False),
    "mask": ("masked updates, of which the coordinator learns only the sum", True),
    "sign": ("signatures of secure aggregation", False),
    "open": ("secret shares that remove the masks of a sum", False),
    "forest": ("forests", True),
    "grow": ("messages of a forest that is trained together: histograms or noised sums, votes, keys", True),
    "silo-key": ("public keys of sites", False),
    "silo-meet": ("wrapped keys for other sites", False),
    "silo-open": ("confirmations of keys", False),
    "silo-ask": ("sealed questions to other sites", True),
    "silo-answer": ("sealed answers from sketches of documents", True),
    "silo-hear": ("confirmations of answers", False),
    "silo-turn": ("weights, sealed for the next site", True),
    "propensity": (f"sums over people: {WORDS[PROPENSITY]}", True),
    "propensities": ("confirmations of propensities", False),
    "quality": (f"sums over people: {WORDS[QUALITY]}", True),
    "gate": (f"sums over people: {WORDS[GATE]}", True),
    "measure": ("sums of measures over own queries, for the model and for the current ranking", True),
    "merged": ("confirmations of the result", False),
    "result": ("confirmations of the result", False),
    HEADS: ("signed heads of journals, with every answer", False),
}
NOISED = ("round", "mask", "grow", "silo-answer")  # answers to which the mechanism of a run applies
COLLUDERS = ("coordinator", "coordinator and one site", "coordinator and two sites, or two sites alone")


def with_what_left(
    card: Card,
    plan: Plan,
    received: ReceivedAnswers,
    gate: Mapping[str, Any] | None = None,
    releases: Collection[str] = (),
) -> Card:
    """A card that also lists everything that left the sites, their data, the ε against colluders, and the gate.

    `releases` are the kinds of sums over people that were requested. All are priced: a site may have released a sum
    that did not arrive.
    """
    totals = received.totals()
    left = what_left(totals, card, plan)
    charges = {kind: promises for kind, promises in _charges(plan).items() if kind in releases}
    collusion = against_colluders(card, plan, charges)
    sites = {site.name: _described(received.described, site.name) for site in plan.sites}
    browsers = [name for name, one in sites.items() if one.get("unit") == "browser"]
    not_covered = not_covered_between_sites(
        plan.question,
        logs=any(SEARCH_LOG in one["data"] for one in sites.values()),
        browsers=browsers,
        plain=[one.site for one in totals if (one.request, one.answer) == ("measure", "facts")],
    )
    deployment = {
        "federation": plan.federation,
        "one_machine": plan.federation == LOCAL,
        "unit": card.promises[0].unit if card.promises else None,
        "sites": sites,
        "coordinator": "stores the run folder, with sites.csv and received.csv, until it is deleted",
        "left": left,
        "collusion": collusion,
        "releases": (released := _released(charges, card.delta)),
        **({} if gate is None else {"gate": dict(gate)}),
    }
    about = [about_left(left), *about_collusion(collusion, plan), *_about_released(released)]
    if browsers and deployment["unit"] == "person":
        about.insert(0, f"ε is for one browser, not for one person, at {', '.join(browsers)}.")
    if gate is not None:
        about.append(f"Gate: {gate['outcome']} ({'; '.join(gate['words'])}).")
    summary = " ".join([card.summary, *about])
    return replace(card, deployment=deployment, not_covered=not_covered, summary=summary)


def _charges(plan: Plan) -> Charges:
    """The cost of every sum over people that a site may release besides updates."""
    return release_charges(plan, plan.question.measures)


def _released(charges: Charges, delta: float) -> list[dict[str, Any]]:
    """The sums over people that sites released besides updates, each with its ε."""
    return [
        {"what": kind, "about": WORDS[kind], "epsilon": max(one.epsilon(1, delta) for one in promises)}
        for kind, promises in charges.items()
    ]


def _about_released(released: Sequence[Mapping[str, Any]]) -> list[str]:
    if not released:
        return []
    each = [f"{one['about']} (alone ε = {up(one['epsilon'])})" for one in released]
    return [f"The ε above includes sums over people that each site released once, with its noise: {'; '.join(each)}."]


def what_left(totals: Sequence[Total], card: Card, plan: Plan) -> list[dict[str, Any]]:
    """By kind of request and answer: what left all sites together, how often, its bytes, and its noise."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in totals:
        what, noise = _content(one.request, one.answer, card, plan)
        entry = found.setdefault(
            (one.request, one.answer),
            {"what": what, "request": one.request, "answer": one.answer, "times": 0, "bytes": 0, "noise": noise},
        )
        entry["times"] += one.times
        entry["bytes"] += one.bytes
    order = list(CONTENTS)
    return sorted(found.values(), key=lambda one: (order.index(one["request"]), one["answer"] == "refused"))


def data_of(plan: Plan, received: ReceivedAnswers, evaluated: str) -> str:
    """The data of the sites in their own words, and those by which the coordinator evaluated the model."""
    sites = [
        f"{site.name}: {one['data']}" for site in plan.sites for one in [_described(received.described, site.name)]
    ]
    return f"{'; '.join(sites)}; " + (
        f"evaluated by the coordinator on {evaluated}" if evaluated else "the coordinator has no data"
    )


def against_colluders(card: Card, plan: Plan, charges: Charges) -> list[dict[str, Any]]:
    """The ε against the coordinator alone, with one site, and with two sites; None: no privacy guarantee."""
    found = []
    for colluders, against in enumerate(COLLUDERS[: len(plan.sites)]):
        cost, because = _colluding(card, plan, colluders, charges)
        found.append({"against": against, "epsilon": cost, "delta": card.delta, "because": because})
    return found


def about_left(left: Sequence[Mapping[str, Any]]) -> str:
    """A sentence about everything that left."""
    each = [f"{one['what']} ({one['times']:,} x, {one['bytes']:,} bytes; noise: {one['noise']})" for one in left]
    return f"What left the sites before this card was sent to them: {'; '.join(each)}."


def about_collusion(collusion: Sequence[Mapping[str, Any]], plan: Plan) -> list[str]:
    """Sentences about parties that collude."""
    lines = []
    for one in collusion:
        claim = "no privacy guarantee" if one["epsilon"] is None else f"ε = {up(one['epsilon'])}"
        lines.append(f"Against the {one['against']}: {claim} ({one['because']}).")
    if plan.summed and len(plan.sites) == 3:
        lines.append(
            "With three sites, two that collude read the update of the third: they subtract their own from the sum."
        )
    return lines


def _content(request: str, answer: str, card: Card, plan: Plan) -> tuple[str, str]:
    what, data = CONTENTS[request]
    if answer == "refused":
        return f"refusals of {request} with their reasons", "none; not covered"
    if answer == UNKNOWN:
        return f"unreadable answers to {request}", "unknown"
    if not data:
        return what, NO_DATA
    if request in WORDS:
        release = release_of(plan, request, plan.question.measures)
        assert release is not None
        return what, f"gaussian, {release.noise:g} x {release.clip:.3g} (the most that a person adds), by each site"
    return what, _noise(card, plan) if request in NOISED else NO_NOISE


def _noise(card: Card, plan: Plan) -> str:
    """The noise of what a site sends, in words."""
    if card.mechanism is None:
        return NO_NOISE
    mechanism: Any = getattr(plan.question, "mechanism", None)
    if isinstance(getattr(mechanism, "placement", None), AtServer):
        return "none when it leaves; the coordinator adds it to the sum"
    name = card.mechanism["name"]
    if mechanism is None or not hasattr(mechanism, "noise"):
        return f"that of {name}"
    clip = f" x clip {mechanism.clip:g}" if hasattr(mechanism, "clip") else ""
    shared = "distributed over the sites of a sum" if plan.summed else "added by each site"
    return f"{name}, {mechanism.noise:g}{clip}, {shared}"


def _colluding(card: Card, plan: Plan, colluders: int, charges: Charges) -> tuple[float | None, str]:
    """The ε if this many sites collude with the coordinator, and why."""
    server = next((row for row in card.promises if row.against == "server"), None)
    if server is None or server.epsilon is None:
        because = "nothing is protected against it" if server is None else server.because
        return None, because
    if not isinstance(plan.question, FederatedExperiment):
        if colluders:
            return None, "the cost of collusion is not computed for this kind of run"
        return server.epsilon, server.because
    view = sum_view(plan)
    if view is None or not colluders:
        return server.epsilon, server.because if view is not None else "noise is added before an update leaves a site"
    # Colluders who can open masks of single sites are left with the noise of one site.
    opens = colluders >= min(view.threshold, 2 * view.threshold - view.sites)
    parts = 1 if opens else max(1, view.opened - colluders)
    remaining = "a single site" if parts == 1 else f"{parts} sites"
    because = f"they subtract their own values from a sum, in which the noise of {remaining} remains"
    mechanism: Any = plan.experiment.mechanism
    weaker = mechanism.with_parts(plan.cohort, parts)
    if weaker is None:
        return None, f"{because}; its cost is not known for this kind of noise"
    try:
        guarantees = replace(plan.experiment, mechanism=weaker).guarantees(plan.features)
        [row] = Price.of_each(guarantees[:1], server.times, server.times, server.delta)
    except ValueError:
        return None, f"{because}, which is too little for a guarantee"
    # Each site adds all of its noise to the sums that it releases besides updates.
    cost = row.with_releases(charges.values()).paid.epsilon
    return None if cost is None else max(cost, server.epsilon), because


def _described(described: Mapping[str, Mapping[str, Any]], site: str) -> dict[str, Any]:
    return dict(described.get(site, {"data": "not described", "keep_days": None}))
