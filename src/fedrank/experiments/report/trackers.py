"""Finished runs in an experiment tracker: MLflow, or Weights & Biases.

A tracker gets settings, the measures of each round, final values, the model, its cards and its spec; no values of
single queries or clients, no ledgers and no recorded updates.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedrank.data.normalise import normalise
from fedrank.data.ranking import RankingData
from fedrank.experiments.report.model_card import model_card
from fedrank.experiments.runner.runs import Run, Runs, load_runs, read_toml
from fedrank.extras import missing_extra
from fedrank.names import did_you_mean
from fedrank.toml import flat, shown
from fedrank.trees.model_files import load_model
from fedrank.types import Scores

# Neither the repository, nor the command, the packages or the load of this machine is sent to Weights & Biases.
OFF = ("save_code", "x_save_requirements")
ON = ("silent", "disable_git", "x_disable_stats", "x_disable_meta", "x_disable_machine_info")
QUIET = {"console": "off"} | dict.fromkeys(OFF, False) | dict.fromkeys(ON, True)
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # seven take minutes if no server answers
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
T = TypeVar("T")
MODEL_NAMES = re.compile(r"model(-\d+)*\.(json|txt)")  # the model of a run, and parts of a mixture
RUN = "fedrank_run"  # tag: the digest of the run
CONTENT = 4900  # characters of a description; some data bases of MLflow store 5,000
BATCH = 1000  # measurements in one request, the maximum of MLflow
SETTINGS = 100  # settings in one request, the maximum of MLflow


@dataclass(frozen=True)
class Transferred:
    """What a tracker has after a call."""

    place: str
    new: int
    known: int  # runs that it had before


def send_runs(runs: Runs, to: str) -> Transferred:
    """Send all finished runs to `mlflow`, `mlflow:URI`, `wandb` or `wandb:PROJECT`."""
    name, _, place = to.partition(":")
    if name not in TRACKERS:
        raise ValueError(f"--to {to}: the tracker must be {' or '.join(TRACKERS)}{did_you_mean(name, TRACKERS)}")
    finished = runs.finished
    if not len(finished):
        raise ValueError("no run is finished, so there is nothing to send; run the experiment first")
    return TRACKERS[name](finished, place)


def register(folder: str | Path, to: str, name: str | None) -> tuple[str, str, str]:
    """Register the model of a run in MLflow: name, version and place. The run is sent if MLflow does not have it."""
    card = model_card(folder)  # it refuses what is not one finished run
    [run] = load_runs(folder).finished
    with _mlflow(to.partition(":")[2]) as flow:
        identity, _ = flow.send(run)
        called = name or run.experiment
        flow.ensure_registered(called)
        known = [each for each in flow.client.search_model_versions(f"run_id = '{identity}'") if each.name == called]
        source = f"{flow.client.get_run(identity).info.artifact_uri}/model"
        version = (
            known[0] if known else flow.client.create_model_version(called, source, identity, description=_brief(card))
        )
        return called, str(version.version), flow.place


def _brief(card: str) -> str:
    text = card.split("---\n", 2)[2].strip()
    return text if len(text) <= CONTENT else f"{text[:CONTENT]} ... (README.md has the whole card)"


def _digest(run: Run) -> str:
    """The same for the same run anywhere, so a run that is sent twice is stored once."""
    found = hashlib.sha256(f"{run.experiment}\0{run.label}\0".encode())
    for name in ("spec.toml", "rounds.csv", "model.json"):
        file = run.path / name
        found.update(hashlib.sha256(file.read_bytes()).digest() if file.exists() else b"-")
    return found.hexdigest()[:32]


def _settings(run: Run) -> dict[str, str]:
    spec = {key: shown(value)[:6000] for key, value in flat(read_toml(run.path / "spec.toml")).items()}
    return spec | {"variant": run.variant, "fold": str(run.fold), "seed": str(run.seed)}


def _curves(run: Run) -> Iterator[tuple[str, int, float]]:
    rounds = run.rounds
    for column, values in rounds.items():
        for round, value in zip(rounds["round"], values, strict=True):
            if column != "round" and math.isfinite(value):
                yield _metric(column), int(round), float(value)


def _finals(run: Run) -> dict[str, float]:
    nothing = {name: values[~np.isnan(values)] for name, values in run.nothing.items()}
    found = {f"final/{_metric(name)}": value for name, value in run.final_values.items()}
    found |= {f"do_nothing/{_metric(name)}": float(values.mean()) for name, values in nothing.items() if len(values)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _metric(column: str) -> str:
    """A name that MLflow accepts; its own metrics are written in the same way.

    >>> _metric("ndcg@10/zero")
    'ndcg_at_10/zero'
    """
    return re.sub(r"[^\w. /-]", "_", column.replace("@", "_at_"), flags=re.ASCII)


def _parts(rows: list[T], size: int) -> Iterator[list[T]]:
    return (rows[begin : begin + size] for begin in range(0, len(rows), size))


def _write_model(run: Run, folder: Path) -> bool:
    """Copy the model and its cards; False if the run has no model."""
    if run.model is None:
        return False
    folder.mkdir()
    (folder / "README.md").write_text(model_card(run.path), encoding="utf-8")
    for file in run.path.iterdir():
        if MODEL_NAMES.fullmatch(file.name) or file.name in ("privacy.json", "spec.toml"):
            shutil.copyfile(file, folder / file.name)
    return True


# ---- MLflow ----


def _to_mlflow(runs: Runs, uri: str) -> Transferred:
    with _mlflow(uri) as flow:
        new = sum(flow.send(run)[1] for run in runs)
        return Transferred(flow.place, new, len(runs) - new)


@dataclass(frozen=True)
class _Flow:
    client: Any
    entities: Any
    problem: type[Exception]

    @property
    def place(self) -> str:
        return re.sub(r"//[^/@]*@", "//", str(self.client.tracking_uri))  # without a password

    def send(self, run: Run) -> tuple[str, bool]:
        """The identity of the run in MLflow, and whether it is new. What a killed command left is replaced."""
        experiment, digest = self._experiment(run.experiment), _digest(run)
        for known in self.client.search_runs([experiment], f"tags.`{RUN}` = '{digest}'"):
            if known.info.status == "FINISHED":
                return str(known.info.run_id), False
            self.client.delete_run(known.info.run_id)
        begun, ended = _milliseconds(run.begun), _milliseconds(run.ended or run.begun)
        tags = {RUN: digest, "fedrank_version": run.version}
        tags |= {"mlflow.note.content": run.card.summary[:CONTENT]} if run.card is not None else {}
        made = self.client.create_run(experiment, start_time=begun, run_name=run.label, tags=tags)
        identity = str(made.info.run_id)
        for settings in _parts([*_settings(run).items()], SETTINGS):
            self.client.log_batch(identity, params=[self.entities.Param(*each) for each in settings])
        measured = [(name, value, ended, round) for name, round, value in _curves(run)]
        measured += [(name, value, ended, run.round) for name, value in _finals(run).items()]
        for values in _parts(measured, BATCH):
            self.client.log_batch(identity, metrics=[self.entities.Metric(*each) for each in values])
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            if _write_model(run, folder):
                (folder / "MLmodel").write_text(_mlmodel(identity, ended), encoding="utf-8")
                self.client.log_artifacts(identity, str(folder), "model")
        self.client.set_terminated(identity, end_time=ended)
        return identity, True

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self.client.create_experiment(name))

    def ensure_registered(self, name: str) -> None:
        try:
            self.client.get_registered_model(name)
        except self.problem:
            self.client.create_registered_model(name)


@contextmanager
def _mlflow(uri: str) -> Iterator[_Flow]:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient, entities
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise missing_extra("MLflow needs the package mlflow-skinny", "mlflow") from None
    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        yield _Flow(MlflowClient(uri or None), entities, MlflowException)
    except MlflowException as problem:
        reason = " ".join(str(problem).split())[:500]
        if "'sqlite" in reason and "unsupported URI" in reason:
            reason = (
                "mlflow-skinny alone has no sqlite; install mlflow, or name a server as in --to mlflow:http://host:5000"
            )
        raise OSError(f"MLflow: {reason}") from None


def _mlmodel(identity: str, time: int) -> str:
    """The file that makes a folder a model of MLflow; JSON is YAML."""
    loader = {"loader_module": __name__, "data": ".", "env": None, "python_version": platform.python_version()}
    created = datetime.fromtimestamp(time / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return json.dumps(
        {
            "artifact_path": "model",
            "flavors": {"python_function": loader},
            "run_id": identity,
            "utc_time_created": created,
        }
    )


def _milliseconds(written: str) -> int:
    return int(datetime.fromisoformat(written).timestamp() * 1000) if written else 0


class _Predictor:
    def __init__(self, folder: str) -> None:
        self.model = load_model(Path(folder) / "model.json")

    def predict(self, candidates: Any, params: Any = None) -> Scores:
        """Scores of the candidates of one query: a frame or an array with a row of features for each."""
        features = np.asarray(candidates, np.float32)
        offsets, labels = np.array([0, len(features)]), np.zeros(len(features), np.int8)
        data = RankingData(features, labels, offsets, np.array(["query"]))
        return self.model.score(normalise(data, self.model.normalised, getattr(self.model, "ranges", None)))


def _load_pyfunc(folder: str) -> _Predictor:
    """MLflow calls this to load a model of fedrank."""
    return _Predictor(folder)


# ---- Weights & Biases ----


def _to_wandb(runs: Runs, project: str) -> Transferred:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        import wandb
    except ImportError:
        raise missing_extra("Weights & Biases needs the package wandb", "wandb") from None
    try:
        for run in runs:
            place = _send_to_wandb(wandb, run, project or run.experiment)
    except wandb.Error as problem:
        raise OSError(f"Weights & Biases: {' '.join(str(problem).split())[:500]}") from None
    return Transferred(place, len(runs), 0)


def _send_to_wandb(wandb: Any, run: Run, project: str) -> str:
    """Send a run; the place where it is."""
    identity = _digest(run)  # a run that is sent again has the same identity
    by_round: dict[int, dict[str, float]] = {}
    for name, round, value in _curves(run):
        by_round.setdefault(round, {})[name] = value
    with wandb.init(
        project=project,
        id=identity,
        name=run.label,
        group=run.variant,
        config=_settings(run),
        resume="allow",
        settings=QUIET,
    ) as sent:
        for round, values in sorted(by_round.items()):
            sent.log(values, step=round)
        sent.summary.update(_finals(run))
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            if _write_model(run, folder):
                model = wandb.Artifact(
                    f"model-{identity}", type="model", description=run.card.summary if run.card else None
                )
                for file in sorted(folder.iterdir()):
                    model.add_file(str(file))
                sent.log_artifact(model)
        return "the folder wandb; send it with wandb sync" if sent.offline else "Weights & Biases"


TRACKERS: dict[str, Callable[[Runs, str], Transferred]] = {"mlflow": _to_mlflow, "wandb": _to_wandb}
