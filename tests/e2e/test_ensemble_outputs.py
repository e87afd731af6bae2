"""The shapes of ensembles' outputs where one model is batched and another is not, and which outputs members give."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from onnx import TensorProto, helper

from tests.e2e.process import ServerProcess, running
from tests.e2e.python_models import add_model
from tests.ensembles import add_ensemble, add_graph, pbtxt, step
from tests.graphs import model, tensor
from tests.waiting import wait_until

triton = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")
utils = pytest.importorskip("tritonclient.utils")

#: Batched graphs: y is x, of 3 numbers, of 3 texts, and of no numbers.
_NUMBERS = model([helper.make_node("Identity", ["x"], ["y"])], [tensor("x", ["n", 3])], [tensor("y", ["n", 3])])
_TEXTS = model(
    [helper.make_node("Identity", ["x"], ["y"])],
    [helper.make_tensor_value_info("x", TensorProto.STRING, ["n", 3])],
    [helper.make_tensor_value_info("y", TensorProto.STRING, ["n", 3])],
)
_OPEN = model([helper.make_node("Identity", ["x"], ["y"])], [tensor("x", ["n", "k"])], [tensor("y", ["n", "k"])])

#: Gives y alone, unless z alone was asked for; and counts what it was asked for.
_ASKED = """
def execute(self, requests):
    responses = []
    for request in requests:
        names = request.requested_output_names()
        tensors = [pb_utils.Tensor("y", np.full((1, 4), len(names), np.float32))]
        if names == {"z"}:
            tensors = [pb_utils.Tensor("z", np.full((1, 4), 10, np.float32))]
        responses.append(pb_utils.InferenceResponse(tensors))
    return responses
"""
_Z = "output [ { name: 'z' data_type: TYPE_FP32 dims: [ 4 ] } ]\n"
#: Takes b where it is there.
_OPTIONAL = """
def execute(self, requests):
    responses = []
    for request in requests:
        b = pb_utils.get_input_tensor_by_name(request, "b")
        responses.append(answer(request, input_of(request) + (0 if b is None else b.as_numpy())))
    return responses
