"""Requests of more rows than run together, to graphs that leave rows out: all get their own rows, and no error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from tests.e2e.dependent_models import add, graph, node
from tests.e2e.process import ServerProcess, running
from tests.e2e.regions import own_key
from tests.e2e.support import triton
from tests.ensembles import add_ensemble, pbtxt
from tests.waiting import wait_until

http = pytest.importorskip("tritonclient.http")
shm = pytest.importorskip("tritonclient.utils.shared_memory")

CONFIG: Final = "batch_size: 4\ncapacity: 32\nnum_executors: 2\nallocator: cpu\n"
#: Rows of a request, which take three batches.
ROWS: Final = 10
PADDED: Final = "padding:\n  inputs: {x: {axis: 1}}\n  buckets: [4]\n"


def _filter(width: int | str = 2) -> onnx.ModelProto:
    """Rows whose first number is below a thousand: no random row of a probe is left out."""
    nodes = [
        node("Gather", "x first", "column", axis=1),
        node("Less", "column most", "keep"),
        node("Compress", "x keep", "y", axis=0),
    ]
    return graph(nodes, [("x", 1, ["n", width])], [("y", 1, ["m", width])], first=np.int64(0), most=np.float32(1000))


def _text_filter() -> onnx.ModelProto:
    """The same for texts beside the numbers."""
    nodes = [
        node("Gather", "x first", "column", axis=1),
        node("Less", "column most", "keep"),
        node("Compress", "t keep", "y", axis=0),
    ]
    inputs: Any = [("x", 1, ["n", 2]), ("t", 8, ["n", 1])]
    return graph(nodes, inputs, [("y", 8, ["m", 1])], first=np.int64(0), most=np.float32(1000))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("repository")
    for name in ("part_0", "part_1", "part_2", "rest", "shared", "many"):
        add(root, name, _filter(), CONFIG)
    add(root, "in_time", _filter(), CONFIG + "latency_target_ms: 60000\n")
    add(root, "in_order", _filter(), CONFIG + "preserve_ordering: true\n")
    add(root, "cached", _filter(), CONFIG + "response_cache: true\n")
    add(root, "padded", _filter("w"), CONFIG + PADDED)
    add(root, "texts", _text_filter(), CONFIG)
    add(root, "member", _filter(), CONFIG)
    steps = [("member", {"x": "x"}, {"y": "y"})]
    add_ensemble(root, "whole", pbtxt(["x FP32 [-1, 2]"], ["y FP32 [-1, 2]"], steps, batch=0))
    flags = ["--http-addr", "127.0.0.1:0", "--cache-config", "local,size=1048576", "--allow-client-shm", "true"]
    with running(root, tmp_path_factory.mktemp("server"), flags) as process:
        yield process


def _rows(left_out: int | None, rows: int = ROWS, width: int = 2) -> npt.NDArray[np.float32]:
    made = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    if left_out is not None:
        made[left_out, 0] = 2_000
    return made


def _kept(rows: npt.NDArray[np.float32]) -> list[list[float]]:
    kept: list[list[float]] = rows[rows[:, 0] < 1_000].tolist()
    return kept


def _ask(server: ServerProcess, name: str, rows: npt.NDArray[np.float32], kind: Any = triton) -> list[list[float]]:
    address = server.address if kind is triton else f"127.0.0.1:{server.rest_port}"
    given = kind.InferInput("x", rows.shape, "FP32")
    given.set_data_from_numpy(rows)
    with kind.InferenceServerClient(address) as client:
        found: list[list[float]] = client.infer(name, [given]).as_numpy("y").tolist()
    return found


def _check(server: ServerProcess, name: str, left_out: int, kind: Any = triton, width: int = 2) -> None:
    """Rows that come back as they went in are put together; from the first that is left out, requests run alone."""
    for rows in (_rows(None, width=width), _rows(left_out, width=width), _rows(None, width=width)):
        assert _ask(server, name, rows, kind) == _kept(rows)


@pytest.mark.parametrize(("name", "left_out"), [("part_0", 0), ("part_1", 5), ("part_2", 9)])
def test_a_row_that_is_left_out_of_any_part(server: ServerProcess, name: str, left_out: int) -> None:
    _check(server, name, left_out)

    def warnings() -> list[str]:
        said = [line for line in server.log.splitlines() if "its requests are not joined any more" in line]
        return [line for line in said if f"'{name}'" in line]

    wait_until(warnings)  # a log is written beside what it tells of
    assert len(warnings()) == 1


@pytest.mark.parametrize("name", ["in_time", "in_order", "cached"])
def test_other_ways_to_a_batch(server: ServerProcess, name: str) -> None:
    _check(server, name, 6)
    _check(server, name, 6)  # of the cache, for one


def test_json_and_calls_between_models(server: ServerProcess) -> None:
    _check(server, "rest", 2, http)
    _check(server, "whole", 7)


def test_rows_that_are_padded(server: ServerProcess) -> None:
    # Of rows that are padded nobody knows what of the outputs is padding: these have the length of their bucket.
    _check(server, "padded", 5, width=4)


def test_texts(server: ServerProcess) -> None:
    numbers, texts = _rows(4), np.array([[str(number)] for number in range(ROWS)], np.object_)
    for rows in (_rows(None), numbers):
        inputs = [triton.InferInput("x", rows.shape, "FP32"), triton.InferInput("t", texts.shape, "BYTES")]
        for given, content in zip(inputs, (rows, texts), strict=True):
            given.set_data_from_numpy(content)
        with triton.InferenceServerClient(server.address) as client:
            found = client.infer("texts", inputs).as_numpy("y")
        assert found.tolist() == [[str(at).encode()] for at, row in enumerate(rows) if row[0] < 1_000]


def test_outputs_in_shared_memory(server: ServerProcess) -> None:
    size = ROWS * 8
    region = shm.create_shared_memory_region("out", own_key("split-rows"), size)
    try:
        with triton.InferenceServerClient(server.address) as client:
            client.register_system_shared_memory("out", own_key("split-rows"), size)
            for rows in (_rows(None), _rows(5)):
                given = triton.InferInput("x", rows.shape, "FP32")
                given.set_data_from_numpy(rows)
                wanted = triton.InferRequestedOutput("y")
                wanted.set_shared_memory("out", size)
                answer = client.infer("shared", [given], outputs=[wanted])
                shape = list(answer.get_output("y").shape)
                assert shape == [len(_kept(rows)), 2]
                assert shm.get_contents_as_numpy(region, np.float32, shape).tolist() == _kept(rows)
            client.unregister_system_shared_memory("out")
    finally:
        shm.destroy_shared_memory_region(region)


def test_many_at_once_and_nothing_stays_counted(server: ServerProcess) -> None:
    wrong: list[str] = []

    def ask(number: int) -> None:
        try:
            for turn in range(6):
                rows = _rows(number if number < ROWS and turn == 3 else None) + np.float32(number)
                found = _ask(server, "many", rows)
                if found != _kept(rows):
                    wrong.append(f"{found} for {rows.tolist()}")
        except Exception as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    # Were any rows or bytes still counted, as many as there may be would not fit any more.
    rows = _rows(100, rows=4 * 32)
    assert _ask(server, "many", rows) == _kept(rows)
