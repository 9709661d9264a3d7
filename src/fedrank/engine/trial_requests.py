"""What an engine needs for a trial, as files and command lines: to begin it, to adopt the new model, to roll back.

OpenSearch mixes lists in its search-relevance plugin (A/B tests with team draft, pull requests #498 and #511 of
opensearch-project/search-relevance): a test is made by PUT ab_tests/ID, and changed by PUT ab_tests/ID/_update. It has
two search configurations: A is the old model, so that a test that is switched off shows what people had before. Solr
mixes in its LTR module (SOLR-14560). For a service of your own there is `team_draft.py`. No engine is spoken to from
here.
"""

from __future__ import annotations

import json
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedrank.engine.trial_record import LABELS, TrialModel, TrialPlan
from fedrank.files import parse_json, private_folder, read_bytes, write_atomic
from fedrank.trees.export import export

REQUESTS, BEGIN, ADOPT, ROLL_BACK, DRAFT = "requests", "begin.sh", "adopt.sh", "rollback.sh", "team_draft.py"
SEARCH_TEXT = "%SearchText%"  # where the plugin puts what somebody searches for
URLS = {"opensearch": "http://localhost:9200", "solr": "http://localhost:8983/solr"}
DEFAULT_QUERY = {"query": {"multi_match": {"query": SEARCH_TEXT, "fields": ["title", "body"]}}}
WINDOW = 100  # documents that a model orders anew
_SEND = """\
send() {  # method, path, file
  curl -sS --fail-with-body -X "$1" "$URL$2" -H 'Content-Type: application/json' --data-binary "@$3"; echo
}
ids() {  # of the configurations in an answer, in the order of its places
  tr ',{}' '\\n\\n\\n' | sed -n 's/.*"_search_configuration_id" *: *"\\([^"]*\\)".*/\\1/p'
}
"""
_HEAD = """\
#!/bin/sh
# {what}
set -eu
cd "$(dirname "$0")"
URL=${{URL:-{url}}}
"""


def write_requests(plan: TrialPlan, folder: str | Path, query: str | Path | None = None) -> list[Path]:
    """Write what the engine needs beside the plan; returns the files that a person runs or reads."""
    folder = Path(folder)
    if plan.to == "own":
        source = (files("fedrank.engine") / DRAFT).read_text(encoding="utf-8")
        write_atomic(private_folder(folder) / DRAFT, source)
        return [folder / DRAFT]
    requests = private_folder(private_folder(folder) / REQUESTS)
    body = _query(query)
    for side, model in (("old", plan.old), ("new", plan.new)):
        if not model.is_engine:
            store = plan.engine["feature_set"] if plan.to == "solr" else None
            export(model.path, plan.to, requests / f"{side}-model.json", name=model.name, store=store)
    scripts = _opensearch(plan, requests, body) if plan.to == "opensearch" else _solr(plan)
    for name, text in scripts.items():
        write_atomic(folder / name, text)
        (folder / name).chmod(0o700)
    return [folder / name for name in scripts]


def commands_of(folder: str | Path, script: str) -> str:
    """What makes a decision so, for somebody to run; empty for a service of one's own, which reads `current.json`."""
    path = Path(folder) / script
    return f"sh {shlex.quote(str(path))}" if path.exists() else ""


def configuration(plan: TrialPlan, model: TrialModel, query: dict[str, Any]) -> dict[str, Any]:
    """A search configuration of OpenSearch's plugin: the engine's query, and a model that orders its best anew."""
    body = dict(query)
    if not model.is_engine:
        ranker = {"params": {"keywords": SEARCH_TEXT, "time": "now"}, "model": model.name}
        # Only the model's score counts within the window, as in training; the engine's chose the candidates.
        rescore = {"rescore_query": {"sltr": ranker}, "query_weight": 0.0, "rescore_query_weight": 1.0}
        body["rescore"] = {"window_size": WINDOW, "query": rescore}
    return {"name": model.name, "index": plan.engine["index"], "query": json.dumps(body)}


