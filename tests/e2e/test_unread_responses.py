"""Callers who do not read what a decoupled model answers: their requests end, and the model goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest

from tests.e2e.dependent_models import add, graph, node
from tests.e2e.process import ServerProcess, running
from tests.e2e.python_models import add_model
from tests.e2e.support import SERVICE, Tensor, channel_to, infer, outputs_of, pb, request
from tests.e2e.wire import client_of, framed
from tests.ensembles import add_ensemble, pbtxt
from tests.waiting import wait_until

DECOUPLED: Final = "model_transaction_policy { decoupled: true }"
MIB: Final = 2**20
#: Sends responses of a size, as its input says: how many, and how many MiB each has. Its last one is small.
SENDER: Final = """
def execute(self, requests):
    for request in requests:
        count, mib, _, _ = input_of(request).reshape(-1).tolist()
        sender = request.get_response_sender()
        sent = 0
        for number in range(int(count)):
            if sender.is_cancelled():
                break
            sent += 1
            array = np.full((1, int(mib * 2**18)), number, np.float32)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]))
        open(os.environ["NOTED"], "a").write("%d\\n" % sent)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
#: Calls the sender; reads its responses, or does so only once the sender has come to its end. Answers what it has got.
CALLER: Final = """
def execute(self, requests):
    answers = []
    for request in requests:
        count, mib, reads, _ = input_of(request).reshape(-1).tolist()
        noted = os.environ["NOTED"]
        before = len(open(noted).read().split()) if os.path.exists(noted) else 0
        call = pb_utils.InferenceRequest(
            model_name=MODEL,
            requested_output_names=["y"],
            inputs=[pb_utils.Tensor("x", np.array([[count, mib, 0, 0]], np.float32))],
        )
        responses = call.exec(decoupled=True)
        while not reads and not (os.path.exists(noted) and len(open(noted).read().split()) > before):
            time.sleep(0.01)
        got, failed = 0, ""
        for response in responses:
            if response.has_error():
                failed = response.error().message()
            elif response.output_tensors():
                assert (response.output_tensors()[0].as_numpy() == got).all()
                got += 1
            if reads:
                response = None
                responses._got.clear()
                responses._at = 0
        answers.append(answer(request, np.array([[got, "unread" in failed, bool(failed), 0]], np.float32)))
    return answers
"""


#: Sends, or calls itself and reads nothing until what it has called is over.
ITSELF: Final = f"""
def execute(self, requests):
    rest = [request for request in requests if not input_of(request).reshape(-1)[3]]
    self.send(rest)
    for request in requests:
        if request not in rest:
            [found] = self.ask([request])
            sender = request.get_response_sender()
            sender.send(found, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

{SENDER.replace("def execute", "def send").strip()}

{CALLER.replace("def execute", "def ask").replace("MODEL", "'itself'").strip()}
"""


