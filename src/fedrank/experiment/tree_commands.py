"""What `fedrank trees split` and `fedrank trees merge` do: data for several clients, and one model for each of them.

A split is a folder with `split.json`, which says how it was made, and a folder for each client with its queries as
LETOR files: `train.txt`, `validation.txt`, `test.txt` and `merge.txt`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.catalog import CATALOG, Fold, load, load_files
from fedrank.data.letor import read_letor
from fedrank.data.ranking import RankingData
from fedrank.experiment.families import describe
from fedrank.experiment.statistics import randomisation_test
from fedrank.experiment.who import MEANINGS
from fedrank.federate.differences import Distance, differences
from fedrank.federate.merge import Linear, Stacking
from fedrank.federate.splits import Categories, Dealt, Share, Splitter, Topics, as_clients
from fedrank.files import write_whole
from fedrank.names import nearest
from fedrank.rank.measures import average, per_query
from fedrank.rank.merged import LinearMix, Stacked, same_features, save_any
from fedrank.rank.model import Scorer, load_model
from fedrank.seeds import rng_for

if TYPE_CHECKING:
    from rich.console import Console

FORMAT = "fedrank-split"
PARTS = ("train", "validation", "test", "merge")
MEASURES = ("ndcg@10", "map", "mrr@10")  # those of the paper
METHODS: dict[str, Linear | Stacking] = {
    "linear": Linear(),
    "uniform": Linear(weights="uniform"),
    "stacking": Stacking(),
    "stacking-scores": Stacking(inputs="scores"),
    "stacking-features": Stacking(inputs="features"),
}


@dataclass(frozen=True)
class SplitMade:
    """A split on disk."""

    folder: Path
    shares: tuple[Share, ...]
    distances: tuple[Distance, ...]


def splitter_for(
    by: str,
    rule: str = "tie-breaking",
    clients: int = 2,
    categories: Sequence[str] = (),
    rest: str = "no-relevant",
    merge: str = "remaining",
    bins: int = 0,
) -> Splitter:
    """The rule that options ask for: `by` may also be "topics" (k-means), "chance", or the number of a feature."""
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
            raise ValueError(f"no {name} {value!r}{nearest(value, known)}")
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
    """Divide a set of the catalog, or the queries of LETOR files, among clients, and write what each holds."""
    folder = _new_folder(out)
    read = _read_fold(data, fold, validation, test)
    shares = split(read, rng_for(seed, "split"))
    if Path(data).is_file() and test is None:
        shares = tuple(replace(share, test=None) for share in shares)
    found = differences(as_clients(shares), seed)
    clients = []
    for number, share in enumerate(shares, start=1):
        place = folder / f"client-{number}"
        place.mkdir(parents=True)
        held = {part: getattr(share, part) for part in PARTS if getattr(share, part) is not None}
        for part, queries in held.items():
            with (place / f"{part}.txt").open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(letor_lines(queries))
        clients.append({"name": share.name, "folder": place.name, **{p: _sizes(q) for p, q in held.items()}})
    content = {
        "format": FORMAT,
        "version": 1,
        "data": data,
        "fold": fold,
        "seed": seed,
        "split": describe(split),
        "feature_names": list(read.train.feature_names),
        "clients": clients,
        "distances": [asdict(one) for one in found.distances],
    }
    write_whole(folder / "split.json", json.dumps(content, indent=1) + "\n")  # last: it makes the folder a split
    return SplitMade(folder, shares, found.distances)


def letor_lines(data: RankingData) -> Iterator[str]:
    """Lines of a LETOR file, which read back give the same numbers."""
    template = " ".join(f"{column}:%.9g" for column in range(1, data.features.shape[1] + 1))
    for query, name in enumerate(data.query_ids):
        for row in range(data.offsets[query], data.offsets[query + 1]):
            yield f"{data.grades[row]} qid:{name} {template % tuple(data.features[row].tolist())}\n"


def show_split(made: SplitMade, console: Console) -> None:
    """Print how much every client holds and how different they are."""
    from rich.table import Table
    from rich.text import Text

    table = Table("client", box=None, pad_edge=False, header_style="cyan")
    for column in ("set", "queries", "documents", "relevant"):
        table.add_column(column, justify="left" if column == "set" else "right")
    for number, share in enumerate(made.shares, start=1):
        for part in PARTS:
            queries = getattr(share, part)
            if queries is not None:
                who = Text(f"{number}: {share.name}" if part == PARTS[0] else "")
                table.add_row(who, part, *(f"{size:,}" for size in _sizes(queries).values()))
    console.print(table)
    console.print()
    apart = Table("how different", box=None, pad_edge=False, header_style="cyan")
    for column in ("mean", "by chance"):
        apart.add_column(column, justify="right")
    apart.add_column("meaning")
    for one in made.distances[:2]:  # no query has two owners, and grades are the same for all
        apart.add_row(one.name, f"{one.mean:.3f}", f"{one.mean_by_chance:.3f}", MEANINGS[one.name])
    console.print(apart)
    console.print(Text(f"written to {made.folder}"))


@dataclass(frozen=True)
class MergedFile:
    """One merged model on disk, and how well it and its parts rank."""

    client: str  # "" where there was no split
    file: Path
    model: Scorer
    own: int | None  # place of the client's own model among the parts
    values: dict[str, NDArray[np.float64]]  # of every set: [measures, parts and then merged, queries]


def merge_models(
    models: Sequence[str | Path], on: str | Path, method: str, out: str | Path, seed: int = 1, threads: int = 1
) -> list[MergedFile]:
    """Merge model files by a merge set (one model), or by those of a split (one model for each client).

    With a split, model i is that of client i, and all are measured on the test queries of every client.
    """
    if method not in METHODS:
        raise ValueError(f"no method {method!r}{nearest(method, METHODS)}")
    if len(models) < 2:
        raise ValueError(f"{len(models)} model is nothing to merge; give two or more")
    folder = _new_folder(out)
    loaded = [load_model(path) for path in models]
    same_features(loaded)
    normalise = loaded[0].normalised
    if normalise == "global":
        raise ValueError('the models were trained with normalise = "global", whose ranges a merge set does not have')
    on = Path(on)
    made = []
    if on.is_dir():
        clients = _read_split(on)
        if len(clients) != len(models):
            raise ValueError(f"{len(models)} models for {len(clients)} clients in {on}; give one for each, in order")
        tests = {name: _maybe(on / place / "test.txt", normalise) for name, place in clients}
        judged = {f"test of {name}": data for name, data in tests.items() if data is not None}
        for number, (name, place) in enumerate(clients):
            merge_set = read_letor(on / place / "merge.txt", normalise=normalise)
            target = folder / place
            made.append(_merged(loaded, merge_set, method, target, name, number, judged, seed, threads))
    elif on.is_file():
        merge_set = read_letor(on, normalise=normalise)
        made.append(_merged(loaded, merge_set, method, folder, "", None, {}, seed, threads))
    else:
        raise FileNotFoundError(f"no merge set {on}; give a LETOR file, or the folder of `fedrank trees split`")
    return made


def show_merged(made: Sequence[MergedFile], console: Console) -> None:
    """Print what every merged model is made of, and who gains and who loses by it."""
    from rich.table import Table
    from rich.text import Text

    for one in made:
        console.print(Text(f"{one.client or 'merged model'}: {_made_of(one.model)}", style="bold"))
        table = Table("queries", "model", box=None, pad_edge=False, header_style="cyan")
        for column in (*MEASURES, f"p ({MEASURES[0]})"):
            table.add_column(column, justify="right")
        for name, values in one.values.items():
            parts = values.shape[1] - 1
            compared = randomisation_test(values[0, :parts], values[0, parts])
            for place in range(parts + 1):
                label = "merged" if place == parts else f"model {place + 1}" + (" (own)" if place == one.own else "")
                cells = [f"{value:.4f}" for value in average(values[:, place])]
                p = "" if place == parts else f"{compared[place]:.4f}"
                table.add_row(Text(name if place == 0 else ""), label, *cells, p)
        console.print(table)
        console.print(Text(f"written to {one.file}"))
        console.print()
    console.print(Text("p: randomisation test over queries, each model against the merged one", style="dim"))
    console.print(Text("on the merge set, weights and stacked models look better than they are", style="dim"))


def _merged(
    models: list[Scorer],
    on: RankingData,
    method: str,
    folder: Path,
    client: str,
    own: int | None,
    judged: dict[str, RankingData],
    seed: int,
    threads: int,
) -> MergedFile:
    model = METHODS[method].merge(models, on, seed, threads)
    folder.mkdir(parents=True, exist_ok=True)
    save_any(model, folder / "model.json")
    sets = {"merge set": on} | judged
    values = {
        name: per_query(MEASURES, np.stack([np.asarray(one.score(data)) for one in (*models, model)]), data)
        for name, data in sets.items()
    }
    return MergedFile(client, folder / "model.json", model, own, values)


def _made_of(model: Scorer) -> str:
    if isinstance(model, LinearMix):
        return " + ".join(f"{weight:g} x model {number}" for number, weight in enumerate(model.weights, start=1))
    if isinstance(model, Stacked):
        inputs = "features and scores" if model.inputs == "both" else "scores"
        return f"trees on the {inputs} of {len(model.parts)} models"
    return "trees on the features of the merge set alone"


def _read_fold(data: str, fold: int, validation: str | Path | None, test: str | Path | None) -> Fold:
    if Path(data).is_file():
        # Without a test file its place is held by the training queries, which `split_data` takes out again.
        return load_files(data, test or data, validation)
    if validation is not None or test is not None:
        raise ValueError(f"{data} is no file, so that validation and test files go with nothing; name a file to split")
    if data not in CATALOG:
        raise FileNotFoundError(f"no file and no data set {data!r}{nearest(data, CATALOG)}")
    return load(data, fold, normalise=CATALOG[data].normalise_trees)


def _read_split(folder: Path) -> list[tuple[str, str]]:
    """(name, folder) of every client."""
    try:
        content = json.loads((folder / "split.json").read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        return [(client["name"], client["folder"]) for client in content["clients"]]
    except FileNotFoundError:
        raise FileNotFoundError(f"no split.json in {folder}; make a split with `fedrank trees split`") from None
    except (ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"{folder / 'split.json'} cannot be read as a split: {problem}; make it again") from None


def _maybe(path: Path, normalise: str) -> RankingData | None:
    return read_letor(path, normalise=normalise) if path.exists() else None


def _sizes(data: RankingData) -> dict[str, int]:
    return {"queries": data.queries, "documents": data.documents, "relevant": int(np.sum(data.grades > 0))}


def _new_folder(out: str | Path) -> Path:
    folder = Path(out)
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty, and nothing is overwritten; name another folder")
    return folder
