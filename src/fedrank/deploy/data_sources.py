"""A site's data as a table of clients with one row, the site itself.

A site's settings describe its data, and a plan states the requirements. If they differ, the message names both values,
because two organisations must agree on one of them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.feature_sets import fixed_ranges, log_features
from fedrank.data.judged_files import comments_of, read_judged
from fedrank.data.log_fold import log_part
from fedrank.data.logs import load_log
from fedrank.data.ranking import RankingData
from fedrank.deploy.plan import names_digest
from fedrank.deploy.releases import GATE, PROPENSITY, release_of, releases_of
from fedrank.deploy.settings import BROWSER, searches_of
from fedrank.deploy.site_data import ClientSiteData
from fedrank.experiments.runner.position_bias import corrected_clients
from fedrank.federated.clients import make_clients
from fedrank.ranking.learners import Pdgd
from fedrank.types import SimulatedClients, has_trait

if TYPE_CHECKING:
    from fedrank.deploy.plan import Plan
    from fedrank.deploy.settings import SiteData, SiteSettings

# A kind of data, as a site describes it to the coordinator.
SEARCH_LOG = "a search log"
SCALES = (1, 2, 4)  # highest relevance labels of scales with defined click models
_ROWS = 1 << 16  # rows of an array that are read at a time


@dataclass(frozen=True)
class DataFacts:
    """Facts about a site's data that it reveals before training; all sites must have data of the same kind."""

    features: int
    names_digest: str  # of the feature names; "" if there are none
    normalised: str
    digest: str  # of all data, to notice changes
    queries: int  # for training
    people: int  # 0: the queries are not assigned to people


@dataclass(frozen=True, eq=False)
class SiteSplit:
    """A site's own data: queries for training and queries for evaluation."""

    train: RankingData
    test: RankingData | None
    whose: NDArray[np.int64] = field(
        default_factory=lambda: np.empty(0, np.int64)
    )  # [queries of train]: index of the person
    test_whose: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # the same for `test`
    swap: NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))  # of all lists, if logged

    @property
    def people(self) -> int:
        return int(self.whose.max()) + 1 if len(self.whose) else 0

    def facts(self) -> DataFacts:
        train = self.train
        names = names_digest(train.feature_names)
        return DataFacts(train.features.shape[1], names, train.normalised, _digest(self), train.queries, self.people)


def load_share(data: SiteData) -> SiteSplit:
    """Load a site's data for training and evaluation."""
    if data.letor is not None:
        whole, whose = _from_letor(data)
    elif data.log is not None:
        return _from_log(data)
    else:
        raise ValueError("data: no training data are configured; set letor or log in site.toml")
    kept = _kept(whole.queries, data)
    if kept == whole.queries:
        return SiteSplit(whole, None, whose)
    rows = np.arange(whole.queries)
    return SiteSplit(whole.select(rows[:kept]), whole.select(rows[kept:]), _renumbered(whose[:kept]))


def describe(data: SiteData) -> DataFacts:
    """Facts about a site's data."""
    return load_share(data).facts()


def about_data(data: SiteData) -> dict[str, Any]:
    """What a site tells the coordinator about its data for the privacy card: their kind and retention, no numbers."""
    found: list[str] = []
    days = None
    if data.letor is not None:
        found.append("judged queries" if data.person is None else "judged queries of people")
    if data.log is not None:
        log = load_log(data.log)
        days = log.facts.get("settings", {}).get("keep_days")
        found.append(f"{SEARCH_LOG} of {'browsers' if data.are_browsers else f'{log.unit}s'}")
    if data.documents is not None:
        found.append("documents")
    return {
        "kind": " and ".join(found) or "none",
        "keep_days": days,
        "unit": BROWSER if data.are_browsers else "person",
    }


def open_data_source(settings: SiteSettings, plan: Plan) -> ClientSiteData:
    """Open a site's data for a plan; they are not opened if its policy does not allow the plan.

    Its ledger has one row: whenever the site participates, all its people do, and people who join later have not paid
    more. Charges therefore stay correct when people join or leave.
    """
    if found := settings.policy.objections(plan):
        raise ValueError("\n".join(found))
    share = load_share(settings.data)
    clients = simulated_clients_of(share, plan, settings.id)
    data = plan.experiment.data
    if data.from_own_clicks:
        assert settings.data.log is not None, "differences checks this"
        clients = corrected_clients(clients, load_log(settings.data.log), data.bias)
    rows = np.zeros(len(clients if clients.people is None else clients.people), dtype=np.int64)
    return ClientSiteData(clients, 1, rows, share.test, whose=share.whose, test_whose=share.test_whose)


