"""A reranker that learns which passages were used: for retrieval-augmented generation, agents and site search."""

from fedrank.search.rerank.reranker import Ranked, Ranking, Reranker
from fedrank.search.rerank.scorer import ModelScorer
from fedrank.search.rerank.used import used_passages

__all__ = ["ModelScorer", "Ranked", "Ranking", "Reranker", "used_passages"]
