"""`fedrank engine refresh`: from new log files to a planned trial, for a timer at one site.

Every step is a command that exists on its own, with the options of a section of `refresh.toml`. A step that is done is
skipped, so a call that was killed is continued by the next one. All paths are relative to the folder of that file.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedrank.data.drift import drift
from fedrank.data.held_out import NoNewEntries
from fedrank.data.logs import FACTS, SearchLog, load_log
from fedrank.engine.adoption import read_current
from fedrank.engine.trial import find_trials
from fedrank.engine.trial_record import CURRENT, ENGINE, PLAN, digest_of
from fedrank.files import locked, opened, parse_json, read_bytes, write_atomic
from fedrank.ranking.model import model_file
from fedrank.ranking.stored_estimate import stored_estimate
from fedrank.toml import parse_toml

SETTINGS, STATE, LOCK = "refresh.toml", "refresh.json", ".refresh.lock"
SECTIONS = ("fetch", "build", "train", "received", "trial")
DATA, RUNS, TRIALS, REPORTS = (Path(name) for name in ("data", "runs", "trials", "reports"))
LEVEL, PLANS = 0.05, 4  # significance level of all trials of a year, and their maximum number
LARGEST = 1_000_000  # bytes of the settings
Say = Callable[[str], None]
Call = Callable[[list[str]], int]  # runs a command; the result is its exit status


@dataclass
class RefreshState:
    """What the next call must know."""

    name: str = ""  # of the last refresh: its day
    done: bool = True
    data: str = ""  # data set of the last refresh that built one
    tried: list[str] = field(default_factory=list)  # digests of models for which a trial was planned or vetoed


def read_settings(path: Path) -> dict[str, dict[str, Any]]:
    """The sections of `refresh.toml`."""
    with opened(path) as file:
        text = file.read(LARGEST)
    found = parse_toml(text.decode())
    if wrong := [name for name in found if name not in SECTIONS or not isinstance(found[name], dict)]:
        raise ValueError(f"{path}: {wrong[0]!r} is not one of the sections {', '.join(SECTIONS)}")
    for needed in ("build", "trial"):
        if needed not in found:
            raise ValueError(f"{path}: the section [{needed}] is missing")
    if ("train" in found) == ("received" in found):
        raise ValueError(f"{path}: give [train] with a spec, or [received] with a folder of models")
    return found


def refresh(home: Path, call: Call, say: Say, now: datetime | None = None) -> bool:
    """Take all steps that are not done yet, with a line for each; False: the estimate vetoes the model."""
    if not (home / SETTINGS).is_file():
        raise ValueError(f"{home / SETTINGS} does not exist; write it as `fedrank engine refresh --help` describes")
    settings = read_settings(home / SETTINGS)
    with contextlib.chdir(home), locked(LOCK, f"the refresh in {home}"):
        state = _read_state()
        if state.done:
            if waiting := [trial for trial in find_trials([TRIALS]) if not trial.is_closed]:
                say(f"trial: {waiting[0].folder} is not decided yet, so nothing is planned")
                return True
            today = (now or datetime.now(UTC)).date().isoformat()
            if today == state.name and ((TRIALS / today).exists() or _received(settings, state) is None):
                say(f"done: {today} was refreshed already{_vetoed(settings)}")
                return True
            state.name, state.done = today, False
            _write_state(state)
        return _Refresh(settings, state, call, say).take_steps(now or datetime.now(UTC))


class _Refresh:
    """One refresh, which may have begun in an earlier call."""

    def __init__(self, settings: dict[str, dict[str, Any]], state: RefreshState, call: Call, say: Say) -> None:
        self.settings, self.state, self.call, self.say = settings, state, call, say

    def take_steps(self, now: datetime) -> bool:
        if "fetch" in self.settings:
            options = dict(self.settings["fetch"])
            self._run("fetch", ["data", "fetch", str(options.pop("url", "")), *_words(options)])
            self.say("fetch: new rows were copied")
        log = self._build()
        if log is None:
            self._finish()
            return True
        planned = TRIALS / self.state.name
        if (planned / PLAN).exists():  # it was planned before an interruption, and names its model
            [trial] = find_trials([planned])
            self.say(f"trial: {planned} is planned; next: fedrank engine trial read {planned} EVENTS")
            self._finish(data=str(log.folder), tried=trial.plan.new.digest)
            return True
        model = self._model(log)
        digest = "" if model is None else digest_of(model)
        if model is None or digest in self.state.tried:
            self.say(f"model: no model that was not tried before{_vetoed(self.settings)}")
            self._finish(data=str(log.folder))
            return True
        if not self._passes(model, log):
            self._finish(data=str(log.folder), tried=digest)
            return False
        self._plan(model, now)
        self._finish(data=str(log.folder), tried=digest)
        return True

    def _build(self) -> SearchLog | None:
        """The new data set; None if the log has no entries that are later than the last window.

        A received model is then estimated on the last window, which the gate of this site may have used for it.
        """
        options = dict(self.settings["build"])
        before = self.state.data or str(options.get("previous", ""))
        options.pop("previous", None)
        out = DATA / self.state.name
        if not (out / FACTS).exists():
            shutil.rmtree(out, ignore_errors=True)  # its files may have changed since it began
            words = ["data", "build", "--out", str(out), "--quiet", *_words(options)]
            if before:
                words += ["--previous", before]
            try:
                self._run("build", words)
            except NoNewEntries as problem:
                self.say(f"build: nothing new: {problem}")
                return None if _received(self.settings, self.state) is None else load_log(before)
        log = load_log(out)
        self.say(f"build: {out}, {len(log):,} lists, {int(log.held_out.sum()):,} of them held out")
        if before and Path(before) != out:
            from fedrank.experiments.report.charts import draw_drift

            found = drift(log, load_log(before))
            REPORTS.mkdir(exist_ok=True)
            draw_drift(found, REPORTS / f"{self.state.name}-drift.png")
            self.say(f"drift: {', '.join(found.drifted) or 'none'} ({REPORTS / f'{self.state.name}-drift.png'})")
        return log

    def _model(self, log: SearchLog) -> Path | None:
        """The model to try: trained on the own data, or the newest one that was received."""
        if "received" in self.settings:
            found = _received(self.settings, self.state)
            if found is not None:
                self.say(f"model: {found}, received")
            return None if found is None else found.resolve()
        options = dict(self.settings["train"])
        spec, warm = str(options.pop("spec", "")), options.pop("warm_start", True)
        words = [
            "run",
            spec,
            "--out",
            str(RUNS),
            "--name",
            self.state.name,
            "--set",
            f"data.log={log.folder}",
            "--quiet",
        ]
        used = read_current(TRIALS / CURRENT).now
        if warm and used is not None and used.path:
            words += ["--set", f"start={used.path}"]
        self._run("train", words + _words(options))
        model = model_file(RUNS / self.state.name).resolve()  # trials record it, and are read from other folders
        self.say(f"train: {model}{f', started from {used.path}' if warm and used is not None and used.path else ''}")
        return model

    def _passes(self, model: Path, log: SearchLog) -> bool:
        """Whether the estimate on the held-out entries allows a trial."""
        found = stored_estimate(model)
        if found is None or found.log != log.folder.name:
            self.call(["model", "estimate", str(model), "--log", str(log.folder)])  # status 1: it cannot tell
            found = stored_estimate(model)
        if found is None:
            raise ValueError(
                f"the clicks of {model} were not estimated; run: fedrank model estimate {model} --log {log}"
            )
        vetoed = found.finding == "worse"
        self.say(f"estimate: {'veto, ' if vetoed else ''}{found.finding}: {found.verdict}")
        return not vetoed

    def _plan(self, model: Path, now: datetime) -> None:
        out = TRIALS / self.state.name
        options = dict(self.settings["trial"])
        level, plans = float(options.pop("level", LEVEL)), int(options.pop("plans_per_year", PLANS))
        year = (now - timedelta(days=365)).isoformat()
        recent = [one for one in find_trials([TRIALS]) if one.plan.planned >= year]
        if len(recent) >= plans:
            raise ValueError(
                f"{len(recent)} trials were planned within a year, and the significance level of {level:g} is "
                f"divided among {plans} (plans_per_year); wait, or change it before the first trial of a year"
            )
        used = read_current(TRIALS / CURRENT).now
        against = used.path if used is not None and used.path else ENGINE
        words = ["engine", "trial", "plan", str(model), "--against", against, "--out", str(out)]
        self._run("trial", [*words, "--level", f"{level / plans:g}", *_words(options)])
        self.say(f"trial: {out} is planned; next: fedrank engine trial read {out} EVENTS")

    def _run(self, step: str, words: list[str]) -> None:
        if status := self.call(words):
            raise ValueError(f"{step} ended with status {status}: fedrank {' '.join(words)}")

    def _finish(self, data: str = "", tried: str = "") -> None:
        self.state.done, self.state.data = True, data or self.state.data
        self.state.tried += [tried] if tried else []
        _write_state(self.state)


def _words(options: Mapping[str, Any]) -> list[str]:
    """Options as words of a command line.

    >>> _words({"hold_out_days": 7, "drop_redacted": True, "keep_patterns": False, "action": ["click", "buy"]})
    ['--hold-out-days', '7', '--drop-redacted', '--action', 'click', '--action', 'buy']
    """
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [flag] if value else []
        else:
            for one in value if isinstance(value, list) else [value]:
                words += [flag, str(one)]
    return words


def _received(settings: Mapping[str, Mapping[str, Any]], state: RefreshState) -> Path | None:
    """The newest received model that the gate did not veto and that was not tried; None if there is none."""
    if "received" not in settings:
        return None
    from fedrank.deploy.site_releases import MODEL_FILES

    tried = {*state.tried, *(one.digest for trial in find_trials([TRIALS]) for one in (trial.plan.old, trial.plan.new))}
    folder = Path(settings["received"]["models"])
    tried |= {digest_of(path) for path in folder.glob(f"*/{MODEL_FILES['veto']}")}  # the gate of another plan
    files = (path for outcome in ("pass", "inconclusive") for path in folder.glob(f"*/{MODEL_FILES[outcome]}"))
    models = [path for path in files if digest_of(path) not in tried]
    return max(models, key=lambda path: path.stat().st_mtime, default=None)


def _vetoed(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Which received model is the newest one, if the gate vetoed it."""
    if "received" not in settings:
        return ""
    from fedrank.deploy.site_releases import MODEL_FILES

    folder = Path(settings["received"]["models"])
    models = [path for name in MODEL_FILES.values() for path in folder.glob(f"*/{name}")]
    newest = max(models, key=lambda path: path.stat().st_mtime, default=Path())
    return f"; the gate vetoed {newest}" if newest.name == MODEL_FILES["veto"] else ""


def _read_state() -> RefreshState:
    if not Path(STATE).exists():
        return RefreshState()
    try:
        content = parse_json(read_bytes(STATE, LARGEST))
        state = RefreshState(**content)
        datetime.fromisoformat(state.name)  # a day, which names folders
        if not isinstance(state.done, bool) or not isinstance(state.data, str) or not isinstance(state.tried, list):
            raise ValueError("its values have other types")
        return state
    except (ValueError, TypeError) as problem:
        raise ValueError(f"{STATE} cannot be read ({problem}); restore it from a backup") from None


def _write_state(state: RefreshState) -> None:
    write_atomic(STATE, json.dumps(vars(state), indent=1) + "\n", private=True)
