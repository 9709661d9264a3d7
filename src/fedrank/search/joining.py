"""Participation in a federation with one's own searches: `fedrank search join file:FOLDER`, or `join SITE_FOLDER`.

    request to join -> approval -> review and accept a plan -> answer its rounds -> trial of the new model

Through a shared folder this client joins and answers itself. Over a network (`search/networked.py`) the user joins with
`fedrank deploy join`, and NVFLARE answers. Search adds only the impressions and clicks: site, policy, ledger and outbox
are those of `fedrank.deploy`. All data is added to the record of sent data before it is sent.
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
from fedrank.files import error_message, private_folder, write_atomic
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
# Written by `fedrank search join`: one person's searches as a site of a federation. You may make the policy stricter.
name       = {name}
id         = {id}
federation = {federation}

[data]
impressions = "searches"

[policy]
learners        = ["pdgd"]
placements      = ["client"]
unit            = "site"         # the site is one person; all searches of this person are protected together
largest_epsilon = {epsilon}
delta           = 1e-5
most_rounds     = 1000
min_sites       = 3
accept          = "listed"       # participate only in runs accepted with `fedrank search join`
"""


@dataclass(frozen=True)
class Invited:
    """The federation as shown to the user before joining."""

    shared: Path
    federation: str
    fingerprint: str  # of the coordinator
    members: tuple[str, ...]


@dataclass(frozen=True)
class Meeting:
    """The transport of a federation: a shared folder, or the folder of a site that uses a network."""

    folder: Path
    network: bool


def meeting_of(where: str) -> Meeting:
    """Parse `file:FOLDER` or SITE_FOLDER."""
    if where.startswith(PREFIX) and where != PREFIX:
        return Meeting(Path(where.removeprefix(PREFIX)).expanduser().absolute(), network=False)
    folder = Path(where).expanduser().absolute()
    if not (folder / SITE).is_file():
        raise SearchError(
            f"{where!r} is not a federation: write file:FOLDER for a shared folder, or give the folder of a site "
            "created with `fedrank deploy join`; nothing was sent"
        )
    return Meeting(folder, network=True)


def invitation(shared: Path) -> Invited:
    there = read_invitation(shared)
    members = tuple(site.name for site in there.sites if site.state == "joined")
    return Invited(shared, there.name, there.fingerprint, members)


def state_of(client: SearchClient, meeting: Meeting | None = None) -> str:
    """ "" (not joined), "waiting", "joined", "expelled" or "left"; raises if joined through another meeting."""
    sharing = Sharing.read(client.folder)
    if sharing is None:
        return ""
    there = Meeting(Path(sharing.site or sharing.shared), network=bool(sharing.site))
    if meeting is not None and meeting != there:
        raise SearchError(
            f"this folder already participates in a federation through {there.folder}, not through {meeting.folder}; "
            "give that folder, or leave it first with fedrank search leave; nothing was sent"
        )
    if there.network:
        return "joined" if networked.is_site(there.folder) else "left"
    return membership_state(there.folder, client.folder / FEDERATION)


def server(client: SearchClient, site: Path) -> Server:
    """The server that this site would connect to; nothing is changed or sent."""
    _check_features(client)
    private_folder(private_folder(client.folder / FEDERATION) / SEARCHES)
    return networked.server_of(site, recorded(client.folder).folder)


def join_network(client: SearchClient, site: Path) -> None:
    """Give a site access to future searches; it sends no update before the user accepts a plan."""
    there = server(client, site)
    receiver = f"{there.federation} at {there.address}"
    client.sent.add_journal(site, receiver)
    networked.point_at(site, recorded(client.folder).folder)
    Sharing(receiver, client.rows.last_search, there.epsilon, str(site)).write(client.folder)


