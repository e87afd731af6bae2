"""The clients of a soak that speak REST: tritonclient.http, pipelined bytes, event streams, and some that leave."""

from __future__ import annotations

import gzip
import json
import random
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from h11 import ProtocolError
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from fuzz.soak.account import Entry
from fuzz.soak.questions import Question
from fuzz.soak.round import PATIENCE_S, Round, in_a_process, judge
from tests.e2e.http import Answer, Peer, peer_of, post

__all__ = ["VERSIONS_ADDS", "run_pipelined", "run_rude", "run_streams", "run_tritonclient", "versions_request"]

#: What the newest version of the model "versions" adds.
VERSIONS_ADDS: Final = 10
#: gRPC's names of the statuses that questions may end with.
_STATUSES: Final = {
    "400": "INVALID_ARGUMENT",
    "404": "NOT_FOUND",
    "500": "INTERNAL (JSON that is none)",
    "503": "RESOURCE_EXHAUSTED",
}
_CODINGS: Final = (None, None, None, "gzip", "deflate")
#: Elements of a tensor whose JSON is read and written beside the worker.
_MANY: Final = 20_000
_FIVE_NUMBERS: Final = b'{"inputs":[{"name":"INPUT","shape":[1,5],"datatype":"INT32","data":[1,2,3,4,5]}]}'
_LENGTH: Final = "Inference-Header-Content-Length"


# --- tritonclient ----------------------------------------------------------------------------------------------------


def run_tritonclient(around: Round) -> Entry:
    """tritonclient.http, in a process of its own, because gevent keeps a loop for each thread."""
    return in_a_process(_run_tritonclient, around)


def _run_tritonclient(around: Round) -> Entry:
    """One call at a time: tensors as JSON or binary data, compressed or not, in either direction."""
    entry = Entry()
    rng = around.rng
    while not (around.is_over() and entry.sent):
        with InferenceServerClient(f"127.0.0.1:{around.port}", network_timeout=PATIENCE_S) as client:
            for _ in range(rng.randint(1, 200)):
                if around.is_over() and entry.sent:
                    break
                question = around.questions.choose(rng)
                entry.sent += 1
                answer, error = _ask(client, question, rng)
                status = _STATUSES.get(str(error.status()), "") if error is not None else ""
                judge(entry, question, answer, error, status)
                time.sleep(rng.uniform(0, 0.004))
    return entry


def _ask(client: Any, question: Question, rng: random.Random) -> tuple[Any, Any]:
    """The answer to a question, or the error."""
    inputs = []
    for name, array in question.inputs.items():
        tensor = InferInput(name, array.shape, question.datatypes[name])
        inputs.append(tensor.set_data_from_numpy(array, binary_data=rng.random() < 0.5))
    binary = rng.random() < 0.5
    outputs = [InferRequestedOutput(name, binary_data=binary) for name in question.outputs] or None
    try:
        answer = client.infer(
            question.model,
            inputs,
            question.version,
            outputs,
            request_compression_algorithm=rng.choice(_CODINGS),
            response_compression_algorithm=rng.choice(_CODINGS),
        )
    except InferenceServerException as error:
        return None, error
    return answer, None


# --- bytes -----------------------------------------------------------------------------------------------------------