def simulated_clients_of(share: SiteSplit, plan: Plan, id: int) -> SimulatedClients:
    """A table with one client, this site, and its people if the plan protects each of them.

    Raises ValueError if the data do not fit the plan.
    """
    experiment = plan.experiment
    if found := differences(share, plan):
        raise ValueError("\n".join(found))
    clients = experiment.clients
    click_model = clients.click_models[id % len(clients.click_models)]
    simulated = make_clients(share.train, 1, click_model=click_model, interactions=searches_of(plan, id))
    simulated = replace(simulated, ids=np.array([id], dtype=np.int64))
    return _with_people(simulated, share, plan, id) if _protects_people(plan) else simulated


def differences(share: SiteSplit, plan: Plan) -> list[str]:
    """Differences between a site's data and a plan, each with both values."""
    train = share.train
    found = _other_features(train.features.shape[1], names_digest(train.feature_names), train.normalised, plan)
    learner = getattr(plan.question, "learner", None)  # trees have none
    if isinstance(learner, Pdgd) and learner.lists == "logged" and not len(train.who):
        found.append(
            'learner.lists: the plan has "logged", but this site has no log of displayed results; set data.log, or use '
            '"drawn" in the plan'
        )
    if has_trait(learner, "logged") and not len(train.who):
        found.append(
            "learner: the plan trains on displayed result lists, but this site has no log of them; set data.log, or "
            "use pdgd in the plan"
        )
    elif has_trait(learner, "logged") and plan.experiment.data.from_own_clicks and not len(train.position):
        found.append(
            "data.propensities: the plan corrects clicks for position bias, but the lists of this site's log are "
            "synthetic and have no positions; build it from a log of displayed lists"
        )
    if learner is not None and _protects_people(plan):
        found += _other_people(share.people, plan)
        held_out = int(share.test_whose.max(initial=-1)) + 1
        releases = releases_of(plan, plan.experiment.measures)
        if releases is not None and list(releases) and held_out > plan.experiment.clients.people:
            found.append(
                f"people: the held-out lists of this site are of {held_out:,}, but the plan allows at most "
                f"{plan.experiment.clients.people:,} (clients.people); use a larger number in the plan (it is public)"
            )
        if releases is not None and releases.find(PROPENSITY) is not None and not len(share.swap):
            found.append(f"data.propensities: {releases.what_to_log('none is logged in the data of this site')}")
        if release_of(plan, GATE) is not None and (share.test is None or not len(share.test.position)):
            found.append(
                "gate: it needs held-out lists as they were shown to users; build the log from shown lists, with "
                "--hold-out-days and --hold-out-users, or set data.test_share"
            )
    return found


def _protects_people(plan: Plan) -> bool:
    """Whether each person of a site is protected, instead of the site as a whole."""
    return plan.experiment.clients.people > 1 or has_trait(plan.experiment.mechanism, "people")


def _other_people(people: int, plan: Plan) -> list[str]:
    most = plan.experiment.clients.people
    if not people:
        return [
            f"data.person: the plan has clients.people = {most}, but this site does not assign its queries to people; "
            "set data.person in site.toml to the key of the comments (with a log: to its users)"
        ]
    groups = plan.rounds if plan.experiment.deals_persons else 1
    bound = min(most, groups * getattr(plan.experiment.mechanism, "people", most))
    if people <= bound:
        return []
    return [
        f"people: this site has {people:,}, but the plan allows at most {bound:,} (clients.people); use a larger "
        "number in the plan (it is public)"
    ]


def _other_features(width: int, names: str, normalised: str, plan: Plan) -> list[str]:
    found = []
    if width != plan.features:
        found.append(
            f"features: this site has {width}, the plan {plan.features}; use the same features in the same order"
        )
    elif names != plan.feature_names:
        remedy = "compare the lists: otherwise weights of one feature would be learned from another"
        if not names or not plan.feature_names:
            who = "set data.names in site.toml" if not names else "remove data.names, or let the coordinator set them"
            remedy = f"{who}, so all sites use the same features"
        found.append(
            f"feature names: their digest at this site is {names or 'none'}, in the plan "
            f"{plan.feature_names or 'none'}; {remedy}"
        )
    if normalised != plan.normalised:
        found.append(
            f'normalisation: this site has "{normalised}", the plan "{plan.normalised}"; set data.normalise in '
            "site.toml, or use another one in the plan"
        )
    return found


def _with_people(clients: SimulatedClients, share: SiteSplit, plan: Plan, id: int) -> SimulatedClients:
    most, people = plan.experiment.clients.people, share.people
    pools = [np.flatnonzero(share.whose == person).astype(np.int32) for person in range(people)]
    each = replace(
        clients.rows(np.zeros(people, dtype=np.int64)),
        ids=id * most + np.arange(people, dtype=np.int64),
        pool=np.arange(people, dtype=np.int32),
        queries=np.concatenate(pools),
        pools=np.cumsum([0, *map(len, pools)]).astype(np.int64),
        client=np.full(people, id, dtype=np.int64),
    )
    return replace(clients, interactions=clients.interactions * people, people=each)


