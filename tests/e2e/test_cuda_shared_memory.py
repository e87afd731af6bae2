"""Tensors in CUDA shared memory, with tritonclient's own module for it, over gRPC and REST.

Every test runs twice: with a stand-in for the GPU and its driver (``tests.fake_cuda``), and by ``make test-gpu`` with
what the machine has. Beside the driver everything is the same.
"""

from __future__ import annotations

import base64
import json
import queue
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.held import Runs, running_held
from tests.e2e.models import CONFIG, add_model, negating_model
from tests.e2e.process import ServerProcess, running
from tests.e2e.regions import (
    FLAGS,
    INTERNAL,
    INVALID,
    NOT_FOUND,
    TRANSPORTS,
    A,
    B,
    RegionClient,
    addsub_inputs,
    assert_stays_while_used,
    own_key,
    serving_regions,
)
from tests.e2e.support import bytes_tensor
from tests.fake_cuda import FakeCuda
from tests.gpus import gpus_here

shm = pytest.importorskip("tritonclient.utils.shared_memory")

CLIENT: Final = "tritonclient.utils.cuda_shared_memory"
#: What servers run in whose GPU is made up, and in others.
FAKE, REAL = "tests.fake_cuda_server", "tests.e2e.held"


@contextmanager
def _cuda_client() -> Iterator[ModuleType]:
    """tritonclient's module, with the bindings that can be imported now."""
    for name in [name for name in sys.modules if name.startswith(CLIENT)]:
        del sys.modules[name]
    try:
        yield import_module(CLIENT)
    finally:
        for name in [name for name in sys.modules if name.startswith(CLIENT)]:
            del sys.modules[name]


@pytest.fixture(scope="module", params=[FAKE, pytest.param(REAL, marks=pytest.mark.gpu)], ids=["made_up", "real"])
def gpus(request: pytest.FixtureRequest) -> Iterator[tuple[str, ModuleType, int]]:
    """What the server runs in, tritonclient's module, and how many GPUs there are."""
    if request.param == FAKE:
        with FakeCuda().installed(), _cuda_client() as module:
            yield FAKE, module, 2
        return
    count = gpus_here()
    if not count:
        pytest.skip("no GPU can be used: there is none, or no driver, or cuda-bindings is not installed")
    with _cuda_client() as module:
        yield REAL, module, count


@pytest.fixture(scope="module")
def sharing(
    gpus: tuple[str, ModuleType, int], repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, Runs]]:
    with serving_regions(repository, tmp_path_factory.mktemp, module=gpus[:1]) as served:
        yield served


class Client(RegionClient):
    """Regions are memory of a GPU."""

    def __init__(self, server: ServerProcess, transport: str, cuda: ModuleType, runs: Runs | None = None) -> None:
        super().__init__(server, transport, runs)
        self.cuda = cuda

    def destroy(self, handle: Any) -> None:
        self.cuda.destroy_shared_memory_region(handle)

    def create(self, name: str, *values: npt.NDArray[Any], size: int = 0, device: int = 0) -> Any:
        """Memory of a GPU, with the arrays or of so many bytes, which is registered by nobody."""
        size = size or sum(array.nbytes for array in values)
        handle = self.cuda.create_shared_memory_region(name, size, device)
        self.handles.append(handle)
        if values:
            self.cuda.set_shared_memory_region(handle, list(values))
        return handle

    def register(self, name: str, handle: Any, size: int, device: int = 0) -> None:
        raw = handle if isinstance(handle, bytes) else self.cuda.get_raw_handle(handle)
        self.client.register_cuda_shared_memory(name, raw, device, size)

    def made(self, name: str, *values: npt.NDArray[Any], size: int = 0, device: int = 0) -> Any:
        """The same, registered as a whole."""
        handle = self.create(name, *values, size=size, device=device)
        self.register(name, handle, size or sum(array.nbytes for array in values), device)
        return handle

    def status(self, name: str = "") -> dict[str, tuple[int, int]]:
        """GPU and size of each region, by name."""
        regions = self.client.get_cuda_shared_memory_status(name)
        if not self.is_http:
            regions = regions.regions.values()
            regions = [{key: getattr(one, key) for key in ("name", "device_id", "byte_size")} for one in regions]
        return {one["name"]: (int(one["device_id"]), int(one["byte_size"])) for one in regions}

    def contents(self, handle: Any, dtype: Any, shape: Sequence[int]) -> Any:
        return self.cuda.get_contents_as_numpy(handle, dtype, list(shape))


