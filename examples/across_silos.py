"""Three organisations train one ranker without showing each other a document; a table says who gains.

python examples/across_silos.py [FOLDER] [PASSES]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from fedrank.data.synthetic_text import synthetic_collection
from fedrank.data.text import Tokeniser
from fedrank.ranking.measures import evaluate
from fedrank.silo.silos import SilosRule, make_silos
from fedrank.silo.training import CrossSilo, Global, Local, LocalPlus


def main(folder: Path, passes: int) -> None:
    collection = synthetic_collection(documents=240, queries=60, seed=1, topics=8, length=30)
    silos = make_silos(collection, SilosRule(count=3, split="topics"), Tokeniser(), seed=1)
    sketches = {"width": 200, "depth": 15, "noise": 0.5, "k": 20}
    methods = {
        "local": Local(),
        "local-plus": LocalPlus(**sketches),
        "global": Global(),
        "cross-silo": CrossSilo(**sketches),
    }
    lines = [",".join(["method", *(f"silo {silo.number}" for silo in silos)])]
    for name, method in methods.items():
        lists = method.lists(silos, seed=1)
        weights = method.first(len(silos))
        for number in range(1, passes + 1):
            weights = method.step(weights, lists, number, seed=1)
        models = np.broadcast_to(weights, (len(silos), weights.shape[-1]))  # one for each silo, or one for all
        quality = [
            evaluate(["ndcg@10"], test.features @ model[:-1], test)[0]  # the last weight is the bias
            for test, model in zip(lists.test, models, strict=True)
        ]
        print(f"{name:10s}  nDCG@10 of each silo: {'  '.join(f'{value:.3f}' for value in quality)}")
        lines.append(",".join([name, *(f"{value:.4f}" for value in quality)]))
    table = folder / "silos.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {table}")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    target.mkdir(parents=True, exist_ok=True)
    main(target, passes=int(sys.argv[2]) if len(sys.argv) > 2 else 20)
