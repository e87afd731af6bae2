"""ModelInfer by bytes: a server in this process, and an h2 client that sends exactly what a test says.

Every kind of request is sent several times with other rows and ids, since it is read by protobuf the first time, found
by its constant bytes the second time, and by its layout from then on. Each answer has to be that of its own rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from tests.e2e.models import build_repository
from tests.e2e.wire import Answer, Client, client_of, framed
from tests.server.inside import Inside, serve
from toutates.infer.reading import MAX_ID_BYTES
from toutates.protocol.grpc_service_pb2 import ModelInferRequest, ModelInferResponse

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
OK: Final = ("0", "")
TIMES: Final = 4

Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def every_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    build_repository(root)
    return root


@pytest.fixture
def models(every_model: Path, tmp_path: Path) -> Callable[..., Path]:
    """Makes a repository of some of the models."""

    def make(*names: str) -> Path:
        for name in names:
            os.symlink(every_model / name, tmp_path / name)
        return tmp_path

    return make


def request(model: str, inputs: Mapping[str, Array], *outputs: str, **fields: Any) -> ModelInferRequest:
    message = ModelInferRequest(model_name=model, **fields)
    for name, values in inputs.items():
        datatype = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}[values.dtype.name]
        message.inputs.add(name=name, datatype=datatype, shape=values.shape)
        message.raw_input_contents.append(values.tobytes())
    for output in outputs:
        message.outputs.add(name=output)
    return message


def arrays(answer: Answer) -> tuple[str, dict[str, Array]]:
    """The id and the outputs of a response."""
    assert answer.status == OK
    assert answer.data[0] == 0
    assert int.from_bytes(answer.data[1:5], "big") == len(answer.data) - 5
    response = ModelInferResponse.FromString(answer.data[5:])
    dtypes = {"FP32": np.float32, "INT32": np.int32, "INT64": np.int64}
    found = {
        tensor.name: np.frombuffer(raw, dtypes[tensor.datatype]).reshape(list(tensor.shape))
        for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    return response.id, found


def ask(client: Client, message: ModelInferRequest) -> tuple[str, dict[str, Array]]:
    return arrays(client.call(INFER, message.SerializeToString()))


def refusal(client: Client, message: ModelInferRequest | bytes) -> tuple[str, str]:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return client.call(INFER, data).status


def rounds(client: Client, messages: Sequence[ModelInferRequest]) -> Iterator[tuple[str, dict[str, Array]]]:
    """The answers to requests that are sent before the first answer is read, so that they share batches."""
    streams = [client.start(INFER) for _ in messages]
    for stream, message in zip(streams, messages, strict=True):
        client.send(stream, framed(message.SerializeToString()))
    for stream in streams:
        yield arrays(client.answer(stream))


def ints(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-1_000, 1_000, shape).astype(np.int32)


def counted(inside: Inside, model: str) -> tuple[int, int, int]:
    """Requests answered, rows of these, and requests refused, of a model."""
    workers = inside.version(model).servable.counters.workers
    return sum(one.success for one in workers), sum(one.rows for one in workers), sum(one.refused for one in workers)


@pytest.mark.parametrize("ids", [("",) * TIMES, ("a", "b", "ccc", ""), ("é", "é", "x" * 200, "y" * 200)])
def test_inputs_in_any_order_and_any_outputs(models: Callable[..., Path], ids: Sequence[str]) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            for order in (("INPUT0", "INPUT1"), ("INPUT1", "INPUT0")):
                for outputs in ((), ("OUTPUT0",), ("OUTPUT0", "OUTPUT1"), ("OUTPUT1", "OUTPUT0")):
                    for at, identifier in enumerate(ids):
                        given = {name: ints(2, 16, seed=at + len(name + name[-1] * int(name[-1]))) for name in order}
                        returned, found = ask(client, request("addsub", given, *outputs, id=identifier))
                        assert returned == identifier
                        whole = {
                            "OUTPUT1": given["INPUT0"] - given["INPUT1"],
                            "OUTPUT0": given["INPUT0"] + given["INPUT1"],
                        }
                        wanted = {name: whole[name] for name in outputs} if outputs else whole
                        assert list(found) == sorted(wanted)  # as Triton has them, whatever their order was
                        for name, values in wanted.items():
                            np.testing.assert_array_equal(found[name], values)
        assert counted(inside, "addsub") == (8 * TIMES, 16 * TIMES, 0)
        # Parsed once, and once more when it is unlike all before it: by the order of inputs and by the outputs.
        assert inside.server.workers.infer[0].counters.parsed == 8

    serve(models("addsub"), visit)


def test_requests_that_share_batches_or_are_split_get_their_own_rows(models: Callable[..., Path]) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            for _ in range(3):
                rows = (1, 3, 8, 1, 7, 4)
                given = [
                    {"INPUT0": ints(n, 16, seed=at), "INPUT1": ints(n, 16, seed=-at % 9)} for at, n in enumerate(rows)
                ]
                messages = [request("addsub", one, id=str(at)) for at, one in enumerate(given)]
                for at, (identifier, found) in enumerate(rounds(client, messages)):
                    assert identifier == str(at)
                    np.testing.assert_array_equal(found["OUTPUT0"], given[at]["INPUT0"] + given[at]["INPUT1"])
                    np.testing.assert_array_equal(found["OUTPUT1"], given[at]["INPUT0"] - given[at]["INPUT1"])
        assert counted(inside, "addsub") == (18, 72, 0)

    serve(models("addsub"), visit)


def test_rows_of_several_shapes_and_models_without_a_batch(models: Callable[..., Path]) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            for at in range(TIMES):
                for columns in (1, 3, 0, 700):
                    values = np.arange(2 * columns, dtype=np.float32).reshape(2, columns) + at
                    _, found = ask(client, request("dynamic", {"INPUT": values}))
                    np.testing.assert_array_equal(found["OUTPUT"], -values)
                for columns in (2, 5):
                    whole = ints(2, columns, seed=at)
                    _, found = ask(client, request("open", {"INPUT": whole}))
                    np.testing.assert_array_equal(found["OUTPUT"], -whole)
        assert counted(inside, "open") == (2 * TIMES, 2 * TIMES, 0)

    serve(models("dynamic", "open"), visit)


def test_what_does_not_fit_is_refused_and_harms_no_plan(models: Callable[..., Path]) -> None:
    def visit(inside: Inside) -> None:
        good = request("addsub", {"INPUT0": ints(1, 16, seed=1), "INPUT1": ints(1, 16, seed=2)}, id="good")
        with client_of(inside.port) as client:
            answer = ask(client, good)[1]["OUTPUT0"]
            for change in (0, 1):
                for size in (0, 60, 68, 63):
                    bad = ModelInferRequest()
                    bad.CopyFrom(good)
                    bad.raw_input_contents[change] = bytes(size)
                    status, text = refusal(client, bad)
                    assert status == "3"
                    assert "[request id: good]" in text
                    assert "64" in text
                    assert str(size) in text
                    np.testing.assert_array_equal(ask(client, good)[1]["OUTPUT0"], answer)
            more = ModelInferRequest()
            more.CopyFrom(good)
            more.raw_input_contents.append(b"")
            parsed = inside.server.workers.infer[0].counters.parsed
            for _ in range(2):  # one too many is passed over, as by Triton, and takes no plan from those without
                np.testing.assert_array_equal(ask(client, more)[1]["OUTPUT0"], answer)
            assert inside.server.workers.infer[0].counters.parsed == parsed + 2
            np.testing.assert_array_equal(ask(client, good)[1]["OUTPUT0"], answer)
        assert counted(inside, "addsub")[2] == 8

    serve(models("addsub"), visit)


def test_ids_have_a_length_and_refusals_are_counted_by_kind(models: Callable[..., Path]) -> None:
    def visit(inside: Inside) -> None:
        counters = inside.server.workers.infer[0].counters
        given = {"INPUT": ints(3, 1)}
        with client_of(inside.port) as client:
            for _ in range(2):
                longest = "x" * MAX_ID_BYTES
                assert ask(client, request("rank1", given, id=longest))[0] == longest
                status, text = refusal(client, request("rank1", given, id=longest + "x"))
                assert (status, text) == (
                    "3",
                    f"the request's id has {MAX_ID_BYTES + 1} bytes, at most {MAX_ID_BYTES} are taken",
                )
            assert counters.invalid == 2
            assert refusal(client, request("none", given))[0] == "5"
            assert refusal(client, request("rank1", given, model_version="7"))[0] == "5"
            assert counters.unknown == 2
            assert refusal(client, request("rank1", given, model_version="x"))[0] == "3"
            assert refusal(client, b"\xff\xff")[0] == "13"
            assert counters.invalid == 4
        assert counted(inside, "rank1") == (2, 6, 0)

    serve(models("rank1"), visit)
