"""Taking part in a federation with one's own searches, through a shared folder: `fedrank search join file:FOLDER`.

    ask to join -> the coordinator approves -> look at a plan, and agree -> answer its rounds -> its model goes on trial

`search` adds nothing but its lists and clicks: the site, its policy, its ledger and its outbox are those of
`fedrank.deploy`. Before anything leaves it stands in the table `sent`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrank.deploy import consent
from fedrank.deploy.folder import Answering, FolderAnswer, read_plans, serve_once
from fedrank.deploy.folder_members import (
    FolderMembership,
    join_folder,
    leave_folder,
    membership_state,
    read_invitation,
)
from fedrank.deploy.plan import Plan
from fedrank.deploy.settings import SITE, read_site
from fedrank.deploy.show import PlanView, look_at
from fedrank.deploy.site import MODELS, Site
from fedrank.files import private_folder, told, write_whole
from fedrank.rank.model import load_weights
from fedrank.search.answers import SearchError
from fedrank.search.client import SearchClient
from fedrank.search.sharing import FEDERATION, MARK, Sharing, recorded
from fedrank.spec.toml import shown
from fedrank.wire import label_of

PREFIX = "file:"
SECONDS_BETWEEN_LOOKS = 20.0
POLICY = """\
# Written by `fedrank search join`: one person's searches, as a site of a federation. Make it stricter as you like.
name       = {name}
id         = {id}
federation = {federation}

[data]
impressions = "searches"

