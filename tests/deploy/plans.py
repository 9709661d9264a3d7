"""Made-up plans, sites and files for tests of deployments."""

from __future__ import annotations

from fedrank.data.letor import letor_lines
from fedrank.deploy.plan import Plan, PlannedSite, make_plan
from fedrank.deploy.settings import Policy, SiteData, SiteSettings
from fedrank.experiments.spec.grid import read_tables
from tests.made_up import made_up_data

NOISE = {"name": "gaussian", "clip": 1.0, "noise": 20.0}
SUM = NOISE | {"placement": "secure-aggregation"}
NAMES = ("clinic-a", "clinic-b", "clinic-c", "clinic-d")
OPEN = Policy(learners=("pdgd", "evolution", "lambdarank"), unprotected=True, accept="within-policy")


def experiment(**changes):
    """One question to three sites; a change of None leaves a key out."""
    base = {
        "rounds": 10,
        "data": {"name": "synthetic-mq2007"},
        "clients": {"count": 3, "interactions": 4},
        "learner": {"name": "pdgd"},
        "mechanism": NOISE,
    }
    return read_tables({key: value for key, value in (base | changes).items() if value is not None}).base


def made_plan(sites=3, features=5, identities=(), simulated=False, normalised="none", names=(), **changes) -> Plan:
    """A plan for so many sites, the r-th of which has id r."""
    changes.setdefault("clients", {"count": sites, "interactions": 4})
    keys = [*identities, *[""] * sites]
    parties = [PlannedSite(NAMES[id], (id,), keys[id]) for id in range(sites)]
    return make_plan(
        experiment(**changes),
        "first",
        parties,
        federation="clinics",
        features=features,
        feature_names=names,
        normalised=normalised,
        simulated=simulated,
    )


def site_settings(policy=OPEN, data=None, name="clinic-a", id=0, **more) -> SiteSettings:
    return SiteSettings(name, id, "clinics", data or SiteData(letor="train.txt"), policy, **more)


def letor_file(path, comment="", **made):
    """A LETOR file of made-up data; `comment` stands behind each document, with {query} for the number of its query."""
    data = made_up_data(**made)
    lines = []
    for line in letor_lines(data):
        query = line.split()[1].removeprefix("qid:")
        lines.append(line.rstrip("\n") + (f" # {comment.format(query=query)}" if comment else "") + "\n")
    path.write_text("".join(lines))
    return path
