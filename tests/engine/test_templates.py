"""What is written for engines: against their documented formats, and that no name can become a command."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from fedrank.data.engine_features import NAMED, NAMES, EngineFeatures
from fedrank.engine.templates import (
    ENGINES,
    EngineSetup,
    curl_lines,
    feature_set,
    index_settings,
    logging_query,
    rescore_query,
    write_engine_files,
)
from tests.engine.schema import problems

ENGLISH = EngineFeatures("english")
FULL = {"changed": "updated", "popularity": "sold", "title": "name", "body": "text.main"}
NASTY = ["a'b", 'a"b', "a b", "a;rm -rf", "$(x)", "`x`", "a\nb", "../x", "a}b", "{!x}", "", "ä", "a&b=c", "-x"]


def setups():
    for to in ENGINES:
        yield EngineSetup(to)
        yield EngineSetup(to, ENGLISH, index="products", model="m-1", **FULL)
    yield EngineSetup("opensearch", bm25="legacy")


@pytest.mark.parametrize("setup", list(setups()), ids=lambda setup: f"{setup.to}-{setup.name}-{setup.bm25}")
def test_what_is_written_fits_the_documented_formats(setup, tmp_path):
    solr = setup.to == "solr"
    written = {path.name: path for path in write_engine_files(setup, tmp_path)}
    assert sorted(written) == ["README.md", "features.json", "index.json", "log-query.json", "rescore-query.json"]
    schemas = {
        "features.json": "solr-features" if solr else "featureset",
        "index.json": "solr-schema" if solr else "index",
        "log-query.json": "solr-query" if solr else "search",
        "rescore-query.json": "solr-query" if solr else "search",
    }
    for name, schema in schemas.items():
        assert problems(schema, json.loads(written[name].read_text())) == []
    readme = written["README.md"].read_text()
    assert all(line in readme for line in curl_lines(setup).values())
    assert all(f"| {name} |" in readme for name in NAMES)


def test_a_schema_finds_mistakes():
    good = feature_set(EngineSetup("opensearch"))
    good["featureset"]["features"][0]["template"] = {"match": {"title": {"query": "{{keywords}}", "bost": 1}}}
    assert "bost" in problems("featureset", good)[0]
    assert problems("search", {"size": 0, "query": {}, "ext": {}})
    assert problems("solr-features", [{"name": "a b", "class": "x", "params": {}}])


def test_features_stand_in_their_order_under_their_names():
    for to in ENGINES:
        written = feature_set(EngineSetup(to))
        features = written if to == "solr" else written["featureset"]["features"]
        assert tuple(feature["name"] for feature in features) == NAMES


def test_a_field_that_is_not_there_makes_a_feature_zero():
    plain, full = (feature_set(EngineSetup("opensearch", **more))["featureset"]["features"] for more in ({}, FULL))
    for number, feature in enumerate(NAMED):
        nothing = feature.kind in ("recency", "popularity")
        assert (plain[number]["template"] == {"match_none": {}}) == nothing
        assert full[number]["template"] != {"match_none": {}}
    assert [feature["params"] for feature in plain[-3:]] == [[], [], []]
    assert [feature["params"] for feature in full[-3:]] == [["time"], ["time"], []]


def test_bm25_of_elasticsearch_is_divided_by_its_factor():
    boosts = {
        to: feature_set(EngineSetup(to))["featureset"]["features"][0]["template"]["match"]["title"].get("boost")
        for to in ("opensearch", "elasticsearch")
    }
    assert boosts["opensearch"] is None
    assert boosts["elasticsearch"] * 2.2 == pytest.approx(1.0)


def test_what_somebody_types_stays_a_parameter():
    typed = "x\"} {!func}1 ' ${jndi} {{#a}} $(id)"
    for to in ("opensearch", "elasticsearch"):
        for query in (logging_query(EngineSetup(to), typed, ["1"]), rescore_query(EngineSetup(to), typed)):
            assert problems("search", query) == []
            assert json.dumps(typed)[1:-1] in json.dumps(query)
    for query in (logging_query(EngineSetup("solr"), typed, ["1"]), rescore_query(EngineSetup("solr"), typed)):
        assert problems("solr-query", query) == []
        assert query["params"]["keywords"] == "x func 1 jndi a id"


def test_ids_that_solr_could_not_tell_apart_are_refused():
    query = logging_query(EngineSetup("solr"), "x", ["a,b", "c d"], query_id="q1")
    assert query["params"]["ids"].split(query["params"]["between"]) == ["a,b", "c d"]
    assert query["params"]["query_id"] == "q1"
    with pytest.raises(ValueError, match="remove it"):
        logging_query(EngineSetup("solr"), "x", ["a\x1fb"])


def test_features_of_the_engine_s_best_in_its_order():
    query = logging_query(EngineSetup("opensearch"), "red shoes")
    assert problems("search", query) == []
    assert query["query"]["bool"]["must"] == [{"match": {"all": {"query": "red shoes"}}}]
    query = logging_query(EngineSetup("solr"), "red shoes", query_id="q")
    assert problems("solr-query", query) == []
    assert "ids" not in query["params"]


def test_the_time_of_a_search():
    query = logging_query(EngineSetup("opensearch"), "x", ["1"], 1_700_000_000.25)
    assert query["query"]["bool"]["filter"][1]["sltr"]["params"]["time"] == "2023-11-14T22:13:20.250Z"


@pytest.mark.parametrize("value", NASTY)
@pytest.mark.parametrize("name", ["index", "model", "title", "all", "changed", "url"])
def test_names_that_mean_something_elsewhere_are_refused(name, value):
    if not value and name in ("changed", "url"):
        return  # not given
    for to in ENGINES:
        with pytest.raises(ValueError, match=f"{name} = "):
            EngineSetup(to, **{name: value})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"to": "lucene"}, "unknown engine 'lucene'"),
        ({"to": "solr", "bm25": "legacy"}, "for Solr only the first"),
        ({"to": "opensearch", "bm25": "okapi"}, "bm25 = 'okapi'"),
        ({"to": "opensearch", "title": "x", "body": "x"}, "two fields have the same name"),
        ({"to": "opensearch", "index": "Upper"}, "index = 'Upper'"),
    ],
)
def test_other_mistakes(given, says):
    with pytest.raises(ValueError, match=says):
        EngineSetup(**given)


@pytest.mark.process
def test_command_lines_are_what_a_shell_reads(tmp_path):
    for setup in setups():
        for line in curl_lines(setup).values():
            words = shlex.split(line)
            assert words[:2] == ["curl", "-fsS"]
            assert all(sign not in " ".join(words) for sign in "`$;|<>")
            assert subprocess.run(["bash", "-n", "-c", line], check=False).returncode == 0


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(ValueError, match="is a file; give a folder"):
        write_engine_files(EngineSetup("solr"), tmp_path / "x")


def test_stems_are_snowball_s_in_all_engines():
    assert index_settings(EngineSetup("opensearch", ENGLISH))["settings"]["analysis"]["filter"] == {
        "fedrank_stems": {"type": "snowball", "language": "English"}
    }
    filters = index_settings(EngineSetup("solr", ENGLISH))["add-field-type"]["analyzer"]["filters"]
    assert filters[-1] == {"name": "snowballPorter", "language": "English"}
