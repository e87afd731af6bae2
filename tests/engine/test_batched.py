"""The servable that batches, with a backend of NumPy and Trio around its threads."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import numpy as np
import trio

from toutates.engine.batched import BatchedServable
from toutates.engine.lane import Batch, PackedLane
from toutates.engine.result import BatchResult, Outputs
from toutates.engine.servable import Consumer, Host
from toutates.engine.submitter import LaneWriter
from toutates.engine.supertensor import SuperTensor
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec

FP32 = BY_NAME["FP32"]
SIGNATURE = Signature((TensorSpec("x", FP32, (-1,)),), (TensorSpec("y", FP32, (-1,)),), True)
LANE = ((0, (4,)),)


class Doubling:
    """A backend that doubles."""

    on_cpu = one_thread = True

    def __init__(self) -> None:
        self.started_ns = self.ended_ns = 0
        self.closed = False

    def run(self, batch: Batch, first: int, rows: int) -> Outputs:
        """See ``Backend``."""
        self.started_ns = time.monotonic_ns()
        [x] = batch.lane.inputs(batch, first, rows).values()
        assert isinstance(x, np.ndarray)
        self.ended_ns = time.monotonic_ns()
        return Outputs(((2 * x).tobytes(),), (x.nbytes // rows,), (x.shape[1:],))

    def close(self) -> None:
        """See ``Backend``."""
        self.closed = True


HOST = Host(take_cpus=lambda: (), anywhere=(), on_death=lambda: None, on_ready_change=lambda: None)


def test_a_servable_answers_counts_and_describes_itself_and_leaves_nothing_behind() -> None:
    backends = [Doubling(), Doubling()]
    servable = BatchedServable(
        7, SuperTensor("m", SIGNATURE, batch_size=8, capacity=2), backends, pool_threads=3, memory_kind="CPU_PINNED"
    )
    send_result, results = trio.open_memory_channel[BatchResult](10)
    rounds: list[Any] = []

    async def answer(length: int, rows: int) -> list[float]:
        x = np.arange(rows * length, dtype=np.float32)
        way = port.way(((0, (length,)),))
        assert isinstance(way, LaneWriter)
        port.add_packed(way, rows, "context", x.tobytes(), (0, x.nbytes))
        while rounds:
            rounds.pop()()
        result = await results.receive()
        assert [request[0] for request in result.pending] == ["context"]
        assert result.outputs is not None
        [data] = result.outputs.data
        assert isinstance(data, bytes)
        return [float(number) for number in np.frombuffer(data, np.float32)]

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(servable.run, HOST)
            assert await answer(4, 1) == [0, 2, 4, 6]
            assert await answer(1, 3) == [0, 2, 4]
            statistics = servable.statistics()
            assert {rows: batch.count for rows, batch in statistics.batches.items()} == {1: 1, 3: 1}
            assert (sum(statistics.batch_durations), sum(statistics.batch_runs)) == (2, 2)
            assert (statistics.batch_size, statistics.executors, statistics.pool_threads) == (8, 2, 3)
            assert statistics.memory_kind == "CPU_PINNED"
            assert (statistics.occupancy.lanes, statistics.occupancy.row_capacity) == (2, 16)
            assert len(servable.describe(2)) == 3
            first, lane, more = servable.describe(1)
            assert first.startswith("0 batches in flight, 0 running; 0 of 16 rows, 0 of ")
            assert lane.startswith(
                "lane of input 0: [1]: batches of up to 8 rows, the next of 8 and 32 bytes, 1 spare;"
            )
            assert more == "and 1 more lanes"
            servable.close()

    token: list[trio.lowlevel.TrioToken] = []

    def finish(result: BatchResult) -> None:
        token[0].run_sync_soon(send_result.send_nowait, result)

    port = servable.port(Consumer(finish, send_result.send_nowait, rounds.append))
    port.counters.success = 5
    assert servable.statistics().requests.success == 5

    async def main() -> None:
        token.append(trio.lowlevel.current_trio_token())
        with trio.fail_after(120):
            await serve()

    trio.run(main)
    assert all(backend.closed for backend in backends)


def test_a_lane_says_what_its_open_batch_waits_for_and_how_long_its_runs_take() -> None:
    servable = BatchedServable(1, SuperTensor("m", SIGNATURE, batch_size=8, capacity=2), [Doubling()])
    port = servable.port(Consumer(lambda result: None, lambda result: None, lambda callback: None))
    way = port.way(LANE)
    assert isinstance(way, LaneWriter)
    way.lane.note_run(1, 12_345)
    for rows in (1, 2):
        port.add_packed(way, rows, "context", bytes(16 * rows), (0, 16 * rows))
    _, lane = servable.describe(5)
    assert lane == (
        "lane of input 0: [4]: batches of up to 8 rows, the next of 8 and 128 bytes, 0 spare; runs take 12 us; "
        "3 rows wait, 1 workers are writing"
    )
    port.commit()
    assert servable.describe(5)[1].endswith("3 rows wait, 0 workers are writing")
    occupancy = servable.statistics().occupancy
    assert (occupancy.waiting, occupancy.buffer_bytes, occupancy.spare_bytes) == (2, 128, 0)


def test_memory_is_free_without_the_garbage_collector_once_a_servable_is_freed() -> None:
    servable = BatchedServable(1, SuperTensor("m", SIGNATURE, batch_size=8, capacity=2), [Doubling()])
    port = servable.port(Consumer(lambda result: None, lambda result: None, lambda callback: None))
    lane = servable.supertensor.lane(LANE)
    assert isinstance(lane, PackedLane)
    way = port.way(LANE)
    assert isinstance(way, LaneWriter)
    port.add_packed(way, 1, "context", bytes(16), (0, 16))
    port.commit()
    gc.disable()
    try:

        async def main() -> None:
            with trio.fail_after(120):
                await servable.run(HOST)

        servable.close()
        trio.run(main)
        assert servable.supertensor.occupancy().spare_bytes == 8 * 16
        buffer = weakref.ref(lane.spare[0].arrays[0])
        servable.free()
        assert servable.supertensor.occupancy().spare_bytes == 0
        assert servable.supertensor.occupancy().lanes == 0
        assert buffer() is None
    finally:
        gc.enable()
