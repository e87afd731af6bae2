"""``POST /v1/embedding`` of triton-grpc-proxy-rs, a REST front of embedding models in Triton.

It takes its model from the environment, as the proxy does, and the model need not be a text model: any that makes one
FP32 vector of one BYTES element will do, such as an ensemble of a tokenizer and an encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from toutates.api.rest.answers import Answer, json_answer
from toutates.api.text.lookup import EMBEDDER
from toutates.api.text.problems import Kind, Problem
from toutates.api.text.reading import BodyReader, check_count, check_texts
from toutates.api.text.routes import Asked, Computing, Form, Route
from toutates.api.text.vectors import floats_of
from toutates.backends.text.interface import (
    DEFAULT_OPTIONS,
    FoundText,
    Task,
    Text,
    TextInfo,
    TextModel,
    TextOptions,
    TextResult,
    TextTokenizer,
    VectorForm,
    text_models,
)
from toutates.engine.calls import ModelCall, Outcome
from toutates.engine.tensor import Tensor
from toutates.models.table import ModelTable, ServedVersion
from toutates.protocol.datatypes import BY_NAME, join_strings

__all__ = ["ProxySettings", "read_proxy_settings", "route_of"]

#: The proxy's own name of a model, where the environment has none.
DEFAULT_MODEL: Final = "model"
DEFAULT_INPUT: Final = "text"
DEFAULT_OUTPUT: Final = "embedding"

_STATUSES: Final = {
    Kind.UNKNOWN_MODEL: 404,
    Kind.PATH: 404,
    Kind.METHOD: 405,
    Kind.TOO_LARGE: 413,
    Kind.UNAUTHORIZED: 401,
    Kind.FORBIDDEN: 403,
    Kind.OVERLOADED: 429,
    Kind.FAILED: 500,
    Kind.NOT_READY: 503,
}


def refuse(problem: Problem) -> Answer:
    """The proxy's object of an error."""
    return json_answer({"msg": str(problem)}, _STATUSES.get(problem.kind, 400))


FORM: Final = Form(refuse)


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """What the proxy's environment says.

    Attributes:
        model: MODEL_NAME; "" for the model "model", or else the only embedding model.
        version: MODEL_VERSION; "" for the newest.
        input: INPUT_NAME; "" for "text", or else the only input. Text models have no use for it.
        output: OUTPUT_NAME; "" for "embedding", or else the only output.
        size: EMBEDDING_SIZE, which vectors have to have; None for any.
        problem: sentence about a variable that cannot be used, with which each request is refused; "" if there is none.
    """

    model: str = ""
    version: str = ""
    input: str = ""
    output: str = ""
    size: int | None = None
    problem: str = ""


def read_proxy_settings(environment: Mapping[str, str]) -> ProxySettings:
    """Read the proxy's variables. Those of the server that it stands before, TRITON_SERVER_*, mean nothing here.

    Their names are anybody's: a pipeline may have set them for something else. So one that cannot be used is no reason
    not to start. This API alone refuses its requests.
    """
    numbers: dict[str, int | None] = {}
    problem = ""
    for name in ("MODEL_VERSION", "EMBEDDING_SIZE"):
        text = environment.get(name, "").strip()
        usable = text.isascii() and text.isdigit() and 0 < int(text[:18]) < 2**31
        if text and not usable:
            problem = f"the server's environment variable {name} is no number above 0: correct or unset it"
        numbers[name] = int(text) if usable else None
    version, size = numbers["MODEL_VERSION"], numbers["EMBEDDING_SIZE"]
    return ProxySettings(
        environment.get("MODEL_NAME", ""),
        "" if version is None else str(version),
        environment.get("INPUT_NAME", ""),
        environment.get("OUTPUT_NAME", ""),
        size,
        problem,
    )


# --- requests --------------------------------------------------------------------------------------------------------


class _Query(msgspec.Struct):
    query: str


def route_of(settings: ProxySettings) -> Route:
    """The proxy's route."""
    computing = Computing(BodyReader(list[_Query]), partial(_ask, settings))
    return Route("/v1/embedding", FORM, texts="query", post=computing)


def _ask(settings: ProxySettings, queries: list[_Query], model: str) -> Asked | Answer:
    if settings.problem:
        raise Problem(Kind.FAILED, settings.problem)
    if not queries:
        return json_answer([])
    texts = [one.query for one in queries]
    check_count(len(texts), "the body")
    check_texts(texts, "query")
    find = partial(_find, settings, model)
    return Asked(model, EMBEDDER, texts, DEFAULT_OPTIONS, partial(_write, settings.size), find=find)


