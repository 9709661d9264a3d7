"""Descriptions of a trial: its plan, imports, decision, and evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedrank.engine.adoption import read_current
from fedrank.engine.trial import UNFAIR, Count, EngineTrial, ImportResult
from fedrank.engine.trial_decision import Judgement, Needed
from fedrank.engine.trial_record import TrialPlan
from fedrank.experiments.report.sections import Section

LARGE = 20.0  # logarithm of evidence above which no digits are shown
RULINGS: dict[str, tuple[str, str]] = {
    "adopt": ("Adopt it", "better"),
    "refuse": ("Refuse it", "worse"),
    "undecided": ("Not decided yet", "warn"),
}


def about_plan(plan: TrialPlan, needed: Sequence[Needed]) -> list[Section]:
    """What is compared, and how many searches it takes."""
    rows = [
        [f"{one.wins:.0%}", f"{one.adopted:.1%}", f"{one.median:,.0f}", f"{one.low:,.0f} to {one.high:,.0f}"]
        for one in needed
    ]
    section = _with_models(Section("Trial"), plan).table(
        ("share of wins", "adopted", "decided searches (median)", "90% of trials"),
        rows,
        notes=(
            "Simulated. A search is decided if the results of one model got more clicks than those of the other; "
            "clicks on results of both models do not count.",
        ),
    )
    return [section]


def about_reading(brought: ImportResult, count: Count, window: float) -> list[Section]:
    """The result of one import, what was skipped, and what is missing; `window` is that of the rules."""
    section = Section("Read").paragraph(f"{brought.searches:,} new searches, {brought.clicks:,} new clicks")
    left = dict(brought.dropped)
    if brought.known:
        left["read before"] = brought.known
    if left:
        section = section.table(("skipped", "lines"), [(reason, f"{times:,}") for reason, times in left.items()])
    for name in brought.skipped:
        section = section.paragraph(f"{name} was read before with the same content and counts once", tone="quiet")
    if brought.outside:
        section = section.paragraph(
            f"{brought.outside:,} of these searches and clicks do not count: files may be read in any order within "
            f"{_days(window)}, and later searches were read before",
            tone="warn",
        )
    if count.without_search:
        section = section.paragraph(
            f"{count.without_search:,} clicks have no search yet: read the searches, too", tone="warn"
        )
    if count.open:
        section = section.paragraph(
            f"{count.open:,} searches wait for clicks: they count once later searches and later clicks were read, or "
            "with --complete",
            tone="quiet",
        )
    return [section]


def _days(seconds: float) -> str:
    return f"{seconds / 86_400:g} days"


def about_trial(trial: EngineTrial, count: Count, judgement: Judgement) -> list[Section]:
    """The state of a trial, its evidence, and what was skipped."""
    plan, gate = trial.plan, trial.plan.rules.gate
    verdict, tone = RULINGS[judgement.ruling]
    section = Section("Decision").paragraph(f"{verdict}: {judgement.because}.", tone=tone)
    gained, without, against = judgement.evidence[-1]
    section = _with_models(section, plan).table(
        ("bet", "evidence", "needed"),
        [
            ["the new model wins more than half", _odds(gained), _needed(gate.level)],
            [
                f"the same without {_friends(plan.rules.assumed_liars(judgement.clients))} with the most wins for it",
                _odds(without),
                _needed(gate.level),
            ],
            ["the new model wins less than half", _odds(against), _needed(gate.harm)],
        ],
        notes=("The present value of a stake of 1. It may be checked after every search.",),
    )
    if count.unfair > UNFAIR:
        section = section.paragraph(
            f"The assignment was not balanced: the old model was first in {count.leads[0]:,} lists, the new one in "
            f"{count.leads[1]:,}. Clicks on such lists are not valid; check the code that interleaves them.",
            tone="worse",
        )
    return [section, _rests_on(trial, count, judgement), *_history(trial)]


def _rests_on(trial: EngineTrial, count: Count, judgement: Judgement) -> Section:
    rules = trial.plan.rules
    rows = [
        ("searches read", count.searches, ""),
        ("open", count.open, f"waiting for clicks of the next {rules.wait / 60:g} minutes"),
        ("not clicked", count.unclicked, "not counted"),
        ("drawn", count.drawn, "equal numbers of clicks, or clicks on results of both models"),
        ("decided", len(count.decided), "the results of one model got more clicks"),
        (
            "beyond the cap",
            judgement.beyond,
            f"at most {rules.per_client} and a tenth of all per client; {judgement.capped} clients had more",
        ),
        ("of clients that were not seen before the trial", judgement.unknown, "not counted"),
        ("after the decision", judgement.after, "not counted"),
        ("counted", judgement.counted, f"of {judgement.clients:,} clients"),
        ("clicks read", count.clicks, ""),
        ("clicks on results that were not displayed", count.not_shown, "skipped"),
        ("clicks in searches that no server logged", count.without_search, "skipped"),
        ("clicks of another or unknown client", count.of_others, "skipped"),
        ("clicks that claim another team", count.forged, "skipped"),
        (
            "searches that were read too late",
            count.too_old,
            f"more than {_days(rules.window)} after later ones; skipped",
        ),
        ("clicks that were read too late", count.late, "skipped"),
    ]
    kept = [row for row in rows if row[1] or row[0] in ("searches read", "decided", "counted")]
    notes = [
        "The unit is the search. A client is a browser, not a person; searches of one client are correlated, "
        "hence the limit.",
        f"The most active client has {count.largest:.0%} of the decided searches.",
    ]
    if not count.earlier:
        notes.append(
            "The log names no client from before the trial, so ids that were invented for it count, too; read the log "
            "of the days before to exclude them."
        )
    if count.without_client:
        notes.append(
            f"{count.without_client:,} decided searches have no client and count as one client together; log client_id."
        )
    if count.shared_unknown:
        notes.append(
            f"{count.shared_unknown:,} lists do not show which results both models chose. Clicks on those count "
            "at random: no bias, but more searches are needed. Log both lists to avoid it."
        )
    section = Section("Evidence").table(
        ("what", "number", "meaning"), [(a, f"{b:,}", c) for a, b, c in kept], notes=tuple(notes)
    )
    if count.dropped:
        lines = [(reason, f"{times:,}") for reason, times in count.dropped.most_common()]
        section = section.table(("lines that were not counted", "number"), lines)
    return section


def _history(trial: EngineTrial) -> list[Section]:
    entries = trial.history()
    current = read_current(trial.current).now
    section = Section("History")
    if entries:
        section = section.points(f"{one.at[:16]} {one.what} by {one.who}{_reason(one.because)}" for one in entries)
    if current is not None:
        section = section.paragraph(f"In use: {current.name}, since {current.since[:16]}")
    return [section] if section.parts else []


def _with_models(section: Section, plan: TrialPlan) -> Section:
    planned = f"{plan.planned[:16]} by {plan.who}{_reason(plan.because)}"
    return section.pairs(
        [("new", str(plan.new)), ("old", str(plan.old)), ("interleaved by", plan.to), ("planned", planned)]
    )


def _reason(because: str) -> str:
    return f": {because}" if because else ""


def _odds(evidence: float) -> str:
    """The present value of a stake of 1, from its logarithm."""
    return f"{math.exp(evidence):.3g}" if evidence < LARGE else "very large"


def _friends(clients: int) -> str:
    return "the client" if clients == 1 else f"the {clients} clients"


def _needed(level: float) -> str:
    return f"{1 / level:.3g}"
