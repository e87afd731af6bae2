"""Ensembles, seen by tritonclient over gRPC and HTTP."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.testing as npt
import pytest
from onnx import TensorProto

from tests.e2e.control import client_of, fails
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import Tensor, channel_to, infer, request, triton
from tests.ensembles import MODELS, add_ensemble, add_graph, pbtxt, step
from tests.graphs import double, unary
from tests.infer.tracing.collector import Collector, attributes_of, children_of, collecting
from tests.waiting import wait_until

http = pytest.importorskip("tritonclient.http")

IN: Final = ["IN FP32 [4]"]
OUT: Final = ["OUT FP32 [4]"]
CHAIN: Final = [step("double", "x=IN", "y=t"), step("negate", "x=t", "y=OUT")]

ENSEMBLES: Final = {
    "chain": pbtxt(IN, OUT, CHAIN),
    # In another order than that of the data, and with branches that run side by side.
    "fan": pbtxt(
        IN,
        ["SUM FP32 [4]", "DIFFERENCE FP32 [4]"],
        [
            step("add_sub", "a=t0", "b=t1", "sum=SUM", "difference=DIFFERENCE"),
            step("double", "x=IN", "y=t0"),
            step("negate", "x=IN", "y=t1"),
        ],
    ),
    "two": pbtxt(
        IN, ["DOUBLED FP32 [4]", "NEGATED FP32 [4]"], [step("d2", "x=IN", "y=DOUBLED"), step("n2", "x=IN", "y=NEGATED")]
    ),
    "nested": pbtxt(IN, OUT, [step("chain", "IN=IN", "OUT=t"), step("double", "x=t", "y=OUT")]),
    "versions": pbtxt(
        IN, ["ONE FP32 [4]", "TWO FP32 [4]"], [step("many/1", "x=IN", "y=ONE"), step("many/2", "x=IN", "y=TWO")]
    ),
    "table": pbtxt(["IN INT64 [1]"], ["OUT FP32 [1]"], [step("lookup", "x=IN", "y=t"), step("half", "x=t", "y=OUT")]),
    "outer": pbtxt(["IN INT64 [1]"], ["OUT FP32 [1]"], [step("table", "IN=IN", "OUT=OUT")]),
    "text": pbtxt(["IN STRING [2]"], ["OUT STRING [2]"], [step("words", "x=IN", "y=t"), step("words", "x=t", "y=OUT")]),
    "long": pbtxt(["IN STRING [-1]"], ["OUT STRING [-1]"], [step("any", "x=IN", "y=t"), step("any", "x=t", "y=OUT")]),
    "dynamic": pbtxt(["IN FP32 [-1]"], OUT, [step("lengths", "x=IN", "y=t"), step("double", "x=t", "y=OUT")]),
    # Members with and without a batch dimension.
    "unbatched": pbtxt(["IN FP32 [-1, 4]"], ["OUT FP32 [-1, 4]"], [step("double", "x=IN", "y=OUT")], batch=0),
    "mixed": pbtxt(IN, OUT, [step("flat", "x=IN", "y=t"), step("double", "x=t", "y=OUT")]),
    "optional": pbtxt(
        ["IN FP32 [1, 4]", "BIAS FP32 [1, 4] optional"],
        ["OUT FP32 [1, 4]"],
        [step("biased", "x=IN", "bias=BIAS", "y=OUT")],
        batch=0,
    ),
    # Its branches end at the same time, on several threads.
    "diamond": pbtxt(
        IN,
        OUT,
        [step("double", "x=IN", "y=a"), step("negate", "x=IN", "y=b"), step("add_sub", "a=a", "b=b", "sum=OUT")],
    ),
    "bounded": pbtxt(IN, OUT, CHAIN, scheduling="max_inflight_requests: 2"),
}

LARGEST: Final = "inference request batch-size must be <= 1024 for 'text'"
#: The same as "chain" in a config.yaml.
PLAIN: Final = """
backend: ensemble
batch_size: 8
inputs: {IN: {datatype: FP32, shape: [4]}}
outputs: {OUT: {datatype: FP32, shape: [4]}}
steps:
  - {model: double, inputs: {x: IN}, outputs: {y: t}}
  - {model: negate, inputs: {x: t}, outputs: {y: OUT}}
