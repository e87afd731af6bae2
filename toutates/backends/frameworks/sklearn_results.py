"""What a fitted estimator of scikit-learn says of its answers, and of rows that it refuses."""

from __future__ import annotations

import dis
from typing import Any, Final, NamedTuple

import numpy as np
from sklearn.exceptions import NotFittedError

__all__ = ["Results", "is_of_rows", "results_of", "takes_nan"]

#: What an estimator is made of whose answers are its own.
_ANSWERING: Final = ("best_estimator_", "regressor_")
#: Kinds of estimators that give each row a number.
_NUMBERING: Final = ("clusterer", "outlier_detector", "density_estimator", "DensityEstimator")
#: Modules that read rows, where NumPy or pandas may be what raises.
_READING: Final = ("sklearn.utils.validation", "sklearn.utils._array_api")


class Results(NamedTuple):
    """What ``predict`` answers.

    Attributes:
        datatype: of it; "" where its classes tell.
        row: shape of the answer for a row; None where nobody tells.
        is_chain: whether a classifier of several outputs has one array of probabilities.
    """

    datatype: str
    row: tuple[int, ...] | None
    is_chain: bool = False


def results_of(model: Any) -> Results | None:
    """What an estimator answers, as far as it tells; None where it does not."""
    if steps := getattr(model, "steps", ()):
        return results_of(steps[-1][1])
    for name in _ANSWERING:
        if (part := getattr(model, name, None)) is not None:
            return results_of(part)
    classes = getattr(model, "classes_", None)
    if classes is not None:
        return _of_classifier(model, classes)
    if _kind(model) in _NUMBERING:
        return Results("INT64", ())
    row = _row_of_regressor(model)
    if row is None and _kind(model) != "regressor":
        return None
    return Results("FP64", row)


def _of_classifier(model: Any, classes: Any) -> Results:
    if isinstance(classes, list):
        is_chain = hasattr(model, "order_")  # its labels are numbers whatever the classes are
        return Results("FP64" if is_chain else "", (len(classes),), is_chain)
    binarizer = getattr(model, "_label_binarizer", getattr(model, "label_binarizer_", None))
    is_multilabel = getattr(binarizer, "y_type_", "").startswith("multilabel")
    return Results("", (len(classes),) if is_multilabel else ())


def _row_of_regressor(model: Any) -> tuple[int, ...] | None:
    """The shape of what a regressor answers for a row; None where it does not tell."""
    own = type(model).__module__.startswith("sklearn.")
    parts = getattr(model, "estimators_", None)
    if own and isinstance(parts, list) and parts:
        if type(model).__name__ in ("MultiOutputRegressor", "RegressorChain"):
            return (len(parts),)
        if type(model).__name__ == "BaggingRegressor":
            return _row_of_regressor(parts[0])
    if own and hasattr(model, "inlier_mask_"):
        return _row_of_regressor(model.estimator_)
    count = getattr(model, "n_outputs_", None)
    if isinstance(count, int | np.integer):
        return (int(count),) if count > 1 else ()
    if getattr(model, "_predict_1d", False) or (own and hasattr(model, "support_vectors_")):
        return ()
    for name, is_flat in (("y_train_", True), ("_y", False), ("dual_coef_", False)):
        array = getattr(model, name, None)
        if own and isinstance(array, np.ndarray) and array.ndim in (1, 2):
            row = tuple(map(int, array.shape[1:]))
            return () if is_flat and row == (1,) else row
    coefficients = getattr(model, "coef_", None)
    if isinstance(coefficients, np.ndarray) and coefficients.ndim in (1, 2):
        return tuple(map(int, coefficients.shape[:-1]))
    return () if own and _kind(model) == "regressor" else None


def _kind(model: Any) -> str:
    """What an estimator calls itself."""
    try:
        return str(model.__sklearn_tags__().estimator_type)
    except AttributeError:  # of scikit-learn before 1.6, or of others
        return str(getattr(model, "_estimator_type", ""))


def takes_nan(model: Any) -> bool:
    """Whether an estimator takes NaN."""
    try:
        return bool(model.__sklearn_tags__().input_tags.allow_nan)
    except AttributeError:
        return False


def is_of_rows(error: ValueError) -> bool:
    """Whether an estimator says that it cannot take the rows, and is not itself at fault.

    scikit-learn's own code has to have raised it on purpose, or while it read the rows. Their number of columns was
    looked at before, so that steps which differ in it do not fit each other.
    """
    if isinstance(error, NotFittedError) or " features, but " in str(error):
        return False
    module, is_raised, traceback = "", False, error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        module = str(frame.f_globals.get("__name__", ""))
        if module in _READING:
            return True
        code = frame.f_code.co_code
        is_raised = traceback.tb_lasti < len(code) and dis.opname[code[traceback.tb_lasti]] == "RAISE_VARARGS"
        traceback = traceback.tb_next
    return is_raised and module.startswith("sklearn.")
