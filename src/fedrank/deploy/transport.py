"""How the coordinator and the sites exchange messages: NVFLARE, or a shared folder whose path the home stores."""

from __future__ import annotations

import json
from pathlib import Path

from fedrank.deploy.folder_members import FEDERATION, MEMBERSHIP
from fedrank.files import parse_json, write_atomic

TRANSPORT = "transport.json"


def store_shared_folder(home: Path, shared: Path) -> None:
    """Record in a home that its messages pass through a shared folder."""
    content = {"format": 1, "transport": "folder", "shared": str(Path(shared).absolute())}
    write_atomic(Path(home) / TRANSPORT, json.dumps(content, indent=1) + "\n", private=True)


def shared_folder(home: Path) -> Path | None:
    """The shared folder of a home; None if its transport is NVFLARE."""
    home = Path(home)
    path = home / TRANSPORT
    try:
        found = parse_json(path.read_bytes())
        if (found["format"], found["transport"]) != (1, "folder"):
            raise ValueError("unknown transport")
        return Path(found["shared"])
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"{path} cannot be read ({problem!r}); restore it from a backup") from None
    for name, again in (
        (FEDERATION, "fedrank deploy init --folder SHARED"),
        (MEMBERSHIP, "fedrank deploy join SHARED"),
    ):
        if (home / name).exists():
            raise FileNotFoundError(
                f"{home} uses a shared folder, and {TRANSPORT}, which stores its path, is missing; run `{again}` again "
                "with the same name"
            )
    return None


def require_nvflare(home: Path, command: str, instead: str) -> None:
    """Refuse a command that has no meaning in a shared folder; `instead` says what to do."""
    if (shared := shared_folder(home)) is not None:
        raise ValueError(f"{command} is for NVFLARE, and {home} uses the shared folder {shared}; {instead}")
