"""What Python models return is sent: other datatypes and shapes than they declare, and outputs that they leave out."""

from __future__ import annotations

import json
import queue
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.e2e import python_models
from tests.e2e.process import ServerProcess, running
from tests.e2e.regions import own_key
from tests.ensembles import MODELS, add_ensemble, add_graph, pbtxt, step
from tests.waiting import PATIENCE_S, wait_until

triton = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")
triton_http = pytest.importorskip("tritonclient.http")
utils = pytest.importorskip("tritonclient.utils")
shared_memory = pytest.importorskip("tritonclient.utils.shared_memory")

#: Each of them gives, beside "y", which is FP32 and has 4 numbers in a row, the output "z" that nobody has to ask for.
MORE = 'output [ { name: "z" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
#: What a model gives as "y" for rows of x, and what the client sees of it for two rows.
GIVEN: dict[str, tuple[str, Callable[[Any], Any], str, list[int]]] = {
    "float64": ("x.astype('f8')", lambda x: x.astype("f8"), "FP64", [2, 4]),
    "integers": ("x.astype('i8')", lambda x: x.astype("i8"), "INT64", [2, 4]),
    "half": ("x.astype('f2')", lambda x: x.astype("f2"), "FP16", [2, 4]),
    "texts": ("np.full(x.shape, b'text', object)", lambda x: np.full(x.shape, b"text", object), "BYTES", [2, 4]),
    "wider": ("np.concatenate([x, x], 1)", lambda x: np.concatenate([x, x], 1), "FP32", [2, 8]),
    "deeper": ("x.reshape(len(x), 2, 2)", lambda x: x.reshape(len(x), 2, 2), "FP32", [2, 2, 2]),
    "a_scalar": ("np.float32(3)", lambda x: np.float32(3), "FP32", []),
    "no_batch": ("x[0]", lambda x: x[0], "FP32", [4]),
    "other_rows": ("np.ones((5, 4), 'f4')", lambda x: np.ones((5, 4), "f4"), "FP32", [5, 4]),
    "one_text": ("np.array([b'a', b'', b'bc'], object)", lambda x: np.array([b"a", b"", b"bc"], object), "BYTES", [3]),
    "nothing": ("np.zeros((0, 4), 'f4')", lambda x: np.zeros((0, 4), "f4"), "FP32", [0, 4]),
    "as_declared": ("x", lambda x: x, "FP32", [2, 4]),
}
CALLING = """
def execute(self, requests):
    responses = []
    for request in requests:
        names = request.requested_output_names()
        call = pb_utils.InferenceRequest(
            model_name="float64", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", input_of(request))]
        )
        lacking = pb_utils.InferenceRequest(
            model_name="float64", requested_output_names=["y", "z"], inputs=[pb_utils.Tensor("x", input_of(request))]
        )
        response, short = call.exec(), lacking.exec()
        assert not short.has_error() and [one.name() for one in short.output_tensors()] == ["y"]
        responses.append(answer(request, pb_utils.get_output_tensor_by_name(response, "y").as_numpy()))
    return responses
"""
SENDING = """
def execute(self, requests):
    for request in requests:
        x, sender = input_of(request), request.get_response_sender()
        sender.send(answer(request, x.astype('f8')))
        sender.send(answer(request, np.float32(3)))
        sender.send(answer(request, x[:1], 'z'), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
STACKED = """
def execute(self, requests):
    [request] = requests
    x = input_of(request)
    return [answer(request, np.float32(3) if (x < 0).any() else x.astype('f8'))]
"""


SEQUENCE = """
def execute(self, requests):
    arrays = [input_of(request) for request in requests]
    return [answer(r, np.float32(3) if (x < 0).any() else x.astype('f8')) for r, x in zip(requests, arrays)]
