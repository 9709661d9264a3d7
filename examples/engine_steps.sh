# What opensearch.sh and solr.sh share; they source this file.
#
# With --dry-run, requests are printed instead of sent. Steps that need no engine run in both cases.
# Passwords belong into ~/.netrc, which curl reads; nothing here takes one.

dry_run=no
if [ "${1:-}" = --dry-run ]; then
  dry_run=yes
  shift
fi
if [ $# -lt 3 ]; then
  echo "usage: $0 [--dry-run] DOCS.jsonl QUERIES.tsv CLICKS.tsv [FOLDER]" >&2
  echo "QUERIES.tsv has the columns query_id, query and perhaps time; CLICKS.tsv has query_id and document" >&2
  exit 2
fi
docs=$(realpath "$1")
queries=$(realpath "$2")
clicks=$(realpath "$3")
work=${4:-engine-try}
python=${PYTHON:-python3}
mkdir -p "$work/requests" "$work/answers"

note() { printf '\n# %s\n' "$*"; }

# ask ANSWER METHOD PATH [FILE]: one request, whose answer goes to a file.
ask() {
  local line=(curl --netrc-optional -fsS -X "$2" "$url/$3")
  if [ -n "${4:-}" ]; then
    line+=(-H "Content-Type: ${content_type:-application/json}" --data-binary "@$4")
  fi
  if [ "$dry_run" = yes ]; then
    printf '%q ' "${line[@]}"
    printf '> %q\n' "$1"
  else
    "${line[@]}" > "$1"
  fi
}

# later COMMAND...: a step that needs answers of the engine.
later() {
  if [ "$dry_run" = yes ]; then
    printf '%q ' "$@"
    printf '\n'
  else
    "$@"
  fi
}

fedrank() { "$python" -m fedrank "$@"; }

# requests log|rescore: a file for every query, and the list of their ids.
requests() {
  "$python" - "$1" "$queries" "$work/requests" "$to" "$index" "$features" << 'PYTHON'
import json, sys
from pathlib import Path
from fedrank.data.engine_features import EngineFeatures
from fedrank.engine.compare import read_queries
from fedrank.engine.templates import EngineSetup, logging_query, rescore_query

kind, queries, out, to, index, features = sys.argv[1:]
setup = EngineSetup(to, EngineFeatures.named(features), index=index, changed="changed", popularity="popularity")
asked = read_queries(queries)
for number, query in enumerate(asked.values()):
    make = logging_query if kind == "log" else rescore_query
    content = make(setup, query.text, time=query.time)
    (Path(out) / f"{kind}-{number}.json").write_text(json.dumps(content), encoding="utf-8")
(Path(out) / f"{kind}.ids").write_text("".join(f"{key}\n" for key in asked), encoding="utf-8")
PYTHON
}

# gather log|rescore: all answers in one file, one per line, with the ids of their searches.
gather() {
  "$python" - "$1" "$work" << 'PYTHON'
import json, sys
from pathlib import Path

kind, work = sys.argv[1], Path(sys.argv[2])
ids = (work / "requests" / f"{kind}.ids").read_text(encoding="utf-8").splitlines()
with open(work / f"{kind}.ndjson", "w", encoding="utf-8") as file:
    for number, key in enumerate(ids):
        answer = json.loads((work / "answers" / f"{kind}-{number}.json").read_text(encoding="utf-8"))
        file.write(json.dumps(answer | {"query_id": key}) + "\n")
PYTHON
}

# documents: all documents in the bulk format of the engine.
documents() {
  "$python" - "$docs" "$work/documents.ndjson" "$to" "$index" << 'PYTHON'
import sys
from fedrank.data.documents import read_documents
from fedrank.engine.compare import documents_for
from fedrank.engine.templates import EngineSetup

docs, out, to, index = sys.argv[1:]
setup = EngineSetup(to, index=index, changed="changed", popularity="popularity")
with open(out, "w", encoding="utf-8") as file:
    file.writelines(documents_for(setup, read_documents(docs)))
PYTHON
}

# every log|rescore PATH: send all requests of a kind.
every() {
  local request
  for request in "$work/requests/$1"-*.json; do
    ask "$work/answers/$(basename "$request")" POST "$2" "$request"
  done
}

# model: learn from what was logged. Training and test are one file: this tries an engine, not a model.
model() {
  "$python" -c 'from fedrank.data.engine_features import NAMES; print(*NAMES, sep="\n")' > "$work/names.txt"
  cat > "$work/spec.toml" << 'SPEC'
title  = "Features that an engine logged"
rounds = 200
[data]
train     = "train.txt"
test      = "train.txt"
features  = 12
normalise = "global"
[clients]
count = 2
[learner]
name = "pdgd"
SPEC
  later fedrank engine read-log "$work/log.ndjson" --clicks "$clicks" --out "$work/train.txt"
  later fedrank run "$work/spec.toml" --out "$work/runs" --name engine --workers 1
}
