"""Specs: what is read, what is refused and how it is said, and that every built-in one runs."""

from __future__ import annotations

import copy
import dataclasses
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.data.catalog import available
from fedrank.data.synthetic import synthetic
from fedrank.experiments.report.write import write_report
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.experiment import SpecError, to_toml
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.sections import DataSpec
from fedrank.experiments.spec.source import builtin_specs, read_experiment, read_spec
from fedrank.federated.aggregators import Apart
from fedrank.ranking.click_models import CLICK_MODELS, ClickModel
from fedrank.ranking.learners import LambdaRank, Pdgd
from fedrank.toml import parse_override, put
from fedrank.trees.split_folder import letor_lines
from tests import needs
from tests.made_up import made_up_log

SMALL = {
    "rounds": 3,
    "data": {"name": "synthetic-mq2007"},
    "clients": {"count": 3},
    "learner": {"name": "pdgd", "batch": True},
}


def tables(*overrides, **top):
    found = copy.deepcopy(SMALL) | top
    for override in overrides:
        put(found, *parse_override(override))
    return found


def problems(*overrides, **top):
    with pytest.raises(SpecError) as caught:
        read_tables(tables(*overrides, **top))
    return caught.value.problems


MISTAKES = [
    ("aggregator.name=maen", "aggregator.name: unknown aggregator 'maen'; did you mean \"mean\"?"),
    ("aggregator=maen", "aggregator.name: unknown aggregator 'maen'; did you mean \"mean\"?"),
    ("aggregator=3", 'aggregator: 3 is not a method; write a table such as { name = "mean" }'),
    ("rond=3", 'rond: no such key; did you mean "rounds"?'),
    ("clients.cuont=3", 'clients.cuont: no such key; did you mean "count"?'),
    ("learner.rat=3", 'learner.rat: no such setting of pdgd; did you mean "rate"?'),
    ('rounds="3"', 'rounds: "3" cannot be used; give an integer'),
    ("rounds=true", "rounds: true cannot be used; give an integer"),
    ("rounds=2.5", "rounds: 2.5 cannot be used; give an integer"),
    ("rounds=0", "rounds: 0 cannot be used; give 1 or more"),
    ("kind=tree", 'kind: "tree" cannot be used; did you mean "trees"?'),
    ("title=3", "title: 3 cannot be used; give text in quotes"),
    ("data=3", "data: 3 is not a table; write [data]"),
    ("data.name=mq2009", "data.name: unknown data set 'mq2009'; did you mean \"mq2008\"?"),
    ("data.folds=[1, 9]", "data.folds: fold 9 does not exist; synthetic-mq2007 has folds 1 to 5"),
    ("data.folds=[0]", "data.folds[0]: 0 cannot be used; give 1 or more"),
    ("data.folds=[2, 2]", "data.folds: 2 is listed twice; list each value once"),
    ("data.folds=1", "data.folds: 1 cannot be used; give a list in brackets"),
    ("data.folds=[]", "data.folds: [] cannot be used; list at least 1"),
    ("data.normalise=queri", "data.normalise: unknown normalisation 'queri'; did you mean \"query\"?"),
    ("data.train=x.txt", "data: has both a name and files; remove name, or train"),
    (
        "data={}",
        "data: give a name of the catalog (`fedrank data list`), files (train and test), a log, or a collection",
    ),
    ("seeds=[1, 1]", "seeds: 1 is listed twice; list each value once"),
    ("seeds=7", "seeds: 7 cannot be used; give a list in brackets"),
    ("seeds=[1.5]", "seeds[0]: 1.5 cannot be used; give an integer"),
    ("measures=[]", "measures: [] cannot be used; list at least 1"),
    ('measures=["ndcg@10", "ndcg@10"]', 'measures: "ndcg@10" is listed twice; list each value once'),
    (
        'measures=["ndcg@10 by union"]',
        "measures: 'ndcg@10 by union' needs judgements by intent, which this data set does not have; remove it, or use "
        'data.name = "synthetic-intents"',
    ),
    ("clients.click_model=perfekt", "clients.click_model: unknown click model 'perfekt'; did you mean \"perfect\"?"),
    (
        'clients.click_model=["perfect", "poisson"]',
        "clients.click_model: unknown click model 'poisson'; did you mean \"poison\"?",
    ),
    ('clients.click_model=["perfect", 3]', "clients.click_model[1]: 3 cannot be used; give text in quotes"),
    (
        "clients.click_model={click=[0.0, 1.0]}",
        "clients.click_model: { click = [0.0, 1.0] } is not a click model; write { click = [...], stop = [...] } "
        "with a "
        'probability for each relevance label (attention_decay = 1.0 is optional), or { name = "module:Class" } for '
        "your own class",
    ),
    (
        "clients.click_model={click=[0.0, 1.0], stop=[0.0]}",
        "clients.click_model: 2 click and 1 stop probabilities; give one of each per relevance label",
    ),
    (
        "clients.click_model={click=[0.0, 'a'], stop=[0.0, 0.0]}",
        'clients.click_model.click[1]: "a" cannot be used; give a number',
    ),
    ("clients.interactions=[5, 0]", "clients.interactions[1]: 0 cannot be used; give 1 or more"),
    ("clients.participation=0", "clients.participation: 0 cannot be used; give more than 0"),
    ("clients.participation=1.5", "clients.participation: 1.5 cannot be used; give 1 or less"),
    ("clients.malicious=2", "clients.malicious: 2 of 3 clients are malicious; fewer than half of the clients can be"),
    (
        "clients.malicious=1",
        'clients.malicious: is 1, but no attack is set; use 0, or set an attack such as { name = "poisoned-clicks" }',
    ),
    ("start=nowhere", 'start: nowhere is not a model; give a model.json, the folder of a finished run, or "given"'),
    ("baseline=other", "baseline: unknown variant 'other'; there is \"only\""),
    ("vary=3", "vary: 3 is not a table; write [vary]"),
    ("vary.rounds=3", "vary.rounds: 3 cannot be used; list the values to compare in brackets"),
    ("vary.rounds=[]", "vary.rounds: [] cannot be used; list the values to compare in brackets"),
    ("vary.rounds=[2, 3, 2]", "vary.rounds: 2 is listed twice; list each value once"),
    ("vary.rounds=[0]", "vary: rounds: 0 cannot be used; give 1 or more"),
    ("vary.ruonds=[1, 2]", 'vary: ruonds: no such key; did you mean "rounds"?'),
    ("vary.seeds=[[1], [2]]", "vary: seeds: must be the same for all variants; set it at the top level"),
    ("vary.data.folds=[[1], [2]]", "vary: data.folds: must be the same for all variants; set it at the top level"),
    ("vary.rounds.x=[1]", "vary: rounds: 3 has no settings, so rounds.x cannot be set"),
    ("variants=3", "variants: 3 is not a table; write [variants.NAME]"),
    ("variants.a=3", "variants.a: 3 is not a table with a name; write [variants.a]"),
    (
        "variants.a.vary.rounds=[1]",
        "variants.a: vary.rounds: must be the same for all variants; set it at the top level",
    ),
    ("variants.a.learner.rate=true", "variants.a: learner.rate: true cannot be used; give a number"),
    ("published=3", "published: 3 is not a list of tables; write [[published]]"),
    ("published=[3]", "published[0]: 3 is not a table; write [published[0]]"),
    (
        'published=[{measure="online", value=0.5}]',
        'published[0].source: is missing; write source = "Wang et al. 2021, Table 3"',
    ),
    ("claims=3", "claims: 3 is not a list of tables; write [[claims]]"),
    (
        'claims=[{says="so", higher="only", lower="onyl"}]',
        "claims[0].lower: unknown variant 'onyl'; did you mean \"only\"?",
    ),
    (
        'claims=[{says="so", higher="only", lower="only", measure="onlin"}]',
        "claims[0].measure: 'onlin' is not in measures; did you mean \"online\"?",
    ),
    (
        'claims=[{says="so", higher="only", lower="only", measure="mrr@10"}]',
        'claims[0].measure: \'mrr@10\' is not in measures; there is "ndcg@10", "online", "online_sum", "reward"',
    ),
]


