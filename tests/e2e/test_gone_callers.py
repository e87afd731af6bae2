"""Callers that end their connection, as clients of HTTP do when they time out: what has not begun is never begun.

A model counts its executions. One is under way, others wait behind it whose callers leave, and one stays: what is run
then is counted, and nothing is measured by the clock.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pytest
import requests
import trio

from tests.e2e.http import Peer, get, peer_of, post
from tests.e2e.process import ServerProcess, running
from tests.e2e.python_models import add_model
from tests.e2e.support import pb
from tests.e2e.wire import PLAIN, Client, client_of, framed
from tests.ensembles import add_ensemble, pbtxt, step
from tests.h2grpc.frames import GOAWAY, frame
from tests.text_models import make_folder
from tests.waiting import PATIENCE_S, wait_until

#: Says what it runs, one line for each request, and then waits as long as the file "held" is there.
SLOW: Final = """
def initialize(self, args):
    self.folder = args["model_repository"]

def execute(self, requests):
    for request in requests:
        with open(self.folder + "/runs", "a") as file:
            file.write("%d\\n" % input_of(request).flat[0])
    while os.path.exists(self.folder + "/held"):
        time.sleep(0.002)
    return [answer(request, input_of(request)) for request in requests]
"""

#: Sends responses until nobody waits for them, and says so.
ENDLESS: Final = """
def initialize(self, args):
    self.folder = args["model_repository"]

def execute(self, requests):
    for request in requests:
        sender, count = request.get_response_sender(), 0
        while not sender.is_cancelled():
            count += 1
            if count < 100:
                sender.send(answer(request, input_of(request)))
            time.sleep(0.002)
        with open(self.folder + "/runs", "a") as file:
            file.write("%d\\n" % request.is_cancelled())
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

#: Calls "slow" twice, one call after the other.
CALLER: Final = """
def execute(self, requests):
    answers = []
    for request in requests:
        for _ in range(2):
            given = [pb_utils.Tensor("x", input_of(request))]
            made = pb_utils.InferenceRequest(model_name="slow", requested_output_names=["y"], inputs=given).exec()
            if made.has_error():
                break
        answers.append(answer(request, input_of(request)) if not made.has_error() else
                       pb_utils.InferenceResponse([], made.error()))
    return answers
"""

#: Begins a call of "slow", and does not wait for it.
SHADOWED: Final = """
def execute(self, requests):
    for request in requests:
        given = [pb_utils.Tensor("x", input_of(request))]
        made = pb_utils.InferenceRequest(model_name="slow", requested_output_names=["y"], inputs=given)
        self.begun = made.async_exec()
        self.begun.send(None)
    return [answer(request, input_of(request)) for request in requests]
"""

#: Calls "slow" when it has answered.
ANSWERED: Final = """
def execute(self, requests):
    for request in requests:
        given = [pb_utils.Tensor("x", input_of(request).copy())]
        made = pb_utils.InferenceRequest(model_name="slow", requested_output_names=["y"], inputs=given)
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        request.get_response_sender().send(answer(request, input_of(request)), flags=final)
        made.exec()
"""

#: Says what it runs, and has another thread call "slow".
BESIDE: Final = """
def initialize(self, args):
    self.folder = args["model_repository"]

def execute(self, requests):
    import threading
    for request in requests:
        with open(self.folder + "/runs", "a") as file:
            file.write("%d\\n" % input_of(request).flat[0])
        given = [pb_utils.Tensor("x", input_of(request))]
        made = pb_utils.InferenceRequest(model_name="slow", requested_output_names=["y"], inputs=given)
        thread = threading.Thread(target=made.exec)
        thread.start()
        thread.join()
    return [answer(request, input_of(request)) for request in requests]
"""

#: "slow" for bodies that have a number.
BODIES: Final = """
def initialize(self, args):
    self.folder = args["model_repository"]

def execute(self, requests):
    for request in requests:
        with open(self.folder + "/runs", "a") as file:
            file.write(input_of(request, "body").flat[0].decode() + "\\n")
    while os.path.exists(self.folder + "/held"):
        time.sleep(0.002)
    return [answer(request, input_of(request, "body"), "result") for request in requests]
"""

CANCEL: Final = 8
INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
LIVE: Final = "/inference.GRPCInferenceService/ServerLive"