@pytest.fixture(scope="module", params=["process", "thread"])
def server(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    folder = tmp_path_factory.mktemp(f"unread-{request.param}")
    repository, noted = folder / "models", folder / "noted"
    own = {"isolation": request.param, "more": DECOUPLED}
    add_model(repository, "sender", SENDER, **own)
    path = repository / "sender" / "config.pbtxt"
    path.write_text(path.read_text().replace('name: "y" data_type: TYPE_FP32 dims: [ 4 ]', Y))
    for name, more in {**BEHIND, "itself": "instance_group { count: 2 kind: KIND_CPU }"}.items():
        add_model(
            repository,
            name,
            ITSELF if name == "itself" else SENDER,
            isolation=request.param,
            more=f"{DECOUPLED} {more}",
        )
        path = repository / name / "config.pbtxt"
        path.write_text(path.read_text().replace('name: "y" data_type: TYPE_FP32 dims: [ 4 ]', Y))
    add(repository, "negate", graph([node("Neg", "x", "y")], [("x", 1, ["n", "k"])], [("y", 1, ["n", "k"])]))
    steps = [("sender", {"x": "x"}, {"y": "t"}), ("negate", {"x": "t"}, {"y": "y"})]
    add_ensemble(repository, "ensemble", pbtxt(["x FP32 [4]"], ["y FP32 [-1]"], steps))
    add_model(repository, "caller", CALLER.replace("MODEL", "'sender'"), isolation=request.param, more="")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("NOTED", str(noted))
        patched.setenv("TOUTATES_TEST_POISON", "")  # it would search hundreds of megabytes
        with running(repository, folder, ["--http-addr", "127.0.0.1:0"]) as process:
            yield process, noted
            assert process.stop() == 0
            assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that may hold 6 MB for all of its peers."""
    folder = tmp_path_factory.mktemp("narrow")
    add_model(folder / "models", "sender", SENDER, isolation="thread", more=DECOUPLED)
    path = folder / "models" / "sender" / "config.pbtxt"
    path.write_text(path.read_text().replace('name: "y" data_type: TYPE_FP32 dims: [ 4 ]', Y))
    add_model(folder / "models", "caller", CALLER.replace("MODEL", "'sender'"), isolation="thread", more="")
    arguments = ["--http-addr", "127.0.0.1:0", "--processing-cores", "1", "--limit", "server_buffer=6000000"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("NOTED", str(folder / "noted"))
        with running(folder / "models", folder, arguments) as process:
            yield process
            assert process.stop() == 0
            assert "Traceback" not in process.log


#: Senders by name, and what else their configurations say.
BEHIND: Final = {
    "sequence": "sequence_batching { direct { } }",
    "ordered": "dynamic_batching { preserve_ordering: true }",
}
Y: Final = 'name: "y" data_type: TYPE_FP32 dims: [ -1 ]'


def ask(channel: Any, model: str, count: int, mib: float, reads: int = 0) -> list[float]:
    message = request(model, Tensor.of("x", "FP32", [[count, mib, reads, 0]]))
    return [float(one) for one in outputs_of(infer(channel, message))["y"].reshape(-1)]


def test_a_model_that_reads_gets_more_than_may_be_unread(server: tuple[ServerProcess, Path]) -> None:
    process, _ = server
    with channel_to(process.address) as channel:
        assert ask(channel, "caller", 24, 4, reads=1) == [24, 0, 0, 0]


def test_a_model_that_does_not_read_has_its_call_ended_and_the_sender_goes_on(
    server: tuple[ServerProcess, Path],
) -> None:
    process, _ = server
    with channel_to(process.address) as channel:
        got, unread, failed, _ = ask(channel, "caller", 60, 4)
        assert 1 <= got <= 16
        assert (unread, failed) == (1, 1)
        got, unread, failed, _ = ask(channel, "caller", 10, 4)
        assert (got, unread, failed) == (10, 0, 0)


def test_events_over_http2_come_as_they_are_sent(server: tuple[ServerProcess, Path]) -> None:
    process, _ = server
    with httpx.Client(http2=True, http1=False, timeout=120) as client:
        url = f"http://127.0.0.1:{process.rest_port}/v2/models/sender/generate_stream"
        asked = {"x": [300, 0.0001, 0, 0]}  # more than a window of 64 KiB
        with client.stream("POST", url, json=asked) as answer:
            assert (answer.http_version, answer.status_code) == ("HTTP/2", 200)
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            events = [line for line in answer.iter_lines() if line]
        assert [json.loads(line.removeprefix("data: "))["y"][0] for line in events] == list(range(300))


def test_events_that_wait_for_the_window_of_their_stream_hold_up_no_other(server: tuple[ServerProcess, Path]) -> None:
    process, noted = server
    before = len(noted.read_text().split()) if noted.exists() else 0
    with client_of(process.rest_port) as client:
        body = b'{"x": [200000, 0.03, 0, 0]}'
        head = [("content-type", "application/json"), ("content-length", str(len(body)))]
        stream_id = client.start("/v2/models/sender/generate_stream", head)
        client.credits = False
        client.send(stream_id, body)
        events = client.answers[stream_id]
        while len(events.data) < 65_535:
            assert client.receive()
        client.connection.increment_flow_control_window(1_000_000)  # of the connection
        client.flush()
        assert client.call(f"{SERVICE}ServerLive", b"").status == ("0", "")
        assert (events.headers[":status"], len(events.data)) == ("200", 65_535)
        client.connection.reset_stream(stream_id)
        client.flush()
        wait_until(lambda: noted.exists() and len(noted.read_text().split()) > before)
        assert client.call(f"{SERVICE}ServerLive", b"").status == ("0", "")


@pytest.mark.parametrize("way", ["stream", "events"])
def test_a_client_that_does_not_read_has_its_request_ended(server: tuple[ServerProcess, Path], way: str) -> None:
    process, noted = server
    before = len(noted.read_text().split()) if noted.exists() else 0
    if way == "events":
        with socket.create_connection(("127.0.0.1", process.rest_port)) as sock:
            body = b'{"x": [200000, 0.03, 0, 0]}'
            head = b"POST /v2/models/sender/generate_stream HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
            sock.sendall(head % len(body) + body)
            wait_until(lambda: noted.exists() and len(noted.read_text().split()) > before)
        return
    with channel_to(process.address) as channel:
        message = request("sender", Tensor.of("x", "FP32", [[200, 4, 0, 0]]))
        stream = channel.stream_stream(f"{SERVICE}ModelStreamInfer")(iter([message.SerializeToString()]), timeout=120)
        wait_until(lambda: noted.exists() and len(noted.read_text().split()) > before)
        responses = [pb.ModelStreamInferResponse.FromString(one) for one in stream]
    assert "unread: 64 MiB of them is the most" in responses[-1].error_message
    assert len(responses) < 40


def test_no_caller_is_kept_more_than_the_server_has_room_for(narrow: ServerProcess) -> None:
    noted = narrow.log_path.parent / "noted"
    with channel_to(narrow.address) as channel:
        message = request("sender", Tensor.of("x", "FP32", [[200, 1, 0, 0]]))
        stream = channel.stream_stream(f"{SERVICE}ModelStreamInfer")(iter([message.SerializeToString()]), timeout=120)
        wait_until(lambda: noted.exists() and bool(noted.read_text()))
        responses, end = [], ""
        try:
            for one in stream:
                responses.append(pb.ModelStreamInferResponse.FromString(one))
                end = responses[-1].error_message
        except grpc.RpcError as error:  # several responses came in one round, and the last of them found no room
            end = f"{error.code().name}: {error.details()}"
    assert "what the server's buffer has room for" in end or end.startswith("RESOURCE_EXHAUSTED: the server holds ")
    assert len(responses) < 40


def test_bytes_held_for_clients_leave_less_room_for_what_models_do_not_read(narrow: ServerProcess) -> None:
    with channel_to(narrow.address) as channel, client_of(narrow.port) as client:
        assert ask(channel, "caller", 10, 1) == [3, 1, 1, 0]  # half of all
        client.send(client.start(f"{SERVICE}ModelInfer"), framed(bytes(4_800_000))[:4_500_000], end=False)
        assert client.call(f"{SERVICE}ServerLive", b"").status == ("0", "")
        assert ask(channel, "caller", 10, 1) == [2, 1, 1, 0]
        client.sock.close()


def test_bytes_held_for_http_leave_less_room_for_grpc(narrow: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", narrow.rest_port)) as sock, client_of(narrow.port) as client:
        head = b"POST /v2/models/sender/infer HTTP/1.1\r\nhost: a\r\ncontent-length: 4000000\r\n\r\n"
        sock.sendall(head + bytes(3_500_000))

        refusals: list[tuple[str, str]] = []

        def is_refused() -> bool:
            stream_id = client.start(f"{SERVICE}ModelInfer")
            client.send(stream_id, framed(bytes(4_000_000))[:3_500_000], end=False)
            assert client.call(f"{SERVICE}ServerLive", b"").status == ("0", "")
            if client.answers[stream_id].ended:
                refusals.append(client.answers[stream_id].status)
            else:
                client.connection.reset_stream(stream_id)  # what was sent over HTTP has not been read yet
            return bool(refusals)

        wait_until(is_refused)
        [(status, text)] = refusals
        assert status == "8"
        assert "bytes for slow peers, and 6000000 is the most" in text


@pytest.mark.parametrize("model", ["ensemble", *BEHIND])
def test_who_does_not_read_is_bounded_behind_others_and_keeps_nobody_waiting(
    server: tuple[ServerProcess, Path], model: str
) -> None:
    process, noted = server
    before = len(noted.read_text().split()) if noted.exists() else 0
    said = {"sequence_start": True, "sequence_end": True} if model == "sequence" else {}

    def asked(count: int, mib: float, number: int) -> bytes:
        message = request(model, Tensor.of("x", "FP32", [[count, mib, 0, number]]))
        for key, value in (said | ({"sequence_id": number} if said else {})).items():
            if isinstance(value, bool):
                message.parameters[key].bool_param = value
            else:
                message.parameters[key].int64_param = value
        return bytes(message.SerializeToString())

    with channel_to(process.address) as channel, channel_to(process.address) as other:
        call = f"{SERVICE}ModelStreamInfer"
        unread = channel.stream_stream(call)(iter([asked(200, 4, 1)]), timeout=120)
        # Others are answered while it sends, and once its request has ended.
        for number in range(2, 8):
            answered = other.stream_stream(call)(iter([asked(3, 0.01, number)]), timeout=60)
            texts = [pb.ModelStreamInferResponse.FromString(one).error_message for one in answered]
            assert len(texts) >= 3
            assert not any(texts)
        wait_until(lambda: len(noted.read_text().split()) >= before + 7)
        responses = [pb.ModelStreamInferResponse.FromString(one) for one in unread]
    assert "unread: 64 MiB of them is the most" in responses[-1].error_message
    assert len(responses) < 40


def test_a_model_that_calls_itself_and_does_not_read_has_its_call_ended(server: tuple[ServerProcess, Path]) -> None:
    process, _ = server
    message = request("itself", Tensor.of("x", "FP32", [[60, 4, 0, 1]]))
    with channel_to(process.address) as channel:
        stream = channel.stream_stream(f"{SERVICE}ModelStreamInfer")(iter([message.SerializeToString()]), timeout=120)
        [response, *_] = [pb.ModelStreamInferResponse.FromString(one) for one in stream]
    assert not response.error_message
    [got, unread, failed, _] = outputs_of(response.infer_response)["y"].reshape(-1).tolist()
    assert 1 <= got <= 16
    assert (unread, failed) == (1, 1)
