"""The folder of a data set while it is written: its lock, the completed steps, and the final files.

A step is marked on disk when it is complete. A build that is killed continues at the last mark and writes the same
bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from fedrank.data import from_ir_datasets
from fedrank.data.logs import ARRAYS, BEGUN, FACTS, FORMAT, TEXTS, SearchLog, load_log, write_names
from fedrank.data.mapped import new_mapped, save_array
from fedrank.data.rows import stored_reasons
from fedrank.files import UNFINISHED as PART
from fedrank.files import add_path_to_errors, locked, opened, parse_json, private_folder, read_text, sync, write_atomic
from fedrank.types import Features

if TYPE_CHECKING:
    from fedrank.data.click_log import Clicks
    from fedrank.data.shown import ShownRows

UNFINISHED = ".unfinished"  # in the names of temporary files
HEAVY_SHARE, HEAVY_TIMES = 0.5, 5.0  # share of all entries; multiple of the next user's entries
_LOCK = f"lock{UNFINISHED}"


class Marks:
    """The completed steps, in a small file that is replaced after every step.

    `request` describes the sources of the data set: digests of files, and settings.
    """

    def __init__(self, path: Path, request: dict[str, Any], done: dict[str, Any]) -> None:
        self.path, self.request, self.done = path, request, done

    def set(self, step: str, done: Any) -> None:
        """Mark a step as complete; its output must already be on disk."""
        self.done[step] = done
        write_atomic(self.path, json.dumps({"asked": self.request, "done": self.done}) + "\n", private=True)

    def begin(self) -> None:
        """Mark the start, after files and settings were checked, so invalid input leaves no folder."""
        if not self.done:
            self.set("begun", 1)


def build_folder(out: Path, request: dict[str, Any], build: Callable[[Marks], None]) -> SearchLog:
    """Open a data set; if it is missing or incomplete, `build` completes it from the last mark."""
    if not is_complete(out, request):
        with working_on(out):
            if not is_complete(out, request):  # another process may have completed it
                build(begin(out, request))
    return load_log(out)


def is_complete(out: Path, request: dict[str, Any]) -> bool:
    """Whether the folder contains the requested data set; a different data set is an error."""
    if not (out / FACTS).is_file():
        return False
    found = parse_json(read_text(out / FACTS))
    _same(
        {"format": found.get("format"), **found.get("made_from", {}), "settings": found.get("settings")}, request, out
    )
    clear(out)  # a build may have been killed before this step
    return True


def begin(out: Path, request: dict[str, Any]) -> Marks:
    """Return the marks of a new or unfinished folder."""
    path = out / BEGUN
    if path.is_file():
        begun = parse_json(read_text(path))
        _same(begun["asked"], request, out)
        return Marks(path, request, begun["done"])
    ours = (UNFINISHED, PART)  # PART: left by a process that was killed while writing the first mark
    if out.is_dir() and any(not name.endswith(ours) for name in os.listdir(out)):
        raise FileExistsError(f"{out} contains other files, which would be overwritten; name a new folder")
    return Marks(path, request, {})


def finish(out: Path, facts: dict[str, Any]) -> None:
    """Complete the folder. Only its owner may read it, since it contains personal data."""
    private_folder(out)
    for path in out.iterdir():
        os.chmod(path, 0o600)
    write_atomic(out / FACTS, json.dumps(facts, indent=1, ensure_ascii=False) + "\n", private=True)
    clear(out)


def clear(out: Path) -> None:
    """Delete temporary files."""
    for path in [*out.glob(f"*{UNFINISHED}*"), out / BEGUN]:
        if path.name != _LOCK:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def working_on(out: Path) -> Iterator[None]:
    """Create the folder and lock it against other processes; an empty folder is removed again.

    The lock ends with this process in every case.
    """
    for folder in (out, *out.parents):
        if folder.is_file():
            raise NotADirectoryError(f"{folder} is a file; name a folder for the data set")
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with locked(out / _LOCK, str(out), leave=False), add_path_to_errors(out):
            yield
    finally:
        with contextlib.suppress(OSError):  # no longer empty
            for folder in new:
                folder.rmdir()


def _same(before: dict[str, Any], now: dict[str, Any], out: Path) -> None:
    if before.get("settings") != now["settings"]:
        changed = [key for key, value in now["settings"].items() if (before.get("settings") or {}).get(key) != value]
        what = f"different settings ({', '.join(changed)})"
    elif before != now:
        what = "another version of these files, or of fedrank"
    else:
        return
    raise FileExistsError(f"{out} was built or started from {what}; name a new folder, or delete this one")


def table(path: Path, shape: tuple[int, ...], kind: str, new: bool) -> np.memmap[Any, Any]:
    """Open an array in a file, with its previous contents unless it is new."""
    if new:
        return new_mapped(path, shape, kind)
    found = open_memmap(path, mode="r+")
    if found.shape != shape or found.dtype.str != kind:
        raise ValueError(
            f"{path} has type {found.dtype.str} and shape {found.shape}; the folder is damaged: delete it and build it "
            "again"
        )
    return found


def save_arrays(out: Path, **arrays: NDArray[Any]) -> None:
    """Write arrays of a data set, converted to their types and flushed to disk."""
    for name, array in arrays.items():
        save_array(out / f"{name}.npy", np.asarray(array).astype(ARRAYS[name], copy=False))


def write_texts(out: Path, users: Sequence[str], queries: Sequence[str], documents: Sequence[str]) -> None:
    """Write the names of users, queries and documents, flushed to disk."""
    for name, names in zip(TEXTS, (users, queries, documents), strict=True):
        write_names(out / f"{name}.txt", names)
        sync(out / f"{name}.txt")


def log_facts(
    marks: Marks,
    rows: Clicks | ShownRows,
    usable: int,  # rows, or lists
    files: dict[str, str],  # file names
    feature_names: Sequence[str],
    broken_documents: int = 0,
    exclude: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the facts of a data set that was built from files; builders extend them."""
    made_from = dict(marks.request)
    del made_from["format"]
    settings = made_from.pop("settings")
    return _facts(marks.path.parent, settings, feature_names, rows.rows, usable) | {
        "files": files,
        "made_from": made_from,
        "left_out": stored_reasons(rows.left_out),
        "out_of_order": rows.out_of_order,
        "broken_documents": broken_documents,
        "heavy_user": heavy_user(rows, exclude),
    }