STAYS: Final = 7
UNDER_WAY: Final = 1
LEAVES: Final = 2
CALLERS: Final = 5
#: Of clients that give up; a connection may well take as long on a busy machine, and nothing is lost then.
TIMEOUT_S: Final = 0.2


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    add_model(root, "slow", SLOW, rows=1)
    add_model(root, "batched", SLOW, rows=4)
    add_model(root, "threaded", SLOW, rows=1, isolation="thread")
    add_model(root, "cached", SLOW, rows=1, more="dynamic_batching {} response_cache { enable: true }")
    add_model(root, "endless", ENDLESS, more="model_transaction_policy { decoupled: true }")
    add_model(root, "caller", CALLER)
    decoupled = "model_transaction_policy { decoupled: true }"
    for isolation in ("process", "thread"):
        add_model(root, f"shadowed-{isolation}", SHADOWED, isolation=isolation)
        add_model(root, f"answered-{isolation}", ANSWERED, isolation=isolation, more=decoupled)
        add_model(root, f"beside-{isolation}", BESIDE, isolation=isolation)
    chain = [step("batched", "x=IN", "y=t"), step("slow", "x=t", "y=OUT")]
    add_ensemble(root, "chain", pbtxt(["IN FP32 [4]"], ["OUT FP32 [4]"], chain, batch=1))
    pooling = "sentence_transformers.models.Pooling"
    make_folder(root / "words", modules=[("1_Pooling", pooling, {"pooling_mode_mean_tokens": True})])
    bodies = add_model(root, "bodies", BODIES, tensors=False, rows=1)
    with (bodies / "config.pbtxt").open("a") as file:
        for kind, name in (("input", "body"), ("output", "result")):
            file.write(f'{kind} [ {{ name: "{name}" data_type: TYPE_STRING dims: [ 1 ] }} ]\n')
    return root


FLAGS: Final = (
    *("--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--cache-config", "local,size=65536"),
    *("--torchserve-api", "--torchserve-management-addr", "off", "--access-log-rate", "1"),
)


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(repository, tmp_path_factory.mktemp("server"), FLAGS) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


class Model:
    """A model that says what it runs, and whose runs can be held."""

    def __init__(self, repository: Path, name: str) -> None:
        self.folder, self.name = repository / name, name
        self._seen = len(self._all)

    @property
    def _all(self) -> list[int]:
        path = self.folder / "runs"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    @property
    def runs(self) -> list[int]:
        """First values of the requests that have been run since this object was made."""
        return self._all[self._seen :]

    def hold(self) -> None:
        """Have runs wait from now on."""
        (self.folder / "held").touch()

    def release(self) -> None:
        """Have them go on."""
        (self.folder / "held").unlink(missing_ok=True)


def document(value: int, name: str = "x") -> bytes:
    tensor = {"name": name, "datatype": "FP32", "shape": [1, 4], "data": [value, 0, 0, 0]}
    return json.dumps({"inputs": [tensor]}).encode()


def infer(model: str, value: int, name: str = "x") -> bytes:
    return post(f"/v2/models/{model}/infer", document(value, name))


def binary(model: str, value: int) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
    head = json.dumps({"inputs": [tensor]}).encode()
    body = head + np.array([value, 0, 0, 0], np.float32).tobytes()
    return post(f"/v2/models/{model}/infer", body, f"Inference-Header-Content-Length: {len(head)}")


def generate(model: str, value: int) -> bytes:
    return post(f"/v2/models/{model}/generate", json.dumps({"x": [value, 0, 0, 0]}))


def generate_stream(model: str, value: int) -> bytes:
    return post(f"/v2/models/{model}/generate_stream", json.dumps({"x": [value, 0, 0, 0]}))


WAYS: Final = {"JSON": infer, "binary": binary, "generate": generate, "generate_stream": generate_stream}


