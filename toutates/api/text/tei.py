"""The routes of text-embeddings-inference, with its bodies, statuses and types of errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from toutates.api.rest.answers import Answer, json_answer
from toutates.api.text import cohere
from toutates.api.text.lookup import ANY, CLASSIFIER, EMBEDDER, SPARSE, TOKENS
from toutates.api.text.members import CLASSES, RANKS, TEI_EMBEDDINGS, TEI_OTHERS, TEI_SIMILARITY, TEI_TOKENS, Members
from toutates.api.text.options import Cut, TokenId, options_of
from toutates.api.text.problems import Kind, Problem
from toutates.api.text.reading import MAX_INPUTS, BodyReader, check_count, check_texts
from toutates.api.text.routes import Asked, ByTask, Computing, Form, Page, Route, Stepwise, with_ignored
from toutates.api.text.vectors import arrays_of, floats_of, sparse_of, string_of
from toutates.backends.text.interface import FoundText, Scores, Task, Text, TextOptions, TextResult, VectorForm
from toutates.system.errors import anew
from toutates.system.json_text import encode_json
from toutates.system.text import writable

__all__ = ["MAX_TOKEN_TEXTS", "ROUTES"]

#: Texts of one request for the vectors of all tokens, which are hundreds for each; TEI's limit for any request.
MAX_TOKEN_TEXTS: Final = 32
#: Bytes that such vectors may have together, as far as that is known beforehand.
MAX_TOKEN_BYTES: Final = 33_554_432
#: Characters of a text for /tokenize, for each token that the model takes; TEI's own limit.
CHARACTERS_PER_TOKEN: Final = 250


# --- errors ----------------------------------------------------------------------------------------------------------

#: By what is wrong: the status, and TEI's type.
_STATUSES: Final = {
    Kind.EMPTY: (400, "Empty"),
    Kind.UNKNOWN_MODEL: (404, "Validation"),
    Kind.FORBIDDEN: (403, "Validation"),
    Kind.TOKENIZER: (422, "Tokenizer"),
    Kind.WRONG_MODEL: (424, "Backend"),
    Kind.FAILED: (424, "Backend"),
    Kind.OVERLOADED: (429, "Overloaded"),
    Kind.NOT_READY: (503, "Unhealthy"),
}
_REFUSED: Final = (422, "Validation")
#: What TEI refuses before a handler sees it, as plain text.
_PLAIN: Final = {
    Kind.SYNTAX: 400,
    Kind.FORM: 422,
    Kind.MEDIA_TYPE: 415,
    Kind.TOO_LARGE: 413,
    Kind.PATH: 404,
    Kind.METHOD: 405,
}
_TEXT: Final = b"content-type: text/plain; charset=utf-8\r\n"


def refuse(problem: Problem) -> Answer:
    """TEI's object of an error, or a plain text."""
    if problem.kind is Kind.UNAUTHORIZED:
        return Answer(401, b"www-authenticate: Bearer\r\n", b"")
    plain = _PLAIN.get(problem.kind)
    if plain is not None:
        return Answer(plain, _TEXT, writable(str(problem)).encode())
    status, kind = _STATUSES.get(problem.kind, _REFUSED)
    before = "Backend error: " if kind == "Backend" else ""
    return json_answer({"error": before + str(problem), "error_type": kind}, status)


FORM: Final = Form(refuse, needs_json=True)

# --- what requests have in common ------------------------------------------------------------------------------------

_Input = str | list[str | TokenId | list[TokenId]]


def _texts_of(given: Any, most: int = MAX_INPUTS) -> Sequence[Text]:
    """The texts of ``inputs``: a string, ids of one text, or an array of strings and arrays of ids."""
    if isinstance(given, str):
        given = [given]
    check_count(len(given), "inputs", most if given and not isinstance(given[0], int) else len(given))
    kinds = set(map(type, given))
    if int in kinds:
        if len(kinds) > 1:
            raise Problem(Kind.FORM, "inputs: expected texts, or the token ids of one text, got both", "inputs")
        return [given]
    check_texts(given, "inputs")
    if [] in given:
        index = given.index([])
        raise Problem(Kind.VALUE, f"`inputs[{index}]` cannot be empty", f"inputs[{index}]")
    texts: Sequence[Text] = given
    return texts