@pytest.mark.parametrize(("override", "message"), MISTAKES, ids=[override for override, _ in MISTAKES])
def test_a_mistake_names_its_place_its_value_and_the_remedy(override, message):
    assert problems(override) == [message]


def test_all_mistakes_are_reported_together():
    found = problems(
        "rounds=x", "kindd=3", "data.name=foo", "clients.count=0", "clients.click_model=bob", "learner.rat=3",
        "learner.ranker=mpl", 'measures=["ndgc"]', "vary.titel=['a', 'b']", "variants.v.sedes=[1]", "baseline=w",
    )  # fmt: skip
    places = [
        "rounds",
        "data.name",
        "clients.count",
        "clients.click_model",
        "learner.rat",
        "learner.ranker.name",
        "measures[0]",
    ]
    places += ["kindd", "vary", "variants.v", "baseline"]
    assert sorted(line.partition(": ")[0] for line in found) == sorted(places)


def test_what_is_missing_is_said_with_an_example():
    with pytest.raises(SpecError) as caught:
        read_tables({"title": "nothing else"})
    assert caught.value.problems == [
        "rounds: is missing; write rounds = 1000",
        'data: is missing; write [data] with name = "synthetic-mq2007"',
        "clients: is missing; write [clients] with count = 10",
        'learner: is missing; write [learner] with name = "pdgd"',
    ]
    assert problems("clients={}") == ["clients.count: is missing; write count = 10"]


