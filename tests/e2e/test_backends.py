"""Models of other backends through tritonclient, over gRPC and HTTP: LightGBM, OpenVINO, and installed packages."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import numpy.typing as npt_types
import pytest

from tests.backends.frameworks.graphs import mlp, openvino_alone, running_sum
from tests.backends.plugins.packages import documented_decoupled, documented_example, install, write_model
from tests.e2e.process import ServerProcess, running
from tests.e2e.streams import Conversation, conversation, final_of
from tests.e2e.support import Tensor, channel_to, outputs_of, request
from tests.optional import skip_without
from tests.waiting import wait_until

grpc_client = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")
http_client = pytest.importorskip("tritonclient.http", reason="has no wheel for free-threaded Python")
utils = pytest.importorskip("tritonclient.utils", reason="has no wheel for free-threaded Python")
skip_without("lightgbm", "is not installed: the extra lightgbm")

FEATURES = np.random.default_rng(0).random((200, 5))
#: Does what the greatest number of a batch says.
MOODY = """
    def run(self, inputs):
        x = inputs["x"]
        mood = int(x.max())
        if mood == 100:
            raise ValueError("cannot compute")
        if mood == 101:
            raise InvalidRequest("x is not to be 101")
        if mood == 102:
            return {"y": x[:-1]}
        if mood == 103:
            return {"y": x.astype(np.float64)}
        if mood == 104:
            return {"z": x}
        if mood == 105:
            return None
        if mood == 106:
            raise SystemExit(3)
        return {"y": 2 * x}
"""
STRINGS = """
    def load(self, source):
        return Tensors([Tensor("x", "BYTES", (-1, 2))], [Tensor("y", "BYTES", (-1, 2)), Tensor("n", "INT32", (-1, 2))])

    def run(self, inputs):
        x = inputs["x"]
        upper = np.array([element.upper() for element in x.flat], np.object_).reshape(x.shape)
        return {"y": upper, "n": np.array([len(e) for e in x.flat], np.int32).reshape(x.shape)}
"""
#: Whose state the server keeps; it is doubled where a sequence goes on.
SUMS = """
    def load(self, source):
        names = ("x", "past", "START", "CORRID")
        tensors = [Tensor(name, "FP32" if name in ("x", "past") else "INT32", (-1, 1)) for name in names]
        return Tensors(tensors, [Tensor(name, "FP32", (-1, 1)) for name in ("y", "next", "id")])

    def run(self, inputs):
        total = inputs["x"] + np.where(inputs["START"], 0, 2 * inputs["past"]).astype(np.float32)
        return {"y": total, "next": total, "id": inputs["CORRID"].astype(np.float32)}
"""
SEQUENCES = """
sequence_batching {
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 } ] }
  ]
  state [ { input_name: "past" output_name: "next" data_type: TYPE_FP32 dims: [ 1 ] } ]
}
"""
#: Does what its input says, with more than one request open at a time.
ANSWERING = """
    def load(self, source):
        self.held, self.said = [], []
        outputs = [Tensor("y", "FP32", (-1, 2)), Tensor("s", "BYTES", (-1, 1))]
        return Tensors([Tensor("x", "FP32", (-1, 2))], outputs, decoupled=True)

    def respond(self, requests):
        for request in requests:
            getattr(self, "do_%d" % request.inputs["x"][0, 0])(request, request.inputs["x"])

    def do_1(self, request, x):  # rows of another number, and an output alone
        request.send({"y": np.concatenate([x, x])})
        text = f"{request.identifier} {request.parameters['k']}"
        request.send({"s": np.array([[text]], object)}, final=True)
        try:
            request.send({"y": x})
        except RuntimeError as error:
            self.said.append(str(error))

    def do_2(self, request, x):
        raise KeyError("gone")

    def do_3(self, request, x):
        request.fail(InvalidRequest("not this"), final=False)
        request.send({"y": x[:, :1]})
        request.send({"z": x})
        request.send([x])
        request.fail(ValueError("at last"))

    def do_4(self, request, x):
        self.held.append((request, x))

    def do_5(self, request, x):
        for held, own in self.held:
            held.send({"y": own}, final=True)
        self.held.clear()
        for said in self.said:
            request.send({"s": np.array([[said]], object)})
        request.end()

    def do_6(self, request, x):
        import threading
        request.send({"y": x})
        threading.Thread(target=self.until_cancelled, args=(request,)).start()

    def until_cancelled(self, request):
        import time
        while not request.cancelled:
            time.sleep(0.005)
        self.said.append("cancelled")
        request.end()
