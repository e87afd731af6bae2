"""A refused request of a MiB is gone when it is answered, at every door, and without the collector of garbage."""

from __future__ import annotations

import gc
import gzip
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from onnx import TensorProto, helper

from tests.e2e.http import peer_of, post
from tests.e2e.models import add_model, greedy_model, negating_model
from tests.e2e.wire import PLAIN, client_of
from tests.graphs import model, tensor
from tests.server.inside import Inside, serve
from tests.text_models import make_folder
from tests.waiting import wait_until
from toutates.protocol import grpc_service_pb2 as pb
from toutates.server.options import TorchServeOptions

SERVICE: Final = "/inference.GRPCInferenceService/"
#: Long enough to tell what is a request's from all else.
LARGE: Final = 2**20
POOLING: Final = "sentence_transformers.models.Pooling"
TEXT: Final = "x" * LARGE
#: Takes one request at a time, each of 8 values at most.
WIDTH: Final = 2**18

#: What a client sends of one kind, by the name of the refusal.
Cases = dict[str, Any]


def infer(model: str = "wide", **fields: Any) -> Any:
    """A request of a MiB that the model "wide" would answer."""
    shape, raw = fields.pop("shape", [1, WIDTH]), fields.pop("raw", bytes(LARGE))
    tensor = {"name": fields.pop("input", "INPUT"), "datatype": fields.pop("datatype", "FP32"), "shape": shape}
    inputs = [pb.ModelInferRequest.InferInputTensor(**tensor)]
    return pb.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=[raw], **fields)


def calls() -> Cases:
    """Messages of ModelInfer that are refused."""
    wanted = [pb.ModelInferRequest.InferRequestedOutputTensor(name="NONE")]
    of_sequence = {"sequence_id": pb.InferParameter(string_param=TEXT)}
    return {
        "an id": lambda: infer(id=TEXT),
        "a name": lambda: infer(TEXT),
        "a version": lambda: infer(model_version=TEXT),
        "a model": lambda: infer("nothing"),
        "a shape": lambda: infer(shape=[1, 3]),
        "a datatype": lambda: infer(datatype="INT32"),
        "an input": lambda: infer(input="NONE"),
        "an input's name": lambda: infer(input=TEXT),
        "an output": lambda: infer(outputs=wanted),
        "too short": lambda: infer(raw=bytes(LARGE - 4)),
        "too many rows": lambda: infer(shape=[2, WIDTH], raw=bytes(2 * LARGE)),
        "a sequence": lambda: infer(parameters=of_sequence),
        "strings": lambda: infer("texts", datatype="BYTES", shape=[1, 1], raw=b"\xff" * LARGE),
        "a run that fails": lambda: infer("greedy", datatype="INT64", shape=[1, 1], raw=(2**60).to_bytes(8, "little")),
        "no message": lambda: b"\xff" * LARGE,
    }


