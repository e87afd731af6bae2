"""LightGBM's models against LightGBM's own Python package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.backends.frameworks.support import inspect, predict, refused
from tests.backends.plugins.packages import write_model
from tests.optional import skip_without
from toutates.backends.frameworks import lightgbm
from toutates.system.errors import ExecutionFailed
from toutates.system.poison import VARIABLE

skip_without("lightgbm", "is not installed: the extra lightgbm")

ROWS = np.random.default_rng(0).random((200, 5))
OBJECTIVES: dict[str, tuple[dict[str, Any], Any]] = {
    "regression": ({"objective": "regression"}, ROWS.sum(1)),
    "binary": ({"objective": "binary"}, ROWS[:, 0] > 0.5),
    "multiclass": ({"objective": "multiclass", "num_class": 3}, (ROWS[:, 0] * 3).astype(int)),
}


def train(objective: str) -> Any:
    import lightgbm

    parameters, labels = OBJECTIVES[objective]
    quiet = {"verbosity": -1, "num_threads": 1, "min_data_in_leaf": 5}
    return lightgbm.train({**quiet, **parameters}, lightgbm.Dataset(ROWS, label=labels), 5)


def save(root: Path, booster: Any, config: str = "", *, name: str = "model.txt") -> Path:
    path = write_model(root, "m", config) / name
    booster.save_model(path)
    return path


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("rows", [1, 7])
def test_predictions_are_lightgbms(tmp_path: Path, objective: str, rows: int) -> None:
    booster = train(objective)
    save(tmp_path, booster)
    x = ROWS[:rows].astype(np.float32)
    x[0, 1] = np.nan
    [y] = predict(tmp_path, {"input__0": x}).values()
    expected = booster.predict(x).reshape(rows, -1).astype(np.float32)
    npt.assert_array_equal(y, expected)


def test_names_and_datatypes_are_those_of_the_configuration(tmp_path: Path) -> None:
    booster = train("binary")
    config = (
        'backend: "lightgbm" max_batch_size: 16 input { name: "features" data_type: TYPE_FP64 dims: 5 } '
        'output { name: "score" data_type: TYPE_FP64 dims: 1 } '
        'parameters { key: "predict" value { string_value: "raw_score" } }'
    )
    save(tmp_path, booster, config)
    y = predict(tmp_path, {"features": ROWS[:3]})["score"]
    npt.assert_array_equal(y[:, 0], booster.predict(ROWS[:3], raw_score=True))


@pytest.mark.parametrize("kind", ["leaf_index", "contrib"])
def test_leaves_and_contributions_are_told_where_the_parameter_says_so(tmp_path: Path, kind: str) -> None:
    booster = train("multiclass")
    save(tmp_path, booster, f'backend: "lightgbm" parameters {{ key: "predict" value {{ string_value: "{kind}" }} }}')
    [y] = predict(tmp_path, {"input__0": ROWS[:4].astype(np.float32)}).values()
    options: dict[str, Any] = {"pred_leaf": True} if kind == "leaf_index" else {"pred_contrib": True}
    npt.assert_allclose(y, booster.predict(ROWS[:4].astype(np.float32), **options).reshape(4, -1), rtol=1e-6)


def test_tensors_come_from_the_file(tmp_path: Path) -> None:
    save(tmp_path, train("multiclass"))
    inspected = inspect(tmp_path)
    [x], [y] = inspected.signature.inputs, inspected.signature.outputs
    assert (x.name, x.shape, y.name, y.shape, inspected.signature.batched) == (
        "input__0",
        (5,),
        "output__0",
        (3,),
        True,
    )
    config = inspected.config()
    assert (config.backend, config.default_model_filename) == ("lightgbm", "model.txt")


@pytest.mark.parametrize("kept", [0.02, 0.3, 0.7])
def test_a_file_that_is_cut_short_does_not_end_the_server(tmp_path: Path, kept: float) -> None:
    path = save(tmp_path, train("multiclass"))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    said = refused(tmp_path)
    assert "LightGBM cannot read 'model.txt', which is cut short or no model of its text format" in said


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\0" * 1_000, b"tree\nversion=v4\n"])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    write_model(tmp_path, "m", 'backend: "lightgbm"', {"model.txt": content})
    assert "LightGBM cannot read 'model.txt'" in refused(tmp_path)


def test_parameters_without_a_named_backend_are_refused(tmp_path: Path) -> None:
    save(tmp_path, train("regression"), 'parameters { key: "predict" value { string_value: "raw_score" } }')
    assert "parameters: are read for a backend only where the file names it; write backend: 'light" in refused(tmp_path)


def test_a_declared_shape_that_is_not_the_files_is_refused(tmp_path: Path) -> None:
    config = (
        'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: 6 } '
        'output { name: "y" data_type: TYPE_FP32 dims: 1 }'
    )
    save(tmp_path, train("regression"), config)
    assert "the model expects 2 dimensions (shape [-1,5])" in refused(tmp_path)


def test_the_python_package_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, train("regression"))
    monkeypatch.setitem(sys.modules, "lightgbm.basic", None)
    inspect(tmp_path)


@pytest.mark.parametrize("rows", [1, 7])
def test_results_that_the_library_has_not_written_are_found(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    save(tmp_path, train("regression"))
    predictor = lightgbm._PoisonedPredictor

    class Careless(predictor):  # type: ignore[valid-type, misc]
        """Calls that compute nothing."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._one = self._many = lambda *arguments: 0
            self._written.value = rows  # as they say

    x = {"input__0": ROWS[:rows].astype(np.float32)}
    [sound] = predict(tmp_path, x).values()
    assert sound.shape == (rows, 1)
    monkeypatch.setattr(lightgbm, "_PoisonedPredictor", Careless)
    with pytest.raises(ExecutionFailed, match="output 'output__0' of model 'm' has memory that nobody wrote"):
        predict(tmp_path, x)
