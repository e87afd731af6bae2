"""Inputs and outputs in shared memory that are read and written beside the worker."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

from tests.infer.calls import KnownCall
from tests.infer.shared import FOLDER, SIZE, Shared, Side, is_used
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Split, Timing
from toutates.infer import shared_outputs, shared_path, shared_tensors
from toutates.infer.inflight import Inflight
from toutates.infer.regions import Kind, Regions
from toutates.infer.shared_outputs import SharedOutputs
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.system.errors import (
    ExecutionFailed,
    InvalidRequest,
    Overloaded,
)


@pytest.fixture
def side(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> Side:
    """The thread does nothing until it is told to. 32 bytes are read or written at once, and 64 may wait."""
    for module in (shared_path, shared_outputs):
        monkeypatch.setattr(module, "AT_ONCE_BYTES", 32)
        monkeypatch.setattr(module, "REQUEST_BYTES", 0)
    monkeypatch.setattr(shared_path, "MOST_ASIDE_BYTES", 64)
    shared.side.holds = True
    return shared.side


def test_no_worker_makes_a_call_on_an_object_of_a_client(
    shared: Shared, side: Side, regions: Regions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these may take as long as the object's owner likes."""
    beside = threading.Event()

    def guarded(call: Any) -> Any:
        def ask(*arguments: Any) -> Any:
            assert beside.is_set(), "a worker waits for a client"
            return call(*arguments)

        return ask

    for name in ("open", "fstat", "lseek", "preadv", "pwrite", "close"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))
    for goes in (False, True):
        call = shared.ask(shared.message())
        beside.set()
        side.run()
        beside.clear()
        shared.port.run()
        before = call.open
        if goes:
            beside.set()
            regions.unregister(Kind.SYSTEM, "r")  # in use; it goes with the request
            beside.clear()
        [write] = side.jobs
        side.jobs = []
        beside.set()
        answer = write()
        beside.clear()
        answer()
        assert (before, call.open) == (True, False)
        beside.set()
    assert regions.status(Kind.SYSTEM, "") == []


def test_requests_of_a_round_and_a_connection_are_read_and_written_together(
    shared: Shared, side: Side, regions: Regions, key: str
) -> None:
    calls: list[KnownCall] = [*shared.ask_together(*[shared.message() for _ in range(3)])]
    assert len(side.jobs) == 2, "32 bytes are read at once"
    calls.append(shared.ask(shared.message()))
    side.run()
    port = shared.port
    assert (len(port.added), port.commits) == (4, 3)
    port.run()
    assert all(call.open for call in calls)
    assert len(side.jobs) == 3
    side.run()
    assert not any(call.open for call in calls)
    assert written(key, 1)
    assert not is_used(regions)


def test_inputs_are_read_beside_the_worker(shared: Shared, side: Side, regions: Regions, key: str) -> None:
    calls = [shared.ask(shared.message(rows=2)), shared.ask(shared.message())]
    port = shared.port  # a refusal opens another one, which counts it
    assert not port.added
    with pytest.raises(Overloaded, match="48 bytes of inputs in shared memory wait to be read, and 64 is the most"):
        shared.ask(shared.message(rows=3))
    side.run()
    assert [added.rows for added in port.added] == [2, 1]
    assert port.commits == 2
    assert port.added[0].inputs == [(FOLDER / key).read_bytes()[:32]]
    port.run()
    side.run()
    assert not any(call.open for call in calls)
    assert not is_used(regions)


