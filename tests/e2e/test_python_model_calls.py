"""Python models that call other models of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.e2e import python_models
from tests.e2e.process import ServerProcess, running
from tests.graphs import DOUBLE, unary
from tests.waiting import wait_until

triton = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")
utils = pytest.importorskip("tritonclient.utils", reason="has no wheel for free-threaded Python")

CALL = """
def call(self, model, array, outputs=("y",), tensor="x"):
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=list(outputs), inputs=[pb_utils.Tensor(tensor, array)]
    )

def value(self, response):
    if response.has_error():
        raise pb_utils.TritonModelException(f"{response.error().code()} {response.error().message()}")
    return pb_utils.get_output_tensor_by_name(response, "y").as_numpy()
"""
#: Calls the ONNX model that doubles.
ONCE = (
    CALL
    + """
def execute(self, requests):
    return [answer(r, self.value(self.call("double", input_of(r)).exec()) + 1) for r in requests]
"""
)
#: Calls another one that doubles, which nobody else calls.
COUNTED = ONCE.replace('"double"', '"counted"')
#: Calls it twice, one after the other, and a Python model with strings, in one go.
MANY = (
    CALL
    + """
async def execute(self, requests):
    import asyncio
    responses = []
    for request in requests:
        array = input_of(request)
        first, second, third = await asyncio.gather(
            self.call("double", array).async_exec(),
            self.call("double", array + 1).async_exec(),
            self.call("strings", np.array([[b"a", b"bc"]], np.object_)).async_exec(),
        )
        assert self.value(third).tolist() == [[b"a!", b"bc!"]], self.value(third)
        [only] = list(self.call("double", array).exec(decoupled=True))
        responses.append(answer(request, self.value(first) + self.value(second) + self.value(only)))
    return responses
"""
)
THREADS = (
    CALL
    + """
def execute(self, requests):
    from concurrent.futures import ThreadPoolExecutor
    def double(request):
        array = input_of(request)
        for _ in range(3):
            array = self.value(self.call("double", array).exec())
        return answer(request, array)
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(double, requests))
"""
)
#: What is called wrongly, by the first number of the request, and what the model hears.
WRONG = {
    "unknown model": ('self.call("absent", a)', "2 Model absent - .*Request for unknown model: 'absent' is not found"),
    "wrong input": ('self.call("double", a, tensor="z")', "3 Model double - .*input"),
    "wrong shape": ('self.call("double", a[:, :2])', "3 Model double - .*unexpected shape"),
    "unknown output": ('self.call("double", a, ["w"])', "3 Model double - .*unexpected inference output 'w'"),
    "a model that fails": ('self.call("failing", a)', "1 Model failing - .*ValueError: on purpose"),
}
_CASES = "".join(
    f"    if n == {at}:\n        self.value(({what}).exec())\n" for at, (what, _) in enumerate(WRONG.values())
)
FAILS = (
    CALL
    + f"""
def initialize(self, args):
    self.refused = ""
    try:
        self.call("double", np.zeros((1, 4), "f4")).exec()
    except pb_utils.TritonModelException as error:
        self.refused = str(error)

def execute(self, requests):
    [a] = [input_of(request) for request in requests]
    n = int(a[0, 0])
{_CASES}
    if n == 50:
        assert pb_utils.is_model_ready("double")
        assert pb_utils.is_model_ready("double", "1")
        try:
            pb_utils.is_model_ready("absent")
        except pb_utils.TritonModelException as error:
            raise ValueError(f"{{error}}; {{self.refused}}")
"""
)
FAILING = "def execute(self, requests):\n    raise ValueError('on purpose')"
STRINGS = """
def execute(self, requests):
    def mark(array):
        return np.array([element + b'!' for element in array.ravel()], np.object_).reshape(array.shape)
    return [answer(request, mark(input_of(request))) for request in requests]
"""
#: Begins calls that nobody waits for.
LEAVING = (
    CALL
    + """
def execute(self, requests):
    import toutates.backends.python.child.requests as inner
    for request in requests:
        for _ in range(20):
            inner._callers[0].begin(self.call("double", input_of(request)))
    return [answer(request, input_of(request)) for request in requests]
"""
)


#: Four calls of it are answered only when all of them are there.
MEETING = """
def execute(self, requests):
    import pathlib
    place = pathlib.Path(%r)
    for request in requests:
        number, of = map(int, input_of(request)[0, :2])
        (place / f"{of} {number}").touch()
        until = time.monotonic() + 100
        while len(list(place.glob(f"{of} *"))) < 4:
            if time.monotonic() > until:
                raise ValueError("the others have not come")
            time.sleep(0.002)
    return [answer(request, input_of(request)) for request in requests]
"""
TOGETHER = (
    CALL
    + """
def execute(self, requests):
    from concurrent.futures import ThreadPoolExecutor
    [request] = requests
    def meet(number):
        array = input_of(request).copy()
        array[0, 0] = number
        return self.value(self.call("meeting", array).exec())[0, 0]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(meet, range(4))) == [0, 1, 2, 3]
    return [answer(request, input_of(request))]
"""
)
#: Calls with outputs that are larger than the memory of their call, of other sizes each time, and with none.
SIZES = (
    CALL
    + """
