"""Calls that a process makes up: they end the process, and touch no memory but their own."""

from __future__ import annotations

import json
import select
import struct
import threading
from typing import Any

import pytest

from toutates.backends.python.arena import Arena
from toutates.backends.python.calls import MAX_CALLS, CallForm, Pending
from toutates.backends.python.child import frames
from toutates.backends.python.process_calls import ProcessCalls
from toutates.models.table import ModelTable

FORM: dict[str, Any] = {
    "model": "absent",
    "version": "",
    "outputs": ["y"],
    "inputs": [["x", "FP32", [1, 4], 0, 16]],
    "used": 64,
}


def calls() -> ProcessCalls:
    found = ProcessCalls(Arena(1 << 24), lambda: ModelTable({}))
    found.begin()
    return found


def frame(change: dict[str, Any], number: int = 1, block: int = 0) -> bytes:
    return frames.CALL_HEAD.pack(number, block, 0) + json.dumps({**FORM, **change}).encode()


def test_a_call_of_no_model_fails_in_a_sentence() -> None:
    own = calls()
    number, offset, size = own.answer({"block": 65_536})
    assert (number, offset % 4_096, size) == (0, 0, 65_536)
    for _ in range(2):
        said = own.call(frame({}))
        assert said is not None
        assert frames.RETURN_HEAD.unpack_from(said) == (1, frames.RETURNED_ERROR, 0)
        code, text = json.loads(said[frames.RETURN_HEAD.size :])
        assert (code, text) == (
            2,
            "Model absent - Error when running inference: Request for unknown model: 'absent' is not found",
        )
    assert not own.under_way


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        frame({}, block=1),
        frames.CALL_HEAD.pack(1, 0, 0) + b"{",
        frames.CALL_HEAD.pack(1, 0, 0) + b"[]",
        frames.CALL_HEAD.pack(1, 0, 0) + b"[" * 100_000,
        frame({"used": -1}),
        frame({"used": None}),
        frame({"inputs": [["x", "FP32", [1, 4], 65_530, 16]]}),
        frame({"inputs": [["x", "FP32", [1, 4], -16, 16]]}),
        frame({"inputs": [["x", "FP32", [1, 4], 0, 17]]}),
        frame({"inputs": [["x", "FP32", [-1, -4], 0, 16]]}),
        frame({"inputs": [["x", "BYTES", [1], 8, -8]]}),
        frame({"inputs": [["x", "FP33", [1, 4], 0, 16]]}),
        frame({"inputs": [["x"]]}),
        frame({"inputs": 3}),
        frame({"outputs": 3}),
    ],
    ids=repr,
)
def test_a_call_that_makes_no_sense_is_none(content: bytes) -> None:
    own = calls()
    own.answer({"block": 65_536})
    with pytest.raises((KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError, struct.error)):
        own.call(content)


@pytest.mark.parametrize("size", [0, -1, "a", None, 2**40, 2**31 + 1])
def test_a_block_that_cannot_be_had_is_one_of_no_bytes(size: Any) -> None:
    assert calls().answer({"block": size}) == (0, 0, 0)


def test_there_are_so_many_blocks_and_no_more() -> None:
    own = ProcessCalls(Arena(1 << 30), lambda: ModelTable({}))
    own.begin()
    assert all(own.answer({"block": 1})[2] for _ in range(MAX_CALLS))
    assert own.answer({"block": 1}) == (0, 0, 0)


@pytest.mark.parametrize(
    "question", [{"load": 3}, {"load": ["m", None, 9, [["f", 0, 1]]]}, {"unload": []}, {"ready": 3}, {"ready": [3]}]
)
def test_a_question_that_makes_no_sense_is_answered_so(question: dict[str, Any]) -> None:
    class Loads:
        def load(self, *_: Any) -> None: ...

        def unload(self, *_: Any, **__: Any) -> None: ...

    own = ProcessCalls(Arena(1 << 20), lambda: ModelTable({}), Loads())
    assert "malformed" in own.answer(question)["error"][1]


def test_an_outcome_from_another_thread_wakes_the_executors() -> None:
    own = calls()
    thread = threading.Thread(target=own._note, args=(Pending(CallForm("m", "", [], []), own._note, 7),))
    thread.start()
    thread.join()
    poll = select.poll()
    poll.register(own.event, select.POLLIN)
    assert poll.poll(10_000)
    assert list(own.outcomes()) == []  # of a call that is nobody's any more
    assert not poll.poll(0)
