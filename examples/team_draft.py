"""A small service that mixes the lists of two rankers, and a trial that reads what it logged.

    python examples/team_draft.py [OUT] [SEARCHES]

Everything that the service needs is in src/fedrank/engine/team_draft.py, which uses the standard library only;
`fedrank engine trial plan --to own` puts a copy beside the plan. Here users are simulated and prefer the new ranker.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from fedrank.engine.start_trial import plan_trial
from fedrank.engine.team_draft import click_line, search_line, team_draft
from fedrank.engine.trial import EngineTrial
from fedrank.engine.trial_decision import TrialRules
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear


def main(out: Path, searches: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, weights in (("old", [1.0, 0.0]), ("new", [0.7, 0.7])):
        save_model(Model(Linear(), np.array(weights), 2), out / f"{name}.json")
    plan, _ = plan_trial(out / "new.json", out / "old.json", "own", out / "trial", TrialRules(), who="the example")

    rng, log = np.random.default_rng(1), []
    for number in range(searches):
        # What a service does: rank with both, mix, log, show.
        search, client, now = f"search-{number}", f"browser-{rng.integers(200)}", 1_800_000_000 + 60 * number
        features = rng.normal(size=(30, 2))
        old, new = ([f"d{row}" for row in np.argsort(-features @ weights)] for weights in ([1.0, 0.0], [0.7, 0.7]))
        mixed = team_draft(old, new, 10, plan.key, search)
        log.append(search_line(mixed, old, new, search, client, now, plan.id))
        # What people do: read from the top, and open the first that is good by both features.
        for document, _ in mixed:
            if features[int(document[1:])].sum() + rng.normal() > 2:
                log.append(click_line(search, client, now + 9, document))
                break
    (out / "events.jsonl").write_text("\n".join(log) + "\n", encoding="utf-8")

    trial = EngineTrial(out / "trial")
    trial.read([out / "events.jsonl"], complete=True)
    judged = trial.judged()
    print(f"{judged.ruling}: {judged.because}, after {searches} searches; see {out / 'trial'}")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    main(target, int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
