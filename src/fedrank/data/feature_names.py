"""Feature names of well-known data sets; other sets use "feature 7"."""

from __future__ import annotations

STREAMS = ("body", "anchor", "title", "URL", "whole document")
_STATISTICS = ("sum", "min", "max", "mean", "variance")


def _of_streams(blocks: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{block} of {stream}" for block in blocks for stream in STREAMS)


LETOR_4 = (
    *_of_streams(("TF", "IDF", "TF-IDF", "stream length", "BM25", "LMIR.ABS", "LMIR.DIR", "LMIR.JM")),
    "PageRank",
    "number of inlinks",
    "number of outlinks",
    "number of slashes in URL",
    "length of URL",
    "number of child pages",
)  # [46]: MQ2007 and MQ2008

MSLR = (
    *_of_streams(
        (
            "covered query terms",
            "covered query term ratio",
            "stream length",
            "IDF",
            *(f"{statistic} of TF" for statistic in _STATISTICS),
            *(f"{statistic} of length-normalised TF" for statistic in _STATISTICS),
            *(f"{statistic} of TF-IDF" for statistic in _STATISTICS),
            "boolean model",
            "vector space model",
            "BM25",
            "LMIR.ABS",
            "LMIR.DIR",
            "LMIR.JM",
        )
    ),
    "number of slashes in URL",
    "length of URL",
    "number of inlinks",
    "number of outlinks",
    "PageRank",
    "SiteRank",
    "QualityScore",
    "QualityScore2",
    "clicks on query and URL",
    "clicks on URL",
    "dwell time on URL",
)  # [136]: MSLR-WEB10K and MSLR-WEB30K

FEATURE_NAMES = {"letor-4": LETOR_4, "mslr": MSLR, "": ()}  # by the names in the catalog