def test_settings_of_a_method_without_a_name():
    assert problems("learner.ranker.start_norm=3") == [
        'learner.ranker.name: is missing; start_norm can be set for "linear"'
    ]
    assert problems("aggregator.weighted=true")[0].startswith("aggregator.name: is missing; weighted can be set for")


def test_a_new_name_that_meets_old_settings_says_how_to_leave_them_behind():
    (line,) = problems('variants.sky."learner.name"=lambdarank')
    start, end = "variants.sky: learner.batch: no such setting of lambdarank; ", 'learner = { name = "lambdarank" }'
    assert line.startswith(start)
    assert line.endswith(f"to discard the settings of the previous method, replace the whole table: {end}")
    (line,) = problems('vary."learner.name"=["pdgd", "lambdarank"]')
    assert line.startswith("vary: learner.batch: no such setting of lambdarank")
    assert line.endswith(end)
    experiment = read_tables(tables(f"variants.sky={{ {end} }}"))
    assert experiment.variants[0].experiment.learner == LambdaRank()


def test_a_mistake_of_the_base_is_not_repeated_for_every_variant():
    assert problems("clients.count=0", "vary.rounds=[1, 2]") == ["clients.count: 0 cannot be used; give 1 or more"]


def test_a_key_in_a_variant_and_in_vary():
    found = problems("variants.a.rounds=5", "vary.rounds=[1, 2]")
    assert found == ["variants.a: rounds: is set here and in [vary]; keep one of them"]


def test_whole_numbers_are_fine_where_numbers_are_asked_for():
    experiment = read_tables(tables("clients.participation=1", "learner.rate=1")).base
    assert repr(experiment.clients.participation) == repr(experiment.learner.rate) == "1.0"


def test_users_by_name_as_a_list_and_as_own_tables():
    assert read_tables(tables("clients.click_model=poison")).base.clients.click_models == ["poison"]
    everybody = read_tables(SMALL | {"clients": {"count": 3, "click_model": list(CLICK_MODELS)}})
    assert everybody.base.clients.click_models == list(CLICK_MODELS)
    own = read_tables(tables("clients.click_model={click=[0, 0.5, 1], stop=[0, 0, 1], attention_decay=1}"))
    assert own.base.clients.click_models == [ClickModel((0.0, 0.5, 1.0), (0.0, 0.0, 1.0), 1.0)]