"""
#: Keeps sums itself, and does not compute -1.
KEEPS_SUMS = """
    def load(self, source):
        self.sums = {}
        tensors = [Tensor("x", "FP32", (-1, 2))], [Tensor("y", "FP32", (-1, 2))]
        return Tensors(*tensors, keeps_state=source.keeps_state("its sums"), warnings=["it keeps sums"])

    def run_sequence(self, inputs, slot, *, begins):
        if list(inputs) != ["x"] or inputs["x"].shape != (1, 2) or (inputs["x"] == -1).any():
            raise ValueError("not to be computed")
        self.sums[slot] = inputs["x"] + (0 if begins else self.sums[slot])
        return {"y": self.sums[slot].copy()}
"""
#: OpenVINO's running sum, by the name of the model.
STATEFUL = {
    "running": "",
    "fresh": 'parameters { key: "stateless" value { string_value: "true" } }',
    "oldest": "sequence_batching { oldest { max_candidate_sequences: 2 } }",
    "direct": (
        'max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: 2 } '
        'output { name: "y" data_type: TYPE_FP32 dims: 2 } sequence_batching { direct { } }'
    ),
}
HANGS = """
    def load(self, source):
        import time
        time.sleep(3600)
"""


def _save_openvino(model: Any, path: Path) -> None:
    openvino_alone().save_model(model, path, compress_to_fp16=False)


def config(backend: str, more: str = "") -> str:
    return f'backend: "{backend}" max_batch_size: 8 {more}'


@pytest.fixture(scope="module")
def booster() -> Any:
    import lightgbm

    parameters = {"objective": "binary", "verbosity": -1, "num_threads": 1}
    return lightgbm.train(parameters, lightgbm.Dataset(FEATURES, label=FEATURES[:, 0] > 0.5), 5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, booster: Any) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("backends")
    site, models = folder / "site", folder / "models"
    site.mkdir()
    install(site, "moody", MOODY)
    install(site, "strings", STRINGS)
    install(site, "sums", SUMS)
    install(site, "keeping", KEEPS_SUMS)
    install(site, "hanging", HANGS)
    install(site, "broken", "    def load(self, source): raise ValueError('the file is cut short')")
    onnx_model = mlp()[0].SerializeToString()
    write_model(models, "onnx", "", {"model.onnx": onnx_model})
    write_model(models, "openvino", config("openvino"), {"model.onnx": onnx_model})
    for name, more in STATEFUL.items():
        _save_openvino(running_sum(), write_model(models, name, f'backend: "openvino" {more}') / "model.xml")
    write_model(models, "trees", "instance_group { count: 2 kind: KIND_CPU } dynamic_batching { }")
    booster.save_model(models / "trees" / "1" / "model.txt")
    write_model(models, "scale", config(documented_example(site)), {"factors.npy": np.array([1.0, 2.0, 3.0, 4.0])})
    install(site, "answering", ANSWERING)
    write_model(models, "countdown", f'backend: "{documented_decoupled(site)}"')
    for name in ("moody", "strings", "broken", "answering"):
        write_model(models, name, config(name))
    write_model(models, "sums", config("sums", SEQUENCES))
    write_model(models, "keeping", config("keeping", "sequence_batching { oldest { max_candidate_sequences: 1 } }"))
    write_model(models, "unkept", config("keeping"))
    limit = 'parameters { key: "toutates.load_timeout_s" value { string_value: "1" } }'
    write_model(models, "hanging", config("hanging", limit))
    write_model(models, "unknown", config("moodie"))
    write_model(models, "plan", 'platform: "tensorrt_plan"', {"model.plan": b""})
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from toutates.command.main import main; sys.exit(main())"
    flags = ["--metrics-addr", "127.0.0.1:0", "--model-control-mode", "explicit", "--load-models"]
    flags.append(",".join(path.name for path in models.iterdir()))
    with running(models, folder, flags, module=("tests.e2e.coded", code)) as server:
        yield server


@pytest.fixture(scope="module", params=["grpc", "http"])
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[tuple[Any, Any]]:
    """A client, and the module that it is of."""
    module = grpc_client if request.param == "grpc" else http_client
    with module.InferenceServerClient(server.address) as client:  # gRPC's port speaks HTTP too
        yield client, module


def infer(client: tuple[Any, Any], model: str, name: str, array: npt_types.NDArray[Any], datatype: str = "FP32") -> Any:
    own, module = client
    tensor = module.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return own.infer(model, [tensor])


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_lightgbm_answers_what_its_booster_predicts(client: tuple[Any, Any], booster: Any, rows: int) -> None:
    x = FEATURES[:rows].astype(np.float32)
    got = infer(client, "trees", "input__0", x).as_numpy("output__0")
    npt.assert_array_equal(got[:, 0], booster.predict(x).astype(np.float32))


def test_openvino_computes_what_onnx_runtime_does(client: tuple[Any, Any]) -> None:
    x = np.random.default_rng(3).random((6, 4), np.float32)
    expected = infer(client, "onnx", "INPUT", x).as_numpy("OUTPUT")
    npt.assert_allclose(infer(client, "openvino", "INPUT", x).as_numpy("OUTPUT"), expected, rtol=1e-5)


def test_what_a_run_of_openvino_leaves_is_not_seen_by_the_next_caller(client: tuple[Any, Any]) -> None:
    x = np.ones((1, 2), np.float32)
    for _ in range(3):
        npt.assert_array_equal(infer(client, "fresh", "x", x).as_numpy("y"), x)
    with pytest.raises(utils.InferenceServerException, match="no available versions"):
        infer(client, "running", "x", x)


def sum_of(client: tuple[Any, Any], model: str, sequence: int, value: float, flags: str = "") -> float:
    own, module = client
    tensor = module.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.full((1, 2), value, np.float32))
    flagged = {"sequence_start": "S" in flags, "sequence_end": "E" in flags}
    y = own.infer(model, [tensor], sequence_id=sequence, **flagged).as_numpy("y")
    assert y.shape == (1, 2)
    return float(y[0, 0])


@pytest.mark.parametrize("model", ["oldest", "direct"])
def test_each_sequence_of_openvino_has_a_state_of_its_own(client: tuple[Any, Any], model: str) -> None:
    ask = partial(sum_of, client, model)
    assert [ask(7, 1, "S"), ask(8, 10, "S"), ask(7, 1), ask(8, 10), ask(8, 10, "E")] == [1, 10, 2, 20, 30]
    # In the place of the one that has ended; and one that begins again.
    assert [ask(9, 100, "S"), ask(7, 1), ask(9, 100, "E"), ask(7, 5, "S"), ask(7, 5, "E")] == [100, 3, 200, 5, 10]


def test_a_sequence_whose_first_request_fails_does_not_go_on_with_the_state_of_the_last_one(
    client: tuple[Any, Any], server: ServerProcess
) -> None:
    ask = partial(sum_of, client, "keeping")
    assert [ask(1, 5, "S"), ask(1, 5, "E")] == [5, 10]
    with pytest.raises(utils.InferenceServerException, match="not to be computed"):
        ask(2, -1, "S")
    assert [ask(2, 3), ask(2, 3, "E")] == [3, 6]
    assert "model 'keeping' version 1: it keeps sums" in server.log


@pytest.mark.parametrize("model", ["oldest", "direct"])
def test_sequences_of_openvino_that_wait_for_a_place_find_no_state_there(server: ServerProcess, model: str) -> None:
    with grpc_client.InferenceServerClient(server.address) as own, ThreadPoolExecutor(6) as pool:

        def sums(sequence: int) -> list[float]:
            ask = partial(sum_of, (own, grpc_client), model, sequence, sequence)
            return [ask(flags) for flags in ("S", "", "", "E")]

        numbers = [*range(20, 26)]
        assert [*pool.map(sums, numbers)] == [[number * count for count in (1, 2, 3, 4)] for number in numbers]


def test_the_documented_example_is_served(client: tuple[Any, Any]) -> None:
    x = np.arange(44, dtype=np.float32).reshape(11, 4)
    npt.assert_array_equal(infer(client, "scale", "x", x).as_numpy("y"), x * [1, 2, 3, 4])


def test_the_server_keeps_the_states_of_sequences_of_a_package(client: tuple[Any, Any]) -> None:
    own, module = client
    tensor = module.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    results = [
        own.infer("sums", [tensor], sequence_id=5, sequence_start=flags == "S", sequence_end=flags == "E")
        for flags in ("S", "", "E")
    ]
    assert [result.as_numpy("y").item() for result in results] == [1, 3, 7]
    assert [result.as_numpy("id").item() for result in results] == [5, 5, 5]
    metadata = own.get_model_metadata("sums")
    inputs = metadata["inputs"] if isinstance(metadata, dict) else metadata.inputs
    assert len(inputs) == 1


def test_strings_go_in_and_out(client: tuple[Any, Any]) -> None:
    x = np.array([[b"a", "é".encode()], [b"", b"long" * 9]], np.object_)
    result = infer(client, "strings", "x", x, "BYTES")
    npt.assert_array_equal(result.as_numpy("y"), [[b"A", "é".encode().upper()], [b"", b"LONG" * 9]])
    npt.assert_array_equal(result.as_numpy("n"), [[1, 2], [0, 36]])


FAILURES = {
    100: "the backend 'moody' failed to run model 'moody': ValueError: cannot compute",
    101: "x is not to be 101",
    102: "model 'moody' returned output 'y' as FP32 [1, 2], expected FP32 [2, 2] for a batch of 2 rows",
    103: "model 'moody' returned output 'y' as FP64 [2, 2], expected FP32 [2, 2] for a batch of 2 rows",
    104: "the backend 'moody' of model 'moody' returned no output 'y'; returned were 'z'",
    105: "the backend 'moody' of model 'moody' returned NoneType, expected a dict of 'y'",
    106: "the backend 'moody' failed to run model 'moody': SystemExit: 3",
}


@pytest.mark.parametrize("mood", FAILURES)
def test_a_run_that_fails_tells_what_failed_and_the_next_one_works(client: tuple[Any, Any], mood: int) -> None:
    x = np.full((2, 2), mood, np.float32)
    with pytest.raises(utils.InferenceServerException) as caught:
        infer(client, "moody", "x", x)
    assert caught.value.message() == FAILURES[mood]
    client_error = mood == 101
    expected = "StatusCode.INVALID_ARGUMENT" if client_error else "StatusCode.INTERNAL"
    assert caught.value.status() in (expected, "400" if client_error else "500")
    npt.assert_array_equal(infer(client, "moody", "x", x / 100 - 1).as_numpy("y"), 2 * (x / 100 - 1))


def test_neighbours_of_a_request_that_fails_are_answered(server: ServerProcess) -> None:
    with grpc_client.InferenceServerClient(server.address) as own, ThreadPoolExecutor(8) as pool:

        def ask(mood: int) -> object:
            try:
                x = np.full((1, 2), mood, np.float32)
                return infer((own, grpc_client), "moody", "x", x).as_numpy("y").tolist()
            except utils.InferenceServerException as error:
                return error.message()

        moods = [1, 100, 2, 3, 104, 4] * 10
        answers = list(pool.map(ask, moods))
    assert answers == [FAILURES.get(mood, [[2 * mood, 2 * mood]]) for mood in moods]


@pytest.fixture
def stream(server: ServerProcess) -> Iterator[Conversation]:
    with channel_to(server.address) as channel, conversation(channel) as one:
        yield one


def ask(what: float, rows: int = 1, **options: Any) -> Any:
    """A request to the model "answering"."""
    x = np.full((rows, 2), what, np.float32)
    message = request("answering", Tensor.of("x", "FP32", x), **options)
    message.parameters["k"].int64_param = 7
    return message


def text_of(answer: Any) -> str:
    """The one element of an answer's output of BYTES."""
    text: bytes = answer.infer_response.raw_output_contents[0][4:]
    return text.decode()