"""


def build(root: Path) -> Path:
    for name, graph in MODELS.items():
        add_graph(root, name, graph)
    tensors = "input [ {{ name: 'x' {0} }}, {{ name: 'bias' {0} optional: true }} ] output [ {{ name: 'y' {0} }} ]"
    add_graph(root, "biased", MODELS["biased"], config=tensors.format("data_type: TYPE_FP32 dims: [1, 4]"))
    for name in ("d2", "n2"):
        add_graph(root, name, MODELS["double" if name == "d2" else "negate"])
    add_graph(root, "any", unary("Identity", ["n", "m"], TensorProto.STRING))
    add_graph(root, "half", double(["n", 1]))
    add_graph(root, "many", MODELS["double"], 1, "version_policy: { all { } }")
    add_graph(root, "many", MODELS["negate"], 2)
    (root / "plain" / "1").mkdir(parents=True)
    (root / "plain" / "1" / "config.yaml").write_text(PLAIN)
    for name, config in ENSEMBLES.items():
        add_ensemble(root, name, config)
    return root


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[ServerProcess]:
    root = build(tmp_path_factory.mktemp("repository"))
    flags = (
        "--http-addr",
        "127.0.0.1:0",
        "--metrics-addr",
        "127.0.0.1:0",
        "--trace-endpoint",
        collector.url,
        "--trace-rate",
        "0",
    )
    with running(root, tmp_path_factory.mktemp("log"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with client_of(server) as one:
        yield one


def given(protocol: Any, **inputs: Any) -> list[Any]:
    tensors = []
    for name, values in inputs.items():
        array = np.asarray(values)
        kind = {"f": "FP32", "i": "INT64", "O": "BYTES"}[array.dtype.kind]
        array = array.astype({"FP32": np.float32, "INT64": np.int64, "BYTES": object}[kind])
        one = protocol.InferInput(name, list(array.shape), kind)
        one.set_data_from_numpy(array)
        tensors.append(one)
    return tensors


def ask(client: Any, ensemble: str, *outputs: str, **inputs: Any) -> Any:
    """The response over gRPC."""
    wanted = [triton.InferRequestedOutput(name) for name in outputs] or None
    return client.infer(ensemble, given(triton, **inputs), outputs=wanted, client_timeout=120)


def answer(client: Any, ensemble: str, output: str = "OUT", **inputs: Any) -> Any:
    return ask(client, ensemble, **inputs).as_numpy(output)


def rows(count: int, first: float = 0) -> Any:
    return np.arange(4 * count, dtype=np.float32).reshape(count, 4) + first


def counted(client: Any, name: str, version: str = "1") -> tuple[int, int, int]:
    [own] = client.get_inference_statistics(name, version).model_stats
    return own.inference_stats.success.count, own.inference_count, own.execution_count


@pytest.mark.parametrize("count", [1, 3, 8, 20])
def test_a_chain_computes_over_grpc_and_http(server: ServerProcess, client: Any, count: int) -> None:
    npt.assert_array_equal(answer(client, "chain", IN=rows(count)), -2 * rows(count))
    with http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as one:
        found = one.infer("chain", given(http, IN=rows(count)))
        npt.assert_array_equal(found.as_numpy("OUT"), -2 * rows(count))


@pytest.mark.parametrize(("ensemble", "values"), [("chain", rows(1)), ("text", np.array([[b"a", b"b"]], object))])
def test_every_response_says_of_which_sequence_it_is(
    server: ServerProcess, client: Any, ensemble: str, values: Any
) -> None:
    none = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    for _ in range(3):  # by validation, and by what was remembered
        response = client.infer(ensemble, given(triton, IN=values)).get_response()
        found = {key: getattr(one, one.WhichOneof("parameter_choice")) for key, one in response.parameters.items()}
        assert found == none
        with http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as one:
            assert one.infer(ensemble, given(http, IN=values)).get_response()["parameters"] == none
    for identifier in (7, 8, "x"):
        options: dict[str, Any] = {"sequence_id": identifier, "sequence_start": True}
        response = client.infer(ensemble, given(triton, IN=values), **options).get_response()
        said = response.parameters["sequence_id"]
        assert identifier in (said.int64_param, said.string_param)
        assert response.parameters["sequence_start"].bool_param
        assert not response.parameters["sequence_end"].bool_param
        with http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as one:
            found = one.infer(ensemble, given(http, IN=values), **options).get_response()["parameters"]
            assert found == {"sequence_id": identifier, "sequence_start": True, "sequence_end": False}
    message = request("chain", Tensor.of("IN", "FP32", rows(1)))
    message.parameters["sequence_id"].int64_param = -5
    with channel_to(server.address) as channel:
        assert infer(channel, message).parameters["sequence_id"].int64_param == -5


def test_branches_are_joined_in_the_order_of_the_data(client: Any) -> None:
    response = ask(client, "fan", IN=rows(2))
    npt.assert_array_equal(response.as_numpy("SUM"), rows(2))
    npt.assert_array_equal(response.as_numpy("DIFFERENCE"), 3 * rows(2))


def test_steps_that_no_requested_output_needs_do_not_run(client: Any) -> None:
    response = ask(client, "two", "NEGATED", IN=rows(1))
    npt.assert_array_equal(response.as_numpy("NEGATED"), -rows(1))
    assert response.as_numpy("DOUBLED") is None
    wait_until(lambda: counted(client, "n2")[0] == 1)
    assert counted(client, "d2")[0] == 0
    assert ask(client, "two", IN=rows(1)).as_numpy("DOUBLED") is not None


def test_ensembles_are_made_of_ensembles(client: Any) -> None:
    npt.assert_array_equal(answer(client, "nested", IN=rows(5)), -4 * rows(5))


def test_steps_name_versions(client: Any) -> None:
    response = ask(client, "versions", IN=rows(1))
    npt.assert_array_equal(response.as_numpy("ONE"), 2 * rows(1))
    npt.assert_array_equal(response.as_numpy("TWO"), -rows(1))


def test_strings_go_from_step_to_step(client: Any) -> None:
    words = np.array([["a", "ü"], ["", "x" * 300]], object)
    expected = [[b"a", "ü".encode()], [b"", b"x" * 300]]
    assert answer(client, "text", IN=words).tolist() == expected


def test_members_with_and_without_a_batch_dimension_work_together(client: Any) -> None:
    npt.assert_array_equal(answer(client, "unbatched", IN=rows(3)), 2 * rows(3))
    npt.assert_array_equal(answer(client, "mixed", IN=rows(1)), 4 * rows(1))
    status, text = fails(lambda: answer(client, "mixed", IN=rows(2)))
    assert (status, text.startswith("in ensemble 'mixed', ")) == ("INVALID_ARGUMENT", True)


def test_an_optional_input_may_be_left_out_of_the_whole_ensemble(client: Any) -> None:
    npt.assert_array_equal(answer(client, "optional", IN=rows(1)), rows(1) + 100)
    npt.assert_array_equal(answer(client, "optional", IN=rows(1), BIAS=rows(1)), 2 * rows(1))


def test_a_step_that_fails_keeps_its_status_and_names_the_ensembles(client: Any) -> None:
    assert answer(client, "table", IN=np.array([[1], [2]])).tolist() == [[40], [60]]
    direct = fails(lambda: answer(client, "lookup", "y", x=np.array([[7]])))
    status, text = fails(lambda: answer(client, "table", IN=np.array([[7]])))
    assert (status, text) == (direct[0], f"in ensemble 'table', {direct[1]}")
    status, text = fails(lambda: answer(client, "outer", IN=np.array([[7]])))
    assert (status, text) == (direct[0], f"in ensemble 'outer', in ensemble 'table', {direct[1]}")


def test_a_tensor_that_does_not_fit_the_next_step_is_refused_in_tritons_words(client: Any) -> None:
    npt.assert_array_equal(answer(client, "dynamic", IN=rows(1)), 4 * rows(1))
    status, text = fails(lambda: answer(client, "dynamic", IN=np.zeros((1, 5), np.float32)))
    assert status == "INVALID_ARGUMENT"
    assert text.startswith("in ensemble 'dynamic', ")
    assert "unexpected shape for input 'x' for model 'double'. Expected [-1,4], got [1,5]" in text


def test_a_request_that_does_not_fit_the_ensemble_is_refused_without_a_prefix(client: Any) -> None:
    _, text = fails(lambda: answer(client, "chain", IN=np.zeros((1, 5), np.float32)))
    assert "unexpected shape for input 'IN' for model 'chain'" in text
    assert "in ensemble" not in text


def hammer(client: Any, ensemble: str, requests: list[Any], **expected: Any) -> list[Any]:
    """Send all at once; returns outcomes in order: an array, or the error."""
    outcomes: list[Any] = [None] * len(requests)
    left = threading.Semaphore(0)

    def callback(number: int, result: Any, error: Any) -> None:
        outcomes[number] = error if error is not None else result.as_numpy("OUT")
        left.release()

    for number, inputs in enumerate(requests):
        client.async_infer(
            ensemble,
            given(triton, **inputs),
            lambda result, error, number=number: callback(number, result, error),
            client_timeout=120,
        )
    for _ in requests:
        assert left.acquire(timeout=120)
    return outcomes


@pytest.mark.parametrize("ensemble", ["chain", "nested", "bounded", "plain", "diamond"])
def test_many_requests_at_once_get_their_own_answers(client: Any, ensemble: str) -> None:
    factor = {"nested": -4, "diamond": 1}.get(ensemble, -2)
    inputs = [rows(1 + number % 3, number) for number in range(100)]
    for sent, got in zip(inputs, hammer(client, ensemble, [{"IN": one} for one in inputs]), strict=True):
        npt.assert_array_equal(got, factor * sent)


def test_of_requests_that_go_together_only_those_fail_that_cause_it(client: Any) -> None:
    outcomes = hammer(client, "outer", [{"IN": np.array([[9 if n % 7 == 3 else n % 3]])} for n in range(60)])
    for number, outcome in enumerate(outcomes):
        if number % 7 == 3:
            assert "in ensemble 'outer', in ensemble 'table', " in str(outcome)
        else:
            assert outcome.tolist() == [[20 * (number % 3 + 1)]]


def test_an_ensemble_and_its_members_count_their_requests(client: Any) -> None:
    before = {name: counted(client, name) for name in ("fan", "add_sub")}
    for count in (1, 1, 3):
        ask(client, "fan", IN=rows(count))
    wait_until(lambda: counted(client, "fan")[0] == before["fan"][0] + 3)
    for name in ("fan", "add_sub"):
        assert [new - old for new, old in zip(counted(client, name), before[name], strict=True)] == [3, 5, 3]
    [own] = client.get_inference_statistics("fan").model_stats
    assert {one.batch_size: one.compute_infer.count for one in own.batch_stats} == {1: 2, 2: 1, 3: 1}


def test_configuration_and_metadata_show_the_ensemble(client: Any) -> None:
    config = client.get_model_config("chain").config
    assert (config.platform, config.backend, config.max_batch_size) == ("ensemble", "", 8)
    assert [one.model_name for one in config.ensemble_scheduling.step] == ["double", "negate"]
    assert config.ensemble_scheduling.step[0].input_map["x"] == "IN"
    assert config.HasField("model_transaction_policy")
    assert not config.instance_group
    metadata = client.get_model_metadata("chain")
    assert (metadata.platform, metadata.inputs[0].name, list(metadata.inputs[0].shape)) == ("ensemble", "IN", [-1, 4])


def test_a_trace_has_a_span_for_each_step_and_those_of_its_member_below(client: Any, collector: Collector) -> None:
    headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    client.infer("nested", given(triton, IN=rows(2)), headers=headers)
    wait_until(lambda: collector.servers())
    [own] = collector.servers()
    steps = children_of(collector, own)
    assert list(steps) == ["batch assembly", "queue", "step chain", "step double", "response"]
    assert attributes_of(steps["step chain"]) == {"triton.model_name": "chain", "triton.model_version": "1"}
    inner = children_of(collector, steps["step chain"])
    assert list(inner) == ["queue", "step double", "step negate"]
    assert list(children_of(collector, inner["step negate"])) == ["queue", "execution"]
    for span in (*steps.values(), *inner.values()):
        assert own.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= own.end_time_unix_nano


def test_the_status_page_has_the_picture_of_an_ensemble(server: ServerProcess) -> None:
    base = f"http://127.0.0.1:{server.http_port}"
    with urllib.request.urlopen(f"{base}/graph.svg?model=fan", timeout=120) as answer_:
        assert answer_.headers["content-type"] == "image/svg+xml"
        assert b"add_sub" in answer_.read()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{base}/graph.svg?model=double", timeout=120)

    def shown() -> tuple[object, object]:
        with urllib.request.urlopen(f"{base}/status.json", timeout=120) as status:
            of = {one["model"]: one.get("is_ensemble") for one in json.load(status)["versions"]}
        return of["fan"], of["double"]

    wait_until(lambda: shown() == (True, False))  # once the page has its first sample


def test_many_strings_go_through_and_more_rows_than_there_may_be_are_refused(
    server: ServerProcess, client: Any
) -> None:
    words = np.full((1, 20_000), "", object)
    assert answer(client, "long", IN=words).shape == words.shape
    with http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as one:
        assert (
            one.infer("text", given(http, IN=np.full((3, 2), "a", object))).as_numpy("OUT").tolist()
            == [[b"a", b"a"]] * 3
        )
    status, text = fails(lambda: answer(client, "text", IN=np.full((2_000, 2), "", object)))
    assert (status, text) == ("INVALID_ARGUMENT", "[request id: <id_unknown>] " + LARGEST)
