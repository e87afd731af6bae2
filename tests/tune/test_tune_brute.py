"""What ``toutates tune`` finds, against every configuration of a grid, measured on a real server (``make test-alone``).

Each model takes some minutes, and wants the machine for itself.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from examples.make_repository import mlp
from toutates.bench.comparison import block_order
from toutates.bench.measuring import Questions, Target
from toutates.command.config import effective_configuration
from toutates.command.main import main
from toutates.tune.measuring import Bench
from toutates.tune.server import Server, copy_model
from toutates.tune.space import Axis, Space
from toutates.tune.turns import Verdict, block_ratio, verdict_of

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1_500)]

#: Of the loads that decide.
_DECIDING_LOAD_S: Final = 0.7
#: Of a tuning, on two cores.
_MOST_S: Final = 180.0
#: Of the best of the grid, what the tuned configuration has to reach.
_LEAST: Final = 0.95
_GRID: Final = (
    ("batch_size", (1, 4, 16, 64, 256)),
    ("num_executors", (1, 2)),
    ("session.intra_threads", (1, 2)),
    ("max_queue_delay_us", (0, 250)),
)
#: Keys that do not interact with the others: tried at the best of the grid.
_ALONE: Final = (
    ("session.graph_level", ("off", "basic", "extended", "all")),
    ("session.memory_arena", (False, True)),
    ("session.memory_pattern", (False, True)),
)
#: Of the grid's first load, so many are measured again, so often.
_FIRST: Final = 4
_ROUNDS: Final = 3
#: Blocks of four loads before anything is said, and how long they go on at most.
_LEAST_BLOCKS: Final = 4
_DECIDING_S: Final = 420.0

#: Runs of one row each, by a session without optimizations: a tuning has far to go.
SINGLE_ROWS = """\
backend: supertensor
batch_size: 1
capacity: 256
num_executors: 1
allocator: cpu
session: {graph_level: "off"}
"""


def residual_network() -> onnx.ModelProto:
    """A network of residual blocks, as ResNet-20 is for images of 32x32, with weights by chance."""
    rng = np.random.default_rng(1)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def convolution(source: str, inner: int, outer: int, size: int, stride: int) -> str:
        name = f"c{len(nodes)}"
        filters = rng.standard_normal((outer, inner, size, size)) / np.sqrt(inner * size * size)
        weights.append(numpy_helper.from_array(filters.astype(np.float32), f"{name}w"))
        weights.append(numpy_helper.from_array(np.zeros(outer, np.float32), f"{name}b"))
        pads = [size // 2] * 4
        inputs = [source, f"{name}w", f"{name}b"]
        nodes.append(helper.make_node("Conv", inputs, [name], pads=pads, strides=[stride, stride]))
        return name

    def relu(source: str) -> str:
        nodes.append(helper.make_node("Relu", [source], [f"r{len(nodes)}"]))
        return str(nodes[-1].output[0])

    value, channels = relu(convolution("IMAGE", 3, 16, 3, 1)), 16
    for stage, outer in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage and not block else 1
            inner = relu(convolution(value, channels, outer, 3, stride))
            inner = convolution(inner, outer, outer, 3, 1)
            short = value if outer == channels else convolution(value, channels, outer, 1, stride)
            nodes.append(helper.make_node("Add", [inner, short], [f"a{len(nodes)}"]))
            value, channels = relu(str(nodes[-1].output[0])), outer
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    weights.append(numpy_helper.from_array(rng.standard_normal((64, 10)).astype(np.float32), "matrix"))
    nodes.append(helper.make_node("MatMul", ["flat", "matrix"], ["SCORES"]))
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("IMAGE", TensorProto.FLOAT, ["n", 3, 32, 32])],
        [helper.make_tensor_value_info("SCORES", TensorProto.FLOAT, ["n", 10])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def two_cores() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    yield
    os.sched_setaffinity(0, before)


def brute_force(bench: Bench, base: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The best of the grid, and how many configurations that were.

    Of many loads the best is a lucky one. So the first few are measured again, and only these loads count.
    """
    space = Space({"m": base}, [Axis("m", name, _with_own(base, name, values)) for name, values in (*_GRID, *_ALONE)])

    def rate(wanted: Mapping[str, object]) -> float:
        return bench.candidate(space.configs(_point(space, wanted))).figures.get("rate", 0.0)

    def best_of(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
        rounds = [[rate(point) for point in points] for _ in range(_ROUNDS)]
        means = [fmean(values) for values in zip(*rounds, strict=True)]
        return points[means.index(max(means))]

    names = [name for name, _ in _GRID]
    points: list[dict[str, Any]] = [
        dict(zip(names, values, strict=True)) for values in product(*(values for _, values in _GRID))
    ]
    rates = [rate(point) for point in points]
    best = best_of([points[at] for at in sorted(range(len(points)), key=lambda at: -rates[at])[:_FIRST]])
    count = len(points)
    for name, values in _ALONE:
        best = best_of([{**best, name: value} for value in values])
        count += len(values)
    return dict(space.configs(_point(space, best))["m"]), count


def decide(bench: Bench, best: Mapping[str, Any], tuned: Mapping[str, Any]) -> tuple[Verdict, bool | None]:
    """Both in turns until it is known whether the second reaches its share of the first; None if that stays open."""
    rng, ratios = np.random.default_rng(), list[float]()
    begun = time.monotonic()
    while True:
        block = []
        for which in block_order(rng):
            sample = bench.candidate({"m": (best, tuned)[which]})
            assert not sample.fault
            block.append((which, sample.figures["rate"]))
        ratios.append(block_ratio(block))
        if len(ratios) < _LEAST_BLOCKS:
            continue
        verdict = verdict_of(ratios)
        if verdict.low >= _LEAST or verdict.high < _LEAST:
            return verdict, verdict.low >= _LEAST
        if time.monotonic() - begun > _DECIDING_S:
            return verdict, None


def _with_own(base: Mapping[str, Any], name: str, values: tuple[Any, ...]) -> list[Any]:
    """The values, with that of the configuration as it is."""
    own = Space({"m": base}, [Axis("m", name, values)])
    try:
        _ = own.start
    except ValueError:
        return [base[name], *values]
    return list(values)


def _point(space: Space, wanted: Mapping[str, object]) -> tuple[int, ...]:
    return tuple(
        axis.values.index(wanted[axis.name]) if axis.name in wanted else place
        for axis, place in zip(space.axes, space.start, strict=True)
    )


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("name", "config", "seconds"),
    [("mlp", "", 0.3), ("mlp", SINGLE_ROWS, 0.3), ("residual", "", 0.3)],
    ids=["mlp", "mlp-badly", "residual"],
)
def test_tuning_reaches_95_percent_of_the_best_of_a_grid_in_three_minutes(
    name: str, config: str, seconds: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "models" / "m"
    (folder / "1").mkdir(parents=True)
    onnx.save(mlp().model if name == "mlp" else residual_network(), folder / "1" / "model.onnx")
    if config:
        (folder / "1" / "config.yaml").write_text(config)
    base = yaml.safe_load(effective_configuration(folder, None, "yaml"))
    begun = time.monotonic()
    output, told = tmp_path / "tuned", tmp_path / "t.json"
    assert main(["tune", str(folder), f"--output={output}", f"--json={told}"]) == 0
    took_s = time.monotonic() - begun
    tuned = yaml.safe_load((output / "config.yaml").read_text()) if output.exists() else base

    place = copy_model(folder, folder / "1", 1, tmp_path / "copy")
    server = Server(tmp_path / "copy", {"m": place}, tmp_path / "log")
    bench = Bench(server, Questions((Target("m"),)), seconds, 64)
    try:
        bench.start({"m": base})
        bench.begin()
        best, count = brute_force(bench, base)
        bench.close()
        bench = Bench(server, Questions((Target("m"),)), _DECIDING_LOAD_S, 64)
        bench.start({"m": base})
        bench.begin()
        same = best == tuned
        verdict, reaches = (verdict_of([0.0, 0.0]), True) if same else decide(bench, best, tuned)
    finally:
        bench.close()
    found = json.loads(told.read_text())
    best_changes = (found["best"] or {}).get("changes")
    with capsys.disabled():
        print(f"\n{name}: {len(found['trials'])} configurations in {took_s:.0f} s set {best_changes}, {found['ratio']}")
        of_grid = {key: value for key, value in best.items() if value != base.get(key)}
        print(f"against the best of {count}, {of_grid}: {'the same' if same else verdict.text()}")
    assert reaches is not None, f"undecided after {_DECIDING_S:.0f} s: {verdict.text()}"
    assert reaches
    assert took_s < _MOST_S
