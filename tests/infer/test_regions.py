"""Regions of shared memory: who uses them, how many there may be, and objects that change under them."""

from __future__ import annotations

import mmap
import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from tests.fake_cuda import FakeCuda
from tests.infer.support import PEER, KnownCall, Served, signature_of
from tests.waiting import wait_until
from toutates.access.callers import Caller
from toutates.access.gate import Era
from toutates.access.rules import AccessRules
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Split, Timing
from toutates.h2grpc import Limits
from toutates.h2grpc.message_memory import MemoryPool
from toutates.infer import service, shared_outputs, shared_path, shared_tensors
from toutates.infer.charging import ChargingInferService
from toutates.infer.inflight import Inflight
from toutates.infer.regions import Kind, Place, Regions, own_name
from toutates.infer.shared_outputs import SharedOutputs
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.system.cuda import Cuda
from toutates.system.errors import (
    AlreadyExists,
    ExecutionFailed,
    InvalidRequest,
    Overloaded,
    UnknownModel,
    Unsupported,
)

SIZE: Final = 65_536
FOLDER: Final = Path("/dev/shm")


@pytest.fixture
def key() -> Iterator[str]:
    """An object of SIZE bytes."""
    name = f"toutates-test-{os.getpid()}"
    path = FOLDER / name
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    yield name
    path.unlink()


@pytest.fixture
def regions() -> Iterator[Regions]:
    regions = Regions(allowed=True)
    yield regions
    regions.close()


def open_files(key: str) -> int:
    """How often this process has the object open."""
    path = os.stat(FOLDER / key)
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, by whatever else runs here
            found += os.path.samestat(os.stat(f"/proc/self/fd/{name}"), path)
    return found


def test_a_region_goes_with_the_last_request_that_uses_it(regions: Regions, key: str) -> None:
    regions.register_system("r", key, 0, SIZE)
    assert open_files(key) == 1
    twice = [Place("r", 0, 16), Place("r", 16, 16)]
    held = [regions.acquire(twice), regions.acquire(twice[:1])]
    regions.unregister(Kind.SYSTEM, "r")
    regions.unregister(Kind.SYSTEM, "")
    for used in held:
        with pytest.raises(AlreadyExists):
            regions.register_system("r", key, 0, SIZE)
        assert [one.name for one in regions.status(Kind.SYSTEM, "")] == ["r"]
        regions.release(used)
    assert regions.status(Kind.SYSTEM, "") == []
    wait_until(lambda: open_files(key) == 0)  # another thread closes it
    with pytest.raises(UnknownModel):
        regions.acquire(twice)


def test_a_request_that_lacks_one_region_uses_none(regions: Regions, key: str) -> None:
    regions.register_system("r", key, 0, SIZE)
    with pytest.raises(UnknownModel, match="'none'"):
        regions.acquire([Place("r", 0, 16), Place("none", 0, 16)])
    regions.unregister(Kind.SYSTEM, "r")
    assert regions.status(Kind.SYSTEM, "") == []


def test_regions_are_bounded_in_number_and_in_bytes(key: str) -> None:
    regions = Regions(allowed=True, most=3, most_bytes=3 * SIZE - 1)
    regions.register_system("a", key, 0, SIZE)
    regions.register_system("b", key, 0, SIZE)
    with pytest.raises(Overloaded, match="131072 are registered, and 196607 is the most"):
        regions.register_system("c", key, 0, SIZE)
    regions.register_system("c", key, 0, 1)
    with pytest.raises(Overloaded, match="3 are registered, and that is the most"):
        regions.register_system("d", key, 0, 1)
    assert open_files(key) == 3
    regions.unregister(Kind.SYSTEM, "a")
    regions.register_system("d", key, 0, SIZE)
    for name, what in (("n" * 513, "name"), ("e", "key")):
        with pytest.raises(InvalidRequest, match=f"whose {what} has 513 bytes, at most 512 are taken"):
            regions.register_system(name, "k" * 513, 0, 1)
    regions.close()
    assert open_files(key) == 0


