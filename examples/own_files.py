"""From your own LETOR files to a trained model, and from the model to scores for new documents.

    python examples/own_files.py [FOLDER] [ROUNDS]

The files are generated here; with your own, start at `load_files`.
"""

import sys
import tempfile
from pathlib import Path

import fedrank


def main(folder: Path, rounds: int) -> None:
    made_up = fedrank.synthetic("mq2007", queries=300)
    write_letor(made_up.select(range(200)), folder / "train.txt")
    write_letor(made_up.select(range(200, 300)), folder / "test.txt")

    fold = fedrank.load_files(folder / "train.txt", folder / "test.txt", normalise="query")
    print(f"training on {fold.train.queries} queries with {fold.train.documents} documents")
    clients = fedrank.make_clients(fold.train, 10, partition=fedrank.partitions.Own(), click_model="navigational")
    federation = fedrank.Federation()
    *_, last = fedrank.simulate(federation, clients, rounds)

    ranker = federation.learner.ranker
    model = fedrank.Model(ranker, last.weights, fold.train.features.shape[1], fold.train.normalised)
    fedrank.save_model(model, folder / "model.json")
    print(f"wrote {folder / 'model.json'}")

    # Somewhere else, later: read the model, read new data as it was trained, score.
    model = fedrank.load_model(folder / "model.json")
    data = fedrank.read_letor(folder / "test.txt", normalise=model.normalised)
    scores = model.score(data)
    (folder / "scores.txt").write_text("".join(f"{float(score):.9g}\n" for score in scores))
    print(f"wrote {len(scores)} scores to {folder / 'scores.txt'}")
    print(f"nDCG@10 {fedrank.evaluate(['ndcg@10'], scores, data)[0]:.4f}")


def write_letor(data: fedrank.RankingData, path: Path) -> None:
    with path.open("w") as file:
        for query, (start, stop) in enumerate(zip(data.offsets[:-1], data.offsets[1:], strict=True)):
            for row in range(start, stop):
                pairs = " ".join(f"{i}:{value:g}" for i, value in enumerate(data.features[row], start=1))
                file.write(f"{data.grades[row]} qid:{data.query_ids[query]} {pairs} # docid = D{row}\n")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    target.mkdir(parents=True, exist_ok=True)
    main(target, rounds=int(sys.argv[2]) if len(sys.argv) > 2 else 300)