def ask_to_join(client: SearchClient, shared: Path, name: str, expected_fingerprint: str, epsilon: float) -> str:
    """Request to join; sends only the name and a public key. Returns the fingerprint of that key."""
    _check_features(client)
    if not 0 < epsilon < float("inf"):
        raise SearchError(
            f"epsilon must be positive and finite (got {epsilon}); give a number such as 8; nothing was sent"
        )
    folder = private_folder(client.folder / FEDERATION)
    private_folder(recorded(client.folder).folder)
    client.sent.add_journal(folder, str(shared))
    noted = client.sent.note(str(shared), f"request to join as {name}: this name and a public key", len(name) + 64)
    try:
        own = join_folder(shared, folder, name, expected_fingerprint)
    except (ValueError, FileExistsError, FileNotFoundError):  # raised before anything is written to the shared folder
        client.sent.take_back(noted)
        raise
    before = Sharing.read(client.folder)
    after = client.rows.last_search if before is None else before.after
    Sharing(str(shared), after, epsilon).write(client.folder)
    return own


def open_plans(client: SearchClient) -> list[tuple[Plan, PlanView]]:
    """Announced runs that were neither accepted nor declined, with their summaries."""
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
    """Accept a run."""
    consent.accept(_site_of(client), plan)


def decline(client: SearchClient, plan: Plan) -> None:
    consent.refuse(_site_of(client), plan.digest, "declined", plan.name)


def take_part(client: SearchClient) -> list[FolderAnswer]:
    """Record searches, answer open requests in the shared folder, and start the trial of a received model."""
    sharing = Sharing.read(client.folder)
    if sharing is not None and sharing.site:
        if not networked.is_site(Path(sharing.site)):
            raise SearchError(
                f"{sharing.site} no longer has a kit, so nothing is sent; run fedrank search leave to end participation"
            )
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
    """Participate until `stop` is set or the user leaves; problems appear in the status.

    Over a network this also runs the site.
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
                problem = error_message(found)
            client.sent.note_problem(problem)
            stop.wait(SECONDS_BETWEEN_LOOKS)


def check_joined(client: SearchClient) -> Sharing:
    """The joined federation; raises if there is none."""
    sharing = Sharing.read(client.folder)
    if sharing is None:
        raise SearchError("this folder has not joined a federation, so there is nothing to leave")
    return sharing


def leave(client: SearchClient, because: str = "") -> None:
    """Leave the federation. Recorded impressions are deleted; the ledger and the record of sent data stay."""
    sharing = check_joined(client)
    if sharing.site:
        networked.leave(Path(sharing.site), because)
    else:
        client.sent.note(sharing.shared, "notice of leaving", len(because.encode()))
        leave_folder(Path(sharing.shared), client.folder / FEDERATION, because)
    (client.folder / FEDERATION / MARK).unlink()
    client.record_for_sharing()


def _check_features(client: SearchClient) -> None:
    if client.features.version != "live-1":
        raise SearchError(
            f"this folder has the features {client.features.version!r}, but federations share models of 'live-1'; use "
            "a search folder with the language english"
        )


def _site_of(client: SearchClient) -> Path:
    sharing = Sharing.read(client.folder)
    return client.folder / FEDERATION if sharing is None else sharing.site_folder(client.folder)


def _ready(client: SearchClient) -> tuple[Path, Path | None]:
    """The site's folder, and the shared folder once the site may participate; writes `site.toml` at approval."""
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
    """Start the trial of a received model, unless it was tried before or another trial is running."""
    for path in sorted((folder / MODELS).glob("*/model.json")):
        origin = f"federation {read_site(folder).federation}, run {path.parent.name}"
        if not client.trials.phase and not client.trials.knows(origin):
            model = load_weights(path)
            if model.feature_names != client.features.names or model.normalised != "none":
                raise SearchError(
                    f"{path} is not a model for the features {client.features.version}; it was not used; report this "
                    "to the coordinator"
                )
            client.trials.begin(np.asarray(model.weights, np.float64), origin)