def test_an_owner_has_its_share_whatever_others_hold_and_hears_nothing_of_them(key: str) -> None:
    holders = frozenset("ab")
    regions = Regions(allowed=True, most=8, most_bytes=SIZE, holders=lambda: holders)
    for at in range(6):
        regions.register_system(own_name("a", f"{at}"), key, 0, 1)
    with pytest.raises(Overloaded, match="'z': this caller has 6, of 6 bytes, and there is no room for more now"):
        regions.register_system(own_name("a", "z"), key, 0, 1)
    with pytest.raises(Overloaded, match="'z': this caller has 0, of 0 bytes"):
        regions.register_system(own_name("c", "z"), key, 0, SIZE)  # who has no share
    with pytest.raises(Overloaded, match=f"'z' of {SIZE} bytes: this caller has 0, of 0 bytes"):
        regions.register_system(own_name("b", "z"), key, 0, SIZE)
    for at in range(2):
        regions.register_system(own_name("b", f"{at}"), key, 0, SIZE // 8)
    regions.unregister(Kind.SYSTEM, own_name("a", "0"))
    regions.register_system(own_name("a", "z"), key, 0, 1)
    assert open_files(key) == 8
    regions.close()
    assert open_files(key) == 0


def test_nothing_is_registered_unless_it_is_allowed() -> None:
    with pytest.raises(Unsupported):
        Regions().refuse_unless_allowed()
    assert Regions().extensions == ()
    assert Regions(allowed=True).extensions == ("system_shared_memory",)


def test_places_are_judged_as_exact_arithmetic_judges_them(regions: Regions, key: str) -> None:
    """Numbers near every edge, with the answers that Triton's order of checks gives."""
    regions.register_system("r", key, 4096, SIZE - 4096)
    size = SIZE - 4096
    numbers = [edge + near for edge in (0, size, 2**31, 2**32, 2**63, 2**64) for near in (-2, -1, 0, 1)]
    numbers = [number for number in numbers if 0 <= number < 2**64]
    rng = random.Random(4)
    for _ in range(2_000):
        offset, length = rng.choice(numbers), rng.choice(numbers)
        place = Place("r", offset, length)
        text = ""
        try:
            regions.check(place)
        except InvalidRequest as error:
            text = str(error)
        if offset >= size:
            wanted = "Invalid offset for"
        elif offset + length >= 2**64:
            wanted = "Integer overflow detected: byte_size "
        elif offset + length > size:
            wanted = "Invalid offset + byte size for"
        else:
            wanted = ""
        assert text.startswith(wanted)
        assert bool(text) == bool(wanted)


def test_an_object_that_is_cut_while_it_is_used_fails_requests_and_nothing_else(regions: Regions, key: str) -> None:
    """Somebody shrinks the object and makes it whole again, over and over: a mapping would end this process."""
    regions.register_system("r", key, 0, SIZE)
    over = threading.Event()

    def cut() -> None:
        descriptor = os.open(FOLDER / key, os.O_RDWR)
        while not over.is_set():
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, SIZE)
        os.close(descriptor)

    thread = threading.Thread(target=cut)
    thread.start()
    place = Place("r", 0, SIZE)
    seen: set[type[Any] | None] = set()
    buffer = memoryview(bytearray(SIZE))
    texts: set[str] = set()

    def use() -> bool:
        for reads in (True, False):
            try:
                if reads:
                    regions.read(place, buffer, "X")
                else:
                    regions.write(place, [buffer], "X")
                seen.add(None)
            except (InvalidRequest, ExecutionFailed) as error:
                seen.add(type(error))
                texts.add(str(error))
        return len(seen) == 3

    try:
        wait_until(use, pause_s=0)
    finally:
        over.set()
        thread.join()
    assert all("has become smaller since it was registered" in text for text in texts)
    assert seen == {None, InvalidRequest, ExecutionFailed}


# --- requests


