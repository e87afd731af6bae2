"""Sequences of a real server, over gRPC and REST: their state, their ends, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.e2e.process import ServerProcess, running
from tests.e2e.sequence_models import write_accumulator
from tests.e2e.streams import Conversation, conversation, triton_stream
from tests.e2e.support import channel_to, pb, triton
from tests.waiting import wait_until

OLDEST: Final = "oldest { max_candidate_sequences: 2 }"
MODELS: Final = ("direct", "oldest", "single")


def write_ids(repository: Path, name: str, kind: int, config_type: str) -> None:
    """A model whose output is the id of the request's sequence, as its control input has it."""
    given = helper.make_tensor_value_info("CORRID", kind, ["n", 1])
    unused = helper.make_tensor_value_info("INPUT", TensorProto.INT32, ["n", 1])
    graph = helper.make_graph(
        [helper.make_node("Identity", ["CORRID"], ["OUTPUT"])],
        "ids",
        [unused, given],
        [helper.make_tensor_value_info("OUTPUT", kind, ["n", 1])],
    )
    (repository / name / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, repository / name / "1" / "model.onnx")
    (repository / name / "config.pbtxt").write_text(
        'backend: "onnxruntime" max_batch_size: 4 sequence_batching { control_input { name: "CORRID" control { '
        f"kind: CONTROL_SEQUENCE_CORRID data_type: {config_type} }} }} }}"
    )


def write_growing(repository: Path) -> None:
    """A model whose state is all the inputs of its sequence, one after the other."""
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["PAST", "INPUT"], ["ALL"], axis=1),
            helper.make_node("Identity", ["ALL"], ["OUTPUT"]),
        ],
        "growing",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", None]) for name in ("INPUT", "PAST")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", None]) for name in ("OUTPUT", "ALL")],
    )
    (repository / "growing" / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, repository / "growing" / "1" / "model.onnx")
    (repository / "growing" / "1" / "config.yaml").write_text(
        "backend: supertensor\nbatch_size: 4\ncapacity: 4\nnum_executors: 2\nallocator: cpu\n"
        "sequences: {strategy: oldest, max_candidates: 8, states: [{input: PAST, output: ALL}]}\n"
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("repository")
    write_accumulator(root, "direct")
    write_accumulator(root, "oldest", strategy=OLDEST)
    write_accumulator(root, "single", batch_size=0)
    write_accumulator(root, "quick", batch_size=1, idle_us=200_000)
    folder = write_accumulator(root, "filed", initial='data_file: "hundred"', outputs=("OUTPUT", "SUM_OUT"))
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "hundred").write_bytes(np.int32(100).tobytes())
    write_ids(root, "numbers", TensorProto.UINT32, "TYPE_UINT32")
    write_ids(root, "texts", TensorProto.STRING, "TYPE_STRING")
    write_accumulator(root, "counted")
    write_growing(root)
    with running(root, tmp_path_factory.mktemp("server"), ["--http-addr", "127.0.0.1:0"]) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as client:
        yield client


def request(model: str, value: int, rows: int = 1) -> Any:
    shape = [1] if model == "single" else [rows, 1]
    tensor = triton.InferInput("INPUT", shape, "INT32")
    tensor.set_data_from_numpy(np.full(shape, value, np.int32))
    return tensor


def send(client: Any, model: str, value: int, identifier: int | str, flags: str = "", **more: Any) -> Any:
    """Send one request; ``flags`` holds S for START and E for END. Returns what OUTPUT holds."""
    result = client.infer(
        model,
        [request(model, value)],
        sequence_id=identifier,
        sequence_start="S" in flags,
        sequence_end="E" in flags,
        **more,
    )
    return result.as_numpy("OUTPUT").item()


def refusal(client: Any, model: str, identifier: int | str, flags: str = "", rows: int = 1, **more: Any) -> str:
    with pytest.raises(triton.InferenceServerException) as raised:
        client.infer(
            model,
            [request(model, 1, rows)],
            sequence_id=identifier,
            sequence_start="S" in flags,
            sequence_end="E" in flags,
            **more,
        )
    return str(raised.value)


@pytest.mark.parametrize("model", MODELS)
def test_the_state_goes_from_request_to_request(client: Any, model: str) -> None:
    flags = ["S", *[""] * 7, "E"]
    sums = [send(client, model, value, 5, flag) for value, flag in enumerate(flags, 1)]
    assert sums == [1, 3, 6, 10, 15, 21, 28, 36, 45]
    assert "must specify the START flag" in refusal(client, model, 5)
    assert send(client, model, 42, 99, "SE") == 42


