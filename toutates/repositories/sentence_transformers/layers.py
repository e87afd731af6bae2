"""The parts that encoders are made of, written into a graph: ONNX Runtime's fused operators where it has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from toutates.repositories.sentence_transformers.graph import FUSED, Array, Graph, Value
from toutates.repositories.sentence_transformers.settings import Settings
from toutates.repositories.sentence_transformers.weights import Weights

__all__ = ["ACTIVATIONS", "MASKED", "Builder"]

#: What is added to the score of a position that may not be attended to. exp of it is 0 in float32, and a row in which
#: every position has it, as those of padding may, still has finite weights.
MASKED: Final = -1e9

#: Activation functions, by transformers' names: the operator and its domain.
_OPERATORS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "gelu": ("Gelu", FUSED),
        "gelu_python": ("Gelu", FUSED),
        "gelu_new": ("FastGelu", FUSED),
        "gelu_fast": ("FastGelu", FUSED),
        "gelu_accurate": ("FastGelu", FUSED),
        "gelu_pytorch_tanh": ("FastGelu", FUSED),
        "gelu_python_tanh": ("FastGelu", FUSED),
        "quick_gelu": ("QuickGelu", FUSED),
        "relu": ("Relu", ""),
        "sigmoid": ("Sigmoid", ""),
        "tanh": ("Tanh", ""),
    }
)
ACTIVATIONS: Final = (*_OPERATORS, "linear", "silu", "swish")


@dataclass(frozen=True, slots=True)
class Builder:
    """A graph, and what it is made from.

    Attributes:
        settings: config.json.
        weights: of the model.
        graph: that is written.
    """

    settings: Settings
    weights: Weights
    graph: Graph = field(default_factory=Graph)

    def weight(self, name: str, *shape: int) -> Value:
        """A tensor of the weights as it is stored."""
        tensor = self.weights.take(name, shape)
        return self.graph.weight(tensor.name, shape, tensor.float32)

    def joined(self, names: Sequence[str], size: int) -> Value:
        """Several vectors of the weights, each of ``size``, one behind the other."""
        tensors = [self.weights.take(name, (size,)) for name in names]

        def make() -> Array:
            return np.concatenate([tensor.float32() for tensor in tensors])

        return self.graph.weight("+".join(tensor.name for tensor in tensors), (size * len(names),), make)

    def product(self, value: Value, name: str, wide: int, size: int, part: slice | None = None) -> Value:
        """A value times a matrix of the weights.

        Args:
            value: [..., wide].
            name: of the matrix, which is stored [size, wide].
            part: rows of the matrix that alone are taken; None for all.
        """
        tensor = self.weights.take(name, (size, wide))
        rows = part or slice(0, size)
        kept = f"{tensor.name}.T" if part is None else f"{tensor.name}[{rows.start}:{rows.stop}].T"

        def make() -> Array:
            return np.ascontiguousarray(tensor.float32()[rows].T)

        return self.graph.add("MatMul", value, self.graph.weight(kept, (wide, rows.stop - rows.start), make))

    def linear(self, value: Value, name: str, wide: int, size: int, *, bias: bool = True) -> Value:
        """A linear layer from [..., wide] to [..., size]: ``NAME.weight`` and, with ``bias``, ``NAME.bias``."""
        result = self.product(value, f"{name}.weight", wide, size)
        return self.graph.add("Add", result, self.weight(f"{name}.bias", size)) if bias else result

    def norm(self, value: Value, name: str, size: int, epsilon: float, *, bias: bool = True) -> Value:
        """Layer normalization over the last axis, which has ``size`` values."""
        scale = self.weight(f"{name}.weight", size)
        shift = (self.weight(f"{name}.bias", size),) if bias else ()
        return self.graph.add("LayerNormalization", value, scale, *shift, axis=-1, epsilon=epsilon)

    def norm_of_sum(
        self, terms: Sequence[Value], name: str, size: int, epsilon: float, *, bias: bool = True, third: str = ""
    ) -> Value:
        """Layer normalization of a sum.

        Args:
            terms: two values [batch, length, size].
            name: of the normalization.
            bias: whether it has one.
            third: name of a vector of the weights that is added too; "" for none.
        """
        return self._skip_norm((True,), terms, name, size, epsilon, bias=bias, third=third)[0]

    def norm_and_sum(
        self, terms: Sequence[Value], name: str, size: int, epsilon: float, *, bias: bool = True, third: str = ""
    ) -> tuple[Value, Value]:
        """The same, and the sum itself, behind the normalized one."""
        outputs = (True, False, False, True)
        normed, total = self._skip_norm(outputs, terms, name, size, epsilon, bias=bias, third=third)
        return normed, total

    def _skip_norm(
        self, outputs: Sequence[bool], terms: Sequence[Value], name: str, size: int, epsilon: float,
        *, bias: bool, third: str,
    ) -> list[Value]:  # fmt: skip
        inputs = [*terms, self.weight(f"{name}.weight", size)]
        if bias or third:
            inputs.append(self.weight(f"{name}.bias", size) if bias else "")
        if third:
            inputs.append(self.weight(third, size))
        return self.graph.add_many("SkipLayerNormalization", inputs, outputs, FUSED, epsilon=epsilon)

    def activation(self, value: Value, kind: str) -> Value:
        """An activation function, by transformers' name: one of ``ACTIVATIONS``."""
        if kind == "linear":
            return value
        if kind in ("silu", "swish"):
            return self.graph.add("Mul", value, self.graph.add("Sigmoid", value))
        op, domain = _OPERATORS[kind]
        attributes: dict[str, Any] = {"alpha": 1.702} if op == "QuickGelu" else {}
        return self.graph.add(op, value, domain=domain, **attributes)

    def activation_of_sum(self, value: Value, bias: str, size: int, kind: str) -> Value:
        """An activation function of the sum of a value [..., size] and a vector of the weights."""
        shift = self.weight(bias, size)
        if kind in ("gelu", "gelu_python"):
            return self.graph.add("BiasGelu", value, shift, domain=FUSED)
        return self.activation(self.graph.add("Add", value, shift), kind)

    def attention(
        self, parts: Sequence[Value], heads: int, mask: Value, *, bias: Value = "", scores: Value = ""
    ) -> Value:
        """Attention of several heads; the result is [batch, length, hidden].

        Args:
            parts: queries, keys and values, each [batch, length, hidden].
            heads: how many there are.
            mask: int32 [batch, length], 0 for positions that are not attended to.
            bias: that is added to the three parts, [3 x hidden]; "" for none.
            scores: added to the scores, [1, 1 or heads, length, length]; "" for nothing.
        """
        further = (scores,) if scores else ()
        return self.graph.add(
            "MultiHeadAttention",
            *(*parts, bias, mask, *further),
            domain=FUSED,
            num_heads=heads,
            mask_filter_value=MASKED,
        )

    def mask(self) -> Value:
        """The input ``attention_mask`` as operators of ONNX Runtime want it, int32."""
        return self.graph.add("Cast", self.graph.input("attention_mask"), to=_INT32)

    def length(self, ids: Value) -> Value:
        """The length of the sequences of ids [batch, length], int64 [1]."""
        return self.graph.add("Shape", ids, start=1, end=2)

    def first(self, hidden: Value) -> Value:
        """The first token's vector of each sequence: [batch, size] of [batch, length, size]."""
        return self.graph.add("Gather", hidden, self.graph.constant(0), axis=1)


#: TensorProto.INT32, which importing onnx for is not worth it.
_INT32: Final = 6