def test_variants_times_combinations():
    experiment = read_tables(
        tables(
            "clients.click_model=perfect",
            'variants={one={"clients.count"=1}, two={clients={count=2}}}',
            "vary.learner.rate=[0.1, 1]",
            'vary.aggregator=[{name="mean", weighted=false}, "none"]',
            "baseline='two,learner.rate=1,aggregator=none'",
        )
    )
    variants = experiment.variants
    assert [variant.name for variant in variants] == [
        f"{name},learner.rate={rate},aggregator={aggregator}"
        for name in ("one", "two")
        for rate in (0.1, 1)
        for aggregator in ("mean-weighted-false", "none")
    ]
    last = variants[-1]
    assert last.settings == {"variants": "two", "learner.rate": 1, "aggregator": "none"}
    assert last.experiment.clients.count == 2
    assert last.experiment.learner == Pdgd(rate=1.0, batch=True)
    assert last.experiment.aggregator == Apart()


def test_a_change_of_a_user_replaces_its_tables_and_one_of_data_does_not():
    own = {"click": [0.0, 0.0, 1.0], "stop": [0.0, 0.0, 0.0]}
    experiment = read_tables(
        tables(
            "data.folds=[1, 2]", variants={"own": {"clients": {"click_model": own}, "data": {"name": "synthetic-mslr"}}}
        )
    )
    [variant] = experiment.variants
    assert variant.experiment.clients.click_model == own
    assert (variant.experiment.data.name, variant.experiment.data.folds) == ("synthetic-mslr", (1, 2))


def names_of(*names):
    return [variant.name for variant in read_tables(tables(variants={name: {} for name in names})).variants]


def test_folder_names_by_hand():
    assert names_of("plain", "größer", "a b/c") == ["plain", "größer", "a-b-c"]
    assert names_of("../x", "..", "/etc") == ["x", "variant", "etc"]
    assert [variant.name for variant in read_tables(SMALL).variants] == ["only"]


def test_folder_names_do_not_depend_on_the_order():
    one, other = names_of("a b", "a/b"), names_of("a/b", "a b")
    assert one == other[::-1]
    assert len({name.casefold() for name in names_of("A", "a")}) == 2


labels = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=200), min_size=1, max_size=6, unique=True)


@settings(max_examples=20, deadline=None)
@given(labels)
def test_folder_names_are_unique_safe_and_stable(given_names):
    found = names_of(*given_names)
    assert len({name.casefold() for name in found}) == len(given_names)
    for name in found:
        assert re.fullmatch(r"[\w=,+-][\w.=,+-]*", name)
        assert not name.endswith(".")
        assert len(name.encode()) <= 120
    assert names_of(*given_names) == found


@pytest.mark.parametrize("name", builtin_specs())
def test_built_in_specs_survive_toml_and_back(name):
    experiment = read_spec(name)
    assert read_tables(tomllib.loads(experiment.toml())) == experiment
    for variant in experiment.variants:
        single = variant.experiment.single(1, 7)
        again = read_tables(tomllib.loads(to_toml(single))).base
        assert again == single
        assert again.repeats() == [(1, 7)]


