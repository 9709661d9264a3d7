"""Participation over a network: a folder created with `fedrank deploy join` becomes the site of one person's searches.

Search changes its `site.toml` in two places, `data.impressions` and `policy.placements` (only secure aggregation), and
writes the impressions to the folder named there. The
search page runs the same process as `fedrank deploy start` while it is served, unless that is running already.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path

from fedrank.deploy.consent import leave_site
from fedrank.deploy.settings import SITE, SiteSettings, read_site
from fedrank.extras import missing_extra
from fedrank.files import Locked, error_message, write_atomic
from fedrank.search.results import SearchError
from fedrank.toml import parse_toml, shown

KIT = "kit"
SUMMED = ("secure-aggregation",)  # where noise may be added: on one device alone, it outweighs what a person teaches
NEEDED = str(missing_extra("participation over a network requires NVFLARE", "deploy"))


@dataclass(frozen=True)
class Server:
    """The server that a site connects to, and the site's privacy limits."""

    federation: str
    address: str
    fingerprint: str  # of the federation's CA, verified when the folder was created
    name: str  # of this site
    epsilon: float  # limit for all rounds together
    delta: float


def is_site(folder: Path) -> bool:
    """Whether a folder was created with `fedrank deploy join`."""
    return (folder / KIT).is_dir() and (folder / SITE).is_file()


def server_of(site: Path, lists: Path) -> Server:
    """The server of a site; a site with other data, or whose policy allows too much, is refused."""
    if not is_site(site):
        raise SearchError(f"{site} has no kit; create one with fedrank deploy join; nothing was sent")
    try:
        from fedrank.deploy.flare_kit import INVITATION, Invitation
    except ImportError:
        raise ImportError(NEEDED) from None
    text = _pointing_at(site, lists)
    settings = _read(site, text)
    policy, invited = settings.policy, Invitation.read(site / INVITATION)
    if policy.unprotected or policy.largest_epsilon is None:
        raise SearchError(
            f"{site / SITE} allows updates without noise, which can reveal clicks; set unprotected = false and "
            "largest_epsilon = 8.0 in [policy]; nothing was sent"
        )
    if policy.accept != "listed":
        raise SearchError(
            f"{site / SITE} accepts plans without asking, so plans with too few people could run; set "
            'accept = "listed" in [policy]; nothing was sent'
        )
    address = f"{invited.host}:{invited.port}"
    return Server(invited.federation, address, invited.fingerprint, settings.name, policy.largest_epsilon, policy.delta)


def point_at(site: Path, lists: Path) -> None:
    """Set these impressions as the data of a site, and secure aggregation as the only placement of noise."""
    text = _pointing_at(site, lists)
    _read(site, text)
    write_atomic(site / SITE, text, private=True)


class SiteRunner:
    """Runs the site process that connects to the federation's server, and restarts it if it ends."""

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
        """Start the process unless it is running; call this periodically."""
        if not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="fedrank-site", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            from fedrank.deploy.flare_processes import serve

            learners = read_site(self.site).policy.learners
            self.problem = ""
            serve(self.site, learners, stop=self._stop)
        except Locked:
            pass  # `fedrank deploy start` is running
        except ImportError:
            self.problem = NEEDED
        except (OSError, ValueError, RuntimeError) as problem:
            self.problem = error_message(problem)


def leave(site: Path, because: str) -> None:
    """Disable the kit: its processes end, and the site no longer connects."""
    if (site / KIT).exists():
        leave_site(site, because)


def _pointing_at(site: Path, lists: Path) -> str:
    """The text of the site's settings with these impressions as its data."""
    text = (site / SITE).read_text(encoding="utf-8-sig")
    data = parse_toml(text).get("data", {})
    if other := sorted(set(data) & {"letor", "log", "documents"}):
        raise SearchError(
            f"{site / SITE} has other data ({', '.join(other)}), but a site for your searches can have no other data; "
            "use a separate site; nothing was sent"
        )
    if "impressions" in data:
        if (site / str(data["impressions"])).resolve() != lists.resolve():
            raise SearchError(
                f"{site / SITE} has the searches in {data['impressions']}, but yours are in {lists}; use a separate "
                "site, or remove that line; nothing was sent"
            )
    else:
        line = f"impressions = {shown(str(lists))}\n"
        text, found = re.subn(r"(?m)^\[data\][^\n]*\n", lambda head: head[0] + line, text, count=1)
        if not found:
            raise SearchError(f"{site / SITE} has no table [data]; add the line [data]; nothing was sent")
    text = re.sub(r"(?m)^(placements *=) *\[[^]#]*\]", lambda line: f"{line[1]} {shown(list(SUMMED))}", text, count=1)
    if tuple(parse_toml(text).get("policy", {}).get("placements", ())) != SUMMED:
        raise SearchError(
            f"{site / SITE} must allow only secure aggregation; set placements = {shown(list(SUMMED))} in [policy]; "
            "nothing was sent"
        )
    return text


def _read(site: Path, text: str) -> SiteSettings:
    """Validate the text of settings before it is written."""
    draft = site / f".{SITE}"
    write_atomic(draft, text, private=True)
    try:
        return read_site(draft)
    finally:
        draft.unlink()
