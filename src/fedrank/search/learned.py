"""What the search client knows about its user, in words: why a list has its order, and what was learned from clicks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedrank.display import count_of
from fedrank.ranking.gate import Team
from fedrank.search.impressions import ENGINE_FIRST
from fedrank.search.memory import EarlierClicks
from fedrank.search.results import Cause, Explained
from fedrank.search.status import WEEKS, monday
from fedrank.search.store import Store
from fedrank.search.trial import ENGINE, FORGETFUL, winners

if TYPE_CHECKING:
    from fedrank.search.client import SearchClient

REMEMBERED = 100  # latest remembered documents that are listed
QUERIES = 2  # earlier queries that are named for a result
LEAST = 0.1  # contributions below it are not named; they rarely change a position
CAUSES = 3  # that are named in each direction
MEMORY, BEST = "opened before", "best of the engine"  # names of the contributions of rules

# What a high value of a feature is, as part of a sentence.
IN_WORDS = {
    "bm25": "how well its text matches your words",
    "bm25 of title": "how well its title matches your words",
    "bm25 of body": "how well its body matches your words",
    "engine": "its score in the search engine",
    "rank": "its position in the search engine",
    "covered": "how many of your words occur in it",
    "covered by title": "how many of your words are in its title",
    "covered by beginning": "how many of your words are near its beginning",
    "all terms": "whether all your words occur in it",
    "all terms in title": "whether all your words are in its title",
    "rarest term": "whether your rarest word occurs in it",
    "rarest term in title": "whether your rarest word is in its title",
    "adjacent pairs": "how many of your words are next to each other",
    "near pairs": "how many of your words are near each other",
    "smallest window": "how close together your words are",
    "first place": "how early your words occur",
    "title precision": "how much of its title consists of your words",
    "length": "its length",
    "title length": "the length of its title",
    "largest tf": "how often one of your words occurs",
    "bm25 of a term": "how well it matches a single word",
    "log tf": "how often your words occur",
    "feedback": "its similarity to the other best results",
    "expanded bm25": "the words that the best results have in common",
    "latent": "the similarity of its meaning to your query",
    "latent feedback": "the similarity of its meaning to the best results",
    "changed lately": "how recently it changed",
    "changed this year": "how long ago it changed",
    "kind": "its kind",
    "depth": "how deep its folder is",
    "from somebody answered": "whether you wrote to its sender",  # prose: ok
}


@dataclass(frozen=True)
class Why:
    """Why a list has its order."""

    query: str
    order: str  # how the list was made, in a sentence
    results: tuple[tuple[Explained, tuple[str, ...]], ...]  # from the top, with sentences


@dataclass(frozen=True)
class Remembered:
    """A document that moves up for a query, because the user opened it."""

    query: str
    document: int
    title: str
    clicks: int
    time: int  # of the last click


@dataclass(frozen=True)
class WeekDifference:
    """Opened results of a week: mean 1 / log2(position + 1) as shown, minus that in the engine's order."""

    begins: int
    opened: int  # results
    difference: float


@dataclass(frozen=True)
class LearnedFacts:
    """What was learned about the user."""

    searches: int
    clicks: int
    remembered: tuple[Remembered, ...]  # latest first
    pairs: int  # of query and document, listed or not
    model: str  # where the weights come from
    weeks: tuple[WeekDifference, ...]  # oldest first
    wins: int  # lists that mixed both orders, in which this order got more clicks than the engine's
    losses: int
    given_up: bool  # whether earlier clicks do not count any more, since lists without them won


def why_in_words(client: SearchClient, impression: int) -> Why:
    """Explain a list, with the current model and the clicks that are still recorded."""
    with client.store.turn:
        one, explained = client.lists.get(impression), client.why(impression)
        ids = [each.result.id for each in explained if not each.result.gone]
        found = client.lists.memory.reasons(client.features.query(one.query), ids, impression) if ids else ()
    opened: dict[int, list[EarlierClicks]] = defaultdict(list)
    for reason in found:
        opened[reason.document].append(reason)
    engine = [each.engine_position for each in explained] == list(range(len(explained)))
    order = "This order follows what you opened before for these or similar words, and how well each text matches."
    if one.kind == "interleaved":
        order = "This list mixes your order with another one, to find out from your clicks which of them is better."
    elif one.kind == "pdgd":
        order = "Results with close scores sometimes swap in this list, and a model learns from your clicks."
    elif one.sort == "date":
        order = "This list is sorted by date."
    elif engine and explained:
        order = "This list is in the order of the search engine."
    causes = one.sort == "rank" and not engine
    rows = [(each, tuple(sentences(each, opened[each.result.id], causes))) for each in explained]
    return Why(one.query, order, tuple(rows))


