"""Python models as people write them for Triton: what they import, how they make objects, and what they get wrong."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from tests.e2e import python_models
from tests.e2e.process import ServerProcess, running
from tests.waiting import wait_until

triton = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")
utils = pytest.importorskip("tritonclient.utils", reason="has no wheel for free-threaded Python")

#: What a model evaluates, and what comes of it: a value, or what is raised.
EXPRESSIONS = {
    "call_by_bytes": (
        "call(model_name=b'identity', requested_output_names=[b'y']).exec().output_tensors()[0].as_numpy().tolist()",
        "[[1.0, 1.0, 1.0, 1.0]]",
    ),
    "c_module": ("c_utils.Tensor is pb_utils.Tensor and c_utils.TritonError is pb_utils.TritonError", "True"),
    "no_name": ("call(requested_output_names=[None])", "TypeError"),
    "empty_name": (
        "call(requested_output_names=[''], request_id='r')",
        "TritonModelException: Requested output name for request with id 'r' and model name 'identity' should not be "
        "empty.",
    ),
    "a_text_for_names": ("call(requested_output_names='y')", "TypeError"),
    "no_input": ("call(inputs=[None])", "TritonModelException: Input tensor for request with id '' and model name"),
    "no_inputs": ("call(inputs=None)", "TypeError"),
    "no_model": ("call(model_name=None)", "TypeError"),
    "a_number_for_a_model": ("call(model_name=3)", "TypeError"),
    "no_dlpack": ("pb_utils.Tensor.from_dlpack('x', None)", "TritonModelException: Provided tensor is not supported."),
    "dlpack_without_name": ("pb_utils.Tensor.from_dlpack(None, np.ones(1))", "TypeError"),
    "no_tensors": ("pb_utils.InferenceResponse(output_tensors=None)", "TypeError"),
    "an_empty_tensor": ("pb_utils.Tensor('x', None)", "TypeError"),
    "a_response_without_tensors": ("pb_utils.InferenceResponse().output_tensors()", ""),
}
ASKING = """
def execute(self, requests):
    def call(**more):
        ones = [pb_utils.Tensor("x", np.ones((1, 4), np.float32))]
        given = {"model_name": "identity", "requested_output_names": ["y"], "inputs": ones, **more}
        return pb_utils.InferenceRequest(**given)

    responses = []
    for request in requests:
        text = input_of(request)[0, 0].decode()
        try:
            said = str(eval(text, {**globals(), "call": call}))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        responses.append(answer(request, np.array([[said.encode()]], object)))
    return responses
"""
FORKING = """
def execute(self, requests):
    import json, threading
    said = {}
    requests[0].get_response_sender()
    for name in ("call", "send", "ask", "ready"):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                if name == "call":
                    ones = [pb_utils.Tensor("x", np.ones((1, 4), np.float32))]
                    pb_utils.InferenceRequest(
                        model_name="identity", requested_output_names=["y"], inputs=ones
                    ).exec()
                elif name == "send":
                    requests[0].get_response_sender().send(answer(requests[0], input_of(requests[0])), flags=1)
                elif name == "ask":
                    requests[0].is_cancelled()
                else:
                    pb_utils.is_model_ready("identity")
                text = "nothing was raised"
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writing, text.encode())
            os._exit(0)
        os.close(writing)
        said[name] = os.read(reading, 10_000).decode()
        os.waitpid(child, 0)
    text = np.array([[json.dumps(said).encode()]], object)
    return [answer(request, text) for request in requests]
"""
RAISING_LATE = """
def execute(self, requests):
    for request in requests:
        request.get_response_sender().send(answer(request, input_of(request)), flags=1)
    raise ValueError("too late for anybody")
"""
RAISING_LATER = """
async def execute(self, requests):
    for request in requests:
        request.get_response_sender().send(answer(request, input_of(request)), flags=1)
    raise ValueError("too late for the loop")
"""
RAISING_AFTER_THE_ONE = """
def execute(self, requests):
    for request in requests:
        request.get_response_sender().send(answer(request, input_of(request)), flags=1)
    raise ValueError("too late for the one")
