"""Sequences of Python models, in both forms of isolation: over unary calls, streams and REST, and iterative ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.e2e.http import peer_of, post
from tests.e2e.process import ServerProcess, running
from tests.e2e.python_models import add_model
from tests.e2e.streams import Conversation, conversation, final_of
from tests.e2e.support import Tensor, channel_to, infer, outputs_of, refused, request

#: y is the sum of the sequence, its controls as bits, the flags, the place in the batch, and the batch's requests.
SUMS: Final = """
def initialize(self, args):
    self.sums = {}

def execute(self, requests):
    return [self.one(request, at, len(requests)) for at, request in enumerate(requests)]

def one(self, request, at, count):
    x = float(input_of(request).item())
    start, end, ready = (float(input_of(request, name).item()) for name in ("START", "END", "READY"))
    who = request.correlation_id()
    assert bool(who) == bool(ready)
    if x < 0:
        return pb_utils.InferenceResponse([], pb_utils.TritonError("below zero", pb_utils.TritonError.NOT_FOUND))
    if x == 13:
        raise ValueError("unlucky")
    if x == 99:
        print("farewell", flush=True)
        os._exit(3)
    if ready:
        self.sums[who] = x if start else self.sums[who] + x
    total = self.sums.pop(who) if end else self.sums.get(who, 0.0)
    return answer(request, np.array([[total, start + 2 * end, request.flags(), at, count]], np.float32))
"""

CONTROLS: Final = """
sequence_batching {
  max_sequence_idle_microseconds: %d
  %s
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] }
  ]
}
"""
IDLE_US: Final = 60_000_000
OLDEST: Final = "oldest { max_candidate_sequences: 4 }"

#: Decoupled: a request is answered when the next one of its sequence has come, which is told how many have.
HELD: Final = """
def initialize(self, args):
    self.held = {}

def execute(self, requests):
    for request in requests:
        who, sender = request.correlation_id(), request.get_response_sender()
        count, before = self.held.pop(who, (0, None))
        if before is not None:
            before.send(answer(request, np.array([[count]], np.float32)), 1)
        if request.flags() & 2:
            sender.send(answer(request, np.array([[count + 1]], np.float32)), 1)
        else:
            self.held[who] = count + 1, sender
"""

#: Counts down to 0, by asking for its request as often; decoupled, with a response each time.
COUNTDOWN: Final = """
def initialize(self, args):
    self.left = {}

def execute(self, requests):
    return [self.one(request) for request in requests] and None

def one(self, request):
    who = request.correlation_id()
    assert bool(request.flags() & 1) == (who not in self.left), who
    left = self.left.pop(who, float(input_of(request).item())) - 1
    sender = request.get_response_sender()
    response = answer(request, np.array([[left, who]], np.float32))
    if left > 0:
        self.left[who] = left
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        sender.send(response)
    else:
        sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

#: The same with one response, and what is wrong.
ONE_AFTER: Final = """
def initialize(self, args):
    self.rounds = {}

def execute(self, requests):
    return [self.one(request) for request in requests]

def one(self, request):
    who, x = request.correlation_id(), float(input_of(request).item())
    rounds = self.rounds[who] = self.rounds.get(who, 0) + 1
    if rounds < x:
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return answer(request, np.zeros((1, 2), np.float32)) if x == 50 else None
    del self.rounds[who]
    try:
        request.set_release_flags(3)
    except pb_utils.TritonModelException:
        return answer(request, np.array([[rounds, who]], np.float32))
"""
DECOUPLED: Final = "model_transaction_policy { decoupled: true }"
ITERATIVE: Final = "sequence_batching { iterative_sequence: true max_sequence_idle_microseconds: %d %s }"

#: The sums of a model whose configuration is a config.yaml, and whose tensors it declares itself.
DECLARED: Final = (
    SUMS
    + """
@staticmethod
def auto_complete_config(config):
    config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [1]})
    config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [-1]})
    return config
"""
)
YAML: Final = """\
backend: python
batch_size: 4
capacity: 4
num_executors: 1
allocator: cpu
parameters: {toutates.isolation: thread}
sequences:
  strategy: oldest
  max_candidates: 8
  controls:
    START: {kind: start, datatype: FP32}
    END: {kind: end, datatype: FP32}
    READY: {kind: ready, datatype: FP32}
"""

