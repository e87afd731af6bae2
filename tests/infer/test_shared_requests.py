"""Requests whose tensors are in regions of shared memory: how long they use them, and what is refused."""

from __future__ import annotations

import mmap
import os
from types import SimpleNamespace
from typing import Any

import pytest

from tests.infer.calls import PEER
from tests.infer.shared import FOLDER, SIZE, Shared, is_used
from toutates.access.callers import Caller
from toutates.access.gate import Era
from toutates.access.rules import AccessRules
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Split, Timing
from toutates.infer import service
from toutates.infer.charging import ChargingInferService
from toutates.infer.regions import Kind, Place, Regions, own_name
from toutates.system.errors import (
    ExecutionFailed,
    InvalidRequest,
    Overloaded,
    UnknownModel,
)


def test_requests_are_their_callers_whether_or_not_their_inputs_are_read(regions: Regions, key: str) -> None:
    gate: Any = SimpleNamespace(caller=None, caller_of_head=lambda head: gate.next)

    def charging(*given: Any) -> ChargingInferService:
        service = ChargingInferService(*given)
        service.gate = gate
        return service

    shared = Shared(regions, make=charging)
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
