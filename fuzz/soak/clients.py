"""The clients of a soak beside the storm's: tritonclient one call at a time and with asyncio, raw HTTP/2, h2load."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
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
from fuzz.soak.account import Entry
from fuzz.soak.questions import Question, Questions

__all__ = ["Round", "clients"]

_PATIENCE_S: Final = 30.0
_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1)]
#: Calls under way at once on the connection of the asyncio client.
_TASKS: Final = 6
_H2LOAD_REQUESTS: Final = 2_000


class Round:
    """What clients need to know of the round they are in.

    Args:
        port: of the server.
        until: when it is over, ``time.monotonic``.
        rng: of this client alone.
    """

    def __init__(self, port: int, questions: Questions, until: float, rng: random.Random) -> None:
        self.port = port
        self.questions = questions
        self.until = until
        self.rng = rng

    def is_over(self) -> bool:
        """Whether it is."""
        return time.monotonic() >= self.until


def _tensors(question: Question) -> list[Any]:
    tensors = []
    for name, array in question.inputs.items():
        tensor = InferInput(name, array.shape, question.datatypes[name])
        tensors.append(tensor.set_data_from_numpy(array))
    return tensors


def _judge(entry: Entry, question: Question, answer: Any, error: Any, may_also: str = "") -> None:
    if error is None:
        if difference := question.difference(answer):
            entry.faults.append(difference)
        else:
            entry.right += 1
        return
    status = str(error.status()).removeprefix("StatusCode.")
    if status in question.statuses or status == may_also:
        entry.refused[status] += 1
    else:
        entry.faults.append(f"{question.model}: {error}")


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
                timeout_s = around.rng.expovariate(1 / 0.003) if hurried else _PATIENCE_S
                entry.sent += 1
                answer: Any = None
                error: Any = None
                try:
                    answer = client.infer(
                        question.model, _tensors(question), question.version, client_timeout=timeout_s
                    )
                except InferenceServerException as raised:
                    error = raised
                _judge(entry, question, answer, error, "DEADLINE_EXCEEDED" if hurried else "")
                time.sleep(around.rng.uniform(0, 0.004))
    return entry


def run_aio(around: Round) -> Entry:
    """tritonclient with asyncio, in a process of its own: grpcio closes its sockets late, once their loop is gone."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(run_aio_here, around).result()


def run_aio_here(around: Round) -> Entry:
    """Calls at once on each connection, of which some are cancelled or have little time."""
    entry = Entry()

    async def ask(client: Any) -> None:
        question = around.questions.choose(around.rng)
        fate = around.rng.random()
        timeout_s = around.rng.expovariate(1 / 0.003) if fate < 0.1 else _PATIENCE_S
        entry.sent += 1
        call = asyncio.ensure_future(
            client.infer(question.model, _tensors(question), question.version, client_timeout=timeout_s)
        )
        if 0.1 < fate < 0.2:
            await asyncio.sleep(around.rng.expovariate(1 / 0.002))
            call.cancel()
        try:
            _judge(entry, question, await call, None)
        except asyncio.CancelledError:
            entry.given_up += 1
        except InferenceServerException as error:
            _judge(entry, question, None, error, "DEADLINE_EXCEEDED" if fate < 0.1 else "")

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
    entry = Entry()
    program = shutil.which("h2load")
    assert program is not None, "h2load is not installed"
    client = RawRequest(around.port)
    with tempfile.TemporaryDirectory() as scratch:
        body = Path(scratch) / "body"
        body.write_bytes(client.body)
        command = [program, "-n", str(_H2LOAD_REQUESTS), "-c", "2", "-m", "8", "-d", str(body)]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        command += [f"http://127.0.0.1:{around.port}{INFER}"]
        while not around.is_over():
            entry.sent += _H2LOAD_REQUESTS
            ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * _PATIENCE_S, check=False)
            try:
                check_report(ran.stdout, _H2LOAD_REQUESTS, client.answer_bytes)
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
    }
    return {**sorts, "h2load": run_h2load} if shutil.which("h2load") else sorts