def said(stream: Conversation) -> str:
    """What the model "answering" has noted last; held requests are answered too."""
    message = ask(5)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    stream.send(message)
    found = ""
    while not final_of(answer := stream.read()[0]):
        found = text_of(answer)
    return found


def test_the_documented_decoupled_example_counts_down(server: ServerProcess, stream: Conversation) -> None:
    start = np.array([3], np.int32)
    stream.send(request("countdown", Tensor.of("start", "INT32", start)))
    numbers = [outputs_of(answer.infer_response)["number"].tolist() for answer in stream.read(3)]
    assert numbers == [[3], [2], [1]]
    for module, refusal in (
        (grpc_client, "ModelInfer RPC doesn't support models with decoupled transaction policy"),
        (http_client, "HTTP end point doesn't support models with decoupled transaction policy"),
    ):
        refused = pytest.raises(utils.InferenceServerException, match=refusal)
        with module.InferenceServerClient(server.address) as own, refused:
            infer((own, module), "countdown", "start", start, "INT32")
    with grpc_client.InferenceServerClient(server.address) as own:
        assert own.get_model_config("countdown").config.model_transaction_policy.decoupled
        [statistics] = own.get_inference_statistics("countdown").model_stats
        assert [statistics.response_stats[str(place)].success.count for place in range(3)] == [1, 1, 1]


