"""The server that the contract is asked of, and how: over sockets, by clients that are not ours."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.e2e.models import CONFIG, add_model, negating_model, versioned_model
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import grpc, pb
from tests.e2e.wire import Client, framed
from tests.graphs import model, tensor
from tests.text_models import encoder_graph, make_folder

__all__ = ["SECONDS", "SERVICE", "Infer", "Reply", "ask", "call", "plain", "serving", "stream"]

SERVICE: Final = "/inference.GRPCInferenceService/"
_FLAGS: Final = (
    *("--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0"),
    *("--torchserve-api", "--torchserve-management-addr", "127.0.0.1:0"),
    *("--model-control-mode", "explicit", "--load-model", "*"),
    *("--execution-providers", "cpu", "--allow-client-shm", "--access-log-rate", "1"),
    *("--response-cache-byte-size", "1048576"),
)
SECONDS: Final = 120.0
_STATUSES: Final = {code.value[0]: code.name for code in grpc.StatusCode}
_POOLING: Final = "sentence_transformers.models.Pooling"
_CLASSES: Final = {"id2label": {str(at): name for at, name in enumerate("abcdef")}}
_ENSEMBLE: Final = """
backend: ensemble
batch_size: 4
inputs: {INPUT: {datatype: FP32, shape: [4]}}
outputs: {OUTPUT: {datatype: FP32, shape: [4]}}
steps: [{model: neg, inputs: {INPUT: INPUT}, outputs: {OUTPUT: OUTPUT}}]
"""
_TRAFFIC: Final = """
aliases: {other: {model: neg}}
traffic:
  split: {split: [{model: versions, version: 1, weight: 1}, {model: versions, version: 3, weight: 1}]}
  copied: {split: [{model: neg, weight: 1}], shadow: {model: kept}}
"""


def build_repository(root: Path) -> None:
    """Write a model of each kind that questions are about."""
    from onnx import TensorProto, helper

    add_model(root, "neg", negating_model(4), config=CONFIG.format(4, 8))
    for version in (1, 3):
        add_model(root, "versions", versioned_model(version), version)
    (root / "versions" / "config.pbtxt").write_text("version_policy: { all {} }\n")
    add_model(root, "spare", negating_model(4))
    # An hour, so that no machine is too slow for it.
    kept = "response_cache: true\nlatency_target_ms: 3600000\n"
    add_model(root, "kept", negating_model(4), config=CONFIG.format(4, 8) + kept)
    (root / "pair" / "1").mkdir(parents=True)
    (root / "pair" / "1" / "config.yaml").write_text(_ENSEMBLE)
    (root / "traffic.yaml").write_text(_TRAFFIC)
    pairs = (("body", "result"), ("head", "result_head"))
    nodes = [helper.make_node("Identity", [given], [made]) for given, made in pairs]
    inputs, outputs = ([tensor(pair[at], ["n", 1], TensorProto.STRING) for pair in pairs] for at in range(2))
    add_model(root, "echo", model(nodes, inputs, outputs))
    modules = [("1_Pooling", _POOLING, {"pooling_mode_mean_tokens": True})]
    make_folder(root / "embedder", modules=modules)
    judge = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    make_folder(root / "judge", graph=encoder_graph("logits", columns=1), modules=None, config=judge)
    mood = {"architectures": ["BertForSequenceClassification"], **_CLASSES}
    make_folder(root / "mood", graph=encoder_graph("logits"), modules=None, config=mood)


@contextmanager
def serving(folder: Path) -> Iterator[ServerProcess]:
    """A server of that repository, in a folder of its own."""
    build_repository(folder / "repository")
    with running(folder / "repository", folder, _FLAGS) as process:
        yield process


# --- HTTP -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer over HTTP."""

    status: int
    fields: Mapping[str, str]
    body: str

    @property
    def kind(self) -> str:
        """The media type, without its parameters."""
        return self.fields.get("content-type", "").partition(";")[0] or "-"


def ask(port: int, method: str, path: str, body: Any = None, fields: Mapping[str, str] = {}) -> Reply:
    """A request of a connection of its own; a body that is no bytes is sent as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    given = dict(fields)
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    if data is not None:
        given.setdefault("Content-Type", "application/json")
    try:
        connection.request(method, path, data, given)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, text)
    finally:
        connection.close()


# --- gRPC -------------------------------------------------------------------------------------------------------------


def call(client: Client, path: str, message: bytes, **more: Any) -> tuple[str, str, bytes]:
    """A unary call: the status's name, its text, and the answer."""
    answer = client.call(path, message, **more)
    status, text = answer.status
    name = _STATUSES[int(status)] if status else f"HTTP {answer.headers.get(':status')}"
    return name, _decoded(text), answer.data[5:]