@pytest.fixture(params=list(TRANSPORTS))
def client(
    gpus: tuple[str, ModuleType, int], sharing: tuple[ServerProcess, Runs], request: pytest.FixtureRequest
) -> Iterator[Client]:
    client = Client(sharing[0], request.param, gpus[1], sharing[1])
    yield client
    client.close()


# --- registering


def test_a_region_is_told_until_it_is_unregistered(client: Client) -> None:
    client.client.unregister_cuda_shared_memory("r")
    assert client.status() == {}
    handle = client.made("r", A)
    client.register("again", handle, 32)  # a part of the same memory, by another name
    assert client.status() == {"r": (0, 64), "again": (0, 32)}
    assert client.status("r") == {"r": (0, 64)}
    already = ("ALREADY_EXISTS", "400")
    text = client.refusal(lambda: client.register("r", handle, 64), already)
    assert text == "shared memory region 'r' already in manager"
    text = client.refusal(lambda: client.client.register_system_shared_memory("r", "/r", 64), already)
    assert text == "shared memory region 'r' already in manager"
    text = client.refusal(lambda: client.status("none"), NOT_FOUND)
    assert text == "Unable to find cuda shared memory region: 'none'"
    text = client.refusal(lambda: client.client.get_system_shared_memory_status("r"), NOT_FOUND)
    assert text == "The region named 'r' is registered as CUDA shared memory, not system shared memory"
    client.client.unregister_system_shared_memory("r")
    client.client.unregister_system_shared_memory()
    client.client.unregister_cuda_shared_memory("again")
    assert list(client.status()) == ["r"]
    client.client.unregister_cuda_shared_memory()
    assert client.status() == {}
    client.register("r", handle, 64)  # opened anew
    metadata = client.client.get_server_metadata()
    extensions = metadata["extensions"] if client.is_http else metadata.extensions
    assert "cuda_shared_memory" in extensions


def test_what_is_no_memory_or_larger_than_it_is_refused(client: Client) -> None:
    handle = client.create("r", A)
    noise = base64.b64encode(bytes(range(64)))
    for bad, device in ((noise, 0), (handle, 64), (handle, 2**31), (handle, 2**62)):
        text = client.refusal(lambda bad=bad, device=device: client.register("r", bad, 64, device), INVALID)  # type: ignore[misc]
        assert text == "failed to register shared memory region: invalid args"
    for size in (2**40, 2**64 - 1):
        text = client.refusal(lambda size=size: client.register("r", handle, size), INVALID)  # type: ignore[misc]
        assert text == "failed to register shared memory region 'r': invalid args"
    short = base64.b64encode(bytes(63))
    text = client.refusal(lambda: client.register("r", short, 64), INVALID)
    told = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
    assert text == told if client.is_http else "'raw_handle' has 63 bytes, a cudaIpcMemHandle_t has 64" in text
    text = client.refusal(lambda: client.register("n" * 513, handle, 64), INVALID)
    assert "whose name has 513 bytes" in text
    assert client.status() == {}
    client.register("r", handle, 64)


def test_a_negative_device_is_refused(gpus: tuple[str, ModuleType, int], sharing: tuple[ServerProcess, Runs]) -> None:
    client = Client(sharing[0], "grpc", gpus[1])
    handle = client.create("r", A)
    text = client.refusal(lambda: client.register("r", handle, 64, -1), INVALID)
    assert text == "failed to register shared memory region: invalid args"
    document = {"raw_handle": {"b64": gpus[1].get_raw_handle(handle).decode()}, "device_id": -1, "byte_size": 64}
    url = f"http://127.0.0.1:{sharing[0].rest_port}/v2/cudasharedmemory/region/r/register"
    with pytest.raises(urllib.request.HTTPError) as caught:
        urllib.request.urlopen(url, json.dumps(document).encode())
    assert "device_id" in json.loads(caught.value.read())["error"]
    caught.value.close()
    client.close()


