"""How much memory the batches of a version may take."""

from __future__ import annotations

import pytest

from toutates.engine.lane import MAX_BATCH_BYTES
from toutates.models import capacity as capacity_module
from toutates.models.capacity import capacity_bytes, whole_batch
from toutates.models.config.settings import ModelSettings
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec

FP32, BYTES = BY_NAME["FP32"], BY_NAME["BYTES"]


def signature(*inputs: TensorSpec, batched: bool = True) -> Signature:
    return Signature(inputs, (TensorSpec("y", FP32, (-1,)),), batched=batched)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        pytest.param((TensorSpec("x", FP32, (4,)),), (8, 8 * 16), id="rows of a known size"),
        pytest.param(
            (TensorSpec("x", FP32, (4,)), TensorSpec("o", FP32, (9,), True)), (8, 8 * 16), id="an optional input"
        ),
        pytest.param((TensorSpec("x", FP32, (-1,)),), None, id="an open size"),
        pytest.param((TensorSpec("x", FP32, (0,)),), (8, 0), id="no elements"),
        pytest.param((TensorSpec("x", BYTES, (1,)),), (8, 0), id="BYTES"),
        pytest.param((TensorSpec("x", BYTES, (-1,)), TensorSpec("z", FP32, (4,))), (8, 0), id="BYTES of an open size"),
        pytest.param((TensorSpec("o", FP32, (9,), True),), (8, 0), id="nothing that is always given"),
        pytest.param((TensorSpec("x", FP32, (2**20,)),), (8, 8 * 2**22), id="rows of 4 MiB"),
    ],
)
def test_a_whole_batch_has_rows_and_bytes(inputs: tuple[TensorSpec, ...], expected: tuple[int, int] | None) -> None:
    assert whole_batch(ModelSettings(batch_size=8), signature(*inputs)) == expected


def test_a_batch_of_an_unbatched_model_is_one_request() -> None:
    assert whole_batch(ModelSettings(batch_size=8), signature(TensorSpec("x", BYTES, (1,)), batched=False)) == (1, 0)


def test_the_bound_is_configured_or_capacity_batches_within_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    known, open_size = signature(TensorSpec("x", FP32, (4,))), signature(TensorSpec("x", FP32, (-1,)))
    large = signature(TensorSpec("x", FP32, (2**25,)))
    monkeypatch.setattr(capacity_module, "available_memory", lambda: 2**40)
    assert capacity_bytes(ModelSettings(capacity_bytes=7), known) == 7
    for one in (known, open_size):
        assert capacity_bytes(ModelSettings(capacity=3), one) == 3 * MAX_BATCH_BYTES
    assert capacity_bytes(ModelSettings(capacity=3), large) == 3 * 2**27
    monkeypatch.setattr(capacity_module, "available_memory", lambda: 100)
    assert capacity_bytes(ModelSettings(capacity=3), known) == 50
