"""The features engine-1 for OpenSearch, Elasticsearch and Solr: mapping, feature set, logging and rescoring.

The formats are those of the plugins' documentation: "Learning to Rank" of OpenSearch, elasticsearch-learning-to-rank of
OpenSource Connections, "Learning To Rank" of Solr's reference guide. User input never becomes part of a query's text:
it is passed as a parameter, which the engine escapes (Mustache) or resolves (`$keywords` of Solr).
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedrank.data.engine_features import (
    ENGINE_1,
    K1,
    MAX_SHARE,
    EngineFeature,
    EngineFeatures,
)
from fedrank.files import write_atomic

ENGINES = ("opensearch", "elasticsearch", "solr")
BM25 = ("lucene", "legacy")
URLS = {"solr": "http://localhost:8983/solr"}
KEYWORDS, TIME = "KEYWORDS", "2026-01-31T12:00:00Z"  # placeholders in the files
LOGGED = "logged_features"  # name of the query part whose features are logged
DEPTH = 100  # documents that are logged or rescored

_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_INDEX = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_URL = re.compile(r"https?://[A-Za-z0-9._~:@\[\]/-]+")
_SOLR = "org.apache.solr.ltr"
_ANALYSER = "fedrank_engine_1"
_BETWEEN_IDS = "\x1f"


@dataclass(frozen=True)
class EngineSetup:
    """Names in an engine; each is checked, because it becomes part of addresses, queries and shell commands."""

    to: str
    features: EngineFeatures = ENGINE_1
    url: str = ""  # "": the engine's usual address on this machine
    index: str = "documents"
    model: str = "fedrank"
    title: str = "title"
    body: str = "body"
    all: str = "all"  # a field to which title and body are copied
    changed: str = ""  # a date field; "": recency is always 0
    popularity: str = ""  # a numeric field; "": popularity is always 0
    bm25: str = ""  # lucene, or legacy if scores have a factor k1 + 1; "": as in current versions of the engine

    def __post_init__(self) -> None:
        if self.to not in ENGINES:
            raise ValueError(f"unknown engine {self.to!r}; use one of {', '.join(ENGINES)}")
        if self.bm25 not in ("", *BM25) or (self.to == "solr" and self.legacy):
            raise ValueError(
                f"bm25 = {self.bm25!r} is not valid for {self.to}; use {' or '.join(map(repr, BM25))} (for Solr only "
                "the first: since version 9 it has no other)"
            )
        checks = [
            ("url", self.address, _URL, "such as http://localhost:9200"),
            ("index", self.index, _NAME if self.to == "solr" else _INDEX, "letters, digits, dots and dashes"),
            ("model", self.model, _NAME, "letters, digits, dots and dashes"),
        ]
        named = {name: getattr(self, name) for name in ("title", "body", "all", "changed", "popularity")}
        used = {name: value for name, value in named.items() if value or name in ("title", "body", "all")}
        checks += [(name, value, _FIELD, "letters, digits and underscores") for name, value in used.items()]
        for name, value, allowed, remedy in checks:
            if not allowed.fullmatch(value):
                raise ValueError(
                    f"{name} = {value!r} contains characters that are not allowed in addresses and queries; use "
                    f"{remedy}"
                )
        if len(set(used.values())) < len(used):
            raise ValueError(f"two fields have the same name ({', '.join(used.values())}); use different names")

    @property
    def name(self) -> str:
        """Name of the feature set or store."""
        return self.features.version

    @property
    def address(self) -> str:
        return (self.url or URLS.get(self.to, "http://localhost:9200")).rstrip("/")

    @property
    def legacy(self) -> bool:
        """Whether BM25 has the factor k1 + 1: in Elasticsearch, and in OpenSearch before version 3."""
        return (self.bm25 or ("legacy" if self.to == "elasticsearch" else "lucene")) == "legacy"


def feature_set(setup: EngineSetup) -> Any:
    """The feature set, uploaded once; each feature is a query."""
    if setup.to == "solr":
        return [_solr_feature(feature, setup) for feature in setup.features.features]
    return {"featureset": {"features": [_feature(feature, setup) for feature in setup.features.features]}}


def index_settings(setup: EngineSetup) -> dict[str, Any]:
    """Fields with the tokenisation that the features assume; for a new index."""
    return _solr_schema(setup) if setup.to == "solr" else _mapping(setup)


def logging_query(
    setup: EngineSetup,
    keywords: str,
    ids: Sequence[str] | None = None,
    time: float | None = None,
    query_id: str = "",
) -> dict[str, Any]:
    """A search that returns features: of these documents, unordered; or of the engine's best, in its order."""
    moment = _moment(time)
    if setup.to == "solr":
        params = {"keywords": _plain(keywords), "time": moment, "echoParams": "explicit"}
        query = _solr_match(setup)
        if ids is not None:
            if any(_BETWEEN_IDS in one for one in ids):
                raise ValueError(f"an id in {list(ids)!r} contains the separator of ids; remove it")
            params |= {"ids": _BETWEEN_IDS.join(ids), "between": _BETWEEN_IDS}
            query = "{!terms f=id separator=$between v=$ids}"
        return {
            "query": query,
            "fields": f"id,score,[features store={setup.name} efi.keywords=$keywords efi.time=$time]",
            "limit": DEPTH if ids is None else len(ids),
            "params": params | ({"query_id": query_id} if query_id else {}),
        }
    sltr = {"_name": LOGGED, "featureset": setup.name, "params": {"keywords": keywords, "time": moment}}
    which: dict[str, Any] = {"filter": [{"sltr": sltr}]}
    if ids is None:
        which["must"] = [{"match": {setup.all: {"query": keywords}}}]
    else:
        which["filter"].insert(0, {"terms": {"_id": list(ids)}})
    return {
        "size": DEPTH if ids is None else len(ids),
        "_source": False,
        "query": {"bool": which},
        "ext": {"ltr_log": {"log_specs": {"name": setup.name, "named_query": LOGGED, "missing_as_zero": True}}},
    }