@pytest.mark.parametrize("model", MODELS)
def test_start_makes_the_state_of_a_live_sequence_fresh(client: Any, model: str) -> None:
    given = [(1, "S"), (2, ""), (42, "S"), (9, "E")]
    assert [send(client, model, value, 6, flags) for value, flags in given] == [1, 3, 42, 51]


@pytest.mark.parametrize("model", MODELS[:2])  # the other has one slot
def test_sequences_side_by_side_have_states_of_their_own(client: Any, model: str) -> None:
    sums = [send(client, model, value, identifier, flags) for value, identifier, flags in (
        (1, 70, "S"), (10, "70", "S"), (2, 70, ""), (20, "70", ""), (3, 70, "E"), (30, "70", "E"),
    )]  # fmt: skip
    assert sums == [1, 10, 3, 30, 6, 60]


def test_many_sequences_from_many_threads_all_come_to_their_own_sums(server: ServerProcess) -> None:
    def run(number: int) -> list[int]:
        with triton.InferenceServerClient(server.address) as client:
            flags = ["S", *[""] * 6, "E"]
            return [send(client, MODELS[number % 2], number, 1_000 + number, flag) for flag in flags]

    with ThreadPoolExecutor(12) as threads:
        for number, sums in enumerate(threads.map(run, range(12))):
            assert sums == [number * (at + 1) for at in range(8)]


def test_what_names_no_sequence_is_refused_in_tritons_words(client: Any) -> None:
    model = "direct"
    assert refusal(client, model, 0).endswith(
        f"] inference request to model '{model}' must specify a non-zero or non-empty correlation ID"
    )
    assert refusal(client, model, 37469245, request_id="own").endswith(
        f"] inference request for sequence 37469245 to model '{model}' must specify the START flag on the first "
        "request of the sequence"
    )
    assert refusal(client, model, 5, "S", rows=2).endswith(
        f"] inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher"
    )


def test_the_initial_state_may_be_a_file_and_the_state_an_output(client: Any) -> None:
    assert [send(client, "filed", value, 5, flags) for value, flags in ((1, "S"), (2, ""))] == [101, 103]
    result = client.infer("filed", [request("filed", 3)], sequence_id=5, sequence_end=True)
    assert result.as_numpy("SUM_OUT").item() == 106
    assert send(client, "filed", 42, 5, "SE") == 142


def test_a_state_that_is_not_listed_cannot_be_asked_for(client: Any) -> None:
    wanted = [triton.InferRequestedOutput("SUM_OUT")]
    said = refusal(client, "direct", 5, "SE", outputs=wanted)
    assert "unexpected inference output 'SUM_OUT' for model 'direct'" in said
    metadata = client.get_model_metadata("direct")
    assert [tensor.name for tensor in (*metadata.inputs, *metadata.outputs)] == ["INPUT", "OUTPUT"]


def test_the_model_sees_the_id_of_the_sequence(client: Any) -> None:
    assert send(client, "numbers", 1, 2**33 + 5, "SE") == 5
    assert send(client, "texts", 1, "who", "SE") == b"who"
    assert (
        "[request id: R] sequence batching control 'CORRID' data-type is 'BYTES', but model 'numbers' expects 'UINT32'"
        in refusal(client, "numbers", "abc", "S", request_id="R")
    )
    assert (
        "[request id: R] sequence batching control 'CORRID' data-type is 'UINT64', but model 'texts' expects 'BYTES'"
        in refusal(client, "texts", 7, "S", request_id="R")
    )


def test_a_state_may_grow_and_its_sequence_still_shares_batches(client: Any) -> None:
    def grow(identifier: int, flags: str) -> list[float]:
        tensor = triton.InferInput("INPUT", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.full([1, 1], identifier, np.float32))
        result = client.infer("growing", [tensor], sequence_id=identifier, sequence_start="S" in flags)
        values: list[float] = result.as_numpy("OUTPUT")[0].tolist()
        return values

    for step in range(3):
        for identifier in (1, 2):
            # A fresh state has one element, which is 0.
            assert grow(identifier, "" if step else "S") == [0.0, *[float(identifier)] * (step + 1)]


