"""The configuration of a version: which file gives it, and what it is once the graph has completed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toutates.models.config.configuration import completed, load_configuration
from toutates.models.config.settings import ModelSettings
from toutates.models.repository import VersionFolder, scan_model
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec

YAML = "backend: supertensor\nbatch_size: 4\ncapacity: 2\nnum_executors: 1\nallocator: cpu\nmodel_filename: own.onnx\n"
FP32 = BY_NAME["FP32"]


def version_of(root: Path, yaml: str = "", pbtxt: str = "") -> VersionFolder:
    folder = root / "m" / "1"
    folder.mkdir(parents=True)
    for name in ("model.onnx", "own.onnx", "other.onnx"):
        (folder / name).touch()
    if yaml:
        (folder / "config.yaml").write_text(yaml)
    if pbtxt:
        (root / "m" / "config.pbtxt").write_text(pbtxt)
    return scan_model(root / "m").versions[0]


PBTXT = "max_batch_size: 9 default_model_filename: 'other.onnx'"


@pytest.mark.parametrize(
    ("yaml", "pbtxt", "overridden", "expected"),
    [
        ("", "", False, (64, "model.onnx", "config.yaml", False, False)),
        ("", "", True, (64, "model.onnx", "config.yaml", False, False)),
        (YAML, "", False, (4, "own.onnx", "config.yaml", False, False)),
        (YAML, "", True, (4, "own.onnx", "config.yaml", False, False)),
        ("", PBTXT, False, (9, "other.onnx", "config.pbtxt", True, False)),
        (YAML, PBTXT, False, (4, "own.onnx", "config.yaml", False, True)),
        (YAML, PBTXT, True, (9, "other.onnx", "config.pbtxt", True, False)),
    ],
)
def test_config_yaml_holds_before_config_pbtxt_unless_that_is_to_hold(
    tmp_path: Path, yaml: str, pbtxt: str, overridden: bool, expected: tuple[Any, ...]
) -> None:
    found = load_configuration(version_of(tmp_path, yaml, pbtxt), overridden=overridden)
    is_triton = found.given is not None and found.declared is not None
    model = found.folder.model_path.name
    assert (found.settings.batch_size, model, found.source.name, is_triton, bool(found.notice)) == expected


GIVEN = ModelSettings(
    batch_size=8,
    num_executors=3,
    max_queue_delay_us=5,
    preferred_batch_sizes=(4, 2, 4),
    preserve_ordering=True,
    devices=("gpu:0", "cpu"),
)
INPUTS = (TensorSpec("x", FP32, (2,), reshape=(1, 2)), TensorSpec("e", FP32, (0,)), TensorSpec("o", FP32, (1,), True))
SCALAR = TensorSpec("y", FP32, (1,), reshape=())


def test_settings_are_completed_with_what_the_graph_has_said() -> None:
    whole = completed(GIVEN, Signature(INPUTS, (SCALAR,), batched=True))
    assert (whole.batch_size, whole.batching, whole.max_queue_delay_us, whole.preserve_ordering) == (8, True, 5, True)
    assert whole.preferred_batch_sizes == (2, 4)
    assert dict(whole.input_shapes) == {"x": (-1, 1, 2), "o": (-1, 1)}  # a size of 0 cannot be written
    assert dict(whole.input_wire_shapes) == {"x": (-1, 2)}
    assert (whole.required_inputs, whole.outputs) == (("x", "e"), ("y",))
    assert whole.devices == ("gpu:0", "gpu:0", "cpu")


def test_settings_of_batches_mean_nothing_to_a_model_that_is_not_batched() -> None:
    whole = completed(GIVEN, Signature(INPUTS[:1], (SCALAR,), batched=False))
    assert (whole.batch_size, whole.batching, whole.max_queue_delay_us, whole.preferred_batch_sizes) == (
        1,
        False,
        0,
        (),
    )
    assert whole.preferred_batch_sizes == ()
    assert dict(whole.input_shapes) == {"x": (1, 2)}
    assert dict(whole.output_wire_shapes) == {}  # of a scalar, which is [1] to clients anyhow


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ((), ()),
        (("auto",), ()),
        (("cpu",), ("cpu",)),
        (("cpu", "cpu"), ("cpu",)),
        (("auto", "cpu"), ("auto", "auto", "cpu")),
    ],
)
def test_devices_are_written_once_where_all_executors_have_the_same(
    given: tuple[str, ...], devices: tuple[str, ...]
) -> None:
    settings = ModelSettings(num_executors=3, devices=given)
    assert completed(settings, Signature((), (), batched=True)).devices == devices


def test_a_preferred_size_that_is_the_greatest_is_none() -> None:
    settings = ModelSettings(batch_size=8, preferred_batch_sizes=(8,))
    assert completed(settings, Signature((), (), batched=True)).preferred_batch_sizes == ()
