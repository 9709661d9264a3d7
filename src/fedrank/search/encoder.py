"""A text encoder from an ONNX file that the user provides: semantic similarity as the feature "latent".

Nothing is downloaded, and vectors stay in the store. A model has either one input of strings, or `input_ids` (and
optionally `attention_mask`, `token_type_ids`) with a `vocab.txt` in the same folder, as sentence encoders of the BERT
family are exported. Its output is one vector per text, or one per token; token vectors are averaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.files import read_bytes, read_text
from fedrank.progress import Progress
from fedrank.search.results import SearchError
from fedrank.search.store import Store

LARGEST = 2 << 30  # bytes of a model
TOKENS = 128  # encoded per text
CHARACTERS = 1_000  # encoded per document, title first
BATCH = 32  # texts encoded at a time
_MISSING = "FROM documents WHERE NOT EXISTS (SELECT 1 FROM vectors WHERE document = id AND encoder = ?)"
AT_ONCE = 256  # documents whose vectors are stored at a time
_PIECE = re.compile(r"\w+|[^\w\s]")


class Encoder:
    """Maps texts to unit vectors."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            import onnxruntime  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError:
            raise ImportError("an encoder requires the package onnxruntime: pip install onnxruntime") from None
        self.path = Path(path).expanduser().absolute()
        try:
            data = read_bytes(self.path, LARGEST)
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            options.intra_op_num_threads = 1
            self._session: Any = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except OSError as problem:
            raise SearchError(f"{self.path}: {problem.strerror}; give the ONNX file of an encoder") from None
        except Exception as problem:  # the runtime defines its own exceptions
            raise SearchError(
                f"{self.path} cannot be loaded; give the ONNX file of an encoder: {problem}".splitlines()[0]
            ) from None
        self.digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        self._inputs = {one.name: one.type for one in self._session.get_inputs()}
        self._vocabulary: dict[str, int] = {}
        if "input_ids" in self._inputs:
            beside = self.path.with_name("vocab.txt")
            try:
                self._vocabulary = {word: number for number, word in enumerate(read_text(beside).split("\n"))}
            except (OSError, ValueError):
                raise SearchError(
                    f"{beside} is missing or unreadable; an encoder with input_ids needs its vocabulary in this file"
                ) from None
        elif [*self._inputs.values()] != ["tensor(string)"]:
            raise SearchError(
                f"{self.path} has the inputs {sorted(self._inputs)}; an encoder has input_ids or one input of strings"
            )
        self.dimensions = self(["test"]).shape[1]

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[texts, dimensions] unit vectors; zeros for a text that gives no vector."""
        found = [self._some(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        return np.concatenate(found) if found else np.zeros((0, self.dimensions), np.float32)

    def _some(self, texts: Sequence[str]) -> NDArray[np.float32]:
        mask: NDArray[Any] = np.ones((len(texts), 1), np.float32)
        if self._vocabulary:
            ids = [self._pieces(text) for text in texts]
            given = np.zeros((len(texts), max(map(len, ids))), np.int64)
            mask = np.zeros(given.shape, np.int64)
            for row, tokens in enumerate(ids):
                given[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
            all_inputs = {"input_ids": given, "attention_mask": mask, "token_type_ids": np.zeros_like(given)}
            feed: dict[str, Any] = {name: all_inputs[name] for name in self._inputs if name in all_inputs}
        else:
            feed = {next(iter(self._inputs)): np.array(texts, dtype=object)}
        try:
            out = np.asarray(self._session.run(None, feed)[0], np.float32)
        except Exception as problem:
            raise SearchError(f"{self.path} failed to encode a text: {problem}".splitlines()[0]) from None
        if out.ndim == 3:
            share = mask[:, :, None].astype(np.float32)
            out = (out * share).sum(axis=1) / np.maximum(share.sum(axis=1), 1.0)
        if out.ndim != 2 or len(out) != len(texts):
            raise SearchError(
                f"{self.path} returned an array of shape {out.shape} for {len(texts)} texts; an encoder returns one "
                "vector per text"
            )
        out = np.nan_to_num(out, nan=0.0, posinf=0.0, neginf=0.0)
        length = np.linalg.norm(out, axis=1, keepdims=True)
        unit: NDArray[np.float32] = np.divide(out, length, out=np.zeros_like(out), where=length > 0)
        return unit

    def _pieces(self, text: str) -> list[int]:
        """WordPiece tokens: every word is split into the longest pieces in the vocabulary."""
        known = self._vocabulary
        unknown = known.get("[UNK]", 0)
        plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
        out = [known.get("[CLS]", unknown)]
        for word in _PIECE.findall(plain[: 8 * TOKENS]):
            start, pieces = 0, []
            while start < len(word):
                end = len(word)
                while end > start and (("##" if start else "") + word[start:end]) not in known:
                    end -= 1
                if end == start:
                    pieces = [unknown]
                    break
                pieces.append(known[("##" if start else "") + word[start:end]])
                start = end
            out += pieces
        return [*out[: TOKENS - 1], known.get("[SEP]", unknown)]


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
                some = self.store.rows(f"SELECT id, title {_MISSING} ORDER BY id LIMIT {AT_ONCE}", encoder.digest)
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