rates = st.floats(1e-6, 1e6)
learners = st.one_of(
    st.sampled_from(["pdgd", "lambdarank"]),
    st.fixed_dictionaries(
        {"name": st.just("pdgd")},
        optional={
            "rate": rates,
            "batch": st.booleans(),
            "ranker": st.fixed_dictionaries({"name": st.just("mlp"), "hidden": st.integers(1, 99)}),
        },
    ),
)
probabilities = st.lists(st.floats(0, 1), min_size=3, max_size=3)
made_up = st.fixed_dictionaries(
    {
        "rounds": st.integers(1, 10**9),
        "data": st.fixed_dictionaries(
            {"name": st.just("synthetic-mslr")},
            optional={"folds": st.lists(st.integers(1, 5), min_size=1, unique=True), "normalise": st.just("query")},
        ),
        "clients": st.fixed_dictionaries(
            {"count": st.integers(1, 10**6)},
            optional={
                "click_model": st.one_of(
                    st.sampled_from(list(CLICK_MODELS)),
                    st.lists(st.sampled_from(list(CLICK_MODELS)), min_size=1, max_size=3),
                    st.fixed_dictionaries({"click": probabilities, "stop": probabilities}),
                ),
                "interactions": st.one_of(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=1, max_size=3)),
                "participation": st.floats(0.01, 1),
                "partition": st.sampled_from(["iid", {"name": "own"}]),
            },
        ),
        "learner": learners,
    },
    optional={
        "title": st.text(st.characters(codec="utf-8"), max_size=9),
        "seeds": st.lists(st.integers(-9, 2**63 - 1), min_size=1, max_size=3, unique=True),
        "vary": st.dictionaries(st.just("learner.rate"), st.lists(rates, min_size=1, max_size=2, unique=True)),
        "variants": st.dictionaries(
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=5),
            st.dictionaries(st.just("clients.count"), st.integers(1, 9)),
            max_size=2,
        ),
        "published": st.lists(
            st.fixed_dictionaries({"measure": st.just("online"), "value": rates, "source": st.just("here")}), max_size=2
        ),
    },
)


@settings(max_examples=40, deadline=None)
@given(made_up)
def test_made_up_experiments_survive_toml_and_back(given_tables):
    grid = read_tables(given_tables)
    assert read_tables(tomllib.loads(grid.toml())) == grid
    for variant in grid.variants:
        written = to_toml(variant.experiment)
        again = read_tables(tomllib.loads(written)).base
        assert (again, to_toml(again)) == (variant.experiment, written)
    rates = given_tables.get("vary", {}).get("learner.rate", [None])
    assert len(grid.variants) == max(1, len(given_tables.get("variants", {}))) * len(rates)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


SPEC = """
rounds = 3
data.name = "synthetic-mq2007"
clients.count = 3
learner = "pdgd"
"""


def said(source, *overrides):
    with pytest.raises((SpecError, OSError, ValueError)) as caught:
        read_experiment(source, overrides)
    return str(caught.value)


def test_a_file_and_overrides(tmp_path):
    file = write(tmp_path / "my.toml", "\ufeff" + SPEC)
    experiment = read_experiment(file, ["rounds=5", "learner.rate=0.5", 'vary."clients.count"=[1, 2]'])
    assert (experiment.base.rounds, experiment.base.learner) == (5, Pdgd(rate=0.5))
    assert [variant.experiment.clients.count for variant in experiment.variants] == [1, 2]


def test_overrides_of_what_is_varied_need_no_quotes(tmp_path):
    file = write(tmp_path / "my.toml", SPEC + '[vary]\n"learner.rate" = [0.1, 0.2]\n')
    for override in ("vary.learner.rate=[0.3]", 'vary."learner.rate"=[0.3]', "vary={learner.rate=[0.3]}"):
        assert read_experiment(file, [override]).about.vary == {"learner.rate": [0.3]}


def test_files_that_cannot_be_read(tmp_path):
    missing = tmp_path / "no.toml"
    assert said(missing) == f"spec {missing} does not exist; write one with `fedrank new {missing}`"
    assert said(tmp_path) == f"{tmp_path} is a folder; give a TOML file, or a built-in experiment such as quickstart"
    empty = write(tmp_path / "empty.toml", "# nothing\n")
    assert said(empty) == f"{empty}: is empty; create one with `fedrank new FILE`"
    broken = write(tmp_path / "broken.toml", "rounds = 3\nseeds = [1,\n")
    assert said(broken).startswith(f"{broken}: is not TOML: ")
    write(broken, "rounds = 3\nseeds = = 1\n")
    assert said(broken).endswith("(at line 2, column 9): seeds = = 1")
    wrong = write(tmp_path / "wrong.toml", "rounds = 3\nrounds 4\n")
    assert "(at line 2, column 8)" in said(wrong)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\x00\xff\xfe\x80")
    assert said(binary) == f"{binary}: is not text in UTF-8; a spec is a TOML file"
    assert said("quickstrat") == "'quickstrat' is not a file or a built-in experiment; did you mean \"quickstart\"?"


