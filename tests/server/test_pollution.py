"""A client that never asks the same twice costs nobody else their plan, which is the difference between 1 and 50 us.

What counts is how often a well-behaved client's requests are validated, which does not depend on how busy the machine
is. The server runs in this process, so that this can be counted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio

from tests.e2e.process import running
from tests.e2e.wire import Client, client_of
from toutates.infer import plan_cache
from toutates.infer import validation as infer_validation
from toutates.protocol.grpc_service_pb2 import ModelInferRequest, ModelInferResponse
from toutates.server.options import Options
from toutates.server.server import Server
from toutates.system.address import Address

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
#: Plans per generation in these tests.
PLANS: Final = 8


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many requests were validated, by their ids."""
    counts: Counter[str] = Counter()
    real = infer_validation.validate

    def validate(request: Any, *rest: Any) -> Any:
        counts[request.id] += 1
        return real(request, *rest)

    monkeypatch.setattr("toutates.infer.service.validate", validate)
    monkeypatch.setattr(plan_cache, "MAX_PLANS", PLANS)
    return counts


def message(identifier: str, length: int = 8, extra_raw: bool = False, **parameters: int) -> bytes:
    """A request for the model "dynamic", a row of ``length`` numbers."""
    request = ModelInferRequest(model_name="dynamic", id=identifier)
    for name, value in parameters.items():
        request.parameters[name].int64_param = value
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1, length])
    request.raw_input_contents.append(bytes(4 * length))
    if extra_raw:
        request.raw_input_contents.append(b"")
    return request.SerializeToString()


def ok(client: Client, *contents: bytes) -> None:
    for content in contents:
        assert client.call(INFER, content).status == ("0", "")


def serve_in_this_process(repository: Path, clients: Callable[[int], None]) -> None:
    """Run ``clients``, given the port, against a server of one worker."""

    async def main() -> None:
        server = Server(
            Options(
                (repository,),
                grpc_addr=Address("127.0.0.1", 0),
                http_addr=None,
                metrics_addr=None,
                load_models=("dynamic",),
                processing_cores=1,
            )
        )
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                assert server.address is not None
                try:
                    await trio.to_thread.run_sync(clients, server.address[1])
                finally:
                    server.stop()

    trio.run(main)


numbers = itertools.count(1)

#: What somebody sends once, who shall not harm the others, and how often before the others send again.
POLLUTERS: Final[dict[str, tuple[Callable[[Client], None], int]]] = {
    "ever new parameters": (lambda client: ok(client, message("junk", time=next(numbers))), 3 * PLANS),
    "ever new shapes": (lambda client: ok(client, message("junk", length=next(numbers) % 400 + 9)), 3 * PLANS),
    # Each of them is in use for a while, so that the others must be, too, now and then.
    "everything three times": (lambda client: ok(client, *[message("junk", time=next(numbers))] * 3), PLANS // 2),
    "a raw content too many": (lambda client: ok(client, message("junk", extra_raw=True)), 3),
    "other lengths": (lambda client: ok(client, message("junk" + "x" * (next(numbers) % 300))), 3 * PLANS),
}


@pytest.mark.parametrize(("pollute", "times"), POLLUTERS.values(), ids=POLLUTERS.keys())
def test_a_client_that_repeats_itself_is_validated_once_whatever_others_send(
    repository: Path, validated: Counter[str], pollute: Callable[[Client], None], times: int
) -> None:
    def clients(port: int) -> None:
        with client_of(port) as honest, client_of(port) as polluter:
            for _ in range(4):
                ok(honest, message("honest"))
            for _ in range(12):
                for _ in range(times):
                    pollute(polluter)
                ok(honest, message("honest"))

    serve_in_this_process(repository, clients)
    assert validated["honest"] == 1


def test_a_newcomer_gets_a_plan_while_others_send_junk(repository: Path, validated: Counter[str]) -> None:
    def clients(port: int) -> None:
        with client_of(port) as honest, client_of(port) as polluter:
            for _ in range(40):
                for _ in range(PLANS // 2):
                    ok(polluter, message("junk", time=next(numbers)))
                ok(honest, message("honest"))

    serve_in_this_process(repository, clients)
    assert validated["honest"] == 1
    assert validated["junk"] == 40 * PLANS // 2


def test_as_many_kinds_as_two_generations_hold_are_all_known(repository: Path, validated: Counter[str]) -> None:
    """Such as a client with many models, or many sizes of batches, in turn."""

    def clients(port: int) -> None:
        with client_of(port) as client:
            for _ in range(6):
                for kind in range(PLANS):
                    ok(client, message("honest", kind=kind))

    serve_in_this_process(repository, clients)
    assert validated["honest"] == PLANS


def test_more_kinds_of_request_than_are_remembered_are_answered(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_cache, "MAX_PLANS", PLANS)

    def clients(port: int) -> None:
        with client_of(port) as client:
            for length in [*range(1, 5 * PLANS)] * 2:
                values = np.arange(length, dtype=np.float32)
                request = ModelInferRequest.FromString(message("", length))
                request.raw_input_contents[0] = values.tobytes()
                answer = client.call(INFER, request.SerializeToString())
                response = ModelInferResponse.FromString(answer.data[5:])
                assert response.raw_output_contents[0] == (-values).tobytes()

    serve_in_this_process(repository, clients)


def anonymous_mib(pid: int) -> float:
    """Resident memory but for that of files."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) / 1_024


@pytest.mark.alone
def test_what_is_remembered_of_junk_is_bounded(repository: Path, tmp_path: Path) -> None:
    """Kinds of request as long as are remembered, each so often and with so many ids that all of it is."""
    with running(repository, tmp_path, ["--load-models", "dynamic", "--processing-cores", "1"]) as process:
        with client_of(process.port) as client:
            ok(client, message("warm"))
            grown: list[float] = []
            before = anonymous_mib(process.process.pid)
            for kind in range(1_600):
                name = "k" * 3_800 + str(kind)
                for length in (1, 1, 2, 3, 4, 5):
                    ok(client, message("i" * length, 8, False, **{name: 1}))
                if kind % 400 == 399:
                    grown.append(anonymous_mib(process.process.pid) - before)
        assert process.stop() == 0
    # A generation, the one before it and its layouts: 1,024 x 20 KiB, and 576 x 8 KiB.
    assert grown[-1] < 64, grown
