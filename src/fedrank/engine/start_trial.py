"""Start a trial: write its record, and files and command lines for the engine: to begin, to adopt, to roll back.

OpenSearch interleaves lists in its search-relevance plugin (A/B tests with team draft, pull requests #498 and #511 of
opensearch-project/search-relevance, which the release notes up to 3.9.0 do not list): a test is created by PUT
ab_tests/ID and changed by PUT ab_tests/ID/_update. It has two search configurations: A is the old model, so a disabled
test shows the previous results. The plugin answers only while a setting of the cluster is on, so `begin.sh` records
the setting and turns it on, and `end.sh` restores it once no search uses the test. Solr interleaves in
its LTR module (SOLR-14560). For your own service there is `team_draft.py`. This module does not connect to an engine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedrank.engine.trial import EngineTrial
from fedrank.engine.trial_decision import TrialRules
from fedrank.engine.trial_record import (
    CURRENT,
    ENGINES,
    LABELS,
    TrialModel,
    TrialPlan,
    check_free,
    model_on_trial,
    new_key,
    now,
    user_name,
    write_plan,
)
from fedrank.files import parse_json, private_folder, read_bytes, write_atomic
from fedrank.trees.export import export

REQUESTS, BEGIN, ADOPT, ROLL_BACK, DRAFT = "requests", "begin.sh", "adopt.sh", "rollback.sh", "team_draft.py"
END = "end.sh"
WORKBENCH = "plugins.search_relevance.workbench_enabled"  # a setting of the whole cluster
BEFORE = f"{REQUESTS}/workbench-before.json"  # what it was
NOT_INTERLEAVED = ("rescore", "sort", "from", "collapse", "aggs", "aggregations")  # of a search body
SEARCH_TEXT = "%SearchText%"  # where the plugin inserts the user's query
URLS = {"opensearch": "http://localhost:9200", "solr": "http://localhost:8983/solr"}
DEFAULT_QUERY = {"query": {"multi_match": {"query": SEARCH_TEXT, "fields": ["title", "body"]}}}
WINDOW = 100  # documents that a model reranks
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


def plan_trial(
    model: str | Path,
    against: str | Path,
    to: str,
    out: str | Path,
    rules: TrialRules,
    *,
    url: str = "",  # of the engine; "": its usual address on this machine
    index: str = "",  # or collection
    feature_set: str = "engine-1",  # or feature store of Solr
    query: str | Path | None = None,  # the engine's own search body
    positions: int = 10,
    who: str | None = None,
    because: str = "",
    current: str | Path | None = None,
    key: str = "",  # of the random draws; "": a new one
) -> tuple[TrialPlan, list[Path]]:
    """Write `trial.json`, and files and commands for the engine next to it.

    Returns the plan and the files that a person runs or reads.
    """
    if to not in ENGINES:
        raise ValueError(f"unknown engine {to!r}; use one of {', '.join(ENGINES)}")
    if to != "own" and not re.fullmatch(r"[\w.-]+", index):
        raise ValueError(
            f"--index: {to} needs the name of the searched index or collection (got {index!r}); give --index"
        )
    if not re.fullmatch(r"[\w.-]+", feature_set):
        raise ValueError(f"--feature-set {feature_set!r} is not a valid name; use letters, digits, - and _")
    address = (url or URLS.get(to, "")).rstrip("/")
    if address and not re.fullmatch(r"https?://[\w.:/@-]+", address):
        raise ValueError(f"--url {url!r} is not a valid address; use one such as {URLS.get(to, 'http://localhost')}")
    new, old = model_on_trial(model, to), model_on_trial(against, to)
    if new.digest == old.digest:
        raise ValueError(f"{model} and {against} are the same model; give two different models")
    out = Path(out)
    plan = TrialPlan(
        id=re.sub(r"[^\w-]+", "-", out.name).strip("-").lower() or "trial",
        to=to,
        old=old,
        new=new,
        rules=rules,
        planned=now(),
        who=who or user_name(),
        because=because,
        key=key or new_key(),
        places=positions,
        current=os.path.relpath(current or out.parent / CURRENT, out),
        engine={} if to == "own" else {"url": address, "index": index, "feature_set": feature_set},
    )
    check_free(out)
    files = _write_requests(plan, out, query)
    write_plan(plan, out)  # written last: until then the command may be repeated
    EngineTrial(out).note("planned", who, because, new=new.digest, old=old.digest)
    return plan, files


def _write_requests(plan: TrialPlan, folder: Path, query: str | Path | None) -> list[Path]:
    if plan.to == "own":
        source = (resources.files("fedrank.engine") / DRAFT).read_text(encoding="utf-8")
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
    """The command that applies a decision; empty for your own service, which reads `current.json`."""
    path = Path(folder) / script
    return f"sh {shlex.quote(str(path))}" if path.exists() else ""


def configuration(plan: TrialPlan, model: TrialModel, query: dict[str, Any]) -> dict[str, Any]:
    """A search configuration of OpenSearch's plugin: the engine's query, and a model that reranks its results."""
    body = dict(query)
    if not model.is_engine:
        ranker = {"params": {"keywords": SEARCH_TEXT, "time": "now"}, "model": model.name}
        # Only the model's score counts within the window, as in training; the engine's score selects the candidates.
        rescore = {"rescore_query": {"sltr": ranker}, "query_weight": 0.0, "rescore_query_weight": 1.0}
        body["rescore"] = {"window_size": WINDOW, "query": rescore}
    return {"name": model.name, "index": plan.engine["index"], "query": json.dumps(body)}


def _opensearch(plan: TrialPlan, requests: Path, query: dict[str, Any]) -> dict[str, str]:
    base = "/_plugins/_search_relevance"
    test = f"{base}/ab_tests/{plan.id}"
    _write(requests / "workbench.json", {"persistent": {WORKBENCH: True}})
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
        _head(plan, f"Start the trial {plan.id}: upload, two search configurations, and a test that interleaves them."),
        f"# This changes the setting {WORKBENCH} of the whole cluster; {END} restores it.\n",
        f"if ! test -e {BEFORE}; then\n",
        '  WAS=$(curl -sS --fail-with-body "$URL/_cluster/settings?flat_settings=true&filter_path=persistent" |\n',
        f"    tr ',{{}}' '\\n\\n\\n' | sed -n 's/.*\"{WORKBENCH}\" *: *\"*\\([a-z]*\\).*/\\1/p')\n",
        f'  printf \'{{"persistent": {{"{WORKBENCH}": %s}}}}\\n\' "${{WAS:-null}}" > {BEFORE}\n',
        "fi\n",
        f"echo 'Cluster setting {WORKBENCH} becomes true; before:' \"$(cat {BEFORE})\"\n",
        f"send PUT /_cluster/settings {REQUESTS}/workbench.json\n",
        *upload,
        *created,
        _put(test, {"search_configuration_a": "$OLD", "search_configuration_b": "$NEW"}),
        "# Disabled, it returns configuration A only, which shows which random id belongs to which model.\n",
        _put(f"{test}/_update", {"enabled": False}),
        f"A=$(send POST {test}/_search {REQUESTS}/search.json | ids | sed q)\n",
        _put(f"{test}/_update", {"enabled": True}),
        f'B=$(send POST {test}/_search {REQUESTS}/search.json | ids | grep -v "^$A\\$" | sed q)\n',
        f'if test -n "$A" && test -n "$B"; then printf \'{{"%s": "old", "%s": "new"}}\\n\' "$A" "$B" > {LABELS}\n',
        f"else echo 'The ids of the models are not known yet: put a search with results into {REQUESTS}/search.json,'\n"
        "  echo 'or see the test in the workbench; then: fedrank engine trial read ... --old-id ID --new-id ID'; fi\n",
        f'echo \'Searches: POST {test}/_search  {{"query_params": {{"SearchText": "..."}}}}\'\n',
        "echo 'Log each answer on one line: "
        '{"query_id": ..., "client_id": ..., "timestamp": ..., "response": {"hits": [...]}}\'\n',
    ]
    saved = f"OLD=$(cat {REQUESTS}/old-configuration.id)\nNEW=$(cat {REQUESTS}/new-configuration.id)\n"
    ends = {
        ADOPT: (plan.new, {"search_configuration_a": "$NEW", "search_configuration_b": "$OLD", "enabled": False}),
        ROLL_BACK: (plan.old, {"search_configuration_a": "$OLD", "search_configuration_b": "$NEW", "enabled": False}),
    }
    end = (
        f"# Run this when no search uses the test, which answers only while the setting is on.\n"
        f"test -e {BEFORE} || {{ echo '{BEGIN} changed no setting'; exit 0; }}\n"
        f"send PUT /_cluster/settings {BEFORE}\nrm {BEFORE}\n"
    )
    return {BEGIN: "".join(begin), END: _head(plan, "Restore the setting of the cluster.") + end} | {
        script: _head(plan, f"Use {model.name} for all searches.") + saved + _put(f"{test}/_update", state)
        for script, (model, state) in ends.items()
    }


def _put(path: str, content: dict[str, Any]) -> str:
    """Shell lines that send an object with PUT; its values may be shell variables."""
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
        _head(plan, f"Start the trial {plan.id}: upload the models. Solr interleaves all results of one shard."),
        "# solrconfig.xml needs, in addition to the ltr query parser:\n"
        '#   <transformer name="interleaving" class="org.apache.solr.ltr.response.transform.'
        'LTRInterleavingTransformerFactory"/>\n',
        upload,
        f'curl -sS --fail-with-body --globoff "$URL/{collection}/query?q=test&keywords=test&time=NOW'
        f'&fl=id,score,%5Binterleaving%5D&rq={quote(mixed)}"; echo\n',
        f"echo 'Searches: {ask}'\n",
        "echo 'Log each answer on one line: "
        '{"query_id": ..., "client_id": ..., "timestamp": ..., "response": <the answer>}\'\n',
        'echo \'Add both lists as "old": [ids] and "new": [ids] to need fewer searches.\'\n',
    ]
    search_with = "echo 'From now on search with: {}'\n"
    return {
        BEGIN: "".join(begin),
        ADOPT: _head(plan, f"Use {plan.new.name} for all searches.") + search_with.format(alone["new"]),
        ROLL_BACK: _head(plan, f"Use {plan.old.name} for all searches, as before.") + search_with.format(alone["old"]),
    }


def _rerank(*models: str) -> str:
    named = " ".join(f"model={name}" for name in models)
    return f"{{!ltr {named} reRankDocs={WINDOW} efi.keywords=$keywords efi.time=$time}}"


def _alone(model: TrialModel) -> str:
    return "no rq" if model.is_engine else f"rq={_rerank(model.name)}"


def _head(plan: TrialPlan, what: str) -> str:
    return _HEAD.format(what=what, url=plan.engine["url"]) + _SEND


def _query(path: str | Path | None) -> dict[str, Any]:
    """The engine's own query: a search body with %SearchText% in place of the user's query."""
    if path is None:
        return DEFAULT_QUERY
    body = parse_json(read_bytes(path))
    if not isinstance(body, dict) or "query" not in body or SEARCH_TEXT not in json.dumps(body):
        raise ValueError(f'{path} is not a usable search body: it must have "query" containing {SEARCH_TEXT}')
    if found := [key for key in NOT_INTERLEAVED if key in body]:
        raise ValueError(
            f"{path} contains {', '.join(found)}, which two interleaved lists cannot have; remove it, and send such "
            "searches to the index itself, outside the trial"
        )
    return body


def _write(path: Path, content: dict[str, Any]) -> None:
    write_atomic(path, json.dumps(content, indent=1) + "\n")
