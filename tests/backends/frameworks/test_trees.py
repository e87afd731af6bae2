"""XGBoost's models, and Triton's backend of tree ensembles (FIL) by XGBoost and LightGBM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.backends.frameworks.support import inspect, predict, refused
from tests.backends.plugins.packages import write_model

ROWS = np.random.default_rng(0).random((200, 5)).astype(np.float32)
CLASSES = (ROWS[:, 0] * 3).astype(int)


def xgboost_model(objective: str) -> Any:
    xgboost = pytest.importorskip("xgboost", reason="is not installed: the extra xgboost")
    parameters = {"objective": objective, "nthread": 1, "verbosity": 0}
    labels = ROWS.sum(1)
    if objective == "multi:softprob":
        parameters["num_class"], labels = 3, CLASSES
    elif objective == "binary:logistic":
        labels = ROWS[:, 0] > 0.5
    return xgboost.train(parameters, xgboost.DMatrix(ROWS, label=labels), 4)


def lightgbm_model() -> Any:
    lightgbm = pytest.importorskip("lightgbm", reason="is not installed: the extra lightgbm")
    parameters = {"objective": "binary", "verbosity": -1, "num_threads": 1}
    return lightgbm.train(parameters, lightgbm.Dataset(ROWS, label=ROWS[:, 0] > 0.5), 4)


def fil(**parameters: str) -> str:
    written = (f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in parameters.items())
    return f'backend: "fil" max_batch_size: 16 {" ".join(written)}'


@pytest.mark.parametrize("objective", ["reg:squarederror", "binary:logistic", "multi:softprob"])
@pytest.mark.parametrize("file", ["xgboost.json", "xgboost.ubj"])
def test_predictions_are_xgboosts(tmp_path: Path, objective: str, file: str) -> None:
    booster = xgboost_model(objective)
    booster.save_model(write_model(tmp_path, "m", "") / file)
    x = ROWS[:6].copy()
    x[0, 0] = np.nan
    [y] = predict(tmp_path, {"input__0": x}).values()
    npt.assert_allclose(y, booster.inplace_predict(x).reshape(6, -1), rtol=1e-6)
    assert inspect(tmp_path).config().backend == "xgboost"


@pytest.mark.parametrize("kept", [0, 100, 0.5])
@pytest.mark.parametrize("file", ["xgboost.json", "xgboost.ubj"])
def test_spoilt_files_are_refused(tmp_path: Path, file: str, kept: float) -> None:
    path = write_model(tmp_path, "m", "") / file
    xgboost_model("reg:squarederror").save_model(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept if kept != 0.5 else len(content) / 2)])
    said = refused(tmp_path)
    assert f"XGBoost cannot read '{file}'" in said
    assert "\n" not in said


def test_a_classifier_of_fil_gives_classes_or_probabilities(tmp_path: Path) -> None:
    booster = xgboost_model("multi:softprob")
    expected = booster.inplace_predict(ROWS)
    for name, more in (("classes", {}), ("all", {"predict_proba": "true"})):
        config = fil(model_type="xgboost_json", is_classifier="true", threshold="0.5", **more)
        booster.save_model(write_model(tmp_path, name, config) / "xgboost.json")
    npt.assert_array_equal(predict(tmp_path, {"input__0": ROWS}, "classes")["output__0"][:, 0], expected.argmax(1))
    npt.assert_allclose(predict(tmp_path, {"input__0": ROWS}, "all")["output__0"], expected, rtol=1e-6)


def test_a_binary_classifier_of_fil_has_a_threshold_and_two_probabilities(tmp_path: Path) -> None:
    booster = lightgbm_model()
    expected = booster.predict(ROWS)
    configs = {
        "classes": fil(model_type="lightgbm", output_class="true", threshold="0.7"),
        "all": fil(model_type="lightgbm", output_class="true", predict_proba="true"),
        "values": fil(model_type="lightgbm", storage_type="AUTO"),
    }
    for name, config in configs.items():
        booster.save_model(write_model(tmp_path, name, config) / "model.txt")
    got = {name: predict(tmp_path, {"input__0": ROWS}, name)["output__0"] for name in configs}
    npt.assert_array_equal(got["classes"][:, 0], expected > 0.7)
    npt.assert_allclose(got["all"], np.stack([1 - expected, expected], axis=1), rtol=1e-5)
    npt.assert_allclose(got["values"][:, 0], expected, rtol=1e-6)


def test_what_fil_cannot_be_here_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "m", fil(model_type="treelite_checkpoint"))
    assert "parameters['model_type']: is not one of xgboost, xgboost_json" in refused(tmp_path)
    write_model(tmp_path, "n", fil(model_type="lightgbm", threshold="half"))
    assert "parameters['threshold']: is not a number (got 'half')" in refused(tmp_path, "n")
    write_model(tmp_path, "o", fil(model_type="lightgbm"))
    assert f"unable to find '{tmp_path}/o/1/model.txt'" in refused(tmp_path, "o")
