#!/usr/bin/env bash
# What three people do with fedrank, from an empty folder: a doctoral student, the search engineer of a hospital group,
# and the privacy officer of one of its clinics. Every step prints its command and the output, and checks it.
#
#     examples/three_users.sh [FOLDER]              # with the fedrank that is installed; PYTHON names another Python
#     examples/three_users.sh --install [FOLDER]    # installs this checkout first, into FOLDER/.venv
#
# It takes about a minute. All data are generated, and small.

set -euo pipefail
checkout=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
install=no
if [ "${1:-}" = --install ]; then
  install=yes
  shift
fi
work=${1:-three-users}
mkdir -p "$work"
cd "$work"
if [ -n "$(ls)" ]; then
  echo "$work is not empty; name a folder that is, or that is not there yet" >&2
  exit 2
fi
export COLUMNS=120
served=()
trap 'for one in "${served[@]:-}"; do if [ -n "$one" ]; then kill "$one" 2>/dev/null || true; fi; done' EXIT

person() { printf '\n\n######## %s\n' "$*"; }
step() { printf '\n# %s\n' "$*"; }

# shown COMMAND ...: the command as a user would type it.
shown() {
  local word line='$'
  for word in "$@"; do
    if [[ $word =~ ^[][A-Za-z0-9_./:=@,+-]+$ ]]; then
      line+=" $word"
    else
      line+=" '${word//\'/\"}'"
    fi
  done
  printf '%s\n' "$line"
}

# ask COMMAND ...: prints the command and its output; it must succeed.
ask() {
  shown "$@"
  if ! "$@" >said.txt 2>&1; then
    cat said.txt
    echo "FAILED: $*" >&2
    exit 1
  fi
  cat said.txt
}

# refused COMMAND ...: the same, but it must fail.
refused() {
  shown "$@"
  if "$@" >said.txt 2>&1; then
    cat said.txt
    echo "SHOULD HAVE FAILED: $*" >&2
    exit 1
  fi
  cat said.txt
}

# sees TEXT ...: the output of the last command contains each of them, regardless of line breaks.
sees() {
  local text
  for text in "$@"; do
    if ! tr -s ' \n' '  ' <said.txt | grep -qF -- "$text"; then
      echo "NOT SAID: $text" >&2
      exit 1
    fi
  done
}

# there FILE ...: each file exists and is not empty.
there() {
  local file
  for file in "$@"; do
    if [ ! -s "$file" ]; then
      echo "NOT THERE: $file" >&2
      exit 1
    fi
  done
}

fedrank() { "$python" -m fedrank "$@"; }

person "The doctoral student: does my own aggregator hold what the mean promises?"

step "Install it from the checkout"
if [ $install = yes ]; then
  ask "$python" -m venv .venv
  python=$PWD/.venv/bin/python
  ask "$python" -m pip install --quiet --disable-pip-version-check "$checkout[privacy]"
fi
ask fedrank --version

step "A small first experiment: what does federation cost, and what does it bring?"
small=(--set rounds=60 --set "seeds=[1, 2, 3]" --set "data.folds=[1]")
ask fedrank run quickstart --name first "${small[@]}"
sees "federated (baseline)" "do nothing" "fedrank report runs/first"

step "My own aggregator, in my own file"
cat >mine.py <<'END'
from dataclasses import dataclass

import numpy as np

import fedrank


@dataclass(frozen=True)
class HalfMedian:
    """The median of each parameter, and as much of the mean."""

    def __call__(self, messages: fedrank.Messages) -> np.ndarray:
        return (np.median(messages.updates, axis=0) + messages.updates.mean(axis=0)) / 2
END
ask fedrank run quickstart --name mine "${small[@]}" --set "variants={mine={aggregator='mine:HalfMedian'}}" --set baseline=mine
sees "finished (3 of 3)"

step "An error in it is reported with its name"
sed 's/axis=0) + /axis=1) + /' mine.py >wrong.py
refused fedrank run quickstart --name wrong "${small[@]}" --set "variants={wrong={aggregator='wrong:HalfMedian'}}" --set baseline=wrong
sees "wrong.py"

step "Both in one report, with figures and tables for the paper"
ask fedrank report runs/first runs/mine --out both.html --baseline first/federated --figures paper
there both.html paper/final.tex paper/curves-ndcg-10.pdf paper/curves-ndcg-10.svg
ask head -n 20 paper/final.tex
sees '\begin{tabular}' '\toprule' 'mine'

step "The notebook, run from top to bottom"
cp "$checkout/examples/first_federation.ipynb" .
ask env PYTHONPATH="$checkout:${PYTHONPATH:-}" "$python" -m tests.notebooks first_federation.ipynb
there first_federation.ipynb

person "The search engineer: from the log of our engine to a model in it, and to one with the other clinics"

step "A log of our engine (here: generated), and what it contains"
ask fedrank data synth --ubi --users 60 --out log
ask fedrank data build --ubi-queries log/ubi_queries.ndjson --ubi-events log/ubi_events.ndjson --docs log/corpus.jsonl \
  --features engine-1 --out shop
sees "the data set contains"
ask fedrank data check shop
sees "clicked by position"

