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


def stopped_early(path: Path, by: str) -> tuple[Any, Any]:
    """Write a booster whose best iteration is not its last; returns what all trees give, and what those up to it."""
    xgboost = pytest.importorskip("xgboost", reason="is not installed: the extra xgboost")
    y = (ROWS[:, 0] > 0.5).astype(int)
    if by == "train":
        learn, judge = xgboost.DMatrix(ROWS[:100], y[:100]), xgboost.DMatrix(ROWS[100:], 1 - y[100:])
        parameters = {"objective": "binary:logistic", "eval_metric": "logloss", "nthread": 1}
        booster = xgboost.train(
            parameters, learn, 50, evals=[(judge, "e")], early_stopping_rounds=3, verbose_eval=False
        )
        booster.save_model(path)
    else:
        pytest.importorskip("sklearn", reason="is not installed: the extra sklearn")
        model = xgboost.XGBClassifier(n_estimators=50, early_stopping_rounds=3, eval_metric="logloss", n_jobs=1)
        model.fit(ROWS[:100], y[:100], eval_set=[(ROWS[100:], 1 - y[100:])], verbose=False)
        model.save_model(path)
        booster = model.get_booster()
    best = booster.best_iteration
    assert best + 1 < booster.num_boosted_rounds()
    return booster.inplace_predict(ROWS), booster.inplace_predict(ROWS, iteration_range=(0, best + 1))


WITH_BEST = 'parameters { key: "best_iteration" value { string_value: "true" } }'
WITH_ALL = 'parameters { key: "best_iteration" value { string_value: "false" } }'
#: What wrote the file, the configuration, whether the trees end at the best iteration, whether that is warned of.
STOPPED = {
    "scikit-learn": ("classes", "", True, False),
    "scikit-learn, all": ("classes", f'backend: "xgboost" {WITH_ALL}', False, False),
    "train": ("train", "", False, True),
    "train, best": ("train", f'backend: "xgboost" {WITH_BEST}', True, False),
    "train, all": ("train", f'backend: "xgboost" {WITH_ALL}', False, False),
    "fil": ("classes", fil(model_type="xgboost_json"), False, True),
    "fil, best": ("train", fil(model_type="xgboost_json", best_iteration="true"), True, False),
}


@pytest.mark.parametrize(("by", "config", "is_best", "is_warned"), STOPPED.values(), ids=STOPPED.keys())
def test_a_booster_that_was_stopped_early(tmp_path: Path, by: str, config: str, is_best: bool, is_warned: bool) -> None:
    whole, best = stopped_early(write_model(tmp_path, "m", config) / "xgboost.json", by)
    [y] = predict(tmp_path, {"input__0": ROWS}).values()
    npt.assert_allclose(y[:, 0], best if is_best else whole, rtol=1e-6)
    assert abs(whole - best).max() > 0.01
    warnings = inspect(tmp_path).warnings
    assert len(warnings) == is_warned
    if is_warned:
        assert "was stopped early with best_iteration" in warnings[0]
        assert "write the parameter best_iteration: true" in warnings[0]


@pytest.mark.parametrize("predict_as", ["value", "margin"])
def test_a_linear_booster_is_served(tmp_path: Path, predict_as: str) -> None:
    xgboost = pytest.importorskip("xgboost", reason="is not installed: the extra xgboost")
    parameters = {"booster": "gblinear", "objective": "binary:logistic", "nthread": 1}
    booster = xgboost.train(parameters, xgboost.DMatrix(ROWS, ROWS[:, 0] > 0.5), 5)
    config = f'backend: "xgboost" parameters {{ key: "predict" value {{ string_value: "{predict_as}" }} }}'
    booster.save_model(write_model(tmp_path, "m", config) / "xgboost.json")
    [y] = predict(tmp_path, {"input__0": ROWS[:6]}).values()
    expected = booster.predict(xgboost.DMatrix(ROWS[:6]), output_margin=predict_as == "margin")
    npt.assert_allclose(y[:, 0], expected, rtol=1e-6)


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


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("config", ["", fil(model_type="lightgbm")])
def test_a_text_of_lightgbm_with_the_line_ends_of_windows_is_read(tmp_path: Path, config: str, mark: bytes) -> None:
    booster = lightgbm_model()
    path = write_model(tmp_path, "m", config) / "model.txt"
    path.write_bytes(mark + booster.model_to_string().replace("\n", "\r\n").encode())
    [y] = predict(tmp_path, {"input__0": ROWS}).values()
    npt.assert_allclose(y[:, 0], booster.predict(ROWS), rtol=1e-6)


def test_what_fil_cannot_be_here_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "m", fil(model_type="treelite_checkpoint"))
    assert "parameters['model_type']: is not one of xgboost, xgboost_json" in refused(tmp_path)
    write_model(tmp_path, "n", fil(model_type="lightgbm", threshold="half"))
    assert "parameters['threshold']: is not a number (got 'half')" in refused(tmp_path, "n")
    write_model(tmp_path, "o", fil(model_type="lightgbm"))
    assert f"unable to find '{tmp_path}/o/1/model.txt'" in refused(tmp_path, "o")
