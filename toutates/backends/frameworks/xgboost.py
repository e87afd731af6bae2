"""XGBoost's models: JSON, UBJSON, and the binary form of older releases as far as the installed one reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import xgboost

from toutates.backends.interface import Array, Backend, Source, Tensor, Tensors

__all__ = ["XGBoost"]

_PREDICTIONS: Final = {"value": "value", "margin": "margin"}
_MAX_SAID: Final = 300


class XGBoost(Backend):
    """A model that ``Booster.save_model`` has written.

    One input of rows of features, FP32, where NaN stands for a missing value; one output, FP32: what
    ``Booster.predict`` gives.
    """

    interface = 1
    filenames = ("xgboost.json", "xgboost.ubj", "xgboost.model")

    def load(self, source: Source) -> Tensors:
        """See ``Backend``."""
        threads = source.integer("threads", 1, 1, 1_024)
        self._kind = _PREDICTIONS[source.text("predict", "value", tuple(_PREDICTIONS))]
        self.booster = xgboost.Booster(params={"nthread": threads, "verbosity": 0})
        try:
            self.booster.load_model(source.path)
            features = self.booster.num_features()
            probe = self._predict(np.zeros((1, features), np.float32))
        except Exception as error:
            # What XGBoost says ends in a stack of addresses.
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:_MAX_SAID]
            raise ValueError(f"XGBoost cannot read '{source.path.name}': {reason}") from error
        self._input = source.inputs[0].name if len(source.inputs) == 1 else "input__0"
        self._output = source.outputs[0].name if len(source.outputs) == 1 else "output__0"
        return Tensors(
            [Tensor(self._input, "FP32", (-1, features))],
            [Tensor(self._output, "FP32", (-1, probe.shape[1]))],
        )

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See ``Backend``. XGBoost lets several threads predict at once."""
        return {self._output: self._predict(inputs[self._input])}

    def _predict(self, rows: Array) -> Array:
        result = self.booster.inplace_predict(rows, predict_type=self._kind, validate_features=False)
        return np.asarray(result, np.float32).reshape(len(rows), -1)
