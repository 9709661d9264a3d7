"""A fedrank model as a PyTerrier transformer, after stages that add a column `features`.

It needs `pip install python-terrier`, and no Java. It was run by hand with pyterrier 1.1.2 (python-terrier 1.0), not by
the tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fedrank as fr


def transformer(model: Any, client: int | None = None) -> Any:
    """Return a transformer that replaces score and rank: `features >> transformer(fr.load_model(folder))`."""
    import pyterrier as pt

    def score(results: Any) -> Any:
        features = np.stack(results["features"].to_numpy()).astype(np.float32)
        data = fr.RankingData(features, np.zeros(len(features), np.int8), np.array([0, len(features)]), np.array(["q"]))
        data = fr.normalise(data, model.normalised, model.ranges if model.normalised == "global" else None)
        return results.assign(score=model.score(data, client).astype(float))

    return pt.apply.by_query(score, add_ranks=True)


def as_results(data: fr.RankingData) -> Any:
    """Return judged data as a frame of PyTerrier, and its labels as qrels."""
    import pandas as pd

    qid = np.repeat(data.query_ids.astype(str), np.diff(data.offsets))
    docno = [f"d{row}" for row in range(len(qid))]
    found = pd.DataFrame({"qid": qid, "query": qid, "docno": docno, "features": list(data.features), "score": 0.0})
    return found, pd.DataFrame({"qid": qid, "docno": docno, "label": data.grades.astype(int)})


if __name__ == "__main__":
    import ir_measures
    import pyterrier as pt

    test = fr.synthetic("mq2007", queries=40)
    bm25 = fr.Model(fr.rankers.Linear(), weights=np.eye(46)[24], features=46)
    results, qrels = as_results(test)
    ranked = transformer(bm25)(results)
    pt.io.write_results(ranked[["qid", "docno", "rank", "score"]], "bm25.run")
    names = {"AP": "map/zero", "RR@10": "mrr@10/zero", "nDCG@10": "ndcg-linear@10/zero"}
    judged = qrels.rename(columns={"qid": "query_id", "docno": "doc_id", "label": "relevance"})
    run = list(ir_measures.read_trec_run("bm25.run"))
    measures = [ir_measures.parse_measure(name) for name in names]
    theirs = ir_measures.calc_aggregate(measures, judged, run)
    ours = fr.evaluate([*names.values()], bm25.score(test), test)
    for measure, name, own in zip(measures, names.values(), ours, strict=True):
        print(f"{measure} of ir_measures: {theirs[measure]:.4f}; {name} of fedrank: {own:.4f}")
