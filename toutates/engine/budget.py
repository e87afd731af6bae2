"""How much of one model version may be under way: rows, the memory of their batches, and requests that wait.

Rows of every shape count alike: a batch of one row costs one row, however many of its shape it could take. Counting
each row as it comes would cost every request something, so an open batch counts some rows *ahead*, which are given back
when it takes no more, or when somebody else needs them. Nothing is counted ahead once three quarters of the rows are
taken. A batch that one worker alone writes counts the rows of its first request, and the others at the commit: so a
worker may have a few rows too many in its hands, for the length of a round, but nobody is refused for rows that never
come.

The buffers of a batch are made for twice as many rows as a batch of this shape was full with (``Lane.room``), but for
no more than leave each row that may still come its *share* of the memory. So large buffers for few rows never cause a
refusal, as long as rows are not larger than that share.

All of it is guarded by the SuperTensor's lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from toutates.engine.drain import Drain
from toutates.engine.lane import Batch, Lane
from toutates.system.errors import InvalidRequest, Overloaded, QueueFull

__all__ = ["PBTXT_KEYS", "YAML_KEYS", "Bounds", "Budget", "Keys"]


@dataclass(frozen=True, slots=True)
class Keys:
    """What error messages tell the operator to raise: the file that configures the model, and its keys."""

    file: str = "config.yaml"
    rows: str = "'capacity' or 'num_executors'"
    memory: str = "'capacity_bytes'"
    waiting: str = "'max_queue_size'"


#: The keys of config.yaml.
YAML_KEYS: Final = Keys()
#: The keys of Triton's config.pbtxt.
PBTXT_KEYS: Final = Keys(
    "config.pbtxt",
    "the parameter 'toutates.capacity' or the 'count' of its 'instance_group'",
    "the parameter 'toutates.capacity_bytes'",
    "'dynamic_batching.default_queue_policy.max_queue_size'",
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be under way, that is, reserved, waiting or running.

    Attributes:
        rows: of all shapes together.
        memory_bytes: memory of batches' buffers, and of arrays that are kept in place of buffers.
        waiting: requests whose batch is not running; 0 for as many as there are rows.
        keys: what sets these bounds.
    """

    rows: int
    memory_bytes: int = 2**62
    waiting: int = 0
    keys: Keys = YAML_KEYS


