"""What there is to say about a trial: a plan, what was read, a decision, and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedrank.engine.adoption import read_current
from fedrank.engine.trial import UNFAIR, Count, EngineTrial, HistoryEntry, ImportResult
from fedrank.engine.trial_decision import Judgement, Needed
from fedrank.engine.trial_record import TrialPlan
from fedrank.experiments.report.sections import Section

LARGE = 20.0  # logarithm of evidence that needs no digits
RULINGS: dict[str, tuple[str, str]] = {
    "adopt": ("Adopt it", "better"),
    "refuse": ("Refuse it", "worse"),
    "undecided": ("Not decided yet", "warn"),
}


def about_plan(plan: TrialPlan, needed: Sequence[Needed]) -> list[Section]:
    """What is compared, and how many searches that takes."""
    rows = [
        [f"{one.wins:.0%}", f"{one.adopted:.1%}", f"{one.median:,.0f}", f"{one.low:,.0f} to {one.high:,.0f}"]
        for one in needed
    ]
    section = _with_models(Section("Trial"), plan).table(
        ("it wins", "adopted", "decided searches", "of nine in ten trials"),
        rows,
        notes=(
            "Simulated. A search is decided if one model's own places got more clicks than the other's; "
            "clicks on what both would show say nothing.",
        ),
    )
    return [section]


def about_reading(brought: ImportResult) -> list[Section]:
    """What one reading brought, and what was left out."""
    section = Section("Read").paragraph(f"{brought.searches:,} new searches, {brought.clicks:,} new clicks")
    left = dict(brought.dropped)
    if brought.known:
        left["read before"] = brought.known
    if left:
        section = section.table(("left out", "lines"), [(reason, f"{times:,}") for reason, times in left.items()])
    for name in brought.skipped:
        section = section.paragraph(f"{name} was read before, byte for byte, and counts once", tone="quiet")
    return [section]


def about_trial(trial: EngineTrial, count: Count, judgement: Judgement) -> list[Section]:
    """How it stands, what that rests on, and what was left out."""
    plan, gate = trial.plan, trial.plan.rules.gate
    verdict, tone = RULINGS[judgement.ruling]
    section = Section("Decision").paragraph(f"{verdict}: {judgement.because}.", tone=tone)
    gained, without, against = judgement.evidence[-1]
    section = _with_models(section, plan).table(
        ("bet", "evidence", "needed"),
        [
            ["the new model wins more than half", _odds(gained), _needed(gate.level)],
            [
                f"the same without {_friends(plan.rules.liars)} who did most for it",
                _odds(without),
                _needed(gate.level),
            ],
            ["the new model wins less than half", _odds(against), _needed(gate.harm)],
        ],
        notes=("What a stake of 1 has become. It may be looked at after every search.",),
    )
    if count.unfair > UNFAIR:
        section = section.paragraph(
            f"The coin was not fair: the old model went first in {count.leads[0]:,} lists, the new one in "
            f"{count.leads[1]:,}. Clicks say nothing about such lists; look at what mixes them.",
            tone="worse",
        )
    return [section, _rests_on(trial, count, judgement), *_history(trial)]


def _rests_on(trial: EngineTrial, count: Count, judgement: Judgement) -> Section:
    rules = trial.plan.rules
    rows = [
        ("searches that were read", count.searches, ""),
        ("open", count.open, f"clicks are waited for, {rules.wait / 60:g} minutes"),
        ("not clicked", count.unclicked, "say nothing"),
        ("drawn", count.drawn, "as many clicks on both, or on what both chose"),
        ("decided", len(count.decided), "one model's own places got more clicks"),
        (
            "beyond the cap",
            judgement.beyond,
            f"each client counts {rules.per_client}, and a tenth of all; {judgement.capped} had more",
        ),
        ("after the decision", judgement.after, "change nothing"),
        ("counted", judgement.counted, f"of {judgement.clients:,} clients"),
        ("clicks that were read", count.clicks, ""),
        ("clicks on what was not shown", count.not_shown, "left out"),
        ("clicks in searches that no server logged", count.without_search, "left out"),
        ("clicks of another client than searched, or of none", count.of_others, "left out"),
        ("clicks that claim another team", count.forged, "left out"),
        ("clicks that came too late", count.late, "left out"),
    ]
    kept = [row for row in rows if row[1] or row[0] in ("searches that were read", "decided", "counted")]
    notes = [
        "The unit is the search. A client is a browser, not a person; searches of one client resemble each other, "
        "hence the cap.",
        f"The busiest client has {count.largest:.0%} of the decided searches.",
    ]
    if count.without_client:
        notes.append(
            f"{count.without_client:,} decided searches name no client; together they count as one: log client_id."
        )
    if count.shared_unknown:
        notes.append(
            f"{count.shared_unknown:,} lists do not tell what both models would have shown in the same place. Clicks "
            "there are decided by the coin: no bias, but more searches are needed. Log both lists to avoid it."
        )
    section = Section("What it rests on").table(
        ("what", "number", "meaning"), [(a, f"{b:,}", c) for a, b, c in kept], notes=tuple(notes)
    )
    if count.dropped:
        lines = [(reason, f"{times:,}") for reason, times in count.dropped.most_common()]
        section = section.table(("lines that say nothing", "number"), lines)
    return section


def _history(trial: EngineTrial) -> list[Section]:
    deeds = trial.history()
    current = read_current(trial.current).now
    section = Section("History")
    if deeds:
        section = section.points(_told(entry) for entry in deeds)
    if current is not None:
        section = section.paragraph(f"In use: {current.name}, since {current.since[:16]}")
    return [section] if section.parts else []


def _told(entry: HistoryEntry) -> str:
    return f"{entry.at[:16]} {entry.what} by {entry.who}" + (f": {entry.because}" if entry.because else "")


def _with_models(section: Section, plan: TrialPlan) -> Section:
    return section.pairs(
        [("new", str(plan.new)), ("old", str(plan.old)), ("mixed by", plan.to), ("planned", _planned(plan))]
    )


def _planned(plan: TrialPlan) -> str:
    return f"{plan.planned[:16]} by {plan.who}" + (f": {plan.because}" if plan.because else "")


def _odds(evidence: float) -> str:
    """What a stake of 1 has become, of a logarithm."""
    return f"{math.exp(evidence):.3g}" if evidence < LARGE else "very large"


def _friends(clients: int) -> str:
    return "the client" if clients == 1 else f"the {clients} clients"


def _needed(level: float) -> str:
    return f"{1 / level:.3g}"