def rescore_query(setup: EngineSetup, keywords: str, time: float | None = None) -> dict[str, Any]:
    """A search whose best documents are reranked by the model; features are logged with it."""
    moment = _moment(time)
    if setup.to == "solr":
        model = f"{{!ltr model={setup.model} reRankDocs={DEPTH} efi.keywords=$keywords efi.time=$time}}"
        return {
            "query": _solr_match(setup),
            "fields": "id,score,[features]",
            "limit": DEPTH,
            "params": {"keywords": _plain(keywords), "time": moment, "rq": model, "echoParams": "explicit"},
        }
    sltr = {"model": setup.model, "params": {"keywords": keywords, "time": moment}}
    return {
        "size": DEPTH,
        "_source": False,
        "query": {"match": {setup.all: {"query": keywords}}},
        "rescore": {
            "window_size": DEPTH,
            "query": {"rescore_query": {"sltr": sltr}, "query_weight": 0.0, "rescore_query_weight": 1.0},
        },
        "ext": {"ltr_log": {"log_specs": {"name": setup.name, "rescore_index": 0, "missing_as_zero": True}}},
    }


def write_engine_files(setup: EngineSetup, out: str | Path) -> list[Path]:
    """Write all files into a folder, with the command lines in README.md."""
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; give a folder")
    contents = {
        "index.json": index_settings(setup),
        "features.json": feature_set(setup),
        "log-query.json": logging_query(setup, KEYWORDS, ["ID-1", "ID-2"]),
        "rescore-query.json": rescore_query(setup, KEYWORDS),
    }
    for name, content in contents.items():
        write_atomic(out / name, json.dumps(content, indent=2, allow_nan=False) + "\n")
    write_atomic(out / "README.md", _readme(setup))
    return [*(out / name for name in contents), out / "README.md"]


def curl_lines(setup: EngineSetup) -> dict[str, str]:
    """The requests in order, by purpose."""
    at, json_file = setup.address, "-H 'Content-Type: application/json' --data-binary @"

    def send(method: str, path: str, file: str = "") -> str:
        return f"curl -fsS -X {method} {shlex.quote(f'{at}/{path}')}" + (f" {json_file}{file}" if file else "")

    if setup.to == "solr":
        return {
            "Add the fields to a collection": send("POST", f"{setup.index}/schema", "index.json"),
            "Upload the features": send("PUT", f"{setup.index}/schema/feature-store", "features.json"),
            "Reload the collection": (
                f"curl -fsS {shlex.quote(f'{at}/admin/collections?action=RELOAD&name={setup.index}')}"
            ),
            "Upload a model": send("PUT", f"{setup.index}/schema/model-store", "model.json"),
            "Log features": send("POST", f"{setup.index}/query", "log-query.json"),
            "Search with the model": send("POST", f"{setup.index}/query", "rescore-query.json"),
        }
    return {
        "Create an index": send("PUT", setup.index, "index.json"),
        "Create a store for features and models": send("PUT", "_ltr"),
        "Upload the features": send("POST", f"_ltr/_featureset/{setup.name}", "features.json"),
        "Upload a model": send("POST", f"_ltr/_featureset/{setup.name}/_createmodel", "model.json"),
        "Log features": send("POST", f"{setup.index}/_search", "log-query.json"),
        "Search with the model": send("POST", f"{setup.index}/_search", "rescore-query.json"),
    }


