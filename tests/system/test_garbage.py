"""What the garbage collector looks at in one go, and when it looks at all."""

from __future__ import annotations

import gc
import weakref

import pytest
import trio

from tests.waiting import wait_until
from toutates.system.garbage import keep_collections_short
from toutates.system.interpreter import free_threaded


class Node:
    """In a circle with itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.mark.skipif(free_threaded(), reason="has no generations")
def test_what_a_long_collection_leaves_is_looked_at_again_when_idle() -> None:
    before = gc.get_threshold()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(keep_collections_short, 1)
            frozen = gc.get_freeze_count()
            node = Node()
            kept = [[number] for number in range(400_000)]
            gc.collect()
            assert gc.get_freeze_count() > frozen + len(kept) // 2
            died = weakref.ref(node)
            del node, kept
            gc.collect()
            assert died() is not None, "it is frozen"
            await trio.to_thread.run_sync(lambda: wait_until(lambda: died() is None, pause_s=0.2))
            nursery.cancel_scope.cancel()

    try:
        trio.run(main)
    finally:
        gc.unfreeze()
    assert gc.get_threshold() == before
    assert gc.isenabled()


@pytest.mark.skipif(not free_threaded(), reason="looks at the new ones alone")
def test_without_generations_collections_wait_until_the_process_is_idle() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(keep_collections_short, 1)
            died = weakref.ref(Node())
            kept = [[number] for number in range(400_000)]
            assert died() is not None
            await trio.to_thread.run_sync(lambda: wait_until(lambda: died() is None, pause_s=0.2))
            assert len(kept) == 400_000
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert gc.isenabled()
