"""Plans that are received: what they may contain."""

from __future__ import annotations

import json

import pytest

from fedrank.deploy.heads import MAX_HEADS
from fedrank.deploy.plan import MAX_NAME, MAX_SITES, Plan, PlannedSite, make_plan
from fedrank.experiments.spec.experiment import SpecError
from fedrank.wire import Refused
from tests.deploy.plans import experiment, made_plan

UNSAFE = ["", "..", "../../..", "/etc/passwd", "a\\..\\b", "clinic\0", "clinic\x1b[2J", "x" * 5000]


def received(**changes) -> Plan:
    return Plan.load(json.dumps(json.loads(made_plan().dump()) | changes).encode())


@pytest.mark.parametrize("name", [*UNSAFE, "a/../b", "a//b", "./a", "\ud800", "line\nbreak"])
def test_an_unsafe_name_of_a_run_is_refused(name):
    with pytest.raises(Refused, match=r"name: .* is not a valid name of a run") as found:
        received(name=name)
    assert len(str(found.value)) < 400
    assert str(found.value).isprintable()


@pytest.mark.parametrize("name", [*UNSAFE, "a/b", "ünïcode", "-clinic"])
def test_an_unsafe_name_of_a_site_or_federation_is_refused(name):
    sites = json.loads(made_plan().dump())["sites"]
    for key, changes in (
        ("federation", {"federation": name}),
        ("sites", {"sites": [sites[0] | {"name": name}, *sites[1:]]}),
    ):
        with pytest.raises(Refused, match=rf"{key}: .* is not a valid name") as found:
            received(**changes)
        assert len(str(found.value)) < 400
        assert str(found.value).isprintable()


def test_usual_names_are_accepted():
    for name in ("my/only/fold-1-seed-1", "a study, noise=2.0 (ε)", "x" * MAX_NAME):
        assert received(name=name).name == name


def test_more_sites_than_a_message_has_heads_are_refused():
    count = MAX_SITES + 1
    assert MAX_SITES <= MAX_HEADS
    asked = experiment(clients={"count": count, "interactions": 4})
    parties = [PlannedSite(f"site-{id}", (id,)) for id in range(count)]
    facts = {"federation": "clinics", "features": 5, "feature_names": (), "normalised": "none"}
    assert len(make_plan(asked, "trial", parties, simulated=True, **facts).sites) == count
    with pytest.raises(SpecError, match="1,001 sites take part; a plan may have at most 1,000"):
        make_plan(asked, "first", parties, **facts)