def _feature(feature: EngineFeature, setup: EngineSetup) -> dict[str, Any]:
    params = {"recency": ["time"], "popularity": []}.get(feature.kind, ["keywords"])
    template = _template(feature, setup)
    params = params if template != _NOTHING else []
    return {"name": feature.name, "params": params, "template_language": "mustache", "template": template}


_NOTHING: dict[str, Any] = {"match_none": {}}  # never matches: the value is missing, which counts as 0


def _template(feature: EngineFeature, setup: EngineSetup) -> dict[str, Any]:
    """A feature as a query; documents that do not match have the value 0."""
    field = getattr(setup, feature.field)
    if not field:
        return _NOTHING
    asked: dict[str, Any] = {"query": "{{keywords}}"}
    if feature.kind in ("match", "phrase"):
        boost = {"boost": 1.0 / (1.0 + float(K1))} if setup.legacy else {}
        return {"match" if feature.kind == "match" else "match_phrase": {field: asked | boost}}
    if feature.kind in ("every", "most"):
        needed = {"operator": "and"} if feature.kind == "every" else {"minimum_should_match": f"{MAX_SHARE}%"}
        return {"constant_score": {"filter": {"match": {field: asked | needed}}, "boost": 1.0}}
    there = {
        "constant_score": {"filter": {"exists": {"field": field}}}
    }  # without it, a missing date would count as now
    if feature.kind == "recency":
        decay = {"origin": "{{time}}", "scale": f"{feature.half_life:g}d", "decay": 0.5}
        return {"function_score": {"query": there, "exp": {field: decay}, "boost_mode": "replace"}}
    factor = {"field": field, "modifier": "ln1p", "missing": 0}
    return {"function_score": {"query": there, "field_value_factor": factor, "boost_mode": "replace"}}


def _solr_feature(feature: EngineFeature, setup: EngineSetup) -> dict[str, Any]:
    field = getattr(setup, feature.field)
    kind, params = "SolrFeature", _solr_params(feature, field)
    if not field:
        kind, params = "ValueFeature", {"value": 0}
    return {"store": setup.name, "name": feature.name, "class": f"{_SOLR}.feature.{kind}", "params": params}


def _solr_params(feature: EngineFeature, field: str) -> dict[str, Any]:
    if feature.kind == "match":
        return {"q": f"{{!simple qf={field} q.op=OR q.operators=''}}${{keywords}}"}
    if feature.kind == "phrase":
        return {"q": f"{{!field f={field}}}${{keywords}}"}
    if feature.kind == "every":
        return {"fq": [f"{{!simple qf={field} q.op=AND q.operators='' cache=false}}${{keywords}}"]}
    if feature.kind == "most":
        return {"fq": [f"{{!dismax qf={field} mm={MAX_SHARE}% cache=false}}${{keywords}}"]}
    if feature.kind == "recency":
        rate = math.log(2) / (feature.half_life_seconds * 1000)
        return {"q": f"{{!func}}if(exists({field}),exp(product(-{rate:.9e},abs(ms(${{time}},{field})))),0)"}
    return {"q": f"{{!func}}ln(sum(1,max(0,def({field},0))))"}


def _mapping(setup: EngineSetup) -> dict[str, Any]:
    filters: dict[str, Any] = {}
    chain = ["lowercase"]
    if setup.features.stemmer != "none":
        filters = {"filter": {"fedrank_stems": {"type": "snowball", "language": setup.features.stemmer.capitalize()}}}
        chain.append("fedrank_stems")
    analyser = {"type": "custom", "tokenizer": "standard", "filter": chain}
    text = {"type": "text", "analyzer": _ANALYSER}
    properties: dict[str, Any] = {
        setup.title: text | {"copy_to": setup.all},
        setup.body: text | {"copy_to": setup.all},
        setup.all: text,
    }
    if setup.changed:
        properties[setup.changed] = {"type": "date"}
    if setup.popularity:
        properties[setup.popularity] = {"type": "double"}
    return {
        "settings": {
            "number_of_shards": 1,
            "analysis": {"analyzer": {_ANALYSER: analyser}, **filters},
        },
        "mappings": {"properties": properties},
    }


