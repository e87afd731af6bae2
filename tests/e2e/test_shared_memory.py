"""Tensors in system shared memory, with tritonclient's own module for it, over gRPC and REST."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from tests.e2e.held import Runs
from tests.e2e.process import ServerProcess, run
from tests.e2e.regions import (
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
from tests.gpus import gpus_here
from tests.waiting import wait_until

shm = pytest.importorskip("tritonclient.utils.shared_memory")

PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def sharing(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Runs]]:
    with serving_regions(repository, tmp_path_factory.mktemp) as served:
        yield served


class Client(RegionClient):
    """Regions are objects of POSIX shared memory."""

    def destroy(self, handle: Any) -> None:
        shm.destroy_shared_memory_region(handle)

    def create(self, name: str, *values: npt.NDArray[Any], size: int = 0) -> Any:
        """An object of the key ``own_key(name)``, of the arrays or of so many bytes, which is registered by nobody."""
        size = size or sum(array.nbytes for array in values)
        handle = shm.create_shared_memory_region(name, own_key(name), size)
        self.handles.append(handle)
        shm.set_shared_memory_region(handle, values)
        return handle

    def register(self, name: str, size: int, offset: int = 0, key: str = "") -> None:
        self.client.register_system_shared_memory(name, key or own_key(name), size, offset=offset)

    def made(self, name: str, *values: npt.NDArray[Any], size: int = 0) -> Any:
        """The same, registered as a whole."""
        handle = self.create(name, *values, size=size)
        self.register(name, size or sum(array.nbytes for array in values))
        return handle

    def status(self, name: str = "") -> dict[str, tuple[str, int, int]]:
        """Key, offset and size of each region, by name."""
        regions = self.client.get_system_shared_memory_status(name)
        if not self.is_http:
            regions = regions.regions.values()
            regions = [{key: getattr(one, key) for key in ("name", "key", "offset", "byte_size")} for one in regions]
        return {one["name"]: (one["key"], one["offset"], one["byte_size"]) for one in regions}


@pytest.fixture(params=list(TRANSPORTS))
def client(sharing: tuple[ServerProcess, Runs], request: pytest.FixtureRequest) -> Iterator[Client]:
    client = Client(sharing[0], request.param, sharing[1])
    yield client
    client.close()


def path_of(name: str) -> str:
    return f"/dev/shm{own_key(name)}"


def contents(handle: Any, shape: Sequence[int] = (1, 16), offset: int = 0) -> Any:
    return shm.get_contents_as_numpy(handle, np.int32, list(shape), offset=offset)


# --- registering


def test_a_region_is_told_until_it_is_unregistered(client: Client) -> None:
    client.client.unregister_system_shared_memory("r")
    assert client.status() == {}
    client.made("r", A)
    client.create("pages", size=1024 * PAGE)
    client.register("tail", PAGE, offset=1023 * PAGE, key=own_key("pages"))
    assert client.status() == {"r": (own_key("r"), 0, 64), "tail": (own_key("pages"), 1023 * PAGE, PAGE)}
    assert client.status("r") == {"r": (own_key("r"), 0, 64)}
    already = ("ALREADY_EXISTS", "400")
    assert client.refusal(lambda: client.register("r", 64), already) == "shared memory region 'r' already in manager"
    text = client.refusal(lambda: client.status("none"), NOT_FOUND)
    assert text == "Unable to find system shared memory region: 'none'"
    text = client.refusal(lambda: client.client.get_cuda_shared_memory_status("r"), NOT_FOUND)
    assert text == "The region named 'r' is registered as system shared memory, not CUDA shared memory"
    client.client.unregister_cuda_shared_memory()
    client.client.unregister_cuda_shared_memory("r")
    client.client.unregister_system_shared_memory("tail")
    assert list(client.status()) == ["r"]
    client.register("tail", PAGE, key="//" + own_key("pages"))
    client.client.unregister_system_shared_memory()
    assert client.status() == {}


def test_what_is_no_object_or_does_not_fit_it_is_refused(client: Client) -> None:
    client.create("r", A)
    fifo, link = own_key("fifo"), own_key("link")
    os.mkfifo(path_of("fifo"))
    os.symlink("/etc/passwd", path_of("link"))
    try:
        for size, offset in ((65, 0), (64, 1), (1, 64), (0, 65), (2**64 - 1, 0)):
            text = client.refusal(lambda size=size, offset=offset: client.register("r", size, offset), INVALID)  # type: ignore[misc]
            assert text == "failed to register shared memory region 'r': invalid args"
        for size, offset in ((0, 0), (8, 4)):
            text = client.refusal(lambda size=size, offset=offset: client.register("r", size, offset), INVALID)  # type: ignore[misc]
            assert text.startswith("failed to register shared memory region 'r': unable to process address space")
        for key in ("/", "///"):
            text = client.refusal(lambda key=key: client.register("r", 64, key=key), INVALID)  # type: ignore[misc]
            assert text == f"cannot register shared memory region 'r' - invalid shm key '{key}'"
        other = own_key("r")[1:]
        absent = own_key("none")
        for key in (absent[1:], absent, "..", "/.", f"../shm/{other}", f"/a/../{other}", "x" * 300, fifo[1:], link):
            text = client.refusal(lambda key=key: client.register("r", 64, key=key), INTERNAL)  # type: ignore[misc]
            assert text == f"Unable to open shared memory region: '{key}'"
        for key in ("triton_python_backend_shm_region_x", "///triton_python_backend_shm_region_x"):
            text = client.refusal(lambda key=key: client.register("r", 64, key=key), INVALID)  # type: ignore[misc]
            assert text == (
                f"cannot register shared memory region 'r' with key '{key}' as the key contains the reserved prefix "
                "'triton_python_backend_shm_region_'"
            )
        assert client.status() == {}
    finally:
        os.unlink(path_of("fifo"))
        os.unlink(path_of("link"))


def test_cuda_memory_is_refused_without_a_gpu(client: Client) -> None:
    if gpus_here():
        pytest.skip("there is a GPU")
    handle = b"QUFB" * 21 + b"QQ=="  # of 64 bytes
    text = client.refusal(lambda: client.client.register_cuda_shared_memory("c", handle, 0, 64), INVALID)
    assert text == "failed to register CUDA shared memory region: 'c', GPUs not supported"
    status = client.client.get_cuda_shared_memory_status()
    assert not (status if client.is_http else status.regions)


# --- inference


def test_inputs_and_outputs_are_in_regions(client: Client) -> None:
    client.made("in", A, B)
    out = client.made("out", size=128)
    outputs = [client.output("OUTPUT0", "out", 64), client.output("OUTPUT1", "out", 64, 64)]
    for turn in range(3):  # the plan is made, remembered, and used
        shm.set_shared_memory_region(client.handles[0], [A + turn])
        result = client.infer("addsub", addsub_inputs(client), outputs, request_id=f"id{turn}")
        np.testing.assert_array_equal(contents(out), A + turn + B)
        np.testing.assert_array_equal(contents(out, offset=64), A + turn - B)
        response = result.get_response(**({} if client.is_http else {"as_json": True}))
        assert response["id"] == f"id{turn}"
        assert [sorted(one) for one in response["outputs"]] == [["datatype", "name", "shape"]] * 2
        if not client.is_http:
            assert list(result.get_response().raw_output_contents) == [b"", b""]


def test_regions_mix_with_tensors_of_the_request(client: Client) -> None:
    client.made("in", A, B)
    out = client.made("out", size=128)
    given = client.raw("INPUT0", A * 2, "INT32")
    for _ in range(2):
        result = client.infer(
            "addsub",
            [given, client.input("INPUT1", [1, 16], "INT32", "in", 64, 64)],
            [client.output("OUTPUT0", "out", 128), client.output("OUTPUT1")],
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A * 2 - B)
        np.testing.assert_array_equal(contents(out), A * 2 + B)
        result = client.infer("addsub", addsub_inputs(client)[::-1])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
        client.infer("addsub", [given, client.raw("INPUT1", B, "INT32")], [client.output("OUTPUT1", "in", 64)])
        np.testing.assert_array_equal(contents(client.handles[0]), A * 2 - B)  # an input's region takes outputs too
        shm.set_shared_memory_region(client.handles[0], [A, B])


def test_large_tensors_of_several_rows_are_in_regions(client: Client) -> None:
    rows = np.random.default_rng(5).integers(0, 2**30, (12, 65_536)).astype(np.int32)  # 3 MiB, more than a batch
    client.made("rows", rows)
    out = client.made("most", size=48)
    for count in (1, 4, 12):
        tensor = client.input("INPUT", [count, 65_536], "INT32", "rows", count * 262_144)
        client.infer("greatest", [tensor], [client.output("OUTPUT", "most", 48)])
        np.testing.assert_array_equal(contents(out, (count, 1)), rows[:count].max(axis=1, keepdims=True))
    os.truncate(path_of("rows"), 3_000_000)
    text = client.refusal(lambda: client.infer("greatest", [tensor]), INVALID)
    assert text.startswith("input 'INPUT' has 3145728 bytes in shared memory region 'rows'")
    os.truncate(path_of("rows"), rows.nbytes)


def test_large_outputs_are_in_regions(client: Client) -> None:
    rows = np.arange(1_048_576, dtype=np.float32).reshape(4, -1)
    client.made("rows", rows)
    out = client.made("turned", size=2 * rows.nbytes)
    tensor = client.input("INPUT", rows.shape, "FP32", "rows", rows.nbytes)
    for offset in (0, rows.nbytes):
        output = client.output("OUTPUT", "turned", rows.nbytes, offset)
        for _ in range(2):
            client.infer("dynamic", [tensor], [output])
        written = shm.get_contents_as_numpy(out, np.float32, rows.shape, offset=offset)
        np.testing.assert_array_equal(written, -rows)
    short = client.output("OUTPUT", "turned", rows.nbytes - 4)
    text = client.refusal(lambda: client.infer("dynamic", [tensor], [short]), INTERNAL)
    assert f"({rows.nbytes - 4} bytes) should be at least {rows.nbytes} bytes" in text
    os.truncate(path_of("turned"), rows.nbytes)
    text = client.refusal(lambda: client.infer("dynamic", [tensor], [output]), INTERNAL)
    assert text.startswith("output 'OUTPUT' has no room in shared memory region 'turned'")
    os.truncate(path_of("turned"), 2 * rows.nbytes)


def test_strings_are_in_regions_in_raw_form(client: Client) -> None:
    texts = bytes_tensor(b"a", b"", b"\x00\xff", b"text")
    client.made("strings", np.frombuffer(texts, np.uint8))
    out = client.made("same", size=64)
    tensor = client.input("INPUT", [1, 4], "BYTES", "strings", len(texts))
    for _ in range(2):
        client.infer("identity_BYTES", [tensor], [client.output("OUTPUT", "same", 64)])
        got = shm.get_contents_as_numpy(out, np.object_, [1, 4])
        assert got.tolist() == [[b"a", b"", b"\x00\xff", b"text"]]
    short = client.input("INPUT", [1, 4], "BYTES", "strings", len(texts) - 2)
    text = client.refusal(lambda: client.infer("identity_BYTES", [short]), INVALID)
    assert "for inference input 'INPUT' for model 'identity_BYTES'" in text


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (("in", 64, 128), "Invalid offset for shared memory region: 'in'"),
        (("in", 32, 2**64 - 32), "Invalid offset for shared memory region: 'in'"),
        (("in", 128, 1), "Invalid offset + byte size for shared memory region: 'in'"),
        (
            ("in", 2**64 - 32, 32),
            "Integer overflow detected: byte_size (18446744073709551584) + offset (32) exceeds maximum value "
            "(18446744073709551615) for region 'in'",
        ),
    ],
)
def test_a_place_outside_its_region_is_refused(client: Client, place: tuple[Any, ...], text: str) -> None:
    if not client.is_http and max(place[1:]) >= 2**63:
        place = (place[0], *(number - 2**64 if number >= 2**63 else number for number in place[1:]))
    client.made("in", A, B)
    tensors = addsub_inputs(client)
    client.infer("addsub", tensors)
    assert client.refusal(lambda: client.infer("addsub", tensors, [client.output("OUTPUT0", *place)]), INVALID) == text
    wrong = [client.input("INPUT0", [1, 16], "INT32", *place), tensors[1]]
    assert client.refusal(lambda: client.infer("addsub", wrong), INVALID) == text


def test_sizes_that_do_not_fit_their_tensors_are_refused(client: Client) -> None:
    client.made("in", A, B)
    wrong = [addsub_inputs(client)[0], client.input("INPUT1", [1, 16], "INT32", "in", 128)]
    text = client.refusal(lambda: client.infer("addsub", wrong, request_id="7"), INVALID)
    assert text == (
        "[request id: 7] input byte size mismatch for input 'INPUT1' for model 'addsub'. Expected 64, got 128"
    )
    small = [client.output("OUTPUT1"), client.output("OUTPUT0", "in", 32)]
    text = client.refusal(lambda: client.infer("addsub", addsub_inputs(client), small), INTERNAL)
    assert text == (
        "shared memory size specified with the request for output 'OUTPUT0' (32 bytes) should be at least 64 bytes to "
        "hold the results"
    )
    unknown = [client.input("INPUT0", [1, 16], "INT32", "none", 64), addsub_inputs(client)[1]]
    text = client.refusal(lambda: client.infer("addsub", unknown), NOT_FOUND)
    assert text == "Unable to find shared memory region: 'none'"


def test_a_remembered_request_finds_the_region_of_today(client: Client) -> None:
    client.made("in", A, B)
    tensors = addsub_inputs(client)
    client.infer("addsub", tensors)
    client.infer("addsub", tensors)
    client.client.unregister_system_shared_memory("in")
    text = client.refusal(lambda: client.infer("addsub", tensors), NOT_FOUND)
    assert text == "Unable to find shared memory region: 'in'"
    client.create("other", B, A)
    client.register("in", 128, key=own_key("other"))
    np.testing.assert_array_equal(client.infer("addsub", tensors).as_numpy("OUTPUT1"), B - A)
    client.client.unregister_system_shared_memory("in")
    client.register("in", 64, key=own_key("other"))
    text = client.refusal(lambda: client.infer("addsub", tensors), INVALID)
    assert text == "Invalid offset for shared memory region: 'in'"


def test_an_object_that_shrinks_fails_its_requests_alone(client: Client) -> None:
    client.made("in", A, B)
    client.made("out", size=PAGE)
    tensors = addsub_inputs(client)
    outputs = [client.output("OUTPUT0", "out", 64, 2048)]
    for _ in range(2):
        client.infer("addsub", tensors, outputs)
    os.truncate(path_of("out"), 2048)
    text = client.refusal(lambda: client.infer("addsub", tensors, outputs), INTERNAL)
    assert text == (
        f"output 'OUTPUT0' has no room in shared memory region 'out', which is of '{own_key('out')}': the object has "
        "become smaller since it was registered"
    )
    assert os.stat(path_of("out")).st_size == 2048
    os.truncate(path_of("in"), 100)
    text = client.refusal(lambda: client.infer("addsub", tensors), INVALID)
    assert text == (
        f"input 'INPUT1' has 64 bytes in shared memory region 'in', which is of '{own_key('in')}', of which 36 are "
        "left: the object has become smaller since it was registered"
    )
    os.truncate(path_of("in"), 128)  # before the client's own mapping is read
    os.truncate(path_of("out"), PAGE)
    assert client.infer("addsub", tensors, outputs) is not None


def test_an_object_may_be_removed_while_it_is_registered(client: Client) -> None:
    client.made("in", A, B)
    os.rename(path_of("in"), path_of("in-elsewhere"))
    try:
        np.testing.assert_array_equal(client.infer("addsub", addsub_inputs(client)).as_numpy("OUTPUT0"), A + B)
    finally:
        os.rename(path_of("in-elsewhere"), path_of("in"))


# --- in use


def test_a_region_in_use_leaves_with_its_request(client: Client) -> None:
    client.made("in", np.array([[1]], np.int64))
    out = client.made("out", size=8)

    def unregister() -> None:
        client.client.unregister_system_shared_memory("in")
        client.client.unregister_system_shared_memory()
        text = client.refusal(lambda: client.register("in", 8), ("ALREADY_EXISTS", "400"))
        assert text == "shared memory region 'in' already in manager"

    tensor = client.input("INPUT", [1, 1], "INT64", "in", 8)
    assert_stays_while_used(client, "slow", tensor, client.output("OUTPUT", "out", 8), unregister)
    assert shm.get_contents_as_numpy(out, np.int64, [1, 1]).tolist() == [[1]]
    client.register("in", 8)


def test_a_caller_who_leaves_lets_go_of_its_regions(sharing: tuple[ServerProcess, Runs]) -> None:
    client = Client(sharing[0], "grpc", sharing[1])
    client.made("in", np.array([[1]], np.int64))
    client.made("out", np.array([[7]], np.int64))
    tensor = client.input("INPUT", [1, 1], "INT64", "in", 8)
    outputs = [client.output("OUTPUT", "out", 8)]
    over = threading.Event()
    begun = client.runs.begun
    with client.runs.held():
        call = client.client.async_infer("slow", [tensor], lambda result, error: over.set(), outputs=outputs)
        client.runs.wait_begun(begun + 1)
        client.client.unregister_system_shared_memory()
        call.cancel()
        assert over.wait(120)
    wait_until(lambda: not client.status())
    assert shm.get_contents_as_numpy(client.handles[1], np.int64, [1, 1]).tolist() == [[7]]
    client.close()


def test_messages_of_a_stream_have_tensors_in_regions(sharing: tuple[ServerProcess, Runs]) -> None:
    client = Client(sharing[0], "grpc", sharing[1])
    client.made("in", A, B)
    out = client.made("out", size=128)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.client.start_stream(callback=lambda result, error: answers.put((result, error)))
    outputs = [client.output("OUTPUT0", "out", 64), client.output("OUTPUT1", "out", 64, 64)]
    for number in range(3):
        client.client.async_stream_infer("addsub", addsub_inputs(client), outputs=outputs, request_id=str(number))
        result, error = answers.get(timeout=120)
        assert error is None
        assert result.get_response().id == str(number)
        assert list(result.get_response().raw_output_contents) == [b"", b""]
        np.testing.assert_array_equal(contents(out), A + B)
    client.client.async_stream_infer("addsub", addsub_inputs(client), outputs=[client.output("OUTPUT0", "out", 8)])
    assert "(8 bytes) should be at least 64 bytes" in str(answers.get(timeout=120)[1])
    client.client.unregister_system_shared_memory("out")
    client.client.async_stream_infer("addsub", addsub_inputs(client), outputs=outputs)
    assert "Unable to find shared memory region: 'out'" in str(answers.get(timeout=120)[1])
    client.client.stop_stream()
    client.close()


def test_messages_of_a_stream_wait_for_a_full_model_as_others_do(sharing: tuple[ServerProcess, Runs]) -> None:
    client = Client(sharing[0], "grpc", sharing[1])
    count = 40  # more than the model takes
    client.made("in", np.array([[1]], np.int64))
    out = client.made("out", size=8 * count)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.client.start_stream(callback=lambda result, error: answers.put((result, error)))
    tensor = client.input("INPUT", [1, 1], "INT64", "in", 8)
    begun = client.runs.begun
    with client.runs.held():
        for number in range(count):
            client.client.async_stream_infer("slow", [tensor], outputs=[client.output("OUTPUT", "out", 8, 8 * number)])
        client.runs.wait_begun(begun + 1)
    for _ in range(count):
        assert answers.get(timeout=120)[1] is None
    assert (shm.get_contents_as_numpy(out, np.int64, [count]) == 1).all()
    client.client.stop_stream()
    client.close()


# --- off


@pytest.mark.parametrize("transport", list(TRANSPORTS))
def test_regions_are_off_unless_the_operator_allows_them(server: ServerProcess, transport: str) -> None:
    client = Client(server, transport)
    disabled = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    off = ("UNIMPLEMENTED", "501")
    assert client.refusal(lambda: client.register("r", 64), off) == disabled
    assert client.refusal(lambda: client.client.unregister_system_shared_memory("r"), off) == disabled
    assert client.refusal(lambda: client.client.unregister_system_shared_memory(), off) == disabled
    assert client.status() == {}
    client.client.close()


def test_regions_do_not_go_with_several_processes(tmp_path: Path) -> None:
    ended = run("--model-repository", str(tmp_path), "--processes", "2", "--allow-client-shm")
    assert ended.returncode == 2
    assert "--allow-client-shm: does not go with --processes above 1" in ended.stderr
    assert "leave --processes out" in ended.stderr
