"""Recorded result lists and clicks: written by a search client, used for training by a site.

    FOLDER/000000000017         one list: features and scores of all candidates, displayed results, clicks

A search client writes them, and a site of a federation answers rounds from them; the two are independent. A file has no
query, document or time. It is written atomically and only its owner can read it. Its number, assigned by the writer, is
in its name and its content: after a crash the writer writes it again, and it is still one list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank import wire
from fedrank.data.live_features import LIVE_1
from fedrank.files import UNFINISHED, error_message, private_folder, read_bytes, write_atomic
from fedrank.types import Impression, Judged, Logged
from fedrank.wire import Label, Part

LARGEST = 4 << 20  # maximum size of a file in bytes
MAX_NUMBER = (1 << 62) - 1
_ABOUT = np.dtype(
    [("candidates", "<i4"), ("features", "<i4"), ("places", "<i4"), ("temperature", "<f8"), ("keep", "<f8")]
)
_ARRAYS = {"list": "<f4", "scores": "<f4", "shown": "<i4", "clicked": "|u1"}
_NAME = re.compile(r"[0-9]{12,19}")


class RecordError(ValueError):
    """A file that is not a recorded list, or is damaged."""


@dataclass(frozen=True, eq=False)
class RecordedList:
    """One displayed list, and how it was drawn."""

    impression: Impression  # features are scaled as for models
    temperature: float
    keep: float
    version: str = LIVE_1.version  # of the features

    def problem(self) -> str:
        """Return what is wrong with it; "" if nothing is."""
        features, scores, shown, clicked = self.impression
        if features.ndim != 2 or scores.shape != features.shape[:1]:
            return f"has features {features.shape} and scores {scores.shape}, which do not match"
        if shown.ndim != 1 or clicked.shape != shown.shape:
            return f"has {shown.shape} positions and {clicked.shape} clicks, which do not match"
        if len(np.unique(shown)) != len(shown) or np.any((shown < 0) | (shown >= len(scores))):
            return f"displays a candidate twice, or one that is not among its {len(scores)}"
        if not np.isfinite(features).all() or not np.isfinite(scores).all():
            return "has features or scores that are not finite"
        if not 0 < self.temperature < np.inf or not 0 <= self.keep <= 1:
            return f"was drawn with temperature {self.temperature} and keep {self.keep}, which is not valid"
        return ""


class RecordedFolder:
    """A folder of recorded lists, in the order of their numbers."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def numbers(self) -> list[int]:
        """The numbers of all lists in the folder."""
        found = []
        for path in self.folder.iterdir():
            if path.name.endswith(UNFINISHED):
                continue
            if not _NAME.fullmatch(path.name) or self._path(int(path.name)) != path:
                raise RecordError(f"{path} is not a recorded list; move it to another folder")
            found.append(int(path.name))
        return sorted(found)

    def add(self, number: int, one: RecordedList) -> None:
        """Write a list with its number; writing it again gives the same file."""
        if not 0 <= number <= MAX_NUMBER:
            raise ValueError(f"the number of a list must be between 0 and {MAX_NUMBER} (got {number})")
        if problem := one.problem():
            raise ValueError(f"list {number} {problem}; it cannot be used for training")
        features, scores, shown, clicked = one.impression
        about = np.array([(*features.shape, len(shown), one.temperature, one.keep)], _ABOUT)
        arrays = dict(zip(_ARRAYS, (features, scores, shown, clicked), strict=True))
        parts: dict[str, wire.Value] = {"version": one.version.encode(), "about": about}
        parts |= {name: np.ascontiguousarray(array).astype(_ARRAYS[name]).tobytes() for name, array in arrays.items()}
        content = wire.pack(_label(number), parts)
        if len(content) > LARGEST:
            raise ValueError(f"list {number} has {len(content):,} bytes (at most {LARGEST:,}); record fewer candidates")
        private_folder(self.folder)
        path = self._path(number)
        if not path.exists() or path.read_bytes() != content:
            write_atomic(path, content, private=True)

    def get(self, number: int) -> RecordedList:
        """Read and check a list."""
        path = self._path(number)
        try:
            content = read_bytes(path, LARGEST)
        except (OSError, ValueError) as problem:
            raise RecordError(f"{error_message(problem)}; it cannot be used for training") from None  # prose: ok
        try:
            return _read(content, number)
        except (wire.Refused, UnicodeDecodeError) as problem:
            raise RecordError(f"{path} is not a recorded list or is damaged: {problem}; delete it") from None

    def forget(self, number: int) -> bool:
        """Remove a list; return whether it existed."""
        try:
            self._path(number).unlink()
        except FileNotFoundError:
            return False
        return True

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:012d}"


@dataclass(frozen=True)
class RecordedImpressions:
    """The training data of a client in a round: lists that were displayed before, in order."""

    lists: tuple[RecordedList, ...]

    def __len__(self) -> int:
        return len(self.lists)

    def drawn(self, weights: NDArray[np.float32], number: int) -> Impression:
        """The list as displayed, with the scores from which it was drawn, independent of the current weights."""
        return self.lists[number].impression

    def best(self, weights: NDArray[np.float32], number: int) -> Impression:
        raise ValueError(
            "recorded lists were drawn at random, so the best list was not displayed; use the learner pdgd"
        )

    def judged(self, number: int) -> Judged:
        raise ValueError("recorded lists have clicks but no relevance labels; use the learner pdgd")

    def logged(self, number: int) -> Logged:
        raise ValueError(
            "recorded lists were drawn with known probabilities; use the learner pdgd, which needs no correction"
        )


def _label(number: int) -> Label:
    return Label("recorded", bytes(16), number)


def _read(content: bytes, number: int) -> RecordedList:
    parts = {"version": Part("|S", 64), "about": Part(_ABOUT, 1)}
    parts |= {name: Part("|S", LARGEST) for name in _ARRAYS}
    _, found = wire.unpack(content, _label(number), parts)
    [about] = found["about"]
    candidates, places = int(about["candidates"]), int(about["places"])
    sizes = {"list": candidates * int(about["features"]), "scores": candidates, "shown": places, "clicked": places}
    arrays = []
    for name, kind in _ARRAYS.items():
        if len(found[name]) != sizes[name] * np.dtype(kind).itemsize:
            raise wire.Refused(f"its {name} has {len(found[name])} bytes (expected {sizes[name]} numbers)")
        arrays.append(np.frombuffer(found[name], kind))
    if candidates < 0 or int(about["features"]) < 0:
        raise wire.Refused(
            f"it has {candidates} candidates and {about['features']} features, which must not be negative"
        )
    features = arrays[0].reshape(candidates, int(about["features"])).astype(np.float32)
    one = Impression(features, arrays[1].astype(np.float32), arrays[2].astype(np.int64), arrays[3] != 0)
    made = RecordedList(one, float(about["temperature"]), float(about["keep"]), found["version"].decode())
    if problem := made.problem():
        raise wire.Refused(f"it {problem}")
    return made