def metric(server: ServerProcess, name: str, *labels: str) -> float:
    """The sum of the series of a metric that have these labels."""
    page = requests.get(f"http://127.0.0.1:{server.http_port}/metrics", timeout=PATIENCE_S).text
    lines = [line for line in page.splitlines() if line.startswith(name) and all(label in line for label in labels)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def canceled(server: ServerProcess, model: str) -> float:
    """Requests to a model whose callers have left."""
    return metric(server, "nv_inference_request_failure", f'model="{model}"', "CANCELED")


def pending(server: ServerProcess, model: str) -> float:
    """Requests to a model that wait for a run."""
    return metric(server, "nv_inference_pending_request_count", f'model="{model}"')


@contextmanager
def under_way(server: ServerProcess, model: Model, octets: bytes) -> Iterator[Peer]:
    """A request whose run is held, and who waits for its answer."""
    model.hold()
    try:
        with peer_of(server.rest_port) as peer:
            peer.sock.sendall(octets)
            wait_until(lambda: len(model.runs) == 1)
            yield peer
    finally:
        model.release()


def abandon(server: ServerProcess, octets: bytes, callers: int = CALLERS, *, others: int = 1) -> None:
    """Send a request by so many callers who leave, while there are so many other connections."""
    port = server.rest_port
    with ExitStack() as stack:
        for _ in range(callers):
            stack.enter_context(peer_of(port)).sock.sendall(octets)
        wait_until(lambda: server.open_connections(port) == callers + others)
    wait_until(lambda: server.open_connections(port) == others)


def run_beside(server: ServerProcess, model: Model, leaves: bytes, stays: bytes, first: bytes = b"") -> None:
    """Send a request whose run is held, requests of callers who leave, and one that is answered behind it."""
    with under_way(server, model, first or infer(model.name, UNDER_WAY)) as one:
        abandon(server, leaves)
        with peer_of(server.rest_port) as last:
            last.sock.sendall(stays)
            wait_until(lambda: server.open_connections(server.rest_port) == 2)
            model.release()
            assert last.read().status == 200
        assert one.read().status == 200


@pytest.mark.parametrize("way", WAYS)
def test_what_has_not_begun_is_never_begun(server: ServerProcess, repository: Path, way: str) -> None:
    make, slow = WAYS[way], Model(repository, "slow")
    before = canceled(server, "slow")
    run_beside(server, slow, make("slow", LEAVES), make("slow", STAYS))
    assert slow.runs == [UNDER_WAY, STAYS]
    wait_until(lambda: canceled(server, "slow") == before + CALLERS)


def by_requests(url: str) -> None:
    for _ in range(2):
        with pytest.raises(requests.Timeout):
            requests.post(url, document(LEAVES), timeout=TIMEOUT_S)


def by_httpx(url: str) -> None:
    async def leave(client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx.TimeoutException):
            await client.post(url, content=document(LEAVES), timeout=TIMEOUT_S)

    async def run() -> None:
        async with httpx.AsyncClient() as client, trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(leave, client)

    trio.run(run)


def by_aiohttp(url: str) -> None:
    aiohttp = pytest.importorskip("aiohttp")

    async def leave(session: Any) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await session.post(url, data=document(LEAVES))

    async def run() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_S)) as session:
            await asyncio.gather(*(leave(session) for _ in range(CALLERS)))

    asyncio.run(run())


