"""Reranking as Cohere has it: ``/v1/rerank``, ``/v2/rerank``, and ``/rerank`` where it has ``documents``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final
from uuid import uuid4

import msgspec

from toutates.api.rest.answers import Answer, json_answer
from toutates.api.text.lookup import RERANKER
from toutates.api.text.members import RANKS
from toutates.api.text.options import Cut, options_of
from toutates.api.text.problems import Kind, Problem
from toutates.api.text.reading import BodyReader, check_count, check_texts
from toutates.api.text.routes import Asked, Computing, Form, Route
from toutates.api.text.vectors import string_of
from toutates.backends.text.interface import FoundText, Scores, TextResult
from toutates.system.json_text import encode_json

__all__ = ["FORM", "ROUTES", "RerankRequest", "ask", "asked_for", "ranked"]

_STATUSES: Final = {
    Kind.UNKNOWN_MODEL: 404,
    Kind.PATH: 404,
    Kind.METHOD: 405,
    Kind.TOO_LARGE: 413,
    Kind.UNAUTHORIZED: 401,
    Kind.FORBIDDEN: 403,
    Kind.FORM: 422,
    Kind.OVERLOADED: 429,
    Kind.FAILED: 500,
    Kind.NOT_READY: 503,
}


def refuse(problem: Problem) -> Answer:
    """Cohere's object of an error."""
    return json_answer({"message": str(problem)}, _STATUSES.get(problem.kind, 400))


FORM: Final = Form(refuse)


class _Document(msgspec.Struct):
    text: str


class RerankRequest(Cut, kw_only=True):
    """The body of a request. ``raw_scores`` is Infinity's."""

    query: str
    documents: list[str | _Document] | None = None
    model: str | None = None
    top_n: int | None = None
    return_documents: bool = False
    max_tokens_per_doc: int | None = None
    raw_scores: bool = False


def ask(request: RerankRequest, model: str) -> Asked:
    """What a request asks for.

    Raises:
        Problem: it cannot be answered.
    """
    if request.documents is None:
        raise Problem(Kind.FORM, "the body: Object missing required field `documents`", "documents")
    texts = [document if isinstance(document, str) else document.text for document in request.documents]
    check_count(len(texts), "documents")
    return asked_for(request, model, texts, partial(_write, request.top_n), FORM)


def asked_for(
    request: RerankRequest,
    model: str,
    texts: list[str],
    write: Callable[[list[str] | None, TextResult, FoundText], Iterator[bytes]],
    form: Form | None = None,
) -> Asked:
    """What a request for the relevance of texts asks for.

    Args:
        request: it.
        model: that the query names.
        texts: to be ranked.
        write: makes the answer; of the texts, if it is to repeat them.
        form: see ``Asked``.

    Raises:
        Problem: it cannot be answered.
    """
    check_texts([request.query], "query")
    if request.top_n is not None and request.top_n < 1:
        raise Problem(Kind.VALUE, f"`top_n` must be at least 1, got {request.top_n}", "top_n")

    def check(found: FoundText) -> None:
        most, limit = request.max_tokens_per_doc, found.model.info.max_tokens
        if most is not None and most < limit:
            text = f"`max_tokens_per_doc` must be at least {limit}, what the model reads of a query and a document"
            raise Problem(Kind.VALUE, text, "max_tokens_per_doc")

    shown = texts if request.return_documents else None
    pairs = [(request.query, text) for text in texts]
    bulk = 0 if shown is None else sum(map(len, shown))
    options = options_of(request, scores=Scores.RAW if request.raw_scores else Scores.PROBABILITIES)
    name = request.model or model
    return Asked(name, RERANKER, pairs, options, partial(write, shown), form, bulk=bulk, check=check)


def ranked(result: TextResult) -> list[tuple[int, float]]:
    """Indices and scores, the best first.

    Raises:
        Problem: a score is not a number.
    """
    vectors: Any = result.vectors
    scores = [float(vector[0]) for vector in vectors]
    if any(score != score for score in scores):
        raise Problem(Kind.FAILED, "the score is not a number")
    return sorted(enumerate(scores), key=lambda entry: -entry[1])


def _write(top_n: int | None, texts: list[str] | None, result: TextResult, found: FoundText) -> Iterator[bytes]:
    yield b'{"id":"%b","results":[' % str(uuid4()).encode()
    before = b""
    for index, score in ranked(result)[:top_n]:
        yield b'%b{"index":%d,"relevance_score":%b' % (before, index, encode_json(score))
        if texts is not None:
            yield b',"document":{"text":'
            yield from string_of(texts[index])
            yield b"}"
        yield b"}"
        before = b","
    tokens = sum(result.tokens)
    more = {
        "model": found.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }
    yield b"]," + encode_json(more)[1:]


_COMPUTING: Final = Computing(BodyReader(RerankRequest, RANKS), ask)
_RERANK: Final = partial(Route, form=FORM, texts="documents", post=_COMPUTING)

ROUTES: Final = (_RERANK("/v1/rerank"), _RERANK("/v2/rerank"))
