"""XGBoost's models: JSON, UBJSON, and the binary form of older releases as far as the installed one reads it."""

from __future__ import annotations

import json
import threading
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
    ``Booster.predict`` gives. Of a file that XGBoost's scikit-learn classes have written it is what these predict:
    after early stopping, by the trees up to the best iteration.
    """

    interface = 1
    #: whether files of XGBoost's scikit-learn classes are used as by these
    follows_scikit_learn = True
    filenames = ("xgboost.json", "xgboost.ubj", "xgboost.model")

    def load(self, source: Source) -> Tensors:
        """See ``Backend``."""
        threads = source.integer("threads", 1, 1, 1_024)
        self._kind = _PREDICTIONS[source.text("predict", "value", tuple(_PREDICTIONS))]
        self._threads = threads
        self.booster = xgboost.Booster(params={"nthread": threads, "verbosity": 0})
        try:
            self.booster.load_model(source.path)
            features = self.booster.num_features()
            # Which has no trees, and no predictions in place or by several threads.
            self._linear = threading.Lock() if _type(self.booster) == "gblinear" else None
            warnings = self._choose_iterations(source)
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
            warnings=warnings,
        )

    def _choose_iterations(self, source: Source) -> list[str]:
        """Choose the trees of a booster that was stopped early; returns warnings."""
        self._iterations = (0, 0)  # all
        best = self.booster.attr("best_iteration")
        by_scikit_learn = self.follows_scikit_learn and self.booster.attr("scikit_learn") is not None
        ends_there = source.flag("best_iteration", by_scikit_learn)
        if best is None or self._linear is not None:
            return []
        if ends_there:
            self._iterations = (0, int(best) + 1)
            return []
        rounds = self.booster.num_boosted_rounds()
        if "best_iteration" in source.parameters or int(best) + 1 == rounds:
            return []
        return [
            f"'{source.path.name}' was stopped early with best_iteration {best}, and all {rounds} iterations are used, "
            "as by Booster.predict; write the parameter best_iteration: true for those up to the best one, or false"
        ]

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See ``Backend``. XGBoost lets several threads predict at once."""
        return {self._output: self._predict(inputs[self._input])}

    def _predict(self, rows: Array) -> Array:
        if self._linear is None:
            result = self.booster.inplace_predict(
                rows, iteration_range=self._iterations, predict_type=self._kind, validate_features=False
            )
        else:
            matrix = xgboost.DMatrix(rows, nthread=self._threads)
            with self._linear:
                result = self.booster.predict(matrix, output_margin=self._kind == "margin", validate_features=False)
        return np.asarray(result, np.float32).reshape(len(rows), -1)


def _type(booster: xgboost.Booster) -> str:
    """The kind of a booster: ``gbtree``, ``dart`` or ``gblinear``."""
    kind: str = json.loads(booster.save_config())["learner"]["gradient_booster"]["name"]
    return kind
