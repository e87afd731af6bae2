"""OpenVINO's models and ONNX models, run by OpenVINO."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.testing as npt
import pytest

from tests.backends.frameworks.graphs import mlp, running_sum
from tests.backends.frameworks.support import inspect, predict, refused
from tests.backends.plugins.packages import write_model

# Whose own import switches the GIL on, which the backend avoids.
pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="is not installed: the extra openvino")


def openvino() -> Any:
    from toutates.backends.frameworks import openvino as own

    return own._openvino


def save(root: Path, config: str = "", *, batch: int | str = "n") -> tuple[Path, Any]:
    """An IR, and the weights of its layer."""
    version = write_model(root, "m", config)
    model, weights = mlp(batch=batch)
    (root / "model.onnx").write_bytes(model.SerializeToString())
    openvino().save_model(
        openvino().Core().read_model(root / "model.onnx"), version / "model.xml", compress_to_fp16=False
    )
    return version, weights


@pytest.mark.parametrize("rows", [1, 5])
def test_an_ir_is_served_by_its_file(tmp_path: Path, rows: int) -> None:
    _, weights = save(tmp_path)
    x = np.random.default_rng(2).random((rows, 4), np.float32)
    npt.assert_allclose(predict(tmp_path, {"INPUT": x})["OUTPUT"], x @ weights, rtol=1e-5)
    config = inspect(tmp_path).config()
    assert (config.backend, config.default_model_filename) == ("openvino", "model.xml")


def test_an_onnx_model_is_run_by_openvino_where_the_backend_is_named(tmp_path: Path) -> None:
    model, weights = mlp()
    write_model(tmp_path, "m", 'backend: "openvino"', {"model.onnx": model.SerializeToString()})
    x = np.ones((2, 4), np.float32)
    npt.assert_allclose(predict(tmp_path, {"INPUT": x})["OUTPUT"], x @ weights, rtol=1e-5)


def test_a_fixed_batch_is_opened_where_the_configuration_wants_batches(tmp_path: Path) -> None:
    tensors = (
        'input { name: "INPUT" data_type: TYPE_FP32 dims: 4 } output { name: "OUTPUT" data_type: TYPE_FP32 dims: 3 }'
    )
    _, weights = save(tmp_path, f"max_batch_size: 8 {tensors}", batch=1)
    assert inspect(tmp_path).signature.batched
    x = np.ones((3, 4), np.float32)
    npt.assert_allclose(predict(tmp_path, {"INPUT": x})["OUTPUT"], x @ weights, rtol=1e-5)
    (tmp_path / "m" / "config.pbtxt").unlink()
    assert not inspect(tmp_path).signature.batched


def test_outputs_of_one_run_are_not_overwritten_by_the_next(tmp_path: Path) -> None:
    from toutates.backends.frameworks.openvino import OpenVino
    from toutates.backends.interface import Instance, Source

    version, weights = save(tmp_path)
    backend = OpenVino()
    backend.load(Source("m", 1, version, version / "model.xml"))
    instance = cast(Instance, backend.instance(0, "cpu"))
    first = instance.run({"INPUT": np.ones((2, 4), np.float32)})["OUTPUT"]
    instance.run({"INPUT": np.zeros((2, 4), np.float32)})
    npt.assert_allclose(first, np.ones((2, 4), np.float32) @ weights, rtol=1e-5)


def relu(shape: Any) -> Any:
    """A model y = max(x, 0)."""
    import openvino.opset13 as operators

    x = operators.parameter(openvino().PartialShape(shape), np.float32)
    x.output(0).get_tensor().set_names({"x"})
    y = operators.relu(x)
    y.output(0).get_tensor().set_names({"y"})
    return openvino().Model([y], [x], "m")


STATELESS = 'backend: "openvino" parameters { key: "stateless" value { string_value: "true" } }'
SEQUENCES = 'backend: "openvino" sequence_batching { }'


def test_a_model_with_variables_is_refused_unless_the_configuration_says_whose_they_are(tmp_path: Path) -> None:
    version = write_model(tmp_path, "m", 'backend: "openvino"')
    openvino().save_model(running_sum(), version / "model.xml")
    said = refused(tmp_path)
    assert "it has the variables v (ReadValue, Assign); the next caller would see" in said
    assert "write sequence_batching { }" in said
    assert "stateless: true" in said
    (tmp_path / "m" / "config.pbtxt").write_text(STATELESS + " sequence_batching { }")
    assert "stands beside sequences, each of which has a state of its own" in refused(tmp_path)
    for config in (STATELESS, SEQUENCES):
        (tmp_path / "m" / "config.pbtxt").write_text(config)
        assert not inspect(tmp_path).warnings


def test_each_run_of_a_stateless_model_begins_with_a_fresh_state(tmp_path: Path) -> None:
    from toutates.backends.plugins.kind import PluginKind
    from toutates.models.config.configuration import load_configuration
    from toutates.models.repository import scan_model

    version = write_model(tmp_path, "m", STATELESS)
    openvino().save_model(running_sum(), version / "model.xml")
    kind = PluginKind()
    loaded = kind.open("m", load_configuration(scan_model(tmp_path / "m").versions[-1], kind.backends))
    try:
        x = np.array([[1, 2]], np.float32)
        for _ in range(3):
            [y] = loaded.plain[0].run_arrays({0: x})
            npt.assert_array_equal(np.asarray(y), x)
    finally:
        loaded.close()


BATCHED = (
    ' max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: 2 }'
    ' output { name: "y" data_type: TYPE_FP32 dims: 2 }'
)


@pytest.mark.parametrize("config", [STATELESS + BATCHED, SEQUENCES + BATCHED])
def test_a_state_of_one_row_is_run_with_one_row(tmp_path: Path, config: str) -> None:
    from toutates.backends.plugins.kind import PluginKind
    from toutates.models.config.configuration import load_configuration
    from toutates.models.repository import scan_model
    from toutates.system.errors import InvalidRequest

    version = write_model(tmp_path, "m", config)
    openvino().save_model(running_sum(), version / "model.xml")
    kind = PluginKind()
    loaded = kind.open("m", load_configuration(scan_model(tmp_path / "m").versions[-1], kind.backends))
    try:
        assert loaded.signature.batched
        [y] = loaded.plain[0].run_arrays({0: np.array([[1, 2]], np.float32)})
        npt.assert_array_equal(np.asarray(y), [[1, 2]])
        for _ in range(3):
            with pytest.raises(InvalidRequest, match=r"input 'x' is \[2, 2\], and the model takes \[1,2\]"):
                loaded.plain[0].run_arrays({0: np.zeros((2, 2), np.float32)})
            [y] = loaded.plain[0].run_arrays({0: np.array([[1, 2]], np.float32)})
            npt.assert_array_equal(np.asarray(y), [[1, 2]])
    finally:
        loaded.close()


@pytest.mark.parametrize("shape", [[], [2], [1, 2, 3]])
def test_inputs_of_any_rank_are_served(tmp_path: Path, shape: list[int]) -> None:
    openvino().save_model(relu(shape), write_model(tmp_path, "m", "") / "model.xml", compress_to_fp16=False)
    x = np.full(shape, 2.5, np.float32)
    y = predict(tmp_path, {"x": x})["y"]
    assert y.shape == x.shape
    npt.assert_array_equal(y, x)
    assert inspect(tmp_path).signature.inputs[0].shape == tuple(shape or [1])


def test_an_upper_bound_of_the_batch_is_max_batch_size(tmp_path: Path) -> None:
    dimension = openvino().Dimension
    openvino().save_model(relu([dimension(1, 3), dimension(1, 5)]), write_model(tmp_path, "m", "") / "model.xml")
    found = inspect(tmp_path)
    assert (found.config().max_batch_size, found.warnings) == (3, ())
    tensors = " ".join(f'{role} {{ name: "{name}" data_type: TYPE_FP32 dims: -1 }}' for role, name in IN_AND_OUT)
    (tmp_path / "m" / "config.pbtxt").write_text(f'backend: "openvino" max_batch_size: 16 {tensors}')
    found = inspect(tmp_path)
    assert found.config().max_batch_size == 3
    [warning] = found.warnings
    assert "max_batch_size is 3, because the model takes no more rows" in warning


@pytest.mark.parametrize("shape", [(4, 2), (1, 6)])
def test_a_shape_that_the_model_does_not_take_is_the_clients_fault(tmp_path: Path, shape: tuple[int, int]) -> None:
    from toutates.system.errors import InvalidRequest

    dimension = openvino().Dimension
    openvino().save_model(relu([dimension(1, 3), dimension(1, 5)]), write_model(tmp_path, "m", "") / "model.xml")
    expected = re.escape(f"input 'x' is {list(shape)}, and the model takes [1..3,1..5]")
    with pytest.raises(InvalidRequest, match=expected):
        predict(tmp_path, {"x": np.ones(shape, np.float32)})


IN_AND_OUT = (("input", "x"), ("output", "y"))


def cut_weights(version: Path) -> None:
    (version / "model.bin").write_bytes((version / "model.bin").read_bytes()[:8])


def cut_graph(version: Path) -> None:
    (version / "model.xml").write_bytes((version / "model.xml").read_bytes()[:300])


def no_weights(version: Path) -> None:
    (version / "model.bin").unlink()


def other_file(version: Path) -> None:
    shutil.copy(version / "model.bin", version / "model.xml")


@pytest.mark.parametrize("spoil", [cut_weights, cut_graph, no_weights, other_file])
def test_spoilt_files_are_refused(tmp_path: Path, spoil: Any) -> None:
    version, _ = save(tmp_path)
    spoil(version)
    said = refused(tmp_path)
    assert "OpenVINO cannot load 'model.xml'" in said
    assert "\n" not in said


def test_other_forms_of_files_and_parameters_are_refused(tmp_path: Path) -> None:
    save(tmp_path, 'backend: "openvino" default_model_filename: "model.bin"')
    assert "name a file that ends in .xml or .onnx" in refused(tmp_path)
    (tmp_path / "m" / "config.pbtxt").write_text(
        'backend: "openvino" parameters { key: "NUM_STREAMS" value { string_value: "AUTO" } }'
    )
    assert "parameters['NUM_STREAMS']: is not a whole number from 1" in refused(tmp_path)
