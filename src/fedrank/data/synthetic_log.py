"""Generate a synthetic search log with realistic statistics, for tests and demonstrations.

Documents have topics. Users prefer few topics each, and titles or texts that match. A few users submit most searches,
and all users search in bursts. Queries are popular or rare, and shared by users.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.synthetic_text import SYLLABLES, draw_words
from fedrank.files import read_bytes, write_atomic
from fedrank.seeds import rng_for

LOG, CORPUS = "log.tsv", "corpus.jsonl"
LARGEST = {"users": 1_000_000, "documents": 1_000_000, "topics": 1_000, "days": 36_500, "least": 10_000}
_BEGINNING = 1_141_171_200  # 1 March 2006, the first day of AOL's log
_DAY = 86_400
_FILLS = 20  # documents that a query should match
_MOST = 100  # maximum ratio of entries to those of the least active user


@dataclass(frozen=True)
class _Document:
    title: list[str]
    text: list[str]
    url: str


def synthetic_log(out: str | Path, users: int = 1000, seed: int = 1, **others: Any) -> tuple[Path, Path]:
    """Write a log and its documents into a folder and return both files; `others` are arguments of `log_lines`."""
    lines, described = log_lines(users, seed, **others)
    log, corpus = Path(out) / LOG, Path(out) / CORPUS
    write_new({corpus: described, log: ["user\ttime\tquery\tdocument\n", *lines]})
    return log, corpus


def log_lines(
    users: int,
    seed: int,
    documents: int = 2000,
    topics: int = 20,
    days: int = 90,
    exponent: float = 2.0,  # of the power law of entries per user; larger: more equal
    taste: float = 0.1,  # Dirichlet parameter; smaller: fewer topics per user
    least: int = 5,  # entries of the least active user
) -> tuple[list[str], list[str]]:
    """Return the lines of a log without header, and those of its documents."""
    given = {"users": users, "documents": documents, "topics": topics, "days": days, "least": least}
    for name, value in given.items():
        if not 1 <= value <= LARGEST[name]:
            raise ValueError(f"{name} must be from 1 to {LARGEST[name]:,} (got {value})")
    if not exponent > 1 or not taste > 0:
        raise ValueError(f"exponent must be greater than 1 (got {exponent}), taste greater than 0 (got {taste})")
    rng = rng_for(seed, "documents")
    words = _words(topics, rng)
    topic_of = rng.integers(topics, size=documents)
    collection = [_document(row, words[topic], words, rng) for row, topic in enumerate(topic_of)]
    pools = [_queries(collection, np.flatnonzero(topic_of == topic), rng) for topic in range(topics)]
    pools = [pool for pool in pools if pool]

    lines: list[tuple[int, str]] = []
    for user in range(users):
        rng = rng_for(seed, "user", user)
        entries = int(least * min(_MOST, kernels.elementary.power(rng.random(), -1 / (exponent - 1))))
        lines += _activity(f"u{user}", entries, pools, days, taste, rng)
    lines.sort()  # by time; equal times by user
    described = [
        {"id": f"d{row}", "title": " ".join(one.title), "text": " ".join(one.text), "url": one.url}
        for row, one in enumerate(collection)
    ]
    return [line for _, line in lines], [json.dumps(document) + "\n" for document in described]


def write_new(files: Mapping[Path, Sequence[str]]) -> None:
    """Write files of lines; files with the same contents, from an interrupted command, are left unchanged.

    If any file has other contents, nothing is written.
    """
    contents = {path: "".join(lines).encode() for path, lines in files.items()}
    missing = [path for path in contents if not path.exists()]
    for path in contents.keys() - {*missing}:
        size = len(contents[path])
        if path.stat().st_size != size or read_bytes(path, size) != contents[path]:
            raise FileExistsError(f"{path} already exists with other contents; name another folder")
    for path in missing:
        write_atomic(path, contents[path])


def _words(topics: int, rng: np.random.Generator) -> list[list[str]]:
    """Words of every topic, in order of frequency; the last row are general words."""
    drawn = dict.fromkeys(
        "".join(rng.choice(SYLLABLES, size=int(size))) for size in rng.integers(2, 5, size=400 * (topics + 1))
    )
    spelled = list(drawn)
    size = len(spelled) // (topics + 1)
    return [spelled[topic * size : (topic + 1) * size] for topic in range(topics + 1)]


def _document(row: int, own: list[str], words: list[list[str]], rng: np.random.Generator) -> _Document:
    title = draw_words(own, int(rng.integers(2, 7)), rng)
    size = int(kernels.elementary.exp(3.5 + 0.5 * rng.normal())) + 5
    about = int(rng.binomial(size, 0.6))
    text = [*draw_words(own, about, rng), *draw_words(words[-1], size - about, rng)]
    rng.shuffle(text)
    return _Document(title, text, f"http://{title[0]}.example/{'/'.join(title[1:3])}/{row}")


@dataclass(frozen=True)
class _Query:
    text: str
    found: NDArray[np.int64]  # documents that match
    title: NDArray[np.float64]  # share of the query's words in the title of each
    body: NDArray[np.float64]  # share of the query's words in the text of each


def _queries(collection: list[_Document], rows: NDArray[np.int64], rng: np.random.Generator) -> list[_Query]:
    """Queries about a topic, made from words of titles; the most popular first."""
    found = {}
    holders: dict[str, set[int]] = {}
    for row in rows.tolist():
        for word in {*collection[row].title, *collection[row].text}:
            holders.setdefault(word, set()).add(row)
    for row in rng.permutation(rows)[:200].tolist():
        title = list(dict.fromkeys(collection[row].title))
        asked = rng.permutation(title)[: int(rng.integers(1, 4))].tolist()
        matching = np.array(sorted(set().union(*(holders[word] for word in asked))))
        shares = [
            [sum(word in part for word in asked) / len(asked) for part in (collection[one].title, collection[one].text)]
            for one in matching.tolist()
        ]
        table = np.array(shares)
        text = " ".join(asked)
        found[text] = _Query(text, matching, table[:, 0], table[:, 1])
    # Keep queries that can fill a list of twenty; in a small collection keep all.
    return [one for one in found.values() if len(one.found) >= _FILLS] or list(found.values())


def _activity(
    name: str, entries: int, pools: list[list[_Query]], days: int, taste: float, rng: np.random.Generator
) -> list[tuple[int, str]]:
    topics = rng.dirichlet(np.full(len(pools), taste))
    titles = rng.random()  # preference for matching titles over matching texts
    lines = []
    now, left = 0.0, 0
    gaps = rng.pareto(1.2, size=entries) + 0.05  # between bursts: mostly short, sometimes long
    starts = np.cumsum(gaps)
    starts *= rng.uniform(0.6, 1.0) * days * _DAY / starts[-1]
    for entry in range(entries):
        if left == 0:
            left = int(rng.geometric(0.25))
            now = max(now, float(starts[entry]))
        else:
            now += rng.exponential(60.0)
        left -= 1
        pool = pools[int(rng.choice(len(pools), p=topics))]
        rank = int(kernels.elementary.exp(rng.random() * kernels.elementary.log(len(pool) + 1.0)) - 1)
        query = pool[min(rank, len(pool) - 1)]
        liking = kernels.elementary.exp_each(6.0 * (titles * query.title + (1 - titles) * query.body))
        document = int(query.found[np.searchsorted(np.cumsum(liking), rng.random() * liking.sum(), side="right")])
        time = _BEGINNING + int(now)
        lines.append((time, f"{name}\t{time}\t{query.text}\td{document}\n"))
    return lines
