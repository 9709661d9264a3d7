#!/usr/bin/env bash
# engine-1 in Solr: the whole way, on a real engine.
#
#   bash examples/solr.sh [--dry-run] DOCS.jsonl QUERIES.tsv CLICKS.tsv [FOLDER]
#
# URL=http://localhost:8983/solr and INDEX=fedrank-try may be set. EVENTS=FILE reads a trial. Solr must run with its
# module ltr (`bin/solr start -Dsolr.modules=ltr`), and the collection INDEX must be there, with the query parser ltr,
# the transformers features and interleaving and the cache QUERY_DOC_FV in its solrconfig.xml. The script adds fields,
# features and a model to it, and deletes nothing.
set -euo pipefail

to=solr
url=${URL:-http://localhost:8983/solr}
index=${INDEX:-fedrank-try}
features=engine-1
# shellcheck source=examples/engine_steps.sh
. "$(dirname "$0")/engine_steps.sh"

note "1. The feature store, the fields and the queries, as files"
fedrank engine features "$features" --to solr --url "$url" --index "$index" --changed changed \
  --popularity popularity --out "$work/engine"

note "2. Fields and documents (fields that are there already answer with an error)"
ask "$work/answers/schema.json" POST "$index/schema" "$work/engine/index.json"
documents
ask "$work/answers/update.json" POST "$index/update/json/docs?commit=true" "$work/documents.ndjson"

note "3. The features; a collection takes notice when it is loaded again"
ask "$work/answers/features.json" PUT "$index/schema/feature-store" "$work/engine/features.json"
ask "$work/answers/reload.json" GET "admin/collections?action=RELOAD&name=$index"

note "4. Log features of the best documents of every query, and compare them with fedrank's own"
requests log
every log "$index/query"
later gather log
later fedrank engine compare "$work/log.ndjson" --docs "$docs" --queries "$queries"

note "5. Learn from them, and upload the model"
model
later fedrank model export "$work/runs/engine" --to solr --name fedrank --store "$features" \
  --feature-names "$work/names.txt" --out "$work/model.json"
ask "$work/answers/model.json" PUT "$index/schema/model-store" "$work/model.json"
ask "$work/answers/reload.json" GET "admin/collections?action=RELOAD&name=$index"

note "6. Search in its order, and compare scores and the ten best"
requests rescore
every rescore "$index/query"
later gather rescore
later fedrank engine compare "$work/rescore.ndjson" --model "$work/runs/engine"

note "7. A trial against the engine's own order"
later fedrank engine trial plan "$work/runs/engine/only/fold-1-seed-1" --against engine --to solr --url "$url" \
  --index "$index" --feature-set "$features" --out "$work/trial"
if [ -n "${EVENTS:-}" ]; then
  later fedrank engine trial read "$work/trial" "$EVENTS"
  later fedrank engine trial decide "$work/trial"
else
  echo "When people have searched: EVENTS is what your server logged, and UBI's events."
  echo "fedrank engine trial read $work/trial EVENTS && fedrank engine trial decide $work/trial"
fi
