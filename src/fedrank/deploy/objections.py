"""Why a site does not participate in a plan: every check of a site before the first round, for `show` and `accept`.

The site makes the same checks when a run starts, with the same functions. A plan without an objection here can run.
"""

from __future__ import annotations

from pathlib import Path

from fedrank.deploy.budget import budget_objections
from fedrank.deploy.charging import UNLIMITED, check_promised
from fedrank.deploy.data_sources import SiteSplit, differences
from fedrank.deploy.identity import read_identity
from fedrank.deploy.outbox import OUTBOX, OutboxError
from fedrank.deploy.plan import Plan, data_problems, key_problems, uses_keys
from fedrank.deploy.settings import SiteSettings
from fedrank.deploy.site_releases import gate_objections
from fedrank.deploy.site_runtime import PEOPLE, SiteHome
from fedrank.files import error_message
from fedrank.privacy.ledger import LedgerError
from fedrank.trees.histograms import Histograms
from fedrank.wire import Refused


def objections(
    folder: Path, settings: SiteSettings, plan: Plan, share: SiteSplit | None = None, draft: bool = False
) -> list[str]:
    """Reasons why a site does not participate; empty if it does after acceptance.

    `share` is the site's data, if they could be read. A draft has no keys of partners yet.
    """
    found = plan_objections(folder, settings, plan, share, draft)
    found += data_objections(settings, plan, share) + ledger_objections(folder, settings, plan)
    return list(dict.fromkeys(found))


def plan_objections(
    folder: Path, settings: SiteSettings, plan: Plan, share: SiteSplit | None = None, draft: bool = False
) -> list[str]:
    """The same without features of the data and without the ledger, which `check` shows apart."""
    found = settings.objections(plan) + _transport_objections(folder, plan)
    if not draft:
        found += _key_objections(folder, settings, plan)
    return found + _changed_data(folder, settings, plan, share) + _gate_objections(folder, settings, plan)


def data_objections(settings: SiteSettings, plan: Plan, share: SiteSplit | None) -> list[str]:
    """Differences between the data of a site and what a plan needs."""
    if plan.simulated:
        return []
    if found := data_problems(plan, settings.data):
        return found
    if plan.silos is not None:
        return []
    if share is None:
        return []
    found = differences(share, plan)
    merge = None if plan.forests is None else plan.forests.merge
    if isinstance(merge, Histograms) and merge.private != "no" and merge.unit == "person" and not len(share.whose):
        found.append(
            "data.person: the plan protects persons, but site.toml does not assign the queries to people; set "
            "data.person in site.toml to the key of the comments (with a log: to its users)"
        )
    return found


def _transport_objections(folder: Path, plan: Plan) -> list[str]:
    """Reasons why a plan cannot run through the shared folder of a site."""
    from fedrank.deploy.folder import refuse_online_plan
    from fedrank.deploy.folder_members import MEMBERSHIP

    if not (folder / MEMBERSHIP).exists():
        return []
    try:
        refuse_online_plan(plan)
    except ValueError as problem:
        return [f"mechanism.placement: {problem}"]
    return []


def _key_objections(folder: Path, settings: SiteSettings, plan: Plan) -> list[str]:
    if plan.simulated or not uses_keys(plan) or not any(site.name == settings.name for site in plan.sites):
        return []
    if found := key_problems(plan):
        return found
    try:
        return key_problems(plan, settings.name, read_identity(folder).public)
    except (OSError, ValueError, ImportError) as problem:
        return [f"sites: {error_message(problem)}"]


def _changed_data(folder: Path, settings: SiteSettings, plan: Plan, share: SiteSplit | None) -> list[str]:
    """A run that has started continues only with the data that it started with."""
    if share is None or plan.simulated or plan.silos is not None:
        return []
    if not (folder / OUTBOX / plan.digest[:32]).is_dir():
        return []
    try:
        SiteHome(folder, settings).outbox(plan, bytes.fromhex(share.facts().digest))
    except (Refused, OutboxError, OSError) as problem:
        return [f"data: {error_message(problem) if isinstance(problem, OSError) else problem}"]
    return []


def _gate_objections(folder: Path, settings: SiteSettings, plan: Plan) -> list[str]:
    try:
        return gate_objections(folder, settings, plan)
    except (LedgerError, OSError, ValueError):  # of the ledger or the data, which are objections already
        return []


def ledger_objections(folder: Path, settings: SiteSettings, plan: Plan | None) -> list[str]:
    """A policy that promises less than an earlier one, or a budget that does not cover the plan, if there is one."""
    policy = settings.policy
    limit = UNLIMITED if policy.largest_epsilon is None else policy.largest_epsilon
    try:
        check_promised(folder / PEOPLE, policy.delta, limit)
    except Refused as problem:
        return [str(problem)]
    except (LedgerError, ValueError, OSError) as problem:
        return [f"ledger: {problem}"]
    return [] if plan is None else budget_objections(folder, policy, plan)
