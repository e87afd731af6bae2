"""Results of batches are searched for the pattern before those who wait for them get them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakMethod

import numpy as np
import pytest

from tests.signatures import signature, spec
from toutates.engine.poisoned import forgetting, watching
from toutates.engine.result import BatchResult, Outputs, Timing
from toutates.engine.sequences.tensors import RowStates
from toutates.engine.servable import Consumer
from toutates.engine.supertensor import SuperTensor
from toutates.protocol.strings import EncodedStrings
from toutates.system.errors import ExecutionFailed
from toutates.system.poison import VARIABLE, Poison

POISON = Poison(bytes(range(0x90, 0xA0)))
SIGNATURE = signature([spec("x", "FP32", [4])], [spec("y", "FP32", [4]), spec("text", "BYTES", [1])])
TIMING = Timing(0, 0, 0, 0)


def outcome(y: bytes, texts: list[bytes], **more: Any) -> list[BatchResult]:
    """What a consumer gets of a batch of two requests of one row, "a" and "b"."""
    heard: list[BatchResult] = []
    consumer = watching(Consumer(heard.append, heard.append, lambda callback: None), "m", SIGNATURE, POISON)
    outputs = Outputs((y, EncodedStrings.of(texts, (2, 1))), (16, 0), ((4,), (1,)), **more)
    result = BatchResult([("a", 0, 1, None), ("b", 1, 1, None)], outputs, None, TIMING)
    result.more, result.taken = True, lambda: None
    consumer.finish(result)
    if len(heard) == 1:
        assert heard[0] is result
        return heard
    assert [part.more for part in heard] == [True] * len(heard)
    assert [part.taken is result.taken for part in heard] == [False] * (len(heard) - 1) + [True]
    return heard


def test_a_sound_result_is_passed_on_as_it_is() -> None:
    [result] = outcome(bytes(32), [b"one", b"two"])
    assert result.error is None


@pytest.mark.parametrize(
    ("y", "texts"),
    [
        (bytes(16) + POISON.pattern, [b"one", b"two"]),
        (bytes(16) + POISON.pattern[:8] + bytes(8), [b"one", b"two"]),
        (bytes(32), [b"one", b"is " + POISON.pattern[3:12]]),
    ],
)
def test_of_a_batch_that_request_alone_fails_whose_rows_have_the_pattern(y: bytes, texts: list[bytes]) -> None:
    refused, sound = outcome(y, texts)
    assert [request[0] for request in refused.pending] == ["b"]
    assert isinstance(refused.error, ExecutionFailed)
    assert refused.outputs is None
    assert [request[0] for request in sound.pending] == ["a"]
    assert sound.error is None
    assert sound.outputs is not None


def test_outputs_that_a_response_does_not_have_are_not_searched() -> None:
    [result] = outcome(2 * POISON.pattern, [b"one", b"two"], missing=(0,))
    assert result.error is None


def test_a_batch_that_is_used_again_is_filled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, POISON.pattern.hex())
    supertensor = SuperTensor("m", SIGNATURE, batch_size=4, capacity=2)
    lane = supertensor.lane(((0, (4,)),))
    with supertensor.lock:
        batch = supertensor.open_batch(lane, 1)
        [array] = batch.arrays
        assert array.tobytes() == POISON.pattern * batch.room
        array[:] = np.float32(7)
        supertensor.queue.open.clear()
        supertensor.lanes.keep_spare(batch)
        again = supertensor.open_batch(lane, 1)
    assert again is batch
    assert array.tobytes() == POISON.pattern * batch.room


def test_without_the_mode_nothing_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    supertensor = SuperTensor("m", SIGNATURE, batch_size=4, capacity=2)
    assert "_new_batch" not in vars(supertensor)


def test_states_that_a_sequence_has_no_longer_are_filled() -> None:
    class Keeper:
        kept: ClassVar[list[RowStates | None]] = []

        def keep(self, sequence: Any, states: RowStates | None) -> None:
            self.kept.append(states)

    keeper = Keeper()
    keep = forgetting(WeakMethod(keeper.keep), POISON)
    states, others = (RowStates(((4,),), (bytearray(16),), 16) for _ in range(2))
    sequence: Any = SimpleNamespace(state=None)
    keep(sequence, states)
    sequence.state = states
    keep(sequence, states)  # written where they were
    assert bytes(states.contents[0]) == bytes(16)
    keep(sequence, others)
    assert bytes(states.contents[0]) == POISON.pattern
    sequence.state = others
    keep(sequence, None)
    assert bytes(others.contents[0]) == POISON.pattern
    assert keeper.kept == [states, states, others, None]