def test_mistakes_name_the_file_and_what_was_set(tmp_path):
    file = write(tmp_path / "my.toml", SPEC + "clients.click_model = 'bob'\n")
    first = said(file, "rounds=0").splitlines()
    assert [line.partition(": ")[0] for line in first] == [str(file)] * 2
    assert said(file, "rounds") == "'rounds' is not a setting; write key=value, such as rounds=100"
    settled = write(tmp_path / "batch.toml", SPEC.replace('"pdgd"', '{ name = "pdgd", batch = true }'))
    assert said(settled, "learner.name=lambdarank").endswith(
        'replace the whole table: learner = { name = "lambdarank" }'
    )
    assert read_experiment(settled, ['learner={ name = "lambdarank" }']).base.learner == LambdaRank()


def test_files_lie_where_the_spec_lies_and_those_of_overrides_where_the_user_is(tmp_path, monkeypatch):
    for name in ("a.txt", "b.txt", "c.txt"):
        write(tmp_path / name, "1 qid:1 1:1\n")
    text = SPEC.replace('data.name = "synthetic-mq2007"', 'data = { train = "a.txt", test = "b.txt" }')
    file = write(
        tmp_path / "my.toml", text + '[variants.c]\n"data.test" = "c.txt"\n[vary]\ndata.train = ["a.txt", "c.txt"]'
    )
    experiment = read_experiment(file)
    assert experiment.base.data.train == str(tmp_path / "a.txt")
    trained = [(variant.experiment.data.train, variant.experiment.data.test) for variant in experiment.variants]
    assert trained == [(str(tmp_path / name), str(tmp_path / "c.txt")) for name in ("a.txt", "c.txt")]
    monkeypatch.chdir(tmp_path.parent)
    given = f"data.validation={tmp_path.name}/a.txt"
    assert read_experiment(file, [given]).base.data.validation == str(tmp_path / "a.txt")
    (tmp_path / "b.txt").unlink()
    assert said(file) == f"{file}: data.test: file {tmp_path / 'b.txt'} does not exist"
    folds = "data.folds: fold 2 does not exist; files have only fold 1"
    assert said(file, "data.folds=[2]").splitlines()[-1] == f"{file}: {folds}"


