"""Warm-up samples: checked against the model, and made into arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toutates.models.config.settings import ModelSettings, WarmupInput, WarmupSample
from toutates.models.config.warmup import check_warmup, warmup_arrays
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.protocol.strings import StringTensor
from toutates.system.errors import ConfigurationError

SOURCE = Path("m/config.pbtxt")
SIGNATURE = Signature(
    inputs=(
        TensorSpec("x", BY_NAME["FP32"], (2, -1)),
        TensorSpec("s", BY_NAME["INT32"], (1,), reshape=()),
    ),
    outputs=(),
    batched=True,
)
X, S = WarmupInput("FP32", (2, 3), "random"), WarmupInput("INT32", (1,))


def check(tmp_path: Path, *samples: WarmupSample, batch_size: int = 8) -> None:
    check_warmup(ModelSettings(batch_size=batch_size, warmup=samples), SIGNATURE, tmp_path, SOURCE)


def test_a_sample_that_fits_passes(tmp_path: Path) -> None:
    check(tmp_path, WarmupSample("a", {"x": X, "s": S}, batch_size=8))
    check(tmp_path, WarmupSample("a", {"x": X, "s": WarmupInput("INT32", ())}))
    (tmp_path / "warmup").mkdir()
    for size in (24, 100):  # of one row, and more
        (tmp_path / "warmup" / "file").write_bytes(bytes(size))
        check(tmp_path, WarmupSample("a", {"x": WarmupInput("FP32", (2, 3), "file", "file"), "s": S}))


def test_a_sample_may_leave_optional_inputs_out_and_an_unbatched_model_takes_one_request(tmp_path: Path) -> None:
    optional = Signature((*SIGNATURE.inputs, TensorSpec("o", BY_NAME["FP32"], (1,), True)), (), batched=False)
    for batch_size in (1, 2):
        settings = ModelSettings(warmup=(WarmupSample("a", {"x": X, "s": S}, batch_size=batch_size),))
        if batch_size == 1:
            check_warmup(settings, optional, tmp_path, SOURCE)
        else:
            with pytest.raises(ConfigurationError, match="write at most 1"):
                check_warmup(settings, optional, tmp_path, SOURCE)


BAD = {
    "input left out": (WarmupSample("a", {"x": X}), "warmup 'a' inputs: lack s"),
    "unknown input": (WarmupSample("a", {"x": X, "s": S, "q": S}), "inputs['q']: the model has no such input"),
    "datatype": (
        WarmupSample("a", {"x": X, "s": WarmupInput("INT64", (1,))}),
        "inputs['s'] datatype: is not the model's (got 'INT64'); write INT32",
    ),
    "size": (
        WarmupSample("a", {"x": WarmupInput("FP32", (3, 3)), "s": S}),
        "inputs['x'] shape: is not the model's (got [3, 3]); write a shape like [2, -1]",
    ),
    "rank": (WarmupSample("a", {"x": WarmupInput("FP32", (2,)), "s": S}), "shape: is not the model's (got [2])"),
    "no dimensions": (WarmupSample("a", {"x": WarmupInput("FP32", ()), "s": S}), "shape: is not the model's (got [])"),
    "two for a scalar": (
        WarmupSample("a", {"x": X, "s": WarmupInput("INT32", (2,))}),
        "inputs['s'] shape: is not the model's (got [2])",
    ),
    "batch": (WarmupSample("a", {"x": X, "s": S}, batch_size=9), "batch_size: is more than the model takes at once"),
    "no file": (
        WarmupSample("a", {"x": WarmupInput("FP32", (2, 1), "file", "gone"), "s": S}),
        "inputs['x'] file: cannot be read: No such file or directory",
    ),
    "short file": (
        WarmupSample("a", {"x": WarmupInput("FP32", (2, 3), "file", "short"), "s": S}),
        "inputs['x'] file: has 8 bytes, one row has 24",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sample", "problem"), BAD.values(), ids=BAD.keys())
def test_a_sample_that_does_not_fit_is_refused(tmp_path: Path, sample: WarmupSample, problem: str) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short").write_bytes(bytes(8))
    with pytest.raises(ConfigurationError) as caught:
        check(tmp_path, sample)
    assert str(caught.value).startswith(f"{SOURCE}: warmup 'a'")
    assert problem in str(caught.value)


def test_arrays_have_the_graph_s_shapes_and_equal_rows(tmp_path: Path) -> None:
    arrays: Any = warmup_arrays(WarmupSample("a", {"x": X, "s": S}, batch_size=4), SIGNATURE, "m", tmp_path)
    assert (arrays[0].shape, arrays[0].dtype.name) == ((4, 2, 3), "float32")
    assert (arrays[1].shape, arrays[1].dtype.name) == ((4,), "int32")
    assert np.ptp(arrays[0]) > 0
    np.testing.assert_array_equal(arrays[0][0], arrays[0][3])
    assert not arrays[1].any()


@pytest.mark.parametrize("datatype", BY_NAME)
@pytest.mark.parametrize("data", ["zero", "random"])
def test_every_datatype_can_be_made(tmp_path: Path, datatype: str, data: str) -> None:
    signature = Signature((TensorSpec("x", BY_NAME[datatype], (5,)),), (), batched=False)
    own = WarmupInput(datatype, (5,), "zero" if data == "zero" else "random")
    made = warmup_arrays(WarmupSample("a", {"x": own}), signature, "m", tmp_path)[0]
    if isinstance(made, StringTensor):
        assert (datatype, made.shape, made.elements()) == ("BYTES", (5,), [b""] * 5)
    else:
        assert (made.shape, made.dtype) == ((5,), BY_NAME[datatype].numpy)


def test_files_hold_raw_contents(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "texts").write_bytes(b"\1\0\0\0a\2\0\0\0bc")
    (tmp_path / "warmup" / "numbers").write_bytes(np.arange(9, dtype=np.int16).tobytes())
    signature = Signature(
        (TensorSpec("t", BY_NAME["BYTES"], (2,)), TensorSpec("n", BY_NAME["INT16"], (2, 2))), (), batched=False
    )
    inputs = {"t": WarmupInput("BYTES", (2,), "file", "texts"), "n": WarmupInput("INT16", (2, 2), "file", "numbers")}
    arrays = warmup_arrays(WarmupSample("a", inputs), signature, "m", tmp_path)
    assert isinstance(arrays[0], StringTensor)
    assert arrays[0].elements() == [b"a", b"bc"]
    assert isinstance(arrays[1], np.ndarray)
    assert arrays[1].tolist() == [[0, 1], [2, 3]]
    (tmp_path / "warmup" / "texts").write_bytes(b"\1\0\0\0")
    with pytest.raises(ConfigurationError, match="warmup/texts: cannot be used: incomplete string data"):
        warmup_arrays(WarmupSample("a", inputs), signature, "m", tmp_path)
