"""The APIs for text over HTTP, without sockets: a model of made-up vectors, and a connection to ask it by."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h11
import numpy as np

from tests.api.support import plane_of
from tests.e2e.http import Answer, read_answer
from tests.waiting import wait_until
from toutates.access.gate import Gate
from toutates.access.key_file import read_key_file
from toutates.access.worker_gate import WorkerGate
from toutates.api.doors import Doors
from toutates.api.rest.answers import error_answer
from toutates.api.rest.calls import RestHttpCall
from toutates.api.rest.inference import RestTransport
from toutates.api.restrictions import RestrictedProtocol
from toutates.api.text.handler import TextApis, TextSettings
from toutates.api.text.observing import TextObserver
from toutates.api.text.work import TextWork
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
from toutates.h2grpc.budget import MemoryBudget
from toutates.http1 import Limits, Refused
from toutates.infer.counters import InferCounters
from toutates.infer.inflight import Inflight
from toutates.infer.observing import Observation, Observer, Sampling
from toutates.infer.tracing.record import TracedRequest
from toutates.infer.tracing.settings import TraceSetting, TraceSettings
from toutates.infer.tracing.tracer import WorkerTraces
from toutates.models.table import ModelEntry, ModelState, ModelTable, ServedVersion, VersionEntry
from toutates.net.http1.call import LargeRequest
from toutates.net.http1.connection import HttpConnection
from toutates.net.side_thread import SideThread
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature
from toutates.system.errors import Overloaded, RequestError

__all__ = [
    "CLASSIFIER",
    "EMBEDDER",
    "RERANKER",
    "SPARSE",
    "Answer",
    "Double",
    "Front",
    "as_vector",
    "front",
    "inflight",
    "key_file",
    "request",
    "vector_of",
]

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
        self.signature = Signature((), (), batched=False)
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


class _Worker:
    """As much of a worker as connections and APIs need; its thread is the test's."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.soon: list[Callable[[], None]] = []
        self.call_soon = self.at_round_end = self.soon.append
        self.dirty: list[Any] = []
        self.limits = SimpleNamespace(max_unsent_bytes=2**22)
        self.budget = MemoryBudget(2**40)
        self.limit_hits = {"message_size": 0, "header_list_size": 0}
        self.bugs: list[Exception] = []
        self.incidents = SimpleNamespace(bug=lambda what, error, peer="": self.bugs.append(error))

    def connection_failed(self, call: Any, error: Exception) -> None:
        raise error

    def peer(self, call: Any) -> str:
        return "here"


class Front:
    """A server of doubles, with one connection.

    Args:
        models: by name.
        side: the thread beside the worker's.
        options: of ``TextApis`` and ``TextWork``, where a test wants others.
    """

    def __init__(self, models: Mapping[str, Any], worker: _Worker, side: SideThread, **options: Any) -> None:
        kept: Any = worker
        self.worker: Any = kept
        self.table = table_of(models)
        self.plane = plane_of(SimpleNamespace(table=self.table))
        self.plane.get_table = lambda: self.table
        path = options.get("key_file")
        self.keys: Any = None if path is None else Gate(partial(read_key_file, path))
        gate: Any = self.keys
        self.counters = InferCounters()
        self.observed: list[Observation] = []
        observer = Observer(RestTransport(kept))
        self.trace_settings = TraceSettings(TraceSetting())
        self.traced: list[TracedRequest] = []
        traces = WorkerTraces(kept, observer, self.trace_settings, self.traced.append)
        observer.sample(Sampling(self.observed.append), 1)
        self.work = TextWork(
            kept, side, lambda: self.table, TextObserver(kept, self.counters, observer, traces), options.get("inflight")
        )
        secrets: Mapping[str, RestrictedProtocol] = options.get("secrets", {})
        settings = options.get("settings", TextSettings())
        doors = Doors(secrets, None if path is None else WorkerGate(gate, kept))
        self.apis = TextApis(self.plane, self.work, doors, settings, 64 * 1024 * 1024)
        self.connect()

    def connect(self) -> None:
        """Begin another connection."""
        self.connection = HttpConnection(self.worker, Limits(), self._admit, self._refused, RestHttpCall)
        self.connection.bind(None)

    def _admit(self, head: Any) -> int:
        most = self.apis.admit(head)
        if most is None:
            raise Refused(404, "none of these APIs")
        return most

    def _refused(self, refusal: Refused) -> tuple[bytes, bytes]:
        _, fields, body = error_answer(refusal.status, refusal.text)
        return fields, body

    def send(self, octets: bytes) -> None:
        """Hand in bytes as a worker does."""
        calls = self.connection.receive_data(octets, 0)
        while True:
            for event in calls:
                call = event.call if isinstance(event, LargeRequest) else event
                if isinstance(call, RestHttpCall):
                    try:
                        call.head.purpose.handle(call)
                    except RequestError as error:
                        call.fail(error)
                    call.body = b""
            if not self.connection.behind:
                return
            calls = self.connection.go_on(0)

    def ask(self, path: str, document: Any = None, *, method: str = "", **fields: str) -> Answer:
        """A request and its answer; ``document`` is the body, as bytes or as what becomes JSON."""
        self.send(request(path, document, method=method, **fields))
        return self.read()

    def read(self) -> Answer:
        """The next answer."""
        return read_answer(h11.Connection(h11.CLIENT), self._next_output)

    def _next_output(self) -> bytes:
        soon = self.worker.soon

        def step() -> bool:
            while soon:
                soon.pop(0)()
            return bool(self.connection.has_output)

        wait_until(step)
        assert not self.worker.bugs, self.worker.bugs
        return b"".join(self.connection.take_output())


def request(path: str, document: Any = None, *, method: str = "", **fields: str) -> bytes:
    """The bytes of a request."""
    body = document if isinstance(document, bytes) else b"" if document is None else json.dumps(document).encode()
    has_body = document is not None
    lines = [f"{method or ('POST' if has_body else 'GET')} {path} HTTP/1.1", "host: here"]
    named = {"content_type": "application/json"} | fields if has_body else fields
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in named.items() if value]
    lines += [f"content-length: {len(body)}"] if has_body else []
    return "\r\n".join((*lines, "", "")).encode() + body


def table_of(models: Mapping[str, Any]) -> ModelTable:
    """A table that serves these."""
    entries = {}
    for name, model in models.items():
        served = ServedVersion(name, 1, ModelConfig(name=name), model)
        entries[name] = ModelEntry(name, {1: VersionEntry(1, ModelState.READY, served=served)})
    return ModelTable(entries)


@contextmanager
def front(models: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """A server of an embedding model, or of others."""
    worker = _Worker()
    side = SideThread("side", worker.call_soon)
    try:
        yield Front({"minilm": Double()} if models is None else models, worker, side, **options)
    finally:
        side.stop()


def key_file(folder: Path, *keys: str) -> Path:
    """A file of keys."""
    path = folder / "keys"
    path.write_text("# who may\n\n" + "\n".join(keys) + "\n")
    return path


def inflight(most: int) -> Inflight:
    """A bound on requests."""
    return Inflight(most, most)