def _fields(result: TextResult, asked: Asked) -> bytes:
    """TEI's header fields. Its times are whole milliseconds, which say little here, so some are in microseconds too."""
    times = result.times
    texts = asked.texts
    characters = sum([sum(map(len, text)) if isinstance(text, tuple) else len(text) for text in texts])
    total_ns = times.tokenizing_ns + times.queue_ns + times.inference_ns
    return (
        b"x-compute-characters: %d\r\nx-compute-tokens: %d\r\nx-compute-time: %d\r\nx-total-time: %d\r\n"
        b"x-tokenization-time: %d\r\nx-queue-time: %d\r\nx-inference-time: %d\r\n"
        b"x-total-time-us: %d\r\nx-tokenization-time-us: %d\r\nx-queue-time-us: %d\r\nx-inference-time-us: %d\r\n"
    ) % (
        characters,
        sum(result.tokens),
        *[ns // 1_000_000 for ns in (total_ns, total_ns, times.tokenizing_ns, times.queue_ns, times.inference_ns)],
        *[ns // 1_000 for ns in (total_ns, times.tokenizing_ns, times.queue_ns, times.inference_ns)],
    )


_asked: Final = partial(Asked, fields=_fields)

# --- embeddings ------------------------------------------------------------------------------------------------------


class TokensRequest(Cut, kw_only=True):
    """The body of /embed_all and /embed_sparse."""

    inputs: _Input
    model: str | None = None
    prompt_name: str | None = None


class EmbedRequest(TokensRequest, kw_only=True):
    """The body of /embed."""

    normalize: bool = True
    dimensions: int | None = None


def _embed(request: EmbedRequest, model: str) -> Asked:
    options = options_of(
        request, prompt=request.prompt_name, normalize=request.normalize, dimensions=request.dimensions
    )
    return _asked(request.model or model, EMBEDDER, _texts_of(request.inputs), options, _write_vectors)


def _write_vectors(result: TextResult, found: FoundText) -> Iterator[bytes]:
    vectors: Any = result.vectors
    return arrays_of(vectors)


def _embed_all(request: TokensRequest, model: str) -> Asked:
    options = options_of(request, prompt=request.prompt_name, token_vectors=True)
    texts = _texts_of(request.inputs, MAX_TOKEN_TEXTS)

    def check(found: FoundText) -> None:
        info = found.model.info
        # A token has a byte at least.
        tokens = sum([min(info.max_tokens, 4 * len(text) + 16) for text in texts])
        if 4 * info.dimensions * tokens > MAX_TOKEN_BYTES:
            text = f"the vectors of all tokens of these texts may have more than {MAX_TOKEN_BYTES} bytes; send fewer"
            raise Problem(Kind.TOO_MANY, text, "inputs")

    return _asked(request.model or model, TOKENS, texts, options, _write_token_vectors, check=check)


def _array(texts: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
    """Pieces of an array of what each item has the pieces of."""
    before = b"["
    for pieces in texts:
        for piece in pieces:
            yield before + piece
            before = b""
        before = b","
    yield b"]"


def _write_token_vectors(result: TextResult, found: FoundText) -> Iterator[bytes]:
    vectors: Any = result.vectors
    return _array(map(arrays_of, vectors))


def _embed_sparse(request: TokensRequest, model: str) -> Asked:
    texts, options = _texts_of(request.inputs), options_of(request, prompt=request.prompt_name)
    return _asked(request.model or model, SPARSE, texts, options, _write_sparse)


def _write_sparse(result: TextResult, found: FoundText) -> Iterator[bytes]:
    vectors: Any = result.vectors
    return _array(map(sparse_of, vectors))


# --- scores ----------------------------------------------------------------------------------------------------------


class PredictRequest(Cut, kw_only=True):
    """The body of /predict. ``activation`` and ``top_k`` are what the Hugging Face Hub's client asks for."""

    inputs: str | list[str | list[str]]
    model: str | None = None
    raw_scores: bool = False
    activation: Literal["sigmoid", "softmax"] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=1)] | None = None


def _pair(texts: list[str], member: str) -> Text:
    """A text, or a pair of texts, as an array."""
    if not 1 <= len(texts) <= 2:
        raise Problem(Kind.FORM, f"{member}: expected one string, or a pair of them, got {len(texts)}", member)
    check_texts(texts, member)
    return texts[0] if len(texts) == 1 else (texts[0], texts[1])


def _predict(request: PredictRequest, model: str) -> Asked:
    given: Any = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    check_count(len(given), "inputs")
    kinds = set(map(type, given))
    if len(kinds) > 1:
        raise Problem(Kind.FORM, "inputs: expected strings, or arrays of strings, got both", "inputs")
    is_batch = kinds == {list}
    if is_batch:
        texts = [_pair(item, f"inputs[{index}]") for index, item in enumerate(given)]
    else:
        texts = [_pair(given, "inputs")]
    scores = Scores.RAW if request.raw_scores else _ACTIVATIONS[request.activation]
    write = partial(_write_classes, is_batch, request.top_k)
    return _asked(request.model or model, CLASSIFIER, texts, options_of(request, scores=scores), write)


_ACTIVATIONS: Final = {None: Scores.PROBABILITIES, "sigmoid": Scores.SIGMOID, "softmax": Scores.SOFTMAX}


def _write_classes(is_batch: bool, most: int | None, result: TextResult, found: FoundText) -> Iterator[bytes]:
    labels = found.model.info.labels
    before = b"[" if is_batch else b""
    vectors: Any = result.vectors
    for vector in vectors:
        scores = vector.tolist()
        order = np.argsort(-vector, kind="stable").tolist()[:most]
        yield before + encode_json([{"score": _number(scores[at]), "label": _label(labels, at)} for at in order])
        before = b","
    if is_batch:
        yield b"]"


def _label(labels: Sequence[str], index: int) -> str:
    return labels[index] if index < len(labels) else f"LABEL_{index}"


def _number(score: float) -> float:
    if score != score:
        raise Problem(Kind.FAILED, "the score is not a number")
    return score


class RerankRequest(cohere.RerankRequest, kw_only=True):
    """The body of /rerank, or of Cohere's /rerank, which has ``documents`` in place of ``texts``."""

    texts: list[str] | None = None


def _rerank(request: RerankRequest, model: str) -> Asked:
    if request.documents is not None and request.texts is None:
        return cohere.ask(request, model)
    if request.texts is None:
        raise Problem(Kind.FORM, "the body: Object missing required field `texts`", "texts")
    texts = request.texts
    check_count(len(texts), "texts")
    asked = cohere.asked_for(request, model, texts, partial(_write_ranks, request.top_n))
    return msgspec.structs.replace(asked, fields=_fields)


def _write_ranks(most: int | None, texts: list[str] | None, result: TextResult, found: FoundText) -> Iterator[bytes]:
    before = b"["
    for index, score in cohere.ranked(result)[:most]:
        yield b'%b{"index":%d,"score":%b' % (before, index, encode_json(score))
        if texts is not None:
            yield b',"text":'
            yield from string_of(texts[index])
        yield b"}"
        before = b","
    yield b"]"


class _Sentences(msgspec.Struct):
    source_sentence: str
    sentences: list[str]


class SimilarityRequest(Cut, kw_only=True):
    """The body of /similarity, with the members of its ``parameters``."""

    inputs: _Sentences
    model: str | None = None
    prompt_name: str | None = None


def _similarity(request: SimilarityRequest, model: str) -> Asked:
    sentences = request.inputs.sentences
    check_count(len(sentences), "inputs.sentences", MAX_INPUTS - 1)
    check_texts([request.inputs.source_sentence], "inputs.source_sentence")
    check_texts(sentences, "inputs.sentences")
    options = options_of(request, prompt=request.prompt_name, normalize=True)
    texts = [request.inputs.source_sentence, *sentences]
    return _asked(request.model or model, EMBEDDER, texts, options, _write_similarities)


def _write_similarities(result: TextResult, found: FoundText) -> Iterator[bytes]:
    source, *others = (np.asarray(vector, np.float32) for vector in result.vectors)
    yield floats_of(np.array([vector @ source for vector in others], np.float32))


# --- tokens ----------------------------------------------------------------------------------------------------------


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of /tokenize."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str | None = None


def _tokenize(request: TokenizeRequest, model: str) -> Stepwise:
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    check_count(len(texts), "inputs")
    check_texts(texts, "inputs")
    name, add_special_tokens = request.prompt_name, request.add_special_tokens

    def steps(found: FoundText) -> Iterator[bytes]:
        info, tokenizer = found.model.info, found.model.tokenizer
        if name is not None:
            found.model.check(TextOptions(prompt=name))
        prompt = info.prompts[name] if name else ""
        most = CHARACTERS_PER_TOKEN * info.max_tokens
        for index, text in enumerate(texts):
            if len(text) > most:
                member = f"inputs[{index}]"
                raise Problem(
                    Kind.VALUE, f"`{member}` must have less than {most} characters. Given: {len(text)}", member
                )
        before = b"["
        for text in texts:
            encoded = tokenizer.encode(prompt + text, add_special_tokens=add_special_tokens)
            tokens = [
                {
                    "id": token,
                    "text": string,
                    "special": special,
                    "start": None if special else start,
                    "stop": None if special else stop,
                }
                for token, string, (start, stop), special in zip(
                    encoded.ids, encoded.tokens, encoded.offsets, encoded.special, strict=True
                )
            ]
            yield before + encode_json(tokens)
            before = b","
        yield b"]"

    return Stepwise(request.model or model, steps)


class DecodeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of /decode."""

    ids: list[TokenId | list[TokenId]]
    skip_special_tokens: bool = True
    model: str | None = None


def _decode(request: DecodeRequest, model: str) -> Stepwise:
    given: list[Any] = request.ids
    kinds = set(map(type, given))
    if len(kinds) > 1:
        raise Problem(Kind.FORM, "ids: expected token ids, or arrays of token ids, got both", "ids")
    texts = [given] if kinds == {int} else given
    check_count(len(texts), "ids")

    def steps(found: FoundText) -> Iterator[bytes]:
        before = b"["
        for ids in texts:
            text = found.model.tokenizer.decode(ids, skip_special_tokens=request.skip_special_tokens)
            yield before + encode_json(text)
            before = b","
        yield b"]"

    return Stepwise(request.model or model, steps)


# --- the server ------------------------------------------------------------------------------------------------------


def _info(page: Page) -> Answer:
    found = page.find(page.name, ANY)
    info = found.model.info
    classes = {
        "id2label": {str(index): label for index, label in enumerate(info.labels)},
        "label2id": {label: index for index, label in enumerate(info.labels)},
    }
    kind: dict[str, Any] = {"embedding": {"pooling": _POOLINGS.get(info.pooling, info.pooling or "none")}}
    if info.form is VectorForm.SPARSE:
        kind = {"embedding": {"pooling": "splade"}}
    if info.task is not Task.EMBED:
        kind = {"reranker" if info.task is Task.RERANK else "classifier": classes}
    return json_answer(
        {
            "model_id": found.name,
            "model_sha": None,
            "model_dtype": info.datatype,
            "served_model_name": found.name,
            "model_type": kind,
            "max_concurrent_requests": info.max_texts,
            "max_input_length": info.max_tokens,
            "max_batch_tokens": info.max_batch_tokens,
            "max_batch_requests": None,
            "max_client_batch_size": MAX_INPUTS,
            "auto_truncate": info.truncate,
            **page.limits,
        }
    )


_POOLINGS: Final = {"lasttoken": "last_token"}


def _health(page: Page) -> Answer:
    if page.healthy:
        return Answer(200, b"", b"")
    raise Problem(Kind.NOT_READY, "unhealthy")


def _own(document: dict[str, Any], model: str) -> Any:
    """What a body for the server itself asks for: TEI has one model there, and clients send what it computes."""
    if isinstance(document.get("inputs"), dict):
        return _of(_SIMILARITY, document, model)
    if document.get("query") is not None:
        return _of(_RERANK, document, model)
    asked: dict[Task, Asked | Problem] = {}
    for task, computing in ((Task.EMBED, _EMBED), (Task.CLASSIFY, _PREDICT)):
        try:
            asked[task] = _of(computing, document, model)
        except Problem as problem:
            asked[task] = anew(problem)
    name = document.get("model")
    return ByTask(name if name and isinstance(name, str) else model, asked)


def _of(computing: Computing, document: dict[str, Any], model: str) -> Any:
    request, ignored = computing.reader.convert(document)
    asked: Any = computing.ask(request, model)
    return with_ignored(asked, ignored) if ignored else asked


def _computing(kind: type[Any], ask: Any, members: Members = TEI_OTHERS) -> Computing:
    return Computing(BodyReader(kind, members), ask)


_EMBED: Final = _computing(EmbedRequest, _embed, TEI_EMBEDDINGS)
_PREDICT: Final = _computing(PredictRequest, _predict, CLASSES)
_RERANK: Final = _computing(RerankRequest, _rerank, RANKS)
_SIMILARITY: Final = _computing(SimilarityRequest, _similarity, TEI_SIMILARITY)


def _route(path: str, computing: Computing, texts: str = "inputs") -> Route:
    return Route(path, FORM, texts=texts, post=computing)


ROUTES: Final = (
    _route("/", Computing(BodyReader(dict[str, Any]), _own)),
    _route("/embed", _EMBED),
    _route("/embed_all", _computing(TokensRequest, _embed_all, TEI_TOKENS)),
    _route("/embed_sparse", _computing(TokensRequest, _embed_sparse, TEI_TOKENS)),
    _route("/predict", _PREDICT),
    _route("/rerank", _RERANK, "texts"),
    _route("/similarity", _SIMILARITY),
    _route("/tokenize", _computing(TokenizeRequest, _tokenize)),
    _route("/decode", _computing(DecodeRequest, _decode), "ids"),
    Route("/info", FORM, get=_info, group="metadata"),
    Route("/health", FORM, get=_health, group="health"),
)
