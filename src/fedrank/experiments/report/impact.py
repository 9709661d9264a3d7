"""A data protection impact assessment, begun: what a spec, a data set, privacy cards and ledgers say is filled in.

It follows Article 35(7) of the GDPR: what is done and why, whether it is needed, the risks, the measures. What only a
person can say is marked with TO FILL IN. It states no guarantee that a card does not state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedrank import __version__
from fedrank.data.describe_log import date_of
from fedrank.data.logs import SearchLog, load_log
from fedrank.experiments.report.privacy_output import about_privacy
from fedrank.experiments.report.sections import Paragraph, Part, Points, Section, Span, Table, paragraph
from fedrank.experiments.runner.cards import about_population, log_card, read_card
from fedrank.experiments.runner.folder import DEPLOYED_RUN, Card, Json
from fedrank.experiments.runner.not_covered import not_covered_between_sites
from fedrank.experiments.runner.releases import PersonReleases
from fedrank.experiments.runner.runs import Run, load_runs
from fedrank.experiments.runner.traces import history_of
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.grid import Grid
from fedrank.experiments.spec.source import read_spec
from fedrank.files import now
from fedrank.privacy.guarantees import up

TO_FILL_IN = "TO FILL IN: "
NOT_SAID = "not stated"
DISCLAIMER = (
    "This is a template, not an assessment or legal advice. fedrank filled in what files contain; people must decide "
    "whether it is true of the processing as a whole and whether it is sufficient."
)


@dataclass(frozen=True)
class Assessed:
    """What the assessment is about."""

    source: str
    grid: Grid[Any]
    runs: tuple[tuple[Run, Card | None], ...] = ()  # finished ones with their cards; empty: nothing has run yet

    @property
    def experiment(self) -> Any:
        return self.grid.base

    @cached_property
    def cards(self) -> list[Card]:
        return [card for _, card in self.runs if card is not None]

    @cached_property
    def deployments(self) -> list[Json]:
        return [card.deployment for card in self.cards if card.deployment is not None]

    @property
    def browsers(self) -> list[str]:
        """Sites that declared that users of their logs are browsers."""
        described = [one["sites"].items() for one in self.deployments]
        return list(dict.fromkeys(name for sites in described for name, site in sites if site.get("unit") == "browser"))

    @cached_property
    def log(self) -> SearchLog | None:
        folder = getattr(getattr(self.experiment, "data", None), "log", None)
        return None if folder is None else load_log(folder)

    @cached_property
    def log_card(self) -> Card | None:
        return None if self.log is None else read_card(self.log.folder) or log_card(self.log)

    @property
    def log_readers(self) -> str:
        """Who can read the folder of the log: "owner", or "others"."""
        assert self.log is not None
        return "others" if self.log.folder.stat().st_mode & 0o077 else "owner"

    @property
    def is_deployed(self) -> bool:
        """Whether sites took part or will, whose people and data the spec does not know."""
        return self.at_sites or any(card.what == DEPLOYED_RUN for card in self.cards)

    @property
    def at_sites(self) -> bool:
        """Whether only sites have data."""
        return bool(getattr(getattr(self.experiment, "data", None), "at_sites", False))

    @property
    def protection(self) -> list[str]:
        """What the variants say of the protection of updates."""
        points: list[str] = []
        for variant in self.grid.variants:
            spec = variant.experiment
            if isinstance(spec, FederatedExperiment):
                budget, every = spec.privacy.budget, spec.record_every
                points += [
                    f"protection of updates: {'none' if spec.mechanism is None else describe(spec.mechanism)['name']}",
                    *(["no budget stops a run"] if budget is None and not self.at_sites else []),
                    *([] if budget is None else [f"a run stops at ε = {budget:g}"]),
                    f"recorded updates: {f'every {every} rounds' if every else 'none'}",
                ]
        if self.at_sites:
            points.append(
                "limits of each site: its policy (site.toml), with ε over all runs, and its acceptance of a plan"
            )
        return list(dict.fromkeys(points))


def read_assessed(source: str | Path, trust: bool = False) -> Assessed:
    """A spec, by its file or name; or finished runs, by their folder."""
    if not Path(source).is_dir():
        return Assessed(str(source), read_spec(source, trust=trust))
    finished = load_runs(source).finished
    if not len(finished):
        raise ValueError(f"{source} holds no finished run; name a spec, to assess what is planned, or finished runs")
    whole = finished[0].folder / "experiment.toml"
    spec = whole if whole.exists() else finished[0].path / "spec.toml"
    return Assessed(str(source), read_spec(spec, trust=trust), tuple((run, read_card(run.path)) for run in finished))


def impact(assessed: Assessed, home: Path = Path("runs")) -> list[Section]:
    """The whole document; ledgers of populations are below `home`."""
    parts = (
        paragraph(DISCLAIMER, tone="warn"),
        paragraph(f"Begun on {now()[:10]} with fedrank {__version__} from {assessed.source}."),
        *_participants(assessed),
        _fill(
            "controller, or joint controllers and their arrangement (Article 26); data protection officer; who "
            "wrote this, and who was asked"
        ),
        Section("1. What is processed, and why", tuple(_processing(assessed))),
        Section("2. What leaves people's devices or organisations, and who sees it", tuple(_leaving(assessed))),
        Section("3. Whether it is necessary, and in proportion", tuple(_necessity(assessed))),
        Section("4. What is promised to people, and what it has cost", tuple(_promises(assessed, home))),
        Section("5. What is not covered", tuple(_not_covered(assessed))),
        Section("6. Risks", tuple(_risks(assessed))),
        Section("7. Measures", tuple(_measures(assessed))),
        Section("8. Rights of people", tuple(_rights(assessed))),
        Section(
            "9. Advice and decision",
            (
                _fill("advice of the data protection officer (Article 35(2))"),
                _fill("views of those concerned, or why they were not asked (Article 35(9))"),
                _fill("risk that remains; whether the authority has to be consulted (Article 36)"),
                _fill("decision, by whom, when; date of the next review (Article 35(11))"),
            ),
        ),
    )
    return [Section(f"Data protection impact assessment: {assessed.grid.title}", parts)]


def _fill(what: str) -> Paragraph:
    return paragraph(Span(TO_FILL_IN, style="strong"), f"{what}.")


def _of_run(run: Run, text: str) -> Paragraph:
    return paragraph(Span(run.label, style="strong"), text)


def _each(points: Iterable[str], otherwise: str = NOT_SAID) -> str:
    """Every point once, in one line."""
    return "; ".join(dict.fromkeys(points)) or otherwise


def _table(what: str, rows: Sequence[tuple[str, str]]) -> Table:
    return Table([what, "meaning"], rows, 2)


def _participants(assessed: Assessed) -> Iterable[Part]:
    """Who issued the cards, and which sites took part."""
    if issuers := _each((card.issuer for card in assessed.cards if card.issuer), ""):
        yield paragraph(f"Issuer of the privacy cards: {issuers}.")
    if sites := dict.fromkeys(site for each in assessed.deployments for site in each["sites"]):
        yield paragraph(f"Sites that took part: {', '.join(sites)}.")


def _processing(assessed: Assessed) -> Iterable[Part]:
    spec, log = assessed.experiment, assessed.log
    rows = [("kind of learning", spec.kind), ("variants", str(len(assessed.grid.variants)))]
    if isinstance(spec, FederatedExperiment):
        count = f"{spec.clients.count:,}"
        divided = f"{count}, partition {describe(spec.clients.partition)['name']}"
        rows += [
            ("rounds", f"{spec.rounds:,}"),
            ("clients", f"{count} sites, each with its own data" if assessed.is_deployed else divided),
            ("people of a client", f"{spec.clients.people:,}{' at most' if assessed.is_deployed else ''}"),
            ("learner", describe(spec.learner)["name"]),
            *([] if assessed.is_deployed else [("population", spec.population)]),
        ]
    named = ("name", "log", "collection", "train", "test", "users", "features", "propensities")
    values = {name: getattr(getattr(spec, "data", None), name, None) for name in named}
    rows += [(f"data.{name}", str(value)) for name, value in values.items() if value is not None]
    if (gate := getattr(spec, "gate", None)) is not None:
        terms = f"margin {gate.margin:g} clicks per list, error rate {gate.alpha:g} a year, {gate.plans} plans a year"
        rows.append(("gate before an export", terms))
    yield _table("what the spec says", rows)
    if log is not None:
        yield _table("what the data set says", _of_log(log))
        if log.unit == "browser":
            yield paragraph("Its users are browsers, not people: one person may be several, and several may be one.")
    yield _fill("purposes, and the legitimate interest where that is the basis (Article 35(7)(a))")
    yield _fill(
        "legal basis (Article 6; Article 9 if queries reveal health, beliefs or similar, as search queries often do)"
    )
    need = "whether children or others who need protection are among these people"
    sites = ((site, one) for each in assessed.deployments for site, one in each["sites"].items())
    said = _each((f"{site}: {one['data']}" for site, one in sites), "")
    yield _fill(f"{need} (data as sites describe them: {said})" if said else f"whose data these are, and {need}")
    yield from _retention(assessed)


def _retention(assessed: Assessed) -> Iterable[Part]:
    """How long data are kept, as far as files say."""
    if not assessed.deployments:
        yield _fill("how long raw logs, data sets, updates and models are kept")
        return
    days = {site: one.get("keep_days") for each in assessed.deployments for site, one in each["sites"].items()}
    said = [f"{site}: {f'{known:,} days' if known else 'no limit stated'}" for site, known in days.items()]
    coordinator = dict.fromkeys(f"the coordinator {each['coordinator']}" for each in assessed.deployments)
    yield paragraph(f"Retention of data: {'; '.join([*said, *coordinator])}.")
    if not all(days.values()):
        yield _fill("retention at the sites that state no limit, and of models")


def _of_log(log: SearchLog) -> list[tuple[str, str]]:
    facts, counts = log.facts, log.facts["counts"]
    settings: Mapping[str, Any] = facts.get("settings", {})
    redacted = sum(facts.get("redacted", {}).values())
    return [
        ("entries", f"{len(log):,} of {len(log.users):,} {log.unit}s"),
        ("time", f"{date_of(int(log.time[0]))} to {date_of(int(log.time[-1]))}" if len(log) else NOT_SAID),
        ("queries", f"{len(log.queries):,} different"),
        ("rows read to make it", f"{counts['rows']:,}" if "rows" in counts else NOT_SAID),
        ("kept for", f"{settings['keep_days']} days" if settings.get("keep_days") else NOT_SAID),
        ("queries whose text is not stored", f"{redacted:,}" if "redacted" in facts else NOT_SAID),
        *((f"left out, {reason}", f"{count:,}") for reason, count in facts.get("dropped", {}).items() if count),
    ]


def _leaving(assessed: Assessed) -> Iterable[Part]:
    for run, card in assessed.runs:
        text = NOT_SAID if card is None else f"{card.who_sees_what}; {card.kept_updates or 'no update is kept'}"
        yield _of_run(run, f": {text}.")
    if not assessed.runs and assessed.at_sites:
        yield from _would_leave(assessed.experiment)
    elif not assessed.runs:
        yield paragraph("Nothing has run yet. Section 4 lists what would leave, and to whom.")
    for run, card in assessed.runs:
        if card is not None and card.deployment is not None:
            left = card.deployment["left"]
            rows = [[one["what"], f"{one['times']:,}", f"{one['bytes']:,}", one["noise"]] for one in left]
            yield _of_run(run, ", received by the coordinator:")
            yield Table(["what left the sites", "times", "bytes", "noise"], rows, 1)
            yield paragraph("Recipients of the model and of its card: the coordinator and all sites above.")
    yield _fill(
        "further recipients, processors, and transfers to third countries; what else leaves (logs of services, "
        "metrics, backups, support)"
    )


def _would_leave(spec: FederatedExperiment) -> Iterable[Part]:
    """What each site would send, as the spec says."""
    protected = (
        "no" if spec.mechanism is None else f"clipped and noised per {getattr(spec.mechanism, 'unit', 'client')}"
    )
    rows = [["updates of the model", f"{spec.rounds:,}", protected]]
    for one in PersonReleases(spec, spec.clients.count, tuple(map(str, spec.measures))):
        about = f"each person clipped to {one.clip:.3g}, noise of {one.deviation:.3g}"
        rows.append([f"{one.kind}: {one.numbers} sums over people", "1", about])
    rows.append(["technical facts, confirmations, signed heads of journals, reasons of refusals", "", "no"])
    yield paragraph("Nothing has run yet. Each site would send:")
    yield Table(["what would leave a site", "times", "noise"], rows, 1)
    yield paragraph(
        "Recipients: the coordinator; sums of kind propensity also all sites; in a shared folder, all who can read it. "
        "Queries, documents and clicks stay at the site. For sizes, recipients and the budget of one site, run ",
        Span("fedrank deploy show SPEC --home SITE", style="code"),
        ".",
    )


def _necessity(assessed: Assessed) -> Iterable[Part]:
    gains = _gains(assessed)
    why = "why a ranker has to learn from people at all"
    if gains:
        yield Points(tuple(gains))
    yield _fill(why if gains else f"{why}, and what it gains them (figures of an estimate or trial)")
    yield _fill("why less data is not enough: fewer people or searches, shorter logs, judgements instead of clicks")
    yield _fill("how people are informed, and how they can object")


def _gains(assessed: Assessed) -> list[str]:
    """The measured quality of the models, next to that of the baseline ranking."""
    found = []
    for run, _ in assessed.runs:
        for name in run.measures[:1]:
            values, before = run.queries[1].get(name), run.nothing.get(name)
            if values is None or not len(values):
                continue
            text = f"{run.label}: {name} is {float(np.nanmean(values)):.4f} on {len(values):,} test queries"
            if before is not None and len(before):
                text += f", {float(np.nanmean(before)):.4f} for the ranking before"
            found.append(text)
    return found


def _promises(assessed: Assessed, home: Path) -> Iterable[Part]:
    for run, card in assessed.runs:
        if card is None:
            yield _of_run(run, ": it has no privacy card, so there is no privacy guarantee.")
            continue
        yield _of_run(run, f": {card.summary.partition(' Not covered: ')[0]}")  # covered in a separate section
        rows = []
        for paid in card.promises:
            epsilon = "no privacy guarantee" if paid.epsilon is None else up(paid.epsilon)
            rows.append([paid.against, epsilon, f"{paid.delta:g}", paid.unit, paid.often])
        if rows:
            yield Table(["against", "ε", "δ", "for", "paid"], rows, 5)
        if card.population is not None:
            yield paragraph(about_population(card.population))
        elif card.budget is not None:
            yield paragraph(f"The run was to stop at ε = {card.budget:g}.")
    if not assessed.runs:
        yield paragraph("Planned, before anything has run:")
        for section in about_privacy(assessed.grid, home=home):
            if section.heading:
                yield paragraph(Span(section.heading, style="strong"))
            yield from section.parts
    yield _fill("whether this ε is acceptable for these people, and who decided that")


def _not_covered(assessed: Assessed) -> Iterable[Part]:
    cards = [*assessed.cards, *([assessed.log_card] if assessed.log_card else [])]
    points = tuple(dict.fromkeys(point for card in cards for point in card.not_covered))
    if not assessed.runs and assessed.at_sites:
        points += not_covered_between_sites(assessed.experiment)
    yield Points(points) if points else paragraph("There is no privacy card yet.")
    yield _fill("what of this matters here, and what is done about it")


def _risks(assessed: Assessed) -> Iterable[Part]:
    rows = [[risk, *(text or TO_FILL_IN.strip() for text in texts)] for risk, *texts in _risks_to_people(assessed)]
    yield Table(["risk to people", "known facts", "known measures"], rows, 3)
    yield _fill("how severe each risk is for these people, whether what is done is enough, and risks not in the table")


def _risks_to_people(assessed: Assessed) -> Iterable[tuple[str, str, str]]:
    """What could happen, what files say about it, and what is done; a text is empty where files do not know."""
    spec, cards, log = assessed.experiment, assessed.cards, assessed.log
    claims = _each((card.claim for card in cards), "see the prices under 4")
    protection = _each((point for point in assessed.protection if "recorded" not in point), "")
    yield "An attacker reads from an update what a person clicked or searched for", claims, protection
    yield "The model reveals that a person's searches were in the training data", claims, protection
    seen, readable = "", ""
    if assessed.deployments:
        requests = [one["request"] for each in assessed.deployments for one in each["left"]]
        if not any(request.startswith("silo-") for request in requests):  # these contain words or documents
            seen = "no query, document or user id left a site in plain text"
        readable = "the data stay at the sites; what left is listed under 2"
    elif assessed.at_sites:
        readable = "the data would stay at the sites; what would leave is listed under 2"
    elif assessed.log_card is not None:
        seen = assessed.log_card.who_sees_what
        readable = f"its folder is readable by {'its owner only' if assessed.log_readers == 'owner' else 'others'}"
    yield "A reader of the data set learns who searched for what", seen, readable
    yield "A query names a person, who is recognised", seen, readable
    promises = [paid for card in cards for paid in card.promises]
    unit = getattr(getattr(spec, "mechanism", None), "unit", "")
    units = [
        *(f"ε is for {paid.unit}" for paid in promises),
        *([f"ε is for one {unit}; a site's log decides what its users are"] if assessed.at_sites and unit else []),
        *([f"users of the data set are {log.unit}s"] if log else []),
        *(f"users of the log of {site} are browsers" for site in assessed.browsers),
    ]
    several = "One person uses several devices or browsers, and is protected as if they were several"
    yield several, _each(units, ""), _each((f"ε is paid {paid.often}" for paid in promises), "")
    every = getattr(spec, "record_every", 0)
    recorded = f"updates are recorded every {every} rounds, in history/" if every else "updates are not recorded"
    if assessed.at_sites:
        recorded += "; what left stays in outbox/ of each site, and released sums in releases.json of the coordinator"
    kept = _each((card.kept_updates or "no update is kept" for card in cards), "")
    yield "Stored updates are read later", kept, recorded
    senders, rule = "", ""
    if isinstance(spec, FederatedExperiment):
        senders = f"{spec.clients.count:,} clients or sites send updates"
        rule = f"aggregation by {describe(spec.aggregator)['name']}; every message is checked before it is used"
    yield "An attacker sends forged events or updates, and other users get worse results", senders, rule
    measured = any((run.path / "clients.csv").exists() for run, _ in assessed.runs)
    by_client = "quality by client or site is measured, in clients.csv" if measured else ""
    yield "The model ranks worse for some people than for others", _spread(assessed), by_client


def _spread(assessed: Assessed) -> str:
    """The lowest and highest quality of any client or site, where it was measured."""
    found = []
    for run, _ in assessed.runs:
        measured = run.clients[1]
        for name in [name for name in run.measures if name in measured][:1]:
            values = measured[name][~np.isnan(measured[name])]
            if len(values):
                found.append(f"{run.label}: {name} from {values.min():.4f} to {values.max():.4f} over {len(values)}")
    return "; ".join(found)


def _measures(assessed: Assessed) -> Iterable[Part]:
    points = assessed.protection
    if recorded := [run.label for run, _ in assessed.runs if history_of(run.path) is not None]:
        points.append(f"runs with updates in history/: {', '.join(recorded)}")
    if assessed.log is not None:
        settings = assessed.log.facts.get("settings", {})
        points += [
            f"retention when the data set was built: {settings.get('keep_days') or 'no limit'}",
            f"redaction of queries: {_settings(settings.get('redaction'))}",
            f"limits for one client: {_settings(settings.get('caps'))}",
            "the folder of the data set can be read by "
            + ("its owner only" if assessed.log_readers == "owner" else "others, too"),
        ]
    yield Points(tuple(points) or ("no file describes measures",))
    yield _fill("access control, encryption of disks, logging of access, training of staff")
    yield _fill("how a worse model is noticed and rolled back (fedrank engine trial), and by whom")


def _settings(values: Any) -> str:
    if not isinstance(values, dict):
        return "none"
    return ", ".join(f"{name} = {value}" for name, value in values.items() if value not in (None, "", [], ())) or "none"


def _rights(assessed: Assessed) -> Iterable[Part]:
    if (log := assessed.log) is not None:
        gone = len(log.facts.get("forgotten", ()))
        yield paragraph(f"Requests to be forgotten that the data set has carried out: {gone:,}.")
        yield paragraph(
            "Erasure: ",
            Span(f"fedrank forget person ID --data {log.folder}", style="code"),
            " removes a person's rows and names the runs whose models learned from them. It changes no model; the "
            "receipt says what each still holds, and under which ε.",
        )
    if any(run.unlearned is not None for run, _ in assessed.runs):
        yield paragraph("Among these runs are some that clients were unlearned from; their receipts say how.")
    yield _fill("how a person learns their id in the log without further identification")
    yield _fill("access, rectification, objection, and complaints: who answers, and within which time")
