"""LightGBM's text files of models, run by its C interface.

The library is called by ctypes, without its Python package: that would import SciPy, and a prediction by it costs tens
of microseconds of Python.
"""

from __future__ import annotations

import codecs
import ctypes
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from toutates.backends.interface import Array, Backend, Instance, Source, Tensor, Tensors
from toutates.system.poison import Poison, current

__all__ = ["LightGbm"]

#: C_API_DTYPE_* by the datatype of the input.
_DTYPES: Final = {"FP32": 0, "FP64": 1}
#: C_API_PREDICT_* by the parameter ``predict``.
_PREDICTIONS: Final = {"normal": 0, "raw_score": 1, "leaf_index": 2, "contrib": 3}
#: How long the trial of a file may take, seconds.
_TRIAL_S: Final = 100
_MAX_SAID: Final = 300

#: Loads the model on its standard input, and predicts one row of zeros. LightGBM ends the process where it meets a tree
#: that it cannot read.
_TRIAL: Final = """
import ctypes, sys
lib, text = ctypes.CDLL(sys.argv[1]), sys.stdin.buffer.read()
lib.LGBM_GetLastError.restype = ctypes.c_char_p
def call(name, *arguments):
    if getattr(lib, name)(*arguments):
        sys.exit("said: " + lib.LGBM_GetLastError().decode(errors="replace"))
handle, number, written = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int64()
call("LGBM_BoosterLoadModelFromString", text, ctypes.byref(number), ctypes.byref(handle))
call("LGBM_BoosterGetNumFeature", handle, ctypes.byref(number))
call("LGBM_BoosterCalcNumPredict", handle, 1, 0, 0, -1, ctypes.byref(written))
row, out = (ctypes.c_double * number.value)(), (ctypes.c_double * written.value)()
call("LGBM_BoosterPredictForMat", handle, row, 1, 1, number, 1, 0, 0, -1, b"num_threads=1",
     ctypes.byref(written), out)
"""


class LightGbm(Backend):
    """A model that ``Booster.save_model`` has written.

    One input of rows of features, FP32 or FP64, where NaN stands for a missing value; one output of what
    ``Booster.predict`` gives: values, or probabilities of classes.
    """

    interface = 1
    filenames = ("model.txt",)
    quick = True

    def load(self, source: Source) -> Tensors:
        """See ``Backend``."""
        self.name = source.model
        threads = source.integer("threads", 1, 1, 1_024)
        self._kind = _PREDICTIONS[source.text("predict", "normal", tuple(_PREDICTIONS))]
        self._parameters = f"num_threads={threads} verbosity=-1".encode()
        path = _library_path()
        text = _text(source.path)
        _try(path, source.path.name, text)
        self._library = library = _library(path)
        self._handle = ctypes.c_void_p()
        number, count = ctypes.c_int(), ctypes.c_int64()
        _call(library, "BoosterLoadModelFromString", text, _ref(number), _ref(self._handle))
        _call(library, "BoosterGetNumFeature", self._handle, _ref(number))
        _call(library, "BoosterCalcNumPredict", self._handle, 1, self._kind, 0, -1, _ref(count))
        self._features, self._results = number.value, count.value
        self.quick = threads == 1
        given = source.inputs[0] if len(source.inputs) == 1 else None
        asked = source.outputs[0] if len(source.outputs) == 1 else None
        self._input = given.name if given is not None else "input__0"
        self._output = asked.name if asked is not None else "output__0"
        self._datatype = "FP64" if given is not None and given.datatype == "FP64" else "FP32"
        wanted = "FP64" if asked is not None and asked.datatype == "FP64" else "FP32"
        self._result = np.dtype(np.float64 if wanted == "FP64" else np.float32)
        return Tensors(
            [Tensor(self._input, self._datatype, (-1, self._features))],
            [Tensor(self._output, wanted, (-1, self._results))],
        )

    def instance(self, number: int, device: str) -> Instance:
        """See ``Backend``. LightGBM lets several threads predict at once."""
        poison = current()
        return _Predictor(self) if poison is None else _PoisonedPredictor(self, poison)

    def free(self) -> None:
        """See ``Backend``."""
        self._library.LGBM_BoosterFree(self._handle)


