"""Generate a synthetic collection of the size of CS-F-LTR's, as a folder: 4 x 36,400 documents of about 1,000 terms.

    python -m benchmarks.silo_collection FOLDER [--documents 145600] [--queries 1100] [--length 1000]
    fedrank papers run cs-f-ltr/equal-steps --set data.name=FOLDER

1,100 queries give about 200 training queries for each of four silos. It takes about a CPU second per 1,500 documents.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from fedrank.data.synthetic_text import synthetic_collection


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--documents", type=int, default=4 * 36_400)
    arguments.add_argument("--queries", type=int, default=1100)
    arguments.add_argument("--length", type=int, default=1000, help="approximate number of words per document")
    arguments.add_argument("--topics", type=int, default=400)
    asked = arguments.parse_args()
    began = time.process_time()
    made = synthetic_collection(asked.documents, asked.queries, topics=asked.topics, length=asked.length)
    asked.folder.mkdir(parents=True, exist_ok=True)
    with open(asked.folder / "corpus.jsonl", "w", encoding="utf-8") as file:
        for key, title, text in zip(made.documents.ids, made.documents.title, made.documents.text, strict=True):
            file.write(json.dumps({"_id": key, "title": title, "text": text}) + "\n")
    with open(asked.folder / "queries.jsonl", "w", encoding="utf-8") as file:
        for key, text in zip(made.query_ids, made.queries, strict=True):
            file.write(json.dumps({"_id": key, "text": text}) + "\n")
    with open(asked.folder / "qrels.tsv", "w", encoding="utf-8") as file:
        file.write("query\tdocument\tgrade\n")
        for query, key in enumerate(made.query_ids):
            rows, grades = made.judgements(query)
            file.writelines(f"{key}\t{made.documents.ids[d]}\t{g}\n" for d, g in zip(rows, grades, strict=True))
    print(f"{asked.documents:,} documents in {time.process_time() - began:.0f} s of CPU: {asked.folder}")


if __name__ == "__main__":
    main()
