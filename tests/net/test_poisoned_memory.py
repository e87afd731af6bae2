"""In the test mode, memory of large messages has nothing of those before."""

from __future__ import annotations

import numpy as np
import pytest

from toutates.h2grpc.limits import Limits
from toutates.h2grpc.message_memory import LargeMessage, MemoryPool, MessageMemory
from toutates.net.poisoned_memory import PoisonedPool
from toutates.net.worker import Worker
from toutates.system.poison import VARIABLE, Poison

POISON = Poison(bytes(range(0x90, 0xA0)))
SIZE = 100_000


def is_filled(memory: MessageMemory | None) -> bool:
    assert memory is not None
    content = np.frombuffer(memory, np.uint8).tobytes()
    return content == (POISON.pattern * (len(content) // 16 + 1))[: len(content)]


def test_memory_is_filled_when_it_is_new_and_when_it_is_used_again() -> None:
    pool = PoisonedPool(1 << 20, POISON)
    memory = pool.take_whole(SIZE)
    assert memory is not None
    assert is_filled(memory)
    memory[:SIZE] = b"x" * SIZE
    pool.give_back(memory)
    assert pool.next_one(SIZE) is memory
    assert is_filled(memory)
    memory[:4] = b"half"  # received before it is taken
    assert pool.take_next(SIZE, 0) is memory
    assert memory[:4] == b"half"


def test_memory_that_somebody_reads_is_filled_when_nobody_does_any_more() -> None:
    pool = PoisonedPool(1 << 20, POISON)
    memory = pool.take_whole(SIZE)
    assert memory is not None
    memory[:SIZE] = b"x" * SIZE
    view = memoryview(memory)
    pool.give_back(memory)
    assert pool.next_one(SIZE) is None
    assert view[:SIZE] == b"x" * SIZE
    view.release()
    assert pool.next_one(SIZE) is memory
    assert is_filled(memory)


def test_memory_that_grows_is_filled_from_where_it_ended() -> None:
    pool = PoisonedPool(1 << 20, POISON)
    message = LargeMessage.begin(pool, SIZE, 1_000)
    assert message is not None
    message.add(b"x" * 5_000)
    memory = message._memory
    assert memory is not None
    assert set(memory[5_000 : memory.capacity]) == set(POISON.pattern)
    message.drop()


def test_what_is_too_small_for_the_pool_is_filled_too() -> None:
    assert PoisonedPool(1 << 20, POISON).small(32) == POISON.pattern * 2
    assert MemoryPool(1 << 20).small(32) == bytes(32)


@pytest.mark.parametrize("on", [True, False])
def test_a_worker_has_such_a_pool_in_that_mode_alone(on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1" if on else "0")
    worker = Worker("worker", Limits())
    assert type(worker.message_memory) is (PoisonedPool if on else MemoryPool)