def test_responses_of_a_backend_have_any_rows_and_outputs_and_nothing_follows_the_last(stream: Conversation) -> None:
    stream.send(ask(1, id="me"))
    doubled, text = stream.read(2)
    assert outputs_of(doubled.infer_response)["y"].tolist() == [[1, 1], [1, 1]]
    assert not final_of(doubled)
    assert final_of(text)
    assert text_of(text) == "me 7"
    wait_until(lambda: said(stream) == "the request has had its last response")


def test_errors_of_a_decoupled_backend_end_a_request_or_not(stream: Conversation) -> None:
    raised = "the backend 'answering' failed to run model 'answering': "
    assert stream.ask(ask(2)).error_message == raised + "KeyError: 'gone'"
    stream.send(ask(3))
    who = "the backend 'answering' of model 'answering' returned"
    assert [answer.error_message for answer in stream.read(5)] == [
        "not this",
        "model 'answering' returned output 'y' as FP32 [1, 1], expected FP32 [1, 2] for 1 row",
        f"{who} 'z', expected some of 'y', 's'",
        f"{who} list, expected a dict of 'y', 's'",
        raised + "ValueError: at last",
    ]


def test_requests_of_a_decoupled_backend_are_open_side_by_side(server: ServerProcess, stream: Conversation) -> None:
    stream.send(ask(4, 2, id="first"), ask(4, id="second"))
    stream.send(ask(5))
    answers = stream.read(2)
    assert [outputs_of(one.infer_response)["y"].shape for one in answers if one.infer_response.id] == [(2, 2), (1, 2)]
    with channel_to(server.address) as channel, conversation(channel) as leaving:
        assert not final_of(leaving.ask(ask(6)))
    wait_until(lambda: said(stream) == "cancelled")


