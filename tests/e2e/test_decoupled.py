"""Decoupled Python models through ModelStreamInfer, in both forms of isolation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.http import Answer, peer_of, post
from tests.e2e.process import ServerProcess, run, running
from tests.e2e.python_models import HEAD, add_model
from tests.e2e.streams import Conversation, conversation, final_of, triton_stream
from tests.e2e.support import (
    SERVICE,
    Tensor,
    call,
    channel_to,
    grpc,
    infer,
    outputs_of,
    pb,
    refused,
    request,
    statistics_of,
    triton,
)
from tests.ensembles import MODELS, add_ensemble, add_graph, pbtxt, step
from tests.infer.tracing.collector import Collector, children_of, collecting
from tests.waiting import wait_until

#: What the model is to do with a request, as its input says: (what, count, value, number).
IN_EXECUTE, LATER, RAISE, RETURN, ERROR_FIRST, MISUSE, UNTIL_CANCELLED, EXIT, TELL, STRANGE, HOLD, LET_GO = range(12)

REPEAT: Final = """
def initialize(self, args):
    self.said, self.threads, self.gate = [], [], threading.Event()

def finalize(self):
    self.gate.set()
    for thread in self.threads:
        thread.join()

def execute(self, requests):
    for request in requests:
        what, count, value, number = input_of(request).reshape(-1).tolist()
        sender = request.get_response_sender()
        if what == 2:
            raise ValueError("not this one")
        if what == 3:
            return [answer(request, input_of(request))]
        work = getattr(self, "do_%d" % what)
        if what in (1, 6, 7, 10):
            thread = threading.Thread(target=work, args=(sender, int(count), value, request))
            self.threads.append(thread)
            thread.start()
        else:
            work(sender, int(count), value, request)
        del request

def make(self, value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.full(4, value, np.float32))])

def do_0(self, sender, count, value, request):
    for at in range(count):
        sender.send(self.make(value + at))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

def do_1(self, sender, count, value, request):
    values = input_of(request)
    for at in range(count):
        sender.send(self.make(values[2] + at), int(at == count - 1))

def do_4(self, sender, count, value, request):
    error = pb_utils.TritonError("first an error", pb_utils.TritonError.INVALID_ARG)
    sender.send(pb_utils.InferenceResponse([], error))
    sender.send(self.make(value), 1)

def do_5(self, sender, count, value, request):
    for arguments in ((None, 0), (None, 4), (5, 0)):
        try:
            sender.send(*arguments)
        except Exception as error:
            self.said.append(str(error))
    sender.send(self.make(value), 1)
    try:
        sender.send(self.make(value))
    except Exception as error:
        self.said.append(str(error))

def do_6(self, sender, count, value, request):
    sender.send(self.make(value))
    while not sender.is_cancelled():
        time.sleep(0.005)
    self.said.append("cancelled %s" % request.is_cancelled())
    sender.send(self.make(value), 1)

def do_7(self, sender, count, value, request):
    sender.send(self.make(value))
    print("farewell", flush=True)
    os._exit(3)

def do_8(self, sender, count, value, request):
    for text in self.said:
        sender.send(pb_utils.InferenceResponse([], pb_utils.TritonError(text)))
    self.said.clear()
    sender.send(flags=1)

def do_9(self, sender, count, value, request):
    sender.send(pb_utils.InferenceResponse([], parameters={"token": int(value)}))
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.zeros(5, np.float32))]))
    sender.send(self.make(len(request.parameters()) and float(request.request_id() == "strange")), 1)

def do_10(self, sender, count, value, request):
    self.gate.wait()
    self.do_0(sender, count, value, request)

def do_11(self, sender, count, value, request):
    self.gate.set()
    self.gate = threading.Event()
    sender.send(flags=1)
"""

SLEEPERS: Final = """
def initialize(self, args):
    self.both, self.waiting = asyncio.Event(), 0

