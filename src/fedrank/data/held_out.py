"""Entries that are held out before anything is trained: the latest days of a log, and all entries of some users.

They are the window on which a model is judged once: a model that was chosen by an earlier look at the same entries
would be judged too favourably. `held_out.json` in the folder of the data set has the key that chooses the users and
every use of the window. A data set that continues an earlier one has the same key, so the same users stay held out
while the log grows, and a window that begins after the one that was used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.log_folder import working_on
from fedrank.data.logs import FACTS
from fedrank.files import parse_json, read_bytes, write_atomic

HELD_OUT = "held_out.json"
FORMAT, VERSION = "fedrank-held-out", 1
DAY = 86_400
_LARGEST = 1 << 20  # bytes of the file
_PURPOSE = 500  # characters


class NoNewEntries(ValueError):
    """A log has no entries after the last window that was used."""


@dataclass(frozen=True)
class HoldOut:
    """What to hold out of a log."""

    days: float | None = None  # entries of the latest days
    users: float | None = None  # share of the users, with all their entries
    key: str = ""  # chooses the users; empty: a new one
    after: int | None = None  # end of the last window that was used, in seconds since 1970
    previous: str = ""  # data set that this one continues

    def __post_init__(self) -> None:
        if self.days is None and self.users is None:
            raise ValueError("give a number of days or a share of the users to hold out")
        if self.days is not None and not 0 < self.days < 36_500:
            raise ValueError(f"hold_out_days must be above 0 and below 36,500 (got {self.days:g})")
        if self.users is not None and not 0 < self.users < 1:
            raise ValueError(f"hold_out_users must be between 0 and 1, such as 0.1 (got {self.users:g})")

    def chosen(self, users: Sequence[str]) -> NDArray[np.bool_]:
        """[users]: True for those that are held out, by a keyed hash, so other users do not matter."""
        share = math.floor((self.users or 0.0) * (1 << 64))
        key = hashlib.blake2b(self.key.encode(), digest_size=32).digest()
        digests = (hashlib.blake2b(name.encode(), key=key, digest_size=8).digest() for name in users)
        return np.fromiter((int.from_bytes(one, "big") < share for one in digests), np.bool_, len(users))

    def since(self, last: int) -> int:
        """The time of the earliest entry of the latest days of a log with this last entry."""
        begins = last + 1 if self.days is None else math.floor(last - self.days * DAY) + 1
        return begins if self.after is None else max(begins, self.after + 1)

    def entries(
        self, time: NDArray[np.int64], user: NDArray[np.integer[Any]], users: Sequence[str]
    ) -> NDArray[np.bool_]:
        """[entries]: True for those that are held out."""
        latest = time >= self.since(int(time.max(initial=0)))
        held: NDArray[np.bool_] = latest | self.chosen(users)[user]
        if self.after is not None and not held.any():
            raise NoNewEntries(
                f"none of the {len(time):,} entries is later than {_date(self.after)}, the end of the last window that "
                "was used; use a longer log"
            )
        if held.all() or not held.any():
            which = "all" if held.all() else "none"
            raise ValueError(
                f"{which} of the {len(time):,} entries would be held out ({self}); hold out another number of days or "
                "share of the users, or use a longer log"
            )
        return held

    def __str__(self) -> str:
        parts = [] if self.days is None else [f"the latest {self.days:g} days"]
        parts += [] if self.users is None else [f"{100 * self.users:.3g} % of the users"]
        return " and ".join(parts) + ("" if self.after is None else f", after {_date(self.after)}")


@dataclass(frozen=True)
class Window:
    """The record of what a data set holds out, and of its uses."""

    hold_out: HoldOut
    until: int  # time of the last entry of the log
    uses: tuple[dict[str, str], ...] = field(default=())  # purpose and time
    replaced_by: str = ""  # data set that continues this one, from before this window was used


def begin_window(out: Path, hold_out: HoldOut, until: int) -> None:
    """Record the window of a new data set; an unused window of the data set that it continues is closed before."""
    if hold_out.previous:
        _close(Path(hold_out.previous), out.resolve().name)
    _write(out, Window(replace(hold_out, previous=""), until))


def new_key() -> str:
    return secrets.token_hex(16)


def continued(previous: str | os.PathLike[str], days: float | None = None, users: float | None = None) -> HoldOut:
    """What to hold out of a log that continues an earlier data set; days and share default to those of the earlier."""
    window = read_window(previous)
    before = window.hold_out
    return HoldOut(
        before.days if days is None else days,
        before.users if users is None else users,
        before.key,
        window.until if window.uses else before.after,
        str(previous),
    )


def use_window(folder: str | os.PathLike[str], purpose: str) -> bool:
    """Record that the held-out entries of a data set are used, before a result is shown; True: for the first time.

    `purpose` identifies the model, such as by its digest. The same purpose may be repeated; any other is a ValueError
    that names the earlier use.
    """
    if not purpose or len(purpose) > _PURPOSE or not purpose.isprintable():
        raise ValueError(f"purpose must be 1 to {_PURPOSE} printable characters (got {purpose[: _PURPOSE + 1]!r})")
    folder = Path(folder)
    read_window(folder)  # no lock in a folder without a window
    with working_on(folder):
        window = read_window(folder)
        for use in window.uses:
            if purpose in (use["purpose"], use.get("derived")):
                return False
            raise ValueError(
                f"the held-out entries of {folder} were used on {use['at'][:10]} for {use['purpose']!r}, and a window "
                f"is used for one purpose only (got {purpose!r}); build a data set from a longer log with "
                f"`fedrank data build --previous {folder}`, which opens a new window"
            )
        if window.replaced_by:
            raise ValueError(
                f"the held-out entries of {folder} belong to the data set {window.replaced_by!r}, which continues it; "
                "use that one"
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        _write(folder, replace(window, uses=({"purpose": purpose, "at": now},)))
    return True


def extend_use(folder: str | os.PathLike[str], purpose: str, derived: str) -> None:
    """Record that a use of the window includes one other model, which was derived from the first and not chosen."""
    folder = Path(folder)
    with working_on(folder):
        window = read_window(folder)
        [use] = [use for use in window.uses if use["purpose"] == purpose] or [{}]
        if use.get("derived", derived) != derived or not use:
            raise ValueError(f"the held-out entries of {folder} were not used for {purpose!r}, or for another model")
        _write(folder, replace(window, uses=({**use, "derived": derived},)))


def purpose_of(digest: str) -> str:
    """The purpose of a window that a model is judged by, from the SHA-256 of its file."""
    return f"the model with SHA-256 {digest}"


def read_window(folder: str | os.PathLike[str]) -> Window:
    """Read the window of a data set; an error if it holds nothing out."""
    folder = Path(folder)
    path = folder / HELD_OUT
    if not path.is_file():
        known = "" if (folder / FACTS).is_file() else " is not a data set, or"
        raise ValueError(
            f"{folder}{known} holds no entries out; build it with `fedrank data build --hold-out-days` or "
            "`--hold-out-users`"
        )
    try:
        content = parse_json(read_bytes(path, _LARGEST))
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"its format is {content['format']!r} version {content['version']!r}")
        names = ("purpose", "at", "derived")
        uses = tuple({name: str(use[name]) for name in names if name in use} for use in content["uses"])
        if any("purpose" not in use or "at" not in use for use in uses):
            raise ValueError("a use has no purpose or no time")
        days, users, after = (content[name] for name in ("days", "users", "after"))
        hold_out = HoldOut(days, users, str(content["key"]), None if after is None else int(after))
        return Window(hold_out, int(content["until"]), uses, str(content["replaced_by"]))
    except (ValueError, TypeError, KeyError, OverflowError) as problem:
        raise ValueError(f"{path} cannot be read ({problem!r}); restore it from a backup") from None


def held_out_facts(hold_out: HoldOut, held: NDArray[np.bool_], last: int) -> dict[str, Any]:
    """What `facts.json` says about the entries that are held out."""
    since = None if hold_out.days is None else hold_out.since(last)
    return {"entries": int(held.sum()), "since": since, "share": hold_out.users}


def about_held_out(facts: dict[str, Any]) -> str:
    """One sentence about the entries that are held out."""
    parts = [] if facts["since"] is None else [f"all entries since {_date(facts['since'])}"]
    parts += [] if facts["share"] is None else [f"all entries of {100 * facts['share']:.3g} % of the users"]
    return f"{facts['entries']:,} entries are held out of training: {' and '.join(parts)}"


def _close(previous: Path, name: str) -> None:
    with working_on(previous):
        window = read_window(previous)
        if not window.uses:
            _write(previous, replace(window, replaced_by=name))


def _write(folder: Path, window: Window) -> None:
    content = {
        "format": FORMAT,
        "version": VERSION,
        **{name: value for name, value in asdict(window.hold_out).items() if name != "previous"},
        "until": window.until,
        "uses": list(window.uses),
        "replaced_by": window.replaced_by,
    }
    write_atomic(folder / HELD_OUT, json.dumps(content, indent=1) + "\n", private=True)


def _date(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return f"second {seconds}"