def sentences(one: Explained, opened: Sequence[EarlierClicks], causes: bool = True) -> list[str]:
    """Why a result is where it is; without `causes`, its score does not count in its list."""
    if one.result.gone:
        return []
    said = [_opened(each) for each in opened[:QUERIES]]
    if len(opened) > QUERIES:
        said.append(f"You also opened it for {count_of(len(opened) - QUERIES, 'other query', 'other queries')}.")
    rules = {cause.feature for cause in one.causes if causes and cause.feature in (MEMORY, BEST) and cause.value > 0}
    if MEMORY in rules and not opened:
        said.append("It was moved up because you had opened it before; those clicks no longer count.")
    if BEST in rules:
        said.append(f"The {ENGINE_FIRST} best results of the search engine stay first unless you opened others before.")
    named = one.causes if causes else ()
    up, down = (_named([each for each in named if sign * each.share >= LEAST]) for sign in (1, -1))
    if up:
        said.append(f"Compared with the other results, it moved up because of {up}.")
    if down:
        said.append(f"It moved down because of {down}.")
    engine, shown = one.engine_position + 1, one.result.position + 1
    same = "at this position, too" if engine == shown else f"at position {engine}"
    return [*said, f"The search engine alone has it {same}."]


def _opened(one: EarlierClicks) -> str:
    from fedrank.search.render import day

    times = {1: "once", 2: "twice"}.get(one.clicks, f"{one.clicks:,} times")
    like = "" if one.likeness > 1 - 1e-9 else "the similar words "
    return f"You opened it {times} for {like}“{one.query}”, last on {day(one.time)}."


def _named(causes: Sequence[Cause]) -> str:
    names = [IN_WORDS[cause.feature] for cause in causes if cause.feature in IN_WORDS][:CAUSES]
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)


def what_was_learned(client: SearchClient) -> LearnedFacts:
    """Everything that a search takes into account and that comes from the user's searches and clicks."""
    status, store = client.status(), client.store
    with store.turn:
        rows = store.rows(
            "SELECT query, document, coalesce(title, ''), count(*), max(clicks.time) FROM clicks JOIN impressions ON "
            "impressions.id = impression JOIN documents ON documents.id = document WHERE NOT bounced AND terms != x'' "
            "AND impression > ? GROUP BY terms, document ORDER BY max(clicks.time) DESC",
            since := store.setting("remember_after", 0),
        )
        counts = winners(store, "trial IN (?, ?) AND state = 'closed'", ENGINE, FORGETFUL)
        return LearnedFacts(
            status.searches,
            status.clicks,
            tuple(
                Remembered(query, id, title, times, int(last)) for query, id, title, times, last in rows[:REMEMBERED]
            ),
            len(rows),
            status.model,
            against_engine(store),
            counts[Team.OLD],
            counts[Team.NEW],
            bool(since),
        )


def against_engine(store: Store) -> tuple[WeekDifference, ...]:
    """By week, how much higher opened results were than in the engine's order.

    Clicks follow what was shown, so the difference favours the order in use.
    """
    rows = store.rows(
        "SELECT impressions.time, shown, place FROM clicks JOIN impressions ON id = impression WHERE NOT bounced AND "
        "sort = 'rank' ORDER BY impressions.time"
    )
    weeks: dict[int, list[float]] = defaultdict(list)
    for time, shown, place in rows:
        engine = int(np.frombuffer(shown, "u1")[place])
        weeks[monday(time)].append(1 / math.log2(place + 2) - 1 / math.log2(engine + 2))
    return tuple(WeekDifference(week, len(weeks[week]), float(np.mean(weeks[week]))) for week in sorted(weeks)[-WEEKS:])