def stream(client: Client, path: str, *messages: bytes) -> tuple[str, str, list[bytes]]:
    """A call of several messages: its status, its text, and the answers."""
    number = client.start(path)
    client.send(number, b"".join(framed(message) for message in messages))
    answer = client.answer(number)
    parts, data = [], answer.data
    while data:
        size = int.from_bytes(data[1:5], "big")
        parts.append(data[5 : 5 + size])
        data = data[5 + size :]
    status, text = answer.status
    return _STATUSES[int(status)], _decoded(text), parts


def _decoded(text: str) -> str:
    """The text of a status, which is percent-encoded UTF-8."""
    from urllib.parse import unquote

    return unquote(text)


# --- inference over both ----------------------------------------------------------------------------------------------

_NUMPY: Final = {"FP32": np.float32, "INT32": np.int32, "INT64": np.int64}
Input = tuple[str, str, Sequence[int], int]


@dataclass(frozen=True, slots=True)
class Infer:
    """A request for inference, for either protocol.

    Attributes:
        model, version: that it names.
        inputs: name, datatype, shape and number of values, all of them zero.
        outputs: names of those that are asked for.
        parameters: of the request.
        of_input: parameters of the first input, in place of its values.
    """

    model: str = "neg"
    version: str = ""
    inputs: Sequence[Input] = (("INPUT", "FP32", (1, 4), 4),)
    outputs: Sequence[str] = ()
    parameters: Mapping[str, int | str | bool] = field(default_factory=dict)
    of_input: Mapping[str, int | str | bool] = field(default_factory=dict)

    @property
    def message(self) -> bytes:
        """For gRPC."""
        request = pb.ModelInferRequest(model_name=self.model, model_version=self.version)
        for at, (name, datatype, shape, count) in enumerate(self.inputs):
            one = request.inputs.add(name=name, datatype=datatype, shape=shape)
            if at == 0 and self.of_input:
                _put(one.parameters, self.of_input)
            else:
                request.raw_input_contents.append(np.zeros(count, _NUMPY.get(datatype, np.float32)).tobytes())
        for name in self.outputs:
            request.outputs.add(name=name)
        _put(request.parameters, self.parameters)
        return bytes(request.SerializeToString())

    @property
    def path(self) -> str:
        """For REST."""
        version = f"/versions/{self.version}" if self.version else ""
        return f"/v2/models/{self.model}{version}/infer"

    @property
    def document(self) -> dict[str, Any]:
        """For REST."""
        inputs: list[dict[str, Any]] = []
        for at, (name, datatype, shape, count) in enumerate(self.inputs):
            one: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(shape)}
            if at == 0 and self.of_input:
                one["parameters"] = dict(self.of_input)
            else:
                one["data"] = [0] * count
            inputs.append(one)
        document: dict[str, Any] = {"inputs": inputs}
        if self.outputs:
            document["outputs"] = [{"name": name} for name in self.outputs]
        if self.parameters:
            document["parameters"] = dict(self.parameters)
        return document


def _put(parameters: Any, given: Mapping[str, int | str | bool]) -> None:
    for key, value in given.items():
        if isinstance(value, bool):
            parameters[key].bool_param = value
        elif isinstance(value, int):
            parameters[key].int64_param = value
        else:
            parameters[key].string_param = value


# --- what differs from run to run -------------------------------------------------------------------------------------

_RUNS: Final = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r": Error parsing message.*"), ": ..."),  # protobuf's own words
    (re.compile(r"127\.0\.0\.1:\d+"), "HOST:PORT"),
    # msgspec's own words
    (re.compile(r"Object missing required field `\w+`|Expected `[^`]+`, got `[^`]+`"), "..."),
    (re.compile(r"/[^\s'\"]*(?:pytest|tmp)[^\s'\"]*"), "PATH"),
)


def plain(text: str) -> str:
    """A text on one line, without addresses, paths and identifiers of this run."""
    for pattern, word in _RUNS:
        text = pattern.sub(word, text)
    return " ".join(text.split())