def _from_letor(data: SiteData) -> tuple[RankingData, NDArray[np.int64]]:
    assert data.letor is not None
    whole = read_judged(data.letor, features=data.features, normalise=data.normalised)
    names: tuple[str, ...] = ()
    if data.names is not None:
        names = tuple(Path(data.names).read_text(encoding="utf-8").splitlines())
        if len(names) != whole.features.shape[1]:
            raise ValueError(
                f"data.names: {data.names} has {len(names)} lines, but {data.letor} has {whole.features.shape[1]} "
                "features; write one name per feature"
            )
    # A small dataset may not contain the highest relevance label of its scale.
    usual = next((top for top in SCALES if top >= whole.top_grade), whole.top_grade)
    top = usual if data.top_grade is None else data.top_grade
    if top < whole.top_grade:
        raise ValueError(
            f"data.top_grade: {top} is lower than the highest relevance label in {data.letor}, {whole.top_grade}; set "
            "the highest label of the scale"
        )
    whole = replace(whole, feature_names=names, top_grade=top, given=data.given or whole.given)
    if data.person is None:
        return whole, np.empty(0, np.int64)
    return whole, _people_in_comments(data.letor, data.person, whole)


def _from_log(data: SiteData) -> SiteSplit:
    assert data.log is not None
    log = load_log(data.log)
    log.check_retention()
    whole, held_out = log.training_rows(), np.flatnonzero(log.held_out)
    # With entries that were held out when the data set was built, data.test_share is not used.
    kept = len(whole) if len(held_out) else _kept(len(whole), data)
    # Fixed ranges reveal nothing about the data; any other ranges would have to be exchanged.
    fixed = fixed_ranges(log_features(log)) if data.normalise is None else None
    how = data.normalised if fixed is None else "global"
    parts = [
        replace(log_part(log, rows, how, fixed), given=data.given or log.given)
        for rows in (whole[:kept], held_out if len(held_out) else whole[kept:])
        if len(rows)
    ]
    people = [_renumbered(one.who.astype(np.int64)) for one in parts if data.person is not None]
    whose, test_whose = [*people, np.empty(0, np.int64), np.empty(0, np.int64)][:2]
    test, swap = parts[1] if len(parts) > 1 else None, np.empty(0, np.int16)
    if log.swap is not None:
        swap = np.asarray(log.swap)[np.concatenate([one.query_ids.astype(np.int64) for one in parts])]
    return SiteSplit(parts[0], test, whose, test_whose, swap)


def _kept(queries: int, data: SiteData) -> int:
    """The number of training queries."""
    if data.test_share is None:
        return queries
    kept = queries - math.floor(queries * data.test_share)
    if not 0 < kept < queries:
        raise ValueError(
            f"data.test_share: {data.test_share:g} divides {queries} queries into {kept} for training and "
            f"{queries - kept} for evaluation; use another share, or remove it"
        )
    return kept


def _people_in_comments(path: str | Path, key: str, data: RankingData) -> NDArray[np.int64]:
    """[queries]: index of the person, from a key in the comments of the documents."""
    pattern = re.compile(rf"(?:^|[\s,;]){re.escape(key)}\s*[=:]\s*([^\s,;]+)")
    comments = comments_of(path, data.documents)
    if comments is None:
        raise ValueError(
            f"data.person: the format of {path} has no comments that could name a person; use a LETOR file with "
            f"`# {key} = ...` after each document, or a search log"
        )
    found = [match[1] if (match := pattern.search(comment)) else "" for comment in comments]
    whose = []
    for query, name in enumerate(data.query_ids):
        people = sorted(set(found[data.offsets[query] : data.offsets[query + 1]]))
        if people == [""] or len(people) > 1:
            what = (
                "not assigned to a person"
                if people == [""]
                else f"assigned to {', '.join(person or 'none' for person in people)}"
            )
            raise ValueError(
                f"data.person: query {name} of {path} is {what}; write `# {key} = ...` after each of its documents, "
                "with the same person"
            )
        whose.append(people[0])
    return np.unique(whose, return_inverse=True)[1].astype(np.int64).ravel()


def _renumbered(whose: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same people, numbered from 0 without gaps."""
    return np.unique(whose, return_inverse=True)[1].astype(np.int64).ravel() if len(whose) else whose


def _digest(share: SiteSplit) -> str:
    made = hashlib.sha256()
    for part in (share.train, share.test):
        if part is not None:
            arrays: list[NDArray[np.generic]] = [part.features, part.grades, part.offsets, part.query_ids]
            arrays += [part.who, part.when, *([part.position] if len(part.position) else [])]
            for array in arrays:
                made.update(f"{array.dtype.str} {array.shape}\n".encode())
                for block in _blocks(array):
                    made.update(block)
    for array in (share.whose, share.test_whose, share.swap):
        made.update(array.tobytes())
    return made.hexdigest()


def _blocks(array: NDArray[np.generic]) -> Iterator[bytes]:
    for first in range(0, len(array), _ROWS):
        yield np.ascontiguousarray(array[first : first + _ROWS]).tobytes()