"""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for which a model waits."""
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture(scope="module", params=["process", "thread"])
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, gate: Path
) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    add_model = partial(python_models.add_model, isolation=request.param)

    def giving(expression: str) -> str:
        given = f"[answer(r, (lambda x: {expression})(input_of(r))) for r in requests]"
        return f"def execute(self, requests):\n    return {given}"

    for name, (expression, *_) in GIVEN.items():
        add_model(root, name, giving(expression), more=MORE)
        add_model(root, f"batched_{name}", giving(expression), more=MORE + "dynamic_batching {}")
    add_model(root, "unbatched", giving("np.arange(3)"), rows=0, more=MORE)
    add_model(root, "cached", giving("x.astype('f8')"), more="response_cache { enable: true }")
    add_model(root, "cached_short", "calls = 0\n" + _SHORT, more=MORE + "response_cache { enable: true }")
    waiting = _SHORT.replace("    responses = []", _WAIT.format(gate=str(gate)))
    add_model(root, "cached_waiting", "calls = 0\n" + waiting, more=MORE + "response_cache { enable: true }")
    add_model(root, "calling", CALLING)
    add_model(root, "sending", SENDING, more=MORE + "model_transaction_policy { decoupled: true }")
    add_model(root, "stacked", STACKED, more=_PARAMETER % "toutates.stacked" + "dynamic_batching {}")
    for name, more in (("rows", ""), ("stacked", _PARAMETER % "toutates.stacked")):
        add_model(root, f"sequence_{name}", STACKED if more else SEQUENCE, more=more + _SEQUENCES)
    for name in ("a_scalar", "float64"):
        add_ensemble(root, f"on_{name}", pbtxt(["IN FP32 [4]"], ["OUT FP32 [4]"], [step(name, "x=IN", "y=OUT")]))
    add_model(root, "strict", giving("x.astype('f8')"), more=_PARAMETER % "toutates.strict_outputs")
    add_graph(root, "double", MODELS["double"])
    add_ensemble(root, "sent_on", pbtxt(["IN FP32 [4]"], ["OUT FP32 [4]"], [step("batched_float64", "x=IN", "y=OUT")]))
    add_ensemble(
        root,
        "refused",
        pbtxt(
            ["IN FP32 [4]"], ["OUT FP32 [4]"], [step("batched_float64", "x=IN", "y=t"), step("double", "x=t", "y=OUT")]
        ),
    )
    flags = ["--response-cache-byte-size", "1000000", "--allow-client-shm", "--http-addr", "127.0.0.1:0"]
    with running(root, tmp_path_factory.mktemp("log"), flags=flags) as process:
        yield process


_SEQUENCES = "sequence_batching { oldest { max_candidate_sequences: 8 max_queue_delay_microseconds: 1000 } }"
_PARAMETER = 'parameters { key: "%s" value { string_value: "true" } }\n'
_WAIT = """
    import os, time
    while not os.path.exists({gate!r}):
        time.sleep(0.005)
    responses = []
"""
#: Leaves z out of its first answer alone.
_SHORT = """
def execute(self, requests):
    responses = []
    for request in requests:
        self.calls += 1
        tensors = [pb_utils.Tensor("y", input_of(request)), pb_utils.Tensor("z", np.ones((2, 1), np.int32))]
        responses.append(pb_utils.InferenceResponse(tensors[: self.calls]))
    return responses
"""


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as connected:
        yield connected


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def input_of(rows: Any = X, module: Any = triton, name: str = "x") -> Any:
    tensor = module.InferInput(name, rows.shape, "FP32")
    tensor.set_data_from_numpy(rows)
    return tensor


def expected(name: str) -> Any:
    return GIVEN[name][1](X)


def described(result: Any, name: str = "y") -> tuple[str, list[int]]:
    output = result.get_output(name)
    return output.datatype, list(output.shape)


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("prefix", ["", "batched_"])
def test_over_grpc(client: Any, name: str, prefix: str) -> None:
    for _ in range(2):
        result = client.infer(prefix + name, [input_of()])
        assert described(result) == GIVEN[name][2:]
        npt.assert_array_equal(result.as_numpy("y"), expected(name))
        assert result.as_numpy("z") is None


@pytest.mark.parametrize("name", GIVEN)
def test_over_rest(server: ServerProcess, name: str) -> None:
    document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": X.tolist()}]}
    url = f"http://127.0.0.1:{server.rest_port}/v2/models/{name}/infer"
    _, _, datatype, shape = GIVEN[name]
    if datatype != "FP16":  # which JSON has not
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(document).encode())) as answer:
            [output] = json.load(answer)["outputs"]
        assert (output["name"], output["datatype"], output["shape"]) == ("y", datatype, shape)
        values = expected(name).ravel()
        assert output["data"] == ([one.decode() for one in values] if datatype == "BYTES" else values.tolist())
    with triton_http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as client:
        asked = [triton_http.InferRequestedOutput("y", binary_data=True)]
        result = client.infer(name, [input_of(module=triton_http)], outputs=asked)
        npt.assert_array_equal(result.as_numpy("y"), expected(name))
        assert result.get_output("y")["datatype"] == datatype


