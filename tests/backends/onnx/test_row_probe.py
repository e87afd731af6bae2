"""What an ONNX model's rows are probed with: what its file says, its samples, and once for equal files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from tests.e2e.dependent_models import running_sum
from toutates.backends.onnx.graph_file import GraphFile
from toutates.backends.onnx.opening import SessionOptions, load_session
from toutates.backends.onnx.preparing import check_graph, prepare
from toutates.backends.onnx.row_probe import FOUND, probe_rows
from toutates.backends.onnx.session import ModelSession
from toutates.backends.probing import Verdict
from toutates.models.config.configuration import load_configuration
from toutates.models.repository import scan_model

#: As ONNX Runtime names them.
CPU, TENSORRT = "CPUExecutionProvider", "TensorrtExecutionProvider"
F = TensorProto.FLOAT
VALUE: Any = ["n", 4]
SAMPLE = "  - {name: %s, batch_size: %d, inputs: {x: {datatype: FP32, shape: [2], data: random}}}\n"
CONFIG = "backend: supertensor\nbatch_size: 16\ncapacity: 16\nnum_executors: 1\nallocator: cpu\n"


class Noting(ModelSession):
    """A session that notes the shapes of its first input."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.shapes: list[tuple[int, ...]] = []

    def run_arrays(self, inputs: Any) -> Any:
        self.shapes.append(tuple(inputs[0].shape))
        return super().run_arrays(inputs)


def probed(
    root: Path,
    model: onnx.ModelProto,
    provider: str = CPU,
    row_ns: int = 0,
    more: str = "",
) -> tuple[Verdict, list[tuple[int, ...]]]:
    """The verdict on a model, and the shapes that it was run with."""
    (root / "1").mkdir(parents=True, exist_ok=True)
    (root / "1" / "model.onnx").write_bytes(model.SerializeToString())
    (root / "1" / "config.yaml").write_text(CONFIG + more)
    configuration = load_configuration(scan_model(root).versions[-1])
    file = GraphFile(configuration.folder.model_path)
    session = load_session(configuration.folder.model_path, SessionOptions())
    checked = check_graph(session, prepare("m", configuration, SessionOptions()), [CPU], root)
    own = Noting(session, checked.graph, "m")
    return probe_rows(own, checked.graph, file, configuration, [provider], row_ns), own.shapes


def test_a_provider_that_prepares_each_shape_runs_those_of_the_warm_up(tmp_path: Path) -> None:
    found, shapes = probed(tmp_path / "none", running_sum(), TENSORRT)
    assert not found.joins
    assert set(shapes) == {(1, 2), (16, 2)}

    samples = "warmup:\n" + SAMPLE % ("one", 1) + SAMPLE % ("some", 3)
    found, shapes = probed(tmp_path / "two", running_sum(), TENSORRT, more=samples)
    assert not found.joins
    assert set(shapes) == {(1, 2), (3, 2)}

    for size in (1, 3):
        samples = "warmup:\n" + SAMPLE % ("one", size)
        found, shapes = probed(tmp_path / "one", running_sum(), TENSORRT, more=samples)
        assert found.joins
        assert "write samples of 1 row and of 4" in found.skipped
        assert not shapes


def test_equal_files_are_probed_once(tmp_path: Path) -> None:
    FOUND.clear()
    first, ran = probed(tmp_path / "a", running_sum())
    again, ran_again = probed(tmp_path / "b", running_sum())
    assert first == again
    assert not first.joins
    assert (len(ran), len(ran_again)) == (15, 0)
    # The word of a configuration makes another question of it.
    said, _ = probed(tmp_path / "c", running_sum(), more="batching: true\n")
    assert said.joins
