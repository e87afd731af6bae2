"""scikit-learn's models, saved by skops."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.backends.frameworks.support import inspect, opened, predict, refused
from tests.backends.plugins.packages import write_model
from toutates.protocol.strings import EncodedStrings
from toutates.system.errors import ExecutionFailed

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


def fitted(kind: str) -> tuple[Any, Any]:
    """A model that does not answer a row of zeros, and rows that it answers."""
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.neighbors import RadiusNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, PowerTransformer

    x = np.random.default_rng(1).integers(1, 4, (200, 2)).astype(float)
    y = np.array(["no", "yes"])[(x[:, 0] > 1).astype(int)]
    if kind == "radius":
        return RadiusNeighborsClassifier(radius=0.5).fit(x, y), x
    if kind == "log":
        return make_pipeline(FunctionTransformer(np.log), LinearRegression()).fit(x, np.stack([x[:, 0], x[:, 1]], 1)), x
    first = {"onehot": OneHotEncoder, "ordinal": OrdinalEncoder, "box-cox": partial(PowerTransformer, "box-cox")}[kind]
    return make_pipeline(first(), LogisticRegression()).fit(x, y), x


@pytest.mark.parametrize("kind", ["onehot", "ordinal", "box-cox", "log", "radius"])
def test_a_row_of_zeros_does_not_decide_whether_a_model_is_served(tmp_path: Path, kind: str) -> None:
    model, x = fitted(kind)
    save_trusted(tmp_path, model)
    got = predict(tmp_path, {"input__0": x[:5].astype(np.float32)})
    signature = inspect(tmp_path).signature
    if kind == "log":
        npt.assert_allclose(got["prediction"], model.predict(x[:5]), rtol=1e-6)
        assert [(tensor.datatype.name, tensor.shape) for tensor in signature.outputs] == [("FP64", (2,))]
        return
    expected = [text.encode() for text in model.predict(x[:5])]
    assert got["label"].item().content == EncodedStrings.of(expected, (5,)).content
    npt.assert_allclose(got["probabilities"], model.predict_proba(x[:5]), rtol=1e-5)
    assert [(tensor.name, tensor.datatype.name, tensor.shape) for tensor in signature.outputs] == [
        ("label", "BYTES", (1,)),
        ("probabilities", "FP32", (2,)),
    ]


def save_trusted(root: Path, model: Any, config: str = 'backend: "sklearn"') -> None:
    path = save(root, model, config)
    types = ", ".join(skops.get_untrusted_types(file=path))
    (root / "m" / "config.pbtxt").write_text(
        f'{config} parameters {{ key: "trusted_types" value {{ string_value: "{types}" }} }}'
    )


def table() -> tuple[Any, Any]:
    pandas = pytest.importorskip("pandas", reason="is not installed")
    rng = np.random.default_rng(2)
    frame = pandas.DataFrame({"age": rng.random(60), "city": rng.choice(["Rom", "Köln"], 60), "rooms": [1, 2, 3] * 20})
    return frame, (frame["city"] == "Rom") & (frame["age"] > 0.3)


def of_columns(*, with_imputer: bool = False) -> tuple[Any, Any]:
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame, y = table()
    encoder = OneHotEncoder()
    of_texts = make_pipeline(SimpleImputer(strategy="most_frequent"), encoder) if with_imputer else encoder
    columns = make_column_transformer((of_texts, ["city"]), (OneHotEncoder(), ["rooms"]), (StandardScaler(), ["age"]))
    return make_pipeline(columns, LogisticRegression()).fit(frame, y), frame


@pytest.mark.parametrize("with_imputer", [False, True])
def test_named_columns_some_of_which_are_texts_are_inputs_of_their_own(tmp_path: Path, with_imputer: bool) -> None:
    model, frame = of_columns(with_imputer=with_imputer)
    save_trusted(tmp_path, model)
    found = {tensor.name: (tensor.datatype.name, tensor.shape) for tensor in inspect(tmp_path).signature.inputs}
    assert found == {"age": ("FP64", (1,)), "city": ("BYTES", (1,)), "rooms": ("INT64", (1,))}
    own = frame.iloc[:7]
    inputs = {
        "age": own[["age"]].to_numpy(),
        "city": np.array([[city.encode()] for city in own["city"]], object),
        "rooms": own[["rooms"]].to_numpy(),
    }
    got = predict(tmp_path, inputs)
    npt.assert_array_equal(got["label"], model.predict(own))
    npt.assert_allclose(got["probabilities"], model.predict_proba(own), rtol=1e-5)


def test_the_configuration_says_the_types_of_named_columns(tmp_path: Path) -> None:
    model, frame = of_columns()
    inputs = "".join(
        f'input {{ name: "{name}" data_type: TYPE_{datatype} dims: [ 1 ] }} '
        for name, datatype in (("age", "FP32"), ("city", "STRING"), ("rooms", "INT32"))
    )
    save_trusted(tmp_path, model, f'backend: "sklearn" max_batch_size: 8 {inputs}')
    own = frame.iloc[:3]
    got = predict(
        tmp_path,
        {
            "age": own[["age"]].to_numpy(np.float32),
            "city": np.array([[city.encode()] for city in own["city"]], object),
            "rooms": own[["rooms"]].to_numpy(np.int32),
        },
    )
    npt.assert_array_equal(got["label"], model.predict(own))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_named_columns_of_numbers_are_one_input(tmp_path: Path) -> None:
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    frame, y = table()
    frame = frame[["age", "rooms"]]
    by_name = make_column_transformer((StandardScaler(), ["rooms"]), remainder="passthrough")
    models = LogisticRegression().fit(frame, y), make_pipeline(by_name, LogisticRegression()).fit(frame, y)
    for number, model in enumerate(models):
        root = tmp_path / str(number)
        save_trusted(root, model)
        got = predict(root, {"input__0": frame.to_numpy(np.float32)[:4]})
        npt.assert_array_equal(got["label"], model.predict(frame.iloc[:4]))


def test_texts_without_names_and_documents_are_served(tmp_path: Path) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    rows = np.array([["Rom", "rot"], ["Köln", "blau"]] * 10, object)
    y = [0, 1] * 10
    model = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(rows, y)
    save_trusted(tmp_path, model)
    encoded = np.array([[value.encode() for value in row] for row in rows[:3]], object)
    npt.assert_array_equal(predict(tmp_path, {"input__0": encoded})["label"], y[:3])
    documents = ["eins zwei", "drei vier"] * 10
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(documents, y)
    save_trusted(tmp_path / "documents", model)
    encoded = np.array([[text.encode()] for text in documents[:3]], object)
    npt.assert_array_equal(predict(tmp_path / "documents", {"input__0": encoded})["label"], y[:3])


def test_without_pandas_the_refusal_of_named_columns_names_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toutates.backends.frameworks import sklearn_columns

    save_trusted(tmp_path, of_columns()[0])
    monkeypatch.setattr(sklearn_columns, "find_spec", lambda name: None)
    assert "fitted on named columns (age, city, rooms), which need pandas: pip install pandas" in refused(tmp_path)


LABELS = np.stack([ROWS[:, 0] > 0.5, ROWS[:, 1] > 0.3], axis=1).astype(int)
TARGETS = {"": None, "numbers": ROWS[:, 0], "column": ROWS[:, :1], "two": ROWS[:, :2], "labels": LABELS}
INT, FLOAT = ("prediction", "INT64", (1,)), ("prediction", "FP64", (1,))
OF_TWO = ("prediction", "FP64", (2,))
#: An estimator, what it is made with and fitted to, and its outputs.
OF_ESTIMATORS: dict[str, tuple[str, dict[str, Any], str, list[tuple[str, str, tuple[int, ...]]]]] = {
    "clusterer": ("cluster.KMeans", {"n_clusters": 3, "n_init": 1, "random_state": 0}, "", [INT]),
    "outliers": ("svm.OneClassSVM", {}, "", [INT]),
    "mixture": ("mixture.GaussianMixture", {"n_components": 2}, "", [INT]),
    "kernel": ("svm.SVR", {"kernel": "linear"}, "numbers", [FLOAT]),
    "one column": ("linear_model.LinearRegression", {}, "column", [FLOAT]),
    "process of two": ("gaussian_process.GaussianProcessRegressor", {"optimizer": None}, "two", [OF_TWO]),
    "forest of two": ("ensemble.RandomForestRegressor", {"n_estimators": 3}, "two", [OF_TWO]),
    "neighbours of two": ("neighbors.KNeighborsRegressor", {}, "two", [OF_TWO]),
    "multilabel": (
        "multiclass.OneVsRestClassifier",
        {"estimator": None},
        "labels",
        [("label", "INT64", (2,)), ("probabilities", "FP32", (2,))],
    ),
    "chain": (
        "multioutput.ClassifierChain",
        {"estimator": None},
        "labels",
        [("label", "FP64", (2,)), ("probabilities", "FP32", (2,))],
    ),
    "two labels": (
        "tree.DecisionTreeClassifier",
        {},
        "labels",
        [("label", "INT64", (2,)), ("probabilities_0", "FP32", (2,)), ("probabilities_1", "FP32", (2,))],
    ),
}


@pytest.mark.parametrize("kind", OF_ESTIMATORS)
@pytest.mark.parametrize("takes_zeros", [True, False])
def test_the_estimator_tells_types_and_shapes(tmp_path: Path, kind: str, takes_zeros: bool) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PowerTransformer

    name, given, targets, expected = OF_ESTIMATORS[kind]
    module, _, own = name.partition(".")
    made = {"estimator": LogisticRegression()} if "estimator" in given else given
    estimator = getattr(import_module(f"sklearn.{module}"), own)(**made)
    first = [] if takes_zeros else [PowerTransformer("box-cox")]
    model = make_pipeline(*first, estimator).fit(1 + ROWS, TARGETS[targets])
    save_trusted(tmp_path, model, 'backend: "sklearn" max_batch_size: 8')
    signature = inspect(tmp_path).signature
    assert [(tensor.name, tensor.datatype.name, tensor.shape) for tensor in signature.outputs] == expected
    rows = (1 + ROWS[:5]).astype(np.float32)
    got = predict(tmp_path, {"input__0": rows})[expected[0][0]]
    npt.assert_allclose(got, model.predict(rows.astype(np.float64)), rtol=1e-4)


#: What a client sends, and what it is told.
REFUSED_ROWS = {
    "NaN": (np.nan, "input 'input__0' has NaN, and the model takes none"),
    "infinity": (np.inf, "input 'input__0' has infinity, and the model takes none"),
    "category": (9.0, "Found unknown categories"),
}


@pytest.mark.parametrize(("value", "said"), REFUSED_ROWS.values(), ids=REFUSED_ROWS.keys())
def test_rows_that_the_model_cannot_take_are_the_clients_fault(tmp_path: Path, value: float, said: str) -> None:
    from toutates.system.errors import InvalidRequest

    save_trusted(tmp_path, fitted("onehot")[0] if value == 9 else classifier(ROWS[:, 0] > 0.5))
    x = np.ones((2, 2 if value == 9 else 4), np.float32)
    x[1, 0] = value
    with pytest.raises(InvalidRequest, match=said):
        predict(tmp_path, {"input__0": x})


def test_nan_is_given_to_models_that_take_it(tmp_path: Path) -> None:
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(SimpleImputer(), LogisticRegression()).fit(ROWS, ROWS[:, 0] > 0.5)
    save_trusted(tmp_path, model)
    x = ROWS[:3].astype(np.float32)
    x[0, 0] = np.nan
    npt.assert_array_equal(predict(tmp_path, {"input__0": x})["label"], model.predict(x))


def test_a_text_that_is_no_number_is_the_clients_fault(tmp_path: Path) -> None:
    from toutates.system.errors import InvalidRequest

    model, frame = of_columns()
    inputs = "".join(
        f'input {{ name: "{name}" data_type: TYPE_{datatype} dims: [ 1 ] }} '
        for name, datatype in (("age", "STRING"), ("city", "STRING"), ("rooms", "INT64"))
    )
    save_trusted(tmp_path, model, f'backend: "sklearn" max_batch_size: 8 {inputs}')
    given = {"age": np.array([[b"1.5"]], object), "city": np.array([[b"Rom"]], object), "rooms": np.array([[1]])}
    own = frame.iloc[:1].assign(age=1.5, city="Rom", rooms=1)
    npt.assert_array_equal(predict(tmp_path, given)["label"], model.predict(own))
    with pytest.raises(InvalidRequest, match="could not convert string to float"):
        predict(tmp_path, {**given, "age": np.array([[b"old"]], object)})


def test_what_an_estimator_does_wrong_is_no_fault_of_the_rows(tmp_path: Path) -> None:
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    unfitting = make_pipeline(StandardScaler(), LinearRegression()).fit(ROWS, ROWS[:, 0])
    unfitting.steps[1] = ("linearregression", LinearRegression().fit(ROWS[:, :3], ROWS[:, 0]))
    spoilt = LogisticRegression().fit(ROWS, ROWS[:, 0] > 0.5)
    spoilt.coef_ = np.ones((1, 3))
    for name, model, said in (("steps", unfitting, "expecting 3 features"), ("spoilt", spoilt, "mismatch")):
        save(tmp_path / name, model)
        with pytest.raises(ExecutionFailed, match=said):
            predict(tmp_path / name, {"input__0": np.ones((2, 4), np.float32)})


@pytest.mark.parametrize("kept", [0, 50, 500])
def test_spoilt_files_are_refused(tmp_path: Path, kept: int) -> None:
    path = save(tmp_path, classifier((ROWS[:, 0] > 0.5).astype(int)))
    path.write_bytes(path.read_bytes()[:kept])
    assert "skops cannot read 'model.skops'" in refused(tmp_path)


@pytest.mark.parametrize("fitted", [np.float32, np.float64])
@pytest.mark.parametrize("asked", [np.float32, np.float64])
def test_an_estimator_that_takes_one_width_of_floats_is_asked_in_it(tmp_path: Path, fitted: Any, asked: Any) -> None:
    from sklearn.cluster import KMeans

    model = KMeans(3, n_init=1, random_state=0).fit(ROWS.astype(fitted))
    datatype = "FP32" if asked is np.float32 else "FP64"
    config = f'backend: "sklearn" max_batch_size: 8 input {{ name: "x" data_type: TYPE_{datatype} dims: 4 }}'
    save(tmp_path, model, config)
    inspect(tmp_path)  # which asks two rows
    got = predict(tmp_path, {"x": ROWS[:5].astype(asked)})
    npt.assert_array_equal(got["prediction"], model.predict(ROWS[:5].astype(fitted)))


def test_a_request_that_fails_changes_nothing_of_those_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.linear_model import LinearRegression

    save(tmp_path, LinearRegression().fit(ROWS, ROWS[:, 0]))
    predicts, seen, fails = LinearRegression.predict, [], [False]

    def predict_once(self: Any, rows: Any) -> Any:
        seen.append(rows.dtype)
        if fails[0] and rows.dtype == np.float32:
            raise MemoryError
        return predicts(self, rows)

    monkeypatch.setattr(LinearRegression, "predict", predict_once)
    given = {"input__0": ROWS[:5].astype(np.float32)}
    with opened(tmp_path) as run:
        run(given)
        fails[0] = True
        with pytest.raises(ExecutionFailed, match="MemoryError"):
            run(given)
        fails[0] = False
        run(given)
    assert set(seen) == {np.dtype(np.float32)}


def test_a_classifier_of_several_outputs_has_probabilities_of_each(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.multioutput import MultiOutputClassifier

    labels = np.stack([ROWS[:, 0] > 0.5, ROWS[:, 1] > 0.3], axis=1).astype(int)
    model = MultiOutputClassifier(LogisticRegression()).fit(ROWS, labels)
    save(tmp_path, model)
    x = ROWS[:5].astype(np.float32)
    got = predict(tmp_path, {"input__0": x})
    npt.assert_array_equal(got["label"], model.predict(x))
    for at, expected in enumerate(model.predict_proba(x)):
        npt.assert_allclose(got[f"probabilities_{at}"], expected, rtol=1e-5)


def test_an_estimator_that_cannot_predict_is_refused_with_what_to_do(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    save(tmp_path, LogisticRegression())
    assert "the LogisticRegression in 'model.skops' is not fitted; call its `fit`" in refused(tmp_path)
    skops.dump(StandardScaler().fit(ROWS), tmp_path / "m" / "1" / "model.skops")
    assert "the StandardScaler in 'model.skops' has no `predict`" in refused(tmp_path)