def _write(size: int | None, result: TextResult, found: FoundText) -> Iterator[bytes]:
    before = b"["
    vectors: Any = result.vectors
    for vector in vectors:
        if size is not None and len(vector) != size:
            text = f"the vectors of the model '{found.name}' have {len(vector)} values, and EMBEDDING_SIZE is {size}"
            raise Problem(Kind.FAILED, text)
        yield before + b'{"embedding":%b}' % floats_of(vector)
        before = b","
    yield b"]"


# --- models ----------------------------------------------------------------------------------------------------------


def _find(settings: ProxySettings, name: str, table: ModelTable) -> FoundText:
    """The model that answers.

    Raises:
        RequestError: there is none.
    """
    name = name or settings.model
    if not name:
        fitting = [found for found in text_models(table) if EMBEDDER.fits(found.model.info)]
        if len(fitting) == 1 and DEFAULT_MODEL not in table.models:
            return fitting[0]
        name = DEFAULT_MODEL
    version = table.find(name, settings.version)
    servable = version.servable
    if isinstance(servable, TextModel):
        if not EMBEDDER.fits(servable.info):
            raise Problem(Kind.WRONG_MODEL, f"the model '{name}' is not {EMBEDDER.noun}")
        return FoundText(version.model, version.number, servable)
    return FoundText(version.model, version.number, _TensorModel(version, settings))


class _TensorModel(TextModel):
    """A model that makes an FP32 vector of a BYTES element, as far as this API needs a text model.

    Args:
        version: of the model.
        settings: which name its tensors.

    Raises:
        Problem: it has no such tensors.
    """

    def __init__(self, version: ServedVersion, settings: ProxySettings) -> None:
        signature = version.signature
        self._version = version
        self._input = _named(version, signature.inputs, settings.input, DEFAULT_INPUT, "BYTES", "input")
        name = _named(version, signature.outputs, settings.output, DEFAULT_OUTPUT, "FP32", "output")
        self._output = [output.name for output in signature.outputs].index(name)

    @property
    def info(self) -> TextInfo:
        return TextInfo(Task.EMBED, VectorForm.DENSE, max_tokens=0, dimensions=0, vocabulary=0)

    @property
    def tokenizer(self) -> TextTokenizer:
        raise Problem(Kind.WRONG_MODEL, "the model has no tokenizer here")

    def add(
        self,
        texts: Sequence[Text],
        options: TextOptions,
        on_done: Callable[[TextResult], object],
        is_wanted: Callable[[int], bool] = lambda by_ns: True,
        arrived_ns: int | None = None,
        caller: object = None,
    ) -> None:
        content = join_strings([text.encode() for text in texts if isinstance(text, str)])
        done = partial(self._done, len(texts), on_done)
        call = ModelCall(len(texts), done, (self._output,), is_wanted)
        tensor = Tensor(BY_NAME["BYTES"], (len(texts), 1), content)
        self._version.calls.call(call, {self._input: tensor})

    def commit(self) -> None:
        """See ``TextModel``: calls are begun at once, so that nothing is left to do."""

    def _done(self, texts: int, on_done: Callable[[TextResult], object], outcome: Outcome) -> None:
        if outcome.error is not None:
            on_done(TextResult(error=outcome.error))
            return
        content = outcome.content(self._output, batched=self._version.signature.batched)
        values = np.frombuffer(bytes(content), np.float32)
        if not values.size or values.size % texts:
            on_done(TextResult(error=Problem(Kind.FAILED, "the model has not given one vector for each text")))
            return
        on_done(TextResult(vectors=list(values.reshape(texts, -1)), tokens=[0] * texts))


def _named(version: ServedVersion, specs: Sequence[Any], name: str, default: str, datatype: str, what: str) -> str:
    """The tensor of a datatype that is meant: the one that is named, or that has the default name, or the only one."""
    names = [spec.name for spec in specs if spec.datatype.name == datatype]
    wanted = name or (names[0] if len(names) == 1 else default)
    if wanted not in names:
        raise Problem(
            Kind.WRONG_MODEL, f"the model '{version.model}' has no {what} '{wanted}' of datatype {datatype} for texts"
        )
    return wanted
