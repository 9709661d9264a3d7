"""Ten people learn one ranker together from their clicks; the learning curve becomes a picture.

python examples/first_federation.py [FOLDER] [ROUNDS]
"""

import sys
import tempfile
from pathlib import Path

import fedrank


def main(folder: Path, rounds: int) -> None:
    fold = fedrank.load("synthetic-mq2007", fold=1)
    clients = fedrank.make_clients(
        fold.train, 10, partition=fedrank.partitions.Own(), click_model="navigational", interactions=5
    )
    federation = fedrank.Federation(learner=fedrank.learners.Pdgd(rate=0.1), aggregator=fedrank.aggregators.Mean())
    evaluator = fedrank.Evaluator(fold.test, ["ndcg@10"])
    ranker = federation.learner.ranker

    curve = []
    for outcome in fedrank.simulate(federation, clients, rounds, seed=1):
        if outcome.round % 10 == 0:
            curve.append((outcome.round, float(evaluator(outcome.weights, ranker)[0]), outcome.online))
    number, offline, online = curve[-1]
    print(f"round {number}: nDCG@10 {offline:.4f} on the test queries, {online:.4f} on the lists that users saw")

    model = fedrank.Model(ranker, outcome.weights, fold.train.features.shape[1], fold.train.normalised)
    fedrank.save_model(model, folder / "model.json")
    draw(curve, folder / "curve.png")
    print(f"wrote {folder / 'model.json'} and {folder / 'curve.png'}")


def draw(curve: list[tuple[int, float, float]], path: Path) -> None:
    from matplotlib.figure import Figure

    rounds, offline, online = zip(*curve, strict=True)
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(rounds, offline, label="offline: test queries, best order")
    axes.plot(rounds, online, label="online: lists that users saw", alpha=0.6)
    axes.set_xlabel("round")
    axes.set_ylabel("nDCG@10")
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    target.mkdir(parents=True, exist_ok=True)
    main(target, rounds=int(sys.argv[2]) if len(sys.argv) > 2 else 500)
