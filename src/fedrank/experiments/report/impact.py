"""A data protection impact assessment, begun: what a spec, a data set, privacy cards and ledgers say is filled in.

It follows Article 35(7) of the GDPR: what is done and why, whether it is needed, the risks, the measures. What only a
person can say is marked with TO FILL IN. It states no guarantee that a card does not state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrank import __version__
from fedrank.data.describe_log import date_of
from fedrank.data.logs import SearchLog, load_log
from fedrank.experiments.report.command_output import about_privacy
from fedrank.experiments.report.sections import Paragraph, Part, Points, Section, Span, Table, paragraph
from fedrank.experiments.runner.cards import about_population, log_card, read_card
from fedrank.experiments.runner.folder import DEPLOYED_RUN, Card
from fedrank.experiments.runner.runs import Run, load_runs
from fedrank.experiments.runner.traces import history_of
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.grid import Grid
from fedrank.experiments.spec.source import read_spec
from fedrank.privacy.guarantees import up
from fedrank.privacy.population import now

TO_FILL_IN = "TO FILL IN: "
NOT_SAID = "not stated"
DISCLAIMER = (
    "This is a template, not an assessment or legal advice. fedrank filled in what files contain; people must decide "
    "whether it is true "
    "of the processing as a whole and whether it is sufficient."
)
RISKS = (  # what could happen to people, and to which part of a card it belongs
    ("An attacker reads from an update what a person clicked or searched for", "promises"),
    ("The model reveals that a person's searches were in the training data", "promises"),
    ("A reader of the data set learns who searched for what", "log"),
    ("A query names a person, who is recognised", "log"),
    ("One person uses several devices or browsers, and is protected as if they were several", "unit"),
    ("Stored updates are read later", "kept"),
    ("An attacker sends forged events or updates, and other users get worse results", "forged"),
    ("The model ranks worse for some people than for others", "unequal"),
)


@dataclass(frozen=True)
class Assessed:
    """What the assessment is about."""

    source: str
    grid: Grid[Any]
    cards: tuple[tuple[Run, Card | None], ...] = ()  # of finished runs; empty: nothing has run yet

    @property
    def experiment(self) -> Any:
        return self.grid.base

    @property
    def is_deployed(self) -> bool:
        """Whether sites took part, whose people and data the spec does not know."""
        return any(card is not None and card.what == DEPLOYED_RUN for _, card in self.cards)


def read_assessed(source: str | Path, trust: bool = False) -> Assessed:
    """A spec, by its file or name; or finished runs, by their folder."""
    if not Path(source).is_dir():
        return Assessed(str(source), read_spec(source, trust=trust))
    finished = load_runs(source).finished
    if not len(finished):
        raise ValueError(f"{source} holds no finished run; name a spec, to assess what is planned, or finished runs")
    first = next(iter(finished))
    whole = first.folder / "experiment.toml"
    spec = whole if whole.exists() else first.path / "spec.toml"
    return Assessed(str(source), read_spec(spec, trust=trust), tuple((run, read_card(run.path)) for run in finished))


def impact(assessed: Assessed, home: Path = Path("runs")) -> list[Section]:
    """The whole document; ledgers of populations are below `home`."""
    log = _log(assessed)
    return [
        Section(
            f"Data protection impact assessment: {assessed.grid.title}",
            (
                paragraph(DISCLAIMER, tone="warn"),
                paragraph(f"Begun on {now()[:10]} with fedrank {__version__} from {assessed.source}."),
                *_participants(assessed),
                _fill(
                    "controller, or joint controllers and their arrangement (Article 26); data protection officer; who "
                    "wrote this, and who was asked"
                ),
                _processing(assessed, log),
                _leaving(assessed),
                _necessity(assessed),
                _promises(assessed, home),
                _not_covered(assessed, log),
                _risks(assessed, log),
                _measures(assessed, log),
                _rights(assessed, log),
                _decision(),
            ),
        )
    ]


def _participants(assessed: Assessed) -> Iterable[Part]:
    """Who issued the cards, and which sites took part."""
    cards = [card for _, card in assessed.cards if card is not None]
    issuers = dict.fromkeys(card.issuer for card in cards if card.issuer)
    if issuers:
        yield paragraph(f"Issuer of the privacy cards: {'; '.join(issuers)}.")
    sites = dict.fromkeys(site for card in cards if card.deployment is not None for site in card.deployment["sites"])
    if sites:
        yield paragraph(f"Sites that took part: {', '.join(sites)}.")


def _whose(assessed: Assessed) -> Part:
    """Whose data these are, as far as sites describe them."""
    need = "whether children or others who need protection are among these people"
    said = dict.fromkeys(
        f"{site}: {one['data']}"
        for _, card in assessed.cards
        if card is not None and card.deployment is not None
        for site, one in card.deployment["sites"].items()
    )
    return _fill(
        f"{need} (data as sites describe them: {'; '.join(said)})" if said else f"whose data these are, and {need}"
    )


def _retention(assessed: Assessed) -> Iterable[Part]:
    """How long data are kept, as far as files say."""
    deployments = [card.deployment for _, card in assessed.cards if card is not None and card.deployment is not None]
    if not deployments:
        yield _fill("how long raw logs, data sets, updates and models are kept")
        return
    days = {site: one.get("keep_days") for each in deployments for site, one in each["sites"].items()}
    said = [f"{site}: {f'{known:,} days' if known else 'no limit stated'}" for site, known in days.items()]
    coordinator = dict.fromkeys(f"the coordinator {each['coordinator']}" for each in deployments)
    yield paragraph(f"Retention of data: {'; '.join([*said, *coordinator])}.")
    if not all(days.values()):
        yield _fill("retention at the sites that state no limit, and of models")


def _received(card: Card) -> Table:
    assert card.deployment is not None
    rows = [[one["what"], f"{one['times']:,}", f"{one['bytes']:,}", one["noise"]] for one in card.deployment["left"]]
    return Table(["what left the sites", "times", "bytes", "noise"], rows, 1)


def _gains(assessed: Assessed) -> list[str]:
    """The measured quality of the models, next to that of the baseline ranking."""
    found = []
    for run, _ in assessed.cards:
        for name in run.measures[:1]:
            values, before = run.queries[1].get(name), run.nothing.get(name)
            if values is None or not len(values):
                continue
            text = f"{run.label}: {name} is {float(np.nanmean(values)):.4f} on {len(values):,} test queries"
            if before is not None and len(before):
                text += f", {float(np.nanmean(before)):.4f} for the ranking before"
            found.append(text)
    return found


def _spread(assessed: Assessed) -> str:
    """The lowest and highest quality of any client or site, where it was measured."""
    found = []
    for run, _ in assessed.cards:
        measured = run.clients[1]
        for name in [name for name in run.measures if name in measured][:1]:
            values = measured[name][~np.isnan(measured[name])]
            if len(values):
                found.append(f"{run.label}: {name} from {values.min():.4f} to {values.max():.4f} over {len(values)}")
    return "; ".join(found) or NOT_SAID


def _no_text(cards: Sequence[Card]) -> bool:
    """Whether nothing that left contains words or documents."""
    left = [one["request"] for card in cards if card.deployment is not None for one in card.deployment["left"]]
    return not any(request.startswith("silo-") for request in left)


def _is_private(log: SearchLog) -> bool:
    return not log.folder.stat().st_mode & 0o077


def _fill(what: str) -> Paragraph:
    return paragraph(Span(TO_FILL_IN, style="strong"), f"{what}.")


def _log(assessed: Assessed) -> SearchLog | None:
    folder = getattr(getattr(assessed.experiment, "data", None), "log", None)
    return None if folder is None else load_log(folder)


def _processing(assessed: Assessed, log: SearchLog | None) -> Section:
    spec = assessed.experiment
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
    rows += [(f"data.{name}", text) for name, text in _data(getattr(spec, "data", None))]
    parts: list[Part] = [_table("what the spec says", rows)]
    if log is not None:
        parts.append(_table("what the data set says", _of_log(log)))
        if log.unit == "browser":
            parts.append(
                paragraph("Its users are browsers, not people: one person may be several, and several may be one.")
            )
    parts += [
        _fill("purposes, and the legitimate interest where that is the basis (Article 35(7)(a))"),
        _fill(
            "legal basis (Article 6; Article 9 if queries reveal health, beliefs or similar, as search queries often "
            "do)"
        ),
        _whose(assessed),
        *_retention(assessed),
    ]
    return Section("1. What is processed, and why", tuple(parts))


def _data(data: Any) -> list[tuple[str, str]]:
    names = ("name", "log", "collection", "train", "test", "users", "features")
    return [(name, str(value)) for name in names if (value := getattr(data, name, None)) is not None]


def _of_log(log: SearchLog) -> list[tuple[str, str]]:
    facts, counts = log.facts, log.facts["counts"]
    settings: Mapping[str, Any] = facts.get("settings", {})
    rows = [
        ("entries", f"{len(log):,} of {len(log.users):,} {log.unit}s"),
        ("time", f"{date_of(int(log.time[0]))} to {date_of(int(log.time[-1]))}" if len(log) else NOT_SAID),
        ("queries", f"{len(log.queries):,} different"),
        ("rows read to make it", f"{counts['rows']:,}" if "rows" in counts else NOT_SAID),
        ("kept for", f"{settings['keep_days']} days" if settings.get("keep_days") else NOT_SAID),
    ]
    redacted = sum(facts.get("redacted", {}).values())
    rows.append(("queries whose text is not stored", f"{redacted:,}" if "redacted" in facts else NOT_SAID))
    rows += [(f"left out, {reason}", f"{count:,}") for reason, count in facts.get("dropped", {}).items() if count]
    return rows


def _leaving(assessed: Assessed) -> Section:
    parts: list[Part] = []
    for run, card in assessed.cards:
        text = NOT_SAID if card is None else f"{card.who_sees_what}; {card.kept_updates or 'no update is kept'}"
        parts.append(paragraph(Span(run.label, style="strong"), f": {text}."))
    if not assessed.cards:
        parts.append(paragraph("Nothing has run yet. Section 4 lists what would leave, and to whom."))
    for run, card in assessed.cards:
        if card is not None and card.deployment is not None:
            parts += [paragraph(Span(run.label, style="strong"), ", received by the coordinator:"), _received(card)]
            parts.append(paragraph("Recipients of the model and of its card: the coordinator and all sites above."))
    parts.append(
        _fill(
            "further recipients, processors, and transfers to third countries; what else leaves (logs of services, "
            "metrics, backups, support)"
        )
    )
    return Section("2. What leaves people's devices or organisations, and who sees it", tuple(parts))


def _necessity(assessed: Assessed) -> Section:
    gains = _gains(assessed)
    why = "why a ranker has to learn from people at all"
    return Section(
        "3. Whether it is necessary, and in proportion",
        (
            *([Points(tuple(gains))] if gains else []),
            _fill(why if gains else f"{why}, and what it gains them (figures of an estimate or trial)"),
            _fill("why less data is not enough: fewer people or searches, shorter logs, judgements instead of clicks"),
            _fill("how people are informed, and how they can object"),
        ),
    )


def _promises(assessed: Assessed, home: Path) -> Section:
    parts: list[Part] = []
    for run, card in assessed.cards:
        if card is None:
            parts.append(
                paragraph(
                    Span(run.label, style="strong"), ": it has no privacy card, so there is no privacy guarantee."
                )
            )
            continue
        summary, _, _ = card.summary.partition(" Not covered: ")  # covered in a separate section
        parts.append(paragraph(Span(run.label, style="strong"), f": {summary}"))
        if card.promises:
            parts.append(_paid(card))
        if card.population is not None:
            parts.append(paragraph(about_population(card.population)))
        elif card.budget is not None:
            parts.append(paragraph(f"The run was to stop at ε = {card.budget:g}."))
    if not assessed.cards:
        parts.append(paragraph("Planned, before anything has run:"))
        parts += [part for section in about_privacy(assessed.grid, home=home) for part in _with_heading(section)]
    parts.append(_fill("whether this ε is acceptable for these people, and who decided that"))
    return Section("4. What is promised to people, and what it has cost", tuple(parts))


def _with_heading(section: Section) -> Iterable[Part]:
    if section.heading:
        yield paragraph(Span(section.heading, style="strong"))
    yield from section.parts


def _paid(card: Card) -> Table:
    rows = [
        [
            paid.against,
            "no privacy guarantee" if paid.epsilon is None else up(paid.epsilon),
            f"{paid.delta:g}",
            paid.unit,
            paid.often,
        ]
        for paid in card.promises
    ]
    return Table(["against", "ε", "δ", "for", "paid"], rows, 5)


def _not_covered(assessed: Assessed, log: SearchLog | None) -> Section:
    cards = [card for _, card in assessed.cards if card is not None]
    if log is not None:
        cards.append(read_card(log.folder) or log_card(log))
    points = dict.fromkeys(point for card in cards for point in card.not_covered)
    text: list[Part] = [Points(tuple(points))] if points else [paragraph("There is no privacy card yet.")]
    return Section("5. What is not covered", (*text, _fill("what of this matters here, and what is done about it")))


def _risks(assessed: Assessed, log: SearchLog | None) -> Section:
    rows = []
    for risk, about in RISKS:
        said, done = _recorded(about, assessed, log), _done_about(about, assessed, log)
        rows.append([risk, TO_FILL_IN.strip() if said == NOT_SAID else said, done or TO_FILL_IN.strip()])
    table = Table(["risk to people", "known facts", "known measures"], rows, 3)
    last = _fill("how severe each risk is for these people, whether what is done is enough, and risks not in the table")
    return Section("6. Risks", (table, last))


def _done_about(about: str, assessed: Assessed, log: SearchLog | None) -> str:
    """The measures against a risk that files know."""
    spec, cards = assessed.experiment, [card for _, card in assessed.cards if card is not None]
    if about == "promises":
        each = (_protection(variant.experiment) for variant in assessed.grid.variants)
        return "; ".join(dict.fromkeys(point for one in each for point in one if "recorded" not in point))
    if about == "log":
        if any(card.deployment is not None for card in cards):
            return "the data stay at the sites; what left is listed under 2"
        return "" if log is None else f"its folder is readable by {'its owner only' if _is_private(log) else 'others'}"
    if about == "unit":
        return "; ".join(dict.fromkeys(f"ε is paid {row.often}" for card in cards for row in card.promises))
    if about == "kept":
        every = getattr(spec, "record_every", 0)
        return f"updates are recorded every {every} rounds, in history/" if every else "updates are not recorded"
    if about == "forged" and isinstance(spec, FederatedExperiment):
        return f"aggregation by {describe(spec.aggregator)['name']}; every message is checked before it is used"
    if about == "unequal" and any((run.path / "clients.csv").exists() for run, _ in assessed.cards):
        return "quality by client or site is measured, in clients.csv"
    return ""


def _recorded(about: str, assessed: Assessed, log: SearchLog | None) -> str:
    cards = [card for _, card in assessed.cards if card is not None]
    if about == "promises":
        if not cards:
            return "see the prices under 4"
        return "; ".join(dict.fromkeys(card.claim for card in cards))
    if about == "log":
        if any(card.deployment is not None for card in cards):
            return "no query, document or user id left a site in plain text" if _no_text(cards) else NOT_SAID
        return NOT_SAID if log is None else (read_card(log.folder) or log_card(log)).who_sees_what
    if about == "unit":
        units = dict.fromkeys(paid.unit for card in cards for paid in card.promises)
        text = [f"ε is for {unit}" for unit in units]
        return "; ".join([*text, *([f"users of the data set are {log.unit}s"] if log is not None else [])]) or NOT_SAID
    if about == "kept":
        recorded = dict.fromkeys(card.kept_updates or "no update is kept" for card in cards)
        return "; ".join(recorded) or NOT_SAID
    if about == "forged" and isinstance(assessed.experiment, FederatedExperiment):
        return f"{assessed.experiment.clients.count:,} clients or sites send updates"
    if about == "unequal":
        return _spread(assessed)
    return NOT_SAID


def _measures(assessed: Assessed, log: SearchLog | None) -> Section:
    each = (_protection(variant.experiment) for variant in assessed.grid.variants)
    points = list(dict.fromkeys(point for one in each for point in one))
    recorded = [run.label for run, _ in assessed.cards if history_of(run.path) is not None]
    if recorded:
        points.append(f"runs with updates in history/: {', '.join(recorded)}")
    if log is not None:
        settings = log.facts.get("settings", {})
        points.append(f"retention when the data set was built: {settings.get('keep_days') or 'no limit'}")
        redaction = settings.get("redaction")
        points.append(f"redaction of queries: {_settings(redaction) if isinstance(redaction, dict) else 'none'}")
        caps = settings.get("caps")
        points.append(f"limits for one client: {_settings(caps) if isinstance(caps, dict) else 'none'}")
        readers = "its owner only" if _is_private(log) else "others, too"
        points.append(f"the folder of the data set can be read by {readers}")
    return Section(
        "7. Measures",
        (
            Points(tuple(points) or ("no file describes measures",)),
            _fill("access control, encryption of disks, logging of access, training of staff"),
            _fill("how a worse model is noticed and rolled back (fedrank engine trial), and by whom"),
        ),
    )


def _protection(spec: Any) -> Iterable[str]:
    """What a variant says of the protection of its updates."""
    if not isinstance(spec, FederatedExperiment):
        return
    yield f"protection of updates: {describe(spec.mechanism)['name'] if spec.mechanism is not None else 'none'}"
    budget = spec.privacy.budget
    yield f"a run stops at ε = {budget:g}" if budget is not None else "no budget stops a run"
    yield f"recorded updates: {f'every {spec.record_every} rounds' if spec.record_every else 'none'}"


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items() if value not in (None, "", [], ())) or "none"


def _rights(assessed: Assessed, log: SearchLog | None) -> Section:
    parts: list[Part] = []
    if log is not None:
        gone = len(log.facts.get("forgotten", ()))
        parts.append(paragraph(f"Requests to be forgotten that the data set has carried out: {gone:,}."))
        parts.append(
            paragraph(
                "Erasure: ",
                Span(f"fedrank forget person ID --data {log.folder}", style="code"),
                " removes a person's rows and names the runs whose models learned from them. It changes no model; the "
                "receipt says what each still holds, and under which ε.",
            )
        )
    if any(run.unlearned is not None for run, _ in assessed.cards):
        parts.append(paragraph("Among these runs are some that clients were unlearned from; their receipts say how."))
    parts += [
        _fill("how a person learns their id in the log without further identification"),
        _fill("access, rectification, objection, and complaints: who answers, and within which time"),
    ]
    return Section("8. Rights of people", tuple(parts))


def _decision() -> Section:
    return Section(
        "9. Advice and decision",
        (
            _fill("advice of the data protection officer (Article 35(2))"),
            _fill("views of those concerned, or why they were not asked (Article 35(9))"),
            _fill("risk that remains; whether the authority has to be consulted (Article 36)"),
            _fill("decision, by whom, when; date of the next review (Article 35(11))"),
        ),
    )


def _table(what: str, rows: Sequence[tuple[str, str]]) -> Table:
    return Table([what, "meaning"], [[name, text] for name, text in rows], 2)
