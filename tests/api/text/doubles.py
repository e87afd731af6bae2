"""A text model of made-up vectors."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.signatures import signature
from toutates.backends.text.interface import (
    Encoded,
    Fault,
    SparseVector,
    Task,
    TextError,
    TextInfo,
    TextModel,
    TextOptions,
    TextResult,
    TextTimes,
    VectorForm,
)
from toutates.system.errors import Overloaded

__all__ = ["CLASSIFIER", "EMBEDDER", "RERANKER", "SPARSE", "Double", "as_vector", "vector_of"]

_VOCABULARY = 1_000
EMBEDDER = TextInfo(
    Task.EMBED,
    VectorForm.DENSE,
    max_tokens=16,
    dimensions=8,
    vocabulary=_VOCABULARY,
    pooling="mean",
    prompts={"query": "query: "},
    model_type="bert",
)
SPARSE = TextInfo(Task.EMBED, VectorForm.SPARSE, max_tokens=16, dimensions=_VOCABULARY, vocabulary=_VOCABULARY)
RERANKER = TextInfo(
    Task.RERANK, VectorForm.DENSE, max_tokens=16, dimensions=1, vocabulary=_VOCABULARY, labels=("LABEL_0",)
)
CLASSIFIER = TextInfo(
    Task.CLASSIFY, VectorForm.DENSE, max_tokens=16, dimensions=2, vocabulary=_VOCABULARY, labels=("bad", "good")
)


def vector_of(text: str, dimensions: int = 8) -> Any:
    """The vector that the double makes of a text: always the same one."""
    random = np.random.default_rng(zlib.crc32(text.encode()))
    vector = random.standard_normal(dimensions).astype(np.float32)
    return vector / np.linalg.norm(vector)


def as_vector(values: Any) -> Any:
    """Numbers of JSON as float32."""
    return np.array(values, np.float32)


class Tokenizer:
    """A token is a word; special tokens are two, around them."""

    def count(self, text: str, *, add_special_tokens: bool = True) -> int:
        return len(text.split()) + 2 * add_special_tokens

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Encoded:
        words = text.split()
        starts = [text.index(word) for word in words]
        ids = [zlib.crc32(word.encode()) % _VOCABULARY for word in words]
        spans = [(start, start + len(word)) for start, word in zip(starts, words, strict=True)]
        special = [False] * len(words)
        if add_special_tokens:
            ids, words, spans = [1, *ids, 2], ["[CLS]", *words, "[SEP]"], [(0, 0), *spans, (0, 0)]
            special = [True, *special, True]
        return Encoded(ids, words, spans, special)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if max(ids, default=0) >= _VOCABULARY:
            raise TextError(f"the vocabulary has no token {max(ids)}", Fault.TOKEN_ID)
        return " ".join(f"w{token}" for token in ids if not (skip_special_tokens and token < 3))


class Double(TextModel):
    """A text model.

    Attributes:
        asked, callers: texts with their options, and whose they were.
        held: while it is a list, texts wait in it.
    """

    def __init__(self, info: TextInfo = EMBEDDER) -> None:
        self._info = info
        self.asked: list[tuple[Sequence[Any], TextOptions]] = []
        self.callers: list[object] = []
        self.held: list[Callable[[], None]] | None = None
        self.signature = signature([], [], batched=False)
        self.ready = True
        self.full = False

    @property
    def info(self) -> TextInfo:
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def add(
        self,
        texts: Sequence[Any],
        options: TextOptions,
        on_done: Callable[[TextResult], object],
        is_wanted: Callable[[int], bool] = lambda by_ns: True,
        arrived_ns: int | None = None,
        caller: object = None,
    ) -> None:
        self.check(options)
        if self.full:
            raise Overloaded("the model has as many texts under way as it may have")
        self.asked.append((texts, options))
        self.callers.append(caller)

        def compute() -> None:
            on_done(self._result(texts, options))

        compute() if self.held is None else self.held.append(compute)

    def commit(self) -> None:
        """See ``TextModel``."""

    def _result(self, texts: Sequence[Any], options: TextOptions) -> TextResult:
        tokens = []
        for index, text in enumerate(texts):
            if isinstance(text, str | tuple):
                words = text.split() if isinstance(text, str) else [*text[0].split(), *text[1].split()]
                count = len(words) + 2
            else:
                if max(text) >= _VOCABULARY:
                    message = f"token id {max(text)} is not below {_VOCABULARY}"
                    return TextResult(error=TextError(message, Fault.TOKEN_ID, index=index))
                count = len(text)
            if count > self.info.max_tokens:
                if options.truncate is False:
                    error = TextError("too long", Fault.TOO_LONG, index=index, tokens=count, limit=self.info.max_tokens)
                    return TextResult(error=error)
                count = self.info.max_tokens
            tokens.append(count)
        vectors = [self._vector(text, count, options) for text, count in zip(texts, tokens, strict=True)]
        return TextResult(vectors, tokens, None, TextTimes(1_000, 2_000, 3_000_000))

    def _vector(self, text: Any, count: int, options: TextOptions) -> Any:
        info = self.info
        name = " ".join(text) if isinstance(text, tuple) else text if isinstance(text, str) else f"ids {list(text)}"
        if options.prompt:
            name = info.prompts[options.prompt] + name
        if name == "not a number":
            return np.full(info.dimensions, np.nan, np.float32)
        if info.form is VectorForm.SPARSE:
            return SparseVector(np.arange(count, dtype=np.int32), vector_of(name, count), info.dimensions)
        if options.token_vectors:
            return np.stack([vector_of(f"{name} {at}", info.dimensions) for at in range(count)])
        vector = vector_of(name, info.dimensions)
        vector = vector if info.task is Task.EMBED else np.abs(vector)
        return vector if options.dimensions is None else vector[: options.dimensions]
