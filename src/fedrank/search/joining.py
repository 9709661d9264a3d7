"""Participation in a federation with one's own searches: `fedrank search join HOME`, after `fedrank deploy join`.

    join -> review and accept a plan -> answer its rounds -> trial of the new model

Only secure aggregation over a network is possible (`search/networked.py`): NVFLARE connects, and search adds only the
impressions and clicks; site, policy, ledger and outbox are those of `fedrank.deploy`. All data is added to the record
of sent data before it is sent.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedrank.deploy import consent
from fedrank.deploy.plan import Plan
from fedrank.deploy.settings import SITE, read_site
from fedrank.deploy.show import PlanView, look_at
from fedrank.deploy.site_runtime import MODELS
from fedrank.files import error_message, private_folder
from fedrank.privacy.mechanisms import SecureAggregation
from fedrank.ranking.model import load_weights
from fedrank.search import networked
from fedrank.search.client import SearchClient
from fedrank.search.coordinator import too_few
from fedrank.search.networked import Server, SiteRunner
from fedrank.search.results import SearchError
from fedrank.search.sharing import FEDERATION, MARK, SEARCHES, Sharing, recorded

PREFIX = "file:"
SECONDS_BETWEEN_LOOKS = 20.0
DEVICE_NOISE = (
    "noise on each device destroys what a small group learns: ten people at ε = 8 ended .146 nDCG@10 below BM25 in "
    "simulations"
)
NETWORK = (
    "join over a network, where secure aggregation shows only a sum: fedrank deploy join, then fedrank search join HOME"
)


def site_of(where: str) -> Path:
    """The folder of a site, as given to `join`; a shared folder is refused."""
    if where.startswith(PREFIX):
        raise SearchError(
            f"search clients can no longer join through a shared folder, because {DEVICE_NOISE}; {NETWORK}; nothing "
            "was sent"
        )
    folder = Path(where).expanduser().absolute()
    if not (folder / SITE).is_file():
        raise SearchError(
            f"{where!r} is not a site: give the folder that `fedrank deploy join` created; nothing was sent"
        )
    return folder


def state_of(client: SearchClient, site: Path | None = None) -> str:
    """ "" (not joined), "joined" or "left"; raises if joined through another site."""
    sharing = Sharing.read(client.folder)
    if sharing is None:
        return ""
    if site is not None and str(site) != sharing.site:
        raise SearchError(
            f"this folder already participates in a federation through {sharing.site or sharing.shared}, not through "
            f"{site}; give that folder, or leave it first with fedrank search leave; nothing was sent"
        )
    return "joined" if networked.is_site(Path(sharing.site)) else "left"


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


def open_plans(client: SearchClient) -> list[tuple[Plan, PlanView]]:
    """Announced runs that were neither accepted nor declined, with their summaries."""
    site = Path(check_joined(client).site)
    plans = consent.proposals(site)
    settings = read_site(site) if plans else None
    found = []
    for plan in plans:
        assert settings is not None
        view, problem = look_at(site, settings, plan), plan_problem(plan)
        found.append((plan, replace(view, refused=(*view.refused, problem)) if problem else view))
    return found


def plan_problem(plan: Plan) -> str:
    """Why one person's searches must not be used in a plan; "" if they may."""
    mechanism = getattr(plan.experiment, "mechanism", None)
    if mechanism is None or not isinstance(mechanism.placement, SecureAggregation):
        return f"mechanism.placement must be secure-aggregation, because {DEVICE_NOISE}; ask for another plan"
    return too_few(plan.experiment)


def agree(client: SearchClient, plan: Plan) -> None:
    """Accept a run."""
    if problem := plan_problem(plan):
        raise SearchError(f"{problem}; nothing was sent")
    consent.accept(Path(check_joined(client).site), plan)


def decline(client: SearchClient, plan: Plan) -> None:
    consent.refuse(Path(check_joined(client).site), plan.digest, "declined", plan.name)


def take_part(client: SearchClient) -> None:
    """Record searches for the site, and start the trial of a received model."""
    sharing = Sharing.read(client.folder)
    if sharing is None:
        return
    if not sharing.site:
        raise SearchError(
            f"this folder joined through a shared folder, which has ended, because {DEVICE_NOISE}; nothing is sent; "
            f"run fedrank search leave, then {NETWORK}"
        )
    site = Path(sharing.site)
    if not networked.is_site(site):
        raise SearchError(
            f"{site} no longer has a kit, so nothing is sent; run fedrank search leave to end participation"
        )
    client.record_for_sharing()
    _try_models(client, site)


def keep_taking_part(client: SearchClient, stop: threading.Event) -> None:
    """Participate, and run the site, until `stop` is set or the user leaves; problems appear in the status."""
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
    (client.folder / FEDERATION / MARK).unlink()
    client.record_for_sharing()


def _check_features(client: SearchClient) -> None:
    if client.features.version != "live-1":
        raise SearchError(
            f"this folder has the features {client.features.version!r}, but federations share models of 'live-1'; use "
            "a search folder with the language english"
        )


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