REASONS = {
    "broken": "the backend 'broken' cannot load the model: ValueError: the file is cut short",
    "hanging": "the backend 'hanging' has not loaded the model within 1 s",
    "unknown": "there is no backend of this name (got 'moodie'); did you mean 'moody'?",
    "unkept": "the model keeps a state from run to run: its sums; the next caller would see",
    "running": "the model keeps a state from run to run: it has the variables v (ReadValue, Assign)",
    "plan": "put the ONNX model there that the plan was built from",
}


@pytest.mark.parametrize("model", REASONS)
def test_a_model_that_cannot_be_served_has_its_reason_in_the_index(server: ServerProcess, model: str) -> None:
    with grpc_client.InferenceServerClient(server.address) as client:
        [entry] = [one for one in client.get_model_repository_index().models if one.name == model]
        assert entry.state == "UNAVAILABLE"
        assert REASONS[model] in entry.reason
        assert not client.is_model_ready(model)


def test_statistics_metrics_and_the_page_know_any_backend(server: ServerProcess, booster: Any) -> None:
    with grpc_client.InferenceServerClient(server.address) as client:
        before = client.get_inference_statistics("trees").model_stats[0].inference_stats.success.count
        infer((client, grpc_client), "trees", "input__0", FEATURES[:8].astype(np.float32))

        def count() -> int:
            return int(client.get_inference_statistics("trees").model_stats[0].inference_stats.success.count)

        wait_until(lambda: count() == before + 1)
        assert {batch.batch_size for batch in client.get_inference_statistics("trees").model_stats[0].batch_stats} >= {
            8
        }
        served = client.get_model_config("trees").config
        assert (served.backend, served.default_model_filename, served.max_batch_size) == ("lightgbm", "model.txt", 64)
        assert served.instance_group[0].count == 2
    page = f"http://127.0.0.1:{server.http_port}"
    with urllib.request.urlopen(f"{page}/metrics", timeout=120) as answer:
        metrics = answer.read().decode()
    assert 'toutates_executors{model="trees",version="1"} 2' in metrics
    assert 'nv_inference_request_success{model="scale",version="1"}' in metrics
    with urllib.request.urlopen(f"{page}/status.json", timeout=120) as answer:
        assert '"trees"' in answer.read().decode()


