"""What sequences cost a server: CPU of each request, and memory of those that live.

    python bench/micro_sequences.py [--rounds 5]

The same sum of 8 FP32 values by a model without sequences, and with those of either strategy, whose state is the last
sum: 64 sequences, each with a request under way, on 8 streams of ModelStreamInfer. Then a model whose state has 4 KB:
with 64 sequences, and with 10,000. Every answer is counted. CPU is that of the whole server; figures are medians of
rounds in which the models take turns, so that they compare with each other. TOUTATES_SERVER_PYTHON names the server's
Python.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.own_client import closed_loop
from bench.process import cpu_time, resident_mib
from bench.stream_load import stream_of
from tests.e2e.process import FRESH, running
from toutates.bench.answer import Answer
from toutates.bench.endpoint import parse_endpoint
from toutates.bench.streams import StreamRequest
from toutates.protocol.grpc_service_pb2 import ModelInferRequest

STREAMS: Final = 8
SEQUENCES: Final = 64
MANY: Final = 10_000
WIDTH: Final = 8
#: FP32 values of a state of 4 KB.
LARGE: Final = 1_024
_CONFIG: Final = """
backend: supertensor
batch_size: 64
capacity: 32
num_executors: 1
allocator: cpu
"""
_SEQUENCES: Final = "sequences: {{max_idle_us: 600000000, states: [{{input: PAST, output: SUM}}], {}}}\n"


def write_model(root: Path, name: str, width: int, strategy: str | None) -> None:
    """OUTPUT = INPUT + PAST, of which a model without sequences has zeros; the state has ``width`` values."""
    shapes = {"INPUT": WIDTH, "OUTPUT": WIDTH, "PAST": width, "SUM": width}
    tensors = {one: helper.make_tensor_value_info(one, TensorProto.FLOAT, ["n", size]) for one, size in shapes.items()}
    nodes = [helper.make_node("Add", ["INPUT", "PAST"], ["OUTPUT"]), helper.make_node("Identity", ["OUTPUT"], ["SUM"])]
    if width != WIDTH:
        bounds = {"begin": 0, "end": WIDTH, "axis": 1}
        nodes = [
            *(helper.make_node("Constant", [], [one], value_ints=[at]) for one, at in bounds.items()),
            helper.make_node("Slice", ["PAST", "begin", "end", "axis"], ["part"]),
            helper.make_node("Add", ["INPUT", "part"], ["OUTPUT"]),
            helper.make_node("ReduceSum", ["INPUT", "axis"], ["added"]),
            helper.make_node("Add", ["PAST", "added"], ["SUM"]),
        ]
    inputs, outputs = ["INPUT", "PAST"], ["OUTPUT", "SUM"]
    zeros = [numpy_helper.from_array(np.zeros((1, width), np.float32), "PAST")] if strategy is None else []
    if strategy is None:
        inputs.remove("PAST")
    graph = helper.make_graph(nodes, name, [tensors[one] for one in inputs], [tensors[one] for one in outputs], zeros)
    (root / name / "1").mkdir(parents=True)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), root / name / "1" / "model.onnx")
    text = _CONFIG if strategy is None else _CONFIG + _SEQUENCES.format(strategy)
    (root / name / "1" / "config.yaml").write_text(text)


def message(model: str, identifier: int, *, start: bool) -> bytes:
    """A request; ``identifier`` is 0 for one of no sequence."""
    made = ModelInferRequest(model_name=model)
    made.inputs.add(name="INPUT", datatype="FP32", shape=[1, WIDTH])
    made.outputs.add(name="OUTPUT")
    made.raw_input_contents.append(np.ones((1, WIDTH), np.float32).tobytes())
    if identifier:
        made.parameters["sequence_id"].int64_param = identifier
        made.parameters["sequence_start"].bool_param = start
        made.parameters["sequence_end"].bool_param = False
    return made.SerializeToString()


class Sequences:
    """Sequences of one model, of which each has one request under way at most.

    Args:
        server: that has it.
        model: its name.
        count: of the sequences; 0 for requests without one, ``SEQUENCES`` at a time.
        first: their first id. All ids take as many bytes.
    """

    def __init__(self, server: Any, model: str, count: int, first: int) -> None:
        self._server = server
        self._count = count or SEQUENCES
        ids = range(first, first + count) if count else [0] * SEQUENCES
        self._starts, self._rest = (
            [StreamRequest(message(model, one, start=start)) for one in ids] for start in (True, False)
        )

    def start(self) -> None:
        """Begin the sequences."""
        self._run(self._starts, 1)

    def cpu_us(self, rounds: int) -> float:
        """CPU of the server for each request, of so many of each sequence."""
        before = cpu_time(self._server.process.pid).total
        self._run(self._rest, rounds)
        return (cpu_time(self._server.process.pid).total - before) / (rounds * self._count) * 1e6

    def _run(self, requests: Sequence[StreamRequest], rounds: int) -> None:
        address = self._server.address
        count = len(requests) * rounds
        closed_loop(
            parse_endpoint(address), STREAMS, SEQUENCES, _Turns(requests, rounds), count, make=stream_of(address)
        )


class _Turns:
    """A request of each sequence in turn, as soon as its last one is answered; see ``toutates.bench.source.Source``."""

    def __init__(self, requests: Sequence[StreamRequest], rounds: int) -> None:
        self._requests = requests
        self._left = [rounds] * len(requests)
        self._ready = deque(range(len(requests)))
        self._sent: list[int] = []

    def take(self, most: int, *, over: bool) -> Sequence[StreamRequest]:
        """The next requests."""
        taken = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        self._sent += taken
        return [self._requests[place] for place in taken]

    def answered(self, answers: Sequence[Answer]) -> None:
        """These requests have ended."""
        for number, _, _ in answers:
            place = self._sent[number]
            self._left[place] -= 1
            if self._left[place]:
                self._ready.append(place)

    def choices(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Which sequence so many requests were of, from a number on."""
        return np.array(self._sent[first : first + count], np.int64)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args(argv).rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = folder / "models"
        oldest = f"strategy: oldest, max_candidates: {MANY + SEQUENCES + 1}"
        for model, width, strategy in (
            ("plain1", WIDTH, None),
            ("direct", WIDTH, "strategy: direct"),
            ("oldest", WIDTH, oldest),
            ("large1", LARGE, oldest),
        ):
            write_model(root, model, width, strategy)
        with running(root, folder, ["--processing-cores", "1"], FRESH) as server:
            _report(server, rounds)
    return 0


