"""The model in use, the decision behind it, and the previous models: `current.json`.

An organisation's service reads it, or a person who copies the engine's commands. Adopting and rolling back replace the
file atomically and never remove an entry of its history.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedrank.engine.trial import UNFAIR, Count, EngineTrial, HistoryEntry
from fedrank.engine.trial_decision import Judgement
from fedrank.engine.trial_record import TrialModel, check_unchanged, now, user_name
from fedrank.files import locked, parse_json, read_bytes, write_atomic

FORMAT = "fedrank-current"
LARGEST = 16 << 20  # maximum size of the file in bytes


@dataclass(frozen=True)
class InUse:
    """A model in use: since when, by whom, and why."""

    name: str
    path: str
    digest: str
    since: str
    who: str
    because: str
    trial: str  # its id; empty without a trial


@dataclass(frozen=True)
class Current:
    """The model in use and all previous ones, oldest first."""

    now: InUse | None = None
    history: tuple[InUse, ...] = ()


def read_current(path: str | Path) -> Current:
    """Read `current.json`; both parts are empty before the first adoption."""
    path = Path(path)
    if not path.exists():
        return Current()
    try:
        content = parse_json(read_bytes(path, LARGEST))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError("it does not name the model in use")
        return Current(_in_use(content["now"]), tuple(map(_in_use, content["history"])))
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        lacks = f"it lacks {problem}" if isinstance(problem, KeyError) else problem
        raise ValueError(f"{path} cannot be read: {lacks}; restore it from a backup") from None


def decide(trial: EngineTrial, count: Count, judgement: Judgement, who: str | None = None) -> HistoryEntry | None:
    """Record a decision once; None while there is none."""
    if judgement.ruling == "undecided":
        return None
    with trial.working():
        before = next((entry for entry in trial.history() if entry.what == "decided"), None)
        if before is not None:
            return before
        return trial.note(
            "decided",
            who,
            judgement.because,
            ruling=judgement.ruling,
            wins=judgement.wins,
            losses=judgement.losses,
            searches=count.searches,
            clients=judgement.clients,
        )


def adopt(trial: EngineTrial, who: str | None = None, because: str = "", anyway: bool = False) -> InUse:
    """Put the new model in use. Without a decision for it, a reason is required."""
    if anyway and not because.strip():
        raise ValueError("--anyway: adoption without a decision needs a reason; give --because")
    count = trial.count()
    judgement = trial.judged(count)
    if not anyway:
        if trial.ended and (last := trial.ended).what == "rolled back":
            raise ValueError(
                f"the trial was rolled back on {last.at[:10]}: {last.because}. Nothing was changed; start another "
                "trial, or use --anyway --because ..."
            )
        if judgement.ruling != "adopt":
            raise ValueError(
                f"the trial does not show that {trial.plan.new.name} is better: {judgement.because}. Nothing was "
                "changed; read more events, or use --anyway --because ..."
            )
        if count.unfair > UNFAIR:
            raise ValueError(
                f"the assignment of this trial was not balanced: the old model was first in {count.leads[0]:,} lists, "
                f"the new one in {count.leads[1]:,}, so its clicks are not valid. Nothing was changed; check the code "
                "that interleaves the lists"
            )
    return _put(
        trial, trial.plan.new, "adopted", who, because or judgement.because, instead_of=trial.plan.old, anyway=anyway
    )


def roll_back(trial: EngineTrial, because: str, who: str | None = None) -> InUse:
    """Put the old model back in use, or keep it if the new one was only on trial. A reason is required."""
    if not because.strip():
        raise ValueError("a rollback needs a reason; nothing was changed; give --because")
    return _put(trial, trial.plan.old, "rolled back", who, because, instead_of=trial.plan.new, anyway=True)


def _put(
    trial: EngineTrial,
    model: TrialModel,
    what: str,
    who: str | None,
    because: str,
    instead_of: TrialModel,
    anyway: bool,
) -> InUse:
    check_unchanged(model)
    path = trial.current
    with trial.working(), locked(path.with_name(f".{path.name}.lock"), str(path)):
        before = read_current(path)
        in_use = before.now
        there = in_use is not None and in_use.digest == model.digest  # the new model was only on trial
        if in_use is not None and in_use.digest not in (instead_of.digest, model.digest):
            if what == "rolled back":
                raise ValueError(
                    f"the model in use is {in_use.name}, which is not part of this trial; nothing was changed. "
                    "Roll back the trial that adopted it"
                )
            if not anyway:
                raise ValueError(
                    f"the model in use is {in_use.name}, but this trial compared with {instead_of.name}, so it "
                    "does not show which of the two is better. Nothing was changed; start another trial, or use "
                    "--anyway --because"
                )
        if in_use is not None and there and what == "adopted":
            raise ValueError(f"{model.name} is already in use since {in_use.since}; nothing was changed")
        put = InUse(model.name, model.path, model.digest, now(), who or user_name(), because, trial.plan.id)
        facts: dict[str, Any] = {"digest": model.digest, "instead_of": instead_of.digest}
        facts |= {"anyway": True} if anyway and what == "adopted" else {}
        last = next(reversed(trial.history()), None)
        # Recorded first, so the reason of a model in use is always known; after a crash it is not recorded again.
        if there or last is None or (last.what, last.who, last.because, last.facts) != (what, put.who, because, facts):
            trial.note(what, who, because, **facts)
        if in_use is not None and there:
            return in_use
        rows = [asdict(one) for one in (*before.history, *([in_use] if in_use else []))]
        content = {"format": FORMAT, "now": asdict(put), "history": rows}
        write_atomic(path, json.dumps(content, indent=1) + "\n")
        return put


def _in_use(row: dict[str, Any]) -> InUse:
    found = InUse(**row)
    if not all(isinstance(value, str) for value in vars(found).values()):
        raise ValueError("all its values must be text")
    return found