def by_curl(url: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = ["curl", "--silent", "--max-time", str(TIMEOUT_S), "--data", document(LEAVES).decode(), url]
    assert subprocess.run(command, check=False).returncode == 28


@pytest.mark.parametrize("leave", [by_requests, by_httpx, by_aiohttp, by_curl])
def test_clients_that_time_out_leave_nothing_to_do(
    server: ServerProcess, repository: Path, leave: Callable[[str], None]
) -> None:
    slow = Model(repository, "slow")
    with under_way(server, slow, infer("slow", UNDER_WAY)) as one:
        leave(f"http://127.0.0.1:{server.rest_port}/v2/models/slow/infer")
        with peer_of(server.rest_port) as last:
            last.sock.sendall(infer("slow", STAYS))
            wait_until(lambda: server.open_connections(server.rest_port) == 2)
            slow.release()
            assert last.read().status == 200
        assert one.read().status == 200
    assert slow.runs == [UNDER_WAY, STAYS]


def test_the_log_says_so(server: ServerProcess, repository: Path) -> None:
    slow = Model(repository, "slow")
    run_beside(server, slow, infer("slow", LEAVES), infer("slow", STAYS))
    wait_until(
        lambda: server.log.count("model=slow version=1 rows=1 batch_rows=1 status=CLIENT_CLOSED_REQUEST") >= CALLERS
    )


def test_with_half_close_a_client_that_ends_its_side_is_answered(repository: Path, tmp_path: Path) -> None:
    slow = Model(repository, "slow")
    flags = ("--http-addr", "127.0.0.1:0", "--http-half-close", "--load-models", "slow")
    with running(repository, tmp_path, flags) as server, peer_of(server.rest_port) as peer:
        slow.hold()
        try:
            peer.sock.sendall(infer("slow", UNDER_WAY) + infer("slow", STAYS) + get("/v2"))
            peer.sock.shutdown(socket.SHUT_WR)
            wait_until(lambda: slow.runs == [UNDER_WAY])
        finally:
            slow.release()
        assert [peer.read().status for _ in range(3)] == [200] * 3
        assert peer.ended()
    assert slow.runs == [UNDER_WAY, STAYS]


def test_requests_of_a_batch_that_callers_have_left_are_not_given_to_the_model(
    server: ServerProcess, repository: Path
) -> None:
    for name in ("batched", "threaded"):
        model = Model(repository, name)
        run_beside(server, model, infer(name, LEAVES), infer(name, STAYS))
        assert model.runs == [UNDER_WAY, STAYS]


def test_steps_of_an_ensemble_are_not_begun(server: ServerProcess, repository: Path) -> None:
    first, second = Model(repository, "batched"), Model(repository, "slow")
    with under_way(server, first, infer("chain", UNDER_WAY, "IN")) as one:
        abandon(server, infer("chain", LEAVES, "IN"))
        one.sock.close()  # whose second step has not begun
        wait_until(lambda: server.open_connections(server.rest_port) == 0)
        with peer_of(server.rest_port) as last:
            last.sock.sendall(infer("chain", STAYS, "IN"))
            wait_until(lambda: server.open_connections(server.rest_port) == 1)
            first.release()
            assert last.read().status == 200
    assert (first.runs, second.runs) == ([UNDER_WAY, STAYS], [STAYS])


def test_calls_of_a_model_whose_callers_have_left_are_not_begun(server: ServerProcess, repository: Path) -> None:
    slow = Model(repository, "slow")
    with under_way(server, slow, infer("caller", UNDER_WAY)) as one:
        one.sock.close()
        wait_until(lambda: server.open_connections(server.rest_port) == 0)
        slow.release()
        with peer_of(server.rest_port) as last:
            assert last.ask(infer("caller", STAYS)).status == 200
    assert slow.runs == [UNDER_WAY, STAYS, STAYS]


@pytest.mark.parametrize("isolation", ["process", "thread"])
@pytest.mark.parametrize("model", ["shadowed", "answered"])
def test_a_call_goes_on_after_the_answer_of_the_request_that_it_is_for(
    server: ServerProcess, repository: Path, model: str, isolation: str
) -> None:
    slow = Model(repository, "slow")
    with under_way(server, slow, infer("slow", UNDER_WAY)) as one, peer_of(server.rest_port) as other:
        assert other.ask(generate(f"{model}-{isolation}", LEAVES)).status == 200
        wait_until(lambda: pending(server, "slow") == 1)
        other.sock.sendall(infer("slow", STAYS))
        wait_until(lambda: pending(server, "slow") == 2)
        slow.release()
        assert [peer.read().status for peer in (one, other)] == [200, 200]
    assert slow.runs == [UNDER_WAY, LEAVES, STAYS]


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_calls_of_other_threads_of_a_model_do_not_depend_on_its_callers(
    server: ServerProcess, repository: Path, isolation: str
) -> None:
    slow, beside = Model(repository, "slow"), Model(repository, f"beside-{isolation}")
    with under_way(server, slow, infer("slow", UNDER_WAY)) as one:
        with peer_of(server.rest_port) as other:
            other.sock.sendall(infer(beside.name, LEAVES))
            wait_until(lambda: beside.runs == [LEAVES] and pending(server, "slow") == 1)
        wait_until(lambda: server.open_connections(server.rest_port) == 1)
        one.sock.sendall(infer("slow", STAYS))
        slow.release()
        assert [one.read().status for _ in range(2)] == [200, 200]
    assert slow.runs == [UNDER_WAY, LEAVES, STAYS]


def test_one_of_several_who_wait_for_a_computation_takes_nothing_from_the_others(
    server: ServerProcess, repository: Path
) -> None:
    cached = Model(repository, "cached")
    with under_way(server, cached, infer("cached", UNDER_WAY)) as one:
        with peer_of(server.rest_port) as stays, peer_of(server.rest_port) as leaves:
            for peer in (leaves, stays):
                peer.sock.sendall(infer("cached", STAYS))
            wait_until(lambda: server.open_connections(server.rest_port) == 3)
            leaves.sock.close()
            wait_until(lambda: server.open_connections(server.rest_port) == 2)
            cached.release()
            assert stays.read().status == 200
        assert one.read().status == 200
    assert cached.runs == [UNDER_WAY, STAYS]


def test_what_nobody_waits_for_any_more_is_not_computed_for_the_cache(server: ServerProcess, repository: Path) -> None:
    cached = Model(repository, "cached")
    run_beside(server, cached, infer("cached", 12), infer("cached", 17), infer("cached", 11))
    assert cached.runs == [11, 17]


def test_a_stream_of_events_whose_reader_leaves_stops(server: ServerProcess, repository: Path) -> None:
    endless = Model(repository, "endless")
    with peer_of(server.rest_port) as peer:
        peer.sock.sendall(generate_stream("endless", STAYS))
        assert b"text/event-stream" in peer.sock.recv(65_536)
    wait_until(lambda: endless.runs == [1])


def test_predictions_of_torchserve_are_not_begun(server: ServerProcess, repository: Path) -> None:
    bodies = Model(repository, "bodies")
    first, leaves, stays = (post("/predictions/bodies", str(value)) for value in (UNDER_WAY, LEAVES, STAYS))
    run_beside(server, bodies, leaves, stays, first)
    assert bodies.runs == [UNDER_WAY, STAYS]


def grpc_message(value: int) -> bytes:
    message = pb.ModelInferRequest(model_name="slow")
    message.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    message.raw_input_contents.append(np.array([value, 0, 0, 0], np.float32).tobytes())
    return framed(message.SerializeToString())


def begin(client: Client, kind: str, value: int) -> int:
    """Send a request to "slow" on a stream of its own; returns the stream's number."""
    if kind == "gRPC":
        stream = client.start(INFER)
        client.send(stream, grpc_message(value))
        return stream
    stream = client.start("/v2/models/slow/infer", PLAIN)
    client.send(stream, document(value))
    return stream


@pytest.mark.parametrize("kind", ["gRPC", "REST"])
@pytest.mark.parametrize("way", ["reset", "goodbye", "end", "loss"])
def test_over_http2_they_are_not_begun_either(server: ServerProcess, repository: Path, kind: str, way: str) -> None:
    slow, port = Model(repository, "slow"), server.rest_port
    before = canceled(server, "slow")
    with under_way(server, slow, infer("slow", UNDER_WAY)) as one, client_of(port) as client:
        streams = [begin(client, kind, LEAVES) for _ in range(CALLERS)]
        wait_until(lambda: pending(server, "slow") == CALLERS)
        if way == "reset":
            for stream in streams:
                client.connection.reset_stream(stream, CANCEL)
            client.flush()
            client.call(LIVE, b"")
        else:
            if way == "goodbye":
                client.connection.close_connection()
                client.flush()
            elif way == "loss":
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sock.close()
            wait_until(lambda: server.open_connections(port) == 1)
        with client_of(port) as other:
            stream = begin(other, kind, STAYS)
            slow.release()
            assert other.answer(stream).data
        assert one.read().status == 200
    assert slow.runs == [UNDER_WAY, STAYS]
    wait_until(lambda: canceled(server, "slow") == before + CALLERS)


def test_a_goodbye_of_http2_alone_ends_no_request(server: ServerProcess, repository: Path) -> None:
    slow = Model(repository, "slow")
    with client_of(server.rest_port) as client:
        slow.hold()
        try:
            stream = begin(client, "REST", STAYS)
            wait_until(lambda: slow.runs == [STAYS])
            client.sock.sendall(frame(GOAWAY, 0, 0, bytes(8)))
            client.call(LIVE, b"")  # so the server has read it
        finally:
            slow.release()
        assert b"outputs" in client.answer(stream).data


def test_texts_are_not_computed_to_the_end(server: ServerProcess) -> None:
    def answers(status: int) -> float:
        name = "toutates_text_answers_total"
        return metric(server, name, 'route="/v1/embeddings"', f'status="{status}"')

    body = json.dumps({"model": "words", "input": ["one"] * 2_000})
    asked = post("/v1/embeddings", body, "Content-Type: application/json")
    assert len(asked) < 16_384  # one read has all of it: whoever leaves before the second one has asked for nothing
    for _ in range(CALLERS):
        with peer_of(server.rest_port) as peer:
            peer.sock.sendall(asked)
    wait_until(lambda: answers(499) + answers(200) + answers(429) == CALLERS)
    assert answers(499) >= 1


def test_peers_that_reset_while_they_are_written_to_fill_no_log(server: ServerProcess, repository: Path) -> None:
    endless = Model(repository, "endless")
    for _ in range(20):
        with peer_of(server.rest_port) as peer:
            peer.sock.sendall(generate_stream("endless", STAYS))
            peer.sock.recv(100)
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: endless.runs == [1] * 20)
    wait_until(lambda: server.open_connections(server.rest_port) == 0)
    assert not [line for line in server.log.splitlines() if "reset" in line.lower() or " ERROR " in line]
