"""``python -m bench.lengths``: what batching by length is worth, on a text encoder of the size of all-MiniLM-L6-v2.

The same ONNX Runtime session runs the same rows twice: in batches of 8 in the order in which they came, each padded to
its longest, which is what servers do that do not look at lengths; and as a version with ``padding`` runs them, through
its port, its pools and its executor. So many rows wait at any time.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime

from bench.encoder import MINILM, encoder
from toutates.backends.onnx.session import ModelSession
from toutates.engine.counters import ExecutorCounters
from toutates.engine.executor import Executor
from toutates.engine.padded.backend import PaddedBackend
from toutates.engine.padded.padding import PaddedInput, Padding
from toutates.engine.padded.port import PaddedPort
from toutates.engine.result import BatchResult
from toutates.engine.servable import Consumer
from toutates.engine.supertensor import SuperTensor
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec

__all__ = ["LENGTHS", "main", "mixed", "paragraph", "query"]

_FIFO_ROWS: Final = 8
_BATCH_SIZE: Final = 64
_PADDING: Final = Padding({0: PaddedInput(0), 1: PaddedInput(0)}, mask=1)
_SIGNATURE: Final = Signature(
    (
        TensorSpec("input_ids", BY_NAME["INT64"], (-1,)),
        TensorSpec("attention_mask", BY_NAME["INT64"], (-1,), optional=True),
    ),
    (TensorSpec("embedding", BY_NAME["FP32"], (MINILM.hidden,)),),
    batched=True,
)


def query(rng: random.Random) -> int:
    """Tokens of a search query, with those that begin and end it."""
    return min(32, max(3, round(rng.gauss(9, 3))))


def paragraph(rng: random.Random) -> int:
    """Tokens of a paragraph; the longest fill the model."""
    return min(512, max(20, round(rng.lognormvariate(4.7, 0.5))))


def mixed(rng: random.Random) -> int:
    """Six queries to four paragraphs."""
    return query(rng) if rng.random() < 0.6 else paragraph(rng)


LENGTHS: Final[dict[str, Callable[[random.Random], int]]] = {
    "queries": query,
    "paragraphs": paragraph,
    "mixed": mixed,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """What some rows took.

    Attributes:
        seconds: of the clock.
        padded: elements that were computed.
        batches: how many.
    """

    seconds: float
    padded: int
    batches: int


def in_order(session: onnxruntime.InferenceSession, rows: Sequence[Any]) -> Figure:
    """Run rows in the order in which they came."""
    padded = batches = 0
    began = time.monotonic()
    for at in range(0, len(rows), _FIFO_ROWS):
        own = rows[at : at + _FIFO_ROWS]
        longest = max(map(len, own))
        ids = np.zeros((len(own), longest), np.int64)
        mask = np.zeros_like(ids)
        for place, row in enumerate(own):
            ids[place, : len(row)] = row
            mask[place, : len(row)] = 1
        session.run(["embedding"], {"input_ids": ids, "attention_mask": mask})
        padded += ids.size
        batches += 1
    return Figure(time.monotonic() - began, padded, batches)


def by_length(session: onnxruntime.InferenceSession, rows: Sequence[Any], waiting: int) -> Figure:
    """Run rows as a version with ``padding`` does, as long as there are any with ``waiting`` of them in the queue."""
    supertensor = SuperTensor("encoder", _SIGNATURE, batch_size=_BATCH_SIZE, capacity=1_024, padding=_PADDING)
    counters = ExecutorCounters()
    backend = ModelSession(session, _SIGNATURE, "encoder", shrinks_in_time=True)
    wrapped = PaddedBackend(backend, _PADDING, _SIGNATURE, "encoder", counters)
    free = threading.Semaphore(waiting)

    def finish(result: BatchResult) -> None:
        assert result.error is None, result.error
        free.release(len(result.pending))

    port = PaddedPort(supertensor, _PADDING, Consumer(finish, finish, lambda callback: None))
    executor = Executor(supertensor, wrapped, on_batch=counters.add)
    thread = threading.Thread(target=executor.run)
    began = time.monotonic()
    thread.start()
    for row in rows:
        free.acquire()
        way = port.way(((0, (len(row),)),))
        port.add_contents(way, 1, None, [row.tobytes()])
        port.commit(inline=False)
    supertensor.close()
    thread.join()
    took = time.monotonic() - began
    sums = counters.by_rows.values()
    return Figure(took, sum(one.padded_elements for one in sums), sum(one.count for one in sums))


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.lengths", description=__doc__)
    parser.add_argument("--rows", type=int, default=240, help="of each load (default: 240)")
    parser.add_argument("--waiting", type=int, default=64, help="rows that wait at any time (default: 64)")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts (default: 3)")
    options = parser.parse_args(arguments)
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = made.inter_op_num_threads = 1
    made.enable_mem_pattern = False
    made.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        encoder(MINILM).SerializeToString(), made, providers=["CPUExecutionProvider"]
    )
    print("| rows | padded, in order | padded, by length | rows a batch | rows/s, in order | by length | gain |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, length in LENGTHS.items():
        rng = random.Random(1)
        rows = [np.array([rng.randrange(MINILM.vocabulary) for _ in range(length(rng))]) for _ in range(options.rows)]
        real = sum(map(len, rows))
        # In turn, so that both meet the same noise.
        pairs = [(in_order(session, rows), by_length(session, rows, options.waiting)) for _ in range(options.rounds)]
        fifo = min((pair[0] for pair in pairs), key=lambda figure: figure.seconds)
        ours = min((pair[1] for pair in pairs), key=lambda figure: figure.seconds)
        print(
            f"| {name} | {fifo.padded / real:.2f} | {ours.padded / real:.2f} | {len(rows) / ours.batches:.1f} "
            f"| {len(rows) / fifo.seconds:.1f} | {len(rows) / ours.seconds:.1f} | {fifo.seconds / ours.seconds:.2f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
