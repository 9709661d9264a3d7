"""Settings of a search folder: its language, whether it learns, and how results are ordered."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import cast

from fedrank.data.live_features import LIVE_1, FeatureSet
from fedrank.extras import missing_extra
from fedrank.search.impressions import ImpressionRows
from fedrank.search.results import Order, SearchError
from fedrank.search.store import Store


class SearchSettings:
    """The user's settings."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def learns(self) -> bool:
        """Whether searches and clicks are recorded and learned from."""
        return bool(self.store.setting("learn", 1))

    @property
    def order(self) -> Order:
        """How results are ordered."""
        return cast(Order, self.store.setting("order", "learned"))

    def set_order(self, order: Order) -> None:
        """Set how results are ordered."""
        if order not in ("learned", "fixed", "engine"):
            raise SearchError(f"order must be learned, fixed or engine (got {order!r})")
        with self.store.writing():
            self.store.set(order=order)


def features_of(store: Store, language: str | None) -> FeatureSet:
    """The features of a folder; its language is set at creation and cannot change."""
    known = store.setting("language")
    if known is None:
        known = language or LIVE_1.stemmer
    elif language not in (None, known):
        raise SearchError(
            f"{store.folder} was created with the language {known} (got {language}); use another folder for {language}"
        )
    features = check_language(known)
    if (version := store.setting("features", features.version)) != features.version:
        raise SearchError(
            f"{store.folder} has the features {version!r}, but this version of fedrank has {features.version!r}; index "
            "the documents again in a new folder"
        )
    return features


def check_language(language: str) -> FeatureSet:
    """The features with the stemmer of a language; an unknown language is refused."""
    features = LIVE_1 if language == LIVE_1.stemmer else FeatureSet(language)
    try:
        features.query("words")
    except ImportError:
        raise missing_extra("search requires the package PyStemmer", "search") from None
    except (KeyError, ValueError) as problem:
        raise SearchError(str(problem)) from None
    return features


def begin(rows: ImpressionRows, clock: Callable[[], float]) -> None:
    """Give a new folder its features and a random key."""
    store, features = rows.store, rows.features
    if store.setting("chance") is None:
        with store.writing():
            if store.setting("chance") is None:
                store.set(features=features.version, language=features.stemmer)
                store.set(chance=secrets.randbits(62), created=clock())