@pytest.mark.process
def test_reading_a_spec_needs_neither_numba_nor_matplotlib():
    code = (
        "import sys; from fedrank.experiments.spec.source import read_experiment; read_experiment('quickstart'); "
        "print(*sorted({'numba', 'matplotlib', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


HERE = {entry.name for entry, folder in available() if folder is not None or entry.layout == "built-in"}


def short_lists(folder: Path) -> dict[str, str]:
    """Files of a few queries that trees can learn from."""
    data = synthetic("mq2007", 30)
    (folder / "short.txt").write_text("".join(letor_lines(data)))
    return dict.fromkeys(("train", "validation", "test"), str(folder / "short.txt"))


@pytest.mark.long
@pytest.mark.parametrize("name", builtin_specs())
def test_every_built_in_spec_runs_for_two_rounds(name, tmp_path):
    asked = read_spec(name, quick=bool(read_spec(name).about.quick))  # small forms need no data of ours
    for i, variant in enumerate(asked.variants[:2]):
        few = dataclasses.replace(variant.experiment.single(1, 1), evaluate_every=1)
        if getattr(few.data, "log", None) is not None:
            log = made_up_log(tmp_path / f"log-{i}", [entry % 120 for entry in range(1500)])
            few = dataclasses.replace(few, data=dataclasses.replace(few.data, log=str(log)))
            few = dataclasses.replace(few, clients=dataclasses.replace(few.clients, interactions=2))
        try:
            few.data.require()
        except FileNotFoundError as reason:
            needs.skip("data", str(reason))
        if few.kind == "trees":
            few = dataclasses.replace(few, booster=dataclasses.replace(few.booster, trees=2), tune=min(few.tune, 2))
            if few.data.name in (
                "synthetic-istella-x",
                "synthetic-istella-xl",
            ):  # of half a million documents and more
                few = dataclasses.replace(few, data=dataclasses.replace(few.data, name=None, **short_lists(tmp_path)))
        else:
            few = dataclasses.replace(few, rounds=2)
        if few.kind == "federated" and few.clients.count > 50:
            few = dataclasses.replace(few, clients=dataclasses.replace(few.clients, count=10))
        results = run_experiment(few, f"part-{i}", tmp_path)
        assert not results.failed, results.failed
        assert len(results.finished) == 1
        report = write_report(load_runs(tmp_path / f"part-{i}"), tmp_path / f"{i}.md")
        assert few.measures[0].partition("@")[0] in report.read_text(encoding="utf-8").lower()


def test_setting_a_varied_key_is_refused(tmp_path):
    file = tmp_path / "spec.toml"
    file.write_text(
        'rounds = 5\ndata = { name = "synthetic-mq2007" }\nclients = { count = 2 }\nlearner = { name = "pdgd" }\n'
        '[vary]\n"learner.rate" = [0.1, 0.2]\n'
    )
    with pytest.raises(SpecError, match=r"learner.rate: is varied.*set vary.learner.rate=\[...\] instead"):
        read_experiment(file, ["learner.rate=5"])
    assert [v.name for v in read_experiment(file, ["vary.learner.rate=[5.0]"]).variants] == ["learner.rate=5.0"]
    file.write_text(file.read_text() + '"learner" = [{ name = "pdgd" }]\n')
    with pytest.raises(SpecError, match="learner is varied as a whole already"):
        read_experiment(file)


def test_spec_errors_survive_a_trip_between_processes():
    import copy

    problem = SpecError(["a: wrong", "b: wrong"], "x.toml")
    assert str(copy.copy(problem)) == str(problem) == "x.toml: a: wrong\nx.toml: b: wrong"
    # What a pickle does, without one: rebuild from the class and its arguments.
    assert str(type(problem)(*problem.args)) == str(problem)


def test_named_variants_that_vary_keep_their_names(tmp_path):
    names = [variant.settings for variant in read_experiment("thesis/mq2008-fpdgd").variants]
    assert names[0] == {"variants": "fpdgd", "clients.click_model": "perfect"}
    assert names[-1] == {"variants": "pdgd", "clients.click_model": "informational"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (['aggregator={name="none"}', "local=scaffold"], "needs a shared model"),
        (['aggregator={name="none"}', 'server={name="adam"}'], "works if every client has its own model"),
        (
            ['learner={name="evolution"}', "fine_tune=5", 'server={name="adam"}'],
            "fine_tune: evolution needs many clients",
        ),
        (
            ['learner={name="evolution"}', "clients.interactions=1", 'server={name="adam"}'],
            "evolution needs at least 2 interactions",
        ),
        (['learner={name="evolution"}'], "steps of evolution are far too large"),
    ],
)
def test_methods_that_do_not_go_together_are_refused_before_anything_runs(changes, message):
    with pytest.raises(SpecError, match=message):
        read_tables(tables(*changes))


CLAIMING = """
rounds = 3
learner = "pdgd"
measures = ["ndcg@10", "mrr@10"]
data = { name = "synthetic-mq2007" }
clients = { count = 3 }
vary = { rounds = [1, 2, 3] }
[[claims]]
says = "two beat one"
higher = "rounds=2"
lower = "rounds=1"
[[claims]]
says = "three beat one"
higher = "rounds=3"
lower = "rounds=1"
measure = "mrr@10"
"""


