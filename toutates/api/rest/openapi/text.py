"""What the document says of the APIs for text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toutates.api.rest.openapi.messages import Schema
from toutates.api.rest.openapi.operations import JSON, Body, Operation

__all__ = ["TEXT_OPERATIONS"]

_OBJECT: Final[Schema] = {"type": "object"}
_ARRAY: Final[Schema] = {"type": "array", "items": {}}


def _post(summary: str, answer: Schema, example: Any) -> Operation:
    body = Body({JSON: _ARRAY if isinstance(example, list) else _OBJECT}, example, required=True)
    return Operation(summary, {JSON: answer}, body=body)


_EMBEDDINGS: Final = _post(
    "Embeddings, as OpenAI's",
    _OBJECT,
    {"model": "minilm", "input": ["a text", "another"], "encoding_format": "float"},
)
_RERANK: Final = _post(
    "Documents by their relevance, as Cohere's",
    _OBJECT,
    {"model": "reranker", "query": "a question", "documents": ["a text", "another"], "top_n": 1},
)

#: By path and method.
TEXT_OPERATIONS: Final[Mapping[str, Mapping[str, Operation]]] = {
    "/v1/embeddings": {"post": _EMBEDDINGS},
    "/embeddings": {"post": _EMBEDDINGS},
    "/v1/models": {"get": Operation("The text models, as OpenAI's", {JSON: _OBJECT})},
    "/v1/models/{id}": {"get": Operation("A text model, as OpenAI's", {JSON: _OBJECT})},
    "/": {
        "post": _post(
            "What one model computes: embeddings, classes, similarity or relevance", _ARRAY, {"inputs": "a text"}
        )
    },
    "/embed": {"post": _post("Embeddings", _ARRAY, {"inputs": ["a text", "another"]})},
    "/embed_all": {"post": _post("A vector for each token", _ARRAY, {"inputs": "a text"})},
    "/embed_sparse": {"post": _post("Sparse embeddings", _ARRAY, {"inputs": "a text"})},
    "/predict": {"post": _post("Classes by their score", _ARRAY, {"inputs": "a text"})},
    "/rerank": {
        "post": _post("Texts by their relevance", _ARRAY, {"query": "a question", "texts": ["a text", "another"]})
    },
    "/similarity": {
        "post": _post(
            "The cosine of a text with others",
            _ARRAY,
            {"inputs": {"source_sentence": "a text", "sentences": ["another"]}},
        )
    },
    "/tokenize": {"post": _post("The tokens of texts", _ARRAY, {"inputs": "a text"})},
    "/decode": {"post": _post("The texts of tokens", _ARRAY, {"ids": [101, 102]})},
    "/info": {"get": Operation("What a text model is", {JSON: _OBJECT})},
    "/health": {"get": Operation("Whether the server is ready", {})},
    "/v1/rerank": {"post": _RERANK},
    "/v2/rerank": {"post": _RERANK},
    "/v1/embedding": {"post": _post("Embeddings, as triton-grpc-proxy-rs", _ARRAY, [{"query": "a text"}])},
}
