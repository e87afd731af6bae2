"""scikit-learn's models, saved by skops. No pickle is loaded: types that skops does not know have to be named."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import skops.io
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from toutates.backends.frameworks.library_warnings import LibraryWarnings
from toutates.backends.frameworks.sklearn_columns import columns_of
from toutates.backends.frameworks.sklearn_results import Results, is_of_rows, results_of, takes_nan
from toutates.backends.interface import Array, Backend, InvalidRequest, Source, Tensor, Tensors
from toutates.system.text import described, one_line

__all__ = ["ScikitLearn"]

logger = logging.getLogger(__name__)

_NUMBERS = {"i": ("INT64", np.int64), "u": ("INT64", np.int64), "b": ("BOOL", np.bool_), "f": ("FP64", np.float64)}


#: Of the check when a model is loaded.
_ROWS = 2
_MAX_SAID = 300


class _Call(NamedTuple):
    """What computes an output.

    Attributes:
        method: of the estimator.
        dtype: in which its answer is sent.
        part: number of the array, where the answer is a list of them; else None.
        columns: whether the output has columns, which an answer without gets.
        is_known: whether the estimator or the configuration tells its type and shape.
    """

    method: str
    dtype: Any
    part: int | None = None
    columns: bool = False
    is_known: bool = True


class ScikitLearn(Backend):
    """An estimator or a pipeline that ``skops.io.dump`` has written.

    One input ``input__0`` of rows of features, FP32 or FP64, or an input for each named column where some of these are
    texts (``sklearn_columns``). A classifier has the outputs ``label`` and, where it has ``predict_proba``,
    ``probabilities``; anything else ``prediction``. A classifier of several outputs has ``probabilities_0`` and so on,
    one for each. What config.pbtxt does not list is not computed.
    """

    interface = 1
    filenames = ("model.skops",)

    def load(self, source: Source) -> Tensors:
        """See ``Backend``."""
        trusted = [name.strip() for name in source.text("trusted_types").split(",") if name.strip()]
        self._warnings = LibraryWarnings(source.model)
        try:
            unknown = sorted(set(skops.io.get_untrusted_types(file=source.path)) - set(trusted))
        except Exception as error:
            raise ValueError(f"skops cannot read '{source.path.name}': {described(error)}") from error
        if unknown:
            raise ValueError(
                f"'{source.path.name}' holds types that skops does not trust; if you do, name them in the parameter "
                f"trusted_types: {', '.join(unknown)}"
            )
        try:
            with self._warnings:
                self._model: Any = skops.io.load(source.path, trusted=trusted)
        except Exception as error:
            raise ValueError(f"skops cannot load '{source.path.name}': {described(error)}") from error
        self._check_fitted(source.path.name)
        self._columns = columns_of(self._model, source)
        self._cast: Any = None
        self._has_answered = False
        self._takes_nan = takes_nan(self._model)
        # What is tried here is no request: its warnings are nobody's.
        with LibraryWarnings(source.model, is_silent=True):
            tensors, self._calls = self._outputs(source)
            tensors = self._checked(tensors, self._calls, source.model)
        wanted = {tensor.name for tensor in source.outputs}
        if wanted:
            self._calls = {name: call for name, call in self._calls.items() if name in wanted}
        return Tensors(self._columns.inputs, tensors)

    def _check_fitted(self, filename: str) -> None:
        """
        Raises:
            ValueError: the estimator has no ``predict``, or is not fitted; with what to do.
        """
        kind = type(self._model).__name__
        if not callable(getattr(self._model, "predict", None)):
            raise ValueError(
                f"the {kind} in '{filename}' has no `predict`; save an estimator that predicts, such as a pipeline "
                "that ends with one"
            )
        try:
            check_is_fitted(self._model)
        except NotFittedError:
            raise ValueError(
                f"the {kind} in '{filename}' is not fitted; call its `fit` on an array before it is saved"
            ) from None

    def _outputs(self, source: Source) -> tuple[list[Tensor], dict[str, _Call]]:
        """The outputs, and what computes each: by what the estimator says of itself, then by the configuration."""
        results = results_of(self._model)
        classes = getattr(self._model, "classes_", None)
        if classes is None:
            return self._predictions(source, results)
        many = isinstance(classes, list)
        of_each = classes if many else [classes]
        datatype, dtype = _NUMBERS.get(np.asarray(of_each[0]).dtype.kind, ("BYTES", np.object_))
        if results is not None and results.datatype:
            datatype, dtype = results.datatype, np.float64
        row = results.row if results is not None and results.row is not None else (len(of_each),) * many
        tensors, calls = [Tensor("label", datatype, (-1, *row))], {"label": _Call("predict", dtype)}
        if hasattr(self._model, "predict_proba"):
            if results is not None and results.is_chain:
                many, of_each = False, [of_each]
            for index, own in enumerate(of_each):
                output = f"probabilities_{index}" if many else "probabilities"
                tensors.append(Tensor(output, "FP32", (-1, len(own))))
                calls[output] = _Call("predict_proba", np.float32, index if many else None)
        return tensors, calls

    def _predictions(self, source: Source, results: Results | None) -> tuple[list[Tensor], dict[str, _Call]]:
        """The output of what is no classifier. FP64 of an open size is what nobody knows."""
        name = "prediction"
        given = next((tensor for tensor in source.outputs if tensor.name == name), None)
        datatype = "FP64"
        shape: tuple[int, ...] = (-1, -1)
        if given is not None:
            datatype, shape = given.datatype, tuple(given.shape)
        if results is not None:
            if not (results.datatype == "FP64" and datatype.startswith("FP")):
                datatype = results.datatype or datatype
            if results.row is not None:
                shape = (-1, *results.row)
        dtype: Any = np.object_ if datatype == "BYTES" else np.dtype(datatype.lower().replace("fp", "float"))
        call = _Call("predict", dtype, columns=len(shape) > 1, is_known=results is not None or given is not None)
        return [Tensor(name, datatype, shape)], {name: call}

    def _checked(self, tensors: Sequence[Tensor], calls: dict[str, _Call], model: str) -> list[Tensor]:
        """The outputs, after some rows were tried: these say what nobody else knows, and open a size that is another.

        Which floats are taken by compiled code, it says as well. That rows of zeros cannot be computed says nothing.
        """
        try:
            answers = self._answers(calls, self._columns.rows(self._columns.zeros(_ROWS)))
        except Exception:
            return list(tensors)
        checked: list[Tensor] = []
        for tensor in tensors:
            call = calls[tensor.name]
            array = _array_of(answers, call)
            if not call.is_known:
                datatype, dtype = _NUMBERS.get(array.dtype.kind, ("BYTES", np.object_))
                calls[tensor.name] = call._replace(dtype=dtype, columns=array.ndim > 1)
                checked.append(Tensor(tensor.name, datatype, (-1, *array.shape[1:])))
                continue
            shape = array.shape if array.ndim > 1 or not call.columns else (*array.shape, 1)
            if len(shape) != len(tensor.shape):
                logger.warning(
                    "model '%s': output '%s' is declared %s, as its estimator says, and came as %s",
                    *(model, tensor.name, list(tensor.shape), list(shape)),
                    extra={"model": model},
                )
                checked.append(tensor)
                continue
            sizes = [own if own in (-1, size) else -1 for own, size in zip(tensor.shape, shape, strict=True)]
            checked.append(Tensor(tensor.name, tensor.datatype, tuple(sizes)))
        return checked

    def _answers(self, calls: Mapping[str, _Call], rows: Any) -> dict[str, Any]:
        """What each method answers. The check and requests ask alike.

        Compiled code may take the floats alone on which the estimator was fitted, which is found out before its first
        answer. What goes wrong later is that request's alone.
        """
        methods = {call.method for call in calls.values()}
        try:
            given = rows if self._cast is None else rows.astype(self._cast)
            answers = {method: getattr(self._model, method)(given) for method in methods}
        except Exception as error:
            is_refused = self._has_answered or (isinstance(error, ValueError) and is_of_rows(error))
            other = None if is_refused else self._columns.other_floats(rows)
            if other is None:
                raise
            try:
                answers = {method: getattr(self._model, method)(other) for method in methods}
            except Exception:
                raise error from None
            self._cast = other.dtype
        self._has_answered = True
        return answers

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See ``Backend``."""
        rows = self._columns.rows(inputs)
        with self._warnings:
            try:
                answers = self._answers(self._calls, rows)
            except ValueError as error:
                problem = self._columns.problem(inputs, takes_nan=self._takes_nan)
                if problem or is_of_rows(error):
                    raise InvalidRequest(f"{problem}{one_line(error, _MAX_SAID)}") from error
                raise
        return {name: _sent(_array_of(answers, call), call) for name, call in self._calls.items()}


def _array_of(answers: Mapping[str, Any], call: _Call) -> Array:
    answer = answers[call.method]
    return np.asarray(answer if call.part is None else answer[call.part])


def _sent(array: Array, call: _Call) -> Array:
    if call.columns and array.ndim == 1:
        array = array[:, None]
    return array.astype(call.dtype, copy=False)
