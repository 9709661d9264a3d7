"""Taking part over a network: the folder of `fedrank deploy join` becomes the site of one person's searches.

`search` adds two things to it: `data.impressions` in its `site.toml`, and lists in the folder that this names. What
runs is what `fedrank deploy start` runs; the page starts it while it is served, unless somebody else did.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path

from fedrank.deploy.consent import leave_site
from fedrank.deploy.settings import SITE, SiteSettings, read_site
from fedrank.extras import missing_extra
from fedrank.files import Locked, told, write_atomic
from fedrank.search.results import SearchError
from fedrank.toml import parse_toml, shown

KIT = "kit"
NEEDED = str(missing_extra("taking part over a network needs an engine", "deploy"))


@dataclass(frozen=True)
class Server:
    """Whom a site's folder would connect to, and what it agrees to."""

    federation: str
    address: str
    fingerprint: str  # of the federation's CA, which was compared when the folder was made
    name: str  # of this site
    epsilon: float  # that all rounds together may cost
    delta: float


def is_site(folder: Path) -> bool:
    """Whether a folder was made by `fedrank deploy join`."""
    return (folder / KIT).is_dir() and (folder / SITE).is_file()


def server_of(site: Path, lists: Path) -> Server:
    """Whom it belongs to; a folder that has other data, or lets updates leave without noise, is refused by name."""
    if not is_site(site):
        raise SearchError(f"{site} has no kit, so that it takes part in nothing; fedrank deploy join makes one")
    try:
        from fedrank.deploy.flare_kit import INVITATION, Invitation
    except ImportError:
        raise ImportError(NEEDED) from None
    text = _pointing_at(site, lists)
    settings = _read(site, text)
    policy, invited = settings.policy, Invitation.read(site / INVITATION)
    if policy.unprotected or policy.largest_epsilon is None or "server" in policy.placements:
        raise SearchError(
            f"{site / SITE} lets updates leave without noise, and clicks can be read from them; write unprotected = "
            'false, largest_epsilon = 8.0 and placements = ["client", "secure-aggregation"] below [policy]; nothing '
            "was sent"
        )
    address = f"{invited.host}:{invited.port}"
    return Server(invited.federation, address, invited.fingerprint, settings.name, policy.largest_epsilon, policy.delta)


def point_at(site: Path, lists: Path) -> None:
    """Let a site learn from these lists from now on."""
    text = _pointing_at(site, lists)
    _read(site, text)
    write_atomic(site / SITE, text, private=True)


class SiteRunner:
    """The process of a site that connects to the federation's server, started again should it end."""

    def __init__(self, site: Path) -> None:
        self.site, self.problem = site, ""
        self._stop, self._thread = threading.Event(), threading.Thread()

    def __enter__(self) -> SiteRunner:
        return self

    def __exit__(self, *problem: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def keep_running(self) -> None:
        """Start it, unless it runs; to be called now and then."""
        if not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="fedrank-site", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            from fedrank.deploy.flare_processes import serve
            from fedrank.deploy.warm_up import warm_up

            learners = read_site(self.site).policy.learners
            self.problem = ""
            serve(self.site, lambda: warm_up(learners), stop=self._stop)
        except Locked:
            pass  # `fedrank deploy start` does it
        except ImportError:
            self.problem = NEEDED
        except (OSError, ValueError, RuntimeError) as problem:
            self.problem = told(problem)


def leave(site: Path, because: str) -> None:
    """Set the kit aside: whatever runs with it ends, and nothing connects any more."""
    if (site / KIT).exists():
        leave_site(site, because)


def _pointing_at(site: Path, lists: Path) -> str:
    """The site's settings, with these lists as its data."""
    text = (site / SITE).read_text(encoding="utf-8-sig")
    data = parse_toml(text).get("data", {})
    if other := sorted(set(data) & {"letor", "log", "documents"}):
        raise SearchError(
            f"{site / SITE} has data of its own ({', '.join(other)}), and a site with your searches has none but "
            "these; use a site of your own for them; nothing was sent"
        )
    if "impressions" in data:
        if (site / str(data["impressions"])).resolve() != lists.resolve():
            raise SearchError(
                f"{site / SITE} has the searches in {data['impressions']}, and yours are in {lists}; use a site of "
                "your own, or remove that line; nothing was sent"
            )
        return text
    found = re.subn(
        r"(?m)^\[data\][^\n]*\n", lambda head: f"{head[0]}impressions = {shown(str(lists))}\n", text, count=1
    )
    if not found[1]:
        raise SearchError(f"{site / SITE} has no line [data]; write one; nothing was sent")
    return found[0]


def _read(site: Path, text: str) -> SiteSettings:
    """Settings as they would be; mistakes are told before anything is written."""
    draft = site / f".{SITE}"
    write_atomic(draft, text, private=True)
    try:
        return read_site(draft)
    finally:
        draft.unlink()
