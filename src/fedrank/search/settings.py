"""Settings of a search folder: its language, whether it learns, and how results are ordered."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import cast

from fedrank.data.live_features import LIVE_1, FeatureSet
from fedrank.extras import missing_extra
from fedrank.search.impressions import ImpressionRows, first_weights
from fedrank.search.results import Order, SearchError
from fedrank.search.store import Store


class SearchSettings:
    """What a person chose."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def learns(self) -> bool:
        """Whether searches and clicks are recorded and learned from."""
        return bool(self.store.setting("learn", 1))

    @property
    def order(self) -> Order:
        """How results are ordered now."""
        return cast(Order, self.store.setting("order", "drawn"))

    def set_order(self, order: Order) -> None:
        """How results are ordered from now on; only "drawn" lists teach."""
        if order not in ("drawn", "fixed", "engine"):
            raise SearchError(f"order {order}: there is drawn, fixed and engine")
        with self.store.writing():
            self.store.set(order=order)


def features_of(store: Store, language: str | None) -> FeatureSet:
    """The features that a folder has, or begins with; it keeps the language that it began with."""
    known = store.setting("language")
    if known is None:
        known = language or LIVE_1.stemmer
    elif language not in (None, known):
        raise SearchError(f"{store.folder} began with the language {known}, not {language}; use another folder")
    features = LIVE_1 if known == LIVE_1.stemmer else FeatureSet(known)
    try:
        features.query("words")
    except ImportError:
        raise missing_extra("searching needs the package PyStemmer", "search") from None
    except (KeyError, ValueError) as problem:
        raise SearchError(f"no stemmer for {known!r}: {problem}") from None
    if (version := store.setting("features", features.version)) != features.version:
        raise SearchError(f"{store.folder} has features {version!r}, and this is {features.version!r}; index anew")
    return features


def begin(rows: ImpressionRows, clock: Callable[[], float]) -> None:
    """Give a new folder its first model and a key of its own chance."""
    store, features = rows.store, rows.features
    if store.setting("model") is None:
        with store.writing():
            if store.setting("model") is None:
                store.set(
                    features=features.version, language=features.stemmer, chance=secrets.randbits(62), created=clock()
                )
                rows.new_model(clock(), "the engine's order", first_weights(features))
