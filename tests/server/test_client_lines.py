"""The code of a client that a server prints, for the inputs that the model has; test_serve_path.py runs it."""

from __future__ import annotations

import ast
import json
import shlex

from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.server.client_lines import client_lines, client_records

GRPC, REST = ("0.0.0.0", 8001), ("0.0.0.0", 8000)


def tensor(name: str, datatype: str, *shape: int, optional: bool = False) -> TensorSpec:
    return TensorSpec(name, BY_NAME[datatype], shape, optional)


def records(*inputs: TensorSpec, batched: bool = True, model: str = "m", tls: bool = False) -> tuple[str, str]:
    signature = Signature(inputs, (tensor("y", "FP32", 2),), batched)
    [record] = client_records(model, signature, GRPC, REST, grpc_tls=tls, rest_tls=tls)
    ast.parse(str(record["python"]))
    return str(record["python"]), str(record["curl"])


def test_every_input_that_is_required_is_sent() -> None:
    python, curl = records(tensor("a", "FP32", 3), tensor("b", "BYTES", 1), tensor("c", "INT64", 2, optional=True))
    assert "triton.InferInput('a', [1, 3], 'FP32')" in python
    assert "np.zeros([1, 3], np.float32)" in python
    assert "np.full([1, 1], b'text', np.object_)" in python
    assert "'c'" not in python
    _, _, body, url = shlex.split(curl)
    assert url == "http://localhost:8000/v2/models/m/infer"
    assert [one["data"] for one in json.loads(body)["inputs"]] == [[0, 0, 0], ["text"]]


def test_open_axes_of_pictures_are_as_large_as_most_are() -> None:
    python, curl = records(tensor("image", "FP32", 3, -1, -1))
    assert "[1, 3, 224, 224]" in python
    assert curl.startswith("python3 -c ")
    assert "* 150528" in curl
    python, _ = records(tensor("image", "UINT8", -1, -1, -1, 3), batched=False)
    assert "[1, 224, 224, 3]" in python
    python, _ = records(tensor("ids", "INT64", -1), tensor("flag", "BOOL", -1), tensor("half", "BF16", 2))
    assert "np.zeros([1, 1], np.int64)" in python
    assert "np.zeros([1, 1], bool)" in python
    assert "np.zeros([1, 2], np.float32)" in python


def test_names_of_models_and_tensors_run_nothing() -> None:
    name = "'; rm -rf / #\n\x1b[31m\"$(date)`id`"
    python, curl = records(tensor(name, "FP32", 2), tensor("large", "FP32", 1000), model=name)
    assert "\x1b" not in python + curl
    assert name in [node.value for node in ast.walk(ast.parse(python)) if isinstance(node, ast.Constant)]
    words = shlex.split(curl)
    assert words[:2] == ["python3", "-c"]
    assert words[3:6] == ["|", "curl", "--data-binary"]
    assert len(words) == 8
    _, curl = records(tensor(name, "FP32", 2), model=name)
    assert json.loads(shlex.split(curl)[2])["inputs"][0]["name"] == name


def test_a_server_with_tls_is_asked_by_tls() -> None:
    python, curl = records(tensor("a", "FP32", 1), tls=True)
    assert "'localhost:8001', ssl=True" in python
    assert "https://localhost:8000/" in curl


def test_the_lines_say_what_they_are_for() -> None:
    signature = Signature((tensor("a", "FP32", -1),), (tensor("y", "FP32", 2),), batched=True)
    text = client_lines("m", signature, ("::1", 1), ("::1", 2))
    assert "; the inputs are zeros, of axes that the model leaves open one size of many:" in text
    assert "'[::1]:1'" in text


def test_the_lines_say_what_the_inputs_are() -> None:
    number, text, optional = tensor("a", "FP32", 2), tensor("b", "BYTES", 2), tensor("c", "FP32", 2, optional=True)
    for inputs, said in (
        ((text,), "; the inputs are texts:"),
        ((text, number), "; the inputs are zeros and texts:"),
        ((optional,), "; it needs no inputs:"),
    ):
        signature = Signature(inputs, (tensor("y", "FP32", 2),), batched=True)
        assert said in client_lines("m", signature, GRPC, REST)
