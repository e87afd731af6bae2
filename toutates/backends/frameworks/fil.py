"""Triton's backend of tree ensembles (FIL): its parameters and outputs, computed by LightGBM or XGBoost themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Final, cast

import numpy as np

from toutates.backends.interface import Array, Backend, Instance, Source, Tensor, Tensors

__all__ = ["Fil"]

#: By ``model_type``: the package, and the default name of the file.
_TYPES: Final = {
    "xgboost": ("xgboost", "xgboost.model"),
    "xgboost_json": ("xgboost", "xgboost.json"),
    "xgboost_ubj": ("xgboost", "xgboost.ubj"),
    "lightgbm": ("lightgbm", "model.txt"),
}
#: Of FIL's own code, which does not run here.
_WITHOUT_EFFECT: Final = (
    "algo",
    "blocks_per_sm",
    "chunk_size",
    "layout",
    "storage_type",
    "threads_per_tree",
    "transfer_threshold",
    "use_experimental_optimizations",
    "xgboost_allow_unknown_field",
)


class Fil(Backend):
    """A model of LightGBM or XGBoost with the tensors that FIL gives it: ``input__0`` and ``output__0``, FP32."""

    interface = 1

    def __init__(self) -> None:
        self._loaded: Backend | None = None

    def load(self, source: Source) -> Tensors:
        """See ``Backend``."""
        kind = source.text("model_type", "xgboost", tuple(_TYPES))
        package, filename = _TYPES[kind]
        if find_spec(package) is None:
            raise ModuleNotFoundError(
                f"{kind} needs the package {package}, which is not installed; pip install {package}, or the extra "
                f"{package} of toutates"
            )
        self._is_classifier = source.flag("is_classifier", source.flag("output_class", False))
        self._probabilities = source.flag("predict_proba", False)
        try:
            self._threshold = float(source.text("threshold", "0.5"))
        except ValueError:
            raise source.refused("threshold", "is not a number", "write such as 0.5") from None
        for key in _WITHOUT_EFFECT:
            source.text(key)
        path = source.path / filename if source.path.is_dir() else source.path
        if not path.is_file():
            raise FileNotFoundError(
                f"unable to find '{path}'; put the model there, or name it in default_model_filename"
            )
        own_parameters = {"threads": str(max(source.integer("cpu_nthread", 1), 1))}
        if package == "xgboost" and "best_iteration" in source.parameters:
            own_parameters["best_iteration"] = source.text("best_iteration")
        self._inner = self._loaded = _backend(package)
        own = self._inner.load(replace(source, path=path, parameters=own_parameters, inputs=(), outputs=()))
        self.quick = self._inner.quick
        results = int(own.outputs[0].shape[1])
        columns = results
        if self._is_classifier:
            columns = max(results, 2) if self._probabilities else 1
        return Tensors(own.inputs, [Tensor("output__0", "FP32", (-1, columns))], warnings=own.warnings)

    def instance(self, number: int, device: str) -> Instance:
        """See ``Backend``."""
        return _Runner(cast(Instance, self._inner.instance(number, device)), self)

    def answer(self, values: Array) -> Array:
        """What FIL answers where the prediction is ``values``, FP32 ``[rows, results]``."""
        if not self._is_classifier:
            return values
        if self._probabilities:
            return values if values.shape[1] > 1 else np.concatenate([1 - values, values], axis=1)
        if values.shape[1] > 1:
            return np.asarray(values.argmax(1)[:, None], np.float32)
        return np.asarray(values > self._threshold, np.float32)

    def free(self) -> None:
        """See ``Backend``."""
        if self._loaded is not None:
            self._loaded.free()


class _Runner:
    """One instance."""

    def __init__(self, inner: Instance, model: Fil) -> None:
        self._inner, self._model = inner, model

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return {"output__0": self._model.answer(self._inner.run(inputs)["output__0"])}


def _backend(package: str) -> Backend:
    if package == "lightgbm":
        from toutates.backends.frameworks.lightgbm import LightGbm

        return LightGbm()
    from toutates.backends.frameworks.xgboost import XGBoost

    booster = XGBoost()
    # Triton uses all trees, whoever has written the file.
    booster.follows_scikit_learn = False
    return booster