def _opensearch(plan: TrialPlan, requests: Path, query: dict[str, Any]) -> dict[str, str]:
    base = "/_plugins/_search_relevance"
    test = f"{base}/ab_tests/{plan.id}"
    _write(requests / "workbench.json", {"persistent": {"plugins.search_relevance.workbench_enabled": True}})
    _write(requests / "search.json", {"query_params": {"SearchText": "an ordinary search"}})
    for side, model in (("old", plan.old), ("new", plan.new)):
        _write(requests / f"{side}-configuration.json", configuration(plan, model, query))
    upload = [
        f"send POST /_ltr/_featureset/{plan.engine['feature_set']}/_createmodel {REQUESTS}/{side}-model.json\n"
        for side, model in (("old", plan.old), ("new", plan.new))
        if not model.is_engine
    ]
    created = [
        f"{side.upper()}=$(send PUT {base}/search_configurations {REQUESTS}/{side}-configuration.json |\n"
        '  sed -n \'s/.*"search_configuration_id":"\\([^"]*\\)".*/\\1/p\')\n'
        f'test -n "${side.upper()}"; echo "${side.upper()}" > {REQUESTS}/{side}-configuration.id\n'
        for side in ("old", "new")
    ]
    begin = [
        _head(plan, f"Begin the trial {plan.id}: upload, two search configurations, and a test that mixes them."),
        f"send PUT /_cluster/settings {REQUESTS}/workbench.json\n",
        *upload,
        *created,
        _put(test, {"search_configuration_a": "$OLD", "search_configuration_b": "$NEW"}),
        "# Switched off it shows configuration A alone: so one learns which random id stands for which model.\n",
        _put(f"{test}/_update", {"enabled": False}),
        f"A=$(send POST {test}/_search {REQUESTS}/search.json | ids | sed q)\n",
        _put(f"{test}/_update", {"enabled": True}),
        f'B=$(send POST {test}/_search {REQUESTS}/search.json | ids | grep -v "^$A\\$" | sed q)\n',
        f'if test -n "$A" && test -n "$B"; then printf \'{{"%s": "old", "%s": "new"}}\\n\' "$A" "$B" > {LABELS}\n',
        f"else echo 'Which id is whose is not known yet: put a search that finds things into {REQUESTS}/search.json,'\n"
        "  echo 'or look at the test in the workbench; then: fedrank trial read ... --old-id ID --new-id ID'; fi\n",
        f'echo \'Searches: POST {test}/_search  {{"query_params": {{"SearchText": "..."}}}}\'\n',
        "echo 'Log each answer as a line: "
        '{"query_id": ..., "client_id": ..., "timestamp": ..., "response": {"hits": [...]}}\'\n',
    ]
    saved = f"OLD=$(cat {REQUESTS}/old-configuration.id)\nNEW=$(cat {REQUESTS}/new-configuration.id)\n"
    ends = {
        ADOPT: (plan.new, {"search_configuration_a": "$NEW", "search_configuration_b": "$OLD", "enabled": False}),
        ROLL_BACK: (plan.old, {"search_configuration_a": "$OLD", "search_configuration_b": "$NEW", "enabled": False}),
    }
    return {BEGIN: "".join(begin)} | {
        script: _head(plan, f"Show {model.name} to everybody.") + saved + _put(f"{test}/_update", state)
        for script, (model, state) in ends.items()
    }


def _put(path: str, content: dict[str, Any]) -> str:
    """Lines of a shell that put an object there; its values may be variables of the shell."""
    return f"cat > {REQUESTS}/test.json <<END\n{json.dumps(content)}\nEND\nsend PUT {path} {REQUESTS}/test.json\n"


def _solr(plan: TrialPlan) -> dict[str, str]:
    collection = plan.engine["index"]
    upload = "".join(
        f"send PUT /{collection}/schema/model-store {REQUESTS}/{side}-model.json\n"
        for side, model in (("old", plan.old), ("new", plan.new))
        if not model.is_engine
    )
    mixed = _rerank(plan.old.name, plan.new.name)
    ask = f"{collection}/query?q=QUERY&keywords=WORDS&time=NOW&fl=id,score,[interleaving]&rq={mixed}"
    alone = {side: _alone(model) for side, model in (("old", plan.old), ("new", plan.new))}
    begin = [
        _head(plan, f"Begin the trial {plan.id}: upload the models. Solr mixes all results of one shard."),
        "# solrconfig.xml needs, beside the ltr query parser:\n"
        '#   <transformer name="interleaving" class="org.apache.solr.ltr.response.transform.'
        'LTRInterleavingTransformerFactory"/>\n',
        upload,
        f'curl -sS --fail-with-body --globoff "$URL/{collection}/query?q=test&keywords=test&time=NOW'
        f'&fl=id,score,%5Binterleaving%5D&rq={quote(mixed)}"; echo\n',
        f"echo 'Searches: {ask}'\n",
        "echo 'Log each answer as a line: "
        '{"query_id": ..., "client_id": ..., "timestamp": ..., "response": <the answer>}\'\n',
        'echo \'With "old": [ids] and "new": [ids] beside it, both lists, fewer searches are needed.\'\n',
    ]
    told = "echo 'From now on ask with: {}'\n"
    return {
        BEGIN: "".join(begin),
        ADOPT: _head(plan, f"Show {plan.new.name} to everybody.") + told.format(alone["new"]),
        ROLL_BACK: _head(plan, f"Show {plan.old.name} to everybody, as before.") + told.format(alone["old"]),
    }


def _rerank(*models: str) -> str:
    named = " ".join(f"model={name}" for name in models)
    return f"{{!ltr {named} reRankDocs={WINDOW} efi.keywords=$keywords efi.time=$time}}"


def _alone(model: TrialModel) -> str:
    return "no rq" if model.is_engine else f"rq={_rerank(model.name)}"


def _head(plan: TrialPlan, what: str) -> str:
    return _HEAD.format(what=what, url=plan.engine["url"]) + _SEND


def _query(path: str | Path | None) -> dict[str, Any]:
    """The engine's own query, as a search body in which %SearchText% stands for what somebody types."""
    if path is None:
        return DEFAULT_QUERY
    body = parse_json(read_bytes(path))
    if not isinstance(body, dict) or "query" not in body or "rescore" in body or SEARCH_TEXT not in json.dumps(body):
        raise ValueError(
            f'{path} is no search body that a model could follow: it needs "query" with {SEARCH_TEXT} somewhere in it, '
            'and no "rescore"'
        )
    return body


def _write(path: Path, content: dict[str, Any]) -> None:
    write_atomic(path, json.dumps(content, indent=1) + "\n")
