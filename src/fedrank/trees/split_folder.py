"""A split on disk: a folder with `split.json`, which describes it, and a folder for each client.

The folder of a client has its queries as LETOR files: `train.txt`, `validation.txt`, `test.txt` and `merge.txt`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.data.catalog import CATALOG, Fold, load, load_files
from fedrank.data.letor import letor_lines
from fedrank.data.ranking import RankingData
from fedrank.federated.heterogeneity import ClientDistance, differences
from fedrank.files import parse_json, read_text, write_atomic
from fedrank.names import did_you_mean
from fedrank.seeds import rng_for
from fedrank.trees.splits import SPLITS, Categories, Dealt, Portion, Splitter, Topics, as_clients

FORMAT = "fedrank-split"
PARTS = ("train", "validation", "test", "merge")


@dataclass(frozen=True)
class SplitMade:
    """A split on disk."""

    folder: Path
    portions: tuple[Portion, ...]
    distances: tuple[ClientDistance, ...]


def splitter_for(
    by: str,
    rule: str = "tie-breaking",
    clients: int = 2,
    categories: Sequence[str] = (),
    rest: str = "no-relevant",
    merge: str = "remaining",
    bins: int = 0,
) -> Splitter:
    """The splitter for these options: `by` may also be "topics" (k-means), "chance", or the number of a feature."""
    if by == "topics":
        return Topics(clients)
    if by == "chance":
        return Dealt(clients)
    if by.isdecimal():
        by = f"feature:{by}"
    for name, value, known in (
        ("rule", rule, ("tie-breaking", "no-ties", "exclusive")),
        ("rest", rest, ("all", "no-relevant", "no-document", "none")),
        ("merge", merge, ("remaining", "validation")),
    ):
        if value not in known:
            raise ValueError(f"unknown {name} {value!r}{did_you_mean(value, known)}")
    settings: dict[str, Any] = {"rule": rule, "rest": rest, "merge": merge}
    return Categories(by, tuple(categories), clients, bins=bins, **settings)


def split_data(
    data: str,
    split: Splitter,
    out: str | Path,
    fold: int = 1,
    seed: int = 1,
    validation: str | Path | None = None,
    test: str | Path | None = None,
) -> SplitMade:
    """Divide a data set of the catalog, or the queries of LETOR files, among clients, and write the data of each."""
    folder = new_folder(out)
    read = _read_fold(data, fold, validation, test)
    portions = split(read, rng_for(seed, "split"))
    if Path(data).is_file() and test is None:
        portions = tuple(replace(portion, test=None) for portion in portions)
    found = differences(as_clients(portions), seed)
    clients = []
    for number, portion in enumerate(portions, start=1):
        place = folder / f"client-{number}"
        place.mkdir(parents=True)
        held = {part: getattr(portion, part) for part in PARTS if getattr(portion, part) is not None}
        for part, queries in held.items():
            write_atomic(place / f"{part}.txt", letor_lines(queries))
        clients.append({"name": portion.name, "folder": place.name, **{p: sizes(q) for p, q in held.items()}})
    content = {
        "format": FORMAT,
        "version": 1,
        "data": data,
        "fold": fold,
        "seed": seed,
        "split": _described(split),
        "feature_names": list(read.train.feature_names),
        "clients": clients,
        "distances": [asdict(one) for one in found.distances],
    }
    write_atomic(folder / "split.json", json.dumps(content, indent=1) + "\n")  # last: it marks a complete split
    return SplitMade(folder, portions, found.distances)


def _described(split: Any) -> dict[str, Any]:
    kind = type(split)
    name = next((name for name, known in SPLITS.items() if known is kind), f"{kind.__module__}:{kind.__qualname__}")
    return {"name": name, **asdict(split)}


def _read_fold(data: str, fold: int, validation: str | Path | None, test: str | Path | None) -> Fold:
    if Path(data).is_file():
        # Without a test file the training queries replace it; `split_data` removes them again.
        return load_files(data, test or data, validation)
    if validation is not None or test is not None:
        raise ValueError(f"validation and test files require a file to split, and {data} is not a file; name a file")
    if data not in CATALOG:
        raise FileNotFoundError(f"{data!r} is neither a file nor a data set{did_you_mean(data, CATALOG)}")
    return load(data, fold, normalise=CATALOG[data].normalise_trees)


def read_split(folder: Path) -> list[tuple[str, str]]:
    """(name, folder) of every client."""
    try:
        content = parse_json(read_text(folder / "split.json"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        return [(client["name"], client["folder"]) for client in content["clients"]]
    except FileNotFoundError:
        raise FileNotFoundError(f"split.json is missing in {folder}; make a split with `fedrank trees split`") from None
    except (ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"{folder / 'split.json'} is not a valid split: {problem}; make it again") from None


def sizes(data: RankingData) -> dict[str, int]:
    return {"queries": data.queries, "documents": data.documents, "relevant": int(np.sum(data.grades > 0))}


def new_folder(out: str | Path) -> Path:
    folder = Path(out)
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty, and its files are not overwritten; name another folder")
    return folder