class Side:
    """The thread beside a worker: does its jobs at once, or when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []
        self.holds = False

    def put(self, connection: object, job: Any) -> None:
        self.jobs.append(job)
        if not self.holds:
            self.run()

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()()


class Connection:
    """Answers the calls that came on it."""

    def reply(self, call: KnownCall, parts: Sequence[Any], length: int) -> None:
        KnownCall.reply(call, call, parts, length)


@dataclass(eq=False)
class ConnectedCall(KnownCall):
    connection: Any = None

    @property
    def responder(self) -> Any:
        return self.connection


class Shared(Served):
    """A model "m" of one input and one output of four INT32, whose requests have both in a region."""

    def __init__(self, regions: Regions, inflight: Inflight | None = None, names: str = "A") -> None:
        super().__init__(signature_of(*names), regions=regions, inflight=inflight)
        worker: Any = self.worker
        worker.limits, worker.message_memory = Limits(max_message_size=4_096), MemoryPool()
        worker.objects = self.side = Side()
        self.round_end: list[Any] = []
        worker.at_round_end = self.round_end.append

    def ask(self, message: ModelInferRequest | bytes) -> KnownCall:
        call = super().ask(message)
        self.end_round()
        return call

    def end_round(self) -> None:
        while self.round_end:
            self.round_end.pop()()

    def ask_together(self, *messages: ModelInferRequest) -> list[ConnectedCall]:
        """Requests of one connection in one round."""
        connection, calls = Connection(), []
        for message in messages:
            data = message.SerializeToString()
            calls.append(ConnectedCall(data, 0, len(data), connection=connection))
            self.handle(calls[-1])
        self.end_round()
        return calls

    def message(self, identifier: str = "x", rows: int = 1) -> ModelInferRequest:
        message = ModelInferRequest(model_name="m", id=identifier)
        tensor = message.inputs.add(name="A", datatype="INT32", shape=[rows, 4])
        output = message.outputs.add(name="out0")
        for parameters, offset in ((tensor.parameters, 0), (output.parameters, SIZE // 2)):
            parameters["shared_memory_region"].string_param = "r"
            parameters["shared_memory_byte_size"].int64_param = 16 * rows
            parameters["shared_memory_offset"].int64_param = offset
        return message


def is_used(regions: Regions) -> bool:
    [region] = regions.status(Kind.SYSTEM, "r")
    return bool(region.uses)


@pytest.fixture
def shared(regions: Regions, key: str) -> Shared:
    regions.register_system("r", key, 0, SIZE)
    return Shared(regions)


def test_requests_are_their_callers_whether_or_not_their_inputs_are_read(
    regions: Regions, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.infer.support.InferService", ChargingInferService)
    gate: Any = SimpleNamespace(caller=None, caller_of_head=lambda head: gate.next)
    monkeypatch.setattr(ChargingInferService, "gate", gate, raising=False)
    monkeypatch.setattr(KnownCall, "head", None, raising=False)
    shared = Shared(regions)
    callers = [Caller(f"key {name}", frozenset({"inference"})) for name in ("one", "two")]
    callers.append(Era(AccessRules(anonymous=frozenset({"inference"}))).anonymous)
    for caller in callers:
        regions.register_system(own_name(caller.owner, "r"), key, 0, SIZE)
    for has_input in (True, True, False):
        for gate.next in callers:
            message = shared.message()
            if not has_input:
                message.inputs[0].parameters.clear()
                message.raw_input_contents.append(bytes(16))
            shared.ask(message)
    assert shared.port.callers == ["key one", "key two", PEER] * 3


def test_a_request_uses_its_region_until_it_is_answered(shared: Shared, regions: Regions, key: str) -> None:
    for _ in range(3):
        call = shared.ask(shared.message())
        assert is_used(regions)
        shared.port.run()
        assert not is_used(regions)
        assert list(call.response.raw_output_contents) == [b""]
        assert call.response.id == "x"
    assert shared.service.counters.parsed == 1
    content = (FOLDER / key).read_bytes()
    given = memoryview(content)[:16].cast("i")
    assert memoryview(content)[SIZE // 2 : SIZE // 2 + 16].cast("i").tolist() == [-number for number in given]


def test_a_request_like_the_last_is_not_scanned_and_its_places_are_judged_again(
    shared: Shared, regions: Regions, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(identifier: str) -> None:
        call = shared.ask(shared.message(identifier))
        [port] = [one for one in shared.servable.ports if one.added]  # refusals are counted by another one
        port.run()
        assert call.response.id == identifier
        content = memoryview((FOLDER / key).read_bytes())
        given, made = content[:16].cast("i"), content[SIZE // 2 : SIZE // 2 + 16].cast("i")
        assert made.tolist() == [-number for number in given]

    def refuse(*_: object) -> None:
        raise AssertionError("it was scanned")

    ask("x")
    ask("y")
    with monkeypatch.context() as patch:
        patch.setattr(service, "scan", refuse)
        ask("z")
        regions.unregister(Kind.SYSTEM, "r")
        assert shared.refusal(shared.message("z"))[0] is UnknownModel
        regions.register_system("r", key, 0, SIZE // 2)  # its output is behind the end
        assert shared.refusal(shared.message("z")) == (InvalidRequest, "Invalid offset for shared memory region: 'r'")
        assert not is_used(regions)
        regions.unregister(Kind.SYSTEM, "r")
        regions.register_system("r", key, 0, SIZE)
        (FOLDER / key).write_bytes(bytes(range(1, 256)) * 256 + bytes(256))
        ask("z")
        assert not is_used(regions)
        shared.table = shared.table_of(shared.version_of(shared.servable, 2))
        with pytest.raises(AssertionError, match="it was scanned"):
            shared.ask(shared.message("z"))
    ask("z")
    assert shared.service.counters.parsed == 2


def test_an_input_of_the_request_may_have_its_output_in_a_region(shared: Shared, regions: Regions, key: str) -> None:
    message = shared.message()
    message.inputs[0].parameters.clear()
    message.raw_input_contents.append(bytes(range(16)))
    for at in range(3):
        message.raw_input_contents[0] = bytes(range(at, at + 16))
        shared.ask(message)
        shared.port.run()
        made = memoryview((FOLDER / key).read_bytes())[SIZE // 2 : SIZE // 2 + 16].cast("i")
        assert made.tolist() == [-number for number in memoryview(message.raw_input_contents[0]).cast("i")]
        assert not is_used(regions)


def test_of_places_in_two_regions_one_may_have_moved(regions: Regions, key: str) -> None:
    for name in "ab":
        regions.register_system(name, key, 0, SIZE)
    places = [Place("a", 0, 16), Place("b", SIZE - 16, 16)]
    known = regions.acquire(places)
    assert regions.acquire(places, known) is known
    for _ in range(2):
        regions.release(known)
    regions.unregister(Kind.SYSTEM, "b")
    with pytest.raises(UnknownModel):
        regions.acquire(places, known)
    regions.register_system("b", key, mmap.PAGESIZE, SIZE - mmap.PAGESIZE)
    with pytest.raises(InvalidRequest):
        regions.acquire(places, known)
    assert [one.uses for one in regions.status(Kind.SYSTEM, "")] == [0, 0]
    regions.unregister(Kind.SYSTEM, "b")
    regions.register_system("b", key, 0, SIZE)
    moved = regions.acquire(places, known)
    assert [one.uses for one in moved] == [1, 1]
    assert list(moved) == regions.status(Kind.SYSTEM, "")
    regions.release(moved)
    assert [one.uses for one in moved] == [0, 0]


@pytest.mark.parametrize("left", [False, True])
def test_a_request_that_fails_or_whose_caller_left_lets_go(shared: Shared, regions: Regions, left: bool) -> None:
    call = shared.ask(shared.message())
    call.open = not left
    shared.port.finish(None, ExecutionFailed("no"))
    assert not is_used(regions)


def test_a_request_that_the_port_refuses_lets_go(shared: Shared, regions: Regions) -> None:
    shared.ask(shared.message())
    shared.port.run()
    shared.port.refusal = Overloaded("full")
    shared.ask(shared.message())
    assert [told[1:] for told in shared.transport.failed] == [(Overloaded, "full")]
    assert not is_used(regions)


@pytest.mark.parametrize("failing", [(), (0,), (1,), (0, 1)])
def test_a_request_in_two_batches_lets_go_with_the_last_of_them(
    shared: Shared, regions: Regions, failing: tuple[int, ...]
) -> None:
    call = shared.ask(shared.message(rows=2))
    [added] = shared.port.added
    split = Split(2)
    for part in (1, 0):
        assert is_used(regions)
        error = ExecutionFailed("no") if part in failing else None
        outputs = None if error else Outputs((bytes(16),), (16,), ((4,),), True)
        pending: list[PendingRequest] = [(added.context, 0, 1, (split, part))]
        shared.port.consumer.finish_here(BatchResult(pending, outputs, error, Timing(1, 2, 3, 4)))
    assert not is_used(regions)
    assert not call.open


def test_inputs_are_no_larger_than_messages_may_be(shared: Shared, regions: Regions) -> None:
    kind, text = shared.refusal(shared.message(rows=512))
    assert kind is InvalidRequest
    assert (
        text
        == "the inputs of a request with shared memory have 8192 bytes, at most 4096 are taken (--limit message_size)"
    )
    assert not is_used(regions)


def test_what_is_read_or_written_half_lets_go(shared: Shared, regions: Regions, key: str) -> None:
    shared.ask(shared.message())
    shared.port.run()
    os.truncate(FOLDER / key, SIZE // 2)
    shared.ask(shared.message())
    shared.port.run()
    os.truncate(FOLDER / key, 8)
    shared.ask(shared.message())
    (_, written, _), (_, read, text) = shared.transport.failed
    assert (written, read) == (ExecutionFailed, InvalidRequest)
    assert "of which 8 are left" in text
    assert not is_used(regions)


# --- the thread beside the worker


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
    mixed.worker.limits = Limits(max_message_size=100)  # type: ignore[attr-defined]
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
    limited = Shared(regions, inflight)
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


# --- memory of GPUs


def test_what_cuda_refuses_fails_the_request_and_names_tensor_and_gpu() -> None:
    client, gpus = FakeCuda(), FakeCuda()
    client.cudaSetDevice(1)
    handle = client.cudaIpcGetMemHandle(client.cudaMalloc(SIZE)[1])[1]
    regions = Regions(allowed=True, most_bytes=SIZE - 1, cuda=Cuda(gpus.runtime, gpus.driver))
    try:
        regions.register_cuda("r", bytes(handle.octets.raw), 1, SIZE)  # which does not count as memory of the host
        place = Place("r", 0, 64)
        held = regions.acquire([place])
        regions.write(place, [b"x" * 64], "OUT")
        into = bytearray(64)
        regions.read(place, memoryview(into), "IN")
        assert into == b"x" * 64
        gpus.broken = {"cudaMemcpyAsync"}
        with pytest.raises(
            InvalidRequest,
            match=r"^input 'IN' cannot be read from shared memory region 'r', which is of GPU 1: cudaErrorIllegal",
        ):
            regions.read(place, memoryview(into), "IN")
        with pytest.raises(ExecutionFailed, match=r"^output 'OUT' cannot be written to shared memory region 'r'"):
            regions.write(place, [b"x" * 64], "OUT")
        regions.unregister(Kind.CUDA, "r")
        assert len(gpus.allocations) == 1  # it is in use
        regions.release(held)
        wait_until(lambda: not gpus.allocations)  # another thread closes it
        with pytest.raises(UnknownModel):
            regions.acquire([place])
    finally:
        regions.close()
        client.free_all()


def test_memory_that_cannot_be_registered_is_closed_again(caplog: pytest.LogCaptureFixture) -> None:
    client, gpus = FakeCuda(), FakeCuda()
    handle = bytes(client.cudaIpcGetMemHandle(client.cudaMalloc(64)[1])[1].octets.raw)
    regions = Regions(allowed=True, most=1, cuda=Cuda(gpus.runtime, gpus.driver))
    try:
        with pytest.raises(InvalidRequest, match="'r': invalid args"):
            regions.register_cuda("r", handle, 0, 65)
        assert not gpus.allocations
        with caplog.at_level("INFO"):
            for _ in range(3):
                with pytest.raises(InvalidRequest, match="invalid args"):
                    regions.register_cuda("r", bytes(64), 0, 64)
        assert len(caplog.records) == 1
        assert "cannot be opened on GPU 0: cudaErrorInvalidValue (1)" in caplog.text
        regions.register_cuda("r", handle, 0, 64)
        with pytest.raises(Overloaded):
            regions.register_cuda("another", handle, 0, 64)
        assert gpus.allocations[0].opened == 1
    finally:
        regions.close()
        client.free_all()
    assert not gpus.allocations


def test_without_a_gpu_the_answer_is_the_same_whether_regions_are_allowed_or_not() -> None:
    for allowed in (False, True):
        regions = Regions(allowed=allowed)
        with pytest.raises(InvalidRequest, match="'r', GPUs not supported"):
            regions.register_cuda("r", bytes(64), 0, 64)
        regions.refuse_cuda_unless_allowed()
    with pytest.raises(Unsupported):
        Regions(gpus=True).refuse_cuda_unless_allowed()
