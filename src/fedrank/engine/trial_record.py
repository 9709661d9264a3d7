"""The record of a trial, `trial.json`: models with their digests, rules, time and author."""

from __future__ import annotations

import getpass
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

from fedrank.engine.trial_decision import TrialRules
from fedrank.files import opened, parse_json, private_folder, read_bytes, writing
from fedrank.trees.model_files import load_model
from fedrank.value_checks import checked

FORMAT, VERSION = "fedrank-trial", 1
PLAN, CURRENT, LABELS = "trial.json", "current.json", "labels.json"
ENGINE = "engine"  # the engine's own ranking without a model
ENGINES = ("opensearch", "solr", "own")
LARGEST = 1 << 20  # maximum size of a plan in bytes
ORIGINAL = "_OriginalRanking_"  # Solr's name for its ranking


@dataclass(frozen=True)
class TrialModel:
    """One of the two compared models."""

    name: str  # in the engine
    path: str  # of its file; empty: the engine's own ranking
    digest: str  # of that file; empty: the engine's own ranking

    @property
    def is_engine(self) -> bool:
        return not self.digest

    def __str__(self) -> str:
        return "the engine's own ranking" if self.is_engine else f"{self.name} ({self.path})"


@dataclass(frozen=True)
class TrialPlan:
    """The terms fixed before the first search; they never change."""

    id: str
    to: str  # which engine interleaves the lists
    old: TrialModel
    new: TrialModel
    rules: TrialRules
    planned: str  # date and time
    who: str
    because: str
    key: str  # of the random assignment and of pseudonyms for client ids; it stays on the server
    places: int = 10
    current: str = ""  # the file that names the model in use, relative to the trial's folder
    engine: dict[str, str] = field(default_factory=dict)  # url, index and others

    def team(self, label: str, labels: Mapping[str, str]) -> str | None:
        """The team of an engine's label: "old", "new", "both", or None if it is not part of this trial."""
        if label in ("old", "new", "both"):
            return label if self.to == "own" or label != "both" else None
        known = {self.old.name: "old", self.new.name: "new", **labels}
        return known.get(label)


def model_on_trial(path: str | Path, to: str) -> TrialModel:
    """A model identified by the digest of its file; "engine" means the engine's own ranking."""
    if str(path) == ENGINE:
        return TrialModel(ORIGINAL if to == "solr" else ENGINE, "", "")
    path = Path(path)
    load_model(path)  # raises its own error for an invalid model
    file = path / "model.json" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(
            f"{path} contains several files; give the model itself, such as {path}/fold-1-seed-1/model.json"
        )
    digest = digest_of(file)
    return TrialModel(f"fedrank-{digest[:10]}", str(file), digest)


def digest_of(file: str | Path) -> str:
    with opened(file) as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def check_unchanged(model: TrialModel) -> None:
    """Raise ValueError if a model's file has changed since the trial was planned."""
    if not model.is_engine and (found := digest_of(model.path)) != model.digest:
        raise ValueError(
            f"{model.path} is not the model of the trial: its digest is {found[:9]} (expected {model.digest[:9]}). "
            "Nothing was changed; restore the old file, or plan a trial of the new one"
        )


def user_name() -> str:
    """The name of the current user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_key() -> str:
    return secrets.token_hex(16)


def check_free(folder: str | Path) -> None:
    """Raise FileExistsError if a folder already contains the record of a trial."""
    if (path := Path(folder) / PLAN).exists():
        raise FileExistsError(f"{path} is the record of another trial; choose another --out")


def write_plan(plan: TrialPlan, folder: str | Path) -> Path:
    """Write the record into a folder that only its owner can read; an existing record is never replaced."""
    path = private_folder(folder) / PLAN
    content = json.dumps({"format": FORMAT, "version": VERSION, **asdict(plan)}, indent=1) + "\n"
    check_free(folder)
    with writing(path, private=True, replace=False) as file:
        file.write(content.encode())
    return path


def read_plan(folder: str | Path) -> TrialPlan:
    """Read `trial.json`, which may come from another person."""
    path = Path(folder) / PLAN
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a trial: it has no {PLAN}; start one with fedrank engine trial plan")
    try:
        content = parse_json(read_bytes(path, LARGEST))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError("it is not the record of a trial")
        if content.get("version") != VERSION:
            raise ValueError(f"it has version {content.get('version')!r}; update fedrank")
        return _plan(content)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as problem:
        lacks = f"it lacks {problem}" if isinstance(problem, KeyError) else problem
        raise ValueError(f"{path} cannot be read: {lacks}") from None


def _plan(content: dict[str, Any]) -> TrialPlan:
    if content["to"] not in ENGINES:
        raise ValueError(f"to = {content['to']!r} is not one of {', '.join(ENGINES)}")
    content["rules"].setdefault("liar_share", 0.0)  # a plan of an earlier version assumed a number only
    content["rules"].setdefault("window", TrialRules.window)
    plan: TrialPlan = _read(TrialPlan, content)
    return plan


def _read(kind: Any, content: dict[str, Any]) -> Any:
    """A dataclass from an object of JSON; every value must fit the type hint of its field."""
    hints = get_type_hints(kind)
    return kind(
        **{
            one.name: _read(hints[one.name], content[one.name])
            if is_dataclass(hints[one.name])
            else checked(hints[one.name], content[one.name], one.name)
            for one in fields(kind)
        }
    )
