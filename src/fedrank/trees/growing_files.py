"""One forest grown from the LETOR files of several organisations through messages; it can be resumed at any tree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedrank.data.ranking import RankingData
from fedrank.files import UNFINISHED as PART
from fedrank.files import parse_json, read_text, write_atomic
from fedrank.ranking.measures import evaluate
from fedrank.ranking.model import read_for
from fedrank.trees.binning import Edges, grid_edges
from fedrank.trees.boosters import BoosterState, Grower, best_size
from fedrank.trees.forest import Forest, save_forest
from fedrank.trees.growing import GrowPlan
from fedrank.trees.growing_protocol import TreeClient, TreeServer, forest_from, in_process
from fedrank.trees.model_files import load_model

UNFINISHED = "growing.json"  # the forest so far
FINISHED = "grown.json"  # what a finished forest was grown from
FORMAT = "fedrank-growing"


@dataclass(frozen=True)
class GrownFile:
    """A forest on disk that several organisations grew, and its cost."""

    file: Path
    forest: Forest
    silos: dict[str, RankingData]  # by file
    test: dict[str, float]  # nDCG@10 by file
    grown: int  # trees, before it was truncated to the best size
    resumed: int  # trees that existed before
    bytes_up: int  # of all histograms and answers
    bytes_down: int
    finished_before: bool = False  # whether the forest was complete already


def grow_files(
    silos: Sequence[str | Path],
    out: str | Path,
    rules: Grower,
    validation: Sequence[str | Path] = (),  # one per silo, or none
    test: Sequence[str | Path] = (),
    edges: str | Path | None = None,  # a file that all agreed on; None: a grid that fits all numbers
    secure: bool = False,
    seed: int = 1,
    tell: Callable[[int, float], None] = lambda trees, quality: None,  # after every tree
    finish: Callable[[Path], None] = lambda folder: None,  # writes further files
    vote: int = 0,  # features per leaf that each client votes for; 0: histograms of all are sent
) -> GrownFile:
    """Grow one forest through messages as bytes; an interrupted forest continues after its last tree."""
    if len(silos) < 2:
        raise ValueError(
            f"growing together needs two or more silos (got {len(silos)}); name more, or train a forest alone with "
            "`fedrank new FILE --kind trees` and `fedrank run FILE`"
        )
    if len(validation) not in (0, len(silos)):
        raise ValueError(f"{len(validation)} validation files for {len(silos)} silos; give one per silo, or none")
    train = _read(silos)
    by_file = dict(zip(map(str, silos), train, strict=True))
    features = train[0].features.shape[1]
    judged: Sequence[RankingData | None] = [read_for(path, features, "none") for path in validation]
    judged = judged or [None] * len(train)
    tests = {str(path): read_for(path, features, "none") for path in test}
    folder, files = Path(out), [*silos, *validation]
    asked = {**asdict(rules), "seed": seed, "secure": secure, "vote": vote, "edge noise": None}  # hashed, as before
    origin = _name(json.dumps(asked, sort_keys=True).encode(), [*files, *([] if edges is None else [edges])])
    if (folder / FINISHED).exists():
        return _finished(folder, origin, by_file, tests)
    _check_folder(folder)
    agreed = grid_edges(features, rules.bins) if edges is None else Edges.load(edges)
    plan = GrowPlan(rules, agreed, seed, tuple(range(len(train))), secure, vote=vote)
    name = _name(plan.run, files)
    past = _past(folder, name)
    clients = {
        number: TreeClient(number, plan, own, check)
        for number, (own, check) in enumerate(zip(train, judged, strict=True))
    }
    server = TreeServer(plan, in_process(clients))
    trees, curve = list(past.trees), list(past.validation)
    folder.mkdir(parents=True, exist_ok=True)
    for text, quality in server.forest(past.trees, past.validation):
        trees.append(text)
        curve.append(quality)
        _keep(folder, name, trees, curve)
        tell(len(trees), quality)
    best = best_size(curve)
    forest = forest_from(trees[:best], train[0], plan)
    save_forest(forest, folder / "model.json")
    finish(folder)
    write_atomic(
        folder / FINISHED, json.dumps({"format": FORMAT, "version": 1, "of": origin, "trees": len(trees)}) + "\n"
    )
    (folder / UNFINISHED).unlink(missing_ok=True)  # the last step, which is repeated after a kill
    bytes_both = server.bytes_up, server.bytes_down
    tested, file = _tested(forest, tests), folder / "model.json"
    return GrownFile(file, forest, by_file, tested, len(trees), len(past.trees), *bytes_both)


def _tested(forest: Forest, tests: dict[str, RankingData]) -> dict[str, float]:
    return {name: float(evaluate(["ndcg@10"], forest.score(data), data)[0]) for name, data in tests.items()}


def _finished(folder: Path, origin: str, silos: dict[str, RankingData], tests: dict[str, RankingData]) -> GrownFile:
    """The forest that was grown from the same files by the same rules; any other one is an error."""
    try:
        found = parse_json(read_text(folder / FINISHED))
        same, trees = found["of"] == origin, int(found["trees"])
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"{folder / FINISHED} cannot be read ({problem}); name another folder") from None
    if not same:
        raise FileExistsError(
            f"{folder} has a forest that was grown with other settings or from other files, and is not "
            "overwritten; name another folder, or delete that one"
        )
    forest = load_model(folder / "model.json")
    if not isinstance(forest, Forest):
        raise ValueError(f"{folder / 'model.json'} is not the forest that was grown there; name another folder")
    (folder / UNFINISHED).unlink(missing_ok=True)  # left by a process that was killed just before its end
    tested = _tested(forest, tests)
    return GrownFile(folder / "model.json", forest, silos, tested, trees, trees, 0, 0, finished_before=True)


def _read(silos: Sequence[str | Path]) -> list[RankingData]:
    """The rows of the silos; a sparse file may omit its last features."""
    first = [read_for(path, 1, "none") for path in silos]
    widest = max(data.features.shape[1] for data in first)
    return [
        data if data.features.shape[1] == widest else _widened(path, data, widest)
        for path, data in zip(silos, first, strict=True)
    ]


def _widened(path: str | Path, data: RankingData, features: int) -> RankingData:
    try:
        return read_for(path, features, "none")
    except ValueError:
        raise ValueError(
            f"{path} has {data.features.shape[1]} features, but another silo has {features}; growing together needs "
            "the same features, in the same order"
        ) from None


def _name(settings: bytes, files: Sequence[str | Path]) -> str:
    """A digest of what a forest is grown from: other settings or rows give another one."""
    digest = hashlib.blake2b(settings, digest_size=16)
    for path in files:
        digest.update(hashlib.sha256(Path(path).read_bytes()).digest())
    return digest.hexdigest()


def _keep(folder: Path, name: str, trees: Sequence[str], curve: Sequence[float]) -> None:
    known = [None if quality != quality else quality for quality in curve]  # JSON has no NaN
    content = {"format": FORMAT, "version": 1, "of": name, "trees": list(trees), "validation": known}
    write_atomic(folder / UNFINISHED, json.dumps(content))


def _check_folder(folder: Path) -> None:
    """Raise FileExistsError for a folder with files that do not belong to an unfinished forest."""
    if (folder / UNFINISHED).exists() or not folder.exists():
        return
    # A process killed during a write leaves a partial file.
    if any(not path.name.endswith(PART) for path in folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty, and its files are not overwritten; name another folder")


def _past(folder: Path, name: str) -> BoosterState:
    if not (folder / UNFINISHED).exists():
        return BoosterState()
    try:
        content: Any = parse_json(read_text(folder / UNFINISHED))
        if content["format"] != FORMAT or content["version"] != 1:
            raise ValueError(f"its format is {content['format']!r}, version {content['version']}")
        trees = tuple(map(str, content["trees"]))
        curve = tuple(float("nan") if quality is None else float(quality) for quality in content["validation"])
        if len(trees) != len(curve):
            raise ValueError(f"it has {len(trees)} trees and {len(curve)} qualities")
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(
            f"{folder / UNFINISHED} has no forest that can be continued: {problem}; delete the folder"
        ) from None
    if content["of"] != name:
        raise ValueError(
            f"the forest in {folder} was begun with other settings or files; name another folder, or use the same ones"
        )
    return BoosterState(trees, curve)
