"""OpenAI's ``/v1/embeddings`` and ``/v1/models``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Literal

from toutates.api.rest.answers import Answer, json_answer
from toutates.api.text.lookup import EMBEDDER
from toutates.api.text.members import EMBEDDINGS
from toutates.api.text.options import Cut, TokenId, options_of
from toutates.api.text.problems import Kind, Problem
from toutates.api.text.reading import BodyReader, check_count, check_texts
from toutates.api.text.routes import Asked, Computing, Form, Page, Route, answer_head
from toutates.api.text.vectors import base64_of, floats_of
from toutates.backends.text.interface import DEFAULT_OPTIONS, Float32, FoundText, Text, TextResult
from toutates.system.json_text import encode_json

__all__ = ["ROUTES"]

#: By what is wrong: the status, and OpenAI's type and code.
_STATUSES: Final[dict[Kind, tuple[int, str, str | None]]] = {
    Kind.UNKNOWN_MODEL: (404, "invalid_request_error", "model_not_found"),
    Kind.PATH: (404, "invalid_request_error", None),
    Kind.METHOD: (405, "invalid_request_error", None),
    Kind.TOO_LARGE: (413, "invalid_request_error", None),
    Kind.UNAUTHORIZED: (401, "invalid_request_error", "invalid_api_key"),
    Kind.FORBIDDEN: (403, "invalid_request_error", None),
    Kind.OVERLOADED: (429, "rate_limit_error", "rate_limit_exceeded"),
    Kind.NOT_READY: (503, "server_error", None),
    Kind.FAILED: (500, "server_error", None),
}
_REFUSED: Final = (400, "invalid_request_error", None)


def refuse(problem: Problem) -> Answer:
    """OpenAI's object of an error."""
    status, kind, code = _STATUSES.get(problem.kind, _REFUSED)
    error = {"message": str(problem), "type": kind, "param": problem.param or None, "code": code}
    return json_answer({"error": error}, status)


FORM: Final = Form(refuse)

# --- embeddings ------------------------------------------------------------------------------------------------------


class EmbeddingsRequest(Cut, kw_only=True):
    """The body of a request. ``prompt_name``, ``normalize`` and those of ``Cut`` are sent by ``extra_body``."""

    input: str | list[str | TokenId | list[TokenId]]
    model: str
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    prompt_name: str | None = None
    normalize: bool | None = None


def _texts_of(given: list[Any]) -> Sequence[Text]:
    """The texts of an array: strings, arrays of ids, or ids that are one text."""
    kinds = set(map(type, given))
    if kinds == {str}:
        check_count(len(given), "input")
        check_texts(given, "input")
        return given
    if kinds == {int}:
        return [given]
    if len(kinds) > 1:
        raise Problem(
            Kind.FORM, "input: expected strings, token ids, or arrays of token ids; got several kinds", "input"
        )
    check_count(len(given), "input")
    if [] in given:
        index = given.index([])
        raise Problem(Kind.VALUE, f"`input[{index}]` cannot be empty", f"input[{index}]")
    return given


def _ask(request: EmbeddingsRequest, model: str) -> Asked:
    given = request.input
    name = request.model or model
    if not name:  # clients that are told of none write an empty one
        raise Problem(Kind.FORM, "model: Object missing required field `model`", "model")
    if type(given) is str:
        if not given:
            raise Problem(Kind.VALUE, "`input` cannot be an empty string", "input")
        texts: Sequence[Text] = (given,)
    else:
        texts = _texts_of(given)  # type: ignore[arg-type]
    options = DEFAULT_OPTIONS
    if not (
        request.dimensions is None
        and request.prompt_name is None
        and request.normalize is None
        and request.truncate is None
        and request.truncation_direction is None
        and request.truncate_prompt_tokens is None
        and request.add_special_tokens
    ):
        options = options_of(
            request, prompt=request.prompt_name, normalize=request.normalize, dimensions=request.dimensions
        )
    if request.encoding_format == "base64":
        return Asked(name, EMBEDDER, texts, options, _write_base64, write_one=_write_one_base64)
    return Asked(name, EMBEDDER, texts, options, _write_floats, write_one=_write_one_of_floats)


@lru_cache(1024)
def _tail(name: str, tokens: int) -> bytes:
    usage = b'"usage":{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
    return b'],"model":%b,%b}' % (encode_json(name), usage)


_HEAD: Final = b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":'


def _write_base64(result: TextResult, found: FoundText) -> Iterable[bytes]:
    vectors: Any = result.vectors
    tail = _tail(found.name, sum(result.tokens))
    if len(vectors) == 1:  # as it nearly always is
        return (b'%b"%b"}%b' % (_HEAD, base64_of(vectors[0]), tail),)
    return _write_many_base64(vectors, tail)


@lru_cache(1024)
def _around(name: str, tokens: int, size: int, quote: bytes) -> tuple[bytes, bytes, bytes]:
    """What ``WriteOne`` puts around a vector that takes ``size`` bytes in these quotes."""
    before, behind = _HEAD + quote, b"%b}%b" % (quote, _tail(name, tokens))
    return answer_head(len(before) + size + len(behind)), before, behind


def _write_one_base64(vector: Float32, tokens: int, found: FoundText) -> tuple[bytes, bytes, bytes, bytes]:
    text = base64_of(vector)
    head, before, behind = _around(found.name, tokens, len(text), b'"')
    return head, before, text, behind


def _write_one_of_floats(vector: Float32, tokens: int, found: FoundText) -> tuple[bytes, bytes, bytes, bytes]:
    text = floats_of(vector)
    _, before, behind = _around(found.name, tokens, 0, b"")  # their size is mostly another one
    return answer_head(len(before) + len(text) + len(behind)), before, text, behind


def _write_many_base64(vectors: Any, tail: bytes) -> Iterator[bytes]:
    yield b'%b"%b"}' % (_HEAD, base64_of(vectors[0]))
    for index in range(1, len(vectors)):
        yield b',{"object":"embedding","index":%d,"embedding":"%b"}' % (index, base64_of(vectors[index]))
    yield tail


def _write_floats(result: TextResult, found: FoundText) -> Iterator[bytes]:
    vectors: Any = result.vectors
    yield b"%b%b}" % (_HEAD, floats_of(vectors[0]))
    for index in range(1, len(vectors)):
        yield b',{"object":"embedding","index":%d,"embedding":%b}' % (index, floats_of(vectors[index]))
    yield _tail(found.name, sum(result.tokens))


# --- models ----------------------------------------------------------------------------------------------------------


def _model(found: FoundText) -> dict[str, Any]:
    # When a model was made is not known here.
    return {"id": found.name, "object": "model", "created": int(found.loaded_s), "owned_by": "toutates"}


def _models(page: Page) -> Answer:
    return json_answer({"object": "list", "data": list(map(_model, page.models))})


def _one_model(page: Page) -> Answer:
    for found in page.models:
        if found.name == page.name:
            return json_answer(_model(found))
    raise Problem(Kind.UNKNOWN_MODEL, f"The model '{page.name}' does not exist", "model")


_COMPUTING: Final = Computing(BodyReader(EmbeddingsRequest, EMBEDDINGS), _ask, "input")
_EMBEDDINGS: Final = partial(Route, form=FORM, texts="input", post=_COMPUTING)

ROUTES: Final = (
    _EMBEDDINGS("/v1/embeddings"),
    _EMBEDDINGS("/embeddings"),
    Route("/v1/models", FORM, get=_models, group="metadata"),
    Route("/v1/models/{id}", FORM, get=_one_model, group="metadata"),
)