def test_a_sequence_that_rests_for_too_long_is_forgotten_and_frees_its_slot(client: Any) -> None:
    send(client, "quick", 1, 1, "S")
    assert send(client, "quick", 2, 2, "SE") == 2  # waits in the backlog until the slot is free
    assert "must specify the START flag" in refusal(client, "quick", 1)


def test_a_request_may_say_how_long_its_sequence_waits_for_a_slot(client: Any) -> None:
    for identifier in (1, 2):
        send(client, "oldest", 1, identifier, "S")
    said = refusal(client, "oldest", 3, "S", timeout=50_000)
    assert said == "[StatusCode.UNAVAILABLE] timeout of the corresponding sequence has been expired"
    for identifier in (1, 2):
        assert send(client, "oldest", 1, identifier, "E") == 2
    assert send(client, "oldest", 3, 3, "SE") == 3


def test_a_caller_that_leaves_ends_its_sequence(client: Any) -> None:
    for identifier in (1, 2):
        send(client, "oldest", 1, identifier, "S")
    with pytest.raises(triton.InferenceServerException, match="Deadline"):
        send(client, "oldest", 1, 3, "S", client_timeout=0.1)
    for identifier in (1, 2):
        send(client, "oldest", 1, identifier, "E")
    # It has a slot now, and its request is found to have no caller.
    wait_until(lambda: _forgotten(client))


def _forgotten(client: Any) -> bool:
    try:
        send(client, "oldest", 1, 3)
    except triton.InferenceServerException as error:
        return "must specify the START flag" in str(error)
    return False


def test_sequences_over_rest(server: ServerProcess) -> None:
    http = pytest.importorskip("tritonclient.http")
    with http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as client:
        sums = []
        for value, flags in ((1, "S"), (2, ""), (3, "E")):
            tensor = http.InferInput("INPUT", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.array([[value]], np.int32), binary_data=value != 2)
            result = client.infer(
                "direct", [tensor], sequence_id=8, sequence_start="S" in flags, sequence_end="E" in flags
            )
            sums.append(result.as_numpy("OUTPUT").item())
        assert sums == [1, 3, 6]


# --- over one stream


@pytest.fixture
def stream(server: ServerProcess) -> Iterator[Conversation]:
    with channel_to(server.address) as channel, conversation(channel) as stream:
        yield stream


def message(model: str, value: int, identifier: int | str, flags: str = "") -> Any:
    made = pb.ModelInferRequest(model_name=model, id=f"{identifier}")
    made.inputs.add(name="INPUT", datatype="INT32", shape=[1, 1])
    made.raw_input_contents.append(np.int32(value).tobytes())
    given = made.parameters["sequence_id"]
    if isinstance(identifier, str):
        given.string_param = identifier
    else:
        given.int64_param = identifier
    made.parameters["sequence_start"].bool_param = "S" in flags
    made.parameters["sequence_end"].bool_param = "E" in flags
    return made


def output_of(answer: Any) -> int | str:
    """What OUTPUT holds, or the error."""
    if answer.error_message:
        return str(answer.error_message)
    return int(np.frombuffer(answer.infer_response.raw_output_contents[0], np.int32)[0])