@pytest.mark.parametrize(
    ("quick", "said"),
    [
        ("", []),
        ("[quick]\nseeds = [7]\n", ["two beat one", "three beat one"]),
        ("[quick]\nvary = { rounds = [1, 2] }\n", ["two beat one"]),
        ('[quick]\nmeasures = ["ndcg@10"]\n', ["two beat one"]),
    ],
)
def test_a_quick_form_keeps_every_claim_that_it_can_test(tmp_path, quick, said):
    path = tmp_path / "mine.toml"
    path.write_text(CLAIMING + quick)
    if not quick:
        with pytest.raises(SpecError, match=r"has no quick form; run it as it is, or give it a \[quick\] table"):
            read_spec(path, quick=True)
        return
    asked = read_spec(path, quick=True)
    assert [claim.says for claim in asked.about.claims] == said
    assert asked.title == "(quick form)"


def test_a_measure_that_is_left_out_takes_its_claims_along(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(CLAIMING)
    assert [claim.says for claim in read_spec(path, ['measures=["ndcg@10"]']).about.claims] == ["two beat one"]
    assert [claim.says for claim in read_spec(path, ["vary.rounds=[1, 3]"]).about.claims] == ["three beat one"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("quick = 3\n" + CLAIMING, "quick: 3 is not a table; write [quick]"),
        (CLAIMING + "[quick]\nvariants = 3\n", "quick.variants: 3 is not a list"),
        (CLAIMING + '[quick]\nvariants = ["a"]\n', "quick.variants: unknown variant 'a'"),
        (CLAIMING.replace("[[claims]]", "[[clams]]") + '[quick]\nclaims = "so"\n', 'claims: "so" is not a list'),
        (CLAIMING.replace("[[claims]]", "[[clams]]") + '[quick]\nclaims = ["so"]\n', 'claims[0]: "so" is not a table'),
    ],
)
def test_mistakes_in_a_quick_form_are_told_like_others(tmp_path, text, said):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_spec(path, quick=True)
    assert said in str(caught.value)


def test_a_file_of_very_many_features_has_to_say_so(tmp_path):
    file = tmp_path / "wide.txt"
    file.write_text("1 qid:1 1:1 20000:1\n0 qid:1 1:2\n")
    tables = {"train": str(file), "test": str(file)}
    with pytest.raises(ValueError, match=r"feature 20000 is above 10,000.*data.features = 20000"):
        load_fold(DataSpec(**tables), 1)
    assert load_fold(DataSpec(**tables, features=20_000), 1).train.features.shape == (2, 20_000)
    assert any("data.features" in line for line in DataSpec(name="mq2008", features=5).problems())


def test_setting_what_a_variant_sets_is_not_lost_silently(tmp_path):
    file = tmp_path / "spec.toml"
    file.write_text(
        'rounds = 5\ndata = { name = "synthetic-mq2007" }\nclients = { count = 3 }\nlearner = { name = "pdgd" '
        '}\nmechanism = { name = "gaussian", clip = 1.0, noise = 1.0 }\n[variants.a]\n[variants.b]\nmechanism = { '
        'name = "gaussian", clip = 2.0, noise = 2.0 }\nrounds = 7\n'
    )

    def noises(*overrides):
        return [variant.experiment.mechanism.noise for variant in read_experiment(file, overrides).variants]

    lost = r"mechanism.noise: variants.b replaces mechanism as a whole.* also set variants.b.mechanism.noise"
    with pytest.raises(SpecError, match=lost):
        noises("mechanism.noise=4.0")
    with pytest.raises(SpecError, match=r"rounds: variants.b sets rounds, so this has no effect there"):
        noises("rounds=6")
    assert noises("mechanism.noise=4.0", "variants.b.mechanism.noise=4.0") == [4.0, 4.0]
    assert noises("variants.b.mechanism.noise=4.0") == [1.0, 4.0]
    assert noises("learner.rate=0.5") == [1.0, 2.0]
    file.write_text(file.read_text() + '[vary]\nlearner = [{ name = "pdgd" }, { name = "pdgd", rate = 0.2 }]\n')
    with pytest.raises(SpecError, match=r"learner.rate: learner is varied as a whole.* set vary.learner=\[...\]"):
        noises("learner.rate=0.5")