def test_regions_are_off_unless_the_operator_allows_them(
    gpus: tuple[str, ModuleType, int], tmp_path: Path, repository: Path
) -> None:
    flags = ("--http-addr", "127.0.0.1:0", "--load-models", "addsub")
    module = (gpus[0], "1", "none")
    disabled = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    with running(repository, tmp_path, flags, module=module) as process:
        for transport in TRANSPORTS:
            client = Client(process, transport, gpus[1])
            handle = client.create("r", A)
            off = ("UNIMPLEMENTED", "501")
            assert client.refusal(lambda c=client, h=handle: c.register("r", h, 64), off) == disabled  # type: ignore[misc]
            assert client.refusal(client.client.unregister_cuda_shared_memory, off) == disabled
            assert client.status() == {}
            client.client.close()
            gpus[1].destroy_shared_memory_region(client.handles.pop())
            del handle


# --- inference


def test_inputs_and_outputs_are_in_regions(client: Client) -> None:
    given = client.made("in", A, B)
    out = client.made("out", size=128)
    outputs = [client.output("OUTPUT0", "out", 64), client.output("OUTPUT1", "out", 64, 64)]
    for turn in range(3):  # the plan is made, remembered, and used
        client.cuda.set_shared_memory_region(given, [A + turn, B])
        result = client.infer("addsub", addsub_inputs(client), outputs)
        both = client.contents(out, np.int32, (2, 16))
        np.testing.assert_array_equal(both, np.concatenate((A + turn + B, A + turn - B)))
        response = result.get_response(**({} if client.is_http else {"as_json": True}))
        assert [sorted(one) for one in response["outputs"]] == [["datatype", "name", "shape"]] * 2


def test_regions_mix_with_those_of_the_host_and_with_tensors_of_the_request(client: Client) -> None:
    client.made("in", A, B)
    system = shm.create_shared_memory_region("host", own_key("host"), 64)
    try:
        client.client.register_system_shared_memory("host", own_key("host"), 64)
        given = client.raw("INPUT0", A * 2, "INT32")
        second = client.input("INPUT1", [1, 16], "INT32", "in", 64, 64)
        for _ in range(2):
            outputs = [client.output("OUTPUT0", "host", 64), client.module.InferRequestedOutput("OUTPUT1")]
            result = client.infer("addsub", [given, second], outputs)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A * 2 - B)
            np.testing.assert_array_equal(shm.get_contents_as_numpy(system, np.int32, [1, 16]), A * 2 + B)
            shm.set_shared_memory_region(system, [A * 5])
            first = client.input("INPUT0", [1, 16], "INT32", "host", 64)
            # An input's region takes outputs too.
            client.infer("addsub", [first, second], [client.output("OUTPUT0", "in", 64)])
            np.testing.assert_array_equal(client.contents(client.handles[0], np.int32, (1, 16)), A * 5 + B)
    finally:
        client.client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(system)


def test_large_tensors_are_in_regions(client: Client) -> None:
    rows = np.random.default_rng(5).integers(0, 2**30, (12, 65_536)).astype(np.int32)  # 3 MiB, more than a batch
    client.made("rows", rows)
    out = client.made("most", size=48)
    for count in (1, 4, 12):
        tensor = client.input("INPUT", [count, 65_536], "INT32", "rows", count * 262_144)
        client.infer("greatest", [tensor], [client.output("OUTPUT", "most", 48)])
        np.testing.assert_array_equal(client.contents(out, np.int32, (count, 1)), rows[:count].max(1, keepdims=True))
    values = np.arange(1_048_576, dtype=np.float32).reshape(4, -1)
    client.made("values", values)
    turned = client.made("turned", size=2 * values.nbytes)
    tensor = client.input("INPUT", values.shape, "FP32", "values", values.nbytes)
    for _ in range(2):
        for offset in (0, values.nbytes):
            client.infer("dynamic", [tensor], [client.output("OUTPUT", "turned", values.nbytes, offset)])
        np.testing.assert_array_equal(client.contents(turned, np.float32, (2, *values.shape)), [-values, -values])
        client.cuda.set_shared_memory_region(turned, [np.zeros((2, *values.shape), np.float32)])
    short = client.output("OUTPUT", "turned", values.nbytes - 4)
    text = client.refusal(lambda: client.infer("dynamic", [tensor], [short]), INTERNAL)
    assert f"({values.nbytes - 4} bytes) should be at least {values.nbytes} bytes" in text