async def execute(self, requests):
    for request in requests:
        value = float(input_of(request)[0])
        if value < 0:
            raise ValueError("no such value")
        self.waiting += 1
        if self.waiting == 2:
            self.both.set()
        await self.both.wait()
        sender = request.get_response_sender()
        called = pb_utils.InferenceRequest(
            model_name="plain", requested_output_names=["y"],
            inputs=[pb_utils.Tensor("x", np.full((1, 4), value, np.float32))],
        )
        response = await called.async_exec()
        y = pb_utils.get_output_tensor_by_name(response, "y").as_numpy()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", y[0])]), 1)
"""

#: Calls a decoupled model: (how, which isolation the called one has, count, value).
CALLER: Final = """
def execute(self, requests):
    return [self.one(request) for request in requests]

def one(self, request):
    how, isolation, count, value = input_of(request)[0].tolist()
    model = ("repeat_process", "repeat_thread", "plain", "nobody")[int(isolation)]
    x = np.array([6 if how == 2 else 0, count, value, 0], np.float32)
    if model == "plain":
        x = x[None]
    called = pb_utils.InferenceRequest(
        model_name=model, requested_output_names=["y"], inputs=[pb_utils.Tensor("x", x)])
    if how == 0:
        return called.exec()
    responses = called.exec(decoupled=True)
    values = []
    for response in responses:
        if response.has_error():
            return response
        values += [float(tensor.as_numpy().reshape(-1)[0]) for tensor in response.output_tensors()] or [-1.0]
        if how == 2:
            responses.cancel()
    assert len(list(responses)) == len(values)
    return answer(request, np.array([[len(values), sum(values), values[0], values[-1]]], np.float32))
