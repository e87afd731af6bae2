"""How requests reach an estimator of scikit-learn: as an array, as texts, or as a DataFrame of named columns.

An estimator of numbers has one input with all columns. One whose encoders were fitted on texts has an input for each
column, as users of KServe and MLServer send them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from toutates.backends.interface import Array, InvalidRequest, Source, Tensor

__all__ = ["Columns", "columns_of"]

_DEFAULT: Final = "input__0"
_FRAME_TYPES: Final = {"i": "INT64", "u": "INT64", "b": "BOOL"}
#: Steps of a pipeline that have the columns that they are given.
_SAME_COLUMNS: Final = ("SimpleImputer", "KNNImputer", "IterativeImputer")
#: What an estimator is made of that sees the same columns as it does.
_PARTS: Final = ("best_estimator_", "estimator_", "regressor_", "_preprocessor")


class Columns:
    """The inputs of an estimator, and what it is given of them.

    Args:
        inputs: of the model.
        names: of the columns, where it is given a DataFrame.
        is_flat: whether it is given texts without columns.

    Attributes:
        inputs: as given.
    """

    def __init__(self, inputs: Sequence[Tensor], names: Sequence[str] = (), *, is_flat: bool = False) -> None:
        self.inputs = list(inputs)
        self._names, self._is_flat = list(names), is_flat
        self._make: Any = None
        if names:
            self._make = import_module("pandas").DataFrame

    def rows(self, inputs: Mapping[str, Array]) -> Any:
        """What the estimator is given.

        Raises:
            InvalidRequest: a text is no UTF-8.
        """
        arrays = [_readable(tensor, inputs[tensor.name]) for tensor in self.inputs]
        if len(self.inputs) == 1 and self.inputs[0].name not in self._names:
            rows: Any = arrays[0].reshape(-1) if self._is_flat else arrays[0]
            return rows if self._make is None else self._make(rows, columns=self._names)
        columns = [array.reshape(len(array)) for array in arrays]
        if self._make is not None:
            return self._make(dict(zip(self._names, columns, strict=True)))
        found = np.empty((len(columns[0]), len(columns)), object)
        for at, column in enumerate(columns):
            found[:, at] = column
        return found

    def zeros(self, count: int) -> dict[str, Array]:
        """Rows that are tried when the model is loaded: zeros, and empty texts."""
        return {tensor.name: _zeros(tensor, count) for tensor in self.inputs}

    def other_floats(self, rows: Any) -> Array | None:
        """Rows that are tried, in floats of the other size; None where they are no array of floats."""
        if not isinstance(rows, np.ndarray) or rows.dtype.kind != "f":
            return None
        other: Array = rows.astype(np.float32 if rows.dtype == np.float64 else np.float64)
        return other

    def problem(self, inputs: Mapping[str, Array], *, takes_nan: bool) -> str:
        """What is wrong with numbers that an estimator has refused; "" for nothing."""
        for tensor in self.inputs:
            array = inputs[tensor.name]
            if array.dtype.kind != "f":
                continue
            is_nan = not takes_nan and bool(np.isnan(array).any())
            if is_nan or np.isinf(array).any():
                what = "NaN" if is_nan else "infinity"
                return f"input '{tensor.name}' has {what}, and the model takes none: "
        return ""


def columns_of(model: Any, source: Source) -> Columns:
    """The inputs of an estimator that is fitted.

    Raises:
        ValueError: its columns are named, and pandas is not installed; nobody tells how many there are.
    """
    given = {tensor.name: tensor for tensor in source.inputs}
    only = source.inputs[0] if len(source.inputs) == 1 else None
    if _is_vectorizer(_first_step(model)):
        return Columns([Tensor(only.name if only is not None else _DEFAULT, "BYTES", (-1, 1))], is_flat=True)
    count = getattr(model, "n_features_in_", only.shape[-1] if only is not None else -1)
    if count < 0:
        raise ValueError(
            f"the {type(model).__name__} does not tell how many columns it takes; declare its input in config.pbtxt"
        )
    count = int(count)
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    kinds = _kinds(model, range(count))
    texts = [column for column, kind in kinds.items() if kind == "BYTES"]
    by_column = (texts and (names or len(texts) < count)) or (names and given.keys() == set(names))
    if by_column:
        own = names or [f"input__{column}" for column in range(count)]
        inputs = [
            Tensor(name, _datatype(kinds.get(column), given.get(name)), (-1, 1)) for column, name in enumerate(own)
        ]
    else:
        name = only.name if only is not None else _DEFAULT
        default = "FP32" if only is None or only.datatype == "BYTES" else only.datatype
        inputs = [Tensor(name, "BYTES" if texts else default, (-1, count))]
    needs_frame = bool(names) and (by_column or _has_named_columns(model))
    if needs_frame and find_spec("pandas") is None:
        raise ValueError(
            f"the model was fitted on named columns ({', '.join(names[:5])}), which need pandas: pip install pandas, "
            "or fit the model on an array of numbers"
        )
    return Columns(inputs, names if needs_frame else ())


def _datatype(kind: str | None, given: Tensor | None) -> str:
    """The type of a column: texts where an encoder has texts, else the configuration's, else that of its categories."""
    if kind == "BYTES":
        return kind
    return given.datatype if given is not None else kind or "FP64"


