"""Restricted protocols and the limit of requests in flight, as clients meet them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.held import Runs, running_held
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import INFER, SERVICE, Tensor, call, channel_to, grpc, infer, pb, refused, request, triton
from tests.e2e.wire import Client, client_of, framed
from toutates.api.restrictions import PROTOCOLS
from toutates.infer.inflight import share

CHECK: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"
REFLECTION: Final = PROTOCOLS["reflection"]
SECRET: Final = "open=sesame: 1,001 nights"
ADMIN: Final = ("triton-grpc-protocol-admin-key", SECRET)
USER: Final = ("triton-grpc-protocol-user-key", "friend")
TEXT: Final = "This protocol is restricted, expecting header '{}'"

#: What the server restricts, and what it leaves to everybody.
ADMINS: Final = ("model-repository", "model-config", "shared-memory", "trace", "logging")
USERS: Final = ("inference", "health", "reflection")
FREE: Final = ("metadata", "statistics")
FLAGS: Final = (
    *("--load-models", "mlp", "--processing-cores", "1"),
    f"--grpc-restricted-protocol={','.join(ADMINS)}:admin-key={SECRET}",
    *("--grpc-restricted-protocol", f"{' , '.join(USERS)}:user-key=friend"),
)


@pytest.fixture(scope="module")
def guarded(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(repository, tmp_path_factory.mktemp("guarded"), FLAGS) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log
        # Neither the log nor the start-up table has secrets, given or refused.
        for secret in (SECRET, "friend", "wrong"):
            assert secret not in process.log


@pytest.fixture(scope="module")
def channel(guarded: ServerProcess) -> Iterator[Any]:
    with channel_to(guarded.address) as channel:
        yield channel


def mlp() -> Any:
    return request("mlp", Tensor.of("INPUT", "FP32", np.zeros((1, 64))))


def paths_of(groups: Sequence[str]) -> list[str]:
    """Of the unary RPCs of some groups."""
    streams = (WATCH, SERVICE + "ModelStreamInfer", *REFLECTION)
    return [path for group in groups for path in PROTOCOLS[group] if path not in streams]


def status_of(channel: Any, path: str, *metadata: tuple[str, str]) -> tuple[str, str]:
    """The status of a call with a message that means nothing much to any RPC."""
    try:
        call(channel, path, b"", metadata=metadata)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


# --- restricted protocols


def test_every_rpc_of_the_service_is_in_one_group() -> None:
    paths = [path for group in PROTOCOLS.values() for path in group]
    assert len(paths) == len(set(paths))
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert {SERVICE + method.name for method in service.methods} | {CHECK, WATCH, *REFLECTION} == set(paths)


@pytest.mark.parametrize("path", paths_of(ADMINS))
def test_a_restricted_rpc_takes_its_own_secret_and_nothing_else(channel: Any, path: str) -> None:
    refusal = ("UNAVAILABLE", TEXT.format(ADMIN[0]))
    wrong = [(), (USER,), ((ADMIN[0], USER[1]),), ((ADMIN[0], SECRET[:-1]),), ((ADMIN[0], SECRET + "x"),)]
    wrong += [(("admin-key", SECRET),), ((USER[0], SECRET),), ((ADMIN[0], ""),)]
    for metadata in wrong:
        assert status_of(channel, path, *metadata) == refusal
    assert status_of(channel, path, ADMIN) != refusal


@pytest.mark.parametrize("path", paths_of(USERS))
def test_each_group_has_a_secret_of_its_own(channel: Any, path: str) -> None:
    refusal = ("UNAVAILABLE", TEXT.format(USER[0]))
    assert status_of(channel, path) == refusal
    assert status_of(channel, path, ADMIN) == refusal
    assert status_of(channel, path, USER)[0] != "UNAVAILABLE"
    assert status_of(channel, path, ADMIN, USER)[0] != "UNAVAILABLE"


@pytest.mark.parametrize("path", paths_of(FREE))
def test_what_is_not_restricted_is_everybodys(channel: Any, path: str) -> None:
    for metadata in ((), (ADMIN,), ((ADMIN[0], "wrong"),)):
        assert status_of(channel, path, *metadata)[0] != "UNAVAILABLE"


def test_an_unknown_method_is_not_found_whatever_is_restricted(channel: Any) -> None:
    assert status_of(channel, SERVICE + "Nothing")[0] == "UNIMPLEMENTED"


def test_inference_is_answered_for_those_who_know_the_secret_and_refused_beside_them(channel: Any) -> None:
    for _ in range(3):  # what is remembered of a header block does not change the answer
        assert len(infer(channel, mlp(), metadata=[USER]).raw_output_contents[0]) == 32
        assert refused(channel, mlp()) == ("UNAVAILABLE", TEXT.format(USER[0]))
        assert refused(channel, mlp(), metadata=[(USER[0], "wrong")]) == ("UNAVAILABLE", TEXT.format(USER[0]))
        assert len(infer(channel, mlp(), metadata=[("x", "y"), USER], timeout=9).raw_output_contents[0]) == 32
        assert len(infer(channel, mlp(), metadata=[(USER[0], "wrong"), USER]).raw_output_contents[0]) == 32


def test_tritonclient_sends_the_secret(guarded: ServerProcess) -> None:
    with triton.InferenceServerClient(guarded.address) as client:
        assert client.is_server_ready(headers=dict([USER]))
        with pytest.raises(triton.InferenceServerException, match="This protocol is restricted"):
            client.is_server_ready()
        tensor = triton.InferInput("INPUT", [2, 64], "FP32")
        tensor.set_data_from_numpy(np.ones((2, 64), np.float32))
        assert client.infer("mlp", [tensor], headers=dict([USER])).as_numpy("OUTPUT").shape == (2, 8)
        assert client.get_server_metadata().name == "triton"


@pytest.mark.parametrize("path", [WATCH, SERVICE + "ModelStreamInfer", *REFLECTION])
def test_a_restricted_stream_ends_before_it_is_read(guarded: ServerProcess, path: str) -> None:
    with client_of(guarded.port) as client:
        stream = client.start(path)
        assert client.answer(stream).status == ("14", TEXT.format(USER[0]))
        # The connection goes on.
        assert client.call(CHECK, b"", [USER]).status == ("0", "")


def test_a_watch_of_somebody_who_knows_the_secret_is_answered(guarded: ServerProcess) -> None:
    with client_of(guarded.port) as client:
        stream = client.start(WATCH, [USER])
        client.send(stream, framed(b""))
        while not client.answers[stream].data:
            assert client.receive()
        assert client.answers[stream].data == framed(b"\x08\x01")


def test_a_refused_request_is_refused_by_its_headers_and_its_message_never_waited_for(guarded: ServerProcess) -> None:
    with client_of(guarded.port) as client:
        stream = client.start(INFER, [("grpc-timeout", "10S")])
        assert client.answer(stream).status == ("14", TEXT.format(USER[0]))


# --- requests in flight

SHARE: Final = 3
REFUSAL: Final = (
    "8",
    "the server has all the requests in flight that it may: --max-inflight-requests is 6, "
    "3 of them on the worker that has this connection; try again later, or raise the flag",
)


@pytest.fixture(scope="module")
def limited(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Runs]]:
    """A server of two workers that takes six requests at a time, and the runs of the model "slow"."""
    flags = ["--max-inflight-requests", "6", "--processing-cores", "2", "--load-models", "slow,mlp,gather,texts"]
    with running_held(repository, tmp_path_factory.mktemp("limited"), flags) as (process, runs):
        yield process, runs
        assert process.stop() == 0
        assert "Traceback" not in process.log


def slow(*steps: int) -> bytes:
    """A request of a row for each number of steps. A batch has two rows, and the model's ring two batches."""
    return serialized("slow", "INT64", *steps)


