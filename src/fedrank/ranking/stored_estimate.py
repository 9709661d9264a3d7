"""The verdict of the latest click estimate, stored beside the model for export and reports.

`estimate.json` is in a run folder; the estimate of another model file `name.json` is in `name.estimate.json`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from fedrank.files import parse_json, read_bytes, write_atomic
from fedrank.ranking.estimate import ClickEstimate, Finding
from fedrank.ranking.model import model_file

FILE = "estimate.json"
FORMAT = 1
_LARGEST = 1 << 20  # bytes
_FINDINGS: tuple[Finding, ...] = ("better", "worse", "inconclusive")
_NOT_COVERED = "computed from the raw clicks of the log; no mechanism and no ε covers it"


class StoredEstimate(NamedTuple):
    """What an estimate found about a model."""

    finding: Finding  # against the engine, or against the lists shown
    verdict: str  # one sentence
    log: str  # name of the log's folder


def estimate_file(model: str | Path) -> Path:
    """Where the estimate of a model, or of the model of a run folder, is stored."""
    path = model_file(model)
    return path.with_name(FILE if path.name == "model.json" else f"{path.stem}.{FILE}")


def store_estimate(model: str | Path, log: str, found: ClickEstimate | str) -> Path:
    """Write an estimate beside the model, or the reason why there is none; it replaces an earlier one."""
    content: dict[str, Any] = {"format": FORMAT, "model": _digest(model), "log": log, "privacy": _NOT_COVERED}
    if isinstance(found, str):
        content |= {"finding": "inconclusive", "verdict": f"the clicks cannot be estimated: {found}"}
    else:
        content |= found.as_json()
    path = estimate_file(model)
    write_atomic(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def stored_estimate(model: str | Path) -> StoredEstimate | None:
    """The latest estimate of a model; None if there is none, or if the model in the file has changed since."""
    path = estimate_file(model)
    if not path.exists():
        return None
    try:
        content = parse_json(read_bytes(path, _LARGEST).decode())
        if content["format"] != FORMAT or content["finding"] not in _FINDINGS:
            raise ValueError(f"format {content['format']!r} or finding {content['finding']!r} is unknown")
        found = StoredEstimate(content["finding"], str(content["verdict"]), str(content["log"]))
        return found if content["model"] == _digest(model) else None
    except (ValueError, TypeError, KeyError) as problem:
        raise ValueError(f"{path} is not a valid estimate ({problem}); run fedrank model estimate again") from None


def _digest(model: str | Path) -> str:
    return hashlib.sha256(read_bytes(model_file(model))).hexdigest()