@pytest.mark.parametrize("model", MODELS[:2])
def test_sequences_take_turns_on_a_stream_of_tritonclient(server: ServerProcess, model: str) -> None:
    flags = ["S", *[""] * 7, "E"]
    with triton_stream(server.address) as (streaming, answers):
        for value, flag in enumerate(flags, 1):
            for identifier, times in ((300, 1), ("three hundred", 10)):
                streaming.async_stream_infer(
                    model,
                    [request(model, value * times)],
                    request_id=f"{identifier} {value}",
                    sequence_id=identifier,
                    sequence_start="S" in flag,
                    sequence_end="E" in flag,
                )
        sums: dict[str, list[int]] = {"300": [], "three hundred": []}
        expected = [value * (value + 1) // 2 for value in range(1, 10)]
        for _ in range(2 * len(flags)):
            result, error = answers.get(timeout=120)
            assert error is None
            name, _, number = result.get_response().id.rpartition(" ")
            sums[name].append(result.as_numpy("OUTPUT").item())
            assert int(number) == len(sums[name])
        assert sums == {"300": expected, "three hundred": [10 * one for one in expected]}
        streaming.async_stream_infer(model, [request(model, 1)], sequence_id=300)
        result, error = answers.get(timeout=120)
        assert "must specify the START flag" in str(error)


def test_requests_of_a_stream_are_counted(client: Any, stream: Conversation) -> None:
    stream.send(*(message("counted", 1, 5, flags) for flags in ("S", "", "E")), message("counted", 1, 5))
    assert [output_of(answer) for answer in stream.end()[:3]] == [1, 2, 3]
    # What is counted of a batch may come after its answers, and statistics are shared among those who ask.
    wait_until(lambda: _counts(client, "counted") == (3, 3))


def _counts(client: Any, model: str) -> tuple[int, int]:
    """Rows, and requests that succeeded."""
    (found,) = client.get_inference_statistics(model).model_stats
    return found.inference_count, found.inference_stats.success.count


def test_messages_that_make_no_sequence_are_refused_in_band_and_others_go_on(stream: Conversation) -> None:
    wrong_flag, wrong_id = message("direct", 1, 400), message("direct", 1, 400)
    wrong_flag.parameters["sequence_start"].int64_param = 1
    wrong_id.parameters["sequence_id"].double_param = 4.0
    without = message("direct", 1, 400)
    del without.parameters["sequence_id"]
    given: list[tuple[Any, int | str]] = [
        (message("direct", 1, 400), "must specify the START flag"),  # out of order: START comes behind it
        (message("direct", 1, 400, "E"), "must specify the START flag"),
        (message("direct", 5, 400, "S"), 5),
        (message("direct", 7, 400, "S"), 7),  # two starts
        (message("direct", 1, 0, "S"), "must specify a non-zero or non-empty correlation ID"),
        (message("direct", 1, "", "S"), "must specify a non-zero or non-empty correlation ID"),
        (without, "must specify a non-zero or non-empty correlation ID"),
        (wrong_flag, "invalid value type for 'sequence_start' parameter, expected bool_param."),
        (wrong_id, "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."),
        (message("direct", 1, "x" * 129, "S"), "string correlation ID cannot be longer than 128 characters"),
        (message("direct", 1, 400, "E"), 8),
        (message("direct", 1, 400), "must specify the START flag"),
        (message("direct", 2, 400, "SE"), 2),  # the id is used again
        (message("direct", 1, "x" * 128, "SE"), 1),
        (message("direct", 1, 2**63 - 1, "SE"), 1),
        (message("direct", 1, -1), "sequence 18446744073709551615 to model"),
    ]
    stream.send(*(one for one, _ in given))
    for (_, expected), answer in zip(given, stream.end(), strict=True):
        found = output_of(answer)
        assert found == expected if isinstance(expected, int) else expected in str(found)


def test_a_stream_that_ends_leaves_no_sequence_for_longer_than_its_idle_time(
    server: ServerProcess, client: Any
) -> None:
    with channel_to(server.address) as channel, conversation(channel) as stream:
        # One has the only slot, and the others wait for it.
        stream.send(*(message("quick", 1, identifier, "S") for identifier in range(500, 520)))
        assert output_of(stream.read()[0]) == 1
    assert send(client, "quick", 2, 600, "SE") == 2
    for identifier in (500, 501, 519):
        assert "must specify the START flag" in refusal(client, "quick", identifier)


# --- over REST, and what is counted


def test_statistics_count_requests_and_batches(client: Any) -> None:
    send(client, "numbers", 1, 1, "SE")
    (statistics,) = client.get_inference_statistics("numbers").model_stats
    assert statistics.inference_count == statistics.inference_stats.success.count == statistics.execution_count
    assert statistics.inference_stats.fail.count == 0


def test_a_reload_ends_sequences_with_a_clear_error(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    write_accumulator(tmp_path, "m")
    flags = ["--model-control-mode", "explicit", "--load-model", "m"]
    with (
        running(tmp_path, tmp_path_factory.mktemp("server"), flags) as process,
        triton.InferenceServerClient(process.address) as client,
    ):
        send(client, "m", 1, 5, "S")
        text = (tmp_path / "m" / "config.pbtxt").read_text()
        (tmp_path / "m" / "config.pbtxt").write_text(text.replace("max_batch_size: 4", "max_batch_size: 8"))
        client.load_model("m")
        assert "must specify the START flag" in refusal(client, "m", 5)
        assert send(client, "m", 1, 5, "SE") == 1