def serialized(model: str, datatype: str, *values: int) -> bytes:
    message: bytes = request(model, Tensor.of("INPUT", datatype, [[value] for value in values])).SerializeToString()
    return message


def start(client: Client, message: bytes) -> int:
    stream = client.start(INFER)
    client.send(stream, framed(message))
    return stream


def assert_room_for_exactly_the_share(client: Client, runs: Runs) -> None:
    with runs.held():
        accepted = [start(client, slow(1)) for _ in range(SHARE)]
        refused = [start(client, message) for message in (slow(1), mlp().SerializeToString()) * 2]
        # At once: of any model, and while those that are accepted wait.
        assert [client.answer(stream).status for stream in refused] == [REFUSAL] * 4
        assert not any(client.answers[stream].ended for stream in accepted)
    assert [client.answer(stream).status[0] for stream in accepted] == ["0"] * SHARE


def test_requests_above_the_share_are_refused_at_once_and_the_room_comes_back(
    limited: tuple[ServerProcess, Runs],
) -> None:
    process, runs = limited
    with client_of(process.port) as client:
        for _ in range(2):
            assert_room_for_exactly_the_share(client, runs)


def call_until_there_is_room(client: Client, message: bytes) -> None:
    """What was cancelled and what expired leaves the ring, and the count, once its batch has run."""
    deadline = time.monotonic() + 20
    while (status := client.call(INFER, message).status)[0] != "0":
        assert status[0] == "8", status
        assert time.monotonic() < deadline


def test_every_way_for_a_request_to_end_gives_its_room_back(limited: tuple[ServerProcess, Runs]) -> None:
    process, runs = limited
    with client_of(process.port) as client:
        for _ in range(2 * SHARE):
            # Answered, in one part and in two; failed in ONNX Runtime; refused for each of several reasons.
            call_until_there_is_room(client, slow(0, 0, 1))
            assert client.call(INFER, mlp().SerializeToString()).status[0] == "0"
            assert client.call(INFER, serialized("gather", "INT64", 99)).status[0] == "13"
            assert client.call(INFER, serialized("nothing", "INT64", 1)).status[0] == "5"
            assert client.call(INFER, slow(*[1] * 5)).status[0] == "3"
            assert client.call(INFER, b"\xff").status[0] == "13"
            # Cancelled; expired.
            client.connection.reset_stream(start(client, slow(1)))
            with runs.held():
                stream = client.start(INFER, [("grpc-timeout", "5m")])
                client.send(stream, framed(slow(1)))
                assert client.answer(stream).status[0] in ("4", "8")
        call_until_there_is_room(client, slow(0, 0, 0))
        assert_room_for_exactly_the_share(client, runs)


def test_fewer_requests_than_workers_are_a_mistake(repository: Path, tmp_path: Path) -> None:
    flags = ["--max-inflight-requests", "2", "--processing-cores", "3"]
    problem = r"--max-inflight-requests: is split over 3 workers.*\(got 2\); raise it to 3 or more"
    with pytest.raises(AssertionError, match=problem), running(repository, tmp_path, flags):
        pass


@pytest.mark.parametrize(("total", "workers"), [(1, 1), (7, 3), (12, 4), (100_000, 7)])
def test_the_shares_add_up_to_the_whole_and_differ_by_one_at_most(total: int, workers: int) -> None:
    shares = [share(total, workers, number) for number in range(workers)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1