"""
_TEXTS = """
input [ { name: "x" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
_DECOUPLED = "model_transaction_policy { decoupled: true }"


@pytest.fixture(scope="module", params=["process", "thread"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, isolation: str) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    add_model = partial(python_models.add_model, isolation=isolation)
    head = "import c_python_backend_utils as c_utils\n" + python_models.HEAD
    add_model(root, "asking", ASKING, tensors=False, more=_TEXTS, head=head)
    add_model(root, "forking", FORKING, tensors=False, more=_TEXTS)
    folder = add_model(root, "identity")
    for name in ("assets", "tokenizer", "__pycache__", "1/weights", "02", "v3"):
        (folder / name).mkdir()
        (folder / name / "a_file").write_text("")
    add_model(root, "late", RAISING_LATE, more=_DECOUPLED)
    add_model(root, "later", RAISING_LATER, more=_DECOUPLED)
    add_model(root, "one", RAISING_AFTER_THE_ONE)
    add_model(root, "lacking", head="import no_such_package\n" + python_models.HEAD)
    flags = ["--model-control-mode", "explicit", "--load-model", "*", "--exit-on-error", "false"]
    with running(root, tmp_path_factory.mktemp("log"), flags=flags) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as connected:
        yield connected


def tell(client: Any, model: str, text: str) -> str:
    sent = triton.InferInput("x", [1, 1], "BYTES")
    sent.set_data_from_numpy(np.array([[text.encode()]], object))
    return str(client.infer(model, [sent]).as_numpy("y")[0, 0].decode())


def ones() -> Any:
    sent = triton.InferInput("x", [1, 4], "FP32")
    sent.set_data_from_numpy(np.ones((1, 4), np.float32))
    return sent


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_what_is_made_and_what_is_raised(client: Any, name: str) -> None:
    expression, expected = EXPRESSIONS[name]
    assert tell(client, "asking", expression).startswith(expected)


def test_arguments_of_the_process_are_none(client: Any, isolation: str) -> None:
    if isolation == "process":
        assert tell(client, "asking", "sys.argv") == "['']"


def test_a_forked_process_hears_at_once_that_it_cannot_call(client: Any, isolation: str) -> None:
    said = json.loads(tell(client, "forking", ""))
    names = ["call", "send", "ask", "ready"] if isolation == "process" else ["call"]
    for name in names:
        assert said[name].startswith("TritonModelException: This process was forked by the model"), said
    assert tell(client, "asking", "1") == "1"  # and the instance goes on


@pytest.mark.parametrize("model", ["late", "later"])
def test_what_is_raised_after_the_last_response_is_in_the_log(server: ServerProcess, model: str) -> None:
    with triton.InferenceServerClient(server.address) as client:
        got: list[Any] = []
        client.start_stream(lambda result, error: got.append(error or result))
        client.async_stream_infer(model, [ones()])
        wait_until(lambda: bool(got))
        client.stop_stream()
    assert np.array_equal(got[0].as_numpy("y"), np.ones((1, 4)))
    words = {"late": "ValueError: too late for anybody", "later": "ValueError: too late for the loop"}
    wait_until(lambda: words[model] in server.log)


def test_so_is_what_is_raised_after_the_one_response(client: Any, server: ServerProcess) -> None:
    assert np.array_equal(client.infer("one", [ones()]).as_numpy("y"), np.ones((1, 4)))
    wait_until(lambda: "ValueError: too late for the one" in server.log)


def test_a_missing_package_is_told_with_where_it_belongs(client: Any, isolation: str) -> None:
    [reason] = [one.reason for one in client.get_model_repository_index().models if one.name == "lacking"]
    assert "ModuleNotFoundError: No module named 'no_such_package'" in reason
    assert "Packages that a model imports belong into the server's Python" in reason
    assert ("EXECUTION_ENV_PATH" in reason) is (isolation == "process")


def test_folders_of_a_model_are_no_warning_unless_they_may_be_versions(server: ServerProcess) -> None:
    passed = [line for line in server.log.splitlines() if "identity" in line and "is passed over" in line]
    assert len(passed) == 2
    assert {"'02'", "'v3'"} == {f"'{Path(line.split(chr(39))[1]).name}'" for line in passed}


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
def test_an_environment_that_a_load_brings_goes_with_its_version(client: Any) -> None:
    marker = f"bin/{uuid4().hex}"
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        program = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
        for name, text in (("bin/activate", ""), ("bin/python", program), (marker, "")):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o755
            archive.addfile(member, BytesIO(text.encode()))
    code = (
        python_models.HEAD
        + "    def execute(self, requests):\n        return [answer(r, input_of(r) + 1) for r in requests]"
    )
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": [4]}
    where = {"EXECUTION_ENV_PATH": {"string_value": "$$TRITON_MODEL_DIRECTORY/env.tar"}}
    config = {"backend": "python", "max_batch_size": 8, "input": [tensor], "output": [{**tensor, "name": "y"}]}
    files = {"file:1/model.py": code.encode(), "file:env.tar": packed.getvalue()}

    def unpacked() -> list[Path]:
        return list(Path(gettempdir()).glob(f"toutates-environments-*/*/{marker}"))

    for _ in range(2):
        client.load_model("with_environment", config=json.dumps({**config, "parameters": where}), files=files)
        assert np.array_equal(client.infer("with_environment", [ones()]).as_numpy("y"), np.full((1, 4), 2))
        # Of the load before, nothing is left; it is removed beside the server's work.
        wait_until(lambda: len(unpacked()) == 1)
    client.unload_model("with_environment")
    wait_until(lambda: not unpacked())


def test_files_of_a_load_may_begin_with_the_folder_as_their_root(client: Any) -> None:
    code = (
        python_models.HEAD
        + "    def execute(self, requests):\n        return [answer(r, input_of(r) + 1) for r in requests]"
    )
    tensors = [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]
    outputs = [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}]
    config = json.dumps({"backend": "python", "max_batch_size": 8, "input": tensors, "output": outputs})
    client.load_model("brought", config=config, files={"file:/1/model.py": code.encode()})
    assert np.array_equal(client.infer("brought", [ones()]).as_numpy("y"), np.full((1, 4), 2))
    for again in ("file:1/model.py", "file:1//model.py", "file:./1/model.py", "file:/1/./model.py"):
        twice = {"file:/1/model.py": code.encode(), again: code.encode()}
        with pytest.raises(utils.InferenceServerException, match="names a file that another one names too"):
            client.load_model("brought", config=config, files=twice)
    with pytest.raises(utils.InferenceServerException, match="must name a file in the model's directory"):
        client.load_model("brought", config=config, files={"file:/etc/passwd": b""})
    client.unload_model("brought")
