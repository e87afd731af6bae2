"""Messages that are legal protobuf and no honest request: refused at once, by name, and the connection goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.process import ServerProcess
from tests.e2e.support import pb
from tests.e2e.wire import Client, client_of
from tests.infer_messages import MANY
from tests.protobuf_fields import field_of as field
from tests.protobuf_fields import varint

SERVICE: Final = "/inference.GRPCInferenceService/"
INFER: Final = SERVICE + "ModelInfer"
INVALID: Final = "3"
#: Fields that a request may have.
MAX_FIELDS: Final = 16_384


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    """One connection for all of them."""
    with client_of(server.port) as client:
        yield client


def addsub() -> Any:
    message = pb.ModelInferRequest(model_name="addsub")
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        message.raw_input_contents.append(np.arange(16, dtype=np.int32).tobytes())
    return message


def assert_serves(client: Client) -> None:
    assert client.call(INFER, addsub().SerializeToString()).status == ("0", "")


@pytest.mark.parametrize("message_of", MANY.values(), ids=MANY.keys())
def test_a_message_of_nothing_but_fields_is_refused(client: Client, message_of: Callable[[int], bytes]) -> None:
    status, text = client.call(INFER, message_of(5 * MAX_FIELDS)).status
    assert (status, text[:38]) == (INVALID, "the request has more than 16384 fields")
    assert_serves(client)


@pytest.mark.parametrize("message_of", MANY.values(), ids=MANY.keys())
def test_as_many_fields_as_may_be_are_judged_like_any_request(
    client: Client, message_of: Callable[[int], bytes]
) -> None:
    status, _ = client.call(INFER, message_of(MAX_FIELDS - 20)).status
    assert status in (INVALID, "5", "13")  # there is no model "m"; groups may be nested 100 deep
    assert_serves(client)


@pytest.mark.parametrize("rpc", ["ServerLive", "ServerMetadata", "ModelMetadata", "ModelStatistics", "RepositoryIndex"])
def test_other_requests_are_as_small_as_they_are(client: Client, rpc: str) -> None:
    status, text = client.call(SERVICE + rpc, field(1, b"n" * 65_536)).status
    assert (status, text) == (INVALID, f"a {rpc}Request of 65540 bytes is too large, at most 65536 are taken")
    assert_serves(client)


def with_dims(*dims: int) -> bytes:
    message = addsub()
    message.inputs[1].shape[:] = dims
    return bytes(message.SerializeToString())


DIMS: Final[dict[str, tuple[int, ...]]] = {
    "negative": (-1, 16),
    "negative row": (1, -16),
    "overflow": (2**62, 2**62),
    "one": (2**63 - 1,),
    "nothing": (0, 2**63 - 1),
    "least": (-(2**63), -(2**63)),
    "zero modulo 2^64": (2**32, 2**32),
    "many": (1,) * 9_000,
}


@pytest.mark.parametrize("dims", DIMS.values(), ids=DIMS.keys())
def test_shapes_beyond_reason_are_refused(client: Client, dims: tuple[int, ...]) -> None:
    assert client.call(INFER, with_dims(*dims)).status[0] == INVALID
    assert_serves(client)


@pytest.mark.parametrize("change", ["model_name", "model_version", "id", "input", "datatype", "parameter", "output"])
def test_names_of_ten_megabytes_are_names_like_others(client: Client, change: str) -> None:
    message = addsub()
    name = "n" * 10_000_000
    expected = INVALID
    if change in ("model_name", "model_version", "id"):
        setattr(message, change, name)
        expected = {"model_name": "5"}.get(change, INVALID)
    elif change == "input":
        message.inputs[0].name = name
    elif change == "datatype":
        message.inputs[0].datatype = name
    elif change == "parameter":
        message.parameters[name].uint64_param = 1
    else:
        message.outputs.add(name=name)
    status, text = client.call(INFER, message.SerializeToString()).status
    assert status == expected
    assert len(text) < 8_000
    assert_serves(client)


@pytest.mark.parametrize("kind", ["packed", "unpacked", "in pieces"])
def test_typed_contents_are_read_however_they_are_written_and_counted(client: Client, kind: str) -> None:
    def contents(count: int) -> bytes:
        if kind == "packed":
            return field(5, field(2, b"\x01" * count))
        if kind == "unpacked":
            return field(5, b"\x10\x01" * count)
        return field(5, field(2, b"\x01")) * count

    def request(count: int) -> bytes:
        head = field(1, b"addsub")
        for name in (b"INPUT0", b"INPUT1"):
            head += field(5, field(1, name), field(2, b"INT32"), field(3, varint(1) + varint(16)), contents(count))
        return head

    assert client.call(INFER, request(16)).status == ("0", "")
    status, text = client.call(INFER, request(8_000)).status
    assert status == INVALID
    assert "input byte size mismatch for input 'INPUT0' for model 'addsub'. Expected 64, got 32000" in text
    assert_serves(client)