class _Predictor:
    """One instance. It has the configuration for single rows ready, whose reading takes longer than a prediction."""

    def __init__(self, model: LightGbm) -> None:
        self._model = model  # which must not be freed before
        library, dtype = model._library, _DTYPES[model._datatype]
        self._input, self._output, self._result = model._input, model._output, model._result
        self._features, self._results = model._features, model._results
        self._many = library.LGBM_BoosterPredictForMat
        self._one = library.LGBM_BoosterPredictForMatSingleRowFast
        self._written = ctypes.c_int64()
        self._allocate: Callable[..., Array] = np.empty
        self._arguments = (dtype, model._features, model._kind, model._parameters, ctypes.addressof(self._written))
        self._fast = ctypes.c_void_p()
        _call(
            library,
            "BoosterPredictForMatSingleRowFastInit",
            *(model._handle, model._kind, 0, -1, dtype, model._features, model._parameters, _ref(self._fast)),
        )

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        rows = np.ascontiguousarray(inputs[self._input])
        count = len(rows)
        out = self._allocate((count, self._results), np.float64)
        dtype, features, kind, parameters, written = self._arguments
        if count == 1:
            failed = self._one(self._fast, rows.ctypes.data, written, out.ctypes.data)
        elif count:
            failed = self._many(
                *(self._model._handle, rows.ctypes.data, dtype, count, features, 1, kind, 0, -1),
                *(parameters, written, out.ctypes.data),
            )
        else:
            failed = 0
        if failed:
            raise RuntimeError(_last_error(self._model._library))
        if count and self._written.value != out.size:  # the rest would be what was in the memory before
            raise RuntimeError(f"LightGBM has written {self._written.value} values, expected {out.size}")
        return {self._output: out.astype(self._result, copy=False)}

    def __del__(self) -> None:
        self._model._library.LGBM_FastConfigFree(self._fast)


class _PoisonedPredictor(_Predictor):
    """One whose results are filled before, and searched before they are FP32, in the test mode of ``system.poison``."""

    def __init__(self, model: LightGbm, poison: Poison) -> None:
        super().__init__(model)
        self._allocate = poison.filling(np.empty)
        self._poison = poison
        self._returned, self._result = self._result, np.dtype(np.float64)

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        [(name, results)] = super().run(inputs).items()
        if self._poison.is_in(results.reshape(-1).view(np.uint8)):
            raise self._poison.found_in(self._model.name, name)
        return {name: results.astype(self._returned, copy=False)}


def _library_path() -> Path:
    spec = find_spec("lightgbm")
    folders = (spec.submodule_search_locations if spec is not None else None) or []
    found = [path for folder in folders for path in Path(folder).rglob("lib_lightgbm.so")]
    if not found:
        raise RuntimeError("the package lightgbm has no lib_lightgbm.so; install it with pip")
    return found[0]


@cache
def _library(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    library.LGBM_GetLastError.restype = ctypes.c_char_p
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    library.LGBM_BoosterPredictForMat.argtypes = [
        *(pointer, pointer, integer, ctypes.c_int32, ctypes.c_int32),
        *(integer, integer, integer, integer, ctypes.c_char_p, pointer, pointer),
    ]
    library.LGBM_BoosterPredictForMatSingleRowFast.argtypes = [pointer] * 4
    return library


def _text(path: Path) -> bytes:
    """The text of a model's file with the line ends that LightGBM writes: it counts the bytes of each tree."""
    return path.read_bytes().removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")


def _try(library: Path, filename: str, text: bytes) -> None:
    """Load a file's text in a process of its own, which one that is cut short ends.

    Raises:
        ValueError: it cannot be loaded, with LightGBM's reason.
    """
    command = [sys.executable, "-I", "-S", "-c", _TRIAL, str(library)]
    tried = subprocess.run(command, capture_output=True, timeout=_TRIAL_S, input=text, check=False)
    if tried.returncode:
        lines = (tried.stderr + tried.stdout).decode(errors="replace").splitlines()
        said = [line.partition("said: ")[2] for line in lines if line.startswith("said: ")]
        said += [line.partition("[Fatal] ")[2] for line in lines if "[Fatal]" in line]
        reason = said[0][:_MAX_SAID].strip() if said else f"it ends with {tried.returncode}"
        raise ValueError(
            f"LightGBM cannot read '{filename}', which is cut short or no model of its text format: {reason}"
        )


def _ref(value: Any) -> Any:
    return ctypes.byref(value)


def _call(library: Any, name: str, *arguments: Any) -> None:
    if getattr(library, f"LGBM_{name}")(*arguments):
        raise RuntimeError(_last_error(library))


def _last_error(library: Any) -> str:
    return str(library.LGBM_GetLastError().decode(errors="replace"))