def versions_request(rows: list[list[int]], identifier: str = "") -> bytes:
    """The JSON of a request to the model "versions" for ``rows`` of four numbers."""
    tensor = {"name": "INPUT", "shape": [len(rows), 4], "datatype": "INT32", "data": rows}
    return json.dumps({"id": identifier, "inputs": [tensor]} if identifier else {"inputs": [tensor]}).encode()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request in bytes, and what its answer has to be.

    Attributes:
        octets: the whole request.
        status: of the answer.
        identifier: that the answer has.
        values: that it has, in order; empty where it is an error.
        binary: whether they come as binary data, INT32.
        may_be_full: whether its model is attacked too, so that its queue may be full.
    """

    octets: bytes
    status: int
    identifier: str = ""
    values: tuple[int, ...] = ()
    binary: bool = False
    may_be_full: bool = False

    @classmethod
    def choose(cls, rng: random.Random, identifier: str) -> Self:
        """Any of them; one in ten is to be refused, one in fifty is large."""
        fate = rng.random()
        if fate < 0.1:
            wrong = ((404, "nowhere", b"{}"), (500, "versions", b'{"inputs":[}'), (400, "versions", _FIVE_NUMBERS))
            status, model, body = rng.choice(wrong)
            return cls(post(f"/v2/models/{model}/infer", body), status)
        if fate < 0.12:
            number = rng.randint(1, 99)
            tensor = {"name": "INPUT", "shape": [1, _MANY], "datatype": "FP32", "data": [number] * _MANY}
            body = json.dumps({"id": identifier, "inputs": [tensor]}).encode()
            octets = _framed("shapes", body, rng)
            return cls(octets, 200, identifier, (-number,) * _MANY, may_be_full=True)
        rows = [[rng.randint(-1_000, 1_000) for _ in range(4)] for _ in range(rng.choice((1, 1, 2, 7)))]
        values = tuple(number + VERSIONS_ADDS for row in rows for number in row)
        if rng.random() < 0.5:
            return cls(_framed("versions", versions_request(rows, identifier), rng), 200, identifier, values)
        return cls(_binary(rows, identifier, rng), 200, identifier, values, binary=True)

    def difference(self, answer: Answer) -> str:
        """How an answer differs from the right one, in words; "" if it does not."""
        if answer.status == 503 and self.may_be_full:
            return ""
        if answer.status != self.status:
            return f"answered with {answer.status} instead of {self.status}: {answer.body[:200]!r}"
        if self.status != 200:
            return "" if "error" in answer.document else f"an error without a text: {answer.body[:200]!r}"
        size = int(answer.fields.get(_LENGTH.lower(), len(answer.body)))
        document = json.loads(answer.body[:size])
        if document.get("id", "") != self.identifier:
            return f"answered under the id {document.get('id')!r} instead of {self.identifier!r}"
        content = answer.body[size:]
        found = struct.unpack(f"<{len(content) // 4}i", content) if self.binary else document["outputs"][0]["data"]
        return "" if tuple(found) == self.values else f"expected {self.values[:8]}, got {found[:8]}"


def _binary(rows: list[list[int]], identifier: str, rng: random.Random) -> bytes:
    content = np.array(rows, "<i4").tobytes()
    tensor = {"name": "INPUT", "shape": [len(rows), 4], "datatype": "INT32"}
    head = {
        "id": identifier,
        "inputs": [tensor | {"parameters": {"binary_data_size": len(content)}}],
        "outputs": [{"name": "OUTPUT", "parameters": {"binary_data": True}}],
    }
    text = json.dumps(head).encode()
    return _framed("versions", text + content, rng, f"{_LENGTH}: {len(text)}")


def _framed(model: str, body: bytes, rng: random.Random, *fields: str) -> bytes:
    """A request for a model, in one of the ways in which a body can be sent."""
    way = rng.random()
    path = f"/v2/models/{model}/infer"
    if way < 0.15:
        return post(path, gzip.compress(body), "Content-Encoding: gzip", *fields)
    if way < 0.3:
        size = rng.choice((16, 100, 5_000))
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: here", "Transfer-Encoding: chunked", *fields, "", ""))
        return head.encode() + chunks + b"0\r\n\r\n"
    return post(path, body, *fields)


def run_pipelined(around: Round) -> Entry:
    """Requests one behind the other on a connection, whose answers have to come in their order."""
    entry = Entry()
    rng = around.rng
    while not around.is_over():
        with peer_of(around.port) as peer:
            for number in range(rng.randint(1, 20)):
                if around.is_over() and entry.sent:
                    break
                asked = [_Asked.choose(rng, f"{number}-{at}") for at in range(rng.randint(1, 30))]
                entry.sent += len(asked)
                if not _read_answers(entry, peer, asked):
                    break
                time.sleep(rng.uniform(0, 0.02))
    return entry


def _read_answers(entry: Entry, peer: Peer, asked: list[_Asked]) -> bool:
    """Send requests and judge their answers; returns whether the connection can go on."""
    for at, one in enumerate(asked):
        try:
            if not at:
                peer.sock.sendall(b"".join(one.octets for one in asked))
            answer = peer.read()
        except (OSError, ProtocolError) as error:
            entry.faults += [f"the connection broke: {error!r}"] * (len(asked) - at)
            return False
        if difference := one.difference(answer):
            entry.faults.append(difference)
        elif answer.status == 200:
            entry.right += 1
        else:
            entry.refused[_STATUSES[str(answer.status)]] += 1
    return True


def run_rude(around: Round) -> Entry:
    """Connections that end in the middle of a request, before them whole ones; then one that is answered."""
    entry = Entry()
    rng = around.rng
    while not around.is_over():
        asked = [_Asked.choose(rng, "rude") for _ in range(rng.randint(1, 6))]
        octets = b"".join(one.octets for one in asked)
        with socket.create_connection(("127.0.0.1", around.port), PATIENCE_S) as sock:
            entry.sent += len(asked)
            entry.given_up += len(asked)
            sock.sendall(octets[: len(octets) - rng.randrange(len(asked[-1].octets))])
            time.sleep(rng.choice((0.0, rng.uniform(0, 0.01))))
            if rng.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with peer_of(around.port) as peer:
            entry.sent += 1
            _read_answers(entry, peer, [_Asked.choose(rng, "polite")])
        time.sleep(rng.uniform(0, 0.03))
    return entry


# --- event streams ---------------------------------------------------------------------------------------------------


def run_streams(around: Round) -> Entry:
    """Readers of ``generate_stream``; every third one stops reading, and stays for up to five seconds."""
    entry = Entry()
    rng = around.rng
    while not around.is_over():
        with peer_of(around.port) as peer:
            if entry.right and rng.random() < 1 / 3:
                peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                requests = rng.randint(1, 5)
                entry.sent += requests
                entry.given_up += requests
                peer.sock.sendall(_stream_request(300_000) * requests)
                time.sleep(min(rng.uniform(0, 5), max(0.0, around.until - time.monotonic())))
                continue
            for _ in range(rng.randint(1, 10)):
                if around.is_over() and entry.right:
                    break
                entry.sent += 1
                _read_stream(entry, peer, rng.choice((1, 10, 1_000, 100_000)))
    return entry


def _stream_request(elements: int) -> bytes:
    return post("/v2/models/generator/generate_stream", json.dumps({"INPUT": elements}))


def _read_stream(entry: Entry, peer: Peer, elements: int) -> None:
    """Ask for an event with so many zeros, and judge it."""
    try:
        answer = peer.ask(_stream_request(elements))
    except (OSError, ProtocolError) as error:
        entry.faults.append(f"the connection of a stream broke: {error!r}")
        return
    if answer.status == 503:  # the model is attacked too, and its queue is short
        entry.refused[_STATUSES["503"]] += 1
        return
    expected = [0.0] * elements if elements > 1 else 0.0
    event = answer.body.decode()
    is_event = answer.status == 200 and event.startswith("data: ") and event.endswith("\n\n")
    if is_event and json.loads(event[len("data: ") :])["OUTPUT"] == expected:
        entry.right += 1
    else:
        entry.faults.append(f"a stream of {elements} zeros is answered with {answer.status}: {event[:200]}")