def test_a_model_is_unloaded_and_loaded_again(server: ServerProcess) -> None:
    x = np.ones((1, 4), np.float32)
    with grpc_client.InferenceServerClient(server.address) as client:
        for model, name in (("openvino", "INPUT"), ("scale", "x")):
            infer((client, grpc_client), model, name, x)
            client.unload_model(model)
            with pytest.raises(utils.InferenceServerException, match="has no available versions"):
                infer((client, grpc_client), model, name, x)
            client.load_model(model)
            infer((client, grpc_client), model, name, x)


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with models of scikit-learn that were fitted on named columns: of numbers, and some of texts."""
    skops = pytest.importorskip("skops.io", reason="is not installed: the extra sklearn")
    pandas = pytest.importorskip("pandas", reason="is not installed")
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    folder = tmp_path_factory.mktemp("columns")
    x = np.random.default_rng(0).random((60, 2))
    table = pandas.DataFrame({"age": x[:, 0], "rooms": x[:, 1]})
    numbers = LogisticRegression().fit(table, x[:, 0] > 0.5)
    table["city"] = np.where(x[:, 0] > 0.5, "Rom", "Köln")
    encoded = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
    texts = make_pipeline(encoded, LogisticRegression()).fit(table, x[:, 0] > 0.5)
    broken = LogisticRegression().fit(x, x[:, 0] > 0.5)
    broken.coef_ = np.ones((1, 3))  # as a file that does not fit its own steps
    for name, model in (("numbers", numbers), ("texts", texts), ("broken", broken)):
        path = write_model(folder / "models", name, "dynamic_batching { max_queue_delay_microseconds: 20000 }")
        skops.dump(model, path / "model.skops")
    types = ", ".join(skops.get_untrusted_types(file=folder / "models" / "texts" / "1" / "model.skops"))
    trusted = f'parameters {{ key: "trusted_types" value {{ string_value: "{types}" }} }}'
    (folder / "models" / "texts" / "config.pbtxt").write_text(f'backend: "sklearn" {trusted}')
    with running(folder / "models", folder, ["--http-addr", "127.0.0.1:0"]) as server:
        yield server


def test_a_nan_is_refused_to_its_caller_alone_and_a_warning_is_logged_once(columns: ServerProcess) -> None:
    with grpc_client.InferenceServerClient(columns.address) as own, ThreadPoolExecutor(8) as pool:
        before = own.get_model_metadata("numbers", as_json=True)

        def ask(value: float) -> object:
            try:
                x = np.array([[value, 0.5]], np.float32)
                return infer((own, grpc_client), "numbers", "input__0", x).as_numpy("label").tolist()
            except utils.InferenceServerException as error:
                return str(error.status()), "has NaN" in error.message()

        values = [0.9, float("nan"), 0.1, 0.8] * 20
        expected: list[object] = [[[True]], ("StatusCode.INVALID_ARGUMENT", True), [[False]], [[True]]]
        assert [*pool.map(ask, values)] == expected * 20
        assert own.get_model_metadata("numbers", as_json=True) == before
    wait_until(lambda: "does not have valid feature names" in columns.log)
    assert columns.log.count("does not have valid feature names") == 1


def test_what_an_estimator_does_wrong_is_no_fault_of_its_callers(columns: ServerProcess) -> None:
    with grpc_client.InferenceServerClient(columns.address) as client:
        with pytest.raises(utils.InferenceServerException, match="failed to run model 'broken': ") as error:
            infer((client, grpc_client), "broken", "input__0", np.ones((1, 2), np.float32))
        assert error.value.status() == "StatusCode.INTERNAL"
        # That of a row with NaN is still its caller's.
        with pytest.raises(utils.InferenceServerException, match="has NaN") as error:
            infer((client, grpc_client), "broken", "input__0", np.full((1, 2), np.nan, np.float32))
        assert error.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize("way", ["grpc", "http"])
def test_columns_of_texts_and_numbers_are_inputs_of_their_own(columns: ServerProcess, way: str) -> None:
    module = grpc_client if way == "grpc" else http_client
    with module.InferenceServerClient(columns.address) as own:
        arrays = {
            "age": (np.array([[0.2], [0.7]]), "FP64"),
            "rooms": (np.array([[0.5], [0.5]]), "FP64"),
            "city": (np.array([["Köln".encode()], [b"Rom"]], object), "BYTES"),
        }
        inputs = []
        for name, (array, datatype) in arrays.items():
            inputs.append(module.InferInput(name, [2, 1], datatype))
            inputs[-1].set_data_from_numpy(array)
        assert own.infer("texts", inputs).as_numpy("label").tolist() == [[False], [True]]
        inputs[2].set_data_from_numpy(np.array([[b"Oslo"], [b"Rom"]], object))
        with pytest.raises(utils.InferenceServerException, match="Found unknown categories") as caught:
            own.infer("texts", inputs)
        assert caught.value.status() in ("StatusCode.INVALID_ARGUMENT", "400")


def test_no_backend_has_switched_the_gil_on(server: ServerProcess) -> None:
    assert "the GIL was switched on" not in server.log
    assert "has switched the GIL on" not in server.log
