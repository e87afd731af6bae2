"""Which runs warm-up makes of a backend, and how many at most."""

from __future__ import annotations

from pathlib import Path

import pytest

from toutates.backends.warming import Inputs, warm_up
from toutates.models.config.settings import ModelSettings, WarmupInput, WarmupSample
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec

ROW = TensorSpec("x", BY_NAME["FP32"], (4,))
SIGNATURE = Signature((ROW,), (ROW,), batched=True)


class Noted:
    """A backend whose runs all take the same time, nanoseconds, and that notes their shapes."""

    def __init__(self, run_ns: int, *, on_cpu: bool = True) -> None:
        self.started_ns, self.ended_ns = 0, run_ns
        self.on_cpu = on_cpu
        self.shapes: list[tuple[int, ...]] = []

    def run_arrays(self, inputs: Inputs) -> None:
        self.shapes.append(inputs[0].shape)


@pytest.mark.parametrize(
    ("run_ns", "on_cpu", "expected"),
    [(900_000, True, [(1, 4)]), (900_000, False, [(1, 4), (4, 4)]), (1_000_000, True, [(1, 4), (4, 4)])],
    ids=["small", "small, on a device", "not small"],
)
def test_of_a_small_model_on_the_cpu_no_whole_batch_is_run(
    run_ns: int, on_cpu: bool, expected: list[tuple[int, ...]]
) -> None:
    backend = Noted(run_ns, on_cpu=on_cpu)
    warm_up([backend], ModelSettings(batch_size=4), SIGNATURE, "m", Path())
    assert backend.shapes == expected


@pytest.mark.parametrize(("repeating_ns", "samples", "expected"), [(2**62, 1, 1_000), (0, 3, 6), (2**62, 600, 1_000)])
def test_warm_up_is_bounded_and_says_so(
    caplog: pytest.LogCaptureFixture, repeating_ns: int, samples: int, expected: int
) -> None:
    sessions = [Noted(100), Noted(100)]
    sample = WarmupSample("a", {"x": WarmupInput("FP32", (4,))}, count=1_000_000)
    settings = ModelSettings(batch_size=4, warmup=(sample,) * samples)
    warm_up(sessions, settings, SIGNATURE, "m", Path(), repeating_ns=repeating_ns)
    assert sum(len(session.shapes) for session in sessions) == expected
    assert f"model 'm': {expected} of {2_000_000 * samples} warm-up runs were made" in caplog.text
