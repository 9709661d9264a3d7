"""A data protection impact assessment, begun: what a spec, a data set, privacy cards and ledgers say is filled in.

It follows Article 35(7) of the GDPR: what is done and why, whether it is needed, the risks, the measures. What only a
person can say is marked with TO FILL IN. Nothing is claimed here that a card does not claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
NOT_SAID = "not said"
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
    ("An attacker sends forged events or updates, and other users get worse results", "none"),
    ("The model ranks worse for some people than for others", "none"),
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
                _fill("controller, or joint controllers and their arrangement (Article 26); data protection officer"),
                _fill("who wrote this, who was asked, and which version of the processing it is about"),
                _processing(assessed, log),
                _leaving(assessed),
                _necessity(),
                _promises(assessed, home),
                _not_covered(assessed, log),
                _risks(assessed, log),
                _measures(assessed, log),
                _rights(assessed, log),
                _decision(),
            ),
        )
    ]


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
        divided = f"{count}, divided by {describe(spec.clients.partition)['name']}"
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
        _fill("whose data these are, and whether children or others who need protection are among them"),
        _fill("recipients, processors, and transfers to third countries"),
        _fill("how long raw logs, data sets, updates and models are kept"),
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
    parts.append(_fill("what else leaves: logs of services, metrics, backups, support"))
    return Section("2. What leaves people's devices or organisations, and who sees it", tuple(parts))


def _necessity() -> Section:
    return Section(
        "3. Whether it is necessary, and in proportion",
        (
            _fill(
                "why a ranker has to learn from people at all, and what it gains them (figures of an estimate or trial)"
            ),
            _fill("why less would not do: fewer people, fewer searches, shorter logs, judgements instead of clicks"),
            _fill("how people are informed, and how they can object"),
        ),
    )


def _promises(assessed: Assessed, home: Path) -> Section:
    parts: list[Part] = []
    for run, card in assessed.cards:
        if card is None:
            parts.append(
                paragraph(Span(run.label, style="strong"), ": it has no privacy card, so nothing can be claimed.")
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
            "nothing can be claimed" if paid.epsilon is None else up(paid.epsilon),
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
    text: list[Part] = [Points(tuple(points))] if points else [paragraph("No card says anything yet.")]
    return Section("5. What is not covered", (*text, _fill("what of this matters here, and what is done about it")))


def _risks(assessed: Assessed, log: SearchLog | None) -> Section:
    rows = [[risk, _recorded(about, assessed, log), TO_FILL_IN.strip(), TO_FILL_IN.strip()] for risk, about in RISKS]
    table = Table(["risk to people", "what files say of it", "how likely, how severe", "what is done"], rows, 4)
    return Section("6. Risks", (table, _fill("risks of this service that are not in the table")))


def _recorded(about: str, assessed: Assessed, log: SearchLog | None) -> str:
    cards = [card for _, card in assessed.cards if card is not None]
    if about == "promises":
        if not cards:
            return "see the prices under 4"
        return "; ".join(dict.fromkeys(card.claim for card in cards))
    if about == "log":
        return NOT_SAID if log is None else (read_card(log.folder) or log_card(log)).who_sees_what
    if about == "unit":
        units = dict.fromkeys(paid.unit for card in cards for paid in card.promises)
        text = [f"ε is for {unit}" for unit in units]
        return "; ".join([*text, *([f"users of the data set are {log.unit}s"] if log is not None else [])]) or NOT_SAID
    if about == "kept":
        recorded = dict.fromkeys(card.kept_updates or "no update is kept" for card in cards)
        return "; ".join(recorded) or NOT_SAID
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
        private = not log.folder.stat().st_mode & 0o077
        points.append(f"the folder of the data set can be read by {'its owner only' if private else 'others, too'}")
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
    yield f"recorded updates: {f'every {spec.record_every}. round' if spec.record_every else 'none'}"


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