def test_inputs_of_the_message_are_counted_with_those_in_shared_memory(
    shared: Shared, side: Side, regions: Regions, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tensors, "STEP_BYTES", 20)
    monkeypatch.setattr(shared_path, "MOST_ASIDE_BYTES", 200)
    mixed = Shared(regions, names="AB")
    mixed.side = mixed.worker.objects = side  # type: ignore[attr-defined]

    def message(rows: int, *, is_read: bool = True) -> ModelInferRequest:
        message = mixed.message(rows=rows)
        if not is_read:
            message.inputs[0].parameters.clear()
            message.raw_input_contents.append(bytes(16 * rows))
        message.inputs.add(name="B", datatype="INT32", shape=[rows, 4])
        message.raw_input_contents.append(bytes(range(16 * rows)))
        return message

    mixed.ask_together(message(1), message(1))
    assert len(side.jobs) == 2, "32 bytes are read at once, and each has more"
    side.run()
    mixed.ask(message(3))
    with pytest.raises(Overloaded, match="160 bytes of inputs"):  # B is behind 64 bytes, and in its message until then
        mixed.ask(message(1))
    port = mixed.servable.ports[0]
    assert len(port.added) == 2
    side.run()
    assert port.added[-1].inputs == [(FOLDER / key).read_bytes()[:48], bytes(range(48))]
    mixed.ask(message(2, is_read=False))
    assert len(port.added) == 3, "large contents are copied beside the worker"
    side.run()
    assert port.added[-1].inputs == [bytes(32), bytes(range(32))]
    mixed.bound(100)
    assert mixed.refusal(message(3))[1].startswith("the inputs of a request with shared memory have 112 bytes")
    port.run()
    side.run()
    assert not is_used(regions)


def test_a_version_stays_until_the_inputs_for_it_are_read(shared: Shared, side: Side, regions: Regions) -> None:
    call = shared.ask(shared.message(rows=2))
    freed: list[None] = []
    port = shared.port
    shared.table = shared.table_of(shared.version_of(shared.servable, 2))
    shared.service.let_go()
    shared.version.calls.close(lambda: freed.append(None))
    assert not freed
    side.run()
    assert freed
    port.run()
    side.run()
    assert call.response.model_version == "1"
    assert not is_used(regions)


@pytest.mark.parametrize("refused", [False, True])
def test_inputs_that_get_into_no_batch_fail_their_request(
    shared: Shared, side: Side, regions: Regions, key: str, refused: bool
) -> None:
    shared.ask(shared.message(rows=2))
    port = shared.port
    if refused:
        port.refusal = Overloaded("full")
    else:
        os.truncate(FOLDER / key, 8)
    side.run()
    [(_, error, text)] = shared.transport.failed
    assert (error, text) == (Overloaded, "full") if refused else (error is InvalidRequest and "8 are left" in text)
    assert not is_used(regions)
    port.refusal = None
    (FOLDER / key).write_bytes(bytes(SIZE))
    shared.ask(shared.message(rows=2))
    side.run()
    assert [added.rows for added in port.added] == [2]


def test_a_bug_on_the_way_of_inputs_costs_their_request_alone(shared: Shared, side: Side, regions: Regions) -> None:
    shared.ask(shared.message(rows=2))
    shared.port.refusal = ValueError("a bug")
    side.run()
    [(_, error, text)] = shared.transport.failed
    assert (error, text) == (ExecutionFailed, "internal error")
    assert not is_used(regions)


