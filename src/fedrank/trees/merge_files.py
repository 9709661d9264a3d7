"""Merge model files of several clients into new ones, by one merge set or by those of a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.names import did_you_mean
from fedrank.ranking.measures import per_query
from fedrank.ranking.model import Scorer, Tell, read_for, unheard
from fedrank.trees.mergers import Stacking, WeightedSum
from fedrank.trees.mixtures import same_features
from fedrank.trees.model_files import load_model, save_any
from fedrank.trees.split_folder import new_folder, read_split

MEASURES = ("ndcg@10", "map", "mrr@10")  # those of the paper
METHODS: dict[str, WeightedSum | Stacking] = {
    "linear": WeightedSum(),
    "uniform": WeightedSum(weights="uniform"),
    "stacking": Stacking(),
    "stacking-scores": Stacking(inputs="scores"),
    "stacking-features": Stacking(inputs="features"),
}


@dataclass(frozen=True)
class MergedFile:
    """One merged model on disk, and the quality of it and its parts."""

    client: str  # "" without a split
    file: Path
    model: Scorer
    own: int | None  # index of the client's own model among the parts
    values: dict[str, NDArray[np.float64]]  # by set: [measures, parts and then merged, queries]


def merge_models(
    models: Sequence[str | Path], on: str | Path, method: str, out: str | Path, seed: int = 1, tell: Tell = unheard
) -> list[MergedFile]:
    """Merge model files by a merge set (one model), or by those of a split (one model per client).

    With a split, model i belongs to client i, and all are evaluated on the test queries of every client.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}{did_you_mean(method, METHODS)}")
    if len(models) < 2:
        raise ValueError(f"models must have at least 2 entries (got {len(models)})")
    folder = new_folder(out)
    loaded = [load_model(path, tell) for path in models]
    same_features(loaded)
    features, normalise = loaded[0].features, loaded[0].normalised
    if normalise == "global":
        raise ValueError(
            'the models were trained with normalise = "global", whose ranges a merge set does not have; '
            'train them with "none"'
        )
    on, tests = Path(on), dict[str, RankingData]()
    work: list[tuple[str, int | None, Path, Path]]  # client, index of the own model, merge set, folder of the result
    if on.is_dir():
        clients = read_split(on)
        if len(clients) != len(models):
            raise ValueError(f"{len(models)} models for {len(clients)} clients in {on}; give one per client, in order")
        work = [(name, i, on / place / "merge.txt", folder / place) for i, (name, place) in enumerate(clients)]
        found = {f"test of {name}": on / place / "test.txt" for name, place in clients}
        tests = {name: read_for(path, features, normalise) for name, path in found.items() if path.exists()}
    elif on.is_file():
        work = [("", None, on, folder)]
    else:
        raise FileNotFoundError(
            f"merge set {on} does not exist; give a LETOR file, or the folder of `fedrank trees split`"
        )
    made = []
    for client, own, file, target in work:
        merge_set = read_for(file, features, normalise)
        model = METHODS[method].merge(loaded, merge_set, seed)
        target.mkdir(parents=True, exist_ok=True)
        save_any(model, target / "model.json")
        values = {
            name: per_query(MEASURES, np.stack([np.asarray(one.score(data)) for one in (*loaded, model)]), data)
            for name, data in {"merge set": merge_set, **tests}.items()
        }
        made.append(MergedFile(client, target / "model.json", model, own, values))
    return made
