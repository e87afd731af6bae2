"""The client's side of ModelStreamInfer with ``h2``'s server opposite, bytes alone."""

from __future__ import annotations

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived
from h2.settings import SettingCodes

from toutates.bench.answer import Answer, ConnectionFailed
from toutates.bench.streams import STREAM, StreamingConnection, StreamRequest
from toutates.protocol.grpc_service_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse

REQUEST = StreamRequest(ModelInferRequest(model_name="m").SerializeToString())


class Server:
    """``h2``'s side of one connection."""

    def __init__(self, window: int = 65_535) -> None:
        self.client = StreamingConnection("host:1")
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.paths: list[str] = []
        self.data = b""
        self.exchange()

    def exchange(self, credit: bool = True) -> list[Answer]:
        answers: list[Answer] = []
        while True:
            out = self.client.data_to_send()
            for event in self.h2.receive_data(out) if out else ():
                if isinstance(event, RequestReceived):
                    fields = {str(name): str(value) for name, value in event.headers or ()}
                    self.paths.append(fields[":path"])
                if isinstance(event, DataReceived):
                    self.data += event.data or b""
                    if credit:
                        self.h2.acknowledge_received_data(event.flow_controlled_length or 0, 1)
            back = self.h2.data_to_send()
            if not out and not back:
                return answers
            answers += self.client.receive(back)

    def requests(self) -> list[ModelInferRequest]:
        found, at = [], 0
        while at < len(self.data):
            size = int.from_bytes(self.data[at + 1 : at + 5], "big")
            found.append(ModelInferRequest.FromString(self.data[at + 5 : at + 5 + size]))
            at += 5 + size
        return found

    def answer(self, name: str, error: str = "", final: bool | None = None, outputs: int = 1) -> None:
        response = ModelStreamInferResponse(error_message=error, infer_response=ModelInferResponse(id=name))
        for _ in range(outputs):
            response.infer_response.outputs.add(name="OUT")
        if final is not None:
            response.infer_response.parameters["triton_final_response"].bool_param = final
        octets = response.SerializeToString()
        self.h2.send_data(1, b"\0" + len(octets).to_bytes(4, "big") + octets)


def begun(count: int) -> Server:
    server = Server()
    for number in range(count):
        assert server.client.room
        server.client.begin(REQUEST, 10 + number)
    server.exchange()
    server.h2.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
    return server


def test_requests_are_messages_of_one_stream_with_ids() -> None:
    server = begun(3)
    assert server.paths == [STREAM]
    assert [(one.model_name, one.id) for one in server.requests()] == [("m", "0"), ("m", "1"), ("m", "2")]
    assert list(server.client.under_way) == [10, 11, 12]


def test_answers_in_another_order_belong_to_their_requests() -> None:
    server = begun(3)
    for name in ("2", "0"):
        server.answer(name)
    assert [(number, status) for number, status, _ in server.exchange()] == [(12, 0), (10, 0)]
    assert list(server.client.under_way) == [11]


def test_a_request_with_several_responses_ends_with_the_final_one_and_keeps_the_first() -> None:
    server = begun(1)
    server.answer("0", final=False, outputs=2)
    server.answer("0", final=False)
    assert server.exchange() == []
    server.answer("0", final=True, outputs=0)
    ((_, _, answer),) = server.exchange()
    assert len(ModelInferResponse.FromString(bytes(answer[5:])).outputs) == 2


def test_an_error_ends_its_request_alone() -> None:
    server = begun(2)
    server.answer("0", error="no such thing")
    assert [(number, status) for number, status, _ in server.exchange()] == [(10, 2)]
    assert server.client.texts == {2: "no such thing"}
    assert server.client.room


def test_the_end_of_the_stream_ends_all_requests() -> None:
    server = begun(2)
    server.h2.send_headers(1, [("grpc-status", "14"), ("grpc-message", "going")], end_stream=True)
    assert [(number, status) for number, status, _ in server.exchange()] == [(10, 14), (11, 14)]
    assert "going" in server.client.ended


def test_an_answer_to_no_request_fails_the_connection() -> None:
    server = begun(1)
    server.answer("7")
    with pytest.raises(ConnectionFailed, match="is not under way"):
        server.exchange()


def test_messages_wait_for_the_servers_window() -> None:
    server = Server(window=10)
    server.client.begin(StreamRequest(ModelInferRequest(model_name="x" * 100).SerializeToString()), 0)
    server.exchange(credit=False)
    assert len(server.data) == 10
    server.h2.increment_flow_control_window(1_000, 1)
    server.exchange()
    assert [one.model_name for one in server.requests()] == ["x" * 100]
