"""Taking part in a federation with one's own searches: `fedrank search join file:FOLDER`, or `join SITE_FOLDER`.

    ask to join -> the coordinator approves -> look at a plan, and agree -> answer its rounds -> its model goes on trial

Through a shared folder this client asks, and answers; over a network (`search/networked.py`) people joined with
`fedrank deploy join`, and the engine answers. `search` adds nothing but its lists and clicks: the site, its policy, its
ledger and its outbox are those of `fedrank.deploy`. Before anything leaves it stands in the list of what was sent.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrank.deploy import consent
from fedrank.deploy.folder import FolderAnswer, read_plans, serve_once
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
from fedrank.deploy.site import Site
from fedrank.deploy.site_runtime import MODELS
from fedrank.files import private_folder, told, write_atomic
from fedrank.ranking.model import load_weights
from fedrank.search import networked
from fedrank.search.client import SearchClient
from fedrank.search.networked import Server, SiteRunner
from fedrank.search.results import SearchError
from fedrank.search.sharing import FEDERATION, MARK, SEARCHES, Sharing, recorded
from fedrank.toml import shown

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
placements      = ["client"]
unit            = "site"         # the site is one person, all of whose searches are protected together
largest_epsilon = {epsilon}
delta           = 1e-5
most_rounds     = 1000
min_sites       = 3
accept          = "listed"       # take part only in what was looked at with `fedrank search join`
"""


@dataclass(frozen=True)
class Invited:
    """What somebody sees who thinks of joining."""

    shared: Path
    federation: str
    fingerprint: str  # of the coordinator
    members: tuple[str, ...]


@dataclass(frozen=True)
class Meeting:
    """Where a federation is met: in a shared folder, or by the folder of a site over a network."""

    folder: Path
    network: bool


def meeting_of(where: str) -> Meeting:
    """What `file:FOLDER` or SITE_FOLDER names."""
    if where.startswith(PREFIX) and where != PREFIX:
        return Meeting(Path(where.removeprefix(PREFIX)).expanduser().absolute(), network=False)
    folder = Path(where).expanduser().absolute()
    if not (folder / SITE).is_file():
        raise SearchError(
            f"{where!r} names no federation: write file:FOLDER for a shared folder, or give the folder of a site that "
            "`fedrank deploy join` made; nothing was sent"
        )
    return Meeting(folder, network=True)


def invitation(shared: Path) -> Invited:
    there = read_invitation(shared)
    members = tuple(site.name for site in there.sites if site.state == "joined")
    return Invited(shared, there.name, there.fingerprint, members)


def state_of(client: SearchClient, meeting: Meeting | None = None) -> str:
    """ "": not joined; else "waiting", "joined", "expelled" or "left". One that meets elsewhere is told."""
    sharing = Sharing.read(client.folder)
    if sharing is None:
        return ""
    there = Meeting(Path(sharing.site or sharing.shared), network=bool(sharing.site))
    if meeting is not None and meeting != there:
        raise SearchError(
            f"this folder takes part in a federation through {there.folder}, not through {meeting.folder}; name that "
            "one, or leave it first; nothing was sent"
        )
    if there.network:
        return "joined" if networked.is_site(there.folder) else "left"
    return membership_state(there.folder, client.folder / FEDERATION)


def server(client: SearchClient, site: Path) -> Server:
    """Whom somebody would connect to who thinks of joining over a network; nothing changes, and nothing is sent."""
    _check_features(client)
    private_folder(private_folder(client.folder / FEDERATION) / SEARCHES)
    return networked.server_of(site, recorded(client.folder).folder)


def join_network(client: SearchClient, site: Path) -> None:
    """Let a site have the searches from now on; nothing leaves before it runs, no update before a plan is agreed to."""
    there = server(client, site)
    receiver = f"{there.federation} at {there.address}"
    client.sent.add_journal(site, receiver)
    networked.point_at(site, recorded(client.folder).folder)
    Sharing(receiver, client.rows.last_search, there.epsilon, str(site)).write(client.folder)


def ask_to_join(client: SearchClient, shared: Path, name: str, expected_fingerprint: str, epsilon: float) -> str:
    """Ask to take part; returns the own fingerprint, for the coordinator. A name and a public key leave, no more."""
    _check_features(client)
    if not 0 < epsilon < float("inf"):
        raise SearchError(f"ε = {epsilon} is no limit; give a positive number, such as 8; nothing was sent")
    folder = private_folder(client.folder / FEDERATION)
    private_folder(recorded(client.folder).folder)
    client.sent.add_journal(folder, str(shared))
    noted = client.sent.note(str(shared), f"asked to join as {name}: this name and a public key", len(name) + 64)
    try:
        own = join_folder(shared, folder, name, expected_fingerprint)
    except (ValueError, FileExistsError, FileNotFoundError):  # before anything is written there
        client.sent.take_back(noted)
        raise
    before = Sharing.read(client.folder)
    after = client.rows.last_search if before is None else before.after
    Sharing(str(shared), after, epsilon).write(client.folder)
    return own