def _solr_schema(setup: EngineSetup) -> dict[str, Any]:
    filters: list[dict[str, Any]] = [{"name": "lowercase"}]
    if setup.features.stemmer != "none":
        filters.append({"name": "snowballPorter", "language": setup.features.stemmer.capitalize()})
    kind = {
        "name": _ANALYSER,
        "class": "solr.TextField",
        "analyzer": {"tokenizer": {"name": "standard"}, "filters": filters},
    }
    fields = [
        {"name": setup.title, "type": _ANALYSER, "indexed": True, "stored": True},
        {"name": setup.body, "type": _ANALYSER, "indexed": True, "stored": True},
        {"name": setup.all, "type": _ANALYSER, "indexed": True, "stored": False, "multiValued": True},
    ]
    if setup.changed:
        fields.append({"name": setup.changed, "type": "pdate", "indexed": True, "stored": True})
    if setup.popularity:
        fields.append({"name": setup.popularity, "type": "pdouble", "indexed": True, "stored": True})
    copies = [{"source": source, "dest": [setup.all]} for source in (setup.title, setup.body)]
    return {"add-field-type": kind, "add-field": fields, "add-copy-field": copies}


def _solr_match(setup: EngineSetup) -> str:
    return f"{{!simple qf={setup.all} q.op=OR q.operators='' v=$keywords}}"


def _plain(keywords: str) -> str:
    """Words without characters that Solr's parsers treat as operators."""
    return " ".join(ENGINE_1.words(keywords))


def iso_time(time: float) -> str:
    """Seconds since 1970 in the date format of all three engines."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(time: float | None) -> str:
    return TIME if time is None else iso_time(time)


_ENGINE_TITLES = {"opensearch": "OpenSearch", "elasticsearch": "Elasticsearch", "solr": "Solr"}


def _readme(setup: EngineSetup) -> str:
    title = _ENGINE_TITLES[setup.to]
    lines = [
        f"# {setup.name} in {title}",
        "",
        "Written by `fedrank engine features`. Run these lines in this folder.",
        "",
    ]
    for number, (what, line) in enumerate(curl_lines(setup).items(), start=1):
        lines += [f"{number}. {what}:", "", f"       {line}", ""]
    lines += [*_notes(setup), "", "| Feature | Field | Meaning |", "|---|---|---|"]
    for feature in setup.features.features:
        field = getattr(setup, feature.field)
        meaning = feature.meaning if field else f"always 0; set a field with --{feature.field}"
        lines.append(f"| {feature.name} | {field or '-'} | {meaning} |")
    return "\n".join(lines) + "\n"


def _notes(setup: EngineSetup) -> list[str]:
    notes = [
        f"In the two queries, {KEYWORDS} stands for the user's query, {TIME} for its time, and ID-1, ID-2 for "
        "the displayed documents. Insert them with a JSON library, never by concatenating text.",
        "Append the answers of the logging query to a file, one per line, each with the `query_id` of its search, and "
        "pass it to `fedrank engine read-log`.",
        f"`model.json` is written by `fedrank model export MODEL --to {setup.to} --name {setup.model}"
        + (f" --store {setup.name}" if setup.to == "solr" else "")
        + " --out model.json`.",
    ]
    if setup.to == "solr":
        notes += [
            "Solr needs its module `ltr`, and in `solrconfig.xml` the query parser `ltr`, the transformer `features` "
            "and the cache `QUERY_DOC_FV`: see Minimum Requirements of Learning To Rank in its reference guide.",
            "Keywords are sent to Solr without special characters, which its parsers treat as operators.",
        ]
    elif setup.legacy:
        notes.append(
            "BM25 has the factor k1 + 1 = 2.2, which the boost of 0.4545 cancels. `explain` of a match query then "
            "shows a boost of 2.2; if it does not, write the files again with `--bm25 lucene`."
        )
    else:
        notes.append(
            "BM25 is assumed to be Lucene's, without the factor k1 + 1, as in OpenSearch since version 3. If "
            "`explain` of a match query shows a boost of 2.2, write the files again with `--bm25 legacy`."
        )
    return [f"- {note}" for note in notes]