"""

DECOUPLED: Final = "model_transaction_policy { decoupled: true }"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


@pytest.fixture(scope="module")
def decoupled(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("repository")
    head = "import asyncio, threading\n" + HEAD
    add_model(root, "plain")
    for isolation in ("process", "thread"):
        add_model(root, f"caller_{isolation}", CALLER, head=head, isolation=isolation)
        for name, methods in (("repeat", REPEAT), ("sleepers", SLEEPERS)):
            add_model(root, f"{name}_{isolation}", methods, rows=0, more=DECOUPLED, head=head, isolation=isolation)
        add_model(root, f"rows_{isolation}", REPEAT, rows=4, more=DECOUPLED, head=head, isolation=isolation)
        steps = [step(f"repeat_{isolation}", "x=x", "y=t"), step("double", "x=t", "y=y")]
        add_ensemble(root, f"piped_{isolation}", pbtxt(["x FP32 [4]"], ["y FP32 [-1, 4]"], steps, batch=0))
    add_graph(root, "double", MODELS["double"])
    names = ",".join(sorted(path.name for path in root.iterdir()))
    flags = ["--http-addr", "127.0.0.1:0", "--trace-endpoint", collector.url, "--trace-rate", "0"]
    flags += ["--model-control-mode", "explicit", "--load-models", names]
    with running(root, tmp_path_factory.mktemp("server"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def channel(decoupled: ServerProcess) -> Iterator[Any]:
    with channel_to(decoupled.address) as channel:
        yield channel


@pytest.fixture(params=["process", "thread"])
def isolation(request: pytest.FixtureRequest) -> str:
    isolation: str = request.param
    return isolation


@pytest.fixture
def stream(channel: Any) -> Iterator[Conversation]:
    with conversation(channel) as stream:
        yield stream


@pytest.fixture
def repeat(isolation: str) -> str:
    return f"repeat_{isolation}"


def asking(model: str, what: int, count: int = 0, value: float = 0.0, *, empty: bool = False, **fields: Any) -> Any:
    message = request(model, Tensor.of("x", "FP32", [what, count, value, 0]), **fields)
    if empty:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    return message


def value_of(answer: Any) -> float:
    assert answer.error_message == ""
    return float(outputs_of(answer.infer_response)["y"].reshape(-1)[0])


@pytest.mark.parametrize("what", [IN_EXECUTE, LATER])
def test_a_request_has_as_many_responses_as_the_model_sends(stream: Conversation, repeat: str, what: int) -> None:
    for count in (5, 1, 3):
        stream.send(asking(repeat, what, count, 100.0, id="r"))
        answers = stream.read(count)
        assert [value_of(answer) for answer in answers] == [100.0 + at for at in range(count)]
        assert {answer.infer_response.id for answer in answers} == {"r"}
        finals = [final_of(answer) for answer in answers]
        assert finals == [False] * (count - 1) + [what == LATER]
    assert stream.end() == []
    assert stream.call.code() is grpc.StatusCode.OK


def test_none_is_possible_and_the_end_is_told_to_those_who_ask(stream: Conversation, repeat: str) -> None:
    stream.send(asking(repeat, IN_EXECUTE), asking(repeat, IN_EXECUTE, empty=True, id="e", model_version="1"))
    [answer] = stream.read()
    assert not answer.error_message
    assert final_of(answer)
    response = answer.infer_response
    assert (response.id, response.model_name, response.model_version) == ("e", repeat, "1")
    assert not response.outputs
    stream.send(asking(repeat, IN_EXECUTE, 2, empty=True))
    assert [final_of(answer) for answer in stream.read(3)] == [False, False, True]
    assert stream.end() == []


def test_requests_do_not_wait_for_each_other_and_plain_ones_keep_their_order(stream: Conversation, repeat: str) -> None:
    plain = request("plain", Tensor.of("x", "FP32", [[7] * 4]), id="plain")
    stream.send(asking(repeat, HOLD, 2, 50.0), asking(repeat, IN_EXECUTE, 2, 60.0), request("nobody", id="n"), plain)
    answers = stream.read(4)
    assert sorted(value_of(answer) for answer in answers if not answer.error_message) == [7.0, 60.0, 61.0]
    others = [answer.infer_response.id for answer in answers if answer.infer_response.id]
    assert others == ["n", "plain"]
    stream.send(asking(repeat, LET_GO))
    assert [value_of(answer) for answer in stream.end()] == [50.0, 51.0]


def test_unary_calls_are_refused(channel: Any, repeat: str) -> None:
    for _ in range(2):
        assert refused(channel, asking(repeat, IN_EXECUTE)) == (
            "UNIMPLEMENTED",
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        )


def test_an_ensemble_with_such_a_step_answers_as_often_as_it_does(
    decoupled: ServerProcess, channel: Any, isolation: str, collector: Collector
) -> None:
    piped = f"piped_{isolation}"

    def below() -> list[dict[str, Any]]:
        return [dict(children_of(collector, one)) for one in collector.servers()]

    with triton.InferenceServerClient(decoupled.address) as client:
        assert client.get_model_config(piped).config.model_transaction_policy.decoupled
        refusal = "ModelInfer RPC doesn't support models with decoupled transaction policy"
        assert refused(channel, asking(piped, LATER)) == ("UNIMPLEMENTED", refusal)
        traced = [("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
        with conversation(channel, metadata=traced) as stream:
            stream.send(asking(piped, LATER, 5, 100.0))
            answers = stream.read(5)
            assert [value_of(answer) for answer in answers] == [200.0 + 2 * at for at in range(5)]
            assert [final_of(answer) for answer in answers] == [False] * 4 + [True]
            assert all("sequence_id" in answer.infer_response.parameters for answer in answers)
            error = stream.ask(asking(piped, RAISE)).error_message
            assert error.startswith(f"in ensemble '{piped}', Failed to process the request(s) for model")
            stream.send(asking(piped, UNTIL_CANCELLED, 0, 3.0))
            assert value_of(stream.read()[0]) == 6
        # That stream has been cancelled, and with it the request of the step.
        with conversation(channel) as stream:
            wait_until(lambda: "cancelled True" in said(stream, f"repeat_{isolation}"))
        [statistics] = client.get_inference_statistics(piped).model_stats
        assert statistics.response_stats["4"].success.count == 1
    wait_until(lambda: any({f"step repeat_{isolation}", "step double"} <= spans.keys() for spans in below()))


def said(stream: Conversation, model: str) -> list[str]:
    """What the model has noted."""
    stream.send(asking(model, TELL, empty=True))
    found = []
    while (answer := stream.read()[0]).error_message:
        found.append(answer.error_message)
    return found


def test_early_errors_of_such_a_model_do_not_wait_for_their_turn(stream: Conversation, repeat: str) -> None:
    wrong = request(repeat, id="w")
    stream.send(wrong)
    [answer] = stream.read()
    assert "expected 1 inputs but got 0 inputs" in answer.error_message
    assert answer.infer_response.id == "w"
    assert not answer.infer_response.parameters


def test_an_error_is_one_response_of_several(stream: Conversation, repeat: str) -> None:
    stream.send(asking(repeat, ERROR_FIRST, 0, 9.0, id="x"))
    error, result = stream.read(2)
    assert (error.error_message, final_of(error), error.infer_response.model_name) == ("first an error", False, repeat)
    assert (value_of(result), final_of(result)) == (9.0, True)
    with conversation(stream.channel, metadata=[("triton_grpc_error", "true")]) as strict:
        strict.send(asking(repeat, ERROR_FIRST))
        with pytest.raises(grpc.RpcError) as caught:
            strict.read()
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "first an error")


def test_what_execute_raises_or_returns_fails_its_requests(stream: Conversation, repeat: str) -> None:
    answer = stream.ask(asking(repeat, RAISE, id="r"))
    assert answer.error_message.startswith("Failed to process the request(s) for model '")
    assert "ValueError: not this one" in answer.error_message
    assert final_of(answer)
    answer = stream.ask(asking(repeat, RETURN))
    assert "is using the decoupled mode and the execute function must return None." in answer.error_message
    assert value_of(stream.ask(asking(repeat, LATER, 1, 3.0))) == 3.0


def test_a_sender_that_is_used_wrongly_raises_in_the_model(stream: Conversation, repeat: str) -> None:
    assert value_of(stream.ask(asking(repeat, MISUSE, 0, 2.0))) == 2.0
    stream.send(asking(repeat, TELL, empty=True))
    texts = [answer.error_message for answer in stream.read(5)]
    assert texts[0] == "Inference Response object must be provided when the response flags is set to zero."
    assert texts[1] == "Unable to send response. Unsupported flag provided."
    assert "InferenceResponse" in texts[2]
    assert texts[3:] == ["Unable to send response. Response sender has been closed.", ""]


def test_responses_may_lack_outputs_and_have_parameters(stream: Conversation, repeat: str) -> None:
    stream.send(asking(repeat, STRANGE, 0, 42.0, id="strange"))
    first, second, third = stream.read(3)
    assert first.infer_response.parameters["token"].int64_param == 42
    assert not first.infer_response.outputs
    assert not final_of(first)
    assert list(second.infer_response.outputs[0].shape) == [5]
    assert value_of(third) == 1.0


def test_the_model_sees_that_its_caller_has_left(channel: Any, repeat: str) -> None:
    with conversation(channel) as leaver:
        leaver.send(asking(repeat, UNTIL_CANCELLED, 0, 5.0))
        assert value_of(leaver.read()[0]) == 5.0
        leaver.call.cancel()

    def told() -> list[str]:
        with conversation(channel) as other:
            other.send(asking(repeat, TELL, empty=True))
            return [answer.error_message for answer in [*other.read(), *other.end()]]

    wait_until(lambda: "cancelled True" in told())


def test_rows_of_a_request_stay_together_and_responses_have_rows_of_their_own(
    stream: Conversation, isolation: str
) -> None:
    rows = np.zeros((3, 4), np.float32)
    model = f"rows_{isolation}"
    stream.send(request(model, Tensor.of("x", "FP32", np.zeros((5, 4)))))
    assert "batch-size must be <= 4" in stream.read()[0].error_message
    # This model's code takes one row for the whole request, and answers with something that has none.
    rows[0, :2] = RAISE, 1
    stream.send(request(model, Tensor.of("x", "FP32", rows[:1])), request(model, Tensor.of("x", "FP32", rows[:1])))
    assert all("not this one" in answer.error_message for answer in stream.read(2))


def test_coroutines_of_several_batches_run_at_once_and_call_other_models(stream: Conversation, isolation: str) -> None:
    model = f"sleepers_{isolation}"
    stream.send(request(model, Tensor.of("x", "FP32", [1.0] * 4)), request(model, Tensor.of("x", "FP32", [2.0] * 4)))
    assert sorted(value_of(answer) for answer in stream.read(2)) == [1.0, 2.0]
    answer = stream.ask(request(model, Tensor.of("x", "FP32", [-1.0] * 4)))
    assert "ValueError: no such value" in answer.error_message


@pytest.mark.parametrize("called", [0, 1])
def test_other_models_take_the_responses_as_they_come(channel: Any, isolation: str, called: int) -> None:
    def calling(how: int, which: int, count: int, value: float) -> Any:
        return request(f"caller_{isolation}", Tensor.of("x", "FP32", [[how, which, count, value]]))

    for count in (0, 1, 4):
        values = outputs_of(infer(channel, calling(1, called, count, 10.0)))["y"][0].tolist()
        expected = [10.0 + at for at in range(count)] + [-1.0]  # the last response has no tensors
        assert values == [len(expected), sum(expected), expected[0], expected[-1]]
    assert outputs_of(infer(channel, calling(2, called, 0, 5.0)))["y"][0].tolist() == [2, 10, 5, 5]
    assert outputs_of(infer(channel, calling(1, 2, 0, 5.0)))["y"][0].tolist() == [1, 0, 0, 0]
    text = refused(channel, calling(0, called, 1, 1.0))[1]
    assert text.startswith("Model repeat_")
    assert "is using the decoupled. The current BLS request call doesn't support models using the" in text
    assert "Request for unknown model: 'nobody' is not found" in refused(channel, calling(1, 3, 1, 1.0))[1]


def test_requests_are_counted_once_whatever_their_responses(channel: Any, stream: Conversation, repeat: str) -> None:
    before = statistics_of(channel, repeat)
    stream.send(asking(repeat, IN_EXECUTE, 3), asking(repeat, IN_EXECUTE), asking(repeat, ERROR_FIRST))
    stream.end()

    def counted() -> tuple[int, int]:
        after = statistics_of(channel, repeat).inference_stats
        return (
            after.success.count - before.inference_stats.success.count,
            after.fail.count - before.inference_stats.fail.count,
        )

    wait_until(lambda: counted() == (2, 1))

    def place(statistics: Any, number: str, kind: str) -> int:
        return int(getattr(statistics.response_stats[number], kind).count)

    after = pb.ModelStatisticsResponse.FromString(
        call(channel, SERVICE + "ModelStatistics", pb.ModelStatisticsRequest(name=repeat).SerializeToString())
    ).model_stats[0]
    earlier = pb.ModelStatistics.FromString(before.SerializeToString())  # tritonclient may know nothing of responses
    found = {
        (number, kind): place(after, number, kind) - place(earlier, number, kind)
        for number in "0123"
        for kind in ("success", "fail", "empty_response")
    }
    assert {key: count for key, count in found.items() if count} == {
        ("0", "success"): 1,
        ("0", "fail"): 1,
        ("0", "empty_response"): 1,
        ("1", "success"): 2,
        ("2", "success"): 1,
        ("3", "empty_response"): 1,
    }


def test_tritonclient_reads_the_responses(decoupled: ServerProcess, repeat: str) -> None:
    tensor = triton.InferInput("x", [4], "FP32")
    tensor.set_data_from_numpy(np.array([LATER, 4, 10, 0], np.float32))
    with triton_stream(decoupled.address) as (client, answers):
        client.async_stream_infer(repeat, [tensor], enable_empty_final_response=True)
        values = []
        while True:
            result, error = answers.get(timeout=120)
            assert error is None
            values.append(float(result.as_numpy("y")[0]))
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
        assert values == [10.0, 11.0, 12.0, 13.0]


def test_generate_takes_one_response_and_its_stream_all_of_them(decoupled: ServerProcess, repeat: str) -> None:
    path = f"/v2/models/{repeat}"

    def body(what: int, count: int = 0, value: float = 0.0) -> str:
        return json.dumps({"x": [what, count, value, 0], "id": "g"})

    def events(answer: Answer) -> list[Any]:
        assert answer.fields["content-type"] == "text/event-stream; charset=utf-8"
        found = answer.body.decode().split("\n\n")
        assert found.pop() == ""
        return [json.loads(event.removeprefix("data: ")) for event in found]

    with peer_of(decoupled.rest_port) as peer:
        one = {"id": "g", "model_name": repeat, "model_version": "1", "y": [7.0] * 4}
        for what in (IN_EXECUTE, LATER):
            assert peer.ask(post(f"{path}/generate", body(what, 1, 7.0))).document == one
            answer = peer.ask(post(f"{path}/generate_stream", body(what, 3, 7.0)))
            assert answer.status == 200
            assert events(answer) == [{**one, "y": [7.0 + at] * 4} for at in range(3)]
        for count in (0, 2):
            answer = peer.ask(post(f"{path}/generate", body(IN_EXECUTE, count)))
            assert answer.status == 200
            assert answer.document["error"].startswith("generate expects model to produce exactly 1 response, use")
        answer = peer.ask(post(f"{path}/generate_stream", body(IN_EXECUTE)))
        assert (answer.status, answer.body) == (200, b"")
        answer = peer.ask(post(f"{path}/generate", body(ERROR_FIRST)))
        assert (answer.status, answer.document) == (400, {"error": "first an error"})
        answer = peer.ask(post(f"{path}/generate_stream", body(ERROR_FIRST, 0, 7.0)))
        assert (answer.status, events(answer)) == (400, [{"error": "first an error"}, one])
        answer = peer.ask(post(f"{path}/generate_stream", "{}"))
        assert (answer.status, answer.fields["content-type"]) == (400, "application/json")
        infer = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [4], "data": [0, 1, 0, 0]}]}
        answer = peer.ask(post(f"{path}/infer", json.dumps(infer)))
        assert (answer.status, answer.document["error"]) == (
            501,
            "HTTP end point doesn't support models with decoupled transaction policy",
        )
    with peer_of(decoupled.rest_port) as leaver:
        leaver.sock.sendall(post(f"{path}/generate_stream", body(UNTIL_CANCELLED, 0, 7.0)))
        assert leaver.sock.recv(65_536)
    # The model sees that its caller has left, so it ends, or the server could not.


def test_a_process_that_dies_ends_its_open_requests_and_is_started_again(stream: Conversation) -> None:
    stream.send(asking("repeat_process", HOLD, 1), asking("repeat_process", EXIT, 0, 4.0))
    answers = stream.read(3)
    assert value_of(next(answer for answer in answers if not answer.error_message)) == 4.0
    errors = [answer for answer in answers if answer.error_message]
    assert all("is not healthy" in answer.error_message and "farewell" in answer.error_message for answer in errors)
    assert all(final_of(answer) for answer in errors)
    wait_until(lambda: not stream.ask(asking("repeat_process", LATER, 1, 1.0)).error_message)


def test_an_unload_waits_for_what_is_wanted_and_for_nothing_else(
    decoupled: ServerProcess, channel: Any, repeat: str
) -> None:
    with triton.InferenceServerClient(decoupled.address) as client, conversation(channel) as stream:
        stream.send(asking(repeat, IN_EXECUTE, 1, 1.0), asking(repeat, HOLD, 1, 2.0))
        assert value_of(stream.read()[0]) == 1.0
        client.unload_model(repeat)
        with conversation(channel) as other:
            assert "has no available versions" in other.ask(asking(repeat, IN_EXECUTE)).error_message
        stream.call.cancel()
        client.load_model(repeat)  # it loads once the one before has ended, which has nobody to wait for
        wait_until(lambda: client.is_model_ready(repeat))
        with conversation(channel) as other:
            assert value_of(other.ask(asking(repeat, LATER, 1, 3.0))) == 3.0


def test_a_repository_may_not_stack_a_decoupled_model(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    more = DECOUPLED + '\nparameters { key: "toutates.stacked" value { string_value: "true" } }'
    add_model(root, "stacked", REPEAT, more=more)
    done = run("check", str(root))
    assert done.returncode
    assert "a decoupled model answers each request by its own sender" in done.stdout + done.stderr