def open_plans(client: SearchClient) -> list[tuple[Plan, PlanView]]:
    """Runs that the coordinator announced, and about which nothing was decided here; with what each means."""
    sharing = Sharing.read(client.folder)
    if sharing is not None and sharing.site:
        folder = Path(sharing.site)
        plans = consent.proposals(folder)
    else:
        folder, shared = _ready(client)
        plans = [] if shared is None else read_plans(shared, folder)
        plans = [plan for plan in plans if consent.said_of(folder, plan) is None]
    if not plans:
        return []
    settings = read_site(folder)
    return [(plan, look_at(folder, settings, plan)) for plan in plans]


def agree(client: SearchClient, plan: Plan) -> None:
    """Take part in a run that somebody looked at."""
    consent.accept(_site_of(client), plan)


def decline(client: SearchClient, plan: Plan) -> None:
    consent.refuse(_site_of(client), plan.digest, "declined", plan.name)


def take_part(client: SearchClient) -> list[FolderAnswer]:
    """Record what was searched, answer what is asked in a folder once, and put a model that came back on trial."""
    sharing = Sharing.read(client.folder)
    if sharing is not None and sharing.site:
        if not networked.is_site(Path(sharing.site)):
            raise SearchError(f"{sharing.site} has no kit any more, so that nothing is sent; fedrank search leave")
        client.record_for_sharing()
        _try_models(client, Path(sharing.site))
        return []
    folder, shared = _ready(client)
    if shared is None:
        return []
    client.record_for_sharing()
    with Site.open(folder) as site:
        answered = serve_once(shared, folder, site)
    _try_models(client, folder)
    return answered


def keep_taking_part(client: SearchClient, stop: threading.Event) -> None:
    """The same now and then, until told to stop or somebody left; problems stand in the status.

    Over a network the site runs meanwhile.
    """
    with ExitStack() as running:
        engine: SiteRunner | None = None
        while not stop.is_set():
            problem = ""
            try:
                if (sharing := Sharing.read(client.folder)) is None:
                    return
                if sharing.site and engine is None:
                    engine = running.enter_context(SiteRunner(Path(sharing.site)))
                take_part(client)
                if engine is not None:
                    engine.keep_running()
                    problem = engine.problem
            except (OSError, ValueError, RuntimeError, ImportError) as found:
                problem = told(found)
            client.sent.note_problem(problem)
            stop.wait(SECONDS_BETWEEN_LOOKS)


def check_joined(client: SearchClient) -> Sharing:
    """What was joined."""
    sharing = Sharing.read(client.folder)
    if sharing is None:
        raise SearchError("this folder joined no federation, so that there is nothing to leave")
    return sharing


def leave(client: SearchClient, because: str = "") -> None:
    """Take no further part. Recorded lists are removed; ledger and what was sent stay, since they cannot be undone."""
    sharing = check_joined(client)
    if sharing.site:
        networked.leave(Path(sharing.site), because)
    else:
        client.sent.note(sharing.shared, "that you leave", len(because.encode()))
        leave_folder(Path(sharing.shared), client.folder / FEDERATION, because)
    (client.folder / FEDERATION / MARK).unlink()
    client.record_for_sharing()


def _check_features(client: SearchClient) -> None:
    if client.features.version != "live-1":
        raise SearchError(
            f"this folder has the features {client.features.version!r}, and federations share models of 'live-1'; use "
            "a folder that was begun in english"
        )


def _site_of(client: SearchClient) -> Path:
    sharing = Sharing.read(client.folder)
    return client.folder / FEDERATION if sharing is None else sharing.site_folder(client.folder)


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
        write_atomic(folder / SITE, text, private=True)
    return folder, shared


def _try_models(client: SearchClient, folder: Path) -> None:
    """Put a model that came back on trial, unless it was, or another one is."""
    for path in sorted((folder / MODELS).glob("*/model.json")):
        origin = f"federation {read_site(folder).federation}, run {path.parent.name}"
        if not client.trials.phase and not client.trials.knows(origin):
            model = load_weights(path)
            if model.feature_names != client.features.names or model.normalised != "none":
                raise SearchError(f"{path} is no model of {client.features.version}; it is not tried")
            client.trials.begin(np.asarray(model.weights, np.float64), origin)