class Budget:
    """Counts the rows, bytes and requests of one model version that are under way, and refuses what is too much.

    Args:
        name: the model's, for errors.
        bounds: how much may be under way.
        open_batches: those that still take rows of any worker, and may have rows counted ahead.
        drain: says when there is room again; None for one of its own.

    Attributes:
        most_rows: that may be counted.
        rows: that are counted.
        ahead: rows among these that were counted ahead, and may never come.
        memory_bytes: memory of the batches under way.
        waiting: requests that wait; counted only where their number is bounded.
        share_bytes: memory that is left for each row that may still come.
        left: rows that have left so far.
        wall_ns: how long runs take, by the bit length of their rows: ``Lane.wall_ns`` of the last one.
        easy_bytes: as long as no more memory than this is used, each such row has its share.
    """

    __slots__ = (
        "_drain",
        "_name",
        "_open_batches",
        "ahead",
        "bounds",
        "easy_bytes",
        "left",
        "memory_bytes",
        "most_rows",
        "rows",
        "share_bytes",
        "waiting",
        "wall_ns",
    )

    def __init__(
        self, name: str, bounds: Bounds, open_batches: Mapping[Lane, Batch], drain: Drain | None = None
    ) -> None:
        self.bounds = bounds
        self.most_rows = bounds.rows
        self.rows = 0
        self.ahead = 0
        self.memory_bytes = 0
        self.waiting = 0
        self.share_bytes = bounds.memory_bytes // (2 * bounds.rows)
        self.easy_bytes = bounds.memory_bytes - self.share_bytes * bounds.rows
        self.left = 0
        self._drain = drain or Drain()
        self._name = name
        self._open_batches = open_batches
        self.wall_ns: Sequence[int] = ()

    # --- rows --------------------------------------------------------------------------------------------------------

    def check_rows(self, rows: int) -> None:
        """Check that ``rows`` more rows can be counted; takes back rows counted ahead if it has to.

        Raises:
            Overloaded: there are too many rows under way now.
        """
        if rows > self.most_rows - self.rows:
            self._give_back_ahead()
            if rows > self.most_rows - self.rows:
                raise self._overloaded(
                    rows,
                    f"model '{self._name}' has {self.rows} of at most {self.bounds.rows} rows waiting or running, and "
                    f"this request has {rows} more; {self._advice(self.bounds.keys.rows)}",
                    self.bounds.rows,
                    rows,
                )

    def count_more(self, batch: Batch, rows: int) -> None:
        """Count ``rows`` more rows of an open batch that has room for them, and some ahead.

        Raises:
            Overloaded: there are too many rows under way now.
        """
        missing = batch.rows + rows - batch.counted
        if missing > self.most_rows - self.rows:
            self._give_back_ahead()  # of this batch too
            missing = batch.rows + rows - batch.counted
            self.check_rows(missing)
        self.count(batch, batch.rows + rows, missing)

    def count(self, batch: Batch, rows: int, missing: int) -> None:
        """Count ``missing`` more rows of a batch, and some ahead; the caller has checked that they fit.

        Args:
            batch: whose rows they are.
            rows: rows of the batch with these.
            missing: how many of them are not counted yet.
        """
        left = self.most_rows - self.rows - missing
        ahead = 0
        if 4 * left >= self.most_rows and not self.bounds.waiting:
            ahead = batch.room - rows
            if ahead > left >> 3:
                ahead = left >> 3
        self.rows += missing + ahead
        batch.counted = rows + ahead
        self.ahead += ahead - batch.ahead
        batch.ahead = ahead

    def count_exactly(self, batch: Batch) -> None:
        """Count exactly the rows that a batch has.

        Rows counted ahead are given back; rows that a worker wrote to its own batch without the lock are added.
        """
        self.rows += batch.rows - batch.counted
        batch.counted = batch.rows
        self.ahead -= batch.ahead
        batch.ahead = 0

    def _give_back_ahead(self) -> None:
        # Afterwards nothing is counted ahead until a quarter of the rows is free again: this is rare.
        if self.ahead:
            for batch in self._open_batches.values():
                self.count_exactly(batch)

    def check_fit(self, lane: Lane, rows: int, held_bytes: int) -> None:
        """Check that a request that may need several batches fits in now.

        Args:
            lane: of its rows.
            rows: how many.
            held_bytes: of arrays that are kept until it has run.

        Raises:
            InvalidRequest: it is larger than the bounds.
            Overloaded: too much is under way now.
        """
        bounds = self.bounds
        if rows > bounds.rows:
            raise InvalidRequest(f"inference request batch-size must be <= {bounds.rows} for '{self._name}'")
        self._check_size(rows * lane.row_memory + held_bytes)
        batch = self._open_batches.get(lane)
        if batch is None:
            self.check_rows(rows)
            left = 0
        else:
            if rows - (batch.counted - batch.rows) > self.most_rows - self.rows:
                self._give_back_ahead()
            self.check_rows(rows - (batch.counted - batch.rows))
            left = batch.room - batch.rows
        self._check_memory(max(0, rows - left) * lane.row_memory + held_bytes)

    # --- memory ------------------------------------------------------------------------------------------------------

    def buffer_rows(self, lane: Lane, rows: int) -> int:
        """How many rows the buffers of a new batch shall have room for, ``rows`` at least.

        Raises:
            InvalidRequest: these rows need more memory than the bound.
            Overloaded: too much memory is in use now.
        """
        row_memory = lane.row_memory
        if not row_memory:
            return lane.batch_rows
        self.check_buffers(lane, rows)
        to_come = (self.most_rows - self.rows + self.ahead) * self.share_bytes
        return max(rows, min(lane.room, (self.bounds.memory_bytes - self.memory_bytes - to_come) // row_memory))

    def check_buffers(self, lane: Lane, rows: int) -> None:
        """Check that there may be memory for ``rows`` more rows.

        Raises:
            InvalidRequest: they need more than the bound.
            Overloaded: too much memory is in use now.
        """
        self._check_size(rows * lane.row_memory)
        self._check_memory(rows * lane.row_memory)

    def _check_size(self, size: int) -> None:
        bounds = self.bounds
        if size > bounds.memory_bytes:
            raise InvalidRequest(
                f"this request needs {size} bytes, and all batches of model '{self._name}' may take "
                f"{bounds.memory_bytes}; split it, or raise {bounds.keys.memory} in its {bounds.keys.file}"
            )

    def _check_memory(self, more: int) -> None:
        if more > self.bounds.memory_bytes - self.memory_bytes and more:
            raise self._overloaded(
                1,
                f"model '{self._name}' has batches of {self.memory_bytes} of at most {self.bounds.memory_bytes} bytes "
                f"waiting or running, and this request needs {more} more; {self._advice(self.bounds.keys.memory)}",
                self.bounds.memory_bytes,
                more,
            )

    # --- requests that wait ------------------------------------------------------------------------------------------

    def check_waiting(self, starting: int) -> None:
        """Check that one more request may wait.

        Args:
            starting: requests that an idle executor is about to take, which do not wait.

        Raises:
            QueueFull: as many requests wait as may.
        """
        waiting = self.waiting - starting
        if waiting >= self.bounds.waiting:
            raise QueueFull(
                f"Exceeds maximum queue size: {waiting} requests wait for model '{self._name}'; "
                f"{self._advice(self.bounds.keys.waiting)} (now {self.bounds.waiting})"
            ).after(self.wait_s())

    def count_waiting(self, batch: Batch) -> None:
        """Count one more request that waits. One that was split over several batches waits for ``batch``, its first."""
        batch.requests += 1
        self.waiting += 1

    # --- batches that go ---------------------------------------------------------------------------------------------

    def start(self, batch: Batch) -> None:
        """Count a batch that takes no more rows and is about to run: its requests wait no longer."""
        self.count_exactly(batch)
        if batch.requests:
            self.waiting -= batch.requests
            batch.requests = 0

    # --- refusals ----------------------------------------------------------------------------------------------------

    def wait_s(self, more: int = 1) -> float:
        """Seconds until there is room for ``more`` rows again, as ``Drain`` has it."""
        row_ns, wall_ns = 0.0, self.wall_ns
        # By what runs take, where nothing was measured yet: of a full batch, or of whatever there was.
        for size in range(len(wall_ns) - 1, 0, -1):
            if wall_ns[size]:
                row_ns = wall_ns[size] / (1 << size - 1)
                break
        return self._drain.wait_s(self.rows, self.left, row_ns, more)

    def _overloaded(self, rows: int, text: str, bound: int, more: int) -> Overloaded:
        error = Overloaded(text, bound, more)
        error.retry_after_s = self.wait_s(rows)
        return error

    def _advice(self, keys: str) -> str:
        return f"try again later, or raise {keys} in its {self.bounds.keys.file}"