def bodies() -> Cases:
    """Bodies of inference in JSON that are refused, with the path."""

    def document(**fields: Any) -> str:
        one = {"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4], **fields.pop("tensor", {})}
        return json.dumps({"inputs": [one], **fields})

    return {
        "an id": ("/v2/models/wide/infer", document(id=TEXT)),
        "a model": ("/v2/models/nothing/infer", document(id=TEXT)),
        "a shape": ("/v2/models/wide/infer", document(tensor={"data": [7] * (LARGE // 3)})),
        "numbers": (
            "/v2/models/wide/infer",
            document(tensor={"data": [7] * (LARGE // 3) + ["x"], "shape": [1, LARGE // 3 + 1]}),
        ),
        "a datatype": ("/v2/models/wide/infer", document(tensor={"datatype": TEXT})),
        "an input": ("/v2/models/wide/infer", document(tensor={"name": TEXT})),
        "an output": ("/v2/models/wide/infer", document(outputs=[{"name": TEXT}])),
        "a parameter": ("/v2/models/wide/infer", document(parameters={"sequence_id": [TEXT]})),
        "strings": ("/v2/models/texts/infer", document(tensor={"datatype": "BYTES", "shape": [1, 2], "data": [TEXT]})),
        "a run that fails": (
            "/v2/models/greedy/infer",
            document(tensor={"datatype": "INT64", "data": [2**60], "shape": [1, 1]}),
        ),
        "no JSON": ("/v2/models/wide/infer", TEXT),
        "half of it": ("/v2/models/wide/infer", document(id=TEXT)[:-5]),
        "no inputs": ("/v2/models/wide/infer", json.dumps({"inputs": TEXT})),
    }


def pages() -> Cases:
    """Bodies that other pages refuse, with the page."""
    named = {"model": "minilm", "input": TEXT}
    return {
        "settings of the log": ("/v2/logging", json.dumps({"log_file": TEXT})),
        "no settings": ("/v2/logging", TEXT),
        "settings of traces": ("/v2/trace/setting", json.dumps({"trace_level": [TEXT]})),
        "an unknown model to load": ("/v2/repository/models/none/load", json.dumps({"parameters": {"config": TEXT}})),
        "an index": ("/v2/repository/index", TEXT),
        "nowhere": ("/nowhere", TEXT),
        "a text for a model that is none": ("/v1/embeddings", json.dumps({**named, "model": "wide"})),
        "a text for an unknown model": ("/v1/embeddings", json.dumps({**named, "model": TEXT})),
        "a member": ("/v1/embeddings", json.dumps({**named, "dimensions": "x"})),
        "a text of many": ("/v1/embeddings", json.dumps({**named, "input": [TEXT[:1000]] * 1_000 + [5]})),
        "no JSON for texts": ("/v1/embeddings", TEXT),
        "half a JSON for texts": ("/v1/embeddings", json.dumps(named)[:-4]),
        "TEI's": ("/embed", json.dumps({"inputs": [TEXT, 5]})),
        "TEI's with a wrong member": ("/embed", json.dumps({"inputs": TEXT, "truncate": "x"})),
        "TEI's of any task": ("/", json.dumps({"inputs": [TEXT, 5]})),
        "Cohere's": ("/v2/embed", json.dumps({"model": "minilm", "texts": [TEXT], "input_type": TEXT})),
        "a ranking": ("/rerank", json.dumps({"query": TEXT, "texts": ["one"]})),
        "a prediction": ("/predictions/nothing", TEXT),
        "a prediction of numbers": ("/predictions/wide", TEXT),
        "a prediction of JSON": ("/predictions/wide", json.dumps({"inputs": [TEXT]})),
    }


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    add_model(root, "wide", negating_model(WIDTH), config="backend: supertensor\nbatch_size: 1\ncapacity: 1\n")
    add_model(root, "greedy", greedy_model())
    strings = [tensor(name, ["n", 1], TensorProto.STRING) for name in ("INPUT", "OUTPUT")]
    add_model(root, "texts", model([helper.make_node("Identity", ["INPUT"], ["OUTPUT"])], strings[:1], strings[1:]))
    make_folder(root / "minilm", modules=[("1_Pooling", POOLING, {"pooling_mode_mean_tokens": True})])
    return root


def kept() -> list[str]:
    """Errors with frames behind them and large pieces of memory, held by what was made since the freeze."""
    found = []
    interval_s = sys.getswitchinterval()
    # A thread that goes on with a tuple that it makes, while a list of all objects has it too, fails (CPython 3.11).
    sys.setswitchinterval(3_600)
    try:
        for one in gc.get_objects():
            if isinstance(one, BaseException):
                if one.__traceback__ is not None and type(one).__module__.startswith("toutates"):
                    found.append(repr(one)[:200])
                continue
            held = [other for other in gc.get_referents(one) if isinstance(other, bytes | bytearray | str)]
            found += [f"a {type(one).__name__} has {other[:99]!r}" for other in held if len(other) > LARGE // 2]
        del one, held
    finally:
        sys.setswitchinterval(interval_s)
    return found


def ask_grpc(port: int, message: Any, method: str = "ModelInfer", *, coded: bool = False) -> bool:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    fields = [("grpc-encoding", "gzip")] if coded else []
    with client_of(port) as client:
        answer = client.call(SERVICE + method, gzip.compress(data, 1) if coded else data, fields, int(coded))
        return answer.status[0] != "0" or bool(pb.ModelStreamInferResponse.FromString(answer.data[5:]).error_message)


def ask_http1(port: int, path: str, body: str) -> bool:
    with peer_of(port) as peer:
        return peer.ask(post(path, body, "Content-Type: application/json")).status >= 400


def ask_http2(port: int, path: str, body: str) -> bool:
    with client_of(port) as client:
        stream_id = client.start(path, [*PLAIN, ("content-type", "application/json")])
        client.send(stream_id, body.encode())
        return client.answer(stream_id).headers[":status"] >= "400"


#: How each door is asked, and what it refuses.
DOORS: Final[Mapping[str, tuple[Callable[..., bool], Callable[[], Cases]]]] = {
    "gRPC": (lambda port, make: ask_grpc(port, make()), calls),
    "gRPC, compressed": (lambda port, make: ask_grpc(port, make(), coded=True), calls),
    "a stream": (lambda port, make: ask_grpc(port, make(), "ModelStreamInfer"), calls),
    "inference by HTTP/1.1": (lambda port, case: ask_http1(port, *case), bodies),
    "inference by HTTP/2": (lambda port, case: ask_http2(port, *case), bodies),
    "pages by HTTP/1.1": (lambda port, case: ask_http1(port, *case), pages),
    "pages by HTTP/2": (lambda port, case: ask_http2(port, *case), pages),
}


@pytest.mark.parametrize("door", DOORS)
def test_nothing_is_left_of_what_was_refused(repository: Path, door: str) -> None:
    ask, cases = DOORS[door]

    def visit(inside: Inside) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            left = cases()
            while left:
                name, case = left.popitem()
                assert ask(inside.port, case), name
                del case
            wait_until(lambda: not kept())
        finally:
            gc.enable()

    serve(repository, visit, torchserve=TorchServeOptions())
