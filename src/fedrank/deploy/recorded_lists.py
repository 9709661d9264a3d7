"""Lists that somebody was shown, and what was clicked: recorded by whoever shows them, learned from by somebody else.

    FOLDER/000000000017         one list: features and scores of all candidates, what was shown, what was clicked

A search client writes them, a site of a federation answers rounds from them, and neither knows the other. There is no
query, no document and no time in a file. It is written whole, only its owner can read it, and its number, which the
writer gives, is in its name and in it: whoever is killed while writing writes it again, and it is still one list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank import wire
from fedrank.data.live_features import LIVE_1
from fedrank.files import UNFINISHED, private_folder, read_bytes, told, write_atomic
from fedrank.types import Impression, Judged, Logged
from fedrank.wire import Label, Part

LARGEST = 4 << 20  # bytes of a file
MAX_NUMBER = (1 << 62) - 1
_ABOUT = np.dtype(
    [("candidates", "<i4"), ("features", "<i4"), ("places", "<i4"), ("temperature", "<f8"), ("keep", "<f8")]
)
_ARRAYS = {"list": "<f4", "scores": "<f4", "shown": "<i4", "clicked": "|u1"}
_NAME = re.compile(r"[0-9]{12,19}")


class RecordError(ValueError):
    """A file of recorded lists that is none, or is damaged."""


@dataclass(frozen=True, eq=False)
class RecordedList:
    """One list as it was shown, and how it was drawn."""

    impression: Impression  # features are scaled, as models take them
    temperature: float
    keep: float
    version: str = LIVE_1.version  # of the features

    def problem(self) -> str:
        """What is wrong with it; "": nothing."""
        features, scores, shown, clicked = self.impression
        if features.ndim != 2 or scores.shape != features.shape[:1]:
            return f"has features {features.shape} and scores {scores.shape}, which do not belong together"
        if shown.ndim != 1 or clicked.shape != shown.shape:
            return f"has {shown.shape} places and clicks on {clicked.shape}, which do not belong together"
        if len(np.unique(shown)) != len(shown) or np.any((shown < 0) | (shown >= len(scores))):
            return f"shows candidates twice, or others than its {len(scores)}"
        if not np.isfinite(features).all() or not np.isfinite(scores).all():
            return "has features or scores that are not finite"
        if not 0 < self.temperature < np.inf or not 0 <= self.keep <= 1:
            return f"was drawn with temperature {self.temperature} and keep {self.keep}, which is impossible"
        return ""


class RecordedFolder:
    """A folder of recorded lists, in the order of their numbers."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def numbers(self) -> list[int]:
        """Of all lists that are there."""
        found = []
        for path in self.folder.iterdir():
            if path.name.endswith(UNFINISHED):
                continue
            if not _NAME.fullmatch(path.name) or self._path(int(path.name)) != path:
                raise RecordError(f"{path} is no recorded list, and nobody knows what it is; move it elsewhere")
            found.append(int(path.name))
        return sorted(found)

    def add(self, number: int, one: RecordedList) -> None:
        """Write a list under its number; the same again is the same file."""
        if not 0 <= number <= MAX_NUMBER:
            raise ValueError(f"{number} is no number of a list; use 0 to {MAX_NUMBER}")
        if problem := one.problem():
            raise ValueError(f"list {number} {problem}; nothing could be learned from it")
        features, scores, shown, clicked = one.impression
        about = np.array([(*features.shape, len(shown), one.temperature, one.keep)], _ABOUT)
        arrays = dict(zip(_ARRAYS, (features, scores, shown, clicked), strict=True))
        parts: dict[str, wire.Value] = {"version": one.version.encode(), "about": about}
        parts |= {name: np.ascontiguousarray(array).astype(_ARRAYS[name]).tobytes() for name, array in arrays.items()}
        content = wire.pack(_label(number), parts)
        if len(content) > LARGEST:
            raise ValueError(
                f"list {number} takes {len(content):,} bytes, and {LARGEST:,} are the most; record fewer candidates"
            )
        private_folder(self.folder)
        path = self._path(number)
        if not path.exists() or path.read_bytes() != content:
            write_atomic(path, content, private=True)

    def get(self, number: int) -> RecordedList:
        """A list, checked."""
        path = self._path(number)
        try:
            content = read_bytes(path, LARGEST)
        except (OSError, ValueError) as problem:
            raise RecordError(f"{told(problem)}, so that it cannot be learned from") from None
        try:
            return _read(content, number)
        except (wire.Refused, UnicodeDecodeError) as problem:
            raise RecordError(f"{path} is no recorded list, or damaged: {problem}; forget it, or remove it") from None

    def forget(self, number: int) -> bool:
        """Remove a list; returns whether it was there."""
        try:
            self._path(number).unlink()
        except FileNotFoundError:
            return False
        return True

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:012d}"


@dataclass(frozen=True)
class RecordedImpressions:
    """What a client learns from in a round: lists that were shown before, in their order."""

    lists: tuple[RecordedList, ...]

    def __len__(self) -> int:
        return len(self.lists)

    def drawn(self, weights: NDArray[np.float32], number: int) -> Impression:
        """As it was shown, with the scores from which it was drawn, whatever the weights are by now."""
        return self.lists[number].impression

    def best(self, weights: NDArray[np.float32], number: int) -> Impression:
        raise ValueError(
            "recorded lists were drawn around an order, and nobody was shown the best one; use the learner pdgd"
        )

    def judged(self, number: int) -> Judged:
        raise ValueError("recorded lists have clicks and no grades; use the learner pdgd")

    def logged(self, number: int) -> Logged:
        raise ValueError("recorded lists were drawn, and how is known; use the learner pdgd, which needs no correction")


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
            raise wire.Refused(f"its {name} has {len(found[name])} bytes for {sizes[name]} numbers")
        arrays.append(np.frombuffer(found[name], kind))
    if candidates < 0 or int(about["features"]) < 0:
        raise wire.Refused(f"it has {candidates} candidates with {about['features']} features")
    features = arrays[0].reshape(candidates, int(about["features"])).astype(np.float32)
    one = Impression(features, arrays[1].astype(np.float32), arrays[2].astype(np.int64), arrays[3] != 0)
    made = RecordedList(one, float(about["temperature"]), float(about["keep"]), found["version"].decode())
    if problem := made.problem():
        raise wire.Refused(f"it {problem}")
    return made
