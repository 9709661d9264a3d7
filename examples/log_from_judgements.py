"""From judged queries to a search log of simulated users with their own topics and preferences, who search in bursts.

    python examples/log_from_judgements.py [OUT] [USERS] [LIKING] [FOLDER]

FOLDER holds corpus.jsonl and queries.jsonl (_id, text) and qrels*.tsv (query-id, corpus-id, score), or as .xz, like
BEIR's collections; without it a small one is generated. A topic is one query with all that share a judged document with
it. LIKING is how much users differ in preferring long or short documents; 0: not at all.
"""

import json
import lzma
import sys
import tempfile
from pathlib import Path

import numpy as np


def lines(folder: Path, pattern: str) -> list[bytes]:
    packed = [(file.read_bytes(), file.suffix == ".xz") for file in sorted(folder.glob(pattern))]
    return [line for data, xz in packed for line in (lzma.decompress(data) if xz else data).splitlines()]


def main(out: Path, users: int, liking: float, folder: Path) -> None:
    length = {row["_id"]: np.log1p(len(row["text"])) for row in map(json.loads, lines(folder, "corpus.jsonl*"))}
    text = {row["_id"]: " ".join(row["text"].split()) for row in map(json.loads, lines(folder, "queries.jsonl*"))}
    judged: dict[str, dict[str, float]] = {query: {} for query in text}
    for query, document, score in (line.decode().split() for line in lines(folder, "qrels*.tsv*")):
        if score != "score" and float(score) > 0:  # the first line of a file names its columns
            judged[query][document] = float(score)
    queries, rng, found = [query for query in text if judged[query]], np.random.default_rng(1), []
    for user in range(users):
        centre, likes = judged[queries[rng.integers(len(queries))]], rng.normal(0, liking)
        topic = [query for query in queries if centre.keys() & judged[query].keys()]
        entries, now = int(25 * min(40, rng.pareto(1.1) + 1)), rng.uniform(0, 60)  # few do most; time in days
        for _ in range(entries):
            now += rng.exponential(0.001 if rng.random() < 0.8 else 150 / entries)  # a burst continues, or a pause
            pool = topic if rng.random() < 0.9 else queries
            query = pool[rng.integers(len(pool))]
            weights = np.array([score * np.exp(likes * length[one]) for one, score in judged[query].items()])
            clicked = list(judged[query])[rng.choice(len(weights), p=weights / weights.sum())]
            found.append((1_600_000_000 + int(86_400 * now), f"u{user}", text[query], clicked))
    rows = [("time", "user", "query", "document"), *sorted(found)]
    (out / "log.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    print(f"wrote {len(found)} searches of {users} users to {out / 'log.tsv'}")


def make_up(folder: Path) -> Path:
    for name, words in (("corpus", range(1, 31)), ("queries", range(1, 2))):
        rows = [{"_id": str(i), "text": " ".join(f"word{(i + j) % 30}" for j in words[: i + 1])} for i in range(30)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels.tsv").write_text("".join(f"{q}\t{(q + i) % 30}\t1\n" for q in range(30) for i in range(4)))
    return folder


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    target = Path(given.get(1) or tempfile.mkdtemp())
    target.mkdir(parents=True, exist_ok=True)
    main(target, int(given.get(2, 400)), float(given.get(3, 0)), Path(given[4]) if 4 in given else make_up(target))