#: An ensemble with a step before and one that has sequences.
PIPE: Final = """
platform: "ensemble"
max_batch_size: 2
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "before" model_version: -1 input_map { key: "x" value: "IN" } output_map { key: "y" value: "t" } },
  { model_name: "sums_thread" model_version: -1 input_map { key: "x" value: "t" } output_map { key: "y" value: "OUT" } }
] }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("repository")

    def add(name: str, methods: str, more: str, isolation: str = "thread", rows: int = 2) -> None:
        folder = add_model(root, name, methods, dims="[ 1 ]", rows=rows, more=more, isolation=isolation)
        text = (folder / "config.pbtxt").read_text()
        (folder / "config.pbtxt").write_text(
            text.replace('"y" data_type: TYPE_FP32 dims: [ 1 ]', '"y" data_type: TYPE_FP32 dims: [ -1 ]')
        )

    for isolation in ("process", "thread"):
        add(f"sums_{isolation}", SUMS, CONTROLS % (IDLE_US, ""), isolation)
        add(f"held_{isolation}", HELD, DECOUPLED + CONTROLS % (IDLE_US, OLDEST), isolation)
        add(f"countdown_{isolation}", COUNTDOWN, DECOUPLED + ITERATIVE % (IDLE_US, OLDEST), isolation)
        add(f"after_{isolation}", ONE_AFTER, ITERATIVE % (IDLE_US, ""), isolation)
    add("oldest", SUMS, CONTROLS % (IDLE_US, OLDEST))
    add("hasty", COUNTDOWN, DECOUPLED + ITERATIVE % (1, ""))
    add("plain_after", ONE_AFTER, "dynamic_batching {}")
    add("plain_countdown", COUNTDOWN, DECOUPLED)
    add("before", "def execute(self, requests):\n    return [answer(r, input_of(r) * 2) for r in requests]", "")
    folder = add_model(root, "yaml", DECLARED)
    (folder / "config.pbtxt").unlink()
    (folder / "1" / "config.yaml").write_text(YAML)
    (root / "pipe" / "1").mkdir(parents=True)
    (root / "pipe" / "config.pbtxt").write_text(PIPE)
    with running(root, tmp_path_factory.mktemp("server"), ["--http-addr", "127.0.0.1:0"]) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[Any]:
    with channel_to(server.address) as channel:
        yield channel


@pytest.fixture
def stream(channel: Any) -> Iterator[Conversation]:
    with conversation(channel) as stream:
        yield stream


@pytest.fixture(params=["process", "thread"])
def isolation(request: pytest.FixtureRequest) -> str:
    isolation: str = request.param
    return isolation


def asking(model: str, x: float, identifier: int | str = 0, flags: str = "", name: str = "x", **fields: Any) -> Any:
    """A request; ``flags`` holds S for START and E for END."""
    message = request(model, Tensor.of(name, "FP32", [[x]]), **fields)
    if isinstance(identifier, str):
        message.parameters["sequence_id"].string_param = identifier
    elif identifier:
        message.parameters["sequence_id"].int64_param = identifier
    message.parameters["sequence_start"].bool_param = "S" in flags
    message.parameters["sequence_end"].bool_param = "E" in flags
    return message


def values_of(answer: Any, name: str = "y") -> list[float]:
    response = getattr(answer, "infer_response", answer)
    assert getattr(answer, "error_message", "") == ""
    values: list[float] = outputs_of(response)[name].reshape(-1).tolist()
    return values


def test_a_model_keeps_its_state_by_the_id_of_the_sequence(channel: Any, isolation: str) -> None:
    said = [
        values_of(infer(channel, asking(f"sums_{isolation}", x, identifier, flags)))
        for x, identifier, flags in (
            (1, 7, "S"), (10, "7", "S"), (2, 7, ""), (20, "7", ""), (3, 7, "E"), (30, "7", "E"), (42, 8, "SE"),
        )
    ]  # fmt: skip
    assert [one[0] for one in said] == [1, 10, 3, 30, 6, 60, 42]
    # Controls and flags say the same.
    assert [one[1] for one in said] == [one[2] for one in said] == [1, 1, 0, 0, 2, 2, 3]
    # "7" is in the second slot, behind a null row.
    assert [tuple(one[3:]) for one in said] == [(0, 1), (1, 2)] * 3 + [(0, 1)]


def test_what_names_no_sequence_is_refused(channel: Any) -> None:
    model = "sums_thread"
    assert refused(channel, asking(model, 1)) == (
        "INVALID_ARGUMENT",
        f"inference request to model '{model}' must specify a non-zero or non-empty correlation ID",
    )
    assert "must specify the START flag" in refused(channel, asking(model, 1, 5))[1]
    said = refused(channel, asking("pipe", 1, 5, name="IN"))[1]
    assert said == (
        f"in ensemble 'pipe', inference request for sequence 5 to model '{model}' must specify the START flag on the "
        "first request of the sequence"
    )


@pytest.mark.parametrize("model", ["sums_process", "oldest", "yaml"])
def test_requests_of_a_stream_run_together_and_only_those_fail_that_the_model_fails(
    stream: Conversation, model: str
) -> None:
    for identifier in (1, 2):
        stream.send(asking(model, identifier, identifier, "S"))
        stream.send(asking(model, -1 if identifier == 1 else 5, identifier))
        stream.send(asking(model, 10, identifier, "E"))
    answers = stream.read(6)
    assert answers[1].error_message == "below zero"
    assert [values_of(answer)[0] for at, answer in enumerate(answers) if at != 1] == [1, 11, 2, 7, 17]
    assert "ValueError: unlucky" in stream.ask(asking(model, 13, 3, "SE")).error_message
    assert values_of(stream.ask(asking(model, 4, 3, "SE")))[0] == 4


def test_the_state_of_a_process_that_dies_is_not_gone_without_a_word(stream: Conversation) -> None:
    model = "sums_process"
    assert values_of(stream.ask(asking(model, 1, 21, "S")))[0] == 1
    assert "farewell" in stream.ask(asking(model, 99, 22, "S")).error_message
    assert "must specify the START flag" in stream.ask(asking(model, 2, 21)).error_message
    assert values_of(stream.ask(asking(model, 3, 21, "SE")))[0] == 3


def test_the_next_request_of_a_decoupled_sequence_runs_once_execute_has_returned(
    stream: Conversation, isolation: str
) -> None:
    model = f"held_{isolation}"
    stream.send(asking(model, 0, 5, "S", id="1"), asking(model, 0, 6, "S", id="other"))
    stream.send(asking(model, 0, 5, id="2"))
    [first] = stream.read()
    assert (first.infer_response.id, values_of(first), final_of(first)) == ("1", [1.0], True)
    stream.send(asking(model, 0, 5, "E", id="3"))
    assert [(answer.infer_response.id, values_of(answer)) for answer in stream.read(2)] == [("2", [2.0]), ("3", [3.0])]
    stream.send(asking(model, 0, 6, "E", id="end"))
    assert [answer.infer_response.id for answer in stream.end()] == ["other", "end"]


def test_an_iterative_model_has_its_request_as_often_as_it_asks(stream: Conversation, isolation: str) -> None:
    model = f"countdown_{isolation}"
    for identifier, flags in ((0, ""), (500, "S")):
        stream.send(asking(model, 3, identifier, flags))
        answers = stream.read(3)
        assert [values_of(answer)[0] for answer in answers] == [2, 1, 0]
        assert [final_of(answer) for answer in answers] == [False, False, True]
        ids = {values_of(answer)[1] for answer in answers}
        assert ids == {500.0} if identifier else len(ids) == 1
    # Its sequence has ended with it.
    assert "must specify the START flag" in stream.ask(asking(model, 3, 500)).error_message


def test_a_request_that_rests_for_too_long_between_two_rounds_does_not_come_again(stream: Conversation) -> None:
    stream.send(asking("hasty", 3))
    answer, error = stream.read(2)
    assert values_of(answer)[0] == 2
    assert "must specify the START flag" in error.error_message
    assert stream.end() == []


def test_iterative_requests_go_on_side_by_side(stream: Conversation, isolation: str) -> None:
    for number in range(6):
        stream.send(asking(f"countdown_{isolation}", 4, id=str(number)))
    answers = stream.read(24)
    for number in range(6):
        own = [values_of(answer)[0] for answer in answers if answer.infer_response.id == str(number)]
        assert own == [3, 2, 1, 0]


def test_an_iterative_model_that_is_not_decoupled_answers_once(channel: Any, isolation: str) -> None:
    model = f"after_{isolation}"
    assert values_of(infer(channel, asking(model, 3)))[0] == 3
    assert values_of(infer(channel, asking(model, 5, 77, "S"))) == [5, 77]
    assert (
        "Expected a None object in the execute function return list for reschduled request"
        in (refused(channel, asking(model, 50))[1])
    )


def test_another_scheduler_does_not_ask_again(channel: Any, stream: Conversation) -> None:
    text = "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured"
    status, said = refused(channel, asking("plain_after", 3))
    assert (status, said.startswith(text)) == ("INTERNAL", True)
    stream.send(asking("plain_countdown", 3, flags="S"))
    answer, error = stream.read(2)
    assert values_of(answer)[0] == 2
    assert error.error_message.startswith(text)
    assert final_of(error)


def test_sequences_over_rest_and_generate_stream(server: ServerProcess) -> None:
    def body(x: float, **parameters: Any) -> str:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [x]}
        return json.dumps({"inputs": [tensor], "parameters": parameters})

    with peer_of(server.rest_port) as peer:
        path = "/v2/models/sums_process/infer"
        answers = [
            peer.ask(post(path, body(1, sequence_id="r", sequence_start=True))),
            peer.ask(post(path, body(2, sequence_id="r"))),
            peer.ask(post(path, body(3, sequence_id="r", sequence_end=True))),
        ]
        assert [answer.document["outputs"][0]["data"][0] for answer in answers] == [1, 3, 6]
        answer = peer.ask(post("/v2/models/countdown_process/generate_stream", json.dumps({"x": 3})))
        events = [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line]
        assert [event["y"][0] for event in events] == [2, 1, 0]
        answer = peer.ask(post("/v2/models/after_thread/generate", json.dumps({"x": 4})))
        assert answer.document["y"][0] == 4


def test_a_sequence_flows_through_an_ensemble(stream: Conversation) -> None:
    for x, flags in ((1, "S"), (2, ""), (3, ""), (4, "E")):
        stream.send(asking("pipe", x, 9, flags, name="IN"))
    assert [values_of(answer, "OUT")[0] for answer in stream.read(4)] == [2, 6, 12, 20]
    stream.send(asking("pipe", 5, 9, name="IN"))
    [answer] = stream.end()
    assert answer.error_message.startswith(
        "in ensemble 'pipe', inference request for sequence 9 to model 'sums_thread'"
    )
