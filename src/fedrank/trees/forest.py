"""A forest of regression trees as one ordinary LightGBM text model.

A file written by LightGBM is used unchanged; trees grown by several boosters are joined into one. Any LightGBM loads
the files that fedrank writes, gives the same scores, and can use only the first k trees. Files are parsed and
documents scored without LightGBM, whose parser trusts a file: see `arrays.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.display import DisplayMixin
from fedrank.extras import missing_extra
from fedrank.files import is_plain, read_text, write_atomic
from fedrank.ranking.model import (
    CHECKSUM,
    FOREST,
    Tell,
    check_features,
    check_sum,
    checksum_of,
    origin,
    ranges_of,
    write_content,
)
from fedrank.trees.arrays import Trees

END = "end of trees"
VERSIONS = ("v2", "v3", "v4")  # of LightGBM's text format
SEAL = "fedrank_checksum="  # prefix of the line after END in a file of fedrank; LightGBM ignores it


def lightgbm() -> Any:
    """The package, or an error that says how to install it."""
    try:
        import lightgbm as engine
    except ImportError:
        raise missing_extra("trees need LightGBM", "trees") from None
    return engine


@dataclass(frozen=True, repr=False)
class Forest(DisplayMixin):
    """A forest is a sum of regression trees, stored as a text model of LightGBM.

    Boosters return forests, and `load_model` reads them. `score(data)` returns a score for each document, and
    `truncated(n)` returns the forest of the first n trees.

    >>> import fedrank as fr
    >>> train, test = (fr.synthetic("mq2007", queries=40, seed=seed) for seed in (1, 2))
    >>> forest = fr.boosters.Grower(trees=5, leaves=4)(train)
    >>> for size in (1, 5):
    ...     scores = forest.truncated(size).score(test)
    ...     print(size, fr.evaluate(["ndcg@10"], scores, test).round(3))
    1 [0.421]
    5 [0.531]
    """

    text: str  # LightGBM's text format
    normalised: str = "none"  # normalisation of the features it was trained on
    feature_names: tuple[str, ...] = ()  # [features], or empty; LightGBM's names allow no spaces
    notes: dict[str, Any] = field(default_factory=dict)  # its origin
    ranges: NDArray[np.float32] | None = None  # [2, features] of "global" normalisation; None: other, or unknown

    def __post_init__(self) -> None:
        _check(self.text)
        reads = self.arrays.reaches
        if reads > self.features:
            raise ValueError(
                f"a tree uses feature {reads - 1} of {self.features} (counted from 0); the file is damaged, copy or "
                "train it again"
            )
        if len(self.feature_names) not in (0, self.features):
            raise ValueError(
                f"feature_names must have {self.features} names, one per feature (got {len(self.feature_names)})"
            )

    def _display(self) -> tuple[str, dict[str, str]]:
        return "", {
            "trees": f"{len(self):,}",
            "features": f"{self.features:,}",
            "normalised": self.normalised,
            "origin": origin(self.notes),
        }

    @cached_property
    def features(self) -> int:
        """Number of features."""
        return _whole(_header(self.text, "max_feature_idx"), "max_feature_idx") + 1

    @cached_property
    def trees(self) -> tuple[str, ...]:
        """Every tree as LightGBM writes it, without its number."""
        body = self.text[: self.text.index(f"\n{END}")]
        return tuple(part.split("\n", 1)[1].strip("\n") for part in re.split(r"^Tree=", body, flags=re.MULTILINE)[1:])

    @cached_property
    def arrays(self) -> Trees:
        """All trees as arrays, for scoring."""
        return Trees.read(self.trees)

    def __len__(self) -> int:
        return len(_header(self.text, "tree_sizes").split())

    @property
    def names_in_text(self) -> tuple[str, ...]:
        """Feature names in LightGBM's format, in which spaces are underscores."""
        return tuple(_header(self.text, "feature_names").split())

    def score(self, data: RankingData, client: int | None = None) -> NDArray[np.float64]:
        """[documents]: higher is better. A forest is the same for every client."""
        if data.feature_names and self.feature_names and data.feature_names != self.feature_names:
            pairs = zip(self.feature_names, data.feature_names, strict=False)
            mine, theirs = next((pair for pair in pairs if pair[0] != pair[1]), ("a name", "none"))
            raise ValueError(
                f"the forest needs the feature {mine!r} where the data have {theirs!r}; use data with the features "
                "that it was trained on"
            )
        return self.raw(fitting(data, self.features))

    def raw(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """[documents] from a matrix with as many columns as the forest has features."""
        if features.shape[1] != self.features:
            raise ValueError(f"the forest needs {self.features} features, but the matrix has {features.shape[1]}")
        scores = np.zeros(len(features))
        self.arrays.add(np.ascontiguousarray(features), scores)
        return scores

    def truncated(self, trees: int) -> Forest:
        """The forest of the first trees, as if training had stopped there."""
        if not 0 <= trees <= len(self):
            raise ValueError(f"trees must be between 0 and {len(self)} (got {trees})")
        return replace(self, text=joined(self.text, self.trees[:trees]))


def fitting(data: RankingData, features: int) -> NDArray[np.float32]:
    """The features of some data for a model with this number of features."""
    check_features(data, features)
    return np.ascontiguousarray(data.features, dtype=np.float32)


def joined(text: str, trees: Sequence[str]) -> str:
    """A LightGBM text with the header of another one and these trees.

    The header lists the length of every tree in bytes, by which LightGBM finds the trees.
    """
    head = text[: text.index("\ntree_sizes=")]
    tail = text[text.index(f"\n{END}") + 1 + len(END) :]
    tail = tail[tail.find("\nparameters:") :] if "\nparameters:" in tail else "\n"  # drops outdated importances
    blocks = [f"Tree={number}\n{tree}\n\n\n" for number, tree in enumerate(trees)]
    sizes = " ".join(str(len(block.encode())) for block in blocks)
    return f"{head}\ntree_sizes={sizes}\n\n{''.join(blocks)}{END}\n{tail}"


def make_forest(
    trees: Sequence[str], data: RankingData, notes: dict[str, Any] | None = None, with_ranges: bool = True
) -> Forest:
    """A forest of trees in LightGBM's format, for the features of some data.

    Its header has the minimum and maximum of each feature, unless the trees were grown elsewhere.
    """
    low = high = np.zeros(data.features.shape[1])
    if with_ranges:
        low = np.fmin.reduce(data.features, axis=0, dtype=np.float64)
        high = np.fmax.reduce(data.features, axis=0, dtype=np.float64)
    return Forest(_text(trees, low, high), data.normalised, data.feature_names, notes or {}, data.ranges)


def _text(trees: Sequence[str], low: NDArray[np.float64], high: NDArray[np.float64]) -> str:
    """A LightGBM text of trees for features from low to high [features]."""
    head = {
        "version": "v4",
        "num_class": 1,
        "num_tree_per_iteration": 1,
        "label_index": 0,
        "max_feature_idx": len(low) - 1,
        "objective": "lambdarank",
        "feature_names": " ".join(f"Column_{column}" for column in range(len(low))),
        "feature_infos": " ".join(
            f"[{float(a)!r}:{float(b)!r}]" if a < b else "none" for a, b in zip(low, high, strict=True)
        ),
        "tree_sizes": "",
    }
    empty = "\n".join(["tree", *(f"{key}={value}" for key, value in head.items())]) + f"\n\n{END}\n"
    return joined(empty, trees)


def save_forest(forest: Forest, path: str | Path) -> None:
    """Write `model.json`, which describes the model, and in the same folder `model.txt`, which any LightGBM reads."""
    beside = Path(path).with_suffix(".txt")
    write_text(forest, beside)
    ranker = {"name": FOREST, "file": beside.name, "trees": len(forest), CHECKSUM: checksum_of(forest.text)}
    write_content(path, ranker, forest)


def write_text(forest: Forest, path: Path) -> None:
    """Write the trees in LightGBM's format, with a line for the checksum."""
    end = forest.text.index(f"\n{END}") + 1 + len(END)
    write_atomic(path, f"{forest.text[:end]}\n{SEAL}{checksum_of(forest.text)}{forest.text[end:]}")


def load_forest(path: Path, content: Mapping[str, Any] | None, tell: Tell) -> Forest:
    """The forest that `model.json` describes, or (None) a text model of LightGBM."""
    if content is None:
        text, given = _read_text(path)
        forest = Forest(text)
        check_sum(given, text, path.name, tell)
        return forest
    ranker = content["ranker"]
    if not is_plain(ranker["file"]):
        raise ValueError(f"its tree file {ranker['file']!r} must be in the same folder; the file is damaged")
    beside = path.with_name(ranker["file"])
    text, names = _read_text(beside)[0], tuple(content["feature_names"])
    forest = Forest(text, content["normalised"], names, content["notes"], ranges_of(content))
    if (len(forest), forest.features) != (ranker["trees"], content["features"]):
        raise ValueError(
            f"{beside.name} has {len(forest)} trees on {forest.features} features, but {path.name} describes "
            f"{ranker['trees']} on {content['features']}; copy both files of a model together"
        )
    check_sum(ranker.get(CHECKSUM), forest.text, beside.name, tell)
    return forest


def _read_text(path: Path) -> tuple[str, str | None]:
    """The text as LightGBM would write it, and the checksum that fedrank added to it."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path.name} is missing in {path.parent}; it contains the trees of model.json, so copy both files"
        ) from None
    before, mark, after = text.partition(f"\n{END}\n{SEAL}")
    if not mark:
        return text, None
    given, newline, rest = after.partition("\n")
    return f"{before}\n{END}{newline}{rest}", given


def _whole(text: str, what: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"its {what} must be an integer (got {text[:20]!r}); the file is damaged")
    return int(text)


def _header(text: str, key: str) -> str:
    end = text.find("\nTree=")
    found = re.search(rf"^{key}=(.*)$", text if end < 0 else text[:end], flags=re.MULTILINE)
    if found is None:
        raise ValueError(f"it has no line {key}=; it is not a text model of LightGBM")
    return found.group(1)


def _check(text: str) -> None:
    """Raise ValueError for text that is not a model of one ranker, or whose header and body disagree."""
    if not text.strip():
        raise ValueError("it is empty")
    if not text.startswith("tree\n"):
        raise ValueError("it does not begin with the line 'tree', as LightGBM's text models do")
    if f"\n{END}" not in text:
        raise ValueError(f"the line {END!r} is missing: the file is truncated; copy or train it again")
    if _header(text, "version") not in VERSIONS:
        raise ValueError(f"its format must be one of {', '.join(VERSIONS)} (got {_header(text, 'version')[:20]!r})")
    if _header(text, "num_tree_per_iteration") != "1" or _header(text, "num_class") != "1":
        raise ValueError("it has several classes; a ranking model has one tree per iteration")
    features = _whole(_header(text, "max_feature_idx"), "max_feature_idx") + 1
    for key in ("feature_names", "feature_infos"):
        if len(_header(text, key).split()) != features:
            raise ValueError(
                f"it has {features} features but {len(_header(text, key).split())} {key}; the file is damaged"
            )
    starts = [found.start() for found in re.finditer("^Tree=", text, flags=re.MULTILINE)]
    starts.append(text.index(f"\n{END}") + 1)
    lengths = [len(text[a:b].encode()) for a, b in pairwise(starts)]
    promised = [_whole(size, "tree_sizes") for size in _header(text, "tree_sizes").split()]
    if lengths != promised:
        raise ValueError(
            f"its header lists {len(promised)} trees of {sum(promised):,} bytes, but {len(lengths)} of "
            f"{sum(lengths):,} follow; the file is damaged, copy or train it again"
        )
    for number, start in enumerate(starts[:-1]):
        if not text.startswith(f"Tree={number}\n", start):
            raise ValueError(f"its tree {number} has another number; the file is damaged, copy or train it again")
