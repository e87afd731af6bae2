"""The clients of a soak beside the storm's: tritonclient one call at a time and with asyncio, raw HTTP/2, h2load."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.grpc.aio import InferenceServerClient as AioClient
from tritonclient.utils import InferenceServerException

from bench.errors import NoFigure
from bench.h2load import check_report
from fuzz.attacks.honest import HonestError, RawClient
from fuzz.attacks.wire import INFER, framed, infer_message
from fuzz.soak import rest_clients
from fuzz.soak.account import Entry
from fuzz.soak.cache_clients import run_cached
from fuzz.soak.demand_clients import ON_DEMAND, run_on_demand
from fuzz.soak.length_clients import run_lengths
from fuzz.soak.python_clients import run_decoupled, run_python
from fuzz.soak.questions import Question
from fuzz.soak.region_clients import run_regions
from fuzz.soak.round import PATIENCE_S, Round, in_a_process, judge
from fuzz.soak.sequence_clients import run_sequences
from fuzz.soak.stream_clients import run_streams
from fuzz.soak.text_clients import run_texts
from tests.e2e.http import peer_of, post

__all__ = ["clients"]

_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1)]
#: Calls under way at once on the connection of the asyncio client.
_TASKS: Final = 6
_H2LOAD_REQUESTS: Final = 2_000


def _tensors(question: Question) -> list[Any]:
    tensors = []
    for name, array in question.inputs.items():
        tensor = InferInput(name, array.shape, question.datatypes[name])
        tensors.append(tensor.set_data_from_numpy(array))
    return tensors


def _status(error: Any) -> str:
    return "" if error is None else str(error.status()).removeprefix("StatusCode.")


def run_sync(around: Round) -> Entry:
    """tritonclient, one call at a time, on one connection after the other; every tenth has little time."""
    entry = Entry()
    while not around.is_over():
        with InferenceServerClient(f"127.0.0.1:{around.port}", channel_args=_OPTIONS) as client:
            for _ in range(around.rng.randint(1, 200)):
                if around.is_over():
                    break
                question = around.questions.choose(around.rng)
                hurried = around.rng.random() < 0.1
                timeout_s = around.rng.expovariate(1 / 0.003) if hurried else PATIENCE_S
                entry.sent += 1
                answer: Any = None
                error: Any = None
                try:
                    answer = client.infer(
                        question.model, _tensors(question), question.version, client_timeout=timeout_s
                    )
                except InferenceServerException as raised:
                    error = raised
                judge(entry, question, answer, error, _status(error), "DEADLINE_EXCEEDED" if hurried else "")
                time.sleep(around.rng.uniform(0, 0.004))
    return entry


def run_aio(around: Round) -> Entry:
    """tritonclient with asyncio, in a process of its own: grpcio closes its sockets late, once their loop is gone."""
    return in_a_process(run_aio_here, around)


def run_aio_here(around: Round) -> Entry:
    """Calls at once on each connection, of which some are cancelled or have little time."""
    entry = Entry()

    async def ask(client: Any) -> None:
        question = around.questions.choose(around.rng)
        fate = around.rng.random()
        timeout_s = around.rng.expovariate(1 / 0.003) if fate < 0.1 else PATIENCE_S
        entry.sent += 1
        call = asyncio.ensure_future(
            client.infer(question.model, _tensors(question), question.version, client_timeout=timeout_s)
        )
        if 0.1 < fate < 0.2:
            await asyncio.sleep(around.rng.expovariate(1 / 0.002))
            call.cancel()
        try:
            judge(entry, question, await call, None)
        except asyncio.CancelledError:
            entry.given_up += 1
        except InferenceServerException as error:
            judge(entry, question, None, error, _status(error), "DEADLINE_EXCEEDED" if fate < 0.1 else "")

    async def ask_again_and_again(client: Any, calls: int) -> None:
        for number in range(calls):
            if around.is_over() and number:
                return
            await ask(client)
            await asyncio.sleep(around.rng.uniform(0, 0.01))

    async def talk() -> None:
        while not (around.is_over() and entry.sent):
            async with AioClient(f"127.0.0.1:{around.port}", channel_args=_OPTIONS) as client:
                calls = around.rng.randint(1, 60)
                await asyncio.gather(*(ask_again_and_again(client, calls) for _ in range(_TASKS)))

    asyncio.run(talk())
    return entry


def run_raw(around: Round) -> Entry:
    """Raw HTTP/2, a connection for a few calls each."""
    entry = Entry()
    while not around.is_over():
        client = RawClient(around.port)
        try:
            for number in range(around.rng.randint(1, 100)):
                entry.sent += 1
                try:
                    client.call(number)
                except HonestError as error:
                    entry.faults.append(str(error))
                    break
                entry.right += 1
                time.sleep(0.002)
        finally:
            client.close()
    return entry


def run_h2load(around: Round) -> Entry:
    """h2load on the model "versions": it counts answers and their bytes, which are the right ones together."""
    client = RawRequest(around.port)
    fields = ("content-type: application/grpc", "te: trailers")
    return _load(around, client.body, ["-c", "2", "-m", "8"], fields, INFER, client.answer_bytes)


def run_h2load_http1(around: Round) -> Entry:
    """The same over HTTP/1.1, in JSON."""
    path = "/v2/models/versions/infer"
    body = rest_clients.versions_request([[1, 2, 3, 4]])
    with peer_of(around.port) as peer:
        answer = peer.ask(post(path, body))
    expected = [number + rest_clients.VERSIONS_ADDS for number in (1, 2, 3, 4)]
    if answer.status != 200 or json.loads(answer.body)["outputs"][0]["data"] != expected:
        raise HonestError(f"versions: expected {expected}, got {answer}")
    return _load(around, body, ["--h1", "-c", "8"], (), path, len(answer.body))


def _load(
    around: Round, body: bytes, flags: Sequence[str], fields: Sequence[str], path: str, answer_bytes: int
) -> Entry:
    """Run h2load again and again; each answer has so many bytes."""
    entry = Entry()
    program = shutil.which("h2load")
    assert program is not None, "h2load is not installed"
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "body"
        file.write_bytes(body)
        command = [program, "-n", str(_H2LOAD_REQUESTS), *flags, "-d", str(file)]
        for field in fields:
            command += ["-H", field]
        command.append(f"http://127.0.0.1:{around.port}{path}")
        while not around.is_over():
            entry.sent += _H2LOAD_REQUESTS
            ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
            try:
                check_report(ran.stdout, _H2LOAD_REQUESTS, answer_bytes)
            except NoFigure as error:
                # It does not say which of them.
                entry.faults += [f"h2load: {error}"] * _H2LOAD_REQUESTS
            else:
                entry.right += _H2LOAD_REQUESTS
            time.sleep(around.rng.uniform(0.1, 0.6))
    return entry


class RawRequest:
    """What h2load sends, and the size of the answer, which tritonclient has seen to be right."""

    def __init__(self, port: int) -> None:
        row = np.array([[1, 2, 3, 4]], np.int32)
        self.body = framed(infer_message("versions", row.shape, row.tobytes()))
        with InferenceServerClient(f"127.0.0.1:{port}", channel_args=_OPTIONS) as client:
            tensor = InferInput("INPUT", row.shape, "INT32")
            answer = client.infer("versions", [tensor.set_data_from_numpy(row)])
            if not np.array_equal(answer.as_numpy("OUTPUT"), row + 10):
                raise HonestError(f"versions: expected {row + 10}, got {answer.as_numpy('OUTPUT')}")
            self.answer_bytes = answer.get_response().ByteSize() + 5


def clients() -> dict[str, Callable[[Round], Entry]]:
    """The sorts of clients, by their name in the account; h2load is among them where it is installed."""
    sorts: dict[str, Callable[[Round], Entry]] = {
        "tritonclient, one call at a time": run_sync,
        "tritonclient, asyncio": run_aio,
        "raw HTTP/2": run_raw,
        "tritonclient, streams": run_streams,
        "Python models, a process of which dies": run_python,
        "decoupled models, one in an ensemble, whose process dies": run_decoupled,
        "response cache, inputs that differ by a bit": run_cached,
        ON_DEMAND: run_on_demand,
        "shared memory, regions that go and shrink": run_regions,
        "rows of any length": run_lengths,
        "texts of any length": run_texts,
        "tritonclient, sequences on streams": run_sequences,
        "REST: tritonclient.http, JSON, binary, compressed": rest_clients.run_tritonclient,
        "REST: pipelined bytes": rest_clients.run_pipelined,
        "REST: clients that leave in the middle of a request": rest_clients.run_rude,
        "REST: readers of event streams, some of which stop": rest_clients.run_streams,
    }
    return {**sorts, "h2load": run_h2load, "REST: h2load": run_h2load_http1} if shutil.which("h2load") else sorts