step "A model trained on our own clicks, exported to OpenSearch"
cat >own.toml <<'END'
title          = "Our users as clients, from the log of our engine"
rounds         = 30
evaluate_every = 10
measures       = ["ndcg@10"]
data           = { log = "shop" }
clients        = { count = 20, interactions = 5, partition = { name = "users" } }
learner        = { name = "logged-clicks", rate = 0.01 }
END
ask fedrank run own.toml
model=runs/own/only/fold-1-seed-1
there $model/model.json
ask fedrank model export $model --to opensearch --out ranker.json
there ranker.json
ask fedrank engine trial plan $model --against engine --to opensearch --index documents --out trials/spring
ask ls trials/spring

step "A federation with two other clinics, through a shared folder"
ask "$python" - <<'END'
from pathlib import Path

import fedrank as fr
from fedrank.data.letor import letor_lines

fold = fr.load("synthetic-mq2007", fold=1)
Path("data").mkdir()
Path("data", "names.txt").write_text("\n".join(fold.train.feature_names) + "\n")
for place, clinic in enumerate(["clinic-a", "clinic-b", "clinic-c"]):
    own = fold.train.select(range(place, fold.train.queries, 3))
    patients = {query: row // 3 for row, query in enumerate(own.query_ids)}  # three searches of each
    with Path("data", f"{clinic}.txt").open("w") as file:
        for line in letor_lines(own):
            query = line.split()[1].removeprefix("qid:")
            file.write(f"{line.rstrip()} # patient = {patients[query]}\n")
    print(f"data/{clinic}.txt: {own.queries} searches of {len(set(patients.values()))} patients, generated")
END
ask fedrank deploy init --folder shared --name clinics --home coordinator
whole=$(grep -o 'SHA256:[0-9a-f-]*' said.txt)
for id in 0 1 2; do
  clinic=clinic-$(printf 'abc' | cut -c $((id + 1)))
  ask fedrank deploy join shared --name "$clinic" --id $id --fingerprint "$whole" --home "$clinic"
  own=$(grep -o 'SHA256:[0-9a-f-]*' said.txt)
  ask fedrank deploy approve "$clinic" --id $id --fingerprint "$own" --home coordinator
  cat >"$clinic/site.toml" <<END
name       = "$clinic"
id         = $id
federation = "clinics"

[data]
letor      = "../data/$clinic.txt"
names      = "../data/names.txt"
person     = "patient"

[policy]
learners        = ["pdgd"]
placements      = ["client"]
unit            = "person"
largest_epsilon = 8.0
delta           = 1e-5
END
done

person "The privacy officer of clinic A: what would leave us, and may it?"

step "The requested spec, and what it costs patients, before anything runs"
cat >first.toml <<'END'
title    = "Three clinics learn together"
rounds   = 8
measures = ["ndcg@10"]

[data]
name  = "synthetic-mq2007"
folds = [1]

[clients]
count        = 3
people       = 200
interactions = 10

[learner]
name = "pdgd"
rate = 0.1

[server]
name = "add"
rate = 30.0

[mechanism]
name  = "gaussian"
unit  = "person"
clip  = 0.15
noise = 9.0
END
ask fedrank privacy show first.toml
sees "protects" "one person" "Holds against every observer"

step "Without noise: our own machine refuses, regardless of the coordinator"
grep -v -e '^unit' -e '^clip' -e '^noise' -e '^name  = "gaussian"' -e mechanism first.toml >bare.toml
refused fedrank deploy show bare.toml --home clinic-a
sees "What would be refused"
refused fedrank deploy accept bare.toml --home clinic-a --yes

step "With noise: what leaves, to whom, at which price"
ask fedrank deploy show first.toml --home clinic-a
sees "Nothing: the plan fits the policy of this site." "What this site sends" "What is not covered"

step "Why noise: an attacker reads the clicks from messages without it"
ask fedrank privacy audit quickstart --variant federated --messages 20 --out audit.md
sees "No mechanism" "READ"
there audit.md

step "We participate in this plan only"
ask fedrank deploy accept first.toml --home clinic-a --yes
sees "Accepted"
sed 's/^rounds.*/rounds   = 9/' first.toml >longer.toml
ask fedrank deploy refuse longer.toml --home clinic-a --because "one run is enough this year"
ask fedrank deploy accept first.toml --home clinic-b --yes
ask fedrank deploy accept first.toml --home clinic-c --yes

step "The run, as the coordinator sees it"
for clinic in clinic-a clinic-b clinic-c; do
  "$python" -m fedrank deploy start --home $clinic >$clinic.txt 2>&1 & # not the function: it is ended by its id
  served+=($!)
done
ask fedrank deploy run first.toml --home coordinator
sees "finished" "is spent against server, other clients, public"

step "What it cost our patients, and the remaining budget; the privacy card of the model"
ask fedrank deploy check --home clinic-a
sees "of 8 spent in 1 run"
ask fedrank privacy ledger clinic-a
sees "against server, other clients, public"
ask "$python" - <<'END'
import json
from pathlib import Path

for file in Path("clinic-a/models").rglob("privacy.json"):
    card = json.loads(file.read_text())
    print(f"{file}, of a {card['what']}: {card['summary']}")
END
sees "of a deployed run" "Against the server" "Not covered"

step "A draft of an impact assessment: known facts are filled in, open questions are marked"
ask fedrank privacy impact coordinator/runs/first --out dpia.md
sees "entries to complete are marked TO FILL IN"
ask grep -n -m 8 -e '^## ' dpia.md

printf '\nAll three users are done. Their files are in %s\n' "$PWD"
