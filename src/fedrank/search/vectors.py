"""Document vectors of the current encoder; the feature "latent" compares them with the vector of the query."""

from __future__ import annotations

import contextlib
import os

from fedrank.progress import Progress
from fedrank.search.encoder import CHARACTERS, Encoder
from fedrank.search.results import SearchError
from fedrank.search.store import Store

_MISSING = "FROM documents WHERE NOT EXISTS (SELECT 1 FROM vectors WHERE document = id AND encoder = ?)"
BATCH = 256  # documents encoded at a time


class DocumentVectors:
    """The encoder of a store, if any, and its vectors."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.encoder: Encoder | None = None
        self.load()

    def load(self) -> None:
        """Load the store's encoder; without its file there is no encoder."""
        self.encoder = None
        if path := self.store.setting("encoder", ""):
            with contextlib.suppress(SearchError, ImportError):
                self.encoder = Encoder(path)

    @property
    def digest(self) -> str:
        return self.encoder.digest if self.encoder else ""

    def use(self, path: str | os.PathLike[str] | None) -> None:
        """Use the encoder in this ONNX file for the feature "latent", or none (the feature is then 0).

        `SearchClient.index` computes the vectors of documents.
        """
        encoder = None if path is None else Encoder(path)
        with self.store.writing():
            self.store.set(encoder="" if encoder is None else str(encoder.path))
            if encoder is None:
                self.store.db.execute("DELETE FROM vectors")
            self.encoder = encoder

    def make_missing(self, progress: Progress) -> None:
        """Encode documents that have no vector of the current encoder."""
        if self.encoder is None:
            return
        encoder, done = self.encoder, 0
        of = self.store.count(f"SELECT count(*) {_MISSING}", encoder.digest)
        while True:
            with self.store.turn:
                some = self.store.rows(f"SELECT id, title {_MISSING} ORDER BY id LIMIT {BATCH}", encoder.digest)
                texts = [f"{title}. {self.store.text(id)[:CHARACTERS]}"[:CHARACTERS] for id, title in some]
            if not some:
                return
            vectors = encoder(texts).astype("<f2")
            with self.store.writing():
                self.store.db.executemany(
                    "REPLACE INTO vectors SELECT id, ?, ? FROM documents WHERE id = ?",
                    ((encoder.digest, one.tobytes(), id) for one, (id, _) in zip(vectors, some, strict=True)),
                )
            done += len(some)
            progress("encode", done, of, f"{done:,} of {of:,} documents")