def _facts(out: Path, settings: dict[str, Any], names: Sequence[str], rows: int, usable: int) -> dict[str, Any]:
    """Return the facts of the arrays and texts in a folder; no row was left out."""
    paths = {name: out / f"{name}.npy" for name in ARRAYS}
    shapes = {name: list(np.load(path, mmap_mode="r").shape) for name, path in paths.items() if path.is_file()}
    return {
        "format": FORMAT,
        "settings": settings,
        "counts": {
            "rows": rows,  # in all files of the log
            "sound": usable,
            "entries": shapes["lists"][0],  # in the data set
            "pairs": shapes["features"][0],
            **{name: (out / f"{name}.txt").read_bytes().count(b"\n") for name in TEXTS},
        },
        "left_out": {},
        "dropped": {},
        "out_of_order": 0,
        "broken_documents": 0,
        "heavy_user": None,
        "shapes": shapes,
        "feature_names": list(names),
    }


def heavy_user(rows: Clicks | ShownRows, exclude: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return the user with most of the log, or with five times as much as any other; possibly a robot."""
    counts = np.bincount(rows.user, minlength=len(rows.users))
    counts[[rows.users.index(name) for name in exclude]] = 0
    first = int(np.argmax(counts))
    entries = int(counts[first])
    counts[first] = 0
    second, total = int(counts.max()), entries + int(counts.sum())
    if second == 0 or not (entries > HEAVY_SHARE * total or entries > HEAVY_TIMES * second):
        return None
    return {"user": rows.users[first], "entries": entries, "share": round(entries / total, 4), "next": second}


def fingerprint(path: Path) -> str:
    """Fingerprint of a file's contents or of a set of ir_datasets."""
    if from_ir_datasets.is_there(path):
        return from_ir_datasets.size_of(path)
    with opened(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ShownLists:
    """Lists, clicks and features in memory; entries and users in any order. See `SearchLog` for the fields."""

    features: Features  # [pairs, features]
    lists: NDArray[np.integer[Any]]  # [entries, longest]
    clicks: NDArray[Any]  # [entries, longest]
    user: NDArray[np.integer[Any]]  # [entries]
    time: NDArray[np.integer[Any]]  # [entries]
    query: NDArray[np.integer[Any]]  # [entries]
    document: NDArray[np.integer[Any]]  # [pairs]
    users: Sequence[str]
    queries: Sequence[str]
    documents: Sequence[str]
    feature_names: Sequence[str]
    first: NDArray[np.integer[Any]] | None = None  # [entries]; None: all are first pages
    dwell: NDArray[np.floating[Any]] | None = None  # [entries, longest]
    scores: NDArray[np.floating[Any]] | None = None  # [entries, longest], with `temperature` and `keep`
    temperature: float | None = None
    keep: float | None = None
    unit: str = "person"  # or "browser"
    swap: NDArray[np.integer[Any]] | None = None  # [entries]

    def __post_init__(self) -> None:
        if self.unit not in ("person", "browser"):
            raise ValueError(f"unit must be one of person, browser (got {self.unit!r})")
        if self.scores is not None and (self.temperature is None or self.keep is None):
            raise ValueError("scores need temperature and keep to determine how lists were sampled; give all three")

    def ordered(self) -> ShownLists:
        """Return entries ordered by time, and users with the most active first."""
        order = np.argsort(self.time, kind="stable")
        active = np.argsort(-np.bincount(self.user, minlength=len(self.users)), kind="stable")
        number = np.empty(len(self.users), np.int64)
        number[active] = np.arange(len(self.users))
        names = ("lists", "clicks", "time", "query", "first", "dwell", "scores", "swap")
        by_entry = {name: getattr(self, name)[order] for name in names if getattr(self, name) is not None}
        return replace(self, **by_entry | {"user": number[self.user[order]], "users": [self.users[i] for i in active]})


def write_shown(
    folder: str | os.PathLike[str], shown: ShownLists, settings: Mapping[str, Any], facts: Mapping[str, Any] = {}
) -> SearchLog:
    """Write a data set and open it. `settings` describe how it was made, such as {"features": "engine-1"}.

    `facts` override the default facts, by which every entry is a valid row and no row was left out.
    """
    folder, shown = Path(folder), shown.ordered()
    values = shown.__dict__ | {"first": np.zeros(len(shown.user)) if shown.first is None else shown.first}
    draw = {} if shown.scores is None else {"temperature": shown.temperature, "keep": shown.keep}
    with working_on(folder):
        begin(folder, {"settings": dict(settings)}).begin()  # marks the folder as unfinished
        save_arrays(folder, **{name: values[name] for name in ARRAYS if values.get(name) is not None})
        write_texts(folder, shown.users, shown.queries, shown.documents)
        entries = len(shown.user)
        own = _facts(folder, dict(settings), shown.feature_names, entries, entries)
        finish(folder, {**own, "unit": shown.unit, **draw, **facts})
    return load_log(folder)