"""
_B = 'input [ { name: "b" data_type: TYPE_FP32 dims: [ 4 ] optional: %s } ]\n'


def _last(name: str, *, reads: str = "x") -> Any:
    return [step(name, f"{reads}=IN", "y=OUT")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    for name, graph in (("numbers", _NUMBERS), ("texts", _TEXTS), ("open", _OPEN)):
        add_graph(root, name, graph)
    add_model(root, "code", "def execute(self, rs):\n    return [answer(r, input_of(r)) for r in rs]", dims="[ 3 ]")
    for name in ("numbers", "code"):
        add_ensemble(root, f"flat_{name}", pbtxt(["IN FP32 [3]"], ["OUT FP32 [3]"], _last(name), batch=0))
        add_ensemble(root, f"whole_{name}", pbtxt(["IN FP32 [-1,3]"], ["OUT FP32 [-1,3]"], _last(name), batch=0))
    add_ensemble(root, "flat_texts", pbtxt(["IN STRING [3]"], ["OUT STRING [3]"], _last("texts"), batch=0))
    add_ensemble(root, "flat_open", pbtxt(["IN FP32 [-1]"], ["OUT FP32 [-1]"], _last("open"), batch=0))
    text = pbtxt(["IN FP32 [3]"], ["OUT FP32 [3]"], _last("numbers"), batch=0)
    assert "dims: [3]  }" in text
    add_ensemble(root, "reshaped", text.replace("dims: [3]  }", "dims: [3,1] reshape { shape: [3] } }"))
    add_ensemble(root, "nested", pbtxt(["IN FP32 [3]"], ["OUT FP32 [3]"], [step("flat_numbers", "IN=IN", "OUT=OUT")]))
    add_model(root, "asked", _ASKED, more=_Z)
    add_model(root, "optional", _OPTIONAL, more=_B % "true")
    add_model(root, "required", _OPTIONAL, more=_B % "false")
    asked = ("asked", {"x": "IN"}, {"y": "Y", "z": "Z"})
    add_ensemble(root, "lacking", pbtxt(["IN FP32 [4]"], ["Y FP32 [4]", "Z FP32 [4]"], [asked]))
    for name in ("optional", "required"):
        joining = (name, {"x": "Y", "b": "Z"}, {"y": "OUT"})
        add_ensemble(root, f"into_{name}", pbtxt(["IN FP32 [4]"], ["OUT FP32 [4]", "Y FP32 [4]"], [asked, joining]))
    with running(root, tmp_path_factory.mktemp("log"), flags=["--http-addr", "127.0.0.1:0"]) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as connected:
        yield connected


def ask(client: Any, name: str, rows: Any, *outputs: str, **more: Any) -> Any:
    sent = triton.InferInput("IN", rows.shape, utils.np_to_triton_dtype(rows.dtype))
    sent.set_data_from_numpy(rows)
    asked = [triton.InferRequestedOutput(output, **more) for output in outputs] or None
    return client.infer(name, [sent], outputs=asked)


THREE = np.array([3, 1, 2], np.float32)


@pytest.mark.parametrize(
    "name", ["flat_numbers", "flat_code", "flat_open", "whole_numbers", "whole_code", "flat_texts"]
)
def test_an_answer_has_the_shape_of_its_metadata(client: Any, server: ServerProcess, name: str) -> None:
    rows = THREE if name != "flat_texts" else np.array([b"a", b"", b"bc"], object)
    rows = rows.reshape(1, 3) if name.startswith("whole") else rows
    result = ask(client, name, rows)
    declared = list(client.get_model_metadata(name).outputs[0].shape)
    given = list(result.get_output("OUT").shape)
    assert len(given) == len(declared)
    assert all(want in (-1, have) for want, have in zip(declared, given, strict=True))
    npt.assert_array_equal(result.as_numpy("OUT"), rows)
    datatype = "BYTES" if name == "flat_texts" else "FP32"
    data = [one.decode() for one in rows] if datatype == "BYTES" else rows.tolist()
    document = {"inputs": [{"name": "IN", "datatype": datatype, "shape": list(rows.shape), "data": data}]}
    url = f"http://127.0.0.1:{server.rest_port}/v2/models/{name}/infer"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(document).encode())) as answer:
        assert json.load(answer)["outputs"][0]["shape"] == given


def test_with_several_rows_a_whole_tensor_is_left_as_it_is(client: Any) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    npt.assert_array_equal(ask(client, "whole_numbers", rows).as_numpy("OUT"), rows)


def test_reshapes_and_ensembles_of_ensembles(client: Any) -> None:
    assert ask(client, "reshaped", THREE.reshape(3, 1)).as_numpy("OUT").tolist() == [[3], [1], [2]]
    assert ask(client, "nested", THREE.reshape(1, 3)).as_numpy("OUT").tolist() == [[3, 1, 2]]


def test_classes(client: Any) -> None:
    asked = {"class_count": 2}
    assert ask(client, "flat_numbers", THREE, "OUT", **asked).as_numpy("OUT").tolist() == [b"3.000000:0", b"2.000000:2"]
    several = ask(client, "nested", THREE.reshape(1, 3), "OUT", **asked).as_numpy("OUT")
    assert several.tolist() == [[b"3.000000:0", b"2.000000:2"]]


def test_tensors_of_no_elements(client: Any) -> None:
    result = ask(client, "flat_open", np.zeros(0, np.float32))
    assert list(result.get_output("OUT").shape) == [0]


FOUR = np.ones((1, 4), np.float32)


def test_members_are_asked_for_what_somebody_wants_and_may_leave_out_the_rest(client: Any) -> None:
    assert ask(client, "lacking", FOUR, "Y").as_numpy("Y").tolist() == [[1] * 4]  # the member was asked for one output
    assert ask(client, "lacking", FOUR, "Z").as_numpy("Z").tolist() == [[10] * 4]


def test_what_no_member_gives_is_lacking(client: Any, server: ServerProcess) -> None:
    for _ in range(2):
        both = ask(client, "lacking", FOUR)
        assert both.as_numpy("Y").tolist() == [[2] * 4]
        assert both.as_numpy("Z") is None
    said = "Composing models did not output tensor Z of ensemble 'lacking'"
    wait_until(lambda: said in server.log)
    assert server.log.count(said) == 1


def test_a_step_goes_without_an_optional_input_that_was_not_given(client: Any) -> None:
    assert ask(client, "into_optional", FOUR).as_numpy("OUT").tolist() == [[2] * 4]
    with pytest.raises(
        utils.InferenceServerException, match=r"expected 2 inputs but got 1 inputs for model 'required'"
    ):
        ask(client, "into_required", FOUR)
    assert ask(client, "into_required", FOUR, "Y").as_numpy("Y").tolist() == [[1] * 4]