def test_strings_are_in_regions_in_raw_form(client: Client) -> None:
    texts = bytes_tensor(b"a", b"", b"\x00\xff", b"text")
    client.made("strings", np.frombuffer(texts, np.uint8))
    out = client.made("same", size=64)
    tensor = client.input("INPUT", [1, 4], "BYTES", "strings", len(texts))
    for _ in range(2):
        client.infer("identity_BYTES", [tensor], [client.output("OUTPUT", "same", 64)])
        assert client.contents(out, np.object_, (1, 4)).tolist() == [[b"a", b"", b"\x00\xff", b"text"]]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (("in", 64, 128), "Invalid offset for shared memory region: 'in'"),
        (("in", 0, 128), "Invalid offset for shared memory region: 'in'"),
        (("in", 128, 1), "Invalid offset + byte size for shared memory region: 'in'"),
        (("in", 64, 65), "Invalid offset + byte size for shared memory region: 'in'"),
        (("none", 64), "Unable to find shared memory region: 'none'"),
        (("in", 32), "input byte size mismatch for input 'INPUT0' for model 'addsub'. Expected 64, got 32"),
    ],
)
def test_places_beyond_a_region_are_refused(client: Client, place: tuple[Any, ...], text: str) -> None:
    client.made("in", A, B)
    tensors = [client.input("INPUT0", [1, 16], "INT32", *place), client.raw("INPUT1", B, "INT32")]
    statuses = NOT_FOUND if place[0] == "none" else INVALID
    assert text in client.refusal(lambda: client.infer("addsub", tensors), statuses)
    if "mismatch" not in text:
        tensors[0] = client.raw("INPUT0", A, "INT32")
        output = client.output("OUTPUT0", *place)
        assert text in client.refusal(lambda: client.infer("addsub", tensors, [output]), statuses)


def test_numbers_that_overflow_are_refused(client: Client) -> None:
    client.made("in", A, B)
    for size, offset, text in (
        (2**64 - 1, 1, "Integer overflow detected: byte_size (18446744073709551615) + offset (1) exceeds"),
        (64, 2**64 - 32, "Invalid offset for shared memory region: 'in'"),
    ):
        if client.is_http:
            place = {"shared_memory_region": "in", "shared_memory_byte_size": size, "shared_memory_offset": offset}
            tensor = {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "parameters": place}
            other = {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "data": B.tolist()}
            body = json.dumps({"inputs": [tensor, other]}).encode()
            with pytest.raises(urllib.request.HTTPError) as caught:
                urllib.request.urlopen(f"http://{client.address}/v2/models/addsub/infer", body)
            assert text in json.loads(caught.value.read())["error"]
            caught.value.close()
        else:  # numbers with a sign, of which negative ones are huge
            signed = [number - 2**64 if number >= 2**63 else number for number in (size, offset)]
            tensors = [client.input("INPUT0", [1, 16], "INT32", "in", *signed), client.raw("INPUT1", B, "INT32")]
            assert text in client.refusal(lambda: client.infer("addsub", tensors), INVALID)  # noqa: B023


def test_an_output_that_is_larger_than_its_place_fails_its_request(client: Client) -> None:
    client.made("in", A, B)
    out = client.made("out", A * 0)
    for _ in range(2):
        output = client.output("OUTPUT0", "out", 63)
        text = client.refusal(lambda: client.infer("addsub", addsub_inputs(client), [output]), INTERNAL)  # noqa: B023
        assert text == (
            "shared memory size specified with the request for output 'OUTPUT0' (63 bytes) should be at least 64 bytes "
            "to hold the results"
        )
    np.testing.assert_array_equal(client.contents(out, np.int32, (1, 16)), A * 0)


def test_a_region_is_of_the_gpu_that_it_names(gpus: tuple[str, ModuleType, int], client: Client) -> None:
    if gpus[2] < 2:
        pytest.skip("there is one GPU")
    client.made("in", A, B, device=1)
    out = client.made("out", size=64)
    client.infer("addsub", addsub_inputs(client), [client.output("OUTPUT0", "out", 64)])
    np.testing.assert_array_equal(client.contents(out, np.int32, (1, 16)), A + B)
    assert client.status() == {"in": (1, 128), "out": (0, 64)}


# --- in use


def test_a_region_in_use_leaves_with_its_request(client: Client) -> None:
    given = client.made("in", np.array([[1]], np.int64))
    out = client.made("out", size=8)

    def unregister() -> None:
        client.client.unregister_cuda_shared_memory("in")
        client.client.unregister_cuda_shared_memory()
        text = client.refusal(lambda: client.register("in", given, 8), ("ALREADY_EXISTS", "400"))
        assert text == "shared memory region 'in' already in manager"

    tensor = client.input("INPUT", [1, 1], "INT64", "in", 8)
    assert_stays_while_used(client, "slow", tensor, client.output("OUTPUT", "out", 8), unregister)
    assert client.contents(out, np.int64, (1, 1)).tolist() == [[1]]
    client.register("in", given, 8)


