"""federation.toml and site.toml: mistakes name their line, and a policy says why a plan does not fit it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrank.deploy.settings import (
    EVERY_LEARNER,
    TRIAL,
    Policy,
    SiteData,
    line_of,
    placement_of,
    plan_prices,
    read_federation,
    read_site,
    site_template,
)
from fedrank.experiments.spec.experiment import SpecError
from tests.deploy.plans import NOISE, OPEN, SUM, experiment, letor_file, made_plan, site_settings

FEDERATION = """\
name = "clinics"
host = "fl.clinics.org"
port = 8002

[[sites]]
name = "clinic-a"
organisation = "A"
id = 0

[[sites]]
name = "clinic-b"
organisation = "B"
id = 1

[[people]]
name = "anna@clinics.org"
organisation = "A"
role = "lead"
"""


def federation(folder, text=FEDERATION):
    path = folder / "federation.toml"
    path.write_text(text)
    return read_federation(path)


def test_a_federation_says_who_takes_part(tmp_path):
    found = federation(tmp_path)
    assert (found.name, found.host, found.port) == ("clinics", "fl.clinics.org", 8002)
    assert [(site.name, site.organisation, site.id) for site in found.sites] == [
        ("clinic-a", "A", 0),
        ("clinic-b", "B", 1),
    ]
    assert found.people[0].role == "lead"
    assert found.site("clinic-b").id == 1
    with pytest.raises(ValueError, match="no site 'clinic-c'"):
        found.site("clinic-c")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('name = "clinic-b"', 'name = "Clinic-A"', "line 11: sites[1].name:"),
        ("id = 1", "id = 0", "line 13: sites[1].id: 0 is also used by site 'clinic-a'"),
        ('name = "clinic-b"', 'name = "clinic b"', "line 11: sites[1].name:"),
        ('name = "clinic-b"', f'name = "{"b" * 65}"', "line 11: sites[1].name:"),
        ('name = "clinic-b"', 'name = "../b"', "line 11: sites[1].name:"),
        ('name = "clinic-b"', 'name = ""', "line 11: sites[1].name:"),
        ('organisation = "B"', 'organisation = "St. Mary"', "line 12: sites[1].organisation:"),
        ("id = 1", "id = -1", "line 13: sites[1].id:"),
        ("id = 1", "id = 4294967296", "line 13: sites[1].id:"),
        ("id = 1\n", "", "line 10: sites[1].id: is missing"),
        ("port = 8002", "port = 80020", "line 3: port:"),
        ('host = "fl.clinics.org"', 'host = "fl clinics"', "line 2: host:"),
        ('role = "lead"', 'role = "king"', "line 18: people[0].role:"),
        ('name = "anna@clinics.org"', 'name = "anna"', "line 16: people[0].name:"),
        ("port = 8002", "prot = 8002", "line 3: prot: no such key"),
        ("port = 8002", "port = ", "is not TOML"),
    ],
)
def test_a_mistake_in_a_federation_names_its_line(tmp_path, before, after, said):
    with pytest.raises(SpecError) as problem:
        federation(tmp_path, FEDERATION.replace(before, after))
    assert said in str(problem.value)
    assert "federation.toml" in str(problem.value)


def test_a_federation_needs_sites_and_people_one_role_each(tmp_path):
    with pytest.raises(SpecError, match="sites: is empty"):
        federation(tmp_path, 'name = "c"\nhost = "h"\nport = 1\nsites = []\n')
    twice = FEDERATION + FEDERATION[FEDERATION.index("[[people]]") :]
    with pytest.raises(SpecError, match=r"line 20: people\[1\].name.*twice"):
        federation(tmp_path, twice)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no federation\.toml"):
        read_federation(tmp_path / "federation.toml")
    (tmp_path / "site.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(SpecError, match="UTF-8"):
        read_site(tmp_path)


@pytest.mark.parametrize(
    ("place", "line"),
    [("port", 3), ("sites", 5), ("sites[1]", 10), ("sites[1].id", 13), ("people[0].name", 16), ("?", None)],
)
def test_lines_of_places(place, line):
    assert line_of(FEDERATION, place) == line


def test_the_template_is_a_sound_file_once_it_says_what_there_is(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(site_template("clinic-a", 3, "clinics"))
    with pytest.raises(SpecError, match="data: is empty"):
        read_site(tmp_path)
    letor_file(tmp_path / "train.txt")
    path.write_text(path.read_text().replace('# letor      = "train.txt"', 'letor = "train.txt"'))
    found = read_site(tmp_path)
    assert (found.name, found.id, found.federation) == ("clinic-a", 3, "clinics")
    assert found.data.letor == str(tmp_path / "train.txt")  # seen from the file, wherever somebody stands
    assert found.policy == Policy(learners=("pdgd",), largest_epsilon=8.0)
    assert read_site(path) == found


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('learners = ["krum"]', "policy.learners:"),
        ('placements = ["moon"]', "policy.placements:"),
        ('unit = "click"', "policy.unit:"),
        ("most_rounds = 0", "policy.most_rounds:"),
        ("largest_clip = 0", "policy.largest_clip:"),
        ("largest_rate = -0.1", "policy.largest_rate:"),
        ("largest_rate = nan", "policy.largest_rate:"),
        ('measures = ["ndcg@x"]', "policy.measures[0]:"),
        ('accept = "all"', "policy.accept:"),
        ("delta = 1", "policy.delta:"),
        ("largest_epsilon = 0", "policy.largest_epsilon:"),
        ("byoc = true", "policy.byoc: no such key"),
    ],
)
def test_a_policy_is_checked(tmp_path, line, said):
    letor_file(tmp_path / "train.txt")
    key = line.partition(" =")[0]
    policy = {"learners": 'learners = ["pdgd"]', "largest_epsilon": "largest_epsilon = 8.0"} | {key: line}
    text = 'name = "a"\nid = 0\nfederation = "f"\n[data]\nletor = "train.txt"\n[policy]\n' + "\n".join(policy.values())
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(SpecError) as problem:
        read_site(tmp_path)
    number = text.splitlines().index(line) + 1
    assert f"line {number}: {said}" in str(problem.value)


def test_a_policy_says_plainly_if_nothing_is_protected():
    assert "policy.largest_epsilon: is missing" in Policy(("pdgd",)).problems()[0]
    assert Policy(("pdgd",), unprotected=True).problems() == []
    assert Policy(("pdgd",), largest_epsilon=1.0).problems() == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (SiteData(letor="no.txt"), "data.letor: the file"),
        (SiteData(log="no"), "data.log: the folder"),
        (SiteData(letor="a", log="b"), "letor and log are both set"),
        (SiteData(letor="a", normalise="global"), 'data.normalise: "global" needs'),
        (SiteData(letor="a", normalise="querry"), 'did you mean "query"'),
        (SiteData(log="a", features=5), "data.features: applies only to a LETOR file"),
        (SiteData(log="a", person="patient"), "data.person:"),
        (SiteData(letor="a", person="a b"), "data.person:"),
        (SiteData(documents="a", test_share=0.2), "data.test_share: applies only to queries"),
        (SiteData(letor="a", names="no.txt"), "data.names: the file"),
    ],
)
def test_data_are_checked(data, said):
    assert any(said in line for line in data.problems())


def test_a_plan_that_fits_meets_no_objection():
    assert Policy(("pdgd",), largest_epsilon=50.0).objections(made_plan()) == []
    assert site_settings().objections(made_plan()) == []


@pytest.mark.parametrize(
    ("policy", "changes", "said"),
    [
        ({"learners": ("lambdarank",)}, {}, 'learner.name: "pdgd" is not in policy.learners = ["lambdarank"]'),
        ({"placements": ("secure-aggregation",)}, {}, 'mechanism.placement: "client" is not in policy.placements'),
        ({}, {"mechanism": NOISE | {"placement": "server"}}, 'mechanism.placement: "server" is not in policy.plac'),
        ({"most_rounds": 9}, {}, "rounds: 10 is more than policy.most_rounds = 9"),
        ({"largest_clip": 0.5}, {}, "mechanism.clip: 1 is more than policy.largest_clip = 0.5"),
        ({"largest_clip": 0.5, "unprotected": True}, {"mechanism": None}, "mechanism.clip: is missing"),
        ({"largest_rate": 0.05}, {}, "learner.rate: 0.1 is more than policy.largest_rate = 0.05"),
        ({"largest_epsilon": 0.01}, {}, "policy.largest_epsilon = 0.01 for all runs"),
        ({}, {"record_every": 2}, "record_every: 2 lets the coordinator store"),
        ({}, {"sites": 2}, "sites: 2 participate, but policy.min_sites = 3"),
        ({}, {"mechanism": None}, "mechanism: is missing"),
        ({}, {"mechanism": {"name": "fpdgd-paper", "epsilon": 1.2}, "learner": {"name": "pdgd", "clip_weights": 1.5}},
         "gives no guarantee against the server"),
        ({}, {"mechanism": SUM, "clients": {"count": 3, "participation": 0.7}}, "gives sums of 2 sites"),
        ({}, {"mechanism": NOISE | {"placement": {"name": "secure-aggregation", "sum": "ideal"}}},
         "mechanism.placement.sum:"),
        ({}, {"mechanism": NOISE | {"unit": "person"}, "clients": {"count": 3, "people": 4}},
         'mechanism.unit: "person" protects less than policy.unit = "site"'),
    ],
)  # fmt: skip
def test_objections_name_value_and_remedy(policy, changes, said):
    allowed = {"learners": ("pdgd",), "largest_epsilon": 50.0} | policy
    [found] = Policy(**allowed).objections(made_plan(**changes))
    assert said in found
    assert "; " in found  # what to do about it


def test_bounds_that_a_plan_keeps_or_that_do_not_apply():
    bounded = Policy(("pdgd", "evolution"), largest_epsilon=50.0, largest_clip=1.0, largest_rate=0.1)
    assert bounded.objections(made_plan()) == []
    rewards = made_plan(
        learner={"name": "evolution", "truth": 0.6}, mechanism={"name": "es-randomised-response"}, server="adam"
    )
    assert not any("largest_" in line and "epsilon" not in line for line in bounded.objections(rewards))


def test_what_belongs_to_a_simulation_is_refused_by_name():
    plan = made_plan(simulated=True, clients={"count": 3, "click_model": "navigational", "partition": {"name": "own"}})
    assert TRIAL.objections(plan) == []
    [not_for_people] = site_settings(TRIAL).objections(plan)
    assert "the plan is a trial on one machine" in not_for_people
    assert site_settings(TRIAL, simulated=True).objections(plan) == []
    real = replace(plan, simulated=False)
    found = OPEN.objections(real)
    assert [line.partition(":")[0] for line in found] == ["clients.partition", "clients.click_model"]


def test_an_attack_and_a_path_are_refused_by_name(tmp_path):
    plan = made_plan(simulated=True, attack={"name": "noise"}, clients={"count": 3, "malicious": 1}, mechanism=None)
    found = OPEN.objections(replace(plan, simulated=False))
    assert {line.partition(":")[0] for line in found} == {"clients.malicious", "attack"}
    with_path = replace(made_plan(), spec='start = "/etc/passwd"\n' + made_plan().spec)
    assert any("start:" in line and "names a path" in line for line in OPEN.objections(with_path))


def test_code_from_outside_is_refused():
    plan = made_plan()
    other = replace(plan, spec=plan.spec.replace('name = "mean"', 'name = "os:system"'))
    assert other.spec != plan.spec
    assert any("os:system" in line for line in OPEN.objections(other))


def test_a_person_may_be_protected_as_part_of_the_whole_site():
    policy = Policy(("pdgd",), unit="person", largest_epsilon=100.0)
    assert policy.objections(made_plan()) == []
    person = made_plan(mechanism=NOISE | {"unit": "person"}, clients={"count": 3, "people": 4})
    assert policy.objections(person) == []
    weak = experiment(
        mechanism=NOISE | {"unit": "interaction"},
        learner={"name": "pdgd", "batch": True, "clip_gradients": 1.0},
    )
    plan = made_plan(simulated=True)
    from fedrank.experiments.spec.experiment import to_toml

    found = policy.objections(replace(plan, spec=to_toml(weak)))
    assert any('"interaction" protects less than policy.unit = "person"' in line for line in found)


def test_a_site_knows_its_federation_its_name_and_its_id():
    plan = made_plan()
    assert "'clinics'" in site_settings().objections(replace(plan, federation="others"))[0]
    assert "'clinic-x' is not in the plan (clinic-a" in site_settings(name="clinic-x").objections(plan)[0]
    assert "id 0 for 'clinic-a', but site.toml has id = 7" in site_settings(id=7).objections(plan)[0]


def test_a_server_that_is_trusted_plainly_may_see_updates():
    plan = made_plan(mechanism=NOISE | {"placement": "server"})
    policy = Policy(("pdgd",), placements=("server",), largest_epsilon=50.0)
    assert policy.objections(plan) == []
    assert placement_of(plan.experiment.mechanism) == "server"
    costs = {one.guarantee.against: one.total for one in plan_prices(plan, 1e-5)}
    assert costs["server"] == float("inf")
    assert 0 < costs["public"] < 50
    some = made_plan(sites=4, mechanism=NOISE | {"placement": "server"}, clients={"count": 4, "participation": 0.5})
    asked = {one.guarantee.against: one for one in plan_prices(some, 1e-5)}
    assert asked["public"].guarantee.event.sampling == 1.0  # a site counts on no draw that it does not make
    less = Policy(("pdgd",), placements=("server",), largest_epsilon=costs["public"] / 2)
    assert "this run alone would cost" in less.objections(plan)[0]


def test_the_template_of_a_site_lists_every_learner():
    text = site_template("clinic-a", 0, "trial")
    assert all(f'"{name}"' in text for name in EVERY_LEARNER)
    assert "{" not in text
