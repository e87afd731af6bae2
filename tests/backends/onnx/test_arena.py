"""The memory of runs of many sizes: ONNX Runtime's arena gives back what a large one has taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.graphs import model, tensor
from toutates.backends.onnx import session as session_module
from toutates.backends.onnx.executor_sessions import executor_session_options
from toutates.backends.onnx.opening import SessionOptions, load_session
from toutates.backends.onnx.session import ModelSession
from toutates.backends.onnx.signature_reader import read_signature
from toutates.engine.padded.lanes import Entry, PaddedBatch, PaddedLane, PaddedLanes
from toutates.engine.padded.padding import PaddedInput, Padding
from toutates.models.config.padding import PaddedTensor, PaddingSettings
from toutates.models.config.settings import ModelSettings

#: y = the sum of x multiplied by itself, each number with each: 4 bytes x length squared in between.
SQUARE = model(
    [
        helper.make_node("Unsqueeze", ["x", "one"], ["row"]),
        helper.make_node("Unsqueeze", ["x", "two"], ["column"]),
        helper.make_node("Mul", ["row", "column"], ["product"]),
        helper.make_node("ReduceSum", ["product", "both"], ["y"], keepdims=0),
    ],
    [tensor("x", ["n", "length"])],
    [tensor("y", ["n"])],
    one=np.array([1], np.int64),
    two=np.array([2], np.int64),
    both=np.array([1, 2], np.int64),
)
PADDING = Padding({0: PaddedInput(0)})
SETTINGS = ModelSettings(padding=PaddingSettings({"x": PaddedTensor()}))
LARGE = 4_096
MIB = 2**20


def resident_mib() -> float:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) / 1_024


@pytest.mark.alone
def test_the_arena_gives_back_what_a_large_run_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.onnx").write_bytes(SQUARE)
    options = executor_session_options(SessionOptions(), SETTINGS, 0, model="m", source=tmp_path)
    assert options.memory_arena
    assert not options.memory_pattern
    loaded = load_session(tmp_path / "model.onnx", options)
    signature = read_signature(loaded, SETTINGS, source=tmp_path)
    session = ModelSession(loaded, signature, "m", shrinks_in_time=True)
    lanes = PaddedLanes(signature, 8, PADDING)

    def run(length: int) -> float:
        """Run a row of ones; returns the memory of the process afterwards."""
        lane = lanes.find(((0, (length,)),))
        assert isinstance(lane, PaddedLane)
        entry = Entry(length, 0, None, 1, [np.ones(length, np.float32).tobytes()])
        outputs = session.run(PaddedBatch(lane, [entry], 1), 0, 1)
        [data] = outputs.data
        assert isinstance(data, bytes)
        assert np.frombuffer(data, np.float32)[0] == pytest.approx(length**2)
        return resident_mib()

    before = run(8)
    monkeypatch.setattr(session_module, "_SHRINK_NS", 2**62)
    taken = 4 * LARGE**2 / MIB
    assert run(LARGE) > before + taken / 2
    monkeypatch.setattr(session_module, "_SHRINK_NS", 0)
    assert run(8) < before + taken / 2
