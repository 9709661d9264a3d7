"""The folder of the index, and how commands name it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path


def default_folder() -> Path:
    """The folder for application data of the user on this system."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "fedrank" / "search"


def folder_option(folder: Path | None) -> str:
    """The option that a command needs for this folder; "" for the default folder."""
    return "" if folder in (None, default_folder()) else f" --folder {shlex.quote(str(folder))}"