def written(key: str, rows: int) -> bool:
    """Whether the outputs of so many rows are what the model makes of the inputs."""
    whole = np.frombuffer((FOLDER / key).read_bytes(), np.int32)
    return bool((whole[SIZE // 8 : SIZE // 8 + 4 * rows] == -whole[: 4 * rows]).all())


def test_outputs_are_written_beside_the_worker(shared: Shared, side: Side, regions: Regions, key: str) -> None:
    large, small = shared.ask(shared.message(rows=3)), shared.ask(shared.message())
    side.run()
    (FOLDER / key).write_bytes(bytes(range(256)) * (SIZE // 512) + bytes(SIZE // 2))
    shared.port.run()
    assert large.open
    assert small.open
    assert is_used(regions)
    assert not written(key, 3)
    shared.ask(shared.message())
    side.run()
    shared.port.run()
    text = (
        "requests with 16 bytes of outputs in shared memory are under way, 16 more are asked for, and 31 is the most; "
        "try again later"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_tensors, "MOST_OUTPUT_BYTES", 31)
        assert shared.refusal(shared.message()) == (Overloaded, text)
    regions.unregister(Kind.SYSTEM, "r")
    assert is_used(regions)
    side.run()
    assert list(large.response.raw_output_contents) == [b""]
    assert written(key, 3)
    assert regions.status(Kind.SYSTEM, "") == []


@pytest.mark.parametrize("left", [False, True])
def test_outputs_that_are_not_written_let_go(
    shared: Shared, side: Side, regions: Regions, key: str, left: bool
) -> None:
    call = shared.ask(shared.message(rows=2))
    side.run()
    shared.port.run()
    if left:
        call.open = False
        (FOLDER / key).write_bytes(bytes(SIZE))
    else:
        os.truncate(FOLDER / key, SIZE // 2)
    side.run()
    assert not is_used(regions)
    assert not any((FOLDER / key).read_bytes()[SIZE // 2 :])
    assert [error for _, error, _ in shared.transport.failed] == ([] if left else [ExecutionFailed])
    counters = shared.port.counters
    assert (counters.cancel, counters.fail) == (int(left), int(not left))


def test_a_version_stays_until_its_outputs_are_written(shared: Shared, side: Side, regions: Regions) -> None:
    call = shared.ask(shared.message(rows=2))
    side.run()
    shared.port.run()
    freed: list[None] = []
    shared.version.calls.close(lambda: freed.append(None))
    assert not freed
    side.run()
    assert freed
    assert not call.open


def test_outputs_are_in_flight_until_they_are_written(regions: Regions, key: str, side: Side) -> None:
    inflight = Inflight(1, 1)
    limited = Shared(regions, inflight=inflight)
    worker: Any = limited.worker
    worker.objects = side
    limited.ask(limited.message(rows=2))
    side.run()
    limited.port.run()
    assert inflight.count == 1
    side.run()
    assert inflight.count == 0


@pytest.mark.parametrize("failing", [(), (0,), (1,), (0, 1)])
def test_outputs_of_two_batches_are_written_with_the_last_of_them(
    shared: Shared, side: Side, regions: Regions, key: str, failing: tuple[int, ...]
) -> None:
    call = shared.ask(shared.message(rows=2))
    side.run()
    [added] = shared.port.added
    split = Split(2)
    for part in (1, 0):
        assert is_used(regions)
        error = ExecutionFailed("no") if part in failing else None
        array = np.full(16, part + 1, np.uint8)
        outputs = None if error else Outputs((array,), (16,), ((4,),), in_arrays=True)
        pending: list[PendingRequest] = [(added.context, 0, 1, (split, part))]
        shared.port.consumer.finish_here(BatchResult(pending, outputs, error, Timing(1, 2, 3, 4)))
    assert len(side.jobs) == (not failing)
    assert not shared.service._shared_outputs._parts
    side.run()
    assert not is_used(regions)
    assert not call.open
    if not failing:
        assert (FOLDER / key).read_bytes()[SIZE // 2 : SIZE // 2 + 32] == b"\1" * 16 + b"\2" * 16


def test_what_a_call_gets_behind_outputs_comes_behind_them(shared: Shared, side: Side, key: str) -> None:
    """A decoupled version gives a call any number of results, and those that end together the last of them as one."""
    for _ in range(2):
        shared.ask(shared.message(rows=2))
    side.run()
    contexts = [added.context for added in shared.port.added]
    seen: list[tuple[bytes, list[Any], bool]] = []

    def finish(result: BatchResult) -> None:
        place = (FOLDER / key).read_bytes()[SIZE // 2 :][:1]
        seen.append((place, [contexts.index(request[0]) for request in result.pending], result.taken is not None))

    give = SharedOutputs(shared.worker).before(finish)  # type: ignore[arg-type]
    for value, size in ((1, 32), (2, 16)):
        outputs = Outputs((bytes([value]) * size,), (16,), ((4,),))
        result = BatchResult([(contexts[0], 0, size // 16, None)], outputs, None, Timing(1, 2, 3, 4))
        result.more, result.taken = True, list
        give(result)
    assert not seen
    end = BatchResult([(context, 0, 2, None) for context in contexts], None, None, Timing(1, 2, 3, 4))
    end.taken = list
    give(end)
    assert [(who, taken) for _, who, taken in seen] == [([1], True)]
    side.run()
    assert seen[1:] == [(b"\1", [0], True), (b"\2", [0], True), (b"\2", [0], False)]
