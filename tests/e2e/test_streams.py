"""ModelStreamInfer for models that answer once: order, errors in band, the end of a stream, and slow readers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.e2e.held import Runs
from tests.e2e.process import ServerProcess
from tests.e2e.streams import Conversation, conversation, final_of, triton_stream
from tests.e2e.support import Tensor, channel_to, grpc, infer, outputs_of, pb, request, statistics_of, triton
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[Any]:
    with channel_to(server.address) as channel:
        yield channel


@pytest.fixture
def stream(channel: Any) -> Iterator[Conversation]:
    with conversation(channel) as stream:
        yield stream


def adding(number: int, **fields: Any) -> Any:
    ones = Tensor.of("INPUT1", "INT32", np.ones((1, 16)))
    return request("addsub", Tensor.of("INPUT0", "INT32", np.full((1, 16), number)), ones, id=f"n{number}", **fields)


def slow(**fields: Any) -> Any:
    return request("slow", Tensor.of("INPUT", "INT64", [[0]]), **fields)


def sum_of(answer: Any) -> int:
    assert answer.error_message == ""
    return int(outputs_of(answer.infer_response)["OUTPUT0"][0, 0])


# --- answers


def test_a_message_is_answered_as_a_unary_call_is_and_says_that_the_answer_is_the_last(
    channel: Any, stream: Conversation
) -> None:
    unary = infer(channel, adding(3))
    for _ in range(4):  # read whole, by its parts, and as the one before
        answer = stream.ask(adding(3))
        assert final_of(answer)
        del answer.infer_response.parameters["triton_final_response"]
        assert answer.infer_response == unary
    assert stream.end() == []
    assert stream.call.code() is grpc.StatusCode.OK


def test_messages_that_come_together_are_answered_in_their_order(stream: Conversation) -> None:
    values = [Tensor.of("INPUT", "FP32", [[number]]) for number in range(500)]
    stream.send(*(request("dynamic", value) for value in values))
    answers = stream.end()
    assert [outputs_of(answer.infer_response)["OUTPUT"].item() for answer in answers] == [-n for n in range(500)]


def test_models_may_take_turns_on_one_stream(stream: Conversation) -> None:
    mlp = request("mlp", Tensor.of("INPUT", "FP32", np.zeros((2, 64))), id="m")
    stream.send(adding(1), mlp, adding(2), mlp)
    answers = [answer.infer_response for answer in stream.end()]
    assert [answer.model_name for answer in answers] == ["addsub", "mlp", "addsub", "mlp"]
    assert [answer.id for answer in answers] == ["n1", "m", "n2", "m"]


def test_tensors_of_every_kind_pass(stream: Conversation) -> None:
    words = b"".join(len(word).to_bytes(4, "little") + word for word in (b"one", b"", b"three"))
    texts = request("texts", Tensor("INPUT", "BYTES", [3], words))
    typed = pb.ModelInferRequest(model_name="addsub")
    for name in ("INPUT0", "INPUT1"):
        typed.inputs.add(name=name, datatype="INT32", shape=[1, 16]).contents.int_contents.extend(range(16))
    classes = request("mlp", Tensor.of("INPUT", "FP32", np.zeros((1, 64))))
    classes.outputs.add(name="OUTPUT").parameters["classification"].int64_param = 2
    large = request("dynamic", Tensor.of("INPUT", "FP32", np.ones((3, 400_000))))
    stream.send(texts, typed, classes, large, texts)
    answers = [answer.infer_response for answer in stream.end()]
    assert [answer.raw_output_contents[0] for answer in (answers[0], answers[4])] == [words, words]
    assert outputs_of(answers[1])["OUTPUT0"].tolist() == [list(range(0, 32, 2))]
    assert list(answers[2].outputs[0].shape) == [1, 2]
    assert np.array_equal(outputs_of(answers[3])["OUTPUT"], -np.ones((3, 400_000), np.float32))


def test_tritonclient_streams(server: ServerProcess) -> None:
    tensor = triton.InferInput("INPUT", [2, 64], "FP32")
    tensor.set_data_from_numpy(np.ones((2, 64), np.float32))
    with triton_stream(server.address) as (client, answers):
        for number in range(20):
            client.async_stream_infer("mlp", [tensor], request_id=str(number), enable_empty_final_response=True)
        got = [answers.get(timeout=120) for _ in range(20)]
        assert [(result.get_response().id, error) for result, error in got] == [(str(n), None) for n in range(20)]
        assert got[0][0].as_numpy("OUTPUT").shape == (2, 8)
        assert all(result.get_response().parameters["triton_final_response"].bool_param for result, _ in got)
        client.async_stream_infer("nobody", [tensor])
        result, error = answers.get(timeout=120)
        assert result is None
        assert "Request for unknown model: 'nobody' is not found" in str(error)
        assert error.status() is None  # and the stream goes on
        client.async_stream_infer("mlp", [tensor])
        assert answers.get(timeout=120)[1] is None


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_are_read(server: ServerProcess, algorithm: str) -> None:
    tensor = triton.InferInput("INPUT", [2, 64], "FP32")
    tensor.set_data_from_numpy(np.ones((2, 64), np.float32))
    with triton_stream(server.address, compression_algorithm=algorithm) as (client, answers):
        for _ in range(3):
            client.async_stream_infer("mlp", [tensor])
            assert answers.get(timeout=120)[1] is None


def test_streamed_requests_are_counted_as_others_are(channel: Any, stream: Conversation) -> None:
    before = statistics_of(channel, "versions", "2").inference_stats
    ask = request("versions", Tensor.of("INPUT", "INT32", [[1] * 4]), model_version="2")
    stream.send(ask, ask, request("versions", model_version="2"))
    stream.end()
    wait_until(lambda: statistics_of(channel, "versions", "2").inference_stats.success.count > before.success.count + 1)
    after = statistics_of(channel, "versions", "2").inference_stats
    assert after.success.count - before.success.count == 2
    assert after.fail.count == before.fail.count  # as with Triton, refused requests are not counted


# --- order


def test_a_slow_request_holds_back_the_answers_after_it_and_so_does_its_error(
    held_server: tuple[ServerProcess, Runs],
) -> None:
    process, runs = held_server
    with channel_to(process.address) as channel, conversation(channel) as stream:
        stream.ask(adding(0))
        with runs.held():
            before = runs.begun
            stream.send(slow(id="s"))
            runs.wait_begun(before + 1)
            stream.send(request("nobody", id="n"), adding(7))
            # Another stream of the same connection does not wait.
            with conversation(channel) as other:
                assert sum_of(other.ask(adding(1))) == 2
        answers = stream.end()
    assert [answer.infer_response.id for answer in answers] == ["s", "n", "n7"]
    assert answers[1].error_message == "Request for unknown model: 'nobody' is not found"


# --- errors


def test_the_error_of_a_refused_request_has_its_id_and_nothing_else_and_the_stream_goes_on(
    stream: Conversation,
) -> None:
    wrong = adding(1)
    wrong.inputs[0].shape[1] = 17
    for message, text in (
        (request("addsub", id="a"), "expected 2 inputs but got 0 inputs for model 'addsub'"),
        (wrong, "unexpected shape for input 'INPUT0' for model 'addsub'"),
        (adding(2, model_version="x"), "failed to get model version from specified version string 'x'"),
        (pb.ModelInferRequest(), "Request for unknown model: '' is not found"),
    ):
        answer = stream.ask(message)
        assert text in answer.error_message
        assert answer.HasField("infer_response")
        assert answer.infer_response == pb.ModelInferResponse(id=message.id)
        assert sum_of(stream.ask(adding(4))) == 5


def test_a_parameter_of_the_wrong_kind_is_refused_in_band(stream: Conversation) -> None:
    message = adding(1)
    message.parameters["triton_enable_empty_final_response"].int64_param = 1
    assert stream.ask(message).error_message == (
        "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param."
    )


def test_the_error_of_a_run_names_the_model_as_requested(channel: Any, stream: Conversation) -> None:
    bad = request("gather", Tensor.of("INPUT", "INT64", [[99]]), id="g", model_version="1")
    answer = stream.ask(bad)
    assert "Gather" in answer.error_message or "indices" in answer.error_message
    response = answer.infer_response
    assert (response.id, response.model_name, response.model_version) == ("g", "gather", "1")
    assert final_of(answer)
    assert not response.outputs
    assert sum_of(stream.ask(adding(4))) == 5
    # With this metadata the first such error ends the call, and an early one does not.
    with conversation(channel, metadata=[("triton_grpc_error", "true")]) as strict:
        assert strict.ask(request("nobody")).error_message
        strict.send(bad)
        with pytest.raises(grpc.RpcError) as caught:
            strict.read()
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert caught.value.details() == answer.error_message
    with conversation(channel, metadata=[("triton_grpc_error", "True")]) as lenient:
        assert lenient.ask(bad).error_message


def test_a_message_that_is_no_request_ends_the_call(stream: Conversation) -> None:
    stream.send(adding(1), b"\xff\xff")
    with pytest.raises(grpc.RpcError) as caught:
        stream.read(2)
    assert caught.value.code() is grpc.StatusCode.INTERNAL


# --- the end of a stream


def test_a_stream_without_a_request_ends_well(stream: Conversation) -> None:
    assert stream.end() == []
    assert stream.call.code() is grpc.StatusCode.OK


def test_what_is_pending_is_answered_after_the_caller_has_half_closed(held_server: tuple[ServerProcess, Runs]) -> None:
    process, runs = held_server
    with channel_to(process.address) as channel, conversation(channel) as stream:
        with runs.held():
            before = runs.begun
            stream.send(slow())
            runs.wait_begun(before + 1)
            got: list[Any] = []
            reader = threading.Thread(target=lambda: got.extend(stream.end()))
            reader.start()
        reader.join()
        assert [answer.error_message for answer in got] == [""]
        assert stream.call.code() is grpc.StatusCode.OK


def test_a_stream_that_is_cancelled_cancels_its_requests(held_server: tuple[ServerProcess, Runs]) -> None:
    process, runs = held_server
    with channel_to(process.address) as channel:
        with runs.held(), conversation(channel) as stream:
            begun = runs.begun
            stream.send(slow())
            runs.wait_begun(begun + 1)
            stream.send(slow(), slow())
            stream.call.cancel()
            assert stream.call.code() is grpc.StatusCode.CANCELLED
        assert infer(channel, slow()).model_name == "slow"


def test_a_deadline_is_that_of_the_stream(held_server: tuple[ServerProcess, Runs]) -> None:
    process, runs = held_server
    with channel_to(process.address) as channel, runs.held(), conversation(channel, timeout=0.3) as stream:
        stream.send(slow())
        with pytest.raises(grpc.RpcError) as caught:
            stream.read()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_tritonclient_may_cancel_its_requests(held_server: tuple[ServerProcess, Runs]) -> None:
    process, runs = held_server
    tensor = triton.InferInput("INPUT", [1, 1], "INT64")
    tensor.set_data_from_numpy(np.zeros((1, 1), np.int64))
    answers: queue.Queue[Any] = queue.Queue()
    with runs.held(), triton.InferenceServerClient(process.address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        begun = runs.begun
        client.async_stream_infer("slow", [tensor])
        runs.wait_begun(begun + 1)
        client.stop_stream(cancel_requests=True)
        _, error = answers.get(timeout=120)
    assert "Locally cancelled by application!" in str(error)