def _kinds(model: Any, columns: Sequence[int]) -> dict[int, str]:
    """The datatypes of columns as far as fitted encoders tell, by number.

    Args:
        model: an estimator, or a part of one.
        columns: numbers of those that it sees.
    """
    found: dict[int, str] = {}
    if isinstance(model, str):  # "passthrough" or "drop"
        return found
    for _, step in getattr(model, "steps", ()):
        found |= _kinds(step, columns)
        if not isinstance(step, str) and type(step).__name__ not in _SAME_COLUMNS:
            break
    of_each = getattr(model, "_transformer_to_input_indices", {})
    for name, part, _ in getattr(model, "transformers_", ()):
        found |= _kinds(part, [columns[at] for at in of_each.get(name, ())])
    for _, part in getattr(model, "transformer_list", ()):
        found |= _kinds(part, columns)
    for name in _PARTS:
        if (part := getattr(model, name, None)) is not None:
            found |= _kinds(part, columns)
    categories = getattr(model, "categories_", ())
    for column, values in zip(columns, categories, strict=False):
        kind = _kind_of(np.asarray(values))
        if kind:
            found[column] = kind
    for column, value in zip(columns, getattr(model, "statistics_", ()), strict=False):
        if isinstance(value, str):
            found[column] = "BYTES"
    if _is_vectorizer(model):
        found |= dict.fromkeys(columns, "BYTES")
    return found


def _kind_of(categories: Array) -> str:
    if categories.dtype.kind in "US" or any(isinstance(value, str) for value in categories.flat):
        return "BYTES"
    return _FRAME_TYPES.get(categories.dtype.kind, "")


def _is_vectorizer(model: Any) -> bool:
    """Whether it takes documents, each of which is a text."""
    return hasattr(model, "decode_error") and hasattr(model, "analyzer")


def _first_step(model: Any) -> Any:
    model = getattr(model, "best_estimator_", model)
    steps = getattr(model, "steps", ())
    return _first_step(steps[0][1]) if steps else model


def _has_named_columns(model: Any) -> bool:
    """Whether a part of an estimator chooses columns, by the names that it was fitted on."""
    parts = [part for _, part in getattr(model, "steps", ())] + [part for _, part in _parts_of_union(model)]
    parts += [part for name in _PARTS if (part := getattr(model, name, None)) is not None]
    return hasattr(model, "transformers_") or any(map(_has_named_columns, parts))


def _parts_of_union(model: Any) -> Sequence[tuple[str, Any]]:
    parts: Sequence[tuple[str, Any]] = getattr(model, "transformer_list", ())
    return parts


def _readable(tensor: Tensor, array: Array) -> Array:
    """An array with ``str`` in place of ``bytes``."""
    if tensor.datatype != "BYTES":
        return array
    found = np.empty(array.shape, object)
    try:
        found.reshape(-1)[:] = [value.decode() if isinstance(value, bytes) else value for value in array.flat]
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"input '{tensor.name}' has a text that is no UTF-8: {error}") from error
    return found


def _zeros(tensor: Tensor, count: int) -> Array:
    shape = (count, *tensor.shape[1:])
    if tensor.datatype == "BYTES":
        return np.full(shape, b"", object)
    return np.zeros(shape, tensor.datatype.lower().replace("fp", "float"))
