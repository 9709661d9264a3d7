"""The folder of a data set while it is being made: who works on it, how far it has come, when it is complete.

Work goes in steps that are marked on disk when they are done. Killed at any moment, it continues at the last mark and
writes the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from fedrank.data.logs import BEGUN, FACTS
from fedrank.data.mapped import new_mapped
from fedrank.files import UNFINISHED as PART
from fedrank.files import locked, naming, parse_json, private_folder, read_text, write_whole

UNFINISHED = ".unfinished"  # in the names of files that only the work needs
_LOCK = f"lock{UNFINISHED}"


class Marks:
    """How far the work has come: a small file that is replaced after every step."""

    def __init__(self, path: Path, asked: dict[str, Any], done: dict[str, Any]) -> None:
        self.path, self.asked, self.done = path, asked, done

    def set(self, step: str, done: Any) -> None:
        """Mark a step; what it wrote must be on disk already."""
        self.done[step] = done
        write_whole(self.path, json.dumps({"asked": self.asked, "done": self.done}) + "\n", private=True)


def is_complete(out: Path, asked: dict[str, Any]) -> bool:
    """Whether the folder holds what is asked for; one that was made from something else is refused."""
    if not (out / FACTS).is_file():
        return False
    found = parse_json(read_text(out / FACTS))
    _same({"format": found.get("format"), **found.get("made_from", {}), "settings": found.get("settings")}, asked, out)
    clear(out)  # it may have been killed just before
    return True


def begin(out: Path, asked: dict[str, Any]) -> Marks:
    """The marks of a new or a half-made folder."""
    path = out / BEGUN
    if path.is_file():
        begun = parse_json(read_text(path))
        _same(begun["asked"], asked, out)
        return Marks(path, asked, begun["done"])
    ours = (UNFINISHED, PART)  # PART: what is left of the first mark where a process was killed
    if out.is_dir() and any(not name.endswith(ours) for name in os.listdir(out)):
        raise FileExistsError(f"{out} holds something else; name a new folder, so that nothing is overwritten")
    return Marks(path, asked, {})


def finish(out: Path, facts: dict[str, Any]) -> None:
    """Make the folder complete. It tells who searched for what, so that nobody but its owner may look into it."""
    private_folder(out)
    for path in out.iterdir():
        os.chmod(path, 0o600)
    write_whole(out / FACTS, json.dumps(facts, indent=1, ensure_ascii=False) + "\n", private=True)
    clear(out)


def clear(out: Path) -> None:
    """Delete what only the work needed."""
    for path in [*out.glob(f"*{UNFINISHED}*"), out / BEGUN]:
        if path.name != _LOCK:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def working_on(out: Path) -> Iterator[None]:
    """Make the folder and keep other processes out of it; a folder in which nothing was begun goes away again.

    The lock ends with this process, however it ends.
    """
    for folder in (out, *out.parents):
        if folder.is_file():
            raise NotADirectoryError(f"{folder} is a file; the data set needs a folder")
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with locked(out / _LOCK, str(out), leave=False), naming(out):
            yield
    finally:
        with contextlib.suppress(OSError):  # no longer empty
            for folder in new:
                folder.rmdir()


def _same(before: dict[str, Any], now: dict[str, Any], out: Path) -> None:
    if before.get("settings") != now["settings"]:
        changed = [key for key, value in now["settings"].items() if (before.get("settings") or {}).get(key) != value]
        what = f"other settings ({', '.join(changed)})"
    elif before != now:
        what = "another version of these files, or of fedrank"
    else:
        return
    raise FileExistsError(f"{out} was built or begun from {what}; name a new folder, or delete this one")


def table(path: Path, shape: tuple[int, ...], kind: str, new: bool) -> np.memmap[Any, Any]:
    """An array in a file; what was written before is kept unless it is new."""
    if new:
        return new_mapped(path, shape, kind)
    found = open_memmap(path, mode="r+")
    if found.shape != shape or found.dtype.str != kind:
        raise ValueError(
            f"{path} is {found.dtype.str} {found.shape}; the folder is damaged: delete it and build it again"
        )
    return found
