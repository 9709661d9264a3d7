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
from fedrank.search.memory import SAME, EarlierClicks
from fedrank.search.opponents import ENGINE, FORGETFUL, winners
from fedrank.search.queries import parse
from fedrank.search.results import Explained
from fedrank.search.status import WEEKS, monday
from fedrank.search.store import Store

if TYPE_CHECKING:
    from fedrank.search.client import SearchClient

REMEMBERED = 100  # latest remembered documents that are listed
QUERIES = 2  # earlier queries that are named for a result
LEAST = 0.1  # smaller differences between contributions are not named
CAUSES = 3  # that are named
MEMORY = "opened before"  # name of the contribution of the memory of clicks

# What a high value of a feature with a weight is, as part of a sentence.
IN_WORDS = {
    "engine": "its score in the search engine",
    "feedback": "its similarity to the other best results",
    "covered": "its number of your words",
    "rarest term": "its match of your rarest word",
    "near pairs": "how many of your words are near each other",
    "covered by beginning": "how many of your words are near its beginning",
    "title precision": "how much of its title consists of your words",
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
    weeks: tuple[WeekDifference, ...]  # oldest first
    wins: int  # lists mixed with an opponent's order, in which this order got more clicks
    losses: int
    given_up: bool  # whether earlier clicks do not count any more, since lists without them won
    uses_engine: bool  # whether the engine's order is used, since it won


def why_in_words(client: SearchClient, impression: int) -> Why:
    """Explain a list, with the weights in use and the clicks that are still recorded."""
    with client.store.turn:
        one, explained = client.lists.get(impression), client.why(impression)
        ids = [each.result.id for each in explained if not each.result.gone]
        found = (
            client.lists.memory.reasons(client.features.query(parse(one.query).words), ids, impression) if ids else ()
        )
    opened: dict[int, list[EarlierClicks]] = defaultdict(list)
    for reason in found:
        opened[reason.document].append(reason)
    order = (
        "This order follows what you opened before for these or similar words, and how well each text matches. The "
        f"{ENGINE_FIRST} best results of the search engine stay first unless you opened others before. If the first "
        "has nearly all your words and you did not open it, clicks for similar words do not move a result above it "
        "that has no more of your words."
    )
    if one.kind == "interleaved":
        order = "This list mixes your order with another one, to find out from your clicks which of them is better."
    elif one.sort == "date":
        order = "This list is sorted by date."
    elif explained and all(each.engine_position == each.result.position for each in explained):
        order = "This list is in the order of the search engine."
    compared = explained if one.sort == "rank" else ()
    rows = [(each, tuple(sentences(each, opened[each.result.id], compared))) for each in explained]
    return Why(one.query, order, tuple(rows))


def sentences(one: Explained, opened: Sequence[EarlierClicks], shown: Sequence[Explained] = ()) -> list[str]:
    """Why a result is where it is among those that are shown; without them, only where the engine has it."""
    if one.result.gone:
        return []
    said = [_opened(each) for each in opened[:QUERIES]]
    if len(opened) > QUERIES:
        said.append(f"You also opened it for {count_of(len(opened) - QUERIES, 'other query', 'other queries')}.")
    position, before = one.result.position, one.engine_position
    if position == before:
        said.append("The search engine has it at this position, too.")
    elif not shown:
        said.append(f"The search engine alone has it at position {before + 1}.")
    else:
        up = position < before
        because = _because(_reasons(one, shown, up), up, bool(opened))
        said.append(f"It moved {'up' if up else 'down'} from position {before + 1} in the search engine{because}.")
    return said


def _reasons(one: Explained, shown: Sequence[Explained], up: bool) -> list[str]:
    """What separates a result from those that it passed (up), or that passed it; the most important first."""
    others = [
        {cause.feature: cause.share for cause in each.causes}
        for each in shown
        if each is not one
        and (each.engine_position < one.engine_position) == up
        and (each.result.position > one.result.position) == up
        and (each.score < one.score) == up  # in lists that mix two orders, others have passed, too
    ]
    if not others:  # for instance, what it passed is on the next page
        return []
    sign = 1 if up else -1
    gaps = {
        cause.feature: sign * (cause.share - float(np.mean([other[cause.feature] for other in others])))
        for cause in one.causes
    }
    return sorted((name for name, gap in gaps.items() if gap >= LEAST), key=lambda name: -gaps[name])


def _because(reasons: Sequence[str], up: bool, opened: bool) -> str:
    if reasons and reasons[0] == MEMORY:
        if not up:
            return ", below results that you opened before"
        return " for that reason" if opened else ", because you had opened it before; those clicks no longer count"
    names = [IN_WORDS[name] if up else IN_WORDS[name].replace("its ", "their ") for name in reasons if name in IN_WORDS]
    if not names:
        return ""
    *first, last = names[:CAUSES]
    said = f"{', '.join(first)} and {last}" if first else last
    return f" because of {said}" if up else f", because others are ahead in {said}"


def _opened(one: EarlierClicks) -> str:
    from fedrank.search.render import day

    times = _times(one.clicks)
    like = "" if one.likeness >= SAME else "the similar words "
    instead = f", and opened a result below it instead {_times(one.passed_over)}" if one.passed_over else ""
    return f"You opened it {times} for {like}“{one.query}”, last on {day(one.time)}{instead}."


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


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
        counts = winners(store, "opponent IN (?, ?) AND state = 'closed'", ENGINE, FORGETFUL)
        return LearnedFacts(
            status.searches,
            status.clicks,
            tuple(
                Remembered(query, id, title, times, int(last)) for query, id, title, times, last in rows[:REMEMBERED]
            ),
            len(rows),
            against_engine(store),
            counts[Team.OLD],
            counts[Team.NEW],
            bool(since),
            client.rows.uses_engine,
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