def _report(server: Any, rounds: int) -> None:
    counts = {"plain1": 0, "direct": SEQUENCES - 1, "oldest": SEQUENCES, "large1": SEQUENCES}
    few = {name: Sequences(server, name, count, 300) for name, count in counts.items()}
    for driver in few.values():
        driver.start()
        driver.cpu_us(50)
    figures = _measure({name: (driver, 150) for name, driver in few.items()}, rounds)
    plain = figures["plain1"]
    for name in ("direct", "oldest"):
        print(f"{name}: {figures[name]:.1f} us a request, {figures[name] - plain:+.1f} against {plain:.1f} without")
    before = resident_mib(server.process.pid)
    many = Sequences(server, "large1", MANY, 1_000)
    many.start()
    many.cpu_us(1)
    grown = (resident_mib(server.process.pid) - before) * 2**20
    print(f"{MANY:,} sequences of {4 * LARGE} bytes: memory {grown / (MANY * 4 * LARGE):.2f} times the states")
    figures = _measure({"64": (few["large1"], 150), f"{MANY:,}": (many, 1)}, rounds)
    for name, figure in figures.items():
        print(f"{name} live sequences of 4 KB: {figure:.1f} us a request")


def _measure(drivers: dict[str, tuple[Sequences, int]], rounds: int) -> dict[str, float]:
    """The median of each driver's figures, which take turns; the number says how many requests of each sequence."""
    found: dict[str, list[float]] = {name: [] for name in drivers}
    for _ in range(rounds):
        for name, (driver, each) in drivers.items():
            found[name].append(driver.cpu_us(each))
    return {name: statistics.median(values) for name, values in found.items()}


if __name__ == "__main__":
    sys.exit(main())