@pytest.mark.parametrize("name", ["float64", "a_scalar", "wider", "texts"])
def test_in_shared_memory(client: Any, name: str) -> None:
    values = np.asarray(expected(name))
    size = values.nbytes if values.dtype != object else sum(4 + len(one) for one in values.ravel())
    handle = shared_memory.create_shared_memory_region("outputs", own_key(f"outputs-{name}"), 1024)
    client.register_system_shared_memory("outputs", own_key(f"outputs-{name}"), 1024)
    try:
        for room in (size, size - 1):
            asked = triton.InferRequestedOutput("y")
            asked.set_shared_memory("outputs", room)
            if room < size:
                with pytest.raises(utils.InferenceServerException, match=f"should be at least {size} bytes"):
                    client.infer(name, [input_of()], outputs=[asked])
                continue
            result = client.infer(name, [input_of()], outputs=[asked])
            assert described(result) == GIVEN[name][2:]
            kind = values.dtype
            npt.assert_array_equal(shared_memory.get_contents_as_numpy(handle, kind, values.shape), values)
    finally:
        client.unregister_system_shared_memory("outputs")
        shared_memory.destroy_shared_memory_region(handle)


def streamed(server: ServerProcess, names: Iterable[str], count: int) -> list[Any]:
    """The first answers on a stream to a request to each of some models."""
    got: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(server.address) as client:
        client.start_stream(lambda result, error: got.put(error or result))
        for name in names:
            client.async_stream_infer(name, [input_of()], request_id=name)
        results = [got.get(timeout=120) for _ in range(count)]
        client.stop_stream()
    return results


def test_on_a_stream(server: ServerProcess) -> None:
    for name, result in zip(GIVEN, streamed(server, GIVEN, len(GIVEN)), strict=True):
        npt.assert_array_equal(result.as_numpy("y"), expected(name))
        assert described(result) == GIVEN[name][2:]


def test_responses_of_a_decoupled_model(server: ServerProcess) -> None:
    first, second, third = streamed(server, ["sending"], 3)
    npt.assert_array_equal(first.as_numpy("y"), X.astype("f8"))
    assert described(first) == ("FP64", [2, 4])
    assert described(second) == ("FP32", [])
    assert second.as_numpy("y") == 3
    assert (third.as_numpy("y"), described(third, "z")) == (None, ("FP32", [1, 4]))


def test_without_a_batch(client: Any) -> None:
    result = client.infer("unbatched", [input_of(X[0])])
    assert described(result) == ("INT64", [3])


def test_classes_are_of_what_was_given(client: Any) -> None:
    for name, error in (("integers", ""), ("texts", "unsupported type 'BYTES'"), ("half", "unsupported type 'FP16'")):
        asked = [triton.InferRequestedOutput("y", class_count=1)]
        if error:
            with pytest.raises(utils.InferenceServerException, match=error):
                client.infer(name, [input_of()], outputs=asked)
        else:
            assert client.infer(name, [input_of()], outputs=asked).as_numpy("y").tolist() == [[b"3:3"], [b"7:3"]]


def test_a_call_brings_what_was_given(client: Any) -> None:
    result = client.infer("calling", [input_of()])
    assert described(result) == ("FP64", [2, 4])
    npt.assert_array_equal(result.as_numpy("y"), X.astype("f8"))


def test_a_cache_keeps_what_was_given(client: Any) -> None:
    for _ in range(3):
        result = client.infer("cached", [input_of()])
        assert described(result) == ("FP64", [2, 4])
        npt.assert_array_equal(result.as_numpy("y"), X.astype("f8"))
    [stats] = client.get_inference_statistics("cached").model_stats
    assert stats.inference_stats.cache_hit.count == 2


def test_a_cache_does_not_keep_an_answer_that_lacks_an_output(client: Any) -> None:
    assert client.infer("cached_short", [input_of()]).as_numpy("z") is None
    for _ in range(2):
        npt.assert_array_equal(client.infer("cached_short", [input_of()]).as_numpy("z"), [[1], [1]])


def test_who_waits_for_an_answer_that_lacks_an_output_is_computed_itself(client: Any, gate: Path) -> None:
    gate.unlink(missing_ok=True)

    def hits() -> int:
        [one] = client.get_inference_statistics("cached_waiting").model_stats
        return int(one.inference_stats.cache_hit.count)

    answers: queue.Queue[Any] = queue.Queue()
    for _ in range(5):
        client.async_infer("cached_waiting", [input_of()], lambda result, error: answers.put((result, error)))
    wait_until(lambda: hits() == 4)
    gate.touch()
    found = [answers.get(timeout=PATIENCE_S) for _ in range(5)]
    assert [error for _, error in found if error] == []
    lacking = [result for result, _ in found if result.as_numpy("z") is None]
    assert len(lacking) == 1
    for result, _ in found:
        npt.assert_array_equal(result.as_numpy("y"), X)


