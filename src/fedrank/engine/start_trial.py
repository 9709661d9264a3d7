"""Start a trial: the record, and the files for the engine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from fedrank.engine.trial import EngineTrial
from fedrank.engine.trial_decision import Needed, TrialRules, needed
from fedrank.engine.trial_record import (
    CURRENT,
    ENGINES,
    TrialPlan,
    check_free,
    model_on_trial,
    new_key,
    now,
    somebody,
    write_plan,
)
from fedrank.engine.trial_requests import URLS, write_requests


@dataclass(frozen=True)
class Planned:
    """A trial that is ready to start."""

    plan: TrialPlan
    record: Path
    files: tuple[Path, ...]  # for a person to run or to read
    needed: tuple[Needed, ...]


@dataclass(frozen=True)
class EngineAddress:
    """The address of an engine, and its names of index and feature set."""

    url: str = ""
    index: str = ""  # or collection
    feature_set: str = "engine-1"  # or feature store of Solr
    query: Path | None = None  # the engine's own search body


def plan_trial(
    model: str | Path,
    against: str | Path,
    to: str,
    out: str | Path,
    rules: TrialRules,
    engine: EngineAddress | None = None,
    places: int = 10,
    who: str | None = None,
    because: str = "",
    current: str | Path | None = None,
    key: str = "",
) -> Planned:
    """Write `trial.json`, and files and commands for the engine next to it; `key` is the random key ("": a new one)."""
    engine = engine or EngineAddress()
    if to not in ENGINES:
        raise ValueError(f"unknown engine {to!r}; use one of {', '.join(ENGINES)}")
    if to != "own" and not re.fullmatch(r"[\w.-]+", engine.index):
        raise ValueError(
            f"--index: {to} needs the name of the searched index or collection (got {engine.index!r}); give --index"
        )
    if not re.fullmatch(r"[\w.-]+", engine.feature_set):
        raise ValueError(f"--feature-set {engine.feature_set!r} is not a valid name; use letters, digits, - and _")
    url = (engine.url or URLS.get(to, "")).rstrip("/")
    if url and not re.fullmatch(r"https?://[\w.:/@-]+", url):
        raise ValueError(
            f"--url {engine.url!r} is not a valid address; use one such as {URLS.get(to, 'http://localhost')}"
        )
    new, old = model_on_trial(model, to), model_on_trial(against, to)
    if new.digest == old.digest:
        raise ValueError(f"{model} and {against} are the same model; give two different models")
    out = Path(out)
    plan = TrialPlan(
        id=re.sub(r"[^\w-]+", "-", out.name).strip("-").lower() or "trial",
        to=to,
        old=old,
        new=new,
        rules=rules,
        planned=now(),
        who=who or somebody(),
        because=because,
        key=key or new_key(),
        places=places,
        current=os.path.relpath(current or out.parent / CURRENT, out),
        engine={} if to == "own" else {"url": url, "index": engine.index, "feature_set": engine.feature_set},
    )
    check_free(out)
    files = write_requests(plan, out, engine.query)
    record = write_plan(plan, out)  # written last: until then the command may be repeated
    EngineTrial(out).note("planned", who, because, new=new.digest, old=old.digest)
    return Planned(plan, record, tuple(files), tuple(needed(rules)))
