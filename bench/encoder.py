"""A transformer encoder as an ONNX graph, of any size, with random weights: what text models cost without their files.

ids and mask [batch, length] ▶ hidden states [batch, length, hidden] ▶ their mean over the mask [batch, hidden].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["MINILM", "Size", "encoder"]


@dataclass(frozen=True, slots=True)
class Size:
    """How large an encoder is.

    Attributes:
        layers: how many.
        hidden: width; a multiple of ``heads``.
        heads: of attention.
        inner: width between the two matrices of a feed-forward layer.
        vocabulary: ids are from 0 to below it.
        positions: longest text.
    """

    layers: int
    hidden: int
    heads: int
    inner: int
    vocabulary: int
    positions: int


#: all-MiniLM-L6-v2.
MINILM: Final = Size(6, 384, 12, 1_536, 30_522, 512)


def encoder(size: Size, seed: int = 0) -> onnx.ModelProto:
    """Make one: inputs ``input_ids`` and ``attention_mask``, outputs ``last_hidden_state`` and ``embedding``."""
    return _Graph(size, np.random.default_rng(seed)).model()


@dataclass(slots=True)
class _Graph:
    size: Size
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        size = self.size
        self._weights("words", size.vocabulary, size.hidden)
        self._weights("places", size.positions, size.hidden)
        self._add("Shape", ["input_ids"], "length", start=1)
        self._add("Slice", ["places", self._numbers([0]), "length", self._numbers([0])], "place")
        self._add("Gather", ["words", "input_ids"], "word")
        hidden = self._normalised(self._add("Add", ["word", "place"], "embedded"), "embedded")
        self._add("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
        self._add("Sub", [self._float(1.0), "mask"], "masked")
        self._add("Mul", ["masked", self._float(-10_000.0)], "away")
        self._add("Unsqueeze", ["away", self._numbers([1, 2])], "bias")
        for layer in range(size.layers):
            hidden = self._layer(hidden, f"layer{layer}_")
        self._add("Identity", [hidden], "last_hidden_state")
        self._add("Unsqueeze", ["mask", self._numbers([2])], "wide")
        self._add("Mul", [hidden, "wide"], "kept")
        self._add("ReduceSum", ["kept", self._numbers([1])], "sum", keepdims=0)
        self._add("ReduceSum", ["mask", self._numbers([1])], "count", keepdims=1)
        self._add("Div", ["sum", "count"], "embedding")
        tensor = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "encoder",
            [tensor(name, TensorProto.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask")],
            [
                tensor("embedding", TensorProto.FLOAT, ["batch", size.hidden]),
                tensor("last_hidden_state", TensorProto.FLOAT, ["batch", "length", size.hidden]),
            ],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _layer(self, hidden: str, name: str) -> str:
        size = self.size
        width = size.hidden // size.heads
        heads = {}
        for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            flat = self._linear(hidden, name + part, size.hidden, size.hidden)
            split = self._add("Reshape", [flat, self._numbers([0, 0, size.heads, width])], f"{name}{part}_split")
            heads[part] = self._add("Transpose", [split], f"{name}{part}_heads", perm=order)
        scores = self._add("MatMul", [heads["query"], heads["key"]], name + "scores")
        scaled = self._add("Mul", [scores, self._float(width**-0.5)], name + "scaled")
        biased = self._add("Add", [scaled, "bias"], name + "biased")
        shares = self._add("Softmax", [biased], name + "shares", axis=-1)
        mixed = self._add("MatMul", [shares, heads["value"]], name + "mixed")
        joined = self._add("Transpose", [mixed], name + "joined", perm=[0, 2, 1, 3])
        flat = self._add("Reshape", [joined, self._numbers([0, 0, size.hidden])], name + "flat")
        out = self._linear(flat, name + "out", size.hidden, size.hidden)
        hidden = self._normalised(self._add("Add", [out, hidden], name + "attended"), name + "attended")
        inner = self._linear(hidden, name + "inner", size.hidden, size.inner)
        ratio = self._add("Div", [inner, self._float(2.0**0.5)], name + "ratio")
        error = self._add("Erf", [ratio], name + "error")
        above = self._add("Add", [error, self._float(1.0)], name + "above")
        doubled = self._add("Mul", [inner, above], name + "doubled")
        active = self._add("Mul", [doubled, self._float(0.5)], name + "active")
        outer = self._linear(active, name + "outer", size.inner, size.hidden)
        return self._normalised(self._add("Add", [outer, hidden], name + "fed"), name + "fed")

    def _linear(self, value: str, name: str, rows: int, columns: int) -> str:
        product = self._add("MatMul", [value, self._weights(name + "_weights", rows, columns)], name + "_product")
        self.constants[name + "_bias"] = np.zeros(columns, np.float32)
        return self._add("Add", [product, name + "_bias"], name)

    def _normalised(self, value: str, name: str) -> str:
        self.constants[name + "_scale"] = np.ones(self.size.hidden, np.float32)
        self.constants[name + "_shift"] = np.zeros(self.size.hidden, np.float32)
        inputs = [value, name + "_scale", name + "_shift"]
        return self._add("LayerNormalization", inputs, name + "_normalised", axis=-1, epsilon=1e-12)

    def _add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def _weights(self, name: str, *shape: int) -> str:
        self.constants[name] = (self.rng.normal(size=shape) * 0.02).astype(np.float32)
        return name

    def _numbers(self, values: Sequence[int]) -> str:
        name = "numbers_" + "_".join(map(str, values))
        self.constants[name] = np.array(values, np.int64)
        return name

    def _float(self, value: float) -> str:
        name = f"float_{value}"
        self.constants[name] = np.array(value, np.float32)
        return name
