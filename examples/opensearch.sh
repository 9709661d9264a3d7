#!/usr/bin/env bash
# engine-1 in OpenSearch, or in Elasticsearch with its plugin for learning to rank: the whole way, on a real engine.
#
#   bash examples/opensearch.sh [--dry-run] DOCS.jsonl QUERIES.tsv CLICKS.tsv [FOLDER]
#
# ENGINE=elasticsearch, URL=http://localhost:9200 and INDEX=fedrank-try may be set. EVENTS=FILE reads a trial.
# It creates the index INDEX, a feature set and a model, and deletes nothing. Ten queries with 100 documents each give
# the 1,000 scores that are compared.
set -euo pipefail

to=${ENGINE:-opensearch}
url=${URL:-http://localhost:9200}
index=${INDEX:-fedrank-try}
features=engine-1
# shellcheck source=examples/engine_steps.sh
. "$(dirname "$0")/engine_steps.sh"

note "1. The feature set, the mapping and the queries, as files"
fedrank engine features "$features" --to "$to" --url "$url" --index "$index" --changed changed \
  --popularity popularity --out "$work/engine"

note "2. An index with documents"
ask "$work/answers/index.json" PUT "$index" "$work/engine/index.json"
documents
content_type=application/x-ndjson ask "$work/answers/bulk.json" POST "_bulk?refresh=wait_for" "$work/documents.ndjson"

note "3. The features (a store that is there already answers with an error, which does not matter)"
ask "$work/answers/store.json" PUT _ltr || true
ask "$work/answers/features.json" POST "_ltr/_featureset/$features" "$work/engine/features.json"

note "4. Log features of the best documents of every query, and compare them with fedrank's own"
requests log
every log "$index/_search"
later gather log
later fedrank engine compare "$work/log.ndjson" --docs "$docs" --queries "$queries"

note "5. Learn from them, and upload the model"
model
later fedrank model export "$work/runs/engine" --to "$to" --name fedrank --feature-names "$work/names.txt" \
  --out "$work/model.json"
ask "$work/answers/model.json" POST "_ltr/_featureset/$features/_createmodel" "$work/model.json"

note "6. Search in its order, and compare scores and the ten best"
requests rescore
every rescore "$index/_search"
later gather rescore
later fedrank engine compare "$work/rescore.ndjson" --model "$work/runs/engine"

note "7. A trial against the engine's own order"
mixes=$to
[ "$to" = opensearch ] || mixes=own
later fedrank engine trial plan "$work/runs/engine/only/fold-1-seed-1" --against engine --to "$mixes" --url "$url" \
  --index "$index" --feature-set "$features" --out "$work/trial"
if [ -n "${EVENTS:-}" ]; then
  later fedrank engine trial read "$work/trial" "$EVENTS"
  later fedrank engine trial decide "$work/trial"
else
  echo "When people have searched: EVENTS is what your server logged, and UBI's events."
  echo "fedrank engine trial read $work/trial EVENTS && fedrank engine trial decide $work/trial"
fi
