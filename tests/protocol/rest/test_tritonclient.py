"""What tritonclient's HTTP client writes is read, and what is answered it reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.protocol.rest.support import TARGET, by_form
from toutates.infer.validation import validate
from toutates.protocol.datatypes import BY_NAME, encode_bytes_tensor
from toutates.protocol.infer_response import WireTensor
from toutates.protocol.rest.cutting import cut
from toutates.protocol.rest.request import InferRequest, read_request
from toutates.protocol.rest.response import ResponseTemplate
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import InvalidRequest

pytest.importorskip("geventhttpclient", reason="has no wheels here")
http: Any = pytest.importorskip("tritonclient.http")

FLOATS = np.arange(8, dtype=np.float32).reshape(1, 8)
TEXTS = np.array([["\u00e9", "]"]], np.object_)
SIGNATURE = Signature(
    (TensorSpec("x", BY_NAME["FP32"], (8,)), TensorSpec("t", BY_NAME["BYTES"], (2,), optional=True)),
    (TensorSpec("y", BY_NAME["FP32"], (8,)), TensorSpec("s", BY_NAME["BYTES"], (2,))),
    batched=True,
)


def inputs(*, binary: bool) -> list[Any]:
    made = [http.InferInput("x", [1, 8], "FP32"), http.InferInput("t", [1, 2], "BYTES")]
    made[0].set_data_from_numpy(FLOATS, binary_data=binary)
    made[1].set_data_from_numpy(TEXTS, binary_data=binary)
    return made


def received(body: bytes, json_size: int | None) -> InferRequest:
    json_end = len(body) if json_size is None else json_size
    request = read_request(body, 0, json_end, len(body), TARGET, cut(body, 0, json_end))
    assert request.key is not None
    again = by_form(request, body[:json_end], body[json_end:])
    assert again == ([bytes(content) for content in request.contents], request.identifier)
    return request


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("identifier", ["", "42"])
def test_requests_are_read(binary: bool, identifier: str) -> None:
    body, size = http.InferenceServerClient.generate_request_body(
        inputs(binary=binary), request_id=identifier, parameters={"p": 1}, priority=3, sequence_id=5
    )
    request = received(body, size)
    assert (size is None) is not binary
    assert request.identifier == identifier.encode()
    assert [bytes(content) for content in request.contents] == [FLOATS.tobytes(), encode_bytes_tensor(TEXTS)]
    assert request.message.parameters["p"].int64_param == 1
    assert request.message.parameters["priority"].uint64_param == 3
    assert request.form.outputs.is_binary("y")
    sizes = [len(content) for content in request.contents]
    validated = validate(request.message, sizes, SIGNATURE, "simple")
    assert validated.sources == (0, 1)
    assert validated.rows == 1


def test_outputs_are_asked_for() -> None:
    outputs = [
        http.InferRequestedOutput("y", binary_data=True, class_count=2),
        http.InferRequestedOutput("s", binary_data=False),
    ]
    body, size = http.InferenceServerClient.generate_request_body(inputs(binary=True), outputs)
    request = received(body, size)
    assert [request.form.outputs.is_binary(name) for name in ("y", "s")] == [True, False]
    sizes = [len(content) for content in request.contents]
    assert validate(request.message, sizes, SIGNATURE, "simple").classes == {0: 2}


@pytest.mark.parametrize("binary", [(True, True), (True, False), (False, True), (False, False)])
def test_answers_are_read(binary: tuple[bool, bool]) -> None:
    tensors = [WireTensor("y", "FP32", (1, 8)), WireTensor("s", "BYTES", (1, 2))]
    template = ResponseTemplate("m", "1", tensors, binary, [32, None])
    response = template.write(b"7", [FLOATS.tobytes(), encode_bytes_tensor(TEXTS)])
    _, _, size = response.fields.partition(b"inference-header-content-length: ")
    parsed = http.InferenceServerClient.parse_response_body(
        b"".join(response.pieces), header_length=int(size) if size else None
    )
    np.testing.assert_array_equal(parsed.as_numpy("y"), FLOATS)
    texts = [text.decode() if isinstance(text, bytes) else text for text in parsed.as_numpy("s").ravel()]
    assert texts == TEXTS.ravel().tolist()
    assert parsed.get_response()["id"] == "7"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"inputs":[]}', "expected number of inputs between 1 and 2 but got 0 inputs for model 'simple'."),
        (
            b'{"inputs":[{"name":"x","datatype":"INT32","shape":[1,8],"data":[1,2,3,4,5,6,7,8]}]}',
            "inference input 'x' data-type is 'INT32', but model 'simple' expects 'FP32'",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}],"outputs":[{"name":"z"}]}',
            "unexpected inference output 'z' for model 'simple'",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,8],"parameters":{"binary_data_size":4}}]}1234',
            "input byte size mismatch for input 'x' for model 'simple'. Expected 32, got 4",
        ),
    ],
)
def test_what_only_the_model_can_tell_is_told_by_validation(body: bytes, text: str) -> None:
    json_end = body.rindex(b"}") + 1
    request = read_request(body, 0, json_end, len(body), TARGET)
    sizes = [len(content) for content in request.contents]
    with pytest.raises(InvalidRequest) as caught:
        validate(request.message, sizes, SIGNATURE, "simple")
    assert text in str(caught.value)