[policy]
learners        = ["pdgd"]
places          = ["client"]
unit            = "site"         # the site is one person, all of whose searches are protected together
largest_epsilon = {epsilon}
delta           = 1e-5
most_rounds     = 1000
fewest_sites    = 3
accept          = "listed"       # take part only in what was looked at with `fedrank search join`
"""


@dataclass(frozen=True)
class Invited:
    """What somebody sees who thinks of joining."""

    shared: Path
    federation: str
    fingerprint: str  # of the coordinator
    members: tuple[str, ...]


def folder_of(where: str) -> Path:
    """The shared folder that `file:FOLDER` names."""
    if not where.startswith(PREFIX) or not where.removeprefix(PREFIX):
        raise SearchError(f"{where!r} names no shared folder; write it as file:FOLDER; nothing was sent")
    return Path(where.removeprefix(PREFIX)).expanduser().absolute()


def invitation(shared: Path) -> Invited:
    there = read_invitation(shared)
    members = tuple(site.name for site in there.sites if site.state == "joined")
    return Invited(shared, there.name, there.fingerprint, members)


def state_of(client: SearchClient, shared: Path | None = None) -> str:
    """ "": not joined; else "waiting", "joined", "expelled" or "left". One that does not meet in `shared` is told."""
    sharing = Sharing.read(client.folder)
    if sharing is not None and shared is not None and Path(sharing.shared) != shared:
        raise SearchError(
            f"this folder takes part in a federation that meets in {sharing.shared}, not in {shared}; name that one, "
            "or leave it first; nothing was sent"
        )
    return "" if sharing is None else membership_state(Path(sharing.shared), client.folder / FEDERATION)


def ask_to_join(client: SearchClient, shared: Path, name: str, told_fingerprint: str, epsilon: float) -> str:
    """Ask to take part; returns the own fingerprint, for the coordinator. A name and a public key leave, no more."""
    if client.features.version != "live-1":
        raise SearchError(
            f"this folder has the features {client.features.version!r}, and federations share models of 'live-1'; use "
            "a folder that was begun in english"
        )
    if not 0 < epsilon < float("inf"):
        raise SearchError(f"ε = {epsilon} is no limit; give a positive number, such as 8; nothing was sent")
    folder = private_folder(client.folder / FEDERATION)
    private_folder(recorded(client.folder).folder)
    noted = client.note_sent(str(shared), f"asked to join as {name}: this name and a public key", len(name) + 64)
    try:
        own = join_folder(shared, folder, name, told_fingerprint)
    except (ValueError, FileExistsError, FileNotFoundError):  # before anything is written there
        client.was_not_sent(noted)
        raise
    before = Sharing.read(client.folder)
    after = client.last_search if before is None else before.after
    Sharing(str(shared), after, epsilon).write(client.folder)
    return own


def open_plans(client: SearchClient) -> list[tuple[Plan, PlanView]]:
    """Runs that the coordinator announced, and about which nothing was decided here; with what each means."""
    folder, shared = _ready(client)
    if shared is None:
        return []
    settings = read_site(folder)
    return [
        (plan, look_at(folder, settings, plan))
        for plan in read_plans(shared, folder)
        if consent.said_of(folder, plan) is None
    ]


def agree(client: SearchClient, plan: Plan) -> None:
    """Take part in a run that somebody looked at."""
    consent.accept(client.folder / FEDERATION, plan)


def decline(client: SearchClient, plan: Plan) -> None:
    consent.refuse(client.folder / FEDERATION, plan.digest, "declined", plan.name)


def take_part(client: SearchClient) -> list[FolderAnswer]:
    """Record what was searched, answer what is asked once, and put a model that came back on trial."""
    folder, shared = _ready(client)
    if shared is None:
        return []
    client.record_for_sharing()
    with Site.open(folder) as site:
        answered = serve_once(shared, folder, _Noted(client, site, shared))
    _try_models(client, folder)
    return answered


def keep_taking_part(client: SearchClient, stop: threading.Event, every: float = SECONDS_BETWEEN_LOOKS) -> None:
    """The same now and then, until told to stop or somebody left; problems stand in the status."""
    while not stop.is_set():
        problem = ""
        try:
            if Sharing.read(client.folder) is None:
                return
            take_part(client)
        except (OSError, ValueError, RuntimeError) as found:
            problem = told(found)
        client.note_problem(problem)
        stop.wait(every)


def leave(client: SearchClient, because: str = "") -> None:
    """Take no further part. Recorded lists are removed; ledger and what was sent stay, since they cannot be undone."""
    sharing = Sharing.read(client.folder)
    if sharing is None:
        raise SearchError("this folder joined no federation, so that there is nothing to leave")
    client.note_sent(sharing.shared, "that you leave", len(because.encode()))
    leave_folder(Path(sharing.shared), client.folder / FEDERATION, because)
    (client.folder / FEDERATION / MARK).unlink()
    client.record_for_sharing()


@dataclass(frozen=True)
class _Noted:
    """A site whose every answer stands in the table `sent` before it leaves."""

    client: SearchClient
    site: Answering
    shared: Path

    def answer(self, content: bytes, /) -> bytes:
        found = self.site.answer(content)
        asked, kind = label_of(content), label_of(found).kind
        what = "that it does not, and why" if kind == "refused" else f"answer to {asked.kind}"
        self.client.note_sent(str(self.shared), f"round {asked.round}: {what}", len(found))
        return found


def _ready(client: SearchClient) -> tuple[Path, Path | None]:
    """The site's folder, and the shared one if it may take part; its `site.toml` is written once it has an id."""
    folder, sharing = client.folder / FEDERATION, Sharing.read(client.folder)
    if sharing is None or membership_state(Path(sharing.shared), folder) == "waiting":
        return folder, None
    shared = Path(sharing.shared)
    me = FolderMembership.read(folder)
    member = read_invitation(shared).site(me.site)
    if not (folder / SITE).exists() and member is not None:
        text = POLICY.format(
            name=shown(me.site), id=member.id, federation=shown(me.name), epsilon=float(sharing.epsilon)
        )
        write_whole(folder / SITE, text, private=True)
    return folder, shared


def _try_models(client: SearchClient, folder: Path) -> None:
    """Put a model that came back on trial, unless it was, or another one is."""
    for path in sorted((folder / MODELS).glob("*/model.json")):
        origin = f"federation {FolderMembership.read(folder).name}, run {path.parent.name}"
        if not client.on_trial and not client.knows_model(origin):
            model = load_weights(path)
            if model.feature_names != client.features.names or model.normalised != "none":
                raise SearchError(f"{path} is no model of {client.features.version}; it is not tried")
            client.try_model(np.asarray(model.weights, np.float64), origin)
