"""scikit-learn's models, saved by skops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.backends.frameworks.support import inspect, predict, refused
from tests.backends.plugins.packages import write_model

skops = pytest.importorskip("skops.io", reason="is not installed: the extra sklearn")

ROWS = np.random.default_rng(0).random((60, 4))


def classifier(labels: Any) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, labels)


def save(root: Path, model: Any, config: str = "") -> Path:
    path = write_model(root, "m", config) / "model.skops"
    skops.dump(model, path)
    return path


@pytest.mark.parametrize("names", [False, True])
def test_a_classifier_gives_labels_and_probabilities(tmp_path: Path, names: bool) -> None:
    numbers = (ROWS[:, 0] > 0.5).astype(int)
    model = classifier(np.array(["no", "yes"])[numbers] if names else numbers)
    save(tmp_path, model)
    x = ROWS[:5].astype(np.float32)
    got = predict(tmp_path, {"input__0": x})
    npt.assert_allclose(got["probabilities"], model.predict_proba(x), rtol=1e-5)
    signature = inspect(tmp_path).signature
    assert [(tensor.name, tensor.datatype.name) for tensor in signature.outputs] == [
        ("label", "BYTES" if names else "INT64"),
        ("probabilities", "FP32"),
    ]
    if not names:
        npt.assert_array_equal(got["label"], model.predict(x))


def test_only_what_the_configuration_lists_is_computed(tmp_path: Path) -> None:
    model = classifier((ROWS[:, 0] > 0.5).astype(int))
    config = (
        'backend: "sklearn" max_batch_size: 8 input { name: "x" data_type: TYPE_FP64 dims: 4 } '
        'output { name: "probabilities" data_type: TYPE_FP32 dims: 2 }'
    )
    save(tmp_path, model, config)
    assert list(predict(tmp_path, {"x": ROWS[:2]})) == ["probabilities"]


def test_types_that_are_not_trusted_have_to_be_named(tmp_path: Path) -> None:
    from sklearn.tree import DecisionTreeRegressor

    model = DecisionTreeRegressor(max_depth=3).fit(ROWS, ROWS.sum(1))
    save(tmp_path, model)
    assert "name them in the parameter trusted_types: sklearn.tree._tree.Tree" in refused(tmp_path)
    (tmp_path / "m" / "config.pbtxt").write_text(
        'backend: "sklearn" parameters { key: "trusted_types" value { string_value: "sklearn.tree._tree.Tree" } }'
    )
    npt.assert_array_equal(
        predict(tmp_path, {"input__0": ROWS[:3].astype(np.float32)})["prediction"], model.predict(ROWS[:3])
    )


@pytest.mark.parametrize("kept", [0, 50, 500])
def test_spoilt_files_are_refused(tmp_path: Path, kept: int) -> None:
    path = save(tmp_path, classifier((ROWS[:, 0] > 0.5).astype(int)))
    path.write_bytes(path.read_bytes()[:kept])
    assert "skops cannot read 'model.skops'" in refused(tmp_path)
