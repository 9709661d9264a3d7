"""Which model is in use, by whose decision, and what was in use before: `current.json`.

An organisation's service reads it, or a person who copies the engine's commands. Adopting and rolling back replace it
whole, and nothing in its history is ever removed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedrank.engine.trial import UNFAIR, Count, EngineTrial, HistoryEntry
from fedrank.engine.trial_decision import Judgement
from fedrank.engine.trial_record import TrialModel, check_unchanged, now, somebody
from fedrank.files import locked, parse_json, read_bytes, write_atomic

FORMAT = "fedrank-current"
LARGEST = 16 << 20  # bytes of such a file


@dataclass(frozen=True)
class InUse:
    """A model in use: since when, by whom, and why."""

    name: str
    path: str
    digest: str
    since: str
    who: str
    because: str
    trial: str  # its id; empty where no trial led there

    def is_model(self, model: TrialModel) -> bool:
        return self.digest == model.digest


@dataclass(frozen=True)
class Current:
    """The model in use, and all before it, the oldest first."""

    now: InUse | None = None
    history: tuple[InUse, ...] = field(default=())


def read_current(path: str | Path) -> Current:
    """Read `current.json`; there is none before something was adopted."""
    path = Path(path)
    if not path.exists():
        return Current()
    try:
        content = parse_json(read_bytes(path, LARGEST))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError("it does not say which model is in use")
        return Current(_in_use(content["now"]), tuple(map(_in_use, content["history"])))
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        lacks = f"it lacks {problem}" if isinstance(problem, KeyError) else problem
        raise ValueError(f"{path} cannot be read: {lacks}; restore it from a backup") from None


def decide(trial: EngineTrial, count: Count, judgement: Judgement, who: str | None = None) -> HistoryEntry | None:
    """Write down a ruling, once; None while there is none."""
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
    """Put the new model in use. Without a decision for it, somebody must say why it is done anyway."""
    if anyway and not because.strip():
        raise ValueError("--anyway: without a decision somebody must say why; give --because")
    count = trial.count()
    judgement = trial.judged(count)
    if not anyway:
        if trial.ended and (last := trial.ended).what == "rolled back":
            raise ValueError(
                f"the trial was rolled back on {last.at[:10]}: {last.because}. Nothing was changed; begin another "
                "trial, or say --anyway --because ..."
            )
        if judgement.ruling != "adopt":
            raise ValueError(
                f"the trial does not say that {trial.plan.new.name} is better: {judgement.because}. Nothing was "
                "changed; read more events, or say --anyway --because ..."
            )
        if count.unfair > UNFAIR:
            raise ValueError(
                f"the coin of this trial was not fair: the old model went first in {count.leads[0]:,} lists, the new "
                f"one in {count.leads[1]:,}, so that clicks say nothing. Nothing was changed; look at what mixes "
                "the lists"
            )
    return _put(
        trial, trial.plan.new, "adopted", who, because or judgement.because, instead_of=trial.plan.old, anyway=anyway
    )


def roll_back(trial: EngineTrial, because: str, who: str | None = None) -> InUse:
    """Put the old model back in use, or keep it where the new one was only on trial. It needs a reason, no decision."""
    if not because.strip():
        raise ValueError("nothing was changed: say why it is rolled back; give --because")
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
        if before.now is not None and not before.now.is_model(instead_of) and not before.now.is_model(model):
            if what == "rolled back":
                raise ValueError(
                    f"in use is {before.now.name}, which is no part of this trial; nothing was changed. Roll back the "
                    "trial that put it there"
                )
            if not anyway:
                raise ValueError(
                    f"in use is {before.now.name}, and this trial compared with {instead_of.name}: it does not tell "
                    "which of these two is better. Nothing was changed; begin another trial, or say --anyway --because"
                )
        if before.now is not None and before.now.is_model(model) and what == "adopted":
            raise ValueError(f"{model.name} is in use already, since {before.now.since}; nothing was changed")
        put = InUse(model.name, model.path, model.digest, now(), who or somebody(), because, trial.plan.id)
        facts: dict[str, Any] = {"digest": model.digest, "instead_of": instead_of.digest}
        facts |= {"anyway": True} if anyway and what == "adopted" else {}
        there = before.now is not None and before.now.is_model(model)  # the new model was only on trial
        last = next(reversed(trial.history()), None)
        # First, so that whoever finds the model in use finds out why; killed behind it, the same is not noted again.
        if there or last is None or (last.what, last.who, last.because, last.facts) != (what, put.who, because, facts):
            trial.note(what, who, because, **facts)
        if before.now is not None and there:
            return before.now
        rows = [asdict(one) for one in (*before.history, *([before.now] if before.now else []))]
        content = {"format": FORMAT, "now": asdict(put), "history": rows}
        write_atomic(path, json.dumps(content, indent=1) + "\n")
        return put


def _in_use(row: dict[str, Any]) -> InUse:
    found = InUse(**row)
    if not all(isinstance(value, str) for value in vars(found).values()):
        raise ValueError("something in it is no text")
    return found