async def execute(self, requests):
    import asyncio
    for size in (0, 4, 70_000, 5, 300_000, 3_000_000):
        calls = [self.call("growing", np.full((1, size + at), at, "f4")).async_exec() for at in range(3)]
        for at, response in enumerate(await asyncio.gather(*calls)):
            value = self.value(response)
            assert value.shape == (1, 2 * (size + at)) and (value == at + 1).all(), (size, value.shape)
    return [answer(request, input_of(request)) for request in requests]
"""
)
GROWING = """
def execute(self, requests):
    return [answer(request, np.concatenate([input_of(request)] * 2, 1) + 1) for request in requests]
"""


FLAGS = ["--processing-cores", "1", "--model-control-mode", "explicit", "--load-model", "*"]


@pytest.fixture(scope="module", params=["process", "thread"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    add_model = partial(python_models.add_model, isolation=request.param)
    for name in ("double", "counted"):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.onnx").write_bytes(DOUBLE)
    add_model(root, "once", ONCE)
    add_model(root, "calls_counted", COUNTED)
    add_model(root, "many", MANY)
    add_model(root, "threads", THREADS)
    add_model(root, "fails", FAILS, more="")
    add_model(root, "failing", FAILING)
    add_model(root, "leaving", LEAVING)
    # Batches of one row, so that no two calls are run one after the other.
    met = str(tmp_path_factory.mktemp("met"))
    add_model(root, "meeting", MEETING % met, rows=1, more="instance_group { count: 4 }")
    add_model(root, "together", TOGETHER, more="")
    add_model(root, "sizes", SIZES, more="")
    add_model(root, "growing", GROWING, dims="[ -1 ]")
    add_model(root, "strings", STRINGS, datatype="STRING", dims="[ -1 ]")
    with running(root, tmp_path_factory.mktemp("log"), flags=FLAGS) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as own:
        yield own


def ask(client: Any, model: str, rows: Any) -> Any:
    tensor = triton.InferInput("x", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    return client.infer(model, [tensor], client_timeout=120).as_numpy("y")


def rows_of(count: int, start: float = 0) -> Any:
    return np.arange(4 * count, dtype=np.float32).reshape(count, 4) + start


def test_a_model_calls_an_onnx_model(client: Any) -> None:
    def one(number: int) -> None:
        npt.assert_array_equal(ask(client, "once", rows_of(2, number)), rows_of(2, number) * 2 + 1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(80)))


def test_a_call_goes_to_the_version_that_is_served_now(client: Any) -> None:
    """A version may be replaced, and go, between two calls of the same form."""
    config = json.dumps({"backend": "onnxruntime"})
    try:
        for graph, factor in ((unary("Neg", ["n", 4]), -1), (DOUBLE, 2)):
            client.load_model("double", config=config, files={"file:1/model.onnx": graph})
            for start in (1, 2):
                npt.assert_array_equal(ask(client, "once", rows_of(1, start)), rows_of(1, start) * factor + 1)
        client.unload_model("double")
        with pytest.raises(utils.InferenceServerException, match="'double' has no available versions"):
            ask(client, "once", rows_of(1))
    finally:
        client.load_model("double")


def test_calls_that_are_awaited_together(client: Any) -> None:
    rows = rows_of(1)
    npt.assert_array_equal(ask(client, "many", rows), rows * 6 + 2)


def test_calls_from_threads_of_the_model(client: Any) -> None:
    def one(number: int) -> None:
        npt.assert_array_equal(ask(client, "threads", rows_of(1, number)), rows_of(1, number) * 8)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(40)))


def test_calls_from_several_threads_are_under_way_at_once(client: Any) -> None:
    for number in range(3):
        ask(client, "together", np.full((1, 4), number, np.float32))


def test_calls_with_inputs_and_outputs_of_any_size(client: Any) -> None:
    for _ in range(2):
        ask(client, "sizes", rows_of(1))


@pytest.mark.parametrize("name", WRONG)
def test_a_call_that_fails_says_so_and_raises_nothing(client: Any, name: str) -> None:
    with pytest.raises(utils.InferenceServerException, match=WRONG[name][1]):
        ask(client, "fails", np.full((1, 4), list(WRONG).index(name), np.float32))


def test_models_are_asked_for_readiness_and_called_in_execute_only(client: Any, request: pytest.FixtureRequest) -> None:
    with pytest.raises(utils.InferenceServerException, match="Failed to check model readiness: Request for") as error:
        ask(client, "fails", np.full((1, 4), 50, np.float32))
    if "process" in request.node.name:
        assert "BLS is only supported during the 'execute' function." in str(error.value.message())


def test_calls_that_nobody_waits_for_keep_nothing(client: Any) -> None:
    for _ in range(5):
        npt.assert_array_equal(ask(client, "leaving", rows_of(1)), rows_of(1))


def test_calls_count_as_requests_of_the_model_called(client: Any) -> None:
    def count() -> int:
        [own] = client.get_inference_statistics("counted").model_stats
        return int(own.inference_stats.success.count)

    # Of the other one, calls that nobody waits for may be under way still, from the test before.
    before = count()
    ask(client, "calls_counted", rows_of(1))
    wait_until(lambda: count() == before + 1)