def test_messages_of_a_stream_have_tensors_in_regions(
    gpus: tuple[str, ModuleType, int], sharing: tuple[ServerProcess, Runs]
) -> None:
    client = Client(sharing[0], "grpc", gpus[1], sharing[1])
    client.made("in", A, B)
    out = client.made("out", size=128)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.client.start_stream(callback=lambda result, error: answers.put((result, error)))
    outputs = [client.output("OUTPUT0", "out", 64), client.output("OUTPUT1", "out", 64, 64)]
    for _ in range(3):
        client.client.async_stream_infer("addsub", addsub_inputs(client), outputs=outputs)
        _, error = answers.get(timeout=120)
        assert error is None
        np.testing.assert_array_equal(client.contents(out, np.int32, (2, 16)), np.concatenate((A + B, A - B)))
    client.client.stop_stream()
    client.close()


# --- models on the GPU


@pytest.fixture(scope="module")
def bound(
    gpus: tuple[str, ModuleType, int], repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, Runs]]:
    """A server whose models run on the GPU, and that cannot copy: see ``tests.e2e.bound_tensors``."""
    if gpus[0] == REAL and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has no CUDA: install onnxruntime-gpu in place of onnxruntime")
    models = tmp_path_factory.mktemp("models")
    add_model(models, "negated", negating_model(65_536), config=CONFIG.format(8, 8))
    for name in ("dynamic", "addsub"):
        (models / name).symlink_to(repository / name)
    kind = "made_up" if gpus[0] == FAKE else "real"
    module = ("tests.e2e.bound_tensors", kind)
    flags = FLAGS[:-1]
    with running_held(models, tmp_path_factory.mktemp("bound"), flags, "negated", module=module) as (process, runs):
        yield process, runs
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert_ran_without_gil(process)


@pytest.fixture(params=list(TRANSPORTS))
def there(
    gpus: tuple[str, ModuleType, int], bound: tuple[ServerProcess, Runs], request: pytest.FixtureRequest
) -> Iterator[Client]:
    client = Client(bound[0], request.param, gpus[1], bound[1])
    yield client
    client.close()


ROWS: Final = np.arange(4 * 65_536, dtype=np.float32).reshape(4, -1)
ROW: Final = 65_536 * 4
#: What is said by a server that would have to copy.
COPIED: Final = "nothing is copied here"


def negate(client: Client, rows: int, *output: Any, start: int = 0, region: str = "in") -> Any:
    tensor = client.input("INPUT", [rows, 65_536], "FP32", region, rows * ROW, start)
    outputs = [client.output("OUTPUT", *output)] if output else None
    return client.infer("negated", [tensor], outputs)


def test_tensors_are_read_and_written_where_the_gpu_has_them(there: Client) -> None:
    given = there.made("in", ROWS)
    out = there.made("out", size=2 * ROWS.nbytes)
    for turn in range(3):
        there.cuda.set_shared_memory_region(given, [ROWS + turn])
        result = negate(there, 4, "out", ROWS.nbytes)
        response = result.get_response(**({} if there.is_http else {"as_json": True}))
        assert [sorted(one) for one in response["outputs"]] == [["datatype", "name", "shape"]]
        assert [int(size) for size in response["outputs"][0]["shape"]] == [4, 65_536]
        negate(there, 1, "out", ROW, ROWS.nbytes, start=ROW)
        expected = np.concatenate((-(ROWS + turn), -(ROWS[1:2] + turn)))
        np.testing.assert_array_equal(there.contents(out, np.float32, (5, 65_536)), expected)
    np.testing.assert_array_equal(negate(there, 4).as_numpy("OUTPUT"), -(ROWS + 2))  # by way of the host
    tensor = there.input("INPUT", [4, 65_536], "FP32", "in", ROWS.nbytes)
    result = there.infer("dynamic", [tensor], [there.module.InferRequestedOutput("OUTPUT")])  # of unknown size
    np.testing.assert_array_equal(result.as_numpy("OUTPUT"), -(ROWS + 2))


