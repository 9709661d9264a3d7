"""Remarks about a trained model that are stored in its folder: people who were forgotten, and what an estimate found.

A model does not change when a person whose data it learned from is forgotten, so its folder says so until the model is
trained again: `forgotten_people.json` has the number of each receipt, and no name.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedrank.files import parse_json, read_bytes, write_atomic
from fedrank.ranking.model import COMBINED, load_weights, model_file
from fedrank.ranking.stored_estimate import stored_estimate

FORGOTTEN, GATE = "forgotten_people.json", "gate.json"
FORMAT = 1
_LARGEST = 16 << 20  # bytes


class ForgottenPerson(NamedTuple):
    """A person who was forgotten after a model was trained."""

    receipt: str  # its number
    at: str  # date and time
    certain: bool  # whether the model learned from the person; otherwise that is not known


def mark_forgotten(folder: str | Path, receipt: str, at: str, certain: bool) -> None:
    """Record in the folder of a run that its model may contain what it learned from a person who was forgotten."""
    people = [*forgotten_people(folder), ForgottenPerson(receipt, at, certain)]
    content = {"format": FORMAT, "people": [one._asdict() for one in people]}
    write_atomic(Path(folder) / FORGOTTEN, json.dumps(content, indent=1) + "\n", private=True)


def forgotten_people(model: str | Path) -> list[ForgottenPerson]:
    """The people of whom the folder of a model says that they were forgotten."""
    path = Path(model) if Path(model).is_dir() else Path(model).parent
    if not (path := path / FORGOTTEN).exists():
        return []
    try:
        content = parse_json(read_bytes(path, _LARGEST))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        return [ForgottenPerson(str(one["receipt"]), str(one["at"]), bool(one["certain"])) for one in content["people"]]
    except (ValueError, TypeError, KeyError) as problem:
        raise ValueError(f"{path} cannot be read ({problem!r}); restore it from a backup") from None


def remarks_on(model: str | Path) -> list[str]:
    """What must be known before a model is exported or tried: a sentence each."""
    file = model_file(model)
    people = forgotten_people(file)
    lines = []
    if people:
        learned = "learned" if all(one.certain for one in people) else "may have learned"
        count = "a person who was" if len(people) == 1 else f"{len(people):,} people who were"
        lines.append(
            f"{file} {learned} from {count} forgotten since ({people[-1].at[:10]}); train it again on the remaining "
            "data"
        )
    with suppress(ValueError, OSError):  # forests, and files that reading reports
        if site := load_weights(file).notes.get(COMBINED):
            lines.append(
                f"{file} was combined at {site} with its own model, which learned from its people without noise: no ε "
                "covers it; use it in the engine of that site, and do not publish it"
            )
            if not (file.parent / GATE).exists():
                lines.append(f"{file} is a copy: gate.json at {site} says whether the gate vetoed it")
    with suppress(ValueError, OSError, TypeError, KeyError):  # only a site writes this file
        if parse_json(read_bytes(file.parent / GATE, _LARGEST))["outcome"] == "veto":
            lines.append(f"the gate vetoed {file}: it is estimated to be worse at this site, or at another one")
    found = stored_estimate(file)
    if found is not None and found.finding != "better":
        lines.append(f"the estimate of {file} is {found.finding}: {found.verdict}")
    return lines