def test_an_ensemble_sends_what_its_last_step_has_given(client: Any) -> None:
    def one(number: int) -> None:
        rows = np.full((1 + number % 3, 4), number, np.float32)
        result = client.infer("sent_on", [input_of(rows, name="IN")])
        assert described(result, "OUT") == ("FP64", [len(rows), 4])
        npt.assert_array_equal(result.as_numpy("OUT"), rows.astype("f8"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(60)))


def test_a_member_refuses_what_another_has_given_with_both_datatypes(client: Any) -> None:
    with pytest.raises(
        utils.InferenceServerException,
        match="in ensemble 'refused', inference input 'x' data-type is 'FP64', but model 'double' expects 'FP32'; "
        "output 'y' of model 'batched_float64'",
    ) as error:
        client.infer("refused", [input_of(name="IN")])
    assert error.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_rows_that_the_server_has_joined_are_divided_or_an_error_says_why(client: Any) -> None:
    texts: set[str] = set()

    def one(number: int) -> None:
        rows = np.full((1, 4), number, np.float32)
        try:
            result = client.infer("stacked", [input_of(rows)])
        except utils.InferenceServerException as error:
            texts.add(str(error))
            return
        if described(result) == ("FP64", [1, 4]):
            npt.assert_array_equal(result.as_numpy("y"), rows.astype("f8"))
        else:  # it was alone, and what was given is sent
            assert (number, result.as_numpy("y")) == (-1, 3)

    def meet() -> bool:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(one, [-1 if at % 16 == 0 else at for at in range(160)]))
        return bool(texts)

    wait_until(meet)
    assert all("cannot be divided among them, because its first dimension is not" in text for text in texts)


@pytest.mark.parametrize("name", ["on_a_scalar", "on_float64"])
def test_requests_of_an_ensemble_that_go_together_get_what_is_theirs(
    client: Any, server: ServerProcess, name: str
) -> None:
    def one(number: int) -> None:
        rows = np.full((1 + number % 3, 4), number, np.float32)
        result = client.infer(name, [input_of(rows, name="IN")])
        if name == "on_a_scalar":
            assert (described(result, "OUT"), result.as_numpy("OUT")) == (("FP32", []), 3)
        else:
            npt.assert_array_equal(result.as_numpy("OUT"), rows.astype("f8"))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(200)))
    assert "ensemble 'on_float64': its requests go through its models one by one" not in server.log


@pytest.mark.parametrize("name", ["sequence_rows", "sequence_stacked"])
def test_rows_of_sequences_get_what_is_theirs(client: Any, name: str) -> None:
    refused: list[str] = []

    def one(sequence: int) -> None:
        for step_of in range(6):
            number = -1 if (sequence, step_of) == (3, 3) else 10 * sequence + step_of
            rows = np.full((1, 4), number, np.float32)
            flags = {"sequence_start": step_of == 0, "sequence_end": step_of == 5}
            try:
                result = client.infer(name, [input_of(rows)], sequence_id=sequence, **flags)
            except utils.InferenceServerException as error:  # of rows that it has seen with those of -1
                refused.append(str(error))
                continue
            if described(result) == ("FP64", [1, 4]):
                npt.assert_array_equal(result.as_numpy("y"), rows.astype("f8"))
            else:
                assert (number, result.as_numpy("y")) == (-1, 3)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(1, 9)))
    assert name == "sequence_stacked" or not refused
    assert all("cannot be divided" in text for text in refused)


def test_a_strict_model_has_todays_errors(client: Any) -> None:
    with pytest.raises(utils.InferenceServerException, match=r"output 'y' as FP64 \[2, 4\], expected FP32 \[2, 4\]"):
        client.infer("strict", [input_of()])


def test_the_log_says_it_once_for_each_output(server: ServerProcess, client: Any) -> None:
    for _ in range(3):
        client.infer("wider", [input_of()])
        client.infer("as_declared", [input_of()])
    said = [line for line in server.log.splitlines() if "model 'wider' returned" in line]
    assert len(said) == 2
    assert {"output 'y' as FP32 [2, 8]" in line or "no output 'z'" in line for line in said} == {True}
    assert not [line for line in server.log.splitlines() if "model 'as_declared' returned output" in line]