def test_what_a_model_on_the_gpu_cannot_use_there_is_copied(there: Client) -> None:
    there.made("in", ROWS, ROWS, ROWS)
    there.made("out", size=ROWS.nbytes)
    place = ("out", ROWS.nbytes)
    cannot_read = "input 'INPUT' cannot be read from shared memory region 'in', which is of GPU 0: nothing is copied"
    asks: list[Callable[[], Any]] = [
        lambda: negate(there, 4, *place, start=4),  # kernels want more alignment
        lambda: negate(there, 9),  # more than a batch
        lambda: there.infer("addsub", addsub_inputs(there)),  # small
    ]
    for ask in asks:
        with pytest.raises(there.module.InferenceServerException, match=COPIED) as caught:
            ask()
        assert cannot_read in str(caught.value).replace("INPUT0", "INPUT")
    # An output that shares bytes with an input is written after the run.
    text = there.refusal(lambda: negate(there, 4, "in", ROWS.nbytes, ROW), INTERNAL)
    assert text.startswith("output 'OUTPUT' cannot be written to shared memory region 'in', which is of GPU 0: nothing")
    text = there.refusal(lambda: negate(there, 4, "out", ROWS.nbytes - 4), INTERNAL)
    assert f"({ROWS.nbytes - 4} bytes) should be at least {ROWS.nbytes} bytes" in text
    text = there.refusal(lambda: negate(there, 4, "out", ROWS.nbytes, 4), INVALID)
    assert text == "Invalid offset + byte size for shared memory region: 'out'"
    tensor = there.input("INPUT", [4, 65_536], "FP32", "in", ROWS.nbytes)
    text = there.refusal(lambda: there.infer("dynamic", [tensor], [there.output("OUTPUT", *place)]), INTERNAL)
    assert COPIED in text  # its size is not known before the run


def test_rows_of_another_gpu_are_copied(gpus: tuple[str, ModuleType, int], there: Client) -> None:
    if gpus[2] < 2:
        pytest.skip("there is one GPU")
    there.made("in", ROWS, device=1)
    assert "which is of GPU 1: nothing is copied here" in there.refusal(lambda: negate(there, 4), INVALID)
    there.client.unregister_cuda_shared_memory("in")
    there.made("in", ROWS)  # the same kind of request finds them on its own GPU now
    np.testing.assert_array_equal(negate(there, 4).as_numpy("OUTPUT"), -ROWS)


def test_a_region_stays_while_a_run_uses_it(there: Client) -> None:
    there.made("in", ROWS)
    out = there.made("out", size=ROWS.nbytes)
    tensor = there.input("INPUT", [4, 65_536], "FP32", "in", ROWS.nbytes)
    output = there.output("OUTPUT", "out", ROWS.nbytes)
    assert_stays_while_used(there, "negated", tensor, output, there.client.unregister_cuda_shared_memory)
    np.testing.assert_array_equal(there.contents(out, np.float32, ROWS.shape), -ROWS)


def test_requests_on_the_gpu_count_as_others_do(there: Client) -> None:
    there.made("in", ROWS)
    there.made("out", size=ROWS.nbytes)

    def counted() -> tuple[int, int]:
        statistics = there.client.get_inference_statistics("negated", **({} if there.is_http else {"as_json": True}))
        one = statistics["model_stats"][0]
        return int(one["inference_count"]), int(one["execution_count"])

    before = counted()
    for _ in range(3):
        negate(there, 4, "out", ROWS.nbytes)
    assert counted() == (before[0] + 12, before[1] + 3)


def test_many_clients_share_a_gpu(gpus: tuple[str, ModuleType, int], bound: tuple[ServerProcess, Runs]) -> None:
    client = Client(bound[0], "grpc", gpus[1], bound[1])
    outs = [(client.made(f"in{at}", ROWS + at), client.made(f"out{at}", size=ROWS.nbytes))[1] for at in range(4)]
    answers: queue.Queue[Any] = queue.Queue()
    for turn in range(40):
        at = turn % 4
        tensor = client.input("INPUT", [4, 65_536], "FP32", f"in{at}", ROWS.nbytes)
        output = client.output("OUTPUT", f"out{at}", ROWS.nbytes)
        client.client.async_infer("negated", [tensor], lambda result, error: answers.put(error), outputs=[output])
        if at == 3:
            assert [answers.get(timeout=120) for _ in range(4)] == [None] * 4
    for at, out in enumerate(outs):
        np.testing.assert_array_equal(client.contents(out, np.float32, ROWS.shape), -(ROWS + at))
    del out, outs
    client.close()
